//! Tables, snapshots, statistics, the catalog and its commits.
//!
//! A table is a list of immutable segments. The manifest (in `redb`, and behind it in the log of
//! commits) names the segments of the current version of every table; a commit changes that list in
//! one record of the log, after the pages are durable or with them in it, so that a crash leaves
//! either the old version or the new one. A reader holds a [`TableSnapshot`]; pages of dropped
//! segments are given back to the store when the last snapshot that shows them is gone.

mod accounts;
mod backup;
mod catalog;
mod change;
mod checks;
mod closed;
mod collection;
mod commit_log;
mod commits;
mod compaction;
mod database;
mod distribution;
mod edit;
mod folder;
mod fsck;
mod functions;
mod history;
mod indexing;
mod load;
mod manifest;
mod nan;
mod overlay;
mod past;
mod relocation;
mod schema;
mod schema_record;
mod scrub;
mod sequences;
mod shipped;
mod small_commits;
mod state;
mod steps;
mod temporary;
#[cfg(test)]
mod tests;
mod transaction;
mod unique;
mod upkeep;
mod views;
mod writing;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use flashmesh_pushdown::Scalar;

pub use accounts::Accounts;
pub use backup::{
    Backup, BackupFiles, BackupFolder, BackupProgress, backups, check_backup, restore,
};
pub use catalog::open_from_disk;
pub use checks::{Check, CheckLanguage, RowTest};
pub use closed::Closed;
pub use database::{Database, DatabaseOptions, FORMAT_VERSION};
pub use distribution::{Distribution, MAX_BUCKETS};
pub use folder::CatalogStore;
pub use fsck::{FsckProgress, FsckReport};
pub(crate) use functions::digest_with_callees;
pub use functions::{Callee, Function, FunctionQuota, NewFunction};
pub use load::{Load, LoadTarget, LoadWriter};
pub use overlay::Overlay;
pub use past::{AsOf, TableVersion};
pub use schema::normalise_schema;
pub use scrub::ScrubStatus;
pub use sequences::Generated;
pub(crate) use shipped::ShippedTable;
pub use temporary::{TEMPORARY_PREFIX, TEMPORARY_SCHEMA, is_temporary};
pub use transaction::{Isolation, Workspace};
pub use upkeep::UpkeepOptions;
pub use views::View;

use crate::index::{Index, IndexDefinition};
use crate::segment::{Chunk, Segment, TableId};
use crate::store::PageRun;
use crate::{Result, StorageError};

/// One version of a table, as a reader sees it for as long as it holds it.
#[derive(Debug)]
pub struct TableSnapshot {
    /// The table's number.
    pub id: TableId,
    /// `schema.table`.
    pub name: String,
    /// Column names and types as stored (strings are `Utf8View`).
    pub schema: SchemaRef,
    /// The columns that a scan can read: those of `schema`, and last the rows' ids (see
    /// [`row_ids`](crate::segment::row_ids)), named `row_id`, or `_row_id` where a column has that name.
    pub scan_schema: SchemaRef,
    /// Version, counted up by each commit to the table.
    pub version: u64,
    /// Versions have one number if no commit between them has changed rows: compaction only moves
    /// them. Numbers are of this process.
    pub rows_version: u64,
    /// The live segments, in row order.
    pub segments: Vec<Arc<Segment>>,
    /// Statistics of each column over all segments.
    pub statistics: Vec<ColumnStatistics>,
    /// Its indexes.
    pub indexes: Vec<Arc<Index>>,
    /// Rows that were deleted are gone from its segments: bounds of columns may be wider than what
    /// is left.
    pub lost_rows: bool,
    /// The SQL text of each column's default, where it has one, or how it is [`Generated`].
    pub defaults: Vec<Option<String>>,
    /// What its rows meet. Of a past version it is not kept.
    pub checks: Vec<Check>,
    /// How its rows are laid out when they are written.
    pub layout: TableLayout,
    /// By which columns its rows lie, if by any. Segments that were written by an earlier flashmesh may
    /// have none of its buckets.
    pub distribution: Option<Arc<Distribution>>,
}

/// How the rows of a table lie in pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TableLayout {
    /// Each column in pages of its own: who reads few columns reads no others.
    #[default]
    Column,
    /// All columns of some rows in one page ("partition attributes across"): who wants whole rows
    /// reads one page for each. Columns of long values still have pages of their own.
    Pax,
}

impl TableLayout {
    /// Its name in SQL.
    pub fn name(self) -> &'static str {
        match self {
            Self::Column => "column",
            Self::Pax => "pax",
        }
    }

    /// The layout of that name, in any case.
    ///
    /// # Errors
    /// `Invalid`, with the names that there are.
    pub fn parse(name: &str) -> Result<Self> {
        let all = [Self::Column, Self::Pax];
        let found = all
            .into_iter()
            .find(|l| l.name().eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            StorageError::Invalid(format!(
                "there is no layout '{name}'; a table's layout is 'column' or 'pax'"
            ))
        })
    }
}

/// The table's columns and the rows' ids.
pub fn scan_schema(schema: &SchemaRef) -> SchemaRef {
    let mut name = "row_id".to_string();
    while schema.index_of(&name).is_ok() {
        name.insert(0, '_');
    }
    let ids = Arc::new(Field::new(name, DataType::UInt64, false));
    let fields = schema.fields().iter().cloned().chain([ids]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// What the planner knows of a column.
#[derive(Debug, Clone, Default)]
pub struct ColumnStatistics {
    /// NULLs, exact but for deleted rows, which are counted.
    pub null_count: u64,
    /// Least value, where the type is ordered and there is one; exact but for rows that were
    /// deleted (see [`TableSnapshot::has_exact_statistics`]).
    pub min: Option<Scalar>,
    /// Greatest value, likewise.
    pub max: Option<Scalar>,
    /// Estimated number of distinct values.
    pub distinct: Option<u64>,
    /// Bytes on flash.
    pub bytes_on_flash: u64,
}

impl ColumnStatistics {
    /// The least and the greatest value, where these are 64-bit integers.
    pub fn span(&self) -> Option<(i64, i64)> {
        let integer = |value: &Option<Scalar>| match value {
            Some(Scalar::Int(value)) => i64::try_from(*value).ok(),
            _ => None,
        };
        Some((integer(&self.min)?, integer(&self.max)?))
    }
}

impl TableSnapshot {
    /// The same version as far as it is in `segments`, some of its own: what a scan of these alone
    /// sees. Indexes are left out; statistics are those of the whole.
    pub fn over(&self, segments: Vec<Arc<Segment>>) -> Self {
        Self {
            segments,
            indexes: Vec::new(),
            name: self.name.clone(),
            schema: Arc::clone(&self.schema),
            scan_schema: Arc::clone(&self.scan_schema),
            statistics: self.statistics.clone(),
            defaults: self.defaults.clone(),
            checks: self.checks.clone(),
            distribution: self.distribution.clone(),
            ..*self
        }
    }

    /// Rows of all segments that are not deleted.
    pub fn rows(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.live_rows())).sum()
    }

    /// Whether some rows of its segments are deleted: counts and bounds over the pages are bounds
    /// of what is left, then.
    pub fn has_deleted_rows(&self) -> bool {
        self.segments.iter().any(|s| s.deleted().is_some())
    }

    /// Whether `statistics` say what its rows have, and not only what they could have.
    pub fn has_exact_statistics(&self) -> bool {
        !self.lost_rows && !self.has_deleted_rows()
    }

    /// Whether it has the very rows of another version, wherever they are by now.
    pub(crate) fn has_rows_of(&self, other: &Self) -> bool {
        (self.id, self.rows_version) == (other.id, other.rows_version)
    }

    /// Whether it has the columns, defaults, constraints and indexes of another version.
    pub(crate) fn is_defined_as(&self, other: &Self) -> bool {
        let indexes = |table: &Self| -> Vec<_> {
            let indexes = table.indexes.iter();
            indexes.map(|index| index.definition.clone()).collect()
        };
        self.schema == other.schema
            && self.defaults == other.defaults
            && self.checks == other.checks
            && self.distribution == other.distribution
            && indexes(self) == indexes(other)
    }

    /// The chunks of its segments and indexes.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let parts = self.indexes.iter().flat_map(|index| &index.parts);
        let segments = self
            .segments
            .iter()
            .flat_map(|segment| segment.chunks.iter());
        segments.chain(parts.flat_map(|part| part.chunks()))
    }

    /// The pages of all these, and of their page indexes.
    pub fn runs(&self) -> impl Iterator<Item = &PageRun> {
        self.chunks().flat_map(Chunk::runs)
    }

    /// The index of that name.
    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|i| i.definition.name == name)
    }

    /// The index that stands for the primary key.
    pub fn primary_key(&self) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|i| i.definition.primary)
    }

    /// Names of an index's columns.
    pub fn index_columns(&self, definition: &IndexDefinition) -> Vec<&str> {
        let fields = self.schema.fields();
        let names = definition
            .columns
            .iter()
            .filter_map(|c| fields.get(*c as usize));
        names.map(|field| field.name().as_str()).collect()
    }
}
