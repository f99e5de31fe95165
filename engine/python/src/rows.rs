//! Rows and keys as Python values, without a way through pyarrow for the types that most are of: for
//! one row that way takes longer than the store, and importing pyarrow longer than a first answer.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, Float64Array, Int64Array, RecordBatch,
    StringViewArray, new_null_array,
};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Field, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
    SchemaRef, TimeUnit, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use flashmesh::{Error, Row, Value};
use parking_lot::Mutex;
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::type_object::PyTypeInfo;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use pyo3_arrow::{PyArray, PyRecordBatch};

use crate::Raises;

/// A value as an array of one: of the type that [`column_of`] or `flashmesh.backend.array` gives it.
pub(crate) fn array_of(value: &Bound<'_, PyAny>) -> Raises<ArrayRef> {
    let values = [Some(value.clone()).filter(|value| !value.is_none())];
    if let Some(array) = column_of(&values) {
        return Ok(array);
    }
    let backend = value.py().import("flashmesh.backend")?;
    let array = backend.call_method1("array", ([value],))?;
    Ok(array.extract::<PyArray>()?.into_inner().0)
}

/// Dicts as rows of the columns that they name. `None` where they are left to Python: other mappings, dicts of
/// different columns, values that are no [`column_of`].
pub(crate) fn batch_of(dicts: &Bound<'_, PyList>) -> Raises<Option<RecordBatch>> {
    let mut rows = Vec::with_capacity(dicts.len());
    for dict in dicts {
        match dict.cast_into_exact::<PyDict>() {
            Ok(dict) => rows.push(dict),
            Err(_) => return Ok(None),
        }
    }
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    if rows.iter().any(|row| row.len() != first.len()) {
        return Ok(None);
    }
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    for (name, _) in first {
        let Ok(name) = name.cast_exact::<PyString>() else {
            return Ok(None);
        };
        let values = rows.iter().map(|row| row.get_item(name));
        let Some(values) = values.collect::<PyResult<Option<Vec<_>>>>()? else {
            return Ok(None);
        };
        let values = values.into_iter();
        let values: Vec<_> = values
            .map(|value| Some(value).filter(|value| !value.is_none()))
            .collect();
        let Some(column) = column_of(&values) else {
            return Ok(None);
        };
        fields.push(Field::new(name.to_str()?, column.data_type().clone(), true));
        columns.push(column);
    }
    if fields.is_empty() {
        return Ok(None);
    }
    let rows = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns);
    Ok(Some(rows.map_err(Error::from)?))
}

type Values<'py> = [Option<Bound<'py, PyAny>>];

/// Values of one class as an array of the type that pyarrow gives them, but text as views, as tables have
/// it. `None` where they are left to pyarrow: values of other classes, or of several.
fn column_of(values: &Values<'_>) -> Option<ArrayRef> {
    let Some(first) = values.iter().flatten().next() else {
        return Some(new_null_array(&DataType::Null, values.len()));
    };
    if first.is_exact_instance_of::<PyString>() {
        let texts = all::<PyString, _>(values, |text| text.to_str().ok())?;
        return Some(Arc::new(StringViewArray::from_iter(texts)));
    }
    if first.is_exact_instance_of::<PyInt>() {
        let numbers = all::<PyInt, i64>(values, |number| number.extract().ok())?;
        return Some(Arc::new(Int64Array::from(numbers)));
    }
    if first.is_exact_instance_of::<PyFloat>() {
        let numbers = all::<PyFloat, _>(values, |number| Some(number.value()))?;
        return Some(Arc::new(Float64Array::from(numbers)));
    }
    if first.is_exact_instance_of::<PyBool>() {
        let truths = all::<PyBool, _>(values, |truth| Some(truth.is_true()))?;
        return Some(Arc::new(BooleanArray::from(truths)));
    }
    let bytes = all::<PyBytes, _>(values, |bytes| Some(bytes.as_bytes()))?;
    Some(Arc::new(BinaryArray::from_iter(bytes)))
}

/// The values as Rust has them; `None` when one is not of the class, or has no such value.
fn all<'a, 'py, C: PyTypeInfo + 'a, T>(
    values: &'a Values<'py>,
    value_of: impl Fn(&'a Bound<'py, C>) -> Option<T>,
) -> Option<Vec<Option<T>>> {
    let values = values.iter().map(|value| match value {
        Some(value) => value_of(value.cast_exact().ok()?).map(Some),
        None => Some(None),
    });
    values.collect()
}

/// Makes dicts of rows. Those of one table have the same keys: the dict of the last one is kept, with
/// nothing in it but those, and copied, which takes a fraction of making and hashing them anew.
#[derive(Default)]
pub(crate) struct RowDicts(Mutex<Option<Arc<Pattern>>>);

/// What dicts of rows of a table have in common.
struct Pattern {
    schema: SchemaRef,
    names: Vec<Py<PyString>>,
    /// None under each name.
    dict: Py<PyDict>,
}

impl RowDicts {
    /// A row as a dict, with the values that [`tuples_of`] gives.
    pub fn dict_of<'py>(&self, py: Python<'py>, row: &Row) -> Raises<Bound<'py, PyDict>> {
        let pattern = self.pattern(py, row.schema())?;
        let dict = pattern.dict.bind(py).copy()?;
        for (name, value) in pattern.names.iter().zip(row.values()) {
            if let Some(value) = value_in(py, value)? {
                dict.set_item(name, value)?;
            }
        }
        Ok(dict)
    }

    fn pattern(&self, py: Python<'_>, schema: &SchemaRef) -> Raises<Arc<Pattern>> {
        let last = self.0.lock().clone();
        if let Some(pattern) = last.filter(|last| Arc::ptr_eq(&last.schema, schema)) {
            return Ok(pattern);
        }
        // Nothing of Python's is made under the lock: that may run whatever is collected.
        let pattern = Arc::new(Pattern::of(py, schema)?);
        *self.0.lock() = Some(Arc::clone(&pattern));
        Ok(pattern)
    }
}

impl Pattern {
    fn of(py: Python<'_>, schema: &SchemaRef) -> Raises<Self> {
        let fields = schema.fields().iter();
        let names: Vec<_> = fields
            .map(|field| PyString::new(py, field.name()))
            .collect();
        let dict = PyDict::new(py);
        for name in &names {
            dict.set_item(name, py.None())?;
        }
        Ok(Self {
            schema: Arc::clone(schema),
            names: names.into_iter().map(Bound::unbind).collect(),
            dict: dict.unbind(),
        })
    }
}

/// A value of a row; `None` for NULL.
fn value_in<'py>(py: Python<'py>, value: Value<'_>) -> PyResult<Option<Bound<'py, PyAny>>> {
    Ok(Some(match value {
        Value::Null => return Ok(None),
        Value::Boolean(truth) => truth.into_bound_py_any(py)?,
        Value::Integer(number) => number.into_bound_py_any(py)?,
        Value::Unsigned(number) => number.into_bound_py_any(py)?,
        Value::Float(number) => number.into_bound_py_any(py)?,
        Value::Text(text) => PyString::new(py, text).into_any(),
        Value::Binary(bytes) => PyBytes::new(py, bytes).into_any(),
        Value::Array(array) => value_of(py, array, 0)?,
    }))
}

/// The rows of a batch as tuples.
#[pyfunction]
pub(crate) fn tuples<'py>(
    py: Python<'py>,
    batch: PyRecordBatch,
) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    tuples_of(py, &batch.into_inner())
}

/// Rows as tuples, with the values that pyarrow's `to_pylist` gives, but for those of [`through_pyarrow`].
pub(crate) fn tuples_of<'py>(
    py: Python<'py>,
    rows: &RecordBatch,
) -> PyResult<Vec<Bound<'py, PyTuple>>> {
    let columns = rows.columns().iter().map(|column| values_of(py, column));
    let columns = columns.collect::<Raises<Vec<_>>>()?;
    (0..rows.num_rows())
        .map(|row| PyTuple::new(py, columns.iter().map(|values| &values[row])))
        .collect()
}

fn values_of<'py>(py: Python<'py>, column: &ArrayRef) -> Raises<Vec<Bound<'py, PyAny>>> {
    if !is_plain(column.data_type()) {
        return through_pyarrow(py, column);
    }
    (0..column.len())
        .map(|row| match column.is_null(row) {
            true => Ok(py.None().into_bound(py)),
            false => Ok(value_of(py, column, row)?),
        })
        .collect()
}

/// Whether [`value_of`] makes values of a type itself.
fn is_plain(data_type: &DataType) -> bool {
    use DataType::{Binary, BinaryView, Boolean, LargeUtf8, Utf8, Utf8View};
    data_type.is_integer()
        || matches!(data_type, DataType::Float32 | DataType::Float64)
        || matches!(data_type, Boolean | Utf8 | LargeUtf8 | Utf8View)
        || matches!(data_type, Binary | BinaryView)
}

fn value_of<'py>(py: Python<'py>, column: &ArrayRef, row: usize) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! number {
        ($type:ty) => {
            column
                .as_primitive::<$type>()
                .value(row)
                .into_bound_py_any(py)
        };
    }
    match column.data_type() {
        DataType::Utf8View => column.as_string_view().value(row).into_bound_py_any(py),
        DataType::Utf8 => column.as_string::<i32>().value(row).into_bound_py_any(py),
        DataType::LargeUtf8 => column.as_string::<i64>().value(row).into_bound_py_any(py),
        DataType::Binary => Ok(PyBytes::new(py, column.as_binary::<i32>().value(row)).into_any()),
        DataType::BinaryView => Ok(PyBytes::new(py, column.as_binary_view().value(row)).into_any()),
        DataType::Boolean => column.as_boolean().value(row).into_bound_py_any(py),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type),
        DataType::UInt16 => number!(UInt16Type),
        DataType::UInt32 => number!(UInt32Type),
        DataType::UInt64 => number!(UInt64Type),
        DataType::Float32 => number!(Float32Type),
        DataType::Float64 => number!(Float64Type),
        _ => Ok(through_pyarrow(py, &column.slice(row, 1))?.remove(0)),
    }
}

/// The values that pyarrow's `to_pylist` gives; moments and lengths of time are of Python's own classes, where
/// these can have them.
fn through_pyarrow<'py>(py: Python<'py>, column: &ArrayRef) -> Raises<Vec<Bound<'py, PyAny>>> {
    let array = PyArray::from_array_ref(in_microseconds(py, column)?);
    let values = array.to_pyarrow(py)?.call_method0("to_pylist")?;
    let values = values.try_iter()?;
    let is_interval = matches!(column.data_type(), DataType::Interval(_));
    let values = values.map(|value| {
        let value = value?.unbind().into_bound(py);
        match is_interval {
            true => of_interval(value),
            false => Ok(value),
        }
    });
    values.collect()
}

/// What is in nanoseconds in microseconds, which Python's classes have, where that loses nothing, or where
/// pandas, whose classes have nanoseconds, is not there.
fn in_microseconds(py: Python<'_>, column: &ArrayRef) -> Raises<ArrayRef> {
    let micros = TimeUnit::Microsecond;
    let data_type = match column.data_type() {
        DataType::Timestamp(TimeUnit::Nanosecond, zone) => {
            DataType::Timestamp(micros, zone.clone())
        }
        DataType::Duration(TimeUnit::Nanosecond) => DataType::Duration(micros),
        DataType::Time64(TimeUnit::Nanosecond) => DataType::Time64(micros),
        _ => return Ok(Arc::clone(column)),
    };
    let numbers = cast(column, &DataType::Int64).map_err(Error::from)?;
    let mut numbers = numbers.as_primitive::<Int64Type>().iter().flatten();
    if numbers.any(|number| number % 1000 != 0) && py.import("pandas").is_ok() {
        return Ok(Arc::clone(column));
    }
    Ok(cast(column, &data_type).map_err(Error::from)?)
}

/// An interval without months as a `timedelta`, unless it has parts of microseconds or is longer than those.
fn of_interval(value: Bound<'_, PyAny>) -> Raises<Bound<'_, PyAny>> {
    let Ok((0, days, nanoseconds)) = value.extract::<(i32, i32, i64)>() else {
        return Ok(value);
    };
    if nanoseconds % 1000 != 0 {
        return Ok(value);
    }
    let class = value.py().import("datetime")?.getattr("timedelta")?;
    Ok(class.call1((days, 0, nanoseconds / 1000)).unwrap_or(value))
}
