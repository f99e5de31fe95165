//! Statements: planned when a client asks for their `FlightInfo`, run when it fetches a ticket of
//! it.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::sql::{ProstMessageExt, TicketStatementQuery};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use datafusion::common::stats::Precision;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, StatisticsArgs, StatisticsContext, execute_stream,
};
use flashmesh_planner::FlashScanExec;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tonic::{Response, Status};

use super::results::{Fetch, FlightStream, client_schema, send, until_ended};
use crate::error::Error;
use crate::indexes::IndexStatement;
use crate::queries::{QueryState, RunningQuery};
use crate::server::State;
use crate::server::sessions::ClientSession;
use crate::server::status::status;
use crate::system::KillStatement;
use crate::{Result, Session};

/// A result of fewer rows is one stream: opening another costs more than it saves.
const ROWS_OF_SEVERAL_ENDPOINTS: usize = 1_000_000;

/// A statement that was asked for.
#[derive(Debug)]
pub(in crate::server) struct Statement {
    /// Its number among all queries.
    pub id: u64,
    sql: String,
    work: Work,
    fetched: Mutex<Fetched>,
    /// Streams that have not reached their end.
    streams_left: Arc<AtomicUsize>,
}

#[derive(Debug)]
enum Work {
    /// A query, planned.
    Query(Planned),
    /// What changes something: it is planned and run when it is fetched, once.
    Change(Box<LogicalPlan>),
}

/// A query with the streams in which it can be fetched.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    plan: Arc<dyn ExecutionPlan>,
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
    pub async fn new(session: &Session, plan: &LogicalPlan) -> Result<Self> {
        let state = session.context().state();
        let plan = state.create_physical_plan(plan).await?;
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
            context: state.task_ctx(),
            endpoints,
        })
    }

    /// Its plan.
    pub fn plan(&self) -> &Arc<dyn ExecutionPlan> {
        &self.plan
    }

    /// All of it in one stream.
    pub fn execute(&self) -> Result<SendableRecordBatchStream> {
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
        LogicalPlan::Extension(extension) => {
            let node = extension.node.as_any();
            !node.is::<IndexStatement>() && !node.is::<KillStatement>()
        }
        _ => true,
    }
}

/// The one statement in `sql`.
pub(super) async fn plan_one(session: &Session, sql: &str) -> Result<LogicalPlan> {
    let mut statements = session.parse(sql)?;
    match (statements.pop(), statements.is_empty()) {
        (Some(statement), true) => session.plan(statement).await,
        (None, _) => Err(Error::usage("there is no statement to run")),
        (Some(_), false) => Err(Error::usage(
            "a request runs one statement; send those of a script one by one",
        )),
    }
}

impl Statement {
    /// Plans a statement far enough to say what its result looks like.
    pub async fn new(
        state: &State,
        session: &Session,
        sql: &str,
        plan: LogicalPlan,
    ) -> Result<Self> {
        let work = match is_query(&plan) {
            true => Work::Query(Planned::new(session, &plan).await?),
            false => Work::Change(Box::new(plan)),
        };
        let endpoints = match &work {
            Work::Query(planned) => planned.endpoints,
            Work::Change(_) => 1,
        };
        Ok(Self {
            id: state.queries().next_id(),
            sql: sql.to_string(),
            work,
            fetched: Mutex::new(Fetched {
                endpoints: vec![false; endpoints],
                query: None,
            }),
            streams_left: Arc::new(AtomicUsize::new(endpoints)),
        })
    }

    /// The columns of its result.
    pub fn schema(&self) -> SchemaRef {
        match &self.work {
            Work::Query(planned) => client_schema(&planned.plan.schema()),
            Work::Change(plan) => client_schema(plan.schema().inner()),
        }
    }

    /// Where its result can be fetched.
    pub fn info(&self, descriptor: FlightDescriptor) -> std::result::Result<FlightInfo, Status> {
        let endpoints = self.fetched.lock().endpoints.len();
        let rows = match &self.work {
            Work::Query(planned) => match rows(planned.plan.as_ref()) {
                Precision::Exact(rows) => rows as i64,
                _ => -1,
            },
            Work::Change(_) => -1,
        };
        let mut info = info(&self.schema())?
            .with_descriptor(descriptor)
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
    ) -> std::result::Result<Response<FlightStream>, Status> {
        let query = self.claim(state, session, endpoint)?;
        let permit = state.permit(&query).await?;
        let deadline = state.deadline();
        let rows = match &self.work {
            Work::Query(planned) => planned.execute_endpoint(endpoint).map_err(status),
            Work::Change(plan) => {
                let change = async {
                    let done = session.session.execute(plan.as_ref().clone()).await;
                    let done = done.map_err(status)?;
                    done.execute_stream().await.map_err(status)
                };
                until_ended(&query, deadline, change).await
            }
        };
        let rows = rows.inspect_err(|error| fail(&query, error))?;
        let fetch = Fetch {
            query,
            _permit: permit,
            deadline,
            streams_left: Arc::clone(&self.streams_left),
        };
        Ok(send(rows, fetch))
    }

    /// Marks an endpoint as fetched: a second time it would be another execution, which has
    /// nothing left to do, or would change things twice.
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
                Work::Query(planned) => Some(Arc::clone(&planned.plan)),
                Work::Change(_) => None,
            };
            let user = &session.session.principal().name;
            Arc::new(state.queries().start(self.id, user, &self.sql, plan))
        });
        let query = Arc::clone(query);
        if fetched.endpoints.iter().all(|fetched| *fetched) {
            session.remove_statement(self.id);
            fetched.query = None;
        }
        Ok(query)
    }
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

/// Runs a statement for what it changes and gives the number of rows that it changed; 0 where
/// that means nothing.
pub(super) async fn update(
    state: &State,
    session: &ClientSession,
    sql: &str,
    plan: LogicalPlan,
) -> std::result::Result<i64, Status> {
    let user = &session.session.principal().name;
    let id = state.queries().next_id();
    let query = state.queries().start(id, user, sql, None);
    let _permit: Arc<OwnedSemaphorePermit> = state.permit(&query).await?;
    let work = async {
        let done = session.session.execute(plan).await.map_err(status)?;
        changed_rows(done).await.map_err(status)
    };
    let deadline: Option<Instant> = state.deadline();
    let rows = until_ended(&query, deadline, work)
        .await
        .inspect_err(|error| fail(&query, error))?;
    query.count_rows(rows as usize);
    query.end(QueryState::Finished);
    Ok(rows)
}

/// The `count` that INSERT and its like answer with.
async fn changed_rows(done: datafusion::dataframe::DataFrame) -> Result<i64> {
    use arrow::array::AsArray;
    use arrow::datatypes::UInt64Type;
    let batches = done.collect().await?;
    let counts = batches.iter().filter_map(|batch| {
        let count = batch.column_by_name("count")?;
        let count = count.as_primitive_opt::<UInt64Type>()?;
        (count.len() == 1).then(|| count.value(0))
    });
    Ok(counts.sum::<u64>() as i64)
}
