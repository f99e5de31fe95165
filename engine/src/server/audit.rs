//! The audit log: who logged in, who was refused, and which statements came to which end. One JSON object
//! a line, in a file of its own that is only ever added to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;

use crate::error::{Error, Result};
use crate::queries::{QueryReport, QueryState};

/// Lines that wait to be written; more are lost, and counted: a disk that hangs keeps nobody from anything.
const WAITING: usize = 10_000;

/// The log. A thread of its own writes it.
#[derive(Debug)]
pub(super) struct Audit {
    lines: SyncSender<Message>,
    lost: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    /// All lines before it are written, which is told there.
    Flush(SyncSender<()>),
}

/// What the thread has.
struct Writer {
    path: PathBuf,
    file: File,
    /// The last line was not written, or in part; said once.
    has_failed: bool,
    lost: Arc<AtomicU64>,
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

    /// Somebody was not let in, by that name if they gave one.
    pub fn refused(user: &'a str, address: &'a str, error: &'a str) -> Self {
        let error = Some(error);
        Self {
            error,
            ..Self::new("login refused", user, address)
        }
    }

    /// Somebody has ended a query by the page.
    pub fn kill(user: &'a str, address: &'a str, query: u64) -> Self {
        let id = Some(query);
        Self {
            id,
            ..Self::new("kill", user, address)
        }
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
        let what = format!("opening the audit log {}", path.display());
        let file = open(path).map_err(|e| Error::io(what, e))?;
        let (lines, waiting) = mpsc::sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let mut writer = Writer {
            path: path.to_path_buf(),
            file,
            has_failed: false,
            lost: Arc::clone(&lost),
        };
        // It ends with the last who can send it lines.
        let thread = thread::Builder::new().name("flashmesh-audit".into());
        let thread = thread.spawn(move || writer.run(&waiting));
        thread.map_err(|e| Error::io("starting a thread", e))?;
        Ok(Self { lines, lost })
    }

    /// Adds a line, which is written soon.
    pub fn write(&self, entry: &Entry<'_>) {
        let line = serde_json::to_vec(entry).unwrap_or_default();
        if self.lines.try_send(Message::Line(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what was added is written, for so long at most.
    pub fn flush(&self, patience: Duration) {
        let (sender, done) = mpsc::sync_channel(1);
        if self.lines.try_send(Message::Flush(sender)).is_ok() {
            let _ = done.recv_timeout(patience);
        }
    }
}

impl Writer {
    fn run(&mut self, lines: &Receiver<Message>) {
        while let Ok(message) = lines.recv() {
            match message {
                Message::Line(line) => self.write(&line),
                // Who waits for it may have gone.
                Message::Flush(done) => drop(done.try_send(())),
            }
        }
    }

    /// What can't be written is said in the server's own log, once until it can be again.
    fn write(&mut self, line: &[u8]) {
        let lost = self.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            tracing::error!(lost, "the audit log is too slow, and lacks lines");
        }
        match self.try_to_write(line) {
            Ok(()) => self.has_failed = false,
            Err(error) if !self.has_failed => {
                self.has_failed = true;
                let path = self.path.display().to_string();
                tracing::error!(%error, path, "the audit log can't be written");
            }
            Err(_) => {}
        }
    }

    /// A file that was moved away is left alone, and another one begun.
    fn try_to_write(&mut self, line: &[u8]) -> io::Result<()> {
        let now = std::fs::metadata(&self.path).map(|file| (file.dev(), file.ino()));
        let ours = self.file.metadata().map(|file| (file.dev(), file.ino()))?;
        if now.map_or(true, |now| now != ours) {
            self.file = open(&self.path)?;
        }
        // What was written of the line before ends there. All as one write, so that the line is whole.
        let before: &[u8] = if self.has_failed { b"\n" } else { b"" };
        self.file.write_all(&[before, line, b"\n"].concat())
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
        let flush = |audit: &Audit| audit.flush(Duration::from_secs(60));
        audit.write(&Entry::login("a\n\"b\"", "here", "password"));
        flush(&audit);
        drop(audit);
        let audit = Audit::open(&path).unwrap();
        audit.write(&Entry::refused("c", "here", "no"));
        flush(&audit);
        assert_eq!(lines(&path), ["a\n\"b\"", "c"]);
        let old = folder.path().join("audit.1");
        std::fs::rename(&path, &old).unwrap();
        audit.write(&Entry::refused("d", "here", "no"));
        flush(&audit);
        assert_eq!(
            (lines(&old).len(), lines(&path)),
            (2, vec!["d".to_string()])
        );
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
