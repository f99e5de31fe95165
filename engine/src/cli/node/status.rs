//! How a node is: what it says of itself, on a socket in its folder and to other nodes over the
//! mesh, and how it is asked.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use flashmesh_cluster::catalog::{Group, Role};
use flashmesh_cluster::copies::RackCopy;
use flashmesh_cluster::mesh::{LinkStatus, Mesh, Streams};
use flashmesh_cluster::node::{Head, ServingNode};
use flashmesh_cluster::{Node, Rack};
use futures::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use super::draining::Drained;
use crate::server::RackReport;
use crate::{Engine, Error, Result};

/// The socket, in the node's folder.
pub(in crate::cli) const SOCKET: &str = "status.sock";
/// The service of the mesh.
const SERVICE: &str = "status";

/// Another node answers within this, or counts as down.
const NODE_TIME: Duration = Duration::from_secs(3);
/// So does the process of this machine, which may ask that node.
const SOCKET_TIME: Duration = Duration::from_secs(5);
/// The head asks other nodes after their copies as long as this before it says what it knows.
const COPIES_TIME: Duration = Duration::from_secs(1);
/// Bytes of a question (a node's name) and of an answer.
const MOST_NAME: usize = 1 << 10;
const MOST_ANSWER: u64 = 1 << 20;

/// Whether a node does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::cli) enum NodeState {
    /// No process is this node, or it does not answer.
    Down,
    /// It opens its card, the catalog, its addresses.
    Starting,
    /// It serves.
    Up,
    /// It finishes what runs.
    Stopping,
    /// It is on another machine, and no node of this one can ask it.
    Unknown,
}

impl NodeState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Stopping => "stopping",
            Self::Unknown => "unknown",
        }
    }
}

/// What is known of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::cli) struct NodeStatus {
    pub name: String,
    pub state: NodeState,
    /// Whether it keeps the catalog.
    pub is_head: bool,
    /// Its process, on its machine.
    pub pid: Option<u32>,
    /// Where clients come in.
    pub flight: Option<String>,
    /// Clients' connections that it passes on to the head.
    pub passed_clients: Option<usize>,
    /// Commands of the head that it runs now.
    #[serde(default)]
    pub commands: Option<usize>,
    /// Its links, as it sees them.
    pub links: Vec<Link>,
    /// Of the head: tables and segments of the catalog.
    pub tables: Option<usize>,
    pub segments: Option<usize>,
    /// Of the head of a rack with replicas: how many copies of cards can't be read now, by who has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_behind: Option<BTreeMap<String, usize>>,
    /// Of the head: what it knows of each node's cards.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cards_of_nodes: BTreeMap<String, OfCards>,
    /// Live pages on its cards, as the head says.
    #[serde(default)]
    pub pages: Option<u64>,
    /// Whether the head empties it.
    #[serde(default)]
    pub drained: bool,
    /// Nodes that are to keep the catalog and lack it, as far as this one knows.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub lack_catalog: BTreeSet<String>,
    /// Copies of cards, and of the catalog, that it has and that can't be read, as the head says: it is
    /// away, or they lack something. Where the rack has replicas.
    pub replicas_behind: Option<usize>,
    /// Why it is not up, where that is known.
    pub problem: Option<String>,
}

/// What the head knows of a node's cards.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(in crate::cli) struct OfCards {
    pages: u64,
    drained: bool,
}

/// A link of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::cli) struct Link {
    /// Its ends.
    pub link: String,
    pub neighbour: String,
    pub state: LinkState,
    /// How often it was connected.
    pub connections: u64,
    /// Bytes of the packets that this end sent and received, forwarded ones included, and packets that were lost
    /// when it was given up; since the node was started.
    #[serde(default)]
    pub sent_bytes: u64,
    #[serde(default)]
    pub received_bytes: u64,
    #[serde(default)]
    pub lost_packets: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(in crate::cli) enum LinkState {
    Up,
    Down,
    /// Down for longer than the rack file's deadline.
    GivenUp,
}

impl Link {
    pub fn is_up(&self) -> bool {
        self.state == LinkState::Up
    }
}

impl LinkState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::GivenUp => "given up",
        }
    }
}

impl From<LinkStatus> for Link {
    fn from(status: LinkStatus) -> Self {
        Self {
            link: status.link,
            neighbour: status.neighbour,
            state: match (status.is_up, status.is_given_up) {
                (true, _) => LinkState::Up,
                (false, false) => LinkState::Down,
                (false, true) => LinkState::GivenUp,
            },
            connections: status.connections,
            sent_bytes: status.sent_bytes,
            received_bytes: status.received_bytes,
            lost_packets: status.lost_packets,
        }
    }
}

impl NodeStatus {
    /// Of a node that says nothing itself.
    pub fn silent(rack: &Rack, node: &Node, state: NodeState) -> Self {
        Self {
            name: node.name.clone(),
            state,
            is_head: rack.head().id == node.id && rack.keepers().is_empty(),
            pid: None,
            flight: node.flight.map(|flight| flight.to_string()),
            passed_clients: None,
            commands: None,
            links: Vec::new(),
            tables: None,
            segments: None,
            copies_behind: None,
            cards_of_nodes: BTreeMap::new(),
            pages: None,
            drained: false,
            lack_catalog: BTreeSet::new(),
            replicas_behind: None,
            problem: None,
        }
    }

    /// Whether it serves, with all its links.
    pub fn is_whole(&self) -> bool {
        self.state == NodeState::Up && self.links.iter().all(Link::is_up)
    }
}

/// Tells each node of a rack what its head knows of it: of its cards and, of a rack with copies, of
/// those that it has; and who knows of the catalog.
pub(in crate::cli) fn tell_of_head(statuses: &mut [NodeStatus]) {
    let mut of_cards = BTreeMap::new();
    for status in &mut *statuses {
        of_cards.append(&mut status.cards_of_nodes);
    }
    for status in &mut *statuses {
        if let Some(cards) = of_cards.get(&status.name) {
            (status.pages, status.drained) = (Some(cards.pages), cards.drained);
        }
    }
    let mut heads = statuses.iter_mut();
    let Some(behind) = heads.find_map(|status| status.copies_behind.take()) else {
        return;
    };
    let all = statuses
        .iter_mut()
        .map(|status| mem::take(&mut status.lack_catalog));
    let lack_catalog: BTreeSet<String> = all.flatten().collect();
    for status in statuses {
        let of_cards = behind.get(&status.name).copied().unwrap_or(0);
        let of_catalog = usize::from(lack_catalog.contains(&status.name));
        status.replicas_behind = Some(of_cards + of_catalog);
    }
}

/// What a node's process says of itself.
pub(super) struct Reporter {
    rack: Arc<Rack>,
    own: NodeStatus,
    state: Mutex<NodeState>,
    /// What keeps it from being up.
    waits_for: Mutex<Option<String>>,
    leads_group: AtomicBool,
    pub passed_clients: AtomicUsize,
    pub drained: Arc<Drained>,
    mesh: OnceLock<(Weak<Mesh>, Streams)>,
    engine: OnceLock<Weak<Engine>>,
    head: Mutex<Weak<Head>>,
    /// Held by who asks after copies.
    asks_after_copies: Arc<tokio::sync::Mutex<()>>,
    group: OnceLock<Weak<Group>>,
    serving: OnceLock<Weak<ServingNode>>,
}

impl Reporter {
    pub fn new(rack: &Arc<Rack>, node: &Node) -> Self {
        let mut own = NodeStatus::silent(rack, node, NodeState::Starting);
        own.pid = Some(std::process::id());
        Self {
            rack: Arc::clone(rack),
            own,
            state: Mutex::new(NodeState::Starting),
            waits_for: Mutex::default(),
            leads_group: AtomicBool::new(false),
            passed_clients: AtomicUsize::new(0),
            drained: Arc::default(),
            mesh: OnceLock::new(),
            engine: OnceLock::new(),
            head: Mutex::default(),
            asks_after_copies: Arc::default(),
            group: OnceLock::new(),
            serving: OnceLock::new(),
        }
    }

    pub fn set(&self, state: NodeState) {
        *self.state.lock() = state;
    }

    /// From now on it says that it waits, and why; or that it does not.
    pub fn waits_for(&self, why: Option<String>) {
        *self.waits_for.lock() = why;
    }

    /// From now on it says, as the head, who lacks the catalog.
    pub fn set_group(&self, group: &Arc<Group>) {
        let _ = self.group.set(Arc::downgrade(group));
    }

    /// From now on this is the head.
    pub fn set_head_of_group(&self) {
        self.leads_group.store(true, Ordering::Relaxed);
    }

    /// From now on it says how its links are, and asks other nodes.
    pub fn set_mesh(&self, mesh: &Arc<Mesh>, streams: Streams) {
        let _ = self.mesh.set((Arc::downgrade(mesh), streams));
    }

    /// From now on it says what the catalog has.
    pub fn set_engine(&self, engine: &Arc<Engine>) {
        let _ = self.engine.set(Arc::downgrade(engine));
    }

    /// From now on it says how copies are.
    pub fn set_head(&self, head: &Arc<Head>) {
        *self.head.lock() = Arc::downgrade(head);
    }

    /// From now on it says what runs for the head.
    pub fn set_serving(&self, serving: &Arc<ServingNode>) {
        let _ = self.serving.set(Arc::downgrade(serving));
    }

    /// How the copies of cards are, as the head has it; none where it has none, or this is not the head.
    pub fn copies(&self) -> Vec<RackCopy> {
        let head = self.head.lock().upgrade();
        head.map_or_else(Vec::new, |head| head.copies())
    }

    /// Has the head ask the other nodes after their copies: one that has restarted with an empty disk seems
    /// whole until it is asked.
    pub async fn ask_after_copies(&self) {
        // As long as the database is being opened, the next try may need what this one has.
        let is_open = self.engine.get().is_some();
        let head = self.head.lock().upgrade();
        let Some(head) = head.filter(|head| is_open && head.has_copies()) else {
            return;
        };
        let turn = Arc::clone(&self.asks_after_copies).lock_owned().await;
        let asked = tokio::task::spawn_blocking(move || {
            head.ask_after_copies();
            drop(turn);
        });
        // A panic has been reported where it happened.
        let _ = asked.await;
    }

    /// Whether this is the head and reaches all cards.
    pub async fn reaches_all_cards(&self) -> bool {
        let Some(head) = self.head.lock().upgrade() else {
            return false;
        };
        // It asks other nodes.
        let reaches = tokio::task::spawn_blocking(move || head.reaches_all_cards());
        reaches.await.unwrap_or(false)
    }

    /// How many copies can't be read, by the names of who has them.
    fn copies_behind(&self) -> Option<BTreeMap<String, usize>> {
        let copies = self.copies();
        if copies.is_empty() {
            return None;
        }
        let mut behind = BTreeMap::new();
        for copy in copies {
            let mut nodes = self.rack.nodes.iter();
            let node = nodes.find(|node| node.number() == copy.holder);
            if let Some(node) = node.filter(|_| copy.is_behind || !copy.is_there) {
                *behind.entry(node.name.clone()).or_default() += 1;
            }
        }
        Some(behind)
    }

    /// What is on the cards of each node, by names.
    fn cards_of_nodes(&self, engine: &Engine) -> BTreeMap<String, OfCards> {
        let (live, drained) = (engine.database().live_pages(), self.drained.lock());
        let of_node = |node: &Node| {
            let live = live.iter().filter(|(of, _, _)| *of == node.number());
            let cards = OfCards {
                pages: live.map(|(_, _, pages)| pages).sum(),
                drained: drained.contains(&node.name),
            };
            (node.name.clone(), cards)
        };
        self.rack.nodes.iter().map(of_node).collect()
    }

    async fn now(&self) -> NodeStatus {
        // What a node that hangs has is told as it was known before.
        let _ = timeout(COPIES_TIME, self.ask_after_copies()).await;
        let mut status = self.own.clone();
        status.state = *self.state.lock();
        let waits_for = self.waits_for.lock().clone();
        status.problem = waits_for.map(|why| format!("waits: {why}"));
        status.is_head |= self.leads_group.load(Ordering::Relaxed);
        if let Some(mesh) = self.mesh.get().and_then(|(mesh, _)| mesh.upgrade()) {
            status.links = mesh.links().into_iter().map(Link::from).collect();
        }
        status.copies_behind = self.copies_behind();
        if let Some(group) = self.group.get().and_then(Weak::upgrade) {
            let (behind, nodes) = (group.behind(), self.rack.nodes.iter());
            let behind = nodes.filter(|node| behind.contains(&node.number()));
            status.lack_catalog = behind.map(|node| node.name.clone()).collect();
            // The head may not know yet that it is another member than before.
            if !group.votes() {
                status.lack_catalog.insert(status.name.clone());
            }
            if *group.role().borrow() == Role::Follows(None) {
                status.problem = Some("no head is elected".into());
            }
        }
        let serving = self.serving.get().and_then(Weak::upgrade);
        status.commands = serving.map(|serving| serving.commands_running());
        match self.engine.get().and_then(Weak::upgrade) {
            Some(engine) => {
                let (tables, segments) = contents(&engine);
                status.tables = Some(tables);
                status.segments = Some(segments);
                status.cards_of_nodes = self.cards_of_nodes(&engine);
            }
            None if !status.is_head => {
                status.passed_clients = Some(self.passed_clients.load(Ordering::Relaxed));
            }
            None => {}
        }
        status
    }

    /// How a node of the rack is, this one or another.
    async fn of(&self, name: &str) -> NodeStatus {
        if name.is_empty() || name == self.own.name {
            return self.now().await;
        }
        let Some(node) = self.rack.node(name) else {
            let mut status = self.own.clone();
            status.name = name.to_string();
            status.state = NodeState::Unknown;
            status.problem = Some("the rack file has no such node".into());
            return status;
        };
        let silent = |problem: String| {
            let mut status = NodeStatus::silent(&self.rack, node, NodeState::Down);
            status.problem = Some(problem);
            status
        };
        let Some((_, streams)) = self.mesh.get() else {
            return silent(format!("'{}' has no mesh yet", self.own.name));
        };
        let asked = async {
            let mut stream = streams.connect(node.number(), SERVICE).await;
            let stream = stream.as_mut().map_err(|error| error.to_string())?;
            read(stream).await
        };
        match timeout(NODE_TIME, asked).await {
            Ok(Ok(status)) => status,
            Ok(Err(problem)) => silent(problem),
            Err(_) => silent(format!("no answer within {} s", NODE_TIME.as_secs())),
        }
    }

    /// How all nodes are, in the order of the rack file.
    pub async fn of_all(&self) -> Vec<NodeStatus> {
        let asked = self.rack.nodes.iter().map(|node| self.of(&node.name));
        let mut statuses = join_all(asked).await;
        tell_of_head(&mut statuses);
        statuses
    }

    /// Answers other nodes until the mesh is closed.
    ///
    /// # Errors
    /// [`Error::Usage`] where the service is taken.
    pub fn answer_nodes(
        self: &Arc<Self>,
        streams: &Streams,
    ) -> Result<impl Future<Output = ()> + use<>> {
        let mut asked = streams.listen(SERVICE).map_err(super::of_mesh)?;
        let reporter = Arc::clone(self);
        Ok(async move {
            while let Ok((_, mut stream)) = asked.accept().await {
                let reporter = Arc::clone(&reporter);
                tokio::spawn(async move {
                    let answered = async {
                        let answer = json(&reporter.now().await);
                        stream.write_all(&answer).await?;
                        stream.shutdown().await
                    };
                    // Who asked has gone, or does not read: the answer is nobody's.
                    let _ = timeout(NODE_TIME, answered).await;
                });
            }
        })
    }

    /// Answers whoever asks at the socket.
    async fn answer_socket(self: Arc<Self>, socket: UnixListener) {
        loop {
            let Ok((mut stream, _)) = socket.accept().await else {
                // For want of file descriptors, most likely.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let reporter = Arc::clone(&self);
            tokio::spawn(async move {
                let answered = async {
                    let name = line(&mut stream).await?;
                    let answer = json(&reporter.of(&name).await);
                    stream.write_all(&answer).await
                };
                let _ = timeout(SOCKET_TIME, answered).await;
            });
        }
    }
}

impl RackReport for Reporter {
    fn report(&self) -> BoxFuture<'_, serde_json::Value> {
        Box::pin(async { serde_json::json!({ "nodes": self.of_all().await }) })
    }
}

/// Tables of the catalog and their segments.
fn contents(engine: &Engine) -> (usize, usize) {
    let database = engine.database();
    let schemas = database.schemas();
    let names = schemas.iter().flat_map(|schema| {
        let tables = database.tables(schema);
        tables.into_iter().map(move |table| (schema.clone(), table))
    });
    let names: Vec<_> = names.collect();
    // A head that may be none any more says nothing of its tables.
    let tables = database.snapshots(&names).unwrap_or_default();
    let tables = tables.iter().flatten();
    let segments: Vec<usize> = tables.map(|table| table.segments.len()).collect();
    (segments.len(), segments.iter().sum())
}

fn json(status: &NodeStatus) -> Vec<u8> {
    // Plain data: it has a text.
    serde_json::to_vec(status).unwrap_or_default()
}

/// A question: a line, or what comes until the end.
async fn line(stream: &mut UnixStream) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    while bytes.len() < MOST_NAME {
        match stream.read_u8().await {
            Ok(b'\n') => break,
            Ok(byte) => bytes.push(byte),
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&bytes).trim().to_string())
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> std::result::Result<NodeStatus, String> {
    let mut answer = Vec::new();
    let read = stream.take(MOST_ANSWER).read_to_end(&mut answer).await;
    read.map_err(|error| error.to_string())?;
    serde_json::from_slice(&answer).map_err(|error| format!("the answer can't be read: {error}"))
}

/// The socket at which a node is asked. Its file goes with it.
pub(super) struct StatusSocket {
    path: PathBuf,
    task: tokio::task::JoinHandle<()>,
}

impl StatusSocket {
    /// Answers in the folder of this node, whose lock this process holds: a file that is there was
    /// left by an earlier one.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(reporter: &Arc<Reporter>, folder: &Path) -> Result<Self> {
        let path = folder.join(SOCKET);
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|source| {
            let path = path.display();
            Error::io(
                format!("making the socket {path}, at which the node says how it is"),
                source,
            )
        })?;
        let task = tokio::spawn(Arc::clone(reporter).answer_socket(listener));
        Ok(Self { path, task })
    }
}

impl Drop for StatusSocket {
    fn drop(&mut self) {
        self.task.abort();
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Asks the process of this machine that is `at` how the node `about` is.
///
/// # Errors
/// A text that says why there is no answer.
pub(in crate::cli) async fn ask(at: &Node, about: &str) -> std::result::Result<NodeStatus, String> {
    let asked = async {
        let path = at.folder.join(SOCKET);
        let stream = UnixStream::connect(&path).await;
        let mut stream = stream.map_err(|error| format!("{}: {error}", path.display()))?;
        let question = format!("{about}\n");
        let written = stream.write_all(question.as_bytes()).await;
        written.map_err(|error| error.to_string())?;
        read(&mut stream).await
    };
    match timeout(SOCKET_TIME, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("no answer within {} s", SOCKET_TIME.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use flashmesh_cluster::{STREAMS, Shape};

    use super::*;

    /// A node says how it is, and asks others; what they can't say is no error of its own.
    #[tokio::test]
    async fn nodes_ask_each_other() {
        let folder = tempfile::tempdir().unwrap();
        let text = Rack::draft(folder.path(), 3, Shape::Line, 1, 50051).unwrap();
        let file = folder.path().join("rack.toml");
        std::fs::write(&file, text).unwrap();
        let rack = Arc::new(Rack::load(&file).unwrap());
        let meshes: Vec<_> = Mesh::in_process(&rack).unwrap();
        let meshes: Vec<_> = meshes.into_iter().map(Arc::new).collect();
        let mut reporters = Vec::new();
        for (node, mesh) in rack.nodes.iter().zip(&meshes) {
            let reporter = Arc::new(Reporter::new(&rack, node));
            let streams = mesh.streams(STREAMS).unwrap();
            // The last one does not answer.
            if node.name != "n02" {
                tokio::spawn(reporter.answer_nodes(&streams).unwrap());
            }
            reporter.set_mesh(mesh, streams);
            reporters.push(reporter);
        }
        reporters[1].set(NodeState::Up);
        reporters[1].passed_clients.store(3, Ordering::Relaxed);
        let at = &rack.nodes[0];
        std::fs::create_dir_all(&at.folder).unwrap();
        // One that an earlier process has left.
        std::fs::write(at.folder.join(SOCKET), "").unwrap();
        let socket = StatusSocket::open(&reporters[0], &at.folder).unwrap();
        let own = ask(at, "").await.unwrap();
        assert_eq!(
            (&*own.name, own.state, own.is_head),
            ("n00", NodeState::Starting, true)
        );
        assert_eq!(own.links.len(), 1);
        let other = ask(at, "n01").await.unwrap();
        assert_eq!((&*other.name, other.state), ("n01", NodeState::Up));
        assert_eq!((other.passed_clients, other.links.len()), (Some(3), 2));
        let silent = ask(at, "n02").await.unwrap();
        assert_eq!((&*silent.name, silent.state), ("n02", NodeState::Down));
        let problem = silent.problem.unwrap();
        assert!(problem.contains("nobody listens for 'status'"), "{problem}");
        let nobody = ask(at, &"x".repeat(5000)).await;
        assert!(nobody.is_err() || nobody.is_ok_and(|one| one.state == NodeState::Unknown));
        let nobody = ask(at, "n07").await.unwrap();
        assert_eq!(nobody.state, NodeState::Unknown);
        drop(socket);
        assert!(!at.folder.join(SOCKET).exists() && ask(at, "").await.is_err());
    }
}
