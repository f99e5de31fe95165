// What is asked of a device on models of two flash cards, of the host's memory and of software:
// clock by clock, all that the device's users do, and what must come of it.
//
// `Top` is the Verilated top module, with the ports of device.sv; who derives from Traffic says
// what is in the slots.
#pragma once

#include <cinttypes>
#include <cstdio>
#include <map>
#include <memory>
#include <set>

#include "requests.hpp"
#include "verilated.h"

template <typename Top>
class Traffic {
public:
    explicit Traffic(const Options& options) : options_(options), random_(options.seed) {
        Timing timing;
        if (options.fast) timing = {20, 40, 60, BUS_UNITS};
        for (unsigned c = 0; c < CARDS; ++c)
            cards_.push_back(std::make_unique<FlashCard>(first_of(c), timing,
                                                         options.seed * 1000003 + c));
        reads_left_ = options.reads;
        for (unsigned c = 0; c < CARDS; ++c) {
            pages_left_[c] = options.pages;
            raw_left_[c] = options.raw;
        }
        std::set<std::pair<unsigned, uint32_t>> blocks;
        while (blocks.size() < options.jobs) {
            const unsigned card = random_() % CARDS;
            const auto page = static_cast<uint32_t>(4 * SUPERBLOCK + random_() % (8 * SUPERBLOCK));
            blocks.insert({card, FlashCard::block_of(page)});
        }
        for (const auto& [card, block] : blocks) jobs_.push_back({card, block, 0});
        for (unsigned j = 0; j < jobs_.size(); ++j) ready_jobs_.push_back(static_cast<int>(j));
    }

    virtual ~Traffic() = default;

    void run() {
        start();
        uint64_t last_progress = 0, last_clock = 0;
        while (!is_over() || clock_ < last_clock + 1000) {
            cycle();
            if (progress_ != last_progress) {
                last_progress = progress_;
                last_clock = clock_;
            } else if (clock_ > last_clock + options_.limit) {
                throw Failure("deadlock: nothing has happened for " +
                              std::to_string(options_.limit) + " clocks");
            }
        }
    }

    void report() const {
        std::printf("{\"clocks\": %" PRIu64 ", \"read\": %" PRIu64 ", \"written\": %" PRIu64
                    ", \"erased\": %" PRIu64 ", \"failed\": %" PRIu64 ", \"refused\": %" PRIu64
                    ", \"streamed\": %" PRIu64 ", \"out_of_bounds\": %" PRIu64
                    ", \"outcomes\": %" PRIu64 ", \"taken\": %" PRIu64 ", \"overtaken\": %" PRIu64
                    ", \"out_of_order\": %" PRIu64,
                    clock_, read_, written_, erased_, failed_, refused_, streamed_, out_of_bounds_,
                    outcomes_, taken_, overtaken_, out_of_order_);
        report_rates();
        report_kernels();
        std::printf(", \"first_word\": %" PRIu64 ", \"last_word\": %" PRIu64
                    ", \"completion\": %" PRIu64 "}\n", first_word_, last_word_, completion_);
    }

protected:
    // Of what is in the slots.

    // What a part is to the kernel of a card's slot: its parameter, and what must come of it.
    virtual void assign(unsigned card, Part& part) = 0;
    virtual void drive_kernels() = 0;
    virtual void look_at_kernels() = 0;
    // A part's outcome is right; what else must be by then?
    virtual void end_part(unsigned, const Part&) {}
    virtual void report_kernels() const {}
    // Whose a command is, where a segment of a file lies, which pages a part has: if not just any.
    virtual unsigned choose_endpoint() { return random_() % 4; }
    virtual uint32_t choose_segment() { return random_() % (2 * SUPERBLOCK >> SEGMENT_BITS); }
    virtual void move(Part&) {}

    // The pages that each of them had from a quarter to three quarters of the time in which all
    // that were asked to were at work, and how many clocks that is.
    void report_rates() const {
        uint64_t end = UINT64_MAX;
        for (const auto* times : {&host_times_, &stream_times_, &raw_times_}) {
            if (!times->empty()) end = std::min(end, times->back());
        }
        const auto count = [end](const std::vector<uint64_t>& times) {
            return std::count_if(times.begin(), times.end(), [end](uint64_t time) {
                return time >= end / 4 && time < end / 4 * 3;
            });
        };
        std::printf(", \"window\": %" PRIu64 ", \"host\": %td, \"in_order\": %td, \"raw\": %td",
                    end / 4 * 2, count(host_times_), count(stream_times_), count(raw_times_));
    }

    bool coin() { return !options_.jitter || random_() % 2 != 0; }

    void tick() {
        device_.clk = 0;
        device_.eval();
        device_.clk = 1;
        device_.eval();
    }

    void start() {
        device_.reset = 1;
        for (unsigned i = 0; i < 4; ++i) tick();
        for (const auto& extent : EXTENTS) {
            device_.load_extent = (1u << CARDS) - 1;
            device_.extent_line = extent.line;
            const uint64_t rights = uint64_t{1} << 1 | extent.may_write;
            device_.extent = rights << (ENDPOINT_BITS + 2 * PAGE_BITS) |
                             uint64_t{extent.endpoint} << 2 * PAGE_BITS |
                             uint64_t{extent.first} << PAGE_BITS | extent.last;
            tick();
        }
        device_.load_extent = 0;
        for (unsigned c = 0; c < CARDS; ++c) {
            for (unsigned line = 0; line < FILES * FILE_SEGMENTS; ++line) {
                device_.load_segment = 1u << c;
                device_.load_line = line;
                segments_[c].push_back(choose_segment());
                device_.load_number = segments_[c].back();
                tick();
            }
            device_.load_segment = 0;
            for (unsigned file = 0; file < FILES; ++file) {
                device_.load_file = 1u << c;
                device_.load_handle = file;
                device_.load_first = file * FILE_SEGMENTS;
                device_.load_pages = FILE_PAGES;
                tick();
            }
            device_.load_file = 0;
        }
        device_.reset = 0;
    }

    bool is_over() const {
        bool is_over = reads_left_ == 0 && ready_jobs_.empty() && in_flight_ == 0 && !request_ &&
                       !is_taking_ && commands_.empty();
        for (unsigned c = 0; c < CARDS; ++c)
            is_over = is_over && pages_left_[c] == 0 && parts_left_[c] == 0 && raw_left_[c] == 0 &&
                      raw_in_flight_[c] == 0;
        return is_over;
    }

    void cycle() {
        for (auto& card : cards_) card->tick(clock_);
        drive_cards();
        drive_host();
        drive_kernels();
        drive_raw();
        device_.clk = 0;
        device_.eval();
        look_at_cards();
        look_at_host();
        look_at_kernels();
        look_at_raw();
        device_.clk = 1;
        device_.eval();
        ++clock_;
    }

    // The cards.

    void drive_cards() {
        device_.card_ready = device_.write_ready = 0;
        device_.read_valid = device_.request_valid = device_.ack_valid = 0;
        for (unsigned c = 0; c < CARDS; ++c) {
            const FlashCard& card = *cards_[c];
            if (coin()) device_.card_ready |= 1u << c;
            if (coin()) device_.write_ready |= 1u << c;
            if (card.read && coin()) {
                device_.read_valid |= 1u << c;
                put_narrow(device_.read_tag, TAG_BITS * c, TAG_BITS, card.read->tag);
                put(device_.read_burst, BURST_BITS * c + 128, 1, card.read->is_last);
                put_word(device_.read_burst, BURST_BITS * c, card.read->data);
            }
            if (card.request && coin()) {
                device_.request_valid |= 1u << c;
                put_narrow(device_.request_tag, TAG_BITS * c, TAG_BITS, *card.request);
            }
            if (card.ack && coin()) {
                device_.ack_valid |= 1u << c;
                put_narrow(device_.ack_tag, TAG_BITS * c, TAG_BITS, card.ack->tag);
                put_narrow(device_.ack_status, 2 * c, 2, card.ack->status);
            }
        }
    }

    void look_at_cards() {
        if (device_.is_stray != 0) throw Failure("data is sent that no card has asked for");
        for (unsigned c = 0; c < CARDS; ++c) {
            FlashCard& card = *cards_[c];
            if ((device_.card_valid & device_.card_ready) >> c & 1) {
                const unsigned low = COMMAND_BITS * c;
                Command command;
                command.page = static_cast<uint32_t>(get(device_.card_command, low, PAGE_BITS));
                command.endpoint = get(device_.card_command, low + PAGE_BITS, ENDPOINT_BITS);
                command.operation = get(device_.card_command, low + PAGE_BITS + ENDPOINT_BITS, 2);
                if (!is_allowed(command))
                    throw Failure("a command gets to a card that no extent allows: endpoint " +
                                  std::to_string(command.endpoint) + ", page " +
                                  std::to_string(command.page));
                const unsigned tag = device_.card_tag >> TAG_BITS * c & 127;
                card.command(tag, command);
                numbers_[c][tag] = ++commanded_[c];
            }
            if ((device_.read_valid & device_.read_ready) >> c & 1) {
                if (card.read->is_last) {
                    const uint64_t number = numbers_[c][card.read->tag];
                    out_of_order_ += number < newest_[c];
                    newest_[c] = std::max(newest_[c], number);
                }
                card.taken_read();
            }
            if ((device_.request_valid & device_.request_ready) >> c & 1) card.taken_request();
            if ((device_.ack_valid & device_.ack_ready) >> c & 1) card.taken_ack();
            if ((device_.write_valid & device_.write_ready) >> c & 1) {
                Burst burst;
                burst.is_last = get(device_.write_burst, BURST_BITS * c + 128, 1) != 0;
                burst.data = get_word(device_.write_burst, BURST_BITS * c);
                card.write(device_.write_tag >> TAG_BITS * c & 127, burst);
            }
        }
    }

    // The host: software takes a buffer, sends a request, and looks at completions.

    void drive_host() {
        if (!request_ && !is_taking_ && (!options_.one || in_flight_ == 0)) choose();
        device_.free_read_ready = is_taking_ && next_.command.operation == READ;
        device_.free_write_ready = is_taking_ && next_.command.operation != READ;
        if (!sending_) choose_sent();
        device_.host_valid = sending_.has_value() && coin();
        if (sending_) {
            device_.host_unit = sending_->unit;
            for (unsigned w = 0; w < sending_->bits.size(); ++w)
                device_.host_request[w] = sending_->bits[w];
        }
        device_.answer_ready = coin();
        device_.over_ready = coin();
        device_.give_back_valid = !to_give_back_.empty();
        if (!to_give_back_.empty()) {
            device_.give_back = to_give_back_.front();
            to_give_back_.pop_front();
        }
        device_.completion_ready = coin();

        store_budget_ = std::min(store_budget_ + STORE_RATE, 2 * WORD_COST);
        device_.store_ready = (options_.fast ? coin() : store_budget_ >= WORD_COST);
        fetch_budget_ = std::min(fetch_budget_ + FETCH_RATE, 2 * WORD_COST);
        device_.fetch_ready = fetches_.size() < 4 * PAGE_WORDS && coin();
        device_.data_valid = !fetches_.empty() && fetches_.front().first <= clock_ &&
                             (options_.fast ? coin() : fetch_budget_ >= WORD_COST);
        if (device_.data_valid) put_word(device_.data, 0, fetches_.front().second);
    }

    // The next thing that the host does, if there is one.
    void choose() {
        next_ = Request();
        next_.command.endpoint = 1;
        const bool is_job = !ready_jobs_.empty() && (reads_left_ == 0 || random_() % 2 != 0);
        if (is_job) {
            next_.job = ready_jobs_.front();
            ready_jobs_.pop_front();
            const Job& job = jobs_[next_.job];
            next_.card = job.card;
            const unsigned at = job.step == 0 ? 0 : (job.step - 1) % Job::PAGES;
            next_.command.page = job.block + at * FlashCard::BUSES * FlashCard::CHIPS;
            next_.command.operation = job.step == 0 ? ERASE : job.step <= Job::PAGES ? WRITE : READ;
            next_.contents = (uint64_t{1} << 40) + Job::PAGES * next_.job + at;
            if (job.step == 0 && cards_[job.card]->is_bad(job.block)) next_.status = FAILED;
        } else if (reads_left_ > 0) {
            --reads_left_;
            next_.card = random_() % CARDS;
            next_.command.page = random_() % (4 * SUPERBLOCK);
            next_.contents = first_of(next_.card) + next_.command.page;
            if (options_.hostile && random_() % 4 == 0) make_hostile();
        } else {
            return;
        }
        is_taking_ = true;
    }

    // Something that the endpoint may not, or just may.
    void make_hostile() {
        static constexpr uint32_t EDGES[] = {0, 2 * SUPERBLOCK, 4 * SUPERBLOCK, 13 * SUPERBLOCK - 7,
                                             14 * SUPERBLOCK, 14 * SUPERBLOCK + 10};
        Command& command = next_.command;
        command.endpoint = random_() % 4;
        command.page = EDGES[random_() % 6] + random_() % 3 - 1;
        command.page &= (1u << PAGE_BITS) - 1;
        command.operation = random_() % 3;
        if (is_allowed(command)) {
            // Where jobs are at work contents are theirs, and a write would need an erase first.
            command.operation = READ;
            if (command.page >= 4 * SUPERBLOCK && command.page < 12 * SUPERBLOCK) command.page = 5;
        }
        if (!is_allowed(command)) next_.status = REFUSED;
        next_.contents = first_of(next_.card) + command.page;
    }

    void look_at_host() {
        const bool is_read_free = device_.free_read_valid && device_.free_read_ready;
        if (is_read_free || (device_.free_write_valid && device_.free_write_ready)) {
            next_.buffer = is_read_free ? device_.free_read : device_.free_write;
            auto& requests = is_read_free ? reading_ : writing_;
            if (requests[next_.buffer]) throw Failure("a buffer is handed out that is in use");
            requests[next_.buffer] = next_;
            request_ = next_;
            is_taking_ = false;
            ++in_flight_;
        }
        if (device_.is_unknown) throw Failure("a request is for no unit");
        if (device_.host_valid && device_.host_ready) {
            sent_at_ = clock_;
            if (sending_->unit == 0) request_.reset();
            if (sending_->part) parts_[sending_->unit - 2].push_back(*sending_->part);
            sending_.reset();
            ++progress_;
        }
        if (device_.over_valid && device_.over_ready) end_command();
        if (device_.answer_valid && device_.answer_ready) compare_outcome();
        if (device_.store_valid && device_.store_ready) store();
        if (device_.fetch_valid && device_.fetch_ready) {
            const auto& request = writing_[device_.fetch_buffer];
            if (!request) throw Failure("a buffer is fetched that is not in use");
            for (unsigned w = 0; w < BURST; ++w) {
                const unsigned at = BURST * device_.fetch_position + w;
                fetches_.emplace_back(clock_ + FETCH_LATENCY, pattern(request->contents, at));
            }
        }
        if (device_.data_valid && device_.data_ready) {
            fetches_.pop_front();
            fetch_budget_ -= WORD_COST;
        }
        if (device_.completion_valid && device_.completion_ready) complete();
    }

    void store() {
        if (!options_.fast) store_budget_ -= WORD_COST;
        auto& words = memory_[device_.store_buffer];
        if (burst_words_ > 0 && burst_buffer_ != device_.store_buffer)
            throw Failure("a DMA burst is of two buffers");
        burst_buffer_ = device_.store_buffer;
        if (device_.store_position * BURST + burst_words_ != words.size())
            throw Failure("a DMA burst goes to a wrong place of its buffer");
        words.push_back(get_word(device_.store_data, 0));
        burst_words_ = (burst_words_ + 1) % BURST;
        if (device_.store_is_last != (burst_words_ == 0))
            throw Failure("a DMA burst is of another length");
        ++progress_;
    }

    void complete() {
        const unsigned buffer = device_.completion_buffer;
        auto& found = (device_.completion_is_read ? reading_ : writing_)[buffer];
        if (!found) throw Failure("a completion is for a buffer that is not in use");
        const Request request = *found;
        const std::string what = "buffer " + std::to_string(buffer) + ", operation " +
                                 std::to_string(request.command.operation) + ", page " +
                                 std::to_string(request.command.page);
        if (device_.completion_status != request.status)
            throw Failure(what + ": status " + std::to_string(device_.completion_status) +
                          ", wanted " + std::to_string(request.status));
        if (device_.completion_is_read) {
            compare(request, what);
            memory_[buffer].clear();
            to_give_back_.push_back(buffer);
        }
        found.reset();
        --in_flight_;
        ++progress_;
        completion_ = clock_ - sent_at_;
        refused_ += request.status == REFUSED;
        failed_ += request.status == FAILED;
        if (request.status == DONE) {
            host_times_.push_back(clock_);
            read_ += request.command.operation == READ;
            written_ += request.command.operation == WRITE;
            erased_ += request.command.operation == ERASE;
            if (request.job >= 0 && ++jobs_[request.job].step <= 2 * Job::PAGES)
                ready_jobs_.push_back(request.job);
        }
    }

    void compare(const Request& request, const std::string& what) const {
        const Page& page = memory_[request.buffer];
        if (page.size() != (request.status == DONE ? PAGE_WORDS : 0))
            throw Failure(what + ": " + std::to_string(page.size()) + " words");
        for (unsigned w = 0; w < page.size(); ++w) {
            if (page[w] != pattern(request.contents, w))
                throw Failure(what + ": word " + std::to_string(w) + " is another");
        }
    }

    // Commands to the slots, and their kernels.

    // The next thing that goes to the request scheduler, if there is one.
    void choose_sent() {
        Sent sent;
        const unsigned first = random_() % (2 + CARDS);
        for (unsigned i = 0; i < 2 + CARDS; ++i) {
            sent.unit = (first + i) % (2 + CARDS);
            if (sent.unit == 0 && request_) {
                const uint64_t command = uint64_t{request_->command.operation}
                                             << (ENDPOINT_BITS + PAGE_BITS) |
                                         uint64_t{request_->command.endpoint} << PAGE_BITS |
                                         request_->command.page;
                put(sent.bits, 0, COMMAND_BITS, command);
                put(sent.bits, COMMAND_BITS, 7, request_->buffer);
                put(sent.bits, COMMAND_BITS + 7, 1, request_->card);
                sending_ = sent;
                return;
            }
            if (sent.unit == 1 && !to_read_.empty()) {
                put_part(sent, to_read_.front());
                reading_lines_.push_back(to_read_.front());
                to_read_.pop_front();
                sending_ = sent;
                return;
            }
            if (sent.unit < 2) continue;
            sent.part = next_part(sent.unit - 2);
            if (sent.part) {
                put_part(sent, *sent.part);
                sending_ = sent;
                return;
            }
        }
    }

    static void put_part(Sent& sent, const Part& part) {
        unsigned low = 0;
        const auto field = [&](unsigned count, uint64_t bits) {
            put(sent.bits, low, count, bits);
            low += count;
        };
        field(64, part.parameter);
        field(OFFSET_BITS, part.length);
        field(OFFSET_BITS, part.offset);
        field(HANDLE_BITS, part.handle);
        field(AREA_BITS, part.line);
        field(ENDPOINT_BITS, part.endpoint);
        field(SEQUENCE_BITS, part.sequence);
        field(1, part.is_last);
    }

    // Parts come to a slot command by command; each has a line of its endpoint's area that no other
    // has.
    std::optional<Part> next_part(unsigned card) {
        if (options_.one && !commands_.empty()) return {};
        if (parts_left_[card] == 0 && pages_left_[card] == 0) return {};
        if (slot_parts_[card] == SLOT_PARTS) return {};
        Part& command = command_[card];
        if (parts_left_[card] == 0) {
            command = Part();
            if (options_.hostile) command.endpoint = choose_endpoint();
            parts_left_[card] = options_.hostile ? 1 + random_() % 4 : 1;
            command.sequence = ++sequence_;
        }
        auto& lines = lines_[command.endpoint];
        unsigned line = random_() % lines.size();
        for (unsigned i = 0; i < lines.size() && lines[line]; ++i) line = (line + 1) % lines.size();
        if (lines[line]) return {};
        lines[line] = true;
        Part part = command;
        part.line = line;
        part.parameter = random_();
        part.is_last = --parts_left_[card] == 0;
        choose_pages(card, part);
        assign(card, part);
        pages_left_[card] -= part.length;
        ++slot_parts_[card];
        commands_[part.sequence].push_back(part);
        slot_of_[part.sequence] = card;
        return part;
    }

    void choose_pages(unsigned card, Part& part) {
        part.handle = random_() % FILES;
        part.offset = random_() % FILE_PAGES;
        part.length = std::min<uint64_t>(1, pages_left_[card]);
        if (options_.length > 1) {
            part.offset -= part.offset % options_.length;
            part.length = std::min({options_.length, pages_left_[card],
                                    uint64_t{FILE_PAGES - part.offset}});
        }
        if (options_.hostile) {
            part.length = std::min<uint64_t>(random_() % 6, pages_left_[card]);
            if (random_() % 4 == 0) part.handle = random_() % (1u << HANDLE_BITS);
            if (random_() % 4 == 0) part.offset = FILE_PAGES - random_() % 4;
            if (random_() % 16 == 0) part.offset = (1u << OFFSET_BITS) - 1 - random_() % 3;
        }
        move(part);
        for (unsigned i = 0; i < part.length; ++i) {
            const Wanted page = wanted(card, part, i);
            if (page.status == DONE) part.pages.push_back(page);
            else if (part.status == DONE) part.status = page.status;
            refused_ += page.status == REFUSED;
            out_of_bounds_ += page.status == OUT_OF_BOUNDS;
        }
    }

    Wanted wanted(unsigned card, const Part& part, unsigned at) const {
        const uint64_t offset = uint64_t{part.offset} + at;
        if (part.handle >= FILES || offset >= FILE_PAGES) return {OUT_OF_BOUNDS, 0, at};
        const uint32_t segment =
            segments_[card][part.handle * FILE_SEGMENTS + (offset >> SEGMENT_BITS)];
        const uint32_t page = segment << SEGMENT_BITS | (offset & ((1u << SEGMENT_BITS) - 1));
        if (!is_allowed({READ, part.endpoint, page})) return {REFUSED, 0, at};
        return {DONE, first_of(card) + page, at};
    }

    // A command is over: the host reads its parts' lines.
    void end_command() {
        const auto found = commands_.find(device_.over_sequence);
        if (found == commands_.end() || found->second.front().endpoint != device_.over_endpoint ||
            !found->second.back().is_last)
            throw Failure("a command is over that is not under way");
        for (const auto& part : found->second) to_read_.push_back(part);
        ++progress_;
    }

    void compare_outcome() {
        const Part part = reading_lines_.front();
        reading_lines_.pop_front();
        const uint64_t result = get(device_.answer, 0, 64), status = get(device_.answer, 64, 2);
        if (get(device_.answer, 66, SEQUENCE_BITS) != part.sequence || status != part.status ||
            result != part.result)
            throw Failure("the outcome of command " + std::to_string(part.sequence) + ", line " +
                          std::to_string(part.line) + ", is another: status " +
                          std::to_string(status) + ", wanted " + std::to_string(part.status));
        end_part(slot_of_[part.sequence], part);
        lines_[part.endpoint][part.line] = false;
        --slot_parts_[slot_of_[part.sequence]];
        ++outcomes_;
        ++progress_;
        if (part.is_last) commands_.erase(part.sequence);
    }

    // In-store processors that take pages as they come.

    void drive_raw() {
        device_.raw_valid = 0;
        for (unsigned c = 0; c < CARDS; ++c) {
            if (raw_left_[c] == 0 || !coin() || raw_in_flight_[c] == (options_.one ? 1 : RAW_TAGS))
                continue;
            if (!raw_next_[c]) {
                unsigned tag = random_() % RAW_TAGS;
                while (raw_[c][tag]) tag = (tag + 1) % RAW_TAGS;
                Command command{READ, 2, static_cast<uint32_t>(random_() % (2 * SUPERBLOCK))};
                if (options_.hostile && random_() % 4 == 0) {
                    command.endpoint = random_() % 4;
                    command.page = 2 * SUPERBLOCK - 2 + random_() % 4;
                    command.operation = random_() % 3;
                    if (is_allowed(command)) command.operation = READ;
                }
                raw_next_[c] = {tag, command};
            }
            device_.raw_valid |= 1u << c;
            const auto& [tag, command] = *raw_next_[c];
            put(device_.raw_command, COMMAND_BITS * c, COMMAND_BITS,
                uint64_t{command.operation} << (ENDPOINT_BITS + PAGE_BITS) |
                    uint64_t{command.endpoint} << PAGE_BITS | command.page);
            put_narrow(device_.raw_tag, 8 * c, 8, tag);
        }
    }

    void look_at_raw() {
        for (unsigned c = 0; c < CARDS; ++c) {
            if ((device_.raw_valid & device_.raw_ready) >> c & 1) {
                const auto& [tag, command] = *raw_next_[c];
                raw_[c][tag] = Raw{command, raw_number_[c]++, 0};
                raw_next_[c].reset();
                --raw_left_[c];
                ++raw_in_flight_[c];
                asked_at_ = clock_;
                ++progress_;
            }
            if (device_.raw_read_valid >> c & 1) {
                auto& raw = raw_[c][device_.raw_read_tag >> 8 * c & 255];
                if (!raw) throw Failure("a burst has a tag that is not in use");
                if (!is_allowed(raw->command)) throw Failure("a page comes that may not be read");
                if (get_word(device_.raw_read_burst, BURST_BITS * c) !=
                    pattern(first_of(c) + raw->command.page, raw->words))
                    throw Failure("a burst of card " + std::to_string(c) + " is another");
                if (raw->words++ == 0) first_word_ = clock_ - asked_at_;
                ++progress_;
                const bool is_last = get(device_.raw_read_burst, BURST_BITS * c + 128, 1) != 0;
                if (is_last != (raw->words == PAGE_WORDS))
                    throw Failure("a page is of another length");
                if (is_last) {
                    last_word_ = clock_ - asked_at_;
                    raw_times_.push_back(clock_);
                    ++taken_;
                    overtaken_ += raw->number < raw_newest_[c];
                    raw_newest_[c] = std::max(raw_newest_[c], raw->number);
                    raw.reset();
                    --raw_in_flight_[c];
                }
            }
            if (device_.raw_ack_valid >> c & 1) {
                auto& raw = raw_[c][device_.raw_ack_tag >> 8 * c & 255];
                if (!raw || (device_.raw_ack_status >> 2 * c & 3) != REFUSED ||
                    is_allowed(raw->command)) throw Failure("a command is refused that may pass");
                raw.reset();
                --raw_in_flight_[c];
                ++refused_;
                ++progress_;
            }
        }
    }

    Options options_;
    std::mt19937_64 random_;
    VerilatedContext context_;
    Top device_{&context_};
    std::vector<std::unique_ptr<FlashCard>> cards_;
    uint64_t clock_ = 0, progress_ = 0;
    // Of a card's commands: how many there were, which each tag is, the newest whose page has come.
    std::array<uint64_t, CARDS> commanded_{}, newest_{};
    std::array<std::array<uint64_t, 1 << TAG_BITS>, CARDS> numbers_{};

    uint64_t reads_left_ = 0;
    std::vector<Job> jobs_;
    std::deque<int> ready_jobs_;
    Request next_;
    bool is_taking_ = false;
    std::optional<Request> request_;
    std::array<std::optional<Request>, BUFFERS> reading_, writing_;
    std::array<Page, BUFFERS> memory_;
    std::deque<unsigned> to_give_back_;
    std::deque<std::pair<uint64_t, Word>> fetches_;
    unsigned store_budget_ = 0, fetch_budget_ = 0, burst_words_ = 0, burst_buffer_ = 0;
    uint64_t in_flight_ = 0;

    std::array<std::vector<uint32_t>, CARDS> segments_;
    std::array<uint64_t, CARDS> pages_left_{};
    std::optional<Sent> sending_;
    std::array<Part, CARDS> command_;                       // what its parts have in common
    std::array<uint64_t, CARDS> parts_left_{};              // of that command
    std::array<unsigned, CARDS> slot_parts_{};              // whose outcome was not read
    unsigned sequence_ = 0;
    std::map<unsigned, std::vector<Part>> commands_;        // under way, by sequence number
    std::map<unsigned, unsigned> slot_of_;
    std::array<std::array<bool, 1 << AREA_BITS>, 4> lines_{};  // of endpoints: in use
    std::deque<Part> to_read_, reading_lines_;
    std::array<std::deque<Part>, CARDS> parts_;             // that the slots have

    std::array<std::array<std::optional<Raw>, RAW_TAGS>, CARDS> raw_;
    std::array<std::optional<std::pair<unsigned, Command>>, CARDS> raw_next_;
    std::array<uint64_t, CARDS> raw_left_{}, raw_in_flight_{}, raw_number_{}, raw_newest_{};

    uint64_t read_ = 0, taken_ = 0, written_ = 0, erased_ = 0, failed_ = 0, refused_ = 0;
    uint64_t streamed_ = 0, out_of_bounds_ = 0, overtaken_ = 0, outcomes_ = 0;
    uint64_t out_of_order_ = 0;
    uint64_t sent_at_ = 0, asked_at_ = 0, first_word_ = 0, last_word_ = 0, completion_ = 0;
    std::vector<uint64_t> host_times_, stream_times_, raw_times_;
};

inline Options read_options(int count, char** words) {
    Options options;
    for (int i = 1; i < count; ++i) {
        const std::string word = words[i];
        const auto value = [&] {
            if (++i == count) throw Failure(word + " needs a number");
            return std::stoull(words[i]);
        };
        if (word == "--seed") options.seed = value();
        else if (word == "--reads") options.reads = value();
        else if (word == "--jobs") options.jobs = value();
        else if (word == "--pages") options.pages = value();
        else if (word == "--length") options.length = value();
        else if (word == "--raw") options.raw = value();
        else if (word == "--hold") options.hold = value();
        else if (word == "--limit") options.limit = value();
        else if (word == "--hostile") options.hostile = true;
        else if (word == "--jitter") options.jitter = true;
        else if (word == "--fast") options.fast = true;
        else if (word == "--one") options.one = true;
        else throw Failure("'" + word + "'?");
    }
    return options;
}
