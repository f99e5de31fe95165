//! Pages that are on no card yet: those of small commits, which a log above the store keeps until
//! they are worth writing.
//!
//! They have addresses of a card of their own, which is memory. No address is used twice, so that
//! what holds one never meets the page of another.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::RwLock;

use super::{CardId, NodeId, PageAddress, PageRun};
use crate::flash::{FlashPage, PageBuffer};
use crate::page::Page;
use crate::{Result, StorageError};

/// The card that is memory.
pub const MEMORY_CARD: CardId = CardId(u16::MAX);

/// Page numbers of that card begin where no flash has any.
const FIRST_PAGE: u64 = 1 << 48;

/// The pages that are on no card.
#[derive(Debug)]
pub(super) struct MemoryPages {
    pages: RwLock<HashMap<u64, Arc<Page>>>,
    next: AtomicU64,
}

impl MemoryPages {
    pub fn new() -> Self {
        Self {
            pages: RwLock::default(),
            next: AtomicU64::new(FIRST_PAGE),
        }
    }

    /// How many pages there are.
    pub fn count(&self) -> u64 {
        self.pages.read().len() as u64
    }

    /// Puts a run of pages where there was none.
    pub fn append(&self, buffers: Vec<PageBuffer>) -> Result<PageAddress> {
        let count = buffers.len() as u64;
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        let pages = buffers.into_iter().map(Page::of_writer);
        let pages = pages.collect::<Result<Vec<_>>>()?;
        self.pages.write().extend((first..).zip(pages));
        Ok(address(first))
    }

    /// Puts pages back where they were in an earlier life of the store.
    ///
    /// # Errors
    /// `Corrupt` when one is not the page of the run.
    pub fn restore(&self, run: &PageRun, buffers: Vec<PageBuffer>) -> Result<()> {
        let first = run.first.page.0;
        let end = first.checked_add(u64::from(run.count));
        let end = end.filter(|_| first >= FIRST_PAGE && buffers.len() == run.count as usize);
        let end = end.ok_or_else(|| {
            StorageError::corrupt(format!("{}: the log lacks pages of it", run.label))
        })?;
        let pages = verified(run, buffers)?;
        self.next.fetch_max(end, Ordering::Relaxed);
        self.pages.write().extend((first..).zip(pages));
        Ok(())
    }

    /// Puts the pages of a run that is in the memory of another store where there was none.
    ///
    /// # Errors
    /// `Corrupt` when one is not the page of the run, or there are others than it has.
    pub fn adopt(&self, run: &PageRun, buffers: Vec<PageBuffer>) -> Result<PageAddress> {
        if buffers.len() != run.count as usize {
            return Err(StorageError::corrupt(format!(
                "{}: {} pages came of its {}",
                run.label,
                buffers.len(),
                run.count
            )));
        }
        let pages = verified(run, buffers)?;
        let first = self.next.fetch_add(run.count.into(), Ordering::Relaxed);
        self.pages.write().extend((first..).zip(pages));
        Ok(address(first))
    }

    pub fn get(&self, page: u64) -> Option<Arc<Page>> {
        self.pages.read().get(&page).cloned()
    }

    /// Forgets a run.
    pub fn free(&self, first: u64, pages: u32) {
        let mut all = self.pages.write();
        for page in first..first.saturating_add(u64::from(pages)) {
            all.remove(&page);
        }
    }
}

/// The pages of a run from its first on.
fn verified(run: &PageRun, buffers: Vec<PageBuffer>) -> Result<Vec<Arc<Page>>> {
    let pages = (0..).zip(buffers).map(|(page, buffer)| {
        let identity = super::reader::identity_of(&run.identity, page);
        Page::verify(buffer, &identity, &run.label)
    });
    pages.collect()
}

fn address(page: u64) -> PageAddress {
    PageAddress {
        node: NodeId::default(),
        card: MEMORY_CARD,
        page: FlashPage(page),
    }
}
