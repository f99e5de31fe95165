//! Times the lsh index: recall, searches a second, memory, pages read.
//!
//! `cargo run --release -p flashmesh-storage --example lsh -- codes|vectors FILE [ROWS] [CACHE_MIB] [THREADS] [PROBES]`
//!
//! * `codes`: 256-bit codes in 2,000 clusters, 12 % of the bits flipped; 1,000 queries in one batch,
//!   divided by the threads.
//! * `vectors`: 128 floats in 1,000 clusters, `N(0, 1)` + 0.6 × `N(0, 1)`; queries one by one, the
//!   vectors on flash.

#[path = "../tests/lsh/indexed.rs"]
mod indexed;

use std::sync::Arc;
use std::time::Instant;

use flashmesh_pushdown::{Metric, QueryVector, distance};
use flashmesh_storage::Result;
use flashmesh_storage::flash::{FileFlash, FileFlashOptions};
use flashmesh_storage::index::lsh::{LshOptions, Neighbour};
use flashmesh_storage::page::SEGMENT_ROWS;
use flashmesh_storage::store::PageStore;
use indexed::{COLUMN, Indexed, codes, vectors};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const K: usize = 10;
const LENGTH: usize = 128;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: usize| {
        let text = arguments.get(index);
        text.map_or(default, |text| text.parse().expect("a number"))
    };
    let is_codes = arguments.first().is_some_and(|kind| kind == "codes");
    let file = arguments.get(1).expect("a file to use");
    let rows = number(2, if is_codes { 1_000_000 } else { 500_000 });
    let cache_mib = number(3, if is_codes { 256 } else { 32 });
    let threads = number(4, if is_codes { 2 } else { 1 });
    let options = LshOptions {
        probes: arguments.get(5).map(|_| number(5, 1) as u32),
        ..LshOptions::default()
    };
    let store = PageStore::open(
        Arc::new(FileFlash::open(file, FileFlashOptions::default())?),
        (cache_mib as u64) << 20,
        [],
    )?;
    let mut rng = StdRng::seed_from_u64(42);
    let (columns, queries, metric, truth): (Vec<_>, Vec<_>, _, Vec<f32>) = if is_codes {
        let centres: Vec<[u8; 32]> = (0..2_000).map(|_| rng.random()).collect();
        let mut near = |count| -> Vec<[u8; 32]> {
            let code = |_| {
                let mut code = centres[rng.random_range(0..centres.len())];
                for bit in 0..256 {
                    code[bit / 8] ^= u8::from(rng.random_bool(0.12)) << (bit % 8);
                }
                code
            };
            (0..count).map(code).collect()
        };
        let (all, queries) = (near(rows), near(1_000));
        let exact = |query: &[u8; 32]| {
            tenth(
                all.iter()
                    .map(|code| distance::hamming(code, query) as f32)
                    .collect(),
            )
        };
        (
            all.chunks(SEGMENT_ROWS).map(codes).collect(),
            queries
                .iter()
                .map(|q| QueryVector::Bits(q.to_vec()))
                .collect(),
            Metric::Hamming,
            queries.iter().map(exact).collect(),
        )
    } else {
        let mut normal = move || {
            let (u, v): (f32, f32) = (rng.random_range(1e-9..1.0), rng.random());
            (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
        };
        let centres: Vec<f32> = (0..1_000 * LENGTH).map(|_| normal()).collect();
        let mut random = StdRng::seed_from_u64(43);
        let mut near = |count: usize| -> Vec<f32> {
            let mut values = Vec::with_capacity(count * LENGTH);
            for _ in 0..count {
                let centre = random.random_range(0..1_000_usize) * LENGTH;
                values.extend(
                    centres[centre..][..LENGTH]
                        .iter()
                        .map(|c| c + 0.6 * normal()),
                );
            }
            values
        };
        let (all, queries) = (near(rows), near(100));
        let exact = |query: &[f32]| {
            tenth(
                all.chunks(LENGTH)
                    .map(|vector| distance::l2(vector, query))
                    .collect(),
            )
        };
        let truth = queries.chunks(LENGTH).map(exact).collect();
        let queries = queries
            .chunks(LENGTH)
            .map(|q| QueryVector::Floats(q.to_vec()));
        let parts = all.chunks(SEGMENT_ROWS * LENGTH);
        (
            parts.map(|part| vectors(part.to_vec(), LENGTH)).collect(),
            queries.collect(),
            Metric::L2,
            truth,
        )
    };
    println!("{rows} rows, {cache_mib} MiB of cache, {threads} threads");
    let started = Instant::now();
    let indexed = Indexed::new(Arc::clone(&store), &columns, metric, options)?;
    drop(columns);
    let part = indexed.open()?;
    println!(
        "built in {:.1} s; {} probes; {:.2} MB in memory beside the cache",
        started.elapsed().as_secs_f64(),
        part.probes(),
        part.memory_bytes() as f64 / 1e6
    );
    // A code's search is one batch, divided by the threads; vectors are looked for one by one.
    let batch = if is_codes {
        queries.len().div_ceil(threads)
    } else {
        1
    };
    for _ in 0..7 {
        let started = Instant::now();
        let run = |queries: &[QueryVector]| -> Result<(Vec<Vec<Neighbour>>, u64, u64)> {
            let mut reader = store.reader()?;
            let mut found = Vec::new();
            for queries in queries.chunks(batch) {
                found.extend(part.nearest(queries, K, COLUMN, &indexed.segments, &mut reader)?);
            }
            let counters = reader.take_counters();
            Ok((found, counters.pages_from_flash, counters.pages_from_cache))
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let share = queries.len().div_ceil(threads);
            let parts: Vec<_> = queries
                .chunks(share)
                .map(|part| scope.spawn(|| run(part)))
                .collect();
            parts
                .into_iter()
                .map(|part| part.join().expect("runs"))
                .collect()
        });
        let seconds = started.elapsed().as_secs_f64();
        let (mut found, mut flash, mut cache) = (Vec::new(), 0, 0);
        for result in results {
            let (part, from_flash, from_cache) = result?;
            found.extend(part);
            flash += from_flash;
            cache += from_cache;
        }
        let good = found.iter().zip(&truth);
        let good = good.map(|(found, last)| found.iter().filter(|n| n.distance <= *last).count());
        let count = queries.len() as f64;
        println!(
            "{:.0} queries/s, recall {:.4}; of each query {:.1} pages from flash, {:.1} from the cache",
            count / seconds,
            good.sum::<usize>() as f64 / (count * K as f64),
            flash as f64 / count,
            cache as f64 / count,
        );
    }
    Ok(())
}

/// The tenth least.
fn tenth(mut distances: Vec<f32>) -> f32 {
    *distances.select_nth_unstable_by(K - 1, f32::total_cmp).1
}
