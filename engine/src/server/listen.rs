//! Connections of both ports: a bounded number of them, who is at their other end, and how long
//! they may be there without a login.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use axum::serve::Listener;
use futures::task::AtomicWaker;
use futures::{Stream, StreamExt as _};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tonic::Extensions;
use tonic::transport::CertificateDer;
use tonic::transport::server::{Connected, TlsConnectInfo};
use webpki::EndEntityCert;

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

/// Bytes to and from a client, whatever they travel over.
pub trait Bytes: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Bytes for T {}

/// A client's connection that another node of a rack has accepted and passes on.
pub struct Passed {
    /// What the client sends and gets.
    pub stream: Box<dyn Bytes>,
    /// The client's address, as that node sees it.
    pub client: SocketAddr,
    /// The name of that node.
    pub via: Arc<str>,
}

impl Passed {
    fn into_parts(self) -> (Box<dyn Bytes>, Origin) {
        let origin = Origin {
            address: self.client,
            via: Some(self.via),
        };
        (self.stream, origin)
    }
}

/// Where a connection comes from. As text it tells connections apart.
#[derive(Debug, Clone)]
struct Origin {
    address: SocketAddr,
    /// The node that has passed it on.
    via: Option<Arc<str>>,
}

impl From<SocketAddr> for Origin {
    fn from(address: SocketAddr) -> Self {
        Self { address, via: None }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.via {
            Some(node) => write!(f, "{} via {node}", self.address),
            None => self.address.fmt(f),
        }
    }
}

/// What is known of a connection.
#[derive(Debug)]
pub(super) struct Link {
    number: u64,
    origin: Origin,
    logged_in: AtomicBool,
    closed: AtomicBool,
    reader: AtomicWaker,
    /// Whether its client is to go on elsewhere, and what keeps it here.
    pub leave: Mutex<Leave>,
    /// The client is told to go on elsewhere, or has gone.
    told: CancellationToken,
    /// The names in the client's certificate, once they were asked for.
    certificate: OnceLock<Vec<String>>,
}

/// See [`super::leaving`].
#[derive(Debug, Default)]
pub(super) struct Leave {
    /// The client is to be told so, as soon as it can go.
    pub is_due: bool,
    pub is_told: bool,
    /// Requests that are not answered to their end.
    pub running: usize,
    /// The keys of the sessions of its requests.
    pub sessions: BTreeSet<String>,
    /// The change that its last request has made: its answer may be fetched. Those of earlier ones are
    /// not: many clients fetch nothing of what changes something.
    pub changed: Option<u64>,
}

impl Link {
    fn is_stranger(&self) -> bool {
        !self.logged_in.load(Ordering::Relaxed)
    }

    /// The node that has passed it on, if one has.
    pub fn via(&self) -> Option<&str> {
        self.origin.via.as_deref()
    }

    /// Has the client told to go on elsewhere.
    pub fn tell(&self) {
        self.told.cancel();
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

    /// Those that are open.
    pub fn links(&self) -> Vec<Arc<Link>> {
        self.open.lock().links.values().map(Arc::clone).collect()
    }

    /// Breaks all of them off.
    pub fn close(&self) {
        self.links().iter().for_each(|link| link.close());
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

    fn add(&self, origin: impl Into<Origin>) -> Arc<Link> {
        let origin = origin.into();
        let mut open = self.open.lock();
        let from = |link: &Link| link.origin.address.ip() == origin.address.ip();
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
            origin,
            logged_in: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            leave: Mutex::default(),
            told: CancellationToken::new(),
            certificate: OnceLock::new(),
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

/// Accepts connections while there is room for them; others wait in the system's queue, or in that
/// of connections that were passed on.
pub(super) struct Incoming {
    listener: TcpListener,
    passed: Option<mpsc::Receiver<Passed>>,
    /// Whose turn it is where both have one.
    passed_first: bool,
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
            passed: None,
            passed_first: false,
            connections,
            sessions,
        }
    }

    /// Those, and connections that others have accepted.
    pub fn with_passed(self, passed: Option<mpsc::Receiver<Passed>>) -> Self {
        Self { passed, ..self }
    }

    /// Accepts no more: the port is closed. Gives the connections that were passed on and wait.
    pub async fn close(self) -> Vec<Connection> {
        let Self {
            listener,
            passed,
            connections,
            sessions,
            ..
        } = self;
        drop(listener);
        let mut waiting = Vec::new();
        if let Some(mut passed) = passed {
            passed.close();
            // Until those have come whose nodes were told that they are taken.
            while let Some(passed) = passed.recv().await {
                let (stream, origin) = passed.into_parts();
                waiting.push(Connection::new(stream, origin, &connections, &sessions));
            }
        }
        waiting
    }

    fn poll_passed(&mut self, context: &mut Context<'_>) -> Poll<(Box<dyn Bytes>, Origin)> {
        let Some(passed) = &mut self.passed else {
            return Poll::Pending;
        };
        match ready!(passed.poll_recv(context)) {
            Some(passed) => Poll::Ready(passed.into_parts()),
            // There will be no more of them.
            None => {
                self.passed = None;
                Poll::Pending
            }
        }
    }

    fn poll_listener(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Box<dyn Bytes>, Origin)>> {
        let (stream, address) = ready!(self.listener.poll_accept(context))?;
        // Small answers shall not wait for more to send.
        stream.set_nodelay(true)?;
        Poll::Ready(Ok((Box::new(stream), address.into())))
    }

    /// The next one of either; they take turns where both have one.
    fn poll_either(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Box<dyn Bytes>, Origin)>> {
        self.passed_first = !self.passed_first;
        if self.passed_first
            && let Poll::Ready(passed) = self.poll_passed(context)
        {
            return Poll::Ready(Ok(passed));
        }
        match self.poll_listener(context) {
            Poll::Pending if !self.passed_first => self.poll_passed(context).map(Ok),
            accepted => accepted,
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        ready!(self.connections.poll_room(context));
        let (stream, origin) = ready!(self.poll_either(context))?;
        let (connections, sessions) = (&self.connections, &self.sessions);
        let connection = Connection::new(stream, origin, connections, sessions);
        Poll::Ready(Some(Ok(connection)))
    }
}

/// How long a listener rests when it can't accept, for want of file descriptors most likely.
pub(super) const ACCEPT_REST: Duration = Duration::from_millis(100);

/// The page's port: nobody logs in on a connection there, so each of them ends.
impl Listener for Incoming {
    type Io = Connection;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            match self.next().await {
                Some(Ok(connection)) => {
                    let address = connection.link.origin.address;
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
    stream: GatherWrites<Box<dyn Bytes>>,
    link: Arc<Link>,
    /// When a stranger has to go.
    login_time: Option<Pin<Box<Sleep>>>,
    connections: Arc<Connections>,
    sessions: Option<Arc<Sessions>>,
}

impl Connection {
    fn new(
        stream: Box<dyn Bytes>,
        origin: Origin,
        connections: &Arc<Connections>,
        sessions: &Option<Arc<Sessions>>,
    ) -> Self {
        let login_time = tokio::time::sleep(connections.login_time);
        Self {
            stream: match sessions {
                Some(_) => GatherWrites::new(stream),
                None => GatherWrites::plain(stream),
            },
            link: connections.add(origin),
            login_time: Some(Box::pin(login_time)),
            connections: Arc::clone(connections),
            sessions: sessions.clone(),
        }
    }

    /// When its client is to be told to go on elsewhere, or has gone.
    pub fn told(&self) -> CancellationToken {
        self.link.told.clone()
    }

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
        self.link.tell();
        self.connections.remove(&self.link);
        if let Some(sessions) = &self.sessions {
            sessions.close(&peer_session(&self.link.origin.to_string()));
        }
    }
}

/// The names of whom a certificate is: of hosts and of services, as "alternative names" of its subject.
fn names_in(certificate: &CertificateDer<'static>) -> Vec<String> {
    let Ok(certificate) = EndEntityCert::try_from(certificate) else {
        return Vec::new();
    };
    let names = certificate.valid_dns_names();
    let names = names.chain(certificate.valid_uri_names());
    names.map(String::from).collect()
}

/// The key of the session that belongs to the connection from there.
pub(super) fn peer_session(address: &str) -> String {
    format!("peer {address}")
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        Peer {
            origin: Some(self.link.origin.clone()),
            link: Some(Arc::clone(&self.link)),
            certificates: None,
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
    origin: Option<Origin>,
    link: Option<Arc<Link>>,
    /// What the client has shown of itself, which TLS has verified.
    certificates: Option<Arc<Vec<CertificateDer<'static>>>>,
}

impl Peer {
    /// As the transport noted it in a request.
    pub fn of(extensions: &Extensions) -> Self {
        match extensions.get::<TlsConnectInfo<Self>>() {
            Some(tls) => Self {
                certificates: tls.peer_certs(),
                ..tls.get_ref().clone()
            },
            None => extensions.get::<Self>().cloned().unwrap_or_default(),
        }
    }

    /// The names in the client's certificate; none where it has none.
    pub fn certificate_names(&self) -> &[String] {
        let (Some(link), Some(certificates)) = (&self.link, &self.certificates) else {
            return &[];
        };
        link.certificate
            .get_or_init(|| certificates.first().map_or_else(Vec::new, names_in))
    }

    /// Who is at that address, on a connection of another port.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            origin: Some(address.into()),
            ..Self::default()
        }
    }

    /// What is known of its connection.
    pub fn link(&self) -> Option<&Arc<Link>> {
        self.link.as_ref()
    }

    /// Whether it was said before that the connection may stay.
    pub fn is_known(&self) -> bool {
        self.link.as_ref().is_some_and(|link| !link.is_stranger())
    }

    /// The connection may stay.
    pub fn logged_in(&self) {
        if let Some(link) = &self.link {
            link.logged_in.store(true, Ordering::Relaxed);
        }
    }

    /// The address without the port: the client's own, also where a node has passed it on.
    pub fn ip(&self) -> IpAddr {
        let address = self.origin.as_ref().map(|origin| origin.address.ip());
        address.unwrap_or(Ipv4Addr::UNSPECIFIED.into())
    }

    /// Address and port, and the node that has passed it on, which tell connections apart.
    pub fn address(&self) -> String {
        let origin = self.origin.as_ref();
        origin.map_or("unknown".into(), ToString::to_string)
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
    /// Connections that nodes pass on are told apart, take their turn, and count for the limits.
    #[tokio::test]
    async fn connections_that_were_passed_on_are_connections() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap();
        let connections = Arc::new(Connections::new(3, 3, Duration::from_secs(60)));
        let (sender, passed) = mpsc::channel(4);
        let mut incoming =
            Incoming::new(listener, Arc::clone(&connections), None).with_passed(Some(passed));
        let mut far_ends = Vec::new();
        for node in ["n01", "n02"] {
            let (near, far) = tokio::io::duplex(64);
            far_ends.push(far);
            let passed = Passed {
                stream: Box::new(near),
                client: address("10.0.0.1:7"),
                via: node.into(),
            };
            assert!(sender.send(passed).await.is_ok());
        }
        let _direct = tokio::net::TcpStream::connect(here).await.unwrap();
        let mut accepted = Vec::new();
        for _ in 0..3 {
            accepted.push(incoming.next().await.unwrap().unwrap());
        }
        assert_eq!(connections.len(), 3);
        let peers: Vec<_> = accepted.iter().map(Connected::connect_info).collect();
        let mut names: Vec<_> = peers.iter().map(Peer::address).collect();
        names.retain(|name| name.contains("via"));
        assert_eq!(names, ["10.0.0.1:7 via n01", "10.0.0.1:7 via n02"]);
        assert!(
            peers
                .iter()
                .any(|peer| peer.ip() == address("10.0.0.1:7").ip())
        );
        let connection = accepted
            .iter_mut()
            .find(|one| one.link.origin.via.is_some());
        let connection = connection.unwrap();
        far_ends[0].write_all(b"hello").await.unwrap();
        let mut bytes = [0; 5];
        connection.read_exact(&mut bytes).await.unwrap();
        assert_eq!(&bytes, b"hello");
        // All have logged in, so that nobody gives way to a fourth.
        accepted.iter().for_each(|one| log_in(&one.link));
        let context = Context::from_waker(Waker::noop());
        assert!(connections.poll_room(&context).is_pending());
        // Where nobody passes connections on any more, the port goes on.
        drop((accepted, sender));
        let _direct = tokio::net::TcpStream::connect(here).await.unwrap();
        assert!(incoming.next().await.is_some());
    }
}
