//! Racks of many shapes, as rack files.

use std::fmt::Write;

use rand::RngExt;
use rand::rngs::StdRng;

use crate::Rack;

/// Nodes and cables; ports are numbered as cables come.
pub(super) struct Shape {
    pub name: String,
    pub nodes: usize,
    pub cables: Vec<[(usize, u16); 2]>,
    used: Vec<u16>,
}

impl Shape {
    pub fn new(name: &str, nodes: usize) -> Self {
        Self {
            name: name.into(),
            nodes,
            cables: Vec::new(),
            used: vec![0; nodes],
        }
    }

    /// A cable between the next free ports of two nodes.
    pub fn join(&mut self, a: usize, b: usize) {
        let ends = [a, b].map(|node| {
            self.used[node] += 1;
            (node, self.used[node] - 1)
        });
        self.cables.push(ends);
    }

    /// The rack file; endpoints are (index, whether end to end). `more` is put in front.
    pub fn text(&self, endpoints: &[(u16, bool)], more: &str) -> String {
        let mut text = format!("{more}\n");
        for node in 0..self.nodes {
            let _ = write!(
                text,
                "[[node]]\nid = {node}\nname = 'n{node}'\naddress = 'unix:///n{node}'\n\
                 [[node.card]]\nid = 0\npath = 'n{node}'\n"
            );
        }
        for [(a, p), (b, q)] in &self.cables {
            let _ = write!(text, "[[cable]]\nfrom = 'n{a}/{p}'\nto = 'n{b}/{q}'\n");
        }
        for (index, is_end_to_end) in endpoints {
            let flow = if *is_end_to_end {
                "end-to-end"
            } else {
                "plain"
            };
            let _ = write!(
                text,
                "[[endpoint]]\nindex = {index}\nname = 'e{index}'\nflow = '{flow}'\n"
            );
        }
        text
    }

    pub fn rack(&self, endpoints: &[(u16, bool)], more: &str) -> Rack {
        Rack::parse(&self.text(endpoints, more)).unwrap()
    }
}

pub(super) fn line(nodes: usize, lanes: usize) -> Shape {
    let mut shape = Shape::new(&format!("line of {nodes}, {lanes} lanes"), nodes);
    for node in 1..nodes {
        for _ in 0..lanes {
            shape.join(node - 1, node);
        }
    }
    shape
}

pub(super) fn ring(nodes: usize) -> Shape {
    let mut shape = line(nodes, 1);
    shape.name = format!("ring of {nodes}");
    shape.join(nodes - 1, 0);
    shape
}

pub(super) fn torus(rows: usize, columns: usize) -> Shape {
    let mut shape = Shape::new(&format!("torus of {rows} x {columns}"), rows * columns);
    for row in 0..rows {
        for column in 0..columns {
            let node = row * columns + column;
            shape.join(node, row * columns + (column + 1) % columns);
            shape.join(node, (row + 1) % rows * columns + column);
        }
    }
    shape
}

/// Two roots, four nodes below both, eight leaves.
pub(super) fn fat_tree() -> Shape {
    let mut shape = Shape::new("fat tree", 14);
    for middle in 2..6 {
        shape.join(0, middle);
        shape.join(1, middle);
    }
    for leaf in 6..14 {
        let group = (leaf - 6) / 4;
        shape.join(2 + 2 * group, leaf);
        shape.join(3 + 2 * group, leaf);
    }
    shape
}

/// A connected graph, now and then with several lanes.
pub(super) fn random(chance: &mut StdRng, most: usize) -> Shape {
    let nodes = chance.random_range(2..=most);
    let mut shape = Shape::new(&format!("random of {nodes}"), nodes);
    for node in 1..nodes {
        shape.join(chance.random_range(0..node), node);
    }
    for _ in 0..chance.random_range(0..nodes) {
        let (a, b) = (chance.random_range(0..nodes), chance.random_range(0..nodes));
        if a != b {
            shape.join(a, b);
        }
    }
    shape
}
