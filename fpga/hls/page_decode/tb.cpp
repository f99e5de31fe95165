// Pages whose headers lie: whatever they say, nothing outside the arrays is touched, the answer is
// either all rows or a problem, and the same in whatever order pages come. A packet of the streaming
// form holds what it says, has its page's tag, and the values that the host's form gives.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

#include <cstring>
#include <vector>

namespace {

constexpr uint32_t ROUNDS = 4000;
constexpr uint32_t CAPACITY = 2 * 65536;

template <typename T>
void put(uint8_t *page, uint32_t at, T value)
{
    std::memcpy(page + at, &value, sizeof value);
}

uint32_t count_bitmap_nulls(const uint8_t *bitmap, uint32_t rows)
{
    uint32_t nulls = 0;
    for (uint32_t row = 0; row < rows; ++row) {
        nulls += (bitmap[row / 8] >> (row % 8) & 1) != 0 ? 0 : 1;
    }
    return nulls;
}

// Runs that mostly follow each other to the last row; gives how many, and what the page says.
uint32_t make_runs(bench::generator &random, uint8_t *page, uint32_t at, uint32_t rows)
{
    const uint32_t runs = random.one_in(10) ? random.below(200) : 1 + random.below(60);
    uint32_t end = 0;
    for (uint32_t run = 0; run < runs; ++run) {
        const uint32_t place = at + 2 + 2 * run;
        end += random.one_in(100) ? 0 : 1 + random.below(4);
        end = run + 1 == runs && !random.one_in(20) ? rows : end;
        if (place + 2 <= flashmesh::PAGE_BYTES) {
            put(page, place, static_cast<uint16_t>(random.one_in(300) ? random.word() : end - 1));
        }
    }
    const uint32_t said = random.one_in(30) ? static_cast<uint32_t>(random.word()) : runs;
    if (at + 2 <= flashmesh::PAGE_BYTES) {
        put(page, at, static_cast<uint16_t>(said));
    }
    return runs;
}

// A page that is nearly sound: each field is right more often than not.
void make_page(bench::generator &random, uint8_t *page)
{
    for (uint32_t at = 0; at < flashmesh::PAGE_BYTES; at += 8) {
        put(page, at, random.one_in(2) ? random.word() : 0);
    }
    std::memcpy(page, random.one_in(50) ? "FMX\1" : "FMP\1", 4);
    const auto encoding = static_cast<uint8_t>(random.one_in(20) ? random.below(256)
                                                                 : random.among<uint32_t>({1, 2, 3, 4, 7}));
    const auto width = static_cast<uint8_t>(random.one_in(20) ? random.below(256)
                                                              : random.below(65));
    uint32_t rows = random.among<uint32_t>({0, 1, 3, 64, 255, 256, 257, 1016, 2000});
    rows = random.one_in(30) ? static_cast<uint32_t>(random.word()) : rows;
    const int64_t reference = random.one_in(20) ? static_cast<int64_t>(random.word())
                                                : random.among<int64_t>({4, 8, 0, -1});
    const bool is_scaled = random.one_in(4);
    const bool has_validity = random.one_in(3);
    const auto flags = static_cast<uint16_t>(
        (has_validity ? 1 : 0) | (is_scaled ? 8 : 0) | (random.one_in(30) ? random.below(64) : 0));

    uint32_t bitmap_bytes = 0;
    uint32_t nulls = 0;
    if (has_validity && rows <= 8 * flashmesh::PAYLOAD_BYTES) {
        bitmap_bytes = flashmesh::align_region((rows + 7) / 8);
        nulls = bitmap_bytes <= flashmesh::PAYLOAD_BYTES
                    ? count_bitmap_nulls(page + flashmesh::HEADER_BYTES, rows)
                    : 0;
    } else if (random.one_in(5)) {
        nulls = rows;
    }
    uint32_t packed_width = width;
    uint32_t data_bytes = 0;
    const uint32_t data = flashmesh::HEADER_BYTES + bitmap_bytes;
    if (is_scaled && data + 16 <= flashmesh::PAGE_BYTES) {
        put(page, data, random.among<uint64_t>({0, 1, 7, uint64_t{1} << 40, ~uint64_t{0}}));
        packed_width = random.below(66);
        page[data + 8] = static_cast<uint8_t>(packed_width);
        data_bytes = flashmesh::REGION_BYTES;
    }
    if (encoding == flashmesh::ENCODING_RLE) {
        const uint32_t runs = make_runs(random, page, data, rows);
        data_bytes = flashmesh::align_region(2 + 2 * runs) + packed_bytes(runs, width);
    } else {
        data_bytes = encoding == flashmesh::ENCODING_RAW
                         ? rows * static_cast<uint32_t>(reference)
                         : data_bytes + packed_bytes(rows % 65537, packed_width);
    }
    const uint32_t payload = random.one_in(10) ? random.below(65536) : bitmap_bytes + data_bytes;
    nulls = random.one_in(20) ? random.below(70000) : nulls;

    page[8] = encoding;
    page[9] = width;
    put(page, 10, flags);
    put(page, 14, static_cast<uint16_t>(payload));
    put(page, 26, static_cast<uint16_t>(random.one_in(10) ? random.below(65536) : 0));
    put(page, 32, rows);
    put(page, 36, nulls);
    put(page, 40, reference);
}

// What `page_decode` answers, in arrays of exactly the size that it was told.
struct answer {
    explicit answer(uint32_t capacity)
        : values(capacity), valid(flashmesh::bitmap_words(capacity)), rows(1), status(1)
    {
    }

    void decode(bench::exact<uint8_t> &pages, bench::exact<uint8_t> &dictionary, uint32_t seed)
    {
        flashmesh::delivery_seed = seed;
        page_decode(pages.data(), static_cast<uint32_t>(pages.size() / flashmesh::PAGE_BYTES),
                    dictionary.data(), static_cast<uint32_t>(dictionary.size()),
                    static_cast<uint32_t>(values.size()), values.data(), valid.data(), rows.data(),
                    status.data());
    }

    bench::exact<int64_t> values;
    bench::exact<uint64_t> valid;
    bench::exact<uint32_t> rows;
    bench::exact<uint32_t> status;
};

void send_page(const uint8_t *page, uint32_t tag, axis &packets)
{
    for (uint32_t at = 0; at < PAGE_BEATS; ++at) {
        beat next = {};
        std::memcpy(next.words, page + at * BEAT_BYTES, BEAT_BYTES);
        next.tag = tag;
        next.bytes = BEAT_BYTES;
        next.is_last = at + 1 == PAGE_BEATS;
        packets.write(next);
    }
}

void take_beats(axis &packets, std::vector<beat> &beats)
{
    do {
        beats.push_back(packets.read());
    } while (!beats.back().is_last);
}

// The packet of one page.
std::vector<beat> decode_packet(const uint8_t *page, uint32_t tag,
                                bench::exact<uint8_t> &dictionary)
{
    std::vector<beat> beats;
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, values, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("packet");
    FLASHMESH_STAGE(send_page, page, tag, packets);
    FLASHMESH_STAGE(page_decode_stream, packets, 1, dictionary.data(),
                    static_cast<uint32_t>(dictionary.size()), values);
    FLASHMESH_STAGE(take_beats, values, beats);
    return beats;
}

// Compares the packet of a page with what the host's form has made of that page alone.
void check_packet(const std::vector<beat> &beats, uint32_t tag, answer &host, uint32_t round)
{
    const uint32_t rows = static_cast<uint32_t>(beats[0].words[0]);
    const uint32_t status = static_cast<uint32_t>(beats.back().words[0]);
    bench::expect(status == host.status[0], round, "the packet has another problem");
    bench::expect(status != SOUND || rows == host.values.size(), round, "the packet lacks rows");
    const uint32_t blocks = (rows + VALID_ROWS - 1) / VALID_ROWS;
    const uint32_t groups = (rows + GROUP_ROWS - 1) / GROUP_ROWS;
    bench::expect(beats.size() == 2 + blocks + groups, round, "the packet has other beats");
    for (std::size_t at = 0; at < beats.size(); ++at) {
        const bool is_last = at + 1 == beats.size();
        bench::expect(beats[at].tag == tag && beats[at].bytes == (is_last ? 8 : BEAT_BYTES), round,
                      "a beat of another packet");
    }
    for (uint32_t row = 0; status == SOUND && row < groups * GROUP_ROWS; ++row) {
        const uint32_t block = 1 + row / VALID_ROWS * (1 + VALID_ROWS / GROUP_ROWS);
        const uint32_t bit = row % VALID_ROWS;
        const bool is_valid = (beats[block].words[bit / 64] >> (bit % 64) & 1) != 0;
        const uint64_t value = beats[block + 1 + bit / GROUP_ROWS].words[row % GROUP_ROWS];
        const bool is_there = row < rows;
        const uint64_t bits = is_there ? host.valid[row / 64] : 0;
        const int64_t wanted = is_there ? host.values[row] : 0;
        bench::expect(is_valid == ((bits >> (row % 64) & 1) != 0) &&
                          static_cast<int64_t>(value) == wanted,
                      round, "the packet has another value");
    }
}

} // namespace

int main()
{
    bench::generator random;
    uint32_t decoded = 0;
    uint32_t refused[BAD_RUNS + 1] = {};
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t page_count = 1 + random.below(2);
        bench::exact<uint8_t> pages(page_count * flashmesh::PAGE_BYTES);
        uint64_t total = 0;
        for (uint32_t page = 0; page < page_count; ++page) {
            uint8_t *bytes = pages.data() + page * flashmesh::PAGE_BYTES;
            make_page(random, bytes);
            total += flashmesh::load_u32(bytes + 32);
        }
        const uint32_t dictionary_bytes = random.among<uint32_t>({0, 0, 8, 2048, 12});
        bench::exact<uint8_t> dictionary(dictionary_bytes);
        // Room for no more than the rows.
        const uint32_t capacity = total > CAPACITY ? 0 : static_cast<uint32_t>(total);
        answer found(capacity);
        found.decode(pages, dictionary, 0);
        const uint32_t status = found.status[0];
        bench::expect(status <= BAD_RUNS, round, "the status is unknown");
        bench::expect(found.rows[0] == (status == SOUND ? total : 0), round, "rows are missing");
        const uint32_t used = capacity % flashmesh::WORD_BITS;
        if (status == SOUND && used != 0) {
            bench::expect(found.valid[capacity / flashmesh::WORD_BITS] >> used == 0, round,
                          "bits beyond the rows are set");
        }
        decoded += status == SOUND ? 1 : 0;
        ++refused[status];
        if (round % 2 == 0) {
            continue;
        }
        answer other(capacity);
        other.decode(pages, dictionary, 1 + round % 3);
        bench::expect(other.status[0] == status && other.rows[0] == found.rows[0], round,
                      "another answer in another order");
        for (uint32_t row = 0; status == SOUND && row < capacity; ++row) {
            bench::expect(other.values[row] == found.values[row] &&
                              other.valid[row / 64] == found.valid[row / 64],
                          round, "other values in another order");
        }
        if (page_count == 1 && total <= CAPACITY) {
            const uint32_t tag = static_cast<uint32_t>(random.word());
            check_packet(decode_packet(pages.data(), tag, dictionary), tag, found, round);
        }
    }
    // A generator that makes nothing but one kind of page would show nothing.
    bench::expect(decoded > ROUNDS / 20, ROUNDS, "hardly a page was decoded");
    for (uint32_t problem = BAD_HEADER; problem <= BAD_RUNS; ++problem) {
        bench::expect(refused[problem] > 0 || problem == TOO_MANY, ROUNDS,
                      "a problem never arose");
    }
    std::printf("%u rounds, %u decoded\n", ROUNDS, decoded);
    return 0;
}
