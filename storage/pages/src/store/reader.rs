//! Reading pages: cache ▸ in flight ▸ flash, with read-ahead.
//!
//! A reader is told what will be needed ([`PageReader::prefetch`]) and keeps the flash busy with
//! it: neighbouring pages that are not cached go into one scatter read, reads are started until a
//! window of pages is full, further wishes wait in a list. A page is verified before anybody sees
//! it. It then lies in the window until it is taken, and in the cache; so a cache smaller than the
//! window costs no second read. Pages that nobody takes leave the window, oldest first, when it is
//! needed for others.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::parts::GroupsAtHand;
use super::queues::QueueLease;
use super::{MEMORY_CARD, PageAddress, PageRun, PageStore};
use crate::flash::{Completion, FlashOp, FlashPage, PAGE_SIZE_BYTES, PageBuffer, Tag};
use crate::page::{Page, PageIdentity, PageIndex};
use crate::{Result, StorageError};

/// Pages that a reader holds at most, in flight or not taken yet (32 MiB), unless there are many
/// readers. Half of it may be in flight, which keeps a fast device busy; reads end in any order and
/// pages are taken in their own, so what waits to be taken must not slow down the reading.
pub(super) const WINDOW_MAX_PAGES: usize = 4096;
/// The same with very many readers (2 MiB).
pub(super) const WINDOW_MIN_PAGES: usize = 256;
/// What the windows of all readers of a store hold together, up to those least windows (256 MiB).
const WINDOWS_PAGES: usize = 32_768;
/// Wishes are fetched when so many pages more can be in flight.
const REFILL_PAGES: usize = 128;
/// What the window may hold beyond its size of pages that nobody announced.
pub(super) const WINDOW_EXCESS_PAGES: usize = 512;
/// Hits and misses are reported to the cache after so many pages.
const REPORT_AFTER: u64 = 4096;

/// Reads pages: one reader a thread.
#[derive(Debug)]
pub struct PageReader {
    store: Arc<PageStore>,
    queue: QueueLease,
    /// The window: pages in flight and pages not taken yet, by number.
    pub(super) pages: HashMap<u64, PageState>,
    window_pages: usize,
    /// Pages of the window that the cache did not have: in flight, or read and not taken yet.
    flash_pages: usize,
    reads: HashMap<Tag, Read>,
    in_flight_pages: usize,
    /// What reads have brought, oldest first; some of it was taken.
    pub(super) brought: VecDeque<Range<u64>>,
    /// Pages to be read once more, alone.
    retries: VecDeque<Read>,
    /// What to read when the window has room.
    pub(super) wishes: VecDeque<Wish>,
    completions: Vec<Completion>,
    counters: ReadCounters,
    /// Of `counters`, what the cache was told.
    reported: ReadCounters,
    uses_cache: bool,
    uses_flash: bool,
    has_missed: bool,
    /// Of columns that share pages.
    pub(super) groups: GroupsAtHand,
}

/// What a reader did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Pages read from flash.
    pub pages_from_flash: u64,
    /// Their bytes.
    pub bytes_from_flash: u64,
    /// Pages that the cache had.
    pub pages_from_cache: u64,
    /// Time that [`PageReader::get`] waited for flash.
    pub wait_ns: u64,
}

#[derive(Debug)]
pub(super) enum PageState {
    Reading,
    /// Read from flash.
    Ready(Arc<Page>),
    /// The cache had it.
    Cached(Arc<Page>),
    Failed(StorageError),
}

/// Consecutive pages of a run that are read together.
#[derive(Debug, Clone)]
struct Read {
    first: FlashPage,
    count: u32,
    /// Identity of the first.
    identity: PageIdentity,
    label: Arc<str>,
    /// It failed before.
    is_retry: bool,
}

#[derive(Debug)]
pub(super) struct Wish {
    pub run: PageRun,
    pub pages: Range<u32>,
}

impl PageReader {
    pub(super) fn new(store: Arc<PageStore>, queue: QueueLease) -> Self {
        store.readers.fetch_add(1, Ordering::Relaxed);
        Self {
            window_pages: WINDOW_MIN_PAGES,
            flash_pages: 0,
            store,
            queue,
            pages: HashMap::new(),
            reads: HashMap::new(),
            in_flight_pages: 0,
            brought: VecDeque::new(),
            retries: VecDeque::new(),
            wishes: VecDeque::new(),
            completions: Vec::new(),
            counters: ReadCounters::default(),
            reported: ReadCounters::default(),
            uses_cache: true,
            uses_flash: true,
            has_missed: false,
            groups: GroupsAtHand::default(),
        }
    }

    /// From now on every page comes from flash and none goes to the cache: for a check of the
    /// flash, or a pass over data that nobody will want again soon.
    pub fn bypass_cache(&mut self) {
        self.uses_cache = false;
    }

    /// From now on nothing comes from flash: what would have to wait for it is an error, after which
    /// [`Self::has_missed`] says so. For whoever holds up others while it waits.
    pub fn bypass_flash(&mut self) {
        self.uses_flash = false;
    }

    /// Whether a page would have had to come from flash after [`Self::bypass_flash`].
    pub fn has_missed(&self) -> bool {
        self.has_missed
    }

    /// # Errors
    /// `Invalid` after [`Self::bypass_flash`].
    fn check_flash(&mut self, run: &PageRun) -> Result<()> {
        if self.uses_flash {
            return Ok(());
        }
        self.has_missed = true;
        let label = &run.label;
        Err(StorageError::Invalid(format!("{label} is not cached")))
    }

    /// Tells that pages of a run will be needed. Reads of what is neither cached nor in flight
    /// start at once, or as soon as pages before them were taken; this does not wait for flash.
    pub fn prefetch(&mut self, run: &PageRun, pages: Range<u32>) -> Result<()> {
        check_range(run, &pages)?;
        if pages.is_empty() {
            return Ok(());
        }
        if let Some(part) = &run.part {
            return self.prefetch_parts(part, pages);
        }
        self.check_flash(run)?;
        let readers = self.store.readers.load(Ordering::Relaxed).max(1);
        self.window_pages = (WINDOWS_PAGES / readers).clamp(WINDOW_MIN_PAGES, WINDOW_MAX_PAGES);
        self.wishes.push_back(Wish {
            run: run.clone(),
            pages,
        });
        self.start_wishes()
    }

    /// Whether flash is being read for this reader and could be kept busier by announcing more:
    /// some of what was announced and not taken yet was not cached, and there is room for more.
    /// Reads that have ended count as much as those in flight, as a device that ends them before
    /// this is asked is the last that should be left idle. Of a narrow table one segment is too
    /// little for a fast device. It is FALSE while all comes from the cache.
    pub fn wants_more(&self) -> bool {
        self.wishes.is_empty()
            && self.flash_pages > 0
            && self.in_flight_pages < self.window_pages / 2
            && self.pages.len() < self.window_pages
    }

    /// A page of a run: from the cache, from what is in flight, or from flash. Checksum and
    /// identity of every page that comes from flash have been verified.
    ///
    /// # Errors
    /// `Corrupt` when flash holds something else than what was written there, `Io` when it can't
    /// be read, both naming the run's label and the page; `Invalid` when the run has no such page.
    #[inline]
    pub fn get(&mut self, run: &PageRun, page: u32) -> Result<Arc<Page>> {
        if let Some(part) = &run.part {
            check_range(run, &(page..page.saturating_add(1)))?;
            return self.get_part(part, &run.label, page);
        }
        if self.pages.is_empty()
            && page < run.count
            && let Some(hit) = self.look_up(run, page)
        {
            return Ok(hit);
        }
        self.get_slowly(run, page)
    }

    /// [`PageReader::get`] of consecutive pages, appended to `out`; what is missing is read in as
    /// few operations as possible.
    pub fn get_run(
        &mut self,
        run: &PageRun,
        pages: Range<u32>,
        out: &mut Vec<Arc<Page>>,
    ) -> Result<()> {
        check_range(run, &pages)?;
        out.reserve(pages.len());
        let mut is_wished = false;
        if run.part.is_some() {
            self.prefetch(run, pages.clone())?;
            for page in pages {
                out.push(self.get(run, page)?);
            }
            return Ok(());
        }
        for page in pages.clone() {
            if self.pages.is_empty()
                && let Some(hit) = self.look_up(run, page)
            {
                out.push(hit);
                continue;
            }
            if !mem::replace(&mut is_wished, true) {
                self.prefetch(run, page..pages.end)?;
            }
            out.push(self.get_slowly(run, page)?);
        }
        Ok(())
    }

    /// A page of a run if the cache has it; nothing is read from flash.
    ///
    /// Together with [`PageReader::prefetch`] of what is missing this spares the window all that
    /// is cached.
    #[inline]
    pub fn cached(&mut self, run: &PageRun, page: u32) -> Option<Arc<Page>> {
        if page >= run.count {
            None
        } else if let Some(part) = &run.part {
            self.cached_part(part, &run.label, page)
        } else {
            self.look_up(run, page)
        }
    }

    /// The page index of the chunk whose first page has this identity, if the cache has it.
    pub fn cached_index(&self, chunk: &PageIdentity) -> Option<Arc<PageIndex>> {
        let cache = self.uses_cache.then_some(&self.store.cache)?;
        cache.index(chunk)
    }

    /// Puts a chunk's page index into the cache.
    pub fn cache_index(&self, chunk: PageIdentity, index: &Arc<PageIndex>) {
        if self.uses_cache {
            self.store.cache.insert_index(chunk, Arc::clone(index));
        }
    }

    /// The counters since the last call.
    pub fn take_counters(&mut self) -> ReadCounters {
        self.report();
        self.reported = ReadCounters::default();
        mem::take(&mut self.counters)
    }

    /// Tells the cache what became of hits and misses since the last report.
    fn report(&mut self) {
        self.store.cache.count(
            self.counters.pages_from_cache - self.reported.pages_from_cache,
            self.counters.pages_from_flash - self.reported.pages_from_flash,
        );
        self.reported = self.counters;
    }

    /// A cached page.
    #[inline]
    fn look_up(&mut self, run: &PageRun, page: u32) -> Option<Arc<Page>> {
        if run.first.card == MEMORY_CARD {
            let found = self.store.memory.get(page_number(run, page))?;
            self.counters.pages_from_cache += 1;
            return is_of(&found, &run.identity, page).then_some(found);
        }
        if !self.uses_cache {
            return None;
        }
        let address = page_address(run, page);
        let hit = self.store.cache.get(&address)?;
        if !is_of(&hit, &run.identity, page) {
            // Left over from an earlier life of the address.
            self.store.cache.remove(&address);
            return None;
        }
        self.counters.pages_from_cache += 1;
        if self.counters.pages_from_cache - self.reported.pages_from_cache >= REPORT_AFTER {
            self.report();
        }
        Some(hit)
    }

    fn get_slowly(&mut self, run: &PageRun, page: u32) -> Result<Arc<Page>> {
        check_range(run, &(page..page.saturating_add(1)))?;
        let number = page_number(run, page);
        let mut taken = self.take(number);
        if taken.is_none() {
            if !self.pages.contains_key(&number) {
                if let Some(hit) = self.look_up(run, page) {
                    return Ok(hit);
                }
                self.start_now(run, page)?;
            }
            let started = Instant::now();
            let waited = self.wait_for(number);
            self.counters.wait_ns += started.elapsed().as_nanos() as u64;
            waited?;
            taken = self.take(number);
        }
        self.refill()?;
        taken.unwrap_or_else(|| {
            Err(StorageError::Invalid(format!(
                "{}, page {page}: its read has ended without a page",
                run.label
            )))
        })
    }

    /// Takes a page out of the window if its read has ended.
    fn take(&mut self, number: u64) -> Option<Result<Arc<Page>>> {
        match self.remove_ended(number)? {
            PageState::Ready(page) | PageState::Cached(page) => Some(Ok(page)),
            PageState::Failed(error) => Some(Err(error)),
            PageState::Reading => None,
        }
    }

    /// Removes what the window has of a page that is not being read.
    pub(super) fn remove_ended(&mut self, number: u64) -> Option<PageState> {
        match self.pages.entry(number) {
            Entry::Occupied(entry) if !matches!(entry.get(), PageState::Reading) => {
                let state = entry.remove();
                self.flash_pages -= usize::from(!matches!(state, PageState::Cached(_)));
                Some(state)
            }
            _ => None,
        }
    }

    fn wait_for(&mut self, number: u64) -> Result<()> {
        while matches!(self.pages.get(&number), Some(PageState::Reading)) {
            self.wait(1)?;
            self.refill()?;
        }
        Ok(())
    }

    /// Fetches wishes if it is worth a system call.
    pub(super) fn refill(&mut self) -> Result<()> {
        if !self.wishes.is_empty()
            && self.pages.len() + REFILL_PAGES <= self.window_pages
            && self.in_flight_pages + REFILL_PAGES <= self.window_pages / 2
        {
            self.start_wishes()?;
        }
        Ok(())
    }

    /// Fetches wishes as far as window and queue have room: from the cache, so that nobody evicts
    /// them before they are taken, or by starting reads.
    fn start_wishes(&mut self) -> Result<()> {
        let mut has_started = false;
        while self.pages.len() < self.window_pages
            && self.in_flight_pages < self.window_pages / 2
            && self.queue.room()? > 0
            && let Some(mut wish) = self.wishes.pop_front()
        {
            let missing = self.collect(&wish.run, &mut wish.pages);
            if !missing.is_empty() {
                self.start(&wish.run, missing)?;
                has_started = true;
            }
            if !wish.pages.is_empty() {
                self.wishes.push_front(wish);
            }
        }
        if has_started { self.wait(0) } else { Ok(()) }
    }

    /// Takes pages from the front of `pages`, as far as the window has room: those that are cached
    /// into the window, and the first that must be read from flash with its neighbours, as many
    /// as one operation reads; those it returns.
    fn collect(&mut self, run: &PageRun, pages: &mut Range<u32>) -> Range<u32> {
        let max_pages = self.queue.max_pages_per_op();
        let mut missing = 0..0;
        let mut cached = 0..0;
        while pages.start < pages.end
            && missing.len() < max_pages
            && self.pages.len() + missing.len() < self.window_pages
        {
            let page = pages.start;
            let number = page_number(run, page);
            if !self.pages.contains_key(&number) {
                if let Some(hit) = self.look_up(run, page) {
                    self.pages.insert(number, PageState::Cached(hit));
                    if cached.end != number {
                        self.note_brought(mem::replace(&mut cached, number..number));
                    }
                    cached.end = number + 1;
                } else {
                    if missing.is_empty() {
                        missing.start = page;
                    }
                    missing.end = page + 1;
                    pages.start += 1;
                    continue;
                }
            }
            if !missing.is_empty() {
                break;
            }
            pages.start += 1;
        }
        self.note_brought(cached);
        missing
    }

    /// Starts the read of a page that is needed now, with what was wished behind it.
    fn start_now(&mut self, run: &PageRun, page: u32) -> Result<()> {
        self.check_flash(run)?;
        let is_wished = |wish: &Wish| wish.run.first == run.first && wish.pages.contains(&page);
        let wish = self.wishes.iter().position(is_wished);
        let wish = wish.and_then(|index| self.wishes.remove(index));
        let mut pages = page..page + 1;
        if let Some(mut wish) = wish {
            // It was not fetched yet, so the window is full of something else.
            self.make_room(
                self.window_pages
                    .saturating_sub(self.queue.max_pages_per_op())
                    .max(1),
            );
            let before = wish.pages.start..page;
            wish.pages.start = page;
            let missing = self.collect(run, &mut wish.pages);
            for pages in [wish.pages, before] {
                if !pages.is_empty() {
                    let run = wish.run.clone();
                    self.wishes.push_front(Wish { run, pages });
                }
            }
            // The page itself is missing, unless another reader has just put it into the cache.
            pages = missing;
        } else {
            self.make_room(self.window_pages + WINDOW_EXCESS_PAGES);
        }
        while self.queue.room()? == 0 {
            self.wait(1)?;
        }
        if !pages.is_empty() {
            self.start(run, pages)?;
        }
        self.wait(0)
    }

    /// Drops the oldest pages that nobody took, until the window holds less than `count`.
    fn make_room(&mut self, count: usize) {
        while self.pages.len() >= count {
            let Some(brought) = self.brought.pop_front() else {
                return;
            };
            for number in brought {
                self.remove_ended(number);
            }
        }
    }

    /// Notes pages that can be taken now.
    fn note_brought(&mut self, numbers: Range<u64>) {
        if !numbers.is_empty() {
            self.brought.push_back(numbers);
            self.forget_taken();
        }
    }

    /// Drops the oldest entries of `brought` of which nothing is left.
    fn forget_taken(&mut self) {
        while let Some(oldest) = self.brought.front()
            && !oldest
                .clone()
                .any(|number| self.pages.contains_key(&number))
        {
            self.brought.pop_front();
        }
    }

    fn start(&mut self, run: &PageRun, pages: Range<u32>) -> Result<()> {
        let read = Read {
            first: FlashPage(page_number(run, pages.start)),
            count: pages.len() as u32,
            identity: identity_of(&run.identity, pages.start),
            label: run.label.clone(),
            is_retry: false,
        };
        self.submit(read)
    }

    /// Starts a read; the queue has room.
    fn submit(&mut self, read: Read) -> Result<()> {
        let buffers = (0..read.count).map(|_| PageBuffer::recycled()).collect();
        let first = read.first;
        let tag = self.queue.submit(|tag| FlashOp::Read {
            tag,
            first,
            buffers,
        })?;
        let numbers = first.0..first.0 + u64::from(read.count);
        self.pages
            .extend(numbers.map(|number| (number, PageState::Reading)));
        self.in_flight_pages += read.count as usize;
        if !read.is_retry {
            // A page that is read again has stayed in the window.
            self.flash_pages += read.count as usize;
        }
        self.reads.insert(tag, read);
        Ok(())
    }

    /// Waits for `min` reads and digests what has ended.
    fn wait(&mut self, min: usize) -> Result<()> {
        let mut completions = mem::take(&mut self.completions);
        let waited = self.queue.wait(min, &mut completions);
        for completion in completions.drain(..) {
            self.complete(completion);
        }
        self.completions = completions;
        waited?;
        while !self.retries.is_empty() && self.queue.room()? > 0 {
            let Some(read) = self.retries.pop_front() else {
                break;
            };
            self.submit(read)?;
        }
        Ok(())
    }

    /// Verifies what a read brought. What fails is read once more, page by page: an error of the
    /// transfer heals, one of the flash is told of the page that has it.
    fn complete(&mut self, completion: Completion) {
        let Some(read) = self.reads.remove(&completion.tag) else {
            return;
        };
        let count = u64::from(read.count);
        self.in_flight_pages -= read.count as usize;
        self.counters.pages_from_flash += count;
        self.counters.bytes_from_flash += count * PAGE_SIZE_BYTES as u64;
        self.note_brought(read.first.0..read.first.0 + count);
        let fail = |reader: &mut Self, single: Read, error| {
            if read.is_retry {
                reader
                    .pages
                    .insert(single.first.0, PageState::Failed(error));
            } else {
                reader.retries.push_back(single);
            }
        };
        match completion.result {
            Ok(()) => {
                for (index, buffer) in (0..).zip(completion.buffers) {
                    let single = read.single(index);
                    let verified = Page::verify(buffer, &single.identity, &single.label);
                    let verified = match verified {
                        Err(error) if read.is_retry => self.store.good_copy(&single).ok_or(error),
                        verified => verified,
                    };
                    match verified {
                        Ok(page) => {
                            if self.uses_cache {
                                let address = PageAddress::of_number(single.first.0);
                                self.store.cache.insert(address, page.clone());
                            }
                            self.pages.insert(single.first.0, PageState::Ready(page));
                        }
                        Err(error) => fail(self, single, error),
                    }
                }
            }
            Err(StorageError::Io { action, source }) => {
                for index in 0..read.count {
                    let single = read.single(index);
                    let place = (single.identity.segment, single.identity.page);
                    let action = format!(
                        "{}, segment {}, page {}: {action}",
                        single.label, place.0, place.1
                    );
                    let source = std::io::Error::new(source.kind(), source.to_string());
                    fail(self, single, StorageError::Io { action, source });
                }
            }
            Err(error) => {
                let why = error.to_string();
                for index in 0..read.count {
                    let error = StorageError::Invalid(format!("{}: {why}", read.label));
                    fail(self, read.single(index), error);
                }
            }
        }
    }
}

impl PageStore {
    /// A page of which one copy is damaged, from another one.
    fn good_copy(&self, read: &Read) -> Option<Arc<Page>> {
        let mut damaged = Vec::new();
        for (copy, buffer) in self.flash.copies_of(read.first) {
            match Page::verify(buffer, &read.identity, &read.label) {
                Ok(page) => {
                    log::warn!("{}: a copy is damaged, and is written anew", read.label);
                    self.flash.renew(read.first, &damaged);
                    return Some(page);
                }
                Err(_) => damaged.push(copy),
            }
        }
        None
    }
}

impl Read {
    /// One page of it, to be read again.
    fn single(&self, index: u32) -> Self {
        Self {
            first: FlashPage(self.first.0 + u64::from(index)),
            count: 1,
            identity: identity_of(&self.identity, index),
            label: self.label.clone(),
            is_retry: true,
        }
    }
}

impl Drop for PageReader {
    fn drop(&mut self) {
        // Reads in flight stay with the queue, which owns their buffers.
        self.report();
        self.store.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn check_range(run: &PageRun, pages: &Range<u32>) -> Result<()> {
    let number = run.first.number();
    if pages.end > run.count || number.checked_add(u64::from(run.count)).is_none() {
        return Err(StorageError::Invalid(format!(
            "{}: pages {} to {} of a run of {} pages were asked for, the first of which is page {} \
             of card {}, node {}",
            run.label,
            pages.start,
            pages.end,
            run.count,
            run.first.page.0,
            run.first.card.0,
            run.first.node.0,
        )));
    }
    Ok(())
}

/// Of a run that can't be, a number that no page has: such a run is refused when it is read.
pub(super) fn page_number(run: &PageRun, page: u32) -> u64 {
    run.first.number().saturating_add(u64::from(page))
}

pub(super) fn page_address(run: &PageRun, page: u32) -> PageAddress {
    PageAddress {
        page: FlashPage(run.first.page.0.saturating_add(u64::from(page))),
        ..run.first
    }
}

/// The identity of the page `page` pages behind the one with `first`.
pub(super) fn identity_of(first: &PageIdentity, page: u32) -> PageIdentity {
    PageIdentity {
        page: first.page.wrapping_add(page as u16),
        ..*first
    }
}

/// Whether a page is the one that a run has at `page`.
pub(super) fn is_of(found: &Page, first: &PageIdentity, page: u32) -> bool {
    let header = found.header();
    header.generation == first.generation
        && header.page == first.page.wrapping_add(page as u16)
        && header.segment == first.segment
        && header.column_group == first.column_group
        && header.table == first.table
}
