//! Arrow arrays as the arrays of C.

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, StringViewArray};
use arrow::buffer::{Buffer, MutableBuffer, NullBuffer};
use arrow::compute;
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};

use super::signature::sql_type;
use super::{Argument, Limits, Parameter, ScalarArgument};

/// The arguments of one evaluation, as C takes them.
pub(super) struct Inputs {
    columns: Vec<Column>,
    /// Validity bitmaps, one for each column that is not constant; empty with strict NULL.
    valid: Vec<Option<NullBuffer>>,
    kernel_nulls: bool,
}

enum Column {
    /// `row_bytes` a row.
    Fixed {
        values: Buffer,
        row_bytes: usize,
    },
    Text(Text),
    Constant(ScalarArgument),
    ConstantText(Buffer),
    ConstantVector(Buffer),
}

enum Text {
    Utf8(StringViewArray),
    Bytes(BinaryViewArray),
}

impl Text {
    fn length(&self, row: usize) -> usize {
        let (views, null) = match self {
            Self::Utf8(array) => (array.views(), array.is_null(row)),
            Self::Bytes(array) => (array.views(), array.is_null(row)),
        };
        match null {
            true => 0,
            // The lower four bytes of a view are its length.
            false => views[row] as u32 as usize,
        }
    }

    fn bytes(&self, row: usize) -> &[u8] {
        match self {
            _ if self.length(row) == 0 => &[],
            Self::Utf8(array) => array.value(row).as_bytes(),
            Self::Bytes(array) => array.value(row),
        }
    }
}

/// What a chunk of rows needs beside the arrays themselves; its memory is used again.
#[derive(Default)]
pub(super) struct Scratch {
    /// Offsets and bytes of each text column.
    texts: Vec<(MutableBuffer, MutableBuffer)>,
    bitmaps: Vec<MutableBuffer>,
}

impl Inputs {
    /// Takes the arguments apart; they have been checked by [`check`].
    pub(super) fn new(
        parameters: &[Parameter],
        arguments: &[ArrayRef],
        kernel_nulls: bool,
    ) -> Result<Self, String> {
        let (mut columns, mut valid) = (Vec::new(), Vec::new());
        for (parameter, array) in parameters.iter().zip(arguments) {
            let column = match parameter.constant {
                true => constant(array),
                false => column(array),
            };
            columns.push(column.map_err(|error| format!("argument '{}' {error}", parameter.name))?);
            if kernel_nulls && !parameter.constant {
                valid.push(array.nulls().cloned());
            }
        }
        Ok(Self {
            columns,
            valid,
            kernel_nulls,
        })
    }

    /// How many of the rows from `start` to `rows` the next call takes: at least one.
    ///
    /// # Errors
    /// When the text of one row is longer than a call may have.
    pub(super) fn chunk(
        &self,
        start: usize,
        rows: usize,
        limits: &Limits,
    ) -> Result<usize, String> {
        let mut length = limits.rows_per_call.min(rows - start);
        for column in &self.columns {
            match column {
                // Single values have their place in any call; vectors count as text does.
                Column::Fixed { row_bytes, .. } if *row_bytes > 8 => {
                    length = length.min(vectors_per_call(*row_bytes, limits));
                }
                Column::Text(text) => {
                    let mut bytes = 0;
                    let fits = (start..start + length).position(|row| {
                        bytes += text.length(row);
                        bytes > limits.bytes_per_call
                    });
                    length = fits.unwrap_or(length);
                    if length == 0 {
                        return Err(format!(
                            "a row has {} bytes of text, a call may have {}; raise \
                             limits.bytes_per_call",
                            text.length(start),
                            limits.bytes_per_call
                        ));
                    }
                }
                _ => {}
            }
        }
        Ok(length)
    }

    /// Lays out what is not in the arrays already for `length` rows from `start`.
    pub(super) fn fill(&self, start: usize, length: usize, scratch: &mut Scratch) {
        let texts = self.columns.iter().filter_map(|column| match column {
            Column::Text(text) => Some(text),
            _ => None,
        });
        for (i, text) in texts.enumerate() {
            if scratch.texts.len() == i {
                scratch.texts.push(Default::default());
            }
            let (offsets, bytes) = &mut scratch.texts[i];
            offsets.clear();
            bytes.clear();
            offsets.push(0u32);
            for row in start..start + length {
                bytes.extend_from_slice(text.bytes(row));
                offsets.push(bytes.len() as u32);
            }
        }
        for (i, valid) in self.valid.iter().enumerate() {
            if scratch.bitmaps.len() == i {
                scratch.bitmaps.push(MutableBuffer::default());
            }
            let words = &mut scratch.bitmaps[i];
            words.clear();
            match valid {
                None => words.resize(bitmap_bytes(length), 0xff),
                Some(valid) => {
                    let bits = valid.inner().slice(start, length);
                    for word in bits.bit_chunks().iter_padded().take(length.div_ceil(64)) {
                        words.push(word);
                    }
                }
            }
        }
    }

    /// The arguments of the parameters, in C's order.
    pub(super) fn arguments<'a>(
        &'a self,
        start: usize,
        length: usize,
        scratch: &'a Scratch,
    ) -> Vec<Argument<'a>> {
        let mut arguments = Vec::with_capacity(2 * self.columns.len() + 6);
        let mut texts = scratch.texts.iter();
        let mut bitmaps = scratch.bitmaps.iter();
        for column in &self.columns {
            match column {
                Column::Fixed { values, row_bytes } => {
                    let bytes = &values[start * row_bytes..(start + length) * row_bytes];
                    arguments.push(Argument::In(bytes));
                }
                Column::Text(_) => {
                    if let Some((offsets, bytes)) = texts.next() {
                        arguments.push(Argument::In(offsets));
                        arguments.push(Argument::In(bytes));
                    }
                }
                Column::Constant(value) => arguments.push(Argument::Scalar(*value)),
                Column::ConstantText(bytes) => {
                    arguments.push(Argument::In(bytes));
                    arguments.push(count(bytes.len()));
                }
                Column::ConstantVector(bytes) => arguments.push(Argument::In(bytes)),
            }
            let varies = matches!(column, Column::Fixed { .. } | Column::Text(_));
            if self.kernel_nulls
                && varies
                && let Some(words) = bitmaps.next()
            {
                arguments.push(Argument::In(words));
            }
        }
        arguments
    }

    /// The offsets of the first text column in the chunk that `scratch` was filled for.
    pub(super) fn text_offsets(scratch: &Scratch) -> &[u32] {
        scratch
            .texts
            .first()
            .map_or(&[], |(offsets, _)| offsets.typed_data())
    }
}

/// A length or a number of rows as C takes it.
pub(super) fn count(count: usize) -> Argument<'static> {
    // No array of a call has 4 GiB: limits are far below.
    Argument::Scalar(ScalarArgument::I32(count as u32 as i32))
}

/// Bytes of a bitmap of 64-bit words.
pub(super) fn bitmap_bytes(rows: usize) -> usize {
    rows.div_ceil(64) * 8
}

/// Vectors of `row_bytes` in one call, whole groups of 64 where there are as many.
pub(super) fn vectors_per_call(row_bytes: usize, limits: &Limits) -> usize {
    let rows = (limits.bytes_per_call / row_bytes.max(1)).clamp(1, limits.rows_per_call);
    if rows >= 64 { rows / 64 * 64 } else { rows }
}

/// Whether `arguments` are what `parameters` say.
pub(super) fn check(
    parameters: &[Parameter],
    arguments: &[ArrayRef],
    rows: usize,
) -> Result<(), String> {
    if parameters.len() != arguments.len() {
        return Err(format!(
            "takes {} arguments, {} were given",
            parameters.len(),
            arguments.len()
        ));
    }
    for (parameter, array) in parameters.iter().zip(arguments) {
        let Parameter {
            name,
            data_type,
            constant,
        } = parameter;
        if !fits(data_type, array.data_type()) {
            return Err(format!(
                "takes {} for '{name}', not {}",
                sql_type(data_type),
                sql_type(array.data_type())
            ));
        }
        let wanted = if *constant { 1 } else { rows };
        if array.len() != wanted {
            return Err(format!(
                "takes {wanted} values for '{name}', {} were given",
                array.len()
            ));
        }
    }
    Ok(())
}

/// Whether an array of type `found` can stand for `wanted`: names and nullability of a vector's
/// elements do not matter.
pub(super) fn fits(wanted: &DataType, found: &DataType) -> bool {
    match (wanted, found) {
        (DataType::FixedSizeList(_, n), DataType::FixedSizeList(item, m)) => {
            n == m && *item.data_type() == DataType::Float32
        }
        _ => wanted == found,
    }
}

/// Without the rows in which a column is NULL; with which rows are left. `None` when no row has a
/// NULL.
pub(super) fn without_nulls(
    parameters: &[Parameter],
    arguments: &[ArrayRef],
) -> Result<Option<(Vec<ArrayRef>, NullBuffer)>, arrow::error::ArrowError> {
    let mut valid: Option<NullBuffer> = None;
    for (parameter, array) in parameters.iter().zip(arguments) {
        if !parameter.constant {
            valid = NullBuffer::union(valid.as_ref(), array.nulls());
        }
    }
    let Some(valid) = valid.filter(|valid| valid.null_count() > 0) else {
        return Ok(None);
    };
    let mask = BooleanArray::new(valid.inner().clone(), None);
    let mut left = Vec::new();
    for (parameter, array) in parameters.iter().zip(arguments) {
        left.push(match parameter.constant {
            true => array.clone(),
            false => compute::filter(array, &mask)?,
        });
    }
    Ok(Some((left, valid)))
}

fn column(array: &ArrayRef) -> Result<Column, String> {
    Ok(match array.data_type() {
        DataType::Utf8View => Column::Text(Text::Utf8(array.as_string_view().clone())),
        DataType::BinaryView => Column::Text(Text::Bytes(array.as_binary_view().clone())),
        _ => {
            let (values, row_bytes) = fixed(array)?;
            Column::Fixed { values, row_bytes }
        }
    })
}

/// The values of `array` one behind the other, and the bytes of each.
pub(super) fn fixed(array: &ArrayRef) -> Result<(Buffer, usize), String> {
    Ok(match array.data_type() {
        DataType::Boolean => {
            let bits = array.as_boolean().values();
            let bytes: Vec<u8> = bits.iter().map(u8::from).collect();
            (bytes.into(), 1)
        }
        DataType::Int16 => (
            array.as_primitive::<Int16Type>().values().inner().clone(),
            2,
        ),
        DataType::Int32 => (
            array.as_primitive::<Int32Type>().values().inner().clone(),
            4,
        ),
        DataType::Date32 => (
            array.as_primitive::<Date32Type>().values().inner().clone(),
            4,
        ),
        DataType::Int64 => (
            array.as_primitive::<Int64Type>().values().inner().clone(),
            8,
        ),
        DataType::Timestamp(..) => {
            let array = array.as_primitive::<TimestampMicrosecondType>();
            (array.values().inner().clone(), 8)
        }
        DataType::Float32 => (
            array.as_primitive::<Float32Type>().values().inner().clone(),
            4,
        ),
        DataType::Float64 => (
            array.as_primitive::<Float64Type>().values().inner().clone(),
            8,
        ),
        DataType::Decimal128(..) => {
            let array = array.as_primitive::<Decimal128Type>();
            let mut values = Vec::with_capacity(array.len());
            for (row, value) in array.values().iter().enumerate() {
                values.push(match i64::try_from(*value) {
                    Ok(value) => value,
                    // What stands under a NULL may be anything.
                    Err(_) if array.is_null(row) => 0,
                    Err(_) => return Err("has a decimal of more than 18 digits".to_owned()),
                });
            }
            (Buffer::from_vec(values), 8)
        }
        DataType::FixedSizeList(_, n) => {
            let n = n.unsigned_abs() as usize;
            let list = array.as_fixed_size_list();
            let items = list.values();
            if items.null_count() > 0 {
                let has_null = |row: usize| {
                    let start = list.value_offset(row).unsigned_abs() as usize;
                    list.is_valid(row) && items.slice(start, n).null_count() > 0
                };
                if (0..list.len()).any(has_null) {
                    return Err("has a vector with a NULL in it".to_owned());
                }
            }
            let start = list.value_offset(0).unsigned_abs() as usize * 4;
            let values = items.as_primitive::<Float32Type>().values().inner().clone();
            (values.slice_with_length(start, list.len() * n * 4), n * 4)
        }
        DataType::FixedSizeBinary(n) => {
            let n = n.unsigned_abs() as usize;
            let binary = array.as_fixed_size_binary();
            let mut bytes = Vec::with_capacity(binary.len() * n);
            for row in 0..binary.len() {
                bytes.extend_from_slice(binary.value(row));
            }
            (bytes.into(), n)
        }
        other => return Err(format!("has the type {other}, which no kernel takes")),
    })
}

fn constant(array: &ArrayRef) -> Result<Column, String> {
    Ok(match array.data_type() {
        DataType::Utf8View => {
            Column::ConstantText(Buffer::from(array.as_string_view().value(0).as_bytes()))
        }
        DataType::BinaryView => Column::ConstantText(Buffer::from(array.as_binary_view().value(0))),
        DataType::FixedSizeList(..) | DataType::FixedSizeBinary(_) => {
            Column::ConstantVector(fixed(array)?.0)
        }
        data_type => {
            let (values, _) = fixed(array)?;
            Column::Constant(match data_type {
                DataType::Boolean => ScalarArgument::I32(i32::from(values[0])),
                DataType::Int16 => ScalarArgument::I32(i32::from(values.typed_data::<i16>()[0])),
                DataType::Int32 | DataType::Date32 => {
                    ScalarArgument::I32(values.typed_data::<i32>()[0])
                }
                DataType::Float32 => ScalarArgument::F32(values.typed_data::<f32>()[0]),
                DataType::Float64 => ScalarArgument::F64(values.typed_data::<f64>()[0]),
                _ => ScalarArgument::I64(values.typed_data::<i64>()[0]),
            })
        }
    })
}
