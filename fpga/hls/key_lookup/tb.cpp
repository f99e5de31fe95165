// Pages of an index whose headers lie and whose entries are in no order: every lookup ends, and
// names an entry of the pages that has the key's hash, or none.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

#include <cstring>
#include <vector>

namespace {

constexpr uint32_t ROUNDS = 4000;
constexpr uint32_t KEYS = 16;

template <typename T>
void put(uint8_t *page, uint32_t at, T value)
{
    std::memcpy(page + at, &value, sizeof value);
}

// Few hashes, so that equal ones run over pages.
uint64_t make_hash(bench::generator &random)
{
    return uint64_t{random.below(4)} << 62;
}

void make_page(bench::generator &random, uint8_t *page)
{
    const uint32_t entries = random.one_in(30) ? random.below(2000) : 1 + random.below(677);
    std::memcpy(page, "FMP\1", 4);
    page[8] = random.one_in(50) ? static_cast<uint8_t>(random.below(9))
                                : uint8_t{flashmesh::ENCODING_RAW};
    put(page, 10, static_cast<uint16_t>(random.one_in(50) ? random.below(16) : 0));
    put(page, 14, static_cast<uint16_t>(random.one_in(50) ? random.below(65536)
                                                          : entries * ENTRY_BYTES));
    put(page, 32, random.one_in(50) ? static_cast<uint32_t>(random.word()) : entries);
    put(page, 40, uint64_t{random.one_in(50) ? random.below(20) : ENTRY_BYTES});
    for (uint32_t at = flashmesh::HEADER_BYTES; at + ENTRY_BYTES <= flashmesh::PAGE_BYTES;
         at += ENTRY_BYTES) {
        page[at] = static_cast<uint8_t>(make_hash(random) >> 56);
        put(page, at + 8, static_cast<uint32_t>(random.word()));
    }
}

} // namespace

int main()
{
    bench::generator random;
    uint32_t opened = 0;
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t page_count = random.below(4);
        bench::exact<uint8_t> pages(page_count * flashmesh::PAGE_BYTES);
        for (uint32_t page = 0; page < page_count; ++page) {
            make_page(random, pages.data() + page * flashmesh::PAGE_BYTES);
        }
        bench::exact<uint64_t> hashes(KEYS);
        for (uint32_t key = 0; key < KEYS; ++key) {
            hashes[key] = make_hash(random);
        }
        bench::exact<uint32_t> counts(KEYS);
        bench::exact<uint32_t> positions(KEYS);
        bench::exact<uint32_t> rows(KEYS);
        bench::exact<uint32_t> status(1);
        key_lookup(pages.data(), page_count, hashes.data(), KEYS, counts.data(), positions.data(),
                   rows.data(), status.data());
        bench::expect(status[0] <= 1, round, "the status is unknown");
        if (status[0] != 0) {
            continue;
        }
        opened += page_count > 0 ? 1 : 0;
        std::vector<entry> all;
        for (uint32_t page = 0; page < page_count; ++page) {
            const uint8_t *bytes = pages.data() + page * flashmesh::PAGE_BYTES;
            for (uint32_t at = 0; at < flashmesh::parse_header(bytes).row_count; ++at) {
                const uint8_t *place = bytes + flashmesh::HEADER_BYTES + at * ENTRY_BYTES;
                all.push_back({__builtin_bswap64(flashmesh::load_u64(place)),
                               flashmesh::load_u32(place + 8)});
            }
        }
        for (uint32_t key = 0; key < KEYS; ++key) {
            const bool is_found = counts[key] != 0;
            bench::expect(is_found == (positions[key] != NOT_FOUND), round, "found, or not");
            if (!is_found) {
                continue;
            }
            bench::expect(positions[key] + counts[key] <= all.size(), round,
                          "entries that the pages do not have");
            const entry &first = all[positions[key]];
            bench::expect(first.hash == hashes[key] && first.row == rows[key], round,
                          "an entry of another hash");
        }
    }
    bench::expect(opened > ROUNDS / 4, ROUNDS, "hardly an index was opened");
    std::printf("%u rounds, %u with an index\n", ROUNDS, opened);
    return 0;
}
