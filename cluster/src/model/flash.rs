//! A flash card: chips on buses behind one controller, and its link to the node (BlueDBM sections
//! 3.1 and 5.1).

use std::rc::Rc;

use super::clock::Time;
use super::parameters::{GB, GIB, Parameters, US};
use super::random::Random;
use super::simulation::{Path, PoolId, Simulation, StationId, Step};

/// Where a page lies on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The bus.
    pub bus: usize,
    /// The chip on it.
    pub chip: usize,
}

/// A card. A chip works on one page at a time, and keeps it until the bus has taken it; pages of
/// other chips come in between, so that tags end out of order.
#[derive(Debug)]
pub struct Card {
    buses: Vec<StationId>,
    chips: Vec<Vec<PoolId>>,
    link: StationId,
    tags: PoolId,
    read: Time,
    program: Time,
    erase: Time,
    bus_burst: Time,
    link_burst: Time,
    link_delay: Time,
    bursts: u32,
}

impl Card {
    /// A card of a node.
    pub fn new(simulation: &mut Simulation, p: &Parameters, node: usize) -> Self {
        let buses = p.buses as usize;
        let chips = p.chips as usize;
        let bus_rate = p.card_rate * GIB / p.buses;
        Self {
            buses: (0..buses)
                .map(|_| simulation.station("flash bus", node, 1))
                .collect(),
            chips: (0..buses)
                .map(|_| (0..chips).map(|_| simulation.pool(1)).collect())
                .collect(),
            link: simulation.station("card link", node, 1),
            tags: simulation.pool(p.card_tags as u64),
            read: Time::from_seconds(p.flash_read * US),
            program: Time::from_seconds(p.flash_program * US),
            erase: Time::from_seconds(p.flash_erase * US),
            bus_burst: Time::of_bytes(p.burst as u64, bus_rate),
            link_burst: Time::of_bytes(p.burst as u64, p.card_link_rate * GB),
            link_delay: Time::from_seconds(p.card_link_delay * US),
            bursts: bursts(p),
        }
    }

    /// A place at random.
    pub fn place(&self, random: &mut Random) -> Place {
        let bus = random.below(self.buses.len());
        let chip = random.below(self.chips[bus].len());
        Place { bus, chip }
    }

    /// All places.
    pub fn places(&self) -> impl Iterator<Item = Place> {
        let chips = self.chips.iter().enumerate();
        chips.flat_map(|(bus, chips)| (0..chips.len()).map(move |chip| Place { bus, chip }))
    }

    /// Reads a page; each burst goes `onward` on its own. Ends when all have come through that.
    pub fn read(&self, place: Place, onward: &[Step]) -> Vec<Step> {
        let bus = self.buses[place.bus];
        let chip = self.chips[place.bus][place.chip];
        let burst = |is_last: bool| -> Path {
            let mut steps = vec![Step::Serve(bus, self.bus_burst)];
            steps.extend(is_last.then_some(Step::Give(chip, Time::ZERO)));
            steps.push(Step::Serve(self.link, self.link_burst));
            steps.extend(is_last.then_some(Step::Give(self.tags, Time::ZERO)));
            steps.push(Step::Delay(self.link_delay));
            steps.extend_from_slice(onward);
            steps.into()
        };
        let fork = Rc::new([(self.bursts - 1, burst(false)), (1, burst(true))]);
        vec![
            Step::Take(self.tags),
            Step::Take(chip),
            Step::Delay(self.read),
            Step::Fork(fork),
        ]
    }

    /// Programs a page that lies in the node.
    pub fn program(&self, place: Place) -> Vec<Step> {
        let bus = self.buses[place.bus];
        let chip = self.chips[place.bus][place.chip];
        let burst = [
            Step::Serve(self.link, self.link_burst),
            Step::Delay(self.link_delay),
            Step::Serve(bus, self.bus_burst),
        ];
        vec![
            Step::Take(self.tags),
            Step::Take(chip),
            Step::Fork(Rc::new([(self.bursts, burst.into())])),
            Step::Delay(self.program),
            Step::Give(chip, Time::ZERO),
            Step::Give(self.tags, Time::ZERO),
        ]
    }

    /// Erases a block of a chip.
    pub fn erase(&self, place: Place) -> Vec<Step> {
        let chip = self.chips[place.bus][place.chip];
        vec![
            Step::Take(self.tags),
            Step::Take(chip),
            Step::Delay(self.erase),
            Step::Give(chip, Time::ZERO),
            Step::Give(self.tags, Time::ZERO),
        ]
    }
}

/// Bursts of a page.
pub(super) fn bursts(p: &Parameters) -> u32 {
    (p.page / p.burst).ceil() as u32
}
