//! The catalog as the head has it: what the group agreed on, and over it what it was not yet asked
//! about.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use flashmesh_pages::{Result, StorageError};
use flashmesh_storage::table::{CatalogStore, Overlay};
use openraft::Raft;
use parking_lot::{Condvar, Mutex};
use redb::StorageBackend;
use tokio::sync::Notify;

use super::entry::{Change, FileWrite, Part, Types};
use super::files::Files;
use super::role::Lease;
use crate::copies::CopyFile;
use crate::sealed::Body;

/// An entry takes no further writes when it has so many bytes.
const BATCH_BYTES: usize = 256 << 10;
/// A write of more bytes is several entries.
const MOST_WRITE_BYTES: usize = 256 << 10;
/// Writes that wait; who writes more waits as well.
const MOST_WAITING_BYTES: usize = 32 << 20;

/// What the head holds while it is the head: its term, and the files of the catalog.
#[derive(Debug)]
pub struct Office {
    term: u64,
    lease: Arc<Lease>,
    files: Arc<Vec<Arc<Overlay>>>,
    journal: Arc<Journal>,
}

/// Writes that go to the group, in their order.
#[derive(Debug, Default)]
struct Journal {
    waiting: Mutex<Waiting>,
    /// There may be a batch to take.
    ready: Notify,
    /// Something was settled, or has failed.
    progress: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    batches: VecDeque<Batch>,
    /// Of the last batch.
    turn: u64,
    /// The last turn that somebody waits for, and the last one that the group has.
    wanted: u64,
    settled: u64,
    bytes: usize,
    failure: Option<String>,
}

#[derive(Debug)]
struct Batch {
    turn: u64,
    bytes: usize,
    writes: Vec<FileWrite>,
}

impl Waiting {
    fn check(&self) -> io::Result<()> {
        match &self.failure {
            None => Ok(()),
            Some(why) => Err(io::Error::other(why.clone())),
        }
    }
}

impl Journal {
    /// Takes a write, of whose turn `note` is told before another one comes.
    fn push(&self, write: FileWrite, note: impl FnOnce(u64) -> io::Result<()>) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        while waiting.bytes > MOST_WAITING_BYTES && waiting.failure.is_none() {
            self.progress.wait(&mut waiting);
        }
        waiting.check()?;
        let bytes = write.bytes.as_ref().map_or(0, Vec::len);
        let is_full = |batch: &Batch| batch.bytes >= BATCH_BYTES;
        if waiting.batches.back().is_none_or(is_full) {
            waiting.turn += 1;
            let turn = waiting.turn;
            waiting.batches.push_back(Batch {
                turn,
                bytes: 0,
                writes: Vec::new(),
            });
        }
        note(waiting.turn)?;
        waiting.bytes += bytes;
        let is_more = waiting.batches.len() > 1;
        if let Some(batch) = waiting.batches.back_mut() {
            batch.bytes += bytes;
            batch.writes.push(write);
        }
        drop(waiting);
        if is_more {
            self.ready.notify_one();
        }
        Ok(())
    }

    /// [`Journal::sync`] for tasks.
    #[cfg(test)]
    async fn synced(&self) -> io::Result<()> {
        let turn = {
            let mut waiting = self.waiting.lock();
            waiting.wanted = waiting.turn;
            waiting.turn
        };
        self.ready.notify_one();
        loop {
            {
                let waiting = self.waiting.lock();
                waiting.check()?;
                if waiting.settled >= turn {
                    return Ok(());
                }
            }
            crate::mesh::clock::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Waits until the group has all that was written.
    fn sync(&self) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        let turn = waiting.turn;
        waiting.wanted = waiting.wanted.max(turn);
        self.ready.notify_one();
        while waiting.settled < turn {
            waiting.check()?;
            self.progress.wait(&mut waiting);
        }
        waiting.check()
    }

    /// The next batch to ask the group about: one that somebody waits for, or that takes no more.
    async fn next(&self) -> Option<Batch> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if waiting.failure.is_some() {
                    return None;
                }
                let is_more = waiting.batches.len() > 1;
                let wanted = waiting.wanted;
                let is_due = |batch: &mut Batch| is_more || batch.turn <= wanted;
                if let Some(batch) = waiting.batches.pop_front_if(is_due) {
                    return Some(batch);
                }
            }
            self.ready.notified().await;
        }
    }

    fn settled(&self, batch: &Batch) {
        let mut waiting = self.waiting.lock();
        waiting.settled = batch.turn;
        waiting.bytes -= batch.bytes;
        self.progress.notify_all();
    }

    fn fail(&self, why: String) {
        let mut waiting = self.waiting.lock();
        waiting.failure.get_or_insert(why);
        self.progress.notify_all();
        self.ready.notify_one();
    }
}

/// A file as the database has it.
#[derive(Debug)]
pub(super) struct OfficeFile {
    part: Part,
    overlay: Arc<Overlay>,
    journal: Arc<Journal>,
}

impl OfficeFile {
    fn write_part(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let write = FileWrite {
            part: self.part,
            at,
            bytes: Some(bytes.to_vec()),
        };
        let note = |turn| self.overlay.write(at, bytes, turn);
        self.journal.push(write, note)
    }
}

impl StorageBackend for OfficeFile {
    fn len(&self) -> io::Result<u64> {
        self.overlay.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.overlay.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let write = FileWrite {
            part: self.part,
            at: len,
            bytes: None,
        };
        self.journal
            .push(write, |turn| self.overlay.set_len(len, turn))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.journal.sync()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if self.part == Part::Catalog && self.len()? == 0 {
            // A catalog is made as a whole.
            return self.write_part(offset, data);
        }
        let mut at = offset;
        for bytes in data.chunks(MOST_WRITE_BYTES) {
            self.write_part(at, bytes)?;
            at += bytes.len() as u64;
        }
        Ok(())
    }
}

impl Office {
    /// Takes the files as they are, for a head with that term. `ask` them to be agreed on is a task of
    /// its own: [`Office::ask_group`].
    pub(super) fn new(term: u64, files: &Files, lease: Arc<Lease>) -> Self {
        let overlays = Part::ALL.map(|part| Arc::new(Overlay::over(files.part(part))));
        Self {
            term,
            lease,
            files: Arc::new(overlays.into()),
            journal: Arc::default(),
        }
    }

    /// Asks the group about what is written, one batch after the other, until that fails: then it is
    /// another's office.
    pub(super) fn ask_group(&self, raft: Raft<Types>) -> impl Future<Output = ()> + use<> {
        let (journal, files) = (Arc::clone(&self.journal), Arc::clone(&self.files));
        let term = self.term;
        async move {
            while let Some(batch) = journal.next().await {
                let asked = raft
                    .client_write(Change::of_writes(term, &batch.writes))
                    .await;
                let refused = match asked {
                    Ok(answer) if answer.data => None,
                    Ok(_) => Some("another node is the head".to_string()),
                    Err(error) => Some(error.to_string()),
                };
                if let Some(why) = refused {
                    journal.fail(format!("the group that keeps the catalog: {why}"));
                    return;
                }
                // The files have it.
                for file in &*files {
                    file.settle(batch.turn);
                }
                journal.settled(&batch);
            }
        }
    }

    /// Nothing more is agreed on: whoever waits fails.
    pub(super) fn close(&self, why: &str) {
        self.journal.fail(why.into());
    }

    /// Greater than that of any head before.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// Which copies of cards lack something.
    ///
    /// # Errors
    /// `Io`, and `Corrupt` for what is damaged.
    pub fn copies_behind(self: &Arc<Self>) -> Result<Arc<CopyFile>> {
        CopyFile::of(Box::new(Arc::clone(self)))
    }

    #[cfg(test)]
    pub(super) async fn synced(&self) -> io::Result<()> {
        self.journal.synced().await
    }

    pub(super) fn file(&self, part: Part) -> OfficeFile {
        OfficeFile {
            part,
            overlay: Arc::clone(&self.files[part as usize]),
            journal: Arc::clone(&self.journal),
        }
    }
}

impl CatalogStore for Office {
    fn catalog(&self) -> Box<dyn StorageBackend> {
        Box::new(self.file(Part::Catalog))
    }

    fn log(&self) -> Box<dyn StorageBackend> {
        Box::new(self.file(Part::Log))
    }

    fn check_current(&self) -> Result<()> {
        match self.lease.holds() {
            true => Ok(()),
            false => Err(StorageError::io(
                "reading the catalog",
                io::Error::other(
                    "the other nodes that keep it are not heard: one of them may be the head",
                ),
            )),
        }
    }
}

/// What is stored in place of another that may be longer: its length goes before it.
pub(super) fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

/// Which copies lack something.
impl Body for Arc<Office> {
    fn load(&self) -> Result<Option<Vec<u8>>> {
        let failed = |error| StorageError::io("reading which copies are behind", error);
        let file = self.file(Part::Behind);
        if file.len().map_err(failed)? == 0 {
            return Ok(None);
        }
        let mut count = [0; 4];
        file.read(0, &mut count).map_err(failed)?;
        let mut body = vec![0; u32::from_le_bytes(count) as usize];
        file.read(4, &mut body).map_err(failed)?;
        Ok(Some(body))
    }

    fn store(&self, body: &[u8]) -> Result<()> {
        let file = self.file(Part::Behind);
        let stored = || {
            // One write, as another part of it may not be there; what is behind it means nothing.
            file.write(0, &framed(body))?;
            file.sync_data()
        };
        stored().map_err(|error| StorageError::io("writing which copies are behind", error))
    }

    fn damaged(&self) -> StorageError {
        StorageError::corrupt("what the catalog's group keeps of copies is damaged")
    }
}
