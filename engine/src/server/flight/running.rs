//! Statements: a query is planned when a client asks for its `FlightInfo` and run when it fetches a
//! ticket of it; what changes something is run at once. Until either is done, the statement's number
//! is that of a query that runs.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Instant, SystemTime};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Schema, SchemaRef, UInt64Type};
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use flashmesh_planner::interrupt::StopOnDrop;
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tonic::{Response, Status};

use super::message::MessageStream;
use super::results::{Fetch, compute_on, fail, plan_apart, send, send_batches, until_ended};
use super::statements::{
    Answer, Fetched, Planned, Statement, Work, is_query, no_such_ticket, nullable,
};
use crate::own_statement::OwnStatement;
use crate::queries::{QueryKind, QueryState, RunningQuery};
use crate::returning::Returning;
use crate::server::sessions::ClientSession;
use crate::server::state::State;
use crate::server::status::status;
use crate::system::is_look;
use crate::{Result, Session};

/// Of a statement that is fetched again, the queries that are known so that they can be cancelled with it.
const KNOWN_FETCHES: usize = 64;

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
            Work::Fetched(..) | Work::Done(_) => 1,
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
            expires: Mutex::default(),
            again: Mutex::default(),
            streams_left: Arc::new(AtomicUsize::new(endpoints)),
            asked_at: Instant::now(),
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

    /// Runs it, or the part of it that an endpoint is.
    pub async fn fetch(
        &self,
        state: &State,
        session: &ClientSession,
        endpoint: usize,
    ) -> std::result::Result<Response<MessageStream>, Status> {
        let plans = match &self.work {
            Work::Query(plans) => plans.as_slice(),
            Work::Fetched(..) => &[],
            Work::Done(answer) => {
                session.remove_statement(self.id);
                return send_batches(&answer.schema, &answer.batches);
            }
        };
        let Some(query) = self.claim(session, endpoint)? else {
            return self.fetch_again(state, session, endpoint).await;
        };
        let streams_left = Arc::clone(&self.streams_left);
        self.execute(state, session, plans, endpoint, query, streams_left)
            .await
    }

    /// Runs an endpoint that was fetched before: as a query of its own, planned anew over the same
    /// versions, since what operators know of the first time is not theirs to know.
    async fn fetch_again(
        &self,
        state: &State,
        session: &ClientSession,
        endpoint: usize,
    ) -> std::result::Result<Response<MessageStream>, Status> {
        let lasts = self
            .expires()
            .is_some_and(|until| until > SystemTime::now());
        let again = self.again().filter(|_| lasts).cloned();
        let again = again.ok_or_else(|| {
            Status::failed_precondition(
                "this ticket was fetched already; ask for the statement again",
            )
        })?;
        let id = state.queries().next_id();
        state.queries().tag_as(id, self.id);
        {
            let mut known = self.again.lock();
            // Those of before have ended, most likely.
            let beyond = known.len().saturating_sub(KNOWN_FETCHES - 1);
            known.drain(..beyond);
            known.push(id);
        }
        let own = session.session.clone();
        let planned = async move { Planned::anew(&own, &again).await };
        let planned = plan_apart(state, session, id, &self.sql, planned).await?;
        if planned.endpoints != self.fetched.lock().endpoints.len() {
            return Err(Status::failed_precondition(
                "the result has other parts now, since nodes came or went; ask for the statement again",
            ));
        }
        let plan = Some(Arc::clone(&planned.plan));
        let query = Arc::new(session.start_query(id, self.kind, &self.sql, plan));
        let one = Arc::new(AtomicUsize::new(1));
        self.execute(state, session, &[planned], endpoint, query, one)
            .await
    }

    async fn execute(
        &self,
        state: &State,
        session: &ClientSession,
        plans: &[Planned],
        endpoint: usize,
        query: Arc<RunningQuery>,
        streams_left: Arc<AtomicUsize>,
    ) -> std::result::Result<Response<MessageStream>, Status> {
        let place = state.place(session, &query, self.kind).await?;
        // What its operators start runs there, too.
        let compute = state.compute().enter();
        let rows = match plans {
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
            streams_left,
            _stop: plans.iter().map(|p| StopOnDrop::new(&p.plan)).collect(),
        };
        send(rows, self.schema(), fetch, state.compute())
    }

    /// Marks an endpoint as fetched; `None` where it was before.
    fn claim(
        &self,
        session: &ClientSession,
        endpoint: usize,
    ) -> std::result::Result<Option<Arc<RunningQuery>>, Status> {
        let mut fetched = self.fetched.lock();
        match fetched.endpoints.get_mut(endpoint) {
            None => return Err(no_such_ticket()),
            Some(true) => return Ok(None),
            Some(fetched) => *fetched = true,
        }
        let query = fetched.query.get_or_insert_with(|| {
            let plan = match &self.work {
                Work::Query(plans) => plans.first().map(|planned| Arc::clone(&planned.plan)),
                Work::Fetched(..) | Work::Done(_) => None,
            };
            Arc::new(session.start_query(self.id, self.kind, &self.sql, plan))
        });
        let query = Arc::clone(query);
        if fetched.endpoints.iter().all(|fetched| *fetched) {
            fetched.query = None;
            drop(fetched);
            session.note_fetched(self.id, self.remains());
        }
        Ok(Some(query))
    }
}

fn is_kill(plan: &LogicalPlan) -> bool {
    matches!(OwnStatement::of(plan), Some(OwnStatement::Kill(_)))
}

/// Runs plans that change something, each as a statement of its own, and gives the answers of all.
async fn change(
    state: &State,
    session: &ClientSession,
    id: u64,
    sql: &str,
    plans: Vec<LogicalPlan>,
) -> std::result::Result<Answer, Status> {
    let query = session.start_query(id, QueryKind::Work, sql, None);
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
