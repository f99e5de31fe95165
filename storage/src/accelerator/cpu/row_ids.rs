//! The ids of rows as a column. No flash holds them; they are made, as pages like any other, when
//! a Program reads them, so that all that works on pages works on them too.

use std::sync::{Arc, OnceLock};

use crate::Result;
use crate::page::{
    ChunkIdentity, EncodedChunk, Page, PageIdentity, PageZone, SEGMENT_ROWS, encode_chunk,
};
use crate::segment::{Chunk, Segment, row_id, row_ids};
use crate::store::{PageAddress, PageRun};

const IDENTITY: ChunkIdentity = ChunkIdentity {
    table: 0,
    segment: 0,
    column_group: u16::MAX,
    generation: 0,
};

/// The chunk of a segment's row ids: its zone maps.
pub(super) fn chunk(segment: &Segment) -> Result<Chunk> {
    /// Those of a full segment, from id 0 on.
    static FULL: OnceLock<Vec<PageZone>> = OnceLock::new();
    let zones = match FULL.get() {
        Some(zones) if segment.rows as usize == SEGMENT_ROWS => zones.clone(),
        _ => {
            let first = row_id(segment.id, 0) as i64;
            let mut zones = encode(segment)?.zones;
            for zone in &mut zones {
                (zone.min, zone.max) = (zone.min - first, zone.max - first);
            }
            if segment.rows as usize == SEGMENT_ROWS {
                FULL.get_or_init(|| zones.clone());
            }
            zones
        }
    };
    let first = row_id(segment.id, 0) as i64;
    let shifted = zones.into_iter().map(|zone| PageZone {
        min: zone.min + first,
        max: zone.max + first,
        ..zone
    });
    let zones: Vec<_> = shifted.collect();
    let run = PageRun {
        first: PageAddress {
            node: Default::default(),
            card: Default::default(),
            page: crate::flash::FlashPage(0),
        },
        count: zones.len() as u32,
        identity: identity(0),
        label: "row ids".into(),
        part: None,
    };
    Ok(Chunk::new(run, 0, zones))
}

/// Its pages.
pub(super) fn pages(segment: &Segment) -> Result<Vec<Arc<Page>>> {
    let pages = encode(segment)?.pages.into_iter().enumerate();
    pages
        .map(|(page, buffer)| Page::verify(buffer, &identity(page as u16), "row ids"))
        .collect()
}

fn encode(segment: &Segment) -> Result<EncodedChunk> {
    encode_chunk(&row_ids(segment), IDENTITY)
}

fn identity(page: u16) -> PageIdentity {
    PageIdentity {
        page,
        ..IDENTITY.first_page()
    }
}
