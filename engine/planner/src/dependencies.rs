//! Functional dependencies of groups.
//!
//! Where a key of the groups determines some of the others, DataFusion has it determine all of them: of `GROUP BY
//! customer.id, orders.day` the `id`, which is the key of `customer`, would determine the `day`. So `ORDER BY id, day`
//! was one by `id`, and a query around it that groups by both did so by `id` alone. Here such a key has another name
//! while it groups, under which nobody knows that it determines anything. And a key of a table would be one of the rows
//! that are made of its lists: there it is hidden.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, LogicalPlan, LogicalPlanBuilder, Unnest,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::sql::sqlparser::ast::{Ident, TableFactor};

use crate::hidden::as_it_is;
use crate::tree::has_subquery;
use crate::walk::{Walk as _, WalkPlan as _};

/// What a key is called while it groups, with its place.
const NAME: &str = "flashmesh:key";
/// What marks a table of FROM whose dependencies are being looked at; to the planner it says nothing.
const MARK: &str = "flashmesh:planned";

/// The rule; place it behind those that group anew.
#[derive(Debug)]
pub struct TrueDependencies;

impl AnalyzerRule for TrueDependencies {
    fn name(&self) -> &str {
        "flashmesh_true_dependencies"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        with_true_dependencies(plan)
    }
}

/// The same of the tables of FROM, before a query around them is planned: by what determines what, DataFusion adds
/// keys to its GROUP BY.
#[derive(Debug)]
pub struct TrueTables;

impl RelationPlanner for TrueTables {
    fn plan_relation(
        &self,
        mut relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        if !mark(&mut relation) {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        let plan = context.plan(relation)?;
        let plan = match plan.schema().functional_dependencies().is_empty() {
            true => plan,
            false => with_true_dependencies(plan)?,
        };
        let planned = PlannedRelation::new(plan, None);
        Ok(RelationPlanning::Planned(Box::new(planned)))
    }
}

/// Marks a query, or the name of one; `false` where it is marked already, and of other tables.
fn mark(relation: &mut TableFactor) -> bool {
    match relation {
        TableFactor::Table {
            args: None,
            partitions,
            ..
        } if partitions.is_empty() => {
            partitions.push(Ident::new(MARK));
            true
        }
        TableFactor::Derived { subquery, .. } if subquery.settings.is_none() => {
            subquery.settings = Some(Vec::new());
            true
        }
        _ => false,
    }
}

fn with_true_dependencies(plan: LogicalPlan) -> Result<LogicalPlan> {
    let distinct_is_grouped = has_distinct_in_groups(&plan)?;
    // What is above one has its dependencies.
    let mut has_any = false;
    let plan = plan.change_up_with_subqueries(|node| {
        let node = match has_any {
            true => node.recompute_schema()?,
            false => node,
        };
        let aggregate = match node {
            LogicalPlan::Aggregate(aggregate) => without_repeated_keys(aggregate)?,
            LogicalPlan::Distinct(Distinct::All(input))
                if distinct_is_grouped && !input.schema().fields().is_empty() =>
            {
                has_any = true;
                grouped_by_all(input)?
            }
            LogicalPlan::Unnest(unnest)
                if !unnest.input.schema().functional_dependencies().is_empty() =>
            {
                has_any = true;
                return without_keys(unnest).map(Transformed::yes);
            }
            node => return Ok(Transformed::new_transformed(node, has_any)),
        };
        let keys = false_keys(&aggregate);
        if keys.is_empty() {
            let node = LogicalPlan::Aggregate(aggregate);
            return Ok(Transformed::new_transformed(node, has_any));
        }
        has_any = true;
        renamed(aggregate, &keys).map(Transformed::yes)
    });
    Ok(plan?.data)
}

/// Whether there are groups of what a DISTINCT gives.
fn has_distinct_in_groups(plan: &LogicalPlan) -> Result<bool> {
    let is_distinct = |node: &LogicalPlan| matches!(node, LogicalPlan::Distinct(Distinct::All(_)));
    let mut has_any = false;
    plan.walk_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            has_any = has_any || aggregate.input.exists(|node| Ok(is_distinct(node)))?;
        }
        Ok(match has_any {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(has_any)
}

/// DISTINCT as the groups that the optimizer makes of it, whose key determines the columns: made later, groups
/// around it would not have been asked about that.
fn grouped_by_all(input: Arc<LogicalPlan>) -> Result<Aggregate> {
    let columns = input.schema().columns().into_iter().map(Expr::Column);
    let columns = columns.collect();
    Aggregate::try_new(input, columns, Vec::new())
}

/// The same groups by each key once, as the columns have it: a key of two would have a column of its own under
/// another name.
fn without_repeated_keys(aggregate: Aggregate) -> Result<Aggregate> {
    let mut seen = HashSet::new();
    let keys = aggregate.group_expr.iter();
    let keys: Vec<_> = keys.filter(|key| seen.insert(*key)).cloned().collect();
    if keys.len() == aggregate.group_expr.len() {
        return Ok(aggregate);
    }
    let Aggregate {
        input,
        aggr_expr,
        schema,
        ..
    } = aggregate;
    Aggregate::try_new_with_schema(input, keys, aggr_expr, schema)
}

/// The same rows of lists, beside columns that determine nothing.
fn without_keys(unnest: Unnest) -> Result<LogicalPlan> {
    let schema = unnest.input.schema();
    let dependencies = schema.functional_dependencies().iter();
    let keys = dependencies.filter_map(|dependency| dependency.source_indices.first());
    let keys: HashSet<usize> = keys.copied().collect();
    let columns = schema.iter().enumerate().map(|(at, (table, field))| {
        let column = Expr::Column(Column::from((table, field)));
        match keys.contains(&at) {
            true => as_it_is(column).alias_qualified(table.cloned(), field.name()),
            false => column,
        }
    });
    let columns: Vec<_> = columns.collect();
    let input = LogicalPlanBuilder::from(Arc::clone(&unnest.input));
    let input = Arc::new(input.project(columns)?.build()?);
    Ok(LogicalPlan::Unnest(Unnest::try_new(
        input,
        unnest.exec_columns,
        unnest.options,
    )?))
}

/// The places of keys that are said to determine what they do not, one for each dependency that is false.
fn false_keys(aggregate: &Aggregate) -> HashSet<usize> {
    let keys = &aggregate.group_expr;
    let input = aggregate.input.schema();
    // `grouping(key)` names the key, until that is resolved; then this is asked again.
    let is_grouping = |part: &Expr| matches!(part, Expr::AggregateFunction(call) if call.func.name() == "grouping");
    let mut aggregates = aggregate.aggr_expr.iter();
    if aggregates.any(|expr| expr.exists(|part| Ok(is_grouping(part))).unwrap_or(true)) {
        return HashSet::new();
    }
    let all = aggregate.schema.functional_dependencies().iter();
    let wrong = all.filter(|dependency| {
        let sources = &dependency.source_indices;
        let determined = determined(sources.iter().filter_map(|at| keys.get(*at)), input);
        let is_known = |column: &Column| {
            let place = input.maybe_index_of_column(column);
            place.is_some_and(|at| determined.contains(&at))
        };
        // What is computed of columns that are determined is so as well.
        let is_determined = |key: &Expr| {
            !key.is_volatile()
                && !has_subquery(key).unwrap_or(true)
                && key.column_refs().into_iter().all(is_known)
        };
        let mut others = keys.iter().enumerate();
        others.any(|(at, key)| !sources.contains(&at) && !is_determined(key))
    });
    wrong
        .filter_map(|dependency| dependency.source_indices.first().copied())
        .collect()
}

/// The columns that some of them determine, they among them.
fn determined<'a>(keys: impl Iterator<Item = &'a Expr>, input: &DFSchema) -> HashSet<usize> {
    let columns = keys.filter_map(Expr::try_as_col);
    let places = columns.filter_map(|column| input.maybe_index_of_column(column));
    let mut known: HashSet<usize> = places.collect();
    loop {
        let before = known.len();
        for dependency in input.functional_dependencies().iter() {
            if dependency
                .source_indices
                .iter()
                .all(|at| known.contains(at))
            {
                known.extend(&dependency.target_indices);
            }
        }
        if known.len() == before {
            return known;
        }
    }
}

/// The same groups, some of whose keys have other names meanwhile.
fn renamed(aggregate: Aggregate, keys: &HashSet<usize>) -> Result<LogicalPlan> {
    let Aggregate {
        input,
        group_expr,
        aggr_expr,
        schema,
        ..
    } = aggregate;
    let group_expr = group_expr.into_iter().enumerate();
    let group_expr = group_expr.map(|(at, key)| match keys.contains(&at) {
        true => key.alias(format!("{NAME}:{at}")),
        false => key,
    });
    let groups = Aggregate::try_new(input, group_expr.collect(), aggr_expr)?;
    let columns = groups.schema.columns().into_iter().zip(schema.iter());
    let columns = columns.map(|(column, (table, field))| {
        let wanted = Column::from((table, field));
        match column == wanted {
            true => Expr::Column(column),
            false => Expr::Column(column).alias_qualified(table.cloned(), field.name()),
        }
    });
    let columns: Vec<_> = columns.collect();
    LogicalPlanBuilder::from(LogicalPlan::Aggregate(groups))
        .project(columns)?
        .build()
}
