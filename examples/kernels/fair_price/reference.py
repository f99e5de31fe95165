"""What fair_price must answer: TRUE where cost <= price, and price is near the list price."""

from vectorfile import Vectors, bitmap

NAN = float("nan")


def vectors(rng):
    out = Vectors()

    def case(title, table, list_price):
        low, high = 0.9 * list_price, 1.1 * list_price
        out.case(title).call("fair_price")
        out.array("price", "f64", [price for price, _ in table])
        out.array("cost", "f64", [cost for _, cost in table])
        out.scalar("list_price", "f64", list_price).scalar("rows", "u32", len(table))
        out.out("selection", "u64", bitmap([low <= price <= high and price >= cost
                                            for price, cost in table]))

    case("no rows", [], 10.0)
    case("one row", [(10.0, 8.0)], 10.0)
    case("bounds", [(9.0, 9.0), (11.0, 1.0), (8.99, 1.0), (11.01, 1.0), (9.5, 9.51)], 10.0)
    case("no numbers", [(NAN, 1.0), (10.0, NAN), (float("inf"), 1.0)], 10.0)
    for rows in (63, 64, 65, 200):
        case(f"{rows} rows", [(round(rng.uniform(8, 12), 2), round(rng.uniform(7, 12), 2))
                              for _ in range(rows)], 10.0)
    return out
