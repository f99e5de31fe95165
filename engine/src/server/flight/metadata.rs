//! What there is: catalogs, schemas, tables, keys.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::sql::{
    CommandGetCatalogs, CommandGetDbSchemas, CommandGetPrimaryKeys, CommandGetTableTypes,
    CommandGetTables,
};
use datafusion::catalog::CatalogProvider;
use datafusion::catalog::information_schema::INFORMATION_SCHEMA;
use datafusion::common::TableReference;
use datafusion::datasource::TableType;
use tonic::Status;

use super::columns;
use crate::error::Error;
use crate::names::{CATALOG, DEFAULT_SCHEMA, SYSTEM_SCHEMA};
use crate::server::sessions::ClientSession;
use crate::server::status::status;

fn arrow_status(error: arrow_flight::error::FlightError) -> Status {
    Status::internal(format!("describing the database: {error}"))
}

/// The only catalog.
pub(super) fn catalogs(command: CommandGetCatalogs) -> Result<RecordBatch, Status> {
    let mut builder = command.into_builder();
    builder.append(CATALOG);
    builder.build().map_err(arrow_status)
}

/// Schemas that match.
pub(super) fn schemas(
    session: &ClientSession,
    command: CommandGetDbSchemas,
) -> Result<RecordBatch, Status> {
    let mut builder = command.into_builder();
    for schema in session.session.catalog().schema_names() {
        builder.append(CATALOG, schema);
    }
    builder.build().map_err(arrow_status)
}

/// Tables and views that match and that the user may see.
pub(super) async fn tables(
    session: &ClientSession,
    command: CommandGetTables,
) -> Result<RecordBatch, Status> {
    let include_schema = command.include_schema;
    let mut builder = command.into_builder();
    let catalog = session.session.catalog();
    for schema_name in catalog.schema_names() {
        let Some(schema) = CatalogProvider::schema(catalog, &schema_name) else {
            continue;
        };
        for name in schema.table_names() {
            // One that was dropped meanwhile is not there.
            let Ok(Some(table)) = schema.table(&name).await else {
                continue;
            };
            let columns = match include_schema {
                true => columns::of_table(&table.schema(), CATALOG, &schema_name, &name),
                false => Schema::empty(),
            };
            let kind = match schema_name.as_str() {
                SYSTEM_SCHEMA | INFORMATION_SCHEMA => SYSTEM_TABLE,
                _ => type_name(table.table_type()),
            };
            builder
                .append(CATALOG, &schema_name, &name, kind, &columns)
                .map_err(arrow_status)?;
        }
    }
    builder.build().map_err(arrow_status)
}

/// What JDBC calls tables that the database has of itself.
const SYSTEM_TABLE: &str = "SYSTEM TABLE";

fn type_name(kind: TableType) -> &'static str {
    match kind {
        TableType::Base => "TABLE",
        TableType::View => "VIEW",
        TableType::Temporary => "LOCAL TEMPORARY",
    }
}

/// Kinds of tables.
pub(super) fn table_types(command: CommandGetTableTypes) -> Result<RecordBatch, Status> {
    let mut builder = command.into_builder();
    for kind in [TableType::Base, TableType::View, TableType::Temporary] {
        builder.append(type_name(kind));
    }
    builder.append(SYSTEM_TABLE);
    builder.build().map_err(arrow_status)
}

/// Columns of the answer to [`primary_keys`].
pub(super) fn primary_key_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("catalog_name", DataType::Utf8, true),
        Field::new("db_schema_name", DataType::Utf8, true),
        Field::new("table_name", DataType::Utf8, false),
        Field::new("column_name", DataType::Utf8, false),
        Field::new("key_name", DataType::Utf8, true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
}

/// The columns of a table's primary key.
pub(super) fn primary_keys(
    session: &ClientSession,
    command: &CommandGetPrimaryKeys,
) -> Result<RecordBatch, Status> {
    let schema_name = command.db_schema.as_deref().unwrap_or(DEFAULT_SCHEMA);
    let table = &command.table;
    let name = TableReference::full(CATALOG, schema_name, table.as_str());
    let name = session.session.resolve(name);
    let schema = session.session.flash_schema(&name).map_err(status)?;
    let snapshot = schema.snapshot(&name.table).map_err(status)?;
    let key = snapshot.primary_key();
    let columns: Vec<&str> = key
        .map(|key| snapshot.index_columns(&key.definition))
        .unwrap_or_default();
    let name = key.map(|key| key.definition.name.as_str());
    let all = |value: Option<&str>| -> ArrayRef {
        Arc::new(StringArray::from(vec![value; columns.len()]))
    };
    let sequence = Int32Array::from_iter_values(1..=columns.len() as i32);
    RecordBatch::try_new(
        primary_key_schema(),
        vec![
            all(Some(CATALOG)),
            all(Some(schema_name)),
            all(Some(table)),
            Arc::new(StringArray::from_iter_values(columns.iter())),
            all(name),
            Arc::new(sequence),
        ],
    )
    .map_err(|e| status(Error::from(e)))
}

/// Foreign keys, of which there are none: tables don't have them.
pub(super) fn no_foreign_keys() -> RecordBatch {
    let text = |name: &str, nullable| Field::new(name, DataType::Utf8, nullable);
    let fields = vec![
        text("pk_catalog_name", true),
        text("pk_db_schema_name", true),
        text("pk_table_name", false),
        text("pk_column_name", false),
        text("fk_catalog_name", true),
        text("fk_db_schema_name", true),
        text("fk_table_name", false),
        text("fk_column_name", false),
        Field::new("key_sequence", DataType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ];
    RecordBatch::new_empty(Arc::new(Schema::new(fields)))
}
