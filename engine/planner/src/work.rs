//! What a plan had the store do, operator by operator.

use datafusion::physical_plan::ExecutionPlan;
use flashmesh_pushdown::Output;

use crate::FlashScanExec;
use crate::relations::table_of_function;

/// What the store has done for one operator of a plan: a scan, or a function that it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreWork {
    /// Segments that a scan worked on; of a function, those of its table.
    pub segments: u64,
    /// Rows of these; 0 of a function, which does not count them.
    pub rows: u64,
    /// Pages read, from flash and from the cache.
    pub pages: u64,
    /// Bytes given to the host.
    pub bytes_to_host: u64,
    /// Streams of a scan that gives each an answer of its own: partial aggregates, or the first rows
    /// of each. `None` where rows leave as they are found.
    pub streams: Option<u64>,
    /// Requests to the store: 1 of a scan.
    pub commands: u64,
}

impl StoreWork {
    /// The operators of a plan that was run, as its tree has them. Of one that ran several times
    /// the last execution is there.
    pub fn of(plan: &dyn ExecutionPlan) -> Vec<Self> {
        let mut all = Vec::new();
        collect(plan, &mut all);
        all
    }
}

fn collect(plan: &dyn ExecutionPlan, all: &mut Vec<StoreWork>) {
    let metrics = plan.metrics();
    let counter = |name: &str| {
        let value = metrics.as_ref().and_then(|m| m.sum_by_name(name));
        value.map_or(0, |value| value.as_usize() as u64)
    };
    let work = StoreWork {
        segments: counter("segments_read"),
        rows: counter("rows_in"),
        pages: counter("pages_from_flash") + counter("pages_from_cache"),
        bytes_to_host: counter("bytes_to_host"),
        streams: None,
        commands: counter("commands"),
    };
    if let Some(scan) = plan
        .downcast_ref::<FlashScanExec>()
        .filter(|_| metrics.is_some())
    {
        let are_found = matches!(&scan.spec().output, Output::Rows { limit: None, .. });
        all.push(StoreWork {
            streams: (!are_found).then_some(scan.partitions() as u64),
            commands: 1,
            ..work
        });
    } else if let Some(table) = table_of_function(plan).filter(|_| metrics.is_some()) {
        let segments = table.snapshot().segments.len() as u64;
        all.push(StoreWork { segments, ..work });
    }
    for child in plan.children() {
        collect(child.as_ref(), all);
    }
}
