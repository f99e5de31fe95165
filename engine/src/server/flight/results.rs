//! Results on their way to a client: a bounded stream, since each batch is computed when the
//! client's window has room for it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::record_batch::RecordBatchOptions;
use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use datafusion::execution::SendableRecordBatchStream;
use flashmesh_planner::interrupt::StopOnDrop;
use flashmesh_planner::kernels::CancelKernels;
use flashmesh_storage::page::plain::to_plain;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Response, Status};

use super::columns::described;
use super::get::MessageStream;
use super::message::Encoder;
use super::statements::fail;
use crate::error::Error;
use crate::queries::{QueryState, RunningQuery};
use crate::server::status::status;

/// What `arrow-flight` has `do_get` answer.
pub(in crate::server) type FlightStream =
    Pin<Box<dyn Stream<Item = Result<FlightData, Status>> + Send + 'static>>;

/// What one stream of a query holds while it is fetched.
pub(in crate::server) struct Fetch {
    /// The query; it ends with its last stream.
    pub query: Arc<RunningQuery>,
    /// Its place among the queries that may run at once, if it needs one.
    pub _permit: Option<Arc<OwnedSemaphorePermit>>,
    /// When its time is up.
    pub deadline: Option<Instant>,
    /// Streams of the query that have not reached their end.
    pub streams_left: Arc<AtomicUsize>,
    /// Ends its plans with it, if they don't end by themselves.
    pub _stop: Vec<StopOnDrop>,
}

/// The rows of `rows` for a client: as `schema`, which has types that all clients know, and until the query is
/// cancelled or its time is up. They are computed on `compute`, a few batches ahead.
pub(in crate::server) fn send(
    rows: SendableRecordBatchStream,
    schema: SchemaRef,
    fetch: Fetch,
    compute: &Handle,
) -> Result<Response<MessageStream>, Status> {
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    // Aborts the task when it is dropped: when the client has gone.
    let mut task = JoinSet::new();
    task.spawn_on(pump(rows, Arc::clone(&schema), sender), compute);
    let batches = stream::try_unfold((receiver, task, Some(fetch)), next);
    encode(&schema, batches)
}

/// Batches that wait for the client to take them.
const BATCHES_AHEAD: usize = 2;

type Batch = Result<RecordBatch, Status>;

/// Computes batches, as the client knows their columns, until nobody takes them.
async fn pump(mut rows: SendableRecordBatchStream, schema: SchemaRef, sender: mpsc::Sender<Batch>) {
    while let Some(batch) = rows.next().await {
        let batch = batch.map_err(status).and_then(|batch| {
            to_client(&batch, &schema).map_err(|error| status(Error::from(error)))
        });
        let failed = batch.is_err();
        if sender.send(batch).await.is_err() || failed {
            return;
        }
    }
}

/// What a client's stream holds: what comes, who makes it, and what it is part of until its end.
type Pull = (mpsc::Receiver<Batch>, JoinSet<()>, Option<Fetch>);

async fn next((mut rows, mut task, fetch): Pull) -> Result<Option<(RecordBatch, Pull)>, Status> {
    let Some(fetch) = fetch else {
        return Ok(None);
    };
    let batch = until_ended(&fetch.query, fetch.deadline, async {
        match rows.recv().await {
            Some(batch) => batch.map(Some),
            // At its end, or it has panicked.
            None => match task.join_next().await {
                Some(Err(error)) => Err(Status::internal(format!("the query failed: {error}"))),
                _ => Ok(None),
            },
        }
    });
    match batch.await {
        Ok(Some(batch)) => {
            fetch.query.count_rows(batch.num_rows());
            Ok(Some((batch, (rows, task, Some(fetch)))))
        }
        Ok(None) => {
            if fetch.streams_left.fetch_sub(1, Ordering::Relaxed) == 1 {
                fetch.query.end(QueryState::Finished);
            }
            Ok(None)
        }
        Err(error) => {
            fail(&fetch.query, &error);
            Err(error)
        }
    }
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

/// The schema with types that all Flight clients know, and what they are in SQL: string and binary views as plain ones. (A
/// view into a large buffer would also send all of the buffer.)
pub(in crate::server) fn client_schema(schema: &SchemaRef) -> SchemaRef {
    let fields = schema.fields().iter();
    let fields = fields.map(|field| described(&client_field(field)));
    let fields: Vec<FieldRef> = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn client_field(field: &FieldRef) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(client_field(item)),
        DataType::LargeList(item) => DataType::LargeList(client_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(client_field(item), *size),
        DataType::Map(entries, sorted) => DataType::Map(client_field(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(client_field).collect()),
        DataType::Dictionary(_, values) => {
            let values = Arc::new(Field::new("values", values.as_ref().clone(), true));
            client_field(&values).data_type().clone()
        }
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
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
