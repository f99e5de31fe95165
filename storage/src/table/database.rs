//! A database: a folder with a catalog and a flash card.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::datatypes::{Schema, SchemaRef};
use parking_lot::{Mutex, RwLock};

use crate::flash::{FileFlash, FileFlashOptions, Flash, IoMode};
use crate::index::{Index, IndexPart};
use crate::store::PageStore;
use crate::table::catalog::{Catalog, CatalogTable, Change, PutTable};
use crate::table::folder::Folder;
use crate::table::manifest::{
    ColumnRecord, TableRecord, decode_definition, decode_part, decode_schema, decode_segment,
    encode_schema,
};
use crate::table::{
    Function, Load, LoadTarget, Segment, TableId, TableSnapshot, View, normalise_schema,
    scan_schema,
};
use crate::{Result, StorageError};

/// Number of the on-disk format that this build writes, and the newest that it reads.
///
/// 2 added indexes, 3 views; databases of earlier formats are read, and become format 3 when they
/// are opened for writing.
pub const FORMAT_VERSION: u32 = 3;

/// How to open a database.
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// Refuse every write; several processes may then read the database at once.
    pub read_only: bool,
    /// Bound of the page cache.
    pub cache_bytes: u64,
    /// How the card is read and written.
    pub io: IoMode,
    /// Bound of the card, if there is one.
    pub capacity_bytes: Option<u64>,
}

impl Default for DatabaseOptions {
    /// Reads and writes, a page cache of 1 GiB, io_uring with O_DIRECT where they work.
    fn default() -> Self {
        Self {
            read_only: false,
            cache_bytes: 1 << 30,
            io: IoMode::Auto,
            capacity_bytes: None,
        }
    }
}

/// An open database.
///
/// Readers take a [`TableSnapshot`] and are never blocked; writers make a [`Load`] each and meet
/// only at its commit.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    read_only: bool,
    pub(super) catalog: Catalog,
    store: Arc<PageStore>,
    /// The committed state, as readers see it.
    pub(super) state: RwLock<State>,
    /// Held while a commit goes from the check of `state` to its publication.
    pub(super) commit: Mutex<()>,
    generations: Mutex<std::ops::Range<u32>>,
    next_table: AtomicU32,
}

#[derive(Debug, Default)]
pub(super) struct State {
    schemas: Vec<String>,
    tables: HashMap<(String, String), TableState>,
    pub views: BTreeMap<(String, String), Arc<View>>,
    pub functions: BTreeMap<String, Arc<Function>>,
    /// Counts their changes.
    pub functions_version: u64,
}

#[derive(Debug, Clone)]
pub(super) struct TableState {
    pub snapshot: Arc<TableSnapshot>,
    pub record: Arc<TableRecord>,
    /// First segment number that no load has taken.
    pub next_segment: Arc<AtomicU32>,
}

impl Database {
    /// Opens the database in `dir`; makes a new one where `dir` is missing or empty.
    ///
    /// # Errors
    /// `InUse`, `NewerFormat`, `ReadOnly`, `Corrupt` (a file is missing, or does not agree with
    /// the other), `NotFound` (read-only and not there), `Invalid` (a folder that holds other
    /// files), `Io`.
    pub fn open(dir: &Path, options: DatabaseOptions) -> Result<Arc<Self>> {
        let folder = Folder::new(dir);
        let catalog = folder.open(&options)?;
        let flash = FileFlash::open(
            &folder.card,
            FileFlashOptions {
                read_only: options.read_only,
                create: false,
                io: options.io,
                capacity_bytes: options.capacity_bytes,
                ..FileFlashOptions::default()
            },
        )?;
        Self::with_parts(dir.to_path_buf(), catalog, Arc::new(flash), &options)
    }

    pub(super) fn with_parts(
        path: PathBuf,
        catalog: Catalog,
        flash: Arc<dyn Flash>,
        options: &DatabaseOptions,
    ) -> Result<Arc<Self>> {
        let contents = catalog.contents()?;
        let mut state = State {
            schemas: contents.schemas,
            functions: contents
                .functions
                .into_iter()
                .map(|function| (function.name.clone(), Arc::new(function)))
                .collect(),
            views: contents
                .views
                .into_iter()
                .map(|view| ((view.schema.clone(), view.name.clone()), Arc::new(view)))
                .collect(),
            ..State::default()
        };
        for table in contents.tables {
            let key = (table.schema.clone(), table.name.clone());
            state.tables.insert(key, open_table(table)?);
        }
        let live = state
            .tables
            .values()
            .flat_map(|t| t.snapshot.chunks())
            .map(|c| (c.run.first, c.run.count));
        let store = PageStore::open(flash, options.cache_bytes, live)?;
        Ok(Arc::new(Self {
            path,
            read_only: options.read_only,
            catalog,
            store,
            state: RwLock::new(state),
            commit: Mutex::new(()),
            generations: Mutex::new(0..0),
            next_table: AtomicU32::new(contents.next_table),
        }))
    }

    /// The database's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pages.
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Names of the schemas, sorted.
    pub fn schemas(&self) -> Vec<String> {
        let mut names = self.state.read().schemas.clone();
        names.sort();
        names
    }

    /// Names of the tables of a schema, sorted.
    pub fn tables(&self, schema: &str) -> Vec<String> {
        let state = self.state.read();
        let mut names: Vec<_> = state
            .tables
            .keys()
            .filter(|(s, _)| s == schema)
            .map(|(_, t)| t.clone())
            .collect();
        names.sort();
        names
    }

    /// The current version of a table.
    pub fn snapshot(&self, schema: &str, table: &str) -> Result<Arc<TableSnapshot>> {
        self.table_state(schema, table).map(|t| t.snapshot)
    }

    /// The current versions of several tables, `None` for one that is not there: taken together,
    /// so that each commit is in all of them or in none.
    pub fn snapshots<'a>(
        &self,
        names: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Vec<Option<Arc<TableSnapshot>>> {
        let state = self.state.read();
        let tables = names.into_iter().map(|name| state.tables.get(name));
        tables.map(|t| t.map(|t| Arc::clone(&t.snapshot))).collect()
    }

    pub(super) fn table_state(&self, schema: &str, table: &str) -> Result<TableState> {
        let key = (schema.to_string(), table.to_string());
        self.state
            .read()
            .tables
            .get(&key)
            .cloned()
            .ok_or_else(|| StorageError::NotFound {
                kind: "table",
                name: format!("{schema}.{table}"),
            })
    }

    /// Makes a schema.
    pub fn create_schema(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let _commit = self.commit.lock();
        if self.state.read().schemas.iter().any(|s| s == name) {
            return Err(StorageError::AlreadyExists {
                kind: "schema",
                name: name.into(),
            });
        }
        self.catalog.apply(&Change {
            put_schema: Some(name.into()),
            ..Change::default()
        })?;
        self.state.write().schemas.push(name.into());
        Ok(())
    }

    /// Drops an empty schema.
    pub fn drop_schema(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let _commit = self.commit.lock();
        if !self.state.read().schemas.iter().any(|s| s == name) {
            return Err(StorageError::NotFound {
                kind: "schema",
                name: name.into(),
            });
        }
        let (tables, views) = (self.tables(name), self.views(name));
        if let Some(first) = tables.iter().chain(&views).next() {
            let kind = if tables.is_empty() { "views" } else { "tables" };
            return Err(StorageError::Invalid(format!(
                "schema '{name}' has {kind} ('{first}'…); drop them first"
            )));
        }
        self.catalog.apply(&Change {
            drop_schema: Some(name.into()),
            ..Change::default()
        })?;
        self.state.write().schemas.retain(|s| s != name);
        Ok(())
    }

    /// Makes an empty table; types are stored as [`normalise_schema`] says.
    pub fn create_table(
        self: &Arc<Self>,
        schema: &str,
        table: &str,
        arrow_schema: &Schema,
    ) -> Result<Arc<TableSnapshot>> {
        self.begin_load(LoadTarget::Create {
            schema: schema.into(),
            table: table.into(),
            arrow_schema: Arc::new(arrow_schema.clone()),
            or_replace: false,
            indexes: Vec::new(),
        })?
        .commit()?;
        self.snapshot(schema, table)
    }

    /// Drops a table. Readers that hold a snapshot finish undisturbed; its pages are free when
    /// the last of them is done.
    pub fn drop_table(&self, schema: &str, table: &str) -> Result<()> {
        self.check_writable()?;
        let _commit = self.commit.lock();
        let dropped = self.table_state(schema, table)?;
        self.catalog.apply(&Change {
            drop_tables: vec![(schema.into(), table.into(), dropped.snapshot.id)],
            ..Change::default()
        })?;
        self.state
            .write()
            .tables
            .remove(&(schema.to_string(), table.to_string()));
        let snapshot = &dropped.snapshot;
        let parts = snapshot.indexes.iter().flat_map(|i| &i.parts);
        self.retire(&snapshot.segments, parts);
        Ok(())
    }

    /// Starts a load: see [`Load`].
    pub fn begin_load(self: &Arc<Self>, target: LoadTarget) -> Result<Load> {
        self.check_writable()?;
        Load::begin(self, target)
    }

    fn retire<'a>(
        &self,
        segments: &[Arc<Segment>],
        parts: impl IntoIterator<Item = &'a Arc<IndexPart>>,
    ) {
        for segment in segments {
            segment.retire(&self.store);
        }
        for part in parts {
            part.retire(&self.store);
        }
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(StorageError::ReadOnly {
                path: self.path.clone(),
                reason: "it was opened for reading only".into(),
            });
        }
        Ok(())
    }

    pub(super) fn check_schema_exists(&self, schema: &str) -> Result<()> {
        if self.state.read().schemas.iter().any(|s| s == schema) {
            return Ok(());
        }
        Err(StorageError::NotFound {
            kind: "schema",
            name: schema.into(),
        })
    }

    /// A generation that no page carries yet.
    pub(super) fn next_generation(&self) -> Result<u32> {
        let mut left = self.generations.lock();
        if left.is_empty() {
            *left = self.catalog.reserve_generations()?;
        }
        Ok(left.next().expect("a reservation is never empty"))
    }

    pub(super) fn next_table_id(&self) -> TableId {
        TableId(self.next_table.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes `put` the current version of its table, if `check` still finds the table as the
    /// writer needs it. `check` runs under the commit lock and gives the table that is replaced
    /// or appended to, if any.
    pub(super) fn commit_table(
        &self,
        check: impl FnOnce(Option<&TableState>) -> Result<Commit>,
        schema: &str,
        table: &str,
    ) -> Result<()> {
        self.check_writable()?;
        let _commit = self.commit.lock();
        let key = (schema.to_string(), table.to_string());
        self.check_schema_exists(schema)?;
        self.check_no_view(schema, table)?;
        let present = self.state.read().tables.get(&key).cloned();
        let Commit {
            put,
            snapshot,
            next_segment,
            retired,
            retired_parts,
        } = check(present.as_ref())?;
        let record = Arc::new(put.record.clone());
        let drop_tables = match &present {
            Some(old) if old.snapshot.id != put.id => {
                vec![(schema.to_string(), table.to_string(), old.snapshot.id)]
            }
            _ => Vec::new(),
        };
        self.catalog.apply(&Change {
            drop_tables,
            put_table: Some(put),
            ..Change::default()
        })?;
        self.state.write().tables.insert(
            key,
            TableState {
                snapshot,
                record,
                next_segment,
            },
        );
        self.retire(&retired, &retired_parts);
        Ok(())
    }
}

/// What a load asks the database to publish.
pub(super) struct Commit {
    pub put: PutTable,
    pub snapshot: Arc<TableSnapshot>,
    pub next_segment: Arc<AtomicU32>,
    /// Segments that the new version no longer has.
    pub retired: Vec<Arc<Segment>>,
    /// Index parts likewise.
    pub retired_parts: Vec<Arc<IndexPart>>,
}

fn open_table(table: CatalogTable) -> Result<TableState> {
    let name = format!("{}.{}", table.schema, table.name);
    let schema = decode_schema(&table.record.schema, &format!("table '{name}'"))?;
    let labels = labels(&name, &schema);
    let segments = table
        .segments
        .iter()
        .map(|(id, record)| decode_segment(record, table.id, *id, &labels).map(Arc::new))
        .collect::<Result<Vec<_>>>()?;
    let indexes = open_indexes(&table, &name, &segments)?;
    let next_segment = Arc::new(AtomicU32::new(table.record.next_segment));
    let snapshot = Arc::new(make_snapshot(
        table.id,
        name,
        schema,
        &table.record,
        segments,
        indexes,
    ));
    Ok(TableState {
        snapshot,
        record: Arc::new(table.record),
        next_segment,
    })
}

/// The indexes of a table whose segments are `segments`, all of which each must cover.
fn open_indexes(
    table: &CatalogTable,
    name: &str,
    segments: &[Arc<Segment>],
) -> Result<Vec<Arc<Index>>> {
    let mut live: Vec<_> = segments.iter().map(|s| (s.id, s.rows)).collect();
    live.sort_unstable();
    let indexes = table.record.indexes.iter().map(|record| {
        let parts = table
            .index_parts
            .iter()
            .filter(|(_, part)| part.index == record.name)
            .map(|(id, part)| decode_part(part, table.id, *id, name).map(Arc::new))
            .collect::<Result<Vec<_>>>()?;
        let mut covered: Vec<_> = parts
            .iter()
            .flat_map(|p| p.covers.iter().copied())
            .collect();
        covered.sort_unstable();
        if covered != live {
            return Err(StorageError::corrupt(format!(
                "table '{name}', index '{}': it does not cover the table's segments",
                record.name
            )));
        }
        Ok(Arc::new(Index::new(decode_definition(record)?, parts)))
    });
    indexes.collect()
}

pub(super) fn make_snapshot(
    id: TableId,
    name: String,
    schema: SchemaRef,
    record: &TableRecord,
    segments: Vec<Arc<Segment>>,
    indexes: Vec<Arc<Index>>,
) -> TableSnapshot {
    TableSnapshot {
        id,
        name,
        scan_schema: scan_schema(&schema),
        schema,
        version: record.version,
        segments,
        statistics: record
            .columns
            .iter()
            .map(ColumnRecord::statistics)
            .collect(),
        indexes,
    }
}

/// What errors call each column of a table.
pub(super) fn labels(table: &str, schema: &Schema) -> Vec<Arc<str>> {
    schema
        .fields()
        .iter()
        .map(|f| format!("table '{table}', column '{}'", f.name()).into())
        .collect()
}

pub(super) fn empty_record(schema: &SchemaRef) -> TableRecord {
    TableRecord {
        schema: encode_schema(schema),
        version: 0,
        next_segment: 0,
        columns: vec![ColumnRecord::default(); schema.fields().len()],
        indexes: Vec::new(),
    }
}

/// The stored form of a schema that a load was given.
pub(super) fn stored_schema(schema: &Schema) -> Result<SchemaRef> {
    if schema.fields().is_empty() {
        return Err(StorageError::Invalid(
            "a table needs at least one column".into(),
        ));
    }
    normalise_schema(schema)
}
