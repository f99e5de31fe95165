//! Sets of vertices that several threads fill.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bit for each vertex. No operation orders any other memory: who needs what another thread has
/// done waits for that thread first.
#[derive(Debug)]
pub(super) struct Bits {
    words: Vec<AtomicU64>,
}

impl Bits {
    /// An empty set of numbers below `count`.
    pub fn new(count: u32) -> Self {
        Self {
            words: (0..(count as usize).div_ceil(64))
                .map(|_| AtomicU64::new(0))
                .collect(),
        }
    }

    /// Whether `number` is in the set.
    #[inline(always)]
    pub fn has(&self, number: u32) -> bool {
        self.words[number as usize / 64].load(Ordering::Relaxed) >> (number % 64) & 1 == 1
    }

    /// Puts `number` into the set; FALSE when it was there before. Of several threads that try at
    /// once, one gets TRUE.
    #[inline(always)]
    pub fn insert(&self, number: u32) -> bool {
        let (word, bit) = (&self.words[number as usize / 64], 1 << (number % 64));
        word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Takes `number` out of the set.
    pub fn remove(&self, number: u32) {
        self.words[number as usize / 64].fetch_and(!(1 << (number % 64)), Ordering::Relaxed);
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.iter_mut().for_each(|word| *word.get_mut() = 0);
    }

    /// Appends the numbers of 64 × `words` that are in the set (or are not in it) to `out`,
    /// ascending. Those not in it may go beyond the last number by up to 63.
    pub fn append(&self, words: std::ops::Range<usize>, is_in: bool, out: &mut Vec<u32>) {
        for (place, word) in (words.start..).zip(&self.words[words]) {
            let word = word.load(Ordering::Relaxed);
            let mut left = if is_in { word } else { !word };
            while left != 0 {
                out.push(place as u32 * 64 + left.trailing_zeros());
                left &= left - 1;
            }
        }
    }

    /// Sorts numbers of the set's range, none of them twice: through the bits, which must be for
    /// nobody's use, when there are more than `few`.
    pub fn sort(&mut self, numbers: &mut Vec<u32>, few: usize) {
        if numbers.len() <= few {
            return numbers.sort_unstable();
        }
        self.clear();
        numbers.iter().for_each(|number| _ = self.insert(*number));
        numbers.clear();
        self.append(0..self.words(), true, numbers);
    }

    /// All numbers in the set, ascending.
    pub fn all(&self) -> Vec<u32> {
        let mut all = Vec::new();
        self.append(0..self.words(), true, &mut all);
        all
    }

    /// The bitmap as bytes, in place of those in `out`.
    pub fn copy_to(&self, out: &mut Vec<u8>) {
        out.clear();
        let words = self.words.iter();
        out.extend(words.flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()));
    }

    /// Number of words.
    pub fn words(&self) -> usize {
        self.words.len()
    }
}
