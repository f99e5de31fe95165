use arrow::array::{BinaryViewArray, Int32Array, RecordBatch, StringViewArray, UInt32Array};
use arrow::datatypes::{Field, Int32Type, Schema};
use flashmesh_pushdown::testing::{Generator, for_each_case};
use flashmesh_pushdown::{
    CompareOp, Expr, InputColumn, Literal, Output, Program, Scalar, interpreter,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::*;

fn pages(generator: &mut Generator, rows: u32) -> Vec<Range<u32>> {
    let mut pages = Vec::new();
    let mut start = 0;
    while start < rows {
        let end = (start + generator.rng().random_range(1..20)).min(rows);
        pages.push(start..end);
        start = end;
    }
    pages
}

/// The rows of a part that a query asks for.
fn asked(part: &ArrayRef, query: &NgramQuery) -> ArrayRef {
    let rows = UInt32Array::from(query.rows().to_vec());
    arrow::compute::take(part, &rows, None).unwrap()
}

fn random_condition(generator: &mut Generator, texts: &[Option<String>], depth: u32) -> Expr {
    let like = texts.choose(generator.rng()).cloned().flatten();
    let like = like.as_deref();
    let expr = Box::new(Expr::Column(0));
    let (negated, case_insensitive) = (
        generator.rng().random_bool(0.1),
        generator.rng().random_bool(0.4),
    );
    match generator
        .rng()
        .random_range(0..if depth > 0 { 10 } else { 8 })
    {
        0..3 => Expr::Like {
            expr,
            pattern: format!("%{}%", generator.pattern(like)),
            negated,
            case_insensitive,
        },
        3 | 4 => Expr::Regex {
            expr,
            pattern: generator.regex(like),
            negated,
            case_insensitive,
        },
        5 => Expr::ContainsAny {
            expr,
            needles: (0..3).map(|_| generator.needle(like)).collect(),
        },
        6 => Expr::Compare {
            op: CompareOp::Gt,
            left: Box::new(Expr::Position {
                expr,
                needle: generator.needle(like),
            }),
            right: Box::new(Expr::Literal(Literal {
                value: Scalar::Int(0),
                data_type: DataType::Int32,
            })),
        },
        7 => Expr::InList {
            expr,
            list: vec![
                Scalar::Bytes(like.unwrap_or_default().as_bytes().to_vec()),
                Scalar::Null,
            ],
            negated,
        },
        8 => Expr::And(
            (0..2)
                .map(|_| random_condition(generator, texts, depth - 1))
                .collect(),
        ),
        _ => Expr::Or(
            (0..2)
                .map(|_| random_condition(generator, texts, depth - 1))
                .collect(),
        ),
    }
}

/// Whatever the condition, no row that passes it is left out.
#[test]
fn no_row_is_lost() {
    let (mut helped, mut rows_left, mut all_rows, mut passing) = (0, 0, 0, 0);
    for_each_case("n-gram index", 150, |generator| {
        let words: Vec<String> = (0..12).map(|_| generator.text()).collect();
        let count = generator.rng().random_range(0..400);
        let texts: Vec<Option<String>> = (0..count)
            .map(|_| {
                let rng = generator.rng();
                let words: Vec<_> = (0..rng.random_range(0..4))
                    .map(|_| words.choose(rng).unwrap().as_str())
                    .collect();
                let text = words.concat();
                match generator.rng().random_range(0..8) {
                    0 => None,
                    1 => Some(text + &generator.text()),
                    2 => Some(text.to_uppercase()),
                    _ => Some(text),
                }
            })
            .collect();
        let array: ArrayRef = Arc::new(StringViewArray::from_iter(texts.iter()));
        let pages = pages(generator, count);
        let part = build(&array, &pages).unwrap();
        let ids: ArrayRef = Arc::new(Int32Array::from_iter_values(0..count as i32));
        let schema = Schema::new(vec![
            Field::new("text", DataType::Utf8View, true),
            Field::new("id", DataType::Int32, false),
        ]);
        let columns = (0..)
            .zip(schema.fields())
            .map(|(ordinal, field)| InputColumn {
                ordinal,
                name: field.name().clone(),
                data_type: field.data_type().clone(),
                nullable: field.is_nullable(),
            })
            .collect();
        let batch = RecordBatch::try_new(Arc::new(schema), vec![array, ids]).unwrap();
        let mut program = Program {
            columns,
            filter: Vec::new(),
            output: Output::Rows {
                exprs: vec![Expr::Column(1)],
                order: Vec::new(),
                limit: None,
            },
        };
        for _ in 0..10 {
            let condition = random_condition(generator, &texts, 2);
            let Some(query) = NgramQuery::for_expr(&condition, 0) else {
                continue;
            };
            let candidates = query.candidates(&asked(&part, &query), &pages).unwrap();
            helped += 1;
            all_rows += count;
            rows_left += candidates
                .iter()
                .map(|rows| rows.end - rows.start)
                .sum::<u32>();
            program.filter = vec![condition];
            let passed = interpreter::run(&program, std::slice::from_ref(&batch)).unwrap();
            for id in passed.column(0).as_primitive::<Int32Type>().values() {
                passing += 1;
                assert!(
                    candidates.iter().any(|rows| rows.contains(&(*id as u32))),
                    "row {id} {:?} passes {program}, but is not in {candidates:?}",
                    texts[*id as usize]
                );
            }
        }
    });
    println!("{helped} queries left {rows_left} of {all_rows} rows, {passing} passed");
    assert!(helped > 300 && rows_left * 10 < all_rows * 9);
}

/// What the grams of the letters k and s in any case would lose.
#[test]
fn cases_beyond_ascii_are_not_looked_for() {
    let like = |pattern: &str| Expr::Like {
        expr: Box::new(Expr::Column(0)),
        pattern: pattern.into(),
        negated: false,
        case_insensitive: true,
    };
    assert_eq!(NgramQuery::for_expr(&like("%ask%"), 0), None);
    assert_eq!(NgramQuery::for_expr(&like("%été%"), 0), None);
    assert_eq!(
        NgramQuery::for_expr(&like("%Abc%"), 0),
        NgramQuery::for_expr(&like("%aBC%"), 0)
    );
    assert!(NgramQuery::for_expr(&like("%Abcs%"), 0).is_some());
    assert_eq!(NgramQuery::for_expr(&like("%Abc%"), 1), None);
}

#[test]
fn lists_come_back() {
    for_each_case("lists of blocks", 2_000, |generator| {
        let rng = generator.rng();
        let of = rng.random_range(1..70_000);
        let share = [0.001, 0.01, 0.2, 1.0][rng.random_range(0..4)];
        let mut blocks: Vec<u32> = (0..of).filter(|_| rng.random_bool(share)).collect();
        if blocks.is_empty() {
            blocks.push(rng.random_range(0..of));
        }
        let mut bytes = Vec::new();
        encode(&blocks, of as usize, &mut bytes);
        let mut marked = vec![false; of as usize];
        assert!(!decode(&bytes, &mut marked).unwrap());
        let back: Vec<u32> = (0..of).filter(|b| marked[*b as usize]).collect();
        assert_eq!(back, blocks);
    });
}

/// Damaged parts give errors or other pages, never a panic.
#[test]
fn damaged_parts_do_no_harm() {
    let texts: ArrayRef = Arc::new(StringViewArray::from_iter_values(
        (0..200).map(|i| format!("line {i} of a needle")),
    ));
    let pages: Vec<Range<u32>> = (0..20).map(|p| p * 10..p * 10 + 10).collect();
    let part = build(&texts, &pages).unwrap();
    let query = NgramQuery::for_expr(
        &Expr::ContainsAny {
            expr: Box::new(Expr::Column(0)),
            needles: vec!["needle".into(), "line 17".into(), "absent".into()],
        },
        0,
    )
    .unwrap();
    let whole = asked(&part, &query);
    assert!(query.candidates(&whole, &pages).is_ok());
    assert!(query.candidates(&whole, &pages[1..]).is_err());
    assert!(
        query
            .candidates(&whole.slice(1, whole.len() - 1), &pages)
            .is_err()
    );
    assert!(query.candidates(&texts, &pages).is_err());
    let mut refused = 0;
    for_each_case("damaged parts", 3_000, |generator| {
        let rng = generator.rng();
        let mut rows: Vec<Option<Vec<u8>>> = whole
            .as_binary_view()
            .iter()
            .map(|row| row.map(<[u8]>::to_vec))
            .collect();
        for _ in 0..3 {
            let row = rng.random_range(0..rows.len());
            rows[row] = match rng.random_range(0..8) {
                0 => None,
                _ => Some((0..rng.random_range(0..12)).map(|_| rng.random()).collect()),
            };
        }
        let damaged: ArrayRef = Arc::new(
            rows.iter()
                .map(Option::as_deref)
                .collect::<BinaryViewArray>(),
        );
        match query.candidates(&damaged, &pages) {
            Ok(candidates) => assert!(candidates.iter().all(|rows| rows.end <= 200)),
            Err(_) => refused += 1,
        }
    });
    assert!(refused > 100);
}
