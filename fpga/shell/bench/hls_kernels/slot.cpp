#include "slot.hpp"

#include <deque>

#include "Vhls_kernels__Dpi.h"

using flashmesh::beat;
using flashmesh::BEAT_BYTES;
using flashmesh::BEAT_WORDS;
using flashmesh::detail::monitor;

void Slot::surround(flashmesh::axis& in, flashmesh::axis& out) {
    std::unique_lock<std::mutex> lock(mutex_);
    monitor_ = monitor::current();
    in_ = &in;
    out_ = &out;
    changed_.notify_one();
    changed_.wait(lock, [this] { return is_over_; });
}

void Slot::start(Kernel kernel, uint32_t packets, Arguments& arguments) {
    monitor_ = nullptr;
    is_over_ = false;
    thread_ = std::thread(
        [this, kernel, packets, &arguments] { kernel(*this, packets, arguments); });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return monitor_ != nullptr; });
    has_moved_ = true;
}

// This thread is the stage `surround` while it writes, reads and waits.
template <typename Action>
auto Slot::as_stage(Action action) {
    monitor::current() = monitor_;
    const auto result = action();
    monitor::current() = nullptr;
    return result;
}

void Slot::put(const beat& next) {
    as_stage([&] {
        in_->write(next);
        return true;
    });
    has_moved_ = true;
}

void Slot::take() {
    shown_.reset();
    has_moved_ = true;
}

void Slot::end() {
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        is_over_ = true;
        changed_.notify_one();
    }
    thread_.join();
    has_ended_ = can_take_ = false;
}

// Whether a stage of the kernel still waits for a stream.
bool Slot::run() {
    std::unique_lock<std::mutex> lock(monitor_->mutex);
    return monitor_->wait_for_others(lock);
}

void Slot::settle() {
    if (!is_running() || !has_moved_) return;
    has_moved_ = false;
    as_stage([this] {
        bool waits = run();
        // What is shown has left the FIFO, so a stage that waited for its place goes on.
        if (!shown_ && !out_->empty()) {
            shown_ = out_->read();
            waits = run();
        }
        can_take_ = waits && !in_->full();
        has_ended_ = !waits && !shown_;
        return true;
    });
}

namespace {

Slot& slot_of(int number) {
    static std::deque<Slot> slots;
    while (slots.size() <= static_cast<unsigned>(number)) slots.emplace_back();
    return slots[number];
}

}  // namespace

// What hls_kernel.sv imports. A vector of bits is words of 32 there, the lowest first.

void kernel_start(int slot, unsigned long long parameter, unsigned int packets) {
    slot_of(slot).start(kernels[slot], packets, arguments_of(parameter));
}

void kernel_put(int slot, const svBitVecVal* data, const svBitVecVal* keep, const svBitVecVal* tag,
                svBit is_last) {
    beat next = {};
    for (unsigned word = 0; word < BEAT_WORDS; ++word)
        next.words[word] = uint64_t{data[2 * word + 1]} << 32 | data[2 * word];
    for (unsigned byte = 0; byte < BEAT_BYTES; ++byte)
        next.bytes += keep[byte / 32] >> byte % 32 & 1;
    next.tag = *tag;
    next.is_last = is_last != 0;
    slot_of(slot).put(next);
}

void kernel_take(int slot) { slot_of(slot).take(); }

void kernel_end(int slot) { slot_of(slot).end(); }

void kernel_show(int slot, svBit* is_running, svBit* can_take, svBit* has_beat, svBitVecVal* data,
                 svBitVecVal* keep, svBitVecVal* tag, svBit* is_last, svBit* has_ended) {
    Slot& kernel = slot_of(slot);
    kernel.settle();
    *is_running = kernel.is_running();
    *can_take = kernel.can_take();
    *has_beat = kernel.shown().has_value();
    *has_ended = kernel.has_ended();
    const beat shown = kernel.shown().value_or(beat());
    for (unsigned word = 0; word < BEAT_WORDS; ++word) {
        data[2 * word] = static_cast<svBitVecVal>(shown.words[word]);
        data[2 * word + 1] = static_cast<svBitVecVal>(shown.words[word] >> 32);
    }
    keep[0] = keep[1] = 0;
    for (unsigned byte = 0; byte < shown.bytes; ++byte) keep[byte / 32] |= 1u << byte % 32;
    *tag = shown.tag;
    *is_last = shown.is_last;
}
