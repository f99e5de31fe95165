//! How rows become segments: whoever has rows for a table, a load or a compaction, writes them here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, GenericByteViewArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{ByteViewType, DataType, SchemaRef};

use crate::page::{
    ChunkIdentity, ChunkStats, EncodedChunk, EncodedGroups, GroupedColumn, SEGMENT_ROWS,
    encode_chunk, encode_groups,
};
use crate::segment::{Chunk, Segment, SegmentId, TableId, shared_identity, write_page_indexes};
use crate::store::{PageRun, PageWriter, RunPart};
use crate::table::distribution::Buckets;
use crate::table::manifest::{ColumnRecord, scalar_record};
use crate::table::state::Labels;
use crate::table::{Distribution, TableLayout};
use crate::{Result, StorageError};

/// Rows of a change that is small.
const FEW_ROWS: usize = 1024;
/// Bytes of their values.
const FEW_BYTES: usize = 64 << 10;
/// Rows that wait for segments of several buckets, about, and bytes of those that wait for any: then the
/// largest of these is written although it could have more rows.
const HELD_MAX_ROWS: usize = 8 * SEGMENT_ROWS;
pub(super) const HELD_MAX_BYTES: usize = 128 << 20;

/// Whether rows are so few that a commit may write them with those of others.
pub(super) fn are_few<'a>(batches: impl Iterator<Item = &'a RecordBatch>) -> bool {
    let (mut rows, mut bytes) = (0, 0);
    for batch in batches {
        rows += batch.num_rows();
        if rows > FEW_ROWS {
            return false;
        }
        bytes += bytes_of(batch);
    }
    is_little(rows, bytes)
}

fn is_little(rows: usize, bytes: usize) -> bool {
    rows <= FEW_ROWS && bytes <= FEW_BYTES
}

/// Bytes of the values of these rows, which may be a part of what their buffers hold.
fn bytes_of(batch: &RecordBatch) -> usize {
    let of_column = |column: &ArrayRef| match column.data_type() {
        DataType::Utf8View => bytes_of_views(column.as_string_view()),
        DataType::BinaryView => bytes_of_views(column.as_binary_view()),
        _ => {
            let size = column.to_data().get_slice_memory_size();
            // What can't tell is much.
            size.unwrap_or_else(|_| column.get_array_memory_size())
        }
    };
    batch.columns().iter().map(of_column).sum()
}

/// The same of text and binary, of which most columns of small commits are: Arrow would describe the
/// array anew to say it, which takes longer than all else that is done with a row of them here.
fn bytes_of_views<T: ByteViewType>(column: &GenericByteViewArray<T>) -> usize {
    let validity = column.nulls().map_or(0, |nulls| nulls.len().div_ceil(8));
    size_of_val(&**column.views()) + validity + column.total_buffer_bytes_used()
}

/// Rows until there is a segment of them: one after the other, or those of each bucket.
#[derive(Debug)]
pub(super) struct Waiting {
    distribution: Option<Arc<Distribution>>,
    /// One without a distribution.
    heaps: Vec<Heap>,
}

/// Rows that become a segment together.
#[derive(Debug, Default)]
struct Heap {
    batches: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Waiting {
    pub fn new(buckets: Option<&Buckets>) -> Self {
        let distribution = buckets.map(|buckets| Arc::clone(&buckets.distribution));
        let heaps = distribution.as_ref().map_or(1, |by| by.buckets().into());
        Self {
            distribution,
            heaps: std::iter::repeat_with(Heap::default).take(heaps).collect(),
        }
    }

    /// Takes rows; [`Waiting::give_full`] is due.
    pub fn take(&mut self, batch: RecordBatch) -> Result<()> {
        match &self.distribution {
            None => self.heaps[0].take(batch),
            Some(distribution) => {
                for (bucket, rows) in distribution.split(&batch)? {
                    self.heaps[usize::from(bucket)].take(rows);
                }
            }
        }
        Ok(())
    }

    /// Bytes of it, about.
    pub fn bytes(&self) -> usize {
        self.heaps.iter().map(|heap| heap.bytes).sum()
    }

    /// Whether it is so little that a commit may have it with others.
    pub fn is_small(&self) -> bool {
        is_little(self.heaps.iter().map(|heap| heap.rows).sum(), self.bytes())
    }

    /// As many as a segment has, as one batch, or fewer where much is waiting for other segments.
    pub fn give_full(&mut self, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        let full = self.heaps.iter_mut().find(|heap| heap.rows >= SEGMENT_ROWS);
        if let Some(full) = full {
            return full.give(schema).map(Some);
        }
        let rows = || self.heaps.iter().map(|heap| heap.rows).sum::<usize>();
        match self.bytes() > HELD_MAX_BYTES || (self.heaps.len() > 1 && rows() > HELD_MAX_ROWS) {
            true => self.give(schema),
            false => Ok(None),
        }
    }

    /// The most that is waiting for one segment, as one batch, if anything is.
    pub fn give(&mut self, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        let heaps = self.heaps.iter_mut().filter(|heap| heap.rows > 0);
        let largest = heaps.max_by_key(|heap| heap.bytes);
        largest.map(|heap| heap.give(schema)).transpose()
    }
}

impl Heap {
    fn take(&mut self, batch: RecordBatch) {
        self.rows += batch.num_rows();
        self.bytes += bytes_of(&batch);
        self.batches.push(batch);
    }

    /// All of it, if it is not more than a segment has.
    fn give(&mut self, schema: &SchemaRef) -> Result<RecordBatch> {
        let mut given = std::mem::take(self);
        if given.rows > SEGMENT_ROWS
            && let Some(last) = given.batches.pop()
        {
            let fits = last.num_rows() - (given.rows - SEGMENT_ROWS);
            self.take(last.slice(fits, last.num_rows() - fits));
            given.batches.push(last.slice(0, fits));
        }
        Ok(match given.batches.as_slice() {
            [one] => one.clone(),
            many => concat_batches(schema, many)?,
        })
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
    pub labels: Arc<Labels>,
    /// How rows lie in pages.
    pub rows: TableLayout,
    /// Where those of each bucket go, if the table has any.
    pub buckets: Option<Buckets>,
}

impl Layout {
    /// Writes `batch` as one segment of each bucket that it has rows of; gives `written` each of them.
    pub fn write(
        &self,
        batch: &RecordBatch,
        pages: &mut PageWriter,
        written: &mut impl FnMut(WrittenSegment),
    ) -> Result<()> {
        let Some(buckets) = &self.buckets else {
            return self.write_segment(batch, None, pages, written);
        };
        for (bucket, rows) in buckets.distribution.split(batch)? {
            self.write_segment(&rows, Some(bucket), pages, written)?;
        }
        Ok(())
    }

    /// Writes rows, all of this bucket, as one segment, or, where a column's values are so long that its
    /// pages can't be numbered, as several shorter ones; gives `written` each of them.
    pub fn write_segment(
        &self,
        batch: &RecordBatch,
        bucket: Option<u16>,
        pages: &mut PageWriter,
        written: &mut impl FnMut(WrittenSegment),
    ) -> Result<()> {
        let id = take_segment(&self.next_segment)?;
        let encoded = match self.encode(batch, id) {
            Err(StorageError::Invalid(_)) if batch.num_rows() > 1 => {
                let half = batch.num_rows() / 2;
                let (first, second) = (
                    batch.slice(0, half),
                    batch.slice(half, batch.num_rows() - half),
                );
                self.write_segment(&first, bucket, pages, written)?;
                return self.write_segment(&second, bucket, pages, written);
            }
            encoded => encoded?,
        };
        let buckets = self.buckets.as_ref();
        let home = bucket.and_then(|bucket| buckets?.home(bucket));
        pages.start_group(encoded.pages(), home);
        let mut chunks = Vec::with_capacity(batch.num_columns());
        let mut columns = Vec::with_capacity(batch.num_columns());
        let rows = batch.num_rows() as u32;
        let shared = match encoded.shared {
            Some(shared) => Some(self.append_shared(shared, id, pages)?),
            None => None,
        };
        let mut shared = shared.into_iter().flatten();
        let labels = self.labels.columns.iter();
        for ((column, chunk), label) in (0..).zip(encoded.chunks).zip(labels) {
            let identity = self.identity(id, column).first_page();
            let label = Arc::clone(label);
            let (chunk, stats) = match chunk {
                Some(chunk) => {
                    let run = PageRun {
                        count: chunk.pages.len() as u32,
                        first: pages.append(chunk.pages)?,
                        identity,
                        label,
                        part: None,
                    };
                    let new = Chunk::new(run, u32::from(chunk.aux_pages), chunk.zones);
                    (new, chunk.stats)
                }
                None => {
                    let (part, of_column) = shared.next().expect("a part for each such column");
                    let aux_pages = u32::from(of_column.aux_pages);
                    let run = PageRun {
                        first: part.run.first,
                        count: aux_pages + of_column.zones.len() as u32,
                        identity,
                        label,
                        part: Some(Arc::new(part)),
                    };
                    (Chunk::new(run, aux_pages, of_column.zones), of_column.stats)
                }
            };
            columns.push(column_record(&stats, &chunk, rows));
            chunks.push(chunk);
        }
        write_page_indexes(pages, &self.labels.page_indexes, &mut chunks)?;
        written(WrittenSegment {
            segment: Arc::new(Segment::new(id, self.generation, rows, chunks).in_bucket(bucket)),
            columns,
        });
        Ok(())
    }

    fn encode(&self, batch: &RecordBatch, id: SegmentId) -> Result<EncodedSegment> {
        let shared = match self.rows {
            TableLayout::Column => None,
            TableLayout::Pax => encode_groups(batch.columns(), self.shared_identity(id))?,
        };
        let is_shared = |column: usize| {
            let shared = shared.as_ref();
            shared.is_some_and(|shared| shared.columns[column].is_some())
        };
        let columns = batch.columns().iter().enumerate();
        let chunks = columns.map(|(column, array)| match is_shared(column) {
            true => Ok(None),
            false => encode_chunk(array, self.identity(id, column as u16)).map(Some),
        });
        Ok(EncodedSegment {
            chunks: chunks.collect::<Result<_>>()?,
            shared,
        })
    }

    /// Appends the pages that columns share, and gives each of these columns what it has of them.
    fn append_shared(
        &self,
        shared: EncodedGroups,
        id: SegmentId,
        pages: &mut PageWriter,
    ) -> Result<Vec<(RunPart, GroupedColumn)>> {
        let run = Arc::new(PageRun {
            count: shared.pages.len() as u32,
            first: pages.append(shared.pages)?,
            identity: self.shared_identity(id).first_page(),
            label: Arc::clone(&self.labels.shared),
            part: None,
        });
        let columns: Vec<_> = shared.columns.into_iter().flatten().collect();
        let parts = columns.len() as u16;
        let aux_pages = |column: &GroupedColumn| u32::from(column.aux_pages);
        let first_group = columns.iter().map(aux_pages).sum();
        let mut next_aux = 0;
        let parts = (0..).zip(columns).map(|(number, column)| {
            let aux = (column.aux_pages > 0).then_some(next_aux);
            next_aux += aux_pages(&column);
            let part = RunPart {
                run: Arc::clone(&run),
                number,
                parts,
                aux,
                first_group,
            };
            (part, column)
        });
        Ok(parts.collect())
    }

    fn identity(&self, segment: SegmentId, column_group: u16) -> ChunkIdentity {
        ChunkIdentity {
            table: self.table.0,
            segment: segment.0,
            column_group,
            generation: self.generation,
        }
    }

    fn shared_identity(&self, segment: SegmentId) -> ChunkIdentity {
        let first = shared_identity(self.identity(segment, 0).first_page());
        self.identity(segment, first.column_group)
    }
}

/// The pages of a segment.
struct EncodedSegment {
    /// Those that columns share.
    shared: Option<EncodedGroups>,
    /// Those of each column that shares none.
    chunks: Vec<Option<EncodedChunk>>,
}

impl EncodedSegment {
    fn pages(&self) -> usize {
        let shared = self.shared.iter().map(|shared| shared.pages.len());
        let chunks = self.chunks.iter().flatten().map(|chunk| chunk.pages.len());
        shared.chain(chunks).sum()
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

fn column_record(stats: &ChunkStats, chunk: &Chunk, rows: u32) -> ColumnRecord {
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
        bytes_on_flash: chunk.size_bytes(),
    }
}
