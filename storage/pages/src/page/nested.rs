//! Lists, structs and maps as bytes: every row's value on its own, recursively.
//!
//! | type | bytes of a value |
//! |---|---|
//! | struct | its fields in order |
//! | list, map | number of items (u32), then the items; a map's items are structs |
//! | list of a fixed size | its items |
//! | text, binary | length (u32), then the bytes |
//! | all others | Arrow's bytes; booleans one byte, 0 or 1 |
//!
//! Before each value that is within another stands one byte: 1, or 0 for NULL, after which
//! nothing follows. All numbers are little-endian. Types may nest as deep as they like: the type,
//! not the bytes, sets the depth of the recursion.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayDataBuilder, ArrayRef, AsArray, BinaryViewBuilder, BooleanArray,
    BooleanBufferBuilder, FixedSizeListArray, GenericBinaryArray, GenericListArray,
    GenericStringArray, MapArray, NullArray, OffsetSizeTrait, StringViewBuilder, StructArray,
    make_array,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, FieldRef};

use crate::{Result, StorageError};

/// Whether a list of floats has NULLs within its lists.
pub(super) fn has_inner_nulls(array: &dyn Array) -> bool {
    let list = array.as_fixed_size_list();
    let length = list.value_length() as usize;
    let start = list.value_offset(0) as usize;
    list.values().slice(start, list.len() * length).null_count() > 0
}

/// The bytes of all rows, and where each row starts and ends among them. NULL rows are empty.
///
/// # Errors
/// `Invalid` for a type that can't be stored.
pub(super) fn encode(array: &dyn Array) -> Result<(Vec<u8>, Vec<usize>)> {
    let source = Source::of(array)?;
    let mut bytes = Vec::new();
    let mut offsets = Vec::with_capacity(array.len() + 1);
    offsets.push(0);
    for row in 0..array.len() {
        if array.is_valid(row) {
            source.values.write(row, &mut bytes);
        }
        offsets.push(bytes.len());
    }
    Ok((bytes, offsets))
}

/// The array of the rows `bytes[offsets[i]..offsets[i + 1]]`; which rows are NULL is in `nulls`.
///
/// # Errors
/// `Corrupt` when the bytes are not values of the type.
pub(super) fn decode(
    data_type: &DataType,
    bytes: &[u8],
    offsets: &[u32],
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let mut target = Target::of(data_type)?;
    for (row, ends) in offsets.windows(2).enumerate() {
        let mut value = &bytes[ends[0] as usize..ends[1] as usize];
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            target.push_null();
        } else {
            target.read(&mut value)?;
        }
        if !value.is_empty() {
            return Err(malformed(data_type));
        }
    }
    target.finish()
}

fn malformed(data_type: &DataType) -> StorageError {
    StorageError::corrupt(format!("nested values do not parse as {data_type}"))
}

fn unsupported(data_type: &DataType) -> StorageError {
    StorageError::Invalid(format!(
        "{data_type} can't be stored within lists or structs; cast it first"
    ))
}

/// An array that values are read from.
struct Source<'a> {
    nulls: Option<NullBuffer>,
    values: SourceValues<'a>,
}

enum SourceValues<'a> {
    Null,
    Boolean(&'a BooleanArray),
    /// Values of `size` bytes.
    Fixed {
        bytes: Buffer,
        size: usize,
    },
    Bytes(Box<dyn Fn(usize) -> &'a [u8] + 'a>),
    /// `counted`: the number of items is written.
    List {
        range: Box<dyn Fn(usize) -> Range<usize> + 'a>,
        items: Box<Source<'a>>,
        counted: bool,
    },
    Struct(Vec<Source<'a>>),
}

impl<'a> Source<'a> {
    fn of(array: &'a dyn Array) -> Result<Self> {
        Ok(Self {
            nulls: array.nulls().cloned(),
            values: SourceValues::of(array)?,
        })
    }

    /// Writes a value within another.
    fn write(&self, row: usize, out: &mut Vec<u8>) {
        let is_null = matches!(self.values, SourceValues::Null)
            || self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        out.push(u8::from(!is_null));
        if !is_null {
            self.values.write(row, out);
        }
    }
}

impl<'a> SourceValues<'a> {
    fn of(array: &'a dyn Array) -> Result<Self> {
        Ok(match array.data_type() {
            DataType::Null => Self::Null,
            DataType::Boolean => Self::Boolean(array.as_boolean()),
            DataType::Utf8 => Self::bytes(array.as_string::<i32>(), |array, row| {
                array.value(row).as_bytes()
            }),
            DataType::LargeUtf8 => Self::bytes(array.as_string::<i64>(), |array, row| {
                array.value(row).as_bytes()
            }),
            DataType::Utf8View => Self::bytes(array.as_string_view(), |array, row| {
                array.value(row).as_bytes()
            }),
            DataType::Binary => {
                Self::bytes(array.as_binary::<i32>(), |array, row| array.value(row))
            }
            DataType::LargeBinary => {
                Self::bytes(array.as_binary::<i64>(), |array, row| array.value(row))
            }
            DataType::BinaryView => {
                Self::bytes(array.as_binary_view(), |array, row| array.value(row))
            }
            DataType::List(_) => Self::list(array.as_list::<i32>())?,
            DataType::LargeList(_) => Self::list(array.as_list::<i64>())?,
            DataType::Map(..) => {
                let map = array.as_map();
                let offsets = map.value_offsets();
                Self::List {
                    range: Box::new(|row| offsets[row] as usize..offsets[row + 1] as usize),
                    items: Box::new(Source::of(map.entries())?),
                    counted: true,
                }
            }
            DataType::FixedSizeList(_, length) => {
                let list = array.as_fixed_size_list();
                let length = *length as usize;
                Self::List {
                    range: Box::new(move |row| {
                        let start = list.value_offset(row) as usize;
                        start..start + length
                    }),
                    items: Box::new(Source::of(list.values())?),
                    counted: false,
                }
            }
            DataType::Struct(_) => {
                let columns = array.as_struct().columns();
                Self::Struct(
                    columns
                        .iter()
                        .map(|column| Source::of(column))
                        .collect::<Result<_>>()?,
                )
            }
            other => {
                let size = fixed_size(other).ok_or_else(|| unsupported(other))?;
                let data = array.to_data();
                let bytes =
                    data.buffers()[0].slice_with_length(data.offset() * size, data.len() * size);
                Self::Fixed { bytes, size }
            }
        })
    }

    fn bytes<A: Array>(array: &'a A, value: impl Fn(&'a A, usize) -> &'a [u8] + 'a) -> Self {
        Self::Bytes(Box::new(move |row| value(array, row)))
    }

    fn list<O: OffsetSizeTrait>(list: &'a GenericListArray<O>) -> Result<Self> {
        let offsets = list.value_offsets();
        Ok(Self::List {
            range: Box::new(|row| offsets[row].as_usize()..offsets[row + 1].as_usize()),
            items: Box::new(Source::of(list.values())?),
            counted: true,
        })
    }

    fn write(&self, row: usize, out: &mut Vec<u8>) {
        match self {
            Self::Null => {}
            Self::Boolean(values) => out.push(u8::from(values.value(row))),
            Self::Fixed { bytes, size } => {
                out.extend_from_slice(&bytes[row * size..(row + 1) * size])
            }
            Self::Bytes(value) => {
                let value = value(row);
                out.extend_from_slice(&(value.len() as u32).to_le_bytes());
                out.extend_from_slice(value);
            }
            Self::List {
                range,
                items,
                counted,
            } => {
                let range = range(row);
                if *counted {
                    out.extend_from_slice(&(range.len() as u32).to_le_bytes());
                }
                range.for_each(|row| items.write(row, out));
            }
            Self::Struct(fields) => fields.iter().for_each(|field| field.write(row, out)),
        }
    }
}

/// Bytes of a value of a type whose values all have the same size.
fn fixed_size(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeBinary(size) => usize::try_from(*size).ok(),
        other => other.primitive_width(),
    }
}

/// An array that grows by values read from bytes.
struct Target {
    data_type: DataType,
    validity: BooleanBufferBuilder,
    values: TargetValues,
}

enum TargetValues {
    Null,
    Boolean(BooleanBufferBuilder),
    Fixed {
        bytes: Vec<u8>,
        size: usize,
    },
    Bytes {
        bytes: Vec<u8>,
        ends: Vec<usize>,
    },
    List {
        ends: Vec<usize>,
        items: Box<Target>,
    },
    FixedList {
        length: usize,
        items: Box<Target>,
    },
    Struct(Vec<Target>),
}

impl Target {
    fn of(data_type: &DataType) -> Result<Self> {
        let values = match data_type {
            DataType::Null => TargetValues::Null,
            DataType::Boolean => TargetValues::Boolean(BooleanBufferBuilder::new(0)),
            DataType::Utf8
            | DataType::LargeUtf8
            | DataType::Utf8View
            | DataType::Binary
            | DataType::LargeBinary
            | DataType::BinaryView => TargetValues::Bytes {
                bytes: Vec::new(),
                ends: vec![0],
            },
            DataType::List(item) | DataType::LargeList(item) | DataType::Map(item, _) => {
                TargetValues::List {
                    ends: vec![0],
                    items: Box::new(Self::of(item.data_type())?),
                }
            }
            DataType::FixedSizeList(item, length) => TargetValues::FixedList {
                length: usize::try_from(*length).map_err(|_| unsupported(data_type))?,
                items: Box::new(Self::of(item.data_type())?),
            },
            DataType::Struct(fields) => TargetValues::Struct(
                fields
                    .iter()
                    .map(|field| Self::of(field.data_type()))
                    .collect::<Result<_>>()?,
            ),
            other => TargetValues::Fixed {
                bytes: Vec::new(),
                size: fixed_size(other).ok_or_else(|| unsupported(other))?,
            },
        };
        Ok(Self {
            data_type: data_type.clone(),
            validity: BooleanBufferBuilder::new(0),
            values,
        })
    }

    /// Reads a value that is not NULL.
    fn read(&mut self, from: &mut &[u8]) -> Result<()> {
        let malformed = || malformed(&self.data_type);
        match &mut self.values {
            TargetValues::Null => return Err(malformed()),
            TargetValues::Boolean(values) => {
                values.append(take(from, 1).ok_or_else(malformed)?[0] != 0)
            }
            TargetValues::Fixed { bytes, size } => {
                bytes.extend_from_slice(take(from, *size).ok_or_else(malformed)?)
            }
            TargetValues::Bytes { bytes, ends } => {
                let length = take_count(from).ok_or_else(malformed)?;
                bytes.extend_from_slice(take(from, length).ok_or_else(malformed)?);
                ends.push(bytes.len());
            }
            TargetValues::List { ends, items } => {
                let count = take_count(from).ok_or_else(malformed)?;
                // Each item takes a byte at least, so a wild count ends soon.
                (0..count).try_for_each(|_| items.read_inner(from))?;
                ends.push(items.validity.len());
            }
            TargetValues::FixedList { length, items } => {
                (0..*length).try_for_each(|_| items.read_inner(from))?
            }
            TargetValues::Struct(fields) => fields
                .iter_mut()
                .try_for_each(|field| field.read_inner(from))?,
        }
        self.validity.append(true);
        Ok(())
    }

    /// Reads a value within another.
    fn read_inner(&mut self, from: &mut &[u8]) -> Result<()> {
        match take(from, 1) {
            Some([0]) => {
                self.push_null();
                Ok(())
            }
            Some([1]) => self.read(from),
            _ => Err(malformed(&self.data_type)),
        }
    }

    fn push_null(&mut self) {
        match &mut self.values {
            TargetValues::Null => {}
            TargetValues::Boolean(values) => values.append(false),
            TargetValues::Fixed { bytes, size } => bytes.resize(bytes.len() + *size, 0),
            TargetValues::Bytes { bytes, ends } => ends.push(bytes.len()),
            TargetValues::List { ends, items } => ends.push(items.validity.len()),
            TargetValues::FixedList { length, items } => {
                (0..*length).for_each(|_| items.push_null())
            }
            TargetValues::Struct(fields) => fields.iter_mut().for_each(Self::push_null),
        }
        self.validity.append(false);
    }

    fn finish(mut self) -> Result<ArrayRef> {
        let length = self.validity.len();
        let nulls =
            Some(NullBuffer::new(self.validity.finish())).filter(|nulls| nulls.null_count() > 0);
        Ok(match self.values {
            TargetValues::Null => Arc::new(NullArray::new(length)),
            TargetValues::Boolean(mut values) => {
                Arc::new(BooleanArray::new(values.finish(), nulls))
            }
            TargetValues::Fixed { bytes, .. } => make_array(
                ArrayDataBuilder::new(self.data_type)
                    .len(length)
                    .add_buffer(Buffer::from_vec(bytes))
                    .nulls(nulls)
                    .align_buffers(true)
                    .build()?,
            ),
            TargetValues::Bytes { bytes, ends } => {
                finish_bytes(&self.data_type, bytes, &ends, nulls)?
            }
            TargetValues::List { ends, items } => {
                let items = items.finish()?;
                match &self.data_type {
                    DataType::List(item) => Arc::new(GenericListArray::<i32>::try_new(
                        item.clone(),
                        offsets(&ends)?,
                        items,
                        nulls,
                    )?),
                    DataType::LargeList(item) => Arc::new(GenericListArray::<i64>::try_new(
                        item.clone(),
                        offsets(&ends)?,
                        items,
                        nulls,
                    )?),
                    DataType::Map(entry, sorted) => {
                        let entries = items.as_struct().clone();
                        Arc::new(MapArray::try_new(
                            entry.clone(),
                            offsets(&ends)?,
                            entries,
                            nulls,
                            *sorted,
                        )?)
                    }
                    other => return Err(malformed(other)),
                }
            }
            TargetValues::FixedList {
                length: items_each,
                items,
            } => {
                let item: &FieldRef = match &self.data_type {
                    DataType::FixedSizeList(item, _) => item,
                    other => return Err(malformed(other)),
                };
                let items = items.finish()?;
                Arc::new(FixedSizeListArray::try_new_with_length(
                    item.clone(),
                    items_each as i32,
                    items,
                    nulls,
                    length,
                )?)
            }
            TargetValues::Struct(columns) => {
                let DataType::Struct(fields) = &self.data_type else {
                    return Err(malformed(&self.data_type));
                };
                let columns = columns
                    .into_iter()
                    .map(Self::finish)
                    .collect::<Result<Vec<_>>>()?;
                Arc::new(StructArray::try_new_with_length(
                    fields.clone(),
                    columns,
                    nulls,
                    length,
                )?)
            }
        })
    }
}

fn finish_bytes(
    data_type: &DataType,
    bytes: Vec<u8>,
    ends: &[usize],
    nulls: Option<NullBuffer>,
) -> Result<ArrayRef> {
    let value = |row: usize| &bytes[ends[row]..ends[row + 1]];
    let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    Ok(match data_type {
        DataType::Utf8 => Arc::new(GenericStringArray::<i32>::try_new(
            offsets(ends)?,
            bytes.into(),
            nulls,
        )?),
        DataType::LargeUtf8 => Arc::new(GenericStringArray::<i64>::try_new(
            offsets(ends)?,
            bytes.into(),
            nulls,
        )?),
        DataType::Binary => Arc::new(GenericBinaryArray::<i32>::try_new(
            offsets(ends)?,
            bytes.into(),
            nulls,
        )?),
        DataType::LargeBinary => Arc::new(GenericBinaryArray::<i64>::try_new(
            offsets(ends)?,
            bytes.into(),
            nulls,
        )?),
        DataType::Utf8View => {
            let mut views = StringViewBuilder::with_capacity(ends.len() - 1);
            for row in 0..ends.len() - 1 {
                let text = std::str::from_utf8(value(row)).map_err(|_| malformed(data_type))?;
                views.append_option((!is_null(row)).then_some(text));
            }
            Arc::new(views.finish())
        }
        _ => {
            let mut views = BinaryViewBuilder::with_capacity(ends.len() - 1);
            (0..ends.len() - 1)
                .for_each(|row| views.append_option((!is_null(row)).then(|| value(row))));
            Arc::new(views.finish())
        }
    })
}

/// Offsets of 32 or 64 bits.
fn offsets<O: OffsetSizeTrait>(ends: &[usize]) -> Result<OffsetBuffer<O>> {
    let offsets: Option<Vec<O>> = ends.iter().map(|end| O::from_usize(*end)).collect();
    let offsets = offsets.ok_or_else(|| {
        StorageError::Invalid("a batch of nested values is too long; take fewer rows".into())
    })?;
    Ok(OffsetBuffer::new(offsets.into()))
}

fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = from.split_at_checked(count)?;
    *from = rest;
    Some(taken)
}

fn take_count(from: &mut &[u8]) -> Option<usize> {
    let bytes = take(from, 4)?;
    Some(u32::from_le_bytes(bytes.try_into().expect("four bytes")) as usize)
}
