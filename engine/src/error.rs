//! The crate's error and its messages.

use std::borrow::Cow;
use std::fmt::Write as _;

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use flashmesh_storage::StorageError;

/// `Result` with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a statement or a call. The message names the thing and the way out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database said no: it is in use, full, corrupt, read-only, …
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The statement could not be parsed, planned or run.
    #[error("{}", describe(.0))]
    Query(DataFusionError),
    /// The request can't be met as it stands; the message says what to change.
    #[error("{0}")]
    Usage(String),
    /// Whoever asks may not do that; the message says what is missing.
    #[error("{0}")]
    Denied(String),
    /// An operation of the operating system failed.
    #[error("{action}: {source}")]
    Io {
        /// What was being done, with the path.
        action: String,
        /// The system's word.
        source: std::io::Error,
    },
}

impl Error {
    /// An [`Error::Io`] with what was being done.
    pub fn io(action: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            action: action.into(),
            source,
        }
    }

    /// An [`Error::Usage`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// The store's error at the bottom of this one, if the store raised it.
    pub fn storage(&self) -> Option<&StorageError> {
        match self {
            Self::Storage(error) => Some(error),
            Self::Query(error) => storage_error(error),
            Self::Usage(_) | Self::Denied(_) | Self::Io { .. } => None,
        }
    }
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        match error {
            // An error of ours that went through DataFusion comes back as it was.
            DataFusionError::External(inner) => match inner.downcast::<Error>() {
                Ok(error) => *error,
                Err(inner) => match inner.downcast::<StorageError>() {
                    Ok(error) => Self::Storage(*error),
                    Err(inner) => Self::Query(DataFusionError::External(inner)),
                },
            },
            other => Self::Query(other),
        }
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::Query(error.into())
    }
}

impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        match error {
            Error::Query(error) => error,
            other => DataFusionError::External(Box::new(other)),
        }
    }
}

/// The store's error inside one of DataFusion's.
fn storage_error(error: &DataFusionError) -> Option<&StorageError> {
    match error {
        DataFusionError::External(inner) => inner
            .downcast_ref::<StorageError>()
            .or_else(|| inner.downcast_ref::<Error>().and_then(Error::storage)),
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            storage_error(inner)
        }
        DataFusionError::Shared(inner) => storage_error(inner),
        DataFusionError::Collection(errors) => errors.iter().find_map(storage_error),
        _ => None,
    }
}

/// DataFusion's error in one plain sentence: its wrappers ("External error", "Error during
/// planning", the place in its source) tell the user nothing.
fn describe(error: &DataFusionError) -> String {
    match error {
        DataFusionError::SQL(parser, _) => {
            let message = parser.to_string();
            let message = message
                .strip_prefix("sql parser error: ")
                .unwrap_or(&message);
            format!("syntax error: {message}")
        }
        DataFusionError::Plan(message) => {
            let text = without_backtrace(message);
            refused_values(text).unwrap_or_else(|| text.to_string())
        }
        DataFusionError::Execution(message) | DataFusionError::Configuration(message) => {
            without_backtrace(message).to_string()
        }
        DataFusionError::NotImplemented(message) => {
            format!(
                "not supported: {}",
                without_syntax(without_backtrace(message))
            )
        }
        DataFusionError::ResourcesExhausted(message) => {
            let sort_it = match message.contains("HashJoin") {
                true => ", or lower flashmesh.hash_join_size, so that the join sorts and spills",
                false => "",
            };
            format!(
                "out of memory: {}; raise the memory limit (--memory-limit, or SET datafusion.runtime.memory_limit = '8G'){sort_it}",
                without_backtrace(message).trim_end_matches(['.', '\n'])
            )
        }
        DataFusionError::SchemaError(schema, _) => describe_schema_error(schema),
        // Which of its rules has met the error.
        DataFusionError::Context(context, inner)
            if context.starts_with("Optimizer rule") || context == "type_coercion" =>
        {
            describe(inner)
        }
        DataFusionError::Context(context, inner) => format!("{context}: {}", describe(inner)),
        DataFusionError::Diagnostic(_, inner) => describe(inner),
        DataFusionError::Shared(inner) => describe(inner),
        DataFusionError::Collection(errors) => {
            errors.iter().fold(String::new(), |mut all, error| {
                let separator = if all.is_empty() { "" } else { "; " };
                // Writing to a String can't fail.
                let _ = write!(all, "{separator}{}", describe(error));
                all
            })
        }
        DataFusionError::Ffi(message) => without_wrappers(without_backtrace(message)).to_string(),
        DataFusionError::External(inner) => inner.to_string(),
        DataFusionError::ArrowError(inner, _) => inner.to_string(),
        DataFusionError::ObjectStore(inner) => inner.to_string(),
        DataFusionError::ParquetError(inner) => inner.to_string(),
        DataFusionError::IoError(inner) => inner.to_string(),
        other => {
            let text = other.strip_backtrace();
            refused_values(&text).unwrap_or(text)
        }
    }
}

/// What the planner does not know, named; it shows its syntax tree, with the places of all words.
fn without_syntax(message: &str) -> Cow<'_, str> {
    if !message.contains("Span(") {
        return Cow::Borrowed(message);
    }
    if let Some((_, tree)) = message.split_once("Unsupported ast node in sqltorel: ") {
        let mut name = String::new();
        for letter in tree.chars().take_while(|letter| letter.is_alphanumeric()) {
            if letter.is_uppercase() && !name.is_empty() {
                name.push(' ');
            }
            name.extend(letter.to_uppercase());
        }
        return Cow::Owned(name);
    }
    let end = [", got: ", ": ", " {", "("]
        .iter()
        .find_map(|mark| message.find(mark));
    Cow::Borrowed(&message[..end.unwrap_or(message.len())])
}

/// What a function does not take, which DataFusion says as an error of its own.
fn refused_values(message: &str) -> Option<String> {
    if let Some(call) = message.strip_prefix("Execution error: Function '") {
        let (_, why) = call.split_once("' user-defined coercion failed with: ")?;
        let (why, _) = why.split_once(" No function matches the given name")?;
        return Some(without_wrappers(why).trim_end_matches('.').to_owned());
    }
    let (function, why) = message
        .strip_prefix("Internal error: Function '")?
        .split_once("' failed to match any signature, errors: ")?;
    let why = without_wrappers(why).lines().next()?;
    Some(format!("{function} does not take these values: {why}"))
}

fn describe_schema_error(error: &SchemaError) -> String {
    match error {
        SchemaError::FieldNotFound {
            field,
            valid_fields,
        } if !valid_fields.is_empty() => {
            let names: Vec<_> = valid_fields.iter().map(|c| c.flat_name()).collect();
            let mut alike = valid_fields.iter().map(|column| &column.name);
            let hint = match alike.find(|name| name.eq_ignore_ascii_case(&field.name)) {
                Some(name) => format!("; write \"{name}\": names without quotes are in lower case"),
                None => String::new(),
            };
            format!(
                "no column named '{}'{hint}; there are: {}",
                field.flat_name(),
                names.join(", ")
            )
        }
        other => other.to_string(),
    }
}

/// An error of another library's DataFusion, which comes as text.
fn without_wrappers(mut message: &str) -> &str {
    const WRAPPERS: [&str; 4] = [
        "FFI error: ",
        "Execution error: ",
        "External error: ",
        "Error during planning: ",
    ];
    while let Some(inner) = WRAPPERS.iter().find_map(|w| message.strip_prefix(w)) {
        message = inner;
    }
    message
}

fn without_backtrace(message: &str) -> &str {
    message
        .split(DataFusionError::BACK_TRACE_SEP)
        .next()
        .unwrap_or(message)
}
