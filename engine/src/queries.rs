//! Queries that run or ran: what `system.queries`, `KILL QUERY`, the server's page and its metrics
//! look at.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use datafusion::physical_plan::metrics::MetricsSet;
use datafusion::physical_plan::{ExecutionPlan, displayable};
use flashmesh_planner::progress::ScanProgress;
use parking_lot::Mutex;
use serde::Serialize;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::accounts::{Redacted, Secrets, redacted};
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
    observer: OnceLock<Observer>,
}

/// Who is told of each query that has ended.
struct Observer(Box<dyn Fn(&QueryReport) + Send + Sync>);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The user.
    pub user: &'a str,
    /// Address and port.
    pub address: &'a str,
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
    took: Took,
}

/// The bounds of a histogram's buckets, in seconds: whatever takes longer is in one of its own.
pub(crate) const TOOK_SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0,
];

/// How many queries took how long.
#[derive(Debug, Default)]
pub(crate) struct Took {
    /// By the first bound that is not exceeded.
    counts: [AtomicU64; TOOK_SECONDS.len() + 1],
    all_ns: AtomicU64,
}

impl Took {
    fn count(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = TOOK_SECONDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.all_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// How many are in each bucket, and the sum of all times in seconds.
    pub fn read(&self) -> ([u64; TOOK_SECONDS.len() + 1], f64) {
        let counts = self
            .counts
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed));
        (counts, self.all_ns.load(Ordering::Relaxed) as f64 / 1e9)
    }
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
    /// Where they are.
    pub address: String,
    /// The statement; the start of it where it is long.
    pub sql: Arc<str>,
    /// When it was asked.
    pub asked_at: SystemTime,
    kind: QueryKind,
    started: Instant,
    cancel: CancellationToken,
    rows: AtomicU64,
    /// What its error shall not have.
    secrets: Secrets,
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
    /// The physical plan: each operator before those below it.
    pub operators: Arc<[Operator]>,
    /// What its scans have done.
    pub scans: ScanProgress,
    /// Bytes that its scans gave to the operators above them.
    pub bytes_to_host: u64,
}

impl PlanReport {
    /// The plan's text, with what was pushed below the scans, and why the rest was not.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for operator in self.operators.iter() {
            let indent = 2 * usize::from(operator.depth);
            text.extend(std::iter::repeat_n(' ', indent));
            text.push_str(&operator.line);
            text.push('\n');
        }
        text
    }
}

/// One operator of a plan, and what it has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operator {
    /// 0 for the one that gives the result.
    pub depth: u16,
    /// Its name and what it is to do.
    pub line: String,
    /// Rows that it gave; `None` where it does not count them.
    pub rows: Option<u64>,
    /// Time that all threads together spent in it; `None` where it does not count that.
    pub time_us: Option<u64>,
    /// Bytes that it read from flash itself, if it does that.
    pub bytes_from_flash: Option<u64>,
    /// Of a scan: bytes that it gave to the operators above.
    pub bytes_to_host: Option<u64>,
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
    /// Where they are.
    pub address: String,
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
    /// From now on `observer` is told of each query that has ended, but for looks at the engine itself;
    /// to be called once.
    pub fn observe(&self, observer: impl Fn(&QueryReport) + Send + Sync + 'static) {
        let _ = self.observer.set(Observer(Box::new(observer)));
    }

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

    /// Has a query be called what another one is.
    pub fn tag_as(&self, id: u64, other: u64) {
        let tag = self.tags.lock().get(&other).cloned();
        if let Some(tag) = tag {
            self.tag(id, &tag);
        }
    }

    /// Registers a query under a number of [`Queries::next_id`]; it runs until
    /// [`RunningQuery::end`] or until the guard is dropped, which means that its client went away.
    /// It is cancelled by [`Queries::kill`] and with `session`.
    pub fn start(
        self: &Arc<Self>,
        id: u64,
        kind: QueryKind,
        asker: Asker<'_>,
        sql: &str,
        plan: Option<Arc<dyn ExecutionPlan>>,
        session: &CancellationToken,
    ) -> RunningQuery {
        let Redacted { text: sql, secrets } =
            redacted(&sql[..sql.floor_char_boundary(LOGGED_SQL_BYTES)]);
        let span = match kind {
            QueryKind::Look | QueryKind::Planning => tracing::Span::none(),
            QueryKind::Work => tracing::info_span!(
                "query",
                id,
                user = asker.user,
                "db.query.text" = sql.as_ref(),
                state = tracing::field::Empty,
                rows = tracing::field::Empty,
                bytes_from_flash = tracing::field::Empty,
                bytes_to_host = tracing::field::Empty,
            ),
        };
        let query = Arc::new(Query {
            id,
            tag: self.tags.lock().get(&id).cloned(),
            user: asker.user.to_string(),
            address: asker.address.to_string(),
            sql: sql.as_ref().into(),
            secrets,
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

    /// The query of that number, if it runs or is remembered.
    pub fn find(&self, id: u64) -> Option<QueryReport> {
        let running = self.running.lock().get(&id).cloned();
        let found = running.or_else(|| {
            let ended = self.ended.lock();
            ended.iter().rev().find(|query| query.id == id).cloned()
        });
        found.map(|query| query.report())
    }

    /// Queries that run, oldest first, then those that have ended, newest first.
    pub fn list(&self) -> impl Iterator<Item = QueryReport> {
        // One that ends now is in one of them.
        let running = self.running.lock();
        let mut all: Vec<_> = running.values().cloned().collect();
        all.extend(self.ended.lock().iter().rev().cloned());
        drop(running);
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
        let state = match state {
            QueryState::Failed(error) => QueryState::Failed(query.secrets.hide(error)),
            state => state,
        };
        let is_planned = query.kind == QueryKind::Planning && state == QueryState::Finished;
        if query.kind == QueryKind::Look || is_planned {
            self.running.lock().remove(&query.id);
            return;
        }
        let took = query.started.elapsed();
        let counter = match &state {
            QueryState::Failed(_) => &self.totals.failed,
            QueryState::Cancelled => &self.totals.cancelled,
            _ => &self.totals.finished,
        };
        let report = {
            let mut inner = query.state.lock();
            if inner.took.is_some() {
                return;
            }
            let report = inner.plan.take().map(|plan| report_of(plan.as_ref()));
            let report = report.unwrap_or_default();
            inner.state = state;
            inner.took = Some(took);
            inner.report = Some(report.clone());
            report
        };
        counter.fetch_add(1, Ordering::Relaxed);
        // Whatever befalls who looks at it now, it runs no more.
        let _gone = NoMoreRunning(self, query.id);
        query.trace(&report);
        if let Some(Observer(observer)) = self.observer.get() {
            observer(&query.report());
        }
        self.totals.took.count(took);
        for (total, value) in [
            (&self.totals.rows, query.rows.load(Ordering::Relaxed)),
            (&self.totals.bytes_from_flash, report.scans.bytes_from_flash),
            (&self.totals.bytes_to_host, report.bytes_to_host),
        ] {
            total.fetch_add(value, Ordering::Relaxed);
        }
        let mut running = self.running.lock();
        running.remove(&query.id);
        let mut ended = self.ended.lock();
        ended.push_back(Arc::clone(query));
        if ended.len() > REMEMBERED {
            ended.pop_front();
        }
    }
}

/// Takes a query from those that run when it is dropped.
struct NoMoreRunning<'a>(&'a Queries, u64);

impl Drop for NoMoreRunning<'_> {
    fn drop(&mut self) {
        self.0.running.lock().remove(&self.1);
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

    /// How long queries took.
    pub(crate) fn took(&self) -> &Took {
        &self.took
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
            address: self.address.clone(),
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

/// The start of a text.
struct Start {
    text: String,
    room: usize,
}

impl Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.room.saturating_sub(self.text.len());
        if text.len() <= room {
            self.text.push_str(text);
            return Ok(());
        }
        self.text.push_str(&text[..text.floor_char_boundary(room)]);
        self.text.push('…');
        Err(fmt::Error)
    }
}

fn report_of(plan: &dyn ExecutionPlan) -> PlanReport {
    let mut operators = Vec::new();
    let mut room = PLAN_TEXT_BYTES;
    let bytes_to_host = add_operators(plan, 0, &mut room, &mut operators);
    PlanReport {
        operators: operators.into(),
        scans: ScanProgress::of(plan),
        bytes_to_host,
    }
}

/// Adds an operator and those below it, as far as there is room for their texts. Gives the bytes that
/// scans gave to the operators above them.
fn add_operators(
    plan: &dyn ExecutionPlan,
    depth: u16,
    room: &mut usize,
    operators: &mut Vec<Operator>,
) -> u64 {
    let metrics = plan.metrics();
    let counter = |name: &str| {
        let value = metrics.as_ref()?.sum_by_name(name)?;
        Some(value.as_usize() as u64)
    };
    let bytes_to_host = counter("bytes_to_host");
    if *room > 0 {
        let mut start = Start {
            text: String::new(),
            room: *room,
        };
        // An error says that the rest is left out.
        let _ = write!(start, "{}", displayable(plan).one_line());
        let mut line = start.text;
        line.truncate(line.trim_end().len());
        // An operator takes room of its own, and its text is indented.
        let around = size_of::<Operator>() + 2 * usize::from(depth);
        *room = room.saturating_sub(line.len() + around);
        let metrics = metrics.as_ref();
        let time_ns = metrics.and_then(MetricsSet::elapsed_compute);
        operators.push(Operator {
            depth,
            line,
            rows: metrics
                .and_then(MetricsSet::output_rows)
                .map(|rows| rows as u64),
            time_us: time_ns.map(|time| time as u64 / 1_000),
            bytes_from_flash: counter("bytes_from_flash"),
            bytes_to_host,
        });
    }
    let below = plan
        .children()
        .into_iter()
        .map(|child| add_operators(child.as_ref(), depth.saturating_add(1), room, operators));
    bytes_to_host.unwrap_or(0) + below.sum::<u64>()
}
