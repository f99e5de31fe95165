// The header of a page on flash; docs/flash-format.md, section 3, gives the bytes.
//
// A kernel that is given pages needs no more than this to find its way; what a page's regions
// hold, section 6 says.
#ifndef FLASHMESH_PAGE_HPP
#define FLASHMESH_PAGE_HPP

#include <flashmesh/kernel.hpp>

namespace flashmesh {

constexpr uint32_t HEADER_BYTES = 64;
constexpr uint32_t PAYLOAD_BYTES = PAGE_BYTES - HEADER_BYTES;
// Regions of the payload begin at multiples of this.
constexpr uint32_t REGION_BYTES = 64;
constexpr uint32_t SEGMENT_ROWS = 65536;

enum encoding : uint8_t {
    ENCODING_CONST = 1,
    ENCODING_RAW = 2,
    ENCODING_FORBP = 3,
    ENCODING_DICT = 4,
    ENCODING_FSST = 5,
    ENCODING_RAWSTR = 6,
    ENCODING_RLE = 7,
};

enum page_flag : uint16_t {
    FLAG_HAS_VALIDITY = 1,
    FLAG_AUXILIARY = 2,
    FLAG_CONTINUES = 4,
    FLAG_SCALED = 8,
};

struct page_header {
    bool is_page;
    uint8_t encoding;
    uint8_t width;
    uint16_t flags;
    uint16_t payload_bytes;
    uint16_t first_row;
    uint32_t row_count;
    uint32_t null_count;
    int64_t reference;
};

// The fields as they are; nothing but the magic number and the version is looked at.
inline page_header parse_header(const uint8_t *page)
{
    page_header header;
    header.is_page = page[0] == 'F' && page[1] == 'M' && page[2] == 'P' && page[3] == 1;
    header.encoding = page[8];
    header.width = page[9];
    header.flags = load_u16(page + 10);
    header.payload_bytes = load_u16(page + 14);
    header.first_row = load_u16(page + 26);
    header.row_count = load_u32(page + 32);
    header.null_count = load_u32(page + 36);
    header.reference = static_cast<int64_t>(load_u64(page + 40));
    return header;
}

inline bool has_flag(const page_header &header, page_flag flag)
{
    return (header.flags & flag) != 0;
}

// Whether counts and lengths are within what a page and a segment hold: what must be known before
// anything else of the page is read.
inline bool is_bounded(const page_header &header)
{
    return header.is_page && header.payload_bytes <= PAYLOAD_BYTES &&
           header.row_count <= SEGMENT_ROWS && header.null_count <= header.row_count &&
           header.first_row + header.row_count <= SEGMENT_ROWS;
}

// `bytes` rounded up to a whole number of regions' alignment.
inline uint32_t align_region(uint32_t bytes)
{
    return (bytes + REGION_BYTES - 1) / REGION_BYTES * REGION_BYTES;
}

} // namespace flashmesh

#endif
