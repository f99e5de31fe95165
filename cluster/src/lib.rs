//! The rack file.
//!
//! A rack is described by one file and by nothing else: no discovery (the seeds' network
//! configuration file; BlueDBM section 3.2.2). No query goes by way of it yet: the engine
//! runs on one node, and replicas and the mesh are to come.

mod rack;

pub use rack::{Card, Node, Rack, RackError};
