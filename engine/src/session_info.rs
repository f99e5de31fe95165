//! Functions that tell of the session: `current_user`, `current_schema()`, `current_database()`,
//! `version()`, `current_setting(name)`.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{ScalarValue, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

/// Makes a session's context know them.
pub(crate) fn tell_of_session(context: &SessionContext, user: &Arc<str>) {
    let user = || Told::User(Arc::clone(user));
    for (name, told) in [
        ("current_user", user()),
        ("session_user", user()),
        ("current_schema", Told::Schema),
        ("current_database", Told::Database),
        ("current_catalog", Told::Database),
        ("version", Told::Version),
    ] {
        let signature = Signature::nullary(Volatility::Stable);
        context.register_udf(ScalarUDF::new_from_impl(Function {
            name,
            told,
            signature,
        }));
    }
    context.register_udf(ScalarUDF::new_from_impl(Function {
        name: "current_setting",
        told: Told::Setting,
        signature: Signature::string(1, Volatility::Stable),
    }));
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum Told {
    User(Arc<str>),
    Schema,
    Database,
    Version,
    Setting,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Function {
    name: &'static str,
    told: Told,
    signature: Signature,
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let catalog = &args.config_options.catalog;
        let told = match &self.told {
            Told::Setting => return setting(&args),
            Told::User(name) => name.to_string(),
            Told::Schema => catalog.default_schema.clone(),
            Told::Database => catalog.default_catalog.clone(),
            Told::Version => format!(
                "flashmesh {} (DataFusion {})",
                env!("CARGO_PKG_VERSION"),
                datafusion::DATAFUSION_VERSION
            ),
        };
        Ok(ColumnarValue::Scalar(ScalarValue::from(told)))
    }
}

/// The value of a setting, as SHOW has it.
fn setting(args: &ScalarFunctionArgs) -> Result<ColumnarValue> {
    let name = match args.args.first() {
        Some(ColumnarValue::Scalar(name)) => name.try_as_str().flatten(),
        _ => None,
    };
    let Some(name) = name else {
        return plan_err!("current_setting takes the name of a setting in quotes");
    };
    let name = match name.to_lowercase().as_str() {
        "timezone" => "datafusion.execution.time_zone".to_owned(),
        other => other.to_owned(),
    };
    let mut entries = args.config_options.entries().into_iter();
    match entries.find(|entry| entry.key == name) {
        Some(entry) => Ok(ColumnarValue::Scalar(ScalarValue::Utf8(entry.value))),
        None => plan_err!("there is no setting '{name}'; SHOW ALL lists them"),
    }
}
