//! The data pages of one column of a segment: which are wanted, which are at hand.

use std::ops::Range;
use std::sync::Arc;

use super::bitmap::Bitmap;
use crate::Result;
use crate::page::{Page, PageIndex, PageStart, PageZone};
use crate::segment::Chunk;
use crate::store::PageReader;

const GROUP_SLOTS: usize = 32;

/// The pages of a chunk, by place: only those with rows count.
#[derive(Debug, Default)]
pub(super) struct Pages {
    index: Arc<PageIndex>,
    /// All data pages, as the chunk's zones count them.
    slots: Slots,
    /// Pages that were read.
    read: usize,
    /// Where the last look-up ended; the next is mostly there or right behind.
    hint: usize,
}

#[derive(Debug, Clone, Default)]
enum Slot {
    #[default]
    Absent,
    /// It was announced, and the cache had it.
    Ahead(Arc<Page>),
    /// It was read.
    Read(Arc<Page>),
}

/// Slots by zone, in groups that are there once one of them is used: who looks for a single row
/// wants one page of many hundreds.
#[derive(Debug, Default)]
struct Slots {
    groups: Vec<Option<Box<[Slot; GROUP_SLOTS]>>>,
    len: usize,
}

impl Slots {
    /// So many, all of them absent.
    fn reset(&mut self, len: usize) {
        self.groups.clear();
        self.groups
            .resize_with(len.div_ceil(GROUP_SLOTS), Option::default);
        self.len = len;
    }

    fn get(&self, zone: usize) -> Option<&Slot> {
        let group = self.groups.get(zone / GROUP_SLOTS)?;
        group.as_ref().map(|group| &group[zone % GROUP_SLOTS])
    }

    /// One of those that there are.
    fn get_mut(&mut self, zone: usize) -> &mut Slot {
        let group = self.groups[zone / GROUP_SLOTS].get_or_insert_default();
        &mut group[zone % GROUP_SLOTS]
    }
}

impl Pages {
    /// Takes up a chunk. No data page is read yet.
    pub fn open(&mut self, index: Arc<PageIndex>) {
        self.slots.reset(index.zones().len());
        self.index = index;
        self.read = 0;
        self.hint = 0;
    }

    /// Lets go of all pages.
    pub fn close(&mut self) {
        self.slots.reset(0);
        self.index = Arc::default();
    }

    /// First row and zone of each page with rows.
    pub fn starts(&self) -> &[PageStart] {
        self.index.starts()
    }

    /// The zone map of each data page.
    pub fn zones(&self) -> &[PageZone] {
        self.index.zones()
    }

    /// How many pages were read.
    pub fn read(&self) -> usize {
        self.read
    }

    /// How many of them hold one of `rows`.
    pub fn count_wanted(&self, rows: &Bitmap) -> usize {
        if rows.is_full() {
            return self.slots.len;
        }
        let mut count = 0;
        self.for_wanted(rows, |place| count += self.zones_of(place).len());
        count
    }

    /// Calls `f` with the place of each page that holds one of `rows`.
    pub fn for_wanted(&self, rows: &Bitmap, f: impl FnMut(usize)) {
        for_places(self.starts(), rows, f);
    }

    /// Asks for the pages that hold one of `rows`: takes those that the cache has, and announces
    /// the others to the reader, with the auxiliary page before them if that is wanted.
    pub fn prefetch(
        &mut self,
        chunk: &Chunk,
        with_aux: bool,
        rows: &Bitmap,
        reader: &mut PageReader,
    ) -> Result<()> {
        let starts = Arc::clone(self.index.starts());
        let mut wanted = 0..if with_aux { chunk.aux_pages } else { 0 };
        let mut result = Ok(());
        for_places(&starts, rows, |place| {
            // A continuation goes with the page that it continues.
            for zone in zones_of(&starts, self.slots.len, place) {
                let slot = self.slots.get_mut(zone);
                let page = chunk.aux_pages + zone as u32;
                if !matches!(slot, Slot::Absent) {
                    continue;
                }
                if let Some(hit) = reader.cached(&chunk.run, page) {
                    *slot = Slot::Ahead(hit);
                    continue;
                }
                if wanted.end != page && !wanted.is_empty() && result.is_ok() {
                    result = reader.prefetch(&chunk.run, wanted.clone());
                    wanted.start = page;
                } else if wanted.is_empty() {
                    wanted.start = page;
                }
                wanted.end = page + 1;
            }
        });
        result?;
        reader.prefetch(&chunk.run, wanted)
    }

    /// Makes sure that the page of a zone is at hand; `read` gets it, `check` sees it first.
    pub fn load(
        &mut self,
        zone: usize,
        read: impl FnOnce() -> Result<Arc<Page>>,
        check: impl FnOnce(&Page) -> Result<()>,
    ) -> Result<()> {
        let slot = self.slots.get_mut(zone);
        let page = match std::mem::take(slot) {
            Slot::Read(page) => {
                *slot = Slot::Read(page);
                return Ok(());
            }
            Slot::Ahead(page) => page,
            Slot::Absent => read()?,
        };
        check(&page)?;
        *slot = Slot::Read(page);
        self.read += 1;
        Ok(())
    }

    /// Puts in pages that are on no flash.
    pub fn fill(&mut self, pages: impl IntoIterator<Item = Arc<Page>>) {
        let pages: Vec<_> = pages.into_iter().collect();
        self.slots.reset(pages.len());
        for (zone, page) in pages.into_iter().enumerate() {
            *self.slots.get_mut(zone) = Slot::Read(page);
        }
    }

    /// A page that was read.
    pub fn get(&self, zone: usize) -> Option<&Arc<Page>> {
        match self.slots.get(zone) {
            Some(Slot::Read(page)) => Some(page),
            _ => None,
        }
    }

    /// Whether a page was read.
    pub fn is_read(&self, zone: usize) -> bool {
        self.get(zone).is_some()
    }

    /// The zones of the page at a place and of the pages that continue it.
    pub fn zones_of(&self, place: usize) -> Range<usize> {
        zones_of(self.starts(), self.slots.len, place)
    }

    /// Place of the page that `row` is on.
    pub fn find(&mut self, row: u32) -> usize {
        let from = match self.starts().get(self.hint) {
            Some(start) if start.row <= row => self.hint,
            _ => 0,
        };
        self.hint = place_of(self.starts(), row, from);
        self.hint
    }
}

/// The place of `row` from place `from` on, which is not behind it.
fn place_of(starts: &[PageStart], row: u32, from: usize) -> usize {
    let is_before = |place: usize| starts.get(place).is_some_and(|start| start.row <= row);
    let mut step = 1;
    while is_before(from + step) {
        step *= 2;
    }
    let (low, high) = (from + step / 2, (from + step).min(starts.len()));
    let within = starts.get(low..high).unwrap_or_default();
    (low + within.partition_point(|start| start.row <= row)).saturating_sub(1)
}

/// Calls `f` with the place of each page that holds one of `rows`.
fn for_places(starts: &[PageStart], rows: &Bitmap, mut f: impl FnMut(usize)) {
    let (mut place, mut next) = (0, rows.next_row(0));
    while let Some(row) = next
        && place < starts.len()
    {
        place = place_of(starts, row, place);
        f(place);
        place += 1;
        next = starts.get(place).and_then(|start| rows.next_row(start.row));
    }
}

fn zones_of(starts: &[PageStart], zones: usize, place: usize) -> Range<usize> {
    let end = starts
        .get(place + 1)
        .map_or(zones, |next| next.zone as usize);
    starts[place].zone as usize..end
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn places_of_rows() {
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut zones, mut rows) = (Vec::new(), 0);
            for _ in 0..rng.random_range(1..60) {
                let row_count = rng.random_range(1..50);
                // A long value goes on in some zones without rows.
                let continued = vec![0; rng.random_range(0..3)];
                for row_count in std::iter::once(row_count).chain(continued) {
                    zones.push(PageZone {
                        first_row: rows,
                        row_count,
                        null_count: 0,
                        min: 0,
                        max: 0,
                    });
                    rows += row_count;
                }
            }
            let index = Arc::new(PageIndex::new(zones));
            let starts = Arc::clone(index.starts());
            let share = rng.random_range(0.0..1.0);
            let wanted = Bitmap::from_fn(rows as usize, |_| rng.random_bool(share));
            let place = |row| starts.iter().filter(|start| start.row <= row).count() - 1;
            let mut expected: Vec<usize> = (0..rows)
                .filter(|row| wanted.get(*row as usize))
                .map(place)
                .collect();
            expected.dedup();
            let mut found = Vec::new();
            for_places(&starts, &wanted, |place| found.push(place));
            assert_eq!(found, expected, "seed {seed}");
            let mut pages = Pages::default();
            pages.open(index);
            for _ in 0..200 {
                let row = rng.random_range(0..rows);
                assert_eq!(pages.find(row), place(row), "seed {seed}, row {row}");
                let of_index = pages.index.page_of_row(row);
                assert_eq!(of_index, Some(starts[place(row)].zone as usize));
            }
        }
    }
}
