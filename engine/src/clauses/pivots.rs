//! `PIVOT` and `UNPIVOT` of a table in FROM.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, ExprWithAlias, FunctionArg, FunctionArgExpr, FunctionArguments, Ident,
    NullInclusion, PivotValueSource, Query, SelectItem, SetExpr, TableFactor, Value,
};

use super::{parsed, query_of, refuse};
use crate::error::Result;
use crate::names::name_of;
use crate::spelling::GROUPED_BY;
use crate::walk::visit_expressions;

/// What the table is called in the queries that are written here.
const TABLE: &str = "flashmesh:pivoted";

/// Makes a query of a pivoted table.
///
/// # Errors
/// A refusal of values that are not written as a list of constants.
pub(super) fn said_otherwise(factor: &mut TableFactor) -> Result<()> {
    let (query, table, alias) = match factor {
        TableFactor::Pivot {
            table,
            aggregate_functions,
            value_column,
            value_source,
            default_on_null,
            alias,
        } => {
            // Its values are asked for first.
            if matches!(value_source, PivotValueSource::Any(_)) {
                return Ok(());
            }
            let groups = default_on_null.as_ref().map(groups_of).transpose()?;
            let query = pivot(aggregate_functions, value_column, value_source, groups)?;
            (query, table, alias)
        }
        TableFactor::Unpivot {
            table,
            value,
            name,
            columns,
            null_inclusion,
            alias,
        } => {
            let query = unpivot(value, name, columns, null_inclusion.as_ref())?;
            (query, table, alias)
        }
        _ => return Ok(()),
    };
    *factor = query_of(table, query, alias.take());
    Ok(())
}

/// By what a PIVOT groups that says so.
fn groups_of(said: &Expr) -> Result<Vec<Expr>> {
    let refused = || refuse("DEFAULT ON NULL", "write coalesce(…) in the SELECT list");
    let Expr::Function(function) = said else {
        return refused();
    };
    let is_ours = matches!(function.name.0.as_slice(), [name]
        if name.as_ident().is_some_and(|name| name.value == GROUPED_BY));
    let FunctionArguments::List(list) = &function.args else {
        return refused();
    };
    if !is_ours {
        return refused();
    }
    let groups = list.args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(group)) => Ok(group.clone()),
        other => refuse(&format!("PIVOT … GROUP BY {other}"), "name columns"),
    });
    groups.collect()
}

/// Each aggregate of each value's rows, by all other columns, or by `groups`.
fn pivot(
    aggregates: &[ExprWithAlias],
    by: &[Expr],
    values: &PivotValueSource,
    groups: Option<Vec<Expr>>,
) -> Result<Box<Query>> {
    let [by] = by else {
        return refuse("PIVOT by several columns", "make one of them by ||");
    };
    let Some(by_name) = name_of_column(by) else {
        return refuse("FOR and no name of a column", "name a column");
    };
    let PivotValueSource::List(values) = values else {
        return refuse(
            "PIVOT without a list of values",
            "write them: FOR x IN ('a', 'b')",
        );
    };
    let mut left_out = vec![by_name];
    for ExprWithAlias { expr, .. } in aggregates {
        columns_of(expr, &mut left_out);
    }
    let left_out = quoted(&left_out);
    let text = format!("SELECT * EXCLUDE ({left_out}) FROM \"{TABLE}\" GROUP BY ALL");
    let mut query = parsed(&text, |parser| parser.parse_query())?;
    let SetExpr::Select(select) = query.body.as_mut() else {
        return Ok(query);
    };
    if let Some(groups) = groups {
        let groups = groups.into_iter().map(SelectItem::UnnamedExpr);
        select.projection = groups.collect();
    }
    for ExprWithAlias { expr: value, alias } in values {
        let called = match (alias, value) {
            (Some(alias), _) => name_of(alias),
            (None, Expr::Value(value)) => text_of(&value.value),
            (None, Expr::TypedString(typed)) => text_of(&typed.value.value),
            (None, other) => other.to_string(),
        };
        for ExprWithAlias { expr, alias } in aggregates {
            let Expr::Function(function) = expr else {
                return refuse(&format!("PIVOT ({expr} …)"), "write an aggregate: sum(x)");
            };
            let nested = |expr: &Expr| Box::new(Expr::Nested(Box::new(expr.clone())));
            let mut function = function.clone();
            let mut condition = Box::new(Expr::IsNotDistinctFrom(nested(by), nested(value)));
            if let Some(given) = function.filter.take() {
                condition = Box::new(Expr::BinaryOp {
                    left: nested(&given),
                    op: BinaryOperator::And,
                    right: condition,
                });
            }
            function.filter = Some(condition);
            let called = match (alias, aggregates.len()) {
                (Some(alias), _) => format!("{called}_{}", name_of(alias)),
                (None, 1) => called.clone(),
                (None, _) => format!("{called}_{expr}"),
            };
            select.projection.push(SelectItem::ExprWithAlias {
                expr: Expr::Function(function),
                alias: Ident::with_quote('"', called),
            });
        }
    }
    Ok(query)
}

/// A constant as the name of a column.
fn text_of(value: &Value) -> String {
    match value {
        Value::SingleQuotedString(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A row for each of the columns, with its name and its value.
fn unpivot(
    value: &Expr,
    name: &Ident,
    columns: &[ExprWithAlias],
    nulls: Option<&NullInclusion>,
) -> Result<Box<Query>> {
    let Some(value) = name_of_column(value) else {
        return refuse(
            "UNPIVOT of several values",
            "write UNPIVOT for each of them",
        );
    };
    let mut names = Vec::new();
    let mut left_out = Vec::new();
    for ExprWithAlias { expr, alias } in columns {
        let Some(column) = name_of_column(expr) else {
            return refuse(&format!("{expr} in UNPIVOT"), "name a column");
        };
        let called = alias.as_ref().map_or_else(|| column.clone(), name_of);
        names.push(format!("'{}'", called.replace('\'', "''")));
        left_out.push(column);
    }
    let (names, columns) = (names.join(", "), quoted(&left_out));
    let (name, value) = (quoted(&[name_of(name)]), quoted(&[value]));
    let rows = format!(
        "SELECT * EXCLUDE ({columns}), unnest(make_array({names})) AS {name}, \
         unnest(make_array({columns})) AS {value} FROM \"{TABLE}\""
    );
    let text = match nulls {
        Some(NullInclusion::IncludeNulls) => rows,
        _ => format!("SELECT * FROM ({rows}) WHERE {value} IS NOT NULL"),
    };
    parsed(&text, |parser| parser.parse_query())
}

/// The column that an expression names.
fn name_of_column(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Identifier(name) => Some(name_of(name)),
        Expr::CompoundIdentifier(names) => names.last().map(name_of),
        _ => None,
    }
}

/// Names in a text.
fn quoted(names: &[String]) -> String {
    let names = names.iter();
    let names = names.map(|name| Ident::with_quote('"', name.replace('"', "\"\"")).to_string());
    names.collect::<Vec<_>>().join(", ")
}

/// Adds the columns that an aggregate takes.
fn columns_of(expr: &Expr, columns: &mut Vec<String>) {
    let _ = visit_expressions(expr, |part| {
        if let Some(name) = name_of_column(part)
            && !columns.contains(&name)
        {
            columns.push(name);
        }
        ControlFlow::<()>::Continue(())
    });
}
