//! Breadth-first search.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{Array, ArrayRef, UInt32Array, new_null_array};
use arrow::compute::interleave;

use super::bits::Bits;
use super::session::{BLOCK_VERTICES, Session, Worker};
use super::{Direction, Graph, Job};
use crate::Result;
use crate::index::adjacency::NO_VERTEX;

/// A level goes bottom-up when more edges go from its frontier than this share of those that were
/// not followed yet … (Beamer, Asanović, Patterson: "Direction-optimizing breadth-first search",
/// 2012)
const EDGES_LEFT_PER_EDGE: u64 = 14;
/// … and than this share of the vertices, which is what a pass over all vertices costs at least.
const VERTICES_PER_EDGE: u64 = 32;
/// A frontier of more than this share of all vertices goes bottom-up unasked.
const VERTICES_PER_FRONTIER: usize = 16;
/// A frontier of more than this share of all vertices is sorted through a bitmap.
pub(super) const VERTICES_PER_SORTED: usize = 256;

/// What a breadth-first search has reached: 4 bytes for each vertex of the graph and 4 for each
/// that was reached.
#[derive(Debug)]
pub struct Bfs<'a> {
    graph: &'a Graph,
    /// Vertices level by level, each level ascending.
    order: Vec<u32>,
    /// Where each level starts in `order`, and the end.
    levels: Vec<usize>,
    parents: Vec<u32>,
}

impl Graph {
    /// Breadth-first search from `seeds` (keys; one that comes twice counts once) over at most
    /// `max_depth` edges.
    ///
    /// Levels with few edges go top-down (the lists of the frontier), others bottom-up (each vertex
    /// that was not reached looks for a parent among those it can be reached from); those that a
    /// device takes go top-down. Memory: 8 bytes
    /// a vertex and 3 bits, besides what [`crate::graph`] says. Which of several possible parents
    /// a vertex gets may differ from run to run.
    ///
    /// # Errors
    /// `NotFound` for a seed that no edge has at either end, `Invalid` for one of another type,
    /// `Cancelled`, those of reading pages.
    pub fn bfs(
        &self,
        job: &Job,
        seeds: &dyn Array,
        max_depth: u32,
        direction: Direction,
    ) -> Result<Bfs<'_>> {
        let session = Session::new(self, job);
        let mut workers = session.workers()?;
        let mut order = session.numbers(&mut workers[0], seeds)?;
        order.sort_unstable();
        order.dedup();

        let visited = Bits::new(self.vertices);
        let mut frontier_bits = Bits::new(self.vertices);
        let parents: Vec<AtomicU32> = (0..self.vertices)
            .map(|_| AtomicU32::new(NO_VERTEX))
            .collect();
        order.iter().for_each(|seed| _ = visited.insert(*seed));
        let mut levels = vec![0, order.len()];
        let mut edges_left = self.edges * direction.sides().len() as u64;
        for _ in 0..max_depth {
            let frontier = &order[levels[levels.len() - 2]..];
            if frontier.is_empty() {
                break;
            }
            let device = session.device()?;
            // No level goes bottom-up on a device: it would have to be given the lists of all that
            // was not visited.
            let bottom_up = device.is_none() && {
                let is_large = frontier.len() > self.vertices as usize / VERTICES_PER_FRONTIER;
                let edges = if is_large {
                    (edges_left / VERTICES_PER_FRONTIER as u64).max(1)
                } else {
                    session.degrees(&mut workers, frontier, direction)?
                };
                let is_worth_it = edges > edges_left / EDGES_LEFT_PER_EDGE
                    && edges > u64::from(self.vertices) / VERTICES_PER_EDGE;
                edges_left = edges_left.saturating_sub(edges);
                is_large || is_worth_it
            };
            let mut reached = if bottom_up {
                frontier_bits.clear();
                frontier.iter().for_each(|v| _ = frontier_bits.insert(*v));
                session.pull(&mut workers, &visited, &frontier_bits, direction, &parents)?
            } else {
                session.reach(&mut workers, frontier, direction, device, &visited, |hop| {
                    parents[hop.to as usize].store(hop.from, Ordering::Relaxed);
                    hop.to
                })?
            };
            frontier_bits.sort(&mut reached, self.vertices as usize / VERTICES_PER_SORTED);
            order.extend(reached);
            levels.push(order.len());
        }
        drop(workers);
        if levels.len() > 2 && levels[levels.len() - 1] == levels[levels.len() - 2] {
            levels.pop();
        }
        Ok(Bfs {
            graph: self,
            order,
            levels,
            parents: parents.into_iter().map(AtomicU32::into_inner).collect(),
        })
    }
}

impl<'a> Session<'a> {
    /// A level bottom-up: every vertex that was not visited looks for one of `frontier` among
    /// those it can be reached from. Gives the vertices that were reached.
    fn pull(
        &self,
        workers: &mut [Worker<'a>],
        visited: &Bits,
        frontier: &Bits,
        direction: Direction,
        parents: &[AtomicU32],
    ) -> Result<Vec<u32>> {
        let words = BLOCK_VERTICES as usize / 64;
        let blocks = self.graph.vertices.div_ceil(BLOCK_VERTICES) as usize;
        let reached = self.share(workers, blocks, |worker, block, out: &mut Vec<u32>| {
            let words = block * words..((block + 1) * words).min(visited.words());
            let mut waiting = Vec::new();
            for part in 0..self.graph.parts.len() {
                for &against in direction.reversed().sides() {
                    waiting.clear();
                    visited.append(words.clone(), false, &mut waiting);
                    waiting.truncate(waiting.partition_point(|v| *v < self.graph.vertices));
                    let view = &self.graph.parts[part];
                    self.lists(worker, part, against, &waiting, |vertex, _, others| {
                        // A list of several pieces may have led to a parent before.
                        if visited.has(vertex) {
                            return Ok(());
                        }
                        for other in others {
                            let other = view.to_graph(*other)?;
                            if frontier.has(other) {
                                visited.insert(vertex);
                                parents[vertex as usize].store(other, Ordering::Relaxed);
                                out.push(vertex);
                                break;
                            }
                        }
                        Ok(())
                    })?;
                }
            }
            Ok(())
        })?;
        Ok(reached.concat())
    }
}

impl Bfs<'_> {
    /// Vertices reached, the seeds among them.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether nothing was reached: there were no seeds.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Vertices of each depth from 0 on.
    pub fn level_sizes(&self) -> Vec<usize> {
        self.levels
            .windows(2)
            .map(|ends| ends[1] - ends[0])
            .collect()
    }

    /// Some of the rows, counted in order of depth and then of vertices: the keys of the vertices,
    /// their depths, and the keys of their parents (NULL for seeds). `job` counts the pages read.
    ///
    /// # Errors
    /// Those of reading keys. Panics for rows beyond the end.
    pub fn rows(&self, job: &Job, rows: Range<usize>) -> Result<(ArrayRef, UInt32Array, ArrayRef)> {
        let vertices = &self.order[rows.clone()];
        let mut level = self.levels.partition_point(|end| *end <= rows.start);
        let depths = rows.map(|row| {
            while self.levels[level] <= row {
                level += 1;
            }
            level as u32 - 1
        });
        let depths = UInt32Array::from_iter_values(depths);
        let mut reader = job.reader(&self.graph.store)?;
        let keys = self.graph.keys(&mut reader, vertices)?;
        let parents: Vec<u32> = vertices.iter().map(|v| self.parents[*v as usize]).collect();
        let known: Vec<u32> = parents
            .iter()
            .copied()
            .filter(|p| *p != NO_VERTEX)
            .collect();
        let known = self.graph.keys(&mut reader, &known)?;
        job.count(&mut reader);
        let none = new_null_array(known.data_type(), 1);
        let mut next = 0;
        let places: Vec<(usize, usize)> = parents
            .iter()
            .map(|parent| {
                let has_parent = *parent != NO_VERTEX;
                next += usize::from(has_parent);
                if has_parent { (0, next - 1) } else { (1, 0) }
            })
            .collect();
        let parents = interleave(&[&*known, &*none], &places)?;
        Ok((keys, depths, parents))
    }
}
