// How many windows of each sequence equal a k-mer but for at most `mismatches` bytes.
//
// BlueDBM (section 7.3) names DNA sequence matching among the uses of string search; an exact
// search does not find what a read error or a mutation changed.
//
// Bytes are compared as they are: 'a' is not 'A', and 'N' matches nothing but 'N'. A sequence
// shorter than the k-mer has no window, the k-mer without bytes one at each place, the end
// included. A negative number of mismatches is never reached.
//
// Intended, not measured: a byte of a window per cycle. A window is left as soon as it has too
// many mismatches.
#include <flashmesh/kernel.hpp>

namespace {

bool is_match(const uint8_t *window, const uint8_t *kmer, uint32_t kmer_length, int32_t mismatches)
{
    int64_t left = mismatches;
bytes:
    for (uint32_t i = 0; i < kmer_length && left >= 0; ++i) {
#pragma HLS PIPELINE II=1
        left -= window[i] != kmer[i] ? 1 : 0;
    }
    return left >= 0;
}

} // namespace

FLASHMESH_KERNEL void dna_kmer(const uint32_t *sequence_offsets, const uint8_t *sequence_bytes,
                               const uint8_t *kmer, uint32_t kmer_length, int32_t mismatches,
                               uint32_t rows, int32_t *result)
{
#pragma HLS INTERFACE m_axi port=sequence_offsets bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=sequence_bytes bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=kmer bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=result bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=kmer_length
#pragma HLS INTERFACE s_axilite port=mismatches
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
rows:
    for (uint32_t row = 0; row < rows; ++row) {
        const uint32_t start = sequence_offsets[row];
        const uint32_t length = sequence_offsets[row + 1] - start;
        int32_t matches = 0;
    windows:
        for (uint32_t at = 0; length >= kmer_length && at <= length - kmer_length; ++at) {
            matches += is_match(sequence_bytes + start + at, kmer, kmer_length, mismatches) ? 1 : 0;
        }
        result[row] = matches;
    }
}
