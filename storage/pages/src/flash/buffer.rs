//! Page buffers: the memory that flash pages are read into and written from.
//!
//! A buffer is 8 KiB, aligned to 4 KiB (what `O_DIRECT` wants of any device), and is cut from
//! 2 MiB slabs so that the kernel can back them with huge pages. A dropped buffer goes to a small
//! list of its thread, from there in batches to a bounded process-wide list: a scan that evicts as
//! many pages as it reads runs without page faults and without a shared lock per page. Beyond that
//! bound a buffer's memory is given back to the operating system at once; only its address range
//! stays reserved, so that shrinking the page cache shrinks the process.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::PAGE_SIZE_BYTES;

/// Bytes that are mapped at once.
const SLAB_SIZE_BYTES: usize = 2 << 20;
/// Free buffers of the process that keep their memory (32 MiB).
const WARM_PAGES_MAX: usize = 4096;
/// Free buffers that a thread keeps for itself, and how many travel at once to and from the
/// process-wide list.
const LOCAL_PAGES_MAX: usize = 128;
const BATCH_PAGES: usize = 64;

/// The memory of one flash page: owned, 4096-aligned, recycled when dropped.
pub struct PageBuffer(Frame);

/// The address of 8 KiB of initialised memory in a slab, owned by whoever holds the value.
struct Frame(NonNull<[u8; PAGE_SIZE_BYTES]>);

// SAFETY: a frame is the only owner of plain memory that belongs to no thread.
unsafe impl Send for Frame {}
// SAFETY: through a shared frame (PageBuffer's Deref) memory is only read.
unsafe impl Sync for Frame {}

impl PageBuffer {
    /// A buffer of zeros.
    pub fn zeroed() -> Self {
        let mut buffer = Self::recycled();
        buffer.fill(0);
        buffer
    }

    /// A buffer with arbitrary (but initialised) contents: for reads, or where every byte will
    /// be written. Cheaper than [`PageBuffer::zeroed`].
    pub fn recycled() -> Self {
        let local = LOCAL.try_with(|local| {
            let frames = &mut local.borrow_mut().0;
            if frames.is_empty() {
                POOL.lock().take(BATCH_PAGES, frames);
            }
            frames.pop()
        });
        // While the thread ends its list may be gone.
        let frame = local.ok().flatten().unwrap_or_else(|| {
            let mut frames = Vec::with_capacity(1);
            POOL.lock().take(1, &mut frames);
            frames.pop().expect("`take` gives at least one frame")
        });
        Self(frame)
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the frame is initialised memory that `self` owns.
        unsafe { self.0.0.as_ref() }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the frame is initialised memory that `self` owns, and `self` is borrowed mutably.
        unsafe { self.0.0.as_mut() }
    }
}

impl Clone for PageBuffer {
    fn clone(&self) -> Self {
        let mut copy = Self::recycled();
        copy.copy_from_slice(self);
        copy
    }
}

impl fmt::Debug for PageBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageBuffer({:p})", self.0.0)
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        let frame = Frame(self.0.0);
        let mut frame = Some(frame);
        let _ = LOCAL.try_with(|local| {
            let frames = &mut local.borrow_mut().0;
            frames.extend(frame.take());
            if frames.len() >= LOCAL_PAGES_MAX {
                give_back(frames.drain(LOCAL_PAGES_MAX - BATCH_PAGES..).collect());
            }
        });
        if let Some(frame) = frame {
            give_back(vec![frame]);
        }
    }
}

thread_local! {
    static LOCAL: RefCell<LocalFrames> = const { RefCell::new(LocalFrames(Vec::new())) };
}

/// A thread's free frames; they return to the process when the thread ends.
struct LocalFrames(Vec<Frame>);

impl Drop for LocalFrames {
    fn drop(&mut self) {
        give_back(std::mem::take(&mut self.0));
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    warm: Vec::new(),
    cold: Vec::new(),
});

/// The free frames of the process.
struct Pool {
    /// With memory behind them.
    warm: Vec<Frame>,
    /// Given back to the operating system: the next touch faults in zeros.
    cold: Vec<Frame>,
}

impl Pool {
    /// Moves up to `count` frames, and at least one, to `frames`.
    fn take(&mut self, count: usize, frames: &mut Vec<Frame>) {
        if self.warm.is_empty() && self.cold.is_empty() {
            map_slab(&mut self.cold);
        }
        let source = if self.warm.is_empty() {
            &mut self.cold
        } else {
            &mut self.warm
        };
        frames.extend(source.drain(source.len().saturating_sub(count)..));
    }

    /// Takes of `frames` as many as may keep their memory.
    fn keep_warm(&mut self, frames: &mut Vec<Frame>) {
        let room = WARM_PAGES_MAX
            .saturating_sub(self.warm.len())
            .min(frames.len());
        self.warm.extend(frames.drain(..room));
    }
}

/// Returns frames to the process; those beyond the bound without their memory.
fn give_back(mut frames: Vec<Frame>) {
    POOL.lock().keep_warm(&mut frames);
    if frames.is_empty() {
        return;
    }
    frames.iter().for_each(Frame::release_memory);
    POOL.lock().cold.append(&mut frames);
}

impl Frame {
    /// Gives the memory behind the frame to the operating system; the next touch finds zeros.
    fn release_memory(&self) {
        // SAFETY: the frame is page-aligned, lies in a mapping of `map_slab` and nobody else
        // holds it; zeros are initialised memory. Where the call fails the memory just stays.
        unsafe { libc::madvise(self.0.as_ptr().cast(), PAGE_SIZE_BYTES, libc::MADV_DONTNEED) };
    }
}

/// Maps a slab aligned to its size and adds its frames, the lowest address last (taken first).
fn map_slab(frames: &mut Vec<Frame>) {
    // SAFETY: a new anonymous mapping touches no existing memory.
    let mapping = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            2 * SLAB_SIZE_BYTES,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANON,
            -1,
            0,
        )
    };
    if mapping == libc::MAP_FAILED {
        let layout = std::alloc::Layout::new::<[u8; SLAB_SIZE_BYTES]>();
        std::alloc::handle_alloc_error(layout);
    }
    let head = mapping.align_offset(SLAB_SIZE_BYTES);
    // SAFETY: the mapping is twice a slab's size, so an aligned slab lies inside; what is
    // unmapped before and behind it was mapped just now and is used by nobody. An empty range is
    // refused with EINVAL, which is harmless.
    let slab = unsafe {
        let slab = mapping.cast::<u8>().add(head);
        libc::munmap(mapping, head);
        libc::munmap(slab.add(SLAB_SIZE_BYTES).cast(), SLAB_SIZE_BYTES - head);
        // Huge pages make the kernel's pinning for direct I/O and our scans cheaper; a system
        // without them says no.
        #[cfg(target_os = "linux")]
        libc::madvise(slab.cast(), SLAB_SIZE_BYTES, libc::MADV_HUGEPAGE);
        slab
    };
    frames.extend((0..SLAB_SIZE_BYTES / PAGE_SIZE_BYTES).rev().map(|index| {
        // SAFETY: the offset is inside the slab; `slab` is not null.
        Frame(unsafe { NonNull::new_unchecked(slab.add(index * PAGE_SIZE_BYTES).cast()) })
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_distinct() {
        let mut buffers: Vec<_> = (0..2000).map(|_| PageBuffer::recycled()).collect();
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!(buffer.as_ptr() as usize % 4096, 0);
            assert_eq!(buffer.len(), PAGE_SIZE_BYTES);
            buffer.fill(i as u8);
        }
        for (i, buffer) in buffers.iter().enumerate() {
            assert!(
                buffer.iter().all(|&byte| byte == i as u8),
                "buffer {i} was overwritten"
            );
        }
    }

    #[test]
    fn zeroed_is_zero_after_recycling() {
        let dirty: Vec<_> = (0..300)
            .map(|_| {
                let mut buffer = PageBuffer::recycled();
                buffer.fill(0xA5);
                buffer
            })
            .collect();
        drop(dirty);
        for _ in 0..300 {
            assert!(PageBuffer::zeroed().iter().all(|&byte| byte == 0));
        }
    }

    #[test]
    fn free_memory_beyond_the_bound_is_given_back() {
        let mut pool = Pool {
            warm: Vec::new(),
            cold: Vec::new(),
        };
        let mut frames = Vec::new();
        while frames.len() < WARM_PAGES_MAX + 100 {
            pool.take(BATCH_PAGES, &mut frames);
        }
        pool.warm.clear();
        let excess = frames.len() - WARM_PAGES_MAX;
        pool.keep_warm(&mut frames);
        assert_eq!((pool.warm.len(), frames.len()), (WARM_PAGES_MAX, excess));
        pool.keep_warm(&mut frames);
        assert_eq!(frames.len(), excess);

        let mut buffer = PageBuffer(frames.pop().unwrap());
        buffer.fill(1);
        buffer.0.release_memory();
        assert!(buffer.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn buffers_move_between_threads() {
        let buffers: Vec<_> = (0..500)
            .map(|i| {
                let mut buffer = PageBuffer::recycled();
                buffer.fill(i as u8);
                buffer
            })
            .collect();
        std::thread::spawn(move || {
            for (i, buffer) in buffers.into_iter().enumerate() {
                assert_eq!(buffer[17], i as u8);
            }
        })
        .join()
        .unwrap();
    }
}
