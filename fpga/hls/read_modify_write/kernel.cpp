// Atomic operations on words of pages, in the order in which they are given.
//
// Minerva (section IV-A, RMW) reads, changes and writes back small pieces of a file in the store:
// half the latency of two I/Os from the host for one, and far more for many in one command. The
// pages here are those of a command; what leaves is to be written in their place. As flash pages
// are not written twice, that is elsewhere, and header and checksum are the host's.
//
// On a card: `read_modify_write_stream`. A packet of `pages` is a page, its tag its number in the
// command; packets come in any order and leave, changed, with the same tag. A page is changed on
// chip. A page that could not be read is an empty packet, with a tag that no page has: it leaves as
// it came.
//
// For the host: `read_modify_write`, over arrays: `pages` and `result_pages` have page_count pages
// of 8 KiB.
//
// `operations` has four words for each operation:
//
// | word | |
// |---|---|
// | 0 | page · 2^32 + byte within the page, a multiple of 8 |
// | 1 | opcode |
// | 2 | operand |
// | 3 | compare |
//
// | opcode | the word becomes |
// |---|---|
// | 1 | word + operand, modulo 2^64 |
// | 2 3 4 | word AND, OR, XOR operand |
// | 5 | operand |
// | 6 | operand if it is `compare`, else what it is |
//
// Words are little-endian. previous[i] is the word before operation i, which sees what the
// operations before it have done: those of other pages have done nothing to it. An operation of
// another opcode, or outside the pages, or not on a multiple of 8, or on a page that does not come,
// changes nothing, and its `previous` is all ones.
//
// Intended, not measured: 64 bytes per cycle for pages in and out; a page looks at all operations,
// four cycles each: an operation is four words, and may depend on the one before.
#include <flashmesh/beat.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::axis;
using flashmesh::beat;
using flashmesh::BEAT_WORDS;
using flashmesh::PAGE_BEATS;

constexpr uint32_t OPERATION_WORDS = 4;
constexpr uint32_t WORD_BYTES = 8;
constexpr uint64_t NOT_DONE = ~uint64_t{0};

enum opcode : uint64_t { ADD = 1, AND = 2, OR = 3, XOR = 4, EXCHANGE = 5, COMPARE_EXCHANGE = 6 };

uint64_t apply(uint64_t operation, uint64_t word, uint64_t operand, uint64_t compare)
{
    switch (operation) {
    case ADD:
        return word + operand;
    case AND:
        return word & operand;
    case OR:
        return word | operand;
    case XOR:
        return word ^ operand;
    case EXCHANGE:
        return operand;
    default:
        return word == compare ? operand : word;
    }
}

// Whether an operation is one, and on a word of a page of the command.
bool is_sound(uint64_t place, uint64_t what, uint32_t page_count)
{
    const uint64_t byte = place & 0xffffffff;
    return place >> 32 < page_count && byte < flashmesh::PAGE_BYTES && byte % WORD_BYTES == 0 &&
           what >= ADD && what <= COMPARE_EXCHANGE;
}

// Does the operations on the page with number `page`.
void change(uint64_t page[][BEAT_WORDS], uint32_t number, const uint64_t *operations,
            uint32_t operation_count, uint32_t page_count, uint64_t *previous)
{
operations:
    for (uint32_t i = 0; i < operation_count; ++i) {
#pragma HLS PIPELINE II=4
        const uint64_t *operation = operations + uint64_t{i} * OPERATION_WORDS;
        const uint64_t place = operation[0];
        const uint64_t what = operation[1];
        if (place >> 32 != number || !is_sound(place, what, page_count)) {
            continue;
        }
        const uint32_t at = static_cast<uint32_t>(place) / WORD_BYTES;
        uint64_t &word = page[at / BEAT_WORDS][at % BEAT_WORDS];
        previous[i] = word;
        word = apply(what, word, operation[2], operation[3]);
    }
}

void send_pages(flashmesh::wide_port pages, uint32_t page_count, axis &packets)
{
pages:
    for (uint32_t i = 0; i < page_count; ++i) {
        const uint32_t page = flashmesh::delivered(i, page_count);
        flashmesh::send_packet(pages, uint64_t{page_count} * flashmesh::PAGE_BYTES,
                               uint64_t{page} * flashmesh::PAGE_BYTES, flashmesh::PAGE_BYTES, page,
                               packets);
    }
}

void receive_pages(axis &packets, uint32_t page_count, uint64_t *result_pages)
{
beats:
    for (uint64_t i = 0; i < uint64_t{page_count} * PAGE_BEATS; ++i) {
#pragma HLS PIPELINE II=8
        const beat next = flashmesh::receive(packets);
        uint64_t *place = result_pages +
                          (uint64_t{next.tag} * PAGE_BEATS + i % PAGE_BEATS) * BEAT_WORDS;
    words:
        for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
            place[word] = next.words[word];
        }
    }
}

} // namespace

FLASHMESH_STREAM_TOP void read_modify_write_stream(axis &pages, uint32_t page_count,
                                                   const uint64_t *operations,
                                                   uint32_t operation_count, axis &result_pages,
                                                   uint64_t *previous)
{
#pragma HLS INTERFACE axis port=pages
#pragma HLS INTERFACE axis port=result_pages
#pragma HLS INTERFACE m_axi port=operations bundle=operations offset=slave num_read_outstanding=16
#pragma HLS INTERFACE m_axi port=previous bundle=previous offset=slave num_write_outstanding=16
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=operation_count
#pragma HLS INTERFACE ap_ctrl_chain port=return
not_done:
    for (uint32_t i = 0; i < operation_count; ++i) {
#pragma HLS PIPELINE II=1
        previous[i] = NOT_DONE;
    }
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        uint64_t words[PAGE_BEATS][BEAT_WORDS];
#pragma HLS ARRAY_PARTITION variable=words complete dim=2
        uint32_t number = 0;
        uint32_t beats = 0;
        beat next = {};
    in:
        while (!next.is_last) {
#pragma HLS PIPELINE II=1
            next = flashmesh::receive(pages);
            number = next.tag;
            for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
                words[beats][word] = next.words[word];
            }
            ++beats;
        }
        change(words, number, operations, operation_count, page_count, previous);
    out:
        // All beats but an empty packet's are full: `next` has what the last one does not change.
        for (uint32_t i = 0; i < beats; ++i) {
#pragma HLS PIPELINE II=1
            for (uint32_t word = 0; word < BEAT_WORDS; ++word) {
#pragma HLS UNROLL
                next.words[word] = words[i][word];
            }
            next.is_last = i + 1 == beats;
            flashmesh::send(result_pages, next);
        }
    }
}

namespace {

void run(flashmesh::wide_port pages, uint32_t page_count, const uint64_t *operations,
         uint32_t operation_count, uint64_t *result_pages, uint64_t *previous)
{
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, changed, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("read_modify_write");
    FLASHMESH_STAGE(send_pages, pages, page_count, packets);
    FLASHMESH_STAGE(read_modify_write_stream, packets, page_count, operations, operation_count,
                    changed, previous);
    FLASHMESH_STAGE(receive_pages, changed, page_count, result_pages);
}

} // namespace

FLASHMESH_KERNEL void read_modify_write(flashmesh::wide_port pages, uint32_t page_count,
                                        const uint64_t *operations, uint32_t operation_count,
                                        uint8_t *result_pages, uint64_t *previous)
{
#pragma HLS INTERFACE m_axi port=pages bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=operations bundle=operations offset=slave num_read_outstanding=16
#pragma HLS INTERFACE m_axi port=result_pages bundle=results offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=previous bundle=previous offset=slave num_write_outstanding=16
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=operation_count
#pragma HLS INTERFACE s_axilite port=return
    // Arrays are aligned to 64 bytes.
    run(pages, page_count, operations, operation_count, reinterpret_cast<uint64_t *>(result_pages),
        previous);
}
