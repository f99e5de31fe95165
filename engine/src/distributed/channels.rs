//! The ways between workers: gRPC on streams of the mesh.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow::array::RecordBatch;
use axum::http::HeaderMap;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{
    ChannelResolver, CoordinatorToWorkerMsg, ExecuteTaskRequest, GetWorkerInfoRequest,
    GetWorkerInfoResponse, MaybeEncoded, SetPlanRequest, Worker, WorkerChannel,
    WorkerToCoordinatorMsg,
};
use flashmesh_cluster::mesh::{MeshError, MeshStream, Streams};
use flashmesh_macros::async_impl;
use flashmesh_storage::store::NodeId;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Server, Uri};
use tower::service_fn;
use url::Url;

use super::{node_of, url_of};

/// The service of the mesh on which nodes ask each other for parts of plans.
const SERVICE: &str = "workers";
/// What may be on its way of one answer: the streams of the mesh have windows of their own below it.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Of all between two nodes, and how many these are: as much as can be said. Else those that nobody
/// reads now would hold up all others.
const CONNECTION_WINDOW_BYTES: u32 = (1 << 31) - 1;
const STREAMS_MAX: u32 = (1 << 31) - 1;

/// One connection to each node that was asked, made anew when it broke.
pub(super) struct Channels {
    streams: Streams,
    /// What drives the connections: that of a query may be busy, or end.
    runtime: Handle,
    known: Mutex<HashMap<NodeId, BoxCloneSyncChannel>>,
}

impl Channels {
    pub fn new(streams: Streams, runtime: Handle) -> Self {
        Self {
            streams,
            runtime,
            known: Mutex::default(),
        }
    }

    fn channel(&self, node: NodeId) -> BoxCloneSyncChannel {
        let mut known = self.known.lock();
        let channel = known.entry(node).or_insert_with(|| {
            let streams = self.streams.clone();
            let connect = move |_: Uri| {
                let streams = streams.clone();
                async move {
                    let stream = streams.connect(node, SERVICE).await;
                    stream.map(TokioIo::new).map_err(io::Error::other)
                }
            };
            let endpoint = Endpoint::from_shared(url_of(node).to_string());
            let endpoint = endpoint.expect("it is a URL");
            // What is spawned for it is spawned here.
            let _entered = self.runtime.enter();
            let channel = endpoint
                .initial_stream_window_size(STREAM_WINDOW_BYTES)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .connect_with_connector_lazy(service_fn(connect));
            BoxCloneSyncChannel::new(channel)
        });
        channel.clone()
    }

    fn way(
        &self,
        url: &Url,
        failure: Option<Arc<Failure>>,
    ) -> Result<Box<dyn WorkerChannel>, DataFusionError> {
        let node = node_of(url)?;
        Ok(Box::new(Named {
            node,
            inner: create_worker_client(self.channel(node)),
            failure,
        }))
    }
}

#[async_impl]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(
        &self,
        url: &Url,
    ) -> Result<Box<dyn WorkerChannel>, DataFusionError> {
        self.way(url, None)
    }
}

/// The ways of a query's coordinator. A node that did not get its part of the plan is told to whoever
/// reads the query's rows: those who ask it for rows wait for a plan that does not come.
pub(super) struct OfQuery {
    channels: Arc<Channels>,
    own: (NodeId, Worker),
    failure: Arc<Failure>,
}

/// Where the first failure goes.
type Failure = Mutex<Option<oneshot::Sender<DataFusionError>>>;

impl OfQuery {
    /// The ways, and what has failed on them. `own`: the coordinator's node, and what runs its part.
    pub fn new(
        channels: Arc<Channels>,
        own: (NodeId, Worker),
    ) -> (Self, oneshot::Receiver<DataFusionError>) {
        let (failure, failed) = oneshot::channel();
        let failure = Arc::new(Mutex::new(Some(failure)));
        let ways = Self {
            channels,
            own,
            failure,
        };
        (ways, failed)
    }
}

#[async_impl]
impl ChannelResolver for OfQuery {
    async fn get_worker_client_for_url(
        &self,
        url: &Url,
    ) -> Result<Box<dyn WorkerChannel>, DataFusionError> {
        let failure = Some(Arc::clone(&self.failure));
        let (own, worker) = &self.own;
        match node_of(url)? == *own {
            true => Ok(Box::new(Named {
                node: *own,
                inner: Box::new(Here(worker.clone())),
                failure,
            })),
            false => self.channels.way(url, failure),
        }
    }
}

/// The way to the part of a query that its coordinator's node has, within this process. The plan comes to
/// it as bytes, as to the others: it would else share what operators tell each other (the keys of a join,
/// the bound of a top-k) with the plan that is still to be sent, and the others would begin with keys that
/// are of this part alone.
struct Here(Worker);

#[async_impl]
impl WorkerChannel for Here {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        mut request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        _: ExecutionPlanMetricsSet,
        task: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg, DataFusionError>>, DataFusionError>
    {
        request.plan = MaybeEncoded::Encoded(request.plan.encode(task)?);
        let messages = messages.map(Ok).boxed();
        self.0.coordinator_channel(headers, request, messages).await
    }

    async fn execute_task(
        &mut self,
        _: HeaderMap,
        request: ExecuteTaskRequest,
        _: ExecutionPlanMetricsSet,
        _: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch, DataFusionError>>>, DataFusionError>
    {
        let (streams, _) = self.0.execute_task(request).await?;
        Ok(streams.into_iter().map(StreamExt::boxed).collect())
    }

    async fn get_worker_info(
        &mut self,
        _: GetWorkerInfoRequest,
    ) -> Result<GetWorkerInfoResponse, DataFusionError> {
        let version = self.0.version().to_string();
        Ok(GetWorkerInfoResponse { version })
    }
}

/// A way to a node, whose errors say which.
struct Named {
    node: NodeId,
    inner: Box<dyn WorkerChannel>,
    failure: Option<Arc<Failure>>,
}

fn of_node(node: NodeId, error: DataFusionError) -> DataFusionError {
    error.context(format!("node {}", node.0))
}

fn named<T: 'static>(
    node: NodeId,
    stream: BoxStream<'static, Result<T, DataFusionError>>,
) -> BoxStream<'static, Result<T, DataFusionError>> {
    stream.map_err(move |error| of_node(node, error)).boxed()
}

#[async_impl]
impl WorkerChannel for Named {
    async fn coordinator_channel(
        &mut self,
        headers: HeaderMap,
        request: SetPlanRequest,
        messages: BoxStream<'static, CoordinatorToWorkerMsg>,
        metrics: ExecutionPlanMetricsSet,
        task: &Arc<TaskContext>,
    ) -> Result<BoxStream<'static, Result<WorkerToCoordinatorMsg, DataFusionError>>, DataFusionError>
    {
        let node = self.node;
        let asked = self
            .inner
            .coordinator_channel(headers, request, messages, metrics, task);
        let answers = asked.await.map_err(|error| {
            let error = Arc::new(of_node(node, error));
            let failure = self.failure.as_ref();
            if let Some(failure) = failure.and_then(|failure| failure.lock().take()) {
                // Nobody may read the rows any more.
                let _ = failure.send(DataFusionError::Shared(Arc::clone(&error)));
            }
            DataFusionError::Shared(error)
        })?;
        Ok(named(node, answers))
    }

    async fn execute_task(
        &mut self,
        headers: HeaderMap,
        request: ExecuteTaskRequest,
        metrics: ExecutionPlanMetricsSet,
        task: &Arc<TaskContext>,
    ) -> Result<Vec<BoxStream<'static, Result<RecordBatch, DataFusionError>>>, DataFusionError>
    {
        let node = self.node;
        let asked = self.inner.execute_task(headers, request, metrics, task);
        let streams = asked.await.map_err(|error| of_node(node, error))?;
        Ok(streams
            .into_iter()
            .map(|stream| named(node, stream))
            .collect())
    }

    async fn get_worker_info(
        &mut self,
        request: GetWorkerInfoRequest,
    ) -> Result<GetWorkerInfoResponse, DataFusionError> {
        let info = self.inner.get_worker_info(request).await;
        info.map_err(|error| of_node(self.node, error))
    }
}

/// What takes requests of other nodes, until it is dropped.
pub(super) struct Serving {
    streams: Streams,
    service: &'static str,
}

impl Serving {
    pub fn new(streams: &Streams, service: &'static str) -> Self {
        let streams = streams.clone();
        Self { streams, service }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.streams.stop_listening(self.service);
    }
}

/// Runs what other nodes ask of `worker`, on `runtime`.
///
/// # Errors
/// `Taken` when somebody does on this mesh.
pub(super) fn serve(
    streams: &Streams,
    worker: Worker,
    runtime: &Handle,
) -> Result<Serving, MeshError> {
    let listener = streams.listen(SERVICE)?;
    let incoming = stream::unfold(listener, |mut listener| async {
        let (_, stream) = listener.accept().await.ok()?;
        Some((Ok::<_, io::Error>(Connection(stream)), listener))
    });
    runtime.spawn(async move {
        let served = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_MAX)
            .add_service(worker.into_worker_server())
            .serve_with_incoming(incoming)
            .await;
        if let Err(error) = served {
            log::error!("this node runs no more parts of plans: {error}");
        }
    });
    Ok(Serving::new(streams, SERVICE))
}

/// A stream as the server takes it.
struct Connection(MeshStream);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
