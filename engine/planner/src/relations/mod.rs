//! Functions that stand where a table stands: `FROM lookup('t', …)` and the like; and tables as they
//! were, and rows of VALUES.
//!
//! Each takes constants or subqueries. Those that are scans with a shape of their own become
//! ordinary plans here (a lookup is a filter on the key, or a join with it), so that everything
//! that holds for scans holds for them.

mod arguments;
mod exec;
mod graph;
mod kernel;
mod near;
mod past;
mod planner;
mod rows;
mod store;
mod values;

use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::TableFactor;

use arguments::Arguments;
pub use exec::is_store_function;
pub(crate) use exec::{StoreFunctionNode, kernels_of_relation, table_of_function};
pub(crate) use planner::StorePlanner;
pub use store::StoreRelations;

/// A function, the text of its arguments, and how it is planned.
type Function = (
    &'static str,
    &'static str,
    fn(&StoreRelations, Arguments<'_>) -> Result<LogicalPlan>,
);

/// The functions.
const FUNCTIONS: &[Function] = &[
    ("lookup", "'table', keys", rows::lookup),
    ("fetch", "'table', row_ids", rows::fetch),
    ("matches", "'table', 'column', needle", rows::matches),
    (
        "nearest",
        "'table', 'column', query [, k] [, metric => 'l2'] [, exact => true]",
        near::nearest,
    ),
    (
        "expand",
        "'index', vertices, hops [, direction => 'out']",
        graph::expand,
    ),
    (
        "bfs",
        "'index', vertices [, max_depth] [, direction => 'out']",
        graph::bfs,
    ),
    (
        "shortest_path",
        "'index', from, to [, 'weight column'] [, direction => 'out']",
        graph::shortest_path,
    ),
    (
        "connected_components",
        "'index'",
        graph::connected_components,
    ),
    (
        "page_rank",
        "'index' [, damping => 0.85] [, max_iterations => 100] [, tolerance => 1e-6]",
        graph::page_rank,
    ),
];

/// Names of the table functions with the text of their arguments.
pub fn table_functions() -> impl Iterator<Item = (&'static str, &'static str)> {
    FUNCTIONS.iter().map(|(name, usage, _)| (*name, *usage))
}

impl RelationPlanner for StoreRelations {
    fn plan_relation(
        &self,
        relation: TableFactor,
        context: &mut dyn RelationPlannerContext,
    ) -> Result<RelationPlanning> {
        let relation = match relation {
            TableFactor::Table {
                name,
                alias,
                args: None,
                version: Some(version),
                ..
            } => {
                let planned = past::plan(self, name, version, alias, context)?;
                return Ok(RelationPlanning::Planned(Box::new(planned)));
            }
            TableFactor::Table {
                version: Some(version),
                ..
            } => return plan_err!("only a table has versions: {version}"),
            derived @ TableFactor::Derived { .. } => return values::plan(derived, context),
            other => other,
        };
        let called = match &relation {
            TableFactor::Table {
                name,
                args: Some(_),
                ..
            } => name.to_string().to_ascii_lowercase(),
            _ => return Ok(RelationPlanning::Original(Box::new(relation))),
        };
        let built_in = FUNCTIONS.iter().find(|(name, ..)| *name == called);
        let kernel = match built_in {
            Some(_) => None,
            None => kernel::find(self, &called),
        };
        let (name, usage) = match (built_in, &kernel) {
            (Some((name, usage, _)), _) => (*name, (*usage).to_string()),
            (None, Some(kernel)) => (called.as_str(), kernel.usage()),
            (None, None) => return Ok(RelationPlanning::Original(Box::new(relation))),
        };
        let TableFactor::Table {
            args: Some(args),
            alias,
            ..
        } = relation
        else {
            return plan_err!("{name} is called as {name}({usage})");
        };
        let arguments = Arguments::new(name, &usage, args.args, context)?;
        let plan = match (built_in, kernel) {
            (Some((_, _, plan)), _) => plan(self, arguments)?,
            (None, Some(kernel)) => kernel.plan(self, arguments)?,
            (None, None) => unreachable!("one of them was found"),
        };
        // Its columns are the function's own, whatever table they come from.
        let qualifier = alias.as_ref().map_or_else(
            || name.to_string(),
            |alias| context.normalize_ident(alias.name.clone()),
        );
        let plan = LogicalPlanBuilder::from(plan).alias(qualifier)?.build()?;
        let alias = alias.filter(|alias| !alias.columns.is_empty());
        Ok(RelationPlanning::Planned(Box::new(PlannedRelation::new(
            plan, alias,
        ))))
    }
}
