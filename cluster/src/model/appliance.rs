//! A rack under a given load: counts of a query in, modelled time, bottleneck and energy out.

use std::rc::Rc;

use super::clock::Time;
use super::flash::{Place, bursts};
use super::network::{Link, route};
use super::node::Node;
use super::parameters::{Parameters, US};
use super::power::Power;
use super::random::Random;
use super::report::{Execution, Report};
use super::simulation::{Simulation, Step};

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
    /// Links between this node and the one that asked, which has 0.
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
    /// Neighbours of the node that asks: its answers come in over so many links, among which the
    /// other nodes take turns. 2 in a ring.
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

/// Where pages are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Where {
    InStore,
    Host,
}

impl Appliance {
    /// Runs the workload twice: beside the pages, and in the software of each node's host, which
    /// reads them over PCIe (flash as a drop-in disk). Everything in the report is modelled.
    ///
    /// More pages than can be modelled one by one are taken in proportion: time is extrapolated
    /// from samples of two sizes, so that what a query takes however small it is counts once.
    ///
    /// # Panics
    /// Where `arms` or a rate of the parameters is zero.
    pub fn run(&self, workload: &Workload) -> Report {
        Report {
            in_store: self.extrapolated(workload, Where::InStore),
            host: self.extrapolated(workload, Where::Host),
        }
    }

    fn extrapolated(&self, workload: &Workload, place: Where) -> Execution {
        let most = SAMPLE / workload.nodes.len().max(1) as u64;
        let most = most.clamp(OF_NODE[0], OF_NODE[1]);
        let work = |node: &Counts| node.pages.max(node.pages_written).max(node.requests);
        let largest = workload.nodes.iter().map(work).max().unwrap_or(0);
        let power = Power::of(&self.parameters);
        let report = |simulation: &Simulation, seconds| {
            Execution::new(simulation, seconds, &power, workload.nodes.len())
        };
        let whole = self.sample(workload, place, 1.0, largest <= most);
        if let Some(simulation) = whole {
            return report(&simulation, simulation.now().seconds());
        }
        let share = most as f64 / largest as f64;
        let [half, full] = [share / 2.0, share].map(|share| {
            let sample = self.sample(workload, place, share, true);
            sample.unwrap_or_default()
        });
        let [short, long] = [&half, &full].map(|sample| sample.now().seconds());
        let slope = (long - short) / (share / 2.0);
        report(&full, long + (1.0 - share) * slope)
    }

    /// A share of the workload, if wanted.
    fn sample(
        &self,
        workload: &Workload,
        place: Where,
        share: f64,
        is_wanted: bool,
    ) -> Option<Simulation> {
        is_wanted.then(|| {
            let mut simulation = Simulation::new();
            let mut run = Run::new(self, workload, place, share, &mut simulation);
            run.start(&mut simulation);
            simulation.run(|simulation, node| run.go_on(simulation, node as usize));
            simulation
        })
    }
}

/// What is left to do on a node.
struct Rest {
    all: Counts,
    /// Requests sent, and those that came to the node.
    asked: u64,
    arrived: u64,
    /// Pages begun with.
    read: u64,
    written: u64,
    running: u64,
    in_flight: u64,
    way: Vec<Step>,
    /// Places of pages, in a random order; new ones when all have had their turn, as pages are
    /// written evenly over the chips.
    places: Vec<(usize, Place)>,
}

struct Run {
    place: Where,
    random: Random,
    nodes: Vec<Node>,
    rest: Vec<Rest>,
    /// The node that asks.
    origin: usize,
    comparison: Time,
    call: Time,
    hop: Time,
    page_bursts: u32,
    block: u64,
    burst: u64,
}

impl Run {
    fn new(
        of: &Appliance,
        workload: &Workload,
        place: Where,
        share: f64,
        simulation: &mut Simulation,
    ) -> Self {
        let p = &of.parameters;
        let nodes: Vec<Node> = (0..workload.nodes.len())
            .map(|node| Node::new(simulation, p, node, workload.threads))
            .collect();
        let deepest = workload.nodes.iter().map(|node| node.hops).max();
        let mut arms: Vec<Vec<Link>> = Vec::new();
        for _ in 0..of.arms {
            let link = |node| Link::new(simulation, p, node as usize, of.lanes, p.burst);
            // The last link comes first: routes begin further out.
            let mut links: Vec<Link> = (1..=deepest.unwrap_or(0)).map(link).collect();
            links.reverse();
            arms.push(links);
        }
        let default = match place {
            Where::InStore => p.card_tags * p.cards,
            Where::Host => p.host_buffers,
        };
        let scaled = |count: u64| (count as f64 * share).ceil() as u64;
        let rest = workload.nodes.iter().enumerate().map(|(index, counts)| {
            let links = &arms[index % of.arms];
            Rest {
                all: Counts {
                    pages: scaled(counts.pages),
                    pages_written: scaled(counts.pages_written),
                    bytes_shipped: scaled(counts.bytes_shipped),
                    comparisons: scaled(counts.comparisons),
                    hops: counts.hops,
                    requests: scaled(counts.requests.max(1)),
                },
                asked: 0,
                arrived: 0,
                read: 0,
                written: 0,
                running: 0,
                in_flight: workload.in_flight.unwrap_or(default as u64).max(1),
                places: Vec::new(),
                way: route(&links[links.len() - counts.hops as usize..]),
            }
        });
        let origin = workload.nodes.iter().position(|node| node.hops == 0);
        Self {
            place,
            random: Random::new(workload.seed),
            rest: rest.collect(),
            nodes,
            origin: origin.unwrap_or(0),
            comparison: Time::from_seconds(workload.comparison_seconds),
            call: Time::from_seconds(p.software * US / 2.0),
            hop: Time::from_seconds(p.hop * US),
            page_bursts: bursts(p),
            block: p.block_pages as u64,
            burst: p.burst as u64,
        }
    }

    /// The first requests to each node.
    fn start(&mut self, simulation: &mut Simulation) {
        for node in 0..self.nodes.len() {
            let rest = &self.rest[node];
            for _ in 0..rest.in_flight.min(rest.all.requests) {
                self.ask(simulation, node);
            }
        }
    }

    /// A thread of the node that asks sends a request.
    fn ask(&mut self, simulation: &mut Simulation, node: usize) {
        self.rest[node].asked += 1;
        let origin = &self.nodes[self.origin].host;
        let hops = (0..self.rest[node].all.hops).map(|_| Step::Delay(self.hop));
        let mut steps = vec![origin.compute(self.call)];
        steps.extend(hops);
        simulation.start(steps, (node + self.nodes.len()) as u64);
    }

    /// What follows when a page of a node has ended, or, with a tag beyond the nodes, when a
    /// request has come to one.
    fn go_on(&mut self, simulation: &mut Simulation, tag: usize) {
        let nodes = self.nodes.len();
        let node = tag % nodes;
        if tag < nodes {
            self.rest[node].running -= 1;
        } else {
            self.rest[node].arrived += 1;
            if self.rest[node].asked < self.rest[node].all.requests {
                self.ask(simulation, node);
            }
        }
        while self.rest[node].running < self.rest[node].in_flight {
            let Some(job) = self.next(node) else { break };
            self.rest[node].running += 1;
            simulation.start(job, node as u64);
        }
    }

    /// The next page of a node, if one has been asked for.
    fn next(&mut self, node: usize) -> Option<Vec<Step>> {
        let rest = &self.rest[node];
        let asked_for = |pages: u64| {
            let pages = u128::from(pages) * u128::from(rest.arrived);
            pages.div_ceil(u128::from(rest.all.requests)) as u64
        };
        if rest.written < asked_for(rest.all.pages_written) {
            return Some(self.write(node));
        }
        (rest.read < asked_for(rest.all.pages)).then(|| self.read(node))
    }

    /// Card and place of the next page.
    fn place(&mut self, node: usize) -> (usize, Place) {
        let places = &mut self.rest[node].places;
        if places.is_empty() {
            let cards = self.nodes[node].cards.iter().enumerate();
            places.extend(
                cards.flat_map(|(index, card)| card.places().map(move |place| (index, place))),
            );
        }
        places.swap_remove(self.random.below(places.len()))
    }

    fn write(&mut self, node: usize) -> Vec<Step> {
        let (card, place) = self.place(node);
        let of = &self.nodes[node];
        let card = &of.cards[card];
        let written = self.rest[node].written;
        self.rest[node].written += 1;
        let burst: Rc<[Step]> = [of.host.burst_out()].into();
        let mut steps = vec![Step::Fork(Rc::new([(self.page_bursts, burst)]))];
        if written.is_multiple_of(self.block) {
            steps.extend(card.erase(place));
        }
        steps.extend(card.program(place));
        of.host.writes(steps)
    }

    fn read(&mut self, node: usize) -> Vec<Step> {
        let (card, place) = self.place(node);
        let rest = &mut self.rest[node];
        let page = rest.read;
        rest.read += 1;
        // The share of a count that falls to this page.
        let pages = u128::from(rest.all.pages);
        let part = |count: u64| {
            let up_to = |page: u64| u128::from(page) * u128::from(count) / pages;
            (up_to(page + 1) - up_to(page)) as u64
        };
        let shipped = part(rest.all.bytes_shipped.div_ceil(self.burst)) as u32;
        let of = &self.nodes[node];
        let into_origin = self.nodes[self.origin].host.burst_in();
        let way = self.rest[node].way.clone();
        let mut steps;
        let mut answer = way;
        match self.place {
            Where::InStore => {
                steps = of.cards[card].read(place, &[]);
                answer.push(into_origin);
            }
            Where::Host => {
                let page = of.cards[card].read(place, &[of.host.burst_in()]);
                steps = of.host.reads(page);
                let compare = part(self.rest[node].all.comparisons) as f64;
                let time = Time::from_seconds(compare * self.comparison.seconds());
                steps.push(of.host.compute(time));
                if answer.is_empty() {
                    // It is where it is wanted.
                    return steps;
                }
                answer.insert(0, of.host.burst_out());
                answer.push(into_origin);
            }
        }
        if shipped > 0 {
            steps.push(Step::Fork(Rc::new([(shipped, answer.into())])));
        }
        steps
    }
}
