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

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;

pub use allocator::{ClosedBlock, StoreUsage};
pub use cache::{CacheStats, PageCache};
pub use memory::MEMORY_CARD;
pub use parts::PagePlace;
pub use reader::{PageReader, ReadCounters};
pub use writer::{PageWriter, Reservation};

use crate::flash::{
    Flash, FlashHealth, FlashOp, FlashPage, JoinedFlash, PAGE_SIZE_BYTES, PageBuffer, sync_all,
};
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

/// Bits of a page's number within its card: up to 128 TiB a card.
const PAGE_BITS: u32 = 34;
/// Pages that a card may have.
pub const CARD_PAGES_MAX: u64 = 1 << PAGE_BITS;
/// Bits of a card's number within its node.
const CARD_BITS: u32 = 4;
/// Bits of a node's number.
const NODE_BITS: u32 = 10;

impl PageAddress {
    /// The page as one number. Those of a card follow each other, those of node 0's first card are
    /// its own page numbers; the pages in memory are behind all cards.
    ///
    /// Of an address that no page can have, a number that no page has.
    pub fn number(&self) -> u64 {
        if self.card == MEMORY_CARD {
            return self.page.0;
        }
        let (node, card, page) = (u64::from(self.node.0), u64::from(self.card.0), self.page.0);
        match node >> NODE_BITS == 0 && card >> CARD_BITS == 0 && page >> PAGE_BITS == 0 {
            true => node << (CARD_BITS + PAGE_BITS) | card << PAGE_BITS | page,
            false => u64::MAX,
        }
    }

    /// The number of the first page of its card.
    fn card_first(&self) -> u64 {
        let first = Self {
            page: FlashPage(0),
            ..*self
        };
        first.number()
    }

    /// The page of a [number](Self::number).
    pub fn of_number(number: u64) -> Self {
        let bits = |from: u32, count: u32| (number >> from & ((1 << count) - 1)) as u16;
        match number >> (NODE_BITS + CARD_BITS + PAGE_BITS) {
            0 => Self {
                node: NodeId(bits(CARD_BITS + PAGE_BITS, NODE_BITS)),
                card: CardId(bits(PAGE_BITS, CARD_BITS)),
                page: FlashPage(number & ((1 << PAGE_BITS) - 1)),
            },
            _ => Self {
                node: NodeId::default(),
                card: MEMORY_CARD,
                page: FlashPage(number),
            },
        }
    }
}

/// A card of a store.
#[derive(Debug, Clone)]
pub struct StoreCard {
    /// The node that owns it.
    pub node: NodeId,
    /// Its number there.
    pub card: CardId,
    /// The device: the card itself, or a way to that of another node.
    pub flash: Arc<dyn Flash>,
}

impl StoreCard {
    /// The number of its first page, if a card can be there.
    fn first(&self) -> Result<u64> {
        let place = PageAddress {
            node: self.node,
            card: self.card,
            page: FlashPage(0),
        };
        match place.number() {
            u64::MAX => Err(StorageError::Invalid(format!(
                "{} is card {} of node {}; nodes go up to {}, cards to {}",
                self.flash.name(),
                self.card.0,
                self.node.0,
                (1 << NODE_BITS) - 1,
                (1 << CARD_BITS) - 1,
            ))),
            first => Ok(first),
        }
    }
}

/// What a store knows of a card.
#[derive(Debug)]
struct Card {
    flash: Arc<dyn Flash>,
    /// The number of its first page.
    first: u64,
    allocator: Mutex<Allocator>,
    /// Nothing is left that an earlier life of the store has left behind.
    is_reclaimed: AtomicBool,
    /// Nothing new is to be written to it: see [`PageStore::drain`].
    is_drained: AtomicBool,
    /// Pages were written since the last sync.
    is_dirty: AtomicBool,
    written_pages: AtomicU64,
    collected_pages: AtomicU64,
    /// Pages that it had programmed when the store was opened.
    programmed_before: u64,
}

impl Card {
    fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    fn node(&self) -> NodeId {
        PageAddress::of_number(self.first).node
    }
}

/// A card of a store, as it is now.
#[derive(Debug, Clone)]
pub struct CardStatus {
    /// The node that owns it.
    pub node: NodeId,
    /// Its number there.
    pub card: CardId,
    /// How full it is.
    pub usage: StoreUsage,
    /// What it knows of its wear and its errors.
    pub health: Option<FlashHealth>,
    /// Pages that the chips have programmed since the store was opened, for each that was written,
    /// but not to collect; `None` for cards that do not know, and before the first.
    pub write_amplification: Option<f64>,
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

/// The pages of a card, or of those of all nodes of a rack: where they go, which are live, and the
/// cache before them.
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
    /// In the order of their pages' numbers.
    cards: Vec<Card>,
    /// All of them.
    flash: Arc<dyn Flash>,
    cache: PageCache,
    memory: MemoryPages,
    queues: Arc<QueuePool>,
    /// Which of them has what belongs to no group: the first that was given.
    home: usize,
    /// The card to which the next group of runs goes, but for those that are full.
    next_card: AtomicUsize,
    /// Readers that exist: they share what may be read ahead.
    readers: AtomicUsize,
    /// Why a sync failed: pages of any writer may be lost, and no later sync tells. Held while
    /// syncing, so that none ends well beside one that fails.
    sync_failure: Mutex<Option<String>>,
    collector: OnceLock<Weak<dyn Collector>>,
    /// How often blocks were erased because what was committed in them is not any more.
    gains: AtomicU64,
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
        let card = StoreCard {
            node: NodeId::default(),
            card: CardId::default(),
            flash,
        };
        Self::open_cards(vec![card], cache_bytes, live)
    }

    /// [`PageStore::open`] of several cards. Each [group](PageWriter::start_group) of runs lies on one
    /// of them, groups take turns; what belongs to none is on the first card given.
    ///
    /// # Errors
    /// `Corrupt` as for one card, and when a live run is on none of them; `Invalid` for two cards
    /// at one place and for erase blocks of several sizes.
    pub fn open_cards(
        cards: Vec<StoreCard>,
        cache_bytes: u64,
        live: impl IntoIterator<Item = (PageAddress, u32)>,
    ) -> Result<Arc<Self>> {
        let home = cards.first().map(StoreCard::first).transpose()?;
        let mut cards = cards
            .into_iter()
            .map(|card| Ok((card.first()?, card.flash)))
            .collect::<Result<Vec<_>>>()?;
        cards.sort_by_key(|(first, _)| *first);
        let card_at = |first: u64| cards.binary_search_by_key(&first, |(first, _)| *first);
        let mut runs: Vec<Vec<(FlashPage, u32)>> = cards.iter().map(|_| Vec::new()).collect();
        for (address, pages) in live {
            let Ok(card) = card_at(address.card_first()) else {
                return Err(StorageError::corrupt(format!(
                    "pages are on card {} of node {}, which is not among the cards (was its node taken out of \
                     the rack file before it was empty?)",
                    address.card.0, address.node.0
                )));
            };
            runs[card].push((address.page, pages));
        }
        let flash: Arc<dyn Flash> = match cards.as_slice() {
            [(0, flash)] => Arc::clone(flash),
            _ => Arc::new(JoinedFlash::new(cards.iter().cloned())?),
        };
        let home = card_at(home.unwrap_or_default()).unwrap_or_default();
        let cards = cards.into_iter().zip(runs).map(|((first, flash), runs)| {
            let mut geometry = flash.geometry();
            let block_pages = u64::from(geometry.pages_per_erase_block.max(1));
            geometry.erase_blocks = geometry.erase_blocks.min(CARD_PAGES_MAX / block_pages);
            let allocator = Allocator::open(
                flash.name(),
                geometry,
                flash.used_erase_blocks()?,
                flash.continues_blocks(),
                runs.into_iter(),
            )?;
            Ok(Card {
                first,
                allocator: Mutex::new(allocator),
                is_reclaimed: AtomicBool::new(false),
                is_drained: AtomicBool::new(false),
                // An earlier life may have ended before it synced.
                is_dirty: AtomicBool::new(true),
                written_pages: AtomicU64::new(0),
                collected_pages: AtomicU64::new(0),
                programmed_before: flash.health().map_or(0, |health| health.pages_programmed),
                flash,
            })
        });
        let cards = cards.collect::<Result<Vec<_>>>()?;
        let store = Self {
            home,
            next_card: AtomicUsize::new(home),
            cards,
            cache: PageCache::new(cache_bytes),
            memory: MemoryPages::new(),
            queues: QueuePool::new(flash.clone()),
            readers: AtomicUsize::new(0),
            sync_failure: Mutex::default(),
            collector: OnceLock::new(),
            gains: AtomicU64::new(0),
            flash,
        };
        if store.cards.len() > 1 {
            // While all are there: later, only those that were written to are asked. What a card says is
            // told as it is: nothing depends on this store yet, and who opens it may wait for the card.
            let cards = store.cards.iter();
            cards.for_each(|card| card.is_dirty.store(false, Ordering::SeqCst));
            sync_all(store.cards.iter().map(|card| &card.flash))?;
        }
        Ok(Arc::new(store))
    }

    /// The first card that it was given.
    pub fn home_card(&self) -> &Arc<dyn Flash> {
        &self.cards[self.home].flash
    }

    /// Which card a page is on.
    fn card_of(&self, address: PageAddress) -> Result<usize> {
        let first = address.card_first();
        let card = self.cards.binary_search_by_key(&first, |card| card.first);
        card.map_err(|_| {
            StorageError::Invalid(format!(
                "page {} of node {}, card {} is on no card of this store",
                address.page.0, address.node.0, address.card.0
            ))
        })
    }

    /// The card for the next group of runs: they take turns, those of `node` if it has any, but for those
    /// that are drained, or without room.
    fn card_for_group(&self, pages: u32, node: Option<NodeId>) -> usize {
        let next = self.next_card.fetch_add(1, Ordering::Relaxed) % self.cards.len();
        if let Some(node) = node {
            let of_node = self.filled().filter(|(_, card)| card.node() == node);
            let of_node: Vec<usize> = of_node.map(|(number, _)| number).collect();
            let turns = (0..of_node.len()).map(|turn| of_node[(next + turn) % of_node.len()]);
            if let Some(card) = { turns }.find(|card| self.keep_room(*card, pages).is_ok()) {
                return card;
            }
        }
        let (mut card, mut with_room) = (self.filled_from(next), None);
        for _ in 0..self.cards.len() {
            if self.keep_room(card, pages).is_ok() {
                with_room = Some(card);
                break;
            }
            card = self.filled_from(card + 1);
        }
        with_room.unwrap_or_else(|| self.filled_from(next))
    }

    /// The first card from that one on, the last followed by the first, that is not drained. There is
    /// one: the home never is.
    fn filled_from(&self, card: usize) -> usize {
        let turns = (card..card + self.cards.len()).map(|turn| turn % self.cards.len());
        let mut filled = turns.filter(|&card| !self.cards[card].is_drained());
        filled.next().unwrap_or(self.home)
    }

    /// Cards that are not drained.
    fn filled(&self) -> impl Iterator<Item = (usize, &Card)> {
        let cards = self.cards.iter().enumerate();
        cards.filter(|(_, card)| !card.is_drained())
    }

    /// The nodes with cards that take what is new, in the order of their numbers.
    pub fn filled_nodes(&self) -> Vec<NodeId> {
        let nodes: BTreeSet<NodeId> = self.filled().map(|(_, card)| card.node()).collect();
        nodes.into_iter().collect()
    }

    /// From now on nothing new is written to these cards, and to all others; what a writer has begun
    /// there it ends. What is on them stays until whoever has the manifest moves it, or it dies.
    ///
    /// # Errors
    /// `Invalid`, and nothing is changed, for a card that the store has not, and for the first that it
    /// was given: pages in memory go there.
    pub fn drain(&self, cards: &[(NodeId, CardId)]) -> Result<()> {
        let mut drained = vec![false; self.cards.len()];
        for &(node, card) in cards {
            let number = self.number_of(node, card)?;
            if number == self.home {
                return Err(StorageError::Invalid(format!(
                    "card {} of node {} can't be drained: it is that of the database",
                    card.0, node.0
                )));
            }
            drained[number] = true;
        }
        for (card, is_drained) in self.cards.iter().zip(drained) {
            card.is_drained.store(is_drained, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a page is on a card that is drained.
    pub fn is_drained(&self, page: PageAddress) -> bool {
        page.card != MEMORY_CARD && self.is_drained_card(page.node, page.card)
    }

    /// Whether a card is drained.
    pub fn is_drained_card(&self, node: NodeId, card: CardId) -> bool {
        let number = self.number_of(node, card);
        number.is_ok_and(|number| self.cards[number].is_drained())
    }

    fn number_of(&self, node: NodeId, card: CardId) -> Result<usize> {
        self.card_of(PageAddress {
            node,
            card,
            page: FlashPage(0),
        })
    }

    /// Whether a card has room for so many pages.
    pub fn has_room_on(&self, (node, card): (NodeId, CardId), pages: u64) -> bool {
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let number = self.number_of(node, card);
        number.is_ok_and(|number| self.keep_room(number, pages).is_ok())
    }

    /// The card whose turn it is to take so many pages together: see [`PageWriter::start_group`].
    pub fn next_card(&self, pages: u64) -> (NodeId, CardId) {
        let card = self.card_for_group(u32::try_from(pages).unwrap_or(u32::MAX), None);
        let first = PageAddress::of_number(self.cards[card].first);
        (first.node, first.card)
    }

    /// Whether there are live pages on cards that are drained.
    pub fn has_drained_pages(&self) -> bool {
        let drained = self.cards.iter().filter(|card| card.is_drained());
        drained
            .into_iter()
            .any(|card| card.allocator.lock().usage().live_pages > 0)
    }

    /// How many pages of each card are live, or reserved by a writer.
    pub fn live_pages(&self) -> Vec<(NodeId, CardId, u64)> {
        let of_card = |card: &Card| {
            let place = PageAddress::of_number(card.first);
            let live_pages = card.allocator.lock().usage().live_pages;
            (place.node, place.card, live_pages)
        };
        self.cards.iter().map(of_card).collect()
    }

    /// How many of a run's pages are not in memory.
    pub fn pages_on_flash(&self, run: &PageRun) -> u32 {
        if run.first.card == MEMORY_CARD {
            return 0;
        }
        let on_flash = |page: &u32| !self.cache.has(&reader::page_address(run, *page));
        (0..run.count).filter(on_flash).count() as u32
    }

    /// A reader for the calling thread.
    pub fn reader(self: &Arc<Self>) -> Result<PageReader> {
        Ok(PageReader::new(self.clone(), self.queues.lease()?))
    }

    /// A writer for the calling thread. The first ones erase, a part each, what a crash has left
    /// behind.
    pub fn writer(self: &Arc<Self>) -> Result<PageWriter> {
        let mut queue = self.queues.lease()?;
        self.reclaim(&mut queue, self.home)?;
        Ok(PageWriter::new(self.clone(), queue, 0))
    }

    /// Erases a part of what a crash has left behind on a card.
    fn reclaim(&self, queue: &mut QueueLease, card: usize) -> Result<()> {
        let Card {
            allocator,
            is_reclaimed,
            ..
        } = &self.cards[card];
        if is_reclaimed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let remains = allocator.lock().reclaim();
        is_reclaimed.store(remains.is_empty(), Ordering::Relaxed);
        self.erase(queue, card, &remains)
    }

    /// A writer that leaves its first groups of runs in memory, up to a mebibyte, at addresses of
    /// [`MEMORY_CARD`]: they are lost with the process unless the caller keeps them elsewhere. Above
    /// [`MEMORY_MAX_BYTES`], and where the card has hardly room for them, it is like any other.
    pub fn small_writer(self: &Arc<Self>) -> Result<PageWriter> {
        self.small_writer_of(1)
    }

    /// The same for up to so many mebibytes, eight at most: of small groups that have hardly filled pages.
    pub fn small_writer_of(self: &Arc<Self>, mebibytes: usize) -> Result<PageWriter> {
        let pages = SMALL_WRITER_PAGES * mebibytes.clamp(1, 8);
        let has_room = self.keep_room(self.home, 2 * pages as u32).is_ok();
        match has_room && self.memory_bytes() < MEMORY_MAX_BYTES {
            true => Ok(PageWriter::new(self.clone(), self.queues.lease()?, pages)),
            false => self.writer(),
        }
    }

    /// Erase blocks of a card that are kept free for what is in memory (which goes to the first
    /// card), for ends of blocks that runs leave, and for collection.
    fn kept_blocks(&self, card: usize, collects: bool) -> u64 {
        let in_memory = match card == self.home {
            true => self.memory.count(),
            false => 0,
        };
        let kept = match in_memory {
            0 => 0,
            _ => in_memory.div_ceil(self.block_pages()) + SPARE_BLOCKS,
        };
        kept + if collects { COLLECTION_BLOCKS } else { 0 }
    }

    /// Whether `pages` more may be written to a card, so that those in memory can be written still,
    /// and others moved.
    fn keep_room(&self, card: usize, pages: u32) -> Result<()> {
        let kept = self.kept_blocks(card, self.collector.get().is_some());
        if kept == 0 {
            return Ok(());
        }
        let free_blocks = self.cards[card].allocator.lock().free_blocks();
        if free_blocks > kept + u64::from(pages).div_ceil(self.block_pages()) {
            return Ok(());
        }
        Err(StorageError::Full {
            device: self.cards[card].flash.name(),
            needed_bytes: u64::from(pages) * PAGE_SIZE_BYTES as u64,
            free_bytes: free_blocks * self.block_bytes(),
        })
    }

    /// Has `collector` make room from now on.
    pub fn set_collector(&self, collector: Weak<dyn Collector>) {
        let _ = self.collector.set(collector);
    }

    /// Whether so few blocks of a card are free that collecting is due, before a writer has to wait
    /// for it.
    pub fn is_short_of_blocks(&self) -> bool {
        self.filled().any(|(number, card)| {
            let in_memory = match number == self.home {
                true => self.memory_bytes() / self.block_bytes(),
                false => 0,
            };
            let kept = COLLECTION_BLOCKS + in_memory + SPARE_BLOCKS;
            let usage = card.allocator.lock().usage();
            // Of what pages can be addressed on: a file says that it may grow far beyond.
            let share = (usage.allocated_blocks + usage.free_blocks) / 64;
            usage.free_blocks <= kept + share
        })
    }

    /// Erase blocks that can be written, but for those of cards that are drained.
    pub fn free_blocks(&self) -> u64 {
        let free = |(_, card): (usize, &Card)| card.allocator.lock().free_blocks();
        self.filled().map(free).sum()
    }

    /// Bytes of what a writer can take in new blocks of a card, but for the ends of blocks that its
    /// runs leave: the least of any card.
    pub fn free_bytes(&self) -> u64 {
        let free = |(_, card): (usize, &Card)| card.allocator.lock().free_blocks();
        let least = self.filled().map(free).min().unwrap_or_default();
        least.saturating_sub(1) * self.block_bytes()
    }

    /// Pages of an erase block.
    fn block_pages(&self) -> u64 {
        u64::from(self.flash.geometry().pages_per_erase_block)
    }

    /// Bytes of an erase block.
    fn block_bytes(&self) -> u64 {
        self.block_pages() * PAGE_SIZE_BYTES as u64
    }

    /// The blocks whose live pages a [`Collector`] may move, in the order of their pages' numbers.
    pub fn closed_blocks(&self) -> Vec<ClosedBlock> {
        let closed = |(_, card): (usize, &Card)| {
            let first = card.first;
            let blocks = card.allocator.lock().closed_blocks();
            blocks.into_iter().map(move |block| ClosedBlock {
                pages: block.pages.start + first..block.pages.end + first,
                ..block
            })
        };
        self.filled().flat_map(closed).collect()
    }

    /// Has nobody write on in blocks that are collected, by the numbers of their first pages.
    pub fn withdraw(&self, blocks: impl Iterator<Item = u64>) {
        for number in blocks {
            let first = PageAddress::of_number(number);
            if let Ok(card) = self.card_of(first) {
                let block = first.page.0 / self.block_pages();
                self.cards[card]
                    .allocator
                    .lock()
                    .withdraw(std::iter::once(block));
            }
        }
    }

    /// Counts pages that were written to move them, to the card on which `page` is.
    pub fn note_collected(&self, page: PageAddress, pages: u64) {
        if let Ok(card) = self.card_of(page) {
            let collected = &self.cards[card].collected_pages;
            collected.fetch_add(pages, Ordering::Relaxed);
        }
    }

    /// Puts pages into the cache that were just written one behind the other, the first of them to `first`:
    /// who moves what is in use spares its readers the flash.
    pub fn cache_written(&self, first: PageAddress, pages: impl IntoIterator<Item = Arc<Page>>) {
        for (number, page) in (first.number()..).zip(pages) {
            self.cache.insert(PageAddress::of_number(number), page);
        }
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

    /// Takes pages into memory that another store has there, and gives their addresses here: until the
    /// reservation is dropped.
    ///
    /// # Errors
    /// `Corrupt` when they are not those of their runs.
    pub fn adopt<'a>(
        self: &Arc<Self>,
        runs: impl IntoIterator<Item = (&'a PageRun, Vec<PageBuffer>)>,
    ) -> Result<(Vec<PageAddress>, Reservation)> {
        let mut reservation = Reservation::none(Arc::clone(self));
        let mut places = Vec::new();
        for (run, pages) in runs {
            let first = self.memory.adopt(run, pages)?;
            reservation.add(first, run.count);
            places.push(first);
        }
        Ok((places, reservation))
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
        let mut dead = vec![Vec::new(); self.cards.len()];
        let mut result = Ok(());
        for &(first, pages) in runs {
            if first.card == MEMORY_CARD {
                self.memory.free(first.page.0, pages);
                continue;
            }
            let card = self.card_of(first)?;
            let freed = self.cards[card].allocator.lock().free(first.page, pages);
            match freed {
                // A page that is not cached costs a look-up.
                Ok(blocks) => {
                    dead[card].extend(blocks);
                    (first.page.0..first.page.0 + u64::from(pages)).for_each(|page| {
                        let page = FlashPage(page);
                        self.cache.remove(&PageAddress { page, ..first });
                    });
                }
                Err(error) => result = Err(error),
            }
        }
        let mut is_gain = false;
        for (card, dead) in dead
            .into_iter()
            .enumerate()
            .filter(|(_, dead)| !dead.is_empty())
        {
            is_gain = true;
            let queue = self.queues.lease();
            let erased = queue.and_then(|mut queue| self.erase(&mut queue, card, &dead));
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
        // when the lock is free. Cards that nothing was written to are left alone: one that is away
        // holds up nobody.
        if failure.is_none() {
            let dirty = |card: &&Card| card.is_dirty.swap(false, Ordering::SeqCst);
            let dirty: Vec<_> = self.cards.iter().filter(dirty).collect();
            let synced = sync_all(dirty.into_iter().map(|card| &card.flash));
            *failure = synced.err().map(|error| error.to_string());
        }
        match &*failure {
            None => Ok(()),
            Some(why) => Err(StorageError::NeedsReopening { what: why.clone() }),
        }
    }

    /// Why [`PageStore::sync`] fails from now on; `None` where it does not, or one is under way.
    pub fn failure(&self) -> Option<String> {
        self.sync_failure.try_lock()?.clone()
    }

    /// The page cache.
    pub fn cache(&self) -> &PageCache {
        &self.cache
    }

    /// How full the cards are, all of them together.
    pub fn usage(&self) -> StoreUsage {
        let mut usage = StoreUsage::default();
        for card in 0..self.cards.len() {
            usage.add(&self.usage_of(card));
        }
        usage
    }

    fn usage_of(&self, number: usize) -> StoreUsage {
        let card = &self.cards[number];
        StoreUsage {
            memory_pages: match number == self.home {
                true => self.memory.count(),
                false => 0,
            },
            written_pages: card.written_pages.load(Ordering::Relaxed),
            collected_pages: card.collected_pages.load(Ordering::Relaxed),
            ..card.allocator.lock().usage()
        }
    }

    /// Each card, that with the pages in memory first. Cards of other nodes are asked.
    pub fn card_statuses(&self) -> Vec<CardStatus> {
        let others = (0..self.cards.len()).filter(|card| *card != self.home);
        let status = |number: usize| {
            let card = &self.cards[number];
            let place = PageAddress::of_number(card.first);
            let (usage, health) = (self.usage_of(number), card.flash.health());
            let written = usage.written_pages.checked_sub(usage.collected_pages);
            let programmed = |health: FlashHealth| {
                health
                    .pages_programmed
                    .saturating_sub(card.programmed_before)
            };
            let written = written.filter(|written| *written > 0);
            CardStatus {
                node: place.node,
                card: place.card,
                write_amplification: health
                    .map(programmed)
                    .zip(written)
                    .map(|(programmed, written)| programmed as f64 / written as f64),
                usage,
                health,
            }
        };
        std::iter::once(self.home)
            .chain(others)
            .map(status)
            .collect()
    }

    /// Erases blocks and reports each to the allocator. Nothing else of the queue's user is in
    /// flight.
    fn erase(&self, queue: &mut QueueLease, card: usize, blocks: &[u64]) -> Result<()> {
        let Card {
            first, allocator, ..
        } = &self.cards[card];
        let mut in_flight = HashMap::new();
        let mut result = Ok(());
        let mut completions = Vec::new();
        let mut blocks = blocks.iter().copied();
        loop {
            while result.is_ok() && queue.room()? > 0 {
                let Some(block) = blocks.next() else { break };
                let first = FlashPage(first + block * self.block_pages());
                match queue.submit(|tag| FlashOp::Erase { tag, first }) {
                    Ok(tag) => {
                        in_flight.insert(tag, block);
                    }
                    Err(error) => {
                        allocator.lock().not_erased(block);
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
            let mut allocator = allocator.lock();
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
        let mut allocator = allocator.lock();
        blocks.for_each(|block| allocator.not_erased(block));
        result
    }
}
