//! Which version of its tables a statement sees.
//!
//! Plans name tables: views, prepared statements, DataFrames and long sessions keep plans for
//! longer than a version lives. When a plan is about to run, [`PinTables`], the first of the rules
//! that every plan passes, takes the present version of all its tables at once, with what the
//! session may do with each, and puts them into the plan. So a statement sees one version of the
//! database, the one at which it starts to run, or, in a transaction, that of the transaction; but for
//! tables of which it names a past version ([`Past`](crate::named::Past)), which is looked up by then too.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::datasource::provider_as_source;
use datafusion::logical_expr::{Extension, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use flashmesh_storage::table::TableSnapshot;

use crate::FlashTable;
use crate::error::from_storage;
use crate::named::{NamedTable, TableName};
use crate::relations::StoreFunctionNode;
use crate::walk::WalkPlan as _;

/// Gives every table of a plan the version that the statement sees.
///
/// # Errors
/// `Plan` for a table that was dropped since the query was planned, or has other columns or keys.
#[derive(Debug)]
pub(crate) struct PinTables;

impl AnalyzerRule for PinTables {
    fn name(&self) -> &str {
        "pin_tables"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        pin_tables(plan)
    }
}

/// A plan with the present version of each table that has none yet, as [`PinTables`] says.
pub fn pin_tables(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut named = Vec::new();
    plan.walk_with_subqueries(|node| {
        if let Some(table) = table_of(node)
            && !table.is_pinned()
        {
            named.push(table);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let Some(first) = named.first().cloned() else {
        return Ok(plan);
    };
    // What was committed once does not change.
    named.retain(|table| !table.is_past());
    // All under one lock: no commit comes between two of them.
    let snapshots = first
        .workspace()
        .snapshots(named.iter().map(NamedTable::name))
        .map_err(from_storage)?;
    let names = named.iter().map(|table| table.name().clone());
    let versions: HashMap<_, _> = names.zip(snapshots).collect();
    let plan = plan.change_up_with_subqueries(|node| pin(node, &versions))?;
    Ok(plan.data)
}

/// The table that a node of a plan reads.
fn table_of(node: &LogicalPlan) -> Option<NamedTable> {
    match node {
        LogicalPlan::TableScan(scan) => Some(FlashTable::of(&scan.source)?.named().clone()),
        LogicalPlan::Extension(extension) => {
            let node = extension
                .node
                .as_any()
                .downcast_ref::<StoreFunctionNode>()?;
            Some(node.table().clone())
        }
        _ => None,
    }
}

fn pin(
    node: LogicalPlan,
    versions: &HashMap<TableName, Option<Arc<TableSnapshot>>>,
) -> Result<Transformed<LogicalPlan>> {
    let Some(table) = table_of(&node).filter(|table| !table.is_pinned()) else {
        return Ok(Transformed::no(node));
    };
    let table = match table.is_past() {
        true => table.pinned()?,
        false => table.at(versions.get(table.name()).cloned().flatten())?,
    };
    Ok(Transformed::yes(match node {
        LogicalPlan::TableScan(mut scan) => {
            if let Some(provider) = FlashTable::of(&scan.source) {
                scan.source = provider_as_source(Arc::new(provider.at(table)));
            }
            LogicalPlan::TableScan(scan)
        }
        LogicalPlan::Extension(extension) => {
            match extension.node.as_any().downcast_ref::<StoreFunctionNode>() {
                Some(node) => LogicalPlan::Extension(Extension {
                    node: Arc::new(node.at(table)?),
                }),
                None => LogicalPlan::Extension(extension),
            }
        }
        other => other,
    }))
}
