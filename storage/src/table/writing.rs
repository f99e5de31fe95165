//! How rows become segments: whoever has rows for a table, a load or a compaction, writes them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;

use crate::page::{ChunkIdentity, ChunkStats, SEGMENT_ROWS, encode_chunk};
use crate::segment::{Chunk, Segment, SegmentId, TableId, write_page_indexes};
use crate::store::{PageRun, PageWriter};
use crate::table::manifest::{ColumnRecord, scalar_record};
use crate::table::state::Labels;
use crate::{Result, StorageError};

/// Rows until there is a segment of them.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    batches: Vec<RecordBatch>,
    rows: usize,
}

impl Waiting {
    /// Takes rows. Once there are as many as a segment has, gives back those that are too many,
    /// if only none: [`Waiting::give`] is due.
    pub fn take(&mut self, batch: RecordBatch) -> Result<Option<RecordBatch>> {
        let taken = (SEGMENT_ROWS - self.rows).min(batch.num_rows());
        let left = batch.slice(taken, batch.num_rows() - taken);
        self.batches.push(batch.slice(0, taken));
        self.rows += taken;
        Ok((self.rows == SEGMENT_ROWS).then_some(left))
    }

    /// What is waiting, as one batch, if anything is.
    pub fn give(&mut self, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        if std::mem::take(&mut self.rows) == 0 {
            self.batches.clear();
            return Ok(None);
        }
        Ok(Some(match std::mem::take(&mut self.batches).as_slice() {
            [one] => one.clone(),
            many => concat_batches(schema, many)?,
        }))
    }
}

/// A segment that no version of its table has yet.
#[derive(Debug)]
pub(super) struct WrittenSegment {
    pub segment: Arc<Segment>,
    pub columns: Vec<ColumnRecord>,
}

/// What the pages of one change of a table carry.
#[derive(Debug)]
pub(super) struct Layout {
    pub table: TableId,
    pub generation: u32,
    pub next_segment: Arc<AtomicU32>,
    pub labels: Labels,
}

impl Layout {
    /// Writes `batch` as one segment, or, where a column's values are so long that its pages
    /// can't be numbered, as several shorter ones; gives `written` each of them.
    pub fn write(
        &self,
        batch: &RecordBatch,
        pages: &mut PageWriter,
        written: &mut impl FnMut(WrittenSegment),
    ) -> Result<()> {
        let id = take_segment(&self.next_segment)?;
        let mut encoded = Vec::with_capacity(batch.num_columns());
        for (column, array) in batch.columns().iter().enumerate() {
            let identity = ChunkIdentity {
                table: self.table.0,
                segment: id.0,
                column_group: column as u16,
                generation: self.generation,
            };
            match encode_chunk(array, identity) {
                Err(StorageError::Invalid(_)) if batch.num_rows() > 1 => {
                    let half = batch.num_rows() / 2;
                    let (first, second) = (
                        batch.slice(0, half),
                        batch.slice(half, batch.num_rows() - half),
                    );
                    self.write(&first, pages, written)?;
                    return self.write(&second, pages, written);
                }
                chunk => encoded.push((identity, chunk?)),
            }
        }
        let data: usize = encoded.iter().map(|(_, chunk)| chunk.pages.len()).sum();
        pages.start_group(data);
        let mut chunks = Vec::with_capacity(encoded.len());
        let mut columns = Vec::with_capacity(encoded.len());
        for ((identity, chunk), label) in encoded.into_iter().zip(&self.labels.columns) {
            let count = chunk.pages.len() as u32;
            let run = PageRun {
                first: pages.append(chunk.pages)?,
                count,
                identity: identity.first_page(),
                label: Arc::clone(label),
            };
            columns.push(column_record(&chunk.stats, count, batch.num_rows() as u32));
            chunks.push(Chunk::new(run, u32::from(chunk.aux_pages), chunk.zones));
        }
        write_page_indexes(pages, &self.labels.page_indexes, &mut chunks)?;
        written(WrittenSegment {
            segment: Arc::new(Segment::new(
                id,
                self.generation,
                batch.num_rows() as u32,
                chunks,
            )),
            columns,
        });
        Ok(())
    }
}

/// A number that no segment or index part of the table has.
pub(super) fn take_segment(next: &AtomicU32) -> Result<SegmentId> {
    let taken = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
    taken.map(SegmentId).map_err(|_| {
        StorageError::Invalid(
            "the table has used up its segment numbers; copy it with CREATE TABLE AS".into(),
        )
    })
}

fn column_record(stats: &ChunkStats, pages: u32, rows: u32) -> ColumnRecord {
    let (min, max) = (
        stats.min_value.as_ref().and_then(scalar_record),
        stats.max_value.as_ref().and_then(scalar_record),
    );
    ColumnRecord {
        null_count: u64::from(stats.null_count),
        // No bounds although there are values: the type or the values' length allows none.
        unbounded: (min.is_none() || max.is_none()) && stats.null_count < rows,
        min,
        max,
        sketch: stats.distinct_sketch.clone(),
        bytes_on_flash: u64::from(pages) * crate::flash::PAGE_SIZE_BYTES as u64,
    }
}
