//! A rack file to begin with.

use std::fmt::Write;
use std::path::Path;

use super::{COMMITS, DATABASE_FOLDER, Rack, RackError, STREAMS};

/// The ports of a node of the seeds (BlueDBM section 3.2): a draft uses no more.
const PORTS_MAX: usize = 8;

/// How the nodes of a new rack are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Each node with the next one.
    Line,
    /// The same, and the last with the first.
    Ring,
    /// Rows and columns, as square as the number of nodes lets them be.
    Grid,
    /// The same, with the ends of rows and columns joined.
    Torus,
    /// Each node with each other one.
    Full,
}

impl Shape {
    /// The nodes that each cable joins.
    fn cables(self, nodes: usize) -> Vec<(usize, usize)> {
        let line = || (1..nodes).map(|node| (node - 1, node));
        let columns = (1..=nodes.isqrt()).rev().find(|n| nodes.is_multiple_of(*n));
        let columns = nodes / columns.unwrap_or(1);
        let grid = || {
            let right = (0..nodes).filter(move |node| (node + 1) % columns != 0);
            let below = (0..nodes).filter(move |node| node + columns < nodes);
            let below = below.map(move |node| (node, node + columns));
            right.map(|node| (node, node + 1)).chain(below)
        };
        match self {
            Self::Line => line().collect(),
            // Two nodes are joined by the line already.
            Self::Ring if nodes > 2 => line().chain([(nodes - 1, 0)]).collect(),
            Self::Ring => line().collect(),
            Self::Grid => grid().collect(),
            Self::Torus => {
                let rows = nodes / columns;
                let rows_joined = (0..rows).map(|row| (row * columns + columns - 1, row * columns));
                let columns_joined = (0..columns).map(|column| (nodes - columns + column, column));
                let rows_joined = rows_joined.filter(|_| columns > 2);
                let columns_joined = columns_joined.filter(|_| rows > 2);
                grid().chain(rows_joined).chain(columns_joined).collect()
            }
            Self::Full => (0..nodes)
                .flat_map(|a| (a + 1..nodes).map(move |b| (a, b)))
                .collect(),
        }
    }
}

impl Rack {
    /// The text of a rack file for `nodes` processes of this machine, each with a card and a socket
    /// in the folder of its name under `folder`, which is absolute. The first is the head; clients
    /// come in at ports of this machine from `flight_port` on. The key's file is to be `rack.key`.
    ///
    /// # Errors
    /// `Invalid` where the shape takes more than 8 ports of a node, and as [`Rack::parse`].
    pub fn draft(
        folder: &Path,
        nodes: usize,
        shape: Shape,
        replicas: u16,
        flight_port: u16,
    ) -> Result<String, RackError> {
        let mut text = String::from(
            "# A rack of flashmesh: nodes with their flash cards, the cables between their ports, and the\n\
             # logical endpoints that every node has. docs/mesh.md says what else may be here.\n",
        );
        let quoted = |path: &Path| toml::Value::from(path.to_string_lossy().as_ref()).to_string();
        // Writing to a string does not fail.
        let name = |node: usize| format!("n{node:02}");
        let _ = write!(
            text,
            "head = \"{}\"        # keeps the catalog and answers SQL\n\
             key = \"rack.key\"    # the rack's secret: for its nodes, and nobody else\n\
             replicas = {replicas}\n",
            name(0)
        );
        for node in 0..nodes {
            let of_node = folder.join(name(node));
            let address = format!("unix://{}", of_node.join("mesh.sock").display());
            // The head's is the card of its database.
            let card = match node {
                0 => of_node.join(DATABASE_FOLDER).join("card0.flash"),
                _ => of_node.join("card0.flash"),
            };
            let _ = write!(
                text,
                "\n[[node]]\nid = {node}\nname = \"{}\"\naddress = {}\nflight = \"127.0.0.1:{}\"\n\
                 [[node.card]]\nid = 0\npath = {}\n",
                name(node),
                toml::Value::from(address),
                usize::from(flight_port) + node,
                quoted(&card),
            );
        }
        let mut ports = vec![0; nodes];
        for (a, b) in shape.cables(nodes) {
            let _ = write!(
                text,
                "\n[[cable]]\nfrom = \"{}/{}\"\nto = \"{}/{}\"\n",
                name(a),
                ports[a],
                name(b),
                ports[b]
            );
            ports[a] += 1;
            ports[b] += 1;
        }
        if let Some(most) = ports.iter().max().filter(|most| **most > PORTS_MAX) {
            return Err(RackError::Invalid(format!(
                "{nodes} nodes of this shape take {most} ports of a node, which has {PORTS_MAX}"
            )));
        }
        let others = ["frontiers", COMMITS, STREAMS];
        let endpoints = crate::cards::endpoint_names().into_iter().chain(others);
        if replicas > 1 {
            // Who waits for a node that does not come back waits no longer than people do.
            text.push_str("\n[mesh]\ndeadline_ms = 3000\n");
        }
        for (index, endpoint) in endpoints.enumerate() {
            let _ = write!(
                text,
                "\n[[endpoint]]\nindex = {index}\nname = \"{endpoint}\"\nflow = \"end-to-end\"\n"
            );
        }
        Self::parse(&text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [Shape; 5] = [
        Shape::Line,
        Shape::Ring,
        Shape::Grid,
        Shape::Torus,
        Shape::Full,
    ];

    #[test]
    fn drafts_are_racks_without_deadlock_or_say_what_is_wrong() {
        for nodes in 1..=20 {
            for shape in SHAPES {
                let text = Rack::draft(Path::new("/racks/it's \"one\""), nodes, shape, 1, 50051);
                match text {
                    Ok(text) => {
                        let rack = Rack::parse(&text).unwrap();
                        assert_eq!(rack.nodes.len(), nodes);
                        assert_eq!(rack.head().name, "n00");
                        assert!(rack.endpoints.iter().any(|one| one.name == STREAMS));
                        let ports = rack.nodes.iter().map(|node| node.flight.unwrap().port());
                        assert!(ports.eq(50051..50051 + nodes as u16));
                        let least = nodes - 1;
                        assert!(rack.cables.len() >= least, "{shape:?} of {nodes}");
                    }
                    Err(error) => {
                        assert!(
                            shape == Shape::Full && nodes > 9,
                            "{shape:?} of {nodes}: {error}"
                        );
                        assert!(error.to_string().contains("ports of a node"), "{error}");
                    }
                }
            }
        }
    }

    #[test]
    fn shapes_have_the_cables_that_they_are_named_for() {
        let count = |shape: Shape, nodes| shape.cables(nodes).len();
        assert_eq!(count(Shape::Line, 20), 19);
        assert_eq!(count(Shape::Ring, 20), 20);
        assert_eq!(count(Shape::Grid, 20), 4 * 4 + 3 * 5);
        assert_eq!(count(Shape::Torus, 20), 40);
        assert_eq!(count(Shape::Full, 9), 36);
        assert_eq!(count(Shape::Ring, 2), 1);
        assert_eq!(count(Shape::Torus, 4), 4);
    }

    #[test]
    fn more_replicas_than_nodes_are_refused() {
        let error = Rack::draft(Path::new("/r"), 2, Shape::Ring, 3, 50051).unwrap_err();
        assert!(error.to_string().contains("replicas"), "{error}");
        assert!(Rack::draft(Path::new("/r"), 0, Shape::Ring, 1, 50051).is_err());
        assert!(Rack::draft(Path::new("/r"), 3, Shape::Ring, 1, 65533).is_ok());
        assert!(Rack::draft(Path::new("/r"), 3, Shape::Ring, 1, 65534).is_err());
        assert!(Rack::draft(Path::new("/r"), 3, Shape::Ring, 1, 0).is_err());
    }
}
