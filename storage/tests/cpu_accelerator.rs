//! The `cpu` accelerator against the naive interpreter, on random tables and Programs.
//!
//! Every case prints its seed; `FLASHMESH_SEED` replays one.

mod common;

use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch, RecordBatchOptions, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use common::{Damage, TestTable, check, check_result};
use flashmesh_pushdown::testing::{self, Generator};
use flashmesh_pushdown::{
    CompareOp, Expr, InputColumn, Limits, Literal, Output, Program, RuntimeFilter,
    RuntimePredicate, Scalar, VerifiedProgram, verify,
};
use flashmesh_storage::node::SegmentQueue;
use flashmesh_storage::page::plain::{plain_schema, to_plain};
use rand::RngExt;

fn batches(
    generator: &mut Generator,
    columns: usize,
    segments: usize,
    rows: usize,
) -> Vec<RecordBatch> {
    let schema = generator.schema(columns);
    (0..segments)
        .map(|_| {
            let rows = generator.rng().random_range(0..=rows);
            generator.batch(&schema, rows)
        })
        .collect()
}

fn random_case(generator: &mut Generator, rows: usize, programs: usize) {
    let (columns, segments) = (
        generator.rng().random_range(1..=6),
        generator.rng().random_range(1..=4),
    );
    let batches = batches(generator, columns, segments, rows);
    // What another node is asked for has the same answer.
    let table = match generator.rng().random_range(0..3) {
        0 => TestTable::of_another_node(batches),
        _ => TestTable::new(batches),
    };
    for _ in 0..programs {
        let sample = generator.rng().random_range(0..table.batches.len());
        let program = generator.program(&table.snapshot.schema, &table.batches[sample]);
        let streams = generator.rng().random_range(1..=2);
        let batch_rows = *[1, 7, 100, 8192]
            .get(generator.rng().random_range(0..4usize))
            .expect("four");
        check(&table, &program, &[], streams, batch_rows);
    }
}

#[test]
fn random_programs_on_small_tables() {
    testing::for_each_case("random programs on small tables", 400, |g| {
        random_case(g, 300, 12)
    });
}

#[test]
fn random_programs_on_tables_of_several_pages() {
    testing::for_each_case("random programs on tables of several pages", 20, |g| {
        random_case(g, 12_000, 6)
    });
}

/// Rows, a Program over them that gives text in any order, and its columns.
fn program_with_text(generator: &mut Generator) -> (RecordBatch, VerifiedProgram) {
    // Few random Programs are of this kind: one is drawn until one is.
    loop {
        let columns = generator.rng().random_range(1..=6);
        let schema = generator.schema(columns);
        let rows = generator.rng().random_range(1..=5_000);
        let batch = generator.batch(&schema, rows);
        let program = generator.program(&schema, &batch);
        let unordered = matches!(&program.output, Output::Rows { order, .. } if order.is_empty());
        let program = verify(program, &schema, &Limits::default()).expect("a valid program");
        let columns = program.output_schema();
        if unordered && plain_schema(columns) != *columns {
            return (batch, program);
        }
    }
}

/// Where it was asked for, text leaves as the plain arrays that its views stand for.
#[test]
fn plain_text_is_the_text_of_views() {
    let mut rows = 0;
    testing::for_each_case("plain text", 60, |generator| {
        let (batch, program) = program_with_text(generator);
        let table = TestTable::new(vec![batch]);
        let plain_schema = plain_schema(program.output_schema());
        let program = Arc::new(program);
        let run = |plain: bool| {
            let work = SegmentQueue::new(table.snapshot.segments.clone());
            if plain {
                work.ask_for_plain_text();
            }
            table.run_work(work, Arc::clone(&program), &[], 1, 700)
        };
        // A Program that fails does so in both.
        let (Ok(views), Ok(plain)) = (run(false), run(true)) else {
            assert_eq!(run(false).is_ok(), run(true).is_ok());
            return;
        };
        let expected: Vec<RecordBatch> = views
            .iter()
            .map(|batch| {
                let fields = plain_schema.fields().iter();
                let columns = batch.columns().iter().zip(fields);
                let columns = columns.map(|(array, f)| to_plain(array, f.data_type()).unwrap());
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                let schema = Arc::clone(&plain_schema);
                RecordBatch::try_new_with_options(schema, columns.collect(), &options).unwrap()
            })
            .collect();
        assert_eq!(plain, expected);
        rows += expected.iter().map(RecordBatch::num_rows).sum::<usize>();
    });
    assert!(rows > 0 || std::env::var(testing::SEED_VARIABLE).is_ok());
}

/// Text as logs have it: of a few hundred words, compressed over several pages, some of it NULL,
/// empty, or longer than a page.
fn lines(generator: &mut Generator, rows: usize) -> RecordBatch {
    let words: Vec<String> = (0..300)
        .map(|_| match generator.rng().random_range(0..8) {
            0 => generator.text(),
            _ => {
                let rng = generator.rng();
                let length = rng.random_range(2..9);
                (0..length)
                    .map(|_| char::from(rng.random_range(b'a'..=b'z')))
                    .collect()
            }
        })
        .collect();
    let rng = generator.rng();
    let line = |rng: &mut rand::rngs::StdRng| {
        let count = match rng.random_range(0..1000) {
            0 => 8_000,
            1..20 => 0,
            _ => rng.random_range(1..12),
        };
        let words: Vec<&str> = (0..count)
            // Frequent words and rare ones.
            .map(|_| {
                let most = rng.random_range(0..300);
                words[rng.random_range(0..=most)].as_str()
            })
            .collect();
        rng.random_bool(0.98).then(|| words.join(" "))
    };
    let lines: StringViewArray = (0..rows).map(|_| line(rng)).collect();
    let field = Field::new("line", DataType::Utf8View, true);
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::new(lines)])
        .expect("one column")
}

#[test]
fn searches_in_lines() {
    testing::for_each_case("searches in lines", 6, |generator| {
        let rows = generator.rng().random_range(2_000..8_000);
        let table = TestTable::new(vec![lines(generator, rows), lines(generator, 700)]);
        for _ in 0..20 {
            let row = generator.rng().random_range(0..700);
            let of = table.batches[1].column(0).as_string_view().value(row);
            let (negated, case_insensitive) = (
                generator.rng().random_bool(0.2),
                generator.rng().random_bool(0.3),
            );
            let expr = Box::new(Expr::Column(0));
            let (mut needle, regex) = (generator.needle(Some(of)), generator.regex(Some(of)));
            if generator.rng().random_bool(0.1) {
                needle = format!("{needle}\\x{needle}");
            }
            let condition = match generator.rng().random_range(0..8) {
                0 => Expr::Regex {
                    expr,
                    pattern: regex,
                    negated,
                    case_insensitive,
                },
                1 | 2 => Expr::ContainsAny {
                    expr,
                    needles: (0..3).map(|_| generator.needle(Some(of))).collect(),
                },
                3 => Expr::Compare {
                    op: [CompareOp::Gt, CompareOp::Eq, CompareOp::LtEq][negated as usize],
                    left: Box::new(Expr::Position { expr, needle }),
                    right: Box::new(Expr::Literal(Literal {
                        value: Scalar::Int(generator.rng().random_range(0..3)),
                        data_type: DataType::Int32,
                    })),
                },
                shape => Expr::Like {
                    expr,
                    pattern: match shape {
                        4 => format!("{needle}%"),
                        5 => format!("%{needle}"),
                        _ => format!("%{needle}%"),
                    },
                    negated,
                    case_insensitive,
                },
            };
            let program = Program {
                columns: vec![InputColumn {
                    ordinal: 0,
                    name: "line".into(),
                    data_type: DataType::Utf8View,
                    nullable: true,
                }],
                filter: vec![condition],
                output: Output::Rows {
                    exprs: vec![
                        Expr::Column(0),
                        Expr::Position {
                            expr: Box::new(Expr::Column(0)),
                            needle: generator.needle(Some(of)),
                        },
                    ],
                    order: Vec::new(),
                    limit: None,
                },
            };
            check(&table, &program, &[], 2, 1000);
        }
    });
}

/// The runtime filter as a conjunct: with it in the Program, the filter removes nothing that
/// matters.
fn as_conjunct(filter: &RuntimeFilter, program: &Program) -> Expr {
    let column = || Box::new(Expr::Column(filter.column));
    let data_type = program.columns[filter.column as usize].data_type.clone();
    let compare = |op, value: &Scalar| Expr::Compare {
        op,
        left: column(),
        right: Box::new(Expr::Literal(Literal {
            value: value.clone(),
            data_type: data_type.clone(),
        })),
    };
    let passes = match &filter.predicate {
        RuntimePredicate::Range { min, max } => {
            let mut bounds = vec![Expr::Not(Box::new(Expr::IsNull(column())))];
            bounds.extend(min.as_ref().map(|min| compare(CompareOp::GtEq, min)));
            bounds.extend(max.as_ref().map(|max| compare(CompareOp::LtEq, max)));
            Expr::And(bounds)
        }
        RuntimePredicate::Set(values) => one_of(
            column(),
            values.iter().filter(|v| !v.is_null()).cloned().collect(),
        ),
        RuntimePredicate::Bitmap { base, bits } => {
            let in_type = |v: &Scalar| v.fits(&data_type);
            let values = (0..bits.len() * 64).filter(|i| bits[i / 64] >> (i % 64) & 1 == 1);
            let list = values
                .map(|i| Scalar::Int(i128::from(*base) + i as i128))
                .filter(in_type)
                .collect();
            one_of(column(), list)
        }
    };
    if filter.keep_nulls {
        Expr::Or(vec![Expr::IsNull(column()), passes])
    } else {
        passes
    }
}

fn one_of(expr: Box<Expr>, list: Vec<Scalar>) -> Expr {
    match list.is_empty() {
        // An IN list has at least one value.
        true => Expr::Literal(Literal {
            value: Scalar::Boolean(false),
            data_type: DataType::Boolean,
        }),
        false => Expr::InList {
            expr,
            list,
            negated: false,
        },
    }
}

#[test]
fn runtime_filters_remove_only_what_they_may() {
    testing::for_each_case(
        "runtime filters remove only what they may",
        200,
        |generator| {
            let batches = batches(generator, 4, 3, 400);
            let table = TestTable::new(batches);
            for _ in 0..6 {
                let mut program = generator.program(&table.snapshot.schema, &table.batches[0]);
                let sample = table.batches[0]
                    .project(&testing::ordinals(&program))
                    .expect("its columns");
                let Some(filter) = generator.runtime_filter(&program, &sample) else {
                    continue;
                };
                program.filter.push(as_conjunct(&filter, &program));
                check(&table, &program, &[filter], 1, 8192);
            }
        },
    );
}

/// Top-k over many segments, where the threshold skips pages and segments.
#[test]
fn top_k_with_thresholds() {
    testing::for_each_case("top-k with thresholds", 60, |generator| {
        let batches = batches(generator, 3, 6, 600);
        let table = TestTable::new(batches);
        for _ in 0..8 {
            let mut program = generator.program(&table.snapshot.schema, &table.batches[0]);
            if let Output::Rows { limit, order, .. } = &mut program.output
                && !order.is_empty()
            {
                *limit = Some(generator.rng().random_range(0..40));
                check(&table, &program, &[], 1, 50);
            }
        }
    });
}

/// Forged commands are refused or run as what they have become; nothing panics.
#[test]
fn forged_commands_do_no_harm() {
    testing::for_each_case("forged commands", 200, |generator| {
        let batches = batches(generator, 3, 2, 300);
        let table = TestTable::of_another_node(batches);
        let program = generator.program(&table.snapshot.schema, &table.batches[0]);
        table.damage(Damage::Forged, generator.rng().random());
        let program = verify(program, &table.snapshot.schema, &Limits::default());
        let _ = table.run(Arc::new(program.expect("a valid program")), &[], 1, 8192);
    });
}

/// What is damaged between nodes is an error, or done here; it never is an answer.
#[test]
fn commands_and_answers_that_are_damaged_give_no_wrong_answers() {
    let (mut answers, mut errors) = (0, 0);
    testing::for_each_case("damaged commands and answers", 300, |generator| {
        let batches = batches(generator, 3, 2, 300);
        let table = TestTable::of_another_node(batches);
        let program = generator.program(&table.snapshot.schema, &table.batches[0]);
        table.damage(Damage::OnTheWay, generator.rng().random());
        let verified = verify(program.clone(), &table.snapshot.schema, &Limits::default());
        let verified = Arc::new(verified.expect("a valid program"));
        let Ok(output) = table.run(verified, &[], 1, 8192) else {
            errors += 1;
            return;
        };
        // Where the other node's part was done again here, its streams have given nothing.
        let streams = match &program.output {
            Output::Aggregate { keys, .. } if keys.is_empty() => {
                output.iter().map(RecordBatch::num_rows).sum()
            }
            _ => 1 + table.streams_there(),
        };
        check_result(&table, &program, Ok(output), &[], streams);
        answers += 1;
    });
    let replays = std::env::var(testing::SEED_VARIABLE).is_ok();
    assert!(
        replays || (answers > 0 && errors > 0),
        "{answers} answers, {errors} errors"
    );
}
