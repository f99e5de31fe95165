#include <flashmesh/kernel.hpp>

FLASHMESH_KERNEL void NAME(const double *x, double factor, uint32_t rows, double *result)
{
#pragma HLS INTERFACE m_axi port=x bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=result bundle=gmem1 offset=slave
#pragma HLS INTERFACE s_axilite port=factor
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
rows:
    for (uint32_t row = 0; row < rows; ++row) {
#pragma HLS PIPELINE II=1
        result[row] = x[row] * factor;
    }
}
