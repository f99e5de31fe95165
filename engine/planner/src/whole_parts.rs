//! `date_sub(part, a, b)`: how many whole days, months or other parts lie between two times.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, TimeUnit, TimestampMicrosecondType};
use arrow::temporal_conversions::timestamp_us_to_datetime;
use chrono::{Datelike, NaiveDateTime};
use datafusion::common::{Result, exec_datafusion_err, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::moments::may_be_moment;

const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct DateSub {
    aliases: Vec<String>,
    signature: Signature,
    documentation: Documentation,
}

impl DateSub {
    pub fn new() -> Self {
        let says = "how many whole parts ('day', 'month', …) lie between two times";
        let call = "date_sub(part, earlier, later)";
        Self {
            aliases: vec!["datesub".into()],
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

impl ScalarUDFImpl for DateSub {
    fn name(&self) -> &str {
        "date_sub"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [part, a, b]
                if (part.is_string() || part.is_null()) && may_be_moment(a) && may_be_moment(b) =>
            {
                Ok(vec![DataType::Utf8, TIMESTAMP, TIMESTAMP])
            }
            _ => plan_err!(
                "date_sub takes a part and two dates or timestamps: date_sub('month', a, b)"
            ),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let between = |columns: &[ArrayRef]| {
            let [parts, from, to] = columns else {
                return exec_err!("date_sub takes a part and two times");
            };
            let parts = cast(parts, &DataType::Utf8)?;
            let parts = parts.as_string::<i32>();
            let from = from.as_primitive::<TimestampMicrosecondType>();
            let to = to.as_primitive::<TimestampMicrosecondType>();
            let counts = (0..parts.len()).map(|row| {
                match parts.is_null(row) || from.is_null(row) || to.is_null(row) {
                    true => Ok(None),
                    false => {
                        whole_parts(parts.value(row), from.value(row), to.value(row)).map(Some)
                    }
                }
            });
            Ok(Arc::new(counts.collect::<Result<Int64Array>>()?) as ArrayRef)
        };
        make_scalar_function(between, vec![])(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

fn whole_parts(part: &str, from: i64, to: i64) -> Result<i64> {
    let part = part.to_lowercase();
    let microseconds = match part.trim_end_matches('s') {
        "microsecond" | "u" => 1,
        "millisecond" | "m" => 1000,
        "second" | "sec" => 1_000_000,
        "minute" | "min" => 60_000_000,
        "hour" => 3_600_000_000,
        "day" | "dayofyear" => 86_400_000_000,
        "week" => 7 * 86_400_000_000,
        _ => 0,
    };
    if microseconds > 0 {
        let between = i128::from(to) - i128::from(from);
        let count = i64::try_from(between / microseconds);
        return count.map_err(|_| exec_datafusion_err!("date_sub: the times lie too far apart"));
    }
    let months = match part.trim_end_matches('s') {
        "month" | "mon" => 1,
        "quarter" => 3,
        "year" | "yr" => 12,
        "decade" => 120,
        "century" | "centurie" => 1200,
        "millennium" | "millennia" => 12_000,
        _ => {
            return exec_err!(
                "date_sub knows no part '{part}'; it knows microsecond, millisecond, second, minute, hour, day, week, \
                 month, quarter, year, decade, century and millennium"
            );
        }
    };
    let time = |us: i64| {
        timestamp_us_to_datetime(us)
            .ok_or_else(|| exec_datafusion_err!("date_sub: a time is out of range"))
    };
    let (from, to) = (time(from)?, time(to)?);
    Ok(match from > to {
        true => -(whole_months(to, from) / months),
        false => whole_months(from, to) / months,
    })
}

/// Months are whole when the day and the time of the first come again, or the last day of a month that has
/// no such day.
fn whole_months(from: NaiveDateTime, to: NaiveDateTime) -> i64 {
    let is_last = to.date().succ_opt().is_none_or(|next| next.day() == 1);
    let day = match is_last {
        true => from.day().min(to.day()),
        false => from.day(),
    };
    let month = |time: NaiveDateTime| i64::from(time.year()) * 12 + i64::from(time.month());
    let is_begun = (day, from.time()) > (to.day(), to.time());
    month(to) - month(from) - i64::from(is_begun)
}
