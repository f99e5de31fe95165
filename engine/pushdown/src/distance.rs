//! Distances between vectors: what [`Expr::Distance`](crate::Expr::Distance),
//! [`Output::Nearest`](crate::Output::Nearest) and the SQL functions of the same names mean, to
//! the last bit.
//!
//! | metric | operands | result | meaning |
//! |---|---|---|---|
//! | `hamming` | FixedSizeBinary(n) | UInt32 | bits that differ (BlueDBM section 7.1) |
//! | `l2` | FixedSizeList(Float32, n) | Float32 | √Σ(a−b)² |
//! | `cosine` | FixedSizeList(Float32, n) | Float32 | 1 − Σab / (√Σa² · √Σb²) |
//! | `dot` | FixedSizeList(Float32, n) | Float32 | Σab, a similarity: the greatest is the nearest |
//!
//! # Sums of floats
//!
//! Addition of floats depends on its order, so the order is part of the meaning, chosen such that
//! 32 adders work side by side: element `i` is added to lane `i % 32`, in ascending order, each
//! product rounded before it is added (no fused multiply-add); then lane `j` takes up lane
//! `j + 16` for `j < 16`, lane `j + 8` for `j < 8`, and so on. All of it is in 32 bits. The last
//! step of `cosine` (roots, product, quotient, difference) is in 64 bits and rounded once.
//! Every machine therefore has the same result, and an answer doesn't depend on where it was
//! computed.
//!
//! A result that is not a number is always the positive quiet NaN, which `ORDER BY` has after all
//! numbers: a cosine with a vector of zeros, and whatever comes of NaN or of opposite infinities.

use std::fmt::{self, Display, Formatter};

use arrow::datatypes::DataType;

/// Lanes that a sum of floats has.
pub const LANES: usize = 32;

/// How the distance of two vectors is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Bits that differ.
    Hamming,
    /// Euclidean distance.
    L2,
    /// One minus the cosine of the angle.
    Cosine,
    /// The inner product, which grows with likeness.
    Dot,
}

impl Metric {
    /// Type of the distance: UInt32 for `Hamming`, Float32 for the others.
    pub fn data_type(self) -> DataType {
        match self {
            Self::Hamming => DataType::UInt32,
            Self::L2 | Self::Cosine | Self::Dot => DataType::Float32,
        }
    }

    /// Length of the vectors of a column type that the metric is for, in bytes (`Hamming`) or
    /// elements; `None` for other types.
    pub fn length_of(self, data_type: &DataType) -> Option<usize> {
        match (self, data_type) {
            (Self::Hamming, DataType::FixedSizeBinary(size)) => usize::try_from(*size).ok(),
            (Self::L2 | Self::Cosine | Self::Dot, DataType::FixedSizeList(child, size))
                if *child.data_type() == DataType::Float32 =>
            {
                usize::try_from(*size).ok()
            }
            _ => None,
        }
    }

    /// Whether a vector is of the kind that the metric is for.
    pub fn takes(self, vector: &QueryVector) -> bool {
        matches!(vector, QueryVector::Bits(_)) == (self == Self::Hamming)
    }
}

impl Display for Metric {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hamming => "hamming_distance",
            Self::L2 => "l2_distance",
            Self::Cosine => "cosine_distance",
            Self::Dot => "dot_product",
        })
    }
}

/// A constant vector.
#[derive(Debug, Clone, PartialEq)]
pub enum QueryVector {
    /// Bits, in bytes.
    Bits(Vec<u8>),
    /// Floats.
    Floats(Vec<f32>),
}

impl QueryVector {
    /// Bytes or elements.
    pub fn len(&self) -> usize {
        match self {
            Self::Bits(bytes) => bytes.len(),
            Self::Floats(values) => values.len(),
        }
    }

    /// Whether it has no element.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::Bits(bytes) => bytes.len(),
            Self::Floats(values) => 4 * values.len(),
        }
    }
}

/// Bits in which two slices of one length differ; what one has beyond the other is not counted.
pub fn hamming(left: &[u8], right: &[u8]) -> u32 {
    let (left_words, left_rest) = left.as_chunks::<8>();
    let (right_words, right_rest) = right.as_chunks::<8>();
    if left.len() != right.len() {
        return left
            .iter()
            .zip(right)
            .map(|(l, r)| (l ^ r).count_ones())
            .sum();
    }
    let words = left_words.iter().zip(right_words);
    let words = words.map(|(l, r)| (u64::from_le_bytes(*l) ^ u64::from_le_bytes(*r)).count_ones());
    let rest = left_rest.iter().zip(right_rest);
    words.sum::<u32>() + rest.map(|(l, r)| (l ^ r).count_ones()).sum::<u32>()
}

/// Euclidean distance of two slices of one length.
pub fn l2(left: &[f32], right: &[f32]) -> f32 {
    let sum = sum(left.iter().zip(right).map(|(l, r)| (l - r) * (l - r)));
    number(sum.sqrt())
}

/// One minus the cosine of the angle between two slices of one length; NaN where one is all zero.
pub fn cosine(left: &[f32], right: &[f32]) -> f32 {
    cosine_of(
        sum_of_products(left, right),
        sum_of_products(left, left),
        sum_of_products(right, right),
    )
}

/// Inner product of two slices of one length.
pub fn dot(left: &[f32], right: &[f32]) -> f32 {
    number(sum_of_products(left, right))
}

/// The distance between two vectors of one length; `None` for slices that the metric is not for.
pub fn distance(metric: Metric, left: &[f32], right: &[f32]) -> Option<f32> {
    match metric {
        Metric::Hamming => None,
        Metric::L2 => Some(l2(left, right)),
        Metric::Cosine => Some(cosine(left, right)),
        Metric::Dot => Some(dot(left, right)),
    }
}

/// The cosine distance out of the sums of the products of two vectors with each other, of the
/// first with itself and of the second with itself.
pub fn cosine_of(both: f32, left: f32, right: f32) -> f32 {
    let norms = f64::from(left).sqrt() * f64::from(right).sqrt();
    number((1.0 - f64::from(both) / norms) as f32)
}

/// The one NaN in place of any.
#[inline]
pub fn number(value: f32) -> f32 {
    // On the bits: a compiler may take any NaN for another where they are told by `is_nan`.
    const INFINITY: u32 = 0x7f80_0000;
    let bits = value.to_bits();
    let is_nan = bits & 0x7fff_ffff > INFINITY;
    f32::from_bits(if is_nan { 0x7fc0_0000 } else { bits })
}

/// What [`Output::Nearest`](crate::Output::Nearest) orders a distance by, least first: the
/// distance itself, of an inner product its negative; NaN is last.
pub fn rank(metric: Metric, distance: f32) -> f32 {
    match metric {
        Metric::Dot if !distance.is_nan() => -distance,
        _ => distance,
    }
}

fn sum_of_products(left: &[f32], right: &[f32]) -> f32 {
    sum(left.iter().zip(right).map(|(l, r)| l * r))
}

/// The sum in the order that the module describes.
fn sum(terms: impl Iterator<Item = f32>) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    for (index, term) in terms.enumerate() {
        lanes[index % LANES] += term;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_what_they_say() {
        assert_eq!(hamming(&[0xff, 0], &[0x0f, 1]), 5);
        assert_eq!(hamming(&[0xff; 19], &[0; 19]), 152);
        assert_eq!(l2(&[1.0, 2.0], &[4.0, 6.0]), 5.0);
        assert_eq!(dot(&[1.0, 2.0], &[4.0, 6.0]), 16.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 3.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[-2.0, 0.0]), 2.0);
        assert_eq!(l2(&[], &[]), 0.0);
    }

    #[test]
    fn what_is_no_number_is_the_positive_nan() {
        let nan = 0x7fc0_0000;
        for value in [
            cosine(&[0.0; 4], &[1.0; 4]),
            l2(&[-f32::NAN; 2], &[0.0; 2]),
            l2(&[f32::INFINITY], &[f32::INFINITY]),
            dot(&[f32::INFINITY, f32::INFINITY], &[1.0, -1.0]),
        ] {
            assert_eq!(value.to_bits(), nan);
        }
        assert!(
            rank(Metric::Dot, f32::NAN)
                .total_cmp(&f32::INFINITY)
                .is_gt()
        );
    }

    /// Long sums stay near those in 64 bits.
    #[test]
    fn lanes_add_up() {
        let left: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let right: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.11).cos()).collect();
        let exact: f64 = left
            .iter()
            .zip(&right)
            .map(|(l, r)| f64::from(l - r).powi(2))
            .sum();
        assert!((f64::from(l2(&left, &right)) - exact.sqrt()).abs() < 1e-4);
    }
}
