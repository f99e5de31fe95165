// A page of texts: where its regions are, and what they hold (docs/flash-format.md, section 6).
#ifndef FLASHMESH_TEXT_PAGE_HPP
#define FLASHMESH_TEXT_PAGE_HPP

#include <flashmesh/bits.hpp>
#include <flashmesh/decode.hpp>

namespace flashmesh {

constexpr uint32_t BEAT_BITS = 8 * BEAT_BYTES;
// Rows between two stored starts.
constexpr uint32_t START_ROWS = 32;
constexpr uint32_t START_BYTES = 2;
constexpr uint32_t BEAT_STARTS = BEAT_BYTES / START_BYTES;
constexpr uint32_t STARTS_BEATS = SEGMENT_ROWS / START_ROWS / BEAT_STARTS;
// Behind the packed lengths.
constexpr uint32_t SPARE_BYTES = 3;
constexpr uint32_t MAX_WIDTH = 16;

enum content : uint8_t {
    // Codes of FSST.
    CODES,
    BYTES,
    // The bytes of every row.
    CONSTANT,
};

// Where the regions of a page are, in beats behind the header, and what they hold. A page that only
// goes on with a value has no rows.
struct text_layout : row_layout {
    // Behind the lengths.
    uint32_t stored_bytes;
    uint32_t starts;
    // Of a packed length, and what is added to it.
    uint32_t width;
    uint32_t least;
    uint8_t lengths_beats;
    content kind;
    // The value goes on in the next page.
    bool continues;
};

inline problem plan_constant(const page_header &header, text_layout &out)
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

inline problem plan_text(const page_header &header, text_layout &out)
{
    if (out.continues && out.rows != 1) {
        return BAD_PARTS;
    }
    out.starts = (out.rows + START_ROWS - 1) / START_ROWS;
    out.width = header.width;
    out.least = static_cast<uint32_t>(header.reference);
    const uint32_t bytes =
        align_region(START_BYTES * out.starts + (out.rows * out.width + 7) / 8 + SPARE_BYTES);
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
inline problem plan_page(const page_header &header, text_layout &out)
{
    out = {};
    if (!is_bounded(header) || header.encoding == 0 || header.encoding > ENCODING_RLE) {
        return BAD_HEADER;
    }
    const bool is_constant = header.encoding == ENCODING_CONST;
    const bool has_bytes = header.encoding == ENCODING_RAWSTR;
    out.continues = has_flag(header, FLAG_CONTINUES);
    out.kind = has_bytes ? BYTES : CODES;
    if (!is_constant && !has_bytes && header.encoding != ENCODING_FSST) {
        return NOT_DECODED;
    }
    // Of auxiliary pages, a dictionary.
    if (has_flag(header, FLAG_AUXILIARY) &&
        (!has_bytes || header.row_count == 0 || out.continues)) {
        return NOT_DECODED;
    }
    if (header.row_count == 0) {
        out.stored_bytes = header.payload_bytes;
        return is_constant ? NOT_DECODED : SOUND;
    }
    const problem found = plan_rows(header, out);
    if (found != SOUND) {
        return found;
    }
    return is_constant ? plan_constant(header, out) : plan_text(header, out);
}

// What a page of a long value may follow: the one before it, if that goes on.
struct value_parts {
    content kind;
    bool is_open;
};

inline bool follows(const text_layout &where, value_parts &before)
{
    const bool is_part = where.rows == 0;
    const bool is_sound = is_part == before.is_open && (!is_part || where.kind == before.kind);
    before.kind = where.kind;
    before.is_open = where.continues;
    return is_sound;
}

// The stored lengths of a page's rows, as far as they were taken.
struct length_reader {
    line starts[STARTS_BEATS];
    // The next length begins in `low`, at `bit`, and ends in `high` if not there.
    line low;
    line high;
    bits<10> bit;
    // Beats of the region.
    uint32_t taken;
};

using lengths_stream = stream<line, PAGE_BEATS>;

inline line next_lengths(const text_layout &where, lengths_stream &lengths, length_reader &state)
{
#pragma HLS INLINE
    line next = {};
    if (state.taken < where.lengths_beats) {
        next = lengths.read();
        ++state.taken;
    }
    return next;
}

// Takes the starts. As the spare bytes are fewer than a beat, the last length leaves no beat of the
// region untaken.
inline void begin_lengths(const text_layout &where, lengths_stream &lengths, length_reader &state)
{
    const uint32_t starts_beats = beats_of(START_BYTES * where.starts);
    state.low = {};
    state.taken = 0;
starts:
    while (state.taken < starts_beats) {
#pragma HLS PIPELINE II=1
        state.low = lengths.read();
        state.starts[state.taken] = state.low;
        ++state.taken;
    }
    state.bit = 8 * START_BYTES * where.starts % BEAT_BITS;
    if (state.bit == 0) {
        state.low = next_lengths(where, lengths, state);
    }
    state.high = next_lengths(where, lengths, state);
}

// Where the block that begins with a row does.
inline uint32_t start_of(uint32_t row, const length_reader &state)
{
#pragma HLS INLINE
    const uint32_t block = row / START_ROWS;
    const line from = state.starts[block / BEAT_STARTS];
    const uint32_t place = block % BEAT_STARTS;
    return static_cast<uint16_t>(from.words[place / 4] >> (16 * (place % 4)));
}

// What is stored of the next row's length: MAX_WIDTH bits at most.
inline uint32_t next_length(const text_layout &where, lengths_stream &lengths,
                            length_reader &state)
{
#pragma HLS INLINE
    const uint32_t bit = static_cast<uint32_t>(state.bit);
    const uint32_t word = bit / 64;
    const uint32_t shift = bit % 64;
    const uint64_t above =
        word + 1 < BEAT_WORDS ? state.low.words[word + 1] : state.high.words[0];
    const uint64_t both =
        state.low.words[word] >> shift | (shift == 0 ? 0 : above << (64 - shift));
    state.bit += where.width;
    if (state.bit >= BEAT_BITS) {
        state.bit -= BEAT_BITS;
        state.low = state.high;
        state.high = next_lengths(where, lengths, state);
    }
    return static_cast<uint32_t>(both & ((uint64_t{1} << where.width) - 1));
}

} // namespace flashmesh

#endif
