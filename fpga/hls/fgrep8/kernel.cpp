// Which of eight patterns occur in each row's text, all of them looked for at once.
//
// Minerva's fgrep-8 (sections III-A, figure 4, and IV-A) compares a stream of pages with one
// pattern of eight bytes. Its storage processors stand where ours would; this engine takes eight
// patterns of up to SLOT_BYTES bytes in one pass over the text.
//
// Shapes: `rows` texts, row i the bytes text_offsets[i] .. text_offsets[i + 1] of `text_bytes`;
// `patterns` eight slots of SLOT_BYTES bytes, of which the first lengths[p] are pattern p; bit p
// of matches[i] says whether pattern p is in row i. Length 0 is an unused slot, and a length above
// SLOT_BYTES no pattern: neither matches anything.
//
// Shift-And (Baeza-Yates and Gonnet, "A new approach to text searching", 1992): bit i of a
// pattern's state says that the last i + 1 bytes are the first i + 1 of the pattern. Unlike
// Morris-Pratt it takes every byte in one step, so eight of them stay in step.
//
// Intended, not measured: a byte of text per cycle, whatever the patterns.
#include <flashmesh/kernel.hpp>

namespace {

constexpr uint32_t PATTERNS = 8;
constexpr uint32_t SLOT_BYTES = 64;
constexpr uint32_t BYTE_VALUES = 256;

// For each byte value the places of the pattern that have it.
struct patterns_table {
    uint64_t places[PATTERNS][BYTE_VALUES];
    // The bit of a pattern's last place; 0 of an unused slot.
    uint64_t last[PATTERNS];
};

void load(const uint8_t *patterns, const uint32_t *lengths, patterns_table &table)
{
clear:
    for (uint32_t value = 0; value < BYTE_VALUES; ++value) {
#pragma HLS PIPELINE II=1
    clear_patterns:
        for (uint32_t pattern = 0; pattern < PATTERNS; ++pattern) {
#pragma HLS UNROLL
            table.places[pattern][value] = 0;
        }
    }
load:
    for (uint32_t pattern = 0; pattern < PATTERNS; ++pattern) {
        const uint32_t length = lengths[pattern] <= SLOT_BYTES ? lengths[pattern] : 0;
        table.last[pattern] = length == 0 ? 0 : uint64_t{1} << (length - 1);
    bytes:
        for (uint32_t i = 0; i < length; ++i) {
#pragma HLS PIPELINE II=2
            table.places[pattern][patterns[pattern * SLOT_BYTES + i]] |= uint64_t{1} << i;
        }
    }
}

} // namespace

FLASHMESH_KERNEL void fgrep8(const uint32_t *text_offsets, const uint8_t *text_bytes,
                             const uint8_t *patterns, const uint32_t *lengths, uint32_t rows,
                             uint8_t *matches)
{
#pragma HLS INTERFACE m_axi port=text_offsets bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=text_bytes bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=patterns bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=lengths bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=matches bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    patterns_table table;
#pragma HLS ARRAY_PARTITION variable=table.places complete dim=1
#pragma HLS ARRAY_PARTITION variable=table.last complete
    load(patterns, lengths, table);

rows:
    for (uint32_t row = 0; row < rows; ++row) {
        uint64_t states[PATTERNS] = {};
#pragma HLS ARRAY_PARTITION variable=states complete
        uint32_t found = 0;
        const uint32_t start = text_offsets[row];
        const uint32_t end = text_offsets[row + 1];
    bytes:
        for (uint32_t at = start; at < end; ++at) {
#pragma HLS PIPELINE II=1
            const uint8_t byte = text_bytes[at];
        engines:
            for (uint32_t pattern = 0; pattern < PATTERNS; ++pattern) {
#pragma HLS UNROLL
                states[pattern] = (states[pattern] << 1 | 1) & table.places[pattern][byte];
                found |= uint32_t{(states[pattern] & table.last[pattern]) != 0} << pattern;
            }
        }
        matches[row] = static_cast<uint8_t>(found);
    }
}
