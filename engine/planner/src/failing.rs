//! `error(text)`, which fails where a row reaches it.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, lit,
};

/// A call of it, of NULL's type.
pub(crate) fn error_of(text: String) -> Expr {
    static ERROR: LazyLock<Arc<ScalarUDF>> =
        LazyLock::new(|| Arc::new(ScalarUDF::from(Failing::new())));
    ERROR.call(vec![lit(text)])
}

/// The function. Its type is that of NULL, which becomes what stands beside it in CASE.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Failing {
    signature: Signature,
    documentation: Documentation,
}

impl Failing {
    pub fn new() -> Self {
        let says = "Ends the query with the text as its error where a row comes to it.";
        let section = DocSection::default();
        let documentation = Documentation::builder(section, says, "error(text)");
        Self {
            // Not immutable: nobody is to try what it gives while a query is planned.
            signature: Signature::string(1, Volatility::Volatile),
            documentation: documentation.build(),
        }
    }
}

impl ScalarUDFImpl for Failing {
    fn name(&self) -> &str {
        "error"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Null)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let texts = args.args.first().map(|text| text.to_array(rows));
        if let Some(texts) = texts.transpose()? {
            for row in 0..rows {
                let text = ScalarValue::try_from_array(&texts, row)?;
                if let Some(Some(text)) = text.try_as_str() {
                    return exec_err!("{text}");
                }
            }
        }
        Ok(ColumnarValue::Scalar(ScalarValue::Null))
    }

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.documentation)
    }
}
