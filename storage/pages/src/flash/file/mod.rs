//! Flash on a file or a block device.
//!
//! On Linux every queue is an io_uring of its own over a file opened with `O_DIRECT` (module
//! `uring`): the page cache of the operating system is bypassed, memory stays what the product
//! promises. Where either is missing (other systems, a container whose seccomp profile forbids
//! io_uring, a file system without direct I/O) a queue does positioned vectored reads and writes
//! through the operating system's cache (module `buffered`). [`FileFlash::io_mode`] and
//! [`FileFlash::fallback_reason`] tell which it is and why.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Flash, FlashHealth, FlashQueue, Geometry, PAGE_SIZE_BYTES, PageBuffer};
use crate::{Result, StorageError};

mod buffered;
#[cfg(target_os = "linux")]
mod uring;

/// Pages of an erase block of a [`FileFlash`]: 2 MiB, what one erase gives back to the file system.
const PAGES_PER_ERASE_BLOCK: u32 = 256;
const ERASE_BLOCK_BYTES: u64 = PAGES_PER_ERASE_BLOCK as u64 * PAGE_SIZE_BYTES as u64;
/// Pages of one operation (1 MiB): from there on devices do not get faster.
const MAX_PAGES_PER_OP: usize = 128;
/// A file grows by so much at once, without taking up space: writes behind the end of a file are
/// serialised by file systems, writes into a hole are not.
const GROWTH_STEP_BYTES: u64 = 64 << 20;
/// A file without a limit of its own ends where file offsets end.
const FILE_SIZE_MAX_BYTES: u64 = 1 << 62;

/// How a [`FileFlash`] reaches its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMode {
    /// `Direct` where it works, else `Buffered`.
    #[default]
    Auto,
    /// io_uring and `O_DIRECT`, or an error.
    Direct,
    /// Reads and writes through the operating system's page cache.
    Buffered,
}

/// How to open a [`FileFlash`].
#[derive(Debug, Clone)]
pub struct FileFlashOptions {
    /// Open for reading only; writes and erases give [`StorageError::ReadOnly`].
    pub read_only: bool,
    /// Create the file when it is missing.
    pub create: bool,
    /// How to reach it.
    pub io: IoMode,
    /// Bytes that the file may grow to, rounded down to erase blocks; `None`: as large as the
    /// file system lets it. A block device ends at its own size in any case.
    pub capacity_bytes: Option<u64>,
    /// Operations in flight of one queue, at least 1 and rounded up to a power of two.
    pub queue_depth: u32,
    /// Whether [`Flash::sync`] makes writes durable; of a file that is to go with the process it
    /// need not.
    pub durable: bool,
}

impl Default for FileFlashOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            create: true,
            io: IoMode::Auto,
            capacity_bytes: None,
            queue_depth: 128,
            durable: true,
        }
    }
}

/// A file or a block device as flash.
///
/// A file grows sparsely as blocks are written and gives space back to the file system as blocks
/// are erased; what lies behind its end reads as zeros.
#[derive(Debug)]
pub struct FileFlash {
    device: Arc<Device>,
    queue_depth: u32,
    /// Why it is not `Direct` although that was wished for.
    fallback_reason: Option<String>,
}

/// What all queues of a file share.
#[derive(Debug)]
struct Device {
    file: File,
    path: PathBuf,
    read_only: bool,
    durable: bool,
    io: IoMode,
    is_block_device: bool,
    geometry: Geometry,
    /// Bytes of the file; it never shrinks while it is open.
    size_bytes: AtomicU64,
    growing: Mutex<()>,
}

impl FileFlash {
    /// Opens (or creates) `path`.
    ///
    /// # Errors
    /// `NotFound` when the file is missing and may not be created; `ReadOnly` when it may not be
    /// written; `Io` when it can't be opened otherwise, or not in the mode that was asked for.
    pub fn open(path: impl Into<PathBuf>, options: FileFlashOptions) -> Result<Self> {
        let path = path.into();
        let mut fallback_reason = None;
        let (file, io) = match options.io {
            IoMode::Buffered => (open_file(&path, &options, 0)?, IoMode::Buffered),
            IoMode::Direct | IoMode::Auto => match open_direct(&path, &options)? {
                Ok(file) => (file, IoMode::Direct),
                Err(reason) if options.io == IoMode::Auto => {
                    log::info!("{}: buffered I/O, as {reason}", path.display());
                    fallback_reason = Some(reason);
                    (open_file(&path, &options, 0)?, IoMode::Buffered)
                }
                Err(reason) => {
                    return Err(StorageError::io(
                        format!("opening {} for direct I/O", path.display()),
                        io::Error::new(io::ErrorKind::Unsupported, reason),
                    ));
                }
            },
        };

        let metadata = file.metadata().map_err(|e| failed("examining", &path, e))?;
        let is_block_device = metadata.file_type().is_block_device();
        let size_bytes = if is_block_device {
            block_device_size_bytes(&file).map_err(|e| failed("measuring", &path, e))?
        } else {
            metadata.len()
        };
        let limit = if is_block_device {
            size_bytes
        } else {
            FILE_SIZE_MAX_BYTES
        };
        let capacity_bytes = options.capacity_bytes.unwrap_or(limit).min(limit);
        Ok(Self {
            device: Arc::new(Device {
                file,
                path,
                read_only: options.read_only,
                durable: options.durable,
                io,
                is_block_device,
                geometry: Geometry {
                    pages_per_erase_block: PAGES_PER_ERASE_BLOCK,
                    erase_blocks: capacity_bytes / ERASE_BLOCK_BYTES,
                },
                size_bytes: AtomicU64::new(size_bytes),
                growing: Mutex::new(()),
            }),
            queue_depth: options.queue_depth.clamp(1, 4096).next_power_of_two(),
            fallback_reason,
        })
    }

    /// How the file is reached: `Direct` or `Buffered`.
    pub fn io_mode(&self) -> IoMode {
        self.device.io
    }

    /// Why `IoMode::Auto` came to be `Buffered`.
    pub fn fallback_reason(&self) -> Option<&str> {
        self.fallback_reason.as_deref()
    }
}

impl Flash for FileFlash {
    fn name(&self) -> String {
        self.device.path.display().to_string()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry
    }

    fn used_erase_blocks(&self) -> Result<u64> {
        // A block device can't tell what of it was written.
        let size_bytes = self.device.size_bytes.load(Ordering::Acquire);
        Ok(size_bytes
            .div_ceil(ERASE_BLOCK_BYTES)
            .min(self.device.geometry.erase_blocks))
    }

    fn open_queue(&self) -> Result<Box<dyn FlashQueue>> {
        #[cfg(target_os = "linux")]
        if self.device.io == IoMode::Direct {
            return Ok(Box::new(uring::UringQueue::open(
                self.device.clone(),
                self.queue_depth,
            )?));
        }
        Ok(Box::new(buffered::BufferedQueue::new(
            self.device.clone(),
            self.queue_depth,
        )))
    }

    fn sync(&self) -> Result<()> {
        if self.device.read_only || !self.device.durable {
            return Ok(());
        }
        // The size and the extents that reading needs are part of what fdatasync makes durable.
        self.device
            .file
            .sync_data()
            .map_err(|e| failed("syncing", &self.device.path, e))
    }

    fn continues_blocks(&self) -> bool {
        true
    }

    fn health(&self) -> Option<FlashHealth> {
        None
    }
}

impl Device {
    /// Makes sure that the file reaches to `end_bytes`, so that writes up to there do not extend it.
    fn grow(&self, end_bytes: u64) -> Result<()> {
        if self.is_block_device || end_bytes <= self.size_bytes.load(Ordering::Acquire) {
            return Ok(());
        }
        let _growing = self.growing.lock();
        let size_bytes = self.size_bytes.load(Ordering::Acquire);
        if end_bytes <= size_bytes {
            return Ok(());
        }
        let capacity_bytes = self.geometry.pages() * PAGE_SIZE_BYTES as u64;
        let new_size_bytes = end_bytes
            .next_multiple_of(GROWTH_STEP_BYTES)
            .min(capacity_bytes);
        self.file
            .set_len(new_size_bytes)
            .map_err(|e| self.write_failed(new_size_bytes - size_bytes, e))?;
        self.size_bytes.store(new_size_bytes, Ordering::Release);
        Ok(())
    }

    /// Refuses what would change a file that was opened for reading.
    fn check_writable(&self) -> Result<()> {
        if !self.read_only {
            return Ok(());
        }
        let reason = "it was opened for reading only".to_string();
        Err(StorageError::ReadOnly {
            path: self.path.clone(),
            reason,
        })
    }

    fn read_failed(&self, source: io::Error) -> StorageError {
        failed("reading", &self.path, source)
    }

    fn write_failed(&self, needed_bytes: u64, source: io::Error) -> StorageError {
        match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => StorageError::Full {
                device: self.path.display().to_string(),
                needed_bytes,
                free_bytes: free_bytes(&self.path),
            },
            Some(libc::EROFS | libc::EPERM) => StorageError::ReadOnly {
                path: self.path.clone(),
                reason: source.to_string(),
            },
            _ => failed("writing", &self.path, source),
        }
    }

    /// Gives the space of an erase block back, so that it reads as zeros.
    fn erase(&self, offset_bytes: u64) -> Result<()> {
        if offset_bytes >= self.size_bytes.load(Ordering::Acquire) {
            // Behind the end all is zero, and file systems refuse very high offsets.
            return Ok(());
        }
        match punch_hole(&self.file, offset_bytes) {
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                self.erase_by_writing(offset_bytes)
            }
            result => result.map_err(|e| self.write_failed(0, e)),
        }
    }

    /// Clears a block whose hole the file system could not punch: by zeros.
    fn erase_by_writing(&self, offset_bytes: u64) -> Result<()> {
        use std::os::unix::fs::FileExt;
        let zeros = PageBuffer::zeroed();
        let end_bytes =
            (offset_bytes + ERASE_BLOCK_BYTES).min(self.size_bytes.load(Ordering::Acquire));
        for offset_bytes in (offset_bytes..end_bytes).step_by(PAGE_SIZE_BYTES) {
            self.file
                .write_all_at(&zeros, offset_bytes)
                .map_err(|e| self.write_failed(PAGE_SIZE_BYTES as u64, e))?;
        }
        Ok(())
    }
}

fn failed(doing: &str, path: &Path, source: io::Error) -> StorageError {
    StorageError::io(format!("{doing} {}", path.display()), source)
}

/// Makes the names in a folder durable; that of no name is the working directory.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    };
    File::open(folder)?.sync_all()
}

/// Makes a folder with those above it that are missing, durably.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let present = folder.ancestors().find(|folder| folder.exists());
    let present = present.unwrap_or(Path::new("")).to_path_buf();
    std::fs::create_dir_all(folder)?;
    for folder in folder.ancestors() {
        sync_folder(folder)?;
        if folder == present {
            break;
        }
    }
    Ok(())
}

/// Opens the file with additional `flags` of open(2).
fn open_file(path: &Path, options: &FileFlashOptions, flags: i32) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let write = !options.read_only;
    let existed = path.exists();
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .create(write && options.create)
        .custom_flags(flags)
        .open(path)
        .map_err(|e| match (e.kind(), e.raw_os_error()) {
            (io::ErrorKind::NotFound, _) => StorageError::NotFound {
                kind: "flash file",
                name: path.display().to_string(),
            },
            _ if write => StorageError::of_path("opening", path, e),
            _ => failed("opening", path, e),
        })?;
    if !existed && let Some(folder) = path.parent() {
        // The new name must survive a power cut as well as the pages will.
        sync_folder(folder).map_err(|e| failed("syncing", folder, e))?;
    }
    Ok(file)
}

/// Opens the file for direct I/O; the inner error says what is missing for that.
#[cfg(target_os = "linux")]
fn open_direct(path: &Path, options: &FileFlashOptions) -> Result<Result<File, String>> {
    if let Err(error) = io_uring::IoUring::new(2) {
        return Ok(Err(format!("the kernel refuses io_uring ({error})")));
    }
    let file = match open_file(path, options, libc::O_DIRECT) {
        Ok(file) => file,
        Err(StorageError::Io { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
            return Ok(Err("the file system has no direct I/O".to_string()));
        }
        Err(error) => return Err(error),
    };
    // Some file systems accept the flag and refuse the reads; some devices want an alignment
    // beyond ours.
    use std::os::unix::fs::FileExt;
    match file.read_at(&mut PageBuffer::recycled(), 0) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(Err(
            "the device refuses direct I/O in units of 4 KiB".to_string(),
        )),
        Err(error) => Err(failed("reading", path, error)),
        Ok(_) => Ok(Ok(file)),
    }
}

#[cfg(not(target_os = "linux"))]
fn open_direct(_: &Path, _: &FileFlashOptions) -> Result<Result<File, String>> {
    Ok(Err("direct I/O is built for Linux only".to_string()))
}

fn block_device_size_bytes(mut file: &File) -> io::Result<u64> {
    use std::io::{Seek, SeekFrom};
    file.seek(SeekFrom::End(0))
}

/// Bytes that the file system of `path` could still take, for messages.
fn free_bytes(path: &Path) -> u64 {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return 0;
    };
    // SAFETY: `statvfs` is plain data for which zeros are valid; the call writes only to it and
    // reads a string that ends with a zero.
    unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        match libc::statvfs(path.as_ptr(), &mut stat) {
            0 => stat.f_bavail as u64 * stat.f_frsize as u64,
            _ => 0,
        }
    }
}

/// Clears what a read did not reach.
fn zero_from(buffers: &mut [PageBuffer], from_bytes: usize) {
    for (index, buffer) in buffers
        .iter_mut()
        .enumerate()
        .skip(from_bytes / PAGE_SIZE_BYTES)
    {
        buffer[from_bytes.saturating_sub(index * PAGE_SIZE_BYTES)..].fill(0);
    }
}

#[cfg(target_os = "linux")]
fn punch_hole(file: &File, offset_bytes: u64) -> io::Result<()> {
    // SAFETY: the call touches no memory.
    let result = unsafe {
        libc::fallocate64(
            file.as_raw_fd(),
            PUNCH_HOLE,
            offset_bytes as i64,
            ERASE_BLOCK_BYTES as i64,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(not(target_os = "linux"))]
fn punch_hole(_: &File, _: u64) -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP))
}

#[cfg(target_os = "linux")]
const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_writing_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("card0.flash");
        let flash = FileFlash::open(&path, FileFlashOptions::default()).unwrap();
        let failed = |code| {
            flash
                .device
                .write_failed(8192, io::Error::from_raw_os_error(code))
        };
        for code in [libc::ENOSPC, libc::EDQUOT, libc::EFBIG] {
            let error = failed(code);
            assert!(
                matches!(
                    &error,
                    StorageError::Full {
                        needed_bytes: 8192,
                        free_bytes: 1..,
                        ..
                    }
                ),
                "{error}"
            );
        }
        assert!(
            matches!(failed(libc::EROFS), StorageError::ReadOnly { path: named, .. } if named == path)
        );
        assert!(failed(libc::EIO).to_string().contains("card0.flash"));
    }
}
