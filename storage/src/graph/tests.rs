//! Searches on random graphs against naive ones, on memory flash that answers out of order.

mod device;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, UInt64Array};
use arrow::datatypes::{DataType, Int64Type};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flash::{FaultFlash, FaultOptions, Flash, Geometry, MemoryFlash, When};
use crate::index::PartData;
use crate::index::adjacency::AdjacencyBuilder;
use crate::index::paged::PagedArray;
use crate::page::ChunkIdentity;

/// An edge as a row has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Edge {
    pub row: u64,
    pub source: Option<i64>,
    pub target: Option<i64>,
    pub weight: f64,
}

/// Runs a test with seeds that differ from run to run; `FLASHMESH_TEST_SEED` replays one.
fn for_seeds(count: u64, test: impl Fn(&mut SmallRng)) {
    if let Ok(seed) = std::env::var("FLASHMESH_TEST_SEED") {
        let seed = seed.parse().expect("FLASHMESH_TEST_SEED is a number");
        return test(&mut SmallRng::seed_from_u64(seed));
    }
    for _ in 0..count {
        let seed = rand::random();
        println!("FLASHMESH_TEST_SEED={seed}");
        test(&mut SmallRng::seed_from_u64(seed));
    }
}

fn memory() -> Arc<dyn Flash> {
    let geometry = Geometry {
        pages_per_erase_block: 32,
        erase_blocks: 1024,
    };
    Arc::new(MemoryFlash::new(geometry, rand::random()))
}

fn store(flash: Arc<dyn Flash>) -> Arc<PageStore> {
    PageStore::open(flash, 16 << 20, []).unwrap()
}

fn write(store: &Arc<PageStore>, data: PartData) -> AdjacencyPart {
    let mut writer = store.writer().unwrap();
    let arrays = data.arrays.iter().enumerate().map(|(number, slices)| {
        let identity = ChunkIdentity {
            table: 9,
            segment: 0,
            column_group: number as u16,
            generation: 1,
        };
        let label = Arc::from(format!("index 'i', array {number}"));
        PagedArray::write(&mut writer, identity, &label, slices, 2).unwrap()
    });
    let arrays = arrays.collect();
    writer.finish().unwrap().keep();
    AdjacencyPart::open(&data.meta, arrays).unwrap()
}

fn part(edges: &[Edge]) -> PartData {
    let mut builder = AdjacencyBuilder::new(&DataType::Int64, &DataType::Int64, true, 2).unwrap();
    for edges in edges.chunk_by(|a, b| a.row >> 16 == b.row >> 16) {
        let sources: Int64Array = edges.iter().map(|edge| edge.source).collect();
        let targets: Int64Array = edges.iter().map(|edge| edge.target).collect();
        let weights: Float64Array = edges.iter().map(|edge| Some(edge.weight)).collect();
        let segment = (edges[0].row >> 16) as u32;
        builder
            .add(segment, &sources, &targets, Some(&weights))
            .unwrap();
    }
    builder.finish().unwrap()
}

/// Edges between keys of some kind, in segments that start at row 0, and where parts may end.
fn random_edges(rng: &mut SmallRng) -> Vec<Edge> {
    let vertices = rng.random_range(1..400u64);
    let edges = [0, 1, 30, 600, 3000][rng.random_range(0..5)];
    let keys: Vec<i64> = match rng.random_range(0..4) {
        0 => (0..vertices as i64).map(|key| key - 100).collect(),
        1 => (0..vertices).map(|_| rng.random()).collect(),
        2 => (0..vertices as i64).map(|key| key * 1000).collect(),
        _ => (0..vertices as i64).map(|key| i64::MAX - 3 * key).collect(),
    };
    let skew = rng.random_range(1..4);
    let nulls = rng.random_bool(0.5);
    let weights = rng.random_range(1..20u32);
    let mut rows_of_segment = rng.random_range(1..1000u64);
    let (mut segment, mut row) = (rng.random_range(0..5u64), 0);
    let key = |rng: &mut SmallRng| {
        if nulls && rng.random_bool(0.05) {
            return None;
        }
        let place: f64 = rng.random::<f64>().powi(skew);
        Some(keys[(place * keys.len() as f64) as usize])
    };
    (0..edges)
        .map(|_| {
            if row == rows_of_segment {
                (segment, row) = (segment + rng.random_range(1..3), 0);
                rows_of_segment = rng.random_range(1..1000);
            }
            row += 1;
            Edge {
                row: segment << 16 | (row - 1),
                source: key(rng),
                target: key(rng),
                weight: f64::from(rng.random_range(0..weights)) / 4.0,
            }
        })
        .collect()
}

/// The graph of edges, in some parts, each of whole segments.
fn graph(rng: &mut SmallRng, store: &Arc<PageStore>, edges: &[Edge]) -> Graph {
    let segments: Vec<&[Edge]> = edges.chunk_by(|a, b| a.row >> 16 == b.row >> 16).collect();
    let parts = rng.random_range(1..4usize);
    let per_part = segments.len().div_ceil(parts).max(1);
    let parts: Vec<_> = segments
        .chunks(per_part)
        .map(|segments| write(store, part(&segments.concat())))
        .collect();
    Graph::open(store, parts).unwrap()
}

/// What the edge table says, naively.
struct Naive {
    /// For each vertex: neighbour, row, weight.
    out: BTreeMap<i64, Vec<(i64, u64, f64)>>,
}

impl Naive {
    fn new(edges: &[Edge], direction: Direction) -> Self {
        let mut out: BTreeMap<i64, Vec<_>> = BTreeMap::new();
        for edge in edges {
            let (Some(source), Some(target)) = (edge.source, edge.target) else {
                continue;
            };
            out.entry(source).or_default();
            out.entry(target).or_default();
            if direction != Direction::In {
                out.get_mut(&source)
                    .unwrap()
                    .push((target, edge.row, edge.weight));
            }
            if direction != Direction::Out {
                out.get_mut(&target)
                    .unwrap()
                    .push((source, edge.row, edge.weight));
            }
        }
        Self { out }
    }

    fn depths(&self, seeds: &[i64], max_depth: u32) -> BTreeMap<i64, u32> {
        let mut depths: BTreeMap<i64, u32> = seeds.iter().map(|seed| (*seed, 0)).collect();
        let mut frontier = seeds.to_vec();
        for depth in 1..=max_depth {
            let mut next = Vec::new();
            for vertex in frontier {
                for (other, ..) in &self.out[&vertex] {
                    depths.entry(*other).or_insert_with(|| {
                        next.push(*other);
                        depth
                    });
                }
            }
            frontier = next;
        }
        depths
    }

    /// Bellman and Ford.
    fn costs(&self, from: i64) -> BTreeMap<i64, f64> {
        let mut costs = BTreeMap::from([(from, 0.0)]);
        loop {
            let mut has_changed = false;
            for (vertex, edges) in &self.out {
                let Some(cost) = costs.get(vertex).copied() else {
                    continue;
                };
                for (other, _, weight) in edges {
                    let known = costs.entry(*other).or_insert(f64::INFINITY);
                    if cost + weight < *known {
                        *known = cost + weight;
                        has_changed = true;
                    }
                }
            }
            if !has_changed {
                return costs;
            }
        }
    }

    fn some_keys(&self, rng: &mut SmallRng, count: usize) -> Vec<i64> {
        let all: Vec<i64> = self.out.keys().copied().collect();
        (0..count)
            .map(|_| all[rng.random_range(0..all.len())])
            .collect()
    }
}

fn ints(array: &dyn Array) -> Vec<i64> {
    array.as_primitive::<Int64Type>().values().to_vec()
}

fn random_direction(rng: &mut SmallRng) -> Direction {
    [Direction::Out, Direction::In, Direction::Both][rng.random_range(0..3)]
}

#[test]
fn a_search_reaches_what_can_be_reached_by_a_tree_of_edges() {
    for_seeds(40, |rng| {
        let edges = random_edges(rng);
        let graph = graph(rng, &store(memory()), &edges);
        check_search(rng, &graph, &edges);
    });
}

/// A breadth-first search from some vertices.
pub(crate) fn check_search(rng: &mut SmallRng, graph: &Graph, edges: &[Edge]) {
    let direction = random_direction(rng);
    let naive = Naive::new(edges, direction);
    if naive.out.is_empty() {
        return;
    }
    let count = rng.random_range(1..4);
    let seeds = naive.some_keys(rng, count);
    let max_depth = if rng.random() {
        u32::MAX
    } else {
        rng.random_range(0..4)
    };
    let job = device::some_job(rng);
    let found = graph
        .bfs(&job, &Int64Array::from(seeds.clone()), max_depth, direction)
        .unwrap();
    let (vertices, depths, parents) = found.rows(&job, 0..found.len()).unwrap();
    let expected = naive.depths(&seeds, max_depth.min(1000));
    let vertices = ints(&vertices);
    let by_vertex: BTreeMap<i64, u32> = vertices
        .iter()
        .copied()
        .zip(depths.values().iter().copied())
        .collect();
    assert_eq!(vertices.len(), by_vertex.len(), "each vertex comes once");
    assert_eq!(by_vertex, expected);
    assert!(depths.values().is_sorted());
    assert_eq!(found.level_sizes().iter().sum::<usize>(), found.len());
    // Graph500's rules: tree edges are edges, and lead from one depth to the next.
    for (place, vertex) in vertices.iter().enumerate() {
        assert_eq!(parents.is_null(place), by_vertex[vertex] == 0);
        if parents.is_valid(place) {
            let parent = parents.as_primitive::<Int64Type>().value(place);
            assert_eq!(by_vertex[&parent] + 1, by_vertex[vertex]);
            assert!(naive.out[&parent].iter().any(|edge| edge.0 == *vertex));
        }
    }
    // Rows come in any pieces.
    let middle = rng.random_range(0..=found.len());
    let (head, ..) = found.rows(&job, 0..middle).unwrap();
    let (tail, tail_depths, _) = found.rows(&job, middle..found.len()).unwrap();
    assert_eq!([ints(&head), ints(&tail)].concat(), vertices);
    assert_eq!(tail_depths.values(), &depths.values()[middle..]);
}

#[test]
fn large_frontiers_go_bottom_up_and_reach_the_same() {
    for_seeds(3, |rng| {
        // Two blocks of vertices and more, one hub, lists that go over pages.
        let vertices = 40_000i64;
        let row = |edge: u64| ((edge / 50_000) << 16) | (edge % 50_000);
        let hub = rng.random_range(0..vertices);
        let edges: Vec<Edge> = (0..250_000)
            .map(|edge| Edge {
                row: row(edge),
                source: Some(if edge % 8 == 0 {
                    hub
                } else {
                    rng.random_range(0..vertices)
                }),
                target: Some(if edge % 8 == 1 {
                    hub
                } else {
                    rng.random_range(0..vertices)
                }),
                weight: 1.0,
            })
            .collect();
        let store = store(memory());
        let graph = graph(rng, &store, &edges);
        let direction = random_direction(rng);
        let naive = Naive::new(&edges, direction);
        let job = Job::new(2);
        let seeds = Int64Array::from(vec![hub]);
        let found = graph.bfs(&job, &seeds, u32::MAX, direction).unwrap();
        let (keys, depths, parents) = found.rows(&job, 0..found.len()).unwrap();
        let by_vertex: BTreeMap<i64, u32> = ints(&keys)
            .into_iter()
            .zip(depths.values().iter().copied())
            .collect();
        assert_eq!(by_vertex, naive.depths(&[hub], 1000));
        for place in 1..found.len() {
            let (vertex, parent) = (
                ints(&keys)[place],
                parents.as_primitive::<Int64Type>().value(place),
            );
            assert!(naive.out[&parent].iter().any(|edge| edge.0 == vertex));
            if place > 200 {
                break;
            }
        }
        assert!(job.counters().pages_from_flash + job.counters().pages_from_cache > 0);
    });
}

#[test]
fn neighbourhoods_are_those_of_each_seed() {
    for_seeds(30, |rng| {
        let edges = random_edges(rng);
        let graph = graph(rng, &store(memory()), &edges);
        check_neighbourhoods(rng, &graph, &edges);
    });
}

/// The neighbourhoods of some vertices.
pub(crate) fn check_neighbourhoods(rng: &mut SmallRng, graph: &Graph, edges: &[Edge]) {
    let direction = random_direction(rng);
    let naive = Naive::new(edges, direction);
    if naive.out.is_empty() {
        return;
    }
    let by_row: BTreeMap<u64, (i64, i64)> = edges
        .iter()
        .filter_map(|edge| Some((edge.row, (edge.source?, edge.target?))))
        .collect();
    let count = rng.random_range(1..30);
    let seeds = naive.some_keys(rng, count);
    let hops = rng.random_range(0..4);
    let mut next = 0;
    let job = device::some_job(rng);
    graph
        .expand(
            &job,
            &Int64Array::from(seeds.clone()),
            hops,
            direction,
            |found| {
                assert_eq!(found.seed, next);
                next += 1;
                let mut expected = naive.depths(&[seeds[found.seed]], hops);
                let all = expected.clone();
                expected.remove(&seeds[found.seed]);
                let vertices = ints(&found.vertices);
                let depths = found.depths.values();
                let by_vertex: BTreeMap<i64, u32> = vertices
                    .iter()
                    .copied()
                    .zip(depths.iter().copied())
                    .collect();
                assert_eq!(vertices.len(), by_vertex.len());
                assert_eq!(by_vertex, expected);
                for ((vertex, depth), row) in
                    by_vertex_order(&vertices, depths).zip(found.rows.values())
                {
                    let (source, target) = by_row[row];
                    let leads =
                        |from: i64, to: i64| to == vertex && all.get(&from) == Some(&(depth - 1));
                    assert!(
                        direction != Direction::In && leads(source, target)
                            || direction != Direction::Out && leads(target, source)
                    );
                }
                Ok(())
            },
        )
        .unwrap();
    assert_eq!(next, seeds.len());
}

fn by_vertex_order<'a>(
    vertices: &'a [i64],
    depths: &'a [u32],
) -> impl Iterator<Item = (i64, u32)> + 'a {
    vertices.iter().copied().zip(depths.iter().copied())
}

#[test]
fn paths_are_paths_and_none_is_shorter() {
    for_seeds(60, |rng| {
        let edges = random_edges(rng);
        let graph = graph(rng, &store(memory()), &edges);
        check_paths(rng, &graph, &edges);
    });
}

/// Paths between two vertices, by edges and by weight.
pub(crate) fn check_paths(rng: &mut SmallRng, graph: &Graph, edges: &[Edge]) {
    let direction = random_direction(rng);
    let naive = Naive::new(edges, direction);
    if naive.out.is_empty() {
        return;
    }
    let ends = naive.some_keys(rng, 2);
    let by_row: BTreeMap<u64, &Edge> = edges.iter().map(|edge| (edge.row, edge)).collect();
    let job = Job::new(rng.random_range(1..3));
    for weighted in [false, true] {
        let expected = if weighted {
            naive.costs(ends[0]).get(&ends[1]).copied()
        } else {
            let depths = naive.depths(&ends[..1], 1000);
            depths.get(&ends[1]).map(|depth| f64::from(*depth))
        };
        let end = |place: usize| Int64Array::from(vec![ends[place]]);
        let found = graph
            .shortest_path(&job, &end(0), &end(1), direction, weighted)
            .unwrap();
        let Some((vertices, steps)) = found else {
            assert_eq!(expected, None);
            continue;
        };
        let vertices = ints(&vertices);
        assert_eq!(vertices.len(), steps.len());
        assert_eq!(
            (vertices[0], vertices[vertices.len() - 1]),
            (ends[0], ends[1])
        );
        assert_eq!(expected, Some(steps[steps.len() - 1].cost));
        assert_eq!((steps[0].row, steps[0].cost), (None, 0.0));
        for (place, step) in steps.iter().enumerate().skip(1) {
            let edge = by_row[&step.row.unwrap()];
            let here = (Some(vertices[place - 1]), Some(vertices[place]));
            assert!(
                direction != Direction::In && here == (edge.source, edge.target)
                    || direction != Direction::Out && here == (edge.target, edge.source)
            );
            let weight = if weighted { edge.weight } else { 1.0 };
            assert_eq!(step.cost, steps[place - 1].cost + weight);
            assert_eq!(step.step as usize, place);
        }
    }
}

#[test]
fn components_and_ranks_are_those_of_naive_loops() {
    for_seeds(30, |rng| {
        let edges = random_edges(rng);
        let graph = graph(rng, &store(memory()), &edges);
        check_whole(rng, &graph, &edges);
    });
}

/// What looks at every edge.
pub(crate) fn check_whole(rng: &mut SmallRng, graph: &Graph, edges: &[Edge]) {
    let job = Job::new(rng.random_range(1..4));
    let both = Naive::new(edges, Direction::Both);
    let found = graph.connected_components(&job).unwrap();
    let (vertices, components) = found.rows(&job, 0..found.len()).unwrap();
    assert_eq!(
        ints(&vertices),
        both.out.keys().copied().collect::<Vec<_>>()
    );
    for (vertex, component) in ints(&vertices).into_iter().zip(ints(&components)) {
        assert_eq!(
            both.depths(&[vertex], 1000).into_keys().min(),
            Some(component)
        );
    }

    let out = Naive::new(edges, Direction::Out);
    let options = PageRankOptions {
        damping: 0.85,
        max_iterations: rng.random_range(0..30),
        tolerance: 0.0,
    };
    let count = out.out.len() as f64;
    let mut expected: BTreeMap<i64, f64> = out.out.keys().map(|key| (*key, 1.0 / count)).collect();
    for _ in 0..options.max_iterations {
        let dangling: f64 = out
            .out
            .iter()
            .filter(|(_, edges)| edges.is_empty())
            .map(|(key, _)| expected[key])
            .sum();
        let base = (0.15 + 0.85 * dangling) / count;
        let mut next: BTreeMap<i64, f64> = out.out.keys().map(|key| (*key, base)).collect();
        for (key, edges) in &out.out {
            for (other, ..) in edges {
                *next.get_mut(other).unwrap() += 0.85 * expected[key] / edges.len() as f64;
            }
        }
        expected = next;
    }
    let found = graph.page_rank(&job, options).unwrap();
    let (vertices, ranks) = found.rows(&job, 0..found.len()).unwrap();
    assert_eq!(
        ints(&vertices),
        expected.keys().copied().collect::<Vec<_>>()
    );
    for (rank, expected) in ranks.values().iter().zip(expected.values()) {
        assert!((rank - expected).abs() < 1e-12, "{rank} {expected}");
    }
    if !found.is_empty() {
        assert!((ranks.values().iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
}

#[test]
fn large_unsigned_keys_and_unknown_vertices() {
    let keys = [u64::MAX, 3, u64::MAX - 1, 1 << 63, 0];
    let mut builder =
        AdjacencyBuilder::new(&DataType::UInt64, &DataType::UInt64, false, 1).unwrap();
    let sources = UInt64Array::from(keys[..4].to_vec());
    let targets = UInt64Array::from(keys[1..].to_vec());
    builder.add(3, &sources, &targets, None).unwrap();
    let store = store(memory());
    let graph = Graph::open(&store, vec![write(&store, builder.finish().unwrap())]).unwrap();
    let job = Job::new(1);
    let seeds: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
    let found = graph.bfs(&job, &seeds, u32::MAX, Direction::Out).unwrap();
    let (vertices, depths, _) = found.rows(&job, 0..5).unwrap();
    assert_eq!(
        &vertices,
        &(Arc::new(UInt64Array::from(keys.to_vec())) as ArrayRef)
    );
    assert_eq!(depths.values(), &[0, 1, 2, 3, 4]);

    let unknown: ArrayRef = Arc::new(UInt64Array::from(vec![7]));
    let error = graph.bfs(&job, &unknown, 1, Direction::Out).unwrap_err();
    assert_eq!(error.to_string(), "vertex '7' does not exist");
    let negative: ArrayRef = Arc::new(Int64Array::from(vec![-1]));
    for wrong in [negative, Arc::new(Float64Array::from(vec![1.0]))] {
        let error = graph.bfs(&job, &wrong, 1, Direction::Out).unwrap_err();
        assert!(matches!(error, StorageError::Invalid(_)), "{error}");
    }
    let error = graph
        .shortest_path(&job, &seeds, &seeds, Direction::Out, true)
        .unwrap_err();
    assert!(error.to_string().contains("no weights"), "{error}");
}

#[test]
fn weights_that_are_no_distances_are_refused() {
    for bad in [-0.5, f64::NAN] {
        let edge = |row, source, target, weight| Edge {
            row,
            source: Some(source),
            target: Some(target),
            weight,
        };
        let edges = [edge(5 << 16, 1, 2, 1.0), edge(5 << 16 | 1, 2, 3, bad)];
        let store = store(memory());
        let graph = Graph::open(&store, vec![write(&store, part(&edges))]).unwrap();
        let end = |key| Int64Array::from(vec![key]);
        let error = graph
            .shortest_path(&Job::new(1), &end(1), &end(2), Direction::Out, true)
            .unwrap_err();
        assert!(error.to_string().contains("segment 5, row 1"), "{error}");
    }
}

#[test]
fn neighbour_lists_are_those_of_the_edge_table() {
    for_seeds(40, |rng| {
        let edges = random_edges(rng);
        let graph = graph(rng, &store(memory()), &edges);
        check_lists(rng, &graph, &edges);
    });
}

/// The lists of some vertices.
pub(crate) fn check_lists(rng: &mut SmallRng, graph: &Graph, edges: &[Edge]) {
    let direction = random_direction(rng);
    let naive = Naive::new(edges, direction);
    if naive.out.is_empty() {
        return;
    }
    let job = Job::new(rng.random_range(1..4));
    let count = rng.random_range(1..600);
    let mut keys = naive.some_keys(rng, count);
    keys.sort_unstable();
    keys.dedup();
    let numbers = graph
        .numbers_of(&job, &Int64Array::from(keys.clone()))
        .unwrap();
    assert_eq!(ints(&graph.keys_of(&job, &numbers).unwrap()), keys);

    let columns = EdgeColumns {
        rows: true,
        weights: true,
    };
    let mut found = Vec::new();
    let take = |part: Neighbours| {
        let (from, to): (Vec<u32>, Vec<u32>) = part.ends().unzip();
        let [from, to] = [from, to].map(|ends| ints(&graph.keys_of(&job, &ends).unwrap()));
        let (rows, weights) = (part.rows.unwrap(), part.weights.unwrap());
        let quarters = weights.values().iter().map(|weight| (weight * 4.0) as i64);
        let edges = from.into_iter().zip(to).zip(rows.values().iter().copied());
        found.extend(edges.zip(quarters));
        Ok(())
    };
    graph
        .neighbours(&job, &numbers, direction, columns, take)
        .unwrap();
    let mut expected = Vec::new();
    for key in &keys {
        for (to, row, weight) in &naive.out[key] {
            expected.push((((*key, *to), *row), (weight * 4.0) as i64));
        }
    }
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);

    let ask = |numbers: &[u32]| {
        let columns = EdgeColumns::default();
        graph.neighbours(&job, numbers, direction, columns, |_| Ok(()))
    };
    assert!(matches!(ask(&[u32::MAX]), Err(StorageError::Invalid(_))));
    assert!(matches!(
        ask(&[numbers[0], numbers[0]]),
        Err(StorageError::Invalid(_))
    ));
}

fn ring(vertices: i64) -> Vec<Edge> {
    (0..vertices)
        .map(|vertex| Edge {
            row: ((vertex as u64 / 60_000) << 16) | (vertex as u64 % 60_000),
            source: Some(vertex),
            target: Some((vertex * 7 + 1) % vertices),
            weight: 1.0,
        })
        .collect()
}

#[test]
fn a_cancelled_job_ends() {
    let store = store(memory());
    let graph = Graph::open(&store, vec![write(&store, part(&ring(1000)))]).unwrap();
    let job = Job::new(2);
    job.cancel_flag().store(true, Ordering::Relaxed);
    let seeds = Int64Array::from(vec![0]);
    let errors = [
        graph.bfs(&job, &seeds, 9, Direction::Out).map(drop),
        graph.expand(&job, &seeds, 9, Direction::Out, |_| Ok(())),
        graph.connected_components(&job).map(drop),
        graph.page_rank(&job, PageRankOptions::default()).map(drop),
        graph
            .shortest_path(
                &job,
                &seeds,
                &Int64Array::from(vec![9]),
                Direction::Out,
                true,
            )
            .map(drop),
    ];
    for error in errors {
        assert!(matches!(error, Err(StorageError::Cancelled)), "{error:?}");
    }
}

#[test]
fn a_fault_of_the_flash_is_an_error_of_the_search() {
    let faults = Arc::new(FaultFlash::new(memory(), FaultOptions::default()));
    let store = store(faults.clone());
    let graph = Graph::open(&store, vec![write(&store, part(&ring(200_000)))]).unwrap();
    for options in [
        FaultOptions {
            fail: When::OneIn(1),
            ..FaultOptions::default()
        },
        FaultOptions {
            bit_flip: When::OneIn(1),
            ..FaultOptions::default()
        },
    ] {
        store.cache().clear();
        let job = Job::new(2);
        assert!(graph.connected_components(&job).is_ok());
        store.cache().clear();
        faults.set_options(options);
        let error = graph.connected_components(&job).unwrap_err();
        assert!(
            matches!(
                error,
                StorageError::Io { .. } | StorageError::Corrupt { .. }
            ),
            "{error}"
        );
        let seeds = Int64Array::from(vec![0]);
        assert!(graph.bfs(&job, &seeds, 9, Direction::Out).is_err());
        faults.set_options(FaultOptions::default());
    }
}

#[test]
fn arrays_with_other_values_give_errors() {
    // Well-formed pages with values that are no graph: each array in turn is replaced.
    for_seeds(60, |rng| {
        let mut data = part(&ring(3000));
        let number = rng.random_range(1..data.arrays.len());
        let flip = rng.random_range(0..3);
        let slices = std::mem::take(&mut data.arrays[number]);
        data.arrays[number] = slices
            .iter()
            .map(|slice| {
                let values = arrow::compute::cast(slice, &DataType::Int64).unwrap();
                let mut values = ints(&values);
                for value in &mut values {
                    match flip {
                        0 => *value = rng.random(),
                        1 => *value = i64::from(rng.random::<u32>()),
                        _ if rng.random_bool(0.01) => *value = rng.random_range(0..6000),
                        _ => {}
                    }
                }
                Arc::new(Int64Array::from(values)) as ArrayRef
            })
            .collect();
        let store = store(memory());
        let graph = Graph::open(&store, vec![write(&store, data)]).unwrap();
        let job = Job::new(2);
        let seeds = Int64Array::from(vec![0, 7]);
        let first = Int64Array::from(vec![0]);
        let mut failures = BTreeSet::new();
        for direction in [Direction::Out, Direction::In, Direction::Both] {
            let path = |weighted| {
                let last = Int64Array::from(vec![9]);
                graph
                    .shortest_path(&job, &first, &last, direction, weighted)
                    .map(drop)
            };
            let results = [
                graph.bfs(&job, &seeds, 90, direction).map(drop),
                graph.expand(&job, &seeds, 9, direction, |_| Ok(())),
                graph.connected_components(&job).map(drop),
                graph.page_rank(&job, PageRankOptions::default()).map(drop),
                path(false),
                path(true),
            ];
            failures.extend(
                results
                    .into_iter()
                    .filter_map(|result| result.err().map(|error| error.to_string())),
            );
        }
        for failure in &failures {
            let is_known = failure.starts_with("corrupt") || failure.contains("does not exist");
            assert!(is_known, "{failure}");
        }
        if number != 4 && number != 8 && flip == 0 {
            assert!(!failures.is_empty(), "array {number}");
        }
    });
}
