//! Small commits of a table that meet.
//!
//! What a commit costs in the store depends little on how many rows it has: a segment is encoded, a
//! unique index gets a part, keys are compared, an edit is made and applied; and each segment is one
//! more for scans, and for the background to merge. So small changes of a table's rows don't queue for
//! that one by one. The first takes those that have come by the time when it may, and makes one segment
//! and one edit of all of them, while others gather for the next one (flat combining: Hendler, Incze,
//! Shavit and Tzafrir, SPAA 2010). Willow's Append (section 4.6) is made cheap by the device's choice of
//! the place; here it is by company.
//!
//! Each change stays a commit of its own to whoever made it: it is refused alone when it conflicts, with
//! one of its company too, and acknowledged when it is durable. All of them are seen at once.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use parking_lot::{Condvar, Mutex};

use crate::segment::{TableId, Unnamed};
use crate::table::change::{ChangeKind, TableChange, settle};
use crate::table::commits::Decided;
use crate::table::database::Core;
use crate::table::distribution::Buckets;
use crate::table::edit::{ObjectName, TableEdit};
use crate::table::indexing::{NewParts, PartBuilder};
use crate::table::state::TableState;
use crate::table::writing::Layout;
use crate::{Result, StorageError};

/// Changes that are made one, at most: their pages stay in memory then.
const MAX_COMPANY: usize = 16;

/// The small changes of tables that wait. A table is here while somebody commits some of them.
#[derive(Debug, Default)]
pub(super) struct SmallCommits {
    waiting: Mutex<HashMap<Target, Vec<Arc<Small>>>>,
}

impl SmallCommits {
    /// How many changes are on their way, of any table.
    #[cfg(test)]
    pub fn count(&self) -> usize {
        let tables = self.waiting.lock();
        tables.values().map(|waiting| 1 + waiting.len()).sum()
    }
}

/// A table, and the name that it has to whoever changes it.
type Target = (TableId, ObjectName);

/// A small change of a table on its way to a commit.
#[derive(Debug)]
struct Small {
    /// Without rows that come.
    change: TableChange,
    /// These, in their order.
    rows: Vec<RecordBatch>,
    stage: Mutex<Stage>,
    /// The stage is another one.
    moved_on: Condvar,
}

#[derive(Debug)]
enum Stage {
    /// For another one to commit it, or to leave the lead to it.
    Waiting,
    /// It is to commit itself and others.
    Leading,
    Done(Result<()>),
}

impl Small {
    fn move_to(&self, stage: Stage) {
        *self.stage.lock() = stage;
        self.moved_on.notify_one();
    }

    fn end(&self, result: Result<()>) {
        self.move_to(Stage::Done(result));
    }

    /// Waits for its end; `None` when it is to lead.
    fn wait(&self) -> Option<Result<()>> {
        let mut stage = self.stage.lock();
        loop {
            match mem::replace(&mut *stage, Stage::Waiting) {
                Stage::Waiting => self.moved_on.wait(&mut stage),
                Stage::Leading => return None,
                Stage::Done(result) => return Some(result),
            }
        }
    }
}

/// Who commits for a table, until it is dropped: then the next one does.
struct Lead<'a> {
    commits: &'a SmallCommits,
    target: Target,
}

impl Lead<'_> {
    /// Those that wait, as many as may be committed with another one.
    fn company(&self) -> Vec<Arc<Small>> {
        let mut waiting = self.commits.waiting.lock();
        let waiting = waiting.get_mut(&self.target).expect("a leader's table");
        let count = waiting.len().min(MAX_COMPANY - 1);
        waiting.drain(..count).collect()
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut tables = self.commits.waiting.lock();
        match tables.get_mut(&self.target) {
            Some(waiting) if !waiting.is_empty() => waiting.remove(0).move_to(Stage::Leading),
            _ => drop(tables.remove(&self.target)),
        }
    }
}

/// Changes that are committed together. Those that have not heard how it ended do when it is dropped.
struct Company(Vec<Arc<Small>>);

impl Company {
    fn end(mut self, result: impl Fn() -> Result<()>) {
        let members = mem::take(&mut self.0);
        members.iter().for_each(|member| member.end(result()));
    }
}

impl Drop for Company {
    fn drop(&mut self) {
        for member in &self.0 {
            let what = "a commit beside it came to no end".into();
            member.end(Err(StorageError::NeedsReopening { what }));
        }
    }
}

/// What was decided on for a company, of which some were refused.
struct Together {
    decided: Decided,
    members: Company,
}

/// Commits a small change, of which `rows` come, alone or with others.
///
/// # Errors
/// As [`steps::commit`](super::steps::commit).
pub(super) fn commit(core: &Core, change: TableChange, rows: Vec<RecordBatch>) -> Result<()> {
    let small = Arc::new(Small {
        change,
        rows,
        stage: Mutex::new(Stage::Waiting),
        moved_on: Condvar::new(),
    });
    let target = (small.change.table, small.change.name.clone());
    let is_first = match core.small_commits.waiting.lock().entry(target.clone()) {
        Entry::Occupied(mut waiting) => {
            waiting.get_mut().push(Arc::clone(&small));
            false
        }
        Entry::Vacant(nobody) => nobody.insert(Vec::new()).is_empty(),
    };
    let ended = match is_first {
        true => None,
        false => small.wait(),
    };
    let committed = ended.unwrap_or_else(|| {
        let commits = &core.small_commits;
        core.lead(Lead { commits, target }, Arc::clone(&small));
        small.wait().expect("who has led is done")
    });
    core.settle_refused(committed)
}

impl Core {
    /// Commits a change and those that wait beside it; all of them have ended then.
    fn lead(&self, lead: Lead<'_>, first: Arc<Small>) {
        let mut members = Company(vec![first]);
        let (_, name) = &lead.target;
        let editing = match self.head_table(name) {
            Ok(present) => present.map(|table| table.editing),
            Err(error) => return members.0.remove(0).end(Err(error)),
        };
        let held = editing.as_ref().map(|editing| editing.lock());
        members.0.extend(lead.company());
        let decided = self.decide_together(name, members);
        drop(held);
        // The next ones are made from it while it is written.
        drop(lead);
        for Together { decided, members } in decided {
            let failure = self.wait(decided).err().map(|error| match error {
                StorageError::NeedsReopening { what } => what,
                other => other.to_string(),
            });
            members.end(|| match failure.clone() {
                None => Ok(()),
                Some(what) => Err(StorageError::NeedsReopening { what }),
            });
        }
    }

    /// Decides on changes of a table, in one edit if that can be.
    fn decide_together(&self, name: &ObjectName, mut members: Company) -> Vec<Together> {
        let error = match self.decide_on(name, &mut members.0) {
            Ok(None) => return Vec::new(),
            Ok(Some(decided)) => return vec![Together { decided, members }],
            Err(error) => error,
        };
        if let [_] = members.0.as_slice() {
            members.0.remove(0).end(Err(error));
            return Vec::new();
        }
        // Whose fault it is shows when they are alone.
        let alone = mem::take(&mut members.0).into_iter();
        alone
            .flat_map(|member| self.decide_together(name, Company(vec![member])))
            .collect()
    }

    /// Decides on one edit for all changes but those that are refused, which go from `members`;
    /// `None` when none is left.
    ///
    /// # Errors
    /// Those of the rest: nothing has changed then.
    fn decide_on(
        &self,
        name: &ObjectName,
        members: &mut Vec<Arc<Small>>,
    ) -> Result<Option<Decided>> {
        loop {
            let present = self.head_table(name)?;
            let mut deleted = BTreeMap::new();
            members.retain(|member| {
                let fits = member.change.delete_besides(present.as_ref(), &mut deleted);
                fits.map_err(|error| member.end(Err(error))).is_ok()
            });
            let (Some(present), [first, ..]) = (&present, members.as_slice()) else {
                return Ok(None);
            };
            let rows = members.iter().flat_map(|member| &member.rows);
            let mut change = self.written_together(present, &first.change, rows)?;
            change.deleted = deleted;
            let mut edit = TableEdit::default();
            change.add_to(&mut edit, Some(present))?;
            // The pages first; only then may the manifest name them.
            self.store().sync()?;
            let decided = self.decide(edit);
            if let Ok(None) = &decided {
                continue;
            }
            let reservations = change.reservations.into_iter();
            let reservations = reservations.chain(change.parts.into_reservations());
            return settle(decided, reservations);
        }
    }

    /// A change like `first` of these rows, written as one segment; nothing is deleted yet.
    pub(super) fn written_together<'a>(
        &self,
        present: &TableState,
        first: &TableChange,
        rows: impl Iterator<Item = &'a RecordBatch>,
    ) -> Result<TableChange> {
        let snapshot = &present.snapshot;
        let layout = Layout {
            table: snapshot.id,
            generation: self.generation()?,
            next_segment: Arc::clone(&present.next_segment),
            labels: Arc::clone(&present.labels),
            rows: snapshot.layout,
            buckets: snapshot.distribution.as_ref().map(Buckets::new),
        };
        let (mut written, mut reservations) = (Vec::new(), Vec::new());
        let mut rows = rows.peekable();
        if rows.peek().is_some() {
            let buckets = layout.buckets.as_ref();
            let buckets = buckets.map_or(1, |buckets| buckets.distribution.buckets());
            let mut pages = self.store().small_writer_of(buckets.into())?;
            let batch = concat_batches(&first.schema, rows)?;
            layout.write(&batch, &mut pages, &mut |segment| written.push(segment))?;
            reservations.push(Unnamed::new(pages.finish()?));
        }
        Ok(TableChange {
            name: first.name.clone(),
            table: first.table,
            schema: Arc::clone(&first.schema),
            redefinitions: first.redefinitions,
            next_segment: Arc::clone(&layout.next_segment),
            kind: ChangeKind::Keep,
            written,
            deleted: BTreeMap::new(),
            reservations,
            parts: NewParts::new(PartBuilder::new(
                self,
                layout.table,
                snapshot.name.clone(),
                &first.schema,
                &layout.next_segment,
                layout.generation,
            )),
        })
    }
}
