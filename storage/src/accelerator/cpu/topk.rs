//! The first *k* rows in an order.
//!
//! Each segment gives its own first *k* rows: the sort keys of the survivors are computed, sorted,
//! and only the winners' other columns are read. What the rows so far hold in place *k* is a bound
//! for the first key of all rows to come, which rules out segments, pages and rows like any other
//! filter.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, GenericByteViewArray, RecordBatch, RecordBatchOptions,
};
use arrow::buffer::Buffer;
use arrow::compute::{
    SortColumn, SortOptions, concat_batches, lexsort_to_indices, take_record_batch,
};
use arrow::datatypes::{ByteViewType, SchemaRef};
use flashmesh_pushdown::{RuntimeFilter, RuntimePredicate, Scalar, SortKey};

use super::BLOCK_ROWS;
use super::columns::Rows;
use super::eval::graph::{Graph, NodeId};
use super::nearest::NearestRows;
use super::output::{node_array, output_batch};
use super::work::{Cut, Work, rows_of};
use crate::Result;

/// Up to here candidates are cut down to *k* after every segment, if that gives a threshold.
const SMALL_K: usize = 16_384;
/// Candidates beyond *k*, or *k* of them if that is more, from which on they are cut down without
/// a threshold: sorting them costs more than keeping them.
const SLACK_ROWS: usize = 1024;

/// Bytes of texts up to which those that are wanted no more are left alone.
const COMPACT_BYTES: usize = 64 << 10;

/// Keeps the best rows.
#[derive(Debug)]
pub(super) struct TopK {
    schema: SchemaRef,
    exprs: Vec<NodeId>,
    order: Vec<SortKey>,
    k: usize,
    batch_rows: usize,
    candidates: Vec<RecordBatch>,
    rows: usize,
    /// The column that the first key is, if it is just that.
    first_column: Option<usize>,
    /// Finds the rows if the order is that of a distance.
    nearest: Option<NearestRows>,
    /// What the first key of further rows has to satisfy.
    threshold: Option<RuntimeFilter>,
    /// At the end: the result and how much of it was given out.
    result: Option<(RecordBatch, usize)>,
}

impl TopK {
    pub fn new(
        schema: SchemaRef,
        graph: &Graph,
        order: Vec<SortKey>,
        k: u64,
        batch_rows: usize,
    ) -> Self {
        let exprs = graph.outputs.clone();
        let first_column = order
            .first()
            .and_then(|key| graph.column(exprs[key.output as usize]));
        let k = usize::try_from(k).unwrap_or(usize::MAX);
        Self {
            nearest: NearestRows::of(graph, &order, &exprs, k),
            schema,
            exprs,
            order,
            k,
            batch_rows,
            candidates: Vec::new(),
            rows: 0,
            first_column,
            threshold: None,
            result: None,
        }
    }

    /// What the first key of a row has to satisfy for the row to matter.
    pub fn threshold(&self) -> Option<&RuntimeFilter> {
        self.threshold.as_ref()
    }

    /// The columns that the sort keys read.
    pub fn key_columns(&self, graph: &Graph) -> Vec<usize> {
        let nodes = self.order.iter().map(|key| self.exprs[key.output as usize]);
        let mut columns: Vec<usize> = nodes
            .flat_map(|n| graph.node(n).columns.iter().copied())
            .collect();
        columns.sort_unstable();
        columns.dedup();
        columns
    }

    /// Bytes of memory of the candidates.
    pub fn memory_bytes(&self) -> usize {
        let result = self.result.iter().map(|(best, _)| best);
        let batches = self.candidates.iter().chain(result);
        batches.map(RecordBatch::get_array_memory_size).sum()
    }

    /// Keeps no more candidates than *k*.
    pub fn shed(&mut self) -> Result<()> {
        match self.rows > self.k {
            true => self.cut_down(),
            false => Ok(()),
        }
    }

    /// No row can matter.
    pub fn is_satisfied(&self) -> bool {
        self.k == 0
    }

    /// Takes in the rows of a segment.
    pub fn consume(&mut self, work: &mut Work<'_>) -> Result<()> {
        if self.k == 0 {
            return Ok(());
        }
        let nearest = match &mut self.nearest {
            Some(nearest) => nearest.winners(work)?,
            None => None,
        };
        let rows = match nearest {
            Some(rows) => rows,
            None => {
                let mut rows: Vec<u32> = Vec::with_capacity(work.selected);
                work.selection.append_rows(0..work.rows, &mut rows);
                if rows.len() > self.k {
                    rows = self.winners(work, rows)?;
                }
                rows
            }
        };
        for chunk in rows.chunks(BLOCK_ROWS as usize) {
            let batch = output_batch(&self.schema, &self.exprs, work, &rows_of(chunk), node_array)?;
            self.rows += batch.num_rows();
            self.candidates.push(batch);
        }
        let gives_threshold = self.first_column.is_some();
        let slack = match gives_threshold && self.k <= SMALL_K {
            true => 0,
            false => self.k.max(SLACK_ROWS),
        };
        if self.rows > self.k.saturating_add(slack)
            || (gives_threshold && self.threshold.is_none() && self.rows >= self.k)
        {
            self.cut_down()?;
        }
        Ok(())
    }

    /// The rows that are among the segment's first *k*, ascending.
    fn winners(&self, work: &mut Work<'_>, rows: Vec<u32>) -> Result<Vec<u32>> {
        let mut parts: Vec<Vec<ArrayRef>> = vec![Vec::new(); self.order.len()];
        work.for_blocks(Cut::Exact, |work, rows: Rows<'_>, _| {
            work.begin_block();
            for (key, parts) in self.order.iter().zip(&mut parts) {
                parts.push(node_array(self.exprs[key.output as usize], work, &rows)?);
            }
            Ok(())
        })?;
        let mut columns = Vec::with_capacity(parts.len());
        for (key, parts) in self.order.iter().zip(parts) {
            let parts: Vec<&dyn Array> = parts.iter().map(|a| a.as_ref()).collect();
            columns.push(SortColumn {
                values: arrow::compute::concat(&parts)?,
                options: Some(options(key)),
            });
        }
        let places = lexsort_to_indices(&columns, Some(self.k))?;
        let mut winners: Vec<u32> = places.values().iter().map(|p| rows[*p as usize]).collect();
        winners.sort_unstable();
        Ok(winners)
    }

    /// Keeps the first *k* candidates, in order, and takes the threshold from the last of them.
    fn cut_down(&mut self) -> Result<()> {
        let all = concat_batches(&self.schema, &self.candidates)?;
        let columns: Vec<SortColumn> = self
            .order
            .iter()
            .map(|key| SortColumn {
                values: Arc::clone(all.column(key.output as usize)),
                options: Some(options(key)),
            })
            .collect();
        let places = lexsort_to_indices(&columns, Some(self.k))?;
        let best = compacted(take_record_batch(&all, &places)?)?;
        self.rows = best.num_rows();
        if self.rows == self.k {
            self.threshold = self.threshold_of(&best);
        }
        self.candidates = vec![best];
        Ok(())
    }

    fn threshold_of(&self, best: &RecordBatch) -> Option<RuntimeFilter> {
        let (column, key) = (self.first_column?, self.order[0]);
        let worst = Scalar::from_array(best.column(key.output as usize), best.num_rows() - 1)?;
        // Without a second key, rows equal to the worst are not needed any more.
        let step = i128::from(self.order.len() == 1);
        let worst = match worst {
            Scalar::Int(value) if key.descending => Scalar::Int(value.saturating_add(step)),
            Scalar::Int(value) => Scalar::Int(value.saturating_sub(step)),
            other => other,
        };
        let filter = |min, max, keep_nulls| RuntimeFilter {
            column: column as u32,
            predicate: RuntimePredicate::Range { min, max },
            keep_nulls,
        };
        Some(match (worst, key.nulls_first, key.descending) {
            // NULLs come last and one is the worst: everything may come before it.
            (Scalar::Null, false, _) => return None,
            // The first k are all NULL: only NULLs can equal them.
            (Scalar::Null, true, _) => RuntimeFilter {
                column: column as u32,
                predicate: RuntimePredicate::Set(Vec::new()),
                keep_nulls: true,
            },
            (worst, nulls_first, false) => filter(None, Some(worst), nulls_first),
            (worst, nulls_first, true) => filter(Some(worst), None, nulls_first),
        })
    }

    /// The first *k* rows, in order, batch by batch.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        if self.result.is_none() {
            if self.candidates.is_empty() {
                return Ok(None);
            }
            self.cut_down()?;
            self.result = self.candidates.pop().map(|best| (best, 0));
            self.rows = 0;
        }
        let Some((best, given)) = &mut self.result else {
            return Ok(None);
        };
        let count = self.batch_rows.min(best.num_rows() - *given);
        if count == 0 {
            return Ok(None);
        }
        let batch = best.slice(*given, count);
        *given += count;
        Ok(Some(batch))
    }
}

/// The same without the texts of rows that are no longer there: views keep them all.
fn compacted(batch: RecordBatch) -> Result<RecordBatch> {
    let columns = batch.columns().iter().map(|column| {
        if let Some(views) = column.as_string_view_opt()
            && has_waste(views)
        {
            return Arc::new(views.gc()) as ArrayRef;
        }
        match column.as_binary_view_opt() {
            Some(views) if has_waste(views) => Arc::new(views.gc()),
            _ => Arc::clone(column),
        }
    });
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let columns = columns.collect();
    Ok(RecordBatch::try_new_with_options(
        batch.schema(),
        columns,
        &options,
    )?)
}

/// Whether most of what the views keep is wanted no more.
fn has_waste<T: ByteViewType>(views: &GenericByteViewArray<T>) -> bool {
    let kept: usize = views.data_buffers().iter().map(Buffer::len).sum();
    kept > COMPACT_BYTES && kept > 2 * views.total_buffer_bytes_used()
}

fn options(key: &SortKey) -> SortOptions {
    SortOptions {
        descending: key.descending,
        nulls_first: key.nulls_first,
    }
}
