// Which of eight patterns occur in each row's text, all of them looked for at once.
//
// Minerva's fgrep-8 (sections III-A, figure 4, and IV-A) compares a stream of pages with one
// pattern of eight bytes. Its storage processors stand where ours would; this engine takes eight
// patterns of up to SLOT_BYTES bytes in one pass over the text.
//
// On a card: `fgrep8_stream`, over packets of texts (flashmesh/text.hpp). `patterns` is eight slots
// of SLOT_BYTES bytes, of which the first lengths[p] are pattern p; bit p of a text's result says
// whether pattern p is in it. Length 0 is an unused slot, and a length above SLOT_BYTES no pattern:
// neither matches anything.
//
// For the host: `fgrep8`, over arrays: row i is the bytes text_offsets[i] .. text_offsets[i + 1] of
// `text_bytes`, matches[i] its result.
//
// Every byte of a beat may end a pattern, so each has comparators of its own for the bytes up to it,
// the beat before included: Shift-And (Baeza-Yates and Gonnet, "A new approach to text searching",
// 1992) unrolled over a beat, where its table would need 64 ports.
//
// Intended, not measured: a beat of text, 64 bytes, per cycle, whatever the patterns; a text of
// fewer bytes takes a cycle. That is 8 x 64 x 64 comparators of a byte: a large engine, and PATTERNS
// and SLOT_BYTES are what makes it so.
#include <flashmesh/beat.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>
#include <flashmesh/text.hpp>

namespace {

using flashmesh::axis;
using flashmesh::beat;
using flashmesh::BEAT_BYTES;

constexpr uint32_t PATTERNS = 8;
constexpr uint32_t SLOT_BYTES = 64;
static_assert(SLOT_BYTES <= BEAT_BYTES, "a pattern ends in the beat behind the one it begins in");

// backwards[p][i]: the byte of pattern p that has i bytes of it behind it.
struct patterns_table {
    uint8_t backwards[PATTERNS][SLOT_BYTES];
    uint32_t lengths[PATTERNS];
};

void load_patterns(flashmesh::wide_port patterns, const uint32_t *lengths, patterns_table &table)
{
    flashmesh::request(patterns, 0, PATTERNS);
patterns:
    for (uint32_t pattern = 0; pattern < PATTERNS; ++pattern) {
#pragma HLS PIPELINE II=1
        const beat slot = flashmesh::load(patterns, pattern, PATTERNS * SLOT_BYTES);
        const uint32_t length = lengths[pattern] <= SLOT_BYTES ? lengths[pattern] : 0;
        table.lengths[pattern] = length;
    bytes:
        for (uint32_t i = 0; i < SLOT_BYTES; ++i) {
#pragma HLS UNROLL
            table.backwards[pattern][i] =
                i < length ? flashmesh::byte_of(slot, length - 1 - i) : uint8_t{0};
        }
    }
}

// Whether a pattern ends at one of the `bytes` bytes of the second half of `window`, of which the
// first half counts if `has_past`.
bool is_in(const uint8_t *window, uint32_t bytes, bool has_past, const uint8_t *backwards,
           uint32_t length)
{
    uint8_t is_end[BEAT_BYTES];
#pragma HLS ARRAY_PARTITION variable=is_end complete
ends:
    for (uint32_t end = 0; end < BEAT_BYTES; ++end) {
#pragma HLS UNROLL
        is_end[end] = length != 0 && end < bytes && (has_past || length <= end + 1);
    }
places:
    for (uint32_t i = 0; i < SLOT_BYTES; ++i) {
#pragma HLS UNROLL
        if (i >= length) {
            continue;
        }
    compare:
        for (uint32_t end = 0; end < BEAT_BYTES; ++end) {
#pragma HLS UNROLL
            const bool is_same = window[BEAT_BYTES + end - i] == backwards[i];
            is_end[end] = static_cast<uint8_t>(is_end[end] & (is_same ? 1 : 0));
        }
    }
    uint8_t any = 0;
any:
    for (uint32_t end = 0; end < BEAT_BYTES; ++end) {
#pragma HLS UNROLL
        any = static_cast<uint8_t>(any | is_end[end]);
    }
    return any != 0;
}

} // namespace

FLASHMESH_STREAM_TOP void fgrep8_stream(axis &texts, uint32_t count,
                                        flashmesh::wide_port patterns, const uint32_t *lengths,
                                        axis &results)
{
#pragma HLS INTERFACE axis port=texts
#pragma HLS INTERFACE axis port=results
#pragma HLS INTERFACE m_axi port=patterns bundle=wide offset=slave num_read_outstanding=1
#pragma HLS INTERFACE m_axi port=lengths bundle=narrow offset=slave num_read_outstanding=1
#pragma HLS INTERFACE s_axilite port=count
#pragma HLS INTERFACE ap_ctrl_chain port=return
    patterns_table table;
#pragma HLS ARRAY_PARTITION variable=table.backwards complete dim=0
#pragma HLS ARRAY_PARTITION variable=table.lengths complete
    load_patterns(patterns, lengths, table);

    uint8_t window[2 * BEAT_BYTES] = {};
#pragma HLS ARRAY_PARTITION variable=window complete
    bool has_past = false;
    uint32_t found = 0;
    uint32_t ended = 0;
beats:
    while (ended < count) {
#pragma HLS PIPELINE II=1
        const beat next = flashmesh::receive(texts);
    shift:
        for (uint32_t byte = 0; byte < BEAT_BYTES; ++byte) {
#pragma HLS UNROLL
            window[byte] = window[BEAT_BYTES + byte];
            window[BEAT_BYTES + byte] = flashmesh::byte_of(next, byte);
        }
    engines:
        for (uint32_t pattern = 0; pattern < PATTERNS; ++pattern) {
#pragma HLS UNROLL
            const bool is_found = is_in(window, next.bytes, has_past, table.backwards[pattern],
                                        table.lengths[pattern]);
            found |= uint32_t{is_found} << pattern;
        }
        has_past = !next.is_last;
        if (next.is_last) {
            flashmesh::send(results, flashmesh::result_of(next.tag, found));
            found = 0;
            ++ended;
        }
    }
}

namespace {

void find(const uint32_t *text_offsets, flashmesh::wide_port text_bytes, uint32_t array_bytes,
          flashmesh::wide_port patterns, const uint32_t *lengths, uint32_t rows, uint8_t *matches)
{
    FLASHMESH_STREAM(flashmesh::text_place, places, flashmesh::PLACES_DEPTH);
    FLASHMESH_STREAM(beat, texts, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, results, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("fgrep8");
    FLASHMESH_STAGE(flashmesh::read_offsets, text_offsets, rows, places);
    FLASHMESH_STAGE(flashmesh::send_texts, text_bytes, array_bytes, rows, places, texts);
    FLASHMESH_STAGE(fgrep8_stream, texts, rows, patterns, lengths, results);
    FLASHMESH_STAGE(flashmesh::receive_results, results, rows, matches);
}

} // namespace

FLASHMESH_KERNEL void fgrep8(const uint32_t *text_offsets, flashmesh::wide_port text_bytes,
                             flashmesh::wide_port patterns, const uint32_t *lengths, uint32_t rows,
                             uint8_t *matches)
{
#pragma HLS INTERFACE m_axi port=text_offsets bundle=offsets offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=text_bytes bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=patterns bundle=wide_patterns offset=slave
#pragma HLS INTERFACE m_axi port=lengths bundle=narrow offset=slave
#pragma HLS INTERFACE m_axi port=matches bundle=bytes offset=slave
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    const uint32_t array_bytes = rows == 0 ? 0 : text_offsets[rows];
    find(text_offsets, text_bytes, array_bytes, patterns, lengths, rows, matches);
}
