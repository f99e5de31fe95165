//! A device that fails.
//!
//! The fault model, after what drives and file systems are known to do:
//!
//! * an operation fails; of a write that fails, some pages may have been written;
//! * a page of a read arrives with a flipped bit, while flash still holds the right one;
//! * a page that was reported as written is torn (its beginning is there, the rest is not), lost
//!   (reading it gives what was there before) or misdirected (it and its neighbour of the same
//!   operation have changed places);
//! * a sync fails, and what was written before it is lost in part, though later syncs succeed;
//! * the power fails: every later operation fails, and of what was not synced each page and each
//!   erase has reached the flash or has not, one page perhaps torn.
//!
//! Not modelled: pages that rot while nobody touches them, and a sync that lies.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    Completion, Flash, FlashHealth, FlashOp, FlashPage, FlashQueue, Geometry, PAGE_SIZE_BYTES,
    PageBuffer, Random, Tag, check_op,
};
use crate::{Result, StorageError};

/// What a write leaves of a torn page is a multiple of this.
const SECTOR_BYTES: usize = 512;

/// When a fault happens, counted over all queues of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// Not at all.
    #[default]
    Never,
    /// Once, at the n-th occasion from 0.
    Nth(u64),
    /// At each occasion with probability 1/n, drawn from the seed.
    OneIn(u64),
}

/// The faults of a [`FaultFlash`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultOptions {
    /// Decides all that is random.
    pub seed: u64,
    /// An operation fails (occasions: operations submitted).
    pub fail: When,
    /// A bit of a page read is flipped (occasions: pages read).
    pub bit_flip: When,
    /// A page is torn (occasions: pages written; so for the next three).
    pub torn_write: When,
    /// A page is lost.
    pub lost_write: When,
    /// A page and its neighbour of the same write change places; alone, it is lost.
    pub misdirected_write: When,
    /// The power fails as the page is being written.
    pub power_failure: When,
    /// A sync fails: of what was not synced each page and erase has reached the flash or has not,
    /// and no later sync tells (occasions: syncs).
    pub fail_sync: When,
}

/// Wraps a device and injects faults.
///
/// What is written stays in the wrapper until it is synced, as in the volatile cache of a drive.
#[derive(Debug)]
pub struct FaultFlash {
    inner: Arc<dyn Flash>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    options: FaultOptions,
    geometry: Geometry,
    random: Random,
    operations: u64,
    pages_read: u64,
    pages_written: u64,
    syncs: u64,
    /// Written and not synced, on top of `erased`.
    written: HashMap<u64, PageBuffer>,
    /// First pages of blocks that were erased and not synced, on top of the device below.
    erased: HashSet<u64>,
    has_power: bool,
}

/// What becomes of a page that is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Written,
    Torn,
    Lost,
    Misdirected,
}

impl FaultFlash {
    /// Makes `inner` fail as the options say.
    pub fn new(inner: Arc<dyn Flash>, options: FaultOptions) -> Self {
        let state = State {
            options,
            geometry: inner.geometry(),
            random: Random::new(options.seed),
            operations: 0,
            pages_read: 0,
            pages_written: 0,
            syncs: 0,
            written: HashMap::new(),
            erased: HashSet::new(),
            has_power: true,
        };
        Self {
            inner,
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Changes the faults from now on; occasions are counted from 0 again.
    pub fn set_options(&self, options: FaultOptions) {
        let mut state = self.state.lock();
        state.options = options;
        state.random = Random::new(options.seed);
        (state.operations, state.pages_read, state.pages_written) = (0, 0, 0);
        state.syncs = 0;
    }

    /// Cuts the power now. The device below then holds what a real one would after a restart.
    pub fn cut_power(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.has_power = false;
        state.decide_survivors();
        self.write_through(&mut state)
    }

    /// Whether the power has not failed yet.
    pub fn has_power(&self) -> bool {
        self.state.lock().has_power
    }

    /// Gives everything that is not synced to the device below.
    fn write_through(&self, state: &mut State) -> Result<()> {
        let mut queue = self.inner.open_queue()?;
        let erases: Vec<_> = state.erased.drain().collect();
        let erases = erases.into_iter().map(|first| FlashOp::Erase {
            tag: Tag(first),
            first: FlashPage(first),
        });
        run_all(&mut *queue, erases)?;
        let mut writes: Vec<_> = state.written.drain().collect();
        writes.sort_by_key(|&(page, _)| page);
        let writes = writes.into_iter().map(|(page, buffer)| FlashOp::Write {
            tag: Tag(page),
            first: FlashPage(page),
            buffers: vec![buffer],
        });
        run_all(&mut *queue, writes)?;
        self.inner.sync()
    }
}

/// Runs operations that do not depend on each other.
fn run_all(queue: &mut dyn FlashQueue, ops: impl Iterator<Item = FlashOp>) -> Result<()> {
    let mut completions = Vec::new();
    for op in ops {
        if queue.in_flight() == queue.depth() {
            queue.wait(1, &mut completions)?;
        }
        queue.submit(op)?;
    }
    queue.wait(queue.in_flight(), &mut completions)?;
    completions
        .into_iter()
        .try_for_each(|completion| completion.result)
}

impl Flash for FaultFlash {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        let state = self.state.lock();
        let block_pages = u64::from(state.geometry.pages_per_erase_block);
        let last = state
            .written
            .keys()
            .max()
            .map_or(0, |page| page / block_pages + 1);
        Ok(self.inner.used_erase_blocks()?.max(last))
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(FaultQueue {
            inner: self.inner.open_queue()?,
            state: self.state.clone(),
            ended: Vec::new(),
            failing_reads: HashSet::new(),
            first_pages: HashMap::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.state.lock();
        state.check_power()?;
        let occasion = state.syncs;
        state.syncs += 1;
        let when = state.options.fail_sync;
        let fails = state.is_due(when, occasion);
        if fails {
            state.decide_survivors();
        }
        self.write_through(&mut state)?;
        if fails {
            return Err(injected("the sync has failed"));
        }
        Ok(())
    }

    fn continues_blocks(&self) -> bool {
        self.inner.continues_blocks()
    }

    fn health(&self) -> Option<FlashHealth> {
        self.inner.health()
    }
}

impl State {
    fn is_due(&mut self, when: When, occasion: u64) -> bool {
        match when {
            When::Never => false,
            When::Nth(n) => n == occasion,
            When::OneIn(n) => self.random.below(n.max(1)) == 0,
        }
    }

    fn check_power(&self) -> Result<()> {
        if self.has_power {
            return Ok(());
        }
        Err(injected("the power has failed"))
    }

    fn block_of(&self, page: u64) -> u64 {
        page - page % u64::from(self.geometry.pages_per_erase_block)
    }

    /// Writes pages with the faults that are due.
    fn write(&mut self, first: FlashPage, buffers: &[PageBuffer]) -> Result<()> {
        self.check_power()?;
        let mut index = 0;
        while let Some(buffer) = buffers.get(index) {
            let page = first.0 + index as u64;
            let occasion = self.pages_written;
            self.pages_written += 1;
            index += 1;
            if self.is_due(self.options.power_failure, occasion) {
                self.written.insert(page, buffer.clone());
                self.has_power = false;
                self.decide_survivors();
                return self.check_power();
            }
            match self.fate(occasion) {
                Fate::Written => {
                    self.written.insert(page, buffer.clone());
                }
                Fate::Torn => {
                    let torn = self.torn(buffer);
                    self.written.insert(page, torn);
                }
                Fate::Lost => {}
                Fate::Misdirected => {
                    if let Some(neighbour) = buffers.get(index) {
                        self.written.insert(page + 1, buffer.clone());
                        self.written.insert(page, neighbour.clone());
                        self.pages_written += 1;
                        index += 1;
                    }
                }
            }
        }
        Ok(())
    }

    fn fate(&mut self, occasion: u64) -> Fate {
        let fates = [
            (self.options.torn_write, Fate::Torn),
            (self.options.lost_write, Fate::Lost),
            (self.options.misdirected_write, Fate::Misdirected),
        ];
        let due = fates
            .into_iter()
            .find(|&(when, _)| self.is_due(when, occasion));
        due.map_or(Fate::Written, |(_, fate)| fate)
    }

    /// What a torn write leaves: the first sectors, not none and not all.
    fn torn(&mut self, buffer: &PageBuffer) -> PageBuffer {
        let sectors = 1 + self
            .random
            .below((PAGE_SIZE_BYTES / SECTOR_BYTES - 1) as u64) as usize;
        let mut torn = PageBuffer::zeroed();
        torn[..sectors * SECTOR_BYTES].copy_from_slice(&buffer[..sectors * SECTOR_BYTES]);
        torn
    }

    fn erase(&mut self, first: FlashPage) -> Result<()> {
        self.check_power()?;
        let end = first.0 + u64::from(self.geometry.pages_per_erase_block);
        self.written
            .retain(|&page, _| !(first.0..end).contains(&page));
        self.erased.insert(first.0);
        Ok(())
    }

    /// Puts what is not synced over what the device below has read, and flips bits.
    fn finish_read(&mut self, first: FlashPage, buffers: &mut [PageBuffer]) {
        for (page, buffer) in (first.0..).zip(buffers) {
            if let Some(written) = self.written.get(&page) {
                buffer.copy_from_slice(written);
            } else if self.erased.contains(&self.block_of(page)) {
                buffer.fill(0);
            }
            let occasion = self.pages_read;
            self.pages_read += 1;
            if self.is_due(self.options.bit_flip, occasion) {
                let bit = self.random.below(8 * PAGE_SIZE_BYTES as u64) as usize;
                buffer[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    /// Forgets of what is not synced what did not reach the flash before the power failed.
    fn decide_survivors(&mut self) {
        // In the order of pages, so that a seed replays.
        let mut pages: Vec<_> = self.written.keys().copied().collect();
        pages.sort_unstable();
        pages.retain(|_| self.random.below(2) == 0);
        let torn = match pages.len() as u64 {
            0 => None,
            count => {
                Some(pages[self.random.below(count) as usize]).filter(|_| self.random.below(2) == 0)
            }
        };
        let mut survivors = HashMap::new();
        for page in pages {
            if let Some(buffer) = self.written.remove(&page) {
                let torn = (torn == Some(page)).then(|| self.torn(&buffer));
                survivors.insert(page, torn.unwrap_or(buffer));
            }
        }
        let mut blocks: Vec<_> = self.erased.drain().collect();
        blocks.sort_unstable();
        let end = u64::from(self.geometry.pages_per_erase_block);
        for first in blocks {
            // Pages behind an erase can't arrive before it.
            let is_needed = (first..first + end).any(|page| survivors.contains_key(&page));
            if is_needed || self.random.below(2) == 0 {
                self.erased.insert(first);
            }
        }
        self.written = survivors;
    }
}

fn injected(what: &str) -> StorageError {
    StorageError::io("injected fault", io::Error::other(what.to_string()))
}

#[derive(Debug)]
struct FaultQueue {
    inner: Box<dyn FlashQueue>,
    state: Arc<Mutex<State>>,
    /// Writes, erases and failed operations that the caller has not got yet.
    ended: Vec<Completion>,
    /// Reads in flight that will fail.
    failing_reads: HashSet<Tag>,
    /// Of the reads in flight.
    first_pages: HashMap<Tag, FlashPage>,
}

impl FlashQueue for FaultQueue {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.ended.len()
    }

    fn max_pages_per_op(&self) -> usize {
        self.inner.max_pages_per_op()
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        let state = &mut *self.state.lock();
        check_op(self, &op, state.geometry)?;
        let occasion = state.operations;
        state.operations += 1;
        let fails = state.is_due(state.options.fail, occasion);
        let (tag, buffers, mut result) = match op {
            FlashOp::Read { tag, first, .. } => {
                self.first_pages.insert(tag, first);
                if fails {
                    self.failing_reads.insert(tag);
                }
                return self.inner.submit(op);
            }
            FlashOp::Write {
                tag,
                first,
                buffers,
            } => {
                let pages = if fails {
                    state.random.below(buffers.len() as u64) as usize
                } else {
                    buffers.len()
                };
                let result = state.write(first, &buffers[..pages]);
                (tag, buffers, result)
            }
            FlashOp::Erase { tag, first } => {
                let result = if fails { Ok(()) } else { state.erase(first) };
                (tag, Vec::new(), result)
            }
        };
        if fails && result.is_ok() {
            result = Err(injected("the operation has failed"));
        }
        self.ended.push(Completion {
            tag,
            buffers,
            result,
        });
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let state = &mut *self.state.lock();
        let known = completions.len();
        // Some of what has ended, in any order.
        let count = state.random.below(self.ended.len() as u64 + 1) as usize;
        for _ in 0..count.max(min.min(self.ended.len())) {
            let index = state.random.below(self.ended.len() as u64) as usize;
            completions.push(self.ended.swap_remove(index));
        }
        let from = completions.len();
        let waited = self
            .inner
            .wait(min.saturating_sub(from - known), completions);
        for completion in &mut completions[from..] {
            let first = self.first_pages.remove(&completion.tag);
            if self.failing_reads.remove(&completion.tag) {
                completion.result = Err(injected("the operation has failed"));
            } else if let Err(error) = state.check_power() {
                completion.result = Err(error);
            } else if let (Some(first), Ok(())) = (first, &completion.result) {
                state.finish_read(first, &mut completion.buffers);
            }
        }
        waited
    }
}
