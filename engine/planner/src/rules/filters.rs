//! Conditions without columns above aggregates.
//!
//! DataFusion moves a condition below an aggregate where that groups by all of its columns. Of no columns
//! that is always so, also for an aggregate that has a row for no rows: `SELECT count(*) … HAVING (SELECT …) > 99`
//! counts no rows then, where it is to give none, and so does `WHERE src = 'b'` above `SELECT 'a' AS src, count(*)`.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::push_down_filter::PushDownFilter;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// DataFusion's rule, which leaves those where they are.
#[derive(Debug)]
pub struct FiltersOfColumns(PushDownFilter);

impl FiltersOfColumns {
    /// The rule.
    pub fn new() -> Self {
        Self(PushDownFilter::new())
    }
}

impl OptimizerRule for FiltersOfColumns {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Filter(filter) = plan else {
            return self.0.rewrite(plan, config);
        };
        // Of several in a row it makes one.
        let mut conditions = split_conjunction_owned(filter.predicate.clone());
        let mut input = &filter.input;
        while let LogicalPlan::Filter(below) = input.as_ref() {
            conditions.extend(split_conjunction_owned(below.predicate.clone()));
            input = &below.input;
        }
        if !has_row_of_none(input) {
            return self.0.rewrite(LogicalPlan::Filter(filter), config);
        }
        let input = Arc::clone(input);
        let (kept, others): (Vec<_>, Vec<_>) = conditions
            .into_iter()
            .partition(|one| one.column_refs().is_empty());
        let Some(kept) = conjunction(kept) else {
            return self.0.rewrite(LogicalPlan::Filter(filter), config);
        };
        let Some(others) = conjunction(others) else {
            return Ok(Transformed::no(LogicalPlan::Filter(filter)));
        };
        let others = LogicalPlan::Filter(Filter::try_new(others, input)?);
        self.0.rewrite(others, config)?.map_data(|below| {
            let filter = Filter::try_new(kept, Arc::new(below))?;
            Ok(LogicalPlan::Filter(filter))
        })
    }
}

/// Whether a plan is an aggregate with a group for no rows.
fn has_row_of_none(plan: &LogicalPlan) -> bool {
    let LogicalPlan::Aggregate(aggregate) = plan else {
        return false;
    };
    let mut keys = aggregate.group_expr.iter();
    aggregate.group_expr.is_empty() || keys.any(|key| matches!(key, Expr::GroupingSet(_)))
}
