//! Which nodes have what, by the rack file alone.

use flashmesh_pages::store::NodeId;

use super::{Node, Rack};

/// The nodes that have a node's cards, that one first, of all `nodes` of a rack: those behind it in the
/// order of their numbers, the last followed by the first.
pub fn holders(nodes: &[NodeId], node: NodeId, replicas: u16) -> Vec<NodeId> {
    let mut nodes = nodes.to_vec();
    nodes.sort_unstable();
    let at = nodes.iter().position(|one| *one == node).unwrap_or(0);
    nodes.rotate_left(at);
    nodes.truncate(replicas.max(1).into());
    nodes
}

impl Rack {
    /// The numbers of its nodes.
    pub fn numbers(&self) -> Vec<NodeId> {
        self.nodes.iter().map(Node::number).collect()
    }

    /// The nodes that have a node's cards, that one first.
    pub fn holders(&self, node: NodeId) -> Vec<NodeId> {
        holders(&self.numbers(), node, self.replicas)
    }

    /// The nodes that keep the catalog: the head and those behind it, in the order of their numbers.
    /// Three, five where the rack has three copies of each card; none where there are no copies, or not
    /// that many nodes: then the head keeps it alone.
    pub fn keepers(&self) -> Vec<NodeId> {
        let count = match (self.replicas, self.nodes.len()) {
            (..=1, _) | (_, ..=2) => return Vec::new(),
            (3.., 5..) => 5,
            _ => 3,
        };
        holders(&self.numbers(), self.head().number(), count)
    }

    /// The nodes that have a part in the catalog: those that keep it, or the head.
    pub fn catalog_nodes(&self) -> Vec<&Node> {
        let mut numbers = self.keepers();
        if numbers.is_empty() {
            numbers.push(self.head().number());
        }
        let nodes = self.nodes.iter();
        nodes
            .filter(|node| numbers.contains(&node.number()))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_on_the_nodes_behind() {
        let nodes: Vec<_> = [4, 0, 9].map(NodeId).into();
        let of = |node, replicas| {
            let holders = holders(&nodes, NodeId(node), replicas);
            holders.into_iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(of(0, 1), [0]);
        assert_eq!(of(4, 2), [4, 9]);
        assert_eq!(of(9, 3), [9, 0, 4]);
        assert_eq!(of(9, 7), [9, 0, 4]);
    }
}
