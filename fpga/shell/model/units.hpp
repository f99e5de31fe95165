// Compute units behind their control registers (ap_ctrl_hs), each with a thread of its own.
#pragma once

#include "kernel_abi.h"

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>

namespace flashmesh::model {

// Bits of a unit's control register at offset 0.
constexpr uint32_t ap_start = 1;
constexpr uint32_t ap_done = 2;  // cleared by reading
constexpr uint32_t ap_idle = 4;
constexpr uint32_t ap_ready = 8; // cleared by reading

// What a unit does with its registers. Called on the unit's thread.
using RunUnit = std::function<void(uint64_t unit, const uint32_t *registers, uint32_t count)>;

class ComputeUnits {
public:
    // 4 KiB of registers a unit, units every 64 KiB, as Vitis lays them out.
    static constexpr uint32_t register_count = 1024;
    static constexpr uint64_t unit_bytes = 0x10000;
    static constexpr size_t max_units = 128;

    explicit ComputeUnits(RunUnit run) : run(std::move(run)) {}
    ComputeUnits(const ComputeUnits &) = delete;
    ComputeUnits &operator=(const ComputeUnits &) = delete;
    // Waits for the units that run.
    ~ComputeUnits();

    // Writes whole words at an address. The control word is written last, as an AXI write burst
    // that begins there must not start a unit on half of its arguments. FALSE if the words lie
    // outside a unit's registers, or there would be too many units.
    bool write(uint64_t address, std::string_view words);

    // Reads a word. While a unit runs, reading its control register waits up to 200 microseconds
    // for any unit to end: the runtime polls in a tight loop, and the kernels need the cores.
    bool read(uint64_t address, uint32_t &word);

private:
    struct Unit {
        std::array<uint32_t, register_count> registers{};
        uint32_t control = ap_idle;
        bool started = false;
        std::thread thread;
    };
    Unit *unit_at(uint64_t base);
    void serve(uint64_t base, Unit &unit);

    RunUnit run;
    std::mutex mutex;
    std::condition_variable start_or_stop;
    std::condition_variable ended;
    uint64_t ends = 0;
    bool stopping = false;
    std::map<uint64_t, std::unique_ptr<Unit>> units;
};

} // namespace flashmesh::model
