//! The file under the catalog's `redb`.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        // What an earlier process failed to sync may still be in the system's cache and not on
        // the disk. Read what is on the disk.
        #[cfg(target_os = "linux")]
        // SAFETY: the call touches no memory.
        unsafe {
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
        Ok(Self::new(FileBackend::new(file)?))
    }

    /// Whether a sync failed: what was written before it may be lost although reading shows it.
    pub(super) fn sync_has_failed(&self) -> bool {
        self.sync_has_failed.load(Ordering::Acquire)
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
