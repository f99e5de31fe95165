"""A process that is killed while it commits: what it acknowledged is there, and nothing is torn.

`FLASHMESH_KILLS` sets how many there are, `FLASHMESH_TEST_SEED` which.
"""

import os
import random
import subprocess
import sys

import flashmesh

KILLS = int(os.environ.get("FLASHMESH_KILLS", "8"))
# More than a process gets done before it is killed.
KEYS = 1_000_000

WRITER = """
import sys, threading
import flashmesh

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

def transactions():
    for key in range(first, first + 1_000_000):
        with db.transaction():
            db.put("t", [row(key)])
            db.execute(f"INSERT INTO u VALUES ({key})")
        acknowledge(key)

if mode == "transactions":
    transactions()
for client in range(4):
    threading.Thread(target=single, args=(client,)).start()
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path):
    seed = int(os.environ.get("FLASHMESH_TEST_SEED", random.randrange(2**32)))
    print(f"FLASHMESH_TEST_SEED={seed}")
    generator = random.Random(seed)
    path = tmp_path / "db"
    with flashmesh.connect(path) as db:
        db.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, name TEXT)")
        db.execute("CREATE TABLE u (id BIGINT)")
    for kill in range(KILLS):
        mode = generator.choice(["single", "transactions"])
        first = kill * KEYS
        command = [sys.executable, "-c", WRITER, str(path), str(first), mode]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        wanted = generator.randrange(1, 400)
        acknowledged = {int(process.stdout.readline()) for _ in range(wanted)}
        process.kill()
        acknowledged |= {int(line) for line in process.stdout.read().split("\n")[:-1]}
        process.wait()
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
            else:
                assert {key for key in acknowledged if key % 7} <= ids
                assert not {key for key in acknowledged if key % 7 == 0} & ids
                # Each client may have done one more.
                assert len(ids - acknowledged) <= 4
