//! The ways between workers: gRPC on streams of the mesh.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use async_trait::async_trait;
use datafusion::error::DataFusionError;
use datafusion_distributed::grpc::{BoxCloneSyncChannel, create_worker_client};
use datafusion_distributed::{ChannelResolver, Worker, WorkerChannel};
use flashmesh_cluster::mesh::{MeshError, MeshStream, Streams};
use flashmesh_storage::store::NodeId;
use futures::stream;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tonic::transport::server::Connected;
use tonic::transport::{Endpoint, Server, Uri};
use tower::service_fn;
use url::Url;

use super::{node_of, url_of};

/// The service of the mesh on which nodes ask each other for parts of plans.
const SERVICE: &str = "workers";
/// What may be on its way, of one answer and of all between two nodes: the streams of the mesh have
/// windows of their own below it.
const STREAM_WINDOW_BYTES: u32 = 2 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

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
}

#[async_trait]
impl ChannelResolver for Channels {
    async fn get_worker_client_for_url(
        &self,
        url: &Url,
    ) -> Result<Box<dyn WorkerChannel>, DataFusionError> {
        Ok(create_worker_client(self.channel(node_of(url)?)))
    }
}

/// What takes requests of other nodes, until it is dropped.
pub(super) struct Serving(Streams);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.stop_listening(SERVICE);
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
            .add_service(worker.into_worker_server())
            .serve_with_incoming(incoming)
            .await;
        if let Err(error) = served {
            log::error!("this node runs no more parts of plans: {error}");
        }
    });
    Ok(Serving(streams.clone()))
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
