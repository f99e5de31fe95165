//! The crate's error, split by what the caller can do about it.

use std::path::{Path, PathBuf};

use flashmesh_pushdown::ProgramError;

/// `Result` with this crate's error.
pub type Result<T, E = StorageError> = std::result::Result<T, E>;

/// What went wrong in the store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// The bytes on flash are not what was written. Nothing is returned from them; `fsck` lists
    /// all such places, and a restore or reload of the named table is the way out.
    #[error("corrupt: {what}")]
    Corrupt {
        /// Names table, column, segment and page as far as known, and what does not agree.
        what: String,
    },
    /// The request can't be met as it stands; the message says what to change.
    #[error("{0}")]
    Invalid(String),
    /// Whoever asks may not do that; the message says what.
    #[error("denied: {0}")]
    Denied(String),
    /// A user's kernel did not do what it should: it trapped, took too long, asked for too much or
    /// gave what can't be. Only the query that ran it ends.
    #[error("kernel '{kernel}': {reason}")]
    Kernel {
        /// Its name.
        kernel: String,
        /// What happened, and the way out.
        reason: String,
    },
    /// The named thing does not exist.
    #[error("{kind} '{name}' does not exist")]
    NotFound {
        /// "table", "database", …
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// The named thing exists already.
    #[error("{kind} '{name}' already exists")]
    AlreadyExists {
        /// "table", "schema", …
        kind: &'static str,
        /// Its name.
        name: String,
    },
    /// Another process has the database open.
    #[error("database {path:?} is in use by another process; close it there, or open a copy")]
    InUse {
        /// The database's folder.
        path: PathBuf,
    },
    /// An error left open what is durable. Nothing more is written, so that the next opening finds
    /// one version whole.
    #[error("{what}; close the database and open it again, nothing is written before that")]
    NeedsReopening {
        /// What happened.
        what: String,
    },
    /// Written by a newer flashmesh.
    #[error(
        "database {path:?} has format {found}, this flashmesh reads formats up to {supported}; open it with a newer flashmesh"
    )]
    NewerFormat {
        /// The database's folder.
        path: PathBuf,
        /// Its format number.
        found: u32,
        /// The newest that this build reads.
        supported: u32,
    },
    /// A write to a database that was opened for reading.
    #[error("database {path:?} is read-only: {reason}")]
    ReadOnly {
        /// The database's folder.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Two rows of one key in a unique index.
    #[error(
        "two rows have the key ({columns}){values}, which {index} of table '{table}' forbids; nothing was stored"
    )]
    DuplicateKey {
        /// The names of the key's columns.
        columns: String,
        /// Their values, as ` = (…)`; empty for whom they are not.
        values: String,
        /// Which index.
        index: String,
        /// The table.
        table: String,
    },
    /// Another commit came first; nothing of this one was stored.
    #[error(
        "another statement has changed {rows} of table '{table}' meanwhile; run this one again"
    )]
    Conflict {
        /// Which: `rows`, or one by its primary key, where that is known.
        rows: String,
        /// The table.
        table: String,
    },
    /// The device or its limit is full; what was committed is untouched.
    #[error(
        "no room on {device}: {needed_bytes} bytes needed, {free_bytes} free; drop tables, raise the limit or add space"
    )]
    Full {
        /// Which device.
        device: String,
        /// Asked for.
        needed_bytes: u64,
        /// Left.
        free_bytes: u64,
    },
    /// The caller wished it to end before it was done.
    #[error("cancelled")]
    Cancelled,
    /// An operation of the operating system failed; trying again may help.
    #[error("{action}: {source}")]
    Io {
        /// What was being done, with the path.
        action: String,
        /// The system's word.
        source: std::io::Error,
    },
    /// The Program was refused or failed.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// The catalog's embedded store failed.
    #[error("catalog: {0}")]
    Catalog(String),
    /// An Arrow kernel failed on values that the Program computed.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
}

impl StorageError {
    /// An [`StorageError::Io`] with what was being done.
    pub fn io(action: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            action: action.into(),
            source,
        }
    }

    /// What it means that `action` failed on `path`: read-only media and full disks say so
    /// themselves.
    pub fn of_path(action: &str, path: &Path, source: std::io::Error) -> Self {
        use std::io::ErrorKind;
        match source.kind() {
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Self::ReadOnly {
                path: path.to_path_buf(),
                reason: source.to_string(),
            },
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Self::Full {
                    device: path.display().to_string(),
                    needed_bytes: 0,
                    free_bytes: 0,
                }
            }
            _ => Self::io(format!("{action} {}", path.display()), source),
        }
    }

    /// The same error without values of rows.
    #[must_use]
    pub fn without_values(self) -> Self {
        match self {
            Self::DuplicateKey {
                columns,
                index,
                table,
                ..
            } => Self::DuplicateKey {
                columns,
                values: String::new(),
                index,
                table,
            },
            other => other,
        }
    }

    /// What is wrong, to stand in a message about damage.
    pub fn damage(self) -> String {
        match self {
            Self::Corrupt { what } => what,
            other => other.to_string(),
        }
    }

    /// Whether it says that a device or a node is not there, or is another one than was opened.
    pub fn is_gone(&self) -> bool {
        use std::io::ErrorKind::{ConnectionAborted, ConnectionReset, NotConnected, TimedOut};
        let Self::Io { source, .. } = self else {
            return false;
        };
        matches!(
            source.kind(),
            ConnectionAborted | ConnectionReset | NotConnected | TimedOut
        )
    }

    /// A [`StorageError::Corrupt`] with what does not agree.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }
}
