// Unsigned numbers of a stated width, for registers whose width is a decision.
//
// On the FPGA they are ap_uint, which wraps at its width; checks build that path with the published
// headers too, so a register that is too narrow fails its vectors. Elsewhere they are the machine's
// words: kernels then need no headers but ours.
#ifndef FLASHMESH_BITS_HPP
#define FLASHMESH_BITS_HPP

#if defined(__SYNTHESIS__) || defined(FLASHMESH_DEVICE)

#include <ap_int.h>

namespace flashmesh {

template <int Width>
using bits = ap_uint<Width>;

} // namespace flashmesh

#else

#include <stdint.h>

namespace flashmesh {
namespace detail {

template <bool IsWide>
struct word {
    using type = uint32_t;
};

template <>
struct word<true> {
    using type = uint64_t;
};

} // namespace detail

template <int Width>
using bits = typename detail::word<(Width > 32)>::type;

} // namespace flashmesh

#endif
#endif
