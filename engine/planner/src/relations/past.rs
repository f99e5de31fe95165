//! `FROM t AT (VERSION => 17)`, `FROM t AT (TIMESTAMP => …)`: a table as it was.

use std::sync::Arc;

use datafusion::common::{DFSchema, Result, TableReference, plan_err};
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::planner::{PlannedRelation, RelationPlannerContext};
use datafusion::logical_expr::{Expr, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast::{
    self, FunctionArg, FunctionArgExpr, FunctionArguments, ObjectName, TableAlias, TableVersion,
};
use flashmesh_storage::StorageError;
use flashmesh_storage::capability::Right;
use flashmesh_storage::table::TableSnapshot;

use super::store::StoreRelations;
use crate::FlashTable;
use crate::authority;
use crate::error::from_storage;
use crate::named::{Moment, Past};
use crate::walk::Walk as _;

const USAGE: &str = "AT is written t AT (VERSION => number) or t AT (TIMESTAMP => time)";

/// The scan of a table as it was.
///
/// # Errors
/// `Plan` for what is no table of the database, and for a version that is not there.
pub(super) fn plan(
    store: &StoreRelations,
    name: ObjectName,
    version: TableVersion,
    alias: Option<TableAlias>,
    context: &mut dyn RelationPlannerContext,
) -> Result<PlannedRelation> {
    let past = past_of(version, context)?;
    let reference = context.object_name_to_table_reference(name)?;
    let schema = &context.context_provider().options().catalog.default_schema;
    let resolved = reference.clone().resolve(&store.catalog, schema);
    if resolved.catalog.as_ref() != store.catalog {
        return plan_err!("AT: '{reference}' is not in this database");
    }
    let name = store.place_of(&resolved);
    let present = match store.workspace.snapshot(&name.0, &name.1) {
        Err(StorageError::NotFound { .. }) => None,
        found => Some(found.map_err(from_storage)?),
    };
    // One of which the session may not know looks like one that is not there.
    let is_known = |table: &Arc<TableSnapshot>| {
        let capability = store.authority.capability(table);
        !capability.rights.is_empty()
    };
    let Some(present) = present.filter(is_known) else {
        return plan_err!(
            "AT: there is no table '{reference}' on flash; what is no table (a view, a file, a table of system) has no versions, and a table that was dropped has none any more"
        );
    };
    // Before anything is said of its versions.
    authority::check(&store.authority.capability(&present), Right::Read, &present)?;
    // Plans are compared by the names of what they scan: of subqueries that differ in the version alone,
    // DataFusion would compute one for all.
    let scanned = TableReference::bare(format!("{reference} AT ({past})"));
    let table = store.named(name, present).0.in_the_past(past)?;
    let source = provider_as_source(Arc::new(FlashTable::new(table)));
    let scan = LogicalPlanBuilder::scan(scanned, source, None)?;
    let scan = scan.alias(reference)?.build()?;
    Ok(PlannedRelation::new(scan, alias))
}

fn past_of(version: TableVersion, context: &mut dyn RelationPlannerContext) -> Result<Past> {
    let (moment, expr) = match version {
        TableVersion::ForSystemTimeAsOf(expr) | TableVersion::TimestampAsOf(expr) => {
            (Moment::Time, expr)
        }
        TableVersion::VersionAsOf(expr) => (Moment::Version, expr),
        TableVersion::Function(ast::Expr::Function(function)) => argument(function)?,
        TableVersion::Function(_) => return plan_err!("{USAGE}"),
        TableVersion::Changes { .. } => {
            return plan_err!(
                "CHANGES is not supported; join t AT (VERSION => …) with t to see what has changed"
            );
        }
    };
    let expr = context.sql_to_expr(expr, &DFSchema::empty())?;
    let is_query = |expr: &Expr| {
        Ok(matches!(
            expr,
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_)
        ))
    };
    if expr.exists(is_query)? {
        return plan_err!("AT takes a constant, not a subquery");
    }
    Ok(Past { moment, expr })
}

/// What AT says.
fn argument(function: ast::Function) -> Result<(Moment, ast::Expr)> {
    let called = function.name.to_string();
    if !called.eq_ignore_ascii_case("at") {
        return plan_err!("{called} is not supported; {USAGE}");
    }
    let FunctionArguments::List(list) = function.args else {
        return plan_err!("{USAGE}");
    };
    let Ok([argument]) = <[FunctionArg; 1]>::try_from(list.args) else {
        return plan_err!("{USAGE}");
    };
    let (name, value) = match argument {
        FunctionArg::Named { name, arg, .. } => (name.value, arg),
        FunctionArg::ExprNamed { name, arg, .. } => (name.to_string(), arg),
        FunctionArg::Unnamed(_) => return plan_err!("{USAGE}"),
    };
    let FunctionArgExpr::Expr(value) = value else {
        return plan_err!("{USAGE}");
    };
    match name.to_ascii_lowercase().as_str() {
        "version" => Ok((Moment::Version, value)),
        "timestamp" => Ok((Moment::Time, value)),
        other => plan_err!("AT knows no '{other}'; {USAGE}"),
    }
}
