//! Why something stays above the scan.

use std::fmt;

use arrow::datatypes::DataType;

/// Why an expression or operator is not in the Program. `EXPLAIN` prints [`Reason::code`],
/// `EXPLAIN VERBOSE` the whole text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// `SET flashmesh.pushdown = 'never'`.
    Off,
    /// The cost model expects no gain.
    Cost(String),
    /// An operator that Programs don't have.
    Operator(String),
    /// A built-in function that Programs don't have, or not with these arguments.
    Function(String),
    /// A function that was added to the session.
    UserFunction(String),
    /// A type that Programs don't compute with.
    Type(DataType),
    /// A cast that may lose or change values.
    Cast(DataType, DataType),
    /// The value changes from call to call.
    Volatile(String),
    /// The value is known only when a subquery has run.
    Subquery,
    /// What stands between this operator and the scan keeps it there, e.g. a filter that was
    /// not pushed.
    Blocked(String),
    /// The verifier refuses the Program, e.g. for its limits.
    Refused(String),
    /// The user may not do it beside the pages.
    Denied(String),
    /// The accelerator lacks something. `flashmesh.fallback` decides whether that is an error.
    Accelerator(String),
}

impl Reason {
    /// The short stable name.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Cost(_) => "cost",
            Self::Operator(_) => "operator",
            Self::Function(_) => "function",
            Self::UserFunction(_) => "user_function",
            Self::Type(_) => "type",
            Self::Cast(..) => "cast",
            Self::Volatile(_) => "volatile",
            Self::Subquery => "subquery",
            Self::Blocked(_) => "blocked",
            Self::Refused(_) => "refused",
            Self::Denied(_) => "denied",
            Self::Accelerator(_) => "accelerator",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())?;
        match self {
            Self::Off | Self::Subquery => Ok(()),
            Self::Cost(text)
            | Self::Operator(text)
            | Self::Function(text)
            | Self::UserFunction(text)
            | Self::Volatile(text)
            | Self::Blocked(text)
            | Self::Refused(text)
            | Self::Denied(text)
            | Self::Accelerator(text) => write!(f, ": {text}"),
            Self::Type(data_type) => write!(f, ": {data_type}"),
            Self::Cast(from, to) => write!(f, ": {from} to {to}"),
        }
    }
}
