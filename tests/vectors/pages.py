"""Makes pages of flashmesh as docs/flash-format.md describes them; written from that page alone."""

import struct

PAGE_BYTES = 8192
HEADER_BYTES = 64
CONST, RAW, FORBP, DICT, FSST, RAWSTR, RLE = range(1, 8)
HAS_VALIDITY, AUXILIARY, CONTINUES, SCALED = 1, 2, 4, 8


def padded(content, size=64):
    return content + bytes(-len(content) % size)


def packed(numbers, width):
    """Section 5: blocks of 256 numbers over lanes of 32 or 64 bits."""
    lanes, bits = (8, 32) if width <= 32 else (4, 64)
    content = bytearray()
    for start in range(0, len(numbers), 256):
        # A lane is one long number whose words lie `lanes` words apart.
        columns = [0] * lanes
        for j, number in enumerate(numbers[start : start + 256]):
            columns[j % lanes] |= number << (j // lanes) * width
        for word in range(256 // lanes * width // bits):
            for column in columns:
                content += (column >> word * bits & (1 << bits) - 1).to_bytes(bits // 8, "little")
    return bytes(content)


def validity(nulls):
    """Section 4: a bit for each row, 1 for a value."""
    content = bytearray((len(nulls) + 7) // 8)
    for row, is_null in enumerate(nulls):
        content[row // 8] |= (not is_null) << row % 8
    return padded(bytes(content))


def crc32c(content):
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def page(encoding, rows, data, *, width=0, reference=0, nulls=None, flags=0, first_row=0,
         payload_length=None, null_count=None, zone=(-(2**63), 2**63 - 1), number=0):
    """A page. `nulls` says of each row whether it is NULL; the rest is what the header says."""
    null_count_found = sum(nulls) if nulls else 0
    payload = data
    if 0 < null_count_found < rows:
        flags |= HAS_VALIDITY
        payload = validity(nulls) + data
    header = struct.pack(
        "<4sIBBHHHIIHHIIIqqq", b"FMP\1", 0, encoding, width, flags, 2,
        len(payload) if payload_length is None else payload_length, 7, 3, number, first_row, 9,
        rows, null_count_found if null_count is None else null_count, reference, *zone)
    content = padded(header + payload, PAGE_BYTES)
    assert len(header) == HEADER_BYTES and len(content) == PAGE_BYTES
    return content[:4] + struct.pack("<I", crc32c(content[8:])) + content[8:]


def changed(content, at, replacement):
    """The page with other bytes in its header or payload, and so a wrong checksum."""
    return content[:at] + replacement + content[at + len(replacement) :]


def forbp(values, *, width=None, step=None, encoding=FORBP, **options):
    """Integers, packed from the least one on; NULL as None."""
    known = [value for value in values if value is not None] or [0]
    reference = min(known)
    last = reference
    filled = [last := value if value is not None else last for value in values]
    offsets = [value - reference for value in filled]
    widest = max(offsets).bit_length()
    data = b""
    if step is not None:
        offsets = [offset // step for offset in offsets]
        v = max(offsets).bit_length()
        data = padded(struct.pack("<QB", step, v)) + packed(offsets, v)
        options["flags"] = options.get("flags", 0) | SCALED
    else:
        widest = widest if width is None else width
        data = packed(offsets, widest)
    return page(encoding, len(values), data, width=widest, reference=reference,
                nulls=[value is None for value in values], **options)


def raw(content, size, nulls=None, **options):
    return page(RAW, len(content) // size, content, reference=size, nulls=nulls, **options)


def rle(runs, *, ends=None, count=None, width=None, **options):
    """Runs as (number, rows). `ends` and `count` are what the page says of them, where that is not
    what they are."""
    values = [value for value, rows in runs for _ in range(rows)]
    known = [value for value, _ in runs]
    reference = min(known, default=0)
    width = max((v - reference).bit_length() for v in known) if width is None else width
    if ends is None:
        ends = [sum(rows for _, rows in runs[: run + 1]) - 1 for run in range(len(runs))]
    count = len(runs) if count is None else count
    data = padded(struct.pack(f"<H{len(ends)}H", count, *ends))
    data += packed([value - reference for value in known], width)
    return page(RLE, options.pop("rows", len(values)), data, width=width, reference=reference,
                **options)


def text_data(stored, *, width=None, least=None, starts=None):
    """Section 6, *text*: starts, lengths, bytes. The options are what the page says of them, where
    that is not what they are."""
    lengths = [len(row) for row in stored]
    least = min(lengths, default=0) if least is None else least
    width = (max(lengths, default=0) - least).bit_length() if width is None else width
    if starts is None:
        starts = [sum(lengths[:row]) for row in range(0, len(stored), 32)]
    numbers = 0
    for row, length in enumerate(lengths):
        numbers |= (length - least & (1 << width) - 1) << row * width
    region = struct.pack(f"<{len(starts)}H", *starts)
    region += numbers.to_bytes((len(stored) * width + 7) // 8, "little") + bytes(3)
    return padded(region) + b"".join(stored), width, least


def text(stored, *, encoding=RAWSTR, width=None, least=None, starts=None, **options):
    """Rows as they are stored: bytes, or codes."""
    data, width, least = text_data(stored, width=width, least=least, starts=starts)
    return page(encoding, len(stored), data, width=width, reference=least, **options)


def long_value(parts, encoding=RAWSTR, **options):
    """A value that takes pages of its own, cut into stored bytes."""
    pages = [text(parts[:1], encoding=encoding, flags=CONTINUES, **options)]
    for number, part in enumerate(parts[1:], 2):
        flags = CONTINUES if number < len(parts) else 0
        pages.append(page(encoding, 0, part, flags=flags, **options))
    return pages


def symbols(table, *, lengths=None, spare=b"\xee", **options):
    """The auxiliary page of FSST. Behind a symbol's bytes stands what does not count."""
    lengths = [len(symbol) for symbol in table] if lengths is None else lengths
    data = padded(bytes(lengths)) + b"".join(symbol.ljust(8, spare) for symbol in table)
    options = {"flags": AUXILIARY, "encoding": FSST, "rows": len(table), **options}
    return page(options.pop("encoding"), options.pop("rows"), data, **options)


def codes(row, table):
    """A row as codes: the longest symbol at each place, or an escape and a byte."""
    content = bytearray()
    while row:
        fitting = [code for code, symbol in enumerate(table) if row.startswith(symbol)]
        if fitting:
            code = max(fitting, key=lambda code: len(table[code]))
            content.append(code)
            row = row[len(table[code]) :]
        else:
            content += bytes([255, row[0]])
            row = row[1:]
    return bytes(content)
