// What the device model and a kernel library say to each other.
//
// A kernel library is the shared object in an emulation container's BITSTREAM section. flashmesh
// generates its entry points from the kernels' interfaces (storage/src/accelerator/xrt/container).
#ifndef FLASHMESH_MODEL_KERNEL_ABI_H
#define FLASHMESH_MODEL_KERNEL_ABI_H

#include <stdint.h>

// Raised with every change below; a library of another number is refused.
#define FLASHMESH_MODEL_ABI 1u

// Results of flashmesh_model_start.
#define FLASHMESH_MODEL_DONE 0
#define FLASHMESH_MODEL_UNKNOWN_UNIT 1
#define FLASHMESH_MODEL_BAD_ADDRESS 2

#ifdef __cplusplus
extern "C" {
#endif

// The device's memory as kernels reach it.
struct flashmesh_model_memory {
    void *context;
    // Where the byte at a device address lies, or NULL if no live buffer covers it.
    void *(*at)(void *context, uint64_t address);
};

// FLASHMESH_MODEL_ABI of the library.
uint32_t flashmesh_model_abi(void);

// Runs the compute unit at base address `unit` to its end. `registers` are the 32-bit words of its
// control space, arguments from byte 0x10 on. Called by several threads at once, one a unit.
int flashmesh_model_start(uint64_t unit, const uint32_t *registers, uint32_t register_count,
                          const struct flashmesh_model_memory *memory);

#ifdef __cplusplus
}
#endif
#endif
