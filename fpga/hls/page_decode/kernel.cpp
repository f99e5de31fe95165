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
// | RLE | the number of the row's run |
//
// `rows` is the number of rows, and `status` 0. Where they are more than `capacity`, `rows` is that
// number all the same, and nothing else is written. A page that is not sound, or not of these
// encodings, makes `status` what is wrong with the first such page (a `problem` below); `rows` is 0
// then, and what is in `values` and `valid` means nothing. BAD_DICTIONARY and BAD_RUNS are found
// while pages are decoded, and so only where no page has another problem. Checksum and identity of a
// page are not looked at: whoever read it from flash has verified them.
//
// Headers and bitmaps of all pages are read first, BATCH_PAGES of them asked for at once. Then all
// pages go through stages that run at once, in beats of 64 bytes: pages are read ▸ their regions are
// told apart ▸ numbers are unpacked ▸ runs become rows ▸ numbers become values ▸ values of pages are
// put behind each other ▸ they are written.
//
// Intended, not measured: a beat of a page per cycle in, and 8 values per cycle out (4 of packed
// numbers above 32 bits). Eight numbers that follow each other lie at the same bits of the eight
// lanes, so one shift serves all of them; each lane looks up a copy of the dictionary of its own. Of
// runs, one that begins and 8 of its rows per cycle.
#include <flashmesh/beat.hpp>
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/page.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::beat;
using flashmesh::BEAT_BYTES;
using flashmesh::BEAT_WORDS;
using flashmesh::page_header;
using flashmesh::PAGE_BEATS;

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
    // Runs that do not follow each other to the page's last row.
    BAD_RUNS = 7,
};

// Rows that go through the stages together: their values are a beat, their validity is a byte.
constexpr uint32_t GROUP_ROWS = BEAT_WORDS;
// A row of a block of packed numbers: half a beat.
constexpr uint32_t PACKED_ROW_BYTES = 32;
constexpr uint32_t PACKED_ROW_WORDS = PACKED_ROW_BYTES / 8;
constexpr uint32_t BLOCK_VALUES = 256;
constexpr uint32_t MAX_ENTRIES = flashmesh::PAYLOAD_BYTES / 8;
constexpr uint32_t SCALE_BYTES = 9;
// The count of runs and each of their ends.
constexpr uint32_t END_BYTES = 2;
constexpr uint32_t BEAT_ENDS = BEAT_BYTES / END_BYTES;
constexpr uint32_t NO_PAGE = 0xffffffff;

constexpr uint32_t BATCH_PAGES = 32;
static_assert(BATCH_PAGES <= flashmesh::MAX_REQUESTS, "a batch is asked for at once");
// Pages that memory has been asked for: 256 beats, more than its latency in cycles.
constexpr uint32_t PAGES_AHEAD = 2;
constexpr uint32_t DEPTH = 16;
constexpr uint32_t LAYOUT_DEPTH = 4;

// What the stages pass on of a page, without what packets have.
struct line {
    uint64_t words[BEAT_WORDS];
};

// Where the regions of a page are, in beats behind the header, and what its numbers stand for:
// value = reference + step * number, or the dictionary's entry of that.
struct layout {
    uint32_t rows;
    uint32_t data_bytes;
    uint8_t validity_beats;
    uint8_t scale_beats;
    uint8_t runs_beats;
    uint8_t packed_beats;
    // Packed numbers: one for each row, or for each of so many runs.
    uint32_t numbers;
    uint32_t runs;
    uint8_t width;
    bool is_code;
    // A number of 32 bits stands for a signed one.
    bool is_signed;
    bool is_all_null;
    uint64_t reference;
    uint64_t step;
};

struct number_group {
    uint64_t numbers[GROUP_ROWS];
};

// Values of the first `count` rows of a group, 0 in the others.
struct value_group {
    uint64_t values[GROUP_ROWS];
    uint8_t valid;
    uint8_t count;
};

// The chunk's dictionary, on chip: a copy for each lane.
struct entries {
    uint64_t values[GROUP_ROWS][MAX_ENTRIES];
    uint32_t count;
};

uint32_t beats_of(uint32_t bytes)
{
    return (bytes + BEAT_BYTES - 1) / BEAT_BYTES;
}

uint32_t packed_bytes(uint32_t count, uint32_t width)
{
    return (count + BLOCK_VALUES - 1) / BLOCK_VALUES * width * PACKED_ROW_BYTES;
}

uint64_t sign_extend(uint64_t number)
{
    return static_cast<uint64_t>(int64_t{static_cast<int32_t>(static_cast<uint32_t>(number))});
}

line load_line(flashmesh::wide_port port, uint64_t index, uint64_t array_bytes)
{
#pragma HLS INLINE
    const beat next = flashmesh::load(port, index, array_bytes);
    line out;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = next.words[word];
    }
    return out;
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

// What the header alone says: the rows, and where the data begin.
problem plan_header(const page_header &header, layout &out)
{
    out = {};
    if (!flashmesh::is_bounded(header)) {
        return BAD_HEADER;
    }
    if (header.row_count == 0 || flashmesh::has_flag(header, flashmesh::FLAG_AUXILIARY) ||
        flashmesh::has_flag(header, flashmesh::FLAG_CONTINUES)) {
        return NOT_DECODED;
    }
    out.rows = header.row_count;
    out.data_bytes = header.payload_bytes;
    out.numbers = header.row_count;
    out.reference = static_cast<uint64_t>(header.reference);
    out.step = 1;
    if (flashmesh::has_flag(header, flashmesh::FLAG_HAS_VALIDITY)) {
        const uint32_t bytes = flashmesh::align_region((header.row_count + 7) / 8);
        if (bytes > out.data_bytes) {
            return BAD_REGIONS;
        }
        out.validity_beats = static_cast<uint8_t>(bytes / BEAT_BYTES);
        out.data_bytes -= bytes;
    } else if (header.null_count != 0) {
        if (header.null_count != header.row_count) {
            return BAD_VALIDITY;
        }
        out.is_all_null = true;
    }
    return SOUND;
}

// RAW: numbers of 32 or 64 bits lie one after the other, and so do packed ones of those widths.
problem plan_raw(const page_header &header, layout &out)
{
    if (header.reference != 4 && header.reference != 8) {
        return NOT_DECODED;
    }
    const uint32_t size = static_cast<uint32_t>(header.reference);
    out.width = static_cast<uint8_t>(8 * size);
    out.is_signed = true;
    out.reference = 0;
    out.packed_beats = static_cast<uint8_t>(beats_of(out.data_bytes));
    return out.rows * size == out.data_bytes ? SOUND : BAD_REGIONS;
}

// Packed numbers behind `before` bytes of other regions of the data.
problem plan_packed(uint32_t before, layout &out)
{
    if (out.width > 64) {
        return BAD_REGIONS;
    }
    const uint32_t bytes = packed_bytes(out.numbers, out.width);
    out.packed_beats = static_cast<uint8_t>(beats_of(bytes));
    return before + bytes == out.data_bytes ? SOUND : BAD_REGIONS;
}

problem plan_numbers(const page_header &header, const line &first, layout &out)
{
    out.width = header.width;
    out.is_code = header.encoding == flashmesh::ENCODING_DICT;
    if (!flashmesh::has_flag(header, flashmesh::FLAG_SCALED)) {
        return plan_packed(0, out);
    }
    const uint32_t scale_bytes = flashmesh::align_region(SCALE_BYTES);
    out.scale_beats = static_cast<uint8_t>(scale_bytes / BEAT_BYTES);
    out.step = first.words[0];
    out.width = static_cast<uint8_t>(first.words[1]);
    if (header.width > 64 || out.data_bytes < scale_bytes || !fits_scaled(out.width, out.step)) {
        return BAD_REGIONS;
    }
    return plan_packed(scale_bytes, out);
}

problem plan_runs(const page_header &header, const line &first, layout &out)
{
    if (out.is_all_null) {
        // Nor do the runs mean anything.
        return SOUND;
    }
    out.width = header.width;
    out.runs = static_cast<uint16_t>(first.words[0]);
    out.numbers = out.runs;
    const uint32_t bytes = flashmesh::align_region(END_BYTES * (1 + out.runs));
    if (out.runs == 0 || bytes > out.data_bytes) {
        return BAD_REGIONS;
    }
    out.runs_beats = static_cast<uint8_t>(bytes / BEAT_BYTES);
    return plan_packed(bytes, out);
}

problem plan_constant(const page_header &header, const line &first, layout &out)
{
    if (header.width == 0 || out.is_all_null) {
        return SOUND;
    }
    if (out.data_bytes != 4 && out.data_bytes != 8) {
        return NOT_DECODED;
    }
    out.reference = out.data_bytes == 8 ? first.words[0] : sign_extend(first.words[0]);
    return SOUND;
}

// The regions of the data, of which `first` is the first beat: whatever a page says, they stay
// within it. `out` is what `plan_header` has made of a sound header.
problem plan_data(const page_header &header, const line &first, layout &out)
{
    switch (header.encoding) {
    case flashmesh::ENCODING_CONST:
        return plan_constant(header, first, out);
    case flashmesh::ENCODING_RAW:
        return plan_raw(header, out);
    case flashmesh::ENCODING_FORBP:
    case flashmesh::ENCODING_DICT:
        return plan_numbers(header, first, out);
    case flashmesh::ENCODING_RLE:
        return plan_runs(header, first, out);
    default:
        return header.encoding == 0 || header.encoding > flashmesh::ENCODING_RLE ? BAD_HEADER
                                                                                 : NOT_DECODED;
    }
}

// NULLs among `rows` rows from the first bit of a bitmap's beat on.
uint32_t count_nulls(const line &bitmap, uint32_t rows)
{
#pragma HLS INLINE
    uint32_t nulls = 0;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        nulls += static_cast<uint32_t>(
            __builtin_popcountll(~bitmap.words[word] & flashmesh::row_mask(word, rows)));
    }
    return nulls;
}

uint64_t bytes_of_pages(uint32_t page_count)
{
    return uint64_t{page_count} * flashmesh::PAGE_BYTES;
}

// Checks all pages before the first is decoded, in batches, so that memory's latency is waited for
// twice in a batch: for the headers, and for what they say is there. `total` is the pages' rows.
problem check(flashmesh::wide_port pages, uint32_t page_count, uint32_t &total)
{
    const uint64_t array_bytes = bytes_of_pages(page_count);
    total = 0;
    problem found = SOUND;
batches:
    for (uint64_t start = 0; start < page_count && found == SOUND; start += BATCH_PAGES) {
        const uint64_t left = page_count - start;
        const uint32_t batch = left < BATCH_PAGES ? static_cast<uint32_t>(left) : BATCH_PAGES;
        page_header headers[BATCH_PAGES];
        layout plans[BATCH_PAGES];
    ask_headers:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            flashmesh::request(pages, (start + i) * PAGE_BEATS, 1);
        }
        // Pages before the first whose header is wrong.
        uint32_t sound = batch;
        problem behind = SOUND;
    headers:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            const line header = load_line(pages, (start + i) * PAGE_BEATS, array_bytes);
            headers[i] = flashmesh::parse_header(header.words);
            const problem problem_here = plan_header(headers[i], plans[i]);
            if (behind == SOUND && problem_here != SOUND) {
                behind = problem_here;
                sound = i;
            }
        }
        // The bitmap, and a beat of the data where there are any.
        const auto beats_to_read = [&plans](uint32_t i) {
            return uint32_t{plans[i].validity_beats} + (plans[i].data_bytes != 0 ? 1 : 0);
        };
    ask_bodies:
        for (uint32_t i = 0; i < sound; ++i) {
#pragma HLS PIPELINE II=1
            flashmesh::request(pages, (start + i) * PAGE_BEATS + 1, beats_to_read(i));
        }
    bodies:
        for (uint32_t i = 0; i < sound; ++i) {
            uint32_t nulls = 0;
            line first = {};
        beats:
            for (uint32_t at = 0; at < beats_to_read(i); ++at) {
#pragma HLS PIPELINE II=1
                const line next =
                    load_line(pages, (start + i) * PAGE_BEATS + 1 + at, array_bytes);
                if (at < plans[i].validity_beats) {
                    nulls += count_nulls(next, plans[i].rows - at * 8 * BEAT_BYTES);
                } else {
                    first = next;
                }
            }
            // What was asked for is taken, whatever has been found.
            if (found != SOUND) {
                continue;
            }
            if (plans[i].validity_beats != 0 && nulls != headers[i].null_count) {
                found = BAD_VALIDITY;
                continue;
            }
            found = plan_data(headers[i], first, plans[i]);
            if (found == SOUND && total > 0xffffffff - plans[i].rows) {
                found = TOO_MANY_ROWS;
            }
            total += plans[i].rows;
        }
        found = found == SOUND ? behind : found;
    }
    return found;
}

// One process reads the pages, as a memory port has one reader.
void read_pages(flashmesh::wide_port pages, uint32_t page_count,
                flashmesh::stream<line, DEPTH> &beats)
{
    const uint64_t array_bytes = bytes_of_pages(page_count);
    uint32_t requested = 0;
ahead:
    for (; requested < PAGES_AHEAD && requested < page_count; ++requested) {
#pragma HLS PIPELINE II=1
        flashmesh::request(pages, uint64_t{requested} * PAGE_BEATS, PAGE_BEATS);
    }
beats:
    for (uint64_t i = 0; i < uint64_t{page_count} * PAGE_BEATS; ++i) {
#pragma HLS PIPELINE II=1
        beats.write(load_line(pages, i, array_bytes));
        if (i % PAGE_BEATS == PAGE_BEATS - 1 && requested < page_count) {
            flashmesh::request(pages, uint64_t{requested} * PAGE_BEATS, PAGE_BEATS);
            ++requested;
        }
    }
}

// Tells the regions of pages apart. Bitmap and runs come before the numbers that they belong to:
// their streams hold as much of them as a page can have.
void route(uint32_t page_count, flashmesh::stream<line, DEPTH> &beats,
           flashmesh::stream<layout, LAYOUT_DEPTH> &unpack_plans,
           flashmesh::stream<layout, LAYOUT_DEPTH> &run_plans,
           flashmesh::stream<layout, LAYOUT_DEPTH> &value_plans,
           flashmesh::stream<line, PAGE_BEATS> &validity,
           flashmesh::stream<line, PAGE_BEATS> &runs, flashmesh::stream<line, DEPTH> &packed)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const line header_beat = beats.read();
        const page_header header = flashmesh::parse_header(header_beat.words);
        layout where;
        plan_header(header, where);
        uint32_t left = PAGE_BEATS - 1 - where.validity_beats;
    bitmap:
        for (uint32_t at = 0; at < where.validity_beats; ++at) {
#pragma HLS PIPELINE II=1
            validity.write(beats.read());
        }
        line next = {};
        if (left != 0) {
            next = beats.read();
        }
        plan_data(header, next, where);
        unpack_plans.write(where);
        run_plans.write(where);
        value_plans.write(where);
        const uint32_t runs_end = uint32_t{where.scale_beats} + where.runs_beats;
    data:
        for (uint32_t at = 0; left != 0; ++at) {
#pragma HLS PIPELINE II=1
            if (at >= where.scale_beats && at < runs_end) {
                runs.write(next);
            } else if (at >= runs_end && at < runs_end + where.packed_beats) {
                packed.write(next);
            }
            --left;
            if (left != 0) {
                next = beats.read();
            }
        }
    }
}

struct packed_row {
    uint64_t words[PACKED_ROW_WORDS];
};

packed_row half_of(const line &both, bool is_second)
{
#pragma HLS INLINE
    packed_row out;
words:
    for (uint32_t word = 0; word < PACKED_ROW_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = both.words[word + (is_second ? PACKED_ROW_WORDS : 0)];
    }
    return out;
}

// A lane's word: 32 bits of up to 32-bit numbers, else 64.
uint64_t lane_word(const packed_row &row, uint32_t lane, bool is_wide)
{
#pragma HLS INLINE
    if (is_wide) {
        return row.words[lane % PACKED_ROW_WORDS];
    }
    return (row.words[lane / 2] >> (32 * (lane % 2))) & 0xffffffff;
}

// Section 5 of the format. A lane's numbers follow each other through the words of the rows, so two
// rows are all that a number can be in, and a step takes one new row at the most.
void unpack(uint32_t page_count, flashmesh::stream<layout, LAYOUT_DEPTH> &plans,
            flashmesh::stream<line, DEPTH> &packed, flashmesh::stream<number_group, DEPTH> &groups)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        const uint32_t width = where.width;
        const bool is_wide = width > 32;
        // Wide numbers are four a step, so that a group takes two.
        const uint32_t lanes = is_wide ? 4 : 8;
        const uint32_t word_bits = is_wide ? 64 : 32;
        const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
        const uint32_t steps = (where.numbers + lanes - 1) / lanes;
        uint32_t taken = 0;
        line both = {};
        bool has_second = false;
        // Rows of the block that were read; row i is in window[i % 2].
        uint32_t filled = 0;
        packed_row window[2] = {};
#pragma HLS ARRAY_PARTITION variable=window complete dim=0
        number_group group = {};
    steps:
        for (uint32_t step = 0; step < steps; ++step) {
#pragma HLS PIPELINE II=1
            const uint32_t place = step % (BLOCK_VALUES / lanes);
            if (place == 0) {
                filled = 0;
            }
            const flashmesh::bits<12> bit = place * width;
            const uint32_t word = static_cast<uint32_t>(bit) / word_bits;
            const uint32_t shift = static_cast<uint32_t>(bit) % word_bits;
            const bool straddles = shift + width > word_bits;
            if (width != 0 && filled < word + (straddles ? 2 : 1)) {
                if (!has_second) {
                    both = packed.read();
                    ++taken;
                }
                window[filled % 2] = half_of(both, has_second);
                has_second = !has_second;
                ++filled;
            }
            const bool is_second_half = is_wide && step % 2 == 1;
        lanes:
            for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
                uint64_t number = lane_word(window[word % 2], lane, is_wide) >> shift;
                if (straddles) {
                    const uint64_t above = lane_word(window[(word + 1) % 2], lane, is_wide);
                    number |= above << (word_bits - shift);
                }
                if (!is_wide || lane / PACKED_ROW_WORDS == (is_second_half ? 1U : 0U)) {
                    group.numbers[lane] = number & mask;
                }
            }
            if (!is_wide || is_second_half || step + 1 == steps) {
                groups.write(group);
            }
        }
    rest:
        // The last block is padded.
        while (taken < where.packed_beats) {
#pragma HLS PIPELINE II=1
            packed.read();
            ++taken;
        }
    }
}

// Makes the rows' numbers of those of runs. Of a page whose runs are wrong it makes as many rows as
// the header says all the same. `bad_page` is the first such page.
void expand_runs(uint32_t page_count, flashmesh::stream<layout, LAYOUT_DEPTH> &plans,
                 flashmesh::stream<number_group, DEPTH> &packed,
                 flashmesh::stream<line, PAGE_BEATS> &runs,
                 flashmesh::stream<number_group, DEPTH> &groups, uint32_t &bad_page)
{
    bad_page = NO_PAGE;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        if (where.runs == 0) {
        rows:
            for (uint32_t row = 0; row < where.rows; row += GROUP_ROWS) {
#pragma HLS PIPELINE II=1
                groups.write(packed.read());
            }
            continue;
        }
        bool is_sound = true;
        bool is_begun = false;
        uint32_t run = 0;
        uint32_t row = 0;
        // The row behind the run's last.
        uint32_t end = 0;
        uint32_t filled = 0;
        line ends = {};
        number_group numbers = {};
        number_group group = {};
    steps:
        while (run < where.runs) {
#pragma HLS PIPELINE II=1
            if (!is_begun) {
                if (run % GROUP_ROWS == 0) {
                    numbers = packed.read();
                }
                // The first end stands behind the count.
                const uint32_t place = (run + 1) % BEAT_ENDS;
                if (run == 0 || place == 0) {
                    ends = runs.read();
                }
                end = static_cast<uint16_t>(ends.words[place / 4] >> (16 * (place % 4))) + 1U;
                const bool is_last = run + 1 == where.runs;
                is_sound = is_sound && end > row && (!is_last || end == where.rows);
                end = is_last || end > where.rows ? where.rows : end < row ? row : end;
            }
            const uint32_t room = GROUP_ROWS - filled;
            const uint32_t taken = end - row < room ? end - row : room;
        lanes:
            for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
                if (lane >= filled && lane < filled + taken) {
                    group.numbers[lane] = numbers.numbers[run % GROUP_ROWS];
                }
            }
            row += taken;
            filled += taken;
            if (filled == GROUP_ROWS || (row == where.rows && filled != 0)) {
                groups.write(group);
                filled = 0;
            }
            is_begun = row < end;
            run += is_begun ? 0 : 1;
        }
        if (!is_sound && bad_page == NO_PAGE) {
            bad_page = page;
        }
    }
}

// Makes values of numbers. `bad_page` is the first with a code that the dictionary does not have.
void make_values(uint32_t page_count, const entries &dictionary,
                 flashmesh::stream<layout, LAYOUT_DEPTH> &plans,
                 flashmesh::stream<number_group, DEPTH> &groups,
                 flashmesh::stream<line, PAGE_BEATS> &validity,
                 flashmesh::stream<value_group, DEPTH> &values, uint32_t &bad_page)
{
    bad_page = NO_PAGE;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        const bool is_mapped = where.is_code && dictionary.count != 0;
        bool is_sound = true;
        line bits = {};
    groups:
        for (uint32_t row = 0; row < where.rows; row += GROUP_ROWS) {
#pragma HLS PIPELINE II=1
            const uint32_t bit = row % (8 * BEAT_BYTES);
            if (where.validity_beats != 0 && bit == 0) {
                bits = validity.read();
            }
            uint32_t valid = where.is_all_null ? 0 : 0xff;
            if (where.validity_beats != 0) {
                valid = static_cast<uint8_t>(bits.words[bit / 64] >> (bit % 64));
            }
            const uint32_t left = where.rows - row;
            const uint32_t count = left < GROUP_ROWS ? left : GROUP_ROWS;
            valid &= (1U << count) - 1;
            const number_group group = groups.read();
            value_group out;
        lanes:
            for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
                const bool is_valid = (valid >> lane & 1) != 0;
                uint64_t number = group.numbers[lane];
                if (where.is_signed && where.width == 32) {
                    number = sign_extend(number);
                }
                number = where.reference + where.step * number;
                if (is_mapped && is_valid) {
                    // A negative code is a large one here.
                    const bool is_entry = number < dictionary.count;
                    is_sound = is_sound && is_entry;
                    number = dictionary.values[lane][is_entry ? number : 0];
                }
                out.values[lane] = is_valid ? number : 0;
            }
            out.valid = static_cast<uint8_t>(valid);
            out.count = static_cast<uint8_t>(count);
            values.write(out);
        }
        if (!is_sound && bad_page == NO_PAGE) {
            bad_page = page;
        }
    }
}

// Puts the rows of pages behind each other: only the last group of a page has fewer than eight rows,
// and the next page's go on where it ends.
void append(uint32_t total, flashmesh::stream<value_group, DEPTH> &groups,
            flashmesh::stream<line, DEPTH> &values, flashmesh::stream<uint64_t, DEPTH> &valid)
{
    uint64_t waiting[2 * GROUP_ROWS] = {};
#pragma HLS ARRAY_PARTITION variable=waiting complete
    uint32_t waiting_valid = 0;
    uint32_t filled = 0;
    uint32_t left = total;
    uint64_t word = 0;
    uint32_t word_bits = 0;
steps:
    while (left != 0 || filled != 0) {
#pragma HLS PIPELINE II=1
        if (left != 0) {
            const value_group next = groups.read();
        places:
            for (uint32_t place = 0; place < 2 * GROUP_ROWS; ++place) {
#pragma HLS UNROLL
                if (place >= filled && place < filled + GROUP_ROWS) {
                    waiting[place] = next.values[place - filled];
                }
            }
            waiting_valid |= uint32_t{next.valid} << filled;
            filled += next.count;
            left -= next.count;
        }
        if (filled < GROUP_ROWS && left != 0) {
            continue;
        }
        line out;
    lanes:
        for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
            out.words[lane] = waiting[lane];
            waiting[lane] = waiting[lane + GROUP_ROWS];
        }
        values.write(out);
        word |= uint64_t{waiting_valid & 0xff} << word_bits;
        word_bits += GROUP_ROWS;
        waiting_valid >>= GROUP_ROWS;
        filled = filled < GROUP_ROWS ? 0 : filled - GROUP_ROWS;
        if (word_bits == flashmesh::WORD_BITS || (left == 0 && filled == 0)) {
            valid.write(word);
            word = 0;
            word_bits = 0;
        }
    }
}

void write_values(uint32_t total, flashmesh::stream<line, DEPTH> &beats,
                  flashmesh::wide_result<int64_t> values)
{
    const uint32_t count = total / GROUP_ROWS + (total % GROUP_ROWS != 0 ? 1 : 0);
    flashmesh::request_store(values, 0, count);
beats:
    for (uint32_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        const line next = beats.read();
        beat out = {};
    words:
        for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
            out.words[word] = next.words[word];
        }
        const uint32_t rows = total - i * GROUP_ROWS;
        out.bytes = static_cast<uint8_t>(8 * (rows < GROUP_ROWS ? rows : GROUP_ROWS));
        flashmesh::store(values, i, out);
    }
    flashmesh::finish_store(values, count);
}

void write_valid(uint32_t total, flashmesh::stream<uint64_t, DEPTH> &words, uint64_t *valid)
{
words:
    for (uint32_t i = 0; i < flashmesh::bitmap_words(total); ++i) {
#pragma HLS PIPELINE II=1
        valid[i] = words.read();
    }
}

void decode(flashmesh::wide_port pages, uint32_t page_count, const entries &dictionary,
            uint32_t total, flashmesh::wide_result<int64_t> values, uint64_t *valid,
            uint32_t &bad_runs, uint32_t &bad_codes)
{
    FLASHMESH_STREAM(line, beats, DEPTH);
    FLASHMESH_STREAM(layout, unpack_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(layout, run_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(layout, value_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(line, validity, PAGE_BEATS);
    FLASHMESH_STREAM(line, runs, PAGE_BEATS);
    FLASHMESH_STREAM(line, packed, DEPTH);
    FLASHMESH_STREAM(number_group, numbers, DEPTH);
    FLASHMESH_STREAM(number_group, rows, DEPTH);
    FLASHMESH_STREAM(value_group, groups, DEPTH);
    FLASHMESH_STREAM(line, value_beats, DEPTH);
    FLASHMESH_STREAM(uint64_t, valid_words, DEPTH);
    FLASHMESH_DATAFLOW("page_decode");
    FLASHMESH_STAGE(read_pages, pages, page_count, beats);
    FLASHMESH_STAGE(route, page_count, beats, unpack_plans, run_plans, value_plans, validity, runs,
                    packed);
    FLASHMESH_STAGE(unpack, page_count, unpack_plans, packed, numbers);
    FLASHMESH_STAGE(expand_runs, page_count, run_plans, numbers, runs, rows, bad_runs);
    FLASHMESH_STAGE(make_values, page_count, dictionary, value_plans, rows, validity, groups,
                    bad_codes);
    FLASHMESH_STAGE(append, total, groups, value_beats, valid_words);
    FLASHMESH_STAGE(write_values, total, value_beats, values);
    FLASHMESH_STAGE(write_valid, total, valid_words, valid);
}

problem load_dictionary(flashmesh::wide_port dictionary, uint32_t dictionary_bytes, entries &out)
{
    out.count = dictionary_bytes / 8;
    if (dictionary_bytes % 8 != 0 || out.count > MAX_ENTRIES) {
        return BAD_DICTIONARY;
    }
    flashmesh::request(dictionary, 0, beats_of(dictionary_bytes));
    line next = {};
entries:
    for (uint32_t entry = 0; entry < out.count; ++entry) {
#pragma HLS PIPELINE II=1
        if (entry % BEAT_WORDS == 0) {
            next = load_line(dictionary, entry / BEAT_WORDS, dictionary_bytes);
        }
    lanes:
        for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
            out.values[lane][entry] = next.words[entry % BEAT_WORDS];
        }
    }
    return SOUND;
}

} // namespace

FLASHMESH_KERNEL void page_decode(flashmesh::wide_port pages, uint32_t page_count,
                                  flashmesh::wide_port dictionary, uint32_t dictionary_bytes,
                                  uint32_t capacity, flashmesh::wide_result<int64_t> values,
                                  uint64_t *valid, uint32_t *rows, uint32_t *status)
{
#pragma HLS INTERFACE m_axi port=pages bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=dictionary bundle=wide_dictionary offset=slave num_read_outstanding=2 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=values bundle=values offset=slave num_write_outstanding=16 max_write_burst_length=64
#pragma HLS INTERFACE m_axi port=valid bundle=valid offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=rows bundle=answers offset=slave
#pragma HLS INTERFACE m_axi port=status bundle=answers offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=dictionary_bytes
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=return
    entries known;
#pragma HLS ARRAY_PARTITION variable=known.values complete dim=1
    uint32_t total = 0;
    problem found = load_dictionary(dictionary, dictionary_bytes, known);
    if (found == SOUND) {
        found = check(pages, page_count, total);
    }
    if (found == SOUND && total <= capacity) {
        uint32_t bad_runs = NO_PAGE;
        uint32_t bad_codes = NO_PAGE;
        decode(pages, page_count, known, total, values, valid, bad_runs, bad_codes);
        if (bad_runs != bad_codes) {
            found = bad_runs < bad_codes ? BAD_RUNS : BAD_DICTIONARY;
        }
    }
    *rows = found == SOUND ? total : 0;
    *status = found;
}
