// TRUE where a price covers its cost and is within a tenth of the list price. The band is
// price_band's matter: this kernel calls it, as Willow's applications call each other's functions
// (sections 2.5 and 2.6), where the caller needs the right to.
//
// Intended, not measured: a row per cycle after price_band has ended, 8 bytes.
#include <flashmesh/kernel.hpp>

FLASHMESH_IMPORT(price_band)
void price_band(const double *price, double low, double high, uint32_t rows, uint64_t *selection);

FLASHMESH_KERNEL void fair_price(const double *price, const double *cost, double list_price,
                                 uint32_t rows, uint64_t *selection)
{
#pragma HLS INTERFACE m_axi port=price bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=cost bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=selection bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=list_price
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    price_band(price, 0.9 * list_price, 1.1 * list_price, rows, selection);
words:
    for (uint32_t word = 0; word < flashmesh::bitmap_words(rows); ++word) {
        uint64_t covered = 0;
    rows:
        for (uint32_t bit = 0; bit < flashmesh::WORD_BITS; ++bit) {
#pragma HLS PIPELINE II=1
            const uint32_t row = word * flashmesh::WORD_BITS + bit;
            if (row < rows) {
                covered |= uint64_t{price[row] >= cost[row]} << bit;
            }
        }
        selection[word] &= covered;
    }
}
