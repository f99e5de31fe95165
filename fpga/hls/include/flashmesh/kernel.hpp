// What every flashmesh kernel includes; docs/kernels.md describes kernels and their arguments.
//
// One source has three compilers: clang for WebAssembly (the sandbox), g++ (C simulation) and
// Vitis HLS (the FPGA). So this header takes nothing but fixed-width integers and knows neither
// streams of the standard library nor exceptions.
#ifndef FLASHMESH_KERNEL_HPP
#define FLASHMESH_KERNEL_HPP

#include <stdint.h>

// Stands before the definition of a C function that flashmesh calls: neither its name is mangled
// nor is it hidden where everything else is.
#define FLASHMESH_KERNEL extern "C" __attribute__((visibility("default")))

// Stands before the declaration of another kernel that this one calls. In the sandbox the call
// goes through the store; elsewhere the other kernel is linked.
#if defined(__wasm__)
#define FLASHMESH_IMPORT(name) \
    extern "C" __attribute__((import_module("flashmesh.kernel"), import_name(#name)))
#else
#define FLASHMESH_IMPORT(name) extern "C"
#endif

namespace flashmesh {

// Bytes of a page on flash, header included.
constexpr uint32_t PAGE_BYTES = 8192;

// Bits of a bitmap's word; bit i % 64 of word i / 64 is row i's.
constexpr uint32_t WORD_BITS = 64;

// Words of a bitmap of `rows` rows. Written without a sum that could wrap.
inline uint32_t bitmap_words(uint32_t rows)
{
    return rows / WORD_BITS + (rows % WORD_BITS != 0 ? 1 : 0);
}

// The bits of word `word` of a bitmap of `rows` rows that belong to rows.
inline uint64_t row_mask(uint32_t word, uint32_t rows)
{
    if (word < rows / WORD_BITS) {
        return ~uint64_t{0};
    }
    return word == rows / WORD_BITS ? (uint64_t{1} << (rows % WORD_BITS)) - 1 : 0;
}

// Clears all words, the bits beyond `rows` in the last one included.
inline void clear(uint64_t *bitmap, uint32_t rows)
{
clear:
    for (uint32_t word = 0; word < bitmap_words(rows); ++word) {
#pragma HLS PIPELINE II=1
        bitmap[word] = 0;
    }
}

// Sets the bit of `row` if `keep`; a bit that is set stays so.
inline void select(uint64_t *bitmap, uint32_t row, bool keep)
{
    bitmap[row / WORD_BITS] |= uint64_t{keep} << (row % WORD_BITS);
}

#if defined(__wasm_simd128__)

namespace detail {

using bytes = int8_t __attribute__((vector_size(16)));
using halves = int16_t __attribute__((vector_size(16)));
using words = int32_t __attribute__((vector_size(16)));

// The truth of four rows: all ones or zero.
template <typename Condition>
inline words truths(uint32_t row, Condition &condition)
{
    const bool first = condition(row);
    const bool second = condition(row + 1);
    const bool third = condition(row + 2);
    const bool fourth = condition(row + 3);
    return words{-int32_t{first}, -int32_t{second}, -int32_t{third}, -int32_t{fourth}};
}

// The bits of sixteen rows. Comparisons that the compiler makes of four rows at once stay vectors
// until they are bits.
template <typename Condition>
inline uint64_t select_sixteen(uint32_t row, Condition &condition)
{
    const halves low = __builtin_wasm_narrow_s_i16x8_i32x4(truths(row, condition),
                                                           truths(row + 4, condition));
    const halves high = __builtin_wasm_narrow_s_i16x8_i32x4(truths(row + 8, condition),
                                                            truths(row + 12, condition));
    const bytes all = __builtin_wasm_narrow_s_i8x16_i16x8(low, high);
    return static_cast<uint16_t>(__builtin_wasm_bitmask_i8x16(all));
}

} // namespace detail

#endif

// Writes the bitmap of the rows for which `condition(row)` is true, whole words. In the sandbox this
// is several times as fast as a `select` for each row.
template <typename Condition>
inline void select_where(uint64_t *bitmap, uint32_t rows, Condition condition)
{
#pragma HLS INLINE
    uint32_t first = 0;
#if defined(__wasm_simd128__)
    for (; rows - first >= WORD_BITS; first += WORD_BITS) {
        uint64_t bits = 0;
        for (uint32_t bit = 0; bit < WORD_BITS; bit += 16) {
            bits |= detail::select_sixteen(first + bit, condition) << bit;
        }
        bitmap[first / WORD_BITS] = bits;
    }
#endif
    uint64_t bits = 0;
select_where:
    for (uint32_t row = first; row < rows; ++row) {
#pragma HLS PIPELINE II=1
        const bool keep = condition(row);
        bits |= uint64_t{keep} << (row % WORD_BITS);
        if (row % WORD_BITS == WORD_BITS - 1 || row + 1 == rows) {
            bitmap[row / WORD_BITS] = bits;
            bits = 0;
        }
    }
}

inline bool is_set(const uint64_t *bitmap, uint32_t row)
{
    return ((bitmap[row / WORD_BITS] >> (row % WORD_BITS)) & 1) != 0;
}

inline bool is_selected(const uint64_t *selection, uint32_t row)
{
    return is_set(selection, row);
}

inline bool is_valid(const uint64_t *valid, uint32_t row)
{
    return is_set(valid, row);
}

// `size` bytes (8 at most) as a little-endian number. Byte by byte: `bytes` need not be aligned.
inline uint64_t load_bytes(const uint8_t *bytes, uint32_t size)
{
    uint64_t number = 0;
load_bytes:
    for (uint32_t byte = 0; byte < 8; ++byte) {
#pragma HLS UNROLL
        if (byte < size) {
            number |= uint64_t{bytes[byte]} << (8 * byte);
        }
    }
    return number;
}

// Little-endian numbers that lie anywhere.
inline uint16_t load_u16(const uint8_t *bytes)
{
    return static_cast<uint16_t>(load_bytes(bytes, 2));
}

inline uint32_t load_u32(const uint8_t *bytes)
{
    return static_cast<uint32_t>(load_bytes(bytes, 4));
}

inline uint64_t load_u64(const uint8_t *bytes)
{
    return load_bytes(bytes, 8);
}

// A double in a 64-bit word, as states of aggregates have it, and back.
inline uint64_t to_word(double value)
{
    uint64_t word;
    __builtin_memcpy(&word, &value, sizeof word);
    return word;
}

inline double to_double(uint64_t word)
{
    double value;
    __builtin_memcpy(&value, &word, sizeof value);
    return value;
}

} // namespace flashmesh

#endif
