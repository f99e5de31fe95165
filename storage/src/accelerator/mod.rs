//! What runs a [`Program`] over the rows of a segment.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::record_batch::RecordBatch;
use flashmesh_pushdown::{Program, RuntimeFilter, VerifiedProgram};

use crate::Result;
use crate::index::RowSelection;
use crate::store::PageReader;
use crate::table::{Segment, TableSnapshot};

pub mod cpu;
pub mod reference;

/// Runs Programs. One accelerator serves many tasks at once.
pub trait Accelerator: Debug + Send + Sync {
    /// The name that `EXPLAIN` shows.
    fn name(&self) -> &'static str;

    /// Whether it can run this Program; the error says what it lacks. The planner asks first.
    fn supports(&self, program: &Program) -> std::result::Result<(), String>;

    /// Starts a task: one stream of batches, fed segment by segment.
    fn open(&self, task: Task) -> Result<Box<dyn TaskRun>>;
}

/// What a task needs for its whole life.
#[derive(Debug, Clone)]
pub struct Task {
    /// What to run.
    pub program: Arc<VerifiedProgram>,
    /// The snapshot that the segments belong to (schema, names for messages).
    pub table: Arc<TableSnapshot>,
    /// Rows that a batch should have at most.
    pub batch_rows: usize,
    /// Counters that the task adds to.
    pub metrics: Arc<ScanMetrics>,
}

/// A segment to work on.
#[derive(Debug, Clone)]
pub struct Work {
    /// The segment.
    pub segment: Arc<Segment>,
    /// The only rows of it to look at; `None`: all.
    pub rows: Option<Arc<RowSelection>>,
}

/// A running task.
///
/// Life: `start_segment` ▸ `next` until `None` ▸ next `start_segment` … ▸ `finish` until `None`.
pub trait TaskRun: Send {
    /// Pages that the next segment will surely need first (the filter's columns, after zone maps
    /// and `runtime`), given to `reader` as read-ahead while the present segment is computed.
    fn prefetch(
        &mut self,
        work: &Work,
        runtime: &[RuntimeFilter],
        reader: &mut PageReader,
    ) -> Result<()>;

    /// Takes up a segment. `runtime` holds the runtime filters known by now.
    fn start_segment(
        &mut self,
        work: Work,
        runtime: &[RuntimeFilter],
        reader: &mut PageReader,
    ) -> Result<()>;

    /// The next batch of the segment's output, or `None` when the segment is done.
    fn next(&mut self, reader: &mut PageReader) -> Result<Option<RecordBatch>>;

    /// What is left to give when no segment is left (aggregates, top-k), batch by batch.
    fn finish(&mut self) -> Result<Option<RecordBatch>>;

    /// TRUE when further segments can't change the output (a limit is reached).
    fn is_satisfied(&self) -> bool;
}

/// Counters of one scan, shared by its streams; `EXPLAIN ANALYZE` prints them.
#[derive(Debug, Default)]
pub struct ScanMetrics {
    /// Pages read from flash.
    pub pages_from_flash: AtomicU64,
    /// Bytes read from flash.
    pub bytes_from_flash: AtomicU64,
    /// Pages that the page cache had.
    pub pages_from_cache: AtomicU64,
    /// Bytes of Arrow data given to the host.
    pub bytes_to_host: AtomicU64,
    /// Segments that zone maps ruled out whole.
    pub segments_skipped_zone_map: AtomicU64,
    /// Segments that a runtime filter's bounds ruled out whole.
    pub segments_skipped_runtime: AtomicU64,
    /// Segments of which an index named no row.
    pub segments_skipped_index: AtomicU64,
    /// Segments worked on.
    pub segments_read: AtomicU64,
    /// Pages not read because their zone map ruled them out.
    pub pages_skipped_zone_map: AtomicU64,
    /// Pages not read because a runtime filter's bounds ruled them out.
    pub pages_skipped_runtime: AtomicU64,
    /// Pages not read because an index named no row of theirs.
    pub pages_skipped_index: AtomicU64,
    /// Pages not read because no row of theirs survived the filter.
    pub pages_skipped_selection: AtomicU64,
    /// Rows of the segments worked on.
    pub rows_in: AtomicU64,
    /// Rows given to the host.
    pub rows_out: AtomicU64,
    /// Time spent in the accelerator, waiting for pages included.
    pub device_time_ns: AtomicU64,
    /// Of it, time waiting for pages.
    pub flash_wait_ns: AtomicU64,
}
