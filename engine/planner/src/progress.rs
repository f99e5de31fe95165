//! How far a plan that runs has come.

use datafusion::physical_plan::ExecutionPlan;

use crate::FlashScanExec;

/// What the scans of a plan have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanProgress {
    /// Bytes read from flash.
    pub bytes_from_flash: u64,
    /// Segments that were started or skipped.
    pub segments_done: u64,
    /// Segments of all scans.
    pub segments: u64,
}

impl ScanProgress {
    /// Adds up the counters of a plan's scans and of the functions that the store runs.
    pub fn of(plan: &dyn ExecutionPlan) -> Self {
        let mut progress = Self::default();
        progress.add(plan);
        progress
    }

    fn add(&mut self, plan: &dyn ExecutionPlan) {
        let metrics = plan.metrics();
        let counter = |name: &str| {
            let metrics = metrics.as_ref()?;
            Some(metrics.sum_by_name(name)?.as_usize() as u64)
        };
        let is_scan = plan.downcast_ref::<FlashScanExec>();
        self.bytes_from_flash += counter("bytes_from_flash").unwrap_or(0);
        if let Some(scan) = is_scan {
            let segments = scan.spec().table.segments.len() as u64;
            let done = [
                "segments_read",
                "segments_skipped_zone_map",
                "segments_skipped_runtime",
                "segments_skipped_index",
            ];
            let done: u64 = done.into_iter().filter_map(counter).sum();
            self.segments += segments;
            self.segments_done += done.min(segments);
        }
        for child in plan.children() {
            self.add(child.as_ref());
        }
    }
}
