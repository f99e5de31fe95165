//! What the zone maps of chunks, which are in memory, say of whole segments.

use std::ops::Range;
use std::sync::Arc;

use flashmesh_pushdown::{Program, RuntimeFilter, RuntimePredicate};

use super::columns::Columns;
use super::eval::graph::Graph;
use super::filter::{Filter, chunk_verdict};
use super::prune::{Span, Verdict};
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

    /// The runtime filters as far as they tell rows of these segments apart. A set of keys that all nodes
    /// have a part of the rows of would travel to each as a whole else.
    pub fn narrowed(&mut self, segments: &[Arc<Segment>]) -> Vec<RuntimeFilter> {
        let mut filters = self.runtime.to_vec();
        for filter in &mut filters {
            if let RuntimePredicate::Bitmap { base, bits } = &mut filter.predicate
                && let Some(needed) = self.words_for(filter.column, *base, bits.len(), segments)
            {
                let mut narrowed = vec![0; bits.len()];
                for words in needed {
                    narrowed[words.clone()].copy_from_slice(&bits[words]);
                }
                *bits = narrowed.into();
            }
        }
        filters
    }

    /// The words of a bitmap that keys of these segments fall into; `None`: it may be all.
    fn words_for(
        &mut self,
        column: u32,
        base: i64,
        words: usize,
        segments: &[Arc<Segment>],
    ) -> Option<Vec<Range<usize>>> {
        let column = column as usize;
        let mut needed = Vec::new();
        for segment in segments {
            self.columns.open(segment).ok()?;
            let (facts, kind) = (self.columns.facts(column), self.columns.kind(column));
            self.columns.close();
            if facts.values == Span::Nothing {
                continue;
            }
            let (min, max) = facts.numbers(kind)?;
            let word = |key: i128| (key - i128::from(base)).div_euclid(64);
            let (first, last) = (word(min).max(0), word(max).min(words as i128 - 1));
            if first <= last {
                needed.push(first as usize..last as usize + 1);
            }
        }
        Some(needed)
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
