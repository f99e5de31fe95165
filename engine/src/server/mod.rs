//! The server: Flight SQL for clients, and a page, metrics and a health check for who runs it.
//!
//! A [`Server`] serves one [`Engine`]. A client's session follows its token (or its connection,
//! where the server knows no users) and holds options, views, prepared statements and statements
//! whose results were not fetched yet. What a user may do is decided by the session's
//! [`Principal`](crate::grants::Principal) and, once more, by the store (see `flashmesh_storage::capability`).

mod flight;
mod gather;
mod http;
mod identity;
mod listen;
mod logins;
mod metrics;
mod places;
mod sessions;
mod shares;
mod status;
pub mod telemetry;
mod tokens;
mod transactions;
mod users;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::transport::ServerTlsConfig;

use crate::Engine;
use crate::error::{Error, Result};
use crate::queries::Queries;
use flight::{Flight, FlightServer, FlightSql};
use listen::{Connections, Incoming};
use sessions::Sessions;
use shares::{Quota, Shares};
use users::{Users, UsersFile};

pub use tokens::{Claims, Tokens};
pub use users::{add_user, hash_password};

/// How to serve. [`ServerOptions::default`] serves everybody on this machine and nobody else.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Where Flight SQL listens.
    pub listen: SocketAddr,
    /// Where the page, `/metrics` and `/healthz` listen; `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// Certificate and key, in PEM, with which Flight SQL is served over TLS.
    pub tls: Option<TlsFiles>,
    /// Serve more than this machine without TLS: passwords and data can be read on the way.
    pub allow_plaintext: bool,
    /// Serve more than this machine without users: whoever reaches it may do everything.
    pub allow_anonymous: bool,
    /// Serve the page, which has no TLS, to more than this machine.
    pub allow_plaintext_page: bool,
    /// The users file; without one everybody who can connect is an admin.
    pub users: Option<PathBuf>,
    /// The secret of tokens; without one, tokens end with the process.
    pub token_secret: Option<PathBuf>,
    /// How long a token is good for.
    pub token_lifetime: Duration,
    /// A session ends when it has not been used for this long.
    pub session_idle: Duration,
    /// How long requests that run are waited for when the server is to stop.
    pub drain_time: Duration,
    /// What the server takes on at once.
    pub limits: Limits,
}

/// PEM files.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The server's certificate, with those that lead to a root after it.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates of those who sign clients' certificates: clients then must have one.
    pub client_ca: Option<PathBuf>,
}

/// What the server takes on at once. What is beyond waits or gets an error that says so.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections; those without a login give way to more, others keep more waiting.
    pub connections: usize,
    /// How long a connection may be open without a login.
    pub login_time: Duration,
    /// Sessions.
    pub sessions: usize,
    /// Sessions of a user; `None`: half of all. What is a user's holds where there are users.
    pub user_sessions: Option<usize>,
    /// Queries that run; more wait for [`Limits::queue_time`].
    pub queries: usize,
    /// Queries of a user that run; `None`: half of all.
    pub user_queries: Option<usize>,
    /// Bytes that the operators of a user's queries hold; `None`: half of the memory limit.
    pub user_memory_bytes: Option<u64>,
    /// Bytes that a user's queries spill; `None`: half of what all may.
    pub user_spill_bytes: Option<u64>,
    /// Bytes of a user's prepared statements and the parameters bound to them.
    pub user_prepared_bytes: usize,
    /// How long a query waits for its turn.
    pub queue_time: Duration,
    /// How long a query may take; `None`: as long as it likes.
    pub query_time: Option<Duration>,
    /// Bytes of a message from a client.
    pub message_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1_000,
            login_time: Duration::from_secs(10),
            sessions: 2_000,
            user_sessions: None,
            queries: 64,
            user_queries: None,
            user_memory_bytes: None,
            user_spill_bytes: None,
            user_prepared_bytes: 256 << 20,
            queue_time: Duration::from_secs(60),
            query_time: None,
            message_bytes: 64 << 20,
        }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: ([127, 0, 0, 1], 50051).into(),
            http: None,
            tls: None,
            allow_plaintext: false,
            allow_anonymous: false,
            allow_plaintext_page: false,
            users: None,
            token_secret: None,
            token_lifetime: Duration::from_secs(12 * 3600),
            session_idle: Duration::from_secs(30 * 60),
            drain_time: Duration::from_secs(60),
            limits: Limits::default(),
        }
    }
}

/// A server that listens. It serves while [`Server::run`] is polled.
pub struct Server {
    state: Arc<State>,
    flight: TcpListener,
    tls: Option<ServerTlsConfig>,
    http: Option<TcpListener>,
    drain_time: Duration,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// What all connections share.
#[derive(Debug)]
struct State {
    engine: Arc<Engine>,
    users: Option<Users>,
    tokens: Tokens,
    token_lifetime: Duration,
    sessions: Sessions,
    shares: Arc<Shares>,
    running: Arc<Semaphore>,
    planning: Arc<Semaphore>,
    connections: Arc<Connections>,
    limits: Limits,
    compute: Compute,
}

/// The threads that compute queries: apart from those that talk to clients, so that a query which
/// keeps its thread (a join that finds nothing for long) keeps nobody from being answered.
#[derive(Debug)]
struct Compute(Option<Runtime>);

/// The stack of each: as much as the main thread of a process has, since statements nest.
const STACK_BYTES: usize = 8 << 20;

impl Compute {
    fn new(threads: usize) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads.max(1))
            .thread_name("flashmesh-query")
            .thread_stack_size(STACK_BYTES)
            .enable_all()
            .build()
            .map_err(|e| Error::io("starting threads", e))?;
        Ok(Self(Some(runtime)))
    }

    fn handle(&self) -> &Handle {
        let runtime = self.0.as_ref();
        runtime.expect("there until it is dropped").handle()
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        // A runtime may not be dropped where others' tasks run, unless nobody waits for it.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl Server {
    /// Opens the ports.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that contradict each other or would serve other machines
    /// unprotected; [`Error::Io`] when a port is taken or a file can't be read.
    pub async fn bind(engine: Arc<Engine>, options: ServerOptions) -> Result<Self> {
        check_exposure(&options)?;
        let tls = options.tls.as_ref().map(read_tls).transpose()?;
        let users = options.users.as_deref().map(Users::open).transpose()?;
        let tokens = match &options.token_secret {
            Some(path) => Tokens::from_file(path)?,
            None => Tokens::random(),
        };
        let listen = |address: SocketAddr| async move {
            TcpListener::bind(address).await.map_err(|e| {
                Error::io(
                    format!("listening on {address} (is it taken? name another)"),
                    e,
                )
            })
        };
        let flight = listen(options.listen).await?;
        let http = match options.http {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let limits = options.limits;
        let tokens = match &options.users {
            Some(users) => tokens.for_users(users)?,
            None => tokens,
        };
        let (memory, memory_limit) = engine.memory();
        let spill = engine.spill();
        let spill_limit = spill.max_temp_directory_size();
        let quota = quota(&limits, users.is_some(), memory_limit, spill_limit);
        let shares = Arc::new(Shares::new(quota, Arc::clone(memory), Arc::clone(spill)));
        let state = State {
            sessions: Sessions::new(
                Arc::clone(&engine),
                options.session_idle,
                limits.sessions,
                Arc::clone(&shares),
            ),
            shares,
            compute: Compute::new(engine.threads())?,
            engine,
            users,
            tokens,
            token_lifetime: options.token_lifetime,
            running: Arc::new(Semaphore::new(limits.queries)),
            planning: Arc::new(Semaphore::new(places::PLANNING)),
            connections: Arc::new(Connections::new(
                limits.connections,
                limits.connections.div_ceil(2),
                limits.login_time,
            )),
            limits,
        };
        Ok(Self {
            state: Arc::new(state),
            flight,
            tls,
            http,
            drain_time: options.drain_time,
        })
    }

    /// Where Flight SQL listens: the port that was chosen where 0 was asked for.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn flight_address(&self) -> Result<SocketAddr> {
        let address = self.flight.local_addr();
        address.map_err(|e| Error::io("asking for the port", e))
    }

    /// Where the page listens.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn http_address(&self) -> Result<Option<SocketAddr>> {
        let address = self.http.as_ref().map(TcpListener::local_addr).transpose();
        address.map_err(|e| Error::io("asking for the port", e))
    }

    /// Serves until `shutdown` resolves; then no request is taken any more, and those that run
    /// are finished.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Usage`] for a certificate that TLS can't use.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let stop = tokio_util::sync::CancellationToken::new();
        let _stop = stop.clone().drop_guard();
        tokio::spawn({
            let stop = stop.clone();
            async move {
                shutdown.await;
                stop.cancel();
            }
        });
        tokio::spawn(expire_sessions(Arc::clone(&self.state), stop.clone()));
        tokio::spawn(revoke_rights(Arc::clone(&self.state), stop.clone()));
        if let Some(listener) = self.http {
            tokio::spawn(http::serve(listener, Arc::clone(&self.state), stop.clone()));
        }
        let flight = Flight(FlightSql::new(Arc::clone(&self.state)));
        let limit = self.state.limits.message_bytes;
        let service = FlightServer::new(flight, limit);
        let mut server = tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_concurrent_streams(CONCURRENT_STREAMS)
            // A client that went away without a word is found, and what it ran is freed.
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE));
        if let Some(tls) = self.tls {
            server = server.tls_config(tls).map_err(wrong_tls)?;
        }
        let sessions = Some(Arc::clone(&self.state));
        let connections = Arc::clone(&self.state.connections);
        let incoming = Incoming::new(self.flight, connections, sessions);
        let stopping = stop.clone();
        let drained = async move {
            stopping.cancelled().await;
            tokio::time::sleep(self.drain_time).await;
        };
        let stopped = async move { stop.cancelled().await };
        let served = server
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, stopped);
        tokio::select! {
            served = served => {
                served.map_err(|e| Error::io("serving", std::io::Error::other(e)))
            }
            () = drained => {
                tracing::warn!(
                    "requests that still ran after {} s are ended",
                    self.drain_time.as_secs()
                );
                Ok(())
            }
        }
    }
}

/// Bytes that a client may send before it is answered: a few messages of bulk ingest.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;
/// Requests that a connection has at once.
const CONCURRENT_STREAMS: u32 = 200;
const KEEPALIVE: Duration = Duration::from_secs(20);
/// How often sessions are looked over.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often it is looked whether the users file has changed, for the sake of what runs.
const REVOKE_INTERVAL: Duration = Duration::from_millis(500);

/// Refuses to serve other machines without protection, unless it was asked for by name.
fn check_exposure(options: &ServerOptions) -> Result<()> {
    let exposed = |address: &SocketAddr| !address.ip().is_loopback();
    if exposed(&options.listen) && options.tls.is_none() && !options.allow_plaintext {
        return Err(Error::usage(format!(
            "{} can be reached by other machines: give --tls-cert and --tls-key, or --allow-plaintext if the network is trusted",
            options.listen
        )));
    }
    if exposed(&options.listen) && options.users.is_none() && !options.allow_anonymous {
        return Err(Error::usage(format!(
            "{} can be reached by other machines and everybody would be an admin: give --users, or --allow-anonymous if everybody who reaches it is trusted",
            options.listen
        )));
    }
    if let Some(http) = options.http.filter(exposed)
        && !options.allow_plaintext_page
    {
        return Err(Error::usage(format!(
            "the page on {http} can be reached by other machines and has no TLS: listen on 127.0.0.1, or give --allow-plaintext-page if the network is trusted"
        )));
    }
    Ok(())
}

/// What a user may hold. Where nobody is told apart there is one user, who may have all.
fn quota(limits: &Limits, has_users: bool, memory_limit: usize, spill_limit: u64) -> Quota {
    let part = |given: Option<usize>, all: usize| match has_users {
        true => given.unwrap_or(all.div_ceil(2)),
        false => all,
    };
    let memory = limits.user_memory_bytes;
    let memory = memory.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    Quota {
        sessions: part(limits.user_sessions, limits.sessions),
        queries: part(limits.user_queries, limits.queries),
        planning: part(None, places::PLANNING),
        prepared_bytes: limits.user_prepared_bytes,
        memory_bytes: part(memory, memory_limit),
        spill_bytes: match has_users {
            true => limits.user_spill_bytes.unwrap_or(spill_limit.div_ceil(2)),
            false => spill_limit,
        },
        message_bytes: limits.message_bytes.saturating_mul(MESSAGES_OF_USER),
    }
}

/// Messages of the greatest size that are received from a user at once.
const MESSAGES_OF_USER: usize = 4;

fn read_tls(files: &TlsFiles) -> Result<ServerTlsConfig> {
    // Dependencies bring two providers of cryptography, between which rustls does not choose. It
    // fails where one was chosen before, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|e| Error::io(format!("reading {}", path.display()), e))
    };
    let identity =
        tonic::transport::Identity::from_pem(read(&files.certificate)?, read(&files.key)?);
    let config = ServerTlsConfig::new().identity(identity);
    let config = match &files.client_ca {
        Some(path) => config.client_ca_root(tonic::transport::Certificate::from_pem(read(path)?)),
        None => config,
    };
    // What can't be used is refused before anybody is told where the server listens.
    let checked = tonic::transport::Server::builder().tls_config(config.clone());
    checked.map_err(wrong_tls)?;
    Ok(config)
}

fn wrong_tls(error: tonic::transport::Error) -> Error {
    let source = std::error::Error::source(&error).map(ToString::to_string);
    Error::usage(format!(
        "the TLS certificate or key can't be used: {}",
        source.unwrap_or_else(|| error.to_string())
    ))
}

async fn expire_sessions(state: Arc<State>, stop: tokio_util::sync::CancellationToken) {
    let mut interval = tokio::time::interval(EXPIRY_INTERVAL);
    loop {
        tokio::select! {
            _ = interval.tick() => state.sessions.expire(),
            () = stop.cancelled() => return,
        }
    }
}

/// Ends what users run who may no longer do what they could.
async fn revoke_rights(state: Arc<State>, stop: tokio_util::sync::CancellationToken) {
    let Some(users) = &state.users else {
        return;
    };
    let mut interval = tokio::time::interval(REVOKE_INTERVAL);
    let mut known: Option<Arc<UsersFile>> = None;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return,
        }
        // A file that can't be read lets nobody in, which requests are told; what runs goes on.
        let Ok(file) = users.now() else {
            continue;
        };
        if !known
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, &file))
        {
            state.sessions.revoke(|name| {
                let user = file.find(name)?;
                Some((user.principal, user.fingerprint))
            });
            known = Some(file);
        }
    }
}

impl State {
    fn queries(&self) -> &Arc<Queries> {
        self.engine.queries()
    }

    fn is_read_only(&self) -> bool {
        self.engine.database().is_read_only()
    }

    /// Where queries are computed.
    fn compute(&self) -> &Handle {
        self.compute.handle()
    }

    fn deadline(&self) -> Option<Instant> {
        self.limits.query_time.map(|time| Instant::now() + time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_served_only_with_protection() {
        let everywhere: SocketAddr = ([0, 0, 0, 0], 1).into();
        check_exposure(&ServerOptions::default()).unwrap();
        let users = Some(PathBuf::from("users.toml"));
        let plain = |options: &mut ServerOptions| options.allow_plaintext = true;
        let anonymous = |options: &mut ServerOptions| options.allow_anonymous = true;
        let page = |options: &mut ServerOptions| options.allow_plaintext_page = true;
        // One option leaves out one protection.
        type Allow<'a> = &'a dyn Fn(&mut ServerOptions);
        let cases: [(_, _, _, &[Allow<'_>]); 3] = [
            (Some(everywhere), None, None, &[&plain, &anonymous]),
            (None, Some(everywhere), None, &[&page]),
            (Some(everywhere), None, users, &[&plain]),
        ];
        for (listen, http, users, needed) in cases {
            let mut options = ServerOptions {
                listen: listen.unwrap_or(ServerOptions::default().listen),
                http,
                users,
                ..ServerOptions::default()
            };
            for allow in needed {
                let error = check_exposure(&options).unwrap_err().to_string();
                assert!(error.contains("--allow-"), "{error}");
                allow(&mut options);
            }
            check_exposure(&options).unwrap();
        }
        let mut protected = ServerOptions {
            listen: everywhere,
            users: Some("users.toml".into()),
            tls: Some(TlsFiles {
                certificate: "c".into(),
                key: "k".into(),
                client_ca: None,
            }),
            ..ServerOptions::default()
        };
        check_exposure(&protected).unwrap();
        protected.users = None;
        assert!(check_exposure(&protected).is_err());
    }
}
