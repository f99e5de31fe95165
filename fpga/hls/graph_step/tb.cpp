// Steps over lists of any 32-bit numbers, mostly the same few words of the bitmap again and again:
// nothing outside the arrays is touched, and every step answers as one does that waits for each
// read and write.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

#include <vector>

namespace {

constexpr uint32_t ROUNDS = 1500;

struct answer {
    std::vector<uint64_t> visited;
    std::vector<uint32_t> next;
    std::vector<uint32_t> next_list;
    uint32_t length = 0;
};

void step_naively(const std::vector<uint64_t> &offsets, const std::vector<uint32_t> &neighbours,
                  uint32_t vertices, uint32_t capacity, answer &out)
{
    for (uint32_t list = 0; list + 1 < offsets.size(); ++list) {
        for (uint64_t at = offsets[list]; at < offsets[list + 1]; ++at) {
            const uint32_t vertex = neighbours[at];
            if (vertex >= vertices || flashmesh::is_set(out.visited.data(), vertex)) {
                continue;
            }
            flashmesh::select(out.visited.data(), vertex, true);
            if (out.length < capacity) {
                out.next.push_back(vertex);
                out.next_list.push_back(list);
            }
            ++out.length;
        }
    }
}

template <typename T>
void copy(const std::vector<T> &from, bench::exact<T> &to)
{
    std::copy(from.begin(), from.end(), to.data());
}

} // namespace

int main()
{
    bench::generator random;
    uint32_t marked_in_all = 0;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t vertices = random.among<uint32_t>({0, 1, 63, 64, 65, 640, 5000});
        const uint32_t lists = random.below(8);
        std::vector<uint64_t> offsets = {random.one_in(3) ? random.below(40) : 0};
        for (uint32_t list = 0; list < lists; ++list) {
            offsets.push_back(offsets.back() + (random.one_in(4) ? 0 : random.below(90)));
        }
        std::vector<uint32_t> neighbours(offsets.back());
        const uint32_t stride = random.among<uint32_t>({1, 7, 64});
        for (uint32_t at = 0; at < neighbours.size(); ++at) {
            neighbours[at] = random.one_in(20)  ? static_cast<uint32_t>(random.word())
                             : random.one_in(3) ? random.below(vertices + 2)
                                                : at % 70 * stride;
        }
        answer expected;
        for (uint32_t word = 0; word < flashmesh::bitmap_words(vertices); ++word) {
            expected.visited.push_back(random.word() & random.word() &
                                       flashmesh::row_mask(word, vertices));
        }
        bench::exact<uint64_t> visited(expected.visited.size());
        bench::exact<uint64_t> exact_offsets(offsets.size());
        bench::exact<uint32_t> exact_neighbours(neighbours.size());
        copy(expected.visited, visited);
        copy(offsets, exact_offsets);
        copy(neighbours, exact_neighbours);
        const uint32_t capacity = random.below(300);
        bench::exact<uint32_t> next(capacity);
        bench::exact<uint32_t> next_list(capacity);
        bench::exact<uint32_t> length(1);
        graph_step(exact_offsets.data(), exact_neighbours.data(), lists, visited.data(), vertices,
                   capacity, next.data(), next_list.data(), length.data());
        step_naively(offsets, neighbours, vertices, capacity, expected);

        bench::expect(length[0] == expected.length, round, "another number of vertices");
        bench::expect(std::equal(expected.visited.begin(), expected.visited.end(), visited.data()),
                      round, "other vertices are marked");
        bench::expect(std::equal(expected.next.begin(), expected.next.end(), next.data()), round,
                      "other vertices are next");
        bench::expect(std::equal(expected.next_list.begin(), expected.next_list.end(),
                                 next_list.data()),
                      round, "they come from other lists");
        marked_in_all += length[0];
    }
    bench::expect(marked_in_all > 20 * ROUNDS, ROUNDS, "hardly a vertex was marked");
    std::printf("%u rounds, %u vertices marked\n", ROUNDS, marked_in_all);
    return 0;
}
