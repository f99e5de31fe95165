//! What other databases ask about themselves and set: `SHOW TABLES`, `SHOW SCHEMAS`, `USE schema`,
//! `SET threads = 2`.

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Set, ShowStatementFilter, ShowStatementFilterPosition,
    ShowStatementOptions, Statement, Use, Value,
};

use super::{parsed, refuse};
use crate::error::Result;
use crate::names::{CATALOG, DEFAULT_SCHEMA, quoted_text};

/// What options are called elsewhere.
const OPTIONS: [(&str, &str); 5] = [
    ("schema", SCHEMA),
    ("search_path", SCHEMA),
    ("threads", "datafusion.execution.target_partitions"),
    ("timezone", "datafusion.execution.time_zone"),
    ("worker_threads", "datafusion.execution.target_partitions"),
];
const SCHEMA: &str = "datafusion.catalog.default_schema";

/// Says such a statement as a query, or by the option's name.
///
/// # Errors
/// A refusal of options that are given when a database is opened.
pub(super) fn correct_shown(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::ShowTables {
            terse: false,
            history: false,
            extended: false,
            full: false,
            external: false,
            show_options,
        } => {
            if let Some(query) = tables(show_options) {
                *statement = parsed(&query, |parser| parser.parse_statement())?;
            }
        }
        Statement::ShowDatabases { show_options, .. } if says_nothing(show_options) => {
            *statement = parsed(
                "SELECT DISTINCT catalog_name AS database_name FROM information_schema.schemata ORDER BY 1",
                |parser| parser.parse_statement(),
            )?;
        }
        Statement::ShowSchemas { show_options, .. } if says_nothing(show_options) => {
            *statement = parsed(
                "SELECT catalog_name AS database_name, schema_name FROM information_schema.schemata ORDER BY ALL",
                |parser| parser.parse_statement(),
            )?;
        }
        Statement::ShowVariable { variable } if are_words(variable, &["all", "tables"]) => {
            *statement = parsed(ALL_TABLES, |parser| parser.parse_statement())?;
        }
        Statement::Use(Use::Object(name) | Use::Schema(name) | Use::Database(name)) => {
            if let Some(schema) = name.0.last().and_then(|part| part.as_ident()) {
                let schema = Expr::value(Value::SingleQuotedString(known_schema(&schema.value)));
                *statement = set(SCHEMA, schema);
            }
        }
        Statement::Set(Set::SingleAssignment {
            variable, values, ..
        }) => correct_option(variable, values)?,
        Statement::Set(Set::SetTimeZone { value, .. }) => {
            *statement = set("datafusion.execution.time_zone", value.clone());
        }
        _ => {}
    }
    Ok(())
}

/// Tables of all schemas but the process's own, with their columns.
const ALL_TABLES: &str = "SELECT table_catalog AS database, table_schema AS schema, table_name AS name,
        array_agg(column_name ORDER BY ordinal_position) AS column_names,
        array_agg(data_type ORDER BY ordinal_position) AS column_types
    FROM information_schema.columns WHERE table_schema <> 'system' GROUP BY ALL ORDER BY schema, name";

/// The query for the tables of a schema, of that in use if none is said, and of the session; `None` for what
/// else may be said.
fn tables(options: &ShowStatementOptions) -> Option<String> {
    let ShowStatementOptions {
        show_in,
        starts_with: None,
        limit: None,
        limit_from: None,
        filter_position,
    } = options
    else {
        return None;
    };
    let text = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let schemas = match show_in {
        Some(within) => {
            let schema = within.parent_name.as_ref()?.0.last()?.as_ident()?;
            text(&known_schema(&schema.value))
        }
        None => "current_schema(), 'temp'".to_owned(),
    };
    let filter = match filter_position {
        None => String::new(),
        Some(
            ShowStatementFilterPosition::Infix(filter)
            | ShowStatementFilterPosition::Suffix(filter),
        ) => match filter {
            ShowStatementFilter::Like(pattern) => format!("AND table_name LIKE {}", text(pattern)),
            ShowStatementFilter::ILike(pattern) => {
                format!("AND table_name ILIKE {}", text(pattern))
            }
            ShowStatementFilter::Where(_) | ShowStatementFilter::NoKeyword(_) => return None,
        },
    };
    Some(format!(
        "SELECT table_name AS name FROM information_schema.tables
         WHERE table_schema IN ({schemas}) {filter} ORDER BY name"
    ))
}

fn says_nothing(options: &ShowStatementOptions) -> bool {
    matches!(
        options,
        ShowStatementOptions {
            show_in: None,
            starts_with: None,
            limit: None,
            limit_from: None,
            filter_position: None,
        }
    )
}

fn are_words(idents: &[Ident], words: &[&str]) -> bool {
    idents.len() == words.len()
        && idents
            .iter()
            .zip(words)
            .all(|(ident, word)| ident.value.eq_ignore_ascii_case(word))
}

/// The schema that others call `main`, as the whole database is called here.
fn known_schema(name: &str) -> String {
    match name.to_lowercase().as_str() {
        "main" | CATALOG => DEFAULT_SCHEMA.to_owned(),
        _ => name.to_owned(),
    }
}

fn set(name: &str, value: Expr) -> Statement {
    Statement::Set(Set::SingleAssignment {
        scope: None,
        hivevar: false,
        variable: option(name),
        values: vec![value],
    })
}

fn option(name: &str) -> ObjectName {
    ObjectName::from(name.split('.').map(Ident::new).collect::<Vec<_>>())
}

fn correct_option(variable: &mut ObjectName, values: &mut [Expr]) -> Result<()> {
    let name = variable.to_string().to_lowercase();
    if matches!(name.as_str(), "memory_limit" | "max_memory") {
        return refuse(
            &format!("SET {name}"),
            "it is given when a database is opened: connect(memory_limit = '4GB'), --memory-limit 4GB",
        );
    }
    let Some((_, here)) = OPTIONS.iter().find(|(elsewhere, _)| *elsewhere == name) else {
        return Ok(());
    };
    *variable = option(here);
    if *here == SCHEMA
        && let [value] = values
    {
        let schema = match &*value {
            Expr::Identifier(name) => Some(name.value.clone()),
            text => quoted_text(text).map(str::to_owned),
        };
        if let Some(schema) = schema {
            *value = Expr::value(Value::SingleQuotedString(known_schema(&schema)));
        }
    }
    Ok(())
}
