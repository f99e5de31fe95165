// The values of a column's pages of text: their bytes, where each ends, and a validity bitmap.
//
// BlueDBM (section 3) puts in-store processors between the flash controller, which delivers whole
// pages, and the host; page_decode is the one for numbers. The format is that of
// docs/flash-format.md, sections 3 to 6.
//
// On a card: `text_decode_stream`. A packet of `pages` is a page, its tag whatever the caller likes;
// packets come in any order. For each a packet of `bytes` leaves and one of `rows`, with the same
// tag. The first is the bytes of all texts of the page. The second:
//
// | beats | |
// |---|---|
// | one | word 0: how many rows follow; word 1: 1 where the last one goes on in the next page |
// | for each 512 rows, or what is left of them: one | a bit for each row: 1 where it is not NULL |
// | ... and one for each 16 rows | where they end among the page's bytes, 32 bits each |
// | one, of 16 bytes | word 0: what is wrong with the page (a `problem`); word 1: its bytes |
//
// Bits and ends behind the last row are 0. What is wrong is said at the end, as bad lengths and
// escapes are found while bytes leave: they mean nothing then. A page that only goes on with a value
// of the page before has no row; to put these together is for who knows which page follows.
//
// For the host: `text_decode`, over arrays: `pages` has page_count pages of 8 KiB, `symbols` the
// auxiliary page of a chunk of FSST (symbols_bytes = 8192) or nothing (0); it is loaded once a call.
// `offsets` has capacity + 1 numbers, of which the first is 0: row i is the bytes offsets[i] ..
// offsets[i + 1]. `bytes` has byte_capacity of them, `valid` `capacity` bits. The rows of all pages
// follow each other without gaps. The bits of `valid` beyond the rows are 0.
//
// | page | text |
// |---|---|
// | RAWSTR | the bytes |
// | FSST | what the codes stand for; those without a symbol for nothing, as the format has it |
// | CONST of bytes | the bytes, in each row that is not NULL |
// | CONST, all NULL | none |
// | several of RAWSTR or FSST, of one long value (CONTINUES) | a row, which ends with the last |
// | RAWSTR, auxiliary: a chunk's dictionary | an entry a row, in the order of the codes |
//
// A NULL has the bytes that its page has for it: none, where the store has written it. DICT is not
// decoded here: a text that occurs often would cross once for each row. What crosses of such a
// chunk is page_decode's codes, 8 bytes a row, and from here the dictionary's texts, once.
//
// `rows` and `byte_count` say how many there are, and `status` is 0. Where `rows` are more than
// `capacity` or `byte_count` more than byte_capacity, what is in the arrays means nothing. If that
// is so by the rows and by what RAWSTR and CONST have alone, codes are not looked at, and
// `byte_count` lacks what they stand for. A page that is not sound, or not of these, makes `status`
// what is wrong with the first such page (a `problem` of flashmesh/decode.hpp); `rows` and
// `byte_count` are 0 then, and what is in the arrays means nothing. BAD_LENGTHS and BAD_ESCAPE are
// found while pages are decoded, and so only where no page has another problem. Neither checksum nor
// identity of a page is looked at (whoever read it from flash has verified them), nor whether text
// is UTF-8.
//
// A page goes through stages that run at once, in beats of 64 bytes: its regions are told apart
// (flashmesh/text_page.hpp) ▸ codes become bytes (fsst.hpp) ▸ lengths of rows become their ends. The
// host's form reads headers and bitmaps of all pages first, BATCH_PAGES of them asked for at once, as
// it decodes nothing that is wrong or has no room. Then it sends the pages in their order, as nobody
// knows where the bytes of a page begin before those of all before it are decoded: bytes are put
// behind each other (pack.hpp), ends become places among all bytes, and both are written.
//
// Intended, not measured: of RAWSTR a beat a cycle in and out, of CONST one out; of FSST 8 codes a
// cycle in, which give a beat at most; a row a cycle. Two bursts of bytes are under way.
#include <flashmesh/decode.hpp>
#include <flashmesh/fsst.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/pack.hpp>
#include <flashmesh/stream.hpp>
#include <flashmesh/text_page.hpp>

namespace {

using namespace flashmesh;

constexpr uint32_t DEPTH = 16;
constexpr uint32_t LAYOUT_DEPTH = 4;
// Offsets in a beat.
constexpr uint32_t BEAT_OFFSETS = BEAT_BYTES / 4;

using layout_stream = stream<text_layout, LAYOUT_DEPTH>;

// Tells the regions of pages apart. Bitmap and lengths come before the bytes that they belong to:
// their streams hold as much of them as a page can have.
void route(axis &pages, uint32_t page_count, bool has_symbols, bool are_symbols_sound,
           layout_stream &byte_plans, layout_stream &row_plans, validity_stream &validity,
           lengths_stream &lengths, stream<line, DEPTH> &stored)
{
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const beat header = receive(pages);
        text_layout where;
        problem found = plan_page(parse_header(header.words), where);
        const uint32_t lengths_start = found == SOUND ? where.validity_beats : 0;
        const uint32_t nulls = route_validity(pages, lengths_start, where.rows, validity);
        if (found == SOUND && where.kind == CODES && !has_symbols) {
            found = BAD_SYMBOLS;
        } else if (lengths_start != 0 && nulls != where.rows - where.values) {
            found = BAD_VALIDITY;
        }
        found = are_symbols_sound ? found : BAD_SYMBOLS;
        conclude(header.tag, found, lengths_start, where);
        byte_plans.write(where);
        row_plans.write(where);
        const uint32_t stored_start = lengths_start + where.lengths_beats;
        const uint32_t stored_end = stored_start + beats_of(where.stored_bytes);
    beats:
        for (uint32_t at = lengths_start; at + 1 < PAGE_BEATS; ++at) {
#pragma HLS PIPELINE II=1
            const line next = line_of(receive(pages));
            if (at < stored_start) {
                lengths.write(next);
            } else if (at < stored_end) {
                stored.write(next);
            }
        }
    }
}

// Puts bytes behind those of the page that wait; a beat that they fill leaves when it is known that
// it is not the page's last.
void send_bytes(const line &piece, uint32_t count, uint32_t tag, packer &state, axis &bytes)
{
#pragma HLS INLINE
    line full;
    if (append(piece, count, state, full)) {
        send(bytes, to_beat(full, BEAT_BYTES, tag));
    }
}

uint32_t steps_of(const text_layout &where)
{
    return where.kind == CODES ? (where.stored_bytes + STEP_CODES - 1) / STEP_CODES : 0;
}

// Makes the bytes of pages of what they store.
void expand(uint32_t page_count, const symbol_table &known, layout_stream &plans,
            stream<line, DEPTH> &stored, stream<code_ends, DEPTH> &steps, axis &bytes)
{
    line constant[PAGE_BEATS];
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const text_layout where = plans.read();
        const uint32_t stored_beats = beats_of(where.stored_bytes);
        packer state = {};
        if (where.kind == CODES) {
            bool is_escaped = false;
            line next = {};
        codes:
            for (uint32_t step = 0; step < steps_of(where); ++step) {
#pragma HLS PIPELINE II=1
                if (step % BEAT_WORDS == 0) {
                    next = stored.read();
                }
                const uint32_t left = where.stored_bytes - step * STEP_CODES;
                code_ends ends;
                const line piece =
                    look_up(known, next.words[step % BEAT_WORDS],
                            left < STEP_CODES ? left : STEP_CODES, is_escaped, ends);
                steps.write(ends);
                send_bytes(piece, ends.ends[STEP_CODES - 1], where.tag, state, bytes);
            }
        } else if (where.kind == BYTES) {
        bytes:
            for (uint32_t at = 0; at < stored_beats; ++at) {
#pragma HLS PIPELINE II=1
                const uint32_t left = where.stored_bytes - at * BEAT_BYTES;
                const uint32_t count = left < BEAT_BYTES ? left : BEAT_BYTES;
                send_bytes(first_bytes(stored.read(), count), count, where.tag, state, bytes);
            }
        } else {
        constant:
            for (uint32_t at = 0; at < stored_beats; ++at) {
#pragma HLS PIPELINE II=1
                const uint32_t left = where.stored_bytes - at * BEAT_BYTES;
                constant[at] = first_bytes(stored.read(), left);
            }
            uint32_t at = 0;
        rows:
            for (uint32_t i = 0; i < where.values * stored_beats; ++i) {
#pragma HLS PIPELINE II=1
                const uint32_t left = where.stored_bytes - at * BEAT_BYTES;
                send_bytes(constant[at], left < BEAT_BYTES ? left : BEAT_BYTES, where.tag, state,
                           bytes);
                at = at + 1 < stored_beats ? at + 1 : 0;
            }
        }
        beat last = to_beat(state.waiting, state.filled, where.tag);
        last.is_last = true;
        send(bytes, last);
    }
}

// How far the codes of a page were followed: the step taken last, and the bytes of those before it.
struct followed {
    code_ends step;
    uint32_t taken;
    uint32_t before;
};

void follow(stream<code_ends, DEPTH> &steps, followed &state)
{
#pragma HLS INLINE
    state.before += state.step.ends[STEP_CODES - 1];
    state.step = steps.read();
    ++state.taken;
}

// The bytes of a row within what is stored; of CONST, within what it gives.
uint32_t length_of(const text_layout &where, bool is_valid, lengths_stream &lengths,
                   length_reader &state)
{
#pragma HLS INLINE
    if (where.kind == CONSTANT) {
        return is_valid ? where.least : 0;
    }
    return where.least + next_length(where, lengths, state);
}

// Makes packets of where rows end of their stored lengths. Of a page whose lengths are wrong it makes
// as many rows as the header says all the same.
void end_rows(uint32_t page_count, layout_stream &plans, validity_stream &validity,
              lengths_stream &lengths, stream<code_ends, DEPTH> &steps, axis &packets)
{
    length_reader stored;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const text_layout where = plans.read();
        const line head = {{where.rows, where.continues ? 1U : 0U}};
        send(packets, to_beat(head, BEAT_BYTES, where.tag));
        begin_lengths(where, lengths, stored);
        followed codes = {};
        bool is_sound = true;
        bool is_escape_last = false;
        bool has_bits = false;
        line bits = {};
        line ends = {};
        uint32_t row = 0;
        bool is_begun = false;
        uint32_t end = 0;
    rows:
        while (row < where.rows) {
#pragma HLS PIPELINE II=1
            if (!has_bits) {
                bits = take_validity(where, row, validity);
                send(packets, to_beat(bits, BEAT_BYTES, where.tag));
                has_bits = true;
                continue;
            }
            if (!is_begun) {
                if (where.kind != CONSTANT && row % START_ROWS == 0) {
                    is_sound = is_sound && start_of(row, stored) == end;
                }
                const bool is_valid = (bits.words[row / 64 % BEAT_WORDS] >> (row % 64) & 1) != 0;
                end += length_of(where, is_valid, lengths, stored);
                if (where.kind != CONSTANT && end > where.stored_bytes) {
                    is_sound = false;
                    end = where.stored_bytes;
                }
            }
            // The step that the row's last code is in has to be there.
            if (where.kind == CODES && end > codes.taken * STEP_CODES) {
                follow(steps, codes);
            }
            is_begun = where.kind == CODES && end > codes.taken * STEP_CODES;
            if (!is_begun) {
                uint32_t place = end;
                if (where.kind == CODES) {
                    // Before the first code there is no step, whose ends are 0.
                    const uint32_t last = (end - 1) % STEP_CODES;
                    place = codes.before + codes.step.ends[last];
                    is_escape_last = is_escape_last || (codes.step.escapes >> last & 1) != 0;
                }
                const uint32_t at = row % BEAT_OFFSETS;
                ends.words[at / 2] |= uint64_t{place} << (32 * (at % 2));
                ++row;
                if (at == BEAT_OFFSETS - 1 || row == where.rows) {
                    send(packets, to_beat(ends, BEAT_BYTES, where.tag));
                    ends = {};
                }
                has_bits = row % VALID_ROWS != 0;
            }
        }
        if (where.kind != CONSTANT && where.rows != 0 && end != where.stored_bytes) {
            is_sound = false;
        }
    rest_of_steps:
        while (codes.taken < steps_of(where)) {
#pragma HLS PIPELINE II=1
            follow(steps, codes);
        }
        drop_validity(where, validity);
        if (where.kind == CODES) {
            end = codes.before + codes.step.ends[STEP_CODES - 1];
            const uint32_t last = (where.stored_bytes - 1) % STEP_CODES;
            const bool is_open = (codes.step.escapes >> last & 1) != 0;
            is_escape_last = is_escape_last || is_open;
        } else if (where.kind == BYTES) {
            end = where.stored_bytes;
        }
        problem found = where.found;
        if (!is_sound) {
            found = BAD_LENGTHS;
        } else if (is_escape_last) {
            found = BAD_ESCAPE;
        }
        beat last = to_beat(line{{found, end}}, 16, where.tag);
        last.is_last = true;
        send(packets, last);
    }
}

void decode(axis &pages, uint32_t page_count, const symbol_table &known, bool are_symbols_sound,
            axis &bytes, axis &rows)
{
    FLASHMESH_STREAM(text_layout, byte_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(text_layout, row_plans, LAYOUT_DEPTH);
    FLASHMESH_STREAM(line, validity, PAGE_BEATS);
    FLASHMESH_STREAM(line, lengths, PAGE_BEATS);
    FLASHMESH_STREAM(line, stored, DEPTH);
    FLASHMESH_STREAM(code_ends, steps, DEPTH);
    FLASHMESH_DATAFLOW("text_decode_stream");
    FLASHMESH_STAGE(route, pages, page_count, known.is_there, are_symbols_sound, byte_plans,
                    row_plans, validity, lengths, stored);
    FLASHMESH_STAGE(expand, page_count, known, byte_plans, stored, steps, bytes);
    FLASHMESH_STAGE(end_rows, page_count, row_plans, validity, lengths, steps, rows);
}

} // namespace

FLASHMESH_STREAM_TOP void text_decode_stream(axis &pages, uint32_t page_count, wide_port symbols,
                                             uint32_t symbols_bytes, axis &bytes, axis &rows)
{
#pragma HLS INTERFACE axis port=pages
#pragma HLS INTERFACE axis port=bytes
#pragma HLS INTERFACE axis port=rows
#pragma HLS INTERFACE m_axi port=symbols bundle=wide offset=slave num_read_outstanding=2
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=symbols_bytes
#pragma HLS INTERFACE ap_ctrl_chain port=return
    symbol_table known;
#pragma HLS ARRAY_PARTITION variable=known.symbols complete dim=1
#pragma HLS ARRAY_PARTITION variable=known.lengths complete dim=1
    const bool are_sound = are_symbols(symbols, symbols_bytes);
    load_symbols(symbols, are_sound ? symbols_bytes : 0, known);
    decode(pages, page_count, known, are_sound, bytes, rows);
}

namespace {

struct sums {
    uint32_t rows;
    // Of RAWSTR and CONST.
    uint64_t bytes;
};

// Checks all pages before the first is decoded, in batches, so that memory's latency is waited for
// twice in a batch: for the headers, and for the bitmaps that they say are there.
problem check(wide_port pages, uint32_t page_count, bool has_symbols, sums &total)
{
    const uint64_t array_bytes = bytes_of_pages(page_count);
    total = {};
    value_parts parts = {};
    problem found = SOUND;
batches:
    for (uint64_t start = 0; start < page_count && found == SOUND; start += BATCH_PAGES) {
        const uint32_t batch = batch_of(start, page_count);
        text_layout plans[BATCH_PAGES];
        request_headers(pages, start, batch);
        // Pages before the first whose header is wrong.
        uint32_t sound = batch;
        problem behind = SOUND;
    headers:
        for (uint32_t i = 0; i < batch; ++i) {
#pragma HLS PIPELINE II=1
            const line header = load_line(pages, (start + i) * PAGE_BEATS, array_bytes);
            problem here = plan_page(parse_header(header.words), plans[i]);
            if (here == SOUND && !follows(plans[i], parts)) {
                here = BAD_PARTS;
            }
            if (here == SOUND && plans[i].kind == CODES && !has_symbols) {
                here = BAD_SYMBOLS;
            }
            if (behind == SOUND && here != SOUND) {
                behind = here;
                sound = i;
            }
        }
    ask_bitmaps:
        for (uint32_t i = 0; i < sound; ++i) {
#pragma HLS PIPELINE II=1
            request(pages, (start + i) * PAGE_BEATS + 1, plans[i].validity_beats);
        }
    bitmaps:
        for (uint32_t i = 0; i < sound; ++i) {
            uint32_t nulls = 0;
        beats:
            for (uint32_t at = 0; at < plans[i].validity_beats; ++at) {
#pragma HLS PIPELINE II=1
                const line next = load_line(pages, (start + i) * PAGE_BEATS + 1 + at, array_bytes);
                nulls += count_nulls(next, plans[i].rows - at * VALID_ROWS);
            }
            // What was asked for is taken, whatever has been found.
            if (found != SOUND) {
                continue;
            }
            if (plans[i].validity_beats != 0 && nulls != plans[i].rows - plans[i].values) {
                found = BAD_VALIDITY;
                continue;
            }
            if (plans[i].kind == BYTES) {
                total.bytes += plans[i].stored_bytes;
            } else if (plans[i].kind == CONSTANT) {
                total.bytes += uint64_t{plans[i].values} * plans[i].stored_bytes;
            }
            if (total.rows > 0xffffffff - plans[i].rows || total.bytes > 0xffffffff) {
                found = TOO_MANY;
                continue;
            }
            total.rows += plans[i].rows;
        }
        found = found == SOUND ? behind : found;
    }
    return found == SOUND && parts.is_open ? BAD_PARTS : found;
}

void send_pages(wide_port pages, uint32_t page_count, axis &packets)
{
    const auto in_order = [](uint32_t place) { return place; };
    deliver_pages(pages, page_count, page_count, in_order, packets);
}

// Bits of validity that wait until they are a word.
struct valid_packer {
    uint64_t word;
    uint32_t bits;
    uint32_t left;
};

// Says of a row where it ends, and whether it is not NULL.
void put_row(uint32_t end, bool is_valid, valid_packer &state, stream<uint32_t, DEPTH> &ends,
             stream<uint64_t, DEPTH> &valid)
{
#pragma HLS INLINE
    ends.write(end);
    state.word |= uint64_t{is_valid} << state.bits;
    ++state.bits;
    --state.left;
    if (state.bits == WORD_BITS || state.left == 0) {
        valid.write(state.word);
        state.word = 0;
        state.bits = 0;
    }
}

// Makes places among all bytes of where rows end in their pages, and one row of the pages of a long
// value. `total` is all bytes.
void place_rows(uint32_t page_count, uint32_t row_count, axis &packets,
                stream<uint32_t, DEPTH> &ends, stream<uint64_t, DEPTH> &valid, uint64_t &total,
                refusal &first)
{
    valid_packer state = {0, 0, row_count};
    // Bytes of the pages before.
    uint64_t base = 0;
    // Whether the long value that goes on is not NULL.
    bool is_long_valid = false;
pages:
    for (uint32_t page = 0; page < page_count; ++page) {
        const beat head = receive(packets);
        const uint32_t rows = static_cast<uint32_t>(head.words[0]);
        const bool continues = head.words[1] != 0;
        bool has_bits = false;
        line bits = {};
        line places = {};
        uint32_t row = 0;
    rows:
        while (row < rows) {
#pragma HLS PIPELINE II=1
            if (!has_bits) {
                bits = line_of(receive(packets));
                has_bits = true;
                continue;
            }
            const uint32_t at = row % BEAT_OFFSETS;
            if (at == 0) {
                places = line_of(receive(packets));
            }
            const bool is_valid = (bits.words[row / 64 % BEAT_WORDS] >> (row % 64) & 1) != 0;
            const uint32_t end = static_cast<uint32_t>(places.words[at / 2] >> (32 * (at % 2)));
            if (continues) {
                is_long_valid = is_valid;
            } else {
                put_row(static_cast<uint32_t>(base) + end, is_valid, state, ends, valid);
            }
            ++row;
            has_bits = row % VALID_ROWS != 0;
        }
        const beat last = receive(packets);
        base += last.words[1];
        if (rows == 0 && !continues) {
            put_row(static_cast<uint32_t>(base), is_long_valid, state, ends, valid);
        }
        note(first, last.tag, static_cast<problem>(last.words[0]));
    }
    total = base;
}

void write_offsets(uint32_t total, stream<uint32_t, DEPTH> &ends, wide_result<uint32_t> offsets)
{
    const uint64_t count = uint64_t{total} + 1;
    const uint64_t beats = (count + BEAT_OFFSETS - 1) / BEAT_OFFSETS;
    request_store(offsets, 0, beats);
    line out = {};
offsets:
    for (uint64_t i = 0; i < count; ++i) {
#pragma HLS PIPELINE II=1
        const uint32_t place = static_cast<uint32_t>(i % BEAT_OFFSETS);
        const uint64_t end = i == 0 ? 0 : ends.read();
        if (place == 0) {
            out = {};
        }
        out.words[place / 2] |= end << (32 * (place % 2));
        if (place == BEAT_OFFSETS - 1 || i + 1 == count) {
            store(offsets, i / BEAT_OFFSETS, to_beat(out, 4 * (place + 1)));
        }
    }
    finish_store(offsets, beats);
}

void write_valid(uint32_t total, stream<uint64_t, DEPTH> &words, uint64_t *valid)
{
words:
    for (uint32_t i = 0; i < bitmap_words(total); ++i) {
#pragma HLS PIPELINE II=1
        valid[i] = words.read();
    }
}

void run(wide_port pages, uint32_t page_count, wide_port symbols, uint32_t symbols_bytes,
         uint32_t row_count, uint32_t byte_capacity, wide_result<uint32_t> offsets,
         wide_result<uint8_t> bytes, uint64_t *valid, uint64_t &byte_count, refusal &first)
{
    FLASHMESH_STREAM(beat, packets, AXIS_DEPTH);
    FLASHMESH_STREAM(beat, page_bytes, AXIS_DEPTH);
    FLASHMESH_STREAM(beat, page_rows, AXIS_DEPTH);
    FLASHMESH_STREAM(line, byte_beats, BURST_DEPTH);
    FLASHMESH_STREAM(burst, bursts, BURSTS_DEPTH);
    FLASHMESH_STREAM(uint32_t, ends, DEPTH);
    FLASHMESH_STREAM(uint64_t, valid_words, DEPTH);
    FLASHMESH_DATAFLOW("text_decode");
    FLASHMESH_STAGE(send_pages, pages, page_count, packets);
    FLASHMESH_STAGE(text_decode_stream, packets, page_count, symbols, symbols_bytes, page_bytes,
                    page_rows);
    FLASHMESH_STAGE(join_bytes, page_count, page_bytes, byte_beats, bursts);
    FLASHMESH_STAGE(place_rows, page_count, row_count, page_rows, ends, valid_words, byte_count,
                    first);
    FLASHMESH_STAGE(write_bytes, byte_capacity, byte_beats, bursts, bytes);
    FLASHMESH_STAGE(write_offsets, row_count, ends, offsets);
    FLASHMESH_STAGE(write_valid, row_count, valid_words, valid);
}

} // namespace

FLASHMESH_KERNEL void text_decode(wide_port pages, uint32_t page_count, wide_port symbols,
                                  uint32_t symbols_bytes, uint32_t capacity,
                                  uint32_t byte_capacity, wide_result<uint32_t> offsets,
                                  wide_result<uint8_t> bytes, uint64_t *valid, uint32_t *rows,
                                  uint32_t *byte_count, uint32_t *status)
{
#pragma HLS INTERFACE m_axi port=pages bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=symbols bundle=wide_symbols offset=slave num_read_outstanding=2 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=offsets bundle=offsets offset=slave num_write_outstanding=16 max_write_burst_length=64
#pragma HLS INTERFACE m_axi port=bytes bundle=bytes offset=slave num_write_outstanding=16 max_write_burst_length=64
#pragma HLS INTERFACE m_axi port=valid bundle=valid offset=slave num_write_outstanding=16
#pragma HLS INTERFACE m_axi port=rows bundle=answers offset=slave
#pragma HLS INTERFACE m_axi port=byte_count bundle=answers offset=slave
#pragma HLS INTERFACE m_axi port=status bundle=answers offset=slave
#pragma HLS INTERFACE s_axilite port=page_count
#pragma HLS INTERFACE s_axilite port=symbols_bytes
#pragma HLS INTERFACE s_axilite port=capacity
#pragma HLS INTERFACE s_axilite port=byte_capacity
#pragma HLS INTERFACE s_axilite port=return
    sums total = {};
    problem found = BAD_SYMBOLS;
    if (are_symbols(symbols, symbols_bytes)) {
        found = check(pages, page_count, symbols_bytes != 0, total);
    }
    if (found == SOUND && total.rows <= capacity && total.bytes <= byte_capacity) {
        refusal first = {NO_PAGE, SOUND};
        run(pages, page_count, symbols, symbols_bytes, total.rows, byte_capacity, offsets, bytes,
            valid, total.bytes, first);
        found = total.bytes > 0xffffffff ? TOO_MANY : first.found;
    }
    *rows = found == SOUND ? total.rows : 0;
    *byte_count = found == SOUND ? static_cast<uint32_t>(total.bytes) : 0;
    *status = found;
}
