//! What the standard has in `information_schema` of constraints, which DataFusion has not: queries of the tables in
//! which the process tells of itself, so that one sees what one may.

use datafusion::sql::sqlparser::ast::{Ident, ObjectName, TableAlias, TableFactor};

use super::sample::alias_of;
use super::{check_alias, parsed};
use crate::error::Result;
use crate::names::{CATALOG, name_of};

/// The views, and what they are.
const VIEWS: [(&str, &str); 3] = [
    (
        "check_constraints",
        r#"SELECT 'flashmesh' AS constraint_catalog, "schema" AS constraint_schema, name AS constraint_name,
               condition AS check_clause
           FROM system.checks"#,
    ),
    (
        "key_column_usage",
        r#"SELECT 'flashmesh' AS constraint_catalog, i."schema" AS constraint_schema, i.name AS constraint_name,
               'flashmesh' AS table_catalog, i."schema" AS table_schema, i."table" AS table_name,
               k.column_name, CAST(k.ordinal_position AS INT) AS ordinal_position
           FROM system.indexes AS i,
               unnest(i.columns, range(1, CAST(array_length(i.columns) AS BIGINT) + 1))
                   AS k(column_name, ordinal_position)
           WHERE i."constraint" IS NOT NULL"#,
    ),
    (
        "table_constraints",
        r#"SELECT 'flashmesh' AS constraint_catalog, "schema" AS constraint_schema, name AS constraint_name,
               'flashmesh' AS table_catalog, "schema" AS table_schema, "table" AS table_name,
               upper("constraint") AS constraint_type, 'NO' AS is_deferrable, 'NO' AS initially_deferred,
               'YES' AS enforced
           FROM system.indexes WHERE "constraint" IS NOT NULL
           UNION ALL
           SELECT 'flashmesh', "schema", name, 'flashmesh', "schema", "table", 'CHECK', 'NO', 'NO', 'YES'
           FROM system.checks"#,
    ),
];

/// Puts the query in the place of such a view.
///
/// # Errors
/// Those of its alias.
pub(super) fn as_queries(factor: &mut TableFactor) -> Result<()> {
    let TableFactor::Table {
        name,
        alias,
        args: None,
        version: None,
        ..
    } = factor
    else {
        return Ok(());
    };
    let Some((view, text)) = view_of(name) else {
        return Ok(());
    };
    check_alias(alias.as_ref())?;
    let called = || -> TableAlias { alias_of(Ident::new(*view)) };
    *factor = TableFactor::Derived {
        lateral: false,
        subquery: parsed(text, |parser| parser.parse_query())?,
        alias: Some(alias.take().unwrap_or_else(called)),
        sample: None,
    };
    Ok(())
}

fn view_of(name: &ObjectName) -> Option<&'static (&'static str, &'static str)> {
    let parts = name.0.iter().map(|part| part.as_ident().map(name_of));
    let parts = parts.collect::<Option<Vec<_>>>()?;
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let ([schema, view] | [CATALOG, schema, view]) = parts.as_slice() else {
        return None;
    };
    let mut views = VIEWS.iter();
    views.find(|(name, _)| *schema == "information_schema" && name == view)
}
