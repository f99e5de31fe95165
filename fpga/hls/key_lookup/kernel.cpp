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
// for then, and no result written. Checksum and identity have been verified by whoever read the
// pages. Entries that are not sorted give some answer, and no access outside the pages.
//
// First the last hash of every page goes into a directory on chip, BATCH_PAGES pages asked for at
// once. Then stages run at once: hashes are read ▸ pages are found in the directory ▸ entries are
// probed ▸ results are written. A probe is a read that decides which one is next, so SLOTS keys are
// looked for in turn: each asks for its next entry and waits until the others have had theirs, and a
// key that has ended makes room for another. Results come in the order in which searches end.
//
// Intended, not measured: a probe in two cycles (an entry is in one beat or two), and a key in twice
// as many as its binary searches have steps: one for the first entry of its hash, and where there
// is one, another for the end, which is the next entry mostly.
#include <flashmesh/beat.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/page.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::beat;
using flashmesh::BEAT_BYTES;
using flashmesh::PAGE_BEATS;

constexpr uint32_t MAX_PAGES = 1024;
constexpr uint32_t ENTRY_BYTES = 12;
constexpr uint32_t NOT_FOUND = 0xffffffff;
constexpr uint32_t BATCH_PAGES = 32;
// Keys that are looked for at once, each with a read under way.
constexpr uint32_t SLOTS = 32;
static_assert(BATCH_PAGES <= flashmesh::MAX_REQUESTS && SLOTS <= flashmesh::MAX_REQUESTS,
              "a port takes so many");
constexpr uint32_t DEPTH = 16;

// For each page the hash of its last entry, and the entries of it and all pages before.
struct directory {
    uint64_t last[MAX_PAGES];
    uint32_t end[MAX_PAGES];
    uint32_t pages;
};

struct entry {
    uint64_t hash;
    uint32_t row;
};

// A page of the index, and which of all entries are in it.
struct page_entries {
    uint32_t page;
    uint32_t first;
    uint32_t count;
};

// A key, and the pages in which its entries begin and end.
struct wanted {
    uint64_t hash;
    page_entries begin;
    page_entries end;
};

struct result {
    uint32_t key;
    uint32_t count;
    uint32_t position;
    uint32_t row;
};

enum class phase : uint8_t { idle, find_first, look, find_end, ended };

// A key that is looked for: entries low .. high of a page may be what it looks for.
struct search {
    phase now;
    uint32_t page;
    uint32_t low;
    uint32_t high;
    uint32_t probe;
    wanted what;
    result found;
};

uint64_t beat_of(uint32_t page, uint32_t at)
{
    return uint64_t{page} * PAGE_BEATS + (flashmesh::HEADER_BYTES + at * ENTRY_BYTES) / BEAT_BYTES;
}

uint32_t offset_of(uint32_t at)
{
    return (flashmesh::HEADER_BYTES + at * ENTRY_BYTES) % BEAT_BYTES;
}

bool straddles(uint32_t at)
{
    return offset_of(at) + ENTRY_BYTES > BEAT_BYTES;
}

void ask(flashmesh::wide_port pages, uint32_t page, uint32_t at)
{
    flashmesh::request(pages, beat_of(page, at), straddles(at) ? 2 : 1);
}

// Entry `at` of a page that was asked for.
entry take(flashmesh::wide_port pages, uint64_t array_bytes, uint32_t page, uint32_t at)
{
    const beat low = flashmesh::load(pages, beat_of(page, at), array_bytes);
    beat high = {};
    if (straddles(at)) {
        high = flashmesh::load(pages, beat_of(page, at) + 1, array_bytes);
    }
    const beat bytes = flashmesh::extract(low, high, offset_of(at), ENTRY_BYTES);
    return {__builtin_bswap64(bytes.words[0]), static_cast<uint32_t>(bytes.words[1])};
}

// Entries of a page; 0 of one that can't be read here.
uint32_t count_entries(const flashmesh::page_header &header)
{
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

bool open(flashmesh::wide_port pages, uint32_t page_count, directory &out)
{
    if (page_count > MAX_PAGES) {
        return false;
    }
    const uint64_t array_bytes = uint64_t{page_count} * flashmesh::PAGE_BYTES;
    out.pages = page_count;
    uint32_t end = 0;
batches:
    for (uint32_t start = 0; start < page_count; start += BATCH_PAGES) {
        const uint32_t left = page_count - start;
        const uint32_t batch = left < BATCH_PAGES ? left : BATCH_PAGES;
    ask_headers:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            flashmesh::request(pages, uint64_t{start + i} * PAGE_BEATS, 1);
        }
        uint32_t counts[BATCH_PAGES];
        bool is_sound = true;
    headers:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            const beat header =
                flashmesh::load(pages, uint64_t{start + i} * PAGE_BEATS, array_bytes);
            counts[i] = count_entries(flashmesh::parse_header(header.words));
            is_sound = is_sound && counts[i] != 0;
            end += counts[i];
            out.end[start + i] = end;
        }
        if (!is_sound) {
            return false;
        }
    ask_last:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            ask(pages, start + i, counts[i] - 1);
        }
    last:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=2
            out.last[start + i] = take(pages, array_bytes, start + i, counts[i] - 1).hash;
        }
    }
    return true;
}

// The page as the directory has it; behind the last one, an empty page.
page_entries entries_of(const directory &index, uint32_t page)
{
    const uint32_t first = page == 0 ? 0 : index.end[page - 1];
    return {page, first, page < index.pages ? index.end[page] - first : 0};
}

// The first page whose last hash is not below `hash`, or above it.
uint32_t find_page(const directory &index, uint64_t hash, bool is_above)
{
    uint32_t low = 0;
    uint32_t high = index.pages;
search:
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const uint64_t last = index.last[middle];
        if (last < hash || (is_above && last == hash)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void read_hashes(const uint64_t *hashes, uint32_t keys, flashmesh::stream<uint64_t, DEPTH> &out)
{
keys:
    for (uint32_t key = 0; key < keys; ++key) {
#pragma HLS PIPELINE II=1
        out.write(hashes[key]);
    }
}

void find_pages(const directory &index, uint32_t keys, flashmesh::stream<uint64_t, DEPTH> &hashes,
                flashmesh::stream<wanted, DEPTH> &out)
{
keys:
    for (uint32_t key = 0; key < keys; ++key) {
        const uint64_t hash = hashes.read();
        out.write({hash, entries_of(index, find_page(index, hash, false)),
                   entries_of(index, find_page(index, hash, true))});
    }
}

search begin(const wanted &what, uint32_t key)
{
    search out = {};
    out.what = what;
    out.found = {key, 0, NOT_FOUND, NOT_FOUND};
    out.page = what.begin.page;
    out.high = what.begin.count;
    out.probe = out.high / 2;
    out.now = what.begin.count == 0 ? phase::ended : phase::find_first;
    return out;
}

// What a search becomes when none of its page's entries are left to choose from.
void turn(search &one)
{
    if (one.now == phase::find_first && one.low < one.what.begin.count) {
        one.now = phase::look;
        one.probe = one.low;
        return;
    }
    if (one.now == phase::find_end) {
        const uint32_t end = one.what.end.first + one.low;
        // Of entries that are not sorted, the one that was seen.
        one.found.count = end > one.found.position ? end - one.found.position : 1;
    }
    one.now = phase::ended;
}

// The next step of a search, after the entry that it has asked for.
void advance(search &one, entry seen)
{
    if (one.now == phase::look) {
        if (seen.hash != one.what.hash) {
            one.now = phase::ended;
            return;
        }
        one.found.position = one.what.begin.first + one.low;
        one.found.row = seen.row;
        one.now = phase::find_end;
        one.low = one.what.end.page == one.page ? one.low + 1 : 0;
        one.page = one.what.end.page;
        one.high = one.what.end.count;
        // The entry behind the first is the end mostly.
        one.probe = one.low;
    } else {
        const bool is_past = one.now == phase::find_first ? seen.hash >= one.what.hash
                                                          : seen.hash > one.what.hash;
        if (is_past) {
            one.high = one.probe;
        } else {
            one.low = one.probe + 1;
        }
        one.probe = one.low + (one.high - one.low) / 2;
    }
    if (one.low >= one.high) {
        turn(one);
    }
}

void probe(flashmesh::wide_port pages, uint32_t page_count, uint32_t keys,
           flashmesh::stream<wanted, DEPTH> &lookups, flashmesh::stream<result, DEPTH> &results)
{
    const uint64_t array_bytes = uint64_t{page_count} * flashmesh::PAGE_BYTES;
    search slots[SLOTS] = {};
    // A slot is visited again when all others have been.
#pragma HLS DEPENDENCE variable=slots inter true distance=32
    uint32_t begun = 0;
    uint32_t ended = 0;
visits:
    for (uint32_t slot = 0; ended < keys; slot = (slot + 1) % SLOTS) {
#pragma HLS PIPELINE II=2
        search one = slots[slot];
        if (one.now != phase::idle && one.now != phase::ended) {
            advance(one, take(pages, array_bytes, one.page, one.probe));
        }
        if (one.now == phase::ended) {
            results.write(one.found);
            one.now = phase::idle;
            ++ended;
        }
        if (one.now == phase::idle && begun < keys) {
            one = begin(lookups.read(), begun);
            ++begun;
        }
        if (one.now != phase::idle && one.now != phase::ended) {
            ask(pages, one.page, one.probe);
        }
        slots[slot] = one;
    }
}

void write_results(uint32_t keys, flashmesh::stream<result, DEPTH> &results, uint32_t *counts,
                   uint32_t *positions, uint32_t *rows)
{
keys:
    for (uint32_t i = 0; i < keys; ++i) {
#pragma HLS PIPELINE II=1
        const result next = results.read();
        counts[next.key] = next.count;
        positions[next.key] = next.position;
        rows[next.key] = next.row;
    }
}

void find(flashmesh::wide_port pages, const directory &index, const uint64_t *hashes, uint32_t keys,
          uint32_t *counts, uint32_t *positions, uint32_t *rows)
{
    FLASHMESH_STREAM(uint64_t, wanted_hashes, DEPTH);
    FLASHMESH_STREAM(wanted, lookups, DEPTH);
    FLASHMESH_STREAM(result, results, DEPTH);
    FLASHMESH_DATAFLOW("key_lookup");
    FLASHMESH_STAGE(read_hashes, hashes, keys, wanted_hashes);
    FLASHMESH_STAGE(find_pages, index, keys, wanted_hashes, lookups);
    FLASHMESH_STAGE(probe, pages, index.pages, keys, lookups, results);
    FLASHMESH_STAGE(write_results, keys, results, counts, positions, rows);
}

} // namespace

FLASHMESH_KERNEL void key_lookup(flashmesh::wide_port pages, uint32_t page_count,
                                 const uint64_t *hashes, uint32_t keys, uint32_t *counts,
                                 uint32_t *positions, uint32_t *rows, uint32_t *status)
{
#pragma HLS INTERFACE m_axi port=pages bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=2
#pragma HLS INTERFACE m_axi port=hashes bundle=hashes offset=slave num_read_outstanding=16
#pragma HLS INTERFACE m_axi port=counts bundle=counts offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=positions bundle=positions offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=rows bundle=rows offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=status bundle=counts offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=keys
#pragma HLS INTERFACE s_axilite port=return
    directory index;
    const bool is_open = open(pages, page_count, index);
    *status = is_open ? 0 : 1;
    if (is_open) {
        find(pages, index, hashes, keys, counts, positions, rows);
    }
}
