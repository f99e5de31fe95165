// A device on models of two flash cards, of the host's memory and of software.
//
//   bench [--seed N] [--reads N] [--jobs N] [--pages N] [--length N] [--raw N] [--hostile]
//         [--jitter] [--fast] [--one] [--limit CLOCKS]
//
//   --reads    random pages that the host reads
//   --jobs     erase blocks that the host erases, writes pages of, and reads these again
//   --pages    pages that the kernel of each card's slot has from files, at random, by commands of
//              one part; with --hostile of several, on pages some of which there are not
//   --length   pages of a part
//   --raw      random pages that an in-store processor reads from each card as they come, 96 at a
//              time
//   --hostile  some requests are of endpoints that have no right to what they want
//   --jitter   users offer and take things only in about half of the clocks
//   --fast     chips and buses are so fast that the device is what is held up
//   --one      a page is asked for when the last one has come: for latencies
//   --limit    so long without progress is a deadlock
//
// Fails unless all that is asked for comes, with the right contents, once, and in order where there
// is one; and when a command gets to a card that no extent allows, or data for no write. It prints
// one line of JSON.

#include "Vdevice.h"
#include "traffic.hpp"

namespace {

// The kernels in the slots are a model that looks at every word, and finds nothing.
class Bench : public Traffic<Vdevice> {
public:
    using Traffic::Traffic;

private:
    void assign(unsigned, Part& part) override {
        part.result = mix(part.parameter + part.pages.size());
    }

    void drive_kernels() override {
        device_.start_ready = device_.word_ready = device_.result_valid = 0;
        for (unsigned c = 0; c < CARDS; ++c) {
            if (coin()) device_.start_ready |= 1u << c;
            if (coin()) device_.word_ready |= 1u << c;
            // A register: a result does not wait for the clock in which a kernel is over.
            if (is_over_[c] && coin()) device_.result_valid |= 1u << c;
            if (!parts_[c].empty()) put(device_.result, 64 * c, 64, parts_[c].front().result);
        }
    }

    void look_at_kernels() override {
        for (unsigned c = 0; c < CARDS; ++c) {
            const std::string what = "the kernel of card " + std::to_string(c);
            if ((device_.start_valid & device_.start_ready) >> c & 1) {
                if (parts_[c].empty() || is_started_[c])
                    throw Failure(what + " starts with nothing to do");
                if (get(device_.start_parameter, 64 * c, 64) != parts_[c].front().parameter)
                    throw Failure(what + " starts with the parameter of another part");
                if (get_narrow(device_.start_length, OFFSET_BITS * c, OFFSET_BITS) !=
                    parts_[c].front().length)
                    throw Failure(what + " starts with another number of pages");
                is_started_[c] = true;
                kernel_pages_[c] = kernel_words_[c] = 0;
                ++progress_;
            }
            if ((device_.word_valid & device_.word_ready) >> c & 1) take_word(c, what);
            is_over_[c] = device_.is_over >> c & 1;
            if ((device_.result_valid & device_.result_ready) >> c & 1) {
                if (!is_started_[c] || kernel_pages_[c] != parts_[c].front().pages.size())
                    throw Failure(what + " is over before it had all pages");
                parts_[c].pop_front();
                is_started_[c] = is_over_[c] = false;
                ++progress_;
            }
        }
    }

    void take_word(unsigned c, const std::string& what) {
        if (!is_started_[c] || kernel_pages_[c] == parts_[c].front().pages.size())
            throw Failure(what + " gets a word too many");
        const Wanted& page = parts_[c].front().pages[kernel_pages_[c]];
        if (get_word(device_.word, 128 * c) != pattern(page.contents, kernel_words_[c]))
            throw Failure(what + ": word " + std::to_string(kernel_words_[c]) + " is another");
        if (get_narrow(device_.word_page, OFFSET_BITS * c, OFFSET_BITS) != page.number ||
            (device_.word_is_last >> c & 1) != (kernel_words_[c] == PAGE_WORDS - 1))
            throw Failure(what + ": a word is of another page, or ends it");
        if (kernel_words_[c] == 0) first_word_ = clock_ - sent_at_;
        ++progress_;
        if (++kernel_words_[c] < PAGE_WORDS) return;
        last_word_ = clock_ - sent_at_;
        kernel_words_[c] = 0;
        ++kernel_pages_[c];
        ++streamed_;
        stream_times_.push_back(clock_);
    }

    std::array<bool, CARDS> is_started_{}, is_over_{};
    std::array<size_t, CARDS> kernel_pages_{}, kernel_words_{};
};

}  // namespace

int main(int count, char** words) {
    try {
        Bench bench(read_options(count, words));
        bench.run();
        bench.report();
    } catch (const std::exception& failure) {
        std::printf("%s\n", failure.what());
        return 1;
    }
    return 0;
}
