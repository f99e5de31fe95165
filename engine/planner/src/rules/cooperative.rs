//! Joins that give their thread up.
//!
//! DataFusion lets leaves and exchanges yield, on the grounds that operators above them return
//! when their input does. A join that makes millions of rows of a few batches breaks that: what
//! aggregates its rows never waits for input, so that the query can't be cancelled and holds its
//! thread against other queries.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, HashJoinExecBuilder, NestedLoopJoinExec, NestedLoopJoinExecBuilder,
};

use crate::interrupt::interruptible;
use crate::walk::Walk as _;

/// Makes joins yield between their batches, and their conditions end with the query: a condition
/// that few rows meet lets no batch come for long.
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
            let join: Arc<dyn ExecutionPlan> =
                if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
                    let filter = join.filter().map(interruptible);
                    Arc::new(
                        NestedLoopJoinExecBuilder::from(join)
                            .with_filter(filter)
                            .build()?,
                    )
                } else if let Some(join) = node.downcast_ref::<HashJoinExec>() {
                    match join.filter() {
                        Some(filter) => Arc::new(
                            HashJoinExecBuilder::from(join)
                                .with_filter(Some(interruptible(filter)))
                                .build()?,
                        ),
                        None => node,
                    }
                } else if node.is::<CrossJoinExec>() {
                    node
                } else {
                    return Ok(Transformed::no(node));
                };
            Ok(Transformed::yes(Arc::new(CooperativeExec::new(join)) as _))
        })
        .map(|plan| plan.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}
