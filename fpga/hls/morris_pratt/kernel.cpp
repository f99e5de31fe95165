// Where a pattern first occurs in each row's text, by Morris and Pratt's automaton.
//
// BlueDBM (section 7.3, String Search) streams flash pages through such engines, four to a bus, and
// gives back nothing but places; the host sends the pattern. There the host sends the automaton's
// constants too, here each engine makes its own: that takes as many cycles as the pattern has
// bytes, twice.
//
// On a card: `morris_pratt_stream`, over packets of texts (flashmesh/text.hpp) and a pattern of up
// to PREFIX_BYTES bytes; the result of a text is the pattern's place in bytes from its start,
// NOT_FOUND where the pattern is not. The empty pattern is at 0 of every text; of a longer pattern
// the first PREFIX_BYTES bytes are looked for.
//
// For the host: `morris_pratt`, over arrays: row i is the bytes text_offsets[i] ..
// text_offsets[i + 1] of `text_bytes`, positions[i] its result. Of a longer pattern one automaton
// looks for the first PREFIX_BYTES bytes, and where they occur the rest is compared in memory:
// correct, no stream, and no longer linear.
//
// Intended, not measured: an engine takes a step per cycle. A step takes one byte of text or follows
// one failure link; links are followed no more often than bytes were taken, so a text of n bytes is
// 2 n steps at the most and n where its bytes rarely begin the pattern. Texts go to ENGINES engines
// in turn: with as many texts as engines, a beat of 64 bytes per cycle; of one text, one byte.
#include <flashmesh/beat.hpp>
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>
#include <flashmesh/text.hpp>

namespace {

using flashmesh::axis;
using flashmesh::beat;

constexpr uint32_t PREFIX_BYTES = 64;
constexpr uint32_t NOT_FOUND = 0xffffffff;
// As many as a beat has bytes.
constexpr uint32_t ENGINES = 64;
// Beats that wait at an engine, of the text behind the one in which it is.
constexpr uint32_t TEXT_DEPTH = 16;
constexpr uint32_t RESULT_DEPTH = 2;

// A place in the prefix, from before its first byte to behind its last.
using state = flashmesh::bits<7>;

struct automaton {
    uint8_t prefix[PREFIX_BYTES];
    // links[i]: how much of the prefix is still matched when the byte behind its first i differs.
    state links[PREFIX_BYTES + 1];
    uint32_t length;
};

void build(const beat &pattern, automaton &machine)
{
    machine.length = pattern.bytes;
prefix:
    for (uint32_t i = 0; i < PREFIX_BYTES; ++i) {
#pragma HLS UNROLL
        machine.prefix[i] = flashmesh::byte_of(pattern, i);
    }
    machine.links[0] = 0;
    machine.links[1] = 0;
    uint32_t matched = 0;
    uint32_t i = 1;
links:
    while (i < machine.length) {
#pragma HLS PIPELINE II=1
        if (machine.prefix[i] == machine.prefix[matched]) {
            ++matched;
            ++i;
            machine.links[i] = static_cast<uint8_t>(matched);
        } else if (matched == 0) {
            ++i;
            machine.links[i] = 0;
        } else {
            matched = static_cast<uint32_t>(machine.links[matched]);
        }
    }
}

// The first bytes of a pattern, as many as the automaton has places for.
beat load_prefix(flashmesh::wide_port pattern, uint32_t pattern_length)
{
    flashmesh::request(pattern, 0, pattern_length == 0 ? 0 : 1);
    beat prefix = pattern_length == 0 ? beat{} : flashmesh::load(pattern, 0, pattern_length);
    prefix.bytes =
        static_cast<uint8_t>(pattern_length < PREFIX_BYTES ? pattern_length : PREFIX_BYTES);
    return prefix;
}

// Takes one step, and says whether it took `byte`.
bool step(const automaton &machine, uint8_t byte, state &matched)
{
    const uint32_t place = static_cast<uint32_t>(matched);
    if (machine.prefix[place] == byte) {
        matched = static_cast<uint8_t>(place + 1);
        return true;
    }
    if (place == 0) {
        return true;
    }
    matched = machine.links[place];
    return false;
}

// Gives all engines the pattern, then each a text in turn.
void distribute(axis &texts, uint32_t count, flashmesh::wide_port pattern, uint32_t pattern_length,
                flashmesh::stream<beat, TEXT_DEPTH> *engines)
{
    const beat prefix = load_prefix(pattern, pattern_length);
patterns:
    for (uint32_t engine = 0; engine < ENGINES; ++engine) {
#pragma HLS UNROLL
        engines[engine].write(prefix);
    }
    uint32_t engine = 0;
    uint32_t ended = 0;
beats:
    while (ended < count) {
#pragma HLS PIPELINE II=1
        const beat next = flashmesh::receive(texts);
        engines[engine].write(next);
        if (next.is_last) {
            engine = (engine + 1) % ENGINES;
            ++ended;
        }
    }
}

// Texts that come to an engine when `count` go to all in turn.
uint32_t texts_of(uint32_t engine, uint32_t count)
{
    return count / ENGINES + (engine < count % ENGINES ? 1 : 0);
}

void search(uint32_t count, flashmesh::stream<beat, TEXT_DEPTH> &texts,
            flashmesh::stream<beat, RESULT_DEPTH> &results)
{
    automaton machine;
#pragma HLS ARRAY_PARTITION variable=machine.prefix complete
#pragma HLS ARRAY_PARTITION variable=machine.links complete
    build(texts.read(), machine);

texts:
    for (uint32_t text = 0; text < count; ++text) {
        uint32_t position = machine.length == 0 ? 0 : NOT_FOUND;
        uint32_t taken = 0;
        state matched = 0;
        beat bytes = texts.read();
    steps:
        while (bytes.bytes != 0) {
#pragma HLS PIPELINE II=1
            // Behind a match the text is only drained, beat by beat.
            if (position != NOT_FOUND) {
                bytes.bytes = 0;
            } else if (step(machine, flashmesh::byte_of(bytes, 0), matched)) {
                bytes = flashmesh::shift_byte(bytes);
                ++taken;
            }
            if (position == NOT_FOUND && matched == machine.length) {
                position = taken - machine.length;
            }
            if (bytes.bytes == 0 && !bytes.is_last) {
                bytes = texts.read();
            }
        }
        results.write(flashmesh::result_of(bytes.tag, position));
    }
}

void collect(uint32_t count, flashmesh::stream<beat, RESULT_DEPTH> *engines, axis &results)
{
texts:
    for (uint32_t text = 0; text < count; ++text) {
#pragma HLS PIPELINE II=1
        flashmesh::send(results, engines[text % ENGINES].read());
    }
}

} // namespace

FLASHMESH_STREAM_TOP void morris_pratt_stream(axis &texts, uint32_t count,
                                              flashmesh::wide_port pattern,
                                              uint32_t pattern_length, axis &results)
{
#pragma HLS INTERFACE axis port=texts
#pragma HLS INTERFACE axis port=results
#pragma HLS INTERFACE m_axi port=pattern bundle=wide offset=slave num_read_outstanding=1
#pragma HLS INTERFACE s_axilite port=count
#pragma HLS INTERFACE s_axilite port=pattern_length
#pragma HLS INTERFACE ap_ctrl_chain port=return
    FLASHMESH_STREAMS(beat, text_of, ENGINES, TEXT_DEPTH);
    FLASHMESH_STREAMS(beat, result_of, ENGINES, RESULT_DEPTH);
    FLASHMESH_DATAFLOW("morris_pratt_stream");
    FLASHMESH_STAGE(distribute, texts, count, pattern, pattern_length, text_of);
    FLASHMESH_STAGES(engine, ENGINES, search, texts_of(engine, count), text_of[engine],
                     result_of[engine]);
    FLASHMESH_STAGE(collect, count, result_of, results);
}

namespace {

void find(const uint32_t *text_offsets, flashmesh::wide_port text_bytes, uint32_t array_bytes,
          flashmesh::wide_port pattern, uint32_t pattern_length, uint32_t rows,
          uint32_t *positions)
{
    FLASHMESH_STREAM(flashmesh::text_place, places, flashmesh::PLACES_DEPTH);
    FLASHMESH_STREAM(beat, texts, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, results, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("morris_pratt");
    FLASHMESH_STAGE(flashmesh::read_offsets, text_offsets, rows, places);
    FLASHMESH_STAGE(flashmesh::send_texts, text_bytes, array_bytes, rows, places, texts);
    FLASHMESH_STAGE(morris_pratt_stream, texts, rows, pattern, pattern_length, results);
    FLASHMESH_STAGE(flashmesh::receive_results, results, rows, positions);
}

// Bytes of an array that are mostly read one behind the other: a beat is read once.
class reader {
public:
    reader(flashmesh::wide_port port, uint64_t array_bytes) : port_(port), array_bytes_(array_bytes)
    {
    }

    uint8_t at(uint32_t byte)
    {
        if (!has_beat_ || byte / flashmesh::BEAT_BYTES != index_) {
            index_ = byte / flashmesh::BEAT_BYTES;
            flashmesh::request(port_, index_, 1);
            beat_ = flashmesh::load(port_, index_, array_bytes_);
            has_beat_ = true;
        }
        return flashmesh::byte_of(beat_, byte % flashmesh::BEAT_BYTES);
    }

private:
    flashmesh::wide_port port_;
    uint64_t array_bytes_;
    uint32_t index_ = 0;
    bool has_beat_ = false;
    beat beat_ = {};
};

// Whether the bytes of a long pattern behind its prefix stand in `at` .. `end`.
bool has_rest(reader &text, uint32_t at, uint32_t end, reader &pattern, uint32_t pattern_length)
{
    if (pattern_length - PREFIX_BYTES > end - at) {
        return false;
    }
rest:
    for (uint32_t i = PREFIX_BYTES; i < pattern_length; ++i) {
        if (text.at(at + i - PREFIX_BYTES) != pattern.at(i)) {
            return false;
        }
    }
    return true;
}

// One process, without streams: it goes back in the text, which a stage behind a stream can't.
void find_long(const uint32_t *text_offsets, flashmesh::wide_port text_bytes,
               flashmesh::wide_port pattern, uint32_t pattern_length, uint32_t rows,
               uint32_t *positions)
{
    reader text(text_bytes, rows == 0 ? 0 : text_offsets[rows]);
    reader rest(pattern, pattern_length);
    // Bytes in memory are read again for the rest, whose place in the text is another.
    reader compared(text_bytes, rows == 0 ? 0 : text_offsets[rows]);
    automaton machine;
#pragma HLS ARRAY_PARTITION variable=machine.prefix complete
#pragma HLS ARRAY_PARTITION variable=machine.links complete
    build(load_prefix(pattern, pattern_length), machine);

rows:
    for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t start = text_offsets[row];
        const uint32_t end = text_offsets[row + 1];
        uint32_t position = NOT_FOUND;
        uint32_t at = start;
        state matched = 0;
    steps:
        while (at < end && position == NOT_FOUND) {
            if (step(machine, text.at(at), matched)) {
                ++at;
            }
            if (matched == PREFIX_BYTES) {
                if (has_rest(compared, at, end, rest, pattern_length)) {
                    position = at - start - PREFIX_BYTES;
                }
                matched = machine.links[PREFIX_BYTES];
            }
        }
        positions[row] = position;
    }
}

} // namespace

FLASHMESH_KERNEL void morris_pratt(const uint32_t *text_offsets, flashmesh::wide_port text_bytes,
                                   flashmesh::wide_port pattern, uint32_t pattern_length,
                                   uint32_t rows, uint32_t *positions)
{
#pragma HLS INTERFACE m_axi port=text_offsets bundle=offsets offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=text_bytes bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=pattern bundle=wide_pattern offset=slave
#pragma HLS INTERFACE m_axi port=positions bundle=positions offset=slave
#pragma HLS INTERFACE s_axilite port=pattern_length
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    if (pattern_length > PREFIX_BYTES) {
        find_long(text_offsets, text_bytes, pattern, pattern_length, rows, positions);
    } else {
        const uint32_t array_bytes = rows == 0 ? 0 : text_offsets[rows];
        find(text_offsets, text_bytes, array_bytes, pattern, pattern_length, rows, positions);
    }
}
