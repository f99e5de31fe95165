//! From rows of an edge table to the arrays of a part.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use prost::Message;
use roaring::RoaringBitmap;

use super::{KeyType, NO_VERTEX, Record, VERSION};
use crate::index::PartData;
use crate::index::pace::Pace;
use crate::page::SEGMENT_ROWS;
use crate::{Result, StorageError};

/// Segments of a part: rows take 32 bits.
const MAX_SEGMENTS: usize = 1 << 16;
/// Keys that span at most so many numbers an edge (and this many more) are numbered through a
/// bitmap, others through a hash table.
const BITMAP_KEYS_PER_EDGE: u64 = 64;
const BITMAP_KEYS: u64 = 1 << 20;
/// Keys number the vertices themselves when so many numbers belong to a vertex at most.
const IDENTITY_KEYS_PER_VERTEX: u64 = 2;
const IDENTITY_KEYS: u64 = 64;

/// Builds a part of an adjacency index.
///
/// While rows are added it keeps 10 bytes an edge (18 where the keys of a segment span more than
/// 32 bits; 8 more for a weight); [`Self::finish`] takes up to 24 bytes an edge in all (40 with
/// weights) and up to 48 bytes a vertex: 1.6 GB for 67 million edges of 4 million vertices.
#[derive(Debug)]
pub struct AdjacencyBuilder {
    keys: KeyType,
    has_weights: bool,
    threads: usize,
    batches: Vec<Batch>,
    segments: Vec<u32>,
    edges: u64,
    /// Packed as [`Lists::rows`](super::Lists::rows) are.
    bad_weights: RoaringBitmap,
}

/// The edges of one segment.
#[derive(Debug)]
struct Batch {
    /// Row numbers of the edges within the segment.
    rows: Vec<u16>,
    ends: [Keys; 2],
    weights: Vec<f64>,
}

#[derive(Debug)]
enum Keys {
    /// Offsets from the least.
    Near(i64, Vec<u32>),
    Far(Vec<i64>),
}

impl Keys {
    fn new(keys: Vec<i64>) -> Self {
        let (Some(&min), Some(&max)) = (keys.iter().min(), keys.iter().max()) else {
            return Self::Near(0, Vec::new());
        };
        if max.abs_diff(min) > u64::from(u32::MAX) {
            return Self::Far(keys);
        }
        Self::Near(
            min,
            keys.iter()
                .map(|key| key.wrapping_sub(min) as u32)
                .collect(),
        )
    }

    fn for_each(&self, mut f: impl FnMut(i64)) {
        match self {
            Self::Near(min, offsets) => offsets
                .iter()
                .for_each(|offset| f(min.wrapping_add(i64::from(*offset)))),
            Self::Far(keys) => keys.iter().for_each(|key| f(*key)),
        }
    }
}

/// From keys to numbers.
enum Numbers {
    /// Keys count up from the least.
    Identity(i64),
    /// A bit for each key from the least on, and the number of bits before each word.
    Bitmap(i64, Vec<u64>, Vec<u32>),
    Table(hashbrown::HashMap<i64, u32>),
}

impl Numbers {
    #[inline]
    fn number(&self, key: i64) -> u32 {
        match self {
            Self::Identity(first) => key.wrapping_sub(*first) as u32,
            Self::Bitmap(first, bits, before) => {
                let place = key.wrapping_sub(*first) as u64;
                let (word, bit) = ((place / 64) as usize, place % 64);
                before[word] + (bits[word] & ((1 << bit) - 1)).count_ones()
            }
            Self::Table(numbers) => numbers[&key],
        }
    }
}

/// Edges by one end.
struct Sorted {
    offsets: Vec<u32>,
    /// The other end, the row, and the weight (if there are weights).
    others: Vec<u32>,
    rows: Vec<u32>,
    weights: Vec<f64>,
}

impl AdjacencyBuilder {
    /// A builder for end columns of these types; `threads` work at once in [`Self::finish`].
    ///
    /// # Errors
    /// Those of [`KeyType::of`].
    pub fn new(
        source: &DataType,
        target: &DataType,
        has_weights: bool,
        threads: usize,
    ) -> Result<Self> {
        Ok(Self {
            keys: KeyType::of(source, target)?,
            has_weights,
            threads: threads.max(1),
            batches: Vec::new(),
            segments: Vec::new(),
            edges: 0,
            bad_weights: RoaringBitmap::new(),
        })
    }

    /// Adds the rows of a segment. An edge with a NULL at one of its ends is skipped. `weights` is
    /// there if and only if the index has weights: a column of numbers; one that is NULL, NaN or
    /// negative is kept as a fault of the graph that weighted searches name.
    ///
    /// # Errors
    /// `Invalid` for arrays of different or too great length, a segment too many, and more than
    /// 2^32 - 1 edges: make a further part.
    pub fn add(
        &mut self,
        segment: u32,
        sources: &dyn Array,
        targets: &dyn Array,
        weights: Option<&dyn Array>,
    ) -> Result<()> {
        let rows = sources.len();
        let lengths = [targets.len(), weights.map_or(rows, |weights| weights.len())];
        if lengths != [rows, rows] || rows > SEGMENT_ROWS || weights.is_some() != self.has_weights {
            return Err(StorageError::Invalid(format!(
                "edges of a segment with {rows} sources, {} targets and {} weights",
                lengths[0],
                weights.map_or(0, |weights| weights.len())
            )));
        }
        let is_edge = |row: &usize| sources.is_valid(*row) && targets.is_valid(*row);
        let edges: Vec<usize> = (0..rows).filter(is_edge).collect();
        let all = self.edges + edges.len() as u64;
        if self.segments.len() == MAX_SEGMENTS || all >= u64::from(u32::MAX) {
            return Err(StorageError::Invalid(format!(
                "a part of an adjacency index takes {MAX_SEGMENTS} segments and {} edges at most",
                u32::MAX - 1
            )));
        }
        let ends = |keys: &dyn Array| -> Result<Keys> {
            let keys = self.keys.encode(keys)?;
            Ok(Keys::new(edges.iter().map(|row| keys[*row]).collect()))
        };
        let ends = [ends(sources)?, ends(targets)?];
        let weights = match weights {
            None => Vec::new(),
            Some(weights) => {
                let floats = cast(weights, &DataType::Float64)?;
                let floats = floats.as_primitive::<Float64Type>();
                let weight = |row: &usize| {
                    if floats.is_valid(*row) {
                        floats.value(*row)
                    } else {
                        f64::NAN
                    }
                };
                let is_bad = |row: &&usize| weight(row).is_nan() || weight(row) < 0.0;
                let place = self.segments.len() as u32;
                let bad = edges.iter().filter(is_bad);
                self.bad_weights
                    .extend(bad.map(|row| place << 16 | *row as u32));
                // Of what can't be used no trace is kept; neither is the sign of zero.
                edges.iter().map(|row| weight(row).max(0.0) + 0.0).collect()
            }
        };
        self.edges = all;
        self.segments.push(segment);
        self.batches.push(Batch {
            rows: edges.iter().map(|row| *row as u16).collect(),
            ends,
            weights,
        });
        Ok(())
    }

    /// Edges so far.
    pub fn edges(&self) -> u64 {
        self.edges
    }

    /// Sorts the edges into the part's arrays.
    ///
    /// # Errors
    /// `Invalid` when there are more than 2^32 - 2 vertices.
    pub fn finish(self) -> Result<PartData> {
        let segments = self.segments.len();
        self.finish_at(&Pace::full(), vec![0; segments])
    }

    /// The same at this pace, of segments of which so many rows are deleted: they were NULL.
    ///
    /// # Errors
    /// Likewise, and `Cancelled`.
    pub(crate) fn finish_at(mut self, pace: &Pace, deleted: Vec<u32>) -> Result<PartData> {
        let (numbers, keys, vertices) = self.number()?;
        let mut bad_weights = Vec::new();
        if !self.bad_weights.is_empty() {
            self.bad_weights.optimize();
            let written = self.bad_weights.serialize_into(&mut bad_weights);
            written.expect("a Vec grows");
        }
        let mut record = Record {
            version: VERSION,
            is_unsigned: self.keys == KeyType::UInt64,
            vertices,
            edges: self.edges,
            has_keys: !matches!(numbers, Numbers::Identity(_)),
            first_key: 0,
            segments: std::mem::take(&mut self.segments),
            has_weights: self.has_weights,
            bad_weight: None,
            bad_weights,
            deleted,
        };
        if let Numbers::Identity(first) = numbers {
            record.first_key = first;
        }

        let edges = self.edges as usize;
        let mut sources = Vec::with_capacity(edges);
        let mut targets = Vec::with_capacity(edges);
        let mut rows = Vec::with_capacity(edges);
        let mut weights = Vec::with_capacity(if self.has_weights { edges } else { 0 });
        for (place, batch) in std::mem::take(&mut self.batches).into_iter().enumerate() {
            batch.ends[0].for_each(|key| sources.push(numbers.number(key)));
            batch.ends[1].for_each(|key| targets.push(numbers.number(key)));
            rows.extend(
                batch
                    .rows
                    .iter()
                    .map(|row| (place as u32) << 16 | u32::from(*row)),
            );
            weights.extend(batch.weights);
        }
        drop(numbers);

        // Sorting keeps the order of equals. So edges by target, sorted by source, have targets in
        // ascending order in every list, and those sorted by target again the sources.
        let threads = self.threads;
        let by_target = sort(vertices, &targets, &sources, &rows, &weights, threads);
        drop((sources, rows, weights));
        pace.check()?;
        targets.clear();
        expand(&by_target.offsets, &mut targets);
        let out = sort(
            vertices,
            &by_target.others,
            &targets,
            &by_target.rows,
            &by_target.weights,
            threads,
        );
        drop(by_target);
        pace.check()?;
        expand(&out.offsets, &mut targets);
        let sources = targets;
        let against = sort(
            vertices,
            &out.others,
            &sources,
            &out.rows,
            &out.weights,
            threads,
        );
        drop(sources);

        let slices = |array: ArrayRef| PartData::slices(&array);
        let mut arrays = vec![slices(Arc::new(Int64Array::from(keys)))];
        for sorted in [out, against] {
            let bits = sorted.weights.iter().map(|weight| weight.to_bits() as i64);
            arrays.push(slices(Arc::new(UInt32Array::from(sorted.offsets))));
            arrays.push(slices(Arc::new(UInt32Array::from(sorted.others))));
            arrays.push(slices(Arc::new(UInt32Array::from(sorted.rows))));
            arrays.push(slices(Arc::new(Int64Array::from_iter_values(bits))));
        }
        Ok(PartData {
            arrays,
            meta: record.encode_to_vec(),
        })
    }

    /// Numbers the vertices: the way from keys to numbers, the keys (none when they number the
    /// vertices themselves), and how many numbers there are.
    fn number(&self) -> Result<(Numbers, Vec<i64>, u32)> {
        let (mut min, mut max) = (i64::MAX, i64::MIN);
        let all = || self.batches.iter().flat_map(|batch| &batch.ends);
        for keys in all() {
            keys.for_each(|key| (min, max) = (min.min(key), max.max(key)));
        }
        if self.edges == 0 {
            return Ok((Numbers::Identity(0), Vec::new(), 0));
        }
        let too_many = || {
            StorageError::Invalid(format!(
                "a part of an adjacency index takes {} vertices at most",
                NO_VERTEX - 1
            ))
        };
        let span = max.abs_diff(min);
        if span < self.edges * BITMAP_KEYS_PER_EDGE + BITMAP_KEYS {
            let mut bits = vec![0u64; (span / 64 + 1) as usize];
            for keys in all() {
                keys.for_each(|key| {
                    let place = key.wrapping_sub(min) as u64;
                    bits[(place / 64) as usize] |= 1 << (place % 64);
                });
            }
            let count: u64 = bits.iter().map(|word| u64::from(word.count_ones())).sum();
            let is_dense = span < count * IDENTITY_KEYS_PER_VERTEX + IDENTITY_KEYS;
            if is_dense && span < u64::from(NO_VERTEX) - 1 && max < i64::MAX {
                return Ok((Numbers::Identity(min), Vec::new(), span as u32 + 1));
            }
            let vertices = u32::try_from(count).ok().filter(|count| *count < NO_VERTEX);
            let vertices = vertices.ok_or_else(too_many)?;
            let mut keys = Vec::with_capacity(vertices as usize);
            let mut before = Vec::with_capacity(bits.len());
            for (word, bits) in bits.iter().enumerate() {
                before.push(keys.len() as u32);
                let mut left = *bits;
                while left != 0 {
                    let place = word as i64 * 64 + i64::from(left.trailing_zeros());
                    keys.push(min.wrapping_add(place));
                    left &= left - 1;
                }
            }
            return Ok((Numbers::Bitmap(min, bits, before), keys, vertices));
        }
        let mut numbers = hashbrown::HashMap::new();
        for keys in all() {
            keys.for_each(|key| {
                numbers.insert(key, 0);
            });
        }
        let vertices = u32::try_from(numbers.len()).ok();
        let vertices = vertices
            .filter(|count| *count < NO_VERTEX)
            .ok_or_else(too_many)?;
        let mut keys: Vec<i64> = numbers.keys().copied().collect();
        keys.sort_unstable();
        for (number, key) in keys.iter().enumerate() {
            numbers.insert(*key, number as u32);
        }
        Ok((Numbers::Table(numbers), keys, vertices))
    }
}

/// For each number as often as its list is long: the number.
fn expand(offsets: &[u32], out: &mut Vec<u32>) {
    out.clear();
    for (number, ends) in offsets.windows(2).enumerate() {
        out.resize(ends[1] as usize, number as u32);
    }
}

/// Sorts edges by `ends`, keeping the order of equals: a counting sort. Each thread takes the
/// edges that go to its share of the places, so that no two write to the same memory.
fn sort(
    vertices: u32,
    ends: &[u32],
    others: &[u32],
    rows: &[u32],
    weights: &[f64],
    threads: usize,
) -> Sorted {
    let counts: Vec<AtomicU32> = (0..=vertices).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|scope| {
        for ends in ends.chunks(ends.len().div_ceil(threads).max(1)) {
            let counts = &counts;
            scope.spawn(move || {
                for end in ends {
                    counts[*end as usize + 1].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let mut offsets: Vec<u32> = counts.into_iter().map(AtomicU32::into_inner).collect();
    let mut sum = 0;
    for offset in &mut offsets {
        sum += *offset;
        *offset = sum;
    }

    let mut sorted = Sorted {
        others: vec![0; ends.len()],
        rows: vec![0; ends.len()],
        weights: vec![0.0; weights.len()],
        offsets,
    };
    let offsets = &sorted.offsets;
    let mut left = (
        sorted.others.as_mut_slice(),
        sorted.rows.as_mut_slice(),
        sorted.weights.as_mut_slice(),
    );
    std::thread::scope(|scope| {
        let mut first = 0;
        for thread in 0..threads {
            // Vertices whose lists start within the thread's share of the edges.
            let share = ends.len() * (thread + 1) / threads;
            let end = match thread + 1 == threads {
                true => vertices,
                false => (offsets.partition_point(|offset| (*offset as usize) < share) as u32)
                    .min(vertices)
                    .max(first),
            };
            let base = offsets[first as usize];
            let count = (offsets[end as usize] - base) as usize;
            let (others_here, others_left) = left.0.split_at_mut(count);
            let (rows_here, rows_left) = left.1.split_at_mut(count);
            let (weights_here, weights_left) = left.2.split_at_mut(count.min(left.2.len()));
            left = (others_left, rows_left, weights_left);
            let range = first..end;
            first = end;
            if count == 0 {
                continue;
            }
            scope.spawn(move || {
                let mut next: Vec<u32> = offsets[range.start as usize..range.end as usize]
                    .iter()
                    .map(|offset| offset - base)
                    .collect();
                for (edge, end) in ends.iter().enumerate() {
                    let Some(next) = next.get_mut(end.wrapping_sub(range.start) as usize) else {
                        continue;
                    };
                    let place = *next as usize;
                    *next += 1;
                    others_here[place] = others[edge];
                    rows_here[place] = rows[edge];
                    if !weights.is_empty() {
                        weights_here[place] = weights[edge];
                    }
                }
            });
        }
    });
    sorted
}
