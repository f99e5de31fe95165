// The device's memory: banks one behind another, sparse, and the buffers that live in them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

namespace flashmesh::model {

class DeviceMemory {
public:
    DeviceMemory() = default;
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;
    ~DeviceMemory();

    // Adds a bank behind the others. Its pages cost nothing until they are written. Throws
    // std::runtime_error when the address space does not hold it.
    void add_bank(uint64_t size_bytes);

    // A buffer begins and ends to live. What a freed buffer held is given back to the system.
    // FALSE when the range lies in no bank, overlaps a live buffer, or no buffer begins there.
    bool allocate(uint64_t address, uint64_t size_bytes);
    bool free(uint64_t address);

    // The bytes [address, address + size_bytes) of one bank, or nullptr.
    uint8_t *range(uint64_t address, uint64_t size_bytes);

    // The byte at `address` if a live buffer covers it, or nullptr.
    uint8_t *in_buffer(uint64_t address);

private:
    struct Bank {
        uint64_t begin;
        uint64_t size_bytes;
        uint8_t *bytes;
    };
    uint8_t *range_locked(uint64_t address, uint64_t size_bytes);

    std::mutex mutex;
    std::vector<Bank> banks;
    std::map<uint64_t, uint64_t> buffers; // begin, size
};

} // namespace flashmesh::model
