//! What a node is in the group, and until when.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flashmesh_pages::store::NodeId;

use crate::mesh::clock::Instant;

/// What a node is in the group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// It was elected, and may take office. The number is another one each time, so that who did not see
    /// that it was none in between finds it out.
    Leads(u64),
    /// It keeps the catalog for the head, where that is known.
    Follows(Option<NodeId>),
    /// It can't go on, for this reason.
    Failed(String),
}

impl Role {
    /// The head, as far as node `own` of that role knows.
    pub(super) fn head(&self, own: NodeId) -> Option<NodeId> {
        match self {
            Self::Leads(_) => Some(own),
            Self::Follows(head) => *head,
            Self::Failed(_) => None,
        }
    }
}

/// Until when nobody else can be elected, as its leader knows.
#[derive(Debug)]
pub(super) struct Lease {
    begun: Instant,
    /// Microseconds since then.
    until: AtomicU64,
    is_given_up: AtomicBool,
}

impl Lease {
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            until: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
        }
    }

    /// It is over, and there is none after it.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    pub fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }

    /// It is over.
    pub fn end(&self) {
        self.until.store(0, Ordering::Release);
    }

    /// It lasts until then; `None`: for good.
    pub fn set(&self, until: Option<Instant>) {
        let until = until.map_or(u64::MAX, |until| {
            until.saturating_duration_since(self.begun).as_micros() as u64
        });
        self.until.store(until, Ordering::Release);
    }

    pub fn holds(&self) -> bool {
        let is_before =
            (self.begun.elapsed().as_micros() as u64) < self.until.load(Ordering::Acquire);
        is_before && !self.is_given_up()
    }
}
