//! Distances from many vectors to a few, as fast as a CPU can: the kernels behind
//! [`flashmesh_pushdown::distance`], which says what they compute.
//!
//! Vectors are taken as they lie in a page: values of a fixed size in bytes, one after the other.
//! A page is small enough for the nearest cache, and so are the queries of a batch: all queries
//! are compared with one page before the next is touched.
//!
//! * Bits, one query: XOR and population count, code by code.
//! * Bits, several queries: eight codes side by side, word by word, so that the counts of eight
//!   codes are in the eight lanes of a register and nothing has to be added across.
//! * Floats: the 32 lanes of the definition are two (AVX-512), four (AVX2) or eight (NEON)
//!   registers.

mod bits;
mod floats;
mod search;
#[cfg(test)]
mod tests;
mod vectors;

use flashmesh_pushdown::{Metric, QueryVector};

use self::bits::{hamming_of, to_words};
use self::floats::{distances_of, products_of};
pub(crate) use self::search::{Found, Order, Search};
pub(crate) use self::vectors::FixedVectors;

/// Vectors to measure from, all of one length.
#[derive(Debug, Clone)]
pub(crate) struct Targets {
    metric: Metric,
    /// Bytes of a vector.
    size: usize,
    /// Of each query its bits, filled up with zeros to whole words.
    words: Vec<u64>,
    words_each: usize,
    /// Of each query its floats.
    floats: Vec<f32>,
    /// Of each query the sum of its squares.
    squares: Vec<f32>,
    count: usize,
}

/// Some of the vectors of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Positions<'a> {
    /// So many from the first on.
    All(usize),
    /// These.
    List(&'a [u32]),
}

impl Positions<'_> {
    pub fn len(&self) -> usize {
        match self {
            Self::All(count) => *count,
            Self::List(list) => list.len(),
        }
    }

    #[inline(always)]
    fn for_each(&self, mut f: impl FnMut(u32)) {
        match self {
            Self::All(count) => (0..*count as u32).for_each(f),
            Self::List(list) => list.iter().for_each(|position| f(*position)),
        }
    }
}

impl PartialEq for Targets {
    /// Bit by bit, so that 0.0 is not −0.0 and NaN is itself.
    fn eq(&self, other: &Self) -> bool {
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        (self.metric, self.size, self.count) == (other.metric, other.size, other.count)
            && self.words == other.words
            && bits(&self.floats) == bits(&other.floats)
    }
}

impl Targets {
    /// Vectors of `length` bytes (Hamming) or elements. The verifier has seen to it that all
    /// queries have that length.
    pub fn new<'a>(
        metric: Metric,
        length: usize,
        queries: impl IntoIterator<Item = &'a QueryVector>,
    ) -> Self {
        let size = if metric == Metric::Hamming {
            length
        } else {
            4 * length
        };
        let mut targets = Self {
            metric,
            size,
            words: Vec::new(),
            words_each: length.div_ceil(8),
            floats: Vec::new(),
            squares: Vec::new(),
            count: 0,
        };
        for query in queries {
            debug_assert_eq!(query.len(), length);
            targets.count += 1;
            match query {
                QueryVector::Bits(bytes) => {
                    let start = targets.words.len();
                    targets.words.resize(start + targets.words_each, 0);
                    to_words(bytes, &mut targets.words[start..]);
                }
                QueryVector::Floats(values) => {
                    let bytes: Vec<[u8; 4]> = values.iter().map(|v| v.to_le_bytes()).collect();
                    targets.squares.push(products_of(&bytes, values));
                    targets.floats.extend_from_slice(values);
                }
            }
        }
        targets
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// The bytes of a query of the Hamming distance.
    pub fn code(&self, query: usize) -> Vec<u8> {
        let words = self.query_words(query).iter();
        let mut bytes: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
        bytes.truncate(self.size);
        bytes
    }

    /// Bytes of a vector.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    fn query_words(&self, query: usize) -> &[u64] {
        &self.words[query * self.words_each..][..self.words_each]
    }

    fn query_floats(&self, query: usize) -> &[f32] {
        &self.floats[query * self.size / 4..][..self.size / 4]
    }

    /// Appends the Hamming distances of the vectors at `positions` of `values` to a query.
    pub fn hamming(
        &self,
        query: usize,
        values: &[u8],
        positions: Positions<'_>,
        out: &mut Vec<u32>,
    ) {
        hamming_of(self.query_words(query), self.size, values, positions, out);
    }

    /// Appends the distances of the vectors of floats at `positions` of `values` to a query.
    pub fn floats(
        &self,
        query: usize,
        values: &[u8],
        positions: Positions<'_>,
        out: &mut Vec<f32>,
    ) {
        let (floats, squares) = (self.query_floats(query), self.squares[query]);
        distances_of(self.metric, floats, squares, values, positions, out);
    }
}
