//! Which node owns which segment: the rack file and placement.
//!
//! A rack is described by one file and by nothing else: no discovery (the seeds' network
//! configuration file; BlueDBM section 3.2.2). So far a rack has one node; links and replicas
//! come with the mesh.

mod placement;
mod rack;

pub use placement::Placement;
pub use rack::{Card, Node, Rack, RackError};
