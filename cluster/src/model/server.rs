//! The flash server: an in-order interface to the card for one user (BlueDBM section 3.1.2).
//!
//! The splitter below it needs nothing of its own: its users meet at the card's tags, first come,
//! first served, which is what renaming tags gives them.

use super::clock::Time;
use super::simulation::{OrderId, PoolId, Simulation, Step};

/// A queue of commands whose pages come back in order.
#[derive(Debug)]
pub struct FlashServer {
    places: PoolId,
    order: OrderId,
}

impl FlashServer {
    /// With a command queue so deep, and a page buffer for each place in it.
    pub fn new(simulation: &mut Simulation, depth: u64) -> Self {
        Self {
            places: simulation.pool(depth),
            order: simulation.order(),
        }
    }

    /// A request by way of it: ends when it has, and all before it have.
    pub fn in_order(&self, request: Vec<Step>) -> Vec<Step> {
        let mut steps = vec![Step::Take(self.places), Step::Ticket(self.order)];
        steps.extend(request);
        steps.push(Step::Turn(self.order));
        steps.push(Step::Give(self.places, Time::ZERO));
        steps
    }
}
