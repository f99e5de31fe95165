//! Values as texts. Intervals and durations as `1 month 2 days 03:04:05.5`, as DuckDB prints them and much as PostgreSQL
//! does: Arrow prints `1 mons 2 days 3 hours 4 mins 5.500000000 secs`. And lists, structs and maps, `[1, {a: x}]`, as
//! the shell prints them: Arrow casts lists of plain values alone.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, DurationNanosecondType, Field, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use arrow::error::ArrowError;
use arrow::util::display::{
    ArrayFormatter, ArrayFormatterFactory, DisplayIndex, FormatOptions, FormatResult,
};
use datafusion::common::{Result, exec_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

const DAY: i128 = 86_400_000_000_000;
const SECOND: i128 = 1_000_000_000;

/// The function that makes texts of them, which SQL has no name for: a node that runs a part of a plan must know it.
pub fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(TextOf {
        signature: Signature::any(1, Volatility::Immutable),
    }))
}

/// Whether values of a type have other texts than Arrow's casts give.
pub fn has_text(of: &DataType) -> bool {
    is_interval(of) || of.is_nested() || matches!(of, DataType::Timestamp(..))
}

/// The texts of values of such a type.
///
/// # Errors
/// None for types that can be printed.
pub fn texts_of(values: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let own = IntervalTexts.create_array_formatter(values, &WITHIN, None)?;
    let formatter = match own {
        Some(own) => own,
        None => ArrayFormatter::try_new(values, &WITHIN)?,
    };
    let texts = (0..values.len())
        .map(|row| (!values.is_null(row)).then(|| formatter.value(row).to_string()));
    Ok(Arc::new(texts.collect::<StringArray>()))
}

fn is_interval(of: &DataType) -> bool {
    matches!(of, DataType::Interval(_) | DataType::Duration(_))
}

/// How values within others are printed.
const WITHIN: FormatOptions<'static> = FormatOptions::new()
    .with_null("NULL")
    .with_datetime_format(Some(MOMENT))
    .with_timestamp_format(Some(MOMENT))
    .with_timestamp_tz_format(Some(MOMENT_OF_ZONE))
    .with_formatter_factory(Some(&IntervalTexts));
/// How a moment without a zone is printed, as chrono says it.
pub const MOMENT: &str = "%Y-%m-%d %H:%M:%S%.f";
/// The same of one with a zone.
pub const MOMENT_OF_ZONE: &str = "%Y-%m-%d %H:%M:%S%.f%:z";

/// The text of an interval, without the parts that are none.
fn text_of(months: i32, days: i128, nanoseconds: i128) -> String {
    let mut parts = Vec::with_capacity(4);
    let (years, months) = (months / 12, months % 12);
    for (number, unit) in [
        (years.into(), "year"),
        (months.into(), "month"),
        (days, "day"),
    ] {
        match number {
            0 => {}
            1 | -1 => parts.push(format!("{number} {unit}")),
            _ => parts.push(format!("{number} {unit}s")),
        }
    }
    if nanoseconds != 0 || parts.is_empty() {
        let sign = if nanoseconds < 0 { "-" } else { "" };
        let seconds = nanoseconds.abs() / SECOND;
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let mut time = format!("{sign}{hours:02}:{minutes:02}:{seconds:02}");
        let rest = nanoseconds.abs() % SECOND;
        if rest != 0 {
            let digits = format!("{rest:09}");
            time.push('.');
            time.push_str(digits.trim_end_matches('0'));
        }
        parts.push(time);
    }
    parts.join(" ")
}

/// Intervals and durations, to be printed.
enum Intervals {
    Parts(ArrayRef),
    /// In nanoseconds.
    Durations(ArrayRef),
    /// Of units of which there are more than nanoseconds hold.
    Units(ArrayRef, i128),
}

impl Intervals {
    fn of(array: &dyn Array) -> Result<Self, ArrowError> {
        let to = |to| cast(array, &to);
        Ok(match array.data_type() {
            DataType::Duration(TimeUnit::Nanosecond) => {
                Self::Durations(to(DataType::Duration(TimeUnit::Nanosecond))?)
            }
            DataType::Duration(unit) => {
                let nanoseconds = match unit {
                    TimeUnit::Second => SECOND,
                    TimeUnit::Millisecond => SECOND / 1_000,
                    _ => SECOND / 1_000_000,
                };
                Self::Units(to(DataType::Int64)?, nanoseconds)
            }
            _ => Self::Parts(to(DataType::Interval(IntervalUnit::MonthDayNano))?),
        })
    }

    /// The text of a value that is not NULL.
    fn text(&self, row: usize) -> String {
        let by_days = |nanoseconds: i128| text_of(0, nanoseconds / DAY, nanoseconds % DAY);
        match self {
            Self::Parts(array) => {
                let of = array.as_primitive::<IntervalMonthDayNanoType>().value(row);
                text_of(of.months, of.days.into(), of.nanoseconds.into())
            }
            Self::Durations(array) => {
                let of = array.as_primitive::<DurationNanosecondType>().value(row);
                by_days(of.into())
            }
            Self::Units(array, nanoseconds) => {
                let of = array
                    .as_primitive::<arrow::datatypes::Int64Type>()
                    .value(row);
                by_days(i128::from(of) * nanoseconds)
            }
        }
    }

    fn is_null(&self, row: usize) -> bool {
        let (Self::Parts(array) | Self::Durations(array) | Self::Units(array, _)) = self;
        array.is_null(row)
    }
}

/// Has intervals printed so, also within lists and structs.
#[derive(Debug)]
pub struct IntervalTexts;

impl ArrayFormatterFactory for IntervalTexts {
    fn create_array_formatter<'formatter>(
        &self,
        array: &'formatter dyn Array,
        options: &FormatOptions<'formatter>,
        _: Option<&'formatter Field>,
    ) -> Result<Option<ArrayFormatter<'formatter>>, ArrowError> {
        if !is_interval(array.data_type()) {
            return Ok(None);
        }
        let shown = Shown {
            intervals: Intervals::of(array)?,
            null: options.null(),
        };
        Ok(Some(ArrayFormatter::new(Box::new(shown), options.safe())))
    }
}

struct Shown<'a> {
    intervals: Intervals,
    null: &'a str,
}

impl DisplayIndex for Shown<'_> {
    fn write(&self, row: usize, out: &mut dyn Write) -> FormatResult {
        match self.intervals.is_null(row) {
            true => out.write_str(self.null)?,
            false => out.write_str(&self.intervals.text(row))?,
        }
        Ok(())
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextOf {
    signature: Signature,
}

impl ScalarUDFImpl for TextOf {
    fn name(&self) -> &str {
        "flashmesh:text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let texts = |columns: &[ArrayRef]| {
            let [values] = columns else {
                return exec_err!("a text is made of one value");
            };
            Ok(texts_of(values)?)
        };
        make_scalar_function(texts, Vec::new())(&args.args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_none_are_left_out() {
        // As DuckDB 1.4 prints them.
        for ((months, days, nanoseconds), text) in [
            ((0, 0, 0), "00:00:00"),
            ((1, 2, 0), "1 month 2 days"),
            ((12, 0, 0), "1 year"),
            ((-14, 0, 0), "-1 year -2 months"),
            (
                (14, 3, 14_706_789_000_000),
                "1 year 2 months 3 days 04:05:06.789",
            ),
            ((0, 1, -3_600 * SECOND), "1 day -01:00:00"),
            ((0, 0, 360_000 * SECOND), "100:00:00"),
            ((0, 0, 1), "00:00:00.000000001"),
        ] {
            assert_eq!(text_of(months, days, nanoseconds), text);
        }
    }
}
