//! Keys of joins that reach scans on other nodes.
//!
//! Where a plan is cut into parts for the nodes of a rack, a join and the scan of its probe side are
//! often in different ones, with an exchange of rows between them, and what the join learns of its build
//! side ([`runtime`](crate::scan)) does not get to that scan. So [`JoinKeysExec`] below the join notes the
//! keys of the build rows that pass, tells all nodes when it has seen all of its own ([`KeyHub`]), and a
//! scan, which has waited for that, drops rows that would meet nothing before they are sent. (Sideways
//! information passing; Ives and Taylor, "Sideways information passing for push-style query processing",
//! ICDE 2008.)
//!
//! ```text
//! every node:  build rows ▸ JoinKeysExec ▸ join        scan ◂ the union of all
//!                              └───── keys ──▸ all nodes ──────┘
//! ```
//!
//! Only what *all* tasks of the join have told counts: rows with a key that one task has not seen may meet
//! some in another. Who waits can't be waited for: the keys depend on what is below the build side alone,
//! and the scans below it only on joins further up, whose build sides are elsewhere. A limit that is met
//! may end a join before it asked for all of its rows, so a scan waits ten seconds at most; a join that is
//! dropped has ended, too.

mod collect;
mod exec;
mod hub;
#[cfg(test)]
mod tests;

use prost::Message;

pub use collect::says_something;
pub use exec::JoinKeysExec;
pub(crate) use hub::Gathered;
pub use hub::{KeyHub, QueryKeys, TellNodes};

/// What a scan drops rows by: a key of a join elsewhere in the same query.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyFilter {
    /// The join: its number in the plan.
    #[prost(uint32, tag = "1")]
    pub join: u32,
    /// Which of its keys, counted from 0.
    #[prost(uint32, tag = "2")]
    pub key: u32,
    /// The scan's column: its ordinal in the table.
    #[prost(uint32, tag = "3")]
    pub ordinal: u32,
}
