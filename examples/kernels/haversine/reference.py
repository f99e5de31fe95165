"""What haversine must answer: kilometres between two places."""

import math

from vectorfile import Vectors

# Near the other side of the Earth the formula loses half of its digits; no case lies there.
TOLERANCE = 1e-12


def kilometres(latitude_a, longitude_a, latitude_b, longitude_b):
    places = (latitude_a, longitude_a, latitude_b, longitude_b)
    if not all(map(math.isfinite, places)):
        return math.nan
    a, b = math.radians(latitude_a), math.radians(latitude_b)
    half_a = math.sin(math.radians(latitude_b - latitude_a) / 2)
    half_b = math.sin(math.radians(longitude_b - longitude_a) / 2)
    part = half_a**2 + math.cos(a) * math.cos(b) * half_b**2
    return 2 * 6371.0088 * math.asin(math.sqrt(min(part, 1)))


def vectors(rng):
    out = Vectors(tolerance=TOLERANCE)

    def case(title, pairs):
        out.case(title).call("haversine")
        columns = list(zip(*pairs)) or [()] * 4
        names = ("latitude_a", "longitude_a", "latitude_b", "longitude_b")
        for name, column in zip(names, columns):
            out.array(name, "f64", column)
        out.scalar("rows", "u32", len(pairs))
        out.out("result", "f64", [kilometres(*pair) for pair in pairs])

    case("no rows", [])
    case("Zürich to Boston", [(47.3769, 8.5417, 42.3601, -71.0589)])
    case("the same place, and poles", [(10.0, 20.0, 10.0, 20.0), (90.0, 0.0, -90.0, 0.0),
                                       (0.0, 0.0, 0.0, 90.0), (0.0, -179.5, 0.0, 179.5)])
    case("a metre apart", [(46.0, 7.0, 46.000009, 7.0), (46.0, 7.0, 46.0, 7.000013)])
    case("no numbers", [(math.nan, 0.0, 0.0, 0.0), (0.0, math.inf, 0.0, 0.0)])
    for rows in (63, 64, 65):
        case(f"{rows} rows", [(rng.uniform(0, 90), rng.uniform(-80, 80), rng.uniform(-10, 90),
                               rng.uniform(-80, 80)) for _ in range(rows)])
    return out
