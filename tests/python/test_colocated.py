"""Tables of a rack that lie by a key: what nodes join and group without an exchange, answers against DuckDB and the head
alone, while rows change and nodes come and go."""

import random
import sys
import threading
from pathlib import Path

import flashmesh as module
import pytest
from running_racks import Rack, behind, eventually, flashmesh, kill, plan_of, racks  # noqa: F401
from seeds import SEED

sys.path.insert(0, str(Path(__file__).parent / "server"))

from random_duckdb import TABLES, compare  # noqa: E402

QUERIES = 60
#: Of the random tables.
KEYS = ["k", "n", "s", "id", "d", "m", "b", "z", "(k, n)", "(s, k)"]
ALWAYS = "SET flashmesh.distributed = 'always'"
STOCK = [
    "CREATE TABLE line (item INT, sale BIGINT, part INT, amount INT) WITH (distribute_by = 'sale')",
    "INSERT INTO line SELECT value % 7, value % 100000, value % 2003, value % 50 FROM generate_series(1, 120000) AS s(value)",
    "CREATE TABLE deal WITH (distribute_by = (sale)) AS "
    "SELECT value AS sale, value % 1009 AS customer, value % 5 AS kind FROM generate_series(1, 120000) AS s(value)",
    "CREATE TABLE plain AS SELECT value AS sale, value % 13 AS grade FROM generate_series(1, 110000) AS s(value)",
]
#: With how many exchanges of rows nodes answer them; `None`: with no local one.
ASKED = {
    "SELECT kind, count(*), sum(amount) FROM line JOIN deal USING (sale) GROUP BY kind": 1,
    "SELECT count(*), sum(n), max(a) FROM (SELECT sale, count(*) AS n, sum(amount) AS a FROM line GROUP BY sale)": 0,
    "SELECT count(*), sum(n) FROM (SELECT sale, part, count(*) AS n FROM line GROUP BY sale, part)": 0,
    "SELECT count(*), sum(n) FROM (SELECT item, count(*) AS n FROM line GROUP BY item)": 1,
    "SELECT count(*), count(kind), sum(amount) FROM line LEFT JOIN deal USING (sale)": 0,
    "SELECT count(*), count(item), count(kind) FROM line FULL JOIN deal ON line.sale = deal.sale AND amount < 30": 0,
    "SELECT count(*) FROM deal WHERE NOT EXISTS (SELECT 1 FROM line WHERE line.sale = deal.sale)": 0,
    "SELECT count(*), sum(kind) FROM deal WHERE sale IN (SELECT sale FROM line WHERE amount > 20)": 0,
    "SELECT count(*), sum(r) FROM (SELECT rank() OVER (PARTITION BY sale ORDER BY amount, part) AS r FROM line)": 0,
    "SELECT count(*), sum(n) FROM (SELECT s.sale, count(*) AS n FROM line AS l JOIN deal AS s ON l.sale = s.sale "
    "GROUP BY s.sale) AS t JOIN deal AS u ON t.sale = u.sale": 0,
    "SELECT count(*), sum(a.amount * b.kind) FROM (SELECT sale, sum(amount) AS amount FROM line GROUP BY sale) AS a "
    "JOIN deal AS b ON a.sale = b.sale AND a.amount > b.kind": 0,
    # A group by what may be NULL of rows that found nobody.
    "SELECT count(*), sum(n) FROM (SELECT s.sale, count(*) AS n FROM line AS l LEFT JOIN "
    "(SELECT * FROM deal WHERE kind = 1) AS s ON l.sale = s.sale GROUP BY s.sale)": 1,
    # The keys are others.
    "SELECT count(*), sum(kind) FROM line JOIN deal ON line.part = deal.sale": None,
    "SELECT count(*), sum(kind) FROM line JOIN deal ON line.sale + 1 = deal.sale": None,
    # One side lies by it alone: all others come to where its rows go.
    "SELECT count(*), sum(grade) FROM line JOIN plain ON line.sale = plain.sale": None,
    "SELECT count(*) FROM (SELECT sale FROM line UNION SELECT sale FROM deal)": None,
}
JOIN = next(iter(ASKED))


def exchanges_in(plan: str) -> int:
    """Those between nodes."""
    return plan.count("NetworkShuffleExec") + plan.count("NetworkBroadcastExec")


def answers_of(cursor, query: str) -> list[tuple]:
    cursor.execute(query)
    return sorted(cursor.fetchall(), key=str)


def agree(rack: Rack) -> None:
    """Nodes together answer as the head alone, with as many exchanges as there have to be."""
    with rack.cursor("n01") as cursor:
        cursor.execute(ALWAYS)
        before = len(rack.log("n00"))
        # What a checkpoint wrote to the head's card is gathered.
        eventually(lambda: exchanges_in(plan_of(cursor, JOIN)) == 1, "buckets are whole")
        for query, exchanges in ASKED.items():
            cursor.execute("SET flashmesh.distributed = 'never'")
            expected = answers_of(cursor, query)
            cursor.execute(ALWAYS)
            plan = plan_of(cursor, query)
            assert "RackExec" in plan, plan
            if exchanges is None:
                assert "LocalExchangeExec" not in plan, f"{query}\n{plan}"
            else:
                assert "LocalExchangeExec" in plan or exchanges, f"{query}\n{plan}"
                assert exchanges_in(plan) == exchanges, f"{query}\n{plan}"
            assert answers_of(cursor, query) == expected, query
    log = rack.log("n00")[before:]
    assert "done on the head alone" not in log, log
    assert "not cut into parts" not in log, log


def test_random_queries_agree_with_duckdb_wherever_rows_lie(racks) -> None:
    rack = racks(3)
    rack.up()

    def distribute(cursor, rng: random.Random) -> None:
        key, buckets = rng.choice(KEYS), rng.choice(["", ", buckets = 3", ", buckets = 17"])
        for name in TABLES:
            if rng.random() < 0.2:
                key = rng.choice(KEYS)
            if rng.random() < 0.95:
                cursor.execute(f"ALTER TABLE {name} SET (distribute_by = {key}{buckets})")
            # Rows that are written anew, in small commits.
            cursor.execute(f"UPDATE {name} SET k = k WHERE id % {rng.randrange(3, 50)} = 0")

    assert compare(lambda: rack.connect("n01"), QUERIES, SEED, ALWAYS, prepare=distribute) >= QUERIES * 0.9
    log = rack.log("n00")
    assert "done on the head alone" not in log, log
    assert "not cut into parts" not in log, log


def test_rows_that_lie_by_the_key_are_joined_and_grouped_where_they_are(racks) -> None:
    rack = racks(3).stocked(STOCK)
    agree(rack)
    rng = random.Random(SEED)
    changes = [
        lambda: f"INSERT INTO line VALUES ({rng.randrange(7)}, {rng.choice([rng.randrange(130000), 'NULL'])}, 1, 49)",
        lambda: f"INSERT INTO deal SELECT value, 1, value % 5 FROM generate_series({(n := rng.randrange(150000))}, {n + 300}) AS s(value)",
        lambda: f"UPDATE line SET sale = sale * 3 WHERE part = {rng.randrange(2003)}",
        lambda: f"UPDATE deal SET sale = sale + 7, kind = NULL WHERE customer = {rng.randrange(1009)}",
        lambda: f"DELETE FROM line WHERE sale % 1000 = {rng.randrange(1000)}",
        lambda: "MERGE INTO deal USING (SELECT DISTINCT sale FROM line WHERE amount = 3) AS l ON deal.sale = l.sale "
        f"WHEN MATCHED AND kind = {rng.randrange(5)} THEN DELETE "
        "WHEN NOT MATCHED THEN INSERT (sale, customer, kind) VALUES (l.sale, 5, 5)",
        lambda: "VACUUM line",
    ]
    for _ in range(2):
        for _ in range(5):
            rack.execute("n02", rng.choice(changes)())
        agree(rack)
    rack.down()
    rack.up()
    for name in ["line", "deal"]:
        rack.execute("n00", f"VACUUM {name}")
    agree(rack)


def test_rows_keep_their_order_and_a_transaction_sees_its_own(racks) -> None:
    rack = racks(3).stocked(STOCK)
    with rack.cursor("n01") as cursor:
        cursor.execute(ALWAYS)
        for join in ["JOIN", "LEFT JOIN", "RIGHT JOIN"]:
            for order in ["l.amount, l.part", "d.customer, l.part", "l.sale, d.kind"]:
                query = f"SELECT {order} FROM deal AS d {join} line AS l ON d.sale = l.sale WHERE l.part < 300 ORDER BY {order}"
                plan = plan_of(cursor, query)
                assert "RackExec" in plan
                cursor.execute(query)
                found = cursor.fetchall()
                assert len(found) > 10_000
                assert found == sorted(found, key=lambda row: [(value is None, value or 0) for value in row]), plan

    with rack.cursor("n01") as cursor:
        cursor.execute("BEGIN")
        cursor.execute("INSERT INTO deal VALUES (900001, 1, 4), (900002, 2, 4), (NULL, 3, 3)")
        cursor.execute("INSERT INTO line SELECT 0, 900000 + value % 5, 0, 1 FROM generate_series(1, 5000) AS s(value)")
        cursor.execute("DELETE FROM line WHERE sale % 3 = 0")
        answers = {}
        for setting in ("always", "never"):
            cursor.execute(f"SET flashmesh.distributed = '{setting}'")
            answers[setting] = {query: answers_of(cursor, query) for query in ASKED}
        assert answers["always"] == answers["never"]
        cursor.execute("ROLLBACK")


def test_a_past_version_lies_as_it_did(racks) -> None:
    rack = racks(3)
    rack.up()
    with rack.cursor("n00") as cursor:
        cursor.execute(
            "CREATE TABLE t (x BIGINT, k BIGINT, b BIGINT) WITH (distribute_by = 'k', buckets = 9, retention = '1 day')"
        )
        cursor.execute("INSERT INTO t SELECT value, value % 5000, value % 4999 FROM generate_series(1, 300000) AS s(value)")
        cursor.execute("SELECT version FROM system.versions ORDER BY version DESC LIMIT 1")
        [(version,)] = cursor.fetchall()
        groups = "SELECT count(*), sum(n) FROM (SELECT b, count(*) AS n FROM t AT (VERSION => {}) GROUP BY b)".format(version)
        expected = [(4999, 300000)]
        cursor.execute(ALWAYS)
        for change in ["SET (distribute_by = 'b', buckets = 9)", "DROP COLUMN x", "SET (distribute_by = 'k', buckets = 9)"]:
            cursor.execute(f"ALTER TABLE t {change}")
            assert "RackExec" in plan_of(cursor, groups)
            assert answers_of(cursor, groups) == expected, change
            assert answers_of(cursor, groups.replace(f"AT (VERSION => {version})", "")) == expected, change


def test_a_node_that_is_away_leaves_its_buckets_to_the_one_with_their_copies(racks) -> None:
    rack = racks(3, "--replicas", "2").stocked(STOCK)
    agree(rack)
    kill(rack, "n02")
    rack.execute("n00", "INSERT INTO line SELECT 1, value, 1, 1 FROM generate_series(1, 20000) AS s(value)")
    with rack.cursor("n00") as cursor:
        cursor.execute(ALWAYS)
        eventually(lambda: "RackExec: nodes=2" in plan_of(cursor, JOIN), "it is missed")
        plan = plan_of(cursor, JOIN)
        assert exchanges_in(plan) == 1, plan
        away = answers_of(cursor, JOIN)
        cursor.execute("SET flashmesh.distributed = 'never'")
        assert answers_of(cursor, JOIN) == away
    rack.up()
    eventually(lambda: all(count == 0 for count in behind(rack).values()), "it has caught up")
    agree(rack)


def test_buckets_stay_whole_when_nodes_come_and_go(racks) -> None:
    rack = racks(3).stocked(STOCK)
    rack.down()
    flashmesh("rack", "add", rack.file)
    rack.nodes["n03"] = rack.nodes["n02"]
    rack.up()
    agree(rack)
    wrong, stop = [], threading.Event()
    with rack.cursor("n00") as cursor:
        expected = answers_of(cursor, JOIN)

    def ask() -> None:
        with rack.cursor("n01") as cursor:
            cursor.execute(ALWAYS)
            while not stop.is_set():
                if (found := answers_of(cursor, JOIN)) != expected:
                    wrong.append(found)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        flashmesh("rack", "drain", rack.file, "n01")
    finally:
        stop.set()
        asking.join()
    assert wrong == []
    agree(rack)
    # What comes meanwhile goes where its bucket is now.
    rack.execute("n02", "INSERT INTO line SELECT 1, value, 1, 1 FROM generate_series(1, 200000) AS s(value)")
    agree(rack)


def test_the_option_is_kept_changed_and_refused(tmp_path) -> None:
    def tables(con) -> list[tuple]:
        sql = 'SELECT "table", distributed_by, buckets FROM system.tables ORDER BY 1'
        return [tuple(row.values()) for row in con.sql(sql).arrow().to_pylist()]

    with module.connect(tmp_path / "db") as con:
        con.sql("CREATE TABLE t (a INT, b TEXT, x DOUBLE) WITH (distribute_by = 'b', retention = '1 day')")
        con.sql("CREATE TABLE u (\"A\" INT, b INT) WITH (distribute_by = (b, \"A\"), buckets = 3)")
        con.sql("INSERT INTO t SELECT value, 'w' || (value % 50), 0.5 FROM generate_series(1, 3000) AS s(value)")
        con.sql("INSERT INTO u VALUES (1, 2)")
        con.sql("CREATE TABLE empty (k INT) WITH (distribute_by = 'k')")
        assert tables(con) == [("empty", "k", 8), ("t", "b", 8), ("u", "b, A", 3)]
        for sql, why in [
            ("CREATE TABLE w (x DOUBLE) WITH (distribute_by = 'x')", "column 'x' of type Float64 can't be a key"),
            ("CREATE TABLE w (x INT) WITH (distribute_by = 'y')", "table 'w' has no column 'y'"),
            ("CREATE TABLE w (x INT) WITH (distribute_by = 'x', buckets = 0)", "is a number of 1 to 256, not '0'"),
            ("CREATE TABLE w (x INT) WITH (distribute_by = 'x', buckets = 'many')", "not 'many'"),
            ("CREATE TABLE w (x INT) WITH (buckets = 4)", "add distribute_by"),
            ("CREATE TABLE w (x INT) WITH (distribute_by = x + 1)", "distribute_by takes columns"),
            ("ALTER TABLE t DROP COLUMN b", "distributed by column 'b'"),
            ("ALTER TABLE empty ALTER COLUMN k TYPE DOUBLE", "column 'k' of type Float64 can't be a key"),
            ("ALTER TABLE u ALTER COLUMN b TYPE DOUBLE", "column 'b' of type Float64 can't be a key"),
            ("ALTER TABLE t SET (distribute_by = 'x')", "can't be a key"),
        ]:
            with pytest.raises(module.Error, match=why):
                con.sql(sql)
        con.sql("DROP TABLE empty")
        con.sql("ALTER TABLE t RENAME COLUMN b TO c")
        con.sql("ALTER TABLE t ADD COLUMN d INT DEFAULT 7")
        con.sql("ALTER TABLE t DROP COLUMN a")
        con.sql("ALTER TABLE u ALTER COLUMN b TYPE BIGINT")
        assert tables(con) == [("t", "c", 8), ("u", "b, A", 3)]
        con.sql("ALTER TABLE t SET (distribute_by = (d, c), buckets = 5)")
        con.sql("ALTER TABLE u SET (distribute_by = '')")
        con.sql("TRUNCATE t")
        con.sql("INSERT INTO t (c) SELECT 'w' || (value % 50) FROM generate_series(1, 3000) AS s(value)")
    with module.connect(tmp_path / "db") as con:
        assert tables(con) == [("t", "d, c", 5), ("u", None, None)]
        con.sql("ALTER TABLE t DROP COLUMN x")
        assert tables(con)[0] == ("t", "d, c", 5)
        rows = con.sql("SELECT count(*) AS n, count(DISTINCT c) AS c, sum(d) AS d FROM t").arrow().to_pylist()
        assert rows == [{"n": 3000, "c": 50, "d": 21000}]
        con.sql("CREATE OR REPLACE TABLE t (a INT)")
        assert tables(con)[0] == ("t", None, None)
