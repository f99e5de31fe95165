//! Orders that the planner refuses or does not know.
//!
//! `SELECT sum(a) AS a … ORDER BY sum(a)`, or with DISTINCT: such a key is a second column to it, or none of the
//! result; the number of its column is one. `SELECT lower(t.name) AS name … ORDER BY t.name` has two columns of that
//! name, and rows that `unnest` makes of lists are sorted by what is selected alone: what is sorted by is selected,
//! too, and left out around that. `SELECT DISTINCT ON (a) … ORDER BY b`: it takes an order that begins with `a` alone;
//! others are those of a window, whose first rows are kept.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, Ident, OrderBy, OrderByExpr, OrderByKind, Select, SelectItem, SetExpr,
    TableFactor, Value,
};

use super::joins::normal;
use super::{argument_of_unnest, arguments_of_columns, parsed, query_of_body};
use crate::error::Result;
use crate::walk::visit_expressions;

/// Writes keys that are items of a SELECT as their places.
pub(super) fn by_places(select: &Select, order_by: &mut OrderBy) {
    let OrderByKind::Expressions(keys) = &mut order_by.kind else {
        return;
    };
    if matches!(select.distinct, Some(Distinct::On(_))) {
        return;
    }
    for key in keys {
        let names_column = matches!(
            key.expr,
            Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_)
        );
        if let Some(place) = place_of(&key.expr, select).filter(|_| !names_column) {
            key.expr = Expr::value(Value::Number(place.to_string(), false));
        }
    }
}

/// What a key is called that is selected to be sorted by, with its place.
const KEY: &str = "flashmesh:order";

/// Selects the keys of an order, and leaves them out around that, where the planner would not find them: beside an
/// alias of their name, and beside lists that become rows.
///
/// # Errors
/// None that a user can bring about.
pub(super) fn select_keys(body: &mut SetExpr, order_by: &mut OrderBy) -> Result<()> {
    let SetExpr::Select(select) = body else {
        return Ok(());
    };
    let OrderByKind::Expressions(keys) = &mut order_by.kind else {
        return Ok(());
    };
    let items = &select.projection;
    let meanings = keys.iter().map(|key| Meaning::of(&key.expr, items));
    let meanings: Vec<_> = meanings.collect();
    let is_refused = meanings.contains(&Meaning::Hidden)
        || meanings.contains(&Meaning::Column) && items.iter().any(makes_rows);
    if select.distinct.is_some()
        || select.into.is_some()
        || !is_refused
        || meanings.contains(&Meaning::Both)
    {
        return Ok(());
    }
    let (mut keys_selected, mut names) = (Vec::new(), Vec::new());
    for (place, (key, meaning)) in keys.iter_mut().zip(meanings).enumerate() {
        if meaning == Meaning::Output {
            continue;
        }
        let alias = Ident::with_quote('"', format!("{KEY}:{place}"));
        let by = Expr::Identifier(alias.clone());
        let expr = std::mem::replace(&mut key.expr, by);
        names.push(alias.to_string());
        keys_selected.push(SelectItem::ExprWithAlias { expr, alias });
    }
    let around = format!("SELECT * EXCLUDE ({}) FROM nothing", names.join(", "));
    let around = parsed(&around, |parser| parser.parse_select())?;
    select.projection.extend(keys_selected);
    let inner = std::mem::replace(body, SetExpr::Select(Box::new(around)));
    if let SetExpr::Select(around) = body
        && let Some(from) = around.from.first_mut()
    {
        from.relation = TableFactor::Derived {
            lateral: false,
            subquery: Box::new(query_of_body(inner)),
            alias: None,
            sample: None,
        };
    }
    Ok(())
}

/// What a key of an order is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// Columns of the result.
    Output,
    /// Columns of the tables, whose names others of the result have.
    Hidden,
    /// Columns of the tables.
    Column,
    Both,
}

impl Meaning {
    fn of(key: &Expr, items: &[SelectItem]) -> Self {
        if is_output(key, items) {
            return Self::Output;
        }
        let is_alone = matches!(key, Expr::CompoundIdentifier(_));
        let (mut has_output, mut has_hidden, mut has_column) = (false, false, false);
        let _ = visit_expressions(key, |part| {
            match part {
                Expr::Identifier(name) => {
                    // In an expression that is a column's name, and an alias where no column has it.
                    let of_itself = items.iter().any(|item| {
                        matches!(item, SelectItem::ExprWithAlias { expr, alias }
                            if normal(alias) == normal(name)
                                && !matches!(expr, Expr::Identifier(_))
                                && names(expr, name))
                    });
                    let is_alias = items.iter().any(|item| {
                        matches!(item, SelectItem::ExprWithAlias { alias, .. }
                            if normal(alias) == normal(name))
                    });
                    has_hidden |= of_itself;
                    has_output |= is_alias && !of_itself;
                    has_column |= !is_alias;
                }
                Expr::CompoundIdentifier(parts) => {
                    has_column = true;
                    has_hidden |= is_alone
                        && parts.last().is_some_and(|name| {
                            items.iter().any(|item| {
                                matches!(item, SelectItem::ExprWithAlias { expr, alias }
                                    if normal(alias) == normal(name) && expr != key)
                            })
                        });
                }
                _ => {}
            }
            ControlFlow::<()>::Continue(())
        });
        match (has_output, has_hidden, has_column) {
            (true, false, false) => Self::Output,
            (true, ..) => Self::Both,
            (false, true, _) => Self::Hidden,
            (false, false, _) => Self::Column,
        }
    }
}

/// Whether a column without its table is called so in an expression.
fn names(expr: &Expr, called: &Ident) -> bool {
    let found = visit_expressions(expr, |part| match part {
        Expr::Identifier(name) if normal(name) == normal(called) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// Whether an item makes rows of lists.
fn makes_rows(item: &SelectItem) -> bool {
    match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
            argument_of_unnest(expr).is_some()
        }
        _ => false,
    }
}

/// Whether a key is a column of the result, by its number or its name.
fn is_output(key: &Expr, items: &[SelectItem]) -> bool {
    match key {
        Expr::Value(_) => true,
        Expr::Identifier(name) => items.iter().any(|item| match item {
            SelectItem::ExprWithAlias { alias, .. }
            | SelectItem::UnnamedExpr(Expr::Identifier(alias)) => normal(alias) == normal(name),
            SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
                parts.last().map(normal) == Some(normal(name))
            }
            // Of those that it stands for, perhaps.
            SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..) => true,
            _ => false,
        }),
        _ => false,
    }
}

/// Keeps the first rows of DISTINCT ON by an order that does not begin with its keys.
///
/// # Errors
/// None that a user can bring about.
pub(super) fn first_rows(select: &mut Select, order_by: &OrderBy) -> Result<()> {
    let OrderByKind::Expressions(order) = &order_by.kind else {
        return Ok(());
    };
    let Some(Distinct::On(keys)) = &mut select.distinct else {
        return Ok(());
    };
    if select.projection.iter().any(makes_several) {
        return Ok(());
    }
    if order.len() >= keys.len() {
        let first = &order[..keys.len()];
        let is_first = |key: &Expr| first.iter().any(|by| by.expr == *key);
        if first.iter().all(|by| keys.contains(&by.expr)) && keys.iter().all(is_first) {
            // The same ones; the planner wants them in the order's order.
            *keys = first.iter().map(|by| by.expr.clone()).collect();
            return Ok(());
        }
    }
    if select.qualify.is_some() {
        return Ok(());
    }
    let items = &select.projection;
    let keys = keys.iter().map(|key| meant(key, items));
    let order = order.iter().map(|by| {
        Some(OrderByExpr {
            expr: meant(&by.expr, items)?,
            ..by.clone()
        })
    });
    // Behind a wildcard nobody knows here what a number stands for.
    let (Some(keys), Some(order)) = (
        keys.collect::<Option<Vec<_>>>(),
        order.collect::<Option<Vec<_>>>(),
    ) else {
        return Ok(());
    };
    let keys: Vec<_> = keys.iter().map(ToString::to_string).collect();
    let order: Vec<_> = order.iter().map(ToString::to_string).collect();
    let first = format!(
        "row_number() OVER (PARTITION BY {} ORDER BY {}) = 1",
        keys.join(", "),
        order.join(", ")
    );
    select.distinct = None;
    select.qualify = Some(parsed(&first, |parser| parser.parse_expr())?);
    Ok(())
}

/// What a key of an order stands for: an item by its number or its name, or itself.
fn meant(key: &Expr, items: &[SelectItem]) -> Option<Expr> {
    match key {
        Expr::Value(value) => {
            let Value::Number(place, _) = &value.value else {
                return Some(key.clone());
            };
            let place = place.parse::<usize>().ok()?.checked_sub(1)?;
            let before = items.get(..=place)?;
            let mut before = before.iter().map(|item| match item {
                SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => {
                    Some(expr.clone())
                }
                _ => None,
            });
            before.try_fold(None, |_, expr| expr.map(Some))?
        }
        Expr::Identifier(name) => {
            let named = items.iter().find_map(|item| match item {
                SelectItem::ExprWithAlias { expr, alias } if normal(alias) == normal(name) => {
                    Some(expr)
                }
                _ => None,
            });
            Some(named.unwrap_or(key).clone())
        }
        other => Some(other.clone()),
    }
}

/// The place of an item, from 1; `None` also behind what stands for who knows how many.
fn place_of(expr: &Expr, select: &Select) -> Option<usize> {
    for (place, item) in select.projection.iter().enumerate() {
        match item {
            item if makes_several(item) => return None,
            SelectItem::UnnamedExpr(item) | SelectItem::ExprWithAlias { expr: item, .. } => {
                if item == expr {
                    return Some(place + 1);
                }
            }
            _ => return None,
        }
    }
    None
}

/// Whether an item makes rows of lists, is the fields of a struct, or stands for several columns.
fn makes_several(item: &SelectItem) -> bool {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return false;
    };
    let found = visit_expressions(expr, |part| {
        match argument_of_unnest(part).is_some() || arguments_of_columns(part).is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    found.is_break()
}
