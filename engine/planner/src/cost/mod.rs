//! What the planner expects: rows that pass a filter, distinct values, groups, bytes.
//!
//! There is one estimate of a predicate ([`predicate`]): over the Program's expressions, since
//! these are few and exact. It asks a [`Columns`] what is known of columns: a table on flash
//! ([`table`]) has the zone maps of its chunks for histograms, any other relation ([`relation`])
//! the least and greatest values and the distinct counts that reach it through a logical plan.
//!
//! These are the textbook estimates (Selinger et al., "Access path selection in a relational
//! database management system", SIGMOD 1979): values are taken as evenly spread, predicates as
//! independent, and the keys of the side with fewer distinct values as contained in the other.

mod predicate;
mod relation;
mod table;

use arrow::datatypes::DataType;
use flashmesh_storage::page::{ZoneKey, float_of_key, zone_key};

pub use predicate::{distinct_values, groups, selectivity};
pub use relation::Estimate;
pub use table::width_bytes;

/// Shares of rows where nothing better is known.
pub mod default_share {
    pub const EQUAL: f64 = 0.1;
    pub const RANGE: f64 = 0.33;
    pub const CONTAINS: f64 = 0.05;
    pub const PREFIX: f64 = 0.05;
    pub const NULL: f64 = 0.05;
    pub const OTHER: f64 = 0.3;
}

/// What is known of the columns that an expression names by their ordinals.
pub trait Columns {
    /// Rows that the other answers are about.
    fn base_rows(&self) -> f64;

    /// Distinct values of a column, at least 1.
    fn distinct(&self, column: u32) -> Option<f64>;

    /// The share of rows in which a column is NULL.
    fn null_share(&self, column: u32) -> f64;

    /// The share of rows whose value lies within `keys`.
    fn range_share(&self, column: u32, keys: KeyRange) -> Option<f64>;

    /// Whether no row has a value with this key.
    fn lacks(&self, column: u32, key: i64) -> bool;
}

/// Zone keys from the first to the second, both included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeyRange {
    min: i64,
    max: i64,
}

impl KeyRange {
    /// What is in both.
    fn cut(self, other: Self) -> Self {
        Self {
            min: self.min.max(other.min),
            max: self.max.min(other.max),
        }
    }

    /// The part of this range, from 0 to 1, that lies within `wanted`; values are taken as evenly
    /// spread. `None` where the range has no width to speak of (infinite floats).
    fn share_within(self, wanted: Self, data_type: &DataType) -> Option<f64> {
        if self.min > self.max || self.max < wanted.min || self.min > wanted.max {
            return Some(0.0);
        }
        let (from, to) = (self.min.max(wanted.min), self.max.min(wanted.max));
        // The keys of floats are their bits: in order, but not in proportion.
        let (part, whole) = match data_type.is_floating() {
            true => (
                float_of_key(to) - float_of_key(from),
                float_of_key(self.max) - float_of_key(self.min),
            ),
            false => (
                to as f64 - from as f64 + 1.0,
                self.max as f64 - self.min as f64 + 1.0,
            ),
        };
        if !whole.is_finite() || part.is_nan() {
            return None;
        }
        // One float has no width at all.
        Some(if whole > 0.0 { part / whole } else { 1.0 })
    }
}

/// The key under which zone maps hold a value, exact or not.
fn key_of(value: &flashmesh_pushdown::Scalar, data_type: &DataType) -> Option<i64> {
    match zone_key(value, data_type) {
        ZoneKey::Exact(key) | ZoneKey::Prefix(key) => Some(key),
        ZoneKey::Unknown => None,
    }
}

/// Whether a grouped partial aggregate in the store pays: it must shrink what travels to a
/// fraction, otherwise the store only builds tables of groups that the host builds once more.
pub fn grouping_pays(groups: f64, rows: f64) -> bool {
    groups <= 4096.0 || groups <= rows * 0.3
}

/// Rows from which on a top-k stays above: the heap would hold more than it saves.
pub const TOP_K_LIMIT: usize = 100_000;
