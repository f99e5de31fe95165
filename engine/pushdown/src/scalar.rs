//! Values: how they fit a type, their order, and their way into and out of Arrow arrays.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, FixedSizeBinaryBuilder,
    PrimitiveArray, StringViewArray,
};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Date64Type, Decimal128Type, DurationMicrosecondType,
    DurationMillisecondType, DurationNanosecondType, DurationSecondType, Float16Type, Float32Type,
    Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Time32MillisecondType,
    Time32SecondType, Time64MicrosecondType, Time64NanosecondType, TimeUnit,
    TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

use crate::types::{Physical, integer_range, physical};
use crate::{Literal, ProgramError, Scalar};

/// Arrow's half-precision float.
type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Runs `$body` with `$t` the Arrow type of an integer-like `DataType`, `$otherwise` for others.
macro_rules! with_integer_type {
    ($data_type:expr, $t:ident => $body:expr, _ => $otherwise:expr) => {{
        macro_rules! body {
            ($arrow_type:ty) => {{
                type $t = $arrow_type;
                $body
            }};
        }
        match $data_type {
            DataType::Int8 => body!(Int8Type),
            DataType::Int16 => body!(Int16Type),
            DataType::Int32 => body!(Int32Type),
            DataType::Int64 => body!(Int64Type),
            DataType::UInt8 => body!(UInt8Type),
            DataType::UInt16 => body!(UInt16Type),
            DataType::UInt32 => body!(UInt32Type),
            DataType::UInt64 => body!(UInt64Type),
            DataType::Decimal128(_, _) => body!(Decimal128Type),
            DataType::Date32 => body!(Date32Type),
            DataType::Date64 => body!(Date64Type),
            DataType::Time32(TimeUnit::Second) => body!(Time32SecondType),
            DataType::Time32(TimeUnit::Millisecond) => body!(Time32MillisecondType),
            DataType::Time64(TimeUnit::Microsecond) => body!(Time64MicrosecondType),
            DataType::Time64(TimeUnit::Nanosecond) => body!(Time64NanosecondType),
            DataType::Timestamp(TimeUnit::Second, _) => body!(TimestampSecondType),
            DataType::Timestamp(TimeUnit::Millisecond, _) => body!(TimestampMillisecondType),
            DataType::Timestamp(TimeUnit::Microsecond, _) => body!(TimestampMicrosecondType),
            DataType::Timestamp(TimeUnit::Nanosecond, _) => body!(TimestampNanosecondType),
            DataType::Duration(TimeUnit::Second) => body!(DurationSecondType),
            DataType::Duration(TimeUnit::Millisecond) => body!(DurationMillisecondType),
            DataType::Duration(TimeUnit::Microsecond) => body!(DurationMicrosecondType),
            DataType::Duration(TimeUnit::Nanosecond) => body!(DurationNanosecondType),
            _ => $otherwise,
        }
    }};
}

impl Scalar {
    /// Whether this is NULL.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Whether a column of the type can hold the value: it has the type's physical form and is
    /// within its range (a decimal within its precision, a narrow float without rounding, text
    /// valid UTF-8, fixed-size binary of that size). NULL fits every type.
    pub fn fits(&self, data_type: &DataType) -> bool {
        match (self, data_type) {
            (Self::Null, _) => true,
            (Self::Boolean(_), DataType::Boolean) => true,
            (Self::Int(value), other) => {
                integer_range(other).is_some_and(|(min, max)| (min..=max).contains(value))
            }
            (Self::Float(_), DataType::Float64) => true,
            (Self::Float(value), DataType::Float32) => {
                same_float(widen_f32(narrow_f32(*value)), *value)
            }
            (Self::Float(value), DataType::Float16) => {
                same_float(widen_f16(narrow_f16(*value)), *value)
            }
            (Self::Bytes(_), DataType::BinaryView) => true,
            (Self::Bytes(bytes), DataType::Utf8View) => std::str::from_utf8(bytes).is_ok(),
            (Self::Bytes(bytes), DataType::FixedSizeBinary(size)) => {
                usize::try_from(*size) == Ok(bytes.len())
            }
            _ => false,
        }
    }

    /// The order of [`CompareOp`](crate::CompareOp): −0.0 equals 0.0. `None` when either value
    /// is NULL, or when they are of different physical forms.
    pub fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Float(left), Self::Float(right)) => {
                Some(fold_zero(*left).total_cmp(&fold_zero(*right)))
            }
            _ => self.total_order(other),
        }
    }

    /// The order of `ORDER BY`, `min`, `max` and the equality of `IN`: as [`Scalar::compare`],
    /// but −0.0 is before 0.0. `None` under the same conditions.
    pub fn total_order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Boolean(left), Self::Boolean(right)) => Some(left.cmp(right)),
            (Self::Int(left), Self::Int(right)) => Some(left.cmp(right)),
            (Self::Float(left), Self::Float(right)) => Some(left.total_cmp(right)),
            (Self::Bytes(left), Self::Bytes(right)) => Some(left.cmp(right)),
            _ => None,
        }
    }

    /// The value in row `row` of `array`; `None` when the array's type is not one to compute
    /// with. Panics when there is no such row.
    pub fn from_array(array: &dyn Array, row: usize) -> Option<Self> {
        let form = physical(array.data_type())?;
        if array.is_null(row) {
            return Some(Self::Null);
        }
        Some(match (form, array.data_type()) {
            (Physical::Boolean, _) => Self::Boolean(array.as_boolean().value(row)),
            (Physical::Int, other) => with_integer_type!(
                other,
                T => Self::Int(array.as_primitive::<T>().value(row).into()),
                _ => return None
            ),
            (_, DataType::Float16) => {
                Self::Float(widen_f16(array.as_primitive::<Float16Type>().value(row)))
            }
            (_, DataType::Float32) => {
                Self::Float(widen_f32(array.as_primitive::<Float32Type>().value(row)))
            }
            (_, DataType::Float64) => Self::Float(array.as_primitive::<Float64Type>().value(row)),
            (_, DataType::Utf8View) => {
                Self::Bytes(array.as_string_view().value(row).as_bytes().to_vec())
            }
            (_, DataType::BinaryView) => Self::Bytes(array.as_binary_view().value(row).to_vec()),
            (_, DataType::FixedSizeBinary(_)) => {
                Self::Bytes(array.as_fixed_size_binary().value(row).to_vec())
            }
            _ => return None,
        })
    }

    /// An array of these values, each of which must fit the type.
    pub fn to_array(values: &[Self], data_type: &DataType) -> Result<ArrayRef, ProgramError> {
        if let Some(value) = values.iter().find(|value| !value.fits(data_type)) {
            return Err(ProgramError::invalid(
                format!("{value:?}"),
                format!("is no value of type {data_type}"),
            ));
        }
        Self::build_array(values, data_type)
    }

    /// [`Scalar::to_array`] of computed values: decimals may exceed their precision, as they may
    /// in Arrow's kernels. What doesn't fit otherwise becomes NULL.
    pub(crate) fn build_array(
        values: &[Self],
        data_type: &DataType,
    ) -> Result<ArrayRef, ProgramError> {
        Ok(match data_type {
            DataType::Boolean => {
                Arc::new(BooleanArray::from_iter(values.iter().map(|v| match v {
                    Self::Boolean(value) => Some(*value),
                    _ => None,
                })))
            }
            DataType::Float16 => floats::<Float16Type>(values, narrow_f16),
            DataType::Float32 => floats::<Float32Type>(values, narrow_f32),
            DataType::Float64 => floats::<Float64Type>(values, |value| value),
            DataType::Utf8View => {
                Arc::new(StringViewArray::from_iter(values.iter().map(|v| {
                    v.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok())
                })))
            }
            DataType::BinaryView => {
                Arc::new(BinaryViewArray::from_iter(values.iter().map(Self::bytes)))
            }
            DataType::FixedSizeBinary(size) => {
                let mut builder = FixedSizeBinaryBuilder::with_capacity(values.len(), *size);
                for value in values {
                    match value.bytes() {
                        Some(bytes) => builder.append_value(bytes)?,
                        None => builder.append_null(),
                    }
                }
                Arc::new(builder.finish())
            }
            other => with_integer_type!(
                other,
                T => integers::<T>(values, data_type),
                _ => return Err(ProgramError::invalid(
                    data_type,
                    "values of this type can only be carried, not computed",
                ))
            ),
        })
    }

    /// The bytes of text or binary.
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

impl Literal {
    /// The constant as an array of one row; with Arrow's `Scalar` around it, an operand of
    /// Arrow's kernels.
    pub fn to_array(&self) -> Result<ArrayRef, ProgramError> {
        Scalar::to_array(std::slice::from_ref(&self.value), &self.data_type)
    }
}

fn integers<T: ArrowPrimitiveType>(values: &[Scalar], data_type: &DataType) -> ArrayRef
where
    T::Native: TryFrom<i128>,
{
    let array = PrimitiveArray::<T>::from_iter(values.iter().map(|value| match value {
        Scalar::Int(value) => T::Native::try_from(*value).ok(),
        _ => None,
    }));
    Arc::new(array.with_data_type(data_type.clone()))
}

fn floats<T: ArrowPrimitiveType>(values: &[Scalar], narrow: fn(f64) -> T::Native) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::from_iter(values.iter().map(
        |value| match value {
            Scalar::Float(value) => Some(narrow(*value)),
            _ => None,
        },
    )))
}

/// −0.0 becomes 0.0, all else stays: what DataFusion does before it compares or groups floats,
/// because Arrow's kernels have −0.0 before 0.0.
pub(crate) fn fold_zero(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value }
}

/// Bit for bit the same.
fn same_float(left: f64, right: f64) -> bool {
    left.to_bits() == right.to_bits()
}

/// Exact also for NaN: `as` may change its bits, which Arrow's order sees.
pub(crate) fn widen_f32(value: f32) -> f64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        f64::from_bits((bits & 1 << 31) << 32 | 0x7ff << 52 | (bits & 0x7f_ffff) << 29)
    } else {
        f64::from(value)
    }
}

/// The nearest `f32`; a NaN keeps the upper bits of its payload.
pub(crate) fn narrow_f32(value: f64) -> f32 {
    if value.is_nan() {
        let bits = value.to_bits();
        let payload = (bits >> 29 & 0x7f_ffff) as u32;
        let payload = if payload == 0 { 1 << 22 } else { payload };
        f32::from_bits((bits >> 32) as u32 & 1 << 31 | 0xff << 23 | payload)
    } else {
        value as f32
    }
}

/// Exact also for NaN.
fn widen_f16(value: Half) -> f64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        f64::from_bits((bits & 1 << 15) << 48 | 0x7ff << 52 | (bits & 0x3ff) << 42)
    } else {
        value.to_f64()
    }
}

/// The nearest `f16` of a value that `f32` holds; a NaN keeps the upper bits of its payload.
pub(crate) fn narrow_f16(value: f64) -> Half {
    if value.is_nan() {
        let bits = value.to_bits();
        let payload = (bits >> 42 & 0x3ff) as u16;
        let payload = if payload == 0 { 1 << 9 } else { payload };
        Half::from_bits((bits >> 48) as u16 & 1 << 15 | 0x1f << 10 | payload)
    } else {
        // `from_f64` looks at the upper 32 bits only, and so may round the wrong way.
        Half::from_f32(value as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_floats_widen_and_narrow_without_loss() {
        for bits in 0..=u16::MAX {
            let value = Half::from_bits(bits);
            assert_eq!(narrow_f16(widen_f16(value)).to_bits(), bits, "{bits:#x}");
        }
        // Every exponent and sign with a spread of mantissas.
        for bits in (0..=u32::MAX).step_by(9973) {
            let value = f32::from_bits(bits);
            assert_eq!(narrow_f32(widen_f32(value)).to_bits(), bits, "{bits:#x}");
        }
    }

    #[test]
    fn values_fit_their_type_only() {
        let fits = |value: Scalar, data_type: DataType| value.fits(&data_type);
        assert!(fits(Scalar::Int(-128), DataType::Int8));
        assert!(!fits(Scalar::Int(128), DataType::Int8));
        assert!(!fits(Scalar::Int(-1), DataType::UInt64));
        assert!(fits(Scalar::Int(-999), DataType::Decimal128(3, 1)));
        assert!(!fits(Scalar::Int(1000), DataType::Decimal128(3, 1)));
        assert!(fits(Scalar::Float(0.5), DataType::Float16));
        assert!(!fits(Scalar::Float(0.1), DataType::Float32));
        assert!(!fits(Scalar::Float(1e300), DataType::Float32));
        assert!(fits(Scalar::Float(f64::INFINITY), DataType::Float16));
        assert!(!fits(Scalar::Bytes(vec![0xff]), DataType::Utf8View));
        assert!(!fits(
            Scalar::Bytes(vec![1, 2]),
            DataType::FixedSizeBinary(3)
        ));
        assert!(!fits(Scalar::Boolean(true), DataType::Int8));
        assert!(fits(Scalar::Null, DataType::Utf8View));
    }
}
