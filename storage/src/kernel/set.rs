//! The kernels of a Program.

use std::sync::Arc;

use arrow::datatypes::DataType;
use flashmesh_pushdown::{Expr, KernelId, Output, Program, QueryVector};

use super::{Kernel, Kind, QueryCalls, Returns};
use crate::{Result, StorageError};

/// The kernels of one Program, ready to run.
#[derive(Debug, Clone, Default)]
pub struct KernelSet {
    kernels: Vec<(KernelId, Arc<Kernel>)>,
    calls: Option<Arc<QueryCalls>>,
}

impl KernelSet {
    /// A set for a query, without kernels yet.
    pub(crate) fn new(calls: Arc<QueryCalls>) -> Self {
        Self {
            kernels: Vec::new(),
            calls: Some(calls),
        }
    }

    /// Puts a kernel into the set.
    pub(crate) fn insert(&mut self, id: KernelId, kernel: Arc<Kernel>) {
        self.kernels.push((id, kernel));
    }

    /// The kernel that a Program names so.
    pub fn get(&self, id: &KernelId) -> Option<&Arc<Kernel>> {
        let found = self.kernels.iter().find(|(known, _)| known == id);
        found.map(|(_, kernel)| kernel)
    }

    /// The calls of the query; `None` for a set without kernels.
    pub fn calls(&self) -> Option<&Arc<QueryCalls>> {
        self.calls.as_ref()
    }
}

/// Calls `visit` with every kernel call of a Program.
pub(crate) fn for_each_kernel<'a>(
    program: &'a Program,
    visit: &mut dyn FnMut(&'a KernelId, &'a Expr),
) {
    fn walk<'a>(expr: &'a Expr, visit: &mut dyn FnMut(&'a KernelId, &'a Expr)) {
        if let Expr::Kernel { kernel, .. } = expr {
            visit(kernel, expr);
        }
        expr.for_each_child(&mut |child| walk(child, visit));
    }
    let outputs: Vec<&Expr> = match &program.output {
        Output::Rows { exprs, .. } => exprs.iter().collect(),
        Output::Aggregate { keys, aggregates } => {
            let arguments = aggregates.iter().flat_map(|aggregate| aggregate.exprs());
            keys.iter().chain(arguments).collect()
        }
        Output::Nearest { expr, exprs, .. } => std::iter::once(expr).chain(exprs).collect(),
    };
    for expr in program.filter.iter().chain(outputs) {
        walk(expr, visit);
    }
}

/// Whether any expression of the Program calls a kernel.
pub fn has_kernels(program: &Program) -> bool {
    let mut any = false;
    for_each_kernel(program, &mut |_, _| any = true);
    any
}

/// A call's types against the kernel's signature: a Program that was made elsewhere may say
/// anything.
pub(crate) fn check_call(kernel: &Kernel, call: &Expr, program: &Program) -> Result<()> {
    let Expr::Kernel {
        kernel: id,
        arguments,
        query,
        data_type,
    } = call
    else {
        return Ok(());
    };
    let manifest = kernel.manifest();
    let refused = |what: String| {
        Err(StorageError::Invalid(format!(
            "function '{}': {what}",
            id.name
        )))
    };
    let Some(signature) = &manifest.signature else {
        return refused("it has no SQL signature".into());
    };
    let types = arguments.iter().map(|a| a.data_type(&program.columns));
    if manifest.kind == Kind::Distance {
        let vectors: Vec<DataType> = types.collect();
        let fits = match (vectors.as_slice(), query) {
            ([DataType::FixedSizeBinary(size)], Some(QueryVector::Bits(bits))) => {
                usize::try_from(*size).is_ok_and(|size| size == bits.len())
            }
            ([DataType::FixedSizeList(child, size)], Some(QueryVector::Floats(values))) => {
                child.data_type() == &DataType::Float32
                    && usize::try_from(*size).is_ok_and(|size| size == values.len())
            }
            _ => false,
        };
        return match fits && *data_type == DataType::Float64 {
            true => Ok(()),
            false => refused("it takes a column of vectors and a vector as long".into()),
        };
    }
    if !matches!(manifest.kind, Kind::Scalar | Kind::Filter | Kind::Search) || query.is_some() {
        return refused(format!(
            "a {} kernel is not called like this",
            manifest.kind
        ));
    }
    if arguments.len() != signature.parameters.len() {
        return refused(format!(
            "it takes {} arguments, not {}",
            signature.parameters.len(),
            arguments.len()
        ));
    }
    for ((parameter, argument), data_type) in signature.parameters.iter().zip(arguments).zip(types)
    {
        if data_type != parameter.data_type {
            return refused(format!(
                "'{}' is {}, not {data_type}",
                parameter.name, parameter.data_type
            ));
        }
        if parameter.constant && !matches!(argument, Expr::Literal(_)) {
            return refused(format!("'{}' takes a constant", parameter.name));
        }
    }
    match &signature.returns {
        Returns::Scalar(result) if result == data_type => Ok(()),
        _ => refused(format!("{signature} does not return {data_type}")),
    }
}
