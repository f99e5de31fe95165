// Which rows pass a condition over columns: the filter of a Program, as a parameter.
//
// One engine interprets every query's condition, where others load a bitstream for each: a Program
// is a parameter, as docs/pushdown-program.md has it. BlueDBM (section 8) names filtering
// of SQL queries in its in-store processors as what comes next.
//
// On a card: `predicate_filter_stream`, over packets of what columns have of row groups
// (flashmesh/rows.hpp), of up to MAX_COLUMNS columns. `sent` has a bit for each column of which
// packets come, one for every row group, whether the condition names it or not; a row group is
// evaluated when all columns have come that it names. A packet of `selection` is a row group's
// bitmap, whose number is its tag: a beat, of which the words that rows are in count.
//
// Packets of values are what page_decode's consist of. But pages of two columns do not end at the
// same rows; what cuts those packets at row groups is not here.
//
// For the host: `predicate_filter`, over arrays: `columns` has column_count columns of `stride`
// values, column after column, of which the first `rows` count; `valid` their validity bitmaps,
// stride / 64 words each; `selection` a bitmap of `rows` rows, whose bits beyond `rows` are 0.
// `stride` is a multiple of 64 and not below `rows`. Only columns that the condition names are read,
// once however often it names them.
//
// `program` is two words for each instruction.
//
// An instruction is postfix over a stack of STACK_SIZE truth values:
//
// | word 0 | bits 0..8 opcode, 8..16 column, 16..24 second column; the others are 0 |
// | word 1 | the literal; of a constant 0 FALSE, 1 TRUE, 2 NULL |
//
// | opcode | |
// |---|---|
// | 1 .. 6   | column =, !=, <, <=, >, >= literal, as int64 |
// | 7 .. 12  | the same as float64 |
// | 13 .. 18 | column and second column, as int64 |
// | 19 .. 24 | column and second column, as float64 |
// | 25       | column IS NULL |
// | 26 27 28 | AND, OR, NOT |
// | 29       | constant |
// | 30 .. 35 | column and literal, as uint64 |
//
// Truth is Kleene's: a comparison with NULL is NULL, and AND, OR and NOT follow the truth tables of
// docs/pushdown-program.md. A row is selected when TRUE is left on the stack. Floats compare in
// IEEE 754's total order (-NaN, -inf, ..., inf, NaN, NaNs by their bits), but -0.0 equals 0.0.
//
// A Program that is malformed (opcode, column, constant, stack, bits that are not 0), that has no
// or more than MAX_INSTRUCTIONS instructions, names a column that is not sent, or comes with more than
// MAX_COLUMNS columns, selects nothing, and the host's form reads nothing for it.
//
// Stages that all run at once: packets are sorted by row group and column ▸ blocks of 64 rows, a word
// of a bitmap, are gathered ▸ the condition is evaluated ▸ words of the selection become packets.
//
// Intended, not measured: a beat of 64 bytes per cycle in, and an instruction per cycle for all 64
// rows of a block, by a comparator for each row. The 8 blocks of a row group of c columns come in
// 65 c cycles, and are evaluated in 8 (c + i) where the condition has i instructions: up to 7 of them
// for each column that it names, packets are what it waits for.
#include <flashmesh/beat.hpp>
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/rows.hpp>
#include <flashmesh/stream.hpp>

namespace {

using flashmesh::axis;
using flashmesh::beat;
using flashmesh::BEAT_WORDS;
using flashmesh::beats_in;
using flashmesh::groups_of;
using flashmesh::line;
using flashmesh::OPEN_GROUPS;
using flashmesh::piece;
using flashmesh::rows_in;
using flashmesh::whole_group;

constexpr uint32_t MAX_COLUMNS = 16;
constexpr uint32_t STACK_SIZE = 16;
constexpr uint32_t MAX_INSTRUCTIONS = 256;
// A block is a word of a bitmap.
constexpr uint32_t BLOCK_ROWS = flashmesh::WORD_BITS;
constexpr uint32_t BLOCK_BEATS = BLOCK_ROWS / BEAT_WORDS;
constexpr uint32_t GROUP_BLOCKS = flashmesh::GROUP_ROWS / BLOCK_ROWS;
constexpr uint32_t COLUMN_STREAMS = OPEN_GROUPS * MAX_COLUMNS;
// All columns of a block wait while the block before is evaluated.
constexpr uint32_t BLOCK_DEPTH = MAX_COLUMNS;
constexpr uint32_t SELECTED_DEPTH = 2;
// Packets that memory has been asked for: 128 beats, more than its latency in cycles.
constexpr uint32_t READ_AHEAD = 2;

constexpr uint8_t IS_NULL = 25;
constexpr uint8_t AND = 26;
constexpr uint8_t OR = 27;
constexpr uint8_t NOT = 28;
constexpr uint8_t CONSTANT = 29;
// Comparisons are six opcodes each, from these on.
constexpr uint8_t COMPARE_INT = 1;
constexpr uint8_t COMPARE_FLOAT = 7;
constexpr uint8_t COMPARE_INT_COLUMNS = 13;
constexpr uint8_t COMPARE_FLOAT_COLUMNS = 19;
constexpr uint8_t COMPARE_UNSIGNED = 30;
constexpr uint8_t COMPARISONS = 6;

// How the bits of a value are compared.
enum class order : uint8_t { integer, floating, natural };

enum class action : uint8_t { refuse, compare, test_null, both, either, negate, constant };

struct instruction {
    action what;
    order as;
    // 0 .. 6: =, !=, <, <=, >, >=.
    uint8_t comparison;
    uint8_t column;
    uint8_t other;
    bool has_other;
    uint64_t literal;
};

// The columns that a condition names, ascending.
struct named_columns {
    uint8_t numbers[MAX_COLUMNS];
    uint32_t count;
};

// Checked instructions, and the columns that they name.
struct condition {
    instruction instructions[MAX_INSTRUCTIONS];
    uint32_t length;
    named_columns columns;
};

// A block's values of one column.
struct column_block {
    uint64_t values[BLOCK_ROWS];
};

// The truth values of a block: a bit in one of the two, or in none of them for NULL.
struct truth {
    uint64_t is_true;
    uint64_t is_false;
};

bool is_comparison(uint8_t opcode, uint8_t first)
{
    return first <= opcode && opcode < first + COMPARISONS;
}

instruction compare_as(order as, uint8_t comparison, bool has_other, instruction parts)
{
    parts.what = action::compare;
    parts.as = as;
    parts.comparison = comparison;
    parts.has_other = has_other;
    return parts;
}

instruction decode(uint64_t word, uint64_t literal)
{
    const uint8_t opcode = static_cast<uint8_t>(word);
    const auto from = [opcode](uint8_t first) { return static_cast<uint8_t>(opcode - first); };
    const instruction parts = {action::refuse, order::natural, 0, static_cast<uint8_t>(word >> 8),
                               static_cast<uint8_t>(word >> 16), false, literal};
    instruction result = parts;
    if (word >> 24 != 0) {
        return parts;
    }
    if (is_comparison(opcode, COMPARE_INT)) {
        return compare_as(order::integer, from(COMPARE_INT), false, parts);
    }
    if (is_comparison(opcode, COMPARE_FLOAT)) {
        return compare_as(order::floating, from(COMPARE_FLOAT), false, parts);
    }
    if (is_comparison(opcode, COMPARE_INT_COLUMNS)) {
        return compare_as(order::integer, from(COMPARE_INT_COLUMNS), true, parts);
    }
    if (is_comparison(opcode, COMPARE_FLOAT_COLUMNS)) {
        return compare_as(order::floating, from(COMPARE_FLOAT_COLUMNS), true, parts);
    }
    if (is_comparison(opcode, COMPARE_UNSIGNED)) {
        return compare_as(order::natural, from(COMPARE_UNSIGNED), false, parts);
    }
    switch (opcode) {
    case IS_NULL:
        result.what = action::test_null;
        break;
    case AND:
        result.what = action::both;
        break;
    case OR:
        result.what = action::either;
        break;
    case NOT:
        result.what = action::negate;
        break;
    case CONSTANT:
        result.what = literal <= 2 ? action::constant : action::refuse;
        break;
    default:
        break;
    }
    return result;
}

// A condition that no row passes.
void select_nothing(condition &out)
{
    out.instructions[0] = {action::constant, order::natural, 0, 0, 0, false, 0};
    out.length = 1;
    out.columns.count = 0;
}

// Reads and checks the Program, which may name the columns whose bits are in `sent`; the stack's
// height before each instruction is the same for all rows, so it is checked here once.
bool load(const uint64_t *program, uint32_t instructions, uint32_t sent, condition &out)
{
    out.length = 0;
    out.columns.count = 0;
    if (instructions == 0 || instructions > MAX_INSTRUCTIONS) {
        return false;
    }
    const auto is_sent = [sent](uint8_t column) {
        return column < MAX_COLUMNS && (sent >> column & 1) != 0;
    };
    bool is_sound = true;
    uint32_t height = 0;
    uint16_t named = 0;
load:
    // To the end even where an instruction is wrong: a burst has a length.
    for (uint32_t i = 0; i < instructions; ++i) {
#pragma HLS PIPELINE II=2
        const instruction next = decode(program[2 * i], program[2 * i + 1]);
        out.instructions[i] = next;
        const bool reads = next.what == action::compare || next.what == action::test_null;
        const bool pushes = reads || next.what == action::constant;
        const uint32_t needs = pushes ? 0 : next.what == action::negate ? 1 : 2;
        if (next.what == action::refuse || height < needs || (pushes && height == STACK_SIZE) ||
            (reads && !is_sent(next.column)) || (next.has_other && !is_sent(next.other))) {
            is_sound = false;
        }
        height = height + 1 - needs;
        if (reads) {
            named = static_cast<uint16_t>(named | 1U << next.column % MAX_COLUMNS);
        }
        if (next.has_other) {
            named = static_cast<uint16_t>(named | 1U << next.other % MAX_COLUMNS);
        }
    }
columns:
    for (uint32_t column = 0; column < MAX_COLUMNS; ++column) {
#pragma HLS PIPELINE II=1
        if ((named >> column & 1) != 0) {
            out.columns.numbers[out.columns.count] = static_cast<uint8_t>(column);
            ++out.columns.count;
        }
    }
    out.length = instructions;
    return is_sound && height == 1;
}

// The bits of a value as an unsigned number in the same order.
uint64_t order_key(order as, uint64_t bits)
{
    const uint64_t sign = uint64_t{1} << 63;
    if (as == order::natural) {
        return bits;
    }
    if (as == order::integer) {
        return bits ^ sign;
    }
    if (bits == sign) {
        // -0.0 equals 0.0.
        return sign;
    }
    return (bits & sign) != 0 ? ~bits : bits | sign;
}

bool holds(uint8_t comparison, uint64_t left, uint64_t right)
{
    switch (comparison) {
    case 0:
        return left == right;
    case 1:
        return left != right;
    case 2:
        return left < right;
    case 3:
        return left <= right;
    case 4:
        return left > right;
    default:
        return left >= right;
    }
}

// The values of a block's columns, on chip: a row of a memory as wide as the block for each column,
// so that choosing one is an address and no multiplexer.
struct block {
    uint64_t values[MAX_COLUMNS][BLOCK_ROWS];
    uint64_t valid[MAX_COLUMNS];
};

truth compare(const instruction &next, const block &rows)
{
#pragma HLS INLINE
    uint64_t result = 0;
compare:
    for (uint32_t row = 0; row < BLOCK_ROWS; ++row) {
#pragma HLS UNROLL
        const uint64_t left = rows.values[next.column][row];
        const uint64_t right = next.has_other ? rows.values[next.other][row] : next.literal;
        const bool bit =
            holds(next.comparison, order_key(next.as, left), order_key(next.as, right));
        result |= uint64_t{bit} << row;
    }
    const uint64_t known =
        rows.valid[next.column] & (next.has_other ? rows.valid[next.other] : ~uint64_t{0});
    return {known & result, known & ~result};
}

// A stack that moves: its top is always the first register.
struct truths {
    truth places[STACK_SIZE];
};

void push(truths &stack, truth top)
{
#pragma HLS INLINE
places:
    for (uint32_t place = STACK_SIZE - 1; place > 0; --place) {
#pragma HLS UNROLL
        stack.places[place] = stack.places[place - 1];
    }
    stack.places[0] = top;
}

// One value in place of the two on top.
void replace_two(truths &stack, truth top)
{
#pragma HLS INLINE
places:
    for (uint32_t place = 1; place + 1 < STACK_SIZE; ++place) {
#pragma HLS UNROLL
        stack.places[place] = stack.places[place + 1];
    }
    stack.places[0] = top;
}

// One instruction, for all rows of a block.
void execute(const instruction &next, const block &rows, truths &stack)
{
#pragma HLS INLINE
    const truth top = stack.places[0];
    const truth below = stack.places[1];
    switch (next.what) {
    case action::compare:
        push(stack, compare(next, rows));
        break;
    case action::test_null:
        push(stack, {~rows.valid[next.column], rows.valid[next.column]});
        break;
    case action::constant:
        push(stack, {next.literal == 1 ? ~uint64_t{0} : 0, next.literal == 0 ? ~uint64_t{0} : 0});
        break;
    case action::both:
        replace_two(stack, {top.is_true & below.is_true, top.is_false | below.is_false});
        break;
    case action::either:
        replace_two(stack, {top.is_true | below.is_true, top.is_false & below.is_false});
        break;
    case action::negate:
        stack.places[0] = {top.is_false, top.is_true};
        break;
    case action::refuse:
        break;
    }
}

// Numbers and bits of columns are the same columns.
uint32_t bits_of(const named_columns &columns)
{
    uint32_t bits = 0;
columns:
    for (uint32_t i = 0; i < columns.count; ++i) {
#pragma HLS PIPELINE II=1
        bits |= 1U << columns.numbers[i];
    }
    return bits;
}

// Makes blocks of row groups in the order in which they are whole.
void gather(uint32_t rows, const named_columns &named,
            flashmesh::column_stream (&columns)[COLUMN_STREAMS],
            flashmesh::stream<whole_group, OPEN_GROUPS> &whole,
            flashmesh::stream<column_block, BLOCK_DEPTH> &blocks,
            flashmesh::stream<uint64_t, BLOCK_DEPTH> &validity,
            flashmesh::stream<uint32_t, OPEN_GROUPS> &numbers)
{
groups:
    for (uint32_t i = 0; i < groups_of(rows); ++i) {
        // Nothing comes for a condition that names no column.
        const whole_group next = named.count == 0 ? whole_group{i, 0} : whole.read();
        numbers.write(next.number);
        line valid[MAX_COLUMNS];
    valid:
        for (uint32_t at = 0; at < named.count; ++at) {
#pragma HLS PIPELINE II=1
            valid[at] = columns[next.place * MAX_COLUMNS + named.numbers[at]].read();
        }
        const uint32_t beats = beats_in(next.number, rows);
        const uint32_t block_count = (beats + BLOCK_BEATS - 1) / BLOCK_BEATS;
        uint32_t word = 0;
        uint32_t at = 0;
        uint32_t part = 0;
        column_block block = {};
    beats:
        for (uint32_t step = 0; step < block_count * named.count * BLOCK_BEATS; ++step) {
#pragma HLS PIPELINE II=1
            // Behind the last row there are no beats.
            line values = {};
            if (word * BLOCK_BEATS + part < beats) {
                values = columns[next.place * MAX_COLUMNS + named.numbers[at]].read();
            }
        words:
            for (uint32_t lane = 0; lane < BEAT_WORDS; ++lane) {
#pragma HLS UNROLL
                block.values[part * BEAT_WORDS + lane] = values.words[lane];
            }
            ++part;
            if (part == BLOCK_BEATS) {
                part = 0;
                blocks.write(block);
                validity.write(valid[at].words[word]);
                ++at;
            }
            if (at == named.count) {
                at = 0;
                ++word;
            }
        }
    }
}

// Of each block first the columns, then the instructions, one a step: one loop, as a pipeline would
// run empty between two.
void evaluate(const condition &where, uint32_t rows,
              flashmesh::stream<column_block, BLOCK_DEPTH> &blocks,
              flashmesh::stream<uint64_t, BLOCK_DEPTH> &validity,
              flashmesh::stream<uint64_t, SELECTED_DEPTH> &selected)
{
    block current;
#pragma HLS ARRAY_PARTITION variable=current.values complete dim=2
    truths stack = {};
#pragma HLS ARRAY_PARTITION variable=stack.places complete
    const uint32_t block_steps = where.columns.count + where.length;
    const uint64_t steps = uint64_t{flashmesh::bitmap_words(rows)} * block_steps;
    flashmesh::bits<9> step = 0;
steps:
    for (uint64_t i = 0; i < steps; ++i) {
#pragma HLS PIPELINE II=1
        const uint32_t at = static_cast<uint32_t>(step);
        if (at < where.columns.count) {
            const uint32_t column = where.columns.numbers[at];
            const column_block next = blocks.read();
        rows:
            for (uint32_t row = 0; row < BLOCK_ROWS; ++row) {
#pragma HLS UNROLL
                current.values[column][row] = next.values[row];
            }
            current.valid[column] = validity.read();
        } else {
            execute(where.instructions[at - where.columns.count], current, stack);
        }
        ++step;
        if (at + 1 == block_steps) {
            step = 0;
            selected.write(stack.places[0].is_true);
        }
    }
}

void send_selection(uint32_t rows, flashmesh::stream<uint32_t, OPEN_GROUPS> &numbers,
                    flashmesh::stream<uint64_t, SELECTED_DEPTH> &selected, axis &selection)
{
groups:
    for (uint32_t i = 0; i < groups_of(rows); ++i) {
        const uint32_t group = numbers.read();
        const uint32_t words = flashmesh::bitmap_words(rows_in(group, rows));
        beat out = {};
        out.tag = group;
        out.bytes = static_cast<uint8_t>(8 * words);
        out.is_last = true;
    words:
        for (uint32_t word = 0; word < words; ++word) {
#pragma HLS PIPELINE II=1
            out.words[word] =
                selected.read() & flashmesh::row_mask(word, rows_in(group, rows));
        }
        flashmesh::send(selection, out);
    }
}

void filter(axis &packets, uint64_t count, const condition &where, uint32_t rows, axis &selection)
{
    FLASHMESH_STREAMS(line, columns, COLUMN_STREAMS, flashmesh::COLUMN_DEPTH);
    FLASHMESH_STREAM(whole_group, whole, OPEN_GROUPS);
    FLASHMESH_STREAM(column_block, blocks, BLOCK_DEPTH);
    FLASHMESH_STREAM(uint64_t, validity, BLOCK_DEPTH);
    FLASHMESH_STREAM(uint32_t, numbers, OPEN_GROUPS);
    FLASHMESH_STREAM(uint64_t, selected, SELECTED_DEPTH);
    FLASHMESH_DATAFLOW("predicate_filter_stream");
    FLASHMESH_STAGE(flashmesh::meet, packets, count, bits_of(where.columns), columns, whole);
    FLASHMESH_STAGE(gather, rows, where.columns, columns, whole, blocks, validity, numbers);
    FLASHMESH_STAGE(evaluate, where, rows, blocks, validity, selected);
    FLASHMESH_STAGE(send_selection, rows, numbers, selected, selection);
}

} // namespace

FLASHMESH_STREAM_TOP void predicate_filter_stream(axis &columns, uint32_t sent,
                                                  const uint64_t *program, uint32_t instructions,
                                                  uint32_t rows, axis &selection)
{
#pragma HLS INTERFACE axis port=columns
#pragma HLS INTERFACE axis port=selection
#pragma HLS INTERFACE m_axi port=program bundle=program offset=slave num_read_outstanding=1
#pragma HLS INTERFACE s_axilite port=sent
#pragma HLS INTERFACE s_axilite port=instructions
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE ap_ctrl_chain port=return
    condition where;
    if (!load(program, instructions, sent, where) || sent >> MAX_COLUMNS != 0) {
        // What comes is taken all the same.
        select_nothing(where);
    }
    const uint32_t columns_sent = static_cast<uint32_t>(__builtin_popcount(sent));
    filter(columns, uint64_t{groups_of(rows)} * columns_sent, where, rows, selection);
}

namespace {

// Piece `number` of those that the host's arrays have.
piece piece_at(uint64_t number, uint64_t count, const named_columns &columns)
{
    const piece next = flashmesh::piece_at(number, count, columns.count);
    return {next.group, columns.numbers[next.column]};
}

uint64_t first_beat(const piece &of, uint32_t stride)
{
    return uint64_t{of.column} * (stride / BEAT_WORDS) +
           uint64_t{of.group} * (flashmesh::GROUP_ROWS / BEAT_WORDS);
}

void send_columns(flashmesh::wide<int64_t> values, uint64_t array_bytes, const uint64_t *valid,
                  uint32_t stride, const named_columns &columns, uint32_t rows, axis &packets)
{
    const uint64_t count = uint64_t{groups_of(rows)} * columns.count;
    uint64_t requested = 0;
ahead:
    for (; requested < READ_AHEAD && requested < count; ++requested) {
#pragma HLS PIPELINE II=1
        const piece wanted = piece_at(requested, count, columns);
        flashmesh::request(values, first_beat(wanted, stride), beats_in(wanted.group, rows));
    }
packets:
    for (uint64_t i = 0; i < count; ++i) {
        const piece next = piece_at(i, count, columns);
        const uint32_t beats = beats_in(next.group, rows);
        const uint64_t *bitmap = valid + uint64_t{next.column} * (stride / BLOCK_ROWS) +
                                 uint64_t{next.group} * GROUP_BLOCKS;
        beat out = {};
        out.tag = next.group * MAX_COLUMNS + next.column;
        out.bytes = flashmesh::BEAT_BYTES;
    valid:
        for (uint32_t word = 0; word < flashmesh::bitmap_words(rows_in(next.group, rows));
             ++word) {
#pragma HLS PIPELINE II=1
            out.words[word] = bitmap[word];
        }
        flashmesh::send(packets, out);
    beats:
        for (uint32_t at = 0; at < beats; ++at) {
#pragma HLS PIPELINE II=1
            beat values_beat =
                flashmesh::load(values, first_beat(next, stride) + at, array_bytes);
            values_beat.tag = out.tag;
            values_beat.bytes = flashmesh::BEAT_BYTES;
            values_beat.is_last = at + 1 == beats;
            flashmesh::send(packets, values_beat);
        }
        if (requested < count) {
            const piece wanted = piece_at(requested, count, columns);
            flashmesh::request(values, first_beat(wanted, stride), beats_in(wanted.group, rows));
            ++requested;
        }
    }
}

void receive_selection(axis &packets, uint32_t rows, uint64_t *selection)
{
groups:
    for (uint32_t i = 0; i < groups_of(rows); ++i) {
        const beat next = flashmesh::receive(packets);
    words:
        for (uint32_t word = 0; 8 * word < next.bytes; ++word) {
#pragma HLS PIPELINE II=1
            selection[next.tag * GROUP_BLOCKS + word] = next.words[word];
        }
    }
}

void run(flashmesh::wide<int64_t> columns, uint64_t array_bytes, const uint64_t *valid,
         uint32_t stride, const named_columns &named, const uint64_t *program,
         uint32_t instructions, uint32_t rows, uint64_t *selection)
{
    FLASHMESH_STREAM(beat, packets, flashmesh::AXIS_DEPTH);
    FLASHMESH_STREAM(beat, bitmaps, flashmesh::AXIS_DEPTH);
    FLASHMESH_DATAFLOW("predicate_filter");
    FLASHMESH_STAGE(send_columns, columns, array_bytes, valid, stride, named, rows, packets);
    FLASHMESH_STAGE(predicate_filter_stream, packets, bits_of(named), program, instructions, rows,
                    bitmaps);
    FLASHMESH_STAGE(receive_selection, bitmaps, rows, selection);
}

} // namespace

FLASHMESH_KERNEL void predicate_filter(flashmesh::wide<int64_t> columns,
                                       uint32_t column_count, const uint64_t *valid, uint32_t stride,
                                       const uint64_t *program, uint32_t instructions,
                                       uint32_t rows, uint64_t *selection)
{
#pragma HLS INTERFACE m_axi port=columns bundle=wide offset=slave num_read_outstanding=32 max_read_burst_length=64
#pragma HLS INTERFACE m_axi port=valid bundle=valid offset=slave num_read_outstanding=32
#pragma HLS INTERFACE m_axi port=program bundle=program offset=slave
#pragma HLS INTERFACE m_axi port=selection bundle=selection offset=slave
#pragma HLS INTERFACE s_axilite port=column_count
#pragma HLS INTERFACE s_axilite port=stride
#pragma HLS INTERFACE s_axilite port=instructions
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    condition where;
    if (stride % BLOCK_ROWS == 0 && rows <= stride && column_count <= MAX_COLUMNS &&
        load(program, instructions, (1U << column_count) - 1, where)) {
        const uint64_t array_bytes = uint64_t{column_count} * stride * sizeof(int64_t);
        run(columns, array_bytes, valid, stride, where.columns, program, instructions, rows,
            selection);
    } else {
        flashmesh::clear(selection, rows);
    }
}
