//! Projections into the scan.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use flashmesh_pushdown::{Expr, Output, SortKey};

use crate::config::Pushdown;
use crate::scan::FlashScanExec;
use crate::scan::spec::OutputText;
use crate::translate::{program_type, text_of, translate};

/// `scan` with what `projection` above it computes as its output; `None` when it must stay above
/// or is expected to make the rows wider.
pub fn into_scan(scan: &FlashScanExec, projection: &ProjectionExec) -> Option<FlashScanExec> {
    let spec = scan.spec();
    let Output::Rows {
        exprs: known,
        order,
        limit,
    } = &spec.output
    else {
        return None;
    };
    let scope = scan.scope();
    let schema = projection.schema();
    let mut exprs = Vec::with_capacity(projection.expr().len());
    let mut columns = Vec::with_capacity(projection.expr().len());
    for (projected, field) in projection.expr().iter().zip(schema.fields()) {
        let expr = translate(projected.expr.as_ref(), &scope).ok()?;
        if program_type(field.data_type()) != *field.data_type() {
            return None;
        }
        columns.push(match &expr {
            Expr::Column(_) => projected.alias.clone(),
            _ => format!(
                "{} as {}",
                text_of(projected.expr.as_ref()),
                projected.alias
            ),
        });
        exprs.push(expr);
    }
    let only_columns = exprs.iter().all(|e| matches!(e, Expr::Column(_)));
    match spec.mode {
        Pushdown::Never if !only_columns => return None,
        Pushdown::Auto if !only_columns => {
            let scan_schema = scan.schema();
            let before = known
                .iter()
                .zip(scan_schema.fields().iter().map(|f| f.data_type()));
            let after = exprs
                .iter()
                .zip(schema.fields().iter().map(|f| f.data_type()));
            if spec.width_bytes(after) > spec.width_bytes(before) {
                return None;
            }
        }
        _ => {}
    }
    // The keys of a top-k must still be there.
    let order = order
        .iter()
        .map(|key| {
            let place = exprs
                .iter()
                .position(|e| *e == known[key.output as usize])?;
            Some(SortKey {
                output: place as u32,
                ..*key
            })
        })
        .collect::<Option<Vec<_>>>()?;
    let mut spec = spec.clone();
    spec.output = Output::Rows {
        exprs,
        order,
        limit: *limit,
    };
    spec.text = OutputText {
        columns,
        ..spec.text
    };
    scan.with_spec(spec, schema).ok()
}
