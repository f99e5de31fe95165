"""Reads `kernel.toml`, and says which C functions with which arguments it stands for.

The rules are those of docs/kernels.md; what it does not allow is a `ManifestError`.
"""

import dataclasses
import re
import tomllib

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
KINDS = {"scalar", "filter", "aggregate", "distance", "search", "table"}
KEYS = {
    "kernel": {"name", "kind", "version", "description", "signature", "top", "sources", "nulls",
               "state_words", "operation"},
    "limits": {"rows_per_call", "bytes_per_call", "memory_bytes", "time_per_call_ms"},
    "calls": {"kernels"},
    "fpga": {"compute_units", "clock_mhz", "banks"},
    "intent": {"initiation_interval", "bytes_per_cycle"},
    "argument": {"name", "type", "use"},
    "stream": {"top", "control", "argument"},
    "test": {"reference", "tolerance"},
}
ELEMENTS = {
    "BOOLEAN": "u8", "SMALLINT": "i16", "INTEGER": "i32", "BIGINT": "i64", "REAL": "f32",
    "DOUBLE": "f64", "DATE": "i32", "TIMESTAMP": "i64",
}
TYPES = {"u8", "i32", "u32", "i64", "u64", "f32", "f64"}
USES = {"scalar", "in", "out", "inout"}
C_TYPES = {"u8": "uint8_t", "i32": "int32_t", "u32": "uint32_t", "i64": "int64_t",
           "u64": "uint64_t", "f32": "float", "f64": "double"}
# Of a port, the keys of its [[stream.argument]] beside name, type and use.
PORT_KEYS = {"scalar": set(), "stream": {"direction", "bits", "depth"},
             "in": {"bits", "outstanding", "bundle"}, "out": {"bits", "outstanding", "bundle"}}
BEAT_BITS = 512
EDGE_BEATS = 128


class ManifestError(Exception):
    """What is wrong with a manifest."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """A C argument. `use` is that of a manifest's [[argument]]."""

    name: str
    type: str
    use: str


class Manifest:
    """A manifest; `functions` are the C functions: name ▸ list of `Argument`."""

    def __init__(self, path):
        self.path = path
        with open(path, "rb") as file:
            tables = tomllib.load(file)
        for table, content in tables.items():
            if table not in KEYS:
                raise ManifestError(f"[{table}] is unknown")
            for entry in content if isinstance(content, list) else [content]:
                unknown = set(entry) - KEYS[table]
                if unknown:
                    raise ManifestError(f"[{table}] has unknown keys {sorted(unknown)}")
        kernel = tables["kernel"]
        self.name = kernel["name"]
        self.kind = kernel["kind"]
        if not NAME.fullmatch(self.name) or self.kind not in KINDS:
            raise ManifestError(f"name '{self.name}', kind '{self.kind}'")
        if not re.fullmatch(r"\d+\.\d+\.\d+", kernel["version"]):
            raise ManifestError(f"version '{kernel['version']}'")
        self.top = kernel.get("top", self.name)
        self.operation = kernel.get("operation")
        self.nulls = kernel.get("nulls", "strict")
        self.sources = [path.parent / s for s in kernel.get("sources", ["kernel.cpp"])]
        self.calls = tables.get("calls", {}).get("kernels", [])
        self.stream = StreamTop(tables["stream"]) if "stream" in tables else None
        if (self.kind == "aggregate" and "signature" in kernel) != ("state_words" in kernel):
            raise ManifestError("state_words is for aggregates, which need it")
        if ("signature" in kernel) == ("argument" in tables):
            raise ManifestError("either a signature or [[argument]]")
        if "signature" in kernel:
            self.functions = self._from_signature(kernel["signature"])
        else:
            arguments = [Argument(a["name"], a["type"], a["use"]) for a in tables["argument"]]
            for argument in arguments:
                if argument.type not in TYPES or argument.use not in USES:
                    raise ManifestError(f"{argument}")
            self.functions = {self.top: arguments}
        known = {a.name for arguments in self.functions.values() for a in arguments
                 if a.use != "scalar"}
        for name in tables.get("fpga", {}).get("banks", {}):
            if name not in known:
                raise ManifestError(f"bank of '{name}', which is no array")

    def _from_signature(self, signature):
        match = re.fullmatch(r"\((.*)\) RETURNS (.*)", signature)
        if not match:
            raise ManifestError(f"signature '{signature}'")
        parameters = [p.split(" ", 1) for p in split(match[1])]
        result = match[2]
        rows = Argument("rows", "u32", "scalar")
        if self.kind == "distance":
            element = {"FLOAT[]": "f32", "BYTES[]": "u8"}[parameters[0][1]]
            names = [name for name, _ in parameters]
            return {self.top: [Argument(names[0], element, "in"), Argument(names[1], element, "in"),
                               Argument("dimension", "u32", "scalar"), rows,
                               Argument("result", "f64", "out")]}
        inputs = [a for name, sql in parameters for a in self._parameter(name, sql)]
        if self.kind == "aggregate":
            return self._aggregate(inputs, element_of(result))
        if self.kind == "table":
            columns = [c.split(" ", 1) for c in split(re.fullmatch(r"TABLE \((.*)\)", result)[1])]
            return {self.top: [Argument("pages", "u8", "in"),
                               Argument("page_count", "u32", "scalar"), *inputs,
                               *(Argument(n, element_of(sql), "out") for n, sql in columns),
                               Argument("capacity", "u32", "scalar"),
                               Argument("rows", "u32", "out")]}
        if self.kind == "filter":
            results = [Argument("selection", "u64", "out")]
        elif self.kind == "search":
            results = [Argument("positions", "u32", "out")]
        elif result in ("TEXT", "BLOB"):
            results = [Argument("result_offsets", "u32", "out"),
                       Argument("result_bytes", "u8", "out"),
                       Argument("result_capacity", "u32", "scalar")]
        else:
            results = [Argument("result", element_of(result), "out")]
        if self.kind == "scalar" and self.nulls == "kernel":
            results.append(Argument("result_valid", "u64", "out"))
        return {self.top: [*inputs, rows, *results]}

    def _parameter(self, name, sql):
        is_constant = sql.endswith(" CONSTANT")
        sql = sql.removesuffix(" CONSTANT")
        if sql in ("TEXT", "BLOB"):
            if is_constant:
                return [Argument(name, "u8", "in"), Argument(f"{name}_length", "u32", "scalar")]
            arguments = [Argument(f"{name}_offsets", "u32", "in"),
                         Argument(f"{name}_bytes", "u8", "in")]
        elif re.fullmatch(r"FLOAT\[\d+\]", sql):
            arguments = [Argument(name, "f32", "in")]
        elif re.fullmatch(r"BYTES\[\d+\]", sql):
            arguments = [Argument(name, "u8", "in")]
        else:
            arguments = [Argument(name, element_of(sql), "scalar" if is_constant else "in")]
        if self.nulls == "kernel" and not is_constant:
            arguments.append(Argument(f"{name}_valid", "u64", "in"))
        return arguments

    def _aggregate(self, inputs, result):
        states, groups = Argument("states", "u64", "inout"), Argument("groups", "u32", "scalar")
        return {
            f"{self.top}_init": [dataclasses.replace(states, use="out"), groups],
            f"{self.top}_update": [*inputs, Argument("group", "u32", "in"),
                                   Argument("rows", "u32", "scalar"), states, groups],
            f"{self.top}_merge": [states, Argument("others", "u64", "in"), groups],
            f"{self.top}_finish": [dataclasses.replace(states, use="in"), groups,
                                   Argument("result", result, "out"),
                                   Argument("result_valid", "u64", "out")],
        }


class StreamTop:
    """[stream]: what a slot on a card calls; `declaration` is its C++."""

    def __init__(self, table):
        self.top = table["top"]
        self.control = table["control"]
        self.ports = table["argument"]
        widths = {}
        for port in self.ports:
            keys = PORT_KEYS.get(port["use"])
            if keys is None or set(port) != keys | {"name", "type", "use"} or (
                    port["type"] not in TYPES):
                raise ManifestError(f"[[stream.argument]] {port}")
            if port["use"] == "stream" and (port["direction"] not in ("in", "out") or (
                    port["bits"], port["depth"]) != (BEAT_BITS, EDGE_BEATS)):
                raise ManifestError(f"no stream: {port}")
            if "bundle" in port and widths.setdefault(port["bundle"], port["bits"]) != port["bits"]:
                raise ManifestError(f"bundle '{port['bundle']}' has ports of several widths")
        if not any(port["use"] == "stream" for port in self.ports):
            raise ManifestError("[stream] without a stream")
        self.declaration = f"void {self.top}({', '.join(map(declare, self.ports))})"

    def check_pragmas(self, source):
        """Compares the ports with the pragmas of the function in the text of its source."""
        body = source[source.index(f"FLASHMESH_STREAM_TOP void {self.top}("):]
        body = body[:body.index("\n}\n")]
        pragmas = set(re.findall(r"#pragma HLS INTERFACE (.*)", body))
        wanted = {f"{self.control} port=return", *map(pragma, self.ports)}
        if pragmas != wanted:
            raise ManifestError(f"{self.top}: the manifest has {sorted(wanted - pragmas)}, the "
                                f"source {sorted(pragmas - wanted)}")


def declare(port):
    """A port of a streaming form in C++, with the types of flashmesh/beat.hpp."""
    name, element = port["name"], C_TYPES[port["type"]]
    if port["use"] == "in":
        return (f"flashmesh::wide_port {name}" if port["bits"] == BEAT_BITS
                else f"const {element} *{name}")
    return {"scalar": f"{element} {name}", "stream": f"flashmesh::axis &{name}",
            "out": f"{element} *{name}"}[port["use"]]


def pragma(port):
    """The interface pragma of a port."""
    if port["use"] == "scalar":
        return f"s_axilite port={port['name']}"
    if port["use"] == "stream":
        return f"axis port={port['name']}"
    way = "read" if port["use"] == "in" else "write"
    return (f"m_axi port={port['name']} bundle={port['bundle']} offset=slave "
            f"num_{way}_outstanding={port['outstanding']}")


def split(text):
    """The parts between the commas that are in no parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def element_of(sql):
    """The element of a C array of a SQL type."""
    if re.fullmatch(r"DECIMAL\(\d+, ?\d+\)", sql):
        return "i64"
    if sql not in ELEMENTS:
        raise ManifestError(f"type '{sql}' is unknown")
    return ELEMENTS[sql]


def check_calls(manifest, lines):
    """Compares the calls of a vector file with the manifest's C functions."""
    uses = {"any": ("out",), "keep": ("in", "out", "inout"), "inout": ("inout", "out")}
    called, wanted = set(), None
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0] in ("#", "kernel", "tolerance", "case"):
            continue
        if words[0] in ("call", "end"):
            if wanted:
                raise ManifestError(f"line {number}: {wanted[0]} is missing")
            if words[0] == "call":
                if words[1] not in manifest.functions:
                    raise ManifestError(f"line {number}: no function '{words[1]}'")
                called.add(words[1])
                wanted = list(manifest.functions[words[1]])
            continue
        found = words[0], words[1], words[2]
        argument = wanted.pop(0) if wanted else None
        if argument is None or found[1:] != (argument.name, argument.type) or (
                argument.use not in uses.get(found[0], (found[0],))):
            raise ManifestError(f"line {number}: {' '.join(found)}, but the manifest has {argument}")
    if called != set(manifest.functions):
        raise ManifestError(f"no call of {sorted(set(manifest.functions) - called)}")
