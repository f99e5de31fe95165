//! Waiting for Rust from Python: off the interpreter's lock, and ended by Ctrl-C or cancelled.

use std::future::Future;
use std::sync::OnceLock;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use flashmesh::Error;
use pyo3::prelude::*;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use crate::Raises;

/// Between two looks for Ctrl-C, and between two reports of progress.
const TICK: Duration = Duration::from_millis(50);

/// The one runtime of the process, shared by all connections.
pub(crate) fn runtime() -> Raises<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = flashmesh::runtime("flashmesh", flashmesh::cores())?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// A handle on [`runtime`].
pub(crate) fn handle() -> Raises<Handle> {
    Ok(runtime()?.handle().clone())
}

/// Runs `work` to its end without holding the interpreter. Ctrl-C cancels it and raises
/// `KeyboardInterrupt`; so does another thread's `cancel` of what this one does.
pub(crate) fn wait<T>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Raises<T>
where
    T: Send + 'static,
{
    wait_with(py, work, |_| Ok(()))
}

/// [`wait`], with a call every [`TICK`]; an error of `tick` ends the work.
pub(crate) fn wait_with<T>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
    mut tick: impl FnMut(Python<'_>) -> PyResult<()> + Send,
) -> Raises<T>
where
    T: Send + 'static,
{
    let (sender, done) = mpsc::sync_channel(1);
    // A task, watched from outside the runtime: its timers stand still while all of its threads
    // compute, and a signal must not wait for that.
    let _task = CancelOnDrop(runtime()?.spawn(async move {
        // Whoever waited may have gone.
        let _ = sender.send(work.await);
    }));
    py.detach(move || {
        loop {
            match done.recv_timeout(TICK) {
                Ok(result) => return Ok(result?),
                Err(RecvTimeoutError::Timeout) => Python::attach(|py| {
                    py.check_signals()?;
                    check_cancelled(py)?;
                    tick(py)
                })?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::usage("the query ended abnormally: it panicked").into());
                }
            }
        }
    })
}

/// Raises if somebody has cancelled what this thread of Python's does (`flashmesh/cancel.py`).
fn check_cancelled(py: Python<'_>) -> PyResult<()> {
    py.import("flashmesh.cancel")?.call_method0("check")?;
    Ok(())
}

struct CancelOnDrop(JoinHandle<()>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
