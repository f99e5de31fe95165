"""Ctrl-C ends what runs: a process is interrupted once a function in its query says that it runs."""

import signal
import subprocess
import sys
import threading

import pytest

# A bound for a broken cancel, not a measurement.
PATIENCE = 60

PROGRAM = """
import sys, time
import flashmesh
import pyarrow as pa
from flashmesh import col, functions as f

db = flashmesh.connect()
db.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 300000) AS s(value)")
pairs = db.sql("SELECT x.a % 2 AS k FROM t x JOIN t y ON x.a % 7 < y.a % 11 + x.a % 3")

def say(values):
    print("inside", flush=True)
    return values

inside = flashmesh.udf(say, [pa.int64()], pa.int64(), "volatile", "inside")
first = db.table("t").filter(col("a") == 1).select(inside(col("a")).alias("k"))
endless = first.join(pairs.with_column_renamed("k", "l"), left_on="k", right_on="l")
counted = endless.aggregate([], [f.count(col("k")).alias("n")])

def ended():
    # The connection works on.
    assert db.table("t").filter(col("a") == 1).count() == 1
    print("ended", flush=True)

try:
    RUN
except KeyboardInterrupt:
    ended()
except Exception as error:
    # An Arrow stream ends with an error of its reader's; the interrupt follows at once.
    try:
        print(error, file=sys.stderr)
        time.sleep(PATIENCE)
    except KeyboardInterrupt:
        ended()
"""

RUNS = {
    "to_arrow_table": "counted.to_arrow_table()",
    "to_polars": "counted.filter(col('n') > 0).to_polars()",
    "count": "endless.count()",
    "batches": "for batch in endless: pass",
    "an Arrow stream": "pa.table(counted)",
    "load": "db.load('u', counted)",
    "execute": "db.register('v', counted); db.execute('CREATE TABLE u AS SELECT * FROM v')",
    "explain": "counted.explain(analyze=True)",
}


@pytest.mark.parametrize("run", RUNS, ids=str)
def test_ctrl_c_ends_a_query(run):
    program = PROGRAM.replace("RUN", RUNS[run]).replace("PATIENCE", str(PATIENCE))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "inside\n"
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert output.splitlines()[-1] == "ended"
    assert process.returncode == 0


BESIDE = """
import threading
import flashmesh
import pyarrow as pa
from flashmesh import col

db = flashmesh.connect()
db.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 300000) AS s(value)")
began = threading.Event()

def say(values):
    began.set()
    return values

inside = flashmesh.udf(say, [pa.int64()], pa.int64(), "volatile", "inside")
db.register("x", db.table("t").select(inside(col("a")).alias("a")))
endless = "SELECT count(*) FROM x JOIN t y ON x.a + y.a % 7 = 3"
threading.Thread(target=lambda: db.execute(endless), daemon=True).start()
began.wait()
for of in range(1, 200):
    assert db.execute("SELECT count(*) FROM t WHERE a % 1000 < ?", (of,)).fetchall() == [(300 * of,)]
print("answered", flush=True)
"""


def test_joins_without_an_end_keep_nobody_waiting():
    process = subprocess.Popen([sys.executable, "-c", BESIDE], stdout=subprocess.PIPE, text=True)
    late = threading.Timer(PATIENCE, process.kill)
    late.start()
    try:
        assert process.stdout.readline() == "answered\n"
    finally:
        late.cancel()
        process.kill()
