//! The nearest rows to each of several vectors, and the first *k* rows in the order of one
//! distance.
//!
//! Vectors are compared where they lie in their pages, each page with all queries; a vector is
//! looked at further only if it beats a query's *k*-th best so far. Other columns are read for
//! what is best at the end of a segment.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Float32Array, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::interleave;
use arrow::datatypes::SchemaRef;
use flashmesh_pushdown::{Metric, QueryVector, SortKey};

use super::BLOCK_ROWS;
use super::eval::graph::{Graph, NodeId, Op};
use super::nearest_on_device::DeviceSearch;
use super::output::node_array;
use super::work::{Cut, Work, rows_of};
use crate::Result;
use crate::distance::{FixedVectors, Order, Positions, Search, Targets};

/// Rows of earlier segments that are kept, beyond twice those that are best, before they are
/// cleared of what isn't.
const SLACK_ROWS: usize = 65_536;

/// Place of a row of the segment at work; others have the number of their batch in its stead.
pub(super) const PRESENT: u64 = (u32::MAX as u64) << 32;

/// Keeps the nearest rows to each query.
#[derive(Debug)]
pub(super) struct Nearest {
    schema: SchemaRef,
    vectors: NodeId,
    exprs: Vec<NodeId>,
    search: Search,
    metric: Metric,
    batch_rows: usize,
    /// The further output columns of rows that were best at some time.
    batches: Vec<RecordBatch>,
    batches_rows: usize,
    /// Rows that can be best at most.
    most_rows: usize,
    /// At the end: the result and how much of it was given out.
    result: Option<(RecordBatch, usize)>,
}

impl Nearest {
    pub fn new(
        schema: SchemaRef,
        graph: &Graph,
        metric: Metric,
        queries: &[QueryVector],
        k: u64,
        batch_rows: usize,
    ) -> Self {
        let vectors = graph.vectors.expect("a search has vectors");
        let length = metric.length_of(&graph.node(vectors).data_type);
        let targets = Targets::new(metric, length.unwrap_or(0), queries);
        let k = usize::try_from(k).unwrap_or(usize::MAX);
        Self {
            schema,
            vectors,
            exprs: graph.outputs.clone(),
            search: Search::new(targets, Order::Rank, k),
            metric,
            batch_rows,
            batches: Vec::new(),
            batches_rows: 0,
            most_rows: k.saturating_mul(queries.len()),
            result: None,
        }
    }

    /// The columns that the vectors are made of.
    pub fn vector_columns(&self, graph: &Graph) -> Vec<usize> {
        graph.node(self.vectors).columns.clone()
    }

    /// Bytes of memory of the rows that were best at some time.
    pub fn memory_bytes(&self) -> usize {
        let result = self.result.iter().map(|(best, _)| best);
        let batches = self.batches.iter().chain(result);
        batches.map(RecordBatch::get_array_memory_size).sum()
    }

    /// Forgets the rows that are no longer among the best.
    pub fn shed(&mut self) -> Result<()> {
        match &self.result {
            Some(_) => Ok(()),
            None => self.clear_out(),
        }
    }

    /// No row can matter.
    pub fn is_satisfied(&self) -> bool {
        self.search.is_satisfied()
    }

    /// Takes in the rows of a segment.
    pub fn consume(&mut self, work: &mut Work<'_>) -> Result<()> {
        search_rows(&mut self.search, self.vectors, work)?;
        if self.exprs.is_empty() {
            return Ok(());
        }
        let mut rows: Vec<u32> = Vec::new();
        self.search.for_places(|place| {
            if *place & PRESENT == PRESENT {
                rows.push(*place as u32);
            }
        });
        rows.sort_unstable();
        rows.dedup();
        let first = self.batches.len();
        for chunk in rows.chunks(BLOCK_ROWS as usize) {
            let options = RecordBatchOptions::new().with_row_count(Some(chunk.len()));
            let arrays = further(&self.exprs, work, chunk)?;
            let schema = self.further_schema();
            self.batches
                .push(RecordBatch::try_new_with_options(schema, arrays, &options)?);
        }
        self.batches_rows += rows.len();
        self.search.for_places(|place| {
            if *place & PRESENT == PRESENT
                && let Ok(number) = rows.binary_search(&(*place as u32))
            {
                let batch = first + number / BLOCK_ROWS as usize;
                *place = (batch as u64) << 32 | (number % BLOCK_ROWS as usize) as u64;
            }
        });
        if self.batches_rows > 2 * self.most_rows + SLACK_ROWS {
            self.clear_out()?;
        }
        Ok(())
    }

    fn further_schema(&self) -> SchemaRef {
        let fields = self.schema.fields();
        Arc::new(arrow::datatypes::Schema::new(fields[2..].to_vec()))
    }

    /// Keeps only the rows that are still best.
    fn clear_out(&mut self) -> Result<()> {
        let mut alive: Vec<u64> = Vec::new();
        self.search.for_places(|place| alive.push(*place));
        alive.sort_unstable();
        alive.dedup();
        let arrays = self.rows_at(&alive)?;
        let options = RecordBatchOptions::new().with_row_count(Some(alive.len()));
        let batch = RecordBatch::try_new_with_options(self.further_schema(), arrays, &options)?;
        self.search.for_places(|place| {
            if let Ok(number) = alive.binary_search(place) {
                *place = number as u64;
            }
        });
        self.batches = vec![batch];
        self.batches_rows = alive.len();
        Ok(())
    }

    /// The further output columns of rows by their places.
    fn rows_at(&self, places: &[u64]) -> Result<Vec<ArrayRef>> {
        let indices: Vec<(usize, usize)> = places
            .iter()
            .map(|place| ((place >> 32) as usize, *place as u32 as usize))
            .collect();
        let mut arrays = Vec::with_capacity(self.exprs.len());
        for column in 0..self.exprs.len() {
            let parts: Vec<&dyn Array> = self
                .batches
                .iter()
                .map(|batch| batch.column(column).as_ref())
                .collect();
            arrays.push(if parts.is_empty() {
                let data_type = self.schema.field(2 + column).data_type();
                arrow::array::new_empty_array(data_type)
            } else {
                interleave(&parts, &indices)?
            });
        }
        Ok(arrays)
    }

    /// The neighbours of each query, nearest first, batch by batch.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        if self.result.is_none() {
            let found = self.search.take();
            let numbers = (0..).zip(&found);
            let queries: Vec<u32> = numbers
                .flat_map(|(query, found)| std::iter::repeat_n(query, found.len()))
                .collect();
            let keys = || found.iter().flatten().map(|found| found.key);
            let distances: ArrayRef = match self.metric {
                Metric::Hamming => Arc::new(UInt32Array::from_iter_values(
                    keys().map(|key| self.search.count_of(key)),
                )),
                _ => Arc::new(Float32Array::from_iter_values(
                    keys().map(|key| self.search.distance_of(key)),
                )),
            };
            let mut arrays: Vec<ArrayRef> = vec![Arc::new(UInt32Array::from(queries)), distances];
            let places: Vec<u64> = found.iter().flatten().map(|found| found.place).collect();
            arrays.extend(self.rows_at(&places)?);
            self.batches.clear();
            let batch = RecordBatch::try_new(Arc::clone(&self.schema), arrays)?;
            self.result = Some((batch, 0));
        }
        let Some((result, given)) = &mut self.result else {
            return Ok(None);
        };
        let count = self.batch_rows.min(result.num_rows() - *given);
        if count == 0 {
            return Ok(None);
        }
        let batch = result.slice(*given, count);
        *given += count;
        Ok(Some(batch))
    }
}

/// The further output columns of some rows of the segment.
fn further(exprs: &[NodeId], work: &mut Work<'_>, rows: &[u32]) -> Result<Vec<ArrayRef>> {
    work.begin_block();
    let rows = rows_of(rows);
    let array = |expr: &NodeId| node_array(*expr, work, &rows);
    exprs.iter().map(array).collect()
}

/// Takes the surviving rows of the segment at work into a search; gives the number of those whose
/// vectors are not NULL.
fn search_rows(search: &mut Search, vectors: NodeId, work: &mut Work<'_>) -> Result<usize> {
    let mut count = 0;
    let size = search.targets().size();
    if let Some(column) = work.evaluator.graph().column(vectors) {
        if let Some(search) = DeviceSearch::of(search, work.device) {
            return search.run(column, work);
        }
        let add = |page: &super::columns::VectorPage<'_>| {
            count += page.positions.len();
            search.add(page.values, page.positions, |position| {
                PRESENT | u64::from(page.row(position))
            });
        };
        work.columns
            .for_vectors(column, size, work.selection, work.reader, add)?;
        return Ok(count);
    }
    // Vectors that are computed.
    work.for_blocks(Cut::Exact, |work, rows, _| {
        work.begin_block();
        let array = node_array(vectors, work, &rows)?;
        let vectors = FixedVectors::of(&array)?;
        let valid: Vec<u32> = (0..array.len() as u32)
            .filter(|position| vectors.is_valid(*position as usize))
            .collect();
        count += valid.len();
        search.add(vectors.values(), Positions::List(&valid), |position| {
            PRESENT | u64::from(rows.get(position as usize))
        });
        Ok(())
    })?;
    Ok(count)
}

/// The first rows in the order of a distance, for a top-k.
#[derive(Debug)]
pub(super) struct NearestRows {
    vectors: NodeId,
    search: Search,
}

impl NearestRows {
    /// `None` unless the order is that of one distance from a column's vectors.
    pub fn of(graph: &Graph, order: &[SortKey], exprs: &[NodeId], k: usize) -> Option<Self> {
        let [key] = order else { return None };
        let Op::Distance(vectors, targets) = &graph.node(exprs[key.output as usize]).op else {
            return None;
        };
        let order = match key.descending {
            false => Order::Ascending,
            true => Order::Descending,
        };
        Some(Self {
            vectors: *vectors,
            search: Search::new(Targets::clone(targets), order, k),
        })
    }

    /// The rows of the segment that are among the first *k* of all so far, ascending; `None` if
    /// there are NULLs, which have their own place in an order.
    pub fn winners(&mut self, work: &mut Work<'_>) -> Result<Option<Vec<u32>>> {
        // What was found in earlier segments stays as a bound.
        self.search.for_places(|place| *place = 0);
        if search_rows(&mut self.search, self.vectors, work)? < work.selected {
            return Ok(None);
        }
        let mut rows = Vec::new();
        self.search.for_places(|place| {
            if *place & PRESENT == PRESENT {
                rows.push(*place as u32);
            }
        });
        rows.sort_unstable();
        Ok(Some(rows))
    }
}
