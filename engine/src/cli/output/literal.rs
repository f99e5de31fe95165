//! Values and types as SQL has them.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Int64Type, IntervalDayTimeType, IntervalMonthDayNanoType, IntervalUnit,
    IntervalYearMonthType, TimeUnit,
};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::Result;
use crate::types::ARROW;

/// A value of a column as SQL has it, such that it is the same in a column of that type; `None` where it
/// has no literal.
///
/// # Errors
/// Those of values that arrow can't print.
pub(super) fn literal(array: &dyn Array, row: usize) -> Result<Option<String>> {
    match array.data_type() {
        _ if array.is_null(row) => Ok(Some("NULL".into())),
        // What holds nothing but plain values becomes what it is in the column.
        DataType::List(element) | DataType::LargeList(element)
            if !element.data_type().is_nested() =>
        {
            elements(array, row)
        }
        DataType::FixedSizeList(element, _) if !element.data_type().is_nested() => {
            elements(array, row)
        }
        _ => value(array, row),
    }
}

/// A value whatever stands around it.
fn value(array: &dyn Array, row: usize) -> Result<Option<String>> {
    if array.is_null(row) {
        return Ok(Some("NULL".into()));
    }
    let data_type = array.data_type();
    let typed = |text: String| Some(format!("CAST({text} AS {})", sql_type(data_type)?));
    let number = || -> Result<Option<String>> {
        let whole = cast(&array.slice(row, 1), &DataType::Int64)?;
        let number = whole.as_primitive::<Int64Type>().value(0);
        Ok(typed(format!("CAST('{number}' AS BIGINT)")))
    };
    Ok(match data_type {
        DataType::Null => Some("NULL".into()),
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            let text = text(array, row)?;
            let is_finite = text.parse().is_ok_and(f64::is_finite);
            // As a number it is 0 without a sign.
            Some(match is_finite && text != "-0.0" {
                true => text,
                false => format!("CAST('{text}' AS DOUBLE)"),
            })
        }
        // A number with a fraction is a DOUBLE, which has fewer digits.
        decimal if decimal.is_decimal() => Some(quoted(&text(array, row)?)),
        integer if integer.is_numeric() => Some(text(array, row)?),
        DataType::Boolean => Some(text(array, row)?.to_uppercase()),
        DataType::Binary
        | DataType::LargeBinary
        | DataType::BinaryView
        | DataType::FixedSizeBinary(_) => Some(format!("X'{}'", text(array, row)?)),
        string if string.is_string() => Some(quoted(&text(array, row)?)),
        DataType::Interval(unit) => {
            let words = match unit {
                IntervalUnit::YearMonth => {
                    let months = array.as_primitive::<IntervalYearMonthType>().value(row);
                    format!("{months} months")
                }
                IntervalUnit::DayTime => {
                    let of = array.as_primitive::<IntervalDayTimeType>().value(row);
                    format!("{} days {} milliseconds", of.days, of.milliseconds)
                }
                IntervalUnit::MonthDayNano => {
                    let of = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
                    let (months, days) = (of.months, of.days);
                    format!("{months} months {days} days {} nanoseconds", of.nanoseconds)
                }
            };
            typed(quoted(&words))
        }
        DataType::Duration(_) | DataType::Date64 => number()?,
        // In UTC, as zones of long ago have seconds, which are not printed.
        DataType::Timestamp(unit, Some(_)) => {
            let utc = DataType::Timestamp(*unit, Some("UTC".into()));
            let text = text(&cast(&array.slice(row, 1), &utc)?, 0)?;
            match is_plain_year(&text) {
                true => Some(quoted(&text)),
                false => number()?,
            }
        }
        DataType::Timestamp(_, None) | DataType::Date32 => {
            let text = text(array, row)?;
            match is_plain_year(&text) {
                true => Some(quoted(&text)),
                false if *data_type == DataType::Date32 => {
                    let days = cast(&array.slice(row, 1), &DataType::Int32)?;
                    typed(format!("CAST({} AS INT)", self::text(&days, 0)?))
                }
                false => number()?,
            }
        }
        time if time.is_temporal() => Some(quoted(&text(array, row)?)),
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
            elements(array, row)?.and_then(typed)
        }
        DataType::Struct(fields) => {
            let mut parts = Vec::with_capacity(2 * fields.len());
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                let Some(value) = value(column.as_ref(), row)? else {
                    return Ok(None);
                };
                parts.extend([quoted(field.name()), value]);
            }
            typed(format!("named_struct({})", parts.join(", ")))
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let (keys, values) = (entries.column(0), entries.column(1));
            match (all(keys)?, all(values)?) {
                (Some(keys), Some(values)) => typed(format!("map({keys}, {values})")),
                _ => None,
            }
        }
        _ => None,
    })
}

/// The elements of a list.
fn elements(array: &dyn Array, row: usize) -> Result<Option<String>> {
    all(&match array.data_type() {
        DataType::LargeList(_) => array.as_list::<i64>().value(row),
        DataType::FixedSizeList(..) => array.as_fixed_size_list().value(row),
        _ => array.as_list::<i32>().value(row),
    })
}

/// All values of an array, as a list.
fn all(values: &ArrayRef) -> Result<Option<String>> {
    let values = (0..values.len()).map(|at| value(values.as_ref(), at));
    let values: Option<Vec<_>> = values.collect::<Result<_>>()?;
    Ok(values.map(|values| format!("[{}]", values.join(", "))))
}

fn text(array: &dyn Array, row: usize) -> Result<String> {
    let options = FormatOptions::default();
    let formatter = ArrayFormatter::try_new(array, &options)?;
    Ok(formatter.value(row).to_string())
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Whether a day is of a year that is written with four digits, from 1 on.
fn is_plain_year(text: &str) -> bool {
    let year = text.split_once('-').map(|(year, _)| year);
    year.is_some_and(|year| year.len() == 4 && year != "0000" && year.parse::<u16>().is_ok())
}

/// The type of a column in SQL; `None` where it has no name there.
pub(in crate::cli) fn sql_type(data_type: &DataType) -> Option<String> {
    let plain = match data_type {
        DataType::Boolean => "BOOLEAN".into(),
        DataType::Int8 => "TINYINT".into(),
        DataType::Int16 => "SMALLINT".into(),
        DataType::Int32 => "INT".into(),
        DataType::Int64 => "BIGINT".into(),
        DataType::UInt8 => "TINYINT UNSIGNED".into(),
        DataType::UInt16 => "SMALLINT UNSIGNED".into(),
        DataType::UInt32 => "INT UNSIGNED".into(),
        DataType::UInt64 => "BIGINT UNSIGNED".into(),
        DataType::Float32 => "REAL".into(),
        DataType::Float64 => "DOUBLE".into(),
        DataType::Decimal128(precision @ ..=38, scale @ 0..) => {
            format!("DECIMAL({precision}, {scale})")
        }
        DataType::Decimal256(precision @ 39.., scale @ 0..) => {
            format!("DECIMAL({precision}, {scale})")
        }
        string if string.is_string() => "VARCHAR".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "BYTEA".into(),
        DataType::Date32 => "DATE".into(),
        DataType::Time64(TimeUnit::Nanosecond) => "TIME".into(),
        DataType::Timestamp(unit, None) => format!("TIMESTAMP({})", digits(*unit)),
        DataType::Interval(IntervalUnit::MonthDayNano) => "INTERVAL".into(),
        DataType::List(element) if is_plain(element, Field::LIST_FIELD_DEFAULT_NAME) => {
            format!("{}[]", sql_type(element.data_type())?)
        }
        DataType::FixedSizeList(element, length)
            if is_plain(element, Field::LIST_FIELD_DEFAULT_NAME) =>
        {
            format!("{}[{length}]", sql_type(element.data_type())?)
        }
        DataType::Struct(fields)
            if !fields.is_empty() && fields.iter().all(|field| is_plain(field, field.name())) =>
        {
            let fields = fields.iter().map(|field| {
                let name = field.name().replace('"', "\"\"");
                Some(format!("\"{name}\" {}", sql_type(field.data_type())?))
            });
            format!("STRUCT({})", fields.collect::<Option<Vec<_>>>()?.join(", "))
        }
        other => {
            let text = other.to_string();
            if text.parse().ok().as_ref() != Some(other) {
                return None;
            }
            format!("{ARROW}({})", quoted(&text))
        }
    };
    Some(plain)
}

/// Whether a field within a type is as SQL makes it.
fn is_plain(field: &Field, name: &str) -> bool {
    field.name() == name && field.is_nullable() && field.metadata().is_empty()
}

fn digits(unit: TimeUnit) -> u8 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, BooleanArray, Date32Array, Float64Array, Int32Array, ListArray, StructArray,
        TimestampSecondArray,
    };
    use arrow::datatypes::Int32Type;

    use super::*;

    #[test]
    fn literals_are_those_of_sql() {
        let field = Arc::new(Field::new("it's", DataType::Int32, true));
        let number: ArrayRef = Arc::new(Int32Array::from(vec![7]));
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), None])]);
        let zoned = TimestampSecondArray::from(vec![-4_000_000_000]);
        let cases: [(ArrayRef, &str); 8] = [
            (Arc::new(BooleanArray::from(vec![true])), "TRUE"),
            (
                Arc::new(BinaryArray::from(vec![b"\x00\xff".as_slice()])),
                "X'00ff'",
            ),
            (Arc::new(Date32Array::from(vec![0])), "'1970-01-01'"),
            (
                Arc::new(Date32Array::from(vec![-1_000_000])),
                "CAST(CAST(-1000000 AS INT) AS DATE)",
            ),
            (
                Arc::new(zoned.with_timezone("Europe/Berlin")),
                "'1843-03-31T16:53:20Z'",
            ),
            (
                Arc::new(Float64Array::from(vec![-0.0])),
                "CAST('-0.0' AS DOUBLE)",
            ),
            (Arc::new(list), "[1, NULL]"),
            (
                Arc::new(StructArray::from(vec![(field, number)])),
                "CAST(named_struct('it''s', 7) AS STRUCT(\"it's\" INT))",
            ),
        ];
        for (array, expected) in cases {
            let written = literal(array.as_ref(), 0).unwrap();
            assert_eq!(written.as_deref(), Some(expected));
        }
    }

    #[test]
    fn types_without_a_name_are_arrows() {
        let element = Arc::new(Field::new("element", DataType::Int32, false));
        for (data_type, expected) in [
            (
                DataType::FixedSizeBinary(2),
                Some("ARROW('FixedSizeBinary(2)')"),
            ),
            (DataType::Date64, Some("ARROW('Date64')")),
            (
                DataType::List(element),
                Some("ARROW('List(non-null Int32, field: ''element'')')"),
            ),
            (
                DataType::Timestamp(TimeUnit::Second, Some("UTC".into())),
                Some("ARROW('Timestamp(s, \"UTC\")')"),
            ),
        ] {
            assert_eq!(sql_type(&data_type).as_deref(), expected, "{data_type}");
        }
    }
}
