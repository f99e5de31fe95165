// The kernel's own source, and its streaming form in a slot.
#include <hls/morris_pratt/kernel.cpp>

#include "slot.hpp"

void morris_pratt_in_slot(Slot& device, uint32_t packets, Arguments& arguments) {
    FLASHMESH_STREAM(flashmesh::beat, texts, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(flashmesh::beat, results, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("slot of morris_pratt");
    FLASHMESH_STAGE(device.surround, texts, results);
    FLASHMESH_STAGE(morris_pratt_stream, texts, packets, arguments.bytes.data(),
                    static_cast<uint32_t>(arguments.bytes.size()), results);
}
