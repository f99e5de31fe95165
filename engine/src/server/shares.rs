//! What each user may hold of the server at once, so that one leaves room for the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use datafusion::execution::disk_manager::DiskManager;
use datafusion::execution::memory_pool::MemoryPool;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tonic::Status;

use crate::memory::UserMemory;
use crate::spill::UserSpill;

/// Looks at `system` that a user has at once: they need no place among the queries.
const LOOKS: usize = 4;

/// What a user may hold at once.
#[derive(Debug, Clone)]
pub(super) struct Quota {
    /// Sessions.
    pub sessions: usize,
    /// Queries that run.
    pub queries: usize,
    /// Statements that are planned.
    pub planning: usize,
    /// Bytes of prepared statements with the parameters bound to them.
    pub prepared_bytes: usize,
    /// Bytes that operators of queries hold.
    pub memory_bytes: usize,
    /// Bytes of spill files.
    pub spill_bytes: u64,
    /// Bytes of messages that are being received.
    pub message_bytes: usize,
}

/// The shares of users who have a session or send a request.
#[derive(Debug)]
pub(super) struct Shares {
    quota: Quota,
    memory: Arc<dyn MemoryPool>,
    spill: Arc<DiskManager>,
    of: Mutex<HashMap<String, Weak<Share>>>,
}

/// One user's part of the server.
#[derive(Debug)]
pub(super) struct Share {
    quota: Quota,
    /// Places of queries that run.
    pub running: Arc<Semaphore>,
    /// Places of looks at `system`.
    pub looks: Arc<Semaphore>,
    /// Places of statements that are planned.
    pub planning: Arc<Semaphore>,
    /// Room for messages that are received, in [`MESSAGE_UNIT`]s.
    pub messages: Arc<Semaphore>,
    /// What the operators of the user's queries take.
    pub memory: Arc<dyn MemoryPool>,
    /// Where these spill.
    pub spill: Arc<UserSpill>,
    prepared_bytes: AtomicUsize,
}

/// Room for messages is counted in these.
pub(super) const MESSAGE_UNIT: usize = 1 << 10;

impl Shares {
    /// Shares of that size of `memory`, spill files and all else.
    pub fn new(quota: Quota, memory: Arc<dyn MemoryPool>, spill: Arc<DiskManager>) -> Self {
        Self {
            quota,
            memory,
            spill,
            of: Mutex::default(),
        }
    }

    /// The share of a user: the same for all of their sessions.
    pub fn of(&self, user: &str) -> Arc<Share> {
        let mut of = self.of.lock();
        if let Some(share) = of.get(user).and_then(Weak::upgrade) {
            return share;
        }
        of.retain(|_, share| share.strong_count() > 0);
        let share = Arc::new(Share::new(&self.quota, &self.memory, &self.spill));
        of.insert(user.to_string(), Arc::downgrade(&share));
        share
    }

    /// What a user may hold.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }
}

impl Share {
    fn new(quota: &Quota, memory: &Arc<dyn MemoryPool>, spill: &Arc<DiskManager>) -> Self {
        let places = |count| Arc::new(Semaphore::new(count));
        Self {
            running: places(quota.queries),
            looks: places(LOOKS),
            planning: places(quota.planning),
            messages: places(quota.message_bytes / MESSAGE_UNIT),
            memory: Arc::new(UserMemory::new(Arc::clone(memory), quota.memory_bytes)),
            spill: Arc::new(UserSpill::new(Arc::clone(spill), quota.spill_bytes)),
            prepared_bytes: AtomicUsize::new(0),
            quota: quota.clone(),
        }
    }

    /// All room for messages.
    pub fn message_units(&self) -> usize {
        self.quota.message_bytes / MESSAGE_UNIT
    }

    /// Takes room for `bytes` of a prepared statement, until the guard is dropped.
    pub fn keep(self: &Arc<Self>, bytes: usize) -> Result<Kept, Status> {
        let before = self.prepared_bytes.fetch_add(bytes, Ordering::Relaxed);
        let kept = Kept {
            share: Arc::clone(self),
            bytes,
        };
        match before.saturating_add(bytes) <= self.quota.prepared_bytes {
            true => Ok(kept),
            false => Err(Status::resource_exhausted(format!(
                "prepared statements and their parameters would take {} bytes, a user may have {} (--max-user-prepared); close some, or bind fewer rows at once",
                before.saturating_add(bytes),
                self.quota.prepared_bytes
            ))),
        }
    }
}

/// Room that a prepared statement takes.
#[derive(Debug)]
pub(super) struct Kept {
    share: Arc<Share>,
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.share
            .prepared_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
