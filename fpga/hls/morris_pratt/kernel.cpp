// Where a pattern first occurs in each row's text, by Morris and Pratt's automaton.
//
// BlueDBM (section 7.3, String Search) streams flash pages through such engines and gives back
// nothing but places; the host sends the pattern. There the host sends the automaton's constants
// too, here the kernel makes them: that takes as many cycles as the pattern has bytes, twice.
//
// Shapes: `rows` texts, row i the bytes text_offsets[i] .. text_offsets[i + 1] of `text_bytes`;
// `positions` has `rows` elements, in bytes from the row's start, NOT_FOUND where the pattern is
// not. The empty pattern is at 0 of every text.
//
// The automaton and its failure links are in registers and have PREFIX_BYTES places. Of a longer
// pattern the automaton looks for the first PREFIX_BYTES bytes, and where they occur the rest is
// compared in memory: correct, and no longer linear.
//
// Intended, not measured: a step per cycle. A step takes one byte of text or follows one failure
// link; links are followed no more often than bytes were taken, so a text of n bytes is 2 n steps
// at the most and n where its bytes rarely begin the pattern: up to 1 byte per cycle.
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

constexpr uint32_t PREFIX_BYTES = 64;
constexpr uint32_t NOT_FOUND = 0xffffffff;
constexpr uint32_t BEAT_BYTES = 8;
constexpr uint32_t DEPTH = 32;

// Up to eight bytes of a row's text. Every row has a last beat, if only an empty one.
struct text_beat {
    uint64_t bytes;
    uint8_t count;
    bool is_last;
};

// A place in the prefix, from before its first byte to behind its last.
using state = flashmesh::bits<7>;

struct automaton {
    uint8_t prefix[PREFIX_BYTES];
    // links[i]: how much of the prefix is still matched when the byte behind its first i differs.
    state links[PREFIX_BYTES + 1];
    uint32_t length;
};

void build(const uint8_t *pattern, uint32_t pattern_length, automaton &machine)
{
    machine.length = pattern_length < PREFIX_BYTES ? pattern_length : PREFIX_BYTES;
prefix:
    for (uint32_t i = 0; i < machine.length; ++i) {
#pragma HLS PIPELINE II=1
        machine.prefix[i] = pattern[i];
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

void read_text(const uint32_t *text_offsets, const uint8_t *text_bytes, uint32_t rows,
               flashmesh::stream<text_beat, DEPTH> &text)
{
rows:
    for (uint32_t row = 0; row < rows; ++row) {
        uint32_t at = text_offsets[row];
        const uint32_t end = text_offsets[row + 1];
        bool is_last = false;
    beats:
        while (!is_last) {
#pragma HLS PIPELINE II=1
            const uint32_t left = end - at;
            is_last = left <= BEAT_BYTES;
            const uint32_t count = is_last ? left : BEAT_BYTES;
            text.write({flashmesh::load_bytes(text_bytes + at, count),
                        static_cast<uint8_t>(count), is_last});
            at += count;
        }
    }
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

void search(const uint8_t *pattern, uint32_t pattern_length, uint32_t rows,
            flashmesh::stream<text_beat, DEPTH> &text, flashmesh::stream<uint32_t, DEPTH> &found)
{
    automaton machine;
#pragma HLS ARRAY_PARTITION variable=machine.prefix complete
#pragma HLS ARRAY_PARTITION variable=machine.links complete
    build(pattern, pattern_length, machine);

rows:
    for (uint32_t row = 0; row < rows; ++row) {
        uint32_t position = pattern_length == 0 ? 0 : NOT_FOUND;
        uint32_t taken = 0;
        state matched = 0;
        text_beat beat = text.read();
    steps:
        while (beat.count != 0) {
#pragma HLS PIPELINE II=1
            // Behind a match the row's bytes are only drained.
            if (position != NOT_FOUND || step(machine, static_cast<uint8_t>(beat.bytes), matched)) {
                beat.bytes >>= 8;
                beat.count = static_cast<uint8_t>(beat.count - 1);
                ++taken;
            }
            if (position == NOT_FOUND && matched == machine.length) {
                position = taken - machine.length;
            }
            if (beat.count == 0 && !beat.is_last) {
                beat = text.read();
            }
        }
        found.write(position);
    }
}

void write_positions(flashmesh::stream<uint32_t, DEPTH> &found, uint32_t rows, uint32_t *positions)
{
rows:
    for (uint32_t row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=1
        positions[row] = found.read();
    }
}

void find(const uint32_t *text_offsets, const uint8_t *text_bytes, const uint8_t *pattern,
          uint32_t pattern_length, uint32_t rows, uint32_t *positions)
{
    FLASHMESH_STREAM(text_beat, text, DEPTH);
    FLASHMESH_STREAM(uint32_t, found, DEPTH);
    FLASHMESH_DATAFLOW("morris_pratt");
    FLASHMESH_STAGE(read_text, text_offsets, text_bytes, rows, text);
    FLASHMESH_STAGE(search, pattern, pattern_length, rows, text, found);
    FLASHMESH_STAGE(write_positions, found, rows, positions);
}

// Whether the bytes of a long pattern behind its prefix stand in `at` .. `end`.
bool has_rest(const uint8_t *text_bytes, uint32_t at, uint32_t end, const uint8_t *pattern,
              uint32_t pattern_length)
{
    if (pattern_length - PREFIX_BYTES > end - at) {
        return false;
    }
rest:
    for (uint32_t i = PREFIX_BYTES; i < pattern_length; ++i) {
#pragma HLS PIPELINE II=1
        if (text_bytes[at + i - PREFIX_BYTES] != pattern[i]) {
            return false;
        }
    }
    return true;
}

// One process, without streams: it goes back in the text, which a stage behind a stream can't.
void find_long(const uint32_t *text_offsets, const uint8_t *text_bytes, const uint8_t *pattern,
               uint32_t pattern_length, uint32_t rows, uint32_t *positions)
{
    automaton machine;
#pragma HLS ARRAY_PARTITION variable=machine.prefix complete
#pragma HLS ARRAY_PARTITION variable=machine.links complete
    build(pattern, pattern_length, machine);

rows:
    for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t start = text_offsets[row];
        const uint32_t end = text_offsets[row + 1];
        uint32_t position = NOT_FOUND;
        uint32_t at = start;
        state matched = 0;
    steps:
        while (at < end && position == NOT_FOUND) {
            if (step(machine, text_bytes[at], matched)) {
                ++at;
            }
            if (matched == PREFIX_BYTES) {
                if (has_rest(text_bytes, at, end, pattern, pattern_length)) {
                    position = at - start - PREFIX_BYTES;
                }
                matched = machine.links[PREFIX_BYTES];
            }
        }
        positions[row] = position;
    }
}

} // namespace

FLASHMESH_KERNEL void morris_pratt(const uint32_t *text_offsets, const uint8_t *text_bytes,
                                   const uint8_t *pattern, uint32_t pattern_length, uint32_t rows,
                                   uint32_t *positions)
{
#pragma HLS INTERFACE m_axi port=text_offsets bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=text_bytes bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=pattern bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=positions bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=pattern_length
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    if (pattern_length > PREFIX_BYTES) {
        find_long(text_offsets, text_bytes, pattern, pattern_length, rows, positions);
    } else {
        find(text_offsets, text_bytes, pattern, pattern_length, rows, positions);
    }
}
