//! Pages of binary values of one size.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, FixedSizeBinaryArray};
use arrow::datatypes::DataType;

use super::PagedArray;
use crate::page::{Aux, Page, decode, flags};
use crate::store::PageReader;
use crate::{Result, StorageError};

/// A data page of binary values of one size that was read and fits its place.
#[derive(Debug)]
pub struct BytesPage {
    first: u64,
    size: usize,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    /// They lie in the page as they are.
    Plain(Arc<Page>, usize),
    Decoded(FixedSizeBinaryArray),
}

impl PagedArray {
    /// A data page of binary values of `size` bytes.
    ///
    /// # Errors
    /// As [`Self::page`].
    pub fn bytes_page(&self, reader: &mut PageReader, page: u32, size: usize) -> Result<BytesPage> {
        let (chunk, place) = self.place(page);
        let page_read = self.read_page(reader, chunk, place)?;
        self.bytes_of(reader, page, page_read, size)
    }

    /// The same of a page that [`Self::announce`] gave.
    pub fn bytes_of(
        &self,
        reader: &mut PageReader,
        number: u32,
        page: Arc<Page>,
        size: usize,
    ) -> Result<BytesPage> {
        let (chunk, place) = self.place(number);
        let corrupt = || {
            let label = &self.chunks[chunk as usize].run.label;
            StorageError::corrupt(format!(
                "{label}, chunk {chunk}, page {place}: no values of {size} bytes as the index has them"
            ))
        };
        let header = page.header();
        let is_whole = !header.has(flags::CONTINUES) && !page.is_continuation();
        let rows = self.zone(number).row_count;
        if !is_whole || header.row_count != rows || header.null_count != 0 {
            return Err(corrupt());
        }
        let bytes = if page.validity().is_none() && page.plain_values(size).is_some() {
            Bytes::Plain(page, size)
        } else {
            let data_type = DataType::FixedSizeBinary(i32::try_from(size).unwrap_or(i32::MAX));
            let aux = match self.chunks[chunk as usize].aux_pages {
                0 => Aux::None,
                _ => Aux::parse(&*self.read_page(reader, chunk, 0)?, &data_type)?,
            };
            let values = decode(&page, &aux, &data_type, 0..rows)?;
            let values = values.as_fixed_size_binary_opt().ok_or_else(corrupt)?;
            if values.value_length() as usize != size || values.null_count() > 0 {
                return Err(corrupt());
            }
            Bytes::Decoded(values.clone())
        };
        let first = self.starts[number as usize];
        let page = BytesPage { first, bytes, size };
        if page.values().len() != rows as usize * size {
            return Err(corrupt());
        }
        Ok(page)
    }

    /// The greatest zone key of a data page.
    pub fn max(&self, page: u32) -> i64 {
        self.zone(page).max
    }

    /// Has a data page read ahead; gives it if it is in memory.
    ///
    /// # Errors
    /// Those of [`PageReader::prefetch`].
    pub fn announce(&self, reader: &mut PageReader, page: u32) -> Result<Option<Arc<Page>>> {
        let (chunk, place) = self.place(page);
        let cached = self.cached(reader, chunk, place);
        if cached.is_none() {
            reader.prefetch(&self.chunks[chunk as usize].run, place..place + 1)?;
        }
        Ok(cached)
    }

    /// The data pages that have `positions`.
    ///
    /// # Errors
    /// `Invalid` for positions beyond the end.
    pub fn pages_with(&self, positions: &Range<u64>) -> Result<Range<u32>> {
        if positions.is_empty() {
            return Ok(0..0);
        }
        if positions.end > self.len() {
            return Err(self.beyond(positions.end - 1));
        }
        Ok(self.page_of(positions.start)..self.page_of(positions.end - 1) + 1)
    }

    /// Has the pages with `positions` read ahead.
    ///
    /// # Errors
    /// `Invalid` for positions beyond the end; those of [`PageReader::prefetch`].
    pub fn prefetch(&self, reader: &mut PageReader, positions: &Range<u64>) -> Result<()> {
        let Range { mut start, end } = self.pages_with(positions)?;
        while start < end {
            let (chunk, place) = self.place(start);
            let next = end.min(self.first_pages[chunk as usize + 1]);
            let run = &self.chunks[chunk as usize].run;
            reader.prefetch(run, place..place + next - start)?;
            start = next;
        }
        Ok(())
    }
}

impl BytesPage {
    /// All its values, one after the other.
    pub fn values(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Plain(page, size) => page.plain_values(*size).unwrap_or_default(),
            Bytes::Decoded(values) => values.value_data(),
        }
    }

    /// Those at the positions that it has of `wanted`, and the first of these.
    pub fn at(&self, wanted: &Range<u64>) -> (u64, &[u8]) {
        let values = self.values();
        let end = self.first + (values.len() / self.size) as u64;
        let (start, end) = (wanted.start.max(self.first), wanted.end.min(end));
        let place = |position: u64| (position - self.first) as usize * self.size;
        (start, &values[place(start)..place(end.max(start))])
    }
}
