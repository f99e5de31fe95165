//! Text and bytes as plain arrays, one value behind the other, as clients of all kinds know them:
//! out of views, or at once out of pages.
//!
//! Arrow's own cast appends value by value with a call to copy each. Most values are short: here
//! they are copied as words of a fixed size, of which the next value overwrites what is too much.

use std::ptr;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, ByteView, GenericByteArray, GenericByteViewArray,
    StringArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::compute::cast;
use arrow::datatypes::{BinaryType, ByteViewType, DataType, Schema, SchemaRef, Utf8Type};
use arrow::error::ArrowError;

use super::Dictionary;
use super::text::{INLINE_BYTES, check_utf8};

/// The plain type of a view; other types as they are.
pub fn plain_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        other => other.clone(),
    }
}

/// The same schema with plain columns.
pub fn plain_schema(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|field| {
        let plain = plain_type(field.data_type());
        field.as_ref().clone().with_data_type(plain)
    });
    let fields: Vec<_> = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// `array` as `data_type`: a view as a plain array, anything else by Arrow's cast.
///
/// # Errors
/// `OffsetOverflowError` for more than 2 GiB of values; what Arrow's cast says.
pub fn to_plain(array: &ArrayRef, data_type: &DataType) -> Result<ArrayRef, ArrowError> {
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
    array: &GenericByteViewArray<T>,
) -> Result<(OffsetBuffer<i32>, Buffer), ArrowError> {
    let views = array.views();
    // The length is the view's first four bytes.
    let length = |view: &u128| *view as u32 as usize;
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let bytes: usize = match nulls {
        None => views.iter().map(length).sum(),
        Some(nulls) => nulls.valid_indices().map(|row| length(&views[row])).sum(),
    };
    if i32::try_from(bytes).is_err() {
        return Err(ArrowError::OffsetOverflowError(bytes));
    }
    // Room for the word that the last value is copied in.
    let mut values: Vec<u8> = Vec::with_capacity(bytes + INLINE_BYTES);
    let mut offsets = vec![0; views.len() + 1];
    let mut end = 0;
    for (row, (view, offset)) in views.iter().zip(&mut offsets[1..]).enumerate() {
        if nulls.is_none_or(|nulls| nulls.is_valid(row)) {
            // SAFETY: `bytes` is the sum of the lengths, of which `end` has those before this one.
            unsafe { copy_value(view, array.data_buffers(), values.as_mut_ptr().add(end)) };
            end += length(view);
        }
        *offset = end as i32;
    }
    // SAFETY: the values were written one behind the other, so all of their bytes.
    unsafe { values.set_len(end) };
    // SAFETY: each offset adds a length to the one before it.
    let offsets = unsafe { OffsetBuffer::new_unchecked(ScalarBuffer::from(offsets)) };
    Ok((offsets, values.into()))
}

/// Appends the dictionary's values with these codes; `None` if it has no such code, or if there
/// were more bytes than offsets reach.
pub(super) fn append_codes(
    dictionary: &Dictionary,
    codes: &[i32],
    bytes: &mut Vec<u8>,
    offsets: &mut Vec<u32>,
) -> Option<()> {
    let views = dictionary.views();
    let mut added = 0;
    for code in codes {
        added += *views.get(*code as u32 as usize)? as u32 as usize;
    }
    let mut end = bytes.len();
    u32::try_from(end + added).ok()?;
    // Room for the word that the last value is copied in.
    bytes.reserve(added + INLINE_BYTES);
    let buffers = std::slice::from_ref(dictionary.buffer());
    offsets.extend(codes.iter().map(|code| {
        let view = &views[*code as u32 as usize];
        // SAFETY: `added` is the sum of the lengths, of which `end` has those before this one;
        // a dictionary's views point into its buffer.
        unsafe { copy_value(view, buffers, bytes.as_mut_ptr().add(end)) };
        end += *view as u32 as usize;
        end as u32
    }));
    // SAFETY: the values were written one behind the other, so all of their bytes.
    unsafe { bytes.set_len(end) };
    Some(())
}

/// The array of `data_type`, which is a plain one, out of its parts; `None` if text is not UTF-8,
/// or if there are more than 2 GiB of it.
pub(super) fn finish(
    data_type: &DataType,
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    nulls: Option<NullBuffer>,
) -> Option<ArrayRef> {
    i32::try_from(bytes.len()).ok()?;
    let is_utf8 = *data_type == DataType::Utf8;
    if is_utf8 && !check_utf8(&bytes, &offsets) {
        return None;
    }
    let count = offsets.len();
    let offsets = ScalarBuffer::new(Buffer::from_vec(offsets), 0, count);
    let values = Buffer::from_vec(bytes);
    if !is_utf8 {
        let offsets = OffsetBuffer::new(offsets);
        return Some(Arc::new(BinaryArray::new(offsets, values, nulls)));
    }
    // SAFETY: each offset is the end of what was appended, none beyond an i32.
    let offsets = unsafe { OffsetBuffer::new_unchecked(offsets) };
    // SAFETY: the values were just found to be UTF-8, cut at characters.
    let array = unsafe { StringArray::new_unchecked(offsets, values, nulls) };
    Some(Arc::new(array))
}

/// Copies the value that `view` stands for.
///
/// # Safety
/// `to` has room for the value and for [`INLINE_BYTES`] at least; `view` is of an array with
/// these buffers.
#[inline]
unsafe fn copy_value(view: &u128, buffers: &[Buffer], to: *mut u8) {
    let length = *view as u32 as usize;
    if length <= INLINE_BYTES {
        let inline = view.to_le_bytes();
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(inline[4..].as_ptr(), to, INLINE_BYTES) };
        return;
    }
    let place = ByteView::from(*view);
    let from = &buffers[place.buffer_index as usize][place.offset as usize..][..length];
    // SAFETY: as above, and the words of each size lie within `length`.
    unsafe {
        match length {
            ..=16 => copy_ends::<8>(from, to),
            ..=32 => copy_ends::<16>(from, to),
            ..=64 => copy_ends::<32>(from, to),
            _ => ptr::copy_nonoverlapping(from.as_ptr(), to, length),
        }
    }
}

/// Copies between N and 2 N bytes, as the first N and the last N of them.
///
/// # Safety
/// `to` has room for them; they are so many.
#[inline]
unsafe fn copy_ends<const N: usize>(from: &[u8], to: *mut u8) {
    let last = from.len() - N;
    // SAFETY: as above.
    unsafe {
        ptr::copy_nonoverlapping(from.as_ptr(), to, N);
        ptr::copy_nonoverlapping(from.as_ptr().add(last), to.add(last), N);
    }
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
