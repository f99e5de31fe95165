//! The types that a Program knows, and the rules between them.
//!
//! | types | physical form | may |
//! |---|---|---|
//! | Boolean | [`Physical::Boolean`] | be computed with |
//! | Int8 … Int64, UInt8 … UInt64, Decimal128, Date32, Date64, Time32, Time64, Timestamp, Duration | [`Physical::Int`] | be computed with |
//! | Float16, Float32, Float64 | [`Physical::Float`] | be computed with |
//! | Utf8View, BinaryView, FixedSizeBinary | [`Physical::Bytes`] | be computed with |
//! | Decimal256, Interval, List, LargeList, FixedSizeList, Struct, Map | – | be *carried* |
//!
//! A carried column is given back as it is, tested with `IS NULL`, or counted; nothing else.

use arrow::datatypes::{
    DECIMAL128_MAX_PRECISION, DECIMAL128_MAX_SCALE, DECIMAL256_MAX_PRECISION, DECIMAL256_MAX_SCALE,
    DataType, TimeUnit,
};

use crate::ArithmeticOp;

/// What values of a type are at run time: the variants of [`Scalar`](crate::Scalar).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Physical {
    /// `Scalar::Boolean`.
    Boolean,
    /// `Scalar::Int`.
    Int,
    /// `Scalar::Float`.
    Float,
    /// `Scalar::Bytes`.
    Bytes,
}

/// The physical form of a type that can be computed with; `None` for carried and unknown types.
pub fn physical(data_type: &DataType) -> Option<Physical> {
    match data_type {
        DataType::Boolean => Some(Physical::Boolean),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => Some(Physical::Float),
        DataType::Utf8View | DataType::BinaryView => Some(Physical::Bytes),
        DataType::FixedSizeBinary(size) if *size >= 0 => Some(Physical::Bytes),
        other => integer_range(other).map(|_| Physical::Int),
    }
}

/// Whether values of the type are integers at run time: integers, decimals, dates, times.
pub fn is_integer_like(data_type: &DataType) -> bool {
    integer_range(data_type).is_some()
}

/// Whether a table column of this type may be carried, but not computed with.
pub fn is_carried(data_type: &DataType) -> bool {
    match data_type {
        DataType::Interval(_) => true,
        DataType::Decimal256(precision, scale) => {
            (1..=DECIMAL256_MAX_PRECISION).contains(precision)
                && (-DECIMAL256_MAX_SCALE..=*precision as i8).contains(scale)
        }
        DataType::List(child) | DataType::LargeList(child) | DataType::Map(child, _) => {
            may_be_nested(child.data_type())
        }
        DataType::FixedSizeList(child, size) => *size >= 0 && may_be_nested(child.data_type()),
        DataType::Struct(fields) => fields.iter().all(|f| may_be_nested(f.data_type())),
        _ => false,
    }
}

/// Whether a Program knows the type at all.
pub fn is_known(data_type: &DataType) -> bool {
    physical(data_type).is_some() || is_carried(data_type)
}

/// Whether the type may occur inside of a list or struct.
fn may_be_nested(data_type: &DataType) -> bool {
    is_known(data_type)
        || matches!(
            data_type,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary
        )
}

/// Least and greatest value of an integer-like type: the range of its storage, for decimals that
/// of its precision. `None` for all other types, and for decimals that Arrow does not allow.
pub fn integer_range(data_type: &DataType) -> Option<(i128, i128)> {
    fn range<T: Into<i128>>(min: T, max: T) -> Option<(i128, i128)> {
        Some((min.into(), max.into()))
    }
    match data_type {
        DataType::Int8 => range(i8::MIN, i8::MAX),
        DataType::Int16 => range(i16::MIN, i16::MAX),
        DataType::Int32
        | DataType::Date32
        | DataType::Time32(TimeUnit::Second | TimeUnit::Millisecond) => range(i32::MIN, i32::MAX),
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(TimeUnit::Microsecond | TimeUnit::Nanosecond)
        | DataType::Timestamp(_, _)
        | DataType::Duration(_) => range(i64::MIN, i64::MAX),
        DataType::UInt8 => range(u8::MIN, u8::MAX),
        DataType::UInt16 => range(u16::MIN, u16::MAX),
        DataType::UInt32 => range(u32::MIN, u32::MAX),
        DataType::UInt64 => range(u64::MIN, u64::MAX),
        DataType::Decimal128(precision, scale) => {
            let valid = (1..=DECIMAL128_MAX_PRECISION).contains(precision)
                && (-DECIMAL128_MAX_SCALE..=DECIMAL128_MAX_SCALE).contains(scale)
                && *scale <= *precision as i8;
            valid.then(|| {
                let max = 10_i128.pow(u32::from(*precision)) - 1;
                (-max, max)
            })
        }
        _ => None,
    }
}

/// The type of `left op right`, or `None` when the operation is not defined.
///
/// Integers and floats: both sides of one type, which is the result's. Decimals may differ:
///
/// | operator | scale | precision, at most 38 |
/// |---|---|---|
/// | `+` `-` | max(s1, s2) | scale + max(p1 − s1, p2 − s2) + 1 |
/// | `*` | s1 + s2, at most 38 | p1 + p2 + 1 |
///
/// The scales of a sum differ by at most 38. These are the rules of Arrow's numeric kernels (in
/// turn Hive's), and so DataFusion's.
pub fn arithmetic_type(op: ArithmeticOp, left: &DataType, right: &DataType) -> Option<DataType> {
    if let (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) = (left, right) {
        integer_range(left).and(integer_range(right))?;
        let (p1, s1, p2, s2) = (
            i32::from(*p1),
            i32::from(*s1),
            i32::from(*p2),
            i32::from(*s2),
        );
        let (precision, scale) = match op {
            ArithmeticOp::Add | ArithmeticOp::Subtract => {
                let scale = s1.max(s2);
                // The other side is multiplied by 10^(scale - its scale), which must exist.
                let rescaled_digits = scale - s1.min(s2);
                if rescaled_digits > i32::from(DECIMAL128_MAX_SCALE) {
                    return None;
                }
                (scale + (p1 - s1).max(p2 - s2) + 1, scale)
            }
            ArithmeticOp::Multiply => (p1 + p2 + 1, s1 + s2),
        };
        let precision = u8::try_from(precision).ok()?.min(DECIMAL128_MAX_PRECISION);
        let result = DataType::Decimal128(precision, i8::try_from(scale).ok()?);
        return is_known(&result).then_some(result);
    }
    let same_number = left == right && (left.is_integer() || left.is_floating());
    same_number.then(|| left.clone())
}

/// Whether `CAST(from AS to)` is one of the widenings that a Program has.
///
/// | from | to |
/// |---|---|
/// | any type | itself |
/// | Boolean | an integer: 0 or 1 |
/// | an integer | an integer whose range contains its own |
/// | Int8, Int16, UInt8, UInt16 | Float32 |
/// | any integer | Float64; beyond 2^53 the nearest, ties to even, as Arrow casts |
/// | an integer | Decimal128 with a scale ≥ 0 and room for every value |
/// | Decimal128(p1, s1) | Decimal128(p2, s2) with s2 ≥ s1 and p2 − s2 ≥ p1 − s1 |
/// | Float16 | Float32, Float64 |
/// | Float32 | Float64 |
/// | Date32 | Date64, or Timestamp without a zone |
/// | Timestamp | Timestamp of a finer unit and the same zone |
///
/// The casts to Timestamp can leave 64 bits, which is an error as it is in DataFusion; all
/// others succeed for every value.
pub fn is_widening_cast(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    if from == to {
        return physical(from).is_some();
    }
    match (from, to) {
        (Boolean, to) => to.is_integer(),
        (Int8 | Int16 | UInt8 | UInt16, Float32) => true,
        (from, Float64) if from.is_integer() => true,
        (from, to) if from.is_integer() && to.is_integer() => {
            contains_range(integer_range(to), integer_range(from))
        }
        (from, Decimal128(_, scale)) if from.is_integer() => {
            // A value v becomes v × 10^scale, which must be within the precision.
            let factor = u32::try_from(*scale)
                .ok()
                .and_then(|s| 10_i128.checked_pow(s));
            let scaled = integer_range(from)
                .zip(factor)
                .and_then(|((min, max), factor)| {
                    Some((min.checked_mul(factor)?, max.checked_mul(factor)?))
                });
            contains_range(integer_range(to), scaled)
        }
        (Decimal128(p1, s1), Decimal128(p2, s2)) => {
            is_known(from)
                && is_known(to)
                && s2 >= s1
                && *p2 as i32 - *s2 as i32 >= *p1 as i32 - *s1 as i32
        }
        (Float16, Float32 | Float64) | (Float32, Float64) => true,
        (Date32, Date64 | Timestamp(_, None)) => true,
        (Timestamp(from_unit, from_zone), Timestamp(to_unit, to_zone)) => {
            from_zone == to_zone && units_per_second(to_unit) > units_per_second(from_unit)
        }
        _ => false,
    }
}

/// Whether both ranges exist and `outer` contains `inner`.
fn contains_range(outer: Option<(i128, i128)>, inner: Option<(i128, i128)>) -> bool {
    outer
        .zip(inner)
        .is_some_and(|(outer, inner)| outer.0 <= inner.0 && inner.1 <= outer.1)
}

/// How many of the unit make a second.
pub fn units_per_second(unit: &TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

/// The type in which DataFusion sums values of this type; `None` when they have no sum.
///
/// Signed integers sum as Int64, unsigned ones as UInt64, floats as Float64, and
/// Decimal128(p, s) as Decimal128(min(38, p + 10), s).
pub fn sum_type(argument: &DataType) -> Option<DataType> {
    match argument {
        DataType::Decimal128(precision, scale) if is_known(argument) => {
            let precision = precision.saturating_add(10).min(DECIMAL128_MAX_PRECISION);
            Some(DataType::Decimal128(precision, *scale))
        }
        other if other.is_signed_integer() => Some(DataType::Int64),
        other if other.is_unsigned_integer() => Some(DataType::UInt64),
        other if other.is_floating() => Some(DataType::Float64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_has_one_class() {
        for known in [
            DataType::Boolean,
            DataType::UInt64,
            DataType::Decimal128(38, -3),
            DataType::Time32(TimeUnit::Second),
            DataType::Timestamp(TimeUnit::Nanosecond, Some("Europe/Berlin".into())),
            DataType::FixedSizeBinary(16),
        ] {
            assert!(physical(&known).is_some() && !is_carried(&known), "{known}");
        }
        let vector = DataType::new_fixed_size_list(DataType::Float32, 3, true);
        let words = DataType::new_list(DataType::Utf8, true);
        let wide = DataType::Decimal256(76, 38);
        for carried in [vector, words, wide, DataType::Struct(Default::default())] {
            assert!(
                physical(&carried).is_none() && is_carried(&carried),
                "{carried}"
            );
        }
        for unknown in [
            DataType::Null,
            DataType::Utf8,
            DataType::Time32(TimeUnit::Nanosecond),
            DataType::Decimal128(0, 0),
            DataType::Decimal128(39, 0),
            DataType::Decimal128(3, 4),
            DataType::Decimal256(77, 1),
            DataType::Decimal256(3, 4),
            DataType::new_list(DataType::Null, true),
        ] {
            assert!(!is_known(&unknown), "{unknown}");
        }
    }

    #[test]
    fn casts_to_decimal_need_room_for_every_value() {
        let decimal = |p, s| DataType::Decimal128(p, s);
        assert!(is_widening_cast(&DataType::Int64, &decimal(20, 0)));
        assert!(is_widening_cast(&DataType::Int64, &decimal(21, 2)));
        assert!(!is_widening_cast(&DataType::Int64, &decimal(20, 2)));
        assert!(!is_widening_cast(&DataType::UInt64, &decimal(19, 0)));
        assert!(!is_widening_cast(&DataType::Int8, &decimal(3, -1)));
        assert!(is_widening_cast(&decimal(15, 2), &decimal(17, 4)));
        assert!(!is_widening_cast(&decimal(15, 2), &decimal(16, 4)));
        assert!(!is_widening_cast(&decimal(15, 2), &decimal(38, 1)));
    }
}
