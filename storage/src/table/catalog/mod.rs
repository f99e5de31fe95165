//! The catalog: which schemas, tables and segments there are, in `redb`.

mod file;
mod old;
mod records;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut, Range};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind, set_hook, take_hook};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use self::records::Records;
use crate::segment::{SegmentId, TableId};
use crate::table::database::{FORMAT_VERSION, FORMAT_WITHOUT_ACCOUNTS, FORMAT_WITHOUT_PAST};
use crate::table::edit::{
    ObjectName, Operation, PutFunction, PutPart, PutSegment, PutTable, TableEdit,
};
use crate::table::history::CatalogHistory;
use crate::table::manifest::{
    FunctionRecord, HistoryRecords, PartRecord, SegmentRecord, TableRecord,
};
use crate::table::{Accounts, Function, View};
use crate::{Result, StorageError};

pub use file::open_from_disk;
pub(super) use file::{CatalogFile, read_from_disk};

/// `format` ▸ the format's number, which every build looks at first.
const META: TableDefinition<&str, u32> = TableDefinition::new("meta");

/// Ending of the name of a catalog that is being made.
pub(super) const UNFINISHED: &str = "new";

/// The first format with a log beside the catalog.
pub(super) const FORMAT_WITH_LOG: u32 = 7;

/// Generations reserved by one durable write; see [`Catalog::reserve_numbers`].
const GENERATION_BATCH: u32 = 4096;
/// Numbers of tables reserved likewise.
const TABLE_BATCH: u32 = 64;

/// The open catalog.
#[derive(Debug)]
pub(super) struct Catalog {
    file: Arc<CatalogFile>,
    read_only: bool,
    handle: RwLock<Handle>,
    path: PathBuf,
    /// What `redb` found wrong with its pages.
    damage: Mutex<Option<String>>,
}

enum Handle {
    Open(Redb),
    /// Nobody knows which version is durable.
    Lost(String),
}

/// An open `redb`, there until it is dropped.
///
/// It commits once more when it is closed, and over bytes that are not what was written it would
/// take pages for free that are in use, and may end the process: so it does that only where it has
/// verified all its pages.
struct Redb {
    database: Option<redb::Database>,
    is_verified: bool,
}

impl Redb {
    fn open(file: &Arc<CatalogFile>) -> Result<Self, redb::DatabaseError> {
        let mut builder = redb::Builder::new();
        let builder = builder.set_cache_size(CACHE_BYTES);
        let until = Instant::now() + CHILD_TIME;
        loop {
            let opened = builder.create_with_backend(file::Lease(Arc::clone(file)));
            match opened {
                Err(redb::DatabaseError::DatabaseAlreadyOpen) if Instant::now() < until => {
                    thread::sleep(CHILD_TIME / 50);
                }
                opened => {
                    return Ok(Self {
                        database: Some(opened?),
                        is_verified: false,
                    });
                }
            }
        }
    }

    /// Verifies the checksums of all pages; `false` where something had to be repaired.
    fn verify(&mut self) -> Result<bool, redb::DatabaseError> {
        self.is_verified = false;
        let is_clean = self.deref_mut().check_integrity()?;
        self.is_verified = true;
        Ok(is_clean)
    }
}

impl Deref for Redb {
    type Target = redb::Database;

    fn deref(&self) -> &redb::Database {
        self.database.as_ref().expect("it is not closed")
    }
}

impl DerefMut for Redb {
    fn deref_mut(&mut self) -> &mut redb::Database {
        self.database.as_mut().expect("it is not closed")
    }
}

impl Drop for Redb {
    fn drop(&mut self) {
        let database = self.database.take();
        if self.is_verified {
            let closed = guarded(|| {
                drop(database);
                Ok(())
            });
            if let Err(error) = closed {
                log::warn!("closing the catalog: {error}");
            }
            return;
        }
        // There is no call to close it without a commit, but it makes none while a panic unwinds.
        let _unwound = catch_unwind(AssertUnwindSafe(move || {
            let _database = database;
            resume_unwind(Box::new("the catalog is closed as it is"))
        }));
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open(_) => "open",
            Self::Lost(_) => "lost",
        })
    }
}

/// One table, as the catalog keeps it.
#[derive(Debug, PartialEq)]
pub(super) struct CatalogTable {
    pub name: ObjectName,
    pub id: TableId,
    pub record: TableRecord,
    /// Segments in row order.
    pub segments: Vec<(SegmentId, SegmentRecord)>,
    /// Parts of its indexes.
    pub index_parts: Vec<(SegmentId, PartRecord)>,
    /// Its past, or how the records of that are damaged.
    pub history: Result<CatalogHistory, String>,
}

/// Everything that the catalog holds.
#[derive(Default)]
pub(super) struct Contents {
    pub schemas: Vec<String>,
    pub tables: Vec<CatalogTable>,
    /// Tables whose records are damaged, and how.
    pub damaged: Vec<(ObjectName, String)>,
    pub functions: Vec<Function>,
    pub views: Vec<View>,
    pub accounts: Accounts,
    /// What else is damaged.
    pub problems: Vec<String>,
    /// The log's last record that it has the edit of.
    pub logged: u64,
    next_table: u32,
    next_generation: u32,
}

/// What a new database begins with.
#[derive(Debug)]
pub(super) struct FirstState {
    /// As an edit of nothing.
    pub whole: TableEdit,
    /// How many numbers its sequences have given, by their own.
    pub sequences: BTreeMap<u32, u64>,
}

impl FirstState {
    /// A schema for tables.
    pub fn empty() -> Self {
        let mut whole = TableEdit::default();
        whole.push(Operation::PutSchema("public".into()));
        Self {
            whole,
            sequences: BTreeMap::new(),
        }
    }
}

/// Numbers that nothing carries yet.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    pub generations: Range<u32>,
    pub tables: Range<u32>,
}

impl Catalog {
    /// Makes the catalog of a new database at `path`; it has that name from the moment on in which it
    /// is whole.
    pub(super) fn create(path: &Path, database: &Path, first: &FirstState) -> Result<Self> {
        let unfinished = path.with_extension(UNFINISHED);
        // What a crash while a catalog was made has left: nothing was in it.
        match std::fs::remove_file(&unfinished) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(StorageError::of_path("writing", &unfinished, e));
            }
            _ => {}
        }
        let file = CatalogFile::open(&unfinished, true).map_err(|e| open_error(e, database))?;
        let catalog = Self::make(path, database, file, first)?;
        std::fs::rename(&unfinished, path)
            .map_err(|e| StorageError::of_path("writing", path, e))?;
        Ok(catalog)
    }

    /// Makes the catalog of a new database in an empty file.
    pub(super) fn make(
        path: &Path,
        database: &Path,
        file: Arc<CatalogFile>,
        first: &FirstState,
    ) -> Result<Self> {
        let catalog = Self::over(path, database, file, false)?;
        catalog.check_integrity()?;
        let (tables, generations) = first.whole.greatest_numbers();
        let sequences = first.sequences.keys().max();
        let numbers = tables.max(sequences.copied().unwrap_or(0));
        catalog.write(|txn, records| {
            raise_format(txn, first.whole.format())?;
            records.set_numbers(next(numbers)?, next(generations)?);
            for (sequence, given) in &first.sequences {
                records.put_sequence(*sequence, *given)?;
            }
            records.apply(&first.whole)
        })?;
        Ok(catalog)
    }

    /// The format of the catalog at `path`, which stays as it is.
    pub(super) fn format_of(path: &Path, database: &Path) -> Result<u32> {
        let file = CatalogFile::open_to_read(path).map_err(|e| open_error(e, database))?;
        Self::over(path, database, file, true)?.check_format(database)
    }

    /// Opens the catalog at `path`.
    pub(super) fn open(path: &Path, database: &Path, read_only: bool) -> Result<Self> {
        if read_only {
            let file = CatalogFile::open_to_read(path).map_err(|e| open_error(e, database))?;
            let catalog = Self::over(path, database, file, true)?;
            catalog.check_format(database)?;
            catalog.check_integrity()?;
            return Ok(catalog);
        }
        let file = CatalogFile::open(path, false).map_err(|e| open_error(e, database))?;
        Self::existing(path, database, file)
    }

    /// Opens the catalog in `file`.
    pub(super) fn existing(path: &Path, database: &Path, file: Arc<CatalogFile>) -> Result<Self> {
        let catalog = Self::over(path, database, file, false)?;
        let found = catalog.check_format(database)?;
        catalog.check_integrity()?;
        if catalog.damage.lock().is_none() {
            match found {
                ..3 => catalog.upgrade()?,
                // A build that does not know page indexes in pages must not take them for free.
                3..FORMAT_WITHOUT_PAST => {
                    catalog.write(|txn, _| raise_format(txn, FORMAT_WITHOUT_PAST))?
                }
                _ => {}
            }
        }
        Ok(catalog)
    }

    /// Makes the records of formats 3 and 4 from those of an earlier one. A build that does not know it
    /// would not keep them up, so it may not write to the database from here on.
    fn upgrade(&self) -> Result<()> {
        let (contents, packages) = self.read(|txn| {
            let contents = guarded(|| old::contents(txn))?;
            Ok((contents, old::packages(txn)?))
        })?;
        let edit = whole(&contents, &packages);
        self.write(|txn, records| {
            raise_format(txn, FORMAT_WITHOUT_PAST)?;
            records.set_numbers(contents.next_table, contents.next_generation);
            records.apply(&edit)?;
            old::remove(txn)
        })
    }

    /// Lets `redb` verify the checksums of all its pages: a writer must not go on from damaged
    /// ones.
    fn check_integrity(&self) -> Result<()> {
        let mut handle = self.handle.write();
        let Handle::Open(db) = &mut *handle else {
            return Ok(());
        };
        let checked = guarded(|| db.verify().map_err(|e| open_error(e, &self.path)));
        match checked {
            Ok(true) => {}
            Ok(false) => log::warn!("{}: redb has repaired it", self.path.display()),
            Err(error @ StorageError::Io { .. }) => return Err(error),
            Err(error) => *self.damage.lock() = Some(error.damage()),
        }
        Ok(())
    }

    fn over(path: &Path, database: &Path, file: Arc<CatalogFile>, read_only: bool) -> Result<Self> {
        let opened = guarded(|| Redb::open(&file).map_err(|e| open_error(e, database)))?;
        Ok(Self {
            file,
            read_only,
            handle: RwLock::new(Handle::Open(opened)),
            path: path.to_path_buf(),
            damage: Mutex::default(),
        })
    }

    /// The catalog's format, which this build reads.
    fn check_format(&self, database: &Path) -> Result<u32> {
        let path = &self.path;
        let found = self.read(format).map_err(|error| match error {
            StorageError::Io { .. } => error,
            other => StorageError::corrupt(format!(
                "{path:?} is not the catalog of a flashmesh database ({})",
                other.damage()
            )),
        })?;
        match found {
            0 => Err(StorageError::corrupt(format!("{path:?} names no format"))),
            1..=FORMAT_VERSION => Ok(found),
            _ => Err(StorageError::NewerFormat {
                path: database.to_path_buf(),
                found,
                supported: FORMAT_VERSION,
            }),
        }
    }

    /// Reads everything.
    pub(super) fn contents(&self) -> Result<Contents> {
        let mut contents = self.read(|txn| match format(txn)? {
            ..3 => old::contents(txn),
            _ => records::contents(txn),
        })?;
        if let Some(damage) = self.damage.lock().clone() {
            // A page of an earlier commit may stand in place of the last one's, and its records
            // are sealed as well: nothing is served from them.
            let tables = std::mem::take(&mut contents.tables).into_iter();
            contents
                .damaged
                .extend(tables.map(|table| (table.name, damage.clone())));
            contents.functions.clear();
            contents.views.clear();
            contents.accounts.damage = Some(format!("the accounts: {damage}"));
            contents.problems.push(damage);
        }
        Ok(contents)
    }

    /// Records that belong to nothing, and what else [`Catalog::contents`] does not look at.
    pub(super) fn orphans(&self) -> Result<Vec<String>> {
        self.read(|txn| match format(txn)? {
            ..3 => Ok(Vec::new()),
            _ => records::orphans(txn),
        })
    }

    /// The package of a function, if there is one.
    pub(super) fn package(&self, function: &str) -> Result<Option<Vec<u8>>> {
        self.read(|txn| match format(txn)? {
            ..3 => {
                let packages = old::packages(txn)?.into_iter();
                let mut found = packages.filter(|(name, _)| name == function);
                Ok(found.next().map(|(_, package)| package))
            }
            _ => records::package(txn, function),
        })
    }

    /// Applies edits durably, and what becomes of the past, all or none; `logged` is the log's last record that they have.
    ///
    /// # Errors
    /// `NeedsReopening`: nobody knows whether they were applied. After any other they were not.
    pub(super) fn apply<'a>(
        &self,
        edits: impl Iterator<Item = &'a TableEdit> + Clone,
        history: &HistoryRecords,
        logged: u64,
    ) -> Result<()> {
        self.write(|txn, records| {
            records.set_logged(logged);
            edits.clone().try_for_each(|edit| records.apply(edit))?;
            // Earlier builds would take pages for free that only the past has.
            let of_history = history.puts().then_some(FORMAT_WITHOUT_ACCOUNTS);
            let formats = edits.clone().map(TableEdit::format).chain(of_history);
            if let Some(format) = formats.max() {
                raise_format(txn, format)?;
            }
            records.put_history(history)
        })
    }

    /// What tells the database from all others: 16 bytes, made when they are first asked for.
    ///
    /// # Errors
    /// `Invalid` when it has none and was opened for reading only.
    pub(super) fn id(&self) -> Result<Vec<u8>> {
        let id = self.read(|txn| match format(txn)? {
            ..3 => Ok(Vec::new()),
            _ => records::id(txn),
        })?;
        match id.is_empty() {
            false => Ok(id),
            true if self.read_only => Err(StorageError::Invalid(format!(
                "{} has no name of its own yet, and is open for reading only; back it up once from where it is open for writing",
                self.path.display()
            ))),
            true => self.write(|_, records| Ok(records.id())),
        }
    }

    /// Durably reserves numbers that nothing carries yet and returns them.
    ///
    /// A number is used up even when its commit never happens: a page that a crash left behind can
    /// then never pass for one that was written later to the same place.
    pub(super) fn reserve_numbers(&self) -> Result<Numbers> {
        self.write(|_, records| records.reserve())
    }

    /// Says durably how many numbers a sequence has given.
    pub(super) fn put_sequence(&self, sequence: u32, reserved: u64) -> Result<()> {
        self.write(|_, records| records.put_sequence(sequence, reserved))
    }

    /// How many numbers a sequence has given or may have, if it is there.
    pub(super) fn given_of_sequence(&self, sequence: u32) -> Result<Option<u64>> {
        self.read(|txn| records::given_of_sequence(txn, sequence))
    }

    /// Durably reserves so many more numbers of a sequence.
    ///
    /// # Errors
    /// `Corrupt` where it is not there; as [`Catalog::apply`].
    pub(super) fn reserve_of_sequence(&self, sequence: u32, count: u64) -> Result<Range<u64>> {
        self.write(|_, records| records.reserve_of_sequence(sequence, count))
    }

    /// Removes the sequences that are not among these.
    pub(super) fn keep_sequences(&self, kept: &BTreeSet<u32>) -> Result<()> {
        let unused = self.read(|txn| {
            let mut sequences = records::sequences(txn)?;
            sequences.retain(|sequence| !kept.contains(sequence));
            Ok(sequences)
        })?;
        match unused.is_empty() {
            true => Ok(()),
            false => self.write(|_, records| records.remove_sequences(&unused)),
        }
    }

    /// All that there is, as an edit of an empty catalog.
    #[cfg(test)]
    pub(super) fn whole(&self) -> Result<TableEdit> {
        self.read(|txn| {
            let contents = records::contents(txn)?;
            let names = contents.functions.iter().map(|function| {
                let package = records::package(txn, &function.name)?;
                Ok((function.name.clone(), package.unwrap_or_default()))
            });
            let packages = names.collect::<Result<Vec<_>>>()?;
            Ok(whole(&contents, &packages))
        })
    }

    /// Makes the catalog one of format 2.
    #[cfg(test)]
    pub(super) fn downgrade(&self) -> Result<()> {
        let edit = self.whole()?;
        let numbers = self.reserve_numbers()?;
        let handle = self.handle.write();
        let Handle::Open(db) = &*handle else {
            return Ok(());
        };
        let txn = db.begin_write().map_err(other)?;
        old::write(&txn, &edit, &numbers)?;
        txn.delete_table(records::RECORDS).map_err(other)?;
        txn.commit().map_err(other)
    }

    fn read<R>(&self, work: impl Fn(&ReadTransaction) -> Result<R>) -> Result<R> {
        let result = guarded(|| {
            let txn = match &*self.handle.read() {
                Handle::Open(db) => db.begin_read(),
                Handle::Lost(why) => return Err(needs_reopening(why)),
            };
            work(&txn.map_err(other)?)
        });
        if let Err(StorageError::Io { .. } | StorageError::Catalog(_)) = &result {
            self.recover(&mut self.handle.write());
        }
        result
    }

    /// Runs `work` as one durable transaction.
    ///
    /// # Errors
    /// As [`Catalog::apply`].
    fn write<R>(
        &self,
        work: impl Fn(&WriteTransaction, &mut Records<'_>) -> Result<R>,
    ) -> Result<R> {
        if self.read_only {
            return Err(StorageError::ReadOnly {
                path: self.path.parent().unwrap_or(&self.path).to_path_buf(),
                reason: "it was opened for reading only".into(),
            });
        }
        if let Some(damage) = self.damage.lock().clone() {
            return Err(StorageError::corrupt(damage));
        }
        let handle = &mut *self.handle.write();
        let db = match handle {
            Handle::Open(db) => db,
            Handle::Lost(why) => return Err(needs_reopening(why)),
        };
        let mut done = None;
        let result = guarded(|| {
            let mut txn = db.begin_write().map_err(other)?;
            // In two phases, so that damage can't pass for a commit that was not finished.
            txn.set_two_phase_commit(true);
            let mut records = Records::open(&txn)?;
            let value = work(&txn, &mut records)?;
            done = Some((records.finish()?, value));
            txn.commit().map_err(|e| match redb::Error::from(e) {
                redb::Error::Io(e) => StorageError::of_path("writing", &self.path, e),
                e => other(e),
            })
        });
        let Err(error) = result else {
            return done
                .map(|(_, value)| value)
                .ok_or_else(|| StorageError::Catalog("a commit without a result".into()));
        };
        // The error may have come before or after the point from which on the commit is found at
        // the next opening: open it and see.
        let found = self.recover(handle);
        match (done, found) {
            (Some((number, value)), Some(found)) if number == found => Ok(value),
            (_, Some(_)) => Err(error),
            (_, None) => Err(StorageError::NeedsReopening {
                what: format!("{error}, and what is durable of the catalog is not known"),
            }),
        }
    }

    /// Opens `redb` once more after an error, as it does nothing more by itself, and gives the
    /// number of the last commit; `None` when nobody can tell.
    fn recover(&self, handle: &mut Handle) -> Option<u64> {
        let file = &self.file;
        let lost = "an error left the catalog in doubt".to_string();
        *handle = Handle::Lost(lost);
        let opened = if file.sync_has_failed() {
            Err(StorageError::Catalog("a sync of it has failed".into()))
        } else {
            guarded(|| {
                let mut db = Redb::open(file).map_err(|e| open_error(e, &self.path))?;
                db.verify().map_err(|e| open_error(e, &self.path))?;
                let found = records::commit_number(&db.begin_read().map_err(other)?)?;
                Ok((db, found))
            })
        };
        match opened {
            Ok((db, found)) => {
                *handle = Handle::Open(db);
                Some(found)
            }
            Err(error) => {
                *handle = Handle::Lost(format!("{}: {error}", self.path.display()));
                None
            }
        }
    }
}

/// Bound of `redb`'s own cache: what it holds is read once, when the database is opened.
const CACHE_BYTES: usize = 8 << 20;

/// How long a file may be locked that nobody uses: a child of the process that closed it has the
/// files that were open when it was made until it runs its own program.
const CHILD_TIME: Duration = Duration::from_millis(100);

thread_local! {
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Runs what may meet damaged bytes in `redb`, which panics at some.
fn guarded<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    // Such a panic is told as an error, and not on the terminal besides.
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_GUARDED.get() {
                hook(panic);
            }
        }));
    });
    let outer = IS_GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(outer);
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(StorageError::corrupt(format!(
            "the catalog's bytes are not what was written ({}); restore it, or reload the tables",
            text.unwrap_or_default()
        )))
    })
}

/// The number after the greatest one in use.
fn next(greatest: u32) -> Result<u32> {
    let next = greatest.checked_add(1);
    next.ok_or_else(|| StorageError::Invalid("a database has used up its numbers".into()))
}

fn needs_reopening(why: &str) -> StorageError {
    StorageError::NeedsReopening { what: why.into() }
}

/// All that there is, but for views, as an edit of an empty catalog.
fn whole(contents: &Contents, packages: &[(String, Vec<u8>)]) -> TableEdit {
    let mut edit = TableEdit::default();
    for schema in &contents.schemas {
        edit.push(Operation::PutSchema(schema.clone()));
    }
    for table in &contents.tables {
        edit.push(Operation::PutTable(PutTable {
            name: table.name.clone(),
            table: table.id.0,
            record: table.record.clone(),
        }));
        for (segment, record) in &table.segments {
            edit.push(Operation::PutSegment(PutSegment {
                table: table.id.0,
                segment: segment.0,
                record: record.clone(),
            }));
        }
        for (part, record) in &table.index_parts {
            edit.push(Operation::PutPart(PutPart {
                table: table.id.0,
                part: part.0,
                record: record.clone(),
            }));
        }
    }
    for function in &contents.functions {
        let package = packages.iter().find(|(name, _)| *name == function.name);
        edit.push(Operation::PutFunction(PutFunction {
            name: function.name.clone(),
            record: FunctionRecord::of(function),
            package: package.map(|(_, bytes)| bytes.clone()).unwrap_or_default(),
        }));
    }
    edit
}

/// The catalog's format, 0 if it names none.
fn format(txn: &ReadTransaction) -> Result<u32> {
    let meta = txn.open_table(META).map_err(other)?;
    Ok(meta.get("format").map_err(other)?.map_or(0, |v| v.value()))
}

/// Has the catalog be of this format, if it is not of a later one.
fn raise_format(txn: &WriteTransaction, format: u32) -> Result<()> {
    let mut meta = txn.open_table(META).map_err(other)?;
    let found = meta.get("format").map_err(other)?.map_or(0, |v| v.value());
    if found < format {
        meta.insert("format", format).map_err(other)?;
    }
    Ok(())
}

fn open_error(error: redb::DatabaseError, database: &Path) -> StorageError {
    use redb::DatabaseError as E;
    match error {
        E::DatabaseAlreadyOpen => StorageError::InUse {
            path: database.to_path_buf(),
        },
        E::UpgradeRequired(version) => StorageError::NewerFormat {
            path: database.to_path_buf(),
            found: u32::from(version),
            supported: FORMAT_VERSION,
        },
        E::Storage(redb::StorageError::Io(e))
            if matches!(
                e.kind(),
                std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof
            ) =>
        {
            StorageError::corrupt(format!("catalog of {database:?}: {e}; put it back"))
        }
        E::Storage(redb::StorageError::Io(e)) => {
            StorageError::of_path("writing", &database.join("catalog.redb"), e)
        }
        E::Storage(redb::StorageError::Corrupted(what)) => {
            StorageError::corrupt(format!("catalog of {database:?}: {what}"))
        }
        e => StorageError::Catalog(format!("{database:?}: {e}")),
    }
}

fn other(error: impl Into<redb::Error>) -> StorageError {
    match error.into() {
        redb::Error::Corrupted(what) => StorageError::corrupt(format!("catalog: {what}")),
        redb::Error::Io(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
            StorageError::corrupt("catalog: its file is cut short")
        }
        redb::Error::Io(e) => StorageError::io("reading or writing the catalog", e),
        // It has panicked before, and does so at damaged bytes alone.
        redb::Error::LockPoisoned(_) => StorageError::corrupt(
            "catalog: redb has stopped at bytes that are not what was written",
        ),
        // Each was made with the catalog: its name was damaged, or what it is.
        e @ (redb::Error::TableDoesNotExist(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TableIsNotMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. }) => {
            StorageError::corrupt(format!("catalog: {e}"))
        }
        e => StorageError::Catalog(e.to_string()),
    }
}
