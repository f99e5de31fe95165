"""Runs the vectors of a kernel as WebAssembly: sandbox.py <file.vec> <name>=<module>...

The first module is the kernel, others are those that it may call. A call from one to another is
made as the store makes it: arguments and results are copied between their memories.
"""

import math
import pathlib
import re
import struct
import sys

import wasmtime

ALIGNMENT = 64
PAGE = 65536
UNWRITTEN = 0xA5
CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q",
         "i64": "q", "f32": "f", "f64": "d"}
SHOWN = 4


class Instance:
    """An instance of a module; arrays are placed from __heap_base on."""

    def __init__(self, engine, path, importable):
        self.store = wasmtime.Store(engine)
        module = wasmtime.Module.from_file(engine, str(path))
        functions = []
        for imported in module.imports:
            if imported.module != "flashmesh.kernel" or imported.name not in importable:
                sys.exit(f"{path.name} imports {imported.module}.{imported.name}")
            functions.append(wasmtime.Func(self.store, imported.type,
                                           self._caller(importable[imported.name])))
        self.exports = wasmtime.Instance(self.store, module, functions).exports(self.store)
        self.memory = self.exports["memory"]
        self.base = self.exports["__heap_base"].value(self.store)
        self.names = {export.name for export in module.exports}
        if "_initialize" in self.names:
            self.exports["_initialize"](self.store)

    def check_exports(self, functions):
        unknown = self.names - functions - {"memory", "__heap_base", "_initialize"}
        if unknown:
            sys.exit(f"exports {sorted(unknown)}")

    def _caller(self, call):
        return lambda *arguments: call(self, arguments)

    def place(self, arrays):
        """Places arrays in memory, and gives their addresses and where they end."""
        at, addresses = self.base, []
        for content in arrays:
            at = (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
            addresses.append(at)
            at += len(content)
        missing = at - self.memory.data_len(self.store)
        if missing > 0:
            self.memory.grow(self.store, (missing + PAGE - 1) // PAGE)
        for address, content in zip(addresses, arrays):
            self.memory.write(self.store, content, address)
        # What lies behind the arrays is not the kernel's.
        self.memory.write(self.store, bytes(self.memory.data_len(self.store) - at), at)
        return addresses, at

    def read(self, address, size):
        return bytes(self.memory.read(self.store, address, address + size))

    def check_behind(self, end):
        if any(self.read(end, self.memory.data_len(self.store) - end)):
            sys.exit("bytes behind the arrays were written")

    def call(self, function, arguments):
        self.exports[function](self.store, *arguments)


def price_band(callee):
    """price_band as a function of the caller's arguments: the only kernel that is called so far."""

    def call(caller, arguments):
        price, low, high, rows, selection = arguments
        words = (rows + 63) // 64
        content = [caller.read(price % 2**32, rows * 8), bytes(words * 8)]
        addresses, _ = callee.place(content)
        callee.call("price_band", [addresses[0], low, high, rows, addresses[1]])
        caller.memory.write(caller.store, callee.read(addresses[1], words * 8), selection % 2**32)

    return call


CALLABLE = {"price_band": price_band}


def parse_scalar(element, text):
    if element.startswith("f"):
        return float(text)
    # WebAssembly has no unsigned numbers: the same bits, signed.
    bits = 64 if element.endswith("64") else 32
    value = int(text) % 2**bits
    return value - 2**bits if value >= 2 ** (bits - 1) else value


def unpack(element, content):
    size = struct.calcsize(CODES[element])
    return struct.unpack(f"<{len(content) // size}{CODES[element]}", content)


def is_same(element, found, expected, tolerance):
    if not element.startswith("f"):
        return found == expected
    if math.isnan(found) or math.isnan(expected):
        return math.isnan(found) and math.isnan(expected)
    if tolerance == 0 or math.isinf(found) or math.isinf(expected):
        return struct.pack("<d", found) == struct.pack("<d", expected)
    return abs(found - expected) <= tolerance * abs(expected)


def from_hex(text):
    if text == "-":
        return b""
    return b"".join(bytes(int(piece[1:])) if piece[0] == "~" else bytes.fromhex(piece)
                    for piece in text.split("+"))


def array_of(words, kept):
    """The array's bytes before the call, and those expected after it."""
    use, name, element, *contents = words
    size = struct.calcsize(CODES[element])
    if use == "in":
        return from_hex(contents[0]), None
    if use == "out":
        expected = from_hex(contents[0])
        return bytes([UNWRITTEN]) * len(expected), expected
    if use == "inout":
        return from_hex(contents[0]), from_hex(contents[1])
    fresh = bytes([UNWRITTEN]) * (size * int(contents[0]))
    return (kept.get(contents[1], fresh) if use == "keep" else fresh), None


def run_call(instance, function, lines, kept, tolerance, title):
    """Makes one call, and gives the differences."""
    arrays = [words for words in lines if words[0] != "scalar"]
    contents = [array_of(words, kept) for words in arrays]
    addresses, end = instance.place([before for before, _ in contents])
    places = iter(addresses)
    arguments = [parse_scalar(words[2], words[3]) if words[0] == "scalar" else next(places)
                 for words in lines]
    instance.call(function, arguments)
    instance.check_behind(end)
    differences = []
    for words, (before, expected), address in zip(arrays, contents, addresses):
        use, name, element = words[:3]
        if use == "keep":
            kept[words[4]] = instance.read(address, len(before))
        elif use == "in" and instance.read(address, len(before)) != before:
            differences.append(f"case {title}, {function}: {name} was written")
        elif expected is not None:
            found = unpack(element, instance.read(address, len(expected)))
            pairs = zip(found, unpack(element, expected))
            differences += [f"case {title}, {function}: {name}[{i}] is {a}, expected {b}"
                            for i, (a, b) in enumerate(pairs)
                            if not is_same(element, a, b, tolerance)]
    return differences


def main():
    vectors, *modules = sys.argv[1:]
    modules = [(m.split("=")[0], pathlib.Path(m.split("=")[1])) for m in modules]
    lines = pathlib.Path(vectors).read_text().splitlines()
    functions = {line.split()[1] for line in lines if line.startswith("call ")}
    config = wasmtime.Config()
    config.cranelift_opt_level = "speed"
    engine = wasmtime.Engine(config)
    importable = {name: CALLABLE[name](Instance(engine, path, {})) for name, path in modules[1:]}
    instance = Instance(engine, modules[0][1], importable)
    instance.check_exports(functions)

    cases, differences, tolerance, kept, call = 0, [], 0.0, {}, None
    title = ""
    for line in lines:
        words = line.split()
        if words[0] in ("call", "end") and call:
            differences += run_call(instance, call[0], call[1:], kept, tolerance, title)
            call = None
        if words[0] == "tolerance":
            tolerance = float(words[1])
        elif words[0] == "case":
            cases, kept, title = cases + 1, {}, words[1]
        elif words[0] == "call":
            call = [words[1]]
        elif re.match("#|kernel|end", words[0]) is None:
            call.append(words)
    for difference in differences[:SHOWN]:
        print(difference)
    exports = modules[0][1].stat().st_size
    print(f"{cases} cases {'run, some differ' if differences else 'pass'}, {exports} bytes")
    sys.exit(bool(differences))


if __name__ == "__main__":
    main()
