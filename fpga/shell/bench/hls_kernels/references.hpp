// What must come of the kernels, by the plainest means.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "../device/requests.hpp"

using Bytes = std::vector<uint8_t>;
constexpr uint32_t NOT_FOUND = 0xffffffff;

// The bytes of a page that nobody has written.
inline Bytes bytes_of(const Wanted& page) {
    Bytes bytes;
    for (unsigned at = 0; at < PAGE_WORDS; ++at) {
        for (const uint32_t part : pattern(page.contents, at)) {
            for (unsigned byte = 0; byte < 4; ++byte)
                bytes.push_back(static_cast<uint8_t>(part >> 8 * byte));
        }
    }
    return bytes;
}

template <typename Number>
void append(Bytes& to, Number number) {
    for (unsigned byte = 0; byte < sizeof number; ++byte)
        to.push_back(static_cast<uint8_t>(number >> 8 * byte));
}

inline uint64_t number_at(const Bytes& from, size_t at) {
    uint64_t number = 0;
    for (unsigned byte = 0; byte < 8; ++byte) number |= uint64_t{from[at + byte]} << 8 * byte;
    return number;
}

inline void put_number(Bytes& to, size_t at, uint64_t number) {
    for (unsigned byte = 0; byte < 8; ++byte)
        to[at + byte] = static_cast<uint8_t>(number >> 8 * byte);
}

// What an operation, from 1 to 6, makes of a word.
inline uint64_t modified(uint64_t word, uint64_t opcode, uint64_t operand, uint64_t compare) {
    const uint64_t by_opcode[] = {word + operand, word & operand, word | operand, word ^ operand,
                                  operand, word == compare ? operand : word};
    return by_opcode[opcode - 1];
}

// Where `wanted` first occurs.
inline uint32_t find(const Bytes& text, const Bytes& wanted) {
    const auto found = std::search(text.begin(), text.end(), wanted.begin(), wanted.end());
    if (found == text.end() && !wanted.empty()) return NOT_FOUND;
    return static_cast<uint32_t>(found - text.begin());
}

struct Neighbour {
    uint32_t row = 0, distance = 0;
    bool operator<(const Neighbour& other) const {
        return std::tie(distance, row) < std::tie(other.distance, other.row);
    }
};

inline uint32_t hamming(const uint8_t* one, const uint8_t* other, uint32_t bytes) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < bytes; ++i) bits += __builtin_popcount(one[i] ^ other[i]);
    return bits;
}
