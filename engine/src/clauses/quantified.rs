//! `x = ANY (array)`, which the planner makes FALSE where it is NULL: x is no element and one of the
//! elements is NULL.

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
    FunctionArguments, Ident, ObjectName, Value,
};

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
    let argument = |expr: Expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr));
    let place = Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new("array_position")]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![argument(array.as_ref().clone()), argument(null())],
            clauses: vec![],
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: vec![],
    });
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
