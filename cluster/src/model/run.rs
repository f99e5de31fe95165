//! One run of a workload, or of a share of it.

use std::rc::Rc;

use super::appliance::{Appliance, Counts, Workload};
use super::clock::Time;
use super::flash::{Place, bursts};
use super::network::{Link, route};
use super::node::Node;
use super::parameters::{Parameters, US};
use super::random::Random;
use super::simulation::{Simulation, Step};

/// The longest way that is modelled: a rack has no more nodes.
const MOST_HOPS: u32 = 256;

/// Where pages are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    InStore,
    Host,
}

/// Runs a share of the workload.
pub(super) fn sample(
    appliance: &Appliance,
    workload: &Workload,
    place: Where,
    share: f64,
) -> Simulation {
    let mut simulation = Simulation::new();
    let mut run = Run::new(appliance, workload, place, share, &mut simulation);
    run.start(&mut simulation);
    simulation.run(|simulation, node| run.go_on(simulation, node as usize));
    simulation
}

/// What is left to do on a node.
struct Rest {
    all: Counts,
    /// Pages to read, or answers without one.
    jobs: u64,
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
    comparison: f64,
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
        let hops = |node: &Counts| node.hops.min(MOST_HOPS);
        let deepest = workload.nodes.iter().map(hops).max().unwrap_or(0);
        // Of each arm the link into the node that asks comes last: routes begin further out.
        let arms: Vec<Vec<Link>> = (0..of.arms.max(1))
            .map(|_| {
                let from = (1..=deepest).rev();
                from.map(|node| Link::new(simulation, p, node as usize, of.lanes.max(1), p.burst))
                    .collect()
            })
            .collect();
        let default = match place {
            Where::InStore => p.card_tags * p.cards,
            Where::Host => p.host_buffers,
        };
        let scaled = |count: u64| (count as f64 * share).ceil() as u64;
        let rest = workload.nodes.iter().enumerate().map(|(index, counts)| {
            let links = &arms[index % arms.len()];
            Rest {
                jobs: scaled(jobs(p, workload, counts)),
                all: Counts {
                    pages: scaled(counts.pages),
                    pages_written: scaled(counts.pages_written),
                    bytes_shipped: scaled(counts.bytes_shipped),
                    comparisons: scaled(counts.comparisons),
                    hops: hops(counts),
                    requests: scaled(counts.requests.max(1)),
                },
                asked: 0,
                arrived: 0,
                read: 0,
                written: 0,
                running: 0,
                in_flight: workload.in_flight.unwrap_or(default as u64).max(1),
                places: Vec::new(),
                way: route(&links[links.len() - hops(counts) as usize..]),
            }
        });
        let origin = workload.nodes.iter().position(|node| node.hops == 0);
        Self {
            place,
            random: Random::new(workload.seed),
            rest: rest.collect(),
            nodes,
            origin: origin.unwrap_or(0),
            comparison: workload.comparison_seconds,
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
        (rest.read < asked_for(rest.jobs)).then(|| self.read(node))
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
        let page = (self.rest[node].all.pages > 0).then(|| self.place(node));
        let rest = &mut self.rest[node];
        let job = rest.read;
        rest.read += 1;
        // The share of a count that falls to this one.
        let jobs = u128::from(rest.jobs);
        let part = |count: u64| {
            let up_to = |job: u64| u128::from(job) * u128::from(count) / jobs;
            (up_to(job + 1) - up_to(job)) as u64
        };
        let shipped = part(rest.all.bytes_shipped.div_ceil(self.burst)) as u32;
        let compared = part(rest.all.comparisons) as f64;
        let of = &self.nodes[node];
        let read = |onward: &[Step]| {
            let (card, place) = page?;
            Some(of.cards[card].read(place, onward))
        };
        let mut steps = Vec::new();
        let mut answer = rest.way.clone();
        answer.push(self.nodes[self.origin].host.burst_in());
        match self.place {
            Where::InStore => steps.extend(read(&[]).unwrap_or_default()),
            Where::Host => {
                if let Some(page) = read(&[of.host.burst_in()]) {
                    steps.extend(of.host.reads(page));
                }
                let time = Time::from_seconds(compared * self.comparison);
                steps.push(of.host.compute(time));
                if rest.way.is_empty() {
                    // It is where it is wanted.
                    return steps;
                }
                answer.insert(0, of.host.burst_out());
            }
        }
        if shipped > 0 {
            steps.push(Step::Fork(Rc::new([(shipped, answer.into())])));
        }
        steps
    }
}

/// Pages that a node reads; where its answers come from none, as many as carry these, or as its
/// threads share what is compared.
fn jobs(p: &Parameters, workload: &Workload, counts: &Counts) -> u64 {
    if counts.pages > 0 {
        return counts.pages;
    }
    let shipped = counts.bytes_shipped.div_ceil(p.page as u64);
    shipped.max(counts.comparisons.min(workload.threads.into()))
}
