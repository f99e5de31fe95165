//! Optimised plans of queries that were run before.
//!
//! A short query over an index takes less time than its optimising. A query that is the same as an
//! earlier one of the session (as a plan: however it was written), over the same versions of its
//! tables and under the same options, takes that one's optimised plan; only operators are made
//! anew, as they hold what happens while they run. The plans are kept without their tables: what
//! was dropped or overwritten is not kept from being freed.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Constraints, Result};
use datafusion::config::ConfigOptions;
use datafusion::datasource::{MemTable, provider_as_source, source_as_provider};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan, TableSource, Volatility};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use quick_cache::sync::Cache;

use flashmesh_storage::segment::TableId;

use crate::FlashTable;
use crate::hidden::is_maybe_null;
use crate::kernels::KernelFunction;
use crate::named::TableName;
use crate::version::pin_tables;
use crate::walk::{Walk as _, WalkPlan as _};

/// Plans that a session keeps.
const PLANS: usize = 256;

/// Nodes of the largest plan that is kept: for a larger one optimising is a small part of running.
const NODES: usize = 64;

/// The plans of a session.
#[derive(Debug)]
struct PlanCache {
    plans: Cache<Query, Arc<LogicalPlan>>,
    reused: AtomicU64,
}

/// Gives a session a cache of its own.
pub(crate) fn with_plan_cache(config: SessionConfig) -> SessionConfig {
    config.with_extension(Arc::new(PlanCache {
        plans: Cache::new(PLANS),
        reused: AtomicU64::new(0),
    }))
}

/// How many queries of a session took the plan of an earlier one.
pub fn plans_reused(state: &SessionState) -> u64 {
    let cache = state.config().get_extension::<PlanCache>();
    cache.map_or(0, |cache| cache.reused.load(Ordering::Relaxed))
}

/// The operators of a query, at the present version of its tables.
///
/// # Errors
/// Those of [`SessionState::create_physical_plan`].
pub async fn physical_plan(
    state: &SessionState,
    query: &LogicalPlan,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(rows) = rows_at_hand(state, query).await? {
        return Ok(rows);
    }
    let cache = state.config().get_extension::<PlanCache>();
    let Some(cache) = cache.filter(|_| is_repeatable(query)) else {
        return state.create_physical_plan(query).await;
    };
    let pinned = pin_tables(query.clone())?;
    let tables = tables(&pinned)?;
    let versions: Vec<_> = tables.iter().map(version).collect();
    if !have_one_version(&versions) {
        return state.create_physical_plan(query).await;
    }
    let key = Query {
        plan: without_tables(pinned.clone())?,
        versions,
        options: Arc::clone(state.config().options()),
    };
    let optimized = match cache.plans.get(&key) {
        Some(known) => {
            cache.reused.fetch_add(1, Ordering::Relaxed);
            with_tables(known.as_ref().clone(), &tables)?
        }
        None => {
            let optimized = state.optimize(&pinned)?;
            if is_repeatable(&optimized) {
                let kept = without_tables(optimized.clone())?;
                cache.plans.insert(key, Arc::new(kept));
            }
            optimized
        }
    };
    let planner = state.query_planner();
    planner.create_physical_plan(&optimized, state).await
}

/// The operator of a query that is rows in memory and no more, as the answer of a statement that has
/// run: to plan it would take longer than many a statement. Such rows are the session's own.
async fn rows_at_hand(
    state: &SessionState,
    query: &LogicalPlan,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let LogicalPlan::TableScan(scan) = query else {
        return Ok(None);
    };
    if scan.projection.is_some() || !scan.filters.is_empty() || scan.fetch.is_some() {
        return Ok(None);
    }
    let table = source_as_provider(&scan.source)?;
    match table.downcast_ref::<MemTable>() {
        Some(table) => table.scan(state, None, &[], None).await.map(Some),
        None => Ok(None),
    }
}

/// A query with the versions of its tables that it sees now, where running it again gives the same; `None`
/// for one that reads something else, or has functions that depend on more than their arguments.
///
/// # Errors
/// Those of [`pin_tables`].
pub fn repeatable(query: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    match is_repeatable(query) {
        true => pin_tables(query.clone()).map(Some),
        false => Ok(None),
    }
}

/// What a plan depends on.
#[derive(Debug, Clone)]
struct Query {
    plan: LogicalPlan,
    versions: Vec<Version>,
    /// A session's options are changed by putting others in their place.
    options: Arc<ConfigOptions>,
}

impl PartialEq for Query {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.options, &other.options)
            && self.versions == other.versions
            && self.plan == other.plan
    }
}

impl Eq for Query {}

impl Hash for Query {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.versions.hash(state);
        self.plan.hash(state);
    }
}

/// Whether a plan means the same each time: it reads tables of the database and nothing else, and
/// its functions depend on their arguments alone.
fn is_repeatable(plan: &LogicalPlan) -> bool {
    let (mut nodes, mut repeatable) = (0, true);
    let walked = plan.walk_with_subqueries(|node| {
        nodes += 1;
        repeatable &= nodes <= NODES && is_repeatable_node(node);
        Ok(match repeatable {
            true => TreeNodeRecursion::Continue,
            false => TreeNodeRecursion::Stop,
        })
    });
    walked.is_ok() && repeatable
}

fn is_repeatable_node(node: &LogicalPlan) -> bool {
    let is_known = match node {
        LogicalPlan::TableScan(scan) => {
            FlashTable::of(&scan.source).is_some_and(|table| table.is_plain())
        }
        LogicalPlan::Projection(_)
        | LogicalPlan::Filter(_)
        | LogicalPlan::Window(_)
        | LogicalPlan::Aggregate(_)
        | LogicalPlan::Sort(_)
        | LogicalPlan::Join(_)
        | LogicalPlan::Union(_)
        | LogicalPlan::EmptyRelation(_)
        | LogicalPlan::Subquery(_)
        | LogicalPlan::SubqueryAlias(_)
        | LogicalPlan::Limit(_)
        | LogicalPlan::Values(_)
        | LogicalPlan::Distinct(_) => true,
        _ => false,
    };
    let mut repeatable = is_known;
    let walked = node.walk_expressions(|expr| {
        repeatable = repeatable && !expr.exists(|expr| Ok(!is_repeatable_expr(expr)))?;
        Ok(TreeNodeRecursion::Continue)
    });
    walked.is_ok() && repeatable
}

/// Without what is below it.
fn is_repeatable_expr(expr: &Expr) -> bool {
    let volatility = match expr {
        Expr::ScalarVariable(..) | Expr::Placeholder(_) => return false,
        // A query's calls of kernels are that query's.
        Expr::ScalarFunction(call) if KernelFunction::of(&call.func).is_some() => return false,
        Expr::ScalarFunction(call) if is_maybe_null(&call.func) => Volatility::Immutable,
        Expr::ScalarFunction(call) => call.func.signature().volatility,
        Expr::AggregateFunction(call) => call.func.signature().volatility,
        Expr::WindowFunction(call) => call.fun.signature().volatility,
        _ => return true,
    };
    volatility == Volatility::Immutable
}

/// The tables of a plan that has these versions of them.
fn tables(plan: &LogicalPlan) -> Result<Vec<FlashTable>> {
    let mut tables = Vec::new();
    plan.walk_with_subqueries(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && let Some(table) = FlashTable::of(&scan.source)
        {
            tables.push(table);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(tables)
}

/// What a table is called, which one it is, and how often it has been changed.
type Version = (TableName, TableId, u64);

fn version(table: &FlashTable) -> Version {
    let snapshot = table.named().snapshot();
    (table.named().name().clone(), snapshot.id, snapshot.version)
}

/// Whether each table is there at one version only: a plan may have been put together of several
/// that had begun to run.
fn have_one_version(versions: &[Version]) -> bool {
    let differ = |a: &Version, b: &Version| a.0 == b.0 && a != b;
    let mut of_table = versions.iter().enumerate();
    of_table.all(|(i, a)| !versions[..i].iter().any(|b| differ(a, b)))
}

/// What stands for a table in a plan that is kept.
#[derive(Debug)]
struct Absent {
    name: TableName,
    schema: SchemaRef,
    constraints: Constraints,
}

impl TableSource for Absent {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn constraints(&self) -> Option<&Constraints> {
        Some(&self.constraints)
    }
}

fn without_tables(plan: LogicalPlan) -> Result<LogicalPlan> {
    with_sources(plan, |scan| {
        FlashTable::of(&scan.source).map(|table| {
            let constraints = scan.source.constraints().cloned();
            Arc::new(Absent {
                name: table.named().name().clone(),
                schema: scan.source.schema(),
                constraints: constraints.unwrap_or_default(),
            }) as _
        })
    })
}

fn with_tables(plan: LogicalPlan, tables: &[FlashTable]) -> Result<LogicalPlan> {
    with_sources(plan, |scan| {
        let absent = scan.source.downcast_ref::<Absent>();
        let table = absent.and_then(|a| tables.iter().find(|t| *t.named().name() == a.name));
        table.map(|table| provider_as_source(Arc::new(table.clone())))
    })
}

fn with_sources(
    plan: LogicalPlan,
    source: impl Fn(&TableScan) -> Option<Arc<dyn TableSource>>,
) -> Result<LogicalPlan> {
    let plan = plan.change_up_with_subqueries(|node| match node {
        LogicalPlan::TableScan(mut scan) => match source(&scan) {
            Some(other) => {
                scan.source = other;
                Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
            }
            None => Ok(Transformed::no(LogicalPlan::TableScan(scan))),
        },
        other => Ok(Transformed::no(other)),
    })?;
    Ok(plan.data)
}
