//! Rows as they leave: output expressions over the survivors, batch by batch.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::BatchCoalescer;
use arrow::datatypes::SchemaRef;

use super::columns::Rows;
use super::eval::graph::NodeId;
use super::work::{Work, next_rows, rows_of};
use crate::Result;
use crate::page::plain::{plain_schema, plain_type, to_plain};

/// Batches with fewer rows than one in so many of the wished ones wait for others.
const SMALL: usize = 2;

/// Gives out rows.
#[derive(Debug)]
pub(super) struct RowOutput {
    schema: SchemaRef,
    /// Text leaves as [plain](crate::page::plain) arrays.
    plain: bool,
    exprs: Vec<NodeId>,
    batch_rows: usize,
    /// Rows that may still leave.
    left: u64,
    /// The row of the segment to go on with.
    next_row: u32,
    /// Small batches on the way to becoming a large one.
    coalescer: BatchCoalescer,
    /// A large batch that follows what `coalescer` holds.
    next: Option<RecordBatch>,
}

impl RowOutput {
    pub fn new(
        schema: SchemaRef,
        exprs: Vec<NodeId>,
        batch_rows: usize,
        limit: Option<u64>,
        plain: bool,
    ) -> Self {
        let schema = match plain {
            true => plain_schema(&schema),
            false => schema,
        };
        Self {
            plain,
            coalescer: BatchCoalescer::new(Arc::clone(&schema), batch_rows),
            next: None,
            schema,
            exprs,
            batch_rows,
            left: limit.unwrap_or(u64::MAX),
            next_row: 0,
        }
    }

    /// Takes up a segment.
    pub fn begin(&mut self) {
        self.next_row = 0;
    }

    /// No further row may leave.
    pub fn is_satisfied(&self) -> bool {
        self.left == 0
    }

    /// Rows that may still leave.
    pub fn rows_left(&self) -> u64 {
        self.left
    }

    /// The next batch of the segment.
    pub fn next(&mut self, work: &mut Work<'_>) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.coalescer.next_completed_batch() {
                return Ok(Some(batch));
            }
            if let Some(batch) = self.next.take() {
                return Ok(Some(batch));
            }
            let most = self
                .batch_rows
                .min(usize::try_from(self.left).unwrap_or(usize::MAX));
            let (range, count) = next_rows(work.selection, self.next_row, most);
            if count == 0 || most == 0 {
                return Ok(None);
            }
            self.next_row = range.end;
            self.left -= count as u64;
            let mut list = Vec::new();
            let rows = if count == range.len() {
                Rows::Range(range)
            } else {
                list.reserve(count);
                work.selection.append_rows(range, &mut list);
                rows_of(&list)
            };
            let array = match self.plain {
                true => plain_node_array,
                false => node_array,
            };
            let batch = output_batch(&self.schema, &self.exprs, work, &rows, array)?;
            // A batch without columns is nothing but its number of rows.
            let is_small = count * SMALL < self.batch_rows && !self.exprs.is_empty();
            if is_small {
                self.coalescer.push_batch(batch)?;
            } else {
                // Joined to a few rows, this batch and all after it would be copied.
                self.coalescer.finish_buffered_batch()?;
                self.next = Some(batch);
            }
        }
    }

    /// What is left when no segment is.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        self.coalescer.finish_buffered_batch()?;
        Ok(self.coalescer.next_completed_batch())
    }
}

/// The output expressions over some rows of the segment.
pub(super) fn output_batch(
    schema: &SchemaRef,
    exprs: &[NodeId],
    work: &mut Work<'_>,
    rows: &Rows<'_>,
    array_of: impl Fn(NodeId, &mut Work<'_>, &Rows<'_>) -> Result<ArrayRef>,
) -> Result<RecordBatch> {
    let len = rows.len();
    work.begin_block();
    let mut arrays: Vec<ArrayRef> = Vec::with_capacity(exprs.len());
    for (index, expr) in exprs.iter().enumerate() {
        let array = match exprs[..index].iter().position(|e| e == expr) {
            Some(same) => Arc::clone(&arrays[same]),
            None => array_of(*expr, work, rows)?,
        };
        arrays.push(array);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(len));
    Ok(RecordBatch::try_new_with_options(
        Arc::clone(schema),
        arrays,
        &options,
    )?)
}

/// A node over some rows as an array. A plain column goes from its pages to Arrow directly.
pub(super) fn node_array(node: NodeId, work: &mut Work<'_>, rows: &Rows<'_>) -> Result<ArrayRef> {
    let graph = Arc::clone(work.evaluator.graph());
    match graph.column(node) {
        Some(column) => work.columns.array(column, rows, work.reader),
        None => {
            work.evaluator
                .eval(node, &mut work.columns.block(rows.clone(), work.reader))?;
            work.evaluator
                .vector(node)
                .to_arrow(&graph.node(node).data_type, rows.len())
        }
    }
}

/// The same as a plain array.
fn plain_node_array(node: NodeId, work: &mut Work<'_>, rows: &Rows<'_>) -> Result<ArrayRef> {
    match work.evaluator.graph().column(node) {
        Some(column) => work.columns.plain_array(column, rows, work.reader),
        None => {
            let array = node_array(node, work, rows)?;
            Ok(to_plain(&array, &plain_type(array.data_type()))?)
        }
    }
}
