//! What tests of the sandbox share: packages from WAT, and a budget that counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flashmesh_storage::kernel::{CallContext, CallTime, Package};
use flashmesh_storage::memory::MemoryBudget;
use flashmesh_storage::{Result, StorageError};

/// A budget with a limit that remembers its peak.
#[derive(Debug)]
pub struct Budget {
    pub limit: usize,
    pub used: AtomicUsize,
    pub peak: AtomicUsize,
}

impl Budget {
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        })
    }

    pub fn used(&self) -> usize {
        self.used.load(Ordering::SeqCst)
    }
}

impl MemoryBudget for Budget {
    fn grow(&self, bytes: usize) -> Result<()> {
        let used = self.used.fetch_add(bytes, Ordering::SeqCst) + bytes;
        if used > self.limit {
            self.used.fetch_sub(bytes, Ordering::SeqCst);
            return Err(StorageError::Invalid(format!(
                "the query's memory limit of {} bytes would be passed",
                self.limit
            )));
        }
        self.peak.fetch_max(used, Ordering::SeqCst);
        Ok(())
    }

    fn shrink(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::SeqCst);
    }
}

pub static TIME: CallTime = CallTime::new(Duration::MAX);

/// A context that is not cancelled and has time enough.
pub fn context(budget: &Arc<Budget>) -> CallContext<'_> {
    CallContext {
        memory: budget.as_ref(),
        time: &TIME,
        query: 0,
    }
}

/// A package of `[kernel]`'s keys and further tables, with a module from WAT.
pub fn package(keys: &str, wat: &str) -> Package {
    let wasm = wat::parse_str(wat).unwrap();
    let text = format!("[kernel]\nversion = '1.0.0'\n{keys}");
    Package::new(&text, &wasm, None, [0; 32]).unwrap()
}
