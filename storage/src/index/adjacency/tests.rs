//! Parts as they are built, and records that are not.

use std::sync::Arc;

use arrow::array::{Int32Array, Int64Array, StringViewArray, UInt8Array, UInt64Array};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flash::{Geometry, MemoryFlash};
use crate::index::PartData;
use crate::page::ChunkIdentity;
use crate::store::PageStore;

fn write(store: &Arc<PageStore>, data: &PartData) -> Vec<PagedArray> {
    let mut writer = store.writer().unwrap();
    let arrays = data.arrays.iter().enumerate().map(|(number, slices)| {
        let identity = ChunkIdentity {
            table: 9,
            segment: 0,
            column_group: number as u16,
            generation: 1,
        };
        PagedArray::write(&mut writer, identity, &Arc::from("index"), slices, 1).unwrap()
    });
    let arrays = arrays.collect();
    writer.finish().unwrap().keep();
    arrays
}

fn store() -> Arc<PageStore> {
    let geometry = Geometry {
        pages_per_erase_block: 32,
        erase_blocks: 256,
    };
    PageStore::open(Arc::new(MemoryFlash::new(geometry, 1)), 1 << 20, []).unwrap()
}

/// All edges of a direction: (key, key of the neighbour, row).
fn edges(store: &Arc<PageStore>, part: &AdjacencyPart, against: bool) -> Vec<(i64, i64, u64)> {
    let mut reader = store.reader().unwrap();
    let mut keys = Vec::new();
    match part.keys() {
        Some(array) => array.read(&mut reader, 0..array.len(), &mut keys).unwrap(),
        None => keys.extend((0..i64::from(part.vertices())).map(|key| key + part.first_key())),
    }
    let lists = part.lists(against);
    let mut edges = Vec::new();
    for vertex in 0..part.vertices() as u64 {
        let start = lists.offsets.get(&mut reader, vertex).unwrap() as u64;
        let end = lists.offsets.get(&mut reader, vertex + 1).unwrap() as u64;
        let mut others: Vec<u32> = Vec::new();
        lists
            .neighbours
            .read(&mut reader, start..end, &mut others)
            .unwrap();
        assert!(others.is_sorted());
        for (position, other) in (start..).zip(others) {
            let row = lists.rows.get(&mut reader, position).unwrap() as u32;
            edges.push((
                keys[vertex as usize],
                keys[other as usize],
                part.row(row).unwrap(),
            ));
        }
    }
    edges
}

#[test]
fn every_edge_is_in_both_directions_once() {
    for _ in 0..20 {
        let seed = rand::random();
        println!("seed {seed}");
        let mut rng = SmallRng::seed_from_u64(seed);
        let (span, first): (i64, i64) =
            [(50, -20), (1 << 40, -(1 << 39)), (3000, i64::MAX - 3000)][rng.random_range(0..3)];
        let threads = rng.random_range(1..5);
        let mut builder =
            AdjacencyBuilder::new(&DataType::Int64, &DataType::Int64, false, threads).unwrap();
        let mut expected = Vec::new();
        for segment in 0..rng.random_range(0..4u32) {
            let mut key = |_| {
                rng.random_bool(0.9)
                    .then(|| first + rng.random_range(0..=span))
            };
            let sources: Int64Array = (0..200).map(&mut key).collect();
            let targets: Int64Array = (0..200).map(&mut key).collect();
            builder.add(segment * 3, &sources, &targets, None).unwrap();
            for row in 0..200 {
                if sources.is_valid(row) && targets.is_valid(row) {
                    let row_id = u64::from(segment * 3) << 16 | row as u64;
                    expected.push((sources.value(row), targets.value(row), row_id));
                }
            }
        }
        assert_eq!(builder.edges(), expected.len() as u64);
        let data = builder.finish().unwrap();
        let store = store();
        let part = AdjacencyPart::open(&data.meta, write(&store, &data)).unwrap();
        expected.sort_unstable();
        assert_eq!(edges(&store, &part, false), expected);
        let mut expected: Vec<_> = expected
            .into_iter()
            .map(|(a, b, row)| (b, a, row))
            .collect();
        expected.sort_unstable();
        assert_eq!(edges(&store, &part, true), expected);
    }
}

#[test]
fn columns_that_number_no_vertices_are_refused() {
    let new = |a: &DataType, b: &DataType| AdjacencyBuilder::new(a, b, false, 1).map(drop);
    assert!(new(&DataType::Int32, &DataType::UInt32).is_ok());
    assert!(new(&DataType::UInt64, &DataType::UInt8).is_ok());
    for other in [DataType::Utf8View, DataType::Int8, DataType::Float64] {
        let error = new(&DataType::UInt64, &other).unwrap_err();
        assert!(matches!(error, StorageError::Invalid(_)), "{error}");
    }
    let mut builder = AdjacencyBuilder::new(&DataType::UInt64, &DataType::UInt8, true, 1).unwrap();
    let (sources, targets) = (UInt64Array::from(vec![1, 2]), UInt8Array::from(vec![1, 2]));
    let weights = Int32Array::from(vec![1, 2]);
    assert!(builder.add(0, &sources, &targets, None).is_err());
    assert!(
        builder
            .add(0, &sources, &targets.slice(0, 1), Some(&weights))
            .is_err()
    );
    let text = StringViewArray::from(vec!["one", "two"]);
    assert!(builder.add(0, &sources, &text, Some(&weights)).is_err());
    assert!(builder.add(0, &sources, &targets, Some(&weights)).is_ok());
}

#[test]
fn records_that_do_not_fit_are_refused() {
    let mut builder = AdjacencyBuilder::new(&DataType::Int64, &DataType::Int64, false, 1).unwrap();
    let keys = Int64Array::from_iter_values(0..100);
    builder.add(0, &keys, &keys, None).unwrap();
    let data = builder.finish().unwrap();
    let store = store();
    assert!(AdjacencyPart::open(&data.meta, Vec::new()).is_err());
    assert!(AdjacencyPart::open(&data.meta, write(&store, &data)).is_ok());
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    for _ in 0..300 {
        let mut meta = data.meta.clone();
        let place = rng.random_range(0..meta.len());
        meta[place] ^= 1 << rng.random_range(0..8);
        // Whatever it says now: no panic.
        let _ = AdjacencyPart::open(&meta, write(&store, &data));
        if rng.random() {
            meta.truncate(place);
            let _ = AdjacencyPart::open(&meta, write(&store, &data));
        }
    }
    let record = Record {
        version: VERSION + 1,
        ..Record::decode(&data.meta[..]).unwrap()
    };
    let error = AdjacencyPart::open(&record.encode_to_vec(), write(&store, &data)).unwrap_err();
    assert!(error.to_string().contains("newer flashmesh"), "{error}");
}
