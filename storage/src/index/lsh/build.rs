//! Building a part.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeBinaryArray, UInt32Array};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use flashmesh_pushdown::Metric;
use prost::Message;

use super::centres::{self, Random, Vectors};
use super::{LshOptions, MAX_BITS, MAX_SEGMENTS, Meta, VERSION, floats, normalised};
use crate::distance::{FixedVectors, Order, Positions, Search, Targets};
use crate::index::PartData;
use crate::index::pace::Pace;
use crate::page::{PAYLOAD_SIZE_BYTES, SEGMENT_ROWS};
use crate::segment::SegmentId;
use crate::{Result, StorageError};

/// Rows of a bucket that are aimed at.
const BUCKET_ROWS: usize = 256;
/// Rows whose neighbours are looked for to find the number of probes.
const TUNING_QUERIES: usize = 128;
/// Among how many rows their neighbours are looked for. Of fewer rows neighbours are farther
/// away, and so need more probes: an error on the safe side.
const TUNING_ROWS: usize = 131_072;
/// Neighbours that are looked for.
const TUNING_NEIGHBOURS: usize = 10;
/// Share of the neighbours that the probes must find.
const TUNING_RECALL: f64 = 0.99;
/// Values that 4 bits have.
pub(super) const LEVELS: f32 = 16.0;
/// What the 4 bits span, in standard deviations.
const SPAN_DEVIATIONS: f64 = 6.0;

/// Builds a part over some segments. It holds their vectors in memory until it is done.
#[derive(Debug)]
pub struct LshBuilder {
    metric: Metric,
    length: usize,
    options: LshOptions,
    segments: Vec<SegmentId>,
    /// Segment (its place in `segments`) and row, 16 bits each.
    rows: Vec<u32>,
    values: Vec<u8>,
}

impl LshBuilder {
    /// A builder for a column of this type.
    ///
    /// # Errors
    /// `Invalid` when the metric is not for the type, or an option is out of bounds.
    pub fn new(data_type: &DataType, metric: Metric, options: LshOptions) -> Result<Self> {
        options.check()?;
        Meta::metric_number(metric)?;
        let length = metric.length_of(data_type).filter(|length| *length > 0);
        let length = length.ok_or_else(|| {
            StorageError::Invalid(format!("lsh index: {metric} has no use for {data_type}"))
        })?;
        let size_bytes = match metric {
            Metric::Hamming => length,
            _ => 4 * length,
        };
        if size_bytes > PAYLOAD_SIZE_BYTES {
            return Err(StorageError::Invalid(format!(
                "lsh index: vectors of {size_bytes} bytes; up to {PAYLOAD_SIZE_BYTES}, what a page holds, can be indexed"
            )));
        }
        Ok(Self {
            metric,
            length,
            options,
            segments: Vec::new(),
            rows: Vec::new(),
            values: Vec::new(),
        })
    }

    /// The metric that the index will serve.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// Adds a segment's column, all its rows in order.
    ///
    /// # Errors
    /// `Invalid` for another type, more than 65,536 rows or more than 65,536 segments.
    pub fn add(&mut self, segment: SegmentId, column: &ArrayRef) -> Result<()> {
        let fits = self.metric.length_of(column.data_type()) == Some(self.length);
        if !fits || column.len() > SEGMENT_ROWS || self.segments.len() >= MAX_SEGMENTS {
            return Err(StorageError::Invalid(format!(
                "lsh index: {} rows of {} as segment {} of a part",
                column.len(),
                column.data_type(),
                self.segments.len()
            )));
        }
        let vectors = FixedVectors::of(column)?;
        let number = (self.segments.len() as u32) << 16;
        self.segments.push(segment);
        let size = self.vectors().size;
        for row in 0..column.len() {
            if !vectors.is_valid(row) {
                continue;
            }
            let bytes = &vectors.values()[row * size..][..size];
            match self.metric {
                Metric::Hamming => self.values.extend_from_slice(bytes),
                Metric::Cosine => {
                    let vector: Vec<f32> = floats(bytes).collect();
                    let Some(vector) = normalised(&vector) else {
                        continue;
                    };
                    self.values
                        .extend(vector.iter().flat_map(|v| v.to_le_bytes()));
                }
                _ => {
                    if !floats(bytes).all(f32::is_finite) {
                        continue;
                    }
                    self.values.extend_from_slice(bytes);
                }
            }
            self.rows.push(number | row as u32);
        }
        Ok(())
    }

    fn vectors(&self) -> Vectors<'_> {
        let (metric, size) = match self.metric {
            Metric::Hamming => (Metric::Hamming, self.length),
            // Among vectors of length 1 the order by cosine is that by L2.
            _ => (Metric::L2, 4 * self.length),
        };
        Vectors {
            metric,
            size,
            values: &self.values,
        }
    }

    /// The part.
    ///
    /// # Errors
    /// Those of Arrow.
    pub fn finish(self) -> Result<PartData> {
        self.finish_at(&Pace::full())
    }

    /// The part, built at this pace.
    ///
    /// # Errors
    /// Those of Arrow; `Cancelled`.
    pub(crate) fn finish_at(self, pace: &Pace) -> Result<PartData> {
        let vectors = self.vectors();
        let mut random = Random(self.options.seed);
        let buckets = match self.options.bits {
            Some(bits) => 1 << bits,
            None => vectors.len().div_ceil(BUCKET_ROWS).clamp(1, 1 << MAX_BITS),
        };
        let tables = self.options.tables.unwrap_or(1);
        let mut hashed = Vec::new();
        for _ in 0..tables {
            let centres = centres::choose(&vectors, buckets, &mut random, pace)?;
            let nearest = centres::assign(
                &vectors,
                &Vectors {
                    values: &centres,
                    ..vectors
                },
                pace,
            )?;
            hashed.push((centres, nearest));
        }
        let steps = match vectors.metric {
            Metric::Hamming => Vec::new(),
            _ => steps(&vectors, &hashed[0].0, &hashed[0].1),
        };
        let probes = match self.options.probes {
            Some(probes) => probes,
            None => tune(&vectors, &hashed, &mut random, pace)?,
        };
        let mut arrays = Vec::new();
        for (centres, nearest) in &hashed {
            arrays.extend(self.table(centres, nearest, &steps)?);
        }
        let meta = Meta {
            version: VERSION,
            metric: Meta::metric_number(self.metric)?,
            length: self.length as u32,
            segments: self.segments.iter().map(|id| id.0).collect(),
            rows: self.rows.len() as u32,
            probes,
            tables,
            steps,
        };
        Ok(PartData {
            arrays,
            meta: meta.encode_to_vec(),
        })
    }

    /// The arrays of a hash table.
    fn table(
        &self,
        centres: &[u8],
        nearest: &[u32],
        steps: &[f32],
    ) -> Result<[Vec<ArrayRef>; super::ARRAYS_EACH_TABLE]> {
        let vectors = self.vectors();
        let buckets = centres.len() / vectors.size;
        let mut starts = vec![0_u32; buckets + 1];
        for bucket in nearest {
            starts[*bucket as usize + 1] += 1;
        }
        for bucket in 0..buckets {
            starts[bucket + 1] += starts[bucket];
        }
        let mut next = starts.clone();
        let mut order = vec![0_u32; nearest.len()];
        for (row, bucket) in nearest.iter().enumerate() {
            let place = &mut next[*bucket as usize];
            order[*place as usize] = row as u32;
            *place += 1;
        }
        let rows = order.iter().map(|row| self.rows[*row as usize]);
        let code_size = code_size(self.metric, self.length);
        let mut codes = Vec::with_capacity(order.len() * code_size);
        for row in &order {
            let vector = vectors.get(*row as usize);
            if vectors.metric == Metric::Hamming {
                codes.extend_from_slice(vector);
            } else {
                let centre = nearest[*row as usize] as usize * vectors.size;
                let centre = &centres[centre..][..vectors.size];
                quantise(vector, centre, steps, &mut codes);
            }
        }
        Ok([
            PartData::slices(&binary(centres.to_vec(), vectors.size)?),
            PartData::slices(&(Arc::new(UInt32Array::from(starts)) as ArrayRef)),
            PartData::slices(&(Arc::new(UInt32Array::from_iter_values(rows)) as ArrayRef)),
            PartData::slices(&binary(codes, code_size)?),
        ])
    }
}

/// Bytes of a bucket's code.
pub(super) fn code_size(metric: Metric, length: usize) -> usize {
    match metric {
        Metric::Hamming => length,
        _ => length.div_ceil(2),
    }
}

fn binary(bytes: Vec<u8>, size: usize) -> Result<ArrayRef> {
    let size = i32::try_from(size)
        .map_err(|_| StorageError::Invalid(format!("lsh index: vectors of {size} bytes")))?;
    let array = FixedSizeBinaryArray::try_new(size, Buffer::from_vec(bytes), None)?;
    Ok(Arc::new(array))
}

/// Four bits of each element of the difference between a vector and its centre: element `i` in
/// the low half of byte `i`, from the middle on in the high halves.
fn quantise(vector: &[u8], centre: &[u8], steps: &[f32], codes: &mut Vec<u8>) {
    let start = codes.len();
    let half = steps.len().div_ceil(2);
    codes.resize(start + half, 0);
    let elements = floats(vector).zip(floats(centre)).zip(steps);
    for (element, ((value, centre), step)) in elements.enumerate() {
        let level = (value - centre) / step + (LEVELS - 1.0) / 2.0;
        // A step of 0 gives NaN or infinity, which become some level.
        let level = level.round().clamp(0.0, LEVELS - 1.0) as u8;
        codes[start + element % half] |= level << (4 * (element / half));
    }
}

/// What a step of each element is, from the spread of the differences to the centres.
fn steps(vectors: &Vectors<'_>, centres: &[u8], nearest: &[u32]) -> Vec<f32> {
    let mut squares = vec![0.0_f64; vectors.length()];
    let stride = (vectors.len() / 65_536).max(1);
    let mut count = 0.0;
    for row in (0..vectors.len()).step_by(stride) {
        let centre = &centres[nearest[row] as usize * vectors.size..][..vectors.size];
        let elements = floats(vectors.get(row)).zip(floats(centre));
        for (square, (value, centre)) in squares.iter_mut().zip(elements) {
            *square += f64::from(value - centre).powi(2);
        }
        count += 1.0;
    }
    let step = |square: f64| {
        let deviation = (square / f64::max(count, 1.0)).sqrt();
        (SPAN_DEVIATIONS * deviation / f64::from(LEVELS - 1.0)) as f32
    };
    squares.into_iter().map(step).collect()
}

/// How many buckets have to be probed to find nearly all neighbours of some of the rows.
///
/// # Errors
/// `Cancelled`.
fn tune(
    vectors: &Vectors<'_>,
    hashed: &[(Vec<u8>, Vec<u32>)],
    random: &mut Random,
    pace: &Pace,
) -> Result<u32> {
    let rows = vectors.len();
    if rows < 2 {
        return Ok(1);
    }
    let chosen: Vec<usize> = (0..TUNING_QUERIES).map(|_| random.below(rows)).collect();
    let queries: Vec<_> = chosen.iter().map(|row| vectors.query(*row)).collect();
    let targets = Targets::new(vectors.metric, vectors.length(), &queries);
    // One more, which is the row itself.
    let mut search = Search::new(targets, Order::Ascending, TUNING_NEIGHBOURS + 1);
    let stride = rows.div_ceil(TUNING_ROWS);
    let sample: Vec<u32> = (0..rows).step_by(stride).map(|row| row as u32).collect();
    for part in sample.chunks(BUCKET_ROWS) {
        search.add(vectors.values, Positions::List(part), u64::from);
        pace.check()?;
    }
    let found = search.take();
    let mut needed = Vec::new();
    let mut ranks: Vec<Vec<u32>> = Vec::new();
    for (centres, _) in hashed {
        let centres = Vectors {
            values: centres,
            ..*vectors
        };
        let orders = centres::nearest(&centres, &queries, centres.len());
        for order in orders {
            let mut rank = vec![0; order.len()];
            (1..).zip(order).for_each(|(n, bucket)| rank[bucket] = n);
            ranks.push(rank);
        }
    }
    for (number, found) in found.iter().enumerate() {
        let others = found.iter().filter(|f| f.place != chosen[number] as u64);
        for neighbour in others {
            let tables = hashed.iter().enumerate();
            let rank = tables.map(|(table, (_, nearest))| {
                let bucket = nearest[neighbour.place as usize] as usize;
                ranks[table * queries.len() + number][bucket]
            });
            needed.extend(rank.min());
        }
    }
    needed.sort_unstable();
    let last = (needed.len() as f64 * TUNING_RECALL) as usize;
    Ok(needed.get(last).or(needed.last()).copied().unwrap_or(1))
}
