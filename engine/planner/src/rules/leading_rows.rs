//! Windows of whose rows a filter keeps the first of each partition: see [`leading_rows`](crate::leading_rows).

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::replace_children_if_necessary;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::windows::BoundedWindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::leading_rows::{LeadingRowsExec, MOST_ROWS};
use crate::sorted_ranks::{are_alike, function_of};
use crate::walk::Walk as _;

/// The rule; place it where the plan's shape is settled.
#[derive(Debug)]
pub struct LeadingRows;

impl PhysicalOptimizerRule for LeadingRows {
    fn name(&self) -> &str {
        "flashmesh_leading_rows"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = plan.transform_up(|node| {
            let Some(filter) = node.downcast_ref::<FilterExec>() else {
                return Ok(Transformed::no(node));
            };
            let bounds = split_conjunction(filter.predicate()).into_iter();
            let mut bounds = bounds.filter_map(upper_bound);
            let input = bounds.find_map(|(column, most)| led(filter.input(), column, most));
            Ok(match input {
                Some(input) => Transformed::yes(replace_children_if_necessary(node, vec![input])?),
                None => Transformed::no(node),
            })
        })?;
        Ok(plan.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The column that a condition bounds from above, and by which number.
fn upper_bound(condition: &Arc<dyn PhysicalExpr>) -> Option<(usize, usize)> {
    let condition = condition.downcast_ref::<BinaryExpr>()?;
    let (left, right) = (condition.left(), condition.right());
    let (value, bound, operator) = match right.downcast_ref::<Literal>() {
        Some(bound) => (left, bound, *condition.op()),
        None => (
            right,
            left.downcast_ref::<Literal>()?,
            condition.op().swap()?,
        ),
    };
    let value = match value.downcast_ref::<CastExpr>() {
        Some(cast) if cast.cast_type().is_integer() => cast.expr(),
        _ => value,
    };
    let column = value.downcast_ref::<Column>()?.index();
    let bound = match bound.value().cast_to(&DataType::Int64).ok()? {
        ScalarValue::Int64(number) if bound.value().data_type().is_integer() => number?,
        _ => return None,
    };
    let most = match operator {
        Operator::LtEq | Operator::Eq => bound,
        Operator::Lt => bound.checked_sub(1)?,
        _ => return None,
    };
    let most = usize::try_from(most).ok()?;
    (1..=MOST_ROWS).contains(&most).then_some((column, most))
}

/// A plan with rows held back below the window that numbers rows in a column; `None` where there is none.
fn led(
    plan: &Arc<dyn ExecutionPlan>,
    column: usize,
    most: usize,
) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let column = projection.expr().get(column)?;
        let column = column.expr.downcast_ref::<Column>()?.index();
        let input = led(projection.input(), column, most)?;
        return replace_children_if_necessary(Arc::clone(plan), vec![input]).ok();
    }
    let window = plan.downcast_ref::<BoundedWindowAggExec>()?;
    let numbered = column.checked_sub(window.input().schema().fields().len())?;
    let numbered = window.window_expr().get(numbered)?;
    let ties = match function_of(numbered.as_ref())? {
        "row_number" => false,
        "rank" => true,
        _ => return None,
    };
    for other in window.window_expr() {
        // They tell of a row how many are better.
        if !["row_number", "rank", "dense_rank"].contains(&function_of(other.as_ref())?) {
            return None;
        }
        if !are_alike(other.as_ref(), numbered.as_ref()) {
            return None;
        }
    }
    let (partition, order) = (numbered.partition_by(), numbered.order_by());
    let mut keys = partition.iter().chain(order.iter().map(|key| &key.expr));
    // What is computed twice is not the same then.
    if ties && order.is_empty() || keys.any(is_volatile) {
        return None;
    }
    let sort = window.input().downcast_ref::<SortExec>()?;
    if sort.fetch().is_some() {
        return None;
    }
    let leads = |input: &Arc<dyn ExecutionPlan>| {
        let (partition, order) = (partition.to_vec(), order.to_vec());
        let leading = LeadingRowsExec::new(Arc::clone(input), partition, order, most, ties);
        leading
            .ok()
            .map(|leading| Arc::new(leading) as Arc<dyn ExecutionPlan>)
    };
    let sorted = match sort.input().downcast_ref::<RepartitionExec>() {
        // Before rows go from one stream to another.
        Some(exchange) if matches!(exchange.partitioning(), Partitioning::Hash(..)) => {
            let input = leads(exchange.input())?;
            replace_children_if_necessary(Arc::clone(sort.input()), vec![input]).ok()?
        }
        _ => leads(sort.input())?,
    };
    let sorted = replace_children_if_necessary(Arc::clone(window.input()), vec![sorted]).ok()?;
    replace_children_if_necessary(Arc::clone(plan), vec![sorted]).ok()
}
