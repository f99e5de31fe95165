//! Joins that give their thread up.
//!
//! DataFusion lets leaves and exchanges yield, on the grounds that operators above them return
//! when their input does. A join that makes millions of rows of a few batches breaks that: what
//! aggregates its rows never waits for input, so that the query can't be cancelled and holds its
//! thread against other queries.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{CrossJoinExec, NestedLoopJoinExec};

/// Makes joins without keys yield between their batches; the others give about as many rows as
/// they take.
#[derive(Debug)]
pub struct CooperativeJoins;

impl PhysicalOptimizerRule for CooperativeJoins {
    fn name(&self) -> &str {
        "CooperativeJoins"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            Ok(
                if node.is::<NestedLoopJoinExec>() || node.is::<CrossJoinExec>() {
                    Transformed::yes(Arc::new(CooperativeExec::new(node)) as _)
                } else {
                    Transformed::no(node)
                },
            )
        })
        .map(|plan| plan.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}
