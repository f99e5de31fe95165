//! Searches in graphs whose steps go to the device, against the same searches on the CPU.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, AsArray, Int64Array};
use arrow::datatypes::{DataType, Int64Type};
use flashmesh_storage::accelerator::offload::{Fallback, Offload, OffloadCall, Operation};
use flashmesh_storage::accelerator::xrt::{XrtAccelerator, XrtDevice};
use flashmesh_storage::accelerator::{Accelerator, ScanMetrics};
use flashmesh_storage::flash::{Geometry, MemoryFlash};
use flashmesh_storage::graph::{Direction, Graph, Job};
use flashmesh_storage::index::PartData;
use flashmesh_storage::index::adjacency::{AdjacencyBuilder, AdjacencyPart};
use flashmesh_storage::index::paged::PagedArray;
use flashmesh_storage::kernel::Argument;
use flashmesh_storage::page::ChunkIdentity;
use flashmesh_storage::store::PageStore;
use flashmesh_storage::{Result, StorageError};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::accelerator::device;
use crate::rig::Rig;

/// Runs a test with seeds that differ from run to run; `FLASHMESH_TEST_SEED` replays one.
fn for_seeds(count: u64, test: impl Fn(&mut StdRng)) {
    let replayed = std::env::var("FLASHMESH_TEST_SEED").ok();
    let replayed = replayed.map(|seed| seed.parse().expect("a number"));
    for _ in 0..if replayed.is_some() { 1 } else { count } {
        let seed = replayed.unwrap_or_else(rand::random);
        println!("FLASHMESH_TEST_SEED={seed}");
        test(&mut StdRng::seed_from_u64(seed));
    }
}

/// A graph in parts of one segment of so many edges each, and its edges by row.
fn graph(
    random: &mut StdRng,
    vertices: i64,
    parts: u32,
    edges: usize,
) -> (Graph, BTreeMap<u64, (i64, i64)>) {
    let geometry = Geometry {
        pages_per_erase_block: 32,
        erase_blocks: 1024,
    };
    let flash = Arc::new(MemoryFlash::new(geometry, random.random()));
    let store = PageStore::open(flash, 64 << 20, []).unwrap();
    let stride = [1, 1000][random.random_range(0..2)];
    let mut by_row = BTreeMap::new();
    let mut made = Vec::new();
    for segment in 0..parts {
        let mut builder =
            AdjacencyBuilder::new(&DataType::Int64, &DataType::Int64, false, 1).unwrap();
        let mut keys = |skew| -> Int64Array {
            let key = || (random.random::<f64>().powi(skew) * vertices as f64) as i64 * stride;
            std::iter::repeat_with(key).take(edges).collect()
        };
        let (sources, targets) = (keys(3), keys(1));
        for (row, (source, target)) in sources.values().iter().zip(targets.values()).enumerate() {
            by_row.insert(u64::from(segment) << 16 | row as u64, (*source, *target));
        }
        builder.add(segment, &sources, &targets, None).unwrap();
        let data = builder.finish().unwrap();
        let mut writer = store.writer().unwrap();
        let arrays = (0..).zip(&data.arrays).map(|(column_group, slices)| {
            let identity = ChunkIdentity {
                table: 1,
                segment,
                column_group,
                generation: 1,
            };
            let slices: Vec<_> = slices.iter().flat_map(PartData::slices).collect();
            let label = Arc::from(format!("array {column_group}"));
            PagedArray::write(&mut writer, identity, &label, &slices, 1).unwrap()
        });
        let arrays = arrays.collect();
        writer.finish().unwrap().keep();
        made.push(AdjacencyPart::open(&data.meta, arrays).unwrap());
    }
    (Graph::open(&store, made).unwrap(), by_row)
}

fn ints(array: &dyn Array) -> Vec<i64> {
    array.as_primitive::<Int64Type>().values().to_vec()
}

/// A search's vertices with their depths and parents.
fn searched(
    graph: &Graph,
    job: &Job,
    seed: i64,
    direction: Direction,
) -> Result<BTreeMap<i64, (u32, Option<i64>)>> {
    let found = graph.bfs(job, &Int64Array::from(vec![seed]), u32::MAX, direction)?;
    let (keys, depths, parents) = found.rows(job, 0..found.len())?;
    let parents = parents.as_primitive::<Int64Type>().iter();
    let rows = depths.values().iter().copied().zip(parents);
    Ok(ints(&keys).into_iter().zip(rows).collect())
}

fn offload_of(device: &Arc<XrtDevice>) -> Arc<dyn Offload> {
    let accelerator = XrtAccelerator::new(Arc::clone(device)).unwrap();
    accelerator.offload().expect("an accelerator with a device")
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn depths(found: &BTreeMap<i64, (u32, Option<i64>)>) -> Vec<(i64, u32)> {
    let depths = found.iter();
    depths.map(|(key, (depth, _))| (*key, *depth)).collect()
}

#[test]
fn searches_on_the_device_reach_what_the_cpu_reaches() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    for_seeds(8, |random| {
        let vertices = random.random_range(1..5000);
        let (parts, edges) = (random.random_range(1..3), random.random_range(1..10_000));
        let (graph, by_row) = graph(random, vertices, parts, edges);
        let seed = by_row.values().next().copied().unwrap().0;
        let directions = [Direction::Out, Direction::In, Direction::Both];
        let direction = directions[random.random_range(0..3)];
        let follows = |from: i64, to: i64, edge: &(i64, i64)| {
            direction != Direction::In && *edge == (from, to)
                || direction != Direction::Out && *edge == (to, from)
        };
        let edges: BTreeSet<(i64, i64)> = by_row.values().copied().collect();
        let metrics = Arc::<ScanMetrics>::default();
        let threads = random.random_range(1..3);
        let job = || {
            let metrics = Arc::clone(&metrics);
            Job::new(threads).offloaded_to(offload_of(&device), Fallback::Error, metrics)
        };
        let found = searched(&graph, &job(), seed, direction).unwrap();
        let expected = searched(&graph, &Job::new(2), seed, direction).unwrap();
        assert!(depths(&found) == depths(&expected));
        for (vertex, (depth, parent)) in &found {
            assert_eq!(parent.is_none(), *depth == 0);
            let Some(parent) = *parent else { continue };
            assert_eq!(found[&parent].0 + 1, *depth);
            let ways = [(parent, *vertex), (*vertex, parent)];
            let leads = |way: &(i64, i64)| edges.contains(way) && follows(parent, *vertex, way);
            assert!(ways.iter().any(leads));
        }
        let calls = load(&metrics.device_calls);
        let levels = found.values().map(|(depth, _)| *depth).max().unwrap_or(0);
        assert!(calls >= u64::from(levels));
        // The bitmap alone goes both ways.
        assert!(calls == 0 || load(&metrics.bytes_to_device) > 8 * calls);
        assert!(calls == 0 || load(&metrics.bytes_from_device) > 8 * calls);

        let seeds = Int64Array::from(vec![seed, *found.keys().last().unwrap(), seed]);
        let neighbourhoods = |job: &Job| {
            let mut all = Vec::new();
            let taken = graph.expand(job, &seeds, 2, direction, |found| {
                let depths = found.depths.values().iter().copied();
                let vertices = ints(&found.vertices).into_iter();
                let by_vertex: BTreeMap<i64, u32> = vertices.clone().zip(depths).collect();
                for (vertex, row) in vertices.zip(found.rows.values()) {
                    let from = |from: &i64| follows(*from, vertex, &by_row[row]);
                    let is_nearer = |from: &i64| match by_vertex.get(from) {
                        Some(depth) => depth + 1 == by_vertex[&vertex],
                        None => by_vertex[&vertex] == 1,
                    };
                    let (a, b) = by_row[row];
                    assert!([a, b].iter().any(|end| from(end) && is_nearer(end)));
                }
                all.push((found.seed, by_vertex));
                Ok(())
            });
            taken.map(|()| all)
        };
        let expected = neighbourhoods(&Job::new(2)).unwrap();
        assert!(neighbourhoods(&job()).unwrap() == expected);
        assert!(calls == 0 || load(&metrics.device_calls) > calls);
        assert_eq!(load(&metrics.device_fallbacks), 0);
    });
}

#[test]
fn frontiers_of_many_edges_go_in_chunks() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    for_seeds(1, |random| {
        let (graph, by_row) = graph(random, 20_000, 4, 60_000);
        let hub = by_row.values().next().copied().unwrap().0;
        // Nearly all lists at once, both ways: 480,000 neighbours, and a chunk has 262,144.
        let seeds: BTreeSet<i64> = by_row.values().map(|(source, _)| *source).collect();
        let seeds = Int64Array::from(seeds.into_iter().collect::<Vec<_>>());
        let metrics = Arc::<ScanMetrics>::default();
        let job = Job::new(1);
        let job = job.offloaded_to(offload_of(&device), Fallback::Error, Arc::clone(&metrics));
        let found = graph.bfs(&job, &seeds, u32::MAX, Direction::Both).unwrap();
        let expected = graph
            .bfs(&Job::new(2), &seeds, u32::MAX, Direction::Both)
            .unwrap();
        assert_eq!(found.level_sizes(), expected.level_sizes());
        let levels = found.level_sizes().len() as u64;
        let calls = load(&metrics.device_calls);
        assert!(calls > levels, "{calls} calls, {levels} levels");
        let one = searched(&graph, &job, hub, Direction::Both).unwrap();
        let expected = searched(&graph, &Job::new(2), hub, Direction::Both).unwrap();
        assert!(depths(&one) == depths(&expected));
    });
}

/// A device whose process is killed when a call of a certain number, from 1, has started.
#[derive(Debug)]
struct KilledAt {
    offload: Arc<dyn Offload>,
    device: Arc<XrtDevice>,
    number: u64,
    calls: AtomicU64,
}

impl Offload for KilledAt {
    fn supports(&self, operation: Operation) -> bool {
        self.offload.supports(operation)
    }

    fn start(
        &self,
        operation: Operation,
        arguments: &mut [Argument<'_>],
    ) -> Result<Box<dyn OffloadCall>> {
        if self.calls.fetch_add(1, Ordering::Relaxed) + 1 == self.number {
            let process = self.device.process() as libc::pid_t;
            // SAFETY: a signal to a process that this test has started.
            assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
        }
        self.offload.start(operation, arguments)
    }
}

#[test]
fn a_device_that_dies_in_a_search_is_replaced_by_the_cpu_or_fails_it() {
    let Some(rig) = Rig::get() else { return };
    let Some(device) = device(rig) else { return };
    for_seeds(1, |random| {
        let (graph, by_row) = graph(random, 3000, 2, 4500);
        let seed = by_row.values().next().copied().unwrap().0;
        let expected = searched(&graph, &Job::new(2), seed, Direction::Both).unwrap();
        for fallback in [Fallback::Allow, Fallback::Error] {
            let offload = Arc::new(KilledAt {
                offload: offload_of(&device),
                device: Arc::clone(&device),
                number: 2,
                calls: AtomicU64::new(0),
            });
            let metrics = Arc::<ScanMetrics>::default();
            let job = Job::new(2).offloaded_to(offload, fallback, Arc::clone(&metrics));
            let found = searched(&graph, &job, seed, Direction::Both);
            let fallbacks = load(&metrics.device_fallbacks);
            match fallback {
                Fallback::Allow => {
                    assert!(depths(&found.unwrap()) == depths(&expected));
                    assert!(fallbacks > 0);
                }
                Fallback::Error => {
                    let error = found.map(drop).unwrap_err();
                    assert!(matches!(error, StorageError::Kernel { .. }), "{error}");
                    assert!(error.to_string().contains("graph_step"), "{error}");
                    assert_eq!(fallbacks, 0);
                }
            }
            device.reopen().unwrap();
        }
    });
}
