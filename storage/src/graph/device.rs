//! The step of a search on a device: which vertices the lists of a frontier reach first.
//!
//! Lists go to the device by chunks, each with the bitmap of what was visited, and so each call
//! needs what the one before it has marked. While the device computes one chunk, the threads read
//! the lists of the next.

use arrow::datatypes::ToByteSlice;
use parking_lot::Mutex;

use super::bits::Bits;
use super::session::{EdgeAt, Hop, Session, Worker};
use super::{Direction, Job};
use crate::accelerator::device::Device;
use crate::accelerator::offload::{OffloadCall, Operation};
use crate::kernel::{Argument, ScalarArgument};
use crate::{Result, StorageError};

/// Vertex numbers of which a device holds the bitmap, of 16 MiB: each call moves it both ways.
pub(super) const MAX_VERTICES: u32 = 1 << 27;
/// Neighbours from which on a chunk is sent.
const CHUNK_NEIGHBOURS: usize = 1 << 18;

/// Lists side by side, and where they come from.
#[derive(Debug, Default)]
struct Chunk {
    neighbours: Vec<u32>,
    lists: Vec<List>,
}

/// A list, or a piece of a long one, in a chunk.
#[derive(Debug)]
struct List {
    from: u32,
    /// Of the first neighbour.
    edge: EdgeAt,
    /// Where it starts among the chunk's neighbours.
    start: usize,
}

impl Chunk {
    fn append(&mut self, other: Self) {
        let moved = self.neighbours.len();
        self.neighbours.extend(other.neighbours);
        self.lists.extend(other.lists.into_iter().map(|list| List {
            start: moved + list.start,
            ..list
        }));
    }

    /// Where a list ends.
    fn end(&self, list: usize) -> usize {
        let next = self.lists.get(list + 1);
        next.map_or(self.neighbours.len(), |next| next.start)
    }

    /// The edge to the neighbour at `at`, in a list.
    fn hop(&self, list: usize, at: usize) -> Hop {
        let List { from, edge, start } = self.lists[list];
        Hop {
            from,
            to: self.neighbours[at],
            edge: edge.behind(at - start),
        }
    }

    /// The edges that lead to `next` in the lists `next_list`, where the first of each are. What
    /// is no such vertex gives `None`: the store does not take a device's word for an edge.
    fn hops(&self, next: &[u8], next_list: &[u8]) -> Option<Vec<Hop>> {
        let numbers = |bytes: &[u8]| -> Vec<u32> {
            let (numbers, _) = bytes.as_chunks::<4>();
            numbers.iter().map(|n| u32::from_le_bytes(*n)).collect()
        };
        let mut at = 0;
        let found = numbers(next).into_iter().zip(numbers(next_list));
        found
            .map(|(vertex, list)| {
                let list = list as usize;
                at = at.max(self.lists.get(list)?.start);
                let others = self.neighbours.get(at..self.end(list))?;
                at += 1 + others.iter().position(|other| *other == vertex)?;
                Some(self.hop(list, at - 1))
            })
            .collect()
    }
}

/// A step of a search.
struct Step<'s, T, R> {
    job: &'s Job,
    device: &'s Device,
    visited: &'s Bits,
    vertices: u32,
    take: T,
    state: Mutex<State<R>>,
}

/// Whoever has this may mark vertices as visited.
struct State<R> {
    pending: Option<Pending>,
    /// The device has failed in this step: the CPU does the rest of it.
    has_failed: bool,
    /// Room for the bitmap as it goes to the device and comes back.
    bitmap: Vec<u8>,
    made: Vec<R>,
}

/// A chunk that the device computes.
struct Pending {
    chunk: Chunk,
    call: Box<dyn OffloadCall>,
}

impl<'a> Session<'a> {
    /// The device for the next step, if that is to take it.
    ///
    /// # Errors
    /// A device that can't take it, where the CPU may not stand in.
    pub fn device(&self) -> Result<Option<&'a Device>> {
        let supported = |device: &&Device| device.supports(Operation::GraphStep);
        let Some(device) = self.job.device.as_ref().filter(supported) else {
            return Ok(None);
        };
        if self.graph.vertices > self.job.max_device_vertices {
            device.fall_back(StorageError::Kernel {
                kernel: Operation::GraphStep.name().into(),
                reason: format!(
                    "the graph has {} vertex numbers, and the device's bitmap {}",
                    self.graph.vertices, self.job.max_device_vertices
                ),
            })?;
            return Ok(None);
        }
        Ok(device.is_usable().then_some(device))
    }

    /// Follows the edges from the ascending `frontier` to all that was not `visited`, and marks it:
    /// `take` makes of the first edge to each what the call gives, in no certain order.
    pub fn reach<R: Send>(
        &self,
        workers: &mut [Worker<'a>],
        frontier: &[u32],
        direction: Direction,
        device: Option<&Device>,
        visited: &Bits,
        take: impl Fn(Hop) -> R + Sync,
    ) -> Result<Vec<R>> {
        let Some(device) = device else {
            return self.follow(workers, frontier, direction, |hop| {
                visited.insert(hop.to).then(|| take(hop))
            });
        };
        let step = Step {
            job: self.job,
            device,
            visited,
            vertices: self.graph.vertices,
            take,
            state: Mutex::new(State {
                pending: None,
                has_failed: false,
                bitmap: Vec::new(),
                made: Vec::new(),
            }),
        };
        let rest =
            self.share_batches(workers, frontier, |worker, vertices, chunk: &mut Chunk| {
                for part in 0..self.graph.parts.len() {
                    for &against in direction.sides() {
                        self.lists(worker, part, against, vertices, |from, position, others| {
                            let view = &self.graph.parts[part];
                            chunk.lists.push(List {
                                from,
                                edge: EdgeAt::new(part, against, position),
                                start: chunk.neighbours.len(),
                            });
                            for other in others {
                                chunk.neighbours.push(view.to_graph(*other)?);
                            }
                            match chunk.neighbours.len() < CHUNK_NEIGHBOURS {
                                true => Ok(()),
                                false => step.send(std::mem::take(chunk)),
                            }
                        })?;
                    }
                }
                Ok(())
            })?;
        let mut last = Chunk::default();
        for chunk in rest {
            last.append(chunk);
            if last.neighbours.len() >= CHUNK_NEIGHBOURS {
                step.send(std::mem::take(&mut last))?;
            }
        }
        if !last.neighbours.is_empty() {
            step.send(last)?;
        }
        step.end()
    }
}

impl<T: Fn(Hop) -> R, R> Step<'_, T, R> {
    /// Takes in what the device found in the chunk before, then starts this one.
    fn send(&self, chunk: Chunk) -> Result<()> {
        let mut state = self.state.lock();
        self.job.check()?;
        self.finish(&mut state)?;
        if !state.has_failed {
            match self.start(&chunk, &mut state.bitmap) {
                Ok(call) => {
                    state.pending = Some(Pending { chunk, call });
                    return Ok(());
                }
                Err(error) => self.fail(&mut state, error)?,
            }
        }
        self.compute(&chunk, &mut state);
        Ok(())
    }

    /// What the step has made.
    fn end(self) -> Result<Vec<R>> {
        let mut state = self.state.lock();
        self.finish(&mut state)?;
        Ok(std::mem::take(&mut state.made))
    }

    fn fail(&self, state: &mut State<R>, error: StorageError) -> Result<()> {
        state.has_failed = true;
        self.device.fall_back(error).map(drop)
    }

    /// What the device would do, on the CPU.
    fn compute(&self, chunk: &Chunk, state: &mut State<R>) {
        for list in 0..chunk.lists.len() {
            for at in chunk.lists[list].start..chunk.end(list) {
                if self.visited.insert(chunk.neighbours[at]) {
                    state.made.push((self.take)(chunk.hop(list, at)));
                }
            }
        }
    }

    /// Elements that there must be for what is reached.
    fn capacity(&self, chunk: &Chunk) -> usize {
        chunk.neighbours.len().min(self.vertices as usize)
    }

    fn start(&self, chunk: &Chunk, bitmap: &mut Vec<u8>) -> Result<Box<dyn OffloadCall>> {
        let starts = chunk.lists.iter().map(|list| list.start);
        let ends = std::iter::once(chunk.neighbours.len());
        let offsets: Vec<u64> = starts.chain(ends).map(|at| at as u64).collect();
        self.visited.copy_to(bitmap);
        let capacity = self.capacity(chunk);
        let (mut next, mut next_list) = (vec![0; 4 * capacity], vec![0; 4 * capacity]);
        let mut length = [0; 4];
        let scalar = |value: usize| Argument::Scalar(ScalarArgument::I32(value as i32));
        self.device.start(
            Operation::GraphStep,
            &mut [
                Argument::In(offsets.to_byte_slice()),
                Argument::In(chunk.neighbours.to_byte_slice()),
                scalar(chunk.lists.len()),
                Argument::InOut(bitmap),
                scalar(self.vertices as usize),
                scalar(capacity),
                Argument::Out(&mut next),
                Argument::Out(&mut next_list),
                Argument::Out(&mut length),
            ],
        )
    }

    /// Takes in what the device has found in the chunk that it computes, if it computes one.
    fn finish(&self, state: &mut State<R>) -> Result<()> {
        let Some(Pending { chunk, call }) = state.pending.take() else {
            return Ok(());
        };
        let hops = self.wait(&chunk, call, &mut state.bitmap);
        match hops.and_then(|hops| self.mark(&hops).map(|()| hops)) {
            Ok(hops) => state.made.extend(hops.into_iter().map(&self.take)),
            Err(error) => {
                self.fail(state, error)?;
                self.compute(&chunk, state);
            }
        }
        Ok(())
    }

    fn wait(
        &self,
        chunk: &Chunk,
        call: Box<dyn OffloadCall>,
        bitmap: &mut [u8],
    ) -> Result<Vec<Hop>> {
        let capacity = self.capacity(chunk);
        let (mut next, mut next_list) = (vec![0; 4 * capacity], vec![0; 4 * capacity]);
        let mut length = [0; 4];
        // The bitmap that comes back is not used: the search's own is marked by what was reached.
        call.finish(&mut [bitmap, &mut next, &mut next_list, &mut length])?;
        let bytes = 4 * u32::from_le_bytes(length) as usize;
        let hops = match (next.get(..bytes), next_list.get(..bytes)) {
            (Some(next), Some(next_list)) => chunk.hops(next, next_list),
            _ => None,
        };
        hops.ok_or_else(wrong)
    }

    /// Marks what was reached, or nothing of it if something was visited before.
    fn mark(&self, hops: &[Hop]) -> Result<()> {
        match hops.iter().position(|hop| !self.visited.insert(hop.to)) {
            None => Ok(()),
            Some(wrong_one) => {
                let marked = &hops[..wrong_one];
                marked.iter().for_each(|hop| self.visited.remove(hop.to));
                Err(wrong())
            }
        }
    }
}

fn wrong() -> StorageError {
    StorageError::Kernel {
        kernel: Operation::GraphStep.name().into(),
        reason: "it gave vertices that the lists do not reach first".into(),
    }
}
