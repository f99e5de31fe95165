//! Streams of bytes over an endpoint, many at once, to and from any node.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use flashmesh_pages::store::NodeId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::endpoint::Endpoint;
use super::error::MeshError;
use super::half::Key;
use super::mux::Mux;

/// Streams that wait to be accepted, of each service.
const BACKLOG: usize = 64;
/// How often a stream is asked for, where its peer restarts meanwhile.
const CONNECT_TRIES: usize = 3;

/// The streams of an endpoint of this node: [`Mesh::streams`](super::Mesh::streams).
///
/// Each stream has a window of its own, so one whose reader takes nothing stops its writer and no
/// other stream.
#[derive(Clone)]
pub struct Streams {
    mux: Arc<Mux>,
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").finish_non_exhaustive()
    }
}

impl Streams {
    pub(crate) fn new(endpoint: Endpoint, runtime: &Handle) -> Self {
        let mux = Mux::new(endpoint, runtime.clone());
        // Ends when the mesh is closed.
        runtime.spawn(mux.clone().receive());
        Self { mux }
    }

    /// Where the mesh runs.
    pub(crate) fn runtime(&self) -> &Handle {
        self.mux.runtime()
    }

    /// Opens a stream to a service of a node, this one included. What an interruption takes along of one
    /// that is not open yet is nothing but the question, which is then asked again.
    ///
    /// # Errors
    /// `Refused` when nobody listens there; `Unreachable` as with packets; `Interrupted` when that goes on.
    pub async fn connect(&self, node: NodeId, service: &str) -> Result<MeshStream, MeshError> {
        let peer = self.mux.endpoint.network().node_of(node);
        let unknown = || MeshError::Unknown(format!("node of number {}", node.0));
        let peer = peer.ok_or_else(unknown)?;
        let mut tries = 1;
        loop {
            match self.open(peer, service).await {
                Err(MeshError::Interrupted { .. }) if tries < CONNECT_TRIES => tries += 1,
                opened => return opened,
            }
        }
    }

    async fn open(&self, peer: usize, service: &str) -> Result<MeshStream, MeshError> {
        let (key, accepted) = self.mux.open(peer, service)?;
        // From here on: whoever waits no longer has the stream reset.
        let stream = MeshStream::new(self.mux.clone(), key);
        accepted.await.unwrap_or(Err(MeshError::Closed))?;
        Ok(stream)
    }

    /// Takes the streams that are opened to a service of this node, until it is dropped.
    ///
    /// # Errors
    /// `Taken` when someone else does.
    pub fn listen(&self, service: &str) -> Result<StreamListener, MeshError> {
        let (incoming, accepted) = mpsc::channel(BACKLOG);
        self.mux.serve(service, incoming)?;
        Ok(StreamListener { accepted })
    }

    /// Takes none any more: whoever does so now hears `Closed`, and another one may begin at once.
    pub fn stop_listening(&self, service: &str) {
        self.mux.stop(service);
    }
}

#[cfg(test)]
impl Streams {
    /// Streams of which anything is kept.
    pub(crate) fn open_streams(&self) -> usize {
        self.mux.open_streams()
    }
}

/// Takes the streams that are opened to a service.
pub struct StreamListener {
    accepted: mpsc::Receiver<(NodeId, MeshStream)>,
}

impl StreamListener {
    /// The next stream, and the node that opened it. When it is dropped before it returns, nothing
    /// is lost.
    ///
    /// # Errors
    /// `Closed` when the mesh is.
    pub async fn accept(&mut self) -> Result<(NodeId, MeshStream), MeshError> {
        self.accepted.recv().await.ok_or(MeshError::Closed)
    }
}

/// A stream of bytes to another node, in both directions.
///
/// `shutdown` ends the one direction, and the peer reads to the end. A stream that is dropped
/// without it was not finished, and the peer is told so: its reads and writes fail with
/// `ConnectionReset`. Dropped after it, what the peer still writes fails with `BrokenPipe`.
pub struct MeshStream {
    mux: Arc<Mux>,
    key: Key,
}

impl MeshStream {
    pub(crate) fn new(mux: Arc<Mux>, key: Key) -> Self {
        Self { mux, key }
    }

    /// The node at the other end.
    pub fn peer(&self) -> NodeId {
        self.mux.endpoint.network().ids[self.key.peer]
    }
}

impl AsyncRead for MeshStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.mux.poll_read(self.key, context, buffer)
    }
}

impl AsyncWrite for MeshStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.mux
            .poll_write(self.key, context, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.mux.poll_write(self.key, context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// What is written goes on its way at once: there is nothing to do.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.mux.finish(self.key))
    }
}

impl Drop for MeshStream {
    fn drop(&mut self) {
        self.mux.drop_stream(self.key);
    }
}
