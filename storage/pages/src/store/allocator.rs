//! Which pages are taken: log-structured over erase blocks.
//!
//! Life of an erase block: *free* ▸ *open* (a writer appends to it) ▸ *closed* ▸ possibly open again
//! for another writer, behind its last written page ▸ … ▸ all its pages dead ▸ *erasing* ▸ free.
//! Nothing is written twice between two erases. The state is not stored: it follows from the live
//! runs that the manifest names, and what is not live is free by definition. Of a block that was
//! open when the process ended nobody knows how far it was written; the next writer that continues
//! it reads its tail and looks (pages that were never written are zeros). On a device that does not
//! allow that (raw NAND, see [`Flash::continues_blocks`](crate::flash::Flash::continues_blocks)) it
//! is closed for good: what is left of it comes back when it is collected.
//!
//! This is bookkeeping only, without I/O: its users erase and probe blocks and report back.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::flash::{FlashPage, Geometry, PAGE_SIZE_BYTES};
use crate::{Result, StorageError};

/// A closed block with less room than this, or than an eighth, is not continued: hopping between
/// small rests would scatter a writer's runs.
const CONTINUE_ROOM_MIN_PAGES: u32 = 16;
/// Share of a card that dead pages may take up before they are collected, when it is full: more of
/// it means fewer live pages to move.
const OVER_PROVISIONED_PERCENT: u64 = 7;
/// A writer that keeps writing gets up to so many blocks at once, so that its runs lie together
/// although others write too.
const GRANT_MAX_BLOCKS: u64 = 8;
/// Dead blocks of an earlier life of the store that one writer erases before it starts (1 GiB).
const RECLAIM_MAX_BLOCKS: usize = 512;

#[derive(Debug)]
pub(super) struct Allocator {
    device: String,
    geometry: Geometry,
    /// Blocks from the device's start; all behind them are free.
    blocks: Vec<Block>,
    /// The free ones of `blocks`.
    free: BTreeSet<u64>,
    /// Closed blocks with enough room to be continued, by room.
    continuable: BTreeSet<(u32, u64)>,
    /// Blocks from here on are erased, unless `blocks` says otherwise.
    pristine_from: u64,
    /// A bit for each page of `blocks`: live, or reserved by a writer.
    live: Vec<u64>,
    live_pages: u64,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    state: BlockState,
    /// Its live and reserved pages.
    live_pages: u32,
    /// Pages from its start that may have been written.
    written_pages: u32,
    /// Pages behind `written_pages` may have been written too, before the store was opened.
    tail_unknown: bool,
    /// Must be erased before it is written.
    dirty: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Free,
    Open,
    Closed,
    Erasing,
}

/// Consecutive pages that belong to one writer, to be written in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Extent {
    /// What is left of it. It ends at the end of a block.
    pub(super) pages: Range<u64>,
    /// Blocks of the writer's next grant.
    next_grant_blocks: u64,
    /// Pages of it, or of an earlier place, were taken.
    is_used: bool,
}

impl Extent {
    /// Pages that are left of it.
    pub(super) fn room(&self) -> u64 {
        self.pages.end - self.pages.start
    }
}

/// What must be done before a new part of an extent may be written.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Chores {
    /// Blocks to erase.
    pub(super) erase: Vec<u64>,
    /// Pages to look at: writing may start behind the last one that is not zero.
    pub(super) probe: Option<Range<u64>>,
}

/// An erase block that nobody writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedBlock {
    /// Its pages.
    pub pages: Range<u64>,
    /// How many of them are live.
    pub live_pages: u32,
    /// Pages at its end that can be written still.
    pub room: u32,
}

/// Counts of an [`Allocator`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Pages that are live or reserved by a writer.
    pub live_pages: u64,
    /// Pages that were written and are dead, in blocks that hold live ones.
    pub dead_pages: u64,
    /// Erase blocks in use.
    pub allocated_blocks: u64,
    /// Erase blocks that can be written, up to the device's capacity.
    pub free_blocks: u64,
    /// Pages of an erase block.
    pub pages_per_erase_block: u32,
    /// Pages that should be live at most: collection works with the others.
    pub capacity_pages: u64,
    /// Pages in memory, which are on no card yet.
    pub memory_pages: u64,
    /// Pages written since the store was opened.
    pub written_pages: u64,
    /// Those of them that collection has moved.
    pub collected_pages: u64,
}

impl StoreUsage {
    /// Adds what another card has.
    pub(super) fn add(&mut self, other: &Self) {
        self.live_pages += other.live_pages;
        self.dead_pages += other.dead_pages;
        self.allocated_blocks += other.allocated_blocks;
        self.free_blocks += other.free_blocks;
        self.pages_per_erase_block = other.pages_per_erase_block;
        self.capacity_pages += other.capacity_pages;
        self.memory_pages += other.memory_pages;
        self.written_pages += other.written_pages;
        self.collected_pages += other.collected_pages;
    }

    /// Pages that are live or reserved, wherever they are.
    pub fn pages(&self) -> u64 {
        self.live_pages + self.memory_pages
    }
}

impl Allocator {
    /// The state that follows from the live runs. Blocks from `used_blocks` on are erased. With
    /// `continues` those that have live pages may be written on.
    pub(super) fn open(
        device: String,
        geometry: Geometry,
        used_blocks: u64,
        continues: bool,
        live_runs: impl Iterator<Item = (FlashPage, u32)>,
    ) -> Result<Self> {
        if geometry.pages_per_erase_block == 0 {
            return Err(StorageError::Invalid(format!(
                "{device}: erase blocks of no pages"
            )));
        }
        let mut allocator = Self {
            device,
            geometry,
            blocks: Vec::new(),
            free: BTreeSet::new(),
            continuable: BTreeSet::new(),
            pristine_from: used_blocks,
            live: Vec::new(),
            live_pages: 0,
        };
        for (first, count) in live_runs {
            allocator.claim(first, count)?;
        }
        for index in 0..allocator.blocks.len() as u64 {
            let block = allocator.block_mut(index);
            if block.live_pages == 0 {
                allocator.free.insert(index);
            } else if continues {
                block.state = BlockState::Closed;
                block.tail_unknown = true;
                allocator.offer_rest(index);
            } else {
                block.state = BlockState::Closed;
                block.written_pages = geometry.pages_per_erase_block;
            }
        }
        Ok(allocator)
    }

    /// Marks a run of the manifest as live.
    fn claim(&mut self, first: FlashPage, count: u32) -> Result<()> {
        let end = first
            .0
            .checked_add(u64::from(count))
            .filter(|&end| end <= self.geometry.pages());
        let Some(end) = end else {
            return Err(StorageError::corrupt(format!(
                "the manifest names pages {} to {} of {}, which has {} pages",
                first.0,
                first.0.saturating_add(u64::from(count)),
                self.device,
                self.geometry.pages()
            )));
        };
        let pages = first.0..end;
        self.know_blocks(pages.end.div_ceil(self.block_pages()));
        if let Some(page) = pages.clone().find(|&page| self.is_live(page)) {
            return Err(StorageError::corrupt(format!(
                "the manifest names page {page} of {} twice",
                self.device
            )));
        }
        self.set_live(pages, true);
        Ok(())
    }

    fn block_pages(&self) -> u64 {
        u64::from(self.geometry.pages_per_erase_block)
    }

    fn block_mut(&mut self, index: u64) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    /// Takes blocks up to `count` into `blocks`, as free ones that are not in `free` yet.
    fn know_blocks(&mut self, count: u64) {
        for index in self.blocks.len() as u64..count {
            self.blocks.push(Block {
                state: BlockState::Free,
                live_pages: 0,
                written_pages: 0,
                tail_unknown: false,
                dirty: index < self.pristine_from,
            });
        }
        let words = (self.blocks.len() as u64 * self.block_pages()).div_ceil(64);
        self.live.resize(words as usize, 0);
    }

    fn is_live(&self, page: u64) -> bool {
        self.live
            .get((page / 64) as usize)
            .is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    fn set_live(&mut self, pages: Range<u64>, live: bool) {
        for page in pages.clone() {
            let bit = 1 << (page % 64);
            let word = &mut self.live[(page / 64) as usize];
            *word = if live { *word | bit } else { *word & !bit };
        }
        let block_pages = self.block_pages();
        for index in pages.start / block_pages..pages.end.div_ceil(block_pages) {
            let start = pages.start.max(index * block_pages);
            let end = pages.end.min((index + 1) * block_pages);
            let count = (end - start) as u32;
            let block = self.block_mut(index);
            if live {
                block.live_pages += count;
                block.written_pages = block.written_pages.max((end - index * block_pages) as u32);
            } else {
                block.live_pages -= count;
            }
        }
        let count = pages.end - pages.start;
        self.live_pages = if live {
            self.live_pages + count
        } else {
            self.live_pages - count
        };
    }

    /// Lets the rest of a closed block be continued, if it is worth it.
    fn offer_rest(&mut self, index: u64) {
        let block = self.blocks[index as usize];
        let room = self.geometry.pages_per_erase_block - block.written_pages;
        let eighth = self.geometry.pages_per_erase_block / 8;
        if room >= CONTINUE_ROOM_MIN_PAGES.min(eighth.max(1)) {
            self.continuable.insert((room, index));
        }
    }

    /// Has a block be free.
    fn set_free(&mut self, index: u64) {
        self.block_mut(index).state = BlockState::Free;
        self.free.insert(index);
    }

    /// Takes the next `count` pages of the extent, which has them.
    pub(super) fn reserve(&mut self, extent: &mut Extent, count: u32) -> FlashPage {
        let first = extent.pages.start;
        let end = first + u64::from(count);
        debug_assert!(end <= extent.pages.end);
        self.set_live(first..end, true);
        let block_pages = self.block_pages();
        for index in first / block_pages..end / block_pages {
            self.block_mut(index).state = BlockState::Closed;
        }
        extent.pages.start = end;
        extent.is_used = true;
        FlashPage(first)
    }

    /// Gives the extent room for `count` consecutive pages: by the blocks behind it if they are
    /// free, else elsewhere. The chores come before the first write to the new part; blocks that
    /// to be erased are to be reported by [`Allocator::erased`] or [`Allocator::not_erased`].
    ///
    /// With `may_continue` a new extent may be the rest of a closed block.
    pub(super) fn grow(
        &mut self,
        extent: &mut Extent,
        count: u32,
        may_continue: bool,
    ) -> Result<Chores> {
        let block_pages = self.block_pages();
        let count = u64::from(count);
        if !extent.pages.is_empty() {
            let next_block = extent.pages.end / block_pages;
            let missing = count.saturating_sub(extent.pages.end - extent.pages.start);
            let blocks = missing.div_ceil(block_pages);
            if (next_block..next_block + blocks).all(|index| self.is_free(index)) {
                extent.pages.end += blocks * block_pages;
                return Ok(self.open_blocks(next_block, blocks));
            }
        }
        let dead = self.close(extent);
        let mut chores = match self.grow_elsewhere(extent, count, may_continue) {
            Ok(chores) => chores,
            Err(error) => {
                dead.into_iter().for_each(|index| self.not_erased(index));
                return Err(error);
            }
        };
        chores.erase.extend(dead);
        Ok(chores)
    }

    fn grow_elsewhere(
        &mut self,
        extent: &mut Extent,
        count: u64,
        may_continue: bool,
    ) -> Result<Chores> {
        let block_pages = self.block_pages();
        // A new writer continues where another stopped, so that many small loads fill a block.
        if may_continue
            && !extent.is_used
            && let Some(&(room, index)) = self.continuable.last()
            && u64::from(room) >= count
        {
            return Ok(self.continue_block(extent, room, index));
        }
        extent.is_used = true;
        let needed = count.div_ceil(block_pages);
        let wanted = extent
            .next_grant_blocks
            .clamp(needed, GRANT_MAX_BLOCKS.max(needed));
        let found = self.find_free(wanted).map(|first| (first, wanted));
        if let Some((first, blocks)) = found.or_else(|| Some((self.find_free(needed)?, needed))) {
            extent.next_grant_blocks = blocks * 2;
            extent.pages = first * block_pages..(first + blocks) * block_pages;
            return Ok(self.open_blocks(first, blocks));
        }
        if let Some(&(room, index)) = self
            .continuable
            .range((u32::try_from(count).unwrap_or(u32::MAX), 0)..)
            .next()
        {
            return Ok(self.continue_block(extent, room, index));
        }
        Err(StorageError::Full {
            device: self.device.clone(),
            needed_bytes: count * PAGE_SIZE_BYTES as u64,
            free_bytes: self.free_blocks() * block_pages * PAGE_SIZE_BYTES as u64,
        })
    }

    fn continue_block(&mut self, extent: &mut Extent, room: u32, index: u64) -> Chores {
        self.continuable.remove(&(room, index));
        let end = (index + 1) * self.block_pages();
        extent.pages = end - u64::from(room)..end;
        let block = self.block_mut(index);
        block.state = BlockState::Open;
        let probe = block.tail_unknown.then(|| extent.pages.clone());
        Chores {
            erase: Vec::new(),
            probe,
        }
    }

    /// The result of a probe: the open extent can be written from `first_unwritten` on. A block
    /// that is returned holds no live page any more: it is to be erased and reported.
    pub(super) fn probed(&mut self, extent: &mut Extent, first_unwritten: u64) -> Option<u64> {
        let block_pages = self.block_pages();
        let index = extent.pages.start / block_pages;
        extent.pages.start = first_unwritten.clamp(extent.pages.start, extent.pages.end);
        let written_pages = (extent.pages.start - index * block_pages) as u32;
        let block = self.block_mut(index);
        block.written_pages = written_pages;
        block.tail_unknown = false;
        if extent.pages.is_empty() {
            self.close_block(index)
        } else {
            None
        }
    }

    /// Ends the writing of an open block, which is returned when it holds no live page any more.
    fn close_block(&mut self, index: u64) -> Option<u64> {
        let block = self.block_mut(index);
        if block.written_pages == 0 {
            self.set_free(index);
        } else if block.live_pages == 0 {
            return Some(self.start_erase(index));
        } else {
            block.state = BlockState::Closed;
            self.offer_rest(index);
        }
        None
    }

    /// Takes a block without live pages out of use until its erase is reported.
    fn start_erase(&mut self, index: u64) -> u64 {
        let block = self.block_mut(index);
        block.state = BlockState::Erasing;
        block.dirty = true;
        index
    }

    fn is_free(&self, index: u64) -> bool {
        match self.blocks.get(index as usize) {
            Some(block) => block.state == BlockState::Free,
            None => index < self.geometry.erase_blocks,
        }
    }

    /// The lowest of `count` adjacent free blocks.
    fn find_free(&self, count: u64) -> Option<u64> {
        let known = self.blocks.len() as u64;
        let (mut first, mut adjacent) = (known, 0);
        for &index in &self.free {
            if first + adjacent != index {
                (first, adjacent) = (index, 0);
            }
            adjacent += 1;
            if adjacent == count {
                return Some(first);
            }
        }
        // Free blocks at the end of the known ones are adjacent to those behind.
        if first + adjacent != known {
            first = known;
        }
        (count <= self.geometry.erase_blocks.saturating_sub(first)).then_some(first)
    }

    fn open_blocks(&mut self, first: u64, count: u64) -> Chores {
        let known = self.blocks.len() as u64;
        self.know_blocks(first + count);
        self.free.extend(known..first);
        let mut chores = Chores::default();
        for index in first..first + count {
            self.free.remove(&index);
            let block = self.block_mut(index);
            block.state = BlockState::Open;
            if block.dirty {
                chores.erase.push(index);
            }
        }
        chores
    }

    /// A block that was open or erasing has been erased.
    pub(super) fn erased(&mut self, index: u64) {
        let block = self.block_mut(index);
        block.dirty = false;
        block.tail_unknown = false;
        block.written_pages = 0;
        if block.state == BlockState::Erasing {
            self.set_free(index);
        }
    }

    /// A block could not be erased: the next user has to try again.
    pub(super) fn not_erased(&mut self, index: u64) {
        let block = self.block_mut(index);
        if block.state == BlockState::Erasing {
            self.set_free(index);
        }
    }

    /// Ends a writer's extent. The blocks returned hold no live page any more: they are to be
    /// erased and reported.
    pub(super) fn close(&mut self, extent: &mut Extent) -> Vec<u64> {
        let mut dead = Vec::new();
        if !extent.pages.is_empty() {
            let block_pages = self.block_pages();
            let blocks = extent.pages.start / block_pages..extent.pages.end / block_pages;
            dead.extend(blocks.filter_map(|index| self.close_block(index)));
        }
        extent.pages = 0..0;
        dead
    }

    /// Ends the life of pages. The blocks returned hold no live page any more: they are to be
    /// erased and reported.
    pub(super) fn free(&mut self, first: FlashPage, count: u32) -> Result<Vec<u64>> {
        let pages = first.0..first.0.saturating_add(u64::from(count));
        let is_short = pages.end - pages.start < u64::from(count);
        let stranger = pages.clone().find(|&page| !self.is_live(page));
        if let Some(page) = stranger.or(is_short.then_some(u64::MAX)) {
            return Err(StorageError::Invalid(format!(
                "page {page} of {} is given back although it is not in use",
                self.device
            )));
        }
        let mut dead = Vec::new();
        if pages.is_empty() {
            return Ok(dead);
        }
        self.set_live(pages.clone(), false);
        let block_pages = self.block_pages();
        for index in pages.start / block_pages..pages.end.div_ceil(block_pages) {
            let block = self.blocks[index as usize];
            if block.live_pages == 0 && block.state == BlockState::Closed {
                let room = self.geometry.pages_per_erase_block - block.written_pages;
                self.continuable.remove(&(room, index));
                dead.push(self.start_erase(index));
            }
        }
        Ok(dead)
    }

    /// Free blocks with the remains of an earlier life of the store, to be erased and reported.
    pub(super) fn reclaim(&mut self) -> Vec<u64> {
        let known = self.blocks.len() as u64;
        let remains = self.pristine_from.min(self.geometry.erase_blocks);
        if remains > known {
            let until = remains.min(known + RECLAIM_MAX_BLOCKS as u64);
            self.know_blocks(until);
            self.free.extend(known..until);
        }
        let dirty: Vec<u64> = (self.free.iter().copied())
            .filter(|&index| self.blocks[index as usize].dirty)
            .take(RECLAIM_MAX_BLOCKS)
            .collect();
        for &index in &dirty {
            self.free.remove(&index);
            self.start_erase(index);
        }
        dirty
    }

    /// Has no writer continue these blocks.
    pub(super) fn withdraw(&mut self, blocks: impl Iterator<Item = u64>) {
        for index in blocks {
            if let Some(block) = self.blocks.get(index as usize) {
                let room = self.geometry.pages_per_erase_block - block.written_pages;
                self.continuable.remove(&(room, index));
            }
        }
    }

    /// Blocks that nobody writes.
    pub(super) fn closed_blocks(&self) -> Vec<ClosedBlock> {
        let block_pages = self.block_pages();
        let blocks = (0..).zip(&self.blocks);
        let closed = blocks.filter(|(_, block)| block.state == BlockState::Closed);
        let closed = closed.map(|(index, block): (u64, _)| {
            let room = self.geometry.pages_per_erase_block - block.written_pages;
            let room = match self.continuable.contains(&(room, index)) {
                true => room,
                false => 0,
            };
            ClosedBlock {
                pages: index * block_pages..(index + 1) * block_pages,
                live_pages: block.live_pages,
                room,
            }
        });
        closed.collect()
    }

    /// Erase blocks that can be written, up to the device's capacity.
    pub(super) fn free_blocks(&self) -> u64 {
        self.free.len() as u64 + (self.geometry.erase_blocks - self.blocks.len() as u64)
    }

    pub(super) fn usage(&self) -> StoreUsage {
        let in_use = self
            .blocks
            .iter()
            .filter(|b| matches!(b.state, BlockState::Open | BlockState::Closed));
        let written_pages: u64 = in_use.map(|block| u64::from(block.written_pages)).sum();
        let free_blocks = self.free_blocks();
        StoreUsage {
            live_pages: self.live_pages,
            dead_pages: written_pages - self.live_pages,
            allocated_blocks: self.geometry.erase_blocks - free_blocks,
            free_blocks,
            pages_per_erase_block: self.geometry.pages_per_erase_block,
            capacity_pages: self.geometry.pages() / 100 * (100 - OVER_PROVISIONED_PERCENT),
            memory_pages: 0,
            written_pages: 0,
            collected_pages: 0,
        }
    }
}
