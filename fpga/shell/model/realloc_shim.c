// Works around a defect of Debian's libxrt_swemu 2.13 (libxrt1 202210.2.13.466+dfsg-8): its
// CpuemShim::alloc_void calls realloc and drops what it returns, so that the RPC's buffer is used
// after it was freed as soon as a message is longer than all before it. Loaded by LD_PRELOAD into
// the process that uses the runtime, this library gives that one caller a block that never has to
// move. A runtime without the defect works as before.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

extern void *__libc_malloc(size_t);
extern void *__libc_realloc(void *, size_t);

// More than the longest message (8 MiB and its header); pages that nobody touches cost nothing.
enum { BLOCK_BYTES = 64 << 20 };

// Where the defective function's code lies; 0 until its library is loaded.
static atomic_uintptr_t code_begin, code_end;

static int from_alloc_void(const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;
    return at >= atomic_load_explicit(&code_begin, memory_order_relaxed) &&
           at < atomic_load_explicit(&code_end, memory_order_relaxed);
}

static void look_for_alloc_void(void *library)
{
    void *function = dlsym(library, "_ZN12xclcpuemhal29CpuemShim10alloc_voidEm");
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    if (function == NULL || dladdr1(function, &info, (void **)&symbol, RTLD_DL_SYMENT) == 0 ||
        symbol == NULL)
        return;
    atomic_store(&code_begin, (uintptr_t)function);
    atomic_store(&code_end, (uintptr_t)function + symbol->st_size);
}

void *dlopen(const char *path, int flags)
{
    static void *(*next)(const char *, int);
    if (next == NULL)
        next = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    void *library = next(path, flags);
    if (library != NULL && atomic_load(&code_end) == 0)
        look_for_alloc_void(library);
    return library;
}

void *malloc(size_t bytes)
{
    const int one_of_them = from_alloc_void(__builtin_return_address(0));
    return __libc_malloc(one_of_them && bytes < BLOCK_BYTES ? BLOCK_BYTES : bytes);
}

void *realloc(void *block, size_t bytes)
{
    if (block != NULL && bytes <= BLOCK_BYTES && from_alloc_void(__builtin_return_address(0)))
        return block;
    return __libc_realloc(block, bytes);
}
