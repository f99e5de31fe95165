//! Loads: many threads append rows, one commit shows them all.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options, concat_batches};
use arrow::datatypes::{SchemaRef, UInt64Type};
use parking_lot::Mutex;
use roaring::RoaringBitmap;

use crate::index::{IndexDefinition, IndexKind};
use crate::page::{ChunkIdentity, ChunkStats, SEGMENT_ROWS, encode_chunk};
use crate::segment::{Chunk, Segment, SegmentId, TableId, row_of_id, write_page_indexes};
use crate::store::{PageRun, PageWriter, Reservation};
use crate::table::database::{empty_record, stored_schema};
use crate::table::edit::{
    DropTable, ObjectName, Operation, Precondition, PutDeleted, PutSegment, PutTable, TableEdit,
};
use crate::table::indexing::{NewParts, PartBuilder};
use crate::table::manifest::{
    ColumnRecord, TableRecord, decode_definition, encode_definition, encode_rows, encode_segment,
    scalar_record,
};
use crate::table::state::{Labels, TableState, exists, not_found};
use crate::table::{Database, TableSnapshot};
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
    target: LoadTarget,
    schema: SchemaRef,
    table: TableId,
    generation: u32,
    next_segment: Arc<AtomicU32>,
    labels: Labels,
    writers: AtomicU32,
    rows: AtomicU64,
    done: Mutex<Done>,
    deleted: Mutex<BTreeMap<SegmentId, RoaringBitmap>>,
}

/// What the finished writers left.
#[derive(Debug, Default)]
struct Done {
    writers: u32,
    segments: Vec<WrittenSegment>,
    reservations: Vec<Reservation>,
}

#[derive(Debug)]
struct WrittenSegment {
    segment: Arc<Segment>,
    /// Where it belongs among the load's segments; those of one position are in the order in
    /// which they were written.
    position: u64,
    columns: Vec<ColumnRecord>,
}

impl Load {
    pub(super) fn begin(database: &Arc<Database>, target: LoadTarget) -> Result<Self> {
        let (schema_name, table_name) = target.names();
        let label = format!("{schema_name}.{table_name}");
        let (schema, table, next_segment) = match &target {
            LoadTarget::Create {
                arrow_schema,
                or_replace,
                indexes,
                ..
            } => {
                database.check_schema_exists(schema_name)?;
                if database.view(schema_name, table_name).is_some() {
                    return Err(exists("view", &ObjectName::new(schema_name, table_name)));
                }
                database.check_index_names(schema_name, table_name, indexes)?;
                if !or_replace && database.table_state(schema_name, table_name).is_ok() {
                    return Err(StorageError::AlreadyExists {
                        kind: "table",
                        name: label,
                    });
                }
                (
                    stored_schema(arrow_schema)?,
                    database.next_table_id()?,
                    Arc::new(AtomicU32::new(0)),
                )
            }
            LoadTarget::Append { .. }
            | LoadTarget::Change { .. }
            | LoadTarget::Overwrite { .. } => {
                let present = database.table_state(schema_name, table_name)?;
                if let LoadTarget::Change { version, .. } = &target
                    && version.id != present.snapshot.id
                {
                    // Another table has the name now.
                    return Err(StorageError::Conflict { table: label });
                }
                (
                    present.snapshot.schema.clone(),
                    present.snapshot.id,
                    present.next_segment,
                )
            }
        };
        let labels = Labels::new(&label, &schema);
        let generation = database.next_generation()?;
        Ok(Self {
            shared: Arc::new(Shared {
                database: Arc::clone(database),
                target,
                schema,
                table,
                generation,
                next_segment,
                labels,
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
        self.shared.table
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
            pages: self.shared.database.store().writer()?,
            waiting: Vec::new(),
            waiting_rows: 0,
            segments: Vec::new(),
        })
    }

    /// Makes the load durable and visible, whole, and gives the number of its rows.
    ///
    /// # Errors
    /// `Invalid` when a writer was not finished; `AlreadyExists` or `NotFound` when the table
    /// came or went meanwhile, `Conflict` when rows to delete did; `Full` and `Io`;
    /// `NeedsReopening`. After any but the last nothing has changed.
    pub fn commit(self) -> Result<u64> {
        let shared = &self.shared;
        let done = std::mem::take(&mut *shared.done.lock());
        if done.writers != shared.writers.load(Ordering::Relaxed) {
            return Err(StorageError::Invalid(
                "a load was committed before all its writers were finished".into(),
            ));
        }
        let rows = shared.rows.load(Ordering::Relaxed);
        let Done {
            mut segments,
            reservations,
            ..
        } = done;
        segments.sort_by_key(|s| s.position);
        let (schema_name, table_name) = shared.target.names();
        let mut parts = NewParts::new(PartBuilder::new(
            &shared.database,
            shared.table,
            format!("{schema_name}.{table_name}"),
            &shared.schema,
            &shared.next_segment,
            shared.generation,
        ));
        let committed = shared.commit(&segments, &mut parts);
        let reservations = reservations.into_iter().chain(parts.into_reservations());
        settle(committed, reservations)?;
        let name = ObjectName::new(schema_name, table_name);
        shared.database.cover_load(&name, rows);
        Ok(rows)
    }
}

/// Keeps the pages of a commit that the manifest names, or may name when it is opened again;
/// gives them back after an error that left the old version.
pub(super) fn settle(
    committed: Result<()>,
    reservations: impl IntoIterator<Item = Reservation>,
) -> Result<()> {
    if matches!(
        &committed,
        Ok(()) | Err(StorageError::NeedsReopening { .. })
    ) {
        reservations.into_iter().for_each(Reservation::keep);
    }
    committed
}

impl Shared {
    fn commit(&self, written: &[WrittenSegment], parts: &mut NewParts) -> Result<()> {
        let (schema_name, table_name) = self.target.names();
        let name = ObjectName::new(schema_name, table_name);
        // Parts of unique indexes are built before others are kept waiting; what has changed
        // meanwhile is made up for below.
        let mut present = self.database.find_table(&name)?;
        self.edit(&name, present.as_ref(), written, parts)?;
        loop {
            // The pages first; only then may the manifest name them.
            parts.sync()?;
            let editing = present.map(|table| table.editing);
            let _editing = editing.as_ref().map(|editing| editing.lock());
            present = self.database.find_table(&name)?;
            let edit = self.edit(&name, present.as_ref(), written, parts)?;
            parts.sync()?;
            match self.database.commit(&edit) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // It came just now, and is to be replaced.
                Err(StorageError::AlreadyExists { kind: "table", .. }) if self.replaces() => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn replaces(&self) -> bool {
        let target = &self.target;
        matches!(
            target,
            LoadTarget::Create {
                or_replace: true,
                ..
            }
        )
    }

    /// What the load makes of the table as it is.
    fn edit(
        &self,
        name: &ObjectName,
        present: Option<&TableState>,
        written: &[WrittenSegment],
        parts: &mut NewParts,
    ) -> Result<TableEdit> {
        let mut edit = TableEdit::default();
        edit.require(Precondition::Schema(name.schema.clone()));
        edit.require(Precondition::NoView(name.clone()));
        let mut record = self.start(name, present, &mut edit)?;
        let before = present.filter(|_| self.keeps_rows());
        let kept = before.map_or(&[][..], |table| &table.snapshot.segments);
        let kept = &self.without_deleted(kept, &mut record, &mut edit)?;
        let new: Vec<_> = written.iter().map(|w| Arc::clone(&w.segment)).collect();
        for (index, written) in written.iter().enumerate() {
            for (column, new) in record.columns.iter_mut().zip(&written.columns) {
                column.merge(new, kept.is_empty() && index == 0);
            }
            record.rows += u64::from(written.segment.rows);
        }
        record.version += 1;
        record.segments += new.len() as u64;
        let mut of_indexes = Vec::new();
        parts.start();
        for definition in record.indexes.iter().filter(|index| index.unique) {
            let old = before.and_then(|table| table.snapshot.index(&definition.name));
            let old = old.map_or(&[][..], |index| &index.parts);
            let definition = decode_definition(definition)?;
            let count = parts.publish(&definition, old, kept, &new, &mut of_indexes)?;
            record.parts += count as u64;
        }
        record.next_segment = self.next_segment.load(Ordering::Relaxed);
        edit.push(Operation::PutTable(PutTable {
            name: name.clone(),
            table: self.table.0,
            record,
        }));
        let next_order = before.map_or(0, |table| table.next_order);
        for (order, written) in (next_order..).zip(written) {
            edit.push(Operation::PutSegment(PutSegment {
                table: self.table.0,
                segment: written.segment.id.0,
                record: encode_segment(&written.segment, order),
            }));
        }
        of_indexes
            .into_iter()
            .for_each(|operation| edit.push(operation));
        Ok(edit)
    }

    /// Whether the rows that the table has stay, but for deleted ones.
    fn keeps_rows(&self) -> bool {
        matches!(
            self.target,
            LoadTarget::Append { .. } | LoadTarget::Change { .. }
        )
    }

    /// The segments with the load's deleted rows gone too; adds that to the edit.
    fn without_deleted(
        &self,
        segments: &[Arc<Segment>],
        record: &mut TableRecord,
        edit: &mut TableEdit,
    ) -> Result<Vec<Arc<Segment>>> {
        let mut kept = segments.to_vec();
        let deleted = self.deleted.lock();
        if deleted.is_empty() {
            return Ok(kept);
        }
        let ids = kept.iter().map(|segment| segment.id);
        let places: HashMap<SegmentId, usize> = ids.zip(0..).collect();
        for (id, rows) in deleted.iter() {
            let conflict = || StorageError::Conflict {
                table: self.target.names().1.into(),
            };
            let segment = &mut kept[*places.get(id).ok_or_else(conflict)?];
            let mut gone = segment.deleted().cloned().unwrap_or_default();
            if !gone.is_disjoint(rows) {
                return Err(conflict());
            }
            gone |= rows;
            record.deleted += rows.len();
            edit.push(Operation::PutDeleted(PutDeleted {
                table: self.table.0,
                segment: id.0,
                deleted: encode_rows(&gone),
            }));
            *segment = Arc::new(segment.with_deleted(gone)?);
        }
        Ok(kept)
    }

    /// Drops the parts in which a deleted row would still be seen: those of neighbour lists, which
    /// are searched without a look at the table's segments. What they covered is searched besides,
    /// until the index has caught up.
    fn drop_parts_of_deleted(
        &self,
        present: &TableState,
        record: &mut TableRecord,
        edit: &mut TableEdit,
    ) {
        let deleted = self.deleted.lock();
        if deleted.is_empty() {
            return;
        }
        let indexes = present.snapshot.indexes.iter();
        let lists = indexes.filter(|index| index.definition.kind == IndexKind::Adjacency);
        for part in lists.flat_map(|index| &index.parts) {
            if part.covers.iter().any(|(id, _)| deleted.contains_key(id)) {
                edit.drop_part(self.table, part);
                record.parts -= 1;
            }
        }
    }

    /// Begins the edit with what the load does to the present table, and gives the record of the
    /// table before its rows.
    fn start(
        &self,
        name: &ObjectName,
        present: Option<&TableState>,
        edit: &mut TableEdit,
    ) -> Result<TableRecord> {
        if let LoadTarget::Create {
            or_replace,
            indexes,
            ..
        } = &self.target
        {
            match present {
                None => edit.require(Precondition::NoTable(name.clone())),
                Some(_) if !or_replace => return Err(exists("table", name)),
                Some(old) => {
                    edit.require(old.version());
                    edit.push(Operation::DropTable(DropTable {
                        name: name.clone(),
                        table: old.snapshot.id.0,
                    }));
                }
            }
            let mut record = empty_record(&self.schema);
            for index in indexes {
                let index_name = ObjectName::new(&name.schema, &index.name);
                edit.require(Precondition::NoIndex(index_name));
                record.indexes.push(encode_definition(index));
            }
            return Ok(record);
        }
        let present = present
            .filter(|table| table.snapshot.id == self.table)
            .ok_or_else(|| not_found("table", name))?;
        edit.require(present.version());
        if self.keeps_rows() {
            let mut record = (*present.record).clone();
            self.drop_parts_of_deleted(present, &mut record, edit);
            return Ok(record);
        }
        edit.push(Operation::DropSegments(self.table.0));
        for part in present.snapshot.indexes.iter().flat_map(|i| &i.parts) {
            edit.drop_part(self.table, part);
        }
        Ok(TableRecord {
            version: present.record.version,
            indexes: present.record.indexes.clone(),
            ..empty_record(&self.schema)
        })
    }
}

/// One thread's part of a load. Holds at most a segment's rows in memory.
#[derive(Debug)]
pub struct LoadWriter {
    position: u64,
    shared: Arc<Shared>,
    pages: PageWriter,
    waiting: Vec<RecordBatch>,
    waiting_rows: usize,
    segments: Vec<WrittenSegment>,
}

impl LoadWriter {
    /// Takes a batch: columns by position, cast to the stored types. Encodes and writes full
    /// segments on the calling thread.
    ///
    /// # Errors
    /// `Invalid` for a wrong number of columns, a NULL in a NOT NULL column, or a value that the
    /// stored type can't hold; it names the column. `Invalid` for ids that are not of rows, and for
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
                self.cast(&batch)?
            }
            _ => self.cast(batch)?,
        };
        let mut offset = 0;
        while offset < batch.num_rows() {
            let take = (SEGMENT_ROWS - self.waiting_rows).min(batch.num_rows() - offset);
            self.waiting.push(batch.slice(offset, take));
            self.waiting_rows += take;
            offset += take;
            if self.waiting_rows == SEGMENT_ROWS {
                self.write_waiting()?;
            }
        }
        Ok(())
    }

    /// Has the commit delete rows of a version.
    fn delete(&self, ids: impl Iterator<Item = u64>, version: &TableSnapshot) -> Result<()> {
        let shared = &self.shared;
        let mut deleted = shared.deleted.lock();
        let mut last: Option<&Arc<Segment>> = None;
        for id in ids {
            let place = row_of_id(id).and_then(|(id, row)| {
                let segment = match last {
                    Some(segment) if segment.id == id => segment,
                    _ => version.segments.iter().find(|segment| segment.id == id)?,
                };
                last = Some(segment);
                segment.has_row(row).then_some((id, row))
            });
            let Some((segment, row)) = place else {
                return Err(StorageError::Invalid(format!(
                    "table '{}' has no row number {id} to delete",
                    version.name
                )));
            };
            if !deleted.entry(segment).or_default().insert(row) {
                return Err(StorageError::Invalid(format!(
                    "a row of table '{}' would be changed twice: more than one row of the other \
                     tables goes with it",
                    version.name
                )));
            }
        }
        Ok(())
    }

    /// Ends the segment at hand. What is appended from here on comes, among the rows of all the
    /// load's writers, at `position`: rows of a lower position before it, rows of a higher after.
    /// The writers of a load either all seek, before they append, or none does.
    pub fn seek(&mut self, position: u64) -> Result<()> {
        self.write_waiting()?;
        self.position = position;
        Ok(())
    }

    /// Writes what is left and waits until the device has everything.
    pub fn finish(mut self) -> Result<()> {
        self.write_waiting()?;
        let reservation = self.pages.finish()?;
        let mut done = self.shared.done.lock();
        done.writers += 1;
        done.segments.append(&mut self.segments);
        done.reservations.push(reservation);
        Ok(())
    }

    fn cast(&self, batch: &RecordBatch) -> Result<RecordBatch> {
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
                    cast_with_options(column, field.data_type(), &options).map_err(|e| {
                        StorageError::Invalid(format!("column '{}': {e}", field.name()))
                    })?
                };
                if !field.is_nullable() && cast.null_count() > 0 {
                    return Err(StorageError::Invalid(format!(
                        "column '{}' is NOT NULL, but a row gives it NULL",
                        field.name()
                    )));
                }
                Ok(cast)
            })
            .collect::<Result<Vec<ArrayRef>>>()?;
        Ok(RecordBatch::try_new(schema.clone(), columns)?)
    }

    fn write_waiting(&mut self) -> Result<()> {
        if self.waiting_rows == 0 {
            return Ok(());
        }
        let batch = match self.waiting.as_slice() {
            [one] => one.clone(),
            many => concat_batches(&self.shared.schema, many)?,
        };
        self.waiting.clear();
        self.waiting_rows = 0;
        self.write_segment(&batch)
    }

    /// Writes `batch` as one segment, or, where a column's values are so long that its pages
    /// can't be numbered, as several shorter ones.
    fn write_segment(&mut self, batch: &RecordBatch) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let id = take_segment(&shared.next_segment)?;
        let mut encoded = Vec::with_capacity(batch.num_columns());
        for (column, array) in batch.columns().iter().enumerate() {
            let identity = ChunkIdentity {
                table: shared.table.0,
                segment: id.0,
                column_group: column as u16,
                generation: shared.generation,
            };
            match encode_chunk(array, identity) {
                Err(StorageError::Invalid(_)) if batch.num_rows() > 1 => {
                    let half = batch.num_rows() / 2;
                    self.write_segment(&batch.slice(0, half))?;
                    return self.write_segment(&batch.slice(half, batch.num_rows() - half));
                }
                chunk => encoded.push((identity, chunk?)),
            }
        }
        let mut chunks = Vec::with_capacity(encoded.len());
        let mut columns = Vec::with_capacity(encoded.len());
        for ((identity, chunk), label) in encoded.into_iter().zip(&shared.labels.columns) {
            let count = chunk.pages.len() as u32;
            let run = PageRun {
                first: self.pages.append(chunk.pages)?,
                count,
                identity: identity.first_page(),
                label: Arc::clone(label),
            };
            columns.push(column_record(&chunk.stats, count, batch.num_rows() as u32));
            chunks.push(Chunk::new(run, u32::from(chunk.aux_pages), chunk.zones));
        }
        write_page_indexes(&mut self.pages, &shared.labels.page_indexes, &mut chunks)?;
        self.segments.push(WrittenSegment {
            segment: Arc::new(Segment::new(
                id,
                shared.generation,
                batch.num_rows() as u32,
                chunks,
            )),
            position: self.position,
            columns,
        });
        Ok(())
    }
}

/// A number that no segment or index part of the table has.
pub(super) fn take_segment(next: &AtomicU32) -> Result<SegmentId> {
    let taken = next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
    taken.map(SegmentId).map_err(|_| {
        StorageError::Invalid(
            "the table has used up its segment numbers; copy it with CREATE TABLE AS".into(),
        )
    })
}

fn column_record(stats: &ChunkStats, pages: u32, rows: u32) -> ColumnRecord {
    let (min, max) = (
        stats.min_value.as_ref().and_then(scalar_record),
        stats.max_value.as_ref().and_then(scalar_record),
    );
    ColumnRecord {
        null_count: u64::from(stats.null_count),
        // No bounds although there are values: the type or the values' length allows none.
        unbounded: (min.is_none() || max.is_none()) && stats.null_count < rows,
        min,
        max,
        sketch: stats.distinct_sketch.clone(),
        bytes_on_flash: u64::from(pages) * crate::flash::PAGE_SIZE_BYTES as u64,
    }
}
