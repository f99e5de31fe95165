//! Cards over links of Unix sockets, each node as a process of its own would start it. Nothing waits
//! for time but where a node is away: for the mesh to notice.

mod bed;
mod conformance;
mod durability;
mod fairness;
mod far;
mod gate;
mod histories;
mod hostile;
mod outages;
mod terms;

use std::sync::Arc;

use flashmesh_pages::flash::{
    Flash, FlashOp, FlashPage, FlashQueue, Geometry, MemoryFlash, PageBuffer, Tag,
};
use flashmesh_pages::{Result, StorageError};

use bed::Bed;

const GEOMETRY: Geometry = Geometry {
    pages_per_erase_block: 32,
    erase_blocks: 64,
};

/// The seed of a test: from `FLASHMESH_TEST_SEED`, or fresh; printed either way.
fn seed() -> u64 {
    let seed = match std::env::var("FLASHMESH_TEST_SEED") {
        Ok(seed) => seed.parse().expect("FLASHMESH_TEST_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("FLASHMESH_TEST_SEED={seed}");
    seed
}

fn memory() -> Arc<dyn Flash> {
    Arc::new(MemoryFlash::new(GEOMETRY, 1))
}

/// A page that tells where it belongs, and which of its versions it is.
fn page(number: u64, version: u64) -> PageBuffer {
    let mut buffer = PageBuffer::recycled();
    for (at, word) in (0_u64..).zip(buffer.chunks_exact_mut(8)) {
        let value = (number << 32 ^ version).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ at;
        word.copy_from_slice(&value.to_le_bytes());
    }
    buffer
}

fn is_zero(buffer: &[u8]) -> bool {
    buffer.iter().all(|&byte| byte == 0)
}

/// Runs one operation, alone on its queue.
fn run(queue: &mut dyn FlashQueue, op: FlashOp) -> Result<Vec<PageBuffer>> {
    queue.submit(op)?;
    let mut completions = Vec::new();
    queue.wait(1, &mut completions)?;
    let ended = completions.pop().expect("one operation has ended");
    ended.result.map(|()| ended.buffers)
}

fn read(card: &dyn Flash, first: u64, pages: usize) -> Result<Vec<PageBuffer>> {
    let op = FlashOp::Read {
        tag: Tag(1),
        first: FlashPage(first),
        buffers: (0..pages).map(|_| PageBuffer::recycled()).collect(),
    };
    run(&mut *card.open_queue()?, op)
}

fn write(card: &dyn Flash, first: u64, pages: u64, version: u64) -> Result<()> {
    let pages = first..first + pages;
    let op = FlashOp::Write {
        tag: Tag(2),
        first: FlashPage(first),
        buffers: pages.map(|number| page(number, version)).collect(),
    };
    run(&mut *card.open_queue()?, op).map(drop)
}

fn erase(card: &dyn Flash, first: u64) -> Result<()> {
    let op = FlashOp::Erase {
        tag: Tag(3),
        first: FlashPage(first),
    };
    run(&mut *card.open_queue()?, op).map(drop)
}

/// The text of an `Io` error, which must name the card.
#[track_caller]
fn io_text<T: std::fmt::Debug>(outcome: Result<T>, card: &str) -> String {
    match outcome {
        Err(error @ StorageError::Io { .. }) => {
            let text = error.to_string();
            assert!(text.contains(card), "{text} should name {card}");
            text
        }
        other => panic!("{other:?} in place of an error of {card}"),
    }
}
