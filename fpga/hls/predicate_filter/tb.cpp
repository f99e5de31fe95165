// Programs of random words: whatever they say, nothing outside the arrays is touched; and of those
// that are sound, a condition and its NOT never select the same row.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

namespace {

constexpr uint32_t ROUNDS = 4000;

// Mostly leaves first, then operators: sound often enough.
uint64_t make_word(bench::generator &random, uint32_t place, uint32_t columns)
{
    if (random.one_in(40)) {
        return random.word();
    }
    const bool is_leaf = place < 2 || random.one_in(3);
    const uint64_t opcode = is_leaf ? random.among<uint64_t>({1, 4, 9, 12, 14, 20, 25, 29, 30, 35})
                                    : random.among<uint64_t>({26, 27, 28});
    const uint32_t limit = columns + (random.one_in(20) ? 1 : 0);
    const uint64_t column = limit == 0 ? 0 : random.below(limit);
    const uint64_t other = limit == 0 ? 0 : random.below(limit);
    return opcode | column << 8 | other << 16;
}

} // namespace

int main()
{
    bench::generator random;
    uint32_t selecting = 0;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t columns = random.below(18);
        const uint32_t rows = random.among<uint32_t>({0, 1, 63, 64, 65, 100});
        uint32_t stride = (rows + 63) / 64 * 64;
        stride = random.one_in(20) ? random.below(200) : stride;
        bench::exact<int64_t> values(std::size_t{columns} * stride);
        bench::exact<uint64_t> valid(std::size_t{columns} * (stride / 64));
        for (std::size_t at = 0; at < values.size(); ++at) {
            values[at] = random.one_in(3) ? static_cast<int64_t>(random.word()) : random.below(3);
        }
        for (std::size_t at = 0; at < valid.size(); ++at) {
            valid[at] = random.word() | random.word();
        }
        const uint32_t instructions = 1 + random.below(12);
        bench::exact<uint64_t> program(2 * instructions + 2);
        for (uint32_t i = 0; i < instructions; ++i) {
            program[2 * i] = make_word(random, i, columns);
            program[2 * i + 1] = random.below(3);
        }
        program[2 * instructions] = NOT;
        const uint32_t words = flashmesh::bitmap_words(rows);
        bench::exact<uint64_t> selection(words);
        bench::exact<uint64_t> negated(words);
        predicate_filter(values.data(), columns, valid.data(), stride, program.data(), instructions,
                         rows, selection.data());
        predicate_filter(values.data(), columns, valid.data(), stride, program.data(),
                         instructions + 1, rows, negated.data());
        bool selects = false;
        for (uint32_t word = 0; word < words; ++word) {
            bench::expect((selection[word] & negated[word]) == 0, round, "TRUE and NOT TRUE");
            bench::expect(((selection[word] | negated[word]) &
                           ~flashmesh::row_mask(word, rows)) == 0,
                          round, "bits beyond the rows are set");
            selects = selects || selection[word] != 0;
        }
        selecting += selects ? 1 : 0;
    }
    bench::expect(selecting > ROUNDS / 20, ROUNDS, "hardly a Program selected anything");
    std::printf("%u rounds, %u select rows\n", ROUNDS, selecting);
    return 0;
}
