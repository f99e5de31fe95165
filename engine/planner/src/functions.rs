//! Scalar functions that SQL gets from flashmesh: distances between vectors.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBufferBuilder, Float32Array, UInt32Array, new_null_array,
};
use arrow::buffer::NullBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float32Type};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use flashmesh_pushdown::{Metric, QueryVector, distance};

/// The functions.
pub fn scalar_functions() -> Vec<Arc<ScalarUDF>> {
    [Metric::Hamming, Metric::L2, Metric::Cosine, Metric::Dot]
        .map(|metric| Arc::new(ScalarUDF::from(Distance::new(metric))))
        .to_vec()
}

/// The metric of the function of that name.
pub fn metric_of(function: &str) -> Option<Metric> {
    [Metric::Hamming, Metric::L2, Metric::Cosine, Metric::Dot]
        .into_iter()
        .find(|metric| metric.to_string() == function)
}

/// A constant as a vector; `None` for other values, and vectors with a NULL in them.
pub fn query_vector(value: &ScalarValue, metric: Metric) -> Option<QueryVector> {
    let array = value.to_array().ok()?;
    match Vectors::of(&array, metric).ok()? {
        Vectors::Bits(bits) => Some(QueryVector::Bits(bits.value(0)?.to_vec())),
        Vectors::Floats(lists) => lists.value(0).map(QueryVector::Floats),
    }
}

/// `hamming_distance`, `l2_distance`, `cosine_distance` or `dot_product`: see
/// [`flashmesh_pushdown::distance`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct Distance {
    metric: Metric,
    name: String,
    signature: Signature,
}

impl Distance {
    fn new(metric: Metric) -> Self {
        Self {
            metric,
            name: metric.to_string(),
            signature: Signature::user_defined(Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for Distance {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.metric.data_type())
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [_, _] = types else {
            return plan_err!("{} takes two vectors, not {}", self.name, types.len());
        };
        types
            .iter()
            .map(|data_type| match (self.metric, data_type) {
                (_, DataType::Null) => Ok(data_type.clone()),
                (
                    Metric::Hamming,
                    DataType::FixedSizeBinary(_)
                    | DataType::Binary
                    | DataType::LargeBinary
                    | DataType::BinaryView,
                ) => Ok(data_type.clone()),
                (Metric::Hamming, _) => {
                    plan_err!("{} takes binary values, not {data_type}", self.name)
                }
                (_, DataType::FixedSizeList(child, _))
                    if child.data_type() == &DataType::Float32 =>
                {
                    Ok(data_type.clone())
                }
                (
                    _,
                    DataType::List(child)
                    | DataType::LargeList(child)
                    | DataType::FixedSizeList(child, _),
                ) if child.data_type().is_numeric() || child.data_type().is_null() => {
                    let item = Field::new_list_field(DataType::Float32, true);
                    Ok(DataType::List(Arc::new(item)))
                }
                _ => plan_err!("{} takes lists of numbers, not {data_type}", self.name),
            })
            .collect()
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [left, right] = args.args.as_slice() else {
            return exec_err!("{} takes two vectors", self.name);
        };
        if left.data_type().is_null() || right.data_type().is_null() {
            return Ok(ColumnarValue::Array(new_null_array(
                &self.metric.data_type(),
                rows,
            )));
        }
        let (left, right) = (left.to_array(rows)?, right.to_array(rows)?);
        let (left, right) = (
            Vectors::of(&left, self.metric)?,
            Vectors::of(&right, self.metric)?,
        );
        let unequal = |l: usize, r: usize| {
            exec_err!("{}: vectors of different lengths, {l} and {r}", self.name)
        };
        let mut valid = BooleanBufferBuilder::new(rows);
        let result: ArrayRef = match (left, right) {
            (Vectors::Bits(left), Vectors::Bits(right)) => {
                let mut distances = Vec::with_capacity(rows);
                for row in 0..rows {
                    let pair = left.value(row).zip(right.value(row));
                    valid.append(pair.is_some());
                    distances.push(match pair {
                        Some((l, r)) if l.len() != r.len() => return unequal(l.len(), r.len()),
                        Some((l, r)) => distance::hamming(l, r),
                        None => 0,
                    });
                }
                let nulls = NullBuffer::new(valid.finish());
                Arc::new(UInt32Array::new(distances.into(), Some(nulls)))
            }
            (Vectors::Floats(left), Vectors::Floats(right)) => {
                let mut distances = Vec::with_capacity(rows);
                for row in 0..rows {
                    let pair = left.value(row).zip(right.value(row));
                    valid.append(pair.is_some());
                    distances.push(match pair {
                        Some((l, r)) => match distance::distance(self.metric, &l, &r) {
                            Some(distance) if l.len() == r.len() => distance,
                            _ => return unequal(l.len(), r.len()),
                        },
                        None => 0.0,
                    });
                }
                let nulls = NullBuffer::new(valid.finish());
                Arc::new(Float32Array::new(distances.into(), Some(nulls)))
            }
            _ => return exec_err!("{} takes two vectors of one kind", self.name),
        };
        Ok(ColumnarValue::Array(result))
    }
}

/// Rows of vectors.
enum Vectors {
    Bits(Bits),
    Floats(Floats),
}

struct Bits(ArrayRef);

struct Floats(ArrayRef);

impl Vectors {
    fn of(array: &ArrayRef, metric: Metric) -> Result<Self> {
        if metric != Metric::Hamming {
            return match array.data_type() {
                DataType::FixedSizeList(child, _) if child.data_type() == &DataType::Float32 => {
                    Ok(Self::Floats(Floats(Arc::clone(array))))
                }
                _ => {
                    let item = Field::new_list_field(DataType::Float32, true);
                    let lists = cast(array, &DataType::List(Arc::new(item)))?;
                    Ok(Self::Floats(Floats(lists)))
                }
            };
        }
        Ok(Self::Bits(Bits(match array.data_type() {
            DataType::FixedSizeBinary(_) | DataType::BinaryView => Arc::clone(array),
            _ => cast(array, &DataType::BinaryView)?,
        })))
    }
}

impl Bits {
    fn value(&self, row: usize) -> Option<&[u8]> {
        let array = &self.0;
        if array.is_null(row) {
            return None;
        }
        Some(match array.as_fixed_size_binary_opt() {
            Some(fixed) => fixed.value(row),
            None => array.as_binary_view().value(row),
        })
    }
}

impl Floats {
    /// `None` for NULL and for vectors with a NULL in them.
    fn value(&self, row: usize) -> Option<Vec<f32>> {
        let array = &self.0;
        if array.is_null(row) {
            return None;
        }
        let values = match array.as_fixed_size_list_opt() {
            Some(fixed) => fixed.value(row),
            None => array.as_list::<i32>().value(row),
        };
        let values = values.as_primitive::<Float32Type>();
        (values.null_count() == 0).then(|| values.values().to_vec())
    }
}
