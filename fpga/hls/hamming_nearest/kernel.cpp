// The selected rows whose codes are nearest to a query, by Hamming distance.
//
// BlueDBM (section 7.1, Nearest Neighbor Search) compares a query with the items of a bucket of
// locality-sensitive hashing, 8 KB each, in the store, and gives back the index of the nearest;
// this engine gives back the `k` nearest. The bucket is a selection: rows that are not in it are
// not read.
//
// Shapes: `codes` has `rows` codes of code_bytes bytes, `query` one; `selected` is a bitmap of
// rows. `found` is the smaller of `k` and the number of selected rows, and so many elements of
// `result_rows` and `result_distances` (in bits) are written, nearest first; among rows equally
// far, lower ones first. More than MAX_NEIGHBOURS neighbours, or codes longer than MAX_CODE_BYTES,
// are not looked for: `found` is 0 then.
//
// Intended, not measured: 8 bytes of codes per cycle, and a new neighbour every cycle: each place
// of the list compares itself with the newcomer and takes it, its predecessor, or stays.
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

constexpr uint32_t MAX_NEIGHBOURS = 1024;
constexpr uint32_t MAX_CODE_BYTES = 8192;
constexpr uint32_t WORD_BYTES = 8;
constexpr uint32_t MAX_CODE_WORDS = MAX_CODE_BYTES / WORD_BYTES;
constexpr uint32_t DEPTH = 32;
// The distance of a place that no row has taken: farther than any.
constexpr uint32_t EMPTY = 0xffffffff;

// Bits of a distance: MAX_CODE_BYTES bytes may all differ.
using distance = flashmesh::bits<17>;

// Eight bytes of a row's code; zeros behind its end.
struct code_word {
    uint64_t bits;
    uint32_t row;
    bool is_last_of_row;
    bool is_end;
};

struct neighbour {
    uint32_t row;
    uint32_t distance;
    bool is_end;
};

void read_codes(const uint8_t *codes, uint32_t code_bytes, const uint64_t *selected, uint32_t rows,
                flashmesh::stream<code_word, DEPTH> &words)
{
    uint64_t selection = 0;
rows:
    for (uint32_t row = 0; row < rows; ++row) {
        if (row % flashmesh::WORD_BITS == 0) {
            selection = selected[row / flashmesh::WORD_BITS];
        }
        if ((selection >> (row % flashmesh::WORD_BITS) & 1) == 0) {
            continue;
        }
        const uint8_t *code = codes + uint64_t{row} * code_bytes;
        uint32_t at = 0;
        bool is_last = false;
    words:
        // A code of no bytes has a word too: its row is a neighbour as any other.
        while (!is_last) {
#pragma HLS PIPELINE II=1
            const uint32_t left = code_bytes - at;
            is_last = left <= WORD_BYTES;
            words.write({flashmesh::load_bytes(code + at, is_last ? left : WORD_BYTES), row,
                         is_last, false});
            at += WORD_BYTES;
        }
    }
    words.write({0, 0, false, true});
}

void measure(const uint8_t *query, uint32_t code_bytes,
             flashmesh::stream<code_word, DEPTH> &words,
             flashmesh::stream<neighbour, DEPTH> &candidates)
{
    uint64_t query_words[MAX_CODE_WORDS];
    const uint32_t count = (code_bytes + WORD_BYTES - 1) / WORD_BYTES;
query:
    for (uint32_t word = 0; word < count; ++word) {
#pragma HLS PIPELINE II=1
        const uint32_t left = code_bytes - word * WORD_BYTES;
        query_words[word] = flashmesh::load_bytes(query + word * WORD_BYTES,
                                                  left < WORD_BYTES ? left : WORD_BYTES);
    }
    distance differing = 0;
    uint32_t word = 0;
    bool is_end = false;
words:
    while (!is_end) {
#pragma HLS PIPELINE II=1
        const code_word next = words.read();
        is_end = next.is_end;
        if (is_end) {
            continue;
        }
        const uint64_t difference = count == 0 ? 0 : next.bits ^ query_words[word];
        differing += static_cast<uint32_t>(__builtin_popcountll(difference));
        ++word;
        if (next.is_last_of_row) {
            candidates.write({next.row, static_cast<uint32_t>(differing), false});
            differing = 0;
            word = 0;
        }
    }
    candidates.write({0, 0, true});
}

// A list of registers in ascending order, empty places last. Rows arrive in ascending order, so a
// newcomer stands behind all that are as near.
void keep_nearest(uint32_t k, flashmesh::stream<neighbour, DEPTH> &candidates,
                  flashmesh::stream<neighbour, DEPTH> &nearest)
{
    neighbour list[MAX_NEIGHBOURS];
#pragma HLS ARRAY_PARTITION variable=list complete
clear:
    for (uint32_t place = 0; place < MAX_NEIGHBOURS; ++place) {
#pragma HLS UNROLL
        list[place] = {0, EMPTY, false};
    }
    uint32_t length = 0;
    bool is_end = false;
candidates:
    while (!is_end) {
#pragma HLS PIPELINE II=1
        const neighbour next = candidates.read();
        is_end = next.is_end;
        if (is_end || k == 0 || list[k - 1].distance <= next.distance) {
            continue;
        }
        length = length < k ? length + 1 : k;
    places:
        // From the last place on, so that each sees its predecessor as it was.
        for (uint32_t place = MAX_NEIGHBOURS - 1; place > 0; --place) {
#pragma HLS UNROLL
            if (list[place - 1].distance > next.distance) {
                list[place] = list[place - 1];
            } else if (list[place].distance > next.distance) {
                list[place] = next;
            }
        }
        if (list[0].distance > next.distance) {
            list[0] = next;
        }
    }
nearest:
    for (uint32_t place = 0; place < length; ++place) {
#pragma HLS PIPELINE II=1
        nearest.write(list[place]);
    }
    nearest.write({0, 0, true});
}

void write_nearest(flashmesh::stream<neighbour, DEPTH> &nearest, uint32_t *result_rows,
                   uint32_t *result_distances, uint32_t *found)
{
    uint32_t count = 0;
    bool is_end = false;
nearest:
    while (!is_end) {
#pragma HLS PIPELINE II=1
        const neighbour next = nearest.read();
        is_end = next.is_end;
        if (!is_end) {
            result_rows[count] = next.row;
            result_distances[count] = next.distance;
            ++count;
        }
    }
    *found = count;
}

void search(const uint8_t *codes, uint32_t code_bytes, const uint64_t *selected,
            const uint8_t *query, uint32_t k, uint32_t rows, uint32_t *result_rows,
            uint32_t *result_distances, uint32_t *found)
{
    FLASHMESH_STREAM(code_word, words, DEPTH);
    FLASHMESH_STREAM(neighbour, candidates, DEPTH);
    FLASHMESH_STREAM(neighbour, nearest, DEPTH);
    FLASHMESH_DATAFLOW("hamming_nearest");
    FLASHMESH_STAGE(read_codes, codes, code_bytes, selected, rows, words);
    FLASHMESH_STAGE(measure, query, code_bytes, words, candidates);
    FLASHMESH_STAGE(keep_nearest, k, candidates, nearest);
    FLASHMESH_STAGE(write_nearest, nearest, result_rows, result_distances, found);
}

} // namespace

FLASHMESH_KERNEL void hamming_nearest(const uint8_t *codes, uint32_t code_bytes,
                                      const uint64_t *selected, const uint8_t *query, uint32_t k,
                                      uint32_t rows, uint32_t *result_rows,
                                      uint32_t *result_distances, uint32_t *found)
{
#pragma HLS INTERFACE m_axi port=codes bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=selected bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=query bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=result_rows bundle=gmem3 offset=slave
#pragma HLS INTERFACE m_axi port=result_distances bundle=gmem4 offset=slave
#pragma HLS INTERFACE m_axi port=found bundle=gmem3 offset=slave
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
