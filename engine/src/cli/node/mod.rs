//! `flashmesh node`: one node of a rack. The head keeps the catalog and answers SQL; the others
//! serve their cards to it, and pass clients on to it. Where a group keeps the catalog, any of its nodes
//! may become the head.

mod anew;
mod draining;
mod follower;
mod group;
mod head;
mod lock;
mod pass;
mod status;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};

use clap::Args;
use flashmesh_cluster::cards::TermFile;
use flashmesh_cluster::catalog::watch_head;
use flashmesh_cluster::mesh::{Mesh, MeshError, StartError, Streams};
use flashmesh_cluster::{COMMITS, Card, Node, Rack, RackError, STREAMS};
use flashmesh_storage::flash::{FileFlash, FileFlashOptions};
use flashmesh_storage::store::StoreCard;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::signal::unix::SignalKind;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::arguments::{EngineArguments, LogStyle, parse_time};
use super::signals::until_signal;
use crate::server::{ServerOptions, TlsFiles, telemetry};
use crate::{Error, Result};
use lock::NodeLock;
use status::{Reporter, StatusSocket};

pub(super) use anew::own_program;
pub(super) use lock::holder;
pub(super) use status::{NodeState, NodeStatus, SOCKET, ask, tell_of_head};

/// Threads of the mesh of a node.
const MESH_THREADS: usize = 2;
/// Which copies of cards lack something, in the folder of a head that keeps the catalog alone.
const COPIES_FILE: &str = "copies-behind";
/// How long an ending node waits until its neighbours have what it sent.
const DRAIN_MESH: Duration = Duration::from_secs(2);
/// How long it waits until they have heard that it ends.
const END_MESH: Duration = Duration::from_millis(500);

/// Options of `flashmesh node`.
#[derive(Debug, Args)]
pub(super) struct NodeArguments {
    /// The rack file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Which of its nodes
    #[arg(long, value_name = "NODE")]
    name: String,
    /// How long a stopping node waits for requests that run, and clients that are there
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    drain_time: Duration,
    /// What is logged, e.g. warn or info,flashmesh=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    log: String,
    /// How it is logged
    #[arg(long, value_enum, default_value_t = LogStyle::Text)]
    log_format: LogStyle,
}

pub(super) fn of_rack(error: RackError) -> Error {
    Error::usage(error.to_string())
}

fn of_mesh(error: MeshError) -> Error {
    Error::usage(format!("the mesh: {error}"))
}

/// A node that has started.
struct Running {
    file: PathBuf,
    rack: Arc<Rack>,
    node: Node,
    lock: Arc<NodeLock>,
    mesh: Arc<Mesh>,
    streams: Streams,
    reporter: Arc<Reporter>,
    drain_time: Duration,
    /// Cancelled by a signal, from when the node is up or a head opens its database.
    stopping: OnceLock<CancellationToken>,
    /// Whether that signal leaves the others to go on.
    others_go_on: Arc<AtomicBool>,
    says_address: Once,
    started: Instant,
}

/// Runs a node until SIGTERM, or SIGINT, by which a head hands nothing over: a terminal's Ctrl-C is for all
/// of its nodes. A second signal ends the process at once.
pub(super) async fn run(database: &EngineArguments, arguments: NodeArguments) -> Result<ExitCode> {
    database.without_database()?;
    let rack = Arc::new(Rack::load(&arguments.file).map_err(of_rack)?);
    let node = rack.node(&arguments.name).cloned().ok_or_else(|| {
        let names: Vec<_> = rack.nodes.iter().map(|node| node.name.as_str()).collect();
        let (name, file) = (&arguments.name, arguments.file.display());
        Error::usage(format!(
            "{file} has no node '{name}', but {}",
            names.join(", ")
        ))
    })?;
    let _telemetry = telemetry::start(&arguments.log, arguments.log_format.into(), None)?;
    let lock = Arc::new(NodeLock::take(&node.name, &node.folder)?);
    rack.key().map_err(of_rack)?;
    let reporter = Arc::new(Reporter::new(&rack, &node));
    let socket = StatusSocket::open(&reporter, &node.folder)?;
    let mesh_runtime = MeshRuntime::start()?;
    let (of_node, number) = (Arc::clone(&rack), node.number());
    let runtime = mesh_runtime
        .0
        .as_ref()
        .expect("it is there until it is dropped");
    let mesh = runtime.spawn(async move { Mesh::start(&of_node, number).await });
    let mesh = mesh
        .await
        .map_err(|error| Error::io("starting the mesh", std::io::Error::other(error)))?;
    let mesh = mesh.map_err(|error| match error {
        StartError::Rack(error) => of_rack(error),
        error => Error::usage(error.to_string()),
    })?;
    let mesh = Arc::new(mesh);
    let streams = mesh.streams(STREAMS).map_err(of_mesh)?;
    reporter.set_mesh(&mesh, streams.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(reporter.answer_nodes(&streams)?);
    let running = Running {
        file: arguments.file,
        rack,
        node,
        lock: Arc::clone(&lock),
        mesh,
        streams,
        reporter,
        drain_time: arguments.drain_time,
        stopping: OnceLock::new(),
        others_go_on: Arc::default(),
        says_address: Once::new(),
        started: Instant::now(),
    };
    running.serve(database).await?;
    // Others ask no more, and what they were sent arrives.
    let _ = timeout(DRAIN_MESH, running.mesh.drain()).await;
    let _ = timeout(END_MESH, running.mesh.end()).await;
    tasks.shutdown().await;
    if let Some(mesh) = Arc::into_inner(running.mesh) {
        mesh.close().await;
    }
    drop(mesh_runtime);
    drop(socket);
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

impl Running {
    fn is_first(&self) -> bool {
        self.rack.head().id == self.node.id
    }

    /// Does the node's work until it is told to end.
    async fn serve(&self, database: &EngineArguments) -> Result<()> {
        let keepers = self.rack.keepers();
        if keepers.contains(&self.node.number()) {
            return self.serve_in_group(database, keepers).await;
        }
        let of_group = self.node.folder.join(group::FOLDER);
        if of_group.exists() {
            // Whoever began without it would take the pages of all cards for free.
            return Err(Error::usage(format!(
                "{} is this node's part of a catalog that several nodes keep, and by the rack file it is \
                 none of them: restore that file (replicas, head, and three nodes or more); where others \
                 have the whole catalog, remove the folder",
                of_group.display()
            )));
        }
        if keepers.is_empty() && self.is_first() {
            return self.serve_clients(database, None).await;
        }
        // Whoever tells what changes is there as long as this.
        let (_told, first) = watch::channel(Some(self.rack.head().number()));
        let head = match keepers.is_empty() {
            true => first,
            false => watch_head(self.commit_streams(), keepers),
        };
        let never = std::future::pending::<()>();
        let served = self.serve_head(database, head, never, || ()).await;
        served.map(drop)
    }

    /// On which nodes agree on commits, beside what clients and commands send; a rack file of earlier
    /// times may lack them.
    fn commit_streams(&self) -> Streams {
        let streams = self.mesh.streams(COMMITS);
        streams.unwrap_or_else(|_| self.streams.clone())
    }

    /// What the head is told of its clients, and other nodes' addresses are held to as well.
    fn server_options(&self, is_head: bool) -> Result<ServerOptions> {
        let clients = &self.rack.clients;
        let listen = self.node.flight.ok_or_else(|| {
            let name = &self.node.name;
            Error::usage(format!(
                "node '{name}' has no address for clients; write e.g. flight = \"127.0.0.1:50051\" in \
                 its [[node]]"
            ))
        })?;
        let options = ServerOptions {
            listen,
            http: clients.http.filter(|_| is_head),
            tls: clients.tls.as_ref().map(|tls| TlsFiles {
                certificate: tls.certificate.clone(),
                key: tls.key.clone(),
                client_ca: None,
            }),
            users: clients.users.clone(),
            require_login: clients.require_login,
            audit_log: clients.audit_log.clone(),
            token_secret: clients.token_secret.clone(),
            allow_plaintext: clients.allow_plaintext,
            allow_anonymous: clients.allow_anonymous,
            drain_time: self.drain_time,
            ..ServerOptions::default()
        };
        options.check().map_err(|error| {
            Error::usage(format!(
                "{error} (of a rack, its file says that in [clients]: tls, users, require_login, \
                 allow_plaintext, allow_anonymous)"
            ))
        })?;
        Ok(options)
    }

    /// From now on a signal cancels this, and the node ends as it should.
    fn stop_by_signal(&self) -> Result<CancellationToken> {
        if let Some(stopping) = self.stopping.get() {
            return Ok(stopping.clone());
        }
        let (stop, signal) = (CancellationToken::new(), until_signal()?);
        let (reporter, stopping) = (Arc::clone(&self.reporter), stop.clone());
        let others_go_on = Arc::clone(&self.others_go_on);
        tokio::spawn(async move {
            let is_terminate = signal.await == SignalKind::terminate();
            others_go_on.store(is_terminate, Ordering::Relaxed);
            reporter.set(NodeState::Stopping);
            stopping.cancel();
        });
        Ok(self.stopping.get_or_init(|| stop).clone())
    }

    /// The node is up, until that is cancelled.
    fn is_up(&self) -> Result<CancellationToken> {
        let stopping = self.stop_by_signal()?;
        if let Some(flight) = self.node.flight {
            // Scripts read this line; everything else goes to standard error.
            let say = || println!("Flight SQL: {}", address(&self.rack, flight));
            self.says_address.call_once(say);
        }
        if !stopping.is_cancelled() {
            self.reporter.set(NodeState::Up);
        }
        Ok(stopping)
    }

    fn is_stopping(&self) -> bool {
        let stopping = self.stopping.get();
        stopping.is_some_and(CancellationToken::is_cancelled)
    }

    /// Cards of this node.
    fn open_cards(&self, cards: &[Card]) -> Result<Vec<StoreCard>> {
        let open = |card: &Card| {
            Ok(StoreCard {
                node: self.node.number(),
                card: card.number(),
                flash: Arc::new(open_card(&self.node, &card.path)?),
            })
        };
        cards.iter().map(open).collect()
    }

    /// The copies of other nodes' cards that this node has, each a file in its folder.
    fn open_copies(&self) -> Result<Vec<StoreCard>> {
        let own = self.node.number();
        let held = self
            .rack
            .nodes
            .iter()
            .filter(|of| of.number() != own && self.rack.holders(of.number()).contains(&own));
        let mut copies = Vec::new();
        for of in held {
            for card in &of.cards {
                let name = format!("{}-card{}.flash", of.name, card.id);
                let path = self.node.folder.join("copies").join(name);
                copies.push(StoreCard {
                    node: of.number(),
                    card: card.number(),
                    flash: Arc::new(open_card(&self.node, &path)?),
                });
            }
        }
        Ok(copies)
    }

    /// Where the node keeps who may write to it; the head, its own term.
    fn terms(&self) -> TermFile {
        TermFile::new(self.node.folder.join("term"))
    }
}

/// Takes an address for clients.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|e| {
        Error::io(
            format!("listening on {address} (is it taken? name another)"),
            e,
        )
    })
}

/// What moves packets has threads of its own: others wait for them.
struct MeshRuntime(Option<Runtime>);

impl MeshRuntime {
    fn start() -> Result<Self> {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(MESH_THREADS).thread_name("mesh");
        let runtime = runtime.enable_all().build();
        let runtime =
            runtime.map_err(|error| Error::io("starting the threads of the mesh", error))?;
        Ok(Self(Some(runtime)))
    }
}

impl Drop for MeshRuntime {
    fn drop(&mut self) {
        // A task, where it is dropped when a node can't start, may not wait for it.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Where clients reach a node with that Flight address.
pub(super) fn address(rack: &Rack, flight: SocketAddr) -> String {
    let scheme = match rack.clients.tls {
        Some(_) => "grpc+tls",
        None => "grpc",
    };
    format!("{scheme}://{flight}")
}

/// Opens a card's file, which is made when missing: folders within the node's own, too.
fn open_card(node: &Node, path: &Path) -> Result<FileFlash> {
    if let Some(folder) = path.parent()
        && folder.starts_with(&node.folder)
    {
        let making = |e| Error::io(format!("making {}", folder.display()), e);
        std::fs::create_dir_all(folder).map_err(making)?;
    }
    let options = FileFlashOptions {
        create: true,
        ..FileFlashOptions::default()
    };
    Ok(FileFlash::open(path, options)?)
}
