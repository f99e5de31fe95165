"""Random queries against DuckDB, in short; random_duckdb.py runs more of them."""


from random_duckdb import compare
from seeds import SEED

QUERIES = 200


def test_random_queries_agree_with_duckdb(start):
    # What DuckDB refuses says nothing; it must stay the exception.
    assert compare(start().connect, QUERIES, SEED) >= QUERIES * 0.9
