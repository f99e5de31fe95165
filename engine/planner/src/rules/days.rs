//! Arithmetic of dates, and comparisons.
//!
//! DataFusion's type of `a - b` is a whole number where the difference is computed, and a duration where its
//! optimizer asks between which values it is: `WHERE a - b > 1` was an internal error. A date with an interval
//! added is a date to it, be the interval one of hours, and a timestamp of whole seconds one of those. Beside a moment a
//! date is one to the nanosecond to it, of which there are none before 1677 and after 2262: '9999-12-31', as which
//! many write "for ever", was an error.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, binary_expr, cast, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::comparisons::compares;
use crate::tree::{change_parts, value_of};
use crate::walk::Walk as _;

/// The last day that begins at a moment to the nanosecond, in days from 1970; before that it is about the same.
const LAST_DAY: i32 = (i64::MAX / 86_400_000_000_000) as i32;

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

/// Compares days with the days of moments; place it before the rule that gives types.
#[derive(Debug)]
pub struct DaysBesideMoments;

impl AnalyzerRule for DaysBesideMoments {
    fn name(&self) -> &str {
        "flashmesh_days_beside_moments"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        change_parts(plan, compares, |expr, schema| {
            expr.transform_up(|expr| {
                let compared = match &expr {
                    Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                        by_day(left, *op, right, schema)
                    }
                    Expr::Between(between) => both_by_day(between, schema),
                    _ => None,
                };
                Ok(compared.map_or_else(|| Transformed::no(expr), Transformed::yes))
            })
        })
    }
}

fn both_by_day(between: &Between, schema: &DFSchema) -> Option<Expr> {
    let compared = [
        (Operator::GtEq, &between.low),
        (Operator::LtEq, &between.high),
    ]
    .map(|(op, bound)| (op, bound, by_day(&between.expr, op, bound, schema)));
    if between.expr.is_volatile() || compared.iter().all(|(.., by_day)| by_day.is_none()) {
        return None;
    }
    let [low, high] = compared.map(|(op, bound, by_day)| {
        let as_it_is = || binary_expr(between.expr.as_ref().clone(), op, bound.as_ref().clone());
        by_day.unwrap_or_else(as_it_is)
    });
    let both = low.and(high);
    Some(match between.negated {
        true => Expr::Not(Box::new(both)),
        false => both,
    })
}

/// A comparison of a day with a moment, in either order; `None` of others, and where both are moments without harm.
fn by_day(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    // What has no type yet is for the planner to say.
    let types = (left.get_type(schema).ok()?, right.get_type(schema).ok()?);
    let (day, op, moment, unit, zone) = match types {
        (DataType::Date32, DataType::Timestamp(unit, zone)) => (left, op, right, unit, zone),
        (DataType::Timestamp(unit, zone), DataType::Date32) => {
            (right, op.swap()?, left, unit, zone)
        }
        _ => return None,
    };
    let is_utc = |zone: &str| matches!(zone, "UTC" | "+00:00");
    if is_moment(day) || zone.as_deref().is_some_and(|zone| !is_utc(zone)) {
        return None;
    }
    let (day, moment) = (day.clone(), moment.clone());
    if unit != TimeUnit::Nanosecond {
        return Some(binary_expr(
            cast(day, DataType::Timestamp(unit, zone)),
            op,
            moment,
        ));
    }
    let of = |moment| cast(moment, DataType::Date32);
    let nanosecond = lit(ScalarValue::new_interval_mdn(0, 0, 1));
    // A day that begins with the moment is no later than it, and later than the one before.
    let before = || of(moment.clone() - nanosecond);
    match op {
        Operator::LtEq => Some(day.lt_eq(of(moment))),
        Operator::Gt => Some(day.gt(of(moment))),
        Operator::Lt => Some(day.lt_eq(before())),
        Operator::GtEq => Some(day.gt(before())),
        Operator::Eq | Operator::NotEq if !moment.is_volatile() && !day.is_volatile() => {
            let begins = day.clone().gt(before());
            let is_same = day.eq(of(moment)).and(begins);
            Some(match op {
                Operator::Eq => is_same,
                _ => Expr::Not(Box::new(is_same)),
            })
        }
        _ => None,
    }
}

/// Whether a day is a constant that begins with a moment to the nanosecond.
fn is_moment(day: &Expr) -> bool {
    if day.any_column_refs() || day.is_volatile() {
        return false;
    }
    match value_of(day) {
        Ok(ScalarValue::Date32(days)) => days.is_none_or(|days| days.abs() <= LAST_DAY),
        _ => false,
    }
}
