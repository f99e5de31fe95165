//! From pages to Arrow arrays.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayDataBuilder, ArrayRef, AsArray, BinaryViewArray, BooleanArray,
    BooleanBufferBuilder, FixedSizeListArray, Float32Array, StringViewArray, make_array,
};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Float32Type, ToByteSlice};

use super::auxiliary::{Aux, Dictionary};
use super::header::flags;
use super::kind::Kind;
use super::layout::Layout;
use super::strings::{self, is_set, no_fit};
use super::text::{INLINE_BYTES, check_utf8, view};
use super::{Encoding, Page, ints, nested, plain};
use crate::{Result, StorageError};

/// Rows that booleans are unpacked in at a time.
const BOOLEAN_ROWS: u32 = 4096;
/// Room for text that is taken at once at most: the first page may be unlike the others.
const RESERVE_MAX_BYTES: usize = 1 << 20;
/// Bytes at which a buffer of text is closed and the next begun; Arrow addresses 2 GiB.
const TEXT_BUFFER_BYTES: usize = 1 << 30;

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
        match &mut self.values {
            Values::Boolean(values) => append_booleans(page, aux, rows, values),
            Values::Integers(values) => values.append_rows(page, aux, rows),
            Values::Fixed(values) => values.append_rows(page, aux, rows),
            Values::Text(values) => values.append_rows(page, aux, rows),
            Values::Plain(values) => {
                if let Some(dictionary) = dictionary_of(page, aux) {
                    let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
                    ints::append(page, rows, &mut codes);
                    return values.append_codes(page, aux, dictionary, &codes);
                }
                strings::decompress(page, aux, rows, &mut values.bytes, &mut values.offsets)
            }
            Values::Nested(values) => {
                strings::decompress(page, aux, rows, &mut values.bytes, &mut values.offsets)
            }
        }
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
        match &mut self.values {
            Values::Boolean(values) => {
                if !ints::is_integer_page(page) || page.header().encoding == Encoding::Dict {
                    return Err(no_fit(page, aux));
                }
                let mut numbers = vec![0; rows.len()];
                ints::gather_i64(page, rows, &mut numbers);
                numbers.iter().for_each(|value| values.append(*value != 0));
                Ok(())
            }
            Values::Integers(values) => values.append_gather(page, aux, rows),
            Values::Fixed(values) => values.append_gather(page, aux, rows),
            Values::Text(values) => values.append_gather(page, aux, rows),
            Values::Plain(values) => {
                if let Some(dictionary) = dictionary_of(page, aux) {
                    let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
                    ints::append_gather(page, rows, &mut codes);
                    return values.append_codes(page, aux, dictionary, &codes);
                }
                strings::decompress_gather(page, aux, rows, &mut values.bytes, &mut values.offsets)
            }
            Values::Nested(values) => {
                strings::decompress_gather(page, aux, rows, &mut values.bytes, &mut values.offsets)
            }
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
            Values::Fixed(values) => values
                .bytes
                .resize(values.bytes.len() + values.size * count, 0),
            Values::Text(values) => values.views.resize(values.views.len() + count, 0),
            Values::Plain(values) | Values::Nested(values) => values.extend_empty(count),
        }
    }

    fn append_first_part(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        self.open = true;
        match &mut self.values {
            Values::Fixed(values) => values.append_part(page, aux),
            Values::Text(values) => {
                values.start_buffer();
                strings::append_part(page, aux, &mut values.bytes)
            }
            Values::Plain(values) | Values::Nested(values) => {
                strings::append_part(page, aux, &mut values.bytes)
            }
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
                strings::append_part(page, aux, &mut values.bytes)?;
                if !self.open {
                    values.finish_long()?;
                }
            }
            Values::Plain(values) | Values::Nested(values) => {
                strings::append_part(page, aux, &mut values.bytes)?;
                if !self.open {
                    values.end()?;
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
    rows: Range<u32>,
    values: &mut BooleanBufferBuilder,
) -> Result<()> {
    if !ints::is_integer_page(page) || page.header().encoding == Encoding::Dict {
        return Err(no_fit(page, aux));
    }
    let mut words = [0u64; BOOLEAN_ROWS as usize / 64];
    for start in rows.clone().step_by(BOOLEAN_ROWS as usize) {
        let rows = start..rows.end.min(start + BOOLEAN_ROWS);
        let words = &mut words[..rows.len().div_ceil(64)];
        ints::select_range(page, rows.clone(), 1, i64::MAX, words);
        values.append_packed_range(0..rows.len(), words.to_byte_slice());
    }
    Ok(())
}

/// Values of a fixed size.
#[derive(Debug)]
struct FixedBytes {
    size: usize,
    bytes: Vec<u8>,
    /// Lists of floats only.
    items: Option<ListItems>,
}

/// What lists of floats need when there are NULLs within them: such chunks are stored as nested
/// values.
#[derive(Debug)]
struct ListItems {
    data_type: DataType,
    /// Validity of the floats so far; those that are missing at the end are valid.
    validity: Option<BooleanBufferBuilder>,
    /// The nested value whose parts are being put together.
    long: Vec<u8>,
}

impl FixedBytes {
    fn new(data_type: &DataType, size: usize, capacity: usize) -> Self {
        let items = match data_type {
            DataType::FixedSizeList(..) => Some(ListItems {
                data_type: data_type.clone(),
                validity: None,
                long: Vec::new(),
            }),
            _ => None,
        };
        Self {
            size,
            bytes: Vec::with_capacity(capacity * size),
            items,
        }
    }

    fn append_rows(&mut self, page: &Page, aux: &Aux, rows: Range<u32>) -> Result<()> {
        let data = page.data();
        let size = self.size;
        match page.layout() {
            Layout::Fixed { size: stored } if *stored == size => {
                self.bytes
                    .extend_from_slice(&data[rows.start as usize * size..rows.end as usize * size]);
                Ok(())
            }
            Layout::Value if data.len() == size => {
                rows.for_each(|_| self.bytes.extend_from_slice(data));
                Ok(())
            }
            Layout::Packed(_) => {
                let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
                ints::append(page, rows, &mut codes);
                self.append_codes(page, aux, &codes)
            }
            Layout::Text(_) => {
                let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
                strings::decompress(page, aux, rows.clone(), &mut bytes, &mut offsets)?;
                self.append_nested(page, aux, &bytes, &offsets, &mut rows.into_iter())
            }
            _ => Err(no_fit(page, aux)),
        }
    }

    fn append_gather(&mut self, page: &Page, aux: &Aux, rows: &[u32]) -> Result<()> {
        let data = page.data();
        let size = self.size;
        match page.layout() {
            Layout::Fixed { size: stored } if *stored == size => {
                rows.iter().for_each(|row| {
                    self.bytes
                        .extend_from_slice(&data[*row as usize * size..][..size])
                });
                Ok(())
            }
            Layout::Value if data.len() == size => {
                rows.iter().for_each(|_| self.bytes.extend_from_slice(data));
                Ok(())
            }
            Layout::Packed(_) => {
                let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
                ints::append_gather(page, rows, &mut codes);
                self.append_codes(page, aux, &codes)
            }
            Layout::Text(_) => {
                let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
                strings::decompress_gather(page, aux, rows, &mut bytes, &mut offsets)?;
                self.append_nested(page, aux, &bytes, &offsets, &mut rows.iter().copied())
            }
            _ => Err(no_fit(page, aux)),
        }
    }

    fn append_codes(&mut self, page: &Page, aux: &Aux, codes: &[i32]) -> Result<()> {
        let (Encoding::Dict, Aux::Dictionary(dictionary)) = (page.header().encoding, aux) else {
            return Err(no_fit(page, aux));
        };
        for code in codes {
            match usize::try_from(*code)
                .ok()
                .filter(|code| *code < dictionary.len())
                .map(|code| dictionary.value(code))
            {
                Some(value) if value.len() == self.size => self.bytes.extend_from_slice(value),
                _ => return Err(no_fit(page, aux)),
            }
        }
        Ok(())
    }

    /// Appends nested values of the page's rows `rows`.
    fn append_nested(
        &mut self,
        page: &Page,
        aux: &Aux,
        bytes: &[u8],
        offsets: &[u32],
        rows: &mut dyn Iterator<Item = u32>,
    ) -> Result<()> {
        let Some(items) = &mut self.items else {
            return Err(no_fit(page, aux));
        };
        let validity = page.validity();
        let nulls: NullBuffer = rows
            .map(|row| validity.is_none_or(|bits| is_set(bits, row)))
            .collect();
        let list = nested::decode(&items.data_type, bytes, offsets, Some(nulls))?;
        items.append(&mut self.bytes, list.as_fixed_size_list());
        Ok(())
    }

    /// Appends a part of a value longer than a page.
    fn append_part(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        match (page.header().encoding, &mut self.items) {
            (Encoding::Raw, _) => strings::append_part(page, aux, &mut self.bytes),
            (Encoding::RawStr | Encoding::Fsst, Some(items)) => {
                strings::append_part(page, aux, &mut items.long)
            }
            _ => Err(no_fit(page, aux)),
        }
    }

    /// Ends a value longer than a page, number `length - 1`; `None` if it has the wrong size.
    fn finish_long(&mut self, length: usize) -> Option<()> {
        if let Some(items) = self.items.as_mut().filter(|items| !items.long.is_empty()) {
            let long = std::mem::take(&mut items.long);
            let list = nested::decode(
                &items.data_type,
                &long,
                &[0, u32::try_from(long.len()).ok()?],
                None,
            )
            .ok()?;
            items.append(&mut self.bytes, list.as_fixed_size_list());
        }
        (self.bytes.len() == self.size * length).then_some(())
    }

    fn finish(
        self,
        data_type: &DataType,
        length: usize,
        nulls: Option<NullBuffer>,
    ) -> Result<ArrayRef> {
        let DataType::FixedSizeList(item, size) = data_type else {
            return finish_array(data_type, length, self.bytes.into(), nulls);
        };
        let count = length * *size as usize;
        let item_nulls = self
            .items
            .and_then(|items| items.validity)
            .map(|mut validity| {
                validity.append_n(count.saturating_sub(validity.len()), true);
                NullBuffer::new(validity.finish())
            });
        let mut floats = Vec::with_capacity(count);
        floats.extend(
            self.bytes
                .as_chunks()
                .0
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes)),
        );
        let floats = Float32Array::try_new(floats.into(), item_nulls)?;
        Ok(Arc::new(FixedSizeListArray::try_new_with_length(
            item.clone(),
            *size,
            Arc::new(floats),
            nulls,
            length,
        )?))
    }
}

impl ListItems {
    /// Appends the floats of `list` to `bytes`.
    fn append(&mut self, bytes: &mut Vec<u8>, list: &FixedSizeListArray) {
        let floats = list.values().as_primitive::<Float32Type>();
        let validity = self
            .validity
            .get_or_insert_with(|| BooleanBufferBuilder::new(0));
        validity.append_n(bytes.len() / size_of::<f32>() - validity.len(), true);
        (0..floats.len()).for_each(|item| validity.append(floats.is_valid(item)));
        floats
            .values()
            .iter()
            .for_each(|float| bytes.extend_from_slice(&float.to_le_bytes()));
    }
}

/// Integers of 1, 2, 4, 8 or 16 bytes; signed and unsigned share their bits.
#[derive(Debug)]
pub(super) enum FixedValues {
    I8(Vec<i8>),
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    I128(Vec<i128>),
}

/// Runs `$body` with `$values` bound to the vector of whatever integer type.
macro_rules! for_integers {
    ($self:expr, $values:ident => $body:expr) => {
        match $self {
            FixedValues::I8($values) => $body,
            FixedValues::I16($values) => $body,
            FixedValues::I32($values) => $body,
            FixedValues::I64($values) => $body,
            FixedValues::I128($values) => $body,
        }
    };
}

impl FixedValues {
    pub fn new(size: usize, capacity: usize) -> Option<Self> {
        Some(match size {
            1 => Self::I8(Vec::with_capacity(capacity)),
            2 => Self::I16(Vec::with_capacity(capacity)),
            4 => Self::I32(Vec::with_capacity(capacity)),
            8 => Self::I64(Vec::with_capacity(capacity)),
            16 => Self::I128(Vec::with_capacity(capacity)),
            _ => return None,
        })
    }

    pub fn into_buffer(self) -> Buffer {
        for_integers!(self, values => Buffer::from_vec(values))
    }

    pub fn extend_integers(&mut self, integers: &[i64]) {
        for_integers!(self, values => ints::extend(values, integers.iter().copied()));
    }

    fn extend_default(&mut self, count: usize) {
        for_integers!(self, values => values.resize(values.len() + count, 0));
    }

    fn append_rows(&mut self, page: &Page, aux: &Aux, rows: Range<u32>) -> Result<()> {
        match (page.layout(), aux) {
            (Layout::Packed(_), Aux::Dictionary(dictionary))
                if page.header().encoding == Encoding::Dict =>
            {
                let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
                ints::append(page, rows, &mut codes);
                self.append_codes(page, aux, dictionary, &codes)
            }
            (Layout::Fixed { size }, _) => {
                let data = page.data();
                self.append_raw(
                    page,
                    aux,
                    *size,
                    &data[rows.start as usize * size..rows.end as usize * size],
                )
            }
            (Layout::Value, _) => rows
                .into_iter()
                .try_for_each(|_| self.append_raw(page, aux, page.data().len(), page.data())),
            _ if ints::is_integer_page(page) && page.header().encoding != Encoding::Dict => {
                for_integers!(self, values => ints::append(page, rows, values));
                Ok(())
            }
            _ => Err(no_fit(page, aux)),
        }
    }

    fn append_gather(&mut self, page: &Page, aux: &Aux, rows: &[u32]) -> Result<()> {
        match (page.layout(), aux) {
            (Layout::Packed(_), Aux::Dictionary(dictionary))
                if page.header().encoding == Encoding::Dict =>
            {
                let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
                ints::append_gather(page, rows, &mut codes);
                self.append_codes(page, aux, dictionary, &codes)
            }
            (Layout::Fixed { size }, _) => {
                let data = page.data();
                rows.iter().try_for_each(|row| {
                    self.append_raw(page, aux, *size, &data[*row as usize * size..][..*size])
                })
            }
            (Layout::Value, _) => rows
                .iter()
                .try_for_each(|_| self.append_raw(page, aux, page.data().len(), page.data())),
            _ if ints::is_integer_page(page) && page.header().encoding != Encoding::Dict => {
                for_integers!(self, values => ints::append_gather(page, rows, values));
                Ok(())
            }
            _ => Err(no_fit(page, aux)),
        }
    }

    fn append_codes(
        &mut self,
        page: &Page,
        aux: &Aux,
        dictionary: &Dictionary,
        codes: &[i32],
    ) -> Result<()> {
        let integers = dictionary.integers();
        let mut fits = true;
        let mut value = |code: &i32| {
            let value = integers.get(*code as u32 as usize);
            fits &= value.is_some();
            value.copied().unwrap_or_default()
        };
        for_integers!(self, values => ints::extend(values, codes.iter().map(&mut value)));
        if fits { Ok(()) } else { Err(no_fit(page, aux)) }
    }

    /// Appends values of `size` bytes each: those that do not fit an i64.
    fn append_raw(&mut self, page: &Page, aux: &Aux, size: usize, bytes: &[u8]) -> Result<()> {
        match self {
            Self::I64(values) if size == 8 => {
                values.extend(
                    bytes
                        .as_chunks()
                        .0
                        .iter()
                        .map(|bytes| i64::from_le_bytes(*bytes)),
                );
            }
            Self::I128(values) if size == 16 => {
                values.extend(
                    bytes
                        .as_chunks()
                        .0
                        .iter()
                        .map(|bytes| i128::from_le_bytes(*bytes)),
                );
            }
            _ => return Err(no_fit(page, aux)),
        }
        Ok(())
    }
}

/// The dictionary of a page of its codes.
fn dictionary_of<'a>(page: &Page, aux: &'a Aux) -> Option<&'a Dictionary> {
    match (page.header().encoding, aux) {
        (Encoding::Dict, Aux::Dictionary(dictionary)) => Some(dictionary),
        _ => None,
    }
}

/// Views, and the buffers that they point into.
#[derive(Debug)]
struct TextValues {
    is_utf8: bool,
    capacity: usize,
    views: Vec<u128>,
    /// The closed buffers.
    buffers: Vec<Buffer>,
    /// The buffer that is being filled; its number is `buffers.len()`.
    bytes: Vec<u8>,
    /// Ends of the rows of one call.
    offsets: Vec<u32>,
    /// The dictionary met last and the number of its buffer, which is among `buffers`.
    dictionary: Option<(Buffer, u32)>,
}

impl TextValues {
    fn new(is_utf8: bool, capacity: usize) -> Self {
        Self {
            is_utf8,
            capacity,
            views: Vec::with_capacity(capacity),
            buffers: Vec::new(),
            bytes: Vec::new(),
            offsets: Vec::new(),
            dictionary: None,
        }
    }

    fn append_rows(&mut self, page: &Page, aux: &Aux, rows: Range<u32>) -> Result<()> {
        if let Some(dictionary) = dictionary_of(page, aux) {
            let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
            ints::append(page, rows, &mut codes);
            return self.append_codes(page, aux, dictionary, &codes);
        }
        if let Layout::Value = page.layout() {
            return self.append_value(page, rows.len());
        }
        self.reserve(page);
        let before = self.bytes.len();
        self.offsets.clear();
        strings::decompress(page, aux, rows, &mut self.bytes, &mut self.offsets)?;
        self.append_views(page, before)
    }

    fn append_gather(&mut self, page: &Page, aux: &Aux, rows: &[u32]) -> Result<()> {
        if let Some(dictionary) = dictionary_of(page, aux) {
            let mut codes: Vec<i32> = Vec::with_capacity(rows.len());
            ints::append_gather(page, rows, &mut codes);
            return self.append_codes(page, aux, dictionary, &codes);
        }
        if let Layout::Value = page.layout() {
            return self.append_value(page, rows.len());
        }
        self.reserve(page);
        let before = self.bytes.len();
        self.offsets.clear();
        strings::decompress_gather(page, aux, rows, &mut self.bytes, &mut self.offsets)?;
        self.append_views(page, before)
    }

    /// Makes room for all values, if they are as long as those of this page, before the first.
    fn reserve(&mut self, page: &Page) {
        if self.bytes.capacity() == 0 {
            let left = self.capacity.saturating_sub(self.views.len());
            let rows = page.header().row_count.max(1) as usize;
            let bytes = left.saturating_mul(page.data().len()) / rows;
            self.bytes.reserve(bytes.min(RESERVE_MAX_BYTES));
        }
    }

    /// Appends views of the rows whose bytes were just appended from `before` on.
    fn append_views(&mut self, page: &Page, before: usize) -> Result<()> {
        if self.is_utf8 && !check_utf8(&self.bytes, &self.offsets) {
            return Err(not_utf8(page));
        }
        debug_assert_eq!(
            self.offsets.first().map(|first| *first as usize),
            Some(before)
        );
        let buffer = self.buffers.len() as u32;
        let bytes = &self.bytes;
        self.views.extend(
            self.offsets
                .windows(2)
                .map(|ends| view(bytes, ends[0] as usize, ends[1] as usize, buffer)),
        );
        if self.bytes.len() > TEXT_BUFFER_BYTES {
            self.start_buffer();
        }
        Ok(())
    }

    /// Closes the buffer that is being filled.
    fn start_buffer(&mut self) {
        if !self.bytes.is_empty() {
            self.buffers
                .push(Buffer::from_vec(std::mem::take(&mut self.bytes)));
        }
    }

    /// Appends the constant value of a page `count` times.
    fn append_value(&mut self, page: &Page, count: usize) -> Result<()> {
        let value = page.data();
        if self.is_utf8 && std::str::from_utf8(value).is_err() {
            return Err(not_utf8(page));
        }
        let start = self.bytes.len();
        if value.len() > INLINE_BYTES {
            self.bytes.extend_from_slice(value);
        }
        let view = match value.len() {
            0..=INLINE_BYTES => view(value, 0, value.len(), 0),
            _ => view(
                &self.bytes,
                start,
                self.bytes.len(),
                self.buffers.len() as u32,
            ),
        };
        self.views.resize(self.views.len() + count, view);
        if self.bytes.len() > TEXT_BUFFER_BYTES {
            self.start_buffer();
        }
        Ok(())
    }

    fn append_codes(
        &mut self,
        page: &Page,
        aux: &Aux,
        dictionary: &Dictionary,
        codes: &[i32],
    ) -> Result<()> {
        let views = dictionary.views();
        let buffer = match &self.dictionary {
            Some((known, number)) if known.as_ptr() == dictionary.buffer().as_ptr() => *number,
            _ => {
                self.start_buffer();
                let number = self.buffers.len() as u32;
                self.buffers.push(dictionary.buffer().clone());
                self.dictionary = Some((dictionary.buffer().clone(), number));
                number
            }
        };
        let mut fits = true;
        let mut look_up = |code: &i32| {
            let view = views.get(*code as u32 as usize);
            fits &= view.is_some();
            view.copied().unwrap_or_default()
        };
        if buffer == 0 {
            self.views.extend(codes.iter().map(look_up));
        } else {
            // The dictionary's views say buffer 0.
            self.views.extend(codes.iter().map(|code| {
                let view = look_up(code);
                let number = if view as u32 as usize > INLINE_BYTES {
                    buffer
                } else {
                    0
                };
                view | u128::from(number) << 64
            }));
        }
        if fits { Ok(()) } else { Err(no_fit(page, aux)) }
    }

    /// Makes the view of the long value that fills the present buffer.
    fn finish_long(&mut self) -> Result<()> {
        if i32::try_from(self.bytes.len()).is_err()
            || self.is_utf8 && std::str::from_utf8(&self.bytes).is_err()
        {
            return Err(StorageError::corrupt(
                "a value longer than a page is not UTF-8, or longer than 2 GiB",
            ));
        }
        self.views.push(view(
            &self.bytes,
            0,
            self.bytes.len(),
            self.buffers.len() as u32,
        ));
        self.start_buffer();
        Ok(())
    }

    fn finish(mut self, nulls: Option<NullBuffer>) -> ArrayRef {
        self.start_buffer();
        let views = ScalarBuffer::from(self.views);
        if self.is_utf8 {
            // SAFETY: every view was made by `view` from bounds within the buffer that it names,
            // or taken from a dictionary whose buffer it names, and the bytes were found to be
            // UTF-8 and cut at characters before.
            Arc::new(unsafe { StringViewArray::new_unchecked(views, self.buffers, nulls) })
        } else {
            // SAFETY: as above; binary needs no UTF-8.
            Arc::new(unsafe { BinaryViewArray::new_unchecked(views, self.buffers, nulls) })
        }
    }
}

fn not_utf8(page: &Page) -> StorageError {
    StorageError::corrupt(format!(
        "segment {}, page {}: text that is not UTF-8",
        page.header().segment,
        page.header().page
    ))
}

/// The bytes of values one behind the other, and where each ends.
#[derive(Debug)]
struct OffsetValues {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
}

impl Default for OffsetValues {
    fn default() -> Self {
        Self {
            bytes: Vec::new(),
            offsets: vec![0],
        }
    }
}

impl OffsetValues {
    fn append_codes(
        &mut self,
        page: &Page,
        aux: &Aux,
        dictionary: &Dictionary,
        codes: &[i32],
    ) -> Result<()> {
        plain::append_codes(dictionary, codes, &mut self.bytes, &mut self.offsets)
            .ok_or_else(|| no_fit(page, aux))
    }

    fn extend_empty(&mut self, count: usize) {
        self.offsets
            .resize(self.offsets.len() + count, self.bytes.len() as u32);
    }

    /// Ends a long value.
    fn end(&mut self) -> Result<()> {
        let end = u32::try_from(self.bytes.len()).map_err(|_| {
            StorageError::Invalid(
                "a batch of such values can't exceed 4 GiB; take fewer rows".into(),
            )
        })?;
        self.offsets.push(end);
        Ok(())
    }
}
