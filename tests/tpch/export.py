"""Writes queries/qNN.sql and answers-sf0.1/qNN.csv.

    python -m venv v && v/bin/pip install duckdb==1.1.3 tpchgen-cli==4.0.0
    v/bin/python tests/tpch/export.py

The queries are the 22 of the TPC-H specification with their default
(validation) parameters, as DuckDB's TPC-H extension carries them; duckdb 1.1.3
is a wheel that has it built in. The specification divides q11's FRACTION by
the scale factor; these queries use 0.0001 at every scale.

The answers are DuckDB's over the data that tpchgen makes, the generator of our
tests. DuckDB's extension has answers of its own, for the data of its own
generator; the two generators agree in everything but the free text (addresses
and comments), and so must the answers: that is asserted here.

The files are committed, so nobody needs this script; it says where they come from.
"""

import math
import subprocess
import tempfile
from pathlib import Path

import duckdb

FOLDER = Path(__file__).parent
SCALE_FACTOR = 0.1
TABLES = "customer lineitem nation orders part partsupp region supplier".split()
FREE_TEXT = {"s_address", "s_comment", "c_address", "c_comment"}
# q13 counts the orders whose comment does not match a pattern.
DEPENDS_ON_FREE_TEXT = {13}


def same(ours: str, theirs: str) -> bool:
    return ours == theirs or math.isclose(float(ours), float(theirs), rel_tol=1e-9)


def check(number: int, columns: list[str], rows: list[list[str]], answer: str) -> None:
    expected = [line.split("|") for line in answer.splitlines()[1:]]
    assert len(rows) == len(expected), (number, len(rows), len(expected))
    for ours, theirs in zip(rows, expected):
        for column, a, b in zip(columns, ours, theirs):
            assert column in FREE_TEXT or same(a, b), (number, column, a, b)


connection = duckdb.connect()
connection.execute("LOAD tpch")
with tempfile.TemporaryDirectory() as data:
    subprocess.run(["tpchgen-cli", "parquet", "-s", str(SCALE_FACTOR), "--output-dir", data], check=True)
    for table in TABLES:
        connection.execute(f"CREATE TABLE {table} AS FROM '{data}/{table}.parquet'")

queries = FOLDER / "queries"
answers = FOLDER / f"answers-sf{SCALE_FACTOR}"
queries.mkdir(exist_ok=True)
answers.mkdir(exist_ok=True)
for number, query in connection.execute("FROM tpch_queries()").fetchall():
    (queries / f"q{number:02}.sql").write_text(query.strip() + "\n")
    result = connection.execute(query)
    columns = [column[0] for column in result.description]
    rows = [[str(value) for value in row] for row in result.fetchall()]
    (published,) = connection.execute(
        "SELECT answer FROM tpch_answers() WHERE scale_factor = ? AND query_nr = ?",
        [SCALE_FACTOR, number],
    ).fetchone()
    if number not in DEPENDS_ON_FREE_TEXT:
        check(number, columns, rows, published)
    lines = ["|".join(row) for row in [columns, *rows]]
    (answers / f"q{number:02}.csv").write_text("\n".join(lines) + "\n")
