"""RETURNING on a server: a statement that gives rows and runs once for each execution."""

import pyarrow as pa
from serving import execute, rows
from test_flight import client, fetched, query  # noqa: F401


def test_a_change_gives_rows_once(connection, table):
    execute(connection, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name VARCHAR DEFAULT 'none')")
    insert = f"INSERT INTO {table} (id) VALUES (?) RETURNING id, name"
    assert rows(connection, insert, (1,)) == [(1, "none")]
    assert rows(connection, insert, (2,)) == [(2, "none")]
    many = pa.table({"id": [3, 4, 5]})
    assert sorted(rows(connection, insert, many)) == [(3, "none"), (4, "none"), (5, "none")]
    assert rows(connection, f"UPDATE {table} SET name = ? WHERE id = 1 RETURNING *", ("x",)) == [(1, "x")]
    assert rows(connection, f"SELECT count(*) FROM {table}") == [(5,)]
    # As an update it gives the number of its rows.
    assert execute(connection, f"DELETE FROM {table} WHERE id > 2 RETURNING id") == 3


def test_flight_tells_the_columns(client, table):  # noqa: F811
    fetched(client, client.get_flight_info(query(f"CREATE TABLE {table} (id BIGINT, count BIGINT)")))
    insert = query(f"INSERT INTO {table} VALUES (7, 99) RETURNING count, id AS key")
    assert client.get_schema(insert).schema.names == ["count", "key"]
    info = client.get_flight_info(insert)
    assert info.schema.names == ["count", "key"] and info.total_records == 1
    assert fetched(client, info).to_pylist() == [{"count": 99, "key": 7}]
    info = client.get_flight_info(query(f"SELECT count(*) AS n FROM {table}"))
    assert fetched(client, info).to_pylist() == [{"n": 1}]


def test_a_bulk_ingest_leaves_numbers_to_the_table(connection, table):
    execute(connection, f"CREATE TABLE {table} (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name VARCHAR)")
    with connection.cursor() as cursor:
        assert cursor.adbc_ingest(table, pa.table({"name": ["a", "b"]}), mode="append") == 2
    merge = f"""MERGE INTO {table} USING (SELECT 'b' AS name UNION ALL SELECT 'c') AS s ON {table}.name = s.name
        WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (name) VALUES (s.name)
        RETURNING id, {table}.name"""
    assert sorted(rows(connection, merge)) == [(2, "b"), (3, "c")]
    assert rows(connection, f"SELECT id, name FROM {table} ORDER BY id") == [(1, "a"), (3, "c")]
