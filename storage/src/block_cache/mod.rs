//! A cache on flash for what lies elsewhere: blocks of the objects of slow stores.
//!
//! What it holds is clean, a copy of something that can be fetched again, so nothing waits for it to
//! be durable and all of it may go at any time: for want of room ([`BlockCache::give_way`]), with its
//! file ([`INDEX_FILE`]), or because a page of it is not what was written there. Pages carry names
//! that were never given before and a checksum, so a block is what was put in, or it is a miss.
//!
//! An object is a path of a store in one version ([`ObjectVersion`]). Whoever reads says which version
//! is present; blocks of another one are dropped then. Which that is, and who may read what, the
//! cache can't know: it answers everybody who holds it.
//!
//! Willow has such an SSD app (section 4.4): metadata and replacement by software above, hits by the
//! card itself. Unlike there nothing in it is dirty.

mod index;
mod region;
mod state;
#[cfg(test)]
mod tests;
mod writer;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};

pub use index::{CacheIndex, INDEX_FILE};

use crate::Result;
use crate::flash::{Geometry, PAGE_SIZE_BYTES};
use crate::page::PAYLOAD_SIZE_BYTES;
use crate::store::PageStore;
use region::{Region, region_pages};
use state::{Block, BlockKey, Kept, Object, Place, Queue, State};

/// Bytes of a block: 64 pages. The last one of an object has less.
pub const BLOCK_BYTES: usize = 64 * PAYLOAD_SIZE_BYTES;
/// Share of a card that the cache takes at most: a quarter.
const CARD_SHARE: u64 = 4;
/// Fewer regions are no cache.
const MIN_REGIONS: u64 = 2;
/// Objects without blocks are forgotten when there are so many objects.
const MAX_OBJECTS: usize = 100_000;

/// Which version of an object it is, as far as its store tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectVersion {
    /// Its bytes.
    pub size: u64,
    /// Its strong ETag.
    pub e_tag: Option<String>,
    /// The store's own number of the version.
    pub version: Option<String>,
    /// When it was last modified: nanoseconds since 1970.
    pub modified_ns: i64,
}

impl ObjectVersion {
    /// Whether both are one version. ETags decide, where both have one; else the times do, of which
    /// one may be in whole seconds, as a store's listing may tell more than its headers.
    pub fn is(&self, other: &Self) -> bool {
        const SECOND: i64 = 1_000_000_000;
        let (a, b) = (self.modified_ns, other.modified_ns);
        let is_whole = a % SECOND == 0 || b % SECOND == 0;
        let at_once = a == b || (is_whole && a.div_euclid(SECOND) == b.div_euclid(SECOND));
        let same = |a: &Option<String>, b: &Option<String>| match (a, b) {
            (Some(a), Some(b)) => Some(a == b),
            _ => None,
        };
        self.size == other.size
            && same(&self.version, &other.version) != Some(false)
            && same(&self.e_tag, &other.e_tag).unwrap_or(at_once)
    }
}

/// An object, as [`BlockCache::contents`] tells of it.
#[derive(Debug, Clone)]
pub struct CachedObject {
    /// The store.
    pub store: String,
    /// The path in it.
    pub path: String,
    /// Its version.
    pub version: ObjectVersion,
    /// Bytes of it that are cached.
    pub cached_bytes: u64,
    /// Reads of blocks that were answered, since it came to be cached.
    pub hits: u64,
    /// Blocks that were fetched.
    pub misses: u64,
    /// The last read: microseconds since 1970.
    pub used_at_us: u64,
}

/// Counters of a [`BlockCache`], since the database was opened but for `used_bytes`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCacheStats {
    /// Reads of blocks that were answered.
    pub hits: u64,
    /// Blocks that were fetched.
    pub misses: u64,
    /// Bytes that were answered.
    pub hit_bytes: u64,
    /// Bytes of the blocks that were fetched.
    pub fetched_bytes: u64,
    /// Blocks that were not what was written, and so are no more.
    pub damaged: u64,
    /// What it takes up on the card.
    pub used_bytes: u64,
    /// What it may take up there.
    pub capacity_bytes: u64,
}

/// Where numbers of generations come from.
type Generations = Box<dyn Fn() -> Result<u32> + Send + Sync>;

/// The cache. It writes on a thread of its own; what waits for that thread is bounded, and what
/// comes faster is not kept.
#[derive(Debug)]
pub struct BlockCache {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    store: Arc<PageStore>,
    folder: PathBuf,
    /// Whether the card is a file in the folder.
    is_file: bool,
    erase_blocks: u64,
    state: Mutex<State>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes who waits for the thread.
    idle: Condvar,
    generations: OnceLock<Generations>,
    generation: OnceLock<u32>,
    hits: AtomicU64,
    misses: AtomicU64,
    hit_bytes: AtomicU64,
    fetched_bytes: AtomicU64,
    damaged: AtomicU64,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl BlockCache {
    /// The cache of a database in `folder`, of `capacity_bytes` at most and a quarter of the card;
    /// `None` where that is next to nothing. `index` is what [`CacheIndex::load`] has found; the store
    /// was opened with its runs. `is_file` says that the card takes its room from the folder's file
    /// system.
    pub fn open(
        store: &Arc<PageStore>,
        geometry: &Geometry,
        folder: &Path,
        is_file: bool,
        capacity_bytes: u64,
        index: CacheIndex,
    ) -> Option<Arc<Self>> {
        let pages = region_pages(geometry)?;
        let region_bytes = u64::from(pages) * PAGE_SIZE_BYTES as u64;
        let most = geometry.pages() / CARD_SHARE / u64::from(pages);
        let regions = (capacity_bytes / region_bytes).min(most);
        if regions < MIN_REGIONS {
            log::info!("the cache of external files would have {regions} regions: there is none");
            for (first, count) in index.runs() {
                let _ = store.free(first, count);
            }
            return None;
        }
        let mut state = State::new(regions as usize, pages);
        let gone = restore(&mut state, index, store);
        drop(gone);
        let usage = store.usage();
        let shared = Shared {
            store: Arc::clone(store),
            folder: folder.to_path_buf(),
            is_file,
            erase_blocks: usage.allocated_blocks + usage.free_blocks,
            state: Mutex::new(state),
            work: Condvar::new(),
            idle: Condvar::new(),
            generations: OnceLock::new(),
            generation: OnceLock::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            hit_bytes: AtomicU64::new(0),
            fetched_bytes: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
        };
        Some(Arc::new(Self {
            shared: Arc::new(shared),
            thread: Mutex::default(),
        }))
    }

    /// Begins to write: `generation` gives numbers that no page carries yet.
    pub fn start(&self, generation: impl Fn() -> Result<u32> + Send + Sync + 'static) {
        let _ = self.shared.generations.set(Box::new(generation));
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name("block cache".into());
        match thread.spawn(move || shared.run()) {
            Ok(thread) => *self.thread.lock() = Some(thread),
            Err(error) => log::warn!("nothing will be cached: {error}"),
        }
    }

    /// Writes what waits, says on disk what there is, and ends. It can be read still, but takes and
    /// gives nothing any more.
    pub fn close(&self) {
        let thread = self.thread.lock().take();
        {
            let mut state = self.shared.state.lock();
            state.close_open();
            state.is_closed = true;
        }
        self.shared.work.notify_all();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the cache's thread has panicked");
        }
    }

    /// Tells that a statement begins: reads of one statement count as one use of a block.
    pub fn start_statement(&self) {
        self.shared.state.lock().statement += 1;
    }

    /// The number of an object in this version, from now on the only one of which there are blocks.
    pub fn object(&self, store: &str, path: &str, version: &ObjectVersion) -> u64 {
        let name = Arc::new((store.to_string(), path.to_string()));
        let mut state = self.shared.state.lock();
        let mut gone = Vec::new();
        if let Some(number) = state.names.get(&name).copied() {
            match state.objects.get(&number) {
                Some(object) if object.version.is(version) => return number,
                _ => gone = state.remove_object(number),
            }
        }
        if state.objects.len() >= MAX_OBJECTS {
            let empty = state.objects.iter().filter(|(_, o)| o.blocks.is_empty());
            let empty: Vec<u64> = empty.map(|(number, _)| *number).collect();
            for number in empty {
                state.remove_object(number);
            }
        }
        let number = state.next_number();
        state.names.insert(Arc::clone(&name), number);
        let object = Object {
            name,
            version: version.clone(),
            blocks: Default::default(),
            hits: 0,
            misses: 0,
            used_at_us: now_us(),
        };
        state.objects.insert(number, object);
        drop(state);
        drop(gone);
        number
    }

    /// Whether a block is there, or was a moment ago.
    pub fn has(&self, object: u64, block: u32) -> bool {
        self.shared.state.lock().has_block((object, block))
    }

    /// Parts of blocks of an object, `None` for those that are not there. It blocks while flash is
    /// read.
    pub fn read(&self, object: u64, parts: &[(u32, Range<usize>)]) -> Vec<Option<Bytes>> {
        self.shared.read(object, parts)
    }

    /// Takes up a block that was fetched.
    pub fn insert(&self, object: u64, block: u32, bytes: &[u8]) {
        let shared = &self.shared;
        shared.misses.fetch_add(1, Ordering::Relaxed);
        let length = bytes.len() as u64;
        shared.fetched_bytes.fetch_add(length, Ordering::Relaxed);
        if bytes.is_empty() || bytes.len() > BLOCK_BYTES {
            return;
        }
        // What was fetched may be a small part of a large buffer.
        let bytes = Bytes::copy_from_slice(bytes);
        let mut state = shared.state.lock();
        if let Some(object) = state.objects.get_mut(&object) {
            object.misses += 1;
            object.used_at_us = now_us();
        }
        state.insert((object, block), bytes);
        if !state.full.is_empty() {
            shared.work.notify_all();
        }
    }

    /// Drops all blocks of an object: it was or will be written.
    pub fn forget(&self, store: &str, path: &str) {
        let name = (store.to_string(), path.to_string());
        let mut state = self.shared.state.lock();
        let number = state.names.get(&name).copied();
        let gone = number.map(|number| state.remove_object(number));
        drop(state);
        drop(gone);
    }

    /// Drops everything.
    pub fn clear(&self) {
        let mut state = self.shared.state.lock();
        let numbers: Vec<u64> = state.objects.keys().copied().collect();
        let gone: Vec<Kept> = numbers
            .into_iter()
            .flat_map(|number| state.remove_object(number))
            .collect();
        drop(state);
        drop(gone);
    }

    /// Gives back the regions that would go next, so many of them; FALSE when there are none.
    pub fn give_way(&self, regions: usize) -> bool {
        let mut state = self.shared.state.lock();
        if state.is_closed {
            return false;
        }
        let mut gone = Vec::new();
        while gone.len() < regions
            && let Some(next) = state.next_to_go()
        {
            gone.extend(state.evict(next));
        }
        drop(state);
        !gone.is_empty()
    }

    /// The objects of which something is cached.
    pub fn contents(&self) -> Vec<CachedObject> {
        let state = self.shared.state.lock();
        let objects = state.objects.values().filter(|o| !o.blocks.is_empty());
        let mut objects: Vec<_> = objects
            .map(|object| CachedObject {
                store: object.name.0.clone(),
                path: object.name.1.clone(),
                version: object.version.clone(),
                cached_bytes: object.blocks.values().map(|b| u64::from(b.length)).sum(),
                hits: object.hits,
                misses: object.misses,
                used_at_us: object.used_at_us,
            })
            .collect();
        drop(state);
        objects.sort_unstable_by(|a, b| (&a.store, &a.path).cmp(&(&b.store, &b.path)));
        objects
    }

    /// The counters.
    pub fn stats(&self) -> BlockCacheStats {
        let shared = &self.shared;
        let state = shared.state.lock();
        let region_bytes = u64::from(state.region_pages) * PAGE_SIZE_BYTES as u64;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        BlockCacheStats {
            hits: get(&shared.hits),
            misses: get(&shared.misses),
            hit_bytes: get(&shared.hit_bytes),
            fetched_bytes: get(&shared.fetched_bytes),
            damaged: get(&shared.damaged),
            used_bytes: state.regions.len() as u64 * region_bytes,
            capacity_bytes: state.capacity_regions as u64 * region_bytes,
        }
    }

    /// Waits until what has come so far is on the card, but for what waits for more to fill a region.
    pub fn settle(&self) {
        let mut state = self.shared.state.lock();
        while !state.is_closed && (state.is_busy || !state.full.is_empty()) {
            self.shared.idle.wait(&mut state);
        }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn read(&self, object: u64, parts: &[(u32, Range<usize>)]) -> Vec<Option<Bytes>> {
        let now = now_us();
        let found: Vec<_> = {
            let mut state = self.state.lock();
            let found = parts.iter().map(|(block, part)| {
                let found = state.used((object, *block), now)?;
                let region = match &found.place {
                    Place::Memory(_) => None,
                    Place::Flash(number, _) => Some(Arc::clone(&state.regions.get(number)?.region)),
                };
                (part.end <= found.length as usize).then_some((found, region))
            });
            found.collect()
        };
        let on_flash = |found: &Option<(Block, Option<Arc<Region>>)>| {
            found.as_ref().is_some_and(|(_, region)| region.is_some())
        };
        let mut reader = match found.iter().any(on_flash) {
            true => self.store.reader().ok(),
            false => None,
        };
        if let Some(reader) = &mut reader {
            for ((_, part), found) in parts.iter().zip(&found) {
                if let Some((block, Some(region))) = found
                    && let Place::Flash(_, page) = block.place
                {
                    // What can't be read is found below.
                    let _ = region.prefetch(reader, page, part);
                }
            }
        }
        let read = parts.iter().zip(found).map(|((number, part), found)| {
            let (block, region) = found?;
            let bytes = match (&block.place, &region, &mut reader) {
                (Place::Memory(bytes), ..) => Some(bytes.slice(part.clone())),
                (Place::Flash(_, page), Some(region), Some(reader)) => {
                    let length = block.length as usize;
                    match region.read(reader, *page, length, part.clone()) {
                        Ok(bytes) => Some(bytes),
                        Err(error) => {
                            log::warn!("{error}; it is fetched again");
                            self.damaged(&block, (object, *number));
                            None
                        }
                    }
                }
                _ => None,
            }?;
            self.hits.fetch_add(1, Ordering::Relaxed);
            let length = bytes.len() as u64;
            self.hit_bytes.fetch_add(length, Ordering::Relaxed);
            Some(bytes)
        });
        read.collect()
    }

    /// Takes out a block that could not be read.
    fn damaged(&self, found: &Block, key: BlockKey) {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let Place::Flash(region, _) = found.place else {
            return;
        };
        if state.is_closed || !state.is_in(key, region) {
            return;
        }
        let gone = state.remove_block(key);
        drop(state);
        drop(gone);
    }
}

/// Takes up what an earlier life has left; gives what there is no room for.
fn restore(state: &mut State, index: CacheIndex, store: &Arc<PageStore>) -> Vec<Kept> {
    let CacheIndex { record, runs } = index;
    let mut regions: Vec<Option<(u64, Kept)>> = runs
        .into_iter()
        .zip(&record.regions)
        .map(|(run, region)| {
            let kept = Kept {
                region: Region::new(run?, store),
                queue: match region.is_main {
                    true => Queue::Main,
                    false => Queue::Small,
                },
                blocks: Vec::new(),
                live: 0,
            };
            Some((state.next_number(), kept))
        })
        .collect();
    for object in record.objects {
        let number = state.next_number();
        let mut restored = Object {
            name: Arc::new((object.store, object.path)),
            version: ObjectVersion {
                size: object.size,
                e_tag: object.e_tag,
                version: object.version,
                modified_ns: object.modified_ns,
            },
            blocks: Default::default(),
            hits: object.hits,
            misses: object.misses,
            used_at_us: object.used_at_us,
        };
        for block in object.blocks {
            let Some(Some((region, kept))) = regions.get_mut(block.region as usize) else {
                continue;
            };
            let pages = (block.bytes as usize).div_ceil(PAYLOAD_SIZE_BYTES) as u64;
            let fits = u64::from(block.page) + pages <= u64::from(kept.region.run.count);
            if block.bytes == 0 || block.bytes as usize > BLOCK_BYTES || !fits {
                continue;
            }
            let entry = Block {
                place: Place::Flash(*region, block.page),
                length: block.bytes,
                uses: block.uses as u8,
                used_in: 0,
            };
            if restored.blocks.insert(block.block, entry).is_none() {
                kept.blocks.push((number, block.block));
                kept.live += 1;
            }
        }
        let is_known = state.names.contains_key(&restored.name);
        if !restored.blocks.is_empty() && !is_known {
            state.names.insert(Arc::clone(&restored.name), number);
            state.objects.insert(number, restored);
        }
    }
    for (number, kept) in regions.into_iter().flatten() {
        state.keep(number, kept);
    }
    let mut gone = Vec::new();
    while state.regions.len() > state.capacity_regions
        && let Some(next) = state.next_to_go()
    {
        gone.extend(state.evict(next));
    }
    gone
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
