//! Long arrays in pages: of integers, and of binary values of one size.
//!
//! A [`PagedArray`] is a list of chunks of 65,536 values (the last may be shorter), packed as the
//! integers of a table are: each page has its own frame of reference and width, so that the
//! offsets of a graph's lists take about two bytes each and its vertex numbers as many bits as
//! there are. The zone maps of the chunks say which page has which positions, and which values a
//! page of a sorted array can hold, without reading it.
//!
//! Whatever is asked for, the pages that are needed are announced together in the order of their
//! addresses, so that the flash works at full depth and neighbouring pages share an operation; of a
//! page only those blocks of 256 values are unpacked that are wanted.

mod bytes;
mod stream;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;
use multiversion::multiversion;

pub use bytes::BytesPage;
pub use stream::{PageStream, PinnedPages};

use crate::flash::FlashPage;
use crate::index::write_chunks;
use crate::page::{
    Aux, BLOCK_VALUES, ChunkIdentity, Dictionary, Encoding, Page, PageIdentity, PageIndex,
    PageZone, SEGMENT_ROWS, encode_chunk, ints,
};
use crate::segment::Chunk;
use crate::store::{CardId, NodeId, PageAddress, PageReader, PageRun, PageWriter};
use crate::{Result, StorageError};

/// Positions of a page that are wanted with fewer others than this between them are unpacked
/// together.
const GAP_VALUES: u64 = BLOCK_VALUES as u64;

/// An array in pages.
#[derive(Debug)]
pub struct PagedArray {
    chunks: Vec<Arc<Chunk>>,
    /// The page index of each chunk.
    indexes: Vec<Arc<PageIndex>>,
    /// Position of the first value of each data page, and the number of all values.
    starts: Vec<u64>,
    /// The chunk of each data page.
    chunk_of: Vec<u32>,
    /// The first data page of each chunk, and the number of all data pages.
    first_pages: Vec<u32>,
    /// The pages of each chunk, where they are nowhere else.
    resident: Vec<Vec<Arc<Page>>>,
}

/// What a [`PagedArray`] can be read as: the low bits of the values.
pub trait PagedValue: Copy + Default + sealed::Decode {}
impl PagedValue for u32 {}
impl PagedValue for u64 {}
impl PagedValue for i64 {}

/// A data page of a [`PagedArray`] that was read and fits its place.
#[derive(Debug, Clone)]
pub struct ArrayPage {
    page: Arc<Page>,
    dictionary: Option<Arc<Dictionary>>,
    first: u64,
}

impl PagedArray {
    /// An array of chunks as [`Self::write`] wrote them. Their page indexes are read.
    ///
    /// # Errors
    /// `Corrupt` when the chunks are not those of such an array: NULLs, gaps, or a chunk before
    /// the last that is not full; those of reading pages.
    pub fn new(
        chunks: impl IntoIterator<Item: Into<Arc<Chunk>>>,
        reader: &mut PageReader,
    ) -> Result<Self> {
        let chunks: Vec<Arc<Chunk>> = chunks.into_iter().map(Into::into).collect();
        let indexes = chunks.iter().map(|chunk| chunk.page_index(reader));
        let indexes = indexes.collect::<Result<_>>()?;
        Self::of(chunks, indexes)
    }

    /// The same of chunks whose page indexes are in memory.
    fn of_new(chunks: Vec<Chunk>) -> Result<Self> {
        let indexes = chunks.iter().filter_map(Chunk::resident_index).cloned();
        let indexes = indexes.collect();
        Self::of(chunks.into_iter().map(Arc::new).collect(), indexes)
    }

    fn of(chunks: Vec<Arc<Chunk>>, indexes: Vec<Arc<PageIndex>>) -> Result<Self> {
        let mut array = Self {
            starts: Vec::new(),
            chunk_of: Vec::new(),
            first_pages: vec![0],
            chunks: Vec::new(),
            indexes: Vec::new(),
            resident: Vec::new(),
        };
        let count = chunks.len();
        for (number, (chunk, index)) in chunks.iter().zip(&indexes).enumerate() {
            let corrupt = |what: &str| {
                StorageError::corrupt(format!("{}, chunk {number}: {what}", chunk.run.label))
            };
            let base = number as u64 * SEGMENT_ROWS as u64;
            let mut rows = 0;
            for zone in index.zones() {
                if zone.first_row != rows || zone.row_count == 0 || zone.null_count != 0 {
                    return Err(corrupt("its pages do not follow each other"));
                }
                array.starts.push(base + u64::from(rows));
                array.chunk_of.push(number as u32);
                rows = rows.saturating_add(zone.row_count);
            }
            let is_whole = number + 1 == count || rows as usize == SEGMENT_ROWS;
            if rows == 0 || rows as usize > SEGMENT_ROWS || !is_whole {
                return Err(corrupt(&format!("{rows} values")));
            }
            let pages = u64::from(chunk.aux_pages) + index.zones().len() as u64;
            if chunk.aux_pages > 1 || u64::from(chunk.run.count) != pages {
                return Err(corrupt("the number of its pages is wrong"));
            }
            array.first_pages.push(array.starts.len() as u32);
            if number + 1 == count {
                array.starts.push(base + u64::from(rows));
            }
        }
        if count == 0 {
            array.starts.push(0);
        }
        array.chunks = chunks;
        array.indexes = indexes;
        Ok(array)
    }

    /// Writes an array of integers without NULLs, given as slices of 65,536 values of which only
    /// the last may be shorter. The first chunk gets `identity`; the others count `segment` up.
    /// `threads` encode at once.
    ///
    /// # Errors
    /// `Invalid` for slices of other shapes or types and for unsigned numbers above `i64::MAX`;
    /// those of [`PageWriter::append`].
    pub fn write(
        writer: &mut PageWriter,
        identity: ChunkIdentity,
        label: &Arc<str>,
        slices: &[ArrayRef],
        threads: usize,
    ) -> Result<Self> {
        for (number, slice) in slices.iter().enumerate() {
            let is_whole = number + 1 == slices.len() || slice.len() == SEGMENT_ROWS;
            if !is_whole || slice.is_empty() || slice.null_count() > 0 {
                return Err(StorageError::Invalid(format!(
                    "{label}: slice {number} of {} has {} values, {} of them NULL",
                    slices.len(),
                    slice.len(),
                    slice.null_count()
                )));
            }
            if !slice.data_type().is_integer() {
                return Err(StorageError::Invalid(format!(
                    "{label}: an array of {} is not one of integers",
                    slice.data_type()
                )));
            }
        }
        let identity_of = |number: usize| ChunkIdentity {
            segment: identity.segment.wrapping_add(number as u32),
            ..identity
        };
        let slices: Vec<&ArrayRef> = slices.iter().collect();
        Self::of_new(write_chunks(writer, identity_of, label, &slices, threads)?)
    }

    /// An array of integers without NULLs that stays in memory, in the form that it has in pages.
    ///
    /// # Errors
    /// As [`Self::write`] says of slices.
    pub fn in_memory(label: &Arc<str>, slices: &[ArrayRef]) -> Result<Self> {
        let identity = ChunkIdentity {
            table: 0,
            segment: 0,
            column_group: 0,
            generation: 0,
        };
        let first = PageAddress {
            node: NodeId(0),
            card: CardId(0),
            page: FlashPage(0),
        };
        let (mut chunks, mut resident) = (Vec::new(), Vec::new());
        for slice in slices {
            let encoded = encode_chunk(slice, identity)?;
            let run = PageRun {
                first,
                count: encoded.pages.len() as u32,
                identity: identity.first_page(),
                label: Arc::clone(label),
                part: None,
            };
            let pages = (0..).zip(encoded.pages).map(|(page, buffer)| {
                let identity = PageIdentity {
                    page,
                    ..run.identity
                };
                Page::verify(buffer, &identity, label)
            });
            resident.push(pages.collect::<Result<Vec<_>>>()?);
            let aux_pages = u32::from(encoded.aux_pages);
            chunks.push(Chunk::new(run, aux_pages, encoded.zones));
        }
        Ok(Self {
            resident,
            ..Self::of_new(chunks)?
        })
    }

    /// Number of values.
    pub fn len(&self) -> u64 {
        self.starts[self.starts.len() - 1]
    }

    /// Whether it has no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of data pages; they are numbered in the order of positions.
    pub fn pages(&self) -> usize {
        self.chunk_of.len()
    }

    /// The positions that a data page has. Panics when there is no such page.
    pub fn positions(&self, page: u32) -> Range<u64> {
        self.starts[page as usize]..self.starts[page as usize + 1]
    }

    /// The data page with a position. Panics when there is no such position.
    #[inline]
    pub fn page_of(&self, position: u64) -> u32 {
        let chunk = (position / SEGMENT_ROWS as u64) as usize;
        let (first, end) = (self.first_pages[chunk], self.first_pages[chunk + 1]);
        let starts = &self.starts[first as usize..end as usize];
        first + starts.partition_point(|start| *start <= position) as u32 - 1
    }

    /// The values at `positions`.
    ///
    /// # Errors
    /// `Invalid` for positions beyond the end; those of [`PageReader::get`].
    pub fn read<T: PagedValue>(
        &self,
        reader: &mut PageReader,
        positions: Range<u64>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        self.read_ranges(reader, &[positions], out)
    }

    /// The values of several ranges, one range after the other, appended to `out`. The ranges
    /// ascend and do not overlap.
    ///
    /// # Errors
    /// As [`Self::visit`].
    pub fn read_ranges<T: PagedValue>(
        &self,
        reader: &mut PageReader,
        ranges: &[Range<u64>],
        out: &mut Vec<T>,
    ) -> Result<()> {
        self.visit(reader, ranges, &mut Vec::new(), |_, _, values| {
            out.extend_from_slice(values);
            Ok(())
        })
    }

    /// Calls `take` with the number of a range, a position within it, and the values from there
    /// on, for every range, in order; a range that goes over several pages comes in as many
    /// pieces. The ranges ascend and do not overlap; empty ones are left out. `scratch` is room to
    /// unpack into, kept by the caller from one call to the next.
    ///
    /// # Errors
    /// `Invalid` for ranges in disorder or beyond the end; those of [`PageReader::get`]; those of
    /// `take`, after which it is not called again.
    pub fn visit<T: PagedValue>(
        &self,
        reader: &mut PageReader,
        ranges: &[Range<u64>],
        scratch: &mut Vec<T>,
        mut take: impl FnMut(usize, u64, &[T]) -> Result<()>,
    ) -> Result<()> {
        let wanted = self.pages_of(ranges)?;
        let mut stream = PageStream::new(self, &wanted);
        let mut next = 0;
        while let Some(page) = stream.next(reader)? {
            let Range { start, end } = page.positions();
            while ranges[next].end <= start || ranges[next].is_empty() {
                next += 1;
            }
            let mut at = next;
            while at < ranges.len() && ranges[at].start < end {
                let low = ranges[at].start.max(start);
                let mut high = ranges[at].end.min(end);
                let mut behind = at + 1;
                while behind < ranges.len()
                    && ranges[behind].start < end
                    && ranges[behind].start < high + GAP_VALUES
                {
                    high = high.max(ranges[behind].end.min(end));
                    behind += 1;
                }
                // Whole blocks unpack faster than parts of them.
                let low = start + (low - start) / GAP_VALUES * GAP_VALUES;
                let high = end.min(start + (high - start).next_multiple_of(GAP_VALUES));
                let count = (high - low) as usize;
                if scratch.len() < count {
                    scratch.resize(count, T::default());
                }
                page.read(low..high, &mut scratch[..count])?;
                for (number, range) in (at..).zip(&ranges[at..behind]) {
                    let (from, to) = (range.start.max(start), range.end.min(end));
                    if from < to {
                        let places = (from - low) as usize..(to - low) as usize;
                        take(number, from, &scratch[places])?;
                    }
                }
                at = behind;
            }
            // The last range may go on in the next page.
            next = at - usize::from(at > next && ranges[at - 1].end > end);
            if next == ranges.len() {
                break;
            }
        }
        Ok(())
    }

    /// The values at single positions, ascending (the same one may come again), appended to `out`.
    ///
    /// # Errors
    /// `Invalid` for positions in disorder or beyond the end; those of [`PageReader::get`].
    pub fn gather<T: PagedValue>(
        &self,
        reader: &mut PageReader,
        positions: &[u64],
        out: &mut Vec<T>,
    ) -> Result<()> {
        if !positions.is_sorted() || positions.last().is_some_and(|last| *last >= self.len()) {
            return Err(StorageError::Invalid(format!(
                "positions of an array of {} values that descend or lie beyond it",
                self.len()
            )));
        }
        let mut wanted = Vec::new();
        let mut end = 0;
        for &position in positions {
            if position >= end {
                wanted.push(self.page_of(position));
                end = self.positions(wanted[wanted.len() - 1]).end;
            }
        }
        let mut stream = PageStream::new(self, &wanted);
        let mut rest = positions;
        let mut rows = Vec::new();
        while let Some(page) = stream.next(reader)? {
            let Range { start, end } = page.positions();
            let (here, behind) = rest.split_at(rest.partition_point(|position| *position < end));
            rows.clear();
            rows.extend(here.iter().map(|position| (position - start) as u32));
            let from = out.len();
            out.resize(from + rows.len(), T::default());
            T::gather(&page, &rows, &mut out[from..])?;
            rest = behind;
        }
        Ok(())
    }

    /// The value at one position.
    ///
    /// # Errors
    /// `Invalid` for a position beyond the end; those of [`PageReader::get`].
    pub fn get(&self, reader: &mut PageReader, position: u64) -> Result<i64> {
        if position >= self.len() {
            return Err(self.beyond(position));
        }
        self.page(reader, self.page_of(position))?.value(position)
    }

    /// Where `value` is in the sorted positions `within`: `Ok` with the position of one such
    /// value, `Err` with the position that it would have. Zone maps lead to the page: one page is
    /// read, or two when the positions begin within a page. Other positions need not be sorted.
    ///
    /// # Errors
    /// `Invalid` for positions beyond the end; those of [`PageReader::get`].
    pub fn search(
        &self,
        reader: &mut PageReader,
        within: Range<u64>,
        value: i64,
    ) -> Result<Result<u64, u64>> {
        if within.end > self.len() {
            return Err(self.beyond(within.end - 1));
        }
        if within.is_empty() {
            return Ok(Err(within.start));
        }
        // The first page that ends with the value or behind it; if there is none, the last.
        let (mut low, mut high) = (self.page_of(within.start), self.page_of(within.end - 1));
        if low < high && self.positions(low).start < within.start {
            // Its zone map speaks of values before the range, too.
            let page = self.page(reader, low)?;
            low += u32::from(page.value(page.positions().end - 1)? < value);
        }
        while low < high {
            let middle = low.midpoint(high);
            if self.zone(middle).max < value {
                low = middle + 1
            } else {
                high = middle
            }
        }
        let page = self.page(reader, low)?;
        let Range { start, end } = page.positions();
        let (mut low, mut high) = (within.start.max(start), within.end.min(end));
        while low < high {
            let middle = low.midpoint(high);
            match page.value(middle)?.cmp(&value) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(Ok(middle)),
            }
        }
        Ok(Err(low))
    }

    /// A data page.
    ///
    /// # Errors
    /// Those of [`PageReader::get`]; `Corrupt` when it is not what its zone map says.
    pub fn page(&self, reader: &mut PageReader, page: u32) -> Result<ArrayPage> {
        let (chunk, place) = self.place(page);
        let dictionary = self.dictionary(reader, chunk)?;
        let page_read = self.read_page(reader, chunk, place)?;
        self.check(page, page_read, dictionary)
    }

    /// A page of a chunk.
    fn read_page(&self, reader: &mut PageReader, chunk: u32, place: u32) -> Result<Arc<Page>> {
        match self.resident.get(chunk as usize) {
            Some(pages) => Ok(Arc::clone(&pages[place as usize])),
            None => reader.get(&self.chunks[chunk as usize].run, place),
        }
    }

    /// The same, if it is in memory.
    fn cached(&self, reader: &mut PageReader, chunk: u32, place: u32) -> Option<Arc<Page>> {
        match self.resident.get(chunk as usize) {
            Some(pages) => pages.get(place as usize).cloned(),
            None => reader.cached(&self.chunks[chunk as usize].run, place),
        }
    }

    /// The zone map of a data page.
    fn zone(&self, page: u32) -> &PageZone {
        let chunk = self.chunk_of[page as usize] as usize;
        &self.indexes[chunk].zones()[(page - self.first_pages[chunk]) as usize]
    }

    /// The chunk of a data page, and its place in the chunk's run.
    fn place(&self, page: u32) -> (u32, u32) {
        let chunk = self.chunk_of[page as usize];
        let aux_pages = self.chunks[chunk as usize].aux_pages;
        (chunk, aux_pages + page - self.first_pages[chunk as usize])
    }

    fn beyond(&self, position: u64) -> StorageError {
        StorageError::Invalid(format!(
            "position {position} of an array of {} values",
            self.len()
        ))
    }

    /// The pages that have values of `ranges`, ascending.
    fn pages_of(&self, ranges: &[Range<u64>]) -> Result<Vec<u32>> {
        let mut wanted = Vec::new();
        // The positions of the last page that is wanted.
        let mut last = 0..0;
        let mut end = 0;
        for range in ranges {
            if range.start < end || range.end < range.start {
                return Err(StorageError::Invalid(format!(
                    "positions {range:?} after positions up to {end}"
                )));
            }
            if range.end > self.len() {
                return Err(self.beyond(range.end - 1));
            }
            end = range.end;
            if range.is_empty() || range.end <= last.end {
                continue;
            }
            let mut page = if range.start < last.end {
                wanted[wanted.len() - 1] + 1
            } else {
                self.page_of(range.start)
            };
            loop {
                wanted.push(page);
                last = self.positions(page);
                if range.end <= last.end {
                    break;
                }
                page += 1;
            }
        }
        Ok(wanted)
    }

    /// What DICT pages of a chunk number.
    fn dictionary(&self, reader: &mut PageReader, chunk: u32) -> Result<Option<Arc<Dictionary>>> {
        let Chunk { aux_pages, run, .. } = &*self.chunks[chunk as usize];
        if *aux_pages == 0 {
            return Ok(None);
        }
        // Whatever the array's type: integers have dictionaries of eight bytes a value.
        match Aux::parse(&*self.read_page(reader, chunk, 0)?, &DataType::Int64)? {
            Aux::Dictionary(dictionary) => Ok(Some(dictionary)),
            _ => Err(StorageError::corrupt(format!(
                "{}: its auxiliary page is no dictionary",
                run.label
            ))),
        }
    }

    /// A page at its place.
    fn check(
        &self,
        number: u32,
        page: Arc<Page>,
        dictionary: Option<Arc<Dictionary>>,
    ) -> Result<ArrayPage> {
        let zone = self.zone(number);
        let header = page.header();
        let is_known = ints::is_integer_page(&page)
            && (header.encoding != Encoding::Dict || dictionary.is_some());
        if !is_known || header.row_count != zone.row_count || header.null_count != 0 {
            let (chunk, place) = self.place(number);
            return Err(StorageError::corrupt(format!(
                "{}, chunk {chunk}, page {place}: {} rows of {:?} where {} integers were expected",
                self.chunks[chunk as usize].run.label,
                header.row_count,
                header.encoding,
                zone.row_count
            )));
        }
        Ok(ArrayPage {
            dictionary: dictionary.filter(|_| header.encoding == Encoding::Dict),
            page,
            first: self.starts[number as usize],
        })
    }
}

impl ArrayPage {
    /// The positions that it has.
    #[inline]
    pub fn positions(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.page.header().row_count)
    }

    /// The values at `positions`, which the page has; `out` has one place for each.
    ///
    /// # Errors
    /// `Corrupt` for a code that the dictionary does not have.
    pub fn read<T: PagedValue>(&self, positions: Range<u64>, out: &mut [T]) -> Result<()> {
        T::unpack(self, self.rows(&positions), out)
    }

    /// The value at a position, which the page has.
    ///
    /// # Errors
    /// `Corrupt` for a code that the dictionary does not have.
    #[inline]
    pub fn value(&self, position: u64) -> Result<i64> {
        let value = ints::value(&self.page, (position - self.first) as u32);
        match &self.dictionary {
            None => Ok(value),
            Some(dictionary) => word(dictionary, value),
        }
    }

    fn rows(&self, positions: &Range<u64>) -> Range<u32> {
        (positions.start - self.first) as u32..(positions.end - self.first) as u32
    }

    /// Whether the values are offsets of at most 32 bits from the page's reference.
    fn is_narrow(&self) -> bool {
        self.dictionary.is_none() && self.page.header().width <= 32
    }

    /// Replaces codes by what they stand for.
    fn translate(&self, values: &mut [i64]) -> Result<()> {
        if let Some(dictionary) = &self.dictionary {
            for value in values {
                *value = word(dictionary, *value)?;
            }
        }
        Ok(())
    }
}

fn word(dictionary: &Dictionary, code: i64) -> Result<i64> {
    usize::try_from(code)
        .ok()
        .and_then(|code| dictionary.integers().get(code).copied())
        .ok_or_else(|| {
            StorageError::corrupt(format!(
                "code {code} of a dictionary of {} values",
                dictionary.len()
            ))
        })
}

mod sealed {
    use super::*;

    /// How values of a type leave a page.
    pub trait Decode: Sized {
        /// The values of `rows`, one place of `out` each.
        fn unpack(page: &ArrayPage, rows: Range<u32>, out: &mut [Self]) -> Result<()>;
        /// The values of the ascending row numbers `rows`.
        fn gather(page: &ArrayPage, rows: &[u32], out: &mut [Self]) -> Result<()>;
    }

    impl Decode for u32 {
        fn unpack(page: &ArrayPage, rows: Range<u32>, out: &mut [Self]) -> Result<()> {
            if !page.is_narrow() {
                let mut wide = vec![0; out.len()];
                i64::unpack(page, rows, &mut wide)?;
                narrow(&wide, out);
                return Ok(());
            }
            // Whole blocks unpack straight into their places; what is begun of one does not.
            let middle = if (rows.start as usize).is_multiple_of(BLOCK_VALUES) {
                rows.end - rows.end % BLOCK_VALUES as u32
            } else {
                rows.start
            };
            let middle = middle.max(rows.start);
            let (head, tail) = out.split_at_mut((middle - rows.start) as usize);
            ints::unpack_u32(&page.page, rows.start..middle, head);
            ints::unpack_u32(&page.page, middle..rows.end, tail);
            add(out, page.page.header().reference as u32);
            Ok(())
        }

        fn gather(page: &ArrayPage, rows: &[u32], out: &mut [Self]) -> Result<()> {
            if !page.is_narrow() {
                let mut wide = vec![0; out.len()];
                i64::gather(page, rows, &mut wide)?;
                narrow(&wide, out);
                return Ok(());
            }
            ints::gather_u32(&page.page, rows, out);
            add(out, page.page.header().reference as u32);
            Ok(())
        }
    }

    impl Decode for i64 {
        fn unpack(page: &ArrayPage, rows: Range<u32>, out: &mut [Self]) -> Result<()> {
            ints::unpack_i64(&page.page, rows, out);
            page.translate(out)
        }

        fn gather(page: &ArrayPage, rows: &[u32], out: &mut [Self]) -> Result<()> {
            ints::gather_i64(&page.page, rows, out);
            page.translate(out)
        }
    }

    impl Decode for u64 {
        fn unpack(page: &ArrayPage, rows: Range<u32>, out: &mut [Self]) -> Result<()> {
            let mut signed = vec![0; out.len()];
            i64::unpack(page, rows, &mut signed)?;
            out.iter_mut()
                .zip(signed)
                .for_each(|(out, value)| *out = value as u64);
            Ok(())
        }

        fn gather(page: &ArrayPage, rows: &[u32], out: &mut [Self]) -> Result<()> {
            let mut signed = vec![0; out.len()];
            i64::gather(page, rows, &mut signed)?;
            out.iter_mut()
                .zip(signed)
                .for_each(|(out, value)| *out = value as u64);
            Ok(())
        }
    }
}

fn narrow(wide: &[i64], out: &mut [u32]) {
    out.iter_mut()
        .zip(wide)
        .for_each(|(out, value)| *out = *value as u32);
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add(values: &mut [u32], reference: u32) {
    if reference != 0 {
        values
            .iter_mut()
            .for_each(|value| *value = value.wrapping_add(reference));
    }
}
