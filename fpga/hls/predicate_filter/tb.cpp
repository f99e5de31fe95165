// Programs of random words: whatever they say, nothing outside the arrays is touched; and of those
// that are sound, a condition and its NOT never select the same row. The streaming form selects the
// same rows, whatever comes, in any order that it takes.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

#include <utility>
#include <vector>

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

// Packets of all columns, of OPEN_GROUPS row groups at a time in any order.
std::vector<beat> make_packets(bench::generator &random, bench::exact<int64_t> &values,
                               bench::exact<uint64_t> &valid, uint32_t columns, uint32_t stride,
                               uint32_t rows)
{
    std::vector<beat> beats;
    for (uint32_t first = 0; first < groups_of(rows); first += OPEN_GROUPS) {
        std::vector<piece> pieces;
        for (uint32_t group = first; group < first + OPEN_GROUPS && group < groups_of(rows);
             ++group) {
            for (uint32_t column = 0; column < columns; ++column) {
                pieces.push_back({group, column});
                const uint32_t place = random.below(static_cast<uint32_t>(pieces.size()));
                std::swap(pieces.back(), pieces[place]);
            }
        }
        for (const piece &next : pieces) {
            const uint32_t start = next.group * flashmesh::GROUP_ROWS;
            beat out = {};
            out.tag = next.group * MAX_COLUMNS + next.column;
            out.bytes = flashmesh::BEAT_BYTES;
            for (uint32_t row = 0; row < rows_in(next.group, rows); row += BLOCK_ROWS) {
                out.words[row / BLOCK_ROWS] =
                    valid[next.column * (stride / BLOCK_ROWS) + (start + row) / BLOCK_ROWS];
            }
            beats.push_back(out);
            for (uint32_t at = 0; at < beats_in(next.group, rows); ++at) {
                for (uint32_t lane = 0; lane < BEAT_WORDS; ++lane) {
                    const uint32_t row = start + at * BEAT_WORDS + lane;
                    out.words[lane] =
                        row < rows ? static_cast<uint64_t>(values[next.column * stride + row])
                                   : random.word();
                }
                out.is_last = at + 1 == beats_in(next.group, rows);
                beats.push_back(out);
            }
        }
    }
    return beats;
}

void feed(const std::vector<beat> &beats, axis &packets)
{
    for (const beat &next : beats) {
        packets.write(next);
    }
}

void take(uint32_t rows, axis &packets, std::vector<uint64_t> &selection)
{
    selection.resize(flashmesh::bitmap_words(rows), ~uint64_t{0});
    for (uint32_t i = 0; i < groups_of(rows); ++i) {
        const beat next = packets.read();
        const uint32_t words = flashmesh::bitmap_words(rows_in(next.tag, rows));
        bench::expect(next.is_last && next.bytes == 8 * words, i, "no bitmap of a row group");
        for (uint32_t word = 0; word < words; ++word) {
            selection[next.tag * GROUP_BLOCKS + word] = next.words[word];
        }
    }
}

std::vector<uint64_t> select(const std::vector<beat> &beats, uint32_t sent, const uint64_t *program,
                             uint32_t instructions, uint32_t rows)
{
    std::vector<uint64_t> selection;
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, bitmaps, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("packets");
    FLASHMESH_STAGE(feed, beats, packets);
    FLASHMESH_STAGE(predicate_filter_stream, packets, sent, program, instructions, rows, bitmaps);
    FLASHMESH_STAGE(take, rows, bitmaps, selection);
    return selection;
}

} // namespace

int main()
{
    bench::generator random;
    uint32_t selecting = 0;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t columns = random.below(18);
        const uint32_t rows = random.one_in(8)
                                  ? random.among<uint32_t>({511, 512, 513, 2100})
                                  : random.among<uint32_t>({0, 1, 63, 64, 65, 100});
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
        flashmesh::delivery_seed = round % 4;
        predicate_filter(values.data(), columns, valid.data(), stride, program.data(), instructions,
                         rows, selection.data());
        predicate_filter(values.data(), columns, valid.data(), stride, program.data(),
                         instructions + 1, rows, negated.data());
        if (round % 2 == 0 && columns <= MAX_COLUMNS && stride % BLOCK_ROWS == 0 && rows <= stride) {
            const std::vector<beat> beats =
                make_packets(random, values, valid, columns, stride, rows);
            const std::vector<uint64_t> streamed = select(
                beats, (1U << columns) - 1, program.data(), instructions, rows);
            for (uint32_t word = 0; word < words; ++word) {
                bench::expect(streamed[word] == selection[word], round,
                              "the streaming form selects other rows");
            }
        }
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
