//! A device with less room than the one below it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::{
    Completion, Flash, FlashHealth, FlashOp, FlashQueue, Geometry, PAGE_SIZE_BYTES, Tag, check_op,
};
use crate::{Result, StorageError};

/// What a [`LimitFlash`] allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitOptions {
    /// Operations in flight of each queue, at least 1.
    pub queue_depth: usize,
    /// Bytes of pages written and not erased. A write beyond is refused with
    /// [`StorageError::Full`], as a full file system refuses it, while the geometry promises more.
    pub capacity_bytes: u64,
}

/// Wraps a device and limits its depth and its room.
#[derive(Debug)]
pub struct LimitFlash {
    inner: Arc<dyn Flash>,
    options: LimitOptions,
    usage: Arc<Mutex<Usage>>,
}

/// Pages in use: those written through the wrapper, by block, and all of the blocks that were in
/// use before.
#[derive(Debug)]
struct Usage {
    pages_by_block: HashMap<u64, u64>,
    pages: u64,
}

impl LimitFlash {
    /// Limits `inner`.
    pub fn new(inner: Arc<dyn Flash>, options: LimitOptions) -> Result<Self> {
        let pages_per_block = u64::from(inner.geometry().pages_per_erase_block);
        let used_blocks = inner.used_erase_blocks()?;
        let usage = Usage {
            pages_by_block: (0..used_blocks)
                .map(|block| (block, pages_per_block))
                .collect(),
            pages: used_blocks * pages_per_block,
        };
        Ok(Self {
            inner,
            options,
            usage: Arc::new(Mutex::new(usage)),
        })
    }
}

impl Flash for LimitFlash {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        self.inner.used_erase_blocks()
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        let inner = self.inner.open_queue()?;
        Ok(Box::new(LimitQueue {
            depth: self.options.queue_depth.clamp(1, inner.depth()),
            inner,
            device: self.inner.name(),
            geometry: self.inner.geometry(),
            capacity_pages: self.options.capacity_bytes / PAGE_SIZE_BYTES as u64,
            usage: self.usage.clone(),
            in_flight: HashMap::new(),
        }))
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn continues_blocks(&self) -> bool {
        self.inner.continues_blocks()
    }

    fn health(&self) -> Option<FlashHealth> {
        self.inner.health()
    }
}

#[derive(Debug)]
struct LimitQueue {
    inner: Box<dyn FlashQueue>,
    depth: usize,
    device: String,
    geometry: Geometry,
    capacity_pages: u64,
    usage: Arc<Mutex<Usage>>,
    /// What the operations in flight do to the usage.
    in_flight: HashMap<Tag, Effect>,
}

#[derive(Debug, Clone, Copy)]
enum Effect {
    Nothing,
    /// Counted at the submission.
    Writes {
        first: u64,
        pages: u64,
    },
    /// Counted at the completion.
    Erases {
        block: u64,
    },
}

impl LimitQueue {
    /// Adds to, or takes from, the pages in use of every block of a range.
    fn count(&self, usage: &mut Usage, first: u64, pages: u64, written: bool) {
        let block_pages = u64::from(self.geometry.pages_per_erase_block);
        for page in first..first + pages {
            let in_block = usage.pages_by_block.entry(page / block_pages).or_default();
            if written {
                *in_block += 1;
                usage.pages += 1;
            } else {
                *in_block -= 1;
                usage.pages -= 1;
            }
        }
    }
}

impl FlashQueue for LimitQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn max_pages_per_op(&self) -> usize {
        self.inner.max_pages_per_op()
    }

    fn cancel_reads(&mut self) {
        self.inner.cancel_reads();
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.geometry)?;
        let tag = op.tag();
        let effect = match &op {
            FlashOp::Read { .. } => Effect::Nothing,
            FlashOp::Write { first, buffers, .. } => {
                let (first, pages) = (first.0, buffers.len() as u64);
                let mut usage = self.usage.lock();
                if usage.pages + pages > self.capacity_pages {
                    let page_bytes = PAGE_SIZE_BYTES as u64;
                    return Err(StorageError::Full {
                        device: self.device.clone(),
                        needed_bytes: pages * page_bytes,
                        free_bytes: self.capacity_pages.saturating_sub(usage.pages) * page_bytes,
                    });
                }
                self.count(&mut usage, first, pages, true);
                Effect::Writes { first, pages }
            }
            FlashOp::Erase { first, .. } => Effect::Erases {
                block: first.0 / u64::from(self.geometry.pages_per_erase_block),
            },
        };
        match (self.inner.submit(op), effect) {
            (Ok(()), _) => {
                self.in_flight.insert(tag, effect);
                Ok(())
            }
            (Err(error), Effect::Writes { first, pages }) => {
                self.count(&mut self.usage.lock(), first, pages, false);
                Err(error)
            }
            (Err(error), _) => Err(error),
        }
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let known = completions.len();
        let waited = self.inner.wait(min, completions);
        for completion in &completions[known..] {
            // A write that failed may have taken up room all the same, so it stays counted.
            if let Some(Effect::Erases { block }) = self.in_flight.remove(&completion.tag)
                && completion.result.is_ok()
            {
                let mut usage = self.usage.lock();
                usage.pages -= usage.pages_by_block.remove(&block).unwrap_or(0);
            }
        }
        waited
    }
}
