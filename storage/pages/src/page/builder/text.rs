//! Text and bytes as views.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewArray, StringViewArray};
use arrow::buffer::{Buffer, NullBuffer, ScalarBuffer};

use super::super::Page;
use super::super::auxiliary::{Aux, Dictionary};
use super::super::layout::Layout;
use super::super::strings::{self, no_fit};
use super::super::text::{INLINE_BYTES, check_utf8, view};
use super::rows::Rows;
use crate::{Result, StorageError};

/// Room for text that is taken at once at most: the first page may be unlike the others.
const RESERVE_MAX_BYTES: usize = 1 << 20;
/// Bytes at which a buffer of text is closed and the next begun; Arrow addresses 2 GiB.
const TEXT_BUFFER_BYTES: usize = 1 << 30;

/// Views, and the buffers that they point into.
#[derive(Debug)]
pub(super) struct TextValues {
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
    pub fn new(is_utf8: bool, capacity: usize) -> Self {
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

    pub fn append(&mut self, page: &Page, aux: &Aux, rows: &Rows<'_>) -> Result<()> {
        if let Some((dictionary, codes)) = rows.codes(page, aux) {
            return self.append_codes(page, aux, dictionary, &codes);
        }
        if let Layout::Value = page.layout() {
            return self.append_value(page, rows.len());
        }
        self.reserve(page);
        let before = self.bytes.len();
        self.offsets.clear();
        rows.append_texts(page, aux, &mut self.bytes, &mut self.offsets)?;
        self.append_views(page, before)
    }

    /// Fills the places of `count` NULLs.
    pub fn extend_empty(&mut self, count: usize) {
        self.views.resize(self.views.len() + count, 0);
    }

    /// Begins a value longer than a page, in a buffer of its own.
    pub fn start_long(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        self.start_buffer();
        self.append_part(page, aux)
    }

    /// Appends a part of a value longer than a page.
    pub fn append_part(&mut self, page: &Page, aux: &Aux) -> Result<()> {
        strings::append_part(page, aux, &mut self.bytes)
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
    pub fn finish_long(&mut self) -> Result<()> {
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

    pub fn finish(mut self, nulls: Option<NullBuffer>) -> ArrayRef {
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
