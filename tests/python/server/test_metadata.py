"""What the ADBC driver finds out about the database."""

import adbc_driver_manager
import pyarrow as pa
import pytest
from serving import execute


@pytest.fixture
def tables(connection, table):
    execute(connection, f"CREATE TABLE {table}_a (id BIGINT PRIMARY KEY, price DECIMAL(10, 2), name VARCHAR)")
    execute(connection, f"CREATE TABLE {table}_b AS SELECT 1 AS x")
    execute(connection, f"CREATE VIEW {table}_v AS SELECT id FROM {table}_a")
    return table


def objects(connection, **filters) -> dict:
    """Schemas → tables → (type, columns)."""
    [catalog] = connection.adbc_get_objects(**filters).read_all().to_pylist()
    assert catalog["catalog_name"] == "flashmesh"
    return {
        schema["db_schema_name"]: {
            table["table_name"]: (
                table["table_type"],
                [column["column_name"] for column in table["table_columns"] or []],
            )
            for table in schema["db_schema_tables"] or []
        }
        for schema in catalog["catalog_db_schemas"] or []
    }


def test_objects_at_every_depth(connection, tables):
    assert objects(connection, depth="catalogs") == {}
    schemas = objects(connection, depth="db_schemas")
    assert {"public", "system"} <= set(schemas) and not any(schemas.values())
    found = objects(connection, depth="tables")["public"]
    assert found[f"{tables}_a"] == ("TABLE", []) and found[f"{tables}_v"] == ("VIEW", [])
    found = objects(connection, depth="all")["public"]
    assert found[f"{tables}_a"] == ("TABLE", ["id", "price", "name"])
    assert found[f"{tables}_v"] == ("VIEW", ["id"])


def test_objects_are_filtered(connection, tables):
    # An underscore stands for any character, in names as in LIKE.
    assert set(objects(connection, table_name_filter=f"{tables}_%")["public"]) == {f"{tables}_{end}" for end in "abv"}
    assert set(objects(connection, table_name_filter=f"{tables}_b")["public"]) == {f"{tables}_b"}
    assert objects(connection, db_schema_filter="sys%").keys() == {"system"}
    views = objects(connection, table_name_filter=f"{tables}%", table_types_filter=["VIEW"])
    assert set(views["public"]) == {f"{tables}_v"}
    columns = objects(connection, table_name_filter=f"{tables}_a", column_name_filter="p%")
    assert columns["public"][f"{tables}_a"][1] == ["price"]
    assert connection.adbc_get_objects(catalog_filter="elsewhere").read_all().num_rows == 0


def test_schema_of_a_table(connection, tables):
    schema = connection.adbc_get_table_schema(f"{tables}_a")
    expected = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("price", pa.decimal128(10, 2)), ("name", pa.string())]
    )
    assert schema.equals(expected)
    assert connection.adbc_get_table_schema(f"{tables}_b", db_schema_filter="public").names == ["x"]
    with pytest.raises(adbc_driver_manager.Error):
        connection.adbc_get_table_schema("nowhere")
    with pytest.raises(adbc_driver_manager.Error):
        connection.adbc_get_table_schema(f"{tables}_a", db_schema_filter="system")


def test_types_of_tables(connection):
    assert set(connection.adbc_get_table_types()) == {"TABLE", "VIEW", "LOCAL TEMPORARY", "SYSTEM TABLE"}


def test_what_the_database_tells_of_itself_is_apart(connection, tables):
    found = objects(connection, depth="tables")
    kinds = {schema: {kind for kind, _ in found[schema].values()} for schema in ("system", "information_schema") if schema in found}
    assert kinds and all(kind == {"SYSTEM TABLE"} for kind in kinds.values())
    own = objects(connection, table_types_filter=["TABLE", "VIEW"])
    assert not own.get("system") and f"{tables}_a" in own["public"]


def test_information_on_the_server(connection):
    info = connection.adbc_get_info()
    assert info["vendor_name"] == "flashmesh"
    assert info["vendor_version"] and info["vendor_arrow_version"]
    assert (connection.adbc_current_catalog, connection.adbc_current_db_schema) == ("flashmesh", "public")


def test_schema_of_a_result_without_running_it(connection, server, table):
    with connection.cursor() as cursor:
        schema = cursor.adbc_execute_schema(f"SELECT 1 AS {table}, 'x' AS b")
        assert schema.names == [table, "b"]
        parameters = cursor.adbc_prepare(f"SELECT id AS {table} FROM system.queries WHERE query = ? AND took_ms < ?")
        assert parameters.types == [pa.string(), pa.float64()]
    assert server.query(table) is None


def described(schema: pa.Schema) -> dict[str, dict[str, str]]:
    """What Flight SQL's metadata tells of each column."""
    prefix = "ARROW:FLIGHT:SQL:"
    return {
        field.name: {key.decode().removeprefix(prefix): value.decode() for key, value in (field.metadata or {}).items()}
        for field in schema
    }


def test_columns_are_described(connection, tables):
    execute(connection, f"INSERT INTO {tables}_a VALUES (1, 2.5, 'x')")
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT t.price, name, id + 1 AS more FROM {tables}_a AS t")
        columns = described(cursor.fetch_arrow_table().schema)
        assert described(cursor.adbc_execute_schema(f"SELECT price FROM {tables}_a"))["price"] == columns["price"]
        origin = {"CATALOG_NAME": "flashmesh", "SCHEMA_NAME": "public", "TABLE_NAME": f"{tables}_a"}
        assert columns["price"].items() >= {**origin, "TYPE_NAME": "DECIMAL", "PRECISION": "10", "SCALE": "2"}.items()
        assert columns["name"].items() >= {**origin, "TYPE_NAME": "VARCHAR", "IS_CASE_SENSITIVE": "1"}.items()
        assert columns["more"]["TYPE_NAME"] == "BIGINT" and "TABLE_NAME" not in columns["more"]
    schema = connection.adbc_get_table_schema(f"{tables}_a")
    assert [column["TYPE_NAME"] for column in described(schema).values()] == ["BIGINT", "DECIMAL", "VARCHAR"]
    # A result that is stored again is no column of the old table.
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {tables}_a")
        cursor.adbc_ingest(f"{tables}_c", cursor.fetch_arrow_table(), mode="create")
        cursor.execute(f"SELECT price FROM {tables}_c")
        assert described(cursor.fetch_arrow_table().schema)["price"]["TABLE_NAME"] == f"{tables}_c"
