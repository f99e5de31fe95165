//! Tables that lie by a key: rows of one *bucket*, which the hash of the key names, are on one node.
//!
//! So nodes can join such tables by that key, and make groups of it, each with what it has, and without
//! an exchange of rows (the hash-partitioned tables of Gamma: DeWitt et al., IEEE TKDE 1990).
//!
//! Each segment has rows of one bucket, and says of which; whoever reads a table that way checks that
//! all do. On which node a bucket is, nothing says but the segments: what is written goes where most of
//! its bucket is, of all tables with as many buckets.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, AsArray, RecordBatch, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Schema};

use super::database::Core;
use super::state::State;
use crate::index::hash::{check_key_column, hash_keys};
use crate::store::{MEMORY_CARD, NodeId, PageStore};
use crate::{Result, StorageError};

/// Buckets that a table has at most: each has segments of its own.
pub const MAX_BUCKETS: u16 = 256;
/// Buckets that a table has at least, where nobody says how many: nodes may come.
const MIN_BUCKETS: u16 = 8;

/// By which columns the rows of a table lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    columns: Vec<u32>,
    buckets: u16,
}

impl Distribution {
    /// By the values of `columns`, ordinals in `schema`, in so many buckets.
    ///
    /// # Errors
    /// `Invalid`, naming the column, for types that are no keys, and for no columns, columns given twice,
    /// and numbers of buckets other than 1 to [`MAX_BUCKETS`].
    pub fn new(schema: &Schema, columns: Vec<u32>, buckets: u16) -> Result<Self> {
        let invalid = |what: String| Err(StorageError::Invalid(what));
        if columns.is_empty() {
            return invalid("a table is distributed by at least one column".into());
        }
        if !(1..=MAX_BUCKETS).contains(&buckets) {
            return invalid(format!(
                "a table has 1 to {MAX_BUCKETS} buckets, not {buckets}"
            ));
        }
        for (place, column) in columns.iter().enumerate() {
            let Some(field) = schema.fields().get(*column as usize) else {
                return invalid(format!(
                    "a table is distributed by column {column}, which it has not"
                ));
            };
            if columns[..place].contains(column) {
                return invalid(format!(
                    "a table is distributed by column '{}' twice",
                    field.name()
                ));
            }
            check_key_column(field.name(), field.data_type()).map_err(StorageError::Invalid)?;
        }
        Ok(Self { columns, buckets })
    }

    /// The ordinals of its columns.
    pub fn columns(&self) -> &[u32] {
        &self.columns
    }

    /// How many buckets there are.
    pub fn buckets(&self) -> u16 {
        self.buckets
    }

    /// How many buckets a new table has on so many nodes: as many for each of them, at least eight in all.
    pub fn default_buckets(nodes: usize) -> u16 {
        let nodes = u16::try_from(nodes)
            .unwrap_or(MAX_BUCKETS)
            .clamp(1, MAX_BUCKETS);
        nodes * MIN_BUCKETS.div_ceil(nodes)
    }

    /// The same for other columns of a table: `place_of` says where each is now.
    ///
    /// # Errors
    /// The ordinal of one that is gone.
    pub fn moved(&self, place_of: impl Fn(u32) -> Option<u32>) -> std::result::Result<Self, u32> {
        let columns = self.columns.iter();
        let columns = columns.map(|column| place_of(*column).ok_or(*column));
        Ok(Self {
            columns: columns.collect::<std::result::Result<_, _>>()?,
            ..*self
        })
    }

    /// The rows of a batch by their buckets, each with its rows in their order.
    pub(super) fn split(&self, batch: &RecordBatch) -> Result<Vec<(u16, RecordBatch)>> {
        let buckets = self.buckets_of(batch)?;
        let Some(first) = buckets.first() else {
            return Ok(Vec::new());
        };
        if buckets.iter().all(|bucket| bucket == first) {
            return Ok(vec![(*first, batch.clone())]);
        }
        let mut rows = vec![Vec::new(); usize::from(self.buckets)];
        for (row, bucket) in (0..).zip(&buckets) {
            rows[usize::from(*bucket)].push(row);
        }
        let rows = (0..)
            .zip(rows)
            .filter(|(_, rows): &(u16, Vec<u32>)| !rows.is_empty());
        rows.map(|(bucket, rows)| {
            let rows = UInt32Array::from(rows);
            let columns = batch.columns().iter();
            let columns = columns.map(|column| Ok(without_others(take(column, &rows, None)?)));
            let columns = columns.collect::<Result<Vec<_>>>()?;
            Ok((bucket, RecordBatch::try_new(batch.schema(), columns)?))
        })
        .collect()
    }

    /// The bucket of each row. Rows without a key are in the first.
    fn buckets_of(&self, batch: &RecordBatch) -> Result<Vec<u16>> {
        let columns = self.columns.iter();
        let columns: Vec<ArrayRef> = columns
            .map(|column| Arc::clone(batch.column(*column as usize)))
            .collect();
        let hashes = hash_keys(&columns)?.into_iter();
        Ok(hashes
            .map(|hash| hash.map_or(0, |hash| self.bucket_of(hash)))
            .collect())
    }

    /// The bucket of keys with this hash.
    pub(crate) fn bucket_of(&self, hash: u64) -> u16 {
        // Less than the number of buckets.
        (hash % u64::from(self.buckets)) as u16
    }
}

/// Views of what is in them alone: those of few rows would keep the text of all.
fn without_others(column: ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        _ => column,
    }
}

/// A distribution, and where what is written of each bucket goes.
#[derive(Debug, Clone)]
pub(super) struct Buckets {
    pub distribution: Arc<Distribution>,
    homes: Arc<OnceLock<Homes>>,
}

impl Buckets {
    pub fn new(distribution: &Arc<Distribution>) -> Self {
        Self {
            distribution: Arc::clone(distribution),
            homes: Arc::default(),
        }
    }

    /// Looks where they are: for whoever writes much of them. What is left in memory is gathered later.
    pub fn settle(&self, core: &Core) {
        let homes = || Homes::new(self.distribution.buckets, &core.state.read(), core.store());
        let _ = self.homes.get_or_init(homes);
    }

    /// Where a bucket's rows go, if that was looked at.
    pub fn home(&self, bucket: u16) -> Option<NodeId> {
        self.homes.get()?.of(bucket)
    }
}

/// The nodes on which the buckets of tables should be that have as many.
#[derive(Debug)]
pub(super) struct Homes(Vec<NodeId>);

impl Homes {
    /// Each where most of it is, as far as nodes take what is new; the others in turn.
    pub fn new(buckets: u16, state: &State, store: &PageStore) -> Self {
        let nodes = store.filled_nodes();
        let mut segments: HashMap<(u16, NodeId), usize> = HashMap::new();
        for table in state.tables.values() {
            let snapshot = &table.snapshot;
            let alike = snapshot.distribution.as_ref();
            if alike.is_none_or(|alike| alike.buckets != buckets) {
                continue;
            }
            for segment in &snapshot.segments {
                // The pages of a segment are on one node.
                let first = segment.chunks.first().map(|chunk| chunk.run.first);
                if let (Some(bucket), Some(first)) = (segment.bucket, first)
                    && first.card != MEMORY_CARD
                    && nodes.contains(&first.node)
                {
                    *segments.entry((bucket, first.node)).or_default() += 1;
                }
            }
        }
        let homes = (0..buckets).map(|bucket| {
            let most = nodes.iter().filter_map(|node| {
                let count = segments.get(&(bucket, *node))?;
                Some((*count, Reverse(*node)))
            });
            match most.max() {
                Some((_, Reverse(node))) => node,
                None => nodes[usize::from(bucket) % nodes.len()],
            }
        });
        Self(homes.collect())
    }

    /// The node of a bucket.
    pub fn of(&self, bucket: u16) -> Option<NodeId> {
        self.0.get(usize::from(bucket)).copied()
    }
}
