//! `ORDER BY … LIMIT k` into the scan.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use flashmesh_pushdown::Output;

use super::{change_scan, note_at_scan, scan_below};
use crate::scan::FlashScanExec;
use crate::scan::spec::ScanSpec;
use crate::walk::Walk as _;

/// Lets each stream of a scan give only the first *k* rows of an order to the sort that wants
/// *k* of all. The sort stays and merges the streams' rows.
#[derive(Debug)]
pub struct TopKIntoScan;

impl PhysicalOptimizerRule for TopKIntoScan {
    fn name(&self) -> &str {
        "TopKIntoScan"
    }

    fn schema_check(&self) -> bool {
        true
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(sort) = node.downcast_ref::<SortExec>() else {
                return Ok(Transformed::no(node));
            };
            let Some(limit) = sort.fetch() else {
                return Ok(Transformed::no(node));
            };
            let pushed = match scan_below(sort.input()) {
                // The rule ran before, or an inner limit must be applied first.
                Ok(builder) if has_limit(builder.spec()) => return Ok(Transformed::no(node)),
                Ok(mut builder) => builder
                    .top_k(sort.expr(), limit)
                    .and_then(|()| builder.build()),
                Err(Some(reason)) => Err(reason),
                Err(None) => return Ok(Transformed::no(node)),
            };
            match pushed {
                Ok(scan) => {
                    let scan = Arc::new(scan);
                    change_scan(Arc::clone(&node), |before| {
                        without_keys(Arc::clone(&scan), &before.schema())
                    })
                }
                Err(reason) => {
                    let keys: Vec<_> = sort.expr().iter().map(ToString::to_string).collect();
                    let text = format!("order by {} limit {limit}", keys.join(", "));
                    note_at_scan(Arc::clone(&node), &text, &reason)
                }
            }
        })
        .data()
    }
}

fn has_limit(spec: &ScanSpec) -> bool {
    matches!(&spec.output, Output::Rows { limit: Some(_), .. })
}

/// `scan` with the columns of `schema` alone: keys that were added behind them go.
fn without_keys(scan: Arc<FlashScanExec>, schema: &Schema) -> Result<Arc<dyn ExecutionPlan>> {
    if scan.schema().fields().len() == schema.fields().len() {
        return Ok(scan);
    }
    let columns = schema.fields().iter().enumerate();
    let columns = columns.map(|(place, field)| ProjectionExpr {
        expr: Arc::new(Column::new(field.name(), place)),
        alias: field.name().clone(),
    });
    Ok(Arc::new(ProjectionExec::try_new(columns, scan)?))
}
