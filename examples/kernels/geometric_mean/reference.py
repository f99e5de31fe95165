"""What geometric_mean must answer: the n-th root of a product of n values."""

import math

from vectorfile import Vectors, bitmap

TOLERANCE = 1e-12


def mean(values):
    if any(math.isnan(value) or value < 0 for value in values):
        return math.nan
    if 0.0 in values:
        return math.nan if math.inf in values else 0.0
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def vectors(rng):
    out = Vectors(tolerance=TOLERANCE)

    def case(title, groups, *batches):
        """Each batch of (value, group) has states of its own, which are merged into the first."""
        out.case(title)
        for number, batch in enumerate(batches):
            states = "states" if number == 0 else "others"
            out.call("geometric_mean_init")
            out.keep("states", "u64", 2 * groups, array=states).scalar("groups", "u32", groups)
            out.call("geometric_mean_update").array("x", "f64", [value for value, _ in batch])
            out.array("group", "u32", [group for _, group in batch])
            out.scalar("rows", "u32", len(batch))
            out.keep("states", "u64", 2 * groups, array=states).scalar("groups", "u32", groups)
            if number > 0:
                out.call("geometric_mean_merge").keep("states", "u64", 2 * groups)
                out.keep("others", "u64", 2 * groups).scalar("groups", "u32", groups)
        found = [[value for batch in batches for value, group in batch if group == wanted]
                 for wanted in range(groups)]
        out.call("geometric_mean_finish").keep("states", "u64", 2 * groups)
        out.scalar("groups", "u32", groups)
        out.out("result", "f64", [mean(values) if values else 0.0 for values in found])
        out.out("result_valid", "u64", bitmap([bool(values) for values in found]))

    case("no groups", 0, [])
    case("no rows", 3, [])
    case("one row", 1, [(5.0, 0)])
    case("powers of two", 2, [(1.0, 0), (4.0, 0), (16.0, 0), (0.5, 1), (2.0, 1)])
    case("beyond a double's range", 1, [(1e300, 0)] * 5 + [(1e-300, 0)] * 2)
    case("zero, negative, infinite, NaN", 6, [
        (0.0, 0), (7.0, 0), (-1.0, 1), (3.0, 1), (math.inf, 2), (math.nan, 3), (1.0, 3),
        (0.0, 4), (math.inf, 4)])
    case("merged", 3, [(2.0, 0), (3.0, 1)], [(8.0, 0), (9.0, 2)], [], [(4.0, 0)])
    for groups in (63, 64, 65):
        case(f"{groups} groups", groups, *(
            [(rng.uniform(0.001, 1000), rng.randrange(groups)) for _ in range(50)]
            for _ in range(2)))
    return out
