"""DataFrames: the same answers as DuckDB's on the same rows, planned and pushed by flashmesh."""

import asyncio
import gc
import subprocess
import sys
import textwrap
import threading

import datafusion
import duckdb
import flashmesh
import pandas
import polars
import pyarrow as pa
import pytest
from flashmesh import col, lit
from flashmesh import functions as f


PLACES = ["embedded", "server"]


def embedded(test):
    """For tests of what a server does otherwise; `test_remote.py` has its side."""
    test.places = ["embedded"]
    return test


@pytest.fixture(scope="module")
def oracle(source):
    connection = duckdb.connect()
    connection.register("reading", source)
    connection.execute("CREATE TABLE sensor AS SELECT i::INT AS id, 'room ' || (i % 7) AS room FROM range(50) t(i)")
    return connection


def rows(frame):
    return sorted(frame.fetchall(), key=repr)


HOT = col("celsius") > 30

# DataFrames and the SQL that says the same.
CASES = {
    "filter": (
        lambda t, s: t.filter(HOT).select("id", "celsius"),
        "SELECT id, celsius FROM reading WHERE celsius > 30",
    ),
    "several filters": (
        lambda t, s: t.filter(HOT, col("sensor") == 7, "note LIKE '%ERR%'").select("id"),
        "SELECT id FROM reading WHERE celsius > 30 AND sensor = 7 AND note LIKE '%ERR%'",
    ),
    "expressions": (
        lambda t, s: t.filter(col("celsius").is_null() | f.starts_with(col("note"), lit("cold")))
        .with_column("k", col("celsius") + lit(273.15))
        .select(col("id"), f.upper(col("note")).alias("n"), (col("k") * 2).alias("d"))
        .filter(col("id") % 1000 < 5),
        """SELECT id, upper(note), (celsius + 273.15) * 2 FROM reading
           WHERE (celsius IS NULL OR note LIKE 'cold%') AND id % 1000 < 5""",
    ),
    "aggregate": (
        lambda t, s: t.filter(HOT).aggregate(
            [col("sensor")],
            [f.count(col("id")).alias("n"), f.max(col("celsius")).alias("m"), f.min(col("note")).alias("t")],
        ),
        "SELECT sensor, count(id), max(celsius), min(note) FROM reading WHERE celsius > 30 GROUP BY sensor",
    ),
    "aggregate without groups": (
        lambda t, s: t.aggregate([], [f.count(col("celsius")), f.sum(col("id"))]),
        "SELECT count(celsius), sum(id)::BIGINT FROM reading",
    ),
    "top k": (
        lambda t, s: t.sort(col("celsius").sort(ascending=False, nulls_first=False), col("id").sort()).limit(20).select("id"),
        "SELECT id FROM reading ORDER BY celsius DESC NULLS LAST, id LIMIT 20",
    ),
    "join": (
        lambda t, s: t.filter(HOT)
        .join(s.with_column_renamed("id", "sensor_id"), left_on="sensor", right_on="sensor_id")
        .aggregate([col("room")], [f.count(lit(1)).alias("n")]),
        """SELECT room, count(*) FROM reading JOIN sensor ON sensor.id = reading.sensor
           WHERE celsius > 30 GROUP BY room""",
    ),
    "anti join": (
        lambda t, s: s.join(t.filter(col("id") < 40), left_on="id", right_on="sensor", how="anti"),
        "SELECT * FROM sensor WHERE id NOT IN (SELECT sensor FROM reading WHERE id < 40)",
    ),
    "distinct and union": (
        lambda t, s: t.select("sensor").distinct().union(s.select(col("id").alias("sensor"))),
        "SELECT DISTINCT sensor FROM reading UNION ALL SELECT id FROM sensor",
    ),
    "window": (
        lambda t, s: t.filter(col("id") < 1000).select(
            col("id"),
            f.row_number(partition_by=[col("sensor")], order_by=[col("id").sort()]).alias("n"),
        ),
        "SELECT id, row_number() OVER (PARTITION BY sensor ORDER BY id) FROM reading WHERE id < 1000",
    ),
    "except": (
        lambda t, s: s.select("id").except_all(t.filter(col("sensor") > 10).select(col("sensor").alias("id")).distinct()),
        "SELECT id FROM sensor EXCEPT SELECT sensor FROM reading WHERE sensor > 10",
    ),
    "fill nulls": (
        lambda t, s: t.filter(col("id") < 500).select("id", "celsius").fill_null(0.0, ["celsius"]),
        "SELECT id, coalesce(celsius, 0) FROM reading WHERE id < 500",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("pushdown", ["auto", "always", "never"])
def test_answers_are_those_of_the_same_sql(stocked, oracle, case, pushdown):
    build, query = CASES[case]
    stocked.settings.pushdown = pushdown
    try:
        frame = build(stocked.table("reading"), stocked.table("sensor"))
        expected = sorted(oracle.execute(query).fetchall(), key=repr)
        assert expected
        assert rows(frame) == expected
    finally:
        stocked.settings.pushdown = "auto"


def test_frames_are_datafusions(stocked):
    frame = stocked.table("reading").filter(HOT)
    assert isinstance(frame, datafusion.DataFrame)
    assert isinstance(stocked.sql("SELECT 1"), datafusion.DataFrame)
    missing = {name for name in dir(datafusion.DataFrame) if not hasattr(flashmesh.DataFrame, name)}
    assert not missing
    missing = {name for name in datafusion.functions.__all__ if not hasattr(f, name)}
    assert not missing


def plan(frame, **options):
    return frame._connection.explain(frame, **options)


def test_filters_and_aggregates_go_into_the_scan(stocked):
    stocked.settings.pushdown = "always"
    try:
        frame = stocked.table("reading").filter(col("sensor") == 3, "note LIKE '%ERROR%'")
        shown = plan(frame.aggregate([col("sensor")], [f.count(col("id"))]), analyze=True)
        (scan,) = [line for line in shown.splitlines() if "FlashScanExec" in line]
        assert "FilterExec" not in shown
        assert "mode=Partial" not in shown, "the partial aggregate is not in the scan"
        assert "rows_in=200" in scan
        top = plan(stocked.table("reading").sort(col("celsius").sort(ascending=False)).limit(3), analyze=True)
        assert "FlashScanExec" in top and "output_rows=200000" not in top
    finally:
        stocked.settings.pushdown = "auto"


def test_what_follows_sql_is_pushed_too(stocked, oracle):
    query = "SELECT sensor, celsius AS c, id FROM reading WHERE celsius > 10"
    frame = stocked.sql(query).filter(col("sensor") == 4).select("id", "c")
    assert rows(frame) == sorted(oracle.execute(f"SELECT id, c FROM ({query}) WHERE sensor = 4").fetchall(), key=repr)
    stocked.settings.pushdown = "always"
    try:
        assert "FilterExec" not in plan(frame)
    finally:
        stocked.settings.pushdown = "auto"


def test_sql_with_names_twice(stocked):
    frame = stocked.sql("SELECT a.id, b.id, a.room FROM sensor a JOIN sensor b ON a.id = b.id WHERE a.id < 3")
    assert frame.columns == ["id", "id:1", "room"]
    assert rows(frame.filter(col("id:1") > 0).select("id")) == [(1,), (2,)]


def test_frames_join_themselves_and_others(stocked, source):
    left = stocked.sql("SELECT id, sensor FROM reading WHERE id < 100")
    right = stocked.sql("SELECT id, celsius FROM reading WHERE id < 100")
    both = left.join(right, on="id")
    assert both.count() == 100
    memory = stocked.from_arrow(pa.table({"sensor": pa.array([1, 2], pa.int32()), "name": ["one", "two"]}))
    joined = stocked.table("reading").join(memory, on="sensor").aggregate([col("name")], [f.count(col("id"))])
    sensors = source["sensor"].to_pylist()
    assert rows(joined) == [("one", sensors.count(1)), ("two", sensors.count(2))]


def test_tables_of_datafusions_own_join(stocked, tmp_path):
    (tmp_path / "names.csv").write_text("sensor,name\n1,one\n2,two\n")
    names = stocked.frame(stocked.context.read_csv(str(tmp_path / "names.csv")))
    in_memory = stocked.frame(stocked.context.from_pydict({"name": ["one"], "rank": [1]}))
    frame = stocked.table("reading").filter(col("id") < 1000).join(names, on="sensor").join(in_memory, on="name")
    expected = stocked.sql("SELECT count(*) FROM reading WHERE id < 1000 AND sensor = 1").fetchall()
    assert [(frame.count(),)] == expected


@embedded
def test_the_context_plans_with_us(stocked):
    context = stocked.context
    query = "SELECT sensor, count(*) AS n FROM reading WHERE sensor IN (SELECT id FROM sensor WHERE room = 'room 1') GROUP BY sensor"
    frame = context.sql(query)
    assert type(frame) is datafusion.DataFrame
    mine = sorted(stocked.sql(query).fetchall())
    assert sorted(zip(*frame.to_pydict().values())) == mine
    assert "FlashmeshExec" in frame.execution_plan().display()
    assert sorted(stocked.frame(frame).fetchall()) == mine
    assert context.table("sensor").count() == 50
    with pytest.raises(Exception, match="nowhere"):
        context.table("nowhere")


def test_other_sessions_read_our_frames(stocked):
    context = datafusion.SessionContext()
    context.register_table("hot", stocked.table("reading").filter(HOT).into_view())
    (count,) = context.sql("SELECT count(*) AS n FROM hot WHERE sensor = 1").to_pydict()["n"]
    assert count == stocked.table("reading").filter(HOT, col("sensor") == 1).count()


def test_rows_in_every_form(stocked):
    frame = stocked.table("reading").filter(col("id") < 3).select("id", "sensor").sort(col("id"))
    table = frame.to_arrow_table()
    assert frame.to_pandas().equals(table.to_pandas())
    assert frame.to_polars().equals(polars.from_arrow(table))
    assert pa.table(frame).equals(table)
    assert polars.DataFrame(frame).equals(polars.from_arrow(table))
    assert duckdb.sql("SELECT * FROM frame").fetchall() == frame.fetchall()
    assert frame.to_pylist() == table.to_pylist()
    assert frame.to_pydict() == table.to_pydict()
    assert frame.collect_column("id").to_pylist() == [0, 1, 2]
    assert frame.head(1).count() == 1 and frame.tail(1).to_pydict()["id"] == [2]
    assert frame.schema() == table.schema
    assert frame["id"].columns == ["id"]
    assert frame.cache().filter(col("id") > 0).count() == 2
    assert frame.describe().to_pydict()["describe"][0] == "count"
    assert sum(len(batch) for batch in frame.collect()) == 3
    assert "| 2 " in repr(frame) and "<table" in frame._repr_html_()


def test_batches_stream(stocked):
    frame = stocked.table("reading").select("id")
    batches = [batch.to_pyarrow() for batch in frame]
    assert len(batches) > 1
    assert sorted(pa.Table.from_batches(batches)["id"].to_pylist()) == list(range(200_000))

    async def count():
        return sum([len(batch.to_pyarrow()) async for batch in frame])

    assert asyncio.run(count()) == 200_000
    reader = pa.RecordBatchReader.from_stream(frame)
    assert reader.read_next_batch().num_rows > 0
    reader.close()


def test_frames_go_to_files_and_tables(db, tmp_path):
    db.load("t", pa.table({"a": range(1000), "b": [str(i % 10) for i in range(1000)]}))
    frame = db.table("t").filter(col("a") >= 990)
    frame.write_parquet(str(tmp_path / "p.parquet"))
    frame.write_csv(str(tmp_path / "c.csv"), with_header=True)
    frame.write_json(str(tmp_path / "j.json"))
    for name in ("p.parquet", "c.csv", "j.json"):
        (count,) = db.sql(f"SELECT count(*), sum(a) FROM '{tmp_path / name}'").fetchall()
        assert count == (10, sum(range(990, 1000))), name
    assert db.load("u", frame) == 10
    frame.write_table("u")
    assert db.table("u").count() == 20
    db.register("v", frame)
    assert db.sql("SELECT count(*) FROM v WHERE b = '3'").fetchall() == [(1,)]
    # As a cell of a notebook that runs again.
    db.register("v", db.sql("SELECT a FROM v LIMIT 3"))
    assert db.sql("SELECT count(*) FROM v").fetchall() == [(3,)]
    db.from_arrow(pa.table({"a": [7]}), "v")
    assert db.sql("SELECT * FROM v").fetchall() == [(7,)]
    with pytest.raises(flashmesh.Error, match="DROP TABLE"):
        db.register("u", frame)
    db.unregister("v")
    with pytest.raises(flashmesh.Error, match="'v'"):
        db.unregister("v")


def test_pandas_and_polars_frames_go_in(db):
    data = {"k": [1, 2, 3], "v": ["a", None, "c"]}
    for make, take in ((pandas.DataFrame, db.from_pandas), (polars.DataFrame, db.from_polars), (pa.table, db.from_arrow)):
        assert take(make(data)).filter(col("v").is_not_null()).select("k").fetchall() == [(1,), (3,)]
    db.from_pandas(pandas.DataFrame(data), name="p")
    assert db.sql("SELECT max(k) FROM p").fetchall() == [(3,)]


def test_functions_in_python_run_above_the_scan(stocked, source):
    seen = []

    def fahrenheit(values: pa.Array) -> pa.Array:
        seen.append(len(values))
        return pa.array([None if v is None else v * 9 / 5 + 32 for v in values.to_pylist()], pa.float64())

    to_fahrenheit = flashmesh.udf(fahrenheit, [pa.float64()], pa.float64(), "immutable", "fahrenheit")
    frame = (
        stocked.table("reading")
        .filter(col("sensor") == 9, to_fahrenheit(col("celsius")) > 100)
        .select("id", to_fahrenheit(col("celsius")).alias("f"))
    )
    expected = sorted(
        (row["id"], row["celsius"] * 9 / 5 + 32)
        for row in source.to_pylist()
        if row["sensor"] == 9 and row["celsius"] is not None and row["celsius"] * 9 / 5 + 32 > 100
    )
    assert sorted(frame.fetchall()) == expected
    # It ran in this process, on the sensor's rows only: the other filter is below it.
    assert 0 < sum(seen) < 3 * source["sensor"].to_pylist().count(9)


def test_a_function_in_python_may_have_a_known_name(stocked):
    lower = flashmesh.udf(lambda v: pa.array(["mine"] * len(v)), [pa.string()], pa.string(), "immutable", "lower")
    frame = stocked.table("sensor").select(lower(f.upper(col("room"))).alias("x")).distinct()
    assert frame.fetchall() == [("mine",)]
    assert stocked.table("sensor").select(f.lower(f.upper(col("room"))).alias("x")).distinct().count() == 7


def test_aggregates_in_python(stocked, source):
    class Longest(datafusion.Accumulator):
        def __init__(self):
            self.longest = 0

        def update(self, values):
            self.longest = max([self.longest, *map(len, values.to_pylist())])

        def merge(self, states):
            self.longest = max([self.longest, *states[0].to_pylist()])

        def state(self):
            return [pa.scalar(self.longest)]

        def evaluate(self):
            return pa.scalar(self.longest)

    longest = flashmesh.udaf(Longest, [pa.string()], pa.int64(), [pa.int64()], "immutable")
    frame = stocked.table("reading").aggregate([], [longest(col("note")).alias("n")])
    assert frame.fetchall() == [(max(map(len, source["note"].to_pylist())),)]


def test_errors_of_python_functions_are_told(stocked):
    def fails(values):
        raise RuntimeError("the sensor is on fire")

    function = flashmesh.udf(fails, [pa.int32()], pa.int32(), "volatile", "fails")
    with pytest.raises(flashmesh.Error, match="on fire"):
        stocked.table("reading").select(function(col("sensor"))).to_arrow_table()


def test_searches_are_methods(db):
    codes = pa.array([bytes([i % 256, i // 256]) for i in range(2000)], pa.binary(2))
    db.load("codes", pa.table({"id": range(2000), "code": codes}))
    code = bytes([5, 5])
    assert db.nearest("codes", "code", code, 1).select("id").fetchall() == [(0x0505,)]
    assert db.table("codes").nearest("code", code, 1).select("id").fetchall() == [(0x0505,)]
    by_function = db.table("codes").sort(f.hamming_distance(col("code"), code), col("id")).limit(1)
    assert by_function.select("id").fetchall() == [(0x0505,)]
    many = db.nearest("codes", "code", db.table("codes").filter(col("id") < 3).sort(col("id")).select("code"), 1)
    assert sorted(many.select("query", "id").fetchall()) == [(0, 0), (1, 1), (2, 2)]

    db.load("vectors", pa.table({"id": range(3), "v": pa.array([[0.0, 1.0], [1.0, 0.0], [0.7, 0.7]], pa.list_(pa.float32(), 2))}))
    assert db.nearest("vectors", "v", [1, 0.1], 1, metric="l2").select("id").fetchall() == [(1,)]
    assert db.nearest("vectors", "v", [[1, 0.1], [0, 2]], 1).select("query", "id").sort(col("query")).fetchall() == [(0, 1), (1, 0)]

    db.execute("CREATE TABLE e AS SELECT value AS a, value + 1 AS b FROM generate_series(1, 50) AS s(value)")
    db.execute("CREATE INDEX g ON e USING adjacency (a, b)")
    assert db.bfs("g", 1).aggregate([], [f.max(col("depth"))]).fetchall() == [(50,)]
    assert db.expand("g", [1, 10], 2).count() == 4
    assert db.shortest_path("g", 3, 7).count() == 5
    assert db.connected_components("g").count() == 51
    assert db.page_rank("g", max_iterations=5).count() == 51

    db.execute("CREATE TABLE kv (k BIGINT PRIMARY KEY, v TEXT)")
    db.execute("INSERT INTO kv SELECT value, 'needle ' || value FROM generate_series(1, 10000) AS s(value)")
    assert rows(db.lookup("kv", [1, 9999, -5])) == [(1, "needle 1"), (9999, "needle 9999")]
    assert db.lookup("kv", range(1, 9000)).count() == 8999
    assert db.lookup("kv", db.table("kv").filter(col("k") < 4).select("k")).count() == 3
    assert db.table("kv").get([5]).filter(col("k") == 5).count() == 1
    assert db.matches("kv", "v", "needle 999").count() == 11
    with pytest.raises(flashmesh.Error, match="one column"):
        db.lookup("kv", db.table("kv"))


def test_statements_run_at_once(db):
    assert db.sql("CREATE TABLE t AS SELECT 1 AS a").columns is not None
    db.sql("INSERT INTO t VALUES (2)")
    assert db.table("t").count() == 2
    assert "FlashScanExec" in db.sql("EXPLAIN SELECT a FROM t").to_pydict()["plan"][-1]
    assert db.sql("DESCRIBE t").count() == 1
    assert db.sql("SHOW flashmesh.pushdown").count() == 1


def test_frames_see_what_was_committed_since(db):
    db.execute("CREATE TABLE t AS SELECT 1 AS a")
    frame = db.table("t")
    assert frame.count() == 1
    db.execute("INSERT INTO t VALUES (2)")
    assert frame.count() == 2
    db.execute("DROP TABLE t")
    with pytest.raises(Exception, match="does not exist|not found"):
        frame.count()


@pytest.mark.parametrize("dialect", ["generic", "mysql"])
def test_a_text_stays_a_text_in_every_dialect(db, dialect):
    texts = ["\\", "\\'", "\\'), (SELECT 1) --", "it's", "a\\nb"]
    db.load("t", pa.table({"id": pa.array(range(len(texts))), "note": texts}))
    db.settings["datafusion.sql_parser.dialect"] = dialect
    for text in texts:
        found = {value for _, _, value in db.matches("t", "note", text).fetchall()}
        assert found == {value for value in texts if text in value}


@pytest.mark.parametrize("name", ["a; DROP TABLE t", "datafusion.execution.batch_size = 1; DROP TABLE t --", "a b", ""])
def test_the_name_of_a_setting_is_no_statement(db, name):
    db.sql("CREATE TABLE t AS SELECT 1 AS a")
    with pytest.raises(flashmesh.Error, match="there is no setting"):
        del db.settings[name]
    with pytest.raises(flashmesh.Error, match="there is no setting"):
        db.settings[name] = 1
    assert db.sql("SELECT a FROM t").fetchall() == [(1,)]


def test_settings(db):
    settings = db.settings
    assert settings.pushdown == "auto" and settings.approximate is False
    settings.pushdown = "never"
    settings.approximate = True
    settings["datafusion.execution.batch_size"] = 1024
    assert settings.pushdown == "never" and settings.approximate is True
    assert settings["datafusion.execution.batch_size"] == "1024"
    assert db.sql("SHOW flashmesh.pushdown").fetchall()[0][1] == "never"
    assert "flashmesh.fallback" in settings
    with pytest.raises(AttributeError, match="pushdwn"):
        settings.pushdwn = "never"
    with pytest.raises(flashmesh.Error, match="sometimes"):
        settings.pushdown = "sometimes"
    with pytest.raises(flashmesh.Error, match="no setting"):
        settings["flashmesh.colour"]


def test_errors_are_ours_and_plain(stocked):
    table = stocked.table("reading")
    for wrong in (
        lambda: table.filter(col("missing") > 1),
        lambda: table.select("missing"),
        lambda: stocked.sql("SELECT missing FROM reading"),
    ):
        with pytest.raises(flashmesh.Error, match="missing") as raised:
            wrong()
        assert not str(raised.value).startswith(("DataFusion error", "External error"))
    with pytest.raises(flashmesh.Error, match="nowhere"):
        stocked.table("nowhere")
    failing = stocked.sql("SELECT CAST(note AS INT) AS n FROM reading")
    for run in (failing.to_arrow_table, failing.count, failing.to_polars, lambda: list(failing)):
        with pytest.raises(flashmesh.Error, match="Cannot cast"):
            run() if run != failing.count else failing.filter(col("n") > 0).count()
    with pytest.raises(Exception, match="Cannot cast") as raised:
        pa.table(failing)
    assert "FlashmeshError" not in str(raised.value)


def test_a_closed_connection_closes_its_frames(tmp_path):
    db = flashmesh.connect(tmp_path / "db")
    db.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 200000) AS s(value)")
    table, grown, upstream = db.table("t"), db.table("t").filter(col("a") > 1), db.context.table("t")
    grown.count()
    stream = iter(table)
    first = next(stream).to_pyarrow()
    context = db.context
    db.close()
    for frame in (table, grown):
        with pytest.raises(flashmesh.Error, match="closed"):
            frame.to_arrow_table()
        with pytest.raises(flashmesh.Error, match="closed"):
            frame.filter(col("a") > 2).count()
    with pytest.raises(Exception, match="closed"):
        upstream.collect()
    # What ran goes on to its end; then the database is free.
    assert first.num_rows + sum(batch.to_pyarrow().num_rows for batch in stream) == 200_000
    del stream
    flashmesh.connect(tmp_path / "db").close()
    del context


def test_threads_share_a_connection(stocked, source):
    wrong = []
    sensors = source["sensor"].to_pylist()
    counts = {sensor: sensors.count(sensor) for sensor in range(8)}

    def work(sensor):
        for _ in range(5):
            table = stocked.table("reading")
            if table.filter(col("sensor") == sensor).count() != counts[sensor]:
                wrong.append(sensor)
            if stocked.sql(f"SELECT * FROM reading WHERE sensor = {sensor}").select("id").to_arrow_table().num_rows != counts[sensor]:
                wrong.append(sensor)

    threads = [threading.Thread(target=work, args=(sensor,)) for sensor in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@embedded
def test_frames_let_go_of_their_memory(db):
    big = pa.table({"a": pa.array(range(2_000_000), pa.int64())})
    db.load("t", pa.table({"a": pa.array([1], pa.int64())}))

    def resident():
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    def round_():
        frame = db.from_arrow(pa.table({"a": big["a"].combine_chunks()}).slice(0, 1_999_999))
        joined = db.table("t").join(frame, on="a").filter(col("a") > 0)
        assert joined.count() == 1

    round_()
    gc.collect()
    before = resident()
    for _ in range(20):
        round_()
    gc.collect()
    # Each round holds 32 MB: none of them stays.
    assert resident() - before < 200e6


def test_transactions_are_whole(db):
    db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY); INSERT INTO t VALUES (1)")
    with db.transaction():
        db.execute("INSERT INTO t VALUES (2)")
        db.execute("DELETE FROM t WHERE id = 1")
        assert db.sql("SELECT id FROM t").fetchall() == [(2,)]
    assert db.sql("SELECT id FROM t").fetchall() == [(2,)]
    with pytest.raises(ZeroDivisionError), db.transaction():
        db.execute("DELETE FROM t")
        raise ZeroDivisionError
    with pytest.raises(flashmesh.Error, match="primary key"), db.transaction():
        db.execute("DELETE FROM t")
        db.execute("INSERT INTO t VALUES (3), (3)")
    with pytest.raises(flashmesh.Error, match="READ ONLY"), db.transaction(read_only=True):
        db.execute("DELETE FROM t")
    with db.transaction(serializable=True):
        db.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
    assert db.sql("SELECT id FROM t ORDER BY id").fetchall() == [(2,), (3,)]


def test_df_is_a_call_for_pandas_and_datafusions_own_object(stocked):
    script = """
        import sys, flashmesh
        con = flashmesh.connect()
        assert con.sql("SELECT 1 AS a, 'x' AS b").df().to_dict("list") == {"a": [1], "b": ["x"]}
        assert con.execute("SELECT 1 AS a").df().equals(con.sql("SELECT 1 AS a").df())
        assert "datafusion" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
    frame = stocked.sql("SELECT 1 AS a UNION ALL SELECT 2 ORDER BY a")
    grown = frame.filter(col("a") > 1)
    for each in (frame, grown, stocked.frame(grown)):
        assert each.df()["a"].tolist() == each.to_pydict()["a"]
        assert isinstance(each.df.logical_plan(), datafusion._internal.LogicalPlan)
    other = grown.select(col("a").alias("b"))
    assert frame.union(grown).join(other, left_on="a", right_on="b").df()["a"].tolist() == [2, 2]
    assert frame.transform(lambda own, rows: own.limit(rows).pl(), 1)["a"].to_list() == [1]
    # The one place where the wheel asks for it from outside.
    stocked.context.register_view("grown", grown)
    assert stocked.context.sql("SELECT count(*) AS n FROM grown").to_pydict() == {"n": [1]}
    stocked.context.deregister_table("grown")
