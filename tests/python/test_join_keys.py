"""Joins whose keys reach scans on other nodes, beyond an exchange of rows: answers as the head's alone, and fewer rows
that travel."""

import random
import re

from running_racks import plan_of, racks  # noqa: F401
from seeds import SEED

ROWS = 300_000
STOCK = [
    f"CREATE TABLE reading AS SELECT value AS id, (value % 40000)::INT AS sensor, value * 1000003 AS far, "
    f"CASE WHEN value % 50 = 0 THEN NULL ELSE value % 9000 END AS some, 'key ' || (value % 5000) AS name, "
    f"DATE '2020-01-01' + to_days((value % 3000)::INT) AS day, value * 7919 % 10007 AS x "
    f"FROM generate_series(1, {ROWS}) AS s(value)",
    f"CREATE TABLE sensor AS SELECT (value * 2)::INT AS sensor, value * 3 AS id, value * 5000015 AS far, "
    f"CASE WHEN value % 30 = 0 THEN NULL ELSE value % 12000 END AS some, 'key ' || (value % 7000) AS name, "
    f"DATE '2019-06-01' + to_days((value % 4000)::INT) AS day, value % 11 AS kind, value * 13 % 1009 AS y "
    f"FROM generate_series(1, 60000) AS s(value)",
]
KEYS = ["id", "sensor", "far", "some", "name", "day"]
JOINS = [
    "{a} JOIN {b} ON {on}",
    "{a} LEFT JOIN {b} ON {on}",
    "{a} RIGHT JOIN {b} ON {on}",
    "{a} FULL JOIN {b} ON {on}",
    "{a} LEFT SEMI JOIN {b} ON {on}",
    "{a} LEFT ANTI JOIN {b} ON {on}",
]
QUERY = "SELECT count(*), sum(reading.x), sum(sensor.y) FROM reading JOIN sensor ON reading.id = sensor.id WHERE kind = {}"


def mode(cursor, distributed: str) -> None:
    cursor.execute(f"SET flashmesh.distributed = '{distributed}'")
    # What the optimizer would give whole to all nodes, which needs no exchange, is exchanged.
    for option in ("hash_join_single_partition_threshold", "hash_join_single_partition_threshold_rows"):
        cursor.execute(f"SET datafusion.optimizer.{option} = 0")


def answer(cursor, query: str) -> list[tuple]:
    cursor.execute(query)
    return sorted(cursor.fetchall(), key=str)


def drawn(seed: random.Random) -> str:
    """A join of the two, or of three, by one key or two, of as many rows as it happens to be."""
    on = seed.sample(KEYS, seed.choice([1, 1, 1, 2]))
    equals = seed.choice(["=", "=", "=", "IS NOT DISTINCT FROM"])
    condition = " AND ".join(f"r.{key} {equals} s.{key}" for key in on)
    sides = [
        f"(SELECT * FROM reading WHERE x < {seed.choice([50, 2000, 20000])}) AS r",
        f"(SELECT * FROM sensor WHERE y < {seed.choice([0, 3, 100, 2000])}) AS s",
    ]
    join = seed.choice(JOINS)
    if seed.random() < 0.5:
        sides.reverse()
    a, b = sides
    (left, right) = ("r", "s") if a.endswith("r") else ("s", "r")
    columns = {"r": "r.x", "s": "s.y"}
    of = [left] if "SEMI" in join or "ANTI" in join else [left, right]
    rows = join.format(a=a, b=b, on=condition)
    if len(of) == 2 and seed.random() < 0.4:
        rows += f" JOIN (SELECT id, day FROM sensor WHERE kind = {seed.randrange(11)}) AS t ON t.id = {of[0]}.id"
    sums = ", ".join(f"sum({columns[side]}), count({columns[side]})" for side in of)
    if seed.random() < 0.5:
        return f"SELECT count(*), {sums} FROM {rows}"
    return f"SELECT {of[0]}.sensor % 7 AS g, count(*), {sums} FROM {rows} GROUP BY g"


def test_random_joins_agree_with_the_head_alone(racks) -> None:
    rack = racks(3).stocked(STOCK)
    seed = random.Random(SEED)
    told = 0
    with rack.cursor("n01") as cursor:
        for _ in range(60):
            query = drawn(seed)
            mode(cursor, "never")
            expected = answer(cursor, query)
            mode(cursor, "always")
            assert answer(cursor, query) == expected, query
            told += "JoinKeysExec" in plan_of(cursor, query)
    assert told > 5, told
    log = rack.log("n00")
    assert "done on the head alone" not in log, log
    for node in ("n00", "n01", "n02"):
        log = rack.log(node)
        assert "keys of a join" not in log, log


def test_scans_of_other_rows_hear_the_same(racks) -> None:
    """Those below a UNION ALL have one filter: what one of them has may be beyond all that another one has."""
    rack = racks(3).stocked(STOCK)
    rack.execute("n00", "CREATE TABLE far_off AS SELECT 10000000 + value % 20000 AS id, value AS x FROM range(60000) AS s(value)")
    rack.execute("n00", "CREATE TABLE asked AS SELECT value * 4000 % 300000 AS id FROM range(3000) AS s(value)")
    rack.execute("n00", "INSERT INTO asked SELECT 10000000 + value FROM range(2500) AS s(value)")
    rack.execute("n00", "CREATE TABLE big (id BIGINT UNSIGNED, x BIGINT)")
    rack.execute("n00", "INSERT INTO big SELECT 18446744073709000000 + value, value FROM range(300000) AS s(value)")
    rack.execute("n00", "CREATE TABLE few AS SELECT id FROM big WHERE x % 10000 = 0 UNION ALL SELECT 7")
    with rack.cursor("n01") as cursor:
        for query in (
            "SELECT count(*), sum(x) FROM asked JOIN (SELECT id, x FROM reading UNION ALL SELECT id, x FROM far_off) AS r "
            "ON asked.id = r.id",
            "SELECT count(*), sum(x) FROM few JOIN big ON few.id = big.id",
            # The first join's build side has rows for one stream alone: those of the others ask nobody.
            "SELECT count(*), sum(r.x) FROM (SELECT id FROM sensor WHERE id = 30) AS one "
            "JOIN (SELECT r.id, r.x FROM reading AS r JOIN sensor AS s ON r.id = s.id WHERE s.kind < 4) AS r ON one.id = r.id",
        ):
            mode(cursor, "never")
            expected = answer(cursor, query)
            mode(cursor, "always")
            assert "NetworkShuffleExec" in plan_of(cursor, query), query
            assert answer(cursor, query) == expected, query


def test_rows_that_would_meet_nobody_stay_where_they_are(racks) -> None:
    rack = racks(3).stocked(STOCK)
    with rack.cursor("n01") as cursor:
        mode(cursor, "always")
        plan = plan_of(cursor, QUERY.format(3))
        assert "JoinKeysExec: join=0, keys=[id@" in plan, plan
        assert "id in the keys of join 0" in plan, plan
        analyzed = plan_of(cursor, QUERY.format(3), analyze=True)
        rows = {
            name: re.findall(r"output_rows=([^,]+)", line)
            for line in analyzed.splitlines()
            for name in ("HashJoinExec", "in the keys of join 0")
            if name in line
        }
        # One row for each that meets somebody, and no other.
        assert rows["in the keys of join 0"] == rows["HashJoinExec"] == ["5.46 K"], analyzed
        # All keys are there: there is nothing to tell.
        plan = plan_of(cursor, "SELECT count(*), sum(a.x) FROM reading AS a JOIN reading AS b ON a.id = b.id")
        assert "NetworkShuffleExec" in plan and "JoinKeysExec" not in plan, plan
