"""Statements with parameters, their results, variables as tables, asyncio: the same code on a file, a server
and a rack."""

import asyncio
import datetime
import decimal
import random
import subprocess
import sys
import uuid

import duckdb
import flashmesh
import numpy
import pandas
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
import pytest
from flashmesh import parameters, scope, script
from flashmesh.literals import literal

PLACES = ["file", "server", "rack"]

EAST = datetime.timezone(datetime.timedelta(hours=2))


# Parameters.


def same(got, value):
    """Equal, of one type, and NaN is NaN."""
    return type(got) is type(value) and (got == value or (got != got and value != value))


VALUES = [
    *(None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1),
    *(0.1, -0.0, 1e300, 1e16, 5e-324, float("inf"), float("-inf"), float("nan")),
    *("", "it's", 'a "b"', "\\n \\", "ä\n\0?", "$1", "?", "--", "/*", "';--"),
    *(b"", b"\x00\xff'"),
    *(decimal.Decimal("-1.230"), decimal.Decimal("0.001"), decimal.Decimal("9" * 38), decimal.Decimal("1" * 60)),
    *(datetime.date(1, 1, 1), datetime.date(9999, 12, 31)),
    *(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999999), datetime.time(1, 2, 3, 4)),
    *([1, -2], [1.5, None], ["a'", "\\"], [[1], [2, 3]], [datetime.date(2024, 2, 29)], {"a": -1, "b": {"c'": [1]}}),
]


def test_values_come_back_as_they_are(stocked):
    row = stocked.execute(f"SELECT {', '.join('?' * len(VALUES))}", VALUES).fetchone()
    for got, value in zip(row, VALUES, strict=True):
        assert same(got, value), (got, value)
    # What has no type of its own in SQL.
    for value, expected in (
        (2**64, decimal.Decimal(2**64)),
        (datetime.datetime(2024, 1, 1, 1, tzinfo=EAST), datetime.datetime(2023, 12, 31, 23, tzinfo=datetime.UTC)),
        (uuid.UUID(int=7), str(uuid.UUID(int=7))),
        (bytearray(b"x"), b"x"),
        (numpy.int16(-4), -4),
        (numpy.float64(0.5), 0.5),
        (numpy.bool_(True), True),
        (numpy.array([1.5, -2]), [1.5, -2.0]),
        (pandas.NaT, None),
        (pandas.NA, None),
        (pa.scalar(5, pa.int8()), 5),
        (pa.array([1, None]), [1, None]),
        (pandas.Timestamp("2024-02-29 01:02:03.000000004"), pandas.Timestamp("2024-02-29 01:02:03.000000004")),
    ):
        (got,) = stocked.execute("SELECT ? AS v", [value]).fetchone()
        assert got == expected, (value, got)
    shift = "SELECT TIMESTAMP '2024-03-01 00:00:00' + ?"
    (got,) = stocked.execute(shift, [datetime.timedelta(days=-1, microseconds=5)]).fetchone()
    assert got == datetime.datetime(2024, 2, 29, 0, 0, 0, 5)


def test_moments_and_lengths_of_time_are_of_pythons_classes(stocked):
    length = datetime.timedelta(hours=-3, microseconds=7)
    query = "SELECT TIMESTAMP '2020-01-01 00:00:00.5', TIMESTAMP '2020-01-01 00:00:00.000000001', INTERVAL '1 day 2 seconds', INTERVAL '1 month', ?, NULL::INTERVAL"
    moment, finer, day, month, got, none = stocked.execute(query, [length]).fetchone()
    assert type(moment) is datetime.datetime and moment == datetime.datetime(2020, 1, 1, microsecond=500_000)
    # Python's own have no nanoseconds.
    assert finer == pandas.Timestamp("2020-01-01 00:00:00.000000001")
    assert day == datetime.timedelta(days=1, seconds=2) and month.months == 1
    assert got == length and none is None


def test_moments_need_no_pandas():
    program = (
        "import sys; sys.modules['pandas'] = None; import flashmesh; con = flashmesh.connect(); "
        "print(*con.execute(\"SELECT TIMESTAMP '2020-01-01 00:00:00.000000001', now() > TIMESTAMP '2020-01-01'\").fetchone()); "
        "print(type(con.execute('SELECT now()').fetchone()[0]).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["2020-01-01 00:00:00 True", "datetime"], done


def test_errors_of_running_queries_have_no_wrappers(stocked):
    for query, expected in [
        ("SELECT 1 / 0", "Divide by zero error"),
        ("SELECT 1 / (value - 5) FROM generate_series(1, 9) AS s(value)", "Divide by zero error"),
        ("SELECT CAST('abc' AS INT)", "Cast error: Cannot cast string 'abc' to value of Int32 type"),
    ]:
        with pytest.raises(flashmesh.Error) as raised:
            stocked.execute(query).fetchall()
        assert str(raised.value) == expected, query


def test_random_values_come_back(stocked):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    letters = "a'\"\\;-$?/*\n\0é`"
    for _ in range(20):
        text = ["".join(random_.choices(letters, k=random_.randrange(9))) for _ in range(5)]
        ints = [random_.randrange(-(2**63), 2**64) for _ in range(5)]
        floats = [random_.uniform(-1, 1) * 10.0 ** random_.randrange(-300, 300) for _ in range(5)]
        blobs = [random_.randbytes(random_.randrange(9)) for _ in range(5)]
        decimals = [decimal.Decimal(random_.randrange(-(10**20), 10**20)).scaleb(-random_.randrange(20)) for _ in range(5)]
        values = [*text, *ints, *floats, *blobs, *decimals]
        random_.shuffle(values)
        query = "SELECT " + ", ".join(f"? AS c{i} /* ? */" for i in range(len(values)))
        assert stocked.execute(query, values).fetchone() == tuple(values)
        named = {f"p{i}": value for i, value in enumerate(values)}
        query = "SELECT " + ", ".join(f"${name} AS c{name}" for name in named)
        assert stocked.execute(query, named).fetchone() == tuple(values)


def test_parameters_stand_where_constants_do(stocked, source):
    sensors = source["sensor"].to_pylist()
    count = "SELECT count(*) FROM reading WHERE sensor = "
    for query, values in (
        (f"{count}?", [7]),
        (f"{count}$1", (7,)),
        (f"{count}?1", [7]),
        (f"{count}$s", {"s": 7, "more": 1}),
    ):
        assert stocked.execute(query, values).fetchall() == [(sensors.count(7),)]
        assert stocked.sql(query, values).fetchall() == [(sensors.count(7),)]
    # As often as it is wanted, in texts and comments not at all.
    query = "SELECT '?', $1 - $2 AS a, \"?\".b, $1 -- ?\n FROM (SELECT 1 AS b) AS \"?\" /* $3 */ LIMIT $2"
    assert stocked.execute(query, [5, 2]).fetchall() == [("?", 3, 1, 5)]
    assert stocked.execute("SELECT 5-?, ?::SMALLINT", [-1, -(2**15)]).fetchall() == [(6, -(2**15))]
    assert stocked.execute("SELECT id FROM reading WHERE id IN (?, ?) OR note LIKE ? ORDER BY 1 LIMIT ?", [3, 4, "x%", 1]).fetchall() == [(3,)]
    # What is built on a statement has its values.
    frame = stocked.sql("SELECT id, ? AS n FROM sensor WHERE id < ?", ["it's", 5]).filter(flashmesh.col("id") > 2)
    assert sorted(frame.fetchall()) == [(3, "it's"), (4, "it's")]


def test_no_value_stands_in_a_text():
    begun = ("'a", "'a''", '"a', "`a", "e'a\\'", "$$ a $ a", "$t$ a $$", "/* a /* */", "-- a")
    for text in begun:
        assert parameters.template(f"SELECT {text} ? $1").gaps == [], text
    ended = ("'a'", "'a'''", '"a"', "`a`", "e'a\\''", "$$ a $ $$", "$t$ a $$ $t$", "/* a /* */ */", "-- a\n", "'a' e")
    for text in ended:
        assert parameters.template(f"SELECT {text} ?").gaps == [0], text


def test_a_parameter_means_what_its_value_means(db):
    db.execute("CREATE TABLE sale (qty INT, price DECIMAL(10, 2), day DATE)")
    db.execute("INSERT INTO sale VALUES (?, ?, ?)", [3, decimal.Decimal("10.00"), datetime.date(2024, 5, 6)])
    evening = datetime.datetime(2024, 5, 6, 23)
    for query, values, expected in (
        ("SELECT qty * ?, price * ? FROM sale", (decimal.Decimal("0.19"), decimal.Decimal("0.195")), (decimal.Decimal("0.57"), decimal.Decimal("1.95000"))),
        ("SELECT count(*) FROM sale WHERE qty >= ?", (3.5,), (0,)),
        ("SELECT count(*) FROM sale WHERE qty < ?", (2**40,), (1,)),
        ("SELECT count(*) FROM sale WHERE day < ?", (evening,), (1,)),
        ("SELECT count(*) FROM sale WHERE day >= ?", (evening,), (0,)),
        ("SELECT 1 + ?, ? / 2", (0.5, 1.0), (1.5, 0.5)),
    ):
        assert db.execute(query, values).fetchone() == expected, query
    with pytest.raises(flashmesh.Error):
        db.execute("INSERT INTO sale (qty) VALUES (?)", [1.5])


def test_parameters_that_do_not_fit_are_refused(stocked):
    for query, values, why in (
        ("SELECT ?", [], "1 parameter, 0 were given"),
        ("SELECT ?", [1, 2], "1 parameter, 2 were given"),
        ("SELECT $2", [1], "2 parameters, 1 was given"),
        ("SELECT 1", [1], "0 parameters"),
        ("SELECT ?", None, "1 parameter and no values"),
        ("SELECT $a, $b", {"a": 1}, r"\$b has no value"),
        ("SELECT $a", [1], "as a dict"),
        ("SELECT ?", {"a": 1}, "list or a tuple"),
        ("SELECT ?, $1", [1], "can't mix"),
        ("SELECT $0", [1], "from \\$1 on"),
        ("SELECT ?00", [1], "from \\$1 on"),
        ("SELECT ?, ?1", [1], "can't mix"),
    ):
        with pytest.raises(flashmesh.Error, match=why):
            stocked.execute(query, values)
    for values in ("text", 5, [object()], {1, 2}):
        with pytest.raises(TypeError, match="parameter"):
            stocked.execute("SELECT ?", values)
    with pytest.raises(ValueError, match="field"):
        stocked.execute("SELECT ?", [{"a\\": 1}])
    with pytest.raises(OverflowError, match="digits"):
        stocked.execute("SELECT ?", [10**100])


def test_prepared_statements_keep_their_parameters(db):
    db.execute("PREPARE twice AS SELECT $1 * 2 AS d")
    assert db.execute("EXECUTE twice(4)").fetchall() == [(8,)]
    assert db.execute("EXECUTE twice(?)", [5]).fetchall() == [(10,)]


# Results.


def test_results_are_cursors(stocked):
    result = stocked.execute("SELECT id, room FROM sensor ORDER BY id LIMIT 10")
    rows = [(i, f"room {i % 7}") for i in range(10)]
    assert result.rowcount == 10 and result.columns == ["id", "room"]
    assert [column[0] for column in result.description] == ["id", "room"]
    assert [len(column) for column in result.description] == [7, 7]
    assert result.description[0][1] == pa.int32()
    assert result.fetchone() == rows[0]
    assert result.fetchmany(3) == rows[1:4] and result.fetchmany(0) == []
    assert result.df()["id"].tolist() == [4, 5, 6, 7, 8, 9]
    assert result.fetchone() is None and result.fetchall() == [] and result.fetchmany(5) == []
    assert len(result.df()) == 0 and result.arrow().column_names == ["id", "room"]
    again = stocked.execute("SELECT id, room FROM sensor ORDER BY id LIMIT 10")
    assert list(again) == rows and list(again) == []
    query = "SELECT id FROM sensor WHERE id < 3 ORDER BY id"
    assert stocked.execute(query).pl()["id"].to_list() == [0, 1, 2]
    assert stocked.execute(query).arrow().to_pydict() == {"id": [0, 1, 2]}
    assert pa.table(stocked.execute(query)).to_pydict() == {"id": [0, 1, 2]}
    assert "3 rows of id" in repr(stocked.execute(query))
    with pytest.raises(flashmesh.Error, match="-1"):
        stocked.execute(query).fetchmany(-1)


def test_results_of_many_batches(stocked, source):
    ids = source["id"].to_pylist()
    result = stocked.execute("SELECT id FROM reading")
    assert result.rowcount == len(ids)
    got = [result.fetchone()[0], *(row[0] for row in result.fetchmany(70_000)), *(row[0] for row in result)]
    assert sorted(got) == ids


def test_values_are_those_of_arrow(stocked, source):
    columns = [f"arrow_cast(nullif(id, 3) % 100, '{kind}')" for kind in ("Int8", "UInt8", "Int16", "UInt16", "UInt32", "UInt64", "Float32")]
    columns += [f"arrow_cast(note, '{kind}')" for kind in ("LargeUtf8", "Utf8View", "Binary", "BinaryView")]
    columns += ["NULL", "celsius", "id % 2 = 0", "[id, sensor]", "named_struct('a', note)", "arrow_cast(note, 'Dictionary(Int32, Utf8)')"]
    named = ", ".join(f"{column} AS c{i}" for i, column in enumerate(columns))
    query = f"SELECT {named} FROM reading WHERE id < 2000 ORDER BY id"
    expected = stocked.sql(query).to_arrow_table()
    assert stocked.execute(query).fetchall() == list(zip(*(c.to_pylist() for c in expected.columns), strict=True))
    assert stocked.sql(query).fetchall() == stocked.execute(query).fetchall()


def test_a_row_by_its_key_is_that_of_a_plan(db):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    odd = [None, True, 0, -1, 7, 1.5, "7", "", "it's", 2**40, 2**63, -(2**63), 2**64 - 1, decimal.Decimal(7), b"7"]

    def outcome(statement, key):
        try:
            result = db.execute(statement, [key])
            return result.columns, [column[1] for column in result.description], result.fetchall()
        except flashmesh.Error as error:
            return str(error)

    for kind, keys in (
        ("TINYINT", range(-128, 128)),
        ("INT", [*range(50), -(2**31), 2**31 - 1]),
        ("BIGINT", [*range(-9, 9), 2**63 - 1, -(2**63)]),
        ("BIGINT UNSIGNED", [*range(50), 2**64 - 1]),
        ("TEXT", ["", "it's", "ä\\", *map(str, range(50))]),
        ("DECIMAL(10, 2)", [decimal.Decimal(n) / 4 for n in range(50)]),
    ):
        db.execute(f'CREATE OR REPLACE TABLE t (v DOUBLE, id {kind} PRIMARY KEY, "Note" TEXT, b BLOB)')
        db.executemany("INSERT INTO t VALUES (?, ?, ?, ?)", [(i, key, f"note {key}", b"x") for i, key in enumerate(keys)])

        def compare(times):
            found = 0
            for _ in range(times):
                key = random_.choice([random_.choice(keys), random_.choice(odd)])
                items = random_.choice(["*", "id", 'v, "Note", v', "T.id", "id, *", "ID AS x", "v + 1", "Note", "count(*)"])
                table = random_.choice(["t", "public.t", '"t"', "T", "t AS t", "nowhere"])
                end = random_.choice(["", ";", " -- ?", " LIMIT 1", " ORDER BY id"])
                name = random_.choice(["id", "ID", '"id"', '"ID"', "v"])
                query = "SELECT {} FROM {} WHERE {} = ?{}".format(items, table, name, end)
                planned = "SELECT {} FROM {} WHERE ({} = ?){}".format(items, table, name, end)
                got = outcome(query, key)
                assert got == outcome(planned, key), (kind, query, key)
                found += isinstance(got, tuple) and len(got[2])
            return found

        assert compare(150) > 10
        with pytest.raises(ZeroDivisionError):
            with db.transaction():
                db.execute("DELETE FROM t WHERE v < 3")
                db.execute("UPDATE t SET v = v + 1000 WHERE v < 10")
                compare(50)
                1 / 0  # noqa: B018
        compare(20)


def test_a_frame_reads_its_tables_as_they_are(db):
    db.execute("CREATE TABLE t (a BIGINT)")
    frames = [db.sql("SELECT * FROM t"), db.table("t"), db.table("t").filter(flashmesh.col("a") > 0)]
    for n in (1, 2):
        db.execute("INSERT INTO t VALUES (?)", [n])
        assert [frame.count() for frame in frames] == [n] * 3
        assert [len(frame.fetchall()) for frame in frames] == [n] * 3


def test_changes_count_rows(db):
    made = db.execute("CREATE TABLE t (count BIGINT PRIMARY KEY)")
    assert (made.rowcount, made.description, made.fetchall()) == (-1, None, [])
    added = db.execute("INSERT INTO t VALUES (1), (2), (3)")
    assert (added.rowcount, added.description, added.fetchone()) == (3, None, None)
    assert added.arrow().num_columns == 0 and "3 rows changed" in repr(added)
    assert db.execute("UPDATE t SET count = count + 10 WHERE count > ?", [1]).rowcount == 2
    assert db.execute("DELETE FROM t WHERE count = 1 RETURNING count").fetchall() == [(1,)]
    assert db.execute("SELECT count FROM t ORDER BY 1").fetchall() == [(12,), (13,)]
    assert db.execute("SELECT count FROM t ORDER BY 1; DELETE FROM t").rowcount == 2


def test_names_twice_are_as_asked_for(stocked):
    query = "SELECT 1 AS a, 2 AS a, 3 AS \"a:1\", upper('x'), upper('x')"
    result = stocked.execute(query)
    assert result.columns[:3] == ["a", "a", "a:1"] and result.columns[3] == result.columns[4]
    peer = duckdb.execute("SELECT 1 AS a, 2 AS a")
    assert [c[0] for c in stocked.execute("SELECT 1 AS a, 2 AS a").description] == [c[0] for c in peer.description]
    assert list(stocked.execute("SELECT 1 AS a, 2 AS a").df()) == list(peer.df()) == ["a", "a_1"]
    assert stocked.execute("SELECT 1 AS a, 2 AS a").pl().columns == ["a", "a_1"]
    assert stocked.execute("SELECT 1 AS a, 2 AS a").arrow().column_names == ["a", "a"]
    assert result.fetchall() == [(1, 2, 3, "X", "X")]
    joined = "SELECT * FROM sensor AS x JOIN sensor AS y USING (room) LIMIT 1"
    assert sorted(stocked.execute(joined).columns) == ["id", "id", "room"]


def test_many_rows_are_one_commit(db):
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT, n DOUBLE)")
    rows = [[i, None if i % 3 else f"it's {i}", i / 2 if i % 5 else None] for i in range(2500)]
    assert db.executemany("INSERT INTO t VALUES (?, ?, ?) -- ?", rows) == 2500
    assert sorted(db.execute("SELECT * FROM t").fetchall()) == [tuple(row) for row in rows]
    assert db.executemany("DELETE FROM t WHERE id = $id", [{"id": 1}, {"id": 2}, {"id": 2}]) == 2
    with pytest.raises(flashmesh.Error, match="two rows have the key"):
        db.executemany("INSERT INTO t (id) VALUES (?)", [[5000], [5001], [0]])
    assert db.table("t").count() == 2498
    with db.transaction():
        db.executemany("INSERT INTO t (id) VALUES (?)", [[6000], [6001]])
    assert db.executemany("INSERT INTO t (id) VALUES (?)", []) == 0
    assert db.table("t").count() == 2500


def test_one_statement_inserts_many_rows_of_one_type():
    insert = "INSERT INTO t (a, b) VALUES (?, f(?))"
    assert list(parameters.many(insert, [[1, "x"], [None, "y"], [2, None]])) == [
        "INSERT INTO t (a, b) VALUES  ( 1 , f( 'x' )),  ( NULL , f( 'y' )),  ( 2 , f( NULL ))"
    ]
    # A value of another type would change the others.
    decimals = [decimal.Decimal("1.5"), decimal.Decimal("1e17"), decimal.Decimal("1e-18")]
    assert len(list(parameters.many(insert, [[value, [1]] for value in decimals]))) == 1
    noon = datetime.datetime(2024, 5, 6, 12)
    for one, other in (
        (2**53 + 1, 0.5),
        (1, 2**63),
        (1, True),
        (decimal.Decimal("1e30"), decimal.Decimal("1e-18")),
        (noon, noon.date()),
        (noon, noon.replace(tzinfo=EAST)),
        ([2**53 + 1], [0.5]),
        ({"a": 2**53 + 1}, {"a": 0.5}),
        (numpy.array([2**53 + 1]), numpy.array([0.5])),
    ):
        assert len(list(parameters.many(insert, [[one, "x"], [other, "x"]]))) == 2, (one, other)
    named = [{"a": 1, "b": 2, "more": 3}, {"b": 2, "a": 1}]
    assert len(list(parameters.many("INSERT INTO t VALUES ($a, $b)", named))) == 1
    assert len(list(parameters.many(insert, [[i, "x"] for i in range(2 * parameters.ROWS + 1)]))) == 3
    for other in (
        "INSERT INTO t VALUES (?, ?) ON CONFLICT DO NOTHING",
        "INSERT INTO t VALUES (?, 1), (?, 2)",
        "INSERT INTO t SELECT ?, ?",
        "UPDATE t SET a = ? WHERE b = ?",
    ):
        assert len(list(parameters.many(other, [[1, 2], [3, 4]]))) == 2


# Variables as tables.


def test_variables_are_tables(stocked):
    data = {"id": [1, 2], "name": ["one", "two"]}
    frames = {
        "pandas_frame": pandas.DataFrame(data),
        "polars_frame": polars.DataFrame(data),
        "lazy": polars.DataFrame(data).lazy(),
        "table": pa.table(data),
        "batch": pa.record_batch(data),
        "reader": pa.table(data).to_reader(),
        "dataset": pyarrow.dataset.dataset(pa.table(data)),
        "own": stocked.from_arrow(pa.table(data)),
        "built": stocked.from_arrow(pa.table(data)).filter(flashmesh.col("id") > 0),
    }
    for kind, Frame in frames.items():
        assert stocked.execute("SELECT sum(id) FROM Frame").fetchall() == [(3,)], kind
    Frame = pa.table(data)
    other = pandas.DataFrame({"key": [2, 3]})
    for query in (
        "SELECT Frame.name FROM Frame, other WHERE Frame.id = other.key",
        "SELECT f.name FROM Frame AS f JOIN (SELECT key FROM other) o ON f.id = o.key",
        "WITH w AS (SELECT * FROM other) SELECT name FROM w JOIN Frame ON key = id",
        "SELECT name FROM Frame WHERE id IN (SELECT key FROM other)",
    ):
        assert stocked.sql(query).fetchall() == [("two",)], query
    joined = stocked.sql("SELECT room FROM sensor JOIN Frame USING (id) WHERE name = ?", ["two"])
    assert joined.fetchall() == [("room 2",)] and joined.select("room").count() == 1
    # Each reads the data of its time.
    before = stocked.sql("SELECT id FROM Frame")
    Frame = pa.table({"id": [9]})
    assert sorted(before.fetchall()) == [(1,), (2,)]
    assert stocked.sql("SELECT id FROM Frame").fetchall() == [(9,)]


everywhere = pa.table({"n": [1, 2, 3]})


def test_only_the_callers_variables_are_seen(db):
    hidden = pa.table({"n": [1]})

    def inner():
        return db.execute("SELECT count(*) FROM hidden").fetchall()

    with pytest.raises(flashmesh.Error, match="hidden' not found"):
        inner()
    assert db.execute("SELECT count(*) FROM hidden").fetchall() == [(1,)]
    assert db.execute("SELECT count(*) FROM everywhere").fetchall() == [(3,)]
    everywhere = pa.table({"n": []})
    assert db.execute("SELECT count(*) FROM everywhere").fetchall() == [(0,)]
    # Never for names that a table or view has.
    db.execute("CREATE TABLE hidden (n INT)")
    assert db.execute("SELECT count(*) FROM hidden").fetchall() == [(0,)]
    number, text = 5, ["x"]
    for name in ("number", "text", "nowhere", "public.everywhere", "flashmesh"):
        with pytest.raises(flashmesh.Error, match="not found"):
            db.sql(f"SELECT * FROM {name}")
    del number, text
    db.settings.replacement_scans = False
    with pytest.raises(flashmesh.Error, match="not found"):
        db.sql("SELECT * FROM everywhere")


def test_variables_are_read_and_not_written(db):
    data = pa.table({"a": [1, 2]})
    db.execute("CREATE TABLE t AS SELECT * FROM data")
    assert db.execute("INSERT INTO t SELECT a + 10 FROM data").rowcount == 2
    for change in ("INSERT INTO data VALUES (1)", "DELETE FROM data", "UPDATE data SET a = 1", "DROP TABLE data", "CREATE VIEW v AS SELECT * FROM data"):
        with pytest.raises(flashmesh.Error, match="not found|not exist"):
            db.execute(change)
    assert data.num_rows == 2 and db.table("t").count() == 4
    names = db.execute("SELECT table_name FROM information_schema.tables").fetchall()
    assert sum(name.startswith("__") for (name,) in names) <= 1


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT d.x, 'd' FROM d", "SELECT d.x, 'd' FROM V AS d"),
        ("SELECT * FROM D", "SELECT * FROM V AS D"),
        ('SELECT * FROM "d" x', 'SELECT * FROM V x'),
        ("SELECT * FROM d AS x, (d) y, s.d, d.t", "SELECT * FROM V AS x, (V AS d) y, s.d, d.t"),
        ("SELECT d, d FROM t, d WHERE d.d IN (SELECT d FROM d)", "SELECT d, d FROM t, V AS d WHERE d.d IN (SELECT d FROM V AS d)"),
        ("SELECT * FROM t LEFT JOIN d USING (d) ORDER BY d, d", "SELECT * FROM t LEFT JOIN V AS d USING (d) ORDER BY d, d"),
        ("SELECT * FROM d(1), f(d), d", "SELECT * FROM d(1), f(d), V AS d"),
        ("SELECT f(d, d) FROM t JOIN d ON f(d.x, d.y) -- d\n, d z", "SELECT f(d, d) FROM t JOIN V AS d ON f(d.x, d.y) -- d\n, V z"),
        ("INSERT INTO d SELECT * FROM d", "INSERT INTO d SELECT * FROM V AS d"),
        ("MERGE INTO d USING d ON d.a = d.b WHEN MATCHED THEN DELETE", "MERGE INTO d USING V AS d ON d.a = d.b WHEN MATCHED THEN DELETE"),
        ("DELETE FROM d", "DELETE FROM d"),
        ("DROP TABLE d", "DROP TABLE d"),
        ("CREATE VIEW v AS SELECT * FROM d", "CREATE VIEW v AS SELECT * FROM d"),
        ("SELECT 1 IS DISTINCT FROM d FROM d", "SELECT 1 IS DISTINCT FROM d FROM V AS d"),
    ],
)
def test_names_of_tables_are_found(query, expected):
    assert scope.with_views(query, {"d": "V"}) == expected


def test_register_takes_data_of_any_library(db):
    for make in (pandas.DataFrame, polars.DataFrame, pa.table, lambda data: db.from_arrow(pa.table(data))):
        db.register("v", make({"a": [1, 2]}))
        assert db.execute("SELECT sum(a) FROM v").fetchall() == [(3,)]
        db.unregister("v")
    with pytest.raises(TypeError, match="list"):
        db.register("v", [1, 2])


def test_files_are_frames(db, tmp_path):
    data = pa.table({"a": range(10), "b": [f"text {i}" for i in range(10)]})
    pa.parquet.write_table(data.slice(0, 6), tmp_path / "1.parquet")
    pa.parquet.write_table(data.slice(6), tmp_path / "2.parquet")
    pa.csv.write_csv(data, tmp_path / "d.csv")
    (tmp_path / "d.txt").write_text("1|x\n2|y\n")
    (tmp_path / "d.json").write_text('{"a": 1, "b": "x"}\n{"a": 2, "b": "y"}\n')
    for frame in (
        db.read_parquet([tmp_path / "1.parquet", tmp_path / "2.parquet"]),
        db.read_parquet(str(tmp_path)),
        db.read_csv(tmp_path / "d.csv"),
    ):
        assert sorted(frame.fetchall()) == list(zip(*data.to_pydict().values(), strict=True))
        assert frame.filter(flashmesh.col("a") > 7).count() == 2
    assert sorted(db.read_json(tmp_path / "d.json").fetchall()) == [(1, "x"), (2, "y")]
    text = db.read_csv(tmp_path / "d.txt", has_header=False, delimiter="|")
    assert sorted(text.fetchall()) == [(1, "x"), (2, "y")]
    with pytest.raises(flashmesh.Error, match="no file"):
        db.read_csv([])


def test_rows_are_inserted_and_upserted(db):
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
    table = db.table("t")
    assert table.insert([{"id": 1, "v": "a"}, {"id": 2, "v": None}]) == 2
    assert db.insert("t", pandas.DataFrame({"v": ["c"], "id": [3]})) == 1
    with pytest.raises(flashmesh.Error, match="two rows have the key"):
        table.insert([{"id": 4, "v": "d"}, {"id": 1, "v": "d"}])
    assert table.upsert([{"id": 1, "v": "z"}, {"id": 5, "v": "e"}]) == 2
    assert table.delete([2]) == 1
    assert sorted(db.execute("SELECT * FROM t").fetchall()) == [(1, "z"), (3, "c"), (5, "e")]


# Without a connection, and without waiting.


def test_sql_without_a_connection():
    flashmesh.execute("CREATE OR REPLACE TABLE of_everybody (a INT)")
    assert flashmesh.executemany("INSERT INTO of_everybody VALUES (?)", [[1], [2]]) == 2
    assert flashmesh.sql("SELECT sum(a) FROM of_everybody WHERE a > ?", [1]).fetchall() == [(2,)]
    assert flashmesh.execute("SELECT sum(n) FROM everywhere").fetchall() == [(6,)]


test_sql_without_a_connection.places = []

ENDLESS = "SELECT count(*) FROM generate_series(1, 1000) AS a(x), generate_series(1, 100000000000) AS b(y) WHERE x * y < 0"


def test_asyncio(stocked):
    async def all_at_once():
        data = pa.table({"a": [1, 2]})
        results = await asyncio.gather(
            stocked.execute_async("SELECT sum(a) FROM data"),
            stocked.execute_async("SELECT count(*) FROM sensor WHERE id < ?", [5]),
            *(stocked.execute_async("SELECT ?", [i]) for i in range(5)),
        )
        frame = await stocked.sql_async("SELECT ? AS n", [7])
        (batch,) = await frame.collect_async()
        with pytest.raises(flashmesh.Error, match="nowhere"):
            await stocked.execute_async("SELECT * FROM nowhere")
        del data
        return [result.fetchone()[0] for result in results], batch.to_pydict()

    assert asyncio.run(all_at_once()) == ([3, 5, 0, 1, 2, 3, 4], {"n": [7]})


def test_cancelling_a_task_cancels_the_query(stocked):
    async def cancelled(work):
        task = asyncio.ensure_future(work)
        # It may be cancelled at any time, also before it has begun.
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def both():
        await cancelled(stocked.execute_async(ENDLESS))
        await cancelled(stocked.sql(ENDLESS).collect_async())
        await cancelled(stocked.execute_async(f"CREATE TABLE never AS {ENDLESS}"))
        task = asyncio.ensure_future(stocked.execute_async(ENDLESS))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Others go on.
        return (await stocked.execute_async("SELECT 1")).fetchall()

    assert asyncio.run(both()) == [(1,)]
    with pytest.raises(flashmesh.Error, match="never"):
        stocked.table("never")


# What is imported, and drawn.


def test_sql_imports_neither_pyarrow_nor_datafusion():
    program = """
import sys, flashmesh
con = flashmesh.connect()
con.execute("CREATE TABLE t (a BIGINT PRIMARY KEY, b TEXT)")
con.execute("INSERT INTO t VALUES (?, ?)", [1, "x"])
frame = con.sql("SELECT * FROM t")
assert frame.fetchall() == con.execute("SELECT * FROM t").fetchall() == [(1, "x")]
assert con.get_one("t", 1) == {"a": 1, "b": "x"}
print({"pyarrow", "datafusion", "numpy", "asyncio"} & set(sys.modules))
# It is a DataFrame all the same.
copy = frame
import datafusion
assert isinstance(frame, datafusion.DataFrame) and isinstance(frame, flashmesh.DataFrame)
assert frame.filter(flashmesh.col("a") > 0).fetchall() == [(1, "x")]
assert type(frame) is flashmesh.DataFrame and copy is frame
"""
    for first in ("repr(frame)", "frame['a']", "next(iter(frame))", "frame.select('a')", "frame.explain()"):
        ran = subprocess.run([sys.executable, "-c", program.replace("copy = frame", f"copy = frame; {first}")], capture_output=True, text=True)
        assert ran.returncode == 0 and ran.stdout.startswith("set()\n"), first + ran.stderr


def test_a_plot_is_drawn_by_pandas(stocked, monkeypatch):
    calls = []

    class Accessor:
        def __init__(self, data):
            self.data = data

        def __call__(self, *args, **kwargs):
            calls.append((self.data["id"].tolist(), args, kwargs))

    query = "SELECT id, room FROM sensor WHERE id < 2 ORDER BY id"
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        with pytest.raises(flashmesh.Error, match="pip install matplotlib"):
            stocked.execute(query).plot()
    monkeypatch.setattr(pandas.DataFrame, "plot", property(Accessor))
    stocked.execute(query).plot()
    stocked.sql(query).plot(kind="scatter", y="id")
    assert calls == [([0, 1], (), {"x": "id"}), ([0, 1], (), {"kind": "scatter", "y": "id"})]


def test_statements_are_told_apart():
    for statement, counts in (
        ("INSERT INTO t VALUES (1)", True),
        ("insert into t values (1) returning count", False),
        ("SELECT 1", False),
        ("WITH a AS (SELECT 1) SELECT 'DELETE'", False),
        ("-- SELECT\nUPDATE t SET a = 1", True),
        ("EXPLAIN DELETE FROM t", False),
        ("", False),
    ):
        assert script.counts_rows(statement) is counts, statement
    assert literal("a\\b\0") == "concat('a', chr(92), 'b', chr(0), '')"


@pytest.mark.parametrize(
    "chain",
    [
        "max(s{})".format(" || 'x'" * 200),
        "max((ts{})::TEXT)".format(" AT TIME ZONE 'UTC'" * 200),
        "max((b{})::TEXT)".format(" IS NOT TRUE" * 490),
        "max((j{})::TEXT)".format(" -> 'a'" * 100),
        "sum(x{})".format(" + x" * 990),
    ],
)
def test_long_chains_do_not_overflow_the_stack(db, chain):
    """What does ends the process, this one here."""
    rows = "SELECT value || '' AS s, value * 0.5 AS x, value > 3 AS b, TIMESTAMP '2024-01-01' AS ts, '{}' AS j"
    db.execute(f"CREATE TABLE chains AS {rows} FROM range(3000)")
    assert len(db.execute(f"SELECT {chain} FROM chains LIMIT 1").fetchall()) == 1


def test_parentheses_have_an_end(db):
    with pytest.raises(flashmesh.Error, match="parentheses within each other"):
        db.execute(f"SELECT {'(' * 100_000}1{')' * 100_000}")
    assert db.execute(f"SELECT {'(' * 30}1{')' * 30}").fetchall() == [(1,)]


def test_times_to_the_nanosecond_are_times_of_python(db):
    frame = db.execute("SELECT TIME '10:00:00.123456789' AS t, [TIME '00:00:01.5'] AS l").df()
    assert str(frame["t"][0]) == "10:00:00.123456" and str(frame["l"][0][0]) == "00:00:01.500000"
