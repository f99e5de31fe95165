"""What price_band must answer: TRUE where low <= price <= high."""

from vectorfile import Vectors, bitmap

NAN, INFINITY = float("nan"), float("inf")


def vectors(rng):
    out = Vectors()

    def case(title, prices, low, high):
        out.case(title).call("price_band")
        out.array("price", "f64", prices).scalar("low", "f64", low).scalar("high", "f64", high)
        out.scalar("rows", "u32", len(prices))
        out.out("selection", "u64", bitmap([low <= price <= high for price in prices]))

    case("no rows", [], 1.0, 2.0)
    case("one row", [1.5], 1.0, 2.0)
    case("bounds belong to the band", [0.99, 1.0, 2.0, 2.01], 1.0, 2.0)
    case("low above high", [1.0, 1.5, 2.0], 2.0, 1.0)
    case("special values", [NAN, INFINITY, -INFINITY, 0.0, -0.0, 5e-324, 1.7e308], -0.0, INFINITY)
    case("NaN as a bound", [NAN, 1.0, INFINITY], NAN, 2.0)
    for rows in (63, 64, 65, 200):
        case(f"{rows} rows", [round(rng.uniform(0, 4), 2) for _ in range(rows)], 1.0, 3.0)
    case("65 rows, all", [1.0] * 65, 1.0, 1.0)
    return out
