//! Pages of an array one after the other, and pages that stay.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::{ArrayPage, PagedArray, PagedValue};
use crate::Result;
use crate::page::{Dictionary, Page};
use crate::store::PageReader;

/// Pages that a [`PageStream`] looks ahead at first, and at most: while everything is cached,
/// looking far ahead has no use.
const LOOKAHEAD_MIN_PAGES: usize = 32;
const LOOKAHEAD_MAX_PAGES: usize = 1024;

/// Pages of a [`PagedArray`], one after the other; those ahead are on their way.
#[derive(Debug)]
pub struct PageStream<'a> {
    array: &'a PagedArray,
    wanted: &'a [u32],
    /// Pages of `wanted` that were taken, and those that were looked at ahead of them: the page
    /// itself where the cache had it.
    taken: usize,
    ahead: VecDeque<Option<Arc<Page>>>,
    lookahead_pages: usize,
    dictionary: Option<(u32, Arc<Dictionary>)>,
}

/// Pages of a [`PagedArray`] that stay in memory once they were read, for positions that come up
/// again and again. Several threads may share it.
#[derive(Debug)]
pub struct PinnedPages<'a> {
    array: &'a PagedArray,
    pages: Vec<OnceLock<ArrayPage>>,
}

impl<'a> PageStream<'a> {
    /// A stream of the pages `wanted`, which ascend. Panics in [`Self::next`] when there is no
    /// such page.
    pub fn new(array: &'a PagedArray, wanted: &'a [u32]) -> Self {
        Self {
            array,
            wanted,
            taken: 0,
            ahead: VecDeque::new(),
            lookahead_pages: LOOKAHEAD_MIN_PAGES,
            dictionary: None,
        }
    }

    /// The next page.
    ///
    /// # Errors
    /// Those of [`PagedArray::page`].
    pub fn next(&mut self, reader: &mut PageReader) -> Result<Option<ArrayPage>> {
        if self.ahead.len() <= self.lookahead_pages / 2 {
            self.look_ahead(reader)?;
        }
        let Some(cached) = self.ahead.pop_front() else {
            return Ok(None);
        };
        let number = self.wanted[self.taken];
        self.taken += 1;
        let (chunk, place) = self.array.place(number);
        let page = match cached {
            Some(page) => page,
            None => self.array.read_page(reader, chunk, place)?,
        };
        let dictionary = if self.array.chunks[chunk as usize].aux_pages == 0 {
            None
        } else {
            match &self.dictionary {
                Some((of, dictionary)) if *of == chunk => Some(Arc::clone(dictionary)),
                _ => {
                    let dictionary = self.array.dictionary(reader, chunk)?;
                    self.dictionary = dictionary.clone().map(|dictionary| (chunk, dictionary));
                    dictionary
                }
            }
        };
        self.array.check(number, page, dictionary).map(Some)
    }

    /// Announces what the cache does not have of the pages ahead.
    fn look_ahead(&mut self, reader: &mut PageReader) -> Result<()> {
        let mut missing: Option<(u32, Range<u32>)> = None;
        while self.ahead.len() < self.lookahead_pages {
            let Some(&number) = self.wanted.get(self.taken + self.ahead.len()) else {
                break;
            };
            let (chunk, place) = self.array.place(number);
            let cached = self.array.cached(reader, chunk, place);
            if cached.is_none() {
                match &mut missing {
                    Some((of, pages)) if *of == chunk && pages.end == place => pages.end += 1,
                    _ => {
                        if let Some(pages) = missing.replace((chunk, place..place + 1)) {
                            self.announce(reader, pages)?;
                        }
                    }
                }
            }
            self.ahead.push_back(cached);
        }
        if let Some(pages) = missing {
            self.lookahead_pages = (2 * self.lookahead_pages).min(LOOKAHEAD_MAX_PAGES);
            self.announce(reader, pages)?;
        }
        Ok(())
    }

    fn announce(&self, reader: &mut PageReader, (chunk, pages): (u32, Range<u32>)) -> Result<()> {
        reader.prefetch(&self.array.chunks[chunk as usize].run, pages)
    }
}

impl<'a> PinnedPages<'a> {
    /// None yet.
    pub fn new(array: &'a PagedArray) -> Self {
        Self {
            pages: (0..array.pages()).map(|_| OnceLock::new()).collect(),
            array,
        }
    }

    /// Reads the pages with the ascending `positions` that were not read yet, all together.
    ///
    /// # Errors
    /// Those of [`PagedArray::page`]. Panics for positions beyond the end.
    pub fn pin(&self, reader: &mut PageReader, positions: impl Iterator<Item = u64>) -> Result<()> {
        let mut wanted = Vec::new();
        let mut end = 0;
        for position in positions {
            if position >= end {
                let page = self.array.page_of(position);
                end = self.array.positions(page).end;
                if self.pages[page as usize].get().is_none() {
                    wanted.push(page);
                }
            }
        }
        let mut stream = PageStream::new(self.array, &wanted);
        for number in &wanted {
            if let Some(page) = stream.next(reader)? {
                // Another thread may have been faster: its page is as good.
                let _ = self.pages[*number as usize].set(page);
            }
        }
        Ok(())
    }

    /// The page with a position, read if need be.
    ///
    /// # Errors
    /// Those of [`PagedArray::page`]. Panics for positions beyond the end.
    #[inline]
    pub fn page(&self, reader: &mut PageReader, position: u64) -> Result<&ArrayPage> {
        let number = self.array.page_of(position);
        let place = &self.pages[number as usize];
        match place.get() {
            Some(page) => Ok(page),
            None => {
                let page = self.array.page(reader, number)?;
                Ok(place.get_or_init(|| page))
            }
        }
    }

    /// The values at `positions`, in place of what `out` held; what is not pinned yet is read.
    ///
    /// # Errors
    /// Those of [`PagedArray::page`]. Panics for positions beyond the end.
    pub fn read<T: PagedValue>(
        &self,
        reader: &mut PageReader,
        positions: Range<u64>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        self.pin(reader, positions.clone())?;
        out.clear();
        out.resize((positions.end - positions.start) as usize, T::default());
        let mut at = positions.start;
        while at < positions.end {
            let page = self.page(reader, at)?;
            let end = page.positions().end.min(positions.end);
            let places = (at - positions.start) as usize..(end - positions.start) as usize;
            page.read(at..end, &mut out[places])?;
            at = end;
        }
        Ok(())
    }
}
