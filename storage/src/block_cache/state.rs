//! What the cache knows: objects, their blocks, the regions that these lie in, and the order in
//! which regions go.
//!
//! The order is that of S3-FIFO (Yang and others, SOSP 2023) with regions in the place of single
//! entries: what is new goes to a small queue, and from its end to the main queue if it was used
//! meanwhile, so that a scan that passes once leaves the main queue alone; what was thrown out a
//! short while ago goes to the main queue at once. At the end of the main queue what was used goes
//! around once more. Blocks that stay are written again with others, so a region that goes is whole
//! erase blocks.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use hashbrown::{HashMap, HashSet};

use super::ObjectVersion;
use super::region::{Gathered, Region, pages_of};

/// Share of the regions that the small queue has: one in so many.
const SMALL_SHARE: usize = 10;
/// Uses are counted up to this.
const MAX_USES: u8 = 3;
/// Regions that wait to be written at most; what comes then is not kept (16 MiB).
const MAX_WAITING: usize = 8;
/// Blocks that were thrown out are remembered for each region that there may be.
const GHOSTS_PER_REGION: usize = 4;

/// A block: its object's number, and its own within it.
pub(super) type BlockKey = (u64, u32);

/// The queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    Small,
    Main,
}

/// An object of a store in one version.
#[derive(Debug)]
pub(super) struct Object {
    pub name: Arc<(String, String)>,
    pub version: ObjectVersion,
    pub blocks: HashMap<u32, Block>,
    pub hits: u64,
    pub misses: u64,
    /// Microseconds since 1970.
    pub used_at_us: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Block {
    pub place: Place,
    pub length: u32,
    pub uses: u8,
    /// The statement that counted last.
    pub used_in: u64,
}

#[derive(Debug, Clone)]
pub(super) enum Place {
    /// On its way to the card.
    Memory(Bytes),
    /// The region's number, and the page in it.
    Flash(u64, u32),
}

/// A region on the card.
#[derive(Debug)]
pub(super) struct Kept {
    pub region: Arc<Region>,
    pub queue: Queue,
    /// What was written there; some of it may be gone.
    pub blocks: Vec<BlockKey>,
    pub live: usize,
}

#[derive(Debug)]
pub(super) struct State {
    pub capacity_regions: usize,
    pub region_pages: u32,
    pub next_number: u64,
    pub statement: u64,
    pub objects: HashMap<u64, Object>,
    pub names: HashMap<Arc<(String, String)>, u64>,
    pub regions: HashMap<u64, Kept>,
    pub small: VecDeque<u64>,
    pub main: VecDeque<u64>,
    pub open_small: Gathered,
    pub open_main: Gathered,
    /// To be written.
    pub full: VecDeque<(Queue, Gathered)>,
    ghosts: Ghosts,
    /// The index on disk is not up to date.
    pub is_changed: bool,
    /// One is being written.
    pub is_busy: bool,
    pub is_closed: bool,
}

impl State {
    pub fn new(capacity_regions: usize, region_pages: u32) -> Self {
        Self {
            capacity_regions,
            region_pages,
            next_number: 0,
            statement: 0,
            objects: HashMap::new(),
            names: HashMap::new(),
            regions: HashMap::new(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            open_small: Gathered::default(),
            open_main: Gathered::default(),
            full: VecDeque::new(),
            ghosts: Ghosts::default(),
            is_changed: false,
            is_busy: false,
            is_closed: false,
        }
    }

    /// A number for an object or a region; none is given twice.
    pub fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    pub fn has_block(&self, (object, block): BlockKey) -> bool {
        let object = self.objects.get(&object);
        object.is_some_and(|object| object.blocks.contains_key(&block))
    }

    /// Counts a use of a block, and says where it is.
    pub fn used(&mut self, (object, block): BlockKey, now_us: u64) -> Option<Block> {
        let statement = self.statement;
        let object = self.objects.get_mut(&object)?;
        let found = object.blocks.get_mut(&block)?;
        // The many reads that one statement makes of a block are one use.
        if found.used_in != statement {
            found.used_in = statement;
            found.uses = (found.uses + 1).min(MAX_USES);
        }
        object.hits += 1;
        object.used_at_us = now_us;
        Some(found.clone())
    }

    /// Takes up a block that was fetched.
    pub fn insert(&mut self, key: BlockKey, bytes: Bytes) {
        if self.is_closed || self.full.len() >= MAX_WAITING || self.has_block(key) {
            return;
        }
        if pages_of(bytes.len()) > self.region_pages as usize {
            return;
        }
        let queue = match self.ghosts.remove(&key) {
            true => Queue::Main,
            false => Queue::Small,
        };
        let statement = self.statement;
        let Some(object) = self.objects.get_mut(&key.0) else {
            return;
        };
        let block = Block {
            place: Place::Memory(bytes.clone()),
            length: bytes.len() as u32,
            uses: 0,
            used_in: statement,
        };
        object.blocks.insert(key.1, block);
        self.gather(queue, key, bytes);
    }

    /// Puts a block to others that will be written together.
    pub fn gather(&mut self, queue: Queue, key: BlockKey, bytes: Bytes) {
        let max = self.region_pages;
        let pages = pages_of(bytes.len()) as u32;
        let open = match queue {
            Queue::Small => &mut self.open_small,
            Queue::Main => &mut self.open_main,
        };
        if open.pages + pages > max {
            self.full.push_back((queue, std::mem::take(open)));
        }
        open.push(key, bytes);
        if open.pages == max {
            self.full.push_back((queue, std::mem::take(open)));
        }
    }

    /// Has all be written that waits for more to come.
    pub fn close_open(&mut self) {
        if self.open_small.pages + self.open_main.pages <= self.region_pages {
            let blocks = std::mem::take(&mut self.open_small).blocks;
            for (key, _, bytes) in blocks {
                self.open_main.push(key, bytes);
            }
        }
        for (queue, open) in [
            (Queue::Small, &mut self.open_small),
            (Queue::Main, &mut self.open_main),
        ] {
            if open.pages > 0 {
                self.full.push_back((queue, std::mem::take(open)));
            }
        }
    }

    /// Notes a region that was written.
    pub fn written(&mut self, queue: Queue, gathered: &Gathered, region: Arc<Region>) {
        let number = self.next_number();
        let mut kept = Kept {
            region,
            queue,
            blocks: Vec::new(),
            live: 0,
        };
        for ((object, block), page, bytes) in &gathered.blocks {
            let object_blocks = self.objects.get_mut(object).map(|o| &mut o.blocks);
            let Some(found) = object_blocks.and_then(|blocks| blocks.get_mut(block)) else {
                continue;
            };
            // It may have gone and come back meanwhile.
            if matches!(&found.place, Place::Memory(held) if held.as_ptr() == bytes.as_ptr()) {
                found.place = Place::Flash(number, *page);
                kept.blocks.push((*object, *block));
                kept.live += 1;
            }
        }
        self.keep(number, kept);
    }

    /// Puts a region behind the others of its queue.
    pub fn keep(&mut self, number: u64, kept: Kept) {
        self.is_changed = true;
        if kept.live == 0 {
            kept.region.evict();
            return;
        }
        match kept.queue {
            Queue::Small => self.small.push_back(number),
            Queue::Main => self.main.push_back(number),
        }
        self.regions.insert(number, kept);
    }

    /// Which region goes next.
    pub fn next_to_go(&self) -> Option<u64> {
        let small = (self.capacity_regions / SMALL_SHARE).max(1);
        match self.small.len() > small || self.main.is_empty() {
            true => self.small.front().or(self.main.front()).copied(),
            false => self.main.front().copied(),
        }
    }

    /// Takes a region out with all that is in it.
    pub fn evict(&mut self, number: u64) -> Option<Kept> {
        let kept = self.regions.remove(&number)?;
        self.small.retain(|other| *other != number);
        self.main.retain(|other| *other != number);
        kept.region.evict();
        self.is_changed = true;
        for key in &kept.blocks {
            if self.is_in(*key, number) {
                self.drop_block(*key);
                if kept.queue == Queue::Small {
                    let most = self.capacity_regions * GHOSTS_PER_REGION;
                    self.ghosts.insert(*key, most);
                }
            }
        }
        Some(kept)
    }

    /// Whether a block lies in that region.
    pub fn is_in(&self, (object, block): BlockKey, region: u64) -> bool {
        let object = self.objects.get(&object);
        let block = object.and_then(|object| object.blocks.get(&block));
        block.is_some_and(|block| matches!(block.place, Place::Flash(r, _) if r == region))
    }

    fn drop_block(&mut self, (object, block): BlockKey) {
        let Some(of) = self.objects.get_mut(&object) else {
            return;
        };
        of.blocks.remove(&block);
        if of.blocks.is_empty() {
            self.drop_object(object);
        }
    }

    /// Takes out a block, and its region if it was the last one there.
    pub fn remove_block(&mut self, key: BlockKey) -> Option<Kept> {
        let object = self.objects.get(&key.0)?;
        let place = object.blocks.get(&key.1)?.place.clone();
        self.drop_block(key);
        self.left(&place)
    }

    /// Notes that a block is gone from its place.
    fn left(&mut self, place: &Place) -> Option<Kept> {
        self.is_changed = true;
        let Place::Flash(region, _) = place else {
            return None;
        };
        let kept = self.regions.get_mut(region)?;
        kept.live -= 1;
        match kept.live {
            0 => self.evict(*region),
            _ => None,
        }
    }

    fn drop_object(&mut self, object: u64) -> Option<Object> {
        let removed = self.objects.remove(&object)?;
        if self.names.get(&removed.name) == Some(&object) {
            self.names.remove(&removed.name);
        }
        Some(removed)
    }

    /// Takes out an object with all of its blocks.
    pub fn remove_object(&mut self, object: u64) -> Vec<Kept> {
        let removed = self.drop_object(object);
        let blocks = removed.into_iter().flat_map(|object| object.blocks);
        let places: Vec<_> = blocks.map(|(_, block)| block.place).collect();
        let emptied = places.iter().filter_map(|place| self.left(place));
        emptied.collect()
    }

    /// Takes out what could not be written.
    pub fn not_written(&mut self, gathered: &Gathered) {
        for (key, _, bytes) in &gathered.blocks {
            let object = self.objects.get(&key.0);
            let block = object.and_then(|object| object.blocks.get(&key.1));
            let is_held = block.is_some_and(|block| {
                matches!(&block.place, Place::Memory(held) if held.as_ptr() == bytes.as_ptr())
            });
            if is_held {
                self.drop_block(*key);
            }
        }
    }
}

/// Blocks that went from the small queue a while ago, oldest first.
#[derive(Debug, Default)]
struct Ghosts {
    order: VecDeque<BlockKey>,
    keys: HashSet<BlockKey>,
}

impl Ghosts {
    fn insert(&mut self, key: BlockKey, most: usize) {
        if self.keys.insert(key) {
            self.order.push_back(key);
        }
        while self.order.len() > most {
            if let Some(oldest) = self.order.pop_front() {
                self.keys.remove(&oldest);
            }
        }
    }

    /// Whether it was there.
    fn remove(&mut self, key: &BlockKey) -> bool {
        self.keys.remove(key)
    }
}
