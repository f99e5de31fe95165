//! The lsh index against all distances: recall on seeded data, exact answers where it must be
//! complete, bad requests and hostile bytes.

mod indexed;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListBuilder, Float32Builder};
use arrow::datatypes::{DataType, Float32Type};
use flashmesh_pushdown::{Metric, QueryVector, distance};
use flashmesh_storage::StorageError;
use flashmesh_storage::flash::{Geometry, MemoryFlash};
use flashmesh_storage::index::lsh::{LshBuilder, LshOptions, LshPart, Neighbour};
use flashmesh_storage::store::PageStore;
use indexed::{COLUMN, Indexed, codes, vectors};
use rand::{RngExt, SeedableRng, rngs::StdRng};

fn store() -> Arc<PageStore> {
    let geometry = Geometry {
        pages_per_erase_block: 64,
        erase_blocks: 1024,
    };
    PageStore::open(Arc::new(MemoryFlash::new(geometry, 1)), 64 << 20, []).expect("a store")
}

/// Codes of 128 bits in clusters, 12 % of the bits flipped.
fn clustered_codes(rng: &mut StdRng, centres: &[[u8; 16]], count: usize) -> Vec<[u8; 16]> {
    (0..count)
        .map(|_| {
            let mut code = centres[rng.random_range(0..centres.len())];
            for bit in 0..128 {
                code[bit / 8] ^= u8::from(rng.random_bool(0.12)) << (bit % 8);
            }
            code
        })
        .collect()
}

/// Vectors of floats in clusters.
fn clustered_vectors(rng: &mut StdRng, centres: &[Vec<f32>], count: usize) -> Vec<Vec<f32>> {
    let spread = |rng: &mut StdRng| {
        let sum: f32 = (0..4).map(|_| rng.random_range(-1.0_f32..1.0)).sum();
        sum * 0.5
    };
    (0..count)
        .map(|_| {
            let centre = &centres[rng.random_range(0..centres.len())];
            centre.iter().map(|c| c + spread(rng)).collect()
        })
        .collect()
}

/// Share of the found that are no farther than the true `k`-th.
fn recall(found: &[Neighbour], mut all: Vec<f32>, k: usize) -> f64 {
    all.sort_by(f32::total_cmp);
    let last = all[k - 1];
    found.iter().filter(|n| n.distance <= last).count() as f64 / k as f64
}

#[test]
fn codes_are_found() {
    let mut rng = StdRng::seed_from_u64(1);
    let centres: Vec<[u8; 16]> = (0..60).map(|_| rng.random()).collect();
    let rows = clustered_codes(&mut rng, &centres, 20_000);
    let queries = clustered_codes(&mut rng, &centres, 100);
    let columns = [codes(&rows[..12_345]), codes(&rows[12_345..])];
    let options = LshOptions::default();
    let indexed = Indexed::new(store(), &columns, Metric::Hamming, options).unwrap();
    let part = indexed.open().unwrap();
    let vectors: Vec<_> = queries
        .iter()
        .map(|q| QueryVector::Bits(q.to_vec()))
        .collect();
    let mut reader = indexed.store.reader().unwrap();
    let found = part
        .nearest(&vectors, 10, COLUMN, &indexed.segments, &mut reader)
        .unwrap();
    let mut total = 0.0;
    for (query, found) in queries.iter().zip(&found) {
        for neighbour in found {
            let row = neighbour.segment.0 as usize * 12_345 + neighbour.row as usize;
            assert_eq!(
                neighbour.distance,
                distance::hamming(&rows[row], query) as f32
            );
        }
        assert!(found.is_sorted_by(|l, r| l.distance <= r.distance));
        let all = rows.iter().map(|row| distance::hamming(row, query) as f32);
        total += recall(found, all.collect(), 10);
    }
    let recall = total / queries.len() as f64;
    println!("recall {recall} with {} probes", part.probes());
    assert!(recall >= 0.97, "{recall}");
}

#[test]
fn vectors_are_found() {
    for (metric, tables) in [(Metric::L2, 1), (Metric::Cosine, 2)] {
        let mut rng = StdRng::seed_from_u64(2);
        let centres: Vec<Vec<f32>> = (0..50)
            .map(|_| (0..37).map(|_| rng.random_range(-2.0..2.0)).collect())
            .collect();
        let rows = clustered_vectors(&mut rng, &centres, 10_000);
        let queries = clustered_vectors(&mut rng, &centres, 50);
        let columns = [vectors(rows.concat(), 37)];
        let options = LshOptions {
            tables: Some(tables),
            ..LshOptions::default()
        };
        let indexed = Indexed::new(store(), &columns, metric, options).unwrap();
        let part = indexed.open().unwrap();
        let mut reader = indexed.store.reader().unwrap();
        let vectors: Vec<_> = queries
            .iter()
            .map(|q| QueryVector::Floats(q.clone()))
            .collect();
        let found = part
            .nearest(&vectors, 10, COLUMN, &indexed.segments, &mut reader)
            .unwrap();
        let mut total = 0.0;
        for (query, found) in queries.iter().zip(&found) {
            let exact = |row: &Vec<f32>| distance::distance(metric, row, query).unwrap();
            for neighbour in found {
                assert_eq!(neighbour.distance, exact(&rows[neighbour.row as usize]));
            }
            total += recall(found, rows.iter().map(exact).collect(), 10);
        }
        let recall = total / queries.len() as f64;
        println!("{metric}: recall {recall} with {} probes", part.probes());
        assert!(recall >= 0.95, "{metric} {recall}");
    }
}

/// Whoever goes on until a round is complete has seen all rows: what a filter that few of the near
/// rows pass needs.
#[test]
fn rounds_end_with_all_rows() {
    let mut rng = StdRng::seed_from_u64(3);
    let centres: Vec<[u8; 16]> = (0..40).map(|_| rng.random()).collect();
    let rows = clustered_codes(&mut rng, &centres, 16_000);
    let query = rows[77];
    let columns = [codes(&rows)];
    let options = LshOptions::default();
    let indexed = Indexed::new(store(), &columns, Metric::Hamming, options).unwrap();
    let part = indexed.open().unwrap();
    let mut reader = indexed.store.reader().unwrap();
    let vectors = [QueryVector::Bits(query.to_vec())];
    let (mut round, mut seen) = (0, 0);
    let found = loop {
        let found = part
            .candidates(&vectors, rows.len(), round, &mut reader)
            .unwrap();
        assert!(found.of_queries[0].len() >= seen, "round {round}");
        seen = found.of_queries[0].len();
        if found.complete {
            break found;
        }
        assert!(seen < rows.len(), "round {round}");
        round += 1;
    };
    assert!(round > 0);
    let mut expected: Vec<f32> = rows
        .iter()
        .map(|row| distance::hamming(row, &query) as f32)
        .collect();
    expected.sort_by(f32::total_cmp);
    let found: Vec<f32> = found.of_queries[0].iter().map(|c| c.distance).collect();
    assert_eq!(found, expected);
}

#[test]
fn few_rows_and_odd_ones() {
    // NULL, an element that is NULL, NaN, zeros, and two that are indexed.
    let mut builder = FixedSizeListBuilder::new(Float32Builder::new(), 2);
    for (values, valid) in [
        ([Some(1.0), Some(2.0)], false),
        ([Some(1.0), None], true),
        ([Some(f32::NAN), Some(0.0)], true),
        ([Some(0.0), Some(0.0)], true),
        ([Some(3.0), Some(4.0)], true),
        ([Some(-1.0), Some(0.0)], true),
    ] {
        values
            .iter()
            .for_each(|v| builder.values().append_option(*v));
        builder.append(valid);
    }
    let column: ArrayRef = Arc::new(builder.finish());
    let query = |values: [f32; 2]| QueryVector::Floats(values.to_vec());
    for (metric, rows) in [(Metric::L2, vec![3, 5, 4]), (Metric::Cosine, vec![4, 5])] {
        let columns = [column.clone()];
        let indexed = Indexed::new(store(), &columns, metric, LshOptions::default()).unwrap();
        let part = indexed.open().unwrap();
        let mut reader = indexed.store.reader().unwrap();
        let mut nearest = |query, k| {
            let found = part.nearest(&[query], k, COLUMN, &indexed.segments, &mut reader);
            let found = found.unwrap().remove(0);
            found.iter().map(|n| n.row).collect::<Vec<_>>()
        };
        // More than there are, and none.
        assert_eq!(nearest(query([0.1, 0.0]), 100), rows);
        assert!(nearest(query([0.1, 0.0]), 0).is_empty());
        // Queries without a direction or a number harm nobody.
        nearest(query([0.0, 0.0]), 2);
        nearest(query([f32::NAN, 0.0]), 2);
    }
    let lists = column.as_fixed_size_list();
    assert_eq!(lists.values().as_primitive::<Float32Type>().len(), 12);

    // An empty table.
    let empty = [column.slice(0, 0)];
    let indexed = Indexed::new(store(), &empty, Metric::L2, LshOptions::default()).unwrap();
    let part = indexed.open().unwrap();
    let mut reader = indexed.store.reader().unwrap();
    let found = part.nearest(
        &[query([1.0, 1.0])],
        3,
        COLUMN,
        &indexed.segments,
        &mut reader,
    );
    assert!(found.unwrap()[0].is_empty());
}

#[test]
fn bad_requests_are_refused() {
    let data_type = DataType::FixedSizeBinary(16);
    let refused = |data_type: &DataType, metric, options| {
        let error = LshBuilder::new(data_type, metric, options).unwrap_err();
        assert!(matches!(error, StorageError::Invalid(_)), "{error}");
    };
    let with = |tables, bits, probes| LshOptions {
        tables,
        bits,
        probes,
        seed: 0,
    };
    refused(&data_type, Metric::L2, LshOptions::default());
    refused(&DataType::Int64, Metric::Hamming, LshOptions::default());
    refused(&data_type, Metric::Hamming, with(Some(0), None, None));
    refused(&data_type, Metric::Hamming, with(None, Some(17), None));
    refused(&data_type, Metric::Hamming, with(None, None, Some(0)));
    let floats = DataType::new_fixed_size_list(DataType::Float32, 4, true);
    refused(&floats, Metric::Dot, LshOptions::default());

    let columns = [codes(&[[1_u8; 16], [2; 16]])];
    let indexed = Indexed::new(store(), &columns, Metric::Hamming, LshOptions::default()).unwrap();
    let part = indexed.open().unwrap();
    let mut reader = indexed.store.reader().unwrap();
    for query in [
        QueryVector::Bits(vec![0; 15]),
        QueryVector::Floats(vec![0.0; 16]),
    ] {
        let error = part.candidates(&[query], 1, 0, &mut reader).unwrap_err();
        assert!(matches!(error, StorageError::Invalid(_)), "{error}");
    }
}

/// Damaged blobs and arrays in each other's places are errors or another index, never a panic.
#[test]
fn hostile_bytes_do_no_harm() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let rows: Vec<f32> = (0..600 * 6).map(|_| rng.random_range(-1.0..1.0)).collect();
    let columns = [vectors(rows, 6)];
    let indexed = Indexed::new(store(), &columns, Metric::L2, LshOptions::default()).unwrap();
    let mut reader = indexed.store.reader().unwrap();
    let query = [QueryVector::Floats(vec![0.5; 6])];
    let mut refused = 0;
    for _ in 0..2_000 {
        let mut meta = indexed.data.meta.clone();
        let mut chunks = indexed.chunks();
        if rng.random_bool(0.8) {
            let at = rng.random_range(0..meta.len());
            match rng.random_range(0..3) {
                0 => meta.truncate(at),
                1 => meta.insert(at, rng.random()),
                _ => meta[at] ^= 1 << rng.random_range(0..8),
            }
        }
        if rng.random_bool(0.3) {
            let (one, other) = (
                rng.random_range(0..chunks.len()),
                rng.random_range(0..chunks.len()),
            );
            chunks.swap(one, other);
        }
        if rng.random_bool(0.1) {
            chunks.pop();
        }
        match LshPart::open(&meta, chunks, &mut reader) {
            Ok(part) => {
                let _ = part.nearest(&query, 5, COLUMN, &indexed.segments, &mut reader);
            }
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0);
}
