// Regions that hang on a device, and what the streams of C simulation must make of them: run with
// the name of a region, it ends as `expected` says, however its threads were scheduled.
#include <flashmesh/stream.hpp>

#include <cstdio>
#include <cstring>

namespace {

constexpr uint32_t NUMBERS = 100;

void count(uint32_t numbers, flashmesh::stream<uint32_t, 4> &out)
{
    for (uint32_t number = 0; number < numbers; ++number) {
        out.write(number);
    }
}

void sum(uint32_t numbers, flashmesh::stream<uint32_t, 4> &in, uint32_t *total)
{
    *total = 0;
    for (uint32_t number = 0; number < numbers; ++number) {
        *total += in.read();
    }
}

// All of `first`, then all of `second`: fits no bounded stream that is written alternately.
void split(flashmesh::stream<uint32_t, 4> &even, flashmesh::stream<uint32_t, 4> &odd)
{
    for (uint32_t number = 0; number < NUMBERS; number += 2) {
        even.write(number);
        odd.write(number + 1);
    }
}

void concatenate(flashmesh::stream<uint32_t, 4> &even, flashmesh::stream<uint32_t, 4> &odd,
                 uint32_t *total)
{
    *total = 0;
    for (uint32_t number = 0; number < NUMBERS / 2; ++number) {
        *total += even.read();
    }
    for (uint32_t number = 0; number < NUMBERS / 2; ++number) {
        *total += odd.read();
    }
}

void merge(flashmesh::stream<uint32_t, 4> &even, flashmesh::stream<uint32_t, 4> &odd,
           uint32_t *total)
{
    *total = 0;
    for (uint32_t number = 0; number < NUMBERS / 2; ++number) {
        *total += even.read();
        *total += odd.read();
    }
}

void echo(flashmesh::stream<uint32_t, 4> &in, flashmesh::stream<uint32_t, 4> &out)
{
    out.write(in.read());
}

// A stage that is a region itself.
void count_twice(flashmesh::stream<uint32_t, 4> &even, flashmesh::stream<uint32_t, 4> &odd)
{
    FLASHMESH_DATAFLOW("inner");
    FLASHMESH_STAGE(count, NUMBERS / 2, even);
    FLASHMESH_STAGE(count, NUMBERS / 2, odd);
}

uint32_t pipeline(uint32_t written, uint32_t read)
{
    uint32_t total = 0;
    {
        FLASHMESH_STREAM(uint32_t, numbers, 4);
        FLASHMESH_DATAFLOW("pipeline");
        FLASHMESH_STAGE(count, written, numbers);
        FLASHMESH_STAGE(sum, read, numbers, &total);
    }
    return total;
}

uint32_t runs() { return pipeline(NUMBERS, NUMBERS); }

uint32_t writer_ends() { return pipeline(NUMBERS, NUMBERS + 1); }

uint32_t reader_ends() { return pipeline(NUMBERS, NUMBERS - 5); }

uint32_t left_over() { return pipeline(NUMBERS, NUMBERS - 4); }

uint32_t too_shallow()
{
    uint32_t total = 0;
    FLASHMESH_STREAM(uint32_t, even, 4);
    FLASHMESH_STREAM(uint32_t, odd, 4);
    FLASHMESH_DATAFLOW("too_shallow");
    FLASHMESH_STAGE(split, even, odd);
    FLASHMESH_STAGE(concatenate, even, odd, &total);
    return total;
}

uint32_t ring()
{
    FLASHMESH_STREAM(uint32_t, clockwise, 4);
    FLASHMESH_STREAM(uint32_t, back, 4);
    FLASHMESH_DATAFLOW("ring");
    FLASHMESH_STAGE(echo, back, clockwise);
    FLASHMESH_STAGE(echo, clockwise, back);
    return 0;
}

uint32_t nested()
{
    uint32_t total = 0;
    {
        FLASHMESH_STREAM(uint32_t, even, 4);
        FLASHMESH_STREAM(uint32_t, odd, 4);
        FLASHMESH_DATAFLOW("nested");
        FLASHMESH_STAGE(count_twice, even, odd);
        FLASHMESH_STAGE(merge, even, odd, &total);
    }
    return total;
}

uint32_t nested_hangs()
{
    uint32_t total = 0;
    FLASHMESH_STREAM(uint32_t, even, 4);
    FLASHMESH_STREAM(uint32_t, odd, 4);
    FLASHMESH_DATAFLOW("nested_hangs");
    FLASHMESH_STAGE(count_twice, even, odd);
    FLASHMESH_STAGE(sum, NUMBERS, even, &total);
    return total;
}

void pass(flashmesh::stream<uint32_t, 4> &in, flashmesh::stream<uint32_t, 4> &out)
{
    for (uint32_t number = 0; number < NUMBERS; ++number) {
        out.write(in.read());
    }
}

void pass_twice(flashmesh::stream<uint32_t, 4> &in, flashmesh::stream<uint32_t, 4> &out)
{
    FLASHMESH_STREAM(uint32_t, between, 4);
    FLASHMESH_DATAFLOW("pass_twice");
    FLASHMESH_STAGE(pass, in, between);
    FLASHMESH_STAGE(pass, between, out);
}

// What is around the others: it goes on when they can't, and sees what they hold then.
void surround(flashmesh::stream<uint32_t, 4> &in, flashmesh::stream<uint32_t, 4> &out,
              uint32_t *total)
{
    const auto settle = [] {
        flashmesh::detail::monitor &here = *flashmesh::detail::monitor::current();
        std::unique_lock<std::mutex> lock(here.mutex);
        return here.wait_for_others(lock);
    };
    uint32_t given = 0;
    bool waits = settle();
    while (waits && !in.full()) {
        in.write(given++);
        waits = settle();
    }
    // Three streams of 4, and what each of two stages has in hand.
    *total = 10000 * given;
    while (waits || !out.empty()) {
        *total += out.read();
        waits = settle();
        if (given < NUMBERS) {
            in.write(given++);
            waits = settle();
        }
    }
}

void relay(uint32_t *total)
{
    FLASHMESH_STREAM(uint32_t, in, 4);
    FLASHMESH_STREAM(uint32_t, out, 4);
    FLASHMESH_DATAFLOW("surrounded");
    FLASHMESH_STAGE(surround, in, out, total);
    FLASHMESH_STAGE(pass_twice, in, out);
}

uint32_t surrounded()
{
    uint32_t total = 0;
    relay(&total);
    return total;
}

struct region {
    const char *name;
    uint32_t (*run)();
};

constexpr region REGIONS[] = {
    {"runs", runs},
    {"writer_ends", writer_ends},
    {"reader_ends", reader_ends},
    {"left_over", left_over},
    {"too_shallow", too_shallow},
    {"ring", ring},
    {"nested", nested},
    {"nested_hangs", nested_hangs},
    {"surrounded", surrounded},
};

} // namespace

int main(int argument_count, char **arguments)
{
    for (const region &region : REGIONS) {
        if (argument_count == 2 && std::strcmp(arguments[1], region.name) == 0) {
            std::printf("total %u\n", region.run());
            return 0;
        }
    }
    return 2;
}
