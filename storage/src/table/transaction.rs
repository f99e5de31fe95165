//! Transactions: several statements over several tables, one commit.
//!
//! A transaction has a state of its own, a copy of the database's (which shares all that it
//! describes) as it was when the transaction began. Its statements change that state by the edits
//! that a commit would be made of, and see it; others see nothing of it. To commit, what follows each
//! other on a table becomes one [`Step`], and what came and went again none; the steps are made anew
//! over the present state, and all of them become one edit. So a transaction sees one version of the
//! database (snapshot isolation); of two that change the same row, the second to commit is refused.
//! A serialisable one is also refused where a table that it has read was changed since.
//!
//! This is Willow's Atomic-Write (section 4.3) over tables: log-write is a statement, commit and
//! abort are what they are there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::Schema;
use parking_lot::Mutex;

use crate::index::{Index, IndexDefinition, IndexPart};
use crate::segment::TableId;
use crate::table::change::{self, ChangeKind, TableChange};
use crate::table::database::{
    columns_redefined, schema_created, schema_dropped, table_dropped, table_renamed,
};
use crate::table::edit::{ObjectName, TableEdit};
use crate::table::indexing::{NewParts, index_created};
use crate::table::load::{Load, LoadTarget};
use crate::table::state::{State, TableState, not_found};
use crate::table::steps::{self, Step};
use crate::table::temporary::names::Temporary;
use crate::table::{Check, Database, TableSnapshot, View, views};
use crate::{Result, StorageError};

/// What a transaction is kept from seeing of others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// It sees the version at which it began, and is refused where others have changed the same
    /// rows.
    #[default]
    Snapshot,
    /// It is also refused where others have changed a table that it has read.
    Serializable,
}

/// Savepoints of a transaction: each keeps a copy of the list of tables.
const MAX_SAVEPOINTS: usize = 1000;

/// Versions of tables in a transaction have numbers from here on: no other version has them.
const PRIVATE_VERSIONS: u64 = 1 << 63;

/// What was read, by its name.
type Reads = BTreeMap<ObjectName, Arc<TableSnapshot>>;

/// A transaction in progress.
#[derive(Debug)]
pub(super) struct Transaction {
    /// Which it is of the process.
    number: u64,
    isolation: Isolation,
    read_only: bool,
    database: Arc<Database>,
    base: State,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct Progress {
    state: State,
    /// What each statement did, in order.
    steps: Vec<Step>,
    /// Of the last steps, those to which what comes next may be added.
    runs: Vec<Run>,
    savepoints: Vec<Savepoint>,
    reads: Reads,
    /// Statements that still run come too late.
    has_ended: bool,
}

/// A step that brings few rows to a table and does nothing else. Each statement of a script may bring one
/// row: they become fewer steps, each of more rows than the next of its table, so that a row is written anew
/// a logarithmic number of times, and a table has as few segments of them. Steps behind the first run are
/// runs, too, so that none depends on what one of another table does.
#[derive(Debug)]
struct Run {
    /// The place of the step.
    step: usize,
    table: TableId,
    /// Its table without it, and without what came to that later.
    before: TableState,
    rows: RecordBatch,
}

/// Rows of a run that takes no more.
const RUN_ROWS: usize = 1 << 16;
/// Bytes of it.
const RUN_BYTES: usize = 8 << 20;

#[derive(Debug)]
struct Savepoint {
    name: String,
    state: State,
    steps: usize,
}

impl Transaction {
    fn begin(database: &Arc<Database>, isolation: Isolation, read_only: bool) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let base = database.state.read().clone();
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            isolation,
            read_only,
            database: Arc::clone(database),
            progress: Mutex::new(Progress {
                state: base.clone(),
                steps: Vec::new(),
                runs: Vec::new(),
                savepoints: Vec::new(),
                reads: Reads::new(),
                has_ended: false,
            }),
            base,
        }
    }

    /// Checks what the transaction sees.
    pub fn check(&self, that: impl FnOnce(&State) -> Result<()>) -> Result<()> {
        that(&self.progress.lock().state)
    }

    /// A table as the transaction sees it.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn table_state(&self, schema: &str, table: &str) -> Result<TableState> {
        let name = ObjectName::new(schema, table);
        let found = self.progress.lock().state.tables.get(&name).cloned();
        found.ok_or_else(|| not_found("table", &name))
    }

    fn snapshots(
        &self,
        names: impl Iterator<Item = ObjectName>,
    ) -> Vec<Option<Arc<TableSnapshot>>> {
        let progress = &mut *self.progress.lock();
        let seen = names.map(|name| {
            let table = progress.state.tables.get(&name)?;
            if self.isolation == Isolation::Serializable
                && let Some((name, before)) = self.table_before(table.snapshot.id)
            {
                progress
                    .reads
                    .insert(name.clone(), Arc::clone(&before.snapshot));
            }
            Some(Arc::clone(&table.snapshot))
        });
        seen.collect()
    }

    /// Takes what a statement did.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `DuplicateKey` among what the transaction sees; `Invalid` in one
    /// that only reads.
    pub fn stage(&self, mut step: Step) -> Result<()> {
        let progress = &mut *self.progress.lock();
        self.check_writable(progress)?;
        let name = step.table().map(|(name, _)| name.clone());
        let name = name.unwrap_or_default();
        let present = progress.state.tables.get(&name).cloned();
        progress.apply(&mut step, present.as_ref())?;
        progress.runs.clear();
        if let Step::Rows(change) = &mut step {
            let before = |table| Some(Arc::clone(&self.table_before(table)?.1.snapshot));
            match &mut change.kind {
                // Rows that others add meanwhile were not seen, and shall not go.
                ChangeKind::Overwrite { only } | ChangeKind::Redefine { only, .. } => {
                    *only = before(change.table);
                }
                // Whatever others see of that name then, it must be what the transaction saw.
                ChangeKind::Create { replaces, .. } => {
                    *replaces = false;
                    progress
                        .steps
                        .extend(present.map(|present| Step::DropTable {
                            name,
                            table: present.snapshot.id,
                            only: None,
                        }));
                }
                ChangeKind::Keep => {}
            }
        }
        progress.steps.push(step);
        Ok(())
    }

    /// Takes a change of a table of which these few rows come.
    ///
    /// # Errors
    /// As [`Transaction::stage`].
    pub fn stage_few(&self, mut change: TableChange, rows: &[RecordBatch]) -> Result<()> {
        let name = change.name.clone();
        let is_run = change.deleted.is_empty() && !rows.is_empty();
        let mut locked = self.progress.lock();
        let progress = &mut *locked;
        self.check_writable(progress)?;
        let present = progress.state.tables.get(&name).cloned();
        let present = present.filter(|present| present.snapshot.id == change.table);
        let present = present.ok_or_else(|| not_found("table", &name))?;
        if !is_run {
            let deleted = mem::take(&mut change.deleted);
            change = self
                .database
                .written_together(&present, &change, rows.iter())?;
            change.deleted = deleted;
            drop(locked);
            return self.stage(Step::Rows(Box::new(change)));
        }
        // Its last runs that are no larger than what comes after them.
        let mut count: usize = rows.iter().map(RecordBatch::num_rows).sum();
        let mut runs = Vec::new();
        for (place, run) in progress.runs.iter().enumerate().rev() {
            if run.table != change.table {
                continue;
            }
            if run.rows.num_rows() > count {
                break;
            }
            count += run.rows.num_rows();
            runs.push(place);
        }
        let earlier = runs.iter().rev().map(|place| &progress.runs[*place]);
        let first = earlier.clone().next();
        let before = first.map_or(&present, |run| &run.before).clone();
        let together = earlier.map(|run| &run.rows).chain(rows);
        let together = concat_batches(&change.schema, together)?;
        let written = [&together].into_iter();
        let change = self.database.written_together(&before, &change, written)?;
        let mut step = Step::Rows(Box::new(change));
        progress.state.tables.insert(name.clone(), before.clone());
        if let Err(error) = progress.apply(&mut step, Some(&before)) {
            progress.state.tables.insert(name, present);
            return Err(error);
        }
        for place in runs {
            let gone = progress.runs.remove(place).step;
            // Pages go with the last statement that reads them.
            drop(progress.steps.remove(gone));
            let later = progress.runs.iter_mut().filter(|run| run.step > gone);
            later.for_each(|run| run.step -= 1);
        }
        let table = before.snapshot.id;
        match count < RUN_ROWS && together.get_array_memory_size() < RUN_BYTES {
            true => progress.runs.push(Run {
                step: progress.steps.len(),
                table,
                before,
                rows: together,
            }),
            // What stands before it can't be had without it.
            false => progress.runs.retain(|run| run.table != table),
        }
        progress.steps.push(step);
        Ok(())
    }

    fn check_writable(&self, progress: &Progress) -> Result<()> {
        if self.read_only {
            return Err(StorageError::Invalid(
                "the transaction is READ ONLY; begin another one to write".into(),
            ));
        }
        if progress.has_ended {
            return Err(StorageError::Invalid(
                "the transaction of this statement has ended before it".into(),
            ));
        }
        Ok(())
    }

    /// The name and the state of a table when the transaction began.
    fn table_before(&self, table: TableId) -> Option<(&ObjectName, &TableState)> {
        let mut tables = self.base.tables.iter();
        tables.find(|(_, state)| state.snapshot.id == table)
    }

    /// [`TableChange::redefinitions`] of rows that are written to a table as it is now in the
    /// transaction: `None` where that has made or redefined it itself. What others do to it meanwhile has
    /// no part in this; that is found at commit.
    pub fn redefinitions_of(&self, table: &TableState) -> Option<u32> {
        let (_, before) = self.table_before(table.snapshot.id)?;
        let own = table.record.redefinitions;
        (before.record.redefinitions == own).then_some(own)
    }

    fn commit(&self) -> Result<()> {
        let (steps, reads) = {
            let progress = &mut *self.progress.lock();
            progress.has_ended = true;
            progress.savepoints.clear();
            let steps = mem::take(&mut progress.steps);
            (steps, mem::take(&mut progress.reads))
        };
        let name_before = |table| Some(self.table_before(table)?.0.clone());
        let steps = steps::merged(steps, name_before)?;
        if steps.is_empty() {
            // It has seen one version of the database, and changed nothing.
            return Ok(());
        }
        let changed: Vec<_> = {
            let state = &self.progress.lock().state;
            let changed = steps.iter().filter_map(|step| {
                let (_, id) = step.table()?;
                let mut tables = state.tables.iter();
                let (name, own) = tables.find(|(_, own)| own.snapshot.id == id)?;
                let rows = step.rows().map_or(0, TableChange::rows);
                Some((name.clone(), Arc::clone(&own.snapshot), rows))
            });
            changed.collect()
        };
        steps::commit_and(
            &self.database,
            steps,
            |edit| self.check_reads(&reads, edit),
            |committed| {
                for (name, own, _) in &changed {
                    hold_committed(own, committed.tables.get(name));
                }
            },
        )?;
        for (name, _, rows) in changed {
            self.database.cover_load(&name, rows);
        }
        Ok(())
    }

    /// What was read must be as it was.
    fn check_reads(&self, reads: &Reads, edit: &mut TableEdit) -> Result<()> {
        for (name, version) in reads {
            let present = self.database.head_table(name)?;
            let present = present.filter(|present| present.snapshot.has_rows_of(version));
            let present = present.ok_or_else(|| change::conflict(name))?;
            edit.require(present.version());
        }
        Ok(())
    }

    fn savepoint(&self, name: &str) -> Result<()> {
        let progress = &mut *self.progress.lock();
        if progress.savepoints.len() >= MAX_SAVEPOINTS {
            return Err(StorageError::Invalid(format!(
                "a transaction has {MAX_SAVEPOINTS} savepoints at most; RELEASE some"
            )));
        }
        // What comes next must be undone without what was there.
        progress.runs.clear();
        progress.savepoints.push(Savepoint {
            name: name.into(),
            state: progress.state.clone(),
            steps: progress.steps.len(),
        });
        Ok(())
    }

    /// Undoes what was done since a savepoint, which stays.
    fn rollback_to(&self, name: &str) -> Result<()> {
        let progress = &mut *self.progress.lock();
        let place = progress.place_of(name)?;
        let Savepoint { state, steps, .. } = &progress.savepoints[place];
        let (state, steps) = (state.clone(), *steps);
        let undone = mem::replace(&mut progress.state, state);
        // Pages go with the last statement that reads them.
        drop((undone, progress.steps.split_off(steps)));
        progress.runs.clear();
        progress.savepoints.truncate(place + 1);
        Ok(())
    }

    fn release(&self, name: &str) -> Result<()> {
        let progress = &mut *self.progress.lock();
        let place = progress.place_of(name)?;
        progress.savepoints.truncate(place);
        Ok(())
    }
}

/// Statements that still read what the transaction wrote of a table hold what is committed for it. The
/// commit has to do this: once others see the table, a checkpoint may move pages of it, a compaction or
/// an overwriting may retire them, and nothing leads to those that the statements read any more.
fn hold_committed(own: &TableSnapshot, committed: Option<&TableState>) {
    let committed = committed.map(|committed| &committed.snapshot);
    let Some(committed) = committed.filter(|committed| committed.id == own.id) else {
        return;
    };
    let of_own: HashMap<_, _> = own.segments.iter().map(|s| (s.id, s)).collect();
    for segment in &committed.segments {
        if let Some(own) = of_own.get(&segment.id) {
            own.hold_committed(segment);
        }
    }
    let parts_of = |table: &TableSnapshot| -> Vec<Arc<IndexPart>> {
        let indexes = table.indexes.iter();
        indexes.flat_map(|index| index.parts.clone()).collect()
    };
    let of_own: HashMap<_, _> = parts_of(own).into_iter().map(|p| (p.id, p)).collect();
    for part in parts_of(committed) {
        if let Some(own) = of_own.get(&part.id).filter(|own| !Arc::ptr_eq(own, &part)) {
            let _ = own.committed.set(part);
        }
    }
}

/// Statements that read what a step has written go on to their end, whatever becomes of it.
fn hold_pages(table: &TableSnapshot, step: &Step) {
    if let Some(change) = step.rows() {
        let written: HashSet<_> = change.written.iter().map(|w| w.segment.id).collect();
        let new = table.segments.iter().filter(|s| written.contains(&s.id));
        new.for_each(|segment| segment.hold(&change.reservations));
    }
    let published: HashMap<_, _> = step
        .parts()
        .into_iter()
        .flat_map(NewParts::published)
        .collect();
    for part in table.indexes.iter().flat_map(|index| &index.parts) {
        if let Some(pages) = published.get(&part.id) {
            let _ = part.unnamed.set((*pages).clone());
        }
    }
}

impl Progress {
    /// Applies a step to the state; after an error that is as it was.
    fn apply(&mut self, step: &mut Step, present: Option<&TableState>) -> Result<()> {
        static VERSIONS: AtomicU64 = AtomicU64::new(PRIVATE_VERSIONS);
        let mut edit = step.edit(present)?;
        edit.set_version(VERSIONS.fetch_add(1, Ordering::Relaxed));
        if !self.state.allows(&edit)? {
            let name = step.table().map(|(name, _)| name.clone());
            return Err(change::conflict(&name.unwrap_or_default()));
        }
        steps::apply(&mut self.state, step, &edit)?;
        if let Some((_, id)) = step.table()
            && let Some(table) = self.state.tables.values().find(|t| t.snapshot.id == id)
        {
            hold_pages(&table.snapshot, step);
        }
        Ok(())
    }

    fn place_of(&self, savepoint: &str) -> Result<usize> {
        let place = self.savepoints.iter().rposition(|s| s.name == savepoint);
        place.ok_or_else(|| StorageError::NotFound {
            kind: "savepoint",
            name: savepoint.into(),
        })
    }
}

/// What one session sees of a database and does to it: the present state, by commits of single
/// statements, or that of its transaction.
#[derive(Debug)]
pub struct Workspace {
    database: Arc<Database>,
    transaction: Mutex<Option<Arc<Transaction>>>,
    pub(super) temporary: Temporary,
}

impl Workspace {
    /// A session's, outside of a transaction.
    pub fn new(database: Arc<Database>) -> Self {
        Self {
            database,
            transaction: Mutex::default(),
            temporary: Temporary::default(),
        }
    }

    /// The database.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    fn transaction(&self) -> Option<Arc<Transaction>> {
        self.transaction.lock().clone()
    }

    /// Whether there is a transaction.
    pub fn is_in_transaction(&self) -> bool {
        self.transaction.lock().is_some()
    }

    /// A number of the transaction, if there is one, that no other one of the process has.
    pub fn transaction_number(&self) -> Option<u64> {
        let transaction = self.transaction.lock();
        transaction.as_ref().map(|transaction| transaction.number)
    }

    /// The versions of several tables that a statement sees, `None` for one that is not there:
    /// taken together, so that each commit is in all of them or in none.
    ///
    /// # Errors
    /// `Io` where another node may have committed since.
    pub fn snapshots<'a>(
        &self,
        names: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Result<Vec<Option<Arc<TableSnapshot>>>> {
        let Some(transaction) = self.transaction() else {
            return self.database.snapshots(names);
        };
        let names = names.into_iter();
        Ok(transaction.snapshots(names.map(|(schema, table)| ObjectName::new(schema, table))))
    }

    /// The version of a table that statements are planned by.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn snapshot(&self, schema: &str, table: &str) -> Result<Arc<TableSnapshot>> {
        self.table_state(schema, table).map(|table| table.snapshot)
    }

    /// Looks at the state that the session sees.
    fn look<R>(&self, at: impl FnOnce(&State) -> R) -> R {
        match self.transaction() {
            Some(transaction) => at(&transaction.progress.lock().state),
            None => at(&self.database.state.read()),
        }
    }

    /// Names of the schemas, sorted, without those of temporary tables.
    pub fn schemas(&self) -> Vec<String> {
        self.look(State::schemas)
    }

    /// Whether there is a schema of that name, also one of temporary tables.
    pub fn has_schema(&self, name: &str) -> bool {
        self.look(|state| state.check_schema(name).is_ok())
    }

    /// Names of the tables of a schema, sorted.
    pub fn tables(&self, schema: &str) -> Vec<String> {
        self.look(|state| state.tables_of(schema))
    }

    /// Names of the views of a schema, sorted.
    pub fn views(&self, schema: &str) -> Vec<String> {
        self.look(|state| state.views_of(schema))
    }

    /// A view, if there is one of that name.
    pub fn view(&self, schema: &str, name: &str) -> Option<Arc<View>> {
        let name = ObjectName::new(schema, name);
        self.look(|state| state.views.get(&name).cloned())
    }

    /// The index of that name in a schema, with its table's name and version.
    ///
    /// # Errors
    /// `NotFound`; `Io` where another node may have committed since.
    pub fn index(
        &self,
        schema: &str,
        name: &str,
    ) -> Result<(String, Arc<TableSnapshot>, Arc<Index>)> {
        let found = self.look(|state| {
            let (table, state, index) = state.index(schema, name)?;
            let snapshot = Arc::clone(&state.snapshot);
            Some((table.name.clone(), snapshot, Arc::clone(index)))
        });
        if !self.is_in_transaction() {
            self.database.check_current()?;
        }
        found.ok_or_else(|| StorageError::NotFound {
            kind: "index",
            name: name.into(),
        })
    }

    /// Starts a load, of the transaction if there is one.
    ///
    /// # Errors
    /// `ReadOnly`; those of [`Load`].
    pub fn begin_load(&self, target: LoadTarget) -> Result<Load> {
        self.database.check_writable()?;
        Load::begin(&self.database, self.transaction(), target)
    }

    /// Makes a schema.
    ///
    /// # Errors
    /// `AlreadyExists`, `ReadOnly`, `Full`, `Io`.
    pub fn create_schema(&self, name: &str) -> Result<()> {
        self.take(Step::Define(schema_created(name)))
    }

    /// Drops an empty schema.
    ///
    /// # Errors
    /// `NotFound`, `Invalid` for one that is not empty, `ReadOnly`, `Full`, `Io`.
    pub fn drop_schema(&self, name: &str) -> Result<()> {
        self.take(Step::Define(schema_dropped(name)))
    }

    /// Makes a view; with `or_replace` one of the same name goes.
    ///
    /// # Errors
    /// `AlreadyExists` (also for a table of that name), `NotFound` (the schema), `ReadOnly`,
    /// `Full`, `Io`.
    pub fn create_view(&self, view: View, or_replace: bool) -> Result<()> {
        self.take(Step::Define(views::created(&view, or_replace)))
    }

    /// Drops a view.
    ///
    /// # Errors
    /// `NotFound`, `ReadOnly`, `Full`, `Io`.
    pub fn drop_view(&self, schema: &str, name: &str) -> Result<()> {
        self.take(Step::Define(views::dropped(schema, name)))
    }

    pub(super) fn take(&self, step: Step) -> Result<()> {
        self.database.check_writable()?;
        match self.transaction() {
            Some(transaction) => transaction.stage(step),
            None => steps::commit(&self.database, vec![step]),
        }
    }

    pub(super) fn table_state(&self, schema: &str, table: &str) -> Result<TableState> {
        match self.transaction() {
            Some(transaction) => transaction.table_state(schema, table),
            None => self.database.table_state(schema, table),
        }
    }

    /// Drops a table. Readers that hold a snapshot finish undisturbed; its pages are free when the
    /// last of them is done.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` where it is another one by now; `ReadOnly`, `Full`, `Io`.
    pub fn drop_table(&self, schema: &str, table: &str) -> Result<()> {
        let present = self.table_state(schema, table)?;
        self.take(table_dropped(&present, schema, table))
    }

    /// Gives a table another name in its schema.
    ///
    /// # Errors
    /// As [`Workspace::drop_table`]; `AlreadyExists` for a table or a view.
    pub fn rename_table(&self, schema: &str, table: &str, to: &str) -> Result<()> {
        let present = self.table_state(schema, table)?;
        self.take(table_renamed(&present, schema, table, to))
    }

    /// Gives the columns of a table other names, defaults, or leave to be NULL, and the table its
    /// constraints in these names; their types and rows stay. `version` is the one that the columns were changed from.
    ///
    /// # Errors
    /// `Conflict` where the columns are others by now, or the table is gone; `Invalid` for other
    /// types; `ReadOnly`, `Full`, `Io`.
    pub fn redefine_columns(
        &self,
        version: &Arc<TableSnapshot>,
        columns: &Schema,
        defaults: &[Option<String>],
        checks: &[Check],
    ) -> Result<()> {
        self.take(columns_redefined(version, columns, defaults, checks)?)
    }

    /// Makes an index over a table. Its rows stay readable meanwhile; rows that other writers add
    /// before it is done are in it too, or, where it is not unique, in its tail.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `Invalid` (columns of a wrong type, an unknown option, two
    /// rows of one key in a unique index), `Conflict`, `ReadOnly`, `Full`, `Io`, `Corrupt`;
    /// `NeedsReopening`. After any but the last nothing has changed.
    pub fn create_index(
        &self,
        schema: &str,
        table: &str,
        definition: IndexDefinition,
    ) -> Result<()> {
        self.database.check_writable()?;
        let name = ObjectName::new(schema, table);
        let before = self.table_state(schema, table)?;
        self.look(|state| state.check_new_index(schema, &definition.name))?;
        self.take(index_created(&self.database, name, &before, definition)?)
    }

    /// Drops an index. Queries that use it end undisturbed.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a primary key, which goes with its table; `Conflict`, `ReadOnly`,
    /// `Full`, `Io`.
    pub fn drop_index(&self, schema: &str, name: &str) -> Result<()> {
        let (table, snapshot, _) = self.index(schema, name)?;
        self.take(Step::DropIndex {
            name: ObjectName::new(schema, &table),
            table: snapshot.id,
            index: name.into(),
        })
    }

    /// The database, for what is no part of a transaction, called `what`.
    ///
    /// # Errors
    /// `Invalid` in a transaction.
    pub fn outside_of_transaction(&self, what: &str) -> Result<&Arc<Database>> {
        match self.is_in_transaction() {
            true => Err(StorageError::Invalid(format!(
                "{what} can't be part of a transaction; COMMIT or ROLLBACK first"
            ))),
            false => Ok(&self.database),
        }
    }

    /// Does several things as one: in a transaction of their own, or, within the session's, so that
    /// an error leaves nothing of them.
    ///
    /// # Errors
    /// Those of `work` and of [`Workspace::commit`].
    pub fn atomically(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) -> Result<()>) -> Result<()> {
        // No statement can write such a name.
        const SAVEPOINT: &str = "\0";
        if self.is_in_transaction() {
            self.savepoint(SAVEPOINT)?;
            let done = work(self);
            if done.is_err() {
                self.rollback_to(SAVEPOINT)?;
            }
            return self.release(SAVEPOINT).and(done);
        }
        let own = Arc::new(Self::new(Arc::clone(&self.database)));
        own.begin(Isolation::Snapshot, false)?;
        work(&own)?;
        own.commit()
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// `Invalid` where there is one; `Io` where another process may have the database now.
    pub fn begin(&self, isolation: Isolation, read_only: bool) -> Result<()> {
        self.database.check_current()?;
        let mut transaction = self.transaction.lock();
        if transaction.is_some() {
            return Err(StorageError::Invalid(
                "a transaction has begun already; COMMIT or ROLLBACK it, or set a SAVEPOINT".into(),
            ));
        }
        let begun = Transaction::begin(&self.database, isolation, read_only);
        *transaction = Some(Arc::new(begun));
        Ok(())
    }

    /// Makes what the transaction did durable and visible, all of it, and ends it.
    ///
    /// # Errors
    /// `Conflict` when another commit has changed the same rows, or, where the transaction is
    /// serialisable, a table that it has read; `DuplicateKey`; `Full`, `Io`; `NeedsReopening`. After
    /// any but the last nothing has changed. The transaction has ended in any case. `Invalid` where
    /// there is none.
    pub fn commit(&self) -> Result<()> {
        self.end()?.commit()
    }

    /// Ends the transaction; nothing of it remains.
    ///
    /// # Errors
    /// `Invalid` where there is none.
    pub fn rollback(&self) -> Result<()> {
        self.end()?.progress.lock().has_ended = true;
        Ok(())
    }

    fn end(&self) -> Result<Arc<Transaction>> {
        self.transaction.lock().take().ok_or_else(no_transaction)
    }

    /// Sets a savepoint.
    ///
    /// # Errors
    /// `Invalid` where there is no transaction, or it has too many.
    pub fn savepoint(&self, name: &str) -> Result<()> {
        self.in_progress()?.savepoint(name)
    }

    /// Undoes what was done since a savepoint was set, which stays.
    ///
    /// # Errors
    /// `Invalid` where there is no transaction, `NotFound`.
    pub fn rollback_to(&self, name: &str) -> Result<()> {
        self.in_progress()?.rollback_to(name)
    }

    /// Forgets a savepoint and those that were set after it; what was done stays.
    ///
    /// # Errors
    /// `Invalid` where there is no transaction, `NotFound`.
    pub fn release(&self, name: &str) -> Result<()> {
        self.in_progress()?.release(name)
    }

    fn in_progress(&self) -> Result<Arc<Transaction>> {
        self.transaction().ok_or_else(no_transaction)
    }
}

/// What a statement outside of every session does.
impl Database {
    fn alone(self: &Arc<Self>) -> Workspace {
        Workspace::new(Arc::clone(self))
    }

    /// As [`Workspace::create_schema`].
    ///
    /// # Errors
    /// The same.
    pub fn create_schema(self: &Arc<Self>, name: &str) -> Result<()> {
        self.alone().create_schema(name)
    }

    /// As [`Workspace::drop_schema`].
    ///
    /// # Errors
    /// The same.
    pub fn drop_schema(self: &Arc<Self>, name: &str) -> Result<()> {
        self.alone().drop_schema(name)
    }

    /// As [`Workspace::create_view`].
    ///
    /// # Errors
    /// The same.
    pub fn create_view(self: &Arc<Self>, view: View, or_replace: bool) -> Result<()> {
        self.alone().create_view(view, or_replace)
    }

    /// As [`Workspace::drop_view`].
    ///
    /// # Errors
    /// The same.
    pub fn drop_view(self: &Arc<Self>, schema: &str, name: &str) -> Result<()> {
        self.alone().drop_view(schema, name)
    }

    /// As [`Workspace::drop_table`].
    ///
    /// # Errors
    /// The same.
    pub fn drop_table(self: &Arc<Self>, schema: &str, table: &str) -> Result<()> {
        self.alone().drop_table(schema, table)
    }

    /// As [`Workspace::create_index`].
    ///
    /// # Errors
    /// The same.
    pub fn create_index(
        self: &Arc<Self>,
        schema: &str,
        table: &str,
        definition: IndexDefinition,
    ) -> Result<()> {
        self.alone().create_index(schema, table, definition)
    }

    /// As [`Workspace::drop_index`].
    ///
    /// # Errors
    /// The same.
    pub fn drop_index(self: &Arc<Self>, schema: &str, name: &str) -> Result<()> {
        self.alone().drop_index(schema, name)
    }
}

fn no_transaction() -> StorageError {
    StorageError::Invalid("there is no transaction; BEGIN starts one".into())
}
