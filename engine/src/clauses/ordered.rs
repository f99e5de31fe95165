//! `SELECT DISTINCT abs(a) … ORDER BY abs(a)`: to the planner such a key is no column of the result, and is refused;
//! the number of its column is one.

use datafusion::sql::sqlparser::ast::{
    Distinct, Expr, OrderBy, OrderByKind, Select, SelectItem, Value,
};

/// Writes keys that are items of a SELECT DISTINCT as their places.
pub(super) fn by_places(select: &Select, order_by: &mut OrderBy) {
    let (Some(Distinct::Distinct), OrderByKind::Expressions(keys)) =
        (&select.distinct, &mut order_by.kind)
    else {
        return;
    };
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

/// The place of an item, from 1; `None` also behind a wildcard, which stands for who knows how many.
fn place_of(expr: &Expr, select: &Select) -> Option<usize> {
    for (place, item) in select.projection.iter().enumerate() {
        match item {
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
