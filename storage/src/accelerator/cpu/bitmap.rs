//! Bitmaps over rows: selections, validity, Boolean vectors.

use std::ops::Range;

use arrow::buffer::BooleanBuffer;
use multiversion::multiversion;

/// Words that are looked at together.
const WORDS_AT_ONCE: usize = 8;

/// A bitmap whose bit `i % 64` of word `i / 64` belongs to row `i`. Bits past `len` are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Bitmap {
    words: Vec<u64>,
    len: usize,
}

/// A word whose lowest `n` bits are set, for `n` up to 64.
#[inline]
fn low_bits(n: usize) -> u64 {
    if n >= 64 { u64::MAX } else { (1 << n) - 1 }
}

impl Bitmap {
    /// All rows, or none.
    pub fn filled(len: usize, value: bool) -> Self {
        let mut bitmap = Self::default();
        bitmap.reset(len, value);
        bitmap
    }

    /// Takes over `words` as they are but for the bits past `len`, which are cleared.
    pub fn from_words(words: Vec<u64>, len: usize) -> Self {
        let mut bitmap = Self { words, len };
        bitmap.words.resize(len.div_ceil(64), 0);
        bitmap.mask_tail();
        bitmap
    }

    /// A copy of Arrow's bits.
    pub fn from_arrow(bits: &BooleanBuffer) -> Self {
        Self::from_words(bits.bit_chunks().iter_padded().collect(), bits.len())
    }

    /// A bitmap of `len` bits, bit `i` being `f(i)`.
    pub fn from_fn(len: usize, mut f: impl FnMut(usize) -> bool) -> Self {
        let mut bitmap = Self::default();
        bitmap.fill_from_fn(len, &mut f);
        bitmap
    }

    /// Like [`Self::from_fn`], reusing the allocation.
    #[inline]
    pub fn fill_from_fn(&mut self, len: usize, mut f: impl FnMut(usize) -> bool) {
        self.words.clear();
        self.words.reserve(len.div_ceil(64));
        self.len = len;
        for first in (0..len).step_by(64) {
            let mut word = 0;
            for bit in 0..(len - first).min(64) {
                word |= u64::from(f(first + bit)) << bit;
            }
            self.words.push(word);
        }
    }

    /// Becomes a bitmap of `len` equal bits, reusing the allocation.
    pub fn reset(&mut self, len: usize, value: bool) {
        self.words.clear();
        self.words
            .resize(len.div_ceil(64), if value { u64::MAX } else { 0 });
        self.len = len;
        self.mask_tail();
    }

    fn mask_tail(&mut self) {
        if !self.len.is_multiple_of(64)
            && let Some(last) = self.words.last_mut()
        {
            *last &= low_bits(self.len % 64);
        }
    }

    /// Number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The words, for kernels.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    #[inline]
    pub fn get(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    #[inline]
    pub fn set(&mut self, row: usize, value: bool) {
        let bit = 1 << (row % 64);
        if value {
            self.words[row / 64] |= bit;
        } else {
            self.words[row / 64] &= !bit;
        }
    }

    /// Number of set bits.
    pub fn count(&self) -> usize {
        count_ones(&self.words)
    }

    /// Whether any bit is set.
    pub fn any(&self) -> bool {
        self.words.iter().any(|w| *w != 0)
    }

    /// Whether all bits are set.
    pub fn is_full(&self) -> bool {
        let whole = self.len / 64;
        self.words[..whole].iter().all(|word| *word == u64::MAX)
            && (self.len.is_multiple_of(64) || self.words[whole] == low_bits(self.len % 64))
    }

    /// Calls `f` with the index of each word that `range` touches and the mask of its rows.
    #[inline]
    fn for_words(range: Range<u32>, mut f: impl FnMut(usize, u64) -> bool) -> bool {
        let (start, end) = (range.start as usize, range.end as usize);
        if start >= end {
            return false;
        }
        let (first, last) = (start / 64, (end - 1) / 64);
        for index in first..=last {
            let mut mask = u64::MAX;
            if index == first {
                mask &= u64::MAX << (start % 64);
            }
            if index == last {
                mask &= low_bits(end - last * 64);
            }
            if f(index, mask) {
                return true;
            }
        }
        false
    }

    /// Set bits within `range`.
    pub fn count_in(&self, range: Range<u32>) -> usize {
        let mut count = 0;
        Self::for_words(range, |i, mask| {
            count += (self.words[i] & mask).count_ones() as usize;
            false
        });
        count
    }

    /// Whether at least `least` bits within `range` are set; looks no further than it has to.
    pub fn has_at_least(&self, least: usize, range: Range<u32>) -> bool {
        let mut count = 0;
        least == 0
            || Self::for_words(range, |i, mask| {
                count += (self.words[i] & mask).count_ones() as usize;
                count >= least
            })
    }

    /// Whether a bit within `range` is set.
    pub fn any_in(&self, range: Range<u32>) -> bool {
        Self::for_words(range, |i, mask| self.words[i] & mask != 0)
    }

    pub fn clear_range(&mut self, range: Range<u32>) {
        Self::for_words(range, |i, mask| {
            self.words[i] &= !mask;
            false
        });
    }

    pub fn set_range(&mut self, range: Range<u32>) {
        Self::for_words(range, |i, mask| {
            self.words[i] |= mask;
            false
        });
    }

    /// The 64 bits from bit `start` on; bits past the end read as zero.
    #[inline]
    pub fn word_at(&self, start: usize) -> u64 {
        word_at(&self.words, start)
    }

    /// ANDs `bits` (bit 0 belongs to row `range.start`) into the rows of `range`.
    pub fn and_range(&mut self, range: Range<u32>, bits: &[u64]) {
        let start = range.start as usize;
        Self::for_words(range, |i, mask| {
            // Row `i * 64` is bit `i * 64 - start` of `bits`, which may lie before its start.
            let word = match (i * 64).checked_sub(start) {
                Some(offset) => word_at(bits, offset),
                None => bits.first().map_or(0, |w| w << (start - i * 64)),
            };
            self.words[i] &= word | !mask;
            false
        });
    }

    /// Copies the bits of `range` so that bit 0 of the copy is row `range.start`.
    pub fn slice(&self, range: Range<u32>) -> Bitmap {
        let mut slice = Bitmap::default();
        self.slice_into(range, &mut slice);
        slice
    }

    /// [`Self::slice`] into an existing bitmap.
    pub fn slice_into(&self, range: Range<u32>, slice: &mut Bitmap) {
        let len = range.len();
        slice.words.clear();
        slice
            .words
            .extend((0..len.div_ceil(64)).map(|i| self.word_at(range.start as usize + i * 64)));
        slice.len = len;
        slice.mask_tail();
    }

    /// Appends the rows of `range` whose bit is set.
    pub fn append_rows(&self, range: Range<u32>, rows: &mut Vec<u32>) {
        if !range.is_empty() {
            append_rows(&self.words, range, rows);
        }
    }

    /// Calls `f` with each row whose bit is not set.
    #[inline]
    pub fn for_zeros(&self, mut f: impl FnMut(usize)) {
        for (index, word) in self.words.iter().enumerate() {
            let mut zeros = !word & low_bits(self.len - index * 64);
            while zeros != 0 {
                f(index * 64 + zeros.trailing_zeros() as usize);
                zeros &= zeros - 1;
            }
        }
    }

    /// First row at or after `from` whose bit is set.
    pub fn next_row(&self, from: u32) -> Option<u32> {
        let from = from as usize;
        if from >= self.len {
            return None;
        }
        let row = |index: usize, word: u64| {
            let row = index * 64 + word.trailing_zeros() as usize;
            (row < self.len).then_some(row as u32)
        };
        let first = from / 64;
        let word = self.words[first] & u64::MAX << (from % 64);
        if word != 0 {
            return row(first, word);
        }
        // Of a sparse selection most words are zeros: vectors of them are skipped at once.
        let rest = &self.words[first + 1..];
        let is_any = |words: &[u64]| words.iter().fold(0, |any, word| any | word) != 0;
        let zeros = rest.chunks_exact(WORDS_AT_ONCE).take_while(|w| !is_any(w));
        let skipped = zeros.count() * WORDS_AT_ONCE;
        let found = skipped + rest[skipped..].iter().position(|word| *word != 0)?;
        row(first + 1 + found, rest[found])
    }

    /// Last row of `range` whose bit is set.
    pub fn last_row(&self, range: Range<u32>) -> Option<u32> {
        let (first, end) = (range.start as usize / 64, (range.end as usize).div_ceil(64));
        for index in (first..end).rev() {
            let mut word = self.words[index];
            if index == first {
                word &= u64::MAX << (range.start % 64);
            }
            if (index + 1) * 64 > range.end as usize {
                word &= low_bits(range.end as usize - index * 64);
            }
            if word != 0 {
                return Some(index as u32 * 64 + 63 - word.leading_zeros());
            }
        }
        None
    }

    pub fn and(&mut self, other: &Bitmap) {
        self.words
            .iter_mut()
            .zip(&other.words)
            .for_each(|(a, b)| *a &= b);
    }

    pub fn or(&mut self, other: &Bitmap) {
        self.words
            .iter_mut()
            .zip(&other.words)
            .for_each(|(a, b)| *a |= b);
    }

    pub fn and_not(&mut self, other: &Bitmap) {
        self.words
            .iter_mut()
            .zip(&other.words)
            .for_each(|(a, b)| *a &= !b);
    }

    pub fn invert(&mut self) {
        self.words.iter_mut().for_each(|w| *w = !*w);
        self.mask_tail();
    }

    /// The bits at `rows`, in that order.
    pub fn gather(&self, rows: &[u32]) -> Bitmap {
        Bitmap::from_fn(rows.len(), |i| self.get(rows[i] as usize))
    }
}

/// Set bits of a word from which on its bytes are looked up rather than its bits counted off.
const DENSE_WORD: u32 = 12;

/// Rows that room is made for at a time.
const ROOM: usize = 1024;

/// The positions of the bits of each byte, ascending, and zeros.
static POSITIONS: [[u8; 8]; 256] = {
    let mut positions = [[0; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut bit, mut found) = (0, 0);
        while bit < 8 {
            if byte >> bit & 1 == 1 {
                positions[byte][found] = bit;
                found += 1;
            }
            bit += 1;
        }
        byte += 1;
    }
    positions
};

/// [`Bitmap::append_rows`] for a range that is not empty.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn append_rows(words: &[u64], range: Range<u32>, rows: &mut Vec<u32>) {
    let (start, end) = (range.start as usize, range.end as usize);
    let (first, last) = (start / 64, (end - 1) / 64);
    let mut at = rows.len();
    for (index, word) in (first..).zip(&words[first..=last]) {
        let mut word = *word;
        if index == first {
            word &= u64::MAX << (start % 64);
        }
        if index == last {
            word &= low_bits(end - last * 64);
        }
        if word == 0 {
            continue;
        }
        if rows.len() < at + 64 + 8 {
            rows.resize(at + ROOM, 0);
        }
        at += write_rows(word, index as u32 * 64, &mut rows[at..]);
    }
    rows.truncate(at);
}

/// Writes `base` plus the position of each bit of `word`; gives their number. Up to eight places
/// behind are written to as well.
#[inline(always)]
fn write_rows(word: u64, base: u32, out: &mut [u32]) -> usize {
    let mut at = 0;
    if word.count_ones() < DENSE_WORD {
        let mut word = word;
        while word != 0 {
            out[at] = base + word.trailing_zeros();
            at += 1;
            word &= word - 1;
        }
        return at;
    }
    for (index, byte) in word.to_le_bytes().into_iter().enumerate() {
        let positions = &POSITIONS[usize::from(byte)];
        for (out, position) in out[at..at + 8].iter_mut().zip(positions) {
            *out = base + index as u32 * 8 + u32::from(*position);
        }
        at += byte.count_ones() as usize;
    }
    at
}

/// The set bits of `words`; the baseline of x86-64 has no instruction for it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn count_ones(words: &[u64]) -> usize {
    words.iter().map(|w| w.count_ones() as usize).sum()
}

/// The 64 bits of `words` from bit `start` on, with zeros past the end.
#[inline]
pub(super) fn word_at(words: &[u64], start: usize) -> u64 {
    let (index, shift) = (start / 64, start % 64);
    let low = words.get(index).copied().unwrap_or(0) >> shift;
    if shift == 0 {
        low
    } else {
        low | words.get(index + 1).copied().unwrap_or(0) << (64 - shift)
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// Every operation on ranges against a vector of booleans, at random lengths and offsets.
    #[test]
    fn range_operations_agree_with_a_vector_of_booleans() {
        let seed = rand::random::<u64>();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        for _ in 0..500 {
            let len = rng.random_range(1..2000usize);
            let share = [0.5, 0.002][rng.random_range(0..2)];
            let mut oracle: Vec<bool> = (0..len).map(|_| rng.random_bool(share)).collect();
            let mut bitmap = Bitmap::from_fn(len, |i| oracle[i]);
            let start = rng.random_range(0..=len);
            let end = rng.random_range(start..=len);
            let range = start as u32..end as u32;
            match rng.random_range(0..4) {
                0 => {
                    bitmap.clear_range(range.clone());
                    oracle[start..end].fill(false);
                }
                1 => {
                    bitmap.set_range(range.clone());
                    oracle[start..end].fill(true);
                }
                2 => {
                    bitmap.invert();
                    oracle.iter_mut().for_each(|b| *b = !*b);
                }
                _ => {
                    // Garbage past the range's end must not matter.
                    let bits: Vec<u64> = (0..(end - start).div_ceil(64))
                        .map(|_| rng.random())
                        .collect();
                    bitmap.and_range(range.clone(), &bits);
                    for i in start..end {
                        oracle[i] &= bits[(i - start) / 64] >> ((i - start) % 64) & 1 == 1;
                    }
                }
            }
            assert_eq!((0..len).map(|i| bitmap.get(i)).collect::<Vec<_>>(), oracle);
            let inside = &oracle[start..end];
            assert_eq!(bitmap.count(), oracle.iter().filter(|b| **b).count());
            assert_eq!(
                bitmap.count_in(range.clone()),
                inside.iter().filter(|b| **b).count()
            );
            assert_eq!(bitmap.any_in(range.clone()), inside.contains(&true));
            let mut zeros = Vec::new();
            bitmap.for_zeros(|row| zeros.push(row));
            assert_eq!(zeros, (0..len).filter(|i| !oracle[*i]).collect::<Vec<_>>());
            let slice = bitmap.slice(range.clone());
            assert_eq!(
                (0..slice.len()).map(|i| slice.get(i)).collect::<Vec<_>>(),
                inside
            );
            let mut rows = Vec::new();
            bitmap.append_rows(range, &mut rows);
            let expected: Vec<u32> = (start..end)
                .filter(|i| oracle[*i])
                .map(|i| i as u32)
                .collect();
            assert_eq!(rows, expected);
            let last = (start..end).rev().find(|i| oracle[*i]).map(|i| i as u32);
            assert_eq!(bitmap.last_row(start as u32..end as u32), last);
            assert_eq!(
                bitmap.next_row(start as u32),
                (start..len).find(|i| oracle[*i]).map(|i| i as u32)
            );
        }
    }
}
