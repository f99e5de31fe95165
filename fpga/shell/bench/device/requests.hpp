// What is asked of the device in its simulation, who may do what, and bits of wide ports.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "flash_card.hpp"

// As in shell_pkg.sv and device.sv.
constexpr unsigned CARDS = 2;
constexpr unsigned BUFFERS = 128;
constexpr unsigned BURST = 16;
constexpr unsigned TAG_BITS = 7;
constexpr unsigned ENDPOINT_BITS = 6;
constexpr unsigned PAGE_BITS = 26;
constexpr unsigned HANDLE_BITS = 6;
constexpr unsigned OFFSET_BITS = 24;
constexpr unsigned SEGMENT_BITS = 8;
constexpr unsigned COMMAND_BITS = 2 + ENDPOINT_BITS + PAGE_BITS;
constexpr unsigned BURST_BITS = 129;
constexpr unsigned AREA_BITS = 7;
constexpr unsigned SEQUENCE_BITS = 16;
constexpr unsigned WORK_BITS = 1 + SEQUENCE_BITS + ENDPOINT_BITS + AREA_BITS + HANDLE_BITS +
                               2 * OFFSET_BITS + 64;
// Parts of commands that a slot takes without holding up other requests.
constexpr unsigned SLOT_PARTS = 48;

// PCIe of the paper (section 5): 1.6 GB/s to the host's memory, 1.0 from there, in bytes of a clock
// of 6.4 ns, times 1000. How long a fetch takes it does not state.
constexpr unsigned STORE_RATE = 10240, FETCH_RATE = 6400, WORD_COST = 16000;
constexpr unsigned FETCH_LATENCY = 150;

// What the host may do, on each card. Endpoint 3's extent has no whole erase block.
struct Extent {
    unsigned line;
    bool may_write;
    unsigned endpoint;
    uint32_t first, last;
};
constexpr uint32_t SUPERBLOCK = 1u << ERASE_BITS;
constexpr Extent EXTENTS[] = {
    {0, false, 1, 0, 4 * SUPERBLOCK - 1},
    {5, true, 1, 4 * SUPERBLOCK, 12 * SUPERBLOCK - 1},
    {31, true, 3, 13 * SUPERBLOCK - 7, 14 * SUPERBLOCK + 9},
    {63, false, 2, 0, 2 * SUPERBLOCK - 1},
};

inline bool is_allowed(const Command& command) {
    uint32_t first = command.page, last = command.page;
    if (command.operation == ERASE) {
        first = command.page / SUPERBLOCK * SUPERBLOCK;
        last = first + SUPERBLOCK - 1;
    }
    for (const auto& extent : EXTENTS) {
        if (extent.endpoint == command.endpoint && extent.first <= first && last <= extent.last &&
            (extent.may_write || command.operation == READ)) return true;
    }
    return false;
}

// Files for in-store processors, on each card: handles 0 to 7, 16 segments each.
constexpr unsigned FILES = 8, FILE_SEGMENTS = 16;
constexpr unsigned FILE_PAGES = (FILE_SEGMENTS << SEGMENT_BITS) - 100;

template <typename Wide>
uint64_t get(const Wide& wide, unsigned low, unsigned count) {
    uint64_t bits = 0;
    for (unsigned i = 0; i < count; ++i) {
        const uint64_t word = wide[(low + i) / 32];
        bits |= (word >> (low + i) % 32 & 1) << i;
    }
    return bits;
}

template <typename Wide>
void put(Wide& wide, unsigned low, unsigned count, uint64_t bits) {
    for (unsigned i = 0; i < count; ++i) {
        const uint32_t mask = 1u << (low + i) % 32;
        auto& word = wide[(low + i) / 32];
        word = (bits >> i & 1) != 0 ? word | mask : word & ~mask;
    }
}

template <typename Wide>
Word get_word(const Wide& wide, unsigned low) {
    Word word;
    for (unsigned i = 0; i < 4; ++i) word[i] = static_cast<uint32_t>(get(wide, low + 32 * i, 32));
    return word;
}

template <typename Wide>
void put_word(Wide& wide, unsigned low, const Word& word) {
    for (unsigned i = 0; i < 4; ++i) put(wide, low + 32 * i, 32, word[i]);
}

template <typename Narrow>
uint64_t get_narrow(const Narrow& bits, unsigned low, unsigned count) {
    return bits >> low & ((uint64_t{1} << count) - 1);
}

template <typename Narrow>
void put_narrow(Narrow& bits, unsigned low, unsigned count, uint64_t value) {
    const uint64_t mask = ((uint64_t{1} << count) - 1) << low;
    bits = static_cast<Narrow>((uint64_t{bits} & ~mask) | (value << low));
}

struct Options {
    uint64_t seed = 1, reads = 0, jobs = 0, pages = 0, length = 1, raw = 0, limit = 2'000'000;
    uint64_t hold = 0;
    bool hostile = false, jitter = false, fast = false, one = false;
};

// What the host asks for, and what must come of it.
struct Request {
    unsigned card = 0;
    Command command;
    unsigned buffer = 0;
    unsigned status = DONE;
    uint64_t contents = 0;     // a number for `pattern`; of reads and writes
    int job = -1;
};

// An erase block that is erased, written page by page, and read again.
struct Job {
    unsigned card = 0;
    uint32_t block = 0;
    unsigned step = 0;
    static constexpr unsigned PAGES = 3;
};

// A page that a kernel waits for.
struct Wanted {
    unsigned status = DONE;
    uint64_t contents = 0;
    unsigned number = 0;       // in its part
};

// A part of a command, and what must come of it.
struct Part {
    bool is_last = true;
    unsigned sequence = 0, endpoint = 2, line = 0, handle = 0, offset = 0, length = 1;
    uint64_t parameter = 0;
    std::vector<Wanted> pages;     // those that give words
    unsigned status = DONE;        // of the first that does not
    uint64_t result = 0;           // of the kernel
};

// What the host sends: to a unit, so many bits.
struct Sent {
    unsigned unit = 0;
    std::array<uint32_t, (WORK_BITS + 31) / 32> bits{};
    std::optional<Part> part;
};

// A page that an in-store processor takes as it comes.
struct Raw {
    Command command;
    uint64_t number = 0;       // of those that were asked for
    unsigned words = 0;
};
constexpr unsigned RAW_TAGS = 96;

inline uint64_t first_of(unsigned card) { return uint64_t{card} << 32; }
