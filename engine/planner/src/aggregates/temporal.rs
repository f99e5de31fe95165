//! Means of temporal values, dates, times, timestamps and intervals, of which DataFusion has none.

use std::mem::size_of_val;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{
    DataType, Decimal256Type, Field, FieldRef, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, TimeUnit, i256,
};
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, not_impl_err};
use datafusion::logical_expr::Accumulator;
use datafusion::logical_expr::function::AccumulatorArgs;

/// A type that no store sums up: `rules::aggregate` takes the sums of others for those of numbers.
const SUM: DataType = DataType::Decimal256(76, 0);

/// What means and quantiles are of beside numbers, in errors.
pub(super) const TEMPORAL: &str = "dates, times, timestamps";

const MONTH_DAYS: i128 = 30;
const DAY_NS: i128 = 86_400_000_000_000;

/// What the mean or a quantile of such values is; `None` for values of another kind. That of dates is a timestamp.
pub(super) fn between(of: &DataType) -> Option<DataType> {
    match of {
        DataType::Date32 | DataType::Date64 => {
            Some(DataType::Timestamp(TimeUnit::Microsecond, None))
        }
        DataType::Timestamp(..) => Some(of.clone()),
        DataType::Time32(_) | DataType::Time64(_) => Some(DataType::Time64(TimeUnit::Nanosecond)),
        _ => None,
    }
}

/// What the mean of such values is; `None` for values of another kind.
pub(super) fn mean_of(of: &DataType) -> Option<DataType> {
    match of {
        DataType::Interval(_) => Some(DataType::Interval(IntervalUnit::MonthDayNano)),
        _ => between(of),
    }
}

/// Values of a type of [`between`] as the numbers that they are in Arrow.
///
/// # Errors
/// None for these types.
pub(super) fn numbers_of(values: &ArrayRef) -> Result<ArrayRef> {
    Ok(cast(values, &DataType::Int64)?)
}

/// A value of a type of [`between`] by the number that it is in Arrow.
///
/// # Errors
/// For a number beyond those of the type.
pub(super) fn scalar_of(number: i128, of: &DataType) -> Result<ScalarValue> {
    let number = i64::try_from(number)
        .map_err(|_| exec_datafusion_err!("the value is beyond those that there are"))?;
    ScalarValue::from(number).cast_to(of)
}

/// How many values there are, and the sums of their parts: of months, days and nanoseconds for intervals, one
/// for all others.
#[derive(Debug)]
pub(super) struct Mean {
    result: DataType,
    count: i64,
    sums: Vec<i128>,
}

impl Mean {
    /// # Errors
    /// For DISTINCT.
    pub fn new(args: &AccumulatorArgs) -> Result<Self> {
        if args.is_distinct {
            return not_impl_err!(
                "avg(DISTINCT x) of dates, times, timestamps and intervals; write the avg of a SELECT DISTINCT x"
            );
        }
        let result = args.return_field.data_type().clone();
        Ok(Self {
            count: 0,
            sums: vec![0; parts_of(&result)],
            result,
        })
    }

    /// What its state is made of.
    pub fn state_fields(name: &str, result: &DataType) -> Vec<FieldRef> {
        let sum = |part| Field::new(format!("{name}[sum {part}]"), SUM, true);
        let count = Field::new(format!("{name}[count]"), DataType::Int64, true);
        let sums = (0..parts_of(result)).map(sum);
        [count].into_iter().chain(sums).map(Arc::new).collect()
    }

    fn add(&mut self, values: &ArrayRef, sign: i64) -> Result<()> {
        let or_error = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let values = cast_with_options(values, &self.result, &or_error)?;
        self.count += sign * (values.len() - values.null_count()) as i64;
        let sign = i128::from(sign);
        if let [months, days, nanoseconds] = self.sums.as_mut_slice() {
            let values = values.as_primitive::<IntervalMonthDayNanoType>();
            for value in values.iter().flatten() {
                *months += sign * i128::from(value.months);
                *days += sign * i128::from(value.days);
                *nanoseconds += sign * i128::from(value.nanoseconds);
            }
            return Ok(());
        }
        let values = numbers_of(&values)?;
        let numbers = values.as_primitive::<Int64Type>().iter().flatten();
        self.sums[0] += sign * numbers.map(i128::from).sum::<i128>();
        Ok(())
    }
}

fn parts_of(result: &DataType) -> usize {
    match result {
        DataType::Interval(_) => 3,
        _ => 1,
    }
}

impl Accumulator for Mean {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0], 1)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(&values[0], -1)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.count == 0 {
            return ScalarValue::try_from(&self.result);
        }
        let count = i128::from(self.count);
        let beyond = |_| exec_datafusion_err!("the mean is beyond the values that there are");
        if let [months, days, nanoseconds] = self.sums[..] {
            // What is left of whole months is days, and of whole days a time.
            let days = days + months % count * MONTH_DAYS;
            let nanoseconds = nanoseconds + days % count * DAY_NS;
            let mean = IntervalMonthDayNano {
                months: i32::try_from(months / count).map_err(beyond)?,
                days: i32::try_from(days / count).map_err(beyond)?,
                nanoseconds: i64::try_from(nanoseconds / count).map_err(beyond)?,
            };
            return Ok(ScalarValue::IntervalMonthDayNano(Some(mean)));
        }
        scalar_of(self.sums[0].div_euclid(count), &self.result)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sums = self.sums.iter();
        let sums = sums.map(|sum| ScalarValue::Decimal256(Some(i256::from_i128(*sum)), 76, 0));
        let count = ScalarValue::from(self.count);
        Ok([count].into_iter().chain(sums).collect())
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let counts = states[0].as_primitive::<Int64Type>();
        self.count += counts.iter().flatten().sum::<i64>();
        for (sum, states) in self.sums.iter_mut().zip(&states[1..]) {
            let sums = states.as_primitive::<Decimal256Type>().iter().flatten();
            *sum += sums.map(|sum| sum.as_i128()).sum::<i128>();
        }
        Ok(())
    }

    fn size(&self) -> usize {
        size_of_val(self) + size_of_val(self.sums.as_slice())
    }
}
