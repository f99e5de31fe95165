// The kernel's own source, and its streaming form in a slot.
#include <hls/hamming_nearest/kernel.cpp>

#include "slot.hpp"

void hamming_nearest_in_slot(Slot& device, uint32_t packets, Arguments& arguments) {
    FLASHMESH_STREAM(flashmesh::beat, codes, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(flashmesh::beat, nearest, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("slot of hamming_nearest");
    FLASHMESH_STAGE(device.surround, codes, nearest);
    FLASHMESH_STAGE(hamming_nearest_stream, codes, packets, arguments.code_bytes,
                    arguments.rows, arguments.selected.data(), arguments.bytes.data(),
                    arguments.k, nearest);
}
