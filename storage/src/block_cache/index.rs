//! The file that says which blocks lie where, so that a database that is opened again has them.
//!
//! It is written now and then and when the database is closed, as a whole, under a checksum.
//! Nothing depends on it: what it says is checked against the pages when they are read, and where it
//! is missing, damaged or too old the cache has less. So it may also be deleted at any time.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use prost::Message;

use super::region::{CACHE_TABLE, region_pages};
use crate::flash::{FlashPage, Geometry};
use crate::page::PageIdentity;
use crate::store::{CardId, NodeId, PageAddress, PageRun};

/// Name of the file in the database's folder.
pub const INDEX_FILE: &str = "cache.index";
/// What it starts with; the last byte counts formats up. Then a CRC32C (u32) of all that follows.
const MAGIC: [u8; 8] = *b"FMCACHE\x01";

/// What the file holds.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IndexRecord {
    /// In the order in which they go.
    #[prost(message, repeated, tag = "1")]
    pub regions: Vec<RegionRecord>,
    #[prost(message, repeated, tag = "2")]
    pub objects: Vec<ObjectRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RegionRecord {
    #[prost(uint64, tag = "1")]
    pub first_page: u64,
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    #[prost(uint32, tag = "3")]
    pub segment: u32,
    #[prost(uint32, tag = "4")]
    pub column_group: u32,
    /// It is in the main queue.
    #[prost(bool, tag = "5")]
    pub is_main: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectRecord {
    #[prost(string, tag = "1")]
    pub store: String,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(uint64, tag = "3")]
    pub size: u64,
    #[prost(string, optional, tag = "4")]
    pub e_tag: Option<String>,
    #[prost(string, optional, tag = "5")]
    pub version: Option<String>,
    #[prost(int64, tag = "6")]
    pub modified_ns: i64,
    #[prost(uint64, tag = "7")]
    pub hits: u64,
    #[prost(uint64, tag = "8")]
    pub misses: u64,
    #[prost(uint64, tag = "9")]
    pub used_at_us: u64,
    #[prost(message, repeated, tag = "10")]
    pub blocks: Vec<BlockRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct BlockRecord {
    #[prost(uint32, tag = "1")]
    pub block: u32,
    /// Place of its region among those of the file.
    #[prost(uint32, tag = "2")]
    pub region: u32,
    /// Where it begins there.
    #[prost(uint32, tag = "3")]
    pub page: u32,
    #[prost(uint32, tag = "4")]
    pub bytes: u32,
    #[prost(uint32, tag = "5")]
    pub uses: u32,
}

/// What an earlier life of the cache has left behind, as far as it may still be there.
#[derive(Debug, Default)]
pub struct CacheIndex {
    pub(super) record: IndexRecord,
    /// For each region of the record its run, unless something else is there now.
    pub(super) runs: Vec<Option<PageRun>>,
}

impl CacheIndex {
    /// Reads the file in a database's folder. `taken` are the runs of pages that tables have.
    pub fn load(
        folder: &Path,
        geometry: &Geometry,
        taken: impl Iterator<Item = (PageAddress, u32)>,
    ) -> Self {
        let path = folder.join(INDEX_FILE);
        let record = match read(&path) {
            Ok(record) => record,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Self::default(),
            Err(error) => {
                log::warn!("{}: {error}; the cache starts empty", path.display());
                return Self::default();
            }
        };
        let taken = taken.map(|(first, pages)| (first.page.0, u64::from(pages)));
        let mut taken: Vec<_> = taken.collect();
        let Some(pages) = region_pages(geometry) else {
            return Self::default();
        };
        let claimed = record.regions.iter().map(|region| region.first_page);
        taken.extend(claimed.map(|first| (first, u64::from(pages))));
        taken.sort_unstable();
        let end = |(first, pages): (u64, u64)| first.saturating_add(pages);
        // Where all that begins up to there has ended.
        let mut reach: Vec<u64> = taken.iter().map(|run| end(*run)).collect();
        for at in 1..reach.len() {
            reach[at] = reach[at].max(reach[at - 1]);
        }
        let is_alone = |first: u64| {
            let at = taken.partition_point(|run| run.0 < first);
            let before = at.checked_sub(1).map_or(0, |before| reach[before]);
            let after = taken.get(at + 1).map_or(u64::MAX, |run| run.0);
            before <= first && end((first, pages.into())) <= after
        };
        let block = u64::from(geometry.pages_per_erase_block);
        let runs = record.regions.iter().map(|region| {
            let first = region.first_page;
            let fits =
                first.is_multiple_of(block) && end((first, pages.into())) <= geometry.pages();
            (fits && is_alone(first)).then(|| run_of(region, pages))
        });
        let runs = runs.collect();
        Self { record, runs }
    }

    /// The pages that hold blocks.
    pub fn runs(&self) -> impl Iterator<Item = (PageAddress, u32)> {
        let runs = self.runs.iter().flatten();
        runs.map(|run| (run.first, run.count))
    }

    /// Removes the file of a database that is opened without a cache: its pages are free from here
    /// on.
    pub fn remove(folder: &Path) {
        match std::fs::remove_file(folder.join(INDEX_FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("removing {INDEX_FILE}: {error}");
            }
            _ => {}
        }
    }
}

fn run_of(region: &RegionRecord, pages: u32) -> PageRun {
    PageRun {
        first: PageAddress {
            node: NodeId::default(),
            card: CardId::default(),
            page: FlashPage(region.first_page),
        },
        count: pages,
        identity: PageIdentity {
            table: CACHE_TABLE,
            segment: region.segment,
            column_group: region.column_group as u16,
            page: 0,
            generation: region.generation,
        },
        label: "cache of external files".into(),
        part: None,
    }
}

fn read(path: &Path) -> io::Result<IndexRecord> {
    let bytes = std::fs::read(path)?;
    let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let rest = bytes.strip_prefix(&MAGIC);
    let rest = rest.ok_or_else(|| wrong("it is of another format"))?;
    let sealed = rest.split_first_chunk::<4>();
    let (checksum, body) = sealed.ok_or_else(|| wrong("it is cut short"))?;
    if crc_fast::crc32_iscsi(body) != u32::from_le_bytes(*checksum) {
        return Err(wrong("its checksum does not match its bytes"));
    }
    IndexRecord::decode(body).map_err(|error| wrong(&error.to_string()))
}

/// Writes the file; a crash leaves the old one or the new one.
pub(super) fn write(folder: &Path, record: &IndexRecord) -> io::Result<()> {
    let body = record.encode_to_vec();
    let unfinished = folder.join(format!("{INDEX_FILE}.new"));
    let mut file = File::create(&unfinished)?;
    file.write_all(&MAGIC)?;
    file.write_all(&crc_fast::crc32_iscsi(&body).to_le_bytes())?;
    file.write_all(&body)?;
    file.sync_all()?;
    std::fs::rename(unfinished, folder.join(INDEX_FILE))
}
