//! Calls of kernels that users added.

use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeBinaryArray, FixedSizeListArray, Float32Array};
use arrow::datatypes::{DataType, Field};
use flashmesh_pushdown::{KernelId, QueryVector};

use super::vector::Vector;
use crate::kernel::{Kernel, KernelSet, QueryCalls};
use crate::{Result, StorageError};

/// A kernel with what its calls have in common.
#[derive(Debug)]
pub(in crate::accelerator::cpu) struct KernelCall {
    pub id: KernelId,
    /// `None` for one that the node did not bind, which fails when it is called.
    kernel: Option<(Arc<Kernel>, Arc<QueryCalls>)>,
    query: Option<QueryVector>,
}

impl PartialEq for KernelCall {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id && self.query == other.query
    }
}

impl KernelCall {
    pub fn new(kernels: &KernelSet, id: &KernelId, query: Option<&QueryVector>) -> Self {
        let kernel = kernels.get(id).zip(kernels.calls());
        Self {
            id: id.clone(),
            kernel: kernel.map(|(kernel, calls)| (Arc::clone(kernel), Arc::clone(calls))),
            query: query.cloned(),
        }
    }

    /// The kernel's values for `len` rows.
    pub fn run(
        &self,
        arguments: &[(&Vector, &DataType)],
        len: usize,
        wide: bool,
    ) -> Result<Vector> {
        let Some((kernel, calls)) = &self.kernel else {
            return Err(StorageError::Invalid(format!(
                "function '{}' was not bound to the scan",
                self.id.name
            )));
        };
        let context = calls.context();
        let result = match &self.query {
            Some(query) => {
                let [(vectors, data_type)] = arguments else {
                    return Err(StorageError::Invalid(format!(
                        "function '{}' measures from one vector",
                        self.id.name
                    )));
                };
                let vectors = vectors.to_arrow(data_type, len)?;
                Arc::new(kernel.distances(&vectors, &array_of(query)?, context)?) as ArrayRef
            }
            None => {
                let constants = kernel.manifest().signature.iter();
                let constants = constants.flat_map(|s| &s.parameters).map(|p| p.constant);
                let arrays = arguments
                    .iter()
                    .zip(constants)
                    .map(|((vector, data_type), constant)| {
                        vector.to_arrow(data_type, if constant { 1 } else { len })
                    })
                    .collect::<Result<Vec<_>>>()?;
                kernel.evaluate(&arrays, len, context)?
            }
        };
        Vector::from_arrow(&result, wide)
    }
}

/// A constant vector as an array of one row.
fn array_of(query: &QueryVector) -> Result<ArrayRef> {
    Ok(match query {
        QueryVector::Bits(bits) => {
            Arc::new(FixedSizeBinaryArray::try_from_iter([bits].into_iter())?)
        }
        QueryVector::Floats(values) => {
            let size = i32::try_from(values.len())
                .map_err(|_| StorageError::Invalid("a vector of more than 2^31 elements".into()))?;
            let item = Arc::new(Field::new_list_field(DataType::Float32, true));
            let values = Arc::new(Float32Array::from(values.clone()));
            Arc::new(FixedSizeListArray::try_new(item, size, values, None)?)
        }
    })
}
