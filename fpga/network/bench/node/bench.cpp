// Runs a trace (README, "Traces") through a rack of nodes, each a Verilated node.sv, joined by
// models of lines. Fails unless exactly the deliveries of the trace come out, in order.
//
//   bench <trace> [--seed N] [--jitter] [--latency CLOCKS] [--errors BITS] [--limit CLOCKS]
//
//   --seed     of --jitter and --errors
//   --jitter   users offer and take packets only in about half of the clocks
//   --latency  of a line, from the end of a frame at one end to its arrival at the other
//   --errors   one wrong bit in so many; 0 is none. Some frames are lost whole, some are hit by a
//              burst of up to 16 bits
//   --limit    so long without a delivery, with packets still to come, is a deadlock
//
// It prints one line of JSON. It ends with 0 when all is well, 1 when not, 3 for a deadlock.

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "Vnode.h"
#include "verilated.h"

namespace {

// As node.sv was compiled.
constexpr unsigned PORTS = BENCH_PORTS;
constexpr unsigned ENDPOINTS = BENCH_ENDPOINTS;
constexpr uint64_t INDICES = BENCH_INDICES;
constexpr unsigned END_TO_END = BENCH_END_TO_END;

// As in network_pkg.sv.
constexpr unsigned NODE_BITS = 5;
constexpr unsigned PAYLOAD_WORDS = 4;
constexpr unsigned FRAME_BITS = 168;
constexpr unsigned IDLE_FRAME_BITS = 64;
constexpr unsigned FRAME_WORDS = (FRAME_BITS + 31) / 32;

// A lane of 10 Gb/s with 64b/66b at 156.25 MHz moves 2048/33 bits of frames a clock.
constexpr uint64_t UNITS_A_CLOCK = 2048;
constexpr uint64_t UNITS_A_BIT = 33;

using Payload = std::array<uint32_t, PAYLOAD_WORDS>;
using Frame = std::array<uint32_t, FRAME_WORDS>;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <typename Wide>
uint32_t get_bits(const Wide& wide, unsigned low, unsigned count) {
    const unsigned word = low / 32, shift = low % 32;
    uint64_t bits = wide[word] >> shift;
    if (shift + count > 32) bits |= uint64_t{wide[word + 1]} << (32 - shift);
    return static_cast<uint32_t>(bits & ((uint64_t{1} << count) - 1));
}

template <typename Wide>
void put_bits(Wide& wide, unsigned low, unsigned count, uint32_t bits) {
    const unsigned word = low / 32, shift = low % 32;
    const uint64_t mask = ((uint64_t{1} << count) - 1) << shift;
    const uint64_t moved = uint64_t{bits} << shift;
    wide[word] = (wide[word] & ~static_cast<uint32_t>(mask)) | static_cast<uint32_t>(moved & mask);
    if (shift + count > 32) {
        wide[word + 1] = (wide[word + 1] & ~static_cast<uint32_t>(mask >> 32)) |
                         static_cast<uint32_t>((moved & mask) >> 32);
    }
}

template <typename Wide>
Frame get_frame(const Wide& wide, unsigned port) {
    Frame frame;
    for (unsigned w = 0; w < FRAME_WORDS; ++w) {
        const unsigned count = std::min(32u, FRAME_BITS - 32 * w);
        frame[w] = get_bits(wide, FRAME_BITS * port + 32 * w, count);
    }
    return frame;
}

template <typename Wide>
void put_frame(Wide& wide, unsigned port, const Frame& frame) {
    for (unsigned w = 0; w < FRAME_WORDS; ++w) {
        const unsigned count = std::min(32u, FRAME_BITS - 32 * w);
        put_bits(wide, FRAME_BITS * port + 32 * w, count, frame[w]);
    }
}

// One direction of a cable, with the transceivers at its ends.
class Line {
public:
    Line(uint64_t latency, uint64_t errors, uint64_t seed)
        : latency_(latency), errors_(errors), random_(seed) {
        if (errors_ > 0) until_error_ = distance();
    }

    // Whether the serialiser is free within this clock.
    bool is_ready(uint64_t clock) const { return free_at_ < (clock + 1) * UNITS_A_CLOCK; }

    void send(uint64_t clock, Frame frame) {
        const bool has_packet = get_bits(frame, FRAME_BITS - 1, 1) != 0;
        const unsigned bits = has_packet ? FRAME_BITS : IDLE_FRAME_BITS;
        free_at_ = std::max(free_at_, clock * UNITS_A_CLOCK) + bits * UNITS_A_BIT;
        const uint64_t arrival = (free_at_ + UNITS_A_CLOCK - 1) / UNITS_A_CLOCK + latency_;
        ++frames;
        packets += has_packet;
        if (!hit(frame, bits)) under_way_.emplace_back(arrival, frame);
    }

    // The frame that arrives in this clock, if one does.
    bool receive(uint64_t clock, Frame& frame) {
        if (under_way_.empty() || under_way_.front().first > clock) return false;
        frame = under_way_.front().second;
        under_way_.pop_front();
        return true;
    }

    uint64_t frames = 0;
    uint64_t packets = 0;
    uint64_t spoiled = 0;

private:
    uint64_t distance() { return std::geometric_distribution<uint64_t>(1.0 / errors_)(random_); }

    // Flips bits; says whether the whole frame is lost. The sent bits of an idle frame are its
    // first 9 and its check; the others are not looked for.
    bool hit(Frame& frame, unsigned bits) {
        if (errors_ == 0) return false;
        bool is_hit = false, is_lost = false;
        for (; until_error_ < bits; until_error_ += 1 + distance()) {
            is_hit = true;
            const unsigned kind = random_() % 8;
            const unsigned length = kind == 0 ? 1 + random_() % 16 : 1;
            is_lost |= kind == 1;
            for (unsigned i = 0; i < length; ++i) {
                const unsigned bit = (until_error_ + i) % FRAME_BITS;
                frame[bit / 32] ^= (i == 0 || random_() % 2 != 0 ? 1u : 0u) << bit % 32;
            }
        }
        until_error_ -= bits;
        spoiled += is_hit;
        return is_lost;
    }

    uint64_t latency_;
    uint64_t errors_;
    std::mt19937_64 random_;
    uint64_t until_error_ = 0;
    uint64_t free_at_ = 0;
    std::deque<std::pair<uint64_t, Frame>> under_way_;
};

struct Send {
    uint64_t clock;
    unsigned destination;
    Payload payload;
};

struct Stall {
    uint64_t from, to;
};

struct Trace {
    unsigned nodes = 0;
    struct Cable {
        unsigned node, port, other_node, other_port;
    };
    struct Route {
        unsigned node, index, destination, port;
    };
    std::vector<Cable> cables;
    std::vector<Route> routes;
    std::map<std::pair<unsigned, unsigned>, std::deque<Send>> sends;         // node, position
    std::map<std::pair<unsigned, unsigned>, std::vector<Stall>> stalls;      // node, position
    std::map<std::tuple<unsigned, unsigned, unsigned>, std::deque<Payload>>  // node, position,
        deliveries;                                                          // source
    uint64_t packets = 0;
};

// Position of an endpoint in the node, by its index.
unsigned position_of(unsigned index) {
    for (unsigned e = 0; e < ENDPOINTS; ++e) {
        if ((INDICES >> 4 * e & 15) == index) return e;
    }
    throw Failure("this bench has no endpoint of index " + std::to_string(index));
}

Payload read_payload(std::istream& words) {
    std::string hex;
    words >> hex;
    if (hex.empty() || hex.size() > 32) throw Failure("a payload is not 1 to 32 digits");
    hex.insert(0, 32 - hex.size(), '0');
    Payload payload;
    for (unsigned w = 0; w < PAYLOAD_WORDS; ++w) {
        payload[w] = static_cast<uint32_t>(std::stoul(hex.substr(24 - 8 * w, 8), nullptr, 16));
    }
    return payload;
}

Trace read_trace(const std::string& path) {
    std::ifstream file(path);
    if (!file) throw Failure("can't read " + path);
    Trace trace;
    std::string line, keyword;
    unsigned number = 0;
    while (std::getline(file, line)) {
        ++number;
        std::istringstream words(line);
        if (!(words >> keyword) || keyword[0] == '#') continue;
        unsigned a = 0, b = 0, c = 0, d = 0;
        if (keyword == "mesh-trace") {
            words >> a;
            if (a != 1) throw Failure("version " + std::to_string(a) + " of traces is not known");
        } else if (keyword == "nodes") {
            words >> trace.nodes;
        } else if (keyword == "endpoint") {
            std::string kind;
            words >> a >> kind;
            if ((END_TO_END >> position_of(a) & 1) != (kind == "end-to-end"))
                throw Failure("endpoint " + std::to_string(a) + " is of another kind here");
        } else if (keyword == "cable") {
            words >> a >> b >> c >> d;
            trace.cables.push_back({a, b, c, d});
        } else if (keyword == "route") {
            words >> a >> b >> c >> d;
            trace.routes.push_back({a, b, c, d});
        } else if (keyword == "send") {
            uint64_t clock = 0;
            words >> a >> b >> clock >> c;
            trace.sends[{a, position_of(b)}].push_back({clock, c, read_payload(words)});
        } else if (keyword == "stall") {
            Stall stall{};
            std::string to;
            words >> a >> b >> stall.from >> to;
            stall.to = to == "ever" ? UINT64_MAX : std::stoull(to);
            trace.stalls[{a, position_of(b)}].push_back(stall);
        } else if (keyword == "deliver") {
            words >> a >> b >> c;
            trace.deliveries[{a, position_of(b), c}].push_back(read_payload(words));
            ++trace.packets;
        } else {
            throw Failure(path + ":" + std::to_string(number) + ": '" + keyword + "'?");
        }
        if (!words) throw Failure(path + ":" + std::to_string(number) + ": a word is missing");
    }
    if (trace.nodes == 0 || trace.nodes > 1u << NODE_BITS) throw Failure("nodes: 1 to 32");
    return trace;
}

struct Options {
    std::string trace;
    uint64_t seed = 0;
    bool jitter = false;
    uint64_t latency = 10;
    uint64_t errors = 0;
    uint64_t limit = 20000;
};

// When the packets of one source came to an endpoint.
struct Arrivals {
    uint64_t first = 0, last = 0, packets = 0;
};

class Rack {
public:
    Rack(Trace trace, const Options& options)
        : trace_(std::move(trace)), options_(options), random_(options.seed) {
        for (unsigned n = 0; n < trace_.nodes; ++n) {
            nodes_.push_back(std::make_unique<Vnode>(&context_));
            nodes_.back()->number = n;
        }
        out_.resize(trace_.nodes * PORTS, nullptr);
        in_.resize(trace_.nodes * PORTS, nullptr);
        for (const auto& cable : trace_.cables) {
            join(cable.node, cable.port, cable.other_node, cable.other_port);
            join(cable.other_node, cable.other_port, cable.node, cable.port);
        }
    }

    // Runs until all is delivered, and then for a while: nothing more may come.
    void run() {
        start();
        uint64_t quiet = 0;
        while (delivered_ < trace_.packets || quiet < 3000) {
            const uint64_t before = delivered_;
            cycle();
            quiet = delivered_ == before ? quiet + 1 : 0;
            if (delivered_ < trace_.packets && quiet > options_.limit) {
                is_deadlock = true;
                throw Failure("deadlock: " + std::to_string(delivered_) + " of " +
                              std::to_string(trace_.packets) + " packets delivered, none for " +
                              std::to_string(options_.limit) + " clocks");
            }
        }
    }

    void report() const {
        uint64_t frames = 0, packets = 0, spoiled = 0;
        for (const auto& line : lines_) {
            frames += line->frames;
            packets += line->packets;
            spoiled += line->spoiled;
        }
        std::printf("{\"clocks\": %" PRIu64 ", \"delivered\": %" PRIu64 ", \"frames\": %" PRIu64
                    ", \"packet_frames\": %" PRIu64 ", \"spoiled\": %" PRIu64
                    ", \"refused\": %" PRIu64 ", \"repeats\": %" PRIu64 ", \"flows\": [",
                    clock_, delivered_, frames, packets, spoiled, refused_, repeats_);
        const char* comma = "";
        for (const auto& [flow, arrivals] : arrivals_) {
            const auto [node, position, source] = flow;
            std::printf("%s[%u, %u, %u, %" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", comma, node,
                        static_cast<unsigned>(INDICES >> 4 * position & 15), source,
                        arrivals.packets, arrivals.first, arrivals.last);
            comma = ", ";
        }
        std::printf("], \"channels\": [");
        comma = "";
        for (unsigned c = 0; c < out_.size(); ++c) {
            if (out_[c] == nullptr) continue;
            std::printf("%s[%u, %u, %" PRIu64 "]", comma, c / PORTS, c % PORTS, out_[c]->packets);
            comma = ", ";
        }
        std::printf("]}\n");
    }

    bool is_deadlock = false;

private:
    void join(unsigned node, unsigned port, unsigned to_node, unsigned to_port) {
        if (node >= trace_.nodes || to_node >= trace_.nodes || port >= PORTS || to_port >= PORTS)
            throw Failure("a cable ends nowhere");
        auto& out = out_[node * PORTS + port];
        if (out != nullptr) throw Failure("a port has two cables");
        lines_.push_back(std::make_unique<Line>(options_.latency, options_.errors,
                                                options_.seed * 1000003 + lines_.size()));
        out = in_[to_node * PORTS + to_port] = lines_.back().get();
    }

    void tick(Vnode& node) {
        node.clk = 0;
        node.eval();
        node.clk = 1;
        node.eval();
    }

    // Reset, and the routing tables.
    void start() {
        for (auto& node : nodes_) {
            node->reset = 1;
            for (unsigned i = 0; i < 4; ++i) tick(*node);
        }
        for (const auto& route : trace_.routes) {
            Vnode& node = *nodes_.at(route.node);
            node.load = 1;
            node.load_line = static_cast<uint16_t>(route.index << NODE_BITS | route.destination);
            node.load_port = static_cast<uint8_t>(route.port);
            tick(node);
            node.load = 0;
        }
        for (auto& node : nodes_) node->reset = 0;
    }

    void cycle() {
        for (unsigned n = 0; n < trace_.nodes; ++n) {
            drive(n);
            nodes_[n]->clk = 0;
            nodes_[n]->eval();
            look(n);
            nodes_[n]->clk = 1;
            nodes_[n]->eval();
        }
        ++clock_;
    }

    bool coin() { return !options_.jitter || random_() % 2 != 0; }

    void drive(unsigned n) {
        Vnode& node = *nodes_[n];
        node.send_valid = 0;
        node.receive_ready = 0;
        for (unsigned e = 0; e < ENDPOINTS; ++e) {
            const auto found = trace_.sends.find({n, e});
            if (found != trace_.sends.end() && !found->second.empty() &&
                found->second.front().clock <= clock_ && coin()) {
                const Send& send = found->second.front();
                node.send_valid |= 1u << e;
                put_bits_of(node.send_destination, NODE_BITS * e, NODE_BITS, send.destination);
                for (unsigned w = 0; w < PAYLOAD_WORDS; ++w)
                    node.send_payload[PAYLOAD_WORDS * e + w] = send.payload[w];
            }
            if (!is_stalled(n, e) && coin()) node.receive_ready |= 1u << e;
        }
        node.line_in_valid = 0;
        node.line_out_ready = 0;
        for (unsigned p = 0; p < PORTS; ++p) {
            Line* in = in_[n * PORTS + p];
            Line* out = out_[n * PORTS + p];
            Frame frame;
            if (in != nullptr && in->receive(clock_, frame)) {
                node.line_in_valid |= 1u << p;
                put_frame(node.line_in_frame, p, frame);
            }
            if (out != nullptr && out->is_ready(clock_)) node.line_out_ready |= 1u << p;
        }
    }

    template <typename Narrow>
    static void put_bits_of(Narrow& bits, unsigned low, unsigned count, uint32_t value) {
        const Narrow mask = static_cast<Narrow>(((Narrow{1} << count) - 1) << low);
        bits = static_cast<Narrow>((bits & ~mask) | (Narrow{value} << low));
    }

    bool is_stalled(unsigned n, unsigned e) const {
        const auto found = trace_.stalls.find({n, e});
        if (found == trace_.stalls.end()) return false;
        return std::any_of(found->second.begin(), found->second.end(), [this](const Stall& stall) {
            return stall.from <= clock_ && clock_ < stall.to;
        });
    }

    void look(unsigned n) {
        Vnode& node = *nodes_[n];
        for (unsigned e = 0; e < ENDPOINTS; ++e) {
            if ((node.send_valid & node.send_ready) >> e & 1) trace_.sends[{n, e}].pop_front();
            if ((node.receive_valid & node.receive_ready) >> e & 1) deliver(n, e);
        }
        for (unsigned p = 0; p < PORTS; ++p) {
            if ((node.line_out_valid & node.line_out_ready) >> p & 1)
                out_[n * PORTS + p]->send(clock_, get_frame(node.line_out_frame, p));
        }
        refused_ += static_cast<unsigned>(__builtin_popcount(node.is_refused));
        repeats_ += static_cast<unsigned>(__builtin_popcount(node.is_repeating));
        const std::string where = "node " + std::to_string(n);
        if (node.is_overflow != 0) throw Failure(where + ": a link's buffer overflows");
        if (node.is_unroutable != 0) throw Failure(where + ": a packet has no route");
        if (node.is_unknown != 0) throw Failure(where + ": a packet is for no endpoint");
    }

    void deliver(unsigned n, unsigned e) {
        const Vnode& node = *nodes_[n];
        const auto source = static_cast<unsigned>(node.receive_source >> NODE_BITS * e & 31);
        Payload payload;
        for (unsigned w = 0; w < PAYLOAD_WORDS; ++w)
            payload[w] = node.receive_payload[PAYLOAD_WORDS * e + w];
        auto& wanted = trace_.deliveries[{n, e, source}];
        if (wanted.empty() || wanted.front() != payload) {
            throw Failure("node " + std::to_string(n) + ", endpoint " +
                          std::to_string(INDICES >> 4 * e & 15) + ": clock " +
                          std::to_string(clock_) + " brings another packet from node " +
                          std::to_string(source) + " than the trace has");
        }
        wanted.pop_front();
        ++delivered_;
        Arrivals& arrivals = arrivals_[{n, e, source}];
        if (arrivals.packets++ == 0) arrivals.first = clock_;
        arrivals.last = clock_;
    }

    Trace trace_;
    Options options_;
    std::mt19937_64 random_;
    VerilatedContext context_;
    std::vector<std::unique_ptr<Vnode>> nodes_;
    std::vector<std::unique_ptr<Line>> lines_;
    std::vector<Line*> out_, in_;
    std::map<std::tuple<unsigned, unsigned, unsigned>, Arrivals> arrivals_;
    uint64_t clock_ = 0, delivered_ = 0, refused_ = 0, repeats_ = 0;
};

Options read_options(int count, char** words) {
    Options options;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        const auto value = [&] {
            if (++i == count) throw Failure(word + " needs a number");
            return std::stoull(words[i]);
        };
        if (word == "--seed") options.seed = value();
        else if (word == "--jitter") options.jitter = true;
        else if (word == "--latency") options.latency = value();
        else if (word == "--errors") options.errors = value();
        else if (word == "--limit") options.limit = value();
        else options.trace = word;
    }
    return options;
}

}  // namespace

int main(int count, char** words) {
    std::unique_ptr<Rack> rack;
    try {
        const Options options = read_options(count, words);
        rack = std::make_unique<Rack>(read_trace(options.trace), options);
        rack->run();
        rack->report();
    } catch (const std::exception& failure) {
        std::printf("%s\n", failure.what());
        return rack && rack->is_deadlock ? 3 : 1;
    }
    return 0;
}
