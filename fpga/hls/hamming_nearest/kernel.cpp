// The selected rows whose codes are nearest to a query, by Hamming distance.
//
// BlueDBM (section 7.1, Nearest Neighbor Search) compares a query with the items of a bucket of
// locality-sensitive hashing, 8 KB each, in the store, and gives back the index of the nearest;
// this engine gives back the `k` nearest. The bucket is a selection.
//
// On a card: `hamming_nearest_stream`. A packet of `codes` is a page of rows_per_page(code_bytes)
// codes, its tag p says that its first row is p times that; packets come in any order. A word of
// the packet of `nearest` is a row (low half) and its distance in bits, nearest first; among rows
// equally far, lower ones first, in whatever order they came. There are MAX_NEIGHBOURS at most, and
// none of codes longer than MAX_CODE_BYTES.
//
// For the host: `hamming_nearest`, over arrays. `codes` has `rows` codes of code_bytes bytes,
// `query` one; `selected` is a bitmap of rows. `found` is the smaller of `k` and the number of
// selected rows, and so many elements of `result_rows` and `result_distances` are written. Pages
// without a selected row are not read, for which this form looks at `selected` in two stages: on a
// device it would need two ports. More than MAX_NEIGHBOURS neighbours, or codes longer than
// MAX_CODE_BYTES, are not looked for: `found` is 0 then.
//
// Intended, not measured: a beat of codes, 64 bytes, per cycle, or a code where that is shorter; and
// a new neighbour every cycle: the list is a systolic array, in which a cell sees no other than its
// two neighbours.
#include <flashmesh/beat.hpp>
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::axis;
using flashmesh::BEAT_BYTES;
using flashmesh::BEAT_WORDS;
using flashmesh::beat;
using flashmesh::WORD_BITS;

constexpr uint32_t MAX_NEIGHBOURS = 1024;
constexpr uint32_t MAX_CODE_BYTES = flashmesh::PAGE_BYTES;
constexpr uint32_t DEPTH = 32;
// The distance of a cell that no row has taken: farther than any.
constexpr uint32_t EMPTY = 0xffffffff;

// Bits of a distance: MAX_CODE_BYTES bytes may all differ.
using distance = flashmesh::bits<17>;

struct neighbour {
    uint32_t row;
    uint32_t distance;
    bool is_end;
};

// Codes do not go on in the next page. Codes without a byte are as many as were those of one.
uint32_t rows_per_page(uint32_t code_bytes)
{
    return flashmesh::PAGE_BYTES / (code_bytes == 0 ? 1 : code_bytes);
}

// The first row of page `page` and the one behind its last; none of a page that there is not.
struct range {
    uint32_t first;
    uint32_t end;
};

range rows_of(uint32_t page, uint32_t code_bytes, uint32_t rows)
{
    const uint64_t first = uint64_t{page} * rows_per_page(code_bytes);
    const uint64_t end = first + rows_per_page(code_bytes);
    return {static_cast<uint32_t>(first < rows ? first : rows),
            static_cast<uint32_t>(end < rows ? end : rows)};
}

// Passes pages on, and tells which one it is, so that its selection is read meanwhile.
void route(axis &codes, uint32_t pages, flashmesh::stream<beat, flashmesh::PAGE_BEATS> &beats,
           flashmesh::stream<uint32_t, DEPTH> &tags_read,
           flashmesh::stream<uint32_t, DEPTH> &tags)
{
pages:
    for (uint32_t page = 0; page < pages; ++page) {
        bool is_first = true;
        bool is_last = false;
    beats:
        while (!is_last) {
#pragma HLS PIPELINE II=1
            const beat next = flashmesh::receive(codes);
            is_last = next.is_last;
            if (is_first) {
                tags_read.write(next.tag);
                tags.write(next.tag);
            }
            is_first = false;
            beats.write(next);
        }
    }
}

// The words of the bitmap in which the rows of the pages are.
void read_selection(const uint64_t *selected, uint32_t pages, uint32_t code_bytes, uint32_t rows,
                    flashmesh::stream<uint32_t, DEPTH> &tags,
                    flashmesh::stream<uint64_t, DEPTH> &selection)
{
pages:
    for (uint32_t page = 0; page < pages; ++page) {
        const range all = rows_of(tags.read(), code_bytes, rows);
    words:
        for (uint32_t word = all.first / WORD_BITS;
             all.first < all.end && word <= (all.end - 1) / WORD_BITS; ++word) {
#pragma HLS PIPELINE II=1
            selection.write(selected[word]);
        }
    }
}

void measure(flashmesh::wide_port query, uint32_t code_bytes, uint32_t pages, uint32_t rows,
             flashmesh::stream<beat, flashmesh::PAGE_BEATS> &beats,
             flashmesh::stream<uint32_t, DEPTH> &tags,
             flashmesh::stream<uint64_t, DEPTH> &selection,
             flashmesh::stream<neighbour, DEPTH> &candidates)
{
    uint64_t query_words[flashmesh::PAGE_BEATS][BEAT_WORDS];
#pragma HLS ARRAY_PARTITION variable=query_words complete dim=2
    // Of codes that are too long no page has a row.
    const uint32_t query_beats =
        code_bytes > MAX_CODE_BYTES ? 0 : (code_bytes + BEAT_BYTES - 1) / BEAT_BYTES;
    flashmesh::request(query, 0, query_beats);
query:
    for (uint32_t i = 0; i < query_beats; ++i) {
#pragma HLS PIPELINE II=1
        const beat next = flashmesh::load(query, i, code_bytes);
        for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
            query_words[i][word] = next.words[word];
        }
    }
pages:
    for (uint32_t page = 0; page < pages; ++page) {
        const range all = rows_of(tags.read(), code_bytes, rows);
        // Two beats, of which `offset` bytes have been used; zeros behind the page's end.
        beat low = beats.read();
        bool is_over = low.is_last;
        beat high = {};
        if (!is_over) {
            high = beats.read();
            is_over = high.is_last;
        }
        uint32_t offset = 0;
        uint32_t at = 0;
        uint32_t row = all.first;
        uint64_t word = 0;
        bool is_begun = false;
        distance differing = 0;
    pieces:
        while (row < all.end) {
#pragma HLS PIPELINE II=1
            if (!is_begun || (row % WORD_BITS == 0 && at == 0)) {
                word = selection.read();
                is_begun = true;
            }
            const uint32_t left = code_bytes - at;
            const bool is_last = left <= BEAT_BYTES;
            const uint32_t count = is_last ? left : BEAT_BYTES;
            const beat piece = flashmesh::extract(low, high, offset, count);
            uint32_t bits = 0;
        words:
            for (uint32_t i = 0; i < BEAT_WORDS; ++i) {
#pragma HLS UNROLL
                const uint64_t wanted = count == 0 ? 0 : query_words[at / BEAT_BYTES][i];
                bits += static_cast<uint32_t>(__builtin_popcountll(piece.words[i] ^ wanted));
            }
            differing += bits;
            at += count;
            offset += count;
            if (offset >= BEAT_BYTES) {
                offset -= BEAT_BYTES;
                low = high;
                high = {};
                if (!is_over) {
                    high = beats.read();
                    is_over = high.is_last;
                }
            }
            if (is_last) {
                if ((word >> (row % WORD_BITS) & 1) != 0) {
                    candidates.write({row, static_cast<uint32_t>(differing), false});
                }
                differing = 0;
                at = 0;
                ++row;
            }
        }
    rest:
        while (!is_over) {
#pragma HLS PIPELINE II=1
            is_over = beats.read().is_last;
        }
    }
    candidates.write({0, 0, true});
}

bool is_nearer(const neighbour &a, const neighbour &b)
{
    return a.distance < b.distance || (a.distance == b.distance && a.row < b.row);
}

// A cell holds the nearest of all that have come to it, and passes the others on, one a cycle: so
// the first holds the nearest of all, the next the nearest of the rest.
void keep_nearest(uint32_t wanted, flashmesh::stream<neighbour, DEPTH> &candidates, axis &nearest)
{
    const uint32_t k = wanted < MAX_NEIGHBOURS ? wanted : MAX_NEIGHBOURS;
    neighbour held[MAX_NEIGHBOURS];
    neighbour passed[MAX_NEIGHBOURS];
#pragma HLS ARRAY_PARTITION variable=held complete
#pragma HLS ARRAY_PARTITION variable=passed complete
    const neighbour nobody = {EMPTY, EMPTY, false};
clear:
    for (uint32_t cell = 0; cell < MAX_NEIGHBOURS; ++cell) {
#pragma HLS UNROLL
        held[cell] = nobody;
        passed[cell] = nobody;
    }
    bool is_end = false;
    // Behind the last candidate, what is under way goes on to its cell.
    uint32_t under_way = k;
ticks:
    while (under_way != 0 || !is_end) {
#pragma HLS PIPELINE II=1
        neighbour next = nobody;
        if (is_end) {
            --under_way;
        } else {
            const neighbour candidate = candidates.read();
            is_end = candidate.is_end;
            next = is_end ? nobody : candidate;
        }
    cells:
        // From the last cell on, so that each takes what was passed to it in the tick before.
        for (uint32_t cell = MAX_NEIGHBOURS; cell > 0; --cell) {
#pragma HLS UNROLL
            if (cell > k) {
                continue;
            }
            const neighbour arriving = cell == 1 ? next : passed[cell - 2];
            const bool is_kept = is_nearer(arriving, held[cell - 1]);
            passed[cell - 1] = is_kept ? held[cell - 1] : arriving;
            held[cell - 1] = is_kept ? arriving : held[cell - 1];
        }
    }
    beat out = {};
    uint32_t words = 0;
    bool is_last = false;
drain:
    // The list moves towards the first cell, from which it is read.
    for (uint32_t place = 0; !is_last; ++place) {
#pragma HLS PIPELINE II=1
        const neighbour first = held[0];
        is_last = place == k || first.distance == EMPTY;
        if (is_last || words == BEAT_WORDS) {
            out.bytes = static_cast<uint8_t>(8 * words);
            out.is_last = is_last;
            flashmesh::send(nearest, out);
            out = {};
            words = 0;
        }
        if (!is_last) {
            out.words[words] = uint64_t{first.distance} << 32 | first.row;
            ++words;
        }
    cells_back:
        for (uint32_t cell = 1; cell < MAX_NEIGHBOURS; ++cell) {
#pragma HLS UNROLL
            held[cell - 1] = held[cell];
        }
    }
}

bool has_selected(const uint64_t *selected, range all)
{
    uint64_t bits = 0;
words:
    for (uint32_t row = all.first; row < all.end;) {
#pragma HLS PIPELINE II=1
        const uint32_t end = row / WORD_BITS == (all.end - 1) / WORD_BITS
                                 ? all.end
                                 : (row / WORD_BITS + 1) * WORD_BITS;
        const uint64_t below = end % WORD_BITS == 0 ? 0 : ~uint64_t{0} << (end % WORD_BITS);
        bits |= (selected[row / WORD_BITS] & ~below) >> (row % WORD_BITS);
        row = end;
    }
    return bits != 0;
}

uint32_t all_pages(uint32_t code_bytes, uint32_t rows)
{
    return rows / rows_per_page(code_bytes) + (rows % rows_per_page(code_bytes) != 0 ? 1 : 0);
}

uint32_t count_pages(const uint64_t *selected, uint32_t code_bytes, uint32_t rows)
{
    uint32_t count = 0;
pages:
    for (uint32_t page = 0; page < all_pages(code_bytes, rows); ++page) {
        count += has_selected(selected, rows_of(page, code_bytes, rows)) ? 1 : 0;
    }
    return count;
}

void send_codes(flashmesh::wide_port codes, uint32_t code_bytes, const uint64_t *selected,
                uint32_t rows, axis &pages)
{
    const uint32_t count = all_pages(code_bytes, rows);
pages:
    for (uint32_t i = 0; i < count; ++i) {
        const uint32_t page = flashmesh::delivered(i, count);
        const range all = rows_of(page, code_bytes, rows);
        if (has_selected(selected, all)) {
            flashmesh::send_packet(codes, uint64_t{rows} * code_bytes,
                                   uint64_t{all.first} * code_bytes,
                                   (all.end - all.first) * code_bytes, page, pages);
        }
    }
}

void receive_nearest(axis &nearest, uint32_t *result_rows, uint32_t *result_distances,
                     uint32_t *found)
{
    uint32_t count = 0;
    bool is_last = false;
beats:
    while (!is_last) {
        const beat next = flashmesh::receive(nearest);
        is_last = next.is_last;
    words:
        for (uint32_t word = 0; 8 * word < next.bytes; ++word) {
#pragma HLS PIPELINE II=1
            result_rows[count] = static_cast<uint32_t>(next.words[word]);
            result_distances[count] = static_cast<uint32_t>(next.words[word] >> 32);
            ++count;
        }
    }
    *found = count;
}

} // namespace

FLASHMESH_STREAM_TOP void hamming_nearest_stream(axis &codes, uint32_t pages, uint32_t code_bytes,
                                                 uint32_t rows, const uint64_t *selected,
                                                 flashmesh::wide_port query, uint32_t k,
                                                 axis &nearest)
{
#pragma HLS INTERFACE axis port=codes
#pragma HLS INTERFACE axis port=nearest
#pragma HLS INTERFACE m_axi port=selected bundle=narrow offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=query bundle=wide offset=slave num_read_outstanding=2
#pragma HLS INTERFACE s_axilite port=pages
#pragma HLS INTERFACE s_axilite port=code_bytes
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=k
#pragma HLS INTERFACE ap_ctrl_chain port=return
    FLASHMESH_STREAM(beat, beats, flashmesh::PAGE_BEATS);
    FLASHMESH_STREAM(uint32_t, tags_read, DEPTH);
    FLASHMESH_STREAM(uint32_t, tags, DEPTH);
    FLASHMESH_STREAM(uint64_t, selection, DEPTH);
    FLASHMESH_STREAM(neighbour, candidates, DEPTH);
    FLASHMESH_DATAFLOW("hamming_nearest_stream");
    FLASHMESH_STAGE(route, codes, pages, beats, tags_read, tags);
    FLASHMESH_STAGE(read_selection, selected, pages, code_bytes, rows, tags_read, selection);
    FLASHMESH_STAGE(measure, query, code_bytes, pages, rows, beats, tags, selection, candidates);
    FLASHMESH_STAGE(keep_nearest, k, candidates, nearest);
}

namespace {

void search(flashmesh::wide_port codes, uint32_t code_bytes, const uint64_t *selected,
            flashmesh::wide_port query, uint32_t k, uint32_t rows, uint32_t *result_rows,
            uint32_t *result_distances, uint32_t *found)
{
    const uint32_t pages = count_pages(selected, code_bytes, rows);
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, nearest, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("hamming_nearest");
    FLASHMESH_STAGE(send_codes, codes, code_bytes, selected, rows, packets);
    FLASHMESH_STAGE(hamming_nearest_stream, packets, pages, code_bytes, rows, selected, query, k,
                    nearest);
    FLASHMESH_STAGE(receive_nearest, nearest, result_rows, result_distances, found);
}

} // namespace

FLASHMESH_KERNEL void hamming_nearest(flashmesh::wide_port codes, uint32_t code_bytes,
                                      const uint64_t *selected, flashmesh::wide_port query,
                                      uint32_t k, uint32_t rows, uint32_t *result_rows,
                                      uint32_t *result_distances, uint32_t *found)
{
#pragma HLS INTERFACE m_axi port=codes bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=selected bundle=narrow offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=query bundle=wide_query offset=slave num_read_outstanding=2
#pragma HLS INTERFACE m_axi port=result_rows bundle=rows offset=slave
#pragma HLS INTERFACE m_axi port=result_distances bundle=distances offset=slave
#pragma HLS INTERFACE m_axi port=found bundle=rows offset=slave
#pragma HLS INTERFACE s_axilite port=code_bytes
#pragma HLS INTERFACE s_axilite port=k
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    if (k > MAX_NEIGHBOURS || code_bytes > MAX_CODE_BYTES) {
        *found = 0;
        return;
    }
    search(codes, code_bytes, selected, query, k, rows, result_rows, result_distances, found);
}
