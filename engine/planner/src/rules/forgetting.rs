//! Sorts and groups that rely on what does not hold.
//!
//! DataFusion knows of operators' rows that a column is constant, or equal to another one, and leaves such
//! columns out of sorts. Some operators put NULLs into these columns: outer joins for the rows that they make
//! up, and grouping sets. And a sort that keeps the first rows of several partitions tells all of them of the
//! last row that is still wanted: by its keys without those that are constant in a partition, where the
//! constants differ. A sort above rows of which the first are passed over (OFFSET) is moved below that, and keeps as
//! many rows as are left in the end.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use crate::forgetting::ForgettingExec;
use crate::walk::Walk as _;

/// The rule that places sorts, which is told nothing that does not hold.
#[derive(Debug)]
pub(super) struct SortsAsAskedFor(pub Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for SortsAsAskedFor {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let forgetting = plan.transform_up(forgotten)?.data;
        let forgetting = forgetting.transform_up(behind_offsets)?.data;
        let sorted = self.0.optimize(of_result(forgetting)?, config)?;
        Ok(sorted.transform_up(whole_keys)?.data)
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// The node over inputs of which nothing is known, where it makes NULLs of their values.
fn forgotten(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let nulled = nulled_inputs(&node);
    // Columns that are equal are NULL together above an outer join.
    let is_join = !node.is::<AggregateExec>();
    let mut changed = false;
    let inputs = node.children().into_iter().zip(nulled);
    let inputs = inputs.map(|(input, nulled)| {
        let known = input.equivalence_properties();
        let tells = !known.constants().is_empty() || !is_join && !known.eq_group().is_empty();
        if !nulled || !tells || input.is::<ForgettingExec>() {
            return Arc::clone(input);
        }
        changed = true;
        Arc::new(ForgettingExec::new(input)) as _
    });
    let inputs: Vec<_> = inputs.collect();
    match changed {
        true => {
            let mode = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(node.replace_children(inputs, mode)?))
        }
        false => Ok(Transformed::no(node)),
    }
}

/// Rows of which the first are passed over, and nothing that is known of them.
fn behind_offsets(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let limit = node.downcast_ref::<GlobalLimitExec>();
    Ok(match limit.is_some_and(|limit| limit.skip() > 0) {
        true => Transformed::yes(Arc::new(ForgettingExec::new(&node))),
        false => Transformed::no(node),
    })
}

/// The same without that where they are the result: nobody sorts above it.
fn of_result(node: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if node.is::<ForgettingExec>() {
        let input = node.children()[0];
        return Ok(match input.is::<GlobalLimitExec>() {
            true => Arc::clone(input),
            false => node,
        });
    }
    if !node.is::<ProjectionExec>() && node.name() != "OutputRequirementExec" {
        return Ok(node);
    }
    let input = of_result(Arc::clone(node.children()[0]))?;
    let mode = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    node.replace_children(vec![input], mode)
}

/// Of which of its inputs, at most two, a node makes NULLs.
fn nulled_inputs(node: &Arc<dyn ExecutionPlan>) -> [bool; 2] {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        return [aggregate.group_expr().has_grouping_set(), false];
    }
    let join = if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        *join.join_type()
    } else if let Some(join) = node.downcast_ref::<SortMergeJoinExec>() {
        join.join_type()
    } else if let Some(join) = node.downcast_ref::<NestedLoopJoinExec>() {
        *join.join_type()
    } else {
        return [false, false];
    };
    match join {
        JoinType::Left => [false, true],
        JoinType::Right => [true, false],
        JoinType::Full => [true, true],
        _ => [false, false],
    }
}

/// A merge over sorts by all of its keys.
fn whole_keys(node: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() else {
        return Ok(Transformed::no(node));
    };
    let Some(sort) = merge.input().downcast_ref::<SortExec>() else {
        return Ok(Transformed::no(node));
    };
    if sort.fetch().is_none() || sort.expr().len() >= merge.expr().len() {
        return Ok(Transformed::no(node));
    }
    let sorted = SortExec::new(merge.expr().clone(), Arc::clone(sort.input()))
        .with_fetch(sort.fetch())
        .with_preserve_partitioning(sort.preserve_partitioning());
    let mode = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    let merged = Arc::clone(&node).replace_children(vec![Arc::new(sorted)], mode)?;
    Ok(Transformed::yes(merged))
}
