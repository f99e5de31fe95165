//! Changing a rack file, with its comments and its order.

use std::collections::HashSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use flashmesh_pages::store::NodeId;
use tempfile::NamedTempFile;
use toml_edit::{Array, ArrayOfTables, DocumentMut, InlineTable, Item, Table, value};

use super::{Identity, Node, Rack, RackError};

/// A rack file that is changed: what is there after each change is a rack.
#[derive(Debug)]
pub struct RackFile {
    path: PathBuf,
    document: DocumentMut,
    rack: Rack,
}

/// A node that comes into a rack. What is not said is as a drafted rack file has it, for a process of
/// this machine.
#[derive(Debug, Clone, Default)]
pub struct NewNode {
    /// Its name; `n` and its number.
    pub name: Option<String>,
    /// Where it waits for its neighbours: a socket in its folder.
    pub address: Option<String>,
    /// What it shows of itself; needed when its address is one of TCP.
    pub tls: Option<Identity>,
    /// Where clients come in: the port behind the last one of this machine.
    pub flight: Option<SocketAddr>,
    /// Its card: a file in its folder.
    pub card: Option<PathBuf>,
    /// The nodes that cables join it to: all where each has a cable to each other one, the last and the
    /// first where these have one to each other, else the last.
    pub neighbours: Vec<String>,
}

fn invalid(why: impl Into<String>) -> RackError {
    RackError::Invalid(why.into())
}

impl RackFile {
    /// Reads one.
    ///
    /// # Errors
    /// As [`Rack::load`].
    pub fn load(path: &Path) -> Result<Self, RackError> {
        let rack = Rack::load(path)?;
        let failed = |source| RackError::Io {
            path: path.to_path_buf(),
            source,
        };
        let text = std::fs::read_to_string(path).map_err(failed)?;
        let document = text.parse::<DocumentMut>();
        Ok(Self {
            path: std::path::absolute(path).map_err(failed)?,
            document: document.map_err(|error| invalid(error.to_string()))?,
            rack,
        })
    }

    /// The rack, as it is now.
    pub fn rack(&self) -> &Rack {
        &self.rack
    }

    /// Its text.
    pub fn text(&self) -> String {
        self.document.to_string()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Writes it: the file is the old one or the new one, whatever happens. The one of before is beside
    /// it, as `….before`.
    ///
    /// # Errors
    /// `Io`.
    pub fn store(&self) -> Result<(), RackError> {
        let replace = || {
            let mut before = self.path.clone().into_os_string();
            before.push(".before");
            std::fs::copy(&self.path, before)?;
            let mut file = NamedTempFile::new_in(self.folder())?;
            file.write_all(self.text().as_bytes())?;
            let permissions = std::fs::metadata(&self.path)?.permissions();
            file.as_file().set_permissions(permissions)?;
            file.as_file().sync_all()?;
            file.persist(&self.path)
                .map(drop)
                .map_err(|error| error.error)
        };
        replace().map_err(|source| RackError::Io {
            path: self.path.clone(),
            source,
        })
    }

    /// Takes over a changed document, if it is that of a rack whose catalog is kept by the same nodes.
    fn change(&mut self, document: DocumentMut) -> Result<(), RackError> {
        let mut rack = Rack::parse(&document.to_string())?;
        rack.place(self.folder());
        let (before, after) = (self.rack.keepers(), rack.keepers());
        if !before.is_empty() && before != after {
            let names = |rack: &Rack, numbers: &[NodeId]| {
                let nodes = rack.nodes.iter();
                let nodes = nodes.filter(|node| numbers.contains(&node.number()));
                let names: Vec<_> = nodes.map(|node| node.name.clone()).collect();
                match names.is_empty() {
                    true => "the head alone".into(),
                    false => names.join(", "),
                }
            };
            return Err(invalid(format!(
                "{} keep the catalog, and with this change it would be {}: these can't be exchanged (they \
                 are the head of the rack file and those behind it, so a head with a lower number may help)",
                names(&self.rack, &before),
                names(&rack, &after)
            )));
        }
        (self.document, self.rack) = (document, rack);
        Ok(())
    }

    /// Has a node be emptied, or filled again.
    ///
    /// # Errors
    /// `Invalid` for a node that is not there, or keeps the catalog.
    pub fn set_drained(&mut self, name: &str, is_drained: bool) -> Result<(), RackError> {
        self.find(name)?;
        let mut document = self.document.clone();
        for node in tables(&mut document, "node")?.iter_mut() {
            if text_of(node, "name") == Some(name) {
                match is_drained {
                    true => drop(node.insert("drained", value(true))),
                    false => drop(node.remove("drained")),
                }
            }
        }
        self.change(document)
    }

    /// Takes a node in, and gives its name.
    ///
    /// # Errors
    /// `Invalid` for neighbours that are not there, for what has to be said of nodes on several machines,
    /// and as [`Rack::parse`].
    pub fn add(&mut self, new: &NewNode) -> Result<String, RackError> {
        let rack = &self.rack;
        let numbers = rack.nodes.iter().map(|node| node.id);
        let id = numbers.max().map_or(0, |last| last + 1);
        let name = new.name.clone().unwrap_or_else(|| format!("n{id:02}"));
        let folder = self.folder().join(&name);
        let is_local = rack.nodes.iter().all(|node| !node.is_remote());
        let address = match &new.address {
            Some(address) => address.clone(),
            None if is_local => format!("unix://{}", folder.join("mesh.sock").display()),
            None => {
                return Err(invalid(format!(
                    "'{name}' needs an address: nodes of this rack are on several machines"
                )));
            }
        };
        let flight = new.flight.or_else(|| {
            let flights = rack.nodes.iter().filter_map(|node| node.flight);
            let last = flights.max_by_key(SocketAddr::port).filter(|_| is_local)?;
            Some(SocketAddr::new(last.ip(), last.port().checked_add(1)?))
        });
        let mut node = Table::new();
        node.decor_mut().set_prefix("\n");
        node.insert("id", value(i64::from(id)));
        node.insert("name", value(&name));
        node.insert("address", value(&address));
        if let Some(tls) = &new.tls {
            let mut identity = InlineTable::new();
            identity.insert("certificate", text(&tls.certificate)?.into());
            identity.insert("key", text(&tls.key)?.into());
            node.insert("tls", value(identity));
        }
        if let Some(flight) = flight {
            node.insert("flight", value(flight.to_string()));
        }
        let mut card = Table::new();
        let path = new
            .card
            .clone()
            .unwrap_or_else(|| folder.join("card0.flash"));
        card.insert("id", value(0));
        card.insert("path", value(text(&path)?));
        let mut cards = ArrayOfTables::new();
        cards.push(card);
        node.insert("card", Item::ArrayOfTables(cards));

        let neighbours = match new.neighbours.is_empty() {
            true => default_neighbours(rack),
            false => new.neighbours.clone(),
        };
        let mut cables = Vec::new();
        for (own_port, neighbour) in neighbours.iter().enumerate() {
            let neighbour = self.find(neighbour)?;
            let own = format!("{name}/{own_port}");
            let other = format!("{}/{}", neighbour.name, free_port(rack, neighbour));
            // Who has no address can't be dialled.
            cables.push(match neighbour.address {
                Some(_) => (own, other),
                None => (other, own),
            });
        }
        let mut document = self.document.clone();
        tables(&mut document, "node")?.push(node);
        let of_cables = tables(&mut document, "cable")?;
        for (from, to) in cables {
            let mut cable = Table::new();
            cable.decor_mut().set_prefix("\n");
            cable.insert("from", value(from));
            cable.insert("to", value(to));
            of_cables.push(cable);
        }
        self.change(document)?;
        Ok(name)
    }

    /// Takes a node out, with its cables and the routes that name it.
    ///
    /// # Errors
    /// `Invalid` for a node that is not there, or has a part in the catalog; as [`Rack::parse`] where the
    /// others are not joined without it.
    pub fn remove(&mut self, name: &str) -> Result<(), RackError> {
        self.find(name)?;
        if let Some(keeper) = self
            .rack
            .catalog_nodes()
            .iter()
            .find(|node| node.name == name)
        {
            let name = &keeper.name;
            return Err(invalid(format!("node '{name}' keeps the catalog")));
        }
        let mut document = self.document.clone();
        tables(&mut document, "node")?.retain(|node| text_of(node, "name") != Some(name));
        let is_at = |port: Option<&str>| {
            port.is_some_and(|port| port.rsplit_once('/').is_some_and(|(node, _)| node == name))
        };
        tables(&mut document, "cable")?
            .retain(|cable| !is_at(text_of(cable, "from")) && !is_at(text_of(cable, "to")));
        if document.contains_key("route") {
            tables(&mut document, "route")?.retain(|route| {
                ["node", "destination"]
                    .iter()
                    .all(|key| text_of(route, key) != Some(name))
            });
        }
        self.change(document)
    }

    fn find(&self, name: &str) -> Result<&Node, RackError> {
        self.rack.node(name).ok_or_else(|| {
            let names: Vec<_> = self
                .rack
                .nodes
                .iter()
                .map(|node| node.name.as_str())
                .collect();
            invalid(format!(
                "there is no node '{name}', but {}",
                names.join(", ")
            ))
        })
    }
}

/// The tables of that name, which are made if there is none.
fn tables<'a>(
    document: &'a mut DocumentMut,
    name: &str,
) -> Result<&'a mut ArrayOfTables, RackError> {
    let item = document
        .entry(name)
        .or_insert_with(|| Item::ArrayOfTables(ArrayOfTables::new()));
    if item.as_array().is_some_and(Array::is_empty) {
        *item = Item::ArrayOfTables(ArrayOfTables::new());
    }
    item.as_array_of_tables_mut().ok_or_else(|| {
        invalid(format!(
            "write each {name} under a line [[{name}]]: this can't be edited"
        ))
    })
}

fn text_of<'a>(table: &'a Table, key: &str) -> Option<&'a str> {
    table.get(key)?.as_str()
}

fn text(path: &Path) -> Result<&str, RackError> {
    path.to_str()
        .ok_or_else(|| invalid(format!("{path:?} is no UTF-8, as a rack file is")))
}

fn default_neighbours(rack: &Rack) -> Vec<String> {
    let joined: HashSet<_> = rack
        .cables
        .iter()
        .flat_map(|cable| {
            let (from, to) = (cable.from.node.as_str(), cable.to.node.as_str());
            [(from, to), (to, from)]
        })
        .collect();
    let names: Vec<_> = rack.nodes.iter().map(|node| node.name.as_str()).collect();
    let pairs = names
        .iter()
        .flat_map(|one| names.iter().map(move |other| (*one, *other)));
    let is_full = pairs
        .filter(|(one, other)| one != other)
        .all(|pair| joined.contains(&pair));
    let (first, last) = (names[0], names[names.len() - 1]);
    let neighbours = if is_full {
        names
    } else if joined.contains(&(first, last)) {
        vec![last, first]
    } else {
        vec![last]
    };
    neighbours.into_iter().map(String::from).collect()
}

/// The lowest port of a node that no cable ends at.
fn free_port(rack: &Rack, node: &Node) -> u16 {
    let ends = rack
        .cables
        .iter()
        .flat_map(|cable| [&cable.from, &cable.to]);
    let ends = ends.filter(|port| port.node == node.name);
    let taken: HashSet<u16> = ends.map(|port| port.number).collect();
    (0..=u16::MAX)
        .find(|port| !taken.contains(port))
        .unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;

    fn file(nodes: usize, shape: Shape, replicas: u16) -> (tempfile::TempDir, RackFile) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rack.toml");
        let text = Rack::draft(folder.path(), nodes, shape, replicas, 50051).unwrap();
        std::fs::write(
            &path,
            text.replace(
                "\n[[node]]\nid = 1\n",
                "\n# The second.\n[[node]]\nid = 1\n",
            ),
        )
        .unwrap();
        let file = RackFile::load(&path).unwrap();
        (folder, file)
    }

    fn cables_of(rack: &Rack, name: &str) -> Vec<String> {
        let cables = rack.cables.iter();
        let of = cables.filter(|cable| cable.from.node == name || cable.to.node == name);
        of.map(|cable| format!("{} {}", cable.from, cable.to))
            .collect()
    }

    #[test]
    fn a_node_comes_and_goes_and_the_rest_stays_as_it_was() {
        for (shape, neighbours) in [
            (Shape::Ring, "n04/0 n03/2, n04/1 n00/2"),
            (Shape::Line, "n04/0 n03/1"),
            (
                Shape::Full,
                "n04/0 n00/3, n04/1 n01/3, n04/2 n02/3, n04/3 n03/3",
            ),
        ] {
            let (folder, mut file) = file(4, shape, 1);
            let before = file.text();
            assert_eq!(file.add(&NewNode::default()).unwrap(), "n04");
            file.store().unwrap();
            let path = folder.path().join("rack.toml");
            let rack = Rack::load(&path).unwrap();
            assert_eq!(&rack, file.rack());
            assert!(file.text().contains("# The second.\n"));
            assert_eq!(cables_of(&rack, "n04").join(", "), neighbours);
            let node = rack.node("n04").unwrap();
            assert_eq!((node.id, node.drained), (4, false));
            assert_eq!(node.flight, Some("127.0.0.1:50055".parse().unwrap()));
            assert_eq!(node.cards[0].path, folder.path().join("n04/card0.flash"));
            file.set_drained("n04", true).unwrap();
            let drained = file.rack().nodes.iter().filter(|node| node.drained);
            assert_eq!(drained.map(|node| node.id).collect::<Vec<_>>(), [node.id]);
            file.set_drained("n04", false).unwrap();
            assert_eq!(file.rack(), &rack);
            file.remove("n04").unwrap();
            assert_eq!(file.text(), before);
        }
    }

    #[test]
    fn what_no_rack_can_be_is_refused_and_changes_nothing() {
        let (_folder, mut file) = file(4, Shape::Line, 2);
        let before = file.text();
        let refused = |result: Result<(), RackError>, why: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(file.set_drained("n07", true), "no node 'n07', but n00, n01");
        refused(
            file.set_drained("n01", true),
            "'n01' is drained, but keeps the catalog",
        );
        refused(file.remove("n01"), "'n01' keeps the catalog");
        let taken = NewNode {
            name: Some("n02".into()),
            ..NewNode::default()
        };
        refused(file.add(&taken).map(drop), "two nodes are named 'n02'");
        let nowhere = NewNode {
            neighbours: vec!["n09".into()],
            ..NewNode::default()
        };
        refused(file.add(&nowhere).map(drop), "no node 'n09'");
        let remote = NewNode {
            address: Some("tcp://10.0.0.7:7000".into()),
            ..NewNode::default()
        };
        refused(file.add(&remote).map(drop), "takes [node.tls]");
        assert_eq!(file.text(), before);
    }

    /// A head at the end has nodes of the rack's beginning behind it: a new one would take their place.
    #[test]
    fn who_keeps_the_catalog_stays() {
        let (folder, file) = file(4, Shape::Ring, 2);
        let path = folder.path().join("rack.toml");
        std::fs::write(
            &path,
            file.text().replace("head = \"n00\"", "head = \"n02\""),
        )
        .unwrap();
        let mut file = RackFile::load(&path).unwrap();
        let error = file.add(&NewNode::default()).unwrap_err().to_string();
        assert!(
            error.contains(
                "n00, n02, n03 keep the catalog, and with this change it would be n02, n03, n04"
            ),
            "{error}"
        );
        let mut two = super::tests::file(2, Shape::Line, 2).1;
        assert!(two.rack().keepers().is_empty());
        two.add(&NewNode::default()).unwrap();
        assert_eq!(two.rack().keepers(), [0, 1, 2].map(NodeId));
    }
}
