// The kernel's own source, and its streaming form in a slot.
#include <hls/fgrep8/kernel.cpp>

#include "slot.hpp"

void fgrep8_in_slot(Slot& device, uint32_t packets, Arguments& arguments) {
    FLASHMESH_STREAM(flashmesh::beat, texts, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(flashmesh::beat, results, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("slot of fgrep8");
    FLASHMESH_STAGE(device.surround, texts, results);
    FLASHMESH_STAGE(fgrep8_stream, texts, packets, arguments.bytes.data(),
                    arguments.lengths.data(), results);
}
