//! Centres: drawn far from each other (as k-means++ does, but by the fourth power of the distance,
//! which finds nearly all of many clusters), then moved to the middle of what is nearest to them.

use flashmesh_pushdown::{Metric, QueryVector};

use super::floats;
use crate::Result;
use crate::distance::{Found, Order, Positions, Search, Targets};
use crate::index::pace::Pace;

/// Rows of the sample for each centre.
const SAMPLE_EACH: usize = 16;
/// Times that centres are moved.
const MOVES: usize = 2;
/// Vectors that are compared with all centres at a time.
const BATCH: usize = 256;

/// A small, fast source of random numbers (SplitMix64, Steele and others 2014).
pub(super) struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// From 0 to 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Vectors of one length, one after the other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vectors<'a> {
    /// Hamming for codes, L2 for floats.
    pub metric: Metric,
    /// Bytes of each.
    pub size: usize,
    pub values: &'a [u8],
}

impl<'a> Vectors<'a> {
    pub fn len(&self) -> usize {
        self.values.len().checked_div(self.size).unwrap_or(0)
    }

    pub fn get(&self, row: usize) -> &'a [u8] {
        &self.values[row * self.size..][..self.size]
    }

    /// Bytes or elements.
    pub fn length(&self) -> usize {
        match self.metric {
            Metric::Hamming => self.size,
            _ => self.size / 4,
        }
    }

    pub fn query(&self, row: usize) -> QueryVector {
        match self.metric {
            Metric::Hamming => QueryVector::Bits(self.get(row).to_vec()),
            _ => QueryVector::Floats(floats(self.get(row)).collect()),
        }
    }

    /// Their distances to one of them.
    fn distances(&self, to: usize, out: &mut Vec<f32>) {
        let targets = Targets::new(self.metric, self.length(), [&self.query(to)]);
        out.clear();
        match self.metric {
            Metric::Hamming => {
                let mut counts = Vec::new();
                targets.hamming(0, self.values, Positions::All(self.len()), &mut counts);
                out.extend(counts.into_iter().map(|count| count as f32));
            }
            _ => targets.floats(0, self.values, Positions::All(self.len()), out),
        }
    }
}

/// The `count` nearest of `centres` to each query, nearest first.
pub(super) fn nearest(
    centres: &Vectors<'_>,
    queries: &[QueryVector],
    count: usize,
) -> Vec<Vec<usize>> {
    let targets = Targets::new(centres.metric, centres.length(), queries);
    let mut search = Search::new(targets, Order::Ascending, count);
    // Few at a time, so that what was found bounds the rest.
    for (number, part) in centres.values.chunks(BATCH * centres.size).enumerate() {
        let rows = Positions::All(part.len() / centres.size);
        search.add(part, rows, |position| {
            (number * BATCH) as u64 + u64::from(position)
        });
    }
    let places = |found: Vec<Found>| found.iter().map(|found| found.place as usize).collect();
    search.take().into_iter().map(places).collect()
}

/// The number of the nearest centre of each vector.
///
/// # Errors
/// `Cancelled`.
pub(super) fn assign(
    vectors: &Vectors<'_>,
    centres: &Vectors<'_>,
    pace: &Pace,
) -> Result<Vec<u32>> {
    let rows = vectors.len();
    let share = rows.div_ceil(pace.threads()).max(BATCH);
    let assign_some = |first: usize| {
        let end = (first + share).min(rows);
        let mut nearest_of = Vec::with_capacity(end - first);
        for start in (first..end).step_by(BATCH) {
            let queries = (start..(start + BATCH).min(end)).map(|row| vectors.query(row));
            let found = nearest(centres, &queries.collect::<Vec<_>>(), 1);
            let found = found
                .iter()
                .map(|found| found.first().map_or(0, |n| *n as u32));
            nearest_of.extend(found);
            pace.check()?;
        }
        Ok(nearest_of)
    };
    std::thread::scope(|scope| {
        let parts: Vec<_> = (0..rows)
            .step_by(share)
            .map(|first| scope.spawn(move || assign_some(first)))
            .collect();
        let mut nearest_of = Vec::with_capacity(rows);
        for part in parts {
            // Without a result a thread only ends by a panic, which goes on here.
            let part: Result<Vec<u32>> = part
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            nearest_of.append(&mut part?);
        }
        Ok(nearest_of)
    })
}

/// About `count` centres of vectors, at most as many as there are vectors.
///
/// # Errors
/// `Cancelled`.
pub(super) fn choose(
    vectors: &Vectors<'_>,
    count: usize,
    random: &mut Random,
    pace: &Pace,
) -> Result<Vec<u8>> {
    if vectors.len() == 0 {
        return Ok(Vec::new());
    }
    let rows = vectors.len().min(count.saturating_mul(SAMPLE_EACH));
    let mut sample = Vec::with_capacity(rows * vectors.size);
    // One of each stretch, so that none is taken twice.
    for number in 0..rows {
        let (start, end) = (
            number * vectors.len() / rows,
            (number + 1) * vectors.len() / rows,
        );
        sample.extend_from_slice(vectors.get(start + random.below(end - start)));
    }
    let sample = Vectors {
        values: &sample,
        ..*vectors
    };
    let mut centres = draw(&sample, count.min(rows), random, pace)?;
    for _ in 0..MOVES {
        let old = Vectors {
            values: &centres,
            ..*vectors
        };
        let nearest = assign(&sample, &old, pace)?;
        centres = middles(&sample, &nearest, &old);
    }
    Ok(centres)
}

/// Draws centres one after the other, each with a chance by its distance from those before.
fn draw(sample: &Vectors<'_>, count: usize, random: &mut Random, pace: &Pace) -> Result<Vec<u8>> {
    let mut centres = Vec::with_capacity(count * sample.size);
    let mut weights = vec![f64::INFINITY; sample.len()];
    let mut distances = Vec::new();
    let mut next = random.below(sample.len());
    for _ in 0..count {
        centres.extend_from_slice(sample.get(next));
        sample.distances(next, &mut distances);
        let mut total = 0.0;
        for (weight, distance) in weights.iter_mut().zip(&distances) {
            *weight = weight.min(f64::from(*distance).powi(4));
            total += *weight;
        }
        // All that is left equals a centre.
        if total <= 0.0 || !total.is_finite() {
            break;
        }
        let mut left = random.fraction() * total;
        next = weights
            .iter()
            .position(|weight| {
                left -= weight;
                left < 0.0
            })
            .unwrap_or(sample.len() - 1);
        pace.check()?;
    }
    Ok(centres)
}

/// The middle of what is nearest to each centre: means, or the majority of each bit.
fn middles(sample: &Vectors<'_>, nearest: &[u32], old: &Vectors<'_>) -> Vec<u8> {
    let length = match sample.metric {
        Metric::Hamming => 8 * sample.size,
        _ => sample.length(),
    };
    let mut sums = vec![0.0_f64; length * old.len()];
    let mut counts = vec![0_u32; old.len()];
    for (row, centre) in nearest.iter().enumerate() {
        let centre = *centre as usize;
        counts[centre] += 1;
        let sums = &mut sums[centre * length..][..length];
        let vector = sample.get(row);
        match sample.metric {
            Metric::Hamming => {
                for (bit, sum) in sums.iter_mut().enumerate() {
                    *sum += f64::from(vector[bit / 8] >> (bit % 8) & 1);
                }
            }
            _ => {
                for (sum, value) in sums.iter_mut().zip(floats(vector)) {
                    *sum += f64::from(value);
                }
            }
        }
    }
    let mut centres = Vec::with_capacity(old.values.len());
    for (centre, count) in counts.iter().enumerate() {
        let sums = &sums[centre * length..][..length];
        let count = f64::from(*count);
        match sample.metric {
            _ if count == 0.0 => centres.extend_from_slice(old.get(centre)),
            Metric::Hamming => centres.extend(sums.chunks(8).map(|bits| {
                let bits = bits.iter().enumerate();
                bits.fold(0, |byte, (bit, sum)| {
                    byte | u8::from(2.0 * sum > count) << bit
                })
            })),
            _ => centres.extend(
                sums.iter()
                    .flat_map(|sum| ((sum / count) as f32).to_le_bytes()),
            ),
        }
    }
    centres
}
