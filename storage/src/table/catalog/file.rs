//! The file under the catalog's `redb`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::{Bound, Range};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

/// What `redb` keeps the catalog in. It outlives `redb`'s handle, so that a new handle can take
/// over after an error without anybody else getting in between.
#[derive(Debug)]
pub(in crate::table) struct CatalogFile {
    backend: Box<dyn StorageBackend>,
    sync_has_failed: AtomicBool,
}

impl CatalogFile {
    pub(in crate::table) fn new(backend: impl StorageBackend) -> Arc<Self> {
        Arc::new(Self {
            backend: Box::new(backend),
            sync_has_failed: AtomicBool::new(false),
        })
    }

    /// Opens the file at `path`; with `create` it is made.
    pub(super) fn open(path: &Path, create: bool) -> Result<Arc<Self>, redb::DatabaseError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(create)
            .truncate(false)
            .open(path)?;
        read_from_disk(&file);
        Ok(Self::new(FileBackend::new(file)?))
    }

    /// Opens the file at `path` for reading only.
    pub(super) fn open_to_read(path: &Path) -> Result<Arc<Self>, redb::DatabaseError> {
        Ok(Self::new(Overlay::over(FileBackend::new(File::open(
            path,
        )?)?)?))
    }

    /// Whether a sync failed: what was written before it may be lost although reading shows it.
    pub(super) fn sync_has_failed(&self) -> bool {
        self.sync_has_failed.load(Ordering::Acquire)
    }
}

/// Has a file be read from the disk: what an earlier process failed to sync may still be in the
/// system's cache and not there.
pub(in crate::table) fn read_from_disk(file: &File) {
    #[cfg(target_os = "linux")]
    // SAFETY: the call touches no memory.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
    }
}

/// A file that others may read too: what `redb` writes when it opens or repairs it stays here.
#[derive(Debug)]
struct Overlay {
    file: FileBackend,
    file_bytes: u64,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    bytes: u64,
    /// Blocks by number.
    blocks: BTreeMap<u64, Vec<u8>>,
}

const BLOCK_BYTES: u64 = 4096;

impl Overlay {
    fn over(file: FileBackend) -> io::Result<Self> {
        let file_bytes = file.len()?;
        Ok(Self {
            file,
            file_bytes,
            written: Mutex::new(Written {
                bytes: file_bytes,
                blocks: BTreeMap::new(),
            }),
        })
    }

    /// Reads what the file has; behind its end are zeros.
    fn read_file(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.file_bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        out[there..].fill(0);
        match there {
            0 => Ok(()),
            _ => self.file.read(offset, &mut out[..there]),
        }
    }
}

/// The blocks that so many bytes from `offset` on touch: number, range in the block, range in the
/// bytes.
fn blocks(offset: u64, bytes: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let end = offset + bytes as u64;
    (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(move |block| {
        let start = block * BLOCK_BYTES;
        let (from, to) = (offset.max(start), end.min(start + BLOCK_BYTES));
        let within = |base: u64| (from - base) as usize..(to - base) as usize;
        (block, within(start), within(offset))
    })
}

impl StorageBackend for Overlay {
    fn len(&self) -> io::Result<u64> {
        Ok(self.written.lock().bytes)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let written = self.written.lock();
        if offset + out.len() as u64 > written.bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_file(offset, out)?;
        for (block, inside, of_out) in blocks(offset, out.len()) {
            if let Some(bytes) = written.blocks.get(&block) {
                out[of_out].copy_from_slice(&bytes[inside]);
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.written.lock().bytes = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut written = self.written.lock();
        for (block, inside, of_data) in blocks(offset, data.len()) {
            if let Entry::Vacant(place) = written.blocks.entry(block) {
                let mut bytes = vec![0; BLOCK_BYTES as usize];
                self.read_file(block * BLOCK_BYTES, &mut bytes)?;
                place.insert(bytes);
            }
            if let Some(bytes) = written.blocks.get_mut(&block) {
                bytes[inside].copy_from_slice(&data[of_data]);
            }
        }
        Ok(())
    }

    /// Other readers are welcome, a writer is not.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.file.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.lock_shared_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.query_lock_range(start, end)
    }
}

/// The file as one handle of `redb` has it. Locks are given up with the file, not with the handle.
#[derive(Debug)]
pub(super) struct Lease(pub(super) Arc<CatalogFile>);

impl StorageBackend for Lease {
    fn len(&self) -> io::Result<u64> {
        self.0.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.backend.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let result = self.0.backend.sync_data();
        if result.is_err() {
            self.0.sync_has_failed.store(true, Ordering::Release);
        }
        result
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.backend.write(offset, data)
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.backend.try_lock_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.backend.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.backend.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.backend.lock_shared_range(start, end)
    }

    fn unlock_range(&self, _: Bound<u64>, _: Bound<u64>) -> Result<(), BackendError> {
        Ok(())
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.backend.query_lock_range(start, end)
    }
}
