//! `age(a, b)`: what lies between two times, in months, days and the rest.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, IntervalMonthDayNanoArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, IntervalMonthDayNano, IntervalUnit, TimeUnit, TimestampMicrosecondType,
};
use arrow::temporal_conversions::timestamp_us_to_datetime;
use chrono::{Datelike, NaiveDateTime, Timelike};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDFImpl, Signature,
    Volatility,
};

use crate::moments::may_be_moment;

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Age {
    signature: Signature,
    documentation: Documentation,
}

impl Age {
    pub fn new() -> Self {
        let says = "what lies between two times, in years, months and days of the calendar; of one time, until today";
        let call = "age(later, earlier), age(time)";
        Self {
            signature: Signature::user_defined(Volatility::Immutable),
            documentation: Documentation::builder(DocSection::default(), says, call).build(),
        }
    }
}

impl ScalarUDFImpl for Age {
    fn name(&self) -> &str {
        "age"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [later, earlier] if may_be_moment(later) && may_be_moment(earlier) => {
                Ok(vec![DataType::Timestamp(TimeUnit::Microsecond, None); 2])
            }
            _ => plan_err!("age takes two dates or timestamps"),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Interval(IntervalUnit::MonthDayNano))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let ages = |columns: &[ArrayRef]| {
            let [later, earlier] = columns else {
                return exec_err!("age takes two times");
            };
            let times = DataType::Timestamp(TimeUnit::Microsecond, None);
            let (later, earlier) = (cast(later, &times)?, cast(earlier, &times)?);
            let later = later.as_primitive::<TimestampMicrosecondType>().iter();
            let earlier = earlier.as_primitive::<TimestampMicrosecondType>().iter();
            let ages = later.zip(earlier).map(|(later, earlier)| {
                let later = timestamp_us_to_datetime(later?)?;
                Some(age(later, timestamp_us_to_datetime(earlier?)?))
            });
            Ok(Arc::new(ages.collect::<IntervalMonthDayNanoArray>()) as ArrayRef)
        };
        make_scalar_function(ages, Vec::new())(&args.args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// Whole months from the earlier time on, then whole days, then the rest; days that are short are those of the
/// earlier time's month, as in PostgreSQL.
fn age(later: NaiveDateTime, earlier: NaiveDateTime) -> IntervalMonthDayNano {
    if later < earlier {
        let IntervalMonthDayNano {
            months,
            days,
            nanoseconds,
        } = age(earlier, later);
        return IntervalMonthDayNano::new(-months, -days, -nanoseconds);
    }
    const DAY: i64 = 86_400_000_000_000;
    let of_day = |time: NaiveDateTime| {
        i64::from(time.num_seconds_from_midnight()) * 1_000_000_000 + i64::from(time.nanosecond())
    };
    let mut nanoseconds = of_day(later) - of_day(earlier);
    let mut days = later.day() as i32 - earlier.day() as i32;
    let mut months =
        (later.year() - earlier.year()) * 12 + later.month() as i32 - earlier.month() as i32;
    if nanoseconds < 0 {
        nanoseconds += DAY;
        days -= 1;
    }
    while days < 0 {
        days += i32::from(earlier.num_days_in_month());
        months -= 1;
    }
    IntervalMonthDayNano::new(months, days, nanoseconds)
}
