//! What the sandbox costs: a filter on prices as a kernel in the sandbox against the same Rust
//! code, over the same Arrow arrays, in turns; medians.
//!
//! `cargo run --release -p flashmesh-storage --example sandbox [rows in millions]`

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array};
use arrow::buffer::{BooleanBuffer, Buffer};
use arrow::datatypes::Float64Type;
use flashmesh_storage::Result;
use flashmesh_storage::accelerator::sandbox::{Sandbox, SandboxOptions};
use flashmesh_storage::kernel::{CallContext, Kernel, MemoryBudget, Package};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const ROUNDS: usize = 15;
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

static NOT_CANCELLED: AtomicBool = AtomicBool::new(false);

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
    println!("price BETWEEN 25 AND 75 over {rows} doubles, {ROUNDS} rounds in turns, medians");
    println!(
        "| kernel | rows per call | native GB/s | query GB/s | of native | fresh instances GB/s |"
    );
    println!("|---|---|---|---|---|---|");
    for (name, wat) in [
        (
            "row by row",
            include_str!("../tests/sandbox/price_band.wat"),
        ),
        (
            "two rows a vector",
            include_str!("../tests/sandbox/price_band_simd.wat"),
        ),
    ] {
        for rows_per_call in [1024, 2048, 4096, 8192, 16_384, 65_536] {
            let kernel = kernel(wat, rows_per_call)?;
            let memory: Arc<dyn MemoryBudget> = Arc::new(Unlimited);
            let query = kernel.for_query(&memory);
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                let mut counts = [0; 3];
                let start = Instant::now();
                counts[0] = batches.iter().map(|batch| native(batch).true_count()).sum();
                times[0].push(start.elapsed());
                for (i, kernel) in [&query, &kernel].into_iter().enumerate() {
                    let start = Instant::now();
                    for batch in &batches {
                        counts[i + 1] += evaluate(kernel, batch)?;
                    }
                    times[i + 1].push(start.elapsed());
                }
                assert_eq!(counts[0], counts[1]);
                assert_eq!(counts[0], counts[2]);
            }
            let [native, query, fresh] =
                times.map(|times| bytes / median(times).as_secs_f64() / 1e9);
            println!(
                "| {name} | {rows_per_call} | {native:.2} | {query:.2} | {:.0} % | {fresh:.2} |",
                100.0 * query / native
            );
        }
    }
    Ok(())
}

fn kernel(wat: &str, rows_per_call: usize) -> Result<Kernel> {
    let manifest = format!(
        "[kernel]\nname = 'price_band'\nkind = 'filter'\nversion = '1.0.0'\n\
         signature = '(price DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN'\n\
         [limits]\nrows_per_call = {rows_per_call}\n"
    );
    let wasm = wat::parse_str(wat).expect("the example's module");
    let package = Package::new(&manifest, &wasm, None, [0; 32])?;
    let sandbox = Sandbox::new(SandboxOptions::default())?;
    let target = sandbox.compile(&package, &[])?;
    Ok(Kernel::new(package, target))
}

fn evaluate(kernel: &Kernel, prices: &ArrayRef) -> Result<usize> {
    let constant = |value: f64| Arc::new(Float64Array::from(vec![value])) as ArrayRef;
    let arguments = [Arc::clone(prices), constant(25.0), constant(75.0)];
    let context = CallContext {
        memory: &Unlimited,
        cancelled: &NOT_CANCELLED,
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

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
