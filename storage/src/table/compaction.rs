//! Compaction: fewer, fuller segments in place of many small ones, and of those that have lost rows.
//!
//! A commit of a few rows leaves a small segment behind, and deleted rows keep their pages. The
//! thread that keeps indexes up ([`super::upkeep`]) also rewrites such segments: neighbours in the
//! row order become new ones at their place, so that rows stay in their order, and the old ones go
//! in the same commit. Readers of an earlier version end undisturbed. Small segments are merged in
//! tiers: of about one size, from sixteen on, so that a row is rewritten only as often as there are
//! tiers. Rows get new ids; parts of indexes go on to serve the other segments that they cover.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use roaring::RoaringBitmap;

use crate::index::IndexPart;
use crate::index::pace::Pace;
use crate::memory::Charge;
use crate::page::SEGMENT_ROWS;
use crate::segment::{Chunk, Segment, SegmentId, Unnamed, note_moves, read_column};
use crate::table::TableSnapshot;
use crate::table::change::settle;
use crate::table::database::{Core, empty_record};
use crate::table::distribution::Buckets;
use crate::table::edit::{ObjectName, Operation, PutSegment, ReplaceSegments, TableEdit};
use crate::table::indexing::{NewParts, PartBuilder, put_next};
use crate::table::manifest::{TableRecord, decode_definition, encode_segment};
use crate::table::state::TableState;
use crate::table::upkeep::{Task, ends_all};
use crate::table::writing::{HELD_MAX_BYTES, Layout, Waiting, WrittenSegment};
use crate::{Result, StorageError};

/// Neighbours of about one size from which on they are merged.
const MERGED_SEGMENTS: usize = 16;
/// A segment of which so many rows, and such a part, are deleted is rewritten.
const DELETED_ROWS: u64 = 8192;
const DELETED_PART: u64 = 4;
/// Rows that one step rewrites, about: others wait for what it holds.
const STEP_ROWS: u64 = 8 * SEGMENT_ROWS as u64;
/// Bytes on flash likewise.
const STEP_BYTES: usize = 512 << 20;
/// Segments of one tier have up to eight times the rows of those of the one below. In all of them
/// segments are less than half full; fuller ones stay as they are.
const TIERS: u32 = 5;
/// A column of so many pages makes a segment a full one, too: one of four times as many could not be
/// a chunk.
const FULL_CHUNK_PAGES: u32 = 1 << 14;
/// What a row takes in memory, over what it takes on flash.
const DECODED: usize = 4;

/// What is worth rewriting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thoroughness {
    /// What slows queries down.
    Due,
    /// All that would take fewer segments or has deleted rows.
    All,
}

/// Neighbours among the segments of one bucket that are to become fewer, or smaller; none of those
/// that are left alone.
fn next_run(
    segments: &[Arc<Segment>],
    how: Thoroughness,
    left_alone: &HashSet<SegmentId>,
) -> Option<Vec<Arc<Segment>>> {
    if segments.iter().all(|segment| segment.bucket.is_none()) {
        return Some(segments[next_run_of(segments, how, left_alone)?].to_vec());
    }
    let mut buckets: BTreeMap<Option<u16>, Vec<Arc<Segment>>> = BTreeMap::new();
    for segment in segments {
        let of_bucket = buckets.entry(segment.bucket).or_default();
        of_bucket.push(Arc::clone(segment));
    }
    let mut buckets = buckets.into_values();
    buckets.find_map(|segments| Some(segments[next_run_of(&segments, how, left_alone)?].to_vec()))
}

fn next_run_of(
    segments: &[Arc<Segment>],
    how: Thoroughness,
    left_alone: &HashSet<SegmentId>,
) -> Option<Range<usize>> {
    match how {
        Thoroughness::Due => {
            let emptied = runs(segments, left_alone, |s| {
                let deleted = u64::from(s.rows - s.live_rows());
                deleted >= DELETED_ROWS && deleted * DELETED_PART >= u64::from(s.rows)
            });
            // Those of lower tiers among them come along.
            let small = (0..TIERS).flat_map(|tier| {
                let is_small = move |s: &Segment| tier_of(s) <= tier && !is_full(s);
                let runs = runs(segments, left_alone, is_small);
                runs.filter(move |run| {
                    let of_tier = segments[run.clone()].iter().filter(|s| tier_of(s) == tier);
                    of_tier.count() >= MERGED_SEGMENTS
                })
            });
            emptied.chain(small).next()
        }
        Thoroughness::All => {
            let is_so = |s: &Segment| s.deleted().is_some() || !is_full(s);
            let mut runs = runs(segments, left_alone, is_so);
            runs.find(|run| {
                let segments = &segments[run.clone()];
                let rows: u64 = segments.iter().map(|s| u64::from(s.live_rows())).sum();
                let needed = rows.div_ceil(SEGMENT_ROWS as u64) as usize;
                needed < segments.len() || segments.iter().any(|s| s.deleted().is_some())
            })
        }
    }
}

fn is_full(segment: &Segment) -> bool {
    let is_long = |chunk: &Chunk| chunk.run.count >= FULL_CHUNK_PAGES;
    segment.rows as usize >= SEGMENT_ROWS
        || segment.chunks.iter().any(is_long)
        // Two of these would be more than may wait to be written as one.
        || bytes_of(segment) > HELD_MAX_BYTES / 2
}

fn tier_of(segment: &Segment) -> u32 {
    (segment.live_rows() + 1).ilog2() / 3
}

/// The longest runs of segments that are so and not left alone, each of as much as a step may
/// rewrite.
fn runs<'a>(
    segments: &'a [Arc<Segment>],
    left_alone: &'a HashSet<SegmentId>,
    is_so: impl Fn(&Segment) -> bool + 'a,
) -> impl Iterator<Item = Range<usize>> + 'a {
    let is_so = move |segment: &Segment| is_so(segment) && !left_alone.contains(&segment.id);
    let mut next = 0;
    std::iter::from_fn(move || {
        let start = next + segments[next..].iter().position(|s| is_so(s))?;
        let (mut rows, mut bytes) = (0, 0);
        let of_run = segments[start..].iter().take_while(|segment| {
            rows += u64::from(segment.live_rows());
            bytes += bytes_of(segment);
            is_so(segment) && rows <= STEP_ROWS && bytes <= STEP_BYTES
        });
        next = start + of_run.count().max(1);
        Some(start..next)
    })
}

/// Neighbours, and what was written in their place.
struct Rewritten<'a> {
    name: &'a ObjectName,
    before: &'a TableState,
    old: &'a [Arc<Segment>],
    new: Vec<WrittenSegment>,
}

impl Core {
    /// Takes the next step for a table; FALSE when none is due. One that fails or is of no use leaves
    /// its segments alone, so that the next step is another one.
    pub(super) fn compact_step(
        &self,
        name: &ObjectName,
        pace: &Pace,
        how: Thoroughness,
    ) -> Result<bool> {
        let Some(before) = self.find_table(name)? else {
            return Ok(false);
        };
        let id = before.snapshot.id;
        let left_alone = self.upkeep.left_alone(id, &Task::Segments);
        let Some(old) = next_run(&before.snapshot.segments, how, &left_alone) else {
            return Ok(false);
        };
        let compacted = self.compact_run(name, &before, &old, pace);
        if !compacted
            .as_ref()
            .map_or_else(ends_all, |compacted| *compacted)
        {
            self.upkeep.leave_alone(id, Task::Segments, &old);
        }
        compacted.map(|_| true)
    }

    /// Rewrites neighbours, unless they are gone by then; FALSE when they would be no fewer.
    fn compact_run(
        &self,
        name: &ObjectName,
        before: &TableState,
        old: &[Arc<Segment>],
        pace: &Pace,
    ) -> Result<bool> {
        let generation = self.next_generation()?;
        let (new, reservation) = self.rewrite(before, old, generation, pace)?;
        let has_deleted = old.iter().any(|segment| segment.deleted().is_some());
        if new.len() > old.len() || new.len() == old.len() && !has_deleted {
            // Values so long that they fill segments of few rows.
            return Ok(false);
        }
        let rewritten = Rewritten {
            name,
            before,
            old,
            new,
        };
        let mut parts = NewParts::new(PartBuilder::new(
            self,
            before.snapshot.id,
            before.snapshot.name.clone(),
            &before.snapshot.schema,
            &before.next_segment,
            generation,
        ));
        let committed = self.replace(&rewritten, &mut parts);
        let is_kept = !matches!(committed, Ok(false));
        let kept = std::iter::once(reservation).chain(parts.into_reservations());
        match is_kept {
            true => settle(committed.map(drop), kept)?,
            false => drop(kept),
        }
        Ok(true)
    }

    /// Writes what is left of the rows of `old` as new segments.
    fn rewrite(
        &self,
        table: &TableState,
        old: &[Arc<Segment>],
        generation: u32,
        pace: &Pace,
    ) -> Result<(Vec<WrittenSegment>, Unnamed)> {
        let snapshot = &table.snapshot;
        let layout = Layout {
            table: snapshot.id,
            generation,
            next_segment: Arc::clone(&table.next_segment),
            labels: Arc::clone(&table.labels),
            rows: snapshot.layout,
            buckets: snapshot.distribution.as_ref().map(Buckets::new),
        };
        if let Some(buckets) = &layout.buckets {
            buckets.settle(self);
        }
        let mut reader = self.store().reader()?;
        let mut pages = self.store().small_writer()?;
        // Rows stay in their order, and they are of one bucket.
        let mut waiting = Waiting::new(None);
        let bucket = old.first().and_then(|segment| segment.bucket);
        let mut new = Vec::new();
        let mut write = |batch: RecordBatch| {
            layout.write_segment(&batch, bucket, &mut pages, &mut |segment| new.push(segment))
        };
        // A segment is read while another one waits to be written.
        let largest = old.iter().map(|segment| bytes_of(segment)).max();
        let heap = bytes_of_rows(old).min(HELD_MAX_BYTES);
        let held = (largest.unwrap_or(0) + heap) * DECODED;
        let _charge = Charge::new(&*self.memory, held).map_err(|error| {
            StorageError::Invalid(format!(
                "table '{}': compaction takes about {held} bytes of memory: {error}",
                snapshot.name
            ))
        })?;
        for segment in old {
            pace.check()?;
            let rows = live_rows(&mut reader, segment, snapshot).inspect_err(|_| {
                let one = std::slice::from_ref(segment);
                self.upkeep.leave_alone(snapshot.id, Task::Segments, one);
            })?;
            waiting.take(rows)?;
            while let Some(rows) = waiting.give_full(&snapshot.schema)? {
                write(rows)?;
            }
        }
        if let Some(rows) = waiting.give(&snapshot.schema)? {
            write(rows)?;
        }
        let reservation = pages.finish()?;
        Ok((new, Unnamed::new(reservation)))
    }

    /// Puts the new segments in the place of the old ones; FALSE when these are gone.
    fn replace(&self, rewritten: &Rewritten<'_>, parts: &mut NewParts) -> Result<bool> {
        let new = rewritten.new.iter().map(|w| Arc::clone(&w.segment));
        note_moves(rewritten.old, &new.collect::<Vec<_>>());
        // Parts of unique indexes are built before others are kept waiting.
        if rewritten.edit(rewritten.before, parts)?.is_none() {
            return Ok(false);
        }
        loop {
            parts.sync()?;
            let editing = rewritten.before.editing.lock();
            let present = self.head_table(rewritten.name)?;
            let edit = present.map(|present| rewritten.edit(&present, parts));
            let Some(edit) = edit.transpose()?.flatten() else {
                return Ok(false);
            };
            parts.sync()?;
            if self.commit_made_under(editing, edit)? {
                return Ok(true);
            }
        }
    }
}

impl Rewritten<'_> {
    /// The old segments as this version of the table has them, if it has them all.
    fn find_old(&self, present: &TableState) -> Option<Vec<Arc<Segment>>> {
        let segments = &present.snapshot.segments;
        let present_of: HashMap<_, _> = segments.iter().map(|s| (s.id, s)).collect();
        let find = |old: &Arc<Segment>| present_of.get(&old.id).map(|s| Arc::clone(s));
        let is_same = present.snapshot.id == self.before.snapshot.id;
        is_same.then(|| self.old.iter().map(find).collect())?
    }

    /// The new segments, without rows that were deleted from the old ones since these were read.
    fn without_deleted(&self, present: &[Arc<Segment>]) -> Result<Vec<Arc<Segment>>> {
        let mut deleted: HashMap<SegmentId, RoaringBitmap> = HashMap::new();
        let new: HashSet<SegmentId> = self.new.iter().map(|w| w.segment.id).collect();
        for (read, present) in self.old.iter().zip(present) {
            let none = RoaringBitmap::new();
            let before = read.deleted().unwrap_or(&none);
            for row in present.deleted().unwrap_or(&none) - before {
                let found = read.find_row(row, |id| new.contains(&id));
                let (id, row) = found.ok_or_else(|| {
                    StorageError::Invalid(format!(
                        "table '{}': row {row} of segment {} was lost on its way",
                        self.before.snapshot.name, read.id.0
                    ))
                })?;
                deleted.entry(id).or_default().insert(row);
            }
        }
        let segments = self
            .new
            .iter()
            .map(|w| match deleted.remove(&w.segment.id) {
                Some(rows) => w.segment.with_deleted(rows).map(Arc::new),
                None => Ok(Arc::clone(&w.segment)),
            });
        segments.collect()
    }

    /// The edit of this version of the table; `None` where it has not all of the old segments.
    fn edit(&self, present: &TableState, parts: &mut NewParts) -> Result<Option<TableEdit>> {
        let Some(old_segments) = self.find_old(present) else {
            return Ok(None);
        };
        let snapshot = &present.snapshot;
        let id = snapshot.id;
        let segments = snapshot.segments.iter();
        let old: HashSet<_> = self.old.iter().map(|segment| segment.id).collect();
        let kept: Vec<_> = segments.filter(|s| !old.contains(&s.id)).cloned().collect();
        let kept_ids: HashSet<_> = kept.iter().map(|segment| segment.id).collect();
        let new = self.without_deleted(&old_segments)?;
        let mut record = self.record(present, &old_segments, &new);
        let mut edit = TableEdit::default();
        let mut of_indexes = Vec::new();
        parts.start();
        for index in &record.indexes.clone() {
            let present = snapshot.index(&index.name);
            let present = present.map_or(&[][..], |index| &index.parts);
            let definition = decode_definition(index)?;
            let (gone, left): (Vec<_>, Vec<_>) = present
                .iter()
                .cloned()
                .partition(|part| is_gone(part, &old, &kept_ids));
            for part in &gone {
                edit.drop_part(id, part);
                record.parts -= 1;
            }
            if definition.unique {
                let published = parts.publish(&definition, &left, &kept, &new, &mut of_indexes)?;
                record.parts += published as u64;
            }
        }
        record.next_segment = present.next_segment.load(Ordering::Relaxed);
        put_next(&mut edit, self.name, present, record);
        let put = |segment: &Arc<Segment>| PutSegment {
            table: id.0,
            segment: segment.id.0,
            record: encode_segment(segment, 0),
        };
        edit.push(Operation::ReplaceSegments(ReplaceSegments {
            table: id.0,
            dropped: self.old.iter().map(|segment| segment.id.0).collect(),
            put: new.iter().map(put).collect(),
        }));
        of_indexes
            .into_iter()
            .for_each(|operation| edit.push(operation));
        Ok(Some(edit))
    }

    /// The table's record afterwards.
    fn record(
        &self,
        present: &TableState,
        old: &[Arc<Segment>],
        new: &[Arc<Segment>],
    ) -> TableRecord {
        let mut record = (*present.record).clone();
        let is_empty = present.snapshot.segments.len() == old.len() && new.is_empty();
        if is_empty {
            record.columns = empty_record(&present.snapshot.schema).columns;
        }
        let rows = |of: &[Arc<Segment>]| of.iter().map(|s| u64::from(s.rows)).sum::<u64>();
        let deleted = |of: &[Arc<Segment>]| {
            let deleted = of.iter().map(|s| u64::from(s.rows - s.live_rows()));
            deleted.sum::<u64>()
        };
        record.segments = record.segments - old.len() as u64 + new.len() as u64;
        record.rows = record.rows - rows(old) + rows(new);
        record.deleted = record.deleted - deleted(old) + deleted(new);
        record.lost_rows = (record.lost_rows || deleted(self.old) > 0) && !is_empty;
        for (ordinal, column) in record.columns.iter_mut().enumerate() {
            let chunks = |s: &Arc<Segment>| s.chunks.get(ordinal).map(of_chunk);
            for (nulls, bytes) in old.iter().filter_map(chunks) {
                column.null_count = column.null_count.saturating_sub(nulls);
                column.bytes_on_flash = column.bytes_on_flash.saturating_sub(bytes);
            }
            if is_empty {
                continue;
            }
            for new in self.new.iter().filter_map(|w| w.columns.get(ordinal)) {
                column.null_count += new.null_count;
                column.bytes_on_flash += new.bytes_on_flash;
            }
        }
        record
    }
}

/// Whether a part is of no more use without the `old` segments: it covers nothing that is left.
fn is_gone(part: &IndexPart, old: &HashSet<SegmentId>, kept: &HashSet<SegmentId>) -> bool {
    let covers = |segments: &HashSet<_>| part.covers.iter().any(|(id, _)| segments.contains(id));
    covers(old) && !covers(kept)
}

/// NULLs of a chunk, and its bytes on flash.
fn of_chunk(chunk: &Chunk) -> (u64, u64) {
    (u64::from(chunk.totals.null_count), chunk.size_bytes())
}

fn bytes_of(segment: &Segment) -> usize {
    let bytes: u64 = segment.chunks.iter().map(Chunk::size_bytes).sum();
    bytes as usize
}

/// What a full segment of such rows has on flash, at most what all of these have.
fn bytes_of_rows(segments: &[Arc<Segment>]) -> usize {
    let bytes: usize = segments.iter().map(|segment| bytes_of(segment)).sum();
    let rows: usize = segments.iter().map(|s| s.rows as usize).sum();
    match rows > SEGMENT_ROWS {
        true => bytes / rows.max(1) * SEGMENT_ROWS,
        false => bytes,
    }
}

/// The rows of a segment that are not deleted.
fn live_rows(
    reader: &mut crate::store::PageReader,
    segment: &Segment,
    table: &TableSnapshot,
) -> Result<RecordBatch> {
    let fields = table.schema.fields().iter().enumerate();
    let columns = fields
        .map(|(ordinal, field)| read_column(reader, segment, ordinal, field.data_type()))
        .collect::<Result<_>>()?;
    let rows = RecordBatch::try_new(Arc::clone(&table.schema), columns)?;
    let Some(deleted) = segment.deleted() else {
        return Ok(rows);
    };
    let is_left: BooleanArray = (0..segment.rows)
        .map(|row| Some(!deleted.contains(row)))
        .collect();
    Ok(filter_record_batch(&rows, &is_left)?)
}

#[cfg(test)]
mod tests;
