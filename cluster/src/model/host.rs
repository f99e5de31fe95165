//! The server beside a storage device: PCIe with its page buffers, software, cores and DRAM
//! (BlueDBM sections 3.3 and 5.3).

use super::clock::Time;
use super::parameters::{GB, GIB, Parameters, US};
use super::simulation::{PoolId, Simulation, StationId, Step};

/// A host.
#[derive(Debug)]
pub struct Host {
    to_host: StationId,
    from_host: StationId,
    read_buffers: PoolId,
    write_buffers: PoolId,
    cores: StationId,
    dram: StationId,
    software: Time,
    to_host_burst: Time,
    from_host_burst: Time,
    dram_delay: Time,
    dram_page: Time,
}

impl Host {
    /// The host of a node, with so many threads that compute (no more than it has cores).
    pub fn new(simulation: &mut Simulation, p: &Parameters, node: usize, threads: u32) -> Self {
        let buffers = p.host_buffers as u64;
        let burst = p.burst as u64;
        Self {
            to_host: simulation.station("PCIe to host", node, 1),
            from_host: simulation.station("PCIe from host", node, 1),
            read_buffers: simulation.pool(buffers),
            write_buffers: simulation.pool(buffers),
            cores: simulation.station("host cores", node, threads.clamp(1, p.cores as u32)),
            dram: simulation.station("host DRAM", node, 1),
            software: Time::from_seconds(p.software * US / 2.0),
            to_host_burst: Time::of_bytes(burst, p.to_host_rate * GIB),
            from_host_burst: Time::of_bytes(burst, p.from_host_rate * GIB),
            dram_delay: Time::from_seconds(p.dram_delay * US),
            dram_page: Time::of_bytes(p.page as u64, p.dram_rate * GB),
        }
    }

    /// A burst into host memory.
    pub fn burst_in(&self) -> Step {
        Step::Serve(self.to_host, self.to_host_burst)
    }

    /// A burst out of it.
    pub fn burst_out(&self) -> Step {
        Step::Serve(self.from_host, self.from_host_burst)
    }

    /// A request of the host's software: it takes a buffer, and waits on its way down and up.
    pub fn reads(&self, request: Vec<Step>) -> Vec<Step> {
        self.with_buffer(self.read_buffers, request)
    }

    /// The same for a page that it writes.
    pub fn writes(&self, request: Vec<Step>) -> Vec<Step> {
        self.with_buffer(self.write_buffers, request)
    }

    fn with_buffer(&self, buffers: PoolId, request: Vec<Step>) -> Vec<Step> {
        let mut steps = vec![Step::Take(buffers)];
        steps.extend(self.software(request));
        steps.push(Step::Give(buffers, Time::ZERO));
        steps
    }

    /// Half of the software's time before, half after.
    pub fn software(&self, request: Vec<Step>) -> Vec<Step> {
        let mut steps = vec![Step::Delay(self.software)];
        steps.extend(request);
        steps.push(Step::Delay(self.software));
        steps
    }

    /// A page of host memory.
    pub fn dram(&self) -> [Step; 2] {
        [
            Step::Delay(self.dram_delay),
            Step::Serve(self.dram, self.dram_page),
        ]
    }

    /// A core, for so long.
    pub fn compute(&self, time: Time) -> Step {
        Step::Serve(self.cores, time)
    }

    /// The cores.
    pub fn cores(&self) -> StationId {
        self.cores
    }
}
