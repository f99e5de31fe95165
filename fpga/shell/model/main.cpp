// The device behind XRT's software emulation: the process that the genuine libxrt_swemu starts as
// `genericpciemodel` and asks over a Unix socket. It models function, not time. See README.md.
#include "kernel_abi.h"
#include "memory.hpp"
#include "protocol.hpp"
#include "units.hpp"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <string>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <thread>
#include <unistd.h>

namespace {

using namespace flashmesh::model;

bool tracing = false;

template <class... Values>
void trace(const char *format, Values... values)
{
    if (!tracing)
        return;
    char line[512];
    std::snprintf(line, sizeof line, format, values...);
    std::fprintf(stderr, "device model: %s\n", line);
}

// Ends the process so that the runtime notices: it watches for children that a signal ended, and
// waits for ever for one that exited.
[[noreturn]] void fail(const std::string &reason)
{
    std::fprintf(stderr, "device model: %s\n", reason.c_str());
    std::fflush(stderr);
    std::abort();
}

// The `n` of a test's "at the n-th start of any unit", or 0.
uint64_t start_number(const char *variable)
{
    const char *text = std::getenv(variable);
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

class Device {
public:
    Device() : units([this](uint64_t unit, const uint32_t *registers, uint32_t count) {
        run(unit, registers, count);
    })
    {
    }

    // FALSE when the runtime has closed the device for good.
    bool answer(const Request &request, Answer &answer);

private:
    bool load(const Message &message);
    void run(uint64_t unit, const uint32_t *registers, uint32_t count);

    static void *address_in(void *context, uint64_t address)
    {
        return static_cast<DeviceMemory *>(context)->in_buffer(address);
    }

    const uint64_t die_at = start_number("FLASHMESH_MODEL_DIE_AT");
    const uint64_t hang_at = start_number("FLASHMESH_MODEL_HANG_AT");
    const uint64_t error_at = start_number("FLASHMESH_MODEL_ERROR_AT");
    std::atomic<uint64_t> starts{0};
    DeviceMemory memory;
    decltype(&flashmesh_model_start) start = nullptr;
    bool has_banks = false;
    // Last: its threads use what is above.
    ComputeUnits units;
};

bool Device::load(const Message &message)
{
    if (!has_banks) {
        for (const auto bank : message.repeated(8))
            memory.add_bank(Message(bank).required_integer(7, "ddrbank"));
        has_banks = true;
    }
    const std::string path(message.required_bytes(2, "xclLoadBitstream"));
    if (path.empty())
        return true; // the runtime wants memory before it has a container
    if (start != nullptr) {
        std::fprintf(stderr, "device model: one container a process\n");
        return false;
    }
    void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "device model: the container's kernels: %s\n", dlerror());
        return false;
    }
    const auto abi = reinterpret_cast<decltype(&flashmesh_model_abi)>(
        dlsym(library, "flashmesh_model_abi"));
    start = reinterpret_cast<decltype(&flashmesh_model_start)>(
        dlsym(library, "flashmesh_model_start"));
    if (abi == nullptr || start == nullptr || abi() != FLASHMESH_MODEL_ABI) {
        std::fprintf(stderr,
                     "device model: the container's kernels were not built for this model; "
                     "build the container again\n");
        return false;
    }
    return true;
}

void Device::run(uint64_t unit, const uint32_t *registers, uint32_t count)
{
    const uint64_t number = starts.fetch_add(1) + 1;
    trace("start %llu: unit 0x%llx", (unsigned long long)number, (unsigned long long)unit);
    if (number == die_at) {
        std::fprintf(stderr, "device model: dies at start %llu, as asked\n",
                     (unsigned long long)number);
        kill(getpid(), SIGKILL);
    }
    if (number == error_at)
        fail("a fault at start " + std::to_string(number) + ", as asked");
    if (number == hang_at) {
        std::fprintf(stderr, "device model: hangs at start %llu, as asked\n",
                     (unsigned long long)number);
        for (;;)
            pause();
    }
    if (start == nullptr)
        fail("a start before a container was loaded");
    const flashmesh_model_memory view{&memory, address_in};
    switch (start(unit, registers, count, &view)) {
    case FLASHMESH_MODEL_DONE: break;
    case FLASHMESH_MODEL_BAD_ADDRESS:
        fail("a kernel's pointer argument lies in no buffer of the device");
    default: fail("no compute unit at this address");
    }
    trace("end of start %llu", (unsigned long long)number);
}

bool Device::answer(const Request &request, Answer &answer)
{
    const Message message(request.body);
    trace("function %u, %zu bytes", static_cast<unsigned>(request.function), request.body.size());
    switch (request.function) {
    case Function::SetEnvironment:
    case Function::SetupInstance: answer.integer(1, 1); break;
    case Function::LoadBitstream: answer.integer(1, load(message)); break;
    case Function::AllocDeviceBuffer: {
        const bool done = memory.allocate(message.required_integer(1, "xclAllocDeviceBuffer"),
                                          message.required_integer(2, "xclAllocDeviceBuffer"));
        answer.integer(1, done).bytes(2, "");
        break;
    }
    case Function::FreeDeviceBuffer:
        answer.integer(1, memory.free(message.required_integer(1, "xclFreeDeviceBuffer")));
        break;
    case Function::CopyBufferHost2Device: {
        const auto source = message.required_bytes(4, "xclCopyBufferHost2Device");
        uint8_t *target =
            memory.range(message.required_integer(3, "xclCopyBufferHost2Device"), source.size());
        if (target == nullptr)
            fail("a copy to an address outside of the memory banks");
        if (!source.empty())
            std::memcpy(target, source.data(), source.size());
        answer.integer(1, source.size());
        break;
    }
    case Function::CopyBufferDevice2Host: {
        const uint64_t size = message.required_integer(5, "xclCopyBufferDevice2Host");
        const uint8_t *source =
            memory.range(message.required_integer(4, "xclCopyBufferDevice2Host"), size);
        if (source == nullptr || size > max_frame_bytes)
            fail("a copy from an address outside of the memory banks");
        answer.integer(1, size).bytes(2, {reinterpret_cast<const char *>(source), size});
        break;
    }
    case Function::WriteAddrKernelCtrl:
        if (!units.write(message.required_integer(2, "xclWriteAddrKernelCtrl"),
                         message.required_bytes(4, "xclWriteAddrKernelCtrl")))
            fail("a write outside of the compute units' registers");
        answer.integer(1, 1);
        break;
    case Function::RegWrite:
        if (!units.write(message.required_integer(1, "xclRegWrite") +
                             message.required_integer(2, "xclRegWrite"),
                         message.required_bytes(3, "xclRegWrite")))
            fail("a write outside of the compute units' registers");
        answer.integer(1, 1);
        break;
    case Function::ReadAddrKernelCtrl:
    case Function::RegRead: {
        const uint64_t address = request.function == Function::RegRead
                                     ? message.required_integer(1, "xclRegRead") +
                                           message.required_integer(2, "xclRegRead")
                                     : message.required_integer(2, "xclReadAddrKernelCtrl");
        uint32_t word = 0;
        if (!units.read(address, word))
            fail("a read outside of the compute units' registers");
        char bytes[4];
        std::memcpy(bytes, &word, 4);
        answer.integer(1, 1).bytes(2, {bytes, 4});
        break;
    }
    case Function::Close:
        answer.integer(1, 1);
        return message.integer(3).value_or(0) == 0;
    default:
        fail("function " + std::to_string(static_cast<unsigned>(request.function)) +
             " of the runtime is not modelled");
    }
    return true;
}

// Where the runtime listens: it uses its identifier only when USER is set.
std::string socket_path()
{
    const char *user = std::getenv("USER");
    const char *id = std::getenv("EMULATION_SOCKETID");
    if (user == nullptr)
        return "/tmp/xcl_sock";
    return std::string("/tmp/") + user + "/" + (id != nullptr ? id : "xcl_sock");
}

// Connects to the runtime, which binds its socket after it has forked this process.
int connect_to_runtime()
{
    const std::string path = socket_path();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path)
        fail("the socket's path is too long: shorten USER");
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    for (;;) {
        const int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection < 0)
            fail(std::string("socket: ") + std::strerror(errno));
        if (connect(connection, reinterpret_cast<sockaddr *>(&address), sizeof address) == 0) {
            unlink(path.c_str()); // a killed runtime would leave it behind
            return connection;
        }
        close(connection);
        if (std::chrono::steady_clock::now() > give_up)
            fail("no runtime listens at " + path + ": start this program through XRT");
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

} // namespace

int main()
try {
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    // The runtime's handlers and masks are not ours.
    for (const int number : {SIGSEGV, SIGABRT, SIGFPE, SIGCHLD, SIGUSR1})
        std::signal(number, SIG_DFL);
    tracing = std::getenv("FLASHMESH_MODEL_TRACE") != nullptr;
    const int connection = connect_to_runtime();
    // Never destroyed: a hung unit must not keep the process from ending with its runtime.
    auto &device = *new Device;
    while (const auto request = read_request(connection)) {
        Answer answer;
        const bool goes_on = device.answer(*request, answer);
        if (!write_answer(connection, answer) || !goes_on)
            break;
    }
    trace("%s", "the runtime has closed the device");
    std::fflush(stderr);
    _exit(0);
} catch (const std::exception &error) {
    fail(error.what());
}
