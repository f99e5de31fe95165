"""Small tables that each node of a rack reads by itself: answers as the head's alone, also while they change, and while a
node is away."""

import random

from running_racks import behind, eventually, kill, plan_of, racks  # noqa: F401
from seeds import SEED

STOCK = [
    "CREATE TABLE reading AS SELECT value AS id, value % 4001 AS place, value % 97 AS kind, value * 7919 % 10007 AS x "
    "FROM generate_series(1, 400000) AS s(value)",
    # Several segments each, on several nodes.
    "CREATE TABLE place AS SELECT value AS place, value % 60 AS region, 'place ' || value AS name FROM range(40000) AS s(value)",
    "CREATE TABLE region AS SELECT value AS region, 'region ' || value AS title, value % 7 AS kind FROM range(60) AS s(value)",
    # One, which is in memory at first.
    "CREATE TABLE kind (kind BIGINT PRIMARY KEY, weight BIGINT)",
    "INSERT INTO kind SELECT value, value * 3 % 11 FROM range(90) AS s(value)",
]
WHOLE = "scanned=whole on each node"
QUERY = "SELECT region, count(*), sum(x) FROM reading JOIN place ON reading.place = place.place WHERE region < 40 GROUP BY region"


def mode(cursor, distributed: str) -> None:
    cursor.execute(f"SET flashmesh.distributed = '{distributed}'")


def agree(cursor, query: str) -> str:
    """The plan of the nodes, whose answer is the head's."""
    answers = []
    for distributed in ("never", "always"):
        mode(cursor, distributed)
        cursor.execute(query)
        answers.append(sorted(cursor.fetchall(), key=str))
    assert answers[0] == answers[1], query
    return plan_of(cursor, query)


def drawn(seed: random.Random) -> str:
    place = f"(SELECT place, region, name FROM place WHERE place % {seed.choice([1, 2, 13])} = 0) AS p"
    region = f"(SELECT region, title FROM region WHERE kind <> {seed.randrange(8)}) AS r"
    kind = seed.choice(["kind", f"(SELECT kind, weight FROM kind WHERE weight > {seed.randrange(9)}) AS kind"])
    rows = f"(SELECT * FROM reading WHERE x < {seed.choice([300, 9000, 20000])}) AS t"
    outer = seed.choice(["", "", "LEFT "])
    rows += f" {outer}JOIN {place} ON t.place = p.place"
    columns = ["t.x", "p.region"]
    if seed.random() < 0.6:
        rows += f" {seed.choice(['', 'LEFT '])}JOIN {region} ON p.region = r.region"
        columns.append("length(r.title)")
    if seed.random() < 0.6:
        rows += f" {seed.choice(['', 'LEFT ', 'RIGHT '])}JOIN {kind} ON t.kind = kind.kind"
        columns.append("kind.weight")
    sums = ", ".join(f"sum({column}), count({column})" for column in columns)
    where = seed.choice(
        [
            "",
            " WHERE t.kind IN (SELECT kind FROM kind WHERE weight < 5)",
            " WHERE t.place NOT IN (SELECT place FROM place WHERE region = 3)",
            " WHERE t.x > (SELECT max(weight) FROM kind)",
        ]
    )
    if seed.random() < 0.5:
        return f"SELECT count(*), {sums} FROM {rows}{where}"
    return f"SELECT {columns[1]} AS g, count(*), {sums} FROM {rows}{where} GROUP BY g"


def test_answers_are_those_of_the_head_while_tables_change(racks) -> None:
    rack = racks(3).stocked(STOCK)
    seed = random.Random(SEED)
    changes = [
        "UPDATE place SET region = (region + {}) % 60 WHERE place % 3 = 0",
        "DELETE FROM place WHERE place % 1000 = {}",
        "INSERT INTO place SELECT 50000 + {0} * 1000 + value, value % 60, 'later' FROM range(1000) AS s(value)",
        "INSERT INTO kind VALUES (90 + {0}, {0}) ON CONFLICT (kind) DO UPDATE SET weight = excluded.weight",
        "UPDATE region SET title = title || '{}'",
        "CREATE OR REPLACE TABLE region AS SELECT value AS region, 'new {0} ' || value AS title, (value + {0}) % 7 AS kind "
        "FROM range(60) AS s(value)",
    ]
    whole = 0
    with rack.cursor("n01") as cursor, rack.cursor("n02") as writer:
        for _ in range(40):
            whole += WHOLE in agree(cursor, drawn(seed))
            if seed.random() < 0.5:
                writer.execute(seed.choice(changes).format(seed.randrange(7)))
    assert whole > 15, whole
    log = rack.log("n00")
    assert "done on the head alone" not in log, log
    assert "not cut into parts" not in log, log


def test_a_stage_less_where_a_table_is_small(racks) -> None:
    rack = racks(3).stocked(STOCK)
    with rack.cursor("n01") as cursor:
        plan = agree(cursor, QUERY)
        assert WHOLE in plan and "NetworkBroadcastExec" not in plan, plan
        # Of rows that a limit has drawn, all nodes need the same.
        some = "(SELECT * FROM place LIMIT 30000) AS place"
        mode(cursor, "always")
        plan = plan_of(cursor, QUERY.replace("JOIN place", f"JOIN {some}"))
        assert WHOLE not in plan, plan
        # Nodes draw other numbers, and each row has one.
        cursor.execute(
            "SELECT count(DISTINCT p.r), count(DISTINCT p.place) FROM reading "
            "JOIN (SELECT place, random() AS r FROM place WHERE place < 100) AS p ON reading.place = p.place"
        )
        assert cursor.fetchall() == [(100, 100)]
        # More than is worth reading on each node, wherever it is cached.
        rack.execute(
            "n00",
            "CREATE TABLE large AS SELECT value AS place, md5(value::VARCHAR) AS name FROM range(200000) AS s(value)",
        )
        plan = agree(
            cursor,
            "SELECT count(*), max(name) FROM reading JOIN large ON reading.place = large.place WHERE name LIKE 'a%'",
        )
        assert WHOLE not in plan and "Network" in plan, plan
        cursor.execute("SET flashmesh.pushdown = 'never'")
        cursor.execute("SELECT max(name), max(place) FROM large")
        cursor.execute("RESET flashmesh.pushdown")
        query = "SELECT count(*) FROM reading JOIN large ON reading.place = large.place WHERE name LIKE 'a%'"
        assert WHOLE not in agree(cursor, query)


def test_while_a_node_is_away(racks) -> None:
    rack = racks(3, "--replicas", "2").stocked(STOCK)
    with rack.cursor("n00") as cursor:
        cursor.execute("CREATE TABLE asked (a INT) WITH (replicas = 2)")
        eventually(lambda: all(count == 0 for count in behind(rack).values()), "copies are whole")
        assert WHOLE in agree(cursor, QUERY)
        kill(rack, "n02")
        agree(cursor, QUERY)
        rack.execute("n00", "UPDATE place SET region = 59 - region WHERE place % 2 = 0")
        assert WHOLE not in agree(cursor, QUERY)
        rack.up()
        eventually(lambda: all(count == 0 for count in behind(rack).values()), "it has caught up")
        eventually(lambda: WHOLE in agree(cursor, QUERY), "nodes read from each other again")
