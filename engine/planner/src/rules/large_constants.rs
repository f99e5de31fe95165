//! Large constants beside rows: a list, or a long text.
//!
//! Functions that take no constants as such, and SELECT lists, write a constant out for each row of a batch: a list of
//! 1.6 MB beside 8,192 rows takes 13 GB, which no reservation counts, and a text of 300 kB more than the 2 GB that its
//! array may have. Operators with such a constant get their rows few at a time here.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};

use crate::slicing::SlicingExec;
use crate::walk::Walk as _;

/// What a constant may take that is written out for the rows of a batch.
const WRITTEN_BYTES: usize = 64 << 20;

/// The rule; place it behind those that look for the inputs of operators.
#[derive(Debug)]
pub struct LargeConstants;

impl PhysicalOptimizerRule for LargeConstants {
    fn name(&self) -> &str {
        "flashmesh_large_constants"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let batch = usize::from(config.execution.batch_size);
        let sliced = plan.transform_up(|node| {
            let rows = WRITTEN_BYTES / largest_constant(node.as_ref())?.max(1);
            if rows >= batch || node.children().is_empty() {
                return Ok(Transformed::no(node));
            }
            let inputs = node.children().into_iter();
            let inputs = inputs.map(|input| Arc::new(SlicingExec::new(input, rows)) as _);
            let inputs = inputs.collect();
            let mode = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
            Ok(Transformed::yes(node.replace_children(inputs, mode)?))
        })?;
        Ok(sliced.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The size of the largest constant in an operator's expressions, in bytes.
fn largest_constant(node: &dyn ExecutionPlan) -> Result<usize> {
    let mut largest = 0;
    node.apply_expressions(&mut |expr| {
        expr.apply(|part| {
            if let Some(literal) = part.downcast_ref::<Literal>() {
                largest = largest.max(literal.value().size());
            }
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(largest)
}
