//! An open database and the sessions on it.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::catalog::{CatalogProviderList, DynamicFileCatalog, MemoryCatalogProviderList};
use datafusion::config::ConfigOptions;
use datafusion::execution::disk_manager::{DiskManager, DiskManagerBuilder};
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::spill_file::TempFileFactory;
use datafusion::execution::{FunctionRegistry, SessionStateBuilder};
use datafusion::prelude::SessionContext;
use flashmesh_cluster::node::Head;
use flashmesh_planner::TrueTables;
use flashmesh_planner::relations::StoreRelations;
use flashmesh_planner::rules::DateParts;
use flashmesh_storage::accelerator::Accelerator;
use flashmesh_storage::accelerator::cpu::CpuAccelerator;
use flashmesh_storage::accelerator::sandbox::SandboxOptions;
use flashmesh_storage::accelerator::xrt::XrtAccelerator;
use flashmesh_storage::changes::Changes;
use flashmesh_storage::flash::Flash;
use flashmesh_storage::functions::Kernels;
use flashmesh_storage::node::StorageNode;
use flashmesh_storage::table::{Database, DatabaseOptions, UpkeepOptions, Workspace};
use tempfile::TempDir;

use crate::bounded::{BoundedOperators, bound_functions};
use crate::cache::{CachedStores, ExternalCache};
use crate::catalog::FlashCatalog;
use crate::constraints::Constraints;
use crate::distributed::{DistributedPlanner, WorkerParts, Workers};
use crate::error::Result;
use crate::fewer_names::FewerNames;
use crate::file_tables::FileTables;
use crate::gate::GatedPlanner;
use crate::grants::Principal;
use crate::information_schema::TypesOfColumns;
use crate::macros::Macros;
use crate::memory::StorageMemory;
use crate::named_sequences::tell_sequences;
use crate::names::CATALOG;
use crate::own_statement::PreparedStatements;
use crate::queries::Queries;
use crate::resources::{
    make_temporary_folder, memory_bytes, memory_limit, memory_pool, session_config, spill_files,
    temporary_folder, temporary_folder_in, threads,
};
use crate::session_functions::SessionFunctions;
use crate::session_info::tell_of_session;
use crate::stores::{NamedStores, NoStores};
use crate::types::SqlTypes;
use crate::variables::{Variables, tell_variables};

/// What the cache of external files may take up by default.
const EXTERNAL_CACHE_BYTES: u64 = 10 << 30;

/// How to open an [`Engine`].
#[derive(Debug, Clone, Default)]
pub struct EngineOptions {
    /// The database's folder, made when missing. `None`: a temporary database that is removed
    /// when the engine is dropped.
    pub path: Option<PathBuf>,
    /// The card, in place of the file in the folder: see [`DatabaseOptions::card`].
    pub card: Option<Arc<dyn Flash>>,
    /// The rack whose head this engine is.
    pub rack: Option<Arc<Head>>,
    /// Refuse every write; several processes may then read the database at once.
    pub read_only: bool,
    /// Bound of the page cache; the default is a quarter of the machine's memory, 1 GiB at most.
    pub cache_bytes: Option<u64>,
    /// What the cache of external files may take up on the card: those of object stores, which are
    /// read again from there. 0: there is none. The default is 10 GiB, and no more than a quarter of
    /// the card in any case. A database that is opened for reading only has none.
    pub external_cache_bytes: Option<u64>,
    /// External files on disks of this machine are cached as well: worth it where these are slower
    /// than the card.
    pub cache_local_files: bool,
    /// What queries may hold in memory at once before they spill, page cache not included; the
    /// default is three quarters of the machine's memory.
    pub memory_limit_bytes: Option<u64>,
    /// What queries may spill at once; the default is DataFusion's, 100 GB.
    pub spill_limit_bytes: Option<u64>,
    /// Where queries spill; the default is a temporary folder (see [`temporary_folder`]).
    pub spill_folder: Option<PathBuf>,
    /// Threads that a query uses; the default is one a core.
    pub threads: Option<NonZeroUsize>,
    /// Bounds of users' kernels.
    pub kernels: SandboxOptions,
    /// A device's container (xclbin): the device that it fits is the accelerator `xrt`, which
    /// `SET flashmesh.accelerator = 'xrt'` gives work to.
    pub container: Option<PathBuf>,
    /// What resolves `file://`, `https://`, `s3://` … for tables outside the database, in sessions
    /// of admins; by default all of these, with credentials from the environment.
    pub object_stores: Option<Arc<dyn ObjectStoreRegistry>>,
}

/// An open database with what its sessions share: page cache, memory pool, spill files.
#[derive(Debug)]
pub struct Engine {
    database: Arc<Database>,
    node: Arc<StorageNode>,
    runtime: Arc<RuntimeEnv>,
    /// The same memory and spill files without files and object stores: for all who are no admin.
    sealed_runtime: Arc<RuntimeEnv>,
    external_cache: Option<Arc<ExternalCache>>,
    constraints: Arc<Constraints>,
    threads: usize,
    memory_limit: usize,
    queries: Arc<Queries>,
    opened: Instant,
    /// What runs parts of plans, on a rack.
    workers: Option<Arc<Workers>>,
    /// On how many nodes each page is.
    replicas: u16,
    // Removed after the database is closed (fields are dropped in this order).
    temporary: Option<TempDir>,
    spill: TempDir,
}

impl Engine {
    /// Opens the database.
    ///
    /// # Errors
    /// [`crate::Error::Storage`] as [`Database::open`] says; [`crate::Error::Io`] when no temporary folder can
    /// be made.
    pub fn open(options: EngineOptions) -> Result<Arc<Self>> {
        let temporary = match options.path {
            Some(_) => None,
            None => Some(make_temporary_folder()?),
        };
        // A folder of this engine's own, so that it can go with everything in it.
        let spill = temporary_folder_in(&options.spill_folder.unwrap_or_else(temporary_folder))?;
        let path = options
            .path
            .as_deref()
            .or(temporary.as_ref().map(TempDir::path))
            .unwrap_or(Path::new(""));
        let memory = memory_bytes();
        let memory_limit = memory_limit(options.memory_limit_bytes);
        let pool = memory_pool(memory_limit);
        let threads = threads(options.threads);
        let constraints = Arc::new(Constraints::new(threads, memory_limit));
        let rack = options.rack.as_ref();
        let database = Database::open(
            path,
            DatabaseOptions {
                read_only: options.read_only,
                temporary: temporary.is_some() && !options.read_only,
                card: options.card,
                catalog: rack.and_then(|rack| rack.catalog()),
                node: rack.map(|rack| rack.node()).unwrap_or_default(),
                cards: rack.map(|rack| rack.cards()).unwrap_or_default(),
                cards_have_copies: rack.is_some_and(|rack| rack.has_copies()),
                way: rack.map(|rack| Arc::clone(rack) as _),
                cache_bytes: options.cache_bytes.unwrap_or((memory / 4).min(1 << 30)),
                block_cache_bytes: options.external_cache_bytes.unwrap_or(EXTERNAL_CACHE_BYTES),
                upkeep: UpkeepOptions {
                    max_build_bytes: (memory_limit as u64 / 6).clamp(8 << 20, 2 << 30),
                    ..UpkeepOptions::default()
                },
                memory: Arc::new(StorageMemory::new(&pool, "builds of indexes")),
                checks: Some(Arc::clone(&constraints) as _),
                ..DatabaseOptions::default()
            },
        )?;
        if let Some(rack) = &options.rack {
            rack.has_opened(Arc::clone(database.store().home_card()));
            rack.look_after_copies()?;
        }
        let disk = spill_files(spill.path(), options.spill_limit_bytes);
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool))
            .with_disk_manager_builder(disk)
            // A folder that is queried twice is listed twice: files come and go between.
            .with_object_list_cache_limit(0)
            .with_object_store_registry(
                options
                    .object_stores
                    .unwrap_or_else(|| Arc::new(NamedStores::default())),
            );
        let runtime = runtime.build_arc()?;
        let sealed_runtime = RuntimeEnvBuilder::from_runtime_env(&runtime)
            .with_object_store_registry(Arc::new(NoStores))
            .build_arc()?;
        let kernels = Kernels::new(
            &database,
            options.kernels,
            Arc::new(StorageMemory::new(&pool, "kernels")),
        );
        let mut accelerators: Vec<Arc<dyn Accelerator>> = vec![Arc::new(CpuAccelerator::new())];
        if let Some(container) = &options.container {
            accelerators.push(Arc::new(XrtAccelerator::open(container)?));
        }
        let side = options.rack.as_ref().map(|rack| rack.side());
        let store = Arc::clone(database.store());
        let blocks = database.block_cache();
        let external_cache =
            blocks.map(|blocks| ExternalCache::new(blocks, options.cache_local_files));
        let node = StorageNode::with_parts(store, accelerators, Some(kernels), side);
        let workers = options.rack.as_ref().map(|rack| {
            let parts = WorkerParts {
                own: rack.node(),
                nodes: rack.nodes().to_vec(),
                streams: rack.streams().clone(),
                storage: Arc::clone(&node),
                memory: Arc::clone(&sealed_runtime),
                memory_limit,
                threads,
            };
            Workers::start(parts, session_config(threads, memory_limit)?)
        });
        Ok(Arc::new(Self {
            workers: workers.transpose()?,
            replicas: options.rack.as_ref().map_or(1, |rack| rack.replicas()),
            node,
            database,
            runtime,
            sealed_runtime,
            external_cache,
            constraints,
            threads,
            memory_limit,
            queries: Arc::default(),
            opened: Instant::now(),
            temporary,
            spill,
        }))
    }

    /// The database.
    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    /// Whether the database goes when the engine is dropped.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// The folders that go when the engine is dropped: that of its spill files, and that of a
    /// temporary database. A process that ends without dropping it is to remove them itself.
    pub fn temporary_folders(&self) -> impl Iterator<Item = &Path> {
        self.temporary
            .iter()
            .chain([&self.spill])
            .map(TempDir::path)
    }

    /// On how many nodes each page is.
    pub(crate) fn replicas(&self) -> u16 {
        self.replicas
    }

    /// The node that runs Programs.
    pub(crate) fn node(&self) -> &Arc<StorageNode> {
        &self.node
    }

    /// What tests CHECK constraints.
    pub(crate) fn constraints(&self) -> &Constraints {
        &self.constraints
    }

    /// Threads that a query uses.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Queries of a server's clients.
    pub fn queries(&self) -> &Arc<Queries> {
        &self.queries
    }

    /// Bytes that the operators of queries hold.
    pub fn memory_used(&self) -> usize {
        self.runtime.memory_pool.reserved()
    }

    /// On a rack: how many queries were left to several nodes, and how many of these were then done
    /// on this one alone, since a node went away or could not do its part.
    pub fn distributed_queries(&self) -> Option<(u64, u64)> {
        self.workers.as_ref().map(|workers| workers.counts())
    }

    /// Since the engine was opened.
    pub fn uptime(&self) -> Duration {
        self.opened.elapsed()
    }

    /// A session with options and views of its own, which may do everything.
    ///
    /// # Errors
    /// [`crate::Error::Query`] when an environment variable `DATAFUSION_…` has a wrong value.
    pub fn session(self: &Arc<Self>) -> Result<Session> {
        self.session_for(Arc::new(Principal::owner()))
    }

    /// A session that may do what its user may.
    ///
    /// # Errors
    /// As [`Engine::session`].
    pub fn session_for(self: &Arc<Self>, principal: Arc<Principal>) -> Result<Session> {
        let memory = Arc::clone(&self.runtime.memory_pool);
        self.session_within(principal, memory, None)
    }

    /// The same; what its queries hold is taken of `memory`, a part of [`Engine::memory`], and
    /// their spill files come from `spill`, where it is given.
    ///
    /// # Errors
    /// As [`Engine::session`].
    pub(crate) fn session_within(
        self: &Arc<Self>,
        principal: Arc<Principal>,
        memory: Arc<dyn MemoryPool>,
        spill: Option<Arc<dyn TempFileFactory>>,
    ) -> Result<Session> {
        let runtime = match principal.admin {
            true => &self.runtime,
            false => &self.sealed_runtime,
        };
        let mut runtime = RuntimeEnvBuilder::from_runtime_env(runtime).with_memory_pool(memory);
        if let Some(spill) = spill {
            let disk = DiskManagerBuilder::default().with_temp_file_factory(spill);
            runtime = runtime.with_disk_manager_builder(disk);
        }
        let files = self.external_cache.as_ref().filter(|_| principal.admin);
        let files = files.map(|cache| Arc::new(CachedStores::new(self.object_stores(), cache)));
        if let Some(files) = &files {
            runtime = runtime.with_object_store_registry(Arc::clone(files) as _);
        }
        Session::new(Arc::clone(self), principal, runtime.build_arc()?, files)
    }

    /// The spill files of all queries.
    pub(crate) fn spill(&self) -> &Arc<DiskManager> {
        &self.runtime.disk_manager
    }

    /// The stores that admins' sessions reach, without the cache before them.
    pub(crate) fn object_stores(&self) -> &Arc<dyn ObjectStoreRegistry> {
        &self.runtime.object_store_registry
    }

    /// The memory that queries share, and how many bytes it has.
    pub(crate) fn memory(&self) -> (&Arc<dyn MemoryPool>, usize) {
        (&self.runtime.memory_pool, self.memory_limit)
    }
}

/// One user's view of an [`Engine`]: options, views and external tables, prepared statements.
#[derive(Clone)]
pub struct Session {
    engine: Arc<Engine>,
    principal: Arc<Principal>,
    catalog: Arc<FlashCatalog>,
    context: SessionContext,
    /// The users' functions that the context knows.
    functions: Arc<SessionFunctions>,
    /// External files, where there is a cache for them.
    files: Option<Arc<CachedStores>>,
    prepared: Arc<PreparedStatements>,
    macros: Arc<Macros>,
    variables: Arc<Variables>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("database", &self.engine.database.path())
            .finish_non_exhaustive()
    }
}

impl Session {
    fn new(
        engine: Arc<Engine>,
        principal: Arc<Principal>,
        runtime: Arc<RuntimeEnv>,
        stores: Option<Arc<CachedStores>>,
    ) -> Result<Self> {
        let catalog = Arc::new(FlashCatalog::new(
            Arc::clone(&engine.database),
            Arc::clone(&engine.node),
            Arc::clone(&engine.queries),
            Arc::clone(&principal),
        ));
        let files = Arc::new(FileTables::default());
        let types = Arc::new(SqlTypes::default());
        let catalogs = MemoryCatalogProviderList::new();
        catalogs.register_catalog(CATALOG.into(), Arc::clone(&catalog) as _);
        let catalogs: Arc<dyn CatalogProviderList> = match principal.admin {
            true => {
                let files = Arc::clone(&files) as _;
                Arc::new(DynamicFileCatalog::new(Arc::new(catalogs), files))
            }
            // The machine's files are not a user's to read.
            false => Arc::new(catalogs),
        };
        let state = SessionStateBuilder::new()
            .with_config(session_config(engine.threads, engine.memory_limit)?)
            .with_runtime_env(runtime)
            .with_default_features()
            .with_catalog_list(catalogs)
            .with_type_planner(Arc::clone(&types) as _)
            .with_relation_planners(vec![
                Arc::new(FewerNames),
                Arc::new(TypesOfColumns),
                Arc::new(StoreRelations::new(
                    Arc::clone(catalog.workspace()),
                    Arc::clone(&engine.node),
                    Arc::clone(catalog.authority()) as _,
                    CATALOG,
                )),
                // What the others do not plan.
                Arc::new(TrueTables),
            ]);
        let bounded = BoundedOperators::new(engine.memory_limit);
        let mut state = flashmesh_planner::configure(state).with_analyzer_rule(Arc::new(bounded));
        if let Some(mut planner) = state.query_planner().take() {
            if let Some(workers) = &engine.workers {
                let workers = Arc::clone(workers);
                planner = Arc::new(DistributedPlanner { planner, workers });
            }
            let principal = Arc::clone(&principal);
            state = state.with_query_planner(Arc::new(GatedPlanner { planner, principal }));
        }
        let mut state = state.build();
        state.register_function_rewrite(Arc::new(DateParts))?;
        let context = SessionContext::new_with_state(state);
        bound_functions(&context, engine.memory_limit)?;
        tell_of_session(&context, &principal.name);
        let variables = Arc::default();
        tell_variables(&context, &variables);
        tell_sequences(&context, &catalog, &principal);
        files.use_session(context.state_weak_ref());
        types.use_session(context.state_weak_ref());
        catalog.views().use_session(context.state_weak_ref());
        Ok(Self {
            engine,
            principal,
            catalog,
            context,
            functions: Arc::default(),
            files: stores,
            prepared: Arc::default(),
            macros: Arc::default(),
            variables,
        })
    }

    /// Makes the context know the functions that other sessions have made, and forget those that
    /// they have dropped.
    pub fn update_functions(&self) {
        let (database, node) = (&self.engine.database, &self.engine.node);
        let (context, principal) = (&self.context, &self.principal);
        self.functions.update(context, database, node, principal);
    }

    /// Tells that a statement begins: it learns for itself what there is in object stores.
    pub(crate) fn start_statement(&self) {
        if let Some(files) = &self.files {
            files.start_statement();
        }
    }

    pub(crate) fn prepared(&self) -> &PreparedStatements {
        &self.prepared
    }

    pub(crate) fn macros(&self) -> &Macros {
        &self.macros
    }

    pub(crate) fn variables(&self) -> &Variables {
        &self.variables
    }

    /// The engine that the session belongs to.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// What the session sees of the database: its present state, or that of a transaction.
    pub(crate) fn workspace(&self) -> &Arc<Workspace> {
        self.catalog.workspace()
    }

    /// The way to change the database.
    pub(crate) fn changes(&self) -> Changes {
        Changes::new(Arc::clone(self.engine.node()), Arc::clone(self.workspace()))
    }

    /// Whom the session acts for.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    pub(crate) fn shared_principal(&self) -> &Arc<Principal> {
        &self.principal
    }

    /// DataFusion's context with the database's tables in it: its DataFrame API, functions and
    /// registrations. Statements that change tables go through [`Session::sql`].
    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    /// The session's options. (A whole state is a copy of thousands of entries.)
    pub fn options(&self) -> Arc<ConfigOptions> {
        Arc::clone(self.context.state_ref().read().config().options())
    }

    pub(crate) fn catalog(&self) -> &FlashCatalog {
        &self.catalog
    }
}
