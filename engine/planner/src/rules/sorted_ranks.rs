//! Windows of nothing but ranks: see [`SortedRanksExec`].

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;

use crate::sorted_ranks::SortedRanksExec;
use crate::walk::Walk as _;

/// The rule; place it behind those that look for windows.
#[derive(Debug)]
pub struct SortedRanks;

impl PhysicalOptimizerRule for SortedRanks {
    fn name(&self) -> &str {
        "flashmesh_sorted_ranks"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|node| {
            Ok(match SortedRanksExec::takes(node.as_ref()) {
                true => Transformed::yes(Arc::new(SortedRanksExec::new(node)) as _),
                false => Transformed::no(node),
            })
        })?;
        Ok(plan.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}
