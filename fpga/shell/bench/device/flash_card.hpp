// A flash card behind its controller (BlueDBM, sections 3.1 and 5.1): buses with chips, on the
// flash interface of shell_pkg.sv.
//
// A chip reads a page into its register, then its bus moves it, word by word; buses work at once,
// so bursts of pages come interleaved and in another order than they were asked for. Which of the
// buses that have a word sends it, and which chip goes next on a bus, is drawn from a seed. The
// paper states 50 us and 1.2 GB/s a card, and, in its table 1, 8 bus controllers; program and
// erase times and chips a bus it does not state.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

constexpr unsigned PAGE_WORDS = 512;
constexpr unsigned ERASE_BITS = 14;

using Word = std::array<uint32_t, 4>;
using Page = std::vector<Word>;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum Operation : unsigned { READ, WRITE, ERASE };
enum Status : unsigned { DONE, FAILED, REFUSED, OUT_OF_BOUNDS };

struct Command {
    unsigned operation = 0, endpoint = 0;
    uint32_t page = 0;
    bool operator==(const Command& other) const {
        return operation == other.operation && endpoint == other.endpoint && page == other.page;
    }
};

struct Burst {
    unsigned tag = 0;
    bool is_last = false;
    Word data{};
};

struct Ack {
    unsigned tag = 0, status = 0;
};

struct Timing {
    uint64_t read = 7813, program = 31250, erase = 312500;  // clocks of 6.4 ns
    // A bus moves a word in BUS_UNITS / bus_rate clocks: 16 bytes at 150 MB/s in 16.67.
    unsigned bus_rate = 3;
};

constexpr unsigned BUS_UNITS = 50;

inline uint64_t mix(uint64_t value) {
    value += 0x9e3779b97f4a7c15;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9;
    value = (value ^ value >> 27) * 0x94d049bb133111eb;
    return value ^ value >> 31;
}

// Contents that a number stands for.
inline Word pattern(uint64_t number, unsigned word) {
    const uint64_t low = mix(number << 10 | word), high = mix(low);
    return {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
            static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
}

class FlashCard {
public:
    static constexpr unsigned BUSES = 8, CHIPS = 8, PAGES_A_BLOCK = 256;

    // Until it is written, a page has the contents of `first` + its number.
    FlashCard(uint64_t first, const Timing& timing, uint64_t seed)
        : first_(first), timing_(timing), random_(seed) {}

    // The number of the first page of the erase block in which a page lies, which counts buses
    // fastest, then chips, then the block's pages.
    static uint32_t block_of(uint32_t page) {
        return page & ~((PAGES_A_BLOCK - 1) * BUSES * CHIPS);
    }

    // Some blocks can't be erased.
    bool is_bad(uint32_t page) const { return mix(first_ + block_of(page)) % 8 == 0; }

    // What the card offers in this clock.
    std::optional<Burst> read;
    std::optional<unsigned> request;
    std::optional<Ack> ack;

    void command(unsigned tag, const Command& command) {
        if (in_flight_[tag]) throw Failure("a card is given a tag that is in flight");
        in_flight_[tag] = true;
        chip_of(command.page).queue.push_back({tag, command});
    }

    void write(unsigned tag, const Burst& burst) {
        const auto found = awaited_.find(tag);
        if (found == awaited_.end()) throw Failure("a card is sent data that it has not asked for");
        Page& page = found->second->data;
        page.push_back(burst.data);
        if (page.size() > PAGE_WORDS || burst.is_last != (page.size() == PAGE_WORDS))
            throw Failure("a card is sent a page of another length");
        if (burst.is_last) {
            found->second->state = Chip::FULL;
            awaited_.erase(found);
        }
    }

    void taken_read() {
        if (read->is_last) in_flight_[read->tag] = false;
        Bus& bus = buses_[reading_bus_];
        --bus.available;
        if (++bus.sent == PAGE_WORDS) {
            bus.chip->state = Chip::IDLE;
            bus.chip->queue.pop_front();
            bus.chip = nullptr;
        }
        read.reset();
    }
    void taken_request() { request.reset(); }
    void taken_ack() {
        in_flight_[ack->tag] = false;
        ack.reset();
    }

    void tick(uint64_t clock) {
        for (auto& bus : buses_) tick(bus, clock);
        if (!read) offer_read();
        if (!request && !requests_.empty()) {
            request = requests_.front();
            requests_.pop_front();
        }
        if (!ack && !acks_.empty()) {
            ack = acks_.front();
            acks_.pop_front();
        }
    }

private:
    struct Chip {
        enum State { IDLE, READING, READ_OUT, AWAITING, FULL, MOVING, BUSY } state = IDLE;
        std::deque<std::pair<unsigned, Command>> queue;     // the first is being executed
        uint64_t until = 0;
        Page data;
    };

    struct Bus {
        std::array<Chip, CHIPS> chips;
        Chip* chip = nullptr;       // whose page it moves
        unsigned credit = 0, available = 0, sent = 0, moved = 0;
    };

    Chip& chip_of(uint32_t page) { return buses_[page % BUSES].chips[page / BUSES % CHIPS]; }

    void tick(Bus& bus, uint64_t clock) {
        for (auto& chip : bus.chips) tick(chip, clock);
        if (bus.chip == nullptr) choose(bus);
        if (bus.chip == nullptr) return;
        // A controller's buffer of 64 words: a bus waits when nobody takes them.
        bus.credit = std::min(bus.credit + timing_.bus_rate, 2 * BUS_UNITS);
        if (bus.credit < BUS_UNITS || bus.available == 64 || bus.moved == PAGE_WORDS) return;
        bus.credit -= BUS_UNITS;
        ++bus.moved;
        if (bus.chip->state == Chip::READ_OUT) {
            ++bus.available;
        } else if (bus.moved == PAGE_WORDS) {
            bus.chip->state = Chip::BUSY;
            bus.chip->until = clock + timing_.program;
            bus.chip = nullptr;
        }
    }

    void tick(Chip& chip, uint64_t clock) {
        if (chip.queue.empty()) return;
        const auto& [tag, command] = chip.queue.front();
        if (chip.state == Chip::IDLE) {
            chip.until = clock + (command.operation == ERASE ? timing_.erase : timing_.read);
            chip.data.clear();
            if (command.operation == WRITE) {
                chip.state = Chip::AWAITING;
                awaited_[tag] = &chip;
                requests_.push_back(tag);
            } else {
                chip.state = command.operation == READ ? Chip::READING : Chip::BUSY;
            }
        } else if (chip.state == Chip::READING && clock >= chip.until) {
            chip.state = Chip::READ_OUT;
        } else if (chip.state == Chip::BUSY && clock >= chip.until) {
            const bool is_done = command.operation == ERASE ? erase(command.page)
                                                            : program(command.page, chip.data);
            acks_.push_back({tag, is_done ? DONE : FAILED});
            chip.state = Chip::IDLE;
            chip.queue.pop_front();
        }
    }

    // A bus takes one of the chips that have a page to be moved.
    void choose(Bus& bus) {
        std::array<Chip*, CHIPS> ready;
        unsigned count = 0;
        for (auto& chip : bus.chips) {
            if (chip.state == Chip::READ_OUT || chip.state == Chip::FULL) ready[count++] = &chip;
        }
        if (count == 0) return;
        bus.chip = ready[random_() % count];
        if (bus.chip->state == Chip::FULL) bus.chip->state = Chip::MOVING;
        bus.available = bus.sent = bus.moved = 0;
    }

    void offer_read() {
        std::array<unsigned, BUSES> ready;
        unsigned count = 0;
        for (unsigned b = 0; b < BUSES; ++b) {
            if (buses_[b].chip != nullptr && buses_[b].available > 0) ready[count++] = b;
        }
        if (count == 0) return;
        reading_bus_ = ready[random_() % count];
        const Bus& bus = buses_[reading_bus_];
        const auto& [tag, command] = bus.chip->queue.front();
        read = Burst{tag, bus.sent == PAGE_WORDS - 1, word(command.page, bus.sent)};
    }

    Word word(uint32_t page, unsigned at) const {
        const auto found = written_.find(page);
        if (found == written_.end()) return pattern(first_ + page, at);
        if (found->second.empty()) return {~0u, ~0u, ~0u, ~0u};
        return found->second[at];
    }

    bool erase(uint32_t page) {
        if (is_bad(page)) return false;
        for (unsigned p = 0; p < PAGES_A_BLOCK; ++p)
            written_[block_of(page) + p * BUSES * CHIPS].clear();
        return true;
    }

    bool program(uint32_t page, const Page& data) {
        const auto found = written_.find(page);
        if (found == written_.end() || !found->second.empty())
            throw Failure("a page is programmed that is not erased");
        found->second = data;
        return true;
    }

    uint64_t first_;
    Timing timing_;
    std::mt19937_64 random_;
    std::array<Bus, BUSES> buses_;
    std::unordered_map<unsigned, Chip*> awaited_;           // by tag
    std::unordered_map<uint32_t, Page> written_;            // empty: erased
    std::deque<unsigned> requests_;
    std::deque<Ack> acks_;
    std::array<bool, 128> in_flight_{};
    unsigned reading_bus_ = 0;
};
