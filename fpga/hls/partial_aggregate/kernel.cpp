// Counts, sums, minima and maxima of the groups of a batch of rows.
//
// BlueDBM (section 2) points at Ibex, which selects and groups in the storage device and sends
// what is left; partial aggregates are the least that can be sent. Whoever receives them adds them
// up, as docs/pushdown-program.md says of a Program's output.
//
// Shapes: `values`, and bitmaps `valid` and `selection`, of `rows` rows; group[i] is row i's
// group. `counts`, `minima` and `maxima` have `groups` elements, `sums` two words for each group,
// low and high, of a signed number of 128 bits: no batch overflows it. A row counts that is
// selected and valid and whose group is below `groups`. A group without such a row has count 0,
// sum 0, minimum 2^63 - 1 and maximum -2^63. More than MAX_GROUPS groups are not computed: nothing
// is written then.
//
// States that have just changed wait in registers before they are written, and a row takes its
// group's state from there if it is among them: so a row does not wait for the one before, though
// the memory on chip takes cycles to read and write.
//
// Intended, not measured: a row per cycle, 12 bytes and two bits.
#include <flashmesh/kernel.hpp>

namespace {

constexpr uint32_t MAX_GROUPS = 4096;
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

} // namespace

FLASHMESH_KERNEL void partial_aggregate(const int64_t *values, const uint64_t *valid,
                                        const uint64_t *selection, const uint32_t *group,
                                        uint32_t groups, uint32_t rows, uint64_t *counts,
                                        int64_t *sums, int64_t *minima, int64_t *maxima)
{
#pragma HLS INTERFACE m_axi port=values bundle=values offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=valid bundle=valid offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=selection bundle=selection offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=group bundle=group offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=counts bundle=counts offset=slave
#pragma HLS INTERFACE m_axi port=sums bundle=sums offset=slave
#pragma HLS INTERFACE m_axi port=minima bundle=minima offset=slave
#pragma HLS INTERFACE m_axi port=maxima bundle=maxima offset=slave
#pragma HLS INTERFACE s_axilite port=groups
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    if (groups > MAX_GROUPS) {
        return;
    }
    state states[MAX_GROUPS];
#pragma HLS BIND_STORAGE variable=states type=ram_2p impl=uram
clear:
    for (uint32_t i = 0; i < groups; ++i) {
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
    uint64_t counted = 0;
rows:
    for (uint32_t row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=1
// Written WRITTEN rows behind its change, read from memory RECENT + 1 behind: 5 rows in between.
#pragma HLS DEPENDENCE variable=states type=inter direction=RAW distance=5 true
        if (row % flashmesh::WORD_BITS == 0) {
            const uint32_t word = row / flashmesh::WORD_BITS;
            counted = selection[word] & valid[word];
        }
        const uint32_t place = group[row];
        const bool is_counted =
            place < groups && (counted >> (row % flashmesh::WORD_BITS) & 1) != 0;
        add(states, recent, is_counted ? place : NO_GROUP, values[row]);
    }
rest:
    for (uint32_t i = 0; i < WRITTEN; ++i) {
#pragma HLS PIPELINE II=1
        add(states, recent, NO_GROUP, 0);
    }
write:
    for (uint32_t i = 0; i < groups; ++i) {
// A port for each array: two words of sums a group.
#pragma HLS PIPELINE II=2
        counts[i] = states[i].count;
        sums[2 * i] = static_cast<int64_t>(states[i].low);
        sums[2 * i + 1] = states[i].high;
        minima[i] = states[i].minimum;
        maxima[i] = states[i].maximum;
    }
}
