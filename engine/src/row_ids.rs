//! The table of a change in the plan that finds its rows: their ids, and the version that is read.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, internal_err};
use datafusion::datasource::provider_as_source;
use datafusion::error::Result;
use datafusion::logical_expr::{LogicalPlan, TableScan, TableScanBuilder};
use flashmesh_planner::FlashTable;
use flashmesh_planner::walk::Walk as _;
use flashmesh_storage::table::TableSnapshot;

/// The version of `target` that the plan of a change reads, once its tables are pinned.
pub(crate) fn version_of(plan: &LogicalPlan, target: &FlashTable) -> Result<Arc<TableSnapshot>> {
    let mut version = None;
    plan.apply(|node| {
        if let LogicalPlan::TableScan(scan) = node
            && is_of(scan, target)
        {
            version = FlashTable::of(&scan.source);
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match version {
        Some(table) => Ok(Arc::clone(table.named().snapshot())),
        None => internal_err!("a change of a table that it does not read"),
    }
}

/// The plan with the ids of the rows of `target` among its columns, and their column.
pub(crate) fn with_ids(plan: LogicalPlan, target: &FlashTable) -> Result<(LogicalPlan, Column)> {
    let ids = target.clone().with_row_ids();
    let name = ids.row_id_column().to_owned();
    let source = provider_as_source(Arc::new(ids));
    let mut relation = None;
    // The first scan of the table is the statement's; others are of FROM.
    let with_ids = plan.transform_down(|node| match node {
        LogicalPlan::TableScan(scan) if relation.is_none() && is_of(&scan, target) => {
            relation = Some(scan.table_name.clone());
            let scan = TableScanBuilder::new(scan.table_name, Arc::clone(&source))
                .with_filters(scan.filters)
                .with_fetch(scan.fetch)
                .build()?;
            Ok(Transformed::new(
                LogicalPlan::TableScan(scan),
                true,
                TreeNodeRecursion::Jump,
            ))
        }
        node => Ok(Transformed::no(node)),
    })?;
    let plan = with_ids.data.transform_up(|node| {
        let node = node.recompute_schema()?;
        if let LogicalPlan::SubqueryAlias(alias) = &node
            && matches!(alias.input.as_ref(), LogicalPlan::TableScan(scan) if Some(&scan.table_name) == relation.as_ref() && scan.source.schema().index_of(&name).is_ok())
        {
            relation = Some(alias.alias.clone());
        }
        Ok(Transformed::yes(node))
    })?;
    Ok((plan.data, Column::new(relation, name)))
}

fn is_of(scan: &TableScan, target: &FlashTable) -> bool {
    let table = FlashTable::of(&scan.source);
    table.is_some_and(|table| {
        table.named().name() == target.named().name() && !table.named().is_past()
    })
}
