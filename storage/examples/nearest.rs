//! Times searches for nearest rows over a table of codes: what the store itself takes, without SQL
//! and planner. The data are those of BlueDBM's nearest-neighbour application in miniature:
//! 256-bit codes in clusters, 12 % of the bits flipped.
//!
//! `cargo run --release -p flashmesh-storage --example nearest -- [ROWS] [THREADS] [REPETITIONS] [FILE]`
//!
//! With FILE, codes and queries are written there (`FILE.codes`, `FILE.queries`: raw bytes), so
//! that others can be timed on the same.

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, AsArray, FixedSizeBinaryArray, RecordBatch};
use arrow::datatypes::{DataType, UInt32Type};
use common::TestTable;
use flashmesh_pushdown::{
    Expr, InputColumn, Limits, Metric, Output, Program, QueryVector, SortKey, VerifiedProgram,
    distance, verify,
};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const SEGMENT_ROWS: usize = 65_536;
const CODE_BYTES: usize = 32;
const CLUSTERS: usize = 2_000;
const QUERIES: usize = 1_000;
const K: u64 = 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default| {
        arguments
            .next()
            .and_then(|a| a.parse().ok())
            .unwrap_or(default)
    };
    let (rows, threads, repetitions): (usize, usize, usize) =
        (number(1_000_000), number(2), number(15));
    let mut rng = StdRng::seed_from_u64(42);
    let centres: Vec<[u8; CODE_BYTES]> = (0..CLUSTERS).map(|_| rng.random()).collect();
    let codes = near(&centres, rows, &mut rng);
    let queries = near(&centres, QUERIES, &mut rng);
    if let Some(file) = arguments.next() {
        std::fs::write(format!("{file}.codes"), codes.as_flattened()).expect("writes codes");
        std::fs::write(format!("{file}.queries"), queries.as_flattened()).expect("writes queries");
    }
    let batches = codes.chunks(SEGMENT_ROWS).map(|part| {
        let array = FixedSizeBinaryArray::try_from_iter(part.iter()).expect("codes");
        RecordBatch::try_from_iter([("code", Arc::new(array) as ArrayRef)]).expect("a batch")
    });
    let table = TestTable::new(batches.collect());
    println!("{rows} codes of {CODE_BYTES} bytes, {threads} threads, {K} nearest");

    let one = top_k(&table, &queries[0]);
    time(
        "ORDER BY distance LIMIT 10",
        &table,
        &one,
        threads,
        repetitions,
        1,
    );
    for count in [1, 10, 100, 1_000] {
        let batch = nearest(&table, &queries[..count]);
        let name = format!("nearest, {count} queries");
        let found = time(&name, &table, &batch, threads, repetitions, count);
        check(&codes, &queries[..count.min(20)], &found);
    }
}

fn near(centres: &[[u8; CODE_BYTES]], count: usize, rng: &mut StdRng) -> Vec<[u8; CODE_BYTES]> {
    (0..count)
        .map(|_| {
            let mut code = centres[rng.random_range(0..centres.len())];
            for bit in 0..8 * CODE_BYTES {
                code[bit / 8] ^= u8::from(rng.random_bool(0.12)) << (bit % 8);
            }
            code
        })
        .collect()
}

fn program(table: &TestTable, output: Output) -> Arc<VerifiedProgram> {
    let columns = vec![InputColumn {
        ordinal: 0,
        name: "code".into(),
        data_type: DataType::FixedSizeBinary(CODE_BYTES as i32),
        nullable: table.snapshot.schema.field(0).is_nullable(),
    }];
    let program = Program {
        columns,
        filter: vec![],
        output,
    };
    Arc::new(verify(program, &table.snapshot.schema, &Limits::default()).expect("valid"))
}

fn top_k(table: &TestTable, query: &[u8]) -> Arc<VerifiedProgram> {
    let distance = Expr::Distance {
        metric: Metric::Hamming,
        expr: Box::new(Expr::Column(0)),
        query: QueryVector::Bits(query.to_vec()),
    };
    let key = SortKey {
        output: 0,
        descending: false,
        nulls_first: false,
    };
    let output = Output::Rows {
        exprs: vec![distance, Expr::Column(0)],
        order: vec![key],
        limit: Some(K),
    };
    program(table, output)
}

fn nearest(table: &TestTable, queries: &[[u8; CODE_BYTES]]) -> Arc<VerifiedProgram> {
    let queries = queries.iter().map(|q| QueryVector::Bits(q.to_vec()));
    let output = Output::Nearest {
        queries: queries.collect(),
        metric: Metric::Hamming,
        expr: Expr::Column(0),
        k: K,
        exprs: vec![Expr::Column(0)],
    };
    program(table, output)
}

fn time(
    name: &str,
    table: &TestTable,
    program: &Arc<VerifiedProgram>,
    threads: usize,
    repetitions: usize,
    queries: usize,
) -> Vec<RecordBatch> {
    let mut times = Vec::new();
    let mut found = Vec::new();
    for _ in 0..repetitions {
        let started = Instant::now();
        found = run(table, program, threads);
        times.push(started.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let (median, least) = (times[times.len() / 2], times[0]);
    let comparisons = queries as f64 * table.snapshot.rows() as f64;
    println!(
        "{name:<28} {:>9.3} ms median, {:>9.3} ms least; {:>8.1} queries/s, {:.2} G comparisons/s",
        median * 1e3,
        least * 1e3,
        queries as f64 / median,
        comparisons / median / 1e9,
    );
    found
}

fn run(table: &TestTable, program: &Arc<VerifiedProgram>, threads: usize) -> Vec<RecordBatch> {
    let runtime_filters = Arc::new(RuntimeFilters::default());
    let work = SegmentQueue::new(table.snapshot.segments.clone());
    let metrics = Arc::new(ScanMetrics::default());
    let command = || Command {
        program: Arc::clone(program),
        table: Arc::clone(&table.snapshot),
        work: Arc::clone(&work),
        runtime_filters: Arc::clone(&runtime_filters),
        batch_rows: 8192,
        metrics: Arc::clone(&metrics),
        capability: table.node.owner_capability(&table.snapshot),
    };
    std::thread::scope(|scope| {
        let stream = |command: Command| {
            let stream = table.node.submit(command).expect("starts");
            stream.map(|batch| batch.expect("runs")).collect::<Vec<_>>()
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                scope.spawn({
                    let command = command();
                    move || stream(command)
                })
            })
            .collect();
        let mut batches = stream(command());
        for other in others {
            batches.extend(other.join().expect("runs"));
        }
        batches
    })
}

/// Compares distances with those of all codes.
fn check(codes: &[[u8; CODE_BYTES]], queries: &[[u8; CODE_BYTES]], found: &[RecordBatch]) {
    for (number, query) in (0..).zip(queries) {
        let mut best: BinaryHeap<u32> = BinaryHeap::new();
        for code in codes {
            best.push(distance::hamming(code, query));
            if best.len() > K as usize {
                best.pop();
            }
        }
        let mut ours: Vec<u32> = Vec::new();
        for batch in found {
            let queries = batch.column(0).as_primitive::<UInt32Type>().values();
            let distances = batch.column(1).as_primitive::<UInt32Type>().values();
            let own = queries.iter().zip(distances).filter(|(q, _)| **q == number);
            ours.extend(own.map(|(_, distance)| *distance));
        }
        ours.sort_unstable();
        ours.truncate(K as usize);
        assert_eq!(ours, best.into_sorted_vec(), "query {number}");
    }
}
