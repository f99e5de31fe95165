//! How to serve: addresses, protection, limits.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::resources::FileStamp;

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
    /// The users file. Without one, and without users in the database, everybody who can connect is an
    /// admin.
    pub users: Option<PathBuf>,
    /// Everybody has to log in, and there is no server as long as nobody can.
    pub require_login: bool,
    /// The audit log; `None`: there is none.
    pub audit_log: Option<PathBuf>,
    /// The secret of tokens; without one, tokens end with the process.
    pub token_secret: Option<PathBuf>,
    /// How long a token is good for.
    pub token_lifetime: Duration,
    /// How long the ticket of a query that gives the same each time can be fetched again; zero: once.
    pub ticket_lifetime: Duration,
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

impl TlsFiles {
    /// What tells versions of the files apart.
    pub(super) fn stamps(&self) -> Vec<Option<FileStamp>> {
        let files = [
            Some(&self.certificate),
            Some(&self.key),
            self.client_ca.as_ref(),
        ];
        files.into_iter().map(|path| FileStamp::of(path?)).collect()
    }
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
            require_login: false,
            audit_log: None,
            token_secret: None,
            token_lifetime: Duration::from_secs(12 * 3600),
            ticket_lifetime: Duration::from_secs(30),
            session_idle: Duration::from_secs(30 * 60),
            drain_time: Duration::from_secs(60),
            limits: Limits::default(),
        }
    }
}

impl ServerOptions {
    /// Refuses what would serve other machines unprotected, as [`Server::bind`](super::Server::bind)
    /// does: for those who listen in its place.
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn check(&self) -> Result<()> {
        check_exposure(self, self.users.is_some() || self.require_login)
    }
}

/// Refuses to serve other machines without protection, unless it was asked for by name.
pub(super) fn check_exposure(options: &ServerOptions, has_users: bool) -> Result<()> {
    let exposed = |address: &SocketAddr| !address.ip().is_loopback();
    if exposed(&options.listen) && options.tls.is_none() && !options.allow_plaintext {
        return Err(Error::usage(format!(
            "{} can be reached by other machines: give --tls-cert and --tls-key, or --allow-plaintext if the network is trusted",
            options.listen
        )));
    }
    if exposed(&options.listen) && !has_users && !options.allow_anonymous {
        return Err(Error::usage(format!(
            "{} can be reached by other machines and everybody would be an admin: CREATE USER in the database, give --users, or --allow-anonymous if everybody who reaches it is trusted",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_machines_are_served_only_with_protection() {
        let everywhere: SocketAddr = ([0, 0, 0, 0], 1).into();
        ServerOptions::default().check().unwrap();
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
                let error = options.check().unwrap_err().to_string();
                assert!(error.contains("--allow-"), "{error}");
                allow(&mut options);
            }
            options.check().unwrap();
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
        protected.check().unwrap();
        protected.users = None;
        protected.require_login = true;
        protected.check().unwrap();
        protected.require_login = false;
        assert!(protected.check().is_err());
    }
}
