//! Frames of `RANGE` whose bounds DataFusion takes for something else.
//!
//! `RANGE 1 PRECEDING` over days is one day, as in DuckDB; it takes the number for an interval without a unit, which
//! is months. Over moments, where it could mean anything, it is refused. A number that the column's type does not
//! have, as of a SMALLINT 40000, it takes for no bound, by which rows of NULL had all others in their frames.
//!
//! Without such bounds, as nobody writes it, a frame goes up to the last row that is alike, of values of any type: over
//! intervals, times of day, bytes and structs, for which DataFusion has no RANGE, it is one of GROUPS.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, WindowFrameBound, WindowFrameUnits, cast,
};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::change_parts;
use crate::walk::Walk as _;

/// The rule; place it before the one that gives types.
#[derive(Debug)]
pub struct BoundsOfRanges;

impl AnalyzerRule for BoundsOfRanges {
    fn name(&self) -> &str {
        "flashmesh_bounds_of_ranges"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| matches!(expr, Expr::WindowFunction(call) if has_number(call) || may_be_of_groups(call));
        change_parts(plan, is_one, |expr, schema| {
            expr.transform_up(|expr| match expr {
                Expr::WindowFunction(call) if has_number(&call) => {
                    of_key(*call, schema).map(Transformed::yes)
                }
                Expr::WindowFunction(mut call) if may_be_of_groups(&call) => {
                    let of = call.params.order_by[0].expr.get_type(schema);
                    // What has no type yet is for the planner to say.
                    let has_range = of.as_ref().map_or(true, has_range);
                    if !has_range {
                        call.params.window_frame.units = WindowFrameUnits::Groups;
                    }
                    Ok(Transformed::new_transformed(
                        Expr::WindowFunction(call),
                        !has_range,
                    ))
                }
                other => Ok(Transformed::no(other)),
            })
        })
    }
}

/// Whether a window is of rows up to those that are alike, or beyond.
fn may_be_of_groups(call: &WindowFunction) -> bool {
    let frame = &call.params.window_frame;
    let is_open =
        |bound: &WindowFrameBound| bound.is_unbounded() || *bound == WindowFrameBound::CurrentRow;
    frame.units == WindowFrameUnits::Range
        && is_open(&frame.start_bound)
        && is_open(&frame.end_bound)
        && !call.params.order_by.is_empty()
}

/// Whether DataFusion has RANGE over values of a type.
fn has_range(of: &DataType) -> bool {
    let is_day = matches!(of, DataType::Date32 | DataType::Date64);
    let is_listed = matches!(
        of,
        DataType::Boolean | DataType::Timestamp(..) | DataType::Dictionary(..)
    );
    of.is_numeric() || of.is_string() || of.is_null() || of.is_list() || is_day || is_listed
}

/// Types with whole numbers that others do not have.
const WIDER: [DataType; 2] = [DataType::Int64, DataType::Decimal128(38, 0)];

fn parse(number: &str, of: &DataType) -> Option<ScalarValue> {
    ScalarValue::try_from_string(number.to_owned(), of).ok()
}

fn has_number(call: &WindowFunction) -> bool {
    let frame = &call.params.window_frame;
    let bounds = [&frame.start_bound, &frame.end_bound];
    frame.units == WindowFrameUnits::Range && bounds.into_iter().any(|b| number(b).is_some())
}

/// The number that a bound is.
fn number(bound: &WindowFrameBound) -> Option<&str> {
    let (WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value)) = bound else {
        return None;
    };
    let text = value.try_as_str()??;
    text.parse::<f64>().is_ok().then_some(text)
}

/// The call with the bounds that are meant for the key that it is ordered by.
fn of_key(mut call: WindowFunction, schema: &DFSchema) -> Result<Expr> {
    let [key] = call.params.order_by.as_mut_slice() else {
        return Ok(Expr::from(call));
    };
    let of = key.expr.get_type(schema)?;
    if matches!(of, DataType::Timestamp(..)) {
        return plan_err!(
            "RANGE over a timestamp by a number; write an interval such as INTERVAL '1 day'"
        );
    }
    let frame = &mut call.params.window_frame;
    let bounds = [&mut frame.start_bound, &mut frame.end_bound];
    if of.is_integer() {
        let numbers: Vec<_> = bounds
            .into_iter()
            .filter_map(|bound| number(bound))
            .collect();
        let has_all = |of: &DataType| numbers.iter().all(|number| parse(number, of).is_some());
        let wide = match has_all(&of) {
            true => None,
            false => WIDER.into_iter().find(has_all),
        };
        if let Some(wider) = wide {
            key.expr = cast(std::mem::take(&mut key.expr), wider);
        }
    } else if of.is_temporal() && !matches!(of, DataType::Interval(_)) {
        for bound in bounds {
            let Some(days) = number(bound).map(|number| format!("{number} days")) else {
                continue;
            };
            if let WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) = bound {
                *value = ScalarValue::from(days);
            }
        }
    }
    Ok(Expr::from(call))
}
