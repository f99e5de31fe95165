//! Tables on flash, and the accelerators that run Programs beside them.
//!
//! They stand on the crate `flashmesh-pages`, whose modules [`flash`], [`page`] and [`store`] are
//! known here too. From there up:
//!
//! | module | what is in it |
//! |---|---|
//! | [`memory`] | memory that is asked for before it is taken |
//! | [`segment`] | segments and their chunks: which pages hold which rows, and how values are read |
//! | [`capability`] | what a request may do, sealed |
//! | [`block_cache`] | a cache on flash for what lies elsewhere |
//! | [`index`] | what indexes hold, and how they are asked |
//! | [`table`] | tables, snapshots, statistics, the catalog and its commits |
//! | [`kernel`] | kernels that users add: packages, manifests, arguments |
//! | [`accelerator`] | what runs a Program over segments |
//! | [`graph`] | searches and rankings over the neighbour lists of an edge table |
//! | [`access`] | which rows a scan looks at: all, or those that an index names |
//! | [`lookup`] | few rows by their keys, without a Program |
//! | [`functions`] | users' functions: kernels by the names that the catalog has for them |
//! | [`peer`] | commands for the nodes of a rack that have the segments, and their answers |
//! | [`node`] | the storage node: takes commands, gives streams of batches |
//! | `serve` | commands of other nodes |
//! | [`changes`] | what changes a database, under the capability of whoever asks |
//!
//! Each uses only those above it in the table, which `cargo xtask floors` checks; nothing here knows
//! DataFusion.

pub mod accelerator;
pub mod access;
pub mod block_cache;
pub mod capability;
pub mod changes;
mod distance;
pub mod functions;
pub mod graph;
pub mod index;
pub mod kernel;
mod life;
mod literals;
pub mod lookup;
pub mod memory;
pub mod node;
pub mod peer;
pub mod segment;
mod serve;
mod shipped;
pub mod table;

pub use flashmesh_pages::{Result, StorageError, flash, page, store};
