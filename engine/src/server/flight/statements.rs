//! Statements that were asked for: their plans, the columns of their results, and the tickets that
//! these are fetched with.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant, SystemTime};

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use arrow_flight::sql::{ProstMessageExt, SubstraitPlan, TicketStatementQuery};
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo, Ticket};
use datafusion::common::stats::Precision;
use datafusion::config::ConfigOptions;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions,
    StatisticsArgs, StatisticsContext, execute_stream,
};
use datafusion::sql::parser::Statement as ParsedStatement;
use flashmesh_planner::FlashScanExec;
use parking_lot::Mutex;
use prost::Message;
use prost_types::Timestamp;
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
    /// When its tickets expire, where they can be fetched more than once.
    pub(super) expires: Mutex<Option<SystemTime>>,
    /// The numbers of the queries by which it was fetched again.
    pub(super) again: Mutex<Vec<u64>>,
    /// Streams that have not reached their end.
    pub(super) streams_left: Arc<AtomicUsize>,
    pub asked_at: Instant,
}

#[derive(Debug)]
pub(super) enum Work {
    /// A query; of several plans where it is run once for each row of its parameters.
    Query(Vec<Planned>),
    /// A query that was fetched whole, and can be again: its operators are gone with what they hold.
    Fetched(SchemaRef, Again),
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
    /// More than one: each partition of the plan is one, which has the same rows each time.
    pub endpoints: usize,
    /// How many rows it gives.
    rows: Precision<usize>,
    /// What it can be planned anew by.
    pub again: Option<Again>,
}

/// A query that gives the same when it is planned and run again.
#[derive(Debug, Clone)]
pub(super) struct Again {
    /// With the versions of its tables.
    query: LogicalPlan,
    /// A session's options are changed by putting others in their place.
    options: Arc<ConfigOptions>,
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
        let pinned = flashmesh_planner::repeatable(query)?;
        let query = pinned.as_ref().unwrap_or(query);
        let mut plan = flashmesh_planner::physical_plan(&state, query).await?;
        let schema = with_origins(session, query, &client_schema(&plan.schema()))?;
        let scan = (plan.as_ref() as &dyn Any).downcast_ref::<FlashScanExec>();
        if let Some(scan) = scan.and_then(FlashScanExec::with_plain_text) {
            plan = Arc::new(scan);
        }
        let rows = StatisticsContext::new()
            .compute(plan.as_ref(), &StatisticsArgs::new())
            .map_or(Precision::Absent, |statistics| statistics.num_rows);
        let is_large = rows
            .get_value()
            .is_some_and(|rows| *rows >= ROWS_OF_SEVERAL_ENDPOINTS);
        let mut endpoints = 1;
        if is_large && let Some(parts) = in_parts(&plan)? {
            endpoints = parts.output_partitioning().partition_count();
            plan = parts;
        }
        let again = pinned.map(|query| Again {
            query,
            options: Arc::clone(state.config().options()),
        });
        Ok(Self {
            plan,
            schema,
            context: state.task_ctx(),
            endpoints,
            rows,
            again,
        })
    }

    /// Plans a query once more, which gives the same rows.
    pub async fn anew(session: &Session, again: &Again) -> Result<Self> {
        if !Arc::ptr_eq(session.context().state().config().options(), &again.options) {
            return Err(Error::usage(
                "the session's settings have changed since this ticket was given: ask for the statement again",
            ));
        }
        Self::new(session, &again.query).await
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

/// A plan of which each partition can be read to its end while others are not read at all, and has the
/// same rows each time; `None` where rows go from one partition to another, as those that nobody fetches
/// would pile up.
fn in_parts(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let any = plan.as_ref() as &dyn Any;
    if let Some(scan) = any.downcast_ref::<FlashScanExec>() {
        let Some(scans) = scan.divided(scan.partitions()) else {
            return Ok(None);
        };
        let scans = scans.into_iter().map(|scan| Arc::new(scan) as _);
        return Ok(Some(UnionExec::try_new(scans.collect())?));
    }
    if !any.is::<ProjectionExec>() && !any.is::<FilterExec>() {
        return Ok(None);
    }
    let mut children = Vec::new();
    for child in plan.children() {
        let Some(child) = in_parts(child)? else {
            return Ok(None);
        };
        children.push(child);
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Ok(Some(Arc::clone(plan).replace_children(children, options)?))
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
        !matches!(self.work, Work::Done(_))
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
            Work::Fetched(schema, _) => Arc::clone(schema),
            Work::Done(answer) => client_schema(&answer.schema),
        }
    }

    /// Where its result can be fetched.
    pub fn info(&self, descriptor: FlightDescriptor) -> std::result::Result<FlightInfo, Status> {
        let endpoints = self.fetched.lock().endpoints.len();
        let rows = match &self.work {
            Work::Query(plans) => match plans.as_slice() {
                [planned] => match planned.rows {
                    Precision::Exact(rows) => rows as i64,
                    _ => -1,
                },
                _ => -1,
            },
            Work::Fetched(..) => -1,
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
            info = info.with_endpoint(self.endpoint(ticket));
        }
        Ok(info)
    }

    /// An endpoint, which says until when its ticket can be fetched any number of times, if it can.
    pub fn endpoint(&self, ticket: Ticket) -> FlightEndpoint {
        let mut endpoint = FlightEndpoint::new().with_ticket(ticket);
        endpoint.expiration_time = self.expires().map(Timestamp::from);
        endpoint
    }

    /// What it can be planned anew by.
    pub(super) fn again(&self) -> Option<&Again> {
        match &self.work {
            Work::Query(plans) => match plans.as_slice() {
                [planned] => planned.again.as_ref(),
                _ => None,
            },
            Work::Fetched(_, again) => Some(again),
            Work::Done(_) => None,
        }
    }

    /// What is left of it when it was fetched whole, if it can be fetched again.
    pub fn remains(&self) -> Option<Self> {
        let fetched = Fetched {
            endpoints: self.fetched.lock().endpoints.clone(),
            query: None,
        };
        let expires = self.expires()?;
        Some(Self {
            id: self.id,
            sql: self.sql.clone(),
            kind: self.kind,
            work: Work::Fetched(self.schema(), self.again()?.clone()),
            fetched: Mutex::new(fetched),
            expires: Mutex::new(Some(expires)),
            again: Mutex::default(),
            streams_left: Arc::default(),
            asked_at: self.asked_at,
        })
    }

    /// Whether it has an endpoint of that number.
    pub fn has_endpoint(&self, number: usize) -> bool {
        number < self.fetched.lock().endpoints.len()
    }

    /// The numbers of the queries by which it was fetched again.
    pub fn fetched_again(&self) -> Vec<u64> {
        self.again.lock().clone()
    }

    /// Until when its tickets can be fetched any number of times, if they can.
    pub fn expires(&self) -> Option<SystemTime> {
        self.again()?;
        *self.expires.lock()
    }

    /// Has its tickets last for so long from now on; FALSE where each can be fetched once.
    pub fn renew(&self, lifetime: Duration) -> bool {
        let can_be = self.again().is_some() && !lifetime.is_zero();
        if can_be {
            *self.expires.lock() = Some(SystemTime::now() + lifetime);
        }
        can_be
    }

    /// Whether nothing of it is left to be fetched for the first time.
    pub fn is_fetched(&self) -> bool {
        self.fetched.lock().endpoints.iter().all(|fetched| *fetched)
    }

    /// Whether its tickets are worth nothing any more.
    pub fn is_over(&self) -> bool {
        let lasts = self
            .expires()
            .is_some_and(|until| until > SystemTime::now());
        !lasts && self.is_fetched()
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
