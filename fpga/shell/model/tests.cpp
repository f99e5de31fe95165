// Tests of the device model's parts; `build --test` runs them under the sanitizers.
#include "memory.hpp"
#include "protocol.hpp"
#include "units.hpp"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <random>
#include <sys/socket.h>
#include <unistd.h>

using namespace flashmesh::model;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                   \
            std::exit(1);                                                                          \
        }                                                                                          \
    } while (false)

template <class Function>
static bool is_refused(Function function)
{
    try {
        function();
    } catch (const ProtocolError &) {
        return true;
    }
    return false;
}

static void messages()
{
    Answer answer;
    answer.integer(1, 300).bytes(2, "abc").integer(1, 7).bytes(16, "");
    const Message message(answer.encoded());
    CHECK(message.integer(1) == 7);
    CHECK(message.bytes(2) == "abc");
    CHECK(message.bytes(16) == "");
    CHECK(!message.integer(2) && !message.bytes(1));
    CHECK(message.repeated(2).size() == 1);
    CHECK(is_refused([&] { message.required_integer(3, "test"); }));

    CHECK(is_refused([] { Message(std::string_view("\x08", 1)); }));             // no value
    CHECK(is_refused([] { Message(std::string_view("\x12\x05" "ab", 4)); }));    // cut off
    CHECK(is_refused([] { Message(std::string_view("\x0b\x01", 2)); }));         // a group
    CHECK(is_refused([] { Message(std::string_view("\x00\x01", 2)); }));         // field 0
    CHECK(is_refused([] { Message(std::string(11, '\xff')); }));                 // endless
    CHECK(is_refused([] { Message("\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"); }));
    CHECK(is_refused([] { Message(std::string_view("\x09\x01\x02", 3)); }));     // fixed64

    // Whatever the bytes, decoding ends with a message or an error.
    std::mt19937 random(7);
    for (int round = 0; round < 100'000; ++round) {
        std::string bytes(random() % 24, 0);
        for (auto &byte : bytes)
            byte = static_cast<char>(random());
        is_refused([&] { Message{bytes}; });
    }
}

static void frames()
{
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    const std::string body("\x08\x01", 2);
    std::string frame("\x09\x02\0\0\0\0\0\0\0\x15\x0b\0\0\0", 14);
    frame += body;
    CHECK(write(pair[0], frame.data(), frame.size()) == static_cast<ssize_t>(frame.size()));
    const auto request = read_request(pair[1]);
    CHECK(request && request->function == Function::ReadAddrKernelCtrl && request->body == body);

    CHECK(write_answer(pair[1], Answer().integer(1, 1)));
    char answer[11];
    CHECK(recv(pair[0], answer, sizeof answer, MSG_WAITALL) == sizeof answer);
    CHECK(std::memcmp(answer, "\x09\x02\0\0\0\0\0\0\0\x08\x01", sizeof answer) == 0);

    // A length that lies is refused before anything of that size is asked of the system.
    const std::string huge("\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x15\x0b\0\0\0", 14);
    CHECK(write(pair[0], huge.data(), huge.size()) == 14);
    CHECK(is_refused([&] { read_request(pair[1]); }));

    CHECK(write(pair[0], frame.data(), frame.size() - 1) > 0);
    close(pair[0]);
    CHECK(is_refused([&] { read_request(pair[1]); }));
    CHECK(!read_request(pair[1]));
    CHECK(!write_answer(pair[1], Answer()));
    close(pair[1]);
}

static void memory()
{
    DeviceMemory memory;
    memory.add_bank(uint64_t{16} << 30);
    memory.add_bank(uint64_t{16} << 30);
    const uint64_t second = uint64_t{16} << 30;
    CHECK(memory.range(0, second) != nullptr);
    CHECK(memory.range(0, second + 1) == nullptr); // banks do not touch
    CHECK(memory.range(second - 1, 2) == nullptr);
    CHECK(memory.range(second, 1) != nullptr);
    CHECK(memory.range(2 * second, 1) == nullptr);
    CHECK(memory.range(~uint64_t{0}, ~uint64_t{0}) == nullptr);
    CHECK(memory.range(4096, ~uint64_t{0}) == nullptr);

    CHECK(memory.in_buffer(4096) == nullptr);
    CHECK(memory.allocate(4096, 10'000));
    CHECK(!memory.allocate(8192, 1));
    CHECK(!memory.allocate(0, 5000));
    CHECK(!memory.allocate(4096, 1));
    CHECK(!memory.allocate(second - 1, 2));
    CHECK(!memory.allocate(0, 0));
    CHECK(memory.allocate(0, 4096));
    CHECK(memory.in_buffer(4096 + 9'999) == memory.range(4096 + 9'999, 1));
    CHECK(memory.in_buffer(4096 + 10'000) == nullptr);
    memory.range(8192, 1)[0] = 42;
    CHECK(!memory.free(8192));
    CHECK(memory.free(4096));
    CHECK(!memory.free(4096));
    CHECK(memory.range(8192, 1)[0] == 0);
    CHECK(memory.allocate(second, second));
    CHECK(memory.in_buffer(2 * second - 1) != nullptr);

    bool refused = false;
    try {
        memory.add_bank(~uint64_t{0});
    } catch (const std::runtime_error &) {
        refused = true;
    }
    CHECK(refused);
}

static std::string words(std::initializer_list<uint32_t> values)
{
    std::string bytes;
    for (const uint32_t value : values)
        bytes.append(reinterpret_cast<const char *>(&value), 4);
    return bytes;
}

static uint32_t wait_for_end(ComputeUnits &units, uint64_t unit)
{
    for (;;) {
        uint32_t control = 0;
        CHECK(units.read(unit, control));
        if ((control & ap_idle) != 0)
            return control;
        CHECK(control == ap_start);
    }
}

static void units()
{
    // Two units meet inside their runs: neither ends unless both are running.
    std::mutex mutex;
    std::condition_variable all_there;
    int running = 0;
    uint32_t argument = 0;
    ComputeUnits units([&](uint64_t unit, const uint32_t *registers, uint32_t count) {
        CHECK(count == ComputeUnits::register_count);
        std::unique_lock lock(mutex);
        if (unit == 0x1800000)
            argument = registers[4];
        ++running;
        all_there.notify_all();
        all_there.wait(lock, [&] { return running >= 2; });
    });
    uint32_t word = 0;
    CHECK(units.read(0x1800000, word) && word == ap_idle);
    CHECK(units.write(0x1800000, words({ap_start, 0, 0, 0, 77})));
    CHECK(units.read(0x1800000, word) && word == ap_start);
    CHECK(units.write(0x1800010, words({78}))); // the next call's
    CHECK(units.write(0x1810000, words({ap_start})));
    CHECK(wait_for_end(units, 0x1800000) == (ap_done | ap_idle | ap_ready));
    CHECK(units.read(0x1800000, word) && word == ap_idle);
    CHECK(wait_for_end(units, 0x1810000) & ap_done);
    CHECK(argument == 77);
    CHECK(units.read(0x1800010, word) && word == 78);

    CHECK(!units.write(0x1800002, words({1})));
    CHECK(!units.write(0x1800000 + 4096, words({1})));
    CHECK(!units.write(0x1800000, std::string(3, 0)));
    CHECK(!units.write(0x1800000 + 4092, words({1, 2})));
    CHECK(!units.read(0x1800000 + 4096, word));
    for (uint64_t base = 0; base < ComputeUnits::max_units - 2; ++base)
        CHECK(units.read(base * ComputeUnits::unit_bytes, word));
    CHECK(!units.read(0x7fff0000, word));
}

int main()
{
    messages();
    frames();
    memory();
    units();
    std::puts("device model: all tests passed");
}
