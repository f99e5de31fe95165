//! The first rows of each partition of a window: `… WHERE row_number() OVER (PARTITION BY g ORDER BY x) <= 3`.
//!
//! DataFusion sorts all rows, numbers them, and throws nearly all of them away. [`LeadingRowsExec`] stands before the
//! sort, and lets no row pass of which it has seen enough better ones: a heap for each partition keeps the places of the
//! best so far. What passes is sorted, numbered and filtered as before, so that the operator may stop to hold rows back
//! at any time: where partitions have few rows each, or there is no memory for their heaps.

mod exec;
mod heaps;
mod keys;

pub use exec::LeadingRowsExec;

/// More rows of each partition are not looked for.
pub const MOST_ROWS: usize = 128;
