//! Joins of inputs that are too large for the memory.
//!
//! DataFusion 55's hash join keeps its smaller input in memory and fails where that has no room; its
//! sort-merge join sorts both, and what it sorts and the rows of a key that it keeps spill. Which of
//! the two a join is, DataFusion asks of an option for all joins of a plan; here each join's estimate
//! is asked.

use std::sync::Arc;

use arrow::compute::SortOptions;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::FlashmeshOptions;

/// Makes hash joins whose smaller input is estimated to be larger than `flashmesh.hash_join_size`
/// sort-merge joins. It stands before the rules that bring inputs into the order and the partitions
/// that operators require.
#[derive(Debug)]
pub struct SortLargeJoins;

impl PhysicalOptimizerRule for SortLargeJoins {
    fn name(&self) -> &str {
        "SortLargeJoins"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(limit) = FlashmeshOptions::of(config).hash_join_bytes else {
            return Ok(plan);
        };
        let sorted = plan.transform_up(|node| match node.downcast_ref::<HashJoinExec>() {
            Some(join) if is_larger(join.left().as_ref(), limit) && can_sort(join) => {
                Ok(Transformed::yes(sort_merge(join)?))
            }
            _ => Ok(Transformed::no(node)),
        });
        sorted.map(|plan| plan.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Whether an input is estimated to take more bytes; what nobody knows anything of is not.
fn is_larger(input: &dyn ExecutionPlan, limit: u64) -> bool {
    let Ok(statistics) = StatisticsContext::new().compute(input, &StatisticsArgs::new()) else {
        return false;
    };
    let bytes = statistics.total_byte_size.get_value();
    bytes.is_some_and(|bytes| *bytes as u64 > limit)
}

/// NOT IN has a hash join of its own, whose one NULL decides over all rows.
fn can_sort(join: &HashJoinExec) -> bool {
    !join.null_aware && !join.on().is_empty()
}

/// The same join, with the columns that the hash join projects.
fn sort_merge(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let sorted: Arc<dyn ExecutionPlan> = Arc::new(SortMergeJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        join.on().to_vec(),
        join.filter().cloned(),
        *join.join_type(),
        vec![SortOptions::default(); join.on().len()],
        join.null_equality(),
    )?);
    let Some(projection) = &join.projection else {
        return Ok(sorted);
    };
    let schema = sorted.schema();
    let columns = projection.iter().map(|place| {
        let name = schema.field(*place).name();
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(name, *place));
        (column, name.clone())
    });
    let columns: Vec<_> = columns.collect();
    Ok(Arc::new(ProjectionExec::try_new(columns, sorted)?))
}
