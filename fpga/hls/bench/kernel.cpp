// The kernel under test and its C functions: KERNEL is the kernel's source in quotes, FUNCTIONS
// the names as F(one) F(other).
#include KERNEL

#include "vectors.hpp"

#define F(name) {#name, &bench::adapter<&name>::call},
const std::vector<bench::function> bench::functions = {FUNCTIONS};
