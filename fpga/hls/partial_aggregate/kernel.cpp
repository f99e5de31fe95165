// Counts, sums, minima and maxima of the groups of a batch of rows.
//
// BlueDBM (section 2) points at Ibex, which selects and groups in the storage device and sends
// what is left; partial aggregates are the least that can be sent. Whoever receives them adds them
// up, as docs/pushdown-program.md says of a Program's output.
//
// On a card: `partial_aggregate_stream`, over packets of what three columns have of row groups
// (flashmesh/rows.hpp): VALUES; GROUPS, the numbers of the rows' groups, such as page_decode gives of
// the codes of a dictionary; SELECTION, whose packet is the bitmap alone, as predicate_filter gives
// it, and whose words behind those may be missing. A row counts that is selected, whose value and
// number are valid, and whose number is below `groups`. When all row groups have come, a packet of
// `states` leaves for each group, whose number is its tag: a beat of which five words count: the
// count, the sum (low word and high, signed), the minimum and the maximum.
//
// For the host: `partial_aggregate`, over arrays: `values`, and bitmaps `valid` and `selection`, of
// `rows` rows; group[i] is row i's group. `counts`, `minima` and `maxima` have `groups` elements,
// `sums` two words for each group, low and high, of a signed number of 128 bits: no batch overflows
// it.
//
// A group without a row that counts has count 0, sum 0, minimum 2^63 - 1 and maximum -2^63. More than
// MAX_GROUPS groups are not computed: no state leaves, and nothing is written.
//
// Stages that all run at once: packets of a row group meet ▸ rows are gathered, eight at a time ▸
// added to their groups' states ▸ which leave at the end. States that have just changed wait in
// registers before they are written, and a row takes its group's state from there if it is among
// them: so a row does not wait for the one before, though the memory on chip takes cycles to read
// and write.
//
// Intended, not measured: a row per cycle, 16 bytes and three bits.
#include <flashmesh/beat.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/rows.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::axis;
using flashmesh::beat;
using flashmesh::BEAT_WORDS;
using flashmesh::line;
using flashmesh::OPEN_GROUPS;
using flashmesh::piece;
using flashmesh::whole_group;

constexpr uint32_t MAX_GROUPS = 4096;
// Columns of a row group.
constexpr uint32_t VALUES = 0;
constexpr uint32_t GROUPS = 1;
constexpr uint32_t SELECTION = 2;
constexpr uint32_t COLUMNS = 3;
constexpr uint32_t COLUMN_STREAMS = OPEN_GROUPS * COLUMNS;
// Eights of rows in a word of a bitmap.
constexpr uint32_t EIGHTS = flashmesh::WORD_BITS / BEAT_WORDS;
constexpr uint32_t DEPTH = 16;
constexpr uint32_t STATE_WORDS = 5;
// Packets that memory has been asked for.
constexpr uint32_t READ_AHEAD = 4;
// Changed states in registers. One is written when WRITTEN rows have come behind it, and stays for
// RECENT - WRITTEN more, which is the time that the memory has to write it.
constexpr uint32_t RECENT = 8;
constexpr uint32_t WRITTEN = 4;
constexpr uint32_t NO_GROUP = 0xffffffff;

struct state {
    uint64_t count;
    uint64_t low;
    int64_t high;
    int64_t minimum;
    int64_t maximum;
};

constexpr int64_t LEAST = INT64_MIN;
constexpr int64_t GREATEST = INT64_MAX;

// Eight rows: values, numbers of groups, and which of them count.
struct eight_rows {
    uint64_t values[BEAT_WORDS];
    uint64_t groups[BEAT_WORDS];
    uint8_t counted;
};

struct change {
    uint32_t group;
    state value;
};

state with(state group, int64_t value)
{
    const uint64_t low = group.low + static_cast<uint64_t>(value);
    const bool carries = low < group.low;
    ++group.count;
    group.low = low;
    // The value's upper word is its sign.
    group.high += (value < 0 ? -1 : 0) + (carries ? 1 : 0);
    group.minimum = value < group.minimum ? value : group.minimum;
    group.maximum = value > group.maximum ? value : group.maximum;
    return group;
}

// Changes the state of `place` by `value`, or of no group.
void add(state *states, change *recent, uint32_t place, int64_t value)
{
#pragma HLS INLINE
    state current = place == NO_GROUP ? state{} : states[place];
forward:
    // From the oldest on: the newest counts.
    for (uint32_t i = RECENT; i > 0; --i) {
#pragma HLS UNROLL
        if (recent[i - 1].group == place) {
            current = recent[i - 1].value;
        }
    }
    const change due = recent[WRITTEN - 1];
    if (due.group != NO_GROUP) {
        states[due.group] = due.value;
    }
shift:
    for (uint32_t i = RECENT - 1; i > 0; --i) {
#pragma HLS UNROLL
        recent[i] = recent[i - 1];
    }
    recent[0] = {place, place == NO_GROUP ? state{} : with(current, value)};
}

// Makes rows of row groups, in the order in which these are whole.
void gather(uint32_t rows, flashmesh::column_stream (&columns)[COLUMN_STREAMS],
            flashmesh::stream<whole_group, OPEN_GROUPS> &whole,
            flashmesh::stream<eight_rows, DEPTH> &eights)
{
groups:
    for (uint32_t i = 0; i < flashmesh::groups_of(rows); ++i) {
        const whole_group next = whole.read();
        const uint32_t first = next.place * COLUMNS;
        const line values = columns[first + VALUES].read();
        const line numbers = columns[first + GROUPS].read();
        const line selected = columns[first + SELECTION].read();
        line counted;
    words:
        for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
            counted.words[word] =
                values.words[word] & numbers.words[word] & selected.words[word] &
                flashmesh::row_mask(word, flashmesh::rows_in(next.number, rows));
        }
    eights:
        for (uint32_t at = 0; at < flashmesh::beats_in(next.number, rows); ++at) {
#pragma HLS PIPELINE II=1
            const line value = columns[first + VALUES].read();
            const line number = columns[first + GROUPS].read();
            eight_rows out;
        lanes:
            for (uint32_t lane = 0; lane < BEAT_WORDS; ++lane) {
#pragma HLS UNROLL
                out.values[lane] = value.words[lane];
                out.groups[lane] = number.words[lane];
            }
            out.counted = static_cast<uint8_t>(
                counted.words[at / EIGHTS] >> (at % EIGHTS * BEAT_WORDS));
            eights.write(out);
        }
    }
}

// Adds all rows to the states of their groups, and sends these.
void aggregate(uint32_t groups, uint32_t rows, flashmesh::stream<eight_rows, DEPTH> &eights,
               axis &packets)
{
    // More than there are states for: no row has a group.
    const uint32_t known = groups <= MAX_GROUPS ? groups : 0;
    state states[MAX_GROUPS];
#pragma HLS BIND_STORAGE variable=states type=ram_2p impl=uram
clear:
    for (uint32_t i = 0; i < known; ++i) {
#pragma HLS PIPELINE II=1
        states[i] = {0, 0, 0, GREATEST, LEAST};
    }
    change recent[RECENT];
#pragma HLS ARRAY_PARTITION variable=recent complete
none:
    for (uint32_t i = 0; i < RECENT; ++i) {
#pragma HLS UNROLL
        recent[i] = {NO_GROUP, {}};
    }
    // Only the last row group has fewer rows, so that all eights but the last are whole.
    const uint64_t steps = (uint64_t{rows} + BEAT_WORDS - 1) / BEAT_WORDS * BEAT_WORDS;
    eight_rows eight = {};
rows:
    for (uint64_t row = 0; row < steps; ++row) {
#pragma HLS PIPELINE II=1
// Written WRITTEN rows behind its change, read from memory RECENT + 1 behind: 5 rows in between.
#pragma HLS DEPENDENCE variable=states type=inter direction=RAW distance=5 true
        const uint32_t lane = row % BEAT_WORDS;
        if (lane == 0) {
            eight = eights.read();
        }
        const bool is_counted = eight.groups[lane] < known && (eight.counted >> lane & 1) != 0;
        add(states, recent, is_counted ? static_cast<uint32_t>(eight.groups[lane]) : NO_GROUP,
            static_cast<int64_t>(eight.values[lane]));
    }
rest:
    for (uint32_t i = 0; i < WRITTEN; ++i) {
#pragma HLS PIPELINE II=1
        add(states, recent, NO_GROUP, 0);
    }
send:
    for (uint32_t i = 0; i < known; ++i) {
#pragma HLS PIPELINE II=1
        beat out = {};
        out.words[0] = states[i].count;
        out.words[1] = states[i].low;
        out.words[2] = static_cast<uint64_t>(states[i].high);
        out.words[3] = static_cast<uint64_t>(states[i].minimum);
        out.words[4] = static_cast<uint64_t>(states[i].maximum);
        out.tag = i;
        out.bytes = 8 * STATE_WORDS;
        out.is_last = true;
        flashmesh::send(packets, out);
    }
}

} // namespace

FLASHMESH_STREAM_TOP void partial_aggregate_stream(axis &columns, uint32_t groups, uint32_t rows,
                                                   axis &states)
{
#pragma HLS INTERFACE axis port=columns
#pragma HLS INTERFACE axis port=states
#pragma HLS INTERFACE s_axilite port=groups
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE ap_ctrl_chain port=return
    const uint64_t count = uint64_t{flashmesh::groups_of(rows)} * COLUMNS;
    FLASHMESH_STREAMS(line, waiting, COLUMN_STREAMS, flashmesh::COLUMN_DEPTH);
    FLASHMESH_STREAM(whole_group, whole, OPEN_GROUPS);
    FLASHMESH_STREAM(eight_rows, eights, DEPTH);
    FLASHMESH_DATAFLOW("partial_aggregate_stream");
    FLASHMESH_STAGE(flashmesh::meet, columns, count, (1U << COLUMNS) - 1, waiting, whole);
    FLASHMESH_STAGE(gather, rows, waiting, whole, eights);
    FLASHMESH_STAGE(aggregate, groups, rows, eights, states);
}

namespace {

// Beats of numbers of 32 bits.
uint32_t narrow_beats(uint32_t beats)
{
    return (beats + 1) / 2;
}

void request_piece(flashmesh::wide<int64_t> values, flashmesh::wide<uint32_t> group,
                   const piece &of, uint32_t rows)
{
    const uint64_t first = uint64_t{of.group} * (flashmesh::GROUP_ROWS / BEAT_WORDS);
    const uint32_t beats = flashmesh::beats_in(of.group, rows);
    if (of.column == VALUES) {
        flashmesh::request(values, first, beats);
    } else if (of.column == GROUPS) {
        flashmesh::request(group, first / 2, narrow_beats(beats));
    }
}

// A bit for each row of the group, from its place in a bitmap, or all of them.
beat bits_of(const uint64_t *bitmap, const piece &of, uint32_t rows)
{
    beat out = {};
    out.tag = of.group * COLUMNS + of.column;
    out.bytes = flashmesh::BEAT_BYTES;
    out.is_last = of.column == SELECTION;
words:
    for (uint32_t word = 0; word < flashmesh::bitmap_words(flashmesh::rows_in(of.group, rows));
         ++word) {
#pragma HLS PIPELINE II=1
        const uint64_t at = uint64_t{of.group} * BEAT_WORDS + word;
        out.words[word] = of.column == GROUPS ? ~uint64_t{0} : bitmap[at];
    }
    return out;
}

void send_rows(flashmesh::wide<int64_t> values, const uint64_t *valid, const uint64_t *selection,
               flashmesh::wide<uint32_t> group, uint32_t rows, axis &packets)
{
    const uint64_t count = uint64_t{flashmesh::groups_of(rows)} * COLUMNS;
    uint64_t requested = 0;
ahead:
    for (; requested < READ_AHEAD && requested < count; ++requested) {
#pragma HLS PIPELINE II=1
        request_piece(values, group, flashmesh::piece_at(requested, count, COLUMNS), rows);
    }
packets:
    for (uint64_t i = 0; i < count; ++i) {
        const piece next = flashmesh::piece_at(i, count, COLUMNS);
        const uint64_t first = uint64_t{next.group} * (flashmesh::GROUP_ROWS / BEAT_WORDS);
        const uint32_t beats =
            next.column == SELECTION ? 0 : flashmesh::beats_in(next.group, rows);
        beat out = bits_of(next.column == VALUES ? valid : selection, next, rows);
        flashmesh::send(packets, out);
        beat in = {};
    beats:
        for (uint32_t at = 0; at < beats; ++at) {
#pragma HLS PIPELINE II=1
            const uint32_t half = at % 2;
            if (next.column == VALUES) {
                in = flashmesh::load(values, first + at, uint64_t{rows} * sizeof(int64_t));
            } else if (half == 0) {
                in = flashmesh::load(group, (first + at) / 2, uint64_t{rows} * sizeof(uint32_t));
            }
        lanes:
            for (uint32_t lane = 0; lane < BEAT_WORDS; ++lane) {
#pragma HLS UNROLL
                const uint64_t two = in.words[BEAT_WORDS / 2 * half + lane / 2];
                const uint64_t number = (two >> (32 * (lane % 2))) & 0xffffffff;
                out.words[lane] = next.column == VALUES ? in.words[lane] : number;
            }
            out.is_last = at + 1 == beats;
            flashmesh::send(packets, out);
        }
        if (requested < count) {
            request_piece(values, group, flashmesh::piece_at(requested, count, COLUMNS), rows);
            ++requested;
        }
    }
}

void receive_states(axis &packets, uint32_t groups, uint64_t *counts, int64_t *sums,
                    int64_t *minima, int64_t *maxima)
{
groups:
    for (uint32_t i = 0; i < groups; ++i) {
// A port for each array: two words of sums a group.
#pragma HLS PIPELINE II=2
        const beat next = flashmesh::receive(packets);
        counts[next.tag] = next.words[0];
        sums[2 * next.tag] = static_cast<int64_t>(next.words[1]);
        sums[2 * next.tag + 1] = static_cast<int64_t>(next.words[2]);
        minima[next.tag] = static_cast<int64_t>(next.words[3]);
        maxima[next.tag] = static_cast<int64_t>(next.words[4]);
    }
}

void run(flashmesh::wide<int64_t> values, const uint64_t *valid, const uint64_t *selection,
         flashmesh::wide<uint32_t> group, uint32_t groups, uint32_t rows, uint64_t *counts,
         int64_t *sums, int64_t *minima, int64_t *maxima)
{
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, states, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("partial_aggregate");
    FLASHMESH_STAGE(send_rows, values, valid, selection, group, rows, packets);
    FLASHMESH_STAGE(partial_aggregate_stream, packets, groups, rows, states);
    FLASHMESH_STAGE(receive_states, states, groups, counts, sums, minima, maxima);
}

} // namespace

FLASHMESH_KERNEL void partial_aggregate(flashmesh::wide<int64_t> values, const uint64_t *valid,
                                        const uint64_t *selection,
                                        flashmesh::wide<uint32_t> group, uint32_t groups,
                                        uint32_t rows, uint64_t *counts, int64_t *sums,
                                        int64_t *minima, int64_t *maxima)
{
#pragma HLS INTERFACE m_axi port=values bundle=values offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=valid bundle=valid offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=selection bundle=selection offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=group bundle=group offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=counts bundle=counts offset=slave
#pragma HLS INTERFACE m_axi port=sums bundle=sums offset=slave
#pragma HLS INTERFACE m_axi port=minima bundle=minima offset=slave
#pragma HLS INTERFACE m_axi port=maxima bundle=maxima offset=slave
#pragma HLS INTERFACE s_axilite port=groups
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    if (groups <= MAX_GROUPS) {
        run(values, valid, selection, group, groups, rows, counts, sums, minima, maxima);
    }
}
