"""INSERT of constants, whose rows no plan of operators makes, stores and refuses what it does with one."""

import os
import random

import flashmesh
import pytest

COLUMNS = {
    "i": "INT NOT NULL",
    "s": "SMALLINT DEFAULT 7",
    "u": "BIGINT UNSIGNED",
    "d": "DECIMAL(10, 2)",
    "f": "DOUBLE",
    "t": "VARCHAR DEFAULT 'it''s'",
    "day": "DATE",
    "at": "TIMESTAMP",
    "zone": "TIMESTAMPTZ",
    "yes": "BOOLEAN",
    "bytes": "BYTEA",
    "list": "INT[]",
}
VALUES = {
    "i": ["1", "-2", "'3'", "4.0", "4.5", "2147483648", "NULL", "1e3", "CAST(5.7 AS INT)", "true"],
    "s": ["1", "-2", "32768", "DEFAULT", "NULL", "CAST('9' AS SMALLINT)", "'x'"],
    "u": ["0", "-1", "18446744073709551615", "NULL", "DEFAULT", "3.0"],
    "d": ["1", "1.25", "1.255", "-99999999.99", "100000000", "'1.5'", "NULL", "1e2"],
    "f": ["1", "0.1", "'NaN'", "-1e400", "'inf'", "NULL", "123456789012345678"],
    "t": ["'a'", "''", "NULL", "DEFAULT", "1", "1.50", "true", "DATE '2024-02-29'", "'ä\n\"''x'"],
    "day": ["'2024-02-29'", "DATE '2024-02-29'", "'2023-02-29'", "NULL", "TIMESTAMP '2024-01-01 00:00:00'",
            "TIMESTAMP '2024-01-01 10:00:00'", "1"],
    "at": ["'2024-02-29 12:34:56.789'", "'2024-02-29T12:34:56+02:00'", "DATE '2024-01-01'", "NULL", "'x'"],
    "zone": ["'2024-02-29 12:34:56+02:00'", "'2024-02-29'", "NULL", "TIMESTAMP '2024-01-01 00:00:00'"],
    "yes": ["true", "false", "NULL", "1", "'t'", "'x'", "2"],
    "bytes": ["X'00ff'", "'abc'", "NULL", "X''"],
    "list": ["[1, 2]", "NULL", "'[1]'"],
}  # fmt: skip


def outcome(con: flashmesh.Connection, statement: str) -> str:
    try:
        return str(con.execute(statement).fetchall())
    except flashmesh.Error as error:
        return str(error)


def test_constants_are_stored_as_other_values_are(tmp_path):
    seed = int(os.environ.get("FLASHMESH_SEED", random.randrange(1 << 32)))
    print("seed", seed)
    rng = random.Random(seed)
    with flashmesh.connect(tmp_path / "db") as con:
        columns = ", ".join(f'"{name}" {of}' for name, of in COLUMNS.items())
        for table in "plain", "called":
            con.execute(f"CREATE TABLE {table} ({columns}, CHECK (i <> 1000))")
        stored = refused = 0
        for _ in range(400):
            names = rng.sample(list(COLUMNS), rng.randrange(1, len(COLUMNS)))
            if rng.random() < 0.9 and "i" not in names:
                names.append("i")
            # Most statements have few values that are refused.
            rows = [
                [rng.choice(VALUES[name][: 3 if rng.random() < 0.7 else None]) for name in names]
                for _ in range(rng.choice([1, 1, 1, 2, 5]))
            ]

            def statement(table: str, of: str, names=names, rows=rows) -> str:
                # NULL has no type of its own, and stays as it is in both.
                texts = [[v if v in ("DEFAULT", "NULL") else of.format(v) for v in row] for row in rows]
                listed = ", ".join(f"({', '.join(row)})" for row in texts)
                quoted = ", ".join(f'"{name}"' for name in names)
                return f"INSERT INTO {table} ({quoted}) VALUES {listed}"

            plain = statement("plain", "{}")
            answers = outcome(con, plain), outcome(con, statement("called", "coalesce({})"))
            is_stored = answers[0].startswith("[")
            assert is_stored == answers[1].startswith("["), (plain, answers)
            stored, refused = stored + is_stored, refused + (not is_stored)
        assert stored > 50 and refused > 50, (stored, refused)
        read = "SELECT * FROM {} ORDER BY ALL"
        rows = [str(con.sql(read.format(table)).fetchall()) for table in ("plain", "called")]
        assert rows[0] == rows[1]


@pytest.mark.parametrize("given", [(1, "a"), (None, None), (2.0, "b"), (2.5, "b"), ("3", "c")])
def test_parameters_are_stored_as_the_literals_they_stand_for(given):
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (i INT, s VARCHAR)")
        literals = ", ".join("NULL" if v is None else repr(v) for v in given)
        answers = []
        for values, parameters in (("?, ?", given), (literals, None)):
            try:
                con.execute(f"INSERT INTO t VALUES ({values})", parameters)
                answers.append(con.sql("SELECT * FROM t").fetchall())
            except flashmesh.Error as error:
                answers.append(str(error))
            con.execute("TRUNCATE t")
        assert answers[0] == answers[1]


def test_many_rows_of_literals_are_stored_as_few_are(tmp_path):
    seed = int(os.environ.get("FLASHMESH_SEED", random.randrange(1 << 32)))
    print("seed", seed)
    rng = random.Random(seed)
    literal = {
        name: [value for value in values if value[-1] in "0123456789'LEe" and " '" not in value and value[0] != "X"]
        for name, values in VALUES.items()
    }
    with flashmesh.connect(tmp_path / "db") as con:
        columns = ", ".join(f'"{name}" {of}' for name, of in COLUMNS.items())
        for table in "few", "many":
            con.execute(f"CREATE TABLE {table} (row INT, {columns})")
        stored = refused = 0
        for _ in range(60):
            names = ["i", *rng.sample([name for name in COLUMNS if name != "i"], rng.randrange(len(COLUMNS)))]
            chosen = {name: rng.sample(literal[name], rng.randrange(1, len(literal[name]) + 1)) for name in names}
            if rng.random() < 0.9:
                bad = {"4.5", "2147483648", "true", "32768", "'x'", "1.255", "100000000", "'2023-02-29'", "2", "'[1]'"}
                chosen = {
                    name: [v for v in values if v not in bad and (name, v) not in [("i", "NULL"), ("u", "-1")]] or ["1"]
                    for name, values in chosen.items()
                }
            rows = [
                f"({row}, {', '.join(rng.choice(chosen[name]) for name in names)})" for row in range(rng.choice([64, 99, 300]))
            ]
            into = "(row, " + ", ".join(f'"{name}"' for name in names) + ")"
            many = outcome(con, f"INSERT INTO many {into} VALUES {', '.join(rows)}")
            con.execute("BEGIN")
            few = [
                outcome(con, f"INSERT INTO few {into} VALUES {', '.join(rows[at : at + 40])}")
                for at in range(0, len(rows), 40)
            ]
            are_stored = all(answer.startswith("[") for answer in few)
            con.execute("COMMIT" if are_stored else "ROLLBACK")
            assert many.startswith("[") == are_stored, (many, few, rows[:3])
            stored += are_stored
            refused += not are_stored
            if are_stored:
                query = "SELECT * FROM {} ORDER BY row, \"i\", \"s\", \"t\", \"day\", \"f\""
                both = (con.execute(query.format(table)).fetchall() for table in ("few", "many"))
                assert str(next(both)) == str(next(both)), rows[:3]
                for table in "few", "many":
                    con.execute(f"DELETE FROM {table}")
        assert stored > 15 and refused > 3, (stored, refused)
        # In the order in which they are written, and beside what is asked for of them.
        rows = [f"({row}, {row})" for row in range(1000)]
        written = f"INSERT INTO many (row, i) VALUES {', '.join(rows)}"
        assert con.execute(f"{written} RETURNING i").fetchall() == [(row,) for row in range(1000)]
        assert con.execute("SELECT i FROM many LIMIT 3").fetchall() == [(0,), (1,), (2,)]
        con.execute("CREATE TABLE keys (k INT PRIMARY KEY, n INT)")
        rows = [f"({row}, 1)" for row in range(100)]
        for _ in range(2):
            con.execute(
                f"INSERT INTO keys VALUES {', '.join(rows)} ON CONFLICT (k) DO UPDATE SET n = keys.n + excluded.n"
            )
        assert con.execute("SELECT count(*), sum(n) FROM keys").fetchall() == [(100, 200)]
