//! The group's log on this node's disk, in a `redb` of its own: entries, the vote, and up to where
//! the files of the catalog are durable.

use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use flashmesh_pages::{Result, StorageError};
use flashmesh_storage::table::open_from_disk;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageIOError, Vote,
};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::entry::Types;
use super::tasks::block_in_place;
use crate::mesh::clock::timeout;

const ENTRIES: TableDefinition<u64, &[u8]> = TableDefinition::new("entries");
const FACTS: TableDefinition<&str, &[u8]> = TableDefinition::new("facts");

const VOTE: &str = "vote";
const PURGED: &str = "purged";

/// How long a purge waits until the files are durable that stand for what it removes.
const PURGE_TIME: Duration = Duration::from_secs(60);
/// What is cached of it.
const CACHE_BYTES: usize = 8 << 20;
/// What a follower is sent at once, unless one entry is more.
const MOST_SENT_BYTES: usize = 256 << 10;

type Failure = openraft::StorageError<u64>;

/// The log. Its clones are the same one.
#[derive(Debug, Clone)]
pub(super) struct RaftLog {
    database: Arc<Database>,
    /// The index up to which the files are durable.
    durable: Arc<watch::Sender<u64>>,
}

/// A value and a CRC32C of it.
fn seal(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = postcard::to_allocvec(value).expect("it is plain data");
    bytes.extend(crc_fast::crc32_iscsi(&bytes).to_le_bytes());
    bytes
}

fn unseal<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, AnyError> {
    let damaged = || AnyError::error("a record of the log is damaged");
    let (value, checksum) = bytes.split_last_chunk::<4>().ok_or_else(damaged)?;
    if crc_fast::crc32_iscsi(value) != u32::from_le_bytes(*checksum) {
        return Err(damaged());
    }
    postcard::from_bytes(value).map_err(|error| AnyError::new(&error))
}

fn any(error: impl Into<redb::Error>) -> AnyError {
    AnyError::new(&error.into())
}

impl RaftLog {
    /// Opens the log at `path`, which is made when missing.
    ///
    /// # Errors
    /// `Io`, `InUse` where another process has it, and `Corrupt` for another file.
    pub fn open(path: &Path) -> Result<Self> {
        let mut builder = redb::Builder::new();
        let builder = builder.set_cache_size(CACHE_BYTES);
        let file = open_from_disk(path, true);
        let opened = file.and_then(|file| builder.create_with_backend(file));
        let failed = |error: redb::Error| match error {
            redb::Error::Io(error) => StorageError::of_path("opening", path, error),
            redb::Error::DatabaseAlreadyOpen => StorageError::InUse {
                path: path.to_path_buf(),
            },
            error => StorageError::corrupt(format!(
                "{}: {error}; where the rack's other nodes hold the catalog, its folder may be removed: \
                 the node gets it from them",
                path.display()
            )),
        };
        let this = Self {
            database: Arc::new(opened.map_err(|error| failed(error.into()))?),
            durable: Arc::new(watch::Sender::new(0)),
        };
        let made = || {
            let txn = this.database.begin_write()?;
            txn.open_table(ENTRIES)?;
            txn.open_table(FACTS)?;
            txn.commit()?;
            Ok(())
        };
        made().map_err(failed)?;
        Ok(this)
    }

    /// Something that is kept by its name.
    pub fn fact<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, AnyError> {
        let txn = self.database.begin_read().map_err(any)?;
        let facts = txn.open_table(FACTS).map_err(any)?;
        let found = facts.get(name).map_err(any)?;
        found.map(|bytes| unseal(bytes.value())).transpose()
    }

    /// Keeps something by its name, durably.
    pub fn set_fact(&self, name: &str, value: &impl Serialize) -> Result<(), AnyError> {
        self.set_facts(&[(name, seal(value))])
    }

    /// Keeps how far the files are that are durable, and whether an image has yet to be taken over.
    pub fn set_applied(
        &self,
        applied: (&str, &impl Serialize),
        loading: (&str, bool),
        last: Option<LogId<u64>>,
    ) -> Result<(), AnyError> {
        self.set_facts(&[(applied.0, seal(applied.1)), (loading.0, seal(&loading.1))])?;
        self.note_durable(last);
        Ok(())
    }

    /// The files are durable up to there: entries up to it may be purged.
    pub fn note_durable(&self, last: Option<LogId<u64>>) {
        self.durable.send_replace(last.map_or(0, |last| last.index));
    }

    fn set_facts(&self, values: &[(&str, Vec<u8>)]) -> Result<(), AnyError> {
        self.write(|txn| {
            let mut facts = txn.open_table(FACTS)?;
            for (name, value) in values {
                facts.insert(*name, value.as_slice())?;
            }
            Ok(())
        })
    }

    fn write(
        &self,
        work: impl FnOnce(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), AnyError> {
        let txn = self.database.begin_write().map_err(any)?;
        work(&txn).map_err(any)?;
        txn.commit().map_err(any)
    }

    /// Entries of a range, in order; at least one and then no more than so many bytes.
    fn entries(
        &self,
        range: impl RangeBounds<u64>,
        most_bytes: usize,
    ) -> Result<Vec<Entry<Types>>, AnyError> {
        let txn = self.database.begin_read().map_err(any)?;
        let table = txn.open_table(ENTRIES).map_err(any)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for found in table.range(range).map_err(any)? {
            let (_, value) = found.map_err(any)?;
            bytes += value.value().len();
            if bytes > most_bytes && !entries.is_empty() {
                break;
            }
            entries.push(unseal(value.value())?);
        }
        Ok(entries)
    }

    fn state(&self) -> Result<LogState<Types>, AnyError> {
        let last_purged_log_id = self.fact(PURGED)?;
        let txn = self.database.begin_read().map_err(any)?;
        let table = txn.open_table(ENTRIES).map_err(any)?;
        let last = match table.last().map_err(any)? {
            Some((_, value)) => Some(unseal::<Entry<Types>>(value.value())?.log_id),
            None => last_purged_log_id,
        };
        Ok(LogState {
            last_purged_log_id,
            last_log_id: last,
        })
    }

    fn remove(
        &self,
        range: (Bound<u64>, Bound<u64>),
        purged: Option<LogId<u64>>,
    ) -> Result<(), AnyError> {
        self.write(|txn| {
            let mut table = txn.open_table(ENTRIES)?;
            table.retain_in(range, |_, _| false)?;
            if let Some(purged) = purged {
                let mut facts = txn.open_table(FACTS)?;
                facts.insert(PURGED, seal(&purged).as_slice())?;
            }
            Ok(())
        })
    }
}

fn reading(error: AnyError) -> Failure {
    StorageIOError::read_logs(error).into()
}

fn writing(error: AnyError) -> Failure {
    StorageIOError::write_logs(error).into()
}

impl RaftLogReader<Types> for RaftLog {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> Result<Vec<Entry<Types>>, Failure> {
        block_in_place(|| self.entries(range, usize::MAX))
            .await
            .map_err(reading)
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry<Types>>, Failure> {
        block_in_place(|| self.entries(start..end, MOST_SENT_BYTES))
            .await
            .map_err(reading)
    }
}

impl RaftLogStorage<Types> for RaftLog {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, Failure> {
        block_in_place(|| self.state()).await.map_err(reading)
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), Failure> {
        let saved = block_in_place(|| self.set_fact(VOTE, vote)).await;
        saved.map_err(|error| StorageIOError::write_vote(error).into())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, Failure> {
        let read = block_in_place(|| self.fact(VOTE)).await;
        read.map_err(|error| StorageIOError::read_vote(error).into())
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<Types>) -> Result<(), Failure>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        block_in_place(|| {
            self.write(|txn| {
                let mut table = txn.open_table(ENTRIES)?;
                for entry in entries {
                    table.insert(entry.log_id.index, seal(&entry).as_slice())?;
                }
                Ok(())
            })
        })
        .await
        .map_err(writing)?;
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), Failure> {
        let range = (Bound::Included(log_id.index), Bound::Unbounded);
        block_in_place(|| self.remove(range, None))
            .await
            .map_err(writing)
    }

    /// Where an image came, that is taken over by another task: until then the entries are needed.
    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), Failure> {
        let mut durable = self.durable.subscribe();
        let is_durable = durable.wait_for(|index| *index >= log_id.index);
        if timeout(PURGE_TIME, is_durable).await.is_err() {
            let why = AnyError::error("the catalog's files do not become durable");
            return Err(writing(why));
        }
        let range = (Bound::Unbounded, Bound::Included(log_id.index));
        block_in_place(|| self.remove(range, Some(log_id)))
            .await
            .map_err(writing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_open_is_in_use_and_not_corrupt() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("group.redb");
        let open = RaftLog::open(&path).unwrap();
        let refused = RaftLog::open(&path).map(drop);
        assert!(matches!(refused, Err(StorageError::InUse { .. })));
        drop(open);
        RaftLog::open(&path).unwrap();
    }
}
