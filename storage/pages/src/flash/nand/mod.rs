//! A modelled card of raw NAND flash: buses × chips × blocks × pages.
//!
//! BlueDBM's cards show their chips as they are, but for bit errors, which the controller corrects
//! (section 3.1.1), and leave the rest to software: bad blocks, wear and garbage (sections 3.1 and
//! 4), after RFS, a file system that takes over from the translation layer of an SSD what it does
//! better. Here that software is in two places:
//!
//! | what | where |
//! |---|---|
//! | bit errors | [`code`]: a code that corrects them, a checksum that notices more |
//! | bad blocks, wear | [`blocks`]: which block of the chips is which erase block. By blocks, not pages: the table is small, and runs of pages that are longer than a block stay together |
//! | where pages go, which are live, collection | the page store and the tables above it: an address is in the manifest and nowhere else, and moving pages is a commit |
//!
//! What is modelled is what [`chips`] says: rules, wear, failures, errors, power cuts; and time
//! ([`time`]), which is counted and never slept. Not modelled: retention and disturbance of pages
//! that nobody touches, chips that die whole, paired pages.

mod blocks;
mod chips;
mod code;
#[cfg(test)]
mod tests;
mod time;

use std::sync::Arc;

use parking_lot::Mutex;

use self::blocks::BlockMap;
use self::chips::{ChipCounts, Chips};
use super::{Completion, Flash, FlashHealth, FlashOp, FlashQueue, Geometry, Random, check_op};
use crate::{Result, StorageError};

const QUEUE_DEPTH: usize = 128;
const MAX_PAGES_PER_OP: usize = 128;

/// How many there are of what. Blocks with neighbouring numbers are on different chips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NandShape {
    /// Buses of the card, which transfer at the same time.
    pub buses: u32,
    /// Chips on each, which work at the same time.
    pub chips_per_bus: u32,
    /// Blocks of a chip.
    pub blocks_per_chip: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
}

/// Times of the chips and wires, for modelled time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NandProfile {
    /// From the cells of a page to its chip's register.
    pub read_ns: u64,
    /// From the register to the cells.
    pub program_ns: u64,
    /// Of a block.
    pub erase_ns: u64,
    /// Of one bus.
    pub bus_bytes_per_second: u64,
}

/// A probability that grows with the square of a block's wear.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WearRate {
    /// Of a new block.
    pub fresh: f64,
    /// Of one that was erased as often as its endurance says.
    pub worn: f64,
}

/// What a card is like.
#[derive(Debug, Clone, PartialEq)]
pub struct NandOptions {
    /// Decides all that is random.
    pub seed: u64,
    /// Its chips.
    pub shape: NandShape,
    /// Blocks, on different chips if possible, that make an erase block.
    pub lanes: u32,
    /// Share of all blocks that stands in for bad ones: the device is so much smaller.
    pub reserve: f64,
    /// Probability that a block is bad from the beginning.
    pub bad_at_birth: f64,
    /// Probability that a bit is read wrongly.
    pub bit_errors: WearRate,
    /// Probability that a program fails, and its block is bad from then on.
    pub program_failures: WearRate,
    /// Probability that an erase fails, likewise.
    pub erase_failures: WearRate,
    /// Erases after which a block is worn.
    pub endurance: u32,
    /// For modelled time.
    pub profile: NandProfile,
}

impl Default for NandShape {
    /// 8 buses of 4 chips of 64 blocks of 64 pages: 1 GiB.
    fn default() -> Self {
        Self {
            buses: 8,
            chips_per_bus: 4,
            blocks_per_chip: 64,
            pages_per_block: 64,
        }
    }
}

impl Default for NandProfile {
    /// Like MLC chips on BlueDBM's card, which gave 50 µs and 1.2 GB/s over 8 buses.
    fn default() -> Self {
        Self {
            read_ns: 50_000,
            program_ns: 600_000,
            erase_ns: 3_000_000,
            bus_bytes_per_second: 150_000_000,
        }
    }
}

impl Default for NandOptions {
    /// Blocks of 4 lanes, a tenth in reserve; 2 % bad at birth, one bit in a hundred million read
    /// wrongly, one in a hundred thousand when worn, after 3,000 erases.
    fn default() -> Self {
        let failures = WearRate {
            fresh: 1e-7,
            worn: 1e-5,
        };
        Self {
            seed: 0,
            shape: NandShape::default(),
            lanes: 4,
            reserve: 0.1,
            bad_at_birth: 0.02,
            bit_errors: WearRate {
                fresh: 1e-8,
                worn: 1e-5,
            },
            program_failures: failures,
            erase_failures: failures,
            endurance: 3000,
            profile: NandProfile::default(),
        }
    }
}

impl WearRate {
    /// The same at every wear.
    pub fn always(rate: f64) -> Self {
        Self {
            fresh: rate,
            worn: rate,
        }
    }

    fn at(self, erases: u32, endurance: u32) -> f64 {
        let wear = f64::from(erases) / f64::from(endurance.max(1));
        self.fresh + (self.worn - self.fresh) * wear * wear
    }
}

impl NandShape {
    fn chips(&self) -> usize {
        (self.buses as usize) * (self.chips_per_bus as usize)
    }

    fn blocks(&self) -> usize {
        self.chips() * self.blocks_per_chip as usize
    }
}

impl NandOptions {
    fn erase_blocks(&self) -> u64 {
        let blocks = self.shape.blocks() as f64 * (1.0 - self.reserve);
        (blocks / f64::from(self.lanes.max(1))) as u64
    }

    fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(StorageError::Invalid(format!("NAND card: {why}")));
        if self.shape.blocks() > 1 << 24 || self.shape.pages_per_block > 1 << 16 {
            return refuse("it has more blocks than 2^24, or more pages in a block than 2^16");
        }
        if self.lanes == 0 || self.lanes as usize > self.shape.chips() {
            return refuse("an erase block has from one lane to as many as there are chips");
        }
        if self.shape.pages_per_block == 0 || self.erase_blocks() == 0 {
            return refuse("its shape and reserve leave no erase block");
        }
        Ok(())
    }
}

/// A modelled card. What is on it is in memory and lives as long as somebody has it: see
/// [`NandFlash::restart`].
#[derive(Debug)]
pub struct NandFlash {
    geometry: Geometry,
    /// `None` once a restart has taken it.
    card: Arc<Mutex<Option<BlockMap>>>,
    seeds: Mutex<Random>,
}

impl NandFlash {
    /// A new card.
    ///
    /// # Errors
    /// `Invalid` for options that make none.
    pub fn new(options: NandOptions) -> Result<Self> {
        options.check()?;
        Self::open(Chips::new(options))
    }

    fn open(chips: Chips) -> Result<Self> {
        let options = chips.options();
        let geometry = Geometry {
            pages_per_erase_block: options.shape.pages_per_block * options.lanes,
            erase_blocks: options.erase_blocks(),
        };
        let seed = options.seed;
        Ok(Self {
            geometry,
            card: Arc::new(Mutex::new(Some(BlockMap::open(chips)?))),
            seeds: Mutex::new(Random::new(seed)),
        })
    }

    /// Takes the card out and puts it in again, as a new start of the machine does: what was
    /// written is there, and what the power left half done is half done. This device and its
    /// queues have no card any more.
    ///
    /// # Errors
    /// `Io` when it was taken out before.
    pub fn restart(&self) -> Result<Self> {
        let card = self.card.lock().take();
        Self::open(card.ok_or_else(no_card)?.chips)
    }

    /// A restarted copy of the card; this one goes on.
    ///
    /// # Errors
    /// As [`NandFlash::restart`].
    pub fn copy(&self) -> Result<Self> {
        Self::open(self.with(|card| Ok(card.chips.clone()))?)
    }

    /// Lets the power fail at the `nth` program or erase of the chips from now on, counted from 0:
    /// a page is left torn, a block half erased, and nothing works until the card is restarted.
    pub fn fail_power_at(&self, nth: u64) {
        if let Some(card) = &mut *self.card.lock() {
            card.chips.fail_power_at(nth);
        }
    }

    /// Cuts the power now, between two operations.
    pub fn cut_power(&self) {
        if let Some(card) = &mut *self.card.lock() {
            card.chips.cut_power();
        }
    }

    /// Whether the power has not failed.
    pub fn has_power(&self) -> bool {
        self.card
            .lock()
            .as_ref()
            .is_some_and(|card| card.chips.has_power())
    }

    fn with<T>(&self, work: impl FnOnce(&mut BlockMap) -> Result<T>) -> Result<T> {
        work(self.card.lock().as_mut().ok_or_else(no_card)?)
    }
}

fn no_card() -> StorageError {
    StorageError::io("the NAND card", std::io::Error::other("it was taken out"))
}

impl Flash for NandFlash {
    fn name(&self) -> String {
        "NAND card".to_string()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.with(|card| Ok(card.used_erase_blocks()))
    }

    fn continues_blocks(&self) -> bool {
        false
    }

    fn health(&self) -> Option<FlashHealth> {
        let card = self.card.lock();
        let card = card.as_ref()?;
        let ChipCounts {
            programs,
            erases,
            corrected_bits,
            uncorrectable_pages,
        } = card.chips.counts;
        let (erase_count_max, erase_count_mean) = card.wear();
        Some(FlashHealth {
            pages_programmed: programs,
            pages_moved: card.own_programs,
            blocks_erased: erases,
            erase_count_max,
            erase_count_mean,
            bad_blocks: card.bad_blocks(),
            spare_blocks: card.spare_blocks(),
            corrected_bits,
            uncorrectable_pages,
            modelled_busy_ns: card.chips.time.busy_ns,
            modelled_elapsed_ns: card.chips.time.elapsed_ns,
        })
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(NandQueue {
            geometry: self.geometry,
            card: Arc::clone(&self.card),
            random: Random::new(self.seeds.lock().next()),
            ended: Vec::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        // A page that was programmed stays.
        self.with(|card| card.chips.check_power())
    }
}

/// Operations reach the chips in the order in which they are submitted, as the pages of a block
/// must be programmed in theirs; their completions come in any.
#[derive(Debug)]
struct NandQueue {
    geometry: Geometry,
    card: Arc<Mutex<Option<BlockMap>>>,
    random: Random,
    /// With when they ended, in modelled time.
    ended: Vec<(u64, Completion)>,
}

impl FlashQueue for NandQueue {
    fn depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }

    fn max_pages_per_op(&self) -> usize {
        MAX_PAGES_PER_OP
    }

    fn cancel_reads(&mut self) {
        // Every operation has reached the chips.
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.geometry)?;
        let mut card = self.card.lock();
        let mut end = 0;
        let mut each = |work: &mut dyn FnMut(&mut BlockMap) -> Result<()>| {
            let card = card.as_mut().ok_or_else(no_card)?;
            card.chips.last_end = 0;
            work(card)?;
            end = end.max(card.chips.last_end);
            Ok(())
        };
        let completion = match op {
            FlashOp::Read {
                tag,
                first,
                mut buffers,
            } => {
                let mut pages = (first.0..).zip(&mut buffers);
                let result =
                    pages.try_for_each(|(page, buffer)| each(&mut |card| card.read(page, buffer)));
                Completion {
                    tag,
                    buffers,
                    result,
                }
            }
            FlashOp::Write {
                tag,
                first,
                buffers,
            } => {
                let mut pages = (first.0..).zip(&buffers);
                let result =
                    pages.try_for_each(|(page, buffer)| each(&mut |card| card.write(page, buffer)));
                Completion {
                    tag,
                    buffers,
                    result,
                }
            }
            FlashOp::Erase { tag, first } => Completion {
                tag,
                buffers: Vec::new(),
                result: each(&mut |card| card.erase(first.0)),
            },
        };
        self.ended.push((end, completion));
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let in_flight = self.ended.len();
        let least = min.min(in_flight);
        // Sometimes more end than were waited for; a caller that only looks gets on eventually.
        let count = least + self.random.below((in_flight - least) as u64 / 2 + 2) as usize;
        for _ in 0..count.min(in_flight) {
            let index = self.random.below(self.ended.len() as u64) as usize;
            let (end, completion) = self.ended.swap_remove(index);
            if let Some(card) = &mut *self.card.lock() {
                card.chips.time.waited(end);
            }
            completions.push(completion);
        }
        Ok(())
    }
}
