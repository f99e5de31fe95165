//! Times Programs of the TPC-H kind on the `cpu` accelerator, over made-up line items in memory:
//! what the store itself takes, without SQL, planner and disk.
//!
//! `cargo run --release -p flashmesh-storage --example scan_tpch -- [MILLIONS_OF_ROWS] [THREADS] [ONLY] [REPETITIONS]`

#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Int64Array, RecordBatch, StringViewArray,
};
use arrow::datatypes::{DataType, Field, Schema};
use common::TestTable;
use flashmesh_pushdown::{
    Aggregate, AggregateFunction, ArithmeticOp, CompareOp, Expr, InputColumn, Limits, Literal,
    Output, Program, RuntimeFilter, RuntimePredicate, Scalar, SortKey, VerifiedProgram, verify,
};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const MONEY: DataType = DataType::Decimal128(15, 2);
const SEGMENT_ROWS: usize = 65_536;
const REPETITIONS: usize = 15;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let millions: f64 = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(6.0);
    let threads: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let only = arguments.next().unwrap_or_default();
    let repetitions: usize = arguments
        .next()
        .and_then(|a| a.parse().ok())
        .unwrap_or(REPETITIONS);
    let segments = (millions * 1e6 / SEGMENT_ROWS as f64).ceil() as usize;
    let table = TestTable::new((0..segments).map(line_items).collect());
    let pages: u32 = table
        .snapshot
        .segments
        .iter()
        .flat_map(|s| s.chunks.iter())
        .map(|c| c.run.count)
        .sum();
    println!(
        "{} rows, {:.1} MB in pages, {threads} threads",
        table.snapshot.rows(),
        f64::from(pages) * 8192.0 / 1e6
    );
    for (name, program, filters) in programs() {
        if !name.contains(&only) {
            continue;
        }
        let program =
            Arc::new(verify(program, &table.snapshot.schema, &Limits::default()).expect("valid"));
        let mut times: Vec<Duration> = Vec::new();
        let mut processor_times: Vec<Duration> = Vec::new();
        let mut rows = 0;
        for _ in 0..repetitions {
            let (started, processor_started) = (Instant::now(), processor_time());
            rows = run(&table, &program, &filters, threads);
            times.push(started.elapsed());
            processor_times.push(processor_time() - processor_started);
        }
        times.sort();
        processor_times.sort();
        println!(
            "{name:<28} {:>9.3} ms median, {:>9.3} ms least; processor {:>9.3} ms median, {:>9.3} ms least; {rows} rows",
            times[times.len() / 2].as_secs_f64() * 1e3,
            times[0].as_secs_f64() * 1e3,
            processor_times[times.len() / 2].as_secs_f64() * 1e3,
            processor_times[0].as_secs_f64() * 1e3,
        );
    }
}

/// What all threads together have taken of the processors: it does not count waiting for others.
fn processor_time() -> Duration {
    // SAFETY: an all-zero `rusage` is a valid one.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is there to be written to.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

fn run(
    table: &TestTable,
    program: &Arc<VerifiedProgram>,
    filters: &[RuntimeFilter],
    threads: usize,
) -> usize {
    let runtime_filters = Arc::new(RuntimeFilters::default());
    runtime_filters.publish(filters.to_vec());
    let work = SegmentQueue::new(table.snapshot.segments.clone());
    let metrics = Arc::new(ScanMetrics::default());
    std::thread::scope(|scope| {
        let streams: Vec<_> = (0..threads)
            .map(|_| {
                let command = Command {
                    program: Arc::clone(program),
                    table: Arc::clone(&table.snapshot),
                    work: Arc::clone(&work),
                    runtime_filters: Arc::clone(&runtime_filters),
                    batch_rows: 8192,
                    metrics: Arc::clone(&metrics),
                    capability: table.node.owner_capability(&table.snapshot),
                };
                let node = &table.node;
                scope.spawn(move || {
                    let stream = node.submit(command).expect("starts");
                    stream
                        .map(|batch| batch.expect("runs").num_rows())
                        .sum::<usize>()
                })
            })
            .collect();
        streams
            .into_iter()
            .map(|s| s.join().expect("no panic"))
            .sum()
    })
}

/// One segment of line items: dates over seven years, flags that follow from them, orders of one
/// to seven items in order.
fn line_items(segment: usize) -> RecordBatch {
    let mut rng = StdRng::seed_from_u64(segment as u64);
    let mut columns: [Vec<i64>; 8] = Default::default();
    let [
        orders,
        parts,
        suppliers,
        quantities,
        prices,
        discounts,
        taxes,
        dates,
    ] = &mut columns;
    let (mut flags, mut statuses, mut modes, mut comments) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut order = (segment * SEGMENT_ROWS) as i64;
    let mut left = 0;
    for _ in 0..SEGMENT_ROWS {
        if left == 0 {
            left = rng.random_range(1..=7);
            order += if order % 8 == 7 { 25 } else { 1 };
        }
        left -= 1;
        let part = rng.random_range(1..=200_000);
        let quantity = rng.random_range(1..=50);
        let date = rng.random_range(8036..10_562);
        orders.push(order);
        parts.push(part);
        suppliers.push(rng.random_range(1..=10_000));
        quantities.push(quantity * 100);
        prices.push(quantity * (90_000 + part / 10 % 20_001 + 100 * (part % 1000)));
        discounts.push(rng.random_range(0..=10));
        taxes.push(rng.random_range(0..=8));
        dates.push(date);
        let is_old = date < 9298;
        flags.push(if !is_old {
            "N"
        } else if rng.random() {
            "R"
        } else {
            "A"
        });
        statuses.push(if is_old { "F" } else { "O" });
        modes.push(
            ["AIR", "FOB", "MAIL", "RAIL", "REG AIR", "SHIP", "TRUCK"][rng.random_range(0..7)],
        );
        const WORDS: [&str; 16] = [
            "carefully",
            "furiously",
            "quickly",
            "deposits",
            "requests",
            "accounts",
            "packages",
            "final",
            "pending",
            "ironic",
            "express",
            "regular",
            "slyly",
            "blithely",
            "instructions",
            "theodolites",
        ];
        let mut comment: String = (0..rng.random_range(2..5))
            .map(|_| WORDS[rng.random_range(0..16)])
            .collect::<Vec<_>>()
            .join(" ");
        if rng.random_bool(0.001) {
            comment.push_str(" Customer");
        }
        comments.push(comment);
    }
    let text = |values: Vec<&str>| -> ArrayRef { Arc::new(StringViewArray::from(values)) };
    let money = |values: &[i64]| -> ArrayRef {
        let values = Decimal128Array::from_iter_values(values.iter().map(|v| i128::from(*v)));
        Arc::new(values.with_precision_and_scale(15, 2).expect("money"))
    };
    let arrays: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(orders.clone())),
        Arc::new(Int64Array::from(parts.clone())),
        Arc::new(Int64Array::from(suppliers.clone())),
        money(quantities),
        money(prices),
        money(discounts),
        money(taxes),
        Arc::new(Date32Array::from_iter_values(
            dates.iter().map(|d| *d as i32),
        )),
        text(flags),
        text(statuses),
        text(modes),
        text(comments.iter().map(String::as_str).collect()),
    ];
    let fields: Vec<Field> = NAMES
        .iter()
        .zip(&arrays)
        .map(|(name, a)| Field::new(*name, a.data_type().clone(), false))
        .collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).expect("a batch")
}

const NAMES: [&str; 12] = [
    "l_orderkey",
    "l_partkey",
    "l_suppkey",
    "l_quantity",
    "l_extendedprice",
    "l_discount",
    "l_tax",
    "l_shipdate",
    "l_returnflag",
    "l_linestatus",
    "l_shipmode",
    "l_comment",
];

fn column_type(ordinal: usize) -> DataType {
    match ordinal {
        0..3 => DataType::Int64,
        3..7 => MONEY,
        7 => DataType::Date32,
        _ => DataType::Utf8View,
    }
}

/// A Program over all columns, so that column numbers are the table's.
fn program(filter: Vec<Expr>, output: Output) -> Program {
    let columns = NAMES.iter().enumerate().map(|(ordinal, name)| InputColumn {
        ordinal: ordinal as u32,
        name: (*name).into(),
        data_type: column_type(ordinal),
        nullable: false,
    });
    Program {
        columns: columns.collect(),
        filter,
        output,
    }
}

fn column(ordinal: u32) -> Expr {
    Expr::Column(ordinal)
}

fn literal(value: Scalar, data_type: DataType) -> Expr {
    Expr::Literal(Literal { value, data_type })
}

fn compare(op: CompareOp, ordinal: u32, value: Scalar) -> Expr {
    let right = Box::new(literal(value, column_type(ordinal as usize)));
    Expr::Compare {
        op,
        left: Box::new(column(ordinal)),
        right,
    }
}

fn arithmetic(op: ArithmeticOp, left: Expr, right: Expr, precision: u8, scale: i8) -> Expr {
    let data_type = DataType::Decimal128(precision, scale);
    Expr::Arithmetic {
        op,
        left: Box::new(left),
        right: Box::new(right),
        data_type,
    }
}

fn sum(argument: Expr, precision: u8, scale: i8) -> Aggregate {
    let data_type = DataType::Decimal128(precision, scale);
    Aggregate {
        function: AggregateFunction::Sum,
        argument: Some(argument),
        filter: None,
        data_type,
    }
}

fn count() -> Aggregate {
    Aggregate {
        function: AggregateFunction::Count,
        argument: None,
        filter: None,
        data_type: DataType::Int64,
    }
}

fn like(pattern: &str) -> Expr {
    Expr::Like {
        expr: Box::new(column(11)),
        pattern: pattern.into(),
        negated: false,
        case_insensitive: false,
    }
}

fn rows(columns: &[u32]) -> Output {
    Output::Rows {
        exprs: columns.iter().map(|c| column(*c)).collect(),
        order: vec![],
        limit: None,
    }
}

/// A runtime filter that passes one part in so many.
fn one_part_in(so_many: u64) -> RuntimeFilter {
    let mut bits = vec![0; 200_001usize.div_ceil(64)];
    let mut rng = StdRng::seed_from_u64(so_many);
    for part in 1..=200_000 {
        if rng.random_range(0..so_many) == 0 {
            bits[part / 64] |= 1 << (part % 64);
        }
    }
    RuntimeFilter {
        column: 1,
        predicate: RuntimePredicate::Bitmap {
            base: 0,
            bits: bits.into(),
        },
        keep_nulls: false,
    }
}

/// What runs: name, Program and runtime filters.
fn programs() -> Vec<(&'static str, Program, Vec<RuntimeFilter>)> {
    use ArithmeticOp::{Add, Multiply, Subtract};
    use CompareOp::{Eq, Gt, GtEq, Lt, LtEq};
    let int = |v: i128| Scalar::Int(v);
    let one = || literal(int(1), DataType::Decimal128(20, 0));
    let discounted = || {
        arithmetic(
            Multiply,
            column(4),
            arithmetic(Subtract, one(), column(5), 23, 2),
            38,
            4,
        )
    };
    let charge = arithmetic(
        Multiply,
        discounted(),
        arithmetic(Add, one(), column(6), 23, 2),
        38,
        6,
    );
    let grouped = |keys: &[u32], aggregates| Output::Aggregate {
        keys: keys.iter().map(|k| column(*k)).collect(),
        aggregates,
    };
    let q1 = vec![
        sum(column(3), 25, 2),
        sum(column(4), 25, 2),
        sum(discounted(), 38, 4),
        sum(charge, 38, 6),
        sum(column(3), 25, 2),
        count(),
        sum(column(4), 25, 2),
        count(),
        sum(column(5), 25, 2),
        count(),
    ];
    let q6_filter = || {
        vec![
            compare(GtEq, 7, int(8766)),
            compare(Lt, 7, int(9131)),
            compare(GtEq, 5, int(5)),
            compare(LtEq, 5, int(7)),
            compare(Lt, 3, int(2400)),
        ]
    };
    let text = |t: &str| Scalar::Bytes(t.as_bytes().to_vec());
    let top = |ordinal: u32| Output::Rows {
        exprs: (0..12).map(column).chain([column(ordinal)]).collect(),
        order: vec![SortKey {
            output: 12,
            descending: true,
            nulls_first: false,
        }],
        limit: Some(10),
    };
    let one_month = || vec![compare(GtEq, 7, int(9374)), compare(Lt, 7, int(9404))];
    let by_air = Expr::InList {
        expr: Box::new(column(10)),
        list: vec![text("AIR"), text("REG AIR")],
        negated: false,
    };
    let discounted_parts = Output::Rows {
        exprs: vec![column(1), discounted()],
        order: vec![],
        limit: None,
    };
    let unfiltered = vec![
        (
            "Q1: by flags",
            program(vec![compare(LtEq, 7, int(10_471))], grouped(&[8, 9], q1)),
        ),
        (
            "Q6",
            program(
                q6_filter(),
                grouped(
                    &[],
                    vec![sum(
                        arithmetic(Multiply, column(4), column(5), 31, 4),
                        38,
                        4,
                    )],
                ),
            ),
        ),
        (
            "Q6, count only",
            program(q6_filter(), grouped(&[], vec![count()])),
        ),
        ("Q6, rows", program(q6_filter(), rows(&[0, 4, 5]))),
        (
            "Q15: sum by supplier",
            program(
                vec![compare(GtEq, 7, int(9496)), compare(Lt, 7, int(9587))],
                grouped(&[2], vec![sum(discounted(), 38, 4)]),
            ),
        ),
        (
            "Q14: a month's parts",
            program(one_month(), discounted_parts),
        ),
        (
            "Q18: sum by order",
            program(vec![], grouped(&[0], vec![sum(column(3), 25, 2)])),
        ),
        (
            "sum by part",
            program(vec![], grouped(&[1], vec![sum(column(3), 25, 2)])),
        ),
        (
            "sum by date",
            program(vec![], grouped(&[7], vec![sum(column(3), 25, 2), count()])),
        ),
        (
            "like '%Customer%'",
            program(vec![like("%Customer%")], grouped(&[], vec![count()])),
        ),
        (
            "like '%final%deposits%'",
            program(vec![like("%final%deposits%")], grouped(&[], vec![count()])),
        ),
        (
            "like 'carefully%'",
            program(vec![like("carefully%")], grouped(&[], vec![count()])),
        ),
        (
            "like '%regular'",
            program(vec![like("%regular")], grouped(&[], vec![count()])),
        ),
        (
            "shipmode = 'MAIL', rows",
            program(vec![compare(Eq, 10, text("MAIL"))], rows(&[0, 4])),
        ),
        (
            "orderkey = k, all columns",
            program(
                vec![compare(Eq, 0, int(3_000_001))],
                rows(&[0, 3, 4, 5, 7, 8, 11]),
            ),
        ),
        (
            "partkey = k, all columns",
            program(
                vec![compare(Eq, 1, int(77_777))],
                rows(&[0, 3, 4, 5, 7, 8, 11]),
            ),
        ),
        (
            "suppkey < 17, all columns",
            program(
                vec![compare(Lt, 2, int(17))],
                rows(&(0..12).collect::<Vec<_>>()),
            ),
        ),
        (
            "price > 90 %, one column",
            program(vec![compare(Gt, 4, int(1_000_000))], rows(&[1])),
        ),
        (
            "all rows, four columns",
            program(vec![], rows(&[0, 4, 7, 8])),
        ),
        ("all rows, comment", program(vec![], rows(&[11]))),
        ("top 10 by price", program(vec![], top(4))),
        ("top 10 by comment", program(vec![], top(11))),
        (
            "least and greatest",
            program(
                vec![],
                grouped(
                    &[],
                    vec![Aggregate {
                        function: AggregateFunction::Max,
                        argument: Some(column(7)),
                        filter: None,
                        data_type: DataType::Date32,
                    }],
                ),
            ),
        ),
    ];
    let filtered = vec![
        (
            "Q19: parts by air",
            program(
                vec![by_air, compare(LtEq, 3, int(3000))],
                rows(&[1, 3, 4, 5]),
            ),
            vec![one_part_in(400)],
        ),
        (
            "a part in 10, rows",
            program(vec![], rows(&[0, 1, 4])),
            vec![one_part_in(10)],
        ),
    ];
    unfiltered
        .into_iter()
        .map(|(name, program)| (name, program, Vec::new()))
        .chain(filtered)
        .collect()
}
