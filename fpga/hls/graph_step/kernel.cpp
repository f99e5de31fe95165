// One step of a breadth-first search: the vertices that a frontier's lists reach first.
//
// BlueDBM (section 7.2, Graph Traversal) lets the store follow edges by itself, as what one read
// gives decides what is read next, and every crossing to the host costs a latency. One call takes
// the lists of a whole frontier, so its reads are independent of each other.
//
// Shapes: `neighbours` has `lists` lists, list i at list_offsets[i] .. list_offsets[i + 1];
// `visited` is a bitmap of `vertices` vertices; `next` and `next_list` have `capacity` elements. Each
// neighbour that was not visited is marked, and appended to `next` in the order of first occurrence,
// and to `next_list` the number of the list that it came from: whose list it is, is the vertex's
// parent. Neighbours that are no vertices are passed over. `next_length` counts all that were
// marked: where it is above `capacity`, `next` holds the first `capacity` of them, and the step is
// to be repeated with the bitmap of before and room for `next_length`.
//
// Intended, not measured: an initiation interval of 2, as a bit is read and written back; 4 bytes
// per interval.
#include <flashmesh/kernel.hpp>

FLASHMESH_KERNEL void graph_step(const uint64_t *list_offsets, const uint32_t *neighbours,
                                 uint32_t lists, uint64_t *visited, uint32_t vertices,
                                 uint32_t capacity, uint32_t *next, uint32_t *next_list,
                                 uint32_t *next_length)
{
#pragma HLS INTERFACE m_axi port=list_offsets bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=neighbours bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=visited bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=next bundle=gmem3 offset=slave
#pragma HLS INTERFACE m_axi port=next_list bundle=gmem4 offset=slave
#pragma HLS INTERFACE m_axi port=next_length bundle=gmem0 offset=slave
#pragma HLS INTERFACE s_axilite port=lists
#pragma HLS INTERFACE s_axilite port=vertices
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=return
    uint32_t length = 0;
lists:
    for (uint32_t list = 0; list < lists; ++list) {
        const uint64_t end = list_offsets[list + 1];
    neighbours:
        for (uint64_t at = list_offsets[list]; at < end; ++at) {
#pragma HLS PIPELINE II=2
            const uint32_t vertex = neighbours[at];
            if (vertex >= vertices || flashmesh::is_set(visited, vertex)) {
                continue;
            }
            flashmesh::select(visited, vertex, true);
            if (length < capacity) {
                next[length] = vertex;
                next_list[length] = list;
            }
            ++length;
        }
    }
    *next_length = length;
}
