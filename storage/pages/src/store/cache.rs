//! The page cache: verified pages, and the page indexes that were made of some, bounded in bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

use super::PageAddress;
use crate::flash::PAGE_SIZE_BYTES;
use crate::page::{Page, PageIdentity, PageIndex};

/// What a cached page costs: its bytes, its header and its entry.
const ENTRY_BYTES: u64 = PAGE_SIZE_BYTES as u64 + size_of::<Page>() as u64 + 64;
/// Entries that tables are laid out for at first; they grow with use.
const INITIAL_ENTRIES_MAX: u64 = 1 << 16;

/// Page indexes may take up this share of what pages may, besides.
const INDEX_SHARE: u64 = 16;

/// Verified pages by address, evicted by a scan-resistant policy (a variant of CLOCK-Pro) when
/// their bytes exceed the capacity. Pages that someone still holds stay in memory beyond it.
#[derive(Debug)]
pub struct PageCache {
    pages: Cache<PageAddress, Arc<Page>, ByBytes>,
    /// By the first page of their chunk: no other ever has its identity.
    indexes: Cache<PageIdentity, Arc<PageIndex>, ByBytes>,
    capacity_bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// Counters of a [`PageCache`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Pages that readers found in it.
    pub hits: u64,
    /// Pages that readers had to fetch from flash.
    pub misses: u64,
    /// Bytes that its pages take up.
    pub used_bytes: u64,
    /// Bytes that they may take up.
    pub capacity_bytes: u64,
}

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<PageAddress, Arc<Page>> for ByBytes {
    fn weight(&self, _: &PageAddress, _: &Arc<Page>) -> u64 {
        ENTRY_BYTES
    }
}

impl Weighter<PageIdentity, Arc<PageIndex>> for ByBytes {
    fn weight(&self, _: &PageIdentity, index: &Arc<PageIndex>) -> u64 {
        index.memory_bytes() as u64 + 64
    }
}

impl PageCache {
    pub(super) fn new(capacity_bytes: u64) -> Self {
        let entries = (capacity_bytes / ENTRY_BYTES).clamp(1024, INITIAL_ENTRIES_MAX);
        let options = OptionsBuilder::new()
            .estimated_items_capacity(entries as usize)
            .weight_capacity(entries * ENTRY_BYTES)
            .build()
            .expect("all options are given");
        let cache = Self {
            pages: Cache::with_options(
                options,
                ByBytes,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            capacity_bytes: AtomicU64::new(capacity_bytes),
            indexes: Cache::with_weighter(1024, capacity_bytes / INDEX_SHARE, ByBytes),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        };
        cache.set_capacity_bytes(capacity_bytes);
        cache
    }

    /// Changes the capacity; evicts at once what is too much.
    pub fn set_capacity_bytes(&self, capacity_bytes: u64) {
        self.capacity_bytes.store(capacity_bytes, Ordering::Relaxed);
        self.pages.set_capacity(capacity_bytes);
        self.indexes.set_capacity(capacity_bytes / INDEX_SHARE);
    }

    /// The counters.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            used_bytes: self.pages.weight(),
            capacity_bytes: self.capacity_bytes.load(Ordering::Relaxed),
        }
    }

    /// Drops everything.
    pub fn clear(&self) {
        self.pages.clear();
        self.indexes.clear();
    }

    /// Whether a page is in it, which stays as likely to go as it was.
    pub(super) fn has(&self, address: &PageAddress) -> bool {
        self.pages.contains_key(address)
    }

    #[inline]
    pub(super) fn get(&self, address: &PageAddress) -> Option<Arc<Page>> {
        self.pages.get(address)
    }

    pub(super) fn insert(&self, address: PageAddress, page: Arc<Page>) {
        self.pages.insert(address, page);
    }

    pub(super) fn index(&self, chunk: &PageIdentity) -> Option<Arc<PageIndex>> {
        self.indexes.get(chunk)
    }

    pub(super) fn insert_index(&self, chunk: PageIdentity, index: Arc<PageIndex>) {
        self.indexes.insert(chunk, index);
    }

    pub(super) fn remove(&self, address: &PageAddress) {
        self.pages.remove(address);
    }

    /// Readers count for themselves and report now and then, so that threads do not fight for
    /// the counters.
    pub(super) fn count(&self, hits: u64, misses: u64) {
        self.hits.fetch_add(hits, Ordering::Relaxed);
        self.misses.fetch_add(misses, Ordering::Relaxed);
    }
}
