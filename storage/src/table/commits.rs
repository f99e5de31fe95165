//! Commits: how an edit becomes durable and visible.
//!
//! An edit is decided on in memory, under a lock, against the *head*: the state with all edits that
//! were decided on before it. Its record goes to the log ([`super::commit_log`]); the first who waits for
//! one writes and syncs those of all who have come by then (group commit), then readers see them,
//! in order. Pages of small commits are in the log too, and in memory
//! ([`crate::store::MEMORY_CARD`]). Now and then, when the log is full or the database is closed, a
//! checkpoint writes the pages that are left to the card and has the catalog take over all edits,
//! in one transaction; then the log begins anew.
//!
//! This is Willow's Append (section 4.6) for commits: a client appends where the device says, and a
//! length decides what is there.

use std::collections::{HashMap, HashSet};
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use prost::Message;

use crate::flash::{FlashPage, PageBuffer};
use crate::page::PageIdentity;
use crate::segment::{TableId, Unnamed, without_blank_end};
use crate::store::{MEMORY_CARD, MEMORY_MAX_BYTES, PageAddress, PageRun};
use crate::table::Function;
use crate::table::collection::Victims;
use crate::table::commit_log::{self, Found, Log, LogRecord, LoggedPage, Numbers};
use crate::table::database::Core;
use crate::table::edit::{MovePages, ObjectName, Operation, Owner, TableEdit};
use crate::table::history::{self, History, now_us};
use crate::table::state::{Change, State, TableState};
use crate::{Result, StorageError};

/// The way of commits to the log and to readers.
#[derive(Debug)]
pub(super) struct Commits {
    head: Mutex<Head>,
    /// Something was written, or has failed.
    progress: Condvar,
    log: Log,
    /// Runs that could not be moved as they can't be read: they are not tried again.
    unreadable: Mutex<HashSet<PageIdentity>>,
}

/// What was decided.
#[derive(Debug)]
struct Head {
    state: State,
    /// The past of tables as the catalog has it.
    past: HashMap<TableId, History>,
    /// When the last version was committed of a table that keeps its past: microseconds since 1970.
    time_us: u64,
    /// What the log has and the catalog has not, in order.
    unapplied: Vec<Arc<TableEdit>>,
    /// Records that are not written yet, and where they go.
    records: Vec<u8>,
    /// Nothing, with room for the next ones: those of each group take as much as those of the one before,
    /// and memory of that size is mapped and cleared by the system each time that it is asked for.
    spare: Vec<u8>,
    place: u64,
    /// Their edits, and what these make of the state.
    waiting: Vec<(Arc<TableEdit>, Change)>,
    /// Number of the last edit.
    last: u64,
    /// Number of the last one that is durable, and that readers see.
    durable: u64,
    is_writing: bool,
    /// A checkpoint waits for what was decided on; nothing more is, until it is done.
    is_closing: bool,
    /// Who gives pages back that newer versions do not have.
    releasing: usize,
    /// What was left of pages in memory by the last checkpoint: readers and transactions hold them.
    memory_bytes: u64,
    /// Number of this opening, once there was a commit.
    opening: Option<u64>,
    /// Why nothing can be committed any more.
    failure: Option<String>,
}

/// What is kept for the records of the next group at most.
const SPARE_MAX_BYTES: usize = 1 << 20;

/// What is done with the state that an edit made.
type Hold<'a> = &'a dyn Fn(&State);

/// The number of an edit that was decided on.
#[derive(Debug, Clone, Copy)]
#[must_use = "it is not durable yet"]
pub(super) struct Decided(u64);

impl Commits {
    /// Goes on from a state to which the edits were applied that the log was found to have; `past` is
    /// what the catalog has of the past of tables.
    pub fn new(state: State, past: HashMap<TableId, History>, log: Log, found: Found) -> Self {
        let edits = found.records.into_iter();
        let edits = edits.map(|record| Arc::new(record.edit));
        Self {
            head: Mutex::new(Head {
                time_us: state.last_time_us(),
                state,
                past,
                unapplied: edits.collect(),
                records: Vec::new(),
                spare: Vec::new(),
                place: found.end,
                waiting: Vec::new(),
                last: found.last,
                durable: found.last,
                is_writing: false,
                is_closing: false,
                releasing: 0,
                memory_bytes: 0,
                opening: None,
                failure: None,
            }),
            progress: Condvar::new(),
            log,
            unreadable: Mutex::default(),
        }
    }

    /// Why nothing can be committed any more; `None` where it is not known right now, too.
    pub fn failure(&self) -> Option<String> {
        self.head.try_lock()?.failure.clone()
    }
}

impl Head {
    /// When a version is committed, if the clock says `now_us`: after all that were before it, even
    /// where the clock has gone back.
    fn next_time(&mut self, now_us: u64) -> u64 {
        self.time_us = now_us.max(self.time_us + 1);
        self.time_us
    }

    fn check(&self) -> Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(why) => Err(StorageError::NeedsReopening { what: why.clone() }),
        }
    }

    /// That nothing can be committed any more, where that is the error.
    fn note<T>(&mut self, done: &Result<T>) {
        if let Err(StorageError::NeedsReopening { what }) = done {
            self.failure.get_or_insert_with(|| what.clone());
        }
    }
}

/// What `work` gives. Where it panics, nobody knows how far it came; those who wait for it are to
/// hear of that.
///
/// # Errors
/// Its own; `NeedsReopening` where it panics.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(StorageError::NeedsReopening {
            what: "a thread panicked while it wrote commits".into(),
        })
    })
}

impl Core {
    /// Applies an edit durably, and to the state that readers see; FALSE when the edit is to be
    /// made again, as a table is no more at the version that it was made from.
    ///
    /// # Errors
    /// Those of preconditions that do not hold; `Full`, `Io`; `NeedsReopening`. After any but the
    /// last nothing has changed.
    pub(super) fn commit(&self, edit: TableEdit) -> Result<bool> {
        match self.decide(edit)? {
            Some(decided) => self.wait(decided).map(|()| true),
            None => Ok(false),
        }
    }

    /// The same of an edit that was made while `editing` was held: others who change the table wait
    /// until it is decided on, not until it is durable.
    ///
    /// # Errors
    /// As [`Core::commit`].
    pub(super) fn commit_made_under(
        &self,
        editing: MutexGuard<'_, ()>,
        edit: TableEdit,
    ) -> Result<bool> {
        match self.decide(edit)? {
            Some(decided) => {
                drop(editing);
                self.wait(decided).map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// Decides on an edit, so that the next one can be made from it; `None` when it is to be made
    /// again. It is durable, and readers see it, after [`Core::wait`].
    ///
    /// # Errors
    /// As [`Core::commit`].
    pub(super) fn decide(&self, edit: TableEdit) -> Result<Option<Decided>> {
        self.decide_and(edit, &|_| ())
    }

    /// The same; `hold` is shown the state with the edit before anything can come after it: what the
    /// edit brought to it may be moved or go in the very next moment.
    ///
    /// # Errors
    /// As [`Core::commit`].
    pub(super) fn decide_and(&self, edit: TableEdit, hold: Hold<'_>) -> Result<Option<Decided>> {
        self.check_writable()?;
        let mut record = self.log_record(edit);
        let keeps_history = record.edit.keeps_history();
        if keeps_history {
            // It takes as many bytes as the time that it gets in the end.
            record.edit.set_time(now_us());
        }
        let mut message = record.encode_to_vec();
        let bytes = commit_log::framed_bytes(&message);
        let capacity = self.commits.log.capacity();
        // Earlier builds read the log: they must not take a database for one without accounts.
        let is_long = bytes > capacity / 4 || record.edit.puts_accounts();
        let mut head = self.commits.head.lock();
        // Generations only grow, over openings too.
        let opening = match head.opening {
            Some(opening) => opening,
            None => *head.opening.insert(self.next_generation()?.into()),
        };
        loop {
            head.check()?;
            if head.is_closing {
                self.commits.progress.wait(&mut head);
                continue;
            }
            if !head.state.allows(&record.edit)? {
                // Those who make edits from what readers see find it there now.
                let last = head.last;
                self.wait_for(&mut head, last)?;
                return Ok(None);
            }
            let end = head.place + head.records.len() as u64 + bytes;
            let in_memory = self.store().memory_bytes();
            let is_due = is_long
                || end > capacity
                || in_memory > head.memory_bytes + MEMORY_MAX_BYTES / 2
                || self.commits.log.make_room(end).is_err();
            if is_due {
                let alone = match is_long {
                    true => Err(None),
                    false => self.checkpoint_alone(&mut head, None).map_err(Some),
                };
                match alone {
                    Ok(_) if head.state.allows(&record.edit)? => {}
                    Ok(_) => return Ok(None),
                    // It is too much for the log, or what it frees is what is missing.
                    Err(None | Some(StorageError::Full { .. })) => {
                        let more = Some((&record.edit, hold));
                        let is_done = self.checkpoint_alone(&mut head, more)?;
                        return Ok(is_done.then_some(Decided(head.last)));
                    }
                    Err(Some(error)) => return Err(error),
                }
                let bytes = head.place + head.records.len() as u64 + bytes;
                self.commits.log.make_room(bytes)?;
            }
            if keeps_history {
                record.edit.set_time(head.next_time(now_us()));
                message = record.encode_to_vec();
            }
            let edit = &record.edit;
            let change = head.state.change(edit)?;
            drop(head.state.install(edit, change.clone()));
            hold(&head.state);
            head.last += 1;
            let numbers = Numbers {
                record: head.last,
                durable: head.durable,
                opening,
            };
            commit_log::frame(&message, numbers, &mut head.records);
            let edit = Arc::new(record.edit);
            head.unapplied.push(Arc::clone(&edit));
            head.waiting.push((edit, change));
            return Ok(Some(Decided(numbers.record)));
        }
    }

    /// Waits for what was decided on, lets nothing more come, and does a checkpoint; FALSE when
    /// `more` is to be made again.
    fn checkpoint_alone(
        &self,
        head: &mut MutexGuard<'_, Head>,
        more: Option<(&TableEdit, Hold<'_>)>,
    ) -> Result<bool> {
        self.alone(head, |head| {
            let is_allowed = more.map_or(Ok(true), |(edit, _)| head.state.allows(edit))?;
            if is_allowed {
                self.checkpoint(head, more, &Victims::default())?;
            }
            Ok(is_allowed)
        })
    }

    /// Waits for what was decided on, and does something while nothing more comes.
    fn alone<T>(
        &self,
        head: &mut MutexGuard<'_, Head>,
        work: impl FnOnce(&mut MutexGuard<'_, Head>) -> Result<T>,
    ) -> Result<T> {
        while head.is_closing {
            self.commits.progress.wait(head);
        }
        head.is_closing = true;
        let last = head.last;
        let done = caught(|| {
            head.check()?;
            self.wait_for(head, last)?;
            work(head)
        });
        head.is_closing = false;
        head.note(&done);
        self.commits.progress.notify_all();
        done
    }

    /// Runs that can't be moved, for all that is known.
    pub(super) fn unreadable(&self) -> MutexGuard<'_, HashSet<PageIdentity>> {
        self.commits.unreadable.lock()
    }

    /// Does a checkpoint that moves the runs of pages which `choose` names of the state; FALSE when
    /// it names none.
    pub(super) fn move_pages(&self, choose: impl FnOnce(&State) -> Victims) -> Result<bool> {
        let mut head = self.commits.head.lock();
        head.check()?;
        self.alone(&mut head, |head| {
            // What nobody has any more would pass for a reader's.
            while head.releasing > 0 {
                self.commits.progress.wait(head);
            }
            let victims = choose(&head.state);
            if !victims.is_empty() {
                self.checkpoint(head, None, &victims)?;
            }
            Ok(!victims.is_empty())
        })
    }

    /// After a refusal, waits until readers see all that was decided on: what refused it is seen by
    /// whoever tries again.
    ///
    /// # Errors
    /// That of `committed`; `NeedsReopening`.
    pub(super) fn settle_refused(&self, committed: Result<()>) -> Result<()> {
        if let Err(
            StorageError::Conflict { .. }
            | StorageError::DuplicateKey { .. }
            | StorageError::AlreadyExists { .. }
            | StorageError::NotFound { .. },
        ) = &committed
        {
            let mut head = self.commits.head.lock();
            let last = head.last;
            self.wait_for(&mut head, last)?;
        }
        committed
    }

    /// Waits until an edit is durable and readers see it.
    ///
    /// # Errors
    /// `NeedsReopening`.
    pub(super) fn wait(&self, decided: Decided) -> Result<()> {
        let mut head = self.commits.head.lock();
        self.wait_for(&mut head, decided.0)
    }

    /// Has readers see what was decided on by now, and lets nothing later be of `time_us` or before:
    /// who asks what was there then gets the same answer each time.
    ///
    /// # Errors
    /// `NeedsReopening`.
    pub(super) fn settle_until(&self, time_us: u64) -> Result<()> {
        let mut head = self.commits.head.lock();
        head.time_us = head.time_us.max(time_us.min(now_us()));
        let last = head.last;
        self.wait_for(&mut head, last)
    }

    fn wait_for(&self, head: &mut MutexGuard<'_, Head>, number: u64) -> Result<()> {
        while head.durable < number {
            head.check()?;
            match head.is_writing {
                true => self.commits.progress.wait(head),
                false => self.write_group(head),
            }
        }
        Ok(())
    }

    /// Writes the records of all edits that wait, and shows these to readers.
    fn write_group(&self, head: &mut MutexGuard<'_, Head>) {
        let spare = mem::take(&mut head.spare);
        let mut records = mem::replace(&mut head.records, spare);
        let group = mem::take(&mut head.waiting);
        let (place, last) = (head.place, head.last);
        head.place += records.len() as u64;
        head.is_writing = true;
        let log = &self.commits.log;
        let write = || {
            log.write(place, &records)?;
            let mut state = self.state.write();
            let shown = group.into_iter();
            Ok(shown
                .map(|(edit, change)| state.install(&edit, change))
                .collect::<Vec<_>>())
        };
        let retired = MutexGuard::unlocked(head, || caught(write));
        head.is_writing = false;
        if records.capacity() <= SPARE_MAX_BYTES {
            records.clear();
            head.spare = records;
        }
        match retired {
            Ok(retired) => {
                head.durable = last;
                self.commits.progress.notify_all();
                self.upkeep.wake();
                // Erasing keeps nobody waiting.
                head.releasing += 1;
                let release = || {
                    let retired = retired.into_iter();
                    retired.for_each(|retired| retired.release(self.store()));
                    Ok(())
                };
                let released = MutexGuard::unlocked(head, || caught(release));
                head.releasing -= 1;
                head.note(&released);
                self.commits.progress.notify_all();
            }
            Err(error) => {
                head.failure = Some(match error {
                    StorageError::NeedsReopening { what } => what,
                    error => error.to_string(),
                });
                self.commits.progress.notify_all();
            }
        }
    }

    /// The edit with the pages in memory that it names.
    fn log_record(&self, edit: TableEdit) -> LogRecord {
        let runs = commit_log::memory_runs(&edit);
        let numbers = runs.iter().flat_map(|(first, pages)| {
            let first = first.page.0;
            first..first + u64::from(*pages)
        });
        let pages = numbers.filter_map(|page| {
            let found = self.store().memory_page(page)?;
            Some(LoggedPage {
                page,
                bytes: without_blank_end(&found.bytes()).to_vec(),
            })
        });
        let pages = pages.collect();
        LogRecord { edit, pages }
    }

    /// Has the catalog take over what the log holds, all of which readers see, and `more`, if it is
    /// too much for the log. What is in memory, and `victims`, are written to other places.
    fn checkpoint(
        &self,
        head: &mut Head,
        more: Option<(&TableEdit, Hold<'_>)>,
        victims: &Victims,
    ) -> Result<()> {
        let mut next = head.state.clone();
        let mut steps = Vec::new();
        if let Some((edit, hold)) = more {
            let mut edit = edit.clone();
            edit.set_time(head.next_time(now_us()));
            let change = next.change(&edit)?;
            drop(next.install(&edit, change.clone()));
            hold(&next);
            steps.push((edit, change));
        }
        let (moves, pages) = self.write_moved(&next, victims)?;
        let change = next.change(&moves)?;
        drop(next.install(&moves, change.clone()));
        steps.push((moves, change));
        self.store().sync()?;
        let last = head.last + u64::from(more.is_some());
        let edits = head
            .unapplied
            .iter()
            .map(AsRef::as_ref)
            .chain(steps.iter().map(|(edit, _)| edit));
        let past = next.past();
        let history = history::changes(&head.past, &past);
        let applied = caught(|| self.catalog.apply(edits, &history, last));
        if let Err(error) = applied {
            if let StorageError::NeedsReopening { what } = &error {
                pages.keep();
                head.failure = Some(what.clone());
                self.commits.progress.notify_all();
            }
            return Err(error);
        }
        pages.keep();
        head.state = next;
        head.past = past;
        head.unapplied.clear();
        (head.place, head.last, head.durable) = (0, last, last);
        if more.is_some() {
            self.mark_log(head);
        }
        let lies = |table: &TableState| table.snapshot.distribution.is_some();
        if head.state.tables.values().any(lies) {
            // What was in memory is on the first card now, and its bucket elsewhere.
            self.upkeep.relocation.look_again();
        }
        let retired: Vec<_> = {
            let mut state = self.state.write();
            let steps = steps.into_iter();
            steps
                .map(|(edit, change)| state.install(&edit, change))
                .collect()
        };
        self.upkeep.wake();
        retired
            .into_iter()
            .for_each(|retired| retired.release(self.store()));
        head.memory_bytes = self.store().memory_bytes();
        Ok(())
    }

    /// Begins the log with an empty record, as it lacks an edit that the catalog has: a catalog that
    /// damage takes back to the commit before can't pass for the last one beside it.
    fn mark_log(&self, head: &mut Head) {
        let Some(opening) = head.opening else {
            return;
        };
        let numbers = Numbers {
            record: head.last + 1,
            durable: head.last,
            opening,
        };
        let mut record = Vec::new();
        commit_log::frame(&LogRecord::default().encode_to_vec(), numbers, &mut record);
        match self.commits.log.write_unsynced(&record) {
            Ok(()) => {
                head.place = record.len() as u64;
                (head.last, head.durable) = (numbers.record, numbers.record);
            }
            // It goes without: only damage would be noticed later.
            Err(error) => log::warn!("{error}"),
        }
    }

    /// Writes the pages in memory that a state names, and `victims`, to the card, and gives the edit
    /// that says where they are.
    fn write_moved(&self, state: &State, victims: &Victims) -> Result<(TableEdit, Unnamed)> {
        let mut reader = self.store().reader()?;
        let mut writer = self.store().writer()?;
        writer.take_all();
        let mut edit = TableEdit::default();
        let mut write = |table: u32, owner: Owner, runs: Vec<&PageRun>| {
            let (mut from, mut to) = (Vec::new(), Vec::new());
            let mut on_card = false;
            for run in runs {
                let is_on_card = run.first.card != MEMORY_CARD;
                if !from.is_empty() && is_on_card != on_card {
                    return Err(StorageError::Invalid(format!(
                        "{}: a part of it is in memory and a part on the card",
                        run.label
                    )));
                }
                on_card = is_on_card;
                let mut pages = Vec::new();
                match reader.get_run(run, 0..run.count, &mut pages) {
                    // It stays where it is, for whoever wants to know what is wrong with it.
                    Err(error @ StorageError::Corrupt { .. }) if on_card => {
                        log::warn!("not moved: {error}");
                        self.commits.unreadable.lock().insert(run.identity);
                        continue;
                    }
                    read => read?,
                }
                let buffers = pages.iter().map(|page| {
                    let mut buffer = PageBuffer::recycled();
                    buffer.copy_from_slice(&page.bytes());
                    buffer
                });
                writer.stay_near(match victims.destination(run) {
                    Some((node, card)) => PageAddress {
                        node,
                        card,
                        page: FlashPage(0),
                    },
                    None => run.first,
                })?;
                let first = writer.append(buffers.collect())?;
                match on_card {
                    true => self.store().note_collected(first, run.count.into()),
                    // They were served from memory, and those of rows that were just changed are asked for
                    // most.
                    false => self.store().cache_written(first, pages),
                }
                from.push(run.first.number());
                to.push(first.number());
            }
            if !from.is_empty() {
                edit.push(Operation::MovePages(MovePages {
                    table,
                    owner: Some(owner),
                    from,
                    to,
                    on_card,
                }));
            }
            Ok::<_, StorageError>(())
        };
        for table in state.tables.values() {
            for (owner, runs) in table.owners() {
                let moved = |run: &&PageRun| run.first.card == MEMORY_CARD || victims.has(run);
                write(table.snapshot.id.0, owner, runs.filter(moved).collect())?;
            }
        }
        Ok((edit, Unnamed::new(writer.finish()?)))
    }

    /// Leaves nothing in the log.
    ///
    /// # Errors
    /// `ReadOnly`, `Full`, `Io`: then it stays as it was; `NeedsReopening`.
    pub(super) fn empty_log(&self) -> Result<()> {
        self.check_writable()?;
        let mut head = self.commits.head.lock();
        match head.unapplied.is_empty() {
            true => Ok(()),
            false => self.checkpoint_alone(&mut head, None).map(drop),
        }
    }

    /// Ends the writing: leaves nothing in the log, and of the log nothing.
    ///
    /// # Errors
    /// As [`Core::empty_log`].
    pub(super) fn close_log(&self) -> Result<()> {
        self.empty_log()?;
        match self.commits.head.lock().opening {
            Some(_) => self.commits.log.shrink(),
            None => Ok(()),
        }
    }

    /// A table as the next edit is made from it: readers may not see that version yet.
    ///
    /// # Errors
    /// As [`Core::find_table`]; `NeedsReopening`.
    pub(super) fn head_table(&self, name: &ObjectName) -> Result<Option<TableState>> {
        let head = self.commits.head.lock();
        head.check()?;
        self.find_table_in(&head.state, name)
    }

    /// All that was decided on.
    ///
    /// # Errors
    /// `NeedsReopening`.
    pub(super) fn head_state(&self) -> Result<State> {
        let head = self.commits.head.lock();
        head.check()?;
        Ok(head.state.clone())
    }

    /// The package of a version of a function, if it is there.
    pub(super) fn package(&self, function: &Function) -> Result<Option<Vec<u8>>> {
        let head = self.commits.head.lock();
        let edits = head.unapplied.iter();
        let operations = edits.flat_map(|edit| edit.operations());
        let package = operations
            .into_iter()
            .find_map(|operation| match operation {
                Operation::PutFunction(put)
                    if put.name == function.name && put.record.digest == function.digest =>
                {
                    Some(put.package.clone())
                }
                _ => None,
            });
        match package {
            Some(package) => Ok(Some(package)),
            None => self.catalog.package(&function.name),
        }
    }
}

/// Applies what the log holds to a state. Of a damaged table nothing is known any more, nor of those
/// that a commit changed together with it.
pub(super) fn replay(state: &mut State, found: &Found) {
    for record in &found.records {
        let edit = &record.edit;
        let is_known = |name: &ObjectName| !state.damaged.contains_key(name);
        let change = match edit.tables().all(is_known) {
            true => state.change(edit),
            false => Err(StorageError::corrupt(
                "a table of the same commit is damaged",
            )),
        };
        match change {
            Ok(change) => drop(state.install(edit, change)),
            Err(error) => {
                let what = format!("the log: {}", error.damage());
                for name in edit.tables() {
                    state.tables.remove(name);
                    let damaged = state.damaged.entry(name.clone());
                    damaged.or_insert_with(|| what.clone());
                }
            }
        }
    }
}
