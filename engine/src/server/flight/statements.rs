//! Statements: a query is planned when a client asks for its `FlightInfo` and run when it fetches a
//! ticket of it; what changes something is run at once. Until either is done, the statement's number
//! is that of a query that runs.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef, UInt64Type};
use arrow_flight::sql::{ProstMessageExt, SubstraitPlan, TicketStatementQuery};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use datafusion::common::stats::Precision;
use datafusion::error::DataFusionError;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, StatisticsArgs, StatisticsContext, execute_stream,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use flashmesh_planner::FlashScanExec;
use flashmesh_planner::interrupt::StopOnDrop;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use prost::Message;
use tonic::{Response, Status};

use super::columns::with_origins;
use super::get::MessageStream;
use super::results::{
    Fetch, client_schema, compute_on, plan_apart, send, send_batches, until_ended,
};
use crate::error::Error;
use crate::own_statement::OwnStatement;
use crate::queries::{QueryKind, QueryState, RunningQuery};
use crate::returning::Returning;
use crate::server::State;
use crate::server::sessions::ClientSession;
use crate::server::status::status;
use crate::system::is_look;
use crate::{Result, Session};

/// A result of fewer rows is one stream: opening another costs more than it saves.
const ROWS_OF_SEVERAL_ENDPOINTS: usize = 1_000_000;

/// A statement that was asked for.
#[derive(Debug)]
pub(in crate::server) struct Statement {
    /// Its number among all queries.
    pub id: u64,
    sql: String,
    kind: QueryKind,
    work: Work,
    fetched: Mutex<Fetched>,
    /// Streams that have not reached their end.
    streams_left: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Work {
    /// A query; of several plans where it is run once for each row of its parameters.
    Query(Vec<Planned>),
    /// What changed something and what it answered: it was run when it was asked for, since
    /// clients that expect no rows fetch none.
    Done(Answer),
}

/// What changes have answered.
#[derive(Debug)]
struct Answer {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    /// Rows that were changed, if that means something.
    changed: Option<i64>,
}

/// A query with the streams in which it can be fetched.
#[derive(Debug, Clone)]
struct Planned {
    plan: Arc<dyn ExecutionPlan>,
    /// The columns of its result, as a client is told them.
    schema: SchemaRef,
    context: Arc<TaskContext>,
    /// More than one: each partition of the plan is one.
    endpoints: usize,
}

#[derive(Debug, Default)]
struct Fetched {
    endpoints: Vec<bool>,
    query: Option<Arc<RunningQuery>>,
}

impl Planned {
    /// Plans a query.
    async fn new(session: &Session, query: &LogicalPlan) -> Result<Self> {
        let state = session.context().state();
        let mut plan = flashmesh_planner::physical_plan(&state, query).await?;
        let schema = with_origins(session, query, &client_schema(&plan.schema()))?;
        let scan = (plan.as_ref() as &dyn Any).downcast_ref::<FlashScanExec>();
        if let Some(scan) = scan.and_then(FlashScanExec::with_plain_text) {
            plan = Arc::new(scan);
        }
        let partitions = plan.output_partitioning().partition_count();
        let is_large = match rows(plan.as_ref()) {
            Precision::Exact(rows) | Precision::Inexact(rows) => rows >= ROWS_OF_SEVERAL_ENDPOINTS,
            Precision::Absent => false,
        };
        let endpoints = match is_large && has_independent_partitions(&plan) {
            true => partitions,
            false => 1,
        };
        Ok(Self {
            plan,
            schema,
            context: state.task_ctx(),
            endpoints,
        })
    }

    /// All of it in one stream.
    fn execute(&self) -> Result<SendableRecordBatchStream> {
        Ok(execute_stream(
            Arc::clone(&self.plan),
            Arc::clone(&self.context),
        )?)
    }

    fn execute_endpoint(&self, endpoint: usize) -> Result<SendableRecordBatchStream> {
        match self.endpoints {
            1 => self.execute(),
            _ => Ok(self.plan.execute(endpoint, Arc::clone(&self.context))?),
        }
    }
}

fn rows(plan: &dyn ExecutionPlan) -> Precision<usize> {
    StatisticsContext::new()
        .compute(plan, &StatisticsArgs::new())
        .map_or(Precision::Absent, |statistics| statistics.num_rows)
}

/// Whether one partition can be read to its end while another is not read at all: where rows go
/// from one partition to another, those that nobody fetches would pile up.
fn has_independent_partitions(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let any = plan.as_ref() as &dyn std::any::Any;
    any.is::<FlashScanExec>()
        || ((any.is::<ProjectionExec>() || any.is::<FilterExec>())
            && plan.children().into_iter().all(has_independent_partitions))
}

/// Whether a plan only reads.
pub(super) fn is_query(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Ddl(_)
        | LogicalPlan::Dml(_)
        | LogicalPlan::Copy(_)
        | LogicalPlan::Statement(_) => false,
        LogicalPlan::Extension(_) => {
            OwnStatement::of(plan).is_none() && Returning::of(plan).is_none()
        }
        _ => true,
    }
}

/// Whether clients are told that a plan gives rows.
pub(super) fn gives_rows(plan: &LogicalPlan) -> bool {
    is_query(plan) || Returning::of(plan).is_some()
}

fn is_kill(plan: &LogicalPlan) -> bool {
    matches!(OwnStatement::of(plan), Some(OwnStatement::Kill(_)))
}

/// The plan of the one statement in `sql`.
pub(super) async fn plan_one(session: &Session, sql: &str) -> Result<LogicalPlan> {
    session.plan(parse_one(session, sql)?).await
}

/// The one statement in `sql`.
pub(super) fn parse_one(session: &Session, sql: &str) -> Result<ParsedStatement> {
    let mut statements = session.parse(sql)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => Ok(statement),
        (None, _) => Err(Error::usage("there is no statement to run")),
        (Some(_), false) => Err(Error::usage(
            "a request runs one statement; send those of a script one by one",
        )),
    }
}

/// The plan of a client's Substrait plan.
#[cfg(feature = "substrait")]
pub(super) async fn substrait(
    session: &Session,
    plan: Option<SubstraitPlan>,
) -> Result<LogicalPlan> {
    super::substrait::plan(session, plan).await
}

#[cfg(not(feature = "substrait"))]
pub(super) async fn substrait(_: &Session, _: Option<SubstraitPlan>) -> Result<LogicalPlan> {
    let missing = "this flashmesh was built without the feature 'substrait'";
    Err(DataFusionError::NotImplemented(missing.into()).into())
}

/// What a client asked for.
enum Asked {
    Query(QueryKind, Vec<Planned>),
    Change(Vec<LogicalPlan>),
}

/// Plans what can be fetched: queries.
async fn asked(
    session: Session,
    plans: impl Future<Output = Result<Vec<LogicalPlan>>>,
) -> Result<Asked> {
    let plans = plans.await?;
    if !plans.iter().all(is_query) {
        return Ok(Asked::Change(plans));
    }
    let kind = match plans.iter().all(is_look) {
        true => QueryKind::Look,
        false => QueryKind::Work,
    };
    let mut planned = Vec::with_capacity(plans.len());
    for plan in &plans {
        planned.push(Planned::new(&session, plan).await?);
    }
    Ok(Asked::Query(kind, planned))
}

impl Statement {
    /// Plans a query, or runs a statement that changes something: `plans`, one after another.
    /// `tag` is what the client calls it.
    pub async fn new(
        state: &State,
        session: &ClientSession,
        sql: &str,
        tag: Option<&str>,
        plans: impl Future<Output = Result<Vec<LogicalPlan>>> + Send + 'static,
    ) -> std::result::Result<Self, Status> {
        let id = state.queries().next_id();
        if let Some(tag) = tag {
            state.queries().tag(id, tag);
        }
        let asked = asked(session.session.clone(), plans);
        let (kind, work) = match plan_apart(state, session, id, sql, asked).await? {
            Asked::Query(kind, planned) => (kind, Work::Query(planned)),
            Asked::Change(plans) => {
                let answer = change(state, session, id, sql, plans).await?;
                (QueryKind::Work, Work::Done(answer))
            }
        };
        let endpoints = match &work {
            Work::Query(plans) => match plans.as_slice() {
                [plan] => plan.endpoints,
                _ => 1,
            },
            Work::Done(_) => 1,
        };
        Ok(Self {
            id,
            sql: sql.to_string(),
            kind,
            work,
            fetched: Mutex::new(Fetched {
                endpoints: vec![false; endpoints],
                query: None,
            }),
            streams_left: Arc::new(AtomicUsize::new(endpoints)),
        })
    }

    /// The same, whose result is one stream however large it is.
    pub async fn in_one_stream(
        state: &State,
        session: &ClientSession,
        sql: &str,
        plans: impl Future<Output = Result<Vec<LogicalPlan>>> + Send + 'static,
    ) -> std::result::Result<Self, Status> {
        let mut statement = Self::new(state, session, sql, None, plans).await?;
        if let Work::Query(plans) = &mut statement.work {
            plans.iter_mut().for_each(|plan| plan.endpoints = 1);
        }
        statement.fetched.get_mut().endpoints.truncate(1);
        statement.streams_left = Arc::new(AtomicUsize::new(1));
        Ok(statement)
    }

    /// The columns of its result.
    pub fn schema(&self) -> SchemaRef {
        match &self.work {
            Work::Query(plans) => match plans.as_slice() {
                [] => Arc::new(Schema::empty()),
                [planned] => Arc::clone(&planned.schema),
                // What is never NULL with the first parameters may be with others.
                [planned, ..] => nullable(&planned.schema),
            },
            Work::Done(answer) => client_schema(&answer.schema),
        }
    }

    /// Where its result can be fetched.
    pub fn info(&self, descriptor: FlightDescriptor) -> std::result::Result<FlightInfo, Status> {
        let endpoints = self.fetched.lock().endpoints.len();
        let rows = match &self.work {
            Work::Query(plans) => match plans.as_slice() {
                [planned] => match rows(planned.plan.as_ref()) {
                    Precision::Exact(rows) => rows as i64,
                    _ => -1,
                },
                _ => -1,
            },
            // What drivers give as the number of rows that a statement changed.
            Work::Done(answer) => answer.changed.unwrap_or(-1),
        };
        let mut info = info(&self.schema())?
            .with_descriptor(descriptor)
            .with_app_metadata(self.id.to_string())
            .with_total_records(rows)
            .with_ordered(endpoints == 1);
        for endpoint in 0..endpoints {
            let ticket = TicketStatementQuery {
                statement_handle: handle(self.id, endpoint).into(),
            };
            let ticket = Ticket::new(ticket.as_any().encode_to_vec());
            info = info.with_endpoint(FlightEndpoint::new().with_ticket(ticket));
        }
        Ok(info)
    }

    /// Runs it, or the part of it that an endpoint is.
    pub async fn fetch(
        &self,
        state: &State,
        session: &ClientSession,
        endpoint: usize,
    ) -> std::result::Result<Response<MessageStream>, Status> {
        let plans = match &self.work {
            Work::Query(plans) => plans,
            Work::Done(answer) => {
                session.remove_statement(self.id);
                return send_batches(&answer.schema, &answer.batches);
            }
        };
        let query = self.claim(state, session, endpoint)?;
        let place = state.place(session, &query, self.kind).await?;
        // What its operators start runs there, too.
        let compute = state.compute().enter();
        let rows = match plans.as_slice() {
            [planned] => planned.execute_endpoint(endpoint),
            plans => one_after_another(self.schema(), plans.to_vec()),
        };
        let rows = rows
            .map_err(status)
            .inspect_err(|error| fail(&query, error))?;
        drop(compute);
        let fetch = Fetch {
            query,
            _place: place,
            deadline: state.deadline(),
            streams_left: Arc::clone(&self.streams_left),
            _stop: plans.iter().map(|p| StopOnDrop::new(&p.plan)).collect(),
        };
        send(rows, self.schema(), fetch, state.compute())
    }

    /// Marks an endpoint as fetched: a second time it would be another execution, whose other
    /// endpoints nobody would fetch.
    fn claim(
        &self,
        state: &State,
        session: &ClientSession,
        endpoint: usize,
    ) -> std::result::Result<Arc<RunningQuery>, Status> {
        let mut fetched = self.fetched.lock();
        match fetched.endpoints.get_mut(endpoint) {
            None => return Err(no_such_ticket()),
            Some(true) => {
                return Err(Status::failed_precondition(
                    "this ticket was fetched already; ask for the statement again",
                ));
            }
            Some(fetched) => *fetched = true,
        }
        let query = fetched.query.get_or_insert_with(|| {
            let plan = match &self.work {
                Work::Query(plans) => plans.first().map(|planned| Arc::clone(&planned.plan)),
                Work::Done(_) => None,
            };
            Arc::new(session.start_query(state, self.id, self.kind, &self.sql, plan))
        });
        let query = Arc::clone(query);
        if fetched.endpoints.iter().all(|fetched| *fetched) {
            session.remove_statement(self.id);
            fetched.query = None;
        }
        Ok(query)
    }
}

fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| field.as_ref().clone().with_nullable(true));
    let fields: Vec<_> = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Notes why a query failed.
pub(super) fn fail(query: &RunningQuery, error: &Status) {
    query.end(match error.code() {
        tonic::Code::Cancelled => QueryState::Cancelled,
        _ => QueryState::Failed(error.message().to_string()),
    });
}

/// An answer whose columns are known.
pub(super) fn info(schema: &Schema) -> std::result::Result<FlightInfo, Status> {
    FlightInfo::new()
        .try_with_schema(schema)
        .map_err(|e| status(Error::from(e)))
}

fn handle(statement: u64, endpoint: usize) -> Vec<u8> {
    let mut handle = statement.to_le_bytes().to_vec();
    handle.extend((endpoint as u32).to_le_bytes());
    handle
}

/// The statement and the endpoint that a ticket's handle names.
pub(super) fn parse_handle(handle: &[u8]) -> std::result::Result<(u64, usize), Status> {
    let (statement, endpoint) = handle.split_first_chunk::<8>().ok_or_else(no_such_ticket)?;
    let endpoint = endpoint.try_into().map_err(|_| no_such_ticket())?;
    Ok((
        u64::from_le_bytes(*statement),
        u32::from_le_bytes(endpoint) as usize,
    ))
}

pub(super) fn no_such_ticket() -> Status {
    Status::not_found(
        "there is no such ticket in this session: it was fetched, or has expired; ask for the statement again",
    )
}

/// Runs plans that change something, each as a statement of its own, and gives the answers of all.
async fn change(
    state: &State,
    session: &ClientSession,
    id: u64,
    sql: &str,
    plans: Vec<LogicalPlan>,
) -> std::result::Result<Answer, Status> {
    let query = session.start_query(state, id, QueryKind::Work, sql, None);
    // What ends other queries does not wait for their end.
    let _place = match plans.iter().all(is_kill) {
        true => Vec::new(),
        false => state.place(session, &query, QueryKind::Work).await?,
    };
    let session = session.session.clone();
    let work = async move {
        let (mut schema, mut batches) = (Arc::new(Schema::empty()), Vec::new());
        let mut changed: Option<i64> = None;
        let are_many = plans.len() > 1;
        for plan in plans {
            let returns = Returning::of(&plan).is_some();
            let done = session.execute(plan).await.map_err(status)?;
            schema = match are_many {
                // What is never NULL with these parameters may be with others.
                true => nullable(done.schema().inner()),
                false => Arc::clone(done.schema().inner()),
            };
            let answer = done.collect().await.map_err(status)?;
            let rows = match returns {
                true => Some(answer.iter().map(|batch| batch.num_rows() as i64).sum()),
                false => counted(&answer),
            };
            changed = changed
                .into_iter()
                .chain(rows)
                .reduce(|all, more| all + more);
            batches.extend(answer);
        }
        Ok(Answer {
            schema,
            batches,
            changed,
        })
    };
    let work = compute_on(state.compute(), work);
    let done = until_ended(&query, state.deadline(), work)
        .await
        .inspect_err(|error| fail(&query, error))?;
    query.count_rows(done.changed.unwrap_or(0) as usize);
    query.end(QueryState::Finished);
    Ok(done)
}

/// Runs statements for what they change and gives the number of rows that they changed; 0 where
/// that means nothing.
pub(super) async fn update(
    state: &State,
    session: &ClientSession,
    sql: &str,
    plans: impl Future<Output = Result<Vec<LogicalPlan>>> + Send + 'static,
) -> std::result::Result<i64, Status> {
    let id = state.queries().next_id();
    let plans = plan_apart(state, session, id, sql, plans).await?;
    let answer = change(state, session, id, sql, plans).await?;
    Ok(answer.changed.unwrap_or(0))
}

/// The `count` that INSERT and its like answer with.
fn counted(batches: &[RecordBatch]) -> Option<i64> {
    let counts = batches.iter().filter_map(|batch| {
        let count = batch.column_by_name("count")?;
        let count = count.as_primitive_opt::<UInt64Type>()?;
        (count.len() == 1).then(|| count.value(0))
    });
    counts
        .map(|count| count as i64)
        .reduce(|all, count| all + count)
}

/// The results of several plans, each started when those before it are at their end.
fn one_after_another(schema: SchemaRef, plans: Vec<Planned>) -> Result<SendableRecordBatchStream> {
    let rows = stream::iter(plans)
        .map(|plan| plan.execute().map_err(DataFusionError::from))
        .try_flatten();
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, rows)))
}
