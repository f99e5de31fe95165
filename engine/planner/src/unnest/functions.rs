//! Functions of plans that subqueries were unnested in. SQL has no names for them.

use std::sync::{Arc, LazyLock};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use arrow::row::{RowConverter, SortField};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, ColumnarValue, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

const KEY: &str = "flashmesh:key";
const ONLY_VALUE: &str = "flashmesh:only_value";

static KEYS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(Key {
        signature: Signature::variadic_any(Volatility::Immutable),
    }))
});
static ONLY_VALUES: LazyLock<Arc<AggregateUDF>> = LazyLock::new(|| {
    Arc::new(AggregateUDF::from(OnlyValue {
        signature: Signature::any(1, Volatility::Immutable),
    }))
});

/// Bytes that are equal where all arguments are the same or NULL, and never NULL.
pub(super) fn key() -> Arc<ScalarUDF> {
    Arc::clone(&KEYS)
}

/// The one value of a group, or NULL where it has none; an error where it has more, be they equal.
pub(super) fn only_value() -> Arc<AggregateUDF> {
    Arc::clone(&ONLY_VALUES)
}

/// The function of that name, for plans that come from another node.
pub(crate) fn function_of(name: &str) -> Option<Arc<ScalarUDF>> {
    (name == KEY).then(key)
}

/// The aggregate of that name, for plans that come from another node.
pub(crate) fn only_value_of(name: &str) -> Option<Arc<AggregateUDF>> {
    (name == ONLY_VALUE).then(only_value)
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
struct OnlyValue {
    signature: Signature,
}

impl AggregateUDFImpl for OnlyValue {
    fn name(&self) -> &str {
        ONLY_VALUE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [data_type] => Ok(data_type.clone()),
            _ => internal_err!("{ONLY_VALUE} takes one argument"),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let value = args.return_field.data_type().clone();
        Ok(vec![
            Arc::new(Field::new(format!("{}[value]", args.name), value, true)),
            Arc::new(Field::new(
                format!("{}[rows]", args.name),
                DataType::Int64,
                false,
            )),
        ])
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Only {
            value: ScalarValue::try_from(args.return_field.data_type())?,
            rows: 0,
        }))
    }
}

#[derive(Debug)]
struct Only {
    value: ScalarValue,
    rows: i64,
}

impl Only {
    fn take(&mut self, values: &ArrayRef, at: usize, rows: i64) -> Result<()> {
        self.rows += rows;
        if self.rows > 1 {
            return exec_err!(
                "a subquery that stands for a value gives more than one row; add an aggregate as min(…), or \
                 LIMIT 1"
            );
        }
        self.value = ScalarValue::try_from_array(values, at)?;
        self.value.compact();
        Ok(())
    }
}

impl Accumulator for Only {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        match values[0].len() {
            0 => Ok(()),
            rows => self.take(&values[0], 0, rows as i64),
        }
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let counts = states[1].as_primitive::<Int64Type>();
        for (at, &rows) in counts.values().iter().enumerate() {
            if rows > 0 {
                self.take(&states[0], at, rows)?;
            }
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![
            self.value.clone(),
            ScalarValue::Int64(Some(self.rows)),
        ])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(self.value.clone())
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.value.size() - size_of_val(&self.value)
    }
}
