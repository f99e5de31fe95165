//! Projections that compute only for rows that are left.
//!
//! DataFusion moves a projection that has fewer columns than its input below filters, and below what passes
//! on some of the rows. What it computes may fail for the others: `SELECT x, 10 / x FROM t WHERE x <> 0` is
//! no division by zero. Its rule runs here with such projections kept above those operators.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::{ProjectionExec, try_embed_projection};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

/// DataFusion's rule that pushes projections down, `0`, kept from computing for rows that are not there.
#[derive(Debug)]
pub struct ProjectionsOfRowsLeft(pub Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for ProjectionsOfRowsLeft {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let guarded = plan.transform_up(|node| {
            Ok(match leaves_rows_out(node.as_ref()) {
                true => Transformed::yes(Arc::new(Guard(node)) as _),
                false => Transformed::no(node),
            })
        })?;
        let pushed = self.0.optimize(guarded.data, config)?;
        if !guarded.transformed {
            return Ok(pushed);
        }
        let bare = pushed.transform_up(|node| {
            Ok(match node.downcast_ref::<Guard>() {
                Some(guard) => Transformed::yes(Arc::clone(&guard.0)),
                None => Transformed::no(node),
            })
        });
        Ok(bare?.data)
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

fn leaves_rows_out(node: &dyn ExecutionPlan) -> bool {
    !node.children().is_empty() && (node.is::<FilterExec>() || node.fetch().is_some())
}

/// Whether a projection is no mere choice of columns.
fn computes(projection: &ProjectionExec) -> bool {
    let mut exprs = projection.expr().iter().map(|one| &one.expr);
    exprs.any(|expr| !expr.is::<Column>() && !expr.is::<Literal>())
}

/// A node that lets no projection past it which computes; it is there only while the rule runs.
#[derive(Debug)]
struct Guard(Arc<dyn ExecutionPlan>);

impl DisplayAs for Guard {
    fn fmt_as(&self, t: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_as(t, f)
    }
}

impl ExecutionPlan for Guard {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.0.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        self.0.children()
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
        options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let node = Arc::clone(&self.0).replace_children(children, options)?;
        Ok(Arc::new(Self(node)))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.replace_children(
            children,
            ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute),
        )
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.0.apply_expressions(f)
    }

    fn try_swapping_with_projection(
        &self,
        projection: &ProjectionExec,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        match self.0.downcast_ref::<FilterExec>() {
            _ if !computes(projection) => self.0.try_swapping_with_projection(projection),
            // The filter gives the columns alone that the projection uses.
            Some(filter) => try_embed_projection(projection, filter),
            None => Ok(None),
        }
    }

    fn execute(
        &self,
        _partition: usize,
        _context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        internal_err!("a plan runs with a guard of its optimiser")
    }
}
