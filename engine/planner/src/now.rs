//! `now()` to the microsecond, as PostgreSQL and DuckDB have it: what clients give back of a row that was made then
//! (Python's moments have no more digits) is the same moment.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::functions::datetime::now::NowFunc;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature,
};

/// The function, to take the place of DataFusion's.
pub fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Now {
        inner: NowFunc::new_with_config(&ConfigOptions::default()),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Now {
    inner: NowFunc,
}

impl ScalarUDFImpl for Now {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        Some(ScalarUDF::from(Self {
            inner: NowFunc::new_with_config(config),
        }))
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        Ok(match self.inner.simplify(args, info)? {
            ExprSimplifyResult::Simplified(Expr::Literal(
                ScalarValue::TimestampNanosecond(Some(moment), zone),
                metadata,
            )) => {
                let moment = moment - moment.rem_euclid(1_000);
                let value = ScalarValue::TimestampNanosecond(Some(moment), zone);
                ExprSimplifyResult::Simplified(Expr::Literal(value, metadata))
            }
            other => other,
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
