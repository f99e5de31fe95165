// The values of a column's pages, as int64 and a validity bitmap.
//
// BlueDBM (section 3) puts in-store processors between the flash controller, which delivers
// whole pages, and the host. A page of flashmesh decodes alone, so that an engine there can. The
// format is that of docs/flash-format.md, sections 3 to 6.
//
// On a card: `page_decode_stream`. A packet of `pages` is a page, its tag whatever the caller likes;
// packets come in any order. For each a packet of `values` leaves with the same tag:
//
// | beats | |
// |---|---|
// | one | word 0: how many rows follow, none of a page that is not decoded |
// | for each 512 rows, or what is left of them: one | a bit for each row: 1 where it is not NULL |
// | ... and one for each eight rows | their values |
// | one, of 8 bytes | what is wrong with the page (a `problem` of flashmesh/decode.hpp) |
//
// Bits and values behind the last row are 0, as are values of rows that are NULL. What is wrong is
// said at the end, as bad codes and runs are found while values leave: they mean nothing then.
//
// For the host: `page_decode`, over arrays: `pages` has page_count pages of 8 KiB, `dictionary`
// dictionary_bytes / 8 values of the chunk's dictionary (int64, at most one page of them) or nothing;
// `values` has `capacity` values and `valid` as many bits. The rows of all pages follow each other
// without gaps. The bits of `valid` beyond the rows are 0.
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
// encodings, makes `status` what is wrong with the first such page; `rows` is 0 then, and what is in
// `values` and `valid` means nothing. BAD_DICTIONARY and BAD_RUNS are found while pages are decoded,
// and so only where no page has another problem. Checksum and identity of a page are not looked at:
// whoever read it from flash has verified them.
//
// A page goes through stages that run at once, in beats of 64 bytes: its regions are told apart ▸
// numbers are unpacked ▸ runs become rows ▸ numbers become values. The host's form reads all headers
// first, as nothing is written where the rows have no room, and again BATCH_PAGES at a time, which
// says where each page's rows begin: so packets of a batch may come in any order. Rows of two pages
// meet in a word of `valid`, which waits on chip until it has all its bits.
//
// Intended, not measured: a beat of a page per cycle in, and a beat per cycle out: 512 values in 65
// cycles, half as many of packed numbers above 32 bits. Eight numbers that follow each other lie at
// the same bits of the eight lanes, so one shift serves all of them; each lane looks up a copy of the
// dictionary of its own. Of runs, one that begins and 8 of its rows per cycle.
#include <flashmesh/bits.hpp>
#include <flashmesh/decode.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

using namespace flashmesh;

// Rows that go through the stages together: their values are a beat, their validity is a byte.
constexpr uint32_t GROUP_ROWS = BEAT_WORDS;
// A row of a block of packed numbers: half a beat.
constexpr uint32_t PACKED_ROW_BYTES = 32;
constexpr uint32_t PACKED_ROW_WORDS = PACKED_ROW_BYTES / 8;
constexpr uint32_t BLOCK_VALUES = 256;
constexpr uint32_t MAX_ENTRIES = PAYLOAD_BYTES / 8;
constexpr uint32_t SCALE_BYTES = 9;
// The count of runs and each of their ends.
constexpr uint32_t END_BYTES = 2;
constexpr uint32_t BEAT_ENDS = BEAT_BYTES / END_BYTES;

constexpr uint32_t DEPTH = 16;
constexpr uint32_t LAYOUT_DEPTH = 4;
// Words of validity that wait for the rows of other pages: of each page of a batch the one in which
// it begins, and the one in which the last ends.
constexpr uint32_t WAITING_WORDS = BATCH_PAGES + 1;

// Where the regions of a page are, in beats behind the header, and what its numbers stand for:
// value = reference + step * number, or the dictionary's entry of that.
struct layout : row_layout {
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
    uint64_t reference;
    uint64_t step;
};

using layout_stream = stream<layout, LAYOUT_DEPTH>;

struct number_group {
    uint64_t numbers[GROUP_ROWS];
};

// The chunk's dictionary, on chip: a copy for each lane.
struct entries {
    uint64_t values[GROUP_ROWS][MAX_ENTRIES];
    uint32_t count;
};

uint32_t packed_bytes(uint32_t count, uint32_t width)
{
    return (count + BLOCK_VALUES - 1) / BLOCK_VALUES * width * PACKED_ROW_BYTES;
}

uint64_t sign_extend(uint64_t number)
{
    return static_cast<uint64_t>(int64_t{static_cast<int32_t>(static_cast<uint32_t>(number))});
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
    if (!is_bounded(header)) {
        return BAD_HEADER;
    }
    if (header.row_count == 0 || has_flag(header, FLAG_AUXILIARY) ||
        has_flag(header, FLAG_CONTINUES)) {
        return NOT_DECODED;
    }
    out.numbers = header.row_count;
    out.reference = static_cast<uint64_t>(header.reference);
    out.step = 1;
    return plan_rows(header, out);
}

// Of a page without a bitmap.
bool is_all_null(const layout &where)
{
    return where.values == 0 && where.validity_beats == 0;
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
    out.is_code = header.encoding == ENCODING_DICT;
    if (!has_flag(header, FLAG_SCALED)) {
        return plan_packed(0, out);
    }
    const uint32_t scale_bytes = align_region(SCALE_BYTES);
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
    if (is_all_null(out)) {
        // Nor do the runs mean anything.
        return SOUND;
    }
    out.width = header.width;
    out.runs = static_cast<uint16_t>(first.words[0]);
    out.numbers = out.runs;
    const uint32_t bytes = align_region(END_BYTES * (1 + out.runs));
    if (out.runs == 0 || bytes > out.data_bytes) {
        return BAD_REGIONS;
    }
    out.runs_beats = static_cast<uint8_t>(bytes / BEAT_BYTES);
    return plan_packed(bytes, out);
}

problem plan_constant(const page_header &header, const line &first, layout &out)
{
    if (header.width == 0 || is_all_null(out)) {
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
    case ENCODING_CONST:
        return plan_constant(header, first, out);
    case ENCODING_RAW:
        return plan_raw(header, out);
    case ENCODING_FORBP:
    case ENCODING_DICT:
        return plan_numbers(header, first, out);
    case ENCODING_RLE:
        return plan_runs(header, first, out);
    default:
        return header.encoding == 0 || header.encoding > ENCODING_RLE ? BAD_HEADER : NOT_DECODED;
    }
}

// Tells the regions of pages apart. Bitmap and runs come before the numbers that they belong to:
// their streams hold as much of them as a page can have.
void route(axis &pages, uint32_t page_count, bool is_known,
           layout_stream &unpack_plans, layout_stream &run_plans, layout_stream &value_plans,
           validity_stream &validity, stream<line, PAGE_BEATS> &runs, stream<line, DEPTH> &packed)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const beat header_beat = receive(pages);
        const page_header header = parse_header(header_beat.words);
        layout where;
        problem found = plan_header(header, where);
        const uint32_t validity_beats = where.validity_beats;
        uint32_t left = PAGE_BEATS - 1 - validity_beats;
        const uint32_t nulls = route_validity(pages, validity_beats, where.rows, validity);
        line next = {};
        if (left != 0) {
            next = line_of(receive(pages));
        }
        if (found == SOUND && validity_beats != 0 && nulls != header.null_count) {
            found = BAD_VALIDITY;
        }
        if (found == SOUND) {
            found = plan_data(header, next, where);
        }
        found = is_known ? found : BAD_DICTIONARY;
        conclude(header_beat.tag, found, validity_beats, where);
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
                next = line_of(receive(pages));
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
void unpack(uint32_t page_count, layout_stream &plans, stream<line, DEPTH> &packed,
            stream<number_group, DEPTH> &groups)
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

// Makes the rows' numbers of those of runs, and says of each page whether its runs are right. Where
// they are wrong it makes as many rows as the header says all the same.
void expand_runs(uint32_t page_count, layout_stream &plans, stream<number_group, DEPTH> &packed,
                 stream<line, PAGE_BEATS> &runs, stream<number_group, DEPTH> &groups,
                 stream<bool, LAYOUT_DEPTH> &are_sound)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        if (where.runs == 0) {
        rows:
            for (uint32_t row = 0; row < where.rows; row += GROUP_ROWS) {
#pragma HLS PIPELINE II=1
                groups.write(packed.read());
            }
            are_sound.write(true);
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
        are_sound.write(is_sound);
    }
}

// Makes values of numbers, and packets of them.
void make_values(uint32_t page_count, const entries &dictionary,
                 layout_stream &plans, stream<number_group, DEPTH> &groups,
                 validity_stream &validity, stream<bool, LAYOUT_DEPTH> &are_runs_sound,
                 axis &values)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        send(values, to_beat(line{{where.rows}}, BEAT_BYTES, where.tag));
        const bool is_mapped = where.is_code && dictionary.count != 0;
        bool are_codes_sound = true;
        bool has_bits = false;
        line bits = {};
        uint32_t row = 0;
    beats:
        while (row < where.rows) {
#pragma HLS PIPELINE II=1
            if (!has_bits) {
                bits = take_validity(where, row, validity);
                has_bits = true;
                send(values, to_beat(bits, BEAT_BYTES, where.tag));
                continue;
            }
            line out = {};
            const uint32_t bit = row % VALID_ROWS;
            const uint32_t valid = static_cast<uint8_t>(bits.words[bit / 64] >> (bit % 64));
            const number_group group = groups.read();
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
                    are_codes_sound = are_codes_sound && is_entry;
                    number = dictionary.values[lane][is_entry ? number : 0];
                }
                out.words[lane] = is_valid ? number : 0;
            }
            send(values, to_beat(out, BEAT_BYTES, where.tag));
            row += GROUP_ROWS;
            has_bits = row % VALID_ROWS != 0;
        }
        drop_validity(where, validity);
        problem found = where.found;
        if (!are_runs_sound.read()) {
            found = BAD_RUNS;
        } else if (!are_codes_sound) {
            found = BAD_DICTIONARY;
        }
        beat last = to_beat(line{{found}}, 8, where.tag);
        last.is_last = true;
        send(values, last);
    }
}

void decode(axis &pages, uint32_t page_count, const entries &dictionary, bool is_known,
            axis &values)
{
    FLASHMESH_STREAM(layout, unpack_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(layout, run_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(layout, value_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(line, validity, PAGE_BEATS);
    FLASHMESH_STREAM(line, runs, PAGE_BEATS);
    FLASHMESH_STREAM(line, packed, DEPTH);
    FLASHMESH_STREAM(number_group, numbers, DEPTH);
    FLASHMESH_STREAM(number_group, rows, DEPTH);
    FLASHMESH_STREAM(bool, are_runs_sound, LAYOUT_DEPTH);
    FLASHMESH_DATAFLOW("page_decode_stream");
    FLASHMESH_STAGE(route, pages, page_count, is_known, unpack_plans, run_plans, value_plans,
                    validity, runs, packed);
    FLASHMESH_STAGE(unpack, page_count, unpack_plans, packed, numbers);
    FLASHMESH_STAGE(expand_runs, page_count, run_plans, numbers, runs, rows, are_runs_sound);
    FLASHMESH_STAGE(make_values, page_count, dictionary, value_plans, rows, validity,
                    are_runs_sound, values);
}

bool is_dictionary(uint32_t dictionary_bytes)
{
    return dictionary_bytes % 8 == 0 && dictionary_bytes / 8 <= MAX_ENTRIES;
}

// Loads a dictionary that a page holds.
void load_dictionary(wide_port dictionary, uint32_t dictionary_bytes, entries &out)
{
    out.count = dictionary_bytes / 8;
    request(dictionary, 0, beats_of(dictionary_bytes));
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
}

} // namespace

FLASHMESH_STREAM_TOP void page_decode_stream(axis &pages, uint32_t page_count,
                                             wide_port dictionary, uint32_t dictionary_bytes,
                                             axis &values)
{
#pragma HLS INTERFACE axis port=pages
#pragma HLS INTERFACE axis port=values
#pragma HLS INTERFACE m_axi port=dictionary bundle=wide offset=slave num_read_outstanding=2
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=dictionary_bytes
#pragma HLS INTERFACE ap_ctrl_chain port=return
    entries known;
#pragma HLS ARRAY_PARTITION variable=known.values complete dim=1
    const bool is_known = is_dictionary(dictionary_bytes);
    load_dictionary(dictionary, is_known ? dictionary_bytes : 0, known);
    decode(pages, page_count, known, is_known, values);
}

namespace {

// What is wrong with the first page of those where that is seen before its values are made, and of
// those where it is seen meanwhile.
struct refusals {
    refusal early;
    refusal late;
};

// The rows of a batch of pages, as their headers have them; none where a header is wrong. Memory's
// latency is waited for once.
void read_rows(wide_port pages, uint32_t page_count, uint64_t start, uint32_t *rows)
{
    const uint32_t batch = batch_of(start, page_count);
    request_headers(pages, start, batch);
headers:
    for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
        const line header =
            load_line(pages, (start + i) * PAGE_BEATS, bytes_of_pages(page_count));
        layout where;
        rows[i] = plan_header(parse_header(header.words), where) == SOUND ? where.rows : 0;
    }
}

// All rows, and the page with which they are too many.
uint64_t count_rows(wide_port pages, uint32_t page_count, refusal &too_many)
{
    uint64_t total = 0;
batches:
    for (uint64_t start = 0; start < page_count; start += BATCH_PAGES) {
        uint32_t rows[BATCH_PAGES];
        read_rows(pages, page_count, start, rows);
    pages:
        for (uint32_t i = 0; i < batch_of(start, page_count); ++i) {
#pragma HLS PIPELINE II=1
            total += rows[i];
            const problem found = total > 0xffffffff ? TOO_MANY : SOUND;
            note(too_many, static_cast<uint32_t>(start + i), found);
        }
    }
    return total;
}

// Says of each page of a batch in which row it begins, and sends them, tagged with their numbers.
void send_pages(wide_port pages, uint32_t page_count, stream<uint32_t, BATCH_PAGES> &starts,
                axis &packets)
{
    uint32_t row = 0;
batches:
    for (uint64_t start = 0; start < page_count; start += BATCH_PAGES) {
        const uint32_t first = static_cast<uint32_t>(start);
        const uint32_t batch = batch_of(start, page_count);
        const auto page_at = [first, batch](uint32_t place) {
            return first + delivered(place, batch);
        };
        uint32_t rows[BATCH_PAGES];
        read_rows(pages, page_count, start, rows);
    starts:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            starts.write(row);
            row += rows[i];
        }
        deliver_pages(pages, page_count, batch, page_at, packets);
    }
}

// The bits of `count` rows of a word of validity, or the end of them.
struct valid_bits {
    uint32_t word;
    uint32_t count;
    uint64_t bits;
    bool is_end;
};

// Puts the values of packets in their rows: those of a page are a burst, which is waited for when
// the next one is under way.
void write_values(uint32_t page_count, bool are_kept, stream<uint32_t, BATCH_PAGES> &starts,
                  axis &packets, wide_result<int64_t> values,
                  stream<valid_bits, DEPTH> &validity, refusals &first)
{
    uint32_t pending = 0;
batches:
    for (uint64_t batch_start = 0; batch_start < page_count; batch_start += BATCH_PAGES) {
        const uint32_t batch = batch_of(batch_start, page_count);
        uint32_t start_of[BATCH_PAGES];
    starts:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            start_of[i] = starts.read();
        }
    packets:
        for (uint32_t i = 0; i < batch; ++i) {
            const beat head = receive(packets);
            const uint32_t rows = static_cast<uint32_t>(head.words[0]);
            const uint32_t start = start_of[head.tag % BATCH_PAGES];
            const uint32_t offset = start % GROUP_ROWS;
            const uint32_t beats =
                are_kept ? (offset + rows + GROUP_ROWS - 1) / GROUP_ROWS : 0;
            request_store(values, start / GROUP_ROWS, rows == 0 ? 0 : beats);
            // Values behind the last whole beat: `offset` of them, of the beat in which the page
            // begins those of other pages, which are not written.
            uint64_t carried[GROUP_ROWS] = {};
#pragma HLS ARRAY_PARTITION variable=carried complete
            line bits = {};
            bool has_bits = false;
            uint32_t row = 0;
            uint32_t stored = 0;
            // Of the word of validity in which the next row is.
            uint64_t word_bits = 0;
            uint32_t word_rows = 0;
        beats:
            while (row < rows) {
#pragma HLS PIPELINE II=1
                const beat next = receive(packets);
                if (!has_bits) {
                    bits = line_of(next);
                    has_bits = true;
                    continue;
                }
                const uint32_t left = rows - row;
                const uint32_t count = left < GROUP_ROWS ? left : GROUP_ROWS;
                beat out = {};
            lanes:
                for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
                    out.words[lane] =
                        lane < offset ? carried[lane] : next.words[lane - offset];
                }
            carry:
                for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
                    if (lane < offset) {
                        carried[lane] = next.words[lane + GROUP_ROWS - offset];
                    }
                }
                if (are_kept) {
                    const uint32_t end = offset + count;
                    out.bytes = static_cast<uint8_t>(8 * (end < GROUP_ROWS ? end : GROUP_ROWS));
                    store(values, uint64_t{start} / GROUP_ROWS + stored, out,
                          stored == 0 ? 8 * offset : 0);
                    ++stored;
                    const uint32_t bit = row % VALID_ROWS;
                    const uint64_t new_bits =
                        static_cast<uint8_t>(bits.words[bit / 64] >> (bit % 64));
                    const uint32_t at = (start + row) % WORD_BITS;
                    word_bits |= new_bits << at;
                    word_rows += count;
                    if (at + count >= WORD_BITS) {
                        const uint32_t behind = at + count - WORD_BITS;
                        validity.write(
                            {(start + row) / WORD_BITS, word_rows - behind, word_bits, false});
                        word_bits = behind == 0 ? 0 : new_bits >> (count - behind);
                        word_rows = behind;
                    }
                }
                row += count;
                has_bits = row % VALID_ROWS != 0;
            }
            if (word_rows != 0) {
                validity.write({(start + rows - 1) / WORD_BITS, word_rows, word_bits, false});
            }
            if (rows != 0 && stored < beats) {
                beat out = {};
            rest:
                for (uint32_t lane = 0; lane < GROUP_ROWS; ++lane) {
#pragma HLS UNROLL
                    out.words[lane] = carried[lane];
                }
                out.bytes = static_cast<uint8_t>(8 * (offset + rows - stored * GROUP_ROWS));
                store(values, uint64_t{start} / GROUP_ROWS + stored, out);
            }
            finish_store(values, pending);
            pending = rows == 0 ? 0 : beats;
            const beat last = receive(packets);
            const problem found = static_cast<problem>(last.words[0]);
            const bool is_late = found == BAD_RUNS || found == BAD_DICTIONARY;
            note(is_late ? first.late : first.early, last.tag, found);
        }
    }
    finish_store(values, pending);
    validity.write({0, 0, 0, true});
}

// A word is written when all of its rows have come. Where a page has none of the rows that its
// header says, words are left over, and mean nothing.
void write_valid(uint32_t total, stream<valid_bits, DEPTH> &validity, uint64_t *valid)
{
    // Without rows: free.
    valid_bits waiting[WAITING_WORDS] = {};
#pragma HLS ARRAY_PARTITION variable=waiting complete
    valid_bits next = validity.read();
words:
    while (!next.is_end) {
#pragma HLS PIPELINE II=1
        uint32_t place = WAITING_WORDS;
        uint32_t free = WAITING_WORDS;
    find:
        for (uint32_t i = 0; i < WAITING_WORDS; ++i) {
#pragma HLS UNROLL
            if (waiting[i].count == 0) {
                free = i;
            } else if (waiting[i].word == next.word) {
                place = i;
                next.bits |= waiting[i].bits;
                next.count += waiting[i].count;
            }
        }
        const bool is_last = next.word == total / WORD_BITS;
        const uint32_t wanted = is_last ? total % WORD_BITS : WORD_BITS;
        const bool is_whole = next.count == wanted;
        place = place == WAITING_WORDS ? free : place;
        if (is_whole) {
            valid[next.word] = next.bits;
            next.count = 0;
        }
        if (place != WAITING_WORDS) {
            waiting[place] = next;
        }
        next = validity.read();
    }
}

void run(wide_port pages, uint32_t page_count, wide_port dictionary, uint32_t dictionary_bytes,
         bool are_kept, uint32_t total, wide_result<int64_t> values, uint64_t *valid,
         refusals &first)
{
    FLASHMESH_STREAM(uint32_t, starts, BATCH_PAGES);
    FLASHMESH_STREAM(beat, packets, AXIS_DEPTH);
    FLASHMESH_STREAM(beat, decoded, AXIS_DEPTH);
    FLASHMESH_STREAM(valid_bits, validity, DEPTH);
    FLASHMESH_DATAFLOW("page_decode");
    FLASHMESH_STAGE(send_pages, pages, page_count, starts, packets);
    FLASHMESH_STAGE(page_decode_stream, packets, page_count, dictionary, dictionary_bytes,
                    decoded);
    FLASHMESH_STAGE(write_values, page_count, are_kept, starts, decoded, values, validity, first);
    FLASHMESH_STAGE(write_valid, total, validity, valid);
}

} // namespace

FLASHMESH_KERNEL void page_decode(wide_port pages, uint32_t page_count, wide_port dictionary,
                                  uint32_t dictionary_bytes, uint32_t capacity,
                                  wide_result<int64_t> values, uint64_t *valid, uint32_t *rows,
                                  uint32_t *status)
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
    uint64_t total = 0;
    problem found = BAD_DICTIONARY;
    if (is_dictionary(dictionary_bytes)) {
        refusals first = {{NO_PAGE, SOUND}, {NO_PAGE, SOUND}};
        total = count_rows(pages, page_count, first.early);
        const bool are_kept = total <= capacity;
        run(pages, page_count, dictionary, dictionary_bytes, are_kept,
            static_cast<uint32_t>(total), values, valid, first);
        found = first.early.found == SOUND && are_kept ? first.late.found : first.early.found;
    }
    *rows = found == SOUND ? static_cast<uint32_t>(total) : 0;
    *status = found;
}
