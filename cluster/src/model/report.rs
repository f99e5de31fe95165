//! What a modelled run says.

use std::fmt;

use super::clock::Time;
use super::power::Power;
use super::simulation::Simulation;

/// Below this, no part holds the others up: what counts is how long one thing takes after the other.
const BUSY: f64 = 0.5;

/// A workload in the appliance, modelled.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Beside the pages.
    pub in_store: Execution,
    /// In the hosts.
    pub host: Execution,
}

impl Report {
    /// How many times as fast it is beside the pages.
    pub fn speedup(&self) -> f64 {
        self.host.seconds / self.in_store.seconds
    }
}

/// Two lines, which say that they are modelled.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "modelled in-store: {}", self.in_store)?;
        write!(f, "modelled in hosts: {}", self.host)
    }
}

/// One way of running a workload, modelled.
#[derive(Debug, Clone, PartialEq)]
pub struct Execution {
    /// From the request to the last byte of the answer.
    pub seconds: f64,
    /// The part that is used most; None where none is used half of the time, so that latency or the
    /// number of requests in flight is what limits.
    pub bottleneck: Option<Use>,
    /// The parts that were used, those of a kind together, the most used first.
    pub parts: Vec<Use>,
    /// Of all nodes with their hosts.
    pub joules: f64,
    /// Of the storage devices alone.
    pub storage_joules: f64,
    /// Jobs that never ended: not zero only where the model is wrong.
    pub stuck: u64,
}

impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s, {:.1} J, bound by ", self.seconds, self.joules)?;
        match &self.bottleneck {
            Some(of) => write!(
                f,
                "{} ({:.0} % of node {})",
                of.part,
                of.highest * 100.0,
                of.node
            ),
            None => write!(f, "latency"),
        }
    }
}

/// How much the parts of a kind were used.
#[derive(Debug, Clone, PartialEq)]
pub struct Use {
    /// The kind.
    pub part: &'static str,
    /// The node (of links: hops from the one that asks) of the one that was used most.
    pub node: usize,
    /// The share of the time that this one was busy.
    pub highest: f64,
    /// The same, of all of them.
    pub mean: f64,
}

impl Execution {
    pub(super) fn new(simulation: &Simulation, seconds: f64, power: &Power, nodes: usize) -> Self {
        let parts = uses(simulation, simulation.now());
        let bottleneck = parts.first().filter(|part| part.highest >= BUSY);
        let joules = |watts| seconds * watts * nodes as f64;
        Self {
            seconds,
            bottleneck: bottleneck.cloned(),
            joules: joules(power.node()),
            storage_joules: joules(power.storage()),
            parts,
            stuck: simulation.running(),
        }
    }
}

fn uses(simulation: &Simulation, of: Time) -> Vec<Use> {
    let mut parts: Vec<(Use, usize)> = Vec::new();
    for station in simulation.stations() {
        let used = station.used(of);
        let known = parts.iter_mut().find(|(u, _)| u.part == station.name());
        let (part, count) = match known {
            Some(known) => known,
            None => {
                let part = Use {
                    part: station.name(),
                    node: station.node(),
                    highest: 0.0,
                    mean: 0.0,
                };
                parts.push((part, 0));
                let last = parts.len() - 1;
                &mut parts[last]
            }
        };
        if used > part.highest {
            (part.highest, part.node) = (used, station.node());
        }
        part.mean += used;
        *count += 1;
    }
    let mut uses: Vec<Use> = parts
        .into_iter()
        .map(|(part, count)| Use {
            mean: part.mean / count as f64,
            ..part
        })
        .filter(|part| part.highest > 0.0)
        .collect();
    uses.sort_by(|a, b| b.highest.total_cmp(&a.highest));
    uses
}
