//! Functions that stand where a table stands: `FROM lookup('t', …)` and the like; and tables as they
//! were.
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
mod rows;

use std::sync::Arc;

use datafusion::common::{Result, TableReference, plan_datafusion_err, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::planner::{
    PlannedRelation, RelationPlanner, RelationPlannerContext, RelationPlanning,
};
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::TableFactor;
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::{TableSnapshot, Workspace};

use crate::FlashTable;
use crate::authority::{self, Authority};
use crate::error::from_storage;
use crate::version::{NamedTable, TableName};
use arguments::Arguments;
pub use exec::is_store_function;
pub(crate) use exec::{StoreFunctionNode, StorePlanner, kernels_of_relation};

/// Plans the table functions of a database.
#[derive(Debug)]
pub struct StoreRelations {
    workspace: Arc<Workspace>,
    node: Arc<StorageNode>,
    authority: Arc<dyn Authority>,
    /// The catalog by which SQL names the database.
    catalog: String,
}

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

impl StoreRelations {
    /// The functions over the database of `workspace`, which SQL calls `catalog`; Programs run on
    /// `node`, for a session that may do what `authority` says.
    pub fn new(
        workspace: Arc<Workspace>,
        node: Arc<StorageNode>,
        authority: Arc<dyn Authority>,
        catalog: &str,
    ) -> Self {
        Self {
            workspace,
            node,
            authority,
            catalog: catalog.into(),
        }
    }

    /// Schema and name of a table or an index that an argument names.
    fn resolve(&self, name: &str, arguments: &Arguments<'_>) -> Result<TableName> {
        let name =
            TableReference::parse_str(name).resolve(&self.catalog, &arguments.default_schema());
        if name.catalog.as_ref() != self.catalog {
            return plan_err!(
                "{}: '{name}' is not in this database; write schema.name or name",
                arguments.function()
            );
        }
        Ok((name.schema.to_string(), name.table.to_string()))
    }

    /// A table that an argument names.
    fn table(&self, name: &str, arguments: &Arguments<'_>) -> Result<Table> {
        let name = self.resolve(name, arguments)?;
        let snapshot = self.workspace.snapshot(&name.0, &name.1);
        let table = self.named(name, snapshot.map_err(from_storage)?);
        self.check_readable(&table, "table", &table.snapshot().name)?;
        Ok(table)
    }

    fn named(&self, name: TableName, snapshot: Arc<TableSnapshot>) -> Table {
        let (workspace, node) = (Arc::clone(&self.workspace), Arc::clone(&self.node));
        let authority = Arc::clone(&self.authority);
        Table(NamedTable::new(workspace, node, authority, name, snapshot))
    }

    /// Refuses a table that the session may not read before anything is said of it; one of which
    /// it may not know, or what is of it, looks like one that is not there.
    fn check_readable(&self, table: &Table, kind: &'static str, name: &str) -> Result<()> {
        let capability = self.authority.capability(table.snapshot());
        if capability.rights.is_empty() {
            return Err(from_storage(StorageError::NotFound {
                kind,
                name: name.into(),
            }));
        }
        authority::check(&capability, Right::Read, table.snapshot())
    }
}

/// A table that a function reads.
struct Table(NamedTable);

impl Table {
    /// The version that the function is planned with.
    fn snapshot(&self) -> &Arc<TableSnapshot> {
        self.0.snapshot()
    }

    /// What its columns are qualified with.
    fn name(&self) -> &str {
        &self.0.name().1
    }

    /// A scan of all columns, with the ids of the rows if asked for.
    fn scan(&self, row_ids: bool) -> Result<LogicalPlanBuilder> {
        let provider = FlashTable::new(self.0.clone());
        self.scan_of(match row_ids {
            true => provider.with_row_ids(),
            false => provider,
        })
    }

    /// A scan of all columns, in which a search for near rows may use an index.
    fn near_scan(&self, approximate: bool) -> Result<LogicalPlanBuilder> {
        self.scan_of(FlashTable::new(self.0.clone()).with_approximate(approximate))
    }

    fn scan_of(&self, provider: FlashTable) -> Result<LogicalPlanBuilder> {
        LogicalPlanBuilder::scan(self.name(), provider_as_source(Arc::new(provider)), None)
    }

    /// A column that an argument names.
    fn column(&self, name: &str, arguments: &Arguments<'_>) -> Result<usize> {
        self.snapshot().schema.index_of(name).map_err(|_| {
            let fields = self.snapshot().schema.fields().iter();
            let names: Vec<_> = fields.map(|f| f.name().as_str()).collect();
            plan_datafusion_err!(
                "{}: table '{}' has no column '{name}'; it has: {}",
                arguments.function(),
                self.name(),
                names.join(", ")
            )
        })
    }
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
