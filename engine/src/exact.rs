//! Values into columns of another type, only where no digit is lost.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, BooleanArray, StringViewArray};
use arrow::compute::kernels::cmp::not_distinct;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Float64Type, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use flashmesh_planner::byte_texts::{bytes_of, is_marked};
use flashmesh_planner::{has_text, texts_of, type_name, whole_moments};

use crate::error::{Error, Result};
use crate::interval_units::{has_unit, spelt};

/// `array` as values of type `to`, for the column of that name. A value that `to` can't hold, or
/// holds only without some of its digits (1.5 as an integer, microseconds in a timestamp of whole
/// seconds), is an error. Floats take the nearest value: that is what they are for.
pub(crate) fn cast_exactly(array: &ArrayRef, to: &DataType, column: &str) -> Result<ArrayRef> {
    if array.data_type() == to {
        return Ok(array.clone());
    }
    if is_point(array.data_type()) && is_number(to) || is_number(array.data_type()) && is_point(to)
    {
        return Err(Error::usage(format!(
            "column '{column}' of type {} can't hold a value of type {}; \
             write a date or a time, or the function that makes one of the number",
            type_name(to),
            type_name(array.data_type())
        )));
    }
    let array = match array.data_type() {
        DataType::Dictionary(_, values) => cast(array, values, column)?,
        from if from.is_string() && to.is_binary() => marked_bytes(array, column)?,
        from if to.is_string() && has_text(from) => texts_of(array)?,
        from if from.is_string() && matches!(to, DataType::Interval(_)) => {
            spelt_intervals(array, column)?
        }
        from if from.is_string() => {
            let array = &whole_moments(array, to)?;
            match widest(to) {
                Some(wide) => cast(array, &wide, column)?,
                None => array.clone(),
            }
        }
        _ => array.clone(),
    };
    let stored = cast(&array, to, column)?;
    match first_changed(&array, &stored)? {
        Some(row) => Err(Error::usage(format!(
            "column '{column}' of type {to} can't hold {} without losing digits; \
             round it or CAST it to that type",
            show(&array, row)?
        ))),
        None => Ok(stored),
    }
}

fn is_point(of: &DataType) -> bool {
    use DataType::*;
    matches!(
        of,
        Date32 | Date64 | Time32(_) | Time64(_) | Timestamp(..) | Interval(_) | Duration(_)
    )
}

fn is_number(of: &DataType) -> bool {
    of.is_numeric() || *of == DataType::Boolean
}

/// Texts that become bytes: those for which they stand, where they are written so, else their own.
fn marked_bytes(texts: &ArrayRef, column: &str) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8View, column)?;
    let values = texts.as_string_view();
    if !values.iter().flatten().any(is_marked) {
        return Ok(texts);
    }
    let bytes = values.iter().map(|text| match text {
        Some(text) if is_marked(text) => match bytes_of(text) {
            Some(bytes) => Ok(Some(Cow::Owned(bytes))),
            None => Err(Error::usage(format!(
                "column '{column}' can't hold '{text}': behind \\x stand hexadecimal digits, two a byte"
            ))),
        },
        text => Ok(text.map(|text| Cow::Borrowed(text.as_bytes()))),
    });
    Ok(Arc::new(bytes.collect::<Result<BinaryViewArray>>()?))
}

/// Texts that become intervals, as Arrow reads them.
fn spelt_intervals(texts: &ArrayRef, column: &str) -> Result<ArrayRef> {
    let texts = cast(texts, &DataType::Utf8View, column)?;
    let spelt = texts.as_string_view().iter().map(|text| match text {
        Some(text) if !has_unit(text) => Err(Error::usage(format!(
            "column '{column}' can't hold the interval '{text}', which has no unit; write one such as '{text} days'"
        ))),
        text => Ok(text.map(spelt)),
    });
    Ok(Arc::new(spelt.collect::<Result<StringViewArray>>()?))
}

/// The type that keeps all digits of a text that is read as one of type `to`.
fn widest(to: &DataType) -> Option<DataType> {
    match to {
        DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) => {
            Some(DataType::Decimal256(76, 38))
        }
        // Microseconds hold all years that a text can name.
        DataType::Timestamp(TimeUnit::Second | TimeUnit::Millisecond, zone) => {
            Some(DataType::Timestamp(TimeUnit::Microsecond, zone.clone()))
        }
        DataType::Time32(_) | DataType::Time64(TimeUnit::Microsecond) => {
            Some(DataType::Time64(TimeUnit::Nanosecond))
        }
        _ => None,
    }
}

/// A cast that fails for what does not fit.
fn cast(array: &ArrayRef, to: &DataType, column: &str) -> Result<ArrayRef> {
    let options = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(array, to, &options).map_err(|error| {
        Error::usage(format!(
            "column '{column}' of type {to} can't hold a value of type {}: {error}",
            array.data_type()
        ))
    })
}

/// The first row whose value a cast has changed.
fn first_changed(before: &ArrayRef, after: &ArrayRef) -> Result<Option<usize>> {
    let (from, to) = (before.data_type(), after.data_type());
    if from == to {
        return Ok(None);
    }
    if to.is_floating() {
        return first_infinite(before, after);
    }
    if is_list(from) && is_list(to) {
        return first_changed_list(before, after);
    }
    if let (DataType::Struct(_), DataType::Struct(_)) = (from, to) {
        return first_changed_struct(before, after);
    }
    if !may_lose(from, to) {
        return Ok(None);
    }
    let back = cast(after, from, "")?;
    let same = match from.is_floating() {
        true => same_floats(before, &back)?,
        false => not_distinct(before, &back)?,
    };
    Ok((0..same.len()).find(|row| before.is_valid(*row) && !same.value(*row)))
}

/// Whether a cast that succeeds may still change the value.
fn may_lose(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    let is_bounded = to.is_integer() || to.is_decimal() || *to == Boolean;
    let is_point = matches!(from, Date32 | Date64 | Timestamp(..));
    is_bounded && (from.is_floating() || from.is_decimal())
        || from.is_integer() && (to.is_decimal() || *to == Boolean)
        || is_point && matches!(to, Date32 | Date64 | Timestamp(..))
        || matches!(
            (from, to),
            (Time32(_) | Time64(_), Time32(_) | Time64(_)) | (Duration(_), Duration(_))
        )
}

/// The first finite number that has become infinite.
fn first_infinite(before: &ArrayRef, after: &ArrayRef) -> Result<Option<usize>> {
    if !before.data_type().is_numeric() {
        return Ok(None);
    }
    let before = cast(before, &DataType::Float64, "")?;
    let after = cast(after, &DataType::Float64, "")?;
    let values = before.as_primitive::<Float64Type>().values().iter();
    let mut pairs = values.zip(after.as_primitive::<Float64Type>().values());
    Ok(pairs
        .position(|(before, after)| before.is_finite() && after.is_infinite())
        .filter(|row| before.is_valid(*row)))
}

/// Where two arrays of floats agree, up to the last digits that a sum or a product leaves.
fn same_floats(before: &ArrayRef, back: &ArrayRef) -> Result<BooleanArray> {
    let epsilon = match before.data_type() {
        DataType::Float64 => f64::EPSILON,
        DataType::Float32 => f64::from(f32::EPSILON),
        _ => 1.0 / 1024.0,
    };
    let before = cast(before, &DataType::Float64, "")?;
    let back = cast(back, &DataType::Float64, "")?;
    let values = before.as_primitive::<Float64Type>().values().iter();
    let pairs = values.zip(back.as_primitive::<Float64Type>().values());
    Ok(pairs
        .map(|(before, back)| Some((before - back).abs() <= 4.0 * epsilon * before.abs()))
        .collect())
}

fn is_list(data_type: &DataType) -> bool {
    use DataType::*;
    matches!(data_type, List(_) | LargeList(_) | FixedSizeList(..))
}

fn first_changed_list(before: &ArrayRef, after: &ArrayRef) -> Result<Option<usize>> {
    for row in (0..before.len()).filter(|row| before.is_valid(*row)) {
        if first_changed(&element(before, row), &element(after, row))?.is_some() {
            return Ok(Some(row));
        }
    }
    Ok(None)
}

/// The values of a list.
fn element(lists: &ArrayRef, row: usize) -> ArrayRef {
    match lists.data_type() {
        DataType::List(_) => lists.as_list::<i32>().value(row),
        DataType::LargeList(_) => lists.as_list::<i64>().value(row),
        _ => lists.as_fixed_size_list().value(row),
    }
}

fn first_changed_struct(before: &ArrayRef, after: &ArrayRef) -> Result<Option<usize>> {
    for row in (0..before.len()).filter(|row| before.is_valid(*row)) {
        let (before, after) = (before.slice(row, 1), after.slice(row, 1));
        let fields = before.as_struct().columns().iter();
        for (before, after) in fields.zip(after.as_struct().columns()) {
            if first_changed(before, after)?.is_some() {
                return Ok(Some(row));
            }
        }
    }
    Ok(None)
}

/// A value as a message shows it.
fn show(array: &ArrayRef, row: usize) -> Result<String> {
    let options = FormatOptions::default();
    Ok(ArrayFormatter::try_new(array, &options)?
        .value(row)
        .to_string())
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Float32Array, Float64Array, Int64Array, ListArray, StringArray, TimestampMicrosecondArray,
    };
    use arrow::datatypes::{Field, Float64Type};

    use super::*;

    #[test]
    fn values_are_kept_whole_or_refused() {
        let floats = |values: &[f64]| Arc::new(Float64Array::from(values.to_vec())) as ArrayRef;
        let texts = |value: &str| Arc::new(StringArray::from(vec![value])) as ArrayRef;
        let micros = |value| Arc::new(TimestampMicrosecondArray::from(vec![value])) as ArrayRef;
        let list = |value| {
            let lists = [Some(vec![Some(value)])];
            Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(lists)) as ArrayRef
        };
        let ints = DataType::List(Arc::new(Field::new_list_field(DataType::Int64, true)));
        let cents = DataType::Decimal128(10, 2);
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        for (value, to, fits) in [
            (floats(&[2.0, -0.0, 1e15]), &DataType::Int64, true),
            (floats(&[2.0, 1.5]), &DataType::Int64, false),
            (floats(&[f64::NAN]), &DataType::Int64, false),
            (floats(&[9.3e18]), &DataType::Int64, false),
            (floats(&[0.1, f64::INFINITY]), &DataType::Float32, true),
            (floats(&[1e300]), &DataType::Float32, false),
            (floats(&[0.1 + 0.2, 12345678.25]), &cents, true),
            (floats(&[1.239]), &cents, false),
            (Arc::new(Float32Array::from(vec![0.1])), &cents, true),
            (texts("1.25"), &cents, true),
            (texts("1.239"), &cents, false),
            (texts("2024-05-06T01:02:03"), &seconds, true),
            (texts("2024-05-06T01:02:03.5"), &seconds, false),
            (texts("9999-12-31T23:59:59"), &seconds, true),
            (micros(1_000_000), &seconds, true),
            (micros(1_000_001), &seconds, false),
            (micros(1), &DataType::Date32, false),
            (
                Arc::new(Int64Array::from(vec![300])),
                &DataType::Int8,
                false,
            ),
            (
                Arc::new(Int64Array::from(vec![2])),
                &DataType::Boolean,
                false,
            ),
            (list(2.0), &ints, true),
            (list(2.5), &ints, false),
        ] {
            let stored = cast_exactly(&value, to, "v");
            assert_eq!(stored.is_ok(), fits, "{value:?} as {to}: {stored:?}");
            if let Err(error) = stored {
                assert!(error.to_string().contains("'v'"), "{error}");
            }
        }
    }
}
