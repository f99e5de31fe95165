// The values of a column's pages, as int64 and a validity bitmap.
//
// BlueDBM (section 3) puts in-store processors between the flash controller, which delivers
// whole pages, and the host. A page of flashmesh decodes alone, so that an engine there can. The
// format is that of docs/flash-format.md, sections 3 to 6.
//
// Shapes: `pages` has page_count pages of 8 KiB, `dictionary` dictionary_bytes / 8 values of the
// chunk's dictionary (int64, at most one page of them) or nothing; `values` has `capacity` values
// and `valid` as many bits. The rows of all pages follow each other without gaps. Values of rows
// that are NULL are 0, as are the bits of `valid` beyond the rows.
//
// | encoding | value |
// |---|---|
// | CONST of a number | the number |
// | CONST of 4 or 8 bytes, RAW of 4 or 8 bytes | the bytes; 4 of them are sign-extended |
// | FORBP | the number |
// | DICT | the dictionary's value; without a dictionary, the code |
//
// `rows` is the number of rows, and `status` 0. Where they are more than `capacity`, `rows` is that
// number all the same, and nothing else is written. A page that is not sound, or not of these
// encodings, makes `status` what is wrong with the first such page (a `problem` below); `rows` is 0
// then, and what is in `values` and `valid` means nothing. Checksum and identity of a page are not
// looked at: whoever read it from flash has verified them.
//
// Intended, not measured: a value per cycle, 8 bytes out, and in what its packed width asks for: w
// / 8 bytes per cycle, 8 at the most.
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/page.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::page_header;

enum problem : uint32_t {
    SOUND = 0,
    // No page, or counts that no page has.
    BAD_HEADER = 1,
    // An encoding that is not decoded here; an auxiliary page, or a part of a long value.
    NOT_DECODED = 2,
    // Regions that do not make the payload.
    BAD_REGIONS = 3,
    // A bitmap that does not have the NULLs that the header counts.
    BAD_VALIDITY = 4,
    // A code that the dictionary does not have, or a dictionary that no page holds.
    BAD_DICTIONARY = 5,
    // More rows than can be counted.
    TOO_MANY_ROWS = 6,
};

// A row of a block of packed numbers, and a page's unit of reading.
constexpr uint32_t BEAT_BYTES = 32;
constexpr uint32_t BEAT_WORDS = BEAT_BYTES / 8;
constexpr uint32_t BLOCK_VALUES = 256;
constexpr uint32_t MAX_ENTRIES = flashmesh::PAYLOAD_BYTES / 8;
constexpr uint32_t DEPTH = 16;
constexpr uint32_t SCALE_BYTES = 9;

struct beat {
    uint64_t words[BEAT_WORDS];
};

// Where the numbers of a page are, and what they stand for: value = reference + step * number, or
// the dictionary's entry of that.
struct layout {
    uint32_t rows;
    // Bytes of the page at which the packed numbers begin, and how many beats they take.
    uint32_t start;
    uint32_t beats;
    uint8_t width;
    bool is_code;
    // A number of 32 bits stands for a signed one.
    bool is_signed;
    bool has_validity;
    bool is_all_null;
    uint64_t reference;
    uint64_t step;
};

// The chunk's dictionary, on chip.
struct entries {
    int64_t values[MAX_ENTRIES];
    uint32_t count;
};

uint32_t packed_bytes(uint32_t rows, uint32_t width)
{
    return (rows + BLOCK_VALUES - 1) / BLOCK_VALUES * width * BEAT_BYTES;
}

// Whether the largest number of `width` bits, in steps, stays within 64 bits.
bool fits_scaled(uint32_t width, uint64_t step)
{
    if (step == 0 || width > 64) {
        return false;
    }
    const uint64_t largest = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
    return largest == 0 || step <= ~uint64_t{0} / largest;
}

// RAW: numbers of 32 or 64 bits lie one after the other, and so do packed ones of those widths.
problem plan_raw(const page_header &header, uint32_t data_bytes, layout &out)
{
    if (header.reference != 4 && header.reference != 8) {
        return NOT_DECODED;
    }
    const uint32_t size = static_cast<uint32_t>(header.reference);
    out.width = static_cast<uint8_t>(8 * size);
    out.is_signed = true;
    out.reference = 0;
    out.beats = (data_bytes + BEAT_BYTES - 1) / BEAT_BYTES;
    return header.row_count * size == data_bytes ? SOUND : BAD_REGIONS;
}

problem plan_packed(const page_header &header, const uint8_t *page, uint32_t data_bytes,
                    layout &out)
{
    uint32_t scale_bytes = 0;
    out.width = header.width;
    if (flashmesh::has_flag(header, flashmesh::FLAG_SCALED)) {
        scale_bytes = flashmesh::align_region(SCALE_BYTES);
        if (data_bytes < scale_bytes) {
            return BAD_REGIONS;
        }
        out.step = flashmesh::load_u64(page + out.start);
        out.width = page[out.start + 8];
        out.start += scale_bytes;
        if (!fits_scaled(out.width, out.step)) {
            return BAD_REGIONS;
        }
    }
    if (header.width > 64) {
        return BAD_REGIONS;
    }
    const uint32_t bytes = packed_bytes(header.row_count, out.width);
    out.beats = bytes / BEAT_BYTES;
    out.is_code = header.encoding == flashmesh::ENCODING_DICT;
    return scale_bytes + bytes == data_bytes ? SOUND : BAD_REGIONS;
}

problem plan_constant(const page_header &header, const uint8_t *page, uint32_t data_bytes,
                      layout &out)
{
    out.width = 0;
    out.beats = 0;
    if (header.width == 0 || out.is_all_null) {
        return SOUND;
    }
    if (data_bytes != 4 && data_bytes != 8) {
        return NOT_DECODED;
    }
    const uint64_t bits = flashmesh::load_bytes(page + out.start, data_bytes);
    out.reference = data_bytes == 8
                        ? bits
                        : static_cast<uint64_t>(
                              int64_t{static_cast<int32_t>(static_cast<uint32_t>(bits))});
    return SOUND;
}

// NULLs among the rows of a bitmap.
uint32_t count_nulls(const uint8_t *bitmap, uint32_t rows)
{
    uint32_t nulls = 0;
bytes:
    for (uint32_t row = 0; row < rows; row += 8) {
#pragma HLS PIPELINE II=1
        const uint32_t left = rows - row;
        const uint32_t mask = left >= 8 ? 0xff : (1U << left) - 1;
        nulls += static_cast<uint32_t>(__builtin_popcount(~uint32_t{bitmap[row / 8]} & mask));
    }
    return nulls;
}

// Checks a page, so that what follows `out` stays within it.
problem plan(const uint8_t *page, layout &out)
{
    const page_header header = flashmesh::parse_header(page);
    if (!flashmesh::is_bounded(header)) {
        return BAD_HEADER;
    }
    if (header.row_count == 0 || flashmesh::has_flag(header, flashmesh::FLAG_AUXILIARY) ||
        flashmesh::has_flag(header, flashmesh::FLAG_CONTINUES)) {
        return NOT_DECODED;
    }
    out = {header.row_count, flashmesh::HEADER_BYTES, 0, 0, false, false,
           flashmesh::has_flag(header, flashmesh::FLAG_HAS_VALIDITY), false,
           static_cast<uint64_t>(header.reference), 1};
    uint32_t data_bytes = header.payload_bytes;
    if (out.has_validity) {
        const uint32_t bytes = flashmesh::align_region((header.row_count + 7) / 8);
        if (bytes > data_bytes) {
            return BAD_REGIONS;
        }
        if (count_nulls(page + out.start, header.row_count) != header.null_count) {
            return BAD_VALIDITY;
        }
        out.start += bytes;
        data_bytes -= bytes;
    } else if (header.null_count != 0) {
        if (header.null_count != header.row_count) {
            return BAD_VALIDITY;
        }
        out.is_all_null = true;
    }
    switch (header.encoding) {
    case flashmesh::ENCODING_CONST:
        return plan_constant(header, page, data_bytes, out);
    case flashmesh::ENCODING_RAW:
        return plan_raw(header, data_bytes, out);
    case flashmesh::ENCODING_FORBP:
    case flashmesh::ENCODING_DICT:
        return plan_packed(header, page, data_bytes, out);
    default:
        return header.encoding == 0 || header.encoding > flashmesh::ENCODING_RLE ? BAD_HEADER
                                                                                 : NOT_DECODED;
    }
}

// One process reads the page, as a memory port has one reader. Block by block: were it all of the
// validity first, its FIFO would be full before the first number came.
void read_page(const uint8_t *page, const layout &where,
               flashmesh::stream<uint64_t, DEPTH> &validity,
               flashmesh::stream<beat, DEPTH> &packed)
{
    const uint32_t words = where.has_validity ? flashmesh::bitmap_words(where.rows) : 0;
    uint32_t word = 0;
    uint32_t at = 0;
blocks:
    for (uint32_t row = 0; row < where.rows; row += BLOCK_VALUES) {
    validity:
        for (uint32_t i = 0; i < BLOCK_VALUES / flashmesh::WORD_BITS && word < words; ++i) {
#pragma HLS PIPELINE II=1
            validity.write(flashmesh::load_u64(page + flashmesh::HEADER_BYTES + 8 * word));
            ++word;
        }
    beats:
        // A block has as many beats as a number has bits; the last one of RAW has fewer.
        for (uint32_t i = 0; i < where.width && at < where.beats; ++i) {
#pragma HLS PIPELINE II=1
            beat next;
        words:
            for (uint32_t part = 0; part < BEAT_WORDS; ++part) {
#pragma HLS UNROLL
                next.words[part] =
                    flashmesh::load_u64(page + where.start + BEAT_BYTES * at + 8 * part);
            }
            packed.write(next);
            ++at;
        }
    }
}

// A lane's word: 32 bits of up to 32-bit numbers, else 64.
uint64_t lane_word(const beat &row, uint32_t lane, bool is_wide)
{
    if (is_wide) {
        return row.words[lane];
    }
    return (row.words[lane / 2] >> (32 * (lane % 2))) & 0xffffffff;
}

// Section 5 of the format. A lane's numbers follow each other through the words of the beats, so
// two beats are all that a number can be in.
void unpack(const layout &where, flashmesh::stream<beat, DEPTH> &packed,
            flashmesh::stream<uint64_t, DEPTH> &numbers)
{
    const uint32_t width = where.width;
    const bool is_wide = width > 32;
    const uint32_t lanes = is_wide ? 4 : 8;
    const uint32_t word_bits = is_wide ? 64 : 32;
    const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
    // Beats of the block that were read; beat i is in window[i % 2].
    uint32_t filled = 0;
    uint32_t taken = 0;
    beat window[2] = {};
#pragma HLS ARRAY_PARTITION variable=window complete dim=0
rows:
    for (uint32_t row = 0; row < where.rows; ++row) {
#pragma HLS PIPELINE II=1
        const uint32_t place = row % BLOCK_VALUES;
        if (place == 0) {
            filled = 0;
        }
        const uint32_t lane = place % lanes;
        const flashmesh::bits<12> bit = place / lanes * width;
        const uint32_t word = static_cast<uint32_t>(bit) / word_bits;
        const uint32_t shift = static_cast<uint32_t>(bit) % word_bits;
        const bool straddles = shift + width > word_bits;
        if (width != 0 && filled < word + (straddles ? 2 : 1)) {
            window[filled % 2] = packed.read();
            ++filled;
            ++taken;
        }
        uint64_t number = lane_word(window[word % 2], lane, is_wide) >> shift;
        if (straddles) {
            number |= lane_word(window[(word + 1) % 2], lane, is_wide) << (word_bits - shift);
        }
        numbers.write(number & mask);
    }
rest:
    // The last block is padded.
    while (taken < where.beats) {
#pragma HLS PIPELINE II=1
        packed.read();
        ++taken;
    }
}

// Makes values of numbers, and puts them behind the rows of the pages before.
void write_values(const layout &where, const entries &dictionary, uint32_t first_row,
                  flashmesh::stream<uint64_t, DEPTH> &numbers,
                  flashmesh::stream<uint64_t, DEPTH> &validity, int64_t *values, uint64_t *valid,
                  bool &is_sound)
{
    const bool is_mapped = where.is_code && dictionary.count != 0;
    uint64_t page_word = where.is_all_null ? 0 : ~uint64_t{0};
    // Bits of a word that the page before has begun are kept.
    const uint32_t begun = first_row % flashmesh::WORD_BITS;
    uint64_t word = begun == 0 ? 0 : valid[first_row / flashmesh::WORD_BITS];
    is_sound = true;
rows:
    for (uint32_t row = 0; row < where.rows; ++row) {
#pragma HLS PIPELINE II=1
        if (where.has_validity && row % flashmesh::WORD_BITS == 0) {
            page_word = validity.read();
        }
        const bool is_valid = ((page_word >> (row % flashmesh::WORD_BITS)) & 1) != 0;
        uint64_t number = numbers.read();
        if (where.is_signed && where.width == 32) {
            number = static_cast<uint64_t>(
                int64_t{static_cast<int32_t>(static_cast<uint32_t>(number))});
        }
        number = where.reference + where.step * number;
        if (is_mapped && is_valid) {
            // A negative code is a large one here.
            const bool is_entry = number < dictionary.count;
            is_sound = is_sound && is_entry;
            number = static_cast<uint64_t>(dictionary.values[is_entry ? number : 0]);
        }
        const uint32_t target = first_row + row;
        values[target] = is_valid ? static_cast<int64_t>(number) : 0;
        word |= uint64_t{is_valid} << (target % flashmesh::WORD_BITS);
        if (target % flashmesh::WORD_BITS == flashmesh::WORD_BITS - 1 || row + 1 == where.rows) {
            valid[target / flashmesh::WORD_BITS] = word;
            word = 0;
        }
    }
}

void decode_page(const uint8_t *page, const layout &where, const entries &dictionary,
                 uint32_t first_row, int64_t *values, uint64_t *valid, bool &is_sound)
{
    FLASHMESH_STREAM(uint64_t, validity, DEPTH);
    FLASHMESH_STREAM(beat, packed, DEPTH);
    FLASHMESH_STREAM(uint64_t, numbers, DEPTH);
    FLASHMESH_DATAFLOW("page_decode");
    FLASHMESH_STAGE(read_page, page, where, validity, packed);
    FLASHMESH_STAGE(unpack, where, packed, numbers);
    FLASHMESH_STAGE(write_values, where, dictionary, first_row, numbers, validity, values, valid,
                    is_sound);
}

problem load_dictionary(const uint8_t *dictionary, uint32_t dictionary_bytes, entries &out)
{
    out.count = dictionary_bytes / 8;
    if (dictionary_bytes % 8 != 0 || out.count > MAX_ENTRIES) {
        return BAD_DICTIONARY;
    }
entries:
    for (uint32_t entry = 0; entry < out.count; ++entry) {
#pragma HLS PIPELINE II=1
        out.values[entry] = static_cast<int64_t>(flashmesh::load_u64(dictionary + 8 * entry));
    }
    return SOUND;
}

// Checks all pages before the first is decoded: `total` is their rows.
problem check(const uint8_t *pages, uint32_t page_count, uint32_t &total)
{
    total = 0;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        layout where;
        const problem found = plan(pages + uint64_t{page} * flashmesh::PAGE_BYTES, where);
        if (found != SOUND) {
            return found;
        }
        if (total > 0xffffffff - where.rows) {
            return TOO_MANY_ROWS;
        }
        total += where.rows;
    }
    return SOUND;
}

} // namespace

FLASHMESH_KERNEL void page_decode(const uint8_t *pages, uint32_t page_count,
                                  const uint8_t *dictionary, uint32_t dictionary_bytes,
                                  uint32_t capacity, int64_t *values, uint64_t *valid,
                                  uint32_t *rows, uint32_t *status)
{
#pragma HLS INTERFACE m_axi port=pages bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=dictionary bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=values bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=valid bundle=gmem3 offset=slave
#pragma HLS INTERFACE m_axi port=rows bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=status bundle=gmem1 offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=dictionary_bytes
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=return
    entries known;
    uint32_t total = 0;
    problem found = load_dictionary(dictionary, dictionary_bytes, known);
    if (found == SOUND) {
        found = check(pages, page_count, total);
    }
    if (found == SOUND && total <= capacity) {
        uint32_t first_row = 0;
    pages:
        for (uint32_t page = 0; page < page_count && found == SOUND; ++page) {
            const uint8_t *bytes = pages + uint64_t{page} * flashmesh::PAGE_BYTES;
            layout where;
            plan(bytes, where);
            bool is_sound = true;
            decode_page(bytes, where, known, first_row, values, valid, is_sound);
            found = is_sound ? SOUND : BAD_DICTIONARY;
            first_row += where.rows;
        }
    }
    *rows = found == SOUND ? total : 0;
    *status = found;
}
