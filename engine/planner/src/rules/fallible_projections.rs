//! Projections that compute only for rows that are left.
//!
//! DataFusion moves a projection that has fewer columns than its input below filters, and below what passes
//! on some of the rows. What it computes may fail for the others: `SELECT x, 10 / x FROM t WHERE x <> 0` is
//! no division by zero. Its rule runs here with such projections kept above those operators.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, try_embed_projection};

use super::guard::HeldBack;

/// Projections that compute, at a node that leaves rows out.
#[derive(Debug)]
pub(super) struct ForRowsLeftOut;

impl HeldBack for ForRowsLeftOut {
    fn at(node: &Arc<dyn ExecutionPlan>) -> Option<Self> {
        let leaves_rows_out = node.is::<FilterExec>() || node.fetch().is_some();
        (leaves_rows_out && !node.children().is_empty()).then_some(Self)
    }

    fn swap(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !computes(projection) {
            return node.try_swapping_with_projection(projection);
        }
        match node.downcast_ref::<FilterExec>() {
            // The filter gives the columns alone that the projection uses.
            Some(filter) => try_embed_projection(projection, filter),
            None => Ok(None),
        }
    }
}

/// Whether a projection is no mere choice of columns.
fn computes(projection: &ProjectionExec) -> bool {
    let mut exprs = projection.expr().iter().map(|one| &one.expr);
    exprs.any(|expr| !expr.is::<Column>() && !expr.is::<Literal>())
}
