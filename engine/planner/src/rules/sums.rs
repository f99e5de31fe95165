//! Sums that may leave their type.
//!
//! DataFusion's sum of a BIGINT wraps: two times 9223372036854775807 is -2; and so does that of decimals of
//! 128 bits. Where the values and the number of rows do not rule that out, values are summed as decimals of
//! more digits, and the sum becomes one of its type again, or an error. The store's sums are those of this
//! plan.

use std::cell::LazyCell;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr::{AggregateFunction, WindowFunction, WindowFunctionDefinition};
use datafusion::logical_expr::{
    Aggregate, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Window, cast,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::ranges::{Scope, fits, limits, rows_at_most};

use crate::walk::WalkPlan as _;

/// What every whole number fits into.
const WIDE: DataType = DataType::Decimal128(20, 0);
/// The most digits that a decimal of 128 bits may have, and how many a sum has more than its values.
const DIGITS: u8 = 38;
const SUM_DIGITS: u8 = 10;

/// The rule.
#[derive(Debug)]
pub struct CheckedSums;

impl OptimizerRule for CheckedSums {
    fn name(&self) -> &str {
        "flashmesh_checked_sums"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.change_up_with_subqueries(|node| match &node {
            LogicalPlan::Aggregate(aggregate) => {
                let sums = widened(&aggregate.aggr_expr, &aggregate.input)?;
                let Some(sums) = sums else {
                    return Ok(Transformed::no(node));
                };
                let (input, keys) = (aggregate.input.clone(), aggregate.group_expr.clone());
                let wide = Aggregate::try_new(input, keys, sums)?;
                narrowed(LogicalPlan::Aggregate(wide), &node)
            }
            LogicalPlan::Window(window) => {
                let sums = widened(&window.window_expr, &window.input)?;
                let Some(sums) = sums else {
                    return Ok(Transformed::no(node));
                };
                let wide = Window::try_new(sums, window.input.clone())?;
                narrowed(LogicalPlan::Window(wide), &node)
            }
            _ => Ok(Transformed::no(node)),
        })
    }
}

/// The expressions with sums of decimals in the place of those that may leave 64 bits, if there are any.
fn widened(exprs: &[Expr], input: &LogicalPlan) -> Result<Option<Vec<Expr>>> {
    let mut has_widened = false;
    let known = LazyCell::new(|| (Scope::over(input), rows_at_most(input)));
    let exprs = exprs.iter().map(|expr| {
        let mut inner = expr.clone();
        while let Expr::Alias(alias) = inner {
            inner = *alias.expr;
        }
        let Some(argument) = summed(&mut inner) else {
            return Ok(expr.clone());
        };
        let of = argument.get_type(input.schema())?;
        let (wide, is_small) = match of {
            DataType::Int64 | DataType::UInt64 => {
                let (scope, rows) = &*known;
                (WIDE, stays_small(argument, scope, *rows))
            }
            DataType::Decimal128(digits, scale) if digits + SUM_DIGITS > DIGITS => {
                let (scope, rows) = &*known;
                let wide = DataType::Decimal256(digits, scale);
                (wide, stays_short(argument, scale, scope, *rows))
            }
            _ => return Ok(expr.clone()),
        };
        if is_small {
            return Ok(expr.clone());
        }
        *argument = cast(argument.clone(), wide);
        has_widened = true;
        let name = expr.schema_name().to_string();
        Ok(inner.alias(name))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    Ok(has_widened.then_some(exprs))
}

/// What is summed, if the expression is a sum.
fn summed(expr: &mut Expr) -> Option<&mut Expr> {
    let (name, args) = match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            (func.name().to_owned(), &mut params.args)
        }
        Expr::WindowFunction(call) => {
            let WindowFunction { fun, params } = call.as_mut();
            let WindowFunctionDefinition::AggregateUDF(func) = fun else {
                return None;
            };
            (func.name().to_owned(), &mut params.args)
        }
        _ => return None,
    };
    match args.as_mut_slice() {
        [argument] if name == "sum" => Some(argument),
        _ => None,
    }
}

/// A plan with the columns of another one, where it has the same but for decimals.
fn narrowed(wide: LogicalPlan, wanted: &LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let pairs = wide.schema().iter().zip(wanted.schema().iter());
    let columns = pairs.map(|(wide, (relation, field))| {
        let column = Expr::Column(Column::from(wide));
        match wide.1.data_type() == field.data_type() {
            true => column,
            false => cast(column, field.data_type().clone())
                .alias_qualified(relation.cloned(), field.name()),
        }
    });
    let columns: Vec<Expr> = columns.collect();
    let plan = LogicalPlanBuilder::from(wide).project(columns)?.build()?;
    Ok(Transformed::yes(plan))
}

/// Whether no sum of an expression's values over so many rows leaves the 64 bits of its type.
fn stays_small(expr: &Expr, scope: &Scope<'_>, rows: i128) -> bool {
    let Some((of, (least, greatest))) = scope.whole(expr) else {
        return false;
    };
    let rows = rows.max(1);
    // Of a sum of several rows, or of none.
    let ends = least
        .min(0)
        .checked_mul(rows)
        .zip(greatest.max(0).checked_mul(rows));
    ends.zip(limits(&of))
        .is_some_and(|(ends, limits)| fits(ends, limits))
}

/// Whether no sum of an expression's values over so many rows has more digits than a decimal of 128 bits.
fn stays_short(expr: &Expr, scale: i8, scope: &Scope<'_>, rows: i128) -> bool {
    let most = scope.magnitude(expr).unwrap_or(f64::INFINITY);
    // Floats are about right.
    most * rows.max(1) as f64 * 10_f64.powi(scale.into()) < 10_f64.powi(i32::from(DIGITS) - 1)
}
