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
// Intended, not measured: an initiation interval of 4, in which a group's state is read, changed
// and written on chip; 12 bytes and two bits per interval.
#include <flashmesh/kernel.hpp>

namespace {

constexpr uint32_t MAX_GROUPS = 4096;

struct state {
    uint64_t count;
    uint64_t low;
    int64_t high;
    int64_t minimum;
    int64_t maximum;
};

constexpr int64_t LEAST = INT64_MIN;
constexpr int64_t GREATEST = INT64_MAX;

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

} // namespace

FLASHMESH_KERNEL void partial_aggregate(const int64_t *values, const uint64_t *valid,
                                        const uint64_t *selection, const uint32_t *group,
                                        uint32_t groups, uint32_t rows, uint64_t *counts,
                                        int64_t *sums, int64_t *minima, int64_t *maxima)
{
#pragma HLS INTERFACE m_axi port=values bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=valid bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=selection bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=group bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=counts bundle=gmem3 offset=slave
#pragma HLS INTERFACE m_axi port=sums bundle=gmem3 offset=slave
#pragma HLS INTERFACE m_axi port=minima bundle=gmem3 offset=slave
#pragma HLS INTERFACE m_axi port=maxima bundle=gmem3 offset=slave
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
rows:
    for (uint32_t row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=4
        const uint32_t place = group[row];
        if (place < groups && flashmesh::is_selected(selection, row) &&
            flashmesh::is_valid(valid, row)) {
            states[place] = with(states[place], values[row]);
        }
    }
write:
    for (uint32_t i = 0; i < groups; ++i) {
#pragma HLS PIPELINE II=2
        counts[i] = states[i].count;
        sums[2 * i] = static_cast<int64_t>(states[i].low);
        sums[2 * i + 1] = states[i].high;
        minima[i] = states[i].minimum;
        maxima[i] = states[i].maximum;
    }
}
