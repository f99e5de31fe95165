//! What the group agrees on: writes to the files of the catalog, in their order.

use std::fmt;
use std::path::PathBuf;

use openraft::EmptyNode;
use serde::{Deserialize, Serialize};

// Tests have one with a clock of their own.
#[cfg(test)]
use super::tests::runtime::TestRuntime as RaftRuntime;
#[cfg(not(test))]
use openraft::TokioRuntime as RaftRuntime;

openraft::declare_raft_types!(
    /// The types of the group.
    pub(super) Types: D = Change, R = bool, Node = EmptyNode, SnapshotData = Image,
        AsyncRuntime = RaftRuntime
);

/// The files of the catalog as they travel to a node that lacks what the log has no more.
#[derive(Debug)]
pub(super) enum Image {
    /// Those of this node, of which a copy is made when it is sent.
    Own,
    /// One that came, in a file that was checked.
    Came { path: PathBuf, term: u64 },
}

/// What an entry's writes may take up before they are packed.
const MOST_BYTES: usize = 64 << 20;

/// The files of the catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    /// `redb`'s file.
    Catalog,
    /// The log of commits, whose records are edits of tables.
    Log,
    /// Which copies of cards lack something.
    Behind,
}

impl Part {
    pub const ALL: [Self; 3] = [Self::Catalog, Self::Log, Self::Behind];

    /// The name of its file.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Catalog => "catalog.redb",
            Self::Log => "commits.log",
            Self::Behind => "copies-behind",
        }
    }
}

/// A write to a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileWrite {
    pub part: Part,
    /// Where the bytes go, or the file's new length.
    pub at: u64,
    /// `None`: the length is set.
    #[serde(with = "serde_bytes")]
    pub bytes: Option<Vec<u8>>,
}

/// An entry.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Change {
    /// The term of the head that takes office with this entry; 0: none does.
    pub term: u64,
    /// The term of the head that has written; 0: the catalog is taken over from a head alone.
    pub of: u64,
    /// What the writes take up unpacked.
    bytes: usize,
    /// Writes, packed.
    #[serde(with = "serde_bytes")]
    packed: Vec<u8>,
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "term {}, {} bytes", self.term, self.packed.len())
    }
}

impl Change {
    /// A head takes office.
    pub fn of_term(term: u64) -> Self {
        Self {
            term,
            ..Self::default()
        }
    }

    /// Of these writes of the head of that term.
    pub fn of_writes(of: u64, writes: &[FileWrite]) -> Self {
        // Plain data, into memory: neither fails.
        let bytes = postcard::to_allocvec(writes).expect("it is plain data");
        Self {
            term: 0,
            of,
            bytes: bytes.len(),
            packed: zstd::bulk::compress(&bytes, 1).expect("memory takes all"),
        }
    }

    /// Its writes.
    ///
    /// # Errors
    /// A text, for what no node has written.
    pub fn writes(&self) -> Result<Vec<FileWrite>, String> {
        if self.packed.is_empty() {
            return Ok(Vec::new());
        }
        if self.bytes > MOST_BYTES {
            return Err(format!("an entry of {} bytes", self.bytes));
        }
        let bytes = zstd::bulk::decompress(&self.packed, self.bytes);
        let bytes = bytes.map_err(|e| format!("an entry can't be unpacked: {e}"))?;
        postcard::from_bytes(&bytes).map_err(|e| format!("an entry can't be read: {e}"))
    }

    /// Bytes as it travels, about.
    pub fn packed_bytes(&self) -> usize {
        self.packed.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_come_back_and_what_is_none_is_told() {
        let writes = [
            FileWrite {
                part: Part::Log,
                at: 7,
                bytes: Some(vec![0xff; 100_000]),
            },
            FileWrite {
                part: Part::Behind,
                at: 0,
                bytes: None,
            },
        ];
        let change = Change::of_writes(1, &writes);
        assert!(change.packed_bytes() < 1000);
        assert_eq!(change.writes().unwrap(), writes);
        assert_eq!(Change::of_term(3).writes().unwrap(), []);
        for at in 0..change.packed.len() {
            let mut cut = change.clone();
            cut.packed.truncate(at);
            assert!(at == 0 || cut.writes().is_err());
        }
        let mut long = change;
        long.bytes = usize::MAX;
        assert!(long.writes().is_err());
    }
}
