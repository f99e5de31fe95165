// Pages whose headers, lengths, codes or symbols lie: whatever they say, nothing outside the arrays
// is touched, and the answer is either all rows or a problem. Then sound chunks of random texts, by
// an encoder that is written from docs/flash-format.md: their texts must come back. The seed of
// those is printed; FLASHMESH_TEST_SEED gives another. Both kinds of pages go through the streaming
// form too, in any order and with any tags: packets hold what they say, and what is wrong with a page
// alone.
#include "kernel.cpp"

#include "../bench/hostile.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr uint32_t ROUNDS = 3000;
constexpr uint32_t CHUNKS = 400;
constexpr uint32_t CAPACITY = 2 * 65536;
constexpr uint32_t BYTE_CAPACITY = 200000;

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

// Starts and lengths as section 6 has them, at `data`, bit by bit; gives the region's bytes. What
// does not fit the page is left out.
uint32_t put_lengths(uint8_t *page, uint32_t data, const std::vector<uint32_t> &lengths,
                     uint32_t least, uint32_t width)
{
    const uint32_t rows = static_cast<uint32_t>(lengths.size());
    const uint32_t starts = (rows + 31) / 32;
    const uint32_t bytes = (2 * starts + (rows * width + 7) / 8 + 3 + 63) / 64 * 64;
    if (data + bytes > flashmesh::PAGE_BYTES) {
        return bytes;
    }
    std::memset(page + data, 0, bytes);
    uint32_t start = 0;
    for (uint32_t row = 0; row < rows; ++row) {
        if (row % 32 == 0) {
            put(page, data + row / 32 * 2, static_cast<uint16_t>(start));
        }
        for (uint32_t bit = 0; bit < width; ++bit) {
            const uint32_t place = row * width + bit;
            const uint32_t set = (lengths[row] - least) >> bit & 1;
            page[data + 2 * starts + place / 8] |= static_cast<uint8_t>(set << (place % 8));
        }
        start += lengths[row];
    }
    return bytes;
}

// A page that is nearly sound: each field is right more often than not.
void make_page(bench::generator &random, uint8_t *page)
{
    // Codes below 64 have symbols more often than not.
    const bool has_escapes = random.one_in(4);
    for (uint32_t at = 0; at < flashmesh::PAGE_BYTES; ++at) {
        page[at] = static_cast<uint8_t>(random.below(has_escapes && random.one_in(30) ? 256 : 64));
    }
    std::memset(page, 0, flashmesh::HEADER_BYTES);
    std::memcpy(page, random.one_in(50) ? "FMX\1" : "FMP\1", 4);
    const auto encoding = static_cast<uint8_t>(
        random.one_in(30) ? random.below(256) : random.among<uint32_t>({1, 5, 5, 5, 6, 6}));
    uint32_t rows = random.among<uint32_t>({0, 1, 1, 3, 31, 32, 33, 64, 1000, 1024, 3000});
    const bool has_validity = random.one_in(3) && rows != 0;
    uint32_t flags = has_validity ? 1 : 0;
    flags |= random.one_in(rows < 2 ? 2 : 50) ? 4 : 0;
    flags |= random.one_in(30) ? random.below(64) : 0;
    uint32_t data = flashmesh::HEADER_BYTES;
    uint32_t nulls = random.one_in(20) ? rows : 0;
    if (has_validity) {
        nulls = count_bitmap_nulls(page + data, rows);
        data += flashmesh::align_region((rows + 7) / 8);
    }
    uint32_t width = random.below(random.one_in(2) ? 17 : 6);
    uint32_t least = random.one_in(3) ? random.below(random.one_in(3) ? 400 : 5) : 0;
    uint32_t end = data;
    if (encoding == flashmesh::ENCODING_CONST) {
        end += random.below(random.one_in(4) ? 8000 : 100);
        width = random.one_in(10) ? 0 : 8;
    } else if (rows == 0) {
        end += random.below(300);
    } else {
        std::vector<uint32_t> lengths(rows);
        uint32_t stored = 0;
        for (uint32_t &length : lengths) {
            length = least + (random.one_in(3) ? random.below(1U << (width < 6 ? width : 6)) : 0);
            stored += length;
        }
        end += put_lengths(page, data, lengths, least, width) + stored;
    }
    if (random.one_in(8) && data + 8 < flashmesh::PAGE_BYTES) {
        page[data + random.below(8)] = static_cast<uint8_t>(random.word());
    }
    uint32_t payload = end - flashmesh::HEADER_BYTES;
    payload = random.one_in(20) ? random.below(8200) : payload;
    rows = random.one_in(40) ? static_cast<uint32_t>(random.word()) % 70000 : rows;
    nulls = random.one_in(40) ? random.below(70000) : nulls;
    width = random.one_in(40) ? random.below(256) : width;

    page[8] = encoding;
    page[9] = static_cast<uint8_t>(width);
    put(page, 10, static_cast<uint16_t>(flags));
    put(page, 14, static_cast<uint16_t>(payload));
    put(page, 26, static_cast<uint16_t>(random.one_in(30) ? random.below(65536) : 0));
    put(page, 32, rows);
    put(page, 36, nulls);
    put(page, 40, random.one_in(40) ? random.word() : uint64_t{least});
}

void make_symbols(bench::generator &random, uint8_t *page)
{
    const uint32_t count = random.one_in(50) ? random.below(300) : random.below(256);
    const uint32_t lengths = flashmesh::align_region(count);
    std::memcpy(page, random.one_in(50) ? "FMX\1" : "FMP\1", 4);
    page[8] = random.one_in(50) ? uint8_t{flashmesh::ENCODING_RAWSTR}
                                : uint8_t{flashmesh::ENCODING_FSST};
    put(page, 10, static_cast<uint16_t>(random.one_in(50) ? random.below(64) : 2));
    put(page, 14, static_cast<uint16_t>(random.one_in(50) ? random.below(65536)
                                                          : lengths + 8 * count));
    put(page, 32, count);
    for (uint32_t code = 0; code < count; ++code) {
        const uint32_t length = random.one_in(5000) ? random.below(256) : 1 + random.below(8);
        page[flashmesh::HEADER_BYTES + code] = static_cast<uint8_t>(length);
        put(page, flashmesh::HEADER_BYTES + lengths + 8 * code, random.word());
    }
}

// What `text_decode` answers, in arrays of exactly the size that it was told.
struct answer {
    answer(uint32_t row_capacity, uint32_t byte_capacity)
        : offsets(row_capacity + 1), bytes(byte_capacity),
          valid(flashmesh::bitmap_words(row_capacity)), rows(1), byte_count(1), status(1)
    {
    }

    void decode(bench::exact<uint8_t> &pages, bench::exact<uint8_t> &symbols)
    {
        text_decode(pages.data(), static_cast<uint32_t>(pages.size() / flashmesh::PAGE_BYTES),
                    symbols.data(), static_cast<uint32_t>(symbols.size()),
                    static_cast<uint32_t>(offsets.size() - 1), static_cast<uint32_t>(bytes.size()),
                    offsets.data(), bytes.data(), valid.data(), rows.data(), byte_count.data(),
                    status.data());
    }

    bench::exact<uint32_t> offsets;
    bench::exact<uint8_t> bytes;
    bench::exact<uint64_t> valid;
    bench::exact<uint32_t> rows;
    bench::exact<uint32_t> byte_count;
    bench::exact<uint32_t> status;
};

// What the packets of a page say.
struct page_texts {
    std::string bytes;
    std::vector<uint32_t> ends;
    std::vector<bool> valid;
    bool continues;
    uint32_t status;
};

using pages_by_tag = std::vector<std::pair<uint32_t, const uint8_t *>>;

void feed(const pages_by_tag &pages, axis &packets)
{
    for (const auto &[tag, page] : pages) {
        for (uint32_t at = 0; at < PAGE_BEATS; ++at) {
            beat next = {};
            std::memcpy(next.words, page + at * BEAT_BYTES, BEAT_BYTES);
            next.tag = tag;
            next.bytes = BEAT_BYTES;
            next.is_last = at + 1 == PAGE_BEATS;
            packets.write(next);
        }
    }
}

void take_packets(std::size_t count, axis &packets, std::map<uint32_t, std::vector<beat>> &beats)
{
    for (std::size_t i = 0; i < count; ++i) {
        std::vector<beat> packet;
        do {
            packet.push_back(packets.read());
            bench::expect(packet.back().tag == packet[0].tag, packet[0].tag, "packets mix");
        } while (!packet.back().is_last);
        beats[packet[0].tag] = packet;
    }
}

// The texts of pages in the order in which they are given, by the streaming form.
std::vector<page_texts> decode_packets(const pages_by_tag &pages, bench::exact<uint8_t> &symbols,
                                       uint32_t round)
{
    std::map<uint32_t, std::vector<beat>> all_bytes;
    std::map<uint32_t, std::vector<beat>> all_rows;
    const auto run = [&] {
        FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
        FLASHMESH_STREAM(beat, bytes, flashmesh::AXIS_DEPTH);
        FLASHMESH_STREAM(beat, rows, flashmesh::AXIS_DEPTH);
        FLASHMESH_DATAFLOW("packets");
        FLASHMESH_STAGE(feed, pages, packets);
        FLASHMESH_STAGE(text_decode_stream, packets, static_cast<uint32_t>(pages.size()),
                        symbols.data(), static_cast<uint32_t>(symbols.size()), bytes, rows);
        FLASHMESH_STAGE(take_packets, pages.size(), bytes, all_bytes);
        FLASHMESH_STAGE(take_packets, pages.size(), rows, all_rows);
    };
    run();
    std::vector<page_texts> texts;
    for (const auto &page : pages) {
        page_texts out;
        for (const beat &next : all_bytes.at(page.first)) {
            bench::expect(next.is_last ? next.bytes != 0 || out.bytes.empty()
                                       : next.bytes == BEAT_BYTES,
                          round, "a beat lacks bytes");
            out.bytes.append(reinterpret_cast<const char *>(next.words), next.bytes);
        }
        const std::vector<beat> &rows = all_rows.at(page.first);
        const uint32_t count = static_cast<uint32_t>(rows[0].words[0]);
        out.continues = rows[0].words[1] != 0;
        std::size_t at = 1;
        beat valid = {};
        for (uint32_t row = 0; row < count; ++row) {
            if (row % VALID_ROWS == 0) {
                valid = rows.at(at++);
            }
            if (row % BEAT_OFFSETS == 0) {
                ++at;
            }
            const uint32_t place = row % BEAT_OFFSETS;
            out.ends.push_back(
                static_cast<uint32_t>(rows.at(at - 1).words[place / 2] >> (32 * (place % 2))));
            out.valid.push_back((valid.words[row / 64 % 8] >> (row % 64) & 1) != 0);
        }
        bench::expect(at + 1 == rows.size() && rows[at].bytes == 16, round, "other beats of rows");
        out.status = static_cast<uint32_t>(rows[at].words[0]);
        bench::expect(rows[at].words[1] == out.bytes.size(), round, "other counts of bytes");
        texts.push_back(out);
    }
    return texts;
}

void shuffle(bench::generator &random, pages_by_tag &pages)
{
    for (uint32_t i = 1; i < pages.size(); ++i) {
        std::swap(pages[i], pages[random.below(i + 1)]);
    }
}

// Each page alone, by both forms; whether what the streaming form says is what the host's form does.
void check_alone(bench::generator &random, bench::exact<uint8_t> &pages,
                 bench::exact<uint8_t> &symbols, uint32_t round)
{
    pages_by_tag by_tag;
    std::map<uint32_t, uint32_t> wanted;
    for (std::size_t at = 0; at < pages.size(); at += flashmesh::PAGE_BYTES) {
        bench::exact<uint8_t> page(flashmesh::PAGE_BYTES);
        std::memcpy(page.data(), pages.data() + at, flashmesh::PAGE_BYTES);
        answer alone(flashmesh::SEGMENT_ROWS, BYTE_CAPACITY);
        alone.decode(page, symbols);
        // Of more bytes it takes long to say what is wrong.
        if (alone.byte_count[0] <= BYTE_CAPACITY) {
            const uint32_t tag = static_cast<uint32_t>(random.word());
            by_tag.push_back({tag, pages.data() + at});
            wanted[tag] = alone.status[0];
        }
    }
    shuffle(random, by_tag);
    const std::vector<page_texts> texts = decode_packets(by_tag, symbols, round);
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const page_texts &page = texts[i];
        const uint32_t status = wanted[by_tag[i].first];
        // Pages of a long value are some alone.
        bench::expect(page.status == status || (status == BAD_PARTS && page.status != BAD_HEADER),
                      round, "the packet has another problem");
        for (uint32_t row = 0; row < page.ends.size() && page.status == SOUND; ++row) {
            bench::expect(page.ends[row] >= (row == 0 ? 0 : page.ends[row - 1]) &&
                              page.ends[row] <= page.bytes.size(),
                          round, "a text of a packet ends elsewhere");
        }
    }
}

void check_hostile()
{
    bench::generator random;
    uint32_t decoded = 0;
    uint32_t refused[BAD_PARTS + 1] = {};
    for (uint32_t round = 0; round < ROUNDS; ++round) {
        const uint32_t page_count = 1 + random.below(2);
        bench::exact<uint8_t> pages(page_count * flashmesh::PAGE_BYTES);
        uint64_t total = 0;
        for (uint32_t page = 0; page < page_count; ++page) {
            uint8_t *bytes = pages.data() + page * flashmesh::PAGE_BYTES;
            make_page(random, bytes);
            total += flashmesh::load_u32(bytes + 32);
        }
        bench::exact<uint8_t> symbols(random.one_in(30) ? random.below(9000)
                                                        : flashmesh::PAGE_BYTES);
        if (symbols.size() == flashmesh::PAGE_BYTES) {
            make_symbols(random, symbols.data());
        }
        // Room for no more than the rows; for bytes, too little now and then.
        const uint32_t capacity = total > CAPACITY ? 0 : static_cast<uint32_t>(total);
        answer found(capacity, random.one_in(8) ? random.below(500) : BYTE_CAPACITY);
        if (round % 2 == 0) {
            check_alone(random, pages, symbols, round);
        }
        found.decode(pages, symbols);
        const uint32_t status = found.status[0];
        bench::expect(status <= BAD_PARTS, round, "the status is unknown");
        bench::expect(found.rows[0] == (status == SOUND ? total : 0), round, "rows are missing");
        ++refused[status];
        if (status != SOUND || total > capacity || found.byte_count[0] > found.bytes.size()) {
            continue;
        }
        ++decoded;
        bench::expect(found.offsets[0] == 0, round, "the first text begins elsewhere");
        for (uint32_t row = 0; row < capacity; ++row) {
            bench::expect(found.offsets[row] <= found.offsets[row + 1], round,
                          "a text ends before it begins");
        }
        bench::expect(found.offsets[capacity] == found.byte_count[0], round,
                      "the last text ends elsewhere");
        const uint32_t used = capacity % flashmesh::WORD_BITS;
        if (used != 0) {
            bench::expect(found.valid[capacity / flashmesh::WORD_BITS] >> used == 0, round,
                          "bits beyond the rows are set");
        }
    }
    // A generator that makes nothing but one kind of page would show nothing.
    bench::expect(decoded > ROUNDS / 10, ROUNDS, "hardly a page was decoded");
    for (uint32_t problem = BAD_HEADER; problem <= BAD_PARTS; ++problem) {
        bench::expect(refused[problem] > 0 || problem == TOO_MANY, ROUNDS, "a problem never arose");
    }
    std::printf("%u hostile rounds, %u decoded; ", ROUNDS, decoded);
}

// A chunk of sound pages, and what they hold.
class chunk {
public:
    explicit chunk(bench::generator &random) : random_(random)
    {
        table_.resize(random.among<uint32_t>({0, 1, 8, 9, 63, 64, 65, 200, 255}));
        for (std::string &symbol : table_) {
            symbol = letters(1 + random.below(8));
        }
        const uint32_t parts = random.below(5);
        for (uint32_t part = 0; part < parts; ++part) {
            switch (random.below(5)) {
            case 0:
                add_constant();
                break;
            case 1:
                add_long();
                break;
            default:
                add_rows();
            }
        }
    }

    void check(uint32_t round)
    {
        bench::exact<uint8_t> pages(pages_.size());
        std::copy(pages_.begin(), pages_.end(), pages.data());
        bench::exact<uint8_t> symbols(flashmesh::PAGE_BYTES);
        put_symbols(symbols.data());
        std::string all;
        for (const std::string &text : texts_) {
            all += text;
        }
        const uint32_t rows = static_cast<uint32_t>(texts_.size());
        const uint32_t spare = random_.one_in(2) ? random_.below(100) : 0;
        answer found(rows + spare, static_cast<uint32_t>(all.size()) + spare);
        found.decode(pages, symbols);
        bench::expect(found.status[0] == SOUND, round, "a sound chunk is refused");
        bench::expect(found.rows[0] == rows && found.byte_count[0] == all.size(), round,
                      "other counts");
        bench::expect(std::memcmp(found.bytes.data(), all.data(), all.size()) == 0, round,
                      "other bytes");
        uint32_t end = 0;
        bench::expect(found.offsets[0] == 0, round, "the first text begins elsewhere");
        for (uint32_t row = 0; row < rows; ++row) {
            end += static_cast<uint32_t>(texts_[row].size());
            bench::expect(found.offsets[row + 1] == end, round, "a text ends elsewhere");
            const bool is_valid = (found.valid[row / 64] >> (row % 64) & 1) != 0;
            bench::expect(is_valid == valid_[row], round, "other NULLs");
        }
        check_streaming(pages, symbols, round);
    }

private:
    // The pages in any order, and what they hold put together in theirs.
    void check_streaming(bench::exact<uint8_t> &pages, bench::exact<uint8_t> &symbols,
                         uint32_t round)
    {
        pages_by_tag by_tag;
        for (std::size_t at = 0; at < pages.size(); at += flashmesh::PAGE_BYTES) {
            by_tag.push_back({static_cast<uint32_t>(at), pages.data() + at});
        }
        shuffle(random_, by_tag);
        std::map<uint32_t, page_texts> in_order;
        const std::vector<page_texts> texts = decode_packets(by_tag, symbols, round);
        for (std::size_t i = 0; i < texts.size(); ++i) {
            in_order[by_tag[i].first] = texts[i];
        }
        std::size_t row = 0;
        std::string open;
        bool is_open_valid = false;
        const auto expect_row = [&](const std::string &text, bool is_valid) {
            bench::expect(row < texts_.size() && text == texts_[row] && is_valid == valid_[row],
                          round, "a packet has another text");
            ++row;
        };
        for (const auto &[tag, page] : in_order) {
            bench::expect(page.status == SOUND, round, "a sound page is refused");
            uint32_t start = 0;
            for (std::size_t i = 0; i < page.ends.size() && !page.continues; ++i) {
                expect_row(page.bytes.substr(start, page.ends[i] - start), page.valid[i]);
                start = page.ends[i];
            }
            if (page.continues || page.ends.empty()) {
                open += page.bytes;
                is_open_valid = page.ends.empty() ? is_open_valid : page.valid[0];
            }
            if (page.ends.empty() && !page.continues) {
                expect_row(open, is_open_valid);
                open.clear();
            }
        }
        bench::expect(row == texts_.size(), round, "packets lack texts");
    }

    // Of so few letters that symbols begin alike.
    std::string letters(uint32_t count)
    {
        std::string out(count, ' ');
        for (char &letter : out) {
            letter = static_cast<char>(random_.one_in(20) ? random_.below(256)
                                                          : 'a' + random_.below(3));
        }
        return out;
    }

    std::string text()
    {
        const uint32_t limit = random_.among<uint32_t>({1, 4, 40, 40, 300});
        std::string out;
        while (out.size() < limit && !random_.one_in(8)) {
            const uint32_t symbols = static_cast<uint32_t>(table_.size());
            out += symbols != 0 && !random_.one_in(4) ? table_[random_.below(symbols)]
                                                      : letters(1 + random_.below(9));
        }
        return out;
    }

    // Any codes that stand for the text, not the best ones, and some that stand for nothing.
    std::string codes(const std::string &text)
    {
        std::string out;
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t first = table_.empty() ? 0 : random_.word() % table_.size();
            std::size_t fitting = table_.size();
            for (std::size_t i = 0; i < table_.size() && fitting == table_.size(); ++i) {
                const std::size_t tried = (first + i) % table_.size();
                if (text.compare(at, table_[tried].size(), table_[tried]) == 0) {
                    fitting = tried;
                }
            }
            if (fitting == table_.size() || random_.one_in(10)) {
                out += {'\xff', text[at]};
                at += 1;
            } else {
                out += static_cast<char>(fitting);
                at += table_[fitting].size();
            }
            if (table_.size() < 255 && random_.one_in(50)) {
                out += '\xfe';
            }
        }
        return out;
    }

    uint8_t *new_page(uint32_t encoding, uint32_t rows, uint32_t nulls, uint32_t width,
                      uint32_t least, uint32_t flags)
    {
        pages_.resize(pages_.size() + flashmesh::PAGE_BYTES);
        uint8_t *page = pages_.data() + pages_.size() - flashmesh::PAGE_BYTES;
        std::memcpy(page, "FMP\1", 4);
        page[8] = static_cast<uint8_t>(encoding);
        page[9] = static_cast<uint8_t>(width);
        put(page, 10, static_cast<uint16_t>(flags));
        put(page, 32, rows);
        put(page, 36, nulls);
        put(page, 40, uint64_t{least});
        return page;
    }

    // Puts the bitmap, if the rows' NULLs need one; gives where the data begin.
    uint32_t put_validity(uint8_t *page, const std::vector<bool> &valid)
    {
        uint32_t nulls = 0;
        for (const bool is_valid : valid) {
            nulls += is_valid ? 0 : 1;
        }
        put(page, 36, nulls);
        if (nulls == 0 || nulls == valid.size()) {
            return flashmesh::HEADER_BYTES;
        }
        page[10] |= 1;
        for (std::size_t row = 0; row < valid.size(); ++row) {
            page[flashmesh::HEADER_BYTES + row / 8] |=
                static_cast<uint8_t>((valid[row] ? 1 : 0) << (row % 8));
        }
        return flashmesh::HEADER_BYTES +
               flashmesh::align_region((static_cast<uint32_t>(valid.size()) + 7) / 8);
    }

    void put_stored(uint8_t *page, uint32_t at, const std::string &stored)
    {
        std::memcpy(page + at, stored.data(), stored.size());
        put(page, 14, static_cast<uint16_t>(at + stored.size() - flashmesh::HEADER_BYTES));
    }

    void add(const std::string &text, bool is_valid)
    {
        texts_.push_back(text);
        valid_.push_back(is_valid);
    }

    // As many rows as a page has room for, or fewer.
    void add_rows()
    {
        const bool is_coded = random_.one_in(2);
        const uint32_t limit = random_.among<uint32_t>({1, 31, 32, 33, 200, 1024, 1100, 4000});
        const bool has_nulls = random_.one_in(2);
        const bool are_empty = random_.one_in(8);
        std::vector<uint32_t> lengths;
        std::vector<bool> valid;
        std::string stored;
        while (lengths.size() < limit) {
            const bool is_valid = !has_nulls || !random_.one_in(4);
            const std::string value = is_valid && !are_empty ? text() : std::string();
            const std::string row = is_coded ? codes(value) : value;
            // A bitmap, and lengths of 16 bits, always fit so many.
            if ((lengths.size() + 1) * 3 + stored.size() + row.size() + 256 >
                flashmesh::PAYLOAD_BYTES) {
                break;
            }
            lengths.push_back(static_cast<uint32_t>(row.size()));
            valid.push_back(is_valid);
            stored += row;
            add(value, is_valid);
        }
        uint32_t least = lengths[0];
        uint32_t longest = 0;
        for (const uint32_t length : lengths) {
            least = length < least ? length : least;
            longest = length > longest ? length : longest;
        }
        uint32_t width = 0;
        while ((longest - least) >> width != 0) {
            ++width;
        }
        width = random_.one_in(3) ? width + random_.below(17 - width) : width;
        uint8_t *page = new_page(is_coded ? 5 : 6, static_cast<uint32_t>(lengths.size()), 0, width,
                                 least, !is_coded && !has_nulls && random_.one_in(4) ? 2 : 0);
        const uint32_t data = put_validity(page, valid);
        put_stored(page, data + put_lengths(page, data, lengths, least, width), stored);
    }

    void add_constant()
    {
        const std::string value = text() + text();
        std::vector<bool> valid(random_.among<uint32_t>({1, 64, 65, 600}));
        for (std::size_t row = 0; row < valid.size(); ++row) {
            valid[row] = !random_.one_in(5);
            add(valid[row] ? value : std::string(), valid[row]);
        }
        uint8_t *page = new_page(1, static_cast<uint32_t>(valid.size()), 0, 8, 0, 0);
        put_stored(page, put_validity(page, valid), value);
    }

    void add_long()
    {
        const bool is_coded = random_.one_in(2);
        const uint32_t encoding = is_coded ? 5 : 6;
        const uint32_t part_count = 2 + random_.below(3);
        std::string value;
        for (uint32_t part = 0; part < part_count; ++part) {
            std::string piece;
            const uint32_t size = random_.one_in(2) ? 2000 : 1;
            while (piece.size() < size) {
                piece += text() + "b";
            }
            value += piece;
            const std::string stored = is_coded ? codes(piece) : piece;
            const uint32_t length = static_cast<uint32_t>(stored.size());
            const uint32_t flags = part + 1 < part_count ? 4 : 0;
            uint32_t data = flashmesh::HEADER_BYTES;
            if (part == 0) {
                uint8_t *page = new_page(encoding, 1, 0, 0, length, flags);
                data += put_lengths(page, data, {length}, length, 0);
                put_stored(page, data, stored);
            } else {
                put_stored(new_page(encoding, 0, 0, 0, 0, flags), data, stored);
            }
        }
        add(value, true);
    }

    void put_symbols(uint8_t *page)
    {
        const uint32_t count = static_cast<uint32_t>(table_.size());
        const uint32_t lengths = flashmesh::align_region(count);
        std::memcpy(page, "FMP\1", 4);
        page[8] = 5;
        page[10] = 2;
        put(page, 14, static_cast<uint16_t>(lengths + 8 * count));
        put(page, 32, count);
        for (uint32_t code = 0; code < count; ++code) {
            const std::string &symbol = table_[code];
            page[flashmesh::HEADER_BYTES + code] = static_cast<uint8_t>(symbol.size());
            uint8_t *place = page + flashmesh::HEADER_BYTES + lengths + 8 * code;
            // What stands behind a symbol does not count.
            put(place, 0, random_.word());
            std::memcpy(place, symbol.data(), symbol.size());
        }
    }

    bench::generator &random_;
    std::vector<std::string> table_;
    std::vector<uint8_t> pages_;
    std::vector<std::string> texts_;
    std::vector<bool> valid_;
};

void check_sound()
{
    const char *text = std::getenv("FLASHMESH_TEST_SEED");
    const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
    std::printf("FLASHMESH_TEST_SEED=%llu: ", static_cast<unsigned long long>(seed));
    std::fflush(stdout);
    bench::generator random(seed);
    for (uint32_t round = 0; round < CHUNKS; ++round) {
        chunk(random).check(round);
    }
    std::printf("%u sound chunks\n", CHUNKS);
}

} // namespace

int main()
{
    check_hostile();
    check_sound();
    return 0;
}
