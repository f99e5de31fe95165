//! Sorts below windows, by all that the windows take to be sorted.
//!
//! A key that has one value in all rows, as a filter below says, is left out of a sort. A node that gets the sort,
//! and has the filter on the far side of an exchange, knows nothing of that: the window would not find its
//! partitions in order.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
};
use flashmesh_planner::walk::Walk as _;

/// The plan with such sorts.
pub(super) fn with_whole_sorts(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let changed = plan.transform_up(|node| {
        if !node.is::<BoundedWindowAggExec>() && !node.is::<WindowAggExec>() {
            return Ok(Transformed::no(node));
        }
        let wanted = node.required_input_ordering().into_iter().next().flatten();
        let [input] = node.children()[..] else {
            return Ok(Transformed::no(node));
        };
        let Some(wanted) = wanted.map(|wanted| LexOrdering::from(wanted.into_single())) else {
            return Ok(Transformed::no(node));
        };
        if input
            .output_ordering()
            .is_some_and(|known| begins_with(known, &wanted))
        {
            return Ok(Transformed::no(node));
        }
        let whole = match input.downcast_ref::<SortExec>() {
            Some(sort) => SortExec::new(wanted, Arc::clone(sort.input())).with_fetch(sort.fetch()),
            None => SortExec::new(wanted, Arc::clone(input)),
        };
        let whole =
            whole.with_preserve_partitioning(input.output_partitioning().partition_count() > 1);
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        Ok(Transformed::yes(
            node.replace_children(vec![Arc::new(whole)], options)?,
        ))
    })?;
    Ok(changed.data)
}

fn begins_with(known: &LexOrdering, wanted: &LexOrdering) -> bool {
    known.len() >= wanted.len() && known.iter().zip(wanted.iter()).all(|(a, b)| a == b)
}
