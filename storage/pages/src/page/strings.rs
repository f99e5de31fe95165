//! Pages of text and binary.

use std::ops::Range;

use super::auxiliary::{Aux, SymbolTable};
use super::header::flags;
use super::layout::Layout;
use super::{Encoding, PAYLOAD_SIZE_BYTES, Page, ints};
use crate::{Result, StorageError};

/// The code that says "the next byte as it is" (Boncz, Neumann, Leis, "FSST: fast random access
/// string compression", 2020).
pub(super) const ESCAPE: u8 = 255;
/// The longest symbol, and what one code writes at most.
const SYMBOL_BYTES: usize = 8;

/// Appends the bytes of `rows` (relative to the page), one after the other, to `bytes`, and the
/// end of each row within `bytes` to `offsets`. When `offsets` is empty, the start of the first
/// row goes before: then `n` rows give `n + 1` offsets, as Arrow has them. A NULL is empty.
///
/// Works for pages of text in every encoding. What comes out is not checked to be UTF-8.
///
/// # Errors
/// `Invalid` for a value longer than a page (only [`ColumnBuilder`](super::ColumnBuilder) puts
/// its parts together), for rows beyond the page, and when `bytes` would outgrow a `u32`.
/// `Corrupt` when the page does not fit `aux` or is not one of text.
pub fn decompress(
    page: &Page,
    aux: &Aux,
    rows: Range<u32>,
    bytes: &mut Vec<u8>,
    offsets: &mut Vec<u32>,
) -> Result<()> {
    if rows.start > rows.end || rows.end > page.header().row_count {
        return Err(StorageError::Invalid(format!(
            "rows {rows:?} of a page of {}",
            page.header().row_count
        )));
    }
    if page.header().has(flags::CONTINUES) && !rows.is_empty() {
        return Err(StorageError::Invalid(
            "a value longer than a page is read by ColumnBuilder only".into(),
        ));
    }
    if offsets.is_empty() {
        offsets.push(end_offset(bytes.len())?);
    }
    let data = page.data();
    match (page.layout(), aux) {
        (Layout::Value, _) => repeat(data, page, rows, bytes, offsets),
        (Layout::Text(text), _) => {
            let mut start = text.start(data, rows.start as usize);
            let codes_start = start;
            let stored = &data[text.bytes..];
            let ends = rows.map(|row| {
                start += text.length(data, row as usize);
                start - codes_start
            });
            if page.header().encoding == Encoding::RawStr {
                let base = bytes.len();
                let before = offsets.len();
                offsets.extend(ends.map(|end| (base + end) as u32));
                let length = offsets[before..]
                    .last()
                    .map_or(0, |end| *end as usize - base);
                end_offset(base + length)?;
                bytes.extend_from_slice(&stored[codes_start..codes_start + length]);
                return Ok(());
            }
            let Aux::Symbols(symbols) = aux else {
                return Err(no_fit(page, aux));
            };
            symbols.decompress_rows(&stored[codes_start..], ends, bytes, offsets)
        }
        (Layout::Packed(_), Aux::Dictionary(dictionary))
            if page.header().encoding == Encoding::Dict =>
        {
            let mut codes = vec![0; rows.len()];
            ints::unpack_i64(page, rows.clone(), &mut codes);
            let validity = page.validity();
            for (row, code) in rows.zip(codes) {
                if validity.is_none_or(|bits| is_set(bits, row)) {
                    let code = usize::try_from(code)
                        .ok()
                        .filter(|code| *code < dictionary.len());
                    bytes.extend_from_slice(
                        dictionary.value(code.ok_or_else(|| no_fit(page, aux))?),
                    );
                }
                offsets.push(end_offset(bytes.len())?);
            }
            Ok(())
        }
        // All NULL.
        (Layout::Reference, _) if page.header().null_count == page.header().row_count => {
            repeat(&[], page, rows, bytes, offsets)
        }
        _ => Err(no_fit(page, aux)),
    }
}

/// [`decompress`] for some rows, numbered within the page, ascending.
///
/// # Errors
/// As [`decompress`].
pub fn decompress_gather(
    page: &Page,
    aux: &Aux,
    rows: &[u32],
    bytes: &mut Vec<u8>,
    offsets: &mut Vec<u32>,
) -> Result<()> {
    let Layout::Text(text) = page.layout() else {
        for rows in rows.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            decompress(
                page,
                aux,
                rows[0]..rows[rows.len() - 1].saturating_add(1),
                bytes,
                offsets,
            )?;
        }
        return Ok(());
    };
    if rows
        .last()
        .is_some_and(|last| *last >= page.header().row_count)
        || !rows.is_sorted_by(|a, b| a < b)
    {
        return Err(StorageError::Invalid(format!(
            "not ascending rows of a page of {}",
            page.header().row_count
        )));
    }
    if page.header().has(flags::CONTINUES) && !rows.is_empty() {
        return Err(StorageError::Invalid(
            "a value longer than a page is read by ColumnBuilder only".into(),
        ));
    }
    if offsets.is_empty() {
        offsets.push(end_offset(bytes.len())?);
    }
    let data = page.data();
    let stored = &data[text.bytes..];
    let mut cursor = text.cursor();
    if page.header().encoding == Encoding::RawStr {
        for row in rows {
            bytes.extend_from_slice(&stored[cursor.locate(data, *row as usize)]);
            offsets.push(end_offset(bytes.len())?);
        }
        return Ok(());
    }
    let Aux::Symbols(symbols) = aux else {
        return Err(no_fit(page, aux));
    };
    let mut codes = Vec::with_capacity(PAYLOAD_SIZE_BYTES);
    let mut ends = Vec::with_capacity(rows.len());
    for row in rows {
        codes.extend_from_slice(&stored[cursor.locate(data, *row as usize)]);
        ends.push(codes.len());
    }
    symbols.decompress_rows(&codes, ends.into_iter(), bytes, offsets)
}

/// The part of a value longer than a page that `page` holds.
pub(super) fn append_part(page: &Page, aux: &Aux, bytes: &mut Vec<u8>) -> Result<()> {
    let data = page.data();
    let stored = match page.layout() {
        Layout::Text(text) => &data[text.bytes..],
        _ => data,
    };
    match (page.header().encoding, aux) {
        (Encoding::RawStr | Encoding::Raw, _) => bytes.extend_from_slice(stored),
        (Encoding::Fsst, Aux::Symbols(symbols)) => {
            let mut ends = Vec::with_capacity(1);
            symbols.decompress_rows(stored, std::iter::once(stored.len()), bytes, &mut ends)?;
        }
        _ => return Err(no_fit(page, aux)),
    }
    Ok(())
}

/// Appends what `codes` stand for to `bytes`, by a page with a symbol table: of a single value a table
/// of all symbols would take longer.
pub(super) fn decompress_value(symbols: &Page, codes: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
    let Layout::Symbols { symbols: start } = *symbols.layout() else {
        return Err(no_fit(symbols, &Aux::None));
    };
    let data = symbols.data();
    let lengths = &data[..symbols.row_count()];
    expand(lengths, data[start..].as_chunks().0, codes, bytes)
}

/// Appends what `codes` stand for to `bytes`: of symbol `i` the first `lengths[i]` bytes. A code without
/// a symbol stands for nothing.
fn expand(
    lengths: &[u8],
    symbols: &[[u8; SYMBOL_BYTES]],
    codes: &[u8],
    bytes: &mut Vec<u8>,
) -> Result<()> {
    // Of one length, so that one look tells for both whether they have a code.
    let known = lengths.len().min(symbols.len());
    let (lengths, symbols) = (&lengths[..known], &symbols[..known]);
    let start = bytes.len();
    // Every symbol is written as a whole, in one store, and what it has beyond its length is written
    // over by the next one, or cut off in the end.
    bytes.resize(start + codes.len() * SYMBOL_BYTES, 0);
    let mut end = start;
    let mut codes = codes.iter();
    while let Some(&code) = codes.next() {
        let code = usize::from(code);
        let (symbol, length) = if code == usize::from(ESCAPE) {
            let literal = codes.next().ok_or_else(ends_within_escape)?;
            (u64::from(*literal).to_le_bytes(), 1)
        } else if code < known {
            (symbols[code], usize::from(lengths[code]).min(SYMBOL_BYTES))
        } else {
            continue;
        };
        // No code moves on by more than 8 bytes, and there are 8 for each.
        if let Some(place) = bytes.get_mut(end..end + SYMBOL_BYTES) {
            place.copy_from_slice(&symbol);
        }
        end += length;
    }
    bytes.truncate(end);
    Ok(())
}

fn ends_within_escape() -> StorageError {
    StorageError::corrupt("compressed text ends within an escape")
}

/// Bit `row` of a bitmap.
#[inline]
pub(super) fn is_set(bits: &[u8], row: u32) -> bool {
    bits[row as usize / 8] >> (row % 8) & 1 == 1
}

pub(super) fn no_fit(page: &Page, aux: &Aux) -> StorageError {
    let aux = match aux {
        Aux::None => "no auxiliary page",
        Aux::Dictionary(_) => "a dictionary",
        Aux::Symbols(_) => "a symbol table",
    };
    StorageError::corrupt(format!(
        "segment {}, page {}: {:?} values do not fit the column's type or its {aux}",
        page.header().segment,
        page.header().page,
        page.header().encoding,
    ))
}

/// A length as an offset.
fn end_offset(length: usize) -> Result<u32> {
    u32::try_from(length).map_err(|_| {
        StorageError::Invalid("a batch of text can't exceed 4 GiB; take fewer rows".into())
    })
}

fn repeat(
    value: &[u8],
    page: &Page,
    rows: Range<u32>,
    bytes: &mut Vec<u8>,
    offsets: &mut Vec<u32>,
) -> Result<()> {
    end_offset(bytes.len() + value.len() * rows.len())?;
    let validity = page.validity();
    for row in rows {
        if validity.is_none_or(|bits| is_set(bits, row)) {
            bytes.extend_from_slice(value);
        }
        offsets.push(bytes.len() as u32);
    }
    Ok(())
}

impl SymbolTable {
    /// Decompresses `codes` (at most a page of them), whose rows end at `ends`, and appends bytes
    /// and the rows' ends within `bytes`. Codes after the last end are left out.
    pub(super) fn decompress_rows(
        &self,
        codes: &[u8],
        ends: impl Iterator<Item = usize>,
        bytes: &mut Vec<u8>,
        offsets: &mut Vec<u32>,
    ) -> Result<()> {
        // Two passes, so that the lengths of rows (which no branch predictor foresees) do not
        // disturb the loop over the codes: first the rows' ends within the codes …
        let first = offsets.len();
        offsets.extend(ends.map(|end| end as u32));
        let used = offsets[first..].last().map_or(0, |end| *end as usize);
        // … then all codes in one go, noting where the output of each ends, …
        let mut code_ends = [0u16; PAYLOAD_SIZE_BYTES];
        let base = bytes.len();
        end_offset(base + used * SYMBOL_BYTES)?;
        self.decompress(&codes[..used], bytes, &mut code_ends)?;
        // … which turns ends within the codes into ends within the output.
        for end in &mut offsets[first..] {
            let within = if *end == 0 {
                0
            } else {
                code_ends[*end as usize - 1]
            };
            *end = base as u32 + u32::from(within);
        }
        Ok(())
    }

    /// Decompresses `codes`; `ends[i]` becomes the number of bytes that codes up to and including
    /// `i` gave.
    fn decompress(
        &self,
        codes: &[u8],
        bytes: &mut Vec<u8>,
        ends: &mut [u16; PAYLOAD_SIZE_BYTES],
    ) -> Result<()> {
        // A code gives at most 8 bytes, and 8128 * 8 fits a u16.
        const { assert!(PAYLOAD_SIZE_BYTES * SYMBOL_BYTES <= u16::MAX as usize) };
        let ends = &mut ends[..codes.len()];
        bytes.reserve((codes.len() + 1) * SYMBOL_BYTES);
        let start = bytes.len();
        // SAFETY: `start` is within the allocation.
        let out = unsafe { bytes.as_mut_ptr().add(start) };
        let mut length = 0usize;
        // Writes the symbol of `code` and moves on by its length.
        let put = |code: u8, length: &mut usize| {
            // SAFETY: each code moves on by at most 8 bytes, so before code i at most 8 * i bytes
            // are out; 8 * (codes + 1) bytes are reserved, so 8 more always fit.
            unsafe {
                out.add(*length)
                    .cast::<[u8; SYMBOL_BYTES]>()
                    .write_unaligned(self.symbols[usize::from(code)].to_le_bytes())
            };
            *length += usize::from(self.lengths[usize::from(code)]);
            *length as u16
        };
        let mut at = 0;
        while at < codes.len() {
            let mut block_end = codes.len();
            if let Some(block) = codes[at..].first_chunk::<8>() {
                if !has_escape(u64::from_le_bytes(*block)) {
                    let ends: &mut [u16; 8] = (&mut ends[at..at + 8])
                        .try_into()
                        .expect("as long as the block");
                    for (end, code) in ends.iter_mut().zip(block) {
                        *end = put(*code, &mut length);
                    }
                    at += 8;
                    continue;
                }
                block_end = at + 8;
            }
            while at < block_end {
                if codes[at] != ESCAPE {
                    ends[at] = put(codes[at], &mut length);
                    at += 1;
                    continue;
                }
                let Some(&literal) = codes.get(at + 1) else {
                    return Err(ends_within_escape());
                };
                // SAFETY: as for `put`; an escape and its byte are two codes that write one byte.
                unsafe { out.add(length).write(literal) };
                ends[at] = length as u16;
                length += 1;
                ends[at + 1] = length as u16;
                at += 2;
            }
        }
        // SAFETY: that many bytes were written after `start`: every code that moved `length` on
        // by n wrote n bytes there.
        unsafe { bytes.set_len(start + length) };
        Ok(())
    }
}

/// Whether one of the eight bytes is 255.
fn has_escape(codes: u64) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    // A byte of 255 is a zero byte of the complement.
    (!codes).wrapping_sub(LOW) & codes & HIGH != 0
}
