// What kernels share that decode the pages of a column: page_decode of numbers, text_decode of texts.
//
// Of each page they say what is wrong with it, if something is. Rows go in blocks of VALID_ROWS,
// whose validity is a beat. A page's bitmap comes before what it belongs to, so its stream holds as
// much as a page can have of it.
#ifndef FLASHMESH_DECODE_HPP
#define FLASHMESH_DECODE_HPP

#include <flashmesh/beat.hpp>
#include <flashmesh/page.hpp>

namespace flashmesh {

enum problem : uint32_t {
    SOUND = 0,
    // No page, or counts that no page has.
    BAD_HEADER = 1,
    // An encoding, or a kind of page, that the kernel does not decode.
    NOT_DECODED = 2,
    // Regions that do not make the payload.
    BAD_REGIONS = 3,
    // A bitmap that does not have the NULLs that the header counts.
    BAD_VALIDITY = 4,
    // A code that the dictionary does not have, or a dictionary that no page holds.
    BAD_DICTIONARY = 5,
    // Symbols that are none, or are missing.
    BAD_SYMBOLS = 5,
    // More rows or bytes than can be counted.
    TOO_MANY = 6,
    // Runs that do not follow each other to the page's last row.
    BAD_RUNS = 7,
    // Lengths of rows that do not make the stored bytes, or starts that are elsewhere.
    BAD_LENGTHS = 7,
    // A row, or a page, that ends between an escape and its byte.
    BAD_ESCAPE = 8,
    // Pages of a long value that do not follow each other to its last.
    BAD_PARTS = 9,
};

constexpr uint32_t NO_PAGE = 0xffffffff;
constexpr uint32_t VALID_ROWS = 8 * BEAT_BYTES;
// Pages whose headers are asked for at once.
constexpr uint32_t BATCH_PAGES = 32;
static_assert(BATCH_PAGES <= MAX_REQUESTS, "a batch is asked for at once");
// Pages that memory has been asked for: 256 beats, more than its latency in cycles.
constexpr uint32_t PAGES_AHEAD = 2;

using validity_stream = stream<line, PAGE_BEATS>;

// The rows of a page. Of one that is not decoded nothing but its tag, what was found, and the beats
// of validity that are passed on all the same.
struct row_layout {
    uint32_t tag;
    problem found;
    uint32_t rows;
    // Rows that are not NULL.
    uint32_t values;
    // Of the payload, behind the bitmap.
    uint32_t data_bytes;
    uint8_t validity_beats;
};

// The first page that is wrong, or no page, and how.
struct refusal {
    uint32_t page;
    problem found;
};

inline void note(refusal &first, uint32_t page, problem found)
{
    if (found != SOUND && page < first.page) {
        first = {page, found};
    }
}

// What a header that is bounded says of rows.
inline problem plan_rows(const page_header &header, row_layout &out)
{
    out.rows = header.row_count;
    out.values = header.row_count - header.null_count;
    out.data_bytes = header.payload_bytes;
    if (!has_flag(header, FLAG_HAS_VALIDITY)) {
        return header.null_count != 0 && out.values != 0 ? BAD_VALIDITY : SOUND;
    }
    const uint32_t bytes = align_region((out.rows + 7) / 8);
    if (bytes > out.data_bytes) {
        return BAD_REGIONS;
    }
    out.validity_beats = static_cast<uint8_t>(bytes / BEAT_BYTES);
    out.data_bytes -= bytes;
    return SOUND;
}

// NULLs among `rows` rows from the first bit of a bitmap's beat on.
inline uint32_t count_nulls(const line &bitmap, uint32_t rows)
{
#pragma HLS INLINE
    uint32_t nulls = 0;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        nulls += static_cast<uint32_t>(
            __builtin_popcountll(~bitmap.words[word] & row_mask(word, rows)));
    }
    return nulls;
}

// Passes a page's bitmap on, and counts its NULLs.
inline uint32_t route_validity(axis &pages, uint32_t beats, uint32_t rows,
                               validity_stream &validity)
{
    uint32_t nulls = 0;
bitmap:
    for (uint32_t at = 0; at < beats; ++at) {
#pragma HLS PIPELINE II=1
        const line bits = line_of(receive(pages));
        nulls += count_nulls(bits, rows - at * VALID_ROWS);
        validity.write(bits);
    }
    return nulls;
}

// What the other stages are told of a page whose bitmap was passed on.
template <typename Layout>
inline void conclude(uint32_t tag, problem found, uint32_t validity_beats, Layout &out)
{
    if (found != SOUND) {
        out = {};
        out.validity_beats = static_cast<uint8_t>(validity_beats);
    }
    out.tag = tag;
    out.found = found;
}

// The validity of a block from row `row` on.
inline line take_validity(const row_layout &where, uint32_t row, validity_stream &validity)
{
#pragma HLS INLINE
    line bits = {};
    if (where.validity_beats != 0) {
        bits = validity.read();
    }
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        const uint64_t stored = where.validity_beats != 0 ? bits.words[word]
                                : where.values != 0       ? ~uint64_t{0}
                                                          : 0;
        bits.words[word] = stored & row_mask(word, where.rows - row);
    }
    return bits;
}

// Takes the bitmap of a page in which something else was wrong.
inline void drop_validity(const row_layout &where, validity_stream &validity)
{
refused:
    for (uint32_t at = 0; where.rows == 0 && at < where.validity_beats; ++at) {
#pragma HLS PIPELINE II=1
        validity.read();
    }
}

inline uint64_t bytes_of_pages(uint32_t page_count)
{
    return uint64_t{page_count} * PAGE_BYTES;
}

// Pages of the batch that begins with page `start`.
inline uint32_t batch_of(uint64_t start, uint32_t page_count)
{
    const uint64_t left = page_count - start;
    return left < BATCH_PAGES ? static_cast<uint32_t>(left) : BATCH_PAGES;
}

inline void request_headers(wide_port pages, uint64_t start, uint32_t count)
{
ask_headers:
    for (uint32_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        request(pages, (start + i) * PAGE_BEATS, 1);
    }
}

// Sends `count` pages of an array of page_count, tagged with their numbers: page_at(place) is the one
// in that place.
template <typename Order>
inline void deliver_pages(wide_port pages, uint32_t page_count, uint32_t count, Order page_at,
                          axis &packets)
{
    uint32_t requested = 0;
ahead:
    for (; requested < PAGES_AHEAD && requested < count; ++requested) {
#pragma HLS PIPELINE II=1
        request(pages, uint64_t{page_at(requested)} * PAGE_BEATS, PAGE_BEATS);
    }
beats:
    for (uint64_t i = 0; i < uint64_t{count} * PAGE_BEATS; ++i) {
#pragma HLS PIPELINE II=1
        const uint32_t at = i % PAGE_BEATS;
        const uint32_t page = page_at(static_cast<uint32_t>(i / PAGE_BEATS));
        beat next = load(pages, uint64_t{page} * PAGE_BEATS + at, bytes_of_pages(page_count));
        next.tag = page;
        next.bytes = BEAT_BYTES;
        next.is_last = at == PAGE_BEATS - 1;
        send(packets, next);
        if (next.is_last && requested < count) {
            request(pages, uint64_t{page_at(requested)} * PAGE_BEATS, PAGE_BEATS);
            ++requested;
        }
    }
}

} // namespace flashmesh

#endif
