//! Raw flash: read, write and erase of 8 KiB pages, many tags in flight, completions out of
//! order (BlueDBM section 3.1: the flash interface hides nothing but bit errors).
//!
//! A [`Flash`] is a device; a thread that uses it opens a [`FlashQueue`] of its own, so that no
//! lock is shared between threads (for `FileFlash` a queue is one io_uring).

use std::fmt::Debug;

use crate::{Result, StorageError};

mod buffer;
#[cfg(any(test, feature = "testing"))]
pub mod conformance;
#[cfg(any(test, feature = "testing"))]
mod fault;
mod file;
mod joined;
#[cfg(any(test, feature = "testing"))]
mod limit;
mod memory;
mod mirrored;
mod nand;
#[cfg(test)]
mod tests;
#[cfg(any(test, feature = "testing"))]
mod throttle;

pub use buffer::PageBuffer;
#[cfg(any(test, feature = "testing"))]
pub use fault::{FaultFlash, FaultOptions, When};
pub use file::{FileFlash, FileFlashOptions, IoMode, make_folder, sync_folder};
pub use joined::JoinedFlash;
pub(crate) use joined::sync_all;
#[cfg(any(test, feature = "testing"))]
pub use limit::{LimitFlash, LimitOptions};
pub use memory::MemoryFlash;
pub use mirrored::{CopyLedger, CopySource, CopyStatus, MirroredFlash};
pub use nand::{NandFlash, NandOptions, NandProfile, NandShape, WearRate};
#[cfg(any(test, feature = "testing"))]
pub use throttle::{Clock, ManualClock, SystemClock, ThrottleFlash, ThrottleOptions};

/// Bytes of a flash page.
pub const PAGE_SIZE_BYTES: usize = 8192;

/// Number of a page within one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlashPage(pub u64);

/// The caller's name for an operation in flight; unique among those in flight on its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tag(pub u64);

/// The shape of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Pages that one erase clears.
    pub pages_per_erase_block: u32,
    /// Erase blocks that the device may grow to.
    pub erase_blocks: u64,
}

/// One operation. Buffers travel with it and come back in its [`Completion`].
#[derive(Debug)]
pub enum FlashOp {
    /// Read consecutive pages, from 1 to [`FlashQueue::max_pages_per_op`] of them.
    /// A page that was never written, or was erased, reads as zeros.
    Read {
        /// The caller's name for it.
        tag: Tag,
        /// The first page.
        first: FlashPage,
        /// To be filled, one for each page.
        buffers: Vec<PageBuffer>,
    },
    /// Write consecutive pages. A page is written once between erases.
    Write {
        /// The caller's name for it.
        tag: Tag,
        /// The first page.
        first: FlashPage,
        /// One for each page.
        buffers: Vec<PageBuffer>,
    },
    /// Erase a block.
    Erase {
        /// The caller's name for it.
        tag: Tag,
        /// The block's first page, a multiple of `pages_per_erase_block`.
        first: FlashPage,
    },
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation's tag.
    pub tag: Tag,
    /// The operation's buffers, filled if it was a read that succeeded; empty for an erase.
    pub buffers: Vec<PageBuffer>,
    /// Whether it succeeded. A read or write of several pages succeeds or fails whole.
    pub result: Result<()>,
}

/// A device of flash pages.
pub trait Flash: Debug + Send + Sync {
    /// A name for messages, e.g. the file's path.
    fn name(&self) -> String;
    /// The device's shape.
    fn geometry(&self) -> Geometry;
    /// Erase blocks, counted from the device's start, that may hold data: every block behind
    /// them reads as zeros and can be written without an erase.
    fn used_erase_blocks(&self) -> Result<u64>;
    /// A queue for the calling thread.
    fn open_queue(&self) -> Result<Box<dyn FlashQueue>>;
    /// Makes every write and erase that has completed durable.
    fn sync(&self) -> Result<()>;
    /// Whether a block that an earlier opening has left half written can be written on, behind its
    /// last page that is not zero. Not on raw NAND: a page at which the power failed may look as if
    /// it were not written.
    fn continues_blocks(&self) -> bool;
    /// What the device knows of its wear and its errors; `None` where it keeps that to itself.
    fn health(&self) -> Option<FlashHealth>;
    /// What each copy of a page holds, by the number of the copy, where the device keeps several: who
    /// finds that what was read is damaged takes one that is not.
    fn copies_of(&self, _: FlashPage) -> Vec<(usize, PageBuffer)> {
        Vec::new()
    }
    /// Has these copies of a page, and of its erase block, written anew from another copy, some time
    /// from now. They are not read before.
    fn renew(&self, _: FlashPage, _copies: &[usize]) {}
}

/// What a raw card counts, since it was made unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct FlashHealth {
    /// Pages that its chips have programmed.
    pub pages_programmed: u64,
    /// Those of them that nobody wrote: copies of failed and of cold blocks, and pages left out.
    pub pages_moved: u64,
    /// Blocks of its chips that were erased.
    pub blocks_erased: u64,
    /// Erases of the block that has most, of those that are not bad.
    pub erase_count_max: u32,
    /// Mean of the same blocks.
    pub erase_count_mean: f64,
    /// Blocks that are not used: bad from the beginning, or since.
    pub bad_blocks: u64,
    /// Blocks that may become bad before there is less room than the geometry says.
    pub spare_blocks: u64,
    /// Bits that were read wrongly and corrected.
    pub corrected_bits: u64,
    /// Reads of pages that could not be corrected.
    pub uncorrectable_pages: u64,
    /// Modelled: how long chips were busy, all of them together.
    pub modelled_busy_ns: u64,
    /// Modelled: how long the card would have taken for all, without time of the host.
    pub modelled_elapsed_ns: u64,
}

/// One thread's view of a device. Dropping it waits for what is in flight.
pub trait FlashQueue: Debug + Send {
    /// Operations that may be in flight at once.
    fn depth(&self) -> usize;
    /// Operations now in flight.
    fn in_flight(&self) -> usize;
    /// Pages that one operation may carry.
    fn max_pages_per_op(&self) -> usize;
    /// Takes up an operation; it starts at the latest with the next [`FlashQueue::wait`], so that
    /// many operations reach the device in one step. The caller keeps `in_flight() < depth()`; a
    /// bad address, a full queue or an empty buffer list is `StorageError::Invalid` and starts
    /// nothing. Operations in flight are not ordered: whoever writes an erased block waits for the
    /// erase first.
    fn submit(&mut self, op: FlashOp) -> Result<()>;
    /// Waits until at least `min` operations (or all in flight, if fewer) have ended and appends
    /// their completions, in the order in which they ended. `min = 0` starts what was submitted
    /// and only looks.
    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()>;
    /// Gives up reads that have not reached the device yet: they end as failed. What has reached
    /// it goes on.
    fn cancel_reads(&mut self);
}

impl Geometry {
    /// Pages of the whole device.
    pub fn pages(&self) -> u64 {
        self.erase_blocks
            .saturating_mul(u64::from(self.pages_per_erase_block))
    }
}

impl FlashOp {
    /// The operation's tag.
    pub fn tag(&self) -> Tag {
        match self {
            Self::Read { tag, .. } | Self::Write { tag, .. } | Self::Erase { tag, .. } => *tag,
        }
    }

    /// The first page that it is about.
    pub fn first(&self) -> FlashPage {
        match self {
            Self::Read { first, .. } | Self::Write { first, .. } | Self::Erase { first, .. } => {
                *first
            }
        }
    }

    /// Pages that it reads or writes.
    pub fn pages(&self) -> usize {
        match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => buffers.len(),
            Self::Erase { .. } => 0,
        }
    }

    /// Its buffers, of an operation that does not take place.
    pub fn into_buffers(self) -> Vec<PageBuffer> {
        match self {
            Self::Read { buffers, .. } | Self::Write { buffers, .. } => buffers,
            Self::Erase { .. } => Vec::new(),
        }
    }
}

/// The checks that [`FlashQueue::submit`] promises, for those who implement it.
///
/// # Errors
/// `Invalid`, which says what is wrong.
pub fn check_op(queue: &dyn FlashQueue, op: &FlashOp, geometry: Geometry) -> Result<()> {
    let refuse = |why: String| Err(StorageError::Invalid(why));
    if queue.in_flight() >= queue.depth() {
        return refuse(format!(
            "flash queue is full: {} operations in flight",
            queue.depth()
        ));
    }
    let (first, pages) = match op {
        FlashOp::Read { first, buffers, .. } | FlashOp::Write { first, buffers, .. } => {
            if buffers.is_empty() || buffers.len() > queue.max_pages_per_op() {
                return refuse(format!(
                    "flash operation on {} pages; from 1 to {} are possible",
                    buffers.len(),
                    queue.max_pages_per_op()
                ));
            }
            (*first, buffers.len() as u64)
        }
        FlashOp::Erase { first, .. } => {
            let pages = u64::from(geometry.pages_per_erase_block);
            if first.0 % pages != 0 {
                return refuse(format!(
                    "erase at page {}, which does not start an erase block of {pages} pages",
                    first.0
                ));
            }
            (*first, pages)
        }
    };
    match first.0.checked_add(pages) {
        Some(end) if end <= geometry.pages() => Ok(()),
        _ => refuse(format!(
            "flash pages {} to {} lie outside the device of {} pages",
            first.0,
            first.0.saturating_add(pages - 1),
            geometry.pages()
        )),
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): the modelled devices draw their surprises from it, so
/// that a seed replays on every version of every library.
#[derive(Debug, Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
