// Streams between the stages of a kernel, and the DATAFLOW region in which the stages run.
//
//     FLASHMESH_STREAM(uint64_t, words, 16);
//     FLASHMESH_STREAM(uint32_t, counts, 16);
//     FLASHMESH_DATAFLOW("popcount");
//     FLASHMESH_STAGE(read, memory, length, words);
//     FLASHMESH_STAGE(count, length, words, counts);
//     FLASHMESH_STAGE(write, length, counts, result);
//
// FLASHMESH_STREAMS(type, names, count, depth) is an array of streams, FLASHMESH_STAGES(i, count,
// stage, arguments) a stage for each of its elements.
//
// Streams first, then the region, then its stages, as the last statements of a function. A stage
// is a function that takes streams by reference; each stream has one stage that writes it and one
// that reads it, and is empty when all stages have ended.
//
// | compiled for | stream | stages |
// |---|---|---|
// | FPGA (Vitis HLS) | hls::stream, a FIFO of `Depth` elements | at once, `#pragma HLS DATAFLOW` |
// | C simulation | a FIFO of `Depth` elements | at once, a thread each |
// | sandbox | a queue, of what the pool holds | one after the other |
//
// The published hls::stream is unbounded in C simulation, so a kernel can pass there and hang on
// the device. Here a FIFO blocks when it is full, and a deadlock is found without a clock: as soon
// as every stage has ended or is blocked, nothing can ever move again. Which state that is does
// not depend on how threads were scheduled, as each stream has one reader and one writer.
#ifndef FLASHMESH_STREAM_HPP
#define FLASHMESH_STREAM_HPP

#include <stdint.h>

// FLASHMESH_DEVICE takes the device's path in C simulation, to hold it against the published
// headers: those do not let themselves be compiled with __SYNTHESIS__.
#if defined(__SYNTHESIS__) || defined(FLASHMESH_DEVICE)

#include <hls_stream.h>

#define FLASHMESH_PRAGMA(text) _Pragma(#text)

namespace flashmesh {

// The depth is the pragma's in FLASHMESH_STREAM: older hls::stream has no parameter for it.
template <typename T, uint32_t Depth>
using stream = hls::stream<T>;

} // namespace flashmesh

#define FLASHMESH_STREAM(type, stream_name, stream_depth)              \
    ::flashmesh::stream<type, stream_depth> stream_name(#stream_name); \
    FLASHMESH_PRAGMA(HLS STREAM variable=stream_name depth=stream_depth)
#define FLASHMESH_STREAMS(type, stream_name, stream_count, stream_depth) \
    ::flashmesh::stream<type, stream_depth> stream_name[stream_count];   \
    FLASHMESH_PRAGMA(HLS STREAM variable=stream_name depth=stream_depth)
#define FLASHMESH_DATAFLOW(region) FLASHMESH_PRAGMA(HLS DATAFLOW)
#define FLASHMESH_STAGE(stage, ...) stage(__VA_ARGS__)
#define FLASHMESH_STAGES(index, count, stage, ...)         \
    for (uint32_t index = 0; index < (count); ++index) {   \
        FLASHMESH_PRAGMA(HLS UNROLL)                       \
        stage(__VA_ARGS__);                                \
    }

#elif defined(__wasm__)

#include <stddef.h>

// Bytes for the elements of all streams of one region. They lie before __heap_base: what lies
// behind it is the host's.
#ifndef FLASHMESH_STREAM_POOL_BYTES
#define FLASHMESH_STREAM_POOL_BYTES (4u << 20)
#endif

namespace flashmesh {
namespace detail {

constexpr uint32_t BLOCK_BYTES = 4096;
constexpr uint32_t BLOCKS = FLASHMESH_STREAM_POOL_BYTES / BLOCK_BYTES;
constexpr uint32_t NO_BLOCK = 0xffffffff;

// Blocks are taken in order from the pool, and from a list of those given back. Both are in their
// first state between two calls, as streams are empty then.
struct pool {
    alignas(16) unsigned char blocks[BLOCKS][BLOCK_BYTES];
    uint32_t next[BLOCKS];
    uint32_t used;
    uint32_t returned;
    bool has_returned;

    uint32_t take()
    {
        if (has_returned) {
            const uint32_t block = returned;
            has_returned = next[block] != NO_BLOCK;
            returned = next[block];
            next[block] = NO_BLOCK;
            return block;
        }
        if (used == BLOCKS) {
            __builtin_trap();
        }
        next[used] = NO_BLOCK;
        return used++;
    }

    void give_back(uint32_t block)
    {
        next[block] = has_returned ? returned : NO_BLOCK;
        returned = block;
        has_returned = true;
    }
};

inline pool the_pool;

} // namespace detail

template <typename T, uint32_t Depth>
class stream {
public:
    stream() = default;
    explicit stream(const char *) {}
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    // An element that nobody read would be lost here, and would hang the device.
    ~stream()
    {
        if (read_ != written_) {
            __builtin_trap();
        }
        if (first_ != detail::NO_BLOCK) {
            detail::the_pool.give_back(first_);
        }
    }

    void write(const T &element)
    {
        const uint32_t place = written_ % BLOCK_ELEMENTS;
        if (place == 0) {
            append_block();
        }
        reinterpret_cast<T *>(detail::the_pool.blocks[last_])[place] = element;
        ++written_;
    }

    // Nobody runs who could still write: an empty stream stays so.
    T read()
    {
        if (read_ == written_) {
            __builtin_trap();
        }
        const uint32_t place = read_ % BLOCK_ELEMENTS;
        const T element = reinterpret_cast<const T *>(detail::the_pool.blocks[first_])[place];
        ++read_;
        if (place + 1 == BLOCK_ELEMENTS) {
            drop_block();
        }
        return element;
    }

private:
    static constexpr uint32_t BLOCK_ELEMENTS = detail::BLOCK_BYTES / sizeof(T);
    static_assert(alignof(T) <= 16 && sizeof(T) <= detail::BLOCK_BYTES, "no element of a stream");

    void append_block()
    {
        const uint32_t block = detail::the_pool.take();
        if (first_ == detail::NO_BLOCK) {
            first_ = block;
        } else {
            detail::the_pool.next[last_] = block;
        }
        last_ = block;
    }

    void drop_block()
    {
        const uint32_t block = first_;
        first_ = detail::the_pool.next[block];
        detail::the_pool.give_back(block);
    }

    uint32_t first_ = detail::NO_BLOCK;
    uint32_t last_ = detail::NO_BLOCK;
    // They count all elements, and never wrap: the pool holds whatever is written in a call.
    uint32_t read_ = 0;
    uint32_t written_ = 0;
};

} // namespace flashmesh

#define FLASHMESH_STREAM(type, stream_name, stream_depth) \
    ::flashmesh::stream<type, stream_depth> stream_name(#stream_name)
#define FLASHMESH_STREAMS(type, stream_name, stream_count, stream_depth) \
    ::flashmesh::stream<type, stream_depth> stream_name[stream_count]
#define FLASHMESH_DATAFLOW(region) static_assert(sizeof(region) > 1, "a region has a name")
#define FLASHMESH_STAGE(stage, ...) stage(__VA_ARGS__)
#define FLASHMESH_STAGES(index, count, stage, ...)       \
    for (uint32_t index = 0; index < (count); ++index) { \
        stage(__VA_ARGS__);                              \
    }

#else

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace flashmesh {
namespace detail {

// A stage that waits at one end of a stream.
struct waiter {
    bool is_waiting = false;
    const char *stage = nullptr;
    std::condition_variable woken;
};

// A stream as the monitor sees it.
struct fifo {
    fifo(const char *fifo_name, uint32_t fifo_depth) : name(fifo_name), depth(fifo_depth) {}

    const char *name;
    uint32_t depth;
    waiter reader;
    waiter writer;
};

// Counts the stages of a region, and of the regions within its stages, that can still move.
class monitor {
public:
    explicit monitor(const char *region) : region_(region) {}

    std::mutex mutex;

    void add_stages(unsigned count) { moving_ += count; }

    // The stage ends, or waits for the region that it has opened.
    void leave()
    {
        --moving_;
        check();
    }

    // A stage comes back from the region that it had opened.
    void come_back() { ++moving_; }

    // Waits until the other end of the stream calls `wake`.
    void wait(fifo &stream, waiter &end, std::unique_lock<std::mutex> &lock)
    {
        end.is_waiting = true;
        end.stage = current_stage();
        blocked_.push_back(&stream);
        --moving_;
        check();
        end.woken.wait(lock, [&end] { return !end.is_waiting; });
    }

    // Counts the woken stage at once, so that a thread that is slow to start is no deadlock.
    void wake(fifo &stream, waiter &end)
    {
        if (!end.is_waiting) {
            return;
        }
        end.is_waiting = false;
        ++moving_;
        for (auto place = blocked_.begin(); place != blocked_.end(); ++place) {
            if (*place == &stream) {
                blocked_.erase(place);
                break;
            }
        }
        end.woken.notify_one();
    }

    // For a stage that stands for what is around the region, such as a simulated device: waits
    // until no other stage can move before this one writes or reads. Whether one of them waits for
    // a stream then; if none does, all have ended.
    bool wait_for_others(std::unique_lock<std::mutex> &lock)
    {
        is_waited_for_ = true;
        others_.wait(lock, [this] { return moving_ == 1; });
        is_waited_for_ = false;
        return !blocked_.empty();
    }

    // The monitor and the name of the stage that this thread runs.
    static monitor *&current()
    {
        thread_local monitor *of_thread = nullptr;
        return of_thread;
    }

    static const char *&current_stage()
    {
        thread_local const char *of_thread = "";
        return of_thread;
    }

private:
    void check()
    {
        if (moving_ == 1 && is_waited_for_) {
            others_.notify_one();
        }
        if (moving_ != 0 || blocked_.empty()) {
            return;
        }
        // In an order that does not depend on which stage was blocked first.
        std::sort(blocked_.begin(), blocked_.end(), [](const fifo *a, const fifo *b) {
            return std::strcmp(a->name, b->name) < 0;
        });
        std::fprintf(stderr, "deadlock in region '%s': no stage can move\n", region_);
        for (const fifo *stream : blocked_) {
            if (stream->reader.is_waiting) {
                std::fprintf(stderr, "  stage '%s' reads the empty stream '%s'\n",
                             stream->reader.stage, stream->name);
            }
            if (stream->writer.is_waiting) {
                std::fprintf(stderr, "  stage '%s' writes the full stream '%s' (%u of %u)\n",
                             stream->writer.stage, stream->name, stream->depth, stream->depth);
            }
        }
        std::fflush(stderr);
        std::abort();
    }

    const char *region_;
    unsigned moving_ = 0;
    std::vector<const fifo *> blocked_;
    std::condition_variable others_;
    bool is_waited_for_ = false;
};

// Runs the stages that it was given when it goes out of scope, and before the streams do.
class dataflow {
public:
    explicit dataflow(const char *region) : region_(region) {}
    dataflow(const dataflow &) = delete;
    dataflow &operator=(const dataflow &) = delete;

    void stage(const char *name, std::function<void()> body)
    {
        stages_.emplace_back(name, std::move(body));
    }

    ~dataflow()
    {
        // A region within a stage shares the outer region's monitor: its stages may wait for
        // streams of the outer region.
        monitor own(region_);
        monitor *outer = monitor::current();
        monitor &shared = outer != nullptr ? *outer : own;
        {
            const std::lock_guard<std::mutex> lock(shared.mutex);
            shared.add_stages(static_cast<unsigned>(stages_.size()));
            if (outer != nullptr) {
                shared.leave();
            }
        }
        std::vector<std::thread> threads;
        threads.reserve(stages_.size());
        for (const auto &stage : stages_) {
            threads.emplace_back([&shared, &stage] {
                monitor::current() = &shared;
                monitor::current_stage() = stage.first;
                stage.second();
                const std::lock_guard<std::mutex> lock(shared.mutex);
                shared.leave();
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        if (outer != nullptr) {
            const std::lock_guard<std::mutex> lock(shared.mutex);
            shared.come_back();
        }
    }

private:
    const char *region_;
    std::vector<std::pair<const char *, std::function<void()>>> stages_;
};

} // namespace detail

template <typename T, uint32_t Depth>
class stream {
public:
    explicit stream(const char *name = "of an array") : fifo_(name, Depth) {}
    stream(const stream &) = delete;
    stream &operator=(const stream &) = delete;

    // An element that nobody read would be in the FIFO still when the device starts again.
    ~stream()
    {
        if (!elements_.empty()) {
            fail("is left with elements that no stage reads");
        }
    }

    void write(const T &element)
    {
        detail::monitor &monitor = region();
        std::unique_lock<std::mutex> lock(monitor.mutex);
        if (elements_.size() == Depth) {
            monitor.wait(fifo_, fifo_.writer, lock);
        }
        elements_.push_back(element);
        monitor.wake(fifo_, fifo_.reader);
    }

    T read()
    {
        detail::monitor &monitor = region();
        std::unique_lock<std::mutex> lock(monitor.mutex);
        if (elements_.empty()) {
            monitor.wait(fifo_, fifo_.reader, lock);
        }
        const T element = elements_.front();
        elements_.pop_front();
        monitor.wake(fifo_, fifo_.writer);
        return element;
    }

    // Known for sure only while no other stage can move (monitor::wait_for_others): no stage of a
    // kernel may ask.
    bool empty()
    {
        const std::lock_guard<std::mutex> lock(region().mutex);
        return elements_.empty();
    }

    bool full()
    {
        const std::lock_guard<std::mutex> lock(region().mutex);
        return elements_.size() == Depth;
    }

private:
    static_assert(Depth > 0, "a stream holds at least one element");

    detail::monitor &region()
    {
        detail::monitor *monitor = detail::monitor::current();
        if (monitor == nullptr) {
            fail("is used outside a stage");
        }
        return *monitor;
    }

    [[noreturn]] void fail(const char *problem) const
    {
        std::fprintf(stderr, "stream '%s' %s\n", fifo_.name, problem);
        std::fflush(stderr);
        std::abort();
    }

    detail::fifo fifo_;
    std::deque<T> elements_;
};

} // namespace flashmesh

#define FLASHMESH_STREAM(type, stream_name, stream_depth) \
    ::flashmesh::stream<type, stream_depth> stream_name(#stream_name)
#define FLASHMESH_STREAMS(type, stream_name, stream_count, stream_depth) \
    ::flashmesh::stream<type, stream_depth> stream_name[stream_count]
#define FLASHMESH_DATAFLOW(region) ::flashmesh::detail::dataflow flashmesh_dataflow(region)
// By reference: arguments live until the region has ended, which is before the function returns.
#define FLASHMESH_STAGE(stage_function, ...) \
    flashmesh_dataflow.stage(#stage_function, [&] { stage_function(__VA_ARGS__); })
#define FLASHMESH_STAGES(index, count, stage_function, ...)                                      \
    for (uint32_t index = 0; index < (count); ++index) {                                         \
        flashmesh_dataflow.stage(#stage_function, [&, index] { stage_function(__VA_ARGS__); }); \
    }

#endif
#endif
