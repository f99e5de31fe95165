//! Casts of which DataFusion believes what does not hold.
//!
//! It takes a cast off a column that is compared with a constant, also where several values become one:
//! `d::INT = 1` was `d = 1`, without 1.25, and `try_cast(big AS INT) = 1` FALSE, not NULL, where `big` does not
//! fit. A constant it cuts to the unit of a column of timestamps: one of seconds was equal to half past one. And it
//! casts the least and the greatest value of a column to have those of the cast column: of 3 and 11 as texts, `'3'`
//! to `'11'`, where filters above them fail. Here it does not see what is cast.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::{Alias, InList};
use datafusion::logical_expr::{
    Between, BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Volatility,
};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};
use flashmesh_pushdown::types::is_widening_cast;

use super::comparisons::compares;
use crate::hidden::{as_it_is, is_as_it_is};
use crate::tree::{cast_of, change_once, change_parts, map_named_expressions, value_of};
use crate::walk::Walk as _;

/// Keeps casts that lose something, and those to a finer unit than a constant beside them has; place it behind the
/// rule that gives types.
#[derive(Debug)]
pub struct LossyCasts;

impl AnalyzerRule for LossyCasts {
    fn name(&self) -> &str {
        "flashmesh_lossy_casts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_cast = |expr: &Expr| cast_of(expr).is_some();
        // Not in comparisons alone: filters come to what is computed below them.
        change_parts(plan, is_cast, |expr, schema| {
            change_once(expr, is_done, |expr| match loses(&expr, schema)? {
                true => Ok(Transformed::yes(as_it_is(expr))),
                false => {
                    beside_finer(expr, schema).transform_data(|expr| beside_columns(expr, schema))
                }
            })
        })
    }
}

fn is_done(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if is_as_it_is(&call.func))
}

/// A comparison of columns in which days and coarser units of timestamps and whole numbers of floats are as they are:
/// carried back to what is cast, the interval of the other side is wider than what that has, and the estimate of how
/// many rows are left fails.
fn beside_columns(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let values = compared(&mut expr);
    let of_columns = values.iter().filter(|value| value.any_column_refs());
    if of_columns.count() < 2 {
        return Ok(Transformed::no(expr));
    }
    let mut has_changed = false;
    for value in values {
        let hidden = change_once(std::mem::take(value), is_done, |part| {
            let is_cut = match cast_of(&part) {
                Some((of, DataType::Date32 | DataType::Date64)) => {
                    matches!(of.get_type(schema)?, DataType::Timestamp(..))
                }
                Some((of, DataType::Timestamp(to, _))) => {
                    matches!(of.get_type(schema)?, DataType::Timestamp(from, _) if from > *to)
                }
                Some((of, to)) if decimals(to).is_some() => of.get_type(schema)?.is_floating(),
                _ => false,
            };
            Ok(match is_cut {
                true => Transformed::yes(as_it_is(part)),
                false => Transformed::no(part),
            })
        })?;
        has_changed |= hidden.transformed;
        *value = hidden.data;
    }
    Ok(Transformed::new_transformed(expr, has_changed))
}

/// A comparison in which timestamps that are cast to a finer unit are as they are, where a constant has parts of it.
fn beside_finer(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let values = compared(&mut expr);
    let finer = values.iter().enumerate().map(|(place, value)| {
        let others = values.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != place);
        unit_below(value, schema)
            .is_some_and(|unit| others.any(|(_, other)| !is_of_unit(other, unit)))
    });
    let finer: Vec<bool> = finer.collect();
    for (value, _) in values.into_iter().zip(&finer).filter(|(_, is)| **is) {
        *value = as_it_is(std::mem::take(value));
    }
    Transformed::new_transformed(expr, finer.contains(&true))
}

/// What a comparison compares.
pub(super) fn compared(expr: &mut Expr) -> Vec<&mut Expr> {
    let is_comparison = compares(expr);
    match expr {
        Expr::InList(InList { expr, list, .. }) => {
            std::iter::once(expr.as_mut()).chain(list).collect()
        }
        Expr::Between(Between {
            expr, low, high, ..
        }) => vec![expr, low, high],
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) if is_comparison => vec![left, right],
        _ => vec![],
    }
}

/// The coarsest unit of a timestamp that is cast to one of a finer unit, by several casts maybe.
fn unit_below(expr: &Expr, schema: &DFSchema) -> Option<TimeUnit> {
    let (mut value, DataType::Timestamp(to, _)) = cast_of(expr)? else {
        return None;
    };
    let mut coarsest = *to;
    while let Ok(DataType::Timestamp(from, _)) = value.get_type(schema) {
        coarsest = std::cmp::max_by_key(coarsest, from, |unit| nanoseconds(*unit));
        let Some((inner, _)) = cast_of(value) else {
            break;
        };
        value = inner;
    }
    (coarsest != *to).then_some(coarsest)
}

/// Whether a constant has no parts of that unit. What is no constant is not one of those that are lost, and the
/// present moment is none that anybody knows to such a part.
fn is_of_unit(expr: &Expr, unit: TimeUnit) -> bool {
    let may_change = |part: &Expr| {
        matches!(part, Expr::ScalarFunction(call)
            if call.func.signature().volatility != Volatility::Immutable)
    };
    if expr.any_column_refs() || expr.exists(|part| Ok(may_change(part))).unwrap_or(true) {
        return true;
    }
    let (value, of) = match value_of(expr) {
        Ok(ScalarValue::TimestampNanosecond(value, _)) => (value, TimeUnit::Nanosecond),
        Ok(ScalarValue::TimestampMicrosecond(value, _)) => (value, TimeUnit::Microsecond),
        Ok(ScalarValue::TimestampMillisecond(value, _)) => (value, TimeUnit::Millisecond),
        // A subquery is none yet, and what fails does so where it is computed.
        _ => return true,
    };
    let parts = nanoseconds(unit) / nanoseconds(of);
    parts <= 1 || value.is_none_or(|value| value % parts == 0)
}

fn nanoseconds(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// Whether an expression is a cast that makes one of several numbers, or of a number none.
fn loses(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let Some((value, to)) = cast_of(expr) else {
        return Ok(false);
    };
    let Some(left) = decimals(to) else {
        return Ok(false);
    };
    let from = value.get_type(schema)?;
    Ok(match (decimals(&from), expr) {
        (Some(_), Expr::TryCast(_)) => !is_widening_cast(&from, to),
        (Some(given), _) => given > left,
        (None, _) => false,
    })
}

/// The digits behind the point of a type of exact numbers.
fn decimals(of: &DataType) -> Option<i8> {
    match of {
        of if of.is_integer() => Some(0),
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => Some(*scale),
        _ => None,
    }
}

/// Leaves bounds of texts texts, and those of others what they are; place it behind the rules that make
/// projections.
#[derive(Debug)]
pub(super) struct CastsOfTexts;

impl OptimizerRule for CastsOfTexts {
    fn name(&self) -> &str {
        "flashmesh_casts_of_texts"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Projection(projection) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let schema = Arc::clone(projection.input.schema());
        if !projection.expr.iter().any(|expr| reorders(expr, &schema)) {
            return Ok(Transformed::no(plan));
        }
        map_named_expressions(plan, |mut expr| {
            if !reorders(&expr, &schema) {
                return Ok(Transformed::no(expr));
            }
            let mut column = &mut expr;
            while let Expr::Alias(Alias { expr, .. }) | Expr::Cast(Cast { expr, .. }) = column {
                column = expr;
            }
            *column = as_it_is(std::mem::take(column));
            Ok(Transformed::yes(expr))
        })
    }
}

/// Whether casts of a column, one in the other, make texts of what is none, or something else of texts.
fn reorders(mut expr: &Expr, schema: &DFSchema) -> bool {
    while let Expr::Alias(alias) = expr {
        expr = &alias.expr;
    }
    let mut crosses = false;
    while let Expr::Cast(cast) = expr {
        let from = cast.expr.get_type(schema);
        let is_text = cast.field.data_type().is_string();
        crosses |= from.is_ok_and(|from| from.is_string() != is_text);
        expr = &cast.expr;
    }
    crosses && matches!(expr, Expr::Column(_))
}
