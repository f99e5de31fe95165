//! Columns of `JOIN … USING` of two tables.
//!
//! To the planner such a column is one of the two: NULL in rows that the other table alone has, and behind `*`
//! that of the table whose name comes first in the alphabet. In a subquery it is one of the query around it,
//! where that has a column of the name. So its table is written out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, JoinConstraint, JoinOperator, ObjectName, OrderBy, Query, Select, SelectItem,
    TableAlias, TableFactor, VisitMut, VisitorMut, WildcardAdditionalOptions,
};

use super::joins::{constraint_of, normal};
use super::{parsed, refuse};
use crate::error::Result;

/// What the columns of USING are, by name.
type Keys = BTreeMap<String, Expr>;

/// Writes out what columns of USING are in a SELECT.
///
/// # Errors
/// A refusal of NATURAL RIGHT and FULL JOIN, whose columns nobody knows here.
pub(super) fn write_out_keys(select: &mut Select) -> Result<()> {
    let Some(joined) = Joined::of(select)? else {
        return Ok(());
    };
    let outputs = outputs(select);
    let mut projection = Vec::with_capacity(select.projection.len());
    for mut item in std::mem::take(&mut select.projection) {
        match &item {
            SelectItem::Wildcard(options) if is_plain(options) && !joined.is_left_everywhere() => {
                projection.extend(joined.columns()?);
                continue;
            }
            // What is no column any more keeps its name.
            SelectItem::UnnamedExpr(Expr::Identifier(name)) => {
                if let Some(value @ Expr::Function(_)) = joined.keys.get(&normal(name)) {
                    item = SelectItem::ExprWithAlias {
                        expr: value.clone(),
                        alias: name.clone(),
                    };
                }
            }
            _ => {}
        }
        projection.push(item);
    }
    let mut written = Written::new(joined.keys.clone());
    written.visit(&mut projection);
    written.visit(&mut select.selection);
    written.visit(&mut select.group_by);
    // The others name columns of the SELECT first.
    let mut written = Written::new(without(joined.keys, &outputs));
    written.visit(&mut select.having);
    written.visit(&mut select.qualify);
    select.projection = projection;
    Ok(())
}

/// The same for its ORDER BY; before [`write_out_keys`].
///
/// # Errors
/// As [`write_out_keys`].
pub(super) fn write_out_ordered_keys(select: &Select, order_by: &mut OrderBy) -> Result<()> {
    if let Some(joined) = Joined::of(select)? {
        Written::new(without(joined.keys, &outputs(select))).visit(order_by);
    }
    Ok(())
}

fn without(keys: Keys, outputs: &Option<BTreeSet<String>>) -> Keys {
    match outputs {
        Some(outputs) => {
            let others = keys.into_iter().filter(|(name, _)| !outputs.contains(name));
            others.collect()
        }
        None => Keys::new(),
    }
}

/// The names of a SELECT's columns; `None` where not all are known.
fn outputs(select: &Select) -> Option<BTreeSet<String>> {
    let names = select.projection.iter().map(|item| match item {
        SelectItem::ExprWithAlias { alias, .. }
        | SelectItem::UnnamedExpr(Expr::Identifier(alias)) => Some(Some(normal(alias))),
        SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => Some(parts.last().map(normal)),
        SelectItem::UnnamedExpr(_) => Some(None),
        _ => None,
    });
    let names: Option<Vec<_>> = names.collect();
    Some(names?.into_iter().flatten().collect())
}

fn is_plain(options: &WildcardAdditionalOptions) -> bool {
    *options
        == WildcardAdditionalOptions {
            wildcard_token: options.wildcard_token.clone(),
            ..WildcardAdditionalOptions::default()
        }
}

/// A FROM of two tables that are joined by USING.
struct Joined {
    left: String,
    right: String,
    names: Vec<Ident>,
    keys: Keys,
    /// Whether rows of the right table alone are there, where the left one's columns are not the values.
    keeps_right: bool,
}

impl Joined {
    fn of(select: &Select) -> Result<Option<Self>> {
        for join in select.from.iter().flat_map(|table| &table.joins) {
            let constraint = constraint_of(&join.join_operator);
            if constraint == Some(&JoinConstraint::Natural) && keeps_right(&join.join_operator) {
                return refuse(
                    "NATURAL RIGHT and FULL JOIN",
                    "write the columns, as in RIGHT JOIN … USING (id)",
                );
            }
        }
        let [table] = select.from.as_slice() else {
            return Ok(None);
        };
        let [join] = table.joins.as_slice() else {
            return Ok(None);
        };
        let Some(JoinConstraint::Using(columns)) = constraint_of(&join.join_operator) else {
            return Ok(None);
        };
        let (Some(left), Some(right)) = (name_of(&table.relation), name_of(&join.relation)) else {
            return Ok(None);
        };
        let is_full = matches!(join.join_operator, JoinOperator::FullOuter(_));
        let keeps_right = keeps_right(&join.join_operator);
        let has_both = keeps_right
            || matches!(
                join.join_operator,
                JoinOperator::Join(_)
                    | JoinOperator::Inner(_)
                    | JoinOperator::Left(_)
                    | JoinOperator::LeftOuter(_)
            );
        if !has_both {
            return Ok(None);
        }
        let mut names = Vec::with_capacity(columns.len());
        let mut keys = Keys::new();
        for column in columns {
            let Some(name) = column.0.last().and_then(|part| part.as_ident()) else {
                return Ok(None);
            };
            let value = match (is_full, keeps_right) {
                (true, _) => format!("coalesce({left}.{name}, {right}.{name})"),
                (false, true) => format!("{right}.{name}"),
                (false, false) => format!("{left}.{name}"),
            };
            keys.insert(normal(name), parsed(&value, |parser| parser.parse_expr())?);
            names.push(name.clone());
        }
        Ok(Some(Self {
            left,
            right,
            names,
            keys,
            keeps_right,
        }))
    }

    /// Whether the planner's `*` gives the columns of the left table, and those are the values.
    fn is_left_everywhere(&self) -> bool {
        !self.keeps_right && self.left.to_lowercase() < self.right.to_lowercase()
    }

    /// All columns: those of the left table, with the values of the keys, then the others of the right one.
    fn columns(&self) -> Result<Vec<SelectItem>> {
        let names = self.names.iter().map(ToString::to_string);
        let names = names.collect::<Vec<_>>().join(", ");
        let values = self.names.iter().map(|name| {
            let value = &self.keys[&normal(name)];
            format!("{value} AS {name}")
        });
        let values = values.collect::<Vec<_>>().join(", ");
        let replaced = match self.keeps_right {
            true => format!(" REPLACE ({values})"),
            false => String::new(),
        };
        let text = format!(
            "{}.*{replaced}, {}.* EXCLUDE ({names})",
            self.left, self.right
        );
        parsed(&text, |parser| parser.parse_projection())
    }
}

fn keeps_right(operator: &JoinOperator) -> bool {
    matches!(
        operator,
        JoinOperator::Right(_) | JoinOperator::RightOuter(_) | JoinOperator::FullOuter(_)
    )
}

/// What stands before a table's columns; `None` for a function and for a file.
fn name_of(factor: &TableFactor) -> Option<String> {
    let of_alias = |alias: &TableAlias| alias.name.to_string();
    match factor {
        TableFactor::Table {
            alias: Some(alias), ..
        }
        | TableFactor::Derived {
            alias: Some(alias), ..
        } => Some(of_alias(alias)),
        TableFactor::Table {
            name: ObjectName(parts),
            alias: None,
            args: None,
            sample: None,
            ..
        } => {
            let parts = parts.iter().map(|part| {
                let part = part.as_ident()?;
                (part.quote_style != Some('\'')).then(|| part.to_string())
            });
            Some(parts.collect::<Option<Vec<_>>>()?.join("."))
        }
        _ => None,
    }
}

/// Puts values in the place of names.
struct Written {
    keys: Keys,
    /// Of queries within: their names are their own.
    depth: usize,
}

impl Written {
    fn new(keys: Keys) -> Self {
        Self { keys, depth: 0 }
    }

    fn visit(&mut self, part: &mut impl VisitMut) {
        // It goes to the end.
        let _ = part.visit(self);
    }
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
            && let Some(value) = self.keys.get(&normal(name))
        {
            *expr = value.clone();
        }
        ControlFlow::Continue(())
    }
}
