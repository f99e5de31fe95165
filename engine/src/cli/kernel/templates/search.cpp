#include <flashmesh/kernel.hpp>

// Where the pattern first begins in each row's bytes.
FLASHMESH_KERNEL void NAME(const uint32_t *text_offsets, const uint8_t *text_bytes,
                           const uint8_t *pattern, uint32_t pattern_length, uint32_t rows,
                           uint32_t *positions)
{
#pragma HLS INTERFACE m_axi port=text_offsets bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=text_bytes bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=pattern bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=positions bundle=gmem0 offset=slave
#pragma HLS INTERFACE s_axilite port=pattern_length
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
rows:
    for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t start = text_offsets[row];
        const uint32_t length = text_offsets[row + 1] - start;
        uint32_t found = 0xffffffff;
    places:
        for (uint32_t place = 0; place + pattern_length <= length && found == 0xffffffff; ++place) {
            uint32_t same = 0;
            while (same < pattern_length && text_bytes[start + place + same] == pattern[same]) {
                ++same;
            }
            found = same == pattern_length ? place : found;
        }
        positions[row] = found;
    }
}
