//! A queue that is an io_uring over a file opened with `O_DIRECT`.
//!
//! Life of an operation: `submit` puts it into a slot and its entry into the submission ring ▸ the
//! next `wait` hands all new entries to the kernel in one call ▸ its completion frees the slot,
//! or, if the kernel did only a part, the rest goes round again.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::{io, mem};

use io_uring::{IoUring, opcode, squeue, types};

use super::{Device, ERASE_BLOCK_BYTES, MAX_PAGES_PER_OP, PUNCH_HOLE, zero_from};
use crate::flash::{
    Completion, FlashOp, FlashPage, FlashQueue, PAGE_SIZE_BYTES, PageBuffer, Tag, check_op,
};
use crate::{Result, StorageError};

/// Direct I/O goes on at a multiple of this; what a partial transfer did beyond is done again.
const ALIGNMENT_BYTES: usize = 4096;
/// Partial transfers in a row that bring nothing, before the operation fails.
const STALLS_MAX: u32 = 8;

pub(super) struct UringQueue {
    ring: IoUring,
    device: Arc<Device>,
    slots: Vec<Slot>,
    /// Slots without an operation.
    free: Vec<u32>,
    depth: usize,
}

/// One operation in flight. The kernel reads `iovecs` until the submission call returns and
/// writes the buffers until the completion, so both stay here until then.
#[derive(Default)]
struct Slot {
    kind: Kind,
    tag: Option<Tag>,
    offset_bytes: u64,
    buffers: Vec<PageBuffer>,
    iovecs: Vec<libc::iovec>,
    /// Bytes that earlier rounds transferred.
    done_bytes: usize,
    stalls: u32,
}

// SAFETY: the pointers in `iovecs` point into `buffers`, which are owned and move along.
unsafe impl Send for Slot {}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Read,
    Write,
    Erase,
}

impl UringQueue {
    pub(super) fn open(device: Arc<Device>, depth: u32) -> Result<Self> {
        // COOP_TASKRUN (Linux 5.19) spares the interrupt per completion; the flag tells a caller
        // that only looks that there is something to fetch.
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(depth)
            .or_else(|_| IoUring::new(depth))
            .map_err(|e| {
                StorageError::io(
                    format!("opening an io_uring for {}", device.path.display()),
                    e,
                )
            })?;
        Ok(Self {
            ring,
            device,
            slots: (0..depth).map(|_| Slot::default()).collect(),
            free: (0..depth).rev().collect(),
            depth: depth as usize,
        })
    }

    /// Puts the slot's operation, or what is left of it, into the submission ring.
    fn push(&mut self, index: u32) {
        let entry = self.slots[index as usize]
            .entry(&self.device)
            .user_data(u64::from(index));
        // SAFETY: the memory that the entry names is owned by the slot, which is neither moved
        // from nor dropped before the completion (see `drop`). The ring has as many entries as
        // there are slots, so there is room.
        unsafe {
            self.ring
                .submission()
                .push(&entry)
                .expect("one ring entry a slot")
        };
    }

    /// Hands new entries to the kernel and waits until `min` completions are there.
    fn enter(&mut self, min: usize) -> Result<()> {
        loop {
            match self.ring.submit_and_wait(min) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The kernel lacks memory for the moment, or wants its completions fetched
                // before it takes more. Nothing is lost: the entries stay in the ring.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY)) => {
                    if self.ring.completion().is_empty() {
                        std::thread::yield_now();
                        continue;
                    }
                    return Ok(());
                }
                Err(e) => {
                    let action = format!("submitting I/O for {}", self.device.path.display());
                    return Err(StorageError::io(action, e));
                }
            }
            if self.ring.submission().is_empty() {
                return Ok(());
            }
        }
    }

    /// Takes what the kernel has finished; `None` when it went round again.
    fn complete(&mut self, index: u32, result: i32) -> Option<Completion> {
        let slot = &mut self.slots[index as usize];
        let outcome = match slot.advance(result, &self.device) {
            Progress::Again => {
                self.push(index);
                return None;
            }
            Progress::Ended(outcome) => outcome,
        };
        let buffers = mem::take(&mut slot.buffers);
        let tag = slot.tag.take()?;
        self.free.push(index);
        Some(Completion {
            tag,
            buffers,
            result: outcome,
        })
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) -> usize {
        let mut reaped = 0;
        while let Some(entry) = { self.ring.completion().next() } {
            // Our own index comes back.
            if let Some(completion) = self.complete(entry.user_data() as u32, entry.result()) {
                completions.push(completion);
                reaped += 1;
            }
        }
        reaped
    }
}

enum Progress {
    /// There is a rest to do.
    Again,
    Ended(Result<()>),
}

impl Slot {
    fn size_bytes(&self) -> usize {
        self.buffers.len() * PAGE_SIZE_BYTES
    }

    /// The ring entry for what is left to do.
    fn entry(&mut self, device: &Device) -> squeue::Entry {
        let fd = types::Fd(device.file.as_raw_fd());
        if self.kind == Kind::Erase {
            if self.offset_bytes >= device.size_bytes.load(Ordering::Acquire) {
                // Behind the end all is zero, and file systems refuse very high offsets.
                return opcode::Nop::new().build();
            }
            return opcode::Fallocate::new(fd, ERASE_BLOCK_BYTES)
                .offset(self.offset_bytes)
                .mode(PUNCH_HOLE)
                .build();
        }
        self.iovecs.clear();
        let mut skip_bytes = self.done_bytes;
        for buffer in &mut self.buffers {
            let skipped = skip_bytes.min(PAGE_SIZE_BYTES);
            skip_bytes -= skipped;
            if skipped == PAGE_SIZE_BYTES {
                continue;
            }
            let rest = &mut buffer[skipped..];
            let (base, len) = (rest.as_mut_ptr(), rest.len());
            match self.iovecs.last_mut() {
                // Buffers that were neighbours in their slab are one piece for the kernel.
                Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base => {
                    last.iov_len += len;
                }
                _ => self.iovecs.push(libc::iovec {
                    iov_base: base.cast(),
                    iov_len: len,
                }),
            }
        }
        let offset = self.offset_bytes + self.done_bytes as u64;
        let (iovecs, count) = (self.iovecs.as_ptr(), self.iovecs.len() as u32);
        match self.kind {
            Kind::Read => opcode::Readv::new(fd, iovecs, count).offset(offset).build(),
            _ => opcode::Writev::new(fd, iovecs, count)
                .offset(offset)
                .build(),
        }
    }

    /// Digests what the kernel says of this round.
    fn advance(&mut self, result: i32, device: &Device) -> Progress {
        if matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED) {
            // Canceled: a thread that submitted it has ended before a worker took it up.
            return Progress::Again;
        }
        let error = || io::Error::from_raw_os_error(-result);
        match self.kind {
            Kind::Erase if -result == libc::EOPNOTSUPP => {
                Progress::Ended(device.erase_by_writing(self.offset_bytes))
            }
            Kind::Erase if result < 0 => Progress::Ended(Err(device.write_failed(0, error()))),
            Kind::Erase => Progress::Ended(Ok(())),
            Kind::Read if result < 0 => Progress::Ended(Err(device.read_failed(error()))),
            Kind::Write if result < 0 => {
                let rest_bytes = (self.size_bytes() - self.done_bytes) as u64;
                Progress::Ended(Err(device.write_failed(rest_bytes, error())))
            }
            Kind::Read | Kind::Write => self.advance_transfer(result as usize, device),
        }
    }

    fn advance_transfer(&mut self, transferred_bytes: usize, device: &Device) -> Progress {
        let end_bytes = self.done_bytes + transferred_bytes;
        if end_bytes >= self.size_bytes() {
            return Progress::Ended(Ok(()));
        }
        if self.kind == Kind::Read {
            let file_end_bytes = device.size_bytes.load(Ordering::Acquire);
            if self.offset_bytes + end_bytes as u64 >= file_end_bytes {
                zero_from(&mut self.buffers, end_bytes);
                return Progress::Ended(Ok(()));
            }
        }
        let aligned_bytes = end_bytes / ALIGNMENT_BYTES * ALIGNMENT_BYTES;
        self.stalls = if aligned_bytes > self.done_bytes {
            0
        } else {
            self.stalls + 1
        };
        self.done_bytes = aligned_bytes;
        if self.stalls > STALLS_MAX {
            let page = self.offset_bytes / PAGE_SIZE_BYTES as u64;
            let why = format!(
                "the transfer of {} pages from page {page} does not get on",
                self.buffers.len()
            );
            let error = io::Error::new(io::ErrorKind::UnexpectedEof, why);
            return Progress::Ended(Err(match self.kind {
                Kind::Read => device.read_failed(error),
                _ => device.write_failed((self.size_bytes() - end_bytes) as u64, error),
            }));
        }
        Progress::Again
    }
}

impl FlashQueue for UringQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.depth - self.free.len()
    }

    fn max_pages_per_op(&self) -> usize {
        MAX_PAGES_PER_OP
    }

    fn cancel_reads(&mut self) {
        // The block layer has them: nothing stops them any more.
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.device.geometry)?;
        let offset_bytes = |page: FlashPage| page.0 * PAGE_SIZE_BYTES as u64;
        let (kind, tag, first, buffers) = match op {
            FlashOp::Read {
                tag,
                first,
                buffers,
            } => (Kind::Read, tag, first, buffers),
            FlashOp::Write {
                tag,
                first,
                buffers,
            } => {
                self.device.check_writable()?;
                self.device
                    .grow(offset_bytes(first) + (buffers.len() * PAGE_SIZE_BYTES) as u64)?;
                (Kind::Write, tag, first, buffers)
            }
            FlashOp::Erase { tag, first } => {
                self.device.check_writable()?;
                (Kind::Erase, tag, first, Vec::new())
            }
        };
        let Some(index) = self.free.pop() else {
            return Err(StorageError::Invalid("flash queue is full".to_string()));
        };
        let slot = &mut self.slots[index as usize];
        slot.kind = kind;
        slot.tag = Some(tag);
        slot.offset_bytes = offset_bytes(first);
        slot.buffers = buffers;
        slot.done_bytes = 0;
        slot.stalls = 0;
        self.push(index);
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let min = min.min(self.in_flight());
        let mut ended = 0;
        loop {
            let (has_new, has_pending_work) = {
                let submission = self.ring.submission();
                (!submission.is_empty(), submission.taskrun())
            };
            if has_new || has_pending_work {
                self.enter(0)?;
            }
            ended += self.reap(completions);
            if ended >= min && self.ring.submission().is_empty() {
                return Ok(());
            }
            if ended < min {
                self.enter(min - ended)?;
            }
        }
    }
}

impl std::fmt::Debug for UringQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UringQueue")
            .field("file", &self.device.path)
            .field("depth", &self.depth)
            .field("in_flight", &self.in_flight())
            .finish()
    }
}

impl Drop for UringQueue {
    fn drop(&mut self) {
        let in_flight = self.in_flight();
        if let Err(error) = self.wait(in_flight, &mut Vec::new()) {
            // The kernel may still write to the buffers of what is in flight: they must not be
            // used again. Leaking them is the only safe thing left.
            log::error!(
                "{error}; leaking the buffers of {} operations",
                self.in_flight()
            );
            mem::forget(mem::take(&mut self.slots));
        }
    }
}
