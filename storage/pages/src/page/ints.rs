//! Pages of integers: numbers, dates, times, decimals, booleans and dictionary codes, all as
//! `i64`.
//!
//! Every value is `reference + offset`; the functions here give offsets or values, or compare
//! without building either. Those of a DICT page are the codes: [`Dictionary`](super::Dictionary)
//! has what they stand for. NULL rows hold an arbitrary value: the caller looks at
//! [`Page::validity`].
//!
//! `rows` is relative to the page. All functions panic when `rows` goes beyond the page or the
//! page is not one of integers ([`is_integer_page`]).

use std::ops::Range;

use multiversion::multiversion;

use super::forbp::{self, BLOCK_BYTES_PER_BIT, BLOCK_WORDS, CHUNK_VALUES};
use super::header::bytes_at;
use super::layout::{Layout, Packed, max_offset};
use super::{BLOCK_VALUES, Page};

/// Whether the page holds integers (or codes).
pub fn is_integer_page(page: &Page) -> bool {
    matches!(
        page.layout(),
        Layout::Reference | Layout::Packed(_) | Layout::Runs { .. }
    )
}

/// The offsets of `rows` from `header().reference`; `out` has one place for each row. Only for
/// pages whose `header().width` is at most 32.
pub fn unpack_u32(page: &Page, rows: Range<u32>, out: &mut [u32]) {
    assert!(
        page.header().width <= 32,
        "offsets of {} bits",
        page.header().width
    );
    assert_eq!(out.len(), rows.len(), "one place for each row");
    if let Some((packed, blocks)) = whole_blocks(page, &rows) {
        forbp::unpack_u32(packed.width, blocks, out);
        if packed.step != 1 {
            out.iter_mut()
                .for_each(|offset| *offset = offset.wrapping_mul(packed.step as u32));
        }
        return;
    }
    let mut at = 0;
    offsets(page, rows, |step, offsets| {
        let out = &mut out[at..at + offsets.len()];
        at += out.len();
        store_u32(out, step, &offsets);
    });
}

/// The values of `rows`; `out` has one place for each row.
pub fn unpack_i64(page: &Page, rows: Range<u32>, out: &mut [i64]) {
    assert_eq!(out.len(), rows.len(), "one place for each row");
    let reference = page.header().reference;
    let mut at = 0;
    offsets(page, rows, |step, offsets| {
        let out = &mut out[at..at + offsets.len()];
        at += out.len();
        store_i64(out, reference, step, &offsets);
    });
}

/// [`unpack_u32`] for the ascending row numbers `rows`.
pub fn gather_u32(page: &Page, rows: &[u32], out: &mut [u32]) {
    assert!(
        page.header().width <= 32,
        "offsets of {} bits",
        page.header().width
    );
    assert_eq!(out.len(), rows.len(), "one place for each row");
    let mut at = 0;
    gather_offsets(page, rows, |step, offsets| {
        let out = &mut out[at..at + offsets.len()];
        at += out.len();
        store_u32(out, step, &offsets);
    });
}

/// [`unpack_i64`] for the ascending row numbers `rows`.
pub fn gather_i64(page: &Page, rows: &[u32], out: &mut [i64]) {
    assert_eq!(out.len(), rows.len(), "one place for each row");
    let reference = page.header().reference;
    let mut at = 0;
    gather_offsets(page, rows, |step, offsets| {
        let out = &mut out[at..at + offsets.len()];
        at += out.len();
        store_i64(out, reference, step, &offsets);
    });
}

/// Bit `i` of `selection` := whether the value of row `rows.start + i` is at least `min` and at
/// most `max`. `selection` has a word for each 64 rows begun; bits beyond the rows become 0.
pub fn select_range(page: &Page, rows: Range<u32>, min: i64, max: i64, selection: &mut [u64]) {
    check_selection(&rows, selection);
    let bits = rows.len();
    match *page.layout() {
        Layout::Reference => fill_bits(
            selection,
            bits,
            (min..=max).contains(&page.header().reference),
        ),
        Layout::Packed(packed) => match offset_range(page, &packed, min, max) {
            OffsetRange::None => selection.fill(0),
            OffsetRange::All => fill_bits(selection, bits, true),
            OffsetRange::Some { low, span } => {
                select_packed(page, &packed, rows, low, span, selection)
            }
        },
        Layout::Runs { .. } => {
            select_runs(page, rows, selection, |value| (min..=max).contains(&value))
        }
        _ => not_integers(page),
    }
}

/// Bit `i` of `selection` := whether the value of row `rows.start + i` is in the set: bit `v` of
/// `bits` says whether `base + v` is.
pub fn select_bitmap(
    page: &Page,
    rows: Range<u32>,
    base: i64,
    bits: &[u64],
    selection: &mut [u64],
) {
    check_selection(&rows, selection);
    let reference = page.header().reference;
    let contains = |value: i64| {
        let place = value.wrapping_sub(base) as u64;
        value >= base
            && bits
                .get((place / 64) as usize)
                .is_some_and(|word| word >> (place % 64) & 1 == 1)
    };
    match *page.layout() {
        Layout::Reference => fill_bits(selection, rows.len(), contains(reference)),
        Layout::Runs { .. } => select_runs(page, rows, selection, contains),
        Layout::Packed(_) => {
            // Places of the page's values in the set start here; where they can go wrong in u64
            // arithmetic, they go beyond the set.
            let first = reference.wrapping_sub(base) as u64;
            let mut at = 0;
            offsets(page, rows, |step, offsets| {
                let mut words = [0; CHUNK_VALUES / 64];
                let count = offsets.len();
                match (offsets, bits) {
                    (Offsets::Narrow(offsets), &[word]) => {
                        select_word(offsets, step, first, word, &mut words)
                    }
                    (Offsets::Narrow(offsets), bits) => {
                        select_words(offsets, step, first, bits, &mut words)
                    }
                    (Offsets::Wide(offsets), bits) => {
                        for (place, offset) in offsets.iter().enumerate() {
                            let value = reference.wrapping_add(offset.wrapping_mul(step) as i64);
                            let place_in_set = value.wrapping_sub(base) as u64;
                            let word = bits.get((place_in_set / 64) as usize).copied().unwrap_or(0);
                            words[place / 64] |= (word >> (place_in_set % 64) & 1) << (place % 64);
                        }
                    }
                    (Offsets::Zero(_), _) => unreachable!("only constant pages have no offsets"),
                }
                write_bits(selection, at, &words, 0, count);
                at += count;
            });
        }
        _ => not_integers(page),
    }
}

/// The value of `row`.
pub fn value(page: &Page, row: u32) -> i64 {
    assert!(
        row < page.header().row_count,
        "row {row} of {}",
        page.header().row_count
    );
    let reference = page.header().reference;
    let (packed, index) = match *page.layout() {
        Layout::Reference => return reference,
        Layout::Packed(packed) => (packed, row as usize),
        Layout::Runs { count, values } => (values, find_run(page.data(), count, row)),
        _ => not_integers(page),
    };
    let offset = forbp::value(packed.width, &page.data()[packed.start..], index);
    reference.wrapping_add(offset.wrapping_mul(packed.step) as i64)
}

/// The runs of an RLE page that overlap `rows`, as (rows of the overlap, value): what an
/// aggregate can use in place of single rows. `None` for other pages.
pub fn runs(page: &Page, rows: Range<u32>) -> Option<impl Iterator<Item = (u32, i64)>> {
    let Layout::Runs { count, values } = *page.layout() else {
        return None;
    };
    check_rows(page, &rows);
    let data = page.data();
    let reference = page.header().reference;
    let mut start = rows.start;
    let first = if rows.is_empty() {
        count
    } else {
        find_run(data, count, rows.start)
    };
    Some((first..count).map_while(move |run| {
        (start < rows.end).then(|| {
            let end = (run_end(data, run) + 1).min(rows.end);
            let length = end - start;
            start = end;
            let offset = forbp::value(values.width, &data[values.start..], run);
            (length, reference.wrapping_add(offset as i64))
        })
    }))
}

/// An integer that Arrow stores; signed and unsigned share their bits.
pub(super) trait Integer: Copy {
    /// The low bits of a value.
    fn from_i64(value: i64) -> Self;
}

macro_rules! integer {
    ($($native:ty)*) => {
        $(impl Integer for $native {
            #[inline(always)]
            fn from_i64(value: i64) -> Self {
                value as $native
            }
        })*
    };
}
integer!(i8 i16 i32 i64 i128);

/// Appends integers to `out`.
pub(super) fn extend<T: Integer>(out: &mut Vec<T>, values: impl Iterator<Item = i64>) {
    out.extend(values.map(T::from_i64));
}

/// Appends the values of `rows` to `out`.
pub(super) fn append<T: Integer>(page: &Page, rows: Range<u32>, out: &mut Vec<T>) {
    let reference = page.header().reference;
    offsets(page, rows, |step, offsets| {
        extend_offsets(out, reference, step, &offsets)
    });
}

/// Appends the values of the ascending row numbers `rows` to `out`.
pub(super) fn append_gather<T: Integer>(page: &Page, rows: &[u32], out: &mut Vec<T>) {
    let reference = page.header().reference;
    gather_offsets(page, rows, |step, offsets| {
        extend_offsets(out, reference, step, &offsets)
    });
}

/// A few packed offsets; times the step they are the offsets.
enum Offsets<'a> {
    /// So many zeros.
    Zero(usize),
    /// Offsets of at most 32 bits.
    Narrow(&'a [u32]),
    /// Wider ones.
    Wide(&'a [u64]),
}

impl Offsets<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Zero(count) => *count,
            Self::Narrow(offsets) => offsets.len(),
            Self::Wide(offsets) => offsets.len(),
        }
    }
}

/// Gives step and packed offsets of `rows`, up to [`CHUNK_VALUES`] at a time (all at once for a
/// constant page).
fn offsets(page: &Page, rows: Range<u32>, mut take: impl FnMut(u64, Offsets<'_>)) {
    check_rows(page, &rows);
    match *page.layout() {
        Layout::Reference => take(1, Offsets::Zero(rows.len())),
        Layout::Packed(packed) => unpack(page.data(), &packed, as_usize(&rows), |offsets| {
            take(packed.step, offsets)
        }),
        Layout::Runs { count, values } => {
            expand_runs(page.data(), count, &values, rows, |offsets| {
                take(1, offsets)
            })
        }
        _ => not_integers(page),
    }
}

/// [`offsets`] for the ascending row numbers `rows`.
fn gather_offsets(page: &Page, rows: &[u32], mut take: impl FnMut(u64, Offsets<'_>)) {
    let Some(&last) = rows.last() else { return };
    assert!(
        last < page.header().row_count,
        "row {last} of {}",
        page.header().row_count
    );
    let data = page.data();
    match *page.layout() {
        Layout::Reference => take(1, Offsets::Zero(rows.len())),
        Layout::Packed(packed) if packed.width <= 32 => {
            let mut narrow = [0; BLOCK_VALUES];
            for rows in rows.chunks(BLOCK_VALUES) {
                let narrow = &mut narrow[..rows.len()];
                forbp::gather_u32(packed.width, &data[packed.start..], rows, narrow);
                take(packed.step, Offsets::Narrow(narrow));
            }
        }
        Layout::Packed(packed) => {
            let mut wide = [0; BLOCK_VALUES];
            for rows in rows.chunks(BLOCK_VALUES) {
                let wide = &mut wide[..rows.len()];
                forbp::gather_u64(packed.width, &data[packed.start..], rows, wide);
                take(packed.step, Offsets::Wide(wide));
            }
        }
        Layout::Runs { count, values } => {
            let mut run = find_run(data, count, rows[0]);
            let mut known = (usize::MAX, 0);
            let mut wide = [0; BLOCK_VALUES];
            for rows in rows.chunks(BLOCK_VALUES) {
                for (out, &row) in wide.iter_mut().zip(rows) {
                    while run_end(data, run) < row {
                        run += 1;
                    }
                    if known.0 != run {
                        known = (run, forbp::value(values.width, &data[values.start..], run));
                    }
                    *out = known.1;
                }
                take(1, Offsets::Wide(&wide[..rows.len()]));
            }
        }
        _ => not_integers(page),
    }
}

/// Gives the packed offsets in the places `range`.
fn unpack(data: &[u8], packed: &Packed, range: Range<usize>, mut take: impl FnMut(Offsets<'_>)) {
    let blocks = &data[packed.start..];
    // One buffer of the two: clearing both would show.
    if packed.width <= 32 {
        let mut narrow = [0; CHUNK_VALUES];
        for_chunks(packed.width, blocks, range, |blocks, places| {
            let filled = places.end.next_multiple_of(BLOCK_VALUES);
            forbp::unpack_u32(packed.width, blocks, &mut narrow[..filled]);
            take(Offsets::Narrow(&narrow[places]));
        });
    } else {
        let mut wide = [0; CHUNK_VALUES];
        for_chunks(packed.width, blocks, range, |blocks, places| {
            let filled = places.end.next_multiple_of(BLOCK_VALUES);
            forbp::unpack_u64(packed.width, blocks, &mut wide[..filled]);
            take(Offsets::Wide(&wide[places]));
        });
    }
}

/// Cuts the places `range` into chunks of whole blocks: calls `f` with the blocks of each, and the
/// places within them.
fn for_chunks(
    width: u8,
    blocks: &[u8],
    range: Range<usize>,
    mut f: impl FnMut(&[u8], Range<usize>),
) {
    let size = usize::from(width) * BLOCK_BYTES_PER_BIT;
    let mut at = range.start;
    while at < range.end {
        let first = at / BLOCK_VALUES;
        let end = range.end.min(first * BLOCK_VALUES + CHUNK_VALUES);
        let start = first * BLOCK_VALUES;
        f(
            &blocks[first * size..end.div_ceil(BLOCK_VALUES) * size],
            at - start..end - start,
        );
        at = end;
    }
}

/// Gives the offset of each of `rows` of a page of runs.
fn expand_runs(
    data: &[u8],
    count: usize,
    values: &Packed,
    rows: Range<u32>,
    mut take: impl FnMut(Offsets<'_>),
) {
    if rows.is_empty() {
        return;
    }
    let first = find_run(data, count, rows.start);
    let mut row = rows.start;
    let mut run = first;
    let mut narrow = [0u32; CHUNK_VALUES];
    let mut wide = [0u64; CHUNK_VALUES];
    let mut filled = 0;
    let is_narrow = values.width <= 32;
    unpack(data, values, first..count, |offsets| {
        for place in 0..offsets.len() {
            let mut left = (run_end(data, run) + 1).min(rows.end).saturating_sub(row) as usize;
            run += 1;
            row += left as u32;
            while left > 0 {
                let now = left.min(CHUNK_VALUES - filled);
                match &offsets {
                    Offsets::Narrow(offsets) => narrow[filled..filled + now].fill(offsets[place]),
                    Offsets::Wide(offsets) => wide[filled..filled + now].fill(offsets[place]),
                    Offsets::Zero(_) => unreachable!("`unpack` gives offsets"),
                }
                (filled, left) = (filled + now, left - now);
                if filled == CHUNK_VALUES {
                    take(if is_narrow {
                        Offsets::Narrow(&narrow)
                    } else {
                        Offsets::Wide(&wide)
                    });
                    filled = 0;
                }
            }
            if row == rows.end {
                break;
            }
        }
    });
    if filled > 0 {
        take(if is_narrow {
            Offsets::Narrow(&narrow[..filled])
        } else {
            Offsets::Wide(&wide[..filled])
        });
    }
}

/// The last row of a run.
#[inline]
fn run_end(data: &[u8], run: usize) -> u32 {
    u32::from(u16::from_le_bytes(bytes_at(data, 2 + 2 * run)))
}

/// The run that `row` is in.
fn find_run(data: &[u8], count: usize, row: u32) -> usize {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low.midpoint(high);
        if run_end(data, middle) < row {
            low = middle + 1
        } else {
            high = middle
        }
    }
    low
}

fn select_runs(
    page: &Page,
    rows: Range<u32>,
    selection: &mut [u64],
    matches: impl Fn(i64) -> bool,
) {
    selection.fill(0);
    let mut at = 0;
    for (length, value) in runs(page, rows).into_iter().flatten() {
        if matches(value) {
            set_bits(selection, at, length as usize);
        }
        at += length as usize;
    }
}

/// A range of values as one of packed offsets.
enum OffsetRange {
    None,
    All,
    Some { low: u64, span: u64 },
}

fn offset_range(page: &Page, packed: &Packed, min: i64, max: i64) -> OffsetRange {
    let (reference, step) = (i128::from(page.header().reference), i128::from(packed.step));
    let largest = i128::from(max_offset(packed.width));
    let low = (i128::from(min) - reference + step - 1)
        .div_euclid(step)
        .max(0);
    let high = (i128::from(max) - reference).div_euclid(step).min(largest);
    if low > high {
        OffsetRange::None
    } else if low == 0 && high == largest {
        OffsetRange::All
    } else {
        OffsetRange::Some {
            low: low as u64,
            span: (high - low) as u64,
        }
    }
}

fn select_packed(
    page: &Page,
    packed: &Packed,
    rows: Range<u32>,
    low: u64,
    span: u64,
    selection: &mut [u64],
) {
    check_rows(page, &rows);
    let size = usize::from(packed.width) * BLOCK_BYTES_PER_BIT;
    let blocks = &page.data()[packed.start..];
    let rows = as_usize(&rows);
    let select =
        |blocks: &[u8], words: &mut [u64]| forbp::select(packed.width, blocks, low, span, words);
    let mut at = rows.start;
    while at < rows.end {
        let block = at / BLOCK_VALUES;
        let done = at - rows.start;
        if at.is_multiple_of(BLOCK_VALUES)
            && done.is_multiple_of(64)
            && rows.end - at >= BLOCK_VALUES
        {
            let whole = (rows.end - at) / BLOCK_VALUES;
            let words = &mut selection[done / 64..][..whole * BLOCK_WORDS];
            select(&blocks[block * size..(block + whole) * size], words);
            at += whole * BLOCK_VALUES;
        } else {
            let end = rows.end.min((block + 1) * BLOCK_VALUES);
            let mut words = [0; BLOCK_WORDS];
            select(&blocks[block * size..(block + 1) * size], &mut words);
            write_bits(selection, done, &words, at % BLOCK_VALUES, end - at);
            at = end;
        }
    }
}

/// When `rows` are whole blocks (the page's last rows count as such only if they fill a block):
/// the packed blocks.
fn whole_blocks<'a>(page: &'a Page, rows: &Range<u32>) -> Option<(Packed, &'a [u8])> {
    let Layout::Packed(packed) = *page.layout() else {
        return None;
    };
    check_rows(page, rows);
    let rows = as_usize(rows);
    let whole = rows.start.is_multiple_of(BLOCK_VALUES) && rows.end.is_multiple_of(BLOCK_VALUES);
    let size = usize::from(packed.width) * BLOCK_BYTES_PER_BIT;
    let blocks = rows.start / BLOCK_VALUES * size..rows.end / BLOCK_VALUES * size;
    (whole && packed.width <= 32).then(|| (packed, &page.data()[packed.start..][blocks]))
}

/// `out[i]` := offset `i`, in the 32 bits that it is known to fit.
fn store_u32(out: &mut [u32], step: u64, offsets: &Offsets<'_>) {
    match offsets {
        Offsets::Zero(_) => out.fill(0),
        Offsets::Narrow(offsets) if step == 1 => out.copy_from_slice(offsets),
        Offsets::Narrow(offsets) => {
            out.iter_mut()
                .zip(*offsets)
                .for_each(|(out, offset)| *out = offset.wrapping_mul(step as u32));
        }
        Offsets::Wide(offsets) => {
            out.iter_mut()
                .zip(*offsets)
                .for_each(|(out, offset)| *out = offset.wrapping_mul(step) as u32);
        }
    }
}

/// `out[i]` := value `i`.
fn store_i64(out: &mut [i64], reference: i64, step: u64, offsets: &Offsets<'_>) {
    match offsets {
        Offsets::Zero(_) => out.fill(reference),
        Offsets::Narrow(offsets) => add_narrow(out, offsets, reference, step),
        Offsets::Wide(offsets) => add_wide(out, offsets, reference, step),
    }
}

/// Appends the values.
fn extend_offsets<T: Integer>(out: &mut Vec<T>, reference: i64, step: u64, offsets: &Offsets<'_>) {
    match offsets {
        Offsets::Zero(count) => out.resize(out.len() + count, T::from_i64(reference)),
        Offsets::Narrow(offsets) => extend_narrow(out, offsets, reference, step),
        Offsets::Wide(offsets) => extend_wide(out, offsets, reference, step),
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add_narrow(out: &mut [i64], offsets: &[u32], reference: i64, step: u64) {
    let pairs = out.iter_mut().zip(offsets);
    match step {
        1 => pairs.for_each(|(out, offset)| *out = reference.wrapping_add(i64::from(*offset))),
        _ => pairs.for_each(|(out, offset)| {
            *out = reference.wrapping_add(u64::from(*offset).wrapping_mul(step) as i64);
        }),
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add_wide(out: &mut [i64], offsets: &[u64], reference: i64, step: u64) {
    for (out, offset) in out.iter_mut().zip(offsets) {
        *out = reference.wrapping_add(offset.wrapping_mul(step) as i64);
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn extend_narrow<T: Integer>(out: &mut Vec<T>, offsets: &[u32], reference: i64, step: u64) {
    match step {
        1 => out.extend(
            offsets
                .iter()
                .map(|offset| T::from_i64(reference.wrapping_add(i64::from(*offset)))),
        ),
        _ => out.extend(offsets.iter().map(|offset| {
            T::from_i64(reference.wrapping_add(u64::from(*offset).wrapping_mul(step) as i64))
        })),
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn extend_wide<T: Integer>(out: &mut Vec<T>, offsets: &[u64], reference: i64, step: u64) {
    out.extend(
        offsets
            .iter()
            .map(|offset| T::from_i64(reference.wrapping_add(offset.wrapping_mul(step) as i64))),
    );
}

/// Membership in a set of one word.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn select_word(offsets: &[u32], step: u64, first: u64, set: u64, words: &mut [u64]) {
    for (word, offsets) in words.iter_mut().zip(offsets.chunks(64)) {
        for (bit, offset) in offsets.iter().enumerate() {
            let place = first.wrapping_add(u64::from(*offset).wrapping_mul(step));
            let is_in = if place < 64 { set >> place & 1 } else { 0 };
            *word |= is_in << bit;
        }
    }
}

/// Membership in a larger set.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn select_words(offsets: &[u32], step: u64, first: u64, set: &[u64], words: &mut [u64]) {
    for (word, offsets) in words.iter_mut().zip(offsets.chunks(64)) {
        let mut flags = [0u8; 64];
        for (flag, offset) in flags.iter_mut().zip(offsets) {
            let place = first.wrapping_add(u64::from(*offset).wrapping_mul(step));
            let in_set = set.get((place / 64) as usize).copied().unwrap_or(0);
            *flag = (in_set >> (place % 64) & 1) as u8;
        }
        *word = forbp::pack_flags(&flags);
    }
}

/// Copies `count` bits of `source` from bit `from` on to bit `at` of `target`, whose bits from
/// there on are overwritten up to the end of the last word touched.
fn write_bits(target: &mut [u64], at: usize, source: &[u64], from: usize, count: usize) {
    let mut done = 0;
    while done < count {
        let (bit, take) = ((from + done) % 64, (count - done).min(64));
        let word = (from + done) / 64;
        let mut bits = source[word] >> bit;
        if bit > 0 && word + 1 < source.len() {
            bits |= source[word + 1] << (64 - bit);
        }
        if take < 64 {
            bits &= (1 << take) - 1;
        }
        let (place, shift) = ((at + done) / 64, (at + done) % 64);
        target[place] = target[place] & ((1 << shift) - 1) | bits << shift;
        if shift + take > 64 {
            target[place + 1] = bits >> (64 - shift);
        }
        done += take;
    }
}

/// Sets `count` bits from bit `at` on.
fn set_bits(words: &mut [u64], at: usize, count: usize) {
    let mut at = at;
    let end = at + count;
    while at < end {
        let take = (64 - at % 64).min(end - at);
        words[at / 64] |= (u64::MAX >> (64 - take)) << (at % 64);
        at += take;
    }
}

/// The first `bits` bits := `value`, the others 0.
fn fill_bits(words: &mut [u64], bits: usize, value: bool) {
    words.fill(0);
    if value {
        set_bits(words, 0, bits);
    }
}

fn as_usize(rows: &Range<u32>) -> Range<usize> {
    rows.start as usize..rows.end as usize
}

fn check_rows(page: &Page, rows: &Range<u32>) {
    assert!(
        rows.start <= rows.end && rows.end <= page.header().row_count,
        "rows {rows:?} of a page of {}",
        page.header().row_count
    );
}

fn check_selection(rows: &Range<u32>, selection: &[u64]) {
    assert_eq!(
        selection.len(),
        rows.len().div_ceil(64),
        "one word for each 64 rows begun"
    );
}

fn not_integers(page: &Page) -> ! {
    panic!(
        "a page of {:?} holds no integers; ask `is_integer_page` first",
        page.header().encoding
    )
}
