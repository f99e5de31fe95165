//! Where the page indexes of chunks are: small ones in memory, with the chunks; those of large
//! segments and index parts in pages of their own, read when they are wanted, so that what a
//! database keeps in memory grows with its chunks and not with its pages.

use std::sync::Arc;

use arrow::array::{Array, BinaryViewArray};
use arrow::datatypes::DataType;
use prost::Message;

use super::{Chunk, Segment};
use crate::flash::PAGE_SIZE_BYTES;
use crate::page::{
    Aux, ChunkIdentity, ColumnBuilder, PageIdentity, PageIndex, PageZone, SEGMENT_ROWS,
    encode_chunk, flags,
};
use crate::store::{PageAddress, PageReader, PageRun, PageWriter, RunPart};
use crate::{Result, StorageError};

/// The page indexes of chunks that are written together stay in memory up to so many data pages.
const RESIDENT_PAGES: usize = 32;

/// The number that pages of page indexes have in the place of a column's.
const COLUMN_GROUP: u16 = u16::MAX;

/// The number that pages that columns share have there.
const SHARED_COLUMN_GROUP: u16 = u16::MAX - 1;

/// Where the page index of a chunk is.
#[derive(Debug, Clone)]
pub(super) enum Place {
    Memory(Arc<PageIndex>),
    /// A value of those that one run of pages holds.
    Pages {
        run: Arc<PageRun>,
        row: u32,
    },
}

/// A chunk, as the catalog keeps it: with its page index as lists (`spans`, max − min and wrapping,
/// are short varints) or, where that is in pages, with the totals of its zone maps. A page index in
/// pages is such a record of nothing but the lists.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ChunkRecord {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    #[prost(uint32, tag = "2")]
    pub card: u32,
    #[prost(uint64, tag = "3")]
    pub first_page: u64,
    #[prost(uint32, tag = "4")]
    pub aux_pages: u32,
    #[prost(uint32, repeated, tag = "5")]
    pub row_counts: Vec<u32>,
    /// Empty: no NULL.
    #[prost(uint32, repeated, tag = "6")]
    pub null_counts: Vec<u32>,
    #[prost(sint64, repeated, tag = "7")]
    pub mins: Vec<i64>,
    #[prost(uint64, repeated, tag = "8")]
    pub spans: Vec<u64>,
    #[prost(message, optional, tag = "9")]
    pub totals: Option<Totals>,
    /// Its pages are parts of those that the segment's columns share: it says nothing of where they
    /// are.
    #[prost(bool, tag = "10")]
    pub is_shared: bool,
}

impl ChunkRecord {
    /// The lists of an index, and nothing else.
    pub fn of_index(index: &PageIndex) -> Self {
        let zones = index.zones();
        let has_null = zones.iter().any(|zone| zone.null_count > 0);
        let nulls = if has_null { zones } else { &[] };
        Self {
            row_counts: zones.iter().map(|z| z.row_count).collect(),
            null_counts: nulls.iter().map(|z| z.null_count).collect(),
            mins: zones.iter().map(|z| z.min).collect(),
            spans: zones
                .iter()
                .map(|z| z.max.wrapping_sub(z.min) as u64)
                .collect(),
            ..Self::default()
        }
    }

    /// The zone maps that its lists say; `None` where they contradict themselves.
    pub fn zones(&self) -> Option<Vec<PageZone>> {
        let pages = self.row_counts.len();
        let has_null = !self.null_counts.is_empty();
        if self.mins.len() != pages
            || self.spans.len() != pages
            || has_null && self.null_counts.len() != pages
        {
            return None;
        }
        let mut zones = Vec::with_capacity(pages);
        let mut first_row = 0u32;
        for (page, &row_count) in self.row_counts.iter().enumerate() {
            let min = self.mins[page];
            zones.push(PageZone {
                first_row,
                row_count,
                null_count: if has_null { self.null_counts[page] } else { 0 },
                min,
                max: min.wrapping_add(self.spans[page] as i64),
            });
            first_row = first_row.checked_add(row_count)?;
        }
        Some(zones)
    }
}

/// The first page of the page indexes of a segment or part that has this page.
pub(crate) fn page_index_identity(of: PageIdentity) -> PageIdentity {
    PageIdentity {
        column_group: COLUMN_GROUP,
        page: 0,
        ..of
    }
}

/// The first page of those that columns of a segment share.
pub(crate) fn shared_identity(of: PageIdentity) -> PageIdentity {
    PageIdentity {
        column_group: SHARED_COLUMN_GROUP,
        page: 0,
        ..of
    }
}

/// Puts the page indexes of chunks that are written together into pages, unless they are small.
///
/// # Errors
/// Those of [`PageWriter::append`].
pub(crate) fn write_page_indexes(
    writer: &mut PageWriter,
    label: &Arc<str>,
    chunks: &mut [Chunk],
) -> Result<()> {
    let pages: usize = chunks.iter().map(Chunk::data_pages).sum();
    let Some(first) = chunks.first().map(|chunk| chunk.run.identity) else {
        return Ok(());
    };
    if pages <= RESIDENT_PAGES || chunks.len() > SEGMENT_ROWS {
        return Ok(());
    }
    let lists = chunks.iter().filter_map(|chunk| match &chunk.index {
        Place::Memory(index) => Some(ChunkRecord::of_index(index).encode_to_vec()),
        Place::Pages { .. } => None,
    });
    let values = BinaryViewArray::from_iter_values(lists);
    let identity = ChunkIdentity {
        table: first.table,
        segment: first.segment,
        column_group: COLUMN_GROUP,
        generation: first.generation,
    };
    // So many long lists that their pages can't be numbered stay where they are.
    let encoded = match encode_chunk(&values, identity) {
        Err(StorageError::Invalid(_)) => return Ok(()),
        encoded => encoded?,
    };
    let run = Arc::new(PageRun {
        count: encoded.pages.len() as u32,
        first: writer.append(encoded.pages)?,
        identity: identity.first_page(),
        label: Arc::clone(label),
        part: None,
    });
    for (row, chunk) in (0..).zip(chunks) {
        chunk.index = Place::Pages {
            run: Arc::clone(&run),
            row,
        };
    }
    Ok(())
}

impl Chunk {
    /// The zone map of each data page: data page `i` is page `aux_pages + i` of the run. One whose
    /// own pages are damaged is made again from the chunk's.
    ///
    /// # Errors
    /// The device's errors; `Corrupt`, which names the page.
    pub fn page_index(&self, reader: &mut PageReader) -> Result<Arc<PageIndex>> {
        if let Place::Memory(index) = &self.index {
            return Ok(Arc::clone(index));
        }
        if let Some(known) = reader.cached_index(&self.run.identity) {
            return Ok(known);
        }
        let index = match self.stored_page_index(reader) {
            Err(error @ StorageError::Corrupt { .. }) => {
                let Some(index) = self.page_index_of_headers(reader) else {
                    return Err(error);
                };
                log::error!("{error}; it is made again from {}", self.run.label);
                Arc::new(index)
            }
            index => index?,
        };
        reader.cache_index(self.run.identity, &index);
        Ok(index)
    }

    /// The same as it is stored.
    ///
    /// # Errors
    /// Those of [`Self::page_index`].
    pub(crate) fn stored_page_index(&self, reader: &mut PageReader) -> Result<Arc<PageIndex>> {
        let (run, row) = match &self.index {
            Place::Memory(index) => return Ok(Arc::clone(index)),
            Place::Pages { run, row } => (run, *row),
        };
        let lists = ChunkRecord::decode(read_value(reader, run, row)?.as_slice());
        let zones = lists.ok().and_then(|lists| lists.zones());
        let index = zones.map(PageIndex::new);
        let index = index.filter(|index| self.is_of(index)).ok_or_else(|| {
            StorageError::corrupt(format!(
                "{}: what it says of {} does not fit",
                run.label, self.run.label
            ))
        })?;
        Ok(Arc::new(index))
    }

    /// The same as the headers of its pages have it; `None` where they can't be read.
    fn page_index_of_headers(&self, reader: &mut PageReader) -> Option<PageIndex> {
        let pages = self.aux_pages..self.run.count;
        reader.prefetch(&self.run, pages.clone()).ok()?;
        let mut first_row = 0u32;
        let mut zones = Vec::with_capacity(pages.len());
        for page in pages {
            let page = reader.get(&self.run, page).ok()?;
            let header = page.header();
            zones.push(PageZone {
                first_row,
                row_count: header.row_count,
                null_count: header.null_count,
                min: header.min,
                max: header.max,
            });
            first_row = first_row.checked_add(header.row_count)?;
        }
        let index = PageIndex::new(zones);
        self.is_of(&index).then_some(index)
    }

    /// The chunk with its runs where `place_of` says.
    pub(crate) fn moved(&self, place_of: &impl Fn(PageAddress) -> PageAddress) -> Self {
        let moved_run = |run: &PageRun| PageRun {
            first: place_of(run.first),
            ..run.clone()
        };
        let moved_part = |part: &Arc<RunPart>| {
            Arc::new(RunPart {
                run: Arc::new(moved_run(&part.run)),
                ..part.as_ref().clone()
            })
        };
        let moved = |run: &PageRun| PageRun {
            part: run.part.as_ref().map(moved_part),
            ..moved_run(run)
        };
        Self {
            run: moved(&self.run),
            index: match &self.index {
                Place::Pages { run, row } => Place::Pages {
                    run: Arc::new(moved(run)),
                    row: *row,
                },
                index => index.clone(),
            },
            ..*self
        }
    }

    /// Its own pages (those that chunks share count for the first of them) and, for the first chunk
    /// of those whose page indexes are written together, the pages of these.
    pub fn runs(&self) -> impl Iterator<Item = &PageRun> {
        let pages = match &self.run.part {
            None => Some(&self.run),
            Some(part) if part.number == 0 => Some(part.run.as_ref()),
            Some(_) => None,
        };
        let indexes = match &self.index {
            Place::Pages { run, row: 0 } => Some(run.as_ref()),
            _ => None,
        };
        pages.into_iter().chain(indexes)
    }

    /// Bytes on flash; of pages that chunks share, each has as much.
    pub(crate) fn size_bytes(&self) -> u64 {
        let pages = PAGE_SIZE_BYTES as u64;
        match &self.run.part {
            None => u64::from(self.run.count) * pages,
            Some(part) => u64::from(part.run.count) * pages / u64::from(part.parts.max(1)),
        }
    }

    /// The pages that hold the chunk's page index and those of others.
    pub(crate) fn page_index_run(&self) -> Option<&Arc<PageRun>> {
        match &self.index {
            Place::Memory(_) => None,
            Place::Pages { run, .. } => Some(run),
        }
    }

    /// The page index, where it is in memory.
    pub(crate) fn resident_index(&self) -> Option<&Arc<PageIndex>> {
        match &self.index {
            Place::Memory(index) => Some(index),
            Place::Pages { .. } => None,
        }
    }

    /// Whether the chunk's totals are those of the index.
    fn is_of(&self, index: &PageIndex) -> bool {
        Totals::of(index.zones()) == self.totals
    }
}

impl Segment {
    /// Tells the reader that page indexes of the segment will be wanted, unless the cache has them.
    ///
    /// # Errors
    /// Those of [`PageReader::prefetch`].
    pub(crate) fn prefetch_page_indexes(&self, reader: &mut PageReader) -> Result<()> {
        match self.chunks.first().and_then(Chunk::page_index_run) {
            Some(run) if reader.cached(run, 0).is_none() => reader.prefetch(run, 0..run.count),
            _ => Ok(()),
        }
    }
}

/// What the zone maps of a chunk say together.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Totals {
    /// Data pages of the chunk.
    #[prost(uint32, tag = "1")]
    pub pages: u32,
    /// Rows of the chunk.
    #[prost(uint32, tag = "2")]
    pub rows: u32,
    /// NULLs among them.
    #[prost(uint32, tag = "3")]
    pub null_count: u32,
    /// Least zone key; above `max` when all values are NULL.
    #[prost(sint64, tag = "4")]
    pub min: i64,
    /// Greatest zone key.
    #[prost(sint64, tag = "5")]
    pub max: i64,
}

impl Totals {
    /// Those of zone maps.
    pub fn of(zones: &[PageZone]) -> Self {
        let sum =
            |count: fn(&PageZone) -> u32| zones.iter().map(count).fold(0, u32::saturating_add);
        let with_values = || zones.iter().filter(|z| z.null_count < z.row_count);
        Self {
            pages: zones.len() as u32,
            rows: sum(|zone| zone.row_count),
            null_count: sum(|zone| zone.null_count),
            min: with_values().map(|z| z.min).min().unwrap_or(i64::MAX),
            max: with_values().map(|z| z.max).max().unwrap_or(i64::MIN),
        }
    }
}

/// One value of a run of values, each of whose pages knows its first row.
fn read_value(reader: &mut PageReader, run: &PageRun, row: u32) -> Result<Vec<u8>> {
    let corrupt = || StorageError::corrupt(format!("{}: it has no value {row}", run.label));
    let data_type = DataType::BinaryView;
    let first = reader.get(run, 0)?;
    let (aux, data) = match first.header().has(flags::AUXILIARY) {
        true => (Aux::parse(&first, &data_type)?, 1..run.count),
        false => (Aux::None, 0..run.count),
    };
    // The last page whose first row is not behind it: pages that continue a long value have the
    // first row behind the value.
    let (mut low, mut high) = (data.start, data.end);
    while low < high {
        let middle = low.midpoint(high);
        match u32::from(reader.get(run, middle)?.header().first_row) <= row {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    let mut place = low.checked_sub(1).filter(|place| data.contains(place));
    let page = loop {
        let number = place.ok_or_else(corrupt)?;
        let page = reader.get(run, number)?;
        if !page.is_continuation() {
            break page;
        }
        place = number.checked_sub(1).filter(|place| data.contains(place));
    };
    let mut builder = ColumnBuilder::new(&data_type, 1)?;
    let within = row.checked_sub(page.header().first_row.into());
    let within = within.filter(|within| *within < page.header().row_count);
    builder.append_gather(&page, &aux, &[within.ok_or_else(corrupt)?])?;
    for number in place.map_or(data.end, |place| place + 1)..data.end {
        let page = reader.get(run, number)?;
        if !page.is_continuation() {
            break;
        }
        builder.append_rows(&page, &aux, 0..0)?;
    }
    let value = builder.finish()?;
    let value = value.as_any().downcast_ref::<BinaryViewArray>();
    let value = value.filter(|value| value.len() == 1).ok_or_else(corrupt)?;
    Ok(value.value(0).to_vec())
}
