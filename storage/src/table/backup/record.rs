//! The records of a backup: what a database held, and in which files its pages are.

use std::collections::{BTreeMap, HashMap};

use prost::Message;

use super::files::BackupFiles;
use crate::flash::PAGE_SIZE_BYTES;
use crate::segment::Chunk;
use crate::store::PageRun;
use crate::table::TableSnapshot;
use crate::table::edit::TableEdit;
use crate::table::manifest::{seal, unseal};
use crate::{Result, StorageError};

/// What the name of a backup's own file starts with; its number follows.
pub(super) const BACKUP_PREFIX: &str = "backup-";
/// What the name of a file of pages starts with; the number of the backup that wrote it follows.
pub(super) const PACK_PREFIX: &str = "pages-";
/// The format of backups that this build writes, and the newest that it reads.
const BACKUP_FORMAT: u32 = 2;
/// That of backups without accounts, which earlier builds read.
const FORMAT_WITHOUT_ACCOUNTS: u32 = 1;
/// What a backup's own file starts with; the format follows (u32), then the sealed record.
const MAGIC: [u8; 8] = *b"FMBACKUP";

/// A backup.
#[derive(Clone, PartialEq, Message)]
pub(super) struct BackupRecord {
    /// The database's own name: 16 random bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub database: Vec<u8>,
    /// Counts the backups of a place from 1 on.
    #[prost(uint32, tag = "2")]
    pub number: u32,
    /// When its version of the database was taken: microseconds since 1970.
    #[prost(uint64, tag = "3")]
    pub taken_at_us: u64,
    /// All that the database held, as an edit of an empty one. Where pages are is where they were.
    #[prost(message, required, tag = "4")]
    pub whole: TableEdit,
    /// The files that its pages are in.
    #[prost(message, repeated, tag = "5")]
    pub packs: Vec<PackRecord>,
    #[prost(message, repeated, tag = "6")]
    pub pieces: Vec<PieceRecord>,
    /// Pages that it has, and those that it wrote.
    #[prost(uint64, tag = "7")]
    pub pages: u64,
    #[prost(uint64, tag = "8")]
    pub new_pages: u64,
    /// How many numbers its sequences have given or may have, by their own.
    #[prost(btree_map = "uint32, uint64", tag = "9")]
    pub sequences: BTreeMap<u32, u64>,
}

/// A file of pages, one after the other as they were on flash.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PackRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub pages: u64,
}

/// Where the pages of a segment, or of a part of an index, are.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PieceRecord {
    #[prost(uint32, tag = "1")]
    pub table: u32,
    #[prost(bool, tag = "2")]
    pub is_part: bool,
    #[prost(uint32, tag = "3")]
    pub number: u32,
    #[prost(uint32, tag = "4")]
    pub generation: u32,
    /// For each of its runs, in the order of [`Piece::runs`], which of the packs it is in · 2^32 +
    /// its first page there.
    #[prost(uint64, repeated, tag = "5")]
    pub places: Vec<u64>,
}

/// What a segment or a part is, over all the life of a database: no two of them are of one table,
/// number and generation, and their pages never change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PieceKey {
    pub table: u32,
    pub is_part: bool,
    pub number: u32,
    pub generation: u32,
}

impl PieceRecord {
    pub fn key(&self) -> PieceKey {
        PieceKey {
            table: self.table,
            is_part: self.is_part,
            number: self.number,
            generation: self.generation,
        }
    }
}

/// A segment or a part of an index with its pages.
pub(super) struct Piece<'a> {
    pub key: PieceKey,
    pub runs: Vec<&'a PageRun>,
}

impl<'a> Piece<'a> {
    /// All that have pages of a version of a table.
    pub fn all_of(table: &'a TableSnapshot) -> impl Iterator<Item = Self> {
        let key = |is_part, number, generation| PieceKey {
            table: table.id.0,
            is_part,
            number,
            generation,
        };
        let segments = table.segments.iter().map(move |segment| Self {
            key: key(false, segment.id.0, segment.generation),
            runs: segment.chunks.iter().flat_map(Chunk::runs).collect(),
        });
        let parts = table.indexes.iter().flat_map(|index| &index.parts);
        let parts = parts.map(move |part| Self {
            key: key(true, part.id.0, part.generation),
            runs: part.chunks().flat_map(Chunk::runs).collect(),
        });
        segments.chain(parts)
    }

    pub fn pages(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.count)).sum()
    }
}

/// The place of a run: which of the packs, and its first page there.
pub(super) fn place(pack: usize, page: u64) -> u64 {
    (pack as u64) << 32 | page
}

impl BackupRecord {
    /// What the backup of a number is called.
    pub fn file_name(number: u32) -> String {
        format!("{BACKUP_PREFIX}{number:06}")
    }

    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        let sealed = seal(&MAGIC, self);
        let format = match self.whole.puts_accounts() {
            true => BACKUP_FORMAT,
            false => FORMAT_WITHOUT_ACCOUNTS,
        };
        [&MAGIC[..], &format.to_le_bytes(), &sealed].concat()
    }

    /// Reads the backup of a number.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt`; `Invalid` when a newer flashmesh has made it; `Io`.
    pub fn read(files: &dyn BackupFiles, number: u32, bytes: u64) -> Result<Self> {
        let name = Self::file_name(number);
        let what = format!("backup {number} in {}", files.name());
        let read = files.read(&name, 0..bytes)?;
        let corrupt = |why: &str| StorageError::corrupt(format!("{what} {why}"));
        let (magic, rest) = read
            .split_at_checked(MAGIC.len())
            .ok_or_else(|| corrupt("is cut short"))?;
        let (format, sealed) = rest
            .split_first_chunk()
            .ok_or_else(|| corrupt("is cut short"))?;
        if magic != MAGIC {
            return Err(corrupt("does not start as backups do"));
        }
        match u32::from_le_bytes(*format) {
            FORMAT_WITHOUT_ACCOUNTS..=BACKUP_FORMAT => {}
            newer => {
                return Err(StorageError::Invalid(format!(
                    "{what} has format {newer}, this flashmesh reads {BACKUP_FORMAT}; use a newer flashmesh"
                )));
            }
        }
        let record: Self = unseal(&MAGIC, sealed, &what)?;
        match record.number == number {
            true => Ok(record),
            false => Err(corrupt(&format!(
                "says that it is backup {}",
                record.number
            ))),
        }
    }

    /// The places of the runs of its pieces.
    pub fn places(&self) -> HashMap<PieceKey, &PieceRecord> {
        let pieces = self.pieces.iter();
        pieces.map(|piece| (piece.key(), piece)).collect()
    }

    /// The pack and the range of its bytes that a run is in.
    ///
    /// # Errors
    /// `Corrupt` when there is none.
    pub fn bytes_of(&self, place: u64, run: &PageRun) -> Result<(&PackRecord, u64)> {
        let (pack, first) = ((place >> 32) as usize, place & u64::from(u32::MAX));
        let pack = self.packs.get(pack);
        let pack = pack.filter(|pack| first + u64::from(run.count) <= pack.pages);
        let pack = pack.ok_or_else(|| {
            StorageError::corrupt(format!(
                "backup {}: {}: it names pages of no file",
                self.number, run.label
            ))
        })?;
        Ok((pack, first * PAGE_SIZE_BYTES as u64))
    }
}

/// The numbers of the backups of a place, ascending, with the bytes of their files.
pub(super) fn numbers(files: &[(String, u64)]) -> Vec<(u32, u64)> {
    let named = files.iter().filter_map(|(name, bytes)| {
        let number = name.strip_prefix(BACKUP_PREFIX)?.parse().ok()?;
        (BackupRecord::file_name(number) == *name).then_some((number, *bytes))
    });
    let mut numbers: Vec<_> = named.collect();
    numbers.sort_unstable();
    numbers
}
