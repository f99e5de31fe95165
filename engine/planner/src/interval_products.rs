//! `INTERVAL '1 day' * 3` and `(b - a) / 2`, for which DataFusion has no types.

use std::sync::{Arc, LazyLock};

use arrow::array::{AsArray, PrimitiveArray};
use arrow::datatypes::{
    DataType, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
};
use datafusion::common::{DFSchema, Result, ScalarValue, exec_datafusion_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult, RawBinaryExpr};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility, lit,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;

const NAME: &str = "flashmesh:product_of_interval";
const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

const DAY_NS: f64 = 86_400e9;
const MONTH_DAYS: f64 = 30.0;

static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Product {
        signature: Signature::any(3, Volatility::Immutable),
    }))
});

/// The function: a node that runs a part of a plan must know it.
pub(crate) fn function() -> Arc<ScalarUDF> {
    Arc::clone(&FUNCTION)
}

/// Plans them.
#[derive(Debug)]
pub(crate) struct IntervalProducts;

impl ExprPlanner for IntervalProducts {
    fn plan_binary_op(
        &self,
        expr: RawBinaryExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawBinaryExpr>> {
        let divides = match expr.op {
            BinaryOperator::Multiply => false,
            BinaryOperator::Divide => true,
            _ => return Ok(PlannerResult::Original(expr)),
        };
        let types = expr
            .left
            .get_type(schema)
            .ok()
            .zip(expr.right.get_type(schema).ok());
        let Some((left, right)) = types else {
            return Ok(PlannerResult::Original(expr));
        };
        let is_time = |of: &DataType| matches!(of, DataType::Interval(_) | DataType::Duration(_));
        let (interval, number) = if is_time(&left) && right.is_numeric() {
            (expr.left, expr.right)
        } else if is_time(&right) && left.is_numeric() && !divides {
            (expr.right, expr.left)
        } else {
            return Ok(PlannerResult::Original(expr));
        };
        let args = vec![interval, number, lit(divides)];
        let product = ScalarFunction::new_udf(function(), args);
        Ok(PlannerResult::Planned(Expr::ScalarFunction(product)))
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Product {
    signature: Signature,
}

impl ScalarUDFImpl for Product {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(INTERVAL)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_constants = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let divides = matches!(
            args.args[2],
            ColumnarValue::Scalar(ScalarValue::Boolean(Some(true)))
        );
        let rows = if are_constants { 1 } else { args.number_rows };
        let intervals = args.args[0].cast_to(&INTERVAL, None)?.to_array(rows)?;
        let intervals = intervals.as_primitive::<IntervalMonthDayNanoType>();
        let numbers = args.args[1]
            .cast_to(&DataType::Float64, None)?
            .to_array(rows)?;
        let numbers = numbers.as_primitive::<Float64Type>();
        let products = intervals.iter().zip(numbers).map(|(interval, number)| {
            let (Some(interval), Some(number)) = (interval, number) else {
                return Ok(None);
            };
            match divides {
                // As DuckDB has it.
                true if number == 0.0 => Ok(None),
                true => scaled(interval, |part| part / number).map(Some),
                false => scaled(interval, |part| part * number).map(Some),
            }
        });
        let products = products.collect::<Result<PrimitiveArray<IntervalMonthDayNanoType>>>()?;
        Ok(match are_constants {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&products, 0)?),
            false => ColumnarValue::Array(Arc::new(products)),
        })
    }
}

/// An interval whose parts are scaled: what is left of whole months is days, and of whole days a time.
fn scaled(
    interval: IntervalMonthDayNano,
    scale: impl Fn(f64) -> f64,
) -> Result<IntervalMonthDayNano> {
    let months = scale(interval.months.into());
    let days = scale(interval.days.into()) + months.fract() * MONTH_DAYS;
    let nanoseconds = scale(interval.nanoseconds as f64) + days.fract() * DAY_NS;
    let beyond = || exec_datafusion_err!("the interval is longer than there are");
    let whole = |part: f64| {
        let is_whole = part.is_finite() && part.abs() <= i32::MAX.into();
        is_whole.then_some(part.trunc() as i32).ok_or_else(beyond)
    };
    // The greatest float below 2 ** 63.
    if nanoseconds.is_nan() || nanoseconds.abs() > 9_223_372_036_854_774_784.0 {
        return Err(beyond());
    }
    Ok(IntervalMonthDayNano {
        months: whole(months)?,
        days: whole(days)?,
        nanoseconds: nanoseconds.round() as i64,
    })
}
