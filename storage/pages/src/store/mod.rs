//! The log-structured page store: where pages go, which are live, and the way back to them
//! through a bounded cache.
//!
//! The store knows pages and runs of pages, not tables: who owns which run is the manifest's
//! business (of the tables above), which tells the store at opening what is live. Whatever a crash
//! left behind outside those runs is free space by definition.
//!
//! Pages of small commits need not go to the card at once: a writer that may
//! ([`PageStore::small_writer`]) leaves them in memory, on a card of their own, and whoever lets it
//! keeps them in a log until they are written to a real card.
//!
//! Space comes back by whole erase blocks, when the last live page of a block is freed. Segments are
//! written and freed in large runs, so that most blocks die whole. When room runs short on a bounded
//! card, the live pages of sparse ones are moved (garbage collection): pages hold no address, so
//! that is the business of who has the manifest, the [`Collector`]. Some blocks are kept free for it.
//! Which blocks wear is the device's business.

mod allocator;
mod cache;
mod memory;
mod parts;
mod queues;
mod reader;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

pub use allocator::{ClosedBlock, StoreUsage};
pub use cache::{CacheStats, PageCache};
pub use memory::MEMORY_CARD;
pub use reader::{PageReader, ReadCounters};
pub use writer::{PageWriter, Reservation};

use crate::flash::{Flash, FlashHealth, FlashOp, FlashPage, PAGE_SIZE_BYTES, PageBuffer};
use crate::page::{Page, PageIdentity};
use crate::{Result, StorageError};
use allocator::Allocator;
use memory::MemoryPages;
use queues::{QueueLease, QueuePool};

/// What the pages in memory may take up before writers leave no more there.
pub const MEMORY_MAX_BYTES: u64 = 64 << 20;
/// Pages that a writer may leave in memory.
const SMALL_WRITER_PAGES: usize = 128;
/// Erase blocks that are kept free besides what pages in memory need: runs do not fill blocks.
const SPARE_BLOCKS: u64 = 4;
/// Erase blocks that are kept free for collection.
const COLLECTION_BLOCKS: u64 = 6;

/// A storage node of the rack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct NodeId(pub u16);

/// A flash card within a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CardId(pub u16);

/// A page anywhere in the rack (BlueDBM section 3: one global address space).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageAddress {
    /// The node that owns the card.
    pub node: NodeId,
    /// The card.
    pub card: CardId,
    /// The page on it.
    pub page: FlashPage,
}

/// A contiguous run of pages that belong together: one chunk.
#[derive(Debug, Clone)]
pub struct PageRun {
    /// Where its first page is.
    pub first: PageAddress,
    /// How many pages it has.
    pub count: u32,
    /// Identity of its first page; the others count `page` up.
    pub identity: PageIdentity,
    /// What errors call it, e.g. "table 'lineitem', column 'l_tax'".
    pub label: Arc<str>,
    /// Where its pages are parts of pages that it shares: which. The rest is then said of the run
    /// as if it had pages of its own, from where the shared ones begin.
    pub part: Option<Arc<RunPart>>,
}

/// What a chunk has of the pages that several columns share: those of one run, the auxiliary pages
/// of all columns first.
#[derive(Debug, Clone)]
pub struct RunPart {
    /// The run of all pages.
    pub run: Arc<PageRun>,
    /// The number of its part in each group page.
    pub number: u16,
    /// Parts of a group page.
    pub parts: u16,
    /// Its auxiliary page, as the run counts pages, if it has one.
    pub aux: Option<u32>,
    /// The first group page.
    pub first_group: u32,
}

/// Who can move live pages, as they know who owns them.
pub trait Collector: Debug + Send + Sync {
    /// Moves live pages out of blocks that are sparsely filled, so that more blocks are free; FALSE
    /// when nothing was to be gained. It is called by writers that have found no room, and returns
    /// when what was committed before has given its pages back.
    fn collect(&self) -> Result<bool>;
}

/// See [`PageStore::room`].
#[derive(Debug, Clone, Copy)]
struct Room {
    free_blocks: u64,
    gains: u64,
}

/// What came of asking for room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gain {
    /// There is more.
    Room,
    /// There was some, and others may have taken it.
    OfOthers,
    None,
}

/// The pages of one card: where they go, which are live, and the cache before them.
///
/// ```
/// # fn main() -> flashmesh_pages::Result<()> {
/// use std::sync::Arc;
/// use flashmesh_pages::flash::{Geometry, MemoryFlash, PageBuffer};
/// use flashmesh_pages::store::PageStore;
///
/// let geometry = Geometry { pages_per_erase_block: 256, erase_blocks: 64 };
/// let flash = Arc::new(MemoryFlash::new(geometry, 1));
/// let store = PageStore::open(flash, 1 << 20, [])?;
///
/// let mut writer = store.writer()?;
/// let first = writer.append(vec![PageBuffer::zeroed(); 3])?;
/// let reservation = writer.finish()?;
/// store.sync()?;
/// reservation.keep(); // after the manifest names the run
///
/// assert_eq!(store.usage().live_pages, 3);
/// store.free(first, 3)?;
/// assert_eq!(store.usage().allocated_blocks, 0);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct PageStore {
    flash: Arc<dyn Flash>,
    cache: PageCache,
    memory: MemoryPages,
    allocator: Mutex<Allocator>,
    queues: Arc<QueuePool>,
    /// Nothing is left that an earlier life of the store has left behind.
    is_reclaimed: AtomicBool,
    /// Readers that exist: they share what may be read ahead.
    readers: AtomicUsize,
    /// Why a sync failed: pages of any writer may be lost, and no later sync tells. Held while
    /// syncing, so that none ends well beside one that fails.
    sync_failure: Mutex<Option<String>>,
    /// Pages were written since the last sync.
    is_dirty: AtomicBool,
    collector: OnceLock<Weak<dyn Collector>>,
    /// How often blocks were erased because what was committed in them is not any more.
    gains: AtomicU64,
    written_pages: AtomicU64,
    collected_pages: AtomicU64,
    /// Pages that the card had programmed when the store was opened.
    programmed_before: u64,
}

impl PageStore {
    /// Opens the store of a device with a page cache of `cache_bytes`. `live` names the runs that
    /// hold data on it; all else is free.
    ///
    /// # Errors
    /// `Corrupt` when live runs overlap or lie outside the device.
    pub fn open(
        flash: Arc<dyn Flash>,
        cache_bytes: u64,
        live: impl IntoIterator<Item = (PageAddress, u32)>,
    ) -> Result<Arc<Self>> {
        let live = live
            .into_iter()
            .map(|(first, pages)| Ok((own_page(first)?, pages)));
        let live: Vec<_> = live.collect::<Result<_>>()?;
        let allocator = Allocator::open(
            flash.name(),
            flash.geometry(),
            flash.used_erase_blocks()?,
            flash.continues_blocks(),
            live.into_iter(),
        )?;
        Ok(Arc::new(Self {
            cache: PageCache::new(cache_bytes),
            memory: MemoryPages::new(),
            allocator: Mutex::new(allocator),
            queues: QueuePool::new(flash.clone()),
            is_reclaimed: AtomicBool::new(false),
            readers: AtomicUsize::new(0),
            sync_failure: Mutex::default(),
            // An earlier life may have ended before it synced.
            is_dirty: AtomicBool::new(true),
            collector: OnceLock::new(),
            gains: AtomicU64::new(0),
            programmed_before: flash.health().map_or(0, |health| health.pages_programmed),
            written_pages: AtomicU64::new(0),
            collected_pages: AtomicU64::new(0),
            flash,
        }))
    }

    /// A reader for the calling thread.
    pub fn reader(self: &Arc<Self>) -> Result<PageReader> {
        Ok(PageReader::new(self.clone(), self.queues.lease()?))
    }

    /// A writer for the calling thread. The first ones erase, a part each, what a crash has left
    /// behind.
    pub fn writer(self: &Arc<Self>) -> Result<PageWriter> {
        let mut queue = self.queues.lease()?;
        if !self.is_reclaimed.load(Ordering::Relaxed) {
            let remains = self.allocator.lock().reclaim();
            self.is_reclaimed
                .store(remains.is_empty(), Ordering::Relaxed);
            self.erase(&mut queue, &remains)?;
        }
        Ok(PageWriter::new(self.clone(), queue, 0))
    }

    /// A writer that leaves its first groups of runs in memory, up to a mebibyte, at addresses of
    /// [`MEMORY_CARD`]: they are lost with the process unless the caller keeps them elsewhere. Above
    /// [`MEMORY_MAX_BYTES`], and where the card has hardly room for them, it is like any other.
    pub fn small_writer(self: &Arc<Self>) -> Result<PageWriter> {
        let has_room = self.keep_room(2 * SMALL_WRITER_PAGES as u32).is_ok();
        match has_room && self.memory_bytes() < MEMORY_MAX_BYTES {
            true => Ok(PageWriter::new(
                self.clone(),
                self.queues.lease()?,
                SMALL_WRITER_PAGES,
            )),
            false => self.writer(),
        }
    }

    /// Whether `pages` more may be written, so that those in memory can be written still, and others
    /// moved.
    fn keep_room(&self, pages: u32) -> Result<()> {
        let in_memory = self.memory.count();
        let collects = self.collector.get().is_some();
        if in_memory == 0 && !collects {
            return Ok(());
        }
        let block_pages = u64::from(self.flash.geometry().pages_per_erase_block);
        let kept = match in_memory {
            0 => 0,
            _ => in_memory.div_ceil(block_pages) + SPARE_BLOCKS,
        };
        let kept = kept + if collects { COLLECTION_BLOCKS } else { 0 };
        let free_blocks = self.allocator.lock().free_blocks();
        if free_blocks > kept + u64::from(pages).div_ceil(block_pages) {
            return Ok(());
        }
        Err(StorageError::Full {
            device: self.flash.name(),
            needed_bytes: u64::from(pages) * PAGE_SIZE_BYTES as u64,
            free_bytes: free_blocks * block_pages * PAGE_SIZE_BYTES as u64,
        })
    }

    /// Has `collector` make room from now on.
    pub fn set_collector(&self, collector: Weak<dyn Collector>) {
        let _ = self.collector.set(collector);
    }

    /// Whether so few blocks are free that collecting is due, before a writer has to wait for it.
    pub fn is_short_of_blocks(&self) -> bool {
        let kept = COLLECTION_BLOCKS + self.memory_bytes() / self.block_bytes() + SPARE_BLOCKS;
        self.free_blocks() <= kept + self.flash.geometry().erase_blocks / 64
    }

    /// Erase blocks that can be written.
    pub fn free_blocks(&self) -> u64 {
        self.allocator.lock().free_blocks()
    }

    /// Bytes of what a writer can take in new blocks, but for the ends of blocks that its runs leave.
    pub fn free_bytes(&self) -> u64 {
        self.free_blocks().saturating_sub(1) * self.block_bytes()
    }

    /// Bytes of an erase block.
    fn block_bytes(&self) -> u64 {
        u64::from(self.flash.geometry().pages_per_erase_block) * PAGE_SIZE_BYTES as u64
    }

    /// The blocks whose live pages a [`Collector`] may move, in the order of their addresses.
    pub fn closed_blocks(&self) -> Vec<ClosedBlock> {
        self.allocator.lock().closed_blocks()
    }

    /// Has nobody write on in blocks that are collected, by their numbers.
    pub fn withdraw(&self, blocks: impl Iterator<Item = u64>) {
        self.allocator.lock().withdraw(blocks);
    }

    /// Counts pages that were written to move them.
    pub fn note_collected(&self, pages: u64) {
        self.collected_pages.fetch_add(pages, Ordering::Relaxed);
    }

    /// What tells whether room was gained meanwhile.
    fn room(&self) -> Room {
        Room {
            free_blocks: self.free_blocks(),
            gains: self.gains.load(Ordering::SeqCst),
        }
    }

    /// Asks the collector for room; says whether there may be more than at `looked`. That others were
    /// faster to take it does not mean that there was none: another writer may have had the same
    /// blocks collected, or a version that was just replaced may have given its pages back. What a
    /// writer takes back that failed is no gain: a collection that finds no room itself would be
    /// tried for ever.
    fn collect(&self, looked: Room) -> Result<Gain> {
        let Some(collector) = self.collector.get().and_then(Weak::upgrade) else {
            return Ok(Gain::None);
        };
        collector.collect()?;
        let now = self.room();
        if now.free_blocks > looked.free_blocks {
            Ok(Gain::Room)
        } else if now.gains != looked.gains {
            Ok(Gain::OfOthers)
        } else {
            Ok(Gain::None)
        }
    }

    /// What the card knows of its wear and its errors.
    pub fn health(&self) -> Option<FlashHealth> {
        self.flash.health()
    }

    /// Pages that the chips have programmed since the store was opened, for each that was written, but
    /// not to collect; `None` for cards that do not know, and before the first.
    pub fn write_amplification(&self) -> Option<f64> {
        let usage = self.usage();
        let written = usage.written_pages.checked_sub(usage.collected_pages)?;
        let programmed = self.health()?.pages_programmed - self.programmed_before;
        (written > 0).then(|| programmed as f64 / written as f64)
    }

    /// Bytes of the pages in memory.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.count() * PAGE_SIZE_BYTES as u64
    }

    /// A page in memory.
    pub fn memory_page(&self, page: u64) -> Option<Arc<Page>> {
        self.memory.get(page)
    }

    /// Puts pages back into memory that an earlier life of the store had there.
    ///
    /// # Errors
    /// `Corrupt` when they are not those of the run.
    pub fn restore(&self, run: &PageRun, pages: Vec<PageBuffer>) -> Result<()> {
        self.memory.restore(run, pages)
    }

    /// Ends the life of a run, or of a part of one, which no manifest names any more and nobody
    /// reads. Its pages leave the cache; blocks without a live page are erased.
    ///
    /// # Errors
    /// `Invalid` when a page of it is not live; then nothing was freed. A block that can't be
    /// erased is no error: it is erased when it is needed.
    pub fn free(&self, first: PageAddress, pages: u32) -> Result<()> {
        let is_gain = self.free_runs(&[(first, pages)])?;
        self.gains.fetch_add(is_gain.into(), Ordering::SeqCst);
        Ok(())
    }

    /// Says whether blocks became free.
    fn free_runs(&self, runs: &[(PageAddress, u32)]) -> Result<bool> {
        let mut dead = Vec::new();
        let mut result = Ok(());
        for &(first, pages) in runs {
            if first.card == MEMORY_CARD {
                self.memory.free(first.page.0, pages);
                continue;
            }
            let first = own_page(first)?;
            let freed = self.allocator.lock().free(first, pages);
            match freed {
                // A page that is not cached costs a look-up.
                Ok(blocks) => {
                    dead.extend(blocks);
                    (first.0..first.0 + u64::from(pages))
                        .for_each(|page| self.cache.remove(&address(FlashPage(page))));
                }
                Err(error) => result = Err(error),
            }
        }
        let is_gain = !dead.is_empty();
        if is_gain {
            let erased = self
                .queues
                .lease()
                .and_then(|mut queue| self.erase(&mut queue, &dead));
            if let Err(error) = erased {
                log::warn!("erasing what was freed: {error}");
            }
        }
        result.map(|()| is_gain)
    }

    /// Makes all durable that was written to the card.
    ///
    /// # Errors
    /// `NeedsReopening` from the first failure on.
    pub fn sync(&self) -> Result<()> {
        let mut failure = self.sync_failure.lock();
        // What was written before this call was noted before it; another one's sync has ended
        // when the lock is free.
        if failure.is_none() && self.is_dirty.swap(false, Ordering::SeqCst) {
            *failure = self.flash.sync().err().map(|error| error.to_string());
        }
        match &*failure {
            None => Ok(()),
            Some(why) => Err(StorageError::NeedsReopening { what: why.clone() }),
        }
    }

    /// The page cache.
    pub fn cache(&self) -> &PageCache {
        &self.cache
    }

    /// How full the device is.
    pub fn usage(&self) -> StoreUsage {
        StoreUsage {
            memory_pages: self.memory.count(),
            written_pages: self.written_pages.load(Ordering::Relaxed),
            collected_pages: self.collected_pages.load(Ordering::Relaxed),
            ..self.allocator.lock().usage()
        }
    }

    /// Erases blocks and reports each to the allocator. Nothing else of the queue's user is in
    /// flight.
    fn erase(&self, queue: &mut QueueLease, blocks: &[u64]) -> Result<()> {
        let mut in_flight = HashMap::new();
        let mut result = Ok(());
        let mut completions = Vec::new();
        let mut blocks = blocks.iter().copied();
        loop {
            while result.is_ok() && queue.room()? > 0 {
                let Some(block) = blocks.next() else { break };
                let first =
                    FlashPage(block * u64::from(self.flash.geometry().pages_per_erase_block));
                match queue.submit(|tag| FlashOp::Erase { tag, first }) {
                    Ok(tag) => {
                        in_flight.insert(tag, block);
                    }
                    Err(error) => {
                        self.allocator.lock().not_erased(block);
                        result = Err(error);
                    }
                }
            }
            if in_flight.is_empty() {
                break;
            }
            // When waiting fails nothing is known of what is in flight: those blocks stay out of
            // use until the store is opened again.
            queue.wait(1, &mut completions)?;
            let mut allocator = self.allocator.lock();
            for completion in completions.drain(..) {
                let Some(block) = in_flight.remove(&completion.tag) else {
                    continue;
                };
                match completion.result {
                    Ok(()) => allocator.erased(block),
                    Err(error) => {
                        allocator.not_erased(block);
                        result = Err(error);
                    }
                }
            }
        }
        let mut allocator = self.allocator.lock();
        blocks.for_each(|block| allocator.not_erased(block));
        result
    }
}

/// The address of a page of the one card that there is by now.
fn address(page: FlashPage) -> PageAddress {
    PageAddress {
        node: NodeId::default(),
        card: CardId::default(),
        page,
    }
}

/// The page of an address, which must be on the one card that there is by now.
fn own_page(address: PageAddress) -> Result<FlashPage> {
    if (address.node, address.card) != (NodeId::default(), CardId::default()) {
        return Err(StorageError::Invalid(format!(
            "page {} of node {}, card {} is not on this store's card",
            address.page.0, address.node.0, address.card.0
        )));
    }
    Ok(address.page)
}
