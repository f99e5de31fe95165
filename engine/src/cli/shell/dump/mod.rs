//! `.dump`: statements that make tables and views anew, elsewhere or in another database.

mod tables;
mod views;

use std::collections::BTreeSet;

use self::tables::Definitions;
use self::views::{definitions, ordered};
use super::backend::Backend;
use super::catalog::{Catalog, Table, quoted};
use crate::cli::output::Output;
use crate::names::DEFAULT_SCHEMA;
use crate::{Error, Result};
use flashmesh_storage::table::TEMPORARY_SCHEMA;

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
        None => matches!(table.kind, "table" | "view") && !is_systems(&table.schema),
    };
    let wanted: Vec<_> = catalog.tables.iter().filter(is_wanted).collect();
    if let (Some(name), true) = (name, wanted.is_empty()) {
        return Err(Error::usage(format!("there is no table {name}")));
    }
    let (views, tables): (Vec<_>, Vec<_>) = wanted.iter().copied().partition(|t| t.kind == "view");
    // Before anything is written: half a dump is none.
    let mut found = Vec::with_capacity(tables.len());
    for table in &tables {
        found.push(Definitions::of(backend, catalog, table).await?);
    }
    let views = ordered(definitions(backend, views).await?);

    output.write_text("BEGIN TRANSACTION;\n")?;
    let of_wanted = wanted.iter().map(|table| table.schema.as_str());
    let schemas: BTreeSet<_> = match name {
        Some(_) => of_wanted.collect(),
        None => catalog.schemas.iter().map(String::as_str).collect(),
    };
    let is_made = |schema: &&str| *schema != DEFAULT_SCHEMA && !is_systems(schema);
    for schema in schemas.into_iter().filter(is_made) {
        let schema = quoted(schema);
        output.write_text(&format!("CREATE SCHEMA IF NOT EXISTS {schema};\n"))?;
    }
    for (table, definitions) in tables.into_iter().zip(found) {
        let all = format!("SELECT * FROM {}", full_name(table));
        let answer = backend.run(all.into()).await?;
        output.write_text(&definitions.create)?;
        let shown = catalog.shown(&table.schema, &table.name);
        output.print_inserts(&shown, answer.rows).await?;
        output.write_text(&definitions.after)?;
    }
    for view in views {
        output.write_text(&format!("{};\n", view.definition))?;
    }
    output.write_text("COMMIT;\n")
}

fn full_name(table: &Table) -> String {
    format!("{}.{}", quoted(&table.schema), quoted(&table.name))
}

/// A text as a literal.
fn text(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn is_systems(schema: &str) -> bool {
    matches!(schema, "system" | "information_schema" | TEMPORARY_SCHEMA)
}
