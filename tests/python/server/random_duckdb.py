"""Random queries on random tables, against DuckDB over the same rows, in every pushdown mode.

    python tests/python/server/random_duckdb.py --queries 200000 [--seed 17]

The queries stay where both mean the same: NULLS FIRST or LAST is always said, nothing is divided,
floats are eighths or special. Of the results, the order of unordered rows, the sign of zero and
the last digits of averages are left out.
"""

import argparse
import datetime
import decimal
import math
import random
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
from serving import Server

MODES = ["never", "auto", "always"]
TABLES = {"big": 3000, "small": 60}
# A new pair of tables for so many queries.
ROUND = 100

WORDS = ["", "a", "flash", "Flash", "mesh", "flash page", "über", "100%", "x_y"]
SPECIAL = [math.nan, math.inf, -math.inf, 0.0, -0.0, 0.125, -2.5]
EPOCH = datetime.datetime(2000, 1, 1)

# Columns by name: their type and a value.
COLUMNS = {
    "k": (pa.int32(), lambda r: r.randrange(40)),
    "i": (pa.int64(), lambda r: r.randrange(-1000, 1000)),
    "n": (pa.int16(), lambda r: r.choice([-1, 0, 1, 7])),
    "f": (pa.float64(), lambda r: r.choice(SPECIAL) if r.random() < 0.3 else r.randrange(-800, 800) / 8),
    "g": (pa.float32(), lambda r: r.choice(SPECIAL) if r.random() < 0.3 else r.randrange(-800, 800) / 8),
    "e": (pa.float64(), lambda r: r.randrange(-8000, 8000) / 8),
    "s": (pa.string(), lambda r: r.choice(WORDS) + r.choice(["", "1", "22"])),
    "b": (pa.bool_(), lambda r: r.random() < 0.5),
    "c": (pa.bool_(), lambda r: r.random() < 0.2),
    "d": (pa.date32(), lambda r: (EPOCH + datetime.timedelta(days=r.randrange(2000))).date()),
    "t": (pa.timestamp("us"), lambda r: EPOCH + datetime.timedelta(seconds=r.randrange(10**8))),
    "z": (pa.timestamp("us", "UTC"), lambda r: EPOCH + datetime.timedelta(seconds=r.randrange(10**8))),
    "m": (pa.decimal128(12, 2), lambda r: decimal.Decimal(r.randrange(-99999, 99999)).scaleb(-2)),
}
INTEGERS, FLOATS, BOOLEANS = ["id", "k", "i", "n"], ["f", "g", "e"], ["b", "c"]
SUMMED = ["id", "k", "i", "n", "e", "m"]
GROUPED = ["k", "n", "f", "g", "s", "b", "d", "m"]
ORDERED = ["id", *COLUMNS]
# Orders, windows and count(DISTINCT …) tell the two zeros apart, as docs/sql.md says.
PARTED = [name for name in GROUPED if name not in FLOATS]
SORTED = [name for name in ORDERED if name not in FLOATS]


def table(rng: random.Random, rows: int) -> pa.Table:
    """A table whose columns have no, some or only NULLs."""
    columns = {"id": pa.array(range(rows), pa.int64())}
    for name, (kind, value) in COLUMNS.items():
        nulls = rng.choice([0, 0.1, 0.1, 0.5, 1 if rng.random() < 0.1 else 0])
        values = [None if rng.random() < nulls else value(rng) for _ in range(rows)]
        columns[name] = pa.array(values, kind)
    return pa.table(columns)


class Queries:
    """Writes queries."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def one(self) -> str:
        kinds = [
            self.rows, self.groups, self.groups, self.top, self.sets, self.join, self.keyed_join, self.null_equal_join,
            self.subquery, self.not_in, self.tested, self.tested, self.dependent, self.dependent, self.window, self.recursion, self.same_names, self.renamed_order,
        ]
        return self.rng.choice(kinds)()

    def pick(self, names: list[str], relation: str) -> str:
        return f"{relation}.{self.rng.choice(names)}"

    def literal(self, column: str) -> str:
        name = column.split(".")[1]
        if name == "id":
            return str(self.rng.randrange(100))
        kind, value = COLUMNS[name]
        value = value(self.rng)
        if name in FLOATS:
            value = abs(value) if value == 0 else value
            return f"CAST('{value}' AS {'DOUBLE' if kind == pa.float64() else 'REAL'})"
        if isinstance(value, str):
            return f"'{value}'"
        if name == "z":
            return f"CAST('{value.isoformat()}+00:00' AS TIMESTAMP WITH TIME ZONE)"
        if isinstance(value, datetime.datetime):
            return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
        if isinstance(value, datetime.date):
            return f"DATE '{value}'"
        if name == "m":
            return f"CAST('{value}' AS DECIMAL(12, 2))"
        return str(value).lower()

    def test(self, relation: str, depth: int = 2) -> str:
        """A condition; without the parentheses that precedence makes superfluous."""
        rng = self.rng
        if depth and rng.random() < 0.6:
            left, right = self.test(relation, depth - 1), self.test(relation, depth - 1)
            kind = rng.randrange(7)
            if kind < 2:
                return f"{left} AND {right}"
            if kind < 4:
                return f"{left} OR {right}"
            return [f"NOT ({left})", f"({left} OR {right})", f"CASE WHEN {left} THEN {right} ELSE false END"][kind - 4]
        column = self.pick(ORDERED, relation)
        name = column.split(".")[1]
        forms = [
            f"{column} {rng.choice(['=', '<>', '<', '<=', '>', '>='])} {self.literal(column)}",
            f"{column} IS {rng.choice(['', 'NOT '])}NULL",
            f"{column} IS {rng.choice(['', 'NOT '])}DISTINCT FROM {self.literal(column)}",
            f"{column} BETWEEN {self.literal(column)} AND {self.literal(column)}",
        ]
        if name not in FLOATS:
            values = ", ".join([*(self.literal(column) for _ in range(3)), *rng.choice([[], [], ["NULL"]])])
            forms.append(f"{column} {rng.choice(['', 'NOT '])}IN ({values})")
        if name == "s":
            forms += [f"{column} LIKE '%a{rng.choice(['', '%', '_%'])}'", f"upper({column}) = 'FLASH1'", f"length({column}) > 4"]
        if name in BOOLEANS:
            forms += [column, f"NOT {column}", f"{column} IS NOT TRUE", f"{relation}.b IS DISTINCT FROM {column}"]
        if name in INTEGERS:
            forms += [f"{column} * 2 - 1 > {relation}.k", f"abs({column}) % 3 = 1"]
        if name == "d":
            forms += [f"extract(year FROM {column}) = 2002", f"date_trunc('month', {column}) = DATE '2001-05-01'"]
        return rng.choice(forms)

    def where(self, relation: str) -> str:
        return f" WHERE {self.test(relation)}" if self.rng.random() < 0.85 else ""

    def order(self, *columns: str) -> str:
        kinds = ["ASC NULLS FIRST", "ASC NULLS LAST", "DESC NULLS FIRST", "DESC NULLS LAST"]
        return ", ".join(f"{column} {self.rng.choice(kinds)}" for column in columns)

    def some(self) -> str:
        return self.rng.choice(list(TABLES))

    def rows(self) -> str:
        relation = self.some()
        columns = [self.pick(ORDERED, relation) for _ in range(3)]
        extra = self.rng.choice([
            "coalesce(k, i, 0)", "nullif(n, 1)", "s || '!'", "CASE WHEN b THEN i ELSE k END", "substr(s, 2, 3)",
            "greatest(i, k)", "least(f, e)", "i IS DISTINCT FROM k", "date_trunc('month', t)",
        ])
        return f"SELECT {', '.join(columns)}, {extra} AS extra FROM {relation}{self.where(relation)}"

    def aggregate(self, relation: str) -> str:
        rng = self.rng
        call = rng.choice([
            "count(*)", f"count({self.pick(ORDERED, relation)})", f"sum({self.pick(SUMMED, relation)})",
            f"min({self.pick(ORDERED[:-7] + ['d', 't', 'm'], relation)})",
            f"max({self.pick(['f', 'g', 'e', 's', 'i', 'z'], relation)})",
            f"min({self.pick(['f', 'g', 's'], relation)})",
            f"avg({self.pick(['id', 'i', 'e'], relation)})", f"count(DISTINCT {self.pick(PARTED, relation)})",
        ])
        return f"{call} FILTER (WHERE {self.test(relation, 1)})" if rng.random() < 0.15 and "DISTINCT" not in call else call

    def groups(self) -> str:
        relation = self.some()
        keys = list({self.pick(GROUPED, relation) for _ in range(self.rng.randrange(3))})
        calls = [self.aggregate(relation) for _ in range(self.rng.randrange(1, 4))]
        columns = ", ".join(f"{column} AS o{number}" for number, column in enumerate([*keys, *calls]))
        text = f"SELECT {columns} FROM {relation}{self.where(relation)}"
        if keys:
            text += f" GROUP BY {', '.join(keys)}" + self.rng.choice(["", "", " HAVING count(*) > 2"])
        return text

    def top(self) -> str:
        relation = self.some()
        key = self.pick(SORTED, relation)
        offset = self.rng.choice(["", f" OFFSET {self.rng.randrange(5)}"])
        return (
            f"SELECT {relation}.id, {key} AS v FROM {relation}{self.where(relation)} "
            f"ORDER BY {self.order(key, f'{relation}.id')} LIMIT {self.rng.randrange(1, 30)}{offset} /* ordered */"
        )

    def sets(self) -> str:
        column = self.rng.choice(GROUPED)
        operator = self.rng.choice(["UNION", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL"])
        return f"SELECT {column} AS v FROM big{self.where('big')} {operator} SELECT {column} FROM small{self.where('small')}"

    def join(self) -> str:
        kind = self.rng.choice(["", "LEFT ", "RIGHT ", "FULL "])
        column = self.rng.choice(["k", "id", "f", "s", "d"])
        return (
            f"SELECT count(*), sum(big.id), sum(small.id), min(big.f), max(small.f) "
            f"FROM big {kind}JOIN small ON big.{column} = small.{column}{self.where(self.some())}"
        )

    def keyed_join(self) -> str:
        """A column of USING is that of the side that has the row."""
        kind = self.rng.choice(["", "LEFT ", "RIGHT ", "FULL "])
        column = self.rng.choice(["k", "n", "s", "d"])
        joined = f"FROM big {kind}JOIN small USING ({column})"
        return self.rng.choice([
            f"SELECT {column}, count(*), sum(big.id), sum(small.id) {joined}{self.where(self.some())} GROUP BY {column}",
            f"SELECT {column} AS v, big.id AS b, small.id AS s {joined} WHERE {column} IS NOT NULL",
            f"SELECT count({column}), min({column}) {joined}",
            f"SELECT o.id FROM small AS o WHERE o.n IN (SELECT n FROM big {kind}JOIN small USING (n) WHERE n < o.k)",
        ])

    def null_equal_join(self) -> str:
        kind = self.rng.choice(["", "LEFT "])
        column = self.rng.choice(["k", "n", "b", "s"])
        return (
            f"SELECT count(*), sum(big.id), sum(small.id) FROM small {kind}JOIN big "
            f"ON small.{column} IS NOT DISTINCT FROM big.{column} AND {self.test('small', 1)}"
        )

    def subquery(self) -> str:
        inner = f"SELECT {self.rng.choice(['min', 'max', 'count'])}(small.i) FROM small"
        return self.rng.choice([
            f"SELECT big.id FROM big WHERE {self.rng.choice(['', 'NOT '])}EXISTS "
            f"(SELECT 1 FROM small WHERE small.k = big.k AND ({self.test('small', 1)}))",
            f"SELECT count(*) FROM big WHERE big.i > ({inner}{self.where('small')})",
            f"SELECT big.id FROM big WHERE big.k IN (SELECT small.k FROM small{self.where('small')}) AND ({self.test('big', 1)})",
        ])

    def not_in(self) -> str:
        inner = f"SELECT small.k FROM small{self.where('small')}"
        return f"SELECT count(*), sum(big.id) FROM big WHERE big.k NOT IN ({inner}) {self.rng.choice(['OR', 'AND'])} {self.test('big', 1)}"

    def comparison(self, outer: str) -> str:
        """A test by a subquery, which may be of the table of the query around it."""
        rng = self.rng
        inner = self.some()
        column = rng.choice(["id", "k", "i", "n", "e", "s", "d"])
        related = f" AND {inner}.n = {outer}.n" if inner != outer and rng.random() < 0.4 else ""
        query = f"(SELECT {inner}.{column} FROM {inner} WHERE ({self.test(inner, 1)}){related})"
        operator = rng.choice(["=", "<>", "<", "<=", ">", ">="])
        return rng.choice([
            f"{outer}.{column} {operator} {rng.choice(['ANY', 'ALL'])} {query}",
            f"{outer}.{column} {operator} {rng.choice(['ANY', 'ALL'])} {query}",
            f"{outer}.{column} {rng.choice(['', 'NOT '])}IN {query}",
            f"{rng.choice(['', 'NOT '])}EXISTS {query}",
        ])

    def tested(self) -> str:
        """Tests by subqueries wherever an expression can stand."""
        outer = self.some()
        one, other, condition = self.comparison(outer), self.comparison(outer), self.test(outer, 1)
        rows = f"FROM {outer}{self.where(outer)}"
        return self.rng.choice([
            f"SELECT {outer}.id, {one} AS t {rows}",
            f"SELECT {outer}.id, CASE WHEN {one} THEN 1 WHEN {other} THEN 2 ELSE 3 END AS t {rows}",
            f"SELECT {outer}.id, NOT ({one}) AS t, ({one}) IS NULL AS u {rows}",
            f"SELECT {one} AS t, count(*), sum({outer}.id) {rows} GROUP BY 1",
            f"SELECT sum(CASE WHEN {one} THEN {outer}.id ELSE 0 END), count(*) {rows}",
            f"SELECT {outer}.id FROM {outer} WHERE {one} {self.rng.choice(['AND', 'OR'])} ({condition})",
            f"SELECT {outer}.id FROM {outer} WHERE NOT ({one} {self.rng.choice(['AND', 'OR'])} {other})",
            f"SELECT {outer}.id, row_number() OVER (ORDER BY {outer}.id) AS w, {one} AS t {rows}",
            f"SELECT count(*), sum(big.id), sum(small.id) FROM big JOIN small ON big.k = small.k AND ({one})",
            f"SELECT s.t, count(*) FROM (SELECT {one} AS t {rows}) AS s GROUP BY s.t",
        ])

    def dependent(self) -> str:
        """Subqueries of any shape that use columns of the query around them."""
        rng = self.rng
        rows, value = f"FROM {rng.choice(['small', 'small', 'big'])} AS o WHERE {self.test('o', 1)}", self.dependent_rows()
        calls = ["max(q.v)", "count(q.v)", "sum(q.v)", "count(*)", "count(DISTINCT q.v)"]
        scalar = f"(SELECT {rng.choice(calls)} FROM ({value}) AS q)"
        first = f"(SELECT q.v FROM ({value}) AS q ORDER BY q.v NULLS {rng.choice(['FIRST', 'LAST'])} LIMIT 1)"
        test = rng.choice([f"EXISTS ({value})", f"o.id IN ({value})", f"o.k NOT IN ({value})", f"o.id >= ALL ({value})"])
        return rng.choice([
            f"SELECT o.id, {scalar} AS t {rows}",
            f"SELECT o.id, {first} AS t {rows}",
            f"SELECT o.id {rows} AND {scalar} > o.n",
            f"SELECT o.id, {test} AS t {rows}",
            f"SELECT o.id {rows} AND {rng.choice(['', 'NOT '])}{test}",
            f"SELECT o.id, q.v {rows.replace(' AS o', f' AS o, LATERAL ({value}) AS q')}",
            f"SELECT o.id, q.v {rows.replace(' AS o', f' AS o LEFT JOIN LATERAL ({value}) AS q ON true')}",
            f"SELECT o.id {rows} ORDER BY {scalar} NULLS FIRST, o.id /* ordered */",
            f"SELECT o.n, sum({scalar}), max({first}) {rows} GROUP BY o.n",
        ])

    def dependent_rows(self, depth: int = 1) -> str:
        """A query with a column `v` that uses columns of a table `o` of the query around it."""
        rng = self.rng
        name = f"i{depth}"
        inner = f"{rng.choice(['small', 'small', 'big'])} AS {name}"
        related = rng.choice([
            f"{name}.n = o.n", f"{name}.n = o.n AND {name}.k <> o.k", f"{name}.k < o.n", f"{name}.n = o.n OR o.k IS NULL",
            f"{name}.k + o.n = 20", f"{name}.n IS NOT DISTINCT FROM o.n", "o.b", f"{name}.n = o.n AND {self.test(name, 1)}",
        ])
        rows = f"FROM {inner} WHERE ({related})"
        kinds = [
            f"SELECT {name}.id AS v {rows}",
            f"SELECT {name}.id + o.k AS v {rows}",
            f"SELECT count(*) AS v {rows} GROUP BY {name}.n HAVING count(*) > {rng.choice(['1', 'o.n'])}",
            f"SELECT {name}.id AS v {rows} ORDER BY {name}.id {rng.choice(['', 'DESC '])}LIMIT {rng.randrange(4)} OFFSET {rng.randrange(3)}",
            f"SELECT row_number() OVER (PARTITION BY {name}.b ORDER BY {name}.id) AS v {rows}",
            f"SELECT DISTINCT CAST({name}.n AS BIGINT) AS v {rows}",
            f"SELECT {rng.choice(['p.id', 'r.id', 'o.id'])} AS v FROM small AS p {rng.choice(['LEFT', 'RIGHT', 'FULL', 'INNER'])} JOIN "
            f"(SELECT * {rows}) AS r ON p.k = r.k{rng.choice(['', ' AND p.n = r.n'])}",
            f"SELECT {name}.id AS v {rows} AND {rng.choice(['', 'NOT '])}EXISTS "
            f"(SELECT 1 FROM small AS y WHERE y.n = o.n AND y.k {rng.choice(['=', '<'])} {name}.k)",
            "SELECT w.v FROM (VALUES (CAST(o.id AS BIGINT)), (CAST(o.k AS BIGINT))) AS w(v)",
            "SELECT o.id + 1 AS v",
        ]
        if depth == 1:
            # DuckDB 2.0 loses the row of an aggregate over no rows in a set operation.
            kinds.append(f"SELECT {rng.choice(['count(*)', f'sum({name}.k)', f'max({name}.id)'])} AS v {rows}")
            one, other = self.dependent_rows(2), self.dependent_rows(3)
            kinds.append(f"SELECT v FROM ({one}) AS a UNION {rng.choice(['', 'ALL '])}SELECT v FROM ({other}) AS b")
            kinds.append(f"SELECT a.v FROM ({one}) AS a WHERE a.v IN ({other})")
        return rng.choice(kinds)

    def window(self) -> str:
        relation, group = self.some(), self.rng.choice(PARTED)
        call = self.rng.choice([
            f"row_number() OVER (PARTITION BY {group} ORDER BY id)",
            f"rank() OVER (ORDER BY {self.order(group)})",
            f"lag(i) OVER (PARTITION BY {group} ORDER BY id DESC)",
            f"sum(i) OVER (PARTITION BY {group} ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)",
            f"min(f) OVER (PARTITION BY {group} ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)",
            f"max(g) OVER (PARTITION BY {group})",
        ])
        return f"SELECT id, {call} AS w FROM {relation}{self.where(relation)}"

    def recursion(self) -> str:
        return (
            f"WITH RECURSIVE r(n) AS (SELECT CAST({self.rng.randrange(40)} AS BIGINT) UNION "
            f"SELECT CAST(big.k AS BIGINT) FROM r JOIN big ON r.n = big.id WHERE {self.test('big', 1)}) "
            "SELECT count(*), sum(n), min(n) FROM r"
        )

    def same_names(self) -> str:
        relation = self.some()
        one, other = (self.rng.choice(["upper(s)", "i", "k + 1", "f"]) for _ in range(2))
        return f"SELECT {one}, {other}, {one} FROM {relation}{self.where(relation)}"

    def renamed_order(self) -> str:
        relation = self.some()
        select = self.rng.choice(["i % 7 AS id, id AS i", "-id AS id, i", "id AS i, i AS id", "abs(id - 20) AS id, id AS i"])
        return (
            f"SELECT {select} FROM {relation}{self.where(relation)} "
            f"ORDER BY {self.order('id', 'i')} LIMIT {self.rng.randrange(1, 30)} /* ordered */"
        )


def normal(value: object) -> object:
    """A value as text that is the same for both engines."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, datetime.datetime):
        value = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
        return value.isoformat()
    if isinstance(value, datetime.date):
        return datetime.datetime(value.year, value.month, value.day).isoformat()
    if isinstance(value, (int, float, decimal.Decimal)):
        return "0" if value == 0 else f"{float(value):.10g}"
    return str(value)


def rows_of(result: pa.Table, sql: str) -> list[tuple]:
    columns = [column.to_pylist() for column in result.columns]
    rows = [tuple(map(normal, row)) for row in zip(*columns, strict=True)]
    return rows if sql.endswith("/* ordered */") else sorted(rows)


def compare(connect, queries: int, seed: int, *settings: str, prepare=lambda cursor, rng: None) -> int:
    """Compares so many queries in a session with these settings, of which `connect` makes a connection; gives how many
    DuckDB answered. `prepare` may do to new tables what leaves their rows as they are. A difference is an
    AssertionError."""
    compared = 0
    with connect() as connection, connection.cursor() as cursor:
        for setting in settings:
            cursor.execute(setting)
        for number in range(0, queries, ROUND):
            rng = random.Random(f"{seed}/{number}")
            peer = duckdb.connect()
            peer.execute("SET TimeZone = 'UTC'")
            for name, rows in TABLES.items():
                data = table(rng, rng.choice([rows, rows, rows // 10, 1]))
                half = (data.num_rows + 1) // 2
                cursor.adbc_ingest(name, data.slice(0, half), mode="replace")
                if rest := data.num_rows - half:
                    cursor.adbc_ingest(name, data.slice(half, rest), mode="append")
                peer.register("data", data)
                peer.execute(f"CREATE TABLE {name} AS SELECT * FROM data")
            prepare(cursor, rng)
            writer = Queries(rng)
            for place in range(number, min(number + ROUND, queries)):
                sql = writer.one()
                try:
                    expected = rows_of(peer.sql(sql).to_arrow_table(), sql)
                except duckdb.Error:
                    continue
                compared += 1
                for mode in MODES:
                    cursor.execute(f"SET flashmesh.pushdown = '{mode}'")
                    where = f"seed {seed}, query {place}, pushdown {mode}\n{sql}"
                    try:
                        cursor.execute(sql)
                        found = rows_of(cursor.fetch_arrow_table(), sql)
                    except Exception as error:
                        raise AssertionError(f"{where}\n{error}") from error
                    differ = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
                    assert found == expected, f"{where}\n{len(found)} rows, DuckDB {len(expected)}; first difference {differ[:1]}"
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            compared = compare(server.connect, arguments.queries, arguments.seed)
        finally:
            server.stop()
    print(f"{compared} of {arguments.queries} queries compared, no difference")


if __name__ == "__main__":
    main()
