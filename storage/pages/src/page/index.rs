//! A chunk's page index: the zone map of each of its data pages.

use std::sync::Arc;

use super::PageZone;

/// A data page with rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageStart {
    /// Its first row.
    pub row: u32,
    /// Its place among the chunk's zones.
    pub zone: u32,
}

/// The zone map of each data page of a chunk, in the order of the pages.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PageIndex {
    zones: Box<[PageZone]>,
    starts: Arc<[PageStart]>,
}

impl PageIndex {
    /// The index of a chunk whose data pages have these zone maps. A page of `row_count` 0
    /// continues the long value of the page before it.
    pub fn new(zones: Vec<PageZone>) -> Self {
        let with_rows = (0..).zip(&zones).filter(|(_, zone)| zone.row_count > 0);
        let starts = with_rows.map(|(zone, of)| PageStart {
            row: of.first_row,
            zone,
        });
        Self {
            starts: starts.collect(),
            zones: zones.into(),
        }
    }

    /// The zone maps; number `i` is that of the chunk's data page `i`.
    pub fn zones(&self) -> &[PageZone] {
        &self.zones
    }

    /// The data pages that have rows: those that continue a long value are left out.
    pub fn starts(&self) -> &Arc<[PageStart]> {
        &self.starts
    }

    /// The number of the data page that holds a row.
    pub fn page_of_row(&self, row: u32) -> Option<usize> {
        let starts = &*self.starts;
        let last = &self.zones[starts.last()?.zone as usize];
        let end = last.first_row.saturating_add(last.row_count);
        if row >= end {
            return None;
        }
        // Most pages of a chunk have about as many rows, so the place is near this one, and the
        // search touches few lines of memory.
        let guess = (u64::from(row) * starts.len() as u64 / u64::from(end)) as usize;
        let (mut low, mut step) = (guess, 1);
        while low > 0 && starts[low].row > row {
            low = low.saturating_sub(step);
            step *= 2;
        }
        let (mut high, mut step) = (guess + 1, 1);
        while high < starts.len() && starts[high].row <= row {
            high += step;
            step *= 2;
        }
        let high = high.min(starts.len());
        let after = low + starts[low..high].partition_point(|start| start.row <= row);
        let place = starts[..after].last()?.zone as usize;
        let zone = &self.zones[place];
        (row < zone.first_row.saturating_add(zone.row_count)).then_some(place)
    }

    /// Bytes of memory that it takes up.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.zones) + size_of_val(&*self.starts) + size_of::<Self>()
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;

    /// However unlike the pages are, a row is on the page that a look at all of them finds.
    #[test]
    fn a_row_is_found_on_its_page() {
        for seed in 0..300 {
            let mut rng = StdRng::seed_from_u64(seed);
            let most = [1, 3, 200][rng.random_range(0..3usize)];
            let mut first_row = 0;
            let zones: Vec<PageZone> = (0..rng.random_range(0..40))
                .map(|_| {
                    // Some continue the value of the page before, some are much longer than others.
                    let rows = match rng.random_range(0..8) {
                        0 => 0,
                        1 => 10 * most,
                        _ => rng.random_range(1..=most),
                    };
                    let zone = PageZone {
                        first_row,
                        row_count: rows,
                        null_count: 0,
                        min: 0,
                        max: 0,
                    };
                    first_row += rows;
                    zone
                })
                .collect();
            let index = PageIndex::new(zones.clone());
            for row in (0..first_row + 3).chain([u32::MAX]) {
                let holds = |zone: &PageZone| {
                    (zone.first_row..zone.first_row + zone.row_count).contains(&row)
                };
                let expected = zones.iter().position(holds);
                assert_eq!(index.page_of_row(row), expected, "seed {seed}, row {row}");
            }
        }
    }
}
