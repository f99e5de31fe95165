//! Kernels in the sandbox, end to end: what they compute, against plain Rust.

mod guest;
mod kinds;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, StringViewArray};
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use flashmesh_storage::accelerator::sandbox::{Sandbox, SandboxOptions};
use flashmesh_storage::kernel::{Kernel, Package};
use flashmesh_storage::memory::MemoryBudget;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use guest::{Budget, context, package};

const PRICE_BAND: &str = include_str!("price_band.wat");
const PRICE_BAND_KEYS: &str = "name = 'price_band'\nkind = 'filter'\n\
    signature = '(price DOUBLE, low DOUBLE CONSTANT, high DOUBLE CONSTANT) RETURNS BOOLEAN'\n";

fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

fn kernel(package: Package) -> Kernel {
    let sandbox = Sandbox::new(SandboxOptions::default()).unwrap();
    let target = sandbox.compile(&package, &[]).unwrap();
    Kernel::new(package, target)
}

#[test]
fn a_filter_selects_what_plain_rust_selects() {
    for wat in [PRICE_BAND, include_str!("price_band_simd.wat")] {
        selects_what_plain_rust_selects(wat);
    }
}

fn selects_what_plain_rust_selects(wat: &str) {
    let mut random = random();
    let kernel = kernel(package(PRICE_BAND_KEYS, wat));
    let budget = Budget::new(64 << 20);
    let dyn_budget: Arc<dyn MemoryBudget> = budget.clone();
    let query = kernel.for_query(&dyn_budget);
    for rows in [0, 1, 63, 64, 65, 8191, 8192, 8193, 40_000] {
        let nulls = random.random_bool(0.5);
        let prices: Float64Array = (0..rows)
            .map(|_| (!nulls || random.random_bool(0.9)).then(|| random.random_range(0.0..100.0)))
            .collect();
        let constant = |value: f64| Arc::new(Float64Array::from(vec![value])) as ArrayRef;
        let arguments = [
            Arc::new(prices.clone()) as ArrayRef,
            constant(25.0),
            constant(75.0),
        ];
        let oracle: Vec<Option<bool>> = prices
            .iter()
            .map(|price| price.map(|price| (25.0..=75.0).contains(&price)))
            .collect();
        for kernel in [&kernel, &query] {
            let found = kernel.evaluate(&arguments, rows, context(&budget)).unwrap();
            let found: Vec<Option<bool>> = found.as_boolean().iter().collect();
            assert_eq!(found, oracle);
        }
    }
    assert!(budget.used() > 0, "the query keeps its instance");
    drop(query);
    assert_eq!(budget.used(), 0);
}

#[test]
fn what_a_kernel_constructs_is_there_once_and_arrays_begin_behind_its_data() {
    // The results: how often `_initialize` ran, and where the argument lies.
    let wat = "(module (memory (export \"memory\") 1)
      (global $constructed (mut i64) (i64.const 0))
      (global (export \"__heap_base\") i32 (i32.const 1000))
      (func (export \"_initialize\")
        (global.set $constructed (i64.add (global.get $constructed) (i64.const 1))))
      (func (export \"where\") (param $x i32) (param $rows i32) (param $result i32)
        (i64.store (local.get $result) (global.get $constructed))
        (i64.store offset=8 (local.get $result) (i64.extend_i32_u (local.get $x)))))";
    let keys =
        "name = 'where'\nkind = 'scalar'\nsignature = '(x BIGINT) RETURNS BIGINT'\n".to_owned();
    let kernel = kernel(package(&keys, wat));
    let budget = Budget::new(64 << 20);
    let memory: Arc<dyn MemoryBudget> = budget.clone();
    let query = kernel.for_query(&memory);
    let arguments = [Arc::new(Int64Array::from(vec![7, 7])) as ArrayRef];
    for kernel in [&kernel, &query, &query] {
        let found = kernel.evaluate(&arguments, 2, context(&budget)).unwrap();
        assert_eq!(found.as_primitive::<Int64Type>().values(), &[1, 1024]);
    }
}

#[test]
fn text_results_grow_on_demand() {
    let mut random = random();
    let keys = "name = 'twice'\nkind = 'scalar'\nsignature = '(t TEXT) RETURNS TEXT'\n\
                [limits]\nbytes_per_call = 100000\n";
    let kernel = kernel(package(keys, include_str!("twice.wat")));
    let budget = Budget::new(64 << 20);
    let texts: StringViewArray = (0..20_000)
        .map(|_| {
            let length = random.random_range(0..200);
            let text = || "aß€𝄞".chars().cycle().take(length).collect::<String>();
            random.random_bool(0.9).then(text)
        })
        .collect();
    let arguments = [Arc::new(texts.clone()) as ArrayRef];
    let found = kernel.evaluate(&arguments, texts.len(), context(&budget));
    let found = found.unwrap();
    for (found, text) in found.as_string_view().iter().zip(&texts) {
        assert_eq!(found.map(str::to_owned), text.map(|t| t.repeat(2)));
    }
    assert_eq!(budget.used(), 0);
}

#[test]
fn a_search_gives_places_from_one() {
    let keys = "name = 'find_byte'\nkind = 'search'\n\
                signature = '(t TEXT, p TEXT CONSTANT) RETURNS INTEGER'\n";
    let kernel = kernel(package(keys, include_str!("find_byte.wat")));
    let budget = Budget::new(64 << 20);
    let texts = StringViewArray::from(vec![Some("abc"), None, Some(""), Some("xxc"), Some("ca")]);
    let arguments = [
        Arc::new(texts) as ArrayRef,
        Arc::new(StringViewArray::from(vec!["c"])),
    ];
    let found = kernel.evaluate(&arguments, 5, context(&budget)).unwrap();
    let found: Vec<Option<i32>> = found.as_primitive::<Int32Type>().iter().collect();
    assert_eq!(found, [Some(3), None, Some(0), Some(3), Some(1)]);
}

#[test]
fn arguments_of_other_types_and_lengths_are_refused() {
    let kernel = kernel(package(PRICE_BAND_KEYS, PRICE_BAND));
    let budget = Budget::new(64 << 20);
    let doubles = |n: usize| Arc::new(Float64Array::from(vec![1.0; n])) as ArrayRef;
    let texts = Arc::new(StringViewArray::from(vec!["a"; 3])) as ArrayRef;
    for (arguments, reason) in [
        (vec![doubles(3), doubles(1)], "takes 3 arguments, 2"),
        (
            vec![texts, doubles(1), doubles(1)],
            "takes DOUBLE for 'price', not TEXT",
        ),
        (
            vec![doubles(2), doubles(1), doubles(1)],
            "takes 3 values for 'price', 2",
        ),
        (
            vec![doubles(3), doubles(3), doubles(1)],
            "takes 1 values for 'low', 3",
        ),
    ] {
        let error = kernel.evaluate(&arguments, 3, context(&budget));
        let error = error.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    let null = Arc::new(Float64Array::new_null(1)) as ArrayRef;
    let arguments = [doubles(3), null, doubles(1)];
    let found = kernel.evaluate(&arguments, 3, context(&budget)).unwrap();
    assert_eq!(found.null_count(), 3);
    assert!(arguments[0].as_primitive::<Float64Type>().null_count() == 0);
}
