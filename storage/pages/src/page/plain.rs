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
use crate::{Result, StorageError};

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
pub fn to_plain(
    array: &ArrayRef,
    data_type: &DataType,
) -> std::result::Result<ArrayRef, ArrowError> {
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
) -> std::result::Result<(OffsetBuffer<i32>, Buffer), ArrowError> {
    let views = array.views();
    let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
    let bytes: usize = match nulls {
        None => views.iter().map(view_length).sum(),
        Some(nulls) => nulls
            .valid_indices()
            .map(|row| view_length(&views[row]))
            .sum(),
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
            end += view_length(view);
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
        added += view_length(views.get(*code as u32 as usize)?);
    }
    u32::try_from(bytes.len() + added).ok()?;
    // Room for the word that the last value is copied in.
    bytes.reserve(added + ENTRY_BYTES);
    let buffers = std::slice::from_ref(dictionary.buffer());
    match Entries::of(views, buffers).filter(|_| codes.len() >= views.len()) {
        // SAFETY: the codes were looked up before, there is room for the values, and for an
        // entry behind them.
        Some(entries) => unsafe {
            append_values(codes, bytes, offsets, |code, to| entries.copy(code, to));
        },
        // SAFETY: the same, and a dictionary's views point into its buffer.
        None => unsafe {
            append_values(codes, bytes, offsets, |code, to| {
                let view = &views[code];
                copy_value(view, buffers, to);
                view_length(view)
            });
        },
    }
    Some(())
}

/// Appends what `copy` gives for each code: it writes a value and says how long it is.
///
/// # Safety
/// `bytes` has room for all values and for whatever `copy` writes beyond the last of them.
#[inline]
unsafe fn append_values(
    codes: &[i32],
    bytes: &mut Vec<u8>,
    offsets: &mut Vec<u32>,
    copy: impl Fn(usize, *mut u8) -> usize,
) {
    let mut end = bytes.len();
    let start = bytes.as_mut_ptr();
    offsets.extend(codes.iter().map(|code| {
        // SAFETY: within the room that the caller made.
        end += copy(*code as u32 as usize, unsafe { start.add(end) });
        end as u32
    }));
    // SAFETY: the values were written one behind the other, so all of their bytes.
    unsafe { bytes.set_len(end) };
}

/// Bytes of each of the [`Entries`].
const ENTRY_BYTES: usize = 32;

/// The values of a small dictionary of short ones, each in a place of the same size: they are
/// copied without asking how long they are, which no branch predictor foresees.
struct Entries {
    values: Vec<[u8; ENTRY_BYTES]>,
    lengths: Vec<u8>,
}

impl Entries {
    /// `None` for a dictionary that is large or has a long value.
    fn of(views: &[u128], buffers: &[Buffer]) -> Option<Self> {
        if views.len() > 256 || views.iter().any(|view| view_length(view) > ENTRY_BYTES) {
            return None;
        }
        let mut values = vec![[0; ENTRY_BYTES]; views.len()];
        for (value, view) in values.iter_mut().zip(views) {
            // SAFETY: none is longer than an entry; a dictionary's views point into its buffer.
            unsafe { copy_value(view, buffers, value.as_mut_ptr()) };
        }
        let lengths = views.iter().map(|view| view_length(view) as u8).collect();
        Some(Self { values, lengths })
    }

    /// Writes an entry and gives the length of its value.
    ///
    /// # Safety
    /// `to` has room for an entry.
    #[inline]
    unsafe fn copy(&self, code: usize, to: *mut u8) -> usize {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(self.values[code].as_ptr(), to, ENTRY_BYTES) };
        usize::from(self.lengths[code])
    }
}

/// The array of `data_type`, which is a plain one, out of its parts.
///
/// # Errors
/// `Corrupt` if text is not UTF-8, `Invalid` for more than 2 GiB.
pub(super) fn finish(
    data_type: &DataType,
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    if i32::try_from(bytes.len()).is_err() {
        return Err(StorageError::Invalid(
            "a batch of text can't exceed 2 GiB; take fewer rows".into(),
        ));
    }
    let is_utf8 = *data_type == DataType::Utf8;
    if is_utf8 && !check_utf8(&bytes, &offsets) {
        return Err(StorageError::corrupt("text that is not UTF-8"));
    }
    let count = offsets.len();
    let offsets = ScalarBuffer::new(Buffer::from_vec(offsets), 0, count);
    let values = Buffer::from_vec(bytes);
    if !is_utf8 {
        let offsets = OffsetBuffer::new(offsets);
        return Ok(Arc::new(BinaryArray::new(offsets, values, nulls)));
    }
    // SAFETY: each offset is the end of what was appended, none beyond an i32.
    let offsets = unsafe { OffsetBuffer::new_unchecked(offsets) };
    // SAFETY: the values were just found to be UTF-8, cut at characters.
    let array = unsafe { StringArray::new_unchecked(offsets, values, nulls) };
    Ok(Arc::new(array))
}

/// The length is the view's first four bytes.
#[inline]
fn view_length(view: &u128) -> usize {
    *view as u32 as usize
}

/// Copies the value that `view` stands for.
///
/// # Safety
/// `to` has room for the value and for [`INLINE_BYTES`] at least; `view` is of an array with
/// these buffers.
#[inline]
unsafe fn copy_value(view: &u128, buffers: &[Buffer], to: *mut u8) {
    let length = view_length(view);
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
            17..=32 => copy_ends::<16>(from, to),
            33..=64 => copy_ends::<32>(from, to),
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
