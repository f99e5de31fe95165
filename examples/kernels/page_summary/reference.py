"""What page_summary must answer: some fields of each page's header."""

import struct

import pages
from vectorfile import Vectors, unwritten


def vectors(rng):
    out = Vectors()

    def case(title, contents, capacity=None):
        """`contents` has a page and the four numbers of its row."""
        count = len(contents)
        capacity = count if capacity is None else capacity
        fits = count <= capacity
        out.case(title).call("page_summary")
        out.array("pages", "u8", b"".join(page for page, *_ in contents))
        out.scalar("page_count", "u32", count)
        for place, (name, element, code) in enumerate((
                ("first_row", "i32", "i"), ("row_count", "i32", "i"), ("encoding", "i16", "h"),
                ("width", "i16", "h")), 1):
            column = [row[place] for row in contents] if fits else []
            out.out(name, element, struct.pack(f"<{len(column)}{code}", *column)
                    + unwritten(element, capacity - len(column)))
        out.scalar("capacity", "u32", capacity).out("rows", "u32", [count])

    packed = pages.forbp([rng.randrange(32) for _ in range(300)] + [0, 31], first_row=7)
    wide = pages.forbp([-(2**63), 2**63 - 1], first_row=65534)
    constant = pages.page(pages.CONST, 65000, b"", reference=5)
    contents = [(packed, 7, 302, 3, 5), (wide, 65534, 2, 3, 64), (constant, 0, 65000, 1, 0),
                (pages.raw(bytes(80), 8, flags=pages.AUXILIARY), 0, 10, 2, 0)]
    case("no pages", [])
    case("one page", contents[:1])
    case("four pages", contents)
    case("room for more", contents, capacity=7)
    case("not enough room", contents, capacity=3)
    return out
