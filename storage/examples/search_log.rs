//! Times searches in made-up log lines on the `cpu` accelerator, over pages in memory: what the
//! store itself takes, without SQL, planner and disk. The lines are those of the benchmark: 16
//! words of random letters, frequent as Zipf's law has it; one in 10,000 holds a needle.
//!
//! `cargo run --release -p flashmesh-storage --example search_log -- [MILLIONS_OF_ROWS] [THREADS] [ONLY] [REPETITIONS]`

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;
mod measure;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    Array, ArrayRef, AsArray, Int64Array, RecordBatch, StringViewBuilder, UInt32Array,
};
use arrow::datatypes::{DataType, Field, Schema};
use common::TestTable;
use flashmesh_pushdown::{
    Aggregate, AggregateFunction, Expr, InputColumn, Limits, Output, Program, VerifiedProgram,
    verify,
};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::index::ngram::{self, NgramQuery};
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue};
use flashmesh_storage::page::{ChunkIdentity, encode_chunk};
use measure::processor_time;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SEGMENT_ROWS: usize = 65_536;
const WORDS: usize = 20_000;
const NEEDLE: &str = "xqzt-needle";

fn main() {
    let mut arguments = std::env::args().skip(1);
    let millions: f64 = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(8.0);
    let threads: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let only = arguments.next().unwrap_or_default();
    let repetitions: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(7);
    let segments = (millions * 1e6 / SEGMENT_ROWS as f64).ceil() as usize;
    let vocabulary = Vocabulary::new();
    let batches = (0..segments).map(|s| vocabulary.lines(s)).collect();
    let table = TestTable::with_cache(batches, 4 << 30);
    let (mut text_bytes, mut pages) = (0, 0);
    for batch in &table.batches {
        let lines = batch.column(0).as_string_view();
        text_bytes += lines
            .iter()
            .flatten()
            .map(|line| line.len() + 1)
            .sum::<usize>();
    }
    for segment in &table.snapshot.segments {
        pages += segment.chunks.iter().map(|c| c.run.count).sum::<u32>();
    }
    println!(
        "{} lines, {:.1} MB as text, {:.1} MB in {pages} pages, {threads} threads",
        table.snapshot.rows(),
        text_bytes as f64 / 1e6,
        f64::from(pages) * 8192.0 / 1e6
    );
    let index = index(&table);
    for (name, filter) in filters(&vocabulary) {
        if !name.contains(&only) {
            continue;
        }
        look_up(&name, &filter, &index);
        let program = count(filter);
        let program =
            Arc::new(verify(program, &table.snapshot.schema, &Limits::default()).expect("valid"));
        let mut times: Vec<Duration> = Vec::new();
        let mut processor_times: Vec<Duration> = Vec::new();
        let mut rows = 0;
        for _ in 0..repetitions {
            let (started, processor_started) = (Instant::now(), processor_time());
            rows = run(&table, &program, threads);
            times.push(started.elapsed());
            processor_times.push(processor_time() - processor_started);
        }
        times.sort();
        processor_times.sort();
        println!(
            "{name:<28} {:>9.3} ms median, {:>9.3} ms least; processor {:>9.3} ms least; {rows} rows",
            times[times.len() / 2].as_secs_f64() * 1e3,
            times[0].as_secs_f64() * 1e3,
            processor_times[0].as_secs_f64() * 1e3,
        );
    }
}

/// The part of one segment's n-gram index and its chunk, and the pages that it is of.
struct Part {
    array: ArrayRef,
    pages: Vec<Range<u32>>,
}

/// Builds the n-gram index, and says how long that takes and how large it is.
fn index(table: &TestTable) -> Vec<Part> {
    let (mut time, mut stored_pages) = (Duration::ZERO, 0);
    let mut index = Vec::new();
    let mut reader = table.store.reader().expect("a reader");
    for (segment, batch) in table.snapshot.segments.iter().zip(&table.batches) {
        let page_index = segment.chunks[0]
            .page_index(&mut reader)
            .expect("in memory");
        let pages: Vec<Range<u32>> = page_index
            .zones()
            .iter()
            .filter(|zone| zone.row_count > 0)
            .map(|zone| zone.first_row..zone.first_row + zone.row_count)
            .collect();
        let started = processor_time();
        let array = ngram::build(batch.column(0), &pages).expect("text");
        time += processor_time() - started;
        let identity = ChunkIdentity {
            table: 1,
            segment: segment.id.0,
            column_group: 0,
            generation: 1,
        };
        stored_pages += encode_chunk(&array, identity).expect("encodes").pages.len();
        index.push(Part { array, pages });
    }
    println!(
        "n-gram index: {:.1} MB in {stored_pages} pages, built in {:.0} ms of a processor",
        stored_pages as f64 * 8192.0 / 1e6,
        time.as_secs_f64() * 1e3,
    );
    index
}

/// Says which share of the pages the index leaves of a condition, and how long that takes.
fn look_up(name: &str, filter: &Expr, index: &[Part]) {
    let Some(query) = NgramQuery::for_expr(filter, 0) else {
        return;
    };
    let rows = UInt32Array::from(query.rows().to_vec());
    let gathered: Vec<ArrayRef> = index
        .iter()
        .map(|part| arrow::compute::take(&part.array, &rows, None).expect("there"))
        .collect();
    let started = Instant::now();
    let (mut left, mut all) = (0, 0);
    for (part, gathered) in index.iter().zip(&gathered) {
        let candidates = query.candidates(gathered, &part.pages).expect("a part");
        left += candidates
            .iter()
            .map(|rows| rows.end - rows.start)
            .sum::<u32>();
        all += part.pages.last().map_or(0, |rows| rows.end);
    }
    println!(
        "{name:<28} index: {} rows of each part; {:.3} % of the lines left; {:.3} ms (one thread)",
        rows.len(),
        f64::from(left) / f64::from(all) * 100.0,
        started.elapsed().as_secs_f64() * 1e3
    );
}

fn run(table: &TestTable, program: &Arc<VerifiedProgram>, threads: usize) -> i64 {
    let work = SegmentQueue::new(table.snapshot.segments.clone());
    let metrics = Arc::new(ScanMetrics::default());
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..threads)
            .map(|_| {
                let command = Command {
                    program: Arc::clone(program),
                    table: Arc::clone(&table.snapshot),
                    work: Arc::clone(&work),
                    runtime_filters: Arc::new(RuntimeFilters::default()),
                    batch_rows: 8192,
                    metrics: Arc::clone(&metrics),
                    capability: table.node.owner_capability(&table.snapshot),
                };
                let node = &table.node;
                scope.spawn(move || {
                    let stream = node.submit(command).expect("starts");
                    let count = |batch: RecordBatch| {
                        let counts = batch.column(0).as_any().downcast_ref::<Int64Array>();
                        counts.expect("a count").values().iter().sum::<i64>()
                    };
                    stream.map(|batch| count(batch.expect("runs"))).sum::<i64>()
                })
            })
            .collect();
        streams
            .into_iter()
            .map(|s| s.join().expect("no panic"))
            .sum()
    })
}

fn count(filter: Expr) -> Program {
    Program {
        columns: vec![InputColumn {
            ordinal: 0,
            name: "line".into(),
            data_type: DataType::Utf8View,
            nullable: false,
        }],
        filter: vec![filter],
        output: Output::Aggregate {
            keys: Vec::new(),
            aggregates: vec![Aggregate {
                function: AggregateFunction::Count,
                argument: None,
                filter: None,
                data_type: DataType::Int64,
            }],
        },
    }
}

fn filters(vocabulary: &Vocabulary) -> Vec<(String, Expr)> {
    let line = || Box::new(Expr::Column(0));
    let like = |pattern: &str, case_insensitive| Expr::Like {
        expr: line(),
        pattern: pattern.to_owned(),
        negated: false,
        case_insensitive,
    };
    let regex = |pattern: &str, case_insensitive| Expr::Regex {
        expr: line(),
        pattern: pattern.to_owned(),
        negated: false,
        case_insensitive,
    };
    let word = |rank: usize| vocabulary.words[rank].clone();
    let contains = |text: &str| like(&format!("%{text}%"), false);
    let any = |needles: &[&str]| Expr::ContainsAny {
        expr: line(),
        needles: needles.iter().map(|n| n.to_string()).collect(),
    };
    let mut filters = vec![
        ("like rare needle".to_owned(), contains(NEEDLE)),
        (
            "like with two parts".to_owned(),
            like("%xqzt%needle%", false),
        ),
        ("ilike rare needle".to_owned(), like("%XQZT-needle%", true)),
        ("starts with".to_owned(), like("xqzt-%", false)),
        (
            "any of 3 needles".to_owned(),
            any(&[NEEDLE, "qqqq-zzzz", "-needle2"]),
        ),
        (
            "regex with a literal".to_owned(),
            regex("xqzt-n[a-z]+", false),
        ),
        ("regex without".to_owned(), regex("[0-9]{3}", false)),
        (
            "ignoring case, regex".to_owned(),
            regex("XQZT-needle", true),
        ),
    ];
    for rank in [10, 500, 5_000, 15_000] {
        let word = word(rank);
        filters.push((format!("word {rank}: '{word}'"), contains(&word)));
    }
    let position = Expr::Compare {
        op: flashmesh_pushdown::CompareOp::Gt,
        left: Box::new(Expr::Position {
            expr: line(),
            needle: NEEDLE.to_owned(),
        }),
        right: Box::new(Expr::Literal(flashmesh_pushdown::Literal {
            value: flashmesh_pushdown::Scalar::Int(0),
            data_type: DataType::Int32,
        })),
    };
    filters.push(("strpos > 0".to_owned(), position));
    filters
}

/// Words, the frequent ones first.
struct Vocabulary {
    words: Vec<String>,
    /// For each word, the share of all draws that it or one before it is.
    cumulative: Vec<f64>,
}

impl Vocabulary {
    fn new() -> Self {
        let mut rng = StdRng::seed_from_u64(42);
        let words = (0..WORDS)
            .map(|_| {
                let length = rng.random_range(3..11);
                (0..length)
                    .map(|_| char::from(rng.random_range(b'a'..=b'z')))
                    .collect()
            })
            .collect();
        let total: f64 = (1..=WORDS).map(|rank| 1.0 / rank as f64).sum();
        let mut sum = 0.0;
        let cumulative = (1..=WORDS)
            .map(|rank| {
                sum += 1.0 / rank as f64 / total;
                sum
            })
            .collect();
        Self { words, cumulative }
    }

    /// A segment of lines.
    fn lines(&self, segment: usize) -> RecordBatch {
        let mut rng = StdRng::seed_from_u64(segment as u64);
        let mut lines = StringViewBuilder::new();
        let mut line = String::new();
        for _ in 0..SEGMENT_ROWS {
            line.clear();
            for word in 0..16 {
                if word > 0 {
                    line.push(' ');
                }
                let share = rng.random::<f64>();
                let rank = self.cumulative.partition_point(|c| *c < share);
                line.push_str(&self.words[rank.min(WORDS - 1)]);
            }
            if rng.random_bool(1e-4) {
                line.insert_str(40, &format!(" {NEEDLE} "));
            }
            lines.append_value(&line);
        }
        let field = Field::new("line", DataType::Utf8View, false);
        RecordBatch::try_new(
            Arc::new(Schema::new(vec![field])),
            vec![Arc::new(lines.finish())],
        )
        .expect("one column")
    }
}
