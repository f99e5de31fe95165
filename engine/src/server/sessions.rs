//! The sessions of a server's clients.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use tonic::Status;

use super::flight::prepared::Prepared;
use super::flight::statements::Statement;
use super::status::status;
use crate::grants::Principal;
use crate::{Engine, Session};

/// Statements that a session may have asked for and not fetched; the oldest go.
const PENDING_STATEMENTS: usize = 256;
/// Prepared statements that a session may have open.
const PREPARED_STATEMENTS: usize = 10_000;

/// A session that was used within this time is not ended to make room for another.
const EVICTABLE_IDLE: Duration = Duration::from_secs(60);

/// What a client's token, or its connection where it has none, leads to.
#[derive(Debug)]
pub(super) struct ClientSession {
    /// SQL runs here.
    pub session: Session,
    last_used: Mutex<Instant>,
    pending: Mutex<BTreeMap<u64, Arc<Statement>>>,
    prepared: Mutex<HashMap<Bytes, Arc<Prepared>>>,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sessions {
    engine: Arc<Engine>,
    idle: Duration,
    limit: usize,
    open: Mutex<HashMap<String, Arc<ClientSession>>>,
}

impl Sessions {
    /// Sessions that end when they have not been used for `idle`; `limit` of them at once.
    pub fn new(engine: Arc<Engine>, idle: Duration, limit: usize) -> Self {
        Self {
            engine,
            idle,
            limit,
            open: Mutex::default(),
        }
    }

    /// The session of that key, made when there is none. One whose user's grants have changed is
    /// made anew.
    pub fn get(&self, key: &str, principal: &Principal) -> Result<Arc<ClientSession>, Status> {
        if let Some(found) = self.open.lock().get(key)
            && found.session.principal() == principal
        {
            *found.last_used.lock() = Instant::now();
            return Ok(Arc::clone(found));
        }
        let session = self
            .engine
            .session_for(Arc::new(principal.clone()))
            .map_err(status)?;
        let session = Arc::new(ClientSession {
            session,
            last_used: Mutex::new(Instant::now()),
            pending: Mutex::default(),
            prepared: Mutex::default(),
        });
        let mut open = self.open.lock();
        if open.len() >= self.limit && !evict(&mut open) {
            return Err(Status::resource_exhausted(format!(
                "the server has {} sessions open, which is its limit; close some, or wait until idle ones expire",
                self.limit
            )));
        }
        open.insert(key.to_string(), Arc::clone(&session));
        Ok(session)
    }

    /// A statement that a session of this user asked for, with that session.
    pub fn statement_of(
        &self,
        user: &Principal,
        id: u64,
    ) -> Option<(Arc<ClientSession>, Arc<Statement>)> {
        let open = self.open.lock();
        let mut sessions = open.values().filter(|s| s.session.principal() == user);
        sessions.find_map(|session| Some((Arc::clone(session), session.statement(id)?)))
    }

    /// Ends a session; whether there was one.
    pub fn close(&self, key: &str) -> bool {
        self.open.lock().remove(key).is_some()
    }

    /// Ends those that were not used for long. What they run goes on to its end.
    pub fn expire(&self) {
        let idle = |session: &ClientSession| session.last_used.lock().elapsed() > self.idle;
        self.open.lock().retain(|_, session| !idle(session));
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }
}

/// Ends the session that has not been used for longest, if that is long enough: many clients go
/// without a word.
fn evict(open: &mut HashMap<String, Arc<ClientSession>>) -> bool {
    let idle = open
        .iter()
        .map(|(key, session)| (session.last_used.lock().elapsed(), key))
        .max();
    match idle {
        Some((idle, key)) if idle >= EVICTABLE_IDLE => {
            let key = key.clone();
            open.remove(&key);
            true
        }
        _ => false,
    }
}

impl ClientSession {
    /// Keeps a statement until it is fetched.
    pub fn add_statement(&self, statement: Arc<Statement>) {
        let mut pending = self.pending.lock();
        pending.insert(statement.id, statement);
        if pending.len() > PENDING_STATEMENTS {
            pending.pop_first();
        }
    }

    /// The statement of that number.
    pub fn statement(&self, id: u64) -> Option<Arc<Statement>> {
        self.pending.lock().get(&id).cloned()
    }

    /// Forgets a statement that is fetched whole, or not wanted any more.
    pub fn remove_statement(&self, id: u64) -> Option<Arc<Statement>> {
        self.pending.lock().remove(&id)
    }

    /// Keeps a prepared statement and gives its handle.
    pub fn add_prepared(&self, prepared: Prepared) -> Result<Bytes, Status> {
        let mut open = self.prepared.lock();
        if open.len() >= PREPARED_STATEMENTS {
            return Err(Status::resource_exhausted(format!(
                "the session has {PREPARED_STATEMENTS} prepared statements open; close some"
            )));
        }
        let handle = Bytes::copy_from_slice(&rand::random::<[u8; 16]>());
        open.insert(handle.clone(), Arc::new(prepared));
        Ok(handle)
    }

    /// The prepared statement of that handle.
    pub fn prepared(&self, handle: &Bytes) -> Result<Arc<Prepared>, Status> {
        self.prepared.lock().get(handle).cloned().ok_or_else(|| {
            Status::not_found(
                "there is no such prepared statement in this session; it was closed, or the session has expired: prepare it again",
            )
        })
    }

    /// Closes a prepared statement.
    pub fn remove_prepared(&self, handle: &Bytes) {
        self.prepared.lock().remove(handle);
    }
}
