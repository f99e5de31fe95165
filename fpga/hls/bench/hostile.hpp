// What test benches with hostile inputs share.
//
// Vectors say what a kernel answers; a test bench (`tb.cpp`) goes through many inputs that are
// mostly malformed, and asks only that the kernel ends, stays within its arrays, and keeps to what
// holds for every answer. It runs under the sanitizers, and its seed is fixed unless it says so.
#ifndef FLASHMESH_BENCH_HOSTILE_HPP
#define FLASHMESH_BENCH_HOSTILE_HPP

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <random>

namespace bench {

class generator {
public:
    explicit generator(uint64_t seed = 20260101) : random_(seed) {}

    uint64_t word() { return random_(); }

    // Below `limit`, which is not 0.
    uint32_t below(uint32_t limit) { return static_cast<uint32_t>(random_() % limit); }

    bool one_in(uint32_t chances) { return below(chances) == 0; }

    template <typename T>
    T among(std::initializer_list<T> choices)
    {
        return choices.begin()[below(static_cast<uint32_t>(choices.size()))];
    }

private:
    std::mt19937_64 random_;
};

// An array of exactly so many elements, for AddressSanitizer; a vector may have more.
template <typename T>
class exact {
public:
    explicit exact(std::size_t size) : size_(size), start_(new T[size]()) {}

    T *data() { return start_.get(); }
    std::size_t size() const { return size_; }
    T &operator[](std::size_t place) { return start_[place]; }

private:
    std::size_t size_;
    std::unique_ptr<T[]> start_;
};

inline void expect(bool holds, uint32_t round, const char *what)
{
    if (!holds) {
        std::printf("round %u: %s\n", round, what);
        std::exit(1);
    }
}

} // namespace bench

#endif
