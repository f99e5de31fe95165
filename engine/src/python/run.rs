//! Waiting for Rust from Python: off the interpreter's lock, and ended by Ctrl-C.

use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinError;

use crate::Error;

/// Between two looks for Ctrl-C, and between two reports of progress.
const TICK: Duration = Duration::from_millis(50);

/// The one runtime of the process, shared by all connections.
pub(super) fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("flashmesh")
        .enable_all()
        .build()
        .map_err(|e| PyRuntimeError::new_err(format!("starting flashmesh's threads: {e}")))?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// A handle on [`runtime`].
pub(super) fn handle() -> PyResult<Handle> {
    Ok(runtime()?.handle().clone())
}

/// Runs `work` to its end without holding the interpreter. Ctrl-C cancels it and raises
/// `KeyboardInterrupt`.
pub(super) fn wait<T>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> PyResult<T>
where
    T: Send + 'static,
{
    wait_with(py, work, |_| Ok(()))
}

/// [`wait`], with a call every [`TICK`]; an error of `tick` ends the work.
pub(super) fn wait_with<T>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()> + Send,
) -> PyResult<T>
where
    T: Send + 'static,
{
    let runtime = runtime()?;
    py.detach(|| {
        // A task of its own: were it polled here, a long computation between two of its awaits
        // would keep this thread from looking for signals.
        let mut task = CancelOnDrop(runtime.spawn(work));
        runtime.block_on(async {
            loop {
                tokio::select! {
                    done = &mut task.0 => return Ok(done.map_err(failed)??),
                    () = tokio::time::sleep(TICK) => Python::attach(|py| {
                        py.check_signals()?;
                        tick(py)
                    })?,
                }
            }
        })
    })
}

struct CancelOnDrop<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for CancelOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn failed(error: JoinError) -> Error {
    Error::usage(format!("the query ended abnormally: {error}"))
}
