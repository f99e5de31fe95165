//! Regions: the runs of pages that blocks lie in, many of them one after the other.
//!
//! A region fills whole erase blocks, so that one that goes leaves nothing behind that would have
//! to be collected, and none shares an erase block with a table.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Bytes, BytesMut};

use super::state::BlockKey;
use crate::capability::random_bytes;
use crate::flash::{Geometry, PageBuffer};
use crate::page::{PAYLOAD_SIZE_BYTES, PageIdentity, bytes_page};
use crate::store::{PageReader, PageRun, PageStore};
use crate::{Result, StorageError};

/// Pages of a region where erase blocks are no larger (2 MiB).
const REGION_PAGES: u32 = 256;
/// The number that pages of the cache have in place of a table's.
pub(super) const CACHE_TABLE: u32 = u32::MAX;

/// Pages of a region on such a card; `None` where erase blocks have more than a run can number.
pub(super) fn region_pages(geometry: &Geometry) -> Option<u32> {
    let block = geometry.pages_per_erase_block;
    let pages = REGION_PAGES.checked_next_multiple_of(block)?;
    (pages <= u32::from(u16::MAX)).then_some(pages)
}

/// Pages that so many bytes take up.
pub(super) fn pages_of(bytes: usize) -> usize {
    bytes.div_ceil(PAYLOAD_SIZE_BYTES)
}

/// A region on the card. Its pages are given back with the last reader, once it was evicted.
#[derive(Debug)]
pub(super) struct Region {
    pub run: PageRun,
    store: Arc<PageStore>,
    is_evicted: AtomicBool,
}

impl Region {
    pub fn new(run: PageRun, store: &Arc<PageStore>) -> Arc<Self> {
        Arc::new(Self {
            run,
            store: Arc::clone(store),
            is_evicted: AtomicBool::new(false),
        })
    }

    /// Has the pages given back when nobody reads them any more.
    pub fn evict(&self) {
        self.is_evicted.store(true, Ordering::SeqCst);
    }

    /// Tells `reader` what will be read.
    pub fn prefetch(&self, reader: &mut PageReader, page: u32, part: &Range<usize>) -> Result<()> {
        reader.prefetch(&self.run, pages_at(page, part))
    }

    /// A part of the block of `length` bytes that starts at `page`.
    ///
    /// # Errors
    /// `Corrupt` when flash holds something else than what was written there; `Io`.
    pub fn read(
        &self,
        reader: &mut PageReader,
        page: u32,
        length: usize,
        part: Range<usize>,
    ) -> Result<Bytes> {
        let pages = pages_at(page, &part);
        let mut bytes = BytesMut::with_capacity(part.len());
        for number in pages {
            let found = reader.get(&self.run, number)?;
            let start = (number - page) as usize * PAYLOAD_SIZE_BYTES;
            let end = (start + PAYLOAD_SIZE_BYTES).min(length);
            let data = found.data();
            if data.len() != end - start {
                return Err(StorageError::corrupt(format!(
                    "{}, page {number}: holds {} bytes in place of {}",
                    self.run.label,
                    data.len(),
                    end - start
                )));
            }
            let from = part.start.max(start) - start;
            let to = part.end.min(end) - start;
            bytes.extend_from_slice(&data[from..to]);
        }
        Ok(bytes.freeze())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.is_evicted.load(Ordering::SeqCst)
            && let Err(error) = self.store.free(self.run.first, self.run.count)
        {
            log::warn!("giving back pages of the cache: {error}");
        }
    }
}

fn pages_at(page: u32, part: &Range<usize>) -> Range<u32> {
    let first = part.start / PAYLOAD_SIZE_BYTES;
    page + first as u32..page + pages_of(part.end).max(first) as u32
}

/// The blocks of a region that is not written yet.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// With their first pages.
    pub blocks: Vec<(BlockKey, u32, Bytes)>,
    pub pages: u32,
}

impl Gathered {
    /// The place of a block behind the others.
    pub fn push(&mut self, key: BlockKey, bytes: Bytes) {
        let pages = pages_of(bytes.len()) as u32;
        self.blocks.push((key, self.pages, bytes));
        self.pages += pages;
    }
}

/// What the first page of a new region is called: nothing was ever called so before.
pub(super) fn new_identity(generation: u32) -> PageIdentity {
    let [a, b, c, d, e, f] = random_bytes();
    PageIdentity {
        table: CACHE_TABLE,
        segment: u32::from_le_bytes([a, b, c, d]),
        column_group: u16::from_le_bytes([e, f]),
        page: 0,
        generation,
    }
}

/// The pages of a region.
pub(super) fn encode(gathered: &Gathered, pages: u32, first: &PageIdentity) -> Vec<PageBuffer> {
    let parts = gathered.blocks.iter();
    let parts = parts.flat_map(|(_, _, bytes)| bytes.chunks(PAYLOAD_SIZE_BYTES));
    let parts = parts.chain(std::iter::repeat(&[][..]));
    let numbered = (0..pages as u16).zip(parts);
    let encoded = numbered.map(|(page, part)| bytes_page(part, &PageIdentity { page, ..*first }));
    encoded.collect()
}
