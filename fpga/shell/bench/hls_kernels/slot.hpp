// A kernel in C simulation in a slot of the simulated device.
//
// Its stages are threads, as in all C simulation (flashmesh/stream.hpp). One more stage of its
// region is the device around it: the simulator's thread acts for that one, between two clocks, and
// waits until no other stage can move. Nothing waits for time to pass.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <flashmesh/beat.hpp>

// What a device's memory and registers would hold for a call of a kernel; each has what is its.
struct Arguments {
    std::vector<uint8_t> bytes;            // the query; the pattern; the slots of patterns
    std::vector<uint32_t> lengths;         // of the patterns
    uint32_t code_bytes = 0, rows = 0, k = 0;
    std::vector<uint64_t> selected;        // bitmap of rows
    std::vector<uint64_t> operations;      // of four words
    std::vector<uint64_t> previous;        // of each operation: written by the kernel
};

class Slot;
using Kernel = void (*)(Slot& device, uint32_t packets, Arguments& arguments);

class Slot {
public:
    Slot() = default;
    Slot(const Slot&) = delete;
    Slot& operator=(const Slot&) = delete;

    // The stage that stands for the device, with the kernel's two streams.
    void surround(flashmesh::axis& in, flashmesh::axis& out);

    // All others are the simulator's.
    void start(Kernel kernel, uint32_t packets, Arguments& arguments);
    bool is_running() const { return thread_.joinable(); }
    bool can_take() const { return can_take_; }
    const std::optional<flashmesh::beat>& shown() const { return shown_; }
    bool has_ended() const { return has_ended_; }
    void put(const flashmesh::beat& beat);
    void take();
    void end();

    // The kernel runs until it can't move.
    void settle();

private:
    template <typename Action>
    auto as_stage(Action action);
    bool run();

    std::thread thread_;                   // of the kernel's region
    std::mutex mutex_;
    std::condition_variable changed_;
    flashmesh::detail::monitor* monitor_ = nullptr;     // null: the region is not there yet
    flashmesh::axis* in_ = nullptr;
    flashmesh::axis* out_ = nullptr;
    bool is_over_ = false;                 // the region may end
    bool has_moved_ = false;               // something was done since it settled
    bool can_take_ = false, has_ended_ = false;
    std::optional<flashmesh::beat> shown_;
};

// Of the simulated device: which kernel each slot has, and what parts' parameters stand for.
extern std::vector<Kernel> kernels;
Arguments& arguments_of(uint64_t parameter);

// The kernels' sources, each compiled alone.
void hamming_nearest_in_slot(Slot& device, uint32_t packets, Arguments& arguments);
void morris_pratt_in_slot(Slot& device, uint32_t packets, Arguments& arguments);
void fgrep8_in_slot(Slot& device, uint32_t packets, Arguments& arguments);
void read_modify_write_in_slot(Slot& device, uint32_t packets, Arguments& arguments);
