//! The file under the catalog's `redb`.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Bound;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, StorageBackend};

use crate::table::overlay::Overlay;

/// What `redb` keeps the catalog in. It outlives `redb`'s handle, so that a new handle can take
/// over after an error without anybody else getting in between.
#[derive(Debug)]
pub(in crate::table) struct CatalogFile {
    backend: Box<dyn StorageBackend>,
    sync_has_failed: AtomicBool,
}

impl CatalogFile {
    pub(in crate::table) fn new(backend: impl StorageBackend) -> Arc<Self> {
        Self::boxed(Box::new(backend))
    }

    pub(in crate::table) fn boxed(backend: Box<dyn StorageBackend>) -> Arc<Self> {
        Arc::new(Self {
            backend,
            sync_has_failed: AtomicBool::new(false),
        })
    }

    /// All that is in it.
    pub(in crate::table) fn content(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.backend.len()? as usize];
        self.backend.read(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Opens the file at `path`; with `create` it is made.
    pub(super) fn open(path: &Path, create: bool) -> Result<Arc<Self>, redb::DatabaseError> {
        Ok(Self::new(open_from_disk(path, create)?))
    }

    /// Opens the file at `path` for reading only.
    pub(super) fn open_to_read(path: &Path) -> Result<Arc<Self>, redb::DatabaseError> {
        let file = FileBackend::new(File::open(path)?)?;
        Ok(Self::new(ReadOnly(Overlay::over(file))))
    }

    /// Whether a sync failed: what was written before it may be lost although reading shows it.
    pub(super) fn sync_has_failed(&self) -> bool {
        self.sync_has_failed.load(Ordering::Acquire)
    }
}

/// Opens the file of a `redb` at `path` to write; with `create` it is made. What an earlier process
/// failed to sync is not read.
///
/// # Errors
/// `Io`, of the file.
pub fn open_from_disk(path: &Path, create: bool) -> Result<FileBackend, redb::DatabaseError> {
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create(create);
    let file = options.truncate(false).open(path)?;
    read_from_disk(&file);
    FileBackend::new(file)
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
struct ReadOnly(Overlay);

impl StorageBackend for ReadOnly {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len, NEVER)
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data, NEVER)
    }

    /// Other readers are welcome, a writer is not.
    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.base().try_lock_shared_range(start, end)
    }

    fn try_lock_shared_range(
        &self,
        start: Bound<u64>,
        end: Bound<u64>,
    ) -> Result<bool, BackendError> {
        self.0.base().try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.base().lock_shared_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.base().lock_shared_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.base().query_lock_range(start, end)
    }
}

/// The turn of what its file never gets.
const NEVER: u64 = u64::MAX;

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
