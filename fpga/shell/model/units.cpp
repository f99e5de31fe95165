#include "units.hpp"

#include <chrono>
#include <cstring>

namespace flashmesh::model {

ComputeUnits::~ComputeUnits()
{
    {
        const std::lock_guard lock(mutex);
        stopping = true;
    }
    start_or_stop.notify_all();
    for (auto &[base, unit] : units)
        unit->thread.join();
}

ComputeUnits::Unit *ComputeUnits::unit_at(uint64_t base)
{
    const auto found = units.find(base);
    if (found != units.end())
        return found->second.get();
    if (units.size() == max_units)
        return nullptr;
    auto &unit = *units.emplace(base, std::make_unique<Unit>()).first->second;
    unit.thread = std::thread([this, base, &unit] { serve(base, unit); });
    return &unit;
}

void ComputeUnits::serve(uint64_t base, Unit &unit)
{
    std::unique_lock lock(mutex);
    for (;;) {
        start_or_stop.wait(lock, [&] { return stopping || unit.started; });
        if (!unit.started)
            return;
        // The host may write the next call's arguments while this one runs.
        const auto registers = unit.registers;
        lock.unlock();
        run(base, registers.data(), register_count);
        lock.lock();
        unit.started = false;
        unit.control = ap_done | ap_idle | ap_ready;
        ++ends;
        ended.notify_all();
    }
}

bool ComputeUnits::write(uint64_t address, std::string_view words)
{
    const uint64_t base = address / unit_bytes * unit_bytes;
    const uint64_t offset = address - base;
    if (offset % 4 != 0 || words.size() % 4 != 0 || offset + words.size() > register_count * 4)
        return false;
    const std::lock_guard lock(mutex);
    Unit *unit = unit_at(base);
    if (unit == nullptr)
        return false;
    uint32_t control = 0;
    for (size_t at = 0; at < words.size(); at += 4) {
        uint32_t word;
        std::memcpy(&word, words.data() + at, 4);
        if (offset + at == 0)
            control = word;
        else
            unit->registers[(offset + at) / 4] = word;
    }
    // Starting a unit that runs has no effect, as on the device.
    if ((control & ap_start) != 0 && !unit->started) {
        unit->started = true;
        unit->control = ap_start;
        start_or_stop.notify_all();
    }
    return true;
}

bool ComputeUnits::read(uint64_t address, uint32_t &word)
{
    const uint64_t base = address / unit_bytes * unit_bytes;
    const uint64_t offset = address - base;
    if (offset % 4 != 0 || offset / 4 >= register_count)
        return false;
    std::unique_lock lock(mutex);
    Unit *unit = unit_at(base);
    if (unit == nullptr)
        return false;
    if (offset != 0) {
        word = unit->registers[offset / 4];
        return true;
    }
    if (unit->started) {
        const uint64_t before = ends;
        ended.wait_for(lock, std::chrono::microseconds(200), [&] { return ends != before; });
    }
    word = unit->control;
    unit->control &= ~(ap_done | ap_ready);
    return true;
}

} // namespace flashmesh::model
