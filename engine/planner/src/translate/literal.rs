//! Constants, types and exact casts.

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use flashmesh_pushdown::{Literal, Scalar};

use crate::Reason;

/// The type that a Program has for values of `data_type`: one type for all representations of
/// text, one for bytes, and the values' own type for dictionaries.
pub fn program_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Dictionary(_, values) => program_type(values),
        other => other.clone(),
    }
}

/// A constant with its type.
pub(super) fn literal_of(value: &ScalarValue) -> Result<Literal, Reason> {
    Ok(Literal {
        value: scalar_of(value)?,
        data_type: program_type(&value.data_type()),
    })
}

/// A constant's value.
pub fn scalar_of(value: &ScalarValue) -> Result<Scalar, Reason> {
    use ScalarValue as V;
    let int = |v: i128| Ok(Scalar::Int(v));
    let unsupported = || Err(Reason::Type(value.data_type()));
    match value {
        V::Null => unsupported(),
        V::Dictionary(_, inner) => scalar_of(inner),
        v if v.is_null() => match v {
            V::List(_) | V::LargeList(_) | V::FixedSizeList(_) | V::Struct(_) | V::Map(_) => {
                unsupported()
            }
            _ => Ok(Scalar::Null),
        },
        V::Boolean(Some(v)) => Ok(Scalar::Boolean(*v)),
        V::Int8(Some(v)) => int((*v).into()),
        V::Int16(Some(v)) => int((*v).into()),
        V::Int32(Some(v)) => int((*v).into()),
        V::Int64(Some(v)) => int((*v).into()),
        V::UInt8(Some(v)) => int((*v).into()),
        V::UInt16(Some(v)) => int((*v).into()),
        V::UInt32(Some(v)) => int((*v).into()),
        V::UInt64(Some(v)) => int((*v).into()),
        V::Decimal128(Some(v), _, _) => int(*v),
        V::Date32(Some(v)) => int((*v).into()),
        V::Date64(Some(v)) => int((*v).into()),
        V::Time32Second(Some(v)) | V::Time32Millisecond(Some(v)) => int((*v).into()),
        V::Time64Microsecond(Some(v)) | V::Time64Nanosecond(Some(v)) => int((*v).into()),
        V::TimestampSecond(Some(v), _)
        | V::TimestampMillisecond(Some(v), _)
        | V::TimestampMicrosecond(Some(v), _)
        | V::TimestampNanosecond(Some(v), _) => int((*v).into()),
        V::DurationSecond(Some(v))
        | V::DurationMillisecond(Some(v))
        | V::DurationMicrosecond(Some(v))
        | V::DurationNanosecond(Some(v)) => int((*v).into()),
        V::Float16(Some(v)) => Ok(Scalar::Float(v.to_f64())),
        V::Float32(Some(v)) => Ok(Scalar::Float((*v).into())),
        V::Float64(Some(v)) => Ok(Scalar::Float(*v)),
        V::Utf8(Some(v)) | V::LargeUtf8(Some(v)) | V::Utf8View(Some(v)) => {
            Ok(Scalar::Bytes(v.as_bytes().to_vec()))
        }
        V::Binary(Some(v))
        | V::LargeBinary(Some(v))
        | V::BinaryView(Some(v))
        | V::FixedSizeBinary(_, Some(v)) => Ok(Scalar::Bytes(v.clone())),
        _ => unsupported(),
    }
}

/// The way back: a value of a column of type `data_type`, for statistics. `None` for types that
/// have no constants.
pub fn scalar_value_of(scalar: &Scalar, data_type: &DataType) -> Option<ScalarValue> {
    use ScalarValue as V;
    let value = match (scalar, data_type) {
        (Scalar::Null, _) => V::try_new_null(data_type).ok()?,
        (Scalar::Boolean(v), DataType::Boolean) => V::Boolean(Some(*v)),
        (Scalar::Int(v), t) => match t {
            DataType::Int8 => V::Int8(Some((*v).try_into().ok()?)),
            DataType::Int16 => V::Int16(Some((*v).try_into().ok()?)),
            DataType::Int32 => V::Int32(Some((*v).try_into().ok()?)),
            DataType::Int64 => V::Int64(Some((*v).try_into().ok()?)),
            DataType::UInt8 => V::UInt8(Some((*v).try_into().ok()?)),
            DataType::UInt16 => V::UInt16(Some((*v).try_into().ok()?)),
            DataType::UInt32 => V::UInt32(Some((*v).try_into().ok()?)),
            DataType::UInt64 => V::UInt64(Some((*v).try_into().ok()?)),
            DataType::Decimal128(precision, scale) => V::Decimal128(Some(*v), *precision, *scale),
            DataType::Date32 => V::Date32(Some((*v).try_into().ok()?)),
            DataType::Date64 => V::Date64(Some((*v).try_into().ok()?)),
            DataType::Time32(TimeUnit::Second) => V::Time32Second(Some((*v).try_into().ok()?)),
            DataType::Time32(_) => V::Time32Millisecond(Some((*v).try_into().ok()?)),
            DataType::Time64(TimeUnit::Nanosecond) => {
                V::Time64Nanosecond(Some((*v).try_into().ok()?))
            }
            DataType::Time64(_) => V::Time64Microsecond(Some((*v).try_into().ok()?)),
            DataType::Timestamp(unit, zone) => {
                let (v, zone) = (Some((*v).try_into().ok()?), zone.clone());
                match unit {
                    TimeUnit::Second => V::TimestampSecond(v, zone),
                    TimeUnit::Millisecond => V::TimestampMillisecond(v, zone),
                    TimeUnit::Microsecond => V::TimestampMicrosecond(v, zone),
                    TimeUnit::Nanosecond => V::TimestampNanosecond(v, zone),
                }
            }
            _ => return None,
        },
        (Scalar::Float(v), DataType::Float64) => V::Float64(Some(*v)),
        (Scalar::Float(v), DataType::Float32) => V::Float32(Some(*v as f32)),
        (Scalar::Bytes(v), DataType::Utf8View) => {
            V::Utf8View(Some(String::from_utf8(v.clone()).ok()?))
        }
        (Scalar::Bytes(v), DataType::BinaryView) => V::BinaryView(Some(v.clone())),
        (Scalar::Bytes(v), DataType::FixedSizeBinary(size)) => {
            V::FixedSizeBinary(*size, Some(v.clone()))
        }
        _ => return None,
    };
    Some(value)
}

/// Bits of an integer type and whether it is signed.
fn integer(data_type: &DataType) -> Option<(u32, bool)> {
    Some(match data_type {
        DataType::Int8 => (8, true),
        DataType::Int16 => (16, true),
        DataType::Int32 => (32, true),
        DataType::Int64 => (64, true),
        DataType::UInt8 => (8, false),
        DataType::UInt16 => (16, false),
        DataType::UInt32 => (32, false),
        DataType::UInt64 => (64, false),
        _ => return None,
    })
}

/// Decimal digits that hold every value of an integer type of so many bits.
fn digits(bits: u32) -> i32 {
    match bits {
        8 => 3,
        16 => 5,
        32 => 10,
        _ => 20,
    }
}

/// Bits of the significand of a float type.
fn significand(data_type: &DataType) -> Option<u32> {
    Some(match data_type {
        DataType::Float16 => 11,
        DataType::Float32 => 24,
        DataType::Float64 => 53,
        _ => return None,
    })
}

/// Whether every value of `from` has exactly one equal value of `to`, so that a comparison of
/// the values gives the same on either side of the cast.
fn widens_exactly(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)) => {
            s2 >= s1 && i32::from(*p2) - i32::from(*s2) >= i32::from(*p1) - i32::from(*s1)
        }
        (from, DataType::Decimal128(precision, scale)) => integer(from).is_some_and(|(bits, _)| {
            *scale >= 0 && i32::from(*precision) - i32::from(*scale) >= digits(bits)
        }),
        (from, to) => match (integer(from), integer(to)) {
            (Some((bits, signed)), Some((to_bits, to_signed))) => {
                if signed == to_signed {
                    to_bits >= bits
                } else {
                    to_signed && to_bits > bits
                }
            }
            (Some((bits, signed)), None) => {
                significand(to).is_some_and(|s| bits - u32::from(signed) <= s)
                    // Float16 ends at 65504.
                    && *to != DataType::Float16
            }
            (None, None) => matches!(
                (significand(from), significand(to)),
                (Some(from), Some(to)) if to >= from
            ),
            (None, Some(_)) => false,
        },
    }
}

/// The value of type `narrow` that equals `literal`, if there is one and the way from `narrow`
/// to the literal's type is exact; a comparison with it then gives the same truth values.
pub(super) fn narrow(literal: &Literal, narrow: &Option<DataType>) -> Option<Literal> {
    let narrow = narrow.as_ref()?;
    if !widens_exactly(narrow, &literal.data_type) {
        return None;
    }
    let value = match (&literal.value, narrow) {
        (Scalar::Int(value), DataType::Decimal128(precision, scale)) => {
            let DataType::Decimal128(_, literal_scale) = literal.data_type else {
                return None;
            };
            let factor = 10i128.checked_pow((literal_scale - scale).try_into().ok()?)?;
            let quotient = (value % factor == 0).then(|| value / factor)?;
            (quotient.unsigned_abs() < 10u128.checked_pow((*precision).into())?)
                .then_some(Scalar::Int(quotient))?
        }
        (Scalar::Int(value), narrow) => {
            let value = match literal.data_type {
                DataType::Decimal128(_, scale) => {
                    let factor = 10i128.checked_pow(scale.try_into().ok()?)?;
                    (value % factor == 0).then(|| value / factor)?
                }
                _ => *value,
            };
            fits(value, narrow).then_some(Scalar::Int(value))?
        }
        (Scalar::Float(value), narrow) if integer(narrow).is_some() => {
            // -0.0 sorts below 0.0, which the integer 0 is cast to.
            let whole = value.fract() == 0.0 && (*value != 0.0 || value.is_sign_positive());
            let int = *value as i128;
            (whole && fits(int, narrow)).then_some(Scalar::Int(int))?
        }
        _ => return None,
    };
    Some(Literal {
        value,
        data_type: narrow.clone(),
    })
}

fn fits(value: i128, data_type: &DataType) -> bool {
    match integer(data_type) {
        Some((bits, true)) => (-(1i128 << (bits - 1))..1i128 << (bits - 1)).contains(&value),
        Some((bits, false)) => (0..1i128 << bits).contains(&value),
        None => false,
    }
}
