//! The sessions of a server's clients.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use datafusion::physical_plan::ExecutionPlan;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::flight::prepared::Prepared;
use super::flight::statements::Statement;
use super::shares::{Kept, Share, Shares};
use super::status::status;
use super::tokens::Claims;
use super::users::Credential;
use crate::grants::Principal;
use crate::queries::{Asker, QueryKind, RunningQuery};
use crate::{Engine, Session};

/// Statements that a session may have asked for and not fetched; the oldest go.
const PENDING_STATEMENTS: usize = 256;
/// Of those that were fetched and may be fetched again so many are kept: they keep their tables'
/// versions.
const FETCHED_STATEMENTS: usize = 16;
/// Prepared statements that a session may have open.
const PREPARED_STATEMENTS: usize = 10_000;
/// What a small plan takes, counted with each prepared statement's text.
const PLAN_BYTES: usize = 4 << 10;

/// What a client has begun and not gone on with for this time does not keep a server that ends.
const FORGOTTEN: Duration = Duration::from_secs(5);
/// Nor does a query that was not fetched for this time, whatever its client does else.
const ABANDONED: Duration = Duration::from_secs(30);

/// A session that was used within this time is not ended to make room for another.
const EVICTABLE_IDLE: Duration = Duration::from_secs(60);

/// Whom a request comes from.
#[derive(Debug)]
pub(super) struct Identity {
    /// The key of the session that it belongs to.
    pub session: String,
    /// The user.
    pub principal: Principal,
    /// With what.
    pub credential: Credential,
    /// What the token says, if there is one.
    pub claims: Option<Claims>,
    /// Where the request comes from.
    pub address: String,
}

/// A transaction of a session, as its client names it. It gives no right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TransactionMark {
    /// Drawn for the session.
    pub session: u64,
    /// Which of its transactions it is.
    pub number: u64,
}

/// A transaction that was begun by an action.
#[derive(Debug)]
pub(super) struct Begun {
    pub id: Bytes,
    /// Which transaction of the workspace it is: a statement may have ended it, and begun another.
    pub number: u64,
}

/// What a client's token, or its connection where it has none, leads to.
#[derive(Debug)]
pub(super) struct ClientSession {
    /// SQL runs here.
    pub session: Session,
    /// Drawn for it: [`TransactionMark`].
    pub mark: u64,
    /// What its user may hold, in all of their sessions.
    pub share: Arc<Share>,
    /// The transaction that its client has begun by an action.
    pub(super) begun: tokio::sync::RwLock<Option<Begun>>,
    /// Where its last request came from.
    address: Mutex<String>,
    /// Ends what it runs.
    end: CancellationToken,
    /// With what its user has logged in.
    credential: Credential,
    last_used: Mutex<Instant>,
    pending: Mutex<BTreeMap<u64, Arc<Statement>>>,
    prepared: Mutex<HashMap<Bytes, KeptPrepared>>,
    /// Something was prepared, or given its parameters, and was not run since.
    is_preparing: AtomicBool,
}

#[derive(Debug)]
struct KeptPrepared {
    prepared: Arc<Prepared>,
    of_transaction: bool,
    /// How often it was run, and when last.
    runs: u32,
    ran_at: Option<Instant>,
    _kept: Kept,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Sessions {
    engine: Arc<Engine>,
    idle: Duration,
    limit: usize,
    shares: Arc<Shares>,
    open: Mutex<HashMap<String, Arc<ClientSession>>>,
    /// How many requests are under way for each key.
    running: Mutex<HashMap<String, usize>>,
    /// Keys of sessions that ended within a transaction: their clients are to learn it.
    lost: Mutex<HashSet<String>>,
    /// Transactions of sessions that are not here, whose clients have learned it.
    told: Mutex<HashSet<TransactionMark>>,
}

/// More are forgotten.
const LOST: usize = 10_000;

fn note<T: Eq + Hash>(known: &mut HashSet<T>, one: T) -> bool {
    if known.len() >= LOST {
        known.clear();
    }
    known.insert(one)
}

impl Sessions {
    /// Sessions that end when they have not been used for `idle`; `limit` of them at once.
    pub fn new(engine: Arc<Engine>, idle: Duration, limit: usize, shares: Arc<Shares>) -> Self {
        Self {
            shares,
            engine,
            idle,
            limit,
            open: Mutex::default(),
            running: Mutex::default(),
            lost: Mutex::default(),
            told: Mutex::default(),
        }
    }

    /// Notes that a session ends, where its client has begun a transaction.
    fn note_end(&self, key: &str, session: &ClientSession) {
        if session.session.is_in_transaction() {
            note(&mut self.lost.lock(), key.into());
        }
    }

    /// The session of that key, made when there is none. One whose user's grants have changed is
    /// made anew; within a transaction not until its end, if nothing was taken away.
    pub fn get(
        &self,
        identity: &Identity,
        principal: &Principal,
    ) -> Result<Arc<ClientSession>, Status> {
        let key = &identity.session;
        let stays = |found: &ClientSession| {
            let before = found.session.principal();
            before == principal
                || (found.session.is_in_transaction() && principal.may_all_that(before))
        };
        if let Some(found) = self.open.lock().get(key)
            && stays(found)
        {
            *found.last_used.lock() = Instant::now();
            found.address.lock().clone_from(&identity.address);
            return Ok(Arc::clone(found));
        }
        if self.lost.lock().remove(key) {
            return Err(Status::aborted(
                "the session in which the transaction was begun has ended; nothing of it remains, begin it again",
            ));
        }
        let share = self.shares.of(&principal.name);
        let session = self
            .engine
            .session_within(
                Arc::new(principal.clone()),
                Arc::clone(&share.memory),
                Some(Arc::clone(&share.spill) as _),
            )
            .map_err(status)?;
        let session = Arc::new(ClientSession {
            session,
            mark: rand::random(),
            share,
            begun: Default::default(),
            address: Mutex::new(identity.address.clone()),
            end: CancellationToken::new(),
            credential: identity.credential.clone(),
            last_used: Mutex::new(Instant::now()),
            pending: Mutex::default(),
            prepared: Mutex::default(),
            is_preparing: AtomicBool::new(false),
        });
        let mut open = self.open.lock();
        // Another request of the same client may have come first.
        if let Some(found) = open.get(key)
            && stays(found)
        {
            return Ok(Arc::clone(found));
        }
        if let Some(found) = open.remove(key) {
            // The user's grants have changed.
            if found.session.is_in_transaction() {
                return Err(Status::aborted(
                    "what the user may do has changed within the transaction; nothing of it remains, begin it again",
                ));
            }
        }
        if open.len() >= self.limit && !self.evict(&mut open, |_| true) {
            return Err(Status::resource_exhausted(format!(
                "the server has {} sessions open, which is its limit; close some, or wait until idle ones expire",
                self.limit
            )));
        }
        let of_user = |session: &ClientSession| session.session.principal().name == principal.name;
        let quota = self.shares.quota().sessions;
        if open.values().filter(|session| of_user(session)).count() >= quota
            && !self.evict(&mut open, of_user)
        {
            return Err(Status::resource_exhausted(format!(
                "user '{}' has {quota} sessions open, which is a user's limit; close some, or wait until idle ones expire",
                principal.name
            )));
        }
        open.insert(key.clone(), Arc::clone(&session));
        Ok(session)
    }

    /// Whether nothing is lost with the session of that key that its client has begun and not forgotten,
    /// what it was answered when it last `changed` something among it.
    pub fn may_go(&self, key: &str, changed: Option<u64>) -> bool {
        let open = self.open.lock();
        open.get(key).is_none_or(|session| session.may_go(changed))
    }

    /// Whether there is a session of that key.
    pub fn is_open(&self, key: &str) -> bool {
        self.open.lock().contains_key(key)
    }

    /// The session of that key, if there is one.
    pub fn peek(&self, key: &str) -> Option<Arc<ClientSession>> {
        self.open.lock().get(key).cloned()
    }

    /// Whether the session of a transaction is there: what has ended in it has ended rightly.
    pub fn is_known(&self, mark: TransactionMark) -> bool {
        let open = self.open.lock();
        open.values().any(|session| session.mark == mark.session)
    }

    /// Notes that a client is told that its transaction is lost; FALSE where it was told before.
    pub fn note_told(&self, mark: TransactionMark) -> bool {
        note(&mut self.told.lock(), mark)
    }

    /// Whether a client was told so.
    pub fn was_told(&self, mark: TransactionMark) -> bool {
        self.told.lock().contains(&mark)
    }

    /// A request for the session of that key comes: it is used until that [ends](Self::end).
    pub fn begin(&self, key: &str) {
        *self.running.lock().entry(key.into()).or_default() += 1;
    }

    /// A request was answered to its end.
    pub fn end(&self, key: &str) {
        if let Some(session) = self.open.lock().get(key) {
            *session.last_used.lock() = Instant::now();
        }
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                running.remove(key);
            }
        }
    }

    /// For how long a session was not used.
    fn idle_for(&self, key: &str, session: &ClientSession) -> Duration {
        match self.running.lock().contains_key(key) {
            true => Duration::ZERO,
            false => session.last_used.lock().elapsed(),
        }
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

    /// Ends a session with what it runs.
    pub fn close(&self, key: &str) {
        if let Some(session) = self.open.lock().remove(key) {
            session.end.cancel();
        }
    }

    /// Ends the sessions, with what they run, whose users may no longer all that they could:
    /// `user` gives what a user may now who has come in with that.
    pub fn revoke(&self, user: impl Fn(&str, &Credential) -> Option<Principal>) {
        self.open.lock().retain(|key, session| {
            let before = session.session.principal();
            let now = user(&before.name, &session.credential);
            let stays = now.is_some_and(|now| now.may_all_that(before));
            if !stays {
                self.note_end(key, session);
                session.end.cancel();
            }
            stays
        });
    }

    /// Ends those that were not used for long, and forgets what can be fetched no more. What runs goes on
    /// to its end.
    pub fn expire(&self) {
        self.open.lock().retain(|key, session| {
            let stays = self.idle_for(key, session) <= self.idle;
            match stays {
                true => session
                    .pending
                    .lock()
                    .retain(|_, statement| !statement.is_over()),
                false => self.note_end(key, session),
            }
            stays
        });
    }

    /// Ends the session that has not been used for longest, if that is long enough: many clients go
    /// without a word.
    fn evict(
        &self,
        open: &mut HashMap<String, Arc<ClientSession>>,
        may_go: impl Fn(&ClientSession) -> bool,
    ) -> bool {
        let idle = open
            .iter()
            .filter(|(_, session)| may_go(session))
            .map(|(key, session)| (self.idle_for(key, session), key))
            .max();
        match idle {
            Some((idle, key)) if idle >= EVICTABLE_IDLE => {
                let key = key.clone();
                if let Some(session) = open.remove(&key) {
                    self.note_end(&key, &session);
                }
                true
            }
            _ => false,
        }
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }
}

impl ClientSession {
    /// The transaction that it is in.
    pub fn transaction_mark(&self) -> Option<TransactionMark> {
        let number = self.session.workspace().transaction_number()?;
        Some(TransactionMark {
            session: self.mark,
            number,
        })
    }

    fn may_go(&self, changed: Option<u64>) -> bool {
        // In another session, its next statement would be committed by itself.
        if self.session.is_in_transaction() {
            return false;
        }
        let is_wanted = |(id, statement): (&u64, &Arc<Statement>)| match statement.is_query() {
            true => !statement.is_fetched() && statement.asked_at.elapsed() < ABANDONED,
            false => changed == Some(*id),
        };
        // Drivers prepare what they run once, and close it then.
        let is_to_be_closed = |kept: &KeptPrepared| {
            let ran_now = kept.ran_at.is_some_and(|when| when.elapsed() < FORGOTTEN);
            kept.runs == 1 && ran_now
        };
        let is_needed = self.is_preparing.load(Ordering::Relaxed)
            || self.pending.lock().iter().any(is_wanted)
            || self.prepared.lock().values().any(is_to_be_closed);
        !is_needed || self.last_used.lock().elapsed() > FORGOTTEN
    }

    /// Something was prepared, or given its parameters, and is to be run.
    pub fn set_preparing(&self, is_preparing: bool) {
        self.is_preparing.store(is_preparing, Ordering::Relaxed);
    }

    /// Registers a query of its user, which ends with the session.
    pub fn start_query(
        &self,
        id: u64,
        kind: QueryKind,
        sql: &str,
        plan: Option<Arc<dyn ExecutionPlan>>,
    ) -> RunningQuery {
        let address = self.address.lock().clone();
        let asker = Asker {
            user: &self.session.principal().name,
            address: &address,
        };
        let queries = self.session.engine().queries();
        queries.start(id, kind, asker, sql, plan, &self.end)
    }

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

    /// A statement was fetched whole; `remains` is what it can be fetched again by. The oldest of those go.
    pub fn note_fetched(&self, id: u64, remains: Option<Statement>) {
        // What a plan holds is freed when nobody waits for it.
        let mut gone = Vec::new();
        let mut pending = self.pending.lock();
        gone.extend(pending.remove(&id));
        if let Some(remains) = remains {
            pending.insert(id, Arc::new(remains));
            let fetched = pending
                .iter()
                .filter(|(_, statement)| statement.is_fetched());
            let fetched: Vec<_> = fetched.map(|(id, _)| *id).collect();
            let beyond = fetched.len().saturating_sub(FETCHED_STATEMENTS);
            gone.extend(fetched[..beyond].iter().filter_map(|id| pending.remove(id)));
        }
        drop(pending);
    }

    /// Forgets a statement that is fetched whole, or not wanted any more.
    pub fn remove_statement(&self, id: u64) -> Option<Arc<Statement>> {
        self.pending.lock().remove(&id)
    }

    /// Keeps a prepared statement and gives its handle; `of_transaction`: it was prepared for
    /// transactions, not to be committed by itself.
    pub fn add_prepared(&self, prepared: Prepared, of_transaction: bool) -> Result<Bytes, Status> {
        let kept = self.share.keep(prepared.sql().len() + PLAN_BYTES)?;
        let mut open = self.prepared.lock();
        if open.len() >= PREPARED_STATEMENTS {
            return Err(Status::resource_exhausted(format!(
                "the session has {PREPARED_STATEMENTS} prepared statements open; close some"
            )));
        }
        let handle = Bytes::copy_from_slice(&rand::random::<[u8; 16]>());
        let prepared = KeptPrepared {
            prepared: Arc::new(prepared),
            of_transaction,
            runs: 0,
            ran_at: None,
            _kept: kept,
        };
        open.insert(handle.clone(), prepared);
        drop(open);
        self.set_preparing(true);
        Ok(handle)
    }

    /// A prepared statement is run.
    pub fn note_run(&self, handle: &Bytes) {
        if let Some(kept) = self.prepared.lock().get_mut(handle) {
            kept.runs = kept.runs.saturating_add(1);
            kept.ran_at = Some(Instant::now());
        }
        self.set_preparing(false);
    }

    /// The prepared statement of that handle.
    pub fn prepared(&self, handle: &Bytes) -> Result<Arc<Prepared>, Status> {
        self.kept_prepared(handle).map(|(prepared, _)| prepared)
    }

    /// The same, with whether it was prepared for transactions.
    pub fn kept_prepared(&self, handle: &Bytes) -> Result<(Arc<Prepared>, bool), Status> {
        let open = self.prepared.lock();
        let found = open.get(handle);
        let found = found.map(|found| (Arc::clone(&found.prepared), found.of_transaction));
        found.ok_or_else(|| {
            Status::not_found(
                "there is no such prepared statement in this session; it was closed, or the session has expired: prepare it again",
            )
        })
    }

    /// Closes a prepared statement.
    pub fn remove_prepared(&self, handle: &Bytes) {
        self.prepared.lock().remove(handle);
        self.set_preparing(false);
    }
}
