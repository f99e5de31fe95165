//! The columns of the segment at work: its pages, read when first needed, and their rows as
//! vectors and arrays.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::DataType;
use flashmesh_pushdown::{Metric, Program};
use multiversion::multiversion;

use super::bitmap::Bitmap;
use super::eval::Leaves;
use super::eval::bounds::ColumnBound;
use super::eval::vector::{Kind, Values, Vector, widen_f32};
use super::pages::Pages;
use super::prune::Facts;
use super::row_ids;
use crate::distance::{FixedVectors, Positions, Targets};
use crate::page::{Aux, ColumnBuilder, Encoding, Page, PageZone, ints};
use crate::segment::{Chunk, Segment};
use crate::store::PageReader;
use crate::{Result, StorageError};

/// Some rows of a segment, ascending.
#[derive(Debug, Clone)]
pub(super) enum Rows<'a> {
    /// All of a range.
    Range(Range<u32>),
    /// These.
    List(&'a [u32]),
}

impl Rows<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::List(rows) => rows.len(),
        }
    }

    /// The row at a place among them.
    pub fn get(&self, place: usize) -> u32 {
        match self {
            Self::Range(range) => range.start + place as u32,
            Self::List(rows) => rows[place],
        }
    }
}

/// The Program's columns of one segment.
#[derive(Debug)]
pub(super) struct Columns {
    columns: Vec<Column>,
    rows: u32,
    /// Number of the block at work, so that codes are unpacked once for it.
    block: u64,
}

/// One column.
#[derive(Debug)]
struct Column {
    ordinal: usize,
    data_type: DataType,
    kind: Kind,
    segment: Option<Arc<Segment>>,
    /// The chunk of the rows' ids, which are on no page of flash.
    row_ids: Option<Chunk>,
    pages: Pages,
    aux: Option<Aux>,
    /// Dictionary codes of the rows of `codes_block`.
    codes: Vec<u32>,
    codes_block: u64,
}

/// Vectors as they lie in a page (or an array), and which of them are wanted: none that is NULL.
pub(super) struct VectorPage<'a> {
    pub values: &'a [u8],
    pub positions: Positions<'a>,
    /// The row of the first position if rows follow each other as positions do.
    first_row: u32,
    /// Otherwise the row of each position.
    rows: Option<&'a [u32]>,
}

impl VectorPage<'_> {
    /// The row of a position.
    pub fn row(&self, position: u32) -> u32 {
        match self.rows {
            None => self.first_row + position,
            Some(rows) => rows[position as usize],
        }
    }
}

/// Rows of one page, numbered within it.
enum Part<'a> {
    Range(Range<u32>),
    List(&'a [u32]),
}

impl Part<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Range(range) => range.len(),
            Self::List(rows) => rows.len(),
        }
    }
}

impl Columns {
    pub fn new(program: &Program) -> Self {
        let columns = program.columns.iter();
        Self::of(columns.map(|c| Column::new(c.ordinal as usize, &c.data_type)))
    }

    /// The same columns, of no segment yet.
    pub fn fresh(&self) -> Self {
        let columns = self.columns.iter();
        Self::of(columns.map(|c| Column::new(c.ordinal, &c.data_type)))
    }

    fn of(columns: impl Iterator<Item = Column>) -> Self {
        Self {
            columns: columns.collect(),
            rows: 0,
            block: 1,
        }
    }

    /// Takes up a segment. Nothing is read yet: before [`Self::read_page_indexes`] only the totals
    /// of its chunks are known.
    pub fn open(&mut self, segment: &Arc<Segment>) -> Result<()> {
        self.rows = segment.rows;
        for column in &mut self.columns {
            column.row_ids = None;
            if column.ordinal == segment.chunks.len() {
                column.row_ids = Some(row_ids::chunk(segment)?);
            }
            let chunk = column.row_ids.as_ref();
            let Some(chunk) = chunk.or_else(|| segment.chunks.get(column.ordinal)) else {
                return Err(StorageError::Invalid(format!(
                    "the program reads column {} of a table of {}",
                    column.ordinal,
                    segment.chunks.len()
                )));
            };
            column.aux = (chunk.aux_pages == 0).then_some(Aux::None);
            column.codes_block = 0;
            column.segment = Some(Arc::clone(segment));
        }
        Ok(())
    }

    /// Reads the page indexes of the segment's chunks.
    pub fn read_page_indexes(&mut self, reader: &mut PageReader) -> Result<()> {
        for column in &mut self.columns {
            let index = column.chunk().page_index(reader)?;
            column.pages.open(index);
        }
        Ok(())
    }

    /// Lets go of the segment's pages.
    pub fn close(&mut self) {
        for column in &mut self.columns {
            column.pages.close();
            column.aux = None;
            column.segment = None;
        }
    }

    /// Number of columns.
    pub fn count(&self) -> usize {
        self.columns.len()
    }

    /// Data pages of all columns.
    pub fn data_pages(&self) -> u64 {
        let pages = (0..self.columns.len()).map(|column| self.pages(column));
        pages.sum::<usize>() as u64
    }

    pub fn data_type(&self, column: usize) -> &DataType {
        &self.columns[column].data_type
    }

    pub fn kind(&self, column: usize) -> Kind {
        self.columns[column].kind
    }

    /// What the chunk's zone map says.
    pub fn facts(&self, column: usize) -> Facts {
        let column = &self.columns[column];
        Facts::of_chunk(column.chunk(), self.rows, column.kind)
    }

    /// What the chunk's zone map bounds.
    pub fn bound(&self, column: usize) -> ColumnBound {
        let facts = self.facts(column);
        ColumnBound {
            range: facts.numbers(self.kind(column)),
            may_be_null: facts.may_be_null,
        }
    }

    /// The zone map of each data page that has rows.
    pub fn zones(&self, column: usize) -> impl Iterator<Item = &PageZone> {
        let column = &self.columns[column];
        let starts = column.pages.starts().iter();
        starts.map(|start| &column.pages.zones()[start.zone as usize])
    }

    /// Place and rows of each page that holds one of `rows`, counted as [`Self::zones`] does.
    pub fn pages_holding(&self, column: usize, rows: &Bitmap) -> Vec<(usize, Range<u32>)> {
        let column = &self.columns[column];
        let mut pages = Vec::new();
        column.pages.for_wanted(rows, |place| {
            let (first, end) = column.rows_of(place);
            pages.push((place, first..end));
        });
        pages
    }

    /// The zone map of the page that `row` is on.
    pub fn zone_of(&self, column: usize, row: u32) -> &PageZone {
        let column = &self.columns[column];
        let starts = column.pages.starts();
        let place = starts.partition_point(|start| start.row <= row);
        &column.pages.zones()[starts[place.saturating_sub(1)].zone as usize]
    }

    /// A page with rows, counted as [`Self::zones`] does, and what its codes or symbols need.
    pub fn page(
        &mut self,
        column: usize,
        place: usize,
        reader: &mut PageReader,
    ) -> Result<(&Arc<Page>, &Aux)> {
        let column = &mut self.columns[column];
        column.load_aux(reader)?;
        column.load_page(place, reader)?;
        Ok(column.loaded(place))
    }

    /// Data pages of a column with one of `rows`; none of the rows' ids, which no flash holds.
    pub fn pages_with(&self, column: usize, rows: &Bitmap) -> usize {
        let column = &self.columns[column];
        match column.row_ids {
            Some(_) => 0,
            None => column.pages.count_wanted(rows),
        }
    }

    /// Data pages of a column that were read.
    pub fn pages_read(&self, column: usize) -> usize {
        let column = &self.columns[column];
        match column.row_ids {
            Some(_) => 0,
            None => column.pages.read(),
        }
    }

    /// Data pages of a column.
    pub fn pages(&self, column: usize) -> usize {
        let column = &self.columns[column];
        match column.row_ids {
            Some(_) => 0,
            None => column.chunk().data_pages(),
        }
    }

    /// Asks for the column's pages that hold one of `rows`.
    pub fn prefetch(
        &mut self,
        column: usize,
        rows: &Bitmap,
        reader: &mut PageReader,
    ) -> Result<()> {
        let column = &mut self.columns[column];
        if let (None, Some(segment)) = (&column.row_ids, &column.segment)
            && rows.any()
        {
            let (chunk, with_aux) = (&segment.chunks[column.ordinal], column.aux.is_none());
            column.pages.prefetch(chunk, with_aux, rows, reader)?;
        }
        Ok(())
    }

    /// Takes up other rows: nothing that was unpacked for a block is used any more.
    pub fn begin_block(&mut self) {
        self.block += 1;
    }

    /// The rows of a block as leaves of expressions. They are the same until
    /// [`Self::begin_block`].
    pub fn block<'a>(&'a mut self, rows: Rows<'a>, reader: &'a mut PageReader) -> Block<'a> {
        Block {
            columns: self,
            reader,
            rows,
        }
    }

    /// Calls `f` with the selected vectors of a column of vectors of `size` bytes, page by page.
    pub fn for_vectors(
        &mut self,
        column: usize,
        size: usize,
        selection: &Bitmap,
        reader: &mut PageReader,
        mut f: impl FnMut(&VectorPage<'_>),
    ) -> Result<()> {
        let mut wanted: Vec<u32> = Vec::new();
        for place in 0..self.columns[column].pages.starts().len() {
            let vectors = &mut self.columns[column];
            let (first, end) = vectors.rows_of(place);
            let count = selection.count_in(first..end);
            if count == 0 {
                continue;
            }
            vectors.load_page(place, reader)?;
            wanted.clear();
            let page = vectors.page(place);
            if let Some(values) = page.plain_values(size) {
                let positions = match page.validity() {
                    None if count as u32 == end - first => Positions::All(count),
                    validity => {
                        selection.append_rows(first..end, &mut wanted);
                        wanted.iter_mut().for_each(|row| *row -= first);
                        if let Some(bits) = validity {
                            wanted.retain(|row| bits[*row as usize / 8] >> (row % 8) & 1 == 1);
                        }
                        Positions::List(&wanted)
                    }
                };
                f(&VectorPage {
                    values,
                    positions,
                    first_row: first,
                    rows: None,
                });
                continue;
            }
            selection.append_rows(first..end, &mut wanted);
            let array = self.array(column, &Rows::List(&wanted), reader)?;
            let vectors = FixedVectors::of(&array)?;
            let valid: Vec<u32> = (0..count as u32)
                .filter(|position| vectors.is_valid(*position as usize))
                .collect();
            f(&VectorPage {
                values: vectors.values(),
                positions: Positions::List(&valid),
                first_row: 0,
                rows: Some(&wanted),
            });
        }
        Ok(())
    }

    /// Rows of a column as an array of its type.
    pub fn array(
        &mut self,
        column: usize,
        rows: &Rows<'_>,
        reader: &mut PageReader,
    ) -> Result<ArrayRef> {
        let builder = ColumnBuilder::new(&self.columns[column].data_type, rows.len())?;
        self.build(column, rows, reader, builder)
    }

    /// The same as a [plain](crate::page::plain) array.
    pub fn plain_array(
        &mut self,
        column: usize,
        rows: &Rows<'_>,
        reader: &mut PageReader,
    ) -> Result<ArrayRef> {
        let builder = ColumnBuilder::plain(&self.columns[column].data_type, rows.len())?;
        self.build(column, rows, reader, builder)
    }

    fn build(
        &mut self,
        column: usize,
        rows: &Rows<'_>,
        reader: &mut PageReader,
        mut builder: ColumnBuilder,
    ) -> Result<ArrayRef> {
        let column = &mut self.columns[column];
        column.load_aux(reader)?;
        column.for_parts(rows, reader, |column, place, part, reader| {
            let (page, aux) = column.loaded(place);
            match part {
                Part::Range(range) => builder.append_rows(page, aux, range)?,
                Part::List(list) => builder.append_gather(page, aux, list)?,
            }
            // A long value goes on in the pages behind.
            for continuation in column.pages.zones_of(place).skip(1) {
                column.load_zone(continuation, reader)?;
                if let (Some(page), Some(aux)) = (column.pages.get(continuation), &column.aux) {
                    builder.append_rows(page, aux, 0..0)?;
                }
            }
            Ok(())
        })?;
        builder.finish()
    }
}

impl Column {
    fn new(ordinal: usize, data_type: &DataType) -> Self {
        Self {
            ordinal,
            data_type: data_type.clone(),
            kind: Kind::of(data_type),
            segment: None,
            row_ids: None,
            pages: Pages::default(),
            aux: None,
            codes: Vec::new(),
            codes_block: 0,
        }
    }

    fn chunk(&self) -> &Chunk {
        let segment = self.segment.as_ref().expect("a segment is open");
        match &self.row_ids {
            Some(chunk) => chunk,
            None => &segment.chunks[self.ordinal],
        }
    }

    fn load_aux(&mut self, reader: &mut PageReader) -> Result<()> {
        if self.aux.is_none() {
            let page = reader.get(&self.chunk().run, 0)?;
            self.aux = Some(Aux::parse(&page, &self.data_type)?);
        }
        Ok(())
    }

    fn load_page(&mut self, place: usize, reader: &mut PageReader) -> Result<()> {
        self.load_zone(self.pages.starts()[place].zone as usize, reader)
    }

    fn load_zone(&mut self, index: usize, reader: &mut PageReader) -> Result<()> {
        if self.pages.is_read(index) {
            return Ok(());
        }
        let segment = self.segment.as_ref().expect("a segment is open");
        if self.row_ids.is_some() {
            self.pages.fill(row_ids::pages(segment)?);
            return Ok(());
        }
        let chunk = &segment.chunks[self.ordinal];
        let read = || reader.get(&chunk.run, chunk.aux_pages + index as u32);
        let zone = self.pages.zones()[index];
        self.pages.load(index, read, |page| {
            let rows_agree = page.header().row_count == zone.row_count
                && (zone.row_count == 0 || u32::from(page.header().first_row) == zone.first_row);
            if rows_agree {
                return Ok(());
            }
            Err(StorageError::corrupt(format!(
                "{}, segment {}, page {}: it holds rows {:?}, its zone map says {} from {}",
                chunk.run.label,
                page.header().segment,
                page.header().page,
                page.rows(),
                zone.row_count,
                zone.first_row
            )))
        })
    }

    /// A page that [`Self::load_page`] has loaded.
    fn page(&self, place: usize) -> &Arc<Page> {
        let page = self.pages.get(self.pages.starts()[place].zone as usize);
        page.expect("the page was loaded")
    }

    /// [`Self::page`] and what its codes or symbols need.
    fn loaded(&self, place: usize) -> (&Arc<Page>, &Aux) {
        let aux = self.aux.as_ref();
        (
            self.page(place),
            aux.expect("the auxiliary page was loaded"),
        )
    }

    /// First row of the page at `place`, and the first behind it.
    fn rows_of(&self, place: usize) -> (u32, u32) {
        let zone = &self.pages.zones()[self.pages.starts()[place].zone as usize];
        (zone.first_row, zone.first_row + zone.row_count)
    }

    /// Loads the pages of `rows` one after the other and calls `f` with each and its part of them.
    fn for_parts(
        &mut self,
        rows: &Rows<'_>,
        reader: &mut PageReader,
        mut f: impl FnMut(&mut Self, usize, Part<'_>, &mut PageReader) -> Result<()>,
    ) -> Result<()> {
        let outside = |column: &Self, row: u32| {
            StorageError::corrupt(format!(
                "{}: no page holds row {row}",
                column.chunk().run.label
            ))
        };
        match rows {
            Rows::Range(range) => {
                let mut row = range.start;
                while row < range.end {
                    let place = self.pages.find(row);
                    let (first, end) = self.rows_of(place);
                    if !(first..end).contains(&row) {
                        return Err(outside(self, row));
                    }
                    self.load_page(place, reader)?;
                    let until = end.min(range.end);
                    f(self, place, Part::Range(row - first..until - first), reader)?;
                    row = until;
                }
            }
            Rows::List(list) => {
                let mut local = Vec::new();
                let mut left = *list;
                while let Some(row) = left.first() {
                    let place = self.pages.find(*row);
                    let (first, end) = self.rows_of(place);
                    if !(first..end).contains(row) {
                        return Err(outside(self, *row));
                    }
                    self.load_page(place, reader)?;
                    let here = left.partition_point(|r| *r < end);
                    local.clear();
                    local.extend(left[..here].iter().map(|r| r - first));
                    f(self, place, Part::List(&local), reader)?;
                    left = &left[here..];
                }
            }
        }
        Ok(())
    }

    /// The rows' numbers in 64 bits, if all their pages are of integers.
    fn load_i64(
        &mut self,
        rows: &Rows<'_>,
        reader: &mut PageReader,
        out: &mut Vector,
    ) -> Result<bool> {
        let len = rows.len();
        let mut values = out.overwrite_i64(len);
        let mut validity = None;
        let mut complete = true;
        let mut start = 0;
        self.load_aux(reader)?;
        self.for_parts(rows, reader, |column, place, part, _| {
            let (page, aux) = column.loaded(place);
            if !complete || !ints::is_integer_page(page) {
                complete = false;
                return Ok(());
            }
            let values = &mut values[start..start + part.len()];
            match &part {
                Part::Range(range) => ints::unpack_i64(page, range.clone(), values),
                Part::List(list) => ints::gather_i64(page, list, values),
            }
            if page.header().encoding == Encoding::Dict {
                let Aux::Dictionary(dictionary) = aux else {
                    return Err(no_dictionary(page));
                };
                let entries = dictionary.integers();
                for value in values {
                    // NULL rows hold any code.
                    *value = entries.get(*value as usize).copied().unwrap_or(0);
                }
            }
            mark_nulls(page, &part, start, len, &mut validity);
            start += part.len();
            Ok(())
        })?;
        *out = Vector::i64(values, validity);
        Ok(complete)
    }

    fn load(
        &mut self,
        rows: &Rows<'_>,
        wide: bool,
        reader: &mut PageReader,
        out: &mut Vector,
    ) -> Result<bool> {
        let number = matches!(self.kind, Kind::Integer { .. } | Kind::Decimal);
        Ok(number && !wide && self.load_i64(rows, reader, out)?)
    }

    /// Which of the rows are not NULL; `None`: all.
    fn load_validity(
        &mut self,
        rows: &Rows<'_>,
        reader: &mut PageReader,
    ) -> Result<Option<Bitmap>> {
        let (mut validity, mut start) = (None, 0);
        let len = rows.len();
        self.load_aux(reader)?;
        self.for_parts(rows, reader, |column, place, part, _| {
            mark_nulls(column.loaded(place).0, &part, start, len, &mut validity);
            start += part.len();
            Ok(())
        })?;
        Ok(validity)
    }

    /// The rows' distances from the first target, if their vectors lie plainly in the pages.
    fn load_distances(
        &mut self,
        rows: &Rows<'_>,
        targets: &Targets,
        reader: &mut PageReader,
        out: &mut Vector,
    ) -> Result<bool> {
        let (mut counts, mut floats) = (Vec::new(), Vec::new());
        let (mut validity, mut start) = (None, 0);
        let mut complete = true;
        let mut list: Vec<u32> = Vec::new();
        self.load_aux(reader)?;
        self.for_parts(rows, reader, |column, place, part, _| {
            let page = column.loaded(place).0;
            let Some(values) = page.plain_values(targets.size()).filter(|_| complete) else {
                complete = false;
                return Ok(());
            };
            let positions = match &part {
                Part::Range(range) if range.start == 0 => Positions::All(range.len()),
                Part::Range(range) => {
                    list.clear();
                    list.extend(range.clone());
                    Positions::List(&list)
                }
                Part::List(list) => Positions::List(list),
            };
            match targets.metric() {
                Metric::Hamming => targets.hamming(0, values, positions, &mut counts),
                _ => targets.floats(0, values, positions, &mut floats),
            }
            mark_nulls(page, &part, start, rows.len(), &mut validity);
            start += part.len();
            Ok(())
        })?;
        if complete && targets.metric() == Metric::Hamming {
            let mut values = out.reuse_i64();
            values.extend(counts.into_iter().map(i64::from));
            *out = Vector::i64(values, validity);
        } else if complete {
            let mut values = out.reuse_f64();
            values.extend(floats.into_iter().map(widen_f32));
            *out = Vector::f64(values, validity);
        }
        Ok(complete)
    }

    fn load_codes(&mut self, rows: &Rows<'_>, reader: &mut PageReader) -> Result<()> {
        let mut codes = std::mem::take(&mut self.codes);
        // All are overwritten: what is there need not be cleared.
        codes.resize(rows.len(), 0);
        let mut start = 0;
        self.load_aux(reader)?;
        let result = self.for_parts(rows, reader, |column, place, part, _| {
            let (page, aux) = column.loaded(place);
            let Aux::Dictionary(dictionary) = aux else {
                return Err(no_dictionary(page));
            };
            let codes = &mut codes[start..start + part.len()];
            start += part.len();
            load_codes(page, dictionary.len() as u32, &part, codes)
        });
        self.codes = codes;
        result
    }
}

/// Loads the rows' codes; NULL is the code after the last.
fn load_codes(page: &Page, entries: u32, part: &Part<'_>, codes: &mut [u32]) -> Result<()> {
    let header = page.header();
    if header.null_count == header.row_count {
        codes.fill(entries);
        return Ok(());
    }
    if header.encoding != Encoding::Dict || header.width > 32 {
        return Err(no_dictionary(page));
    }
    match part {
        Part::Range(range) => ints::unpack_u32(page, range.clone(), codes),
        Part::List(list) => ints::gather_u32(page, list, codes),
    }
    if header.reference != 0 {
        let reference = header.reference as u32;
        codes
            .iter_mut()
            .for_each(|code| *code = code.wrapping_add(reference));
    }
    if let Some(validity) = page.validity() {
        let is_null = |row: u32| validity[row as usize / 8] >> (row % 8) & 1 == 0;
        let codes = codes.iter_mut();
        match part {
            Part::Range(range) => codes
                .zip(range.clone())
                .filter(|(_, r)| is_null(*r))
                .for_each(|(c, _)| *c = entries),
            Part::List(list) => codes
                .zip(*list)
                .filter(|(_, r)| is_null(**r))
                .for_each(|(c, _)| *c = entries),
        }
    }
    // One pass in place of a check at each use.
    if greatest(codes) > entries {
        return Err(StorageError::corrupt(format!(
            "segment {}, page {}: a code beyond the {entries} entries of the dictionary",
            header.segment, header.page
        )));
    }
    Ok(())
}

/// The greatest code, 0 if there is none.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn greatest(codes: &[u32]) -> u32 {
    codes.iter().fold(0, |most, code| most.max(*code))
}

fn no_dictionary(page: &Page) -> StorageError {
    let header = page.header();
    StorageError::corrupt(format!(
        "segment {}, page {}: {:?} values in a chunk that has a dictionary, or codes in one that has none",
        header.segment, header.page, header.encoding
    ))
}

/// Clears the bits of the part's NULLs, which start at `start` of `len` rows.
fn mark_nulls(
    page: &Page,
    part: &Part<'_>,
    start: usize,
    len: usize,
    validity: &mut Option<Bitmap>,
) {
    let Some(bytes) = page.validity() else { return };
    let validity = validity.get_or_insert_with(|| Bitmap::filled(len, true));
    match part {
        Part::Range(range) => {
            let words = validity_words(bytes, range.clone());
            validity.and_range(start as u32..(start + range.len()) as u32, &words);
        }
        Part::List(list) => {
            for (index, row) in list.iter().enumerate() {
                if bytes[*row as usize / 8] >> (row % 8) & 1 == 0 {
                    validity.set(start + index, false);
                }
            }
        }
    }
}

/// The validity of `rows` of a page, bit 0 for the first of them.
pub(super) fn validity_words(bytes: &[u8], rows: Range<u32>) -> Vec<u64> {
    let word = |index: usize| {
        let chunk = bytes.get(index * 8..index * 8 + 8);
        chunk.map_or(0, |c| {
            u64::from_le_bytes(c.try_into().expect("eight bytes"))
        })
    };
    let (first, shift) = (rows.start as usize / 64, rows.start % 64);
    (0..rows.len().div_ceil(64))
        .map(|i| {
            let low = word(first + i) >> shift;
            if shift == 0 {
                low
            } else {
                low | word(first + i + 1) << (64 - shift)
            }
        })
        .collect()
}

/// A block of rows, whose columns are loaded when expressions ask for them.
#[derive(Debug)]
pub(super) struct Block<'a> {
    columns: &'a mut Columns,
    reader: &'a mut PageReader,
    pub rows: Rows<'a>,
}

impl Block<'_> {
    /// Entries of the column's dictionary, if its chunk has one.
    pub fn dictionary_len(&mut self, column: usize) -> Result<Option<usize>> {
        let column = &mut self.columns.columns[column];
        column.load_aux(self.reader)?;
        Ok(match &column.aux {
            Some(Aux::Dictionary(dictionary)) => Some(dictionary.len()),
            _ => None,
        })
    }
}

impl Leaves for Block<'_> {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn load(&mut self, column: usize, wide: bool, out: &mut Vector) -> Result<()> {
        if !self.columns.columns[column].load(&self.rows, wide, self.reader, out)? {
            let array = self.columns.array(column, &self.rows, self.reader)?;
            *out = Vector::from_arrow(&array, wide)?;
        }
        Ok(())
    }

    fn distances(&mut self, column: usize, targets: &Targets, out: &mut Vector) -> Result<bool> {
        let column = &mut self.columns.columns[column];
        column.load_distances(&self.rows, targets, self.reader, out)
    }

    fn validity(&mut self, column: usize) -> Result<Option<Bitmap>> {
        self.columns.columns[column].load_validity(&self.rows, self.reader)
    }

    fn codes(&mut self, column: usize) -> Result<Option<&[u32]>> {
        let block = self.columns.block;
        let column = &mut self.columns.columns[column];
        column.load_aux(self.reader)?;
        if !matches!(column.aux, Some(Aux::Dictionary(_))) {
            return Ok(None);
        }
        if column.codes_block != block {
            column.load_codes(&self.rows, self.reader)?;
            column.codes_block = block;
        }
        Ok(Some(&column.codes))
    }

    fn dictionary(&mut self, column: usize, wide: bool) -> Result<Option<Vector>> {
        let column = &mut self.columns.columns[column];
        column.load_aux(self.reader)?;
        let Some(Aux::Dictionary(dictionary)) = &column.aux else {
            return Ok(None);
        };
        let entries = dictionary.array();
        let null = arrow::array::new_null_array(&column.data_type, 1);
        let all = arrow::compute::concat(&[entries.as_ref(), null.as_ref()])?;
        let mut vector = Vector::from_arrow(&all, wide)?;
        if let Values::Array(_) = vector.values {
            vector.constant = false;
        }
        Ok(Some(vector))
    }
}
