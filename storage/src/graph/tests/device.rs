//! Searches whose steps go to a device, a naive one; `tests/xrt` has the kernel behind XRT.

use std::sync::atomic::AtomicU64;

use super::*;
use crate::accelerator::offload::{OffloadCall, Operation};
use crate::kernel::{Argument, ScalarArgument};

/// What a device gives that is wrong.
#[derive(Debug, Clone, Copy)]
enum Lie {
    /// Another list than the one the vertex is in.
    List,
    /// A list that there is not.
    NoList,
    /// A vertex twice.
    Twice,
    /// A vertex that the list does not have.
    Vertex,
    /// More vertices than there is room for.
    Length,
}

/// Computes each call when it starts, as the comment of the kernel says it.
#[derive(Debug, Default)]
struct Naive {
    /// The number of the call that does not start, from 1, and those after it; 0: none.
    refuses_from: u64,
    /// The same of calls that start and fail.
    fails_from: u64,
    lies: Option<Lie>,
    /// Set by the first call.
    cancels: Option<Arc<AtomicBool>>,
    calls: AtomicU64,
}

#[derive(Debug)]
struct Computed(Option<Vec<Vec<u8>>>);

impl OffloadCall for Computed {
    fn bytes_to_device(&self) -> u64 {
        7
    }

    fn bytes_from_device(&self) -> u64 {
        5
    }

    fn finish(self: Box<Self>, outputs: &mut [&mut [u8]]) -> Result<()> {
        let computed = self.0.ok_or_else(told_to_fail)?;
        assert_eq!(outputs.len(), computed.len());
        for (output, computed) in outputs.iter_mut().zip(&computed) {
            output.copy_from_slice(computed);
        }
        Ok(())
    }
}

fn told_to_fail() -> StorageError {
    StorageError::Kernel {
        kernel: Operation::GraphStep.name().into(),
        reason: "it was told to fail".into(),
    }
}

impl Offload for Naive {
    fn supports(&self, operation: Operation) -> bool {
        operation == Operation::GraphStep
    }

    fn start(
        &self,
        operation: Operation,
        arguments: &mut [Argument<'_>],
    ) -> Result<Box<dyn OffloadCall>> {
        assert_eq!(operation, Operation::GraphStep);
        let number = 1 + self.calls.fetch_add(1, Ordering::Relaxed);
        let is_from = |from| from > 0 && number >= from;
        if let Some(flag) = &self.cancels {
            flag.store(true, Ordering::Relaxed);
        }
        if is_from(self.refuses_from) {
            return Err(told_to_fail());
        }
        let computed = (!is_from(self.fails_from)).then(|| self.step(arguments));
        Ok(Box::new(Computed(computed)))
    }
}

impl Naive {
    fn step(&self, arguments: &mut [Argument<'_>]) -> Vec<Vec<u8>> {
        let [
            Argument::In(offsets),
            Argument::In(neighbours),
            lists,
            Argument::InOut(visited),
            vertices,
            capacity,
            Argument::Out(next),
            Argument::Out(next_list),
            Argument::Out(next_length),
        ] = arguments
        else {
            panic!("the kernel's arguments")
        };
        let [lists, vertices, capacity] = [&*lists, vertices, capacity].map(|given| match given {
            Argument::Scalar(ScalarArgument::I32(value)) => *value as usize,
            _ => panic!("a scalar"),
        });
        let offsets: Vec<usize> = offsets
            .as_chunks::<8>()
            .0
            .iter()
            .map(|at| u64::from_le_bytes(*at) as usize)
            .collect();
        let neighbours = numbers(neighbours);
        assert_eq!((offsets.len(), offsets[0]), (lists + 1, 0));
        assert_eq!(offsets[lists], neighbours.len());
        assert_eq!(visited.len(), vertices.div_ceil(64) * 8);
        assert_eq!((next.len(), next_list.len()), (4 * capacity, 4 * capacity));
        assert_eq!(next_length.len(), 4);
        let mut marked = visited.to_vec();
        let mut found = Vec::new();
        for list in 0..lists {
            for vertex in &neighbours[offsets[list]..offsets[list + 1]] {
                let (byte, bit) = (*vertex as usize / 8, 1u8 << (vertex % 8));
                assert!((*vertex as usize) < vertices);
                if marked[byte] & bit == 0 {
                    marked[byte] |= bit;
                    found.push((*vertex, list as u32));
                }
            }
        }
        assert!(found.len() <= capacity);
        let mut length = found.len() as u32;
        if let (Some(lie), Some(last)) = (self.lies, found.last().copied()) {
            let place = found.len() - 1;
            match lie {
                Lie::List => found[place].1 = if last.1 == 0 { 1 } else { 0 },
                Lie::NoList => found[place].1 = u32::MAX,
                Lie::Twice => {
                    found.push(last);
                    found.truncate(capacity);
                    length = capacity as u32 + 1;
                }
                Lie::Vertex => found[place].0 = vertices as u32,
                Lie::Length => length = u32::MAX,
            }
        }
        found.resize(capacity, (0xa5a5_a5a5, 0xa5a5_a5a5));
        let bytes = |values: Vec<u32>| -> Vec<u8> {
            values.into_iter().flat_map(u32::to_le_bytes).collect()
        };
        vec![
            marked,
            bytes(found.iter().map(|(vertex, _)| *vertex).collect()),
            bytes(found.iter().map(|(_, list)| *list).collect()),
            bytes(vec![length]),
        ]
    }
}

fn numbers(bytes: &[u8]) -> Vec<u32> {
    let (numbers, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    numbers.iter().map(|n| u32::from_le_bytes(*n)).collect()
}

fn job(threads: usize, device: Naive, fallback: Fallback) -> (Job, Arc<Naive>, Arc<ScanMetrics>) {
    let (device, metrics) = (Arc::new(device), Arc::<ScanMetrics>::default());
    let offload = Arc::<Naive>::clone(&device);
    let job = Job::new(threads).offloaded_to(offload, fallback, Arc::clone(&metrics));
    (job, device, metrics)
}

/// A job without a device, or with one that may fail.
pub fn some_job(rng: &mut SmallRng) -> Job {
    let threads = rng.random_range(1..4);
    let device = match rng.random_range(0..5) {
        0 | 1 => return Job::new(threads),
        2 => Naive::default(),
        3 => Naive {
            refuses_from: rng.random_range(1..5),
            ..Naive::default()
        },
        _ => Naive {
            fails_from: rng.random_range(1..5),
            ..Naive::default()
        },
    };
    job(threads, device, Fallback::Allow).0
}

/// A graph that has at least as many edges as two chunks, in all directions.
fn large(rng: &mut SmallRng) -> (Graph, super::Naive, i64) {
    let vertices = 30_000i64;
    let edges: Vec<Edge> = (0..600_000u64)
        .map(|edge| Edge {
            row: ((edge / 60_000) << 16) | (edge % 60_000),
            // A hub whose list is longer than a page.
            source: Some(rng.random_range(0..vertices) * i64::from(edge % 8 != 0)),
            target: Some(rng.random_range(0..vertices)),
            weight: 1.0,
        })
        .collect();
    let graph = graph(rng, &store(memory()), &edges);
    (graph, super::Naive::new(&edges, Direction::Out), 0)
}

/// Depths of what is reached; parents are held against the edges.
fn depths(graph: &Graph, job: &Job, naive: &super::Naive, seed: i64) -> Result<BTreeMap<i64, u32>> {
    let seeds = Int64Array::from(vec![seed]);
    let found = graph.bfs(job, &seeds, u32::MAX, Direction::Out)?;
    let (keys, depths, parents) = found.rows(job, 0..found.len())?;
    let keys = ints(&keys);
    let depths: BTreeMap<i64, u32> = keys.iter().copied().zip(depths.values().to_vec()).collect();
    assert_eq!(depths.len(), keys.len());
    let parents = parents.as_primitive::<Int64Type>();
    for (place, key) in keys.iter().enumerate().skip(1).step_by(29) {
        let parent = parents.value(place);
        assert_eq!(depths[&parent] + 1, depths[key]);
        assert!(naive.out[&parent].iter().any(|edge| edge.0 == *key));
    }
    Ok(depths)
}

#[test]
fn every_step_goes_to_the_device_in_chunks() {
    for_seeds(2, |rng| {
        let (graph, naive, hub) = large(rng);
        for threads in [1, 3] {
            let (job, device, metrics) = job(threads, Naive::default(), Fallback::Error);
            let found = depths(&graph, &job, &naive, hub).unwrap();
            assert!(found == naive.depths(&[hub], 1000));
            let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let calls = load(&device.calls);
            // One for each level, the last that finds nothing among them; for the level with most of
            // the edges two, unless two threads have half a chunk of them each.
            let levels = 1 + u64::from(found.values().max().copied().unwrap());
            let chunks = levels + u64::from(threads == 1);
            assert!(calls >= chunks, "{calls} calls, {levels} levels");
            assert_eq!(load(&metrics.device_calls), calls);
            assert_eq!(load(&metrics.bytes_to_device), 7 * calls);
            assert_eq!(load(&metrics.bytes_from_device), 5 * calls);
            assert_eq!(load(&metrics.device_fallbacks), 0);
        }
    });
}

#[test]
fn what_the_device_fails_at_the_cpu_computes_or_the_search_fails() {
    for_seeds(1, |rng| {
        let (graph, naive, hub) = large(rng);
        let expected = naive.depths(&[hub], 1000);
        // A call for each of three levels, at least.
        for from in 1..=3 {
            for refuses in [false, true] {
                let failing = || Naive {
                    refuses_from: if refuses { from } else { 0 },
                    fails_from: if refuses { 0 } else { from },
                    ..Naive::default()
                };
                let (allowed, device, metrics) = job(2, failing(), Fallback::Allow);
                assert!(depths(&graph, &allowed, &naive, hub).unwrap() == expected);
                let fallbacks = metrics.device_fallbacks.load(Ordering::Relaxed);
                assert!((1..10).contains(&fallbacks), "{fallbacks} fallbacks");
                // It is not asked again.
                assert_eq!(device.calls.load(Ordering::Relaxed), from);
                let (forbidden, _, metrics) = job(2, failing(), Fallback::Error);
                let error = depths(&graph, &forbidden, &naive, hub)
                    .map(drop)
                    .unwrap_err();
                assert!(error.to_string().contains("told to fail"), "{error}");
                assert_eq!(metrics.device_fallbacks.load(Ordering::Relaxed), 0);
            }
        }
    });
}

#[test]
fn a_device_is_not_believed() {
    for_seeds(5, |rng| {
        // Every vertex has its list, and no list has the last vertex found of another.
        let edges: Vec<Edge> = (0..40)
            .map(|number| Edge {
                row: number,
                source: Some(number as i64 / 4),
                target: Some(number as i64 + 1),
                weight: 1.0,
            })
            .collect();
        let graph = graph(rng, &store(memory()), &edges);
        let naive = super::Naive::new(&edges, Direction::Out);
        for lie in [Lie::List, Lie::NoList, Lie::Twice, Lie::Vertex, Lie::Length] {
            let lying = Naive {
                lies: Some(lie),
                ..Naive::default()
            };
            let (job, _, metrics) = job(2, lying, Fallback::Allow);
            let found = depths(&graph, &job, &naive, 0).unwrap();
            assert_eq!(found, naive.depths(&[0], 1000), "{lie:?}");
            let fallbacks = metrics.device_fallbacks.load(Ordering::Relaxed);
            assert!(fallbacks > 0, "{lie:?}");
        }
    });
}

#[test]
fn a_search_is_cancelled_between_two_calls() {
    for_seeds(1, |rng| {
        let (graph, naive, hub) = large(rng);
        let flag = Arc::new(AtomicBool::new(false));
        let cancelling = Naive {
            cancels: Some(Arc::clone(&flag)),
            ..Naive::default()
        };
        let (job, device, _) = job(2, cancelling, Fallback::Allow);
        let failure = depths(&graph, &job.cancelled_by(flag), &naive, hub);
        assert!(matches!(failure, Err(StorageError::Cancelled)));
        assert_eq!(device.calls.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_graph_that_a_device_has_no_room_for_is_searched_by_the_cpu() {
    for_seeds(1, |rng| {
        let (graph, naive, hub) = large(rng);
        let expected = naive.depths(&[hub], 1000);
        for (fallback, room) in [
            (Fallback::Allow, graph.vertices - 1),
            (Fallback::Error, graph.vertices - 1),
            (Fallback::Error, graph.vertices),
        ] {
            let (mut job, device, metrics) = job(2, Naive::default(), fallback);
            job.max_device_vertices = room;
            let found = depths(&graph, &job, &naive, hub);
            let calls = device.calls.load(Ordering::Relaxed);
            let fallbacks = metrics.device_fallbacks.load(Ordering::Relaxed);
            match (fallback, room < graph.vertices) {
                (Fallback::Error, true) => {
                    let error = found.map(drop).unwrap_err().to_string();
                    assert!(error.contains("vertex numbers"), "{error}");
                    assert_eq!((calls, fallbacks), (0, 0));
                }
                (_, is_small) => {
                    assert!(found.unwrap() == expected);
                    assert_eq!((calls == 0, fallbacks > 0), (is_small, is_small));
                }
            }
        }
    });
}
