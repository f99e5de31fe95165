//! An open database, as the package's `Connection` uses it.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::execution::TaskContextProvider;
use datafusion::logical_expr::{LogicalPlan, SetVariable, Statement};
use datafusion_ffi::catalog_provider::FFI_CatalogProvider;
use datafusion_ffi::execution::FFI_TaskContextProvider;
use datafusion_ffi::proto::logical_extension_codec::FFI_LogicalExtensionCodec;
use datafusion_ffi::proto::physical_extension_codec::FFI_PhysicalExtensionCodec;
use datafusion_ffi::query_planner::FFI_QueryPlanner;
use datafusion_proto::bytes::logical_plan_from_bytes_with_extension_codec;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use flashmesh::{Engine, EngineOptions, Error, FileOptions, LoadMode};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyList};
use pyo3_arrow::{PyArray, PyRecordBatchReader};

use crate::Raises;
use crate::capsule;
use crate::catalog::LinkedCatalog;
use crate::codec::{LogicalCodec, PhysicalCodec};
use crate::functions::{OursByName, ScalarFunction};
use crate::link::Link;
use crate::planner::EmbeddedPlanner;
use crate::query::{self, Batches, Query};
use crate::rows::{self, RowDicts};
use crate::run::{handle, wait};
use crate::table::{QueryTable, with_queries_inlined};

/// Bytes of statements that are parsed before other threads would have got the interpreter.
const SHORT: usize = 4096;

/// An open database.
#[pyclass(module = "flashmesh._flashmesh", frozen)]
pub(crate) struct Database {
    link: Arc<Link>,
    path: PathBuf,
    is_temporary: bool,
    dicts: RowDicts,
}

impl Drop for Database {
    fn drop(&mut self) {
        // Views on DataFrames hold the link that holds the session that holds the views.
        self.link.close();
    }
}

impl Database {
    /// A session of its own on a database.
    fn of(engine: &Arc<Engine>) -> Result<Self, Error> {
        Ok(Self {
            path: engine.database().path().to_path_buf(),
            is_temporary: engine.is_temporary(),
            dicts: RowDicts::default(),
            link: Link::new(engine.session()?),
        })
    }

    fn query(&self, plan: LogicalPlan) -> Result<Query, Error> {
        let table = QueryTable::try_new(&self.link, plan)?;
        Ok(Query::new(&self.link, table))
    }

    fn in_memory(&self, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<Query, Error> {
        let table = QueryTable::of_rows(&self.link, schema, batches)?;
        Ok(Query::new(&self.link, table))
    }
}

/// Whether a plan can be part of another one.
fn is_relation(plan: &LogicalPlan) -> bool {
    !matches!(
        plan,
        LogicalPlan::Explain(_)
            | LogicalPlan::Analyze(_)
            | LogicalPlan::DescribeTable(_)
            | LogicalPlan::Statement(_)
            | LogicalPlan::Ddl(_)
            | LogicalPlan::Dml(_)
            | LogicalPlan::Copy(_)
    )
}

#[pymethods]
impl Database {
    /// The database's folder.
    #[getter]
    fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Whether the folder goes when the database is closed.
    #[getter]
    fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    #[getter]
    fn is_closed(&self) -> bool {
        self.link.session().is_err()
    }

    /// Run SQL: a query becomes a [`Query`]; all else has happened when this returns.
    fn sql(&self, py: Python<'_>, query: String) -> Raises<Query> {
        let session = self.link.session()?;
        let running = session.clone();
        let (plan, rows) = wait(py, async move {
            let frame = running.sql(&query).await?;
            let plan = frame.logical_plan().clone();
            if is_relation(&plan) {
                return Ok((plan, None));
            }
            let schema = Arc::clone(plan.schema().inner());
            Ok((plan, Some((schema, frame.collect().await?))))
        })?;
        Ok(match rows {
            None => self.query(plan)?,
            Some((schema, batches)) => self.in_memory(schema, batches)?,
        })
    }

    /// Run SQL to its end and keep its rows; `progress` is that of [`Query`]'s `collect`.
    #[pyo3(signature = (query, progress = None))]
    fn run(&self, py: Python<'_>, query: String, progress: Option<Py<PyAny>>) -> Raises<Batches> {
        let session = self.link.session()?;
        let script = match query.len() {
            ..=SHORT => session.parse(&query)?,
            _ => py.detach(|| session.parse(&query))?,
        };
        if let [statement] = script.as_slice()
            && let Some(lookup) = session.lookup(statement)
            && let Some(rows) = Batches::of_lookup(py, &lookup)
        {
            return Ok(rows);
        }
        let frame = async move { session.run_script(script).await };
        query::run(py, frame, progress.as_ref())
    }

    /// Run SQL to its end and drop its result.
    fn execute(&self, py: Python<'_>, query: String) -> Raises<()> {
        let session = self.link.session()?;
        wait(py, async move { session.run(&query).await })
    }

    /// All rows of a table or view.
    fn table(&self, py: Python<'_>, name: String) -> Raises<Query> {
        let session = self.link.session()?;
        let frame = wait(py, async move { Ok(session.context().table(name).await?) })?;
        Ok(self.query(frame.logical_plan().clone())?)
    }

    /// A DataFrame of the wheel's session `session`, from the bytes of its plan.
    fn plan(&self, plan: &[u8], session: &Bound<'_, PyAny>) -> Raises<Query> {
        let codec: Arc<dyn LogicalExtensionCodec> = (&capsule::logical_codec(session)?).into();
        let context = self.link.session()?.context().task_ctx();
        let plan = logical_plan_from_bytes_with_extension_codec(plan, &context, codec.as_ref())
            .and_then(with_queries_inlined)
            .map_err(Error::from)?;
        Ok(self.query(plan)?)
    }

    /// Arrow data in memory.
    #[pyo3(name = "from_arrow")]
    fn hold_arrow(&self, py: Python<'_>, source: PyRecordBatchReader) -> Raises<Query> {
        self.link.session()?;
        let reader = source.into_reader()?;
        let schema = reader.schema();
        let batches = py
            .detach(|| reader.collect::<Result<Vec<_>, _>>())
            .map_err(Error::from)?;
        Ok(self.in_memory(schema, batches)?)
    }

    /// Gives a query a name in SQL, until the connection is closed.
    fn register(&self, name: &str, query: &Query) -> Raises<()> {
        let session = self.link.session()?;
        let context = session.context();
        // The newest is meant where a cell of a notebook runs again. Of a table on flash the next call tells.
        let _ = context.deregister_table(name);
        context
            .register_table(name, Arc::clone(query.table()) as _)
            .map_err(Error::from)?;
        Ok(())
    }

    /// Takes the name away; whether there was one.
    fn unregister(&self, name: &str) -> Raises<bool> {
        let session = self.link.session()?;
        let table = session
            .context()
            .deregister_table(name)
            .map_err(Error::from)?;
        Ok(table.is_some())
    }

    /// The rows of `table` by primary key: `keys` is an Arrow array.
    fn get(&self, py: Python<'_>, table: &str, keys: PyArray) -> Raises<Query> {
        let session = self.link.session()?;
        let keys = keys.into_inner().0;
        let rows = py.detach(|| session.get(table, &keys))?;
        let schema = match rows.first() {
            Some(batch) => batch.schema(),
            None => Arc::clone(session.keyed(table)?.schema()),
        };
        Ok(self.in_memory(schema, rows)?)
    }

    /// The row of `table` with this primary key as a dict; `None` where there is none.
    fn get_one<'py>(
        &self,
        py: Python<'py>,
        table: &str,
        key: &Bound<'py, PyAny>,
    ) -> Raises<Option<Bound<'py, PyDict>>> {
        let session = self.link.session()?;
        let key = rows::array_of(key)?;
        // Letting other threads have the interpreter and getting it back takes longer than this.
        let found = match session.get_one_cached(table, &key)? {
            Some(found) => found,
            None => py.detach(|| session.get_one(table, &key))?,
        };
        found.map(|row| self.dicts.dict_of(py, &row)).transpose()
    }

    /// The column of a table's primary key.
    fn key(&self, table: &str) -> Raises<String> {
        Ok(self.link.session()?.keyed(table)?.key().to_string())
    }

    /// Put rows into a table by primary key; their number.
    fn put(&self, py: Python<'_>, table: &str, rows: PyRecordBatchReader) -> Raises<u64> {
        let session = self.link.session()?;
        let reader = rows.into_reader()?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(Error::from)?;
        let rows = concat_batches(&schema, &batches).map_err(Error::from)?;
        Ok(py.detach(|| session.put(table, &rows))?)
    }

    /// The same of dicts; `None`, and nothing has happened, where pyarrow is to make Arrow data of them.
    fn put_dicts(
        &self,
        py: Python<'_>,
        table: &str,
        dicts: &Bound<'_, PyList>,
    ) -> Raises<Option<u64>> {
        let session = self.link.session()?;
        let Some(rows) = rows::batch_of(dicts)? else {
            return Ok(None);
        };
        Ok(Some(py.detach(|| session.put(table, &rows))?))
    }

    /// Delete rows of a table by primary key; their number.
    fn delete(&self, py: Python<'_>, table: &str, keys: PyArray) -> Raises<u64> {
        let session = self.link.session()?;
        let keys = keys.into_inner().0;
        Ok(py.detach(|| session.delete(table, &keys))?)
    }

    /// Load a table from files, folders, globs or URLs; the number of its rows.
    fn load_files(
        &self,
        py: Python<'_>,
        table: String,
        paths: Vec<PathBuf>,
        mode: &str,
    ) -> Raises<u64> {
        let (session, mode) = (self.link.session()?, parse_mode(mode)?);
        let paths: Vec<String> = paths
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        wait(py, async move {
            let options = FileOptions {
                newlines_in_values: true,
                ..FileOptions::default()
            };
            session
                .load_files(&table, &paths, &options, mode, Arc::default())
                .await
        })
    }

    /// Load a table from Arrow data; the number of its rows.
    fn load_arrow(
        &self,
        py: Python<'_>,
        table: String,
        source: PyRecordBatchReader,
        mode: &str,
    ) -> Raises<u64> {
        let (session, mode) = (self.link.session()?, parse_mode(mode)?);
        let reader = source.into_reader()?;
        wait(py, async move {
            session.load_reader(&table, reader, mode).await
        })
    }

    /// The value of an option, as `SET` takes it; `None` where it has none.
    fn setting(&self, name: &str) -> Raises<Option<String>> {
        let session = self.link.session()?;
        let options = session.options().entries();
        let option = options.into_iter().find(|option| option.key == name);
        let option = option.ok_or_else(|| Error::usage(format!("there is no setting '{name}'")))?;
        Ok(option.value)
    }

    /// Sets an option.
    fn set_setting(&self, py: Python<'_>, name: String, value: String) -> Raises<()> {
        let session = self.link.session()?;
        let set = Statement::SetVariable(SetVariable {
            variable: name,
            value,
        });
        wait(py, async move {
            session.execute(LogicalPlan::Statement(set)).await.map(drop)
        })
    }

    /// Names and descriptions of all options.
    fn settings(&self) -> Raises<Vec<(String, &'static str)>> {
        let session = self.link.session()?;
        let options = session.options().entries().into_iter();
        Ok(options.map(|o| (o.key, o.description)).collect())
    }

    /// Close the connection, whoever holds queries of it; the database with the last one of this process. A
    /// temporary one is removed.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.link.close());
    }

    /// The function of a user's kernel.
    fn function(&self, name: &str) -> Raises<ScalarFunction> {
        let session = self.link.session()?;
        session.update_functions();
        ScalarFunction::of(&session.context().state(), name)
    }

    /// Tells functions of Python's from built-in ones: `session` is one of the wheel that pickles
    /// the former.
    fn use_functions(&self, session: &Bound<'_, PyAny>) -> Raises<()> {
        let pickling = (&capsule::logical_codec(session)?).into();
        let state = self.link.session()?.context().state();
        self.link.set_functions(OursByName::new(&state, pickling));
        Ok(())
    }

    /// Our catalog for the wheel's session `session`.
    fn catalog_provider<'py>(
        &self,
        py: Python<'py>,
        session: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let catalog = Arc::new(LinkedCatalog {
            link: Arc::clone(&self.link),
        });
        let codec = capsule::logical_codec(session)?;
        let catalog = FFI_CatalogProvider::new_with_ffi_codec(catalog, Some(handle()?), codec);
        capsule::new(py, catalog, c"datafusion_catalog_provider")
    }

    /// What encodes and decodes our part of logical plans.
    fn logical_codec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::new(
            py,
            self.ffi_logical_codec()?,
            c"datafusion_logical_extension_codec",
        )
    }

    /// What hands out plans of ours.
    fn physical_codec<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        capsule::new(
            py,
            self.ffi_physical_codec()?,
            c"datafusion_physical_extension_codec",
        )
    }

    /// Our planner.
    fn query_planner<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let planner = EmbeddedPlanner {
            link: Arc::clone(&self.link),
        };
        // The wheel puts the codecs of its session in their place.
        let planner = FFI_QueryPlanner::new_with_ffi_codecs(
            Arc::new(planner),
            self.ffi_logical_codec()?,
            self.ffi_physical_codec()?,
        );
        capsule::new(py, planner, c"datafusion_query_planner")
    }
}

impl Database {
    fn task_context(&self) -> FFI_TaskContextProvider {
        (&(Arc::clone(&self.link) as Arc<dyn TaskContextProvider>)).into()
    }

    fn ffi_logical_codec(&self) -> Raises<FFI_LogicalExtensionCodec> {
        let codec = LogicalCodec {
            link: Arc::clone(&self.link),
        };
        Ok(FFI_LogicalExtensionCodec::new(
            Arc::new(codec),
            Some(handle()?),
            self.task_context(),
        ))
    }

    fn ffi_physical_codec(&self) -> Raises<FFI_PhysicalExtensionCodec> {
        let codec = PhysicalCodec {
            link: Arc::clone(&self.link),
        };
        Ok(FFI_PhysicalExtensionCodec::new(
            Arc::new(codec),
            Some(handle()?),
            self.task_context(),
        ))
    }
}

fn parse_mode(mode: &str) -> PyResult<LoadMode> {
    match mode {
        "create" => Ok(LoadMode::Create),
        "append" => Ok(LoadMode::Append),
        "replace" => Ok(LoadMode::Replace),
        _ => Err(PyValueError::new_err(format!(
            "mode can't be '{mode}'; it is 'create', 'append' or 'replace'"
        ))),
    }
}

/// The databases that this process has open for writing.
static OPEN: LazyLock<Mutex<HashMap<Identity, Weak<Engine>>>> = LazyLock::new(Mutex::default);

/// What a folder's database is known by: the process, which a fork is not, and device and inode of its catalog,
/// which another database that was put there has not.
type Identity = (u32, u64, u64);

fn identity(folder: Option<&Path>) -> Option<Identity> {
    let catalog = std::fs::metadata(folder?.join("catalog.redb")).ok()?;
    Some((std::process::id(), catalog.dev(), catalog.ino()))
}

/// Open the database in folder `path`, which is made when missing; without a path, a temporary
/// database. One that is open in this process already is shared. Sizes are in bytes or text such as '4GB'.
#[pyfunction]
#[pyo3(signature = (path = None, *, read_only = false, cache_size = None, memory_limit = None, threads = None, external_cache_size = None))]
pub(crate) fn open(
    py: Python<'_>,
    path: Option<PathBuf>,
    read_only: bool,
    cache_size: Option<Size>,
    memory_limit: Option<Size>,
    threads: Option<NonZeroUsize>,
    external_cache_size: Option<Size>,
) -> Raises<Database> {
    if read_only && path.is_none() {
        return Err(PyValueError::new_err("read_only needs the path of a database to read").into());
    }
    let options = EngineOptions {
        path,
        read_only,
        cache_bytes: cache_size.map(Size::bytes).transpose()?,
        external_cache_bytes: external_cache_size.map(Size::bytes).transpose()?,
        memory_limit_bytes: memory_limit.map(Size::bytes).transpose()?,
        threads,
        ..EngineOptions::default()
    };
    let engine = py.detach(|| open_or_share(options))?;
    Ok(Database::of(&engine)?)
}

/// The database of a folder: the one that this process has open for writing, if it has.
fn open_or_share(options: EngineOptions) -> Result<Arc<Engine>, Error> {
    let folder = options.path.clone().filter(|_| !options.read_only);
    let identity = || identity(folder.as_deref());
    // Of two that open one at once, the second finds it.
    let mut all = OPEN.lock();
    if let Some(engine) = identity().and_then(|known| all.get(&known)?.upgrade()) {
        let sizes = [
            options.cache_bytes,
            options.external_cache_bytes,
            options.memory_limit_bytes,
        ];
        return match options.threads.is_some() || sizes.iter().any(Option::is_some) {
            true => Err(Error::usage(
                "the database is open in this process, with its sizes and threads: leave them out",
            )),
            false => Ok(engine),
        };
    }
    let engine = Engine::open(options)?;
    if let Some(identity) = identity() {
        all.retain(|_, engine| engine.strong_count() > 0);
        all.insert(identity, Arc::downgrade(&engine));
    }
    Ok(engine)
}

/// A size in bytes, or as text.
#[derive(FromPyObject)]
pub(crate) enum Size {
    Bytes(u64),
    Text(String),
}

impl Size {
    fn bytes(self) -> PyResult<u64> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Text(text) => flashmesh_planner::config::parse_size(&text).map_err(|_| {
                PyValueError::new_err(format!("'{text}' is no size; write e.g. '512MB' or '4GB'"))
            }),
        }
    }
}
