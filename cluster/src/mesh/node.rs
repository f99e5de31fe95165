//! A node's part of the mesh.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flashmesh_pages::store::NodeId;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use super::clock::{sleep, timeout};
use super::endpoint::Endpoint;
use super::error::MeshError;
use super::link;
use super::network::Network;
use super::port::{Port, State};
use super::stream::Streams;
use super::switch::Switch;
use super::tls::Tls;
use super::topology::reverse;
use super::transport::{Dialer, Listener, Plug, Wire, memory};
use crate::{Rack, RackError};

/// Connections that have not yet said which link they are.
const GREETING: usize = 64;

/// What all tasks of a node share.
pub(crate) struct Shared {
    pub switch: Mutex<Switch>,
    pub network: Arc<Network>,
    pub node: usize,
    pub fingerprint: u64,
}

impl Shared {
    /// The mesh as far as it does not wait: without links.
    pub fn new(network: Arc<Network>, node: usize) -> Arc<Self> {
        Arc::new(Self {
            switch: Mutex::new(Switch::new(network.clone(), node, new_session())),
            fingerprint: network.fingerprint(),
            network,
            node,
        })
    }

    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.network.settings.silence_ms)
    }

    pub fn deadline(&self) -> Duration {
        Duration::from_millis(self.network.settings.deadline_ms)
    }

    /// The most bytes that a frame carries: those of a packet, or a notice of all channels.
    pub fn largest_payload(&self) -> usize {
        let notice = self.network.topology.channels.len() * super::outage::MARK;
        (self.network.settings.packet_bytes as usize).max(notice)
    }

    pub fn name(&self) -> &str {
        &self.network.names[self.node]
    }

    fn channel(&self, port: usize) -> usize {
        self.network.topology.leaving(self.node)[port]
    }

    pub fn link_name(&self, port: usize) -> String {
        self.network.channel_name(self.channel(port))
    }

    /// The name of the node at the other end of a port's cable.
    pub fn neighbour(&self, port: usize) -> &str {
        let channel = self.network.topology.channels[self.channel(port)];
        &self.network.names[channel.to.0]
    }
}

/// Microseconds since 1970, or more: greater than that of any earlier session.
fn new_session() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(1, |time| time.as_micros() as u64);
    let next = |last: u64| Some(now.max(last + 1));
    let before = LAST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    now.max(before.unwrap_or(0) + 1)
}

/// Why a node's mesh could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The rack file contradicts itself.
    #[error(transparent)]
    Rack(#[from] RackError),
    /// The rack file has no such node.
    #[error("the rack file has no node of number {0}")]
    Unknown(u16),
    /// Nobody can come in at the node's address.
    #[error("node '{node}' can't wait at {address}: {source}")]
    Listen {
        /// The node.
        node: String,
        /// Its address in the rack file.
        address: crate::Address,
        /// The system's word.
        source: std::io::Error,
    },
    /// Certificates or keys can't be used.
    #[error("TLS of node '{node}': {why}")]
    Tls {
        /// The node.
        node: String,
        /// What is wrong with which file.
        why: String,
    },
}

/// A node's part of the mesh: its links, and its endpoints. Dropping it ends the links, as
/// [`Mesh::close`] does, a little later.
pub struct Mesh {
    shared: Arc<Shared>,
    /// By endpoint; nothing for one whose packets were asked for.
    uses: Mutex<HashMap<usize, Option<Streams>>>,
    runtime: Handle,
    tasks: JoinSet<()>,
}

impl Mesh {
    /// Starts a node of a rack: waits at its address, dials its neighbours, and does so again
    /// whenever a link breaks. It does not wait for them. Needs a tokio runtime with time and I/O.
    pub async fn start(rack: &Rack, node: NodeId) -> Result<Self, StartError> {
        let network = Arc::new(Network::new(rack)?);
        let index = network.node_of(node).ok_or(StartError::Unknown(node.0))?;
        let shared = Shared::new(network.clone(), index);
        let by_name: HashMap<&str, &crate::Node> = rack
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect();
        let this = by_name[network.names[index].as_str()];
        let wrong = |why: String| StartError::Tls {
            node: this.name.clone(),
            why,
        };
        let tls = match (&rack.tls, &this.tls) {
            (Some(authorities), Some(identity)) => {
                let tls = Tls::load(authorities, identity).map_err(wrong)?;
                Some(Arc::new(tls))
            }
            _ => None,
        };
        let mut dialers = Vec::new();
        let mut is_dialled = false;
        for port in 0..network.topology.leaving(index).len() {
            let neighbour = by_name[shared.neighbour(port)];
            let uses_tls = rack.uses_tls(neighbour);
            match &neighbour.address {
                Some(address) if is_dialling(&shared, port) => dialers.push((
                    port,
                    Dialer::Socket {
                        address: address.clone(),
                        tls: tls.clone().filter(|_| uses_tls),
                        name: neighbour.name.clone(),
                    },
                )),
                _ => is_dialled = true,
            }
        }
        let listener = match &this.address {
            Some(address) if is_dialled => {
                let tls = tls.filter(|_| rack.uses_tls(this));
                let bound = Listener::bind(address, tls).await;
                Some(bound.map_err(|source| StartError::Listen {
                    node: this.name.clone(),
                    address: address.clone(),
                    source,
                })?)
            }
            _ => None,
        };
        Ok(Self::run(shared, dialers, listener))
    }

    /// Starts all nodes of a rack in this process, in the order of their numbers, with links of
    /// memory in place of sockets: for tests, and for a look at a rack that is not there.
    pub fn in_process(rack: &Rack) -> Result<Vec<Self>, RackError> {
        let network = Arc::new(Network::new(rack)?);
        Ok(Self::wired(&network, &(Arc::new(memory) as Wire)))
    }

    pub(crate) fn wired(network: &Arc<Network>, wire: &Wire) -> Vec<Self> {
        let plugs = plugs(network);
        let nodes = 0..network.topology.nodes;
        nodes
            .map(|node| Self::plugged(network, node, wire, &plugs))
            .collect()
    }

    /// Starts one node of this process, whose neighbours reach it by its plug.
    pub(crate) fn plugged(
        network: &Arc<Network>,
        node: usize,
        wire: &Wire,
        plugs: &[Plug],
    ) -> Self {
        let (plug, incoming) = mpsc::channel(GREETING);
        *plugs[node].lock() = plug;
        let shared = Shared::new(network.clone(), node);
        let dialers = local_dialers(&shared, wire, plugs);
        Self::run(shared, dialers, Some(Listener::Local(incoming)))
    }

    fn run(shared: Arc<Shared>, dialers: Vec<(usize, Dialer)>, listener: Option<Listener>) -> Self {
        let mut tasks = JoinSet::new();
        for (port, dialer) in dialers {
            tasks.spawn(link::keep_dialling(shared.clone(), port, dialer));
        }
        if let Some(listener) = listener {
            tasks.spawn(listen(shared.clone(), listener));
        }
        tasks.spawn(link::keep_deadlines(shared.clone()));
        Self {
            shared,
            uses: Mutex::default(),
            runtime: Handle::current(),
            tasks,
        }
    }

    /// The endpoint of that name, to send and receive packets.
    ///
    /// # Errors
    /// `Unknown`; `Taken` if its streams were asked for.
    pub fn endpoint(&self, name: &str) -> Result<Endpoint, MeshError> {
        let endpoint = self.find(name)?;
        match self.uses.lock().entry(endpoint.slot()).or_insert(None) {
            None => Ok(endpoint),
            Some(_) => Err(MeshError::Taken(format!("endpoint '{name}'"))),
        }
    }

    /// The streams of the endpoint of that name, which carries nothing else then. Both ends of
    /// streams have to ask for them.
    ///
    /// # Errors
    /// `Unknown`; `Taken` if its packets were asked for.
    pub fn streams(&self, name: &str) -> Result<Streams, MeshError> {
        let endpoint = self.find(name)?;
        let mut uses = self.uses.lock();
        let slot = endpoint.slot();
        let used = uses
            .entry(slot)
            .or_insert_with(|| Some(Streams::new(endpoint, &self.runtime)));
        let taken = || MeshError::Taken(format!("endpoint '{name}'"));
        used.clone().ok_or_else(taken)
    }

    /// The name of this node in the rack file.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Where the tasks of this node run.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }

    fn find(&self, name: &str) -> Result<Endpoint, MeshError> {
        let mut endpoints = self.shared.network.endpoints.iter();
        match endpoints.position(|endpoint| endpoint.name == name) {
            Some(slot) => Ok(Endpoint::new(self.shared.clone(), slot)),
            None => Err(MeshError::Unknown(format!("endpoint '{name}'"))),
        }
    }

    /// Ends the links, and waits until the address is free. What was sent and has not reached a
    /// neighbour yet is lost, see [`Mesh::drain`].
    pub async fn close(mut self) {
        self.shared.switch.lock().close();
        self.tasks.shutdown().await;
    }

    /// Waits until the neighbours have all that this node has sent or forwarded, or the links are
    /// given up.
    pub async fn drain(&self) {
        loop {
            {
                let mut switch = self.shared.switch.lock();
                let is_waiting = |port: &Port| !port.is_drained() && port.state != State::Gone;
                if !switch.ports.iter().any(is_waiting) {
                    return;
                }
                for port in switch.ports.iter_mut().filter(|port| is_waiting(port)) {
                    port.ask();
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Tells all nodes that this one ends: they need not wait for it until the deadline. To be called when
    /// nothing is sent any more ([`Mesh::drain`]), and before [`Mesh::close`]. Waits until the neighbours
    /// whose links are up have heard it.
    pub async fn end(&self) {
        let neighbours: Vec<_> = {
            let mut switch = self.shared.switch.lock();
            switch.end();
            let ports = switch.ports.iter_mut().enumerate();
            let up = ports.filter(|(_, port)| port.state == State::Up);
            up.map(|(at, port)| {
                port.is_heard = false;
                (at, port.connection)
            })
            .collect()
        };
        loop {
            {
                let mut switch = self.shared.switch.lock();
                // A report that was asked for behind the notice; one that was under way counts, too, which
                // at worst has a neighbour wait for the deadline.
                let is_silent = |&&(at, connection): &&(usize, u64)| {
                    let port = &switch.ports[at];
                    port.connection == connection && !port.is_heard
                };
                let silent: Vec<_> = neighbours.iter().filter(is_silent).collect();
                if silent.is_empty() {
                    return;
                }
                for (at, _) in silent {
                    switch.ports[*at].ask();
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// How each link of this node is.
    pub fn links(&self) -> Vec<LinkStatus> {
        let switch = self.shared.switch.lock();
        let ports = switch.ports.iter().enumerate();
        let status = |(index, port): (usize, &Port)| LinkStatus {
            link: self.shared.link_name(index),
            neighbour: self.shared.neighbour(index).to_string(),
            is_up: port.state == State::Up,
            is_given_up: port.state == State::Gone,
            connections: port.counts.connections,
            sent_packets: port.counts.sent,
            sent_bytes: port.counts.sent_bytes,
            received_packets: port.counts.received,
            received_bytes: port.counts.received_bytes,
            sent_again_packets: port.counts.sent_again,
            lost_packets: port.counts.lost,
        };
        ports.map(status).collect()
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        self.shared.switch.lock().close();
    }
}

/// A plug for each node, with nobody behind it yet.
pub(crate) fn plugs(network: &Network) -> Vec<Plug> {
    let nodes = 0..network.topology.nodes;
    nodes
        .map(|_| Arc::new(Mutex::new(mpsc::channel(1).0)))
        .collect()
}

fn local_dialers(shared: &Shared, wire: &Wire, plugs: &[Plug]) -> Vec<(usize, Dialer)> {
    let leaving = shared.network.topology.leaving(shared.node);
    let ports = (0..leaving.len()).filter(|&port| is_dialling(shared, port));
    let dialer = |port: usize| {
        let neighbour = shared.network.topology.channels[leaving[port]].to.0;
        let wire = wire.clone();
        let listener = plugs[neighbour].clone();
        (port, Dialer::Local { wire, listener })
    };
    ports.map(dialer).collect()
}

/// Whether this is the end of a cable that dials: the first in the rack file.
fn is_dialling(shared: &Shared, port: usize) -> bool {
    let channel = shared.network.topology.leaving(shared.node)[port];
    channel < reverse(channel)
}

async fn listen(shared: Arc<Shared>, mut listener: Listener) {
    let greeting = Arc::new(Semaphore::new(GREETING));
    let mut links = JoinSet::new();
    loop {
        // Strangers that say nothing are sent away after a while; until then they take places.
        let Ok(place) = greeting.clone().acquire_owned().await else {
            return;
        };
        let incoming = match listener.accept().await {
            Ok(Some(incoming)) => incoming,
            Ok(None) => return,
            Err(error) => {
                log::warn!("mesh of node '{}': {error}", shared.name());
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while links.try_join_next().is_some() {}
        let shared = shared.clone();
        links.spawn(async move {
            let limit = shared.silence();
            match timeout(limit, incoming.finish()).await {
                Ok(Ok(connection)) => link::answer(shared, connection, place).await,
                Ok(Err(error)) => log::warn!("mesh: a connection was refused: {error}"),
                Err(_) => log::warn!("mesh: a connection said nothing"),
            }
        });
    }
}

/// A link as its node sees it. Totals are since the mesh was started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// Its ends, as `a/0 → b/1`.
    pub link: String,
    /// The node at the other end.
    pub neighbour: String,
    /// Whether it is connected.
    pub is_up: bool,
    /// Whether it is down for longer than the deadline.
    pub is_given_up: bool,
    /// How often it was connected.
    pub connections: u64,
    /// Packets sent over it, forwarded ones included.
    pub sent_packets: u64,
    /// Bytes of their payloads.
    pub sent_bytes: u64,
    /// Packets received over it.
    pub received_packets: u64,
    /// Bytes of their payloads.
    pub received_bytes: u64,
    /// Packets that were sent again after a connection broke.
    pub sent_again_packets: u64,
    /// Packets that were lost when the link was given up.
    pub lost_packets: u64,
}
