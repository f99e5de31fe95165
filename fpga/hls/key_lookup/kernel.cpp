// The rows of a batch of keys, by the pages of a hash index.
//
// Minerva (section IV-C) walks the chains of a hash table in the store, and gains most from many
// lookups in one command; Willow (section 4.5) has the host compute the hashes. An index of
// flashmesh has no chains to walk: docs/flash-format.md, section 9, keeps entries sorted by hash,
// so what a chain would hold stands side by side, and may go on in the next page.
//
// Shapes: `pages` has page_count pages of a part of a `hash` index, in order; an entry is 12 bytes,
// hash (big-endian) and row number (little-endian). `hashes` has `keys` hashes in any order, as has
// every result. For key i: counts[i] entries have its hash (0: there is none), the first of them is
// entry positions[i] of all pages' entries, and names row rows[i], which is the lowest of its rows.
// Without one, position and row are NOT_FOUND. An entry proves a key of one word; of other keys the
// rows are candidates.
//
// `status` is 0; or 1 where a page is no page or does not hold plain entries (RAW of 12 bytes
// without NULLs, or one entry as a CONST), or there are more than MAX_PAGES pages: no key is looked
// for then, and no result written. Checksum and identity have been verified by whoever read the pages. Entries that are
// not sorted give some answer, and no access outside the pages.
//
// Intended, not measured: an initiation interval of 1 for pages read into the directory and for
// equal entries, 12 bytes each; a key takes two binary searches, of which each step is a read that
// depends on the one before.
#include <flashmesh/kernel.hpp>
#include <flashmesh/page.hpp>

namespace {

constexpr uint32_t MAX_PAGES = 1024;
constexpr uint32_t ENTRY_BYTES = 12;
constexpr uint32_t NOT_FOUND = 0xffffffff;

// For each page the hash of its last entry, and the entries of it and all pages before.
struct directory {
    uint64_t last[MAX_PAGES];
    uint32_t end[MAX_PAGES];
    uint32_t pages;
};

const uint8_t *page_at(const uint8_t *pages, uint32_t page)
{
    return pages + uint64_t{page} * flashmesh::PAGE_BYTES;
}

const uint8_t *entry_at(const uint8_t *page, uint32_t entry)
{
    return page + flashmesh::HEADER_BYTES + entry * ENTRY_BYTES;
}

uint64_t hash_of(const uint8_t *entry)
{
    uint64_t hash = 0;
bytes:
    for (uint32_t byte = 0; byte < 8; ++byte) {
#pragma HLS UNROLL
        hash = hash << 8 | entry[byte];
    }
    return hash;
}

uint32_t row_of(const uint8_t *entry)
{
    return flashmesh::load_u32(entry + 8);
}

// Entries of a page; 0 of one that can't be read here.
uint32_t count_entries(const uint8_t *page)
{
    const flashmesh::page_header header = flashmesh::parse_header(page);
    const bool is_raw =
        header.encoding == flashmesh::ENCODING_RAW && header.reference == ENTRY_BYTES;
    // An entry alone in its chunk is stored as a constant: its bytes lie where a plain one's do.
    const bool is_alone = header.encoding == flashmesh::ENCODING_CONST && header.width != 0 &&
                          header.row_count == 1;
    const bool is_plain =
        flashmesh::is_bounded(header) && (is_raw || is_alone) && header.null_count == 0 &&
        !flashmesh::has_flag(header, flashmesh::FLAG_HAS_VALIDITY) &&
        !flashmesh::has_flag(header, flashmesh::FLAG_AUXILIARY) &&
        !flashmesh::has_flag(header, flashmesh::FLAG_CONTINUES) &&
        header.row_count * ENTRY_BYTES == header.payload_bytes;
    return is_plain ? header.row_count : 0;
}

bool open(const uint8_t *pages, uint32_t page_count, directory &out)
{
    if (page_count > MAX_PAGES) {
        return false;
    }
    out.pages = page_count;
    uint32_t end = 0;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const uint32_t entries = count_entries(page_at(pages, page));
        if (entries == 0) {
            return false;
        }
        end += entries;
        out.end[page] = end;
        out.last[page] = hash_of(entry_at(page_at(pages, page), entries - 1));
    }
    return true;
}

uint32_t first_entry(const directory &index, uint32_t page)
{
    return page == 0 ? 0 : index.end[page - 1];
}

// The first page whose last hash is not below `hash`.
uint32_t find_page(const directory &index, uint64_t hash)
{
    uint32_t low = 0;
    uint32_t high = index.pages;
search:
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (index.last[middle] < hash) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// The first entry of a page whose hash is not below `hash`.
uint32_t find_entry(const uint8_t *page, uint32_t entries, uint64_t hash)
{
    uint32_t low = 0;
    uint32_t high = entries;
search:
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (hash_of(entry_at(page, middle)) < hash) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

} // namespace

FLASHMESH_KERNEL void key_lookup(const uint8_t *pages, uint32_t page_count, const uint64_t *hashes,
                                 uint32_t keys, uint32_t *counts, uint32_t *positions,
                                 uint32_t *rows, uint32_t *status)
{
#pragma HLS INTERFACE m_axi port=pages bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=hashes bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=counts bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=positions bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=rows bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=status bundle=gmem2 offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=keys
#pragma HLS INTERFACE s_axilite port=return
    directory index;
    if (!open(pages, page_count, index)) {
        *status = 1;
        return;
    }
    *status = 0;
keys:
    for (uint32_t key = 0; key < keys; ++key) {
        const uint64_t hash = hashes[key];
        uint32_t page = find_page(index, hash);
        uint32_t entry = 0;
        uint32_t entries = 0;
        if (page < index.pages) {
            entries = index.end[page] - first_entry(index, page);
            entry = find_entry(page_at(pages, page), entries, hash);
        }
        uint32_t count = 0;
        uint32_t position = NOT_FOUND;
        uint32_t row = NOT_FOUND;
    equal:
        while (page < index.pages) {
#pragma HLS PIPELINE II=1
            if (entry == entries) {
                ++page;
                entry = 0;
                entries = page < index.pages ? index.end[page] - index.end[page - 1] : 0;
                continue;
            }
            const uint8_t *bytes = entry_at(page_at(pages, page), entry);
            if (hash_of(bytes) != hash) {
                break;
            }
            if (count == 0) {
                position = first_entry(index, page) + entry;
                row = row_of(bytes);
            }
            ++count;
            ++entry;
        }
        counts[key] = count;
        positions[key] = position;
        rows[key] = row;
    }
}
