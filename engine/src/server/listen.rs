//! Connections of both ports: a bounded number of them, who is at their other end, and how long
//! they may be there without a login.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::serve::Listener;
use futures::task::AtomicWaker;
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tonic::Extensions;
use tonic::transport::server::{Connected, TlsConnectInfo};

use super::gather::GatherWrites;
use super::sessions::Sessions;

/// The connections that are open.
///
/// Who has not logged in (is in the middle of TLS's handshake or HTTP/2's, says nothing, or only
/// answers pings) is a stranger. Strangers have little time, and give way to who comes after them
/// where there are too many: otherwise those who are silent would keep everybody else out.
#[derive(Debug)]
pub(super) struct Connections {
    limit: usize,
    strangers_of_address: usize,
    login_time: Duration,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    last: u64,
    links: HashMap<u64, Arc<Link>>,
    /// Who accepts, where there is no room.
    waiting: Option<Waker>,
}

/// What is known of a connection.
#[derive(Debug)]
struct Link {
    number: u64,
    address: SocketAddr,
    logged_in: AtomicBool,
    closed: AtomicBool,
    reader: AtomicWaker,
}

impl Link {
    fn is_stranger(&self) -> bool {
        !self.logged_in.load(Ordering::Relaxed)
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.reader.wake();
    }
}

impl Connections {
    /// At most `limit`, of which `login_time` pass without a login at most.
    pub fn new(limit: usize, strangers_of_address: usize, login_time: Duration) -> Self {
        Self {
            limit,
            strangers_of_address,
            login_time,
            open: Mutex::default(),
        }
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.open.lock().links.len()
    }

    /// Waits until there is room for one more, or a stranger who gives way to it.
    fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        let mut open = self.open.lock();
        if open.links.len() < self.limit || open.links.values().any(|link| link.is_stranger()) {
            return Poll::Ready(());
        }
        open.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    fn add(&self, address: SocketAddr) -> Arc<Link> {
        let mut open = self.open.lock();
        let from = |link: &Link| link.address.ip() == address.ip();
        let strangers = open.links.values().filter(|link| link.is_stranger());
        if strangers.filter(|link| from(link)).count() >= self.strangers_of_address {
            open.close_oldest(from);
        }
        if open.links.len() >= self.limit {
            open.close_oldest(|_| true);
        }
        open.last += 1;
        let link = Arc::new(Link {
            number: open.last,
            address,
            logged_in: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reader: AtomicWaker::new(),
        });
        open.links.insert(link.number, Arc::clone(&link));
        link
    }

    fn remove(&self, link: &Link) {
        let mut open = self.open.lock();
        open.links.remove(&link.number);
        if let Some(waiting) = open.waiting.take() {
            waiting.wake();
        }
    }
}

impl Open {
    /// Closes the stranger who has been there for longest.
    fn close_oldest(&mut self, among: impl Fn(&Link) -> bool) {
        let strangers = self.links.values();
        let strangers = strangers.filter(|link| link.is_stranger() && among(link));
        let oldest = strangers.min_by_key(|link| link.number).map(Arc::clone);
        if let Some(oldest) = oldest {
            self.links.remove(&oldest.number);
            oldest.close();
        }
    }
}

/// Accepts connections while there is room for them; others wait in the system's queue.
pub(super) struct Incoming {
    listener: TcpListener,
    connections: Arc<Connections>,
    sessions: Option<Arc<Sessions>>,
}

impl Incoming {
    /// Connections of `listener`, as many at once as `connections` have room for. The session that
    /// belongs to one and to no token ends with it, where there are such.
    pub fn new(
        listener: TcpListener,
        connections: Arc<Connections>,
        sessions: Option<Arc<Sessions>>,
    ) -> Self {
        Self {
            listener,
            connections,
            sessions,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let connections = &self.connections;
        ready!(connections.poll_room(context));
        let (stream, address) = ready!(self.listener.poll_accept(context))?;
        // Small answers shall not wait for more to send.
        stream.set_nodelay(true)?;
        let login_time = tokio::time::sleep(connections.login_time);
        Poll::Ready(Some(Ok(Connection {
            stream: match self.sessions {
                Some(_) => GatherWrites::new(stream),
                None => GatherWrites::plain(stream),
            },
            link: connections.add(address),
            login_time: Some(Box::pin(login_time)),
            connections: Arc::clone(connections),
            sessions: self.sessions.clone(),
        })))
    }
}

/// How long the listener rests when it can't accept, for want of file descriptors most likely.
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The page's port: nobody logs in on a connection there, so each of them ends.
impl Listener for Incoming {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.next().await {
                Some(Ok(connection)) => {
                    let address = connection.link.address;
                    return (connection, address);
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "accepting a connection");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
                None => std::future::pending().await,
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client's connection. What belongs to it and not to a token ends with it.
pub(super) struct Connection {
    stream: GatherWrites<TcpStream>,
    link: Arc<Link>,
    /// When a stranger has to go.
    login_time: Option<Pin<Box<Sleep>>>,
    connections: Arc<Connections>,
    sessions: Option<Arc<Sessions>>,
}

impl Connection {
    /// Whether it has to end: whoever serves it reads or writes, and learns it here.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        self.link.reader.register(context.waker());
        if self.link.closed.load(Ordering::Acquire) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if !self.link.is_stranger() {
            self.login_time = None;
        }
        let time = self.login_time.as_mut();
        match time.is_some_and(|time| time.as_mut().poll(context).is_ready()) {
            true => Err(io::ErrorKind::TimedOut.into()),
            false => Ok(()),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.connections.remove(&self.link);
        if let Some(sessions) = &self.sessions {
            sessions.close(&peer_session(&self.link.address.to_string()));
        }
    }
}

/// The key of the session that belongs to the connection from an address.
pub(super) fn peer_session(address: &str) -> String {
    format!("peer {address}")
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer {
            address: Some(self.link.address),
            link: Some(Arc::clone(&self.link)),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
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
#[derive(Debug, Clone, Default)]
pub(super) struct Peer {
    address: Option<SocketAddr>,
    link: Option<Arc<Link>>,
}

impl Peer {
    /// As the transport noted it in a request.
    pub fn of(extensions: &Extensions) -> Self {
        let tls = extensions.get::<TlsConnectInfo<Self>>();
        let peer = tls.map(TlsConnectInfo::get_ref);
        let peer = peer.or_else(|| extensions.get::<Self>());
        peer.cloned().unwrap_or_default()
    }

    /// Who is at that address, on a connection of another port.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address: Some(address),
            link: None,
        }
    }

    /// The connection may stay.
    pub fn logged_in(&self) {
        if let Some(link) = &self.link {
            link.logged_in.store(true, Ordering::Relaxed);
        }
    }

    /// The address without the port.
    pub fn ip(&self) -> IpAddr {
        let address = self.address.map(|address| address.ip());
        address.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// Address and port, which tell connections apart.
    pub fn address(&self) -> String {
        self.address.map_or("unknown".into(), |a| a.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn log_in(link: &Link) {
        link.logged_in.store(true, Ordering::Relaxed);
    }

    #[test]
    fn strangers_give_way_and_those_who_logged_in_stay() {
        let connections = Connections::new(3, 2, Duration::from_secs(1));
        let context = Context::from_waker(Waker::noop());
        let known = connections.add(address("10.0.0.1:1"));
        log_in(&known);
        let strangers: Vec<_> = (2..6)
            .map(|port| connections.add(address(&format!("10.0.0.1:{port}"))))
            .collect();
        let closed = |link: &Arc<Link>| link.closed.load(Ordering::Relaxed);
        // The address has room for two.
        let gone: Vec<_> = strangers.iter().map(closed).collect();
        assert_eq!(gone, [true, true, false, false]);
        assert_eq!(connections.len(), 3);
        // All have room for three.
        assert!(connections.poll_room(&context).is_ready());
        let other = connections.add(address("10.0.0.2:1"));
        assert!(closed(&strangers[2]) && !closed(&known) && !closed(&other));

        for link in [&strangers[3], &other] {
            log_in(link);
        }
        assert!(connections.poll_room(&context).is_pending());
        connections.remove(&known);
        assert!(connections.poll_room(&context).is_ready());
    }
}
