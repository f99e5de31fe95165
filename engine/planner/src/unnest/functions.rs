//! Functions of plans that subqueries were unnested in. SQL has no names for them.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

const KEY: &str = "flashmesh:key";
const ONLY: &str = "flashmesh:only";

static KEYS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Key {
        signature: Signature::variadic_any(Volatility::Immutable),
    }))
});
static ONLYS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Only {
        signature: Signature::any(2, Volatility::Immutable),
    }))
});

/// All of them.
pub fn functions() -> [Arc<ScalarUDF>; 2] {
    [key(), only()]
}

/// Bytes that are equal where all arguments are the same or NULL, and never NULL.
pub(super) fn key() -> Arc<ScalarUDF> {
    Arc::clone(&KEYS)
}

/// A value of which there are so many rows: an error where that is more than one.
pub(super) fn only() -> Arc<ScalarUDF> {
    Arc::clone(&ONLYS)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    signature: Signature,
}

impl ScalarUDFImpl for Key {
    fn name(&self) -> &str {
        KEY
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Binary)
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs) -> Result<FieldRef> {
        Ok(Arc::new(Field::new(KEY, DataType::Binary, false)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let columns = ColumnarValue::values_to_arrays(&args.args)?;
        let fields = columns
            .iter()
            .map(|column| SortField::new(column.data_type().clone()));
        let rows = RowConverter::new(fields.collect())?.convert_columns(&columns)?;
        let keys = rows.try_into_binary()?;
        match columns
            .first()
            .is_some_and(|column| column.len() == args.number_rows)
        {
            true => Ok(ColumnarValue::Array(Arc::new(keys))),
            // All are constants.
            false => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(
                &keys, 0,
            )?)),
        }
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Only {
    signature: Signature,
}

impl ScalarUDFImpl for Only {
    fn name(&self) -> &str {
        ONLY
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [data_type, DataType::Int64] => Ok(data_type.clone()),
            _ => internal_err!("{ONLY} takes a value and a number"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.args[1].to_array(args.number_rows)?;
        let rows = rows.as_primitive::<Int64Type>();
        if rows.iter().flatten().any(|rows| rows > 1) {
            return exec_err!(
                "a subquery that stands for a value gives more than one row; add an aggregate as min(…), or \
                 LIMIT 1"
            );
        }
        Ok(args.args[0].clone())
    }
}
