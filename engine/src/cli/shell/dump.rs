//! `.dump`: statements that make tables and views anew, elsewhere or in another database.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Schema, TimeUnit};
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast::visit_relations;
use futures::TryStreamExt;

use super::backend::Backend;
use super::catalog::{Catalog, Table, quoted};
use crate::cli::output::Output;
use crate::names::DEFAULT_SCHEMA;
use crate::parse::parse;
use crate::{Error, Result};

/// The dialect that sessions have unless told otherwise.
const DIALECT: &str = "duckdb";

/// Writes the tables and views of the database, or the one of that name, as one transaction.
///
/// # Errors
/// [`Error::Usage`] where there is no such table, and for types of which SQL has no literals.
pub(super) async fn dump(
    backend: &dyn Backend,
    output: &mut Output,
    catalog: &Catalog,
    name: Option<&str>,
) -> Result<()> {
    let is_wanted = |table: &&Table| match name {
        Some(name) => {
            let full = format!("{}.{}", table.schema, table.name);
            name == full || name == table.name && table.schema == catalog.default_schema
        }
        None => matches!(table.kind, "table" | "view") && !is_systems(table),
    };
    let wanted: Vec<_> = catalog.tables.iter().filter(is_wanted).collect();
    if let (Some(name), true) = (name, wanted.is_empty()) {
        return Err(Error::usage(format!("there is no table {name}")));
    }
    let (views, tables): (Vec<_>, Vec<_>) = wanted.iter().copied().partition(|t| t.kind == "view");
    // Before anything is written: half a dump is none.
    let mut creates = Vec::with_capacity(tables.len());
    for table in &tables {
        let none = format!("SELECT * FROM {} LIMIT 0", full_name(table));
        let schema = backend.run(none.into()).await?.rows.schema();
        creates.push(create_table(catalog, table, &schema)?);
    }
    let views = ordered(definitions(backend, views).await?);

    output.write_text("BEGIN TRANSACTION;\n")?;
    let schemas: BTreeSet<_> = wanted.iter().map(|table| table.schema.as_str()).collect();
    for schema in schemas
        .into_iter()
        .filter(|schema| *schema != DEFAULT_SCHEMA)
    {
        output.write_text(&format!(
            "CREATE SCHEMA IF NOT EXISTS {};\n",
            quoted(schema)
        ))?;
    }
    for (table, create) in tables.into_iter().zip(creates) {
        let all = format!("SELECT * FROM {}", full_name(table));
        let answer = backend.run(all.into()).await?;
        output.write_text(&create)?;
        let shown = catalog.shown(&table.schema, &table.name);
        output.print_inserts(&shown, answer.rows).await?;
        output.write_text(&create_indexes(catalog, table))?;
    }
    for view in views {
        output.write_text(&format!("{};\n", view.definition))?;
    }
    output.write_text("COMMIT;\n")
}

fn full_name(table: &Table) -> String {
    format!("{}.{}", quoted(&table.schema), quoted(&table.name))
}

async fn definitions(backend: &dyn Backend, views: Vec<&Table>) -> Result<Vec<View>> {
    let mut found = Vec::with_capacity(views.len());
    for view in views {
        let text = |text: &str| text.replace('\'', "''");
        let question = format!(
            "SELECT definition FROM information_schema.views WHERE table_schema = '{}' AND table_name = '{}'",
            text(&view.schema),
            text(&view.name)
        );
        let rows: Vec<RecordBatch> = backend
            .run(question.into())
            .await?
            .rows
            .try_collect()
            .await?;
        for batch in rows {
            let definitions = cast(batch.column(0), &DataType::Utf8)?;
            let definitions = definitions.as_string::<i32>().iter().flatten();
            found.extend(definitions.map(|definition| View::of(view, definition)));
        }
    }
    Ok(found)
}

/// Views behind those that they name.
fn ordered(mut views: Vec<View>) -> Vec<View> {
    let mut ordered = Vec::with_capacity(views.len());
    while !views.is_empty() {
        let names_none = |view: &View| !views.iter().any(|other| view.names(other));
        // Without one that names none of the others they can't have been made.
        let next = views.iter().position(names_none).unwrap_or(0);
        ordered.push(views.remove(next));
    }
    ordered
}

/// A view, as it is made.
struct View {
    schema: String,
    name: String,
    definition: String,
    /// What it reads, as it says so: with or without a schema.
    relations: Vec<Vec<String>>,
}

impl View {
    fn of(view: &Table, definition: &str) -> Self {
        let mut relations = Vec::new();
        for statement in parse(definition, DIALECT).unwrap_or_default() {
            if let Statement::Statement(statement) = statement {
                let _ = visit_relations(&statement, |name| {
                    let parts = name.0.iter().filter_map(|part| part.as_ident());
                    let normalizer = IdentNormalizer::default();
                    relations.push(parts.map(|p| normalizer.normalize(p.clone())).collect());
                    ControlFlow::<()>::Continue(())
                });
            }
        }
        Self {
            schema: view.schema.clone(),
            name: view.name.clone(),
            definition: definition.into(),
            relations,
        }
    }

    /// Whether it reads another one, or may.
    fn names(&self, other: &Self) -> bool {
        let is_other = |relation: &Vec<String>| match relation.as_slice() {
            [.., schema, name] => (schema, name) == (&other.schema, &other.name),
            [name] => *name == other.name,
            [] => false,
        };
        let is_itself = (&self.schema, &self.name) == (&other.schema, &other.name);
        !is_itself && self.relations.iter().any(is_other)
    }
}

fn is_systems(table: &Table) -> bool {
    matches!(table.schema.as_str(), "system" | "information_schema")
}

fn create_table(catalog: &Catalog, table: &Table, schema: &Schema) -> Result<String> {
    let mut columns = Vec::new();
    for field in schema.fields() {
        let sql = sql_type(field.data_type()).ok_or_else(|| {
            Error::usage(format!(
                "column '{}' of {}.{} is {}, which .dump can not write; COPY … TO 'file.parquet' can",
                field.name(),
                table.schema,
                table.name,
                field.data_type()
            ))
        })?;
        let known = table
            .columns
            .iter()
            .find(|column| column.name == *field.name());
        let constraint = match known.is_some_and(|column| !column.nullable) {
            true => " NOT NULL",
            false => "",
        };
        columns.push(format!("{} {sql}{constraint}", quoted(field.name())));
    }
    let keys = catalog.indexes.iter().filter(|index| {
        index.schema == table.schema
            && index.table == table.name
            && index.constraint == "primary key"
    });
    columns.extend(keys.map(|key| format!("PRIMARY KEY ({})", names(&key.columns))));
    let checks = table.checks.iter();
    columns.extend(checks.map(|(name, condition)| {
        let name = quoted(name);
        format!("CONSTRAINT {name} CHECK ({condition})")
    }));
    let name = catalog.shown(&table.schema, &table.name);
    Ok(format!(
        "CREATE TABLE {name} (\n  {}\n);\n",
        columns.join(",\n  ")
    ))
}

fn create_indexes(catalog: &Catalog, table: &Table) -> String {
    let indexes = catalog.indexes.iter().filter(|index| {
        index.schema == table.schema
            && index.table == table.name
            && index.constraint != "primary key"
    });
    let create = indexes.map(|index| {
        let unique = match index.constraint {
            "unique" => "UNIQUE ",
            _ => "",
        };
        format!(
            "CREATE {unique}INDEX {} ON {} USING {} ({});\n",
            quoted(&index.name),
            catalog.shown(&table.schema, &table.name),
            index.kind,
            names(&index.columns)
        )
    });
    create.collect()
}

fn names(columns: &[String]) -> String {
    let names = columns.iter().map(|column| quoted(column));
    names.collect::<Vec<_>>().join(", ")
}

/// The type of a column in SQL; `None` where it has no name there.
fn sql_type(data_type: &DataType) -> Option<String> {
    Some(match data_type {
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 => "TINYINT UNSIGNED".into(),
        DataType::UInt16 => "SMALLINT UNSIGNED".into(),
        DataType::UInt32 => "INT UNSIGNED".into(),
        DataType::UInt64 => "BIGINT UNSIGNED".into(),
        DataType::Float32 => "REAL".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Decimal128(precision, scale) | DataType::Decimal256(precision, scale) => {
            format!("DECIMAL({precision}, {scale})")
        }
        string if string.is_string() => "VARCHAR".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTEA".into(),
        DataType::Date32 => "DATE".into(),
        DataType::Time64(TimeUnit::Nanosecond) => "TIME".into(),
        DataType::Timestamp(unit, None) => {
            let digits = match unit {
                TimeUnit::Second => 0,
                TimeUnit::Millisecond => 3,
                TimeUnit::Microsecond => 6,
                TimeUnit::Nanosecond => 9,
            };
            format!("TIMESTAMP({digits})")
        }
        DataType::Timestamp(TimeUnit::Nanosecond, Some(zone)) if zone.as_ref() == "UTC" => {
            "TIMESTAMP WITH TIME ZONE".into()
        }
        DataType::List(element) => format!("{}[]", sql_type(element.data_type())?),
        DataType::FixedSizeList(element, length) => {
            format!("{}[{length}]", sql_type(element.data_type())?)
        }
        _ => return None,
    })
}
