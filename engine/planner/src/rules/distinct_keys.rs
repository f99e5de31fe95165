//! Keys that are asked for once: what `g IN (SELECT g …)` and EXISTS look up.
//!
//! In DataFusion's hash join each row of one side meets all of its key of the other, also where it only asks whether
//! there is one: with 30,000 rows a key, 300,000 rows met nine billion. Where the side that is looked up is expected
//! to have a key many times, it is grouped by its keys first, which the store does beside the pages.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, JoinType, Result};
use datafusion::logical_expr::{Expr, Join, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::cost::Estimate;

/// Rows of a key at which to group them costs less than to meet them, of few keys and of many: groups of many fill no
/// cache of a processor, and take as long as a hash table of all rows (TPC-H 22: 15 rows of each of 100,000 keys).
const WORTH_ROWS: f64 = 8.0;
const WORTH_ROWS_OF_MANY: f64 = 256.0;
/// How many keys are few.
const FEW_KEYS: f64 = 32_768.0;
/// Fewer rows are met faster than anything is planned.
const FEW_ROWS: f64 = 4096.0;

/// The rule; place it behind the one that orders joins.
#[derive(Debug)]
pub struct DistinctKeys;

impl OptimizerRule for DistinctKeys {
    fn name(&self) -> &str {
        "flashmesh_distinct_keys"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Join(join) = &plan else {
            return Ok(Transformed::no(plan));
        };
        Ok(match keys_once(join)? {
            Some(right) => {
                let (right, join) = (Arc::new(right), join.clone());
                Transformed::yes(LogicalPlan::Join(Join { right, ..join }))
            }
            None => Transformed::no(plan),
        })
    }
}

/// The side that is looked up with a row for each of its keys, where that is worth it.
fn keys_once(join: &Join) -> Result<Option<LogicalPlan>> {
    let is_looked_up = matches!(
        join.join_type,
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark
    );
    if !is_looked_up || join.filter.is_some() || join.on.is_empty() {
        return Ok(None);
    }
    let mut columns: Vec<Column> = vec![];
    for column in join.on.iter().flat_map(|(_, key)| key.column_refs()) {
        if !columns.contains(column) {
            columns.push(column.clone());
        }
    }
    let Some(all) = Estimate::of(&join.right).filter(|all| all.rows >= FEW_ROWS) else {
        return Ok(None);
    };
    let keys = columns.into_iter().map(Expr::Column);
    let grouped = LogicalPlanBuilder::from(Arc::clone(&join.right))
        .aggregate(keys, Vec::<Expr>::new())?
        .build()?;
    let is_worth_it = Estimate::of(&grouped).is_some_and(|keys| {
        let worth = match keys.rows <= FEW_KEYS {
            true => WORTH_ROWS,
            false => WORTH_ROWS_OF_MANY,
        };
        keys.rows * worth <= all.rows
    });
    Ok(is_worth_it.then_some(grouped))
}
