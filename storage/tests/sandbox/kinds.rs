//! Aggregates, distances, table kernels, NULL given to kernels, and calls between kernels.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, Float64Array, Int64Array, StringViewArray,
};
use arrow::datatypes::{Float32Type, Float64Type, Int32Type, Int64Type};
use flashmesh_storage::accelerator::sandbox::{Sandbox, SandboxOptions};
use flashmesh_storage::kernel::Kernel;
use flashmesh_storage::memory::MemoryBudget;
use rand::RngExt;

use crate::guest::{Budget, context, package};
use crate::{kernel, random};

const ADD_ONE: &str = "name = 'add_one'\nkind = 'scalar'\n\
    signature = '(x BIGINT) RETURNS BIGINT'\n";
const ADD_TWO: &str = "name = 'add_two'\nkind = 'scalar'\n\
    signature = '(x BIGINT) RETURNS BIGINT'\n[calls]\nkernels = ['add_one']\n";

#[test]
fn aggregates_of_groups_are_those_of_plain_rust() {
    let mut random = random();
    let keys = "name = 'mean'\nkind = 'aggregate'\nstate_words = 2\n\
                signature = '(x DOUBLE) RETURNS DOUBLE'\n[limits]\nrows_per_call = 256\n";
    let kernel = kernel(package(keys, include_str!("mean.wat")));
    let budget = Budget::new(64 << 20);
    // The last number of groups is beyond what is passed whole.
    for groups in [1usize, 3, 100, 20_000] {
        let mut oracle = vec![(0.0, 0u64); groups];
        let mut merged = kernel.states().unwrap();
        merged.init(groups / 2, context(&budget)).unwrap();
        merged.init(groups, context(&budget)).unwrap();
        for part in 0..3 {
            let mut states = kernel.states().unwrap();
            states.init(groups, context(&budget)).unwrap();
            let rows = random.random_range(0..3000);
            let values: Float64Array = (0..rows)
                .map(|_| {
                    random
                        .random_bool(0.8)
                        .then(|| f64::from(random.random_range(0..9)))
                })
                .collect();
            let group: Vec<u32> = (0..rows)
                .map(|_| random.random_range(0..groups.div_ceil(2)) as u32)
                .collect();
            for (value, &group) in values.iter().zip(&group) {
                if let Some(value) = value {
                    oracle[group as usize].0 += value;
                    oracle[group as usize].1 += 1;
                }
            }
            let arguments = [Arc::new(values) as ArrayRef];
            states
                .update(&arguments, rows, &group, context(&budget))
                .unwrap();
            // Groups that come twice in what is merged are added twice.
            let first = states.take_first(groups / 2);
            for (states, offset) in [(first, 0), (states, groups / 2)] {
                let numbers: Vec<u32> = (0..states.groups())
                    .map(|group| (group + offset) as u32)
                    .collect();
                let array = states.to_array().unwrap();
                merged.merge(&array, &numbers, context(&budget)).unwrap();
                if part == 0 {
                    let same = vec![0; states.groups()];
                    merged.merge(&array, &same, context(&budget)).unwrap();
                    for group in numbers {
                        let (sum, count) = sums(&array, (group as usize) - offset);
                        oracle[0].0 += sum;
                        oracle[0].1 += count;
                    }
                }
            }
        }
        let found = merged.finish(context(&budget)).unwrap();
        let found: Vec<Option<f64>> = found.as_primitive::<Float64Type>().iter().collect();
        let oracle: Vec<Option<f64>> = oracle
            .iter()
            .map(|&(sum, count)| (count > 0).then(|| sum / count as f64))
            .collect();
        assert_eq!(found, oracle);
        assert_eq!(budget.used(), 0);
    }
}

fn sums(states: &arrow::array::FixedSizeBinaryArray, group: usize) -> (f64, u64) {
    let (sum, count) = states.value(group).split_at(8);
    (
        f64::from_le_bytes(sum.try_into().unwrap()),
        u64::from_le_bytes(count.try_into().unwrap()),
    )
}

#[test]
fn group_numbers_and_states_that_do_not_exist_are_refused() {
    let keys = "name = 'mean'\nkind = 'aggregate'\nstate_words = 2\n\
                signature = '(x DOUBLE) RETURNS DOUBLE'\n";
    let kernel = kernel(package(keys, include_str!("mean.wat")));
    let budget = Budget::new(64 << 20);
    let mut states = kernel.states().unwrap();
    states.init(2, context(&budget)).unwrap();
    let one = [Arc::new(Float64Array::from(vec![1.0])) as ArrayRef];
    for group in [&[2][..], &[], &[0, 0]] {
        let error = states.update(&one, 1, group, context(&budget)).unwrap_err();
        assert!(error.to_string().contains("2 groups"), "{error}");
    }
    let wrong = arrow::array::FixedSizeBinaryArray::try_from(vec![&[0u8; 8]]).unwrap();
    let error = states.merge(&wrong, &[0], context(&budget)).unwrap_err();
    assert!(error.to_string().contains("states of 16 bytes"), "{error}");
}

#[test]
fn distances_of_any_length_are_those_of_plain_rust() {
    let mut random = random();
    let keys =
        "name = 'l1'\nkind = 'distance'\nsignature = '(a FLOAT[], b FLOAT[]) RETURNS DOUBLE'\n";
    let kernel = kernel(package(keys, include_str!("l1.wat")));
    let budget = Budget::new(64 << 20);
    for (dimension, rows) in [(1, 1), (3, 1000), (768, 700), (2000, 5)] {
        let mut vector = || {
            Some(
                (0..dimension)
                    .map(|_| Some(random.random::<f32>()))
                    .collect(),
            )
        };
        let query: Vec<Option<Vec<Option<f32>>>> = vec![vector()];
        let mut vectors: Vec<Option<Vec<Option<f32>>>> = (0..rows).map(|_| vector()).collect();
        if rows > 1 {
            vectors[1] = None;
        }
        let array = |vectors: &[Option<Vec<Option<f32>>>]| {
            Arc::new(
                FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(
                    vectors.iter().cloned(),
                    dimension,
                ),
            ) as ArrayRef
        };
        // A slice has its own offset in the values.
        let (all, query_array) = (array(&vectors), array(&query));
        let slice = all.slice(rows / 2, rows - rows / 2);
        for (array, from) in [(&all, 0), (&slice, rows / 2)] {
            let found = kernel
                .distances(array, &query_array, context(&budget))
                .unwrap();
            for (found, vector) in found.iter().zip(&vectors[from..]) {
                let oracle = vector.as_ref().map(|vector| {
                    let pairs = vector.iter().zip(query[0].as_ref().unwrap());
                    let distance = |(a, b): (&Option<f32>, &Option<f32>)| {
                        (f64::from(a.unwrap()) - f64::from(b.unwrap())).abs()
                    };
                    pairs.map(distance).fold(0.0, |sum, d| sum + d)
                });
                assert_eq!(found, oracle);
            }
        }
        let other = array(&[Some(vec![Some(0.0); dimension as usize])]);
        let shorter = Arc::new(StringViewArray::from(vec!["a"])) as ArrayRef;
        assert!(
            kernel
                .distances(&other, &shorter, context(&budget))
                .is_err()
        );
    }
}

#[test]
fn a_table_kernel_gives_the_rows_of_all_pages() {
    let mut random = random();
    let keys = "name = 'page_bytes'\nkind = 'table'\n\
                signature = '(least INTEGER CONSTANT) RETURNS TABLE (first INTEGER, second BIGINT)'\n\
                [limits]\nrows_per_call = 64\nmemory_bytes = 4194304\n";
    let kernel = kernel(package(keys, include_str!("page_bytes.wat")));
    let budget = Budget::new(64 << 20);
    let pages: Vec<u8> = (0..300 * 8192).map(|_| random.random()).collect();
    let least = Arc::new(arrow::array::Int32Array::from(vec![100])) as ArrayRef;
    let found = kernel.rows(&pages, &[least], context(&budget)).unwrap();
    let oracle: Vec<(i32, i64)> = pages
        .chunks(8192)
        .filter(|page| page[0] >= 100)
        .map(|page| (page[0].into(), page[1].into()))
        .collect();
    assert!(oracle.len() > 64, "room for the rows is asked for");
    let first = found.column(0).as_primitive::<Int32Type>().values().iter();
    let second = found.column(1).as_primitive::<Int64Type>().values().iter();
    let found: Vec<(i32, i64)> = first.copied().zip(second.copied()).collect();
    assert_eq!(found, oracle);
    assert_eq!(budget.used(), 0);
}

#[test]
fn kernels_that_take_nulls_get_and_give_bitmaps() {
    let mut random = random();
    let keys = "name = 'or_zero'\nkind = 'scalar'\nnulls = 'kernel'\n\
                signature = '(x BIGINT) RETURNS BIGINT'\n[limits]\nrows_per_call = 128\n";
    let kernel = kernel(package(keys, include_str!("or_zero.wat")));
    let budget = Budget::new(64 << 20);
    for start in [0, 1, 77] {
        let all: Int64Array = (0..1000)
            .map(|_| random.random_bool(0.6).then(|| random.random_range(0..3)))
            .collect();
        let values = all.slice(start, 1000 - start);
        let arguments = [Arc::new(values.clone()) as ArrayRef];
        let found = kernel.evaluate(&arguments, values.len(), context(&budget));
        let found: Vec<Option<i64>> = found.unwrap().as_primitive::<Int64Type>().iter().collect();
        let oracle = |value: Option<i64>| match value {
            None => Some(0),
            Some(0) => None,
            other => other,
        };
        let oracle: Vec<Option<i64>> = values.iter().map(oracle).collect();
        assert_eq!(found, oracle);
    }
}

#[test]
fn a_kernel_calls_another_through_the_store() {
    let sandbox = Sandbox::new(SandboxOptions::default()).unwrap();
    let one = package(ADD_ONE, include_str!("add_one.wat"));
    let one = Kernel::new(one.clone(), sandbox.compile(&one, &[]).unwrap());
    let two = package(ADD_TWO, include_str!("add_two.wat"));
    let refused = sandbox.compile(&two, &[]).unwrap_err().to_string();
    assert!(refused.contains("may not call 'add_one'"), "{refused}");
    let two = Kernel::new(two.clone(), sandbox.compile(&two, &[one]).unwrap());
    let budget = Budget::new(64 << 20);
    let memory: Arc<dyn MemoryBudget> = budget.clone();
    let values = Int64Array::from_iter_values(0..20_000);
    let arguments = [Arc::new(values.clone()) as ArrayRef];
    for kernel in [two.clone(), two.for_query(&memory)] {
        let found = kernel
            .evaluate(&arguments, values.len(), context(&budget))
            .unwrap();
        let found = found.as_primitive::<Int64Type>();
        assert!(
            found.values().iter().eq(values
                .values()
                .iter()
                .map(|v| v + 2)
                .collect::<Vec<_>>()
                .iter())
        );
    }
    assert_eq!(budget.used(), 0);
}
