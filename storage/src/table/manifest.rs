//! The manifest's records: what `redb` keeps of each table and segment, as protobuf messages
//! with a checksum in front.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{Field, Schema};
use flashmesh_pushdown::Scalar;
use prost::Message;
use roaring::RoaringBitmap;

use crate::flash::FlashPage;
use crate::index::{IndexArray, IndexDefinition, IndexKind, IndexPart};
use crate::page::{PageIdentity, estimate_distinct, merge_sketches};
use crate::segment::{
    Chunk, ChunkRecord, Segment, SegmentId, TableId, page_index_identity, shared_identity,
};
use crate::store::{CardId, NodeId, PageAddress, PageRun, RunPart};
use crate::table::schema_record::{decode_schema, encode_schema};
use crate::table::state::Labels;
use crate::table::{ColumnStatistics, Distribution, TableLayout};
use crate::{Result, StorageError};

/// A table, as the manifest keeps it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct TableRecord {
    /// Arrow IPC's flatbuffer of the schema.
    #[prost(bytes = "vec", tag = "1")]
    pub schema: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub version: u64,
    /// First segment number that was never used.
    #[prost(uint32, tag = "3")]
    pub next_segment: u32,
    #[prost(message, repeated, tag = "4")]
    pub columns: Vec<ColumnRecord>,
    #[prost(message, repeated, tag = "5")]
    pub indexes: Vec<IndexRecord>,
    /// Its segments, their rows, and the parts of its indexes: so many records must be there.
    #[prost(uint64, tag = "6")]
    pub segments: u64,
    #[prost(uint64, tag = "7")]
    pub rows: u64,
    #[prost(uint64, tag = "8")]
    pub parts: u64,
    /// Since format 5: rows among them that are deleted.
    #[prost(uint64, tag = "9")]
    pub deleted: u64,
    /// Since format 6: deleted rows are gone from its segments, so that bounds of columns may be
    /// wider than what is left.
    #[prost(bool, tag = "10")]
    pub lost_rows: bool,
    /// Since format 6: the text of each column's default, or how it is generated, empty where it
    /// has none; or nothing.
    #[prost(string, repeated, tag = "11")]
    pub defaults: Vec<String>,
    /// Since format 8: for how long its past versions stay readable, in microseconds; 0: not at all.
    #[prost(uint64, tag = "12")]
    pub retention_us: u64,
    /// Since format 8: when this version was committed, in microseconds since 1970; 0 without a
    /// retention. Of fixed length, as a commit gets its time last.
    #[prost(fixed64, tag = "13")]
    pub committed_at_us: u64,
    /// How often the table's columns became others, in rows that were written anew: what was written
    /// for those before does not fit.
    #[prost(uint32, tag = "14")]
    pub redefinitions: u32,
    /// How rows are laid out when they are written: [`TableLayout`], 0 for columns in pages of their
    /// own, 1 for pages that all columns share.
    #[prost(uint32, tag = "15")]
    pub layout: u32,
    /// Where rows lie by a key.
    #[prost(message, optional, tag = "16")]
    pub distribution: Option<DistributionRecord>,
    /// Conditions that its rows meet.
    #[prost(message, repeated, tag = "17")]
    pub checks: Vec<CheckRecord>,
    /// What its users say of it.
    #[prost(string, tag = "18")]
    pub comment: String,
}

/// A CHECK constraint: see [`Check`](super::Check).
#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub text: String,
}

/// By which columns the rows of a table lie: see [`Distribution`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct DistributionRecord {
    /// Ordinals.
    #[prost(uint32, repeated, tag = "1")]
    pub columns: Vec<u32>,
    #[prost(uint32, tag = "2")]
    pub buckets: u32,
}

/// A past version of a table, as it differs from the one after it; table and version are its key.
/// See [`Past`](super::history::Past).
#[derive(Clone, PartialEq, Message)]
pub(super) struct VersionRecord {
    /// The version after it.
    #[prost(uint64, tag = "1")]
    pub next: u64,
    #[prost(uint64, tag = "2")]
    pub committed_at_us: u64,
    /// When the next one took its place.
    #[prost(uint64, tag = "3")]
    pub ended_at_us: u64,
    /// Rows that are not deleted.
    #[prost(uint64, tag = "4")]
    pub rows: u64,
    /// Segments that the next one has and it has not.
    #[prost(uint32, repeated, tag = "5")]
    pub added: Vec<u32>,
    /// Segments that it has and the next one has not, and their places in its row order.
    #[prost(uint32, repeated, tag = "6")]
    pub removed: Vec<u32>,
    #[prost(uint32, repeated, tag = "7")]
    pub places: Vec<u32>,
    /// Rows that are deleted in one of the two alone.
    #[prost(message, repeated, tag = "8")]
    pub changed: Vec<RowsRecord>,
    /// What it has beside rows, where the next one has something else.
    #[prost(message, optional, tag = "9")]
    pub shape: Option<ShapeRecord>,
}

/// Rows of a segment.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RowsRecord {
    #[prost(uint32, tag = "1")]
    pub segment: u32,
    /// As [`SegmentRecord::deleted`].
    #[prost(bytes = "vec", tag = "2")]
    pub rows: Vec<u8>,
}

/// Columns and defaults of a past version, as [`TableRecord`] has them.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ShapeRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub schema: Vec<u8>,
    #[prost(string, repeated, tag = "2")]
    pub defaults: Vec<String>,
}

impl ShapeRecord {
    /// The defaults of so many columns.
    pub fn decode_defaults(&self, columns: usize) -> Vec<Option<String>> {
        decode_defaults(&self.defaults, columns)
    }
}

/// What is to be changed in the catalog of the past of tables.
#[derive(Debug, Default)]
pub(super) struct HistoryRecords {
    /// By table and version.
    pub removed_versions: Vec<(u32, u64)>,
    pub versions: Vec<(u32, u64, VersionRecord)>,
    /// Segments that only the past has, by table and segment.
    pub removed_segments: Vec<(u32, u32)>,
    pub segments: Vec<(u32, u32, SegmentRecord)>,
}

impl HistoryRecords {
    /// Whether there is something to be put.
    pub fn puts(&self) -> bool {
        !self.versions.is_empty() || !self.segments.is_empty()
    }
}

/// Defaults as a record has them.
pub(super) fn encode_defaults(defaults: &[Option<String>]) -> Vec<String> {
    match defaults.iter().any(Option::is_some) {
        true => defaults
            .iter()
            .map(|d| d.clone().unwrap_or_default())
            .collect(),
        false => Vec::new(),
    }
}

impl TableRecord {
    /// The defaults of so many columns.
    pub fn decode_defaults(&self, columns: usize) -> Vec<Option<String>> {
        decode_defaults(&self.defaults, columns)
    }
}

/// A layout as a record has it.
pub(super) fn encode_layout(layout: TableLayout) -> u32 {
    match layout {
        TableLayout::Column => 0,
        TableLayout::Pax => 1,
    }
}

/// A distribution as a record has it.
pub(super) fn encode_distribution(distribution: &Distribution) -> DistributionRecord {
    DistributionRecord {
        columns: distribution.columns().to_vec(),
        buckets: distribution.buckets().into(),
    }
}

/// The distribution that a record has; `what` names the table.
pub(super) fn decode_distribution(
    record: &DistributionRecord,
    schema: &Schema,
    what: &str,
) -> Result<Distribution> {
    let buckets = u16::try_from(record.buckets).unwrap_or(u16::MAX);
    Distribution::new(schema, record.columns.clone(), buckets)
        .map_err(|error| StorageError::corrupt(format!("{what}: {error}")))
}

/// The layout that a record has; `what` names the table.
pub(super) fn decode_layout(number: u32, what: &str) -> Result<TableLayout> {
    match number {
        0 => Ok(TableLayout::Column),
        1 => Ok(TableLayout::Pax),
        _ => Err(StorageError::corrupt(format!(
            "{what}: layout {number} is not known; open it with a newer flashmesh"
        ))),
    }
}

fn decode_defaults(defaults: &[String], columns: usize) -> Vec<Option<String>> {
    let texts = defaults.iter().map(|text| Some(text.clone()));
    let texts = texts.map(|text| text.filter(|text| !text.is_empty()));
    texts.chain(std::iter::repeat(None)).take(columns).collect()
}

/// What the catalog holds in all, and the numbers that nothing carries yet.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RootRecord {
    /// Commits so far.
    #[prost(uint64, tag = "1")]
    pub commits: u64,
    #[prost(uint32, tag = "2")]
    pub next_table: u32,
    #[prost(uint32, tag = "3")]
    pub next_generation: u32,
    #[prost(uint32, tag = "4")]
    pub schemas: u32,
    #[prost(uint32, tag = "5")]
    pub tables: u32,
    #[prost(uint32, tag = "6")]
    pub functions: u32,
    #[prost(uint32, tag = "7")]
    pub views: u32,
    /// Since format 7: the log's last record whose edit the catalog has.
    #[prost(uint64, tag = "8")]
    pub logged: u64,
    /// Tells the database from all others, once that was asked for: 16 random bytes.
    #[prost(bytes = "vec", tag = "9")]
    pub id: Vec<u8>,
    /// Since format 9: 1 where there are accounts.
    #[prost(uint32, tag = "10")]
    pub accounts: u32,
}

/// What a sequence has given; its number is its key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SequenceRecord {
    /// Numbers, from 0 on, that were given or are reserved.
    #[prost(uint64, tag = "1")]
    pub reserved: u64,
}

/// A schema; its name is its key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SchemaRecord {}

/// The table of a name.
#[derive(Clone, PartialEq, Message)]
pub(super) struct NameRecord {
    #[prost(uint32, tag = "1")]
    pub table: u32,
}

/// A function that a user added.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FunctionRecord {
    #[prost(string, tag = "1")]
    pub owner: String,
    #[prost(uint32, tag = "2")]
    pub version: u32,
    #[prost(uint64, tag = "3")]
    pub created_at_us: u64,
    /// SHA-256 of the package.
    #[prost(bytes = "vec", tag = "4")]
    pub digest: Vec<u8>,
    #[prost(message, repeated, tag = "5")]
    pub callees: Vec<CalleeRecord>,
    /// Of the package.
    #[prost(uint64, tag = "6")]
    pub bytes: u64,
}

/// A function that another one calls.
#[derive(Clone, PartialEq, Message)]
pub(super) struct CalleeRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub digest: Vec<u8>,
}

/// The accounts of the database, all in one text.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AccountsRecord {
    /// 1 for the first, one more with each change.
    #[prost(uint64, tag = "1")]
    pub version: u64,
    #[prost(string, tag = "2")]
    pub text: String,
}

/// A view; its schema and name are its key.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ViewRecord {
    #[prost(string, tag = "1")]
    pub query: String,
    #[prost(string, repeated, tag = "2")]
    pub columns: Vec<String>,
    #[prost(string, tag = "3")]
    pub owner: String,
    #[prost(string, tag = "4")]
    pub default_schema: String,
    #[prost(string, tag = "5")]
    pub dialect: String,
}

/// The definition of an index.
#[derive(Clone, PartialEq, Message)]
pub(super) struct IndexRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    /// [`IndexKind::name`].
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(uint32, repeated, tag = "3")]
    pub columns: Vec<u32>,
    #[prost(bool, tag = "4")]
    pub unique: bool,
    #[prost(bool, tag = "5")]
    pub primary: bool,
    #[prost(btree_map = "string, string", tag = "6")]
    pub options: BTreeMap<String, String>,
}

/// A part of an index.
#[derive(Clone, PartialEq, Message)]
pub(super) struct PartRecord {
    #[prost(string, tag = "1")]
    pub index: String,
    #[prost(uint32, tag = "2")]
    pub generation: u32,
    /// Segments that it covers, and their rows.
    #[prost(uint32, repeated, tag = "3")]
    pub segments: Vec<u32>,
    #[prost(uint32, repeated, tag = "4")]
    pub segment_rows: Vec<u32>,
    #[prost(bytes = "vec", tag = "5")]
    pub meta: Vec<u8>,
    /// Arrow IPC's flatbuffer of a schema with a field for each array.
    #[prost(bytes = "vec", tag = "6")]
    pub schema: Vec<u8>,
    /// Chunks of each array.
    #[prost(uint32, repeated, tag = "7")]
    pub array_chunks: Vec<u32>,
    /// All chunks, array by array; their column groups count up through the part.
    #[prost(message, repeated, tag = "8")]
    pub chunks: Vec<ChunkRecord>,
    /// As [`SegmentRecord::page_indexes`].
    #[prost(message, optional, tag = "9")]
    pub page_indexes: Option<RunRecord>,
}

/// Statistics of a column over all segments.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ColumnRecord {
    #[prost(uint64, tag = "1")]
    pub null_count: u64,
    #[prost(message, optional, tag = "2")]
    pub min: Option<ScalarRecord>,
    #[prost(message, optional, tag = "3")]
    pub max: Option<ScalarRecord>,
    /// Distinct-count sketch, see `page::sketch`; empty when there is none.
    #[prost(bytes = "vec", tag = "4")]
    pub sketch: Vec<u8>,
    #[prost(uint64, tag = "5")]
    pub bytes_on_flash: u64,
    /// TRUE when some segment had no exact min and max, so that the table has none.
    #[prost(bool, tag = "6")]
    pub unbounded: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScalarRecord {
    #[prost(oneof = "ScalarValue", tags = "1, 2, 3, 4")]
    pub value: Option<ScalarValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum ScalarValue {
    #[prost(bool, tag = "1")]
    Boolean(bool),
    /// Little-endian two's complement, 16 bytes.
    #[prost(bytes, tag = "2")]
    Int(Vec<u8>),
    #[prost(double, tag = "3")]
    Float(f64),
    #[prost(bytes, tag = "4")]
    Bytes(Vec<u8>),
}

/// A segment, as the manifest keeps it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SegmentRecord {
    #[prost(uint32, tag = "1")]
    pub generation: u32,
    #[prost(uint32, tag = "2")]
    pub rows: u32,
    /// Position in the table's row order; segments of parallel writers are numbered as they are
    /// written, and ordered as the input was.
    #[prost(uint64, tag = "3")]
    pub order: u64,
    #[prost(message, repeated, tag = "4")]
    pub chunks: Vec<ChunkRecord>,
    /// Since format 4, unless the chunks hold them: the pages of their page indexes.
    #[prost(message, optional, tag = "5")]
    pub page_indexes: Option<RunRecord>,
    /// Since format 5: the rows that are deleted, as Roaring's portable format has them; empty
    /// without any.
    #[prost(bytes = "vec", tag = "6")]
    pub deleted: Vec<u8>,
    /// The pages that columns share, where some do: auxiliary pages, then group pages.
    #[prost(message, optional, tag = "7")]
    pub shared: Option<RunRecord>,
    /// The bucket of its rows, where the table lies by a key.
    #[prost(uint32, optional, tag = "8")]
    pub bucket: Option<u32>,
}

/// Pages that follow each other.
#[derive(Clone, PartialEq, Message)]
pub(super) struct RunRecord {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    #[prost(uint32, tag = "2")]
    pub card: u32,
    #[prost(uint64, tag = "3")]
    pub first_page: u64,
    #[prost(uint32, tag = "4")]
    pub pages: u32,
}

/// Seals a record: CRC32C of its key and the message, then the message.
pub(super) fn seal(key: &[u8], message: &impl Message) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    message.encode(&mut bytes).expect("a Vec grows");
    let checksum = checksum(key, &bytes[4..]);
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Opens a sealed record; `what` names it in the error.
pub(super) fn unseal<M: Message + Default>(key: &[u8], bytes: &[u8], what: &str) -> Result<M> {
    let corrupt = |why: &str| StorageError::corrupt(format!("{what}: the manifest record {why}"));
    let (sum, body) = bytes
        .split_at_checked(4)
        .ok_or_else(|| corrupt("is cut short"))?;
    if sum != checksum(key, body).to_le_bytes() {
        return Err(corrupt("fails its checksum"));
    }
    M::decode(body).map_err(|e| corrupt(&format!("does not decode: {e}")))
}

fn checksum(key: &[u8], body: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(body);
    digest.finalize() as u32
}

fn encode_chunk_record(chunk: &Chunk) -> ChunkRecord {
    let index = match chunk.resident_index() {
        Some(index) => ChunkRecord::of_index(index),
        None => ChunkRecord {
            totals: Some(chunk.totals),
            ..ChunkRecord::default()
        },
    };
    let aux_pages = chunk.aux_pages;
    if chunk.run.part.is_some() {
        return ChunkRecord {
            aux_pages,
            is_shared: true,
            ..index
        };
    }
    ChunkRecord {
        node: u32::from(chunk.run.first.node.0),
        card: u32::from(chunk.run.first.card.0),
        first_page: chunk.run.first.page.0,
        aux_pages,
        ..index
    }
}

fn run_record(run: &PageRun) -> RunRecord {
    RunRecord {
        node: u32::from(run.first.node.0),
        card: u32::from(run.first.card.0),
        first_page: run.first.page.0,
        pages: run.count,
    }
}

/// The pages of the chunks' page indexes, if they have any.
fn page_indexes_record<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> Option<RunRecord> {
    let run = chunks.into_iter().find_map(Chunk::page_index_run)?;
    Some(run_record(run))
}

/// The pages that the chunks share, if any do.
fn shared_record<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> Option<RunRecord> {
    let part = chunks.into_iter().find_map(|chunk| chunk.run.part.as_ref());
    part.map(|part| run_record(&part.run))
}

impl SegmentRecord {
    /// Its runs of pages.
    pub fn runs(&self) -> impl Iterator<Item = (PageAddress, u32)> {
        runs(&self.chunks, [&self.shared, &self.page_indexes])
    }

    /// Has its runs of pages begin where `place_of` says.
    pub fn move_pages(&mut self, place_of: impl Fn(PageAddress) -> PageAddress) {
        let others = [&mut self.shared, &mut self.page_indexes];
        move_pages(&mut self.chunks, others, place_of);
    }
}

impl PartRecord {
    /// Its runs of pages.
    pub fn runs(&self) -> impl Iterator<Item = (PageAddress, u32)> {
        runs(&self.chunks, [&self.page_indexes])
    }

    /// Has its runs of pages begin where `place_of` says.
    pub fn move_pages(&mut self, place_of: impl Fn(PageAddress) -> PageAddress) {
        move_pages(&mut self.chunks, [&mut self.page_indexes], place_of);
    }
}

/// The runs of pages of these chunks, and others.
fn runs<'a, const OTHERS: usize>(
    chunks: &'a [ChunkRecord],
    others: [&'a Option<RunRecord>; OTHERS],
) -> impl Iterator<Item = (PageAddress, u32)> + 'a {
    let of_chunks = chunks.iter().filter(|chunk| !chunk.is_shared);
    let of_chunks = of_chunks.filter_map(|chunk| {
        let first = address(chunk.node, chunk.card, chunk.first_page)?;
        Some((first, u32::try_from(pages_of(chunk)).ok()?))
    });
    let others = others.into_iter().flatten().filter_map(|run| {
        let first = address(run.node, run.card, run.first_page)?;
        Some((first, run.pages))
    });
    of_chunks.chain(others)
}

/// Pages of a chunk, the auxiliary one among them.
fn pages_of(chunk: &ChunkRecord) -> usize {
    let pages = match &chunk.totals {
        Some(totals) => totals.pages as usize,
        None => chunk.row_counts.len(),
    };
    pages.saturating_add(chunk.aux_pages as usize)
}

fn move_pages<const OTHERS: usize>(
    chunks: &mut [ChunkRecord],
    others: [&mut Option<RunRecord>; OTHERS],
    place_of: impl Fn(PageAddress) -> PageAddress,
) {
    let place = |node: &mut u32, card: &mut u32, page: &mut u64| {
        if let Some(first) = address(*node, *card, *page).map(&place_of) {
            *node = first.node.0.into();
            *card = first.card.0.into();
            *page = first.page.0;
        }
    };
    for chunk in chunks.iter_mut().filter(|chunk| !chunk.is_shared) {
        place(&mut chunk.node, &mut chunk.card, &mut chunk.first_page);
    }
    for run in others.into_iter().flatten() {
        place(&mut run.node, &mut run.card, &mut run.first_page);
    }
}

fn address(node: u32, card: u32, page: u64) -> Option<PageAddress> {
    Some(PageAddress {
        node: NodeId(node.try_into().ok()?),
        card: CardId(card.try_into().ok()?),
        page: FlashPage(page),
    })
}

/// What is known of the chunks of a segment or a part together.
struct Chunks<'a> {
    /// Of its first page.
    identity: PageIdentity,
    page_indexes: Option<Arc<PageRun>>,
    shared: Option<SharedRun>,
    records: &'a [ChunkRecord],
}

/// The pages that chunks share.
struct SharedRun {
    run: Arc<PageRun>,
    /// Chunks that do.
    parts: u16,
    /// Auxiliary pages of all of them.
    aux_pages: u32,
}

impl<'a> Chunks<'a> {
    fn new(
        identity: PageIdentity,
        records: &'a [ChunkRecord],
        page_indexes: Option<&RunRecord>,
        label: &Arc<str>,
    ) -> Result<Self> {
        let run = page_indexes.map(|record| {
            let run = decode_run(record, page_index_identity(identity), label);
            let run = run.ok_or_else(|| malformed(&identity, "where the page indexes are"));
            run.map(Arc::new)
        });
        Ok(Self {
            identity,
            page_indexes: run.transpose()?,
            shared: None,
            records,
        })
    }

    /// The same where some of the chunks share pages.
    fn with_shared(mut self, shared: Option<&RunRecord>, label: &Arc<str>) -> Result<Self> {
        let Some(record) = shared else {
            return Ok(self);
        };
        let malformed = || malformed(&self.identity, "where the shared pages are");
        let run = decode_run(record, shared_identity(self.identity), label);
        let sharing = || self.records.iter().filter(|chunk| chunk.is_shared);
        self.shared = Some(SharedRun {
            run: run.map(Arc::new).ok_or_else(malformed)?,
            parts: u16::try_from(sharing().count()).map_err(|_| malformed())?,
            aux_pages: sharing().map(|chunk| chunk.aux_pages.min(1)).sum(),
        });
        Ok(self)
    }

    /// What the chunk of this number has of the shared pages, if it has `pages` data pages.
    fn part(&self, number: usize, pages: usize) -> Option<Arc<RunPart>> {
        let shared = self.shared.as_ref()?;
        let before = || self.records[..number].iter().filter(|c| c.is_shared);
        let aux = before().map(|chunk| chunk.aux_pages.min(1)).sum();
        let aux = (self.records[number].aux_pages > 0).then_some(aux);
        let fits = shared.aux_pages as usize + pages == shared.run.count as usize;
        let part = RunPart {
            run: Arc::clone(&shared.run),
            // Not more than there are in all.
            number: before().count() as u16,
            parts: shared.parts,
            aux,
            first_group: shared.aux_pages,
        };
        fits.then(|| Arc::new(part))
    }

    /// The chunk of this number.
    fn decode(&self, number: usize, label: &Arc<str>) -> Result<Chunk> {
        let record = &self.records[number];
        let malformed = || malformed(&self.identity, &format!("the page index of {label}"));
        let count = pages_of(record);
        if record.aux_pages > 1 || count > usize::from(u16::MAX) + 1 {
            return Err(malformed());
        }
        let part = match record.is_shared {
            true => {
                let pages = count - record.aux_pages as usize;
                Some(self.part(number, pages).ok_or_else(malformed)?)
            }
            false => None,
        };
        let first = match &part {
            Some(part) => Some(part.run.first),
            None => address(record.node, record.card, record.first_page),
        };
        let run = PageRun {
            first: first.ok_or_else(malformed)?,
            count: count as u32,
            identity: PageIdentity {
                column_group: number as u16,
                ..self.identity
            },
            label: Arc::clone(label),
            part,
        };
        match (&record.totals, &self.page_indexes) {
            (None, _) => {
                let zones = record.zones().ok_or_else(malformed)?;
                Ok(Chunk::new(run, record.aux_pages, zones))
            }
            (Some(totals), Some(page_indexes)) => {
                let (indexes, row) = (Arc::clone(page_indexes), number as u32);
                let aux_pages = record.aux_pages;
                Ok(Chunk::with_index_in(run, aux_pages, *totals, indexes, row))
            }
            (Some(_), None) => Err(malformed()),
        }
    }
}

/// The run that a record says, of at least a page.
fn decode_run(record: &RunRecord, identity: PageIdentity, label: &Arc<str>) -> Option<PageRun> {
    let first = address(record.node, record.card, record.first_page);
    first.filter(|_| record.pages > 0).map(|first| PageRun {
        first,
        count: record.pages,
        identity,
        label: Arc::clone(label),
        part: None,
    })
}

fn malformed(of: &PageIdentity, what: &str) -> StorageError {
    StorageError::corrupt(format!(
        "segment {} of table number {}: {what} is malformed",
        of.segment, of.table
    ))
}

pub(super) fn encode_segment(segment: &Segment, order: u64) -> SegmentRecord {
    SegmentRecord {
        generation: segment.generation,
        rows: segment.rows,
        order,
        chunks: segment.chunks.iter().map(encode_chunk_record).collect(),
        page_indexes: page_indexes_record(segment.chunks.iter()),
        shared: shared_record(segment.chunks.iter()),
        deleted: segment.deleted().map(encode_rows).unwrap_or_default(),
        bucket: segment.bucket.map(u32::from),
    }
}

/// Rows of a segment as bytes.
pub(super) fn encode_rows(rows: &RoaringBitmap) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(rows.serialized_size());
    rows.serialize_into(&mut bytes).expect("a Vec grows");
    bytes
}

/// The version of a segment whose deleted rows these bytes hold; empty ones: none.
pub(super) fn decode_deleted(segment: &Segment, bytes: &[u8]) -> Result<Segment> {
    let rows = decode_rows(bytes).map_err(|error| {
        let segment = segment.id.0;
        StorageError::corrupt(format!("segment {segment}: its deleted rows: {error}"))
    })?;
    segment.with_deleted(rows)
}

/// The rows that bytes hold; empty ones: none.
pub(super) fn decode_rows(bytes: &[u8]) -> std::io::Result<RoaringBitmap> {
    match bytes {
        [] => Ok(RoaringBitmap::new()),
        bytes => RoaringBitmap::deserialize_from(bytes),
    }
}

/// The segment that `record` describes.
pub(super) fn decode_segment(
    record: &SegmentRecord,
    table: TableId,
    id: SegmentId,
    labels: &Labels,
) -> Result<Segment> {
    let corrupt = |why: String| {
        StorageError::corrupt(format!(
            "segment {} of table number {}: {why}",
            id.0, table.0
        ))
    };
    if record.chunks.len() != labels.columns.len() {
        return Err(corrupt(format!(
            "{} chunks for {} columns",
            record.chunks.len(),
            labels.columns.len()
        )));
    }
    let identity = first_page_of(table, id, record.generation);
    let indexes = record.page_indexes.as_ref();
    let records = Chunks::new(identity, &record.chunks, indexes, &labels.page_indexes)?;
    let records = records.with_shared(record.shared.as_ref(), &labels.shared)?;
    let mut chunks = Vec::with_capacity(record.chunks.len());
    for (column, label) in labels.columns.iter().enumerate() {
        let chunk = records.decode(column, label)?;
        if chunk.totals.rows != record.rows {
            return Err(corrupt(format!(
                "{label} has {} rows of {}",
                chunk.totals.rows, record.rows
            )));
        }
        chunks.push(chunk);
    }
    let bucket = record.bucket.map(u16::try_from).transpose();
    let bucket = bucket.map_err(|_| corrupt("its bucket is none".into()))?;
    let segment = Segment::new(id, record.generation, record.rows, chunks).in_bucket(bucket);
    decode_deleted(&segment, &record.deleted)
}

fn first_page_of(table: TableId, id: SegmentId, generation: u32) -> PageIdentity {
    PageIdentity {
        table: table.0,
        segment: id.0,
        column_group: 0,
        page: 0,
        generation,
    }
}

pub(super) fn encode_definition(definition: &IndexDefinition) -> IndexRecord {
    IndexRecord {
        name: definition.name.clone(),
        kind: definition.kind.name().into(),
        columns: definition.columns.clone(),
        unique: definition.unique,
        primary: definition.primary,
        options: definition.options.clone(),
    }
}

pub(super) fn decode_definition(record: &IndexRecord) -> Result<IndexDefinition> {
    Ok(IndexDefinition {
        name: record.name.clone(),
        kind: IndexKind::parse(&record.kind)?,
        columns: record.columns.clone(),
        unique: record.unique,
        primary: record.primary,
        options: record.options.clone(),
    })
}

pub(super) fn encode_part(part: &IndexPart, index: &str) -> PartRecord {
    let fields: Vec<Field> = part
        .arrays
        .iter()
        .map(|array| Field::new("", array.data_type.clone(), true))
        .collect();
    PartRecord {
        index: index.into(),
        generation: part.generation,
        segments: part.covers.iter().map(|(id, _)| id.0).collect(),
        segment_rows: part.covers.iter().map(|(_, rows)| *rows).collect(),
        meta: part.meta.clone(),
        schema: encode_schema(&Arc::new(Schema::new(fields))),
        array_chunks: part.arrays.iter().map(|a| a.chunks.len() as u32).collect(),
        chunks: part.chunks().map(encode_chunk_record).collect(),
        page_indexes: page_indexes_record(part.chunks()),
    }
}

/// The part that `record` describes; `table_name` is for messages.
pub(super) fn decode_part(
    record: &PartRecord,
    table: TableId,
    id: SegmentId,
    table_name: &str,
) -> Result<IndexPart> {
    let what = format!("table '{table_name}', index '{}'", record.index);
    let corrupt = |why: &str| StorageError::corrupt(format!("{what}: its manifest record {why}"));
    let schema = decode_schema(&record.schema, &what)?;
    let chunks: u64 = record.array_chunks.iter().map(|c| u64::from(*c)).sum();
    if schema.fields().len() != record.array_chunks.len()
        || chunks != record.chunks.len() as u64
        || chunks > u64::from(u16::MAX)
        || record.segments.len() != record.segment_rows.len()
    {
        return Err(corrupt("is malformed"));
    }
    let label: Arc<str> = what.as_str().into();
    let identity = first_page_of(table, id, record.generation);
    let indexes = record.page_indexes.as_ref();
    let records = Chunks::new(identity, &record.chunks, indexes, &label)?;
    let mut left = 0..record.chunks.len();
    let mut arrays = Vec::with_capacity(record.array_chunks.len());
    for (field, count) in schema.fields().iter().zip(&record.array_chunks) {
        let mut chunks = Vec::with_capacity(*count as usize);
        for number in left.by_ref().take(*count as usize) {
            chunks.push(Arc::new(records.decode(number, &label)?));
        }
        arrays.push(IndexArray {
            data_type: field.data_type().clone(),
            chunks,
        });
    }
    let ids = record.segments.iter().copied().map(SegmentId);
    Ok(IndexPart {
        id,
        generation: record.generation,
        covers: ids.zip(record.segment_rows.iter().copied()).collect(),
        arrays,
        meta: record.meta.clone(),
        unnamed: OnceLock::new(),
        committed: OnceLock::new(),
        retired: OnceLock::new(),
        successor: OnceLock::new(),
        opened: OnceLock::new(),
    })
}

pub(super) fn scalar_record(value: &Scalar) -> Option<ScalarRecord> {
    let value = match value {
        Scalar::Null => return None,
        Scalar::Boolean(b) => ScalarValue::Boolean(*b),
        Scalar::Int(i) => ScalarValue::Int(i.to_le_bytes().to_vec()),
        Scalar::Float(f) => ScalarValue::Float(*f),
        Scalar::Bytes(b) => ScalarValue::Bytes(b.clone()),
    };
    Some(ScalarRecord { value: Some(value) })
}

fn scalar(record: &ScalarRecord) -> Option<Scalar> {
    Some(match record.value.as_ref()? {
        ScalarValue::Boolean(b) => Scalar::Boolean(*b),
        ScalarValue::Int(bytes) => {
            Scalar::Int(i128::from_le_bytes(bytes.as_slice().try_into().ok()?))
        }
        ScalarValue::Float(f) => Scalar::Float(*f),
        ScalarValue::Bytes(b) => Scalar::Bytes(b.clone()),
    })
}

impl ColumnRecord {
    /// Adds what a further segment knows of the column.
    pub(super) fn merge(&mut self, other: &ColumnRecord, first: bool) {
        self.null_count += other.null_count;
        self.bytes_on_flash += other.bytes_on_flash;
        self.unbounded |= other.unbounded;
        if self.unbounded {
            (self.min, self.max) = (None, None);
        } else {
            pick(&mut self.min, &other.min, Ordering::Less);
            pick(&mut self.max, &other.max, Ordering::Greater);
        }
        if first {
            self.sketch.clone_from(&other.sketch);
        } else {
            self.sketch = merge_sketches([self.sketch.as_slice(), &other.sketch]);
        }
    }

    /// What the planner knows of the column; `distinct` is what its sketch was found to say before.
    pub(super) fn statistics(&self, distinct: Option<Option<u64>>) -> ColumnStatistics {
        ColumnStatistics {
            null_count: self.null_count,
            min: self.min.as_ref().and_then(scalar),
            max: self.max.as_ref().and_then(scalar),
            distinct: distinct.unwrap_or_else(|| estimate_distinct(&self.sketch)),
            bytes_on_flash: self.bytes_on_flash,
        }
    }
}

/// Keeps in `best` the value that compares as `wanted` to the other.
fn pick(best: &mut Option<ScalarRecord>, other: &Option<ScalarRecord>, wanted: Ordering) {
    let Some(candidate) = other else { return };
    let replace = match (best.as_ref().and_then(scalar), scalar(candidate)) {
        (None, _) => true,
        (Some(a), Some(b)) => compare(&b, &a) == Some(wanted),
        (Some(_), None) => false,
    };
    if replace {
        *best = Some(candidate.clone());
    }
}

fn compare(a: &Scalar, b: &Scalar) -> Option<Ordering> {
    match (a, b) {
        (Scalar::Boolean(a), Scalar::Boolean(b)) => Some(a.cmp(b)),
        (Scalar::Int(a), Scalar::Int(b)) => Some(a.cmp(b)),
        (Scalar::Float(a), Scalar::Float(b)) => Some(a.total_cmp(b)),
        (Scalar::Bytes(a), Scalar::Bytes(b)) => Some(a.cmp(b)),
        _ => None,
    }
}
