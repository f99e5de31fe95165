//! Chunks of text and binary (and of nested values as bytes): CONST, DICT, FSST, RAWSTR.

use std::hash::BuildHasher;

use flashmesh_pushdown::Scalar;
use fsst::Compressor;
use hashbrown::{DefaultHashBuilder, HashTable};

use super::groups::Values;
use super::integers::{CodePlan, encode_codes, fill_nulls};
use super::{ChunkWriter, Encoded, NO_VALUES, PageSpec, UNBOUNDED, bit_width};
use crate::Result;
use crate::page::header::{align_region, flags};
use crate::page::layout::{TEXT_BLOCK_ROWS, text_lengths_size_bytes};
use crate::page::sketch::Sketch;
use crate::page::zone::bytes_key;
use crate::page::{Encoding, PAYLOAD_SIZE_BYTES};

/// Compression must save this share of the bytes.
const COMPRESSION_SAVES: (usize, usize) = (1, 12);
/// Bytes that are compressed to see whether it is worth while.
const SAMPLE_BYTES: usize = 16 << 10;
/// The code before a literal byte.
const ESCAPE: u8 = 255;

/// Encodes `rows`, of which NULLs are empty. `ordered`: the bytes are values, with zone keys,
/// extremes and a distinct count; else they stand for nested values.
pub(super) fn encode(mut writer: ChunkWriter, rows: &[&[u8]], ordered: bool) -> Result<Encoded> {
    if !ordered {
        write_rows(&mut writer, rows, |_| None)?;
        return Ok(writer.finish(UNBOUNDED, Vec::new(), None));
    }
    let mut sketch = Sketch::new();
    let dictionary = Dictionary::of(&writer, rows);
    let (min, max) = match &dictionary {
        Some(dictionary) => {
            dictionary
                .entries
                .iter()
                .for_each(|entry| sketch.add_bytes(entry));
            (
                dictionary.entries[0],
                dictionary.entries[dictionary.entries.len() - 1],
            )
        }
        None => {
            let valid = || {
                rows.iter()
                    .enumerate()
                    .filter(|(row, _)| !writer.is_null(*row))
                    .map(|(_, value)| *value)
            };
            valid().for_each(|value| sketch.add_bytes(value));
            // Keys decide most comparisons.
            let order =
                |a: &&[u8], b: &&[u8]| bytes_key(a).cmp(&bytes_key(b)).then_with(|| a.cmp(b));
            (
                valid().min_by(order).unwrap_or_default(),
                valid().max_by(order).unwrap_or_default(),
            )
        }
    };
    let all = (bytes_key(min), bytes_key(max));
    match dictionary {
        Some(dictionary) if dictionary.entries.len() == 1 => writer.push_constant(min, all)?,
        Some(dictionary) => dictionary.write(&mut writer, rows)?,
        None => write_rows(&mut writer, rows, |value| Some(bytes_key(value)))?,
    }
    let values = (Scalar::Bytes(min.to_vec()), Scalar::Bytes(max.to_vec()));
    Ok(writer.finish(all, sketch.into_bytes(), Some(values)))
}

/// The sorted distinct values of a chunk, and the code of each row.
struct Dictionary<'a> {
    entries: Vec<&'a [u8]>,
    codes: Vec<i64>,
    /// Least length and bits of a length.
    lengths: (usize, usize),
    /// Bytes of the page's data.
    size_bytes: usize,
}

impl<'a> Dictionary<'a> {
    /// `None` when the distinct values do not fit a page.
    fn of(writer: &ChunkWriter, rows: &[&'a [u8]]) -> Option<Self> {
        let hasher = DefaultHashBuilder::default();
        let mut numbers: HashTable<usize> = HashTable::with_capacity(rows.len().min(1024));
        let mut entries: Vec<&[u8]> = Vec::new();
        let mut bytes = 0;
        let mut codes = vec![0; rows.len()];
        for (row, code) in codes.iter_mut().enumerate() {
            if writer.is_null(row) {
                continue;
            }
            let value = rows[row];
            let hash = hasher.hash_one(value);
            *code = match numbers.find(hash, |number| entries[*number] == value) {
                Some(number) => *number as i64,
                None => {
                    numbers.insert_unique(hash, entries.len(), |number| {
                        hasher.hash_one(entries[*number])
                    });
                    entries.push(value);
                    bytes += value.len();
                    if text_lengths_size_bytes(entries.len(), 0) + bytes > PAYLOAD_SIZE_BYTES - 64 {
                        return None;
                    }
                    entries.len() as i64 - 1
                }
            };
        }
        let lengths = length_bits(entries.iter().map(|entry| entry.len()));
        let size_bytes = text_lengths_size_bytes(entries.len(), lengths.1) + bytes;
        if size_bytes > PAYLOAD_SIZE_BYTES {
            return None;
        }
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_unstable_by_key(|number| entries[*number]);
        let mut ranks = vec![0; entries.len()];
        (0..)
            .zip(&order)
            .for_each(|(rank, number)| ranks[*number] = rank);
        codes
            .iter_mut()
            .for_each(|code| *code = ranks[*code as usize]);
        fill_nulls(writer, &mut codes);
        let entries = order.into_iter().map(|number| entries[number]).collect();
        Some(Self {
            entries,
            codes,
            lengths,
            size_bytes,
        })
    }

    /// Writes dictionary and codes, or the text itself where that takes no more pages.
    fn write(self, writer: &mut ChunkWriter, rows: &[&[u8]]) -> Result<()> {
        let plan = CodePlan::new(writer, &self.codes);
        let text_bytes: usize = rows.iter().map(|row| row.len()).sum();
        if text_bytes.div_ceil(PAYLOAD_SIZE_BYTES) <= plan.pages() {
            let pages = plan_rows(writer, rows, false);
            if pages.len() <= plan.pages() + 1 {
                if writer.keeps() {
                    let keys = rows.iter().map(|row| bytes_key(row)).collect();
                    writer.keep(Values::text(rows, Encoding::RawStr, Some(keys)));
                    return Ok(());
                }
                return write_plan(writer, rows, &pages, Encoding::RawStr, |row| {
                    Some(bytes_key(rows[row]))
                });
            }
        }
        let (min, bits) = self.lengths;
        writer.push_aux(
            Encoding::RawStr,
            bits,
            min as i64,
            self.entries.len(),
            self.size_bytes,
            |data| {
                fill_text(data, min, bits, &self.entries);
            },
        );
        encode_codes(writer, self.codes, &plan, |code| {
            bytes_key(self.entries[code])
        })
    }
}

/// Least length, and bits of the lengths above it.
pub(super) fn length_bits(lengths: impl Iterator<Item = usize>) -> (usize, usize) {
    let (min, max) = lengths.fold((usize::MAX, 0), |(min, max), length| {
        (min.min(length), max.max(length))
    });
    (min, bit_width((max - min) as u64))
}

/// Writes text, compressed where that saves enough.
fn write_rows(
    writer: &mut ChunkWriter,
    rows: &[&[u8]],
    key: impl Fn(&[u8]) -> Option<i64>,
) -> Result<()> {
    let key = |row: usize| key(rows[row]);
    let Some((compressor, codes, ends)) = compress(rows) else {
        if writer.keeps() {
            let keys = (0..rows.len()).map(&key).collect();
            writer.keep(Values::text(rows, Encoding::RawStr, keys));
            return Ok(());
        }
        let pages = plan_rows(writer, rows, false);
        return write_plan(writer, rows, &pages, Encoding::RawStr, key);
    };
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let stored: Vec<&[u8]> = starts
        .zip(&ends)
        .map(|(start, end)| &codes[start as usize..*end as usize])
        .collect();
    let symbols = compressor.symbol_table();
    let lengths = align_region(symbols.len());
    writer.push_aux(
        Encoding::Fsst,
        0,
        0,
        symbols.len(),
        lengths + 8 * symbols.len(),
        |data| {
            data[..symbols.len()].copy_from_slice(compressor.symbol_lengths());
            for (bytes, symbol) in data[lengths..].as_chunks_mut().0.iter_mut().zip(symbols) {
                *bytes = symbol.to_u64().to_le_bytes();
            }
        },
    );
    if writer.keeps() {
        let keys = (0..rows.len()).map(&key).collect();
        writer.keep(Values::text(&stored, Encoding::Fsst, keys));
        return Ok(());
    }
    let pages = plan_rows(writer, &stored, true);
    write_plan(writer, &stored, &pages, Encoding::Fsst, key)
}

/// Symbols, codes, and the end of each row within the codes; `None` where compression would save
/// too little.
fn compress(rows: &[&[u8]]) -> Option<(Compressor, Vec<u8>, Vec<u64>)> {
    let total: usize = rows.iter().map(|row| row.len()).sum();
    if total <= 2 * PAYLOAD_SIZE_BYTES {
        return None;
    }
    let saves = |before: usize, after: usize| {
        before.saturating_sub(after) * COMPRESSION_SAVES.1 >= before * COMPRESSION_SAVES.0
    };
    let compressor = Compressor::train(&rows.to_vec());
    let (mut codes, mut ends) = (Vec::new(), Vec::new());
    let stride = (total / SAMPLE_BYTES).max(1);
    let sample: Vec<&[u8]> = rows
        .iter()
        .step_by(stride)
        .map(|row| &row[..row.len().min(SAMPLE_BYTES)])
        .collect();
    compressor
        .compress_bulk_into::<{ Compressor::DEFAULT_BULK_LANES }>(&sample, &mut codes, &mut ends);
    if !saves(sample.iter().map(|row| row.len()).sum(), codes.len()) {
        return None;
    }
    codes.clear();
    ends.clear();
    compressor
        .compress_bulk_into::<{ Compressor::DEFAULT_BULK_LANES }>(rows, &mut codes, &mut ends);
    // One page goes to the symbols.
    saves(total, codes.len() + PAYLOAD_SIZE_BYTES).then_some((compressor, codes, ends))
}

/// What goes into one page.
enum TextPage {
    /// So many rows; least length and bits of a length.
    Rows {
        rows: usize,
        bytes: usize,
        min: usize,
        bits: usize,
    },
    /// These bytes of a row that is longer than a page.
    Part {
        bytes: std::ops::Range<usize>,
        is_first: bool,
        is_last: bool,
    },
}

/// Cuts rows of stored bytes into pages. Compressed rows are never cut within an escape.
fn plan_rows(writer: &ChunkWriter, rows: &[&[u8]], compressed: bool) -> Vec<TextPage> {
    let size = |count: usize, nulls: usize, bits: usize, bytes: usize| {
        ChunkWriter::validity_size_bytes(count, nulls)
            + text_lengths_size_bytes(count, bits)
            + bytes
    };
    let mut pages = Vec::new();
    let mut start = 0;
    while start < rows.len() {
        if size(1, 0, 0, rows[start].len()) > PAYLOAD_SIZE_BYTES {
            plan_long(rows[start], compressed, &mut pages);
            start += 1;
            continue;
        }
        let (mut count, mut nulls, mut total) = (0, 0, 0);
        let (mut min, mut max) = (usize::MAX, 0);
        for (row, value) in rows.iter().enumerate().skip(start) {
            let (next_min, next_max) = (min.min(value.len()), max.max(value.len()));
            let next_nulls = nulls + usize::from(writer.is_null(row));
            let bits = bit_width((next_max - next_min) as u64);
            if size(count + 1, next_nulls, bits, total + value.len()) > PAYLOAD_SIZE_BYTES {
                break;
            }
            (count, nulls, total, min, max) = (
                count + 1,
                next_nulls,
                total + value.len(),
                next_min,
                next_max,
            );
        }
        pages.push(TextPage::Rows {
            rows: count,
            bytes: total,
            min,
            bits: bit_width((max - min) as u64),
        });
        start += count;
    }
    pages
}

/// Cuts a row that is longer than a page into parts of a page each.
fn plan_long(row: &[u8], compressed: bool, pages: &mut Vec<TextPage>) {
    let mut start = 0;
    while start < row.len() {
        let room = PAYLOAD_SIZE_BYTES
            - if start == 0 {
                text_lengths_size_bytes(1, 0)
            } else {
                0
            };
        let mut end = row.len().min(start + room);
        if compressed && end < row.len() {
            // Escapes pair up from the start of a run of escape codes on: an odd number of them
            // before the cut means that the last one's byte lies behind it.
            let escapes = row[start..end]
                .iter()
                .rev()
                .take_while(|code| **code == ESCAPE)
                .count();
            end -= escapes % 2;
        }
        pages.push(TextPage::Part {
            bytes: start..end,
            is_first: start == 0,
            is_last: end == row.len(),
        });
        start = end;
    }
}

fn write_plan(
    writer: &mut ChunkWriter,
    rows: &[&[u8]],
    pages: &[TextPage],
    encoding: Encoding,
    key: impl Fn(usize) -> Option<i64>,
) -> Result<()> {
    writer.check_pages(pages.len())?;
    for page in pages {
        match page {
            TextPage::Rows {
                rows: count,
                bytes,
                min,
                bits,
            } => {
                let first = writer.next_row;
                let mut zone = NO_VALUES;
                for row in (first..first + count).filter(|row| !writer.is_null(*row)) {
                    zone = match key(row) {
                        Some(key) => (zone.0.min(key), zone.1.max(key)),
                        None => UNBOUNDED,
                    };
                }
                let spec = PageSpec {
                    rows: *count,
                    encoding,
                    width: *bits,
                    flags: 0,
                    reference: *min as i64,
                    zone,
                };
                writer.push(
                    spec,
                    text_lengths_size_bytes(*count, *bits) + bytes,
                    |data| {
                        fill_text(data, *min, *bits, &rows[first..first + count]);
                    },
                )?;
            }
            TextPage::Part {
                bytes,
                is_first,
                is_last,
            } => {
                let row = if *is_first {
                    writer.next_row
                } else {
                    writer.next_row - 1
                };
                let part = &rows[row][bytes.clone()];
                let continues = if *is_last { 0 } else { flags::CONTINUES };
                if *is_first {
                    let zone = key(row).map_or(UNBOUNDED, |key| (key, key));
                    let spec = PageSpec {
                        rows: 1,
                        encoding,
                        width: 0,
                        flags: continues,
                        reference: part.len() as i64,
                        zone,
                    };
                    writer.push(spec, text_lengths_size_bytes(1, 0) + part.len(), |data| {
                        fill_text(data, part.len(), 0, &[part]);
                    })?;
                } else {
                    let spec = PageSpec {
                        encoding,
                        flags: continues,
                        zone: NO_VALUES,
                        ..PageSpec::default()
                    };
                    writer.push(spec, part.len(), |data| data.copy_from_slice(part))?;
                }
            }
        }
    }
    Ok(())
}

/// Writes starts, packed lengths and bytes.
pub(super) fn fill_text(data: &mut [u8], min: usize, bits: usize, rows: &[&[u8]]) {
    let (lengths, bytes) = data.split_at_mut(text_lengths_size_bytes(rows.len(), bits));
    let packed = 2 * rows.len().div_ceil(TEXT_BLOCK_ROWS);
    let mut start = 0;
    for (row, value) in rows.iter().enumerate() {
        if row % TEXT_BLOCK_ROWS == 0 {
            lengths[row / TEXT_BLOCK_ROWS * 2..][..2]
                .copy_from_slice(&(start as u16).to_le_bytes());
        }
        // At most 13 bits and 7 of shift.
        let at = packed + row * bits / 8;
        let length = ((value.len() - min) as u32) << (row * bits % 8);
        for (byte, bits) in lengths[at..].iter_mut().zip(length.to_le_bytes()).take(3) {
            *byte |= bits;
        }
        bytes[start..start + value.len()].copy_from_slice(value);
        start += value.len();
    }
}
