//! Segments in memory that go to another node with their pages.
//!
//! What small commits wrote is in the head's memory until it is worth a place on a card. A node that is
//! to work on all of a bucket gets that, too.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use prost::Message;

use crate::flash::{PAGE_SIZE_BYTES, PageBuffer};
use crate::segment::{Chunk, Segment, Unnamed};
use crate::store::{MEMORY_CARD, PageRun, PageStore};
use crate::{Result, StorageError};

/// A run of pages in memory.
#[derive(Clone, PartialEq, Message)]
pub struct CarriedRun {
    /// The number of its first page there.
    #[prost(uint64, tag = "1")]
    first: u64,
    /// Each without the zeros at its end.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(crate) pages: Vec<Vec<u8>>,
}

fn runs_in_memory(segment: &Segment) -> impl Iterator<Item = &PageRun> {
    // Columns may share them.
    let mut seen = HashSet::new();
    let runs = segment.chunks.iter().flat_map(Chunk::runs);
    runs.filter(move |run| run.first.card == MEMORY_CARD && seen.insert(run.first.page))
}

/// Bytes of a segment's pages that are in memory.
pub fn bytes_in_memory(segment: &Segment) -> u64 {
    let runs = runs_in_memory(segment);
    runs.map(|run| u64::from(run.count) * PAGE_SIZE_BYTES as u64)
        .sum()
}

/// The pages of segments that are in memory.
///
/// # Errors
/// `Corrupt`, naming the run, for one that is not there.
pub(crate) fn carried(store: &PageStore, segments: &[Arc<Segment>]) -> Result<Vec<CarriedRun>> {
    let runs = segments.iter().flat_map(|segment| runs_in_memory(segment));
    runs.map(|run| {
        let first = run.first.page.0;
        let pages = (first..first + u64::from(run.count)).map(|page| {
            let page = store.memory_page(page);
            let page = page.ok_or_else(|| {
                StorageError::corrupt(format!("{}: a page of it is not in memory", run.label))
            })?;
            Ok(without_blank_end(&page.bytes()).to_vec())
        });
        Ok(CarriedRun {
            first,
            pages: pages.collect::<Result<_>>()?,
        })
    })
    .collect()
}

/// The segments with the pages that came for them in the memory of `store`, for as long as they are held.
///
/// # Errors
/// `Corrupt` where pages are missing, or others than theirs.
pub(crate) fn put_down(
    store: &Arc<PageStore>,
    segments: &[Arc<Segment>],
    carried: Vec<CarriedRun>,
) -> Result<Vec<Arc<Segment>>> {
    let carried = carried.into_iter().map(|run| (run.first, run.pages));
    let mut carried: HashMap<u64, Vec<Vec<u8>>> = carried.collect();
    let put_down = |segment: &Arc<Segment>| {
        let runs: Vec<&PageRun> = runs_in_memory(segment).collect();
        if runs.is_empty() {
            return Ok(Arc::clone(segment));
        }
        let with_pages = runs.iter().map(|run| {
            let pages = carried.remove(&run.first.page.0).unwrap_or_default();
            let pages = pages.iter().map(|bytes| {
                let mut page = PageBuffer::zeroed();
                let length = bytes.len().min(page.len());
                page[..length].copy_from_slice(&bytes[..length]);
                page
            });
            (*run, pages.collect())
        });
        let (places, reservation) = store.adopt(with_pages)?;
        let firsts = runs.iter().map(|run| run.first.page);
        let places: HashMap<_, _> = firsts.zip(places).collect();
        let moved = segment.moved(|first| match first.card {
            MEMORY_CARD => places.get(&first.page).copied().unwrap_or(first),
            _ => first,
        });
        moved.hold(&[Unnamed::new(reservation)]);
        Ok(Arc::new(moved))
    };
    segments.iter().map(put_down).collect()
}

/// The bytes up to the last that is not zero: most of a page that few rows are in is blank, so many of
/// them are looked at together.
pub(crate) fn without_blank_end(bytes: &[u8]) -> &[u8] {
    const BLANK: [u8; 256] = [0; 256];
    let blank = bytes.rchunks_exact(BLANK.len());
    let blank = blank.take_while(|chunk| **chunk == BLANK).count() * BLANK.len();
    let bytes = &bytes[..bytes.len() - blank];
    let last = bytes.iter().rposition(|byte| *byte != 0);
    &bytes[..last.map_or(0, |last| last + 1)]
}
