//! How far a query is.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricsSet;
use flashmesh_planner::FlashScanExec;

/// What the scans of a plan have done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Segments read or skipped.
    pub(super) segments: usize,
    /// Segments of all scans.
    pub(super) total_segments: usize,
    /// Bytes that came from flash.
    pub(super) bytes_from_flash: usize,
}

impl Progress {
    pub(super) fn of(plan: &Arc<dyn ExecutionPlan>) -> Self {
        let mut progress = Self::default();
        progress.add(plan);
        progress
    }

    fn add(&mut self, plan: &Arc<dyn ExecutionPlan>) {
        if let Some(scan) = plan.downcast_ref::<FlashScanExec>() {
            let total = scan.spec().table.segments.len();
            let metrics = scan.metrics().unwrap_or_default();
            let done = [
                "segments_read",
                "segments_skipped_zone_map",
                "segments_skipped_runtime",
                "segments_skipped_index",
            ]
            .map(|name| count(&metrics, name));
            self.total_segments += total;
            // A scan that runs twice (below a nested loop) counts twice.
            self.segments += done.iter().sum::<usize>().min(total);
            self.bytes_from_flash += count(&metrics, "bytes_from_flash");
        }
        for child in plan.children() {
            self.add(child);
        }
    }
}

fn count(metrics: &MetricsSet, name: &str) -> usize {
    metrics
        .sum_by_name(name)
        .map_or(0, |value| value.as_usize())
}
