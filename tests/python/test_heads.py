"""Racks whose catalog is kept by a group: whichever node ends, another one is the head, and what was
acknowledged is there. Clients write down what they asked and were told, and that history is checked."""

import contextlib
import os
import random
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field

import adbc_driver_flightsql.dbapi
from running_racks import Rack, behind, eventually, kill, racks  # noqa: F401

#: How often heads are killed, and how often one hangs.
KILLS = int(os.environ.get("FLASHMESH_HEAD_KILLS", "6"))
HANGS = int(os.environ.get("FLASHMESH_HEAD_HANGS", "3"))
KEYS = 3
ACCOUNTS = 10


def head(rack: Rack) -> str:
    """The node that is the head, as soon as one is."""

    def found():
        heads = [name for name, node in rack.status().items() if node["is_head"] and node["state"] == "up"]
        return heads[0] if len(heads) == 1 else None

    return eventually(found, "a node is the head")


def whole(rack: Rack) -> None:
    """Waits until nothing lacks a copy, nor the catalog."""

    def is_whole():
        return all(state == "up" for state in rack.states().values()) and not any(
            count is None or count > 0 for count in behind(rack).values()
        )

    eventually(is_whole, "all copies are whole")


@dataclass
class Write:
    value: int
    begun: float
    acknowledged: float | None = None


@dataclass
class Read:
    value: int
    begun: float
    ended: float


@dataclass
class History:
    """What clients asked, and what they were told."""

    writes: dict[int, list[Write]] = field(default_factory=lambda: {key: [] for key in range(KEYS)})
    reads: dict[int, list[Read]] = field(default_factory=lambda: {key: [] for key in range(KEYS)})
    sums: list[int] = field(default_factory=list)
    transfers: int = 0

    def check(self) -> None:
        """Each key is a register with one writer, whose values grow: it is linearizable if each read has
        a value that was acknowledged or asked for by then, and no later read an earlier one."""
        for key in range(KEYS):
            writes = self.writes[key]
            reads = sorted(self.reads[key], key=lambda read: read.begun)
            for read in reads:
                told = [w.value for w in writes if w.acknowledged is not None and w.acknowledged < read.begun]
                asked = [w.value for w in writes if w.begun < read.ended]
                assert max(told, default=0) <= read.value <= max(asked, default=0), (key, read)
            ended: list[Read] = sorted(reads, key=lambda read: read.ended)
            greatest, at = 0, 0
            for read in reads:
                while at < len(ended) and ended[at].ended < read.begun:
                    greatest = max(greatest, ended[at].value)
                    at += 1
                assert read.value >= greatest, (key, read)
        assert set(self.sums) <= {100 * ACCOUNTS}, "a transaction is seen in parts"


class Clients:
    """Clients that go on whatever happens: each at a node, and after an error at another one."""

    def __init__(self, rack: Rack, seed: int) -> None:
        self.rack, self.history, self.over = rack, History(), threading.Event()
        works = [self.write(key) for key in range(KEYS)] + [self.read(), self.read(), self.transfer()]
        self.threads = []
        for number, work in enumerate(works):
            thread = threading.Thread(target=self.go_on, args=(work, random.Random(seed + number)))
            thread.start()
            self.threads.append(thread)

    def go_on(self, work, chance: random.Random) -> None:
        while not self.over.is_set():
            uri = f"grpc://{self.rack.nodes[chance.choice([*self.rack.nodes])]['flight']}"
            # A head that goes away takes its connections with it.
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                with (
                    adbc_driver_flightsql.dbapi.connect(uri, autocommit=True) as connection,
                    connection.cursor() as cursor,
                ):
                    while not self.over.is_set():
                        work(cursor, chance)

    def write(self, key: int):
        def work(cursor, _) -> None:
            writes = self.history.writes[key]
            writes.append(write := Write(len(writes) + 1, time.monotonic()))
            cursor.execute(f"UPDATE register SET value = {write.value} WHERE key = {key}")
            write.acknowledged = time.monotonic()

        return work

    def read(self):
        def work(cursor, chance) -> None:
            key, begun = chance.randrange(KEYS), time.monotonic()
            cursor.execute(f"SELECT value FROM register WHERE key = {key}")
            [(value,)] = cursor.fetchall()
            self.history.reads[key].append(Read(value, begun, time.monotonic()))
            cursor.execute("SELECT sum(amount) FROM account")
            self.history.sums.append(int(cursor.fetchone()[0]))

        return work

    def transfer(self):
        def work(cursor, chance) -> None:
            one, other = chance.sample(range(ACCOUNTS), 2)
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                cursor.execute("ROLLBACK")
            cursor.execute("BEGIN")
            cursor.execute(f"UPDATE account SET amount = amount - 7 WHERE id = {one}")
            cursor.execute(f"UPDATE account SET amount = amount + 7 WHERE id = {other}")
            cursor.execute("COMMIT")
            self.history.transfers += 1

        return work

    def progress(self) -> int:
        return sum(write.acknowledged is not None for key in self.history.writes.values() for write in key)

    def go_on_for(self, writes: int) -> None:
        """Waits until so many more writes were acknowledged."""
        until = self.progress() + writes
        eventually(lambda: self.progress() >= until, "clients go on")

    def end(self) -> History:
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self.history


def prepared(racks, *options: str) -> Rack:
    rack = racks(3, "--replicas", "2", *options)
    rack.file.write_text(rack.file.read_text().replace("deadline_ms = 3000", "deadline_ms = 1000"))
    assert "deadline_ms = 1000" in rack.file.read_text()
    rack.up()
    rack.execute("n01", "CREATE TABLE register (key INT PRIMARY KEY, value INT)")
    rack.execute("n02", f"INSERT INTO register SELECT value, 0 FROM range({KEYS})")
    rack.execute("n00", "CREATE TABLE account (id INT PRIMARY KEY, amount INT)")
    rack.execute("n00", f"INSERT INTO account SELECT value, 100 FROM range({ACCOUNTS})")
    return rack


def test_whichever_node_ends_what_was_acknowledged_is_there(racks) -> None:  # noqa: F811
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rack = prepared(racks)
    clients = Clients(rack, seed)
    try:
        heads = set()
        for round in range(KILLS):
            clients.go_on_for(20)
            now = head(rack)
            heads.add(now)
            # Heads most of the time; now and then one that keeps the catalog for it.
            victim = now if chance.random() < 0.75 else chance.choice([n for n in rack.nodes if n != now])
            kill(rack, victim)
            clients.go_on_for(20)
            if chance.random() < 0.4:
                print(f"round {round}: {victim} loses its disk")
                shutil.rmtree(rack.folder / victim)
                (rack.folder / victim).mkdir()
            rack.up()
            whole(rack)
    finally:
        history = clients.end()
    history.check()
    assert len(heads) > 1 and history.transfers > 0
    for key, writes in history.writes.items():
        told = max(write.value for write in writes if write.acknowledged is not None)
        # The last one may have come to its end and not been told so.
        assert told <= rack.rows("n01", f"SELECT value FROM register WHERE key = {key}")[0][0] <= writes[-1].value
    rack.down()
    rack.up()
    assert rack.rows("n02", "SELECT sum(amount) FROM account") == [(100 * ACCOUNTS,)]


def test_a_head_that_hung_answers_nothing_old(racks) -> None:  # noqa: F811
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rack = prepared(racks)
    clients = Clients(rack, seed)
    try:
        for _ in range(HANGS):
            clients.go_on_for(20)
            hung = head(rack)
            process = rack.status()[hung]["pid"]
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
            # It is the same process, and not the head.
            whole(rack)
            assert rack.status()[hung]["pid"] == process
    finally:
        history = clients.end()
    history.check()
    assert history.transfers > 0


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
