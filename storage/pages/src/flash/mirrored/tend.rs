//! Copies that come back: what they lack is copied, erase block by erase block, while all is used.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::{Flash, FlashOp, FlashPage, FlashQueue, PageBuffer, Tag};
use super::{Behind, Copy, MAX_PAGES_PER_OP, MirroredFlash, check_blocks, is_of_copy, joined};
use crate::{Result, StorageError};

/// Blocks that are copied between two syncs: what a copy that goes away again has to be given once more.
const SYNC_EVERY: usize = if cfg!(test) { 3 } else { 16 };

impl MirroredFlash {
    /// [Asks](MirroredFlash::ask) after the copies and looks for those that are away. Blocks while it waits for
    /// answers, and for nothing that is copied; the device can be used as ever.
    ///
    /// # Errors
    /// The first, when all was tried: those of the ledger, and of a copy that does not fit the others. That a
    /// copy is away is none.
    pub fn look(&self) -> Result<()> {
        let _alone = self.shared.looking.lock();
        self.ask();
        let copies = 0..self.shared.sources.len();
        let looked: Vec<_> = copies.map(|copy| self.look_for(copy)).collect();
        looked.into_iter().fold(Ok(()), Result::and)
    }

    /// Brings the copies that are there and behind up to the others, which may take as long as writing a whole
    /// card. Blocks meanwhile; the device can be used as ever. Whether all are there and whole now: else it is
    /// to be called again, after a while.
    ///
    /// # Errors
    /// The first, when all was tried: those of the ledger, and of reading what is to be copied where no copy
    /// has it.
    pub fn catch_up(&self) -> Result<bool> {
        let _alone = self.shared.tending.lock();
        let copies = 0..self.shared.sources.len();
        let caught_up: Vec<_> = copies.map(|copy| self.catch_one_up(copy)).collect();
        caught_up.into_iter().fold(Ok(()), Result::and)?;
        Ok(self.shared.state.lock().copies.iter().all(Copy::is_whole))
    }

    /// Both in turn.
    ///
    /// # Errors
    /// Those of [`Self::look`] and [`Self::catch_up`], when both were tried.
    pub fn tend(&self) -> Result<bool> {
        let looked = self.look();
        let caught_up = self.catch_up();
        looked.and(caught_up)
    }

    /// Opens a copy that was away.
    fn look_for(&self, number: usize) -> Result<()> {
        if self.shared.state.lock().copies[number].link.is_some() {
            return Ok(());
        }
        let (geometry, source) = (self.shared.geometry, &self.shared.sources[number]);
        let opened = source.open().and_then(|flash| {
            check_blocks(&flash.name(), flash.geometry(), geometry)?;
            match flash.geometry().erase_blocks < geometry.erase_blocks {
                true => Err(StorageError::Invalid(format!(
                    "{} is smaller than the other copies",
                    flash.name()
                ))),
                false => Ok((flash.used_erase_blocks()?, joined(flash)?)),
            }
        });
        let (used, flash) = match opened {
            Ok(opened) => opened,
            Err(error) if is_of_copy(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let state = &mut *self.shared.state.lock();
        // What was never synced nobody counts on, and it may have gone with all of the copies.
        if used == 0 && state.synced_used > 0 {
            if !state.has_another(number) {
                return Ok(());
            }
            self.shared.lacks_everything(state, number)?;
        }
        let copy = &mut state.copies[number];
        if let Some(behind) = &mut copy.behind {
            behind.forget_given();
        }
        copy.link = Some(flash);
        copy.generation += 1;
        Ok(())
    }

    /// Copies what one copy lacks.
    fn catch_one_up(&self, number: usize) -> Result<()> {
        let (target, generation) = {
            let state = self.shared.state.lock();
            let copy = &state.copies[number];
            match (&copy.link, &copy.behind) {
                (Some(link), Some(_)) => (Arc::clone(link), copy.generation),
                _ => return Ok(()),
            }
        };
        match self.copy_blocks(number, &target, generation) {
            Ok(()) => Ok(()),
            Err(CopyError::Source(error)) => Err(error),
            Err(CopyError::Target(error)) => {
                self.gave_up(number, generation, &error, error.is_gone())
            }
            Err(CopyError::Sync(error)) => self.gave_up(number, generation, &error, true),
        }
    }

    fn gave_up(
        &self,
        number: usize,
        generation: u64,
        error: &StorageError,
        is_lost: bool,
    ) -> Result<()> {
        let name = self.shared.sources[number].name();
        log::warn!("bringing {name} up to the other copies: {error}");
        let state = &mut *self.shared.state.lock();
        if let Some(behind) = &mut state.copies[number].behind {
            behind.forget_given();
        }
        match is_lost {
            true => self.shared.lost(state, number, generation),
            false => Ok(()),
        }
    }

    fn copy_blocks(
        &self,
        number: usize,
        target: &Arc<dyn Flash>,
        generation: u64,
    ) -> Result<(), CopyError> {
        // What the copy has beyond the others is to be erased as well.
        let used = target.used_erase_blocks().map_err(CopyError::Target)?;
        let mut from = self.open_queue().map_err(CopyError::Source)?;
        let mut to = target.open_queue().map_err(CopyError::Target)?;
        // What can't be read is tried again another time: the rest may be all that there is of other blocks.
        let mut unread = BTreeSet::new();
        let mut why = None;
        for copied in 1.. {
            let next = {
                let state = &mut *self.shared.state.lock();
                if state.is_closed {
                    return Ok(());
                }
                let copy = &mut state.copies[number];
                let Some(behind) = copy
                    .behind
                    .as_mut()
                    .filter(|_| copy.generation == generation)
                else {
                    return Ok(());
                };
                if std::mem::take(&mut behind.everything) {
                    let used = used.max(state.used);
                    behind
                        .blocks
                        .extend(0..used.min(self.shared.geometry.erase_blocks));
                }
                let is_next = |block: &&u64| {
                    !state.in_flight.contains_key(*block) && !unread.contains(*block)
                };
                let next = behind.blocks.iter().find(is_next).copied();
                if let Some(block) = next {
                    behind.blocks.remove(&block);
                    behind.given.insert(block);
                    behind.copying = Some(block);
                }
                next
            };
            let Some(block) = next else {
                let ended = self.end_catching_up(number, target, generation);
                return ended.and(why.map_or(Ok(()), |why| Err(CopyError::Source(why))));
            };
            let result = self.copy_block(&mut *from, &mut *to, block);
            if let Some(behind) = &mut self.shared.state.lock().copies[number].behind {
                behind.copying = None;
                if result.is_err() {
                    behind.blocks.insert(block);
                }
            }
            match result {
                Err(CopyError::Source(error)) if !error.is_gone() => {
                    unread.insert(block);
                    why.get_or_insert(error);
                }
                result => result?,
            }
            if copied % SYNC_EVERY == 0 {
                self.keep_given(number, target)?;
            }
        }
        Ok(())
    }

    /// Makes durable what the copy was given so far: a node that goes away need not be given that again.
    fn keep_given(&self, number: usize, target: &Arc<dyn Flash>) -> Result<(), CopyError> {
        let given = {
            let state = &mut *self.shared.state.lock();
            let Some(behind) = &mut state.copies[number].behind else {
                return Ok(());
            };
            // Of changes that are under way the sync need not see anything.
            let is_done = |block: &u64| !state.in_flight.contains_key(block);
            let given = std::mem::take(&mut behind.given).into_iter();
            let (done, under_way): (BTreeSet<_>, _) = given.partition(is_done);
            behind.given = under_way;
            done
        };
        let synced = target.sync();
        if synced.is_err()
            && let Some(behind) = &mut self.shared.state.lock().copies[number].behind
        {
            behind.blocks.extend(given);
        }
        synced.map_err(CopyError::Sync)
    }

    /// Nothing is left to be copied, but for what is being changed.
    fn end_catching_up(
        &self,
        number: usize,
        target: &Arc<dyn Flash>,
        generation: u64,
    ) -> Result<(), CopyError> {
        // What another sync covers meanwhile would not be covered here, and none would see it again.
        let _alone = self.shared.syncing.lock();
        target.sync().map_err(CopyError::Sync)?;
        let copy = &mut self.shared.state.lock().copies[number];
        let is_done = copy.behind.as_ref().is_some_and(Behind::is_done);
        if copy.generation == generation && copy.link.is_some() && is_done {
            let said = self.shared.ledger.set_behind(number, false);
            said.map_err(CopyError::Source)?;
            copy.behind = None;
            log::info!("{} has all that the other copies have", target.name());
        }
        Ok(())
    }

    fn copy_block(
        &self,
        from: &mut dyn FlashQueue,
        to: &mut dyn FlashQueue,
        block: u64,
    ) -> Result<(), CopyError> {
        let block_pages = u64::from(self.shared.geometry.pages_per_erase_block);
        let (start, end) = (block * block_pages, (block + 1) * block_pages);
        let tag = Tag(0);
        let step = MAX_PAGES_PER_OP as u64;
        // As a whole before anything is erased: what the copy has may be all that there is of it.
        let mut pages = Vec::new();
        for at in (start..end).step_by(MAX_PAGES_PER_OP) {
            let count = step.min(end - at);
            let buffers = (0..count).map(|_| PageBuffer::recycled()).collect();
            let first = FlashPage(at);
            let read = FlashOp::Read {
                tag,
                first,
                buffers,
            };
            pages.append(&mut run(from, read).map_err(CopyError::Source)?);
        }
        let first = FlashPage(start);
        run(to, FlashOp::Erase { tag, first }).map_err(CopyError::Target)?;
        for (first, buffers) in written_runs(start, pages) {
            let write = FlashOp::Write {
                tag,
                first,
                buffers,
            };
            run(to, write).map_err(CopyError::Target)?;
        }
        Ok(())
    }
}

/// Whose fault it is that copying failed.
enum CopyError {
    Target(StorageError),
    /// The target's, which may sync nothing any more until it is opened anew.
    Sync(StorageError),
    Source(StorageError),
}

/// Runs of pages that are not zero, each for one operation: the others were never written.
fn written_runs(first: u64, pages: Vec<PageBuffer>) -> Vec<(FlashPage, Vec<PageBuffer>)> {
    let mut runs: Vec<(FlashPage, Vec<PageBuffer>)> = Vec::new();
    for (page, buffer) in (first..).zip(pages) {
        if buffer.iter().all(|byte| *byte == 0) {
            continue;
        }
        match runs.last_mut() {
            Some((first, run))
                if run.len() < MAX_PAGES_PER_OP && first.0 + run.len() as u64 == page =>
            {
                run.push(buffer);
            }
            _ => runs.push((FlashPage(page), vec![buffer])),
        }
    }
    runs
}

/// Runs one operation, alone on its queue.
pub(super) fn run(queue: &mut dyn FlashQueue, op: FlashOp) -> Result<Vec<PageBuffer>> {
    queue.submit(op)?;
    let mut completions = Vec::new();
    queue.wait(1, &mut completions)?;
    let ended = completions.pop().ok_or(StorageError::Cancelled)?;
    ended.result.map(|()| ended.buffers)
}
