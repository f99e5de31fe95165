// TRUE where low <= price <= high. NaN lies in no band.
#include <flashmesh/kernel.hpp>

FLASHMESH_KERNEL void price_band(const double *price, double low, double high,
                                 uint32_t rows, uint64_t *selection)
{
#pragma HLS INTERFACE m_axi port=price bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=selection bundle=gmem1 offset=slave
#pragma HLS INTERFACE s_axilite port=low
#pragma HLS INTERFACE s_axilite port=high
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    flashmesh::select_where(selection, rows, [=](uint32_t row) {
        return low <= price[row] && price[row] <= high;
    });
}
