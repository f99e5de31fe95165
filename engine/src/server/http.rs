//! The page of who runs the server, `/metrics` and `/healthz`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Extension;
use axum::Json;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{Path, Request, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures::future::BoxFuture;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::audit::Entry;
use super::identity::parse_basic;
use super::listen::{Connections, Incoming, Peer};
use super::metrics;
use super::state::State;
use crate::queries::{QueryReport, QueryState};

const PAGE: &str = include_str!("page.html");
/// Queries that the page shows.
const SHOWN: usize = 200;

/// Connections of the page's port; more close the oldest, of one address before those of all.
const CONNECTIONS: usize = 256;
const CONNECTIONS_OF_ADDRESS: usize = 128;
/// How long each of them may last: a slow request, or none, holds it no longer. Browsers open
/// another.
const CONNECTION_TIME: Duration = Duration::from_secs(30);

/// Where a request comes from.
#[derive(Debug, Clone)]
struct Caller(SocketAddr);

impl Connected<IncomingStream<'_, Incoming>> for Caller {
    fn connect_info(stream: IncomingStream<'_, Incoming>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// How the nodes of the server's rack are.
pub trait RackReport: Send + Sync {
    /// `{"nodes": […]}`, as `flashmesh rack status --format json` prints it. Takes as long as nodes that are
    /// away are waited for.
    fn report(&self) -> BoxFuture<'_, serde_json::Value>;
}

type AnyRack = Option<Arc<dyn RackReport>>;

/// Serves until `stop`.
pub(super) async fn serve(
    listener: TcpListener,
    state: Arc<State>,
    rack: AnyRack,
    stop: CancellationToken,
) {
    let guarded = axum::Router::new()
        .route("/", get(page))
        .route("/api/queries", get(queries))
        .route("/api/queries/{id}/plan", get(plan))
        .route("/api/queries/{id}/kill", post(kill))
        .route("/api/rack", get(nodes))
        .layer(Extension(rack))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            admins_only,
        ))
        .layer(middleware::from_fn_with_state(
            Arc::clone(&state),
            known_hosts_only,
        ));
    let router = axum::Router::new()
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(healthz))
        .merge(guarded)
        .with_state(state);
    let connections = Arc::new(Connections::new(
        CONNECTIONS,
        CONNECTIONS_OF_ADDRESS,
        CONNECTION_TIME,
    ));
    let incoming = Incoming::new(listener, connections, None);
    let router = router.into_make_service_with_connect_info::<Caller>();
    let served = axum::serve(incoming, router).with_graceful_shutdown(async move {
        stop.cancelled().await;
    });
    if let Err(error) = served.await {
        tracing::error!(%error, "the page's port");
    }
}

/// The page, which no other site may frame and which runs its own script alone.
async fn page() -> Response {
    static POLICY: LazyLock<String> = LazyLock::new(|| {
        let script = PAGE
            .split_once("<script>")
            .and_then(|(_, rest)| rest.split_once("</script>"));
        let digest = Sha256::digest(script.map_or("", |(script, _)| script));
        format!(
            "default-src 'none'; script-src 'sha256-{}'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
            BASE64.encode(digest)
        )
    });
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(PAGE)).into_response()
}

/// Another site can bind its own name to this server's address, and a browser then takes the
/// page for that site's. Where no password is asked for, only hosts are answered to whose names
/// nobody else can bind: addresses, and names without a dot.
async fn known_hosts_only(
    Shared(state): Shared<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let host = request.headers().get(header::HOST);
    let is_known = host.is_none_or(|host| host.to_str().is_ok_and(nobody_binds));
    if state.users().is_none() && !is_known {
        return (
            StatusCode::MISDIRECTED_REQUEST,
            "a server without users shows its page under its address or a name without a dot only; write that, or have users (CREATE USER, --users)",
        )
            .into_response();
    }
    next.run(request).await
}

/// Whether the host of a `Host` header is an address or a name of the local network.
fn nobody_binds(host: &str) -> bool {
    match host.strip_prefix('[') {
        Some(rest) => rest
            .split_once(']')
            .is_some_and(|(address, _)| address.parse::<Ipv6Addr>().is_ok()),
        None => {
            let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
            name.parse::<Ipv4Addr>().is_ok()
                || name.ends_with(".localhost")
                || (!name.is_empty() && !name.contains('.'))
        }
    }
}

/// The page shows everybody's statements, so where there are users it asks for an admin's
/// password.
async fn admins_only(
    Shared(state): Shared<Arc<State>>,
    ConnectInfo(Caller(address)): ConnectInfo<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if state.users().is_some() {
        let allowed = match login_of(request.headers()) {
            None => false,
            Some((name, password)) => state
                .check_password(&name, &password, &Peer::at(address))
                .await
                .is_ok_and(|user| user.principal.admin),
        };
        if !allowed {
            let ask = [(header::WWW_AUTHENTICATE, "Basic realm=\"flashmesh\"")];
            return (
                StatusCode::UNAUTHORIZED,
                ask,
                "an admin's name and password",
            )
                .into_response();
        }
    }
    // A page of another site shall not be able to send what a form sends.
    if request.method() == axum::http::Method::POST
        && request.headers().get("x-flashmesh").is_none()
    {
        return (StatusCode::FORBIDDEN, "the header x-flashmesh is missing").into_response();
    }
    next.run(request).await
}

/// Name and password that a request comes with.
fn login_of(headers: &HeaderMap) -> Option<(String, String)> {
    let header = headers.get(header::AUTHORIZATION)?;
    parse_basic(header.to_str().ok()?)
}

async fn metrics_text(Shared(state): Shared<Arc<State>>) -> Response {
    match metrics::text(&state) {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Whether the database answers.
async fn healthz(Shared(state): Shared<Arc<State>>) -> Response {
    let schemas = tokio::task::spawn_blocking(move || state.engine.database().schemas().len());
    match schemas.await {
        Ok(_) => "ok\n".into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, error.to_string()).into_response(),
    }
}

/// A query as the page gets it.
#[derive(Serialize)]
struct Row {
    id: u64,
    user: String,
    sql: String,
    state: &'static str,
    error: Option<String>,
    asked_at_ms: u64,
    took_ms: f64,
    rows: u64,
    bytes_from_flash: u64,
    bytes_to_host: u64,
    segments_done: u64,
    segments: u64,
}

impl From<QueryReport> for Row {
    fn from(query: QueryReport) -> Self {
        let asked = query.asked_at.duration_since(UNIX_EPOCH);
        Self {
            id: query.id,
            state: query.state.name(),
            error: match query.state {
                QueryState::Failed(error) => Some(error),
                _ => None,
            },
            user: query.user,
            sql: query.sql.to_string(),
            asked_at_ms: asked.map_or(0, |t| t.as_millis() as u64),
            took_ms: query.took.as_secs_f64() * 1e3,
            rows: query.rows,
            bytes_from_flash: query.plan.scans.bytes_from_flash,
            bytes_to_host: query.plan.bytes_to_host,
            segments_done: query.plan.scans.segments_done,
            segments: query.plan.scans.segments,
        }
    }
}

/// What the page shows.
#[derive(Serialize)]
struct Overview {
    version: &'static str,
    database: String,
    now_ms: u64,
    sessions: usize,
    connections: usize,
    queries: Vec<Row>,
}

/// Those of `flashmesh rack status`; `null` where the server is none of a rack.
async fn nodes(Extension(rack): Extension<AnyRack>) -> Json<serde_json::Value> {
    Json(match rack {
        Some(rack) => rack.report().await,
        None => serde_json::Value::Null,
    })
}

async fn queries(Shared(state): Shared<Arc<State>>) -> Json<Overview> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let queries = state.queries().list().take(SHOWN);
    Json(Overview {
        version: env!("CARGO_PKG_VERSION"),
        database: state.engine.database().path().display().to_string(),
        now_ms: now.map_or(0, |t| t.as_millis() as u64),
        sessions: state.sessions.len(),
        connections: state.connections.len(),
        queries: queries.map(Row::from).collect(),
    })
}

/// The operators of a query's plan, with what each has done so far.
async fn plan(Shared(state): Shared<Arc<State>>, Path(id): Path<u64>) -> Response {
    match state.queries().find(id) {
        Some(query) => Json(&*query.plan.operators).into_response(),
        None => (StatusCode::NOT_FOUND, format!("query {id} is forgotten")).into_response(),
    }
}

async fn kill(
    Shared(state): Shared<Arc<State>>,
    ConnectInfo(Caller(address)): ConnectInfo<Caller>,
    headers: HeaderMap,
    Path(id): Path<u64>,
) -> Response {
    let login = login_of(&headers);
    let name = login.map_or_else(|| "anonymous".to_string(), |(name, _)| name);
    let address = address.to_string();
    state.audit(|| Entry::kill(&name, &address, id));
    match state.queries().kill(id, None) {
        Ok(()) => "cancelled\n".into_response(),
        Err(error) => (StatusCode::NOT_FOUND, error.to_string()).into_response(),
    }
}
