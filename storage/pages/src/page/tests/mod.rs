//! Every type, with every pattern of NULLs and many distributions, against naive code.

mod arrays;
mod code_search;
mod groups;
mod hostile;
mod round_trip;
mod symbols;

use std::sync::Arc;

use arrow::array::Array;
use arrow::datatypes::DataType;
use rand::{SeedableRng, rngs::StdRng};

use super::*;

const IDENTITY: ChunkIdentity = ChunkIdentity {
    table: 7,
    segment: 3,
    column_group: 2,
    generation: 9,
};

/// A random generator whose seed is printed; FLASHMESH_TEST_SEED replays one.
fn seeded() -> StdRng {
    let seed = std::env::var("FLASHMESH_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    println!("replay with FLASHMESH_TEST_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

fn page_identity(page: usize) -> PageIdentity {
    let ChunkIdentity {
        table,
        segment,
        column_group,
        generation,
    } = IDENTITY;
    PageIdentity {
        table,
        segment,
        column_group,
        page: page as u16,
        generation,
    }
}

/// A chunk, read back.
struct ReadChunk {
    aux: Aux,
    aux_page: Option<Arc<Page>>,
    pages: Vec<Arc<Page>>,
    zones: Vec<PageZone>,
    stats: ChunkStats,
}

fn encode_and_read(array: &dyn Array) -> ReadChunk {
    read(encode_chunk(array, IDENTITY).unwrap(), array.data_type())
}

fn read(chunk: EncodedChunk, data_type: &DataType) -> ReadChunk {
    let mut pages: Vec<Arc<Page>> = chunk
        .pages
        .into_iter()
        .enumerate()
        .map(|(number, buffer)| Page::verify(buffer, &page_identity(number), "column 'c'").unwrap())
        .collect();
    let aux_page = (chunk.aux_pages == 1).then(|| pages.remove(0));
    ReadChunk {
        aux: parse_aux(aux_page.as_deref(), data_type),
        aux_page,
        pages,
        zones: chunk.zones,
        stats: chunk.stats,
    }
}

fn parse_aux(page: Option<&Page>, data_type: &DataType) -> Aux {
    page.map_or(Aux::None, |page| Aux::parse(page, data_type).unwrap())
}
