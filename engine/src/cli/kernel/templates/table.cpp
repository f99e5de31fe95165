#include <flashmesh/kernel.hpp>

// A row for each page: its first row within the segment, and how many it has. (Where these stand
// in a page's header, docs/flash-format.md says.)
FLASHMESH_KERNEL void NAME(const uint8_t *pages, uint32_t page_count, int64_t *first_row,
                           int64_t *row_count, uint32_t capacity, uint32_t *rows)
{
#pragma HLS INTERFACE m_axi port=pages bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=first_row bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=row_count bundle=gmem1 offset=slave
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
        const uint8_t *header = pages + page * flashmesh::PAGE_BYTES;
        first_row[page] = flashmesh::load_u16(header + 26);
        row_count[page] = flashmesh::load_u32(header + 32);
    }
}
