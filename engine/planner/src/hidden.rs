//! Values of which planners are to know less than they would: functions that give their argument as it is.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

// Of a constant it would be one.
static MAYBE_NULL: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Hidden::function("flashmesh:value", Volatility::Volatile, true));
static AS_IT_IS: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Hidden::function("flashmesh:as_it_is", Volatility::Immutable, false));

/// The functions: a node that runs a part of a plan must know them.
pub fn functions() -> [Arc<ScalarUDF>; 2] {
    [Arc::clone(&MAYBE_NULL), Arc::clone(&AS_IT_IS)]
}

/// The value of a subquery, which may be NULL for all that planners know.
pub fn maybe_null(value: Expr) -> Expr {
    MAYBE_NULL.call(vec![value])
}

/// Whether a function is that of [`maybe_null`].
pub fn is_maybe_null(function: &ScalarUDF) -> bool {
    *function == **MAYBE_NULL
}

/// A value of which planners do not see how it comes about.
pub fn as_it_is(value: Expr) -> Expr {
    AS_IT_IS.call(vec![value])
}

/// Whether a function is that of [`as_it_is`].
pub fn is_as_it_is(function: &ScalarUDF) -> bool {
    *function == **AS_IT_IS
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Hidden {
    name: &'static str,
    signature: Signature,
    may_be_null: bool,
}

impl Hidden {
    fn function(name: &'static str, volatility: Volatility, may_be_null: bool) -> Arc<ScalarUDF> {
        Arc::new(ScalarUDF::from(Self {
            name,
            signature: Signature::any(1, volatility),
            may_be_null,
        }))
    }
}

impl ScalarUDFImpl for Hidden {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [only] => Ok(only.clone()),
            _ => internal_err!("{} takes one value", self.name),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let of = &args.arg_fields[0];
        let is_nullable = self.may_be_null || of.is_nullable();
        let field = Field::clone(of).with_name(self.name);
        Ok(Arc::new(field.with_nullable(is_nullable)))
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        Ok(inputs[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}
