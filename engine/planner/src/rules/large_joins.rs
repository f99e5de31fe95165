//! Joins of inputs that are too large for the memory.
//!
//! DataFusion 55's hash join keeps its smaller input in memory and fails where that has no room; its
//! sort-merge join sorts both, and what it sorts and the rows of a key that it keeps spill. Which of
//! the two a join is, DataFusion asks of an option for all joins of a plan; here each join's estimate
//! is asked.

use std::sync::Arc;

use arrow::compute::SortOptions;
use arrow::datatypes::{Field, Schema};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinSide, Result};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::FlashmeshOptions;
use crate::walk::Walk as _;

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

/// A condition whose columns are those of the left side, then those of the right: in that order a sort-merge join gives
/// them, whatever the condition says, and a hash join whose sides were swapped has another. Where a row has no
/// partner, they are NULL.
fn left_first(condition: &JoinFilter) -> Result<JoinFilter> {
    let columns = condition.column_indices();
    let mut order: Vec<usize> = (0..columns.len()).collect();
    order.sort_by_key(|&place| columns[place].side == JoinSide::Right);
    let expression = Arc::clone(condition.expression()).transform_up(|part| {
        let Some(column) = part.downcast_ref::<Column>() else {
            return Ok(Transformed::no(part));
        };
        let place = order.iter().position(|before| *before == column.index());
        let place = place.unwrap_or(column.index());
        Ok(Transformed::yes(
            Arc::new(Column::new(column.name(), place)) as _,
        ))
    })?;
    let schema = condition.schema();
    let fields = order.iter().map(|place| {
        let field = schema.field(*place).clone();
        field.with_nullable(true)
    });
    let fields: Vec<Field> = fields.collect();
    let columns = order.iter().map(|place| columns[*place].clone()).collect();
    let schema = Arc::new(Schema::new(fields));
    Ok(JoinFilter::new(expression.data, columns, schema))
}

/// The same join, with the columns that the hash join projects.
fn sort_merge(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let sorted: Arc<dyn ExecutionPlan> = Arc::new(SortMergeJoinExec::try_new(
        Arc::clone(join.left()),
        Arc::clone(join.right()),
        join.on().to_vec(),
        join.filter().map(left_first).transpose()?,
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
