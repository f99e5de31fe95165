// The kernel under test and its C functions: KERNEL is the kernel's source in quotes, FUNCTIONS
// the names as F(one) F(other).
#include KERNEL

#include "vectors.hpp"

// The streaming form as the manifest declares it: where it differs, this one is never defined,
// which the compiler refuses.
#if defined(STREAM_TOP)
static STREAM_TOP;
#endif

#define F(name) {#name, &bench::adapter<&name>::call},
const std::vector<bench::function> bench::functions = {FUNCTIONS};
