//! `array_agg(x ORDER BY id, id DESC)`: keys that an aggregate's ORDER BY has before, and which order nothing.
//! DataFusion sorts by the first of them, and its accumulators, which are told of both, panic. `DISTINCT ON (k) … ORDER
//! BY k, id, id` is such an aggregate, too.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::tree::{has_part, map_named_expressions};
use crate::walk::Walk as _;

/// The rule; place it behind those that simplify.
#[derive(Debug)]
pub struct RepeatedKeys;

impl OptimizerRule for RepeatedKeys {
    fn name(&self) -> &str {
        "flashmesh_repeated_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        if !has_part(&plan, |expr| repeated(expr).is_some())? {
            return Ok(Transformed::no(plan));
        }
        map_named_expressions(plan, |expr| {
            expr.transform_up(|mut expr| {
                let mut changed = false;
                while let Some(place) = repeated(&expr)
                    && let Expr::AggregateFunction(call) = &mut expr
                {
                    call.params.order_by.remove(place);
                    changed = true;
                }
                Ok(Transformed::new_transformed(expr, changed))
            })
        })
    }
}

/// The place of a key that stands before it, too.
fn repeated(expr: &Expr) -> Option<usize> {
    let Expr::AggregateFunction(call) = expr else {
        return None;
    };
    let keys = &call.params.order_by;
    (1..keys.len()).find(|&place| keys[..place].iter().any(|key| key.expr == keys[place].expr))
}
