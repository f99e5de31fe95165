//! `x = ANY (array)`, which the planner makes FALSE where it is NULL: x is no element and one of the
//! elements is NULL.

use datafusion::sql::sqlparser::ast::{BinaryOperator, Expr, Ident, Value};

use super::call;

/// Adds to such a test when it is NULL: `x = ANY (a) OR array_position(a, NULL) IS NOT NULL AND NULL`. For a
/// constant array that is decided while the query is planned.
pub(super) fn with_nulls(expr: &mut Expr) {
    let Expr::AnyOp {
        compare_op: BinaryOperator::Eq,
        right: array,
        ..
    } = expr
    else {
        return;
    };
    if matches!(array.as_ref(), Expr::Subquery(_)) {
        return;
    }
    let null = || Expr::value(Value::Null);
    let args = vec![array.as_ref().clone(), null()];
    let place = call(Ident::new("array_position"), args);
    let has_null = Expr::BinaryOp {
        left: Box::new(Expr::IsNotNull(Box::new(place))),
        op: BinaryOperator::And,
        right: Box::new(null()),
    };
    let test = std::mem::replace(expr, null());
    *expr = Expr::Nested(Box::new(Expr::BinaryOp {
        left: Box::new(test),
        op: BinaryOperator::Or,
        right: Box::new(Expr::Nested(Box::new(has_null))),
    }));
}
