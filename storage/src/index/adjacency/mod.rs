//! Neighbour lists of an edge table: what `CREATE INDEX … USING adjacency (src, dst)` makes
//! (BlueDBM section 7.2; DESIGN section 5).
//!
//! A part numbers the vertices of its edges densely in the order of their keys, and has for both
//! directions:
//!
//! * `offsets`: where each vertex's list starts, one more than there are vertices;
//! * `neighbours`: all lists one after the other, each in ascending order; an edge that comes
//!   several times is there several times;
//! * `rows`: which row of the edge table each neighbour comes from;
//! * `weights`, if the index was made with a weight column.
//!
//! Where the keys are dense enough, the number of a vertex is its key less the least key; the gaps
//! are vertices without edges, which do not exist for anybody who asks. Otherwise an array has the
//! keys. An edge with a NULL at one of its ends is no edge.

mod build;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, UInt64Type};
use prost::Message;
use roaring::RoaringBitmap;

pub use build::AdjacencyBuilder;

use super::kind::{Kind, Opened, Source};
use super::paged::PagedArray;
use super::{IndexDefinition, IndexPart, PartData};
use crate::store::PageReader;
use crate::{Result, StorageError};

/// Rows that an index may not cover yet when a graph is made of it.
pub const MAX_TAIL_ROWS: u64 = 1 << 22;
/// No vertex.
pub const NO_VERTEX: u32 = u32::MAX;
/// Arrays of a part.
const ARRAYS: usize = 9;
/// Version of the record. Version 1 was of parts that went with the first row deleted.
const VERSION: u32 = 2;

/// The kind.
pub(super) struct Adjacency;

impl Kind for Adjacency {
    fn check(
        &self,
        _: &IndexDefinition,
        columns: &[(&str, &DataType)],
    ) -> std::result::Result<(), String> {
        let (source, target, weight) = match columns {
            [(_, source), (_, target)] => (source, target, None),
            [(_, source), (_, target), weight] => (source, target, Some(weight)),
            _ => return Err("an adjacency index has the columns (source, target), and after them the weight if edges have one".into()),
        };
        KeyType::of(source, target).map_err(|error| error.to_string())?;
        match weight {
            Some((name, weight)) if !weight.is_numeric() => Err(format!(
                "column '{name}' of type {weight} can't be a weight; numbers can"
            )),
            _ => Ok(()),
        }
    }

    fn build_bytes(&self, columns: &[&DataType], rows: u32) -> u64 {
        u64::from(rows) * if columns.len() > 2 { 40 } else { 24 }
    }

    fn build(&self, source: &Source<'_>) -> Result<PartData> {
        let has_weights = source.definition.columns.len() > 2;
        let mut builder = AdjacencyBuilder::new(
            source.data_type(0),
            source.data_type(1),
            has_weights,
            source.pace.threads(),
        )?;
        source.for_each(|segment, columns| {
            let weights = columns.get(2).map(|weights| weights.as_ref());
            builder.add(segment.id.0, &columns[0], &columns[1], weights)
        })?;
        let deleted = source.segments.iter().map(|s| s.rows - s.live_rows());
        builder.finish_at(source.pace, deleted.collect())
    }

    fn open(&self, part: &IndexPart, reader: &mut PageReader) -> Result<Opened> {
        let arrays = part.arrays.iter();
        let arrays = arrays.map(|array| PagedArray::new(array.chunks.iter().cloned(), reader));
        let opened = AdjacencyPart::open(&part.meta, arrays.collect::<Result<_>>()?)?;
        Ok(Arc::new(opened))
    }
}

/// The type of vertex keys: the wider of the two columns' types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyType {
    /// All types but `UInt64`.
    Int64,
    /// `UInt64`, alone or with shorter unsigned ones.
    UInt64,
}

impl KeyType {
    /// The key type of an edge table with end columns of these types.
    ///
    /// # Errors
    /// `Invalid` for columns that are not integers, and for `UInt64` with a signed type.
    pub fn of(source: &DataType, target: &DataType) -> Result<Self> {
        for data_type in [source, target] {
            if !data_type.is_integer() {
                return Err(StorageError::Invalid(format!(
                    "vertices can't be numbered by a column of type {data_type}; use integers (for other keys, a table that numbers them)"
                )));
            }
        }
        let is_wide = |data_type: &DataType| *data_type == DataType::UInt64;
        match is_wide(source) || is_wide(target) {
            false => Ok(Self::Int64),
            true if source.is_unsigned_integer() && target.is_unsigned_integer() => {
                Ok(Self::UInt64)
            }
            true => Err(StorageError::Invalid(format!(
                "vertices can't be numbered by columns of types {source} and {target}; cast one to the other's type"
            ))),
        }
    }

    /// The Arrow type of keys.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Int64 => DataType::Int64,
            Self::UInt64 => DataType::UInt64,
        }
    }

    /// Keys in the form that the graph works with: as `i64` in the order of the keys. NULLs give
    /// an arbitrary one.
    ///
    /// # Errors
    /// `Invalid` when a value is none of this type.
    pub fn encode(self, keys: &dyn Array) -> Result<Vec<i64>> {
        let array = cast(keys, &self.data_type())?;
        if array.null_count() != keys.null_count() {
            return Err(StorageError::Invalid(format!(
                "a vertex of type {} is beyond {}",
                keys.data_type(),
                self.data_type()
            )));
        }
        Ok(match self {
            Self::Int64 => array.as_primitive::<Int64Type>().values().to_vec(),
            Self::UInt64 => array
                .as_primitive::<UInt64Type>()
                .values()
                .iter()
                .map(|key| (key ^ 1 << 63) as i64)
                .collect(),
        })
    }

    /// Back from [`Self::encode`].
    pub fn decode(self, keys: Vec<i64>) -> ArrayRef {
        match self {
            Self::Int64 => Arc::new(Int64Array::from(keys)),
            Self::UInt64 => Arc::new(UInt64Array::from_iter_values(
                keys.into_iter().map(|key| key as u64 ^ 1 << 63),
            )),
        }
    }

    /// How messages show a key.
    pub fn show(self, key: i64) -> String {
        match self {
            Self::Int64 => key.to_string(),
            Self::UInt64 => (key as u64 ^ 1 << 63).to_string(),
        }
    }
}

/// What a part keeps besides its arrays.
#[derive(Clone, PartialEq, Message)]
struct Record {
    #[prost(uint32, tag = "1")]
    version: u32,
    /// Keys are `UInt64`.
    #[prost(bool, tag = "2")]
    is_unsigned: bool,
    /// Vertex numbers, those of gaps among them.
    #[prost(uint32, tag = "3")]
    vertices: u32,
    #[prost(uint64, tag = "4")]
    edges: u64,
    /// Keys are in an array; else they start at `first_key`.
    #[prost(bool, tag = "5")]
    has_keys: bool,
    #[prost(sint64, tag = "6")]
    first_key: i64,
    /// The segments of the edge table, in the order in which `rows` numbers them.
    #[prost(uint32, repeated, tag = "7")]
    segments: Vec<u32>,
    #[prost(bool, tag = "8")]
    has_weights: bool,
    /// The first row (segment << 16 | row) with a weight that is negative, NaN or NULL, in version 1.
    #[prost(uint64, optional, tag = "9")]
    bad_weight: Option<u64>,
    /// All of them since, packed as `rows` are: a Roaring bitmap, or nothing.
    #[prost(bytes = "vec", tag = "10")]
    bad_weights: Vec<u8>,
    /// Rows of each segment that were deleted when the part was built, which it does not have.
    #[prost(uint32, repeated, tag = "11")]
    deleted: Vec<u32>,
}

/// The neighbour lists of one direction.
#[derive(Debug)]
pub struct Lists {
    /// Where each list starts in the other arrays; one more than vertices.
    pub offsets: PagedArray,
    /// Vertex numbers.
    pub neighbours: PagedArray,
    /// Rows: place of the segment among [`AdjacencyPart::segments`] << 16 | row.
    pub rows: PagedArray,
    /// The bits of weights that are not negative.
    pub weights: Option<PagedArray>,
}

/// A part of an adjacency index, as it is read.
#[derive(Debug)]
pub struct AdjacencyPart {
    record: Record,
    bad_weights: RoaringBitmap,
    keys: Option<PagedArray>,
    lists: [Lists; 2],
}

impl AdjacencyPart {
    /// The part with this record and these arrays, in the order of [`PartData`].
    ///
    /// # Errors
    /// `Corrupt` when they do not belong together, `Invalid` for a record of a newer flashmesh.
    pub fn open(meta: &[u8], arrays: Vec<PagedArray>) -> Result<Self> {
        let corrupt = |what: String| StorageError::corrupt(format!("adjacency index: {what}"));
        let mut record = Record::decode(meta).map_err(|error| corrupt(error.to_string()))?;
        if !(1..=VERSION).contains(&record.version) {
            return Err(StorageError::Invalid(format!(
                "an adjacency index of version {}, where 1 to {VERSION} are known; make it anew or open it with a newer flashmesh",
                record.version
            )));
        }
        let count = arrays.len();
        let arrays: [PagedArray; ARRAYS] = arrays
            .try_into()
            .map_err(|_| corrupt(format!("{count} arrays in place of {ARRAYS}")))?;
        let weights = if record.has_weights { record.edges } else { 0 };
        let expected = [
            if record.has_keys {
                record.vertices.into()
            } else {
                0
            },
            u64::from(record.vertices) + 1,
            record.edges,
            record.edges,
            weights,
            u64::from(record.vertices) + 1,
            record.edges,
            record.edges,
            weights,
        ];
        for (number, (array, expected)) in arrays.iter().zip(expected).enumerate() {
            if array.len() != expected {
                return Err(corrupt(format!(
                    "array {number} has {} values in place of {expected}",
                    array.len()
                )));
            }
        }
        let is_beyond = record
            .first_key
            .checked_add(i64::from(record.vertices))
            .is_none();
        let has_too_many = record.vertices == NO_VERTEX || record.edges >= u64::from(u32::MAX);
        if has_too_many || !record.has_keys && is_beyond {
            return Err(corrupt(format!(
                "{} vertices, {} edges",
                record.vertices, record.edges
            )));
        }
        if record.version == 1 {
            record.deleted = vec![0; record.segments.len()];
        }
        if record.deleted.len() != record.segments.len() {
            return Err(corrupt(format!(
                "deleted rows of {} segments in place of {}",
                record.deleted.len(),
                record.segments.len()
            )));
        }
        let bad_weights = match &record.bad_weights[..] {
            [] => Ok(RoaringBitmap::new()),
            bytes => RoaringBitmap::deserialize_from(bytes),
        };
        let bad_weights = bad_weights.map_err(|error| corrupt(format!("bad weights: {error}")))?;
        let [keys, a, b, c, d, e, f, g, h] = arrays;
        let lists = |offsets, neighbours, rows, weights| Lists {
            offsets,
            neighbours,
            rows,
            weights: record.has_weights.then_some(weights),
        };
        Ok(Self {
            keys: record.has_keys.then_some(keys),
            lists: [lists(a, b, c, d), lists(e, f, g, h)],
            bad_weights,
            record,
        })
    }

    /// Vertex numbers: 0 up to this. Some may be gaps between keys.
    pub fn vertices(&self) -> u32 {
        self.record.vertices
    }

    /// Edges.
    pub fn edges(&self) -> u64 {
        self.record.edges
    }

    /// The type of keys.
    pub fn key_type(&self) -> KeyType {
        if self.record.is_unsigned {
            KeyType::UInt64
        } else {
            KeyType::Int64
        }
    }

    /// The keys by number, ascending (see [`KeyType::encode`]); `None`: see [`Self::first_key`].
    pub fn keys(&self) -> Option<&PagedArray> {
        self.keys.as_ref()
    }

    /// The key of vertex 0; the others count up.
    pub fn first_key(&self) -> i64 {
        self.record.first_key
    }

    /// The segments of the edge table that the part covers, as rows number them.
    pub fn segments(&self) -> &[u32] {
        &self.record.segments
    }

    /// The lists along the edges (0), against them (1).
    pub fn lists(&self, against: bool) -> &Lists {
        &self.lists[usize::from(against)]
    }

    /// Whether edges have weights.
    pub fn has_weights(&self) -> bool {
        self.record.has_weights
    }

    /// How many rows of each of [`Self::segments`] were deleted when the part was built. It does not
    /// have these; it has those that were deleted since.
    pub fn deleted(&self) -> &[u32] {
        &self.record.deleted
    }

    /// A row (segment << 16 | row) whose weight is negative, NaN or NULL, of those that are there by
    /// `has_row`, which gets values of [`Lists::rows`].
    ///
    /// # Errors
    /// Those of `has_row`; `Corrupt` when the part has no such segment.
    pub fn bad_weight(&self, has_row: impl Fn(u32) -> Result<bool>) -> Result<Option<u64>> {
        // Version 1 knows only one of them.
        if self.record.bad_weight.is_some() {
            return Ok(self.record.bad_weight);
        }
        for packed in &self.bad_weights {
            if has_row(packed)? {
                return self.row(packed).map(Some);
            }
        }
        Ok(None)
    }

    /// The row of the edge table (segment << 16 | row) that a value of [`Lists::rows`] stands for.
    ///
    /// # Errors
    /// `Corrupt` when the part has no such segment.
    pub fn row(&self, packed: u32) -> Result<u64> {
        let place = (packed >> 16) as usize;
        match self.record.segments.get(place) {
            Some(segment) => Ok(u64::from(*segment) << 16 | u64::from(packed & 0xffff)),
            None => Err(StorageError::corrupt(format!(
                "adjacency index: segment {place} of {}",
                self.record.segments.len()
            ))),
        }
    }
}
