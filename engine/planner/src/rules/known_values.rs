//! Aggregates whose answers DataFusion takes from statistics.
//!
//! What it has of a projection that computes is not to be relied on: the least value of a cast is that of
//! what is cast, in another order (`max(s::INT)` of '5' and '30' was 5), and a constant has a sum and a value
//! where there is no row.

use std::sync::Arc;

use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use super::guard::HeldBack;

/// The statistics of projections that compute.
#[derive(Debug)]
pub(super) struct OfComputed;

impl HeldBack for OfComputed {
    // A guard has no statistics.
    fn at(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let projection = node.downcast_ref::<ProjectionExec>()?;
        let mut exprs = projection.expr().iter();
        exprs.any(|one| !one.expr.is::<Column>()).then_some(Self)
    }
}
