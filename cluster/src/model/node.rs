//! A node: two cards, the in-store processor, and the host; and the ways in which a page is read.

use super::clock::Time;
use super::flash::Card;
use super::host::Host;
use super::network::{Link, route};
use super::parameters::Parameters;
use super::random::Random;
use super::simulation::{Simulation, Step};

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Its flash.
    pub cards: Vec<Card>,
    /// Its server.
    pub host: Host,
}

impl Node {
    /// A node whose host has so many threads that compute.
    pub fn new(simulation: &mut Simulation, p: &Parameters, node: usize, threads: u32) -> Self {
        Self {
            cards: (0..p.cards as usize)
                .map(|_| Card::new(simulation, p, node))
                .collect(),
            host: Host::new(simulation, p, node, threads),
        }
    }

    /// A page at random, whose bursts go `onward` from the in-store processor. That keeps up with
    /// the card (BlueDBM 7.1), so it adds nothing.
    pub fn read(&self, random: &mut Random, onward: &[Step]) -> Vec<Step> {
        let card = &self.cards[random.below(self.cards.len())];
        card.read(card.place(random), onward)
    }

    /// A page at random into the memory of the host, for its software.
    pub fn read_to_host(&self, random: &mut Random) -> Vec<Step> {
        let page = self.read(random, &[self.host.burst_in()]);
        self.host.reads(page)
    }
}

/// The links between two nodes.
#[derive(Debug)]
pub struct Way {
    /// To the node with the page.
    pub there: Vec<Link>,
    /// And back.
    pub back: Vec<Link>,
}

impl Way {
    /// Links of their own, over so many hops.
    pub fn new(simulation: &mut Simulation, p: &Parameters, hops: usize, lanes: u32) -> Self {
        let mut links = |bytes| -> Vec<Link> {
            (0..hops)
                .map(|node| Link::new(simulation, p, node, lanes, bytes))
                .collect()
        };
        Self {
            there: links(p.packet),
            back: links(p.burst),
        }
    }

    fn request(&self) -> Vec<Step> {
        route(&self.there)
    }
}

/// How a page of another node is read (BlueDBM section 6.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// In-store processor to remote flash.
    IspF,
    /// Host to remote flash.
    HF,
    /// Host to remote flash by way of its host.
    HRhF,
    /// Host to remote DRAM.
    HD,
}

impl Access {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::IspF, Self::HF, Self::HRhF, Self::HD];

    /// As the paper has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::IspF => "ISP-F",
            Self::HF => "H-F",
            Self::HRhF => "H-RH-F",
            Self::HD => "H-D",
        }
    }

    /// How often host software is in the way.
    pub fn software_passes(self) -> u32 {
        match self {
            Self::IspF => 0,
            Self::HF => 1,
            Self::HRhF => 3,
            Self::HD => 2,
        }
    }

    /// A page of `far`, for `near`.
    pub fn read(
        self,
        near: &Node,
        far: &Node,
        way: &Way,
        bursts: u32,
        random: &mut Random,
    ) -> Vec<Step> {
        let mut steps = way.request();
        let back = route(&way.back);
        let to_near_host = [back.clone(), vec![near.host.burst_in()]].concat();
        // From the far host's memory to ours.
        let from_far_host = || {
            let burst = [vec![far.host.burst_out()], to_near_host.clone()].concat();
            Step::Fork(std::rc::Rc::new([(bursts, burst.into())]))
        };
        match self {
            Self::IspF => steps.extend(far.read(random, &back)),
            Self::HF => steps.extend(far.read(random, &to_near_host)),
            Self::HRhF => {
                steps.extend(far.host.software(far.read_to_host(random)));
                steps.push(from_far_host());
            }
            Self::HD => {
                steps.extend(far.host.software(far.host.dram().to_vec()));
                steps.push(from_far_host());
            }
        }
        match self {
            Self::IspF => steps,
            _ => near.host.reads(steps),
        }
    }
}

/// The time of one such page that meets nobody.
pub fn latency(p: &Parameters, access: Access, hops: usize) -> Time {
    let mut simulation = Simulation::new();
    let [near, far] = [0, 1].map(|node| Node::new(&mut simulation, p, node, 1));
    let way = Way::new(&mut simulation, p, hops, 1);
    let bursts = super::flash::bursts(p);
    let path = access.read(&near, &far, &way, bursts, &mut Random::new(1));
    simulation.start(path, 0);
    simulation.run(|_, _| {});
    simulation.now()
}
