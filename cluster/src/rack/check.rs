//! Whether a rack file contradicts itself. What concerns routes is checked where they are made
//! (`mesh::Network`).

use std::collections::{HashMap, HashSet};
use std::hash::Hash;

use super::{Address, MeshSettings, Node, Port, Rack, RackError};

type Checked = Result<(), RackError>;

/// More nodes than this, or more endpoints, make tables of routes that nobody wants.
const MOST_NODES: usize = 256;
const MOST_ENDPOINTS: usize = 32;
/// What the system takes.
const SOCKET_PATH_MAX: usize = 107;

impl Rack {
    pub(super) fn check(&self) -> Checked {
        self.check_nodes()?;
        self.check_cables()?;
        self.check_endpoints()?;
        self.mesh.check()?;
        let nodes = self.nodes.len();
        if self.replicas == 0 || usize::from(self.replicas) > nodes {
            let replicas = self.replicas;
            return invalid(format!(
                "replicas = {replicas}, but with {nodes} nodes it may be 1 to {nodes}"
            ));
        }
        match self.catalog_nodes().iter().find(|node| node.drained) {
            Some(node) => invalid(format!(
                "node '{}' is drained, but keeps the catalog",
                node.name
            )),
            None => Ok(()),
        }
    }

    fn check_nodes(&self) -> Checked {
        if self.nodes.is_empty() || self.nodes.len() > MOST_NODES {
            return invalid(format!(
                "{} nodes; a rack has 1 to {MOST_NODES}, each a [[node]]",
                self.nodes.len()
            ));
        }
        let nodes = &self.nodes;
        once(nodes.iter().map(|node| node.id), |id| {
            format!("two nodes of number {id}")
        })?;
        once(nodes.iter().map(|node| &node.name), |name| {
            format!("two nodes are named '{name}'")
        })?;
        let addresses = nodes.iter().filter_map(|node| node.address.as_ref());
        once(addresses, |address| format!("two nodes have {address}"))?;
        let cards = nodes.iter().flat_map(|node| &node.cards);
        let paths = cards.map(|card| &card.path);
        // Machines of their own may well use one path.
        if nodes.iter().all(|node| !node.is_remote()) {
            once(paths, |path| {
                format!("two cards use {path:?}; each needs a file of its own")
            })?;
            once(nodes.iter().map(|node| &node.folder), |folder| {
                format!("two nodes have the folder {folder:?}; each needs one of its own")
            })?;
            once(nodes.iter().filter_map(|node| node.flight), |flight| {
                format!("two nodes wait for clients at {flight}")
            })?;
        }
        match &self.head_name {
            Some(head) if self.node(head).is_none() => {
                return invalid(format!("head = '{head}', but there is no such node"));
            }
            _ => {}
        }
        nodes.iter().try_for_each(|node| self.check_node(node))
    }

    /// Whether links that `node` waits for use TLS.
    pub(crate) fn uses_tls(&self, node: &Node) -> bool {
        self.tls.is_some() && matches!(node.address, Some(Address::Tcp { .. }))
    }

    fn check_node(&self, node: &Node) -> Checked {
        let name = &node.name;
        if name.is_empty() || name.contains('/') {
            return invalid(format!(
                "'{name}' can't be the name of a node: empty, or with a '/'"
            ));
        }
        if let Some(Address::Unix(path)) = &node.address
            && path.as_os_str().len() > SOCKET_PATH_MAX
        {
            return invalid(format!(
                "node '{name}' has a socket at {path:?}, but a socket's path has {SOCKET_PATH_MAX} bytes \
                 at most"
            ));
        }
        if node.flight.is_some_and(|flight| flight.port() == 0) {
            return invalid(format!(
                "node '{name}' has the port 0 in 'flight': clients could not know it"
            ));
        }
        if node.cards.is_empty() {
            return invalid(format!("node '{name}' has no [[node.card]]"));
        }
        let paths = node.cards.iter().map(|card| &card.path);
        once(paths, |path| {
            format!("two cards use {path:?}; each needs a file of its own")
        })?;
        once(node.cards.iter().map(|card| card.id), |id| {
            format!("node '{name}' has two cards of number {id}")
        })?;
        if !node.is_remote() {
            return Ok(());
        }
        if node.tls.is_none() || self.tls.is_none() {
            return invalid(format!(
                "node '{name}' is reached over TCP, which takes [node.tls] with certificate and \
                 key of the node, and [tls] with the authorities of all"
            ));
        }
        match rustls::pki_types::DnsName::try_from(name.as_str()) {
            Ok(_) => Ok(()),
            Err(_) => invalid(format!(
                "node '{name}' can't be named in a certificate: use letters, digits, '-' and '.'"
            )),
        }
    }

    fn check_cables(&self) -> Checked {
        let nodes: HashMap<&str, &Node> = self
            .nodes
            .iter()
            .map(|node| (node.name.as_str(), node))
            .collect();
        let end = |port: &Port| match nodes.get(port.node.as_str()) {
            Some(node) => Ok(*node),
            None => Err(RackError::Invalid(format!(
                "a cable ends at {port}, but there is no node '{}'",
                port.node
            ))),
        };
        for cable in &self.cables {
            let (from, to) = (end(&cable.from)?, end(&cable.to)?);
            if to.address.is_none() {
                return invalid(format!(
                    "node '{}' is dialled by the cable {cable}, but has no address",
                    to.name
                ));
            }
            if self.uses_tls(to) && (from.tls.is_none() || to.tls.is_none()) {
                return invalid(format!(
                    "the cable {cable} uses TLS, so both nodes need [node.tls]"
                ));
            }
            if cable.from.node == cable.to.node {
                return invalid(format!("the cable {cable} joins a node to itself"));
            }
        }
        let ports = self
            .cables
            .iter()
            .flat_map(|cable| [&cable.from, &cable.to]);
        once(ports, |port| format!("two cables end at {port}"))
    }

    fn check_endpoints(&self) -> Checked {
        if self.endpoints.len() > MOST_ENDPOINTS {
            return invalid(format!(
                "{} endpoints; there may be {MOST_ENDPOINTS}",
                self.endpoints.len()
            ));
        }
        once(self.endpoints.iter().map(|one| one.index), |index| {
            format!("two endpoints of index {index}")
        })?;
        once(self.endpoints.iter().map(|one| &one.name), |name| {
            format!("two endpoints are named '{name}'")
        })
    }
}

impl MeshSettings {
    fn check(&self) -> Checked {
        let bounds = [
            ("packet_bytes", u64::from(self.packet_bytes), 16, 1 << 20),
            ("link_packets", u64::from(self.link_packets), 1, 1 << 16),
            (
                "endpoint_packets",
                u64::from(self.endpoint_packets),
                1,
                1 << 16,
            ),
            (
                "window_packets",
                u64::from(self.window_packets),
                1,
                (1 << 16) - 1,
            ),
            ("silence_ms", self.silence_ms, 10, 3_600_000),
            ("deadline_ms", self.deadline_ms, 10, 86_400_000),
        ];
        for (name, value, least, most) in bounds {
            if !(least..=most).contains(&value) {
                return invalid(format!(
                    "mesh.{name} = {value}; it may be {least} to {most}"
                ));
            }
        }
        Ok(())
    }
}

fn invalid(why: String) -> Checked {
    Err(RackError::Invalid(why))
}

/// Refuses a value that comes twice.
fn once<T: Eq + Hash + Copy>(
    values: impl IntoIterator<Item = T>,
    message: impl Fn(T) -> String,
) -> Checked {
    let mut seen = HashSet::new();
    match values.into_iter().find(|&value| !seen.insert(value)) {
        Some(value) => invalid(message(value)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::{MeshSettings, Rack};

    fn refused(text: &str) -> String {
        Rack::parse(text)
            .expect_err("the rack file should be refused")
            .to_string()
    }

    fn node(id: u16, name: &str, rest: &str) -> String {
        format!(
            "[[node]]\nid = {id}\nname = '{name}'\n{rest}\n[[node.card]]\nid = 0\npath = '{name}'\n"
        )
    }

    fn local(id: u16, name: &str) -> String {
        node(id, name, &format!("address = 'unix:///{name}'"))
    }

    fn cable(from: &str, to: &str) -> String {
        format!("[[cable]]\nfrom = '{from}'\nto = '{to}'\n")
    }

    #[test]
    fn a_single_node_reads_back() {
        let text = "[[node]]\nid = 0\nname = 'local'\n[[node.card]]\nid = 0\npath = 'a.flash'\n";
        assert_eq!(Rack::parse(text).unwrap(), Rack::single("a.flash".into()));
    }

    /// The rack file of docs/mesh.md is one, and its bounds are the defaults.
    #[test]
    fn the_documented_rack_file_is_one() {
        let page = include_str!("../../../docs/mesh.md");
        let text = page.split("```toml\n").nth(1).unwrap();
        let rack = Rack::parse(text.split("```").next().unwrap()).unwrap();
        assert_eq!(rack.mesh, MeshSettings::default());
        assert_eq!(
            (rack.nodes.len(), rack.routes.len(), rack.replicas),
            (2, 1, 1)
        );
        assert_eq!(rack.head().name, "left");
        assert!(rack.nodes.iter().all(|node| node.flight.is_some()));
        assert!(rack.key_file.is_some() && rack.clients.users.is_some());
    }

    #[test]
    fn the_head_is_the_first_node_or_the_one_that_is_named() {
        let pair = format!("{}{}{}", local(0, "a"), local(1, "b"), cable("a/0", "b/0"));
        assert_eq!(Rack::parse(&pair).unwrap().head().name, "a");
        let rack = Rack::parse(&format!("head = 'b'\n{pair}")).unwrap();
        assert_eq!(rack.head().name, "b");
        assert!(
            refused(&format!("head = 'c'\n{pair}")).contains("head = 'c', but there is no such")
        );
    }

    #[test]
    fn paths_are_those_of_the_rack_files_folder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rack.toml");
        let text = format!(
            "key = 'k'\n{}{}{}[clients]\nusers = 'u'\ntoken_secret = '/t'\n",
            node(0, "a", "address = 'unix:///a'\nfolder = 'data'"),
            local(1, "b"),
            cable("a/0", "b/0")
        );
        std::fs::write(&file, text).unwrap();
        let rack = Rack::load(&file).unwrap();
        let of_rack = |name: &str| folder.path().join(name);
        assert_eq!(rack.nodes[0].folder, of_rack("data"));
        assert_eq!(rack.nodes[1].folder, of_rack("b"));
        assert_eq!(rack.nodes[0].cards[0].path, of_rack("a"));
        assert_eq!(rack.key_file, Some(of_rack("k")));
        assert_eq!(rack.clients.users, Some(of_rack("u")));
        assert_eq!(rack.clients.token_secret, Some("/t".into()));
    }

    #[test]
    fn contradictions_are_named() {
        assert!(refused("node = []").contains("0 nodes"));
        assert!(refused("[[node]]\nid = 0\nname = 'a'\ncard = []").contains("no [[node.card]]"));
        let card = "[[node.card]]\nid = 3\npath = 'a'\n";
        let other = "[[node.card]]\nid = 3\npath = 'b'\n";
        let twice = format!("[[node]]\nid = 0\nname = 'a'\n{card}{other}");
        assert!(refused(&twice).contains("two cards of number 3"));
        let twice = format!("[[node]]\nid = 0\nname = 'a'\n{card}{card}");
        assert!(refused(&twice).contains("two cards use \"a\""));
        assert!(refused("[[node]]\nid = 0\nname = 'a'\ncolour = 1\ncard = []").contains("colour"));
    }

    #[test]
    fn contradictions_between_nodes_are_named() {
        let (a, b) = (local(0, "a"), local(1, "b"));
        let pair = format!("{a}{b}");
        let cases = [
            (
                format!("{a}{}", local(0, "c")),
                "two nodes of number 0".to_string(),
            ),
            (
                format!("{a}{}", local(1, "a")),
                "two nodes are named 'a'".into(),
            ),
            (
                format!("{pair}{}", cable("a/0", "c/0")),
                "no node 'c'".into(),
            ),
            (
                format!("{pair}{}", cable("a/0", "a/1")),
                "joins a node to itself".into(),
            ),
            (
                format!("{pair}{}{}", cable("a/0", "b/0"), cable("a/0", "b/1")),
                "two cables end at a/0".into(),
            ),
            (
                format!("{pair}{}", cable("a", "b/1")),
                "'a' is not a port".into(),
            ),
            (pair.clone(), "no cables lead from 'a' to 'b'".into()),
            (
                format!("{a}{}{}", node(1, "b", ""), cable("a/0", "b/0")),
                "node 'b' is dialled by the cable a/0 – b/0, but has no address".into(),
            ),
            (
                format!(
                    "{a}{}{}",
                    node(1, "b", "address = 'b:1'"),
                    cable("a/0", "b/0")
                ),
                "'b:1' is not an address".into(),
            ),
            (
                format!(
                    "{a}{}{}",
                    node(1, "b", "address = 'tcp://10.0.0.1:7000'"),
                    cable("a/0", "b/0")
                ),
                "node 'b' is reached over TCP, which takes [node.tls]".into(),
            ),
            (
                format!(
                    "{}{}{}",
                    node(0, "a", "flight = '127.0.0.1:1'"),
                    node(1, "b", "address = 'unix:///b'\nflight = '127.0.0.1:1'"),
                    cable("a/0", "b/0")
                ),
                "two nodes wait for clients at 127.0.0.1:1".into(),
            ),
            (
                format!(
                    "{}{}{}",
                    node(0, "a", "folder = 'one'"),
                    node(1, "b", "address = 'unix:///b'\nfolder = 'one'"),
                    cable("a/0", "b/0")
                ),
                "two nodes have the folder \"one\"".into(),
            ),
            (node(0, "a", "flight = '127.0.0.1:0'"), "the port 0".into()),
            (
                node(0, "a", &format!("address = 'unix:///{}'", "x".repeat(107))),
                "107 bytes at most".into(),
            ),
            (
                format!("replicas = 3\n{pair}{}", cable("a/0", "b/0")),
                "replicas = 3, but with 2 nodes".into(),
            ),
            (
                format!("{pair}{}[mesh]\nlink_packets = 0\n", cable("a/0", "b/0")),
                "mesh.link_packets = 0".into(),
            ),
            (
                format!(
                    "{pair}{}[[endpoint]]\nindex = 1\nname = 'x'\n[[endpoint]]\nindex = 1\nname = 'y'\n",
                    cable("a/0", "b/0")
                ),
                "two endpoints of index 1".into(),
            ),
        ];
        for (text, expected) in cases {
            let message = refused(&text);
            assert!(message.contains(&expected), "{message}\nnot: {expected}");
        }
    }
}
