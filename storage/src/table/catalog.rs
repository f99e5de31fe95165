//! The catalog: which schemas, tables and segments there are, in `redb`.

use std::path::{Path, PathBuf};

use redb::{ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};

use crate::table::database::FORMAT_VERSION;
use crate::table::manifest::{
    FunctionRecord, PartRecord, SegmentRecord, TableRecord, seal, unseal,
};
use crate::table::{Function, SegmentId, TableId};
use crate::{Result, StorageError};

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

/// Generations reserved by one durable write; see [`Catalog::reserve_generations`].
const GENERATION_BATCH: u32 = 1024;

/// The open catalog.
#[derive(Debug)]
pub(super) struct Catalog {
    handle: Handle,
    path: PathBuf,
}

enum Handle {
    Writable(redb::Database),
    ReadOnly(redb::ReadOnlyDatabase),
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Writable(_) => "writable",
            Self::ReadOnly(_) => "read-only",
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
    /// Opens the catalog at `path`, making an empty one if `create`.
    pub(super) fn open(
        path: &Path,
        database: &Path,
        read_only: bool,
        create: bool,
    ) -> Result<Self> {
        let handle = if read_only {
            Handle::ReadOnly(
                redb::ReadOnlyDatabase::open(path).map_err(|e| open_error(e, database))?,
            )
        } else {
            let opened = if create {
                redb::Database::create(path)
            } else {
                redb::Database::open(path)
            };
            Handle::Writable(opened.map_err(|e| open_error(e, database))?)
        };
        let catalog = Self {
            handle,
            path: path.to_path_buf(),
        };
        // A crash in the first moments leaves a catalog without tables: it is made again.
        let blank = !read_only
            && catalog
                .read()?
                .list_tables()
                .map_err(other)?
                .next()
                .is_none();
        if create || blank {
            let txn = catalog.write()?;
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
            catalog.commit(txn)?;
        }
        let txn = catalog.read()?;
        let meta = txn.open_table(META).map_err(|_| {
            StorageError::corrupt(format!(
                "{path:?} is not the catalog of a flashmesh database"
            ))
        })?;
        let found = meta.get("format").map_err(other)?.map_or(0, |v| v.value());
        if found > FORMAT_VERSION {
            return Err(StorageError::NewerFormat {
                path: database.to_path_buf(),
                found,
                supported: FORMAT_VERSION,
            });
        }
        if found == 0 {
            return Err(StorageError::corrupt(format!("{path:?} names no format")));
        }
        drop(meta);
        drop(txn);
        if found < FORMAT_VERSION && !read_only {
            // Format 2 has indexes besides. A build that knows only format 1 would not keep them
            // up, so it may not write to the database from here on.
            let txn = catalog.write()?;
            txn.open_table(INDEX_PARTS).map_err(other)?;
            txn.open_table(META)
                .map_err(other)?
                .insert("format", FORMAT_VERSION)
                .map_err(other)?;
            catalog.commit(txn)?;
        }
        Ok(catalog)
    }

    /// Reads everything.
    pub(super) fn contents(&self) -> Result<Contents> {
        let txn = self.read()?;
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
                    let record: FunctionRecord =
                        unseal(sealed.value(), &format!("function '{name}'"))?;
                    functions.push(record.decode_function(name)?);
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
            schemas,
            tables,
            next_table,
        })
    }

    /// The package of a function, if there is one.
    pub(super) fn package(&self, function: &str) -> Result<Option<Vec<u8>>> {
        let txn = self.read()?;
        let packages = match txn.open_table(PACKAGES) {
            Ok(packages) => packages,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(other(error)),
        };
        let package = packages.get(function).map_err(other)?;
        Ok(package.map(|package| package.value().to_vec()))
    }

    /// Applies `change` durably.
    pub(super) fn apply(&self, change: Change) -> Result<()> {
        let txn = self.write()?;
        {
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
        }
        self.commit(txn)
    }

    /// Durably reserves generations that no page on flash can carry yet and returns them.
    ///
    /// A generation is used up even when its commit never happens: a page that a crash left
    /// behind can then never pass for one that was written later to the same place.
    pub(super) fn reserve_generations(&self) -> Result<std::ops::Range<u32>> {
        let txn = self.write()?;
        let range = {
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
            first..end
        };
        self.commit(txn)?;
        Ok(range)
    }

    fn read(&self) -> Result<ReadTransaction> {
        match &self.handle {
            Handle::Writable(db) => db.begin_read(),
            Handle::ReadOnly(db) => db.begin_read(),
        }
        .map_err(other)
    }

    fn write(&self) -> Result<WriteTransaction> {
        match &self.handle {
            Handle::Writable(db) => db.begin_write().map_err(other),
            Handle::ReadOnly(_) => Err(StorageError::ReadOnly {
                path: self.path.parent().unwrap_or(&self.path).to_path_buf(),
                reason: "it was opened for reading only".into(),
            }),
        }
    }

    fn commit(&self, txn: WriteTransaction) -> Result<()> {
        txn.commit().map_err(|e| match redb::Error::from(e) {
            redb::Error::Io(e) => io_error(e, &self.path),
            e => StorageError::Catalog(e.to_string()),
        })
    }
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
