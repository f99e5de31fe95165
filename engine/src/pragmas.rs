//! `PRAGMA table_info('table')` and `PRAGMA show_tables`, as queries.

use datafusion::common::TableReference;
use datafusion::sql::parser::{DFParser, Statement as ParsedStatement};
use datafusion::sql::sqlparser::ast::{ObjectName, Value};
use datafusion::sql::sqlparser::dialect::GenericDialect;

use crate::error::{Error, Result};

/// What is asked by a PRAGMA.
pub(crate) enum Pragma {
    /// The columns of a table.
    TableInfo(TableReference),
    /// The tables of the schema in use.
    ShowTables,
}

/// The question of a PRAGMA.
///
/// # Errors
/// [`Error::Usage`] for others.
pub(crate) fn parsed_pragma(name: &ObjectName, value: Option<&Value>) -> Result<Pragma> {
    match (name.to_string().to_lowercase().as_str(), value) {
        ("table_info", Some(Value::SingleQuotedString(table))) => {
            Ok(Pragma::TableInfo(TableReference::parse_str(table)))
        }
        ("show_tables", None) => Ok(Pragma::ShowTables),
        _ => Err(Error::usage(format!(
            "PRAGMA {name} is not supported; there are PRAGMA table_info('table') and show_tables, and settings are SET name = value"
        ))),
    }
}

/// The query for the columns of a table, as DuckDB and SQLite have it.
pub(crate) fn columns_of_table(schema: &str, table: &str) -> Result<ParsedStatement> {
    let text = |text: &str| text.replace('\'', "''");
    let (schema, table) = (text(schema), text(table));
    parsed(&format!(
        "SELECT CAST(row_number() OVER (ORDER BY c.ordinal_position) - 1 AS INTEGER) AS cid,
                c.column_name AS name, c.data_type AS type, c.is_nullable = 'NO' AS \"notnull\",
                c.column_default AS dflt_value,
                coalesce(array_has(k.columns, c.column_name), false) AS pk
         FROM information_schema.columns AS c
         LEFT JOIN (SELECT \"schema\", \"table\", columns FROM system.indexes
                    WHERE \"constraint\" = 'primary key') AS k
           ON k.\"schema\" = c.table_schema AND k.\"table\" = c.table_name
         WHERE c.table_schema = '{schema}' AND c.table_name = '{table}' ORDER BY cid"
    ))
}

/// The query for the tables of a schema.
pub(crate) fn tables_of_schema(schema: &str) -> Result<ParsedStatement> {
    let schema = schema.replace('\'', "''");
    parsed(&format!(
        "SELECT table_name AS name FROM information_schema.tables
         WHERE table_schema = '{schema}' ORDER BY name"
    ))
}

fn parsed(query: &str) -> Result<ParsedStatement> {
    let mut parsed = DFParser::parse_sql_with_dialect(query, &GenericDialect {})?;
    let query = parsed.pop_front();
    query.ok_or_else(|| Error::usage("there is no statement to run"))
}
