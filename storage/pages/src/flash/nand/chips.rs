//! The chips: what silicon does, and the rules that it has.
//!
//! * A page is programmed once between two erases, whole, with its spare bytes (no partial
//!   programs), and the pages of a block in order, none left out.
//! * An erase clears a block. Each wears it.
//! * A program or an erase may fail, the more often the more worn the block is, and some blocks are
//!   bad from the beginning. Whoever finds a block bad marks it; marks stay.
//! * A page is read with wrong bits, each read anew with others, more of a worn block.
//! * When the power fails, the page being programmed is left torn and the block being erased in
//!   some state between. Either may look erased and is not. After that a block that had pages, but
//!   not all, may not be programmed before an erase: nobody can tell where its end is.
//!
//! To break a rule is an error here. Silicon would damage data.

use super::code::{self, PAGE_BITS};
use super::time::ModelledTime;
use super::{NandOptions, NandShape};
use crate::flash::{PageBuffer, Random};
use crate::{Result, StorageError};

/// What lies in the spare bytes of a page, beside the parities of its code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spare {
    /// What the block is in the eyes of whoever writes it.
    pub slot: u64,
    /// Of two blocks of one slot that of the greater number is the newer.
    pub sequence: u64,
    /// So many pages of the block are copies of those of the older block of the slot.
    pub copied_pages: u32,
    /// Erases of the block.
    pub erases: u32,
    pub content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// Bytes with this CRC32C.
    Data(u32),
    /// Nobody has written this page; one behind it was written.
    Filler,
    /// It was unreadable when it was copied.
    Lost,
}

/// What reading a page finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Blank,
    Written(Spare),
    /// And why.
    Unreadable(String),
}

#[derive(Debug, Clone)]
enum Page {
    Programmed(Spare, Option<PageBuffer>),
    /// The power failed.
    Torn {
        looks_blank: bool,
    },
}

#[derive(Debug, Clone, Default)]
struct Block {
    erases: u32,
    is_marked_bad: bool,
    /// Every program and erase fails from now on.
    has_failed: bool,
    /// Must be erased before it is programmed.
    is_unsure: bool,
    /// Those that were programmed, in order.
    pages: Vec<Page>,
}

/// What the chips count, over their whole life.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ChipCounts {
    pub programs: u64,
    pub erases: u64,
    pub corrected_bits: u64,
    pub uncorrectable_pages: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Chips {
    options: NandOptions,
    blocks: Vec<Block>,
    random: Random,
    pub time: ModelledTime,
    pub counts: ChipCounts,
    /// Programs and erases until the power fails.
    power_left: Option<u64>,
    has_power: bool,
    /// When the last operation ends, in modelled time.
    pub last_end: u64,
}

impl Chips {
    pub fn new(options: NandOptions) -> Self {
        let NandShape {
            buses,
            chips_per_bus,
            ..
        } = options.shape;
        let mut random = Random::new(options.seed);
        let mut blocks = vec![Block::default(); options.shape.blocks()];
        for block in &mut blocks {
            block.is_marked_bad = happens(&mut random, options.bad_at_birth);
        }
        Self {
            time: ModelledTime::new(
                options.profile,
                (buses * chips_per_bus) as usize,
                buses as usize,
            ),
            blocks,
            random,
            counts: ChipCounts::default(),
            power_left: None,
            has_power: true,
            last_end: 0,
            options,
        }
    }

    pub fn options(&self) -> &NandOptions {
        &self.options
    }

    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    pub fn pages_per_block(&self) -> u32 {
        self.options.shape.pages_per_block
    }

    /// The chip of a block: neighbours are on different ones.
    pub fn chip_of(&self, block: u32) -> usize {
        block as usize % self.options.shape.chips()
    }

    /// Lets the power fail at the `nth` program or erase from now on, counted from 0.
    pub fn fail_power_at(&mut self, nth: u64) {
        self.power_left = Some(nth);
    }

    pub fn cut_power(&mut self) {
        self.has_power = false;
    }

    pub fn has_power(&self) -> bool {
        self.has_power
    }

    /// The power comes, or comes again.
    pub fn power_up(&mut self) {
        (self.has_power, self.power_left) = (true, None);
        let full = self.pages_per_block() as usize;
        for block in &mut self.blocks {
            block.is_unsure |= !block.pages.is_empty() && block.pages.len() < full;
        }
    }

    /// Programs the next page of a block; FALSE where that fails and the block is bad.
    ///
    /// # Errors
    /// `Invalid` for a broken rule; `Io` without power.
    pub fn program(
        &mut self,
        block: u32,
        page: u32,
        spare: Spare,
        data: Option<&PageBuffer>,
    ) -> Result<bool> {
        self.check_power()?;
        let rates = self.options.program_failures;
        let rate = rates.at(self.blocks[block as usize].erases, self.options.endurance);
        let fails = happens(&mut self.random, rate);
        let ends = self.count_down();
        let looks_blank = self.random.below(2) == 0;
        let full = self.pages_per_block();
        let cells = &mut self.blocks[block as usize];
        let next = cells.pages.len() as u32;
        let broken = match () {
            () if cells.is_unsure => Some("it was open when the power came, and is not erased"),
            () if page < next => Some("it is programmed a second time without an erase"),
            () if page > next => Some("pages before it are not programmed"),
            () if page >= full => Some("the block has no such page"),
            () => None,
        };
        if let Some(rule) = broken {
            return Err(StorageError::Invalid(format!(
                "page {page} of block {block} of the NAND card: {rule}"
            )));
        }
        if ends {
            cells.pages.push(Page::Torn { looks_blank });
            self.has_power = false;
            return Err(no_power());
        }
        self.counts.programs += 1;
        let cells = &mut self.blocks[block as usize];
        cells.has_failed |= fails;
        cells.pages.push(match cells.has_failed {
            true => Page::Torn { looks_blank: false },
            false => Page::Programmed(spare, data.cloned()),
        });
        let is_done = !cells.has_failed;
        self.last_end = self.time.program(self.chip_of(block));
        Ok(is_done)
    }

    /// Erases a block; FALSE where that fails and the block is bad.
    ///
    /// # Errors
    /// `Io` without power.
    pub fn erase(&mut self, block: u32) -> Result<bool> {
        self.check_power()?;
        let rates = self.options.erase_failures;
        let rate = rates.at(self.blocks[block as usize].erases, self.options.endurance);
        let fails = happens(&mut self.random, rate);
        let ends = self.count_down();
        let left = self.random.below(3);
        let cells = &mut self.blocks[block as usize];
        cells.erases += 1;
        if ends {
            cells.is_unsure = true;
            if left > 0 {
                let looks_blank = left == 1;
                cells.pages.fill(Page::Torn { looks_blank });
            }
            self.has_power = false;
            return Err(no_power());
        }
        self.counts.erases += 1;
        cells.has_failed |= fails;
        let is_done = !cells.has_failed;
        if is_done {
            cells.pages.clear();
            cells.is_unsure = false;
        }
        self.last_end = self.time.erase(self.chip_of(block));
        Ok(is_done)
    }

    /// Reads a page, which fills the buffer where it was written with data.
    ///
    /// # Errors
    /// `Io` without power.
    pub fn read(&mut self, block: u32, page: u32, buffer: &mut PageBuffer) -> Result<Found> {
        self.check_power()?;
        self.last_end = self.time.read(self.chip_of(block));
        let cells = &self.blocks[block as usize];
        let rates = self.options.bit_errors;
        let (spare, data) = match cells.pages.get(page as usize) {
            None | Some(Page::Torn { looks_blank: true }) => return Ok(Found::Blank),
            Some(Page::Torn { looks_blank: false }) => {
                self.counts.uncorrectable_pages += 1;
                let why = "it was being programmed when that failed";
                return Ok(Found::Unreadable(why.into()));
            }
            Some(Page::Programmed(spare, data)) => (*spare, data),
        };
        let Some(data) = data else {
            return Ok(Found::Written(spare));
        };
        let wrong = wrong_bits(
            &mut self.random,
            rates.at(cells.erases, self.options.endurance),
        );
        buffer.copy_from_slice(data);
        if wrong.is_empty() {
            return Ok(Found::Written(spare));
        }
        let decoded = code::decode(buffer, &wrong);
        let checksum = Content::Data(crc_fast::crc32_iscsi(buffer));
        if decoded.is_ok() && spare.content == checksum {
            self.counts.corrected_bits += wrong.len() as u64;
            return Ok(Found::Written(spare));
        }
        self.counts.uncorrectable_pages += 1;
        let why = format!(
            "{} of its bits are wrong, more than its code corrects",
            wrong.len()
        );
        Ok(Found::Unreadable(why))
    }

    /// The spare bytes of a page that can be read. They are few and repeated: wrong bits do them no
    /// harm in this model.
    pub fn spare(&mut self, block: u32, page: u32) -> Result<Option<Spare>> {
        self.check_power()?;
        self.last_end = self.time.read(self.chip_of(block));
        let cells = &self.blocks[block as usize];
        Ok(match cells.pages.get(page as usize) {
            Some(Page::Programmed(spare, _)) => Some(*spare),
            _ => None,
        })
    }

    /// Marks a block as bad for all time.
    pub fn mark_bad(&mut self, block: u32) {
        self.blocks[block as usize].is_marked_bad = true;
    }

    /// Whether a block was bad at birth, or was marked.
    pub fn is_marked_bad(&self, block: u32) -> bool {
        self.blocks[block as usize].is_marked_bad
    }

    /// `Io` without power.
    pub fn check_power(&self) -> Result<()> {
        match self.has_power {
            true => Ok(()),
            false => Err(no_power()),
        }
    }

    /// Whether the power fails now.
    fn count_down(&mut self) -> bool {
        match &mut self.power_left {
            None => false,
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
        }
    }
}

fn no_power() -> StorageError {
    StorageError::io(
        "the NAND card",
        std::io::Error::other("its power has failed"),
    )
}

/// A number of [0, 1).
fn fraction(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

fn happens(random: &mut Random, rate: f64) -> bool {
    rate > 0.0 && fraction(random) < rate
}

/// Which bits of a page are read wrongly. The way from one to the next is drawn (geometric), not
/// each bit.
fn wrong_bits(random: &mut Random, rate: f64) -> Vec<usize> {
    let mut wrong = Vec::new();
    if rate > 0.0 {
        let stay = (1.0 - rate.min(0.5)).ln();
        let mut place = 0.0;
        loop {
            place += ((1.0 - fraction(random)).ln() / stay).floor();
            if place >= PAGE_BITS as f64 {
                break;
            }
            wrong.push(place as usize);
            place += 1.0;
        }
    }
    wrong
}
