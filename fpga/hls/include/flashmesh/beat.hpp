// Pages as flash delivers them, and results as they leave: packets of beats of 512 bits.
//
// BlueDBM (sections 3.1.1 and 3.3) has data of reads come tagged and out of order, and accelerators
// consume it as it comes. Here a packet is a page, or one value of it (a text); the beats of a
// packet come one after the other, packets in any order, and a packet's tag says which it is. A
// kernel is told how many packets there are before the first: a stream has no end of its own.
//
// | compiled for | `axis` | `wide` |
// |---|---|---|
// | FPGA (Vitis HLS) | AXI-Stream: TDATA 512, TKEEP, TID the tag, TLAST the packet's end | hls::burst_maxi of 512 bits |
// | C simulation | a FIFO of AXIS_DEPTH beats | an array, and what was asked for |
// | sandbox | a queue | an array |
//
// `wide<T>` is a port through which an array of T is read a beat at a time, `wide_port` one of bytes,
// `wide_result<T>` one through which an array is written. `request` asks for beats, `load` takes them
// in that order: what a stage asks for ahead is under way while it works, and a memory's latency is
// waited for once. C simulation refuses what a device would answer with other bytes: a beat that was
// not asked for or not in its turn, one that nobody takes, and more than MAX_REQUESTS requests under
// way.
//
// `word_port` is memory that one stage reads and writes, a word at a time. A word is read when it is
// asked for, and written by the time of its `finish_word`, which waits for the oldest that is under
// way. C simulation reads as early and writes as late as that allows: a stage that asks ahead must
// know by itself what it has written since.
//
// The first column has been compiled by nobody: ap_axi_sdata.h and hls_burst_maxi.h are not among
// the headers that Xilinx published.
#ifndef FLASHMESH_BEAT_HPP
#define FLASHMESH_BEAT_HPP

#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

#if defined(__SYNTHESIS__)
#include <ap_axi_sdata.h>
#include <ap_int.h>
#include <hls_burst_maxi.h>
#elif !defined(__wasm__)
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#endif

// Stands before what a slot on a card calls. Elsewhere nothing but the kernel's own file does, and
// versions of a kernel may be linked together.
#if defined(__SYNTHESIS__)
#define FLASHMESH_STREAM_TOP extern "C"
#else
#define FLASHMESH_STREAM_TOP static
#endif

namespace flashmesh {

constexpr uint32_t BEAT_BYTES = 64;
constexpr uint32_t BEAT_WORDS = BEAT_BYTES / 8;
constexpr uint32_t PAGE_BEATS = PAGE_BYTES / BEAT_BYTES;
// A page waits at a kernel's edge.
constexpr uint32_t AXIS_DEPTH = PAGE_BEATS;
// Bits of TID: rows of a call, or pages on their way.
constexpr uint32_t TAG_BITS = 32;
// The num_read_outstanding of ports that are asked ahead is no less.
constexpr uint32_t MAX_REQUESTS = 32;

struct beat {
    // Byte i is byte i % 8 of word i / 8, lowest first; bytes that do not count are 0.
    uint64_t words[BEAT_WORDS];
    uint32_t tag;
    // Bytes that count, from the lowest on. Only a packet's last beat has fewer than 64; that of an
    // empty packet has none.
    uint8_t bytes;
    // Of its packet.
    bool is_last;
};

// What stages pass on of a beat, without what packets have.
struct line {
    uint64_t words[BEAT_WORDS];
};

inline line line_of(const beat &from)
{
#pragma HLS INLINE
    line out;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = from.words[word];
    }
    return out;
}

inline beat to_beat(const line &from, uint32_t bytes, uint32_t tag = 0)
{
#pragma HLS INLINE
    beat out = {};
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = from.words[word];
    }
    out.bytes = static_cast<uint8_t>(bytes);
    out.tag = tag;
    return out;
}

inline uint32_t beats_of(uint32_t bytes)
{
    return bytes / BEAT_BYTES + (bytes % BEAT_BYTES != 0 ? 1 : 0);
}

// The bytes of word `word` of which the first `bytes` of the beat are.
inline uint64_t word_mask(uint32_t word, uint32_t bytes)
{
    if (bytes >= 8 * word + 8) {
        return ~uint64_t{0};
    }
    return bytes <= 8 * word ? 0 : (uint64_t{1} << (8 * (bytes - 8 * word))) - 1;
}

// Byte `byte` of a beat.
inline uint8_t byte_of(const beat &from, uint32_t byte)
{
    return static_cast<uint8_t>(from.words[byte / 8] >> (8 * (byte % 8)));
}

// A beat without its first byte.
inline beat shift_byte(beat from)
{
#pragma HLS INLINE
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        const uint64_t above = word + 1 < BEAT_WORDS ? from.words[word + 1] << 56 : 0;
        from.words[word] = from.words[word] >> 8 | above;
    }
    --from.bytes;
    return from;
}

// `count` bytes of two beats that lie one behind the other, from byte `offset` (below 64) on: a
// barrel shifter, where a gather would read memory byte by byte. Neither tag nor end are set.
inline beat extract(const beat &low, const beat &high, uint32_t offset, uint32_t count)
{
#pragma HLS INLINE
    const uint32_t skip = offset / 8;
    const uint32_t shift = 8 * (offset % 8);
    beat out = {};
    out.bytes = static_cast<uint8_t>(count);
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        const uint32_t at = word + skip;
        const uint64_t first = at < BEAT_WORDS ? low.words[at] : high.words[at - BEAT_WORDS];
        const uint64_t second =
            at + 1 < BEAT_WORDS ? low.words[at + 1] : high.words[at + 1 - BEAT_WORDS];
        const uint64_t both = shift == 0 ? first : first >> shift | second << (64 - shift);
        out.words[word] = both & word_mask(word, count);
    }
    return out;
}

#if defined(__SYNTHESIS__)

using axis_beat = ap_axiu<8 * BEAT_BYTES, 0, TAG_BITS, 0>;
using axis = hls::stream<axis_beat>;
template <typename T>
using wide = hls::burst_maxi<ap_uint<8 * BEAT_BYTES>>;
using wide_port = wide<uint8_t>;
template <typename T>
using wide_result = hls::burst_maxi<ap_uint<8 * BEAT_BYTES>>;
using word_port = hls::burst_maxi<uint64_t>;

inline beat unpack(const ap_uint<8 * BEAT_BYTES> &data)
{
#pragma HLS INLINE
    beat out = {};
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = data.range(64 * word + 63, 64 * word).to_uint64();
    }
    return out;
}

inline beat receive(axis &from)
{
#pragma HLS INLINE
    const axis_beat next = from.read();
    beat out = unpack(next.data);
    out.tag = next.id.to_uint();
    out.is_last = next.last != 0;
count:
    for (uint32_t byte = 0; byte < BEAT_BYTES; ++byte) {
#pragma HLS UNROLL
        out.bytes += next.keep[byte] ? 1 : 0;
    }
    return out;
}

inline void send(axis &to, const beat &next)
{
#pragma HLS INLINE
    axis_beat out;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.data.range(64 * word + 63, 64 * word) = next.words[word];
    }
keep:
    for (uint32_t byte = 0; byte < BEAT_BYTES; ++byte) {
#pragma HLS UNROLL
        out.keep[byte] = byte < next.bytes;
        out.strb[byte] = byte < next.bytes;
    }
    out.id = next.tag;
    out.last = next.is_last;
    to.write(out);
}

// Asks for `beats` beats from beat `first` on; `load` then takes them in this order.
inline void request(wide_port port, uint64_t first, uint64_t beats)
{
    if (beats != 0) {
        port.read_request(first, beats);
    }
}

inline beat load(wide_port port, uint64_t, uint64_t)
{
    return unpack(port.read());
}

// Says that beats will be stored from beat `first` on; `store` then takes them in this order, each
// from `first_byte` on.
inline void request_store(wide_port port, uint64_t first, uint64_t beats)
{
    if (beats != 0) {
        port.write_request(first, beats);
    }
}

inline void store(wide_port port, uint64_t, const beat &next, uint32_t first_byte = 0)
{
#pragma HLS INLINE
    ap_uint<8 * BEAT_BYTES> data;
    ap_uint<BEAT_BYTES> enabled;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        data.range(64 * word + 63, 64 * word) = next.words[word];
    }
bytes:
    for (uint32_t byte = 0; byte < BEAT_BYTES; ++byte) {
#pragma HLS UNROLL
        enabled[byte] = byte >= first_byte && byte < next.bytes;
    }
    port.write(data, enabled);
}

// Waits until the beats of one `request_store` are in memory.
inline void finish_store(wide_port port, uint64_t beats)
{
    if (beats != 0) {
        port.write_response();
    }
}

inline void request_word(word_port port, uint64_t index)
{
    port.read_request(index, 1);
}

inline uint64_t load_word(word_port port, uint64_t)
{
    return port.read();
}

inline void store_word(word_port port, uint64_t index, uint64_t word)
{
    port.write_request(index, 1);
    port.write(word);
}

inline void finish_word(word_port port)
{
    port.write_response();
}

// In which place packet `number` of `count` is delivered.
inline uint32_t delivered(uint32_t number, uint32_t)
{
    return number;
}

#else

using axis = stream<beat, AXIS_DEPTH>;
template <typename T>
using wide = const T *;
using wide_port = wide<uint8_t>;
template <typename T>
using wide_result = T *;
using word_port = uint64_t *;

inline beat receive(axis &from)
{
    return from.read();
}

inline void send(axis &to, const beat &next)
{
    to.write(next);
}

#if defined(__wasm__)

template <typename T>
inline void request(wide<T>, uint64_t, uint64_t)
{
}

template <typename T>
inline void request_store(wide_result<T>, uint64_t, uint64_t)
{
}

inline void request_word(word_port, uint64_t) {}

inline uint64_t load_word(word_port port, uint64_t index)
{
    return port[index];
}

inline void store_word(word_port port, uint64_t index, uint64_t word)
{
    port[index] = word;
}

inline void finish_word(word_port) {}

#else

namespace detail {

// What a stage has asked for and not yet taken, at each of its ports.
class requests {
public:
    requests() = default;
    requests(const requests &) = delete;
    requests &operator=(const requests &) = delete;

    ~requests()
    {
        for (const auto &port : ports_) {
            if (!port.second.empty()) {
                fail("beat", port.second.front().first, "is left for the next call");
            }
        }
        for (const auto &port : reads_) {
            if (!port.second.empty()) {
                fail("word", port.second.front().index, "is left for the next call");
            }
        }
        for (const auto &port : writes_) {
            if (!port.second.empty()) {
                fail("word", port.second.front().index, "may not be written at the call's end");
            }
        }
    }

    void ask(const void *port, uint64_t first, uint64_t beats)
    {
        std::deque<range> &asked = ports_[port];
        if (asked.size() == MAX_REQUESTS) {
            fail("beat", first, "is asked for while the port is full");
        }
        asked.push_back({first, beats});
    }

    void take(const void *port, uint64_t index)
    {
        std::deque<range> &asked = ports_[port];
        if (asked.empty() || asked.front().first != index) {
            fail("beat", index, "is taken out of turn");
        }
        ++asked.front().first;
        if (--asked.front().beats == 0) {
            asked.pop_front();
        }
    }

    void ask_word(word_port port, uint64_t index)
    {
        if (reads_[port].size() == MAX_REQUESTS) {
            fail("word", index, "is asked for while the port is full");
        }
        reads_[port].push_back({index, port[index]});
    }

    uint64_t take_word(word_port port, uint64_t index)
    {
        std::deque<word_at> &asked = reads_[port];
        if (asked.empty() || asked.front().index != index) {
            fail("word", index, "is taken out of turn");
        }
        const uint64_t word = asked.front().word;
        asked.pop_front();
        return word;
    }

    void put_word(word_port port, uint64_t index, uint64_t word)
    {
        if (writes_[port].size() == MAX_REQUESTS) {
            fail("word", index, "is written while the port is full");
        }
        writes_[port].push_back({index, word});
    }

    void finish_word(word_port port)
    {
        std::deque<word_at> &put = writes_[port];
        if (put.empty()) {
            fail("word", 0, "was not written, and its response never comes");
        }
        port[put.front().index] = put.front().word;
        put.pop_front();
    }

    // A stage is a thread.
    static requests &of_stage()
    {
        thread_local requests of_thread;
        return of_thread;
    }

private:
    struct range {
        uint64_t first;
        uint64_t beats;
    };

    struct word_at {
        uint64_t index;
        uint64_t word;
    };

    [[noreturn]] static void fail(const char *unit, uint64_t index, const char *problem)
    {
        std::fprintf(stderr, "%s %llu of an array %s\n", unit,
                     static_cast<unsigned long long>(index), problem);
        std::fflush(stderr);
        std::abort();
    }

    std::map<const void *, std::deque<range>> ports_;
    std::map<word_port, std::deque<word_at>> reads_;
    std::map<word_port, std::deque<word_at>> writes_;
};

} // namespace detail

template <typename T>
inline void request(wide<T> port, uint64_t first, uint64_t beats)
{
    if (beats != 0) {
        detail::requests::of_stage().ask(port, first, beats);
    }
}

template <typename T>
inline void request_store(wide_result<T> port, uint64_t first, uint64_t beats)
{
    request(static_cast<wide<T>>(port), first, beats);
}

inline void request_word(word_port port, uint64_t index)
{
    detail::requests::of_stage().ask_word(port, index);
}

inline uint64_t load_word(word_port port, uint64_t index)
{
    return detail::requests::of_stage().take_word(port, index);
}

inline void store_word(word_port port, uint64_t index, uint64_t word)
{
    detail::requests::of_stage().put_word(port, index, word);
}

inline void finish_word(word_port port)
{
    detail::requests::of_stage().finish_word(port);
}

#endif

// Beat `index` of an array of `array_bytes` bytes, which it may outlast.
template <typename T>
inline beat load(wide<T> port, uint64_t index, uint64_t array_bytes)
{
#if !defined(__wasm__)
    detail::requests::of_stage().take(port, index);
#endif
    const uint64_t left = array_bytes - BEAT_BYTES * index;
    beat out = {};
    __builtin_memcpy(out.words, reinterpret_cast<const uint8_t *>(port) + BEAT_BYTES * index,
                     left < BEAT_BYTES ? left : BEAT_BYTES);
    return out;
}

// The bytes that count from `first_byte` on, which is one of them, at their places in beat `index`
// of an array.
template <typename T>
inline void store(wide_result<T> port, uint64_t index, const beat &next, uint32_t first_byte = 0)
{
#if !defined(__wasm__)
    detail::requests::of_stage().take(port, index);
#endif
    __builtin_memcpy(reinterpret_cast<uint8_t *>(port) + BEAT_BYTES * index + first_byte,
                     reinterpret_cast<const uint8_t *>(next.words) + first_byte,
                     next.bytes - first_byte);
}

template <typename T>
inline void finish_store(wide_result<T>, uint64_t)
{
}

#if !defined(FLASHMESH_DELIVERY_SEED)
#define FLASHMESH_DELIVERY_SEED 0
#endif

// 0: packets in their order. Another seed permutes them, as flash would; checks set it.
inline uint32_t delivery_seed = FLASHMESH_DELIVERY_SEED;

// Which of `count` packets comes as number `number`: multiplying by a prime that does not divide
// `count` is a permutation.
inline uint32_t delivered(uint32_t number, uint32_t count)
{
    constexpr uint64_t PRIMES[] = {4294967291, 4294967279, 4294967231, 4294967197};
    const uint64_t prime = PRIMES[delivery_seed % 4];
    return delivery_seed == 0 ? number
                              : static_cast<uint32_t>((number * prime + delivery_seed) % count);
}

#endif

inline line load_line(wide_port port, uint64_t index, uint64_t array_bytes)
{
#pragma HLS INLINE
    return line_of(load(port, index, array_bytes));
}

// Sends `length` bytes of an array of `array_bytes` bytes, from byte `start` on, as a packet: a
// beat of memory and a beat of the packet a cycle, intended.
inline void send_packet(wide_port port, uint64_t array_bytes, uint64_t start, uint32_t length,
                        uint32_t tag, axis &packets)
{
    const uint32_t offset = start % BEAT_BYTES;
    const uint64_t first = start / BEAT_BYTES;
    const uint64_t beats =
        length == 0 ? 0 : (uint64_t{offset} + length + BEAT_BYTES - 1) / BEAT_BYTES;
    request(port, first, beats);
    beat low = {};
    uint64_t taken = 0;
    if (beats != 0) {
        low = load(port, first, array_bytes);
        taken = 1;
    }
    uint32_t left = length;
    bool is_last = false;
beats:
    while (!is_last) {
#pragma HLS PIPELINE II=1
        beat high = {};
        if (taken < beats) {
            high = load(port, first + taken, array_bytes);
            ++taken;
        }
        is_last = left <= BEAT_BYTES;
        const uint32_t count = is_last ? left : BEAT_BYTES;
        beat next = extract(low, high, offset, count);
        next.tag = tag;
        next.is_last = is_last;
        send(packets, next);
        left -= count;
        low = high;
    }
}

} // namespace flashmesh

#endif
