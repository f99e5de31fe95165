//! Shortest paths.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::atomic::{self, AtomicU32};

use arrow::array::{Array, ArrayRef};

use super::bits::Bits;
use super::session::{EdgeAt, Session, Worker};
use super::{Direction, Graph, Job};
use crate::index::adjacency::NO_VERTEX;
use crate::{Result, StorageError};

/// A place on a path.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathStep {
    /// Place of the vertex on the path, by number among the keys that come with it.
    pub step: u32,
    /// The row of the edge table (segment << 16 | row) that leads here from the step before;
    /// `None` at the first step.
    pub row: Option<u64>,
    /// Weight from the start up to here; edges without weights.
    pub cost: f64,
}

/// One end's half of a search from both ends.
struct Half {
    visited: Bits,
    /// The next vertex towards this end.
    next: Vec<AtomicU32>,
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

impl Graph {
    /// A shortest path from the one key of `from` to the one key of `to`: the keys of its vertices
    /// and what leads to each, or `None` when there is no path. Of several shortest paths it is any
    /// one; a path from a vertex to itself has that vertex alone.
    ///
    /// By number of edges, the search goes from both ends, a level at a time from where fewer edges
    /// are to be followed; it takes 16 bytes a vertex. With `weighted` it is Dijkstra's algorithm
    /// over the index's weights, on the caller's thread; it takes 20 bytes a vertex and 16 for
    /// each vertex that waits.
    ///
    /// # Errors
    /// As [`Graph::bfs`]; with `weighted`, `Invalid` when the index has no weights or one of them
    /// is negative, NaN or NULL.
    pub fn shortest_path(
        &self,
        job: &Job,
        from: &dyn Array,
        to: &dyn Array,
        direction: Direction,
        weighted: bool,
    ) -> Result<Option<(ArrayRef, Vec<PathStep>)>> {
        if weighted {
            self.check_weights()?;
        }
        let session = Session::new(self, job);
        let mut workers = session.workers()?;
        let mut end = |keys: &dyn Array| match session.numbers(&mut workers[0], keys)?[..] {
            [number] => Ok(number),
            _ => Err(StorageError::Invalid(format!(
                "a path goes from one vertex to one; {} keys were given",
                keys.len()
            ))),
        };
        let (from, to) = (end(from)?, end(to)?);
        let path = if weighted {
            session.lightest(&mut workers[0], from, to, direction)?
        } else {
            session.fewest_edges(&mut workers, from, to, direction)?
        };
        let Some((vertices, edges, costs)) = path else {
            return Ok(None);
        };
        let rows = session.rows(&mut workers[0], &edges)?;
        let rows = std::iter::once(None).chain(rows.into_iter().map(Some));
        let steps = (0..)
            .zip(rows.zip(costs))
            .map(|(step, (row, cost))| PathStep { step, row, cost })
            .collect();
        Ok(Some((self.keys(&mut workers[0].reader, &vertices)?, steps)))
    }

    /// Whether paths by weight can be searched for.
    ///
    /// # Errors
    /// `Invalid` when the index has no weights or one of them is negative, NaN or NULL.
    pub fn check_weights(&self) -> Result<()> {
        if !self.has_weights() {
            return Err(StorageError::Invalid(
                "the adjacency index has no weights; create it with a weight column".into(),
            ));
        }
        for part in &self.parts {
            let has_row = |packed| part.has_row(packed);
            if let Some(row) = part.adjacency.bad_weight(has_row)? {
                return Err(StorageError::Invalid(format!(
                    "the edge in segment {}, row {} has a weight that is negative, NaN or NULL: there is no shortest path by weight",
                    row >> 16,
                    row & 0xffff
                )));
            }
        }
        Ok(())
    }
}

/// Vertices, the edges between them, and the cost up to each vertex.
type Path = (Vec<u32>, Vec<EdgeAt>, Vec<f64>);

impl<'a> Session<'a> {
    fn fewest_edges(
        &self,
        workers: &mut [Worker<'a>],
        from: u32,
        to: u32,
        direction: Direction,
    ) -> Result<Option<Path>> {
        if from == to {
            return Ok(Some((vec![from], Vec::new(), vec![0.0])));
        }
        let half = |end: u32, direction| {
            let visited = Bits::new(self.graph.vertices);
            visited.insert(end);
            Half {
                visited,
                next: (0..self.graph.vertices)
                    .map(|_| AtomicU32::new(NO_VERTEX))
                    .collect(),
                frontier: vec![end],
                direction,
            }
        };
        let mut halves = [half(from, direction), half(to, direction.reversed())];
        let meeting = loop {
            let mut edges = [0; 2];
            for (edges, half) in edges.iter_mut().zip(&halves) {
                *edges = self.degrees(workers, &half.frontier, half.direction)?;
            }
            let (left, right) = halves.split_at_mut(1);
            let (grows, waits) = if edges[0] <= edges[1] {
                (&mut left[0], &right[0])
            } else {
                (&mut right[0], &left[0])
            };
            let Half { visited, next, .. } = &*grows;
            let mut reached = self.follow(workers, &grows.frontier, grows.direction, |hop| {
                visited.insert(hop.to).then(|| {
                    next[hop.to as usize].store(hop.from, atomic::Ordering::Relaxed);
                    hop.to
                })
            })?;
            // All that meet in a level are on paths of the same length.
            if let Some(meeting) = reached.iter().find(|vertex| waits.visited.has(**vertex)) {
                break *meeting;
            }
            if reached.is_empty() {
                return Ok(None);
            }
            reached.sort_unstable();
            grows.frontier = reached;
        };
        let towards = |half: &Half| {
            let next = |vertex: &u32| {
                let next = half.next[*vertex as usize].load(atomic::Ordering::Relaxed);
                (next != NO_VERTEX).then_some(next)
            };
            std::iter::successors(next(&meeting), next).collect::<Vec<u32>>()
        };
        let mut vertices = towards(&halves[0]);
        vertices.reverse();
        vertices.push(meeting);
        vertices.extend(towards(&halves[1]));
        let edges = vertices
            .windows(2)
            .map(|ends| self.edge(&mut workers[0], ends[0], ends[1], direction))
            .collect::<Result<Vec<_>>>()?;
        let costs = (0..vertices.len()).map(|step| step as f64).collect();
        Ok(Some((vertices, edges, costs)))
    }

    /// An edge between two vertices that have one: lists ascend.
    fn edge(
        &self,
        worker: &mut Worker<'a>,
        from: u32,
        to: u32,
        direction: Direction,
    ) -> Result<EdgeAt> {
        for (number, part) in self.graph.parts.iter().enumerate() {
            let Some(target) = part.to_part(to) else {
                continue;
            };
            for &against in direction.sides() {
                self.ranges(worker, number, against, &[from])?;
                let Worker { reader, ranges, .. } = &mut *worker;
                let neighbours = &part.adjacency.lists(against).neighbours;
                // The first range that does not end before the target, or the last one: no other
                // can have it.
                let (mut low, mut high) = (0, ranges.len().saturating_sub(1));
                while low < high {
                    let middle = low.midpoint(high);
                    match neighbours.get(reader, ranges[middle].end - 1)? < target.into() {
                        true => low = middle + 1,
                        false => high = middle,
                    }
                }
                let Some(range) = ranges.get(low) else {
                    continue;
                };
                let found = neighbours.search(reader, range.clone(), target.into())?;
                if let Ok(position) = found {
                    return Ok(EdgeAt::new(number, against, position));
                }
            }
        }
        Err(StorageError::corrupt(
            "adjacency index: its two directions have different edges",
        ))
    }

    /// Dijkstra's algorithm.
    fn lightest(
        &self,
        worker: &mut Worker<'a>,
        from: u32,
        to: u32,
        direction: Direction,
    ) -> Result<Option<Path>> {
        let count = self.graph.vertices as usize;
        let mut costs = vec![f64::INFINITY; count];
        let mut before = vec![(NO_VERTEX, EdgeAt::default()); count];
        let mut waiting = BinaryHeap::from([Reverse(Waiting(0.0, from))]);
        costs[from as usize] = 0.0;
        let mut weights = Vec::new();
        while let Some(Reverse(Waiting(cost, vertex))) = waiting.pop() {
            if vertex == to {
                break;
            }
            if cost > costs[vertex as usize] {
                continue;
            }
            self.check()?;
            for part in 0..self.graph.parts.len() {
                for &against in direction.sides() {
                    // The weights go along with the neighbours.
                    self.ranges(worker, part, against, &[vertex])?;
                    let adjacency = &self.graph.parts[part].adjacency;
                    let Some(all) = &adjacency.lists(against).weights else {
                        continue;
                    };
                    weights.clear();
                    all.read_ranges(&mut worker.reader, &worker.ranges, &mut weights)?;
                    let mut weights = weights.iter().map(|bits| f64::from_bits(*bits));
                    self.neighbours(worker, part, against, &[vertex], |_, position, others| {
                        for ((position, other), weight) in
                            (position..).zip(others).zip(&mut weights)
                        {
                            let other = self.graph.parts[part].to_graph(*other)?;
                            if weight.is_nan() || weight.is_sign_negative() {
                                return Err(StorageError::corrupt(format!(
                                    "adjacency index: an edge has weight {weight}"
                                )));
                            }
                            let cost = cost + weight;
                            if cost < costs[other as usize] {
                                costs[other as usize] = cost;
                                let edge = EdgeAt::new(part, against, position);
                                before[other as usize] = (vertex, edge);
                                waiting.push(Reverse(Waiting(cost, other)));
                            }
                        }
                        Ok(())
                    })?;
                }
            }
        }
        if costs[to as usize] == f64::INFINITY {
            return Ok(None);
        }
        let mut vertices = vec![to];
        let mut edges = Vec::new();
        let mut at = to;
        while at != from {
            let (vertex, edge) = before[at as usize];
            vertices.push(vertex);
            edges.push(edge);
            at = vertex;
        }
        vertices.reverse();
        edges.reverse();
        let costs = vertices.iter().map(|v| costs[*v as usize]).collect();
        Ok(Some((vertices, edges, costs)))
    }
}
