//! Loads: many threads append rows, one commit shows them all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use parking_lot::Mutex;

use crate::index::IndexDefinition;
use crate::segment::{SegmentId, SegmentsById, TableId, Unnamed, row_of_id};
use crate::store::PageWriter;
use crate::table::change::{ChangeKind, DeletedRows, TableChange, conflict};
use crate::table::checks::{RowTest, test_of};
use crate::table::database::stored_schema;
use crate::table::distribution::Buckets;
use crate::table::edit::ObjectName;
use crate::table::indexing::{NewParts, PartBuilder};
use crate::table::nan::with_one_nan;
use crate::table::small_commits;
use crate::table::state::{Labels, State};
use crate::table::steps::{self, Step};
use crate::table::transaction::Transaction;
use crate::table::writing::{Layout, Waiting, WrittenSegment, are_few};
use crate::table::{Check, Database, Distribution, TableLayout, TableSnapshot};
use crate::{Result, StorageError};

/// What a load writes to.
#[derive(Debug, Clone)]
pub enum LoadTarget {
    /// A new table.
    Create {
        /// Its schema.
        schema: String,
        /// Its name.
        table: String,
        /// Columns; stored as [`normalise_schema`](crate::table::normalise_schema) says.
        arrow_schema: SchemaRef,
        /// Take the place of a table of that name.
        or_replace: bool,
        /// Indexes that it has from the start, such as its primary key.
        indexes: Vec<IndexDefinition>,
        /// The text of each column's default, as [`TableSnapshot::defaults`]; none at all: no
        /// column has one.
        defaults: Vec<Option<String>>,
        /// What its rows meet.
        checks: Vec<Check>,
        /// For how long its past versions stay readable; zero: not at all.
        retention: Duration,
        /// How its rows are laid out.
        layout: TableLayout,
        /// By which columns its rows lie.
        distribution: Option<Arc<Distribution>>,
    },
    /// Other columns for a table, with the rows that it has then.
    Redefine {
        /// Its schema.
        schema: String,
        /// Its name.
        table: String,
        /// The version that the rows are made of.
        version: Arc<TableSnapshot>,
        /// Columns.
        arrow_schema: SchemaRef,
        /// Indexes.
        indexes: Vec<IndexDefinition>,
        /// Defaults.
        defaults: Vec<Option<String>>,
        /// What its rows meet.
        checks: Vec<Check>,
        /// By which of the new columns its rows lie.
        distribution: Option<Arc<Distribution>>,
    },
    /// More rows for a table.
    Append {
        /// Its schema.
        schema: String,
        /// Its name.
        table: String,
    },
    /// Rows of a table deleted, replaced or added. Batches have one column more, the last: the ids
    /// of the rows that go, NULL where none does. Batches of that column alone have no others for
    /// them.
    Change {
        /// Its schema.
        schema: String,
        /// Its name.
        table: String,
        /// The version that the ids of the deleted rows are of.
        version: Arc<TableSnapshot>,
    },
    /// New rows in place of a table's present ones.
    Overwrite {
        /// Its schema.
        schema: String,
        /// Its name.
        table: String,
    },
}

impl LoadTarget {
    fn names(&self) -> (&str, &str) {
        match self {
            Self::Create { schema, table, .. }
            | Self::Append { schema, table }
            | Self::Change { schema, table, .. }
            | Self::Redefine { schema, table, .. }
            | Self::Overwrite { schema, table } => (schema, table),
        }
    }
}

/// A load in progress.
///
/// Nothing is visible, and nothing survives a crash, before [`commit`](Self::commit); a load that
/// is dropped instead gives its pages back.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    database: Arc<Database>,
    transaction: Option<Arc<Transaction>>,
    target: LoadTarget,
    schema: SchemaRef,
    /// What the rows must meet, if anything.
    test: Option<Arc<dyn RowTest>>,
    /// See [`TableChange::redefinitions`].
    redefinitions: Option<u32>,
    layout: Layout,
    writers: AtomicU32,
    rows: AtomicU64,
    done: Mutex<Done>,
    deleted: Mutex<BTreeMap<SegmentId, DeletedRows>>,
}

/// What the finished writers left.
#[derive(Debug, Default)]
struct Done {
    writers: u32,
    /// With where they belong among the load's segments; those of one position are in the order
    /// in which they were written.
    segments: Vec<(u64, WrittenSegment)>,
    /// Few rows, which are left to the commit, likewise.
    rows: Vec<(u64, RecordBatch)>,
    reservations: Vec<Unnamed>,
}

impl Load {
    /// A load that commits by itself, or with a transaction.
    pub(super) fn begin(
        database: &Arc<Database>,
        transaction: Option<Arc<Transaction>>,
        target: LoadTarget,
    ) -> Result<Self> {
        let (schema_name, table_name) = target.names();
        let new_labels = |schema: &SchemaRef| {
            Arc::new(Labels::new(&format!("{schema_name}.{table_name}"), schema))
        };
        let mut redefinitions = None;
        let rows;
        let distribution;
        let checks;
        let (schema, labels, table, next_segment) = match &target {
            LoadTarget::Create {
                arrow_schema,
                or_replace,
                indexes,
                layout,
                distribution: by,
                checks: new,
                ..
            } => {
                checks = new.clone();
                rows = *layout;
                distribution = by.clone();
                let name = ObjectName::new(schema_name, table_name);
                let check = |state: &State| {
                    state.check_free(&name, *or_replace)?;
                    state.check_index_names(&name, indexes)
                };
                match &transaction {
                    Some(transaction) => transaction.check(check)?,
                    None => check(&database.state.read())?,
                }
                let schema = stored_schema(arrow_schema)?;
                (
                    Arc::clone(&schema),
                    new_labels(&schema),
                    database.next_table_id()?,
                    Arc::new(AtomicU32::new(0)),
                )
            }
            LoadTarget::Redefine {
                arrow_schema,
                version,
                distribution: by,
                checks: new,
                ..
            } => {
                checks = new.clone();
                distribution = by.clone();
                let present = match &transaction {
                    Some(transaction) => transaction.table_state(schema_name, table_name)?,
                    None => database.table_state(schema_name, table_name)?,
                };
                if version.id != present.snapshot.id {
                    return Err(conflict(&ObjectName::new(schema_name, table_name)));
                }
                rows = present.snapshot.layout;
                let schema = stored_schema(arrow_schema)?;
                (
                    Arc::clone(&schema),
                    new_labels(&schema),
                    present.snapshot.id,
                    present.next_segment,
                )
            }
            LoadTarget::Append { .. }
            | LoadTarget::Change { .. }
            | LoadTarget::Overwrite { .. } => {
                let present = match &transaction {
                    Some(transaction) => transaction.table_state(schema_name, table_name)?,
                    None => database.table_state(schema_name, table_name)?,
                };
                if let LoadTarget::Change { version, .. } = &target
                    && (version.id != present.snapshot.id
                        || version.schema != present.snapshot.schema)
                {
                    // Another table has the name now, or the rows are of columns that it had.
                    return Err(conflict(&ObjectName::new(schema_name, table_name)));
                }
                rows = present.snapshot.layout;
                distribution = present.snapshot.distribution.clone();
                checks = present.snapshot.checks.clone();
                redefinitions = match &transaction {
                    Some(transaction) => transaction.redefinitions_of(&present),
                    None => Some(present.record.redefinitions),
                };
                (
                    present.snapshot.schema.clone(),
                    present.labels,
                    present.snapshot.id,
                    present.next_segment,
                )
            }
        };
        let test = test_of(database.checks.as_ref(), table_name, &schema, &checks)?;
        let generation = database.generation()?;
        let layout = Layout {
            table,
            generation,
            next_segment,
            labels,
            rows,
            buckets: distribution.as_ref().map(Buckets::new),
        };
        Ok(Self {
            shared: Arc::new(Shared {
                database: Arc::clone(database),
                transaction,
                target,
                schema,
                test,
                redefinitions,
                layout,
                writers: AtomicU32::new(0),
                rows: AtomicU64::new(0),
                done: Mutex::default(),
                deleted: Mutex::default(),
            }),
        })
    }

    /// The stored schema that batches are cast to.
    pub fn schema(&self) -> SchemaRef {
        self.shared.schema.clone()
    }

    /// The table that it writes to.
    pub fn table(&self) -> TableId {
        self.shared.layout.table
    }

    /// Rows taken so far by all writers.
    pub fn rows(&self) -> u64 {
        self.shared.rows.load(Ordering::Relaxed)
    }

    /// A writer for one thread. Rows of an earlier writer come before rows of a later one, unless
    /// [`LoadWriter::seek`] says where they belong.
    pub fn writer(&self) -> Result<LoadWriter> {
        Ok(LoadWriter {
            position: u64::from(self.shared.writers.fetch_add(1, Ordering::Relaxed)),
            shared: Arc::clone(&self.shared),
            pages: None,
            waiting: Waiting::new(self.shared.layout.buckets.as_ref()),
            charged: 0,
            segments: Vec::new(),
        })
    }

    /// Makes the load durable and visible, whole, and gives the number of its rows. A load of a
    /// transaction becomes visible to that, and durable when that commits.
    ///
    /// # Errors
    /// `Invalid` when a writer was not finished; `AlreadyExists` or `NotFound` when the table
    /// came or went meanwhile, `Conflict` when rows to delete did; `Full` and `Io`;
    /// `NeedsReopening`. After any but the last nothing has changed.
    pub fn commit(self) -> Result<u64> {
        let shared = &self.shared;
        let mut done = std::mem::take(&mut *shared.done.lock());
        if done.writers != shared.writers.load(Ordering::Relaxed) {
            return Err(StorageError::Invalid(
                "a load was committed before all its writers were finished".into(),
            ));
        }
        let rows = shared.rows.load(Ordering::Relaxed);
        let left = shared.small(&mut done)?;
        let change = shared.change(done);
        match (left, &shared.transaction) {
            (Some(left), Some(transaction)) => transaction.stage_few(change, &left)?,
            (Some(left), None) => small_commits::commit(&shared.database, change, left)?,
            (None, Some(transaction)) => transaction.stage(Step::Rows(Box::new(change)))?,
            (None, None) => {
                let name = change.name.clone();
                let steps = vec![Step::Rows(Box::new(change))];
                steps::commit(&shared.database, steps)?;
                shared.database.cover_load(&name, rows);
            }
        }
        Ok(rows)
    }
}

impl Shared {
    /// Whether few rows are left to the commit, or to the transaction, which write them with others.
    fn leaves_rows(&self) -> bool {
        matches!(
            self.target,
            LoadTarget::Append { .. } | LoadTarget::Change { .. }
        )
    }

    /// A writer of pages for one thread.
    fn page_writer(&self) -> Result<PageWriter> {
        let store = self.database.store();
        match &self.target {
            LoadTarget::Append { .. } | LoadTarget::Change { .. } => store.small_writer(),
            _ => store.writer(),
        }
    }

    /// All rows of a load of few; of another one, those that were left are written.
    fn small(&self, done: &mut Done) -> Result<Option<Vec<RecordBatch>>> {
        let mut left = std::mem::take(&mut done.rows);
        let all = || left.iter().map(|(_, rows)| rows);
        if self.leaves_rows() && done.segments.is_empty() && are_few(all()) {
            left.sort_by_key(|(position, _)| *position);
            return Ok(Some(left.into_iter().map(|(_, rows)| rows).collect()));
        }
        for (position, rows) in left {
            let mut pages = self.page_writer()?;
            let segments = &mut done.segments;
            self.layout.write(&rows, &mut pages, &mut |written| {
                segments.push((position, written));
            })?;
            done.reservations.push(Unnamed::new(pages.finish()?));
        }
        Ok(None)
    }

    /// What the load does to its table.
    fn change(&self, done: Done) -> TableChange {
        let mut segments = done.segments;
        segments.sort_by_key(|(position, _)| *position);
        let (schema_name, table_name) = self.target.names();
        TableChange {
            name: ObjectName::new(schema_name, table_name),
            table: self.layout.table,
            schema: Arc::clone(&self.schema),
            redefinitions: self.redefinitions,
            next_segment: Arc::clone(&self.layout.next_segment),
            kind: match &self.target {
                LoadTarget::Create {
                    or_replace,
                    indexes,
                    defaults,
                    checks,
                    retention,
                    layout,
                    distribution,
                    ..
                } => ChangeKind::Create {
                    layout: *layout,
                    distribution: distribution.clone(),
                    retention_us: u64::try_from(retention.as_micros()).unwrap_or(u64::MAX),
                    replaces: *or_replace,
                    indexes: indexes.clone(),
                    defaults: defaults.clone(),
                    checks: checks.clone(),
                },
                LoadTarget::Redefine {
                    version,
                    indexes,
                    defaults,
                    checks,
                    distribution,
                    ..
                } => ChangeKind::Redefine {
                    only: Some(Arc::clone(version)),
                    distribution: distribution.clone(),
                    indexes: indexes.clone(),
                    defaults: defaults.clone(),
                    checks: checks.clone(),
                },
                LoadTarget::Append { .. } | LoadTarget::Change { .. } => ChangeKind::Keep,
                LoadTarget::Overwrite { .. } => ChangeKind::Overwrite { only: None },
            },
            written: segments.into_iter().map(|(_, segment)| segment).collect(),
            deleted: std::mem::take(&mut *self.deleted.lock()),
            reservations: done.reservations,
            parts: NewParts::new(PartBuilder::new(
                &self.database,
                self.layout.table,
                format!("{schema_name}.{table_name}"),
                &self.schema,
                &self.layout.next_segment,
                self.layout.generation,
            )),
        }
    }
}

/// One thread's part of a load. Holds at most a segment's rows in memory, or, for a table that lies by a
/// key, those of some.
#[derive(Debug)]
pub struct LoadWriter {
    position: u64,
    shared: Arc<Shared>,
    /// Once there is something to write.
    pages: Option<PageWriter>,
    waiting: Waiting,
    /// Bytes of it that were taken from the database's memory.
    charged: usize,
    segments: Vec<(u64, WrittenSegment)>,
}

impl Drop for LoadWriter {
    fn drop(&mut self) {
        self.shared.database.memory.shrink(self.charged);
    }
}

impl LoadWriter {
    /// Takes a batch: columns by position, cast to the stored types. Encodes and writes full
    /// segments on the calling thread.
    ///
    /// # Errors
    /// `Invalid` for a wrong number of columns, a NULL in a NOT NULL column, or a value that the
    /// stored type can't hold; it names the column. `Invalid` for a row that a CHECK constraint forbids. `Invalid` for ids that are not of rows, and for
    /// one given twice. `Full`, `Io`.
    pub fn append(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let rows = batch.num_rows() as u64;
        self.shared.rows.fetch_add(rows, Ordering::Relaxed);
        let batch = match &self.shared.target {
            LoadTarget::Change { version, .. } => {
                let mut batch = batch.clone();
                let ids = batch.num_columns().checked_sub(1);
                let ids = ids.map(|last| batch.remove_column(last));
                let ids = ids
                    .as_ref()
                    .and_then(|ids| ids.as_primitive_opt::<UInt64Type>());
                let ids = ids.ok_or_else(|| {
                    StorageError::Invalid("a change without the ids of its rows".into())
                })?;
                self.delete(ids.iter().flatten(), version)?;
                if batch.num_columns() == 0 {
                    return Ok(());
                }
                self.stored(&batch)?
            }
            _ => self.stored(batch)?,
        };
        self.waiting.take(batch)?;
        while let Some(rows) = self.waiting.give_full(&self.shared.schema)? {
            self.write(&rows)?;
        }
        self.charge()
    }

    /// Takes the memory of what waits for several segments; writes it where there is none.
    fn charge(&mut self) -> Result<()> {
        if self.shared.layout.buckets.is_none() {
            return Ok(());
        }
        let memory = &self.shared.database.memory;
        let held = self.waiting.bytes();
        memory.shrink(self.charged.saturating_sub(held));
        let more = held.saturating_sub(self.charged);
        self.charged = self.charged.min(held);
        if more > 0 && memory.grow(more).is_err() {
            return self.write_waiting();
        }
        self.charged += more;
        Ok(())
    }

    /// Has the commit delete rows of a version.
    fn delete(&self, ids: impl Iterator<Item = u64>, version: &TableSnapshot) -> Result<()> {
        let shared = &self.shared;
        let mut ids = ids.peekable();
        if ids.peek().is_none() {
            return Ok(());
        }
        let mut segments = SegmentsById::new([&version.segments, &[]]);
        let mut deleted = shared.deleted.lock();
        for id in ids {
            let place = row_of_id(id).and_then(|(id, row)| {
                let segment = segments.get(id)?;
                segment.has_row(row).then_some((segment, row))
            });
            let Some((segment, row)) = place else {
                return Err(StorageError::Invalid(format!(
                    "table '{}' has no row number {id} to delete",
                    version.name
                )));
            };
            let of_segment = deleted.entry(segment.id);
            let of_segment = of_segment.or_insert_with(|| DeletedRows::of(segment));
            if !of_segment.rows.insert(row) {
                return Err(StorageError::Invalid(format!(
                    "a row of table '{}' would be changed twice: more than one row of the other \
                     tables goes with it",
                    version.name
                )));
            }
        }
        Ok(())
    }

    /// Ends the segment at hand, unless rows have no order, as the table lies by a key. What is appended from here on comes, among the rows of all the
    /// load's writers, at `position`: rows of a lower position before it, rows of a higher after.
    /// The writers of a load either all seek, before they append, or none does.
    pub fn seek(&mut self, position: u64) -> Result<()> {
        if self.shared.layout.buckets.is_none() {
            self.write_waiting()?;
        }
        self.position = position;
        Ok(())
    }

    /// Writes what is left, unless it is so little that the commit may do it with that of others,
    /// and waits until the device has everything.
    pub fn finish(mut self) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let is_left = shared.leaves_rows() && self.segments.is_empty() && self.waiting.is_small();
        let mut left = Vec::new();
        match is_left {
            true => {
                while let Some(rows) = self.waiting.give(&shared.schema)? {
                    left.push((self.position, rows));
                }
            }
            false => self.write_waiting()?,
        }
        let reservation = self.pages.take().map(PageWriter::finish).transpose()?;
        let mut done = shared.done.lock();
        done.writers += 1;
        done.segments.append(&mut self.segments);
        done.rows.append(&mut left);
        done.reservations.extend(reservation.map(Unnamed::new));
        Ok(())
    }

    /// The rows as they are stored, if they may be.
    fn stored(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let schema = &self.shared.schema;
        if batch.num_columns() != schema.fields().len() {
            return Err(StorageError::Invalid(format!(
                "{} columns given for the {} columns of table '{}'",
                batch.num_columns(),
                schema.fields().len(),
                self.shared.target.names().1
            )));
        }
        let options = CastOptions {
            safe: false,
            ..CastOptions::default()
        };
        let columns = batch
            .columns()
            .iter()
            .zip(schema.fields())
            .map(|(column, field)| {
                let cast = if column.data_type() == field.data_type() {
                    Arc::clone(column)
                } else {
                    let cast = plain(column)
                        .and_then(|plain| cast_with_options(&plain, field.data_type(), &options));
                    cast.map_err(|e| {
                        StorageError::Invalid(format!("column '{}': {e}", field.name()))
                    })?
                };
                if !field.is_nullable() && cast.null_count() > 0 {
                    return Err(StorageError::Invalid(format!(
                        "column '{}' is NOT NULL, but a row gives it NULL",
                        field.name()
                    )));
                }
                Ok(with_one_nan(cast))
            })
            .collect::<Result<Vec<ArrayRef>>>()?;
        let rows = RecordBatch::try_new(schema.clone(), columns)?;
        if let Some(test) = &self.shared.test {
            test.test(&rows)?;
        }
        Ok(rows)
    }

    fn write_waiting(&mut self) -> Result<()> {
        while let Some(rows) = self.waiting.give(&self.shared.schema)? {
            self.write(&rows)?;
        }
        Ok(())
    }

    fn write(&mut self, rows: &RecordBatch) -> Result<()> {
        let position = self.position;
        let segments = &mut self.segments;
        let layout = &self.shared.layout;
        if let Some(buckets) = &layout.buckets {
            buckets.settle(&self.shared.database);
        }
        let pages = match &mut self.pages {
            Some(pages) => pages,
            none => none.insert(self.shared.page_writer()?),
        };
        layout.write(rows, pages, &mut |written| {
            segments.push((position, written));
        })
    }
}

/// The values of a dictionary that has NULL among them: as what they are cast to they would be empty texts.
fn plain(column: &ArrayRef) -> std::result::Result<ArrayRef, ArrowError> {
    match column.as_any_dictionary_opt() {
        Some(coded) if coded.values().null_count() > 0 => take(coded.values(), coded.keys(), None),
        _ => Ok(Arc::clone(column)),
    }
}
