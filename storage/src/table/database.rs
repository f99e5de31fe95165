//! A database: a folder with a catalog and a flash card.

use std::any::Any;
use std::io;
use std::mem;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arrow::datatypes::{Schema, SchemaRef};
use parking_lot::{Mutex, RwLock};

use crate::block_cache::{BlockCache, CacheIndex};
use crate::flash::{FileFlash, FileFlashOptions, Flash, IoMode};
use crate::memory::{MemoryBudget, Unbounded};
use crate::segment::{Chunk, TableId};
use crate::store::{CardId, MEMORY_CARD, NodeId, PageRun, PageStore, StoreCard};
use crate::table::catalog::{Catalog, Numbers};
use crate::table::change::conflict;
use crate::table::checks::encode_checks;
use crate::table::closed::{Closed, Closing};
use crate::table::commit_log::Log;
use crate::table::commits::{self, Commits};
use crate::table::edit::{ObjectName, Operation, Precondition, TableEdit};
use crate::table::folder::{CatalogStore, Folder};
use crate::table::history::CatalogHistory;
use crate::table::indexing::put_next;
use crate::table::manifest::{ColumnRecord, TableRecord, encode_defaults};
use crate::table::schema_record::encode_schema;
use crate::table::scrub::Scrub;
use crate::table::sequences::Sequences;
use crate::table::small_commits::SmallCommits;
use crate::table::state::{State, TableState};
use crate::table::steps::Step;
use crate::table::upkeep::{Background, Upkeep};
use crate::table::{Check, CheckLanguage, Load, LoadTarget, TableSnapshot, UpkeepOptions};
use crate::{Result, StorageError};

/// Number of the on-disk format that this build writes, and the newest that it reads.
///
/// 2 added indexes, 3 views and a catalog in which nothing is missing unnoticed, 4 page indexes in
/// pages, 5 deleted rows, 6 parts of indexes that outlive a segment, 7 the log; databases of earlier
/// formats are read, and become 7 when they are opened for writing. 8 has past versions of tables and
/// pages that columns share; a database becomes that with the first of either. 9 has accounts, with the
/// first of which a database becomes that.
pub const FORMAT_VERSION: u32 = 9;

/// That of databases without accounts that have what format 8 brought.
pub(super) const FORMAT_WITHOUT_ACCOUNTS: u32 = 8;

/// That of databases whose catalog has neither past versions of tables nor pages that columns share:
/// earlier builds may write to them.
pub(super) const FORMAT_WITHOUT_PAST: u32 = 7;

/// How to open a database.
#[derive(Debug, Clone)]
pub struct DatabaseOptions {
    /// Refuse every write; several processes may then read the database at once.
    pub read_only: bool,
    /// A new database that goes with the process, whatever happens: catalog and log are kept in
    /// memory, and nothing waits for the disk.
    pub temporary: bool,
    /// Bound of the page cache.
    pub cache_bytes: u64,
    /// How the card is read and written.
    pub io: IoMode,
    /// Bound of the card, if there is one.
    pub capacity_bytes: Option<u64>,
    /// The card, in place of the file in the folder: whoever opens the database again brings the same.
    /// It takes no other options.
    pub card: Option<Arc<dyn Flash>>,
    /// Where the catalog and the log are, in place of files in the folder; with a `card`. Such a
    /// database is not opened for reading only.
    pub catalog: Option<Arc<dyn CatalogStore>>,
    /// The node of a rack that the database's own card is of.
    pub node: NodeId,
    /// Cards of the rack's other nodes: segments take turns between all of them.
    pub cards: Vec<StoreCard>,
    /// Whether cards have copies on other nodes: one that is empty though tables have pages on it is not
    /// written to then, as copies would be brought up to it.
    pub cards_have_copies: bool,
    /// The way to the cards and to the catalog: it is kept until the database is closed, by whoever has
    /// it last.
    pub way: Option<Arc<dyn Any + Send + Sync>>,
    /// What the cache for external files may take up on the card; 0: there is none. A database that is
    /// opened for reading only has none, nor has one with cards of several nodes.
    pub block_cache_bytes: u64,
    /// How indexes are kept up.
    pub upkeep: UpkeepOptions,
    /// What building indexes takes its memory from.
    pub memory: Arc<dyn MemoryBudget>,
    /// What tests CHECK constraints; without it no rows come into tables that have some.
    pub checks: Option<Arc<dyn CheckLanguage>>,
}

impl Default for DatabaseOptions {
    /// Reads and writes, a page cache of 1 GiB, no cache for external files, io_uring with O_DIRECT
    /// where they work, no bound of the memory of builds.
    fn default() -> Self {
        Self {
            read_only: false,
            temporary: false,
            cache_bytes: 1 << 30,
            io: IoMode::Auto,
            capacity_bytes: None,
            card: None,
            catalog: None,
            node: NodeId::default(),
            cards: Vec::new(),
            cards_have_copies: false,
            way: None,
            block_cache_bytes: 0,
            upkeep: UpkeepOptions::default(),
            memory: Arc::new(Unbounded),
            checks: None,
        }
    }
}

/// An open database.
///
/// Readers take a [`TableSnapshot`] and are never blocked; writers make a [`Load`] each and meet
/// only at its commit.
#[derive(Debug)]
pub struct Database {
    /// The thread that keeps indexes up; it ends before the rest goes.
    background: Option<Background>,
    core: Arc<Core>,
    /// See [`DatabaseOptions::way`]; what is written last goes over it (fields are dropped in this order).
    _way: Option<Arc<dyn Any + Send + Sync>>,
    /// Dropped behind all else.
    closing: Closing,
}

/// The database without the thread in the background, which shares it.
#[derive(Debug)]
pub struct Core {
    path: PathBuf,
    read_only: bool,
    pub(super) catalog: Catalog,
    /// Where that is, if not in the folder.
    kept_by: Option<Arc<dyn CatalogStore>>,
    store: Arc<PageStore>,
    block_cache: Option<Arc<BlockCache>>,
    /// The committed state, as readers see it.
    pub(super) state: RwLock<State>,
    pub(super) commits: Commits,
    pub(super) small_commits: SmallCommits,
    numbers: Mutex<Numbers>,
    /// That of the rows that are written since the database was opened.
    generation: Mutex<Option<u32>>,
    pub(super) sequences: Mutex<Sequences>,
    /// Why nothing may be written: what the catalog lost can't be told from free space.
    damage: Option<String>,
    pub(super) upkeep: Upkeep,
    pub(super) scrub: Scrub,
    /// Of builds of indexes.
    pub(super) memory: Arc<dyn MemoryBudget>,
    pub(super) checks: Option<Arc<dyn CheckLanguage>>,
}

impl Drop for Database {
    fn drop(&mut self) {
        self.background = None;
        if let Some(cache) = &self.core.block_cache {
            cache.close();
        }
        if self.core.check_writable().is_err() {
            return;
        }
        let path = self.core.path.display();
        if let Err(error) = self.core.close_log() {
            log::warn!("{path}: commits stay in its log until it is opened again: {error}");
        }
        if let Err(error) = self.core.return_numbers() {
            log::warn!("{path}: generated keys will have a gap: {error}");
        }
    }
}

impl Deref for Database {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Database {
    /// Opens the database in `dir`; makes a new one where `dir` is missing or empty.
    ///
    /// # Errors
    /// `InUse`, `NewerFormat`, `ReadOnly`, `Corrupt` (a file is missing, or does not agree with
    /// the other), `NotFound` (read-only and not there), `Invalid` (a folder that holds other
    /// files), `Io`, which [is gone](StorageError::is_gone) where a card is, or holds nothing of what is
    /// on it.
    pub fn open(dir: &Path, options: DatabaseOptions) -> Result<Arc<Self>> {
        let folder = Folder::new(dir);
        let (catalog, log) = match options.temporary {
            true => folder.open_temporary()?,
            false => folder.open(&options)?,
        };
        let flash: Arc<dyn Flash> = match &options.card {
            Some(card) => Arc::clone(card),
            None => Arc::new(FileFlash::open(
                &folder.card,
                FileFlashOptions {
                    read_only: options.read_only,
                    create: options.temporary,
                    durable: !options.temporary,
                    io: options.io,
                    capacity_bytes: options.capacity_bytes,
                    ..FileFlashOptions::default()
                },
            )?),
        };
        Self::with_parts(dir.to_path_buf(), catalog, flash, log, &options)
    }

    pub(super) fn with_parts(
        path: PathBuf,
        catalog: Catalog,
        flash: Arc<dyn Flash>,
        log: Log,
        options: &DatabaseOptions,
    ) -> Result<Arc<Self>> {
        let contents = catalog.contents()?;
        let found = log.read(contents.logged)?;
        if !options.read_only && contents.problems.is_empty() {
            log.settle(found.end)?;
        }
        let mut problems = contents.problems;
        let mut state = State {
            schemas: contents.schemas,
            damaged: contents.damaged.into_iter().collect(),
            accounts: Arc::new(contents.accounts),
            ..State::default()
        };
        for function in contents.functions {
            let name = function.name.clone();
            state.functions.insert(name, Arc::new(function));
        }
        for view in contents.views {
            let name = ObjectName::new(&view.schema, &view.name);
            state.views.insert(name, Arc::new(view));
        }
        for mut table in contents.tables {
            let name = table.name.clone();
            let history = mem::replace(&mut table.history, Ok(CatalogHistory::default()));
            match State::opened_table(table) {
                Ok(mut table) => {
                    let opened = history.and_then(|records| {
                        State::opened_history(&table, records).map_err(|error| error.damage())
                    });
                    match opened {
                        Ok(history) => table.history = history,
                        Err(how) => {
                            let (schema, name) = (&name.schema, &name.name);
                            problems.push(format!("the past of table '{schema}.{name}': {how}"));
                        }
                    }
                    drop(state.tables.insert(name, table));
                }
                Err(error) => drop(state.damaged.insert(name, error.damage())),
            }
        }
        let past = state.past();
        commits::replay(&mut state, &found);
        for (name, how) in &state.damaged {
            problems.push(format!("table '{}.{}': {how}", name.schema, name.name));
        }
        for problem in &problems {
            log::error!("{}: {problem}", path.display());
        }
        let runs = state.tables.values().flat_map(TableState::chunks);
        let runs = runs.flat_map(Chunk::runs);
        let (in_memory, on_card): (Vec<_>, Vec<_>) =
            runs.partition(|run| run.first.card == MEMORY_CARD);
        let live: Vec<_> = on_card.iter().map(|run| (run.first, run.count)).collect();
        let geometry = flash.geometry();
        let is_sound = !options.read_only && problems.is_empty();
        let is_alone = options.cards.is_empty() && options.node == NodeId::default();
        let caches_blocks = is_sound && is_alone && options.block_cache_bytes > 0;
        let cached = match caches_blocks {
            true => CacheIndex::load(&path, &geometry, live.iter().copied()),
            false => CacheIndex::default(),
        };
        if is_sound && !caches_blocks {
            CacheIndex::remove(&path);
        }
        let all = live.into_iter().chain(cached.runs());
        let mut cards = vec![StoreCard {
            node: options.node,
            card: CardId::default(),
            flash,
        }];
        cards.extend(options.cards.iter().cloned());
        if options.cards_have_copies && !options.read_only {
            check_not_emptied(&cards, &on_card)?;
        }
        let store = PageStore::open_cards(cards, options.cache_bytes, all)?;
        let block_cache = match caches_blocks {
            true => BlockCache::open(
                &store,
                &geometry,
                &path,
                options.card.is_none(),
                options.block_cache_bytes,
                cached,
            ),
            false => None,
        };
        found.restore(&store, &in_memory)?;
        let commits = Commits::new(state.clone(), past, log, found);
        let core = Arc::new(Core {
            path,
            read_only: options.read_only,
            catalog,
            kept_by: options.catalog.clone(),
            store,
            block_cache,
            state: RwLock::new(state.clone()),
            commits,
            small_commits: SmallCommits::default(),
            numbers: Mutex::default(),
            generation: Mutex::default(),
            sequences: Mutex::default(),
            damage: (!problems.is_empty()).then(|| problems.join("; ")),
            upkeep: Upkeep::new(options.upkeep.clone()),
            scrub: Scrub::default(),
            memory: Arc::clone(&options.memory),
            checks: options.checks.clone(),
        });
        if core.check_writable().is_ok() {
            core.catalog.keep_sequences(&state.sequences())?;
            let collector: Weak<Core> = Arc::downgrade(&core);
            core.store.set_collector(collector);
            if let Some(cache) = &core.block_cache {
                let numbers: Weak<Core> = Arc::downgrade(&core);
                cache.start(move || match numbers.upgrade() {
                    Some(core) => core.next_generation(),
                    None => Err(StorageError::Cancelled),
                });
            }
        }
        let has_upkeep = options.upkeep.in_background && core.check_writable().is_ok();
        Ok(Arc::new(Self {
            background: has_upkeep.then(|| Background::start(&core)),
            core,
            _way: options.way.clone(),
            closing: Closing::default(),
        }))
    }

    /// Why nothing can be committed until it is opened anew, as nobody knows what is durable of what was
    /// written; `None` where something can, or is being committed right now. Blocks nobody.
    pub fn needs_reopening(&self) -> Option<String> {
        self.commits.failure().or_else(|| self.store.failure())
    }

    /// Tells when it has been closed: it is when the last `Arc` of it is dropped.
    pub fn closed(&self) -> Closed {
        self.closing.closed()
    }

    /// Makes an empty table; types are stored as [`normalise_schema`](crate::table::normalise_schema) says.
    pub fn create_table(
        self: &Arc<Self>,
        schema: &str,
        table: &str,
        arrow_schema: &Schema,
    ) -> Result<Arc<TableSnapshot>> {
        self.begin_load(LoadTarget::Create {
            layout: Default::default(),
            distribution: None,
            retention: Duration::ZERO,
            defaults: vec![],
            checks: vec![],
            schema: schema.into(),
            table: table.into(),
            arrow_schema: Arc::new(arrow_schema.clone()),
            or_replace: false,
            indexes: Vec::new(),
        })?
        .commit()?;
        self.snapshot(schema, table)
    }

    /// Starts a load: see [`Load`].
    pub fn begin_load(self: &Arc<Self>, target: LoadTarget) -> Result<Load> {
        self.check_writable()?;
        Load::begin(self, None, target)
    }
}

impl Core {
    /// The database's folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pages.
    pub fn store(&self) -> &Arc<PageStore> {
        &self.store
    }

    /// The cache for external files, if there is one.
    pub fn block_cache(&self) -> Option<&Arc<BlockCache>> {
        self.block_cache.as_ref()
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What opening found damaged in the catalog.
    pub(super) fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Names of the schemas, sorted.
    pub fn schemas(&self) -> Vec<String> {
        self.state.read().schemas()
    }

    /// Names of the tables of a schema, sorted.
    pub fn tables(&self, schema: &str) -> Vec<String> {
        self.state.read().tables_of(schema)
    }

    /// The current version of a table.
    pub fn snapshot(&self, schema: &str, table: &str) -> Result<Arc<TableSnapshot>> {
        self.table_state(schema, table).map(|t| t.snapshot)
    }

    /// The current versions of several tables, `None` for one that is not there: taken together,
    /// so that each commit is in all of them or in none.
    ///
    /// # Errors
    /// `Io` where another node may have committed since.
    pub fn snapshots<'a>(
        &self,
        names: impl IntoIterator<Item = &'a (String, String)>,
    ) -> Result<Vec<Option<Arc<TableSnapshot>>>> {
        let found = {
            let state = self.state.read();
            let names = names.into_iter();
            let names = names.map(|(schema, table)| ObjectName::new(schema, table));
            let tables = names.map(|name| state.tables.get(&name));
            tables.map(|t| t.map(|t| Arc::clone(&t.snapshot))).collect()
        };
        // Asked now, as this process may have been stopped before.
        self.check_current()?;
        Ok(found)
    }

    pub(super) fn table_state(&self, schema: &str, table: &str) -> Result<TableState> {
        let found = self.find_table(&ObjectName::new(schema, table))?;
        found.ok_or_else(|| StorageError::NotFound {
            kind: "table",
            name: format!("{schema}.{table}"),
        })
    }

    /// A table, if there is one of that name.
    ///
    /// # Errors
    /// `Corrupt` when the catalog lost what it knew of the table, or can't tell; `Io` where another
    /// process may have the database now.
    pub(super) fn find_table(&self, name: &ObjectName) -> Result<Option<TableState>> {
        self.check_current()?;
        self.find_table_in(&self.state.read(), name)
    }

    /// Whether what readers see is the newest, for all that this process can know.
    ///
    /// # Errors
    /// `Io` where another process may have the database now.
    pub(super) fn check_current(&self) -> Result<()> {
        let keeper = self.kept_by.as_ref();
        keeper.map_or(Ok(()), |keeper| keeper.check_current())
    }

    pub(super) fn find_table_in(
        &self,
        state: &State,
        name: &ObjectName,
    ) -> Result<Option<TableState>> {
        if let Some(how) = state.damaged.get(name) {
            return Err(StorageError::corrupt(format!(
                "table '{}.{}' can't be read: {how}",
                name.schema, name.name
            )));
        }
        let found = state.tables.get(name).cloned();
        match &self.damage {
            Some(damage) if found.is_none() => Err(StorageError::corrupt(format!(
                "there is no table '{}.{}' in what is left of the catalog: {damage}",
                name.schema, name.name
            ))),
            _ => Ok(found),
        }
    }

    pub(super) fn check_writable(&self) -> Result<()> {
        if self.read_only {
            return Err(StorageError::ReadOnly {
                path: self.path.clone(),
                reason: "it was opened for reading only".into(),
            });
        }
        match &self.damage {
            None => Ok(()),
            Some(damage) => Err(StorageError::corrupt(format!(
                "database {:?} can only be read, as its catalog is damaged: {damage}; restore it, \
                 or copy its sound tables into a new one",
                self.path
            ))),
        }
    }

    /// A generation that no page carries yet.
    pub(super) fn next_generation(&self) -> Result<u32> {
        self.next_number(|numbers| &mut numbers.generations)
    }

    /// The generation of rows that are written while the database is open. One is enough, as numbers of
    /// segments are not used again before it is opened anew; were it one for each commit, there would be no
    /// more of them within weeks.
    pub(super) fn generation(&self) -> Result<u32> {
        let mut generation = self.generation.lock();
        Ok(match *generation {
            Some(known) => known,
            None => *generation.insert(self.next_generation()?),
        })
    }

    pub(super) fn next_table_id(&self) -> Result<TableId> {
        self.next_number(|numbers| &mut numbers.tables).map(TableId)
    }

    fn next_number(&self, of: impl Fn(&mut Numbers) -> &mut Range<u32>) -> Result<u32> {
        let mut numbers = self.numbers.lock();
        if let Some(number) = of(&mut numbers).next() {
            return Ok(number);
        }
        *numbers = self.catalog.reserve_numbers()?;
        Ok(of(&mut numbers)
            .next()
            .expect("a reservation is never empty"))
    }
}

/// Looks at whether a card holds nothing though the catalog has pages on it: its device was replaced, or
/// its file is away. Whoever wrote to it would take the places of these pages, and copies of them that are
/// elsewhere would be brought up to it.
fn check_not_emptied(cards: &[StoreCard], on_card: &[&PageRun]) -> Result<()> {
    for card in cards {
        let own = |run: &&&PageRun| (run.first.node, run.first.card) == (card.node, card.card);
        let pages: u64 = on_card
            .iter()
            .filter(own)
            .map(|run| u64::from(run.count))
            .sum();
        if pages > 0 && card.flash.used_erase_blocks()? == 0 {
            let why = format!(
                "it is empty, and {pages} pages of tables are on it: put it back, or have a node up that holds a \
                 copy of it"
            );
            let source = io::Error::new(io::ErrorKind::NotConnected, why);
            return Err(StorageError::io(card.flash.name(), source));
        }
    }
    Ok(())
}

/// The step that drops a table.
pub(super) fn table_dropped(present: &TableState, schema: &str, table: &str) -> Step {
    Step::DropTable {
        name: ObjectName::new(schema, table),
        table: present.snapshot.id,
        only: None,
    }
}

/// The step that sets for how long the past versions of a table stay readable, in microseconds; 0:
/// not at all.
pub(super) fn retention_set(
    present: &TableState,
    schema: &str,
    table: &str,
    retention_us: u64,
) -> Step {
    let name = ObjectName::new(schema, table);
    Step::edit_of(name.clone(), present.snapshot.id, move |present| {
        let mut edit = TableEdit::default();
        put_record(&mut edit, &name, present, |record| {
            record.retention_us = retention_us;
        });
        Ok(edit)
    })
}

/// The step that sets what is said of a table.
pub(super) fn comment_set(present: &TableState, schema: &str, table: &str, comment: &str) -> Step {
    let (name, comment) = (ObjectName::new(schema, table), comment.to_owned());
    Step::edit_of(name.clone(), present.snapshot.id, move |present| {
        let mut edit = TableEdit::default();
        put_record(&mut edit, &name, present, |record| {
            record.comment.clone_from(&comment);
        });
        Ok(edit)
    })
}

/// The step that gives a table another name.
pub(super) fn table_renamed(present: &TableState, schema: &str, table: &str, to: &str) -> Step {
    let (from, to) = (ObjectName::new(schema, table), ObjectName::new(schema, to));
    Step::edit_of(from.clone(), present.snapshot.id, move |present| {
        let mut edit = TableEdit::default();
        edit.require(Precondition::NoTable(to.clone()));
        edit.require(Precondition::NoView(to.clone()));
        edit.push(Operation::RenameTable(from.clone()));
        put_record(&mut edit, &to, present, |_| ());
        Ok(edit)
    })
}

/// The step that redefines the columns of a table.
///
/// # Errors
/// `Invalid` for other types.
pub(super) fn columns_redefined(
    version: &Arc<TableSnapshot>,
    columns: &Schema,
    defaults: &[Option<String>],
    checks: &[Check],
) -> Result<Step> {
    let (schema, table) = version.name.split_once('.').unwrap_or(("", &version.name));
    let columns = stored_schema(columns)?;
    let types = |s: &Schema| -> Vec<_> {
        let fields = s.fields().iter();
        fields.map(|f| f.data_type().clone()).collect()
    };
    if types(&columns) != types(&version.schema) {
        return Err(StorageError::Invalid(format!(
            "table '{table}': its rows have other columns"
        )));
    }
    let name = ObjectName::new(schema, table);
    let (version, defaults) = (Arc::clone(version), defaults.to_vec());
    let checks = encode_checks(checks);
    Ok(Step::edit_of(name.clone(), version.id, move |present| {
        if !present.snapshot.is_defined_as(&version) {
            return Err(conflict(&name));
        }
        let mut edit = TableEdit::default();
        put_record(&mut edit, &name, present, |record| {
            record.schema = encode_schema(&columns);
            record.defaults = encode_defaults(&defaults);
            record.checks.clone_from(&checks);
        });
        Ok(edit)
    }))
}

/// The edit that makes a schema.
pub(super) fn schema_created(name: &str) -> TableEdit {
    let mut edit = TableEdit::default();
    edit.require(Precondition::NoSchema(name.into()));
    edit.push(Operation::PutSchema(name.into()));
    edit
}

/// The edit that drops an empty schema.
pub(super) fn schema_dropped(name: &str) -> TableEdit {
    let mut edit = TableEdit::default();
    edit.require(Precondition::Schema(name.into()));
    edit.require(Precondition::EmptySchema(name.into()));
    edit.push(Operation::DropSchema(name.into()));
    edit
}

/// Puts what `change` makes of a table's record.
fn put_record(
    edit: &mut TableEdit,
    name: &ObjectName,
    present: &TableState,
    change: impl Fn(&mut TableRecord),
) {
    let mut record = (*present.record).clone();
    record.next_segment = present.next_segment.load(Ordering::Relaxed);
    change(&mut record);
    put_next(edit, name, present, record);
}

pub(super) fn empty_record(schema: &SchemaRef) -> TableRecord {
    TableRecord {
        schema: encode_schema(schema),
        columns: vec![ColumnRecord::default(); schema.fields().len()],
        ..TableRecord::default()
    }
}

/// The stored form of a schema that a load was given.
pub(super) fn stored_schema(schema: &Schema) -> Result<SchemaRef> {
    if schema.fields().is_empty() {
        return Err(StorageError::Invalid(
            "a table needs at least one column".into(),
        ));
    }
    crate::table::normalise_schema(schema)
}
