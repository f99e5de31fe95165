"""A process that is killed while it commits: what it acknowledged is there, nothing is torn, and
every page is whole.

`FLASHMESH_KILLS` sets how many there are (the long form: 200), `FLASHMESH_TEST_SEED` which.
"""

import os
import random
import signal
import subprocess
import sys
import time

import flashmesh
from conftest import binary
from seeds import SEED

KILLS = int(os.environ.get("FLASHMESH_KILLS", "8"))
# More than a process gets done before it is killed.
KEYS = 1_000_000

WRITER = """
import os, sys, threading
import flashmesh

# Whatever fails ends the process, which is to be killed.
threading.excepthook = lambda raised: (sys.excepthook(*raised[:3]), os._exit(1))
path, first, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
db = flashmesh.connect(path)
acknowledging = threading.Lock()

def acknowledge(key):
    with acknowledging:
        print(key, flush=True)

def row(key):
    return {"id": key, "name": f"name {key} " * (key % 40)}

def single(client):
    for key in range(first + client, first + 1_000_000, 4):
        if key % 3 == 0:
            db.execute(f"INSERT INTO t VALUES ({key}, '{row(key)['name']}')")
        else:
            db.put("t", [row(key)])
        if key % 7 == 0:
            db.delete("t", [key])
        acknowledge(key)

def upserts(client):
    for count in range(1, 1_000_000):
        upsert = "ON CONFLICT (id) DO UPDATE SET n = counter.n + 1"
        db.execute(f"INSERT INTO counter VALUES ({first + client}, 1) {upsert}")
        acknowledge(first + 4 * count + client)

def transactions():
    for key in range(first, first + 1_000_000):
        with db.transaction():
            db.put("t", [row(key)])
            db.execute(f"INSERT INTO u VALUES ({key})")
            db.execute(f'DROP TABLE IF EXISTS "made_{key - 1}"; CREATE TABLE made_{key} AS SELECT {key} AS id')
        acknowledge(key)

def upkeep():
    while True:
        db.execute("VACUUM; DROP INDEX IF EXISTS u_id; CREATE INDEX u_id ON u USING hash (id)")

if mode == "transactions":
    transactions()
threading.Thread(target=upkeep, daemon=True).start()
work = {"single": single, "upserts": upserts}[mode]
clients = [threading.Thread(target=work, args=(client,)) for client in range(4)]
for client in clients:
    client.start()
# Once the main thread has ended, Python refuses the import of pyarrow, which the first `put` needs.
for client in clients:
    client.join()
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path):
    generator = random.Random(SEED)
    path = tmp_path / "db"
    with flashmesh.connect(path) as db:
        db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        db.execute("CREATE TABLE u (id BIGINT)")
        db.execute("CREATE TABLE counter (id BIGINT PRIMARY KEY, n BIGINT)")
    for kill in range(KILLS):
        mode = generator.choice(["single", "upserts", "transactions"])
        first = kill * KEYS
        command = [sys.executable, "-c", WRITER, str(path), str(first), mode]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        # A transaction has five statements.
        wanted = generator.randrange(1, 80 if mode == "transactions" else 400)
        acknowledged = {int(process.stdout.readline()) for _ in range(wanted)}
        # Not a wait for anything: somewhere in the next commits.
        time.sleep(generator.random() / 100)
        process.kill()
        acknowledged |= {int(line) for line in process.stdout.read().split("\n")[:-1]}
        assert process.wait() == -signal.SIGKILL
        subprocess.run([binary(), "fsck", "--db", path], check=True, stdout=subprocess.DEVNULL)
        with flashmesh.connect(path, read_only=generator.random() < 0.3) as db:
            own = f"WHERE id BETWEEN {first} AND {first + KEYS - 1}"
            found = db.sql(f"SELECT id, name FROM t {own}").fetchall()
            ids = {key for key, _ in found}
            assert len(ids) == len(found)
            assert all(name == f"name {key} " * (key % 40) for key, name in found)
            if mode == "transactions":
                assert acknowledged <= ids
                assert {key for (key,) in db.sql(f"SELECT id FROM u {own}").fetchall()} == ids
                assert len(ids - acknowledged) <= 1
                # Of the tables of this kill, each drops the one before it.
                made = f"made_{max(ids)}"
                tables = "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'made_%'"
                numbers = [int(name.removeprefix("made_")) for (name,) in db.sql(tables).fetchall()]
                assert [number for number in numbers if number >= first] == [max(ids)]
                assert db.sql(f"SELECT id FROM {made}").fetchall() == [(max(ids),)]
            elif mode == "upserts":
                counts = dict(db.sql(f"SELECT id - {first}, n FROM counter {own}").fetchall())
                for client in range(4):
                    last = max((key - first - client) // 4 for key in {first + client, *acknowledged} if key % 4 == client)
                    assert last <= counts.get(client, 0) <= last + 1
            else:
                assert {key for key in acknowledged if key % 7} <= ids
                assert not {key for key in acknowledged if key % 7 == 0} & ids
                # Each client may have done one more.
                assert len(ids - acknowledged) <= 4
