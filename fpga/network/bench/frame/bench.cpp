// Frames from encoder to decoder.
//
// The check of frames is compared with a CRC of our own, bit by bit. A CRC is linear, so what it
// finds can be counted with ours: all sets of up to three wrong bits, those of the sequence
// number, which is not sent, among them; all bursts of up to 16 bits. Then the same through the
// RTL: each wrong bit alone, each wrong sequence number alone, random sets of two and three, and
// bursts: the frame must be refused, and without any of it pass.
//
//   bench [--seed N]

#include <array>
#include <bitset>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "Vframe_loop.h"
#include "verilated.h"

namespace {

constexpr unsigned PACKET_BITS = 143;
constexpr unsigned SEQUENCE_BITS = 7;
constexpr unsigned FRAME_BITS = 2 + SEQUENCE_BITS + PACKET_BITS + 16;
constexpr unsigned CODE_BITS = SEQUENCE_BITS + FRAME_BITS;

using Frame = std::bitset<FRAME_BITS>;
// The sequence number, then the frame: what the CRC is about. Bit 0 is the last one.
using Code = std::bitset<CODE_BITS>;

[[noreturn]] void fail(const char* what) {
    std::printf("%s\n", what);
    std::exit(1);
}

// x^16 + x^12 + x^5 + 1; `message` is the code word without its check.
uint16_t crc(const Code& code, uint16_t start) {
    uint32_t rest = start;
    for (unsigned i = CODE_BITS; i-- > 16;) {
        rest ^= static_cast<uint32_t>(code[i]) << 15;
        rest = rest & 0x8000 ? (rest << 1 ^ 0x1021) & 0xffff : rest << 1;
    }
    return static_cast<uint16_t>(rest);
}

// What a wrong bit does to the check: linear, so without the start.
uint16_t syndrome(const Code& errors) {
    return static_cast<uint16_t>(crc(errors, 0) ^ (errors & Code(0xffff)).to_ulong());
}

void count_undetected() {
    std::array<uint16_t, CODE_BITS> of_bit;
    for (unsigned i = 0; i < CODE_BITS; ++i) of_bit[i] = syndrome(Code().set(i));
    for (unsigned a = 0; a < CODE_BITS; ++a) {
        if (of_bit[a] == 0) fail("one wrong bit is not found");
        for (unsigned b = a + 1; b < CODE_BITS; ++b) {
            if ((of_bit[a] ^ of_bit[b]) == 0) fail("two wrong bits are not found");
            for (unsigned c = b + 1; c < CODE_BITS; ++c) {
                if ((of_bit[a] ^ of_bit[b] ^ of_bit[c]) == 0)
                    fail("three wrong bits are not found");
            }
        }
    }
    // A burst begins with a wrong bit; the 15 behind it may be anything.
    for (unsigned first = 15; first < CODE_BITS; ++first) {
        for (unsigned rest = 0; rest < 1u << 15; ++rest) {
            uint16_t sum = of_bit[first];
            for (unsigned i = 0; i < 15; ++i) {
                if (rest >> i & 1) sum ^= of_bit[first - 1 - i];
            }
            if (sum == 0) fail("a burst of 16 bits is not found");
        }
    }
}

template <size_t BITS, typename Wide>
void put(Wide& wide, const std::bitset<BITS>& bits) {
    for (unsigned w = 0; w <= (BITS - 1) / 32; ++w) {
        const auto word = bits >> 32 * w & std::bitset<BITS>(0xffffffff);
        wide[w] = static_cast<uint32_t>(word.to_ulong());
    }
}

template <size_t BITS, typename Wide>
std::bitset<BITS> get(const Wide& wide) {
    std::bitset<BITS> bits;
    for (unsigned i = 0; i < BITS; ++i) bits[i] = wide[i / 32] >> i % 32 & 1;
    return bits;
}

class Loop {
public:
    explicit Loop(uint64_t seed) : random_(seed) {
        loop_.reset = 1;
        tick();
        loop_.reset = 0;
    }

    // Sends a random frame, with these errors; the sequence number's lie above the frame's.
    void send(const Code& errors) {
        Frame packet_bits;
        for (unsigned i = 0; i < PACKET_BITS; ++i) packet_bits[i] = random_() & 1;
        const bool has_packet = random_() % 4 != 0 || (errors >> FRAME_BITS).any();
        loop_.s_valid = has_packet;
        put(loop_.s_packet, std::bitset<PACKET_BITS>(packet_bits.to_string().substr(25)));
        loop_.s_sequence = random_() % 128;
        loop_.s_is_freed = random_() & 1;
        loop_.s_report = random_() % 128;
        const auto wrong = static_cast<unsigned>((errors >> FRAME_BITS).to_ulong());
        loop_.expected = loop_.s_sequence ^ wrong;
        put(loop_.errors, Frame());
        tick();     // into the encoder's register
        const auto frame = get<FRAME_BITS>(loop_.frame);
        compare(frame, has_packet);
        put(loop_.errors, Frame(errors.to_string().substr(SEQUENCE_BITS)));
        tick();     // into the decoder's
        const bool is_taken = loop_.report_valid;
        if (loop_.is_refused == is_taken) fail("a frame is neither taken nor refused");
        if (is_taken != errors.none()) {
            fail(is_taken ? "a wrong frame is taken" : "a good frame is refused");
        }
        if (loop_.m_valid != (is_taken && has_packet)) fail("a packet is taken from a wrong frame");
        if (!is_taken) return;
        if (loop_.report != loop_.s_report || loop_.report_is_freed != loop_.s_is_freed)
            fail("a report comes out otherwise");
        if (has_packet && std::memcmp(&loop_.m_packet, &loop_.s_packet, sizeof loop_.m_packet) != 0)
            fail("a packet comes out otherwise");
    }

    Code random_errors(unsigned count) {
        Code errors;
        while (errors.count() < count) errors.set(random_() % CODE_BITS);
        return errors;
    }

    Code random_burst() {
        const unsigned length = 2 + random_() % 15, low = random_() % (FRAME_BITS - length);
        Code errors;
        for (unsigned i = 0; i < length; ++i) errors[low + i] = random_() & 1;
        return errors.set(low);
    }

private:
    // Our check of the frame that the encoder made.
    void compare(const Frame& frame, bool has_packet) {
        Code code(frame.to_string());
        if (has_packet) code |= Code(loop_.s_sequence) << FRAME_BITS;
        // The start is of the frame alone: the sequence number before it starts from zero.
        Code alone(frame.to_string());
        uint16_t check = crc(code & ~alone, 0);
        uint32_t rest = 0xffff;
        for (unsigned i = FRAME_BITS; i-- > 16;) {
            rest ^= static_cast<uint32_t>(alone[i]) << 15;
            rest = rest & 0x8000 ? (rest << 1 ^ 0x1021) & 0xffff : rest << 1;
        }
        check ^= static_cast<uint16_t>(rest);
        if (check != (frame & Frame(0xffff)).to_ulong()) fail("a check is not our CRC");
    }

    void tick() {
        loop_.clk = 0;
        loop_.eval();
        loop_.clk = 1;
        loop_.eval();
    }

    std::mt19937_64 random_;
    Vframe_loop loop_;
};

}  // namespace

int main(int count, char** words) {
    const uint64_t seed = count == 3 && std::strcmp(words[1], "--seed") == 0
                              ? std::strtoull(words[2], nullptr, 10) : 1;
    count_undetected();
    Loop loop(seed);
    unsigned frames = 0;
    const auto send = [&](const Code& errors) {
        loop.send(errors);
        ++frames;
    };
    for (unsigned i = 0; i < 5000; ++i) send(Code());
    for (unsigned i = 0; i < CODE_BITS; ++i) send(Code().set(i));
    for (unsigned wrong = 1; wrong < 1u << SEQUENCE_BITS; ++wrong) send(Code(wrong) << FRAME_BITS);
    for (unsigned i = 0; i < 5000; ++i) {
        send(loop.random_errors(2));
        send(loop.random_errors(3));
        send(loop.random_burst());
    }
    std::printf("%u frames, seed %llu; all sets of 3 wrong bits and all bursts of 16 are found\n",
                frames, static_cast<unsigned long long>(seed));
    return 0;
}
