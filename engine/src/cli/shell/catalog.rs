//! What the shell knows of the database it talks to: names to complete, to suggest and to list.

/// Names of a database, as of the last time it was asked.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Catalog {
    /// The schema that names without one are in.
    pub default_schema: String,
    /// Schemas.
    pub schemas: Vec<String>,
    /// Tables, views and external tables.
    pub tables: Vec<Table>,
    /// Indexes.
    pub indexes: Vec<Index>,
    /// Functions of values.
    pub functions: Vec<String>,
    /// Functions that stand where a table stands.
    pub table_functions: Vec<String>,
    /// Names that SET takes.
    pub settings: Vec<String>,
}

/// A table, a view or an external table.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Table {
    pub schema: String,
    pub name: String,
    /// `table`, `view`, …
    pub kind: &'static str,
    pub columns: Vec<Column>,
    /// Names and conditions of its CHECK constraints.
    pub checks: Vec<(String, String)>,
    /// Rows, where the catalog knows them.
    pub rows: Option<u64>,
}

/// A column.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Column {
    pub name: String,
    pub data_type: String,
    pub nullable: bool,
}

/// An index.
#[derive(Debug, Clone, Default)]
pub(in crate::cli) struct Index {
    pub schema: String,
    pub table: String,
    pub name: String,
    pub kind: String,
    pub columns: Vec<String>,
    /// `primary key`, `unique` or nothing.
    pub constraint: &'static str,
}

impl Catalog {
    /// The tables of that name, in the schema if one is named.
    pub fn tables_named(&self, schema: Option<&str>, name: &str) -> Vec<&Table> {
        let schema = schema.unwrap_or(&self.default_schema);
        let is_meant = |table: &&Table| table.name == name && table.schema == schema;
        self.tables.iter().filter(is_meant).collect()
    }

    /// How a table is named in this session: without its schema where that is the default one.
    pub fn shown(&self, schema: &str, name: &str) -> String {
        match schema == self.default_schema {
            true => quoted(name),
            false => format!("{}.{}", quoted(schema), quoted(name)),
        }
    }
}

/// A name as SQL has to have it: in quotes, if it would not come back the same without.
pub(super) fn quoted(name: &str) -> String {
    let is_plain = name.starts_with(|c: char| c.is_ascii_lowercase() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    match is_plain && !super::keywords::is_reserved(name) {
        true => name.to_string(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}
