//! `round(x, 2)` of a decimal: its type has as many digits behind the point as the constant says. Once that is cast to
//! the type of such a number it is no constant any more, what stands beside it gets another type than it has in the end,
//! and a comparison fails. Here it is of that type from the beginning.

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::change_parts;
use crate::walk::Walk as _;

/// The rule; place it before the one that gives types.
#[derive(Debug)]
pub struct RoundedDecimals;

impl AnalyzerRule for RoundedDecimals {
    fn name(&self) -> &str {
        "flashmesh_rounded_decimals"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| places(expr).is_some();
        change_parts(plan, is_one, |expr, _| {
            expr.transform_up(|mut expr| match (places(&expr), &mut expr) {
                (Some(places), Expr::ScalarFunction(call)) => {
                    call.args[1] = lit(places);
                    Ok(Transformed::yes(expr))
                }
                _ => Ok(Transformed::no(expr)),
            })
        })
    }
}

/// To how many places a call rounds, where a constant of 64 bits says so.
fn places(expr: &Expr) -> Option<i32> {
    let Expr::ScalarFunction(call) = expr else {
        return None;
    };
    match call.args.as_slice() {
        [_, Expr::Literal(ScalarValue::Int64(Some(places)), _)] if call.name() == "round" => {
            i32::try_from(*places).ok()
        }
        _ => None,
    }
}
