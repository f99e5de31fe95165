//! Kernels that users added, as functions of SQL.
//!
//! The same kernel runs in two places: beside the pages, as `Expr::Kernel` of a Program, and
//! above the scan, where DataFusion calls it like any function of its own. Both go through one
//! compiled kernel of the store, so both give the same.

mod aggregate;
mod calls;
mod query;

use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, Float64Array, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, DocSection, Documentation, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility,
};
use flashmesh_pushdown::Metric;
use flashmesh_storage::functions::{Kernels, UserFunction};
use flashmesh_storage::kernel::{CallContext, Kernel, Kind, Parameter, QueryCalls, Returns};

use crate::error::from_storage;

pub use aggregate::aggregate_function;
pub use calls::CancelKernels;
pub(crate) use calls::aside;
pub(crate) use query::{KernelQueryExec, plan_for_query};

/// A kernel with what compiles it.
#[derive(Debug, Clone)]
struct Handle {
    function: Arc<UserFunction>,
    kernels: Arc<Kernels>,
    documentation: Arc<Documentation>,
    /// `None`: of a session, which plans but does not run it.
    of_query: Option<OfQuery>,
}

/// A kernel in one query.
#[derive(Debug, Clone)]
struct OfQuery {
    calls: Arc<QueryCalls>,
    /// Made when it first runs.
    kernel: Arc<OnceLock<Arc<Kernel>>>,
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
        let manifest = function.manifest();
        let signature = manifest.signature.as_ref().map(ToString::to_string);
        let usage = format!("{}{}", function.entry.name, signature.unwrap_or_default());
        let section = DocSection::default();
        let documentation = Documentation::builder(section, &manifest.description, usage);
        Self {
            documentation: Arc::new(documentation.build()),
            function,
            kernels,
            of_query: None,
        }
    }

    /// The same for the query of `calls`: what its instances keep between calls ends with it.
    fn for_query(&self, calls: &Arc<QueryCalls>) -> Self {
        let of_query = OfQuery {
            calls: Arc::clone(calls),
            kernel: Arc::default(),
        };
        Self {
            of_query: Some(of_query),
            ..self.clone()
        }
    }

    fn name(&self) -> &str {
        &self.function.entry.name
    }

    /// The kernel in the query that runs. While a query is planned this is an error, which keeps
    /// calls of constants from being folded: nobody could end them then, and they would be
    /// nobody's.
    fn running(&self) -> Result<(Arc<Kernel>, &Arc<QueryCalls>)> {
        let of_query = self.of_query.as_ref();
        let Some(OfQuery { calls, kernel }) = of_query.filter(|q| q.calls.has_begun()) else {
            return exec_err!(
                "function '{}' runs with a query, not while one is planned",
                self.name()
            );
        };
        if let Some(kernel) = kernel.get() {
            return Ok((Arc::clone(kernel), calls));
        }
        let made = self.kernels.for_query(&self.function, calls);
        let made = made.map_err(from_storage)?;
        Ok((Arc::clone(kernel.get_or_init(|| made)), calls))
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

    /// The types that arguments of these types are cast to. Integers are given to parameters of
    /// narrower ones, and all numbers to constants: literals are BIGINT and DOUBLE. A value that
    /// does not fit is an error.
    fn coerce(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let signature = self.function.manifest().signature.iter();
        let parameters: Vec<_> = signature.flat_map(|s| &s.parameters).collect();
        let fits = parameters.len() == given.len()
            && parameters
                .iter()
                .zip(given)
                .all(|(p, given)| takes(p, given));
        if !fits {
            let given: Vec<_> = given.iter().map(ToString::to_string).collect();
            let parameters = parameters
                .iter()
                .map(|p| format!("{} {}", p.name, p.data_type));
            return plan_err!(
                "{0} is called as {0}({1}), not with ({2})",
                self.name(),
                parameters.collect::<Vec<_>>().join(", "),
                given.join(", ")
            );
        }
        Ok(self.parameter_types())
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

/// Whether a parameter takes what is of type `given`, cast where it is another.
fn takes(parameter: &Parameter, given: &DataType) -> bool {
    let wanted = &parameter.data_type;
    match (wanted, given) {
        (_, DataType::Null) | (DataType::Utf8View, _) => true,
        (_, DataType::Dictionary(_, given)) => takes(parameter, given),
        (DataType::BinaryView, DataType::Binary | DataType::LargeBinary) => true,
        _ if wanted == given => true,
        _ if wanted.is_integer() => {
            given.is_integer() || (parameter.constant && given.is_numeric())
        }
        (DataType::Float32, _) => given.is_integer() || (parameter.constant && given.is_numeric()),
        (DataType::Float64, _) => given.is_numeric(),
        _ => parameter.constant && wanted.is_numeric() && given.is_numeric(),
    }
}

/// Whether all values of an array, of which there is at least one, are the same.
fn is_constant(array: &ArrayRef) -> bool {
    let same = make_comparator(array, array, SortOptions::default());
    !array.is_empty() && same.is_ok_and(|same| (1..array.len()).all(|row| same(0, row).is_eq()))
}

/// The scalar function of a kernel; `None` for kinds that are none.
pub fn scalar_function(function: Arc<UserFunction>, kernels: Arc<Kernels>) -> Option<ScalarUDF> {
    let kind = function.manifest().kind;
    let handle = Handle::new(function, kernels);
    if matches!(kind, Kind::Aggregate | Kind::Table) {
        return None;
    }
    // The same arguments give the same values, so that rules may move and share calls. That
    // constants are not folded is seen to when they are called.
    let signature = Signature::user_defined(Volatility::Immutable);
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

    fn for_query(&self, calls: &Arc<QueryCalls>) -> Self {
        Self {
            handle: self.handle.for_query(calls),
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
        let handle = &self.handle;
        let kernel = handle.kernels.kernel(&handle.function);
        kernel.map(|_| ()).map_err(from_storage)
    }

    /// A built-in metric over the same vectors as this distance.
    pub fn vectors(&self) -> Metric {
        match self.handle.parameter_types().first() {
            Some(DataType::FixedSizeBinary(_) | DataType::BinaryView) => Metric::Hamming,
            _ => Metric::L2,
        }
    }

    fn distances(
        &self,
        kernel: &Kernel,
        args: &ScalarFunctionArgs,
        context: CallContext<'_>,
    ) -> Result<ArrayRef> {
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
        let distances = aside(|| kernel.distances(&vectors, &query, context));
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

    fn documentation(&self) -> Option<&Documentation> {
        Some(&self.handle.documentation)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        if self.kind != Kind::Distance {
            return self.handle.coerce(types);
        }
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
        let (kernel, calls) = self.handle.running()?;
        let context = calls.context();
        if self.kind == Kind::Distance {
            let distances = self.distances(&kernel, &args, context)?;
            return Ok(ColumnarValue::Array(distances));
        }
        // Constants make a constant.
        let all_constant = args
            .args
            .iter()
            .all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if all_constant { 1 } else { args.number_rows };
        let arrays = self.handle.arrays(&args.args, rows)?;
        let result = aside(|| kernel.evaluate(&arrays, rows, context));
        let result = result.map_err(from_storage)?;
        Ok(match all_constant {
            true => {
                ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&result, 0)?)
            }
            false => ColumnarValue::Array(result),
        })
    }
}
