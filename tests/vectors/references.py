"""What our kernels must answer, the naive way, and the cases that ask for it."""

from vectorfile import Vectors, text_column

NOT_FOUND = 0xFFFFFFFF


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


KERNELS = {"morris_pratt": morris_pratt}
