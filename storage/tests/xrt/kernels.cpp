// Kernels of the tests in tests/xrt.rs. Some wait for each other, which no kernel of a device does:
// it shows what runs at the same time.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

// c = a + b
extern "C" void add(const int32_t *a, const int32_t *b, int32_t *c, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; ++row)
        c[row] = static_cast<int32_t>(static_cast<uint32_t>(a[row]) + static_cast<uint32_t>(b[row]));
}

// One scalar of every type, each in a word of the result.
extern "C" void scalars(uint8_t a, int16_t b, int32_t c, uint32_t d, int64_t e, uint64_t f, float g,
                        double h, double *result)
{
    result[0] = a;
    result[1] = b;
    result[2] = c;
    result[3] = d;
    result[4] = static_cast<double>(e);
    result[5] = static_cast<double>(f);
    result[6] = g;
    result[7] = h;
}

// Writes nothing, whatever it should.
extern "C" void silent(uint8_t *result, uint32_t rows)
{
    (void)result;
    (void)rows;
}

// Doubles every element in place.
extern "C" void twice(uint64_t *values, uint32_t rows)
{
    for (uint32_t row = 0; row < rows; ++row)
        values[row] *= 2;
}

namespace {
std::mutex mutex;
std::condition_variable changed;
uint32_t met = 0;
bool released = false;
// Far beyond every time-out of the tests.
constexpr std::chrono::minutes patience{2};
} // namespace

// Ends when `parties` calls have begun; *together is their number.
extern "C" void meet(uint32_t parties, uint32_t *together)
{
    std::unique_lock lock(mutex);
    ++met;
    changed.notify_all();
    changed.wait_for(lock, patience, [&] { return met >= parties; });
    *together = met;
}

// Ends after `release` was called; *was_released is 1 then.
extern "C" void hold(uint32_t *was_released)
{
    std::unique_lock lock(mutex);
    *was_released = changed.wait_for(lock, patience, [] { return released; });
}

extern "C" void release(uint32_t *done)
{
    const std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
    *done = 1;
}

// A kernel with a fault.
extern "C" void crash(uint32_t *result)
{
    volatile uint32_t *nowhere = nullptr;
    *result = *nowhere;
}
