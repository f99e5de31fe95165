//! Small files that say one thing, which are replaced as a whole.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flashmesh_pages::flash::{make_folder, sync_folder};
use flashmesh_pages::{Result, StorageError};

/// Keeps one thing, which is replaced as a whole.
pub(crate) trait Body: std::fmt::Debug + Send + Sync {
    /// What was stored last; `None` where nothing was.
    ///
    /// # Errors
    /// `Io`, and `Corrupt` for what is damaged.
    fn load(&self) -> Result<Option<Vec<u8>>>;

    /// Replaces it. When it returns, that is durable; when it fails, the one before still is.
    ///
    /// # Errors
    /// `Io`.
    fn store(&self, body: &[u8]) -> Result<()>;

    /// What is said of one that does not say what it should.
    fn damaged(&self) -> StorageError;
}

/// A file of eight bytes that say what it is, a body, and a CRC32C of both.
#[derive(Debug, Clone)]
pub(crate) struct SealedFile {
    path: PathBuf,
    magic: &'static [u8; 8],
}

impl SealedFile {
    pub fn new(path: impl Into<PathBuf>, magic: &'static [u8; 8]) -> Self {
        let path = path.into();
        Self { path, magic }
    }

    fn open<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let (sealed, checksum) = bytes.split_last_chunk::<4>()?;
        let is_whole = crc_fast::crc32_iscsi(sealed) == u32::from_le_bytes(*checksum);
        sealed.strip_prefix(self.magic).filter(|_| is_whole)
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.path.parent().unwrap_or(Path::new(""));
        if !folder.as_os_str().is_empty() {
            make_folder(folder)?;
        }
        let mut name = self.path.as_os_str().to_owned();
        name.push(".new");
        let mut file = File::create(&name)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&name, &self.path)?;
        sync_folder(folder)
    }
}

impl Body for SealedFile {
    fn load(&self) -> Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Ok(bytes) => Ok(Some(
                self.open(&bytes).ok_or_else(|| self.damaged())?.into(),
            )),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(StorageError::of_path("reading", &self.path, error)),
        }
    }

    fn damaged(&self) -> StorageError {
        StorageError::corrupt(format!(
            "{} is damaged, or another file; where no other node holds the catalog, and all copies of \
             cards have what they should, it may be removed",
            self.path.display()
        ))
    }

    fn store(&self, body: &[u8]) -> Result<()> {
        let mut bytes = [self.magic, body].concat();
        bytes.extend(crc_fast::crc32_iscsi(&bytes).to_le_bytes());
        let replaced = self.replace(&bytes);
        replaced.map_err(|error| StorageError::of_path("writing", &self.path, error))
    }
}
