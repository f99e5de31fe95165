#include <flashmesh/kernel.hpp>

// The sum of absolute differences.
FLASHMESH_KERNEL void NAME(const float *a, const float *b, uint32_t dimension, uint32_t rows,
                           double *result)
{
#pragma HLS INTERFACE m_axi port=a bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=b bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=result bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=dimension
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
rows:
    for (uint32_t row = 0; row < rows; ++row) {
        double sum = 0;
    elements:
        for (uint32_t i = 0; i < dimension; ++i) {
#pragma HLS PIPELINE II=1
            const double difference = static_cast<double>(a[row * dimension + i]) - b[i];
            sum += difference < 0 ? -difference : difference;
        }
        result[row] = sum;
    }
}
