// The kernel's own source, and its streaming form in a slot.
#include <hls/read_modify_write/kernel.cpp>

#include "slot.hpp"

void read_modify_write_in_slot(Slot& device, uint32_t packets, Arguments& arguments) {
    FLASHMESH_STREAM(flashmesh::beat, pages, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(flashmesh::beat, changed, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("slot of read_modify_write");
    FLASHMESH_STAGE(device.surround, pages, changed);
    FLASHMESH_STAGE(read_modify_write_stream, pages, packets, arguments.operations.data(),
                    static_cast<uint32_t>(arguments.previous.size()), changed,
                    arguments.previous.data());
}
