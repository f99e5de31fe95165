//! `try(expression)`: what it is, or NULL for the rows of which it is an error.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, UInt32Array};
use arrow::compute::take_arrays;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, HigherOrderFunctionArgs, HigherOrderReturnFieldArgs,
    HigherOrderSignature, HigherOrderUDFImpl, LambdaParametersProgress, ValueOrLambda, Volatility,
};

/// The function. What it is of is a lambda function behind a constant, as arguments are computed before: of one
/// parameter, which means nothing.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Try {
    signature: HigherOrderSignature,
    documentation: Documentation,
}

impl Try {
    pub fn new() -> Self {
        let says = "the expression, or NULL for the rows of which it is an error";
        let section = DocSection::default();
        let args = vec![ValueOrLambda::Value(()), ValueOrLambda::Lambda(())];
        Self {
            signature: HigherOrderSignature::exact(args, Volatility::Immutable),
            documentation: Documentation::builder(section, says, "try(expression)").build(),
        }
    }
}

fn parameter(rows: usize) -> ArrayRef {
    Arc::new(BooleanArray::from(vec![true; rows]))
}

impl HigherOrderUDFImpl for Try {
    fn name(&self) -> &str {
        "try"
    }

    fn signature(&self) -> &HigherOrderSignature {
        &self.signature
    }

    fn coerce_value_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [DataType::Boolean] => Ok(types.to_vec()),
            _ => plan_err!("try takes an expression"),
        }
    }

    fn lambda_parameters(
        &self,
        _: usize,
        _: &[ValueOrLambda<FieldRef, Option<FieldRef>>],
    ) -> Result<LambdaParametersProgress> {
        let parameter = Arc::new(Field::new("row", DataType::Boolean, false));
        Ok(LambdaParametersProgress::Complete(vec![vec![parameter]]))
    }

    fn return_field_from_args(&self, args: HigherOrderReturnFieldArgs) -> Result<FieldRef> {
        let [_, ValueOrLambda::Lambda(expression)] = args.arg_fields else {
            return plan_err!("try takes an expression");
        };
        let field = expression.as_ref().clone();
        Ok(Arc::new(field.with_name(self.name()).with_nullable(true)))
    }

    fn invoke_with_args(&self, args: HigherOrderFunctionArgs) -> Result<ColumnarValue> {
        let [_, ValueOrLambda::Lambda(expression)] = args.args.as_slice() else {
            return exec_err!("try takes an expression");
        };
        let rows = args.number_rows;
        let all = expression.evaluate(&[&|| Ok(parameter(rows))], |columns| Ok(columns.to_vec()));
        match all {
            Ok(values) => return Ok(ColumnarValue::Array(values.into_array(rows)?)),
            Err(error) if is_of_values(&error) => {}
            Err(error) => return Err(error),
        }
        let null = ScalarValue::try_from(args.return_field.data_type())?;
        let mut values = Vec::with_capacity(rows);
        for row in 0..rows {
            let place = UInt32Array::from(vec![row as u32]);
            let value = expression.evaluate(&[&|| Ok(parameter(1))], |columns| {
                Ok(take_arrays(columns, &place, None)?)
            });
            values.push(match value {
                Ok(value) => ScalarValue::try_from_array(&value.into_array(1)?, 0)?,
                Err(error) if is_of_values(&error) => null.clone(),
                Err(error) => return Err(error),
            });
        }
        match values.is_empty() {
            true => Ok(ColumnarValue::Scalar(null)),
            false => Ok(ColumnarValue::Array(ScalarValue::iter_to_array(values)?)),
        }
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}

/// Whether an error is one of what was computed, and not of what it was computed with.
fn is_of_values(error: &DataFusionError) -> bool {
    matches!(
        error.find_root(),
        DataFusionError::ArrowError(..) | DataFusionError::Execution(_)
    )
}
