//! Programs on the `xrt` accelerator, with flashmesh's own kernels of `fpga/hls` on the device,
//! against the interpreter.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use arrow::array::{FixedSizeBinaryArray, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use flashmesh_pushdown::{Expr, InputColumn, Metric, Output, Program, QueryVector, testing};
use flashmesh_storage::accelerator::Accelerator;
use flashmesh_storage::accelerator::offload::Operation;
use flashmesh_storage::accelerator::xrt::container::{ContainerKernel, EmulationBuild};
use flashmesh_storage::accelerator::xrt::{DeviceState, XrtAccelerator, XrtDevice};
use flashmesh_storage::kernel::interface::{
    ArgumentInterface, ArgumentUse, ElementType, FunctionInterface, KernelInterface,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::common::{TestTable, check};
use crate::rig::Rig;

use ArgumentUse::{In, InOut, Out, Scalar};
use ElementType::{I64, U8, U32, U64};

const PREDICATE_FILTER: &[(&str, ArgumentUse, ElementType)] = &[
    ("columns", In, I64),
    ("column_count", Scalar, U32),
    ("valid", In, U64),
    ("stride", Scalar, U32),
    ("program", In, U64),
    ("instructions", Scalar, U32),
    ("rows", Scalar, U32),
    ("selection", Out, U64),
];
const MORRIS_PRATT: &[(&str, ArgumentUse, ElementType)] = &[
    ("text_offsets", In, U32),
    ("text_bytes", In, U8),
    ("pattern", In, U8),
    ("pattern_length", Scalar, U32),
    ("rows", Scalar, U32),
    ("positions", Out, U32),
];

const HAMMING_NEAREST: &[(&str, ArgumentUse, ElementType)] = &[
    ("codes", In, U8),
    ("code_bytes", Scalar, U32),
    ("selected", In, U64),
    ("query", In, U8),
    ("k", Scalar, U32),
    ("rows", Scalar, U32),
    ("result_rows", Out, U32),
    ("result_distances", Out, U32),
    ("found", Out, U32),
];

const GRAPH_STEP: &[(&str, ArgumentUse, ElementType)] = &[
    ("list_offsets", In, U64),
    ("neighbours", In, U32),
    ("lists", Scalar, U32),
    ("visited", InOut, U64),
    ("vertices", Scalar, U32),
    ("capacity", Scalar, U32),
    ("next", Out, U32),
    ("next_list", Out, U32),
    ("next_length", Out, U32),
];

/// Where flashmesh's own kernels are.
fn sources() -> PathBuf {
    match std::env::var_os("FLASHMESH_HLS_FOLDER") {
        Some(folder) => folder.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../fpga/hls"),
    }
}

/// A device with our kernels; `None`, and a line that says why, where something is missing.
pub fn device(rig: &Rig) -> Option<Arc<XrtDevice>> {
    static BUILD: OnceLock<Option<EmulationBuild>> = OnceLock::new();
    let build = BUILD.get_or_init(|| {
        let folder = sources();
        if !folder.join("predicate_filter/kernel.cpp").exists() {
            eprintln!("skipped: no kernels in {folder:?}");
            assert!(std::env::var_os("FLASHMESH_REQUIRE_XRT").is_none_or(|v| v != "1"));
            return None;
        }
        let kernel = |name: &str, arguments: &[(&str, ArgumentUse, ElementType)]| {
            let arguments = arguments
                .iter()
                .map(|(name, usage, element)| ArgumentInterface {
                    name: (*name).into(),
                    usage: *usage,
                    element: *element,
                    bank: "DDR[0]".into(),
                });
            ContainerKernel {
                manifest: std::fs::read_to_string(folder.join(name).join("kernel.toml")).unwrap(),
                source: String::new(),
                interface: KernelInterface {
                    name: name.into(),
                    compute_units: 2,
                    functions: vec![FunctionInterface {
                        name: name.into(),
                        arguments: arguments.collect(),
                    }],
                },
            }
        };
        Some(EmulationBuild {
            kernels: vec![
                kernel("predicate_filter", PREDICATE_FILTER),
                kernel("morris_pratt", MORRIS_PRATT),
                kernel("hamming_nearest", HAMMING_NEAREST),
                kernel("graph_step", GRAPH_STEP),
            ],
            sources: Operation::ALL
                .map(|operation| folder.join(operation.name()).join("kernel.cpp"))
                .into(),
            include: vec![folder.join("include")],
            compiler: None,
        })
    });
    let scratch = tempfile::tempdir().unwrap();
    let container = build.as_ref()?.build(scratch.path()).unwrap();
    Some(XrtDevice::open(container, rig.options()).unwrap())
}

fn table(batches: Vec<RecordBatch>, device: &Arc<XrtDevice>) -> TestTable {
    let accelerator = XrtAccelerator::new(Arc::clone(device)).unwrap();
    assert_eq!(accelerator.name(), "xrt");
    assert_eq!(accelerator.operations(), Operation::ALL);
    TestTable::with_accelerator(batches, Arc::new(accelerator))
}

#[test]
fn random_programs_give_what_the_interpreter_gives() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    let calls = || device.counters().calls.load(Ordering::Relaxed);
    let replayed = std::env::var(testing::SEED_VARIABLE).is_ok();
    // Few random Programs ask for what the device has: so many cases that it had enough to do.
    for _ in 0..20 {
        testing::for_each_case("random programs behind XRT", 25, |generator| {
            random_programs(generator, &device);
        });
        if calls() > 20 || replayed {
            break;
        }
    }
    assert_eq!(device.state(), DeviceState::Ready);
    assert!(calls() > 20 || replayed);
}

fn random_programs(generator: &mut testing::Generator, device: &Arc<XrtDevice>) {
    let columns = generator.rng().random_range(1..=6);
    let schema = generator.schema(columns);
    let batches = (0..2)
        .map(|_| {
            let rows = generator.rng().random_range(0..=20_000);
            generator.batch(&schema, rows)
        })
        .collect();
    let table = table(batches, device);
    for _ in 0..4 {
        let sample = generator.rng().random_range(0..table.batches.len());
        let program = generator.program(&table.snapshot.schema, &table.batches[sample]);
        check(&table, &program, &[], 2, 1000);
    }
}

/// A search for a text in lines of words.
fn searched(device: &Arc<XrtDevice>, needle: &str, negated: bool) -> TestTable {
    let lines: StringViewArray = (0..30_000)
        .map(|row| (row % 7 != 0).then(|| format!("line {row} of page {}", row / 100)))
        .collect();
    let field = Field::new("line", DataType::Utf8View, true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(lines)]).unwrap();
    let table = table(vec![batch], device);
    let program = Program {
        columns: vec![InputColumn {
            ordinal: 0,
            name: "line".into(),
            data_type: DataType::Utf8View,
            nullable: true,
        }],
        filter: vec![Expr::Like {
            expr: Box::new(Expr::Column(0)),
            pattern: format!("%{needle}%"),
            negated,
            case_insensitive: false,
        }],
        output: Output::Rows {
            exprs: vec![Expr::Column(0)],
            order: Vec::new(),
            limit: None,
        },
    };
    check(&table, &program, &[], 1, 1000);
    table
}

#[test]
fn texts_are_searched_on_the_device() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    for (needle, negated) in [("page 77", false), ("e 1", true), ("nowhere", false)] {
        let table = searched(&device, needle, negated);
        let metrics = &table.metrics;
        assert!(metrics.device_calls.load(Ordering::Relaxed) >= 2);
        assert!(metrics.bytes_to_device.load(Ordering::Relaxed) > 300_000);
        assert_eq!(metrics.device_fallbacks.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_device_that_dies_in_a_scan_is_replaced_by_the_cpu() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    let process = device.process() as libc::pid_t;
    // SAFETY: a signal to a process that this test has started.
    assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
    let table = searched(&device, "page 77", false);
    assert_eq!(table.metrics.device_fallbacks.load(Ordering::Relaxed), 1);
    device.reopen().unwrap();
    let table = searched(&device, "page 77", false);
    assert_eq!(table.metrics.device_fallbacks.load(Ordering::Relaxed), 0);
}

#[test]
fn nearest_codes_are_found_on_the_device() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    let mut random = StdRng::seed_from_u64(12);
    let mut code = || -> [u8; 32] { random.random() };
    let codes: Vec<_> = (0..40_000)
        .map(|row| (row % 13 != 0).then(&mut code))
        .collect();
    let queries = vec![QueryVector::Bits(code().to_vec()); 2];
    let data_type = DataType::FixedSizeBinary(32);
    let array = FixedSizeBinaryArray::try_from_sparse_iter_with_size(codes.into_iter(), 32);
    let field = Field::new("code", data_type.clone(), true);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(schema, vec![Arc::new(array.unwrap())]).unwrap();
    let table = table(vec![batch], &device);
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
            k: 20,
            exprs: vec![Expr::Column(0)],
        },
    };
    check(&table, &program, &[], 1, 1000);
    // Two batches, two queries.
    assert_eq!(table.metrics.device_calls.load(Ordering::Relaxed), 4);
    assert_eq!(table.metrics.device_fallbacks.load(Ordering::Relaxed), 0);
}
