"""Connections to servers: what only they have. `test_frames.py` has what all connections have."""

import datetime
import decimal
import gc
import os
import random
import subprocess
import sys

import flashmesh
import pyarrow as pa
import pyarrow.parquet
import pytest
import trustme
from conftest import binary
from datafusion.common import NullTreatment
from datafusion.expr import Window
from flashmesh import col, remote, script
from flashmesh import functions as f

# A bound for a broken cancel, not a measurement.
PATIENCE = 60


PLACES = ["server"]


# Connecting.


def add_user(users, name, password, *options):
    command = [binary(), "user", "add", name, "--users", users, *options]
    subprocess.run(command, input=f"{password}\n{password}\n", text=True, check=True, capture_output=True)


def test_logins(serve, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, "ada", "correct horses", "--admin")
    server = serve("--users", users)
    with flashmesh.connect(server.url, user="ada", password="correct horses") as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS a")
        assert con.table("t").filter(col("a") == 1).count() == 1
        assert repr(con) == f"<flashmesh.Connection, {server.url}>"
        assert "correct horses" not in repr(vars(con)) + repr(con._backend._client)
    with pytest.raises(flashmesh.Error) as raised:
        flashmesh.connect(server.url, user="ada", password="battery staple")
    assert "battery" not in str(raised.value) and "FlightSQL" not in str(raised.value)
    with pytest.raises(flashmesh.Error):
        flashmesh.connect(server.url)
    with pytest.raises(flashmesh.Error):
        flashmesh.connect(server.url, token="no token of this server's")


def test_changes_with_rows_run_once(serve):
    with flashmesh.connect(serve().url) as con:
        con.execute("CREATE TABLE t (id BIGINT)")
        added = con.sql("INSERT INTO t VALUES (1) RETURNING id + 1 AS next")
        for _ in range(2):
            assert added.fetchall() == [(2,)]
        assert con.sql("SELECT count(*) FROM t").fetchall() == [(1,)]


@pytest.mark.parametrize(
    ("path", "options", "says"),
    [
        ("grpc://h:1", {"cache_size": "1GB", "threads": 2}, "cache_size and threads: the server decides"),
        ("grpc://h:1", {"read_only": True}, "read_only: the server decides"),
        ("grpc://h:1", {"user": "ada"}, "go together"),
        ("grpc://h:1", {"user": "a", "password": "b", "token": "c"}, "either"),
        ("grpc://h:1", {"tls_ca": "ca.pem"}, "grpc\\+tls"),
        ("grpc+tls://h:1", {"tls_ca": "missing.pem"}, "missing.pem"),
        ("grpc+tls://h:1", {"tls_client_cert": "c.pem"}, "go together"),
        ("grpc://ada:secret@h:1", {}, "user=…"),
        ("grpc://", {}, "not the url of a server"),
        ("grpc://h:1/db", {}, "not the url of a server"),
        (None, {"password": "secret"}, "for servers only"),
    ],
    ids=str,
)
def test_what_is_no_connection(path, options, says):
    with pytest.raises(flashmesh.Error, match=says) as raised:
        flashmesh.connect(path, **options)
    assert "secret" not in str(raised.value)


def test_without_the_driver_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_flightsql", None)
    with pytest.raises(flashmesh.Error, match=r"flashmesh\[server\]"):
        flashmesh.connect("grpc://localhost:1")


def test_nobody_there():
    with pytest.raises(flashmesh.Error, match="grpc://127.0.0.1:1 can't be reached"):
        flashmesh.connect("grpc://127.0.0.1:1")


def test_tls(serve, tmp_path):
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    other.cert_pem.write_to_path(tmp_path / "other.pem")
    for name in ("server", "client"):
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    server = serve(
        *("--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key"),
        *("--tls-client-ca", tmp_path / "ca.pem"),
    )
    assert server.url.startswith("grpc+tls://")
    client = {"tls_client_cert": tmp_path / "client.pem", "tls_client_key": tmp_path / "client.key"}
    with flashmesh.connect(server.url, tls_ca=tmp_path / "ca.pem", **client) as con:
        con.load("t", pa.table({"a": range(100_000)}))
        assert pa.table(con.sql("SELECT a FROM t")).num_rows == 100_000
    shell = [binary(), "--connect", server.url, "--format", "csv", "-c", "SELECT count(*) AS n FROM t"]
    shows = ["--tls-client-cert", tmp_path / "client.pem", "--tls-client-key", tmp_path / "client.key"]
    # The system's authorities, where no others are named.
    for authorities in ({"SSL_CERT_FILE": tmp_path / "ca.pem"}, {"SSL_CERT_FILE": tmp_path / "other.pem"}):
        environment = {**os.environ, **{name: str(path) for name, path in authorities.items()}}
        done = subprocess.run([*shell, *shows], capture_output=True, text=True, env=environment)
        knows = authorities["SSL_CERT_FILE"].name == "ca.pem"
        assert (done.stdout == "n\n100000\n") == knows, done.stderr
    shell += ["--tls-ca", tmp_path / "ca.pem"]
    assert subprocess.run([*shell, *shows], capture_output=True, text=True).stdout == "n\n100000\n"
    assert subprocess.run(shell, capture_output=True).returncode == 1
    for options in ({"tls_ca": tmp_path / "ca.pem"}, {"tls_ca": tmp_path / "other.pem", **client}):
        with pytest.raises(flashmesh.Error, match="can't be reached"):
            flashmesh.connect(server.url, **options)


def test_a_server_that_comes_back(serve):
    server = serve()
    con = flashmesh.connect(server.url)
    con.load("t", pa.table({"a": range(10)}))
    con.settings.pushdown = "never"
    con.execute("SET datafusion.execution.batch_size TO 1234; SET datafusion.execution.target_partitions = 3")
    con.execute("RESET datafusion.execution.target_partitions")
    partitions = con.sql("SHOW datafusion.execution.target_partitions").fetchall()
    con.register("v", con.sql("SELECT a FROM t WHERE a > 7"))
    table = con.table("t")
    server.kill()
    with pytest.raises(flashmesh.Error, match="can't be reached"):
        con.sql("SELECT 1").fetchall()
    serve(listen=server.url.removeprefix("grpc://"))
    assert table.count() == 10
    # What made the session is made again.
    assert con.settings.pushdown == "never"
    assert con.sql("SHOW datafusion.execution.batch_size").fetchall()[0][-1] == "1234"
    assert con.sql("SHOW datafusion.execution.target_partitions").fetchall() == partitions
    assert con.sql("SELECT count(*) FROM v").fetchall() == [(2,)]


def test_a_transaction_that_the_server_has_lost(serve):
    server = serve()
    con = flashmesh.connect(server.url)
    con.load("t", pa.table({"a": range(3)}))
    con.execute("BEGIN; DELETE FROM t")
    server.kill()
    with pytest.raises(flashmesh.Error, match="can't be reached"):
        con.execute("INSERT INTO t VALUES (7)")
    serve(listen=server.url.removeprefix("grpc://"))
    # It does not commit by itself.
    for statement in ("INSERT INTO t VALUES (8)", "COMMIT"):
        with pytest.raises(flashmesh.Error, match="lost the session"):
            con.execute(statement)
    assert con.sql("SELECT count(*) FROM t").fetchall() == [(3,)]


def test_closed_is_closed(db):
    db.load("t", pa.table({"a": pa.array(range(1_000_000), pa.int64())}))
    table, stream = db.table("t"), iter(db.table("t"))
    next(stream)
    db.close()
    for run in (table.fetchall, lambda: table.filter(col("a") > 1).count(), lambda: list(stream)):
        with pytest.raises(flashmesh.Error, match="closed"):
            run()
    assert "closed" in repr(db)


# Statements.


def test_scripts(db):
    frame = db.sql("CREATE TABLE t (a TEXT); INSERT INTO t VALUES ('x;y'), ('-- z'); /* ; */ SELECT a FROM t -- ;")
    assert sorted(frame.fetchall()) == [("-- z",), ("x;y",)]
    assert frame.count() == 2
    db.execute("INSERT INTO t VALUES ('w'); DROP TABLE t;")
    with pytest.raises(flashmesh.Error, match="table 'flashmesh.public.t' not found"):
        db.sql("SELECT * FROM t")
    with pytest.raises(flashmesh.Error, match="no statement"):
        db.sql(" -- nothing")


def test_statements_are_found():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    random_ = random.Random(seed)
    pieces = ["SELECT ", "1", "'a;''b'", '"c;""d"', "-- e;\n", "/* f; */", "/* /* f; */ ; */", " E'\\';'", "`d;`", " $$g;h$$", " $t$ ; $$ ; $t$", "\n", " ", " $1 ", "ä$x$"]
    for _ in range(200):
        expected = ["x" + "".join(random_.choices(pieces, k=random_.randrange(8))) for _ in range(random_.randrange(1, 5))]
        assert [*script.statements(";".join(expected))] == expected
        # Those of nothing but comments don't count.
        assert [*script.statements("; /* ; */ ;\n;".join([*expected, "-- end;"]))] == expected


@pytest.mark.parametrize(
    ("name", "parts"),
    [("T", ["t"]), ('"T"', ["T"]), ('s."a.b"', ["s", "a.b"]), ("f.s.t", ["f", "s", "t"]), ('"a""b"', ['a"b']), ("my-table", ["my-table"])],
)
def test_names(name, parts):
    assert script.parts(name) == parts


@pytest.mark.parametrize(
    ("statement", "setting"),
    [
        ("SET flashmesh.pushdown = 'never'", ("flashmesh.pushdown", True)),
        ("-- why\n set a.B.c TO 1", ("a.b.c", True)),
        ("reset a.b", ("a.b", False)),
        ("SELECT 'SET a.b = 1'", None),
        ("SET x", None),
        ("SETTLE a.b", None),
    ],
    ids=str,
)
def test_settings_are_found(statement, setting):
    assert script.setting(statement) == setting


def test_frames_see_the_tables_of_now(db):
    db.execute("CREATE TABLE t AS SELECT 1 AS a")
    table = db.table("t")
    db.execute("INSERT INTO t VALUES (2)")
    assert table.count() == 2 and table.filter(col("a") > 0).count() == 2


def test_views_behind_frames_go(stocked):
    def views():
        names = stocked.sql("SELECT table_name FROM information_schema.tables WHERE table_type = 'VIEW'")
        return [name for (name,) in names.fetchall() if name.startswith("__")]

    # Frames of other tests may still be there.
    gc.collect()
    before = len(views())
    for number in range(5):
        assert stocked.sql("SELECT id FROM sensor").filter(col("id") < number).count() == number
        assert stocked.lookup("sensor", pa.table({"id": pa.array([1], pa.int32())})).count() == 1
    assert len(views()) <= before + 3


# Frames.


def test_the_whole_runs_on_the_server(stocked):
    t = stocked.table("reading")
    for frame in (
        t.filter(col("sensor") == 3).select("id"),
        t.aggregate([col("sensor")], [f.count(col("id"))]),
        stocked.sql("SELECT id, sensor AS s FROM reading").filter(col("s") == 3),
    ):
        plan = stocked.explain(frame)
        assert "FlashScanExec" in plan and "DatasetExec" not in plan
        assert "FlashScanExec" in stocked.explain(frame, analyze=True)
    assert "pushed=[sensor = 3]" in stocked.explain(t.filter(col("sensor") == 3))
    with pytest.raises(flashmesh.Error, match=r"settings\['datafusion.explain.show_statistics'\]"):
        t.explain(show_statistics=True)
    assert "statistics=[" not in stocked.explain(t)
    stocked.settings["datafusion.explain.show_statistics"] = "true"
    try:
        assert "statistics=[" in stocked.explain(t)
    finally:
        stocked.settings["datafusion.explain.show_statistics"] = "false"


def test_functions_in_python_see_what_the_server_left(stocked, source):
    seen = []

    def twice(values):
        seen.append(len(values))
        return pa.array([2 * value for value in values.to_pylist()], pa.int32())

    function = flashmesh.udf(twice, [pa.int32()], pa.int32(), "volatile", "twice")
    frame = stocked.table("reading").filter(col("sensor") == 9).select(function(col("sensor")).alias("d"))
    count = source["sensor"].to_pylist().count(9)
    assert frame.aggregate([col("d")], [f.count(col("d")).alias("n")]).fetchall() == [(18, count)]
    assert sum(seen) == count


def test_frames_that_substrait_has_no_words_for_are_refused(db):
    db.execute("CREATE TABLE gaps AS SELECT value AS id, value % 2 AS p, nullif(value % 3, 0) AS k FROM range(0, 10)")
    gaps, nothing = db.table("gaps"), NullTreatment.IGNORE_NULLS
    by_id, rows = [col("id").sort()], Window(partition_by=[col("p")], order_by=[col("id").sort()])
    for unsaid in (
        lambda: gaps.select(f.sum(col("k"), filter=col("id") > 4).over(rows)),
        lambda: gaps.select(f.count(col("k"), distinct=True).over(Window(partition_by=[col("p")]))),
        lambda: gaps.select(f.last_value(col("k"), null_treatment=nothing).over(rows)),
        lambda: gaps.aggregate([col("p")], [f.first_value(col("k"), order_by=by_id, null_treatment=nothing)]),
    ):
        with pytest.raises(flashmesh.Error, match="can't be said in Substrait; use SQL"):
            unsaid().fetchall()
    assert len(gaps.select(f.sum(col("k")).over(rows)).fetchall()) == 10
    sums = gaps.aggregate([col("p")], [f.sum(col("k"), filter=col("id") > 4)])
    assert sorted(sums.fetchall()) == [(0, 2), (1, 3)]


def test_lists_are_unnested_here(stocked):
    frame = stocked.table("sensor").filter(col("id") < 2).select(f.make_array(col("id"), col("id")).alias("l"))
    assert sorted(frame.unnest_columns("l").fetchall()) == [(0,), (0,), (1,), (1,)]


def test_large_data_of_this_process_is_not_sent_along(stocked):
    numbers = stocked.from_arrow(pa.table({"id": pa.array(range(remote.VALUES + 1), pa.int64())}))
    assert numbers.filter(col("id") < 5).count() == 5
    assert stocked.table("reading").join(numbers.filter(col("id") < 5), on="id").count() == 5
    with pytest.raises(flashmesh.Error, match=r"con\.load"):
        stocked.table("reading").join(numbers, on="id")


def random_table(random_, rows):
    def column(make, data_type):
        return pa.array([None if random_.random() < 0.2 else make() for _ in range(rows)], data_type)

    day = lambda: datetime.date(1900, 1, 1) + datetime.timedelta(days=random_.randrange(80_000))  # noqa: E731
    moment = lambda: datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=random_.randrange(10**15))  # noqa: E731
    text = lambda: "".join(random_.choices("a'\"\\;-ä%\n", k=random_.randrange(6)))  # noqa: E731
    return pa.table(
        {
            "int8": column(lambda: random_.randrange(-128, 128), pa.int8()),
            "Int 64": column(lambda: random_.randrange(-(2**63), 2**63), pa.int64()),
            "u64": column(lambda: random_.randrange(2**64), pa.uint64()),
            "f32": column(lambda: random_.randrange(1000) / 8, pa.float32()),
            "f64": column(lambda: random_.choice([random_.gauss(0, 1e9), float("inf"), 5e-324, 0.0]), pa.float64()),
            "bool": column(lambda: random_.random() < 0.5, pa.bool_()),
            'te"xt': column(text, pa.string()),
            "code": column(lambda: random_.randbytes(3), pa.binary(3)),
            "bytes": column(lambda: random_.randbytes(random_.randrange(4)), pa.binary()),
            "day": column(day, pa.date32()),
            "at": column(moment, pa.timestamp("us")),
            "zoned": column(moment, pa.timestamp("us", "UTC")),
            "price": column(lambda: decimal.Decimal(random_.randrange(-(10**9), 10**9)).scaleb(-2), pa.decimal128(12, 2)),
            "list": column(lambda: [random_.randrange(9) for _ in range(random_.randrange(3))] or [0], pa.list_(pa.int32())),
        }
    )


@pytest.mark.parametrize("rows", [0, 1, 50])
def test_small_data_goes_along_as_it_is(db, rows):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    data = random_table(random.Random(seed), rows)
    db.register("v", db.from_arrow(data))
    got = db.sql("SELECT * FROM v").to_arrow_table()
    assert got.schema.names == data.schema.names
    assert got.schema.types == data.schema.types
    assert sorted(map(repr, got.to_pylist())) == sorted(map(repr, data.to_pylist()))


def test_vectors_in_frames(db):
    vectors = pa.array([[0.0, 1.0], [1.0, 0.0], [0.7, 0.7]], pa.list_(pa.float32(), 2))
    db.load("vectors", pa.table({"id": range(3), "v": vectors}))
    assert db.table("vectors").to_arrow_table().schema.field("v").type == vectors.type
    near = db.table("vectors").filter(col("id") < 2).sort(f.l2_distance(col("v"), [1, 0.1])).limit(1)
    assert near.select("id", "v").fetchall() == [(1, [1.0, 0.0])]


# Rows in, rows by key.


def test_loading(db, tmp_path):
    data = pa.table({"a": range(1000), "b": [str(i) for i in range(1000)]})
    pa.parquet.write_table(data.slice(0, 600), tmp_path / "1.parquet")
    pa.parquet.write_table(data.slice(600), tmp_path / "2.parquet")
    assert db.load("t", [tmp_path / "1.parquet", tmp_path / "2.parquet"]) == 1000
    assert sorted(db.table("t").fetchall()) == list(zip(range(1000), data["b"].to_pylist(), strict=True))
    assert db.load("t", str(tmp_path / "*.parquet"), mode="append") == 1000
    assert db.load("t", data.to_reader(max_chunksize=10), mode="replace") == 1000
    assert db.load("u", db.table("t").filter(col("a") < 10)) == 10
    assert db.table("t").count() == 1000
    with pytest.raises(flashmesh.Error, match="already exists"):
        db.load("t", data)
    with pytest.raises(flashmesh.Error, match="nowhere"):
        db.load("nowhere", data, mode="append")
    with pytest.raises(flashmesh.Error, match=r"missing\.parquet"):
        db.load("w", tmp_path / "missing.parquet")
    with pytest.raises(ValueError, match="upsert"):
        db.load("t", data, mode="upsert")


def test_rows_by_key(db):
    db.execute("CREATE TABLE kv (k TEXT PRIMARY KEY, v BIGINT)")
    db.load("kv", pa.table({"k": [f"k'{i}" for i in range(30_000)], "v": range(30_000)}), mode="append")
    keys = [f"k'{i}" for i in range(25_000)]
    assert sorted(v for _, v in db.get("kv", [*keys, keys[0], None, "nobody"]).fetchall()) == list(range(25_000))
    assert db.get("kv", pa.array([], pa.string())).columns == ["k", "v"]
    with pytest.raises(flashmesh.Error, match="nowhere"):
        db.get("nowhere", [1])


# Ctrl-C.

PROGRAM = """
import gc, os, signal, sys, threading, time
import flashmesh
from flashmesh import col

url = sys.argv[1]
db, other = flashmesh.connect(url), flashmesh.connect(url)
endless = db.sql("SELECT value AS k FROM generate_series(1, 1000000000000) AS s(value)")
MINE = "SELECT id, state FROM system.queries WHERE state = 'running' AND query NOT LIKE '%system.queries%'"

def interrupt():
    while not other.sql(MINE).fetchall():
        pass
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    try:
        RUN
    except Exception as error:
        # An Arrow stream ends with an error of its reader's; the interrupt follows at once.
        print(error, file=sys.stderr)
        time.sleep(PATIENCE)
except KeyboardInterrupt:
    print("interrupted", flush=True)
# The traceback may have held the rows until here.
gc.collect()
while other.sql(MINE).fetchall():
    pass
assert db.table("t").filter(col("a") == 1).count() == 1
"""

RUNS = {
    "a DataFrame": "endless.filter(col('k') >= 0).to_arrow_table()",
    "SQL": "endless.to_arrow_table()",
    "batches": "for batch in endless: pass",
    "an Arrow stream": "import pyarrow; pyarrow.table(endless)",
}


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_ctrl_c_ends_it_on_the_server(serve, run):
    server = serve()
    with flashmesh.connect(server.url) as con:
        con.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 300000) AS s(value)")
    program = PROGRAM.replace("RUN", RUNS[run]).replace("PATIENCE", str(PATIENCE))
    process = subprocess.run(
        [sys.executable, "-c", program, server.url], stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True
    )
    assert process.stdout.splitlines()[-1] == "interrupted"
