//! A rack under a given load: counts of a query in, modelled time, bottleneck and energy out.

use super::parameters::Parameters;
use super::power::Power;
use super::report::{Execution, Report};
use super::run::{Where, sample};
use super::simulation::Simulation;

/// Pages that are modelled one by one, all nodes together; time grows in proportion beyond.
const SAMPLE: u64 = 20_000;
/// Those of a node, at least and at most.
const OF_NODE: [u64; 2] = [512, 2000];

/// What a query did on one node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Flash pages read on this node.
    pub pages: u64,
    /// Flash pages written on this node, from the memory of its host.
    pub pages_written: u64,
    /// Bytes that the node sent to the one that asked: answers, not pages.
    pub bytes_shipped: u64,
    /// Comparisons (or what else costs [`Workload::comparison_seconds`]) over the pages.
    pub comparisons: u64,
    /// Links between this node and the one that asked, which has 0. More than 256 count as that.
    pub hops: u32,
    /// Requests that the node got: one for a scan, many for lookups by key.
    pub requests: u64,
}

/// A query, as counted.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// What it did, node by node. One of them may have no hops: the node that asked.
    pub nodes: Vec<Counts>,
    /// What a comparison takes a thread of a host, in seconds.
    pub comparison_seconds: f64,
    /// Threads of each host that compute, cores permitting.
    pub threads: u32,
    /// Pages that each node may have asked for at once: 1 where the next depends on the one
    /// before. None: as many as tags and buffers allow.
    pub in_flight: Option<u64>,
    /// Of the places of pages on cards.
    pub seed: u64,
}

/// A rack of BlueDBM's nodes: the same [`Parameters`] for all, and the links towards the node that
/// asks.
#[derive(Debug, Clone, PartialEq)]
pub struct Appliance {
    /// The numbers of the model.
    pub parameters: Parameters,
    /// Neighbours of the node that asks, at least 1: its answers come in over so many links, among
    /// which the other nodes take turns. 2 in a ring.
    pub arms: usize,
    /// Lanes of each link.
    pub lanes: u32,
}

impl Default for Appliance {
    /// BlueDBM's ring: 4 lanes to each side (section 6.3).
    fn default() -> Self {
        Self {
            parameters: Parameters::default(),
            arms: 2,
            lanes: 4,
        }
    }
}

impl Appliance {
    /// Runs the workload twice: beside the pages, and in the software of each node's host, which
    /// reads them over PCIe (flash as a drop-in disk). Everything in the report is modelled.
    ///
    /// More than can be modelled page by page is taken in proportion: time is extrapolated from
    /// samples of two sizes, so that what a query takes however small it is counts once.
    ///
    /// Rates among the parameters are not to be zero: what crosses them would never end.
    pub fn run(&self, workload: &Workload) -> Report {
        Report {
            in_store: self.extrapolated(workload, Where::InStore),
            host: self.extrapolated(workload, Where::Host),
        }
    }

    fn extrapolated(&self, workload: &Workload, place: Where) -> Execution {
        let nodes = workload.nodes.len();
        let most = SAMPLE / nodes.max(1) as u64;
        let most = most.clamp(OF_NODE[0], OF_NODE[1]);
        let page = self.parameters.page as u64;
        let work = |node: &Counts| {
            let shipped = node.bytes_shipped.div_ceil(page);
            let counts = [node.pages, node.pages_written, node.requests, shipped];
            counts.into_iter().max()
        };
        let largest = workload.nodes.iter().filter_map(work).max().unwrap_or(0);
        let power = Power::of(&self.parameters);
        let report =
            |simulation: &Simulation, seconds| Execution::new(simulation, seconds, &power, nodes);
        if largest <= most {
            let whole = sample(self, workload, place, 1.0);
            return report(&whole, whole.now().seconds());
        }
        let share = most as f64 / largest as f64;
        let [half, full] = [share / 2.0, share].map(|share| sample(self, workload, place, share));
        let [short, long] = [&half, &full].map(|sample| sample.now().seconds());
        let slope = (long - short) / (share / 2.0);
        report(&full, long + (1.0 - share) * slope)
    }
}
