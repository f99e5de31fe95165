//! Casts of timestamps to a coarser unit: `now()::TIMESTAMP(0)`. They are rounded, as in PostgreSQL and DuckDB; Arrow
//! cuts fractions off, towards 1970. So are those of texts, which Arrow reads in the coarser unit.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast as cast_array;
use arrow::datatypes::{DataType, Int64Type, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, exec_datafusion_err, internal_err};
use datafusion::functions::utils::make_scalar_function;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, TryCast, Volatility, cast, try_cast,
};
use datafusion::optimizer::AnalyzerRule;
use flashmesh_pushdown::types::units_per_second;

use crate::tree::{cast_of, change_parts};
use crate::walk::Walk as _;

static SECONDS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| Rounded::function(TimeUnit::Second));
static MILLISECONDS: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Rounded::function(TimeUnit::Millisecond));
static MICROSECONDS: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Rounded::function(TimeUnit::Microsecond));

/// The functions that plans call: a node that runs a part of a plan must know them.
pub(super) fn functions() -> [Arc<ScalarUDF>; 3] {
    [&SECONDS, &MILLISECONDS, &MICROSECONDS].map(|function| Arc::clone(function))
}

/// Rounds what becomes coarser; place it behind the rule that gives types, and before the one that hides casts which
/// lose something.
#[derive(Debug)]
pub struct CoarserMoments;

impl AnalyzerRule for CoarserMoments {
    fn name(&self) -> &str {
        "flashmesh_coarser_moments"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| rounding_to(expr).is_some();
        change_parts(plan, is_one, |expr, schema| {
            expr.transform_up(|expr| rounded(expr, schema))
        })
    }
}

/// What rounds to the unit that a cast gives; `None` of nanoseconds, which are the finest.
fn rounding_to(expr: &Expr) -> Option<(TimeUnit, &'static Arc<ScalarUDF>)> {
    match cast_of(expr)?.1 {
        DataType::Timestamp(TimeUnit::Second, _) => Some((TimeUnit::Second, &SECONDS)),
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            Some((TimeUnit::Millisecond, &MILLISECONDS))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Some((TimeUnit::Microsecond, &MICROSECONDS))
        }
        _ => None,
    }
}

fn rounded(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Some((unit, function)) = rounding_to(&expr) else {
        return Ok(Transformed::no(expr));
    };
    let is_try = matches!(expr, Expr::TryCast(_));
    let (Expr::Cast(Cast { expr: value, field }) | Expr::TryCast(TryCast { expr: value, field })) =
        &mut expr
    else {
        return Ok(Transformed::no(expr));
    };
    let is_done = matches!(value.as_ref(), Expr::ScalarFunction(call) if call.func == *function);
    let of_texts = match value.get_type(schema)? {
        DataType::Timestamp(from, _) if from > unit && !is_done => false,
        // Microseconds are of all years that there are.
        of if of.is_string() && unit < TimeUnit::Microsecond => true,
        _ => return Ok(Transformed::no(expr)),
    };
    let mut finer = std::mem::take(value.as_mut());
    if of_texts && let DataType::Timestamp(_, zone) = field.data_type() {
        let to = DataType::Timestamp(TimeUnit::Microsecond, zone.clone());
        finer = match is_try {
            true => try_cast(finer, to),
            false => cast(finer, to),
        };
    }
    **value = function.call(vec![finer]);
    Ok(Transformed::yes(expr))
}

/// Rounds timestamps to a unit, and leaves them of their type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Rounded {
    to: TimeUnit,
    signature: Signature,
}

impl Rounded {
    fn function(to: TimeUnit) -> Arc<ScalarUDF> {
        let signature = Signature::any(1, Volatility::Immutable);
        Arc::new(ScalarUDF::from(Self { to, signature }))
    }
}

impl ScalarUDFImpl for Rounded {
    fn name(&self) -> &str {
        match self.to {
            TimeUnit::Second => "flashmesh:to_seconds",
            TimeUnit::Millisecond => "flashmesh:to_milliseconds",
            TimeUnit::Microsecond | TimeUnit::Nanosecond => "flashmesh:to_microseconds",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [only @ DataType::Timestamp(..)] => Ok(only.clone()),
            _ => internal_err!("{} takes one timestamp", self.name()),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let to = self.to;
        let round = move |columns: &[ArrayRef]| match columns {
            [moments] => round(moments, to),
            _ => internal_err!("one column is rounded"),
        };
        make_scalar_function(round, Vec::new())(&args.args)
    }
}

/// The nearest of a coarser unit, of two the later one.
fn round(moments: &ArrayRef, to: TimeUnit) -> Result<ArrayRef> {
    let DataType::Timestamp(from, _) = moments.data_type() else {
        return internal_err!("{} is no timestamp", moments.data_type());
    };
    let parts = units_per_second(from) / units_per_second(&to);
    if parts <= 1 {
        return Ok(Arc::clone(moments));
    }
    let numbers = cast_array(moments, &DataType::Int64)?;
    let numbers = numbers.as_primitive::<Int64Type>();
    let rounded: Int64Array = numbers.try_unary(|number| {
        let rest = number.rem_euclid(parts);
        let up = if rest >= parts - rest { parts } else { 0 };
        let rounded = number.checked_sub(rest);
        let rounded = rounded.and_then(|whole| whole.checked_add(up));
        rounded.ok_or_else(|| {
            exec_datafusion_err!("the last timestamp that there is can't be rounded up")
        })
    })?;
    Ok(cast_array(&rounded, moments.data_type())?)
}
