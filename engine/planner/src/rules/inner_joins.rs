//! Keys of inner joins that DataFusion loses, or takes for others.
//!
//! It joins the relations of several inner joins in another order, so that there are fewer cross joins, by keys of
//! which each side is of one relation. A key such as `a.x + b.y = c.z` it leaves out, without a word; and for all
//! of the joins NULL equals NULL, or does not, as it is in the topmost. To keys by which NULL equals NULL it adds
//! equalities by which it does not. Here such joins stay as they are: [`JoinOrder`](crate::join_order::JoinOrder)
//! knows these keys.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchemaRef, NullEquality, Result};
use datafusion::logical_expr::{EmptyRelation, Expr, Filter, Join, JoinType, LogicalPlan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::walk::Walk as _;

/// The rule that makes keys of conditions.
#[derive(Debug)]
pub(super) struct KeysOfOneKind(pub Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for KeysOfOneKind {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        match &plan {
            LogicalPlan::Join(join) if equals_nulls(join) => Ok(Transformed::no(plan)),
            _ => self.0.rewrite(plan, config),
        }
    }
}

/// Whether a join has keys by which NULL equals NULL.
fn equals_nulls(join: &Join) -> bool {
    join.null_equality == NullEquality::NullEqualsNull && !join.on.is_empty()
}

/// The rule that orders inner joins.
#[derive(Debug)]
pub(super) struct KeysOfTwo(pub Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for KeysOfTwo {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let below = |input: LogicalPlan| self.rewrite(input, config);
        let joins = match &plan {
            LogicalPlan::Filter(filter) => filter.input.as_ref(),
            joins => joins,
        };
        let mut relations = vec![];
        relations_of(joins, &mut relations);
        if relations.len() < 2 {
            let changed = plan
                .map_uncorrelated_subqueries(below)?
                .transform_sibling(|plan| plan.map_children(below))?;
            return match changed.transformed {
                true => changed.map_data(LogicalPlan::recompute_schema),
                false => Ok(changed),
            };
        }
        if !has_keys_of_two(joins, &relations) {
            let apart = map_joins(plan, &mut |relation| below(relation))?;
            return apart.transform_data(|plan| plan.map_uncorrelated_subqueries(below));
        }
        // The rule goes on below by itself, where this one would not see what it does: it is given the joins alone.
        let mut places: Vec<(DFSchemaRef, LogicalPlan)> = vec![];
        let joins = map_joins(plan, &mut |relation| {
            // A place is known by the address of its schema.
            let schema = Arc::new(relation.schema().as_ref().clone());
            places.push((Arc::clone(&schema), relation));
            let place = EmptyRelation {
                produce_one_row: false,
                schema,
            };
            Ok(Transformed::yes(LogicalPlan::EmptyRelation(place)))
        })?;
        let ordered = self.0.rewrite(joins.data, config)?;
        let mut has_changed = ordered.transformed;
        let whole = ordered.data.transform_up(|node| {
            let LogicalPlan::EmptyRelation(place) = &node else {
                return Ok(Transformed::no(node));
            };
            let of_place = |(schema, _): &(DFSchemaRef, _)| Arc::ptr_eq(schema, &place.schema);
            let Some(found) = places.iter().position(of_place) else {
                return Ok(Transformed::no(node));
            };
            let relation = below(places.swap_remove(found).1)?;
            has_changed |= relation.transformed;
            Ok(Transformed::yes(relation.data))
        })?;
        Ok(Transformed::new_transformed(whole.data, has_changed))
    }
}

/// The relations that inner joins join.
fn relations_of<'a>(plan: &'a LogicalPlan, relations: &mut Vec<&'a LogicalPlan>) {
    match plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            relations_of(&join.left, relations);
            relations_of(&join.right, relations);
        }
        relation => relations.push(relation),
    }
}

/// The plan with the relations changed that inner joins join: its own, or those below its filter.
fn map_joins(
    plan: LogicalPlan,
    change: &mut impl FnMut(LogicalPlan) -> Result<Transformed<LogicalPlan>>,
) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Filter(Filter { .. }) => plan.map_children(|joins| in_joins(joins, change)),
        joins => in_joins(joins, change),
    }
}

fn in_joins(
    plan: LogicalPlan,
    change: &mut impl FnMut(LogicalPlan) -> Result<Transformed<LogicalPlan>>,
) -> Result<Transformed<LogicalPlan>> {
    match &plan {
        LogicalPlan::Join(join) if join.join_type == JoinType::Inner => {
            plan.map_children(|input| in_joins(input, change))
        }
        _ => change(plan),
    }
}

/// Whether all keys of these joins are of two relations each, and NULL equals nothing.
fn has_keys_of_two(joins: &LogicalPlan, relations: &[&LogicalPlan]) -> bool {
    let LogicalPlan::Join(join) = joins else {
        return true;
    };
    if join.join_type != JoinType::Inner {
        return true;
    }
    let is_of_one = |side: &Expr| {
        let columns = side.column_refs();
        let has_all = |relation: &&LogicalPlan| {
            let schema = relation.schema();
            columns.iter().all(|column| schema.has_column(column))
        };
        !columns.is_empty() && relations.iter().filter(|one| has_all(one)).count() == 1
    };
    !equals_nulls(join)
        && join.on.iter().all(|(l, r)| is_of_one(l) && is_of_one(r))
        && has_keys_of_two(&join.left, relations)
        && has_keys_of_two(&join.right, relations)
}
