//! Comparisons of rows, `(a, b) < (1, 2)`, of which the planner makes comparisons of structs: there NULL is a
//! value like others, and the least one.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Value};

/// Says such a comparison by its fields: `a < 1 OR a = 1 AND b < 2`.
pub(super) fn by_fields(expr: &mut Expr) {
    let Expr::BinaryOp { left, op, right } = expr else {
        return;
    };
    let (Expr::Tuple(left), Expr::Tuple(right)) = (bare(left), bare(right)) else {
        return;
    };
    if left.is_empty() || left.len() != right.len() {
        return;
    }
    let fields: Vec<_> = left.iter().zip(right.iter()).collect();
    let Some(compared) = compared(op, &fields) else {
        return;
    };
    *expr = Expr::Nested(Box::new(compared));
}

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => bare(inner),
        other => other,
    }
}

/// `None` of other operators.
fn compared(op: &BinaryOperator, fields: &[(&Expr, &Expr)]) -> Option<Expr> {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    let each = |op: BinaryOperator, by: BinaryOperator| {
        let tests = fields.iter().map(|field| test(field, op.clone()));
        tests.reduce(|all, one| joined(all, by.clone(), one))
    };
    let strict = match op {
        Eq => return each(Eq, And),
        NotEq => return each(NotEq, Or),
        Lt | LtEq => Lt,
        Gt | GtEq => Gt,
        _ => return None,
    };
    let (last, before) = fields.split_last()?;
    let rest = test(last, op.clone());
    Some(before.iter().rev().fold(rest, |rest, field| {
        let tied = joined(test(field, Eq), And, rest);
        joined(test(field, strict.clone()), Or, tied)
    }))
}

fn test((left, right): &(&Expr, &Expr), op: BinaryOperator) -> Expr {
    joined((*left).clone(), op, (*right).clone())
}

fn joined(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    let nested = |expr| match expr {
        plain @ (Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Nested(_)) => plain,
        Expr::Value(value) if !matches!(value.value, Value::Placeholder(_)) => Expr::Value(value),
        other => Expr::Nested(Box::new(other)),
    };
    Expr::BinaryOp {
        left: Box::new(nested(left)),
        op,
        right: Box::new(nested(right)),
    }
}
