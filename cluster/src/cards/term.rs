//! Terms: which holder of the catalog may write.

use std::fmt::Debug;
use std::path::PathBuf;

use flashmesh_pages::Result;

use crate::sealed::{Body, SealedFile};

/// Keeps the greatest term that a node has seen, so that it still refuses lower ones after a
/// restart.
pub trait TermStore: Debug + Send + Sync {
    /// The term that was stored last; 0 if none was.
    fn load(&self) -> Result<u64>;
    /// Stores a term. When it returns, the term is durable; when it fails, the one before still is.
    fn store(&self, term: u64) -> Result<()>;
}

const MAGIC: &[u8; 8] = b"FMTERM\0\x01";

/// A term in a file of its own, which is replaced as a whole.
#[derive(Debug, Clone)]
pub struct TermFile(SealedFile);

impl TermFile {
    /// In `path`, e.g. beside the cards. The file is made with the first term.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(SealedFile::new(path, MAGIC))
    }
}

impl TermStore for TermFile {
    fn load(&self) -> Result<u64> {
        let Some(body) = self.0.load()? else {
            return Ok(0);
        };
        let term = <[u8; 8]>::try_from(body.as_slice()).map(u64::from_le_bytes);
        term.map_err(|_| self.0.damaged())
    }

    fn store(&self, term: u64) -> Result<()> {
        self.0.store(&term.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
