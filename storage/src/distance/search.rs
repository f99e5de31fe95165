//! The nearest vectors so far.

use std::collections::BinaryHeap;

use flashmesh_pushdown::{Metric, distance};

use super::bits::{nearer, nearer_side_by_side, put_side_by_side};
use super::{Positions, Targets};

/// From so many queries on, codes are put side by side.
const QUERIES_TO_TRANSPOSE: usize = 3;

/// What is nearest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// The least distance, as `ORDER BY` has it.
    Ascending,
    /// The greatest.
    Descending,
    /// The least [`distance::rank`].
    Rank,
}

impl Order {
    /// A number that is less the earlier the distance is in the order.
    pub(super) fn key(self, metric: Metric, distance: f32) -> i32 {
        match self {
            Self::Ascending => total_key(distance),
            Self::Descending => !total_key(distance),
            Self::Rank => total_key(distance::rank(metric, distance)),
        }
    }

    pub(super) fn bits_key(self, distance: u32) -> i32 {
        match self {
            Self::Ascending | Self::Rank => distance as i32,
            Self::Descending => !(distance as i32),
        }
    }
}

/// A number that is ordered as the float is by IEEE 754's total order.
fn total_key(value: f32) -> i32 {
    let bits = value.to_bits() as i32;
    bits ^ ((bits >> 31) as u32 >> 1) as i32
}

/// The float of a [`total_key`].
fn from_total_key(key: i32) -> f32 {
    f32::from_bits((key ^ ((key >> 31) as u32 >> 1) as i32) as u32)
}

/// A vector that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Found {
    /// What it is ordered by.
    pub key: i32,
    /// Where it is: what the caller said.
    pub place: u64,
}

/// The `k` nearest to each of several vectors, so far.
#[derive(Debug)]
pub(crate) struct Search {
    targets: Targets,
    order: Order,
    k: usize,
    best: Vec<BinaryHeap<Found>>,
    /// Codes side by side.
    blocks: Vec<u64>,
    /// Key and number among the positions.
    hits: Vec<(i32, u32)>,
    distances: Vec<f32>,
    counts: Vec<u32>,
}

impl Search {
    pub fn new(targets: Targets, order: Order, k: usize) -> Self {
        Self {
            best: vec![BinaryHeap::new(); targets.len()],
            targets,
            order,
            k,
            blocks: Vec::new(),
            hits: Vec::new(),
            distances: Vec::new(),
            counts: Vec::new(),
        }
    }

    pub fn targets(&self) -> &Targets {
        &self.targets
    }

    /// How many of the nearest codes are looked for; `None` unless they are those of the least
    /// Hamming distance.
    pub fn nearest_codes(&self) -> Option<usize> {
        let by_count = self.targets.metric == Metric::Hamming;
        (by_count && self.order != Order::Descending).then_some(self.k)
    }

    /// No vector can be nearer.
    pub fn is_satisfied(&self) -> bool {
        self.k == 0 || self.best.is_empty()
    }

    /// Keys from here on don't matter to a query.
    pub fn limit(&self, query: usize) -> i32 {
        let best = &self.best[query];
        match best.peek() {
            Some(last) if best.len() >= self.k => last.key,
            _ => i32::MAX,
        }
    }

    /// Takes in vectors of a page. `place` turns a vector's position into what [`Found`] says.
    pub fn add(&mut self, values: &[u8], positions: Positions<'_>, place: impl Fn(u32) -> u64) {
        if self.is_satisfied() || positions.len() == 0 {
            return;
        }
        let by_count = self.targets.metric == Metric::Hamming;
        let side_by_side = by_count
            && self.order != Order::Descending
            && self.targets.len() >= QUERIES_TO_TRANSPOSE
            && self.targets.size > 0;
        if side_by_side {
            let words = self.targets.words_each;
            put_side_by_side(
                values,
                self.targets.size,
                words,
                positions,
                &mut self.blocks,
            );
        }
        for query in 0..self.targets.len() {
            self.hits.clear();
            let limit = self.limit(query);
            if side_by_side {
                let words = self.targets.query_words(query);
                nearer_side_by_side(&self.blocks, words, positions.len(), limit, &mut self.hits);
            } else if by_count && self.order != Order::Descending {
                let words = self.targets.query_words(query);
                nearer(
                    words,
                    self.targets.size,
                    values,
                    positions,
                    limit,
                    &mut self.hits,
                );
            } else if by_count {
                self.counts.clear();
                self.targets
                    .hamming(query, values, positions, &mut self.counts);
                let keys = self.counts.iter().map(|count| self.order.bits_key(*count));
                keep_below(keys, limit, &mut self.hits);
            } else {
                self.distances.clear();
                self.targets
                    .floats(query, values, positions, &mut self.distances);
                let (order, metric) = (self.order, self.targets.metric);
                let keys = self.distances.iter().map(|d| order.key(metric, *d));
                keep_below(keys, limit, &mut self.hits);
            }
            self.keep(query, |number| {
                Some(place(match positions {
                    Positions::All(_) => number,
                    Positions::List(list) => list[number as usize],
                }))
            });
        }
    }

    /// [`Self::add`] of codes, all of `values`, for one of the queries; `place` may refuse.
    pub fn add_codes(
        &mut self,
        query: usize,
        values: &[u8],
        place: impl FnMut(u32) -> Option<u64>,
    ) {
        self.hits.clear();
        let (limit, size) = (self.limit(query), self.targets.size);
        let words = self.targets.query_words(query);
        let all = Positions::All(values.len() / size.max(1));
        nearer(words, size, values, all, limit, &mut self.hits);
        self.keep(query, place);
    }

    /// [`Self::add`] of one vector for one of the queries.
    pub fn add_vector(
        &mut self,
        query: usize,
        value: &[u8],
        place: impl FnMut(u32) -> Option<u64>,
    ) {
        if self.targets.metric == Metric::Hamming {
            return self.add_codes(query, value, place);
        }
        let mut distances = std::mem::take(&mut self.distances);
        distances.clear();
        self.targets
            .floats(query, value, Positions::All(1), &mut distances);
        self.add_distances(query, &distances, place);
        self.distances = distances;
    }

    /// Takes in vectors by their distances from one of the queries; `place` may refuse.
    pub fn add_distances(
        &mut self,
        query: usize,
        distances: &[f32],
        place: impl FnMut(u32) -> Option<u64>,
    ) {
        self.hits.clear();
        let limit = self.limit(query);
        let keys = distances.iter().map(|distance| total_key(*distance));
        keep_below(keys, limit, &mut self.hits);
        self.keep(query, place);
    }

    /// Keeps what was hit if it is still among the best.
    fn keep(&mut self, query: usize, mut place: impl FnMut(u32) -> Option<u64>) {
        let best = &mut self.best[query];
        for (key, number) in &self.hits {
            if best.len() >= self.k && best.peek().is_none_or(|last| *key >= last.key) {
                continue;
            }
            let Some(place) = place(*number) else {
                continue;
            };
            let found = Found { key: *key, place };
            if best.len() < self.k {
                best.push(found);
            } else if let Some(mut last) = best.peek_mut() {
                *last = found;
            }
        }
    }

    /// Changes the places of what was found.
    pub fn for_places(&mut self, mut f: impl FnMut(&mut u64)) {
        for best in &mut self.best {
            let mut all = std::mem::take(best).into_vec();
            all.iter_mut().for_each(|found| f(&mut found.place));
            *best = all.into();
        }
    }

    /// The nearest to each query, nearest first; the search is empty then.
    pub fn take(&mut self) -> Vec<Vec<Found>> {
        let sorted = |best: &mut BinaryHeap<Found>| std::mem::take(best).into_sorted_vec();
        self.best.iter_mut().map(sorted).collect()
    }

    /// The distance of a key: floats.
    pub fn distance_of(&self, key: i32) -> f32 {
        match (self.order, self.targets.metric) {
            (Order::Descending, _) => from_total_key(!key),
            (Order::Rank, metric) => distance::rank(metric, from_total_key(key)),
            _ => from_total_key(key),
        }
    }

    /// The distance of a key: bits.
    pub fn count_of(&self, key: i32) -> u32 {
        match self.order {
            Order::Descending => !key as u32,
            _ => key as u32,
        }
    }
}

fn keep_below(keys: impl Iterator<Item = i32>, limit: i32, hits: &mut Vec<(i32, u32)>) {
    let hit = |(number, key): (u32, i32)| (key < limit).then_some((key, number));
    hits.extend((0..).zip(keys).filter_map(hit));
}
