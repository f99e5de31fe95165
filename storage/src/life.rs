//! How long a command of another node is worth working on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::kernel::QueryCalls;

/// Whether whoever sent a command still waits for it.
#[derive(Debug, Default)]
pub struct CommandLife {
    is_over: AtomicBool,
    /// Held by who ends it and by who begins calls, so that neither misses the other.
    calls: Mutex<Option<Arc<QueryCalls>>>,
}

impl CommandLife {
    /// Nobody waits any more: it ends soon, and with it the kernels that it calls.
    pub fn end(&self) {
        let calls = self.calls.lock();
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(calls) = &*calls {
            calls.cancel();
        }
    }

    /// Whether nobody waits any more.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// The command calls kernels.
    pub(crate) fn has_calls(&self, calls: Arc<QueryCalls>) {
        let mut of_command = self.calls.lock();
        if self.is_over() {
            calls.cancel();
        }
        *of_command = Some(calls);
    }
}
