//! Times searches over the neighbour lists of an R-MAT graph (16 edges a vertex; a, b, c = 0.57,
//! 0.19, 0.19; vertex numbers permuted) and over a path: what the store itself takes, without SQL,
//! and what the device gives beside.
//!
//! `cargo run --release -p flashmesh-storage --example graph -- [FOLDER] [SCALE] [THREADS] [WHAT]`
//!
//! WHAT is `all`, or `flash` for what is read from flash alone, or `chase` for the path alone. It
//! needs fio.

mod measure;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../tests/common/mod.rs"]
mod table;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Int64Type};
use flashmesh_pushdown::{Expr, InputColumn, Limits, Output, Program, Scalar, verify};
use flashmesh_storage::accelerator::ScanMetrics;
use flashmesh_storage::access::{AccessPath, NearSearch};
use flashmesh_storage::flash::{FileFlash, FileFlashOptions, PAGE_SIZE_BYTES};
use flashmesh_storage::graph::{Direction, Graph, Job, PageRankOptions};
use flashmesh_storage::index::PartData;
use flashmesh_storage::index::adjacency::{AdjacencyBuilder, AdjacencyPart};
use flashmesh_storage::index::paged::PagedArray;
use flashmesh_storage::node::{Command, RuntimeFilters, SegmentQueue, StorageNode};
use flashmesh_storage::page::{ChunkIdentity, SEGMENT_ROWS};
use flashmesh_storage::segment::row_id;
use flashmesh_storage::store::PageStore;
use flashmesh_storage::table::TableSnapshot;
use flashmesh_storage::{Result, StorageError};
use measure::{Fio, fio, median, processor_time};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::seq::index::sample;
use rand::{RngExt, SeedableRng};
use table::{snapshot_of, write_segment};

const SEED: u64 = 42;
const EDGES_PER_VERTEX: usize = 16;
const REPETITIONS: usize = 15;
const ROUNDS: usize = 5;
/// A device's latency differs more from second to second than its rate.
const CHASE_ROUNDS: usize = 15;
/// Reads that a thread has in flight at most.
const DEPTH: usize = 128;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap_or_else(|| ".".into());
    let scale: u32 = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(20);
    let threads: usize = arguments.next().and_then(|a| a.parse().ok()).unwrap_or(2);
    let what = arguments.next().unwrap_or_else(|| "all".into());
    let path = Path::new(&folder).join("graph.flash");
    if what == "chase" {
        return chase(&path);
    }

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
    let all_bytes = store.usage().pages() * PAGE_SIZE_BYTES as u64;
    println!("on flash: {:.1} MB", all_bytes as f64 / 1e6);

    let seed = Int64Array::from(vec![hub]);
    if what == "all" {
        warm(&graph, &seed, threads)?;
    }
    store.cache().set_capacity_bytes(all_bytes / 10);
    time("BFS, cache of a tenth", || {
        let job = Job::new(threads);
        graph.bfs(&job, &seed, u32::MAX, Direction::Out).map(drop)
    })?;
    out_of_core(
        &path,
        &store,
        &graph,
        &found_keys(&graph, threads, &seed)?,
        threads,
    )?;
    drop((graph, store));
    chase(&path)
}

/// Searches over what is cached.
fn warm(graph: &Graph, seed: &Int64Array, threads: usize) -> Result<()> {
    let bfs = |depth| graph.bfs(&Job::new(threads), seed, depth, Direction::Out);
    println!(
        "BFS from the top vertex by out-edges, levels {:?}",
        bfs(u32::MAX)?.level_sizes()
    );
    time("BFS, warm", || bfs(u32::MAX).map(drop))?;
    time("BFS, two hops, warm", || bfs(2).map(drop))?;
    time("expand two hops, warm", || {
        let job = Job::new(threads);
        graph.expand(&job, seed, 2, Direction::Out, |_| Ok(()))
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
            .shortest_path(&Job::new(threads), seed, &to, Direction::Out, false)
            .map(drop)
    })
}

/// The keys of all vertices that a search reaches.
fn found_keys(graph: &Graph, threads: usize, seed: &Int64Array) -> Result<Vec<i64>> {
    let all = graph.bfs(&Job::new(threads), seed, u32::MAX, Direction::Out)?;
    let (keys, ..) = all.rows(&Job::new(threads), 0..all.len())?;
    Ok(keys.as_primitive::<Int64Type>().values().to_vec())
}

/// Levels of vertices so far apart that hardly two of their lists share a page, with a cache of a
/// tenth of the graph that holds nothing at first; fio reads the same file before and after each.
fn out_of_core(
    path: &Path,
    store: &Arc<PageStore>,
    graph: &Graph,
    vertices: &[i64],
    threads: usize,
) -> Result<()> {
    let mut rng = SmallRng::seed_from_u64(SEED);
    let lists_pages = store.usage().pages() / 4;
    let count = (lists_pages / 8).max(64) as usize;
    let (mut shares, mut rates) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let places = sample(&mut rng, vertices.len(), count.min(vertices.len()));
        let seeds = Int64Array::from_iter_values(places.iter().map(|place| vertices[place]));
        let before = device(path, store, DEPTH * threads)?;
        store.cache().clear();
        let job = Job::new(threads);
        let (started, processor_started) = (Instant::now(), processor_time());
        graph.bfs(&job, &seeds, 1, Direction::Out)?;
        let elapsed = started.elapsed();
        let processor = processor_time() - processor_started;
        let after = device(path, store, DEPTH * threads)?;
        let pages = job.counters().pages_from_flash;
        let rate = pages as f64 / elapsed.as_secs_f64();
        let device = (before.reads_per_second + after.reads_per_second) / 2.0;
        rates.push(rate);
        shares.push(rate / device);
        println!(
            "a level of {count} vertices, cache of a tenth: {pages} pages in {elapsed:.1?}, {rate:.0}/s, {processor:.1?} of processors; fio {:.0} and {:.0}/s",
            before.reads_per_second, after.reads_per_second
        );
    }
    println!(
        "median: {:.0} pages/s, {:.0} % of fio's random reads",
        median(rates),
        100.0 * median(shares)
    );
    Ok(())
}

fn device(path: &Path, store: &PageStore, depth: usize) -> Result<Fio> {
    let bytes = store.usage().pages() * PAGE_SIZE_BYTES as u64;
    fio(path, bytes, depth, 1).map_err(|source| StorageError::Io {
        action: "running fio".into(),
        source,
    })
}

/// A chain of dependent look-ups: a path whose vertices are numbered at random. In the store, and
/// with each hop a command of its own whose answer comes back to the host (BlueDBM's ISP-F and
/// H-F, section 7.2); fio reads the same file with one read in flight before and after.
fn chase(path: &Path) -> Result<()> {
    const VERTICES: i64 = 1 << 20;
    const HOPS: usize = 10_000;
    let mut rng = SmallRng::seed_from_u64(SEED);
    let mut chain: Vec<i64> = (0..VERTICES).collect();
    chain.shuffle(&mut rng);
    let (store, graph) = build(path, &chain[..chain.len() - 1], &chain[1..], 2)?;
    let host = HostChase::new(&store, &chain)?;
    // What the store has cached is not for the host's commands either.
    store.cache().set_capacity_bytes(0);

    let names = ["in the store", "in the store, a page", "through the host"];
    let mut ratios = [Vec::new(), Vec::new(), Vec::new()];
    let mut times = ratios.clone();
    for round in 0..CHASE_ROUNDS {
        let from = round * (HOPS + 1);
        let seed = Int64Array::from(vec![chain[from]]);
        let before = device(path, &store, 1)?.latency_us;
        let job = Job::new(1).bypass_cache();
        let started = Instant::now();
        let found = graph.bfs(&job, &seed, HOPS as u32, Direction::Out)?;
        let in_store = started.elapsed().as_secs_f64() * 1e6;
        assert_eq!(found.len(), HOPS + 1);
        let between = device(path, &store, 1)?.latency_us;
        let started = Instant::now();
        let end = host.run(chain[from], HOPS)?;
        let through_host = started.elapsed().as_secs_f64() * 1e6 / HOPS as f64;
        assert_eq!(end, chain[from + HOPS]);
        let after = device(path, &store, 1)?.latency_us;
        let pages = job.counters().pages_from_flash;
        let hop = in_store / HOPS as f64;
        println!(
            "pointer chase: {hop:.1} µs a hop, {pages} pages for {HOPS} hops; through the host {through_host:.1} µs; fio {before:.1}, {between:.1}, {after:.1} µs"
        );
        let first = (before + between) / 2.0;
        let second = (between + after) / 2.0;
        for (place, (time, device)) in [
            (hop, first),
            (in_store / pages as f64, first),
            (through_host, second),
        ]
        .into_iter()
        .enumerate()
        {
            times[place].push(time);
            ratios[place].push(time / device);
        }
    }
    for ((name, times), ratios) in names.into_iter().zip(times).zip(ratios) {
        println!(
            "{name}: median {:.1} µs, {:.2} x fio's latency",
            median(times),
            median(ratios)
        );
    }
    std::fs::remove_file(path).ok();
    Ok(())
}

/// The chain as a table whose row `v` holds the vertex behind `v`.
struct HostChase {
    node: Arc<StorageNode>,
    table: Arc<TableSnapshot>,
}

impl HostChase {
    fn new(store: &Arc<PageStore>, chain: &[i64]) -> Result<Self> {
        let mut next = vec![0; chain.len()];
        for pair in chain.windows(2) {
            next[pair[0] as usize] = pair[1];
        }
        let mut writer = store.writer()?;
        let mut segments = Vec::new();
        let mut schema = None;
        for (number, next) in (0..).zip(next.chunks(SEGMENT_ROWS)) {
            let next: ArrayRef = Arc::new(Int64Array::from(next.to_vec()));
            let batch = RecordBatch::try_from_iter([("next", next)])?;
            segments.push(write_segment(&mut writer, number, &batch));
            schema = Some(batch.schema());
        }
        writer.finish()?.keep();
        store.sync()?;
        Ok(Self {
            node: StorageNode::new(Arc::clone(store)),
            table: snapshot_of(schema.expect("a chain has vertices"), segments),
        })
    }

    /// The vertex so many hops behind another.
    fn run(&self, mut vertex: i64, hops: usize) -> Result<i64> {
        let fields = self.table.scan_schema.fields().iter();
        let columns: Vec<InputColumn> = (0..)
            .zip(fields)
            .map(|(ordinal, field)| InputColumn {
                ordinal,
                name: field.name().clone(),
                data_type: field.data_type().clone(),
                nullable: field.is_nullable(),
            })
            .collect();
        for _ in 0..hops {
            let (segment, row) = (
                vertex as usize / SEGMENT_ROWS,
                vertex as usize % SEGMENT_ROWS,
            );
            let id = row_id(self.table.segments[segment].id, row as u32);
            let program = Program {
                columns: columns.clone(),
                filter: vec![Expr::InList {
                    expr: Box::new(Expr::Column(1)),
                    list: vec![Scalar::Int(i128::from(id))],
                    negated: false,
                }],
                output: Output::Rows {
                    exprs: vec![Expr::Column(0)],
                    order: vec![],
                    limit: None,
                },
            };
            let program = verify(program, &self.table.scan_schema, &Limits::default());
            let program = program.expect("a valid program");
            let access = AccessPath::choose(&program, &self.table, NearSearch::Exact).map(Arc::new);
            let command = Command {
                program: Arc::new(program),
                table: Arc::clone(&self.table),
                work: SegmentQueue::with_access(self.table.segments.clone(), access),
                runtime_filters: Arc::new(RuntimeFilters::default()),
                batch_rows: 8192,
                metrics: Arc::new(ScanMetrics::default()),
                capability: self.node.owner_capability(&self.table),
            };
            let batches: Vec<RecordBatch> = self.node.submit(command)?.collect::<Result<_>>()?;
            vertex = batches[0].column(0).as_primitive::<Int64Type>().value(0);
        }
        Ok(vertex)
    }
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
    let slices: Vec<_> = slices.iter().flat_map(PartData::slices).collect();
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
