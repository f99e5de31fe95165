"""The Python module: databases, loading, results, errors."""

import datetime
import decimal
import random
import shutil
import subprocess
import sys

import flashmesh
import numpy
import pandas
import polars
import pyarrow as pa
import pytest
from seeds import SEED

ROWS = {"id": [1, 2, 3], "name": ["Earth", None, "Mars"]}


def test_results_are_arrow(db):
    db.sql("CREATE TABLE t AS SELECT value AS id, 'row ' || value AS name FROM generate_series(1, 1000) AS s(value)")
    result = db.sql("SELECT id, name FROM t WHERE id > 997 ORDER BY id")
    expected = {"id": [998, 999, 1000], "name": ["row 998", "row 999", "row 1000"]}
    assert pa.table(result).to_pydict() == expected
    assert result.to_arrow_table().to_pydict() == expected
    assert result.columns == ["id", "name"]
    assert result.fetchall() == [(998, "row 998"), (999, "row 999"), (1000, "row 1000")]
    assert result.to_pylist()[0] == {"id": 998, "name": "row 998"}
    assert result.to_pandas()["id"].tolist() == expected["id"]
    assert result.to_polars()["name"].to_list() == expected["name"]


def test_null_in_a_dictionary_is_null(db):
    for values in (["a", None], [b"a", None], [1, None]):
        coded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0], pa.int8()), pa.array(values))
        db.load("coded", pa.table({"x": coded}))
        assert db.execute("SELECT x FROM coded").fetchall() == [(values[0],), (None,), (values[0],)]
        db.execute("DROP TABLE coded")


def test_changes_give_rows(db):
    db.execute("CREATE TABLE t (id BIGINT, name VARCHAR DEFAULT 'none')")
    added = db.sql("INSERT INTO t (id) VALUES (1), (2) RETURNING id, name")
    for _ in range(2):
        assert pa.table(added).to_pydict() == {"id": [1, 2], "name": ["none", "none"]}
    assert db.sql("DELETE FROM t WHERE id = 2 RETURNING *").fetchall() == [(2, "none")]
    assert db.table("t").count() == 1


@pytest.mark.parametrize("make", [pa.table, pandas.DataFrame, polars.DataFrame])
def test_arrow_data_of_any_library_loads(db, make):
    assert db.load("planet", make(ROWS)) == 3
    assert db.load("planet", make(ROWS), mode="append") == 3
    assert db.sql("SELECT count(*), count(name), sum(id) FROM planet").fetchall() == [(6, 4, 12)]
    assert db.load("planet", make(ROWS), mode="replace") == 3
    assert db.sql("SELECT name FROM planet WHERE id >= 2 ORDER BY id").fetchall() == [(None,), ("Mars",)]


def test_files_load(db, tmp_path):
    for number in (1, 2):
        (tmp_path / f"{number}.csv").write_text(f"id,name\n{number},planet {number}\n")
    assert db.load("planet", [tmp_path / "1.csv", tmp_path / "2.csv"]) == 2
    assert db.sql("SELECT max(name) FROM planet").fetchall() == [("planet 2",)]


def test_a_database_keeps_what_was_committed(tmp_path):
    folder = tmp_path / "db"
    with flashmesh.connect(folder) as db:
        db.execute("CREATE TABLE t (price DECIMAL(10, 2))")
        db.execute("INSERT INTO t VALUES (1.25), (NULL)")
    with flashmesh.connect(folder, read_only=True) as db:
        assert db.sql("SELECT * FROM t").fetchall() == [(decimal.Decimal("1.25"),), (None,)]
        with pytest.raises(flashmesh.Error, match="read-only"):
            db.execute("INSERT INTO t VALUES (2)")


def test_options_are_taken_and_checked(tmp_path):
    with flashmesh.connect(tmp_path / "db", cache_size="8MB", memory_limit="64MB", threads=1) as db:
        assert db.sql("SHOW datafusion.execution.target_partitions").fetchall()[0][1] == "1"
    with pytest.raises((flashmesh.Error, ValueError), match="much"):
        flashmesh.connect(tmp_path / "db", cache_size="much")


def test_errors_say_what_is_wrong(db):
    with pytest.raises(flashmesh.Error, match="nowhere"):
        db.sql("SELECT * FROM nowhere")
    with pytest.raises(flashmesh.Error, match="missing.parquet"):
        db.load("t", "missing.parquet")
    db.close()
    with pytest.raises(flashmesh.Error, match="closed"):
        db.sql("SELECT 1")


def test_connections_of_a_process_share_a_database(tmp_path):
    folder = tmp_path / "db"
    one, two = flashmesh.connect(folder), flashmesh.connect(f"{tmp_path}/./db")
    one.execute("CREATE TABLE t AS SELECT 1 AS a")
    # Each has a session of its own.
    one.execute("BEGIN; INSERT INTO t VALUES (2)")
    one.settings.pushdown = "never"
    assert two.table("t").count() == 1 and two.settings.pushdown == "auto"
    one.execute("COMMIT")
    assert two.table("t").count() == 2
    with pytest.raises(flashmesh.Error, match="leave them out"):
        flashmesh.connect(folder, threads=1)

    def elsewhere():
        program = "import flashmesh, sys; flashmesh.connect(sys.argv[1]).close()"
        return subprocess.run([sys.executable, "-c", program, folder], capture_output=True, text=True, check=False)

    for con in (one, two):
        assert "in use" in elsewhere().stderr
        con.close()
    assert elsewhere().returncode == 0
    with flashmesh.connect(folder, threads=1) as again:
        assert again.table("t").count() == 2


def test_a_database_in_the_place_of_one_that_is_open_is_another(tmp_path):
    folder = tmp_path / "db"
    gone = flashmesh.connect(folder)
    gone.execute("CREATE TABLE t AS SELECT 1 AS a")
    shutil.rmtree(folder)
    with flashmesh.connect(folder) as new, pytest.raises(flashmesh.Error, match="'t'|t.*not found|no table"):
        new.table("t").count()
    program = (
        "import flashmesh, os, sys; con = flashmesh.connect(sys.argv[1]); child = os.fork()\n"
        "if not child:\n"
        "    try: flashmesh.connect(sys.argv[1])\n"
        "    except flashmesh.Error as error: os._exit(7 if 'in use' in str(error) else 1)\n"
        "    os._exit(1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    forked = subprocess.run([sys.executable, "-c", program, tmp_path / "forked"], capture_output=True, text=True, check=False)
    assert forked.stdout == "7\n", forked


def test_one_key_is_no_sequence_of_keys(db):
    db.execute("CREATE TABLE word (text TEXT PRIMARY KEY); INSERT INTO word VALUES ('a'), ('b'), ('ab')")
    db.execute("CREATE TABLE number (id INT PRIMARY KEY); INSERT INTO number VALUES (1), (2)")
    assert db.get("word", "ab").fetchall() == [("ab",)]
    assert db.delete("word", "ab") == 1 and db.table("word").count() == 2
    assert db.table("number").delete(2) == 1 and db.table("number").fetchall() == [(1,)]
    with pytest.raises(flashmesh.Error, match="rows are dicts.*not tuples"):
        db.insert("number", [(3,)])


def test_memory_is_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with flashmesh.connect(":memory:") as con:
        assert con.execute("SELECT 1").fetchall() == [(1,)]
    assert list(tmp_path.iterdir()) == []


def test_explain_is_shown_whole(db):
    db.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 100) AS s(value)")
    shown = repr(db.sql("EXPLAIN ANALYZE SELECT count(*) FROM t WHERE a > 50"))
    assert "FlashScanExec" in shown and "rows_in=100" in shown
    assert "FlashScanExec" in repr(db.sql("EXPLAIN SELECT a FROM t"))


def test_rows_come_by_key(db):
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    db.execute("INSERT INTO t SELECT value * 3, 'row ' || value FROM generate_series(1, 100000) AS s(value)")
    table = db.table("t")
    keys = [3, 6, 6, 7, 300000, None]
    for given in (keys, pa.array(keys), pa.array(keys, pa.int32())):
        rows = sorted(table.get(given).to_pylist(), key=lambda row: row["id"])
        assert [row["name"] for row in rows] == ["row 1", "row 2", "row 100000"]
    # More than one command, with a key in both.
    many = [3, *range(3, 300001, 3), 3]
    assert sorted(table.get(many).to_arrow_table()["id"].to_pylist()) == list(range(3, 300001, 3))
    assert table.get([]).to_arrow_table().column_names == ["id", "name"]
    assert table.get([1]).to_arrow_table().num_rows == 0
    with pytest.raises(flashmesh.Error, match="Int64"):
        table.get(["x"])
    with pytest.raises(OverflowError):
        table.get([2**70])
    with pytest.raises(flashmesh.Error, match="primary key"):
        db.execute("CREATE TABLE plain AS SELECT 1 AS a")
        db.table("plain").get([1])


def test_one_row_comes_by_its_key(db):
    values = {
        "boolean": True,
        "tiny": -7,
        "large": 2**63 - 1,
        "single": 0.5,
        "double": float("inf"),
        "bytes": b"\x00\xff",
        "amount": decimal.Decimal("12.30"),
        "day": datetime.date(2024, 2, 29),
        "moment": datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
        "list": [1, None],
        "long": "é" * 20_000,
    }
    columns = {
        "boolean": "BOOLEAN",
        "tiny": "TINYINT",
        "large": "BIGINT UNSIGNED",
        "single": "REAL",
        "double": "DOUBLE",
        "bytes": "BYTEA",
        "amount": "DECIMAL(10, 2)",
        "day": "DATE",
        "moment": "TIMESTAMP",
        "list": "BIGINT[]",
        "long": "TEXT",
    }
    columns = ", ".join(f'"{name}" {of}' for name, of in columns.items())
    for name, of, keys in (
        ("by_text", "TEXT", ["a", "b"]),
        ("by_number", "BIGINT", [-1, 2**40]),
        ("by_bytes", "BYTEA", [b"", b"\xff"]),
        ("by_day", "DATE", [datetime.date(1969, 1, 1), datetime.date(2026, 1, 1)]),
    ):
        db.execute(f"CREATE TABLE {name} (k {of} PRIMARY KEY, {columns})")
        table = db.table(name)
        assert table.put([{"k": keys[0], **values}, {"k": keys[1], **dict.fromkeys(values)}]) == 2
        assert table.get_one(keys[0]) == {"k": keys[0], **values}
        assert list(table.get_one(keys[0])) == ["k", *values]
        assert table.get_one(keys[1]) == {"k": keys[1], **dict.fromkeys(values)}
        assert [table.get_one(key) for key in keys] == [table.get([key]).to_pylist()[0] for key in keys]
        assert table.get_one(None) is None
        db.delete(name, keys[:1])
        assert table.get_one(keys[0]) is None
    with pytest.raises(flashmesh.Error, match="nowhere"):
        db.get_one("nowhere", 1)
    db.execute("CREATE TABLE plain AS SELECT 1 AS a")
    with pytest.raises(flashmesh.Error, match="primary key"):
        db.get_one("plain", 1)


test_one_row_comes_by_its_key.places = ["embedded", "server"]


def test_rows_at_hand_are_a_frame_like_any_other(db):
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    db.execute("INSERT INTO t VALUES (1, 'one'), (2, NULL), (3, 'three')")
    rows = db.get("t", [1, 2, 3, 4])
    data = pa.table({"a": [2, 1], "b": ["x", None]})
    # Nothing changes what was fetched.
    db.execute("DELETE FROM t WHERE id = 1")
    for frame, expected in (
        (rows, [(1, "one"), (2, None), (3, "three")]),
        (db.from_arrow(data), [(1, None), (2, "x")]),
    ):
        for _ in range(2):
            assert sorted(frame.fetchall()) == expected
        assert frame.count() == len(expected)
        assert [tuple(row.values()) for row in frame.limit(1).to_pylist()][0] in expected
        assert sorted(frame.sort(frame.schema().names[0]).fetchall()) == expected
        assert sorted(tuple(r.values()) for batch in frame.collect() for r in batch.to_pylist()) == expected
        stream = [batch.to_pyarrow() for batch in frame.execute_stream()]
        assert sorted(tuple(row.values()) for row in pa.Table.from_batches(stream).to_pylist()) == expected
    db.register("held", rows)
    assert db.sql("SELECT count(*) FROM held JOIN t USING (id)").fetchall() == [(2,)]
    assert rows.filter(flashmesh.col("id") > 1).count() == 2
    db.close()
    with pytest.raises(flashmesh.Error, match="closed"):
        rows.to_arrow_table()


def test_rows_of_a_range_of_keys(db):
    db.execute('CREATE TABLE days ("The Key" DATE PRIMARY KEY, v BIGINT)')
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=i) for i in range(300)]
    db.load("days", pa.table({"The Key": days[::-1], "v": range(300)}), mode="append")
    table = db.table("days")
    assert [key for key, _ in table.scan(days[7], days[9]).fetchall()] == days[7:9]
    assert [key for key, _ in table.scan(upper=days[3]).fetchall()] == days[:3]
    assert [key for key, _ in db.scan("public.days", days[290]).fetchall()] == days[290:]
    assert [v for _, v in table.scan().fetchall()] == list(range(300))[::-1]
    db.execute("CREATE TABLE plain (a INT)")
    for name in ("plain", "nowhere"):
        with pytest.raises(flashmesh.Error, match=name):
            db.scan(name)


test_rows_of_a_range_of_keys.places = ["embedded", "server"]


def test_rows_are_put_and_deleted_by_key(db):
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
    table = db.table("t")
    assert table.put([{"id": 1, "name": "one"}, {"id": 2, "name": None}]) == 2
    more = pa.table({"name": ["two", "three"], "id": pa.array([2, 3], pa.int32())})
    for given in (more, more.to_pandas(), more.to_reader()):
        assert db.put("t", given) == 2
    assert sorted(table.get([1, 2, 3]).fetchall()) == [(1, "one"), (2, "two"), (3, "three")]
    with db.transaction():
        assert table.delete([1, 3, 3, 9, None]) == 2
        table.put([{"id": 4, "name": "four"}])
    assert sorted(db.sql("SELECT * FROM t").fetchall()) == [(2, "two"), (4, "four")]
    assert table.delete(pa.array([2])) == 1
    with pytest.raises(flashmesh.Error, match="lack column 'name'"):
        table.put([{"id": 5}])
    with pytest.raises(flashmesh.Error, match="2.5"):
        table.put([{"id": 2.5, "name": "half"}])
    assert db.sql("SELECT * FROM t").fetchall() == [(4, "four")]


test_rows_are_put_and_deleted_by_key.places = ["embedded", "server"]


class Text(str):
    """Not a str alone."""


def test_dicts_are_put_as_pyarrow_understands_them(db):
    rng = random.Random(SEED)
    columns = "t VARCHAR, i INT, u BIGINT, d DOUBLE, b BOOLEAN, y BYTEA, m DECIMAL(20, 2), s TIMESTAMP"
    for table in ("ours", "pyarrow"):
        db.execute(f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, {columns})")
    usual = {
        "t": ["", "a", "Grüße", "long " * 20, "7"],
        "i": [0, -5, 2**31 - 1],
        "u": [2**63 - 1, -(2**63), 5],
        "d": [1.5, float("inf"), float("nan"), -0.0],
        "b": [True, False],
        "y": [b"", b"\x00\xff", b"x" * 40],
        "m": [3, 2.5, decimal.Decimal("7.25")],
        "s": [datetime.datetime(2026, 1, 2, 3, 4, 5), datetime.datetime(1969, 1, 1)],
    }
    odd = ["\ud800", Text("sub"), 2**63, 2**31, 1, 1.0, True, b"b", "12", numpy.int64(4), numpy.float64(2), [1], {}]

    def value(name):
        if rng.random() < 0.2:
            return None
        return rng.choice(odd if rng.random() < 0.03 else usual[name])

    def row(names):
        given = {"id": rng.randrange(60), **{name: value(name) for name in usual}}
        return {name: given[name] for name in names}

    def outcome(table, rows):
        try:
            return db.put(table, rows() if callable(rows) else rows)
        except Exception as error:
            return type(error)

    outcomes = []
    for _ in range(300):
        names = [name for name in ("id", *usual) if rng.random() > 0.01]
        rows = [row(names) for _ in range(rng.choice([1, 1, 1, 2, 5]))]
        outcomes.append(outcome("ours", rows))
        assert outcome("pyarrow", lambda rows=rows: pa.Table.from_pylist(rows)) == outcomes[-1], rows
    kinds = set(outcomes)
    assert {1, 2, 5} <= kinds and len(kinds) > 4, kinds
    ours, pyarrow = (repr(db.sql(f"SELECT * FROM {table} ORDER BY id").fetchall()) for table in ("ours", "pyarrow"))
    assert ours == pyarrow


def test_keys_of_one_hash_are_different_keys(db):
    # XXH3 of 16 to 32 bytes multiplies by what these are and its secret is: by zero.
    alike = [bytes(12) + bytes.fromhex("ded46de9839097db") + end * 8 for end in (b"A", b"B", b"C")]
    db.execute("CREATE TABLE c (k BYTEA PRIMARY KEY, n INT)")
    for number, key in enumerate(alike[:2]):
        assert db.get_one("c", key) is None
        assert db.put("c", [{"k": key, "n": number}]) == 1
        if number == 0:
            db.execute("VACUUM c")
    assert db.put("c", [{"k": alike[1], "n": 7}]) == 1
    assert [db.get_one("c", key) for key in alike] == [{"k": alike[0], "n": 0}, {"k": alike[1], "n": 7}, None]
    assert db.delete("c", [alike[2]]) == 0
    assert db.delete("c", [alike[1]]) == 1
    assert db.sql("SELECT k, n FROM c").fetchall() == [(alike[0], 0)]


def test_neighbours_and_graphs(db):
    codes = pa.array([bytes([i % 256, i // 256]) for i in range(2000)], pa.binary(2))
    db.load("codes", pa.table({"id": range(2000), "code": codes}))
    nearest = "SELECT id FROM nearest('codes', 'code', X'0505', 1)"
    assert db.sql(nearest).fetchall() == [(0x0505,)]
    db.execute("CREATE INDEX near ON codes USING lsh (code) WITH (probes = 4)")
    assert db.sql(nearest).fetchall() == [(0x0505,)]
    db.execute("CREATE TABLE e AS SELECT value AS a, value + 1 AS b FROM generate_series(1, 50) AS s(value)")
    db.execute("CREATE INDEX g ON e USING adjacency (a, b)")
    assert db.sql("SELECT max(depth) FROM bfs('g', 1)").fetchall() == [(50,)]
    for start in ("1.0", "(SELECT 1.0)", "'1'", "(SELECT '1')"):
        assert db.sql(f"SELECT max(depth) FROM bfs('g', {start})").fetchall() == [(50,)]
    for start in ("1.5", "[1.0, 1.5]", "(SELECT 1.5)", "'1.5'", "(SELECT 'x')", "true", "(SELECT DATE '1970-01-02')"):
        with pytest.raises(flashmesh.Error, match="no vertex of"):
            db.sql(f"SELECT * FROM bfs('g', {start})").fetchall()
    with pytest.raises(flashmesh.Error, match="'99'"):
        db.sql("SELECT * FROM bfs('g', 99)").fetchall()


def test_the_modules_names_are_there_when_they_are_asked_for():
    program = "import flashmesh; print([n for n in flashmesh.__all__ if getattr(flashmesh, n) is None], flashmesh.functions.sum.__name__)"
    found = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert found.stdout == "[] sum\n"
    with pytest.raises(AttributeError, match="'flashmesh' has no attribute 'colum'"):
        flashmesh.colum


@pytest.mark.parametrize("limit", ["230MB", "256MB", "280MB", "2GB"])
def test_sorted_texts_are_stored_in_whole_segments(limit):
    """What a sort holds in memory is counted once: not by the merge, nor by the load, of which each batch is a slice."""
    with flashmesh.connect(memory_limit=limit) as con:
        con.execute("""CREATE TABLE t AS SELECT value AS id, value * 7919 % 1500000 AS r,
            'text number ' || (value * 7919 % 1500000) AS s, value % 1000 AS k FROM range(0, 1500000)""")
        con.execute("CREATE TABLE u AS SELECT * FROM t ORDER BY s")
        assert con.execute("SELECT count(*), sum(r), min(s) FROM u").fetchall() == [
            (1_500_000, 1_500_000 * 1_499_999 // 2, "text number 0")
        ]
        (segments,) = con.execute("SELECT segments FROM system.tables WHERE \"table\" = 'u'").fetchone()
        assert segments <= 1_500_000 // 65_536 + 3
