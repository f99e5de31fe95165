//! The options of a session as Flight's `SetSessionOptions` and `GetSessionOptions` have them.
//!
//! `catalog` and `schema` are the protocol's own names; any other name is that of an option of
//! `SET`.

use std::collections::HashMap;

use datafusion::logical_expr::{LogicalPlan, ResetVariable, SetVariable, Statement};
use tonic::Status;

use crate::Session;
use crate::error::Error;
use crate::names::CATALOG;

/// `arrow.flight.protocol.SessionOptionValue`; `arrow-flight` has no types for it.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OptionValue {
    #[prost(oneof = "Value", tags = "1, 2, 3, 4, 5")]
    pub value: Option<Value>,
}

/// Its cases; none of them means that the option is to be unset.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(bool, tag = "2")]
    Bool(bool),
    #[prost(sfixed64, tag = "3")]
    Int(i64),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(message, tag = "5")]
    List(TextList),
}

/// A list of texts.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct TextList {
    #[prost(string, repeated, tag = "1")]
    pub values: Vec<String>,
}

/// `SetSessionOptionsRequest`, and `GetSessionOptionsResult`, which has the same fields.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Options {
    #[prost(map = "string, message", tag = "1")]
    pub options: HashMap<String, OptionValue>,
}

/// `SetSessionOptionsResult`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SetResult {
    #[prost(map = "string, message", tag = "1")]
    pub errors: HashMap<String, SetError>,
}

/// Why an option was not set.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SetError {
    #[prost(enumeration = "ErrorValue", tag = "1")]
    pub value: i32,
}

/// The reasons that the protocol knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ErrorValue {
    /// None given.
    Unspecified = 0,
    /// No such option.
    InvalidName = 1,
    /// Not a value of it.
    InvalidValue = 2,
    /// Anything else.
    Error = 3,
}

/// `CloseSessionResult`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CloseResult {
    /// 1: closed.
    #[prost(int32, tag = "1")]
    pub status: i32,
}

/// Sets what can be set and says why the rest can't.
pub(super) async fn set(session: &Session, options: Options) -> SetResult {
    let mut errors = HashMap::new();
    for (name, value) in options.options {
        if let Err(error) = set_one(session, &name, value.value).await {
            let value = error as i32;
            errors.insert(name, SetError { value });
        }
    }
    SetResult { errors }
}

async fn set_one(session: &Session, name: &str, value: Option<Value>) -> Result<(), ErrorValue> {
    let text = match value {
        Some(Value::Text(text)) => Some(text),
        Some(Value::Bool(value)) => Some(value.to_string()),
        Some(Value::Int(value)) => Some(value.to_string()),
        Some(Value::Double(value)) => Some(value.to_string()),
        Some(Value::List(_)) => return Err(ErrorValue::InvalidValue),
        None => None,
    };
    let variable = match (name, &text) {
        ("catalog", None) => return Ok(()),
        ("catalog", Some(text)) if text == CATALOG => return Ok(()),
        ("catalog", Some(_)) => return Err(ErrorValue::InvalidValue),
        ("schema", Some(text)) if session.catalog().flash_schema(text).is_none() => {
            return Err(ErrorValue::InvalidValue);
        }
        ("schema", _) => SCHEMA,
        (other, _) => other,
    };
    let known = get(session).options;
    if !known.contains_key(name) && !known.contains_key(variable) {
        return Err(ErrorValue::InvalidName);
    }
    let variable = variable.to_string();
    let statement = match text {
        Some(value) => Statement::SetVariable(SetVariable { variable, value }),
        None => Statement::ResetVariable(ResetVariable { variable }),
    };
    match session.execute(LogicalPlan::Statement(statement)).await {
        Ok(_) => Ok(()),
        Err(Error::Denied(_)) => Err(ErrorValue::Error),
        Err(_) => Err(ErrorValue::InvalidValue),
    }
}

const SCHEMA: &str = "datafusion.catalog.default_schema";

/// All options that have a value.
pub(super) fn get(session: &Session) -> Options {
    let entries = session.options().entries();
    let text = |value| OptionValue {
        value: Some(Value::Text(value)),
    };
    let mut options: HashMap<_, _> = entries
        .into_iter()
        .map(|entry| (entry.key, text(entry.value.unwrap_or_default())))
        .collect();
    options.insert("catalog".into(), text(CATALOG.into()));
    if let Some(schema) = options.get(SCHEMA).cloned() {
        options.insert("schema".into(), schema);
    }
    Options { options }
}

/// What `T` is in an action's body.
pub(super) fn decode<T: prost::Message + Default>(body: &[u8]) -> Result<T, Status> {
    T::decode(body).map_err(|e| Status::invalid_argument(format!("the action's body: {e}")))
}
