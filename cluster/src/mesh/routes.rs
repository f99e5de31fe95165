//! The channel that packets of an endpoint take from a node to a destination, and whether packets
//! can wait for each other in a circle.

use std::cmp::Ordering;

use super::topology::Topology;

/// No channel: the packet is where it is for.
pub(crate) const HERE: u32 = u32::MAX;

/// A channel for each (node, endpoint, destination). Endpoints are numbered from 0 here, in the
/// order of their indices.
#[derive(Debug, Clone)]
pub(crate) struct Routes {
    nodes: usize,
    endpoints: usize,
    channels: Vec<u32>,
}

/// Packets that go this way don't arrive: at (node, endpoint, destination) it goes in circles.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lost {
    pub node: usize,
    pub endpoint: usize,
    pub destination: usize,
}

impl Routes {
    fn new(nodes: usize, endpoints: usize) -> Self {
        let channels = vec![HERE; nodes * endpoints * nodes];
        Self {
            nodes,
            endpoints,
            channels,
        }
    }

    fn at(&self, node: usize, endpoint: usize, destination: usize) -> usize {
        (node * self.endpoints + endpoint) * self.nodes + destination
    }

    /// The channel by which a packet leaves `node`; none where it has arrived.
    pub fn next(&self, node: usize, endpoint: usize, destination: usize) -> Option<usize> {
        let channel = self.channels[self.at(node, endpoint, destination)];
        (channel != HERE).then_some(channel as usize)
    }

    pub fn set(&mut self, node: usize, endpoint: usize, destination: usize, channel: usize) {
        let at = self.at(node, endpoint, destination);
        self.channels[at] = channel as u32;
    }

    /// The channels from `source` to `destination`.
    pub fn path(
        &self,
        topology: &Topology,
        source: usize,
        endpoint: usize,
        destination: usize,
    ) -> Result<Vec<usize>, Lost> {
        let mut path = Vec::new();
        let mut node = source;
        while node != destination {
            let next = self.next(node, endpoint, destination);
            let Some(channel) = next.filter(|_| path.len() < self.nodes) else {
                return Err(Lost {
                    node: source,
                    endpoint,
                    destination,
                });
            };
            path.push(channel);
            node = topology.channels[channel].to.0;
        }
        Ok(path)
    }

    /// Every (node, endpoint, destination) but those that are there already.
    pub fn all(&self) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
        let (nodes, endpoints) = (self.nodes, self.endpoints);
        (0..nodes)
            .flat_map(move |node| (0..endpoints).map(move |endpoint| (node, endpoint)))
            .flat_map(move |(node, endpoint)| (0..nodes).map(move |to| (node, endpoint, to)))
            .filter(|&(node, _, destination)| node != destination)
    }

    /// Channels that wait for each other in a circle, if there are any.
    ///
    /// A packet holds a place in the buffer behind one channel while it waits for the next one on
    /// its route: the first depends on the second. All endpoints share the buffers, so a rack is
    /// free of deadlock if the dependencies of all routes together have no cycle (Dally and Seitz,
    /// "Deadlock-free message routing in multiprocessor interconnection networks", 1987).
    pub fn cycle(&self, topology: &Topology) -> Result<Option<Vec<usize>>, Lost> {
        let mut after = vec![Vec::new(); topology.channels.len()];
        for (source, endpoint, destination) in self.all() {
            let path = self.path(topology, source, endpoint, destination)?;
            for pair in path.windows(2) {
                after[pair[0]].push(pair[1]);
            }
        }
        for following in &mut after {
            following.sort_unstable();
            following.dedup();
        }
        Ok(cycle_of(&after))
    }
}

/// A cycle of a graph, by a search in depth that does not recurse.
fn cycle_of(after: &[Vec<usize>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = vec![Mark::New; after.len()];
    for start in 0..after.len() {
        // The nodes on the path, each with the number of its successors that were looked at.
        let mut path = vec![(start, 0)];
        while let Some((node, looked_at)) = path.last_mut() {
            let node = *node;
            if *looked_at == 0 {
                if marks[node] == Mark::Done {
                    path.pop();
                    continue;
                }
                marks[node] = Mark::OnPath;
            }
            let Some(&next) = after[node].get(*looked_at) else {
                marks[node] = Mark::Done;
                path.pop();
                continue;
            };
            *looked_at += 1;
            match marks[next] {
                Mark::Done => {}
                Mark::New => path.push((next, 0)),
                Mark::OnPath => {
                    let on_path = path.iter().map(|&(node, _)| node);
                    return Some(on_path.skip_while(|&node| node != next).collect());
                }
            }
        }
    }
    None
}

/// Shortest of the paths that go up, towards node 0, and then down, never up again (Autonet,
/// Schroeder et al., 1991). A dependency is then from up to up, from up to down or from down to
/// down, so no cycle is possible, whatever endpoints choose.
///
/// A table does not know where a packet came from: a node from which a way down leads to the
/// destination uses it, all others go up. Among ways of the same length endpoints take turns.
///
/// # Errors
/// A node that no cables lead to from node 0.
pub(crate) fn up_down(topology: &Topology, endpoints: usize) -> Result<Routes, usize> {
    let levels = topology.hops(0, |_| true);
    if let Some(alone) = levels.iter().position(Option::is_none) {
        return Err(alone);
    }
    let rank = |node: usize| (levels[node], node);
    let is_down = |channel: usize| {
        let channel = &topology.channels[channel];
        rank(channel.from.0) < rank(channel.to.0)
    };
    let mut from_the_top: Vec<usize> = (0..topology.nodes).collect();
    from_the_top.sort_by_key(|&node| rank(node));
    let mut routes = Routes::new(topology.nodes, endpoints);
    for destination in 0..topology.nodes {
        let mut hops = topology.hops(destination, |channel| {
            rank(channel.from.0) < rank(channel.to.0)
        });
        let below: Vec<bool> = hops.iter().map(Option::is_some).collect();
        // The root reaches all nodes by going down, and what is above a node comes before it.
        for &node in from_the_top.iter().filter(|&&node| node != destination) {
            let ways = topology.leaving(node).iter().filter_map(|&channel| {
                let other = topology.channels[channel].to.0;
                let is_way = match below[node] {
                    true => is_down(channel) && below[other],
                    false => !is_down(channel),
                };
                is_way.then_some((hops[other]?, channel))
            });
            let ways = fewest(ways);
            hops[node] = ways.first().map(|&(length, _)| length + 1);
            spread(&mut routes, topology, node, destination, &ways);
        }
    }
    Ok(routes)
}

/// The ways of the fewest hops.
fn fewest(ways: impl Iterator<Item = (u32, usize)>) -> Vec<(u32, usize)> {
    let mut best: Vec<(u32, usize)> = Vec::new();
    for way in ways {
        match best.first().map_or(Ordering::Less, |one| way.0.cmp(&one.0)) {
            Ordering::Less => best = vec![way],
            Ordering::Equal => best.push(way),
            Ordering::Greater => {}
        }
    }
    best
}

/// Each endpoint takes one of the ways, which are as good as each other: neighbouring endpoints
/// different ones, and so the lanes between two nodes.
fn spread(
    routes: &mut Routes,
    topology: &Topology,
    node: usize,
    destination: usize,
    ways: &[(u32, usize)],
) {
    debug_assert!(topology.channels[ways[0].1].from.0 == node);
    for endpoint in 0..routes.endpoints {
        let (_, channel) = ways[(endpoint + destination) % ways.len()];
        routes.set(node, endpoint, destination, channel);
    }
}

/// Shortest paths; endpoints choose among them by themselves. On a ring they can deadlock: for
/// tests of what finds that out.
#[cfg(test)]
pub(crate) fn shortest(topology: &Topology, endpoints: usize) -> Routes {
    let mut routes = Routes::new(topology.nodes, endpoints);
    for destination in 0..topology.nodes {
        let hops = topology.hops(destination, |_| true);
        for node in (0..topology.nodes).filter(|&node| node != destination) {
            let ways = topology.leaving(node).iter().filter_map(|&channel| {
                let other = topology.channels[channel].to.0;
                Some((hops[other]?, channel))
            });
            spread(&mut routes, topology, node, destination, &fewest(ways));
        }
    }
    routes
}
