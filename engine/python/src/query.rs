//! Queries that run when their rows are asked for, and those rows.

use std::collections::VecDeque;
use std::future::{Future, ready};
use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatchReader;
use datafusion::common::format::{
    ExplainAnalyzeCategories, ExplainFormat, MetricCategory, MetricType,
};
use datafusion::dataframe::DataFrame;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::functions_aggregate::count::count_all;
use datafusion::logical_expr::{ExplainOption, LogicalPlanBuilder};
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion_ffi::table_provider::FFI_TableProvider;
use flashmesh::{Error, Lookup};
use flashmesh_planner::interrupt::StopOnDrop;
use flashmesh_planner::progress::ScanProgress;
use futures::StreamExt;
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3_arrow::{PyRecordBatch, PyRecordBatchReader, PySchema};

use crate::Raises;
use crate::capsule;
use crate::link::Link;
use crate::rows;
use crate::run::{handle, wait, wait_with};
use crate::table::QueryTable;

/// A query of an open database. It runs anew each time its rows are asked for, on the tables as
/// they are then.
#[pyclass(module = "flashmesh._flashmesh", frozen)]
pub(crate) struct Query {
    link: Arc<Link>,
    table: Arc<QueryTable>,
}

impl Query {
    pub(crate) fn new(link: &Arc<Link>, table: Arc<QueryTable>) -> Self {
        Self {
            link: Arc::clone(link),
            table,
        }
    }

    pub(crate) fn table(&self) -> &Arc<QueryTable> {
        &self.table
    }

    /// Its rows, if they need not be computed.
    fn at_hand(&self) -> Result<Option<Batches>, Error> {
        let rows = self.table.rows()?;
        let schema = datafusion::catalog::TableProvider::schema(self.table.as_ref());
        Ok(rows.map(|rows| Batches::of_rows(schema, rows)))
    }

    fn frame(&self) -> Result<DataFrame, Error> {
        let session = self.link.session()?;
        Ok(DataFrame::new(
            session.context().state(),
            self.table.plan()?,
        ))
    }
}

/// Runs a frame to its end and keeps its rows. `progress` is called meanwhile with segments done,
/// segments in all, and bytes from flash.
pub(crate) fn run(
    py: Python<'_>,
    frame: impl Future<Output = Result<DataFrame, Error>> + Send + 'static,
    progress: Option<&Py<PyAny>>,
) -> Raises<Batches> {
    let running = Arc::new(OnceLock::<StopOnDrop>::new());
    let waits = Arc::downgrade(&running);
    let work = async move {
        let (plan, context) = planned(frame.await?).await?;
        // Whoever stops waiting stops it, also if that was before there was a plan.
        match waits.upgrade() {
            Some(running) => drop(running.set(StopOnDrop::new(&plan))),
            None => return Err(Error::usage("nobody waits for the query any more")),
        }
        let mut stream = execute_stream(plan, context)?;
        let schema = stream.schema();
        let mut batches = VecDeque::new();
        while let Some(batch) = stream.next().await {
            batches.push_back(batch?);
        }
        Ok(Batches::new(schema, Source::Collected(batches)))
    };
    wait_with(py, work, |py| {
        let (Some(progress), Some(running)) = (progress, running.get()) else {
            return Ok(());
        };
        let now = ScanProgress::of(running.plan());
        let report = (now.segments_done, now.segments, now.bytes_from_flash);
        progress.call1(py, report).map(drop)
    })
}

/// The operators of a frame, and what they run with.
async fn planned(frame: DataFrame) -> Result<(Arc<dyn ExecutionPlan>, Arc<TaskContext>), Error> {
    let context = Arc::new(frame.task_ctx());
    let (state, plan) = frame.into_parts();
    let plan = flashmesh_planner::physical_plan(&state, &plan).await?;
    Ok((plan, context))
}

#[pymethods]
impl Query {
    /// The schema as an Arrow C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let schema = datafusion::catalog::TableProvider::schema(self.table.as_ref());
        Bound::new(py, PySchema::new(schema))?.call_method0("__arrow_c_schema__")
    }

    /// The query as a table of the wheel's session `session`.
    fn __datafusion_table_provider__<'py>(
        &self,
        py: Python<'py>,
        session: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let codec = capsule::logical_codec(session)?;
        let table = FFI_TableProvider::new_with_ffi_codec(
            Arc::clone(&self.table) as _,
            true,
            Some(handle()?),
            codec,
        );
        capsule::new(py, table, c"datafusion_table_provider")
    }

    /// Run it and keep its rows. `progress` is called with segments done, segments in all, and
    /// bytes from flash.
    #[pyo3(signature = (progress = None))]
    fn collect(&self, py: Python<'_>, progress: Option<Py<PyAny>>) -> Raises<Batches> {
        if let Some(rows) = self.at_hand()? {
            return Ok(rows);
        }
        run(py, ready(Ok(self.frame()?)), progress.as_ref())
    }

    /// Run it while its rows are read.
    fn stream(&self, py: Python<'_>) -> Raises<Batches> {
        if let Some(rows) = self.at_hand()? {
            return Ok(rows);
        }
        let frame = self.frame()?;
        let (stream, stop) = wait(py, async move {
            let (plan, context) = planned(frame).await?;
            let stop = StopOnDrop::new(&plan);
            Ok((execute_stream(plan, context)?, stop))
        })?;
        Ok(Batches::new(
            stream.schema(),
            Source::Running(None, stream, stop),
        ))
    }

    /// The number of its rows.
    fn count(&self, py: Python<'_>) -> Raises<usize> {
        let counted = self.frame()?.aggregate(vec![], vec![count_all()]);
        let counted = counted.map_err(Error::from)?;
        let Source::Collected(batches) = run(py, ready(Ok(counted)), None)?.source.into_inner()
        else {
            return Ok(0);
        };
        let counts = batches.iter().filter(|batch| batch.num_rows() > 0);
        let counts = counts.map(|batch| batch.column(0).as_primitive::<Int64Type>().value(0));
        Ok(counts.sum::<i64>() as usize)
    }

    /// Its first rows.
    fn limit(&self, rows: usize) -> Raises<Self> {
        let plan = LogicalPlanBuilder::from(self.table.plan()?)
            .limit(0, Some(rows))
            .and_then(LogicalPlanBuilder::build)
            .map_err(Error::from)?;
        let table = QueryTable::try_new(&self.link, plan).map_err(Error::from)?;
        Ok(Self::new(&self.link, table))
    }

    /// How it is run, or with `analyze` how it ran: rows of `plan_type` and `plan`.
    #[pyo3(signature = (verbose = false, analyze = false, format = None, show_statistics = None, analyze_level = None, analyze_categories = None))]
    #[expect(clippy::too_many_arguments, reason = "those of the wheel's explain")]
    fn explain(
        &self,
        py: Python<'_>,
        verbose: bool,
        analyze: bool,
        format: Option<&str>,
        show_statistics: Option<bool>,
        analyze_level: Option<&str>,
        analyze_categories: Option<Vec<String>>,
    ) -> Raises<Batches> {
        let option = ExplainOption {
            verbose,
            analyze,
            format: format.map_or(Ok(ExplainFormat::Indent), parse)?,
            show_statistics,
            analyze_level: analyze_level.map(parse::<MetricType>).transpose()?,
            analyze_categories: analyze_categories
                .map(|names| {
                    let categories = names.iter().map(|name| parse::<MetricCategory>(name));
                    categories
                        .collect::<PyResult<_>>()
                        .map(ExplainAnalyzeCategories::Only)
                })
                .transpose()?,
        };
        let frame = self.frame()?;
        wait(py, async move {
            let frame = frame.explain_with_options(option)?;
            let schema = Arc::clone(frame.schema().inner());
            let batches = frame.collect().await?;
            Ok(Batches::of_rows(schema, batches))
        })
    }
}

fn parse<T: FromStr<Err: std::fmt::Display>>(text: &str) -> PyResult<T> {
    text.parse()
        .map_err(|e: T::Err| PyValueError::new_err(e.to_string()))
}

enum Source {
    Collected(VecDeque<RecordBatch>),
    /// With what was put back.
    Running(Option<RecordBatch>, SendableRecordBatchStream, StopOnDrop),
    /// Handed on, or ended by an error.
    Gone,
}

/// Rows, read once.
#[pyclass(module = "flashmesh._flashmesh", frozen)]
pub(crate) struct Batches {
    schema: SchemaRef,
    source: Mutex<Source>,
}

impl Batches {
    fn new(schema: SchemaRef, source: Source) -> Self {
        Self {
            schema,
            source: Mutex::new(source),
        }
    }

    /// Rows that are there.
    pub(crate) fn of_lookup(py: Python<'_>, lookup: &Lookup<'_>) -> Option<Self> {
        // Letting other threads have the interpreter and getting it back takes longer than this.
        let rows = match lookup.cached_rows().ok()? {
            Some(rows) => rows,
            None => py.detach(|| lookup.rows()).ok()?,
        };
        Some(Self::of_rows(lookup.schema().ok()?, rows))
    }

    pub(crate) fn of_rows(schema: SchemaRef, rows: Vec<RecordBatch>) -> Self {
        Self::new(schema, Source::Collected(rows.into()))
    }
}

#[pymethods]
impl Batches {
    /// Names of the columns; those of what [`Database::run`](super::database::Database) gave need
    /// not be distinct.
    #[getter]
    fn names(&self) -> Vec<&str> {
        let fields = self.schema.fields().iter();
        fields.map(|field| field.name().as_str()).collect()
    }

    /// The rows as an Arrow C stream.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let source = std::mem::replace(&mut *self.source.lock(), Source::Gone);
        if matches!(source, Source::Gone) {
            return Err(PyRuntimeError::new_err(
                "these rows were read before; run the query again",
            ));
        }
        let reader = PyRecordBatchReader::new(Box::new(Reader {
            schema: Arc::clone(&self.schema),
            source,
        }));
        Bound::new(py, reader)?.call_method1("__arrow_c_stream__", (requested_schema,))
    }

    /// The schema as an Arrow C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Bound::new(py, PySchema::new(Arc::clone(&self.schema)))?.call_method0("__arrow_c_schema__")
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The number of rows that are left; `None` where they are not computed yet.
    #[getter]
    fn num_rows(&self) -> Option<usize> {
        match &*self.source.lock() {
            Source::Collected(batches) => Some(batches.iter().map(RecordBatch::num_rows).sum()),
            Source::Running(..) => None,
            Source::Gone => Some(0),
        }
    }

    /// The next rows as tuples: at most `limit`, or all that are left.
    #[pyo3(signature = (limit = None))]
    fn fetch<'py>(
        &self,
        py: Python<'py>,
        limit: Option<usize>,
    ) -> Raises<Vec<Bound<'py, PyTuple>>> {
        let mut rows = Vec::new();
        let mut wanted = limit.unwrap_or(usize::MAX);
        while wanted > 0 {
            let mut source = std::mem::replace(&mut *self.source.lock(), Source::Gone);
            let Some(batch) = source.next(py)? else { break };
            let taken = batch.num_rows().min(wanted);
            if taken < batch.num_rows() {
                source.put_back(batch.slice(taken, batch.num_rows() - taken));
            }
            *self.source.lock() = source;
            rows.append(&mut rows::tuples_of(py, &batch.slice(0, taken))?);
            wanted -= taken;
        }
        Ok(rows)
    }

    /// The next pyarrow.RecordBatch.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut source = std::mem::replace(&mut *self.source.lock(), Source::Gone);
        let batch = source.next(py)?;
        if batch.is_some() {
            *self.source.lock() = source;
        }
        batch
            .map(|batch| PyRecordBatch::new(batch).into_pyarrow(py))
            .transpose()
    }
}

impl Source {
    /// The next batch; after an error there is none.
    fn next(&mut self, py: Python<'_>) -> Raises<Option<RecordBatch>> {
        match std::mem::replace(self, Self::Gone) {
            Self::Gone => Ok(None),
            Self::Collected(mut batches) => {
                let batch = batches.pop_front();
                *self = Self::Collected(batches);
                Ok(batch)
            }
            Self::Running(Some(batch), stream, stop) => {
                *self = Self::Running(None, stream, stop);
                Ok(Some(batch))
            }
            Self::Running(None, mut stream, stop) => {
                let (stream, batch) = wait(py, async move {
                    let batch = stream.next().await.transpose()?;
                    Ok((stream, batch))
                })?;
                *self = Self::Running(None, stream, stop);
                Ok(batch)
            }
        }
    }

    /// Gives back what is to be the next batch.
    fn put_back(&mut self, batch: RecordBatch) {
        match self {
            Self::Collected(batches) => batches.push_front(batch),
            Self::Running(next, ..) => *next = Some(batch),
            Self::Gone => {}
        }
    }
}

/// Rows for consumers in other libraries, which block.
struct Reader {
    schema: SchemaRef,
    source: Source,
}

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Source::Collected(batches) = &mut self.source {
            return batches.pop_front().map(Ok);
        }
        Python::attach(|py| {
            self.source
                .next(py)
                .map_err(|error| in_arrow(py, error.into()))
        })
        .transpose()
    }
}

/// An Arrow stream can carry text only. Ctrl-C is raised again, for when the consumer returns.
fn in_arrow(py: Python<'_>, error: PyErr) -> ArrowError {
    if error.is_instance_of::<pyo3::exceptions::PyKeyboardInterrupt>(py) {
        // SAFETY: it only sets a flag.
        unsafe { ffi::PyErr_SetInterrupt() };
        return ArrowError::ExternalError("the query was interrupted".into());
    }
    ArrowError::ExternalError(error.value(py).to_string().into())
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
