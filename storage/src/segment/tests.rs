//! Page indexes in pages, against those that were put there.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::flash::{FlashPage, Geometry, MemoryFlash};
use crate::page::{ChunkIdentity, PageIdentity};
use crate::store::{CardId, NodeId, PageAddress};

const IDENTITY: ChunkIdentity = ChunkIdentity {
    table: 1,
    segment: 7,
    column_group: 0,
    generation: 3,
};

fn store() -> Arc<PageStore> {
    let geometry = Geometry {
        pages_per_erase_block: 256,
        erase_blocks: 64,
    };
    PageStore::open(Arc::new(MemoryFlash::new(geometry, 1)), 1 << 20, []).unwrap()
}

fn random_zones(random: &mut StdRng, pages: usize) -> Vec<PageZone> {
    let has_null = random.random_bool(0.5);
    let mut first_row = 0;
    let mut zones = Vec::with_capacity(pages);
    for _ in 0..pages {
        // Some continue the long value of the page before.
        let row_count = random.random_range(0..9);
        let null_count = match has_null {
            true => random.random_range(0..=row_count),
            false => 0,
        };
        let (a, b): (i64, i64) = (random.random(), random.random());
        zones.push(PageZone {
            first_row,
            row_count,
            null_count,
            min: a.min(b),
            max: a.max(b),
        });
        first_row += row_count;
    }
    zones
}

fn chunk_of(number: u16, zones: Vec<PageZone>) -> Chunk {
    let run = PageRun {
        first: PageAddress {
            node: NodeId(0),
            card: CardId(0),
            page: FlashPage(0),
        },
        count: zones.len() as u32,
        identity: PageIdentity {
            column_group: number,
            ..IDENTITY.first_page()
        },
        label: format!("column {number}").into(),
        part: None,
    };
    Chunk::new(run, 0, zones)
}

#[test]
fn page_indexes_are_read_as_they_were_written() {
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let label: Arc<str> = "page indexes".into();
    for round in 0..60 {
        let store = store();
        let columns = random.random_range(1..200);
        // Of one or two columns, some indexes are longer than a page.
        let longest = if columns < 3 { 9000 } else { 40 };
        let zones: Vec<_> = (0..columns)
            .map(|_| {
                let pages = random.random_range(1..longest);
                random_zones(&mut random, pages)
            })
            .collect();
        let numbered = (0..).zip(zones.iter().cloned());
        let mut chunks: Vec<_> = numbered.map(|(n, zones)| chunk_of(n, zones)).collect();
        let mut writer = store.writer().unwrap();
        write_page_indexes(&mut writer, &label, &mut chunks).unwrap();
        writer.finish().unwrap().keep();
        let pages: usize = zones.iter().map(Vec::len).sum();
        let written = chunks.iter().flat_map(Chunk::runs).count() - chunks.len();
        assert_eq!(written, usize::from(pages > 32), "round {round}");
        for _ in 0..2 * columns {
            let mut reader = store.reader().unwrap();
            let number = random.random_range(0..columns);
            let index = chunks[number].page_index(&mut reader).unwrap();
            assert_eq!(
                index.zones(),
                zones[number],
                "round {round}, column {number}"
            );
        }
        store.cache().clear();
        // A chunk that says something else of itself gets no index.
        if written > 0 {
            let mut other = chunks[0].clone();
            other.totals.rows += 1;
            let error = other.page_index(&mut store.reader().unwrap()).unwrap_err();
            assert!(matches!(error, StorageError::Corrupt { .. }), "{error}");
        }
    }
}
