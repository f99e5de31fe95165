//! The Python module `flashmesh._flashmesh`; `python/flashmesh/` wraps it and holds its types.
//!
//! Two libraries meet in the process: the wheel `datafusion`, whose DataFrames users build, and
//! this one, which plans and runs them. What crosses between them goes through `datafusion-ffi`:
//!
//! 1. A [`query::Query`] is a plan of a [`flashmesh::Session`]. To the wheel it is a table
//!    ([`table::QueryTable`]), on which its DataFrames grow.
//! 2. The plan of a DataFrame comes back as bytes. Decoding them ([`codec`]) puts the query's own
//!    plan where the wheel had a table, so that the whole is optimised and pushed down as one.
//! 3. `flashmesh.DataFrame` asks for that itself ([`database::Database::plan`]). Where the wheel
//!    runs a plan on its own, it asks [`planner`], which answers with one opaque node that runs
//!    the whole query here.
//!
//! [`link`] holds what outlives a single call: the open session, and what was handed across.

mod capsule;
mod catalog;
mod codec;
mod database;
mod exec;
mod functions;
mod link;
mod planner;
mod query;
mod rows;
mod run;
mod table;

use pyo3::prelude::*;

/// The system's allocator gives large buffers back at once, only to fault them in again for the
/// next batch.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The engine's error as an exception. A module of its own, as both are called `Error`.
mod exception {
    pyo3::create_exception!(
        flashmesh,
        Error,
        pyo3::exceptions::PyException,
        "What went wrong with a statement; the message names the thing and the way out."
    );
}

/// What a call gives, or raises.
type Raises<T> = Result<T, Raised>;

/// What a call raises: an exception of Python's, or the engine's error as [`exception::Error`].
struct Raised(PyErr);

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Self {
        Self(error)
    }
}

impl From<flashmesh::Error> for Raised {
    fn from(error: flashmesh::Error) -> Self {
        Self(exception::Error::new_err(error.to_string()))
    }
}

impl From<Raised> for PyErr {
    fn from(raised: Raised) -> Self {
        raised.0
    }
}

/// Runs the command line `arguments`, of which the first is the command itself; the exit code.
#[pyfunction]
fn run_command(py: Python<'_>, arguments: Vec<std::ffi::OsString>) -> u8 {
    let code = py.detach(|| flashmesh::cli::main(arguments));
    u8::from(code != std::process::ExitCode::SUCCESS)
}

#[pymodule]
fn _flashmesh(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Error", module.py().get_type::<exception::Error>())?;
    module.add_function(wrap_pyfunction!(run_command, module)?)?;
    module.add_class::<database::Database>()?;
    module.add_class::<query::Query>()?;
    module.add_class::<query::Batches>()?;
    module.add_class::<functions::ScalarFunction>()?;
    module.add_function(wrap_pyfunction!(database::open, module)?)?;
    module.add_function(wrap_pyfunction!(rows::tuples, module)?)?;
    module.add_function(wrap_pyfunction!(functions::scalar_functions, module)?)?;
    module.add_function(wrap_pyfunction!(functions::kernel_name, module)?)?;
    Ok(())
}
