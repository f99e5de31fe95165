//! The `hash` index: keys to rows (Minerva section IV-C, Willow section 4.5).
//!
//! A part is one array of entries of 12 bytes, sorted: eight bytes of the key's hash, big-endian,
//! and four of the row's number among the part's rows. As hashes are uniform, and the page index
//! knows the first of each page, a key costs the read of one page; a batch of keys reads each
//! page once, all of them announced before the first is waited for (Minerva's batching: many
//! lookups, one command).
//!
//! The hash of a single integer, date, time or boolean is a bijection of its 64 bits: an entry
//! then proves the key, and the key's column need not be read. Other keys are hashed with XXH3;
//! rows that are found so are candidates.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, Decimal128Array, FixedSizeBinaryArray, Int64Array,
    StringViewArray, make_array,
};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::DataType;
use flashmesh_pushdown::Scalar;
use twox_hash::XxHash3_64;

use super::kind::{Kind, Opened, Source};
use super::paged::{BytesPage, PagedArray};
use super::{Index, IndexDefinition, IndexKind, IndexPart, PartData};
use crate::page::{Page, bytes_key};
use crate::segment::SegmentId;
use crate::store::PageReader;
use crate::{Result, StorageError};

/// Bytes of an entry.
const ENTRY_BYTES: usize = 12;

/// The kind.
pub(super) struct Hash;

impl Kind for Hash {
    fn can_be_unique(&self) -> bool {
        true
    }

    fn check(
        &self,
        _: &IndexDefinition,
        columns: &[(&str, &DataType)],
    ) -> std::result::Result<(), String> {
        let mut columns = columns.iter();
        columns.try_for_each(|(name, data_type)| check_key_column(name, data_type))
    }

    fn build_bytes(&self, _: &[&DataType], rows: u32) -> u64 {
        // Entries, their bytes, and what encoding makes of these.
        u64::from(rows) * 48
    }

    fn build(&self, source: &Source<'_>) -> Result<PartData> {
        let mut builder = Builder::default();
        source.for_each(|_, columns| builder.add(columns))?;
        Ok(builder.finish().0)
    }

    fn open(&self, part: &IndexPart, reader: &mut PageReader) -> Result<Opened> {
        Ok(Arc::new(Directory::open(part, reader)?))
    }
}

/// Whether [`hash_keys`] takes a column.
///
/// # Errors
/// Why it does not, naming it.
pub fn check_key_column(name: &str, data_type: &DataType) -> std::result::Result<(), String> {
    let is_key = match data_type {
        DataType::Utf8View
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_)
        | DataType::Decimal128(..) => true,
        other => is_word(other),
    };
    match is_key {
        true => Ok(()),
        false => Err(format!(
            "column '{name}' of type {data_type} can't be a key; booleans, integers, decimals, dates, times, durations, text and binary can"
        )),
    }
}

/// Whether a value is a number of up to 64 bits.
fn is_word(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Boolean
            | DataType::Int8
            | DataType::Int16
            | DataType::Int32
            | DataType::Int64
            | DataType::UInt8
            | DataType::UInt16
            | DataType::UInt32
            | DataType::UInt64
            | DataType::Date32
            | DataType::Date64
            | DataType::Time32(_)
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_)
    )
}

/// Whether an entry of an index on these columns proves the key.
fn is_exact(columns: &[&DataType]) -> bool {
    matches!(columns, [one] if is_word(one))
}

/// Whether all rows that an index on these columns leads to have the key, as it has no tail
/// either: then nothing need be tested.
pub fn proves(index: &Index, columns: &[&DataType]) -> bool {
    is_exact(columns) && index.tail.is_empty()
}

/// A bijection of 64 bits without visible pattern: the finalizer of SplitMix64 (Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Hashes of the keys in rows of `columns`; `None` where a column is NULL, as NULL equals
/// nothing.
///
/// # Errors
/// `Invalid` when the columns' types can't be keys.
pub fn hash_keys(columns: &[ArrayRef]) -> Result<Vec<Option<u64>>> {
    let keys = columns
        .iter()
        .map(KeyColumn::of)
        .collect::<Result<Vec<_>>>()?;
    let rows = columns.first().map_or(0, |c| c.len());
    if let [KeyColumn::Words(words)] = keys.as_slice() {
        return Ok(words.iter().map(|w| w.map(|w| mix(w as u64))).collect());
    }
    let mut bytes = Vec::new();
    Ok((0..rows)
        .map(|row| {
            bytes.clear();
            for (key, column) in keys.iter().zip(columns) {
                if column.is_null(row) {
                    return None;
                }
                match key {
                    KeyColumn::Words(words) => bytes.extend(words.value(row).to_le_bytes()),
                    KeyColumn::Decimals(values) => bytes.extend(values.value(row).to_le_bytes()),
                    KeyColumn::Text(values) => push_bytes(&mut bytes, values.value(row).as_bytes()),
                    KeyColumn::Binary(values) => push_bytes(&mut bytes, values.value(row)),
                    KeyColumn::Fixed(values) => push_bytes(&mut bytes, values.value(row)),
                }
            }
            Some(XxHash3_64::oneshot(&bytes))
        })
        .collect())
}

/// Appends a value so that no two lists of values give the same bytes.
fn push_bytes(bytes: &mut Vec<u8>, value: &[u8]) {
    bytes.extend((value.len() as u32).to_le_bytes());
    bytes.extend_from_slice(value);
}

/// A column of keys by the form in which it is hashed.
enum KeyColumn {
    Words(Int64Array),
    Decimals(Decimal128Array),
    Text(StringViewArray),
    Binary(BinaryViewArray),
    Fixed(FixedSizeBinaryArray),
}

impl KeyColumn {
    fn of(column: &ArrayRef) -> Result<Self> {
        let data_type = column.data_type();
        // What is a number underneath is taken as that number.
        let as_number = |number: DataType| -> Result<ArrayRef> {
            let data = column.to_data().into_builder().data_type(number).build()?;
            Ok(make_array(data))
        };
        let words = match data_type {
            DataType::Utf8View => return Ok(Self::Text(column.as_string_view().clone())),
            DataType::BinaryView => return Ok(Self::Binary(column.as_binary_view().clone())),
            DataType::FixedSizeBinary(_) => {
                return Ok(Self::Fixed(column.as_fixed_size_binary().clone()));
            }
            DataType::Decimal128(..) => {
                return Ok(Self::Decimals(column.as_primitive().clone()));
            }
            DataType::Date32 | DataType::Time32(_) => as_number(DataType::Int32)?,
            DataType::UInt64
            | DataType::Date64
            | DataType::Time64(_)
            | DataType::Timestamp(..)
            | DataType::Duration(_) => as_number(DataType::Int64)?,
            other if is_word(other) => Arc::clone(column),
            other => {
                return Err(StorageError::Invalid(format!(
                    "a value of type {other} can't be a key"
                )));
            }
        };
        Ok(Self::Words(
            cast(&words, &DataType::Int64)?.as_primitive().clone(),
        ))
    }
}

/// The hash of a key given as constants, one for each column of the index; `None` if one is NULL
/// or not a value of its column's type, and so equals nothing.
pub fn hash_scalars(values: &[(&Scalar, &DataType)]) -> Option<u64> {
    let mut bytes = Vec::new();
    for (value, data_type) in values {
        let word = match value {
            Scalar::Int(value) if matches!(data_type, DataType::Decimal128(..)) => {
                bytes.extend(value.to_le_bytes());
                continue;
            }
            Scalar::Bytes(value) => {
                push_bytes(&mut bytes, value);
                continue;
            }
            Scalar::Int(value) => *value as u64,
            Scalar::Boolean(value) => u64::from(*value),
            Scalar::Null | Scalar::Float(_) => return None,
        };
        if values.len() == 1 {
            return Some(mix(word));
        }
        bytes.extend(word.to_le_bytes());
    }
    Some(XxHash3_64::oneshot(&bytes))
}

/// Makes a part.
#[derive(Debug, Default)]
pub struct Builder {
    /// Hash and row number.
    entries: Vec<(u64, u32)>,
    rows: u32,
}

impl Builder {
    /// Adds the rows of a segment; segments come in the order in which the part covers them.
    ///
    /// # Errors
    /// `Invalid` beyond 2³² rows.
    pub fn add(&mut self, columns: &[ArrayRef]) -> Result<()> {
        let rows = columns.first().map_or(0, |c| c.len());
        let end = u32::try_from(rows)
            .ok()
            .and_then(|rows| self.rows.checked_add(rows))
            .ok_or_else(|| {
                StorageError::Invalid("a part of a hash index covers at most 2^32 rows".into())
            })?;
        let numbered = (self.rows..end).zip(hash_keys(columns)?);
        self.entries
            .extend(numbered.filter_map(|(row, hash)| Some((hash?, row))));
        self.rows = end;
        Ok(())
    }

    /// The part, and its entries (hash and row number), ascending: what a unique index must look
    /// at.
    pub fn finish(mut self) -> (PartData, Vec<(u64, u32)>) {
        self.entries.sort_unstable();
        let mut bytes = Vec::with_capacity(self.entries.len() * ENTRY_BYTES);
        for (hash, row) in &self.entries {
            bytes.extend_from_slice(&hash.to_be_bytes());
            bytes.extend_from_slice(&row.to_le_bytes());
        }
        let entries: ArrayRef = Arc::new(FixedSizeBinaryArray::new(
            ENTRY_BYTES as i32,
            Buffer::from_vec(bytes),
            None,
        ));
        let data = PartData {
            arrays: vec![PartData::slices(&entries)],
            meta: Vec::new(),
        };
        (data, self.entries)
    }
}

/// The entries (hash and row number) of a part that was built, ascending: what a unique index must
/// look at.
pub(crate) fn entries(data: &PartData) -> impl Iterator<Item = (u64, u32)> {
    let slices = data.arrays.iter().flatten();
    let bytes = slices.filter_map(|slice| slice.as_fixed_size_binary_opt());
    bytes.flat_map(|slice| {
        let (entries, _) = slice.value_data().as_chunks::<ENTRY_BYTES>();
        entries.iter().map(|entry| (hash_of(entry), row_of(entry)))
    })
}

/// A part, opened for probes.
#[derive(Debug)]
struct Directory {
    entries: PagedArray,
    /// For each page the zone key of its last entry.
    last: Vec<i64>,
    /// First row number of each segment covered.
    starts: Vec<u32>,
    /// All entries (hash and row number), where one page has them: a commit of few rows makes such a part,
    /// and until they are merged each key that is looked for is looked for in all of them.
    few: Option<Box<[(u64, u32)]>>,
}

impl Directory {
    fn open(part: &IndexPart, reader: &mut PageReader) -> Result<Self> {
        let [array] = part.arrays.as_slice() else {
            return Err(StorageError::corrupt("a hash index part without its array"));
        };
        let entries = PagedArray::new(array.chunks.iter().cloned(), reader)?;
        let pages = 0..entries.pages() as u32;
        let last: Vec<i64> = pages.map(|page| entries.max(page)).collect();
        if !last.is_sorted() {
            return Err(StorageError::corrupt(
                "the pages of a hash index are not in the order of their keys; drop it and create it again",
            ));
        }
        let mut starts = Vec::with_capacity(part.covers.len());
        let mut next = 0u32;
        for (_, rows) in &part.covers {
            starts.push(next);
            next = next.checked_add(*rows).ok_or_else(|| {
                StorageError::corrupt("a part of a hash index covers more than 2^32 rows")
            })?;
        }
        if u64::from(next) < entries.len() {
            return Err(StorageError::corrupt(
                "a part of a hash index has more entries than rows; drop it and create it again",
            ));
        }
        let few = match entries.pages() {
            1 => {
                let page = entries.bytes_page(reader, 0, ENTRY_BYTES)?;
                let (entries, _) = page.values().as_chunks::<ENTRY_BYTES>();
                Some(entries.iter().map(|e| (hash_of(e), row_of(e))).collect())
            }
            _ => None,
        };
        Ok(Self {
            entries,
            last,
            starts,
            few,
        })
    }

    /// The segment of a row of the part, and its number there.
    fn place_of(&self, part: &IndexPart, row: u32) -> Result<(SegmentId, u32)> {
        let segment = self.starts.partition_point(|start| *start <= row) - 1;
        let row = row - self.starts[segment];
        let (id, rows) = part.covers[segment];
        match row < rows {
            true => Ok((id, row)),
            false => Err(StorageError::corrupt(
                "a hash index names a row that its segment does not have; drop it and create it again",
            )),
        }
    }

    /// Where among the entries of a page a hash may be: hashes are uniform.
    fn guess(&self, page: usize, entries: usize, hash: u64) -> usize {
        let below = page.checked_sub(1).map_or(i64::MIN, |page| self.last[page]);
        let span = self.last[page].abs_diff(below);
        let from = zone_key(hash).abs_diff(below).min(span);
        (u128::from(from) * entries as u128 / u128::from(span.max(1))) as usize
    }
}

/// Rows with one of the keys, of one part. `hashes` ascend. Calls `found` with the position of the
/// hash in `hashes`, and the segment and row.
///
/// # Errors
/// The device's errors; `Corrupt` when the pages do not hold such a part.
pub fn probe(
    part: &IndexPart,
    hashes: &[u64],
    reader: &mut PageReader,
    mut found: impl FnMut(usize, SegmentId, u32),
) -> Result<()> {
    let directory: &Directory = part.opened_here(IndexKind::Hash, reader)?;
    if let Some(few) = &directory.few {
        for (i, hash) in hashes.iter().enumerate() {
            let first = few.partition_point(|(known, _)| known < hash);
            let equal = few[first..].iter().take_while(|(known, _)| known == hash);
            for (_, row) in equal {
                let (id, row) = directory.place_of(part, *row)?;
                found(i, id, row);
            }
        }
        return Ok(());
    }
    // The first page that can hold each hash; equal hashes may go on in the next ones.
    let mut wanted: Vec<(usize, usize)> = Vec::with_capacity(hashes.len());
    let mut from = 0;
    for (i, hash) in hashes.iter().enumerate() {
        let hash = zone_key(*hash);
        from += directory.last[from..].partition_point(|last| *last < hash);
        if from == directory.last.len() {
            break;
        }
        wanted.push((i, from));
    }
    // All pages that are not cached are announced before the first is waited for.
    let mut pages: Vec<(usize, Option<Arc<Page>>)> = Vec::new();
    for (_, page) in &wanted {
        if pages.last().is_none_or(|(last, _)| last != page) {
            pages.push((*page, directory.entries.announce(reader, *page as u32)?));
        }
    }
    let mut pages = pages.into_iter().peekable();
    let mut open: Option<(usize, BytesPage)> = None;
    for (i, first) in wanted {
        let hash = hashes[i];
        for page in first..directory.last.len() {
            if open.as_ref().is_none_or(|(opened, _)| *opened != page) {
                let announced = pages.next_if(|(announced, _)| *announced == page);
                let (all, number) = (&directory.entries, page as u32);
                let entries = match announced.and_then(|(_, cached)| cached) {
                    Some(cached) => all.bytes_of(reader, number, cached, ENTRY_BYTES)?,
                    None => all.bytes_page(reader, number, ENTRY_BYTES)?,
                };
                open = Some((page, entries));
            }
            let Some((_, entries)) = &open else { break };
            let (entries, _) = entries.values().as_chunks::<ENTRY_BYTES>();
            let range = equal(entries, directory.guess(page, entries.len(), hash), hash);
            let goes_on = range.end == entries.len();
            for entry in &entries[range] {
                let (id, row) = directory.place_of(part, row_of(entry))?;
                found(i, id, row);
            }
            if !goes_on {
                break;
            }
        }
    }
    Ok(())
}

/// A hash as zone maps have it.
fn zone_key(hash: u64) -> i64 {
    bytes_key(&hash.to_be_bytes())
}

/// The hash of an entry.
fn hash_of(entry: &[u8; ENTRY_BYTES]) -> u64 {
    u64::from_be_bytes(*entry.first_chunk().expect("8 of 12 bytes"))
}

/// The row number of an entry.
fn row_of(entry: &[u8; ENTRY_BYTES]) -> u32 {
    u32::from_le_bytes(*entry.last_chunk().expect("4 of 12 bytes"))
}

/// The entries with this hash, looked for from the place `guess` on, which is mostly near: the
/// fewer lines of memory a search touches, the faster it is.
fn equal(entries: &[[u8; ENTRY_BYTES]], guess: usize, hash: u64) -> Range<usize> {
    let is_before = |place: usize| hash_of(&entries[place]) < hash;
    let (mut low, mut high) = (0, entries.len());
    let mut step = 1;
    let mut at = guess.min(high.saturating_sub(1));
    while low < high && at < high {
        if is_before(at) {
            low = at + 1;
            at += step;
        } else {
            high = at;
            at = match at.checked_sub(step) {
                Some(at) if at >= low => at,
                _ => break,
            };
        }
        step *= 2;
    }
    let within = &entries[low..high];
    let first = low + within.partition_point(|entry| hash_of(entry) < hash);
    let others = entries[first..].iter();
    first..first + others.take_while(|entry| hash_of(entry) == hash).count()
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// Whatever the guess, the search finds what a look at every entry finds; where entries are
    /// not sorted, as in a page that was tampered with, it ends all the same.
    #[test]
    fn entries_are_found_from_any_guess() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let hashes = rng.random_range(1..40);
            let count = rng.random_range(0..100);
            let mut entries: Vec<[u8; ENTRY_BYTES]> = (0..count)
                .map(|row: u32| {
                    let mut entry = [0; ENTRY_BYTES];
                    let hash: u64 = rng.random_range(0..hashes);
                    entry[..8].copy_from_slice(&hash.to_be_bytes());
                    entry[8..].copy_from_slice(&row.to_le_bytes());
                    entry
                })
                .collect();
            for guess in [0, 1, count as usize / 2, count as usize, usize::MAX] {
                equal(&entries, guess, 3);
            }
            entries.sort_unstable();
            for hash in 0..=hashes {
                let start = entries.iter().filter(|e| hash_of(e) < hash).count();
                let equals = entries.iter().filter(|e| hash_of(e) == hash).count();
                for guess in 0..count as usize + 2 {
                    let found = equal(&entries, guess, hash);
                    assert_eq!(found, start..start + equals, "seed {seed}, guess {guess}");
                }
            }
        }
    }
}
