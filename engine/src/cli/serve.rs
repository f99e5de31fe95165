//! `flashmesh serve`.

use std::process::ExitCode;

use futures::FutureExt;

use crate::server::telemetry;
use crate::server::{Limits, Server, ServerOptions, TlsFiles};
use crate::{Engine, Error, Result};

use super::arguments::{EngineArguments, ServeArguments};
use super::signals::until_signal;

/// Serves until SIGTERM or SIGINT; a second signal ends the process at once.
pub(super) async fn run(database: &EngineArguments, serve: ServeArguments) -> Result<ExitCode> {
    let _telemetry = telemetry::start(&serve.log, serve.log_format.into(), serve.otlp.as_deref())?;
    let options = options(serve)?;
    let engine = Engine::open(database.options()?)?;
    if engine.is_temporary() {
        tracing::warn!(
            "a temporary database is served, which is gone at the end; name one with --db"
        );
    }
    let has_tls = options.tls.is_some();
    let server = Server::bind(engine, options).await?;
    let asks_for_logins = server.asks_for_logins();
    // From when it is said to listen, it ends as it should.
    let stop = until_signal()?.map(drop);
    // Scripts read these lines; everything else goes to standard error.
    let scheme = if has_tls { "grpc+tls" } else { "grpc" };
    println!("Flight SQL: {scheme}://{}", server.flight_address()?);
    if let Some(page) = server.http_address()? {
        println!("Page: http://{page}");
    }
    if !asks_for_logins {
        tracing::warn!("there are no users: everybody who can connect may do everything");
    }
    server.run(stop).await?;
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn options(serve: ServeArguments) -> Result<ServerOptions> {
    let http = match serve.http.as_str() {
        "none" => None,
        address => Some(address.parse().map_err(|_| {
            Error::usage(format!(
                "--http {address}: write an address and a port, e.g. 127.0.0.1:50052, or none"
            ))
        })?),
    };
    let tls = match (serve.tls_cert, serve.tls_key) {
        (Some(certificate), Some(key)) => Some(TlsFiles {
            certificate,
            key,
            client_ca: serve.tls_client_ca,
        }),
        _ => None,
    };
    Ok(ServerOptions {
        listen: serve.listen,
        http,
        tls,
        allow_plaintext: serve.allow_plaintext,
        allow_anonymous: serve.allow_anonymous,
        allow_plaintext_page: serve.allow_plaintext_page,
        users: serve.users,
        require_login: serve.require_login,
        audit_log: serve.audit_log,
        token_secret: serve.token_secret,
        token_lifetime: serve.token_lifetime,
        ticket_lifetime: serve.ticket_lifetime,
        session_idle: serve.session_idle,
        drain_time: serve.drain_time,
        limits: Limits {
            connections: serve.max_connections,
            login_time: serve.login_time,
            sessions: serve.max_sessions,
            user_sessions: serve.max_user_sessions,
            queries: serve.max_queries,
            user_queries: serve.max_user_queries,
            user_memory_bytes: serve.max_user_memory,
            user_spill_bytes: serve.max_user_spill,
            user_prepared_bytes: usize::try_from(serve.max_user_prepared).unwrap_or(usize::MAX),
            queue_time: serve.queue_time,
            query_time: serve.query_time_limit,
            message_bytes: usize::try_from(serve.max_message).unwrap_or(usize::MAX),
        },
    })
}
