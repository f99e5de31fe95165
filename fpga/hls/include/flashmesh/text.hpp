// Texts as packets: what search kernels take, and what gives them the texts of an array.
//
// A packet is a text, its tag the text's row; packets come in any order. In a card's slot a text is
// a page of the haystack (BlueDBM, section 7.3), or a value of it. A result is a packet of one beat
// with the text's tag.
#ifndef FLASHMESH_TEXT_HPP
#define FLASHMESH_TEXT_HPP

#include <flashmesh/beat.hpp>

namespace flashmesh {

struct text_place {
    uint32_t start;
    uint32_t length;
    uint32_t row;
};

constexpr uint32_t PLACES_DEPTH = 32;

// Row i is the bytes offsets[i] .. offsets[i + 1]. In order, each offset is read once.
inline void read_offsets(const uint32_t *offsets, uint32_t rows,
                         stream<text_place, PLACES_DEPTH> &places)
{
    uint32_t known_row = 0xffffffff;
    uint32_t known = 0;
rows:
    for (uint32_t i = 0; i < rows; ++i) {
#pragma HLS PIPELINE II=1
        const uint32_t row = delivered(i, rows);
        const uint32_t start = row == known_row ? known : offsets[row];
        known_row = row + 1;
        known = offsets[row + 1];
        places.write({start, known - start, row});
    }
}

inline void send_texts(wide_port bytes, uint64_t array_bytes, uint32_t rows,
                       stream<text_place, PLACES_DEPTH> &places, axis &texts)
{
rows:
    for (uint32_t i = 0; i < rows; ++i) {
        const text_place next = places.read();
        send_packet(bytes, array_bytes, next.start, next.length, next.row, texts);
    }
}

// Puts the first word of each text's result in its row.
template <typename T>
void receive_results(axis &results, uint32_t rows, T *out)
{
rows:
    for (uint32_t i = 0; i < rows; ++i) {
#pragma HLS PIPELINE II=1
        const beat next = receive(results);
        out[next.tag] = static_cast<T>(next.words[0]);
    }
}

// The result of the text with tag `tag`.
inline beat result_of(uint32_t tag, uint32_t result)
{
    beat out = {};
    out.words[0] = result;
    out.tag = tag;
    out.bytes = sizeof result;
    out.is_last = true;
    return out;
}

} // namespace flashmesh

#endif
