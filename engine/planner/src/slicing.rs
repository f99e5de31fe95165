//! [`SlicingExec`]: few rows at a time.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};

/// Passes batches on in slices of at most so many rows, for operators that make much of each row.
#[derive(Debug)]
pub struct SlicingExec {
    input: Arc<dyn ExecutionPlan>,
    rows: usize,
}

impl SlicingExec {
    /// One of the rows of `input`, at least one at a time.
    pub fn new(input: &Arc<dyn ExecutionPlan>, rows: usize) -> Self {
        Self {
            input: Arc::clone(input),
            rows: rows.max(1),
        }
    }

    /// How many rows it passes on at once.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

impl DisplayAs for SlicingExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SlicingExec: rows={}", self.rows)
    }
}

impl ExecutionPlan for SlicingExec {
    fn name(&self) -> &str {
        "SlicingExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match children.as_slice() {
            [input] => Ok(Arc::new(Self::new(input, self.rows))),
            _ => internal_err!("SlicingExec has one child"),
        }
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let batches = self.input.execute(partition, context)?;
        let (schema, rows) = (batches.schema(), self.rows);
        let slices = batches.map_ok(move |batch| {
            // One without rows has columns nevertheless.
            let starts = (0..batch.num_rows().max(1)).step_by(rows);
            stream::iter(starts.map(move |start| {
                let length = rows.min(batch.num_rows() - start);
                Ok(batch.slice(start, length))
            }))
        });
        let slices = slices.try_flatten().boxed();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, slices)))
    }
}
