// Bytes behind each other: pieces of up to a beat become beats without gaps, and packets an array,
// in bursts of up to 4 KiB, as nobody knows how many bytes there are before the last one.
#ifndef FLASHMESH_PACK_HPP
#define FLASHMESH_PACK_HPP

#include <flashmesh/beat.hpp>

namespace flashmesh {

// A burst is written while the next one is collected.
constexpr uint32_t BURST_BEATS = 64;
constexpr uint32_t BURSTS_DEPTH = 2;
constexpr uint32_t BURST_DEPTH = BURSTS_DEPTH * BURST_BEATS;

// The first `count` bytes of a beat.
inline line first_bytes(const line &from, uint32_t count)
{
#pragma HLS INLINE
    line out;
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        out.words[word] = from.words[word] & word_mask(word, count);
    }
    return out;
}

// The bytes that wait until they are a beat.
struct packer {
    line waiting;
    uint32_t filled;
    uint64_t total;
};

// `from` behind `offset` bytes (below 64): a beat, and what does not fit it.
inline void shift_up(const line &from, uint32_t offset, line &low, line &high)
{
#pragma HLS INLINE
    const uint32_t skip = offset / 8;
    const uint32_t shift = 8 * (offset % 8);
words:
    for (uint32_t word = 0; word < 2 * BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        // Words before the first and behind the last are 0.
        const uint32_t at = word - skip;
        const uint64_t here = at < BEAT_WORDS ? from.words[at] : 0;
        const uint64_t below = at - 1 < BEAT_WORDS ? from.words[at - 1] : 0;
        const uint64_t both = shift == 0 ? here : here << shift | below >> (64 - shift);
        (word < BEAT_WORDS ? low : high).words[word % BEAT_WORDS] = both;
    }
}

// Puts `count` bytes, behind which the piece has zeros, behind those that wait. Says whether they
// are more than a beat, which is `out` then.
inline bool append(const line &piece, uint32_t count, packer &state, line &out)
{
#pragma HLS INLINE
    line low;
    line high;
    shift_up(piece, state.filled, low, high);
words:
    for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
        low.words[word] |= state.waiting.words[word];
    }
    out = low;
    state.total += count;
    state.filled += count;
    const bool is_full = state.filled > BEAT_BYTES;
    state.waiting = is_full ? high : low;
    state.filled -= is_full ? BEAT_BYTES : 0;
    return is_full;
}

// Bytes that are written at once.
struct burst {
    uint32_t bytes;
    bool is_last;
};

// Puts the bytes of packets behind each other, in beats that wait until they are a burst.
inline void join_bytes(uint32_t packet_count, axis &packets, stream<line, BURST_DEPTH> &beats,
                       stream<burst, BURSTS_DEPTH> &bursts)
{
    packer state = {};
    uint32_t burst_beats = 0;
    uint32_t ended = 0;
bytes:
    while (ended < packet_count) {
#pragma HLS PIPELINE II=1
        const beat next = receive(packets);
        line full;
        if (append(line_of(next), next.bytes, state, full)) {
            beats.write(full);
            ++burst_beats;
            if (burst_beats == BURST_BEATS) {
                bursts.write({BURST_BEATS * BEAT_BYTES, false});
                burst_beats = 0;
            }
        }
        ended += next.is_last ? 1 : 0;
    }
    if (state.filled != 0) {
        beats.write(state.waiting);
    }
    bursts.write({burst_beats * BEAT_BYTES + state.filled, true});
}

// Writes bursts as they are complete, as many of the bytes as there is room for. A burst is waited
// for when the next one is under way.
inline void write_bytes(uint32_t byte_capacity, stream<line, BURST_DEPTH> &beats,
                        stream<burst, BURSTS_DEPTH> &bursts, wide_result<uint8_t> bytes)
{
    const uint32_t capacity_beats = beats_of(byte_capacity);
    // Beats that were written, and of the burst that is waited for next.
    uint32_t written = 0;
    uint32_t pending = 0;
    bool is_last = false;
bursts:
    while (!is_last) {
        const burst next = bursts.read();
        is_last = next.is_last;
        const uint32_t count = beats_of(next.bytes);
        const uint32_t room = capacity_beats - written;
        const uint32_t kept = count < room ? count : room;
        request_store(bytes, written, kept);
    beats:
        for (uint32_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
            const line from = beats.read();
            if (i < kept) {
                const uint32_t left = next.bytes - i * BEAT_BYTES;
                const uint32_t place = (written + i) * BEAT_BYTES;
                uint32_t size = left < BEAT_BYTES ? left : BEAT_BYTES;
                size = size < byte_capacity - place ? size : byte_capacity - place;
                store(bytes, written + i, to_beat(from, size));
            }
        }
        finish_store(bytes, pending);
        pending = kept;
        written += kept;
    }
    finish_store(bytes, pending);
}

} // namespace flashmesh

#endif
