//! What the sandbox costs: a filter on prices as a kernel in the sandbox against the same Rust
//! code, over the same Arrow arrays, in turns; medians, and the best of all rounds.
//!
//! `cargo run --release -p flashmesh-storage --example sandbox [rows in millions [modules.wasm…]]`
//!
//! Modules are further compilations of the same kernel, `price_band` of docs/kernels.md.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::datatypes::Float64Type;
use flashmesh_storage::Result;
use flashmesh_storage::accelerator::sandbox::{Sandbox, SandboxOptions};
use flashmesh_storage::kernel::{CallContext, CallTime, Kernel, Package};
use flashmesh_storage::memory::MemoryBudget;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const ROUNDS: usize = 31;
/// Rows of one batch, as scans give them.
const BATCH_ROWS: usize = 65_536;

/// Memory without a limit.
#[derive(Debug)]
struct Unlimited;

impl MemoryBudget for Unlimited {
    fn grow(&self, _bytes: usize) -> Result<()> {
        Ok(())
    }

    fn shrink(&self, _bytes: usize) {}
}

static TIME: CallTime = CallTime::new(Duration::MAX);

fn main() -> Result<()> {
    let millions = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let rows = millions.unwrap_or(16usize) << 20;
    let mut random = StdRng::seed_from_u64(7);
    let batches: Vec<ArrayRef> = (0..rows / BATCH_ROWS)
        .map(|_| {
            let prices = (0..BATCH_ROWS).map(|_| random.random_range(0.0..100.0));
            Arc::new(Float64Array::from_iter_values(prices)) as ArrayRef
        })
        .collect();
    let bytes = (rows * 8) as f64;
    println!(
        "price BETWEEN 25 AND 75 over {rows} doubles, {ROUNDS} rounds in turns: medians (best)"
    );
    println!(
        "| kernel | rows per call | native GB/s | query GB/s | of native | fresh instances GB/s |"
    );
    println!("|---|---|---|---|---|---|");
    let wat = |text: &str| wat::parse_str(text).expect("the example's module");
    let mut modules = vec![
        (
            "row by row".to_owned(),
            wat(include_str!("../tests/sandbox/price_band.wat")),
        ),
        (
            "vectors".to_owned(),
            wat(include_str!("../tests/sandbox/price_band_simd.wat")),
        ),
    ];
    for path in std::env::args().skip(2) {
        let wasm = std::fs::read(&path).expect("the module can be read");
        modules.push((path, wasm));
    }
    for (name, wasm) in &modules {
        for rows_per_call in [2048, 8192, 65_536] {
            let kernel = kernel(wasm, rows_per_call)?;
            let memory: Arc<dyn MemoryBudget> = Arc::new(Unlimited);
            let query = kernel.for_query(&memory);
            let mut times = [const { Vec::new() }; 3];
            for round in 0..ROUNDS {
                let start = Instant::now();
                let count: usize = batches.iter().map(|batch| native(batch).true_count()).sum();
                times[0].push(start.elapsed());
                for (i, kernel) in [&query, &kernel].into_iter().enumerate() {
                    // Fresh instances are too slow for all rounds.
                    if i == 1 && round % 10 != 0 {
                        continue;
                    }
                    let start = Instant::now();
                    let mut found = 0;
                    for batch in &batches {
                        found += evaluate(kernel, batch)?;
                    }
                    times[i + 1].push(start.elapsed());
                    assert_eq!(found, count);
                }
            }
            let speed = |time: Duration| bytes / time.as_secs_f64() / 1e9;
            let [native, query, fresh] = times.map(|mut times| {
                times.sort();
                (speed(times[times.len() / 2]), speed(times[0]))
            });
            println!(
                "| {name} | {rows_per_call} | {:.2} ({:.2}) | {:.2} ({:.2}) | {:.0} % ({:.0} %) | {:.2} |",
                native.0,
                native.1,
                query.0,
                query.1,
                100.0 * query.0 / native.0,
                100.0 * query.1 / native.1,
                fresh.0,
            );
        }
    }
    Ok(())
}

fn kernel(wasm: &[u8], rows_per_call: usize) -> Result<Kernel> {
    let manifest = format!(
        "[kernel]\nname = 'price_band'\nkind = 'filter'\nversion = '1.0.0'\n\
         signature = '(price DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN'\n\
         [limits]\nrows_per_call = {rows_per_call}\n"
    );
    let package = Package::new(&manifest, wasm, None, [0; 32])?;
    let sandbox = Sandbox::new(SandboxOptions::default())?;
    let target = sandbox.compile(&package, &[])?;
    Ok(Kernel::new(package, target))
}

fn evaluate(kernel: &Kernel, prices: &ArrayRef) -> Result<usize> {
    let constant = |value: f64| Arc::new(Float64Array::from(vec![value])) as ArrayRef;
    let arguments = [Arc::clone(prices), constant(25.0), constant(75.0)];
    let context = CallContext {
        memory: &Unlimited,
        time: &TIME,
        query: 0,
    };
    let selection = kernel.evaluate(&arguments, prices.len(), context)?;
    Ok(selection.as_boolean().true_count())
}

/// The same filter as one would write it in Rust: a word of 64 bits at a time.
#[inline(never)]
fn native(prices: &ArrayRef) -> BooleanArray {
    let prices = prices.as_primitive::<Float64Type>().values();
    let (low, high) = std::hint::black_box((25.0, 75.0));
    let words: Vec<u64> = prices
        .chunks(64)
        .map(|prices| {
            let bits = prices.iter().enumerate();
            bits.fold(0, |word, (i, &price)| {
                word | u64::from((low <= price) & (price <= high)) << i
            })
        })
        .collect();
    BooleanArray::new(
        BooleanBuffer::new(Buffer::from_vec(words), 0, prices.len()),
        None,
    )
}
