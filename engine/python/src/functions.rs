//! Functions of two libraries: what the wheel calls by a name that our session knows too is ours,
//! so that it can go into the store; anything else runs where it lives.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{
    AggregateUDF, Expr, LogicalPlan, ScalarUDF, WindowFunctionDefinition, WindowUDF,
};
use datafusion_ffi::udf::FFI_ScalarUDF;
use datafusion_proto::logical_plan::LogicalExtensionCodec;
use flashmesh::Error;
use flashmesh_planner::walk::{Walk as _, WalkPlan as _};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::Raises;
use crate::capsule;

/// The functions of our session by name.
pub(crate) struct OursByName {
    scalar: HashMap<String, Arc<ScalarUDF>>,
    aggregate: HashMap<String, Arc<AggregateUDF>>,
    window: HashMap<String, Arc<WindowUDF>>,
    /// The codec of a session of the wheel that pickles functions written in Python, and writes
    /// nothing for others.
    pickling: Arc<dyn LogicalExtensionCodec>,
}

impl OursByName {
    pub(crate) fn new(state: &SessionState, pickling: Arc<dyn LogicalExtensionCodec>) -> Self {
        Self {
            scalar: state.scalar_functions().clone(),
            aggregate: state.aggregate_functions().clone(),
            window: state.window_functions().clone(),
            pickling,
        }
    }

    /// Whether the wheel wrote anything: a function of the user's may have the name of a
    /// built-in one.
    fn is_python(&self, encode: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> bool {
        let mut bytes = Vec::new();
        // What can't be pickled is Python too.
        encode(&mut bytes).is_err() || !bytes.is_empty()
    }

    pub(crate) fn scalar(&self, function: &ScalarUDF) -> Option<&Arc<ScalarUDF>> {
        let ours = self.scalar.get(function.name())?;
        let python = self.is_python(|bytes| self.pickling.try_encode_udf(function, bytes));
        (!python).then_some(ours)
    }

    pub(crate) fn aggregate(&self, function: &AggregateUDF) -> Option<&Arc<AggregateUDF>> {
        let ours = self.aggregate.get(function.name())?;
        let python = self.is_python(|bytes| self.pickling.try_encode_udaf(function, bytes));
        (!python).then_some(ours)
    }

    pub(crate) fn window(&self, function: &WindowUDF) -> Option<&Arc<WindowUDF>> {
        let ours = self.window.get(function.name())?;
        let python = self.is_python(|bytes| self.pickling.try_encode_udwf(function, bytes));
        (!python).then_some(ours)
    }

    /// `expr` with our functions where it has the wheel's of the same name.
    pub(crate) fn in_expr(&self, expr: Expr) -> Result<Transformed<Expr>> {
        expr.transform_up(|mut expr| {
            let replaced = match &mut expr {
                Expr::ScalarFunction(call) => replace(&mut call.func, |f| self.scalar(f)),
                Expr::AggregateFunction(call) => replace(&mut call.func, |f| self.aggregate(f)),
                Expr::WindowFunction(call) => match &mut call.fun {
                    WindowFunctionDefinition::AggregateUDF(f) => replace(f, |f| self.aggregate(f)),
                    WindowFunctionDefinition::WindowUDF(f) => replace(f, |f| self.window(f)),
                },
                _ => false,
            };
            Ok(Transformed::new_transformed(expr, replaced))
        })
    }

    /// [`OursByName::in_expr`] for all expressions of a plan.
    pub(crate) fn in_plan(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        plan.change_up_with_subqueries(|node| node.change_expressions(|expr| self.in_expr(expr)))
            .map(|plan| plan.data)
    }
}

fn replace<'a, T: 'a>(function: &mut Arc<T>, ours: impl FnOnce(&T) -> Option<&'a Arc<T>>) -> bool {
    match ours(function) {
        Some(ours) if !Arc::ptr_eq(ours, function) => {
            *function = Arc::clone(ours);
            true
        }
        _ => false,
    }
}

/// A scalar function of flashmesh, for `datafusion.ScalarUDF.from_pycapsule`.
#[pyclass(module = "flashmesh._flashmesh", frozen)]
pub(crate) struct ScalarFunction(Arc<ScalarUDF>);

impl ScalarFunction {
    /// The function that a session knows by that name.
    pub(crate) fn of(state: &SessionState, name: &str) -> Raises<Self> {
        match state.scalar_functions().get(name) {
            Some(function) => Ok(Self(Arc::clone(function))),
            None => Err(Error::usage(format!(
                "there is no function '{name}'; con.register_kernel makes one"
            ))
            .into()),
        }
    }
}

/// The name of the kernel in a package.
#[pyfunction]
pub(crate) fn kernel_name(package: Vec<u8>) -> Raises<String> {
    let package = flashmesh_storage::kernel::Package::parse(package.into());
    let package = package.map_err(Error::from)?;
    Ok(package.manifest.name.clone())
}

#[pymethods]
impl ScalarFunction {
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    fn __datafusion_scalar_udf__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let function = FFI_ScalarUDF::from(Arc::clone(&self.0));
        capsule::new(py, function, c"datafusion_scalar_udf")
    }
}

/// The scalar functions that DataFusion does not have.
#[pyfunction]
pub(crate) fn scalar_functions() -> Vec<ScalarFunction> {
    flashmesh_planner::functions::scalar_functions()
        .into_iter()
        .map(ScalarFunction)
        .collect()
}
