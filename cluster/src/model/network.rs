//! The storage network: links of lanes with tokens (BlueDBM section 3.2).

use super::clock::Time;
use super::parameters::{GBIT, Parameters, US};
use super::simulation::{PoolId, Simulation, StationId, Step};

/// One direction of the cables between two nodes.
#[derive(Debug, Clone, Copy)]
pub struct Link {
    lanes: StationId,
    tokens: PoolId,
    rate: f64,
    hop: Time,
    transfer: Time,
}

impl Link {
    /// A link that leaves `node`, with so many lanes, for transfers of so many bytes each. A token
    /// stands for one of these in the buffer behind the link.
    pub fn new(
        simulation: &mut Simulation,
        p: &Parameters,
        node: usize,
        lanes: u32,
        transfer: f64,
    ) -> Self {
        let rate = p.lane_rate * GBIT;
        let places = (p.link_buffer / transfer).max(1.0) as u64;
        Self {
            lanes: simulation.station("network lane", node, lanes),
            tokens: simulation.pool(places * u64::from(lanes)),
            rate,
            // What is stated includes the time of the packet itself.
            hop: Time::from_seconds(p.hop * US) - Time::of_bytes(p.packet as u64, rate),
            transfer: Time::of_bytes(transfer as u64, rate),
        }
    }

    /// How long a message of so many bytes takes that meets nobody.
    pub fn alone(&self, bytes: u64) -> Time {
        Time::of_bytes(bytes, self.rate) + self.hop
    }
}

/// One transfer over links, one after the other: it keeps its place behind each until it is on the
/// next one, whose token comes back a hop later.
pub fn route(links: &[Link]) -> Vec<Step> {
    let mut steps = Vec::with_capacity(links.len() * 4);
    let mut behind: Option<&Link> = None;
    for link in links {
        steps.push(Step::Take(link.tokens));
        steps.push(Step::Serve(link.lanes, link.transfer));
        steps.extend(behind.map(|link| Step::Give(link.tokens, link.hop)));
        steps.push(Step::Delay(link.hop));
        behind = Some(link);
    }
    steps.extend(behind.map(|link| Step::Give(link.tokens, link.hop)));
    steps
}
