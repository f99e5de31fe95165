//! What others keep data on: an off-the-shelf SSD and a hard disk (BlueDBM section 7).

use super::clock::Time;
use super::parameters::{MIB, MS, Parameters, US};
use super::simulation::{Simulation, StationId, Step};

/// A drive that does one request at a time.
#[derive(Debug)]
pub struct Drive {
    station: StationId,
    rate: f64,
    random: Time,
}

impl Drive {
    /// The M.2 SSD of BlueDBM section 7.1.
    pub fn ssd(simulation: &mut Simulation, p: &Parameters) -> Self {
        Self {
            station: simulation.station("SSD", 0, 1),
            rate: p.ssd_rate * MIB,
            random: Time::from_seconds(p.ssd_random * US),
        }
    }

    /// The hard disk of BlueDBM sections 7.1 and 7.3.
    pub fn hdd(simulation: &mut Simulation, p: &Parameters) -> Self {
        Self {
            station: simulation.station("HDD", 0, 1),
            rate: p.hdd_rate * MIB,
            random: Time::from_seconds(p.hdd_random * MS),
        }
    }

    /// A page anywhere.
    pub fn random(&self) -> Step {
        Step::Serve(self.station, self.random)
    }

    /// The bytes that come next.
    pub fn next(&self, bytes: u64) -> Step {
        Step::Serve(self.station, Time::of_bytes(bytes, self.rate))
    }
}
