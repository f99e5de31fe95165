//! Queries that run or ran: what `system.queries`, `KILL QUERY`, the server's page and its metrics
//! look at.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use datafusion::physical_plan::{ExecutionPlan, displayable};
use flashmesh_planner::progress::ScanProgress;
use parking_lot::Mutex;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::error::{Error, Result};

/// Queries that have ended and are still remembered.
const REMEMBERED: usize = 1_000;
/// A longer statement is cut in the log: a bulk INSERT may be megabytes.
const LOGGED_SQL_BYTES: usize = 10_000;
/// Tags that are remembered: those of queries that wait to be fetched, run or have ended.
const TAGS: usize = 4_000;
/// A longer plan is cut: a list of literals may be as long as a message.
const PLAN_TEXT_BYTES: usize = 64 << 10;

/// The queries of an [`Engine`](crate::Engine) that were registered: those of a server's clients.
#[derive(Debug, Default)]
pub struct Queries {
    last_id: AtomicU64,
    running: Mutex<BTreeMap<u64, Arc<Query>>>,
    /// What clients call their latest queries.
    tags: Mutex<BTreeMap<u64, Arc<str>>>,
    ended: Mutex<VecDeque<Arc<Query>>>,
    totals: Totals,
}

/// Sums over all queries that have ended since the engine was opened.
#[derive(Debug, Default)]
pub struct Totals {
    finished: AtomicU64,
    failed: AtomicU64,
    cancelled: AtomicU64,
    rows: AtomicU64,
    bytes_from_flash: AtomicU64,
    bytes_to_host: AtomicU64,
}

/// One query.
#[derive(Debug)]
pub struct Query {
    /// Its number: what `KILL QUERY` takes.
    pub id: u64,
    /// What its client calls it.
    pub tag: Option<Arc<str>>,
    /// Who asked.
    pub user: String,
    /// The statement; the start of it where it is long.
    pub sql: Arc<str>,
    /// When it was asked.
    pub asked_at: SystemTime,
    kind: QueryKind,
    started: Instant,
    cancel: CancellationToken,
    rows: AtomicU64,
    /// The query in traces; it ends with it.
    span: Mutex<tracing::Span>,
    state: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: QueryState,
    plan: Option<Arc<dyn ExecutionPlan>>,
    /// The plan's text and counters once it is gone.
    report: Option<PlanReport>,
    took: Option<Duration>,
}

/// What is kept of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueryKind {
    /// It is counted, and remembered when it has ended.
    Work,
    /// A statement is planned: it is remembered if that is where it ended, killed or out of time.
    Planning,
    /// A look at the engine itself, which those who watch other queries take over and over:
    /// nothing is left of it.
    Look,
}

/// How far a query is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryState {
    /// It is planned.
    Planning,
    /// Its result is being made and fetched.
    Running,
    /// All of its result was fetched.
    Finished,
    /// It ended with this error.
    Failed(String),
    /// `KILL QUERY`, a client's cancel, or a client that went away.
    Cancelled,
}

impl QueryState {
    /// Its name in `system.queries`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Planning => "planning",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed(_) => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// What a plan did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanReport {
    /// The physical plan with what was pushed below the scans, and why the rest was not.
    pub plan: Arc<str>,
    /// What its scans have done.
    pub scans: ScanProgress,
    /// Bytes that its scans gave to the operators above them.
    pub bytes_to_host: u64,
}

/// A [`Query`] at one moment.
#[derive(Debug, Clone)]
pub struct QueryReport {
    /// Its number.
    pub id: u64,
    /// What its client calls it.
    pub tag: Option<Arc<str>>,
    /// Who asked.
    pub user: String,
    /// The statement.
    pub sql: Arc<str>,
    /// When it was asked.
    pub asked_at: SystemTime,
    /// How far it is.
    pub state: QueryState,
    /// How long it ran, or has been running.
    pub took: Duration,
    /// Rows that were fetched.
    pub rows: u64,
    /// What its plan did so far.
    pub plan: PlanReport,
}

impl Queries {
    /// A number for a query.
    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes what the client calls the query of this number, which has not started yet.
    pub fn tag(&self, id: u64, tag: &str) {
        let mut tags = self.tags.lock();
        tags.insert(id, tag.into());
        if tags.len() > TAGS {
            tags.pop_first();
        }
    }

    /// Registers a query under a number of [`Queries::next_id`]; it runs until
    /// [`RunningQuery::end`] or until the guard is dropped, which means that its client went away.
    /// It is cancelled by [`Queries::kill`] and with `session`.
    pub fn start(
        self: &Arc<Self>,
        id: u64,
        kind: QueryKind,
        user: &str,
        sql: &str,
        plan: Option<Arc<dyn ExecutionPlan>>,
        session: &CancellationToken,
    ) -> RunningQuery {
        let sql = &sql[..sql.floor_char_boundary(LOGGED_SQL_BYTES)];
        let span = match kind {
            QueryKind::Look | QueryKind::Planning => tracing::Span::none(),
            QueryKind::Work => tracing::info_span!(
                "query",
                id,
                user,
                "db.query.text" = sql,
                state = tracing::field::Empty,
                rows = tracing::field::Empty,
                bytes_from_flash = tracing::field::Empty,
                bytes_to_host = tracing::field::Empty,
            ),
        };
        let query = Arc::new(Query {
            id,
            tag: self.tags.lock().get(&id).cloned(),
            user: user.to_string(),
            sql: sql.into(),
            asked_at: SystemTime::now(),
            kind,
            started: Instant::now(),
            cancel: session.child_token(),
            rows: AtomicU64::new(0),
            span: Mutex::new(span),
            state: Mutex::new(Inner {
                state: match kind {
                    QueryKind::Planning => QueryState::Planning,
                    _ => QueryState::Running,
                },
                plan,
                report: None,
                took: None,
            }),
        });
        self.running.lock().insert(id, Arc::clone(&query));
        RunningQuery {
            queries: Arc::clone(self),
            query,
        }
    }

    /// Ends a running query. A user may end their own; `None`: whoever's.
    ///
    /// # Errors
    /// [`Error::Usage`] when no such query runs.
    pub fn kill(&self, id: u64, by: Option<&str>) -> Result<()> {
        let query = self.running.lock().get(&id).cloned();
        match query {
            Some(query) if by.is_none_or(|user| user == query.user) => {
                query.cancel.cancel();
                Ok(())
            }
            _ => Err(Error::usage(format!(
                "no query {id} of yours is running; SELECT id, query FROM system.queries WHERE state = 'running' lists them"
            ))),
        }
    }

    /// Queries that run, oldest first, then those that have ended, newest first.
    pub fn list(&self) -> impl Iterator<Item = QueryReport> {
        let mut all: Vec<_> = self.running.lock().values().cloned().collect();
        all.extend(self.ended.lock().iter().rev().cloned());
        all.into_iter().map(|query| query.report())
    }

    /// How many queries run.
    pub fn running(&self) -> usize {
        self.running.lock().len()
    }

    /// Sums over the queries that have ended.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    fn ended(&self, query: &Arc<Query>, state: QueryState) {
        if self.running.lock().remove(&query.id).is_none() {
            return;
        }
        let is_planned = query.kind == QueryKind::Planning && state == QueryState::Finished;
        if query.kind == QueryKind::Look || is_planned {
            return;
        }
        let counter = match &state {
            QueryState::Failed(_) => &self.totals.failed,
            QueryState::Cancelled => &self.totals.cancelled,
            _ => &self.totals.finished,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let report = {
            let mut inner = query.state.lock();
            let report = inner.plan.take().map(|plan| report_of(plan.as_ref()));
            let report = report.unwrap_or_default();
            inner.state = state;
            inner.took = Some(query.started.elapsed());
            inner.report = Some(report.clone());
            report
        };
        query.trace(&report);
        for (total, value) in [
            (&self.totals.rows, query.rows.load(Ordering::Relaxed)),
            (&self.totals.bytes_from_flash, report.scans.bytes_from_flash),
            (&self.totals.bytes_to_host, report.bytes_to_host),
        ] {
            total.fetch_add(value, Ordering::Relaxed);
        }
        let mut ended = self.ended.lock();
        ended.push_back(Arc::clone(query));
        if ended.len() > REMEMBERED {
            ended.pop_front();
        }
    }
}

impl Totals {
    /// Queries whose results were fetched, that failed, and that were cancelled.
    pub fn queries(&self) -> [(&'static str, u64); 3] {
        [
            ("finished", self.finished.load(Ordering::Relaxed)),
            ("failed", self.failed.load(Ordering::Relaxed)),
            ("cancelled", self.cancelled.load(Ordering::Relaxed)),
        ]
    }

    /// Rows sent to clients.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Bytes that scans read from flash.
    pub fn bytes_from_flash(&self) -> u64 {
        self.bytes_from_flash.load(Ordering::Relaxed)
    }

    /// Bytes that scans gave to the operators above them.
    pub fn bytes_to_host(&self) -> u64 {
        self.bytes_to_host.load(Ordering::Relaxed)
    }
}

impl Query {
    /// Resolves when the query is to end.
    pub fn cancelled(&self) -> tokio_util::sync::WaitForCancellationFuture<'_> {
        self.cancel.cancelled()
    }

    /// Whether it is to end.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Cancels it when the guard is dropped: when nobody waits for it any more.
    pub fn cancel_on_drop(&self) -> DropGuard {
        self.cancel.clone().drop_guard()
    }

    /// Counts rows that were fetched.
    pub fn count_rows(&self, rows: usize) {
        self.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Ends the query's span and logs it.
    fn trace(&self, report: &PlanReport) {
        let span = std::mem::replace(&mut *self.span.lock(), tracing::Span::none());
        let (state, took) = {
            let inner = self.state.lock();
            (inner.state.clone(), inner.took.unwrap_or_default())
        };
        let rows = self.rows.load(Ordering::Relaxed);
        span.record("state", state.name());
        span.record("rows", rows);
        span.record("bytes_from_flash", report.scans.bytes_from_flash);
        span.record("bytes_to_host", report.bytes_to_host);
        let took_ms = took.as_secs_f64() * 1e3;
        match state {
            QueryState::Failed(error) => {
                // As a value, whose line breaks are escaped: users write parts of it.
                let error = error.as_str();
                tracing::info!(parent: &span, took_ms, error, "query failed");
            }
            state => tracing::debug!(parent: &span, took_ms, rows, "query {}", state.name()),
        }
    }

    fn report(&self) -> QueryReport {
        let inner = self.state.lock();
        let plan = match (&inner.plan, &inner.report) {
            (Some(plan), _) => report_of(plan.as_ref()),
            (None, Some(report)) => report.clone(),
            (None, None) => PlanReport::default(),
        };
        QueryReport {
            id: self.id,
            tag: self.tag.clone(),
            user: self.user.clone(),
            sql: self.sql.clone(),
            asked_at: self.asked_at,
            state: inner.state.clone(),
            took: inner.took.unwrap_or_else(|| self.started.elapsed()),
            rows: self.rows.load(Ordering::Relaxed),
            plan,
        }
    }
}

/// Keeps a query among those that run.
#[derive(Debug)]
pub struct RunningQuery {
    queries: Arc<Queries>,
    query: Arc<Query>,
}

impl RunningQuery {
    /// Ends it. Later calls, and the drop, change nothing any more.
    pub fn end(&self, state: QueryState) {
        self.queries.ended(&self.query, state);
    }
}

impl std::ops::Deref for RunningQuery {
    type Target = Query;

    fn deref(&self) -> &Query {
        &self.query
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        // Of what was planned for a client that has gone nothing has run.
        self.end(match self.query.kind {
            QueryKind::Planning => QueryState::Finished,
            QueryKind::Work | QueryKind::Look => QueryState::Cancelled,
        });
    }
}

fn report_of(plan: &dyn ExecutionPlan) -> PlanReport {
    fn bytes_to_host(plan: &dyn ExecutionPlan) -> u64 {
        let metrics = plan.metrics();
        let value = metrics.and_then(|metrics| metrics.sum_by_name("bytes_to_host"));
        let below = plan.children().into_iter();
        let below: u64 = below.map(|child| bytes_to_host(child.as_ref())).sum();
        below + value.map_or(0, |value| value.as_usize() as u64)
    }
    PlanReport {
        plan: plan_text(plan),
        scans: ScanProgress::of(plan),
        bytes_to_host: bytes_to_host(plan),
    }
}

/// The start of a plan's text.
struct PlanText(String);

impl Write for PlanText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = PLAN_TEXT_BYTES.saturating_sub(self.0.len());
        if text.len() <= room {
            self.0.push_str(text);
            return Ok(());
        }
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        self.0.push('…');
        Err(fmt::Error)
    }
}

fn plan_text(plan: &dyn ExecutionPlan) -> Arc<str> {
    let mut text = PlanText(String::new());
    // An error says that the rest is left out.
    let _ = write!(text, "{}", displayable(plan).indent(false));
    text.0.into()
}
