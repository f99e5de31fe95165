//! Flash in memory, for tests: strict about the rules of flash and fond of surprising orders.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    Completion, Flash, FlashHealth, FlashOp, FlashPage, FlashQueue, Geometry, PageBuffer, Random,
    check_op,
};
use crate::{Result, StorageError};

const QUEUE_DEPTH: usize = 128;
const MAX_PAGES_PER_OP: usize = 128;

/// A device in memory.
///
/// * An operation takes effect at a random moment between its submission and its completion, and
///   completions come in random order; the order is drawn from the seed and from the sequence of
///   calls, so a single-threaded run replays.
/// * A page that is written twice without an erase fails, as real flash would damage it.
#[derive(Debug)]
pub struct MemoryFlash {
    geometry: Geometry,
    pages: Arc<Mutex<HashMap<FlashPage, PageBuffer>>>,
    seeds: Mutex<Random>,
}

impl MemoryFlash {
    /// An erased device of `erase_blocks` blocks of `pages_per_erase_block` pages.
    pub fn new(geometry: Geometry, seed: u64) -> Self {
        Self {
            geometry,
            pages: Arc::default(),
            seeds: Mutex::new(Random::new(seed)),
        }
    }
}

impl MemoryFlash {
    /// Another device that holds the same.
    pub fn copy(&self, seed: u64) -> Self {
        Self {
            geometry: self.geometry,
            pages: Arc::new(Mutex::new(self.pages.lock().clone())),
            seeds: Mutex::new(Random::new(seed)),
        }
    }
}

impl Flash for MemoryFlash {
    fn name(&self) -> String {
        "memory".to_string()
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        let pages_per_block = u64::from(self.geometry.pages_per_erase_block);
        let last = self.pages.lock().keys().max().copied();
        Ok(last.map_or(0, |page| page.0 / pages_per_block + 1))
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        Ok(Box::new(MemoryQueue {
            geometry: self.geometry,
            pages: self.pages.clone(),
            random: Random::new(self.seeds.lock().next()),
            in_flight: Vec::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn continues_blocks(&self) -> bool {
        true
    }

    fn health(&self) -> Option<FlashHealth> {
        None
    }
}

#[derive(Debug)]
struct MemoryQueue {
    geometry: Geometry,
    pages: Arc<Mutex<HashMap<FlashPage, PageBuffer>>>,
    random: Random,
    in_flight: Vec<FlashOp>,
}

impl FlashQueue for MemoryQueue {
    fn depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    fn max_pages_per_op(&self) -> usize {
        MAX_PAGES_PER_OP
    }

    fn cancel_reads(&mut self) {
        // Every operation counts as having reached the device.
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.geometry)?;
        self.in_flight.push(op);
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let in_flight = self.in_flight.len();
        let least = min.min(in_flight);
        // Sometimes more end than were waited for; a caller that only looks gets on eventually.
        let count = least + self.random.below((in_flight - least) as u64 / 2 + 2) as usize;
        for _ in 0..count.min(in_flight) {
            let index = self.random.below(self.in_flight.len() as u64) as usize;
            let op = self.in_flight.swap_remove(index);
            completions.push(run(op, &mut self.pages.lock(), self.geometry));
        }
        Ok(())
    }
}

impl Drop for MemoryQueue {
    fn drop(&mut self) {
        // As on a device, what was submitted takes place.
        let in_flight = self.in_flight.len();
        let _ = self.wait(in_flight, &mut Vec::new());
    }
}

fn run(op: FlashOp, pages: &mut HashMap<FlashPage, PageBuffer>, geometry: Geometry) -> Completion {
    match op {
        FlashOp::Read {
            tag,
            first,
            mut buffers,
        } => {
            for (page, buffer) in (first.0..).map(FlashPage).zip(&mut buffers) {
                match pages.get(&page) {
                    Some(written) => buffer.copy_from_slice(written),
                    None => buffer.fill(0),
                }
            }
            Completion {
                tag,
                buffers,
                result: Ok(()),
            }
        }
        FlashOp::Write {
            tag,
            first,
            buffers,
        } => {
            let written = (first.0..)
                .map(FlashPage)
                .take(buffers.len())
                .find(|p| pages.contains_key(p));
            let result = match written {
                Some(page) => Err(StorageError::Invalid(format!(
                    "page {} of flash 'memory' is written a second time without an erase",
                    page.0
                ))),
                None => {
                    pages.extend((first.0..).map(FlashPage).zip(buffers.iter().cloned()));
                    Ok(())
                }
            };
            Completion {
                tag,
                buffers,
                result,
            }
        }
        FlashOp::Erase { tag, first } => {
            for page in first.0..first.0 + u64::from(geometry.pages_per_erase_block) {
                pages.remove(&FlashPage(page));
            }
            Completion {
                tag,
                buffers: Vec::new(),
                result: Ok(()),
            }
        }
    }
}
