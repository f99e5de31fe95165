//! The neighbourhoods of vertices.

use arrow::array::{Array, ArrayRef, UInt32Array, UInt64Array};

use super::bfs::VERTICES_PER_SORTED;
use super::bits::Bits;
use super::session::{EdgeAt, Session, Worker};
use super::{Direction, Graph, Job};
use crate::Result;

/// Seeds at work together, for each thread.
const SEEDS_PER_THREAD: usize = 4;
/// Seeds are shared among threads from so many for each on; of fewer, the lists of each are shared.
const SEEDS_PER_THREAD_MIN: usize = 2;

/// The vertices that are within some hops of a seed: a few rows of the answer of
/// [`Graph::expand`].
#[derive(Debug)]
pub struct Neighbourhood {
    /// Which of the seeds, by place.
    pub seed: usize,
    /// Hops from the seed, from 1 on: the least that lead to the vertex.
    pub depths: UInt32Array,
    /// Keys of the vertices.
    pub vertices: ArrayRef,
    /// The row of the edge table (segment << 16 | row) of an edge that leads to the vertex from a
    /// vertex of the depth before.
    pub rows: UInt64Array,
}

/// What was found of one seed.
#[derive(Debug, Default)]
struct Found {
    vertices: Vec<u32>,
    depths: Vec<u32>,
    edges: Vec<EdgeAt>,
}

impl Graph {
    /// The neighbourhood of each seed (a key) within `hops` hops: every vertex but the seed that
    /// can be reached, once, at its least depth. Each seed has a neighbourhood of its own, so
    /// vertices come again with other seeds; a seed that comes twice has two.
    ///
    /// `take` gets the neighbourhoods in the order of the seeds, each ordered by depth.
    /// Memory: two bits a vertex for each thread, and 32 bytes for each row of at most four
    /// seeds a thread. Which of several possible edges leads to a vertex may differ from run to
    /// run.
    ///
    /// # Errors
    /// As [`Graph::bfs`], and those of `take`.
    pub fn expand<'a>(
        &'a self,
        job: &'a Job,
        seeds: &dyn Array,
        hops: u32,
        direction: Direction,
        mut take: impl FnMut(Neighbourhood) -> Result<()>,
    ) -> Result<()> {
        let session = Session::new(self, job);
        let mut workers = session.workers()?;
        let seeds = session.numbers(&mut workers[0], seeds)?;
        let threads = workers.len();
        let mut give = |worker: &mut Worker<'a>, seed: usize, found: Found| {
            take(Neighbourhood {
                seed,
                depths: UInt32Array::from(found.depths),
                vertices: self.keys(&mut worker.reader, &found.vertices)?,
                rows: UInt64Array::from(session.rows(worker, &found.edges)?),
            })
        };
        if seeds.len() < SEEDS_PER_THREAD_MIN * threads {
            let mut bits = [Bits::new(self.vertices), Bits::new(self.vertices)];
            for (place, seed) in seeds.into_iter().enumerate() {
                let found =
                    session.neighbourhood(&mut workers, &mut bits, seed, hops, direction)?;
                give(&mut workers[0], place, found)?;
            }
            return Ok(());
        }
        for (group, seeds) in seeds.chunks(threads * SEEDS_PER_THREAD).enumerate() {
            type Made = (Option<[Bits; 2]>, Vec<(usize, Found)>);
            let made = session.share(
                &mut workers,
                seeds.len(),
                |worker, place, made: &mut Made| {
                    let bits = made
                        .0
                        .get_or_insert_with(|| [(); 2].map(|()| Bits::new(self.vertices)));
                    let one = std::slice::from_mut(worker);
                    let found = session.neighbourhood(one, bits, seeds[place], hops, direction)?;
                    made.1.push((place, found));
                    Ok(())
                },
            )?;
            let mut made: Vec<_> = made.into_iter().flat_map(|(_, made)| made).collect();
            made.sort_unstable_by_key(|(place, _)| *place);
            for (place, found) in made {
                let place = group * threads * SEEDS_PER_THREAD + place;
                give(&mut workers[0], place, found)?;
            }
        }
        Ok(())
    }
}

impl<'a> Session<'a> {
    /// The neighbourhood of one seed. The first of the sets is empty before and after.
    fn neighbourhood(
        &self,
        workers: &mut [Worker<'a>],
        [visited, sorter]: &mut [Bits; 2],
        seed: u32,
        hops: u32,
        direction: Direction,
    ) -> Result<Found> {
        let few = self.graph.vertices as usize / VERTICES_PER_SORTED;
        let mut found = Found::default();
        visited.insert(seed);
        let mut frontier = vec![seed];
        for depth in 1..=hops {
            let device = self.device()?;
            let reached = self.reach(workers, &frontier, direction, device, visited, |hop| {
                (hop.to, hop.edge)
            })?;
            if reached.is_empty() {
                break;
            }
            found
                .depths
                .resize(found.depths.len() + reached.len(), depth);
            found
                .vertices
                .extend(reached.iter().map(|(vertex, _)| *vertex));
            found.edges.extend(reached.iter().map(|(_, edge)| *edge));
            if depth < hops {
                frontier.clear();
                frontier.extend(reached.iter().map(|(vertex, _)| *vertex));
                sorter.sort(&mut frontier, few);
            }
        }
        visited.remove(seed);
        found
            .vertices
            .iter()
            .for_each(|vertex| visited.remove(*vertex));
        Ok(found)
    }
}
