//! Results on their way to a client: a bounded stream, since each batch is computed when the
//! client's window has room for it. What computes it ends with the query, by a task of its own:
//! the connection asks for nothing while its client reads nothing.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatchOptions;
use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use datafusion::execution::SendableRecordBatchStream;
use flashmesh_planner::interrupt::StopOnDrop;
use flashmesh_planner::kernels::CancelKernels;
use flashmesh_storage::page::plain::to_plain;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Response, Status};

use super::columns::client_schema;
use super::message::{Encoder, MessageStream};
use crate::error::Error;
use crate::queries::{QueryKind, QueryState, RunningQuery};
use crate::server::places::Place;
use crate::server::sessions::ClientSession;
use crate::server::state::State;
use crate::server::status::status;

/// What `arrow-flight` has `do_get` answer.
pub(in crate::server) type FlightStream =
    Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send + 'static>>;

/// What one stream of a query holds while it is fetched.
pub(in crate::server) struct Fetch {
    /// The query; it ends with its last stream.
    pub query: Arc<RunningQuery>,
    /// Its place among the queries that may run at once.
    pub _place: Place,
    /// When its time is up.
    pub deadline: Option<Instant>,
    /// Streams of the query that have not reached their end.
    pub streams_left: Arc<AtomicUsize>,
    /// Ends its plans with it, if they don't end by themselves.
    pub _stop: Vec<StopOnDrop>,
}

/// The rows of `rows` for a client: as `schema`, which has types that all clients know, and until
/// the query is cancelled or its time is up. They are computed on `compute`, a few batches ahead.
pub(in crate::server) fn send(
    rows: SendableRecordBatchStream,
    schema: SchemaRef,
    fetch: Fetch,
    compute: &Handle,
) -> Result<Response<MessageStream>, Status> {
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let mut task = JoinSet::new();
    task.spawn_on(pump(rows, Arc::clone(&schema), sender), compute);
    let results = Arc::new(Results {
        batches: Mutex::new(Some(receiver)),
        closed: CancellationToken::new(),
        error: Mutex::default(),
    });
    let gone = CancellationToken::new();
    let pull = Pull {
        results: Arc::clone(&results),
        query: Arc::clone(&fetch.query),
        streams_left: Arc::clone(&fetch.streams_left),
        _gone: gone.clone().drop_guard(),
    };
    tokio::spawn(watch(fetch, task, results, gone));
    encode(&schema, stream::try_unfold(pull, next))
}

/// Holds what a stream takes until the client has or leaves it, the query is cancelled, or its
/// time is up. The task is aborted when its set is dropped.
async fn watch(fetch: Fetch, task: JoinSet<()>, results: Arc<Results>, gone: CancellationToken) {
    let client = async {
        gone.cancelled().await;
        Ok(())
    };
    if let Err(error) = until_ended(&fetch.query, fetch.deadline, client).await {
        fail(&fetch.query, &error);
        results.close(error);
    }
    drop(task);
}

/// Batches between who computes and who sends them.
struct Results {
    batches: Mutex<Option<mpsc::Receiver<Batch>>>,
    closed: CancellationToken,
    /// Why they were closed.
    error: Mutex<Option<Status>>,
}

impl Results {
    /// Ends them; batches that were not taken are freed.
    fn close(&self, error: Status) {
        *self.error.lock() = Some(error);
        self.closed.cancel();
        self.batches.lock().take();
    }

    async fn next(&self) -> Batch {
        let batch = poll_fn(|context| match self.batches.lock().as_mut() {
            Some(batches) => batches.poll_recv(context),
            None => Poll::Ready(None),
        });
        let batch = tokio::select! {
            biased;
            () = self.closed.cancelled() => None,
            batch = batch => batch,
        };
        batch.unwrap_or_else(|| {
            let error = self.error.lock().clone();
            // Who computes them has panicked; the log has the reason.
            Err(error.unwrap_or_else(|| Status::internal("the query failed")))
        })
    }
}

/// Batches that wait for the client to take them.
const BATCHES_AHEAD: usize = 2;

/// A batch; `None` after the last.
type Batch = Result<Option<RecordBatch>, Status>;

/// Computes batches, as the client knows their columns, until nobody takes them.
async fn pump(mut rows: SendableRecordBatchStream, schema: SchemaRef, sender: mpsc::Sender<Batch>) {
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(status).and_then(|batch| {
            let batch = to_client(&batch, &schema);
            batch.map(Some).map_err(|error| status(Error::from(error)))
        });
        let failed = batch.is_err();
        if sender.send(batch).await.is_err() || failed {
            return;
        }
    }
    // A client that has gone needs no end.
    let _ = sender.send(Ok(None)).await;
}

/// What a client's stream holds.
struct Pull {
    results: Arc<Results>,
    query: Arc<RunningQuery>,
    streams_left: Arc<AtomicUsize>,
    /// Tells that the stream is at its end, or that the client has gone.
    _gone: DropGuard,
}

async fn next(pull: Pull) -> Result<Option<(RecordBatch, Pull)>, Status> {
    match pull.results.next().await {
        Ok(Some(batch)) => {
            pull.query.count_rows(batch.num_rows());
            Ok(Some((batch, pull)))
        }
        Ok(None) => {
            if pull.streams_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                pull.query.end(QueryState::Finished);
            }
            Ok(None)
        }
        Err(error) => {
            fail(&pull.query, &error);
            Err(error)
        }
    }
}

/// Plans statement `id`: on a thread of its own, so that folding constants (which runs functions)
/// keeps nobody from being answered. Until it is done it is listed and can be killed; its place
/// among what the user plans is free when the thread is.
pub(in crate::server) async fn plan_apart<T: Send + 'static>(
    state: &State,
    session: &ClientSession,
    id: u64,
    sql: &str,
    work: impl Future<Output = crate::Result<T>> + Send + 'static,
) -> Result<T, Status> {
    let query = Arc::new(session.start_query(id, QueryKind::Planning, sql, None));
    let _gone = query.cancel_on_drop();
    let place = state.planning_place(session, &query).await?;
    let (compute, planned) = (state.compute().clone(), Arc::clone(&query));
    let deadline = state.deadline();
    let task = state.compute().spawn_blocking(move || {
        let _place = place;
        let work = async { work.await.map_err(status) };
        compute.block_on(until_ended(&planned, deadline, work))
    });
    let planned = until_ended(&query, deadline, async {
        let panicked = |error| Status::internal(format!("planning failed: {error}"));
        task.await.map_err(panicked)?
    });
    let planned = planned.await;
    match &planned {
        Err(error) => fail(&query, error),
        Ok(_) => query.end(QueryState::Finished),
    }
    planned
}

/// Runs `work` where queries are computed; it ends with the future.
pub(in crate::server) async fn compute_on<T: Send + 'static>(
    compute: &Handle,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let mut task = JoinSet::new();
    let kernels = CancelKernels::default();
    task.spawn_on(kernels.of(work), compute);
    match task.join_next().await {
        Some(Ok(result)) => result,
        Some(Err(error)) => Err(Status::internal(format!("the statement failed: {error}"))),
        None => Err(Status::internal("the statement was not run")),
    }
}

/// Runs `work` until it is done, the query is cancelled, or its time is up.
pub(in crate::server) async fn until_ended<T>(
    query: &RunningQuery,
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    let out_of_time = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = query.cancelled() => Err(Status::cancelled(format!("query {} was cancelled", query.id))),
        () = out_of_time => Err(Status::deadline_exceeded(
            "the query took longer than the server allows (--query-time-limit); ask for less, or for a higher limit",
        )),
        result = work => result,
    }
}

/// Notes why a query failed.
pub(super) fn fail(query: &RunningQuery, error: &Status) {
    query.end(match error.code() {
        tonic::Code::Cancelled => QueryState::Cancelled,
        _ => QueryState::Failed(error.message().to_string()),
    });
}

/// Batches that are there already: answers about metadata.
pub(in crate::server) fn send_batch(batch: RecordBatch) -> Response<FlightStream> {
    let data = FlightDataEncoderBuilder::new()
        .with_schema(batch.schema())
        .build(stream::iter([Ok(batch)]))
        .map_err(Status::from);
    Response::new(Box::pin(data))
}

/// The same of several, with types that all clients know.
pub(in crate::server) fn send_batches(
    schema: &SchemaRef,
    batches: &[RecordBatch],
) -> Result<Response<MessageStream>, Status> {
    let schema = client_schema(schema);
    let batches: Vec<_> = batches
        .iter()
        .map(|batch| to_client(batch, &schema).map_err(|e| status(Error::from(e))))
        .collect::<Result<_, _>>()?;
    encode(&schema, stream::iter(batches.into_iter().map(Ok)))
}

fn encode(
    schema: &SchemaRef,
    batches: impl Stream<Item = Result<RecordBatch, Status>> + Send + 'static,
) -> Result<Response<MessageStream>, Status> {
    let failed = |e| status(Error::from(e));
    let (mut encoder, first) = Encoder::new(schema).map_err(failed)?;
    let messages = batches.map(move |batch| {
        let messages = encoder.encode(&batch?).map_err(failed)?;
        Ok::<_, Status>(stream::iter(messages.into_iter().map(Ok)))
    });
    let messages = stream::iter([Ok(first)]).chain(messages.try_flatten());
    Ok(Response::new(Box::pin(messages)))
}

fn to_client(
    batch: &RecordBatch,
    schema: &SchemaRef,
) -> Result<RecordBatch, arrow::error::ArrowError> {
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| to_plain(column, field.data_type()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns.collect::<Result<_, _>>()?,
        &options,
    )
}
