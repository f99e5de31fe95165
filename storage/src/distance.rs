//! Distances from many vectors to a few, as fast as a CPU can: the kernels behind
//! [`flashmesh_pushdown::distance`], which says what they compute.
//!
//! Vectors are taken as they lie in a page: values of a fixed size in bytes, one after the other.
//! A page is small enough for the nearest cache, and so are the queries of a batch: all queries
//! are compared with one page before the next is touched.
//!
//! * Bits, one query: XOR and population count, code by code.
//! * Bits, several queries: eight codes side by side, word by word, so that the counts of eight
//!   codes are in the eight lanes of a register and nothing has to be added across.
//! * Floats: the 32 lanes of the definition are two (AVX-512), four (AVX2) or eight (NEON)
//!   registers.

use std::collections::BinaryHeap;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::DataType;
use flashmesh_pushdown::distance::{self, LANES};
use flashmesh_pushdown::{Metric, QueryVector};
use multiversion::multiversion;

use crate::{Result, StorageError};

/// Codes side by side.
const SIDE: usize = 8;
/// From so many queries on, codes are put side by side.
const QUERIES_TO_TRANSPOSE: usize = 3;

/// Vectors to measure from, all of one length.
#[derive(Debug, Clone)]
pub(crate) struct Targets {
    metric: Metric,
    /// Bytes of a vector.
    size: usize,
    /// Of each query its bits, filled up with zeros to whole words.
    words: Vec<u64>,
    words_each: usize,
    /// Of each query its floats.
    floats: Vec<f32>,
    /// Of each query the sum of its squares.
    squares: Vec<f32>,
    count: usize,
}

/// Some of the vectors of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Positions<'a> {
    /// So many from the first on.
    All(usize),
    /// These.
    List(&'a [u32]),
}

impl Positions<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::All(count) => *count,
            Self::List(list) => list.len(),
        }
    }

    #[inline(always)]
    fn for_each(&self, mut f: impl FnMut(u32)) {
        match self {
            Self::All(count) => (0..*count as u32).for_each(f),
            Self::List(list) => list.iter().for_each(|position| f(*position)),
        }
    }
}

impl PartialEq for Targets {
    /// Bit by bit, so that 0.0 is not −0.0 and NaN is itself.
    fn eq(&self, other: &Self) -> bool {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        (self.metric, self.size, self.count) == (other.metric, other.size, other.count)
            && self.words == other.words
            && bits(&self.floats) == bits(&other.floats)
    }
}

impl Targets {
    /// Vectors of `length` bytes (Hamming) or elements. The verifier has seen to it that all
    /// queries have that length.
    pub fn new<'a>(
        metric: Metric,
        length: usize,
        queries: impl IntoIterator<Item = &'a QueryVector>,
    ) -> Self {
        let size = if metric == Metric::Hamming {
            length
        } else {
            4 * length
        };
        let mut targets = Self {
            metric,
            size,
            words: Vec::new(),
            words_each: length.div_ceil(8),
            floats: Vec::new(),
            squares: Vec::new(),
            count: 0,
        };
        for query in queries {
            debug_assert_eq!(query.len(), length);
            targets.count += 1;
            match query {
                QueryVector::Bits(bytes) => {
                    let start = targets.words.len();
                    targets.words.resize(start + targets.words_each, 0);
                    to_words(bytes, &mut targets.words[start..]);
                }
                QueryVector::Floats(values) => {
                    let bytes: Vec<[u8; 4]> = values.iter().map(|v| v.to_le_bytes()).collect();
                    targets.squares.push(products_of(&bytes, values));
                    targets.floats.extend_from_slice(values);
                }
            }
        }
        targets
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The bytes of a query of the Hamming distance.
    pub fn code(&self, query: usize) -> Vec<u8> {
        let words = self.query_words(query).iter();
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.size);
        bytes
    }

    /// Bytes of a vector.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    fn query_words(&self, query: usize) -> &[u64] {
        &self.words[query * self.words_each..][..self.words_each]
    }

    fn query_floats(&self, query: usize) -> &[f32] {
        &self.floats[query * self.size / 4..][..self.size / 4]
    }

    /// Appends the Hamming distances of the vectors at `positions` of `values` to a query.
    pub fn hamming(
        &self,
        query: usize,
        values: &[u8],
        positions: Positions<'_>,
        out: &mut Vec<u32>,
    ) {
        hamming_of(self.query_words(query), self.size, values, positions, out);
    }

    /// Appends the distances of the vectors of floats at `positions` of `values` to a query.
    pub fn floats(
        &self,
        query: usize,
        values: &[u8],
        positions: Positions<'_>,
        out: &mut Vec<f32>,
    ) {
        let (floats, squares) = (self.query_floats(query), self.squares[query]);
        distances_of(self.metric, floats, squares, values, positions, out);
    }
}

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
    fn key(self, metric: Metric, distance: f32) -> i32 {
        match self {
            Self::Ascending => total_key(distance),
            Self::Descending => !total_key(distance),
            Self::Rank => total_key(distance::rank(metric, distance)),
        }
    }

    fn bits_key(self, distance: u32) -> i32 {
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

/// The bytes as words, filled up with zeros.
#[inline(always)]
fn to_words(bytes: &[u8], words: &mut [u64]) {
    let (whole, rest) = bytes.as_chunks::<8>();
    for (word, bytes) in words.iter_mut().zip(whole) {
        *word = u64::from_le_bytes(*bytes);
    }
    if !rest.is_empty()
        && let Some(word) = words.get_mut(whole.len())
    {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        *word = u64::from_le_bytes(last);
    }
}

/// Lays codes out in blocks of eight: the first words of all eight, then their second words, ….
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
fn put_side_by_side(
    values: &[u8],
    size: usize,
    words_each: usize,
    positions: Positions<'_>,
    blocks: &mut Vec<u64>,
) {
    #[inline(always)]
    fn put<const W: usize>(values: &[u8], positions: Positions<'_>, blocks: &mut [u64]) {
        let codes = values.as_chunks::<8>().0.as_chunks::<W>().0;
        let blocks = blocks.as_chunks_mut::<SIDE>().0.as_chunks_mut::<W>().0;
        let mut number = 0;
        positions.for_each(|position| {
            let (code, block) = (&codes[position as usize], &mut blocks[number / SIDE]);
            for word in 0..W {
                block[word][number % SIDE] = u64::from_le_bytes(code[word]);
            }
            number += 1;
        });
    }
    blocks.clear();
    blocks.resize(positions.len().div_ceil(SIDE) * SIDE * words_each, 0);
    match size {
        8 => return put::<1>(values, positions, blocks),
        16 => return put::<2>(values, positions, blocks),
        32 => return put::<4>(values, positions, blocks),
        64 => return put::<8>(values, positions, blocks),
        _ => {}
    }
    let mut code = vec![0; words_each];
    let mut number = 0;
    positions.for_each(|position| {
        to_words(&values[position as usize * size..][..size], &mut code);
        let start = number / SIDE * SIDE * words_each + number % SIDE;
        for (word, value) in code.iter().enumerate() {
            blocks[start + word * SIDE] = *value;
        }
        number += 1;
    });
}

/// Collects distance and number of the codes that are nearer to the query than `limit`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
fn nearer_side_by_side(
    blocks: &[u64],
    query: &[u64],
    count: usize,
    limit: i32,
    hits: &mut Vec<(i32, u32)>,
) {
    let limit = u64::from(limit.max(0) as u32);
    let keep = |number: usize, counts: &[u64; SIDE], hits: &mut Vec<(i32, u32)>| {
        for (lane, distance) in counts.iter().enumerate() {
            if *distance < limit && number * SIDE + lane < count {
                hits.push((*distance as i32, (number * SIDE + lane) as u32));
            }
        }
    };
    #[inline(always)]
    fn scan<const W: usize>(
        blocks: &[u64],
        query: &[u64],
        limit: u64,
        mut keep: impl FnMut(usize, &[u64; SIDE]),
    ) {
        let blocks = blocks.as_chunks::<SIDE>().0.as_chunks::<W>().0;
        let Some(query) = query.first_chunk::<W>() else {
            return;
        };
        for (number, block) in blocks.iter().enumerate() {
            let mut counts = [0_u64; SIDE];
            for word in 0..W {
                for lane in 0..SIDE {
                    counts[lane] += u64::from((block[word][lane] ^ query[word]).count_ones());
                }
            }
            if counts
                .iter()
                .fold(false, |any, count| any | (*count < limit))
            {
                keep(number, &counts);
            }
        }
    }
    match query.len() {
        1 => scan::<1>(blocks, query, limit, |n, c| keep(n, c, hits)),
        2 => scan::<2>(blocks, query, limit, |n, c| keep(n, c, hits)),
        4 => scan::<4>(blocks, query, limit, |n, c| keep(n, c, hits)),
        8 => scan::<8>(blocks, query, limit, |n, c| keep(n, c, hits)),
        words => {
            let blocks = blocks.as_chunks::<SIDE>().0.chunks_exact(words);
            for (number, block) in blocks.enumerate() {
                let mut counts = [0_u64; SIDE];
                for (codes, query) in block.iter().zip(query) {
                    for lane in 0..SIDE {
                        counts[lane] += u64::from((codes[lane] ^ query).count_ones());
                    }
                }
                keep(number, &counts, hits);
            }
        }
    }
}

/// [`nearer_side_by_side`] for codes as they lie.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
fn nearer(
    query: &[u64],
    size: usize,
    values: &[u8],
    positions: Positions<'_>,
    limit: i32,
    hits: &mut Vec<(i32, u32)>,
) {
    #[inline(always)]
    fn scan<const W: usize>(
        query: &[u64],
        values: &[u8],
        count: usize,
        limit: i32,
        hits: &mut Vec<(i32, u32)>,
    ) {
        let Some(query) = query.first_chunk::<W>() else {
            return;
        };
        let codes = values.as_chunks::<8>().0.as_chunks::<W>().0;
        for (number, code) in codes[..count].iter().enumerate() {
            let mut distance = 0;
            for word in 0..W {
                distance += (u64::from_le_bytes(code[word]) ^ query[word]).count_ones();
            }
            if (distance as i32) < limit {
                hits.push((distance as i32, number as u32));
            }
        }
    }
    match (positions, size) {
        (Positions::All(count), 8) => scan::<1>(query, values, count, limit, hits),
        (Positions::All(count), 16) => scan::<2>(query, values, count, limit, hits),
        (Positions::All(count), 32) => scan::<4>(query, values, count, limit, hits),
        (Positions::All(count), 64) => scan::<8>(query, values, count, limit, hits),
        _ => {
            let mut number = 0;
            positions.for_each(|position| {
                let distance = bits_apart(query, &values[position as usize * size..][..size]);
                if (distance as i32) < limit {
                    hits.push((distance as i32, number));
                }
                number += 1;
            });
        }
    }
}

/// Bits in which a code and a query differ.
#[inline(always)]
fn bits_apart(query: &[u64], code: &[u8]) -> u32 {
    let (whole, rest) = code.as_chunks::<8>();
    let mut distance = 0;
    for (query, code) in query.iter().zip(whole) {
        distance += (query ^ u64::from_le_bytes(*code)).count_ones();
    }
    if let Some(query) = query.get(whole.len()) {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        distance += (query ^ u64::from_le_bytes(last)).count_ones();
    }
    distance
}

/// Appends the Hamming distances of codes to a query.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vpopcntdq+popcnt",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
fn hamming_of(
    query: &[u64],
    size: usize,
    values: &[u8],
    positions: Positions<'_>,
    out: &mut Vec<u32>,
) {
    out.reserve(positions.len());
    positions.for_each(|position| {
        let code = &values[position as usize * size..][..size];
        out.push(bits_apart(query, code));
    });
}

/// Appends the distances of vectors of floats to a query, whose squares add up to `squares`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt",
    "aarch64+neon"
))]
fn distances_of(
    metric: Metric,
    query: &[f32],
    squares: f32,
    values: &[u8],
    positions: Positions<'_>,
    out: &mut Vec<f32>,
) {
    let values = values.as_chunks::<4>().0;
    let length = query.len();
    out.reserve(positions.len());
    positions.for_each(|position| {
        let vector = &values[position as usize * length..][..length];
        out.push(match metric {
            Metric::Dot => distance::number(sum(vector, query, |v, q| v * q)),
            Metric::Cosine => {
                let (both, own) = sums(vector, query);
                distance::cosine_of(both, own, squares)
            }
            _ => {
                let sum = sum(vector, query, |v, q| (v - q) * (v - q));
                distance::number(sum.sqrt())
            }
        });
    });
}

/// The sum of the products of a vector with a query.
fn products_of(vector: &[[u8; 4]], query: &[f32]) -> f32 {
    sum(vector, query, |v, q| v * q)
}

/// The sum in the order that [`flashmesh_pushdown::distance`] defines.
///
/// The chunks are slices, not arrays: of a loop whose length it knows a compiler makes 32 scalar
/// sums.
#[inline(always)]
fn sum(vector: &[[u8; 4]], query: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (vector, query) in vector.chunks(LANES).zip(query.chunks(LANES)) {
        for ((lane, value), query) in lanes.iter_mut().zip(vector).zip(query) {
            *lane += term(f32::from_le_bytes(*value), *query);
        }
    }
    add_lanes(lanes)
}

/// The sums of a vector's products with a query and with itself.
#[inline(always)]
fn sums(vector: &[[u8; 4]], query: &[f32]) -> (f32, f32) {
    let (mut both, mut own) = ([0.0_f32; LANES], [0.0_f32; LANES]);
    for (vector, query) in vector.chunks(LANES).zip(query.chunks(LANES)) {
        let lanes = both.iter_mut().zip(&mut own);
        for (((both, own), value), query) in lanes.zip(vector).zip(query) {
            let value = f32::from_le_bytes(*value);
            *both += value * query;
            *own += value * value;
        }
    }
    (add_lanes(both), add_lanes(own))
}

#[inline(always)]
fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The vectors of an array: their bytes, one after the other, and which of them are NULL or have
/// an element that is.
#[derive(Debug)]
pub(crate) struct FixedVectors {
    bytes: Buffer,
    rows: Option<NullBuffer>,
    elements: Option<NullBuffer>,
    length: usize,
}

impl FixedVectors {
    /// Of an array of FixedSizeBinary, or of FixedSizeList of Float32.
    pub fn of(array: &ArrayRef) -> Result<Self> {
        let unsuited =
            || StorageError::Invalid(format!("{} is no type of vectors", array.data_type()));
        let rows = array.nulls().cloned();
        let part = |data: &ArrayData, size: usize| {
            let (start, length) = (data.offset() * size, data.len() * size);
            data.buffers()[0].slice_with_length(start, length)
        };
        Ok(match array.data_type() {
            DataType::FixedSizeBinary(size) => Self {
                bytes: part(&array.to_data(), *size as usize),
                rows,
                elements: None,
                length: *size as usize,
            },
            DataType::FixedSizeList(child, size) if *child.data_type() == DataType::Float32 => {
                let lists = array.as_fixed_size_list();
                let length = *size as usize;
                let start = lists.value_offset(0) as usize;
                let elements = lists.values().slice(start, lists.len() * length);
                Self {
                    bytes: part(&elements.to_data(), 4),
                    rows,
                    elements: elements.nulls().cloned().filter(|n| n.null_count() > 0),
                    length,
                }
            }
            _ => return Err(unsuited()),
        })
    }

    /// The values, one vector after the other.
    pub fn values(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the vector at `row` and all its elements are not NULL.
    pub fn is_valid(&self, row: usize) -> bool {
        let elements = row * self.length..(row + 1) * self.length;
        self.rows.as_ref().is_none_or(|rows| rows.is_valid(row))
            && self
                .elements
                .as_ref()
                .is_none_or(|nulls| elements.into_iter().all(|element| nulls.is_valid(element)))
    }

    /// Whether one of them may not be valid.
    pub fn has_nulls(&self) -> bool {
        self.rows.is_some() || self.elements.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashmesh_pushdown::testing::for_each_case;
    use rand::RngExt;

    /// All kernels, for all lengths, against the definition.
    #[test]
    fn kernels_compute_what_is_defined() {
        for_each_case("distance kernels", 300, |generator| {
            let rng = generator.rng();
            let (length, count) = (
                rng.random_range(0..200_usize),
                rng.random_range(0..40_usize),
            );
            let few: Vec<u32> = (0..count as u32).filter(|_| rng.random_bool(0.6)).collect();
            let queries = rng.random_range(1..6);
            let k = rng.random_range(1..12);
            for metric in [Metric::Hamming, Metric::L2, Metric::Cosine, Metric::Dot] {
                let mut vector = || match metric {
                    Metric::Hamming => {
                        QueryVector::Bits((0..length).map(|_| rng.random()).collect())
                    }
                    _ => QueryVector::Floats(
                        (0..length)
                            .map(|_| match rng.random_range(0..200) {
                                0 => f32::NAN,
                                1 => f32::INFINITY,
                                _ => rng.random_range(-3.0..3.0),
                            })
                            .collect(),
                    ),
                };
                let vectors: Vec<QueryVector> = (0..count).map(|_| vector()).collect();
                let queries: Vec<QueryVector> = (0..queries).map(|_| vector()).collect();
                let mut values = Vec::new();
                for vector in &vectors {
                    match vector {
                        QueryVector::Bits(bytes) => values.extend_from_slice(bytes),
                        QueryVector::Floats(floats) => {
                            values.extend(floats.iter().flat_map(|v| v.to_le_bytes()))
                        }
                    }
                }
                let targets = Targets::new(metric, length, &queries);
                for positions in [Positions::All(count), Positions::List(&few)] {
                    check(&targets, &queries, &vectors, &values, positions, k);
                }
            }
        });
    }

    fn check(
        targets: &Targets,
        queries: &[QueryVector],
        vectors: &[QueryVector],
        values: &[u8],
        positions: Positions<'_>,
        k: usize,
    ) {
        let mut all = Vec::new();
        positions.for_each(|position| all.push(position));
        for order in [Order::Ascending, Order::Descending, Order::Rank] {
            let mut search = Search::new(targets.clone(), order, k);
            search.add(values, positions, u64::from);
            let found = search.take();
            for (number, query) in queries.iter().enumerate() {
                let mut keys: Vec<i32> = match query {
                    QueryVector::Bits(query) => {
                        let expected = all.iter().map(|p| match &vectors[*p as usize] {
                            QueryVector::Bits(v) => distance::hamming(v, query),
                            QueryVector::Floats(_) => 0,
                        });
                        let expected: Vec<u32> = expected.collect();
                        let mut measured = Vec::new();
                        targets.hamming(number, values, positions, &mut measured);
                        assert_eq!(measured, expected);
                        expected.iter().map(|d| order.bits_key(*d)).collect()
                    }
                    QueryVector::Floats(query) => {
                        let metric = targets.metric;
                        let expected = all.iter().map(|p| match &vectors[*p as usize] {
                            QueryVector::Floats(v) => distance::distance(metric, v, query).unwrap(),
                            QueryVector::Bits(_) => 0.0,
                        });
                        let expected: Vec<f32> = expected.collect();
                        let mut measured = Vec::new();
                        targets.floats(number, values, positions, &mut measured);
                        let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                        assert_eq!(bits(&measured), bits(&expected), "{metric}");
                        expected.iter().map(|d| order.key(metric, *d)).collect()
                    }
                };
                keys.sort_unstable();
                keys.truncate(k);
                let found: Vec<i32> = found[number].iter().map(|found| found.key).collect();
                assert_eq!(found, keys);
            }
        }
    }
}
