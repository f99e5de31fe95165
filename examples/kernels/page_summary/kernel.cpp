// A row for each page of a column: what its header says of its rows and of how they are packed.
//
// The numbers are those of docs/flash-format.md, section 3: `encoding` 1 CONST, 2 RAW, 3 FORBP, 4
// DICT, 5 FSST, 6 RAWSTR, 7 RLE; `width` in bits. Auxiliary pages (dictionaries) have a row too.
//
// Intended, not measured: a page every 64 cycles, one for each byte of its header.
#include <flashmesh/kernel.hpp>
#include <flashmesh/page.hpp>

FLASHMESH_KERNEL void page_summary(const uint8_t *pages, uint32_t page_count, int32_t *first_row,
                                   int32_t *row_count, int16_t *encoding, int16_t *width,
                                   uint32_t capacity, uint32_t *rows)
{
#pragma HLS INTERFACE m_axi port=pages bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=first_row bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=row_count bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=encoding bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=width bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=rows bundle=gmem1 offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=return
    *rows = page_count;
    if (page_count > capacity) {
        return;
    }
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const flashmesh::page_header header =
            flashmesh::parse_header(pages + uint64_t{page} * flashmesh::PAGE_BYTES);
        first_row[page] = header.first_row;
        row_count[page] = static_cast<int32_t>(header.row_count);
        encoding[page] = header.encoding;
        width[page] = header.width;
    }
}
