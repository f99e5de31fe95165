//! Terms: which holder of the catalog may write.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use flashmesh_pages::flash::{make_folder, sync_folder};
use flashmesh_pages::{Result, StorageError};

/// Keeps the greatest term that a node has seen, so that it still refuses lower ones after a
/// restart.
pub trait TermStore: Debug + Send + Sync {
    /// The term that was stored last; 0 if none was.
    fn load(&self) -> Result<u64>;
    /// Stores a term. When it returns, the term is durable; when it fails, the one before still is.
    fn store(&self, term: u64) -> Result<()>;
}

const MAGIC: &[u8; 8] = b"FMTERM\0\x01";
const SIZE: usize = 20;

/// A term in a file of its own, which is replaced as a whole.
#[derive(Debug, Clone)]
pub struct TermFile {
    path: PathBuf,
}

impl TermFile {
    /// In `path`, e.g. beside the cards. The file is made with the first term.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    fn replace(&self, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder();
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

impl TermStore for TermFile {
    fn load(&self) -> Result<u64> {
        let bytes = match fs::read(&self.path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(StorageError::of_path("reading", &self.path, error)),
        };
        decode(&bytes).ok_or_else(|| {
            StorageError::corrupt(format!(
                "{} is not the file of a term; if no other node holds the catalog, it may be removed",
                self.path.display()
            ))
        })
    }

    fn store(&self, term: u64) -> Result<()> {
        let mut bytes = Vec::with_capacity(SIZE);
        bytes.extend(MAGIC);
        bytes.extend(term.to_le_bytes());
        bytes.extend(crc_fast::crc32_iscsi(&bytes).to_le_bytes());
        let replaced = self.replace(&bytes);
        replaced.map_err(|error| StorageError::of_path("writing", &self.path, error))
    }
}

fn decode(bytes: &[u8]) -> Option<u64> {
    let bytes: &[u8; SIZE] = bytes.try_into().ok()?;
    let (body, checksum) = bytes.split_last_chunk::<4>()?;
    let (magic, term) = body.split_last_chunk::<8>()?;
    let is_whole = magic == MAGIC && crc_fast::crc32_iscsi(body) == u32::from_le_bytes(*checksum);
    is_whole.then(|| u64::from_le_bytes(*term))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_there_after_reopening_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deeper/term");
        assert_eq!(TermFile::new(&path).load().unwrap(), 0);
        for term in [1, 7, u64::MAX] {
            TermFile::new(&path).store(term).unwrap();
            assert_eq!(TermFile::new(&path).load().unwrap(), term);
        }
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&path, &damaged).unwrap();
            let error = TermFile::new(&path).load().unwrap_err().to_string();
            assert!(error.contains("deeper/term"), "{error}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(TermFile::new(&path).load().is_err());
        }
    }
}
