//! GROUP BY with WITH ROLLUP and WITH CUBE behind it, sets of groups whose items are several columns, and positions
//! within such sets.

use datafusion::sql::sqlparser::ast::{Expr, GroupByExpr, GroupByWithModifier, SelectItem, Value};

use super::refuse;
use crate::error::Result;

/// `GROUP BY a, b WITH ROLLUP` is `GROUP BY ROLLUP (a, b)`; a position within such a list is the
/// expression that stands there, as it is elsewhere in GROUP BY.
pub(super) fn correct_groups(group_by: &mut GroupByExpr, projection: &[SelectItem]) -> Result<()> {
    let expressions = match group_by {
        GroupByExpr::All(modifiers) => {
            return match modifiers.first() {
                Some(modifier) => refuse(&format!("GROUP BY ALL {modifier}"), "name the groups"),
                None => Ok(()),
            };
        }
        GroupByExpr::Expressions(expressions, modifiers) => {
            let modifiers = std::mem::take(modifiers);
            if modifiers.len() > 1 {
                return refuse("more than one WITH behind GROUP BY", "");
            }
            for modifier in modifiers {
                let mut sets = || expressions.drain(..).map(|expr| vec![expr]).collect();
                let grouped = match modifier {
                    GroupByWithModifier::Rollup => Expr::Rollup(sets()),
                    GroupByWithModifier::Cube => Expr::Cube(sets()),
                    GroupByWithModifier::Totals => {
                        return refuse("WITH TOTALS", "write WITH ROLLUP");
                    }
                    GroupByWithModifier::GroupingSets(_) => {
                        return refuse(
                            "GROUPING SETS behind the groups",
                            "write GROUP BY GROUPING SETS (…)",
                        );
                    }
                };
                expressions.push(grouped);
            }
            expressions
        }
    };
    // `(a, b)` is `a, b`; of nothing, it is the group of all rows.
    let spread_rows = expressions.drain(..).flat_map(|expr| match expr {
        Expr::Tuple(columns) if !columns.is_empty() => columns,
        Expr::Tuple(_) => vec![Expr::GroupingSets(vec![vec![]])],
        other => vec![other],
    });
    *expressions = spread_rows.collect();
    for expr in expressions.iter_mut() {
        spread(expr)?;
        if let Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) = expr {
            for expr in sets.iter_mut().flatten() {
                if let Some(digits) = number(expr) {
                    *expr = at_position(digits, projection)?.clone();
                }
            }
        }
    }
    Ok(())
}

/// `ROLLUP ((a, b), c)` by its sets: the planner takes such items for one column each.
fn spread(expr: &mut Expr) -> Result<()> {
    let is_row = |item: &Vec<Expr>| item.len() != 1;
    let sets: Vec<Vec<Expr>> = match &*expr {
        Expr::Rollup(items) if items.iter().any(is_row) => {
            let lengths = (0..=items.len()).rev();
            lengths.map(|length| items[..length].concat()).collect()
        }
        Expr::Cube(items) if items.iter().any(is_row) => {
            let Some(count) = 1_u32
                .checked_shl(items.len() as u32)
                .filter(|count| *count <= SETS_MAX)
            else {
                return refuse(&format!("CUBE of {} items", items.len()), "");
            };
            let with = |set: u32| {
                let chosen = items.iter().enumerate();
                let chosen = chosen.filter(|(place, _)| set >> (items.len() - 1 - place) & 1 == 1);
                chosen.flat_map(|(_, item)| item.clone()).collect()
            };
            (0..count).rev().map(with).collect()
        }
        _ => return Ok(()),
    };
    *expr = Expr::GroupingSets(sets);
    Ok(())
}

/// Sets of groups that a CUBE of rows may have.
const SETS_MAX: u32 = 1 << 12;

fn number(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(digits, _) => Some(digits),
            _ => None,
        },
        _ => None,
    }
}

/// The expression of the SELECT list at a position.
fn at_position<'a>(digits: &str, projection: &'a [SelectItem]) -> Result<&'a Expr> {
    let place = digits.parse::<usize>().ok();
    let place = place.and_then(|place| place.checked_sub(1));
    // What stands behind a wildcard has no position that the text tells.
    let known = projection.iter().map_while(|item| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    });
    let found = place.and_then(|place| known.into_iter().nth(place));
    match found.filter(|expr| number(expr).is_none()) {
        Some(expr) => Ok(expr),
        None => refuse(
            &format!("position {digits} among sets of groups"),
            "write the expression",
        ),
    }
}
