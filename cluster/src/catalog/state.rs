//! What the group's entries make: the files of the catalog on this node's disk.
//!
//! Entries are writes of bytes, so applying some of them again, in their order up to the last one,
//! makes the same files. They are therefore written without a sync, and the log is kept from the last
//! point on at which the files were made durable; after a restart the entries behind it are applied
//! again. Nobody reads the files in between: a head takes office when all entries before its own are
//! applied. For the same reason an image for a node that lacks much may be a later one than it is
//! said to be.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flashmesh_pages::{Result, StorageError};
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EmptyNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageIOError, StoredMembership,
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};

use super::entry::{Image, Types};
use super::files::Files;
use super::raft_log::RaftLog;
use super::tasks::block_in_place;

/// What the log knows of the files by this name.
const APPLIED: &str = "applied";
/// Whether an image is being taken over.
const LOADING: &str = "loading";
/// How the names of files begin in which images come.
pub(super) const COMING: &str = "coming-";
/// The image that is being taken over.
const IMAGE_FILE: &str = "image";

type Failure = openraft::StorageError<u64>;

/// How far the files are.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Applied {
    last: Option<LogId<u64>>,
    membership: StoredMembership<u64, EmptyNode>,
    /// Of the last head that took office.
    term: u64,
}

/// The files, and how far they are. Its clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Held(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    log: RaftLog,
    files: Files,
    /// Held while an entry is applied, and for nothing that takes long.
    applied: Mutex<Applied>,
    /// An image that is taken over changes the files while nobody else goes by them.
    image: RwLock<()>,
    /// Bytes of entries that were applied since the files were made durable.
    unsynced: AtomicU64,
}

impl Held {
    /// Opens the files in their folder.
    ///
    /// # Errors
    /// `Io`, `Corrupt`.
    pub fn open(log: RaftLog, files: Files) -> Result<Self> {
        let unreadable = |error: AnyError| StorageError::corrupt(error.to_string());
        let applied: Applied = log.fact(APPLIED).map_err(unreadable)?.unwrap_or_default();
        log.note_durable(applied.last);
        let is_loading = log.fact(LOADING).map_err(unreadable)?.unwrap_or(false);
        // What came before a crash and was not taken over, or was.
        remove_images(files.folder(), is_loading)
            .map_err(|error| StorageError::of_path("cleaning", files.folder(), error))?;
        let this = Self(Arc::new(Shared {
            log,
            files,
            applied: Mutex::new(applied),
            image: RwLock::new(()),
            unsynced: AtomicU64::new(0),
        }));
        if is_loading {
            this.load()
                .map_err(|error| StorageError::io("taking over the catalog", error))?;
        }
        Ok(this)
    }

    pub fn files(&self) -> &Files {
        &self.0.files
    }

    /// The term of the last head that took office; 0 where none has.
    pub fn term(&self) -> u64 {
        self.0.applied.lock().term
    }

    /// Bytes that a restart would apply again.
    pub fn unsynced(&self) -> u64 {
        self.0.unsynced.load(Ordering::Relaxed)
    }

    /// An image and the term from which on entries are to be applied to it. Entries are applied meanwhile, some of
    /// whose bytes are in it then: all of these come again behind it.
    pub fn dump(&self, out: impl io::Write) -> io::Result<u64> {
        let _files = self.0.image.read();
        let term = self.term();
        self.0.files.dump(out)?;
        Ok(term)
    }

    fn image_path(&self) -> PathBuf {
        self.0.files.folder().join(IMAGE_FILE)
    }

    /// Takes over the image that lies there, as the log says.
    fn load(&self) -> io::Result<()> {
        let path = self.image_path();
        self.0.files.load(io::BufReader::new(File::open(&path)?))?;
        self.0.files.sync()?;
        self.0
            .log
            .set_fact(LOADING, &false)
            .map_err(io::Error::other)?;
        std::fs::remove_file(&path)
    }

    /// Whether it was taken: writes of a head that is none any more are not.
    fn apply_entry(&self, entry: Entry<Types>) -> io::Result<bool> {
        let mut is_taken = true;
        let mut applied = self.0.applied.lock();
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                applied.membership = StoredMembership::new(Some(entry.log_id), membership);
            }
            EntryPayload::Normal(change) => {
                is_taken = change.term > applied.term || change.of == applied.term;
                let writes = match is_taken {
                    true => change.writes().map_err(io::Error::other)?,
                    false => Vec::new(),
                };
                for write in writes {
                    self.0.files.apply(&write)?;
                }
                applied.term = applied.term.max(change.term);
                let bytes = change.packed_bytes() as u64;
                self.0.unsynced.fetch_add(bytes, Ordering::Relaxed);
            }
        }
        applied.last = Some(entry.log_id);
        Ok(is_taken)
    }

    /// Applies entries in their order; gives as many answers, or which one failed and why.
    fn apply_all(
        &self,
        entries: impl IntoIterator<Item = Entry<Types>>,
    ) -> Result<Vec<bool>, (LogId<u64>, io::Error)> {
        let apply = |entry: Entry<Types>| {
            let at = entry.log_id;
            self.apply_entry(entry).map_err(|error| (at, error))
        };
        entries.into_iter().map(apply).collect()
    }

    /// Makes the files durable as they are.
    fn settle(&self) -> Result<SnapshotMeta<u64, EmptyNode>, AnyError> {
        let _files = self.0.image.read();
        let unsynced = self.unsynced();
        let applied = self.0.applied.lock().clone();
        // What is applied meanwhile is applied again after a restart, durable or not.
        self.0.files.sync().map_err(|error| AnyError::new(&error))?;
        self.set_applied(&applied, false)?;
        self.0.unsynced.fetch_sub(unsynced, Ordering::Relaxed);
        Ok(meta(&applied))
    }

    fn take_over(
        &self,
        meta: &SnapshotMeta<u64, EmptyNode>,
        path: &Path,
        term: u64,
    ) -> io::Result<()> {
        let _files = self.0.image.write();
        let mut applied = self.0.applied.lock();
        std::fs::rename(path, self.image_path())?;
        flashmesh_pages::flash::sync_folder(self.0.files.folder())?;
        *applied = Applied {
            last: meta.last_log_id,
            membership: meta.last_membership.clone(),
            term,
        };
        // From here on a restart goes on with it.
        self.set_applied(&applied, true).map_err(io::Error::other)?;
        self.0.unsynced.store(0, Ordering::Relaxed);
        self.load()
    }

    fn set_applied(&self, applied: &Applied, is_loading: bool) -> Result<(), AnyError> {
        let (of_files, loading) = ((APPLIED, applied), (LOADING, is_loading));
        self.0.log.set_applied(of_files, loading, applied.last)
    }
}

/// Removes images that came; the one that is to be taken over stays.
fn remove_images(folder: &Path, is_loading: bool) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let came = name.to_string_lossy().starts_with(COMING);
        if came || (name == IMAGE_FILE && !is_loading) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn meta(applied: &Applied) -> SnapshotMeta<u64, EmptyNode> {
    let last = applied.last;
    SnapshotMeta {
        last_log_id: last,
        last_membership: applied.membership.clone(),
        snapshot_id: last.map_or_else(|| "none".into(), |last| last.to_string()),
    }
}

impl RaftSnapshotBuilder<Types> for Held {
    /// Nothing is copied: that is done when a node needs it.
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, Failure> {
        let meta = block_in_place(|| self.settle()).await;
        Ok(Snapshot {
            meta: meta.map_err(StorageIOError::write_state_machine)?,
            snapshot: Box::new(Image::Own),
        })
    }
}

impl RaftStateMachine<Types> for Held {
    type SnapshotBuilder = Self;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, EmptyNode>), Failure> {
        let applied = self.0.applied.lock();
        Ok((applied.last, applied.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<bool>, Failure>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        block_in_place(|| self.apply_all(entries))
            .await
            .map_err(|(at, error)| StorageIOError::apply(at, AnyError::new(&error)).into())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Image>, Failure> {
        Ok(Box::new(Image::Own))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, EmptyNode>,
        image: Box<Image>,
    ) -> Result<(), Failure> {
        let taken = match &*image {
            Image::Own => Ok(()),
            Image::Came { path, term } => {
                block_in_place(|| self.take_over(meta, path, *term)).await
            }
        };
        taken.map_err(|error| StorageIOError::write_state_machine(AnyError::new(&error)).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, Failure> {
        let applied = self.0.applied.lock();
        Ok(applied.last.is_some().then(|| Snapshot {
            meta: meta(&applied),
            snapshot: Box::new(Image::Own),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use openraft::CommittedLeaderId;
    use openraft::storage::RaftLogStorage;
    use tokio::time::timeout;

    use super::*;
    use crate::catalog::entry::{Change, FileWrite, Part};

    /// Takes an image, and applies an entry when it has some bytes of it.
    struct Meanwhile<'a> {
        held: &'a Held,
        entries: Vec<Entry<Types>>,
        image: Vec<u8>,
    }

    impl io::Write for Meanwhile<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let of_entry = !self.entries.is_empty() && !self.image.is_empty();
            if of_entry {
                self.held.apply_entry(self.entries.remove(0))?;
            }
            self.image.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn entry(index: u64, change: Change) -> Entry<Types> {
        Entry {
            log_id: LogId::new(CommittedLeaderId::new(1, 0), index),
            payload: EntryPayload::Normal(change),
        }
    }

    /// A head takes office, a file grows, another becomes shorter, and the next head takes office, each when a
    /// part of the image has been written: with the entries behind it the image makes the same files.
    #[test]
    fn entries_are_applied_while_an_image_is_made_and_again_behind_it() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let open = |folder: &tempfile::TempDir| {
            let log = RaftLog::open(&folder.path().join("group.redb")).unwrap();
            Held::open(log, Files::open(folder.path(), true).unwrap()).unwrap()
        };
        let [held, other] = [open(&folders[0]), open(&folders[1])];
        let write = |part, at, bytes| FileWrite { part, at, bytes };
        let writes = |of, writes: &[FileWrite]| Change::of_writes(of, writes);
        let first = [
            entry(1, Change::of_term(3)),
            entry(
                2,
                writes(
                    3,
                    &[
                        write(Part::Catalog, 0, Some(vec![1; 5_000])),
                        write(Part::Log, 0, Some(vec![2; 5_000])),
                        write(Part::Behind, 0, Some(vec![3; 3_000_000])),
                    ],
                ),
            ),
        ];
        for entry in first {
            held.apply_entry(entry).unwrap();
        }
        let later = vec![
            entry(
                3,
                writes(3, &[write(Part::Catalog, 100, Some(vec![4; 9_000]))]),
            ),
            entry(4, writes(3, &[write(Part::Behind, 1_000, None)])),
            entry(5, Change::of_term(4)),
            // Of a head that is none any more.
            entry(6, writes(3, &[write(Part::Log, 0, Some(vec![5; 10]))])),
            entry(7, writes(4, &[write(Part::Log, 7, Some(vec![6; 10]))])),
        ];
        let mut meanwhile = Meanwhile {
            held: &held,
            entries: later.clone(),
            image: vec![],
        };
        let term = held.dump(&mut meanwhile).unwrap();
        assert_eq!((term, meanwhile.entries.len()), (3, 0));
        let coming = folders[1].path().join("coming-1");
        std::fs::write(&coming, &meanwhile.image).unwrap();
        let last = LogId::new(CommittedLeaderId::new(1, 0), 2);
        let from = SnapshotMeta {
            last_log_id: Some(last),
            ..SnapshotMeta::default()
        };
        other.take_over(&from, &coming, term).unwrap();
        for entry in later {
            other.apply_entry(entry).unwrap();
        }
        let image = |held: &Held| {
            let mut image = Vec::new();
            held.dump(&mut image).unwrap();
            image
        };
        assert!(image(&held) == image(&other));
        assert_eq!(other.term(), 4);
    }

    /// Entries are needed until the files are durable that they made; that these are is known after a
    /// restart as well, when a purge that a crash has left out is done.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_purge_waits_for_the_files_but_not_for_those_of_before_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |index| LogId::new(CommittedLeaderId::new(1, 0), index);
        let open = |is_new| {
            let log = RaftLog::open(&folder.path().join("group.redb")).unwrap();
            let files = Files::open(folder.path(), is_new).unwrap();
            (log.clone(), Held::open(log, files).unwrap())
        };
        let (mut log, held) = open(true);
        held.0.applied.lock().last = Some(at(7));
        tokio::select! {
            biased;
            purged = log.purge(at(7)) => panic!("{purged:?} before the files are durable"),
            () = std::future::ready(()) => {}
        }
        held.settle().unwrap();
        drop((log, held));
        let (mut log, held) = open(false);
        let purged = timeout(Duration::from_secs(30), log.purge(at(7))).await;
        purged.unwrap().unwrap();
        assert_eq!(
            log.get_log_state().await.unwrap().last_purged_log_id,
            Some(at(7))
        );
        drop(held);
        std::fs::remove_file(folder.path().join("commits.log")).unwrap();
        let missing = Files::open(folder.path(), false).unwrap_err().to_string();
        assert!(missing.contains("commits.log"), "{missing}");
    }
}
