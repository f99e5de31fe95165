//! Tests that go to a device: what they are turned into, and what happens when the device fails.
//! The device is a naive one in software; `tests/xrt` has the kernels behind XRT.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{FixedSizeBinaryArray, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use common::{TestTable, check};
use flashmesh_pushdown::testing::{self, Generator};
use flashmesh_pushdown::{Expr, InputColumn, Limits, Metric, Output, Program, QueryVector, verify};
use flashmesh_storage::accelerator::cpu::CpuAccelerator;
use flashmesh_storage::accelerator::offload::{Offload, OffloadCall, Operation};
use flashmesh_storage::kernel::{Argument, ScalarArgument};
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue};
use flashmesh_storage::{Result, StorageError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Computes each call when it starts, row by row, as the comments of the kernels say it.
#[derive(Debug, Default)]
struct Naive {
    /// The number of the call that fails, from 1, and those after it; 0: none.
    fails_from: u64,
    calls: AtomicU64,
}

#[derive(Debug)]
struct Computed {
    outputs: Vec<Vec<u8>>,
}

impl OffloadCall for Computed {
    fn bytes_to_device(&self) -> u64 {
        1
    }

    fn bytes_from_device(&self) -> u64 {
        self.outputs.iter().map(|output| output.len() as u64).sum()
    }

    fn finish(self: Box<Self>, outputs: &mut [&mut [u8]]) -> Result<()> {
        assert_eq!(outputs.len(), self.outputs.len());
        for (output, computed) in outputs.iter_mut().zip(&self.outputs) {
            output.copy_from_slice(computed);
        }
        Ok(())
    }
}

impl Offload for Naive {
    fn supports(&self, operation: Operation) -> bool {
        operation != Operation::GraphStep
    }

    fn start(
        &self,
        operation: Operation,
        arguments: &mut [Argument<'_>],
    ) -> Result<Box<dyn OffloadCall>> {
        let number = 1 + self.calls.fetch_add(1, Ordering::Relaxed);
        if self.fails_from > 0 && number >= self.fails_from {
            return Err(StorageError::Kernel {
                kernel: operation.name().into(),
                reason: "it was told to fail".into(),
            });
        }
        let outputs = match operation {
            Operation::PredicateFilter => vec![predicate_filter(arguments)],
            Operation::MorrisPratt => vec![morris_pratt(arguments)],
            Operation::HammingNearest => hamming_nearest(arguments),
            Operation::GraphStep => unreachable!("the pipeline has no graphs"),
        };
        Ok(Box::new(Computed { outputs }))
    }
}

fn words(argument: &Argument<'_>) -> Vec<u64> {
    let Argument::In(bytes) = argument else {
        panic!("an input")
    };
    let (words, rest) = bytes.as_chunks::<8>();
    assert!(rest.is_empty());
    words.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

fn scalar(argument: &Argument<'_>) -> usize {
    match argument {
        Argument::Scalar(ScalarArgument::I32(value)) => *value as usize,
        _ => panic!("a scalar"),
    }
}

/// Kleene's truth of one row, instruction by instruction.
fn predicate_filter(arguments: &[Argument<'_>]) -> Vec<u8> {
    let (columns, column_count) = (words(&arguments[0]), scalar(&arguments[1]));
    let (valid, stride) = (words(&arguments[2]), scalar(&arguments[3]));
    let (program, instructions) = (words(&arguments[4]), scalar(&arguments[5]));
    let rows = scalar(&arguments[6]);
    assert_eq!(columns.len(), column_count * stride);
    assert_eq!(valid.len() * 64, columns.len());
    assert_eq!(program.len(), 2 * instructions);
    assert!(rows <= stride && stride % 64 == 0 && column_count <= 16 && instructions <= 256);
    let mut selection = vec![0u64; rows.div_ceil(64)];
    for row in 0..rows {
        let value = |column: u64| {
            let at = column as usize * stride + row;
            (valid[at / 64] >> (at % 64) & 1 == 1).then(|| columns[at])
        };
        let mut stack: Vec<Option<bool>> = Vec::new();
        for instruction in program.chunks(2) {
            let (opcode, first) = (instruction[0] & 0xff, instruction[0] >> 8 & 0xff);
            let (second, literal) = (instruction[0] >> 16 & 0xff, instruction[1]);
            let compare = |is_float: bool, op: u64, right: Option<u64>| {
                let (left, right) = (value(first)?, right?);
                let order = match is_float {
                    true => {
                        let fold = |bits| match f64::from_bits(bits) {
                            0.0 => 0.0,
                            other => other,
                        };
                        fold(left).total_cmp(&fold(right))
                    }
                    false => (left as i64).cmp(&(right as i64)),
                };
                Some(match op {
                    0 => order.is_eq(),
                    1 => order.is_ne(),
                    2 => order.is_lt(),
                    3 => order.is_le(),
                    4 => order.is_gt(),
                    _ => order.is_ge(),
                })
            };
            let truth = match opcode {
                1..=6 => compare(false, opcode - 1, Some(literal)),
                7..=12 => compare(true, opcode - 7, Some(literal)),
                13..=18 => compare(false, opcode - 13, value(second)),
                19..=24 => compare(true, opcode - 19, value(second)),
                25 => Some(value(first).is_none()),
                26 | 27 => {
                    let wins = opcode == 27;
                    let (a, b) = (stack.pop().expect("two"), stack.pop().expect("two"));
                    match (a, b) {
                        (Some(t), _) | (_, Some(t)) if t == wins => Some(wins),
                        (None, _) | (_, None) => None,
                        _ => Some(!wins),
                    }
                }
                28 => stack.pop().expect("one").map(|truth| !truth),
                29 => [Some(false), Some(true), None][literal as usize],
                other => panic!("opcode {other}"),
            };
            stack.push(truth);
            assert!(stack.len() <= 16);
        }
        assert_eq!(stack.len(), 1);
        selection[row / 64] |= u64::from(stack[0] == Some(true)) << (row % 64);
    }
    selection
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

fn morris_pratt(arguments: &[Argument<'_>]) -> Vec<u8> {
    let (Argument::In(offsets), Argument::In(text), Argument::In(pattern)) =
        (&arguments[0], &arguments[1], &arguments[2])
    else {
        panic!("three inputs")
    };
    assert_eq!(pattern.len(), scalar(&arguments[3]));
    let (offsets, _) = offsets.as_chunks::<4>();
    let offsets: Vec<usize> = offsets
        .iter()
        .map(|o| u32::from_le_bytes(*o) as usize)
        .collect();
    assert_eq!((offsets[0], offsets.len()), (0, scalar(&arguments[4]) + 1));
    let position = |text: &[u8]| {
        let mut windows = text.windows(pattern.len());
        windows
            .position(|window| window == *pattern)
            .map_or(u32::MAX, |at| at as u32)
    };
    let rows = offsets
        .windows(2)
        .map(|pair| position(&text[pair[0]..pair[1]]));
    rows.flat_map(u32::to_le_bytes).collect()
}

fn hamming_nearest(arguments: &[Argument<'_>]) -> Vec<Vec<u8>> {
    let (Argument::In(codes), Argument::In(query)) = (&arguments[0], &arguments[3]) else {
        panic!("two inputs")
    };
    let (size, selected) = (scalar(&arguments[1]), words(&arguments[2]));
    let (k, rows) = (scalar(&arguments[4]), scalar(&arguments[5]));
    assert_eq!((codes.len(), query.len()), (rows * size, size));
    let distance = |code: &[u8]| -> u32 {
        code.iter()
            .zip(*query)
            .map(|(a, b)| (a ^ b).count_ones())
            .sum()
    };
    let rows = (0..).zip(codes.chunks(size));
    let mut nearest: Vec<(u32, u32)> = rows
        .filter(|(row, _)| selected[*row as usize / 64] >> (row % 64) & 1 == 1)
        .map(|(row, code)| (distance(code), row))
        .collect();
    nearest.sort_unstable();
    nearest.truncate(k);
    let bytes = |values: Vec<u32>| values.into_iter().flat_map(u32::to_le_bytes).collect();
    vec![
        bytes(nearest.iter().map(|(_, row)| *row).collect()),
        bytes(nearest.iter().map(|(distance, _)| *distance).collect()),
        bytes(vec![nearest.len() as u32]),
    ]
}

fn table(generator: &mut Generator, rows: usize, offload: Arc<Naive>) -> TestTable {
    let columns = generator.rng().random_range(1..=6);
    let schema = generator.schema(columns);
    let batches = (0..generator.rng().random_range(1..=3))
        .map(|_| {
            let rows = generator.rng().random_range(0..=rows);
            generator.batch(&schema, rows)
        })
        .collect();
    TestTable::with_accelerator(batches, Arc::new(CpuAccelerator::with_offload(offload)))
}

fn random_programs(generator: &mut Generator, rows: usize, offload: &Arc<Naive>) -> u64 {
    let table = table(generator, rows, Arc::clone(offload));
    for _ in 0..10 {
        let sample = generator.rng().random_range(0..table.batches.len());
        let program = generator.program(&table.snapshot.schema, &table.batches[sample]);
        check(&table, &program, &[], 2, 1000);
    }
    table.metrics.device_calls.load(Ordering::Relaxed)
}

#[test]
fn random_programs_give_the_same_with_a_device() {
    let offload = Arc::new(Naive::default());
    let mut calls = 0;
    testing::for_each_case("random programs on a device", 200, |generator| {
        calls += random_programs(generator, 300, &offload);
    });
    testing::for_each_case(
        "random programs on a device, several calls",
        6,
        |generator| {
            calls += random_programs(generator, 40_000, &offload);
        },
    );
    assert_eq!(calls, offload.calls.load(Ordering::Relaxed));
    // If a case is replayed, it may be one that gives nothing to the device.
    assert!(calls > 100 || std::env::var(testing::SEED_VARIABLE).is_ok());
}

#[test]
fn what_a_device_fails_at_the_cpu_computes() {
    testing::for_each_case("a failing device", 60, |generator| {
        let offload = Arc::new(Naive {
            fails_from: generator.rng().random_range(1..4),
            ..Naive::default()
        });
        random_programs(generator, 20_000, &offload);
    });
}

#[test]
fn a_forbidden_fallback_is_an_error() {
    let mut failures = 0;
    testing::for_each_case("a forbidden fallback", 40, |generator| {
        let offload = Arc::new(Naive {
            fails_from: 1,
            ..Naive::default()
        });
        let table = table(generator, 300, Arc::clone(&offload));
        let sample = generator.rng().random_range(0..table.batches.len());
        let program = generator.program(&table.snapshot.schema, &table.batches[sample]);
        let program = verify(program, &table.snapshot.schema, &Limits::default()).expect("valid");
        let work = SegmentQueue::new(table.snapshot.segments.clone());
        work.forbid_fallback();
        let mut stream = table
            .node
            .submit(Command {
                program: Arc::new(program),
                table: Arc::clone(&table.snapshot),
                work,
                runtime_filters: Arc::new(RuntimeFilters::default()),
                batch_rows: 1000,
                metrics: Arc::clone(&table.metrics),
                capability: table.node.owner_capability(&table.snapshot),
            })
            .expect("a stream");
        let failure = stream.find_map(|batch| batch.err());
        let asked = offload.calls.load(Ordering::Relaxed) > 0;
        assert_eq!(table.metrics.device_fallbacks.load(Ordering::Relaxed), 0);
        if asked {
            failures += 1;
            let error = failure.expect("the device's error").to_string();
            assert!(error.contains("told to fail"), "{error}");
        }
    });
    assert!(failures > 0 || std::env::var(testing::SEED_VARIABLE).is_ok());
}

/// The `k` codes nearest to each of `queries`, of several batches, NULLs among them.
fn nearest_codes(seed: u64, queries: usize, k: u64, offload: Naive) -> TestTable {
    let mut random = StdRng::seed_from_u64(seed);
    let mut code = || -> [u8; 64] { random.random() };
    let codes: Vec<_> = (0..40_000)
        .map(|row| (row % 11 != 0).then(&mut code))
        .collect();
    let queries = (0..queries)
        .map(|_| QueryVector::Bits(code().to_vec()))
        .collect();
    let data_type = DataType::FixedSizeBinary(64);
    let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(codes.into_iter(), 64);
    let field = Field::new("code", data_type.clone(), true);
    let batch = RecordBatch::try_new(
        Arc::new(Schema::new(vec![field])),
        vec![Arc::new(array.expect("codes"))],
    );
    let accelerator = CpuAccelerator::with_offload(Arc::new(offload));
    let table = TestTable::with_accelerator(vec![batch.expect("a batch")], Arc::new(accelerator));
    let program = Program {
        columns: vec![InputColumn {
            ordinal: 0,
            name: "code".into(),
            data_type,
            nullable: true,
        }],
        filter: Vec::new(),
        output: Output::Nearest {
            expr: Expr::Column(0),
            metric: Metric::Hamming,
            queries,
            k,
            exprs: vec![Expr::Column(0)],
        },
    };
    check(&table, &program, &[], 1, 1000);
    table
}

#[test]
fn long_texts_are_searched_on_the_cpu() {
    let lines = StringViewArray::from(vec![Some("a".repeat(200)), None, Some("ab".into())]);
    let field = Field::new("line", DataType::Utf8View, true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(lines)]).expect("a batch");
    for (length, goes_to_device) in [(1, true), (64, true), (65, false), (4000, false)] {
        let accelerator = CpuAccelerator::with_offload(Arc::new(Naive::default()));
        let table = TestTable::with_accelerator(vec![batch.clone()], Arc::new(accelerator));
        let program = Program {
            columns: vec![InputColumn {
                ordinal: 0,
                name: "line".into(),
                data_type: DataType::Utf8View,
                nullable: true,
            }],
            filter: vec![Expr::Like {
                expr: Box::new(Expr::Column(0)),
                pattern: format!("%{}%", "a".repeat(length)),
                negated: false,
                case_insensitive: false,
            }],
            output: Output::Rows {
                exprs: vec![Expr::Column(0)],
                order: Vec::new(),
                limit: None,
            },
        };
        check(&table, &program, &[], 1, 1000);
        let calls = table.metrics.device_calls.load(Ordering::Relaxed);
        assert_eq!(calls > 0, goes_to_device, "{length}");
        assert_eq!(table.metrics.device_fallbacks.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn nearest_codes_come_from_the_device() {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    for (seed, queries, k) in [(1, 1, 10), (2, 5, 3), (3, 2, 1024)] {
        let table = nearest_codes(seed, queries, k, Naive::default());
        // Three batches, a call for each query.
        assert_eq!(load(&table.metrics.device_calls), 3 * queries as u64);
        assert_eq!(load(&table.metrics.device_fallbacks), 0);
    }
    // More than the kernel keeps.
    let table = nearest_codes(4, 1, 1025, Naive::default());
    assert_eq!(load(&table.metrics.device_calls), 0);
    for fails_from in 1..=6 {
        let failing = Naive {
            fails_from,
            ..Naive::default()
        };
        let table = nearest_codes(5, 2, 7, failing);
        assert_eq!(load(&table.metrics.device_fallbacks), 1);
    }
}
