//! What the calls of one query share: the memory and the time that they may take, and whether they
//! go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use super::CallContext;
use crate::memory::MemoryBudget;
use crate::{Result, StorageError};

/// The time of a query's calls.
#[derive(Debug)]
pub struct CallTime {
    cancelled: AtomicBool,
    used_ns: AtomicU64,
    limit: Duration,
}

impl CallTime {
    /// Calls may take `limit` in all, on all threads together.
    pub const fn new(limit: Duration) -> Self {
        Self {
            cancelled: AtomicBool::new(false),
            used_ns: AtomicU64::new(0),
            limit,
        }
    }

    /// Ends the calls that run, soon, and those that would follow.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Set once the calls are to end.
    pub fn cancelled(&self) -> &AtomicBool {
        &self.cancelled
    }

    /// What all calls together may take.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// What is left of the limit.
    pub fn left(&self) -> Duration {
        let used = Duration::from_nanos(self.used_ns.load(Ordering::Relaxed));
        self.limit.saturating_sub(used)
    }

    /// Counts a call that has ended.
    pub(crate) fn spend(&self, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.used_ns.fetch_add(time, Ordering::Relaxed);
    }
}

/// The calls of one query. They begin when it runs: while it is planned, none does.
#[derive(Debug)]
pub struct QueryCalls {
    /// No other query of this process has it.
    id: u64,
    /// The memory of all queries.
    memory: Arc<dyn MemoryBudget>,
    memory_used: AtomicUsize,
    memory_limit: usize,
    time: CallTime,
    begun: AtomicBool,
}

impl QueryCalls {
    /// The calls of a new query, which may hold so many bytes of `memory`, and take so long in all.
    pub fn new(memory: Arc<dyn MemoryBudget>, bytes: usize, time: Duration) -> Arc<Self> {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(Self {
            id: LAST_ID.fetch_add(1, Ordering::Relaxed) + 1,
            memory,
            memory_used: AtomicUsize::new(0),
            memory_limit: bytes,
            time: CallTime::new(time),
            begun: AtomicBool::new(false),
        })
    }

    /// Says that the query runs.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    /// Whether the query runs, or has run.
    pub fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Ends the query's calls: see [`CallTime::cancel`].
    pub fn cancel(&self) {
        self.time.cancel();
    }

    /// What a call may use.
    pub fn context(&self) -> CallContext<'_> {
        CallContext {
            memory: self,
            time: &self.time,
            query: self.id,
        }
    }
}

impl MemoryBudget for QueryCalls {
    fn grow(&self, bytes: usize) -> Result<()> {
        let before = self.memory_used.fetch_add(bytes, Ordering::Relaxed);
        let grown = match before.checked_add(bytes) {
            Some(used) if used <= self.memory_limit => self.memory.grow(bytes),
            _ => Err(StorageError::Invalid(format!(
                "the kernels of the query would take more than {} bytes, all that those of one \
                 query may (--kernel-query-memory)",
                self.memory_limit
            ))),
        };
        if grown.is_err() {
            self.memory_used.fetch_sub(bytes, Ordering::Relaxed);
        }
        grown
    }

    fn shrink(&self, bytes: usize) {
        self.memory_used.fetch_sub(bytes, Ordering::Relaxed);
        self.memory.shrink(bytes);
    }
}
