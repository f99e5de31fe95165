//! Errors on their way to DataFusion.

use datafusion::common::DataFusionError;
use flashmesh_storage::StorageError;

use crate::Reason;

/// A storage error inside a query. What the user can mend is a plan error with the store's words;
/// the rest keeps its source.
pub fn from_storage(error: StorageError) -> DataFusionError {
    match error {
        StorageError::Invalid(_)
        | StorageError::NotFound { .. }
        | StorageError::AlreadyExists { .. }
        | StorageError::DuplicateKey { .. }
        | StorageError::ReadOnly { .. } => DataFusionError::Plan(error.to_string()),
        StorageError::Arrow(source) => DataFusionError::ArrowError(Box::new(source), None),
        other => DataFusionError::External(Box::new(other)),
    }
}

impl Reason {
    /// The error for the cases in which something can't stay above the scan instead.
    pub fn into_error(self) -> DataFusionError {
        DataFusionError::Plan(format!("the store can't run this scan: {self}"))
    }
}
