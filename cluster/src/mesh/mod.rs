//! The mesh between the nodes of a rack: BlueDBM's storage network in software (Jun et al., ISCA
//! 2015, section 3.2), with the semantics of the RTL in `fpga/network`.
//!
//! Every node has the logical endpoints of the rack file. Packets go from an endpoint of one node
//! to the same endpoint of another, by a route that depends on endpoint and destination alone, over
//! links with tokens, and are forwarded by the nodes in between: never dropped, never reordered
//! within (endpoint, source, destination). docs/mesh.md has the whole.
//!
//! ```
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! # let text = "
//! #   [[node]]\nid = 0\nname = 'a'\naddress = 'unix:///a'\n[[node.card]]\nid = 0\npath = 'a'
//! #   [[node]]\nid = 1\nname = 'b'\naddress = 'unix:///b'\n[[node.card]]\nid = 0\npath = 'b'
//! #   [[cable]]\nfrom = 'a/0'\nto = 'b/0'
//! #   [[endpoint]]\nindex = 0\nname = 'pages'";
//! # let rack = flashmesh_cluster::Rack::parse(text)?;
//! use flashmesh_cluster::mesh::Mesh;
//!
//! let nodes = Mesh::in_process(&rack)?; // or, in a process each: Mesh::start(&rack, node)
//! let (a, b) = (nodes[0].endpoint("pages")?, nodes[1].endpoint("pages")?);
//! a.send(rack.nodes[1].number(), "page 7, please".into()).await?;
//! let (from, packet) = b.receive().await?;
//! assert_eq!((from, &packet[..]), (rack.nodes[0].number(), &b"page 7, please"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub(crate) mod clock;
mod endpoint;
mod error;
mod frame;
mod half;
mod handshake;
mod link;
mod local;
mod mux;
mod network;
mod node;
mod outage;
mod port;
mod routes;
mod stream;
mod switch;
mod tls;
mod topology;
mod transport;

#[cfg(test)]
pub(crate) mod tests;

pub use endpoint::Endpoint;
pub(crate) use endpoint::Sending;
pub use error::MeshError;
pub use network::{Hops, Network};
pub use node::{LinkStatus, Mesh, StartError};
pub use stream::{MeshStream, StreamListener, Streams};
