//! What EXPLAIN prints of a Program.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use flashmesh_pushdown::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, DatePart, Expr, InputColumn, Limits,
    Literal, Metric, Output, Program, QueryVector, RuntimeFilter, RuntimePredicate, Scalar,
    SortKey, interpreter, verify,
};

const QUANTITY: u32 = 0;
const EXTENDEDPRICE: u32 = 1;
const DISCOUNT: u32 = 2;
const SHIPDATE: u32 = 3;
const COMMENT: u32 = 4;

const MONEY: DataType = DataType::Decimal128(15, 2);

fn lineitem() -> Schema {
    Schema::new(vec![
        Field::new("l_quantity", MONEY, false),
        Field::new("l_extendedprice", MONEY, false),
        Field::new("l_discount", MONEY, false),
        Field::new("l_shipdate", DataType::Date32, false),
        Field::new("l_comment", DataType::Utf8View, true),
    ])
}

fn columns() -> Vec<InputColumn> {
    (0..)
        .zip(lineitem().fields())
        .map(|(ordinal, field)| InputColumn {
            ordinal,
            name: field.name().clone(),
            data_type: field.data_type().clone(),
            nullable: field.is_nullable(),
        })
        .collect()
}

fn column(index: u32) -> Box<Expr> {
    Box::new(Expr::Column(index))
}

fn literal(value: Scalar, data_type: DataType) -> Box<Expr> {
    Box::new(Expr::Literal(Literal { value, data_type }))
}

fn money(unscaled: i128) -> Box<Expr> {
    literal(Scalar::Int(unscaled), MONEY)
}

fn day(days: i128) -> Box<Expr> {
    literal(Scalar::Int(days), DataType::Date32)
}

fn compare(left: Box<Expr>, op: CompareOp, right: Box<Expr>) -> Expr {
    Expr::Compare { op, left, right }
}

/// TPC-H Q6, as docs/pushdown-program.md shows it.
fn q6() -> Program {
    Program {
        columns: columns()[..4].to_vec(),
        filter: vec![
            compare(column(SHIPDATE), CompareOp::GtEq, day(8_766)),
            compare(column(SHIPDATE), CompareOp::Lt, day(9_131)),
            compare(column(DISCOUNT), CompareOp::GtEq, money(5)),
            compare(column(DISCOUNT), CompareOp::LtEq, money(7)),
            compare(column(QUANTITY), CompareOp::Lt, money(2_400)),
        ],
        output: Output::Aggregate {
            keys: vec![],
            aggregates: vec![Aggregate {
                function: AggregateFunction::Sum,
                argument: Some(Expr::Arithmetic {
                    op: ArithmeticOp::Multiply,
                    left: column(EXTENDEDPRICE),
                    right: column(DISCOUNT),
                    data_type: DataType::Decimal128(31, 4),
                }),
                filter: None,
                data_type: DataType::Decimal128(38, 4),
            }],
        },
    }
}

const Q6: &str = "\
read l_quantity, l_extendedprice, l_discount, l_shipdate
where l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01' AND l_discount >= 0.05 AND l_discount <= 0.07 AND l_quantity < 24.00
aggregate sum(l_extendedprice * l_discount)";

#[test]
fn tpch_q6() {
    let program = verify(q6(), &lineitem(), &Limits::default()).unwrap();
    assert_eq!(program.to_string(), Q6);
    let guide = include_str!("../../../docs/pushdown-program.md");
    assert!(
        guide.contains(Q6),
        "docs/pushdown-program.md shows another display of Q6"
    );

    let values = |scalars: &[i128], data_type: &DataType| {
        let scalars: Vec<_> = scalars.iter().map(|v| Scalar::Int(*v)).collect();
        Scalar::to_array(&scalars, data_type).unwrap()
    };
    let schema = Arc::new(lineitem().project(&[0, 1, 2, 3]).unwrap());
    let rows = vec![
        values(&[1_000, 2_399, 2_400, 1_000, 1_000], &MONEY),
        values(&[10_000, 20_050, 30_000, 40_000, 50_000], &MONEY),
        values(&[5, 7, 6, 4, 6], &MONEY),
        values(&[8_766, 9_130, 9_000, 9_000, 9_131], &DataType::Date32),
    ];
    let input = RecordBatch::try_new(schema, rows).unwrap();
    let output = interpreter::run(&program, &[input]).unwrap();
    // 100.00 × 0.05 + 200.50 × 0.07
    assert_eq!(
        Scalar::from_array(output.column(0), 0),
        Some(Scalar::Int(50_000 + 140_350))
    );
}

#[test]
fn a_program_is_a_few_lines() {
    let mut columns = columns();
    columns[4].name = "Comment \"x\"".to_owned();
    let top = Program {
        columns: columns.clone(),
        filter: vec![],
        output: Output::Rows {
            exprs: vec![*column(COMMENT), *column(SHIPDATE)],
            order: vec![
                SortKey {
                    output: 1,
                    descending: true,
                    nulls_first: true,
                },
                SortKey {
                    output: 0,
                    descending: false,
                    nulls_first: false,
                },
            ],
            limit: Some(10),
        },
    };
    assert_eq!(
        top.to_string(),
        "read l_quantity, l_extendedprice, l_discount, l_shipdate, \"Comment \"\"x\"\"\"\n\
         rows \"Comment \"\"x\"\"\", l_shipdate\n\
         order by l_shipdate DESC NULLS FIRST, \"Comment \"\"x\"\"\" NULLS LAST\n\
         limit 10"
    );
    let count = Aggregate {
        function: AggregateFunction::Count,
        argument: None,
        filter: Some(Expr::IsNull(column(0))),
        data_type: DataType::Int64,
    };
    let grouped = Program {
        columns: columns[3..4].to_vec(),
        filter: vec![],
        output: Output::Aggregate {
            keys: vec![Expr::DatePart {
                part: DatePart::Year,
                expr: column(0),
            }],
            aggregates: vec![count],
        },
    };
    assert_eq!(
        grouped.to_string(),
        "read l_shipdate\n\
         group by EXTRACT(YEAR FROM l_shipdate)\n\
         aggregate count(*) FILTER (WHERE l_shipdate IS NULL)"
    );
    let nothing = Program {
        columns: vec![],
        filter: vec![],
        output: Output::Rows {
            exprs: vec![],
            order: vec![],
            limit: None,
        },
    };
    assert_eq!(nothing.to_string(), "read nothing\nrows nothing");
}

#[test]
fn expressions_read_like_sql() {
    let columns = columns();
    let sum = |op, left, right| {
        Box::new(Expr::Arithmetic {
            op,
            left,
            right,
            data_type: DataType::Decimal128(16, 2),
        })
    };
    let is_null = Expr::IsNull(column(COMMENT));
    let small = compare(column(QUANTITY), CompareOp::Lt, money(-1));
    let cases = [
        (
            Expr::And(vec![
                Expr::Or(vec![is_null.clone(), small.clone()]),
                small.clone(),
            ]),
            "(l_comment IS NULL OR l_quantity < -0.01) AND l_quantity < -0.01",
        ),
        (
            Expr::Or(vec![
                Expr::And(vec![is_null.clone(), small.clone()]),
                small.clone(),
            ]),
            "l_comment IS NULL AND l_quantity < -0.01 OR l_quantity < -0.01",
        ),
        (Expr::Not(Box::new(small.clone())), "NOT l_quantity < -0.01"),
        (
            Expr::Not(Box::new(Expr::And(vec![small.clone(), is_null.clone()]))),
            "NOT (l_quantity < -0.01 AND l_comment IS NULL)",
        ),
        (
            Expr::Not(Box::new(is_null.clone())),
            "l_comment IS NOT NULL",
        ),
        (
            *sum(
                ArithmeticOp::Subtract,
                column(QUANTITY),
                sum(ArithmeticOp::Add, column(DISCOUNT), money(100)),
            ),
            "l_quantity - (l_discount + 1.00)",
        ),
        (
            *sum(
                ArithmeticOp::Multiply,
                sum(ArithmeticOp::Add, column(DISCOUNT), money(100)),
                column(QUANTITY),
            ),
            "(l_discount + 1.00) * l_quantity",
        ),
        (
            Expr::InList {
                expr: column(DISCOUNT),
                list: (0..20).map(Scalar::Int).collect(),
                negated: true,
            },
            "l_discount NOT IN (0.00, 0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, … 12 more)",
        ),
        (
            Expr::Like {
                expr: column(COMMENT),
                pattern: "it's\n%".to_owned(),
                negated: true,
                case_insensitive: true,
            },
            "l_comment NOT ILIKE 'it''s\\n%'",
        ),
        (
            Expr::Regex {
                expr: column(COMMENT),
                pattern: "^it's".to_owned(),
                negated: true,
                case_insensitive: true,
            },
            "l_comment !~* '^it''s'",
        ),
        (
            Expr::Position {
                expr: column(COMMENT),
                needle: "a".to_owned(),
            },
            "strpos(l_comment, 'a')",
        ),
        (
            Expr::ContainsAny {
                expr: column(COMMENT),
                needles: vec!["a".to_owned(), "b".to_owned()],
            },
            "contains_any(l_comment, 'a', 'b')",
        ),
        (
            Expr::Case {
                branches: vec![(is_null.clone(), *money(1))],
                otherwise: Some(money(2)),
                data_type: MONEY,
            },
            "CASE WHEN l_comment IS NULL THEN 0.01 ELSE 0.02 END",
        ),
        (
            Expr::Cast {
                expr: column(QUANTITY),
                data_type: DataType::Decimal128(17, 4),
            },
            "CAST(l_quantity AS Decimal128(17, 4))",
        ),
        (
            Expr::Substring {
                expr: column(COMMENT),
                start: 2,
                length: 3,
            },
            "SUBSTRING(l_comment FROM 2 FOR 3)",
        ),
    ];
    for (expr, expected) in cases {
        assert_eq!(expr.display(&columns).to_string(), expected);
    }
    assert_eq!(small.to_string(), "#0 < -0.01");
}

#[test]
fn constants_read_like_sql() {
    let timestamp = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Arc::from));
    let cases = [
        (Scalar::Null, DataType::Int64, "NULL"),
        (Scalar::Boolean(true), DataType::Boolean, "TRUE"),
        (Scalar::Int(-5), DataType::Int8, "-5"),
        (Scalar::Int(-5), DataType::Decimal128(9, 3), "-0.005"),
        (Scalar::Int(123), DataType::Decimal128(9, 0), "123"),
        (Scalar::Int(123), DataType::Decimal128(9, -2), "123e2"),
        (Scalar::Float(0.1), DataType::Float64, "0.1"),
        (Scalar::Float(1.0), DataType::Float64, "1.0"),
        (Scalar::Int(-1), DataType::Date32, "DATE '1969-12-31'"),
        (
            Scalar::Int(i32::MAX as i128),
            DataType::Date32,
            "DATE 2147483647",
        ),
        (
            Scalar::Int(1_500),
            timestamp(TimeUnit::Millisecond, None),
            "TIMESTAMP '1970-01-01 00:00:01.5'",
        ),
        (
            Scalar::Int(-1),
            timestamp(TimeUnit::Nanosecond, Some("+02:00")),
            "TIMESTAMP '1969-12-31 23:59:59.999999999' UTC",
        ),
        (Scalar::Bytes(b"a'b".to_vec()), DataType::Utf8View, "'a''b'"),
        (Scalar::Bytes(vec![0, 255]), DataType::BinaryView, "X'00FF'"),
    ];
    for (value, data_type, expected) in cases {
        assert_eq!(Literal { value, data_type }.to_string(), expected);
    }
    let long = Literal {
        value: Scalar::Bytes(vec![b'x'; 100]),
        data_type: DataType::Utf8View,
    };
    assert_eq!(long.to_string(), format!("'{}…'", "x".repeat(60)));
}

#[test]
fn runtime_filters_read_like_sql() {
    let columns = columns();
    let filter = |column, predicate, keep_nulls| {
        RuntimeFilter {
            column,
            predicate,
            keep_nulls,
        }
        .display(&columns)
        .to_string()
    };
    let range = |min: Option<i128>, max: Option<i128>| RuntimePredicate::Range {
        min: min.map(Scalar::Int),
        max: max.map(Scalar::Int),
    };
    assert_eq!(
        filter(0, range(Some(1), Some(250)), false),
        "0.01 <= l_quantity <= 2.50"
    );
    assert_eq!(
        filter(3, range(None, Some(0)), true),
        "l_shipdate <= DATE '1970-01-01' OR NULL"
    );
    assert_eq!(
        filter(
            4,
            RuntimePredicate::Set(vec![Scalar::Bytes(b"a".to_vec())]),
            false
        ),
        "l_comment IN ('a')"
    );
    assert_eq!(
        filter(
            3,
            RuntimePredicate::Bitmap {
                base: 7,
                bits: [7, 1].into()
            },
            false
        ),
        "l_shipdate IN (bitmap of 4 values from 7)"
    );
}

#[test]
fn distances_show_the_first_elements() {
    let columns = vec![InputColumn {
        ordinal: 0,
        name: "code".into(),
        data_type: DataType::FixedSizeBinary(32),
        nullable: false,
    }];
    let program = |output| Program {
        columns: columns.clone(),
        filter: vec![],
        output,
    };
    let query = QueryVector::Bits((0..32).collect());
    let distance = Expr::Distance {
        metric: Metric::Hamming,
        expr: column(0),
        query: query.clone(),
    };
    let rows = program(Output::Rows {
        exprs: vec![distance],
        order: vec![],
        limit: None,
    });
    assert_eq!(
        rows.to_string(),
        "read code\nrows hamming_distance(code, X'0001020304050607…')"
    );
    let nearest = program(Output::Nearest {
        queries: vec![query; 3],
        metric: Metric::Hamming,
        expr: Expr::Column(0),
        k: 10,
        exprs: vec![Expr::Column(0)],
    });
    assert_eq!(
        nearest.to_string(),
        "read code\nnearest 10 by hamming_distance(code) to 3 queries\nrows code"
    );
}
