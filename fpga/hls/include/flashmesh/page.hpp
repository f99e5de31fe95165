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

// The fields as they are, of the eight words that a header is; nothing but the magic number and the
// version is looked at.
inline page_header parse_header(const uint64_t *words)
{
    constexpr uint32_t MAGIC = 'F' | 'M' << 8 | 'P' << 16 | 1 << 24;
    page_header header;
    header.is_page = static_cast<uint32_t>(words[0]) == MAGIC;
    header.encoding = static_cast<uint8_t>(words[1]);
    header.width = static_cast<uint8_t>(words[1] >> 8);
    header.flags = static_cast<uint16_t>(words[1] >> 16);
    header.payload_bytes = static_cast<uint16_t>(words[1] >> 48);
    header.first_row = static_cast<uint16_t>(words[3] >> 16);
    header.row_count = static_cast<uint32_t>(words[4]);
    header.null_count = static_cast<uint32_t>(words[4] >> 32);
    header.reference = static_cast<int64_t>(words[5]);
    return header;
}

// The same of a page's bytes.
inline page_header parse_header(const uint8_t *page)
{
    uint64_t words[HEADER_BYTES / 8];
words:
    for (uint32_t word = 0; word < HEADER_BYTES / 8; ++word) {
#pragma HLS UNROLL
        words[word] = load_u64(page + 8 * word);
    }
    return parse_header(words);
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
