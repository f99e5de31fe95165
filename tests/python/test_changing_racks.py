"""`flashmesh rack add`, `drain` and `remove`: nodes that come and go, and what is asked and written meanwhile."""

import threading
import tomllib

from running_racks import Rack, behind, eventually, flashmesh, kill, racks  # noqa: F401

#: Noise, which stays as large as it is: segments of it go to all nodes.
FILL = (
    "CREATE TABLE noise AS SELECT value AS id, md5(CAST(value AS VARCHAR)) AS a, md5(CAST(-value AS VARCHAR)) AS b "
    "FROM generate_series(1, 400000) AS s(value)"
)
CHECK = "SELECT count(*), sum(id), count(DISTINCT a), min(b), max(b) FROM noise"


def pages(rack: Rack) -> dict[str, int]:
    return {name: node["pages"] for name, node in rack.status().items()}


def reread(rack: Rack) -> None:
    rack.nodes = {node["name"]: node for node in tomllib.loads(rack.file.read_text())["node"]}


def test_a_node_comes_is_emptied_under_load_and_goes(racks) -> None:
    rack = racks(3)
    rack.up()
    rack.execute("n00", FILL)
    rack.execute("n00", "CREATE INDEX by_a ON noise (a)")
    expected = rack.rows("n01", CHECK)
    refused = flashmesh("rack", "add", rack.file, check=False)
    assert refused.returncode != 0 and "node 'n00' runs" in refused.stderr
    rack.down()
    assert "n03  card" in flashmesh("rack", "add", rack.file).stdout
    assert flashmesh("rack", "check", rack.file).stdout.startswith("nodes      4, with 4 cards")
    reread(rack)
    rack.up()
    assert rack.rows("n03", CHECK) == expected
    # So little is not spread.
    assert pages(rack)["n03"] == 0
    rack.execute("n03", "INSERT INTO noise SELECT id + 400000, b, a FROM noise")
    expected = rack.rows("n03", CHECK)
    assert all(pages(rack).values())

    # Clients read and write all the while.
    wrong, written, stop = [], [0], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            if (got := rack.rows("n01", CHECK)) != expected:
                wrong.append(got)
                return

    def write() -> None:
        with rack.cursor("n03") as cursor:
            cursor.execute("CREATE TABLE small (id BIGINT PRIMARY KEY)")
            while not stop.is_set():
                cursor.execute(f"INSERT INTO small VALUES ({written[0]})")
                written[0] += 1

    clients = [threading.Thread(target=work) for work in (ask, write)]
    for client in clients:
        client.start()
    try:
        eventually(lambda: written[0] > 3, "commits")
        drained = flashmesh("rack", "drain", rack.file, "n03")
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert drained.stdout == "n03  is empty\n"
    assert not wrong
    status = rack.status()["n03"]
    assert (status["pages"], status["drained"]) == (0, True)
    assert "is drained, and empty" in flashmesh("rack", "status", rack.file).stdout
    rack.execute("n03", "CREATE TABLE more AS SELECT * FROM noise")
    assert pages(rack)["n03"] == 0

    # The others are not emptied, and not removed while they have something.
    assert "keeps the catalog" in flashmesh("rack", "drain", rack.file, "n00", check=False).stderr
    assert "was not emptied" in flashmesh("rack", "remove", rack.file, "n02", check=False).stderr
    assert "node 'n00' runs" in flashmesh("rack", "remove", rack.file, "n03", check=False).stderr
    rack.down()
    assert "n03  is no node" in flashmesh("rack", "remove", rack.file, "n03").stdout
    reread(rack)
    assert [*rack.nodes] == ["n00", "n01", "n02"]
    rack.up()
    assert rack.rows("n02", CHECK) == expected
    assert rack.rows("n02", "SELECT count(*) FROM more") == [(800_000,)]
    assert rack.rows("n02", "SELECT count(*), max(id) FROM small") == [(written[0], written[0] - 1)]


def test_what_is_drained_can_be_filled_again_and_a_rack_file_without_a_node_that_has_data_is_refused(racks) -> None:
    rack = racks(2)
    rack.up()
    rack.execute("n00", FILL)
    flashmesh("rack", "drain", rack.file, "n01")
    assert flashmesh("rack", "drain", rack.file, "n01", "--undo").stdout == "n01  is filled again, as the others are\n"
    eventually(lambda: not rack.status()["n01"]["drained"], "n01 is filled")
    rack.execute("n01", "CREATE TABLE more AS SELECT * FROM noise")
    expected = rack.rows("n01", CHECK)
    assert pages(rack)["n01"] > 0
    # One that says so by hand, while nothing runs.
    rack.down()
    ended = flashmesh("rack", "drain", rack.file, "n01", check=False)
    assert ended.returncode != 0 and "no node runs that could empty" in ended.stderr
    whole = rack.file.read_text()
    flashmesh("rack", "remove", rack.file, "n01")
    failed = rack.up(check=False)
    assert failed.returncode != 0 and "card 0 of node 1, which is not among the cards" in failed.stderr
    rack.file.write_text(whole)
    rack.up()
    eventually(lambda: rack.status()["n01"]["pages"] == 0, "n01 is emptied")
    assert rack.rows("n01", CHECK) == expected


def test_copies_move_with_the_nodes_and_old_ones_are_not_read(racks) -> None:
    """With two copies of each card: a node more holds those of the last one, and what that node's copies were is
    old when it goes again."""
    rack = racks(3, "--replicas", "2", "--shape", "full")
    rack.up()
    rack.execute("n00", FILL)
    rack.down()
    flashmesh("rack", "add", rack.file)
    reread(rack)
    rack.up()
    eventually(lambda: all(count == 0 for count in behind(rack).values()), "the new node has its copies")
    # It is written behind the back of the copy of n02's card that n00 had.
    rack.execute("n03", "DELETE FROM noise WHERE id % 3 = 0")
    rack.execute("n03", "INSERT INTO noise SELECT id * 3, b, a FROM noise WHERE id < 100000")
    rack.execute("n03", "CREATE TABLE more AS SELECT * FROM noise")
    expected = rack.rows("n03", CHECK)
    flashmesh("rack", "drain", rack.file, "n03")
    rack.down()
    flashmesh("rack", "remove", rack.file, "n03")
    reread(rack)
    rack.up()
    eventually(lambda: all(count == 0 for count in behind(rack).values()), "n00 has its copy again")
    # All that is left of n02's card is the copy.
    kill(rack, "n02")
    assert rack.rows("n01", CHECK) == expected
    assert rack.rows("n01", CHECK.replace("noise", "more")) == expected


def test_a_node_that_comes_is_filled(racks) -> None:
    rack = racks(2)
    rack.up()
    wide = ", encode(sha256(CAST(value AS VARCHAR)), 'hex') AS c, encode(sha256(CAST(-value AS VARCHAR)), 'hex') AS d FROM"
    rack.execute("n00", FILL.replace("400000", "2500000").replace(" FROM", wide))
    before = pages(rack)
    assert sum(before.values()) * 8192 > 3 * 64 << 20
    check = "SELECT count(*), sum(id), min(b), max(c), count(d) FROM noise"
    expected = rack.rows("n01", check)
    rack.down()
    flashmesh("rack", "add", rack.file)
    reread(rack)
    rack.up()

    def is_even() -> bool:
        assert rack.rows("n02", check) == expected
        now = pages(rack)
        return now["n02"] > 0.8 * sum(now.values()) / 3

    eventually(is_even, "the new node has its part")
    with rack.cursor("n02") as cursor:
        cursor.execute("EXPLAIN ANALYZE SELECT count(*) FROM noise WHERE a LIKE '%abcd%'")
        assert "segments_of_nodes" in str(cursor.fetchall())
