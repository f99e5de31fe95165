//! The content of an n-gram index: which pages of a segment can hold a text.
//!
//! A *gram* is three bytes in a row of a value, the letters A to Z made small. For each segment
//! and column the index holds a *part*: for each of [`SLOTS`] slots that grams are hashed to, the
//! *blocks* (data pages of the column) in which one of them occurs. A text can only be in blocks
//! that all its grams are in. Whatever the index answers is a superset: a candidate is tested
//! again by the filter.
//!
//! Grams that are in many blocks (more than one in [`DENSE_ONE_IN`]) tell little and would take
//! most of the room: their slot says "anywhere" only. What remains is what Cho and Rajagopalan
//! call useful grams ("A fast regular expression indexing engine", ICDE 2002). Slots in place of
//! a dictionary of grams, as in Bloom filters, make a part one array in which a gram's row is
//! known without a search, so that a query reads a few rows of it and not the part.
//!
//! A part is a `BinaryView` array of [`PART_ROWS`] rows, to be stored as any chunk is:
//!
//! | row | bytes |
//! |---|---|
//! | slot s < [`SLOTS`] | empty: no block; one byte 0xFF: anywhere; else a list, below |
//! | [`SLOTS`] | version (u8, 1), number of blocks (u32, little-endian) |
//!
//! A list of ascending block numbers: a byte k ≤ 31, then a stream of bits, the lowest of each
//! byte first, of Rice codes of the gaps (number − previous − 1, the first against −1): as many 1s
//! as the gap has in `gap >> k`, a 0, and the low k bits, lowest first. The last byte is filled up
//! with 1s, which make no code.

mod query;

pub use query::NgramQuery;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewBuilder};
use arrow::datatypes::DataType;

use super::kind::{Kind, Opened, Source};
use super::{IndexDefinition, IndexPart, PartData};
use crate::segment::Segment;
use crate::store::PageReader;
use crate::{Result, StorageError};

/// Bytes of a gram.
pub const GRAM_BYTES: usize = 3;
/// Slots that grams are hashed to: with the row that describes it, a part fills a chunk's rows.
pub const SLOTS: u32 = 65_535;
/// Rows of a part: the slots and one that describes it.
pub const PART_ROWS: u32 = SLOTS + 1;
/// A gram in more than one of so many blocks is dense: its slot says "anywhere".
pub const DENSE_ONE_IN: usize = 4;

/// Blocks whose text is read before their numbers are sorted into lists: bounds the memory.
const BLOCKS_AT_ONCE: usize = 1024;
const VERSION: u8 = 1;
const ANYWHERE: u8 = 0xFF;

/// The kind.
pub(super) struct Ngram;

impl Kind for Ngram {
    fn check(
        &self,
        _: &IndexDefinition,
        columns: &[(&str, &DataType)],
    ) -> std::result::Result<(), String> {
        match columns {
            [(_, DataType::Utf8View)] => Ok(()),
            [(name, other)] => Err(format!(
                "column '{name}' of type {other} is no text, and text is what an ngram index is for"
            )),
            _ => Err("an ngram index has one column; make one for each".into()),
        }
    }

    fn build_bytes(&self, _: &[&DataType], rows: u32) -> u64 {
        // A segment's array: its views, and lists of blocks, more of them where texts are long.
        u64::from(PART_ROWS) * 16 + u64::from(rows) * 16
    }

    /// An array with a slice for each segment.
    fn build(&self, source: &Source<'_>) -> Result<PartData> {
        let ordinal = source.definition.columns[0] as usize;
        let build = |segments: &[Arc<Segment>]| -> Result<Vec<ArrayRef>> {
            let mut slices = Vec::with_capacity(segments.len());
            let mut reader = source.store.reader()?;
            let source = Source {
                segments,
                ..*source
            };
            source.for_each(|segment, columns| {
                slices.push(build(&columns[0], &blocks(segment, ordinal, &mut reader)?)?);
                Ok(())
            })?;
            Ok(slices)
        };
        let segments = source.segments;
        let share = segments.len().div_ceil(source.pace.threads()).max(1);
        let slices = std::thread::scope(|scope| {
            let running: Vec<_> = segments
                .chunks(share)
                .map(|segments| scope.spawn(|| build(segments)))
                .collect();
            let ended = running.into_iter().map(|thread| {
                let failed = || StorageError::Invalid("building an ngram index failed".into());
                thread.join().unwrap_or_else(|_| Err(failed()))
            });
            ended.collect::<Result<Vec<_>>>()
        })?;
        Ok(PartData {
            arrays: vec![slices.into_iter().flatten().collect()],
            meta: Vec::new(),
        })
    }

    fn open(&self, part: &IndexPart, _: &mut PageReader) -> Result<Opened> {
        let slices = part.arrays.first().map_or(0, |array| array.chunks.len());
        if slices != part.covers.len() {
            return Err(StorageError::corrupt(format!(
                "an ngram index has {slices} arrays for {} segments; drop it and create it again",
                part.covers.len()
            )));
        }
        Ok(Arc::new(()))
    }
}

/// The rows of a segment that an n-gram index tells apart: those of each page of the column.
pub(crate) fn blocks(
    segment: &Segment,
    ordinal: usize,
    reader: &mut PageReader,
) -> Result<Vec<Range<u32>>> {
    let Some(chunk) = segment.chunks.get(ordinal) else {
        return Ok(Vec::new());
    };
    let index = chunk.page_index(reader)?;
    let zones = index.zones().iter().filter(|zone| zone.row_count > 0);
    Ok(zones
        .map(|zone| zone.first_row..zone.first_row + zone.row_count)
        .collect())
}

/// The slot of a gram whose letters are small.
fn slot(gram: [u8; GRAM_BYTES]) -> u32 {
    let number = u32::from_le_bytes([gram[0], gram[1], gram[2], 0]);
    // Multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4).
    let hash = number.wrapping_mul(0x9E37_79B1);
    ((u64::from(hash) * u64::from(SLOTS)) >> 32) as u32
}

/// Makes the part of a segment's column of text. `pages` are the rows of the column's data pages,
/// ascending and without gaps: one block each.
///
/// It takes about 45 ms of a processor for 8 MB of text.
///
/// # Errors
/// `Invalid` for a column that is not `Utf8View`, or pages that do not hold just its rows.
pub fn build(column: &ArrayRef, pages: &[Range<u32>]) -> Result<ArrayRef> {
    let invalid = |what: String| StorageError::Invalid(format!("an n-gram index of {what}"));
    if *column.data_type() != DataType::Utf8View {
        return Err(invalid(format!("a column of {}", column.data_type())));
    }
    let mut next = 0;
    for rows in pages {
        if rows.start != next || rows.end < rows.start {
            return Err(invalid(format!(
                "pages that do not follow each other: {rows:?}"
            )));
        }
        next = rows.end;
    }
    if next as usize != column.len() {
        return Err(invalid(format!("{} rows in pages of {next}", column.len())));
    }
    let text = column.as_string_view();
    // The blocks of each slot, and one more where they are too many.
    let mut blocks: Vec<Vec<u32>> = vec![Vec::new(); SLOTS as usize];
    let dense = pages.len() / DENSE_ONE_IN;
    // A bit for each block and slot: a block's bits stay in the nearest cache while its text is
    // read, and then the lists of the slots of one word do.
    let words = SLOTS.div_ceil(64) as usize;
    let mut bits = vec![0u64; words * pages.len().min(BLOCKS_AT_ONCE)];
    for (first, pages) in (0..)
        .step_by(BLOCKS_AT_ONCE)
        .zip(pages.chunks(BLOCKS_AT_ONCE))
    {
        for (rows, slots) in pages.iter().zip(bits.chunks_exact_mut(words)) {
            slots.fill(0);
            for row in rows.clone().filter(|row| text.is_valid(*row as usize)) {
                for_each_gram(text.value(row as usize).as_bytes(), |slot| {
                    slots[slot as usize / 64] |= 1 << (slot % 64);
                });
            }
        }
        for (place, lists) in blocks.chunks_mut(64).enumerate() {
            for (block, slots) in (first..).zip(bits.chunks_exact(words).take(pages.len())) {
                let mut word = slots[place];
                while word != 0 {
                    let list = &mut lists[word.trailing_zeros() as usize];
                    if list.len() <= dense {
                        list.push(block);
                    }
                    word &= word - 1;
                }
            }
        }
    }
    let mut part = BinaryViewBuilder::with_capacity(PART_ROWS as usize);
    let mut bytes = Vec::new();
    for blocks in blocks {
        bytes.clear();
        if blocks.len() > dense {
            bytes.push(ANYWHERE);
        } else if !blocks.is_empty() {
            encode(&blocks, pages.len(), &mut bytes);
        }
        part.append_value(&bytes);
    }
    bytes.clear();
    bytes.push(VERSION);
    bytes.extend((pages.len() as u32).to_le_bytes());
    part.append_value(&bytes);
    Ok(Arc::new(part.finish()))
}

/// Calls `f` with the slot of each gram of the text.
fn for_each_gram(text: &[u8], mut f: impl FnMut(u32)) {
    let [first, second, rest @ ..] = text else {
        return;
    };
    let mut gram = [0, first.to_ascii_lowercase(), second.to_ascii_lowercase()];
    for byte in rest {
        gram = [gram[1], gram[2], byte.to_ascii_lowercase()];
        f(slot(gram));
    }
}

/// Appends a list of block numbers, at least one.
fn encode(blocks: &[u32], of: usize, bytes: &mut Vec<u8>) {
    // The mean gap: the best parameter is about its logarithm.
    let k = (of / blocks.len()).max(1).ilog2().saturating_sub(1);
    bytes.push(k as u8);
    let (mut word, mut bits) = (0u64, 0);
    let mut put = |value: u64, width: u32| {
        word |= value << bits;
        bits += width;
        while bits >= 8 {
            bytes.push(word as u8);
            word >>= 8;
            bits -= 8;
        }
    };
    let mut next = 0;
    for block in blocks {
        let gap = block - next;
        for _ in 0..gap >> k {
            put(1, 1);
        }
        put(0, 1);
        put(u64::from(gap) & ((1 << k) - 1), k);
        next = block + 1;
    }
    // Fills a byte that has begun up; where none has, these bits are never written.
    put(0x7F, 7);
}

/// Sets the places of the blocks that a slot's bytes list; TRUE if they say "anywhere" instead.
fn decode(bytes: &[u8], blocks: &mut [bool]) -> Result<bool> {
    let corrupt = || StorageError::corrupt("an n-gram index lists blocks that are not there");
    let (k, stream) = match bytes {
        [] => return Ok(false),
        [ANYWHERE] => return Ok(true),
        [k, stream @ ..] if *k <= 31 => (u64::from(*k), stream),
        _ => return Err(corrupt()),
    };
    let bit = |at: usize| stream.get(at / 8).map(|byte| byte >> (at % 8) & 1);
    let (mut at, mut next) = (0, 0u64);
    loop {
        let mut quotient = 0u64;
        loop {
            match bit(at) {
                Some(1) => quotient += 1,
                Some(_) => break,
                // What fills the last byte up.
                None => return Ok(false),
            }
            at += 1;
        }
        at += 1;
        let mut gap = quotient << k;
        for place in 0..k {
            gap |= u64::from(bit(at).ok_or_else(corrupt)?) << place;
            at += 1;
        }
        let block = usize::try_from(next + gap)
            .ok()
            .and_then(|block| blocks.get_mut(block));
        *block.ok_or_else(corrupt)? = true;
        next += gap + 1;
    }
}

#[cfg(test)]
mod tests;
