//! One row of a segment, value by value.

use std::sync::Arc;

use arrow::datatypes::DataType;

use super::{Chunk, read_rows};
use crate::page::{Page, RowValues};
use crate::store::{PageAddress, PageReader, PageRun};
use crate::{Result, StorageError};

/// Reads one row of a segment. Columns that share pages look for the row once, and take its page once,
/// where they come one after the other.
pub(crate) struct RowReader<'a> {
    reader: &'a mut PageReader,
    row: u32,
    /// The column read last, and where the row is in it.
    last: Option<(&'a Chunk, RowPlace)>,
    /// The page with parts that was taken last: its run, its number there, and itself.
    group: Option<(PageAddress, u32, Arc<Page>)>,
}

/// Where a row is in a chunk.
#[derive(Clone, Copy)]
struct RowPlace {
    /// The number of its data page.
    page: u32,
    /// The row's number within the page.
    row: u32,
    /// Whether its value goes on in the next page.
    is_long: bool,
}

impl<'a> RowReader<'a> {
    /// For a row of this number.
    pub fn new(reader: &'a mut PageReader, row: u32) -> Self {
        Self {
            reader,
            row,
            last: None,
            group: None,
        }
    }

    /// Adds the row's value in a chunk to `values`.
    ///
    /// # Errors
    /// The device's errors; `Corrupt`, which names the page; `Invalid` for a row beyond the chunk.
    pub fn read(
        &mut self,
        chunk: &'a Chunk,
        data_type: &DataType,
        values: &mut RowValues,
    ) -> Result<()> {
        let place = self.place_in(chunk)?;
        if place.is_long {
            let value = read_rows(self.reader, &[(chunk, data_type)], &[self.row])?;
            value.into_iter().for_each(|value| values.push_array(value));
            return Ok(());
        }
        let at = chunk.run.place_of(chunk.aux_pages + place.page);
        let Some(part) = at.part else {
            let page = self.reader.get(at.run, at.page)?;
            return self.push(chunk, data_type, &page, place.row, values);
        };
        let group = self.group(at.run, at.page)?;
        let page = group.part(part, &chunk.run.label)?;
        self.push(chunk, data_type, &page, place.row, values)
    }

    /// Adds a value of a page, with the auxiliary page if it takes that.
    fn push(
        &mut self,
        chunk: &Chunk,
        data_type: &DataType,
        page: &Page,
        row: u32,
        values: &mut RowValues,
    ) -> Result<()> {
        let aux = match page.header().encoding.uses_aux() && chunk.aux_pages > 0 {
            true => Some(self.reader.get(&chunk.run, 0)?),
            false => None,
        };
        values.push(data_type, page, aux.as_deref(), row)
    }

    fn place_in(&mut self, chunk: &'a Chunk) -> Result<RowPlace> {
        let place = match self.last {
            Some((last, place)) if last.shares_pages_with(chunk) => place,
            _ => self.look_for(chunk)?,
        };
        self.last = Some((chunk, place));
        Ok(place)
    }

    fn look_for(&mut self, chunk: &Chunk) -> Result<RowPlace> {
        let index = chunk.page_index(self.reader)?;
        let Some(page) = index.page_of_row(self.row) else {
            let (label, row) = (&chunk.run.label, self.row);
            return Err(StorageError::Invalid(format!(
                "{label}: row {row} is beyond its end"
            )));
        };
        let zones = index.zones();
        Ok(RowPlace {
            page: page as u32,
            row: self.row - zones[page].first_row,
            is_long: zones.get(page + 1).is_some_and(|next| next.row_count == 0),
        })
    }

    /// A page with parts.
    fn group(&mut self, run: &PageRun, number: u32) -> Result<Arc<Page>> {
        match &self.group {
            Some((first, page, group)) if (*first, *page) == (run.first, number) => {
                Ok(Arc::clone(group))
            }
            _ => {
                let group = self.reader.get(run, number)?;
                self.group = Some((run.first, number, Arc::clone(&group)));
                Ok(group)
            }
        }
    }
}
