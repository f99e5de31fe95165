"""What shout must answer: text with the letters a to z as capitals."""

import struct

from vectorfile import Vectors, text_column, unwritten


def vectors(rng):
    out = Vectors()

    def case(title, texts, capacity=None):
        texts = [text.encode() for text in texts]
        offsets, data = text_column(texts)
        capacity = len(data) if capacity is None else capacity
        # bytes.upper() changes ASCII letters only.
        result = data.upper()
        out.case(title).call("shout")
        out.array("x_offsets", "u32", offsets).array("x_bytes", "u8", data)
        out.scalar("rows", "u32", len(texts))
        if len(data) > capacity:
            out.out("result_offsets", "u32",
                    unwritten("u32", len(texts)) + struct.pack("<I", len(data)))
            result = b""
        else:
            out.out("result_offsets", "u32", offsets)
        out.out("result_bytes", "u8", result + unwritten("u8", capacity - len(result)))
        out.scalar("result_capacity", "u32", capacity)

    texts = ["flash", "", "Mesh 42", "`az{ @AZ[", "naïve é ß", "\0a\0"]
    case("no rows", [])
    case("one row", ["shout"])
    case("empty texts", ["", "", ""])
    case("several", texts)
    case("room for more", texts, 100)
    case("no room", texts, 0)
    case("a byte too few", texts, len("".join(texts).encode()) - 1)
    for rows in (63, 64, 65):
        case(f"{rows} rows", ["".join(rng.choice("aZz{`é") for _ in range(rng.randrange(12)))
                              for _ in range(rows)])
    return out
