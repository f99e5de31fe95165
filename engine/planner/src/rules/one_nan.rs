//! Quotients that are no number.
//!
//! IEEE 754 leaves the sign of a NaN open, x86 sets it for 0 / 0, and Arrow's order of floats, by which rows are
//! sorted, grouped and joined, has such a NaN before all numbers: beside the one behind them it would be another
//! value. Here, as in PostgreSQL and DuckDB, there is one, which is greater than all numbers.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions::math::nanvl;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::{change_once, change_parts};

/// The rule; place it behind those that give types.
#[derive(Debug)]
pub struct OneNan;

impl AnalyzerRule for OneNan {
    fn name(&self) -> &str {
        "flashmesh_one_nan"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        change_parts(plan, may_be_none, |expr, schema| {
            change_once(expr, is_named, |expr| named(expr, schema))
        })
    }
}

/// Whether an operation makes of numbers what is none, or changes the sign of that.
fn may_be_none(expr: &Expr) -> bool {
    match expr {
        Expr::Negative(value) => !matches!(value.as_ref(), Expr::Literal(..)),
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::Divide | Operator::Modulo,
            right,
            ..
        }) => !matches!(right.as_ref(), Expr::Literal(by, _) if is_number(by)),
        _ => false,
    }
}

/// By which a finite number can be divided.
fn is_number(by: &ScalarValue) -> bool {
    let float = |value: f64| value.is_finite() && value != 0.0;
    match by {
        ScalarValue::Float64(value) => value.is_some_and(float),
        ScalarValue::Float32(value) => value.is_some_and(|value| float(value.into())),
        _ => false,
    }
}

/// Whether that is an operation that has been given its NaN.
fn is_named(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call)
        if call.func == nanvl() && call.args.first().is_some_and(may_be_none))
}

/// Gives such an operation the NaN that it may have.
fn named(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !may_be_none(&expr) {
        return Ok(Transformed::no(expr));
    }
    let (nan, minus) = match expr.get_type(schema)? {
        DataType::Float64 => (lit(f64::NAN), lit(-1.0)),
        DataType::Float32 => (lit(f32::NAN), lit(-1.0_f32)),
        _ => return Ok(Transformed::no(expr)),
    };
    Ok(Transformed::yes(match expr {
        // A product has the NaN that goes into it, and the store knows products.
        Expr::Negative(value) => *value * minus,
        quotient => nanvl().call(vec![quotient, nan]),
    }))
}
