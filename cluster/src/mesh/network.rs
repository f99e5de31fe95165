//! What a rack file says about the mesh, in the form in which nodes use it: everything numbered
//! from 0, and all routes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use flashmesh_pages::store::NodeId;

use super::routes::{Lost, Routes, up_down};
use super::topology::Topology;
use crate::{Endpoint, Flow, MeshSettings, Rack, RackError, STREAMS};

/// The mesh of a rack: who is linked to whom, and the routes of all packets. All nodes compute the
/// same from the same rack file.
#[derive(Debug, Clone)]
pub struct Network {
    pub(crate) topology: Topology,
    pub(crate) routes: Routes,
    /// In the order of their numbers, as `names`.
    pub(crate) ids: Vec<NodeId>,
    pub(crate) names: Vec<String>,
    /// In the order of their indices.
    pub(crate) endpoints: Vec<Endpoint>,
    pub(crate) settings: MeshSettings,
}

/// Links that packets take, over all endpoints, nodes and destinations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hops {
    /// On the longest route.
    pub most: usize,
    /// On all, on average.
    pub mean: f64,
}

/// How answers come to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WayTo {
    /// The links that those of each node take.
    pub hops: BTreeMap<NodeId, u32>,
    /// The nodes that are one link away.
    pub neighbours: usize,
    /// The cables to these.
    pub cables: usize,
}

impl Network {
    /// The mesh of `rack`.
    ///
    /// # Errors
    /// `Invalid` for a node that no cables lead to, a `[[route]]` to or from nowhere, routes that
    /// go in circles, and routes in which packets could wait for each other for ever: the message
    /// names the channels.
    pub fn new(rack: &Rack) -> Result<Self, RackError> {
        let network = Self::unchecked(rack)?;
        match network.routes.cycle(&network.topology) {
            Err(lost) => Err(RackError::Invalid(network.describe_lost(&lost))),
            Ok(None) => Ok(network),
            Ok(Some(cycle)) => {
                let mut names: Vec<String> =
                    cycle.iter().map(|&one| network.channel_name(one)).collect();
                names.push(names[0].clone());
                Err(RackError::Invalid(format!(
                    "the routes can deadlock: packets on each of these links can wait for a place \
                     on the next: {}; change a [[route]] or leave it out",
                    names.join(", ")
                )))
            }
        }
    }

    /// The same without the checks of routes.
    pub(crate) fn unchecked(rack: &Rack) -> Result<Self, RackError> {
        let mut nodes: Vec<(NodeId, String)> = rack
            .nodes
            .iter()
            .map(|node| (NodeId(node.id), node.name.clone()))
            .collect();
        nodes.sort();
        let (ids, names): (Vec<_>, Vec<_>) = nodes.into_iter().unzip();
        let mut endpoints = rack.endpoints.clone();
        endpoints.sort_by_key(|endpoint| endpoint.index);
        let of = |port: &crate::Port| Some((index_of(&names, &port.node)?, port.number));
        let mut cables = Vec::new();
        for cable in &rack.cables {
            let ends = of(&cable.from).zip(of(&cable.to));
            let (from, to) = ends.ok_or_else(|| {
                RackError::Invalid(format!(
                    "the cable {cable} ends at a node that is not there"
                ))
            })?;
            cables.push([from, to]);
        }
        let topology = Topology::new(ids.len(), cables);
        let routes = up_down(&topology, endpoints.len()).map_err(|alone| {
            RackError::Invalid(format!(
                "no cables lead from '{}' to '{}'",
                names[0], names[alone]
            ))
        })?;
        let mut network = Self {
            topology,
            routes,
            ids,
            names,
            endpoints,
            settings: rack.mesh.clone(),
        };
        for route in &rack.routes {
            network.set(route)?;
        }
        Ok(network)
    }

    fn set(&mut self, route: &crate::Route) -> Result<(), RackError> {
        let unknown = |what: &str, name: &str| {
            RackError::Invalid(format!(
                "a [[route]] names {what} '{name}', which is not there"
            ))
        };
        let node =
            |name: &str| index_of(&self.names, name).ok_or_else(|| unknown("the node", name));
        let (from, destination) = (node(&route.node)?, node(&route.destination)?);
        let leaving = self.topology.leaving(from);
        let channel = leaving
            .iter()
            .find(|&&channel| self.topology.channels[channel].from.1 == route.port);
        let channel = *channel
            .ok_or_else(|| unknown("the port", &format!("{}/{}", route.node, route.port)))?;
        if from == destination {
            return Err(RackError::Invalid(format!(
                "a [[route]] leads from '{}' to itself",
                route.node
            )));
        }
        let mut is_found = false;
        for (slot, endpoint) in self.endpoints.iter().enumerate() {
            if route
                .endpoint
                .as_ref()
                .is_none_or(|name| *name == endpoint.name)
            {
                self.routes.set(from, slot, destination, channel);
                is_found = true;
            }
        }
        match (&route.endpoint, is_found) {
            (Some(name), false) => Err(unknown("the endpoint", name)),
            _ => Ok(()),
        }
    }

    fn describe_lost(&self, lost: &Lost) -> String {
        format!(
            "packets of endpoint '{}' from '{}' to '{}' would go in circles; change a [[route]]",
            self.endpoints[lost.endpoint].name, self.names[lost.node], self.names[lost.destination]
        )
    }

    /// A channel by its ends, as `a/0 → b/1`.
    pub(crate) fn channel_name(&self, channel: usize) -> String {
        let channel = &self.topology.channels[channel];
        let end = |(node, port): (usize, u16)| format!("{}/{port}", self.names[node]);
        format!("{} → {}", end(channel.from), end(channel.to))
    }

    /// The number that stands for a node here.
    pub(crate) fn node_of(&self, id: NodeId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    pub(crate) fn is_end_to_end(&self, slot: usize) -> bool {
        self.endpoints[slot].flow == Flow::EndToEnd
    }

    /// How far packets go; `None` where there is nowhere to go.
    pub fn hops(&self) -> Option<Hops> {
        let paths = self
            .routes
            .all()
            .filter_map(|(node, endpoint, destination)| {
                let path = self
                    .routes
                    .path(&self.topology, node, endpoint, destination);
                path.ok().map(|path| path.len())
            });
        let lengths: Vec<usize> = paths.collect();
        Some(Hops {
            most: *lengths.iter().max()?,
            mean: lengths.iter().sum::<usize>() as f64 / lengths.len() as f64,
        })
    }

    /// How answers come to `node`: by the routes of the endpoint that carries streams, or the shortest
    /// ones in a rack that has none.
    pub(crate) fn way_to(&self, node: NodeId) -> WayTo {
        let to = self.node_of(node).unwrap_or(0);
        let streams = self.endpoints.iter().position(|one| one.name == STREAMS);
        let shortest = self.topology.hops(to, |_| true);
        let hops = |from: usize| {
            let path = streams.map(|slot| self.routes.path(&self.topology, from, slot, to));
            let path = path.and_then(Result::ok).map(|path| path.len() as u32);
            path.or(shortest[from]).unwrap_or(0)
        };
        let leaving = self.topology.leaving(to).iter();
        let ends: Vec<usize> = leaving.map(|&c| self.topology.channels[c].to.0).collect();
        WayTo {
            hops: (0..self.ids.len())
                .map(|from| (self.ids[from], hops(from)))
                .collect(),
            neighbours: BTreeSet::from_iter(&ends).len(),
            cables: ends.len(),
        }
    }

    /// The mesh as lines of a trace (`fpga/network/README.md`): nodes are numbered in the order of
    /// their numbers in the rack file.
    pub fn trace_header(&self) -> String {
        let mut text = format!("mesh-trace 1\nnodes {}\n", self.ids.len());
        for endpoint in &self.endpoints {
            let flow = match endpoint.flow {
                Flow::Plain => "plain",
                Flow::EndToEnd => "end-to-end",
            };
            let _ = writeln!(text, "endpoint {} {flow}", endpoint.index);
        }
        for cable in self.topology.channels.iter().step_by(2) {
            let ((a, p), (b, q)) = (cable.from, cable.to);
            let _ = writeln!(text, "cable {a} {p} {b} {q}");
        }
        text + &self.route_lines()
    }

    /// The routes as lines of a trace: `route <node> <endpoint> <destination> <port>`.
    pub fn route_lines(&self) -> String {
        let mut text = String::new();
        for (node, slot, destination) in self.routes.all() {
            if let Some(channel) = self.routes.next(node, slot, destination) {
                let port = self.topology.channels[channel].from.1;
                let endpoint = self.endpoints[slot].index;
                let _ = writeln!(text, "route {node} {endpoint} {destination} {port}");
            }
        }
        text
    }

    /// A number of all that neighbours must agree on.
    pub(crate) fn fingerprint(&self) -> u64 {
        let settings = &self.settings;
        let text = format!(
            "{:?} {:?} {} {} {}",
            self.ids,
            self.names,
            settings.packet_bytes,
            settings.window_packets,
            self.trace_header()
        );
        crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, text.as_bytes())
    }
}

fn index_of(names: &[String], name: &str) -> Option<usize> {
    names.iter().position(|one| one == name)
}
