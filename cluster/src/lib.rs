//! The rack file, and the mesh between the nodes of a rack.
//!
//! A rack is described by one file and by nothing else: no discovery (the seeds' network
//! configuration file; BlueDBM section 3.2.2). No query goes by way of it yet: the engine
//! runs on one node. The [`mesh`] is what remote pages, frontiers, commits and the streams of a
//! distributed engine are to travel on. The [`model`] says what BlueDBM's hardware would make of a
//! query's counts.

pub mod mesh;
pub mod model;
mod rack;

pub use rack::{
    Address, Authorities, Cable, Card, Endpoint, Flow, Identity, MeshSettings, Node, Port, Rack,
    RackError, Route, Shape,
};
