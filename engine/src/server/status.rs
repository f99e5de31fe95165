//! Our errors as gRPC statuses: what a client's driver turns into its own exceptions.

use datafusion::common::SchemaError;
use datafusion::error::DataFusionError;
use flashmesh_storage::StorageError;
use tonic::{Code, Status};

use crate::error::Error;

/// The status of an error; its message stays.
pub(super) fn status(error: impl Into<Error>) -> Status {
    let error = error.into();
    Status::new(code(&error), error.to_string())
}

fn code(error: &Error) -> Code {
    if let Some(storage) = error.storage() {
        return match storage {
            StorageError::Corrupt { .. } => Code::DataLoss,
            StorageError::Invalid(_)
            | StorageError::DuplicateKey { .. }
            | StorageError::Kernel { .. } => Code::InvalidArgument,
            StorageError::Denied(_) => Code::PermissionDenied,
            StorageError::NotFound { .. } => Code::NotFound,
            StorageError::AlreadyExists { .. } => Code::AlreadyExists,
            StorageError::ReadOnly { .. } => Code::FailedPrecondition,
            StorageError::Conflict { .. } => Code::Aborted,
            StorageError::InUse { .. } | StorageError::NeedsReopening { .. } => Code::Unavailable,
            _ => Code::Internal,
        };
    }
    match error {
        Error::Usage(_) => Code::InvalidArgument,
        Error::Denied(_) => Code::PermissionDenied,
        Error::Query(error) => code_of_query(error),
        Error::Io { .. } | Error::Storage(_) => Code::Internal,
    }
}

fn code_of_query(error: &DataFusionError) -> Code {
    match error {
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::FieldNotFound { .. } => Code::NotFound,
            _ => Code::InvalidArgument,
        },
        // The planner has no kind of its own for it.
        DataFusionError::Plan(message)
            if message.starts_with("table '") && message.ends_with("not found") =>
        {
            Code::NotFound
        }
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::Configuration(_)
        // Division by zero, a cast that fails: the query's fault, found while it runs.
        | DataFusionError::Execution(_)
        | DataFusionError::ArrowError(..) => Code::InvalidArgument,
        DataFusionError::NotImplemented(_) => Code::Unimplemented,
        DataFusionError::ResourcesExhausted(_) => Code::ResourceExhausted,
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => {
            code_of_query(inner)
        }
        DataFusionError::Shared(inner) => code_of_query(inner),
        // They are of one statement.
        DataFusionError::Collection(errors) => {
            errors.first().map_or(Code::Internal, code_of_query)
        }
        DataFusionError::External(inner) => match inner.downcast_ref::<Error>() {
            Some(error) => code(error),
            None => Code::Internal,
        },
        _ => Code::Internal,
    }
}
