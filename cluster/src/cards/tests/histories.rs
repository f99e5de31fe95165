//! Random operations of several nodes, threads and cards at once, against maps.

use std::collections::HashMap;

use flashmesh_pages::flash::{
    Completion, Flash, FlashOp, FlashPage, FlashQueue, PAGE_SIZE_BYTES, PageBuffer, Tag,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Bed, GEOMETRY, is_zero, memory, page, seed};

const NODES: usize = 3;
const THREADS: usize = 2;
const STEPS: u64 = 150;

/// What a thread does with its blocks of a card, and what they hold by it.
struct Walk {
    queue: Box<dyn FlashQueue>,
    chance: StdRng,
    /// The first of the thread's blocks, of which it has `blocks`.
    first_block: u64,
    blocks: u64,
    /// The version of each written page, and how far each block is written.
    versions: HashMap<u64, u64>,
    ends: Vec<u64>,
    /// Blocks that are being changed, and those that are being read.
    changing: Vec<usize>,
    reading: Vec<usize>,
    in_flight: HashMap<Tag, (usize, Option<u64>)>,
}

impl Walk {
    fn new(card: &dyn Flash, first_block: u64, blocks: u64, seed: u64) -> Self {
        Self {
            queue: card.open_queue().unwrap(),
            chance: StdRng::seed_from_u64(seed),
            first_block,
            blocks,
            versions: HashMap::new(),
            ends: vec![0; blocks as usize],
            changing: vec![0; blocks as usize],
            reading: vec![0; blocks as usize],
            in_flight: HashMap::new(),
        }
    }

    fn step(&mut self, step: u64) {
        let block = u64::from(GEOMETRY.pages_per_erase_block);
        let most = self.queue.max_pages_per_op() as u64;
        let index = self.chance.random_range(0..self.blocks);
        let slot = index as usize;
        let start = (self.first_block + index) * block;
        let (tag, choice) = (Tag(step), self.chance.random_range(0..10));
        let (is_changed, is_read) = (self.changing[slot] > 0, self.reading[slot] > 0);
        if self.queue.in_flight() == self.queue.depth() {
            return self.wait(1);
        }
        if choice < 5 && !is_changed {
            let from = self.chance.random_range(0..block);
            let pages = self.chance.random_range(1..=most.min(block - from));
            let first = FlashPage(start + from);
            let buffers = (0..pages).map(|_| PageBuffer::recycled()).collect();
            self.queue
                .submit(FlashOp::Read {
                    tag,
                    first,
                    buffers,
                })
                .unwrap();
            self.in_flight.insert(tag, (slot, Some(first.0)));
            self.reading[slot] += 1;
        } else if choice < 9 && !is_read && self.ends[slot] < block {
            let from = self.ends[slot];
            let pages = self.chance.random_range(1..=most.min(block - from));
            let numbers = start + from..start + from + pages;
            self.queue
                .submit(FlashOp::Write {
                    tag,
                    first: FlashPage(start + from),
                    buffers: numbers.clone().map(|number| page(number, step)).collect(),
                })
                .unwrap();
            self.versions.extend(numbers.map(|number| (number, step)));
            self.ends[slot] += pages;
            self.in_flight.insert(tag, (slot, None));
            self.changing[slot] += 1;
        } else if choice == 9 && !is_read && !is_changed {
            let first = FlashPage(start);
            self.queue.submit(FlashOp::Erase { tag, first }).unwrap();
            self.versions
                .retain(|number, _| number / block != start / block);
            self.ends[slot] = 0;
            self.in_flight.insert(tag, (slot, None));
            self.changing[slot] += 1;
            // Nothing of the block is written before it is erased.
            while self.changing[slot] > 0 {
                self.wait(1);
            }
        }
        let least = usize::from(self.chance.random_range(0..4) == 0);
        self.wait(least);
    }

    fn wait(&mut self, least: usize) {
        let mut completions = Vec::new();
        self.queue.wait(least, &mut completions).unwrap();
        for ended in completions {
            self.ended(ended);
        }
    }

    fn ended(&mut self, ended: Completion) {
        ended.result.unwrap();
        let (slot, first) = self.in_flight.remove(&ended.tag).expect("a tag in flight");
        let Some(first) = first else {
            self.changing[slot] -= 1;
            return;
        };
        self.reading[slot] -= 1;
        for (number, buffer) in (first..).zip(&ended.buffers) {
            match self.versions.get(&number) {
                Some(&version) => assert!(
                    **buffer == *page(number, version),
                    "page {number} is not what was written"
                ),
                None => assert!(is_zero(buffer), "page {number} was not written"),
            }
        }
    }

    fn finish(mut self, card: &dyn Flash) {
        while self.queue.in_flight() > 0 {
            self.wait(1);
        }
        card.sync().unwrap();
        let block = u64::from(GEOMETRY.pages_per_erase_block);
        let all = self.first_block * block..(self.first_block + self.blocks) * block;
        let local = super::read(card, all.start, 32).unwrap();
        for (number, buffer) in all.zip(local) {
            let expected = self.versions.get(&number).map(|&one| page(number, one));
            let expected = expected.unwrap_or_else(PageBuffer::zeroed);
            assert!(*buffer == *expected, "page {number} in the end");
            assert_eq!(buffer.len(), PAGE_SIZE_BYTES);
        }
    }
}

/// Each thread of each node has blocks of its own on each card, its own node's included.
#[test]
fn all_nodes_write_and_read_cards_of_all() {
    let seed = seed();
    let bed = Bed::line((0..NODES).map(|_| vec![memory()]).collect(), "");
    let blocks = GEOMETRY.erase_blocks / (NODES * THREADS) as u64;
    std::thread::scope(|scope| {
        for (node, thread) in (0..NODES).flat_map(|n| (0..THREADS).map(move |t| (n, t))) {
            let bed = &bed;
            scope.spawn(move || {
                let at = (node * THREADS + thread) as u64;
                let cards: Vec<_> = (0..NODES)
                    .map(|of| bed.open(node, of, 0, 1).unwrap())
                    .collect();
                let mut walks: Vec<_> = cards
                    .iter()
                    .zip(0..)
                    .map(|(card, of)| Walk::new(card, at * blocks, blocks, seed ^ at << 8 ^ of))
                    .collect();
                for step in 0..STEPS {
                    walks.iter_mut().for_each(|walk| walk.step(step));
                }
                for (walk, card) in walks.into_iter().zip(&cards) {
                    walk.finish(card);
                }
            });
        }
    });
}
