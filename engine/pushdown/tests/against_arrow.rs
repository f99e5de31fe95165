//! The interpreter against Arrow's kernels: the same random Programs, once row by row and once
//! column by column, must give the same output.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Date32Array, Datum, Decimal128Array, Float32Array,
    Float64Array, Int32Array, Int64Array, PrimitiveArray, RecordBatch, RecordBatchOptions,
    Scalar as ArrowScalar, StringArray, StringViewArray, UInt32Array, UInt64Array, new_empty_array,
    new_null_array,
};
use arrow::buffer::{BooleanBuffer, NullBuffer};
use arrow::compute::kernels::regexp::regexp_is_match_scalar;
use arrow::compute::kernels::substring::substring_by_char;
use arrow::compute::kernels::{cmp, numeric, zip::zip};
use arrow::compute::{
    CastOptions, DatePart as ArrowDatePart, SortColumn, SortOptions, and_kleene, cast_with_options,
    contains, date_part, filter_record_batch, ilike, is_null, lexsort_to_indices, like, not,
    or_kleene, sum, take,
};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float16Type, Float32Type, Float64Type, Int64Type,
    TimeUnit, UInt64Type,
};
use arrow::row::{RowConverter, SortField};
use flashmesh_pushdown::types::{arithmetic_type, is_widening_cast, physical};
use flashmesh_pushdown::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, Limits,
    Literal, Metric, Output, Program, QueryVector, Scalar, distance, interpreter, testing, verify,
};

/// DataFusion casts so: what doesn't fit is an error.
const STRICT: CastOptions = CastOptions {
    safe: false,
    format_options: arrow::util::display::FormatOptions::new(),
};

/// What DataFusion does to floats before it compares or groups them.
fn fold_zeros(array: &ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Float16 => {
            let zero = <Float16Type as arrow::datatypes::ArrowPrimitiveType>::Native::from_bits(0);
            let array = array.as_primitive::<Float16Type>();
            Arc::new(array.unary::<_, Float16Type>(|v| if v == zero { zero } else { v }))
        }
        DataType::Float32 => {
            let array = array.as_primitive::<Float32Type>();
            Arc::new(array.unary::<_, Float32Type>(|v| if v == 0.0 { 0.0 } else { v }))
        }
        DataType::Float64 => {
            let array = array.as_primitive::<Float64Type>();
            Arc::new(array.unary::<_, Float64Type>(|v| if v == 0.0 { 0.0 } else { v }))
        }
        _ => array.clone(),
    }
}

fn single(value: &Scalar, data_type: &DataType) -> ArrowScalar<ArrayRef> {
    ArrowScalar::new(Scalar::to_array(std::slice::from_ref(value), data_type).unwrap())
}

/// The value repeated.
fn repeated(value: &Scalar, data_type: &DataType, rows: usize) -> ArrayRef {
    let array = single(value, data_type).into_inner();
    take(&array, &UInt32Array::from(vec![0; rows]), None).unwrap()
}

/// An expression over a batch, by Arrow's kernels.
fn vectorised(expr: &Expr, batch: &RecordBatch) -> ArrayRef {
    let value = |expr: &Expr| vectorised(expr, batch);
    let condition = |expr: &Expr| value(expr).as_boolean().clone();
    let result: BooleanArray = match expr {
        Expr::Column(column) => return batch.column(*column as usize).clone(),
        Expr::Literal(literal) => {
            return repeated(&literal.value, &literal.data_type, batch.num_rows());
        }
        Expr::Compare { op, left, right } => {
            let (left, right) = (fold_zeros(&value(left)), fold_zeros(&value(right)));
            match op {
                CompareOp::Eq => cmp::eq(&left, &right),
                CompareOp::NotEq => cmp::neq(&left, &right),
                CompareOp::Lt => cmp::lt(&left, &right),
                CompareOp::LtEq => cmp::lt_eq(&left, &right),
                CompareOp::Gt => cmp::gt(&left, &right),
                CompareOp::GtEq => cmp::gt_eq(&left, &right),
            }
            .unwrap()
        }
        Expr::And(operands) => operands
            .iter()
            .map(condition)
            .reduce(|left, right| and_kleene(&left, &right).unwrap())
            .unwrap(),
        Expr::Or(operands) => operands
            .iter()
            .map(condition)
            .reduce(|left, right| or_kleene(&left, &right).unwrap())
            .unwrap(),
        Expr::Not(operand) => not(&condition(operand)).unwrap(),
        Expr::IsNull(operand) => is_null(&value(operand)).unwrap(),
        Expr::InList {
            expr,
            list,
            negated,
        } => {
            let needle = value(expr);
            let found = list
                .iter()
                .map(|item| cmp::eq(&needle, &single(item, needle.data_type())).unwrap())
                .reduce(|left, right| or_kleene(&left, &right).unwrap())
                .unwrap();
            if *negated {
                not(&found).unwrap()
            } else {
                found
            }
        }
        Expr::Like {
            expr,
            pattern,
            negated,
            case_insensitive,
        } => {
            let text = value(expr);
            let pattern = ArrowScalar::new(StringViewArray::from(vec![pattern.as_str()]));
            let matches = if *case_insensitive {
                ilike(&text, &pattern).unwrap()
            } else {
                like(&text, &pattern).unwrap()
            };
            if *negated {
                not(&matches).unwrap()
            } else {
                matches
            }
        }
        Expr::Arithmetic {
            op, left, right, ..
        } => {
            let (left, right) = (value(left), value(right));
            return match op {
                ArithmeticOp::Add => numeric::add_wrapping(&left, &right),
                ArithmeticOp::Subtract => numeric::sub_wrapping(&left, &right),
                ArithmeticOp::Multiply => numeric::mul_wrapping(&left, &right),
            }
            .unwrap();
        }
        Expr::Cast { expr, data_type } => {
            return cast_with_options(&value(expr), data_type, &STRICT).unwrap();
        }
        Expr::Case {
            branches,
            otherwise,
            data_type,
        } => {
            let mut result = match otherwise {
                Some(otherwise) => value(otherwise),
                None => new_null_array(data_type, batch.num_rows()),
            };
            for (when, then) in branches.iter().rev() {
                result = zip(&condition(when), &value(then), &result).unwrap();
            }
            return result;
        }
        Expr::DatePart { part, expr } => {
            let part = match part {
                DatePart::Year => ArrowDatePart::Year,
                DatePart::Month => ArrowDatePart::Month,
                DatePart::Day => ArrowDatePart::Day,
            };
            return date_part(&value(expr), part).unwrap();
        }
        Expr::Substring {
            expr,
            start,
            length,
        } => {
            let text: StringArray = value(expr).as_string_view().iter().collect();
            let start = i64::from(*start) - 1;
            let part = substring_by_char(&text, start, Some((*length).into())).unwrap();
            return Arc::new(part.iter().collect::<StringViewArray>());
        }
        // As DataFusion's strpos: bytes are searched, characters counted.
        Expr::Position { expr, needle } => {
            let position = |text: &str| {
                let found = text.find(needle.as_str());
                found.map_or(0, |at| text[..at].chars().count() as i32 + 1)
            };
            let text = value(expr);
            let text = text.as_string_view().iter();
            return Arc::new(text.map(|t| t.map(position)).collect::<Int32Array>());
        }
        Expr::Regex {
            expr,
            pattern,
            negated,
            case_insensitive,
        } => {
            let text = value(expr);
            let flag = case_insensitive.then_some("i");
            let matches = regexp_is_match_scalar(text.as_string_view(), pattern, flag).unwrap();
            if *negated {
                not(&matches).unwrap()
            } else {
                matches
            }
        }
        Expr::ContainsAny { expr, needles } => {
            let text = value(expr);
            let valid = not(&is_null(&text).unwrap()).unwrap();
            let none = BooleanArray::new(
                BooleanBuffer::new_unset(text.len()),
                Some(NullBuffer::new(valid.values().clone())),
            );
            needles.iter().fold(none, |found, needle| {
                let needle = ArrowScalar::new(StringViewArray::from(vec![needle.as_str()]));
                or_kleene(&found, &contains(&text, &needle).unwrap()).unwrap()
            })
        }
        Expr::Kernel { .. } => unreachable!("random expressions have no kernels"),
        Expr::Distance {
            metric,
            expr,
            query,
        } => return distances(*metric, &value(expr), query),
    };
    Arc::new(result)
}

fn distances(metric: Metric, vectors: &ArrayRef, query: &QueryVector) -> ArrayRef {
    match query {
        QueryVector::Bits(query) => {
            let bits = |byte: u8| (0..8).filter(|bit| byte >> bit & 1 == 1).count();
            let vectors = vectors.as_fixed_size_binary();
            Arc::new(UInt32Array::from_iter(vectors.iter().map(|vector| {
                let pairs = vector?.iter().zip(query);
                Some(pairs.map(|(l, r)| bits(l ^ r) as u32).sum())
            })))
        }
        QueryVector::Floats(query) => {
            let vectors = vectors.as_fixed_size_list();
            Arc::new(Float32Array::from_iter(vectors.iter().map(|vector| {
                let vector = vector?;
                if vector.null_count() > 0 {
                    return None;
                }
                let vector = vector.as_primitive::<Float32Type>();
                distance::distance(metric, vector.values(), query)
            })))
        }
    }
}

fn aggregate(aggregate: &Aggregate, batch: &RecordBatch) -> ArrayRef {
    let batch = match &aggregate.filter {
        Some(filter) => filter_record_batch(batch, vectorised(filter, batch).as_boolean()).unwrap(),
        None => batch.clone(),
    };
    let argument = aggregate
        .argument
        .as_ref()
        .map(|expr| vectorised(expr, &batch));
    let result = &aggregate.data_type;
    match (aggregate.function, argument) {
        (AggregateFunction::Count, argument) => {
            let count = argument.map_or(batch.num_rows(), |a| a.len() - a.null_count());
            Scalar::to_array(&[Scalar::Int(count as i128)], result).unwrap()
        }
        (AggregateFunction::Sum, Some(argument)) => match result {
            DataType::Decimal128(_, _) => {
                let sum = sum(argument.as_primitive::<Decimal128Type>());
                Arc::new(Decimal128Array::from(vec![sum]).with_data_type(result.clone()))
            }
            DataType::Int64 => {
                let wide = cast_with_options(&argument, result, &STRICT).unwrap();
                Arc::new(Int64Array::from(vec![
                    sum(wide.as_primitive::<Int64Type>()),
                ]))
            }
            DataType::UInt64 => {
                let wide = cast_with_options(&argument, result, &STRICT).unwrap();
                Arc::new(UInt64Array::from(vec![sum(
                    wide.as_primitive::<UInt64Type>()
                )]))
            }
            _ => {
                let wide = cast_with_options(&argument, result, &STRICT).unwrap();
                Arc::new(Float64Array::from(vec![sum(
                    wide.as_primitive::<Float64Type>()
                )]))
            }
        },
        (function, Some(argument)) => {
            let options = SortOptions {
                descending: function == AggregateFunction::Max,
                nulls_first: false,
            };
            let order = SortColumn {
                values: argument.clone(),
                options: Some(options),
            };
            let first = lexsort_to_indices(&[order], Some(1)).unwrap();
            if first.is_empty() {
                new_null_array(result, 1)
            } else {
                take(&argument, &first, None).unwrap()
            }
        }
        (_, None) => unreachable!("the generator gives an argument"),
    }
}

/// A whole Program by Arrow's kernels.
fn run_vectorised(program: &Program, batch: &RecordBatch) -> Vec<RecordBatch> {
    let mut batch = batch.clone();
    for conjunct in &program.filter {
        let selected = vectorised(conjunct, &batch);
        batch = filter_record_batch(&batch, selected.as_boolean()).unwrap();
    }
    let output = |arrays: Vec<ArrayRef>, rows: usize| {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(program.output_schema(), arrays, &options).unwrap()
    };
    match &program.output {
        Output::Rows {
            exprs,
            order,
            limit,
        } => {
            let arrays: Vec<_> = exprs.iter().map(|e| vectorised(e, &batch)).collect();
            let rows = batch.num_rows();
            let limit = limit.map_or(rows, |limit| rows.min(limit as usize));
            let chosen = if order.is_empty() {
                UInt32Array::from_iter_values(0..limit as u32)
            } else {
                let keys: Vec<_> = order
                    .iter()
                    .map(|key| SortColumn {
                        values: arrays[key.output as usize].clone(),
                        options: Some(SortOptions {
                            descending: key.descending,
                            nulls_first: key.nulls_first,
                        }),
                    })
                    .collect();
                lexsort_to_indices(&keys, Some(limit)).unwrap()
            };
            let arrays = arrays
                .iter()
                .map(|array| take(array, &chosen, None).unwrap())
                .collect();
            vec![output(arrays, limit)]
        }
        Output::Nearest {
            queries,
            metric,
            expr,
            k,
            exprs,
        } => {
            let vectors = vectorised(expr, &batch);
            let neighbours = |(number, query): (u32, &QueryVector)| {
                let distances = distances(*metric, &vectors, query);
                let near =
                    RecordBatch::try_from_iter_with_nullable(
                        [("distance".to_owned(), distances.clone(), true)]
                            .into_iter()
                            .chain(exprs.iter().enumerate().map(|(i, expr)| {
                                (format!("c{i}"), vectorised(expr, &batch), true)
                            })),
                    )
                    .unwrap();
                let near = filter_record_batch(&near, &not(&is_null(&distances).unwrap()).unwrap());
                let near = near.unwrap();
                let order = SortColumn {
                    values: near.column(0).clone(),
                    options: Some(SortOptions {
                        descending: *metric == Metric::Dot,
                        nulls_first: false,
                    }),
                };
                let order = lexsort_to_indices(&[order], Some(*k as usize)).unwrap();
                let queries = UInt32Array::from(vec![number; order.len()]);
                let mut arrays: Vec<ArrayRef> = vec![Arc::new(queries)];
                arrays.extend(
                    near.columns()
                        .iter()
                        .map(|a| take(a, &order, None).unwrap()),
                );
                output(arrays, order.len())
            };
            (0..).zip(queries).map(neighbours).collect()
        }
        Output::Aggregate { keys, aggregates } => {
            let group = |rows: &[u32], keys: &[ArrayRef]| {
                let rows = UInt32Array::from(rows.to_vec());
                let part = batch
                    .columns()
                    .iter()
                    .map(|column| take(column, &rows, None).unwrap());
                let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
                let (schema, part) = (batch.schema(), part.collect());
                let part = RecordBatch::try_new_with_options(schema, part, &options).unwrap();
                let first = rows.slice(0, rows.len().min(1));
                let keys = keys.iter().map(|key| take(key, &first, None).unwrap());
                let results = aggregates.iter().map(|a| aggregate(a, &part));
                output(keys.chain(results).collect(), 1)
            };
            let keys: Vec<_> = keys
                .iter()
                .map(|key| fold_zeros(&vectorised(key, &batch)))
                .collect();
            if keys.is_empty() {
                return vec![group(
                    &(0..batch.num_rows() as u32).collect::<Vec<_>>(),
                    &[],
                )];
            }
            let fields = keys
                .iter()
                .map(|key| SortField::new(key.data_type().clone()))
                .collect();
            let encoded = RowConverter::new(fields)
                .unwrap()
                .convert_columns(&keys)
                .unwrap();
            let mut groups: BTreeMap<Vec<u8>, Vec<u32>> = BTreeMap::new();
            for (row, key) in encoded.iter().enumerate() {
                groups
                    .entry(key.as_ref().to_vec())
                    .or_default()
                    .push(row as u32);
            }
            groups.values().map(|rows| group(rows, &keys)).collect()
        }
    }
}

#[test]
fn random_programs_give_what_arrow_gives() {
    let mut survivors = 0;
    testing::for_each_case("interpreter = Arrow's kernels", 2_000, |generator| {
        let schema = generator.schema(6);
        let batch = generator.batch(&schema, 150);
        let program = generator.program(&schema, &batch);
        let program = verify(program, &schema, &Limits::default()).unwrap();
        let input = [batch.project(&testing::ordinals(&program)).unwrap()];
        let vectorised = run_vectorised(&program, &input[0]);
        if let Err(difference) = testing::check_output(&program, &input, &vectorised, 1) {
            panic!("{difference}\n{}\n", *program);
        }
        survivors += interpreter::run(&program, &input).unwrap().num_rows();
    });
    // Otherwise the comparison is empty.
    assert!(survivors > 0);
}

#[test]
fn batches_split_the_input_anyhow() {
    testing::for_each_case("splitting the input changes nothing", 100, |generator| {
        let schema = generator.schema(5);
        let batch = generator.batch(&schema, 100);
        let program = generator.program(&schema, &batch);
        let whole = batch.project(&testing::ordinals(&program)).unwrap();
        let parts = [whole.slice(0, 33), whole.slice(33, 0), whole.slice(33, 67)];
        let outputs = [
            interpreter::run(&program, &parts).unwrap(),
            interpreter::run(&program, &parts[..1]).unwrap(),
            interpreter::run(&program, &parts[1..]).unwrap(),
        ];
        testing::check_output(&program, &parts, &outputs[..1], 1).unwrap();
        // Two streams, each with its own share of the rows.
        testing::check_output(&program, &[whole], &outputs[1..], 2).unwrap();
    });
}

fn column(data_type: DataType) -> InputColumn {
    InputColumn {
        ordinal: 0,
        name: "x".to_owned(),
        data_type,
        nullable: true,
    }
}

/// Evaluates an expression of one column by the interpreter.
fn interpreted(expr: &Expr, array: &ArrayRef) -> Result<ArrayRef, String> {
    let columns = vec![column(array.data_type().clone())];
    let output = Output::Rows {
        exprs: vec![expr.clone()],
        order: vec![],
        limit: None,
    };
    let program = Program {
        columns,
        filter: vec![],
        output,
    };
    let batch = RecordBatch::try_from_iter([("x", array.clone())]).unwrap();
    let result = interpreter::run(&program, &[batch]).map_err(|error| error.to_string())?;
    Ok(result.column(0).clone())
}

#[test]
fn dates_have_arrows_fields() {
    let edges = [
        i32::MIN,
        i32::MAX,
        -96_465_293, // the first and the last day that chrono knows, and their neighbours
        -96_465_292,
        -96_465_291,
        95_026_235,
        95_026_236,
        95_026_237,
        95_026_601,
        95_026_602,
    ];
    let leaps = (-4 * 146_097..8 * 146_097).step_by(7);
    let spread = (i32::MIN..=i32::MAX).step_by(9_973);
    let days: Date32Array = edges
        .into_iter()
        .chain(leaps)
        .chain(spread)
        .map(Some)
        .collect();
    let days: ArrayRef = Arc::new(days);
    for (part, arrow_part) in [
        (DatePart::Year, ArrowDatePart::Year),
        (DatePart::Month, ArrowDatePart::Month),
        (DatePart::Day, ArrowDatePart::Day),
    ] {
        let expr = Expr::DatePart {
            part,
            expr: Box::new(Expr::Column(0)),
        };
        let expected = date_part(&days, arrow_part).unwrap();
        assert!(expected.null_count() > 0 && expected.null_count() < expected.len());
        assert_eq!(
            interpreted(&expr, &days).unwrap().to_data(),
            expected.to_data(),
            "{part}"
        );
    }
}

#[test]
fn ilike_folds_case_as_arrow_does() {
    // Letters of Unicode 17, which the standard library knows and the regex crate does not.
    let unicode_17 = |c: &char| matches!(c, '\u{a7ce}'..='\u{a7d5}' | '\u{16ea0}'..='\u{16ed3}');
    // Every pair among all characters whose case mapping does anything.
    let cased: Vec<String> = ('\0'..=char::MAX)
        .filter(|c| !c.to_lowercase().eq([*c]) || !c.to_uppercase().eq([*c]))
        .filter(|c| !unicode_17(c))
        .map(String::from)
        .collect();
    let text: ArrayRef = Arc::new(StringViewArray::from_iter_values(&cased));
    for pattern in &cased {
        let scalar = ArrowScalar::new(StringViewArray::from(vec![pattern.as_str()]));
        let expected = ilike(&text, &scalar).unwrap();
        // Only what either side could match: all others would take minutes.
        let candidates: Vec<u32> = (0..cased.len() as u32)
            .filter(|i| {
                expected.value(*i as usize)
                    || cased[*i as usize].to_lowercase() == pattern.to_lowercase()
                    || cased[*i as usize].to_uppercase() == pattern.to_uppercase()
            })
            .collect();
        let candidates = UInt32Array::from(candidates);
        let expr = Expr::Like {
            expr: Box::new(Expr::Column(0)),
            pattern: pattern.clone(),
            negated: false,
            case_insensitive: true,
        };
        let found = interpreted(&expr, &take(&text, &candidates, None).unwrap()).unwrap();
        let expected = take(&expected, &candidates, None).unwrap();
        assert_eq!(
            found.as_boolean(),
            expected.as_boolean(),
            "{pattern} {candidates:?}"
        );
    }
}

#[test]
fn arithmetic_types_are_arrows() {
    testing::for_each_case("arithmetic types", 20, |generator| {
        let types: Vec<DataType> = (0..60).map(|_| generator.data_type()).collect();
        let mut scales = vec![];
        for _ in 0..60 {
            use rand::RngExt;
            let precision = generator.rng().random_range(1..=38);
            let scale = generator.rng().random_range(-38..=precision as i8);
            scales.push(DataType::Decimal128(precision, scale));
        }
        for (left, right) in types
            .iter()
            .flat_map(|l| types.iter().map(move |r| (l, r)))
            .chain(
                scales
                    .iter()
                    .flat_map(|l| scales.iter().map(move |r| (l, r))),
            )
        {
            let numeric = |t: &DataType| t.is_numeric();
            if !numeric(left) || !numeric(right) {
                continue;
            }
            let (l, r) = (new_empty_array(left), new_empty_array(right));
            let (l, r): (&dyn Datum, &dyn Datum) = (&l, &r);
            for (op, result) in [
                (ArithmeticOp::Add, numeric::add_wrapping(l, r)),
                (ArithmeticOp::Subtract, numeric::sub_wrapping(l, r)),
                (ArithmeticOp::Multiply, numeric::mul_wrapping(l, r)),
            ] {
                let expected = result.ok().map(|array| array.data_type().clone());
                // Arrow also multiplies decimals whose scale no type can have.
                let expected = expected.filter(|t| physical(t).is_some());
                assert_eq!(
                    arithmetic_type(op, left, right),
                    expected,
                    "{left} {op} {right}"
                );
            }
        }
    });
}

#[test]
fn widening_casts_are_arrows_and_lose_nothing() {
    testing::for_each_case("widening casts", 20, |generator| {
        let mut types: Vec<DataType> = (0..40).map(|_| generator.data_type()).collect();
        types.extend([
            DataType::Boolean,
            DataType::Int64,
            DataType::UInt64,
            DataType::Float64,
            DataType::Decimal128(38, 0),
            DataType::Decimal128(38, 18),
            DataType::Date32,
            DataType::Timestamp(TimeUnit::Second, None),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
        ]);
        for from in &types {
            let array = generator.array(from, 50, true);
            for to in types.iter().filter(|to| is_widening_cast(from, to)) {
                let expr = Expr::Cast {
                    expr: Box::new(Expr::Column(0)),
                    data_type: to.clone(),
                };
                let expected = cast_with_options(&array, to, &STRICT);
                let found = interpreted(&expr, &array);
                assert_eq!(expected.is_err(), found.is_err(), "{from} to {to}");
                let may_overflow = matches!(to, DataType::Timestamp(_, _));
                assert!(may_overflow || found.is_ok(), "{from} to {to}");
                if let (Ok(expected), Ok(found)) = (expected, found) {
                    assert!(same_but_nan(&expected, &found), "{from} to {to}");
                    assert_eq!(found.null_count(), array.null_count(), "{from} to {to}");
                }
            }
        }
    });
}

/// Equal, but that any NaN equals any other.
fn same_but_nan(left: &ArrayRef, right: &ArrayRef) -> bool {
    let plain = |array: &ArrayRef| -> Vec<String> {
        (0..array.len())
            .map(|row| format!("{:?}", Scalar::from_array(array, row)))
            .collect()
    };
    plain(left) == plain(right)
}

#[test]
fn overflow_is_an_error_as_in_arrow() {
    let big = Scalar::Int(10_i128.pow(38) - 1);
    let wide = DataType::Decimal128(38, 0);
    let array = Scalar::to_array(std::slice::from_ref(&big), &wide).unwrap();
    let literal = Expr::Literal(Literal {
        value: big,
        data_type: wide.clone(),
    });
    let expr = Expr::Arithmetic {
        op: ArithmeticOp::Multiply,
        left: Box::new(Expr::Column(0)),
        right: Box::new(literal),
        data_type: wide.clone(),
    };
    assert!(numeric::mul_wrapping(&array, &array).is_err());
    let error = interpreted(&expr, &array).unwrap_err();
    assert!(error.contains("decimal overflow"), "{error}");
    // Beyond the precision, but within 128 bits: Arrow lets it pass.
    let array = Scalar::to_array(&[Scalar::Int(8 * 10_i128.pow(37))], &wide).unwrap();
    let expr = Expr::Arithmetic {
        op: ArithmeticOp::Add,
        left: Box::new(Expr::Column(0)),
        right: Box::new(Expr::Column(0)),
        data_type: wide,
    };
    let expected = numeric::add_wrapping(&array, &array).unwrap();
    assert_eq!(
        interpreted(&expr, &array).unwrap().to_data(),
        expected.to_data()
    );

    let days: ArrayRef = Arc::new(PrimitiveArray::<Date32Type>::from(vec![i32::MAX]));
    let to = DataType::Timestamp(TimeUnit::Nanosecond, None);
    let cast = |guarded: bool| {
        let cast = Expr::Cast {
            expr: Box::new(Expr::Column(0)),
            data_type: to.clone(),
        };
        let never = Expr::IsNull(Box::new(Expr::Column(0)));
        match guarded {
            false => cast,
            true => Expr::Case {
                branches: vec![(never, cast)],
                otherwise: None,
                data_type: to.clone(),
            },
        }
    };
    assert!(interpreted(&cast(false), &days).is_err());
    // A branch that isn't taken can't fail.
    assert_eq!(interpreted(&cast(true), &days).unwrap().null_count(), 1);
}

#[test]
fn integers_wrap_as_in_arrow() {
    let array: ArrayRef = Arc::new(Int32Array::from(vec![i32::MAX, i32::MIN, -1]));
    for op in [
        ArithmeticOp::Add,
        ArithmeticOp::Subtract,
        ArithmeticOp::Multiply,
    ] {
        let expr = Expr::Arithmetic {
            op,
            left: Box::new(Expr::Column(0)),
            right: Box::new(Expr::Literal(Literal {
                value: Scalar::Int(i32::MAX.into()),
                data_type: DataType::Int32,
            })),
            data_type: DataType::Int32,
        };
        let batch = RecordBatch::try_from_iter([("x", array.clone())]).unwrap();
        let expected = vectorised(&expr, &batch);
        assert_eq!(
            interpreted(&expr, &array).unwrap().to_data(),
            expected.to_data()
        );
    }
}
