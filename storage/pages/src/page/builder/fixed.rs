//! Values of a fixed number of bytes, lists of floats among them.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBufferBuilder, FixedSizeListArray, Float32Array,
};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Float32Type};

use super::super::auxiliary::{Aux, Dictionary};
use super::super::layout::Layout;
use super::super::strings::{self, is_set, no_fit};
use super::super::{Encoding, Page, nested};
use super::finish_array;
use super::rows::Rows;
use crate::Result;

/// Values of a fixed size.
#[derive(Debug)]
pub(super) struct FixedBytes {
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
    pub fn new(data_type: &DataType, size: usize, capacity: usize) -> Self {
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

    pub fn append(&mut self, page: &Page, aux: &Aux, rows: &Rows<'_>) -> Result<()> {
        let (data, size) = (page.data(), self.size);
        match page.layout() {
            Layout::Fixed { size: stored } if *stored == size => {
                rows.append_fixed(data, size, |values| {
                    self.bytes.extend_from_slice(values);
                    Ok(())
                })
            }
            Layout::Value if data.len() == size => {
                (0..rows.len()).for_each(|_| self.bytes.extend_from_slice(data));
                Ok(())
            }
            Layout::Packed(_) => {
                let (dictionary, codes) = rows.codes(page, aux).ok_or_else(|| no_fit(page, aux))?;
                self.append_codes(dictionary, &codes)
                    .ok_or_else(|| no_fit(page, aux))
            }
            Layout::Text(_) => self.append_nested(page, aux, rows),
            _ => Err(no_fit(page, aux)),
        }
    }

    /// Appends a dictionary's values; `None` for a code that it lacks, or a value of another size.
    fn append_codes(&mut self, dictionary: &Dictionary, codes: &[i32]) -> Option<()> {
        for code in codes {
            let code = usize::try_from(*code).ok();
            let code = code.filter(|code| *code < dictionary.len())?;
            let value = dictionary.value(code);
            if value.len() != self.size {
                return None;
            }
            self.bytes.extend_from_slice(value);
        }
        Some(())
    }

    /// Appends lists that are stored as nested values.
    fn append_nested(&mut self, page: &Page, aux: &Aux, rows: &Rows<'_>) -> Result<()> {
        let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
        rows.append_texts(page, aux, &mut bytes, &mut offsets)?;
        let items = self.items.as_mut().ok_or_else(|| no_fit(page, aux))?;
        let validity = page.validity();
        let mut nulls = BooleanBufferBuilder::new(rows.len());
        rows.for_each(|row| nulls.append(validity.is_none_or(|bits| is_set(bits, row))));
        let nulls = Some(NullBuffer::new(nulls.finish()));
        let list = nested::decode(&items.data_type, &bytes, &offsets, nulls)?;
        items.append(&mut self.bytes, list.as_fixed_size_list());
        Ok(())
    }

    /// Fills the places of `count` NULLs.
    pub fn extend_default(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + self.size * count, 0);
    }

    /// Appends a part of a value longer than a page.
    pub fn append_part(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        match (page.header().encoding, &mut self.items) {
            (Encoding::Raw, _) => strings::append_part(page, aux, &mut self.bytes),
            (Encoding::RawStr | Encoding::Fsst, Some(items)) => {
                strings::append_part(page, aux, &mut items.long)
            }
            _ => Err(no_fit(page, aux)),
        }
    }

    /// Ends a value longer than a page, number `length - 1`; `None` if it has the wrong size.
    pub fn finish_long(&mut self, length: usize) -> Option<()> {
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

    pub fn finish(
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
