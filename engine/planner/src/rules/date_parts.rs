//! Parts of timestamps and intervals.
//!
//! DataFusion makes `year(ts) = 2024` a range of timestamps. A year that no timestamp of the column's unit
//! can be in has none, and what it made of that was FALSE: `year(ts) < 2300` found no rows. Of an interval's seconds Arrow
//! leaves the fraction out of milliseconds and microseconds, too, and its years have 360 days in `epoch`; that of a
//! timestamp is rounded twice, which makes 0.2499998 of a fraction of 0.25. Of a difference
//! of timestamps its parts are all of it, in 32 bits: they are those of the interval of days and a time that it is
//! elsewhere.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray, Float64Array, Int32Array, IntervalMonthDayNanoArray};
use arrow::datatypes::{
    DataType, DurationNanosecondType, Field, FieldRef, Int32Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::functions::datetime;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::preimage::PreimageResult;
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature,
};
use flashmesh_pushdown::types::units_per_second;

/// Years that begin and end at a moment which 64 bits of nanoseconds hold.
const YEARS_OF_NS: std::ops::RangeInclusive<i32> = 1678..=2260;
/// The same of other units, and of days; Rust's calendar ends not far behind.
const YEARS: std::ops::RangeInclusive<i32> = 0..=9998;

static DATE_PART: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    let inner = datetime::date_part();
    Arc::new(ScalarUDF::from(DatePart { inner }))
});

/// `date_part`, for whom its name means DataFusion's.
pub(crate) fn date_part() -> Arc<ScalarUDF> {
    Arc::clone(&DATE_PART)
}

/// Puts our form of the function in the place of DataFusion's, which EXTRACT names.
#[derive(Debug)]
pub struct DateParts;

impl FunctionRewrite for DateParts {
    fn name(&self) -> &str {
        "flashmesh_date_parts"
    }

    fn rewrite(
        &self,
        mut expr: Expr,
        _schema: &DFSchema,
        _config: &ConfigOptions,
    ) -> Result<Transformed<Expr>> {
        if let Expr::ScalarFunction(call) = &mut expr
            && call.func.name() == "date_part"
            && call.func.inner().downcast_ref::<DatePart>().is_none()
        {
            call.func = date_part();
            return Ok(Transformed::yes(expr));
        }
        Ok(Transformed::no(expr))
    }
}

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// What a part of an interval is, where Arrow has it otherwise: a fraction of the minute, or all of it in seconds, with
/// years of 365.25 days and months of 30.
fn part_of_intervals(part: &str) -> Option<fn(IntervalMonthDayNano) -> f64> {
    const MINUTE: i64 = 60_000_000_000;
    const DAY: f64 = 86_400.0;
    Some(match part {
        "millisecond" | "milliseconds" | "ms" => {
            |of| ((of.nanoseconds % MINUTE) / 1_000_000) as f64
        }
        "microsecond" | "microseconds" | "us" => |of| ((of.nanoseconds % MINUTE) / 1_000) as f64,
        "nanosecond" | "nanoseconds" | "ns" => |of| (of.nanoseconds % MINUTE) as f64,
        "epoch" => |of| {
            let (years, months) = (of.months / 12, of.months % 12);
            let days = f64::from(years) * 365.25 + f64::from(months) * 30.0 + f64::from(of.days);
            days * DAY + of.nanoseconds as f64 / 1e9
        },
        _ => return None,
    })
}

/// What of a year a longer part of time is.
fn part_of_years(part: &str) -> Option<fn(i32) -> i32> {
    /// The first year of a calendar is 1, and the one before it -1 to these.
    fn counted(year: i32, of: i32) -> i32 {
        match year {
            1.. => (year - 1) / of + 1,
            _ => year / of - 1,
        }
    }
    Some(match part {
        "decade" | "decades" => |year| year.div_euclid(10),
        "century" | "centuries" => |year| counted(year, 100),
        "millennium" | "millenniums" | "millennia" => |year| counted(year, 1000),
        _ => return None,
    })
}

/// The days of a difference in nanoseconds, and what is left of it.
fn days_and_time(nanoseconds: i64) -> IntervalMonthDayNano {
    const DAY: i64 = 86_400_000_000_000;
    // No difference in 64 bits has more than 106,752 days.
    IntervalMonthDayNano::new(0, (nanoseconds / DAY) as i32, nanoseconds % DAY)
}

/// What is computed of values, or of one that stands for all.
fn computed(
    value: &ColumnarValue,
    compute: impl Fn(&ArrayRef) -> ArrayRef,
) -> Result<ColumnarValue> {
    Ok(match value {
        ColumnarValue::Array(values) => ColumnarValue::Array(compute(values)),
        ColumnarValue::Scalar(value) => {
            let one = compute(&value.to_array()?);
            ColumnarValue::Scalar(ScalarValue::try_from_array(&one, 0)?)
        }
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct DatePart {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for DatePart {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(value) = args.args.get_mut(1)
            && let DataType::Duration(_) = value.data_type()
        {
            let nanoseconds = value.cast_to(&DataType::Duration(TimeUnit::Nanosecond), None)?;
            *value = computed(&nanoseconds, |durations| {
                let durations = durations.as_primitive::<DurationNanosecondType>();
                let intervals: IntervalMonthDayNanoArray = durations.unary(days_and_time);
                Arc::new(intervals)
            })?;
            args.arg_fields[1] = Arc::new(Field::new("interval", INTERVAL, true));
        }
        let [ColumnarValue::Scalar(part), value] = args.args.as_slice() else {
            return self.inner.invoke_with_args(args);
        };
        let Some(Some(part)) = part.try_as_str() else {
            return self.inner.invoke_with_args(args);
        };
        let part = part.to_lowercase();
        let of = value.data_type();
        if of == INTERVAL
            && let Some(part) = part_of_intervals(&part)
        {
            let parts = computed(value, |intervals| {
                let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
                let parts: Float64Array = intervals.unary(part);
                Arc::new(parts)
            })?;
            return parts.cast_to(args.return_field.data_type(), None);
        }
        if let DataType::Timestamp(unit, _) = of
            && part == "epoch"
        {
            let of_a_second = units_per_second(&unit);
            return computed(&value.cast_to(&DataType::Int64, None)?, |numbers| {
                let seconds: Float64Array = numbers.as_primitive::<Int64Type>().unary(|number| {
                    let rest = number.rem_euclid(of_a_second) as f64 / of_a_second as f64;
                    number.div_euclid(of_a_second) as f64 + rest
                });
                Arc::new(seconds)
            });
        }
        if let Some(part) = part_of_years(&part) {
            args.args[0] = ColumnarValue::Scalar(ScalarValue::from("year"));
            return computed(&self.inner.invoke_with_args(args)?, |years| {
                let parts: Int32Array = years.as_primitive::<Int32Type>().unary(part);
                Arc::new(parts)
            });
        }
        self.inner.invoke_with_args(args)
    }

    fn preimage(
        &self,
        args: &[Expr],
        constant: &Expr,
        info: &SimplifyContext,
    ) -> Result<PreimageResult> {
        let Some(ScalarValue::Int32(Some(year))) = constant.as_literal() else {
            return Ok(PreimageResult::None);
        };
        let of = args.get(1).map(|of| info.get_data_type(of)).transpose()?;
        let years = match of {
            Some(DataType::Timestamp(TimeUnit::Nanosecond, _)) => YEARS_OF_NS,
            _ => YEARS,
        };
        match years.contains(year) {
            true => self.inner.inner().preimage(args, constant, info),
            false => Ok(PreimageResult::None),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
