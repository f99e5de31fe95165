//! Statements that were asked for: their plans, the columns of their results, and the tickets that
//! these are fetched with.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::sql::{ProstMessageExt, SubstraitPlan, TicketStatementQuery};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use datafusion::common::stats::Precision;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{
    ExecutionPlan, ExecutionPlanProperties, StatisticsArgs, StatisticsContext, execute_stream,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use flashmesh_planner::FlashScanExec;
use parking_lot::Mutex;
use prost::Message;
use tonic::Status;

use super::columns::{client_schema, with_origins};
use crate::error::Error;
use crate::own_statement::OwnStatement;
use crate::queries::{QueryKind, RunningQuery};
use crate::returning::Returning;
use crate::server::status::status;
use crate::{Result, Session};

/// A result of fewer rows is one stream: opening another costs more than it saves.
const ROWS_OF_SEVERAL_ENDPOINTS: usize = 1_000_000;

/// A statement that was asked for.
#[derive(Debug)]
pub(in crate::server) struct Statement {
    /// Its number among all queries.
    pub id: u64,
    pub(super) sql: String,
    pub(super) kind: QueryKind,
    pub(super) work: Work,
    pub(super) fetched: Mutex<Fetched>,
    /// Streams that have not reached their end.
    pub(super) streams_left: Arc<AtomicUsize>,
    pub asked_at: Instant,
}

#[derive(Debug)]
pub(super) enum Work {
    /// A query; of several plans where it is run once for each row of its parameters.
    Query(Vec<Planned>),
    /// What changed something and what it answered: it was run when it was asked for, since
    /// clients that expect no rows fetch none.
    Done(Answer),
}

/// What changes have answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
    /// Rows that were changed, if that means something.
    pub changed: Option<i64>,
}

/// A query with the streams in which it can be fetched.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub plan: Arc<dyn ExecutionPlan>,
    /// The columns of its result, as a client is told them.
    pub schema: SchemaRef,
    context: Arc<TaskContext>,
    /// More than one: each partition of the plan is one.
    pub endpoints: usize,
}

#[derive(Debug, Default)]
pub(super) struct Fetched {
    pub endpoints: Vec<bool>,
    pub query: Option<Arc<RunningQuery>>,
}

impl Planned {
    /// Plans a query.
    pub async fn new(session: &Session, query: &LogicalPlan) -> Result<Self> {
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
    pub fn execute(&self) -> Result<SendableRecordBatchStream> {
        Ok(execute_stream(
            Arc::clone(&self.plan),
            Arc::clone(&self.context),
        )?)
    }

    pub fn execute_endpoint(&self, endpoint: usize) -> Result<SendableRecordBatchStream> {
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
    is_query(plan)
        || Returning::of(plan).is_some()
        || OwnStatement::of(plan).is_some_and(OwnStatement::gives_rows)
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
    Err(datafusion::error::DataFusionError::NotImplemented(missing.into()).into())
}

impl Statement {
    /// Whether it only reads, and runs when it is fetched.
    pub fn is_query(&self) -> bool {
        matches!(self.work, Work::Query(_))
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
}

/// A schema whose columns may all be NULL.
pub(super) fn nullable(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| field.as_ref().clone().with_nullable(true));
    let fields: Vec<_> = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
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
