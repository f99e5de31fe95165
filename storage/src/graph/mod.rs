//! Searches and rankings over the neighbour lists of an edge table, beside the pages that hold
//! them (BlueDBM section 7.2: a traversal is a chain of dependent look-ups, so each hop that does
//! not go to the host and back saves its whole latency).
//!
//! A [`Graph`] is a view over the parts of an adjacency index ([`crate::index::adjacency`]) and the
//! edges that no part covers yet. A search runs as a [`Job`]: so many threads, a flag that cancels
//! it, counters of the pages it has read. Lists are read from pages through the page cache; what a
//! search keeps in memory is stated at each, in bytes a vertex, plus the pages of list starts that
//! it has touched (about 2 bytes a vertex and direction) and, for each thread, up to 1,024 pages
//! on their way.
//!
//! | module | what is in it |
//! |---|---|
//! | [`Graph::bfs`] | breadth-first search from many vertices at once |
//! | [`Graph::expand`] | the neighbourhoods of vertices, each on its own |
//! | [`Graph::shortest_path`] | the path of fewest edges, or of least weight |
//! | [`Graph::connected_components`], [`Graph::page_rank`] | the whole graph |
//! | [`Graph::neighbours`] | the lists themselves, for a search above the store |

mod bfs;
mod bits;
mod device;
mod expand;
mod lists;
mod path;
mod session;
#[cfg(test)]
pub(crate) mod tests;
mod whole;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::array::ArrayRef;
use parking_lot::Mutex;

pub use bfs::Bfs;
pub use expand::Neighbourhood;
pub use lists::{EdgeColumns, Neighbours};
pub use path::PathStep;
pub use whole::{Components, PageRank, PageRankOptions};

use crate::accelerator::ScanMetrics;
use crate::accelerator::device::Device;
use crate::accelerator::offload::{Fallback, Offload};
use crate::index::adjacency::{AdjacencyPart, KeyType, MAX_TAIL_ROWS, NO_VERTEX};
use crate::index::kind::Source;
use crate::index::pace::Pace;
use crate::index::paged::PagedArray;
use crate::index::{Index, IndexKind, IndexPart};
use crate::segment::{Segment, SegmentId};
use crate::store::{PageReader, PageStore, ReadCounters};
use crate::table::TableSnapshot;
use crate::{Result, StorageError};

/// Which edges a search follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direction {
    /// From source to target.
    #[default]
    Out,
    /// From target to source.
    In,
    /// Both ways.
    Both,
}

impl Direction {
    /// The lists to look at: along the edges (`false`), against them (`true`).
    fn sides(self) -> &'static [bool] {
        match self {
            Self::Out => &[false],
            Self::In => &[true],
            Self::Both => &[false, true],
        }
    }

    fn reversed(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
            Self::Both => Self::Both,
        }
    }
}

/// How a search runs, and what it has cost.
#[derive(Debug, Default)]
pub struct Job {
    threads: usize,
    bypass_cache: bool,
    cancelled: Arc<AtomicBool>,
    counters: Mutex<ReadCounters>,
    device: Option<Device>,
    /// Of a graph of more, no step goes to the device.
    max_device_vertices: u32,
}

impl Job {
    /// A job for `threads` threads, at least 1: the caller's and others that end with the call.
    pub fn new(threads: usize) -> Self {
        Self {
            threads: threads.max(1),
            ..Self::default()
        }
    }

    /// The job ends when `flag` is set: see [`Self::cancel_flag`].
    pub fn cancelled_by(mut self, flag: Arc<AtomicBool>) -> Self {
        self.cancelled = flag;
        self
    }

    /// Every page comes from flash, as if there were no page cache.
    pub fn bypass_cache(mut self) -> Self {
        self.bypass_cache = true;
        self
    }

    /// The steps of [`Graph::bfs`] and [`Graph::expand`] go to a device, if that has
    /// [`Operation::GraphStep`](crate::accelerator::offload::Operation::GraphStep); `metrics`
    /// counts its calls, and the steps that it failed at. Of a graph whose bitmap of vertices has
    /// more than 16 MiB every step counts as one that it failed at.
    pub fn offloaded_to(
        mut self,
        offload: Arc<dyn Offload>,
        fallback: Fallback,
        metrics: Arc<ScanMetrics>,
    ) -> Self {
        self.device = Some(Device::new(offload, fallback, metrics));
        self.max_device_vertices = device::MAX_VERTICES;
        self
    }

    /// The flag that ends the job when it is set: the call returns
    /// [`StorageError::Cancelled`] after the lists at work.
    pub fn cancel_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancelled)
    }

    /// Pages read so far by threads that are done.
    pub fn counters(&self) -> ReadCounters {
        *self.counters.lock()
    }

    fn check(&self) -> Result<()> {
        match self.cancelled.load(Ordering::Relaxed) {
            true => Err(StorageError::Cancelled),
            false => Ok(()),
        }
    }

    fn reader(&self, store: &Arc<PageStore>) -> Result<PageReader> {
        let mut reader = store.reader()?;
        if self.bypass_cache {
            reader.bypass_cache();
        }
        Ok(reader)
    }

    fn count(&self, reader: &mut PageReader) {
        let new = reader.take_counters();
        let mut all = self.counters.lock();
        all.pages_from_flash += new.pages_from_flash;
        all.bytes_from_flash += new.bytes_from_flash;
        all.pages_from_cache += new.pages_from_cache;
        all.wait_ns += new.wait_ns;
    }
}

/// The graph of one or more parts of an adjacency index.
///
/// Vertices are numbered densely in the order of their keys. With one part these are the part's
/// numbers. With several, the union of their keys is held in memory, with the way between its
/// numbers and those of each part: 8 bytes a vertex and up to 8 more for each part.
#[derive(Debug, Clone)]
pub struct Graph {
    store: Arc<PageStore>,
    key_type: KeyType,
    parts: Vec<Part>,
    /// Parts of the index: their pages stay as long as the graph.
    _stored: Vec<Arc<IndexPart>>,
    /// All keys, when there are several parts.
    keys: Option<Arc<[i64]>>,
    /// Numbers of vertices, those of gaps between keys among them.
    vertices: u32,
    /// Edges of the parts, deleted ones among them.
    edges: u64,
}

#[derive(Debug, Clone)]
struct Part {
    adjacency: Arc<AdjacencyPart>,
    /// `None`: the graph's numbers are the part's.
    maps: Option<Arc<Maps>>,
    /// Where it has edges that are deleted: its segments as the table has them, `None` for one that
    /// is gone.
    segments: Option<Vec<Option<Arc<Segment>>>>,
}

/// Between the numbers of a part and those of the graph; both ascend with the keys.
#[derive(Debug)]
struct Maps {
    to_graph: Vec<u32>,
    /// [`NO_VERTEX`] for those that the part does not have.
    to_part: Vec<u32>,
}

impl Part {
    /// A part's number as the graph's.
    ///
    /// # Errors
    /// `Corrupt` when the part has no such vertex.
    #[inline(always)]
    fn to_graph(&self, number: u32) -> Result<u32> {
        if number >= self.adjacency.vertices() {
            return Err(StorageError::corrupt(format!(
                "adjacency index: neighbour {number} of {} vertices",
                self.adjacency.vertices()
            )));
        }
        Ok(match &self.maps {
            None => number,
            Some(maps) => maps.to_graph[number as usize],
        })
    }

    /// Whether an edge, by its value in the part's rows, is not deleted.
    ///
    /// # Errors
    /// `Corrupt` when the part has no such segment.
    #[inline]
    fn has_row(&self, packed: u32) -> Result<bool> {
        let Some(segments) = &self.segments else {
            return Ok(true);
        };
        match segments.get((packed >> 16) as usize) {
            Some(segment) => Ok(segment
                .as_ref()
                .is_some_and(|segment| segment.has_row(packed & 0xffff))),
            None => self.adjacency.row(packed).map(|_| false),
        }
    }

    /// A graph's number as the part's, if the part has the vertex.
    #[inline(always)]
    fn to_part(&self, number: u32) -> Option<u32> {
        match &self.maps {
            None => Some(number),
            Some(maps) => Some(maps.to_part[number as usize]).filter(|part| *part != NO_VERTEX),
        }
    }
}

impl Graph {
    /// The graph of an adjacency index of `table`, whose pages are in `store`: made when it is
    /// first asked for, and kept with the index's version. Of the edges that no part covers one
    /// is made in memory: up to [`MAX_TAIL_ROWS`] of them, about 30 bytes each. Edges that were
    /// deleted since a part was built are left out by a look at the rows of each list there.
    ///
    /// # Errors
    /// `Invalid` for an index of another kind, and one that lags too far; `Corrupt`; those of
    /// reading what is not covered, and, of several parts, the keys of their vertices.
    pub fn of(table: &TableSnapshot, index: &Index, store: &Arc<PageStore>) -> Result<Arc<Self>> {
        index.check_kind(IndexKind::Adjacency, "a graph is searched")?;
        let whole = index.derived(|| {
            let mut reader = store.reader()?;
            let parts = index.parts.iter();
            let parts = parts.map(|part| part.opened(IndexKind::Adjacency, &mut reader));
            let mut parts = parts.collect::<Result<Vec<Arc<AdjacencyPart>>>>()?;
            if !index.tail.is_empty() {
                parts.push(Arc::new(tail_part(table, index, store)?));
            }
            Ok(Self {
                _stored: index.parts.clone(),
                ..Self::open(store, parts)?
            })
        })?;
        Ok(match whole.has_deleted(table) {
            true => Arc::new(whole.without_deleted(table)),
            false => whole,
        })
    }

    /// Whether parts may have edges that the table has no more: it has deleted rows, or lacks
    /// segments that they cover, as no two cover one.
    fn has_deleted(&self, table: &TableSnapshot) -> bool {
        let parts = self.parts.iter();
        let covered: usize = parts.map(|part| part.adjacency.segments().len()).sum();
        let mut segments = table.segments.iter();
        covered > segments.len() || segments.any(|segment| segment.deleted().is_some())
    }

    /// The same graph of the edges that this version of the table has.
    fn without_deleted(&self, table: &TableSnapshot) -> Self {
        let present: HashMap<SegmentId, &Arc<Segment>> =
            table.segments.iter().map(|s| (s.id, s)).collect();
        let mut graph = self.clone();
        for part in &mut graph.parts {
            let segments = part.adjacency.segments().iter();
            let segments = segments.map(|id| present.get(&SegmentId(*id)).copied().cloned());
            let segments: Vec<_> = segments.collect();
            // The part does not have what was deleted before, and a deleted row stays so.
            let has_all = segments.iter().zip(part.adjacency.deleted()).all(
                |(segment, deleted)| matches!(segment, Some(s) if s.rows - s.live_rows() == *deleted),
            );
            part.segments = (!has_all).then_some(segments);
        }
        graph
    }

    /// The graph of `parts`, whose pages are in `store`. With one part nothing is read.
    ///
    /// # Errors
    /// `Corrupt` when the parts do not belong to one index; those of reading keys.
    pub fn open(
        store: &Arc<PageStore>,
        parts: impl IntoIterator<Item: Into<Arc<AdjacencyPart>>>,
    ) -> Result<Self> {
        let parts: Vec<Arc<AdjacencyPart>> = parts.into_iter().map(Into::into).collect();
        let key_type = parts.first().map_or(KeyType::Int64, |part| part.key_type());
        if parts.iter().any(|part| part.key_type() != key_type) {
            return Err(StorageError::corrupt(
                "adjacency index: parts with different types of keys",
            ));
        }
        let edges = parts.iter().map(|part| part.edges()).sum();
        let mut graph = Self {
            store: Arc::clone(store),
            key_type,
            vertices: parts.first().map_or(0, |part| part.vertices()),
            edges,
            keys: None,
            _stored: Vec::new(),
            parts: parts
                .into_iter()
                .map(|adjacency| Part {
                    adjacency,
                    maps: None,
                    segments: None,
                })
                .collect(),
        };
        if graph.parts.len() > 1 {
            graph.unite()?;
        }
        Ok(graph)
    }

    /// Numbers the vertices of several parts.
    fn unite(&mut self) -> Result<()> {
        let mut reader = self.store.reader()?;
        let mut all = Vec::new();
        for part in &self.parts {
            part_keys(&part.adjacency, &mut reader, &mut all)?;
        }
        all.sort_unstable();
        all.dedup();
        let count = u32::try_from(all.len())
            .ok()
            .filter(|count| *count < NO_VERTEX);
        self.vertices = count.ok_or_else(|| {
            StorageError::Invalid(format!("a graph has {} vertices at most", NO_VERTEX - 1))
        })?;
        for part in &mut self.parts {
            let mut keys = Vec::new();
            part_keys(&part.adjacency, &mut reader, &mut keys)?;
            let mut maps = Maps {
                to_graph: Vec::with_capacity(keys.len()),
                to_part: vec![NO_VERTEX; all.len()],
            };
            let mut number = 0;
            for key in keys {
                while all.get(number).is_some_and(|known| *known < key) {
                    number += 1;
                }
                if all.get(number) != Some(&key) {
                    return Err(StorageError::corrupt("adjacency index: keys do not ascend"));
                }
                maps.to_part[number] = maps.to_graph.len() as u32;
                maps.to_graph.push(number as u32);
            }
            part.maps = Some(Arc::new(maps));
        }
        self.keys = Some(all.into());
        Ok(())
    }

    /// The type of vertex keys.
    pub fn key_type(&self) -> KeyType {
        self.key_type
    }

    /// Whether every edge has a weight.
    pub fn has_weights(&self) -> bool {
        self.parts.iter().all(|part| part.adjacency.has_weights())
    }

    /// The number that a key has or would have: a gap has one, too.
    fn number(&self, reader: &mut PageReader, key: i64) -> Result<Option<u32>> {
        let number = if let Some(keys) = &self.keys {
            keys.binary_search(&key).ok().map(|number| number as u64)
        } else if let Some(part) = self.parts.first() {
            match part.adjacency.keys() {
                Some(keys) => keys.search(reader, 0..keys.len(), key)?.ok(),
                None => Some(key.wrapping_sub(part.adjacency.first_key()) as u64)
                    .filter(|number| *number < u64::from(self.vertices)),
            }
        } else {
            None
        };
        Ok(number.map(|number| number as u32))
    }

    /// The keys of vertices, in the same order.
    ///
    /// # Errors
    /// Those of reading keys.
    fn keys(&self, reader: &mut PageReader, numbers: &[u32]) -> Result<ArrayRef> {
        let keys = if let Some(keys) = &self.keys {
            numbers
                .iter()
                .map(|number| keys[*number as usize])
                .collect()
        } else if let Some(part) = self.parts.first() {
            match part.adjacency.keys() {
                None => {
                    let first = part.adjacency.first_key();
                    let key = |number: &u32| first.wrapping_add(i64::from(*number));
                    numbers.iter().map(key).collect()
                }
                Some(keys) => {
                    let mut sorted: Vec<(u32, u32)> = numbers.iter().copied().zip(0..).collect();
                    sorted.sort_unstable();
                    let positions: Vec<u64> =
                        sorted.iter().map(|(number, _)| (*number).into()).collect();
                    let mut found: Vec<i64> = Vec::with_capacity(positions.len());
                    keys.gather(reader, &positions, &mut found)?;
                    let mut keys = vec![0; numbers.len()];
                    for ((_, place), key) in sorted.into_iter().zip(found) {
                        keys[place as usize] = key;
                    }
                    keys
                }
            }
        } else {
            Vec::new()
        };
        Ok(self.key_type.decode(keys))
    }
}

/// A part in memory of the edges that no part of the index covers.
fn tail_part(
    table: &TableSnapshot,
    index: &Index,
    store: &Arc<PageStore>,
) -> Result<AdjacencyPart> {
    let (name, rows) = (&index.definition.name, index.tail_rows());
    if rows > MAX_TAIL_ROWS {
        return Err(StorageError::Invalid(format!(
            "index '{name}' does not cover {rows} rows yet, and a search takes {MAX_TAIL_ROWS} \
             besides at most; system.indexes shows how far it is: try again when it is further, \
             or drop the index and create it again"
        )));
    }
    let data = IndexKind::Adjacency.of().build(&Source {
        definition: &index.definition,
        schema: &table.schema,
        segments: &index.tail,
        store,
        pace: &Pace::full(),
        failed_at: None,
    })?;
    let label = Arc::from(format!("table '{}', index '{name}', tail", table.name));
    let arrays = data.arrays.iter();
    let arrays = arrays.map(|slices| PagedArray::in_memory(&label, slices));
    AdjacencyPart::open(&data.meta, arrays.collect::<Result<_>>()?)
}

/// Appends the keys of a part's vertices.
fn part_keys(part: &AdjacencyPart, reader: &mut PageReader, out: &mut Vec<i64>) -> Result<()> {
    match part.keys() {
        Some(keys) => keys.read(reader, 0..keys.len(), out),
        None => {
            let keys = (0..i64::from(part.vertices())).map(|n| part.first_key().wrapping_add(n));
            out.extend(keys);
            Ok(())
        }
    }
}
