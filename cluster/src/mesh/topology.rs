//! Nodes and the channels between them.

use std::collections::{BTreeMap, VecDeque};

/// One direction of a cable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Channel {
    /// The node that sends, and its port.
    pub from: (usize, u16),
    /// The node that receives, and its port.
    pub to: (usize, u16),
}

/// Nodes, numbered from 0, and channels. Channels 2 i and 2 i + 1 are the two directions of
/// cable i.
#[derive(Debug, Clone)]
pub(crate) struct Topology {
    pub nodes: usize,
    pub channels: Vec<Channel>,
    /// The channels that leave each node, in the order of its ports.
    leaving: Vec<Vec<usize>>,
}

/// The other direction of the same cable.
pub(crate) fn reverse(channel: usize) -> usize {
    channel ^ 1
}

impl Topology {
    /// Cables as pairs of (node, port).
    pub fn new(nodes: usize, cables: impl IntoIterator<Item = [(usize, u16); 2]>) -> Self {
        let both = |[a, b]: [(usize, u16); 2]| {
            let channel = |from, to| Channel { from, to };
            [channel(a, b), channel(b, a)]
        };
        let channels: Vec<Channel> = cables.into_iter().flat_map(both).collect();
        let mut by_port = vec![BTreeMap::new(); nodes];
        for (index, channel) in channels.iter().enumerate() {
            by_port[channel.from.0].insert(channel.from.1, index);
        }
        let leaving = by_port.into_iter().map(|ports| ports.into_values());
        Self {
            nodes,
            channels,
            leaving: leaving.map(Iterator::collect).collect(),
        }
    }

    /// The channels that leave a node, in the order of its ports.
    pub fn leaving(&self, node: usize) -> &[usize] {
        &self.leaving[node]
    }

    /// How many hops each node is from `destination`, by the channels that are allowed.
    pub fn hops(
        &self,
        destination: usize,
        is_allowed: impl Fn(&Channel) -> bool,
    ) -> Vec<Option<u32>> {
        let mut hops = vec![None; self.nodes];
        hops[destination] = Some(0);
        let mut queue = VecDeque::from([(destination, 0)]);
        while let Some((node, count)) = queue.pop_front() {
            for &leaving in self.leaving(node) {
                let towards = &self.channels[reverse(leaving)];
                let other = towards.from.0;
                if hops[other].is_none() && is_allowed(towards) {
                    hops[other] = Some(count + 1);
                    queue.push_back((other, count + 1));
                }
            }
        }
        hops
    }
}
