//! Columns of `JOIN … USING`.
//!
//! To the planner such a column is that of the left table, which is NULL in rows that RIGHT and FULL JOIN add;
//! and in a subquery one of the query around it, where that has a column of the name. So its table is written
//! out.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, JoinConstraint, JoinOperator, OrderBy, Query, ReplaceSelectElement,
    ReplaceSelectItem, Select, SelectItem, TableFactor, TableWithJoins, VisitMut as _, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::joins::{constraint_of, normal};
use super::refuse;
use crate::error::Result;

/// What each column of USING in a FROM is, and whether that is the left table's.
type Keys = HashMap<String, Key>;

struct Key {
    name: Ident,
    value: Expr,
    is_left: bool,
}

/// Writes out what columns of USING are in a SELECT.
///
/// # Errors
/// A refusal, with the way out, where tables have no names or joins follow that the planner would make of
/// another column.
pub(super) fn write_out_keys(select: &mut Select) -> Result<()> {
    let keys = keys_of(&select.from)?;
    if keys.is_empty() {
        return Ok(());
    }
    for item in &mut select.projection {
        match item {
            // What is no column any more keeps its name.
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
                let key = keys.get(&normal(name));
                let key = key.filter(|key| !matches!(key.value, Expr::CompoundIdentifier(_)));
                if let Some(key) = key {
                    let (expr, alias) = (key.value.clone(), name.clone());
                    *item = SelectItem::ExprWithAlias { expr, alias };
                }
            }
            SelectItem::Wildcard(options) => {
                let others = keys.values().filter(|key| !key.is_left);
                let others = others.map(|key| {
                    Box::new(ReplaceSelectElement {
                        expr: key.value.clone(),
                        column_name: key.name.clone(),
                        as_keyword: true,
                    })
                });
                let mut others: Vec<_> = others.collect();
                if let Some(replaced) = &options.opt_replace {
                    let own = |name: &Ident| {
                        let mut own = replaced.items.iter();
                        own.any(|item| normal(&item.column_name) == normal(name))
                    };
                    others.retain(|item| !own(&item.column_name));
                    others.extend(replaced.items.iter().cloned());
                }
                others.sort_by_key(|item| normal(&item.column_name));
                let items = others;
                options.opt_replace = (!items.is_empty()).then_some(ReplaceSelectItem { items });
            }
            _ => {}
        }
    }
    let _ = select.visit(&mut Written { keys, depth: 0 });
    Ok(())
}

/// The same for its ORDER BY, which names columns of the SELECT first; before [`write_out_keys`].
///
/// # Errors
/// As [`write_out_keys`].
pub(super) fn write_out_ordered_keys(select: &Select, order_by: &mut OrderBy) -> Result<()> {
    let mut keys = keys_of(&select.from)?;
    for item in &select.projection {
        match item {
            SelectItem::ExprWithAlias { alias, .. }
            | SelectItem::UnnamedExpr(Expr::Identifier(alias)) => {
                keys.remove(&normal(alias));
            }
            SelectItem::Wildcard(_) => keys.clear(),
            _ => {}
        }
    }
    let _ = order_by.visit(&mut Written { keys, depth: 0 });
    Ok(())
}

struct Written {
    keys: Keys,
    /// Of queries within: their names are their own.
    depth: usize,
}

impl VisitorMut for Written {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.depth == 0
            && let Expr::Identifier(name) = expr
            && let Some(key) = self.keys.get(&normal(name))
        {
            *expr = key.value.clone();
        }
        ControlFlow::Continue(())
    }
}

fn keys_of(from: &[TableWithJoins]) -> Result<Keys> {
    let mut keys = Keys::new();
    for table in from {
        add_keys(table, &mut keys)?;
    }
    Ok(keys)
}

fn add_keys(table: &TableWithJoins, keys: &mut Keys) -> Result<()> {
    let mut own: Keys = Keys::new();
    for (place, join) in table.joins.iter().enumerate() {
        let keeps_right = matches!(
            join.join_operator,
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) | JoinOperator::FullOuter(_)
        );
        let names = match constraint_of(&join.join_operator) {
            Some(JoinConstraint::Using(names)) => names,
            Some(JoinConstraint::Natural) if keeps_right => {
                return refuse(
                    "NATURAL RIGHT and FULL JOIN",
                    "write the columns, as in RIGHT JOIN … USING (id)",
                );
            }
            _ => continue,
        };
        let has_one_side = matches!(
            join.join_operator,
            JoinOperator::RightSemi(_) | JoinOperator::RightAnti(_)
        );
        for name in names {
            let Some(name) = name.0.last().and_then(|part| part.as_ident()) else {
                continue;
            };
            let known = own.get(&normal(name));
            if known.is_some_and(|known| !known.is_left) || has_one_side {
                return refuse(
                    &format!(
                        "USING ({name}) behind or in a join that keeps rows of the right side"
                    ),
                    "write ON with the names of the tables",
                );
            }
            let left = match (known, place) {
                (Some(known), _) => Some(known.value.clone()),
                (None, 0) => name_of(&table.relation).map(|table| column(table, name)),
                // It may be a column of any table before.
                (None, _) => None,
            };
            let right = name_of(&join.relation).map(|table| column(table, name));
            let value = match (&join.join_operator, left, right) {
                (JoinOperator::Right(_) | JoinOperator::RightOuter(_), _, Some(right)) => right,
                (JoinOperator::FullOuter(_), Some(left), Some(right)) => either(&left, &right)?,
                (_, Some(left), _) if !keeps_right => left,
                _ if keeps_right => {
                    return refuse(
                        &format!(
                            "USING ({name}) of a RIGHT or FULL JOIN with a table that has no name here"
                        ),
                        "write ON, or give the tables names with AS",
                    );
                }
                _ => continue,
            };
            let key = Key {
                name: name.clone(),
                value,
                is_left: !keeps_right,
            };
            own.insert(normal(name), key);
        }
    }
    // Of two that have the same the planner says that it is ambiguous.
    for (name, key) in own {
        if keys.remove(&name).is_none() {
            keys.insert(name, key);
        }
    }
    Ok(())
}

fn name_of(factor: &TableFactor) -> Option<&Ident> {
    match factor {
        TableFactor::Table {
            name, alias: None, ..
        } => name.0.last().and_then(|part| part.as_ident()),
        TableFactor::Table { alias, .. }
        | TableFactor::Derived { alias, .. }
        | TableFactor::TableFunction { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. }
        | TableFactor::NestedJoin { alias, .. } => alias.as_ref().map(|alias| &alias.name),
        _ => None,
    }
}

fn column(table: &Ident, name: &Ident) -> Expr {
    Expr::CompoundIdentifier(vec![table.clone(), name.clone()])
}

/// The one of two columns that is not NULL.
fn either(one: &Expr, other: &Expr) -> Result<Expr> {
    let text = format!("coalesce({one}, {other})");
    let parsed = Parser::new(&GenericDialect).try_with_sql(&text);
    let parsed = parsed.and_then(|mut parser| parser.parse_expr());
    Ok(parsed.map_err(DataFusionError::from)?)
}
