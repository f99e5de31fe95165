//! Years of timestamps.
//!
//! DataFusion makes `year(ts) = 2024` a range of timestamps. A year that no timestamp of the column's unit
//! can be in has none, and what it made of that was FALSE: `year(ts) < 2300` found no rows.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, FieldRef, TimeUnit};
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
pub struct YearsInRange;

impl FunctionRewrite for YearsInRange {
    fn name(&self) -> &str {
        "flashmesh_years_in_range"
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

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
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
