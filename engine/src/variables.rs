//! Variables of a session: `SET VARIABLE name = value` and `getvariable('name')`.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{ScalarValue, exec_err, plan_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};
use datafusion::prelude::SessionContext;
use parking_lot::Mutex;

/// The variables of a session, by name.
#[derive(Debug, Default)]
pub(crate) struct Variables(Mutex<BTreeMap<String, ScalarValue>>);

impl Variables {
    /// Sets a variable; without a value there is none then.
    pub fn set(&self, name: String, value: Option<ScalarValue>) {
        let mut all = self.0.lock();
        match value {
            Some(value) => all.insert(name, value),
            None => all.remove(&name),
        };
    }

    /// The value of a variable, NULL where there is none.
    fn get(&self, name: &str) -> ScalarValue {
        let all = self.0.lock();
        all.get(name).cloned().unwrap_or(ScalarValue::Null)
    }
}

/// Makes a session's context know its variables.
pub(crate) fn tell_variables(context: &SessionContext, variables: &Arc<Variables>) {
    context.register_udf(ScalarUDF::new_from_impl(GetVariable {
        variables: Arc::clone(variables),
        signature: Signature::string(1, Volatility::Stable),
    }));
}

#[derive(Debug)]
struct GetVariable {
    variables: Arc<Variables>,
    signature: Signature,
}

impl PartialEq for GetVariable {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.variables, &other.variables)
    }
}

impl Eq for GetVariable {}

impl Hash for GetVariable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.variables).hash(state);
    }
}

impl ScalarUDFImpl for GetVariable {
    fn name(&self) -> &str {
        "getvariable"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("getvariable takes the name of a variable in quotes")
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let name = args.scalar_arguments.first().copied().flatten();
        let Some(name) = name.and_then(|name| name.try_as_str().flatten()) else {
            return plan_err!("getvariable takes the name of a variable in quotes");
        };
        let data_type = self.variables.get(&name.to_lowercase()).data_type();
        Ok(Arc::new(Field::new(self.name(), data_type, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let name = match args.args.first() {
            Some(ColumnarValue::Scalar(name)) => name.try_as_str().flatten(),
            _ => None,
        };
        let Some(name) = name else {
            return exec_err!("getvariable takes the name of a variable in quotes");
        };
        let value = self.variables.get(&name.to_lowercase());
        match value.data_type() == *args.return_field.data_type() {
            true => Ok(ColumnarValue::Scalar(value)),
            false => {
                exec_err!("variable '{name}' has another type since the statement was planned")
            }
        }
    }
}
