//! The `lsh` index: locality-sensitive hashing for nearest neighbours (BlueDBM section 7.1).
//!
//! The hash of a vector is its nearest among *centres* that were drawn from the data; near vectors
//! mostly share it. (Bit sampling and random hyperplanes, the classical families, hash without
//! looking at the data. On codes whose neighbours differ in 16 % of the bits they take five tables
//! and 700 probes for a recall of 0.97; centres take one table and a few probes.) Vectors of one
//! hash are a *bucket*. A bucket's vectors lie together in the index's pages, so that a probe is
//! one sequential read:
//!
//! | metric | in the bucket | distance of a candidate |
//! |---|---|---|
//! | Hamming | the code itself | exact |
//! | L2, cosine | the difference to the centre, 4 bits an element | approximate: [`LshPart::rerank`] reads the vectors of the best from the table's pages, the paper's stream of addresses |
//!
//! A search probes the buckets of the nearest centres first (multi-probe), as many as found nearly
//! all neighbours of sampled rows when the index was built. When a filter leaves too few rows, it
//! goes on: each [round](LshPart::candidates) probes twice as many buckets, the last one all.
//!
//! Rows that an index doesn't have, because they come last in every order of distance or in none:
//! those whose vector is NULL, has a NULL or an element that is not finite, and for cosine vectors
//! of zeros.

mod build;
mod centres;
mod search;

use std::sync::Arc;

use arrow::datatypes::DataType;
use flashmesh_pushdown::Metric;
use prost::Message;

use super::kind::{Kind, Opened, Source};
use super::{Index, IndexDefinition, IndexKind, IndexPart, PartData};
use crate::segment::SegmentId;
use crate::store::PageReader;
use crate::{Result, StorageError};

pub use build::LshBuilder;
pub use search::{Candidate, Candidates, LshPart, Neighbour};

/// The kind.
pub(super) struct Lsh;

impl Kind for Lsh {
    fn options(&self) -> &'static [&'static str] {
        &["tables", "bits", "probes", "metric"]
    }

    fn check(
        &self,
        definition: &IndexDefinition,
        columns: &[(&str, &DataType)],
    ) -> std::result::Result<(), String> {
        match columns {
            [(_, data_type)] => match builder(definition, data_type) {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            },
            _ => Err("an lsh index has one column; make one for each".into()),
        }
    }

    fn build_bytes(&self, columns: &[&DataType], rows: u32) -> u64 {
        let vector = match columns {
            [DataType::FixedSizeBinary(bytes)] => *bytes as u64,
            [DataType::FixedSizeList(_, elements)] => 4 * *elements as u64,
            _ => 0,
        };
        // Vectors, and the codes, rows and buckets of a table.
        u64::from(rows) * (2 * vector + 16)
    }

    fn build(&self, source: &Source<'_>) -> Result<PartData> {
        let mut builder = builder(source.definition, source.data_type(0))?;
        source.for_each(|segment, columns| builder.add(segment.id, &columns[0]))?;
        builder.finish_at(source.pace)
    }

    fn open(&self, part: &IndexPart, reader: &mut PageReader) -> Result<Opened> {
        let arrays = part.arrays.iter().map(|array| array.chunks.clone());
        let opened = LshPart::open(&part.meta, arrays.collect(), reader)?;
        Ok(Arc::new(opened))
    }
}

/// A builder as an index over a column of this type is defined.
///
/// # Errors
/// `Invalid` for a type or options that don't fit.
pub(super) fn builder(definition: &IndexDefinition, data_type: &DataType) -> Result<LshBuilder> {
    let number = |name: &str| -> Result<Option<u32>> {
        let Some(value) = definition.options.get(name) else {
            return Ok(None);
        };
        value.parse().map(Some).map_err(|_| {
            StorageError::Invalid(format!("option '{name}' is a number, not '{value}'"))
        })
    };
    let options = LshOptions {
        tables: number("tables")?,
        bits: number("bits")?,
        probes: number("probes")?,
        seed: 0,
    };
    let default = match data_type {
        DataType::FixedSizeBinary(_) => "hamming",
        _ => "l2",
    };
    let metric = definition.options.get("metric");
    let metric = match metric.map_or(default, String::as_str) {
        "hamming" => Metric::Hamming,
        "l2" => Metric::L2,
        "cosine" => Metric::Cosine,
        other => {
            return Err(StorageError::Invalid(format!(
                "option 'metric' is hamming, l2 or cosine, not '{other}'"
            )));
        }
    };
    LshBuilder::new(data_type, metric, options)
}

/// Arrays of each table: centres, starts of the buckets, rows, codes.
pub const ARRAYS_EACH_TABLE: usize = 4;
/// Version of a part's layout.
const VERSION: u32 = 1;
/// Segments of a part at most: a row's number is that of its segment and its own, 16 bits each.
const MAX_SEGMENTS: usize = 1 << 16;
/// Tables of an index at most.
const MAX_TABLES: u32 = 16;
/// Buckets of a table at most, as a power of two.
const MAX_BITS: u32 = 16;

/// How an index is built; what is `None` is worked out from the data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LshOptions {
    /// Hash tables, 1 to 16: `WITH (tables = …)`. Default 1.
    pub tables: Option<u32>,
    /// Buckets of a table as a power of two, 0 to 16: `WITH (bits = …)`. Default: about 256 rows
    /// a bucket.
    pub bits: Option<u32>,
    /// Buckets of each table that a search looks at first: `WITH (probes = …)`. Default: as many
    /// as find 99 % of the neighbours of sampled rows.
    pub probes: Option<u32>,
    /// Seed of all that is random in it.
    pub seed: u64,
}

impl LshOptions {
    /// # Errors
    /// `Invalid` for what is out of bounds.
    fn check(&self) -> Result<()> {
        let invalid = |problem: &str| Err(StorageError::Invalid(format!("lsh index: {problem}")));
        match self {
            Self {
                tables: Some(tables),
                ..
            } if !(1..=MAX_TABLES).contains(tables) => invalid("'tables' is 1 to 16"),
            Self {
                bits: Some(bits), ..
            } if *bits > MAX_BITS => invalid("'bits' is 0 to 16"),
            Self {
                probes: Some(0), ..
            } => invalid("'probes' is at least 1"),
            _ => Ok(()),
        }
    }
}

/// A part's blob.
#[derive(Clone, PartialEq, Message)]
struct Meta {
    #[prost(uint32, tag = "1")]
    version: u32,
    /// 1 Hamming, 2 L2, 3 cosine.
    #[prost(uint32, tag = "2")]
    metric: u32,
    /// Bytes or elements of a vector.
    #[prost(uint32, tag = "3")]
    length: u32,
    #[prost(uint32, repeated, tag = "4")]
    segments: Vec<u32>,
    #[prost(uint32, tag = "5")]
    rows: u32,
    #[prost(uint32, tag = "6")]
    probes: u32,
    #[prost(uint32, tag = "7")]
    tables: u32,
    /// Floats: of each element, what one step of its 4 bits is.
    #[prost(float, repeated, tag = "8")]
    steps: Vec<f32>,
}

impl Meta {
    fn metric(&self) -> Result<Metric> {
        match self.metric {
            1 => Ok(Metric::Hamming),
            2 => Ok(Metric::L2),
            3 => Ok(Metric::Cosine),
            other => Err(corrupt(format!("metric {other} is unknown"))),
        }
    }

    fn metric_number(metric: Metric) -> Result<u32> {
        match metric {
            Metric::Hamming => Ok(1),
            Metric::L2 => Ok(2),
            Metric::Cosine => Ok(3),
            Metric::Dot => Err(StorageError::Invalid(
                "an lsh index is for hamming_distance, l2_distance or cosine_distance; \
                 scans find the greatest dot_product"
                    .into(),
            )),
        }
    }

    fn segments(&self) -> Vec<SegmentId> {
        self.segments.iter().map(|id| SegmentId(*id)).collect()
    }
}

/// The parts of an `lsh` index.
///
/// # Errors
/// `Invalid` for an index of another kind; `Corrupt`; those of reading the parts' centres, which
/// happens once.
pub fn parts(index: &Index, reader: &mut PageReader) -> Result<Vec<Arc<LshPart>>> {
    index.check_kind(IndexKind::Lsh, "near vectors are found")?;
    let parts = index.parts.iter();
    parts
        .map(|part| part.opened(IndexKind::Lsh, reader))
        .collect()
}

fn corrupt(problem: impl std::fmt::Display) -> StorageError {
    StorageError::corrupt(format!("lsh index: {problem}"))
}

/// A vector scaled to a length of 1; `None` if it has none, or elements that are not finite.
fn normalised(vector: &[f32]) -> Option<Vec<f32>> {
    let square: f64 = vector.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let norm = square.sqrt();
    let is_usable = norm.is_finite() && norm > 0.0;
    is_usable.then(|| {
        vector
            .iter()
            .map(|v| (f64::from(*v) / norm) as f32)
            .collect()
    })
}

/// A vector's elements out of its bytes.
fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|value| f32::from_le_bytes(*value))
}
