//! `ORDER BY … LIMIT k` into the scan.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use flashmesh_pushdown::{Output, SortKey};

use super::{ScanBelow, change_scan, scan_below};
use crate::config::Pushdown;
use crate::scan::FlashScanExec;
use crate::scan::spec::ScanSpec;
use crate::translate::{program_type, text_of, translate};
use crate::{Reason, cost};

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
            let text = || {
                let keys: Vec<_> = sort.expr().iter().map(ToString::to_string).collect();
                format!("order by {} limit {limit}", keys.join(", "))
            };
            let below = match scan_below(sort.input()) {
                Ok(below) => below,
                Err(Some(reason)) => {
                    let text = text();
                    let input = change_scan(Arc::clone(sort.input()), |scan| {
                        Ok(Arc::new(scan.with_note(text.clone(), reason.clone())))
                    })?;
                    return with_input(node, input).map(Transformed::yes);
                }
                Err(None) => return Ok(Transformed::no(node)),
            };
            if matches!(
                &below.scan.spec().output,
                Output::Rows { limit: Some(_), .. }
            ) {
                // The rule ran before, or an inner limit must be applied first.
                return Ok(Transformed::no(node));
            }
            let changed = top_k(sort, limit, &below);
            let input = change_scan(Arc::clone(sort.input()), |scan| {
                match changed
                    .clone()
                    .and_then(|(spec, schema)| scan.with_spec(spec, schema))
                {
                    Ok(changed) => without_keys(changed, &scan.schema()),
                    Err(reason) => Ok(Arc::new(scan.with_note(text(), reason))),
                }
            })?;
            with_input(node, input).map(Transformed::yes)
        })
        .data()
    }
}

fn with_input(
    node: Arc<dyn ExecutionPlan>,
    input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    node.replace_children(
        vec![input],
        ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
    )
}

/// `scan` with the columns of `schema` alone: keys that were added behind them go.
fn without_keys(scan: FlashScanExec, schema: &Schema) -> Result<Arc<dyn ExecutionPlan>> {
    let scan = Arc::new(scan);
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

/// What the scan below is to do, and its columns: a key that it does not have comes behind those
/// that it has. The sort above computes it again, for the few rows that it gets.
fn top_k(
    sort: &SortExec,
    limit: usize,
    below: &ScanBelow<'_>,
) -> Result<(ScanSpec, SchemaRef), Reason> {
    let mut spec = below.scan.spec().clone();
    if spec.mode == Pushdown::Never {
        return Err(Reason::Off);
    }
    if spec.mode == Pushdown::Auto && limit > cost::TOP_K_LIMIT {
        return Err(Reason::Cost(format!(
            "{limit} rows would be held beside the pages"
        )));
    }
    let Output::Rows {
        exprs,
        order,
        limit: scan_limit,
    } = &mut spec.output
    else {
        return Err(Reason::Blocked("the scan gives aggregates".into()));
    };
    let scan_schema = below.scan.schema();
    let mut fields: Vec<FieldRef> = scan_schema.fields().iter().cloned().collect();
    for key in sort.expr().iter() {
        let expr = translate(key.expr.as_ref(), &below.scope)?;
        let place = match exprs.iter().position(|known| *known == expr) {
            Some(place) => place,
            None => {
                let field = key.expr.return_field(&sort.input().schema());
                let field = field.map_err(|e| Reason::Operator(e.to_string()))?;
                if program_type(field.data_type()) != *field.data_type() {
                    return Err(Reason::Type(field.data_type().clone()));
                }
                let text = text_of(key.expr.as_ref());
                exprs.push(expr);
                fields.push(Arc::new(field.as_ref().clone().with_name(&text)));
                spec.text.columns.push(text);
                exprs.len() - 1
            }
        };
        order.push(SortKey {
            output: place as u32,
            descending: key.options.descending,
            nulls_first: key.options.nulls_first,
        });
        spec.text.order.push(key.to_string());
    }
    *scan_limit = Some(limit as u64);
    Ok((spec, Arc::new(Schema::new(fields))))
}
