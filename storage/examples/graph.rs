//! Times searches over the neighbour lists of an R-MAT graph (16 edges a vertex; a, b, c = 0.57,
//! 0.19, 0.19; vertex numbers permuted) and over a path: what the store itself takes, without SQL.
//!
//! `cargo run --release -p flashmesh-storage --example graph -- [FOLDER] [SCALE] [THREADS]`

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use flashmesh_storage::Result;
use flashmesh_storage::flash::{FileFlash, FileFlashOptions, PAGE_SIZE_BYTES};
use flashmesh_storage::graph::{Direction, EdgeColumns, Graph, Job, PageRankOptions};
use flashmesh_storage::index::adjacency::{AdjacencyBuilder, AdjacencyPart};
use flashmesh_storage::index::paged::PagedArray;
use flashmesh_storage::page::{ChunkIdentity, SEGMENT_ROWS};
use flashmesh_storage::store::PageStore;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

const SEED: u64 = 42;
const EDGES_PER_VERTEX: usize = 16;
const REPETITIONS: usize = 15;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".into());
    let scale: u32 = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(20);
    let threads: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let path = Path::new(&folder).join("graph.flash");

    let started = Instant::now();
    let (sources, targets) = r_mat(scale);
    println!(
        "R-MAT scale {scale}, {} edges: {:.2?}",
        sources.len(),
        started.elapsed()
    );
    let hub = top(&sources, 1 << scale);
    let (store, graph) = build(&path, &sources, &targets, threads)?;
    drop((sources, targets));
    let all_bytes = store.usage().live_pages * PAGE_SIZE_BYTES as u64;
    println!("on flash: {:.1} MB", all_bytes as f64 / 1e6);

    let seed = Int64Array::from(vec![hub]);
    let bfs = |depth| {
        let job = Job::new(threads);
        graph
            .bfs(&job, &seed, depth, Direction::Out)
            .map(|found| (found.level_sizes(), job.counters()))
    };
    println!(
        "BFS from the top vertex by out-edges, levels {:?}",
        bfs(u32::MAX)?.0
    );
    time("BFS, warm", || bfs(u32::MAX).map(drop))?;
    time("BFS, two hops, warm", || bfs(2).map(drop))?;
    time("expand two hops, warm", || {
        let job = Job::new(threads);
        graph.expand(&job, &seed, 2, Direction::Out, |_| Ok(()))
    })?;
    time("connected components, warm", || {
        graph.connected_components(&Job::new(threads)).map(drop)
    })?;
    time("PageRank, 10 rounds, warm", || {
        let options = PageRankOptions {
            max_iterations: 10,
            tolerance: 0.0,
            ..PageRankOptions::default()
        };
        graph.page_rank(&Job::new(threads), options).map(drop)
    })?;
    let mut rng = SmallRng::seed_from_u64(SEED);
    let (found, ..) = graph
        .bfs(&Job::new(threads), &seed, 9, Direction::Out)?
        .rows(&Job::new(threads), 0..10_000)?;
    time("shortest path from the top vertex, warm", || {
        let to = found.slice(rng.random_range(0..found.len()), 1);
        graph
            .shortest_path(&Job::new(threads), &seed, &to, Direction::Out, false)
            .map(drop)
    })?;

    store.cache().set_capacity_bytes(all_bytes / 10);
    time("BFS, cache of a tenth", || bfs(u32::MAX).map(drop))?;
    let all = graph.bfs(&Job::new(threads), &seed, u32::MAX, Direction::Out)?;
    let (all, ..) = all.rows(&Job::new(threads), 0..all.len())?;
    let some = all.as_primitive::<Int64Type>().values().iter().step_by(100);
    let seeds = Int64Array::from_iter_values(some.copied());
    for name in ["one level of every 100th vertex, cache off", "again"] {
        let job = Job::new(threads).bypass_cache();
        let started = Instant::now();
        let found = graph.bfs(&job, &seeds, 1, Direction::Out)?;
        let (elapsed, counters) = (started.elapsed(), job.counters());
        println!(
            "{name}: {} seeds, {} pages in {elapsed:.2?}, {:.0} pages/s, {} reached",
            seeds.len(),
            counters.pages_from_flash,
            counters.pages_from_flash as f64 / elapsed.as_secs_f64(),
            found.len()
        );
    }
    drop((graph, store));
    chase(&path)
}

/// A chain of dependent look-ups: a path whose vertices are numbered at random.
fn chase(path: &Path) -> Result<()> {
    const VERTICES: i64 = 1 << 20;
    const HOPS: u32 = 20_000;
    let mut rng = SmallRng::seed_from_u64(SEED);
    let mut chain: Vec<i64> = (0..VERTICES).collect();
    chain.shuffle(&mut rng);
    let (store, graph) = build(path, &chain[..chain.len() - 1], &chain[1..], 2)?;
    let seed = Int64Array::from(vec![chain[0]]);

    let mut reader = store.reader()?;
    reader.bypass_cache();
    let array: PagedArray = write(&store, &[Arc::new(Int64Array::from(chain))], 99)?;
    let started = Instant::now();
    for _ in 0..5000 {
        let page = rng.random_range(0..array.pages() as u32);
        array.page(&mut reader, page)?;
    }
    println!(
        "a page at random, depth 1: {:.1?}",
        started.elapsed() / 5000
    );

    let job = Job::new(2).bypass_cache();
    let started = Instant::now();
    let found = graph.bfs(&job, &seed, HOPS, Direction::Out)?;
    assert_eq!(found.len(), HOPS as usize + 1);
    println!(
        "pointer chase, cache off: {:.1?} a hop, {} pages for {HOPS} hops",
        started.elapsed() / HOPS,
        job.counters().pages_from_flash
    );

    let job = Job::new(2).bypass_cache();
    let started = Instant::now();
    let mut at = graph.numbers_of(&job, &seed)?;
    for _ in 0..HOPS {
        let mut next = Vec::new();
        let columns = EdgeColumns::default();
        graph.neighbours(&job, &at, Direction::Out, columns, |found| {
            next.extend(found.ends().map(|(_, to)| to));
            Ok(())
        })?;
        at = next;
    }
    assert_eq!(at.len(), 1);
    println!(
        "the same, each hop a command of the host: {:.1?} a hop, {} pages",
        started.elapsed() / HOPS,
        job.counters().pages_from_flash
    );
    std::fs::remove_file(path).ok();
    Ok(())
}

fn r_mat(scale: u32) -> (Vec<i64>, Vec<i64>) {
    let mut rng = SmallRng::seed_from_u64(SEED);
    let mut numbers: Vec<i64> = (0..1 << scale).collect();
    numbers.shuffle(&mut rng);
    let end = |_| {
        let (mut source, mut target) = (0usize, 0usize);
        for bit in 0..scale {
            let place: f64 = rng.random();
            source |= usize::from(place >= 0.76) << bit;
            target |= usize::from((0.57..0.76).contains(&place) || place >= 0.95) << bit;
        }
        (numbers[source], numbers[target])
    };
    (0..EDGES_PER_VERTEX << scale).map(end).unzip()
}

fn top(sources: &[i64], vertices: usize) -> i64 {
    let mut degrees = vec![0u32; vertices];
    sources
        .iter()
        .for_each(|source| degrees[*source as usize] += 1);
    let top = degrees
        .iter()
        .enumerate()
        .max_by_key(|(_, degree)| **degree);
    top.map_or(0, |(vertex, _)| vertex as i64)
}

fn build(
    path: &Path,
    sources: &[i64],
    targets: &[i64],
    threads: usize,
) -> Result<(Arc<PageStore>, Graph)> {
    std::fs::remove_file(path).ok();
    let flash = FileFlash::open(path, FileFlashOptions::default())?;
    let store = PageStore::open(Arc::new(flash), 4 << 30, [])?;
    let started = Instant::now();
    let mut builder = AdjacencyBuilder::new(&DataType::Int64, &DataType::Int64, false, threads)?;
    for (segment, (sources, targets)) in sources
        .chunks(SEGMENT_ROWS)
        .zip(targets.chunks(SEGMENT_ROWS))
        .enumerate()
    {
        let (sources, targets) = (
            Int64Array::from(sources.to_vec()),
            Int64Array::from(targets.to_vec()),
        );
        builder.add(segment as u32, &sources, &targets, None)?;
    }
    let added = started.elapsed();
    let data = builder.finish()?;
    let sorted = started.elapsed();
    let arrays = data.arrays.iter().enumerate();
    let arrays: Result<Vec<PagedArray>> = arrays
        .map(|(number, slices)| write(&store, slices, number as u16))
        .collect();
    let arrays = arrays?;
    for (number, array) in arrays.iter().enumerate() {
        println!(
            "  array {number}: {} values, {} pages",
            array.len(),
            array.pages()
        );
    }
    let graph = Graph::open(&store, vec![AdjacencyPart::open(&data.meta, arrays)?])?;
    store.sync()?;
    println!(
        "built in {:.2?}: added {added:.2?}, sorted {:.2?}, written {:.2?}; memory at most {} MB",
        started.elapsed(),
        sorted - added,
        started.elapsed() - sorted,
        peak_memory_mb()
    );
    Ok((store, graph))
}

fn write(
    store: &Arc<PageStore>,
    slices: &[Arc<dyn Array>],
    column_group: u16,
) -> Result<PagedArray> {
    let identity = ChunkIdentity {
        table: 1,
        segment: 0,
        column_group,
        generation: 1,
    };
    let slices: Vec<_> = slices.iter().flat_map(PagedArray::slices).collect();
    let mut writer = store.writer()?;
    let label = Arc::from(format!("array {column_group}"));
    let array = PagedArray::write(&mut writer, identity, &label, &slices, 2)?;
    writer.finish()?.keep();
    Ok(array)
}

fn peak_memory_mb() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .unwrap_or(0)
        / 1024
}

fn time(name: &str, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        let started = Instant::now();
        run()?;
        times.push(started.elapsed());
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{name}: least {:.1} ms, median {:.1} ms",
        ms(times[0]),
        ms(times[REPETITIONS / 2])
    );
    Ok(())
}
