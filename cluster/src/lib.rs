//! The rack file, and the mesh between the nodes of a rack.
//!
//! A rack is described by one file and by nothing else: no discovery (the seeds' network
//! configuration file; BlueDBM section 3.2.2). All between its nodes rides the [`mesh`]: the pages of
//! each other's [`cards`], and the [`commands`] that a scan leaves to the nodes that have its
//! segments. [`node`] puts together what a node is.

pub mod cards;
pub mod commands;
pub mod mesh;
pub mod node;
mod rack;

pub use rack::{
    Address, Authorities, Cable, Card, Endpoint, Flow, Identity, MeshSettings, Node, Port, Rack,
    RackError, Route, Shape,
};
