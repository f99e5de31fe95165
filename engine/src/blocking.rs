//! Work that blocks, on threads that may.

use datafusion::common::runtime::SpawnedTask;
use datafusion::error::DataFusionError;

use crate::error::{Error, Result};

/// Runs what blocks (writes, syncs) on a thread that may block. When this future is dropped, work
/// that waits for a thread is dropped with it; work that runs goes on to its end: a commit is
/// whole or did not happen, whoever has stopped waiting for it.
pub(crate) async fn blocking<T: Send + 'static, E: Into<Error> + Send + 'static>(
    work: impl FnOnce() -> std::result::Result<T, E> + Send + 'static,
) -> Result<T> {
    let done = SpawnedTask::spawn_blocking(work).await;
    done.map_err(join_error)?.map_err(Into::into)
}

/// A task that panicked or was cancelled.
pub(crate) fn join_error(error: tokio::task::JoinError) -> Error {
    DataFusionError::ExecutionJoin(Box::new(error)).into()
}
