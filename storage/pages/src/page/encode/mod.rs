//! From an Arrow array to the pages of a chunk.
//!
//! Each chunk gets the encoding that takes the fewest pages (with a bias to what decodes faster),
//! each page its own reference and width. Pages never share a value, but for values longer than a
//! page.

mod fixed;
mod groups;
mod integers;
mod text;

use arrow::array::{Array, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use flashmesh_pushdown::Scalar;

pub use groups::{EncodedGroups, GroupedColumn, encode_groups};

use self::groups::Values;
use super::header::{PageHeader, PageIdentity, REGION_ALIGN_BYTES, flags, validity_size_bytes};
use super::kind::Kind;
use super::sketch::Sketch;
use super::{Encoding, HEADER_SIZE_BYTES, PAYLOAD_SIZE_BYTES, PageZone, SEGMENT_ROWS, nested};
use crate::flash::PageBuffer;
use crate::{Result, StorageError};

/// Longest text or binary value that statistics keep.
const MAX_STATISTIC_BYTES: usize = 256;
/// Zone of a page whose values have no keys.
const UNBOUNDED: (i64, i64) = (i64::MIN, i64::MAX);
/// Zone of a page without values.
const NO_VALUES: (i64, i64) = (i64::MAX, i64::MIN);

/// Which chunk the pages will belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkIdentity {
    /// Number of the table.
    pub table: u32,
    /// Number of the segment.
    pub segment: u32,
    /// Number of the column group.
    pub column_group: u16,
    /// The commit that writes it.
    pub generation: u32,
}

impl ChunkIdentity {
    /// The identity of its first page; the others count `page` up.
    pub fn first_page(self) -> PageIdentity {
        PageIdentity {
            table: self.table,
            segment: self.segment,
            column_group: self.column_group,
            page: 0,
            generation: self.generation,
        }
    }
}

/// What is known of a chunk's values.
#[derive(Debug, Clone, PartialEq)]
pub struct ChunkStats {
    /// NULLs.
    pub null_count: u32,
    /// Least zone key; above `max` when all values are NULL.
    pub min: i64,
    /// Greatest zone key.
    pub max: i64,
    /// A sketch for [`merge_sketches`](super::merge_sketches) and
    /// [`estimate_distinct`](super::estimate_distinct); empty for nested types.
    pub distinct_sketch: Vec<u8>,
    /// Least value, exact; `None` without values, for types without an order here, and for text
    /// or binary of more than 256 bytes.
    pub min_value: Option<Scalar>,
    /// Greatest value likewise.
    pub max_value: Option<Scalar>,
}

/// The pages of a chunk.
#[derive(Debug)]
pub struct EncodedChunk {
    /// In the order in which they follow each other on flash, the auxiliary page first.
    pub pages: Vec<PageBuffer>,
    /// Auxiliary pages: 0 or 1.
    pub aux_pages: u16,
    /// The zones of the other pages.
    pub zones: Vec<PageZone>,
    /// What the planner may know.
    pub stats: ChunkStats,
}

/// Encodes the values of one column of one segment.
///
/// # Errors
/// `Invalid` for a type that is not stored, more than [`SEGMENT_ROWS`] rows, and values so long
/// that the chunk would take more than 65,535 pages: [`max_chunk_rows`] tells how many rows fit.
pub fn encode_chunk(array: &dyn Array, identity: ChunkIdentity) -> Result<EncodedChunk> {
    encode(array, identity, Purpose::Pages).map(|encoded| encoded.chunk)
}

/// What becomes of a chunk's values once it is decided how they are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// They fill pages of their own.
    Pages,
    /// They are kept to be parts of group pages. Only the auxiliary page is written.
    Groups,
}

/// An encoded chunk.
struct Encoded {
    chunk: EncodedChunk,
    /// Where its pages are not written: what its parts of group pages are to hold; `None` for
    /// values too long for that.
    values: Option<Values>,
    nulls: Option<NullBuffer>,
}

fn encode(array: &dyn Array, identity: ChunkIdentity, purpose: Purpose) -> Result<Encoded> {
    if array.len() > SEGMENT_ROWS {
        return Err(StorageError::Invalid(format!(
            "{} rows in a segment of {SEGMENT_ROWS}",
            array.len()
        )));
    }
    let kind = Kind::of(array.data_type())?;
    let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
    let mut writer = ChunkWriter::new(identity, nulls, array.len(), purpose);
    if writer.null_count(0..array.len()) == array.len() {
        if purpose == Purpose::Groups {
            writer.keep(Values::Null);
        } else if !array.is_empty() {
            writer.push(
                PageSpec {
                    rows: array.len(),
                    encoding: Encoding::Const,
                    zone: NO_VALUES,
                    ..PageSpec::default()
                },
                0,
                |_| {},
            )?;
        }
        return Ok(writer.finish(NO_VALUES, Sketch::new().into_bytes(), None));
    }
    match kind {
        Kind::Boolean => {
            let values: Vec<i64> = array.as_boolean().values().iter().map(i64::from).collect();
            integers::encode(writer, values, |value| Scalar::Boolean(value != 0))
        }
        Kind::Integer { .. } => match integers::from_array(array)? {
            Some(values) => {
                integers::encode(writer, values, |value| Scalar::Int(i128::from(value)))
            }
            None => fixed::encode_wide(writer, array),
        },
        Kind::Fixed { size } => match array.data_type() {
            DataType::FixedSizeList(..) if nested::has_inner_nulls(array) => {
                encode_nested(writer, array)
            }
            _ => fixed::encode(writer, array, size),
        },
        Kind::Bytes => {
            let rows: Vec<&[u8]> = match array.data_type() {
                DataType::Utf8View => array
                    .as_string_view()
                    .iter()
                    .map(|v| v.unwrap_or_default().as_bytes())
                    .collect(),
                _ => array
                    .as_binary_view()
                    .iter()
                    .map(Option::unwrap_or_default)
                    .collect(),
            };
            text::encode(writer, &rows, true)
        }
        Kind::Nested => encode_nested(writer, array),
    }
}

fn encode_nested(writer: ChunkWriter, array: &dyn Array) -> Result<Encoded> {
    let (bytes, offsets) = nested::encode(array)?;
    let rows: Vec<&[u8]> = offsets
        .windows(2)
        .map(|ends| &bytes[ends[0]..ends[1]])
        .collect();
    text::encode(writer, &rows, false)
}

/// How many rows of `array`, from the first on, surely fit one chunk: all of them unless its
/// values are very long. At least 1 (unless the array is empty): a single value that is too long
/// is an error of [`encode_chunk`].
///
/// # Errors
/// `Invalid` for a type that is not stored.
pub fn max_chunk_rows(array: &dyn Array) -> Result<usize> {
    // Room of a page after regions that hold bits and alignment, and for one more page that each
    // long value leaves partly filled.
    const ROOM_BYTES: usize = PAYLOAD_SIZE_BYTES - 512;
    const PAGES: usize = u16::MAX as usize - 16;
    let rows = array.len().min(SEGMENT_ROWS);
    let size = |row: usize| match array.data_type() {
        DataType::Utf8View => array.as_string_view().value(row).len(),
        DataType::BinaryView => array.as_binary_view().value(row).len(),
        _ => 0,
    };
    let mut pages = 0;
    let mut fill = 0;
    let mut add = |size: usize| {
        if fill + size > ROOM_BYTES {
            pages += 1 + size / ROOM_BYTES;
            fill = size % ROOM_BYTES;
        } else {
            fill += size + 2;
        }
        pages <= PAGES
    };
    let fitting = match Kind::of(array.data_type())? {
        Kind::Bytes => (0..rows)
            .take_while(|row| add(if array.is_valid(*row) { size(*row) } else { 0 }))
            .count(),
        Kind::Fixed { size } => (0..rows).take_while(|_| add(size)).count(),
        Kind::Nested => {
            let (_, offsets) = nested::encode(&array.slice(0, rows))?;
            offsets
                .windows(2)
                .take_while(|ends| add(ends[1] - ends[0]))
                .count()
        }
        Kind::Boolean | Kind::Integer { .. } => rows,
    };
    Ok(fitting.max(rows.min(1)))
}

/// One page to write.
struct PageSpec {
    /// Rows, from where the last page ended.
    rows: usize,
    encoding: Encoding,
    width: usize,
    /// Besides HAS_VALIDITY, which the writer finds out.
    flags: u16,
    reference: i64,
    /// Least and greatest zone key.
    zone: (i64, i64),
}

impl Default for PageSpec {
    fn default() -> Self {
        Self {
            rows: 0,
            encoding: Encoding::Const,
            width: 0,
            flags: 0,
            reference: 0,
            zone: UNBOUNDED,
        }
    }
}

/// Collects the pages of a chunk.
struct ChunkWriter {
    identity: ChunkIdentity,
    nulls: Option<NullBuffer>,
    rows: usize,
    next_row: usize,
    pages: Vec<PageBuffer>,
    aux_pages: u16,
    zones: Vec<PageZone>,
    purpose: Purpose,
    values: Option<Values>,
}

impl ChunkWriter {
    fn new(
        identity: ChunkIdentity,
        nulls: Option<NullBuffer>,
        rows: usize,
        purpose: Purpose,
    ) -> Self {
        Self {
            purpose,
            values: None,
            identity,
            nulls,
            rows,
            next_row: 0,
            pages: Vec::new(),
            aux_pages: 0,
            zones: Vec::new(),
        }
    }

    /// NULLs among `rows` of the chunk.
    fn null_count(&self, rows: std::ops::Range<usize>) -> usize {
        match &self.nulls {
            Some(nulls) => {
                rows.len() - nulls.inner().slice(rows.start, rows.len()).count_set_bits()
            }
            None => 0,
        }
    }

    /// Whether the values are to be kept rather than written.
    fn keeps(&self) -> bool {
        self.purpose == Purpose::Groups
    }

    /// Keeps the values of all rows.
    fn keep(&mut self, values: Values) {
        self.values = Some(values);
        self.next_row = self.rows;
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    /// Bytes of the validity bitmap of a page with `rows` rows, of which `null_count` are NULL.
    fn validity_size_bytes(rows: usize, null_count: usize) -> usize {
        if null_count == 0 || null_count == rows {
            0
        } else {
            validity_size_bytes(rows)
        }
    }

    /// Whether `more` pages can still be numbered.
    fn check_pages(&self, more: usize) -> Result<()> {
        if self.pages.len() + more > usize::from(u16::MAX) {
            return Err(StorageError::Invalid(format!(
                "{} rows of this column take more than {} pages; write fewer rows to a segment",
                self.rows,
                u16::MAX
            )));
        }
        Ok(())
    }

    /// Writes the auxiliary page; `fill` gets its zeroed data region of `data_bytes`.
    fn push_aux(
        &mut self,
        encoding: Encoding,
        width: usize,
        reference: i64,
        entries: usize,
        data_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) {
        debug_assert!(self.pages.is_empty(), "the auxiliary page comes first");
        let mut buffer = PageBuffer::zeroed();
        fill(&mut buffer[HEADER_SIZE_BYTES..HEADER_SIZE_BYTES + data_bytes]);
        let spec = PageSpec {
            rows: entries,
            encoding,
            width,
            flags: flags::AUXILIARY
                | match encoding {
                    // As `fsst` compresses; the tests of this module hold it to that.
                    Encoding::Fsst => flags::CANONICAL,
                    _ => 0,
                },
            reference,
            zone: NO_VALUES,
        };
        self.header(&spec, 0, 0, data_bytes).write(&mut buffer);
        self.pages.push(buffer);
        self.aux_pages = 1;
    }

    /// Writes the next page; `fill` gets its zeroed data region of `data_bytes`.
    fn push(
        &mut self,
        spec: PageSpec,
        data_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        self.check_pages(1)?;
        let rows = self.next_row..self.next_row + spec.rows;
        let null_count = self.null_count(rows.clone());
        let validity = Self::validity_size_bytes(spec.rows, null_count);
        let data_start = HEADER_SIZE_BYTES + validity;
        let mut buffer = PageBuffer::zeroed();
        if let Some(nulls) = self.nulls.as_ref().filter(|_| validity > 0) {
            let bits = nulls.inner().slice(rows.start, rows.len()).sliced();
            buffer[HEADER_SIZE_BYTES..][..rows.len().div_ceil(8)]
                .copy_from_slice(&bits.as_slice()[..rows.len().div_ceil(8)]);
        }
        fill(&mut buffer[data_start..data_start + data_bytes]);
        self.header(&spec, null_count, validity, data_bytes)
            .write(&mut buffer);
        self.pages.push(buffer);
        let (min, max) = if null_count == spec.rows {
            NO_VALUES
        } else {
            spec.zone
        };
        self.zones.push(PageZone {
            first_row: self.next_row as u32,
            row_count: spec.rows as u32,
            null_count: null_count as u32,
            min,
            max,
        });
        self.next_row += spec.rows;
        Ok(())
    }

    /// Writes pages up to the last row, all with this value. It leaves room for a bitmap.
    fn push_constant(&mut self, value: &[u8], zone: (i64, i64)) -> Result<()> {
        if self.keeps() {
            let value = value.to_vec();
            self.keep(Values::Constant { value, zone });
            return Ok(());
        }
        let room = (PAYLOAD_SIZE_BYTES - value.len()) / REGION_ALIGN_BYTES * REGION_ALIGN_BYTES;
        while self.next_row < self.rows {
            let left = self.rows - self.next_row;
            let spec = PageSpec {
                rows: if self.nulls.is_some() {
                    left.min(room * 8)
                } else {
                    left
                },
                encoding: Encoding::Const,
                width: 8,
                zone,
                ..PageSpec::default()
            };
            self.push(spec, value.len(), |data| data.copy_from_slice(value))?;
        }
        Ok(())
    }

    fn header(
        &self,
        spec: &PageSpec,
        null_count: usize,
        validity_bytes: usize,
        data_bytes: usize,
    ) -> PageHeader {
        let (min, max) = if null_count == spec.rows {
            NO_VALUES
        } else {
            spec.zone
        };
        let has_validity = if validity_bytes > 0 {
            flags::HAS_VALIDITY
        } else {
            0
        };
        // A page that continues a value says in which row that value is.
        let first_row = if spec.rows == 0 {
            self.next_row.saturating_sub(1)
        } else {
            self.next_row
        };
        PageHeader {
            encoding: spec.encoding,
            width: spec.width as u8,
            flags: spec.flags | has_validity,
            column_group: self.identity.column_group,
            payload_length: (validity_bytes + data_bytes) as u16,
            table: self.identity.table,
            segment: self.identity.segment,
            page: self.pages.len() as u16,
            first_row: first_row as u16,
            generation: self.identity.generation,
            row_count: spec.rows as u32,
            null_count: null_count as u32,
            reference: spec.reference,
            min,
            max,
        }
    }

    fn finish(
        self,
        (min, max): (i64, i64),
        distinct_sketch: Vec<u8>,
        values: Option<(Scalar, Scalar)>,
    ) -> Encoded {
        debug_assert_eq!(self.next_row, self.rows, "every row is in a page");
        let (min_value, max_value) = values.unzip();
        let short = |value: &Scalar| !matches!(value, Scalar::Bytes(bytes) if bytes.len() > MAX_STATISTIC_BYTES);
        let chunk = EncodedChunk {
            stats: ChunkStats {
                null_count: self.nulls.as_ref().map_or(0, NullBuffer::null_count) as u32,
                min,
                max,
                distinct_sketch,
                min_value: min_value.filter(short),
                max_value: max_value.filter(short),
            },
            pages: self.pages,
            aux_pages: self.aux_pages,
            zones: self.zones,
        };
        Encoded {
            chunk,
            values: self.values,
            nulls: self.nulls,
        }
    }
}

/// Bits of a number.
fn bit_width(value: u64) -> usize {
    (u64::BITS - value.leading_zeros()) as usize
}
