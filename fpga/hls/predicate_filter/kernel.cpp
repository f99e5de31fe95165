// Which rows pass a condition over columns: the filter of a Program, as a parameter.
//
// One engine interprets every query's condition, where others load a bitstream for each: a Program
// is a parameter, as docs/pushdown-program.md has it. BlueDBM (section 8) names filtering
// of SQL queries in its in-store processors as what comes next.
//
// Shapes: `columns` has column_count columns of `stride` values, column after column, of which the
// first `rows` count; `valid` their validity bitmaps, stride / 64 words each; `program` two words
// for each instruction; `selection` a bitmap of `rows` rows, whose bits beyond `rows` are 0.
// `stride` is a multiple of 64 and not below `rows`.
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
// or more than MAX_INSTRUCTIONS instructions, or more than MAX_COLUMNS columns, selects nothing,
// and nothing is read for it.
//
// Rows go through in blocks of 64, a word of a bitmap: truth values of a block are two words, and
// a column is read once however often the condition names it. Intended, not measured: an
// initiation interval of 1 for values in and for comparisons, 8 bytes per cycle.
#include <flashmesh/bits.hpp>
#include <flashmesh/kernel.hpp>
#include <flashmesh/stream.hpp>

namespace {

constexpr uint32_t MAX_COLUMNS = 16;
constexpr uint32_t STACK_SIZE = 16;
constexpr uint32_t MAX_INSTRUCTIONS = 256;
// A block is a word of a bitmap.
constexpr uint32_t BLOCK_ROWS = flashmesh::WORD_BITS;
// Two blocks: one is computed while the next is read.
constexpr uint32_t VALUES_DEPTH = 2 * BLOCK_ROWS;
constexpr uint32_t WORDS_DEPTH = 2 * MAX_COLUMNS;

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

// Checked instructions, and the columns that they name.
struct condition {
    instruction instructions[MAX_INSTRUCTIONS];
    uint32_t length;
    uint16_t columns;
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

// Reads and checks the Program; the stack's height before each instruction is the same for all
// rows, so it is checked here once.
bool load(const uint64_t *program, uint32_t instructions, uint32_t column_count, condition &out)
{
    out.length = 0;
    out.columns = 0;
    if (instructions == 0 || instructions > MAX_INSTRUCTIONS || column_count > MAX_COLUMNS) {
        return false;
    }
    bool is_sound = true;
    uint32_t height = 0;
load:
    for (uint32_t i = 0; i < instructions; ++i) {
#pragma HLS PIPELINE II=2
        const instruction next = decode(program[2 * i], program[2 * i + 1]);
        out.instructions[i] = next;
        const bool reads = next.what == action::compare || next.what == action::test_null;
        const bool pushes = reads || next.what == action::constant;
        const uint32_t needs = pushes ? 0 : next.what == action::negate ? 1 : 2;
        if (next.what == action::refuse || height < needs || (pushes && height == STACK_SIZE) ||
            (reads && next.column >= column_count) ||
            (next.has_other && next.other >= column_count)) {
            is_sound = false;
            break;
        }
        height = pushes ? height + 1 : height + 1 - needs;
        if (reads) {
            out.columns = static_cast<uint16_t>(out.columns | 1U << next.column);
        }
        if (next.has_other) {
            out.columns = static_cast<uint16_t>(out.columns | 1U << next.other);
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

// The values of a block's columns, on chip.
struct block {
    uint64_t values[MAX_COLUMNS][BLOCK_ROWS];
    uint64_t valid[MAX_COLUMNS];
};

truth compare(const instruction &next, const block &rows)
{
    uint64_t result = 0;
compare:
    for (uint32_t row = 0; row < BLOCK_ROWS; ++row) {
#pragma HLS PIPELINE II=1
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

// The rows of a block for which the condition is TRUE.
uint64_t evaluate(const condition &where, const block &rows)
{
    truth stack[STACK_SIZE] = {};
#pragma HLS ARRAY_PARTITION variable=stack complete
    uint32_t height = 0;
instructions:
    for (uint32_t i = 0; i < where.length; ++i) {
        const instruction &next = where.instructions[i];
        const truth top = height > 0 ? stack[height - 1] : truth{0, 0};
        const truth below = height > 1 ? stack[height - 2] : truth{0, 0};
        truth result = {0, 0};
        uint32_t taken = 0;
        switch (next.what) {
        case action::compare:
            result = compare(next, rows);
            break;
        case action::test_null:
            result = {~rows.valid[next.column], rows.valid[next.column]};
            break;
        case action::constant:
            result.is_true = next.literal == 1 ? ~uint64_t{0} : 0;
            result.is_false = next.literal == 0 ? ~uint64_t{0} : 0;
            break;
        case action::both:
            result = {top.is_true & below.is_true, top.is_false | below.is_false};
            taken = 2;
            break;
        case action::either:
            result = {top.is_true | below.is_true, top.is_false & below.is_false};
            taken = 2;
            break;
        case action::negate:
            result = {top.is_false, top.is_true};
            taken = 1;
            break;
        case action::refuse:
            break;
        }
        height = height - taken + 1;
        stack[height - 1] = result;
    }
    return stack[0].is_true;
}

void read_values(const int64_t *columns, uint32_t stride, uint16_t used, uint32_t rows,
                 flashmesh::stream<uint64_t, VALUES_DEPTH> &values)
{
blocks:
    for (uint32_t word = 0; word < flashmesh::bitmap_words(rows); ++word) {
    columns:
        for (uint32_t column = 0; column < MAX_COLUMNS; ++column) {
            if ((used >> column & 1) == 0) {
                continue;
            }
            const uint64_t start = uint64_t{column} * stride + uint64_t{word} * BLOCK_ROWS;
        rows:
            for (uint32_t row = 0; row < BLOCK_ROWS; ++row) {
#pragma HLS PIPELINE II=1
                values.write(static_cast<uint64_t>(columns[start + row]));
            }
        }
    }
}

void read_valid(const uint64_t *valid, uint32_t stride, uint16_t used, uint32_t rows,
                flashmesh::stream<uint64_t, WORDS_DEPTH> &validity)
{
blocks:
    for (uint32_t word = 0; word < flashmesh::bitmap_words(rows); ++word) {
    columns:
        for (uint32_t column = 0; column < MAX_COLUMNS; ++column) {
#pragma HLS PIPELINE II=1
            if ((used >> column & 1) != 0) {
                validity.write(valid[uint64_t{column} * (stride / BLOCK_ROWS) + word]);
            }
        }
    }
}

void compute(const condition &where, uint32_t rows,
             flashmesh::stream<uint64_t, VALUES_DEPTH> &values,
             flashmesh::stream<uint64_t, WORDS_DEPTH> &validity,
             flashmesh::stream<uint64_t, WORDS_DEPTH> &selected)
{
    block current;
blocks:
    for (uint32_t word = 0; word < flashmesh::bitmap_words(rows); ++word) {
    columns:
        for (uint32_t column = 0; column < MAX_COLUMNS; ++column) {
            if ((where.columns >> column & 1) == 0) {
                continue;
            }
            current.valid[column] = validity.read();
        rows:
            for (uint32_t row = 0; row < BLOCK_ROWS; ++row) {
#pragma HLS PIPELINE II=1
                current.values[column][row] = values.read();
            }
        }
        selected.write(evaluate(where, current) & flashmesh::row_mask(word, rows));
    }
}

void write_selection(uint32_t rows, flashmesh::stream<uint64_t, WORDS_DEPTH> &selected,
                     uint64_t *selection)
{
blocks:
    for (uint32_t word = 0; word < flashmesh::bitmap_words(rows); ++word) {
#pragma HLS PIPELINE II=1
        selection[word] = selected.read();
    }
}

void filter(const int64_t *columns, const uint64_t *valid, uint32_t stride, const condition &where,
            uint32_t rows, uint64_t *selection)
{
    FLASHMESH_STREAM(uint64_t, values, VALUES_DEPTH);
    FLASHMESH_STREAM(uint64_t, validity, WORDS_DEPTH);
    FLASHMESH_STREAM(uint64_t, selected, WORDS_DEPTH);
    FLASHMESH_DATAFLOW("predicate_filter");
    FLASHMESH_STAGE(read_values, columns, stride, where.columns, rows, values);
    FLASHMESH_STAGE(read_valid, valid, stride, where.columns, rows, validity);
    FLASHMESH_STAGE(compute, where, rows, values, validity, selected);
    FLASHMESH_STAGE(write_selection, rows, selected, selection);
}

} // namespace

FLASHMESH_KERNEL void predicate_filter(const int64_t *columns, uint32_t column_count,
                                       const uint64_t *valid, uint32_t stride,
                                       const uint64_t *program, uint32_t instructions,
                                       uint32_t rows, uint64_t *selection)
{
#pragma HLS INTERFACE m_axi port=columns bundle=gmem0 offset=slave
#pragma HLS INTERFACE m_axi port=valid bundle=gmem1 offset=slave
#pragma HLS INTERFACE m_axi port=program bundle=gmem2 offset=slave
#pragma HLS INTERFACE m_axi port=selection bundle=gmem3 offset=slave
#pragma HLS INTERFACE s_axilite port=column_count
#pragma HLS INTERFACE s_axilite port=stride
#pragma HLS INTERFACE s_axilite port=instructions
#pragma HLS INTERFACE s_axilite port=rows
#pragma HLS INTERFACE s_axilite port=return
    condition where;
    if (stride % BLOCK_ROWS == 0 && rows <= stride &&
        load(program, instructions, column_count, where)) {
        filter(columns, valid, stride, where, rows, selection);
    } else {
        flashmesh::clear(selection, rows);
    }
}
