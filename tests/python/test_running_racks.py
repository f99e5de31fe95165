"""`flashmesh rack up`, `down` and `status`: racks of nodes that run, and clients of all of them."""

import contextlib
import os
import signal
import socket
import stat
import subprocess
import time
from pathlib import Path

import adbc_driver_flightsql.dbapi
import pytest
from running_racks import (  # noqa: F401
    PATIENCE,
    SMALL,
    Rack,
    behind,
    binary,
    eventually,
    flashmesh,
    free_ports,
    is_free,
    kill,
    racks,
)


def taken(address: str) -> socket.socket:
    host, port = address.split(":")
    return socket.create_server((host, int(port)))


def is_there(process: int) -> bool:
    """Whether it runs: one that has ended may wait for whoever started it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_node_answers_with_what_the_head_has(racks) -> None:
    rack = racks(3)
    assert set(rack.states().values()) == {"down"}
    said = rack.up().stdout.splitlines()
    assert said == [
        f"n00  grpc://{rack.nodes['n00']['flight']}  (head)",
        *(f"{name}  grpc://{rack.nodes[name]['flight']}" for name in ("n01", "n02")),
    ]
    status = rack.status()
    assert rack.states() == dict.fromkeys(rack.nodes, "up")
    assert [name for name, node in status.items() if node["is_head"]] == ["n00"]
    assert all(link["state"] == "up" for node in status.values() for link in node["links"])
    assert [len(node["links"]) for node in status.values()] == [2, 2, 2]

    rack.execute("n01", "CREATE TABLE t AS SELECT value AS a, value % 7 AS b FROM generate_series(1, 50000) AS s(value)")
    rack.execute("n02", "INSERT INTO t VALUES (-1, NULL)")
    answers = [rack.rows(name, "SELECT count(*), sum(a), count(b) FROM t") for name in rack.nodes]
    assert answers == [[(50_001, 1_250_024_999, 50_000)]] * 3
    # More than a window of the mesh, as rows.
    assert rack.rows("n02", "SELECT a FROM t ORDER BY a") == [(-1,), *((a,) for a in range(1, 50_001))]
    assert rack.status()["n00"]["tables"] == 1

    # Statements of all nodes' clients are in one list, and their sessions are apart.
    with rack.cursor("n01") as one, rack.cursor("n02") as other:
        one.execute("SET datafusion.execution.batch_size = 77")
        for cursor, size in ((one, "77"), (other, "8192")):
            cursor.execute("SHOW datafusion.execution.batch_size")
            assert cursor.fetchall()[0][-1] == size
        eventually(lambda: rack.status()["n01"]["passed_clients"] == 1, "earlier clients have gone")

    ended = rack.down()
    assert ended.stdout.splitlines() == [f"{name}  has ended" for name in rack.nodes]
    assert set(rack.states().values()) == {"down"}
    eventually(lambda: not any(is_there(node["pid"]) for node in status.values()), "the processes are gone")
    assert all(is_free(node["flight"]) for node in rack.nodes.values())
    assert not [*rack.folder.glob("*/*.sock")]
    # What was committed is there again.
    rack.up()
    assert rack.rows("n02", "SELECT count(*) FROM t") == [(50_001,)]


def test_twenty_nodes_run_on_one_machine(racks) -> None:
    rack = racks(20, "--shape", "torus")
    rack.up()
    status = rack.status()
    assert len(status) == 20 and {node["state"] for node in status.values()} == {"up"}
    assert sum(len(node["links"]) for node in status.values()) == 80
    rack.execute("n13", "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 1000) AS s(value)")
    assert rack.rows("n07", "SELECT sum(a) FROM t") == [(500_500,)]
    assert len(rack.down().stdout.splitlines()) == 20
    assert set(rack.states().values()) == {"down"}


def test_a_node_that_was_killed_is_down_and_comes_back(racks) -> None:
    rack = racks(3)
    rack.up()
    rack.execute("n01", "CREATE TABLE t AS SELECT 1 AS a")
    before = rack.status()
    os.kill(before["n01"]["pid"], signal.SIGKILL)
    eventually(lambda: rack.states() == {"n00": "up", "n01": "down", "n02": "up"}, "n01 is seen to be down")
    # What it left behind is no process of another one.
    assert (rack.folder / "n01/node.pid").read_text().split() == [str(before["n01"]["pid"])]
    assert rack.rows("n00", "SELECT a FROM t") == rack.rows("n02", "SELECT a FROM t") == [(1,)]
    with pytest.raises(adbc_driver_flightsql.dbapi.Error):
        rack.rows("n01", "SELECT 1")
    said = rack.up().stdout
    assert f"n00  runs already (process {before['n00']['pid']})" in said
    after = rack.status()
    assert rack.states() == dict.fromkeys(rack.nodes, "up")
    assert after["n00"]["pid"] == before["n00"]["pid"] and after["n01"]["pid"] != before["n01"]["pid"]
    assert rack.rows("n01", "SELECT a FROM t") == [(1,)]
    # Nothing is to do.
    said = rack.up().stdout.splitlines()
    assert [line for line in said if "runs already" in line] == said[:3]
    assert rack.status()["n02"]["pid"] == before["n02"]["pid"]


LOAD = """
    CREATE TABLE reading AS
    SELECT value AS id, value % 100 AS sensor, 'reading ' || (value * 7919 % 10007) AS note
    FROM generate_series(1, 500000) AS series(value)
"""
ANSWER = "SELECT sensor, count(*), max(note) FROM reading WHERE note LIKE '%77%' GROUP BY sensor ORDER BY sensor"


def explained(rack: Rack, name: str, sql: str) -> str:
    return " ".join(str(row[1]) for row in rack.rows(name, f"EXPLAIN ANALYZE {sql}"))


def test_tables_lie_on_all_nodes_and_are_scanned_there(racks) -> None:
    rack = racks(3)
    rack.up()
    rack.execute("n01", LOAD)
    full = rack.rows("n02", "SELECT node, live_bytes > 100000 FROM system.flash ORDER BY node")
    assert full == [(0, True), (1, True), (2, True)]
    answer = rack.rows("n00", ANSWER)
    assert len(answer) == 100
    plan = explained(rack, "n02", ANSWER)
    assert "segments_of_nodes=" in plan and "segments_of_nodes=0" not in plan
    # What the head reads itself is the same.
    with rack.cursor("n01") as cursor:
        cursor.execute("SET flashmesh.pushdown = 'never'")
        cursor.execute(ANSWER)
        assert cursor.fetchall() == answer
    # All is there after a restart of all nodes, changes that were only in the log among it.
    rack.execute("n02", "DELETE FROM reading WHERE id % 2 = 0")
    rest = rack.rows("n00", ANSWER)
    assert rest != answer
    rack.down()
    rack.up()
    assert rack.rows("n01", ANSWER) == rest
    assert rack.rows("n00", "SELECT count(*) FROM reading") == [(250_000,)]


def test_clients_that_take_nothing_hold_up_nobody_else(racks) -> None:
    """More of them than commands that a node runs at a time."""
    rack = racks(2)
    rack.up()
    rack.execute("n00", "CREATE TABLE note AS SELECT value AS id, md5(value::text) AS text FROM range(1000000)")
    with contextlib.ExitStack() as held:
        for _ in range(6):
            cursor = held.enter_context(rack.cursor("n00"))
            cursor.execute("SET flashmesh.pushdown = 'always'")
            cursor.execute("SELECT id, text, text || '.' FROM note WHERE id >= 0")
            assert cursor.fetchone() is not None
        cursor = held.enter_context(rack.cursor("n01"))
        cursor.execute("SET flashmesh.pushdown = 'always'")
        cursor.execute("SELECT count(*) FROM note WHERE text LIKE '%ab%' AND id < 999999999")
        assert cursor.fetchone()[0] > 0


def test_a_query_names_the_node_that_was_killed_and_works_when_it_is_back(racks) -> None:
    rack = racks(3)
    rack.up()
    rack.execute("n00", LOAD)
    answer = rack.rows("n00", ANSWER)
    os.kill(rack.status()["n01"]["pid"], signal.SIGKILL)
    eventually(lambda: rack.states()["n01"] == "down", "n01 is down")
    with pytest.raises(adbc_driver_flightsql.dbapi.Error, match="n01|node 1"):
        rack.rows("n00", ANSWER)
    # What needs none of its pages goes on.
    rack.execute("n02", "CREATE TABLE small (a BIGINT PRIMARY KEY)")
    rack.execute("n02", "INSERT INTO small VALUES (1), (2)")
    assert rack.rows("n00", "SELECT sum(a) FROM small") == [(3,)]
    rack.up()

    def answered() -> list[tuple]:
        with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
            return rack.rows("n02", ANSWER)
        return []

    assert eventually(answered, "n01 is asked again") == answer


def test_copies_stand_in_for_a_node_that_was_killed_and_it_catches_up(racks) -> None:
    rack = racks(3, "--replicas", "2")
    rack.up()
    whole = dict.fromkeys(rack.nodes, 0)
    rack.execute("n00", LOAD)
    answer = rack.rows("n00", ANSWER)
    assert behind(rack) == whole
    for killed in ["n01", "n02"]:
        kill(rack, killed)
        # Nobody has to ask twice, at whichever node; and what is said to be committed is kept.
        assert rack.rows("n00", ANSWER) == answer
        of_first = "FROM reading WHERE id <= 100000 AND note LIKE 'reading%'"
        rack.execute("n00", f"INSERT INTO reading SELECT id, sensor, 'of {killed}' {of_first}")
        rows = rack.rows("n00", f"SELECT count(*) FROM reading WHERE note = 'of {killed}'")
        assert rows == [(100_000,)]
        status = flashmesh("rack", "status", rack.file, check=False).stdout
        assert "replicas behind" in next(line for line in status.splitlines() if line.startswith(killed))
        rack.up()
        # It has what the others have before it is asked again.
        eventually(lambda: behind(rack) == whole, f"{killed} has caught up")
        plan = explained(rack, killed, ANSWER)
        assert "segments_of_nodes=" in plan and "segments_of_nodes=0" not in plan
        assert rack.rows(killed, ANSWER) == answer
    # A node that is replaced by an empty one is filled from the others, while it is asked for rows.
    kill(rack, "n01")
    cards = [*(rack.folder / "n01").rglob("*.flash")]
    assert len(cards) == 2
    for card in cards:
        card.unlink()
    rack.up()
    assert rack.rows("n01", ANSWER) == answer
    eventually(lambda: behind(rack) == whole, "n01 is filled")
    # The copy of its card is on n02: without that the new n01 alone has its pages.
    kill(rack, "n02")
    assert rack.rows("n01", ANSWER) == answer
    rack.up()
    eventually(lambda: behind(rack) == whole, "n02 has caught up")
    rack.down()
    rack.up()
    assert rack.rows("n02", ANSWER) == answer
    assert rack.rows("n02", "SELECT count(*) FROM reading") == [(700_000,)]


def test_a_rack_starts_without_a_node_and_says_which_pages_are_nowhere(racks) -> None:
    rack = racks(3, "--replicas", "2")
    rack.up()
    rack.execute("n00", LOAD)
    answer = rack.rows("n00", ANSWER)
    rack.down()
    # n01's cards are gone, and so is the node.
    nodes = [node for node in rack.nodes if node != "n01"]
    started = [
        subprocess.Popen(
            [binary(), "node", rack.file, "--name", node, *SMALL], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        for node in nodes
    ]
    try:
        eventually(lambda: rack.states() == {"n00": "up", "n01": "down", "n02": "up"}, "two of three are up")

        def answers():
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                return rack.rows("n02", ANSWER)

        # The head has to be elected, and waits for the node that is away.
        assert eventually(answers, "the rack answers") == answer
        assert rack.status()["n01"]["replicas_behind"] >= 2
        # As much as the table: little would wait in the head's log, and be written to its card alone.
        rack.execute("n02", "INSERT INTO reading SELECT id, sensor, reverse(note) FROM reading")
    finally:
        for node in started:
            node.terminate()
        for node in started:
            node.communicate(timeout=PATIENCE)
    # What was added has a copy on n02 or n00 alone: without these nobody may take n01's pages for it.
    (rack.folder / "n02/card0.flash").rename(rack.folder / "n02/away")
    for card in (rack.folder / "n02/copies").iterdir():
        card.unlink()
    refused = rack.up(check=False)
    assert refused.returncode == 1, refused
    # Whoever was elected.
    log = "".join(map(rack.log, rack.nodes))
    assert "no copy of the card can be used" in log and "lacks pages" in log, log


def test_without_the_head_clients_are_sent_away(racks) -> None:
    rack = racks(3)
    rack.file.write_text(rack.file.read_text() + "\n[mesh]\ndeadline_ms = 500\n")
    rack.up()
    rack.execute("n02", "CREATE TABLE t AS SELECT 5 AS a")
    os.kill(rack.status()["n00"]["pid"], signal.SIGKILL)
    eventually(lambda: rack.states()["n00"] == "down", "the head is seen to be down")
    with pytest.raises(adbc_driver_flightsql.dbapi.Error):
        rack.rows("n01", "SELECT 1")
    rack.up()
    # What was committed before SIGKILL is there, for the first one who asks at each node.
    assert [rack.rows(name, "SELECT a FROM t") for name in rack.nodes] == [[(5,)]] * 3


def node_fails(rack: Rack, name: str) -> str:
    """What a node says that can't start."""
    failed = flashmesh("node", rack.file, "--name", name, *SMALL, check=False)
    assert failed.returncode == 1, failed
    return failed.stderr


def test_what_keeps_a_node_from_starting_is_said(racks) -> None:
    rack = racks(2)
    assert "has no node 'n07', but n00, n01" in node_fails(rack, "n07")

    key = rack.folder / "rack.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    text = key.read_text()
    assert len(bytes.fromhex(text.strip())) == 32
    key.write_text(text[2:])
    assert "rack.key" in node_fails(rack, "n01") and "it has 62 characters" in node_fails(rack, "n00")
    key.write_text(text)
    key.chmod(0o644)
    assert "others may read or write it" in node_fails(rack, "n01")
    refused = rack.up(check=False)
    assert refused.returncode == 1 and "others may read or write it" in refused.stderr
    assert set(rack.states().values()) == {"down"}
    key.chmod(0o600)

    for name, node in rack.nodes.items():
        with taken(node["flight"]):
            assert f"listening on {node['flight']} (is it taken? name another)" in node_fails(rack, name)
            assert "in use" in node_fails(rack, name)
    # Of several, the one is named that has failed, with the end of its log.
    with taken(rack.nodes["n01"]["flight"]):
        refused = rack.up(check=False)
    assert refused.returncode == 1
    assert "node 'n01' has ended" in refused.stderr and "is it taken?" in refused.stderr
    assert "rack down" in refused.stderr
    rack.up()
    assert rack.states() == dict.fromkeys(rack.nodes, "up")
    # A second process for a node that runs.
    for name, node in rack.status().items():
        assert f"node '{name}' runs already (process {node['pid']})" in node_fails(rack, name)
    assert rack.rows("n01", "SELECT 1") == [(1,)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_head_waits_for_nodes_that_its_database_needs(racks, replicas: int) -> None:
    rack = racks(2, "--replicas", replicas)
    rack.up()
    rack.execute("n00", "CREATE TABLE t AS SELECT value FROM range(1000)")
    rack.down()
    if replicas == 2:
        # Only the other node has a whole copy.
        cards = [*(rack.folder / "n00").rglob("*.flash")]
        assert len(cards) == 2
        for card in cards:
            card.unlink()
    words = [binary(), "node", rack.file, "--name", "n00", *SMALL]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as head:
        try:

            def waits():
                assert head.poll() is None
                return "waits: " in (rack.status()["n00"].get("problem") or "")

            eventually(waits, "the head says what it waits for")
            rack.up()
            assert rack.status()["n00"]["pid"] == head.pid
            assert rack.status()["n00"].get("problem") is None
            assert rack.rows("n01", "SELECT count(*) FROM t") == [(1000,)]
            assert head.stdout.readline().startswith("Flight SQL: grpc://")
        finally:
            head.terminate()


def test_the_heads_database_may_be_open_elsewhere(racks) -> None:
    rack = racks(2)
    rack.up()
    os.kill(rack.status()["n00"]["pid"], signal.SIGTERM)
    eventually(lambda: rack.states()["n00"] == "down", "the head has ended")
    shell = subprocess.Popen(
        [binary(), "serve", "--db", rack.folder / "n00/db", "--listen", "127.0.0.1:0", "--http", "none"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with shell:
        assert shell.stdout.readline().startswith("Flight SQL")
        assert "in use" in node_fails(rack, "n00").lower()
        shell.kill()


def test_the_head_is_the_node_that_the_file_names(racks) -> None:
    rack = racks(3)
    rack.file.write_text(rack.file.read_text().replace('head = "n00"', 'head = "n02"'))
    rack.up()
    rack.execute("n00", "CREATE TABLE t AS SELECT 3 AS a")
    assert rack.rows("n02", "SELECT a FROM t") == rack.rows("n01", "SELECT a FROM t") == [(3,)]
    assert (rack.folder / "n02/db/catalog.redb").exists() and not (rack.folder / "n00/db/catalog.redb").exists()
    rack.down()
    rack.up()
    assert rack.rows("n01", "SELECT a FROM t") == [(3,)]


def test_logins_and_addresses_of_clients_that_were_passed_on(racks) -> None:
    rack = racks(2)
    users = rack.folder / "users.toml"
    for name in ("ada", "bob"):
        subprocess.run(
            [binary(), "user", "add", name, "--users", users], input=f"secret of {name}\n", text=True, check=True
        )
    rack.file.write_text(rack.file.read_text() + '\n[clients]\nusers = "users.toml"\n')
    rack.up()
    uri = f"grpc://{rack.nodes['n01']['flight']}"
    with pytest.raises(adbc_driver_flightsql.dbapi.Error, match="wrong user name or password"):
        adbc_driver_flightsql.dbapi.connect(uri, {"username": "ada", "password": "guess"})
    login = {"username": "ada", "password": "secret of ada"}
    with adbc_driver_flightsql.dbapi.connect(uri, login, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]

    def is_noted(*words: str) -> bool:
        lines = [line for line in rack.log("n00").splitlines() if "via n01" in line]
        return any(all(word in line for word in words) for line in lines)

    eventually(lambda: is_noted("wrong user name or password"), "the refusal is in the log")
    eventually(lambda: is_noted("logged in", 'peer="127.0.0.1:'), "so is the login")
    # Other machines are served with protection only, by each node.
    rack.down()
    rack.file.write_text(rack.file.read_text().replace(rack.nodes["n01"]["flight"], "0.0.0.0:65000"))
    refused = node_fails(rack, "n01")
    assert "can be reached by other machines" in refused and "[clients]" in refused


def test_in_the_foreground_it_shows_what_nodes_print_and_ends_them(racks) -> None:
    rack = racks(2)
    up = subprocess.Popen(
        [binary(), "rack", "up", rack.file, *SMALL], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with up:
        # Each by another thread.
        expected = {f"n01 | Flight SQL: grpc://{rack.nodes['n01']['flight']}\n", f"n01  grpc://{rack.nodes['n01']['flight']}\n"}
        for line in iter(up.stdout.readline, ""):
            expected.discard(line)
            if not expected:
                break
        assert not expected
        assert rack.rows("n01", "SELECT 1") == [(1,)]
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE) == 0, up.stderr.read()
        up.stdout.read()
    assert set(rack.states().values()) == {"down"}
    assert all(is_free(node["flight"]) for node in rack.nodes.values())


def test_a_node_that_hangs_is_named_and_may_be_killed(racks) -> None:
    rack = racks(2)
    rack.up()
    process = rack.status()["n01"]["pid"]
    os.kill(process, signal.SIGSTOP)
    late = flashmesh("rack", "down", rack.file, "--timeout", "10s", check=False)
    assert late.returncode == 1 and "these nodes have not ended: n01" in late.stderr, late
    assert "n00  has ended" in late.stdout
    killed = flashmesh("rack", "down", rack.file, "--timeout", "1s", "--kill")
    assert "n01  is killed" in killed.stdout
    assert set(rack.states().values()) == {"down"}


def test_the_shell_takes_a_rack_file(racks) -> None:
    rack = racks(3)
    query = ("--format", "csv", "-c", "SELECT 6 * 7 AS a")
    connect = ("--connect", rack.file, *query)
    refused = flashmesh(*connect, check=False)
    assert refused.returncode == 1 and "no node of the rack answers" in refused.stderr
    assert all(node["flight"] in refused.stderr for node in rack.nodes.values())
    rack.up()
    assert flashmesh(rack.file, *query).stdout.split() == ["a", "42"]
    refused = flashmesh(rack.file, "--read-only", *query, check=False)
    assert refused.returncode == 1 and "not for racks" in refused.stderr
    # Whichever answers.
    for _ in range(2):
        assert flashmesh(*connect).stdout.split() == ["a", "42"]
        rack.file.write_text(rack.file.read_text().replace(rack.nodes["n00"]["flight"], "127.0.0.1:1", 1))


def test_units_and_images_name_the_rack(racks) -> None:
    rack = racks(2, "--systemd", "--container")
    first, second = (int(node["flight"].split(":")[1]) for node in rack.nodes.values())
    assert second == first + 1
    unit = (rack.folder / "flashmesh-node@.service").read_text()
    assert f'ExecStart="{binary().resolve()}" node "{rack.file}" --name %i' in unit
    assert '"/usr/local/bin/flashmesh", "node"' in (rack.folder / "Containerfile").read_text()


def test_clients_in_python_take_a_rack_file(racks) -> None:
    import flashmesh as module

    rack = racks(2)
    with pytest.raises(module.Error, match="no node of the rack") as refused:
        module.connect(rack.file)
    assert all(node["flight"] in str(refused.value) for node in rack.nodes.values())
    rack.up()
    with module.connect(rack.file) as connection:
        assert connection.sql("SELECT 6 * 7").fetchall() == [(42,)]
    rack.file.write_text(rack.file.read_text().replace(rack.nodes["n00"]["flight"], "127.0.0.1:1"))
    with module.connect(str(rack.file)) as connection:
        assert connection.sql("SELECT 6 * 7").fetchall() == [(42,)]
    with pytest.raises(module.Error, match="read_only"):
        module.connect(rack.file, read_only=True)
    (rack.folder / "other.toml").write_text("node = 3")
    with pytest.raises(module.Error, match="is no rack file"):
        module.connect(rack.folder / "other.toml")


def test_the_page_shows_the_rack(racks, browser) -> None:
    rack = racks(3)
    port = free_ports(1)
    rack.file.write_text(rack.file.read_text() + f'\n[clients]\nhttp = "127.0.0.1:{port}"\n[mesh]\ndeadline_ms = 1000\n')
    rack.up()
    rack.execute("n01", LOAD)
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    page.set_default_timeout(1000 * PATIENCE)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"http://127.0.0.1:{port}")
    page.get_by_text("3 of 3 nodes up").wait_for()
    rows = page.locator("tr.node-row")
    assert [row.split()[:2] for row in rows.all_inner_texts()] == [[name, "up"] for name in rack.nodes]
    assert "head: 1 tables, 8 segments" in rows.nth(0).inner_text()
    assert page.locator("svg line.broken").count() == 0 and page.locator("svg line.cable").count() == 3
    # What travels is seen while it does: pages of other nodes, that the head asks for.
    with rack.cursor("n00") as cursor:
        until = time.monotonic() + PATIENCE
        while page.locator("svg line.busy").count() == 0:
            assert time.monotonic() < until
            cursor.execute(ANSWER)
            cursor.fetchall()
    if folder := os.environ.get("FLASHMESH_SCREENSHOTS"):
        page.locator("#rack").screenshot(path=f"{folder}/rack.png")
    kill(rack, "n02")
    page.get_by_text("2 of 3 nodes up").wait_for()
    # A line that goes straight up has no width, and so is not "visible".
    page.locator("svg line.broken").nth(1).wait_for(state="attached")
    assert page.locator("svg line.broken").count() == 2
    assert rows.nth(2).inner_text().split()[:2] == ["n02", "down"]
    page.set_viewport_size({"width": 400, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
    assert problems == []
