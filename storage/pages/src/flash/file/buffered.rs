//! A queue that reads and writes through the operating system's page cache.
//!
//! Positioned vectored calls, one for each operation, done by the caller's thread: writes and
//! erases when they are submitted, reads when they are waited for. On Linux the kernel is told of
//! a read when it is submitted, so that the device works ahead all the same.

use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use super::{Device, MAX_PAGES_PER_OP, zero_from};
use crate::Result;
use crate::flash::{
    Completion, FlashOp, FlashPage, FlashQueue, PAGE_SIZE_BYTES, PageBuffer, Tag, check_op,
};

#[derive(Debug)]
pub(super) struct BufferedQueue {
    device: Arc<Device>,
    reads: VecDeque<(Tag, FlashPage, Vec<PageBuffer>)>,
    ended: Vec<Completion>,
    depth: usize,
}

impl BufferedQueue {
    pub(super) fn new(device: Arc<Device>, depth: u32) -> Self {
        Self {
            device,
            reads: VecDeque::new(),
            ended: Vec::new(),
            depth: depth as usize,
        }
    }
}

impl FlashQueue for BufferedQueue {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.reads.len() + self.ended.len()
    }

    fn max_pages_per_op(&self) -> usize {
        MAX_PAGES_PER_OP
    }

    fn cancel_reads(&mut self) {
        self.ended
            .extend(self.reads.drain(..).map(|(tag, _, buffers)| {
                let error = io::Error::new(io::ErrorKind::Interrupted, "the read was given up");
                Completion {
                    tag,
                    buffers,
                    result: Err(self.device.read_failed(error)),
                }
            }));
    }

    fn submit(&mut self, op: FlashOp) -> Result<()> {
        check_op(self, &op, self.device.geometry)?;
        match op {
            FlashOp::Read {
                tag,
                first,
                buffers,
            } => {
                announce_read(&self.device, first, buffers.len());
                self.reads.push_back((tag, first, buffers));
            }
            FlashOp::Write {
                tag,
                first,
                mut buffers,
            } => {
                self.device.check_writable()?;
                let size_bytes = (buffers.len() * PAGE_SIZE_BYTES) as u64;
                self.device
                    .grow(first.0 * PAGE_SIZE_BYTES as u64 + size_bytes)?;
                let result = transfer(&self.device, Direction::Write, first, &mut buffers)
                    .map_err(|e| self.device.write_failed(size_bytes, e));
                self.ended.push(Completion {
                    tag,
                    buffers,
                    result,
                });
            }
            FlashOp::Erase { tag, first } => {
                self.device.check_writable()?;
                let result = self.device.erase(first.0 * PAGE_SIZE_BYTES as u64);
                self.ended.push(Completion {
                    tag,
                    buffers: Vec::new(),
                    result,
                });
            }
        }
        Ok(())
    }

    fn wait(&mut self, min: usize, completions: &mut Vec<Completion>) -> Result<()> {
        let mut ended = self.ended.len();
        completions.append(&mut self.ended);
        // One read at least, so that a caller that only looks gets on.
        while ended < min.max(1) {
            let Some((tag, first, mut buffers)) = self.reads.pop_front() else {
                break;
            };
            let result = transfer(&self.device, Direction::Read, first, &mut buffers)
                .map_err(|e| self.device.read_failed(e));
            completions.push(Completion {
                tag,
                buffers,
                result,
            });
            ended += 1;
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Transfers all of `buffers`; what lies behind the file's end reads as zeros.
fn transfer(
    device: &Device,
    direction: Direction,
    first: FlashPage,
    buffers: &mut [PageBuffer],
) -> io::Result<()> {
    let fd = device.file.as_raw_fd();
    let size_bytes = buffers.len() * PAGE_SIZE_BYTES;
    let mut done_bytes = 0;
    while done_bytes < size_bytes {
        let skip_pages = done_bytes / PAGE_SIZE_BYTES;
        let iovecs: Vec<libc::iovec> = buffers[skip_pages..]
            .iter_mut()
            .enumerate()
            .map(|(index, buffer)| {
                let skip_bytes = if index == 0 {
                    done_bytes % PAGE_SIZE_BYTES
                } else {
                    0
                };
                let rest = &mut buffer[skip_bytes..];
                libc::iovec {
                    iov_base: rest.as_mut_ptr().cast(),
                    iov_len: rest.len(),
                }
            })
            .collect();
        let offset_bytes = (first.0 * PAGE_SIZE_BYTES as u64 + done_bytes as u64) as libc::off_t;
        let count = iovecs.len() as libc::c_int;
        // SAFETY: the vectors name memory of `buffers`, borrowed mutably for the whole call.
        let result = unsafe {
            match direction {
                Direction::Read => libc::preadv(fd, iovecs.as_ptr(), count, offset_bytes),
                Direction::Write => libc::pwritev(fd, iovecs.as_ptr(), count, offset_bytes),
            }
        };
        match (result, direction) {
            (0, Direction::Read) => {
                zero_from(buffers, done_bytes);
                return Ok(());
            }
            (0, Direction::Write) => return Err(io::ErrorKind::WriteZero.into()),
            (1.., _) => done_bytes += result as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(target_os = "linux")]
fn announce_read(device: &Device, first: FlashPage, pages: usize) {
    let offset_bytes = (first.0 * PAGE_SIZE_BYTES as u64) as libc::off_t;
    let size_bytes = (pages * PAGE_SIZE_BYTES) as libc::off_t;
    // SAFETY: the call touches no memory. It is a hint: nothing depends on its success.
    unsafe {
        libc::posix_fadvise(
            device.file.as_raw_fd(),
            offset_bytes,
            size_bytes,
            libc::POSIX_FADV_WILLNEED,
        )
    };
}

#[cfg(not(target_os = "linux"))]
fn announce_read(_: &Device, _: FlashPage, _: usize) {}
