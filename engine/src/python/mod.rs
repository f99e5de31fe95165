//! The Python module `flashmesh._flashmesh`; `python/flashmesh/` wraps it and holds its types.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatchIterator, RecordBatchReader};
use arrow::util::pretty::pretty_format_batches;
use datafusion::dataframe::DataFrame;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::logical_expr::LogicalPlan;
use futures::StreamExt;
use parking_lot::Mutex;
use pyo3::exceptions::{PyException, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList, PyTuple};
use pyo3_arrow::{PyArray, PyRecordBatchReader, PySchema};
use tokio::runtime::Runtime;

use crate::{Engine, EngineOptions, Error, FileOptions, LoadMode, Session};

/// The system's allocator gives large buffers back at once, only to fault them in again for the
/// next batch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Between two looks for Ctrl-C while a statement runs.
const SIGNAL_CHECK: Duration = Duration::from_millis(100);
/// Rows that `repr` of a result shows.
const REPR_ROWS: usize = 20;

pyo3::create_exception!(
    flashmesh,
    FlashmeshError,
    PyException,
    "What went wrong with a statement; the message names the thing and the way out."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        FlashmeshError::new_err(error.to_string())
    }
}

/// The one runtime of the process, shared by all connections.
fn runtime() -> PyResult<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("flashmesh")
        .enable_all()
        .build()
        .map_err(|e| PyRuntimeError::new_err(format!("starting flashmesh's threads: {e}")))?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

/// Runs `work` to its end without holding the interpreter. Ctrl-C drops it, which cancels it, and
/// raises `KeyboardInterrupt`.
fn wait<T, E>(py: Python<'_>, work: impl Future<Output = Result<T, E>> + Send) -> PyResult<T>
where
    T: Send,
    E: Send,
    PyErr: From<E>,
{
    let runtime = runtime()?;
    py.detach(|| {
        runtime.block_on(async {
            let mut work = std::pin::pin!(work);
            loop {
                tokio::select! {
                    done = &mut work => return Ok(done?),
                    () = tokio::time::sleep(SIGNAL_CHECK) => Python::attach(|py| py.check_signals())?,
                }
            }
        })
    })
}

/// An open database.
#[pyclass(module = "flashmesh", frozen)]
struct Connection {
    /// `None` once it is closed.
    session: Mutex<Option<Session>>,
}

impl Connection {
    fn session(&self) -> PyResult<Session> {
        let session = self.session.lock().clone();
        session.ok_or_else(|| PyValueError::new_err("the connection is closed"))
    }
}

#[pymethods]
impl Connection {
    /// Run SQL. A query runs when its result is fetched; any other statement has happened when
    /// this returns. Of several statements, separated by semicolons, the last gives the result.
    fn sql(&self, py: Python<'_>, query: &str) -> PyResult<QueryResult> {
        let session = self.session()?;
        let frame = wait(py, session.sql(query))?;
        Ok(QueryResult { frame })
    }

    /// A table of the database.
    fn table(&self, name: String) -> PyResult<Table> {
        Ok(Table {
            session: self.session()?,
            name,
        })
    }

    /// Run SQL to its end and drop its result.
    fn execute(&self, py: Python<'_>, query: &str) -> PyResult<()> {
        let session = self.session()?;
        wait(py, async {
            crate::statements::drain(session.sql(query).await?).await
        })
    }

    /// Load a table and return its number of rows. `source` is a path, a list of paths (Parquet,
    /// CSV, JSON, Arrow; folders, globs and URLs too), or any object with Arrow data in it:
    /// a pyarrow, pandas or Polars table, a record batch reader, …
    #[pyo3(signature = (table, source, *, mode = "create"))]
    fn load(
        &self,
        py: Python<'_>,
        table: &str,
        source: &Bound<'_, PyAny>,
        mode: &str,
    ) -> PyResult<u64> {
        let session = self.session()?;
        let mode = match mode {
            "create" => LoadMode::Create,
            "append" => LoadMode::Append,
            "replace" => LoadMode::Replace,
            _ => {
                return Err(PyValueError::new_err(format!(
                    "mode can't be '{mode}'; it is 'create', 'append' or 'replace'"
                )));
            }
        };
        if source.hasattr("__arrow_c_stream__")? {
            let reader = source.extract::<PyRecordBatchReader>()?.into_reader()?;
            return wait(py, session.load_reader(table, reader, mode));
        }
        let paths = match source.extract::<PathBuf>() {
            Ok(path) => vec![path],
            Err(_) => source.extract::<Vec<PathBuf>>().map_err(|_| {
                PyTypeError::new_err(
                    "source is neither a path, a list of paths, nor an object with Arrow data (__arrow_c_stream__)",
                )
            })?,
        };
        let paths: Vec<String> = paths
            .iter()
            .map(|path| path.to_string_lossy().into_owned())
            .collect();
        let options = FileOptions {
            newlines_in_values: true,
            ..FileOptions::default()
        };
        wait(
            py,
            session.load_files(table, &paths, &options, mode, Arc::default()),
        )
    }

    /// Close the database. Results that were not fetched can't be any more once their last
    /// reference to it is gone; a temporary database is removed.
    fn close(&self) {
        *self.session.lock() = None;
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, _exception: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __repr__(&self) -> String {
        match self.session.lock().as_ref() {
            None => "<flashmesh.Connection, closed>".into(),
            Some(session) => {
                let engine = session.engine();
                let kind = if engine.is_temporary() {
                    "temporary, "
                } else {
                    ""
                };
                format!(
                    "<flashmesh.Connection, {kind}{}>",
                    engine.database().path().display()
                )
            }
        }
    }
}

/// The result of a statement. A query runs anew each time its result is fetched, and streams.
#[pyclass(module = "flashmesh", name = "Result", frozen)]
struct QueryResult {
    frame: DataFrame,
}

impl QueryResult {
    fn schema_ref(&self) -> SchemaRef {
        Arc::clone(self.frame.schema().inner())
    }

    /// All of it, in memory.
    fn collect(&self, py: Python<'_>) -> PyResult<(SchemaRef, Vec<RecordBatch>)> {
        let frame = self.frame.clone();
        wait(py, async {
            let stream = frame.execute_stream().await.map_err(Error::from)?;
            let schema = stream.schema();
            let batches: Vec<_> = stream.collect().await;
            let batches = batches
                .into_iter()
                .collect::<Result<Vec<_>, _>>()
                .map_err(Error::from)?;
            Ok::<_, Error>((schema, batches))
        })
    }
}

#[pymethods]
impl QueryResult {
    /// The result as an Arrow C stream, which pyarrow, pandas, Polars, DuckDB and others read.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let frame = self.frame.clone();
        let stream = wait(py, async {
            frame.execute_stream().await.map_err(Error::from)
        })?;
        let reader = PyRecordBatchReader::new(Box::new(StreamReader {
            schema: stream.schema(),
            stream,
        }));
        Bound::new(py, reader)?.call_method1("__arrow_c_stream__", (requested_schema,))
    }

    /// The schema as an Arrow C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Bound::new(py, PySchema::new(self.schema_ref()))?.call_method0("__arrow_c_schema__")
    }

    /// Names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        self.schema_ref()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect()
    }

    /// Fetch all rows as a pyarrow.Table.
    fn to_arrow_table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (schema, batches) = self.collect(py)?;
        let batches = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
        PyRecordBatchReader::new(Box::new(batches))
            .into_pyarrow(py)?
            .call_method0("read_all")
    }

    /// Fetch all rows as a pandas.DataFrame (needs pyarrow and pandas).
    fn to_pandas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_arrow_table(py)?.call_method0("to_pandas")
    }

    /// Fetch all rows as a polars.DataFrame (needs polars).
    fn to_polars<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (schema, batches) = self.collect(py)?;
        let batches = RecordBatchIterator::new(batches.into_iter().map(Ok), schema);
        let reader = Bound::new(py, PyRecordBatchReader::new(Box::new(batches)))?;
        py.import("polars")?.getattr("DataFrame")?.call1((reader,))
    }

    /// Fetch all rows as a list of dicts (needs pyarrow).
    fn to_pylist<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.to_arrow_table(py)?.call_method0("to_pylist")
    }

    /// Fetch all rows as a list of tuples (needs pyarrow).
    fn fetchall<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns: Vec<Bound<'py, PyAny>> = self
            .to_arrow_table(py)?
            .getattr("columns")?
            .try_iter()?
            .map(|column| column?.call_method0("to_pylist"))
            .collect::<PyResult<_>>()?;
        let rows = py
            .import("builtins")?
            .getattr("zip")?
            .call1(PyTuple::new(py, columns)?)?;
        rows.try_iter()?
            .collect::<PyResult<Vec<_>>>()
            .and_then(|rows| PyList::new(py, rows))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let frame = self.frame.clone();
        let (batches, more) = wait(py, async {
            // EXPLAIN can stand only at the root of a plan.
            let frame = match frame.logical_plan() {
                LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => frame,
                _ => frame.limit(0, Some(REPR_ROWS + 1))?,
            };
            let batches = frame.collect().await?;
            let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
            Ok::<_, Error>((batches, rows > REPR_ROWS))
        })?;
        let mut left = REPR_ROWS;
        let shown: Vec<_> = batches
            .iter()
            .map(|batch| {
                let taken = left.min(batch.num_rows());
                left -= taken;
                batch.slice(0, taken)
            })
            .collect();
        let table = pretty_format_batches(&shown).map_err(Error::from)?;
        Ok(format!(
            "{table}{}",
            if more { "\n… more rows" } else { "" }
        ))
    }
}

/// A table of the database.
#[pyclass(module = "flashmesh", frozen)]
struct Table {
    session: Session,
    name: String,
}

#[pymethods]
impl Table {
    /// The rows whose primary key is one of `keys`, any sequence or Arrow array, in any order.
    fn get(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<QueryResult> {
        let keys = if keys.hasattr("__arrow_c_array__")? {
            keys.extract::<PyArray>()?
        } else {
            // Lists of Python values are pyarrow's to convert.
            let pyarrow = py.import("pyarrow")?;
            pyarrow
                .call_method1("array", (keys,))?
                .extract::<PyArray>()?
        };
        let keys = keys.into_inner().0;
        let rows = py.detach(|| self.session.get(&self.name, &keys))?;
        let frame = if rows.is_empty() {
            let query = format!("SELECT * FROM {} WHERE false", self.name);
            wait(py, self.session.sql(&query))?
        } else {
            self.session
                .context()
                .read_batches(rows)
                .map_err(Error::from)?
        };
        Ok(QueryResult { frame })
    }

    fn __repr__(&self) -> String {
        format!("flashmesh.Table('{}')", self.name)
    }
}

/// A running query as a blocking reader, for consumers that pull.
struct StreamReader {
    schema: SchemaRef,
    stream: SendableRecordBatchStream,
}

impl Iterator for StreamReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let stream = &mut self.stream;
        let pulled = Python::attach(|py| {
            wait(py, async {
                Ok::<_, PyErr>(stream.next().await.transpose().map_err(Error::from)?)
            })
        });
        pulled
            .map_err(|error| ArrowError::ExternalError(Box::new(error)))
            .transpose()
    }
}

impl RecordBatchReader for StreamReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

/// Open the database in folder `path`, which is made when missing; without a path, a temporary
/// database. Sizes are in bytes or text such as '4GB'.
#[pyfunction]
#[pyo3(signature = (path = None, *, read_only = false, cache_size = None, memory_limit = None, threads = None))]
fn connect(
    py: Python<'_>,
    path: Option<PathBuf>,
    read_only: bool,
    cache_size: Option<Size>,
    memory_limit: Option<Size>,
    threads: Option<std::num::NonZeroUsize>,
) -> PyResult<Connection> {
    if read_only && path.is_none() {
        return Err(PyValueError::new_err(
            "read_only needs the path of a database to read",
        ));
    }
    let options = EngineOptions {
        path,
        read_only,
        cache_bytes: cache_size.map(Size::bytes).transpose()?,
        memory_limit_bytes: memory_limit.map(Size::bytes).transpose()?,
        threads,
        ..EngineOptions::default()
    };
    let session = py.detach(|| Engine::open(options)?.session())?;
    Ok(Connection {
        session: Mutex::new(Some(session)),
    })
}

#[derive(FromPyObject)]
enum Size {
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

#[pymodule]
fn _flashmesh(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<FlashmeshError>())?;
    module.add_class::<Connection>()?;
    module.add_class::<QueryResult>()?;
    module.add_class::<Table>()?;
    module.add_function(wrap_pyfunction!(connect, module)?)?;
    Ok(())
}
