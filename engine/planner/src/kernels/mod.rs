//! Kernels that users added, as functions of SQL.
//!
//! The same kernel runs in two places: beside the pages, as [`Expr::Kernel`] of a Program, and
//! above the scan, where DataFusion calls it like any function of its own. Both go through one
//! compiled kernel of the store, so both give the same.

mod aggregate;

use std::borrow::Cow;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, Float64Array, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr as DfExpr, LogicalPlan, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use flashmesh_pushdown::Metric;
use flashmesh_storage::kernel::{Kernel, Kernels, Kind, Returns, UserFunction};

use crate::error::from_storage;

pub use aggregate::aggregate_function;

/// A kernel with what compiles it.
#[derive(Debug, Clone)]
struct Handle {
    function: Arc<UserFunction>,
    kernels: Arc<Kernels>,
    /// The kernel of one query, made when it first runs; `None` outside of queries.
    of_query: Option<Arc<OnceLock<Arc<Kernel>>>>,
}

// Functions are compared when plans are: the same package is the same function.
impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        self.function.entry == other.function.entry
    }
}

impl Eq for Handle {}

impl Hash for Handle {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.entry.digest.hash(state);
    }
}

impl Handle {
    fn new(function: Arc<UserFunction>, kernels: Arc<Kernels>) -> Self {
        Self {
            function,
            kernels,
            of_query: None,
        }
    }

    /// The same for one query: what its instances keep between calls ends with it.
    fn for_query(&self) -> Self {
        Self {
            of_query: Some(Arc::default()),
            ..self.clone()
        }
    }

    fn name(&self) -> &str {
        &self.function.entry.name
    }

    fn kernel(&self) -> Result<Arc<Kernel>> {
        let Some(of_query) = &self.of_query else {
            return self.kernels.kernel(&self.function).map_err(from_storage);
        };
        if let Some(kernel) = of_query.get() {
            return Ok(Arc::clone(kernel));
        }
        let kernel = self.kernels.for_query(&self.function);
        let kernel = kernel.map_err(from_storage)?;
        Ok(Arc::clone(of_query.get_or_init(|| kernel)))
    }

    /// Types of the parameters; for a distance those that its two vectors may have.
    fn parameter_types(&self) -> Vec<DataType> {
        let signature = self.function.manifest().signature.iter();
        let parameters = signature.flat_map(|signature| &signature.parameters);
        parameters.map(|p| p.data_type.clone()).collect()
    }

    fn return_type(&self) -> Result<DataType> {
        match self
            .function
            .manifest()
            .signature
            .as_ref()
            .map(|s| &s.returns)
        {
            Some(Returns::Scalar(data_type)) => Ok(data_type.clone()),
            _ => plan_err!(
                "function '{}' gives a table; it stands in FROM",
                self.name()
            ),
        }
    }

    /// The arrays of a call over `rows` rows: one value for what the signature calls constant.
    fn arrays(&self, arguments: &[ColumnarValue], rows: usize) -> Result<Vec<ArrayRef>> {
        let signature = self.function.manifest().signature.as_ref();
        let constants = signature.into_iter().flat_map(|s| &s.parameters);
        constants
            .zip(arguments)
            .map(
                |(parameter, argument)| match (parameter.constant, argument) {
                    (true, ColumnarValue::Scalar(value)) => value.to_array(),
                    // A constant that a plan has spread out.
                    (true, ColumnarValue::Array(array)) if is_constant(array) => {
                        Ok(array.slice(0, 1))
                    }
                    (true, ColumnarValue::Array(_)) => exec_err!(
                        "{}: '{}' takes a constant, not a column",
                        self.name(),
                        parameter.name
                    ),
                    (false, argument) => argument.to_array(rows),
                },
            )
            .collect()
    }
}

/// Whether all values of an array, of which there is at least one, are the same.
fn is_constant(array: &ArrayRef) -> bool {
    let same = make_comparator(array, array, SortOptions::default());
    !array.is_empty() && same.is_ok_and(|same| (1..array.len()).all(|row| same(0, row).is_eq()))
}

/// `plan` with kernels of its own in place of the session's.
pub(crate) fn for_query(plan: &LogicalPlan) -> Result<Cow<'_, LogicalPlan>> {
    let mut calls = false;
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            calls |= expr.exists(|expr| Ok(kernel_called(expr).is_some()))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    if !calls {
        return Ok(Cow::Borrowed(plan));
    }
    let own = plan.clone().transform_up_with_subqueries(|node| {
        node.map_expressions(|expr| {
            expr.transform_up(|expr| {
                let Some(function) = kernel_called(&expr).map(KernelFunction::for_query) else {
                    return Ok(Transformed::no(expr));
                };
                let DfExpr::ScalarFunction(mut call) = expr else {
                    return internal_err!("a kernel is a scalar function");
                };
                call.func = Arc::new(ScalarUDF::from(function));
                Ok(Transformed::yes(DfExpr::ScalarFunction(call)))
            })
        })
    })?;
    Ok(Cow::Owned(own.data))
}

fn kernel_called(expr: &DfExpr) -> Option<&KernelFunction> {
    match expr {
        DfExpr::ScalarFunction(call) => KernelFunction::of(&call.func),
        _ => None,
    }
}

/// The scalar function of a kernel; `None` for kinds that are none.
pub fn scalar_function(function: Arc<UserFunction>, kernels: Arc<Kernels>) -> Option<ScalarUDF> {
    let kind = function.manifest().kind;
    let handle = Handle::new(function, kernels);
    let signature = match kind {
        Kind::Scalar | Kind::Filter | Kind::Search => {
            Signature::exact(handle.parameter_types(), Volatility::Immutable)
        }
        Kind::Distance => Signature::user_defined(Volatility::Immutable),
        Kind::Aggregate | Kind::Table => return None,
    };
    Some(ScalarUDF::from(KernelFunction {
        handle,
        kind,
        signature,
    }))
}

/// A kernel of kind scalar, filter, search or distance.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelFunction {
    handle: Handle,
    kind: Kind,
    signature: Signature,
}

impl KernelFunction {
    /// The kernel that a function of a plan is, if it is one.
    pub fn of(function: &ScalarUDF) -> Option<&Self> {
        function.inner().downcast_ref::<Self>()
    }

    fn for_query(&self) -> Self {
        Self {
            handle: self.handle.for_query(),
            kind: self.kind,
            signature: self.signature.clone(),
        }
    }

    /// What it is.
    pub fn function(&self) -> &UserFunction {
        &self.handle.function
    }

    /// An error when it can't be compiled.
    pub fn compiles(&self) -> Result<()> {
        self.handle.kernel().map(|_| ())
    }

    /// A built-in metric over the same vectors as this distance.
    pub fn vectors(&self) -> Metric {
        match self.handle.parameter_types().first() {
            Some(DataType::FixedSizeBinary(_) | DataType::BinaryView) => Metric::Hamming,
            _ => Metric::L2,
        }
    }

    fn distances(&self, kernel: &Kernel, args: &ScalarFunctionArgs) -> Result<ArrayRef> {
        let rows = args.number_rows;
        let [vectors, ColumnarValue::Scalar(query)] = args.args.as_slice() else {
            return exec_err!(
                "{}: its second argument is the vector to measure from, a constant",
                self.handle.name()
            );
        };
        let vectors = vectors.to_array(rows)?;
        if query.is_null() || vectors.data_type().is_null() {
            return Ok(Arc::new(Float64Array::new_null(rows)));
        }
        let query = query.cast_to(vectors.data_type())?.to_array()?;
        let context = self.handle.kernels.context();
        let distances = kernel.distances(&vectors, &query, context);
        Ok(Arc::new(distances.map_err(from_storage)?))
    }
}

impl ScalarUDFImpl for KernelFunction {
    fn name(&self) -> &str {
        self.handle.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        self.handle.return_type()
    }

    /// Of a distance only: the rest have exact types.
    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [vectors, query] = types else {
            return plan_err!("{} takes two vectors, not {}", self.name(), types.len());
        };
        match (self.vectors(), vectors) {
            (Metric::Hamming, DataType::FixedSizeBinary(_)) => {}
            (Metric::L2, DataType::FixedSizeList(child, _))
                if child.data_type() == &DataType::Float32 => {}
            _ => {
                return plan_err!(
                    "{} takes a column of vectors of one length first, not {vectors}",
                    self.name()
                );
            }
        }
        Ok(vec![vectors.clone(), query.clone()])
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kernel = self.handle.kernel()?;
        if self.kind == Kind::Distance {
            return Ok(ColumnarValue::Array(self.distances(&kernel, &args)?));
        }
        // Constants make a constant.
        let all_constant = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if all_constant { 1 } else { args.number_rows };
        let arrays = self.handle.arrays(&args.args, rows)?;
        let context = self.handle.kernels.context();
        let result = kernel
            .evaluate(&arrays, rows, context)
            .map_err(from_storage)?;
        Ok(match all_constant {
            true => {
                ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&result, 0)?)
            }
            false => ColumnarValue::Array(result),
        })
    }
}
