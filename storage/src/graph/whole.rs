//! What looks at every edge: connected components and PageRank.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use arrow::array::{ArrayRef, Float64Array};

use super::bits::Bits;
use super::session::{BLOCK_VERTICES, Session, Worker};
use super::{Graph, Job};
use crate::{Result, StorageError};

/// The connected components of a graph: 4 bytes for each of its vertices.
#[derive(Debug)]
pub struct Components<'a> {
    graph: &'a Graph,
    vertices: Vec<u32>,
    /// By vertex number.
    components: Vec<u32>,
}

/// How PageRank runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PageRankOptions {
    /// Share of a rank that goes along the edges; the rest is spread evenly. 0 to below 1.
    pub damping: f64,
    /// Rounds at most.
    pub max_iterations: u32,
    /// It ends when all ranks together change by less than this.
    pub tolerance: f64,
}

impl Default for PageRankOptions {
    fn default() -> Self {
        Self {
            damping: 0.85,
            max_iterations: 100,
            tolerance: 1e-6,
        }
    }
}

/// The ranks of a graph's vertices; they sum to 1.
#[derive(Debug)]
pub struct PageRank<'a> {
    graph: &'a Graph,
    vertices: Vec<u32>,
    /// By vertex number.
    ranks: Vec<f64>,
    /// Rounds that were needed.
    pub iterations: u32,
    /// What all ranks together changed by in the last one.
    pub change: f64,
}

impl Graph {
    /// The component of each vertex, edges taken both ways: a union-find forest that all threads
    /// hook edges into. A component is named by its least key. Memory: 8 bytes a vertex.
    ///
    /// # Errors
    /// `Cancelled`, those of reading pages.
    pub fn connected_components(&self, job: &Job) -> Result<Components<'_>> {
        let session = Session::new(self, job);
        let mut workers = session.workers()?;
        let forest: Vec<AtomicU32> = (0..self.vertices).map(AtomicU32::new).collect();
        let exists = Bits::new(self.vertices);
        session.for_each_edge(&mut workers, |from, to| {
            exists.insert(from);
            exists.insert(to);
            unite(&forest, from, to);
        })?;
        drop(workers);
        let mut components: Vec<u32> = forest.into_iter().map(AtomicU32::into_inner).collect();
        // A root is less than what hangs below it.
        for vertex in 0..components.len() {
            components[vertex] = components[components[vertex] as usize];
        }
        Ok(Components {
            graph: self,
            vertices: exists.all(),
            components,
        })
    }

    /// PageRank: the rank of a vertex is spread over the edges that go from it, each as often as
    /// the edge table has it; that of vertices without such edges over all vertices. Each round
    /// collects ranks along the lists against the edges. Memory: 29 bytes a vertex.
    ///
    /// # Errors
    /// `Invalid` for options out of range, `Cancelled`, those of reading pages.
    pub fn page_rank(&self, job: &Job, options: PageRankOptions) -> Result<PageRank<'_>> {
        if !(0.0..1.0).contains(&options.damping) || options.tolerance.is_nan() {
            return Err(StorageError::Invalid(format!(
                "PageRank with damping {} and tolerance {}; damping is 0 to below 1",
                options.damping, options.tolerance
            )));
        }
        let session = Session::new(self, job);
        let mut workers = session.workers()?;
        let (exists, degrees) = session.out_degrees(&mut workers)?;
        let vertices = exists.all();
        let count = vertices.len() as f64;
        let mut ranks = vec![0.0; self.vertices as usize];
        vertices
            .iter()
            .for_each(|v| ranks[*v as usize] = 1.0 / count);
        let mut shares = vec![0.0; self.vertices as usize];
        let mut next = vec![0.0; self.vertices as usize];
        let mut result = PageRank {
            graph: self,
            vertices,
            ranks: Vec::new(),
            iterations: 0,
            change: 0.0,
        };
        while result.iterations < options.max_iterations && !result.vertices.is_empty() {
            let mut dangling = 0.0;
            for vertex in &result.vertices {
                let vertex = *vertex as usize;
                if degrees[vertex] == 0 {
                    dangling += ranks[vertex];
                }
                shares[vertex] = ranks[vertex] / f64::from(degrees[vertex].max(1));
            }
            let sums = session.collect(&mut workers, &shares)?;
            for (first, sums) in sums {
                next[first as usize..][..sums.len()].copy_from_slice(&sums);
            }
            let base = (1.0 - options.damping + options.damping * dangling) / count;
            result.change = 0.0;
            for vertex in &result.vertices {
                let vertex = *vertex as usize;
                let rank = base + options.damping * next[vertex];
                result.change += (rank - ranks[vertex]).abs();
                ranks[vertex] = rank;
            }
            result.iterations += 1;
            if result.change < options.tolerance {
                break;
            }
        }
        result.ranks = ranks;
        Ok(result)
    }
}

impl<'a> Session<'a> {
    /// Calls `take` with the ends of every edge, from all threads.
    fn for_each_edge(
        &self,
        workers: &mut [Worker<'a>],
        take: impl Fn(u32, u32) + Sync,
    ) -> Result<()> {
        let blocks = self.graph.vertices.div_ceil(BLOCK_VERTICES) as usize;
        self.share(workers, blocks, |worker, block, (): &mut ()| {
            let vertices = self.block(block);
            for (part, view) in self.graph.parts.iter().enumerate() {
                self.lists(worker, part, false, &vertices, |from, _, others| {
                    for to in others {
                        take(from, view.to_graph(*to)?);
                    }
                    Ok(())
                })?;
            }
            Ok(())
        })?;
        Ok(())
    }

    fn block(&self, block: usize) -> Vec<u32> {
        let first = block as u32 * BLOCK_VERTICES;
        (first
            ..self
                .graph
                .vertices
                .min(first.saturating_add(BLOCK_VERTICES)))
            .collect()
    }

    /// Which vertices exist, and how many edges go from each.
    fn out_degrees(&self, workers: &mut [Worker<'a>]) -> Result<(Bits, Vec<u32>)> {
        let exists = Bits::new(self.graph.vertices);
        let degrees: Vec<AtomicU32> = (0..self.graph.vertices)
            .map(|_| AtomicU32::new(0))
            .collect();
        let blocks = self.graph.vertices.div_ceil(BLOCK_VERTICES) as usize;
        self.share(workers, blocks, |worker, block, (): &mut ()| {
            let vertices = self.block(block);
            for part in 0..self.graph.parts.len() {
                for against in [false, true] {
                    self.ranges(worker, part, against, &vertices)?;
                    for (vertex, edges) in worker.listed(&vertices) {
                        exists.insert(vertex);
                        if !against {
                            degrees[vertex as usize].fetch_add(edges as u32, Ordering::Relaxed);
                        }
                    }
                }
            }
            Ok(())
        })?;
        let degrees = degrees.into_iter().map(AtomicU32::into_inner).collect();
        Ok((exists, degrees))
    }

    /// For each vertex the sum of `shares` of those with an edge to it, in blocks.
    fn collect(&self, workers: &mut [Worker<'a>], shares: &[f64]) -> Result<Vec<(u32, Vec<f64>)>> {
        let blocks = self.graph.vertices.div_ceil(BLOCK_VERTICES) as usize;
        let sums = self.share(workers, blocks, |worker, block, out: &mut Vec<_>| {
            let vertices = self.block(block);
            let first = block as u32 * BLOCK_VERTICES;
            let mut sums = vec![0.0; vertices.len()];
            for (part, view) in self.graph.parts.iter().enumerate() {
                self.lists(worker, part, true, &vertices, |vertex, _, others| {
                    let mut sum = 0.0;
                    for other in others {
                        sum += shares[view.to_graph(*other)? as usize];
                    }
                    sums[(vertex - first) as usize] += sum;
                    Ok(())
                })?;
            }
            out.push((first, sums));
            Ok(())
        })?;
        Ok(sums.concat())
    }
}

/// Joins the trees of two vertices. A root hangs itself below a lesser one, if it is still a root
/// then; what hangs somewhere moves up as it is passed.
fn unite(forest: &[AtomicU32], a: u32, b: u32) {
    let (mut a, mut b) = (root(forest, a), root(forest, b));
    while a != b {
        let (low, high) = (a.min(b), a.max(b));
        let hung =
            forest[high as usize].compare_exchange(high, low, Ordering::Relaxed, Ordering::Relaxed);
        if hung.is_ok() {
            return;
        }
        (a, b) = (root(forest, low), root(forest, high));
    }
}

#[inline]
fn root(forest: &[AtomicU32], mut vertex: u32) -> u32 {
    loop {
        let above = forest[vertex as usize].load(Ordering::Relaxed);
        if above == vertex {
            return vertex;
        }
        let next = forest[above as usize].load(Ordering::Relaxed);
        if next != above {
            // Whoever else moves it moves it up, too.
            forest[vertex as usize].store(next, Ordering::Relaxed);
        }
        vertex = above;
    }
}

impl Components<'_> {
    /// Vertices.
    pub fn len(&self) -> usize {
        self.vertices.len()
    }

    /// Whether the graph has no vertices.
    pub fn is_empty(&self) -> bool {
        self.vertices.is_empty()
    }

    /// Some of the rows, counted in the order of keys: keys of vertices, and the least keys of
    /// their components. `job` counts the pages read.
    ///
    /// # Errors
    /// Those of reading keys. Panics for rows beyond the end.
    pub fn rows(&self, job: &Job, rows: Range<usize>) -> Result<(ArrayRef, ArrayRef)> {
        let mut reader = job.reader(&self.graph.store)?;
        let vertices = &self.vertices[rows];
        let components: Vec<u32> = vertices
            .iter()
            .map(|v| self.components[*v as usize])
            .collect();
        let vertices = self.graph.keys(&mut reader, vertices)?;
        let components = self.graph.keys(&mut reader, &components)?;
        job.count(&mut reader);
        Ok((vertices, components))
    }
}

impl PageRank<'_> {
    /// Vertices.
    pub fn len(&self) -> usize {
        self.vertices.len()
    }

    /// Whether the graph has no vertices.
    pub fn is_empty(&self) -> bool {
        self.vertices.is_empty()
    }

    /// Some of the rows, counted in the order of keys: keys of vertices and their ranks.
    /// `job` counts the pages read.
    ///
    /// # Errors
    /// Those of reading keys. Panics for rows beyond the end.
    pub fn rows(&self, job: &Job, rows: Range<usize>) -> Result<(ArrayRef, Float64Array)> {
        let mut reader = job.reader(&self.graph.store)?;
        let vertices = &self.vertices[rows];
        let ranks = vertices.iter().map(|v| self.ranks[*v as usize]);
        let keys = self.graph.keys(&mut reader, vertices)?;
        job.count(&mut reader);
        Ok((keys, Float64Array::from_iter_values(ranks)))
    }
}
