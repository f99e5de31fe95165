"""Queries whose parts the nodes of a rack run: answers against DuckDB, nodes that are killed, queries that are ended,
what users may not do."""

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from running_racks import Rack, behind, eventually, kill, racks  # noqa: F401
from seeds import SEED

sys.path.insert(0, str(Path(__file__).parent / "server"))

from random_duckdb import compare  # noqa: E402

QUERIES = 80
TABLES = [
    "CREATE TABLE reading AS SELECT value AS id, value % 1000 AS sensor, value * 7919 % 10007 AS x "
    "FROM generate_series(1, 600000) AS s(value)",
    "CREATE TABLE sensor AS SELECT value * 3 AS id, value % 11 AS kind FROM generate_series(1, 200000) AS s(value)",
]
JOIN = "SELECT kind, count(*), sum(x) FROM reading JOIN sensor ON reading.id = sensor.id GROUP BY kind ORDER BY kind"
# Functions that plans of nodes have by name, and such as they are written with.
OWN_FUNCTIONS = [
    "mode(x % 50), quantile_disc(x, 0.3), mad(x), histogram(x % 3), entropy(x % 2)",
    "quantile_cont(x, 0.123456789), median(DATE '2020-01-01' + to_days(x)), avg(TIMESTAMP '2020-01-01' + to_days(x))",
    "sum(len(list_filter([x, 5], y -> y > sensor.kind))), sum(sign(x - 5000))",
    "sum(date_diff('month', DATE '2020-01-01' + to_days(x), DATE '2021-05-05' + to_days(x % 100)))",
    "max(regexp_extract(x::VARCHAR || 'z', '[0-9]z')), min(even(x * 1.5 + kind))",
]
# Functions of windows over `reading`, and whether they can be sent to nodes as they are.
WINDOWS = {
    "sum(x) OVER (PARTITION BY sensor ORDER BY id)": True,
    "lag(x) OVER (PARTITION BY sensor ORDER BY id), count(*) OVER (PARTITION BY sensor)": True,
    "lag(x) OVER (PARTITION BY sensor ORDER BY id), lag(x) OVER (PARTITION BY sensor ORDER BY id DESC)": False,
    "lag(x) IGNORE NULLS OVER (PARTITION BY sensor ORDER BY id)": False,
    "sum(x) FILTER (WHERE id % 2 = 0) OVER (PARTITION BY sensor)": False,
    "count(*) FILTER (WHERE x > 5) OVER (PARTITION BY sensor ORDER BY id ROWS 3 PRECEDING)": False,
}
ALWAYS = "SET flashmesh.distributed = 'always'"


def is_distributed(cursor, query: str) -> bool:
    cursor.execute(f"EXPLAIN {query}")
    return "RackExec" in str(cursor.fetchall())


def test_random_queries_agree_with_duckdb_where_nodes_take_part(racks) -> None:
    rack = racks(3).stocked(TABLES)
    assert compare(lambda: rack.connect("n01"), QUERIES, SEED, ALWAYS) >= QUERIES * 0.9
    with rack.cursor("n01") as cursor:
        cursor.execute(ALWAYS)
        # The random tables may have a row each, which nobody cuts into parts.
        assert is_distributed(cursor, JOIN)
        for expressions in OWN_FUNCTIONS:
            query = (
                f"SELECT kind, {expressions} FROM reading JOIN sensor ON reading.id = sensor.id "
                "GROUP BY kind ORDER BY kind"
            )
            answers = []
            for distributed in ("always", "never"):
                cursor.execute(f"SET flashmesh.distributed = '{distributed}'")
                assert is_distributed(cursor, query) == (distributed == "always"), query
                cursor.execute(query)
                answers.append(cursor.fetchall())
            assert answers[0] == answers[1], query
    log = rack.log("n00")
    assert "done on the head alone" not in log, log
    assert "not cut into parts" not in log, log


def test_windows_are_computed_by_nodes_where_these_get_all_of_them(racks) -> None:
    readings = TABLES[0].replace("value * 7919 % 10007", "nullif(value * 7919 % 10007, 5)")
    rack = racks(3).stocked([readings])
    with rack.cursor("n01") as cursor:
        for windows, is_sent in WINDOWS.items():
            query = f"SELECT id, {windows} FROM reading ORDER BY id LIMIT 3000"
            answers = []
            for distributed in ("always", "never"):
                cursor.execute(f"SET flashmesh.distributed = '{distributed}'")
                assert is_distributed(cursor, query) == (is_sent and distributed == "always"), query
                cursor.execute(query)
                answers.append(cursor.fetchall())
            assert answers[0] == answers[1], query


def test_columns_of_any_type_come_from_other_nodes(racks) -> None:
    columns = "CASE WHEN value % 3 <> 0 THEN arrow_cast([value, 2], 'LargeList(Int64)') END AS v, "
    columns += "MAP {'a': value} AS m, value::DECIMAL(50, 2) AS d"
    rack = racks(3).stocked([
        f"CREATE TABLE typed WITH (distribute_by = 'id', buckets = 8) AS SELECT value AS id, {columns} FROM range(0, 50)"
    ])
    expected = [(i, [i, 2] if i % 3 else None, i, f"{i}.00") for i in range(50)]
    with rack.cursor("n01") as cursor:
        for distributed in ("always", "never"):
            cursor.execute(f"SET flashmesh.distributed = '{distributed}'")
            cursor.execute("SELECT id, v, map_extract(m, 'a')[1], d::TEXT FROM typed ORDER BY id")
            found = [(row, v if v is None else list(v), *others) for row, v, *others in cursor.fetchall()]
            assert found == expected, distributed


def test_a_node_that_is_killed_is_not_missed_and_comes_back(racks) -> None:
    rack = racks(3, "--replicas", "2").stocked(TABLES)
    expected = rack.rows("n00", JOIN)
    wrong, stop, asked = [], threading.Event(), [0]

    def ask() -> None:
        with rack.cursor("n00") as cursor:
            cursor.execute(ALWAYS)
            while not stop.is_set():
                try:
                    cursor.execute(JOIN)
                    if (found := cursor.fetchall()) != expected:
                        wrong.append(found)
                except Exception as error:
                    wrong.append(error)
                asked[0] += 1

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        eventually(lambda: asked[0] > 3, "queries are answered")
        kill(rack, "n02")
        rounds = asked[0]
        eventually(lambda: asked[0] > rounds + 4, "queries are answered without it")
        rack.up()
        eventually(lambda: all(count == 0 for count in behind(rack).values()), "it has caught up")
        rounds = asked[0]
        eventually(lambda: asked[0] > rounds + 4, "queries are answered again")
    finally:
        stop.set()
        asking.join()
    assert wrong == []
    with rack.cursor("n01") as cursor:
        cursor.execute(ALWAYS)
        cursor.execute(f"EXPLAIN {JOIN}")
        assert "RackExec: nodes=3" in str(cursor.fetchall())


def test_a_query_that_is_cancelled_ends_on_all_nodes(racks) -> None:
    rack = racks(3).stocked(TABLES)
    # Billions of pairs.
    slow = "SELECT count(*), sum(a.x * b.x) FROM reading AS a JOIN reading AS b ON a.sensor % 3 = b.sensor % 3"
    with rack.connect("n00") as connection, connection.cursor() as cursor:
        cursor.execute(ALWAYS)
        assert is_distributed(cursor, slow)
        failed = []

        def ask() -> None:
            try:
                cursor.execute(slow)
                cursor.fetchall()
            except Exception as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        with rack.cursor("n01") as other:

            def running() -> list[tuple[int]]:
                other.execute(
                    "SELECT id FROM system.queries WHERE state = 'running' AND query LIKE 'SELECT count(*), sum(a.x * b.x)%'"
                )
                return other.fetchall()

            [(query,)] = eventually(running, "it runs")
            burnt = processor_time(rack)
            eventually(lambda: processor_time(rack) > burnt + 1, "nodes compute")
            other.execute(f"KILL QUERY {query}")
        asking.join()
        assert failed
    # Nobody computes any more: what nodes do beside is less than a tenth of a processor.
    def is_quiet() -> bool:
        before = processor_time(rack)
        time.sleep(1)
        return processor_time(rack) - before < 0.3

    eventually(is_quiet, "the nodes have ended it")


def processor_time(rack: Rack) -> float:
    """Seconds that the nodes but the head have computed."""

    def seconds(pid: int) -> float:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    return sum(seconds(node["pid"]) for name, node in rack.status().items() if name != "n00")


def test_results_that_nobody_reads_hold_up_nobody_else(racks) -> None:
    """Rows of many queries share one connection between two nodes."""
    rack = racks(3).stocked(TABLES)
    wide = (
        "SELECT reading.id, md5(CAST(x AS VARCHAR)), md5(CAST(kind + x AS VARCHAR)), md5(CAST(sensor AS VARCHAR)) "
        "FROM reading JOIN sensor ON reading.id = sensor.id"
    )
    expected = rack.rows("n00", JOIN)
    with contextlib.ExitStack() as open_results:
        for _ in range(12):
            cursor = open_results.enter_context(rack.cursor("n01"))
            cursor.execute(ALWAYS)
            assert is_distributed(cursor, wide)
            cursor.execute(wide)
            assert cursor.fetchone()
        with rack.cursor("n02") as cursor:
            cursor.execute(ALWAYS)
            for _ in range(3):
                cursor.execute(JOIN)
                assert cursor.fetchall() == expected
    assert "done on the head alone" not in rack.log("n00")
