//! Neighbour lists as they are, for a search that runs above the store: the host then holds the
//! frontier and asks for each hop anew (BlueDBM section 7.2, the host's traversal beside the
//! in-store one).

use arrow::array::{Array, ArrayRef, Float64Array, UInt32Array, UInt64Array};

use super::session::{BATCH_MAX_VERTICES, BATCH_MIN_VERTICES, EdgeAt, Session, Worker};
use super::{Direction, Graph, Job};
use crate::{Result, StorageError};

/// What [`Graph::neighbours`] gives of an edge besides its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EdgeColumns {
    /// The row of the edge table.
    pub rows: bool,
    /// The weight.
    pub weights: bool,
}

/// Edges from some vertices: a few rows of the answer of [`Graph::neighbours`].
#[derive(Debug)]
pub struct Neighbours {
    /// The number of the vertex that was asked for.
    pub from: UInt32Array,
    /// The number of its neighbour.
    pub to: UInt32Array,
    /// The row of the edge table (segment << 16 | row), if it was asked for.
    pub rows: Option<UInt64Array>,
    /// The weight, if it was asked for: neither negative nor NaN.
    pub weights: Option<Float64Array>,
}

impl Neighbours {
    /// Both ends of each edge.
    pub fn ends(&self) -> impl Iterator<Item = (u32, u32)> {
        let ends = self.from.values().iter().zip(self.to.values());
        ends.map(|(from, to)| (*from, *to))
    }

    /// The columns that were asked for.
    pub fn columns(&self) -> impl Iterator<Item = &dyn Array> {
        let ends: [&dyn Array; 2] = [&self.from, &self.to];
        let rows = self.rows.as_ref().map(|rows| rows as &dyn Array);
        let weights = self.weights.as_ref().map(|weights| weights as &dyn Array);
        ends.into_iter().chain(rows).chain(weights)
    }
}

impl Graph {
    /// Vertices have numbers below this, some of which may be no vertex's.
    pub fn vertex_numbers(&self) -> u32 {
        self.vertices
    }

    /// The numbers of vertices by key, in the same order. They hold as long as the graph is open.
    ///
    /// # Errors
    /// As [`Graph::bfs`] says of seeds.
    pub fn numbers_of(&self, job: &Job, keys: &dyn Array) -> Result<Vec<u32>> {
        let session = Session::new(self, job);
        session.numbers(&mut session.worker()?, keys)
    }

    /// The keys of vertices by number, in the same order.
    ///
    /// # Errors
    /// `Invalid` for a number that no vertex can have; those of reading keys.
    pub fn keys_of(&self, job: &Job, numbers: &[u32]) -> Result<ArrayRef> {
        self.check_numbers(numbers)?;
        let mut reader = job.reader(&self.store)?;
        let keys = self.keys(&mut reader, numbers);
        job.count(&mut reader);
        keys
    }

    /// The neighbours of the vertices with these ascending numbers, each as often as there are
    /// edges to it: one command, its lists read together, its answer in pieces of the lists of at
    /// most 8,192 vertices for each thread, which are what it holds in memory.
    ///
    /// # Errors
    /// `Invalid` for numbers that descend or that no vertex can have, and for weights of a graph
    /// that has none or bad ones; `Cancelled`, those of reading pages, those of `take`.
    pub fn neighbours(
        &self,
        job: &Job,
        vertices: &[u32],
        direction: Direction,
        columns: EdgeColumns,
        mut take: impl FnMut(Neighbours) -> Result<()>,
    ) -> Result<()> {
        self.check_numbers(vertices)?;
        if !vertices.is_sorted_by(|a, b| a < b) {
            return Err(StorageError::Invalid(
                "neighbours are asked for by numbers that ascend, each once".into(),
            ));
        }
        if columns.weights {
            self.check_weights()?;
        }
        let session = Session::new(self, job);
        let batch = vertices.len() / (4 * job.threads);
        let batch = batch.clamp(BATCH_MIN_VERTICES, BATCH_MAX_VERTICES);
        // A reader for each thread that has something to do: most commands are of one vertex.
        let threads = vertices.len().div_ceil(batch).clamp(1, job.threads);
        let mut workers = (0..threads)
            .map(|_| session.worker())
            .collect::<Result<Vec<_>>>()?;
        for group in vertices.chunks(batch * threads) {
            let batches: Vec<&[u32]> = group.chunks(batch).collect();
            type Made = Vec<(usize, Neighbours)>;
            let made = session.share(
                &mut workers,
                batches.len(),
                |worker, number, made: &mut Made| {
                    let found = session.edges_from(worker, batches[number], direction, columns)?;
                    made.push((number, found));
                    Ok(())
                },
            )?;
            let mut made: Vec<_> = made.into_iter().flatten().collect();
            made.sort_unstable_by_key(|(number, _)| *number);
            made.into_iter().try_for_each(|(_, found)| take(found))?;
        }
        Ok(())
    }

    fn check_numbers(&self, numbers: &[u32]) -> Result<()> {
        match numbers.iter().find(|number| **number >= self.vertices) {
            None => Ok(()),
            Some(number) => Err(StorageError::Invalid(format!(
                "vertex number {number} of a graph of {}",
                self.vertices
            ))),
        }
    }
}

impl<'a> Session<'a> {
    fn edges_from(
        &self,
        worker: &mut Worker<'a>,
        vertices: &[u32],
        direction: Direction,
        columns: EdgeColumns,
    ) -> Result<Neighbours> {
        let (mut from, mut to, mut edges, mut weights) = (vec![], vec![], vec![], vec![]);
        for (part, view) in self.graph.parts.iter().enumerate() {
            for &against in direction.sides() {
                self.lists(
                    worker,
                    part,
                    against,
                    vertices,
                    |vertex, position, others| {
                        from.extend(std::iter::repeat_n(vertex, others.len()));
                        for other in others {
                            to.push(view.to_graph(*other)?);
                        }
                        if columns.rows {
                            let positions = position..position + others.len() as u64;
                            edges.extend(positions.map(|at| EdgeAt::new(part, against, at)));
                        }
                        Ok(())
                    },
                )?;
                let all = view.adjacency.lists(against).weights.as_ref();
                if let Some(all) = all.filter(|_| columns.weights) {
                    // They stand as the neighbours do, so they come in the same order.
                    let Worker { reader, ranges, .. } = worker;
                    all.read_ranges(reader, ranges, &mut weights)?;
                }
            }
        }
        let weights: Vec<f64> = weights.into_iter().map(f64::from_bits).collect();
        let is_bad = |weight: &&f64| weight.is_nan() || weight.is_sign_negative();
        if let Some(bad) = weights.iter().find(is_bad) {
            return Err(StorageError::corrupt(format!(
                "adjacency index: an edge has weight {bad}"
            )));
        }
        let rows = match columns.rows {
            true => Some(UInt64Array::from(self.rows(worker, &edges)?)),
            false => None,
        };
        Ok(Neighbours {
            from: UInt32Array::from(from),
            to: UInt32Array::from(to),
            rows,
            weights: columns.weights.then(|| Float64Array::from(weights)),
        })
    }
}
