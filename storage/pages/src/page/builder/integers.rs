//! Integers, whatever they are the integers of: decimals, dates, times.

use arrow::buffer::Buffer;

use super::super::auxiliary::{Aux, Dictionary};
use super::super::layout::Layout;
use super::super::strings::no_fit;
use super::super::{Encoding, Page, ints};
use super::rows::Rows;
use crate::Result;

/// Integers of 1, 2, 4, 8 or 16 bytes; signed and unsigned share their bits.
#[derive(Debug)]
pub(in crate::page) enum FixedValues {
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

    pub(super) fn extend_default(&mut self, count: usize) {
        for_integers!(self, values => values.resize(values.len() + count, 0));
    }

    pub(super) fn append(&mut self, page: &Page, aux: &Aux, rows: &Rows<'_>) -> Result<()> {
        if let Some((dictionary, codes)) = rows.codes(page, aux) {
            return self.append_codes(page, aux, dictionary, &codes);
        }
        match page.layout() {
            Layout::Fixed { size } => rows.append_fixed(page.data(), *size, |values| {
                self.append_raw(page, aux, *size, values)
            }),
            Layout::Value => (0..rows.len())
                .try_for_each(|_| self.append_raw(page, aux, page.data().len(), page.data())),
            _ if ints::is_integer_page(page) && page.header().encoding != Encoding::Dict => {
                for_integers!(self, values => rows.append_integers(page, values));
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
