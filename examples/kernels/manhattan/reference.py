"""What manhattan must answer: the sum of absolute differences."""

import math
import struct

from vectorfile import Vectors


def as_float32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def vectors(rng):
    # Nothing but additions of doubles in a given order: the same bits everywhere.
    out = Vectors()

    def case(title, rows, query):
        rows = [[as_float32(value) for value in row] for row in rows]
        query = [as_float32(value) for value in query]
        distances = []
        for row in rows:
            distance = 0.0
            for left, right in zip(row, query):
                distance += abs(left - right)
            distances.append(distance)
        out.case(title).call("manhattan")
        out.array("a", "f32", [value for row in rows for value in row]).array("b", "f32", query)
        out.scalar("dimension", "u32", len(query)).scalar("rows", "u32", len(rows))
        out.out("result", "f64", distances)

    case("no rows", [], [1.0, 2.0])
    case("no components", [[], []], [])
    case("one row", [[1.0, -2.0, 0.5]], [0.0, 2.0, 0.5])
    case("special values", [[math.nan, 0.0], [math.inf, 0.0], [-math.inf, 1.0], [-0.0, 3.4e38]],
         [0.0, -3.4e38])
    for rows in (63, 64, 65):
        case(f"{rows} rows", [[rng.uniform(-9, 9) for _ in range(5)] for _ in range(rows)],
             [rng.uniform(-9, 9) for _ in range(5)])
    case("128 components", [[rng.gauss(0, 1) for _ in range(128)] for _ in range(4)],
         [rng.gauss(0, 1) for _ in range(128)])
    return out
