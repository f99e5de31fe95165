// HLS kernels in C simulation in the slots of a device on models of two flash cards.
//
//   bench KERNEL KERNEL [--hold CLOCKS] [options of bench/device/bench.cpp]
//
//   --hold     nobody takes results before that clock
//
// The kernels of slots 0 and 1 are named: hamming_nearest, morris_pratt, fgrep8,
// read_modify_write. What the commands ask of them is drawn from the seed, so that some of it is
// found and some is not, and words, beats and pages in another order, or without their ends, give
// something else.
//
// Fails unless all results come, to the line of the part that asked, before its outcome, and are
// those of references.hpp, as is what kernels leave in memory. It prints one line of JSON; its
// clocks are those of the device, and the kernels take none.

#include <deque>

#include "../device/traffic.hpp"
#include "Vhls_kernels.h"
#include "references.hpp"
#include "slot.hpp"

std::vector<Kernel> kernels;

namespace {

// Where a device would have memory. Kernels use them from threads of their own: they stay.
std::deque<Arguments> memory;

constexpr unsigned FOUND_BITS = 1 + 5 + 32 + 128;
constexpr unsigned SLOT_BYTES = 64, PATTERNS = 8;

class Bench : public Traffic<Vhls_kernels> {
public:
    Bench(const Options& options, const std::array<std::string, CARDS>& names)
        : Traffic(options), names_(names) {
        for (const auto& name : names) {
            if (name == "hamming_nearest") kernels.push_back(hamming_nearest_in_slot);
            else if (name == "morris_pratt") kernels.push_back(morris_pratt_in_slot);
            else if (name == "fgrep8") kernels.push_back(fgrep8_in_slot);
            else if (name == "read_modify_write") kernels.push_back(read_modify_write_in_slot);
            else throw Failure("kernel '" + name + "'?");
        }
    }

private:
    // What a part's kernel must find: packets by their tags.
    using Packets = std::map<uint32_t, Bytes>;

    struct Search {
        Packets wanted;
        Packets begun;             // without their last words
        std::vector<uint64_t> previous;
    };

    // With --hostile most commands are of endpoints that may read where files lie, but half of the
    // segments lie where nobody may, and most parts go over the end of one.
    unsigned choose_endpoint() override {
        return random_() % 4 == 0 ? Traffic::choose_endpoint() : 1 + random_() % 2;
    }

    uint32_t choose_segment() override {
        if (options_.hostile && random_() % 2 == 0) return 12 * SUPERBLOCK >> SEGMENT_BITS;
        return Traffic::choose_segment();
    }

    void move(Part& part) override {
        if (!options_.hostile || random_() % 4 == 0) return;
        part.offset = (1 + random_() % (FILE_SEGMENTS - 1)) << SEGMENT_BITS;
        part.offset -= 1 + random_() % 3;
    }

    void assign(unsigned card, Part& part) override {
        part.parameter = memory.size();
        memory.emplace_back();
        pages_.clear();
        for (const auto& page : part.pages) pages_.push_back(bytes_of(page));
        Search search;
        if (names_[card] == "hamming_nearest") search.wanted = nearest(part, memory.back());
        else if (names_[card] == "morris_pratt") search.wanted = places(part, memory.back());
        else if (names_[card] == "fgrep8") search.wanted = matches(part, memory.back());
        else search.wanted = changes(part, memory.back(), search.previous);
        for (const auto& [tag, bytes] : search.wanted) part.result += bytes.size();
        searches_[card][{part.endpoint, part.line}] = search;
        with_gaps_ += !part.pages.empty() && part.pages.size() < part.length;
        shared_ += !part.is_last;
    }

    Packets nearest(const Part& part, Arguments& arguments) {
        static constexpr uint32_t SIZES[] = {4, 16, 24, 64, 100, 512, 8192};
        const uint32_t bytes = arguments.code_bytes = SIZES[random_() % 7];
        const uint32_t rows_per_page = static_cast<uint32_t>(16 * PAGE_WORDS) / bytes;
        if (part.length != 0)
            arguments.rows = part.length * rows_per_page - random_() % rows_per_page;
        arguments.k = random_() % 8 == 0 ? 1024 : random_() % 40;
        const unsigned one_in = 1 + random_() % 8;
        arguments.selected.resize((arguments.rows + 63) / 64);
        for (uint32_t row = 0; row < arguments.rows; ++row)
            arguments.selected[row / 64] |= uint64_t{random_() % one_in == 0} << row % 64;
        // Near to a code, or to none.
        for (uint32_t i = 0; i < bytes; ++i)
            arguments.bytes.push_back(static_cast<uint8_t>(random_()));
        if (!pages_.empty() && random_() % 4 != 0) {
            const Bytes& page = pages_[random_() % pages_.size()];
            const auto code = page.begin() + random_() % rows_per_page * bytes;
            arguments.bytes.assign(code, code + bytes);
            arguments.bytes[random_() % bytes] ^= 1;
        }

        std::vector<Neighbour> all;
        for (size_t at = 0; at < pages_.size(); ++at) {
            const uint32_t first = part.pages[at].number * rows_per_page;
            for (uint32_t i = 0; i < rows_per_page && first + i < arguments.rows; ++i) {
                const uint32_t row = first + i;
                if ((arguments.selected[row / 64] >> row % 64 & 1) == 0) continue;
                const uint8_t* code = &pages_[at][i * bytes];
                all.push_back({row, hamming(code, arguments.bytes.data(), bytes)});
            }
        }
        std::sort(all.begin(), all.end());
        if (all.size() > arguments.k) all.resize(arguments.k);
        Packets packets{{0, {}}};
        for (const auto& neighbour : all)
            append(packets[0], uint64_t{neighbour.distance} << 32 | neighbour.row);
        return packets;
    }

    // What is in a page, or would be if pages went on in each other, or is not there.
    Bytes choose_text() {
        Bytes text(random_() % (SLOT_BYTES + 1));
        for (auto& byte : text) byte = static_cast<uint8_t>(random_());
        const unsigned kind = random_() % 6;
        if (kind == 0) text.resize(std::min<size_t>(1, text.size()));
        if (pages_.empty() || kind < 2) return text;
        const size_t at = random_() % pages_.size();
        Bytes from = pages_[at];
        if (kind == 2 && at + 1 < pages_.size())
            from.insert(from.end(), pages_[at + 1].begin(), pages_[at + 1].end());
        size_t start = random_() % (from.size() - SLOT_BYTES);
        if (kind == 2) start = 16 * PAGE_WORDS - text.size() / 2;
        if (kind == 3) start = from.size() - text.size();
        for (size_t i = 0; i < text.size() && start + i < from.size(); ++i)
            text[i] = from[start + i];
        return text;
    }

    Packets places(const Part& part, Arguments& arguments) {
        arguments.bytes = choose_text();
        Packets packets;
        for (size_t at = 0; at < pages_.size(); ++at) {
            const uint32_t place = find(pages_[at], arguments.bytes);
            append(packets[part.pages[at].number], place);
            places_ += place != NOT_FOUND;
        }
        return packets;
    }

    Packets matches(const Part& part, Arguments& arguments) {
        std::vector<uint32_t> found(pages_.size());
        for (unsigned pattern = 0; pattern < PATTERNS; ++pattern) {
            Bytes text = choose_text();
            for (size_t at = 0; at < pages_.size(); ++at) {
                const bool is_in = !text.empty() && find(pages_[at], text) != NOT_FOUND;
                found[at] |= uint32_t{is_in} << pattern;
                places_ += is_in;
            }
            arguments.lengths.push_back(static_cast<uint32_t>(text.size()));
            text.resize(SLOT_BYTES);
            arguments.bytes.insert(arguments.bytes.end(), text.begin(), text.end());
        }
        Packets packets;
        for (size_t at = 0; at < pages_.size(); ++at)
            append(packets[part.pages[at].number], found[at]);
        return packets;
    }

    // Operations that often meet in a word; some are on pages that do not come, and some are none.
    Packets changes(const Part& part, Arguments& arguments, std::vector<uint64_t>& previous) {
        const size_t count = random_() % 60;
        for (size_t i = 0; i < count; ++i) {
            const uint64_t number = random_() % (part.length + 1);
            const unsigned places = random_() % 2 != 0 ? 4 : 2 * PAGE_WORDS + 64;
            uint64_t byte = 8 * (random_() % places);
            if (random_() % 8 == 0) byte += random_() % 8;
            const uint64_t opcode = random_() % 8, operand = random_();
            uint64_t compare = random_();
            size_t at = 0;
            while (at < pages_.size() && part.pages[at].number != number) ++at;
            previous.push_back(~uint64_t{0});
            if (at < pages_.size() && byte < 16 * PAGE_WORDS && byte % 8 == 0 && opcode % 7 != 0) {
                const uint64_t word = previous.back() = number_at(pages_[at], byte);
                if (random_() % 2 != 0) compare = word;
                put_number(pages_[at], byte, modified(word, opcode, operand, compare));
                ++places_;
            }
            arguments.operations.insert(arguments.operations.end(),
                                        {number << 32 | byte, opcode, operand, compare});
        }
        arguments.previous.resize(count);
        Packets packets;
        for (size_t at = 0; at < pages_.size(); ++at)
            packets[part.pages[at].number] = pages_[at];
        return packets;
    }

    void drive_kernels() override {
        device_.is_paused = device_.out_ready = 0;
        for (unsigned c = 0; c < CARDS; ++c) {
            if (!coin()) device_.is_paused |= 1u << c;
            if (coin() && clock_ >= options_.hold) device_.out_ready |= 1u << c;
        }
    }

    void look_at_kernels() override {
        at_once_ += device_.is_at_work == (1u << CARDS) - 1;
        held_up_ += device_.is_full != 0;
        for (unsigned c = 0; c < CARDS; ++c) {
            if ((device_.out_valid & device_.out_ready) >> c & 1) take_found(c);
        }
    }

    void take_found(unsigned c) {
        const unsigned low = FOUND_BITS * c;
        const std::pair<unsigned, unsigned> line = {
            get_narrow(device_.out_endpoint, ENDPOINT_BITS * c, ENDPOINT_BITS),
            get_narrow(device_.out_line, AREA_BITS * c, AREA_BITS)};
        const auto tag = static_cast<uint32_t>(get(device_.out, low + 128, 32));
        const uint64_t count = get(device_.out, low + 160, 5);
        const bool is_last = get(device_.out, low + 165, 1) != 0;
        const std::string what = names_[c] + " in slot " + std::to_string(c) + ", packet " +
                                 std::to_string(tag);
        const auto search = searches_[c].find(line);
        if (search == searches_[c].end()) throw Failure(what + ": nobody has asked for it");
        auto& [wanted, begun, previous] = search->second;
        const auto packet = wanted.find(tag);
        if (packet == wanted.end()) throw Failure(what + " is none that must come, or comes again");
        Bytes& bytes = begun[tag];
        if (count > 16) throw Failure(what + " has a word of more bytes than a word has");
        for (unsigned byte = 0; byte < count; ++byte)
            bytes.push_back(static_cast<uint8_t>(get(device_.out, low + 8 * byte, 8)));
        ++words_;
        ++progress_;
        if (!is_last) return;
        if (bytes != packet->second) throw Failure(what + " is another");
        wanted.erase(tag);
        begun.erase(tag);
        ++results_;
    }

    void end_part(unsigned card, const Part& part) override {
        const auto search = searches_[card].find({part.endpoint, part.line});
        if (!search->second.wanted.empty())
            throw Failure("a part is over before the results of " + names_[card] + " have come");
        if (memory[part.parameter].previous != search->second.previous)
            throw Failure(names_[card] + " leaves something else in memory");
        searches_[card].erase(search);
        streamed_ += part.pages.size();
    }

    void report_kernels() const override {
        std::printf(", \"results\": %" PRIu64 ", \"words\": %" PRIu64 ", \"found\": %" PRIu64
                    ", \"shared\": %" PRIu64 ", \"with_gaps\": %" PRIu64 ", \"at_once\": %" PRIu64
                    ", \"held_up\": %" PRIu64,
                    results_, words_, places_, shared_, with_gaps_, at_once_, held_up_);
    }

    std::array<std::string, CARDS> names_;
    std::vector<Bytes> pages_;                 // of the part that is made up
    std::array<std::map<std::pair<unsigned, unsigned>, Search>, CARDS> searches_;  // under way
    // Packets and words that came; texts that are in pages, and operations on them; parts that share
    // a command, that lack a page; clocks in which all slots are at work, in which a kernel has no
    // room for a beat.
    uint64_t results_ = 0, words_ = 0, places_ = 0, shared_ = 0, with_gaps_ = 0, at_once_ = 0;
    uint64_t held_up_ = 0;
};

}  // namespace

Arguments& arguments_of(uint64_t parameter) { return memory.at(parameter); }

int main(int count, char** words) {
    try {
        if (count < 3) throw Failure("usage: bench KERNEL KERNEL [option...]");
        Bench bench(read_options(count - 2, words + 2), {words[1], words[2]});
        bench.run();
        bench.report();
    } catch (const std::exception& failure) {
        std::printf("%s\n", failure.what());
        std::fflush(stdout);
        // Kernels may be waiting in their threads, for what does not come.
        std::_Exit(1);
    }
    return 0;
}
