//! The SSD of the University of California on a BEE3 board: emulated PCM behind memory controllers,
//! a ring between them, PCIe to the host. Moneta-D is that with a plain interface, Minerva with
//! storage processors beside the controllers, Willow with programmable ones.

use super::clock::Time;
use super::parameters::{GB, NS, Parameters, US};
use super::simulation::{Simulation, StationId, Step};

/// The bytes of the access whose time is stated.
const STATED_ACCESS: f64 = 4096.0;

/// The device.
#[derive(Debug)]
pub struct Bee3 {
    memories: Vec<StationId>,
    ring: StationId,
    to_host: StationId,
    from_host: StationId,
    p: Parameters,
}

impl Bee3 {
    /// With so many memory controllers.
    pub fn new(simulation: &mut Simulation, p: &Parameters, controllers: usize) -> Self {
        Self {
            memories: (0..controllers)
                .map(|of| simulation.station("memory controller", of, 1))
                .collect(),
            ring: simulation.station("ring", 0, 1),
            to_host: simulation.station("PCIe to host", 0, 1),
            from_host: simulation.station("PCIe from host", 0, 1),
            p: p.clone(),
        }
    }

    /// How many memory controllers it has.
    pub fn controllers(&self) -> usize {
        self.memories.len()
    }

    /// What an access takes beside its bytes.
    fn fixed(&self) -> f64 {
        self.p.bee3_access * US - STATED_ACCESS / (self.p.bee3_interface_rate * GB)
    }

    fn memory(&self, controller: usize, bytes: f64) -> Step {
        let rate = self.p.bee3_memory_rate * GB;
        Step::Serve(self.memories[controller], Time::from_seconds(bytes / rate))
    }

    /// A storage processor reads memory of its own controller.
    pub fn reads(&self, controller: usize, bytes: f64) -> [Step; 3] {
        let interface = bytes / (self.p.bee3_interface_rate * GB);
        let memory = bytes / (self.p.bee3_memory_rate * GB);
        [
            Step::Delay(Time::from_seconds(self.fixed())),
            self.memory(controller, bytes),
            // The interface is the slower one: it ends later.
            Step::Delay(Time::from_seconds(interface - memory)),
        ]
    }

    /// The same, writing.
    pub fn writes(&self, controller: usize, bytes: f64) -> Vec<Step> {
        let mut steps = self.reads(controller, bytes).to_vec();
        let more = Time::from_seconds(self.p.bee3_write_more * NS);
        steps.push(Step::Delay(more));
        steps
    }

    /// A storage processor reads memory of another controller, by way of the ring.
    pub fn reads_remote(&self, controller: usize, bytes: f64) -> [Step; 3] {
        [
            Step::Delay(Time::from_seconds(self.fixed())),
            self.memory(controller, bytes),
            self.message(bytes),
        ]
    }

    /// A message on the ring: one sender at a time, after it got the token.
    pub fn message(&self, bytes: f64) -> Step {
        let time = self.p.bee3_ring_trip * NS + bytes / (self.p.bee3_ring_rate * GB);
        Step::Serve(self.ring, Time::from_seconds(time))
    }

    fn read_rate(&self) -> f64 {
        self.p.bee3_pcie * GB * self.p.pcie_read_share
    }

    /// Bytes to the host.
    pub fn to_host(&self, bytes: f64) -> Step {
        Step::Serve(self.to_host, Time::from_seconds(bytes / self.read_rate()))
    }

    /// Bytes from it.
    pub fn from_host(&self, bytes: f64) -> Step {
        let rate = self.p.bee3_pcie * GB * self.p.pcie_write_share;
        Step::Serve(self.from_host, Time::from_seconds(bytes / rate))
    }

    fn plain(&self) -> Step {
        let fixed = self.p.moneta_access * US - STATED_ACCESS / self.read_rate();
        Step::Delay(Time::from_seconds(fixed))
    }

    /// The host reads by the plain interface of Moneta-D.
    pub fn host_reads(&self, bytes: f64) -> [Step; 2] {
        [self.plain(), self.to_host(bytes)]
    }

    /// And writes.
    pub fn host_writes(&self, bytes: f64) -> [Step; 2] {
        [self.plain(), self.from_host(bytes)]
    }
}
