//! Keeping tables and indexes up: segments that are worth it are compacted ([`super::compaction`]);
//! indexes get parts for the segments that none covers, and fewer, larger ones in place of many
//! small ones.
//!
//! Commits leave the tails of indexes behind, and unique indexes with a part for each commit. One
//! thread of a database that is open for writing sees to them when a commit wakes it. What it does
//! goes in steps: each builds a part and publishes it as a [`TableEdit`](super::edit::TableEdit)
//! of its own, in place of those that it covers; when the table has changed so that the part fits
//! no more, its pages are given back, and the step is taken anew from the version that there is.
//!
//! Parts are merged in tiers: from eight of about one size on those of a tier become one, so that
//! a row is built into a part only as often as the table has tiers, and an index has few parts
//! beside those that are as large as parts may be ([`UpkeepOptions`]). A part that covers much that
//! is gone is built anew of what is left.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arrow::datatypes::{DataType, SchemaRef};
use parking_lot::Mutex;

use crate::index::adjacency::MAX_TAIL_ROWS;
use crate::index::kind::Kind;
use crate::index::pace::{Control, Pace};
use crate::index::{Index, IndexDefinition, IndexPart};
use crate::segment::{Segment, SegmentId, TableId};
use crate::table::change::settle;
use crate::table::compaction::Thoroughness;
use crate::table::database::Core;
use crate::table::edit::ObjectName;
use crate::table::history::now_us;
use crate::table::indexing::{Built, PartBuilder, index_edit, put_part};
use crate::table::relocation::Relocation;
use crate::table::state::TableState;
use crate::table::temporary::names::EndedSessions;
use crate::table::{Database, TableSnapshot};
use crate::{Result, StorageError};

/// Parts of about one size from which on they are merged.
const MERGE_PARTS: usize = 8;
/// A part is built anew when such a part of its rows is gone with their segments: compaction takes
/// those that have lost many.
const GONE_PART: u64 = 4;
/// A tail of so many segments or rows gets a part in the background: one that is shorter costs
/// little to look at.
const TAIL_SEGMENTS: usize = 16;
const TAIL_ROWS: u64 = 8192;
/// A load of so many rows covers them itself, with all threads, once it is committed.
const BULK_ROWS: u64 = 1 << 20;
/// Reading a segment costs as much as reading so many rows.
const SEGMENT_COST_ROWS: u64 = 256;
/// The background begins anew no sooner.
const PAUSE: Duration = Duration::from_millis(50);
/// What has failed in the background is tried again after this.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Segments at which a task has failed are left alone for so long, and it goes on with others.
const LEFT_ALONE: Duration = Duration::from_secs(3600);

/// How a database keeps its indexes up.
#[derive(Debug, Clone, PartialEq)]
pub struct UpkeepOptions {
    /// A thread does it. Without one only [`Database::settle_indexes`] does.
    pub in_background: bool,
    /// Share of the time that this thread works at most.
    pub share: f64,
    /// Segments that a part covers at most, unless it covers only one; formats allow 65,536.
    pub max_part_segments: usize,
    /// Rows likewise; formats allow 2^32.
    pub max_part_rows: u64,
    /// Bytes of memory that building a part takes at most, about, likewise.
    pub max_build_bytes: u64,
    /// Where cards have so much on average, the thread fills one that has less than half of that from
    /// the fullest.
    pub even_from_bytes: u64,
    /// The thread reads and checks every page once in this time; `None`: it does not.
    pub scrub_period: Option<Duration>,
}

impl Default for UpkeepOptions {
    /// Half a thread, parts of up to 8,192 segments and 67 million rows, 2 GiB, cards of 64 MiB, all pages
    /// in a week.
    fn default() -> Self {
        Self {
            in_background: true,
            share: 0.5,
            max_part_segments: 1 << 13,
            max_part_rows: 1 << 26,
            max_build_bytes: 2 << 30,
            even_from_bytes: 64 << 20,
            scrub_period: Some(Duration::from_secs(7 * 24 * 3600)),
        }
    }
}

/// What a part covers, or would cover.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    segments: usize,
    rows: u64,
    build_bytes: u64,
}

impl Size {
    fn and(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            rows: self.rows.saturating_add(other.rows),
            build_bytes: self.build_bytes.saturating_add(other.build_bytes),
        }
    }

    /// Parts of one tier differ by less than eight times in what it costs to build them.
    fn tier(&self) -> u32 {
        (self.rows + self.segments as u64 * SEGMENT_COST_ROWS + 1).ilog2() / 3
    }
}

/// How large the parts of an index are, and may be.
pub(super) struct Sizes<'a> {
    kind: &'static dyn Kind,
    columns: Vec<&'a DataType>,
    options: &'a UpkeepOptions,
}

impl<'a> Sizes<'a> {
    pub fn new(
        definition: &IndexDefinition,
        schema: &'a SchemaRef,
        options: &'a UpkeepOptions,
    ) -> Self {
        let columns = definition.columns.iter();
        let columns = columns.map(|column| schema.field(*column as usize).data_type());
        Self {
            kind: definition.kind.of(),
            columns: columns.collect(),
            options,
        }
    }

    /// How many of the first segments, at least one, can be a part together.
    pub fn fitting(&self, segments: &[Arc<Segment>]) -> usize {
        let sizes = segments.iter().map(|segment| self.of_segment(segment.rows));
        self.first_that_fit(sizes).max(1).min(segments.len())
    }

    /// Bytes of memory that building one part of all these takes, about.
    pub fn build_bytes(&self, segments: &[Arc<Segment>]) -> u64 {
        let sizes = segments.iter().map(|segment| self.of_segment(segment.rows));
        sizes.fold(Size::default(), Size::and).build_bytes
    }

    fn of_segment(&self, rows: u32) -> Size {
        Size {
            segments: 1,
            rows: rows.into(),
            build_bytes: self.kind.build_bytes(&self.columns, rows),
        }
    }

    fn of_part(&self, part: &IndexPart) -> Size {
        let sizes = part.covers.iter().map(|(_, rows)| self.of_segment(*rows));
        sizes.fold(Size::default(), Size::and)
    }

    /// How many of the first ones can be a part together.
    fn first_that_fit(&self, sizes: impl Iterator<Item = Size>) -> usize {
        let mut all = Size::default();
        let fits = sizes.take_while(|size| {
            all = all.and(*size);
            all.segments <= self.options.max_part_segments
                && all.rows <= self.options.max_part_rows
                && all.build_bytes <= self.options.max_build_bytes
        });
        fits.count()
    }
}

/// How much is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// What is worth it now.
    Due,
    /// Every tail gets a part, and nothing is merged.
    Tails,
    /// Every tail gets a part, and what is many is merged.
    All,
}

/// What is to be done next for an index: a part over what no part or these cover.
struct Step {
    merged: Vec<Arc<IndexPart>>,
    segments: Vec<Arc<Segment>>,
}

impl Step {
    /// A part for the tail, but for segments that are left alone; `thorough`: none is short enough to
    /// stay.
    fn cover(
        index: &Index,
        table: &TableState,
        options: &UpkeepOptions,
        left_alone: &HashSet<SegmentId>,
        thorough: bool,
    ) -> Option<Self> {
        let tail = index.tail.iter().filter(|s| !left_alone.contains(&s.id));
        let tail: Vec<_> = tail.cloned().collect();
        let rows: u64 = tail.iter().map(|segment| u64::from(segment.rows)).sum();
        let is_long = tail.len() >= TAIL_SEGMENTS || rows >= TAIL_ROWS;
        if !is_long && (!thorough || tail.is_empty()) {
            return None;
        }
        let schema = &table.snapshot.schema;
        let count = Sizes::new(&index.definition, schema, options).fitting(&tail);
        Some(Self {
            merged: Vec::new(),
            segments: tail[..count].to_vec(),
        })
    }

    /// A part in place of one that is hollow, or of several; of none with segments that are left
    /// alone.
    fn merge(
        index: &Index,
        table: &TableState,
        options: &UpkeepOptions,
        left_alone: &HashSet<SegmentId>,
    ) -> Option<Self> {
        let is_sound = |part: &&Arc<IndexPart>| {
            let mut covers = part.covers.iter();
            left_alone.is_empty() || !covers.any(|(id, _)| left_alone.contains(id))
        };
        let parts: Vec<&Arc<IndexPart>> = index.parts.iter().filter(is_sound).collect();
        let segments = table.snapshot.segments.iter();
        let present: HashSet<SegmentId> = segments.map(|segment| segment.id).collect();
        let is_hollow = |part: &&&Arc<IndexPart>| {
            let gone = part.covers.iter().filter(|(id, _)| !present.contains(id));
            let gone: u64 = gone.map(|(_, rows)| u64::from(*rows)).sum();
            gone * GONE_PART >= part.rows().max(1)
        };
        if let Some(part) = parts.iter().find(is_hollow) {
            return Some(Self::of_merged(vec![Arc::clone(part)], table));
        }
        if parts.len() < MERGE_PARTS {
            return None;
        }
        let sizes = Sizes::new(&index.definition, &table.snapshot.schema, options);
        let mut tiers: BTreeMap<u32, Vec<(Size, &Arc<IndexPart>)>> = BTreeMap::new();
        for part in parts {
            let size = sizes.of_part(part);
            tiers.entry(size.tier()).or_default().push((size, part));
        }
        let merged = tiers.into_values().find_map(|mut parts| {
            parts.sort_by_key(|(size, part)| (size.rows, size.segments, part.id));
            let count = sizes.first_that_fit(parts.iter().map(|(size, _)| *size));
            let is_due = parts.len() >= MERGE_PARTS && count > 1;
            let merged = parts[..count].iter().map(|(_, part)| Arc::clone(part));
            is_due.then(|| merged.collect::<Vec<_>>())
        })?;
        Some(Self::of_merged(merged, table))
    }

    fn of_merged(merged: Vec<Arc<IndexPart>>, table: &TableState) -> Self {
        let covered = merged.iter().flat_map(|part| &part.covers);
        let covered: HashSet<_> = covered.map(|(id, _)| *id).collect();
        let segments = table.snapshot.segments.iter();
        let segments = segments.filter(|segment| covered.contains(&segment.id));
        Self {
            segments: segments.cloned().collect(),
            merged,
        }
    }

    /// Whether the part fits this version of the index.
    fn fits(&self, index: &Index) -> bool {
        let has = |part: &Arc<IndexPart>| index.parts.iter().any(|other| other.id == part.id);
        let covered = self.merged.iter().flat_map(|part| &part.covers);
        let tail = index.tail.iter().map(|segment| segment.id);
        let known: HashSet<SegmentId> = tail.chain(covered.map(|(id, _)| *id)).collect();
        self.merged.iter().all(has) && self.segments.iter().all(|s| known.contains(&s.id))
    }
}

/// How far a database is with its indexes.
#[derive(Debug)]
pub(super) struct Upkeep {
    pub(super) options: UpkeepOptions,
    control: Arc<Control>,
    /// Held during a step, so that nothing is built twice.
    working: Mutex<()>,
    /// What went wrong in the background.
    failures: Mutex<BTreeMap<(TableId, Task), (Instant, String)>>,
    /// Segments that tasks leave alone, and since when.
    left_alone: Mutex<BTreeMap<(TableId, Task), HashMap<SegmentId, Instant>>>,
    pub(super) relocation: Relocation,
    pub(super) ended: EndedSessions,
}

/// What is kept up of a table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Segments,
    Index(String),
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segments => f.write_str("its segments"),
            Self::Index(name) => write!(f, "index '{name}'"),
        }
    }
}

impl Upkeep {
    pub fn new(options: UpkeepOptions) -> Self {
        Self {
            options,
            control: Arc::default(),
            working: Mutex::default(),
            failures: Mutex::default(),
            left_alone: Mutex::default(),
            relocation: Relocation::default(),
            ended: EndedSessions::default(),
        }
    }

    /// The session with this schema of temporary tables has ended.
    pub fn end_session(&self, schema: String) {
        self.ended.add(schema);
        self.wake();
    }

    /// Something was committed.
    pub fn wake(&self) {
        self.control.wake();
    }

    fn has_failed_lately(&self, table: TableId, task: &Task) -> bool {
        let failures = self.failures.lock();
        let failure = failures.get(&(table, task.clone()));
        failure.is_some_and(|(when, _)| when.elapsed() < RETRY_AFTER)
    }

    /// The segments of a table that a task leaves alone, as it has failed at them.
    pub fn left_alone(&self, table: TableId, task: &Task) -> HashSet<SegmentId> {
        let mut left_alone = self.left_alone.lock();
        let of_task = left_alone.get_mut(&(table, task.clone()));
        of_task.map_or_else(HashSet::new, |segments| {
            segments.retain(|_, since| since.elapsed() < LEFT_ALONE);
            segments.keys().copied().collect()
        })
    }

    /// A task has failed at these segments: it leaves them alone, unless it does so with one of
    /// them, which is the one at fault.
    pub fn leave_alone(&self, table: TableId, task: Task, segments: &[Arc<Segment>]) {
        let mut left_alone = self.left_alone.lock();
        let of_task = left_alone.entry((table, task)).or_default();
        if !segments.iter().any(|s| of_task.contains_key(&s.id)) {
            of_task.extend(segments.iter().map(|s| (s.id, Instant::now())));
        }
    }

    /// Tries again what has failed of a table, or of all.
    fn retry(&self, table: Option<TableId>) {
        let mut left_alone = self.left_alone.lock();
        left_alone.retain(|(id, _), _| table.is_some_and(|table| table != *id));
    }

    fn note(&self, table: &TableSnapshot, task: Task, result: &Result<bool>) {
        let mut failures = self.failures.lock();
        let name = &table.name;
        match result {
            Err(StorageError::Cancelled) => {}
            Err(error) => {
                log::warn!("table '{name}': keeping {task} up failed: {error}");
                let key = (table.id, task);
                drop(failures.insert(key, (Instant::now(), error.to_string())));
            }
            // What it has left alone has still failed.
            Ok(_) if self.left_alone(table.id, &task).is_empty() => {
                drop(failures.remove(&(table.id, task)));
            }
            Ok(_) => {}
        }
    }
}

/// Whether an error is of the database as a whole, or of none of it, so that no other step fares
/// better.
pub(super) fn ends_all(error: &StorageError) -> bool {
    matches!(
        error,
        StorageError::Cancelled
            | StorageError::NeedsReopening { .. }
            | StorageError::ReadOnly { .. }
            | StorageError::Full { .. }
    )
}

/// The thread that keeps indexes up.
#[derive(Debug)]
pub(super) struct Background {
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub fn start(core: &Arc<Core>) -> Self {
        let control = Arc::clone(&core.upkeep.control);
        core.end_sessions_of_before();
        // Tails that an earlier life of the database has left.
        control.wake();
        let core = Arc::clone(core);
        let thread = std::thread::Builder::new().name("flashmesh-upkeep".into());
        let thread = thread.spawn(move || run(&core));
        Self {
            control,
            // Without it tails grow, and answers are right.
            thread: thread
                .inspect_err(|error| log::warn!("no thread keeps indexes up: {error}"))
                .ok(),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.control.end();
        if let Some(Err(_)) = self.thread.take().map(JoinHandle::join) {
            log::warn!("the thread that keeps indexes up has failed");
        }
    }
}

fn run(core: &Core) {
    let control = &core.upkeep.control;
    let mut has_failed = false;
    loop {
        // Versions expire while nobody commits.
        let expiry = core.next_expiry_us().filter(|_| !has_failed);
        let left = expiry.map_or(RETRY_AFTER, |time| {
            Duration::from_micros(time.saturating_sub(now_us())).max(PAUSE)
        });
        if !control.wait(left.min(RETRY_AFTER)) {
            core.drop_temporary();
            return;
        }
        core.drop_temporary();
        let pace = Pace::background(core.upkeep.options.share, control);
        let expired = core.expire_versions(now_us());
        has_failed = expired.is_err();
        if let Err(error) = expired {
            let path = core.path().display();
            log::warn!("{path}: past versions stay that were to expire: {error}");
        }
        match core.keep_up(None, &pace, Extent::Due) {
            // Nothing more can be written.
            Err(StorageError::NeedsReopening { .. }) => return,
            // Each index says how it failed.
            _ => control.rest(PAUSE),
        }
        if let Some(period) = core.upkeep.options.scrub_period {
            match core.scrub_due(period, &pace) {
                Ok(()) | Err(StorageError::Cancelled) => {}
                Err(error) => log::warn!(
                    "{}: its pages are not checked: {error}",
                    core.path().display()
                ),
            }
        }
    }
}

impl Database {
    /// Does all that is to be done for indexes now, as fast as can be: afterwards none has a tail
    /// or parts to merge, unless others have committed meanwhile.
    ///
    /// # Errors
    /// `ReadOnly`; the first of `Full`, `Io`, `Corrupt`; `NeedsReopening`. Indexes that have failed
    /// are as they were.
    pub fn settle_indexes(&self) -> Result<()> {
        self.check_writable()?;
        let _hurried = self.upkeep.control.hurry();
        self.upkeep.retry(None);
        self.drop_temporary();
        self.keep_up(None, &Pace::full(), Extent::All)
    }

    /// Rewrites the segments of a table so that they are as few and as full as can be, without
    /// deleted rows. Queries and commits go on meanwhile; rows get new ids.
    ///
    /// # Errors
    /// `ReadOnly`, `NotFound`; `Full`, `Io`, `Corrupt`; `NeedsReopening`. What could be rewritten
    /// stays so.
    pub fn compact(&self, schema: &str, table: &str) -> Result<()> {
        self.check_writable()?;
        let present = self.table_state(schema, table)?;
        let _hurried = self.upkeep.control.hurry();
        self.upkeep.retry(Some(present.snapshot.id));
        let name = ObjectName::new(schema, table);
        self.compact_table(&name, &Pace::full(), Thoroughness::All)?;
        self.keep_up(Some(&name), &Pace::full(), Extent::Tails)
    }

    /// How keeping an index up has failed when it was last tried.
    pub fn index_failure(&self, table: TableId, index: &str) -> Option<String> {
        let failures = self.upkeep.failures.lock();
        let failure = failures.get(&(table, Task::Index(index.into())));
        failure.map(|(_, failure)| failure.clone())
    }
}

impl Core {
    pub(super) fn upkeep_options(&self) -> &UpkeepOptions {
        &self.upkeep.options
    }

    /// Covers what a large load has brought. How that fails is kept, and is no failure of the load.
    pub(super) fn cover_load(&self, table: &ObjectName, rows: u64) {
        if rows >= BULK_ROWS {
            let _hurried = self.upkeep.control.hurry();
            // The index is asked all the same.
            let _ = self.keep_up(Some(table), &Pace::full(), Extent::Tails);
        }
    }

    /// Takes the steps for the segments of a table, those that can be taken; the first error.
    fn compact_table(&self, name: &ObjectName, pace: &Pace, how: Thoroughness) -> Result<()> {
        let mut compacted = Ok(());
        let mut is_covered = true;
        loop {
            let working = self.upkeep.working.lock();
            let Some(table) = self.find_table(name)? else {
                return compacted;
            };
            let id = table.snapshot.id;
            let is_first_due = how == Thoroughness::Due && compacted.is_ok();
            if is_first_due && self.upkeep.has_failed_lately(id, &Task::Segments) {
                return Ok(());
            }
            let taken = self.compact_step(name, pace, how);
            self.upkeep.note(&table.snapshot, Task::Segments, &taken);
            drop(working);
            match taken {
                Ok(true) => {
                    // What is rewritten is not to become too much for a search.
                    let mut indexes = table.snapshot.indexes.iter();
                    if is_covered && indexes.any(|index| index.tail_rows() >= MAX_TAIL_ROWS / 2) {
                        is_covered = self.keep_up(Some(name), pace, Extent::Tails).is_ok();
                    }
                }
                Ok(false) => return compacted,
                Err(error) if ends_all(&error) => return Err(error),
                Err(error) => compacted = compacted.and(Err(error)),
            }
        }
    }

    /// Takes the steps for the indexes of a table, or of all; before them, those for the segments
    /// that are due.
    fn keep_up(&self, of: Option<&ObjectName>, pace: &Pace, extent: Extent) -> Result<()> {
        let (mut names, mut indexes) = (Vec::new(), Vec::new());
        for (name, table) in &self.state.read().tables {
            if of.is_some_and(|of| of != name) {
                continue;
            }
            names.push(name.clone());
            let of_table = table.snapshot.indexes.iter();
            let key = |index: &Arc<Index>| (name.clone(), index.definition.name.clone());
            indexes.extend(of_table.map(key));
        }
        // In the same order each time.
        names.sort();
        indexes.sort();
        if of.is_none() {
            self.forget_failures();
        }
        let mut kept_up = Ok(());
        if extent == Extent::Due {
            kept_up = self.collect_due().and_then(|()| self.relocate_due(pace));
            if let Err(StorageError::Cancelled | StorageError::NeedsReopening { .. }) = kept_up {
                return kept_up;
            }
            for name in names {
                match self.compact_table(&name, pace, Thoroughness::Due) {
                    Err(
                        error @ (StorageError::Cancelled | StorageError::NeedsReopening { .. }),
                    ) => return Err(error),
                    // An error of one table is no reason to leave the others as they are.
                    taken => kept_up = kept_up.and(taken),
                }
            }
        }
        for (table, index) in indexes {
            let mut failed = Ok(());
            loop {
                match self.take_step(&table, &index, pace, extent, &mut failed) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(
                        error @ (StorageError::Cancelled | StorageError::NeedsReopening { .. }),
                    ) => {
                        return Err(error);
                    }
                    Err(error) => {
                        failed = failed.and(Err(error));
                        break;
                    }
                }
            }
            kept_up = kept_up.and(failed);
        }
        kept_up
    }

    /// Takes the next step for an index; FALSE when none is due. The first that failed at one segment
    /// is in `failed`: then the next step is another one.
    fn take_step(
        &self,
        name: &ObjectName,
        index: &str,
        pace: &Pace,
        extent: Extent,
        failed: &mut Result<()>,
    ) -> Result<bool> {
        let _working = self.upkeep.working.lock();
        let Some((table, present)) = self.present(name, index)? else {
            return Ok(false);
        };
        let id = table.snapshot.id;
        let task = Task::Index(index.into());
        let is_first_due = extent == Extent::Due && failed.is_ok();
        if is_first_due && self.upkeep.has_failed_lately(id, &task) {
            return Ok(false);
        }
        let options = &self.upkeep.options;
        let left_alone = self.upkeep.left_alone(id, &task);
        let thorough = extent != Extent::Due;
        let step = Step::cover(&present, &table, options, &left_alone, thorough);
        let step = match extent {
            Extent::Tails => step,
            _ => step.or_else(|| Step::merge(&present, &table, options, &left_alone)),
        };
        let Some(step) = step else {
            return Ok(false);
        };
        let definition = &present.definition;
        let builder = PartBuilder::of(self, &table)?;
        let taken = builder
            .build(definition, &step.segments, pace)
            .and_then(|built| self.publish(name, &table, definition, &step, built));
        self.upkeep.note(&table.snapshot, task.clone(), &taken);
        match (taken, builder.failed_at()) {
            (Err(error), Some(segment)) => {
                let one = std::slice::from_ref(segment);
                self.upkeep.leave_alone(id, task, one);
                let first = std::mem::replace(failed, Ok(()));
                *failed = first.and(Err(error));
                Ok(true)
            }
            (taken, _) => taken,
        }
    }

    /// Forgets what is said of indexes that are gone.
    fn forget_failures(&self) {
        let state = self.state.read();
        let is_there = |(id, task): &(TableId, Task)| {
            let mut tables = state.tables.values();
            let table = tables.find(|table| table.snapshot.id == *id);
            table.is_some_and(|table| match task {
                Task::Segments => true,
                Task::Index(index) => table.snapshot.index(index).is_some(),
            })
        };
        let upkeep = &self.upkeep;
        upkeep.failures.lock().retain(|key, _| is_there(key));
        upkeep.left_alone.lock().retain(|key, _| is_there(key));
    }

    /// A table with one of its indexes, if both are there and sound.
    ///
    /// # Errors
    /// `NeedsReopening`.
    fn present(&self, name: &ObjectName, index: &str) -> Result<Option<(TableState, Arc<Index>)>> {
        let table = match self.head_table(name) {
            Err(error @ StorageError::NeedsReopening { .. }) => return Err(error),
            found => found.ok().flatten(),
        };
        Ok(table.and_then(|table| {
            let index = Arc::clone(table.snapshot.index(index)?);
            Some((table, index))
        }))
    }

    /// Publishes the part that a step has built, if it fits the present version of the table.
    fn publish(
        &self,
        name: &ObjectName,
        before: &TableState,
        definition: &IndexDefinition,
        step: &Step,
        built: Built,
    ) -> Result<bool> {
        self.store().sync()?;
        let id = before.snapshot.id;
        loop {
            let editing = before.editing.lock();
            let present = self.present(name, &definition.name)?;
            let present = present.filter(|(table, index)| {
                table.snapshot.id == id && index.definition == *definition && step.fits(index)
            });
            let Some((table, _)) = present else {
                return Ok(true);
            };
            let mut record = (*table.record).clone();
            record.next_segment = table.next_segment.load(Ordering::Relaxed);
            record.parts = record.parts + 1 - step.merged.len() as u64;
            let mut edit = index_edit(name, &table, record);
            step.merged.iter().for_each(|part| edit.drop_part(id, part));
            edit.push(put_part(id, definition, &built.part));
            match self.commit_made_under(editing, edit) {
                Ok(false) => {}
                committed => {
                    return settle(committed.map(drop), [built.reservation]).map(|()| true);
                }
            }
        }
    }
}
