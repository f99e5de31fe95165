//! `array_length` and its like as signed numbers, which PostgreSQL and DuckDB give: DataFusion's unsigned ones become
//! decimals beside signed ones, so that `array_length(x) / 2` had a fraction. And `length`, which is of texts to
//! DataFusion, and to others of lists and maps, too.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;
use datafusion::functions::unicode::character_length;
use datafusion::functions_nested::cardinality::cardinality_udf;
use datafusion::functions_nested::dimension::array_ndims_udf;
use datafusion::functions_nested::length::array_length_udf;
use datafusion::functions_nested::position::array_position_udf;
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// The functions, to take the places of DataFusion's.
pub fn functions() -> [Arc<ScalarUDF>; 5] {
    let length = Length {
        of_texts: character_length(),
        of_lists: signed(array_length_udf()),
        of_maps: signed(cardinality_udf()),
        signature: Signature::user_defined(Volatility::Immutable),
    };
    [
        signed(array_length_udf()),
        signed(array_ndims_udf()),
        signed(array_position_udf()),
        signed(cardinality_udf()),
        Arc::new(ScalarUDF::from(length)),
    ]
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

/// How many characters a text has, elements a list, or entries a map.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Length {
    /// What it is called, and what types texts become.
    of_texts: Arc<ScalarUDF>,
    of_lists: Arc<ScalarUDF>,
    of_maps: Arc<ScalarUDF>,
    signature: Signature,
}

impl Length {
    /// The function for a value of some type.
    fn of(&self, of: &DataType) -> &Arc<ScalarUDF> {
        match of {
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
                &self.of_lists
            }
            DataType::Map(..) => &self.of_maps,
            _ => &self.of_texts,
        }
    }
}

impl ScalarUDFImpl for Length {
    fn name(&self) -> &str {
        self.of_texts.name()
    }

    fn aliases(&self) -> &[String] {
        self.of_texts.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        if let [of] = types
            && !Arc::ptr_eq(self.of(of), &self.of_texts)
        {
            return Ok(types.to_vec());
        }
        let fields = types
            .iter()
            .map(|of| Arc::new(Field::new("x", of.clone(), true)));
        let fields = fields_with_udf(&fields.collect::<Vec<_>>(), self.of_texts.as_ref())?;
        Ok(fields
            .iter()
            .map(|field| field.data_type().clone())
            .collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let function = types.first().map_or(&self.of_texts, |of| self.of(of));
        function.return_type(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let of = args.args.first().map(ColumnarValue::data_type);
        let function = of.map_or(&self.of_texts, |of| self.of(&of));
        function.invoke_with_args(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.of_texts.documentation()
    }
}
