//! The server: Flight SQL for clients, and a page, metrics and a health check for who runs it.
//!
//! A [`Server`] serves one [`Engine`]. A client's session follows its token (or its connection,
//! where the server knows no users) and holds options, views, prepared statements and statements
//! whose results were not fetched yet. What a user may do is decided by the session's
//! [`Principal`](crate::grants::Principal) and, once more, by the store (see `flashmesh_storage::capability`).

mod audit;
mod cookies;
mod flight;
mod gather;
mod http;
mod identity;
mod leaving;
mod listen;
mod logins;
mod metrics;
mod options;
mod places;
mod sessions;
mod shares;
mod state;
mod status;
pub mod telemetry;
mod tokens;
mod transactions;
mod users;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt, stream};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::ServerTlsConfig;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use crate::Engine;
use crate::accounts::AccountList;
use crate::error::{Error, Result};
use crate::resources::FileStamp;
use audit::{Audit, Entry};
use flight::{Flight, FlightServer, FlightSql, with_reflection};
use listen::{ACCEPT_REST, Connection, Connections, Incoming};
use options::check_exposure;
use sessions::Sessions;
use shares::{Quota, Shares};
use state::{Compute, State};
use users::{User, Users};

pub use http::RackReport;
pub use leaving::Departures;
pub use listen::{Bytes, Passed};
pub use options::{Limits, ServerOptions, TlsFiles};
pub use tokens::{Claims, Tokens};
pub use users::{add_user, list_users, remove_user, set_password};

/// A server that listens. It serves while [`Server::run`] is polled.
pub struct Server {
    state: Arc<State>,
    flight: TcpListener,
    passed: Option<mpsc::Receiver<Passed>>,
    rack: Option<Arc<dyn RackReport>>,
    tls: Option<Renewed>,
    http: Option<Page>,
    drain_time: Duration,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// Whether the certificate, the audit log and the secret of tokens that options name can be used, for who may
    /// need them later.
    ///
    /// # Errors
    /// As those of [`Server::bind`].
    pub fn check_files(options: &ServerOptions) -> Result<()> {
        options.tls.clone().map(Renewed::read).transpose()?;
        options.audit_log.as_deref().map(Audit::open).transpose()?;
        let secret = options.token_secret.as_deref();
        secret.map(Tokens::from_file).transpose()?;
        Ok(())
    }

    /// Opens the ports.
    ///
    /// # Errors
    /// [`Error::Usage`] for options that contradict each other or would serve other machines
    /// unprotected; [`Error::Io`] when a port is taken or a file can't be read.
    pub async fn bind(engine: Arc<Engine>, options: ServerOptions) -> Result<Self> {
        let database = engine.database();
        let users = Users::open(&options, database)?;
        let has_users = users.are_asked();
        check_exposure(&options, has_users)?;
        let tls = options.tls.clone().map(Renewed::read).transpose()?;
        let audit = options.audit_log.as_deref().map(Audit::open).transpose()?;
        let audit = audit.map(Arc::new);
        if let Some(audit) = audit.clone() {
            let queries = engine.queries();
            queries.observe(move |query| audit.write(&Entry::statement(query)));
        }
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
            Some(address) => Some(Page::At(listen(address).await?)),
            None => None,
        };
        let limits = options.limits;
        let tokens = match (&options.users, &options.token_secret) {
            (Some(users), _) => tokens.for_users(users)?,
            // Other servers may have the same secret.
            (None, Some(_)) => tokens.for_database(&engine.database().id()?),
            (None, None) => tokens,
        };
        let (memory, memory_limit) = engine.memory();
        let spill = engine.spill();
        let spill_limit = spill.max_temp_directory_size();
        let quota = quota(&limits, has_users, memory_limit, spill_limit);
        let shares = Arc::new(Shares::new(quota, Arc::clone(memory), Arc::clone(spill)));
        let state = State {
            sessions: Arc::new(Sessions::new(
                Arc::clone(&engine),
                options.session_idle,
                limits.sessions,
                Arc::clone(&shares),
            )),
            shares,
            compute: Compute::new(engine.threads())?,
            engine,
            all_users: users,
            tokens,
            token_lifetime: options.token_lifetime,
            ticket_lifetime: options.ticket_lifetime,
            running: Arc::new(Semaphore::new(limits.queries)),
            planning: Arc::new(Semaphore::new(places::PLANNING)),
            connections: Arc::new(Connections::new(
                limits.connections,
                limits.connections.div_ceil(2),
                limits.login_time,
            )),
            limits,
            audit,
        };
        Ok(Self {
            state: Arc::new(state),
            flight,
            passed: None,
            rack: None,
            tls,
            http,
            drain_time: options.drain_time,
        })
    }

    /// Serves connections, too, that other nodes of a rack have accepted. They count for the limits
    /// as those of the server's own port do.
    #[must_use]
    pub fn with_passed(self, passed: mpsc::Receiver<Passed>) -> Self {
        let passed = Some(passed);
        Self { passed, ..self }
    }

    /// Has the page listen there; where another process does, as soon as that has ended.
    ///
    /// # Errors
    /// Whatever else is the matter with the address.
    pub async fn with_page(self, address: SocketAddr) -> Result<Self> {
        let page = match TcpListener::bind(address).await {
            Ok(listener) => Page::At(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                tracing::warn!("the page waits: another process listens on {address}");
                Page::Waits(address)
            }
            Err(error) => return Err(Error::io(format!("listening on {address}"), error)),
        };
        let http = Some(page);
        Ok(Self { http, ..self })
    }

    /// Has clients go on elsewhere that come through a node which ends.
    pub fn departures(&self) -> Departures {
        Departures(Arc::downgrade(&self.state))
    }

    /// Has the page show a rack.
    #[must_use]
    pub fn of_rack(self, rack: Arc<dyn RackReport>) -> Self {
        let rack = Some(rack);
        Self { rack, ..self }
    }

    /// Whether it asks everybody for a login.
    pub fn asks_for_logins(&self) -> bool {
        self.state.users().is_some()
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
        let address = self.http.as_ref().map(|page| match page {
            Page::At(listener) => listener.local_addr(),
            Page::Waits(address) => Ok(*address),
        });
        address
            .transpose()
            .map_err(|e| Error::io("asking for the port", e))
    }

    /// Serves until `shutdown` resolves; then the ports are closed, and clients are told to go on
    /// elsewhere: each when what it has begun is at its end (transactions, results to be fetched). What
    /// lasts for longer than the drain time is broken off.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Usage`] for a certificate that TLS can't use.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        let stop = CancellationToken::new();
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
        if let Some(page) = self.http {
            let (state, rack, stop) = (Arc::clone(&self.state), self.rack, stop.clone());
            tokio::spawn(async move {
                let listener = tokio::select! {
                    () = stop.cancelled() => return,
                    listener = page.listener() => listener,
                };
                http::serve(listener, state, rack, stop).await;
            });
        }
        let flight = Flight(FlightSql::new(Arc::clone(&self.state)));
        let limit = self.state.limits.message_bytes;
        let service = FlightServer::new(flight, limit);
        let (reporter, health) = health().await;
        let tls = self.tls.as_ref().map(|tls| tls.config.clone());
        let (server, mut renewed) = watch::channel(builder(tls)?);
        if let Some(tls) = self.tls {
            tokio::spawn(tls.renew(server, stop.clone()));
        }
        let services = with_reflection(Routes::new(service).add_service(health));
        let services = services.map_err(|error| Error::usage(error.to_string()))?;
        let sessions = Some(Arc::clone(&self.state.sessions));
        let connections = Arc::clone(&self.state.connections);
        let incoming = Incoming::new(self.flight, Arc::clone(&connections), sessions);
        let mut incoming = incoming.with_passed(self.passed);
        let mut serving = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = serving.join_next() => continue,
                accepted = incoming.next() => accepted,
            };
            match accepted {
                Some(Ok(connection)) => {
                    let server = renewed.borrow_and_update().clone();
                    drop(serving.spawn(serve(server, services.clone(), connection)));
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "accepting a connection");
                    tokio::time::sleep(ACCEPT_REST).await;
                }
                None => break,
            }
        }
        // Who watches is told so, and no more: that would keep the connection.
        for service in ["", <FlightServer as NamedService>::NAME] {
            reporter
                .set_service_status(service, ServingStatus::NotServing)
                .await;
            reporter.clone().clear_service_status(service).await;
        }
        // Those that were accepted by other nodes are not lost with the port.
        for connection in incoming.close().await {
            let server = renewed.borrow().clone();
            serving.spawn(serve(server, services.clone(), connection));
        }
        tokio::select! {
            () = async { while serving.join_next().await.is_some() {} } => {}
            () = self.state.leave_all() => {}
            () = tokio::time::sleep(self.drain_time) => {
                let seconds = self.drain_time.as_secs();
                tracing::warn!("what clients still do after {seconds} s is broken off");
                connections.close();
            }
        }
        if let Some(audit) = self.state.audit.clone() {
            // Its last lines are of what has just ended.
            let _ = tokio::task::spawn_blocking(move || audit.flush(AUDIT_TIME)).await;
        }
        Ok(())
    }
}

/// Where the page listens.
enum Page {
    At(TcpListener),
    /// Another process has the port.
    Waits(SocketAddr),
}

impl Page {
    /// Waits for the port.
    async fn listener(self) -> TcpListener {
        let address = match self {
            Self::At(listener) => return listener,
            Self::Waits(address) => address,
        };
        loop {
            tokio::time::sleep(PAGE_REST).await;
            if let Ok(listener) = TcpListener::bind(address).await {
                tracing::info!("the page listens on {address}");
                return listener;
            }
        }
    }
}

/// gRPC's own way to ask whether there is a server, as balancers and Kubernetes do, without a login.
async fn health() -> (HealthReporter, HealthServer<HealthService>) {
    let reporter = HealthReporter::new();
    reporter.set_serving::<FlightServer>().await;
    let service = HealthService::from_health_reporter(reporter.clone());
    (reporter, HealthServer::new(service))
}

/// What serves connections, which each have one of their own.
fn builder(tls: Option<ServerTlsConfig>) -> Result<tonic::transport::Server> {
    let server = tonic::transport::Server::builder()
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(CONCURRENT_STREAMS)
        // A client that went away without a word is found, and what it ran is freed.
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE));
    match tls {
        Some(tls) => server.tls_config(tls).map_err(wrong_tls),
        None => Ok(server),
    }
}

/// A certificate that may be replaced while the server runs.
struct Renewed {
    files: TlsFiles,
    /// Of which versions of the files it is.
    stamps: Vec<Option<FileStamp>>,
    config: ServerTlsConfig,
}

impl Renewed {
    fn read(files: TlsFiles) -> Result<Self> {
        // What is read is no older than that.
        let stamps = files.stamps();
        let config = read_tls(&files)?;
        Ok(Self {
            files,
            stamps,
            config,
        })
    }

    /// Has new connections take the certificate that the files hold by then: it has an end, and is renewed.
    async fn renew(
        mut self,
        server: watch::Sender<tonic::transport::Server>,
        stop: CancellationToken,
    ) {
        let mut interval = tokio::time::interval(TLS_INTERVAL);
        loop {
            tokio::select! {
                _ = interval.tick() => {}
                () = stop.cancelled() => return,
            }
            let now = self.files.stamps();
            if now == self.stamps {
                continue;
            }
            self.stamps = now;
            match read_tls(&self.files).and_then(|tls| builder(Some(tls))) {
                Ok(renewed) => {
                    server.send_replace(renewed);
                    tracing::info!("the TLS certificate was read anew");
                }
                // Certificate and key may be replaced one after the other.
                Err(error) => {
                    tracing::warn!(%error, "the TLS certificate was changed; the one of before goes on");
                }
            }
        }
    }
}

/// Serves one connection until it ends.
async fn serve(mut server: tonic::transport::Server, services: Routes, connection: Connection) {
    let told = connection.told();
    // tonic tells all connections of a server to go at once: each has a server of its own, whose
    // stream of connections has this one and does not end.
    let alone = stream::once(std::future::ready(io::Result::Ok(connection)));
    let served = server
        .add_routes(services)
        .serve_with_incoming_shutdown(alone.chain(stream::pending()), told.cancelled_owned());
    if let Err(error) = served.await {
        tracing::warn!(%error, "serving a connection");
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
/// How often the page's port is tried while another process has it.
const PAGE_REST: Duration = Duration::from_secs(1);
/// How long an ending server waits for its audit log.
const AUDIT_TIME: Duration = Duration::from_secs(5);
/// How often it is looked whether the certificate was replaced.
const TLS_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is looked whether users have changed, for the sake of what runs.
const REVOKE_INTERVAL: Duration = Duration::from_millis(500);

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

async fn expire_sessions(state: Arc<State>, stop: CancellationToken) {
    let mut interval = tokio::time::interval(EXPIRY_INTERVAL);
    loop {
        tokio::select! {
            _ = interval.tick() => state.sessions.expire(),
            () = stop.cancelled() => return,
        }
    }
}

/// Ends what users run who may no longer do what they could.
async fn revoke_rights(state: Arc<State>, stop: CancellationToken) {
    let mut interval = tokio::time::interval(REVOKE_INTERVAL);
    let mut known: Option<Arc<AccountList>> = None;
    loop {
        tokio::select! {
            _ = interval.tick() => {}
            () = stop.cancelled() => return,
        }
        let Some(users) = state.users() else {
            continue;
        };
        // A file that can't be read lets nobody in, which requests are told; what runs goes on.
        let Ok(list) = users.now() else {
            continue;
        };
        if !known
            .as_ref()
            .is_some_and(|known| Arc::ptr_eq(known, &list))
        {
            state.sessions.revoke(|name, credential| {
                let user = User::with(&list, name, credential);
                user.ok().map(|user| user.principal)
            });
            known = Some(list);
        }
    }
}
