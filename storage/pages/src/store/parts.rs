//! Columns that share pages: a group page is read once for all of them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use super::reader::{is_of, page_number};
use super::{PageReader, PageRun, RunPart};
use crate::Result;
use crate::page::Page;

/// Group pages that a reader keeps for the next column (8 MiB): what a segment of rows of 128 bytes
/// has, so that columns that are read one after the other read it once without a cache, too.
const AT_HAND_MAX: usize = 1024;

/// The group pages that a reader came across last, by number.
#[derive(Debug, Default)]
pub(super) struct GroupsAtHand {
    pages: HashMap<u64, Arc<Page>>,
    /// Their numbers, oldest first.
    order: VecDeque<u64>,
}

impl GroupsAtHand {
    /// A page of a run, if it is there.
    fn get(&self, run: &PageRun, page: u32) -> Option<&Arc<Page>> {
        let found = self.pages.get(&page_number(run, page))?;
        // It may be left over from an earlier life of the address.
        is_of(found, &run.identity, page).then_some(found)
    }

    fn insert(&mut self, number: u64, page: &Arc<Page>) {
        if self.pages.insert(number, Arc::clone(page)).is_none() {
            self.order.push_back(number);
        }
        if self.order.len() > AT_HAND_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.pages.remove(&oldest);
        }
    }
}

impl RunPart {
    /// Auxiliary pages of the column.
    fn aux_pages(&self) -> u32 {
        u32::from(self.aux.is_some())
    }

    /// The auxiliary page, if the column's page of this number is that.
    fn aux_at(&self, page: u32) -> Option<u32> {
        self.aux.filter(|_| page == 0)
    }

    /// The group page that the column's page of this number is a part of.
    fn group_of(&self, page: u32) -> u32 {
        self.first_group.saturating_add(page - self.aux_pages())
    }
}

/// Where a page of a column is.
#[derive(Debug, Clone, Copy)]
pub struct PagePlace<'a> {
    /// The run that has it, or the page that it is a part of.
    pub run: &'a PageRun,
    /// The number of that page in the run.
    pub page: u32,
    /// Which part of it, if the column shares pages.
    pub part: Option<u16>,
}

impl PageRun {
    /// Where the page of this number is: for whoever takes several parts of one page.
    pub fn place_of(&self, page: u32) -> PagePlace<'_> {
        let Some(part) = &self.part else {
            let (run, part) = (self, None);
            return PagePlace { run, page, part };
        };
        let run = &*part.run;
        match part.aux_at(page) {
            Some(page) => PagePlace {
                run,
                page,
                part: None,
            },
            None => PagePlace {
                run,
                page: part.group_of(page),
                part: Some(part.number),
            },
        }
    }
}

impl PageReader {
    /// [`PageReader::get`] of a page that is a part of another.
    pub(super) fn get_part(&mut self, part: &RunPart, label: &str, page: u32) -> Result<Arc<Page>> {
        if let Some(aux) = part.aux_at(page) {
            return self.get(&part.run, aux);
        }
        let number = part.group_of(page);
        if let Some(group) = self.groups.get(&part.run, number).cloned() {
            self.leave_window(page_number(&part.run, number))?;
            return group.part(part.number, label).map(Arc::new);
        }
        let group = self.get(&part.run, number)?;
        self.groups.insert(page_number(&part.run, number), &group);
        group.part(part.number, label).map(Arc::new)
    }

    /// [`PageReader::cached`] likewise.
    pub(super) fn cached_part(
        &mut self,
        part: &RunPart,
        label: &str,
        page: u32,
    ) -> Option<Arc<Page>> {
        if let Some(aux) = part.aux_at(page) {
            return self.cached(&part.run, aux);
        }
        let number = part.group_of(page);
        if let Some(group) = self.groups.get(&part.run, number) {
            return group.part(part.number, label).map(Arc::new).ok();
        }
        let group = self.cached(&part.run, number)?;
        self.groups.insert(page_number(&part.run, number), &group);
        group.part(part.number, label).map(Arc::new).ok()
    }

    /// Makes room in the window where a page is that was found elsewhere.
    fn leave_window(&mut self, number: u64) -> Result<()> {
        if self.pages.is_empty() {
            return Ok(());
        }
        self.remove_ended(number);
        self.refill()
    }

    /// [`PageReader::prefetch`] likewise: what another column has asked for is not asked for again.
    pub(super) fn prefetch_parts(&mut self, part: &RunPart, pages: Range<u32>) -> Result<()> {
        if let Some(aux) = part.aux_at(pages.start) {
            self.prefetch(&part.run, aux..aux + 1)?;
        }
        let first = pages.start.max(part.aux_pages());
        if first >= pages.end {
            return Ok(());
        }
        let run = &part.run;
        let mut wanted = part.group_of(first)..part.group_of(pages.end);
        let is_here = |page| {
            self.groups.get(run, page).is_some() || self.pages.contains_key(&page_number(run, page))
        };
        while !wanted.is_empty() && is_here(wanted.start) {
            wanted.start += 1;
        }
        while !wanted.is_empty() && is_here(wanted.end - 1) {
            wanted.end -= 1;
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let is_wished = self.wishes.iter().any(|wish| {
            let pages = &wish.pages;
            wish.run.first == run.first && pages.start <= wanted.start && wanted.end <= pages.end
        });
        match is_wished {
            true => Ok(()),
            false => self.prefetch(run, wanted),
        }
    }
}
