// Text with the letters a to z as capitals. Bytes of other characters in UTF-8 are above 127, so
// text stays text.
//
// Intended, not measured: a byte per cycle.
#include <flashmesh/kernel.hpp>

FLASHMESH_KERNEL void shout(const uint32_t *x_offsets, const uint8_t *x_bytes, uint32_t rows,
                            uint32_t *result_offsets, uint8_t *result_bytes,
                            uint32_t result_capacity)
{
#pragma HLS INTERFACE m_axi port=x_offsets bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=x_bytes bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=result_offsets bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=result_bytes bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=result_capacity
#pragma HLS INTERFACE s_axilite port=return
    const uint32_t length = x_offsets[rows];
    if (length > result_capacity) {
        // The call is repeated with room for so many bytes.
        result_offsets[rows] = length;
        return;
    }
offsets:
    for (uint32_t row = 0; row < rows + 1; ++row) {
#pragma HLS PIPELINE II=1
        result_offsets[row] = x_offsets[row];
    }
bytes:
    for (uint32_t at = 0; at < length; ++at) {
#pragma HLS PIPELINE II=1
        const uint8_t byte = x_bytes[at];
        const bool is_small = byte >= 'a' && byte <= 'z';
        result_bytes[at] = static_cast<uint8_t>(is_small ? byte - 'a' + 'A' : byte);
    }
}
