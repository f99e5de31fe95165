//! What the zone maps of chunks, which are in memory, say of whole segments.

use std::sync::Arc;

use flashmesh_pushdown::{Program, RuntimeFilter};

use super::columns::Columns;
use super::eval::graph::Graph;
use super::filter::{Filter, chunk_verdict};
use super::prune::Verdict;
use super::{ScanMetrics, add};
use crate::kernel::KernelSet;
use crate::segment::Segment;

/// Tells which segments of a scan have no row that passes, without reading anything.
pub(crate) struct ChunkZones<'a> {
    graph: Graph,
    filter: Filter,
    runtime: &'a [RuntimeFilter],
    columns: Columns,
}

impl<'a> ChunkZones<'a> {
    /// For a Program without kernels.
    pub fn new(program: &Program, runtime: &'a [RuntimeFilter]) -> Self {
        let graph = Graph::new(program, &KernelSet::default());
        Self {
            filter: Filter::new(&graph, None),
            runtime,
            columns: Columns::new(program),
            graph,
        }
    }

    /// Whether no row of the segment passes; counts it as skipped then.
    pub fn rule_out(&mut self, segment: &Arc<Segment>, metrics: &ScanMetrics) -> bool {
        // Whoever works on it says what is wrong with it.
        if self.columns.open(segment).is_err() {
            return false;
        }
        let columns = &self.columns;
        let skipped = if self.filter.chunk_verdicts(&self.graph, columns).is_none() {
            add(&metrics.pages_skipped_zone_map, columns.data_pages());
            Some(&metrics.segments_skipped_zone_map)
        } else {
            let mut verdicts = self.runtime.iter().map(|f| chunk_verdict(f, columns));
            let is_out = verdicts.any(|verdict| verdict == Verdict::Drop);
            is_out.then_some(&metrics.segments_skipped_runtime)
        };
        if let Some(segments) = skipped {
            add(segments, 1);
        }
        self.columns.close();
        skipped.is_some()
    }
}
