//! Filters whose answers change from call to call.
//!
//! DataFusion moves filters below joins, aggregates and windows by the columns that they read. A
//! volatile one would be evaluated there for other rows, and another number of times: `random() <
//! p` once for each row of the table of `p`. Computed in a column of its own it stays where the
//! query has it, as nothing is moved below a column that is volatile.

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, col};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::tree::has_subquery;

/// The rule; place it before `push_down_filter`.
#[derive(Debug)]
pub struct VolatileFilter;

impl OptimizerRule for VolatileFilter {
    fn name(&self) -> &str {
        "flashmesh_volatile_filter"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = &plan else {
            return Ok(Transformed::no(plan));
        };
        // Most subqueries can't stand in a column.
        let is_computed = |expr: &Expr| expr.is_volatile() && !has_subquery(expr).unwrap_or(true);
        let conjuncts = split_conjunction_owned(filter.predicate.clone());
        let (volatile, others): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(is_computed);
        if volatile.is_empty() || matches!(*filter.input, LogicalPlan::TableScan(_)) {
            return Ok(Transformed::no(plan));
        }
        let mut below = LogicalPlanBuilder::from(filter.input.as_ref().clone());
        if let Some(others) = conjunction(others) {
            below = below.filter(others)?;
        }
        let columns = filter.input.schema().columns().into_iter();
        let columns: Vec<Expr> = columns.map(Expr::Column).collect();
        let names = (0..volatile.len()).map(|number| format!("__volatile_{number}"));
        let names: Vec<String> = names.collect();
        let computed = volatile.into_iter().zip(&names);
        let computed = computed.map(|(expr, name)| expr.alias(name));
        let mut above = below.project(columns.iter().cloned().chain(computed))?;
        for name in &names {
            above = above.filter(col(name))?;
        }
        Ok(Transformed::yes(above.project(columns)?.build()?))
    }
}
