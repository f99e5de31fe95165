//! `flashmesh node`: one node of a rack. The head keeps the catalog and answers SQL; the others
//! serve their cards to it, and pass clients on to it. Where a group keeps the catalog, any of its nodes
//! may become the head.

mod draining;
mod group;
mod lock;
mod pass;
mod status;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use clap::Args;
use flashmesh_cluster::cards::{TermFile, TermStore};
use flashmesh_cluster::catalog::{Office, watch_head};
use flashmesh_cluster::copies::CopyFile;
use flashmesh_cluster::mesh::{Mesh, MeshError, StartError, Streams};
use flashmesh_cluster::node::{CopyParts, Head, HeadParts, ServingNode, ServingOptions};
use flashmesh_cluster::{COMMITS, Card, DATABASE_FOLDER, Node, Rack, RackError, STREAMS};
use flashmesh_storage::flash::{FileFlash, FileFlashOptions};
use flashmesh_storage::store::{NodeId, StoreCard};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::arguments::{EngineArguments, LogStyle, parse_time};
use super::signals::until_signal;
use crate::server::{Server, ServerOptions, TlsFiles, telemetry};
use crate::{Engine, Error, NodeWorker, Result};
use lock::NodeLock;
use status::{Reporter, StatusSocket};

pub(super) use group::own_program;
pub(super) use lock::holder;
pub(super) use status::{NodeState, NodeStatus, SOCKET, ask, tell_of_head};

/// Connections that were passed on and wait for the head's server.
const WAITING: usize = 64;
/// Threads of the mesh of a node.
const MESH_THREADS: usize = 2;
/// The page cache of a node that is not the head, unless `--cache-size` says otherwise.
const CACHE_BYTES: u64 = 256 << 20;
/// Commands of the head that run at once, for each thread; those beyond wait.
const COMMANDS_PER_THREAD: usize = 2;
/// Which copies of cards lack something, in the folder of a head that keeps the catalog alone.
const COPIES_FILE: &str = "copies-behind";
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
    file: PathBuf,
    rack: Arc<Rack>,
    node: Node,
    mesh: Arc<Mesh>,
    streams: Streams,
    reporter: Arc<Reporter>,
    drain_time: Duration,
    /// Cancelled by a signal, from when the node was up.
    stopping: OnceLock<CancellationToken>,
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
        mesh,
        streams,
        reporter,
        drain_time: arguments.drain_time,
        stopping: OnceLock::new(),
    };
    running.serve(database).await?;
    // Others ask no more, and what they were sent arrives.
    let _ = timeout(DRAIN_MESH, running.mesh.drain()).await;
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
        self.serve_head(database, head, never).await.map(drop)
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

    /// From now on a signal cancels this, and the node ends as it should.
    fn stop_by_signal(&self) -> Result<CancellationToken> {
        if let Some(stopping) = self.stopping.get() {
            return Ok(stopping.clone());
        }
        let (stop, signal) = (CancellationToken::new(), until_signal()?);
        let (reporter, stopping) = (Arc::clone(&self.reporter), stop.clone());
        tokio::spawn(async move {
            signal.await;
            reporter.set(NodeState::Stopping);
            stopping.cancel();
        });
        if let Some(flight) = self.node.flight {
            // Scripts read this line; everything else goes to standard error.
            println!("Flight SQL: {}", address(&self.rack, flight));
        }
        Ok(self.stopping.get_or_init(|| stop).clone())
    }

    /// The node is up, until that is cancelled.
    fn is_up(&self) -> Result<CancellationToken> {
        let stopping = self.stop_by_signal()?;
        if !stopping.is_cancelled() {
            self.reporter.set(NodeState::Up);
        }
        Ok(stopping)
    }

    fn is_stopping(&self) -> bool {
        let stopping = self.stopping.get();
        stopping.is_some_and(CancellationToken::is_cancelled)
    }

    /// The head: opens the catalog and answers clients of all nodes.
    async fn serve_clients(
        &self,
        database: &EngineArguments,
        office: Option<Arc<Office>>,
    ) -> Result<()> {
        let options = self.server_options(true)?;
        // Other nodes are waited for: what is wrong here is said before.
        drop(listen(options.listen).await?);
        // From now on they wait.
        let passed = self.streams.listen(pass::SERVICE).map_err(of_mesh)?;
        let engine = self.open_engine(database, office).await?;
        self.reporter.set_engine(&engine);
        let (file, rack) = (self.file.clone(), Arc::clone(&self.rack));
        let (weak, drained) = (Arc::downgrade(&engine), Arc::clone(&self.reporter.drained));
        let draining = tokio::spawn(draining::follow(file, rack, weak, drained));
        if options.users.is_none() {
            tracing::warn!("no users in [clients]: everybody who can connect may do everything");
        }
        let server = Server::bind(engine, options).await?;
        let (sender, receiver) = mpsc::channel(WAITING);
        let server = server.with_passed(receiver).of_rack(self.reporter.clone());
        let taking = tokio::spawn(pass::take_passed(Arc::clone(&self.rack), passed, sender));
        if let Some(page) = server.http_address()? {
            println!("Page: http://{page}");
        }
        let stopping = self.is_up()?;
        let served = server.run(async move { stopping.cancelled().await }).await;
        taking.abort();
        draining.abort();
        served
    }

    /// The engine of the head, on the cards of all nodes. Waits for the others, as long as the mesh
    /// does.
    async fn open_engine(
        &self,
        database: &EngineArguments,
        office: Option<Arc<Office>>,
    ) -> Result<Arc<Engine>> {
        let mut options = database.options()?;
        let node = &self.node;
        let folder = node.folder.join(DATABASE_FOLDER);
        let (first, more) = node.cards.split_first().expect("a node has a card");
        let has_copies = self.rack.replicas > 1;
        // A rack has its cards by name; the one that a database keeps in its folder is opened with it.
        if first.path != folder.join("card0.flash") && !has_copies {
            options.card = Some(Arc::new(open_card(node, &first.path)?));
        }
        let own = match has_copies {
            true => self.open_cards(&node.cards)?,
            false => self.open_cards(more)?,
        };
        let copies = match has_copies {
            true => Some(CopyParts {
                replicas: self.rack.replicas,
                held: self.open_copies()?,
                file: match &office {
                    Some(office) => office.copies_behind()?,
                    None => CopyFile::open(node.folder.join(COPIES_FILE))?,
                },
                catalog: office.clone(),
            }),
            false => {
                let cards = self.rack.nodes.iter().flat_map(|node| {
                    let cards = node.cards.iter();
                    cards.map(|card| (node.number(), card.number()))
                });
                let file = node.folder.join(COPIES_FILE);
                CopyFile::without_copies(&file, &cards.collect::<Vec<_>>())?;
                None
            }
        };
        options.path = Some(folder);
        let key = self.rack.key().map_err(of_rack)?;
        let others = self.rack.nodes.iter().filter(|other| other.id != node.id);
        let others = others.map(|other| {
            let cards = other.cards.iter().map(Card::number).collect();
            (other.number(), cards)
        });
        let others: Vec<_> = others.collect();
        let (mesh, streams) = (Arc::clone(&self.mesh), self.streams.clone());
        let (number, terms) = (node.number(), self.terms());
        let reporter = Arc::clone(&self.reporter);
        // It waits for answers of other nodes.
        let opened = tokio::task::spawn_blocking(move || {
            let own = HeadParts {
                node: number,
                cards: own,
                term: match &office {
                    Some(office) => office.term(),
                    None => terms.load()? + 1,
                },
                copies,
            };
            terms.store(own.term)?;
            let head = Head::connect(
                &mesh,
                &streams,
                own,
                &others,
                Arc::new(terms),
                key.as_bytes(),
            )?;
            let head = Arc::new(head);
            reporter.set_head(&head);
            options.card = head.home().or(options.card);
            options.rack = Some(head);
            Engine::open(options)
        });
        opened
            .await
            .map_err(|error| Error::io("opening the database", std::io::Error::other(error)))?
    }

    /// Serves the node's cards to the head, and runs parts of its plans.
    fn serve_cards(&self, database: &EngineArguments) -> Result<(ServingNode, NodeWorker)> {
        let options = database.options()?;
        let own = self.open_cards(&self.node.cards)?;
        let cards = own.into_iter().chain(self.open_copies()?).collect();
        let threads = options
            .threads
            .or_else(|| std::thread::available_parallelism().ok());
        let threads = threads.map_or(1, NonZeroUsize::get);
        let key = self.rack.key().map_err(of_rack)?;
        let cards = ServingNode::start(
            &self.mesh,
            &self.streams,
            self.node.number(),
            cards,
            Arc::new(self.terms()),
            key.as_bytes(),
            ServingOptions {
                cache_bytes: options.cache_bytes.unwrap_or(CACHE_BYTES),
                threads,
                commands: COMMANDS_PER_THREAD * threads,
            },
        )?;
        let nodes = self.rack.numbers();
        let (streams, own) = (self.streams.clone(), self.node.number());
        let worker = NodeWorker::start(&options, cards.storage(), streams, own, nodes)?;
        Ok((cards, worker))
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

    /// Every other node: serves its cards to the head, and passes clients on to it, until it is told to
    /// end or `until` is there, which it then gives.
    async fn serve_head<T>(
        &self,
        database: &EngineArguments,
        head: watch::Receiver<Option<NodeId>>,
        until: impl Future<Output = T>,
    ) -> Result<Option<T>> {
        let (cards, worker) = self.serve_cards(database)?;
        let cards = Arc::new(cards);
        self.reporter.set_serving(&cards);
        let listener = match self.node.flight {
            Some(flight) => {
                self.server_options(false)?;
                Some(listen(flight).await?)
            }
            None => None,
        };
        let stopping = self.is_up()?;
        let (closing, stop) = (CancellationToken::new(), CancellationToken::new());
        let passing = listener.map(|listener| {
            let (streams, reporter) = (self.streams.clone(), Arc::clone(&self.reporter));
            tokio::spawn(pass::pass_on(
                listener,
                streams,
                head,
                reporter,
                closing.clone(),
                stop.clone(),
            ))
        });
        let ended = tokio::select! {
            () = stopping.cancelled() => None,
            ended = until => Some(ended),
        };
        closing.cancel();
        let mut clients = match passing {
            Some(passing) => passing.await.unwrap_or_default(),
            None => JoinSet::new(),
        };
        match &ended {
            // Who waits for a head waits for the one that this node becomes.
            Some(_) => drop(tokio::spawn(clients.join_all())),
            None => {
                stop.cancel();
                let gone = async { while clients.join_next().await.is_some() {} };
                if timeout(self.drain_time, gone).await.is_err() {
                    tracing::warn!(
                        "clients that were still there after {} s are sent away",
                        self.drain_time.as_secs()
                    );
                }
            }
        }
        drop((worker, cards));
        Ok(ended)
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
