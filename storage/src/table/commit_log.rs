//! The log: a file in which a commit is durable before the catalog has it.
//!
//! A record is an edit and the pages that it names and no card has. Records of commits that meet are
//! written and synced together. When the catalog has taken over what the log holds, the log begins
//! anew at its start, over the records that were there: they are told by their numbers, which only
//! grow. The file keeps its size, so that syncing a record writes nothing but that.
//!
//! A record that a crash has torn ends the log, as it was acknowledged to nobody; what lies behind it
//! of the same write stays out for good, as the records of a later opening carry a greater number of
//! that. Each record says which one before it was durable when it was written, so that damage to one
//! that was acknowledged is told from that as soon as there is another one behind it.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

use prost::Message;
use redb::StorageBackend;
use redb::backends::FileBackend;

use crate::flash::PageBuffer;
use crate::store::{MEMORY_CARD, PageAddress, PageRun, PageStore};
use crate::table::catalog::read_from_disk;
use crate::table::edit::{Operation, TableEdit};
use crate::{Result, StorageError};

/// What a log may grow to before the catalog takes it over.
pub(super) const CAPACITY_BYTES: u64 = 32 << 20;
/// Steps in which it grows to that.
const STEPS: u64 = 32;
/// Length, checksum, number, number of the last durable record, number of the opening.
const HEADER_BYTES: usize = 4 + 4 + 8 + 8 + 8;
/// Records begin at multiples of it.
const ALIGN_BYTES: usize = 8;
/// What the file is filled with where no record was yet.
const FILLER: u8 = 0xff;

/// A commit, as the log keeps it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LogRecord {
    #[prost(message, required, tag = "1")]
    pub edit: TableEdit,
    #[prost(message, repeated, tag = "2")]
    pub pages: Vec<LoggedPage>,
}

/// A page that is in memory.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LoggedPage {
    #[prost(uint64, tag = "1")]
    pub page: u64,
    /// Without the zeros at its end.
    #[prost(bytes = "vec", tag = "2")]
    pub bytes: Vec<u8>,
}

/// What the file holds behind what the catalog has.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub records: Vec<LogRecord>,
    /// Number of the last one, or of the last that the catalog has.
    pub last: u64,
    /// Where the next one goes.
    pub end: u64,
}

impl Found {
    /// Puts the pages of these runs into memory.
    ///
    /// # Errors
    /// `Corrupt` when the log lacks one, or has another one.
    pub fn restore(&self, store: &PageStore, runs: &[&PageRun]) -> Result<()> {
        let pages = self.records.iter().flat_map(|record| &record.pages);
        let pages: HashMap<u64, &[u8]> = pages.map(|p| (p.page, p.bytes.as_slice())).collect();
        for run in runs {
            let first = run.first.page.0;
            let numbers = first..first.saturating_add(u64::from(run.count));
            let buffers = numbers.filter_map(|page| {
                let bytes = pages.get(&page)?;
                let mut buffer = PageBuffer::zeroed();
                buffer.get_mut(..bytes.len())?.copy_from_slice(bytes);
                Some(buffer)
            });
            store.restore(run, buffers.collect())?;
        }
        Ok(())
    }
}

/// The file.
#[derive(Debug)]
pub(super) struct Log {
    file: Box<dyn StorageBackend>,
    path: PathBuf,
    capacity: u64,
}

/// Bytes of a record in the file.
pub(super) fn framed_bytes(message: &[u8]) -> u64 {
    (HEADER_BYTES + message.len()).next_multiple_of(ALIGN_BYTES) as u64
}

/// What tells a record from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Numbers {
    /// Its own, one more than that of the record before it.
    pub record: u64,
    /// Of the last record that was durable when it was made.
    pub durable: u64,
    /// Of the opening of the database in which it was written: greater than that of any before.
    pub opening: u64,
}

/// Appends a record, as the file has it, to `records`.
pub(super) fn frame(message: &[u8], numbers: Numbers, records: &mut Vec<u8>) {
    let start = records.len();
    records.extend((message.len() as u32).to_le_bytes());
    records.extend([0; 4]);
    for number in [numbers.record, numbers.durable, numbers.opening] {
        records.extend(number.to_le_bytes());
    }
    records.extend(message);
    let checksum = checksum(&records[start..]);
    records[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    records.resize(records.len().next_multiple_of(ALIGN_BYTES), 0);
}

/// Of a record without what fills it up, but for the checksum itself.
fn checksum(record: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(&record[0..4]);
    digest.update(&record[8..]);
    digest.finalize() as u32
}

/// A sound record at the beginning of bytes: its numbers, its message, and its bytes in the file.
struct Sound<'a> {
    number: u64,
    opening: u64,
    message: &'a [u8],
    bytes: usize,
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let number = bytes.get(at..at + 8)?.try_into();
    number.ok().map(u64::from_le_bytes)
}

fn sound_record(bytes: &[u8]) -> Option<Sound<'_>> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let end = HEADER_BYTES.checked_add(u32_at(0)? as usize)?;
    let record = bytes.get(..end)?;
    (checksum(record) == u32_at(4)?).then_some(())?;
    Some(Sound {
        number: u64_at(bytes, 8)?,
        opening: u64_at(bytes, 24)?,
        message: &record[HEADER_BYTES..],
        bytes: end.next_multiple_of(ALIGN_BYTES),
    })
}

impl Log {
    /// Opens the log at `path`.
    ///
    /// # Errors
    /// `Io`, `ReadOnly`.
    pub fn open(path: &Path, read_only: bool) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(!read_only).open(path);
        let file = file.map_err(|e| StorageError::of_path("opening", path, e))?;
        read_from_disk(&file);
        let file = FileBackend::new(file).map_err(|e| {
            StorageError::Invalid(format!("{}: it can't be opened: {e}", path.display()))
        })?;
        Ok(Self::new(path, file, CAPACITY_BYTES))
    }

    /// The log in a file that may grow to `capacity` bytes.
    pub fn new(path: &Path, file: impl StorageBackend, capacity: u64) -> Self {
        Self::boxed(path, Box::new(file), capacity)
    }

    /// [`Log::new`] in a file of any kind.
    pub fn boxed(path: &Path, file: Box<dyn StorageBackend>, capacity: u64) -> Self {
        Self {
            capacity,
            file,
            path: path.to_path_buf(),
        }
    }

    /// Bytes that it may grow to.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Reads the records behind `known`, the last one that the catalog has.
    ///
    /// # Errors
    /// `Io`; `Corrupt` when a record is damaged that was acknowledged.
    pub fn read(&self, known: u64) -> Result<Found> {
        let failed = |e| self.failed("reading", e);
        let size = self.file.len().map_err(failed)?.min(self.capacity);
        let mut bytes = vec![0; size as usize];
        if !bytes.is_empty() {
            self.file.read(0, &mut bytes).map_err(failed)?;
        }
        let mut found = Found {
            last: known,
            ..Found::default()
        };
        let (mut place, mut before) = (0, None);
        if let Some(record) = sound_record(&bytes)
            && record.number > known.saturating_add(1)
        {
            return Err(self.damaged(&format!(
                "it begins with record {}, but the catalog has those up to {known} alone",
                record.number
            )));
        }
        while let Some(record) = bytes.get(place..).and_then(sound_record)
            && before.is_none_or(|(number, opening): (u64, u64)| {
                number.checked_add(1) == Some(record.number) && opening <= record.opening
            })
        {
            before = Some((record.number, record.opening));
            if record.number > known {
                let decoded = LogRecord::decode(record.message);
                found.records.push(decoded.map_err(|e| {
                    self.damaged(&format!("record {} does not decode: {e}", record.number))
                })?);
                found.last = record.number;
            }
            place += record.bytes;
        }
        if !found.records.is_empty() {
            found.end = place as u64;
        }
        self.check_end(&bytes, place, found.last)?;
        Ok(found)
    }

    /// No record behind the end may know of a later one that was durable.
    fn check_end(&self, bytes: &[u8], end: usize, last: u64) -> Result<()> {
        let later = last + 1..=last + self.capacity / HEADER_BYTES as u64;
        for place in (end..bytes.len()).step_by(ALIGN_BYTES) {
            let bytes = &bytes[place..];
            // Few places look like the beginning of such a record, and only these are summed up.
            if u64_at(bytes, 8).is_some_and(|number| later.contains(&number))
                && u64_at(bytes, 16).is_some_and(|durable| later.contains(&durable))
                && let Some(record) = sound_record(bytes)
            {
                return Err(self.damaged(&format!(
                    "record {} is damaged, which record {} says was durable",
                    last + 1,
                    record.number
                )));
            }
        }
        Ok(())
    }

    /// Makes durable what was read up to `end`: an earlier process may have written it and not synced
    /// it.
    ///
    /// # Errors
    /// `Io`.
    pub fn settle(&self, end: u64) -> Result<()> {
        if end == 0 {
            return Ok(());
        }
        let mut records = vec![0; end as usize];
        let read = self.file.read(0, &mut records);
        read.map_err(|e| self.failed("reading", e))?;
        // A failed sync leaves pages behind that no later one writes.
        self.write(0, &records)
    }

    /// Makes room for bytes up to `end`.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub fn make_room(&self, end: u64) -> Result<()> {
        let failed = |e| self.failed("writing", e);
        let mut size = self.file.len().map_err(failed)?;
        while size < end {
            let step = self.capacity.div_ceil(STEPS);
            let next = (size / step + 1) * step;
            self.file.set_len(next).map_err(failed)?;
            let filler = vec![FILLER; (next - size) as usize];
            if let Err(error) = self.file.write(size, &filler) {
                // What is there of the room is taken away: a hole would take it when it is used.
                let _ = self.file.set_len(size);
                return Err(failed(error));
            }
            size = next;
        }
        Ok(())
    }

    /// Gives the room back that it has, when nothing is in it that the catalog lacks.
    pub fn shrink(&self) -> Result<()> {
        self.file.set_len(0).map_err(|e| self.failed("writing", e))
    }

    /// Makes records durable, at a place where there is room.
    ///
    /// # Errors
    /// `Io`: nobody knows whether they are.
    pub fn write(&self, place: u64, records: &[u8]) -> Result<()> {
        let written = self.file.write(place, records);
        let synced = written.and_then(|()| self.file.sync_data());
        synced.map_err(|e| self.failed("writing", e))
    }

    /// Writes a record to the start, which is durable with the next one.
    ///
    /// # Errors
    /// `Full`, `Io`.
    pub fn write_unsynced(&self, record: &[u8]) -> Result<()> {
        self.make_room(record.len() as u64)?;
        let written = self.file.write(0, record);
        written.map_err(|e| self.failed("writing", e))
    }

    fn failed(&self, doing: &str, error: io::Error) -> StorageError {
        StorageError::of_path(doing, &self.path, error)
    }

    fn damaged(&self, what: &str) -> StorageError {
        StorageError::corrupt(format!(
            "{}: {what}; restore it, or the database from a copy",
            self.path.display()
        ))
    }
}

#[cfg(test)]
mod tests;

/// The runs of pages in memory that an edit names for the first time.
pub(super) fn memory_runs(edit: &TableEdit) -> Vec<(PageAddress, u32)> {
    let mut runs = Vec::new();
    for operation in edit.operations() {
        match operation {
            Operation::PutSegment(put) => runs.extend(put.record.runs()),
            Operation::ReplaceSegments(replace) => {
                runs.extend(replace.put.iter().flat_map(|put| put.record.runs()));
            }
            Operation::PutPart(put) => runs.extend(put.record.runs()),
            _ => {}
        }
    }
    runs.retain(|(first, _)| first.card == MEMORY_CARD);
    runs
}
