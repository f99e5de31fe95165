//! What indexes are made of.
//!
//! An index covers a table by *parts*: each part covers some of its segments, is built once from
//! their rows, and never changes. Its content is a few long arrays in ordinary pages
//! ([`paged::PagedArray`]) and a short record.
//!
//! | module | what is in it |
//! |---|---|
//! | [`paged`] | long arrays of integers in pages: written, read by ranges and positions, searched |
//! | [`adjacency`] | neighbour lists of an edge table, in both directions |

use arrow::array::ArrayRef;

pub mod adjacency;
pub mod paged;

/// The content of a part of an index, before it is written.
#[derive(Debug)]
pub struct PartData {
    /// The arrays in the order that the kind of index defines, each as slices of at most 65,536
    /// values: one chunk each.
    pub arrays: Vec<Vec<ArrayRef>>,
    /// What else has to be kept, encoded; only the kind of index knows what it says.
    pub meta: Vec<u8>,
}
