//! The verifier: accepts what is well-typed, and says of anything else what is wrong with it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use flashmesh_pushdown::testing::for_each_case;
use flashmesh_pushdown::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, Limits,
    Literal, Metric, Output, Program, ProgramError, QueryVector, RuntimeFilter, RuntimePredicate,
    Scalar, SortKey, interpreter, testing, verify, verify_runtime_filter,
};
use rand::RngExt;

const ID: u32 = 0;
const PRICE: u32 = 1;
const DAY: u32 = 2;
const NAME: u32 = 3;
const FLAG: u32 = 4;
const VECTOR: u32 = 5;

fn schema() -> Schema {
    Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("price", DataType::Decimal128(15, 2), true),
        Field::new("day", DataType::Date32, true),
        Field::new("name", DataType::Utf8View, true),
        Field::new("flag", DataType::Boolean, true),
        Field::new(
            "vector",
            DataType::new_fixed_size_list(DataType::Float32, 4, true),
            true,
        ),
    ])
}

fn columns() -> Vec<InputColumn> {
    (0..)
        .zip(schema().fields())
        .map(|(ordinal, field)| InputColumn {
            ordinal,
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: field.is_nullable(),
        })
        .collect()
}

fn rows(exprs: Vec<Expr>) -> Output {
    Output::Rows {
        exprs,
        order: vec![],
        limit: None,
    }
}

fn regex(pattern: &str) -> Expr {
    Expr::Regex {
        expr: column(NAME),
        pattern: pattern.to_owned(),
        negated: false,
        case_insensitive: false,
    }
}

fn filtered(condition: Expr) -> Program {
    Program {
        columns: columns(),
        filter: vec![condition],
        output: rows(vec![]),
    }
}

fn column(index: u32) -> Box<Expr> {
    Box::new(Expr::Column(index))
}

fn literal(value: Scalar, data_type: DataType) -> Box<Expr> {
    Box::new(Expr::Literal(Literal { value, data_type }))
}

fn int(value: i128) -> Box<Expr> {
    literal(Scalar::Int(value), DataType::Int64)
}

fn equal(left: Box<Expr>, right: Box<Expr>) -> Expr {
    Expr::Compare {
        op: CompareOp::Eq,
        left,
        right,
    }
}

fn refusal(program: Program) -> String {
    let error = verify(program, &schema(), &Limits::default()).unwrap_err();
    assert!(matches!(error, ProgramError::Invalid { .. }), "{error:?}");
    error.to_string()
}

/// The messages are what a user of the planner's author sees: they name the expression and say
/// what would be right.
#[test]
fn refusals_say_what_is_wrong() {
    let sum = |argument: Option<Expr>, data_type| Program {
        columns: columns(),
        filter: vec![],
        output: Output::Aggregate {
            keys: vec![],
            aggregates: vec![Aggregate {
                function: AggregateFunction::Sum,
                argument,
                filter: None,
                data_type,
            }],
        },
    };
    let ordered = |output, limit| Program {
        columns: columns(),
        filter: vec![],
        output: Output::Rows {
            exprs: vec![Expr::Column(ID), Expr::Column(VECTOR)],
            order: vec![SortKey {
                output,
                descending: false,
                nulls_first: false,
            }],
            limit,
        },
    };
    let cases = [
        (filtered(*column(9)), "#9: the program reads 6 columns"),
        (
            filtered(*column(ID)),
            "id: must be Boolean here, but is Int64",
        ),
        (
            filtered(equal(column(ID), column(PRICE))),
            "id = price: compares Int64 with Decimal128(15, 2); cast one side",
        ),
        (
            filtered(equal(column(VECTOR), column(VECTOR))),
            "vector: FixedSizeList(4 x Float32) can only be an output, counted, or tested",
        ),
        (
            filtered(equal(column(ID), int(1 << 70))),
            "1180591620717411303424: is no value of type Int64",
        ),
        (
            filtered(equal(
                column(PRICE),
                literal(Scalar::Int(10_i128.pow(15)), DataType::Decimal128(15, 2)),
            )),
            "10000000000000.00: is no value of type Decimal128(15, 2)",
        ),
        (
            filtered(equal(
                column(NAME),
                literal(Scalar::Bytes(vec![0xff]), DataType::Utf8View),
            )),
            "is no value of type Utf8View",
        ),
        (
            filtered(equal(column(ID), literal(Scalar::Null, DataType::Null))),
            "NULL: there are no constants of type Null",
        ),
        (filtered(Expr::And(vec![])), "needs at least one operand"),
        (
            filtered(Expr::Or(vec![Expr::Column(NAME)])),
            "name: must be Boolean here",
        ),
        (
            filtered(Expr::Not(column(DAY))),
            "day: must be Boolean here",
        ),
        (
            filtered(Expr::InList {
                expr: column(ID),
                list: vec![],
                negated: false,
            }),
            "needs at least one value in the list",
        ),
        (
            filtered(Expr::InList {
                expr: column(ID),
                list: vec![Scalar::Int(1), Scalar::Float(1.0)],
                negated: true,
            }),
            "Float(1.0) is no value of type Int64",
        ),
        (
            filtered(Expr::Like {
                expr: column(ID),
                pattern: "%".to_owned(),
                negated: false,
                case_insensitive: false,
            }),
            "id: must be Utf8View here, but is Int64",
        ),
        (
            filtered(regex("a(")),
            "name ~ 'a(': regex parse error:\n    a(\n     ^\nerror: unclosed group",
        ),
        (
            filtered(regex(r"\w{3000}")),
            r"name ~ '\w{3000}': Compiled regex exceeds size limit of 2097152 bytes.",
        ),
        (
            filtered(Expr::Position {
                expr: column(NAME),
                needle: "n".to_owned(),
            }),
            "strpos(name, 'n'): must be Boolean here, but is Int32",
        ),
        (
            filtered(equal(
                Box::new(Expr::Arithmetic {
                    op: ArithmeticOp::Multiply,
                    left: column(PRICE),
                    right: column(PRICE),
                    data_type: DataType::Decimal128(30, 4),
                }),
                column(PRICE),
            )),
            "price * price: Decimal128(15, 2) and Decimal128(15, 2) give Decimal128(31, 4), not Decimal128(30, 4)",
        ),
        (
            filtered(equal(
                Box::new(Expr::Arithmetic {
                    op: ArithmeticOp::Add,
                    left: column(ID),
                    right: column(DAY),
                    data_type: DataType::Int64,
                }),
                column(ID),
            )),
            "id + day: is not defined for Int64 and Date32; cast one side",
        ),
        (
            filtered(Expr::IsNull(Box::new(Expr::Cast {
                expr: column(ID),
                data_type: DataType::Int32,
            }))),
            "CAST(id AS Int32): Int64 to Int32 is no exact widening",
        ),
        (
            filtered(Expr::IsNull(Box::new(Expr::Case {
                branches: vec![],
                otherwise: None,
                data_type: DataType::Int64,
            }))),
            "needs at least one branch",
        ),
        (
            filtered(Expr::IsNull(Box::new(Expr::Case {
                branches: vec![(Expr::Column(FLAG), Expr::Column(ID))],
                otherwise: Some(column(DAY)),
                data_type: DataType::Int64,
            }))),
            "CASE WHEN flag THEN id ELSE day END: has values of type Int64, but one is Date32",
        ),
        (
            filtered(Expr::IsNull(Box::new(Expr::DatePart {
                part: DatePart::Year,
                expr: column(ID),
            }))),
            "EXTRACT(YEAR FROM id): needs a Date32, not Int64",
        ),
        (
            filtered(Expr::IsNull(Box::new(Expr::Substring {
                expr: column(NAME),
                start: 0,
                length: 1,
            }))),
            "characters are counted from 1",
        ),
        (
            ordered(7, Some(1)),
            "order by output 7: there are 2 outputs",
        ),
        (
            ordered(1, Some(1)),
            "order by output 1: FixedSizeList(4 x Float32) has no order",
        ),
        (ordered(0, None), "order by without limit"),
        (
            sum(None, DataType::Int64),
            "sum(*): only count works without an argument",
        ),
        (
            sum(Some(Expr::Column(NAME)), DataType::Utf8View),
            "sum(name): Utf8View has no sum",
        ),
        (
            sum(Some(Expr::Column(ID)), DataType::Float64),
            "sum(id): gives Int64, not Float64",
        ),
        (
            sum(Some(Expr::Column(PRICE)), DataType::Decimal128(38, 3)),
            "sum(price): gives Decimal128(25, 2), not Decimal128(38, 3)",
        ),
    ];
    for (program, expected) in cases {
        let message = refusal(program);
        assert!(
            message.contains(expected),
            "{message}\nexpected: {expected}"
        );
    }
}

#[test]
fn columns_must_be_the_tables() {
    let with = |change: &dyn Fn(&mut InputColumn)| {
        let mut program = Program {
            columns: columns(),
            filter: vec![],
            output: rows(vec![]),
        };
        change(&mut program.columns[1]);
        refusal(program)
    };
    assert!(with(&|c| c.ordinal = 6).contains("'price': ordinal 6 is beyond the table's 6"));
    assert!(with(&|c| c.ordinal = 0).contains("ordinal 0 is listed twice"));
    assert!(with(&|c| c.data_type = DataType::Float64).contains("has type Decimal128(15, 2), not"));
    assert!(with(&|c| c.nullable = false).contains("may be NULL"));
    let table = Schema::new(vec![Field::new("s", DataType::Utf8, true)]);
    let program = Program {
        columns: vec![InputColumn {
            ordinal: 0,
            name: "s".to_owned(),
            data_type: DataType::Utf8,
            nullable: true,
        }],
        filter: vec![],
        output: rows(vec![]),
    };
    let message = verify(program, &table, &Limits::default())
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("type Utf8 is unknown to programs"),
        "{message}"
    );
}

/// Child names and metadata of nested types come from the table.
#[test]
fn nested_types_are_the_tables() {
    let child = Field::new("element", DataType::Int32, true)
        .with_metadata([("origin".to_owned(), "file".to_owned())].into());
    let stored = DataType::List(Arc::new(child));
    let table = Schema::new(vec![Field::new("l", stored.clone(), true)]);
    let sent = DataType::new_list(DataType::Int32, true);
    let program = Program {
        columns: vec![InputColumn {
            ordinal: 0,
            name: "l".to_owned(),
            data_type: sent,
            nullable: true,
        }],
        filter: vec![],
        output: rows(vec![Expr::Column(0)]),
    };
    let verified = verify(program, &table, &Limits::default()).unwrap();
    assert_eq!(verified.output_schema().field(0), table.field(0));
}

#[test]
fn each_limit_holds() {
    fn limited(program: Program, limits: Limits) -> &'static str {
        match verify(program, &schema(), &limits) {
            Err(ProgramError::OverLimit {
                limit,
                found,
                allowed,
            }) => {
                assert!(found > allowed);
                limit
            }
            other => panic!("{other:?}"),
        }
    }
    let default = Limits::default;
    let mut deep = Expr::Column(FLAG);
    for _ in 0..3 {
        deep = Expr::Not(Box::new(deep));
    }
    assert!(
        verify(
            filtered(deep.clone()),
            &schema(),
            &Limits {
                depth: 4,
                ..default()
            }
        )
        .is_ok()
    );
    assert_eq!(
        limited(
            filtered(deep.clone()),
            Limits {
                depth: 3,
                ..default()
            }
        ),
        "depth"
    );
    assert_eq!(
        limited(
            filtered(deep.clone()),
            Limits {
                nodes: 3,
                ..default()
            }
        ),
        "nodes"
    );
    assert_eq!(
        limited(
            filtered(deep),
            Limits {
                columns: 5,
                ..default()
            }
        ),
        "columns"
    );
    let list = |values| {
        let list = vec![Scalar::Int(1); values];
        filtered(Expr::InList {
            expr: column(ID),
            list,
            negated: false,
        })
    };
    let limits = Limits {
        in_list_values: 3,
        ..default()
    };
    assert!(verify(list(3), &schema(), &limits).is_ok());
    assert_eq!(limited(list(4), limits), "in_list_values");
    let few = Limits {
        regexes: 1,
        needles: 2,
        ..default()
    };
    let regexes = |count: usize| filtered(Expr::And(vec![regex("a"); count]));
    assert!(verify(regexes(1), &schema(), &few).is_ok());
    assert_eq!(limited(regexes(2), few.clone()), "regexes");
    let any = |count: usize| {
        filtered(Expr::ContainsAny {
            expr: column(NAME),
            needles: vec!["n".to_owned(); count],
        })
    };
    assert!(verify(any(2), &schema(), &few).is_ok());
    assert_eq!(limited(any(3), few), "needles");
    let like = |pattern: &str| {
        filtered(Expr::Like {
            expr: column(NAME),
            pattern: pattern.to_owned(),
            negated: false,
            case_insensitive: false,
        })
    };
    assert_eq!(
        limited(
            like("abcd"),
            Limits {
                pattern_bytes: 3,
                ..default()
            }
        ),
        "pattern_bytes"
    );
    assert_eq!(
        limited(
            like("abcd"),
            Limits {
                bytes: 25,
                ..default()
            }
        ),
        "bytes"
    );
    let outputs = |output| Program {
        columns: columns(),
        filter: vec![],
        output,
    };
    let three = vec![Expr::Column(ID); 3];
    let limits = Limits {
        outputs: 2,
        ..default()
    };
    assert_eq!(
        limited(outputs(rows(three.clone())), limits.clone()),
        "outputs"
    );
    let count = Aggregate {
        function: AggregateFunction::Count,
        argument: None,
        filter: None,
        data_type: DataType::Int64,
    };
    let aggregate = Output::Aggregate {
        keys: three.clone(),
        aggregates: vec![count; 3],
    };
    let limits = Limits {
        group_keys: 2,
        ..default()
    };
    assert_eq!(limited(outputs(aggregate.clone()), limits), "group_keys");
    let limits = Limits {
        aggregates: 2,
        ..default()
    };
    assert_eq!(limited(outputs(aggregate.clone()), limits), "aggregates");
    let limits = Limits {
        outputs: 5,
        ..default()
    };
    assert_eq!(limited(outputs(aggregate), limits), "outputs");
    let order = vec![SortKey {
        output: 0,
        descending: true,
        nulls_first: true,
    }];
    let top = Output::Rows {
        exprs: three.clone(),
        order,
        limit: Some(11),
    };
    let limits = Limits {
        top_k_rows: 10,
        ..default()
    };
    assert_eq!(limited(outputs(top), limits.clone()), "top_k_rows");
    // A limit without an order holds nothing.
    let first = Output::Rows {
        exprs: three,
        order: vec![],
        limit: Some(11),
    };
    assert!(verify(outputs(first), &schema(), &limits).is_ok());
}

/// A type error anywhere in a random Program is found.
#[test]
fn one_wrong_operand_anywhere_is_refused() {
    /// Counts the nodes, and replaces the one whose number comes up.
    fn replace(expr: &mut Expr, countdown: &mut u32, columns: &[InputColumn]) -> bool {
        if *countdown == 0 {
            let data_type = expr.data_type(columns);
            let old = std::mem::replace(expr, Expr::Column(0));
            // Of another type than all its surroundings can want.
            *expr = match data_type {
                DataType::Boolean => Expr::Arithmetic {
                    op: ArithmeticOp::Add,
                    left: Box::new(old.clone()),
                    right: Box::new(old),
                    data_type,
                },
                _ => Expr::And(vec![old]),
            };
            return true;
        }
        *countdown -= 1;
        let mut replaced = false;
        expr.for_each_child_mut(&mut |child| {
            replaced = replaced || replace(child, countdown, columns);
        });
        replaced
    }
    for_each_case("mutated programs", 3_000, |generator| {
        let schema = generator.schema(5);
        let batch = generator.batch(&schema, 10);
        let mut program = generator.program(&schema, &batch);
        verify(program.clone(), &schema, &Limits::default()).unwrap();
        if program.filter.is_empty() {
            return;
        }
        let chosen = generator.rng().random_range(0..program.filter.len());
        let mut nodes = 0;
        count(&program.filter[chosen], &mut nodes);
        let mut countdown = generator.rng().random_range(0..nodes);
        assert!(replace(
            &mut program.filter[chosen],
            &mut countdown,
            &program.columns
        ));
        let error = verify(program.clone(), &schema, &Limits::default()).unwrap_err();
        assert!(
            matches!(error, ProgramError::Invalid { .. }),
            "{error}\n{program}"
        );
    });

    fn count(expr: &Expr, nodes: &mut u32) {
        *nodes += 1;
        expr.for_each_child(&mut |child| count(child, nodes));
    }
}

/// What the verifier says of types and NULLs is what comes out.
#[test]
fn the_output_schema_is_kept() {
    for_each_case("output schema", 300, |generator| {
        let schema = generator.schema(5);
        let batch = generator.batch(&schema, 30);
        let program = verify(
            generator.program(&schema, &batch),
            &schema,
            &Limits::default(),
        )
        .unwrap();
        let input = [batch.project(&testing::ordinals(&program)).unwrap()];
        // Building the batch fails if a column that can't be NULL is.
        let output = interpreter::run(&program, &input).unwrap();
        assert_eq!(&output.schema(), program.output_schema());
    });
}

#[test]
fn runtime_filters_must_fit_their_column() {
    let check = |column, predicate| {
        let filter = RuntimeFilter {
            column,
            predicate,
            keep_nulls: false,
        };
        let limits = Limits {
            runtime_filter_bytes: 64,
            ..Limits::default()
        };
        verify_runtime_filter(&filter, &columns(), &limits).map_err(|error| error.to_string())
    };
    let range = |min| RuntimePredicate::Range {
        min: Some(min),
        max: None,
    };
    let bitmap = |words| RuntimePredicate::Bitmap {
        base: 0,
        bits: vec![0; words].into(),
    };
    assert!(check(ID, range(Scalar::Int(3))).is_ok());
    assert!(check(DAY, bitmap(8)).is_ok());
    for (result, expected) in [
        (check(6, range(Scalar::Int(3))), "the program has 6 columns"),
        (check(ID, range(Scalar::Null)), "Null is no value"),
        (
            check(ID, range(Scalar::Boolean(true))),
            "no value of the column's type Int64",
        ),
        (check(VECTOR, range(Scalar::Int(3))), "can't be compared"),
        (check(NAME, bitmap(1)), "a bitmap needs integers"),
        (
            check(ID, bitmap(9)),
            "runtime_filter_bytes is 72, at most 64",
        ),
        (
            check(
                NAME,
                RuntimePredicate::Set(vec![Scalar::Bytes(vec![b'x'; 65])]),
            ),
            "is 65",
        ),
    ] {
        let message = result.unwrap_err();
        assert!(
            message.contains(expected),
            "{message}\nexpected: {expected}"
        );
    }
}

/// Arrow casts a date to a zone's local midnight, which is no widening.
#[test]
fn zones_are_not_guessed() {
    let cast = |zone: Option<&str>| {
        let data_type = DataType::Timestamp(TimeUnit::Millisecond, zone.map(Arc::from));
        let cast = Expr::Cast {
            expr: column(DAY),
            data_type,
        };
        verify(
            filtered(Expr::IsNull(Box::new(cast))),
            &schema(),
            &Limits::default(),
        )
    };
    assert!(cast(None).is_ok());
    assert!(cast(Some("UTC")).is_err());
}

fn distance(metric: Metric, column: u32, query: QueryVector) -> Expr {
    Expr::Distance {
        metric,
        expr: Box::new(Expr::Column(column)),
        query,
    }
}

#[test]
fn distances_need_vectors_of_their_length() {
    let of = |expr: Expr| {
        let program = Program {
            columns: columns(),
            filter: vec![],
            output: rows(vec![expr]),
        };
        verify(program, &schema(), &Limits::default())
    };
    let floats = |count| QueryVector::Floats(vec![0.5; count]);
    let fine = of(distance(Metric::L2, VECTOR, floats(4))).unwrap();
    assert_eq!(
        *fine.output_schema().field(0).data_type(),
        DataType::Float32
    );
    assert!(fine.output_schema().field(0).is_nullable());
    for (expr, problem) in [
        (
            distance(Metric::Cosine, VECTOR, floats(3)),
            "the query has 3 elements, the vectors have 4",
        ),
        (
            distance(Metric::Dot, VECTOR, QueryVector::Bits(vec![0; 4])),
            "needs a query of FixedSizeList",
        ),
        (
            distance(Metric::Hamming, VECTOR, QueryVector::Bits(vec![0; 4])),
            "needs a FixedSizeBinary",
        ),
        (distance(Metric::L2, ID, floats(1)), "not Int64"),
    ] {
        let error = of(expr).unwrap_err().to_string();
        assert!(error.contains(problem), "{error}");
    }
}

#[test]
fn searches_for_nearest_rows_are_limited() {
    let of = |queries: Vec<QueryVector>, k| {
        let program = Program {
            columns: columns(),
            filter: vec![],
            output: Output::Nearest {
                queries,
                metric: Metric::L2,
                expr: Expr::Column(VECTOR),
                k,
                exprs: vec![Expr::Column(ID)],
            },
        };
        verify(program, &schema(), &Limits::default())
    };
    let query = QueryVector::Floats(vec![1.0; 4]);
    let fine = of(vec![query.clone(); 3], 10).unwrap();
    let names: Vec<_> = fine
        .output_schema()
        .fields()
        .iter()
        .map(|f| f.name().clone())
        .collect();
    assert_eq!(names, ["query", "distance", "id"]);
    assert!(of(vec![], 0).is_ok());
    let error = of(vec![query.clone(); 2], u64::MAX).unwrap_err();
    assert!(
        matches!(
            error,
            ProgramError::OverLimit {
                limit: "top_k_rows",
                ..
            }
        ),
        "{error}"
    );
    let error = of(vec![query; 65_537], 1).unwrap_err();
    assert!(
        matches!(
            error,
            ProgramError::OverLimit {
                limit: "queries",
                ..
            }
        ),
        "{error}"
    );
    let error = of(vec![QueryVector::Floats(vec![1.0; 5])], 1)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("5 elements") && error.contains("have 4"),
        "{error}"
    );
}
