//! Casts of constants that fail where no row need come to them: in CASE, COALESCE and `try(…)`. DataFusion computes
//! them while it plans, and ends the statement with what they say.

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::expr::Cast;
use datafusion::logical_expr::{Expr, LogicalPlan, cast};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::failing::error_of;
use crate::tree::map_named_expressions;
use crate::walk::Walk as _;

/// The rule; place it before `simplify_expressions`.
#[derive(Debug)]
pub struct FailingConstants;

impl OptimizerRule for FailingConstants {
    fn name(&self) -> &str {
        "flashmesh_failing_constants"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        map_named_expressions(plan, |expr| {
            expr.transform_down(|expr| match guards(&expr) {
                true => expr.map_children(|part| part.transform_up(fail_later)),
                false => Ok(Transformed::no(expr)),
            })
        })
    }
}

/// Whether an expression need not compute its parts.
fn guards(expr: &Expr) -> bool {
    match expr {
        Expr::Case(_) | Expr::Lambda(_) => true,
        Expr::ScalarFunction(call) => call.func.short_circuits(),
        _ => false,
    }
}

/// Has a cast fail for the rows that come to it.
fn fail_later(expr: Expr) -> Result<Transformed<Expr>> {
    if let Expr::Cast(Cast { expr: value, field }) = &expr
        && let Expr::Literal(value, _) = value.as_ref()
        && let Err(error) = value.cast_to(field.data_type())
    {
        let says = match error.find_root() {
            DataFusionError::ArrowError(error, _) => error.to_string(),
            other => other.to_string(),
        };
        let failing = error_of(says);
        return Ok(Transformed::yes(cast(failing, field.data_type().clone())));
    }
    Ok(Transformed::no(expr))
}
