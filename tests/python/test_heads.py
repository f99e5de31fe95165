"""Racks whose catalog is kept by a group: whichever node ends, another one is the head, and what was
acknowledged is there. Clients write down what they asked and were told, and that history is checked."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

import adbc_driver_flightsql.dbapi
import pytest
from histories import ACCOUNTS, Clients, head, prepare, whole
from running_racks import PATIENCE, SMALL, Rack, binary, eventually, free_ports, kill, racks  # noqa: F401

#: How often heads are killed, and how often one hangs.
KILLS = int(os.environ.get("FLASHMESH_HEAD_KILLS", "6"))
HANGS = int(os.environ.get("FLASHMESH_HEAD_HANGS", "3"))
#: How often one is told to end.
ENDS = int(os.environ.get("FLASHMESH_HEAD_ENDS", "3"))


def prepared(racks, *options: str, deadline: int = 1000, page: int | None = None) -> Rack:  # noqa: F811
    """`deadline`: how soon, in milliseconds, another head is wanted. One that was not heard for three quarters of
    it is none any more, be it that the machine was busy. `page`: the port of the head's page."""
    rack = racks(3, "--replicas", "2", *options)
    text = rack.file.read_text()
    assert "deadline_ms = 3000" in text
    text = text.replace("deadline_ms = 3000", f"deadline_ms = {deadline}")
    if page is not None:
        text += f'\n[clients]\nhttp = "127.0.0.1:{page}"\n'
    rack.file.write_text(text)
    rack.up()
    prepare(rack)
    return rack


def is_served(page: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/healthz", timeout=PATIENCE) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_whichever_node_ends_what_was_acknowledged_is_there(racks) -> None:  # noqa: F811
    rack = prepared(racks)
    with Clients(rack) as clients:
        heads = set()
        for round in range(KILLS):
            clients.go_on_for(20)
            # On a busy machine a node may have seemed to be away: one at a time is.
            whole(rack)
            now = head(rack)
            heads.add(now)
            # Heads most of the time; now and then one that keeps the catalog for it.
            is_head = round == 0 or clients.chance.random() < 0.75
            victim = now if is_head else clients.chance.choice([n for n in rack.nodes if n != now])
            # Now and then it may finish what runs.
            is_killed = clients.chance.random() < 0.7
            kill(rack, victim, signal.SIGKILL if is_killed else signal.SIGTERM)
            clients.go_on_for(20)
            if is_killed and clients.chance.random() < 0.5:
                print(f"round {round}: {victim} loses its disk")
                shutil.rmtree(rack.folder / victim)
                (rack.folder / victim).mkdir()
            rack.up()
            whole(rack)
    assert len(heads) > 1 and clients.history.transfers > 0
    for key, writes in clients.history.writes.items():
        told = max(write.value for write in writes if write.acknowledged is not None)
        # The last one may have come to its end and not been told so.
        assert told <= rack.rows("n01", f"SELECT value FROM register WHERE id = {key}")[0][0] <= writes[-1].value
    rack.down()
    rack.up()
    assert rack.rows("n02", "SELECT sum(amount) FROM account") == [(100 * ACCOUNTS,)]


def test_a_node_with_a_new_disk_counts_as_behind_until_it_has_its_copies(racks) -> None:  # noqa: F811
    rack = prepared(racks)
    first = head(rack)
    other = next(name for name in rack.nodes if name != first)
    # Enough to be on cards.
    rack.execute(first, "CREATE TABLE lines AS SELECT value FROM range(100000)")
    # Nothing is asked of it meanwhile, and the head ends as soon as it says that all is whole.
    kill(rack, other)
    shutil.rmtree(rack.folder / other)
    (rack.folder / other).mkdir()
    rack.up()
    whole(rack)
    kill(rack, first)
    for name in rack.nodes:
        if name != first:
            eventually(lambda name=name: answers(rack, name), "the others go on")


def answers(rack: Rack, name: str) -> bool:
    with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
        return rack.rows(name, "SELECT count(DISTINCT value) FROM lines") == [(100_000,)]
    return False


def test_a_head_that_ends_leaves_whole_copies(racks) -> None:  # noqa: F811
    rack = prepared(racks, deadline=3000)
    with Clients(rack) as clients:
        for _ in range(ENDS):
            # A node that seemed to be away meanwhile is waited for by the head itself.
            clients.go_on_for(20)
            ends = head(rack)
            before = len(rack.log(ends))
            kill(rack, ends, signal.SIGTERM)
            # With what is on the other nodes alone.
            clients.go_on_for(20)
            log = rack.log(ends)[before:]
            assert "is behind from now on" not in log and "commits stay in its log" not in log, log
            rack.up()
            whole(rack)


def longest(moments: list[float], begun: float) -> float:
    """The longest time without one of these, from `begun` on, in seconds."""
    moments = [begun, *sorted(moment for moment in moments if moment > begun)]
    return max(after - before for before, after in zip(moments, moments[1:]))


def test_a_head_that_ends_hands_over(racks) -> None:  # noqa: F811
    rack = prepared(racks, deadline=3000)
    with Clients(rack) as clients:
        history = clients.history
        for _ in range(ENDS):
            clients.go_on_for(20)
            whole(rack)
            ends = head(rack)
            before = len(rack.log(ends))
            process = rack.status()[ends]["pid"]
            begun = time.monotonic()
            os.kill(process, signal.SIGTERM)
            eventually(lambda ends=ends: rack.states()[ends] == "down", f"{ends} has ended")
            ended = time.monotonic() - begun
            assert head(rack) != ends
            clients.go_on_for(20)
            answers = [read.ended for reads in history.reads.values() for read in reads]
            writes = [write.acknowledged for writes in history.writes.values() for write in writes]
            commits = [moment for moment in writes if moment is not None]
            print(
                f"{ends} ended after {ended:.2f} s; without an answer {longest(answers, begun):.2f} s, "
                f"without a commit {longest(commits, begun):.2f} s"
            )
            log = rack.log(ends)[before:]
            assert "another node is the head now" in log, log
            rack.up()
    assert history.transfers > 0


def test_users_are_on_whichever_node_is_the_head(racks) -> None:  # noqa: F811
    rack = prepared(racks)
    first = head(rack)
    rack.execute(first, "CREATE USER ada PASSWORD 'correct horses' ADMIN")
    kill(rack, first)
    others = [name for name in rack.nodes if name != first]
    ada = {"username": "ada", "password": "correct horses"}
    bob = {"username": "bob", "password": "battery"}

    def asked(name: str, sql: str, **login: str) -> list[tuple]:
        uri = f"grpc://{rack.nodes[name]['flight']}"
        with adbc_driver_flightsql.dbapi.connect(uri, login, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def answers() -> bool:
        with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
            return asked(others[0], "SELECT 1", **ada) == [(1,)]
        return False

    eventually(answers, "the next head answers")
    asked(others[0], "CREATE USER bob PASSWORD 'battery'", **ada)
    asked(others[1], "GRANT READ ON register TO bob", **ada)
    for name in others:
        with pytest.raises(adbc_driver_flightsql.dbapi.Error, match="user name and a password"):
            asked(name, "SELECT 1")
        assert asked(name, "SELECT count(*) FROM register", **bob)[0][0] > 0
        with pytest.raises(adbc_driver_flightsql.dbapi.Error, match="not found"):
            asked(name, "SELECT * FROM account", **bob)
    rack.up()
    assert asked(first, "SELECT name FROM system.users ORDER BY name", **ada) == [("ada",), ("bob",)]


def test_a_head_waits_until_each_card_has_a_copy(racks) -> None:  # noqa: F811
    rack = prepared(racks)
    first = head(rack)
    names = [*rack.nodes]
    # The one that has the copies of that head's card, and the one that is the head without both.
    behind, other = (names[(names.index(first) + after) % len(names)] for after in (1, 2))
    kill(rack, behind)
    # More than waits in the head's log.
    rack.execute(other, "CREATE TABLE note AS SELECT value AS id, md5(value::text) AS text FROM range(200000)")
    kill(rack, first)
    command = [binary(), "node", rack.file, "--name", behind, *SMALL]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: "the head waits for other nodes" in rack.log(other), "a head without a copy")
        expected = {first: "down", behind: "up", other: "starting"}
        eventually(lambda: rack.states() == expected, "it waits, and the other one serves")
        rack.up()
        assert rack.rows(behind, "SELECT count(*), sum(length(text)) FROM note") == [(200_000, 200_000 * 32)]
    finally:
        started.terminate()
        started.wait(PATIENCE)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_head_opens_its_database_anew_where_writes_may_be_lost(racks, replicas: int) -> None:  # noqa: F811
    """All who have copies of a card end while it is written to: nobody knows what of that is durable."""
    rack = racks(5 if replicas == 2 else 4, "--replicas", replicas)
    rack.up()
    first = head(rack)
    rack.execute(first, "CREATE TABLE kept AS SELECT value AS id FROM range(1000)")
    rack.execute(first, "CREATE TABLE note (id BIGINT, text TEXT)")
    # Those that do not keep the catalog.
    victims = [*rack.nodes][-replicas:]
    inserted = 0
    # A segment for each card, at least.
    rows = 500_000
    insert = f"INSERT INTO note SELECT value, md5(value::text) FROM range({rows})"
    for _ in range(replicas):
        done = threading.Event()

        def fill(done=done):
            nonlocal inserted
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                while not done.is_set():
                    rack.execute(first, insert)
                    inserted += rows

        filling = threading.Thread(target=fill)
        filling.start()
        count = inserted
        eventually(lambda count=count: inserted > count or not filling.is_alive(), "rows are inserted")
        for victim in victims:
            os.kill(rack.status()[victim]["pid"], signal.SIGKILL)
        eventually(lambda: all(rack.states()[victim] == "down" for victim in victims), "they are down")
        done.set()
        filling.join()
        rack.up()

        # So many that they are written to cards.
        def goes_on():
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                rack.execute(first, "INSERT INTO kept SELECT -value FROM range(1, 200001)")
                return True

        eventually(goes_on, "rows can be inserted")

        # Cards that those were not written to may not have been found again yet.
        def all_notes():
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                return rack.rows(first, "SELECT count(*), count(*) FILTER (WHERE text <> md5(id::text)) FROM note")

        found, wrong = eventually(all_notes, "rows can be read")[0]
        # The last one may have come to its end and not been told so.
        assert found in (inserted, inserted + rows) and wrong == 0
        inserted = found
    assert rack.rows(victims[0], "SELECT count(*) FROM kept WHERE id >= 0") == [(1000,)]
    assert any("the node starts anew" in rack.log(name) for name in rack.nodes)
    rack.down()


def test_a_head_that_hung_answers_nothing_old(racks) -> None:  # noqa: F811
    # The head that hangs holds the port of the page, which nobody waits for but the page.
    page = free_ports(1)
    rack = prepared(racks, page=page)
    with Clients(rack) as clients:
        for _ in range(HANGS):
            processes = {name: node["pid"] for name, node in rack.status().items()}
            hung = clients.avoided = head(rack)
            clients.go_on_for(20)
            process = processes[hung]
            os.kill(process, signal.SIGSTOP)
            try:
                others = [name for name in rack.nodes if name != hung]

                def another(others=others):
                    nodes = rack.status()
                    return any(nodes[name]["is_head"] and nodes[name]["state"] == "up" for name in others)

                eventually(another, "another node is the head")
                clients.go_on_for(20)
            finally:
                os.kill(process, signal.SIGCONT)
            # They are the same processes, and it is not the head.
            whole(rack)
            assert {name: node["pid"] for name, node in rack.status().items()} == processes
            eventually(lambda: is_served(page), "the page is that of the head")
    assert clients.history.transfers > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system is mounted, which needs root")
def test_a_full_disk_costs_one_node(racks) -> None:  # noqa: F811
    rack = prepared(racks)
    first = head(rack)
    rack.down()
    catalog = rack.folder / first / "catalog"
    shutil.rmtree(catalog)
    catalog.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", catalog], check=True)
    try:
        rack.up()
        whole(rack)
        rack.execute(head(rack), "CREATE TABLE note (id INT, text TEXT)")
        told = 0
        while rack.states()[first] == "up":
            text = random.randbytes(100_000).hex()
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                rack.execute("n01", f"INSERT INTO note VALUES ({told}, '{text}')")
                told += 1
        eventually(lambda: "No space left" in rack.log(first), "the node says why it has ended")
        # At most the last one was stored and not told so.
        assert told <= rack.rows(head(rack), "SELECT count(*) FROM note")[0][0] <= told + 1
        rack.execute(head(rack), "INSERT INTO note VALUES (-1, 'there is room elsewhere')")
    finally:
        kill(rack, first)
        subprocess.run(["umount", catalog], check=True)
    rack.up()
    whole(rack)
    assert rack.rows(first, "SELECT id FROM note WHERE id < 0") == [(-1,)]


def test_a_head_alone_becomes_one_of_a_group(racks) -> None:  # noqa: F811
    rack = racks(3)
    rack.up()
    rack.execute("n01", "CREATE TABLE t AS SELECT value AS a FROM range(100000)")
    rack.execute("n01", "INSERT INTO t VALUES (-1)")
    rack.down()
    text = rack.file.read_text()
    assert "replicas = 1\n" in text
    rack.file.write_text(text.replace("replicas = 1\n", "replicas = 2\n"))
    rack.up()
    assert rack.rows("n02", "SELECT count(*), sum(a) FROM t") == [(100_001, 4_999_949_999)]
    assert (rack.folder / "n00/db/catalog.redb.before-the-group").exists()
    whole(rack)
    kill(rack, head(rack))
    assert rack.rows(head(rack), "SELECT count(*), sum(a) FROM t") == [(100_001, 4_999_949_999)]
    rack.down()
    rack.file.write_text(text)
    # A head alone would begin with an empty catalog.
    refused = rack.up(check=False)
    assert refused.returncode == 1 and "that several nodes keep" in refused.stderr, refused
