//! Typed vectors: what expressions compute on between the pages and Arrow.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BinaryViewArray, BinaryViewBuilder, BooleanArray,
    FixedSizeBinaryBuilder, Float16Array, Float32Array, Float64Array, make_array, new_null_array,
};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Float16Type, Float32Type, Float64Type};
use flashmesh_pushdown::Scalar;

use crate::accelerator::cpu::bitmap::Bitmap;
use crate::{Result, StorageError};

/// Arrow's half-precision float.
type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// How values of an Arrow type behave in an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::accelerator::cpu) enum Kind {
    /// Integers, dates, times, timestamps, durations: a two's complement number of this width.
    Integer { bits: u8, signed: bool },
    /// Unscaled 128-bit values.
    Decimal,
    /// Floats; narrower results are rounded after each operation.
    Float { bits: u8 },
    /// Booleans.
    Boolean,
    /// Text and binary.
    Bytes,
    /// Types that are only carried: intervals, lists, structs, vectors.
    Opaque,
}

impl Kind {
    pub fn of(data_type: &DataType) -> Self {
        use DataType::*;
        let integer = |bits, signed| Self::Integer { bits, signed };
        match data_type {
            Int8 => integer(8, true),
            Int16 => integer(16, true),
            Int32 | Date32 | Time32(_) => integer(32, true),
            Int64 | Date64 | Time64(_) | Timestamp(..) | Duration(_) => integer(64, true),
            UInt8 => integer(8, false),
            UInt16 => integer(16, false),
            UInt32 => integer(32, false),
            UInt64 => integer(64, false),
            Decimal128(..) => Self::Decimal,
            Float16 => Self::Float { bits: 16 },
            Float32 => Self::Float { bits: 32 },
            Float64 => Self::Float { bits: 64 },
            Boolean => Self::Boolean,
            Utf8View | BinaryView | FixedSizeBinary(_) => Self::Bytes,
            _ => Self::Opaque,
        }
    }

    /// Least and greatest number of the type, for integers and decimals.
    pub fn limits(self) -> Option<(i128, i128)> {
        match self {
            Self::Integer { bits, signed: true } => {
                Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
            }
            Self::Integer {
                bits,
                signed: false,
            } => Some((0, (1 << bits) - 1)),
            Self::Decimal => Some((i128::MIN, i128::MAX)),
            _ => None,
        }
    }
}

/// Values of one column or expression for the rows of a block. Without `validity` all are valid;
/// what stands in the place of a NULL has no meaning.
#[derive(Debug, Clone, Default)]
pub(in crate::accelerator::cpu) struct Vector {
    pub values: Values,
    pub validity: Option<Bitmap>,
    /// One value stands for all rows.
    pub constant: bool,
}

/// The values of a [`Vector`].
#[derive(Debug, Clone)]
pub(in crate::accelerator::cpu) enum Values {
    /// Integers and decimals that are known to fit.
    I64(Vec<i64>),
    /// All other integers and decimals.
    I128(Vec<i128>),
    /// Floats of all widths, the narrow ones widened.
    F64(Vec<f64>),
    /// Booleans.
    Bool(Bitmap),
    /// Text and binary; the array's own validity is ignored.
    Bytes(BinaryViewArray),
    /// An opaque type; the array's own validity is ignored.
    Array(ArrayRef),
}

impl Default for Values {
    fn default() -> Self {
        Self::I64(Vec::new())
    }
}

/// One side of a kernel: a value for each row, or one for all.
#[derive(Debug, Clone, Copy)]
pub(in crate::accelerator::cpu) enum Operand<'a, T> {
    Each(&'a [T]),
    All(T),
}

impl<T: Copy> Operand<'_, T> {
    #[inline(always)]
    pub fn get(&self, row: usize) -> T {
        match self {
            Self::Each(values) => values[row],
            Self::All(value) => *value,
        }
    }
}

macro_rules! reuse {
    ($name:ident, $variant:ident, $type:ty) => {
        /// Takes the allocation out of a vector that is about to be overwritten.
        pub fn $name(&mut self) -> $type {
            match std::mem::take(self).values {
                Values::$variant(mut values) => {
                    values.clear();
                    values
                }
                _ => Vec::new(),
            }
        }
    };
}

impl Vector {
    pub fn i64(values: Vec<i64>, validity: Option<Bitmap>) -> Self {
        Self {
            values: Values::I64(values),
            validity,
            constant: false,
        }
    }

    pub fn i128(values: Vec<i128>, validity: Option<Bitmap>) -> Self {
        Self {
            values: Values::I128(values),
            validity,
            constant: false,
        }
    }

    pub fn f64(values: Vec<f64>, validity: Option<Bitmap>) -> Self {
        Self {
            values: Values::F64(values),
            validity,
            constant: false,
        }
    }

    pub fn bool(values: Bitmap, validity: Option<Bitmap>) -> Self {
        Self {
            values: Values::Bool(values),
            validity,
            constant: false,
        }
    }

    /// Takes out `len` numbers that are all about to be overwritten: where the vector has held as
    /// many before, nothing is cleared.
    pub fn overwrite_i64(&mut self, len: usize) -> Vec<i64> {
        let mut values = match std::mem::take(self).values {
            Values::I64(values) => values,
            _ => Vec::new(),
        };
        values.resize(len, 0);
        values
    }

    reuse!(reuse_i64, I64, Vec<i64>);
    reuse!(reuse_i128, I128, Vec<i128>);
    reuse!(reuse_f64, F64, Vec<f64>);

    pub fn reuse_bool(&mut self) -> Bitmap {
        match std::mem::take(self).values {
            Values::Bool(bitmap) => bitmap,
            _ => Bitmap::default(),
        }
    }

    /// A constant. `wide` asks for 128 bits where the type is a number.
    pub fn constant(value: &Scalar, data_type: &DataType, wide: bool) -> Self {
        let validity = (*value == Scalar::Null).then(|| Bitmap::filled(1, false));
        let int = match value {
            Scalar::Int(v) => *v,
            _ => 0,
        };
        let values = match Kind::of(data_type) {
            Kind::Integer { .. } | Kind::Decimal if wide => Values::I128(vec![int]),
            // The bound of a literal is its value, so it fits whenever `wide` is not asked for.
            Kind::Integer { .. } | Kind::Decimal => Values::I64(vec![int as i64]),
            Kind::Float { .. } => Values::F64(vec![if let Scalar::Float(v) = value {
                *v
            } else {
                0.0
            }]),
            Kind::Boolean => {
                Values::Bool(Bitmap::filled(1, matches!(value, Scalar::Boolean(true))))
            }
            Kind::Bytes => {
                let bytes: &[u8] = if let Scalar::Bytes(b) = value { b } else { &[] };
                Values::Bytes(BinaryViewArray::from_iter_values([bytes]))
            }
            Kind::Opaque => Values::Array(new_null_array(data_type, 1)),
        };
        Self {
            values,
            validity,
            constant: true,
        }
    }

    /// Number of values held, 1 for a constant.
    pub fn len(&self) -> usize {
        match &self.values {
            Values::I64(v) => v.len(),
            Values::I128(v) => v.len(),
            Values::F64(v) => v.len(),
            Values::Bool(v) => v.len(),
            Values::Bytes(v) => v.len(),
            Values::Array(v) => v.len(),
        }
    }

    #[inline]
    pub fn is_valid(&self, row: usize) -> bool {
        match &self.validity {
            None => true,
            Some(bits) => bits.get(if self.constant { 0 } else { row }),
        }
    }

    /// Whether this is the constant NULL.
    pub fn is_null_constant(&self) -> bool {
        self.constant && !self.is_valid(0)
    }

    /// 64-bit values; the binding of the expression guarantees the representation.
    pub fn as_i64(&self) -> Operand<'_, i64> {
        match &self.values {
            Values::I64(v) if self.constant => Operand::All(v[0]),
            Values::I64(v) => Operand::Each(v),
            _ => unreachable!("bound as a 64-bit vector"),
        }
    }

    /// Floats; see [`Self::as_i64`].
    pub fn as_f64(&self) -> Operand<'_, f64> {
        match &self.values {
            Values::F64(v) if self.constant => Operand::All(v[0]),
            Values::F64(v) => Operand::Each(v),
            _ => unreachable!("bound as a float vector"),
        }
    }

    /// A Boolean as (bitmap, constant); see [`Self::as_i64`].
    pub fn as_bool(&self) -> &Bitmap {
        match &self.values {
            Values::Bool(v) => v,
            _ => unreachable!("bound as a Boolean vector"),
        }
    }

    /// Text or binary; see [`Self::as_i64`].
    pub fn as_bytes(&self) -> &BinaryViewArray {
        match &self.values {
            Values::Bytes(v) => v,
            _ => unreachable!("bound as a vector of bytes"),
        }
    }

    /// The bytes of `row`, whichever row a constant is asked for.
    #[inline]
    pub fn bytes(&self, row: usize) -> &[u8] {
        self.as_bytes().value(if self.constant { 0 } else { row })
    }

    /// The number at `row`, widened.
    #[inline]
    pub fn int(&self, row: usize) -> i128 {
        let row = if self.constant { 0 } else { row };
        match &self.values {
            Values::I64(v) => i128::from(v[row]),
            Values::I128(v) => v[row],
            _ => unreachable!("bound as an integer vector"),
        }
    }

    /// The rows for which this Boolean is TRUE, out of `len`.
    pub fn is_true(&self, len: usize) -> Bitmap {
        let mut rows = Bitmap::default();
        self.is_true_into(len, &mut rows);
        rows
    }

    /// [`Self::is_true`] into an existing bitmap.
    pub fn is_true_into(&self, len: usize, rows: &mut Bitmap) {
        let bits = self.as_bool();
        if self.constant {
            rows.reset(len, bits.get(0) && self.is_valid(0));
        } else {
            bits.slice_into(0..len as u32, rows);
            if let Some(validity) = &self.validity {
                rows.and(validity);
            }
        }
    }

    /// Validity for `len` rows, a constant spread out.
    pub fn validity_of(&self, len: usize) -> Option<Bitmap> {
        match &self.validity {
            None => None,
            Some(bits) if self.constant => (!bits.get(0)).then(|| Bitmap::filled(len, false)),
            Some(bits) => Some(bits.clone()),
        }
    }

    /// Takes an Arrow array of a type that a Program knows. `wide` as in [`Self::constant`].
    pub fn from_arrow(array: &ArrayRef, wide: bool) -> Result<Self> {
        let validity = array
            .logical_nulls()
            .filter(|nulls| nulls.null_count() > 0)
            .map(|nulls| Bitmap::from_arrow(nulls.inner()));
        let values = match Kind::of(array.data_type()) {
            Kind::Integer { bits, signed } => {
                let data = array.to_data();
                match (bits, signed) {
                    (8, true) => integers(&data, wide, |v: i8| v.into(), |v| v.into()),
                    (16, true) => integers(&data, wide, |v: i16| v.into(), |v| v.into()),
                    (32, true) => integers(&data, wide, |v: i32| v.into(), |v| v.into()),
                    (64, true) => integers(&data, wide, |v: i64| v, |v| v.into()),
                    (8, false) => integers(&data, wide, |v: u8| v.into(), |v| v.into()),
                    (16, false) => integers(&data, wide, |v: u16| v.into(), |v| v.into()),
                    (32, false) => integers(&data, wide, |v: u32| v.into(), |v| v.into()),
                    _ => integers(&data, wide, |v: u64| v as i64, |v| v.into()),
                }
            }
            Kind::Decimal => integers(&array.to_data(), wide, |v: i128| v as i64, |v| v),
            Kind::Float { bits: 16 } => Values::F64(
                array
                    .as_primitive::<Float16Type>()
                    .values()
                    .iter()
                    .map(|v| widen_f16(*v))
                    .collect(),
            ),
            Kind::Float { bits: 32 } => Values::F64(
                array
                    .as_primitive::<Float32Type>()
                    .values()
                    .iter()
                    .map(|v| widen_f32(*v))
                    .collect(),
            ),
            Kind::Float { .. } => {
                Values::F64(array.as_primitive::<Float64Type>().values().to_vec())
            }
            Kind::Boolean => Values::Bool(Bitmap::from_arrow(array.as_boolean().values())),
            Kind::Bytes => Values::Bytes(match array.data_type() {
                DataType::Utf8View => array.as_string_view().clone().to_binary_view(),
                DataType::BinaryView => array.as_binary_view().clone(),
                _ => {
                    let fixed = array.as_fixed_size_binary();
                    let mut views = BinaryViewBuilder::with_capacity(fixed.len());
                    (0..fixed.len()).for_each(|i| views.append_value(fixed.value(i)));
                    views.finish()
                }
            }),
            Kind::Opaque => Values::Array(Arc::clone(array)),
        };
        Ok(Self {
            values,
            validity,
            constant: false,
        })
    }

    /// Gives the `len` values to Arrow as `data_type`.
    pub fn to_arrow(&self, data_type: &DataType, len: usize) -> Result<ArrayRef> {
        let nulls = self
            .validity_of(len)
            .map(|bits| {
                NullBuffer::new(BooleanBuffer::new(
                    Buffer::from_vec(bits.words().to_vec()),
                    0,
                    len,
                ))
            })
            .filter(|nulls| nulls.null_count() > 0);
        if self.is_null_constant() {
            return Ok(new_null_array(data_type, len));
        }
        let each = |row: usize| if self.constant { 0 } else { row };
        Ok(match &self.values {
            Values::I64(v) => {
                let buffer = match Kind::of(data_type) {
                    Kind::Integer { bits: 8, .. } => collect(len, |i| v[each(i)] as i8),
                    Kind::Integer { bits: 16, .. } => collect(len, |i| v[each(i)] as i16),
                    Kind::Integer { bits: 32, .. } => collect(len, |i| v[each(i)] as i32),
                    Kind::Integer { .. } => collect(len, |i| v[each(i)]),
                    _ => collect(len, |i| i128::from(v[each(i)])),
                };
                primitive(data_type, len, buffer, nulls)?
            }
            Values::I128(v) => {
                let buffer = match Kind::of(data_type) {
                    Kind::Integer { bits: 8, .. } => collect(len, |i| v[each(i)] as i8),
                    Kind::Integer { bits: 16, .. } => collect(len, |i| v[each(i)] as i16),
                    Kind::Integer { bits: 32, .. } => collect(len, |i| v[each(i)] as i32),
                    Kind::Integer { .. } => collect(len, |i| v[each(i)] as i64),
                    _ => collect(len, |i| v[each(i)]),
                };
                primitive(data_type, len, buffer, nulls)?
            }
            Values::F64(v) => {
                let values = (0..len).map(|i| v[each(i)]);
                match data_type {
                    DataType::Float16 => {
                        Arc::new(Float16Array::new(values.map(narrow_f16).collect(), nulls))
                    }
                    DataType::Float32 => {
                        Arc::new(Float32Array::new(values.map(narrow_f32).collect(), nulls))
                    }
                    _ => Arc::new(Float64Array::new(
                        values.collect::<ScalarBuffer<f64>>(),
                        nulls,
                    )),
                }
            }
            Values::Bool(bits) => {
                let words = if self.constant {
                    Bitmap::filled(len, bits.get(0)).words().to_vec()
                } else {
                    bits.words().to_vec()
                };
                Arc::new(BooleanArray::new(
                    BooleanBuffer::new(Buffer::from_vec(words), 0, len),
                    nulls,
                ))
            }
            Values::Bytes(views) => {
                let spread = if self.constant {
                    ScalarBuffer::from(vec![views.views()[0]; len])
                } else {
                    views.views().clone()
                };
                let array = BinaryViewArray::try_new(spread, views.data_buffers().to_vec(), nulls)?;
                bytes_to_arrow(array, data_type)?
            }
            Values::Array(array) => Arc::clone(array),
        })
    }

    /// The rows in `rows`, in that order. A constant stays one.
    pub fn take(&self, rows: &[u32]) -> Result<Vector> {
        if self.constant {
            return Ok(self.clone());
        }
        let values = match &self.values {
            Values::I64(v) => Values::I64(rows.iter().map(|r| v[*r as usize]).collect()),
            Values::I128(v) => Values::I128(rows.iter().map(|r| v[*r as usize]).collect()),
            Values::F64(v) => Values::F64(rows.iter().map(|r| v[*r as usize]).collect()),
            Values::Bool(v) => Values::Bool(v.gather(rows)),
            Values::Bytes(v) => {
                let views = rows
                    .iter()
                    .map(|r| v.views()[*r as usize])
                    .collect::<Vec<_>>();
                Values::Bytes(BinaryViewArray::try_new(
                    views.into(),
                    v.data_buffers().to_vec(),
                    None,
                )?)
            }
            Values::Array(v) => {
                let indices = arrow::array::UInt32Array::from(rows.to_vec());
                Values::Array(arrow::compute::take(v, &indices, None)?)
            }
        };
        Ok(Vector {
            values,
            validity: self.validity.as_ref().map(|v| v.gather(rows)),
            constant: false,
        })
    }
}

fn integers<T: arrow::datatypes::ArrowNativeType>(
    data: &ArrayData,
    wide: bool,
    narrow: impl Fn(T) -> i64,
    widen: impl Fn(T) -> i128,
) -> Values {
    let values: &[T] = &data.buffers()[0].typed_data::<T>()[data.offset()..][..data.len()];
    if wide {
        Values::I128(values.iter().map(|v| widen(*v)).collect())
    } else {
        Values::I64(values.iter().map(|v| narrow(*v)).collect())
    }
}

fn collect<T: arrow::datatypes::ArrowNativeType>(len: usize, value: impl Fn(usize) -> T) -> Buffer {
    Buffer::from_vec((0..len).map(value).collect::<Vec<T>>())
}

/// An array of the column type `data_type` out of bytes that came from such columns.
pub(in crate::accelerator::cpu) fn bytes_to_arrow(
    array: BinaryViewArray,
    data_type: &DataType,
) -> Result<ArrayRef> {
    Ok(match data_type {
        DataType::Utf8View => Arc::new(array.to_string_view()?),
        DataType::FixedSizeBinary(size) => {
            let mut builder = FixedSizeBinaryBuilder::with_capacity(array.len(), *size);
            for value in &array {
                match value {
                    Some(value) => builder.append_value(value)?,
                    None => builder.append_null(),
                }
            }
            Arc::new(builder.finish())
        }
        _ => Arc::new(array),
    })
}

/// An Arrow array of a fixed-width type out of its buffer.
pub(in crate::accelerator::cpu) fn primitive(
    data_type: &DataType,
    len: usize,
    buffer: Buffer,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let data = ArrayData::builder(data_type.clone())
        .len(len)
        .add_buffer(buffer)
        .nulls(nulls)
        .build();
    Ok(make_array(data.map_err(StorageError::from)?))
}

/// Exact also for NaN, whose bits `as` may change and Arrow's order sees.
pub(in crate::accelerator::cpu) fn widen_f32(value: f32) -> f64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        f64::from_bits((bits & 1 << 31) << 32 | 0x7ff << 52 | (bits & 0x7f_ffff) << 29)
    } else {
        f64::from(value)
    }
}

/// The nearest float; a NaN keeps the upper bits of its payload.
fn narrow_f32(value: f64) -> f32 {
    if value.is_nan() {
        let bits = value.to_bits();
        let payload = (bits >> 29 & 0x7f_ffff) as u32;
        let payload = if payload == 0 { 1 << 22 } else { payload };
        f32::from_bits((bits >> 32) as u32 & 1 << 31 | 0xff << 23 | payload)
    } else {
        value as f32
    }
}

/// [`widen_f32`] for half precision.
fn widen_f16(value: Half) -> f64 {
    if value.is_nan() {
        let bits = u64::from(value.to_bits());
        f64::from_bits((bits & 1 << 15) << 48 | 0x7ff << 52 | (bits & 0x3ff) << 42)
    } else {
        value.to_f64()
    }
}

/// [`narrow_f32`] for half precision.
pub(super) fn narrow_f16(value: f64) -> Half {
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
