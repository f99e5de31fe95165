//! `RANGE 1 PRECEDING` over days is one day, as in DuckDB. DataFusion takes the number for an interval without a
//! unit, which is months. Over moments, where it could mean anything, it is refused.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, plan_err};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{
    Expr, ExprSchemable, LogicalPlan, WindowFrameBound, WindowFrameUnits,
};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::change_parts;

/// The rule; place it before the one that gives types.
#[derive(Debug)]
pub struct RangesOfDays;

impl AnalyzerRule for RangesOfDays {
    fn name(&self) -> &str {
        "flashmesh_ranges_of_days"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| matches!(expr, Expr::WindowFunction(call) if has_number(call));
        change_parts(plan, is_one, |expr, schema| {
            expr.transform_up(|expr| match expr {
                Expr::WindowFunction(call) if has_number(&call) => {
                    in_days(*call, schema).map(Transformed::yes)
                }
                other => Ok(Transformed::no(other)),
            })
        })
    }
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

fn in_days(mut call: WindowFunction, schema: &DFSchema) -> Result<Expr> {
    let [key] = call.params.order_by.as_slice() else {
        return Ok(Expr::from(call));
    };
    let of = key.expr.get_type(schema)?;
    if matches!(of, DataType::Timestamp(..)) {
        return plan_err!(
            "RANGE over a timestamp by a number; write an interval such as INTERVAL '1 day'"
        );
    }
    let frame = &mut call.params.window_frame;
    if of.is_temporal() && !matches!(of, DataType::Interval(_)) {
        for bound in [&mut frame.start_bound, &mut frame.end_bound] {
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
