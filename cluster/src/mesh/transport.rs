//! What links run over: Unix sockets, TCP, TCP with TLS, and memory within a process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::tls::Tls;
use crate::Address;

pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// Bytes in a link within a process.
const LOCAL_BYTES: usize = 256 * 1024;

/// Two directions of bytes.
pub(crate) struct Connection {
    pub reader: Reader,
    pub writer: Writer,
    /// The peer's, where it was checked against the authorities and not yet against a name.
    pub certificate: Option<CertificateDer<'static>>,
}

impl Connection {
    pub(crate) fn split(stream: impl AsyncRead + AsyncWrite + Send + 'static) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            certificate: None,
        }
    }

    fn unix(stream: UnixStream) -> Self {
        let (reader, writer) = stream.into_split();
        Self {
            reader: Box::new(reader),
            writer: Box::new(writer),
            certificate: None,
        }
    }

    async fn tcp(stream: TcpStream, tls: Option<&Tls>, name: Option<&str>) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        match (tls, name) {
            (None, _) => {
                let (reader, writer) = stream.into_split();
                Ok(Self {
                    reader: Box::new(reader),
                    writer: Box::new(writer),
                    certificate: None,
                })
            }
            (Some(tls), Some(name)) => Ok(Self::split(tls.connect(stream, name).await?)),
            (Some(tls), None) => {
                let (stream, certificate) = tls.accept(stream).await?;
                Ok(Self {
                    certificate: Some(certificate),
                    ..Self::split(stream)
                })
            }
        }
    }
}

/// How the links of a process are made; tests put wires in between that can be cut.
pub(crate) type Wire = Arc<dyn Fn() -> [Connection; 2] + Send + Sync>;

/// A link within a process that is never cut.
pub(crate) fn memory() -> [Connection; 2] {
    let (here, there) = tokio::io::duplex(LOCAL_BYTES);
    [Connection::split(here), Connection::split(there)]
}

/// Where connections to a node of this process go: to its present listener.
pub(crate) type Plug = Arc<Mutex<mpsc::Sender<Connection>>>;

/// How a neighbour is reached.
pub(crate) enum Dialer {
    Socket {
        address: Address,
        tls: Option<Arc<Tls>>,
        /// The neighbour's, which its certificate must be for.
        name: String,
    },
    Local {
        wire: Wire,
        listener: Plug,
    },
}

impl Dialer {
    pub async fn dial(&self) -> io::Result<Connection> {
        match self {
            Self::Socket {
                address: Address::Unix(path),
                ..
            } => UnixStream::connect(path).await.map(Connection::unix),
            Self::Socket {
                address: Address::Tcp { host, port },
                tls,
                name,
            } => {
                let host = host.trim_matches(['[', ']']);
                let stream = TcpStream::connect((host, *port)).await?;
                Connection::tcp(stream, tls.as_deref(), Some(name)).await
            }
            Self::Local { wire, listener } => {
                let [here, there] = wire();
                let listener = listener.lock().clone();
                let sent = listener.send(there).await;
                sent.map_err(|_| io::Error::from(io::ErrorKind::ConnectionRefused))?;
                Ok(here)
            }
        }
    }
}

/// Where neighbours come in.
pub(crate) enum Listener {
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "removes the file")] SocketFile,
    ),
    Tcp(TcpListener, Option<Arc<Tls>>),
    Local(mpsc::Receiver<Connection>),
}

/// A connection that came in, before what can take long.
pub(crate) enum Incoming {
    Ready(Connection),
    Tcp(TcpStream, Option<Arc<Tls>>),
}

impl Listener {
    /// Waits at `address`. A file that an earlier process has left is replaced.
    pub async fn bind(address: &Address, tls: Option<Arc<Tls>>) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => {
                let host = host.trim_matches(['[', ']']);
                Ok(Self::Tcp(TcpListener::bind((host, *port)).await?, tls))
            }
            Address::Unix(path) => {
                if is_left_over(path).await {
                    std::fs::remove_file(path)?;
                }
                let listener = UnixListener::bind(path)?;
                Ok(Self::Unix(listener, SocketFile(path.clone())))
            }
        }
    }

    /// The next neighbour; none when there will be no more.
    pub async fn accept(&mut self) -> io::Result<Option<Incoming>> {
        match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok(Some(Incoming::Ready(Connection::unix(stream))))
            }
            Self::Tcp(listener, tls) => {
                let (stream, _) = listener.accept().await?;
                Ok(Some(Incoming::Tcp(stream, tls.clone())))
            }
            Self::Local(incoming) => Ok(incoming.recv().await.map(Incoming::Ready)),
        }
    }
}

impl Incoming {
    pub async fn finish(self) -> io::Result<Connection> {
        match self {
            Self::Ready(connection) => Ok(connection),
            Self::Tcp(stream, tls) => Connection::tcp(stream, tls.as_deref(), None).await,
        }
    }
}

/// A Unix socket's file, whose process is gone.
async fn is_left_over(path: &Path) -> bool {
    match UnixStream::connect(path).await {
        Err(error) => error.kind() == io::ErrorKind::ConnectionRefused,
        Ok(_) => false,
    }
}

pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
