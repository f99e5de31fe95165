//! GROUP BY with WITH ROLLUP and WITH CUBE behind it, and positions within sets of groups.

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
    for expr in expressions {
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
