//! `array_length` and its like as signed numbers, which PostgreSQL and DuckDB give: DataFusion's unsigned ones become
//! decimals beside signed ones, so that `array_length(x) / 2` had a fraction.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::functions_nested::cardinality::cardinality_udf;
use datafusion::functions_nested::dimension::array_ndims_udf;
use datafusion::functions_nested::length::array_length_udf;
use datafusion::functions_nested::position::array_position_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

/// The functions, to take the places of DataFusion's.
pub fn functions() -> [Arc<ScalarUDF>; 4] {
    [
        array_length_udf(),
        array_ndims_udf(),
        array_position_udf(),
        cardinality_udf(),
    ]
    .map(signed)
}

/// How many elements a list has. What plans call must be what nodes that run a part of them know.
pub fn array_length(list: Expr) -> Expr {
    signed(array_length_udf()).call(vec![list])
}

fn signed(inner: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Signed { inner }))
}

/// DataFusion's function, with signed numbers.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Signed {
    inner: Arc<ScalarUDF>,
}

impl ScalarUDFImpl for Signed {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)?;
        Ok(DataType::Int64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let numbers = self.inner.invoke_with_args(args)?;
        numbers.cast_to(&DataType::Int64, None)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}
