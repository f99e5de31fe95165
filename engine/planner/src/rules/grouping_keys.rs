//! Expressions in sets of groups, `ROLLUP (d + 1)`.
//!
//! Where a rule changes one, by a cast that its type asks for, DataFusion keeps the name of the whole set instead
//! of the expression's, and what reads the group finds no such column. Here they are columns of the input.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, Result};
use datafusion::logical_expr::{Aggregate, Expr, GroupingSet, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::map_named_expressions;
use crate::walk::{Walk as _, WalkPlan as _};

/// The rule; place it before all that change expressions.
#[derive(Debug)]
pub struct GroupingKeys;

impl AnalyzerRule for GroupingKeys {
    fn name(&self) -> &str {
        "flashmesh_grouping_keys"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = plan.change_up_with_subqueries(|node| match node {
            LogicalPlan::Aggregate(aggregate) => as_columns(aggregate),
            other => Ok(Transformed::no(other)),
        })?;
        Ok(plan.data)
    }
}

fn as_columns(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let mut keys: Vec<Expr> = vec![];
    for group in &aggregate.group_expr {
        let Expr::GroupingSet(set) = group else {
            continue;
        };
        for key in set.distinct_expr() {
            // A cast is called like what it casts, and changed by no rule.
            let stays = matches!(key, Expr::Column(_) | Expr::Cast(_) | Expr::TryCast(_));
            if !stays && !keys.contains(key) {
                keys.push(key.clone());
            }
        }
    }
    if keys.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let names = keys.iter().map(|key| key.schema_name().to_string());
    let names: Vec<String> = names.collect();
    let columns = aggregate.input.schema().columns();
    let columns = columns.into_iter().map(Expr::Column);
    let computed = keys.iter().zip(&names);
    let computed = computed.map(|(key, name)| key.clone().unalias().alias(name));
    let input = LogicalPlanBuilder::from(Arc::clone(&aggregate.input));
    let input = input.project(columns.chain(computed))?.build()?;
    let column_of = |expr: Expr| match keys.iter().position(|key| *key == expr) {
        Some(place) => {
            let column = Column::new_unqualified(names[place].clone());
            Transformed::yes(Expr::Column(column))
        }
        None => Transformed::no(expr),
    };
    // What is asked of the groups, as by grouping(…), has their expressions in it.
    let around = LogicalPlan::Aggregate(aggregate);
    let changed = map_named_expressions(around, |expr| {
        expr.transform_down(|expr| Ok(column_of(expr)))
    })?;
    let LogicalPlan::Aggregate(changed) = changed.data else {
        return Ok(changed);
    };
    let group_expr = changed.group_expr.into_iter().map(|group| match group {
        Expr::GroupingSet(set) => Expr::GroupingSet(nameless(set)),
        group => group,
    });
    Ok(Transformed::yes(LogicalPlan::Aggregate(
        Aggregate::try_new(Arc::new(input), group_expr.collect(), changed.aggr_expr)?,
    )))
}

/// The set without names within it: its columns have theirs.
fn nameless(set: GroupingSet) -> GroupingSet {
    let bare = |exprs: Vec<Expr>| exprs.into_iter().map(Expr::unalias).collect();
    match set {
        GroupingSet::Rollup(exprs) => GroupingSet::Rollup(bare(exprs)),
        GroupingSet::Cube(exprs) => GroupingSet::Cube(bare(exprs)),
        GroupingSet::GroupingSets(sets) => {
            GroupingSet::GroupingSets(sets.into_iter().map(bare).collect())
        }
    }
}
