//! Functions whose results can be of any size, whatever their arguments: bounded, so that one call
//! can't take all memory, or a thread for minutes. No memory limit covers what a function makes.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, FieldRef, Float64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::common::{Result, exec_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature,
};
use datafusion::prelude::SessionContext;

/// A call's part of the memory limit, and the most that it is.
const MEMORY_SHARE: usize = 16;
const LARGEST_RESULT: usize = 1 << 30;
const SMALLEST_LIMIT: usize = 16 << 20;

/// Functions by name, with the bytes of their results from their arguments.
const FUNCTIONS: [(&str, Estimate); 8] = [
    ("repeat", repeated),
    ("array_repeat", repeated),
    ("lpad", padded),
    ("rpad", padded),
    ("array_resize", resized),
    ("range", series),
    ("generate_series", series),
    ("replace", replaced),
];

type Estimate = fn(&[ColumnarValue], usize) -> Result<f64>;

/// Bounds the functions of a session whose queries share that memory.
///
/// # Errors
/// When the session has no such function.
pub(crate) fn bound_functions(context: &SessionContext, memory_limit: usize) -> Result<()> {
    let limit = (memory_limit / MEMORY_SHARE).clamp(SMALLEST_LIMIT, LARGEST_RESULT);
    let state = context.state();
    for (name, estimate) in FUNCTIONS {
        let inner = state.udf(name)?;
        context.register_udf(ScalarUDF::new_from_impl(Bounded {
            inner,
            bound: Bound { limit, estimate },
        }));
    }
    Ok(())
}

/// A function that refuses to make more than its limit at once.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    inner: Arc<ScalarUDF>,
    bound: Bound,
}

#[derive(Debug, Clone, Copy)]
struct Bound {
    limit: usize,
    estimate: Estimate,
}

/// The function says how its results are estimated.
impl PartialEq for Bound {
    fn eq(&self, other: &Self) -> bool {
        self.limit == other.limit
    }
}

impl Eq for Bound {}

impl std::hash::Hash for Bound {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.limit.hash(state);
    }
}

impl ScalarUDFImpl for Bounded {
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = (self.bound.estimate)(&args.args, args.number_rows)?;
        if bytes > self.bound.limit as f64 {
            return exec_err!(
                "{} would make {bytes:.0} bytes at once, and a function may make {}; make fewer at a time, or rows in place of an array (FROM generate_series(…))",
                self.name(),
                self.bound.limit
            );
        }
        self.inner.invoke_with_args(args)
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let inner = self.inner.inner().with_updated_config(config)?;
        Some(ScalarUDF::new_from_impl(Self {
            inner: Arc::new(inner),
            bound: self.bound,
        }))
    }

    fn is_strict(&self) -> bool {
        self.inner.is_strict()
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        self.inner.evaluate_bounds(inputs)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.inner.output_ordering(inputs)
    }

    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.inner.documentation()
    }
}

/// A value a row, or one for all rows.
struct PerRow(Vec<f64>);

impl PerRow {
    fn at(&self, row: usize) -> f64 {
        let value = if self.0.len() == 1 { 0 } else { row };
        self.0.get(value).copied().unwrap_or(0.0)
    }
}

fn per_row(
    args: &[ColumnarValue],
    position: usize,
    of: impl Fn(&ArrayRef) -> Result<Vec<f64>>,
) -> Result<PerRow> {
    match args.get(position) {
        None => Ok(PerRow(Vec::new())),
        Some(ColumnarValue::Array(array)) => of(array).map(PerRow),
        Some(ColumnarValue::Scalar(value)) => of(&value.to_array()?).map(PerRow),
    }
}

fn bytes(args: &[ColumnarValue], position: usize) -> Result<PerRow> {
    per_row(args, position, |array| Ok(row_bytes(array)))
}

fn counts(args: &[ColumnarValue], position: usize) -> Result<PerRow> {
    per_row(args, position, numbers)
}

fn sum(rows: usize, of: impl Fn(usize) -> f64) -> Result<f64> {
    Ok((0..rows).map(of).sum())
}

fn repeated(args: &[ColumnarValue], rows: usize) -> Result<f64> {
    let (values, counts) = (bytes(args, 0)?, counts(args, 1)?);
    sum(rows, |row| values.at(row) * counts.at(row).max(0.0))
}

/// A character has four bytes at most.
fn padded(args: &[ColumnarValue], rows: usize) -> Result<f64> {
    let counts = counts(args, 1)?;
    sum(rows, |row| 4.0 * counts.at(row).max(0.0))
}

fn resized(args: &[ColumnarValue], rows: usize) -> Result<f64> {
    let (counts, fill) = (counts(args, 1)?, bytes(args, 2)?);
    sum(rows, |row| fill.at(row).max(8.0) * counts.at(row).max(0.0))
}

fn series(args: &[ColumnarValue], rows: usize) -> Result<f64> {
    let (first, second, third) = (counts(args, 0)?, counts(args, 1)?, counts(args, 2)?);
    sum(rows, |row| {
        let span = match args.len() {
            1 => first.at(row),
            _ => second.at(row) - first.at(row),
        };
        let step = if args.len() < 3 { 1.0 } else { third.at(row) };
        // The function refuses steps of nothing.
        let values = if step == 0.0 { 0.0 } else { span / step };
        8.0 * values.max(0.0)
    })
}

fn replaced(args: &[ColumnarValue], rows: usize) -> Result<f64> {
    let (text, from, to) = (bytes(args, 0)?, bytes(args, 1)?, bytes(args, 2)?);
    sum(rows, |row| {
        let found = text.at(row) / from.at(row).max(1.0);
        text.at(row) + found * to.at(row)
    })
}

const NANOSECONDS_OF_DAY: f64 = 86_400e9;
const DAYS_OF_MONTH: f64 = 30.0;

/// Numbers, and moments and spans in nanoseconds; 0 for NULL.
fn numbers(array: &ArrayRef) -> Result<Vec<f64>> {
    if let DataType::Interval(IntervalUnit::MonthDayNano) = array.data_type() {
        let spans = array.as_primitive::<IntervalMonthDayNanoType>().iter();
        return Ok(spans
            .map(|span| {
                let span = span.unwrap_or_default();
                let days = f64::from(span.months) * DAYS_OF_MONTH + f64::from(span.days);
                days * NANOSECONDS_OF_DAY + span.nanoseconds as f64
            })
            .collect());
    }
    let unit = match array.data_type() {
        DataType::Date32 => NANOSECONDS_OF_DAY,
        DataType::Date64 | DataType::Timestamp(TimeUnit::Millisecond, _) => 1e6,
        DataType::Timestamp(TimeUnit::Second, _) => 1e9,
        DataType::Timestamp(TimeUnit::Microsecond, _) => 1e3,
        _ => 1.0,
    };
    let plain = match array.data_type().is_temporal() {
        true => cast(array, &DataType::Int64)?,
        false => Arc::clone(array),
    };
    let plain = cast(&plain, &DataType::Float64)?;
    let plain = plain.as_primitive::<Float64Type>().iter();
    Ok(plain.map(|value| value.unwrap_or(0.0) * unit).collect())
}

/// The bytes of each row.
fn row_bytes(array: &ArrayRef) -> Vec<f64> {
    match array.data_type() {
        DataType::Utf8 => lengths(array.as_string::<i32>().value_offsets()),
        DataType::LargeUtf8 => lengths(array.as_string::<i64>().value_offsets()),
        DataType::Binary => lengths(array.as_binary::<i32>().value_offsets()),
        DataType::LargeBinary => lengths(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => view_lengths(array.as_string_view().views()),
        DataType::BinaryView => view_lengths(array.as_binary_view().views()),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            items(list.value_offsets(), list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            items(list.value_offsets(), list.values())
        }
        DataType::Struct(_) => {
            let mut all = vec![0.0; array.len()];
            for column in array.as_struct().columns() {
                let bytes = row_bytes(column).into_iter();
                all.iter_mut().zip(bytes).for_each(|(all, b)| *all += b);
            }
            all
        }
        _ => {
            let bytes = array.get_array_memory_size() as f64;
            let width = array.data_type().primitive_width();
            let width = width.map_or(bytes / array.len().max(1) as f64, |width| width as f64);
            vec![width; array.len()]
        }
    }
}

fn lengths<O: OffsetSizeTrait>(offsets: &[O]) -> Vec<f64> {
    let pairs = offsets.windows(2);
    pairs
        .map(|pair| (pair[1] - pair[0]).as_usize() as f64)
        .collect()
}

/// A view begins with its length.
fn view_lengths(views: &[u128]) -> Vec<f64> {
    views.iter().map(|view| f64::from(*view as u32)).collect()
}

fn items<O: OffsetSizeTrait>(offsets: &[O], values: &ArrayRef) -> Vec<f64> {
    let mut before = vec![0.0; values.len() + 1];
    for (row, bytes) in row_bytes(values).into_iter().enumerate() {
        before[row + 1] = before[row] + bytes;
    }
    let pairs = offsets.windows(2);
    pairs
        .map(|pair| before[pair[1].as_usize()] - before[pair[0].as_usize()])
        .collect()
}

#[cfg(test)]
mod tests {
    use crate::{Engine, EngineOptions};

    /// The greatest result is 64 MB.
    async fn answer(sql: &str) -> Result<String, String> {
        let options = EngineOptions {
            memory_limit_bytes: Some(1 << 30),
            ..EngineOptions::default()
        };
        let session = Engine::open(options).unwrap().session().unwrap();
        let frame = session.sql(sql).await.map_err(|e| e.to_string())?;
        let batches = frame.collect().await.map_err(|e| e.to_string())?;
        let shown = arrow::util::pretty::pretty_format_batches(&batches);
        Ok(shown.unwrap().to_string())
    }

    #[tokio::test]
    async fn results_of_any_size_are_refused() {
        for sql in [
            "SELECT array_repeat(1, 2147483647)",
            "SELECT list_repeat(array_repeat(1, 100000), 100000)",
            "SELECT range(0, 2000000000)",
            "SELECT array_length(generate_series(2000000000, 0, -1))",
            "SELECT range(DATE '1970-01-01', DATE '2200-01-01', INTERVAL '1 millisecond')",
            "SELECT range(TIMESTAMP '1970-01-01', TIMESTAMP '2200-01-01', INTERVAL '1 microsecond')",
            "SELECT repeat('x', 2000000000)",
            "SELECT lpad('x', 2000000000, 'y')",
            "SELECT rpad('x', 2000000000, 'y')",
            "SELECT array_resize([1], 2000000000)",
            "SELECT replace(repeat('x', 1000000), 'x', repeat('y', 1000000))",
            "SELECT array_length(range(0, n)) FROM (VALUES (1), (2000000000)) AS t(n)",
            "SELECT repeat(s, 1000) FROM (SELECT repeat('x', n) AS s FROM (VALUES (1), (60000000)) AS t(n))",
        ] {
            let error = answer(sql).await.expect_err(sql);
            assert!(error.contains("may make"), "{sql}: {error}");
        }
    }

    #[tokio::test]
    async fn ordinary_results_are_made() {
        for (sql, expected) in [
            ("SELECT array_length(range(0, 1000000)) AS n", "1000000"),
            ("SELECT range(5, 0, -2) AS n", "[5, 3, 1]"),
            ("SELECT generate_series(NULL, 3) IS NULL AS n", "true"),
            ("SELECT length(repeat('ab', 1000)) AS n", "2000"),
            ("SELECT lpad('x', 3, 'y') || rpad('x', 3) AS n", "yyxx  "),
            ("SELECT array_resize([1], 3, 7) AS n", "[1, 7, 7]"),
            ("SELECT array_repeat([1, 2], 2) AS n", "[[1, 2], [1, 2]]"),
            ("SELECT replace('aXbX', 'X', '--') AS n", "a--b--"),
            (
                "SELECT array_length(range(DATE '2020-01-01', DATE '2021-01-01', INTERVAL '1 month')) AS n",
                "12",
            ),
        ] {
            let shown = answer(sql).await.unwrap();
            assert!(shown.contains(expected), "{sql}: {shown}");
        }
    }
}
