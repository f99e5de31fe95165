//! Connections: a bounded number of them, and who is at their other end.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::PollSemaphore;
use tonic::Extensions;
use tonic::transport::server::{Connected, TcpConnectInfo, TlsConnectInfo};

use super::State;
use super::gather::GatherWrites;

/// Accepts connections while there is room for them; others wait in the system's queue.
pub(super) struct Incoming {
    listener: TcpListener,
    state: Arc<State>,
    room: PollSemaphore,
    permit: Option<OwnedSemaphorePermit>,
}

impl Incoming {
    /// Connections of `listener`, as many at once as the state has room for.
    pub fn new(listener: TcpListener, state: Arc<State>) -> Self {
        Self {
            listener,
            room: PollSemaphore::new(Arc::clone(&state.connections)),
            state,
            permit: None,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.permit.is_none() {
            self.permit = ready!(self.room.poll_acquire(context));
        }
        let (stream, address) = ready!(self.listener.poll_accept(context))?;
        // Small answers shall not wait for more to send.
        stream.set_nodelay(true)?;
        let permit = self.permit.take();
        Poll::Ready(Some(Ok(Connection {
            stream: GatherWrites::new(stream),
            session: peer_session(&address.to_string()),
            state: Arc::clone(&self.state),
            _permit: permit,
        })))
    }
}

/// A client's connection. What belongs to it and not to a token ends with it.
pub(super) struct Connection {
    stream: GatherWrites<TcpStream>,
    session: String,
    state: Arc<State>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.state.sessions.close(&self.session);
    }
}

/// The key of the session that belongs to the connection from an address.
pub(super) fn peer_session(address: &str) -> String {
    format!("peer {address}")
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.get_ref().connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Who is at the other end of a request's connection.
#[derive(Debug)]
pub(super) struct Peer {
    address: Option<SocketAddr>,
}

impl Peer {
    /// As the transport noted it in a request.
    pub fn of(extensions: &Extensions) -> Self {
        let tls = extensions.get::<TlsConnectInfo<TcpConnectInfo>>();
        let tcp = tls
            .map(TlsConnectInfo::get_ref)
            .or_else(|| extensions.get::<TcpConnectInfo>());
        Self {
            address: tcp.and_then(TcpConnectInfo::remote_addr),
        }
    }

    /// Address and port, which tell connections apart.
    pub fn address(&self) -> String {
        self.address.map_or("unknown".into(), |a| a.to_string())
    }
}
