//! The rack file, and the mesh between the nodes of a rack.
//!
//! A rack is described by one file and by nothing else: no discovery (the seeds' network
//! configuration file; BlueDBM section 3.2.2). One node, the head, keeps the catalog and answers
//! SQL; the connections of clients of all nodes travel to it over the [`mesh`], and so are remote
//! pages, frontiers and commits to.

pub mod mesh;
mod rack;

pub use rack::{
    Address, Authorities, Cable, Card, Clients, DATABASE_FOLDER, Endpoint, Flow, Identity,
    MeshSettings, Node, Port, Rack, RackError, RackKey, Route, STREAMS, Shape,
};
