//! Zone keys: every ordered type mapped to `i64`, so that a zone map is two numbers.
//!
//! The mapping is monotone: `v < w` implies `key(v) <= key(w)`. Where it is one-to-one, the key is
//! [`ZoneKey::Exact`].
//!
//! | type | key |
//! |---|---|
//! | integers, dates, times, timestamps, durations, months, decimals | the (unscaled) value; above `i64::MAX` or below `i64::MIN` (possible for `UInt64` and `Decimal128`) the nearest of the two |
//! | booleans | 0, 1 |
//! | floats | widened to 64 bits, in the total order of IEEE 754 (-0.0 before 0.0), as Arrow compares; any NaN is `i64::MAX`, any negative NaN `i64::MIN` |
//! | text, binary, fixed-size binary | the first eight bytes as a big-endian number, zeros after the end, sign bit flipped |
//! | all others | none: a page's zone is unbounded |

use arrow::datatypes::DataType;
use flashmesh_pushdown::Scalar;

use super::kind::Kind;

/// What is known of the values of one page without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageZone {
    /// First row of the page within the segment; in a page that only continues a long value, the
    /// row after that value, so that the last page whose `first_row` is not above a row holds it.
    pub first_row: u32,
    /// Rows of the page; 0 when it only continues a long value.
    pub row_count: u32,
    /// NULLs among them.
    pub null_count: u32,
    /// Least zone key; above `max` when all rows are NULL. A bound: with NULLs it may be lower
    /// than the least value's key.
    pub min: i64,
    /// Greatest zone key; a bound likewise.
    pub max: i64,
}

/// A value's zone key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZoneKey {
    /// No other value has this key.
    Exact(i64),
    /// Values that differ may share this key.
    Prefix(i64),
    /// The value has no key (NULL, or a type without an order here).
    Unknown,
}

/// The zone key of a value of type `data_type`.
pub fn zone_key(value: &Scalar, data_type: &DataType) -> ZoneKey {
    match value {
        Scalar::Null => ZoneKey::Unknown,
        Scalar::Boolean(value) => ZoneKey::Exact(i64::from(*value)),
        Scalar::Int(value) => {
            let key = saturate(*value);
            // Where wider values exist, they share the keys at the ends.
            let is_wide = matches!(data_type, DataType::UInt64 | DataType::Decimal128(..));
            if i128::from(key) != *value || is_wide && (key == i64::MAX || key == i64::MIN) {
                ZoneKey::Prefix(key)
            } else {
                ZoneKey::Exact(key)
            }
        }
        Scalar::Float(value) if value.is_nan() => ZoneKey::Prefix(float_key(*value)),
        Scalar::Float(value) => ZoneKey::Exact(float_key(*value)),
        Scalar::Bytes(value) => match Kind::of(data_type) {
            Ok(Kind::Bytes | Kind::Fixed { .. }) => ZoneKey::Prefix(bytes_key(value)),
            _ => ZoneKey::Unknown,
        },
    }
}

/// The nearest i64.
pub(super) fn saturate(value: i128) -> i64 {
    value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The key of a float.
pub(super) fn float_key(value: f64) -> i64 {
    let bits = value.to_bits() as i64;
    if value.is_nan() {
        // Not by payload: widening does not promise to keep it.
        return if bits < 0 { i64::MIN } else { i64::MAX };
    }
    // Negative floats order backwards: all bits but the sign are flipped.
    bits ^ (bits >> 63) & i64::MAX
}

/// The float that has a key.
pub fn float_of_key(key: i64) -> f64 {
    f64::from_bits((key ^ (key >> 63) & i64::MAX) as u64)
}

/// The key of text or binary.
pub fn bytes_key(value: &[u8]) -> i64 {
    let mut head = [0; 8];
    let known = value.len().min(8);
    head[..known].copy_from_slice(&value[..known]);
    i64::from_be_bytes(head) ^ i64::MIN
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    fn key(value: &Scalar, data_type: &DataType) -> i64 {
        match zone_key(value, data_type) {
            ZoneKey::Exact(key) | ZoneKey::Prefix(key) => key,
            ZoneKey::Unknown => panic!("{value:?} has no key"),
        }
    }

    #[test]
    fn keys_order_as_values_do() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = StdRng::seed_from_u64(seed);
        let special = [
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            -f64::NAN,
            f64::MIN_POSITIVE,
            1.0,
            -1.0,
        ];
        for _ in 0..100_000 {
            let mut float = || match rng.random_range(0..3) {
                0 => special[rng.random_range(0..special.len())],
                1 => f64::from_bits(rng.random()),
                _ => f64::from(rng.random::<i8>()),
            };
            let (a, b) = (float(), float());
            let (ka, kb) = (
                key(&Scalar::Float(a), &DataType::Float64),
                key(&Scalar::Float(b), &DataType::Float64),
            );
            if a.total_cmp(&b).is_lt() {
                assert!(ka <= kb, "{a} {b}");
            }
            if !a.is_nan() && !b.is_nan() {
                assert_eq!(a.total_cmp(&b), ka.cmp(&kb), "{a} {b}");
                assert_eq!(float_of_key(ka).to_bits(), a.to_bits());
            }

            let mut int = || rng.random::<i128>() >> rng.random_range(0..128);
            let (a, b) = (int(), int());
            let decimal = DataType::Decimal128(38, 0);
            let (ka, kb) = (
                zone_key(&Scalar::Int(a), &decimal),
                zone_key(&Scalar::Int(b), &decimal),
            );
            if a < b {
                assert!(
                    key(&Scalar::Int(a), &decimal) <= key(&Scalar::Int(b), &decimal),
                    "{a} {b}"
                );
            }
            if let (ZoneKey::Exact(ka), ZoneKey::Exact(kb)) = (ka, kb) {
                assert_eq!(a.cmp(&b), ka.cmp(&kb), "{a} {b}");
            }

            let mut bytes = || -> Vec<u8> {
                (0..rng.random_range(0..12))
                    .map(|_| [0, 1, b'a', 0x7f, 0x80, 0xff][rng.random_range(0..6)])
                    .collect()
            };
            let (a, b) = (bytes(), bytes());
            let binary = DataType::BinaryView;
            let (ka, kb) = (
                key(&Scalar::Bytes(a.clone()), &binary),
                key(&Scalar::Bytes(b.clone()), &binary),
            );
            if a < b {
                assert!(ka <= kb, "{a:?} {b:?}");
            }
        }
        assert!(
            key(&Scalar::Boolean(false), &DataType::Boolean)
                < key(&Scalar::Boolean(true), &DataType::Boolean)
        );
        assert_eq!(zone_key(&Scalar::Null, &DataType::Int64), ZoneKey::Unknown);
        assert_eq!(
            zone_key(&Scalar::Int(i128::from(u64::MAX)), &DataType::UInt64),
            ZoneKey::Prefix(i64::MAX)
        );
        assert_eq!(
            zone_key(&Scalar::Int(i128::from(i64::MAX)), &DataType::UInt64),
            ZoneKey::Prefix(i64::MAX)
        );
        assert_eq!(
            zone_key(&Scalar::Int(i128::from(i64::MAX)), &DataType::Int64),
            ZoneKey::Exact(i64::MAX)
        );
    }
}
