//! Join ordering by statistics.
//!
//! DataFusion joins in the order in which the query names its tables and only swaps the two
//! sides of a join. The store knows exact row counts, bounds and estimates of distinct values, so
//! this rule takes a tree of inner joins apart into relations and predicates ([`graph`]),
//! estimates the size of every sub-join ([`Estimate`]), and finds the cheapest tree
//! ([`search`]; exhaustive dynamic programming over connected subsets, Moerkotte & Neumann,
//! "Analysis of two existing and one new dynamic programming algorithm", VLDB 2006, for few
//! relations, greedy for many).
//!
//! A semi join over a tree of inner joins whose keys all come from one relation is moved down
//! onto that relation when it keeps few of its rows.
//!
//! Nothing is changed where a relation's size is unknown.

mod graph;
mod search;

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::error::Result;
use datafusion::logical_expr::{Join, JoinType, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use graph::JoinGraph;

use crate::cost::Estimate;
use crate::walk::Walk as _;

/// A semi join moves down when it is expected to keep less than this share of the rows.
const SEMI_JOIN_SELECTIVE: f64 = 0.5;
/// A new order must be expected to cost less than this share of the present one, so that the
/// optimiser's passes come to rest.
const WORTH_IT: f64 = 0.9;

/// The rule; place it after `push_down_filter` and before `optimize_projections`.
#[derive(Debug, Default)]
pub struct JoinOrder;

impl OptimizerRule for JoinOrder {
    fn name(&self) -> &str {
        "flashmesh_join_order"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        reorder(plan)
    }
}

/// Reorders every tree of inner joins in `plan`.
fn reorder(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if let Some(moved) = push_semi_join(&plan)? {
        return Ok(Transformed::yes(reorder(moved)?.data));
    }
    let Some(mut graph) = JoinGraph::of(&plan) else {
        return plan.map_children(reorder);
    };
    // The relations may hold join trees of their own, e.g. in a derived table.
    let mut changed = false;
    for relation in &mut graph.relations {
        let inner = reorder(relation.plan.clone())?;
        changed |= inner.transformed;
        relation.plan = inner.data;
    }
    let estimates: Option<Vec<Estimate>> = graph
        .relations
        .iter()
        .map(|r| Estimate::of(&r.plan))
        .collect();
    let better = estimates.and_then(|estimates| {
        let model = search::Model::new(&graph, estimates);
        let present = model.cost_of(&graph.present)?;
        let (best, cost) = model.best()?;
        (cost < present * WORTH_IT).then_some(best)
    });
    match better {
        Some(tree) => {
            let joined = graph.build(&tree)?;
            Ok(Transformed::yes(with_schema_of(joined, &plan)?))
        }
        None if changed => {
            let joined = graph.build(&graph.present)?;
            Ok(Transformed::yes(with_schema_of(joined, &plan)?))
        }
        None => Ok(Transformed::no(plan)),
    }
}

/// `plan` with the columns of `wanted` in their order.
fn with_schema_of(plan: LogicalPlan, wanted: &LogicalPlan) -> Result<LogicalPlan> {
    if plan.schema() == wanted.schema() {
        return Ok(plan);
    }
    LogicalPlanBuilder::from(plan)
        .project(
            wanted
                .schema()
                .columns()
                .into_iter()
                .map(datafusion::logical_expr::Expr::Column),
        )?
        .build()
}

/// `semi(a ⋈ b ⋈ …, s)` as `semi(a, s) ⋈ b ⋈ …`, where the keys are all of `a` and few of its rows
/// stay. The same holds for no other kind of join, and only without a further filter.
fn push_semi_join(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    let LogicalPlan::Join(semi) = plan else {
        return Ok(None);
    };
    if semi.join_type != JoinType::LeftSemi || semi.filter.is_some() || semi.on.is_empty() {
        return Ok(None);
    }
    let Some(mut graph) = JoinGraph::of(&semi.left) else {
        return Ok(None);
    };
    let mut owner = None;
    for (key, _) in &semi.on {
        match graph.relations_of(key).as_slice() {
            [one] if owner.is_none_or(|o| o == *one) => owner = Some(*one),
            _ => return Ok(None),
        }
    }
    let Some(owner) = owner else { return Ok(None) };
    let relation = &mut graph.relations[owner];
    let moved = LogicalPlan::Join(Join::try_new(
        Arc::new(relation.plan.clone()),
        Arc::clone(&semi.right),
        semi.on.clone(),
        None,
        JoinType::LeftSemi,
        semi.join_constraint,
        semi.null_equality,
        semi.null_aware,
    )?);
    let (Some(before), Some(after)) = (Estimate::of(&relation.plan), Estimate::of(&moved)) else {
        return Ok(None);
    };
    if after.rows >= before.rows * SEMI_JOIN_SELECTIVE {
        return Ok(None);
    }
    relation.plan = moved;
    let joined = graph.build(&graph.present)?;
    Ok(Some(with_schema_of(joined, plan)?))
}
