//! Changes of tables' rows on their way to a commit: what a load has written, or the statements of a
//! transaction.

use std::cell::LazyCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::datatypes::{DataType, Schema, SchemaRef};
use roaring::RoaringBitmap;

use crate::index::{Index, IndexDefinition};
use crate::segment::{Segment, SegmentId, TableId, Unnamed};
use crate::table::checks::encode_checks;
use crate::table::database::empty_record;
use crate::table::edit::{
    DropTable, ObjectName, Operation, Precondition, PutDeleted, PutSegment, PutTable, TableEdit,
};
use crate::table::indexing::NewParts;
use crate::table::manifest::{
    TableRecord, decode_definition, encode_defaults, encode_definition, encode_distribution,
    encode_layout, encode_rows, encode_segment,
};
use crate::table::state::{TableState, exists, not_found};
use crate::table::writing::WrittenSegment;
use crate::table::{Check, Distribution, TableLayout, TableSnapshot};
use crate::{Result, StorageError};

/// What becomes of a table's rows.
#[derive(Debug)]
pub(super) struct TableChange {
    pub name: ObjectName,
    pub table: TableId,
    pub schema: SchemaRef,
    /// How often the table was redefined before the rows were written, unless by the transaction
    /// that they are of.
    pub redefinitions: Option<u32>,
    pub next_segment: Arc<AtomicU32>,
    pub kind: ChangeKind,
    /// Segments that come, in row order.
    pub written: Vec<WrittenSegment>,
    /// Rows that go, of the segments that the change was made from.
    pub deleted: BTreeMap<SegmentId, DeletedRows>,
    /// The pages of what was written.
    pub reservations: Vec<Unnamed>,
    pub parts: NewParts,
}

/// Rows of a segment that go.
#[derive(Debug)]
pub(super) struct DeletedRows {
    pub segment: Arc<Segment>,
    pub rows: RoaringBitmap,
}

impl DeletedRows {
    /// None of them yet.
    pub fn of(segment: &Arc<Segment>) -> Self {
        Self {
            segment: Arc::clone(segment),
            rows: RoaringBitmap::new(),
        }
    }
}

#[derive(Debug)]
pub(super) enum ChangeKind {
    /// A new table, perhaps in the place of one of that name.
    Create {
        replaces: bool,
        indexes: Vec<IndexDefinition>,
        defaults: Vec<Option<String>>,
        checks: Vec<Check>,
        retention_us: u64,
        layout: TableLayout,
        distribution: Option<Arc<Distribution>>,
    },
    /// Other columns and rows for the table: made of this version, if it is said.
    Redefine {
        only: Option<Arc<TableSnapshot>>,
        indexes: Vec<IndexDefinition>,
        defaults: Vec<Option<String>>,
        checks: Vec<Check>,
        distribution: Option<Arc<Distribution>>,
    },
    /// The rows that are there stay, but for deleted ones.
    Keep,
    /// The rows that are there go: of this version alone, if it is said.
    Overwrite { only: Option<Arc<TableSnapshot>> },
}

/// Keeps the pages of a commit that the manifest names, or may name when it is opened again;
/// gives them back after an error that left the old version.
pub(super) fn settle<T>(
    committed: Result<T>,
    reservations: impl IntoIterator<Item = Unnamed>,
) -> Result<T> {
    if matches!(&committed, Ok(_) | Err(StorageError::NeedsReopening { .. })) {
        reservations.into_iter().for_each(Unnamed::keep);
    }
    committed
}

impl TableChange {
    /// Whether the rows go that are there.
    pub fn overwrites(&self) -> bool {
        matches!(
            self.kind,
            ChangeKind::Overwrite { .. } | ChangeKind::Redefine { .. }
        )
    }

    /// That the rows which go are those that were seen, where these are said, and that so are the
    /// columns that go.
    ///
    /// # Errors
    /// `Conflict`.
    pub fn check_seen(&self, present: Option<&TableState>) -> Result<()> {
        let is_seen = |is_it: &dyn Fn(&TableSnapshot) -> bool| match present
            .is_some_and(|present| is_it(&present.snapshot))
        {
            true => Ok(()),
            false => Err(conflict(&self.name)),
        };
        match &self.kind {
            ChangeKind::Overwrite { only: Some(seen) } => {
                is_seen(&|present| present.has_rows_of(seen))
            }
            ChangeKind::Redefine {
                only: Some(seen), ..
            } => is_seen(&|present| present.has_rows_of(seen) && present.is_defined_as(seen)),
            _ => Ok(()),
        }
    }

    /// Leaves out the rows that come and go.
    pub fn empty(&mut self) {
        self.written.clear();
        self.deleted.clear();
        self.reservations.clear();
        self.parts.clear();
    }

    /// Whether it takes the place of any table of its name.
    pub fn replaces(&self) -> bool {
        matches!(self.kind, ChangeKind::Create { replaces: true, .. })
    }

    /// Rows that come.
    pub fn rows(&self) -> u64 {
        let rows = self.written.iter().map(|w| u64::from(w.segment.rows));
        rows.sum()
    }

    /// Makes of this and a later change of the same table one.
    ///
    /// # Errors
    /// `Conflict` when the later one deletes what this one has deleted.
    pub fn then(mut self, later: Self) -> Result<Self> {
        if later.overwrites() {
            return Ok(self.overwritten(later));
        }
        for (id, deleted) in later.deleted {
            let own = self.written.iter_mut().find(|w| w.segment.id == id);
            match own {
                Some(own) => {
                    let conflict = |_| conflict(&self.name);
                    own.segment = Arc::new(without(&own.segment, &deleted.rows, conflict)?);
                }
                None => match self.deleted.entry(id) {
                    Entry::Vacant(entry) => drop(entry.insert(deleted)),
                    Entry::Occupied(mut entry) => entry.get_mut().rows |= deleted.rows,
                },
            }
        }
        self.written.extend(later.written);
        self.reservations.extend(later.reservations);
        self.parts.add(later.parts);
        Ok(self)
    }

    /// Makes of this and a later change, which leaves none of the rows, one.
    fn overwritten(self, later: Self) -> Self {
        let (kind, schema) = match (self.kind, later.kind) {
            (
                ChangeKind::Create {
                    replaces,
                    retention_us,
                    layout,
                    ..
                },
                ChangeKind::Redefine {
                    indexes,
                    defaults,
                    checks,
                    distribution,
                    ..
                },
            ) => {
                let kind = ChangeKind::Create {
                    replaces,
                    indexes,
                    defaults,
                    checks,
                    retention_us,
                    layout,
                    distribution,
                };
                (kind, later.schema)
            }
            (
                kind @ (ChangeKind::Create { .. } | ChangeKind::Redefine { .. }),
                ChangeKind::Overwrite { .. },
            ) => (kind, self.schema),
            (_, kind) => (kind, later.schema),
        };
        Self {
            kind,
            schema,
            ..later
        }
    }

    /// Adds to an edit what the change makes of the table as it is.
    pub fn add_to(&mut self, edit: &mut TableEdit, present: Option<&TableState>) -> Result<()> {
        let name = self.name.clone();
        edit.require(Precondition::Schema(name.schema.clone()));
        edit.require(Precondition::NoView(name.clone()));
        let mut record = self.start(present, edit)?;
        let before = present.filter(|_| self.keeps_rows());
        let mut kept = before.map_or_else(Vec::new, |table| table.snapshot.segments.clone());
        if let Some(before) = before
            && !self.deleted.is_empty()
        {
            let indexes = &before.snapshot.indexes;
            let deleted = self.deleted_from(&kept, indexes)?;
            self.delete(&mut kept, &deleted, indexes, &mut record, edit)?;
        }
        let kept = &kept;
        let new: Vec<_> = self
            .written
            .iter()
            .map(|w| Arc::clone(&w.segment))
            .collect();
        for (index, written) in self.written.iter().enumerate() {
            for (column, new) in record.columns.iter_mut().zip(&written.columns) {
                column.merge(new, kept.is_empty() && index == 0);
            }
            record.rows += u64::from(written.segment.rows);
            record.deleted += u64::from(written.segment.rows - written.segment.live_rows());
        }
        record.version += 1;
        record.segments += new.len() as u64;
        let mut of_indexes = Vec::new();
        self.parts.start();
        for definition in record.indexes.iter().filter(|index| index.unique) {
            let old = before.and_then(|table| table.snapshot.index(&definition.name));
            let old = old.map_or(&[][..], |index| &index.parts);
            let definition = decode_definition(definition)?;
            let parts = &mut self.parts;
            let count = parts.publish(&definition, old, kept, &new, &mut of_indexes)?;
            record.parts += count as u64;
        }
        record.next_segment = self.next_segment.load(Ordering::Relaxed);
        edit.push(Operation::PutTable(PutTable {
            name,
            table: self.table.0,
            record,
        }));
        let next_order = before.map_or(0, |table| table.next_order);
        for (order, segment) in (next_order..).zip(&new) {
            edit.push(Operation::PutSegment(PutSegment {
                table: self.table.0,
                segment: segment.id.0,
                record: encode_segment(segment, order),
            }));
        }
        of_indexes
            .into_iter()
            .for_each(|operation| edit.push(operation));
        Ok(())
    }

    /// Whether the rows that the table has stay, but for deleted ones.
    fn keeps_rows(&self) -> bool {
        matches!(self.kind, ChangeKind::Keep)
    }

    /// The present table, if the change can be made of it.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when its columns are others.
    fn fitting<'a>(&self, present: Option<&'a TableState>) -> Result<&'a TableState> {
        let present = present
            .filter(|table| table.snapshot.id == self.table)
            .ok_or_else(|| not_found("table", &self.name))?;
        if !matches!(self.kind, ChangeKind::Redefine { .. }) {
            let before = self.redefinitions;
            if before.is_some_and(|before| before != present.record.redefinitions)
                || !has_types_of(&present.snapshot.schema, &self.schema)
            {
                return Err(conflict(&self.name));
            }
        }
        Ok(present)
    }

    /// Adds the rows that the change deletes of the present table to those of others.
    ///
    /// # Errors
    /// `Conflict` when one is gone or among those, and when the columns are others; `NotFound`. Then
    /// nothing was added.
    pub fn delete_besides(
        &self,
        present: Option<&TableState>,
        deleted: &mut BTreeMap<SegmentId, DeletedRows>,
    ) -> Result<()> {
        let present = &self.fitting(present)?.snapshot;
        if self.deleted.is_empty() {
            return Ok(());
        }
        let own = self.deleted_from(&present.segments, &present.indexes)?;
        let segments = present.segments.iter();
        let of_segments = segments.filter_map(|s| Some((s, own.get(&s.id)?)));
        let of_segments: Vec<_> = of_segments.collect();
        for (segment, rows) in &of_segments {
            let of_others = deleted.get(&segment.id).map(|others| &others.rows);
            let is_gone = |row: &u32| {
                !segment.has_row(*row) || of_others.is_some_and(|others| others.contains(*row))
            };
            if let Some(row) = rows.iter().find(is_gone) {
                return Err(self.conflict_at(segment, row, &present.indexes));
            }
        }
        for (segment, rows) in of_segments {
            let of_segment = deleted.entry(segment.id);
            let of_segment = of_segment.or_insert_with(|| DeletedRows::of(segment));
            of_segment.rows |= rows;
        }
        Ok(())
    }

    /// The deleted rows by the present segments, which may be others than those that the change was
    /// made from.
    fn deleted_from(
        &self,
        segments: &[Arc<Segment>],
        indexes: &[Arc<Index>],
    ) -> Result<BTreeMap<SegmentId, RoaringBitmap>> {
        // Few of the segments lose rows.
        let ids = segments.iter().map(|segment| segment.id);
        let kept: HashSet<SegmentId> = ids.filter(|id| self.deleted.contains_key(id)).collect();
        let present = LazyCell::new(|| segments.iter().map(|s| s.id).collect::<HashSet<_>>());
        let mut by_segment: BTreeMap<SegmentId, RoaringBitmap> = BTreeMap::new();
        for (id, deleted) in &self.deleted {
            if kept.contains(id) {
                *by_segment.entry(*id).or_default() |= &deleted.rows;
                continue;
            }
            for row in &deleted.rows {
                let found = deleted.segment.find_row(row, |id| present.contains(&id));
                let (id, row) =
                    found.ok_or_else(|| self.conflict_at(&deleted.segment, row, indexes))?;
                by_segment.entry(id).or_default().insert(row);
            }
        }
        Ok(by_segment)
    }

    /// Deletes rows of segments, and says so in the edit.
    fn delete(
        &self,
        segments: &mut [Arc<Segment>],
        deleted: &BTreeMap<SegmentId, RoaringBitmap>,
        indexes: &[Arc<Index>],
        record: &mut TableRecord,
        edit: &mut TableEdit,
    ) -> Result<()> {
        for segment in segments {
            let Some(rows) = deleted.get(&segment.id) else {
                continue;
            };
            let seen = self.deleted.get(&segment.id);
            let seen = seen.map_or(&*segment, |deleted| &deleted.segment);
            let conflict = |row| self.conflict_at(seen, row, indexes);
            let left = without(segment, rows, conflict)?;
            record.deleted += rows.len();
            edit.push(Operation::PutDeleted(PutDeleted {
                table: self.table.0,
                segment: segment.id.0,
                deleted: left.deleted().map(encode_rows).unwrap_or_default(),
            }));
            *segment = Arc::new(left);
        }
        Ok(())
    }

    /// That another commit has deleted or replaced a row, named by the primary key if there is one.
    fn conflict_at(&self, segment: &Segment, row: u32, indexes: &[Arc<Index>]) -> StorageError {
        let mut definitions = indexes.iter().map(|index| &index.definition);
        let key = definitions.find(|definition| definition.primary);
        let key = key.and_then(|key| self.parts.key_of(key, segment, row).ok());
        StorageError::Conflict {
            rows: key.map_or("rows".into(), |key| format!("row {key}")),
            table: self.name.name.clone(),
        }
    }

    /// Begins with what becomes of the present table, and gives the table's record before its new
    /// rows.
    fn start(&self, present: Option<&TableState>, edit: &mut TableEdit) -> Result<TableRecord> {
        let name = &self.name;
        if let ChangeKind::Create {
            replaces,
            indexes,
            defaults,
            checks,
            retention_us,
            layout,
            distribution,
        } = &self.kind
        {
            match (present, replaces) {
                (None, _) => edit.require(Precondition::NoTable(name.clone())),
                (Some(_), false) => return Err(exists("table", name)),
                (Some(old), true) => {
                    edit.require(old.version());
                    edit.push(Operation::DropTable(DropTable {
                        name: name.clone(),
                        table: old.snapshot.id.0,
                    }));
                }
            }
            let mut record = empty_record(&self.schema);
            record.defaults = encode_defaults(defaults);
            record.checks = encode_checks(checks);
            record.retention_us = *retention_us;
            record.layout = encode_layout(*layout);
            record.distribution = distribution.as_deref().map(encode_distribution);
            for index in indexes {
                let index_name = ObjectName::new(&name.schema, &index.name);
                edit.require(Precondition::NoIndex(index_name));
                record.indexes.push(encode_definition(index));
            }
            return Ok(record);
        }
        let present = self.fitting(present)?;
        edit.require(present.version());
        if self.keeps_rows() {
            return Ok((*present.record).clone());
        }
        edit.push(Operation::DropSegments(self.table.0));
        for part in present.snapshot.indexes.iter().flat_map(|i| &i.parts) {
            edit.drop_part(self.table, part);
        }
        let record = TableRecord {
            version: present.record.version,
            retention_us: present.record.retention_us,
            layout: present.record.layout,
            redefinitions: present.record.redefinitions,
            comment: present.record.comment.clone(),
            ..empty_record(&self.schema)
        };
        Ok(match &self.kind {
            ChangeKind::Redefine {
                indexes,
                defaults,
                checks,
                distribution,
                ..
            } => TableRecord {
                indexes: indexes.iter().map(encode_definition).collect(),
                defaults: encode_defaults(defaults),
                checks: encode_checks(checks),
                distribution: distribution.as_deref().map(encode_distribution),
                redefinitions: record.redefinitions.wrapping_add(1),
                ..record
            },
            _ => TableRecord {
                schema: present.record.schema.clone(),
                indexes: present.record.indexes.clone(),
                defaults: present.record.defaults.clone(),
                checks: present.record.checks.clone(),
                distribution: present.record.distribution.clone(),
                ..record
            },
        })
    }
}

/// Whether columns are of the same types, in their order.
pub(super) fn has_types_of(schema: &Schema, other: &Schema) -> bool {
    let types = |schema: &Schema| -> Vec<DataType> {
        let fields = schema.fields().iter();
        fields.map(|field| field.data_type().clone()).collect()
    };
    types(schema) == types(other)
}

/// That rows of a table are others by now.
pub(super) fn conflict(table: &ObjectName) -> StorageError {
    StorageError::Conflict {
        rows: "rows".into(),
        table: table.name.clone(),
    }
}

/// A segment without these rows too; `conflict` gets one that it does not have any more.
fn without(
    segment: &Segment,
    rows: &RoaringBitmap,
    conflict: impl Fn(u32) -> StorageError,
) -> Result<Segment> {
    let mut gone = segment.deleted().cloned().unwrap_or_default();
    if let Some(row) = (&gone & rows).min() {
        return Err(conflict(row));
    }
    gone |= rows;
    segment.with_deleted(gone)
}
