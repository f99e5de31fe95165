//! Vectors of Arrow arrays.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::DataType;

use crate::{Result, StorageError};

/// The vectors of an array: their bytes, one after the other, and which of them are NULL or have
/// an element that is.
#[derive(Debug)]
pub(crate) struct FixedVectors {
    bytes: Buffer,
    rows: Option<NullBuffer>,
    elements: Option<NullBuffer>,
    length: usize,
}

impl FixedVectors {
    /// Of an array of FixedSizeBinary, or of FixedSizeList of Float32.
    pub fn of(array: &ArrayRef) -> Result<Self> {
        let unsuited =
            || StorageError::Invalid(format!("{} is no type of vectors", array.data_type()));
        let rows = array.nulls().cloned();
        let part = |data: &ArrayData, size: usize| {
            let (start, length) = (data.offset() * size, data.len() * size);
            data.buffers()[0].slice_with_length(start, length)
        };
        Ok(match array.data_type() {
            DataType::FixedSizeBinary(size) => Self {
                bytes: part(&array.to_data(), *size as usize),
                rows,
                elements: None,
                length: *size as usize,
            },
            DataType::FixedSizeList(child, size) if *child.data_type() == DataType::Float32 => {
                let lists = array.as_fixed_size_list();
                let length = *size as usize;
                let start = lists.value_offset(0) as usize;
                let elements = lists.values().slice(start, lists.len() * length);
                Self {
                    bytes: part(&elements.to_data(), 4),
                    rows,
                    elements: elements.nulls().cloned().filter(|n| n.null_count() > 0),
                    length,
                }
            }
            _ => return Err(unsuited()),
        })
    }

    /// The values, one vector after the other.
    pub fn values(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the vector at `row` and all its elements are not NULL.
    pub fn is_valid(&self, row: usize) -> bool {
        let elements = row * self.length..(row + 1) * self.length;
        self.rows.as_ref().is_none_or(|rows| rows.is_valid(row))
            && self
                .elements
                .as_ref()
                .is_none_or(|nulls| elements.into_iter().all(|element| nulls.is_valid(element)))
    }

    /// Whether one of them may not be valid.
    pub fn has_nulls(&self) -> bool {
        self.rows.is_some() || self.elements.is_some()
    }
}
