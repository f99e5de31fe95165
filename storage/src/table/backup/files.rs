//! Where backups are kept: a folder here, whatever an engine brings elsewhere.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;

use crate::flash::{make_folder, sync_folder};
use crate::{Result, StorageError};

/// A place for the files of backups: a folder, a bucket. Names have no `/`.
pub trait BackupFiles: Send + Sync {
    /// The names of all files there, with their bytes; none where the place is not there yet.
    ///
    /// # Errors
    /// `Io`, `ReadOnly`.
    fn list(&self) -> Result<Vec<(String, u64)>>;

    /// Bytes of a file.
    ///
    /// # Errors
    /// `NotFound`; `Io` (also when it has fewer bytes).
    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>>;

    /// Makes a file: durably, and whole or not at all.
    ///
    /// # Errors
    /// `AlreadyExists`; `Full`, `Io`, `ReadOnly`.
    fn write(&self, name: &str, bytes: Vec<u8>) -> Result<()>;

    /// Removes a file; it may be gone already.
    ///
    /// # Errors
    /// `Io`, `ReadOnly`.
    fn remove(&self, name: &str) -> Result<()>;

    /// What errors call the place.
    fn name(&self) -> String;
}

/// Ending of the name of a file that is being written.
const UNFINISHED: &str = ".part";

/// A folder of this machine, made when something is written to it.
#[derive(Debug)]
pub struct BackupFolder(PathBuf);

impl BackupFolder {
    /// The folder of that path.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl BackupFiles for BackupFolder {
    fn list(&self) -> Result<Vec<(String, u64)>> {
        let failed = |e| StorageError::of_path("listing", &self.0, e);
        let entries = match fs::read_dir(&self.0) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // What a crash left of a file that was being written is none.
            if !name.ends_with(UNFINISHED) {
                files.push((name, entry.metadata().map_err(failed)?.len()));
            }
        }
        Ok(files)
    }

    fn read(&self, name: &str, range: Range<u64>) -> Result<Vec<u8>> {
        let path = self.path_of(name);
        let failed = |e: std::io::Error| match e.kind() {
            ErrorKind::NotFound => StorageError::NotFound {
                kind: "file",
                name: path.display().to_string(),
            },
            _ => StorageError::of_path("reading", &path, e),
        };
        let mut file = File::open(&path).map_err(failed)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        file.seek(SeekFrom::Start(range.start)).map_err(failed)?;
        file.read_exact(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    fn write(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let path = self.path_of(name);
        let failed = |e: std::io::Error| match e.kind() {
            ErrorKind::AlreadyExists => StorageError::AlreadyExists {
                kind: "file",
                name: path.display().to_string(),
            },
            _ => StorageError::of_path("writing", &path, e),
        };
        make_folder(&self.0).map_err(failed)?;
        let unfinished = self.path_of(&format!("{name}{UNFINISHED}"));
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .open(&unfinished)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            // Unlike a rename this takes the place of nothing.
            match fs::hard_link(&unfinished, &path) {
                Ok(()) => fs::remove_file(&unfinished)?,
                Err(e) if e.kind() == ErrorKind::AlreadyExists || path.exists() => return Err(e),
                // A file system without links.
                Err(_) => fs::rename(&unfinished, &path)?,
            }
            sync_folder(&self.0)
        };
        write().map_err(|error| {
            // It is of no use to anybody.
            let _ = fs::remove_file(&unfinished);
            failed(error)
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        let path = self.path_of(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(StorageError::of_path("removing", &path, e))
            }
            _ => Ok(()),
        }
    }

    fn name(&self) -> String {
        self.0.display().to_string()
    }
}
