//! Waiting until a database that others have is closed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

/// Tells when a database has been closed, without keeping it open.
#[derive(Debug, Clone, Default)]
pub struct Closed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    is_closed: Mutex<bool>,
    told: Condvar,
}

/// Tells so when it is dropped.
#[derive(Debug, Default)]
pub(super) struct Closing(Closed);

impl Closed {
    /// Blocks until the last one who had the database has dropped it and its catalog was written, for
    /// as long as that at most; FALSE where it is still open then.
    pub fn wait_for(&self, time: Duration) -> bool {
        let mut is_closed = self.0.is_closed.lock();
        let is_open = |is_closed: &mut bool| !*is_closed;
        let told = &self.0.told;
        told.wait_while_for(&mut is_closed, is_open, time);
        *is_closed
    }
}

impl Closing {
    pub fn closed(&self) -> Closed {
        self.0.clone()
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        let shared = &self.0.0;
        *shared.is_closed.lock() = true;
        shared.told.notify_all();
    }
}
