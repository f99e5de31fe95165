//! What the threads of a search share, and what each has for itself: the way from vertices to
//! their lists.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use arrow::array::Array;

use super::{Direction, Graph, Job, Part};
use crate::index::paged::PinnedPages;
use crate::store::PageReader;
use crate::{Result, StorageError};

/// Vertices whose lists are announced together, at most and at least: many, so that the flash is
/// busy; few, so that threads share them and a cancel is noticed soon.
pub(super) const BATCH_MAX_VERTICES: usize = 8192;
pub(super) const BATCH_MIN_VERTICES: usize = 256;
/// Vertex numbers that a pass over all vertices takes at a time. A multiple of 64, so that no word
/// of a [`Bits`](super::bits::Bits) belongs to two threads.
pub(super) const BLOCK_VERTICES: u32 = 16_384;
/// Starts of lists are unpacked as a whole when they are wanted of at least one vertex in this many.
const DENSE_VERTICES: usize = 8;

/// A search at work.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub graph: &'a Graph,
    pub job: &'a Job,
    /// For each part, along the edges and against them: the pages of list starts.
    starts: Vec<[PinnedPages<'a>; 2]>,
    /// A thread has failed: the others may end.
    has_failed: AtomicBool,
}

/// What one thread of a search works with.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    job: &'a Job,
    pub reader: PageReader,
    starts: Vec<u32>,
    /// Lists that are not empty, and whose they are, by place among the vertices asked for.
    pub ranges: Vec<Range<u64>>,
    owners: Vec<u32>,
    numbers: Vec<u32>,
    scratch: Vec<u32>,
}

/// An edge as a search comes by it; vertices by the graph's numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hop {
    pub from: u32,
    pub to: u32,
    pub edge: EdgeAt,
}

/// Where an edge is in the index: a part, in the lists along the edges or against them, a position
/// there. The order is that of the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct EdgeAt {
    /// Twice the part, and 1 for the lists against the edges.
    lists: u32,
    position: u32,
}

impl EdgeAt {
    /// A part has fewer than 2^32 edges, and a graph fewer than 2^31 parts.
    #[inline(always)]
    pub fn new(part: usize, against: bool, position: u64) -> Self {
        Self {
            lists: (part as u32) << 1 | u32::from(against),
            position: position as u32,
        }
    }

    /// The edge so many positions behind.
    pub fn behind(self, count: usize) -> Self {
        Self {
            position: self.position + count as u32,
            ..self
        }
    }
}

impl<'a> Session<'a> {
    pub fn new(graph: &'a Graph, job: &'a Job) -> Self {
        let pins = |part: &'a Part| {
            [false, true].map(|against| PinnedPages::new(&part.adjacency.lists(against).offsets))
        };
        Self {
            graph,
            job,
            starts: graph.parts.iter().map(pins).collect(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// A worker for each thread of the job.
    pub fn workers(&self) -> Result<Vec<Worker<'a>>> {
        (0..self.job.threads).map(|_| self.worker()).collect()
    }

    pub fn worker(&self) -> Result<Worker<'a>> {
        Ok(Worker {
            job: self.job,
            reader: self.job.reader(&self.graph.store)?,
            starts: Vec::new(),
            ranges: Vec::new(),
            owners: Vec::new(),
            numbers: Vec::new(),
            scratch: Vec::new(),
        })
    }

    /// The numbers of vertices by key, in the same order.
    ///
    /// # Errors
    /// `NotFound` for a key that no edge has at either end; `Invalid` for NULL and for keys of
    /// another type.
    pub fn numbers(&self, worker: &mut Worker<'a>, keys: &dyn Array) -> Result<Vec<u32>> {
        let key_type = self.graph.key_type;
        if !keys.data_type().is_integer() || keys.null_count() > 0 {
            let found = match keys.null_count() {
                0 => keys.data_type().to_string(),
                _ => "NULL".into(),
            };
            return Err(StorageError::Invalid(format!(
                "vertices of this graph are {}, not {found}",
                key_type.data_type()
            )));
        }
        let unknown = |key| StorageError::NotFound {
            kind: "vertex",
            name: key_type.show(key),
        };
        let keys = key_type.encode(keys)?;
        let number = |key: &i64| {
            let number = self.graph.number(&mut worker.reader, *key)?;
            number.ok_or_else(|| unknown(*key))
        };
        let numbers: Vec<u32> = keys.iter().map(number).collect::<Result<_>>()?;
        // A number may be a gap's: a vertex has edges.
        let mut missing = numbers.clone();
        missing.sort_unstable();
        missing.dedup();
        for part in 0..self.graph.parts.len() {
            for against in [false, true] {
                self.ranges(worker, part, against, &missing)?;
                let listed = worker.listed(&missing).map(|(vertex, _)| vertex);
                let listed: Vec<u32> = listed.collect();
                missing.retain(|vertex| listed.binary_search(vertex).is_err());
            }
        }
        match missing.first() {
            None => Ok(numbers),
            Some(missing) => {
                let place = numbers.iter().position(|number| number == missing);
                Err(unknown(place.map_or(0, |place| keys[place])))
            }
        }
    }

    /// Whether the search may go on.
    pub fn check(&self) -> Result<()> {
        self.job.check()?;
        match self.has_failed.load(Ordering::Relaxed) {
            true => Err(StorageError::Cancelled),
            false => Ok(()),
        }
    }

    /// Calls `work` on a thread for each worker, with the numbers below `count` as they come up,
    /// each once; gives what the workers have made of it.
    pub fn share<R: Send + Default>(
        &self,
        workers: &mut [Worker<'a>],
        count: usize,
        work: impl Fn(&mut Worker<'a>, usize, &mut R) -> Result<()> + Sync,
    ) -> Result<Vec<R>> {
        let next = AtomicUsize::new(0);
        let run = |worker: &mut Worker<'a>| {
            let mut made = R::default();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return Ok(made);
                }
                let done = self.check().and_then(|()| work(worker, number, &mut made));
                if let Err(error) = done {
                    self.has_failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        };
        let helpers = count.saturating_sub(1).min(workers.len() - 1);
        let (own, others) = workers.split_at_mut(1);
        let results: Vec<Result<R>> = if helpers == 0 {
            vec![run(&mut own[0])]
        } else {
            std::thread::scope(|scope| {
                let run = &run;
                let helpers: Vec<_> = others[..helpers]
                    .iter_mut()
                    .map(|worker| scope.spawn(move || run(worker)))
                    .collect();
                let mut results = vec![run(&mut own[0])];
                for helper in helpers {
                    results.push(helper.join().unwrap_or_else(|panic| {
                        std::panic::resume_unwind(panic);
                    }));
                }
                results
            })
        };
        // The cause comes before those that ended because of it.
        let mut made = Vec::with_capacity(results.len());
        let mut failure = None;
        for result in results {
            match result {
                Ok(result) => made.push(result),
                Err(StorageError::Cancelled) => {
                    failure.get_or_insert(StorageError::Cancelled);
                }
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(made), Err)
    }

    /// [`Self::share`] of batches of the ascending `frontier`.
    pub fn share_batches<R: Send + Default>(
        &self,
        workers: &mut [Worker<'a>],
        frontier: &[u32],
        work: impl Fn(&mut Worker<'a>, &[u32], &mut R) -> Result<()> + Sync,
    ) -> Result<Vec<R>> {
        let batch = frontier.len() / (4 * workers.len());
        let batch = batch.clamp(BATCH_MIN_VERTICES, BATCH_MAX_VERTICES);
        let count = frontier.len().div_ceil(batch);
        self.share(workers, count, |worker, number, made| {
            let end = frontier.len().min((number + 1) * batch);
            work(worker, &frontier[number * batch..end], made)
        })
    }

    /// Follows the edges from the ascending `frontier`: `take` makes of each edge what the call
    /// gives, in no certain order.
    pub fn follow<R: Send>(
        &self,
        workers: &mut [Worker<'a>],
        frontier: &[u32],
        direction: Direction,
        take: impl Fn(Hop) -> Option<R> + Sync,
    ) -> Result<Vec<R>> {
        let mut made =
            self.share_batches(workers, frontier, |worker, vertices, out: &mut Vec<R>| {
                self.follow_batch(worker, vertices, direction, |hop| {
                    out.extend(take(hop));
                    Ok(())
                })
            })?;
        let mut all = made.pop().unwrap_or_default();
        made.into_iter().for_each(|more| all.extend(more));
        Ok(all)
    }

    /// Calls `take` for each edge from the ascending `vertices`.
    pub fn follow_batch(
        &self,
        worker: &mut Worker<'a>,
        vertices: &[u32],
        direction: Direction,
        mut take: impl FnMut(Hop) -> Result<()>,
    ) -> Result<()> {
        for part in 0..self.graph.parts.len() {
            for &against in direction.sides() {
                self.lists(worker, part, against, vertices, |from, position, others| {
                    let view = &self.graph.parts[part];
                    for (position, to) in (position..).zip(others) {
                        let edge = EdgeAt::new(part, against, position);
                        let to = view.to_graph(*to)?;
                        take(Hop { from, to, edge })?;
                    }
                    Ok(())
                })?;
            }
        }
        Ok(())
    }

    /// Calls `take` with each of the ascending `vertices` that has a list in a part, a position in
    /// the part's neighbours, and the neighbours from there on, by the part's numbers and not
    /// checked; a long list, and one with deleted edges, comes in several pieces.
    pub fn lists(
        &self,
        worker: &mut Worker<'a>,
        part: usize,
        against: bool,
        vertices: &[u32],
        take: impl FnMut(u32, u64, &[u32]) -> Result<()>,
    ) -> Result<()> {
        self.ranges(worker, part, against, vertices)?;
        self.neighbours(worker, part, against, vertices, take)
    }

    /// Likewise, of the lists that [`Self::ranges`] has noted of the same vertices.
    pub fn neighbours(
        &self,
        worker: &mut Worker<'a>,
        part: usize,
        against: bool,
        vertices: &[u32],
        mut take: impl FnMut(u32, u64, &[u32]) -> Result<()>,
    ) -> Result<()> {
        let neighbours = &self.graph.parts[part].adjacency.lists(against).neighbours;
        let Worker {
            reader,
            ranges,
            owners,
            scratch,
            ..
        } = worker;
        neighbours.visit(reader, ranges, scratch, |list, position, others| {
            take(vertices[owners[list] as usize], position, others)
        })
    }

    /// Notes in `worker` where the lists of the ascending `vertices` are in a part, without deleted
    /// edges: these cut a list into several ranges.
    pub fn ranges(
        &self,
        worker: &mut Worker<'a>,
        part: usize,
        against: bool,
        vertices: &[u32],
    ) -> Result<()> {
        self.stored_ranges(worker, part, against, vertices)?;
        let view = &self.graph.parts[part];
        if view.segments.is_none() {
            return Ok(());
        }
        let mut gone = Vec::new();
        let Worker {
            reader,
            ranges,
            scratch,
            ..
        } = &mut *worker;
        let rows = &view.adjacency.lists(against).rows;
        rows.visit(reader, ranges, scratch, |_, position, rows| {
            for (position, row) in (position..).zip(rows) {
                if !view.has_row(*row)? {
                    gone.push(position);
                }
            }
            Ok(())
        })?;
        worker.leave_out(&gone);
        Ok(())
    }

    /// As [`Self::ranges`], with deleted edges.
    fn stored_ranges(
        &self,
        worker: &mut Worker<'a>,
        part: usize,
        against: bool,
        vertices: &[u32],
    ) -> Result<()> {
        worker.ranges.clear();
        worker.owners.clear();
        let view = &self.graph.parts[part];
        let vertices = if view.maps.is_none() {
            vertices
        } else {
            worker.numbers.clear();
            for (place, vertex) in (0..).zip(vertices) {
                if let Some(number) = view.to_part(*vertex) {
                    worker.numbers.push(number);
                    worker.owners.push(place);
                }
            }
            &worker.numbers
        };
        let (Some(&first), Some(&last)) = (vertices.first(), vertices.last()) else {
            return Ok(());
        };
        let pins = &self.starts[part][usize::from(against)];
        let edges = view.adjacency.edges();
        let is_mapped = view.maps.is_some();
        let mut end_before = 0;
        let mut kept = 0;
        let (ranges, owners) = (&mut worker.ranges, &mut worker.owners);
        let mut note = |place: usize, start: u64, end: u64| {
            if start > end || start < end_before || end > edges {
                return Err(StorageError::corrupt(format!(
                    "adjacency index: a list from {start} to {end} of {edges} neighbours"
                )));
            }
            end_before = end;
            if start < end {
                ranges.push(start..end);
                if is_mapped {
                    owners[kept] = owners[place];
                    kept += 1;
                } else {
                    owners.push(place as u32);
                }
            }
            Ok(())
        };
        let span = (last - first) as usize + 1;
        if vertices.len() * DENSE_VERTICES >= span {
            let (first, last) = (u64::from(first), u64::from(last));
            pins.read(&mut worker.reader, first..last + 2, &mut worker.starts)?;
            for (place, vertex) in vertices.iter().enumerate() {
                let number = (u64::from(*vertex) - first) as usize;
                let (start, end) = (worker.starts[number], worker.starts[number + 1]);
                note(place, start.into(), end.into())?;
            }
        } else {
            let both = |vertex: &u32| [u64::from(*vertex), u64::from(*vertex) + 1];
            pins.pin(&mut worker.reader, vertices.iter().flat_map(both))?;
            for (place, vertex) in vertices.iter().enumerate() {
                let vertex = u64::from(*vertex);
                let page = pins.page(&mut worker.reader, vertex)?;
                let start = page.value(vertex)?;
                let end = if vertex + 1 < page.positions().end {
                    page.value(vertex + 1)?
                } else {
                    pins.page(&mut worker.reader, vertex + 1)?
                        .value(vertex + 1)?
                };
                note(place, start as u64, end as u64)?;
            }
        }
        Ok(())
    }

    /// How many edges go from the ascending `vertices`, deleted ones among them: what a search goes
    /// by that has several ways is not worth reading their rows.
    pub fn degrees(
        &self,
        workers: &mut [Worker<'a>],
        vertices: &[u32],
        direction: Direction,
    ) -> Result<u64> {
        let count = vertices.len().div_ceil(BATCH_MAX_VERTICES);
        let sums = self.share(workers, count, |worker, number, sum: &mut u64| {
            let end = vertices.len().min((number + 1) * BATCH_MAX_VERTICES);
            for part in 0..self.graph.parts.len() {
                for &against in direction.sides() {
                    let vertices = &vertices[number * BATCH_MAX_VERTICES..end];
                    self.stored_ranges(worker, part, against, vertices)?;
                    *sum += worker
                        .ranges
                        .iter()
                        .map(|range| range.end - range.start)
                        .sum::<u64>();
                }
            }
            Ok(())
        })?;
        Ok(sums.into_iter().sum())
    }

    /// The rows of the edge table (segment << 16 | row) of edges, in the same order.
    pub fn rows(&self, worker: &mut Worker<'a>, edges: &[EdgeAt]) -> Result<Vec<u64>> {
        // Edges come in the order of a few threads: the stable sort makes use of that.
        let mut order: Vec<(EdgeAt, u32)> = edges.iter().copied().zip(0..).collect();
        order.sort_by_key(|(edge, _)| *edge);
        let mut rows = vec![0; edges.len()];
        let (mut positions, mut packed) = (Vec::new(), Vec::new());
        for edges in order.chunk_by(|(a, _), (b, _)| a.lists == b.lists) {
            let lists = edges[0].0.lists;
            let part = &self.graph.parts[(lists >> 1) as usize].adjacency;
            positions.clear();
            positions.extend(edges.iter().map(|(edge, _)| u64::from(edge.position)));
            packed.clear();
            let array = &part.lists(lists & 1 == 1).rows;
            array.gather::<u32>(&mut worker.reader, &positions, &mut packed)?;
            for ((_, place), packed) in edges.iter().zip(&packed) {
                rows[*place as usize] = part.row(*packed)?;
            }
        }
        Ok(rows)
    }
}

impl Worker<'_> {
    /// The vertices with lists that [`Session::ranges`] has found among `vertices`, and the lengths
    /// of these; one whose list has several ranges comes as often.
    pub fn listed(&self, vertices: &[u32]) -> impl Iterator<Item = (u32, u64)> {
        let lists = self.owners.iter().zip(&self.ranges);
        lists.map(|(owner, range)| (vertices[*owner as usize], range.end - range.start))
    }

    /// Leaves these ascending positions out of the ranges.
    fn leave_out(&mut self, gone: &[u64]) {
        if gone.is_empty() {
            return;
        }
        let mut gone = gone.iter().copied().peekable();
        let owners = std::mem::take(&mut self.owners);
        for (range, owner) in std::mem::take(&mut self.ranges).into_iter().zip(owners) {
            let mut start = range.start;
            while start < range.end {
                let end = gone.next_if(|at| *at < range.end).unwrap_or(range.end);
                if start < end {
                    self.ranges.push(start..end);
                    self.owners.push(owner);
                }
                start = end + 1;
            }
        }
    }
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        self.job.count(&mut self.reader);
    }
}
