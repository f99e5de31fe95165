//! Casts of numbers. Those with a fraction become whole ones by rounding, as in PostgreSQL and DuckDB: floats to the
//! nearest number, of two the even one, decimals away from zero; Arrow cuts the fraction off. And decimals become the
//! nearest float: Arrow divides the nearest float of all digits by a power of ten, which makes 866886193.9999999 of
//! 866886194.000000000000000000. Floats as moments are seconds, as whole numbers are; to Arrow they are nanoseconds, and
//! `to_timestamp` makes the last moment that there is of all that are beyond it.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array, TimestampNanosecondArray};
use arrow::datatypes::{
    DataType, Decimal128Type, Decimal256Type, DecimalType, Float32Type, Float64Type, TimeUnit,
};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, exec_datafusion_err, exec_err, internal_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, TryCast, Volatility, cast,
};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::{cast_of, change_parts};
use crate::walk::Walk as _;

static WHOLE: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Number::function(Made::Whole));
static FLOAT: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Number::function(Made::Float));
static MOMENT: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Number::function(Made::Moment));
static MOMENT_OR_NULL: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Number::function(Made::MomentOrNull));

/// The functions that plans call: a node that runs a part of a plan must know them.
pub(super) fn functions() -> [Arc<ScalarUDF>; 4] {
    [&WHOLE, &FLOAT, &MOMENT, &MOMENT_OR_NULL].map(|function| Arc::clone(function))
}

/// Digits of a decimal up to which Arrow's float of it is the nearest: a float holds all of them.
const EXACT_DIGITS: u8 = 15;

/// Makes of numbers that are cast what they are to be; place it behind the rule that gives types, and before the one
/// that hides casts which lose something.
#[derive(Debug)]
pub struct NumberCasts;

impl AnalyzerRule for NumberCasts {
    fn name(&self) -> &str {
        "flashmesh_number_casts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| is_to_number(expr) || is_to_moment(expr);
        change_parts(plan, is_one, |expr, schema| {
            expr.transform_up(|expr| match is_to_moment(&expr) {
                true => moment(expr, schema),
                false => made(expr, schema),
            })
        })
    }
}

fn is_to_number(expr: &Expr) -> bool {
    cast_of(expr).is_some_and(|(_, to)| to.is_integer() || to.is_floating())
}

fn is_to_moment(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(call) => call.name() == "to_timestamp" && call.args.len() == 1,
        expr => cast_of(expr).is_some_and(|(_, to)| matches!(to, DataType::Timestamp(..))),
    }
}

/// The moment of a number of seconds with a fraction.
fn moment(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let to = expr.get_type(schema)?;
    let function = match expr {
        Expr::TryCast(_) => &MOMENT_OR_NULL,
        _ => &MOMENT,
    };
    let value = match &mut expr {
        Expr::Cast(Cast { expr: value, .. }) | Expr::TryCast(TryCast { expr: value, .. }) => {
            value.as_mut()
        }
        Expr::ScalarFunction(call) => &mut call.args[0],
        _ => return Ok(Transformed::no(expr)),
    };
    if !value.get_type(schema)?.is_floating() {
        return Ok(Transformed::no(expr));
    }
    // A moment without a zone is taken for one of the zone that it gets.
    let utc = DataType::Timestamp(TimeUnit::Nanosecond, Some("+00:00".into()));
    let mut moment = function.call(vec![cast(std::mem::take(value), DataType::Float64)]);
    if matches!(to, DataType::Timestamp(_, Some(_))) {
        moment = cast(moment, utc);
    }
    Ok(Transformed::yes(match moment.get_type(schema)? == to {
        true => moment,
        false => cast(moment, to),
    }))
}

fn made(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    if !is_to_number(&expr) {
        return Ok(Transformed::no(expr));
    }
    let is_to_float = cast_of(&expr).is_some_and(|(_, to)| to.is_floating());
    let (Expr::Cast(Cast { expr: value, .. }) | Expr::TryCast(TryCast { expr: value, .. })) =
        &mut expr
    else {
        return Ok(Transformed::no(expr));
    };
    let is_whole = matches!(value.as_ref(), Expr::ScalarFunction(call) if call.func == *WHOLE);
    let whole = match value.get_type(schema)? {
        DataType::Decimal128(precision, _) if is_to_float && precision > EXACT_DIGITS => {
            FLOAT.call(vec![std::mem::take(value.as_mut())])
        }
        DataType::Decimal256(..) if is_to_float => FLOAT.call(vec![std::mem::take(value.as_mut())]),
        _ if is_to_float => return Ok(Transformed::no(expr)),
        DataType::Float32 | DataType::Float64 if !is_whole => {
            WHOLE.call(vec![std::mem::take(value.as_mut())])
        }
        // Arrow rounds where digits behind the point are left.
        DataType::Decimal32(precision, scale @ 1..)
        | DataType::Decimal64(precision, scale @ 1..)
        | DataType::Decimal128(precision, scale @ 1..) => {
            let to = DataType::Decimal128(whole_digits(precision, scale).min(38), 0);
            cast(std::mem::take(value.as_mut()), to)
        }
        DataType::Decimal256(precision, scale @ 1..) => {
            let to = DataType::Decimal256(whole_digits(precision, scale).min(76), 0);
            cast(std::mem::take(value.as_mut()), to)
        }
        _ => return Ok(Transformed::no(expr)),
    };
    **value = whole;
    Ok(Transformed::yes(expr))
}

/// How many digits before the point a decimal has at most once it is rounded.
fn whole_digits(precision: u8, scale: i8) -> u8 {
    precision.saturating_sub(scale.unsigned_abs()) + 1
}

/// What is made of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Made {
    /// The nearest whole number of a float, as one.
    Whole,
    /// The nearest float of a decimal.
    Float,
    /// The moment of a float of seconds since 1970.
    Moment,
    /// The same, and NULL where there is none.
    MomentOrNull,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Number {
    made: Made,
    signature: Signature,
}

impl Number {
    fn function(made: Made) -> Arc<ScalarUDF> {
        let signature = Signature::any(1, Volatility::Immutable);
        Arc::new(ScalarUDF::from(Self { made, signature }))
    }
}

impl ScalarUDFImpl for Number {
    fn name(&self) -> &str {
        match self.made {
            Made::Whole => "flashmesh:whole",
            Made::Float => "flashmesh:float",
            Made::Moment => "flashmesh:moment",
            Made::MomentOrNull => "flashmesh:moment_or_null",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match (self.made, types) {
            (Made::Whole, [only]) => Ok(only.clone()),
            (Made::Float, [_]) => Ok(DataType::Float64),
            (Made::Moment | Made::MomentOrNull, [_]) => {
                Ok(DataType::Timestamp(TimeUnit::Nanosecond, None))
            }
            _ => internal_err!("{} takes one value", self.name()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let made = self.made;
        let number = move |columns: &[ArrayRef]| match (made, columns) {
            (Made::Whole, [floats]) => whole(floats),
            (Made::Float, [decimals]) => nearest(decimals),
            (Made::Moment | Made::MomentOrNull, [seconds]) => {
                moments(seconds, made == Made::MomentOrNull)
            }
            _ => exec_err!("a number is made of one value"),
        };
        make_scalar_function(number, Vec::new())(&args.args)
    }
}

fn whole(floats: &ArrayRef) -> Result<ArrayRef> {
    Ok(match floats.data_type() {
        DataType::Float32 => {
            let floats = floats.as_primitive::<Float32Type>();
            let whole: Float32Array = floats.unary(f32::round_ties_even);
            Arc::new(whole)
        }
        DataType::Float64 => {
            let floats = floats.as_primitive::<Float64Type>();
            let whole: Float64Array = floats.unary(f64::round_ties_even);
            Arc::new(whole)
        }
        _ => Arc::clone(floats),
    })
}

/// The nearest floats of decimals.
fn nearest(decimals: &ArrayRef) -> Result<ArrayRef> {
    // Whole numbers up to this, and powers of ten up to that, are floats, and their quotient is the nearest one.
    const LARGEST: i128 = 1 << 53;
    const POWERS: i8 = 22;
    let read = |text: String| text.parse().unwrap_or(f64::NAN);
    let floats: Float64Array = match decimals.data_type() {
        DataType::Decimal128(precision, scale) => {
            let decimals = decimals.as_primitive::<Decimal128Type>();
            decimals.unary(|unscaled| match unscaled.abs() <= LARGEST {
                true if (0..=POWERS).contains(scale) => {
                    unscaled as f64 / 10_f64.powi(i32::from(*scale))
                }
                _ => read(Decimal128Type::format_decimal(unscaled, *precision, *scale)),
            })
        }
        DataType::Decimal256(precision, scale) => {
            let decimals = decimals.as_primitive::<Decimal256Type>();
            decimals.unary(|unscaled| {
                read(Decimal256Type::format_decimal(unscaled, *precision, *scale))
            })
        }
        other => return exec_err!("a float is made of a decimal, not of {other}"),
    };
    Ok(Arc::new(floats))
}

/// Moments of seconds since 1970; of others an error, or NULL.
fn moments(seconds: &ArrayRef, or_null: bool) -> Result<ArrayRef> {
    let Some(seconds) = seconds.as_primitive_opt::<Float64Type>() else {
        return internal_err!(
            "a moment is made of a float, not of {}",
            seconds.data_type()
        );
    };
    if or_null {
        let moments: TimestampNanosecondArray = seconds.unary_opt(nanoseconds);
        return Ok(Arc::new(moments));
    }
    let moments: TimestampNanosecondArray = seconds.try_unary(|seconds| -> Result<i64> {
        nanoseconds(seconds).ok_or_else(|| {
            exec_datafusion_err!(
                "{seconds} seconds since 1970 are no timestamp; those are from 1677 to 2262 \
                 (milliseconds are divided by 1000 first)"
            )
        })
    })?;
    Ok(Arc::new(moments))
}

/// Seconds in nanoseconds. Floats of the seconds of our days hold no more than microseconds.
fn nanoseconds(seconds: f64) -> Option<i64> {
    const HOLD_NANOSECONDS: f64 = 1e6;
    // NaN is not less.
    let is_there = seconds.abs() < i64::MAX as f64 / 1e9;
    let rest = seconds - seconds.floor();
    let rest = match seconds.abs() < HOLD_NANOSECONDS {
        true => (rest * 1e9).round(),
        false => (rest * 1e6).round() * 1e3,
    };
    let whole = is_there.then_some(seconds.floor() as i64)?;
    whole.checked_mul(1_000_000_000)?.checked_add(rest as i64)
}

#[cfg(test)]
mod tests {
    use arrow::array::Decimal128Array;

    use super::*;

    #[test]
    fn decimals_become_the_nearest_floats() {
        let texts = [
            "866886194.000000000000000000",
            "0.000000000000000001",
            "-12345678901234567890.123456789012345678",
            "1234.500000000000000000",
            "0",
        ];
        let unscaled = |text: &str| {
            let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
            format!("{whole}{rest:0<18}").parse::<i128>().unwrap()
        };
        let decimals = Decimal128Array::from_iter_values(texts.map(unscaled));
        let decimals = decimals.with_precision_and_scale(38, 18).unwrap();
        let floats = nearest(&(Arc::new(decimals) as ArrayRef)).unwrap();
        let expected = texts.map(|text| text.parse::<f64>().unwrap());
        assert_eq!(floats.as_primitive::<Float64Type>().values(), &expected);
    }
}
