//! A discrete-event model of the appliance: BlueDBM's nodes (Jun et al., ISCA 2015), and the SSDs
//! of Minerva and Willow, from the numbers that their papers state.
//!
//! Nothing here is measured on hardware: every result is *modelled*, and is to be called so.
//! [`Parameters`] has all numbers with their sources, [`figures`] compares what comes out with the
//! papers, docs/model.md says how well that goes. [`Appliance::run`] takes counts of a real
//! execution:
//!
//! ```
//! use flashmesh_cluster::model::{Appliance, Counts, Workload};
//!
//! let scan = |hops| Counts { pages: 100_000, bytes_shipped: 4096, comparisons: 100_000, hops, requests: 1, ..Counts::default() };
//! let report = Appliance::default().run(&Workload {
//!     nodes: vec![scan(0), scan(1), scan(1), scan(2)],
//!     comparison_seconds: 22.86e-6,
//!     threads: 24,
//!     in_flight: None,
//!     seed: 1,
//! });
//! assert_eq!(report.in_store.bottleneck.unwrap().part, "flash bus");
//! assert_eq!(report.host.bottleneck.unwrap().part, "PCIe to host");
//! ```

mod appliance;
mod bee3;
mod clock;
mod drive;
pub mod figures;
mod flash;
mod host;
mod load;
mod network;
mod node;
mod parameters;
mod power;
mod random;
mod report;
mod run;
mod server;
mod simulation;

#[cfg(test)]
mod tests;

pub use appliance::{Appliance, Counts, Workload};
pub use bee3::Bee3;
pub use clock::Time;
pub use drive::Drive;
pub use flash::{Card, Place};
pub use host::Host;
pub use load::{Measured, closed_loop};
pub use network::{Link, route};
pub use node::{Access, Node, Way, latency};
pub use parameters::{Origin, Parameter, Parameters};
pub use power::Power;
pub use random::Random;
pub use report::{Execution, Report, Use};
pub use server::FlashServer;
pub use simulation::{OrderId, Path, PoolId, Simulation, Station, StationId, Step};
