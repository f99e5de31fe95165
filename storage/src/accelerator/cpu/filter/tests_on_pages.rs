//! Tests of one column, on its encoded pages.

use std::ops::Range;

use memchr::memmem::Finder;

use super::{Test, TestKind, by_block};
use crate::Result;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::columns::{Columns, Rows, validity_words};
use crate::accelerator::cpu::eval::Evaluator;
use crate::accelerator::cpu::eval::like::LikePattern;
use crate::page::flags;
use crate::page::{Aux, BLOCK_VALUES, Encoding, Page, ints, strings};
use crate::store::PageReader;

/// Rows of a page that are selected at least for all of it to be decompressed: else single
/// strings are.
const DENSE_TEXT: usize = 8;

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

    /// Bit `i` of `selection` := whether row `rows.start + i` of a page of codes is kept.
    pub fn select(&self, page: &Page, rows: Range<u32>, selection: &mut [u64]) {
        match self.range {
            Some((min, max)) => ints::select_range(page, rows.clone(), min, max, selection),
            None => ints::select_bitmap(page, rows.clone(), 0, &self.bits, selection),
        }
        settle_nulls(page, rows, self.has_null, selection);
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
    let pages: Vec<Range<u32>> = columns
        .zones(column)
        .map(|zone| zone.first_row..zone.first_row + zone.row_count)
        .collect();
    let mut bits = Vec::new();
    for (place, page_rows) in pages.into_iter().enumerate() {
        // A page is decided as a whole, so its first row tells.
        if within.is_some_and(|w| !w.any_in(page_rows.clone())) {
            continue;
        }
        let Some(first) = selection
            .next_row(page_rows.start)
            .filter(|r| *r < page_rows.end)
        else {
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
                codes.select(page, rows, bits);
                return Ok(true);
            }
            match &test.kind {
                TestKind::Values { set, .. } if ints::is_integer_page(page) => {
                    set.select(page, rows.clone(), bits);
                    settle_nulls(page, rows, set.has_null, bits);
                    Ok(true)
                }
                TestKind::Like {
                    pattern, negated, ..
                } => {
                    let first = page.rows().start;
                    let selected = selection.count_in(first + rows.start..first + rows.end);
                    let long_value = page.header().has(flags::CONTINUES);
                    if selected * DENSE_TEXT < rows.len() || long_value {
                        return Ok(false);
                    }
                    text.select_like(page, aux, rows.clone(), pattern, *negated, bits)?;
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
struct TextBuffers {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
}

impl TextBuffers {
    fn select_like(
        &mut self,
        page: &Page,
        aux: &Aux,
        rows: Range<u32>,
        pattern: &LikePattern,
        negated: bool,
        bits: &mut [u64],
    ) -> Result<()> {
        self.bytes.clear();
        self.offsets.clear();
        strings::decompress(page, aux, rows.clone(), &mut self.bytes, &mut self.offsets)?;
        let (bytes, offsets) = (&self.bytes, &self.offsets);
        match pattern.needle() {
            Some(needle) if !needle.needle().is_empty() => find_rows(needle, bytes, offsets, bits),
            _ => {
                for (row, ends) in offsets.windows(2).enumerate() {
                    let matches = pattern.matches(&bytes[ends[0] as usize..ends[1] as usize]);
                    bits[row / 64] |= u64::from(matches) << (row % 64);
                }
            }
        }
        if negated {
            bits.iter_mut().for_each(|word| *word = !*word);
        }
        Ok(())
    }
}

/// Sets the bits of the rows that hold the needle: one search through all of them, as a needle is
/// rare and a row short. What is found across the end of a row is no match.
fn find_rows(needle: &Finder<'_>, bytes: &[u8], offsets: &[u32], bits: &mut [u64]) {
    let mut at = 0;
    let mut row = 0;
    while let Some(found) = needle.find(&bytes[at..]) {
        let start = at + found;
        // The row that the match starts in: mostly not far.
        row += offsets[row + 1..].partition_point(|end| *end as usize <= start);
        if start + needle.needle().len() <= offsets[row + 1] as usize {
            bits[row / 64] |= 1 << (row % 64);
            at = offsets[row + 1] as usize;
            row += 1;
            if row + 1 >= offsets.len() {
                break;
            }
        } else {
            at = start + 1;
        }
    }
}
