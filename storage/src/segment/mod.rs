//! Segments: up to 65,536 rows of a table, as chunks of pages, and how their values are read.

mod carried;
mod moves;
mod page_index;
mod row;
mod selection;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, Range};
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::DataType;
use parking_lot::Mutex;
use roaring::RoaringBitmap;

use crate::page::{Aux, ColumnBuilder, Page, PageIndex, PageZone, SEGMENT_ROWS};
use crate::store::{MEMORY_CARD, NodeId, PageAddress, PageReader, PageRun, PageStore, Reservation};
use crate::{Result, StorageError};

pub use carried::{CarriedRun, bytes_in_memory};
pub(crate) use carried::{carried, put_down, without_blank_end};
use moves::Move;
pub(crate) use moves::note_moves;
use page_index::Place;
pub use page_index::Totals;
pub(crate) use page_index::{
    ChunkRecord, page_index_identity, shared_identity, write_page_indexes,
};
pub(crate) use row::RowReader;
pub use selection::RowSelection;

/// Number of a table, never reused within a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

/// Number of a segment within its table, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

/// Up to 65,536 rows of a table, immutable but for those that are deleted later, which makes another
/// version of the segment over the same pages.
#[derive(Debug)]
pub struct Segment {
    /// Its number.
    pub id: SegmentId,
    /// The commit that wrote it; every page carries it too.
    pub generation: u32,
    /// Its rows, the deleted ones among them.
    pub rows: u32,
    /// One chunk for each column of the table, in schema order.
    pub chunks: Arc<Chunks>,
    /// The bucket of all its rows, where the table [lies by a key](crate::table::Distribution).
    pub bucket: Option<u16>,
    deleted: Option<Deleted>,
}

/// Which rows of a segment are deleted, and which are left.
#[derive(Debug, Clone)]
struct Deleted {
    rows: RoaringBitmap,
    /// Made when a scan asks for it: most versions of a segment are seen by none.
    left: OnceLock<Arc<RowSelection>>,
}

impl Segment {
    /// A segment of which no row is deleted.
    pub fn new(id: SegmentId, generation: u32, rows: u32, chunks: Vec<Chunk>) -> Self {
        let chunks = Chunks {
            chunks,
            unnamed: OnceLock::new(),
            committed: OnceLock::new(),
            retired: OnceLock::new(),
            successor: OnceLock::new(),
            moved: Move::default(),
        };
        Self {
            id,
            generation,
            rows,
            chunks: Arc::new(chunks),
            bucket: None,
            deleted: None,
        }
    }

    /// The same, of which all rows are in this bucket.
    pub(crate) fn in_bucket(self, bucket: Option<u16>) -> Self {
        Self { bucket, ..self }
    }

    /// The version of the segment of which these rows are deleted, and no others.
    ///
    /// # Errors
    /// `Corrupt` for a row that the segment does not have.
    pub fn with_deleted(&self, rows: RoaringBitmap) -> Result<Self> {
        if rows.max().is_some_and(|last| last >= self.rows) {
            return Err(StorageError::corrupt(format!(
                "segment {}: a row beyond its {} is deleted",
                self.id.0, self.rows
            )));
        }
        let deleted = (!rows.is_empty()).then(|| Deleted {
            left: OnceLock::new(),
            rows,
        });
        Ok(Self {
            chunks: Arc::clone(&self.chunks),
            deleted,
            ..*self
        })
    }

    /// The same with its runs of pages where `place_of` says.
    pub(crate) fn moved(&self, place_of: impl Fn(PageAddress) -> PageAddress) -> Self {
        let chunks = self.chunks.iter().map(|chunk| chunk.moved(&place_of));
        Self {
            chunks: Arc::new(Chunks {
                chunks: chunks.collect(),
                unnamed: OnceLock::new(),
                committed: OnceLock::new(),
                retired: OnceLock::new(),
                successor: OnceLock::new(),
                moved: Arc::clone(&self.chunks.moved),
            }),
            deleted: self.deleted.clone(),
            ..*self
        }
    }

    /// The node on whose cards all of its pages are; `None` where that is not one, or some are in
    /// memory.
    pub fn node(&self) -> Option<NodeId> {
        let mut runs = self
            .chunks
            .iter()
            .flat_map(Chunk::runs)
            .map(|run| run.first);
        let first = runs.next()?;
        let is_there = |page: PageAddress| page.node == first.node && page.card != MEMORY_CARD;
        (is_there(first) && runs.all(is_there)).then_some(first.node)
    }

    /// Whether all of its pages are in memory, or on cards of such nodes.
    pub fn lies_on(&self, nodes: &HashSet<NodeId>) -> bool {
        let mut runs = self.chunks.iter().flat_map(Chunk::runs);
        runs.all(|run| run.first.card == MEMORY_CARD || nodes.contains(&run.first.node))
    }

    /// The rows that are deleted, if any is.
    pub fn deleted(&self) -> Option<&RoaringBitmap> {
        self.deleted.as_ref().map(|deleted| &deleted.rows)
    }

    /// Rows that are not deleted.
    pub fn live_rows(&self) -> u32 {
        self.rows - self.deleted().map_or(0, |deleted| deleted.len() as u32)
    }

    /// Whether a row is there and not deleted.
    pub fn has_row(&self, row: u32) -> bool {
        row < self.rows && self.deleted().is_none_or(|deleted| !deleted.contains(row))
    }

    /// Of `named`, or of all rows, those that are not deleted; `None`: all.
    pub fn live(&self, named: Option<&Arc<RowSelection>>) -> Option<Arc<RowSelection>> {
        let Some(deleted) = &self.deleted else {
            return named.cloned();
        };
        let all_but = || Arc::new(RowSelection::all_but(self.rows, &deleted.rows));
        let left = deleted.left.get_or_init(all_but);
        Some(match named {
            None => Arc::clone(left),
            Some(named) => Arc::new(named.and(left)),
        })
    }

    /// Whoever has the segment holds pages that no manifest names yet.
    pub(crate) fn hold(&self, pages: &[Unnamed]) {
        let _ = self.chunks.unnamed.set(pages.to_vec());
    }

    /// Whoever has the segment holds the one that was committed for it, which has the same pages.
    pub(crate) fn hold_committed(&self, committed: &Self) {
        if !Arc::ptr_eq(&self.chunks, &committed.chunks) {
            let _ = self.chunks.committed.set(Arc::clone(&committed.chunks));
        }
    }

    /// As [`Segment::retire`], of a segment in whose place this one stands: pages that both have are
    /// given back when neither is there.
    pub(crate) fn retire_moved(&self, moved: &Self, store: &Arc<PageStore>) {
        let _ = self.chunks.successor.set(Arc::clone(&moved.chunks));
        self.retire(store);
    }

    /// Gives the segment's pages back to `store` once the last reference to them is gone.
    pub(crate) fn retire(&self, store: &Arc<PageStore>) {
        // A segment is retired by the one commit that drops it; a second call changes nothing.
        let _ = self.chunks.retired.set(Arc::clone(store));
    }
}

/// Pages that were written and that no manifest names yet. They are freed when nobody holds them
/// any more, unless they were kept.
#[derive(Debug, Clone)]
pub(crate) struct Unnamed(Arc<Mutex<Option<Reservation>>>);

impl Unnamed {
    pub fn new(reservation: Reservation) -> Self {
        Self(Arc::new(Mutex::new(Some(reservation))))
    }

    /// The manifest names the pages now: they stay.
    pub fn keep(self) {
        if let Some(reservation) = self.0.lock().take() {
            reservation.keep();
        }
    }
}

/// The chunks of a segment, which all of its versions share.
#[derive(Debug)]
pub struct Chunks {
    chunks: Vec<Chunk>,
    /// Its pages, where a transaction has written them: whoever reads them holds them.
    unnamed: OnceLock<Vec<Unnamed>>,
    /// Those that its transaction's commit made of it.
    committed: OnceLock<Arc<Chunks>>,
    /// Set when no version of the table has the segment any more: the store that gets its pages
    /// back when the last reader lets go of them.
    retired: OnceLock<Arc<PageStore>>,
    /// What stands in its place with some of the pages elsewhere; the others are those of both.
    successor: OnceLock<Arc<Chunks>>,
    /// Where the rows went when they were rewritten.
    moved: Move,
}

impl Deref for Chunks {
    type Target = [Chunk];

    fn deref(&self) -> &[Chunk] {
        &self.chunks
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        if let Some(store) = self.retired.get() {
            let successor = self.successor.get().into_iter();
            free_chunks(store, &self.chunks, successor.flat_map(|s| &s.chunks));
        }
    }
}

/// Gives the pages of chunks back that no manifest names any more, but for those that chunks have
/// which stand in their place.
pub(crate) fn free_chunks<'a>(
    store: &PageStore,
    chunks: impl IntoIterator<Item = &'a Chunk>,
    kept: impl IntoIterator<Item = &'a Chunk>,
) {
    let kept = kept.into_iter().flat_map(Chunk::runs);
    let kept: HashSet<PageAddress> = kept.map(|run| run.first).collect();
    let runs = chunks.into_iter().flat_map(Chunk::runs);
    for run in runs.filter(|run| !kept.contains(&run.first)) {
        if let Err(error) = store.free(run.first, run.count) {
            // The manifest no longer names the pages: the next opening reclaims them.
            log::warn!(
                "pages of {} stay allocated until the database is reopened: {error}",
                run.label
            );
        }
    }
}

/// Segments that are looked for one after the other before there is a map of them.
const FEW_SEGMENTS: usize = 16;

/// Finds segments of a table by their numbers. A map of all of them takes as long to make as tens of looks
/// at one after the other, and who asks for few, as small commits do, does without.
pub(crate) struct SegmentsById<'a> {
    segments: [&'a [Arc<Segment>]; 2],
    /// The one that was asked for last: rows of one come together.
    last: Option<&'a Arc<Segment>>,
    looked_for: usize,
    by_id: HashMap<SegmentId, &'a Arc<Segment>>,
}

impl<'a> SegmentsById<'a> {
    pub fn new(segments: [&'a [Arc<Segment>]; 2]) -> Self {
        Self {
            segments,
            last: None,
            looked_for: 0,
            by_id: HashMap::new(),
        }
    }

    /// The segment of this number.
    pub fn get(&mut self, id: SegmentId) -> Option<&'a Arc<Segment>> {
        if let Some(last) = self.last.filter(|last| last.id == id) {
            return Some(last);
        }
        let mut all = self.segments.into_iter().flatten();
        self.last = if self.looked_for < FEW_SEGMENTS {
            self.looked_for += 1;
            all.find(|segment| segment.id == id)
        } else {
            if self.by_id.is_empty() {
                self.by_id = all.map(|segment| (segment.id, segment)).collect();
            }
            self.by_id.get(&id).copied()
        };
        self.last
    }
}

/// One column of one segment.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Its pages, the auxiliary page (if any) first.
    pub run: PageRun,
    /// 1 when the run starts with an auxiliary page, else 0.
    pub aux_pages: u32,
    /// What is known of all its rows.
    pub totals: Totals,
    index: Place,
}

impl Chunk {
    /// A chunk whose data pages have these zone maps.
    pub fn new(run: PageRun, aux_pages: u32, zones: Vec<PageZone>) -> Self {
        Self {
            run,
            aux_pages,
            totals: Totals::of(&zones),
            index: Place::Memory(Arc::new(PageIndex::new(zones))),
        }
    }

    /// Whether the rows of both are parts of the same pages.
    fn shares_pages_with(&self, other: &Self) -> bool {
        let of = |chunk: &Self| {
            let part = chunk.run.part.as_ref()?;
            Some((part.run.first, part.first_group))
        };
        of(self).is_some_and(|pages| of(other) == Some(pages))
    }

    /// A chunk whose page index is the value `row` of those in `indexes`.
    pub(crate) fn with_index_in(
        run: PageRun,
        aux_pages: u32,
        totals: Totals,
        indexes: Arc<PageRun>,
        row: u32,
    ) -> Self {
        Self {
            run,
            aux_pages,
            totals,
            index: Place::Pages { run: indexes, row },
        }
    }

    /// Number of its data pages.
    pub fn data_pages(&self) -> usize {
        self.run.count.saturating_sub(self.aux_pages) as usize
    }
}

/// The ids of a segment's rows: its number times 65,536, and the row. They stay as long as the
/// row's segment does.
pub fn row_ids(segment: &Segment) -> ArrayRef {
    let first = row_id(segment.id, 0);
    Arc::new(UInt64Array::from_iter_values(
        first..first + u64::from(segment.rows),
    ))
}

/// The id of a row.
pub fn row_id(segment: SegmentId, row: u32) -> u64 {
    u64::from(segment.0) * SEGMENT_ROWS as u64 + u64::from(row)
}

/// The segment and the row of an id; `None` for a number that can't be one.
pub fn row_of_id(id: u64) -> Option<(SegmentId, u32)> {
    let segment = u32::try_from(id / SEGMENT_ROWS as u64).ok()?;
    Some((SegmentId(segment), (id % SEGMENT_ROWS as u64) as u32))
}

/// The values of one column of a segment; the column behind the last holds the rows' ids.
///
/// # Errors
/// The device's errors; `Corrupt`, which names the page.
pub fn read_column(
    reader: &mut PageReader,
    segment: &Segment,
    ordinal: usize,
    data_type: &DataType,
) -> Result<ArrayRef> {
    if ordinal == segment.chunks.len() {
        return Ok(row_ids(segment));
    }
    let Some(chunk) = segment.chunks.get(ordinal) else {
        return Err(StorageError::Invalid(format!(
            "a table of {} columns has no column number {ordinal}",
            segment.chunks.len()
        )));
    };
    let mut builder = ColumnBuilder::new(data_type, segment.rows as usize)?;
    let mut aux = Aux::None;
    reader.prefetch(&chunk.run, 0..chunk.run.count)?;
    for number in 0..chunk.run.count {
        let page = reader.get(&chunk.run, number)?;
        if number < chunk.aux_pages {
            aux = Aux::parse(&page, data_type)?;
        } else {
            builder.append_rows(&page, &aux, 0..page.header().row_count)?;
        }
    }
    builder.finish()
}

/// Some rows, ascending, of chunks of one segment, an array each. What is not cached of all of them
/// is asked of the flash before the first page is waited for.
///
/// # Errors
/// The device's errors; `Corrupt`, which names the page; `Invalid` for a row beyond a chunk.
pub(crate) fn read_rows(
    reader: &mut PageReader,
    columns: &[(&Chunk, &DataType)],
    rows: &[u32],
) -> Result<Vec<ArrayRef>> {
    let mut wanted: Vec<WantedPages> = Vec::with_capacity(columns.len());
    let mut before: Option<&Chunk> = None;
    for (chunk, _) in columns {
        let beside = before.filter(|before| before.shares_pages_with(chunk));
        let announced = match beside.zip(wanted.last()) {
            Some((beside, pages)) => pages.of_column_beside(reader, beside, chunk)?,
            None => WantedPages::announce(reader, chunk, rows)?,
        };
        wanted.push(announced);
        before = Some(chunk);
    }
    let columns = columns.iter().zip(wanted);
    columns
        .map(|((chunk, data_type), wanted)| wanted.read(reader, chunk, data_type, rows))
        .collect()
}

/// The pages of a chunk that hold the rows that somebody asks for. Those that were cached are held,
/// the others are being read.
struct WantedPages {
    aux: Option<Arc<Page>>,
    data: Vec<WantedPage>,
}

struct WantedPage {
    number: u32,
    first_row: u32,
    /// Which of the rows asked for are on it.
    rows: Range<usize>,
    /// So many pages behind it continue its last value.
    continued: u32,
    page: Option<Arc<Page>>,
}

impl WantedPages {
    fn announce(reader: &mut PageReader, chunk: &Chunk, rows: &[u32]) -> Result<Self> {
        let run = &chunk.run;
        let aux = Self::ask_aux(reader, chunk)?;
        let index = chunk.page_index(reader)?;
        let zones = index.zones();
        let mut data = Vec::new();
        let mut next = 0;
        while let Some(row) = rows.get(next) {
            let beyond =
                || StorageError::Invalid(format!("{}: row {row} is beyond its end", run.label));
            let place = index.page_of_row(*row).ok_or_else(beyond)?;
            let zone = &zones[place];
            let end = zone.first_row + zone.row_count;
            let here = rows[next..].partition_point(|row| *row < end);
            // A long value goes on in the pages behind.
            let behind = zones[place + 1..].iter();
            let continued = behind.take_while(|zone| zone.row_count == 0).count() as u32;
            let number = chunk.aux_pages + place as u32;
            data.push(WantedPage {
                number,
                first_row: zone.first_row,
                rows: next..next + here,
                continued,
                page: Self::ask(reader, run, number, continued)?,
            });
            next += here;
        }
        Ok(Self { aux, data })
    }

    /// The same of a column whose rows are in the pages that one beside it shares with it: they need not
    /// be looked for again.
    fn of_column_beside(
        &self,
        reader: &mut PageReader,
        beside: &Chunk,
        chunk: &Chunk,
    ) -> Result<Self> {
        let aux = Self::ask_aux(reader, chunk)?;
        let pages = self.data.iter().map(|wanted| {
            let number = chunk.aux_pages + (wanted.number - beside.aux_pages);
            Ok(WantedPage {
                number,
                rows: wanted.rows.clone(),
                page: Self::ask(reader, &chunk.run, number, wanted.continued)?,
                ..*wanted
            })
        });
        let data = pages.collect::<Result<_>>()?;
        Ok(Self { aux, data })
    }

    fn ask_aux(reader: &mut PageReader, chunk: &Chunk) -> Result<Option<Arc<Page>>> {
        match chunk.aux_pages {
            0 => Ok(None),
            _ => Self::ask(reader, &chunk.run, 0, 0),
        }
    }

    /// A page if it is cached; else it, and so many behind it, are read.
    fn ask(
        reader: &mut PageReader,
        run: &PageRun,
        number: u32,
        continued: u32,
    ) -> Result<Option<Arc<Page>>> {
        let cached = reader.cached(run, number);
        if cached.is_none() || continued > 0 {
            reader.prefetch(run, number..number + 1 + continued)?;
        }
        Ok(cached)
    }

    fn read(
        self,
        reader: &mut PageReader,
        chunk: &Chunk,
        data_type: &DataType,
        rows: &[u32],
    ) -> Result<ArrayRef> {
        let mut get = |number: u32, held: Option<Arc<Page>>| match held {
            Some(page) => Ok(page),
            None => reader.get(&chunk.run, number),
        };
        let aux = match chunk.aux_pages {
            0 => Aux::None,
            _ => Aux::parse(&*get(0, self.aux)?, data_type)?,
        };
        let mut builder = ColumnBuilder::new(data_type, rows.len())?;
        let mut local = Vec::new();
        for wanted in self.data {
            let page = get(wanted.number, wanted.page)?;
            local.clear();
            local.extend(rows[wanted.rows].iter().map(|row| row - wanted.first_row));
            builder.append_gather(&page, &aux, &local)?;
            for behind in 1..=wanted.continued {
                builder.append_rows(&*get(wanted.number + behind, None)?, &aux, 0..0)?;
            }
        }
        builder.finish()
    }
}
