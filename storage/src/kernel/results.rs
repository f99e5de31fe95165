//! What a kernel wrote, checked and as Arrow arrays. Every byte here comes from a guest.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BinaryViewArray, BooleanArray, Decimal128Array, PrimitiveArray,
    StringArray, StringViewArray,
};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};

/// `rows` values of a type that has a fixed width in C.
pub(super) fn fixed(
    data_type: &DataType,
    bytes: MutableBuffer,
    rows: usize,
    valid: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    fn primitive<T: ArrowPrimitiveType>(
        bytes: MutableBuffer,
        rows: usize,
        valid: Option<NullBuffer>,
    ) -> ArrayRef {
        let values = ScalarBuffer::new(bytes.into(), 0, rows);
        Arc::new(PrimitiveArray::<T>::new(values, valid))
    }
    let is_valid = |row: usize| valid.as_ref().is_none_or(|valid| valid.is_valid(row));
    Ok(match data_type {
        DataType::Boolean => {
            let bytes = &bytes.as_slice()[..rows];
            if bytes.iter().any(|&byte| byte > 1) {
                let wrong = (0..rows).find(|&row| bytes[row] > 1 && is_valid(row));
                if let Some(row) = wrong {
                    return Err(format!(
                        "gave {} as a BOOLEAN; 0 and 1 are the values",
                        bytes[row]
                    ));
                }
            }
            let bits = BooleanBuffer::collect_bool(rows, |row| bytes[row] == 1);
            Arc::new(BooleanArray::new(bits, valid))
        }
        DataType::Int16 => primitive::<Int16Type>(bytes, rows, valid),
        DataType::Int32 => primitive::<Int32Type>(bytes, rows, valid),
        DataType::Date32 => primitive::<Date32Type>(bytes, rows, valid),
        DataType::Int64 => primitive::<Int64Type>(bytes, rows, valid),
        DataType::Timestamp(..) => primitive::<TimestampMicrosecondType>(bytes, rows, valid),
        DataType::Float32 => primitive::<Float32Type>(bytes, rows, valid),
        DataType::Float64 => primitive::<Float64Type>(bytes, rows, valid),
        DataType::Decimal128(precision, scale) => {
            let limit = 10i64.pow(u32::from(*precision).min(18));
            let mut values = Vec::with_capacity(rows);
            for (row, &value) in bytes.typed_data::<i64>()[..rows].iter().enumerate() {
                let inside = -limit < value && value < limit;
                if !inside && is_valid(row) {
                    return Err(format!(
                        "gave a decimal beyond the {precision} digits of DECIMAL({precision}, \
                         {scale})"
                    ));
                }
                values.push(if inside { i128::from(value) } else { 0 });
            }
            let array = Decimal128Array::new(values.into(), valid)
                .with_precision_and_scale(*precision, *scale)
                .map_err(|error| error.to_string())?;
            Arc::new(array)
        }
        other => return Err(format!("can't return {other}")),
    })
}

/// One chunk of text or bytes: `offsets` are as the kernel wrote them.
pub(super) fn text(
    data_type: &DataType,
    offsets: &[u32],
    bytes: &[u8],
    valid: Option<NullBuffer>,
) -> Result<ArrayRef, String> {
    if offsets.first() != Some(&0) {
        return Err("gave text whose first offset is not 0".to_owned());
    }
    if offsets.is_sorted_by(|a, b| a <= b) {
        let last = offsets.last().map_or(0, |&last| last as usize);
        let bytes = bytes.get(..last);
        let bytes = bytes.ok_or("gave text offsets beyond its text")?;
        // Offsets are below a call's capacity, which is far below 2 GiB.
        let offsets: Vec<i32> = offsets.iter().map(|&offset| offset as i32).collect();
        let offsets = OffsetBuffer::new(offsets.into());
        let bytes = Buffer::from(bytes);
        return Ok(match data_type {
            DataType::Utf8View => {
                let array = StringArray::try_new(offsets, bytes, valid)
                    .map_err(|_| "gave text that is not UTF-8".to_owned())?;
                Arc::new(StringViewArray::from(&array))
            }
            _ => {
                let array = BinaryArray::try_new(offsets, bytes, valid)
                    .map_err(|error| error.to_string())?;
                Arc::new(BinaryViewArray::from(&array))
            }
        });
    }
    Err("gave text offsets that go back".to_owned())
}

/// A bitmap of `rows` bits as validity.
pub(super) fn validity(words: &MutableBuffer, rows: usize) -> NullBuffer {
    let bytes = Buffer::from(words.as_slice());
    NullBuffer::new(BooleanBuffer::new(bytes, 0, rows))
}
