//! Searches above the store, for `SET flashmesh.pushdown = 'never'`: the frontier and what was
//! visited are here, and each hop is a command of its own whose answer, the neighbour lists,
//! comes back whole before the next one goes down (the host's traversal that BlueDBM section 7.2
//! compares the in-store one with). The answers are those of the in-store searches.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, UInt32Array, UInt64Array, new_null_array};
use arrow::compute::interleave;
use datafusion::common::{Result, internal_err};
use flashmesh_storage::graph::{Direction, EdgeColumns, Graph, Job, Neighbours, PathStep};
use flashmesh_storage::node::array_bytes;

use crate::error::from_storage;
use crate::relations::exec::Run;

/// No vertex: no graph has so many.
const NO_VERTEX: u32 = u32::MAX;
/// Takes an edge: both ends, its row, its weight.
type TakeEdge<'a> = &'a mut dyn FnMut(u32, u32, u64, f64);

/// A search at work.
pub(super) struct Traversal<'a> {
    pub graph: &'a Graph,
    pub job: &'a Job,
    pub run: &'a Run,
    pub direction: Direction,
}

/// What was found of one seed, by vertex number.
#[derive(Debug, Default)]
pub(super) struct Neighbourhood {
    pub depths: Vec<u32>,
    vertices: Vec<u32>,
    pub rows: Vec<u64>,
}

/// The vertices that a search reached, level by level, each level ascending.
#[derive(Debug)]
pub(super) struct Reached {
    vertices: Vec<u32>,
    depths: Vec<u32>,
    /// By vertex number.
    parents: Vec<u32>,
}

/// One end's half of a search from both ends.
struct Half {
    /// By vertex number: the next vertex towards this end and the row of the edge there.
    next: Vec<(u32, u64)>,
    visited: Vec<bool>,
    frontier: Vec<u32>,
    direction: Direction,
}

/// A vertex that waits, ordered by cost: costs are never NaN.
#[derive(Debug, PartialEq)]
struct Waiting(f64, u32);

impl Eq for Waiting {}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Traversal<'_> {
    /// The numbers of vertices, a command.
    pub fn numbers_of(&self, keys: &dyn Array) -> Result<Vec<u32>> {
        self.run.count_command();
        let numbers = self.graph.numbers_of(self.job, keys);
        let numbers = numbers.map_err(from_storage)?;
        self.run
            .count_bytes_to_host(size_of_val(&numbers[..]) as u64);
        Ok(numbers)
    }

    /// The keys of vertices, a command.
    pub fn keys_of(&self, numbers: &[u32]) -> Result<ArrayRef> {
        self.run.count_command();
        let keys = self.graph.keys_of(self.job, numbers);
        let keys = keys.map_err(from_storage)?;
        self.run.count_bytes_to_host(array_bytes(&*keys));
        Ok(keys)
    }

    /// The edges from the ascending `vertices`, a command. Rows and weights mean something only if
    /// they were asked for.
    fn neighbours(
        &self,
        vertices: &[u32],
        direction: Direction,
        columns: EdgeColumns,
        take_edge: TakeEdge<'_>,
    ) -> Result<()> {
        self.run.check()?;
        self.run.count_command();
        let take = |found: Neighbours| {
            let bytes = found.columns().map(array_bytes).sum();
            self.run.count_bytes_to_host(bytes);
            for (place, (from, to)) in found.ends().enumerate() {
                let row = found.rows.as_ref().map_or(0, |rows| rows.value(place));
                let weight = found.weights.as_ref().map_or(1.0, |all| all.value(place));
                take_edge(from, to, row, weight);
            }
            Ok(())
        };
        self.graph
            .neighbours(self.job, vertices, direction, columns, take)
            .map_err(from_storage)
    }

    /// Breadth-first search.
    pub fn bfs(&self, seeds: &dyn Array, max_depth: u32) -> Result<Reached> {
        let mut frontier = self.numbers_of(seeds)?;
        frontier.sort_unstable();
        frontier.dedup();
        let count = self.graph.vertex_numbers() as usize;
        let (mut visited, mut parents) = (vec![false; count], vec![NO_VERTEX; count]);
        frontier.iter().for_each(|v| visited[*v as usize] = true);
        let (mut vertices, mut depths) = (frontier.clone(), vec![0; frontier.len()]);
        for depth in 1..=max_depth {
            let mut reached = Vec::new();
            let columns = EdgeColumns::default();
            self.neighbours(&frontier, self.direction, columns, &mut |from, to, _, _| {
                if !std::mem::replace(&mut visited[to as usize], true) {
                    parents[to as usize] = from;
                    reached.push(to);
                }
            })?;
            if reached.is_empty() {
                break;
            }
            reached.sort_unstable();
            vertices.extend(&reached);
            depths.resize(vertices.len(), depth);
            frontier = reached;
        }
        Ok(Reached {
            vertices,
            depths,
            parents,
        })
    }

    /// Some of the rows of a search: keys of vertices, depths, keys of parents (NULL for seeds).
    pub fn rows_of(
        &self,
        found: &Reached,
        rows: Range<usize>,
    ) -> Result<(ArrayRef, UInt32Array, ArrayRef)> {
        let vertices = &found.vertices[rows.clone()];
        let parents = vertices.iter().map(|v| found.parents[*v as usize]);
        let known: Vec<u32> = parents.clone().filter(|p| *p != NO_VERTEX).collect();
        let keys = self.keys_of(&known)?;
        let none = new_null_array(keys.data_type(), 1);
        let mut next = 0..known.len();
        let places: Vec<(usize, usize)> = parents
            .map(|parent| match parent {
                NO_VERTEX => (1, 0),
                _ => (0, next.next().unwrap_or_default()),
            })
            .collect();
        let parents = interleave(&[&*keys, &*none], &places)?;
        let depths = UInt32Array::from(found.depths[rows].to_vec());
        Ok((self.keys_of(vertices)?, depths, parents))
    }

    /// The neighbourhood of each seed in turn, for `take`, which gets its place.
    pub fn expand(
        &self,
        seeds: &dyn Array,
        hops: u32,
        mut take: impl FnMut(usize, Neighbourhood) -> Result<()>,
    ) -> Result<()> {
        let seeds = self.numbers_of(seeds)?;
        // The place of the last seed that has visited a vertex, counted from 1.
        let mut visited = vec![0; self.graph.vertex_numbers() as usize];
        for (place, seed) in seeds.into_iter().enumerate() {
            let mut found = Neighbourhood::default();
            visited[seed as usize] = place + 1;
            let mut frontier = vec![seed];
            for depth in 1..=hops {
                let first = found.vertices.len();
                let columns = EdgeColumns {
                    rows: true,
                    ..EdgeColumns::default()
                };
                self.neighbours(&frontier, self.direction, columns, &mut |_, to, row, _| {
                    if std::mem::replace(&mut visited[to as usize], place + 1) != place + 1 {
                        found.vertices.push(to);
                        found.rows.push(row);
                    }
                })?;
                found.depths.resize(found.vertices.len(), depth);
                frontier = found.vertices[first..].to_vec();
                frontier.sort_unstable();
                if frontier.is_empty() {
                    break;
                }
            }
            take(place, found)?;
        }
        Ok(())
    }

    /// A shortest path: its keys, and what leads to each.
    pub fn shortest_path(
        &self,
        ends: &dyn Array,
        weighted: bool,
    ) -> Result<Option<(ArrayRef, Vec<PathStep>)>> {
        if weighted {
            self.graph.check_weights().map_err(from_storage)?;
        }
        let ends = self.numbers_of(ends)?;
        let &[from, to] = &ends[..] else {
            return internal_err!("a path between {} vertices", ends.len());
        };
        let path = match weighted {
            true => self.lightest(from, to)?,
            false => self.fewest_edges(from, to)?,
        };
        let Some(path) = path else {
            return Ok(None);
        };
        let vertices: Vec<u32> = path.iter().map(|(vertex, ..)| *vertex).collect();
        let steps = (0..).zip(path).map(|(step, (_, row, cost))| PathStep {
            step,
            row: (step > 0).then_some(row),
            cost,
        });
        Ok(Some((self.keys_of(&vertices)?, steps.collect())))
    }

    /// From both ends, a level at a time from where the frontier is smaller.
    fn fewest_edges(&self, from: u32, to: u32) -> Result<Option<Path>> {
        let count = self.graph.vertex_numbers() as usize;
        let half = |end: u32, direction| {
            let mut visited = vec![false; count];
            visited[end as usize] = true;
            Half {
                next: vec![(NO_VERTEX, 0); count],
                visited,
                frontier: vec![end],
                direction,
            }
        };
        let backwards = match self.direction {
            Direction::Out => Direction::In,
            Direction::In => Direction::Out,
            Direction::Both => Direction::Both,
        };
        let (mut start, mut end) = (half(from, self.direction), half(to, backwards));
        let mut meeting = (from == to).then_some(from);
        while meeting.is_none() {
            let (grows, waits) = match start.frontier.len() <= end.frontier.len() {
                true => (&mut start, &end),
                false => (&mut end, &start),
            };
            let mut reached = Vec::new();
            let columns = EdgeColumns {
                rows: true,
                ..EdgeColumns::default()
            };
            let Half {
                next,
                visited,
                frontier,
                direction,
            } = grows;
            self.neighbours(frontier, *direction, columns, &mut |from, to, row, _| {
                if !std::mem::replace(&mut visited[to as usize], true) {
                    next[to as usize] = (from, row);
                    reached.push(to);
                }
            })?;
            // All that meet in a level are on paths of the same length.
            meeting = reached.iter().copied().find(|v| waits.visited[*v as usize]);
            if reached.is_empty() {
                return Ok(None);
            }
            reached.sort_unstable();
            *frontier = reached;
        }
        let Some(meeting) = meeting else {
            return Ok(None);
        };
        // Vertices from the start to where the halves meet, each with the edge that leads to it.
        let mut path = Vec::new();
        let mut at = meeting;
        loop {
            let (before, row) = start.next[at as usize];
            path.push((at, row));
            if before == NO_VERTEX {
                break;
            }
            at = before;
        }
        path.reverse();
        at = meeting;
        while let (after, row) = end.next[at as usize]
            && after != NO_VERTEX
        {
            path.push((after, row));
            at = after;
        }
        let path = path.into_iter().enumerate();
        let path = path.map(|(step, (vertex, row))| (vertex, row, step as f64));
        Ok(Some(path.collect()))
    }

    /// Dijkstra's algorithm: a command for each vertex that is settled.
    fn lightest(&self, from: u32, to: u32) -> Result<Option<Path>> {
        let count = self.graph.vertex_numbers() as usize;
        let mut costs = vec![f64::INFINITY; count];
        let mut before = vec![(NO_VERTEX, 0); count];
        let mut waiting = BinaryHeap::from([Reverse(Waiting(0.0, from))]);
        costs[from as usize] = 0.0;
        let columns = EdgeColumns {
            rows: true,
            weights: true,
        };
        while let Some(Reverse(Waiting(cost, vertex))) = waiting.pop() {
            if vertex == to {
                break;
            }
            if cost > costs[vertex as usize] {
                continue;
            }
            self.neighbours(
                &[vertex],
                self.direction,
                columns,
                &mut |_, to, row, weight| {
                    let cost = cost + weight;
                    if cost < costs[to as usize] {
                        costs[to as usize] = cost;
                        before[to as usize] = (vertex, row);
                        waiting.push(Reverse(Waiting(cost, to)));
                    }
                },
            )?;
        }
        if costs[to as usize] == f64::INFINITY {
            return Ok(None);
        }
        let mut path = Vec::new();
        let mut at = to;
        while at != NO_VERTEX {
            let (vertex, row) = before[at as usize];
            path.push((at, row, costs[at as usize]));
            at = vertex;
        }
        path.reverse();
        Ok(Some(path))
    }
}

/// Vertices, the row of the edge that leads to each (of the first, none), and the cost up to it.
type Path = Vec<(u32, u64, f64)>;

impl Reached {
    /// Vertices, the seeds among them.
    pub fn len(&self) -> usize {
        self.vertices.len()
    }
}

impl Neighbourhood {
    /// Vertices.
    pub fn len(&self) -> usize {
        self.vertices.len()
    }

    /// Their keys, depths and edges.
    pub fn columns(self, traversal: &Traversal<'_>) -> Result<[ArrayRef; 3]> {
        Ok([
            Arc::new(UInt32Array::from(self.depths)),
            traversal.keys_of(&self.vertices)?,
            Arc::new(UInt64Array::from(self.rows)),
        ])
    }
}
