// The n-th root of the product of n values: the exponential of the mean of their logarithms, as
// the product itself soon leaves a double's range.
//
// A zero makes it 0, a negative value NaN, no value NULL.
//
// A group's state is two words: the number of values, and the sum of their logarithms.
//
// Intended, not measured: a row every 8 cycles, as long as an addition of doubles takes, which the
// next row of the same group waits for.
#include <flashmesh/kernel.hpp>

#include <math.h>

namespace {

constexpr uint32_t STATE_WORDS = 2;

} // namespace

FLASHMESH_KERNEL void geometric_mean_init(uint64_t *states, uint32_t groups)
{
groups:
    for (uint32_t group = 0; group < groups; ++group) {
#pragma HLS PIPELINE II=2
        states[STATE_WORDS * group] = 0;
        states[STATE_WORDS * group + 1] = flashmesh::to_word(0);
    }
}

FLASHMESH_KERNEL void geometric_mean_update(const double *x, const uint32_t *group, uint32_t rows,
                                            uint64_t *states, uint32_t groups)
{
#pragma HLS INTERFACE m_axi port=x bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=group bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=states bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=groups
#pragma HLS INTERFACE s_axilite port=return
    static_cast<void>(groups);
rows:
    for (uint32_t row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=8
        uint64_t *state = states + STATE_WORDS * group[row];
        ++state[0];
        state[1] = flashmesh::to_word(flashmesh::to_double(state[1]) + log(x[row]));
    }
}

FLASHMESH_KERNEL void geometric_mean_merge(uint64_t *states, const uint64_t *others,
                                           uint32_t groups)
{
groups:
    for (uint32_t group = 0; group < groups; ++group) {
#pragma HLS PIPELINE II=2
        uint64_t *state = states + STATE_WORDS * group;
        const uint64_t *other = others + STATE_WORDS * group;
        state[0] += other[0];
        state[1] = flashmesh::to_word(flashmesh::to_double(state[1]) +
                                      flashmesh::to_double(other[1]));
    }
}

FLASHMESH_KERNEL void geometric_mean_finish(const uint64_t *states, uint32_t groups, double *result,
                                            uint64_t *result_valid)
{
    flashmesh::clear(result_valid, groups);
groups:
    for (uint32_t group = 0; group < groups; ++group) {
#pragma HLS PIPELINE II=2
        const uint64_t *state = states + STATE_WORDS * group;
        const bool has_values = state[0] != 0;
        const double logarithm = flashmesh::to_double(state[1]);
        result[group] = has_values ? exp(logarithm / static_cast<double>(state[0])) : 0;
        flashmesh::select(result_valid, group, has_values);
    }
}
