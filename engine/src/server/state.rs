//! What all connections of a server share.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::audit::{Audit, Entry};
use super::listen::Connections;
use super::options::Limits;
use super::sessions::Sessions;
use super::shares::Shares;
use super::tokens::Tokens;
use super::users::Users;
use crate::Engine;
use crate::error::Result;
use crate::queries::Queries;
use crate::threads::runtime;

/// What all connections share.
#[derive(Debug)]
pub(super) struct State {
    pub engine: Arc<Engine>,
    pub all_users: Users,
    pub tokens: Tokens,
    pub token_lifetime: Duration,
    pub ticket_lifetime: Duration,
    pub sessions: Arc<Sessions>,
    pub shares: Arc<Shares>,
    pub running: Arc<Semaphore>,
    pub planning: Arc<Semaphore>,
    pub connections: Arc<Connections>,
    pub limits: Limits,
    pub compute: Compute,
    pub audit: Option<Arc<Audit>>,
}

/// The threads that compute queries: apart from those that talk to clients, so that a query which
/// keeps its thread (a join that finds nothing for long) keeps nobody from being answered.
#[derive(Debug)]
pub(super) struct Compute(Option<Runtime>);

impl Compute {
    pub fn new(threads: usize) -> Result<Self> {
        Ok(Self(Some(runtime("flashmesh-query", threads)?)))
    }

    fn handle(&self) -> &Handle {
        let runtime = self.0.as_ref();
        runtime.expect("there until it is dropped").handle()
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        // A runtime may not be dropped where others' tasks run, unless nobody waits for it.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl State {
    pub fn queries(&self) -> &Arc<Queries> {
        self.engine.queries()
    }

    /// The users, where everybody has to log in.
    pub fn users(&self) -> Option<&Users> {
        self.all_users.are_asked().then_some(&self.all_users)
    }

    /// Writes a line into the audit log, if there is one.
    pub fn audit<'a>(&self, entry: impl FnOnce() -> Entry<'a>) {
        if let Some(audit) = &self.audit {
            audit.write(&entry());
        }
    }

    pub fn is_read_only(&self) -> bool {
        self.engine.database().is_read_only()
    }

    /// Where queries are computed.
    pub fn compute(&self) -> &Handle {
        self.compute.handle()
    }

    pub fn deadline(&self) -> Option<Instant> {
        self.limits.query_time.map(|time| Instant::now() + time)
    }
}
