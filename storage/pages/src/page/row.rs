//! The values of one row.
//!
//! For one row a builder and an array of each column take many times as long as the values, and
//! parsing a column's whole dictionary or symbol table longer still. Here a value is copied from where
//! its page has it, and of an auxiliary page only that is looked at which the value is made of.

use std::ops::Range;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;

use super::auxiliary::Aux;
use super::builder::decode;
use super::header::flags;
use super::layout::Layout;
use super::strings::{self, is_set, no_fit};
use super::{Encoding, PAYLOAD_SIZE_BYTES, Page, ints};
use crate::{Result, StorageError};

/// The values of a row, in the order in which they were added.
#[derive(Debug, Default)]
pub struct RowValues {
    values: Vec<Held>,
    text: String,
    binary: Vec<u8>,
    /// Text that was compressed, before it is known to be UTF-8.
    decompressed: Vec<u8>,
}

/// A value of a row.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// NULL.
    Null,
    /// Of a column of booleans.
    Boolean(bool),
    /// Of integers, but for those of 64 bits without a sign.
    Integer(i64),
    /// Of integers of 64 bits without a sign.
    Unsigned(u64),
    /// Of floats of 32 or 64 bits.
    Float(f64),
    /// Of text.
    Text(&'a str),
    /// Of binary.
    Binary(&'a [u8]),
    /// Of another type, or longer than a page: an array of one value of the column's type.
    Array(&'a ArrayRef),
}

#[derive(Debug)]
enum Held {
    Null,
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(Range<usize>),
    Binary(Range<usize>),
    Array(ArrayRef),
}

impl RowValues {
    /// None yet, with room for so many.
    pub fn with_capacity(values: usize) -> Self {
        Self {
            values: Vec::with_capacity(values),
            ..Self::default()
        }
    }

    /// The value at a place, if so many were added.
    pub fn get(&self, place: usize) -> Option<Value<'_>> {
        self.values.get(place).map(|value| self.value_of(value))
    }

    /// All values.
    pub fn iter(&self) -> impl Iterator<Item = Value<'_>> {
        self.values.iter().map(|value| self.value_of(value))
    }

    fn value_of<'a>(&'a self, value: &'a Held) -> Value<'a> {
        match value {
            Held::Null => Value::Null,
            Held::Boolean(value) => Value::Boolean(*value),
            Held::Integer(value) => Value::Integer(*value),
            Held::Unsigned(value) => Value::Unsigned(*value),
            Held::Float(value) => Value::Float(*value),
            Held::Text(place) => Value::Text(&self.text[place.clone()]),
            Held::Binary(place) => Value::Binary(&self.binary[place.clone()]),
            Held::Array(array) => Value::Array(array),
        }
    }

    /// Adds the value in `row` of a page of a column of this type; `aux` is the chunk's auxiliary
    /// page, without which pages can be read whose encoding does not [use it](Encoding::uses_aux).
    ///
    /// # Errors
    /// `Invalid` for a row that the page does not have and for a value longer than a page, `Corrupt`
    /// when the page does not fit the type or its auxiliary page.
    pub fn push(
        &mut self,
        data_type: &DataType,
        page: &Page,
        aux: Option<&Page>,
        row: u32,
    ) -> Result<()> {
        check(page, row)?;
        let is_null = page.validity().is_some_and(|bits| !is_set(bits, row));
        let value = match is_null {
            true => Held::Null,
            false => self.hold(data_type, page, aux, row)?,
        };
        self.values.push(value);
        Ok(())
    }

    /// Adds the first value of an array.
    pub fn push_array(&mut self, array: ArrayRef) {
        self.values.push(match array.is_null(0) {
            true => Held::Null,
            false => Held::Array(array),
        });
    }

    /// A value that is not NULL.
    fn hold(
        &mut self,
        data_type: &DataType,
        page: &Page,
        aux: Option<&Page>,
        row: u32,
    ) -> Result<Held> {
        let held = match data_type {
            DataType::Utf8View => return self.hold_text(page, aux, row).map(Held::Text),
            DataType::BinaryView => return self.hold_binary(page, aux, row).map(Held::Binary),
            DataType::Boolean => integer(page, aux, row).map(|value| Held::Boolean(value != 0)),
            DataType::UInt64 => integer(page, aux, row).map(|value| Held::Unsigned(value as u64)),
            DataType::Float64 => fixed(page, aux, row)
                .map(f64::from_le_bytes)
                .map(Held::Float),
            DataType::Float32 => {
                fixed(page, aux, row).map(|bytes| Held::Float(f32::from_le_bytes(bytes).into()))
            }
            other if other.is_integer() => integer(page, aux, row).map(Held::Integer),
            _ => None,
        };
        match held {
            Some(held) => Ok(held),
            None => {
                let aux = aux.map_or(Ok(Aux::None), |aux| Aux::parse(aux, data_type))?;
                decode(page, &aux, data_type, row..row + 1).map(Held::Array)
            }
        }
    }

    fn hold_text(&mut self, page: &Page, aux: Option<&Page>, row: u32) -> Result<Range<usize>> {
        self.decompressed.clear();
        let bytes = bytes(page, aux, row, &mut self.decompressed)?;
        let text = std::str::from_utf8(bytes).map_err(|_| {
            let header = page.header();
            let (segment, page) = (header.segment, header.page);
            StorageError::corrupt(format!(
                "segment {segment}, page {page}: text that is not UTF-8"
            ))
        })?;
        if self.text.capacity() == 0 {
            // A row's share of the page, which is that of all columns where they share it.
            self.text.reserve(PAYLOAD_SIZE_BYTES / page.row_count());
        }
        let start = self.text.len();
        self.text.push_str(text);
        Ok(start..self.text.len())
    }

    fn hold_binary(&mut self, page: &Page, aux: Option<&Page>, row: u32) -> Result<Range<usize>> {
        self.decompressed.clear();
        let bytes = bytes(page, aux, row, &mut self.decompressed)?;
        let start = self.binary.len();
        self.binary.extend_from_slice(bytes);
        Ok(start..self.binary.len())
    }
}

/// Checks that a page has a row, with a value that is not longer than it.
fn check(page: &Page, row: u32) -> Result<()> {
    let header = page.header();
    if row >= header.row_count || header.has(flags::CONTINUES) || header.has(flags::AUXILIARY) {
        return Err(StorageError::Invalid(format!(
            "row {row} of a page of {} does not stand in it as a whole",
            header.row_count
        )));
    }
    Ok(())
}

/// The bytes of text or binary: `decompressed` takes those that the page does not have as they are.
fn bytes<'a>(
    page: &'a Page,
    aux: Option<&'a Page>,
    row: u32,
    decompressed: &'a mut Vec<u8>,
) -> Result<&'a [u8]> {
    let data = page.data();
    match (page.layout(), page.header().encoding, aux) {
        (Layout::Value, ..) => Ok(data),
        (Layout::Text(text), Encoding::RawStr, _) => Ok(text.value(data, row as usize)),
        (Layout::Text(text), Encoding::Fsst, Some(symbols)) => {
            strings::decompress_value(symbols, text.value(data, row as usize), decompressed)?;
            Ok(decompressed)
        }
        (Layout::Packed(_), Encoding::Dict, Some(dictionary)) => {
            let entry = entry(page, dictionary, row);
            match (entry, dictionary.layout()) {
                (Some(entry), Layout::Text(text)) => Ok(text.value(dictionary.data(), entry)),
                _ => Err(no_fit(page, &Aux::None)),
            }
        }
        _ => Err(no_fit(page, &Aux::None)),
    }
}

/// An integer, or a boolean as one; `None` where it is not stored as a number of up to 64 bits.
fn integer(page: &Page, aux: Option<&Page>, row: u32) -> Option<i64> {
    match (page.header().encoding, aux) {
        (Encoding::Dict, Some(dictionary)) => {
            fixed_at(dictionary, entry(page, dictionary, row)?).map(i64::from_le_bytes)
        }
        (Encoding::Dict, None) => None,
        _ => ints::is_integer_page(page).then(|| ints::value(page, row)),
    }
}

/// A value of `N` bytes; `None` where it is not stored as that.
fn fixed<const N: usize>(page: &Page, aux: Option<&Page>, row: u32) -> Option<[u8; N]> {
    match (page.layout(), page.header().encoding, aux) {
        (Layout::Value, ..) => page.data().try_into().ok(),
        (Layout::Fixed { .. }, ..) => fixed_at(page, row as usize),
        (Layout::Packed(_), Encoding::Dict, Some(dictionary)) => {
            fixed_at(dictionary, entry(page, dictionary, row)?)
        }
        _ => None,
    }
}

/// The same of a page that has one value behind the other.
fn fixed_at<const N: usize>(page: &Page, row: usize) -> Option<[u8; N]> {
    match *page.layout() {
        Layout::Fixed { size } if size == N => page.data().as_chunks().0.get(row).copied(),
        _ => None,
    }
}

/// The number of a row's entry in the chunk's dictionary, which has it.
fn entry(page: &Page, dictionary: &Page, row: u32) -> Option<usize> {
    let entry = usize::try_from(ints::value(page, row)).ok()?;
    let has_it = dictionary.header().has(flags::AUXILIARY) && entry < dictionary.row_count();
    has_it.then_some(entry)
}
