// Numbers of groups, bitmaps and packets of all kinds: nothing outside the arrays is touched, and in
// both forms, in any order that they take, the states are those of a loop over the rows.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace {

constexpr uint32_t ROUNDS = 1500;

struct row {
    int64_t value;
    uint64_t group;
    bool is_valid;
    bool is_selected;
    // Of a group that the host's form can't say.
    bool has_group;
};

struct sums {
    uint64_t count = 0;
    __int128 sum = 0;
    int64_t minimum = GREATEST;
    int64_t maximum = LEAST;
};

std::vector<sums> add_all(const std::vector<row> &rows, uint32_t groups)
{
    std::vector<sums> all(groups);
    for (const row &next : rows) {
        if (next.is_valid && next.is_selected && next.has_group && next.group < groups) {
            sums &one = all[next.group];
            ++one.count;
            one.sum += next.value;
            one.minimum = std::min(one.minimum, next.value);
            one.maximum = std::max(one.maximum, next.value);
        }
    }
    return all;
}

bool is_same(const sums &one, uint64_t count, uint64_t low, int64_t high, int64_t minimum,
             int64_t maximum)
{
    return one.count == count && static_cast<uint64_t>(one.sum) == low &&
           static_cast<int64_t>(one.sum >> 64) == high && one.minimum == minimum &&
           one.maximum == maximum;
}

// The packets of OPEN_GROUPS row groups at a time, in any order. Behind the last row stands what
// nobody may look at.
std::vector<beat> make_packets(bench::generator &random, const std::vector<row> &rows)
{
    const uint32_t count = static_cast<uint32_t>(rows.size());
    std::vector<beat> beats;
    for (uint32_t first = 0; first < flashmesh::groups_of(count); first += OPEN_GROUPS) {
        std::vector<piece> pieces;
        for (uint32_t group = first;
             group < first + OPEN_GROUPS && group < flashmesh::groups_of(count); ++group) {
            for (uint32_t column = 0; column < COLUMNS; ++column) {
                pieces.push_back({group, column});
                const uint32_t place = random.below(static_cast<uint32_t>(pieces.size()));
                std::swap(pieces.back(), pieces[place]);
            }
        }
        for (const piece &next : pieces) {
            beat out = {};
            out.tag = next.group * COLUMNS + next.column;
            out.bytes = flashmesh::BEAT_BYTES;
            out.is_last = next.column == SELECTION;
            for (uint32_t bit = 0; bit < flashmesh::GROUP_ROWS; ++bit) {
                const uint32_t at = next.group * flashmesh::GROUP_ROWS + bit;
                const bool is_set = at >= count ? random.one_in(2)
                                    : next.column == VALUES ? rows[at].is_valid
                                    : next.column == GROUPS ? rows[at].has_group
                                                            : rows[at].is_selected;
                out.words[bit / 64] |= uint64_t{is_set} << (bit % 64);
            }
            beats.push_back(out);
            const uint32_t value_beats = flashmesh::beats_in(next.group, count);
            for (uint32_t i = 0; next.column != SELECTION && i < value_beats; ++i) {
                for (uint32_t lane = 0; lane < BEAT_WORDS; ++lane) {
                    const uint32_t at =
                        next.group * flashmesh::GROUP_ROWS + i * BEAT_WORDS + lane;
                    out.words[lane] = at >= count             ? random.below(3)
                                      : next.column == VALUES ? static_cast<uint64_t>(rows[at].value)
                                                              : rows[at].group;
                }
                out.is_last = i + 1 == value_beats;
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

void take(uint32_t groups, axis &packets, std::vector<beat> &states)
{
    for (uint32_t i = 0; i < (groups <= MAX_GROUPS ? groups : 0); ++i) {
        states.push_back(packets.read());
    }
}

std::vector<beat> aggregate_packets(const std::vector<beat> &beats, uint32_t groups, uint32_t rows)
{
    std::vector<beat> result;
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, states, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("packets");
    FLASHMESH_STAGE(feed, beats, packets);
    FLASHMESH_STAGE(partial_aggregate_stream, packets, groups, rows, states);
    FLASHMESH_STAGE(take, groups, states, result);
    return result;
}

void check_streaming(bench::generator &random, const std::vector<row> &rows, uint32_t groups,
                     uint32_t round)
{
    const std::vector<sums> all = add_all(rows, groups);
    const std::vector<beat> states = aggregate_packets(make_packets(random, rows), groups,
                                                       static_cast<uint32_t>(rows.size()));
    for (const beat &next : states) {
        const uint64_t *words = next.words;
        bench::expect(next.is_last && next.bytes == 40 && next.tag < groups &&
                          is_same(all[next.tag], words[0], words[1],
                                  static_cast<int64_t>(words[2]), static_cast<int64_t>(words[3]),
                                  static_cast<int64_t>(words[4])),
                      round, "the streaming form has another state");
    }
}

void check_host(bench::generator &random, std::vector<row> rows, uint32_t groups, uint32_t round)
{
    const uint32_t count = static_cast<uint32_t>(rows.size());
    const uint32_t words = flashmesh::bitmap_words(count);
    bench::exact<int64_t> values(count);
    bench::exact<uint64_t> valid(words);
    bench::exact<uint64_t> selection(words);
    bench::exact<uint32_t> group(count);
    if (count % 64 != 0) {
        valid[words - 1] = random.word() & ~flashmesh::row_mask(words - 1, count);
        selection[words - 1] = random.word() & ~flashmesh::row_mask(words - 1, count);
    }
    for (uint32_t i = 0; i < count; ++i) {
        rows[i].group = static_cast<uint32_t>(rows[i].group);
        rows[i].has_group = true;
        values[i] = rows[i].value;
        group[i] = static_cast<uint32_t>(rows[i].group);
        valid[i / 64] |= uint64_t{rows[i].is_valid} << (i % 64);
        selection[i / 64] |= uint64_t{rows[i].is_selected} << (i % 64);
    }
    const uint32_t written = groups <= MAX_GROUPS ? groups : 0;
    bench::exact<uint64_t> counts(written);
    bench::exact<int64_t> totals(2 * written);
    bench::exact<int64_t> minima(written);
    bench::exact<int64_t> maxima(written);
    flashmesh::delivery_seed = round % 4;
    partial_aggregate(values.data(), valid.data(), selection.data(), group.data(), groups, count,
                      counts.data(), totals.data(), minima.data(), maxima.data());
    const std::vector<sums> all = add_all(rows, groups);
    for (uint32_t i = 0; i < written; ++i) {
        bench::expect(is_same(all[i], counts[i], static_cast<uint64_t>(totals[2 * i]),
                              totals[2 * i + 1], minima[i], maxima[i]),
                      round, "the host's form has another state");
    }
}

} // namespace

int main()
{
    bench::generator random;
    uint64_t counted = 0;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t groups = random.one_in(30) ? random.among<uint32_t>({4096, 4097})
                                                  : random.below(40);
        std::vector<row> rows(random.one_in(10) ? random.below(3000)
                                                : random.among<uint32_t>({0, 1, 7, 64, 65, 513}));
        for (row &next : rows) {
            next.value = random.one_in(3) ? static_cast<int64_t>(random.word()) : random.below(5);
            next.group = random.one_in(20) ? random.word() : random.below(40);
            next.group += random.one_in(50) ? uint64_t{1} << 32 : 0;
            next.is_valid = !random.one_in(5);
            next.is_selected = !random.one_in(5);
            next.has_group = !random.one_in(9);
        }
        for (const sums &one : add_all(rows, groups)) {
            counted += one.count;
        }
        check_streaming(random, rows, groups, round);
        check_host(random, rows, groups, round);
    }
    bench::expect(counted > ROUNDS, ROUNDS, "hardly a row counted");
    std::printf("%u rounds, %llu rows counted\n", ROUNDS,
                static_cast<unsigned long long>(counted));
    return 0;
}
