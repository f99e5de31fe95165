"""Writes a vector file; README.md describes the format."""

import re
import struct

# How `struct` names the types of elements.
CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q",
         "i64": "q", "f32": "f", "f64": "d"}
# The byte of what a kernel must not write.
UNWRITTEN = 0xA5
# So many zeros are counted rather than written.
ZEROS = 32


def array_bytes(element, values):
    """The little-endian bytes of an array. Text and bytes stand for themselves."""
    if isinstance(values, (bytes, bytearray)):
        return bytes(values)
    return struct.pack(f"<{len(values)}{CODES[element]}", *values)


def hexadecimal(content):
    """Bytes as a vector file has them: runs of zeros are counted."""
    pieces = []
    for piece in re.split(rb"(\0{%d,})" % ZEROS, content):
        if len(piece) >= ZEROS and not any(piece):
            pieces.append(f"~{len(piece)}")
        elif piece:
            pieces.append(piece.hex())
    return "+".join(pieces) or "-"


def unwritten(element, count):
    """What stands in `count` elements that a kernel must leave alone."""
    return bytes([UNWRITTEN]) * (count * struct.calcsize(f"<{CODES[element]}"))


def bitmap(bits):
    """The words of a bitmap, bits beyond the last cleared."""
    words = [0] * ((len(bits) + 63) // 64)
    for row, bit in enumerate(bits):
        words[row // 64] |= bool(bit) << row % 64
    return words


def text_column(texts):
    """Offsets and bytes of a TEXT column."""
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    return offsets, b"".join(texts)


class Vectors:
    """The cases of one kernel."""

    def __init__(self, tolerance=0):
        self.tolerance = tolerance
        self.lines = []
        self.cases = 0

    def case(self, title=""):
        if self.cases:
            self.lines.append("end")
        self.cases += 1
        self.lines.append(f"case {self.cases} {title}".rstrip())
        return self

    def call(self, function):
        self.lines.append(f"call {function}")
        return self

    def scalar(self, name, element, value):
        self.lines.append(f"scalar {name} {element} {value!r}")
        return self

    def _array(self, use, name, element, *contents):
        contents = [hexadecimal(array_bytes(element, c)) for c in contents]
        self.lines.append(" ".join([use, name, element, *contents]))
        return self

    def array(self, name, element, values):
        return self._array("in", name, element, values)

    def out(self, name, element, values):
        return self._array("out", name, element, values)

    def inout(self, name, element, before, after):
        return self._array("inout", name, element, before, after)

    def any(self, name, element, count):
        self.lines.append(f"any {name} {element} {count}")
        return self

    def keep(self, name, element, count, array=None):
        self.lines.append(f"keep {name} {element} {count} {array or name}")
        return self

    def text(self, kernel):
        head = ["# flashmesh vectors 1", f"kernel {kernel}", f"tolerance {self.tolerance}"]
        return "\n".join([*head, *self.lines, "end", ""])
