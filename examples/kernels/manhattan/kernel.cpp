// The sum of the absolute differences of two vectors, computed in doubles: the same result in
// whatever order floats would have been rounded.
//
// Intended, not measured: a component per cycle, 4 bytes, once additions are interleaved over
// rows.
#include <flashmesh/kernel.hpp>

FLASHMESH_KERNEL void manhattan(const float *a, const float *b, uint32_t dimension, uint32_t rows,
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
        const float *vector = a + uint64_t{row} * dimension;
        double sum = 0;
    components:
        for (uint32_t i = 0; i < dimension; ++i) {
#pragma HLS PIPELINE II=1
            const double difference = double{vector[i]} - double{b[i]};
            sum += difference < 0 ? -difference : difference;
        }
        result[row] = sum;
    }
}
