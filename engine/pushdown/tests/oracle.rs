//! The oracle itself: the rules that the module documentation states, and that a wrong output is
//! seen as one.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use flashmesh_pushdown::{
    Aggregate, AggregateFunction, CompareOp, Expr, InputColumn, Literal, Output, Program, Scalar,
    SortKey, interpreter, testing,
};
use rand::RngExt;

fn program(input: &RecordBatch, filter: Vec<Expr>, output: Output) -> Program {
    let columns = (0..)
        .zip(input.schema().fields())
        .map(|(ordinal, field)| InputColumn {
            ordinal,
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: true,
        })
        .collect();
    Program {
        columns,
        filter,
        output,
    }
}

/// The values of expressions over all rows.
fn values(input: &RecordBatch, exprs: Vec<Expr>) -> Vec<Vec<Scalar>> {
    let output = Output::Rows {
        exprs,
        order: vec![],
        limit: None,
    };
    let output =
        interpreter::run(&program(input, vec![], output), std::slice::from_ref(input)).unwrap();
    let scalar = |array: &ArrayRef, row| Scalar::from_array(array, row).unwrap();
    let column = |array: &ArrayRef| (0..array.len()).map(|row| scalar(array, row)).collect();
    output.columns().iter().map(column).collect()
}

fn batch<const N: usize>(columns: [(&'static str, ArrayRef); N]) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn three_valued_logic() {
    const T: Option<bool> = Some(true);
    const F: Option<bool> = Some(false);
    const N: Option<bool> = None;
    let input = batch([
        (
            "a",
            Arc::new(BooleanArray::from(vec![T, T, T, F, F, F, N, N, N])) as ArrayRef,
        ),
        (
            "b",
            Arc::new(BooleanArray::from(vec![T, F, N, T, F, N, T, F, N])),
        ),
    ]);
    let (a, b) = (Expr::Column(0), Expr::Column(1));
    let results = values(
        &input,
        vec![
            Expr::And(vec![a.clone(), b.clone()]),
            Expr::Or(vec![a.clone(), b.clone()]),
            Expr::Not(Box::new(a.clone())),
            Expr::IsNull(Box::new(a.clone())),
            Expr::Compare {
                op: CompareOp::Lt,
                left: Box::new(a),
                right: Box::new(b),
            },
        ],
    );
    let expected = [
        [T, F, N, F, F, F, N, F, N],
        [T, T, T, T, F, N, T, N, N],
        [F, F, F, T, T, T, N, N, N],
        [F, F, F, F, F, F, T, T, T],
        [F, F, N, T, F, N, N, N, N],
    ];
    for (found, expected) in results.iter().zip(expected) {
        let expected = expected.map(|value| value.map_or(Scalar::Null, Scalar::Boolean));
        assert_eq!(found, &expected);
    }
}

#[test]
fn in_lists_and_null() {
    let numbers = Int64Array::from(vec![Some(1), Some(2), None]);
    let input = batch([("x", Arc::new(numbers) as ArrayRef)]);
    let within = |list: Vec<Scalar>, negated| Expr::InList {
        expr: Box::new(Expr::Column(0)),
        list,
        negated,
    };
    let (one, null) = (Scalar::Int(1), Scalar::Null);
    let results = values(
        &input,
        vec![
            within(vec![one.clone()], false),
            within(vec![one.clone()], true),
            within(vec![null.clone(), one.clone()], false),
            within(vec![one, null.clone()], true),
        ],
    );
    let (t, f) = (Scalar::Boolean(true), Scalar::Boolean(false));
    assert_eq!(results[0], [t.clone(), f.clone(), null.clone()]);
    assert_eq!(results[1], [f.clone(), t.clone(), null.clone()]);
    assert_eq!(results[2], [t, null.clone(), null.clone()]);
    assert_eq!(results[3], [f, null.clone(), null]);
}

/// Where the orders of floats differ: comparisons and groups have one zero, IN and ORDER BY two.
#[test]
fn zeros_and_nans() {
    let nan = f64::NAN.copysign(1.0);
    let floats = vec![0.0, -0.0, nan, -nan, f64::INFINITY];
    let input = batch([("x", Arc::new(Float64Array::from(floats)) as ArrayRef)]);
    let x = || Box::new(Expr::Column(0));
    let literal = |value| {
        Box::new(Expr::Literal(Literal {
            value: Scalar::Float(value),
            data_type: DataType::Float64,
        }))
    };
    let compare = |op, value| Expr::Compare {
        op,
        left: x(),
        right: literal(value),
    };
    let results = values(
        &input,
        vec![
            compare(CompareOp::Eq, -0.0),
            compare(CompareOp::Lt, 0.0),
            compare(CompareOp::Eq, nan),
            compare(CompareOp::GtEq, f64::INFINITY),
            Expr::InList {
                expr: x(),
                list: vec![Scalar::Float(-0.0)],
                negated: false,
            },
        ],
    );
    let expected = [
        [true, true, false, false, false],
        [false, false, false, true, false],
        [false, false, true, false, false],
        [false, false, true, false, true],
        [false, true, false, false, false],
    ];
    for (found, expected) in results.iter().zip(expected) {
        assert_eq!(found, &expected.map(Scalar::Boolean));
    }

    let order = vec![SortKey {
        output: 0,
        descending: false,
        nulls_first: false,
    }];
    let sorted = Output::Rows {
        exprs: vec![*x()],
        order,
        limit: Some(9),
    };
    let sorted = interpreter::run(
        &program(&input, vec![], sorted),
        std::slice::from_ref(&input),
    )
    .unwrap();
    let bits: Vec<u64> = (0..sorted.num_rows())
        .map(|row| match Scalar::from_array(sorted.column(0), row) {
            Some(Scalar::Float(value)) => value.to_bits(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        bits,
        [-nan, -0.0, 0.0, f64::INFINITY, nan].map(f64::to_bits)
    );

    let count = Aggregate {
        function: AggregateFunction::Count,
        argument: None,
        filter: None,
        data_type: DataType::Int64,
    };
    let grouped = Output::Aggregate {
        keys: vec![*x()],
        aggregates: vec![count],
    };
    let grouped = interpreter::run(
        &program(&input, vec![], grouped),
        std::slice::from_ref(&input),
    )
    .unwrap();
    assert_eq!(grouped.num_rows(), 4);
    assert_eq!(
        Scalar::from_array(grouped.column(1), 0),
        Some(Scalar::Int(2))
    );
}

#[test]
fn aggregates_over_nothing() {
    let input = batch([(
        "x",
        Arc::new(Int64Array::from(vec![None, Some(5)])) as ArrayRef,
    )]);
    let aggregate = |function, argument, data_type| Aggregate {
        function,
        argument,
        filter: None,
        data_type,
    };
    let x = || Some(Expr::Column(0));
    let aggregates = vec![
        aggregate(AggregateFunction::Count, None, DataType::UInt64),
        aggregate(AggregateFunction::Count, x(), DataType::Int64),
        aggregate(AggregateFunction::Sum, x(), DataType::Int64),
        aggregate(AggregateFunction::Min, x(), DataType::Int64),
        aggregate(AggregateFunction::Max, x(), DataType::Int64),
    ];
    let run = |filter: Vec<Expr>, keys: Vec<Expr>| {
        let output = Output::Aggregate {
            keys,
            aggregates: aggregates.clone(),
        };
        let output = interpreter::run(
            &program(&input, filter, output),
            std::slice::from_ref(&input),
        )
        .unwrap();
        (0..output.num_rows())
            .map(|row| {
                let value = |array: &ArrayRef| Scalar::from_array(array, row).unwrap();
                output.columns().iter().map(value).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let (int, null) = (Scalar::Int, Scalar::Null);
    assert_eq!(
        run(vec![], vec![]),
        [[int(2), int(1), int(5), int(5), int(5)]]
    );
    let never = Expr::IsNull(Box::new(Expr::IsNull(Box::new(Expr::Column(0)))));
    // Without keys a row leaves also when none survived, with keys it doesn't.
    assert_eq!(
        run(vec![never.clone()], vec![]),
        [[int(0), int(0), null.clone(), null.clone(), null.clone()]]
    );
    assert!(run(vec![never], vec![Expr::Column(0)]).is_empty());
    assert_eq!(
        run(vec![], vec![Expr::Column(0)]),
        [
            vec![
                null.clone(),
                int(1),
                int(0),
                null.clone(),
                null.clone(),
                null.clone()
            ],
            vec![int(5), int(1), int(1), int(5), int(5), int(5)],
        ]
    );
}

/// A row too few, a row too many, a row from elsewhere: none may pass.
#[test]
fn wrong_outputs_are_seen() {
    let mut wrong = 0;
    testing::for_each_case("wrong outputs", 500, |generator| {
        let schema = generator.schema(5);
        let batch = generator.batch(&schema, 60);
        let program = generator.program(&schema, &batch);
        let input = [batch.project(&testing::ordinals(&program)).unwrap()];
        let output = interpreter::run(&program, &input).unwrap();
        testing::check_output(&program, &input, std::slice::from_ref(&output), 1).unwrap();
        let rows = output.num_rows();
        if rows == 0 {
            return;
        }
        wrong += 1;
        let dropped = generator.rng().random_range(0..rows);
        let less = [
            output.slice(0, dropped),
            output.slice(dropped + 1, rows - dropped - 1),
        ];
        assert!(
            testing::check_output(&program, &input, &less, 1).is_err(),
            "{program}"
        );
        if output.num_columns() == 0 {
            return;
        }
        if matches!(program.output, Output::Rows { .. }) {
            let more = concat_batches(&output.schema(), [&output, &output.slice(dropped, 1)]);
            assert!(testing::check_output(&program, &input, &[more.unwrap()], 1).is_err());
        }
        // One cell of a row becomes a value that it was not.
        let row = output.slice(dropped, 1);
        let column = generator.rng().random_range(0..row.num_columns());
        let array = row.column(column);
        let Some(old) = Scalar::from_array(array, 0) else {
            return;
        };
        let new = generator.scalar(array.data_type());
        if old.total_order(&new).is_some_and(|order| order.is_eq()) {
            return;
        }
        let small = |value: &Scalar| matches!(value, Scalar::Float(_));
        if small(&old) || small(&new) {
            return; // perhaps a sum that is close enough, or a NaN
        }
        let mut columns = row.columns().to_vec();
        columns[column] = Scalar::to_array(&[new], array.data_type()).unwrap();
        let changed = RecordBatch::try_new(output.schema(), columns).unwrap();
        let outputs = [less[0].clone(), changed.clone(), less[1].clone()];
        let survived = testing::check_output(&program, &input, &outputs, 1).is_ok();
        if survived {
            // Only a limit may let another surviving row take the place.
            assert!(
                matches!(&program.output, Output::Rows { limit: Some(_), .. }),
                "{changed:?} passed for {row:?}\n{program}"
            );
        }
    });
    assert!(wrong > 0);
}

/// The generator leaves no instruction out, and its filters neither keep nor drop everything.
#[test]
fn random_programs_have_variety() {
    fn visit(expr: &Expr, seen: &mut BTreeSet<String>) {
        let debug = format!("{expr:?}");
        let name = debug
            .split(|c: char| !c.is_alphanumeric())
            .next()
            .unwrap()
            .to_owned();
        seen.insert(match expr {
            Expr::Compare { op, .. } => format!("{name} {op}"),
            Expr::Arithmetic { op, .. } => format!("{name} {op}"),
            Expr::DatePart { part, .. } => format!("{name} {part}"),
            Expr::InList { negated, .. } => format!("{name} {negated}"),
            Expr::Like {
                negated,
                case_insensitive,
                ..
            }
            | Expr::Regex {
                negated,
                case_insensitive,
                ..
            } => {
                format!("{name} {negated} {case_insensitive}")
            }
            _ => name,
        });
        expr.for_each_child(&mut |child| visit(child, seen));
    }
    let mut seen = BTreeSet::new();
    let (mut kept, mut filtered) = (0, 0);
    testing::for_each_case("variety", 3_000, |generator| {
        let schema = generator.schema(8);
        let batch = generator.batch(&schema, 30);
        let program = generator.program(&schema, &batch);
        program
            .filter
            .iter()
            .for_each(|conjunct| visit(conjunct, &mut seen));
        match &program.output {
            Output::Rows {
                exprs,
                order,
                limit,
            } => {
                exprs.iter().for_each(|expr| visit(expr, &mut seen));
                seen.insert(format!("rows {} {}", order.is_empty(), limit.is_some()));
            }
            Output::Nearest { metric, exprs, .. } => {
                exprs.iter().for_each(|expr| visit(expr, &mut seen));
                seen.insert(format!("nearest by {metric}"));
            }
            Output::Aggregate { keys, aggregates } => {
                keys.iter().for_each(|key| visit(key, &mut seen));
                for aggregate in aggregates {
                    aggregate.exprs().for_each(|expr| visit(expr, &mut seen));
                    seen.insert(aggregate.function.to_string());
                }
            }
        }
        if !program.filter.is_empty() {
            let all = Output::Rows {
                exprs: vec![],
                order: vec![],
                limit: None,
            };
            let input = [batch.project(&testing::ordinals(&program)).unwrap()];
            let program = Program {
                output: all,
                ..program
            };
            kept += interpreter::run(&program, &input).unwrap().num_rows();
            filtered += batch.num_rows();
        }
    });
    // Replaying one seed shows only what that one has.
    if std::env::var(testing::SEED_VARIABLE).is_err() {
        assert_eq!(seen.len(), 45, "{seen:#?}");
        assert!(
            (filtered / 10..filtered * 9 / 10).contains(&kept),
            "{kept} of {filtered} rows"
        );
    }
}
