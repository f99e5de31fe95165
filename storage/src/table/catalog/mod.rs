//! The catalog: which schemas, tables and segments there are, in `redb`.

mod file;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::table::database::FORMAT_VERSION;
use crate::table::manifest::{
    FunctionRecord, PartRecord, SegmentRecord, TableRecord, ViewRecord, seal, unseal,
};
use crate::table::{Function, SegmentId, TableId, View};
use crate::{Result, StorageError};

pub(super) use file::CatalogFile;

const META: TableDefinition<&str, u32> = TableDefinition::new("meta");
const SCHEMAS: TableDefinition<&str, ()> = TableDefinition::new("schemas");
/// (schema, table) ▸ table number.
const NAMES: TableDefinition<(&str, &str), u32> = TableDefinition::new("names");
const TABLES: TableDefinition<u32, &[u8]> = TableDefinition::new("tables");
/// (table, segment) ▸ sealed segment record.
const SEGMENTS: TableDefinition<(u32, u32), &[u8]> = TableDefinition::new("segments");
/// (table, index part) ▸ sealed part record; since format 2.
const INDEX_PARTS: TableDefinition<(u32, u32), &[u8]> = TableDefinition::new("index_parts");

/// Function ▸ sealed record. A build that knows no functions leaves them alone.
const FUNCTIONS: TableDefinition<&str, &[u8]> = TableDefinition::new("functions");
/// Function ▸ package.
const PACKAGES: TableDefinition<&str, &[u8]> = TableDefinition::new("packages");
/// (schema, view) ▸ sealed record; since format 3.
const VIEWS: TableDefinition<(&str, &str), &[u8]> = TableDefinition::new("views");

/// Ending of the name of a catalog that is being made.
pub(super) const UNFINISHED: &str = "new";

/// Generations reserved by one durable write; see [`Catalog::reserve_generations`].
const GENERATION_BATCH: u32 = 1024;

/// The open catalog.
#[derive(Debug)]
pub(super) struct Catalog {
    /// Missing where the catalog was opened for reading only.
    file: Option<Arc<CatalogFile>>,
    handle: RwLock<Handle>,
    path: PathBuf,
}

enum Handle {
    Writable(redb::Database),
    ReadOnly(redb::ReadOnlyDatabase),
    /// Nobody knows which version is durable.
    Lost(String),
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Writable(_) => "writable",
            Self::ReadOnly(_) => "read-only",
            Self::Lost(_) => "lost",
        })
    }
}

/// One table, as the catalog keeps it.
pub(super) struct CatalogTable {
    pub schema: String,
    pub name: String,
    pub id: TableId,
    pub record: TableRecord,
    /// Segments in row order.
    pub segments: Vec<(SegmentId, SegmentRecord)>,
    /// Parts of its indexes.
    pub index_parts: Vec<(SegmentId, PartRecord)>,
}

/// Everything that the catalog holds.
pub(super) struct Contents {
    pub schemas: Vec<String>,
    pub tables: Vec<CatalogTable>,
    pub functions: Vec<Function>,
    pub views: Vec<View>,
    pub next_table: u32,
}

/// What one commit changes; applied whole or not at all.
#[derive(Default)]
pub(super) struct Change {
    pub put_schema: Option<String>,
    pub drop_schema: Option<String>,
    /// Tables whose names, records and segments go.
    pub drop_tables: Vec<(String, String, TableId)>,
    pub put_table: Option<PutTable>,
    /// Name, record and package.
    pub put_function: Option<(String, FunctionRecord, Vec<u8>)>,
    pub drop_function: Option<String>,
    pub put_view: Option<Arc<View>>,
    /// Schema and name.
    pub drop_view: Option<(String, String)>,
}

/// A table that a commit writes.
pub(super) struct PutTable {
    pub schema: String,
    pub name: String,
    pub id: TableId,
    pub record: TableRecord,
    pub new_segments: Vec<(SegmentId, SegmentRecord)>,
    /// Forget the segments and index parts that the table had.
    pub replace_segments: bool,
    pub new_parts: Vec<(SegmentId, PartRecord)>,
    pub drop_parts: Vec<SegmentId>,
}

impl Catalog {
    /// Makes the catalog of a new database at `path`; it has that name from the moment on in which
    /// it is whole.
    pub(super) fn create(path: &Path, database: &Path) -> Result<Self> {
        let unfinished = path.with_extension(UNFINISHED);
        // What a crash while a catalog was made has left: nothing was in it.
        match std::fs::remove_file(&unfinished) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(io_error(e, &unfinished));
            }
            _ => {}
        }
        let file = CatalogFile::open(&unfinished, true).map_err(|e| open_error(e, database))?;
        let catalog = Self::make(path, database, file)?;
        std::fs::rename(&unfinished, path).map_err(|e| io_error(e, path))?;
        Ok(catalog)
    }

    /// Makes the catalog of a new database in an empty file.
    pub(super) fn make(path: &Path, database: &Path, file: Arc<CatalogFile>) -> Result<Self> {
        let catalog = Self::over(path, database, file)?;
        catalog.write(|txn| {
            txn.open_table(META)
                .map_err(other)?
                .insert("format", FORMAT_VERSION)
                .map_err(other)?;
            txn.open_table(SCHEMAS)
                .map_err(other)?
                .insert("public", ())
                .map_err(other)?;
            txn.open_table(NAMES).map_err(other)?;
            txn.open_table(TABLES).map_err(other)?;
            txn.open_table(SEGMENTS).map_err(other)?;
            txn.open_table(INDEX_PARTS).map_err(other)?;
            txn.open_table(VIEWS).map_err(other)?;
            Ok(())
        })?;
        Ok(catalog)
    }

    /// Opens the catalog at `path`.
    pub(super) fn open(path: &Path, database: &Path, read_only: bool) -> Result<Self> {
        if read_only {
            let opened = guarded(|| {
                redb::ReadOnlyDatabase::open(path).map_err(|e| open_error(e, database))
            })?;
            let catalog = Self {
                file: None,
                handle: RwLock::new(Handle::ReadOnly(opened)),
                path: path.to_path_buf(),
            };
            catalog.check_format(database)?;
            return Ok(catalog);
        }
        let file = CatalogFile::open(path, false).map_err(|e| open_error(e, database))?;
        Self::existing(path, database, file)
    }

    /// Opens the catalog in `file`.
    pub(super) fn existing(path: &Path, database: &Path, file: Arc<CatalogFile>) -> Result<Self> {
        let catalog = Self::over(path, database, file)?;
        let found = catalog.check_format(database)?;
        if found < FORMAT_VERSION {
            // Format 2 has indexes besides, format 3 views. A build that does not know them would
            // not keep them up, so it may not write to the database from here on.
            catalog.write(|txn| {
                txn.open_table(INDEX_PARTS).map_err(other)?;
                txn.open_table(VIEWS).map_err(other)?;
                txn.open_table(META)
                    .map_err(other)?
                    .insert("format", FORMAT_VERSION)
                    .map_err(other)?;
                Ok(())
            })?;
        }
        Ok(catalog)
    }

    fn over(path: &Path, database: &Path, file: Arc<CatalogFile>) -> Result<Self> {
        let opened = guarded(|| open_redb(&file).map_err(|e| open_error(e, database)))?;
        Ok(Self {
            file: Some(file),
            handle: RwLock::new(Handle::Writable(opened)),
            path: path.to_path_buf(),
        })
    }

    /// The catalog's format, which this build reads.
    fn check_format(&self, database: &Path) -> Result<u32> {
        let path = &self.path;
        let found = self.read(|txn| {
            let meta = txn.open_table(META).map_err(|_| {
                StorageError::corrupt(format!(
                    "{path:?} is not the catalog of a flashmesh database"
                ))
            })?;
            Ok(meta.get("format").map_err(other)?.map_or(0, |v| v.value()))
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
        self.read(contents)
    }

    /// The package of a function, if there is one.
    pub(super) fn package(&self, function: &str) -> Result<Option<Vec<u8>>> {
        self.read(|txn| {
            let packages = match txn.open_table(PACKAGES) {
                Ok(packages) => packages,
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
                Err(error) => return Err(other(error)),
            };
            let package = packages.get(function).map_err(other)?;
            Ok(package.map(|package| package.value().to_vec()))
        })
    }

    /// Applies `change` durably.
    ///
    /// # Errors
    /// `NeedsReopening`: nobody knows whether it was applied. After any other it was not.
    pub(super) fn apply(&self, change: &Change) -> Result<()> {
        self.write(|txn| apply(txn, change))
    }

    /// Durably reserves generations that no page on flash can carry yet and returns them.
    ///
    /// A generation is used up even when its commit never happens: a page that a crash left
    /// behind can then never pass for one that was written later to the same place.
    pub(super) fn reserve_generations(&self) -> Result<std::ops::Range<u32>> {
        self.write(|txn| {
            let mut meta = txn.open_table(META).map_err(other)?;
            let first = meta
                .get("next_generation")
                .map_err(other)?
                .map_or(1, |v| v.value());
            let end = first.checked_add(GENERATION_BATCH).ok_or_else(|| {
                StorageError::Invalid(
                    "the database has used up its commit numbers; copy its tables into a new one"
                        .into(),
                )
            })?;
            meta.insert("next_generation", end).map_err(other)?;
            Ok(first..end)
        })
    }

    fn read<R>(&self, work: impl Fn(&ReadTransaction) -> Result<R>) -> Result<R> {
        let result = guarded(|| {
            let txn = match &*self.handle.read() {
                Handle::Writable(db) => db.begin_read(),
                Handle::ReadOnly(db) => db.begin_read(),
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
    fn write<R>(&self, work: impl Fn(&WriteTransaction) -> Result<R>) -> Result<R> {
        let handle = &mut *self.handle.write();
        let db = match handle {
            Handle::Writable(db) => db,
            Handle::ReadOnly(_) => {
                return Err(StorageError::ReadOnly {
                    path: self.path.parent().unwrap_or(&self.path).to_path_buf(),
                    reason: "it was opened for reading only".into(),
                });
            }
            Handle::Lost(why) => return Err(needs_reopening(why)),
        };
        let mut done = None;
        let result = guarded(|| {
            let txn = db.begin_write().map_err(other)?;
            let (number, value) = (count_commit(&txn)?, work(&txn)?);
            done = Some((number, value));
            txn.commit().map_err(|e| match redb::Error::from(e) {
                redb::Error::Io(e) => io_error(e, &self.path),
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
            (None, _) | (_, Some(_)) => Err(error),
            (Some(_), None) => Err(StorageError::NeedsReopening {
                what: format!("{error}, and what is durable of the catalog is not known"),
            }),
        }
    }

    /// Opens `redb` once more after an error, as it does nothing more by itself, and gives the
    /// number of the last commit; `None` when nobody can tell.
    fn recover(&self, handle: &mut Handle) -> Option<u32> {
        let file = self.file.as_ref()?;
        let lost = "an error left the catalog in doubt".to_string();
        if let Err(error) = guarded(|| {
            drop(std::mem::replace(handle, Handle::Lost(lost)));
            Ok(())
        }) {
            log::warn!("closing the catalog: {error}");
        }
        let opened = if file.sync_has_failed() {
            Err(StorageError::Catalog("a sync of it has failed".into()))
        } else {
            guarded(|| {
                let db = open_redb(file).map_err(|e| open_error(e, &self.path))?;
                let found = commit_number(&db.begin_read().map_err(other)?)?;
                Ok((db, found))
            })
        };
        match opened {
            Ok((db, found)) => {
                *handle = Handle::Writable(db);
                Some(found)
            }
            Err(error) => {
                *handle = Handle::Lost(format!("{}: {error}", self.path.display()));
                None
            }
        }
    }
}

fn open_redb(file: &Arc<CatalogFile>) -> Result<redb::Database, redb::DatabaseError> {
    redb::Builder::new().create_with_backend(file::Lease(Arc::clone(file)))
}

/// Runs what may meet damaged bytes in `redb`, which panics at some.
fn guarded<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(StorageError::corrupt(format!(
            "the catalog's bytes are not what was written ({}); restore it, or reload the tables",
            text.unwrap_or_default()
        )))
    })
}

fn needs_reopening(why: &str) -> StorageError {
    StorageError::NeedsReopening { what: why.into() }
}

/// Counts a commit and gives its number, by which it is told from the one before it.
fn count_commit(txn: &WriteTransaction) -> Result<u32> {
    let mut meta = txn.open_table(META).map_err(other)?;
    let last = meta.get("commits").map_err(other)?.map_or(0, |v| v.value());
    let number = last.wrapping_add(1);
    meta.insert("commits", number).map_err(other)?;
    Ok(number)
}

fn commit_number(txn: &ReadTransaction) -> Result<u32> {
    let meta = match txn.open_table(META) {
        Ok(meta) => meta,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(0),
        Err(error) => return Err(other(error)),
    };
    Ok(meta.get("commits").map_err(other)?.map_or(0, |v| v.value()))
}

/// Reads everything.
fn contents(txn: &ReadTransaction) -> Result<Contents> {
    let mut schemas = Vec::new();
    for row in txn
        .open_table(SCHEMAS)
        .map_err(other)?
        .iter()
        .map_err(other)?
    {
        schemas.push(row.map_err(other)?.0.value().to_string());
    }
    let (records, segments) = (
        txn.open_table(TABLES).map_err(other)?,
        txn.open_table(SEGMENTS).map_err(other)?,
    );
    let parts = match txn.open_table(INDEX_PARTS) {
        Ok(parts) => Some(parts),
        // A database of format 1 that is opened for reading only.
        Err(redb::TableError::TableDoesNotExist(_)) => None,
        Err(error) => return Err(other(error)),
    };
    let mut tables = Vec::new();
    for row in txn
        .open_table(NAMES)
        .map_err(other)?
        .iter()
        .map_err(other)?
    {
        let (name, id) = row.map_err(other)?;
        let ((schema, name), id) = (name.value(), id.value());
        let what = format!("table '{schema}.{name}'");
        let sealed = records.get(id).map_err(other)?.ok_or_else(|| {
            StorageError::corrupt(format!("{what}: its manifest record is missing"))
        })?;
        let record: TableRecord = unseal(sealed.value(), &what)?;
        let mut live = Vec::new();
        for row in segments.range((id, 0)..=(id, u32::MAX)).map_err(other)? {
            let (key, sealed) = row.map_err(other)?;
            let segment = key.value().1;
            let record: SegmentRecord =
                unseal(sealed.value(), &format!("{what}, segment {segment}"))?;
            live.push((SegmentId(segment), record));
        }
        live.sort_by_key(|(id, record)| (record.order, id.0));
        let mut index_parts = Vec::new();
        if let Some(parts) = &parts {
            for row in parts.range((id, 0)..=(id, u32::MAX)).map_err(other)? {
                let (key, sealed) = row.map_err(other)?;
                let part = key.value().1;
                let record = unseal(sealed.value(), &format!("{what}, index part {part}"))?;
                index_parts.push((SegmentId(part), record));
            }
        }
        tables.push(CatalogTable {
            schema: schema.to_string(),
            name: name.to_string(),
            id: TableId(id),
            record,
            segments: live,
            index_parts,
        });
    }
    let mut functions = Vec::new();
    match txn.open_table(FUNCTIONS) {
        Ok(records) => {
            for row in records.iter().map_err(other)? {
                let (name, sealed) = row.map_err(other)?;
                let name = name.value().to_string();
                let record: FunctionRecord = unseal(sealed.value(), &format!("function '{name}'"))?;
                functions.push(record.decode_function(name)?);
            }
        }
        Err(redb::TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(other(error)),
    }
    let mut views = Vec::new();
    match txn.open_table(VIEWS) {
        Ok(records) => {
            for row in records.iter().map_err(other)? {
                let (key, sealed) = row.map_err(other)?;
                let (schema, name) = key.value();
                let record: ViewRecord =
                    unseal(sealed.value(), &format!("view '{schema}.{name}'"))?;
                views.push(record.decode_view(schema, name));
            }
        }
        Err(redb::TableError::TableDoesNotExist(_)) => {}
        Err(error) => return Err(other(error)),
    }
    let meta = txn.open_table(META).map_err(other)?;
    let next_table = meta
        .get("next_table")
        .map_err(other)?
        .map_or(1, |v| v.value());
    Ok(Contents {
        functions,
        views,
        schemas,
        tables,
        next_table,
    })
}

fn apply(txn: &WriteTransaction, change: &Change) -> Result<()> {
    let mut schemas = txn.open_table(SCHEMAS).map_err(other)?;
    if let Some(schema) = &change.put_schema {
        schemas.insert(schema.as_str(), ()).map_err(other)?;
    }
    if let Some(schema) = &change.drop_schema {
        schemas.remove(schema.as_str()).map_err(other)?;
    }
    let mut names = txn.open_table(NAMES).map_err(other)?;
    let mut tables = txn.open_table(TABLES).map_err(other)?;
    let mut segments = txn.open_table(SEGMENTS).map_err(other)?;
    let mut parts = txn.open_table(INDEX_PARTS).map_err(other)?;
    let mut forget = |id: TableId| -> Result<()> {
        let all = (id.0, 0)..=(id.0, u32::MAX);
        segments
            .retain_in(all.clone(), |_, _| false)
            .map_err(other)?;
        parts.retain_in(all, |_, _| false).map_err(other)
    };
    for (schema, name, id) in &change.drop_tables {
        names
            .remove((schema.as_str(), name.as_str()))
            .map_err(other)?;
        tables.remove(id.0).map_err(other)?;
        forget(*id)?;
    }
    if change.put_function.is_some() || change.drop_function.is_some() {
        let mut functions = txn.open_table(FUNCTIONS).map_err(other)?;
        let mut packages = txn.open_table(PACKAGES).map_err(other)?;
        if let Some((name, record, package)) = &change.put_function {
            functions
                .insert(name.as_str(), seal(record).as_slice())
                .map_err(other)?;
            packages
                .insert(name.as_str(), package.as_slice())
                .map_err(other)?;
        }
        if let Some(name) = &change.drop_function {
            functions.remove(name.as_str()).map_err(other)?;
            packages.remove(name.as_str()).map_err(other)?;
        }
    }
    if change.put_view.is_some() || change.drop_view.is_some() {
        let mut views = txn.open_table(VIEWS).map_err(other)?;
        if let Some(view) = &change.put_view {
            let record = ViewRecord::of(view);
            views
                .insert(
                    (view.schema.as_str(), view.name.as_str()),
                    seal(&record).as_slice(),
                )
                .map_err(other)?;
        }
        if let Some((schema, name)) = &change.drop_view {
            views
                .remove((schema.as_str(), name.as_str()))
                .map_err(other)?;
        }
    }
    if let Some(put) = &change.put_table {
        if put.replace_segments {
            forget(put.id)?;
        }
        names
            .insert((put.schema.as_str(), put.name.as_str()), put.id.0)
            .map_err(other)?;
        tables
            .insert(put.id.0, seal(&put.record).as_slice())
            .map_err(other)?;
        for (id, record) in &put.new_segments {
            segments
                .insert((put.id.0, id.0), seal(record).as_slice())
                .map_err(other)?;
        }
        for id in &put.drop_parts {
            parts.remove((put.id.0, id.0)).map_err(other)?;
        }
        for (id, record) in &put.new_parts {
            parts
                .insert((put.id.0, id.0), seal(record).as_slice())
                .map_err(other)?;
        }
        let mut meta = txn.open_table(META).map_err(other)?;
        let next = meta
            .get("next_table")
            .map_err(other)?
            .map_or(1, |v| v.value());
        meta.insert("next_table", next.max(put.id.0 + 1))
            .map_err(other)?;
    }
    Ok(())
}

fn io_error(error: std::io::Error, path: &Path) -> StorageError {
    match error.kind() {
        std::io::ErrorKind::StorageFull
        | std::io::ErrorKind::QuotaExceeded
        | std::io::ErrorKind::FileTooLarge => StorageError::Full {
            device: path.display().to_string(),
            needed_bytes: 0,
            free_bytes: 0,
        },
        std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => {
            StorageError::ReadOnly {
                path: path.parent().unwrap_or(path).to_path_buf(),
                reason: error.to_string(),
            }
        }
        _ => StorageError::io(format!("writing {}", path.display()), error),
    }
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
        E::RepairAborted => StorageError::NeedsRecovery {
            path: database.to_path_buf(),
        },
        E::Storage(redb::StorageError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidData => {
            StorageError::corrupt(format!("catalog of {database:?}: {e}; put it back"))
        }
        E::Storage(redb::StorageError::Io(e)) => io_error(e, &database.join("catalog.redb")),
        E::Storage(redb::StorageError::Corrupted(what)) => {
            StorageError::corrupt(format!("catalog of {database:?}: {what}"))
        }
        e => StorageError::Catalog(format!("{database:?}: {e}")),
    }
}

fn other(error: impl Into<redb::Error>) -> StorageError {
    match error.into() {
        redb::Error::Corrupted(what) => StorageError::corrupt(format!("catalog: {what}")),
        redb::Error::Io(e) => StorageError::io("reading or writing the catalog", e),
        e => StorageError::Catalog(e.to_string()),
    }
}
