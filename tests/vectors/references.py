"""What our kernels must answer, the naive way, and the cases that ask for it."""

import math
import struct

import pages
from vectorfile import Vectors, bitmap, text_column, unwritten

NOT_FOUND = 0xFFFFFFFF
INT_MIN, INT_MAX = -(2**63), 2**63 - 1
ROW_COUNTS = (1, 63, 64, 65)


def signed(word):
    return word - 2**64 if word >= 2**63 else word


def float_bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def morris_pratt(rng):
    vectors = Vectors()

    def case(title, texts, pattern):
        offsets, data = text_column(texts)
        positions = [text.find(pattern) for text in texts]
        vectors.case(title).call("morris_pratt")
        vectors.array("text_offsets", "u32", offsets).array("text_bytes", "u8", data)
        vectors.array("pattern", "u8", pattern).scalar("pattern_length", "u32", len(pattern))
        vectors.scalar("rows", "u32", len(texts))
        vectors.out("positions", "u32", [NOT_FOUND if p < 0 else p for p in positions])

    case("no rows", [], b"abc")
    case("empty pattern", [b"", b"x", b"longer than a beat"], b"")
    case("one row", [b"xxabc"], b"abc")
    case("empty texts", [b"", b"", b""], b"a")
    case("matches end with the text", [b"abc", b"ab", b"xabc", b"abcabc"], b"abc")
    case("a match does not go on in the next row", [b"ab", b"c", b"xa", b"bc", b"abc"], b"abc")
    case("failure links", [b"aabaabaaab", b"aabaaab", b"abababac", b"aaaaaab", b"aaaab"], b"aaab")
    case("links to links", [b"abacabababacabac", b"abacabacabad", b"abacabad"], b"abacabad")
    case("zero bytes", [b"\0\0\1", b"\0\1", b"\1\0\0", b""], b"\0\1")
    case("bytes above 127", ["naïve é".encode(), "é".encode(), b"\xff\xfe\xff"], "é".encode())
    for rows in (1, 63, 64, 65):
        texts = [bytes(rng.choice(b"ab") for _ in range(rng.randrange(24))) for _ in range(rows)]
        case(f"{rows} rows", texts, b"abba")
    for length in (1, 7, 8, 9, 16, 31, 63, 64, 65, 66, 100, 128, 200):
        pattern = bytes(rng.choice(b"ab") for _ in range(length))
        almost = pattern[:-1] + (b"a" if pattern[-1:] == b"b" else b"b")
        texts = [pattern, almost, pattern[1:], almost + pattern, b"b" * 9 + pattern + b"b",
                 pattern[: length // 2] + pattern, almost[: length - 1]]
        case(f"pattern of {length}", texts, pattern)
    for length in (64, 65, 70):
        case(f"overlapping candidates, {length}",
             [b"a" * 200, b"a" * (length - 1), b"a" * 80 + b"b" + b"a" * length], b"a" * length)
        case(f"the last byte decides, {length}",
             [b"a" * 150 + b"b", b"a" * (length - 2) + b"b", b"b" * 70], b"a" * (length - 1) + b"b")
    return vectors



# Opcodes of predicate_filter.
COMPARE, COMPARE_FLOAT, COMPARE_COLUMNS, COMPARE_FLOAT_COLUMNS, COMPARE_UNSIGNED = 1, 7, 13, 19, 30
IS_NULL, AND, OR, NOT, CONSTANT = 25, 26, 27, 28, 29
COMPARISONS = [lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b, lambda a, b: a <= b,
               lambda a, b: a > b, lambda a, b: a >= b]


def total_order(word):
    """A float's place in IEEE 754's total order, from its bits; both zeros have one place."""
    return -(word & INT_MAX) if word >> 63 else word


def compare(opcode, left, right):
    for first, key in ((COMPARE, signed), (COMPARE_FLOAT, total_order), (COMPARE_COLUMNS, signed),
                       (COMPARE_FLOAT_COLUMNS, total_order), (COMPARE_UNSIGNED, lambda word: word)):
        if first <= opcode < first + 6:
            return COMPARISONS[opcode - first](key(left), key(right))
    raise AssertionError(opcode)


def run_program(program, row):
    """TRUE, FALSE or None; `row` has a word or None for each column."""
    stack = []
    for opcode, first, second, literal in program:
        if opcode == IS_NULL:
            stack.append(row[first] is None)
        elif opcode == NOT:
            top = stack.pop()
            stack.append(None if top is None else not top)
        elif opcode in (AND, OR):
            pair, decides = {stack.pop(), stack.pop()}, opcode == OR
            stack.append(decides if decides in pair else None if None in pair else not decides)
        elif opcode == CONSTANT:
            stack.append([False, True, None][literal])
        else:
            left = row[first]
            right = row[second] if 13 <= opcode <= 24 else literal
            stack.append(None if None in (left, right) else compare(opcode, left, right))
    (result,) = stack
    return result


def predicate_filter(rng):
    vectors = Vectors()

    def case(title, table, program, rows, *, malformed=False, stride=None, column_count=None):
        """`table` has a list of words or None for each column."""
        count = len(table)
        stride = (rows + 63) // 64 * 64 if stride is None else stride
        values, valid = [], []
        for column in table:
            # What stands under NULLs means nothing, and matches often.
            filled = [rng.choice([0, 1, 5]) if word is None else signed(word) for word in column]
            values += filled + [0] * (stride - len(column))
            bits = [word is not None for word in column]
            valid += bitmap(bits + [True] * (stride - len(column)))
        selected = [not malformed
                    and run_program(program, [column[row] for column in table]) is True
                    for row in range(rows)]
        words = []
        for opcode, first, second, literal in program:
            words += [opcode | first << 8 | second << 16, literal % 2**64]
        vectors.case(title).call("predicate_filter")
        vectors.array("columns", "i64", values)
        vectors.scalar("column_count", "u32", count if column_count is None else column_count)
        vectors.array("valid", "u64", valid).scalar("stride", "u32", stride)
        vectors.array("program", "u64", words).scalar("instructions", "u32", len(program))
        vectors.scalar("rows", "u32", rows).out("selection", "u64", bitmap(selected))

    def instruction(opcode, first=0, second=0, literal=0):
        return opcode, first, second, literal % 2**64

    edges = [0, 1, 5, 2**64 - 1, 2**63, 2**63 - 1, 2**63 + 1, 6, None]
    floats = [float_bits(f) for f in (0.0, -0.0, 1.5, -1.5, math.inf, -math.inf, 5e-324, -5e-324,
                                      1.7e308)]
    floats += [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF8000000000001, 0xFFF8000000000001, None]

    case("no rows", [[]], [instruction(COMPARE, literal=5)], 0)
    case("no columns, TRUE", [], [instruction(CONSTANT, literal=1)], 65)
    case("no columns, NULL", [], [instruction(CONSTANT, literal=2)], 65)
    for rows in ROW_COUNTS:
        column = [rng.choice(edges) for _ in range(rows)]
        case(f"{rows} rows", [column], [instruction(COMPARE, literal=5)], rows)
        case(f"{rows} rows, all", [column], [instruction(CONSTANT, literal=1)], rows)
    pairs = [(a, b) for a in edges for b in edges]
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    for comparison in range(6):
        for first, literal in ((COMPARE, 5), (COMPARE, INT_MIN), (COMPARE, -1),
                               (COMPARE_UNSIGNED, 2**63), (COMPARE_UNSIGNED, 5)):
            case(f"opcode {first + comparison}, literal {literal}", [edges],
                 [instruction(first + comparison, literal=literal)], len(edges))
        case(f"opcode {COMPARE_COLUMNS + comparison}", [left, right],
             [instruction(COMPARE_COLUMNS + comparison, 0, 1)], len(pairs))
    pairs = [(a, b) for a in floats for b in floats]
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    for comparison in range(6):
        for literal in (0.0, -0.0, 1.5, math.inf, math.nan):
            case(f"opcode {COMPARE_FLOAT + comparison}, literal {literal}", [floats],
                 [instruction(COMPARE_FLOAT + comparison, literal=float_bits(literal))],
                 len(floats))
        case(f"opcode {COMPARE_FLOAT_COLUMNS + comparison}", [left, right],
             [instruction(COMPARE_FLOAT_COLUMNS + comparison, 0, 1)], len(pairs))
    # Truth values of two columns: 1 TRUE, 0 FALSE, NULL.
    truths = [1, 0, None]
    left = [a for a in truths for _ in truths]
    right = truths * 3
    leaves = [instruction(COMPARE, 0, literal=1), instruction(COMPARE, 1, literal=1)]
    for opcode in (AND, OR):
        case(f"truth table {opcode}", [left, right], [*leaves, instruction(opcode)], 9)
        case(f"truth table {opcode}, negated", [left, right],
             [*leaves, instruction(opcode), instruction(NOT)], 9)
    case("NOT", [truths], [leaves[0], instruction(NOT)], 3)
    case("IS NULL", [truths], [instruction(IS_NULL)], 3)
    case("IS NOT NULL", [truths], [instruction(IS_NULL), instruction(NOT)], 3)
    sixteen = [[rng.choice([1, 5, None]) for _ in range(70)] for _ in range(16)]
    case("sixteen columns, full stack", sixteen,
         [instruction(COMPARE, c, literal=5) for c in range(16)] + [instruction(OR)] * 15, 70)
    case("a longer stride", [edges, edges], [instruction(COMPARE, 1, literal=5)], len(edges),
         stride=192)
    case("256 instructions", [edges], [leaves[0]] + [instruction(NOT)] * 255, len(edges))

    def tree(depth, columns):
        """A random condition, in postfix order."""
        kind = rng.randrange(6) if depth else rng.randrange(2)
        if kind == 0:
            return [instruction(rng.choice([COMPARE, COMPARE_FLOAT, COMPARE_UNSIGNED])
                                + rng.randrange(6), rng.randrange(columns),
                                literal=rng.choice([0, 1, 5, 2**63, float_bits(1.5)]))]
        if kind == 1:
            return [rng.choice([instruction(IS_NULL, rng.randrange(columns)),
                                instruction(CONSTANT, literal=rng.randrange(3)),
                                instruction(rng.choice([COMPARE_COLUMNS, COMPARE_FLOAT_COLUMNS])
                                            + rng.randrange(6), rng.randrange(columns),
                                            rng.randrange(columns))])]
        if kind == 2:
            return [*tree(depth - 1, columns), instruction(NOT)]
        return [*tree(depth - 1, columns), *tree(depth - 1, columns),
                instruction(rng.choice([AND, OR]))]

    for number in range(12):
        columns, rows = rng.randrange(1, 4), rng.choice([1, 20, 64, 65, 90])
        pool = [0, 1, 5, 2**63, 2**64 - 1, float_bits(1.5), None]
        table = [[rng.choice(pool) for _ in range(rows)] for _ in range(columns)]
        case(f"random {number}", table, tree(4, columns), rows)

    # More blocks of columns than memory is asked for ahead; a few rows of each tell them apart.
    long = [[5 if row % 64 in (row // 64, 20 + 3 * column) else 0 for row in range(750)]
            for column in range(3)]
    case("12 blocks of three columns", long,
         [instruction(COMPARE, 0, literal=5), instruction(COMPARE, 1, literal=5), instruction(AND),
          instruction(COMPARE_COLUMNS + 4, 2, 1), instruction(OR)], 750)

    def refuse(title, program, table=None, **options):
        table = table if table is not None else [[5] * 65]
        case(title, table, program, 65, malformed=True, **options)

    true = instruction(CONSTANT, literal=1)
    refuse("no instructions", [])
    refuse("opcode 0", [instruction(0)])
    refuse("opcode 36", [instruction(36)])
    refuse("opcode 255", [true, instruction(255)])
    refuse("constant 3", [instruction(CONSTANT, literal=3)])
    refuse("bits that mean nothing", [(CONSTANT | 1 << 24, 0, 0, 1)])
    # Each would be TRUE whatever is read there.
    or_true = [true, instruction(OR)]
    refuse("column 1 of 1", [instruction(COMPARE, 1, literal=5), *or_true])
    refuse("column 255", [instruction(IS_NULL, 255), *or_true])
    refuse("second column 1 of 1", [instruction(COMPARE_COLUMNS, 0, 1), *or_true])
    refuse("second column 16", [instruction(COMPARE_FLOAT_COLUMNS, 0, 16), *or_true])
    refuse("NOT on nothing", [instruction(NOT)])
    refuse("AND on one", [true, instruction(AND)])
    refuse("OR on one, then more", [true, instruction(OR), true])
    refuse("two values left", [true, true])
    refuse("stack of 17", [true] * 17 + [instruction(AND)] * 16)
    refuse("257 instructions", [true] + [instruction(NOT)] * 256)
    refuse("17 columns", [true], column_count=17)
    refuse("stride below rows", [true], table=[], stride=64)
    refuse("stride no multiple of 64", [true], table=[], stride=100)

    # More packets than a port takes requests. Few rows pass, and of each row group others.
    rows = 8 * 512 + 100
    wide = [[row // 512 + 1 if row % 512 in (7 * (row // 512), 400 + column) or row == 4195 else 0
             for row in range(rows)] for column in range(4)]
    wide[2][7] = wide[3][4195] = None
    case("9 row groups of four columns", wide,
         [instruction(COMPARE + 4, 3, literal=0), instruction(COMPARE_COLUMNS, 0, 1),
          instruction(COMPARE, 2, literal=0), instruction(NOT), instruction(AND),
          instruction(AND), instruction(COMPARE, 0, literal=9), instruction(OR)], rows)
    return vectors


def page_decode(rng):
    vectors = Vectors()
    # The page of docs/flash-format.md, section 11: this encoder makes the same bytes.
    documented = [1000, 1007, 1014, 1001, 1008, None, 1002, 1009, 1016, 1003, 1010, 1017, 1004,
                  1011, 1018, 1005, 1012, 1019, 1006, 1013]
    dump = pages.forbp(documented, zone=(1000, 1019))
    assert dump[:8].hex() == "464d5001cd87ca43" and dump[0x80:0x88].hex() == "00320000674c0000"

    def case(title, contents, expected=None, *, status=0, dictionary=(), capacity=None,
             dictionary_bytes=None, fits=True):
        """`expected` are the rows' values, None for NULL; without them the pages are refused."""
        values = expected or []
        capacity = len(values) if capacity is None else capacity
        size = struct.calcsize("<q") * len(dictionary)
        vectors.case(title).call("page_decode")
        vectors.array("pages", "u8", b"".join(contents))
        vectors.scalar("page_count", "u32", len(contents))
        vectors.array("dictionary", "u8", struct.pack(f"<{len(dictionary)}q", *dictionary))
        vectors.scalar("dictionary_bytes", "u32", size if dictionary_bytes is None
                       else dictionary_bytes)
        vectors.scalar("capacity", "u32", capacity)
        words = (capacity + 63) // 64
        if status:
            vectors.any("values", "i64", capacity).any("valid", "u64", words)
        elif not fits:
            vectors.out("values", "i64", unwritten("i64", capacity))
            vectors.out("valid", "u64", unwritten("u64", words))
        else:
            spare = capacity - len(values)
            bits = bitmap([value is not None for value in values])
            vectors.out("values", "i64", struct.pack(f"<{len(values)}q", *(v or 0 for v in values))
                        + unwritten("i64", spare))
            vectors.out("valid", "u64", struct.pack(f"<{len(bits)}Q", *bits)
                        + unwritten("u64", words - len(bits)))
        vectors.out("rows", "u32", [0 if status else len(values)])
        vectors.out("status", "u32", [status])

    def offsets(width, count, reference):
        largest = 2**width - 1
        return [reference + rng.choice([0, largest, rng.randrange(largest + 1)])
                for _ in range(count)]

    case("no pages", [])
    case("the documented page", [dump], documented)
    for rows in (*ROW_COUNTS, 255, 256, 257):
        values = [rng.randrange(100, 107) for _ in range(rows)]
        case(f"{rows} rows", [pages.forbp(values)], values)
        with_nulls = [None if rng.random() < 0.3 else value for value in values]
        case(f"{rows} rows, NULLs", [pages.forbp(with_nulls)], with_nulls)
    for width in (0, 1, 2, 5, 7, 8, 13, 16, 17, 24, 31, 32, 33, 40, 47, 63, 64):
        count = rng.choice([20, 70, 100])
        values = offsets(width, count, INT_MIN if width > 62 else rng.randrange(-(2**20), 2**20))
        case(f"width {width}", [pages.forbp(values, width=width)], values)
    values = offsets(11, 600, -5)
    case("three blocks", [pages.forbp(values)], values)
    # More words of validity than their FIFO holds.
    values = [0] * 1500
    values[-1], values[3], values[700], values[1490] = 1, None, None, None
    case("validity of 1500 rows", [pages.forbp(values)], values)
    values = [INT_MIN, INT_MAX, 0, -1, None, INT_MIN]
    case("extremes", [pages.forbp(values)], values)
    values = [7 + 86400 * rng.randrange(50) for _ in range(40)]
    values[0], values[1] = 7, 7 + 86400 * 49
    case("scaled", [pages.forbp(values, step=86400)], values)
    values = [INT_MIN + (2**62) * k for k in (3, 0, 1, 2, 3)]
    case("scaled, largest step", [pages.forbp(values, step=2**62)], values)
    case("constant", [pages.page(pages.CONST, 70, b"", reference=-42)], [-42] * 70)
    for content in (struct.pack("<i", -2), struct.pack("<q", INT_MIN)):
        value = int.from_bytes(content, "little", signed=True)
        case(f"constant of {len(content)} bytes",
             [pages.page(pages.CONST, 5, content, width=8)], [value] * 5)
    nulls = [True, False, True]
    case("constant with NULLs", [pages.page(pages.CONST, 3, b"", reference=9, nulls=nulls)],
         [None, 9, None])
    case("all NULL", [pages.page(pages.CONST, 66, b"", nulls=[True] * 66)], [None] * 66)
    case("all NULL, packed", [pages.forbp([5] * 10, null_count=10)], [None] * 10)
    for size, code in ((8, "q"), (4, "i")):
        values = [rng.randrange(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1)) for _ in range(67)]
        content = struct.pack(f"<67{code}", *values)
        case(f"raw, {size} bytes", [pages.raw(content, size)], values)
        case(f"raw, {size} bytes, one row", [pages.raw(content[:size], size)], values[:1])
    content = struct.pack("<3q", 1, 0, 3)
    case("raw with NULLs", [pages.raw(content, 8, [False, True, False])], [1, None, 3])
    values = [row if row % 12 == 5 or row > 1000 else 0 for row in range(1016)]
    case("a full raw page", [pages.raw(struct.pack("<1016q", *values), 8)], values)

    entries = [-5, 10, 2**40, INT_MAX]
    codes = [rng.randrange(4) for _ in range(70)]
    dictionary_page = pages.forbp(codes, encoding=pages.DICT)
    case("dictionary", [dictionary_page], [entries[code] for code in codes], dictionary=entries)
    case("dictionary, codes only", [dictionary_page], codes)
    with_null = [3, None, 2]
    case("dictionary with NULLs", [pages.forbp(with_null, encoding=pages.DICT)],
         [INT_MAX, None, 2**40], dictionary=entries)
    # Under the NULL stands a code that the dictionary does not have: it means nothing.
    case("a bad code under a NULL", [pages.page(pages.DICT, 3, pages.packed([0, 7, 1], 3), width=3,
                                                nulls=[False, True, False])],
         [-5, None, 10], dictionary=entries)
    case("bad code", [pages.forbp([0, 4], encoding=pages.DICT)], status=5, dictionary=entries,
         capacity=2)
    case("negative code", [pages.forbp([-1, 0], encoding=pages.DICT)], status=5,
         dictionary=entries, capacity=2)
    case("half an entry", [dictionary_page], status=5, dictionary=entries, dictionary_bytes=31,
         capacity=70)
    case("more entries than a page has", [dictionary_page], status=5, dictionary=[0] * 1017,
         capacity=70)

    first = [None if rng.random() < 0.5 else rng.randrange(9) for _ in range(37)]
    second = [rng.randrange(9) for _ in range(100)]
    third = [None] * 3
    several = [pages.forbp(first), pages.forbp(second, first_row=37),
               pages.page(pages.CONST, 3, b"", nulls=[True] * 3, first_row=137, flags=32),
               pages.page(pages.CONST, 60, b"", reference=8, first_row=140)]
    rows = first + second + third + [8] * 60
    case("several pages", several, rows)
    case("room for more", several, rows, capacity=len(rows) + 70)
    case("one row too many", several, rows, capacity=len(rows) - 1, fits=False)
    case("no room", several, rows, capacity=0, fits=False)

    def rows_of(runs):
        return [value for value, count in runs for _ in range(count)]

    for title, runs in (
            ("a run", [(-7, 70)]), ("a run of one row", [(INT_MIN, 1)]),
            ("runs of all lengths", [(n * n - 40, n) for n in (1, 2, 7, 8, 9, 1, 16, 17, 64, 3)]),
            ("runs of one row", [(rng.randrange(99), 1) for _ in range(9)]),
            ("31 runs", [(n % 3, 1 + n % 2) for n in range(31)]),
            ("32 runs", [(n % 5, 1 + n % 3) for n in range(32)]),
            ("300 runs", [(rng.randrange(2**9), rng.choice([1, 1, 2, 5])) for _ in range(300)]),
            ("runs of one number", [(5, 3), (5, 9)]),
            ("extreme runs", [(INT_MIN, 5), (INT_MAX, 12), (0, 4)])):
        case(title, [pages.rle(runs)], rows_of(runs))
    runs = [(4, 20), (-1, 30), (9, 1), (4, 19)]
    nulls = [row in (0, 19, 20, 50, 69) for row in range(70)]
    case("runs with NULLs", [pages.rle(runs, nulls=nulls)],
         [None if is_null else value for value, is_null in zip(rows_of(runs), nulls)])
    case("a longest run", [pages.rle([(3, 65535), (4, 1)], rows=65536)],
         status=0, capacity=0, expected=[3] * 65535 + [4], fits=False)
    case("all NULL, runs that mean nothing",
         [pages.rle([(1, 5)], count=0, rows=5, null_count=5)], [None] * 5)

    sizes = (1, 7, 8, 9, 3, 5, 15, 64, 2, 6, 70, 1)
    kinds = [lambda values: pages.forbp(values), lambda values: pages.rle([(v, 1) for v in values]),
             lambda values: pages.raw(struct.pack(f"<{len(values)}q", *values), 8)]
    contents, rows = [], []
    for number, size in enumerate(sizes):
        values = [rng.randrange(-9, 9) for _ in range(size)]
        contents.append(kinds[number % 3](values))
        rows += values
    case("pages of few rows", contents, rows)
    values = [[rng.choice([n, n + 1, None]) for n in range(1 + page % 5)] for page in range(34)]
    many = [pages.forbp(page) for page in values]
    case("34 pages", many, [value for page in values for value in page])
    bad_header = pages.changed(many[0], 0, b"X")
    bad_nulls = pages.changed(pages.forbp([1, None, 3]), 36, struct.pack("<I", 2))
    for title, count, places, status in (
            ("other NULLs in page 1, page 3 is none", 5, {1: bad_nulls, 3: bad_header}, 4),
            ("page 1 is none, other NULLs in page 3", 5, {1: bad_header, 3: bad_nulls}, 1),
            ("page 33 is none", 34, {33: bad_header}, 1),
            ("other NULLs in page 31, page 32 is none", 33, {31: bad_nulls, 32: bad_header}, 4)):
        case(title, [places.get(place, page) for place, page in enumerate(many[:count])],
             status=status, capacity=200)

    bad_runs = pages.rle([(1, 2), (2, 3)], ends=[1, 5])
    bad_code = pages.forbp([0, 4], encoding=pages.DICT)
    case("bad runs before a bad code", [dictionary_page, bad_runs, bad_code], status=7,
         dictionary=entries, capacity=77)
    case("a bad code before bad runs", [dictionary_page, bad_code, bad_runs], status=5,
         dictionary=entries, capacity=77)

    def refuse(title, status, *contents):
        case(title, contents, status=status, capacity=64)

    three = [(1, 2), (2, 3), (3, 4)]
    for title, ends in (("end in no order", [4, 1, 8]), ("end twice", [1, 1, 8]),
                        ("end early", [1, 4, 7]), ("end late", [1, 4, 9]),
                        ("end before the last does", [1, 8, 8]), ("end far behind", [65535, 4, 8]),
                        ("end nowhere", [65535, 65535, 65535])):
        refuse(f"runs {title}", 7, pages.rle(three, ends=ends))
    refuse("more runs than rows", 7, pages.rle([(n, 1) for n in range(9)], rows=5))
    refuse("no runs", 3, pages.rle(three, count=0))
    refuse("no runs and no numbers", 3, pages.page(pages.RLE, 9, bytes(64), width=2))
    refuse("more runs than ends", 3, pages.rle(three, count=32))
    refuse("65535 runs", 3, pages.rle(three, count=65535))
    refuse("runs, a block too many", 3,
           pages.page(pages.RLE, 9, bytes([1]) + bytes(63 + 96), width=2))
    refuse("runs without numbers", 3, pages.page(pages.RLE, 9, bytes([1]) + bytes(63), width=2))
    refuse("runs, width 65", 3,
           pages.page(pages.RLE, 9, bytes([1]) + bytes(63 + 65 * 32), width=65))
    refuse("runs without a byte", 3, pages.page(pages.RLE, 9, b"", width=0))

    good = pages.forbp([1, 2, 3])
    refuse("blank page", 1, bytes(8192))
    refuse("another version", 1, pages.changed(good, 3, b"\2"))
    refuse("the second page is bad", 1, good, pages.changed(good, 0, b"X"))
    refuse("encoding 0", 1, pages.changed(good, 8, b"\0"))
    refuse("encoding 8", 1, pages.changed(good, 8, b"\x08"))
    refuse("payload of 8129 bytes", 1, pages.changed(good, 14, struct.pack("<H", 8129)))
    refuse("payload of 65535 bytes", 1, pages.changed(good, 14, b"\xff\xff"))
    refuse("65537 rows", 1, pages.changed(good, 32, struct.pack("<I", 65537)))
    refuse("2^32 - 1 rows", 1, pages.changed(good, 32, b"\xff" * 4))
    refuse("rows beyond the segment", 1, pages.changed(good, 26, b"\xfe\xff"))
    refuse("more NULLs than rows", 1, pages.changed(good, 36, struct.pack("<I", 4)))
    for encoding in (pages.FSST, pages.RAWSTR):
        refuse(f"encoding {encoding}", 2, pages.changed(good, 8, bytes([encoding])))
    refuse("no rows", 2, pages.changed(good, 32, bytes(4)))
    refuse("auxiliary page", 2, pages.raw(bytes(16), 8, flags=pages.AUXILIARY))
    refuse("a long value", 2, pages.page(pages.RAW, 1, bytes(100), reference=9000,
                                         flags=pages.CONTINUES))
    refuse("raw, 16 bytes", 2, pages.raw(bytes(32), 16))
    refuse("raw, 0 bytes", 2, pages.page(pages.RAW, 2, b"", reference=0))
    refuse("raw, negative size", 2, pages.page(pages.RAW, 2, b"", reference=-8))
    refuse("constant of 3 bytes", 2, pages.page(pages.CONST, 2, b"abc", width=8))
    refuse("raw, a byte too few", 3, pages.page(pages.RAW, 2, bytes(15), reference=8))
    refuse("raw, more rows than bytes", 3, pages.page(pages.RAW, 1017, bytes(8128), reference=8))
    refuse("packed, a row of words too few", 3, pages.page(pages.FORBP, 3, bytes(32), width=2))
    refuse("packed, too many bytes", 3, pages.page(pages.FORBP, 3, bytes(96), width=2))
    refuse("width 65", 3, pages.page(pages.FORBP, 3, bytes(65 * 32), width=65))
    refuse("width 255", 3, pages.page(pages.FORBP, 3, bytes(8128), width=255))
    for name, step, v, size in (("no step", 0, 4, 128), ("65 bits", 1, 65, 65 * 32),
                                ("a step too large", 2**63, 2, 64), ("a block too few", 3, 4, 96)):
        data = pages.padded(struct.pack("<QB", step, v)) + bytes(size)
        refuse(f"scaled, {name}", 3, pages.page(pages.FORBP, 3, data, width=7, flags=pages.SCALED))
    refuse("scaled, no scale", 3, pages.page(pages.FORBP, 3, bytes(32), width=1,
                                             flags=pages.SCALED))
    refuse("no room for the bitmap", 3, pages.page(pages.FORBP, 3, bytes(32), width=1,
                                                   flags=pages.HAS_VALIDITY, null_count=3))
    refuse("bitmap without its NULLs", 4,
           pages.changed(pages.forbp([1, None, 3]), 36, struct.pack("<I", 2)))
    refuse("NULLs without a bitmap", 4, pages.changed(good, 36, struct.pack("<I", 2)))

    case("a bad code before a page that is none", [bad_code, bad_header], status=1,
         dictionary=entries, capacity=64)
    case("a bad code without room", [bad_code], [0, 0], dictionary=entries, capacity=1, fits=False)
    # In another order many words of validity wait for rows of other pages.
    nulls = [[row % 9 == page % 9 for row in range(70)] for page in range(34)]
    case("34 pages of 70 rows",
         [pages.page(pages.CONST, 70, b"", nulls=of_page) for of_page in nulls],
         [None if is_null else 0 for of_page in nulls for is_null in of_page])
    return vectors


def text_decode(rng):
    vectors = Vectors()
    # The page of docs/flash-format.md, section 11: this encoder makes the same bytes.
    documented = [b"flash", None, b"mesh", b"", b"pages go here", "é".encode()]

    def rows_of(texts, encode=bytes, **options):
        """A page of texts, None for NULL."""
        return pages.text([encode(text or b"") for text in texts],
                          nulls=[text is None for text in texts], **options)

    dump = rows_of(documented, zone=(-(2**63), 0x43A9000000000000))
    assert dump[4:8].hex() == "0bad005c" and dump[0x80:0x88].hex() == "000005042d000000"

    def case(title, contents, texts=None, *, status=0, table=None, table_bytes=None, capacity=None,
             byte_capacity=None, fits=True, byte_count=None, is_written=True):
        """`texts` are the rows, None for NULL; without them the pages are refused."""
        texts = texts or []
        found = [text or b"" for text in texts]
        ends, content = text_column(found)
        byte_count = len(content) if byte_count is None else byte_count
        capacity = len(texts) if capacity is None else capacity
        byte_capacity = len(content) if byte_capacity is None else byte_capacity
        table = b"" if table is None else table
        words = (capacity + 63) // 64
        vectors.case(title).call("text_decode")
        vectors.array("pages", "u8", b"".join(contents))
        vectors.scalar("page_count", "u32", len(contents))
        vectors.array("symbols", "u8", table)
        vectors.scalar("symbols_bytes", "u32", len(table) if table_bytes is None else table_bytes)
        vectors.scalar("capacity", "u32", capacity).scalar("byte_capacity", "u32", byte_capacity)
        if status or (not fits and is_written):
            vectors.any("offsets", "u32", capacity + 1).any("bytes", "u8", byte_capacity)
            vectors.any("valid", "u64", words)
        elif not fits:
            vectors.out("offsets", "u32", unwritten("u32", capacity + 1))
            vectors.out("bytes", "u8", unwritten("u8", byte_capacity))
            vectors.out("valid", "u64", unwritten("u64", words))
        else:
            bits = bitmap([text is not None for text in texts])
            vectors.out("offsets", "u32", struct.pack(f"<{len(ends)}I", *ends)
                        + unwritten("u32", capacity + 1 - len(ends)))
            vectors.out("bytes", "u8", content + unwritten("u8", byte_capacity - len(content)))
            vectors.out("valid", "u64", struct.pack(f"<{len(bits)}Q", *bits)
                        + unwritten("u64", words - len(bits)))
        vectors.out("rows", "u32", [0 if status else len(texts)])
        vectors.out("byte_count", "u32", [0 if status else byte_count])
        vectors.out("status", "u32", [status])

    known = [b"a", b"th", b"the", b"ing ", b"flash", b"pages ", b"symbols", b"encoding"]
    aux = pages.symbols(known)

    def compress(text):
        return pages.codes(text, known)

    def some_text(limit):
        """Of symbols, and bytes without one."""
        text = b""
        while len(text) < limit:
            text += rng.choice([*known, b"\xff", b"\0", b"xyz", b"t"])
        return text[: rng.randrange(limit + 1)]

    case("no pages", [], [])
    case("no pages, symbols", [], [], table=aux)
    case("the documented page", [dump], documented)
    for rows in (1, 31, 32, 33, 100):
        texts = [bytes(rng.choice(b"abcdef") for _ in range(rng.randrange(12)))
                 for _ in range(rows)]
        case(f"{rows} rows", [rows_of(texts)], texts)
        texts = [None if rng.random() < 0.3 else some_text(16) for _ in range(rows)]
        case(f"{rows} rows, NULLs, codes", [rows_of(texts, compress, encoding=pages.FSST)], texts,
             table=aux)
    for width in range(17):
        longest = min(2**width - 1, 300)
        texts = [b"lo" + bytes(rng.choice([0, longest, rng.randrange(longest + 1)]))
                 for _ in range(40 if width < 8 else 20)]
        texts = [text[:-1] + b"!" for text in texts]
        case(f"lengths of {width} bits", [rows_of(texts, width=width)], texts)
    for width in (5, 7, 9, 11, 13):
        count = 512 // width + 4
        texts = [bytes(min(2**width - 1, 700) if row > count - 11 else row % 3 == 1)
                 for row in range(count)]
        case(f"lengths of {width} bits in two beats", [rows_of(texts, width=width)], texts)
    # Starts of rows take a beat, or a little more.
    for rows in (1024, 1057):
        texts = [b"x" * (row > 980 and (row % 7 == 3 or row % 32 == 0)) for row in range(rows)]
        case(f"short texts in {rows} rows", [rows_of(texts, width=rows % 32 + 5)], texts)
    texts = [None if row % 97 == 5 else b"a" * (row in (1250, 1299)) for row in range(1300)]
    case("validity of 1300 rows", [rows_of(texts, compress, encoding=pages.FSST)], texts, table=aux)
    case("3000 empty texts", [rows_of([b""] * 3000)], [b""] * 3000)
    case("3000 empty texts, codes", [rows_of([b""] * 3000, encoding=pages.FSST)], [b""] * 3000,
         table=aux)
    zeros = bytes(200) + b"end"
    case("a full page", [rows_of([zeros * 10, zeros * 20, zeros * 9 + bytes(147)])],
         [zeros * 10, zeros * 20, zeros * 9 + bytes(147)])
    texts = [b"one", b"two", b"six"]
    case("texts of one length", [rows_of(texts)], texts)

    case("nothing but escapes", [rows_of([b"XYZW", b"V"], compress, encoding=pages.FSST)],
         [b"XYZW", b"V"], table=aux)
    case("no symbols", [rows_of([b"a\xff", b"", b"th"], lambda text: pages.codes(text, []),
                                encoding=pages.FSST)], [b"a\xff", b"", b"th"],
         table=pages.symbols([]))
    # Escapes at each place of a step, the byte behind them a code, an escape, or none.
    texts = [b"a" * before + byte + b"a" * 9 for before in range(9)
             for byte in (b"\xff", b"\x07", b"\xff\xff\xff", b"\xfe\xff")]
    case("escapes at each place", [rows_of(texts, compress, encoding=pages.FSST)], texts, table=aux)
    texts = [symbol * count for symbol in known for count in (1, 2, 7, 8, 9, 17)]
    case("symbols of all lengths", [rows_of(texts, compress, encoding=pages.FSST)], texts,
         table=aux)
    for count in (9, 64, 65, 255):
        many = [bytes([n, 1 + n % 9, *range(n % 7)]) for n in range(count)]
        texts = [many[n] + many[n * 7 % count] for n in range(0, count, 4)]
        case(f"{count} symbols", [rows_of(texts, lambda text, many=many: pages.codes(text, many),
                                          encoding=pages.FSST)], texts, table=pages.symbols(many))
    case("codes without a symbol",
         [pages.text([b"\x08\x00\xfe", b"\x64", b"\xff\xc8\x07"], encoding=pages.FSST)],
         [b"a", b"", b"\xc8encoding"], table=aux)
    # More than two bursts, which are cut within a step, and a step that ends one.
    blanks = [bytes(8), b"end", b"0" + bytes(5)]
    blank_aux = pages.symbols(blanks)
    for title, codes in (("bursts", [b"\0" * 500 + b"\1", b"\0" * 700 + b"\2", b"", b"\0" * 300]),
                         ("a burst", [b"\0" * 512]), ("two bursts", [b"\0" * 1024]),
                         ("a burst and a byte", [b"\0" * 512 + b"\xff!"])):
        texts = [b"".join(blanks[code] for code in row) if 255 not in row
                 else bytes(4096) + b"!" for row in codes]
        case(title, [pages.text(codes, encoding=pages.FSST)], texts, table=blank_aux)

    for length in (0, 1, 63, 64, 65):
        value = (b"<" + bytes(max(length - 2, 0)) + b">")[:length]
        case(f"constant of {length} bytes", [pages.page(pages.CONST, 5, value, width=8)],
             [value] * 5)
        nulls = [rng.random() < 0.5 for _ in range(70)]
        nulls[0], nulls[69] = False, True
        case(f"constant of {length} bytes with NULLs",
             [pages.page(pages.CONST, 70, value, width=8, nulls=nulls)],
             [None if is_null else value for is_null in nulls])
    longest = b"<" + bytes(8126) + b">"
    case("a longest constant", [pages.page(pages.CONST, 3, longest, width=8)], [longest] * 3)
    case("all NULL", [pages.page(pages.CONST, 66, b"", nulls=[True] * 66)], [None] * 66)
    case("all NULL, bytes that mean nothing",
         [pages.page(pages.CONST, 9, b"nothing", width=8, null_count=9)], [None] * 9)
    case("all NULL, texts", [pages.text([b""] * 9, null_count=9)], [None] * 9)

    dictionary = [b"", b"amber", b"green", b"red"]
    case("a dictionary", [pages.text(dictionary, flags=pages.AUXILIARY)], dictionary)

    parts = [b"begin" + bytes(300), bytes(100) + b"between" + bytes(90), b"end"]
    case("a long value", pages.long_value(parts), [b"".join(parts)])
    case("a long value whose last page is empty", pages.long_value([b"some", b""]), [b"some"])
    case("long values between others",
         [rows_of([b"before", None]), *pages.long_value(parts), *pages.long_value(parts[1:]),
          rows_of([None, b"behind"])],
         [b"before", None, b"".join(parts), b"".join(parts[1:]), None, b"behind"])
    texts = [some_text(90) + b"the" for _ in range(4)]
    compressed = [compress(text) for text in texts]
    case("a long value of codes", pages.long_value(compressed, pages.FSST), [b"".join(texts)],
         table=aux)
    case("codes, long and short", [pages.text(compressed, encoding=pages.FSST),
                                   *pages.long_value(compressed[:2], pages.FSST),
                                   pages.text(compressed[2:], encoding=pages.FSST)],
         [*texts, b"".join(texts[:2]), *texts[2:]], table=aux)
    case("a long value that is NULL", [pages.text([b""], flags=pages.CONTINUES, null_count=1),
                                       pages.page(pages.RAWSTR, 0, b"")], [None])

    several, rows = [], []
    for number, size in enumerate((1, 7, 8, 33, 3, 5, 15, 40, 2, 6, 9, 1)):
        texts = [None if rng.random() < 0.2 else some_text(30) for _ in range(size)]
        kind = number % 4
        if kind == 2:
            texts = [texts[0] or b"a"] * size
            several.append(pages.page(pages.CONST, size, texts[0], width=8))
        elif kind == 3 and size % 2:
            texts = [None] * size
            several.append(pages.page(pages.CONST, size, b"", null_count=size))
        else:
            several.append(rows_of(texts, compress if kind else bytes,
                                   encoding=pages.FSST if kind else pages.RAWSTR))
        rows += texts
    case("several pages", several, rows, table=aux)
    case("room for more", several[:2], rows[:8], table=aux, capacity=90, byte_capacity=500)
    # What codes stand for is not known then.
    least = sum(len(text or b"") for text in documented)
    case("one row too many", [dump], documented, capacity=5, byte_capacity=least, fits=False,
         is_written=False)
    case("one byte too many", [dump], documented, byte_capacity=least - 1, fits=False,
         is_written=False)
    case("no room", [dump], documented, capacity=0, byte_capacity=0, fits=False, is_written=False)
    coded = rows_of([b"the pages"] * 30, compress, encoding=pages.FSST)
    for byte_capacity in (0, 1, 63, 64, 65, 128, 269):
        case(f"room for {byte_capacity} of 270 bytes", [coded], [b"the pages"] * 30, table=aux,
             byte_capacity=byte_capacity, fits=False)
    case("room for a burst of two", [pages.text([b"\0" * 1024], encoding=pages.FSST)],
         [bytes(8192)], table=blank_aux, byte_capacity=4096, fits=False)
    case("rows and codes too many", [dump, coded], [*documented, *[b"the pages"] * 30], table=aux,
         capacity=10, byte_capacity=500, byte_count=least, fits=False, is_written=False)

    texts = [[some_text(3) for _ in range(1 + page % 5)] for page in range(34)]
    many = [rows_of(page) for page in texts]
    case("34 pages", many, [text for page in texts for text in page])
    bad_header = pages.changed(many[0], 0, b"X")
    bad_nulls = pages.changed(rows_of([b"x", None, b"yz"]), 36, struct.pack("<I", 2))
    for title, count, places, status in (
            ("other NULLs in page 1, page 3 is none", 5, {1: bad_nulls, 3: bad_header}, 4),
            ("page 1 is none, other NULLs in page 3", 5, {1: bad_header, 3: bad_nulls}, 1),
            ("page 33 is none", 34, {33: bad_header}, 1),
            ("other NULLs in page 31, page 32 is none", 33, {31: bad_nulls, 32: bad_header}, 4)):
        case(title, [places.get(place, page) for place, page in enumerate(many[:count])],
             status=status, capacity=200, byte_capacity=2000)

    def refuse(title, status, *contents, **options):
        needs_symbols = any(content[8] == pages.FSST for content in contents)
        table = options.pop("table", aux if needs_symbols else None)
        case(title, contents, status=status, capacity=64, byte_capacity=1000, table=table,
             **options)

    bad_starts = rows_of([b"ab"] * 40, starts=[0, 65])
    bad_escape = pages.text([b"\0\xff", b"\0"], encoding=pages.FSST)
    refuse("a start elsewhere", 7, bad_starts)
    refuse("the first start elsewhere", 7, rows_of([b"abc"], starts=[1]))
    refuse("a start far behind", 7, rows_of([b"ab"] * 40, starts=[0, 65535]))
    refuse("a start elsewhere, codes", 7, pages.text([b"\0"] * 40, encoding=pages.FSST,
                                                   starts=[0, 31]))
    refuse("lengths short of the bytes", 7, rows_of([b"abc", b"defg"], least=2, width=1))
    refuse("lengths short of the codes", 7, pages.text([b"\0" * 30, b"\0" * 40], width=3, least=30,
                                                       encoding=pages.FSST))
    refuse("lengths beyond the bytes", 7,
           pages.page(pages.RAWSTR, 2, pages.text_data([b"abc", b"def"])[0][:-1], reference=3))
    refuse("lengths beyond the codes", 7,
           pages.page(pages.FSST, 3, pages.text_data([b"\0" * 9] * 3)[0][:-10], reference=9))
    refuse("longest lengths", 7,
           pages.page(pages.RAWSTR, 60, bytes(2) * 2 + b"\xff" * 120 + bytes(68 + 90), width=16,
                      reference=90))
    refuse("rows without bytes", 7, pages.page(pages.RAWSTR, 64, bytes(64 + 5), reference=5))
    refuse("an escape ends a row", 8, bad_escape)
    refuse("an escape ends the page", 8, pages.text([b"\0", b"\xff"], encoding=pages.FSST))
    refuse("an escape ends a step and a row", 8,
           pages.text([b"\0" * 7 + b"\xff", b"\0"], encoding=pages.FSST))
    refuse("three escapes end a row", 8, pages.text([b"\xff" * 3, b"\0"], encoding=pages.FSST))
    refuse("an escape ends a part", 8, *pages.long_value([b"\0\xff", b"a"], pages.FSST))
    refuse("an escape ends a later part", 8, *pages.long_value([b"\0", b"\xff", b"\0"], pages.FSST))
    refuse("an escape ends the last part", 8, *pages.long_value([b"\0", b"\0\xff"], pages.FSST))
    case("an escaped escape ends a row", [pages.text([b"\xff\xff", b"\0"], encoding=pages.FSST)],
         [b"\xff", b"a"], table=aux)
    refuse("bad lengths before an escape", 7, bad_starts, bad_escape)
    refuse("an escape before bad lengths", 8, bad_escape, bad_starts)

    good = rows_of([b"one", b"three"])
    coded = rows_of([b"the flash"], compress, encoding=pages.FSST)
    refuse("no symbols for codes", 5, coded, table=None)
    refuse("no symbols for codes in the second page", 5, good, coded, table=None)
    for title, page in (("of bytes", pages.text(known, flags=pages.AUXILIARY)),
                        ("without its flag", pages.symbols(known, flags=0)),
                        ("with a bitmap", pages.symbols(known, flags=3)),
                        ("of 256", pages.symbols([b"\0"] * 256, spare=b"\0")),
                        ("one too many", pages.symbols(known, rows=9)),
                        ("one too few", pages.symbols(known, rows=7)),
                        ("of no length", pages.symbols(known, lengths=[1, 2, 0, 4, 5, 6, 7, 8])),
                        ("of 9 bytes", pages.symbols(known, lengths=[1, 2, 3, 4, 5, 6, 7, 9])),
                        ("of 255 bytes", pages.symbols(known, lengths=[255, 2, 3, 4, 5, 6, 7, 8])),
                        ("of no page", pages.changed(aux, 0, b"X")),
                        ("of 65535 bytes", pages.changed(aux, 14, b"\xff\xff"))):
        refuse(f"symbols {title}", 5, coded, table=page)
    for size in (1, 64, 8191):
        refuse(f"{size} bytes of symbols", 5, good, table_bytes=size)

    refuse("a part without a beginning", 9, pages.page(pages.RAWSTR, 0, b"part"))
    refuse("a part behind rows", 9, good, pages.page(pages.RAWSTR, 0, b"part"))
    refuse("a value without an end", 9, *pages.long_value([b"one", b"two"])[:1])
    refuse("a value without an end behind a part", 9, *pages.long_value([b"one", b"two", b"x"])[:2])
    refuse("rows within a value", 9, *pages.long_value([b"one", b"two"])[:1], good)
    refuse("codes behind bytes", 9, pages.long_value([b"one", b"two"])[0],
           pages.page(pages.FSST, 0, b"\0"))
    refuse("two rows go on", 9, pages.text([b"a", b"b"], flags=pages.CONTINUES),
           pages.page(pages.RAWSTR, 0, b"c"))
    refuse("a constant goes on", 9, pages.page(pages.CONST, 1, b"x", width=8,
                                               flags=pages.CONTINUES))

    refuse("blank page", 1, bytes(8192))
    refuse("another version", 1, pages.changed(good, 3, b"\2"))
    refuse("the second page is bad", 1, good, pages.changed(good, 0, b"X"))
    refuse("encoding 0", 1, pages.changed(good, 8, b"\0"))
    refuse("encoding 8", 1, pages.changed(good, 8, b"\x08"))
    refuse("payload of 8129 bytes", 1, pages.changed(good, 14, struct.pack("<H", 8129)))
    refuse("payload of 65535 bytes", 1, pages.changed(good, 14, b"\xff\xff"))
    refuse("65537 rows", 1, pages.changed(good, 32, struct.pack("<I", 65537)))
    refuse("2^32 - 1 rows", 1, pages.changed(good, 32, b"\xff" * 4))
    refuse("rows beyond the segment", 1, pages.changed(good, 26, b"\xff\xff"))
    refuse("more NULLs than rows", 1, pages.changed(good, 36, struct.pack("<I", 4)))
    for encoding in (pages.RAW, pages.FORBP, pages.DICT, pages.RLE):
        refuse(f"encoding {encoding}", 2, pages.changed(good, 8, bytes([encoding])))
    refuse("a number", 2, pages.page(pages.CONST, 2, b"", reference=5))
    refuse("a constant of no rows", 2, pages.page(pages.CONST, 0, b"x", width=8))
    refuse("auxiliary page of codes", 2, aux)
    refuse("auxiliary page without rows", 2, pages.page(pages.RAWSTR, 0, b"",
                                                        flags=pages.AUXILIARY))
    refuse("auxiliary page that goes on", 2, pages.text([b"x"], flags=pages.AUXILIARY
                                                        | pages.CONTINUES))
    refuse("no room for the lengths", 3, pages.page(pages.RAWSTR, 3, bytes(63), reference=0))
    refuse("no room for the starts", 3, pages.page(pages.RAWSTR, 65536, bytes(64), reference=0))
    refuse("lengths of 17 bits", 3, pages.page(pages.RAWSTR, 3, bytes(128), width=17))
    refuse("lengths of 255 bits", 3, pages.page(pages.FSST, 3, bytes(8128), width=255))
    refuse("a negative length", 3, pages.page(pages.RAWSTR, 3, bytes(128), reference=-1))
    refuse("a length beyond the data", 3, pages.page(pages.RAWSTR, 1, bytes(64), reference=65))
    refuse("a length of 2^32", 3, pages.page(pages.RAWSTR, 1, bytes(64), reference=2**32))
    refuse("no room for the bitmap", 3, pages.page(pages.RAWSTR, 3, bytes(32),
                                                   flags=pages.HAS_VALIDITY, null_count=3))
    refuse("bitmap without its NULLs", 4,
           pages.changed(rows_of([b"a", None, b"b"]), 36, struct.pack("<I", 2)))
    refuse("NULLs without a bitmap", 4, pages.changed(good, 36, struct.pack("<I", 1)))
    # 9 pages of 65536 rows of 8128 bytes.
    refuse("more bytes than can be counted", 6,
           *[pages.page(pages.CONST, 65536, bytes(8128), width=8)] * 9)
    case("other NULLs without room", [pages.changed(rows_of([b"a", None, b"b"]), 36,
                                                    struct.pack("<I", 2))],
         status=4, capacity=0)
    case("no symbols for codes without room", [coded], status=5, capacity=0)
    return vectors


def fgrep8(rng):
    vectors = Vectors()

    def case(title, texts, patterns, lengths=None):
        offsets, data = text_column(texts)
        slots = [pattern.ljust(64, b"\0")[:64] for pattern in patterns]
        slots += [bytes(64)] * (8 - len(slots))
        lengths = [len(p) for p in patterns] if lengths is None else lengths
        lengths = lengths + [0] * (8 - len(lengths))
        matches = []
        for text in texts:
            bits = [0 < length <= 64 and slot[:length] in text
                    for slot, length in zip(slots, lengths)]
            matches.append(sum(bit << p for p, bit in enumerate(bits)))
        vectors.case(title).call("fgrep8")
        vectors.array("text_offsets", "u32", offsets).array("text_bytes", "u8", data)
        vectors.array("patterns", "u8", b"".join(slots)).array("lengths", "u32", lengths)
        vectors.scalar("rows", "u32", len(texts)).out("matches", "u8", matches)

    words = [b"flash", b"mesh", b"as", b"sh", b"a", b"\0\xff", b"shm", b"x"]
    case("no rows", [], words)
    case("no patterns", [b"flash", b""], [])
    case("eight patterns", [b"flashmesh", b"", b"mesh", b"hsa", b"\0\xff\0", b"flas", b"xx"], words)
    case("a match does not go on in the next row", [b"fla", b"sh", b"me", b"sh"], words)
    case("unused slots between", [b"ab", b"b", b"c"], [b"", b"b", b"", b"", b"ab", b"", b"", b"c"])
    case("too long for a slot", [b"a" * 70, b""], [b"a" * 64, b"a" * 64, b"a"], [65, 64, 2**32 - 1])
    case("64 bytes", [b"a" * 63, b"a" * 64, b"a" * 63 + b"b", b"b" + b"a" * 64],
         [b"a" * 64, b"a" * 63 + b"b", b"a" * 63])
    for rows in ROW_COUNTS:
        texts = [bytes(rng.choice(b"ab\0") for _ in range(rng.randrange(30))) for _ in range(rows)]
        patterns = [bytes(rng.choice(b"ab\0") for _ in range(length)) for length in range(1, 9)]
        case(f"{rows} rows", texts, patterns)
    return vectors


def hamming_nearest(rng):
    vectors = Vectors()

    def case(title, codes, query, k, selected=None, refused=False):
        selected = [True] * len(codes) if selected is None else selected
        ranked = sorted((sum((a ^ b).bit_count() for a, b in zip(code, query)), row)
                        for row, code in enumerate(codes) if selected[row])
        nearest = [] if refused else ranked[:k]
        spare = unwritten("u32", k - len(nearest))
        vectors.case(title).call("hamming_nearest")
        vectors.array("codes", "u8", b"".join(codes)).scalar("code_bytes", "u32", len(query))
        vectors.array("selected", "u64", bitmap(selected)).array("query", "u8", query)
        vectors.scalar("k", "u32", k).scalar("rows", "u32", len(codes))
        vectors.out("result_rows", "u32",
                    struct.pack(f"<{len(nearest)}I", *(row for _, row in nearest)) + spare)
        vectors.out("result_distances", "u32",
                    struct.pack(f"<{len(nearest)}I", *(far for far, _ in nearest)) + spare)
        vectors.out("found", "u32", [len(nearest)])

    def codes(count, size):
        return [rng.randbytes(size) for _ in range(count)]

    case("no rows", [], b"abcd", 3)
    case("no neighbours wanted", codes(5, 8), bytes(8), 0)
    case("codes without bytes", [b""] * 5, b"", 3)
    for size in (1, 7, 8, 9, 16, 31):
        case(f"codes of {size} bytes", codes(40, size), rng.randbytes(size), 5)
    for rows in ROW_COUNTS:
        case(f"{rows} rows", codes(rows, 8), rng.randbytes(8), 10)
        case(f"{rows} rows, some selected", codes(rows, 8), rng.randbytes(8), 10,
             [rng.random() < 0.4 for _ in range(rows)])
    case("ties", [bytes([1 << row % 8]) for row in range(70)], b"\0", 20)
    case("ties at the end of the list", [b"\3", b"\1", b"\2", b"\1", b"\0", b"\4"], b"\0", 3)
    case("none selected", codes(70, 4), bytes(4), 5, [False] * 70)
    case("as many as are wanted", codes(7, 4), bytes(4), 7)
    case("farthest and nearest", [b"\xff" * 32, bytes(32), b"\xff" * 32], bytes(32), 3)
    case("8 KiB, all bits differ", [b"\xff" * 8192, bytes(8192)], bytes(8192), 2)
    case("1024 neighbours", codes(1100, 2), rng.randbytes(2), 1024)
    case("1025 neighbours", codes(3, 2), bytes(2), 1025, refused=True)
    case("codes of 8193 bytes", [bytes(8193)], bytes(8193), 1, refused=True)
    return vectors


def graph_step(rng):
    vectors = Vectors()

    def case(title, lists, vertices, visited=(), capacity=None, first=0):
        """`first` neighbours lie before the first list."""
        before = [vertex in visited for vertex in range(vertices)]
        after = list(before)
        reached = []
        for number, vertex in ((number, v) for number, one in enumerate(lists) for v in one):
            if vertex < vertices and not after[vertex]:
                after[vertex] = True
                reached.append((vertex, number))
        capacity = len(reached) if capacity is None else capacity
        offsets = [first]
        for one in lists:
            offsets.append(offsets[-1] + len(one))
        written = reached[:capacity]
        vectors.case(title).call("graph_step")
        vectors.array("list_offsets", "u64", offsets)
        vectors.array("neighbours", "u32",
                      [1] * first + [vertex for one in lists for vertex in one])
        vectors.scalar("lists", "u32", len(lists))
        vectors.inout("visited", "u64", bitmap(before), bitmap(after))
        vectors.scalar("vertices", "u32", vertices).scalar("capacity", "u32", capacity)
        for name, values in zip(("next", "next_list"), zip(*written) if written else ((), ())):
            vectors.out(name, "u32", struct.pack(f"<{len(values)}I", *values)
                        + unwritten("u32", capacity - len(values)))
        vectors.out("next_length", "u32", [len(reached)])

    case("no lists", [], 10)
    case("empty lists", [[], [], []], 10)
    case("no vertices", [[0, 1]], 0)
    case("one edge", [[3]], 10)
    case("in the order of first occurrence", [[5, 2, 5], [2, 9, 1], [1, 5]], 10)
    case("visited vertices", [[0, 1, 2], [63, 64, 65]], 66, {1, 64})
    case("a loop", [[4, 4, 4]], 5, {4})
    case("no such vertices", [[10, 9, 2**32 - 1, 64, 0]], 10)
    case("room for more", [[1, 2]], 10, capacity=5)
    case("no room", [[1, 2, 1]], 10, capacity=0)
    case("less room than needed", [[7, 2, 7], [3, 8, 1]], 10, capacity=3)
    for vertices in ROW_COUNTS:
        lists = [[rng.randrange(vertices + 2) for _ in range(rng.randrange(6))] for _ in range(20)]
        case(f"{vertices} vertices", lists, vertices, {rng.randrange(vertices)})
    lists = [[rng.randrange(500) for _ in range(rng.randrange(20))] for _ in range(60)]
    case("many", lists, 500, set(rng.sample(range(500), 100)))
    case("a list that is empty before one that is not", [[], [1], [], [1, 0]], 2)
    for first in (5, 15, 16, 31):
        case(f"lists from neighbour {first} on", [[3, 0], list(range(20)), [7]], 40, first=first)
    # A vertex again, and another of its word, so many neighbours behind it: reads and writes of the
    # bitmap are under way meanwhile.
    for distance in (1, 2, 31, 32, 33, 62, 63, 64, 65, 96):
        others = [64 * word for word in range(1, distance)]
        case(f"again after {distance}", [[0, *others, 0], [1]], 64 * distance + 1)
        case(f"its word after {distance}", [[0, *others], [1, 64, 0]], 64 * distance + 1)
    some = set(range(0, 700, 3))
    case("visited and new ones, far behind each other", [[*range(700)], [*range(699, -1, -7)]], 700,
         some)
    return vectors


def key_lookup(rng):
    vectors = Vectors()

    def entry_page(entries, **options):
        content = b"".join(h.to_bytes(8, "big") + struct.pack("<I", row) for h, row in entries)
        return pages.raw(content, 12, zone=tuple(e[0] - 2**63 for e in (entries[0], entries[-1])),
                         **options)

    def case(title, contents, entries, hashes, refused=False):
        vectors.case(title).call("key_lookup")
        vectors.array("pages", "u8", b"".join(contents))
        vectors.scalar("page_count", "u32", len(contents))
        vectors.array("hashes", "u64", hashes).scalar("keys", "u32", len(hashes))
        if refused:
            for name in ("counts", "positions", "rows"):
                vectors.out(name, "u32", unwritten("u32", len(hashes)))
        else:
            found = [[(at, row) for at, (h, row) in enumerate(entries) if h == wanted]
                     for wanted in hashes]
            vectors.out("counts", "u32", [len(equal) for equal in found])
            vectors.out("positions", "u32", [e[0][0] if e else NOT_FOUND for e in found])
            vectors.out("rows", "u32", [e[0][1] if e else NOT_FOUND for e in found])
        vectors.out("status", "u32", [int(refused)])

    def part(entries, *sizes):
        """Pages of so many entries each."""
        contents, at = [], 0
        for size in sizes:
            contents.append(entry_page(entries[at : at + size], first_row=at))
            at += size
        assert at == len(entries)
        return contents

    case("no pages", [], [], [0, 5])
    one = [(5, 3)]
    case("one entry", part(one, 1), one, [5, 4, 6, 0, 2**64 - 1])
    case("no keys", part(one, 1), one, [])

    def alone(hash_, row, **options):
        """An entry alone in its chunk: the store makes a constant of it."""
        content = hash_.to_bytes(8, "big") + struct.pack("<I", row)
        return pages.page(pages.CONST, 1, content, **{"width": 8, **options})

    case("one entry as a constant", [alone(5, 3)], one, [5, 4, 6])
    two = [(5, 3), (5, 4)]
    case("the last entry as a constant", [*part(one, 1), alone(5, 4)], two, [5, 4, 6])
    ends = [(0, 9), (0, 12), (2**63 - 1, 1), (2**63, 0), (2**64 - 1, 7), (2**64 - 1, 8)]
    case("least and greatest hash", part(ends, 2, 4), ends,
         [0, 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2, 0])
    spread = sorted((rng.choice([10, 20, 30, 40]), row) for row in range(40))
    for sizes in ((40,), (10, 10, 10, 10), (1, 38, 1), (3, 1, 1, 35)):
        case(f"equal hashes over pages of {sizes}", part(spread, *sizes), spread,
             [10, 20, 30, 40, 15, 45, 5])
    many = sorted((rng.getrandbits(64), row) for row in range(677 + 300))
    hashes = [h for h, _ in rng.sample(many, 60)] + [rng.getrandbits(64) for _ in range(20)]
    case("a full page and more", part(many, 677, 300), many,
         [*hashes, many[676][0], many[677][0], many[0][0], many[-1][0]])
    short = sorted((rng.getrandbits(64), row) for row in range(70))
    for keys in ROW_COUNTS:
        case(f"{keys} keys", part(short, 30, 40), short,
             [rng.choice(short)[0] for _ in range(keys)])

    good = entry_page(one)
    for title, content in (
            ("blank", bytes(8192)),
            ("another encoding", pages.forbp([5, 6])),
            ("entries of 8 bytes", pages.raw(bytes(16), 8)),
            ("with NULLs", pages.raw(bytes(24), 12, [True, False])),
            ("all NULL", pages.raw(bytes(24), 12, null_count=2)),
            ("auxiliary", pages.raw(bytes(24), 12, flags=pages.AUXILIARY)),
            ("continues", pages.raw(bytes(24), 12, flags=pages.CONTINUES)),
            ("no entries", pages.raw(b"", 12)),
            ("a constant without bytes", alone(5, 3, width=0)),
            ("a constant of two entries", pages.page(pages.CONST, 2, bytes(24), width=8)),
            ("more entries than bytes", pages.changed(good, 32, struct.pack("<I", 2))),
            ("2^32 - 1 entries", pages.changed(good, 32, b"\xff" * 4)),
            ("a payload longer than a page", pages.changed(
                pages.changed(good, 32, struct.pack("<I", 700)), 14, struct.pack("<H", 8400)))):
        case(f"hostile: {title}", [good, content], [], [5, 6], refused=True)
    case("hostile: before one that is sound", [bytes(8192), good], [], [5], refused=True)
    case("hostile: page 32", [good] * 32 + [bytes(8192)], [], [5], refused=True)
    singles = [(3 * number, number) for number in range(40)]
    case("40 pages", part(singles, *[1] * 40), singles, [0, 3, 4, 96, 117, 118])
    case("1025 pages", [bytes(8192)] * 1025, [], [5], refused=True)
    return vectors


def read_modify_write(rng):
    vectors = Vectors()
    names = {"add": 1, "and": 2, "or": 3, "xor": 4, "exchange": 5, "compare": 6}

    def case(title, words, page_count, operations):
        """`words` by (page, byte), the others are zero."""
        before = bytearray(8192 * page_count)
        for (page, byte), word in words.items():
            struct.pack_into("<Q", before, 8192 * page + byte, word)
        after, previous = bytearray(before), []
        for page, byte, opcode, operand, expected in operations:
            if page >= page_count or byte > 8184 or byte % 8 or not 1 <= opcode <= 6:
                previous.append(2**64 - 1)
                continue
            (word,) = struct.unpack_from("<Q", after, 8192 * page + byte)
            previous.append(word)
            word = {1: (word + operand) % 2**64, 2: word & operand, 3: word | operand,
                    4: word ^ operand, 5: operand,
                    6: operand if word == expected else word}[opcode]
            struct.pack_into("<Q", after, 8192 * page + byte, word)
        vectors.case(title).call("read_modify_write")
        vectors.array("pages", "u8", before).scalar("page_count", "u32", page_count)
        vectors.array("operations", "u64", [word for page, byte, *others in operations
                                            for word in (page << 32 | byte, *others)])
        vectors.scalar("operation_count", "u32", len(operations))
        vectors.out("result_pages", "u8", after).out("previous", "u64", previous)

    case("no pages, no operations", {}, 0, [])
    case("no operations", {(0, 0): 1, (0, 8184): 2}, 1, [])
    for name, opcode in names.items():
        case(name, {(0, 64): 0xF0F0F0F0F0F0F0F0}, 1,
             [(0, 64, opcode, 0xFF00FF00FF00FF00, 0xF0F0F0F0F0F0F0F0),
              (0, 64, opcode, 0x0123456789ABCDEF, 1), (0, 72, opcode, 5, 0)])
    case("sums wrap", {(0, 0): 2**64 - 1}, 1, [(0, 0, 1, 1, 0), (0, 0, 1, 2**64 - 1, 0)])
    case("later ones see earlier ones", {}, 1, [(0, 8, 1, 1, 0)] * 5 + [(0, 8, 6, 9, 5),
                                                                     (0, 8, 6, 7, 5)])
    case("first and last word", {}, 2, [(page, byte, 5, 7 + page, 0) for page in (0, 1)
                                        for byte in (0, 8184)])
    case("outside", {(0, 0): 3}, 1,
         [(1, 0, 5, 1, 0), (2**32 - 1, 0, 5, 1, 0), (0, 8192, 5, 1, 0), (0, 2**32 - 8, 5, 1, 0),
          (0, 4, 5, 1, 0), (0, 8185, 5, 1, 0), (0, 0, 0, 1, 0), (0, 0, 7, 1, 0),
          (0, 0, 2**64 - 1, 1, 0), (0, 0, 2**32 + 1, 1, 0), (0, 0, 1, 1, 0)])
    places = [(rng.randrange(3), 8 * rng.randrange(1024)) for _ in range(12)]
    case("many", {place: rng.getrandbits(64) for place in places}, 3,
         [(*rng.choice(places), rng.randrange(1, 7), rng.getrandbits(64), 0) for _ in range(65)])
    return vectors


def partial_aggregate(rng):
    vectors = Vectors()

    def case(title, table, groups, refused=False):
        """`table` has (value or None, is selected, group) for each row."""
        chosen = [[value for value, is_selected, group in table
                   if value is not None and is_selected and group == wanted]
                  for wanted in range(groups)]
        vectors.case(title).call("partial_aggregate")
        vectors.array("values", "i64", [123 if value is None else value for value, _, _ in table])
        vectors.array("valid", "u64", bitmap([value is not None for value, _, _ in table]))
        vectors.array("selection", "u64", bitmap([is_selected for _, is_selected, _ in table]))
        vectors.array("group", "u32", [group for _, _, group in table])
        vectors.scalar("groups", "u32", groups).scalar("rows", "u32", len(table))
        if refused:
            vectors.out("counts", "u64", b"").out("sums", "i64", b"")
            vectors.out("minima", "i64", b"").out("maxima", "i64", b"")
            return
        vectors.out("counts", "u64", [len(values) for values in chosen])
        vectors.out("sums", "i64", b"".join(sum(values).to_bytes(16, "little", signed=True)
                                            for values in chosen))
        vectors.out("minima", "i64", [min(values, default=INT_MAX) for values in chosen])
        vectors.out("maxima", "i64", [max(values, default=INT_MIN) for values in chosen])

    case("no rows", [], 3)
    case("no groups", [(5, True, 0)], 0)
    case("one row", [(-5, True, 0)], 1)
    case("NULL", [(None, True, 0)], 1)
    case("not selected", [(5, False, 0)], 1)
    case("groups that do not exist", [(5, True, 2), (6, True, 2**32 - 1), (7, True, 1)], 2)
    case("sums beyond 64 bits", [(INT_MAX, True, 0)] * 3 + [(INT_MIN, True, 1)] * 3
         + [(INT_MAX, True, 2), (INT_MIN, True, 2), (1, True, 2)], 3)
    case("signs", [(-1, True, 0), (1, True, 0), (-1, True, 1), (-1, True, 1), (0, True, 2)], 3)
    case("one value over and over", [(7, True, 0)] * 65, 1)
    for rows in ROW_COUNTS:
        case(f"{rows} rows", [(rng.choice([None, INT_MIN, INT_MAX, rng.randrange(-99, 99)]),
                               rng.random() < 0.7, rng.randrange(5)) for _ in range(rows)], 4)
    # Most groups have no row: 4096 groups of results are what a file has room for twice.
    case("4096 groups", [(rng.randrange(100), True, rng.choice([0, 1, 4094, 4095, 4096]))
                         for _ in range(100)], 4096)
    case("4097 groups", [(1, True, 0)], 4097, refused=True)
    # Six row groups, in which most rows are 0.
    table = [(rng.choice([None, 5, -7, INT_MIN]) if row % 40 == row // 512 else 0, row % 23 != 0,
              rng.randrange(9) if row % 40 == row // 512 else 0) for row in range(2600)]
    case("2600 rows", table, 8)
    return vectors


KERNELS = {kernel.__name__: kernel for kernel in (
    predicate_filter, page_decode, text_decode, morris_pratt, fgrep8, hamming_nearest, graph_step,
    key_lookup, read_modify_write, partial_aggregate)}
