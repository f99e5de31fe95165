// The values of a column's pages of text: their bytes, where each ends, and a validity bitmap.
//
// BlueDBM (section 3) puts in-store processors between the flash controller, which delivers whole
// pages, and the host; page_decode is the one for numbers. The format is that of
// docs/flash-format.md, sections 3 to 6. The code is that of Boncz, Neumann and Leis, "FSST: fast
// random access string compression" (2020): a byte stands for a symbol of up to 8 bytes.
//
// On a card: `text_decode_stream`. A packet of `pages` is a page, its tag whatever the caller likes;
// packets come in any order. For each a packet of `bytes` leaves and one of `rows`, with the same
// tag. The first is the bytes of all texts of the page. The second:
//
// | beats | |
// |---|---|
// | one | word 0: how many rows follow; word 1: 1 where the last one goes on in the next page |
// | for each 512 rows, or what is left of them: one | a bit for each row: 1 where it is not NULL |
// | ... and one for each 16 rows | where they end among the page's bytes, 32 bits each |
// | one, of 16 bytes | word 0: what is wrong with the page (a `problem` below); word 1: its bytes |
//
// Bits and ends behind the last row are 0. What is wrong is said at the end, as bad lengths and
// escapes are found while bytes leave: they mean nothing then. A page that only goes on with a value
// of the page before has no row; to put these together is for who knows which page follows.
//
// For the host: `text_decode`, over arrays: `pages` has page_count pages of 8 KiB, `symbols` the
// auxiliary page of a chunk of FSST (symbols_bytes = 8192) or nothing (0); it is loaded once a call.
// `offsets` has capacity + 1 numbers, of which the first is 0: row i is the bytes offsets[i] ..
// offsets[i + 1]. `bytes` has byte_capacity of them, `valid` `capacity` bits. The rows of all pages
// follow each other without gaps. The bits of `valid` beyond the rows are 0.
//
// | page | text |
// |---|---|
// | RAWSTR | the bytes |
// | FSST | what the codes stand for; those without a symbol for nothing, as the format has it |
// | CONST of bytes | the bytes, in each row that is not NULL |
// | CONST, all NULL | none |
// | several of RAWSTR or FSST, of one long value (CONTINUES) | a row, which ends with the last |
// | RAWSTR, auxiliary: a chunk's dictionary | an entry a row, in the order of the codes |
//
// A NULL has the bytes that its page has for it: none, where the store has written it. DICT is not
// decoded here: a text that occurs often would cross once for each row. What crosses of such a
// chunk is page_decode's codes, 8 bytes a row, and from here the dictionary's texts, once.
//
// `rows` and `byte_count` say how many there are, and `status` is 0. Where `rows` are more than
// `capacity` or `byte_count` more than byte_capacity, what is in the arrays means nothing. If that
// is so by the rows and by what RAWSTR and CONST have alone, codes are not looked at, and
// `byte_count` lacks what they stand for. A page that is not sound, or not of these, makes `status`
// what is wrong with the first such page (a `problem` below); `rows` and `byte_count` are 0 then,
// and what is in the arrays means nothing. BAD_LENGTHS and BAD_ESCAPE are found while pages are
// decoded, and so only where no page has another problem. Neither checksum nor identity of a page
// is looked at (whoever read it from flash has verified them), nor whether text is UTF-8.
//
// A page goes through stages that run at once, in beats of 64 bytes: its regions are told apart ▸
// codes become bytes ▸ lengths of rows become their ends. The host's form reads headers and bitmaps
// of all pages first, BATCH_PAGES of them asked for at once, as it decodes nothing that is wrong or
// has no room. Then it sends the pages in their order, as nobody knows where the bytes of a page begin
// before those of all before it are decoded: bytes are put behind each other, ends become places
// among all bytes, and both are written.
//
// Intended, not measured: of RAWSTR a beat a cycle in and out, of CONST one out; of FSST 8 codes a
// cycle in, which give a beat at most; a row a cycle. Each of the eight codes is looked up in a copy
// of the symbols of its own; which of them are escaped is a chain of eight bits, where their symbols
// go one of eight lengths. Bytes leave in bursts of up to 4 KiB, as nobody knows how many there are
// before the last code; two bursts are under way.
#include <flashmesh/beat.hpp>
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/page.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::axis;
using flashmesh::beat;
using flashmesh::BEAT_BYTES;
using flashmesh::BEAT_WORDS;
using flashmesh::page_header;
using flashmesh::PAGE_BEATS;

// As far as page_decode has them, its numbers.
enum problem : uint32_t {
    SOUND = 0,
    // No page, or counts that no page has.
    BAD_HEADER = 1,
    // An encoding that is not decoded here.
    NOT_DECODED = 2,
    // Regions that do not make the payload.
    BAD_REGIONS = 3,
    // A bitmap that does not have the NULLs that the header counts.
    BAD_VALIDITY = 4,
    // Symbols that are none, or are missing.
    BAD_SYMBOLS = 5,
    // More rows or bytes than can be counted.
    TOO_MANY = 6,
    // Lengths of rows that do not make the stored bytes, or starts that are elsewhere.
    BAD_LENGTHS = 7,
    // A row, or a page, that ends between an escape and its byte.
    BAD_ESCAPE = 8,
    // Pages of a long value that do not follow each other to its last.
    BAD_PARTS = 9,
};

enum content : uint8_t {
    // Codes of FSST.
    CODES,
    BYTES,
    // The bytes of every row.
    CONSTANT,
};

constexpr uint32_t BEAT_BITS = 8 * BEAT_BYTES;
// Rows between two stored starts.
constexpr uint32_t BLOCK_ROWS = 32;
constexpr uint32_t START_BYTES = 2;
constexpr uint32_t BEAT_STARTS = BEAT_BYTES / START_BYTES;
constexpr uint32_t STARTS_BEATS = flashmesh::SEGMENT_ROWS / BLOCK_ROWS / BEAT_STARTS;
// Behind the packed lengths.
constexpr uint32_t SPARE_BYTES = 3;
constexpr uint32_t MAX_WIDTH = 16;

constexpr uint32_t CODE_COUNT = 256;
constexpr uint8_t ESCAPE = 255;
constexpr uint32_t SYMBOL_BYTES = 8;
// Codes that are looked up together: what they stand for is a beat at most.
constexpr uint32_t STEP_CODES = 8;
static_assert(STEP_CODES * SYMBOL_BYTES == BEAT_BYTES, "symbols of a step are a beat at most");
constexpr uint32_t NO_PAGE = 0xffffffff;

constexpr uint32_t BATCH_PAGES = 32;
static_assert(BATCH_PAGES <= flashmesh::MAX_REQUESTS, "a batch is asked for at once");
// Pages that memory has been asked for: 256 beats, more than its latency in cycles.
constexpr uint32_t PAGES_AHEAD = 2;
constexpr uint32_t DEPTH = 16;
constexpr uint32_t LAYOUT_DEPTH = 4;
// A burst is written while the next one is collected.
constexpr uint32_t BURST_BEATS = 64;
constexpr uint32_t BURSTS_DEPTH = 2;
constexpr uint32_t BURST_DEPTH = BURSTS_DEPTH * BURST_BEATS;
// Offsets in a beat.
constexpr uint32_t BEAT_OFFSETS = BEAT_BYTES / 4;
// Rows whose validity is a beat.
constexpr uint32_t VALID_ROWS = BEAT_BITS;

// What the stages pass on of a page, without what packets have.
struct line {
    uint64_t words[BEAT_WORDS];
};

// Where the regions of a page are, in beats behind the header, and what they hold. Of a page that is
// not decoded nothing but its tag, what was found, and the beats of validity that are passed on all
// the same.
struct layout {
    uint32_t tag;
    problem found;
    // None in a page that only goes on with a value.
    uint32_t rows;
    // Rows that are not NULL.
    uint32_t values;
    uint32_t data_bytes;
    // Behind the lengths.
    uint32_t stored_bytes;
    uint32_t starts;
    // Of a packed length, and what is added to it.
    uint32_t width;
    uint32_t least;
    uint8_t validity_beats;
    uint8_t lengths_beats;
    content kind;
    // The value goes on in the next page.
    bool continues;
};

// The chunk's symbols, on chip: a copy for each code of a step. Bytes beyond a symbol's length are
// 0.
struct symbol_table {
    uint64_t symbols[STEP_CODES][CODE_COUNT];
    uint8_t lengths[STEP_CODES][CODE_COUNT];
    bool is_there;
};

// Of eight codes: how many bytes they have given up to each of them, and which are escapes.
struct code_ends {
    uint8_t ends[STEP_CODES];
    uint8_t escapes;
};

// Bytes that are written at once.
struct burst {
    uint32_t bytes;
    bool is_last;
};

struct sums {
    uint32_t rows;
    // Of RAWSTR and CONST.
    uint64_t bytes;
};

uint32_t beats_of(uint32_t bytes)
{
    return bytes / BEAT_BYTES + (bytes % BEAT_BYTES != 0 ? 1 : 0);
}

line line_of(const beat &from)
{
#pragma HLS INLINE
    line out;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = from.words[word];
    }
    return out;
}

line load_line(flashmesh::wide_port port, uint64_t index, uint64_t array_bytes)
{
#pragma HLS INLINE
    return line_of(flashmesh::load(port, index, array_bytes));
}

beat to_beat(const line &from, uint32_t bytes)
{
#pragma HLS INLINE
    beat out = {};
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = from.words[word];
    }
    out.bytes = static_cast<uint8_t>(bytes);
    return out;
}

uint32_t half_word(const line &from, uint32_t place)
{
#pragma HLS INLINE
    return static_cast<uint16_t>(from.words[place / 4] >> (16 * (place % 4)));
}

problem plan_constant(const page_header &header, layout &out)
{
    out.kind = CONSTANT;
    if (out.continues) {
        return BAD_PARTS;
    }
    if (out.values == 0) {
        // Nor do the data mean anything.
        return SOUND;
    }
    out.stored_bytes = out.data_bytes;
    out.least = out.data_bytes;
    return header.width == 0 ? NOT_DECODED : SOUND;
}

problem plan_text(const page_header &header, layout &out)
{
    if (out.continues && out.rows != 1) {
        return BAD_PARTS;
    }
    out.starts = (out.rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
    out.width = header.width;
    out.least = static_cast<uint32_t>(header.reference);
    const uint32_t bytes = flashmesh::align_region(
        START_BYTES * out.starts + (out.rows * out.width + 7) / 8 + SPARE_BYTES);
    if (out.width > MAX_WIDTH || bytes > out.data_bytes || header.reference < 0 ||
        header.reference > out.data_bytes) {
        return BAD_REGIONS;
    }
    out.lengths_beats = static_cast<uint8_t>(bytes / BEAT_BYTES);
    out.stored_bytes = out.data_bytes - bytes;
    return SOUND;
}

// What the header says, which is where all regions are: whatever it says, they stay within the page
// if it is sound.
problem plan_page(const page_header &header, layout &out)
{
    out = {};
    if (!flashmesh::is_bounded(header) || header.encoding == 0 ||
        header.encoding > flashmesh::ENCODING_RLE) {
        return BAD_HEADER;
    }
    const bool is_constant = header.encoding == flashmesh::ENCODING_CONST;
    const bool has_bytes = header.encoding == flashmesh::ENCODING_RAWSTR;
    out.rows = header.row_count;
    out.values = header.row_count - header.null_count;
    out.data_bytes = header.payload_bytes;
    out.continues = flashmesh::has_flag(header, flashmesh::FLAG_CONTINUES);
    out.kind = has_bytes ? BYTES : CODES;
    if (!is_constant && !has_bytes && header.encoding != flashmesh::ENCODING_FSST) {
        return NOT_DECODED;
    }
    // Of auxiliary pages, a dictionary.
    if (flashmesh::has_flag(header, flashmesh::FLAG_AUXILIARY) &&
        (!has_bytes || out.rows == 0 || out.continues)) {
        return NOT_DECODED;
    }
    if (out.rows == 0) {
        out.stored_bytes = out.data_bytes;
        return is_constant ? NOT_DECODED : SOUND;
    }
    if (flashmesh::has_flag(header, flashmesh::FLAG_HAS_VALIDITY)) {
        const uint32_t bytes = flashmesh::align_region((out.rows + 7) / 8);
        if (bytes > out.data_bytes) {
            return BAD_REGIONS;
        }
        out.validity_beats = static_cast<uint8_t>(bytes / BEAT_BYTES);
        out.data_bytes -= bytes;
    } else if (header.null_count != 0 && out.values != 0) {
        return BAD_VALIDITY;
    }
    return is_constant ? plan_constant(header, out) : plan_text(header, out);
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

// Tells the regions of pages apart. Bitmap and lengths come before the bytes that they belong to:
// their streams hold as much of them as a page can have.
void route(axis &pages, uint32_t page_count, bool has_symbols, bool are_symbols_sound,
           flashmesh::stream<layout, LAYOUT_DEPTH> &byte_plans,
           flashmesh::stream<layout, LAYOUT_DEPTH> &row_plans,
           flashmesh::stream<line, PAGE_BEATS> &validity,
           flashmesh::stream<line, PAGE_BEATS> &lengths, flashmesh::stream<line, DEPTH> &stored)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const beat header = flashmesh::receive(pages);
        layout where;
        problem found = plan_page(flashmesh::parse_header(header.words), where);
        const uint32_t lengths_start = found == SOUND ? where.validity_beats : 0;
        uint32_t nulls = 0;
    bitmap:
        for (uint32_t at = 0; at < lengths_start; ++at) {
#pragma HLS PIPELINE II=1
            const line bits = line_of(flashmesh::receive(pages));
            nulls += count_nulls(bits, where.rows - at * VALID_ROWS);
            validity.write(bits);
        }
        if (found == SOUND && where.kind == CODES && !has_symbols) {
            found = BAD_SYMBOLS;
        } else if (lengths_start != 0 && nulls != where.rows - where.values) {
            found = BAD_VALIDITY;
        }
        found = are_symbols_sound ? found : BAD_SYMBOLS;
        if (found != SOUND) {
            where = {};
            where.validity_beats = static_cast<uint8_t>(lengths_start);
        }
        where.tag = header.tag;
        where.found = found;
        byte_plans.write(where);
        row_plans.write(where);
        const uint32_t stored_start = lengths_start + where.lengths_beats;
        const uint32_t stored_end = stored_start + beats_of(where.stored_bytes);
    beats:
        for (uint32_t at = lengths_start; at + 1 < PAGE_BEATS; ++at) {
#pragma HLS PIPELINE II=1
            const line next = line_of(flashmesh::receive(pages));
            if (at < stored_start) {
                lengths.write(next);
            } else if (at < stored_end) {
                stored.write(next);
            }
        }
    }
}

// The bytes that wait until they are a beat.
struct packer {
    line waiting;
    uint32_t filled;
    uint64_t total;
};

// `from` behind `offset` bytes (below 64): a beat, and what does not fit it.
void shift_up(const line &from, uint32_t offset, line &low, line &high)
{
#pragma HLS INLINE
    const uint32_t skip = offset / 8;
    const uint32_t shift = 8 * (offset % 8);
words:
    for (uint32_t word = 0; word < 2 * BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        // Words before the first and behind the last are 0.
        const uint32_t at = word - skip;
        const uint64_t here = at < BEAT_WORDS ? from.words[at] : 0;
        const uint64_t below = at - 1 < BEAT_WORDS ? from.words[at - 1] : 0;
        const uint64_t both = shift == 0 ? here : here << shift | below >> (64 - shift);
        (word < BEAT_WORDS ? low : high).words[word % BEAT_WORDS] = both;
    }
}

// Puts `count` bytes, behind which the piece has zeros, behind those that wait. Says whether they
// are more than a beat, which is `out` then.
bool append(const line &piece, uint32_t count, packer &state, line &out)
{
#pragma HLS INLINE
    line low;
    line high;
    shift_up(piece, state.filled, low, high);
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        low.words[word] |= state.waiting.words[word];
    }
    out = low;
    state.total += count;
    state.filled += count;
    const bool is_full = state.filled > BEAT_BYTES;
    state.waiting = is_full ? high : low;
    state.filled -= is_full ? BEAT_BYTES : 0;
    return is_full;
}

// The first `count` bytes of a beat.
line first_bytes(const line &from, uint32_t count)
{
#pragma HLS INLINE
    line out;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = from.words[word] & flashmesh::word_mask(word, count);
    }
    return out;
}

// What `count` codes, the lowest bytes of `codes`, stand for. `is_escaped`: the byte before the
// first is an escape; then, the last is one.
line look_up(const symbol_table &known, uint64_t codes, uint32_t count, bool &is_escaped,
             code_ends &ends)
{
#pragma HLS INLINE
    line out = {};
    uint32_t end = 0;
    ends.escapes = 0;
codes:
    for (uint32_t i = 0; i < STEP_CODES; ++i) {
#pragma HLS UNROLL
        const uint8_t code = static_cast<uint8_t>(codes >> (8 * i));
        const bool is_here = i < count;
        const bool is_escape = is_here && !is_escaped && code == ESCAPE;
        uint64_t symbol = 0;
        uint32_t length = 0;
        if (is_here && !is_escape) {
            symbol = is_escaped ? code : known.symbols[i][code];
            length = is_escaped ? 1 : known.lengths[i][code];
        }
        // Code i has at most 8 * i bytes before it, so that these are within the beat.
        const uint32_t shift = 8 * (end % 8);
        out.words[end / 8 % BEAT_WORDS] |= symbol << shift;
        if (shift != 0) {
            out.words[(end / 8 + 1) % BEAT_WORDS] |= symbol >> (64 - shift);
        }
        end += length;
        ends.ends[i] = static_cast<uint8_t>(end);
        ends.escapes = static_cast<uint8_t>(ends.escapes | (is_escape ? 1U << i : 0U));
        is_escaped = is_escape;
    }
    return out;
}

// Puts bytes behind those of the page that wait; a beat that they fill leaves when it is known that
// it is not the page's last.
void send_bytes(const line &piece, uint32_t count, uint32_t tag, packer &state, axis &bytes)
{
#pragma HLS INLINE
    line full;
    if (append(piece, count, state, full)) {
        beat out = to_beat(full, BEAT_BYTES);
        out.tag = tag;
        flashmesh::send(bytes, out);
    }
}

// Makes the bytes of pages of what they store.
void expand(uint32_t page_count, const symbol_table &known,
            flashmesh::stream<layout, LAYOUT_DEPTH> &plans,
            flashmesh::stream<line, DEPTH> &stored, flashmesh::stream<code_ends, DEPTH> &steps,
            axis &bytes)
{
    line constant[PAGE_BEATS];
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        const uint32_t stored_beats = beats_of(where.stored_bytes);
        packer state = {};
        if (where.kind == CODES) {
            bool is_escaped = false;
            line next = {};
            const uint32_t step_count = (where.stored_bytes + STEP_CODES - 1) / STEP_CODES;
        codes:
            for (uint32_t step = 0; step < step_count; ++step) {
#pragma HLS PIPELINE II=1
                if (step % BEAT_WORDS == 0) {
                    next = stored.read();
                }
                const uint32_t left = where.stored_bytes - step * STEP_CODES;
                code_ends ends;
                const line piece =
                    look_up(known, next.words[step % BEAT_WORDS],
                            left < STEP_CODES ? left : STEP_CODES, is_escaped, ends);
                steps.write(ends);
                send_bytes(piece, ends.ends[STEP_CODES - 1], where.tag, state, bytes);
            }
        } else if (where.kind == BYTES) {
        bytes:
            for (uint32_t at = 0; at < stored_beats; ++at) {
#pragma HLS PIPELINE II=1
                const uint32_t left = where.stored_bytes - at * BEAT_BYTES;
                const uint32_t count = left < BEAT_BYTES ? left : BEAT_BYTES;
                send_bytes(first_bytes(stored.read(), count), count, where.tag, state, bytes);
            }
        } else {
        constant:
            for (uint32_t at = 0; at < stored_beats; ++at) {
#pragma HLS PIPELINE II=1
                const uint32_t left = where.stored_bytes - at * BEAT_BYTES;
                constant[at] = first_bytes(stored.read(), left);
            }
            uint32_t at = 0;
        rows:
            for (uint32_t i = 0; i < where.values * stored_beats; ++i) {
#pragma HLS PIPELINE II=1
                const uint32_t left = where.stored_bytes - at * BEAT_BYTES;
                send_bytes(constant[at], left < BEAT_BYTES ? left : BEAT_BYTES, where.tag, state,
                           bytes);
                at = at + 1 < stored_beats ? at + 1 : 0;
            }
        }
        beat last = to_beat(state.waiting, state.filled);
        last.tag = where.tag;
        last.is_last = true;
        flashmesh::send(bytes, last);
    }
}

// `width` (16 at most) bits of two beats that lie one behind the other.
uint32_t bits_at(const line &low, const line &high, uint32_t bit, uint32_t width)
{
#pragma HLS INLINE
    const uint32_t word = bit / 64;
    const uint32_t shift = bit % 64;
    const uint64_t above = word + 1 < BEAT_WORDS ? low.words[word + 1] : high.words[0];
    const uint64_t both =
        low.words[word] >> shift | (shift == 0 ? 0 : above << (64 - shift));
    return static_cast<uint32_t>(both & ((uint64_t{1} << width) - 1));
}

// Makes packets of where rows end of their stored lengths. Of a page whose lengths are wrong it makes
// as many rows as the header says all the same.
void end_rows(uint32_t page_count, flashmesh::stream<layout, LAYOUT_DEPTH> &plans,
              flashmesh::stream<line, PAGE_BEATS> &validity,
              flashmesh::stream<line, PAGE_BEATS> &lengths,
              flashmesh::stream<code_ends, DEPTH> &steps, axis &packets)
{
    line starts[STARTS_BEATS];
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const layout where = plans.read();
        beat out = {};
        out.tag = where.tag;
        out.bytes = BEAT_BYTES;
        out.words[0] = where.rows;
        out.words[1] = where.continues ? 1 : 0;
        flashmesh::send(packets, out);
        const uint32_t step_count =
            where.kind == CODES ? (where.stored_bytes + STEP_CODES - 1) / STEP_CODES : 0;
        uint32_t taken = 0;
        line low = {};
        line high = {};
        const uint32_t starts_beats = beats_of(START_BYTES * where.starts);
    starts:
        while (taken < starts_beats) {
#pragma HLS PIPELINE II=1
            low = lengths.read();
            starts[taken] = low;
            ++taken;
        }
        // Within `low`; a length begins there, and ends in `high` if not there. As the spare bytes
        // are fewer than a beat, the last length leaves no beat of the region untaken.
        flashmesh::bits<10> bit = 16 * where.starts % BEAT_BITS;
        if (bit == 0 && taken < where.lengths_beats) {
            low = lengths.read();
            ++taken;
        }
        if (taken < where.lengths_beats) {
            high = lengths.read();
            ++taken;
        }
        bool is_sound = true;
        bool is_escape_last = false;
        bool has_bits = false;
        line bits = {};
        line ends = {};
        uint32_t row = 0;
        bool is_begun = false;
        // Of the row, within what is stored; of CONST, within what it gives.
        uint32_t end = 0;
        uint32_t taken_steps = 0;
        // Bytes of the steps before the last one taken.
        uint32_t before = 0;
        code_ends step = {};
    rows:
        while (row < where.rows) {
#pragma HLS PIPELINE II=1
            if (!has_bits) {
                if (where.validity_beats != 0) {
                    bits = validity.read();
                }
            words:
                for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
                    const uint64_t stored = where.validity_beats != 0 ? bits.words[word]
                                            : where.values != 0       ? ~uint64_t{0}
                                                                      : 0;
                    bits.words[word] = stored & flashmesh::row_mask(word, where.rows - row);
                    out.words[word] = bits.words[word];
                }
                flashmesh::send(packets, out);
                has_bits = true;
                continue;
            }
            if (!is_begun) {
                uint32_t length = where.least;
                if (where.kind == CONSTANT) {
                    const bool is_valid =
                        (bits.words[row / 64 % BEAT_WORDS] >> (row % 64) & 1) != 0;
                    length = is_valid ? length : 0;
                } else {
                    const uint32_t block = row / BLOCK_ROWS;
                    if (row % BLOCK_ROWS == 0) {
                        const line from = starts[block / BEAT_STARTS];
                        is_sound = is_sound && half_word(from, block % BEAT_STARTS) == end;
                    }
                    length += bits_at(low, high, static_cast<uint32_t>(bit), where.width);
                    bit += where.width;
                    if (bit >= BEAT_BITS) {
                        bit -= BEAT_BITS;
                        low = high;
                        if (taken < where.lengths_beats) {
                            high = lengths.read();
                            ++taken;
                        }
                    }
                }
                end += length;
                if (where.kind != CONSTANT && end > where.stored_bytes) {
                    is_sound = false;
                    end = where.stored_bytes;
                }
            }
            // The step that the row's last code is in has to be there.
            if (where.kind == CODES && end > taken_steps * STEP_CODES) {
                before += step.ends[STEP_CODES - 1];
                step = steps.read();
                ++taken_steps;
            }
            is_begun = where.kind == CODES && end > taken_steps * STEP_CODES;
            if (!is_begun) {
                uint32_t place = end;
                if (where.kind == CODES) {
                    // Before the first code there is no step, whose ends are 0.
                    const uint32_t last = (end - 1) % STEP_CODES;
                    place = before + step.ends[last];
                    is_escape_last = is_escape_last || (step.escapes >> last & 1) != 0;
                }
                const uint32_t at = row % BEAT_OFFSETS;
                ends.words[at / 2] |= uint64_t{place} << (32 * (at % 2));
                ++row;
                if (at == BEAT_OFFSETS - 1 || row == where.rows) {
                    beat full = to_beat(ends, BEAT_BYTES);
                    full.tag = where.tag;
                    flashmesh::send(packets, full);
                    ends = {};
                }
                has_bits = row % VALID_ROWS != 0;
            }
        }
        if (where.kind != CONSTANT && where.rows != 0 && end != where.stored_bytes) {
            is_sound = false;
        }
    rest_of_steps:
        while (taken_steps < step_count) {
#pragma HLS PIPELINE II=1
            before += step.ends[STEP_CODES - 1];
            step = steps.read();
            ++taken_steps;
        }
    refused:
        // The bitmap of a page in which something else was wrong.
        for (uint32_t at = 0; where.rows == 0 && at < where.validity_beats; ++at) {
#pragma HLS PIPELINE II=1
            validity.read();
        }
        if (where.kind == CODES) {
            end = before + step.ends[STEP_CODES - 1];
            const uint32_t last = (where.stored_bytes - 1) % STEP_CODES;
            const bool is_open = (step.escapes >> last & 1) != 0;
            is_escape_last = is_escape_last || is_open;
        } else if (where.kind == BYTES) {
            end = where.stored_bytes;
        }
        problem found = where.found;
        if (!is_sound) {
            found = BAD_LENGTHS;
        } else if (is_escape_last) {
            found = BAD_ESCAPE;
        }
        beat last = {};
        last.tag = where.tag;
        last.bytes = 16;
        last.is_last = true;
        last.words[0] = found;
        last.words[1] = end;
        flashmesh::send(packets, last);
    }
}

// Whether symbols, if there are any, are a page of them.
bool are_symbols(flashmesh::wide_port page, uint32_t page_bytes)
{
    if (page_bytes == 0) {
        return true;
    }
    if (page_bytes != flashmesh::PAGE_BYTES) {
        return false;
    }
    flashmesh::request(page, 0, 1);
    const page_header header = flashmesh::parse_header(load_line(page, 0, page_bytes).words);
    const uint32_t count = header.row_count;
    if (!flashmesh::is_bounded(header) || header.encoding != flashmesh::ENCODING_FSST ||
        !flashmesh::has_flag(header, flashmesh::FLAG_AUXILIARY) ||
        flashmesh::has_flag(header, flashmesh::FLAG_HAS_VALIDITY) || count >= CODE_COUNT ||
        flashmesh::align_region(count) + SYMBOL_BYTES * count != header.payload_bytes) {
        return false;
    }
    flashmesh::request(page, 1, beats_of(count));
    bool is_sound = true;
    line next = {};
lengths:
    for (uint32_t code = 0; code < count; ++code) {
#pragma HLS PIPELINE II=1
        if (code % BEAT_BYTES == 0) {
            next = load_line(page, 1 + code / BEAT_BYTES, page_bytes);
        }
        const uint32_t length =
            static_cast<uint8_t>(next.words[code / 8 % BEAT_WORDS] >> (8 * (code % 8)));
        is_sound = is_sound && length >= 1 && length <= SYMBOL_BYTES;
    }
    return is_sound;
}

// Loads symbols that are a page of them, or none.
void load_symbols(flashmesh::wide_port page, uint32_t page_bytes, symbol_table &out)
{
    out.is_there = page_bytes != 0;
    uint32_t count = 0;
    if (out.is_there) {
        flashmesh::request(page, 0, 1);
        count = flashmesh::parse_header(load_line(page, 0, page_bytes).words).row_count;
    }
    const uint32_t lengths_beats = beats_of(count);
    flashmesh::request(page, 1, lengths_beats + beats_of(SYMBOL_BYTES * count));
    line lengths[CODE_COUNT / BEAT_BYTES];
lengths:
    for (uint32_t at = 0; at < lengths_beats; ++at) {
#pragma HLS PIPELINE II=1
        lengths[at] = load_line(page, 1 + at, page_bytes);
    }
    line next = {};
codes:
    for (uint32_t code = 0; code < CODE_COUNT; ++code) {
#pragma HLS PIPELINE II=1
        uint32_t length = 0;
        uint64_t symbol = 0;
        if (code < count) {
            if (code % BEAT_WORDS == 0) {
                next = load_line(page, 1 + lengths_beats + code / BEAT_WORDS, page_bytes);
            }
            const uint64_t word = lengths[code / BEAT_BYTES].words[code / 8 % BEAT_WORDS];
            length = static_cast<uint8_t>(word >> (8 * (code % 8)));
            symbol = next.words[code % BEAT_WORDS] & flashmesh::word_mask(0, length);
        }
    lanes:
        for (uint32_t lane = 0; lane < STEP_CODES; ++lane) {
#pragma HLS UNROLL
            out.symbols[lane][code] = symbol;
            out.lengths[lane][code] = static_cast<uint8_t>(length);
        }
    }
}

void decode(axis &pages, uint32_t page_count, const symbol_table &known, bool are_symbols_sound,
            axis &bytes, axis &rows)
{
    FLASHMESH_STREAM(layout, byte_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(layout, row_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(line, validity, PAGE_BEATS);
    FLASHMESH_STREAM(line, lengths, PAGE_BEATS);
    FLASHMESH_STREAM(line, stored, DEPTH);
    FLASHMESH_STREAM(code_ends, steps, DEPTH);
    FLASHMESH_DATAFLOW("text_decode_stream");
    FLASHMESH_STAGE(route, pages, page_count, known.is_there, are_symbols_sound, byte_plans,
                    row_plans, validity, lengths, stored);
    FLASHMESH_STAGE(expand, page_count, known, byte_plans, stored, steps, bytes);
    FLASHMESH_STAGE(end_rows, page_count, row_plans, validity, lengths, steps, rows);
}

} // namespace

FLASHMESH_STREAM_TOP void text_decode_stream(axis &pages, uint32_t page_count,
                                             flashmesh::wide_port symbols, uint32_t symbols_bytes,
                                             axis &bytes, axis &rows)
{
#pragma HLS INTERFACE axis port=pages
#pragma HLS INTERFACE axis port=bytes
#pragma HLS INTERFACE axis port=rows
#pragma HLS INTERFACE m_axi port=symbols bundle=wide offset=slave num_read_outstanding=2
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=symbols_bytes
#pragma HLS INTERFACE ap_ctrl_chain port=return
    symbol_table known;
#pragma HLS ARRAY_PARTITION variable=known.symbols complete dim=1
#pragma HLS ARRAY_PARTITION variable=known.lengths complete dim=1
    const bool are_sound = are_symbols(symbols, symbols_bytes);
    load_symbols(symbols, are_sound ? symbols_bytes : 0, known);
    decode(pages, page_count, known, are_sound, bytes, rows);
}

namespace {

// The first page that is wrong, or no page, and how.
struct refusal {
    uint32_t page;
    problem found;
};

// What a page of a long value may follow: the one before it, if that goes on.
struct value_parts {
    content kind;
    bool is_open;
};

bool follows(const layout &where, value_parts &before)
{
    const bool is_part = where.rows == 0;
    const bool is_sound =
        is_part == before.is_open && (!is_part || where.kind == before.kind);
    before.kind = where.kind;
    before.is_open = where.continues;
    return is_sound;
}

uint64_t bytes_of_pages(uint32_t page_count)
{
    return uint64_t{page_count} * flashmesh::PAGE_BYTES;
}

// Checks all pages before the first is decoded, in batches, so that memory's latency is waited for
// twice in a batch: for the headers, and for the bitmaps that they say are there.
problem check(flashmesh::wide_port pages, uint32_t page_count, bool has_symbols, sums &total)
{
    const uint64_t array_bytes = bytes_of_pages(page_count);
    total = {};
    value_parts parts = {};
    problem found = SOUND;
batches:
    for (uint64_t start = 0; start < page_count && found == SOUND; start += BATCH_PAGES) {
        const uint64_t left = page_count - start;
        const uint32_t batch = left < BATCH_PAGES ? static_cast<uint32_t>(left) : BATCH_PAGES;
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
            problem here = plan_page(flashmesh::parse_header(header.words), plans[i]);
            if (here == SOUND && !follows(plans[i], parts)) {
                here = BAD_PARTS;
            }
            if (here == SOUND && plans[i].kind == CODES && !has_symbols) {
                here = BAD_SYMBOLS;
            }
            if (behind == SOUND && here != SOUND) {
                behind = here;
                sound = i;
            }
        }
    ask_bitmaps:
        for (uint32_t i = 0; i < sound; ++i) {
#pragma HLS PIPELINE II=1
            flashmesh::request(pages, (start + i) * PAGE_BEATS + 1, plans[i].validity_beats);
        }
    bitmaps:
        for (uint32_t i = 0; i < sound; ++i) {
            uint32_t nulls = 0;
        beats:
            for (uint32_t at = 0; at < plans[i].validity_beats; ++at) {
#pragma HLS PIPELINE II=1
                const line next = load_line(pages, (start + i) * PAGE_BEATS + 1 + at, array_bytes);
                nulls += count_nulls(next, plans[i].rows - at * BEAT_BITS);
            }
            // What was asked for is taken, whatever has been found.
            if (found != SOUND) {
                continue;
            }
            if (plans[i].validity_beats != 0 && nulls != plans[i].rows - plans[i].values) {
                found = BAD_VALIDITY;
                continue;
            }
            if (plans[i].kind == BYTES) {
                total.bytes += plans[i].stored_bytes;
            } else if (plans[i].kind == CONSTANT) {
                total.bytes += uint64_t{plans[i].values} * plans[i].stored_bytes;
            }
            if (total.rows > 0xffffffff - plans[i].rows || total.bytes > 0xffffffff) {
                found = TOO_MANY;
                continue;
            }
            total.rows += plans[i].rows;
        }
        found = found == SOUND ? behind : found;
    }
    return found == SOUND && parts.is_open ? BAD_PARTS : found;
}

// Sends pages in their order, tagged with their numbers.
void send_pages(flashmesh::wide_port pages, uint32_t page_count, axis &packets)
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
        beat next = flashmesh::load(pages, i, array_bytes);
        next.tag = static_cast<uint32_t>(i / PAGE_BEATS);
        next.bytes = BEAT_BYTES;
        next.is_last = i % PAGE_BEATS == PAGE_BEATS - 1;
        flashmesh::send(packets, next);
        if (next.is_last && requested < page_count) {
            flashmesh::request(pages, uint64_t{requested} * PAGE_BEATS, PAGE_BEATS);
            ++requested;
        }
    }
}

// Puts the bytes of pages behind each other, in beats that wait until they are a burst.
void join_bytes(uint32_t page_count, axis &packets,
                flashmesh::stream<line, BURST_DEPTH> &beats,
                flashmesh::stream<burst, BURSTS_DEPTH> &bursts)
{
    packer state = {};
    uint32_t burst_beats = 0;
    uint32_t ended = 0;
bytes:
    while (ended < page_count) {
#pragma HLS PIPELINE II=1
        const beat next = flashmesh::receive(packets);
        line full;
        if (append(line_of(next), next.bytes, state, full)) {
            beats.write(full);
            ++burst_beats;
            if (burst_beats == BURST_BEATS) {
                bursts.write({BURST_BEATS * BEAT_BYTES, false});
                burst_beats = 0;
            }
        }
        ended += next.is_last ? 1 : 0;
    }
    if (state.filled != 0) {
        beats.write(state.waiting);
    }
    bursts.write({burst_beats * BEAT_BYTES + state.filled, true});
}

// Bits of validity that wait until they are a word.
struct valid_packer {
    uint64_t word;
    uint32_t bits;
    uint32_t left;
};

// Says of a row where it ends, and whether it is not NULL.
void put_row(uint32_t end, bool is_valid, valid_packer &state,
             flashmesh::stream<uint32_t, DEPTH> &ends, flashmesh::stream<uint64_t, DEPTH> &valid)
{
#pragma HLS INLINE
    ends.write(end);
    state.word |= uint64_t{is_valid} << state.bits;
    ++state.bits;
    --state.left;
    if (state.bits == flashmesh::WORD_BITS || state.left == 0) {
        valid.write(state.word);
        state.word = 0;
        state.bits = 0;
    }
}

// Makes places among all bytes of where rows end in their pages, and one row of the pages of a long
// value. `total` is all bytes.
void place_rows(uint32_t page_count, uint32_t row_count, axis &packets,
                flashmesh::stream<uint32_t, DEPTH> &ends, flashmesh::stream<uint64_t, DEPTH> &valid,
                uint64_t &total, refusal &first)
{
    valid_packer state = {0, 0, row_count};
    // Bytes of the pages before.
    uint64_t base = 0;
    // Whether the long value that goes on is not NULL.
    bool is_long_valid = false;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const beat head = flashmesh::receive(packets);
        const uint32_t rows = static_cast<uint32_t>(head.words[0]);
        const bool continues = head.words[1] != 0;
        bool has_bits = false;
        line bits = {};
        line places = {};
        uint32_t row = 0;
    rows:
        while (row < rows) {
#pragma HLS PIPELINE II=1
            if (!has_bits) {
                bits = line_of(flashmesh::receive(packets));
                has_bits = true;
                continue;
            }
            const uint32_t at = row % BEAT_OFFSETS;
            if (at == 0) {
                places = line_of(flashmesh::receive(packets));
            }
            const bool is_valid = (bits.words[row / 64 % BEAT_WORDS] >> (row % 64) & 1) != 0;
            const uint32_t end = static_cast<uint32_t>(places.words[at / 2] >> (32 * (at % 2)));
            if (continues) {
                is_long_valid = is_valid;
            } else {
                put_row(static_cast<uint32_t>(base) + end, is_valid, state, ends, valid);
            }
            ++row;
            has_bits = row % VALID_ROWS != 0;
        }
        const beat last = flashmesh::receive(packets);
        base += last.words[1];
        if (rows == 0 && !continues) {
            put_row(static_cast<uint32_t>(base), is_long_valid, state, ends, valid);
        }
        const problem found = static_cast<problem>(last.words[0]);
        if (found != SOUND && last.tag < first.page) {
            first = {last.tag, found};
        }
    }
    total = base;
}

// Writes bursts as they are complete, as many of the bytes as there is room for. A burst is waited
// for when the next one is under way.
void write_bytes(uint32_t byte_capacity, flashmesh::stream<line, BURST_DEPTH> &beats,
                 flashmesh::stream<burst, BURSTS_DEPTH> &bursts,
                 flashmesh::wide_result<uint8_t> bytes)
{
    const uint32_t capacity_beats = beats_of(byte_capacity);
    // Beats that were written, and of the burst that is waited for next.
    uint32_t written = 0;
    uint32_t pending = 0;
    bool is_last = false;
bursts:
    while (!is_last) {
        const burst next = bursts.read();
        is_last = next.is_last;
        const uint32_t count = beats_of(next.bytes);
        const uint32_t room = capacity_beats - written;
        const uint32_t kept = count < room ? count : room;
        flashmesh::request_store(bytes, written, kept);
    beats:
        for (uint32_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
            const line from = beats.read();
            if (i < kept) {
                const uint32_t left = next.bytes - i * BEAT_BYTES;
                const uint32_t place = (written + i) * BEAT_BYTES;
                uint32_t size = left < BEAT_BYTES ? left : BEAT_BYTES;
                size = size < byte_capacity - place ? size : byte_capacity - place;
                flashmesh::store(bytes, written + i, to_beat(from, size));
            }
        }
        flashmesh::finish_store(bytes, pending);
        pending = kept;
        written += kept;
    }
    flashmesh::finish_store(bytes, pending);
}

void write_offsets(uint32_t total, flashmesh::stream<uint32_t, DEPTH> &ends,
                   flashmesh::wide_result<uint32_t> offsets)
{
    const uint64_t count = uint64_t{total} + 1;
    const uint64_t beats = (count + BEAT_OFFSETS - 1) / BEAT_OFFSETS;
    flashmesh::request_store(offsets, 0, beats);
    line out = {};
offsets:
    for (uint64_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        const uint32_t place = static_cast<uint32_t>(i % BEAT_OFFSETS);
        const uint64_t end = i == 0 ? 0 : ends.read();
        if (place == 0) {
            out = {};
        }
        out.words[place / 2] |= end << (32 * (place % 2));
        if (place == BEAT_OFFSETS - 1 || i + 1 == count) {
            flashmesh::store(offsets, i / BEAT_OFFSETS, to_beat(out, 4 * (place + 1)));
        }
    }
    flashmesh::finish_store(offsets, beats);
}

void write_valid(uint32_t total, flashmesh::stream<uint64_t, DEPTH> &words, uint64_t *valid)
{
words:
    for (uint32_t i = 0; i < flashmesh::bitmap_words(total); ++i) {
#pragma HLS PIPELINE II=1
        valid[i] = words.read();
    }
}

void run(flashmesh::wide_port pages, uint32_t page_count, flashmesh::wide_port symbols,
         uint32_t symbols_bytes, uint32_t row_count, uint32_t byte_capacity,
         flashmesh::wide_result<uint32_t> offsets, flashmesh::wide_result<uint8_t> bytes,
         uint64_t *valid, uint64_t &byte_count, refusal &first)
{
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, page_bytes, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, page_rows, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(line, byte_beats, BURST_DEPTH);
    FLASHMESH_STREAM(burst, bursts, BURSTS_DEPTH);
    FLASHMESH_STREAM(uint32_t, ends, DEPTH);
    FLASHMESH_STREAM(uint64_t, valid_words, DEPTH);
    FLASHMESH_DATAFLOW("text_decode");
    FLASHMESH_STAGE(send_pages, pages, page_count, packets);
    FLASHMESH_STAGE(text_decode_stream, packets, page_count, symbols, symbols_bytes, page_bytes,
                    page_rows);
    FLASHMESH_STAGE(join_bytes, page_count, page_bytes, byte_beats, bursts);
    FLASHMESH_STAGE(place_rows, page_count, row_count, page_rows, ends, valid_words, byte_count,
                    first);
    FLASHMESH_STAGE(write_bytes, byte_capacity, byte_beats, bursts, bytes);
    FLASHMESH_STAGE(write_offsets, row_count, ends, offsets);
    FLASHMESH_STAGE(write_valid, row_count, valid_words, valid);
}

} // namespace

FLASHMESH_KERNEL void text_decode(flashmesh::wide_port pages, uint32_t page_count,
                                  flashmesh::wide_port symbols, uint32_t symbols_bytes,
                                  uint32_t capacity, uint32_t byte_capacity,
                                  flashmesh::wide_result<uint32_t> offsets,
                                  flashmesh::wide_result<uint8_t> bytes, uint64_t *valid,
                                  uint32_t *rows, uint32_t *byte_count, uint32_t *status)
{
#pragma HLS INTERFACE m_axi port=pages bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=symbols bundle=wide_symbols offset=slave num_read_outstanding=2 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=offsets bundle=offsets offset=slave num_write_outstanding=16 max_write_burst_length=64
#pragma HLS INTERFACE m_axi port=bytes bundle=bytes offset=slave num_write_outstanding=16 max_write_burst_length=64
#pragma HLS INTERFACE m_axi port=valid bundle=valid offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=rows bundle=answers offset=slave
#pragma HLS INTERFACE m_axi port=byte_count bundle=answers offset=slave
#pragma HLS INTERFACE m_axi port=status bundle=answers offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=symbols_bytes
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=byte_capacity
#pragma HLS INTERFACE s_axilite port=return
    sums total = {};
    problem found = BAD_SYMBOLS;
    if (are_symbols(symbols, symbols_bytes)) {
        found = check(pages, page_count, symbols_bytes != 0, total);
    }
    if (found == SOUND && total.rows <= capacity && total.bytes <= byte_capacity) {
        refusal first = {NO_PAGE, SOUND};
        run(pages, page_count, symbols, symbols_bytes, total.rows, byte_capacity, offsets, bytes,
            valid, total.bytes, first);
        found = total.bytes > 0xffffffff ? TOO_MANY : first.found;
    }
    *rows = found == SOUND ? total.rows : 0;
    *byte_count = found == SOUND ? static_cast<uint32_t>(total.bytes) : 0;
    *status = found;
}
