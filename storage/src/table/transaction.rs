//! Transactions: several statements over several tables, one commit.
//!
//! A transaction has a state of its own, a copy of the database's (which shares all that it
//! describes) as it was when the transaction began. Its statements change that state by the edits
//! that a commit would be made of, and see it; others see nothing of it. To commit, what the
//! statements did to each table becomes one [`TableChange`], which is made anew over the present
//! state, and all of them one edit. So a transaction sees one version of the database (snapshot
//! isolation); of two that change the same row, the second to commit is refused. A serialisable one
//! is also refused where a table that it has read was changed since.
//!
//! This is Willow's Atomic-Write (section 4.3) over tables: log-write is a statement, commit and
//! abort are what they are there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::index::{Index, IndexPart};
use crate::table::change::{self, ChangeKind, TableChange};
use crate::table::edit::{ObjectName, TableEdit};
use crate::table::load::{Load, LoadTarget};
use crate::table::state::{State, TableState, not_found};
use crate::table::{Database, TableSnapshot};
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
    changes: Vec<TableChange>,
    savepoints: Vec<Savepoint>,
    reads: Reads,
    /// Statements that still run come too late.
    has_ended: bool,
}

#[derive(Debug)]
struct Savepoint {
    name: String,
    state: State,
    changes: usize,
}

impl Transaction {
    fn begin(database: &Arc<Database>, isolation: Isolation, read_only: bool) -> Self {
        let base = database.state.read().clone();
        Self {
            isolation,
            read_only,
            database: Arc::clone(database),
            progress: Mutex::new(Progress {
                state: base.clone(),
                changes: Vec::new(),
                savepoints: Vec::new(),
                reads: Reads::new(),
                has_ended: false,
            }),
            base,
        }
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
                && let Some(base) = self.base.tables.get(&name)
            {
                progress.reads.insert(name, Arc::clone(&base.snapshot));
            }
            Some(Arc::clone(&table.snapshot))
        });
        seen.collect()
    }

    /// Takes what a statement did.
    ///
    /// # Errors
    /// `DuplicateKey` among what the transaction sees; `Invalid` in one that only reads.
    pub fn stage(&self, mut change: TableChange) -> Result<()> {
        static VERSIONS: AtomicU64 = AtomicU64::new(PRIVATE_VERSIONS);
        if self.read_only {
            return Err(StorageError::Invalid(
                "the transaction is READ ONLY; begin another one to write".into(),
            ));
        }
        let progress = &mut *self.progress.lock();
        if progress.has_ended {
            return Err(StorageError::Invalid(
                "the transaction of this statement has ended before it".into(),
            ));
        }
        let present = progress.state.tables.get(&change.name).cloned();
        let mut edit = TableEdit::default();
        change.add_to(&mut edit, present.as_ref())?;
        edit.set_version(VERSIONS.fetch_add(1, Ordering::Relaxed));
        let made = progress.state.change(&edit)?;
        // Nothing is retired: others still have it.
        drop(progress.state.install(&edit, made));
        if let Some(table) = progress.state.tables.get(&change.name) {
            hold_pages(&table.snapshot, &change);
        }
        if let ChangeKind::Overwrite { only } = &mut change.kind {
            // Rows that others add meanwhile were not seen, and shall not go.
            let base = self.base.tables.get(&change.name);
            *only = base.map(|table| Arc::clone(&table.snapshot));
        }
        progress.changes.push(change);
        Ok(())
    }

    fn commit(&self) -> Result<()> {
        let (changes, reads) = {
            let progress = &mut *self.progress.lock();
            progress.has_ended = true;
            progress.savepoints.clear();
            let changes = mem::take(&mut progress.changes);
            (changes, mem::take(&mut progress.reads))
        };
        let mut tables: BTreeMap<ObjectName, TableChange> = BTreeMap::new();
        for change in changes {
            let name = change.name.clone();
            let merged = match tables.remove(&name) {
                Some(earlier) => earlier.then(change)?,
                None => change,
            };
            tables.insert(name, merged);
        }
        if tables.is_empty() {
            // It has seen one version of the database, and changed nothing.
            return Ok(());
        }
        let written: Vec<_> = tables.iter().map(|(n, t)| (n.clone(), t.rows())).collect();
        change::commit(&self.database, tables.into_values().collect(), |edit| {
            self.check_reads(&reads, edit)
        })?;
        self.hold_committed(written.iter().map(|(name, _)| name))?;
        for (name, rows) in written {
            self.database.cover_load(&name, rows);
        }
        Ok(())
    }

    /// Statements that still read what the transaction wrote hold what is committed now.
    fn hold_committed<'a>(&self, tables: impl Iterator<Item = &'a ObjectName>) -> Result<()> {
        let progress = self.progress.lock();
        for name in tables {
            let own = progress.state.tables.get(name);
            let (Some(own), Some(present)) = (own, self.database.find_table(name)?) else {
                continue;
            };
            let segments = own.snapshot.segments.iter();
            let own_segments: HashMap<_, _> = segments.map(|s| (s.id, s)).collect();
            for segment in &present.snapshot.segments {
                if let Some(own) = own_segments.get(&segment.id) {
                    own.hold_committed(segment);
                }
            }
            let parts = |table: &TableState| -> Vec<Arc<IndexPart>> {
                let indexes = table.snapshot.indexes.iter();
                indexes.flat_map(|index| index.parts.clone()).collect()
            };
            let present = parts(&present);
            for own in parts(own) {
                let part = present.iter().find(|part| part.id == own.id);
                if let Some(part) = part.filter(|part| !Arc::ptr_eq(part, &own)) {
                    let _ = own.committed.set(Arc::clone(part));
                }
            }
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
        progress.savepoints.push(Savepoint {
            name: name.into(),
            state: progress.state.clone(),
            changes: progress.changes.len(),
        });
        Ok(())
    }

    /// Undoes what was done since a savepoint, which stays.
    fn rollback_to(&self, name: &str) -> Result<()> {
        let progress = &mut *self.progress.lock();
        let place = progress.place_of(name)?;
        let Savepoint { state, changes, .. } = &progress.savepoints[place];
        let (state, changes) = (state.clone(), *changes);
        let undone = mem::replace(&mut progress.state, state);
        // Pages go with the last statement that reads them.
        drop((undone, progress.changes.split_off(changes)));
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

/// Statements that read what a change has written go on to their end, whatever becomes of it.
fn hold_pages(table: &TableSnapshot, change: &TableChange) {
    let written: HashSet<_> = change.written.iter().map(|w| w.segment.id).collect();
    let new = table.segments.iter().filter(|s| written.contains(&s.id));
    new.for_each(|segment| segment.hold(&change.reservations));
    let published: HashMap<_, _> = change.parts.published().collect();
    for part in table.indexes.iter().flat_map(|index| &index.parts) {
        if let Some(pages) = published.get(&part.id) {
            let _ = part.unnamed.set((*pages).clone());
        }
    }
}

impl Progress {
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
}

impl Workspace {
    /// A session's, outside of a transaction.
    pub fn new(database: Arc<Database>) -> Self {
        Self {
            database,
            transaction: Mutex::default(),
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

    /// The versions of several tables that a statement sees, `None` for one that is not there:
    /// taken together, so that each commit is in all of them or in none.
    pub fn snapshots<'a>(
        &self,
        names: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Vec<Option<Arc<TableSnapshot>>> {
        let Some(transaction) = self.transaction() else {
            return self.database.snapshots(names);
        };
        let names = names.into_iter();
        transaction.snapshots(names.map(|(schema, table)| ObjectName::new(schema, table)))
    }

    /// The version of a table that statements are planned by.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn snapshot(&self, schema: &str, table: &str) -> Result<Arc<TableSnapshot>> {
        let state = match self.transaction() {
            Some(transaction) => transaction.table_state(schema, table),
            None => self.database.table_state(schema, table),
        };
        state.map(|table| table.snapshot)
    }

    /// The index of that name in a schema, with its table's name and version.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn index(
        &self,
        schema: &str,
        name: &str,
    ) -> Result<(String, Arc<TableSnapshot>, Arc<Index>)> {
        let Some(transaction) = self.transaction() else {
            return self.database.index(schema, name);
        };
        let progress = transaction.progress.lock();
        let mut tables = progress.state.tables.iter();
        let found = tables.find_map(|(table, state)| {
            let index = state.snapshot.index(name)?;
            let is_it = table.schema == schema;
            is_it.then(|| {
                (
                    table.name.clone(),
                    Arc::clone(&state.snapshot),
                    Arc::clone(index),
                )
            })
        });
        found.ok_or_else(|| StorageError::NotFound {
            kind: "index",
            name: name.into(),
        })
    }

    /// Starts a load, of the transaction if there is one.
    ///
    /// # Errors
    /// `ReadOnly`; those of [`Load`]; `Invalid` for a new table in a transaction.
    pub fn begin_load(&self, target: LoadTarget) -> Result<Load> {
        self.database.check_writable()?;
        Load::begin(&self.database, self.transaction(), target)
    }

    /// The database, for what is no part of a transaction, called `what`.
    ///
    /// # Errors
    /// `Invalid` in a transaction.
    pub fn outside_of_transaction(&self, what: &str) -> Result<&Arc<Database>> {
        match self.is_in_transaction() {
            true => Err(in_transaction(what)),
            false => Ok(&self.database),
        }
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// `Invalid` where there is one.
    pub fn begin(&self, isolation: Isolation, read_only: bool) -> Result<()> {
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

fn no_transaction() -> StorageError {
    StorageError::Invalid("there is no transaction; BEGIN starts one".into())
}

/// That something is no part of a transaction.
pub(super) fn in_transaction(what: &str) -> StorageError {
    StorageError::Invalid(format!(
        "{what} can't be part of a transaction; COMMIT or ROLLBACK first"
    ))
}
