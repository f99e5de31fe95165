//! Flash, pages, tables, and the accelerators that run Programs beside them.
//!
//! The rooms, from the flash up:
//!
//! | module | what is in it |
//! |---|---|
//! | [`flash`] | raw devices: read, write and erase of 8 KiB pages, many tags in flight |
//! | [`page`] | one page's bytes: header, encodings, checks |
//! | [`store`] | the log-structured page store and the page cache |
//! | [`index`] | what indexes hold, and how they are asked |
//! | [`table`] | segments, snapshots, statistics, the catalog and its commits |
//! | [`access`] | which rows a scan looks at: all, or those that an index names |
//! | [`kernel`] | kernels that users add: packages, manifests, arguments |
//! | [`graph`] | searches and rankings over the neighbour lists of an edge table |
//! | [`accelerator`] | what runs a Program over segments |
//! | [`node`] | the storage node: takes commands, gives streams of batches |
//! | [`changes`] | what changes a database, under the capability of whoever asks |
//!
//! Dependencies point upwards only; nothing here knows DataFusion.

pub mod accelerator;
pub mod access;
pub mod capability;
pub mod changes;
mod distance;
mod error;
pub mod flash;
pub mod graph;
pub mod index;
pub mod kernel;
mod literals;
pub mod node;
pub mod page;
pub mod store;
pub mod table;

pub use error::{Result, StorageError};
