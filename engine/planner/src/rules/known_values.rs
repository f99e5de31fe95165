//! Aggregates whose answers DataFusion takes from statistics.
//!
//! What it has of a projection that computes is not to be relied on: the least value of a cast is that of
//! what is cast, in another order (`max(s::INT)` of '5' and '30' was 5), and a constant has a sum and a value
//! where there is no row. And files leave NaN out of what they say of floats.

use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::StatisticsArgs;

use super::floats_of_files::without_bounds_of_floats;
use super::guard::HeldBack;

/// Statistics that are not to be relied on.
#[derive(Debug)]
pub(super) enum Unreliable {
    /// Those of projections that compute.
    OfComputed,
    /// Those of files.
    OfFiles,
}

impl HeldBack for Unreliable {
    fn at(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        if node.is::<DataSourceExec>() {
            return Some(Self::OfFiles);
        }
        let projection = node.downcast_ref::<ProjectionExec>()?;
        let mut exprs = projection.expr().iter();
        exprs
            .any(|one| !one.expr.is::<Column>())
            .then_some(Self::OfComputed)
    }

    fn statistics(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        args: &StatisticsArgs,
    ) -> Result<Arc<Statistics>> {
        let schema = node.schema();
        Ok(Arc::new(match self {
            Self::OfComputed => Statistics::new_unknown(&schema),
            Self::OfFiles => {
                let known = node.statistics_from_inputs(&[], args)?;
                without_bounds_of_floats(Arc::unwrap_or_clone(known), &schema)
            }
        }))
    }
}
