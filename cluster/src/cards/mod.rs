//! Cards of other nodes as flash devices: any node reads and writes any page of any other
//! (BlueDBM section 3: one global address space). Who only reads, and may start before the other node
//! does, has them as [`FarCard`]s.
//!
//! [`Cards`] is a node's part: it serves the cards of the node to the others, and opens theirs as
//! [`RemoteCard`]s, which are [`Flash`] devices like local ones. All goes over one endpoint of the
//! mesh, [`endpoint_names`]: an operation is one packet, or several where it has more pages than a
//! packet takes; so is its answer. Operations are answered in any order.
//!
//! * **No deadlock.** One task takes what comes in and never waits: a reply belongs to an operation
//!   that has its buffers, a request is put into a list or refused ([`PAGES_OUT_MAX`] pages for each
//!   node that asks, which an honest one keeps to itself). So packets of the endpoint always leave
//!   the mesh, requests in front of replies as well as the other way round. What goes out to a node
//!   is sent by a task of that node, replies and requests in turn, which waits for the mesh alone;
//!   and threads that use cards wait for cards alone.
//! * **No starvation.** Nodes take turns at a card, an operation each, and so do the queues of a
//!   node.
//! * **No lie about durability.** Every reply carries the session of the server, a number drawn when
//!   it starts. A sync names the session in which the writes before it have ended, and another one
//!   refuses it. A write of which nobody knows the outcome fails the next sync, too.
//! * **Nothing late.** When a node gives up what it has asked for, as packets may be lost, it says so
//!   with its next request (a new *epoch*). What was not begun is dropped then, and nothing later
//!   begins before the rest has ended: no write turns up behind an erase that came after it.
//! * **One writer.** Writes, erases and syncs carry a term ([`TermStore`]); a node refuses those of a
//!   lower term than it has seen. It is for the holders of the catalog to have terms that grow. A node
//!   that uses its own cards directly is not asked for a term.
//! * **Checks.** A CRC32C covers each packet. What the card is not or has not is refused before the
//!   card is asked.

mod client;
mod server;
mod term;
#[cfg(test)]
mod tests;
mod wire;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use flashmesh_pages::flash::{Flash, PAGE_SIZE_BYTES};
use flashmesh_pages::store::{CardId, NodeId};
use flashmesh_pages::{Result, StorageError};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::mesh::{Endpoint, Mesh, MeshError, Sending};
use client::{Peer, Whose};
use server::{Server, worker};
use wire::Packet;

pub use client::far::FarCard;
pub use client::remote::RemoteCard;
pub use server::late::LateCard;
pub use term::{TermFile, TermStore};

/// Pages that a node may have asked another one for at once (4 MiB); what has none counts as one.
pub const PAGES_OUT_MAX: usize = 512;
/// The most pages of an operation.
const PAGES_PER_OP_MAX: usize = 32;

/// What the number of a card has besides in requests of those who only read.
const READING: u16 = 1 << 15;

const ENDPOINT: &str = "pages";

/// The endpoints that a rack file must have for [`Cards`].
pub fn endpoint_names() -> [&'static str; 1] {
    [ENDPOINT]
}

/// How cards are served and reached.
#[derive(Debug, Clone)]
pub struct CardOptions {
    /// Threads that read, write and erase, for each card that is served; one more syncs.
    pub threads_per_card: usize,
    /// How long an operation may be under way before it fails, and with it all others to that
    /// node. `None`: twice `mesh.deadline_ms`, so that it is the mesh that gives a link up.
    pub answer_within: Option<Duration>,
    /// The node uses its cards itself. They are served to [`FarCard`]s alone: what others write to a card
    /// goes by one node's mind at a time.
    pub for_reading: bool,
}

impl Default for CardOptions {
    fn default() -> Self {
        Self {
            threads_per_card: 2,
            answer_within: None,
            for_reading: false,
        }
    }
}

/// A node's part of the cards of a rack. Dropping it fails what [`RemoteCard`]s of it wait for, and
/// waits for what its own cards are working on.
#[derive(Debug)]
pub struct Cards {
    node: Arc<Node>,
    tasks: JoinSet<()>,
    threads: Vec<JoinHandle<()>>,
}

/// What tasks, threads and cards share.
struct Node {
    endpoint: Endpoint,
    /// By position in the mesh.
    peers: Vec<Peer>,
    outs: Vec<Mutex<Out>>,
    wakes: Vec<Notify>,
    server: Server,
    pages_per_packet: usize,
    answer_within: Duration,
}

/// What goes out to a node.
#[derive(Default)]
struct Out {
    /// Whether the last packet was one of an answer.
    is_answer: bool,
    /// A packet has no place yet: none may overtake it.
    is_waiting: bool,
    /// That packet, until the node's task waits for it, and which operation it begins.
    waiting: Option<(Sending, Option<u64>)>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.server.name)
    }
}

impl Cards {
    /// Serves `cards`, if there are any, to the other nodes of a mesh, and reaches theirs. `terms`
    /// keeps the greatest term of all of them. Once for each mesh: it takes what comes in.
    ///
    /// # Errors
    /// `Invalid` where the rack file lacks the endpoint, it is in use, its packets have no room for
    /// a page, or a card is there twice; what cards and `terms` say.
    pub fn start(
        mesh: &Mesh,
        cards: Vec<(CardId, Arc<dyn Flash>)>,
        terms: Arc<dyn TermStore>,
        options: &CardOptions,
    ) -> Result<Self> {
        let invalid = |why: String| Err(StorageError::Invalid(why));
        let endpoint = match mesh.endpoint(ENDPOINT) {
            Ok(endpoint) => endpoint,
            Err(MeshError::Unknown(what)) => {
                return invalid(format!(
                    "the rack file has no {what}, which cards need: add [[endpoint]] with an index \
                     of its own, name = \"{ENDPOINT}\" and flow = \"end-to-end\""
                ));
            }
            Err(other) => return invalid(other.to_string()),
        };
        let network = endpoint.network();
        let packet_bytes = network.settings.packet_bytes as usize;
        let pages_per_packet = wire::pages_per_packet(packet_bytes);
        if pages_per_packet == 0 {
            return invalid(format!(
                "mesh.packet_bytes = {packet_bytes} has no room for a page; cards need {} or more",
                wire::REQUEST + PAGE_SIZE_BYTES
            ));
        }
        let deadline = Duration::from_millis(network.settings.deadline_ms);
        let nodes = network.names.len();
        let name = mesh.name().to_string();
        let is_reading = options.for_reading;
        let server = Server::new(name, nodes, cards, terms, draw(), is_reading)?;
        let node = Arc::new(Node {
            peers: (0..nodes).map(|_| Peer::new(draw())).collect(),
            outs: (0..nodes).map(|_| Mutex::default()).collect(),
            wakes: (0..nodes).map(|_| Notify::new()).collect(),
            server,
            pages_per_packet,
            answer_within: options.answer_within.unwrap_or(2 * deadline),
            endpoint,
        });
        let mut this = Self {
            node,
            tasks: JoinSet::new(),
            threads: Vec::new(),
        };
        this.start_threads(options.threads_per_card.max(1))?;
        let runtime = mesh.runtime();
        let node = &this.node;
        let listener = Listener(node.clone());
        this.tasks.spawn_on(listener.receive(), runtime);
        this.tasks.spawn_on(node.clone().keep_time(), runtime);
        for peer in 0..nodes {
            this.tasks.spawn_on(node.clone().send(peer), runtime);
        }
        Ok(this)
    }

    fn start_threads(&mut self, threads_per_card: usize) -> Result<()> {
        let mut start = |name: String, work: fn(&Arc<Node>, usize), card| {
            let node = self.node.clone();
            let thread = std::thread::Builder::new().name(name);
            let started = thread.spawn(move || work(&node, card));
            let started = started.map_err(|e| StorageError::io("starting a thread", e))?;
            self.threads.push(started);
            Ok::<_, StorageError>(())
        };
        for (index, card) in self.node.server.cards.iter().enumerate() {
            for thread in 0..threads_per_card {
                let name = format!("card-{}-{thread}", card.id.0);
                start(name, worker::use_pages, index)?;
            }
            start(format!("card-{}-sync", card.id.0), worker::be_asked, index)?;
        }
        Ok(())
    }

    /// Opens a card of a node. Blocks until it has answered: not for tasks. Where the node is only
    /// just starting, it waits until the mesh gives the link up. Writes, erases and syncs will carry
    /// `term`, for which nodes are not asked by this.
    ///
    /// # Errors
    /// `Invalid` where there is no such node, or the node serves no such card; `Io` where it can't
    /// be reached.
    pub fn open(&self, node: NodeId, card: CardId, term: u64) -> Result<RemoteCard> {
        RemoteCard::open(&self.node, self.peer(node)?, card, term, false)
    }

    /// [`Cards::open`] for the life of the node that it has now: when it has restarted, all fails.
    ///
    /// # Errors
    /// Those of [`Cards::open`].
    pub fn open_once(&self, node: NodeId, card: CardId, term: u64) -> Result<RemoteCard> {
        RemoteCard::open(&self.node, self.peer(node)?, card, term, true)
    }

    /// A card of a node for reading alone, which is not asked for it yet. Its erase blocks have to be
    /// of so many pages.
    ///
    /// # Errors
    /// `Invalid` where there is no such node.
    pub fn far(&self, node: NodeId, card: CardId, pages_per_erase_block: u32) -> Result<FarCard> {
        let peer = self.peer(node)?;
        Ok(FarCard::new(&self.node, peer, card, pages_per_erase_block))
    }

    fn peer(&self, node: NodeId) -> Result<usize> {
        self.node.endpoint.network().node_of(node).ok_or_else(|| {
            StorageError::Invalid(format!("the rack file has no node of number {}", node.0))
        })
    }

    /// Fails what [`RemoteCard`]s of it wait for, now and from now on.
    pub fn close(&self) {
        self.node.close("the cards of this node are closed");
    }
}

impl Drop for Cards {
    fn drop(&mut self) {
        self.close();
        self.tasks.abort_all();
        for thread in self.threads.drain(..) {
            // Panics have been reported where they happened.
            let _ = thread.join();
        }
    }
}

/// Takes what comes in. When it ends, be it that the runtime of the mesh ends without a word, no answer
/// can come any more: whoever waits for one is told.
struct Listener(Arc<Node>);

impl Listener {
    /// Until the mesh is closed.
    async fn receive(self) {
        let node = &self.0;
        while let Ok((from, packet)) = node.endpoint.receive_from().await {
            match packet {
                Some(packet) => node.arrived(from, packet),
                None => {
                    // What is sent from now on is not lost with the rest.
                    node.endpoint.forgive(from);
                    node.server.interrupted(from);
                    let why = "it has restarted, or a link on the way was given up";
                    node.give_up(from, io::ErrorKind::ConnectionAborted, why);
                }
            }
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.close("the mesh of this node is closed");
    }
}

impl Node {
    fn name_of(&self, peer: usize) -> &str {
        &self.endpoint.network().names[peer]
    }

    /// There is something to send to a node.
    fn wake(&self, peer: usize) {
        self.wakes[peer].notify_one();
    }

    fn close(&self, why: &'static str) {
        self.peers.iter().for_each(|peer| peer.close(why));
        self.server.close();
    }

    fn arrived(&self, from: usize, packet: Bytes) {
        match wire::decode(packet) {
            Ok(Packet::Request(request, data)) => {
                self.server.arrived(from, request, data);
                self.wake(from);
            }
            Ok(Packet::Reply(reply)) => match self.peers[from].arrived(reply) {
                Ok(true) => self.wake(from),
                Ok(false) => {}
                Err(what) => self.give_up(from, io::ErrorKind::InvalidData, &what),
            },
            Err(what) => {
                // Whose it was is not known: neither side can rely on what is under way.
                log::warn!("cards: '{}' sent {what}", self.name_of(from));
                self.server.damaged(from);
                self.give_up(from, io::ErrorKind::InvalidData, &format!("it sent {what}"));
            }
        }
    }

    /// What a node was asked for may never be answered.
    fn give_up(&self, peer: usize, kind: io::ErrorKind, why: &str) {
        self.peers[peer].fail(Whose::Sent, None, kind, why);
        self.wake(peer);
    }

    /// Sends what there is for a node, and waits where there is no place for it.
    async fn send(self: Arc<Self>, peer: usize) {
        loop {
            let waiting = {
                let mut out = self.outs[peer].lock();
                self.send_some(peer, &mut out);
                out.waiting.take()
            };
            let Some((waiting, begins)) = waiting else {
                self.wakes[peer].notified().await;
                continue;
            };
            match timeout(self.answer_within, waiting.finish()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => self.is_away(peer, begins, &error),
                Err(_) => {
                    let why = self.too_late();
                    self.peers[peer].fail(Whose::All, None, io::ErrorKind::TimedOut, &why);
                    self.server.interrupted(peer);
                }
            }
            self.outs[peer].lock().is_waiting = false;
        }
    }

    /// Sends what there is for a node from this thread, as long as there are places: a thread less
    /// to wake. What has to wait, the node's task waits for.
    fn send_now(&self, peer: usize) {
        match self.outs[peer].try_lock() {
            Some(mut out) => self.send_some(peer, &mut out),
            // Whoever sends may have looked already.
            None => self.wake(peer),
        }
    }

    fn send_some(&self, peer: usize, out: &mut Out) {
        while !out.is_waiting {
            let Some((packet, begins)) = self.next_packet(peer, &mut out.is_answer) else {
                return;
            };
            match self.endpoint.begin_send(peer, packet) {
                Ok(None) => {}
                Ok(Some(sending)) => {
                    out.is_waiting = true;
                    out.waiting = Some((sending, begins));
                    self.wake(peer);
                }
                Err(error) => self.is_away(peer, begins, &error),
            }
        }
    }

    /// A packet could not be sent, which begins an operation or does not.
    fn is_away(&self, peer: usize, begins: Option<u64>, error: &MeshError) {
        let why = error.to_string();
        self.peers[peer].fail(Whose::All, begins, io::ErrorKind::NotConnected, &why);
        self.server.interrupted(peer);
    }

    /// Answers and requests in turn; of a request, which operation it begins, if it does.
    fn next_packet(&self, peer: usize, is_answer: &mut bool) -> Option<(Bytes, Option<u64>)> {
        for _ in 0..2 {
            *is_answer = !*is_answer;
            let next = match *is_answer {
                true => self.server.next_answer(peer).map(|packet| (packet, None)),
                false => self.peers[peer].next_packet(self.pages_per_packet),
            };
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn too_late(&self) -> String {
        format!("it gave no answer within {:?}", self.answer_within)
    }

    /// Looks for operations that take too long.
    async fn keep_time(self: Arc<Self>) {
        let why = self.too_late();
        loop {
            sleep((self.answer_within / 8).max(Duration::from_millis(1))).await;
            for peer in &self.peers {
                peer.check_time(self.answer_within, &why);
            }
        }
    }
}

/// A number that was not drawn before, most likely; not 0.
fn draw() -> u64 {
    RandomState::new().build_hasher().finish().max(1)
}
