"""Values keep their digits, and are of the type that they are written as."""

from __future__ import annotations

import datetime
import decimal
import random
import uuid

import duckdb
import flashmesh
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from seeds import SEED


def rows(connection, query: str, *args) -> list[tuple]:
    return [tuple(row) for row in connection.execute(query, *args).fetchall()]


@pytest.mark.parametrize("pushdown", ["always", "auto", "never"])
@pytest.mark.parametrize(("precision", "scale"), [(10, 2), (12, 2), (18, 6), (38, 10), (9, 0)])
def test_decimals_are_compared_with_what_a_literal_says(pushdown: str, precision: int, scale: int) -> None:
    chance = random.Random(f"{SEED} {precision} {scale}")
    own, peer = flashmesh.connect(), duckdb.connect()
    own.execute(f"SET flashmesh.pushdown = '{pushdown}'")
    values = []
    for _ in range(60):
        digits = chance.randint(1, min(precision, 15))
        unscaled = chance.randrange(10**digits) * chance.choice([1, 1, -1])
        values.append(decimal.Decimal(unscaled).scaleb(-scale))
    for connection in (own, peer):
        connection.execute(f"CREATE TABLE w (id INT, x DECIMAL({precision}, {scale}))")
        inserted = ", ".join(f"({number}, '{value:f}')" for number, value in enumerate(values))
        connection.execute(f"INSERT INTO w VALUES {inserted}, (-1, NULL)")
    for _ in range(25):
        one, other, third = (f"{chance.choice(values):f}" for _ in range(3))
        near = f"{one}{'' if '.' in one else '.'}{chance.randrange(10)}"
        for test in (
            f"x = {one}",
            f"{one} <= x",
            f"x <> {one}",
            f"x < {near}",
            f"x IN ({one}, {other}, {near}, NULL)",
            f"x NOT IN ({one}, {third})",
            f"x BETWEEN {one} AND {other}",
            f"x IS NOT DISTINCT FROM {one}",
            f"CASE x WHEN {one} THEN 1 WHEN {other} THEN 2 END = 1",
            f"nullif(x, {one}) IS NULL",
            f"greatest(x, {one}) = x",
            f"coalesce(x, {one}) = {one}",
            f"(x, id) IN (SELECT {one}, id FROM w)",
        ):
            query = f"SELECT id FROM w WHERE {test} ORDER BY id"
            assert rows(own, query) == rows(peer, query), query
        query = f"SELECT id, sum(x) FROM w GROUP BY id HAVING max(x) >= {one} ORDER BY id"
        assert rows(own, query) == rows(peer, query), query
        query = "SELECT id FROM w WHERE x = ? ORDER BY id"
        assert rows(own, query, [float(one)]) == rows(own, query, [decimal.Decimal(one)]), one
    one = f"{values[0]:f}"
    for connection in (own, peer):
        connection.execute(f"UPDATE w SET id = id + 1000 WHERE x = {one}")
        connection.execute(f"DELETE FROM w WHERE x = {values[1]:f}")
    assert rows(own, "SELECT * FROM w ORDER BY ALL") == rows(peer, "SELECT * FROM w ORDER BY ALL")


def test_checks_and_keys_of_decimals() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE p (x DECIMAL(12, 2) PRIMARY KEY CHECK (x <= 519659.45 AND x >= 8634.95))")
    own.execute("INSERT INTO p VALUES ('519659.45'), ('8634.95')")
    assert rows(own, "SELECT count(*) FROM p WHERE x = 519659.45") == [(1,)]
    with pytest.raises(flashmesh.Error, match="CHECK"):
        own.execute("INSERT INTO p VALUES ('519659.46')")


def test_decimals_become_the_nearest_floats() -> None:
    own = flashmesh.connect()
    chance = random.Random(f"{SEED} floats")
    texts = [
        f"{chance.choice(['', '-'])}{chance.randrange(10 ** chance.randint(1, 20))}.{chance.randrange(10 ** chance.randint(1, 18))}"
        for _ in range(300)
    ]
    values = ", ".join(f"('{text}'::DECIMAL(38, 18))" for text in texts)
    found = rows(own, f"SELECT x::DOUBLE, x FROM (VALUES {values}) AS v(x)")
    for (number, exact), _ in zip(found, texts, strict=True):
        assert number == float(exact), exact
    assert rows(own, "SELECT '866886194'::DECIMAL(38, 18)::DOUBLE::BIGINT") == [(866886194,)]


def test_whole_numbers_of_any_length_are_exact() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE q (v DECIMAL(38, 0))")
    own.execute("INSERT INTO q VALUES (12345678901234567890123), (-99999999999999999999)")
    long = decimal.Decimal("12345678901234567890123")
    assert rows(own, "SELECT v FROM q WHERE v = 12345678901234567890123") == [(long,)]
    assert rows(own, "SELECT 99999999999999999999::DECIMAL(38, 0), 18446744073709551615, 18446744073709551616") == [
        (decimal.Decimal("99999999999999999999"), 2**64 - 1, decimal.Decimal(2**64))
    ]
    own.execute("UPDATE q SET v = 12345678901234567890124 WHERE v > 12345678901234567890122")
    assert rows(own, "SELECT max(v) - 1 FROM q") == [(long,)]


def test_numbers_are_no_dates_and_dates_are_no_numbers() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE u (a INT, d DATE, ts TIMESTAMP, tm TIME, n BIGINT, s VARCHAR, i INTERVAL)")
    for column, value in (
        ("d", "20240101"), ("ts", "1700000000"), ("ts", "1.7e9"), ("tm", "36000"), ("i", "'5'"),
        ("n", "DATE '2024-01-01'"), ("n", "TIMESTAMP '2024-01-01'"), ("n", "TIME '10:00'"),
    ):  # fmt: skip
        with pytest.raises(flashmesh.Error, match=f"column '{column}'"):
            own.execute(f"INSERT INTO u (a, {column}) VALUES (1, {value})")
    with pytest.raises(flashmesh.Error, match="column 'd' of type DATE"):
        own.load("u", pa.table({"a": [1], "d": [20240101]}), mode="append")
    # A moment in a column of texts is the text that a cast makes.
    own.execute("INSERT INTO u (a, ts) VALUES (1, '2024-01-01 05:00:00.5')")
    own.execute("INSERT INTO u (a, s) SELECT 2, ts FROM u")
    own.execute("INSERT INTO u (a, s) VALUES (3, TIMESTAMP '2024-01-01 05:00:00.5'), (4, INTERVAL '1 hour')")
    query = "SELECT a FROM u WHERE s = (SELECT ts::VARCHAR FROM u WHERE a = 1) OR s = '01:00:00' ORDER BY a"
    assert rows(own, query) == [(2,), (3,), (4,)]
    assert rows(own, "SELECT date(ts), date('2024-02-29') FROM u WHERE a = 1") == [
        (datetime.date(2024, 1, 1), datetime.date(2024, 2, 29))
    ]


def test_dicts_of_different_columns_are_refused() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE a (id INT PRIMARY KEY, n INT DEFAULT 7, s TEXT)")
    for given in (
        [{"id": 1}, {"id": 2, "n": 5, "s": "x"}],
        [{"id": 1, "n": 1, "s": "p"}, {"id": 2}],
        [{"id": 1, "n": 1, "s": "p"}, {"id": 2, "n": 1, "z": "p"}],
    ):
        for add in (own.insert, own.put):
            with pytest.raises(flashmesh.Error, match="row 1 of 2 has other columns"):
                add("a", given)
    assert own.insert("a", []) == 0 == own.put("a", [])
    assert own.insert("a", [{"s": "x", "id": 1}, {"id": 2, "s": "y"}]) == 2
    assert own.put("a", [{"id": 2, "n": 5, "s": "z"}, {"s": "w", "id": 3, "n": 6}]) == 2
    assert rows(own, "SELECT * FROM a ORDER BY id") == [(1, 7, "x"), (2, 5, "z"), (3, 6, "w")]


def test_moments_keep_their_nanoseconds_in_dicts_and_keys() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE k (k TIMESTAMP PRIMARY KEY, v INT)")
    own.execute("INSERT INTO k VALUES ('2024-01-01 10:00:00.123456789', 1)")
    ((key,),) = rows(own, "SELECT k FROM k")
    assert own.get_one("k", key) == {"k": key, "v": 1}
    assert own.put("k", [{"k": key, "v": 2}]) == 1
    assert own.get("k", [key]).to_arrow_table()["v"].to_pylist() == [2]
    assert rows(own, "SELECT count(*) FROM k") == [(1,)]
    assert own.delete("k", [key]) == 1
    own.execute("CREATE TABLE e (id UUID PRIMARY KEY, at TIMESTAMP DEFAULT now(), n INT)")
    name = uuid.UUID(int=5)
    own.insert("e", [{"id": name, "n": 1}])
    found = own.get_one("e", str(name))
    own.put("e", [{**found, "n": 2}])
    assert own.get_one("e", name) == {**found, "n": 2}
    assert rows(own, "SELECT count(*) FROM e WHERE date_part('nanosecond', at)::BIGINT % 1000 = 0") == [(1,)]


def test_results_are_data_that_pyarrow_computes_with() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE t (id INT, s TEXT, l TEXT[], b BYTEA, m STRUCT(x TEXT))")
    own.execute("INSERT INTO t VALUES (1, 'a', ['x'], 'q', {'x': 'y'}), (2, NULL, NULL, NULL, NULL)")
    table = own.execute("SELECT * FROM t ORDER BY id").arrow()
    assert [str(field.type) for field in table.schema] == [
        "int32", "string", "list<item: string>", "binary", "struct<x: string>",
    ]  # fmt: skip
    assert table.filter(pc.field("s") == "a").num_rows == 1
    assert table.sort_by("s").take([0])["s"].to_pylist() == ["a"]
    result = own.execute("SELECT * FROM t ORDER BY id")
    assert result.fetchone()[0] == 1
    assert result.arrow().schema == table.schema and result.arrow().num_rows == 0
    assert pa.table(own.execute("SELECT * FROM t ORDER BY id")).equals(table)
