// One step of a breadth-first search: the vertices that a frontier's lists reach first.
//
// BlueDBM (section 7.2, Graph Traversal) lets the store follow edges by itself, as what one read
// gives decides what is read next, and every crossing to the host costs a latency. One call takes
// the lists of a whole frontier, so its reads are independent of each other, and many are under way.
//
// Shapes: `neighbours` has `lists` lists, list i at list_offsets[i] .. list_offsets[i + 1];
// `visited` is a bitmap of `vertices` vertices; `next` and `next_list` have `capacity` elements. Each
// neighbour that was not visited is marked, and appended to `next` in the order of first occurrence,
// and to `next_list` the number of the list that it came from: whose list it is, is the vertex's
// parent. Neighbours that are no vertices are passed over. `next_length` counts all that were
// marked: where it is above `capacity`, `next` holds the first `capacity` of them, and the step is
// to be repeated with the bitmap of before and room for `next_length`.
//
// Stages that all run at once: lists are read, one behind the other, by beats ▸ neighbours are told
// apart ▸ marked ▸ written. The word of `visited` in which a neighbour's bit is, is asked for
// READ_AHEAD neighbours before it is looked at, and up to WRITES_UNDER_WAY words are on their way
// back: what a word that was read may not have yet is among the last vertices that were marked,
// which are kept on chip. Bits are only ever set, so those are added to it, in any order.
//
// Intended, not measured: a neighbour per cycle, 4 bytes, and a cycle for each list.
#include <flashmesh/beat.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::beat;
using flashmesh::WORD_BITS;

constexpr uint32_t BEAT_NEIGHBOURS = flashmesh::BEAT_BYTES / sizeof(uint32_t);
constexpr uint32_t READ_AHEAD = 32;
constexpr uint32_t WRITES_UNDER_WAY = 32;
static_assert(READ_AHEAD <= flashmesh::MAX_REQUESTS && WRITES_UNDER_WAY <= flashmesh::MAX_REQUESTS,
              "a port takes so many");
// When a word is asked for, the last WRITES_UNDER_WAY may not have been written; until it is looked
// at, READ_AHEAD more may follow.
constexpr uint32_t RECENT = READ_AHEAD + WRITES_UNDER_WAY;
constexpr uint32_t DEPTH = 32;

struct neighbour {
    uint32_t vertex;
    uint32_t list;
};

// A vertex that was marked, or the end of them.
struct marked {
    neighbour reached;
    bool is_end;
};

void read_offsets(const uint64_t *list_offsets, uint32_t lists,
                  flashmesh::stream<uint64_t, DEPTH> &ends)
{
lists:
    for (uint32_t list = 0; list < lists; ++list) {
#pragma HLS PIPELINE II=1
        ends.write(list_offsets[uint64_t{list} + 1]);
    }
}

void read_neighbours(flashmesh::wide<uint32_t> neighbours, uint64_t start, uint64_t end,
                     flashmesh::stream<beat, DEPTH> &beats)
{
    const uint64_t first = start / BEAT_NEIGHBOURS;
    const uint64_t count = start == end ? 0 : (end - 1) / BEAT_NEIGHBOURS - first + 1;
    flashmesh::request(neighbours, first, count);
beats:
    for (uint64_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        beats.write(flashmesh::load(neighbours, first + i, end * sizeof(uint32_t)));
    }
}

// A neighbour a step, or the end of a list.
void split(uint32_t lists, uint64_t start, flashmesh::stream<uint64_t, DEPTH> &ends,
           flashmesh::stream<beat, DEPTH> &beats, flashmesh::stream<neighbour, DEPTH> &neighbours)
{
    uint32_t list = 0;
    uint64_t at = start;
    uint64_t end = lists == 0 ? start : ends.read();
    beat current = {};
steps:
    while (list < lists) {
#pragma HLS PIPELINE II=1
        if (at < end) {
            const uint32_t place = at % BEAT_NEIGHBOURS;
            if (at == start || place == 0) {
                current = beats.read();
            }
            const uint64_t both = current.words[place / 2];
            neighbours.write({static_cast<uint32_t>(place % 2 == 0 ? both : both >> 32), list});
            ++at;
        } else {
            ++list;
            if (list < lists) {
                end = ends.read();
            }
        }
    }
}

// Neighbour i is asked for in step i, and looked at in step i + READ_AHEAD.
void mark(flashmesh::stream<neighbour, DEPTH> &neighbours, uint64_t count,
          flashmesh::word_port visited, uint32_t vertices, flashmesh::stream<marked, DEPTH> &reached)
{
    neighbour asked[READ_AHEAD] = {};
#pragma HLS DEPENDENCE variable=asked inter true distance=32
    // The vertices that were marked last, the latest first.
    uint32_t recent[RECENT] = {};
#pragma HLS ARRAY_PARTITION variable=recent complete
    uint32_t kept = 0;
    uint32_t under_way = 0;
steps:
    for (uint64_t i = 0; i < count + READ_AHEAD; ++i) {
#pragma HLS PIPELINE II=1
        neighbour &place = asked[i % READ_AHEAD];
        const neighbour current = place;
        if (i >= READ_AHEAD && current.vertex < vertices) {
            uint64_t word = flashmesh::load_word(visited, current.vertex / WORD_BITS);
        recent:
            for (uint32_t j = 0; j < RECENT; ++j) {
#pragma HLS UNROLL
                if (j < kept && recent[j] / WORD_BITS == current.vertex / WORD_BITS) {
                    word |= uint64_t{1} << (recent[j] % WORD_BITS);
                }
            }
            const uint64_t bit = uint64_t{1} << (current.vertex % WORD_BITS);
            if ((word & bit) == 0) {
                if (under_way == WRITES_UNDER_WAY) {
                    flashmesh::finish_word(visited);
                    --under_way;
                }
                flashmesh::store_word(visited, current.vertex / WORD_BITS, word | bit);
                ++under_way;
            shift:
                for (uint32_t j = RECENT - 1; j > 0; --j) {
#pragma HLS UNROLL
                    recent[j] = recent[j - 1];
                }
                recent[0] = current.vertex;
                kept += kept < RECENT ? 1 : 0;
                reached.write({current, false});
            }
        }
        if (i < count) {
            place = neighbours.read();
            if (place.vertex < vertices) {
                flashmesh::request_word(visited, place.vertex / WORD_BITS);
            }
        }
    }
finish:
    for (; under_way != 0; --under_way) {
        flashmesh::finish_word(visited);
    }
    reached.write({{0, 0}, true});
}

void write_next(flashmesh::stream<marked, DEPTH> &reached, uint32_t capacity, uint32_t *next,
                uint32_t *next_list, uint32_t *next_length)
{
    uint32_t length = 0;
    bool is_end = false;
vertices:
    while (!is_end) {
#pragma HLS PIPELINE II=1
        const marked one = reached.read();
        is_end = one.is_end;
        if (!is_end) {
            if (length < capacity) {
                next[length] = one.reached.vertex;
                next_list[length] = one.reached.list;
            }
            ++length;
        }
    }
    *next_length = length;
}

void step(const uint64_t *list_offsets, flashmesh::wide<uint32_t> neighbours, uint32_t lists,
          uint64_t start, uint64_t end, flashmesh::word_port visited, uint32_t vertices,
          uint32_t capacity, uint32_t *next, uint32_t *next_list, uint32_t *next_length)
{
    FLASHMESH_STREAM(uint64_t, ends, DEPTH);
    FLASHMESH_STREAM(beat, beats, DEPTH);
    FLASHMESH_STREAM(neighbour, all, DEPTH);
    FLASHMESH_STREAM(marked, reached, DEPTH);
    FLASHMESH_DATAFLOW("graph_step");
    FLASHMESH_STAGE(read_offsets, list_offsets, lists, ends);
    FLASHMESH_STAGE(read_neighbours, neighbours, start, end, beats);
    FLASHMESH_STAGE(split, lists, start, ends, beats, all);
    FLASHMESH_STAGE(mark, all, end - start, visited, vertices, reached);
    FLASHMESH_STAGE(write_next, reached, capacity, next, next_list, next_length);
}

} // namespace

FLASHMESH_KERNEL void graph_step(const uint64_t *list_offsets,
                                 flashmesh::wide<uint32_t> neighbours, uint32_t lists,
                                 flashmesh::word_port visited, uint32_t vertices, uint32_t capacity,
                                 uint32_t *next, uint32_t *next_list, uint32_t *next_length)
{
#pragma HLS INTERFACE m_axi port=list_offsets bundle=offsets offset=slave num_read_outstanding=16
#pragma HLS INTERFACE m_axi port=neighbours bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=visited bundle=visited offset=slave num_read_outstanding=32 num_write_outstanding=32 max_read_burst_length=2 max_write_burst_length=2
#pragma HLS INTERFACE m_axi port=next bundle=next offset=slave
#pragma HLS INTERFACE m_axi port=next_list bundle=next_list offset=slave
#pragma HLS INTERFACE m_axi port=next_length bundle=next offset=slave
#pragma HLS INTERFACE s_axilite port=lists
#pragma HLS INTERFACE s_axilite port=vertices
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=return
    const uint64_t start = lists == 0 ? 0 : list_offsets[0];
    const uint64_t end = lists == 0 ? 0 : list_offsets[lists];
    step(list_offsets, neighbours, lists, start, end, visited, vertices, capacity, next, next_list,
         next_length);
}
