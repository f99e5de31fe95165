//! `flashmesh node`: one node of a rack. The head keeps the catalog and answers SQL; the others
//! serve their cards to it, and pass clients on to it.

mod lock;
mod pass;
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use flashmesh_cluster::mesh::{Mesh, MeshError, StartError, Streams};
use flashmesh_cluster::{DATABASE_FOLDER, Node, Rack, RackError, STREAMS};
use flashmesh_storage::flash::{FileFlash, FileFlashOptions};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::arguments::{EngineArguments, LogStyle, parse_time};
use super::signals::until_signal;
use crate::server::{Server, ServerOptions, TlsFiles, telemetry};
use crate::{Engine, Error, Result};
use lock::NodeLock;
use status::{Reporter, StatusSocket};

pub(super) use lock::holder;
pub(super) use status::{NodeState, NodeStatus, SOCKET, ask};

/// Connections that were passed on and wait for the head's server.
const WAITING: usize = 64;
/// How long an ending node waits until its neighbours have what it sent.
const DRAIN_MESH: Duration = Duration::from_secs(2);

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
    rack: Arc<Rack>,
    node: Node,
    mesh: Arc<Mesh>,
    streams: Streams,
    reporter: Arc<Reporter>,
    drain_time: Duration,
}

/// Runs a node until SIGTERM or SIGINT; a second signal ends the process at once.
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
    let _lock = NodeLock::take(&node.name, &node.folder)?;
    rack.key().map_err(of_rack)?;
    let reporter = Arc::new(Reporter::new(&rack, &node));
    let socket = StatusSocket::open(&reporter, &node.folder)?;
    let mesh = Mesh::start(&rack, node.number())
        .await
        .map_err(|error| match error {
            StartError::Rack(error) => of_rack(error),
            error => Error::usage(error.to_string()),
        })?;
    let mesh = Arc::new(mesh);
    let streams = mesh.streams(STREAMS).map_err(of_mesh)?;
    reporter.set_mesh(&mesh, streams.clone());
    let mut tasks = JoinSet::new();
    tasks.spawn(reporter.answer_nodes(&streams)?);
    let running = Running {
        rack,
        node,
        mesh,
        streams,
        reporter,
        drain_time: arguments.drain_time,
    };
    match running.is_head() {
        true => running.serve_clients(database).await?,
        false => running.serve_head().await?,
    }
    // Others ask no more, and what they were sent arrives.
    let _ = timeout(DRAIN_MESH, running.mesh.drain()).await;
    tasks.shutdown().await;
    if let Some(mesh) = Arc::into_inner(running.mesh) {
        mesh.close().await;
    }
    drop(socket);
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

impl Running {
    fn is_head(&self) -> bool {
        self.rack.head().id == self.node.id
    }

    /// What the head is told of its clients, and other nodes' addresses are held to as well.
    fn server_options(&self) -> Result<ServerOptions> {
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
            http: clients.http.filter(|_| self.is_head()),
            tls: clients.tls.as_ref().map(|tls| TlsFiles {
                certificate: tls.certificate.clone(),
                key: tls.key.clone(),
                client_ca: None,
            }),
            users: clients.users.clone(),
            token_secret: clients.token_secret.clone(),
            allow_plaintext: clients.allow_plaintext,
            allow_anonymous: clients.allow_anonymous,
            drain_time: self.drain_time,
            ..ServerOptions::default()
        };
        options.check().map_err(|error| {
            Error::usage(format!(
                "{error} (of a rack, its file says that in [clients]: tls, users, allow_plaintext, \
                 allow_anonymous)"
            ))
        })?;
        Ok(options)
    }

    /// From when the node is said to be up, it ends as it should.
    fn is_up(&self) -> Result<impl Future<Output = ()> + Send + 'static> {
        let stop = until_signal()?;
        self.reporter.set(NodeState::Up);
        if let Some(flight) = self.node.flight {
            // Scripts read this line; everything else goes to standard error.
            println!("Flight SQL: {}", address(&self.rack, flight));
        }
        let reporter = Arc::clone(&self.reporter);
        Ok(async move {
            stop.await;
            reporter.set(NodeState::Stopping);
        })
    }

    /// The head: opens the catalog and answers clients of all nodes.
    async fn serve_clients(&self, database: &EngineArguments) -> Result<()> {
        let options = self.server_options()?;
        // From now on they wait.
        let passed = self.streams.listen(pass::SERVICE).map_err(of_mesh)?;
        let engine = open_engine(&self.node, database)?;
        self.reporter.set_engine(&engine);
        if options.users.is_none() {
            tracing::warn!("no users in [clients]: everybody who can connect may do everything");
        }
        let server = Server::bind(engine, options).await?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let server = server.with_passed(receiver);
        let taking = tokio::spawn(pass::take_passed(Arc::clone(&self.rack), passed, sender));
        if let Some(page) = server.http_address()? {
            println!("Page: http://{page}");
        }
        let served = server.run(self.is_up()?).await;
        taking.abort();
        served
    }

    /// Every other node: serves its cards to the head, and passes clients on to it.
    async fn serve_head(&self) -> Result<()> {
        let cards = serve_cards(&self.mesh, &self.node)?;
        let stop = CancellationToken::new();
        let listener = match self.node.flight {
            Some(flight) => {
                self.server_options()?;
                let listener = TcpListener::bind(flight).await.map_err(|e| {
                    Error::io(
                        format!("listening on {flight} (is it taken? name another)"),
                        e,
                    )
                })?;
                Some(listener)
            }
            None => None,
        };
        let stopped = self.is_up()?;
        let passing = async {
            let Some(listener) = listener else {
                return;
            };
            let head = self.rack.head().number();
            let (streams, reporter) = (self.streams.clone(), Arc::clone(&self.reporter));
            pass::pass_on(listener, streams, head, reporter, stop.clone()).await;
        };
        let stopping = async {
            stopped.await;
            stop.cancel();
        };
        let drained = async {
            stop.cancelled().await;
            tokio::time::sleep(self.drain_time).await;
        };
        tokio::select! {
            ((), ()) = async { tokio::join!(passing, stopping) } => {}
            () = drained => tracing::warn!(
                "clients that were still there after {} s are sent away",
                self.drain_time.as_secs()
            ),
        }
        drop(cards);
        Ok(())
    }
}

/// Where clients reach a node with that Flight address.
pub(super) fn address(rack: &Rack, flight: std::net::SocketAddr) -> String {
    let scheme = match rack.clients.tls {
        Some(_) => "grpc+tls",
        None => "grpc",
    };
    format!("{scheme}://{flight}")
}

/// Opens the engine of the head, on the head's own card.
fn open_engine(node: &Node, database: &EngineArguments) -> Result<Arc<Engine>> {
    let folder = node.folder.join(DATABASE_FOLDER);
    let mut options = database.options()?;
    // A rack has its cards by name; the one that a database keeps in its folder is opened with it.
    let card = &node.cards[0].path;
    if *card != folder.join("card0.flash") {
        options.card = Some(Arc::new(open_card(node, card)?));
    }
    options.path = Some(folder);
    Engine::open(options)
}

/// Serves the cards of a node to the head over the mesh: so far they are only there.
fn serve_cards(_mesh: &Mesh, node: &Node) -> Result<Vec<FileFlash>> {
    let cards = node.cards.iter();
    cards.map(|card| open_card(node, &card.path)).collect()
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
