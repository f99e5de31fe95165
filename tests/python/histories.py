"""What clients of a rack were told, and whether one history of it can be true."""

import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass, field
from typing import Self

import adbc_driver_flightsql.dbapi
from running_racks import Rack, eventually

#: The driver makes connections anew without a word. By cookies the next head learns that the client is in
#: a transaction which it does not know.
COOKIES = {"adbc.flight.sql.rpc.with_cookie_middleware": "true"}
KEYS = 3
ACCOUNTS = 10


def prepare(rack: Rack) -> None:
    """The tables that clients use."""
    for statement in (
        "CREATE TABLE IF NOT EXISTS register (id INT PRIMARY KEY, value INT)",
        f"INSERT INTO register SELECT value, 0 FROM range({KEYS}) ON CONFLICT (id) DO NOTHING",
        "CREATE TABLE IF NOT EXISTS account (id INT PRIMARY KEY, amount INT)",
        f"INSERT INTO account SELECT value, 100 FROM range({ACCOUNTS}) ON CONFLICT (id) DO NOTHING",
    ):
        # On a busy machine another node may become the head just then.
        def is_done(statement=statement):
            with contextlib.suppress(adbc_driver_flightsql.dbapi.Error):
                rack.execute("n01", statement)
                return True

        eventually(is_done, statement)


def head(rack: Rack) -> str:
    """The node that is the head, as soon as one is."""

    def found():
        heads = [name for name, node in rack.status().items() if node["is_head"] and node["state"] == "up"]
        return heads[0] if len(heads) == 1 else None

    return eventually(found, "a node is the head")


def whole(rack: Rack) -> None:
    """Waits until nothing lacks a copy, nor the catalog."""
    status = {}

    def is_whole():
        nonlocal status
        status = rack.status()
        return all(node["state"] == "up" and node["replicas_behind"] == 0 for node in status.values())

    try:
        eventually(is_whole, "all copies are whole")
    except AssertionError as never:
        logs = ""
        for log in sorted(rack.folder.glob("*/node.log")):
            logs += f"--- {log}\n" + "".join(log.read_text().splitlines(True)[-40:])
        raise AssertionError(f"{never}: {json.dumps(status, indent=1)}\n{logs}") from None


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
    """Clients that go on whatever happens: each at a node, and after an error at another one. At the end of
    the block they end, and if nothing has failed there, their history is checked."""

    def __init__(self, rack: Rack) -> None:
        seed = random.randrange(1 << 30)
        print(f"seed {seed}")
        #: For the choices of the test itself.
        self.chance = random.Random(seed)
        self.rack, self.history, self.over = rack, History(), threading.Event()
        #: A node that clients leave: one that hangs would have them wait with it.
        self.avoided: str | None = None
        #: What clients were told when they had to go on at another node.
        self.errors: list[str] = []
        works = [self.write(key) for key in range(KEYS)] + [self.read(), self.read(), self.transfer()]
        self.threads = []
        for number, work in enumerate(works):
            thread = threading.Thread(target=self.go_on, args=(work, random.Random(seed + number)))
            thread.start()
            self.threads.append(thread)

    def go_on(self, work, chance: random.Random) -> None:
        while not self.over.is_set():
            node = chance.choice([name for name in self.rack.nodes if name != self.avoided])
            uri = f"grpc://{self.rack.nodes[node]['flight']}"
            # A head that goes away takes its connections with it.
            try:
                with (
                    adbc_driver_flightsql.dbapi.connect(uri, COOKIES, autocommit=True) as connection,
                    connection.cursor() as cursor,
                ):
                    while not self.over.is_set() and node != self.avoided:
                        work(cursor, chance)
            except adbc_driver_flightsql.dbapi.Error as error:
                self.errors.append(str(error))

    def write(self, key: int):
        def work(cursor, _) -> None:
            writes = self.history.writes[key]
            writes.append(write := Write(len(writes) + 1, time.monotonic()))
            cursor.execute(f"UPDATE register SET value = {write.value} WHERE id = {key}")
            write.acknowledged = time.monotonic()

        return work

    def read(self):
        def work(cursor, chance) -> None:
            key, begun = chance.randrange(KEYS), time.monotonic()
            cursor.execute(f"SELECT value FROM register WHERE id = {key}")
            [(value,)] = cursor.fetchall()
            self.history.reads[key].append(Read(value, begun, time.monotonic()))
            cursor.execute("SELECT sum(amount) FROM account")
            self.history.sums.append(int(cursor.fetchone()[0]))

        return work

    def transfer(self):
        def work(cursor, chance) -> None:
            one, other = chance.sample(range(ACCOUNTS), 2)
            try:
                cursor.execute("ROLLBACK")
            except adbc_driver_flightsql.dbapi.Error as error:
                if "there is no transaction" not in str(error):
                    raise
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()
        if failure is None:
            self.history.check()
