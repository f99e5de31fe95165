//! Arithmetic of dates.
//!
//! DataFusion's type of `a - b` is a whole number where the difference is computed, and a duration where its
//! optimizer asks between which values it is: `WHERE a - b > 1` was an internal error. A date with an interval
//! added is a date to it, be the interval one of hours, and a timestamp of whole seconds one of those.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::{change_parts, value_of};

/// Makes it a difference of whole numbers; place it behind the rule that gives types, and before the one that
/// checks arithmetic.
#[derive(Debug)]
pub struct DaysBetween;

impl AnalyzerRule for DaysBetween {
    fn name(&self) -> &str {
        "flashmesh_days_between"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        change_parts(plan, subtracts, |expr, schema| {
            expr.transform_up(|expr| as_numbers(expr, schema))
        })
    }
}

/// Makes moments, to the nanosecond, of dates and coarser moments to which anything else is added than a constant
/// number of days and months, as in PostgreSQL and DuckDB; place it before the rule that gives types.
#[derive(Debug)]
pub struct TimesOfDays;

impl AnalyzerRule for TimesOfDays {
    fn name(&self) -> &str {
        "flashmesh_times_of_days"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_sum = |expr: &Expr| {
            matches!(expr, Expr::BinaryExpr(BinaryExpr { op, .. })
                if matches!(op, Operator::Plus | Operator::Minus))
        };
        change_parts(plan, is_sum, |expr, schema| {
            expr.transform_up(|expr| as_moment(expr, schema))
        })
    }
}

fn as_moment(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr else {
        return Ok(Transformed::no(expr));
    };
    // The right side of a long chain is the short one.
    let zone = |expr: &Expr| match expr.get_type(schema) {
        Ok(DataType::Date32) => Some(None),
        Ok(DataType::Timestamp(unit, zone)) if unit != TimeUnit::Nanosecond => Some(zone),
        _ => None,
    };
    let has_times = |expr: &Expr| {
        if !matches!(expr.get_type(schema), Ok(DataType::Interval(_))) {
            return false;
        }
        match expr.any_column_refs() || expr.is_volatile() {
            true => true,
            false => match value_of(expr) {
                Ok(ScalarValue::IntervalMonthDayNano(Some(by))) => by.nanoseconds != 0,
                Ok(ScalarValue::IntervalMonthDayNano(None)) => false,
                _ => true,
            },
        }
    };
    let moment = |coarse: Box<Expr>, zone| {
        let moment = DataType::Timestamp(TimeUnit::Nanosecond, zone);
        Box::new(cast(*coarse, moment))
    };
    let (left, right, changed) = match op {
        Operator::Plus | Operator::Minus
            if has_times(&right)
                && let Some(zone) = zone(&left) =>
        {
            (moment(left, zone), right, true)
        }
        Operator::Plus
            if has_times(&left)
                && let Some(zone) = zone(&right) =>
        {
            (left, moment(right, zone), true)
        }
        _ => (left, right, false),
    };
    let expr = Expr::BinaryExpr(BinaryExpr { left, op, right });
    Ok(Transformed::new_transformed(expr, changed))
}

fn subtracts(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::Minus,
            ..
        })
    )
}

/// The number of a day, which is known to be one of 32 bits: of two of them the difference fits.
fn days(date: Expr) -> Expr {
    cast(cast(date, DataType::Int32), DataType::Int64)
}

fn as_numbers(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_date = |expr: &Expr| matches!(expr.get_type(schema), Ok(DataType::Date32));
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Minus,
            right,
            // The right side of a long chain is the short one.
        }) if is_date(&right) && is_date(&left) => Transformed::yes(days(*left) - days(*right)),
        other => Transformed::no(other),
    })
}
