//! From pages to Arrow arrays.

mod fixed;
mod integers;
mod offsets;
mod rows;
mod text;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayDataBuilder, ArrayRef, BooleanArray, BooleanBufferBuilder, make_array};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, ToByteSlice};

use self::fixed::FixedBytes;
pub(super) use self::integers::FixedValues;
use self::offsets::OffsetValues;
use self::rows::Rows;
use self::text::TextValues;
use super::auxiliary::Aux;
use super::header::flags;
use super::kind::Kind;
use super::strings::{is_set, no_fit};
use super::{Encoding, Page, ints, nested, plain};
use crate::{Result, StorageError};

/// Rows that booleans are unpacked in at a time.
const BOOLEAN_ROWS: u32 = 4096;

/// The rows of a page as an array of exactly the stored type.
///
/// # Errors
/// `Corrupt` when the page does not fit the type or its auxiliary page; `Invalid` for rows beyond
/// the page, and for a value longer than a page, which takes a [`ColumnBuilder`].
pub fn decode(page: &Page, aux: &Aux, data_type: &DataType, rows: Range<u32>) -> Result<ArrayRef> {
    let mut builder = ColumnBuilder::new(data_type, rows.len())?;
    builder.append_rows(page, aux, rows)?;
    builder.finish()
}

/// [`decode`] for some rows, numbered within the page, ascending.
///
/// # Errors
/// As [`decode`].
pub fn gather(page: &Page, aux: &Aux, data_type: &DataType, rows: &[u32]) -> Result<ArrayRef> {
    let mut builder = ColumnBuilder::new(data_type, rows.len())?;
    builder.append_gather(page, aux, rows)?;
    builder.finish()
}

/// Builds one array out of rows of several pages, of one chunk or of many.
///
/// A value longer than a page is put together when the pages that continue it are appended right
/// after the page that it starts in, with any row range (they have no rows of their own).
#[derive(Debug)]
pub struct ColumnBuilder {
    data_type: DataType,
    values: Values,
    /// Begun at the first NULL.
    validity: Option<BooleanBufferBuilder>,
    length: usize,
    /// The last value goes on in the next page.
    open: bool,
}

#[derive(Debug)]
enum Values {
    Boolean(BooleanBufferBuilder),
    Integers(FixedValues),
    Fixed(FixedBytes),
    Text(TextValues),
    Plain(OffsetValues),
    Nested(OffsetValues),
}

impl ColumnBuilder {
    /// An empty array of a stored type, with room for `capacity` values.
    ///
    /// # Errors
    /// `Invalid` for a type that is not stored.
    pub fn new(data_type: &DataType, capacity: usize) -> Result<Self> {
        let values = match Kind::of(data_type)? {
            Kind::Boolean => Values::Boolean(BooleanBufferBuilder::new(capacity)),
            Kind::Integer { size } => Values::Integers(
                FixedValues::new(size, capacity).expect("Kind::of gives sizes of integers"),
            ),
            Kind::Fixed { size } => Values::Fixed(FixedBytes::new(data_type, size, capacity)),
            Kind::Bytes => {
                Values::Text(TextValues::new(*data_type == DataType::Utf8View, capacity))
            }
            Kind::Nested => Values::Nested(OffsetValues::default()),
        };
        Ok(Self {
            data_type: data_type.clone(),
            values,
            validity: None,
            length: 0,
            open: false,
        })
    }

    /// The same, of the [plain type](plain::plain_type) where the stored type is a view.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn plain(data_type: &DataType, capacity: usize) -> Result<Self> {
        let mut builder = Self::new(data_type, capacity)?;
        if let Values::Text(_) = builder.values {
            builder.values = Values::Plain(OffsetValues::default());
            builder.data_type = plain::plain_type(data_type);
        }
        Ok(builder)
    }

    /// Values so far.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there is no value yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends `rows` of the page, numbered within it.
    ///
    /// # Errors
    /// As [`decode`]. After an error the builder is of no further use.
    pub fn append_rows(&mut self, page: &Page, aux: &Aux, rows: Range<u32>) -> Result<()> {
        if page.is_continuation() {
            return self.append_continuation(page, aux);
        }
        self.check(page, rows.end, rows.start <= rows.end)?;
        if rows.is_empty() {
            return Ok(());
        }
        let count = rows.len();
        self.append_validity(page, count, |builder, bits| {
            builder.append_packed_range(rows.start as usize..rows.end as usize, bits);
        });
        self.length += count;
        if page.header().null_count == page.header().row_count {
            self.append_nulls(count);
            return Ok(());
        }
        if page.header().has(flags::CONTINUES) {
            return self.append_first_part(page, aux);
        }
        self.append_values(page, aux, &Rows::Range(rows))
    }

    /// Appends the rows with these numbers within the page, ascending.
    ///
    /// # Errors
    /// As [`decode`]. After an error the builder is of no further use.
    pub fn append_gather(&mut self, page: &Page, aux: &Aux, rows: &[u32]) -> Result<()> {
        if page.is_continuation() {
            return self.append_continuation(page, aux);
        }
        let (Some(&first), Some(&last)) = (rows.first(), rows.last()) else {
            return self.check(page, 0, true);
        };
        let ascending = rows.is_sorted_by(|a, b| a < b);
        self.check(page, last.saturating_add(1), ascending)?;
        if (last - first) as usize == rows.len() - 1 {
            return self.append_rows(page, aux, first..last + 1);
        }
        self.append_validity(page, rows.len(), |builder, bits| {
            rows.iter()
                .for_each(|row| builder.append(is_set(bits, *row)));
        });
        self.length += rows.len();
        if page.header().null_count == page.header().row_count {
            self.append_nulls(rows.len());
            return Ok(());
        }
        self.append_values(page, aux, &Rows::Some(rows))
    }

    fn append_values(&mut self, page: &Page, aux: &Aux, rows: &Rows<'_>) -> Result<()> {
        match &mut self.values {
            Values::Boolean(values) => append_booleans(page, aux, rows, values),
            Values::Integers(values) => values.append(page, aux, rows),
            Values::Fixed(values) => values.append(page, aux, rows),
            Values::Text(values) => values.append(page, aux, rows),
            Values::Plain(values) | Values::Nested(values) => values.append(page, aux, rows),
        }
    }

    /// The array.
    ///
    /// # Errors
    /// `Corrupt` when a long value was not continued to its end, or nested values do not parse.
    pub fn finish(mut self) -> Result<ArrayRef> {
        if self.open {
            return Err(StorageError::corrupt(
                "a value longer than a page ends too early",
            ));
        }
        let nulls = self
            .validity
            .as_mut()
            .map(|validity| NullBuffer::new(validity.finish()));
        match self.values {
            Values::Boolean(mut values) => Ok(Arc::new(BooleanArray::new(values.finish(), nulls))),
            Values::Integers(values) => {
                finish_array(&self.data_type, self.length, values.into_buffer(), nulls)
            }
            Values::Fixed(values) => values.finish(&self.data_type, self.length, nulls),
            Values::Text(values) => Ok(values.finish(nulls)),
            Values::Plain(values) => {
                plain::finish(&self.data_type, values.bytes, values.offsets, nulls)
            }
            Values::Nested(values) => {
                nested::decode(&self.data_type, &values.bytes, &values.offsets, nulls)
            }
        }
    }

    fn check(&mut self, page: &Page, end: u32, ordered: bool) -> Result<()> {
        let header = page.header();
        if self.open {
            return Err(StorageError::corrupt(format!(
                "segment {}, page {}: the long value of the page before is not continued",
                header.segment, header.page
            )));
        }
        if !ordered || end > header.row_count {
            return Err(StorageError::Invalid(format!(
                "rows up to {end}, ascending: {ordered}, of a page of {}",
                header.row_count
            )));
        }
        if header.has(flags::AUXILIARY) {
            return Err(StorageError::corrupt(format!(
                "segment {}, page {}: an auxiliary page in place of data",
                header.segment, header.page
            )));
        }
        Ok(())
    }

    fn append_validity(
        &mut self,
        page: &Page,
        count: usize,
        append: impl FnOnce(&mut BooleanBufferBuilder, &[u8]),
    ) {
        match (page.validity(), &mut self.validity) {
            (Some(bits), Some(validity)) => append(validity, bits),
            (Some(bits), none) => {
                let mut validity = BooleanBufferBuilder::new(self.length + count);
                validity.append_n(self.length, true);
                append(&mut validity, bits);
                *none = Some(validity);
            }
            (None, Some(validity)) => validity.append_n(count, true),
            (None, None) => {}
        }
    }

    /// Fills the places of NULLs.
    fn append_nulls(&mut self, count: usize) {
        match &mut self.values {
            Values::Boolean(values) => values.append_n(count, false),
            Values::Integers(values) => values.extend_default(count),
            Values::Fixed(values) => values.extend_default(count),
            Values::Text(values) => values.extend_empty(count),
            Values::Plain(values) | Values::Nested(values) => values.extend_empty(count),
        }
    }

    fn append_first_part(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        self.open = true;
        match &mut self.values {
            Values::Fixed(values) => values.append_part(page, aux),
            Values::Text(values) => values.start_long(page, aux),
            Values::Plain(values) | Values::Nested(values) => values.append_part(page, aux),
            _ => Err(no_fit(page, aux)),
        }
    }

    fn append_continuation(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        if !self.open {
            // The row that it continues was not asked for.
            return Ok(());
        }
        self.open = page.header().has(flags::CONTINUES);
        match &mut self.values {
            Values::Fixed(values) => {
                values.append_part(page, aux)?;
                if !self.open {
                    values
                        .finish_long(self.length)
                        .ok_or_else(|| no_fit(page, aux))?;
                }
            }
            Values::Text(values) => {
                values.append_part(page, aux)?;
                if !self.open {
                    values.finish_long()?;
                }
            }
            Values::Plain(values) | Values::Nested(values) => {
                values.append_part(page, aux)?;
                if !self.open {
                    values.end_long()?;
                }
            }
            _ => return Err(no_fit(page, aux)),
        }
        Ok(())
    }
}

/// An array of fixed-size values out of its buffer.
pub(super) fn finish_array(
    data_type: &DataType,
    length: usize,
    values: Buffer,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let data = ArrayDataBuilder::new(data_type.clone())
        .len(length)
        .add_buffer(values)
        .nulls(nulls)
        .align_buffers(true)
        .build()?;
    Ok(make_array(data))
}

fn append_booleans(
    page: &Page,
    aux: &Aux,
    rows: &Rows<'_>,
    values: &mut BooleanBufferBuilder,
) -> Result<()> {
    if !ints::is_integer_page(page) || page.header().encoding == Encoding::Dict {
        return Err(no_fit(page, aux));
    }
    match rows {
        Rows::Range(rows) => {
            let mut words = [0u64; BOOLEAN_ROWS as usize / 64];
            for start in rows.clone().step_by(BOOLEAN_ROWS as usize) {
                let rows = start..rows.end.min(start + BOOLEAN_ROWS);
                let words = &mut words[..rows.len().div_ceil(64)];
                ints::select_range(page, rows.clone(), 1, i64::MAX, words);
                values.append_packed_range(0..rows.len(), words.to_byte_slice());
            }
        }
        Rows::Some(rows) => {
            let mut numbers = vec![0; rows.len()];
            ints::gather_i64(page, rows, &mut numbers);
            numbers.iter().for_each(|value| values.append(*value != 0));
        }
    }
    Ok(())
}
