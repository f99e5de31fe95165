//! Which block of the chips is which erase block: bad blocks and wear, and nothing of pages.
//!
//! An erase block of the device is a stripe over `lanes` blocks on different chips: page p is in
//! lane p mod lanes. Each lane of each erase block is a *slot*. A slot has a block from its first
//! write to its erase; between, it needs none. So all blocks that are not in use are one pool of
//! spares, from which a slot takes the least worn one.
//!
//! * A block at which a program or an erase fails is marked and never used again. What it holds of
//!   a slot is copied to another one first.
//! * Cold data would keep little-worn blocks from being used: where the most worn free block of a
//!   chip is far ahead of one in use whose contents are old, these move to it.
//! * The table is in memory only. Each page's spare bytes say which slot its block is of, since
//!   when, and how worn it is: opening reads those of each block's first page. A block that was
//!   being copied when the power failed counts only if its copy is whole.
//! * A block that has pages when the card is opened is closed: it is read and erased, never
//!   programmed. One that looks blank is erased before it is used.

use std::collections::BTreeSet;

use super::chips::{Chips, Content, Found, Spare};
use crate::flash::PageBuffer;
use crate::{Result, StorageError};

/// How far the wear of blocks of a chip may lie apart, besides a sixteenth of what it is, before
/// cold data is moved.
const LEVEL_GAP: u32 = 4;
/// Data is cold once all slots could have been written so often since it was.
const COLD_TURNS: u64 = 4;
/// Little-worn blocks that are looked at for cold data, at most.
const LEVEL_CANDIDATES: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Free {
        /// It was erased in this life of the device.
        is_clean: bool,
    },
    Used {
        slot: usize,
        /// Pages programmed.
        pages: u32,
        sequence: u64,
        copied_pages: u32,
        /// Since an earlier life of the device.
        is_closed: bool,
    },
    Bad,
}

/// Blocks of one chip by their wear.
type ByWear = BTreeSet<(u32, u32)>;

#[derive(Debug)]
pub(super) struct BlockMap {
    pub chips: Chips,
    lanes: u64,
    slots: Vec<Option<u32>>,
    roles: Vec<Role>,
    /// As the map knows them.
    erases: Vec<u32>,
    /// Of each chip.
    free: Vec<ByWear>,
    used: Vec<ByWear>,
    sequence: u64,
    /// Pages that the map has copied or filled, in this life.
    pub own_programs: u64,
}

impl BlockMap {
    /// Finds out what is on the chips.
    pub fn open(mut chips: Chips) -> Result<Self> {
        chips.power_up();
        let (options, blocks) = (chips.options().clone(), chips.blocks());
        let slots = options.erase_blocks() as usize * options.lanes as usize;
        let mut map = Self {
            lanes: options.lanes.into(),
            slots: vec![None; slots],
            roles: vec![Role::Free { is_clean: false }; blocks],
            erases: vec![0; blocks],
            free: vec![ByWear::new(); options.shape.chips()],
            used: vec![ByWear::new(); options.shape.chips()],
            sequence: 0,
            own_programs: 0,
            chips,
        };
        let mut known = Vec::new();
        for block in 0..blocks as u32 {
            if map.chips.is_marked_bad(block) {
                map.roles[block as usize] = Role::Bad;
            } else if let Some(spare) = map.chips.spare(block, 0)? {
                map.find(block, spare)?;
                known.push(u64::from(spare.erases));
                map.erases[block as usize] = spare.erases;
            } else {
                map.erases[block as usize] = u32::MAX;
            }
        }
        // What was erased and not written since has told nobody how worn it is.
        let mean = known.iter().sum::<u64>() / (known.len() as u64).max(1);
        for block in 0..blocks as u32 {
            let place = block as usize;
            if map.erases[place] == u32::MAX {
                map.erases[place] = mean as u32;
            }
            let key = (map.erases[place], block);
            let chip = map.chips.chip_of(block);
            match map.roles[place] {
                Role::Free { .. } => drop(map.free[chip].insert(key)),
                Role::Used { .. } => drop(map.used[chip].insert(key)),
                Role::Bad => {}
            }
        }
        Ok(map)
    }

    /// Takes up a block whose first page says what it is.
    fn find(&mut self, block: u32, spare: Spare) -> Result<()> {
        self.sequence = self.sequence.max(spare.sequence + 1);
        let is_whole = match spare.copied_pages.checked_sub(1) {
            Some(last) => self.chips.spare(block, last)?.is_some(),
            None => true,
        };
        let slot = spare.slot as usize;
        if !is_whole || slot >= self.slots.len() {
            return Ok(());
        }
        if let Some(other) = self.slots[slot] {
            let role = self.roles[other as usize];
            if matches!(role, Role::Used { sequence, .. } if sequence > spare.sequence) {
                return Ok(());
            }
            self.roles[other as usize] = Role::Free { is_clean: false };
        }
        self.slots[slot] = Some(block);
        self.roles[block as usize] = Role::Used {
            slot,
            pages: self.chips.pages_per_block(),
            sequence: spare.sequence,
            copied_pages: spare.copied_pages,
            is_closed: true,
        };
        Ok(())
    }

    /// The slot of a page of the device, and which page of it that is.
    fn place_of(&self, page: u64) -> (usize, u32) {
        let stripe = self.lanes * u64::from(self.chips.pages_per_block());
        let (erase_block, within) = (page / stripe, page % stripe);
        let slot = erase_block * self.lanes + within % self.lanes;
        (slot as usize, (within / self.lanes) as u32)
    }

    /// Erase blocks from the device's start of which some are in use.
    pub fn used_erase_blocks(&self) -> u64 {
        let last = self.slots.iter().rposition(Option::is_some);
        last.map_or(0, |slot| slot as u64 / self.lanes + 1)
    }

    /// Reads a page; one that was not written is zeros.
    ///
    /// # Errors
    /// `Corrupt` for one that can't be read any more.
    pub fn read(&mut self, page: u64, buffer: &mut PageBuffer) -> Result<()> {
        let (slot, row) = self.place_of(page);
        self.chips.check_power()?;
        let Some(block) = self.slots[slot] else {
            buffer.fill(0);
            return Ok(());
        };
        let why = match self.chips.read(block, row, buffer)? {
            Found::Written(spare) => match spare.content {
                Content::Data(_) => return Ok(()),
                Content::Filler => None,
                Content::Lost => Some("it could not be read when its block was moved".to_string()),
            },
            Found::Blank => None,
            Found::Unreadable(why) => Some(why),
        };
        let Some(why) = why else {
            buffer.fill(0);
            return Ok(());
        };
        Err(StorageError::corrupt(format!(
            "page {page} of the NAND card (page {row} of block {block} of chip {}) can't be read: {why}",
            self.chips.chip_of(block)
        )))
    }

    /// Writes a page.
    ///
    /// # Errors
    /// `Invalid` for one that the rules of NAND forbid; `Full` when no spare block is left.
    pub fn write(&mut self, page: u64, data: &PageBuffer) -> Result<()> {
        let (slot, row) = self.place_of(page);
        let refuse = |why| {
            Err(StorageError::Invalid(format!(
                "page {page} of the NAND card is written {why}"
            )))
        };
        let mut next = 0;
        if let Some(block) = self.slots[slot]
            && let Role::Used {
                pages, is_closed, ..
            } = self.roles[block as usize]
        {
            if is_closed {
                return refuse("without an erase, in a block that an earlier opening has left");
            }
            if row < pages {
                return refuse("a second time without an erase, or behind its turn in the block");
            }
            next = pages;
        }
        for _ in next..row {
            self.own_programs += 1;
            self.append(slot, Content::Filler, None)?;
        }
        let content = Content::Data(crc_fast::crc32_iscsi(data));
        self.append(slot, content, Some(data))
    }

    /// Programs the next page of a slot; where its block fails, in another one.
    fn append(&mut self, slot: usize, content: Content, data: Option<&PageBuffer>) -> Result<()> {
        loop {
            let block = match self.slots[slot] {
                Some(block) => block,
                None => {
                    let block = self.take(slot)?;
                    self.give(slot, block, 0);
                    block
                }
            };
            if self.program(block, content, data)? {
                return Ok(());
            }
            let to = self.take(slot)?;
            self.relocate(slot, to)?;
            self.retire(block);
        }
    }

    /// Programs the next page of a block in use; FALSE where it has failed.
    fn program(&mut self, block: u32, content: Content, data: Option<&PageBuffer>) -> Result<bool> {
        let erases = self.erases[block as usize];
        let Role::Used {
            slot,
            pages,
            sequence,
            copied_pages,
            ..
        } = &mut self.roles[block as usize]
        else {
            return Ok(false);
        };
        let spare = Spare {
            slot: *slot as u64,
            sequence: *sequence,
            copied_pages: *copied_pages,
            erases,
            content,
        };
        let is_done = self.chips.program(block, *pages, spare, data)?;
        *pages += u32::from(is_done);
        Ok(is_done)
    }

    /// Copies what a slot has to another block, which is the slot's from then on. The old one is
    /// left to the caller.
    fn relocate(&mut self, slot: usize, mut to: u32) -> Result<()> {
        let Some(from) = self.slots[slot] else {
            return Ok(());
        };
        let Role::Used {
            pages, is_closed, ..
        } = self.roles[from as usize]
        else {
            return Ok(());
        };
        'block: loop {
            self.give(slot, to, pages);
            let mut buffer = PageBuffer::zeroed();
            for row in 0..pages {
                let content = match self.chips.read(from, row, &mut buffer)? {
                    Found::Written(spare) => spare.content,
                    // The rest of a block that was closed early.
                    Found::Blank if is_closed => Content::Filler,
                    Found::Blank | Found::Unreadable(_) => Content::Lost,
                };
                let data = matches!(content, Content::Data(_)).then_some(&buffer);
                self.own_programs += 1;
                if !self.program(to, content, data)? {
                    self.slots[slot] = Some(from);
                    self.retire(to);
                    to = self.take(slot)?;
                    continue 'block;
                }
            }
            if let Role::Used { is_closed: to, .. } = &mut self.roles[to as usize] {
                *to = is_closed;
            }
            return Ok(());
        }
    }

    /// Has a block be that of a slot.
    fn give(&mut self, slot: usize, block: u32, copied_pages: u32) {
        self.slots[slot] = Some(block);
        self.roles[block as usize] = Role::Used {
            slot,
            pages: 0,
            sequence: self.sequence,
            copied_pages,
            is_closed: false,
        };
        self.sequence += 1;
        let chip = self.chips.chip_of(block);
        self.used[chip].insert((self.erases[block as usize], block));
    }

    /// Takes the least worn free block, on a chip on which no other lane of the stripe is, if there
    /// is one, and erases it where that is due.
    fn take(&mut self, slot: usize) -> Result<u32> {
        let stripe = slot - slot % self.lanes as usize;
        let lanes = &self.slots[stripe..stripe + self.lanes as usize];
        let others = lanes
            .iter()
            .flatten()
            .map(|block| self.chips.chip_of(*block));
        let others: Vec<usize> = others.collect();
        loop {
            let chips = self.free.iter().enumerate();
            let first = chips.filter_map(|(chip, free)| Some((chip, *free.first()?)));
            let chosen = first.min_by_key(|(chip, key)| (others.contains(chip), *key));
            let Some((chip, key)) = chosen else {
                return Err(StorageError::Full {
                    device: "the NAND card, whose spare blocks are used up".into(),
                    needed_bytes: PageBuffer::zeroed().len() as u64,
                    free_bytes: 0,
                });
            };
            self.free[chip].remove(&key);
            if self.clean(key.1)? {
                return Ok(key.1);
            }
        }
    }

    /// Erases a block that was taken out of the free ones, if it has to be; FALSE where it is bad.
    fn clean(&mut self, block: u32) -> Result<bool> {
        if self.roles[block as usize] == (Role::Free { is_clean: true }) {
            return Ok(true);
        }
        self.wear_and_erase(block)
    }

    fn wear_and_erase(&mut self, block: u32) -> Result<bool> {
        let is_done = self.chips.erase(block)?;
        self.erases[block as usize] += 1;
        if !is_done {
            self.retire(block);
        }
        Ok(is_done)
    }

    /// Never uses a block again.
    fn retire(&mut self, block: u32) {
        let chip = self.chips.chip_of(block);
        self.used[chip].retain(|(_, other)| *other != block);
        self.free[chip].retain(|(_, other)| *other != block);
        self.roles[block as usize] = Role::Bad;
        self.chips.mark_bad(block);
        log::warn!("block {block} of the NAND card has failed and is not used any more");
    }

    /// Erases a block in use that is no slot's, and makes it a free one.
    fn release(&mut self, block: u32) -> Result<()> {
        let chip = self.chips.chip_of(block);
        self.used[chip].remove(&(self.erases[block as usize], block));
        if self.wear_and_erase(block)? {
            self.roles[block as usize] = Role::Free { is_clean: true };
            self.free[chip].insert((self.erases[block as usize], block));
        }
        Ok(())
    }

    /// Erases an erase block by its first page.
    pub fn erase(&mut self, first: u64) -> Result<()> {
        let (slot, _) = self.place_of(first);
        for slot in slot..slot + self.lanes as usize {
            if let Some(block) = self.slots[slot].take() {
                self.release(block)?;
                self.level(self.chips.chip_of(block))?;
            }
        }
        Ok(())
    }

    /// Moves cold data from the least worn block of a chip that has some to its most worn free one,
    /// if their wear lies far apart. Data that is only young would be erased again soon, and the
    /// worn block with it.
    fn level(&mut self, chip: usize) -> Result<()> {
        let Some(&(worn, to)) = self.free[chip].last() else {
            return Ok(());
        };
        let cold_before = (self.sequence).saturating_sub(COLD_TURNS * self.slots.len() as u64);
        let little_worn = self.used[chip]
            .iter()
            .take_while(|(erases, _)| worn.saturating_sub(*erases) > LEVEL_GAP + worn / 16)
            .take(LEVEL_CANDIDATES);
        let cold = little_worn.filter_map(|(_, block)| match self.roles[*block as usize] {
            Role::Used { slot, sequence, .. } if sequence < cold_before => Some((*block, slot)),
            _ => None,
        });
        let Some((from, slot)) = { cold }.next() else {
            return Ok(());
        };
        self.free[chip].remove(&(worn, to));
        if self.clean(to)? {
            self.relocate(slot, to)?;
            self.release(from)?;
        }
        Ok(())
    }

    /// The erases of all blocks that are not bad: the most, and the mean.
    pub fn wear(&self) -> (u32, f64) {
        let good = self.roles.iter().zip(&self.erases);
        let good = good.filter(|(role, _)| **role != Role::Bad);
        let good: Vec<u32> = good.map(|(_, erases)| *erases).collect();
        let sum: u64 = good.iter().map(|erases| u64::from(*erases)).sum();
        let max = good.iter().copied().max().unwrap_or(0);
        (max, sum as f64 / good.len().max(1) as f64)
    }

    pub fn bad_blocks(&self) -> u64 {
        let bad = self.roles.iter().filter(|role| **role == Role::Bad);
        bad.count() as u64
    }

    /// Blocks that may still become bad before the device has less room than it says.
    pub fn spare_blocks(&self) -> u64 {
        let good = self.roles.len() as u64 - self.bad_blocks();
        good.saturating_sub(self.slots.len() as u64)
    }
}
