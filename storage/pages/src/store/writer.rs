//! Appending runs of pages.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::allocator::{Chores, Extent};
use super::queues::QueueLease;
use super::{Gain, MEMORY_CARD, NodeId, PageAddress, PageStore};
use crate::flash::{Completion, FlashOp, FlashPage, PAGE_SIZE_BYTES, PageBuffer};
use crate::{Result, StorageError};

/// Pages that a writer has on their way to flash before `append` waits (16 MiB).
const IN_FLIGHT_MAX_PAGES: usize = 2048;
/// Half-written blocks that a writer looks into before it takes a fresh one.
const PROBES_MAX: usize = 4;
/// How often in a row others may take the room that a writer has waited for, before it gives up.
const LOSSES_MAX: usize = 64;

/// Appends runs of pages to the store: one writer a thread, each with blocks of its own.
///
/// Pages go to flash in the order of their addresses, in operations as large as the device takes;
/// those of neighbouring runs share operations.
#[derive(Debug)]
pub struct PageWriter {
    queue: QueueLease,
    /// The card to which it writes.
    card: usize,
    /// What it has of each card.
    extents: Vec<Extent>,
    /// The cards to which it has written.
    written_cards: Vec<bool>,
    /// Pages that follow each other from `pending_first` on and are not submitted yet.
    pending: Vec<PageBuffer>,
    pending_first: FlashPage,
    in_flight_pages: usize,
    completions: Vec<Completion>,
    /// An operation failed: what was reserved can't be relied on.
    is_broken: bool,
    /// Pages that may stay in memory still.
    memory_pages: usize,
    /// What is appended stays there.
    is_in_memory: bool,
    /// It may take the room that is kept for pages in memory.
    may_take_all: bool,
    /// `None` once it was handed out.
    reservation: Option<Reservation>,
}

/// Runs that were written and that no manifest names yet. They are freed when it is dropped,
/// unless [`Reservation::keep`] says that the manifest took them over.
#[derive(Debug)]
pub struct Reservation {
    store: Arc<PageStore>,
    /// Neighbouring runs are one.
    runs: Vec<(PageAddress, u32)>,
}

impl PageWriter {
    pub(super) fn new(store: Arc<PageStore>, queue: QueueLease, memory_pages: usize) -> Self {
        Self {
            queue,
            card: store.home,
            extents: vec![Extent::default(); store.cards.len()],
            written_cards: vec![false; store.cards.len()],
            pending: Vec::new(),
            pending_first: FlashPage(0),
            in_flight_pages: 0,
            completions: Vec::new(),
            is_broken: false,
            memory_pages,
            is_in_memory: false,
            may_take_all: false,
            reservation: Some(Reservation::none(store)),
        }
    }

    fn store(&self) -> &Arc<PageStore> {
        &self
            .reservation
            .as_ref()
            .expect("a reservation until `finish`")
            .store
    }

    /// Begins a group of runs, of about so many pages together, that live and die together: all of
    /// them stay in memory, if the writer may leave as many there, or none; those that do not go to
    /// one card, while it has room: of `node`, if it is one that takes what is new.
    pub fn start_group(&mut self, pages: usize, node: Option<NodeId>) {
        let left = self.memory_pages.checked_sub(pages);
        self.is_in_memory = left.is_some_and(|_| self.memory_pages > 0);
        // What follows a group on the card goes there too: it is no small commit.
        self.memory_pages = left.unwrap_or_default();
        if !self.is_in_memory && self.extents.len() > 1 {
            let pages = u32::try_from(pages).unwrap_or(u32::MAX);
            self.card = self.store().card_for_group(pages, node);
        }
    }

    /// Has what follows go to the card on which `page` is.
    ///
    /// # Errors
    /// `Invalid` when the store has no such card.
    pub fn stay_near(&mut self, page: PageAddress) -> Result<()> {
        self.card = match page.card {
            MEMORY_CARD => self.store().home,
            _ => self.store().card_of(page)?,
        };
        Ok(())
    }

    /// Lets it take the room on the card that is kept for pages in memory: it writes these.
    pub fn take_all(&mut self) {
        self.may_take_all = true;
    }

    /// Appends pages as one contiguous run and returns where it starts. The write is started but
    /// not waited for; its failure is returned by a later call or by [`PageWriter::finish`].
    ///
    /// # Errors
    /// `Full` when the device has no room for the run; the writer can still be finished then. After
    /// any other error nothing more can be appended, and dropping the writer frees what it wrote.
    pub fn append(&mut self, pages: Vec<PageBuffer>) -> Result<PageAddress> {
        self.check_unbroken()?;
        let count = u32::try_from(pages.len())
            .ok()
            .filter(|&count| count > 0)
            .ok_or_else(|| {
                StorageError::Invalid(format!("a run of {} pages can't be appended", pages.len()))
            })?;
        if self.is_in_memory {
            let first = self.store().memory.append(pages)?;
            self.note(first, count);
            return Ok(first);
        }
        let first = self.reserve(count)?;
        if first.0 != self.pending_first.0 + self.pending.len() as u64 {
            self.flush()?;
        }
        if self.pending.is_empty() {
            self.pending_first = first;
        }
        self.pending.extend(pages);
        self.submit_full()?;
        Ok(PageAddress::of_number(first.0))
    }

    /// Waits until all pages are written (not: durable, see [`PageStore::sync`]).
    pub fn finish(mut self) -> Result<Reservation> {
        self.check_unbroken()?;
        self.flush()?;
        self.wait_until(0)?;
        self.release_extent();
        Ok(self
            .reservation
            .take()
            .expect("a reservation until `finish`"))
    }

    fn check_unbroken(&self) -> Result<()> {
        if self.is_broken {
            let why = "an earlier write of this writer failed; start a new one".to_string();
            return Err(StorageError::Invalid(why));
        }
        Ok(())
    }

    /// Finds a place for a run; its number.
    fn reserve(&mut self, count: u32) -> Result<FlashPage> {
        let store = self.store().clone();
        let (mut probes, mut losses, mut full_cards) = (0, 0, 0);
        while self.extent().room() < u64::from(count) {
            // Another writer may continue the block of which the rest is left, behind pages that are still on
            // their way: raw NAND takes pages in their order alone.
            if self.extent().room() > 0 && !store.cards[self.card].flash.continues_blocks() {
                self.flush()?;
                self.wait_until(0)?;
            }
            // Chores use the queue: the pages of the old place go ahead.
            let looked = store.room();
            let chores = match self.grow(&store, count, probes < PROBES_MAX) {
                // Another card first: its group is scattered then.
                Err(StorageError::Full { .. }) if full_cards + 1 < store.filled().count() => {
                    full_cards += 1;
                    self.card = store.filled_from(self.card + 1);
                    continue;
                }
                // Who moves pages can't wait for that.
                Err(error @ StorageError::Full { .. }) if !self.may_take_all => {
                    losses = match store.collect(looked)? {
                        Gain::Room => 0,
                        Gain::OfOthers if losses < LOSSES_MAX => losses + 1,
                        _ => return Err(error),
                    };
                    full_cards = 0;
                    continue;
                }
                chores => chores?,
            };
            probes += usize::from(chores.probe.is_some());
            if let Err(error) = self.do_chores(&store, chores) {
                self.is_broken = true;
                return Err(error);
            }
        }
        let card = &store.cards[self.card];
        let place = card.allocator.lock().reserve(self.extent(), count);
        let first = card.first + place.0;
        self.note(PageAddress::of_number(first), count);
        Ok(FlashPage(first))
    }

    /// What it has of the card to which it writes.
    fn extent(&mut self) -> &mut Extent {
        &mut self.extents[self.card]
    }

    fn grow(&mut self, store: &PageStore, count: u32, may_continue: bool) -> Result<Chores> {
        if !self.may_take_all {
            store.keep_room(self.card, count)?;
        }
        let mut allocator = store.cards[self.card].allocator.lock();
        allocator.grow(self.extent(), count, may_continue)
    }

    /// Notes a run that is given back if it is not kept.
    fn note(&mut self, first: PageAddress, count: u32) {
        let reservation = self.reservation.as_mut();
        let reservation = reservation.expect("a reservation until `finish`");
        reservation.add(first, count);
    }

    fn do_chores(&mut self, store: &Arc<PageStore>, chores: Chores) -> Result<()> {
        if !chores.erase.is_empty() {
            self.flush()?;
            self.wait_until(0)?;
            store.erase(&mut self.queue, self.card, &chores.erase)?;
        }
        if let Some(pages) = chores.probe {
            self.flush()?;
            self.wait_until(0)?;
            let card = &store.cards[self.card];
            let numbers = card.first + pages.start..card.first + pages.end;
            let first_unwritten = first_unwritten(&mut self.queue, numbers)? - card.first;
            let mut allocator = card.allocator.lock();
            let dead = allocator.probed(&mut self.extents[self.card], first_unwritten);
            drop(allocator);
            store.erase(&mut self.queue, self.card, dead.as_slice())?;
        }
        Ok(())
    }

    /// Submits full operations.
    fn submit_full(&mut self) -> Result<()> {
        let max_pages = self.queue.max_pages_per_op();
        while self.pending.len() >= max_pages {
            let rest = self.pending.split_off(max_pages);
            let buffers = std::mem::replace(&mut self.pending, rest);
            self.submit(buffers)?;
        }
        Ok(())
    }

    /// Submits everything.
    fn flush(&mut self) -> Result<()> {
        self.submit_full()?;
        if !self.pending.is_empty() {
            let buffers = std::mem::take(&mut self.pending);
            self.submit(buffers)?;
        }
        Ok(())
    }

    fn submit(&mut self, buffers: Vec<PageBuffer>) -> Result<()> {
        let (first, pages) = (self.pending_first, buffers.len());
        let card = self.store().card_of(PageAddress::of_number(first.0))?;
        self.written_cards[card] = true;
        self.pending_first.0 += pages as u64;
        self.wait_until(IN_FLIGHT_MAX_PAGES.saturating_sub(pages))?;
        let submitted = self.queue.submit(|tag| FlashOp::Write {
            tag,
            first,
            buffers,
        });
        self.is_broken |= submitted.is_err();
        submitted?;
        self.in_flight_pages += pages;
        let written = &self.store().cards[card].written_pages;
        written.fetch_add(pages as u64, Ordering::Relaxed);
        self.wait(0)
    }

    /// Waits until at most `pages` are in flight and the queue takes one more operation.
    fn wait_until(&mut self, pages: usize) -> Result<()> {
        while self.in_flight_pages > pages || self.queue.room()? == 0 {
            self.wait(1)?;
        }
        Ok(())
    }

    fn wait(&mut self, min: usize) -> Result<()> {
        let mut result = self.queue.wait(min, &mut self.completions);
        if !self.completions.is_empty() {
            let cards = self.store().cards.iter().zip(&self.written_cards);
            for (card, _) in cards.filter(|(_, is_written)| **is_written) {
                card.is_dirty.store(true, Ordering::SeqCst);
            }
        }
        for completion in self.completions.drain(..) {
            self.in_flight_pages -= completion.buffers.len();
            result = result.and(completion.result);
        }
        self.is_broken |= result.is_err();
        result
    }

    fn release_extent(&mut self) {
        let store = self.store().clone();
        for (card, extent) in self.extents.iter_mut().enumerate() {
            let dead = store.cards[card].allocator.lock().close(extent);
            if !dead.is_empty()
                && let Err(error) = store.erase(&mut self.queue, card, &dead)
            {
                log::warn!("{error}");
            }
        }
    }
}

impl Drop for PageWriter {
    fn drop(&mut self) {
        if self.reservation.is_none() {
            return;
        }
        // Blocks must not be erased under writes that are still on their way.
        while self.in_flight_pages > 0 {
            let in_flight_pages = self.in_flight_pages;
            if let Err(error) = self.wait(1)
                && self.in_flight_pages == in_flight_pages
            {
                log::error!("{error}; pages stay reserved until the store is opened again");
                if let Some(reservation) = self.reservation.take() {
                    reservation.keep();
                }
                return;
            }
        }
        self.release_extent();
    }
}

impl Reservation {
    pub(super) fn none(store: Arc<PageStore>) -> Self {
        Self {
            store,
            runs: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, first: PageAddress, count: u32) {
        match self.runs.last_mut() {
            Some((last, pages))
                if (last.node, last.card) == (first.node, first.card)
                    && last.page.0 + u64::from(*pages) == first.page.0
                    && pages.checked_add(count).is_some() =>
            {
                *pages += count;
            }
            _ => self.runs.push((first, count)),
        }
    }

    /// The manifest names the runs now: they stay.
    pub fn keep(mut self) {
        self.runs.clear();
    }

    /// Bytes of all runs.
    pub fn size_bytes(&self) -> u64 {
        self.runs
            .iter()
            .map(|&(_, pages)| u64::from(pages) * PAGE_SIZE_BYTES as u64)
            .sum()
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        if let Err(error) = self.store.free_runs(&self.runs) {
            log::warn!("giving back what was not committed: {error}");
        }
    }
}

/// The end of what was written in a block: behind its last page that is not zero. Nothing else of
/// the caller is in flight.
fn first_unwritten(queue: &mut QueueLease, pages: std::ops::Range<u64>) -> Result<u64> {
    let mut end = pages.end;
    let mut completions = Vec::new();
    while end > pages.start {
        let first = end
            .saturating_sub(queue.max_pages_per_op() as u64)
            .max(pages.start);
        let buffers = (first..end).map(|_| PageBuffer::recycled()).collect();
        queue.submit(|tag| FlashOp::Read {
            tag,
            first: FlashPage(first),
            buffers,
        })?;
        queue.wait(1, &mut completions)?;
        let Some(read) = completions.pop() else { break };
        read.result?;
        let is_written = |buffer: &PageBuffer| buffer.iter().any(|&byte| byte != 0);
        if let Some(last) = read.buffers.iter().rposition(is_written) {
            return Ok(first + last as u64 + 1);
        }
        end = first;
    }
    Ok(end)
}
