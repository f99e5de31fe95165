//! Calls of kernels: on threads that others may wait for, and ended when nobody wants them any more.

use std::sync::{Arc, Weak};

use flashmesh_storage::kernel::QueryCalls;
use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};

tokio::task_local! {
    /// The calls of the queries that a task plans.
    static PLANNED: Arc<Mutex<Vec<Weak<QueryCalls>>>>;
}

/// Ends the kernels of the queries that some work plans when it is dropped: for whoever leaves
/// work that only ends where it waits.
#[derive(Debug, Default)]
pub struct CancelKernels(Arc<Mutex<Vec<Weak<QueryCalls>>>>);

impl CancelKernels {
    /// `work`, whose queries are to end so.
    pub fn of<W: Future>(&self, work: W) -> impl Future<Output = W::Output> + use<W> {
        PLANNED.scope(Arc::clone(&self.0), work)
    }
}

impl Drop for CancelKernels {
    fn drop(&mut self) {
        for calls in self.0.lock().iter().filter_map(Weak::upgrade) {
            calls.cancel();
        }
    }
}

/// Has the calls end with the work that plans them.
pub(super) fn note(calls: &Arc<QueryCalls>) {
    // Outside of such work there is nobody to tell.
    let _ = PLANNED.try_with(|planned| {
        let mut planned = planned.lock();
        planned.retain(|calls| calls.strong_count() > 0);
        planned.push(Arc::downgrade(calls));
    });
}

/// Runs kernels on a thread that others wait for, which get another one: a call may take seconds,
/// and a segment's calls much longer.
pub(crate) fn aside<T>(calls: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(calls),
        _ => calls(),
    }
}
