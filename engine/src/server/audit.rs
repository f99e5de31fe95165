//! The audit log: who logged in, who was refused, and which statements came to which end. One JSON object
//! a line, in a file of its own that is only ever added to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use parking_lot::Mutex;
use serde::Serialize;

use crate::error::{Error, Result};
use crate::queries::{QueryReport, QueryState};

/// The log.
#[derive(Debug)]
pub(super) struct Audit {
    path: PathBuf,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// The last line was not written: said once.
    has_failed: bool,
}

/// A line. What it does not say is left out.
#[derive(Debug, Serialize)]
pub(super) struct Entry<'a> {
    time: String,
    event: &'static str,
    user: &'a str,
    address: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    statement: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<f64>,
}

impl<'a> Entry<'a> {
    fn new(event: &'static str, user: &'a str, address: &'a str) -> Self {
        Self {
            time: time(SystemTime::now()),
            event,
            user,
            address,
            by: None,
            id: None,
            statement: None,
            state: None,
            error: None,
            rows: None,
            took_ms: None,
        }
    }

    /// Somebody has logged in, `by` a password or a certificate.
    pub fn login(user: &'a str, address: &'a str, by: &'static str) -> Self {
        let by = Some(by);
        Self {
            by,
            ..Self::new("login", user, address)
        }
    }

    /// Somebody has given a wrong name or password.
    pub fn refused(user: &'a str, address: &'a str) -> Self {
        Self::new("login refused", user, address)
    }

    /// A statement has ended.
    pub fn statement(query: &'a QueryReport) -> Self {
        let error = match &query.state {
            QueryState::Failed(error) => Some(error.as_str()),
            _ => None,
        };
        Self {
            time: time(query.asked_at),
            id: Some(query.id),
            statement: Some(&query.sql),
            state: Some(query.state.name()),
            error,
            rows: Some(query.rows),
            took_ms: Some(query.took.as_secs_f64() * 1e3),
            ..Self::new("statement", &query.user, &query.address)
        }
    }
}

fn time(time: SystemTime) -> String {
    DateTime::<Utc>::from(time).to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600).open(path)
}

impl Audit {
    /// Goes on with the log, or begins one that only its owner may read.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = open(path);
        let file =
            file.map_err(|e| Error::io(format!("opening the audit log {}", path.display()), e))?;
        Ok(Self {
            path: path.to_path_buf(),
            open: Mutex::new(Open {
                file,
                has_failed: false,
            }),
        })
    }

    /// Adds a line. A file that was moved away is left alone, and another one begun. What can't be written
    /// is said in the server's own log, once until it can be again.
    pub fn write(&self, entry: &Entry<'_>) {
        let mut open = self.open.lock();
        match self.try_to_write(&mut open, entry) {
            Ok(()) => open.has_failed = false,
            Err(error) if !open.has_failed => {
                open.has_failed = true;
                let path = self.path.display().to_string();
                tracing::error!(%error, path, "the audit log can't be written");
            }
            Err(_) => {}
        }
    }

    fn try_to_write(&self, open: &mut Open, entry: &Entry<'_>) -> io::Result<()> {
        let now = std::fs::metadata(&self.path).map(|file| (file.dev(), file.ino()));
        let ours = open.file.metadata().map(|file| (file.dev(), file.ino()))?;
        if now.map_or(true, |now| now != ours) {
            open.file = self::open(&self.path)?;
        }
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        // As one write, so that the line is whole.
        open.file.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_go_on_where_a_file_was_moved_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let lines = |path: &Path| {
            let text = std::fs::read_to_string(path).unwrap();
            let lines = text.lines().map(|line| {
                let line: serde_json::Value = serde_json::from_str(line).unwrap();
                line["user"].as_str().unwrap().to_string()
            });
            lines.collect::<Vec<_>>()
        };
        let audit = Audit::open(&path).unwrap();
        audit.write(&Entry::login("a\n\"b\"", "here", "password"));
        drop(audit);
        let audit = Audit::open(&path).unwrap();
        audit.write(&Entry::refused("c", "here"));
        assert_eq!(lines(&path), ["a\n\"b\"", "c"]);
        let old = folder.path().join("audit.1");
        std::fs::rename(&path, &old).unwrap();
        audit.write(&Entry::refused("d", "here"));
        assert_eq!(
            (lines(&old).len(), lines(&path)),
            (2, vec!["d".to_string()])
        );
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
