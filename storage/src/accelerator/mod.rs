//! What runs a [`Program`] over the rows of a segment.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::record_batch::RecordBatch;
use flashmesh_pushdown::{Program, RuntimeFilter, VerifiedProgram};

use crate::Result;
use crate::kernel::{KernelSet, Package, Target};
use crate::segment::{RowSelection, Segment};
use crate::store::{PageReader, ReadCounters};
use crate::table::TableSnapshot;

pub mod cpu;
pub(crate) mod device;
pub mod offload;
pub mod sandbox;
pub mod xrt;

/// Segments that a stream reads ahead at most.
pub(crate) const MAX_AHEAD: usize = 4;

/// Runs Programs. One accelerator serves many tasks at once.
pub trait Accelerator: Debug + Send + Sync {
    /// The name that `EXPLAIN` shows.
    fn name(&self) -> &'static str;

    /// The name, and what goes to a device.
    fn describe(&self) -> String {
        self.name().to_owned()
    }

    /// Whether it can run this Program; the error says what it lacks. The planner asks first.
    fn supports(&self, program: &Program) -> std::result::Result<(), String>;

    /// What runs the kernel of this package on the accelerator's device; `None` for kernels that
    /// the device does not hold, which run in the sandbox.
    fn kernel(&self, package: &Package) -> Option<Arc<dyn Target>> {
        let _ = package;
        None
    }

    /// Where searches above the pipeline, as those in graphs, give operations; `None` without a
    /// device.
    fn offload(&self) -> Option<Arc<dyn offload::Offload>> {
        None
    }

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
    /// Rows that leave in no order have text as [plain](crate::page::plain) arrays.
    pub plain_text: bool,
    /// The kernels that the Program calls.
    pub kernels: KernelSet,
    /// Counters that the task adds to.
    pub metrics: Arc<ScanMetrics>,
    /// What happens when a device fails.
    pub fallback: offload::Fallback,
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

    /// Bytes of memory that the output so far takes up: groups, or the first rows in an order.
    fn memory_bytes(&self) -> usize;

    /// Gives up what it can of that memory; batches that are given out for it come next.
    fn shed(&mut self) -> Result<()>;
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
    /// Calls of a device's kernels.
    pub device_calls: AtomicU64,
    /// Bytes of their arrays copied to the device.
    pub bytes_to_device: AtomicU64,
    /// Bytes of their arrays copied from the device.
    pub bytes_from_device: AtomicU64,
    /// Tests of a segment and steps of a search that a device failed at, and that the CPU has
    /// computed.
    pub device_fallbacks: AtomicU64,
    /// Rows of the exact answer of an approximate search, where its recall is measured.
    pub recall_expected: AtomicU64,
    /// How many of them, or rows as near, the search has found.
    pub recall_found: AtomicU64,
    /// Segments that were left to the nodes that have them.
    pub segments_of_nodes: AtomicU64,
    /// Bytes of commands to other nodes.
    pub bytes_to_nodes: AtomicU64,
    /// Bytes of their answers.
    pub bytes_from_nodes: AtomicU64,
}

impl ScanMetrics {
    /// What readers have counted.
    pub fn reads(&self) -> ReadCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ReadCounters {
            pages_from_flash: load(&self.pages_from_flash),
            bytes_from_flash: load(&self.bytes_from_flash),
            pages_from_cache: load(&self.pages_from_cache),
            wait_ns: load(&self.flash_wait_ns),
        }
    }

    /// Those counters that say what was done, wherever, in an order of their own.
    fn work(&self) -> [&AtomicU64; 18] {
        [
            &self.pages_from_flash,
            &self.bytes_from_flash,
            &self.pages_from_cache,
            &self.segments_skipped_zone_map,
            &self.segments_skipped_runtime,
            &self.segments_skipped_index,
            &self.segments_read,
            &self.pages_skipped_zone_map,
            &self.pages_skipped_runtime,
            &self.pages_skipped_index,
            &self.pages_skipped_selection,
            &self.rows_in,
            &self.device_time_ns,
            &self.flash_wait_ns,
            &self.device_calls,
            &self.bytes_to_device,
            &self.bytes_from_device,
            &self.device_fallbacks,
        ]
    }

    /// What another node is told of the work: for [`Self::add_work`].
    pub(crate) fn work_done(&self) -> Vec<u64> {
        let work = self.work().into_iter();
        work.map(|counter| counter.load(Ordering::Relaxed))
            .collect()
    }

    /// Adds the work of another node.
    pub(crate) fn add_work(&self, done: &[u64]) {
        for (counter, value) in self.work().into_iter().zip(done) {
            counter.fetch_add(*value, Ordering::Relaxed);
        }
    }

    /// Adds what a reader has counted.
    pub fn add_reads(&self, reads: ReadCounters) {
        for (counter, value) in [
            (&self.pages_from_flash, reads.pages_from_flash),
            (&self.bytes_from_flash, reads.bytes_from_flash),
            (&self.pages_from_cache, reads.pages_from_cache),
            (&self.flash_wait_ns, reads.wait_ns),
        ] {
            counter.fetch_add(value, Ordering::Relaxed);
        }
    }

    /// Adds what another scan's device has done.
    pub fn add_device(&self, other: &Self) {
        for (counter, value) in [
            (&self.device_calls, &other.device_calls),
            (&self.bytes_to_device, &other.bytes_to_device),
            (&self.bytes_from_device, &other.bytes_from_device),
            (&self.device_fallbacks, &other.device_fallbacks),
        ] {
            counter.fetch_add(value.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Adds the recall of one search: the exact distances of the nearest rows, the nearest first,
    /// and those of the rows found. A row as near as the farthest of the exact answer counts, as
    /// any of several at one distance may be given. What is NaN counts in neither.
    pub fn add_recall(&self, exact: &[f64], found: &[f64]) {
        let exact: Vec<f64> = exact.iter().copied().filter(|d| !d.is_nan()).collect();
        let Some(farthest) = exact.last() else {
            return;
        };
        let near = found.iter().filter(|distance| *distance <= farthest);
        let near = near.count().min(exact.len());
        let expected = exact.len() as u64;
        self.recall_expected.fetch_add(expected, Ordering::Relaxed);
        self.recall_found.fetch_add(near as u64, Ordering::Relaxed);
    }
}
