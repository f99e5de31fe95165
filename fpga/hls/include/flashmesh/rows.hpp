// Rows as packets: what columns have of a row group, and where it meets.
//
// Rows go in row groups of GROUP_ROWS, of which the last may have fewer. A packet is what one column
// has of one row group: a beat of validity, a bit for each row, and a beat for each eight values,
// where bits and values behind the last row mean nothing. Its tag is the row group times the number
// of columns there may be, and the column.
//
// The columns of a row group meet on chip, in a FIFO for each column of each of OPEN_GROUPS row
// groups. When the last one has come, the row group is taken from there, and others may take its
// place. So packets come in any order, as long as no more than OPEN_GROUPS row groups have begun and
// miss a column: who asks flash for pages has that in hand, and memory on chip is bounded.
#ifndef FLASHMESH_ROWS_HPP
#define FLASHMESH_ROWS_HPP

#include <flashmesh/beat.hpp>

namespace flashmesh {

// The validity of a row group is a beat.
constexpr uint32_t GROUP_ROWS = 8 * BEAT_BYTES;
// Row groups that have begun to come.
constexpr uint32_t OPEN_GROUPS = 4;
// All that a column has of a row group.
constexpr uint32_t COLUMN_DEPTH = 1 + GROUP_ROWS / BEAT_WORDS;

using column_stream = stream<line, COLUMN_DEPTH>;

// A row group whose columns have all come, and the place in which they wait.
struct whole_group {
    uint32_t number;
    uint32_t place;
};

inline uint32_t groups_of(uint32_t rows)
{
    return rows / GROUP_ROWS + (rows % GROUP_ROWS != 0 ? 1 : 0);
}

// Rows of a row group.
inline uint32_t rows_in(uint32_t group, uint32_t rows)
{
    const uint32_t left = rows - group * GROUP_ROWS;
    return left < GROUP_ROWS ? left : GROUP_ROWS;
}

// Beats of their values.
inline uint32_t beats_in(uint32_t group, uint32_t rows)
{
    return (rows_in(group, rows) + BEAT_WORDS - 1) / BEAT_WORDS;
}

// Puts each of `count` packets in the FIFO of its column and row group, and says which row groups
// have all columns whose bits are in `wanted`; packets of others are dropped. Streams are
// OPEN_GROUPS times as many as columns.
template <uint32_t Streams>
void meet(axis &packets, uint64_t count, uint32_t wanted, column_stream (&columns)[Streams],
          stream<whole_group, OPEN_GROUPS> &whole)
{
    static_assert(Streams % OPEN_GROUPS == 0, "a FIFO for each column of each open row group");
    constexpr uint32_t COLUMNS = Streams / OPEN_GROUPS;
    uint32_t groups[OPEN_GROUPS] = {};
#pragma HLS ARRAY_PARTITION variable=groups complete
    // Of each row group the columns that have come; the place is free where none has.
    uint32_t come[OPEN_GROUPS] = {};
#pragma HLS ARRAY_PARTITION variable=come complete
    uint64_t ended = 0;
    uint32_t place = 0;
    bool is_first = true;
beats:
    while (ended < count) {
#pragma HLS PIPELINE II=1
        const beat next = receive(packets);
        const uint32_t group = next.tag / COLUMNS;
        const uint32_t column = next.tag % COLUMNS;
        const bool is_wanted = (wanted >> column & 1) != 0;
        if (is_first) {
            uint32_t free = 0;
            place = OPEN_GROUPS;
        places:
            for (uint32_t i = 0; i < OPEN_GROUPS; ++i) {
#pragma HLS UNROLL
                if (come[i] == 0) {
                    free = i;
                } else if (groups[i] == group) {
                    place = i;
                }
            }
            place = place == OPEN_GROUPS ? free : place;
        }
        is_first = next.is_last;
        if (is_wanted) {
            columns[place * COLUMNS + column].write(line_of(next));
        }
        if (next.is_last) {
            ++ended;
        }
        if (next.is_last && is_wanted) {
            groups[place] = group;
            come[place] |= 1U << column;
            if (come[place] == wanted) {
                whole.write({group, place});
                come[place] = 0;
            }
        }
    }
}

// What a column has of a row group.
struct piece {
    uint32_t group;
    uint32_t column;
};

// Piece `number` of the `count` that `columns` columns have of all row groups, in the order in which
// an array's are sent: OPEN_GROUPS row groups at a time.
inline piece piece_at(uint64_t number, uint64_t count, uint32_t columns)
{
    const uint64_t open = uint64_t{OPEN_GROUPS} * columns;
    const uint64_t first = number / open * open;
    const uint64_t left = count - first;
    const uint32_t place = delivered(static_cast<uint32_t>(number - first),
                                     static_cast<uint32_t>(left < open ? left : open));
    return {static_cast<uint32_t>((first + place) / columns),
            static_cast<uint32_t>((first + place) % columns)};
}

} // namespace flashmesh

#endif
