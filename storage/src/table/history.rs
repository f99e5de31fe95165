//! The past of a table: what it takes to show earlier versions, for as long as the table's
//! retention says.
//!
//! A past version is told by how it differs from the one after it: the segments that only one of the
//! two has, the rows that were deleted between them, and the columns, where these are others. So a
//! version is found by walking back from the present, and costs what its commit has changed. The
//! notes are made from the two states that a commit leads from and to ([`History::note`]), by the
//! same function for a commit and for what the log holds of it; a checkpoint puts those that have
//! come since the last one into the catalog ([`History::since`]).
//!
//! Segments that only the past has are *held*: nobody retires them, and their pages stay allocated
//! and checked, until the versions that show them have expired.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use arrow::datatypes::SchemaRef;
use roaring::RoaringBitmap;

use crate::flash::PAGE_SIZE_BYTES;
use crate::segment::{Chunk, Segment, SegmentId, TableId};
use crate::table::manifest::{
    HistoryRecords, RowsRecord, SegmentRecord, ShapeRecord, TableRecord, VersionRecord,
    decode_rows, decode_segment, encode_rows, encode_segment,
};
use crate::table::schema_record::decode_schema;
use crate::table::state::Labels;
use crate::table::{ColumnStatistics, TableSnapshot, scan_schema};
use crate::{Result, StorageError};

/// Versions in a block. A commit copies the last block of the list and the list of blocks.
const BLOCK: usize = 512;

/// The past versions of a table.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    /// Oldest first; every block but the last is full or was cut by expiry.
    blocks: Vec<Arc<Vec<Arc<Past>>>>,
    /// The segments that only they have.
    held: Arc<HashMap<SegmentId, Arc<Segment>>>,
}

/// A past version, as it differs from the one after it.
#[derive(Debug, PartialEq)]
pub(super) struct Past {
    pub version: u64,
    /// The version after it.
    next: u64,
    /// Microseconds since 1970.
    pub committed_at_us: u64,
    /// When the next one took its place.
    pub ended_at_us: u64,
    /// Rows that are not deleted.
    pub rows: u64,
    /// Segments that the next one has and it has not.
    added: Vec<SegmentId>,
    /// Segments that it has and the next one has not, with their places in its row order, ascending.
    removed: Vec<(u32, SegmentId)>,
    /// Rows of segments of both that are deleted in one of the two alone.
    changed: Vec<(SegmentId, RoaringBitmap)>,
    /// What it has beside rows, where the next one has something else.
    shape: Option<Shape>,
}

/// Columns and their defaults.
#[derive(Debug, Clone, PartialEq)]
struct Shape {
    schema: SchemaRef,
    record: ShapeRecord,
}

/// A version of a table on its way to another one.
pub(super) struct Version<'a> {
    pub snapshot_schema: &'a SchemaRef,
    pub record: &'a TableRecord,
    pub segments: &'a [Arc<Segment>],
}

impl Version<'_> {
    fn shape(&self) -> Shape {
        Shape {
            schema: Arc::clone(self.snapshot_schema),
            record: ShapeRecord {
                schema: self.record.schema.clone(),
                defaults: self.record.defaults.clone(),
            },
        }
    }
}

impl Past {
    /// What is to be kept of a version when another one takes its place, and the segments of it that
    /// this one has not.
    fn between(before: &Version<'_>, after: &Version<'_>) -> (Self, Vec<Arc<Segment>>) {
        let pairs = before.segments.iter().zip(after.segments);
        let same = pairs.take_while(|(a, b)| Arc::ptr_eq(a, b)).count();
        let (old, new) = (&before.segments[same..], &after.segments[same..]);
        let mut left: HashMap<SegmentId, &Arc<Segment>> = new.iter().map(|s| (s.id, s)).collect();
        let (mut removed, mut changed, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for (place, segment) in (same as u32..).zip(old) {
            match left.remove(&segment.id) {
                None => {
                    removed.push((place, segment.id));
                    gone.push(Arc::clone(segment));
                }
                Some(now) => {
                    let none = RoaringBitmap::new();
                    let rows = segment.deleted().unwrap_or(&none) ^ now.deleted().unwrap_or(&none);
                    if !rows.is_empty() {
                        changed.push((segment.id, rows));
                    }
                }
            }
        }
        let is_added = |segment: &&Arc<Segment>| left.contains_key(&segment.id);
        let rows = before.segments.iter().map(|s| u64::from(s.live_rows()));
        let has_shape = before.record.schema != after.record.schema
            || before.record.defaults != after.record.defaults;
        let past = Self {
            version: before.record.version,
            next: after.record.version,
            committed_at_us: before.record.committed_at_us,
            ended_at_us: after.record.committed_at_us,
            rows: rows.sum(),
            added: new.iter().filter(is_added).map(|s| s.id).collect(),
            removed,
            changed,
            shape: has_shape.then(|| before.shape()),
        };
        (past, gone)
    }

    fn encode(&self) -> VersionRecord {
        let rows = |(segment, rows): &(SegmentId, RoaringBitmap)| RowsRecord {
            segment: segment.0,
            rows: encode_rows(rows),
        };
        VersionRecord {
            next: self.next,
            committed_at_us: self.committed_at_us,
            ended_at_us: self.ended_at_us,
            rows: self.rows,
            added: self.added.iter().map(|id| id.0).collect(),
            removed: self.removed.iter().map(|(_, id)| id.0).collect(),
            places: self.removed.iter().map(|(place, _)| *place).collect(),
            changed: self.changed.iter().map(rows).collect(),
            shape: self.shape.as_ref().map(|shape| shape.record.clone()),
        }
    }

    fn decode(version: u64, record: VersionRecord, what: &str) -> Result<Self> {
        if record.removed.len() != record.places.len() {
            return Err(malformed(what, version));
        }
        let changed = record.changed.into_iter().map(|changed| {
            let rows = decode_rows(&changed.rows).map_err(|_| malformed(what, version))?;
            Ok((SegmentId(changed.segment), rows))
        });
        let shape = record.shape.map(|record| {
            let schema = decode_schema(&record.schema, what)?;
            Ok::<_, StorageError>(Shape { schema, record })
        });
        let removed = record.removed.into_iter().map(SegmentId);
        Ok(Self {
            version,
            next: record.next,
            committed_at_us: record.committed_at_us,
            ended_at_us: record.ended_at_us,
            rows: record.rows,
            added: record.added.into_iter().map(SegmentId).collect(),
            removed: record.places.into_iter().zip(removed).collect(),
            changed: changed.collect::<Result<_>>()?,
            shape: shape.transpose()?,
        })
    }
}

fn malformed(what: &str, version: u64) -> StorageError {
    StorageError::corrupt(format!(
        "{what}: what is kept of its version {version} does not fit"
    ))
}

/// A walk from the present to earlier versions.
struct Walk<'a> {
    history: &'a History,
    /// `schema.table`, for errors.
    name: &'a str,
    version: u64,
    segments: Vec<SegmentId>,
    /// Those of the present, by their numbers.
    present: HashMap<SegmentId, &'a Arc<Segment>>,
    /// Rows that are deleted, where they are others than the segment says.
    deleted: HashMap<SegmentId, RoaringBitmap>,
    shape: Shape,
}

impl<'a> Walk<'a> {
    fn new(history: &'a History, name: &'a str, present: &Version<'a>) -> Self {
        Self {
            history,
            name,
            version: present.record.version,
            segments: present.segments.iter().map(|s| s.id).collect(),
            present: present.segments.iter().map(|s| (s.id, s)).collect(),
            deleted: HashMap::new(),
            shape: present.shape(),
        }
    }

    fn find(&self, id: SegmentId) -> Result<&'a Arc<Segment>> {
        let present = self.present.get(&id).copied();
        let found = present.or_else(|| self.history.held.get(&id));
        found.ok_or_else(|| malformed(self.name, self.version))
    }

    /// Goes one version back.
    fn undo(&mut self, past: &Past) -> Result<()> {
        if past.next != self.version {
            return Err(malformed(self.name, past.version));
        }
        let start = self.segments.len().saturating_sub(past.added.len());
        if self.segments[start..] == past.added {
            self.segments.truncate(start);
        } else {
            let added: HashSet<_> = past.added.iter().collect();
            let count = self.segments.len();
            self.segments.retain(|id| !added.contains(id));
            if count - self.segments.len() != past.added.len() {
                return Err(malformed(self.name, past.version));
            }
        }
        if !past.removed.is_empty() {
            let mut kept = std::mem::take(&mut self.segments).into_iter();
            for (place, id) in &past.removed {
                let missing = (*place as usize).checked_sub(self.segments.len());
                let missing = missing.ok_or_else(|| malformed(self.name, past.version))?;
                self.segments.extend(kept.by_ref().take(missing));
                if self.segments.len() != *place as usize {
                    return Err(malformed(self.name, past.version));
                }
                self.segments.push(*id);
            }
            self.segments.extend(kept);
        }
        for (id, rows) in &past.changed {
            let segment = self.find(*id)?;
            let now = || segment.deleted().cloned().unwrap_or_default();
            *self.deleted.entry(*id).or_insert_with(now) ^= rows;
        }
        if let Some(shape) = &past.shape {
            self.shape = shape.clone();
        }
        self.version = past.version;
        Ok(())
    }

    /// The segments of the version, in row order.
    fn segments(&mut self) -> Result<Vec<Arc<Segment>>> {
        let columns = self.shape.schema.fields().len();
        let ids = std::mem::take(&mut self.segments);
        let segments = ids.into_iter().map(|id| {
            let segment = self.find(id)?;
            if segment.chunks.len() != columns {
                return Err(malformed(self.name, self.version));
            }
            Ok(match self.deleted.remove(&id) {
                Some(rows) => Arc::new(segment.with_deleted(rows)?),
                None => Arc::clone(segment),
            })
        });
        segments.collect()
    }
}

impl History {
    /// The past versions, oldest first.
    pub fn versions(&self) -> impl DoubleEndedIterator<Item = &Arc<Past>> {
        self.blocks.iter().flat_map(|block| block.iter())
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.held.is_empty()
    }

    /// The segments that only the past has.
    pub fn held(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.held.values()
    }

    /// The chunks of these.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.held().flat_map(|segment| segment.chunks.iter())
    }

    /// Bytes on flash that are given back when a version expires.
    pub fn bytes_of(&self, past: &Past) -> u64 {
        let segments = past.removed.iter();
        let segments = segments.filter_map(|(_, id)| self.held.get(id));
        let runs = segments.flat_map(|segment| segment.chunks.iter().flat_map(Chunk::runs));
        runs.map(|run| u64::from(run.count)).sum::<u64>() * PAGE_SIZE_BYTES as u64
    }

    /// Notes that another version takes the place of one. Gives the segments that are held from here
    /// on.
    pub fn note(&mut self, before: &Version<'_>, after: &Version<'_>) -> Vec<Arc<Segment>> {
        let (past, gone) = Past::between(before, after);
        if !gone.is_empty() {
            let held = Arc::make_mut(&mut self.held);
            held.extend(gone.iter().map(|segment| (segment.id, Arc::clone(segment))));
        }
        match self.blocks.last_mut() {
            Some(block) if block.len() < BLOCK => Arc::make_mut(block).push(Arc::new(past)),
            _ => self.blocks.push(Arc::new(vec![Arc::new(past)])),
        }
        gone
    }

    /// Forgets the versions before one, and gives the segments that nobody holds any more.
    pub fn expire(&mut self, before: u64) -> Vec<Arc<Segment>> {
        let mut gone = Vec::new();
        let is_old = |past: &Arc<Past>| past.version < before;
        let full = self
            .blocks
            .partition_point(|b| b.last().is_some_and(is_old));
        for block in self.blocks.drain(..full) {
            gone.extend(block.iter().flat_map(|past| past.removed.clone()));
        }
        if let Some(first) = self.blocks.first_mut() {
            let count = first.partition_point(is_old);
            if count > 0 {
                let old = Arc::make_mut(first).drain(..count);
                gone.extend(old.flat_map(|past| past.removed.clone()));
            }
        }
        if gone.is_empty() {
            return Vec::new();
        }
        let held = Arc::make_mut(&mut self.held);
        gone.iter().filter_map(|(_, id)| held.remove(id)).collect()
    }

    /// The first version that was there at a time or later, if there are versions before it.
    pub fn first_kept_since(&self, time_us: u64) -> Option<u64> {
        let mut kept = self
            .versions()
            .skip_while(|past| past.ended_at_us < time_us);
        let oldest = self.versions().next()?.version;
        let last = self.versions().next_back()?.next;
        let first = kept.next().map_or(last, |past| past.version);
        (first > oldest).then_some(first)
    }

    /// Puts another segment in the place of one that is held; gives the one that was there.
    pub fn replace(&mut self, segment: Arc<Segment>) -> Option<Arc<Segment>> {
        let held = Arc::make_mut(&mut self.held);
        held.insert(segment.id, segment)
    }

    /// A segment that is held.
    pub fn held_segment(&self, id: SegmentId) -> Option<&Arc<Segment>> {
        self.held.get(&id)
    }

    /// A past version, if it is kept.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn snapshot(
        &self,
        present: &TableSnapshot,
        record: &TableRecord,
        version: u64,
        rows_version: u64,
    ) -> Result<Option<TableSnapshot>> {
        let from = Version {
            snapshot_schema: &present.schema,
            record,
            segments: &present.segments,
        };
        let mut walk = Walk::new(self, &present.name, &from);
        for past in self
            .versions()
            .rev()
            .take_while(|past| past.version >= version)
        {
            walk.undo(past)?;
        }
        if walk.version != version {
            return Ok(None);
        }
        let segments = walk.segments()?;
        let Shape { schema, record } = walk.shape;
        let columns = schema.fields().len();
        Ok(Some(TableSnapshot {
            id: present.id,
            name: present.name.clone(),
            scan_schema: scan_schema(&schema),
            statistics: (0..columns).map(|c| statistics(&segments, c)).collect(),
            schema,
            version,
            rows_version,
            segments,
            indexes: Vec::new(),
            // Bounds are not known.
            lost_rows: true,
            defaults: record.decode_defaults(columns),
            checks: Vec::new(),
            layout: present.layout,
            // What it was then is not kept.
            distribution: None,
        }))
    }

    /// The segments that are held, each with the columns that it has.
    ///
    /// # Errors
    /// `Corrupt` where what is kept does not fit together, or not to the present version.
    pub fn checked(
        &self,
        name: &str,
        present: &Version<'_>,
    ) -> Result<Vec<(Arc<Segment>, SchemaRef)>> {
        if self.is_empty() {
            return Ok(Vec::new());
        }
        let mut walk = Walk::new(self, name, present);
        let mut found = Vec::with_capacity(self.held.len());
        for past in self.versions().rev() {
            walk.undo(past)?;
            for (_, id) in &past.removed {
                let segment = self
                    .held
                    .get(id)
                    .filter(|segment| segment.chunks.len() == walk.shape.schema.fields().len());
                let segment = segment.ok_or_else(|| malformed(name, past.version))?;
                found.push((Arc::clone(segment), Arc::clone(&walk.shape.schema)));
            }
        }
        match found.len() == self.held.len() {
            true => Ok(found),
            false => Err(StorageError::corrupt(format!(
                "{name}: its past has segments that no version shows"
            ))),
        }
    }

    /// What has come and gone since another state of it, as the catalog keeps it.
    pub fn since(&self, table: TableId, before: &Self, records: &mut HistoryRecords) {
        let oldest = self.versions().next().map(|past| past.version);
        let newest_before = before.versions().next_back().map(|past| past.version);
        let is_gone = |past: &&Arc<Past>| oldest.is_none_or(|oldest| past.version < oldest);
        let gone = before.versions().take_while(is_gone);
        let gone = gone.map(|past| (table.0, past.version));
        records.removed_versions.extend(gone);
        let is_new = |past: &&Arc<Past>| newest_before.is_none_or(|last| past.version > last);
        let new: Vec<_> = self.versions().rev().take_while(is_new).collect();
        let put = new.into_iter().rev();
        let put = put.map(|past| (table.0, past.version, past.encode()));
        records.versions.extend(put);
        if Arc::ptr_eq(&self.held, &before.held) {
            return;
        }
        for (id, segment) in self.held.iter() {
            let known = before.held.get(id);
            if !known.is_some_and(|known| Arc::ptr_eq(known, segment)) {
                let record = encode_segment(segment, 0);
                records.segments.push((table.0, id.0, record));
            }
        }
        let gone = before.held.keys().filter(|id| !self.held.contains_key(id));
        let gone = gone.map(|id| (table.0, id.0));
        records.removed_segments.extend(gone);
    }

    /// What the catalog has of a table's past.
    ///
    /// # Errors
    /// `Corrupt`, also where it does not fit to the table's present version.
    pub fn opened(
        table: TableId,
        name: &str,
        present: &Version<'_>,
        records: CatalogHistory,
    ) -> Result<Self> {
        let what = format!("table '{name}'");
        let mut history = Self::default();
        for (version, record) in records.versions {
            let past = Arc::new(Past::decode(version, record, &what)?);
            match history.blocks.last_mut().and_then(Arc::get_mut) {
                Some(block) if block.len() < BLOCK => block.push(past),
                _ => history.blocks.push(Arc::new(vec![past])),
            }
        }
        let held = records.segments.into_iter().map(|(id, record)| {
            let labels = Labels::of_past(name, record.chunks.len());
            let segment = decode_segment(&record, table, id, &labels)?;
            Ok((id, Arc::new(segment)))
        });
        history.held = Arc::new(held.collect::<Result<_>>()?);
        history.checked(&what, present)?;
        Ok(history)
    }
}

/// What the catalog is to be told of the past of tables, by their numbers, that has what is `before`.
pub(super) fn changes(
    before: &HashMap<TableId, History>,
    now: &HashMap<TableId, History>,
) -> HistoryRecords {
    let mut records = HistoryRecords::default();
    let nothing = History::default();
    for (table, history) in now {
        history.since(*table, before.get(table).unwrap_or(&nothing), &mut records);
    }
    for (table, history) in before.iter().filter(|(table, _)| !now.contains_key(table)) {
        nothing.since(*table, history, &mut records);
    }
    records
}

/// Microseconds since 1970, by the system's clock.
pub(super) fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// What the catalog has of a table's past.
#[derive(Debug, Default, PartialEq)]
pub(super) struct CatalogHistory {
    /// Ascending.
    pub versions: Vec<(u64, VersionRecord)>,
    pub segments: Vec<(SegmentId, SegmentRecord)>,
}

/// What the segments say of a column.
fn statistics(segments: &[Arc<Segment>], column: usize) -> ColumnStatistics {
    let chunks = || segments.iter().filter_map(|s| s.chunks.get(column));
    ColumnStatistics {
        null_count: chunks().map(|c| u64::from(c.totals.null_count)).sum(),
        bytes_on_flash: chunks().map(Chunk::size_bytes).sum(),
        ..ColumnStatistics::default()
    }
}
