//! The rack file.

mod address;
mod check;
mod draft;
mod edit;
mod key;
mod placement;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use flashmesh_pages::store::{CardId, NodeId};
use serde::Deserialize;

pub use address::Address;
pub use draft::Shape;
pub use edit::{NewNode, RackFile};
pub use key::RackKey;
pub use placement::holders;

/// The endpoint of the rack file that carries byte streams: clients' connections, and questions how
/// nodes are.
pub const STREAMS: &str = "streams";

/// The endpoint of the rack file on which nodes agree on commits.
pub const COMMITS: &str = "commits";

/// The folder of the head's database, within its own.
pub const DATABASE_FOLDER: &str = "db";

/// A rack: its nodes with their flash cards, and the mesh between them.
///
/// ```
/// let rack = flashmesh_cluster::Rack::parse(r#"
///     [[node]]
///     id = 0
///     name = "left"
///     address = "unix:///run/flashmesh/left.sock"
///     [[node.card]]
///     id = 0
///     path = "/data/left.flash"
///
///     [[node]]
///     id = 1
///     name = "right"
///     address = "unix:///run/flashmesh/right.sock"
///     [[node.card]]
///     id = 0
///     path = "/data/right.flash"
///
///     [[cable]]
///     from = "left/0"
///     to = "right/0"
///
///     [[endpoint]]
///     index = 0
///     name = "pages"
///     flow = "end-to-end"
/// "#)?;
/// assert_eq!(rack.cables[0].to.node, "right");
/// # Ok::<(), flashmesh_cluster::RackError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rack {
    /// The nodes, each with a number of its own.
    #[serde(rename = "node")]
    pub nodes: Vec<Node>,
    /// The cables between ports of nodes.
    #[serde(rename = "cable", default)]
    pub cables: Vec<Cable>,
    /// The logical endpoints, which every node has.
    #[serde(rename = "endpoint", default)]
    pub endpoints: Vec<Endpoint>,
    /// Ports that packets are to take, in place of those that are computed.
    #[serde(rename = "route", default)]
    pub routes: Vec<Route>,
    /// On how many nodes each segment of a table is to lie.
    #[serde(default = "one")]
    pub replicas: u16,
    /// What packets, buffers and waiting times of the mesh are bounded by.
    #[serde(default)]
    pub mesh: MeshSettings,
    /// Whose certificates count; needed where nodes have addresses of other machines.
    pub tls: Option<Authorities>,
    /// The name of the node that keeps the catalog and answers SQL: see [`Rack::head`].
    #[serde(rename = "head")]
    pub head_name: Option<String>,
    /// The file with the rack's secret: see [`Rack::key`].
    #[serde(rename = "key")]
    pub key_file: Option<PathBuf>,
    /// How clients are served, at whichever node they come in.
    #[serde(default)]
    pub clients: Clients,
}

/// How the head serves the clients of all nodes. Files are read by the head.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Clients {
    /// The users file. Without one, and without users in the database, everybody who can connect is an
    /// admin.
    pub users: Option<PathBuf>,
    /// Everybody has to log in.
    pub require_login: bool,
    /// The audit log of the node that is the head.
    pub audit_log: Option<PathBuf>,
    /// The secret of tokens; without one, tokens end with the head.
    pub token_secret: Option<PathBuf>,
    /// Certificate and key of all nodes' Flight addresses: what clients send is read by the head
    /// alone.
    pub tls: Option<Identity>,
    /// Serve other machines without TLS.
    pub allow_plaintext: bool,
    /// Serve other machines without users.
    pub allow_anonymous: bool,
    /// Where the head's page, `/metrics` and `/healthz` listen.
    pub http: Option<SocketAddr>,
}

/// One machine of the rack.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its number in page addresses.
    pub id: u16,
    /// Its name in messages, in cables, and in its certificate.
    pub name: String,
    /// Its flash cards, each with a number of its own within the node.
    #[serde(rename = "card")]
    pub cards: Vec<Card>,
    /// Where it waits for its neighbours; needed when a cable leads `to` it.
    pub address: Option<Address>,
    /// What it shows of itself; needed when its address is one of TCP.
    pub tls: Option<Identity>,
    /// Where clients come in, by Flight SQL over TCP.
    pub flight: Option<SocketAddr>,
    /// What it keeps besides its cards: its lock, its log, and the head's catalog. By default a
    /// folder of its name beside the rack file.
    #[serde(default)]
    pub folder: PathBuf,
    /// Nothing new goes to its cards, and what is there goes to those of others, so that it can leave
    /// the rack.
    #[serde(default)]
    pub drained: bool,
}

/// One flash card of a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its number in page addresses.
    pub id: u16,
    /// The file or block device that holds its pages.
    pub path: PathBuf,
}

impl Card {
    /// Its number, as page addresses have it.
    pub fn number(&self) -> CardId {
        CardId(self.id)
    }
}

/// Where certificates of nodes are checked against.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Authorities {
    /// A file (PEM) with the certificates of those who may sign nodes' certificates.
    pub authorities: PathBuf,
}

/// A node's certificate, for its name, and the key of it. Only the node itself reads them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// A file (PEM) with the certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// A file (PEM) with the private key.
    pub key: PathBuf,
}

/// A cable: a link in each direction. The node at `from` dials.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// One end.
    pub from: Port,
    /// The other.
    pub to: Port,
}

/// A port of a node; in the file `"name/number"`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Port {
    /// The node's name.
    pub node: String,
    /// The port's number.
    pub number: u16,
}

/// A logical endpoint of the mesh.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Its number in packets.
    pub index: u16,
    /// Its name in messages and routes.
    pub name: String,
    /// How it is kept from sending more than the receiver takes.
    #[serde(default)]
    pub flow: Flow,
}

/// The flow control of an endpoint, above that of the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Flow {
    /// None: a receiver that takes nothing blocks the links on the way to it.
    #[default]
    Plain,
    /// A packet is sent when it has a place at its destination: nobody else is ever blocked.
    EndToEnd,
}

/// A port for packets of an endpoint to a destination.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The name of the node where the packet is.
    pub node: String,
    /// The endpoint's name; all, if none is given.
    pub endpoint: Option<String>,
    /// The name of the node that it is for.
    pub destination: String,
    /// The port of `node` that it leaves by.
    pub port: u16,
}

/// The bounds of the mesh, the same on all nodes.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeshSettings {
    /// The most bytes that a packet carries: by default 8 pages and what is said of them.
    pub packet_bytes: u32,
    /// Packets in the buffer behind each direction of a cable: the tokens of a link.
    pub link_packets: u32,
    /// Packets that an endpoint without end-to-end flow control holds for its receiver.
    pub endpoint_packets: u32,
    /// Packets of an endpoint with it that are under way from one node to another, or not yet
    /// taken there.
    pub window_packets: u32,
    /// A link that nothing was heard of for so long, in milliseconds, is connected anew.
    pub silence_ms: u64,
    /// A neighbour that can't be connected to for so long, in milliseconds, is given up: what
    /// waits for it is lost, and senders are told.
    pub deadline_ms: u64,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            packet_bytes: 65_792,
            link_packets: 64,
            endpoint_packets: 32,
            window_packets: 16,
            silence_ms: 5_000,
            deadline_ms: 30_000,
        }
    }
}

/// Why a rack file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RackError {
    /// It could not be read.
    #[error("rack file {path:?}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// It is not TOML of the right shape; the message names line and key.
    #[error("rack file: {0}")]
    Syntax(#[from] toml::de::Error),
    /// It contradicts itself, or asks for what this version has not.
    #[error("rack file: {0}")]
    Invalid(String),
    /// The rack's key could not be read or written.
    #[error("the rack's key {path:?}: {source}")]
    KeyIo {
        /// The file.
        path: PathBuf,
        /// The system's word.
        source: std::io::Error,
    },
    /// The file of the rack's key has none, or others may read it.
    #[error("the rack's key {path:?}: {why}")]
    Key {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

impl Rack {
    /// Reads a rack file. Paths in it that don't begin with a `/` are those of its folder.
    pub fn load(path: &Path) -> Result<Self, RackError> {
        let failed = |source| RackError::Io {
            path: path.to_path_buf(),
            source,
        };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let mut rack = Self::parse(&text)?;
        let file = std::path::absolute(path).map_err(failed)?;
        rack.place(file.parent().unwrap_or(Path::new("/")));
        Ok(rack)
    }

    /// Makes paths absolute.
    fn place(&mut self, folder: &Path) {
        fn identity(identity: &mut Identity) -> [&mut PathBuf; 2] {
            [&mut identity.certificate, &mut identity.key]
        }
        let clients = &mut self.clients;
        let files = [
            &mut self.key_file,
            &mut clients.users,
            &mut clients.audit_log,
            &mut clients.token_secret,
        ];
        let mut paths: Vec<&mut PathBuf> = files.into_iter().flatten().collect();
        paths.extend(self.tls.as_mut().map(|tls| &mut tls.authorities));
        paths.extend(clients.tls.iter_mut().flat_map(identity));
        for node in &mut self.nodes {
            paths.push(&mut node.folder);
            paths.extend(node.tls.iter_mut().flat_map(identity));
            paths.extend(node.cards.iter_mut().map(|card| &mut card.path));
        }
        for path in paths {
            *path = folder.join(&*path);
        }
    }

    /// The rack that `text` (TOML) describes.
    ///
    /// # Errors
    /// `Syntax`; `Invalid` for what contradicts itself: no node, a number, name, path or port
    /// used twice, a cable to a node that is not there, a node that no cable leads to, routes
    /// that lead nowhere or in which packets could wait for each other in a circle.
    pub fn parse(text: &str) -> Result<Self, RackError> {
        let mut rack: Self = toml::from_str(text)?;
        for node in &mut rack.nodes {
            if node.folder.as_os_str().is_empty() {
                node.folder = PathBuf::from(&node.name);
            }
        }
        rack.check()?;
        crate::mesh::Network::new(&rack)?;
        Ok(rack)
    }

    /// The rack of an embedded database: this machine and one card.
    pub fn single(card: PathBuf) -> Self {
        let cards = vec![Card {
            id: CardId::default().0,
            path: card,
        }];
        Self {
            nodes: vec![Node {
                id: NodeId::default().0,
                name: "local".into(),
                cards,
                address: None,
                tls: None,
                flight: None,
                folder: "local".into(),
                drained: false,
            }],
            cables: Vec::new(),
            endpoints: Vec::new(),
            routes: Vec::new(),
            replicas: one(),
            mesh: MeshSettings::default(),
            tls: None,
            head_name: None,
            key_file: None,
            clients: Clients::default(),
        }
    }

    /// The node that keeps the catalog and answers SQL: the one that the rack file names, else the
    /// first.
    pub fn head(&self) -> &Node {
        let named = self.head_name.as_deref().and_then(|name| self.node(name));
        // A rack has a node, and its head is one of them: that was checked.
        named.unwrap_or(&self.nodes[0])
    }

    /// The node of that name.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }
}

impl Node {
    /// Whether its neighbours, and so its processes, may be on other machines.
    pub fn is_remote(&self) -> bool {
        self.address.as_ref().is_some_and(Address::needs_tls)
    }

    /// Its number, as page addresses and the mesh have it.
    pub fn number(&self) -> NodeId {
        NodeId(self.id)
    }

    /// Its cards, as page addresses have them.
    pub fn places(&self) -> impl Iterator<Item = (NodeId, CardId)> {
        let node = self.number();
        self.cards.iter().map(move |card| (node, card.number()))
    }
}

fn one() -> u16 {
    1
}

impl TryFrom<String> for Port {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.rsplit_once('/');
        let port = parts.and_then(|(node, number)| {
            let number = number.parse().ok()?;
            (!node.is_empty()).then(|| Self {
                node: node.into(),
                number,
            })
        });
        port.ok_or_else(|| format!("'{text}' is not a port; write \"name of a node/number\""))
    }
}

impl std::fmt::Display for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.node, self.number)
    }
}

impl std::fmt::Display for Cable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} – {}", self.from, self.to)
    }
}
