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
        let after = self.starts.partition_point(|start| start.row <= row);
        let place = self.starts[..after].last()?.zone as usize;
        let zone = &self.zones[place];
        (row < zone.first_row + zone.row_count).then_some(place)
    }

    /// Bytes of memory that it takes up.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.zones) + size_of_val(&*self.starts) + size_of::<Self>()
    }
}
