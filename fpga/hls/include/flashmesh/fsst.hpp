// Codes of FSST: a byte stands for a symbol of up to 8 bytes (Boncz, Neumann and Leis, "FSST: fast
// random access string compression", 2020; docs/flash-format.md, section 6).
//
// The codes of a step are looked up at once, each in a copy of the symbols of its own. Which of them
// are escaped is a chain of eight bits, where their symbols go one of eight lengths.
#ifndef FLASHMESH_FSST_HPP
#define FLASHMESH_FSST_HPP

#include <flashmesh/beat.hpp>
#include <flashmesh/page.hpp>

namespace flashmesh {

constexpr uint32_t CODE_COUNT = 256;
constexpr uint8_t ESCAPE = 255;
constexpr uint32_t SYMBOL_BYTES = 8;
// Codes that are looked up together: what they stand for is a beat at most.
constexpr uint32_t STEP_CODES = 8;
static_assert(STEP_CODES * SYMBOL_BYTES == BEAT_BYTES, "symbols of a step are a beat at most");

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

// Whether symbols, if there are any, are a page of them.
inline bool are_symbols(wide_port page, uint32_t page_bytes)
{
    if (page_bytes == 0) {
        return true;
    }
    if (page_bytes != PAGE_BYTES) {
        return false;
    }
    request(page, 0, 1);
    const page_header header = parse_header(load_line(page, 0, page_bytes).words);
    const uint32_t count = header.row_count;
    if (!is_bounded(header) || header.encoding != ENCODING_FSST ||
        !has_flag(header, FLAG_AUXILIARY) || has_flag(header, FLAG_HAS_VALIDITY) ||
        count >= CODE_COUNT ||
        align_region(count) + SYMBOL_BYTES * count != header.payload_bytes) {
        return false;
    }
    request(page, 1, beats_of(count));
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
inline void load_symbols(wide_port page, uint32_t page_bytes, symbol_table &out)
{
    out.is_there = page_bytes != 0;
    uint32_t count = 0;
    if (out.is_there) {
        request(page, 0, 1);
        count = parse_header(load_line(page, 0, page_bytes).words).row_count;
    }
    const uint32_t lengths_beats = beats_of(count);
    request(page, 1, lengths_beats + beats_of(SYMBOL_BYTES * count));
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
            symbol = next.words[code % BEAT_WORDS] & word_mask(0, length);
        }
    lanes:
        for (uint32_t lane = 0; lane < STEP_CODES; ++lane) {
#pragma HLS UNROLL
            out.symbols[lane][code] = symbol;
            out.lengths[lane][code] = static_cast<uint8_t>(length);
        }
    }
}

// What `count` codes, the lowest bytes of `codes`, stand for. `is_escaped`: the byte before the
// first is an escape; then, the last is one.
inline line look_up(const symbol_table &known, uint64_t codes, uint32_t count, bool &is_escaped,
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

} // namespace flashmesh

#endif
