//! Tests of one column, on its encoded pages.

use std::ops::Range;

use super::{Test, TestKind, by_block};
use crate::Result;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::columns::{Columns, Rows, validity_words};
use crate::accelerator::cpu::eval::Evaluator;
use crate::accelerator::cpu::eval::text::{Search, TextTest};
use crate::page::flags;
use crate::page::{Aux, BLOCK_VALUES, CodeSearch, Encoding, Page, ints, strings};
use crate::store::PageReader;

/// Rows of a page that are selected at least for all of it to be decompressed: else single
/// strings are.
const DENSE_TEXT: usize = 8;
/// Rows of a page that are selected at most (one in so many) for only those to be looked at.
const FEW: usize = 32;

/// Codes of a dictionary, as a test keeps them.
#[derive(Debug)]
pub(super) struct CodeSet {
    bits: Vec<u64>,
    /// When the codes are all within one range without gaps.
    range: Option<(i64, i64)>,
    has_null: bool,
}

impl CodeSet {
    /// Bit `i` of `keep` for code `i`, the last bit for NULL.
    pub fn new(keep: &Bitmap) -> Self {
        let entries = keep.len() - 1;
        let mut codes = Vec::new();
        keep.append_rows(0..entries as u32, &mut codes);
        let range = match (codes.first(), codes.last()) {
            (Some(first), Some(last)) if (last - first) as usize + 1 == codes.len() => {
                Some((i64::from(*first), i64::from(*last)))
            }
            (None, _) => Some((1, 0)),
            _ => None,
        };
        Self {
            bits: keep.slice(0..entries as u32).words().to_vec(),
            range,
            has_null: keep.get(entries),
        }
    }

    /// Bit `i` of `bits` := whether row `rows.start + i` of a page of codes is kept, for the rows
    /// of `selection` at least.
    pub fn select(&self, page: &Page, rows: Range<u32>, selection: &Bitmap, bits: &mut [u64]) {
        match (few_selected(page, &rows, selection), self.range) {
            (Some(few), _) => select_few(page, &few, rows.start, bits, |code| {
                let word = self.bits.get(code as usize / 64);
                word.is_some_and(|word| word >> (code % 64) & 1 == 1)
            }),
            (None, Some((min, max))) => ints::select_range(page, rows.clone(), min, max, bits),
            (None, None) => ints::select_bitmap(page, rows.clone(), 0, &self.bits, bits),
        }
        settle_nulls(page, rows, self.has_null, bits);
    }
}

/// The selected ones of `rows`, numbered within the page, if they are few.
fn few_selected(page: &Page, rows: &Range<u32>, selection: &Bitmap) -> Option<Vec<u32>> {
    let first = page.rows().start;
    let in_segment = first + rows.start..first + rows.end;
    if selection.has_at_least(rows.len().div_ceil(FEW), in_segment.clone()) {
        return None;
    }
    let mut few = Vec::new();
    selection.append_rows(in_segment, &mut few);
    few.iter_mut().for_each(|row| *row -= first);
    Some(few)
}

/// Sets bit `row - start` of `bits` for those rows of a page of integers whose value passes.
fn select_few(
    page: &Page,
    rows: &[u32],
    start: u32,
    bits: &mut [u64],
    passes: impl Fn(i64) -> bool,
) {
    let mut values = vec![0; rows.len()];
    ints::gather_i64(page, rows, &mut values);
    for (row, value) in rows.iter().zip(values) {
        let place = (row - start) as usize;
        bits[place / 64] |= u64::from(passes(value)) << (place % 64);
    }
}

/// Puts the outcome for NULL where the page has NULLs.
pub(super) fn settle_nulls(page: &Page, rows: Range<u32>, keep: bool, selection: &mut [u64]) {
    if let Some(validity) = page.validity() {
        for (word, valid) in selection.iter_mut().zip(validity_words(validity, rows)) {
            *word = if keep { *word | !valid } else { *word & valid };
        }
    }
}

/// Calls `select` for each page with a selected row, with the rows (within the page, whole
/// blocks where possible) to be tested and room for their bits, and applies what it gives. Pages
/// for which it says FALSE are left as they are and given to `other`.
pub(super) fn on_pages(
    column: usize,
    within: Option<&Bitmap>,
    columns: &mut Columns,
    selection: &mut Bitmap,
    reader: &mut PageReader,
    mut select: impl FnMut(&Page, &Aux, Range<u32>, &Bitmap, &mut [u64]) -> Result<bool>,
    mut other: impl FnMut(&mut Columns, Range<u32>, &mut Bitmap, &mut PageReader) -> Result<()>,
) -> Result<()> {
    let mut bits = Vec::new();
    // What is selected on a page stays so while those before it are tested.
    for (place, page_rows) in columns.pages_holding(column, selection) {
        // A page is decided as a whole, so its first row tells.
        if within.is_some_and(|w| !w.any_in(page_rows.clone())) {
            continue;
        }
        let Some(first) = selection.next_row(page_rows.start) else {
            continue;
        };
        let last = selection.last_row(page_rows.clone()).unwrap_or(first);
        let block = BLOCK_VALUES as u32;
        let start = (first - page_rows.start) / block * block;
        let end =
            ((last - page_rows.start) / block * block + block).min(page_rows.end - page_rows.start);
        bits.clear();
        bits.resize((end - start).div_ceil(64) as usize, 0);
        let (page, aux) = columns.page(column, place, reader)?;
        if select(page, aux, start..end, selection, &mut bits)? {
            selection.and_range(page_rows.start + start..page_rows.start + end, &bits);
        } else {
            other(columns, page_rows, selection, reader)?;
        }
    }
    Ok(())
}

pub(super) fn run(
    test: &Test,
    undecided: &Bitmap,
    columns: &mut Columns,
    evaluator: &mut Evaluator,
    selection: &mut Bitmap,
    reader: &mut PageReader,
) -> Result<()> {
    let column = test.columns[0];
    let codes = code_set(test, columns, evaluator, reader)?;
    let mut text = TextBuffers::default();
    let mut codes_of_literals = LiteralCodes::default();
    let select =
        |page: &Page, aux: &Aux, rows: Range<u32>, selection: &Bitmap, bits: &mut [u64]| {
            if page.header().null_count == page.header().row_count {
                // All NULL: what the zone map could not settle, the row-by-row path does.
                return Ok(false);
            }
            if page.header().encoding == Encoding::Dict {
                let Some(codes) = &codes else {
                    return Ok(false);
                };
                codes.select(page, rows, selection, bits);
                return Ok(true);
            }
            match &test.kind {
                TestKind::Values { set, .. } if ints::is_integer_page(page) => {
                    match few_selected(page, &rows, selection) {
                        Some(few) => {
                            select_few(page, &few, rows.start, bits, |v| set.contains(v));
                        }
                        None => set.select(page, rows.clone(), bits),
                    }
                    settle_nulls(page, rows, set.has_null, bits);
                    Ok(true)
                }
                TestKind::Text { test, negated, .. } => {
                    if !TextBuffers::pays(page, &rows, selection) {
                        return Ok(false);
                    }
                    text.select_test(page, aux, rows.clone(), test, &mut codes_of_literals, bits)?;
                    if *negated {
                        bits.iter_mut().for_each(|word| *word = !*word);
                    }
                    settle_nulls(page, rows, false, bits);
                    Ok(true)
                }
                _ => Ok(false),
            }
        };
    let mut single = Bitmap::default();
    let other = |columns: &mut Columns,
                 rows: Range<u32>,
                 selection: &mut Bitmap,
                 reader: &mut PageReader| {
        single.reset(selection.len(), false);
        single.set_range(rows);
        by_block(
            test.nodes(),
            Some(&single),
            columns,
            evaluator,
            selection,
            reader,
        )
    };
    on_pages(
        column,
        Some(undecided),
        columns,
        selection,
        reader,
        select,
        other,
    )
}

/// The codes for which all of the test's conjuncts are TRUE, if the chunk has a dictionary.
fn code_set(
    test: &Test,
    columns: &mut Columns,
    evaluator: &mut Evaluator,
    reader: &mut PageReader,
) -> Result<Option<CodeSet>> {
    let column = test.columns[0];
    evaluator.begin_block();
    columns.begin_block();
    let mut block = columns.block(Rows::Range(0..0), reader);
    let mut keep: Option<Bitmap> = None;
    for node in test.nodes() {
        let Some(entries) = block.dictionary_len(column)? else {
            return Ok(None);
        };
        let Some(table) = evaluator.over_dictionary(*node, column, &mut block)? else {
            return Ok(None);
        };
        let truth = table.is_true(entries + 1);
        match &mut keep {
            Some(keep) => keep.and(&truth),
            None => keep = Some(truth),
        }
    }
    Ok(keep.map(|keep| CodeSet::new(&keep)))
}

/// Room for decompressed text.
#[derive(Debug, Default)]
pub(super) struct TextBuffers {
    /// The texts one after the other, with [`EDGE_BYTES`] zeros before and behind.
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    /// Rows that may pass.
    candidates: Vec<u32>,
}

/// How a test's literals look among the codes of a chunk, worked out when it is first asked for.
#[derive(Debug, Default)]
struct LiteralCodes {
    search: Option<Option<CodeSearch>>,
    /// Pages on which it left so many candidates that all rows were decompressed, less twice
    /// those on which it did not.
    vain: i32,
}

impl LiteralCodes {
    /// Pages in vain after which a chunk's codes are not searched any more.
    const PATIENCE: i32 = 4;

    fn get(&mut self, test: &TextTest, aux: &Aux) -> Option<&CodeSearch> {
        let search = self.search.get_or_insert_with(|| match aux {
            Aux::Symbols(symbols) => CodeSearch::new(symbols, &test.search().literals()),
            _ => None,
        });
        search.as_ref().filter(|_| self.vain < Self::PATIENCE)
    }

    fn learn(&mut self, left_few: bool) {
        self.vain += if left_few { -2 } else { 1 };
    }
}

impl TextBuffers {
    /// Whether to decompress all of `rows` of a page of text rather than the selected ones.
    pub fn pays(page: &Page, rows: &Range<u32>, selection: &Bitmap) -> bool {
        let is_text = matches!(page.header().encoding, Encoding::Fsst | Encoding::RawStr);
        let first = page.rows().start;
        let selected = selection.count_in(first + rows.start..first + rows.end);
        let is_long_value = page.header().has(flags::CONTINUES);
        is_text && !is_long_value && selected * DENSE_TEXT >= rows.len()
    }

    /// Bit `i` of `bits` := whether text `rows.start + i` of the page passes; a NULL passes as an
    /// empty text does.
    pub fn select(
        &mut self,
        page: &Page,
        aux: &Aux,
        rows: Range<u32>,
        bits: &mut [u64],
        passes: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        self.load(page, aux, rows)?;
        self.set_where(bits, |start, end| passes(&self.bytes[start..end]));
        Ok(())
    }

    /// Bit `i` of `bits` := whether text `rows.start + i` of the page passes the test. `codes`
    /// may find the rows that can.
    fn select_test(
        &mut self,
        page: &Page,
        aux: &Aux,
        rows: Range<u32>,
        test: &TextTest,
        codes: &mut LiteralCodes,
        bits: &mut [u64],
    ) -> Result<()> {
        if page.header().encoding == Encoding::Fsst
            && let Some(search) = codes.get(test, aux)
        {
            self.candidates.clear();
            search.candidates(page, rows.clone(), &mut self.candidates);
            let left_few = self.candidates.len() * DENSE_TEXT <= rows.len();
            codes.learn(left_few);
            if left_few {
                return self.select_candidates(page, aux, rows, test, bits);
            }
        }
        self.load(page, aux, rows)?;
        let bytes = self.bytes.as_slice();
        match test.search() {
            Search::Prefix(prefix) => {
                let edge = Edge::of_prefix(prefix);
                self.set_where(bits, |start, end| edge.starts(&bytes[start..], end - start));
            }
            Search::Suffix(suffix) => {
                let edge = Edge::of_suffix(suffix);
                self.set_where(bits, |start, end| edge.ends(&bytes[..end], end - start));
            }
            Search::Literal { finder, is_all } => {
                let length = finder.needle().len();
                let find = |text: &[u8]| finder.find(text).map(|start| (start, start + length));
                self.set_found(find, |text| is_all || test.matches(text), bits);
            }
            Search::Any { needles, is_all } => {
                let passes = |text: &[u8]| is_all || test.matches(text);
                self.set_found(|text| needles.find(text), passes, bits);
            }
            Search::Each => {
                self.set_where(bits, |start, end| test.matches(&bytes[start..end]));
            }
        }
        Ok(())
    }

    /// Sets the bits of those candidates that pass.
    fn select_candidates(
        &mut self,
        page: &Page,
        aux: &Aux,
        rows: Range<u32>,
        test: &TextTest,
        bits: &mut [u64],
    ) -> Result<()> {
        if self.candidates.is_empty() {
            return Ok(());
        }
        self.bytes.clear();
        self.offsets.clear();
        let (bytes, offsets) = (&mut self.bytes, &mut self.offsets);
        strings::decompress_gather(page, aux, &self.candidates, bytes, offsets)?;
        for (row, ends) in self.candidates.iter().zip(offsets.windows(2)) {
            let place = (row - rows.start) as usize;
            let passes = test.matches(&bytes[ends[0] as usize..ends[1] as usize]);
            bits[place / 64] |= u64::from(passes) << (place % 64);
        }
        Ok(())
    }

    /// Sets the bits of the texts that hold what `find` finds and pass: one search through all of
    /// them, as what is looked for is rare and a row short.
    fn set_found(
        &self,
        find: impl Fn(&[u8]) -> Option<(usize, usize)>,
        passes: impl Fn(&[u8]) -> bool,
        bits: &mut [u64],
    ) {
        find_rows(find, &self.bytes, &self.offsets, |row| {
            let text = &self.bytes[self.offsets[row] as usize..self.offsets[row + 1] as usize];
            bits[row / 64] |= u64::from(passes(text)) << (row % 64);
        });
    }

    fn load(&mut self, page: &Page, aux: &Aux, rows: Range<u32>) -> Result<()> {
        self.bytes.clear();
        self.offsets.clear();
        self.bytes.extend([0; EDGE_BYTES]);
        strings::decompress(page, aux, rows, &mut self.bytes, &mut self.offsets)?;
        self.bytes.extend([0; EDGE_BYTES]);
        Ok(())
    }

    /// Sets the bits of the texts whose start and end `passes` says TRUE for.
    #[inline]
    fn set_where(&self, bits: &mut [u64], passes: impl Fn(usize, usize) -> bool) {
        for (row, ends) in self.offsets.windows(2).enumerate() {
            let passes = passes(ends[0] as usize, ends[1] as usize);
            bits[row / 64] |= u64::from(passes) << (row % 64);
        }
    }
}

/// Bytes of a text that are compared as one number.
const EDGE_BYTES: usize = 8;

/// What a text has to start or to end with, its outermost bytes as a number: that is enough for
/// most texts, and a comparison of a few bytes of a length not known beforehand is a call.
struct Edge<'a> {
    word: u64,
    mask: u64,
    /// What `word` does not hold.
    rest: &'a [u8],
    len: usize,
}

impl<'a> Edge<'a> {
    fn of_prefix(prefix: &'a [u8]) -> Self {
        let (outer, rest) = prefix.split_at(prefix.len().min(EDGE_BYTES));
        let fill = |byte| {
            let mut bytes = [0; EDGE_BYTES];
            bytes
                .iter_mut()
                .zip(outer)
                .for_each(|(b, o)| *b = byte | *o);
            u64::from_le_bytes(bytes)
        };
        Self {
            word: fill(0),
            mask: fill(0xFF),
            rest,
            len: prefix.len(),
        }
    }

    fn of_suffix(suffix: &'a [u8]) -> Self {
        let (rest, outer) = suffix.split_at(suffix.len().saturating_sub(EDGE_BYTES));
        let fill = |byte| {
            let mut bytes = [0; EDGE_BYTES];
            let pairs = bytes.iter_mut().rev().zip(outer.iter().rev());
            pairs.for_each(|(b, o)| *b = byte | *o);
            u64::from_le_bytes(bytes)
        };
        Self {
            word: fill(0),
            mask: fill(0xFF),
            rest,
            len: suffix.len(),
        }
    }

    /// Whether the text that `bytes` starts with, of `length` bytes, starts with this.
    #[inline]
    fn starts(&self, bytes: &[u8], length: usize) -> bool {
        let agrees = bytes
            .first_chunk()
            .is_some_and(|outer| (u64::from_le_bytes(*outer) ^ self.word) & self.mask == 0);
        agrees
            && length >= self.len
            && (self.rest.is_empty() || bytes[EDGE_BYTES..].starts_with(self.rest))
    }

    /// Whether the text that `bytes` ends with, of `length` bytes, ends with this.
    #[inline]
    fn ends(&self, bytes: &[u8], length: usize) -> bool {
        let agrees = bytes
            .last_chunk()
            .is_some_and(|outer| (u64::from_le_bytes(*outer) ^ self.word) & self.mask == 0);
        agrees
            && length >= self.len
            && (self.rest.is_empty() || bytes[..bytes.len() - EDGE_BYTES].ends_with(self.rest))
    }
}

/// Calls `found` with each row that holds what `find` finds, start and end. What is found across
/// the end of a row is no match; it may hide one that is shorter.
fn find_rows(
    find: impl Fn(&[u8]) -> Option<(usize, usize)>,
    bytes: &[u8],
    offsets: &[u32],
    mut found: impl FnMut(usize),
) {
    let (Some(&first), Some(&last)) = (offsets.first(), offsets.last()) else {
        return;
    };
    let bytes = &bytes[..last as usize];
    let mut at = first as usize;
    let mut row = 0;
    while let Some((start, end)) = find(&bytes[at..]) {
        let (start, end) = (at + start, at + end);
        row += rows_before(&offsets[row + 1..], start);
        let Some(&row_end) = offsets.get(row + 1) else {
            break;
        };
        if end <= row_end as usize || find(&bytes[start..row_end as usize]).is_some() {
            found(row);
        }
        at = row_end as usize;
        row += 1;
    }
}

/// How many of the ascending `ends` are at most `place`: mostly few, so ever larger steps are
/// taken from the first on.
fn rows_before(ends: &[u32], place: usize) -> usize {
    let is_before = |end: &u32| *end as usize <= place;
    let (mut low, mut step) = (0, 1);
    while ends.get(low + step - 1).is_some_and(is_before) {
        low += step;
        step *= 2;
    }
    let high = ends.len().min(low + step);
    low + ends[low..high].partition_point(is_before)
}
