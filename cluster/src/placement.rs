//! Which node a segment lives on.

use std::collections::BTreeMap;
use std::sync::Arc;

use flashmesh_storage::segment::Segment;
use flashmesh_storage::store::NodeId;

/// The segments of a scan, by the node that owns them.
///
/// A segment lies whole on one node, so that its Program runs where all its pages are.
#[derive(Debug, Default)]
pub struct Placement {
    by_node: BTreeMap<NodeId, Vec<Arc<Segment>>>,
}

impl Placement {
    /// Sorts segments by owner, keeping their order within each node. A segment without columns
    /// has no pages and may be anywhere: it goes to node 0.
    pub fn new(segments: &[Arc<Segment>]) -> Self {
        let mut by_node: BTreeMap<NodeId, Vec<Arc<Segment>>> = BTreeMap::new();
        for segment in segments {
            let owner = segment
                .chunks
                .first()
                .map_or(NodeId::default(), |c| c.run.first.node);
            by_node.entry(owner).or_default().push(Arc::clone(segment));
        }
        Self { by_node }
    }

    /// The nodes with their segments, by node number.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, &[Arc<Segment>])> {
        self.by_node
            .iter()
            .map(|(node, segments)| (*node, segments.as_slice()))
    }
}
