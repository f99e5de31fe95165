//! Values of any length one behind the other: plain text, and nested values before they are decoded.

use super::super::auxiliary::Aux;
use super::super::strings::{self, no_fit};
use super::super::{Page, plain};
use super::rows::Rows;
use crate::{Result, StorageError};

/// The bytes of values one behind the other, and where each ends.
#[derive(Debug)]
pub(super) struct OffsetValues {
    pub bytes: Vec<u8>,
    pub offsets: Vec<u32>,
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
    /// Appends values of a page that may have codes of a dictionary.
    pub fn append(&mut self, page: &Page, aux: &Aux, rows: &Rows<'_>) -> Result<()> {
        match rows.codes(page, aux) {
            Some((dictionary, codes)) => {
                plain::append_codes(dictionary, &codes, &mut self.bytes, &mut self.offsets)
                    .ok_or_else(|| no_fit(page, aux))
            }
            None => rows.append_texts(page, aux, &mut self.bytes, &mut self.offsets),
        }
    }

    /// Appends a part of a value longer than a page.
    pub fn append_part(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        strings::append_part(page, aux, &mut self.bytes)
    }

    /// Fills the places of `count` NULLs.
    pub fn extend_empty(&mut self, count: usize) {
        self.offsets
            .resize(self.offsets.len() + count, self.bytes.len() as u32);
    }

    /// Ends a value longer than a page.
    pub fn end_long(&mut self) -> Result<()> {
        let end = u32::try_from(self.bytes.len()).map_err(|_| {
            StorageError::Invalid(
                "a batch of such values can't exceed 4 GiB; take fewer rows".into(),
            )
        })?;
        self.offsets.push(end);
        Ok(())
    }
}
