"""Of a table that lies by a key, a filter that names keys reads the segments of their buckets: the answers are those of all
segments."""

import datetime
import decimal
import random
import re

import flashmesh
import pytest
from seeds import SEED

KEYS = ["a", "s", "d", "c", "b", "u", "(a, s)", "(d, a, b)", "(s, c)"]
COLUMNS = "a BIGINT, s VARCHAR, d DATE, c DECIMAL(10, 2), b BOOLEAN, u TINYINT, x INT"
FIRST = datetime.date(2024, 1, 1)


def drawn(rng: random.Random, x: int) -> dict:
    row = {
        "a": rng.randrange(-20, 20),
        "s": rng.choice(["", "a", "äö", "a longer text than twelve", "b" * rng.randrange(20)]),
        "d": FIRST + datetime.timedelta(days=rng.randrange(15)),
        "c": decimal.Decimal(rng.randrange(-300, 300)) / 100,
        "b": rng.random() < 0.5,
        "u": rng.randrange(-5, 5),
    }
    return {name: None if rng.random() < 0.1 else value for name, value in row.items()} | {"x": x}


def literal(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case str():
            return f"'{value}'"
        case datetime.date():
            return f"DATE '{value}'"
        case _:
            return str(value)


def condition(rng: random.Random, rows: list[dict], columns: list[str]) -> tuple[str, object]:
    """A condition on some columns, and what it means."""
    texts, tests = [], []
    for column in columns:
        values = [None if rng.random() < 0.1 else rng.choice(rows)[column] for _ in range(rng.randrange(1, 5))]
        known = [value for value in values if value is not None]
        if rng.random() < 0.5 or len(values) == 1:
            values, known = values[:1], [value for value in values[:1] if value is not None]
            texts.append(f"{column} = {literal(values[0])}" if rng.random() < 0.5 else f"{literal(values[0])} = {column}")
        else:
            texts.append(f"{column} IN ({', '.join(map(literal, values))})")
        tests.append((column, known))
    if rng.random() < 0.3:
        texts.append("x % 2 = 0")
    even = texts[-1] == "x % 2 = 0"

    def holds(row: dict) -> bool:
        return all(row[column] in known for column, known in tests) and (not even or row["x"] % 2 == 0)

    return " AND ".join(texts), holds


def test_answers_are_those_of_all_segments() -> None:
    pruned = sum(agree(random.Random(SEED + part)) for part in range(3))
    assert pruned > 10, pruned


def agree(rng: random.Random) -> int:
    """Of how many queries some segments were left out."""
    con = flashmesh.connect()
    key = rng.choice(KEYS)
    con.execute(f"CREATE TABLE t ({COLUMNS}) WITH (distribute_by = {key}, buckets = 7, retention = '1 day')")
    rows, pruned = [], 0
    for step in range(12):
        more = [drawn(rng, 1000 * step + number) for number in range(rng.choice([1, 40, 400]))]
        rows += more
        con.execute(
            "INSERT INTO t VALUES " + ", ".join("(" + ", ".join(map(literal, row.values())) + ")" for row in more)
        )
        change = rng.randrange(5)
        if change == 0:
            key = rng.choice(KEYS)
            con.execute(f"ALTER TABLE t SET (distribute_by = {key}, buckets = {rng.choice([1, 5, 16])})")
        elif change == 1:
            gone = rng.randrange(20)
            con.execute(f"DELETE FROM t WHERE x % 20 = {gone}")
            rows = [row for row in rows if row["x"] % 20 != gone]
        elif change == 2:
            con.execute("UPDATE t SET a = a + 1, s = s || 'z' WHERE x % 3 = 0")
            for row in rows:
                if row["x"] % 3 == 0:
                    row["a"] = None if row["a"] is None else row["a"] + 1
                    row["s"] = None if row["s"] is None else row["s"] + "z"
        for _ in range(8):
            columns = rng.choice([key.strip("()").split(", "), rng.sample(list("asdcbu"), 2)])
            text, holds = condition(rng, rows or [drawn(rng, 0)], columns)
            query = f"SELECT count(*), sum(x) FROM t WHERE {text}"
            found = [row["x"] for row in rows if holds(row)]
            con.execute(f"SET flashmesh.pushdown = '{rng.choice(['auto', 'always', 'never'])}'")
            assert con.execute(query).fetchall() == [(len(found), sum(found) if found else None)], (query, step)
            pruned += bool(re.search(r"by_key=\d+ of \d+ segments", str(con.execute(f"EXPLAIN {query}").fetchall())))
            con.execute(f"PREPARE p AS SELECT count(*) FROM t WHERE {columns[0]} = $1")
            [value] = [rng.choice(rows)[columns[0]]] if rows else [None]
            expected = sum(value is not None and row[columns[0]] == value for row in rows)
            if value is not None:
                assert con.execute(f"EXECUTE p({literal(value)})").fetchall() == [(expected,)], (columns, value)
            con.execute("DEALLOCATE p")
    return pruned


def test_one_of_many_segments_is_read() -> None:
    con = flashmesh.connect()
    con.execute(
        "CREATE TABLE t WITH (distribute_by = k, buckets = 32) AS SELECT value % 5000 AS k, value AS x FROM range(200000) AS s(value)"
    )
    plan = str(con.execute("EXPLAIN SELECT sum(x) FROM t WHERE k = 77").fetchall())
    # A bucket has a segment of each writer.
    (some, all_of_them) = map(int, re.search(r"by_key=(\d+) of (\d+) segments", plan).groups())
    assert some * 32 == all_of_them, plan
    # NULL equals nothing.
    con.execute("PREPARE p AS SELECT count(*) FROM t WHERE k = $1")
    assert con.execute("EXECUTE p(NULL)").fetchall() == [(0,)]
    assert con.execute("SELECT count(*) FROM t WHERE k = 77 AND k = 78").fetchall() == [(0,)]


def test_replicas_of_a_table() -> None:
    con = flashmesh.connect()
    con.execute("CREATE TABLE one (a INT) WITH (replicas = 1)")
    for statement, why in (
        ("CREATE TABLE two (a INT) WITH (replicas = 2)", "asks for each page on 2 nodes, and here it is on 1"),
        ("CREATE TABLE two (a INT) WITH (replicas = 0)", "replicas is a number of 1 to"),
        ("ALTER TABLE one SET (replicas = 1)", "in the rack file"),
    ):
        with pytest.raises(flashmesh.Error, match=why):
            con.execute(statement)
