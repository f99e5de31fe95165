#include "memory.hpp"

#include <stdexcept>
#include <string>
#include <sys/mman.h>

namespace flashmesh::model {

namespace {
constexpr uint64_t page_bytes = 4096;
// A kernel that runs over a bank's end shall stop there and not in the next bank.
constexpr uint64_t guard_bytes = 2u << 20;
constexpr uint64_t max_bank_bytes = uint64_t{1} << 40;
} // namespace

DeviceMemory::~DeviceMemory()
{
    for (const auto &bank : banks)
        munmap(bank.bytes, bank.size_bytes + guard_bytes);
}

void DeviceMemory::add_bank(uint64_t size_bytes)
{
    if (size_bytes == 0 || size_bytes > max_bank_bytes || size_bytes % page_bytes != 0)
        throw std::runtime_error("a memory bank of " + std::to_string(size_bytes) + " bytes");
    void *bytes = mmap(nullptr, size_bytes + guard_bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED || mprotect(bytes, size_bytes, PROT_READ | PROT_WRITE) != 0)
        throw std::runtime_error("no address space for a memory bank of " +
                                 std::to_string(size_bytes) + " bytes");
    const std::lock_guard lock(mutex);
    const uint64_t begin = banks.empty() ? 0 : banks.back().begin + banks.back().size_bytes;
    banks.push_back({begin, size_bytes, static_cast<uint8_t *>(bytes)});
}

uint8_t *DeviceMemory::range_locked(uint64_t address, uint64_t size_bytes)
{
    for (const auto &bank : banks) {
        if (address < bank.begin || address - bank.begin >= bank.size_bytes)
            continue;
        const uint64_t offset = address - bank.begin;
        return size_bytes <= bank.size_bytes - offset ? bank.bytes + offset : nullptr;
    }
    return nullptr;
}

bool DeviceMemory::allocate(uint64_t address, uint64_t size_bytes)
{
    const std::lock_guard lock(mutex);
    if (size_bytes == 0 || range_locked(address, size_bytes) == nullptr)
        return false;
    const auto next = buffers.lower_bound(address);
    if (next != buffers.end() && next->first - address < size_bytes)
        return false;
    if (next != buffers.begin()) {
        const auto previous = std::prev(next);
        if (address - previous->first < previous->second)
            return false;
    }
    buffers.emplace(address, size_bytes);
    return true;
}

bool DeviceMemory::free(uint64_t address)
{
    const std::lock_guard lock(mutex);
    const auto found = buffers.find(address);
    if (found == buffers.end())
        return false;
    uint8_t *bytes = range_locked(found->first, found->second);
    const auto begin = (reinterpret_cast<uintptr_t>(bytes) + page_bytes - 1) / page_bytes;
    const auto end = (reinterpret_cast<uintptr_t>(bytes) + found->second) / page_bytes;
    if (end > begin)
        madvise(reinterpret_cast<void *>(begin * page_bytes), (end - begin) * page_bytes,
                MADV_DONTNEED);
    buffers.erase(found);
    return true;
}

uint8_t *DeviceMemory::range(uint64_t address, uint64_t size_bytes)
{
    const std::lock_guard lock(mutex);
    return range_locked(address, size_bytes);
}

uint8_t *DeviceMemory::in_buffer(uint64_t address)
{
    const std::lock_guard lock(mutex);
    auto next = buffers.upper_bound(address);
    if (next == buffers.begin())
        return nullptr;
    const auto &[begin, size_bytes] = *std::prev(next);
    return address - begin < size_bytes ? range_locked(address, 1) : nullptr;
}

} // namespace flashmesh::model
