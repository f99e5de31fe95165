//! Views of text and bytes as plain arrays, which all clients know.
//!
//! Arrow's own cast appends value by value with a call to copy each. Most values are short: here
//! they are copied as whole words of a fixed size, of which the next value overwrites the rest.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ByteView, GenericByteArray};
use arrow::buffer::{Buffer, MutableBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{BinaryType, ByteViewType, DataType, Utf8Type};
use arrow::error::ArrowError;

/// Bytes that a view holds itself.
const INLINE_BYTES: usize = 12;
/// Bytes of a word in which values that lie elsewhere are copied.
const WORD_BYTES: usize = 32;

/// `array` as `data_type`, the type that a client gets it in.
pub(super) fn to_plain(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
    match (array.data_type(), data_type) {
        (DataType::Utf8View, DataType::Utf8) => {
            let views = array.as_string_view();
            let (offsets, values) = copied(views)?;
            let nulls = views.nulls().cloned();
            // SAFETY: the values are those of an array of text, each whole, in its order.
            let plain =
                unsafe { GenericByteArray::<Utf8Type>::new_unchecked(offsets, values, nulls) };
            Ok(Arc::new(plain))
        }
        (DataType::BinaryView, DataType::Binary) => {
            let views = array.as_binary_view();
            let (offsets, values) = copied(views)?;
            let nulls = views.nulls().cloned();
            let plain = GenericByteArray::<BinaryType>::try_new(offsets, values, nulls)?;
            Ok(Arc::new(plain))
        }
        (from, to) if from == to => Ok(Arc::clone(array)),
        (_, to) => cast(array, to),
    }
}

/// Offsets and bytes of the values; a NULL has none.
fn copied<T: ByteViewType + ?Sized>(
    array: &arrow::array::GenericByteViewArray<T>,
) -> Result<(OffsetBuffer<i32>, Buffer), ArrowError> {
    let views = array.views();
    let is_null = |row: usize| array.is_null(row);
    let has_nulls = array.null_count() > 0;
    let mut offsets = Vec::with_capacity(views.len() + 1);
    let mut total = 0usize;
    offsets.push(0);
    for (row, view) in views.iter().enumerate() {
        // The length is the view's first four bytes.
        let length = *view as u32 as usize;
        total += if has_nulls && is_null(row) { 0 } else { length };
        offsets.push(total as i32);
    }
    if i32::try_from(total).is_err() {
        return Err(ArrowError::OffsetOverflowError(total));
    }
    // Room for the word that the last value is copied in.
    let mut values = MutableBuffer::from_len_zeroed(total + WORD_BYTES);
    let bytes = values.as_slice_mut();
    for (row, view) in views.iter().enumerate() {
        let start = offsets[row] as usize;
        let length = offsets[row + 1] as usize - start;
        if length <= INLINE_BYTES {
            bytes[start..start + INLINE_BYTES]
                .copy_from_slice(&view.to_le_bytes()[4..4 + INLINE_BYTES]);
            continue;
        }
        let place = ByteView::from(*view);
        let data = &array.data_buffers()[place.buffer_index as usize];
        let from = place.offset as usize;
        match data.get(from..from + WORD_BYTES) {
            Some(word) if length <= WORD_BYTES => {
                bytes[start..start + WORD_BYTES].copy_from_slice(word);
            }
            _ => bytes[start..start + length].copy_from_slice(&data[from..from + length]),
        }
    }
    values.truncate(total);
    Ok((
        OffsetBuffer::new(ScalarBuffer::from(offsets)),
        values.into(),
    ))
}

#[cfg(test)]
mod tests {
    use arrow::array::{BinaryViewArray, StringViewArray};
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn as_arrow_casts() {
        let seed: u64 = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        for rows in [0, 1, 2, 100, 3000] {
            let values: Vec<Option<String>> = (0..rows)
                .map(|_| {
                    let longest = [3, 12, 13, 32, 33, 80][random.random_range(0..6)];
                    let length = random.random_range(0..=longest);
                    let text = || {
                        (0..length)
                            .map(|i| char::from(b'a' + (i % 26) as u8))
                            .collect()
                    };
                    (random.random_range(0..9) > 0).then(text)
                })
                .collect();
            let texts: ArrayRef = Arc::new(StringViewArray::from_iter(values.iter()));
            let bytes: ArrayRef = Arc::new(BinaryViewArray::from_iter(
                values.iter().map(|v| v.as_ref().map(|v| v.as_bytes())),
            ));
            let from = random.random_range(0..=rows);
            for array in [&texts, &bytes, &texts.slice(from, rows - from)] {
                let plain = match array.data_type() {
                    DataType::Utf8View => DataType::Utf8,
                    _ => DataType::Binary,
                };
                let expected = cast(array, &plain).unwrap();
                assert_eq!(&to_plain(array, &plain).unwrap(), &expected);
            }
        }
    }
}
