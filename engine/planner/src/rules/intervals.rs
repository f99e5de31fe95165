//! How long an interval is, as a number that is greater for a longer one.

use std::sync::{Arc, LazyLock};

use arrow::array::{ArrayRef, AsArray, Decimal128Array};
use arrow::datatypes::{DataType, IntervalMonthDayNanoType, IntervalUnit};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

const NAME: &str = "flashmesh:length_of_interval";

const DAY_NS: i128 = 86_400_000_000_000;
const MONTH_DAYS: i128 = 30;

/// Nanoseconds; those of the longest interval have 25 digits.
const LENGTH: DataType = DataType::Decimal128(38, 0);

static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Length {
        signature: Signature::any(1, Volatility::Immutable),
    }))
});

/// The function: a node that runs a part of a plan must know it.
pub fn function() -> Arc<ScalarUDF> {
    Arc::clone(&FUNCTION)
}

/// The length of an interval or duration.
pub(super) fn length(interval: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(function(), vec![interval]))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    signature: Signature,
}

impl ScalarUDFImpl for Length {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(LENGTH)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let value = &args.args[0];
        let intervals = value.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano), None)?;
        let lengths = lengths_of(&intervals.to_array(1)?)?;
        Ok(match value {
            ColumnarValue::Array(_) => ColumnarValue::Array(lengths),
            ColumnarValue::Scalar(_) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&lengths, 0)?)
            }
        })
    }
}

fn lengths_of(intervals: &ArrayRef) -> Result<ArrayRef> {
    let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
    let lengths: Decimal128Array = intervals.unary(|interval| {
        let days = i128::from(interval.months) * MONTH_DAYS + i128::from(interval.days);
        days * DAY_NS + i128::from(interval.nanoseconds)
    });
    Ok(Arc::new(lengths.with_data_type(LENGTH)))
}
