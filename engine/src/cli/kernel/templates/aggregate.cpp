#include <flashmesh/kernel.hpp>

// The state of a group: how many values it has, and the greatest of them.

FLASHMESH_KERNEL void NAME_init(uint64_t *states, uint32_t groups)
{
    for (uint32_t group = 0; group < groups; ++group) {
        states[2 * group] = 0;
        states[2 * group + 1] = 0;
    }
}

static void add(uint64_t *state, uint64_t count, int64_t value)
{
    if (count > 0 && (state[0] == 0 || value > static_cast<int64_t>(state[1]))) {
        state[1] = static_cast<uint64_t>(value);
    }
    state[0] += count;
}

FLASHMESH_KERNEL void NAME_update(const int64_t *x, const uint32_t *group, uint32_t rows,
                                  uint64_t *states, uint32_t groups)
{
    (void)groups;
    for (uint32_t row = 0; row < rows; ++row) {
        add(states + 2 * group[row], 1, x[row]);
    }
}

FLASHMESH_KERNEL void NAME_merge(uint64_t *states, const uint64_t *others, uint32_t groups)
{
    for (uint32_t group = 0; group < groups; ++group) {
        const uint64_t *other = others + 2 * group;
        add(states + 2 * group, other[0], static_cast<int64_t>(other[1]));
    }
}

FLASHMESH_KERNEL void NAME_finish(const uint64_t *states, uint32_t groups, int64_t *result,
                                  uint64_t *result_valid)
{
    flashmesh::clear(result_valid, groups);
    for (uint32_t group = 0; group < groups; ++group) {
        result[group] = static_cast<int64_t>(states[2 * group + 1]);
        flashmesh::select(result_valid, group, states[2 * group] > 0);
    }
}
