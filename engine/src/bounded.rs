//! Functions whose results can be of any size, whatever their arguments: bounded, so that one call
//! can't take all memory, or a thread for minutes. No memory limit covers what a function makes.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, OffsetSizeTrait, RecordBatch};
use arrow::compute::{cast, concat};
use arrow::datatypes::{
    DataType, Field, FieldRef, Float64Type, IntervalMonthDayNanoType, IntervalUnit, Schema,
    TimeUnit,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err};
use datafusion::config::ConfigOptions;
use datafusion::execution::FunctionRegistry;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Documentation, Expr, ExprSchemable, LogicalPlan, Operator,
    ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr as PhysicalBinary, Column};
use datafusion::prelude::SessionContext;
use flashmesh_planner::map_named_expressions;
use flashmesh_planner::walk::{Walk as _, WalkPlan as _};

/// A call's part of the memory limit, and the most that it is.
const MEMORY_SHARE: usize = 16;
const LARGEST_RESULT: usize = 1 << 30;
const SMALLEST_LIMIT: usize = 16 << 20;

/// Functions by name, with the most bytes that each row of their results can have.
const FUNCTIONS: [(&str, Estimate); 23] = [
    ("repeat", repeated),
    ("array_repeat", repeated_elements),
    ("lpad", padded),
    ("rpad", padded),
    ("array_resize", resized),
    ("range", series),
    ("generate_series", series),
    ("replace", replaced),
    ("regexp_replace", replaced_matches),
    ("concat", joined),
    ("concat_ws", separated),
    ("array_concat", joined),
    ("array_append", joined),
    ("array_prepend", joined),
    ("array_to_string", listed),
    (CONCATENATION, joined),
    ("json_array", escaped),
    ("json_object", escaped),
    ("to_json", escaped),
    ("url_encode", escaped),
    ("format", printed),
    ("printf", printed),
    ("bin", in_bits),
];

type Estimate = fn(&[ColumnarValue], usize) -> Result<Vec<f64>>;

/// Bounds the functions of a session whose queries share that memory.
///
/// # Errors
/// When the session has no such function.
pub(crate) fn bound_functions(context: &SessionContext, memory_limit: usize) -> Result<()> {
    let limit = limit_of(memory_limit);
    let state = context.state();
    for (name, estimate) in FUNCTIONS {
        // An operator has no name to be called by: `BoundedOperators` puts it in.
        if name != CONCATENATION {
            context.register_udf(bounded(state.udf(name)?, Bound { limit, estimate }));
        }
    }
    Ok(())
}

fn limit_of(memory_limit: usize) -> usize {
    (memory_limit / MEMORY_SHARE).clamp(SMALLEST_LIMIT, LARGEST_RESULT)
}

fn bounded(inner: Arc<ScalarUDF>, bound: Bound) -> ScalarUDF {
    ScalarUDF::new_from_impl(Bounded { inner, bound })
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
        let estimates = (self.bound.estimate)(&args.args, args.number_rows)?;
        let limit = self.bound.limit as f64;
        if estimates.iter().sum::<f64>() <= limit {
            return self.inner.invoke_with_args(args);
        }
        // The most that could come is seldom what comes: some rows at a time, it is counted.
        let mut made: Vec<ArrayRef> = Vec::new();
        let mut bytes = 0;
        let mut rows = 0..0;
        while rows.end < args.number_rows {
            let mut estimate = 0.0;
            for more in &estimates[rows.start..] {
                if rows.end > rows.start && bytes as f64 + estimate + more > limit {
                    break;
                }
                estimate += more;
                rows.end += 1;
            }
            let least = bytes as f64 + if rows.len() == 1 { estimate } else { 0.0 };
            if least > limit {
                return exec_err!(
                    "{} would make {least:.0} bytes at once, and a function may make {}; make fewer at a time, or rows in place of an array (FROM generate_series(…))",
                    self.name(),
                    self.bound.limit
                );
            }
            let some = self.inner.invoke_with_args(slice(&args, rows.clone()))?;
            let some = some.into_array(rows.len())?;
            bytes += some.get_array_memory_size();
            made.push(some);
            rows = rows.end..rows.end;
        }
        let made: Vec<&dyn Array> = made.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&made)?))
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
        // What a function makes of itself shall not be the one without a bound.
        let simplified = self.inner.simplify(args, info)?;
        let ExprSimplifyResult::Simplified(expression) = simplified else {
            return Ok(simplified);
        };
        let limit = self.bound.limit;
        let expression = expression.transform_up(|e| Ok(with_bound(e, limit)))?;
        Ok(ExprSimplifyResult::Simplified(expression.data))
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

/// The name of the operator `||` on texts.
const CONCATENATION: &str = "||";

/// Puts a bounded function in the place of `||`, before constants are computed.
#[derive(Debug)]
pub(crate) struct BoundedOperators {
    operator: Arc<ScalarUDF>,
}

impl BoundedOperators {
    pub(crate) fn new(memory_limit: usize) -> Self {
        Self {
            operator: Arc::new(bounded_concatenation(memory_limit)),
        }
    }

    fn rewrite(&self, expression: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
        let is_text = |e: &Expr| e.get_type(schema).is_ok_and(|found| is_text(&found));
        expression.transform_up(|e| match e {
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::StringConcat,
                right,
            }) if is_text(&left) && is_text(&right) => {
                let call = ScalarFunction::new_udf(Arc::clone(&self.operator), vec![*left, *right]);
                Ok(Transformed::yes(Expr::ScalarFunction(call)))
            }
            other => Ok(Transformed::no(other)),
        })
    }
}

/// What [`BoundedOperators`] puts in: a node that runs parts of plans finds it by its name.
pub(crate) fn bounded_concatenation(memory_limit: usize) -> ScalarUDF {
    let bound = Bound {
        limit: limit_of(memory_limit),
        estimate: joined,
    };
    let inner = Arc::new(ScalarUDF::new_from_impl(Concatenation::new()));
    bounded(inner, bound)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

impl AnalyzerRule for BoundedOperators {
    fn name(&self) -> &str {
        "bounded_operators"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let analyzed = plan.change_up_with_subqueries(|plan| {
            let schema = merge_schema(&plan.inputs());
            map_named_expressions(plan, |expression| self.rewrite(expression, &schema))
        })?;
        Ok(analyzed.data)
    }
}

/// `||` as a function: DataFusion's operator does the work.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Concatenation {
    signature: Signature,
}

impl Concatenation {
    fn new() -> Self {
        Self {
            signature: Signature::any(2, Volatility::Immutable),
        }
    }
}

impl ScalarUDFImpl for Concatenation {
    fn name(&self) -> &str {
        CONCATENATION
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let names: Vec<_> = args.iter().map(|a| a.schema_name().to_string()).collect();
        Ok(names.join(" || "))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [left, right] if is_text(left) && is_text(right) => {
                BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type()
            }
            _ => exec_err!("|| takes two texts"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args
            .args
            .iter()
            .all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let fields = args.arg_fields.iter().enumerate().map(|(i, field)| {
            // Names are looked up nowhere, and both may be the same.
            Field::new(i.to_string(), field.data_type().clone(), true)
        });
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let columns = args.args.into_iter().map(|value| value.into_array(rows));
        let batch = RecordBatch::try_new(schema, columns.collect::<Result<_>>()?)?;
        let operand = |i: usize| Arc::new(Column::new(&i.to_string(), i)) as _;
        let operator = PhysicalBinary::new(operand(0), Operator::StringConcat, operand(1));
        let joined = operator.evaluate(&batch)?.into_array(rows)?;
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&joined, 0)?),
            false => ColumnarValue::Array(joined),
        })
    }
}

/// The call with its function bounded, where it is one of [`FUNCTIONS`] and was not.
fn with_bound(expression: Expr, limit: usize) -> Transformed<Expr> {
    let Expr::ScalarFunction(mut call) = expression else {
        return Transformed::no(expression);
    };
    let named = FUNCTIONS.iter().find(|(name, _)| call.func.name() == *name);
    let is_bounded = call.func.inner().downcast_ref::<Bounded>().is_some();
    let Some(&(_, estimate)) = named.filter(|_| !is_bounded) else {
        return Transformed::no(Expr::ScalarFunction(call));
    };
    call.func = Arc::new(bounded(call.func, Bound { limit, estimate }));
    Transformed::yes(Expr::ScalarFunction(call))
}

/// The call with some of its rows.
fn slice(args: &ScalarFunctionArgs, rows: Range<usize>) -> ScalarFunctionArgs {
    let mut some = args.clone();
    for value in &mut some.args {
        if let ColumnarValue::Array(array) = value {
            *value = ColumnarValue::Array(array.slice(rows.start, rows.len()));
        }
    }
    some.number_rows = rows.len();
    some
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

fn each(rows: usize, of: impl Fn(usize) -> f64) -> Result<Vec<f64>> {
    Ok((0..rows).map(of).collect())
}

fn repeated(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (values, counts) = (bytes(args, 0)?, counts(args, 1)?);
    each(rows, |row| values.at(row) * counts.at(row).max(0.0))
}

/// What an element takes beside its bytes: where these are, in texts and lists.
const PLACE_BYTES: f64 = 16.0;

fn repeated_elements(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (values, counts) = (bytes(args, 0)?, counts(args, 1)?);
    let is_plain = args
        .first()
        .is_some_and(|value| value.data_type().is_primitive());
    let place = if is_plain { 0.0 } else { PLACE_BYTES };
    each(rows, |row| {
        (values.at(row) + place) * counts.at(row).max(0.0)
    })
}

/// A character has four bytes at most.
fn padded(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let counts = counts(args, 1)?;
    each(rows, |row| 4.0 * counts.at(row).max(0.0))
}

fn resized(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (counts, fill) = (counts(args, 1)?, bytes(args, 2)?);
    each(rows, |row| {
        (fill.at(row) + PLACE_BYTES) * counts.at(row).max(0.0)
    })
}

fn series(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (first, second, third) = (counts(args, 0)?, counts(args, 1)?, counts(args, 2)?);
    each(rows, |row| {
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

fn replaced(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (text, from, to) = (bytes(args, 0)?, bytes(args, 1)?, bytes(args, 2)?);
    each(rows, |row| {
        let found = text.at(row) / from.at(row).max(1.0);
        text.at(row) + found * to.at(row)
    })
}

/// Each match can be put in again and again, by as many references as there is text to put in.
fn replaced_matches(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (text, to) = (bytes(args, 0)?, bytes(args, 2)?);
    each(rows, |row| text.at(row) + (text.at(row) + 1.0) * to.at(row))
}

fn joined(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let parts: Vec<_> = (0..args.len())
        .map(|position| bytes(args, position))
        .collect::<Result<_>>()?;
    each(rows, |row| parts.iter().map(|part| part.at(row)).sum())
}

/// Texts of which a byte may become six (`\u0001`), and what stands between and around them.
fn escaped(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let mut all = joined(args, rows)?;
    for bytes in &mut all {
        *bytes = 6.0 * *bytes + 32.0 * args.len() as f64;
    }
    Ok(all)
}

/// Each field of a form is as wide as its digits say, up to ten thousand, or as what is put in.
fn printed(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    const WIDEST: f64 = 10_400.0;
    let form = bytes(args, 0)?;
    let put_in = joined(&args[1.min(args.len())..], rows)?;
    each(rows, |row| {
        let fields = form.at(row) / 2.0;
        form.at(row) + fields * (WIDEST + 4.0 * put_in[row])
    })
}

/// A digit for each bit of a number, or of a text.
fn in_bits(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let text = bytes(args, 0)?;
    each(rows, |row| 64.0 + 8.0 * text.at(row))
}

fn separated(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let separator = bytes(args, 0)?;
    let between = args.len().saturating_sub(2) as f64;
    let mut all = joined(&args[1.min(args.len())..], rows)?;
    for (row, all) in all.iter_mut().enumerate() {
        *all += between * separator.at(row);
    }
    Ok(all)
}

/// Elements as text, with separators: a number of eight bytes has fewer than 32 characters.
fn listed(args: &[ColumnarValue], rows: usize) -> Result<Vec<f64>> {
    let (bytes_of, separator, null) = (bytes(args, 0)?, bytes(args, 1)?, bytes(args, 2)?);
    let count = per_row(args, 0, |array| Ok(elements(array)))?;
    each(rows, |row| {
        4.0 * bytes_of.at(row) + count.at(row) * (separator.at(row) + null.at(row))
    })
}

fn elements(array: &ArrayRef) -> Vec<f64> {
    match array.data_type() {
        DataType::List(_) => lengths(array.as_list::<i32>().value_offsets()),
        DataType::LargeList(_) => lengths(array.as_list::<i64>().value_offsets()),
        DataType::FixedSizeList(_, size) => vec![f64::from(*size); array.len()],
        _ => vec![0.0; array.len()],
    }
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
            "SELECT array_repeat('', 2147483647)",
            "SELECT array_repeat(CAST(NULL AS VARCHAR[]), 2147483647)",
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
            "SELECT repeat('x', 60000000) || repeat('y', 60000000)",
            "SELECT concat(s, s, s) FROM (SELECT repeat('x', n) AS s FROM (VALUES (1), (60000000)) AS t(n))",
            "SELECT concat_ws(repeat('-', 40000000), 'a', 'b', 'c')",
            "SELECT s || s FROM (SELECT repeat('x', n) AS s FROM (VALUES (1), (60000000)) AS t(n))",
            "SELECT array_concat(range(0, 8000000), range(0, 8000000))",
            "SELECT array_to_string(range(0, 100000), repeat('-', 10000))",
            "SELECT regexp_replace(repeat('x', 1000000), 'x', repeat('y', 1000000), 'g')",
            "SELECT regexp_replace(repeat('x', 1000) || n::text, 'x', repeat('y', 200), 'g') FROM generate_series(1, 1000000) AS t(n)",
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
            ("SELECT concat('a', NULL, 1) AS n", "a1"),
            ("SELECT ('a' || NULL) IS NULL AS n", "true"),
            ("SELECT 'a' || 1 || repeat('b', 2) AS n", "a1bb"),
            ("SELECT [1] || [2] AS n", "[1, 2]"),
            ("SELECT concat_ws('-', 'a', 'b') AS n", "a-b"),
            ("SELECT array_to_string([1, 2], '-') AS n", "1-2"),
            (
                "SELECT g, count(*) AS n FROM (SELECT n, 'g' || (n % 2)::text AS g FROM generate_series(1, 6) AS t(n)) GROUP BY g HAVING g || '!' = 'g1!'",
                "g1 | 3",
            ),
            // What could come is more than a function may make; what comes is not.
            (
                "SELECT sum(length(regexp_replace(repeat('x', 1000) || n::text, '^x', repeat('y', 200), 'g')) - length(n::text)) AS n FROM generate_series(1, 9000) AS t(n)",
                "10791000",
            ),
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
