// Atomic operations on words of pages, in the order in which they are given.
//
// Minerva (section IV-A, RMW) reads, changes and writes back small pieces of a file in the store:
// half the latency of two I/Os from the host for one, and far more for many in one command. The
// pages here are those of a command; `result_pages` is what is to be written in their place. As
// flash pages are not written twice, that is elsewhere, and header and checksum are the host's.
//
// Shapes: `pages` and `result_pages` have page_count pages of 8 KiB; `operations` four words each:
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
// operations before it have done. An operation of another opcode, or outside the pages, or not on
// a multiple of 8, changes nothing, and its `previous` is all ones.
//
// Intended, not measured: 8 bytes per cycle for the copy; an operation depends on the one before.
#include <flashmesh/kernel.hpp>

namespace {

constexpr uint32_t OPERATION_WORDS = 4;
constexpr uint32_t WORD_BYTES = 8;
constexpr uint64_t NOT_DONE = ~uint64_t{0};

enum opcode : uint64_t { ADD = 1, AND = 2, OR = 3, XOR = 4, EXCHANGE = 5, COMPARE_EXCHANGE = 6 };

void copy(const uint8_t *pages, uint32_t page_count, uint8_t *result_pages)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
    bytes:
        for (uint32_t byte = 0; byte < flashmesh::PAGE_BYTES; ++byte) {
#pragma HLS PIPELINE II=1
#pragma HLS UNROLL factor=8
            const uint64_t at = uint64_t{page} * flashmesh::PAGE_BYTES + byte;
            result_pages[at] = pages[at];
        }
    }
}

void store(uint8_t *bytes, uint64_t word)
{
store:
    for (uint32_t byte = 0; byte < WORD_BYTES; ++byte) {
#pragma HLS UNROLL
        bytes[byte] = static_cast<uint8_t>(word >> (8 * byte));
    }
}

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

} // namespace

FLASHMESH_KERNEL void read_modify_write(const uint8_t *pages, uint32_t page_count,
                                        const uint64_t *operations, uint32_t operation_count,
                                        uint8_t *result_pages, uint64_t *previous)
{
#pragma HLS INTERFACE m_axi port=pages bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=operations bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=result_pages bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=previous bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=operation_count
#pragma HLS INTERFACE s_axilite port=return
    copy(pages, page_count, result_pages);
operations:
    for (uint32_t i = 0; i < operation_count; ++i) {
        const uint64_t *operation = operations + uint64_t{i} * OPERATION_WORDS;
        const uint64_t page = operation[0] >> 32;
        const uint64_t byte = operation[0] & 0xffffffff;
        const uint64_t what = operation[1];
        if (page >= page_count || byte >= flashmesh::PAGE_BYTES || byte % WORD_BYTES != 0 ||
            what < ADD || what > COMPARE_EXCHANGE) {
            previous[i] = NOT_DONE;
            continue;
        }
        uint8_t *place = result_pages + page * flashmesh::PAGE_BYTES + byte;
        const uint64_t word = flashmesh::load_u64(place);
        store(place, apply(what, word, operation[2], operation[3]));
        previous[i] = word;
    }
}
