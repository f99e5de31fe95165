//! The rack file, and the mesh between the nodes of a rack.
//!
//! A rack is described by one file and by nothing else: no discovery (the seeds' network
//! configuration file; BlueDBM section 3.2.2). One node, the head, keeps the catalog and answers
//! SQL. All between nodes rides the [`mesh`]: the pages of each other's [`cards`], the [`commands`]
//! that a scan leaves to the nodes that have its segments, the connections of clients. Cards have
//! [`copies`] on other nodes, where the file says so. [`node`] puts together what a node is. The
//! [`model`] says what BlueDBM's hardware would make of a query's counts, on a [`ModelledRack`].

pub mod cards;
pub mod catalog;
pub mod commands;
pub mod copies;
pub mod mesh;
pub mod model;
mod modelled;
pub mod node;
mod rack;
mod sealed;

pub use modelled::{Answers, ModelledRack, ScanCounts};
pub use rack::{
    Address, Authorities, COMMITS, Cable, Card, Clients, DATABASE_FOLDER, Endpoint, Flow, Identity,
    MeshSettings, NewNode, Node, Port, Rack, RackError, RackFile, RackKey, Route, STREAMS, Shape,
    holders,
};
