//! What clients are told of a column beside its Arrow type: its SQL type and where it comes from,
//! as Flight SQL's field metadata has it.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use datafusion::common::TableReference;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{LogicalPlan, TableScan};
use flashmesh_planner::FlashTable;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::table::{TEMPORARY_SCHEMA, is_temporary};

use crate::{Result, Session};

/// What the names of Flight SQL's metadata begin with.
const PREFIX: &str = "ARROW:FLIGHT:SQL:";

/// The schema with types that all Flight clients know, and what they are in SQL: string and binary
/// views as plain ones. (A view into a large buffer would also send all of the buffer.)
pub(super) fn client_schema(schema: &SchemaRef) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| described(&client_field(field)));
    let fields: Vec<FieldRef> = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn client_field(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(client_field(item)),
        DataType::LargeList(item) => DataType::LargeList(client_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(client_field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(client_field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(client_field).collect()),
        DataType::Dictionary(_, values) => {
            let values = Arc::new(Field::new("values", values.as_ref().clone(), true));
            client_field(&values).data_type().clone()
        }
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// The columns of a plan's result, as a client is told them.
pub(super) fn of_plan(session: &Session, plan: &LogicalPlan) -> Result<SchemaRef> {
    with_origins(session, plan, &client_schema(plan.schema().inner()))
}

/// `schema`, of which `plan` is the plan, with the tables that its columns come from.
pub(super) fn with_origins(
    session: &Session,
    plan: &LogicalPlan,
    schema: &Schema,
) -> Result<SchemaRef> {
    let tables = tables(plan)?;
    let qualifiers = plan.schema().iter().map(|(qualifier, _)| qualifier);
    let fields = schema.fields().iter().zip(qualifiers);
    let fields = fields.map(|(field, qualifier)| {
        let Some(table) = qualifier.and_then(|qualifier| tables.get(qualifier)) else {
            return Arc::clone(field);
        };
        let table = session.resolve(table.clone());
        let schema = match is_temporary(&table.schema) {
            true => TEMPORARY_SCHEMA,
            false => &table.schema,
        };
        from_table(field, &table.catalog, schema, &table.table)
    });
    Ok(Arc::new(Schema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        schema.metadata().clone(),
    )))
}

/// The columns of a table, as a client is told them.
pub(super) fn of_table(schema: &SchemaRef, catalog: &str, name: &str, table: &str) -> Schema {
    let schema = client_schema(schema);
    let fields = schema.fields().iter();
    let fields = fields.map(|field| from_table(field, catalog, name, table));
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

fn from_table(field: &FieldRef, catalog: &str, schema: &str, table: &str) -> FieldRef {
    let origin = [
        ("CATALOG_NAME", catalog),
        ("SCHEMA_NAME", schema),
        ("TABLE_NAME", table),
    ];
    with_metadata(field, origin.map(|(key, value)| (key, value.to_string())))
}

/// The tables of a plan, by the names that its columns are qualified with.
fn tables(plan: &LogicalPlan) -> Result<HashMap<TableReference, TableReference>> {
    let mut tables = HashMap::new();
    plan.apply(|node| {
        match node {
            LogicalPlan::TableScan(scan) => {
                tables.insert(scan.table_name.clone(), scanned(scan));
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let mut named = alias.input.as_ref();
                while let LogicalPlan::SubqueryAlias(alias) = named {
                    named = alias.input.as_ref();
                }
                if let LogicalPlan::TableScan(scan) = named {
                    tables.insert(alias.alias.clone(), scanned(scan));
                }
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(tables)
}

/// The name of the table that is scanned: a past version of it has another in plans.
fn scanned(scan: &TableScan) -> TableReference {
    match FlashTable::of(&scan.source) {
        Some(table) => {
            let (schema, name) = table.named().name();
            TableReference::partial(schema.as_str(), name.as_str())
        }
        None => scan.table_name.clone(),
    }
}

/// A column with what its type is in SQL.
pub(super) fn described(field: &FieldRef) -> FieldRef {
    let data_type = field.data_type();
    let (name, precision, scale) = sql_type(data_type);
    let number = |(key, value): (_, Option<i32>)| value.map(|value| (key, value.to_string()));
    let sizes = [("PRECISION", precision), ("SCALE", scale)];
    let is_text = matches!(data_type, DataType::Utf8 | DataType::LargeUtf8);
    let flags = [
        ("TYPE_NAME", name.to_string()),
        ("IS_AUTO_INCREMENT", "0".into()),
        ("IS_CASE_SENSITIVE", u8::from(is_text).to_string()),
        ("IS_READ_ONLY", "0".into()),
        ("IS_SEARCHABLE", "1".into()),
    ];
    with_metadata(
        field,
        flags
            .into_iter()
            .chain(sizes.into_iter().filter_map(number)),
    )
}

fn with_metadata<'a>(
    field: &FieldRef,
    entries: impl IntoIterator<Item = (&'a str, String)>,
) -> FieldRef {
    let mut metadata = field.metadata().clone();
    let entries = entries.into_iter();
    metadata.extend(entries.map(|(key, value)| (format!("{PREFIX}{key}"), value)));
    Arc::new(field.as_ref().clone().with_metadata(metadata))
}

/// `schema` without what was told about columns of a result: its columns are no table's any more.
pub(super) fn without_description(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let mut metadata = field.metadata().clone();
        metadata.retain(|key, _| !key.starts_with(PREFIX));
        Field::clone(field).with_metadata(metadata)
    });
    Arc::new(Schema::new_with_metadata(
        fields.collect::<Vec<_>>(),
        schema.metadata().clone(),
    ))
}

/// Name, precision and scale of a type in SQL.
fn sql_type(data_type: &DataType) -> (&'static str, Option<i32>, Option<i32>) {
    use DataType::*;
    let whole = |name, digits| (name, Some(digits), Some(0));
    match data_type {
        Null => ("NULL", None, None),
        Boolean => ("BOOLEAN", Some(1), None),
        Int8 => whole("TINYINT", 3),
        Int16 => whole("SMALLINT", 5),
        Int32 => whole("INTEGER", 10),
        Int64 => whole("BIGINT", 19),
        UInt8 => whole("TINYINT UNSIGNED", 3),
        UInt16 => whole("SMALLINT UNSIGNED", 5),
        UInt32 => whole("INTEGER UNSIGNED", 10),
        UInt64 => whole("BIGINT UNSIGNED", 20),
        Float16 | Float32 => ("REAL", Some(24), None),
        Float64 => ("DOUBLE", Some(53), None),
        Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) | Decimal256(p, s) => {
            ("DECIMAL", Some(i32::from(*p)), Some(i32::from(*s)))
        }
        Date32 | Date64 => ("DATE", Some(10), None),
        Time32(unit) | Time64(unit) => ("TIME", None, Some(digits(unit))),
        Timestamp(unit, None) => ("TIMESTAMP", None, Some(digits(unit))),
        Timestamp(unit, Some(_)) => ("TIMESTAMP WITH TIME ZONE", None, Some(digits(unit))),
        Interval(_) | Duration(_) => ("INTERVAL", None, None),
        Binary | LargeBinary | BinaryView | FixedSizeBinary(_) => ("BYTEA", None, None),
        Utf8 | LargeUtf8 | Utf8View => ("VARCHAR", None, None),
        List(_) | LargeList(_) | ListView(_) | LargeListView(_) | FixedSizeList(..) => {
            ("ARRAY", None, None)
        }
        Struct(_) => ("STRUCT", None, None),
        Map(..) => ("MAP", None, None),
        Union(..) => ("UNION", None, None),
        Dictionary(_, values) => sql_type(values),
        RunEndEncoded(_, values) => sql_type(values.data_type()),
    }
}

/// Decimal places of seconds.
fn digits(unit: &TimeUnit) -> i32 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}
