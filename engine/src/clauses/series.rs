//! Lists as tables: `unnest(x) WITH ORDINALITY`, and `generate_series(1, t.n)` and `LATERAL (VALUES (t.a), (t.b))` of
//! columns of the tables before it.
//!
//! The planner knows series and rows of constants alone, and no ordinality.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Array, BinaryOperator, Expr, FunctionArg, FunctionArgExpr, Ident, Query, SetExpr, TableAlias,
    TableAliasColumnDef, TableFactor, Value,
};

use super::sample::alias_of;
use super::{call, check_alias, refuse};
use crate::error::Result;
use crate::walk::visit_expressions;

/// Functions of numbers in a row.
pub(crate) const SERIES: [&str; 2] = ["generate_series", "range"];

/// Makes a table of lists of such a call.
///
/// # Errors
/// A refusal of WITH ORDINALITY of anything else.
pub(super) fn as_lists(factor: &mut TableFactor) -> Result<()> {
    let (function, args, with_ordinality, alias) = match factor {
        TableFactor::Table {
            name,
            args: Some(args),
            with_ordinality,
            alias,
            ..
        } => (
            name.to_string(),
            args.args.as_slice(),
            *with_ordinality,
            alias,
        ),
        TableFactor::Function {
            name,
            args,
            with_ordinality,
            alias,
            ..
        } => (name.to_string(), args.as_slice(), *with_ordinality, alias),
        TableFactor::UNNEST {
            array_exprs,
            with_ordinality: true,
            alias,
            ..
        } => {
            let lists = std::mem::take(array_exprs);
            *factor = with_numbers("unnest", lists, alias.take())?;
            return Ok(());
        }
        TableFactor::Derived {
            subquery, alias, ..
        } => {
            if let Some(columns) = columns_of_rows(subquery) {
                let alias = alias
                    .take()
                    .unwrap_or_else(|| alias_of(Ident::new("unnamed_values")));
                check_alias(Some(&alias))?;
                let names = (1..=columns.len()).map(|number| format!("column{number}"));
                let names: Vec<_> = names.map(Ident::new).collect();
                *factor = unnest(columns, Some(with_names(alias, names)));
            }
            return Ok(());
        }
        TableFactor::Table {
            with_ordinality: true,
            ..
        } => return refuse("WITH ORDINALITY of a table", "write row_number() OVER ()"),
        _ => return Ok(()),
    };
    let function = function.to_lowercase();
    let lists = args.iter().map(|arg| match arg {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(list)) => Some(list.clone()),
        _ => None,
    });
    let lists: Option<Vec<Expr>> = lists.collect();
    let is_series = SERIES.contains(&function.as_str());
    let lists = match lists {
        Some(lists) if function == "unnest" => lists,
        Some(args) if is_series && (with_ordinality || args.iter().any(has_column)) => {
            vec![call(Ident::new(&function), args)]
        }
        _ if with_ordinality => {
            let instead = "write row_number() OVER ()";
            return refuse(&format!("WITH ORDINALITY of {function}"), instead);
        }
        _ => return Ok(()),
    };
    let alias = alias.take();
    check_alias(alias.as_ref())?;
    *factor = match with_ordinality {
        true => with_numbers(&function, lists, alias)?,
        false => {
            let alias = match is_series {
                true => Some(with_columns(&function, alias, 1)),
                false => alias,
            };
            unnest(lists, alias)
        }
    };
    Ok(())
}

fn has_column(arg: &Expr) -> bool {
    visit_expressions(arg, |part| match part {
        Expr::Identifier(_) | Expr::CompoundIdentifier(_) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    })
    .is_break()
}

/// The columns of rows that are made of columns of other tables, each as a list.
fn columns_of_rows(query: &Query) -> Option<Vec<Expr>> {
    let SetExpr::Values(values) = query.body.as_ref() else {
        return None;
    };
    let has_more = query.with.is_some()
        || query.order_by.is_some()
        || query.limit_clause.is_some()
        || query.fetch.is_some();
    let rows: Vec<&[Expr]> = values.rows.iter().map(|row| row.as_slice()).collect();
    let width = rows.first()?.len();
    let mut all = rows.iter().copied().flatten();
    let is_plain = |expr: &Expr| {
        let within = visit_expressions(expr, |part| match part {
            Expr::Subquery(_) | Expr::Exists { .. } | Expr::InSubquery { .. } => {
                ControlFlow::Break(())
            }
            _ => ControlFlow::Continue(()),
        });
        within.is_continue()
    };
    if has_more
        || rows.iter().any(|row| row.len() != width)
        || !all.clone().any(has_column)
        || !all.all(is_plain)
    {
        return None;
    }
    let list = |at: usize| {
        let values = rows.iter().map(|row| row[at].clone());
        Expr::Array(Array {
            elem: values.collect(),
            named: false,
        })
    };
    Some((0..width).map(list).collect())
}

fn unnest(array_exprs: Vec<Expr>, alias: Option<TableAlias>) -> TableFactor {
    TableFactor::UNNEST {
        alias,
        array_exprs,
        with_offset: false,
        with_offset_alias: None,
        with_ordinality: false,
    }
}

/// A list's elements, and their numbers from one.
fn with_numbers(
    function: &str,
    mut lists: Vec<Expr>,
    alias: Option<TableAlias>,
) -> Result<TableFactor> {
    let [list] = lists.as_slice() else {
        return refuse(
            "WITH ORDINALITY of several lists",
            "number the longest one: unnest(a, b, range(1, len(a) + 1))",
        );
    };
    let one = || Expr::value(Value::Number("1".to_owned(), false));
    let behind = Expr::BinaryOp {
        left: Box::new(call(Ident::new("length"), vec![list.clone()])),
        op: BinaryOperator::Plus,
        right: Box::new(one()),
    };
    lists.push(call(Ident::new("range"), vec![one(), behind]));
    Ok(unnest(lists, Some(with_columns(function, alias, 2))))
}

/// The alias with names for that many columns: what is missing is called as the rows are, and the numbers ordinality.
fn with_columns(function: &str, alias: Option<TableAlias>, count: usize) -> TableAlias {
    let alias = alias.unwrap_or_else(|| alias_of(Ident::new(function)));
    let names = vec![alias.name.clone(), Ident::new("ordinality")];
    with_names(alias, names.into_iter().take(count))
}

/// The alias with names for columns that it has none for.
fn with_names(mut alias: TableAlias, names: impl IntoIterator<Item = Ident>) -> TableAlias {
    let missing = names.into_iter().skip(alias.columns.len());
    let missing = missing.map(|name| TableAliasColumnDef {
        name,
        data_type: None,
    });
    alias.columns.extend(missing);
    alias
}
