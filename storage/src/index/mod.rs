//! Indexes: what the store keeps besides the rows, so that it reads less of them.
//!
//! An index is a list of immutable *parts*. Each covers some segments of its table, no segment is
//! covered twice, and those that none covers are the index's *tail*: whoever asks an index looks
//! at the rows of its tail besides, so that an index which lags answers what one that does not
//! would. `CREATE INDEX` builds parts over the segments that there are. Commits bring segments
//! and leave the index as it is, unless it is unique: its part comes with the commit, as the keys
//! have to be compared. A thread in the background ([`crate::table`]) covers tails and merges
//! small parts. A part is a few long arrays, stored in ordinary pages, and a small message of
//! metadata; what they mean is the business of the kind:
//!
//! | kind | room | what it answers |
//! |---|---|---|
//! | `hash` | [`hash`] | which rows have this key (Minerva section IV-C) |
//! | `ngram` | [`ngram`] | which pages may hold this text |
//! | `lsh` | [`lsh`] | which vectors are near this one (BlueDBM section 7.1) |
//! | `adjacency` | [`adjacency`] | where a vertex's edges lead (BlueDBM section 7.2); [`crate::graph`] searches it |
//!
//! [`paged`] reads the long arrays.

pub mod adjacency;
pub mod hash;
pub(crate) mod kind;
pub mod lsh;
pub mod ngram;
pub(crate) mod pace;
pub mod paged;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, SchemaRef};
use flashmesh_pushdown::Metric;

use self::kind::Opened;
use crate::page::{ChunkIdentity, SEGMENT_ROWS, encode_chunk};
use crate::segment::{Chunk, Segment, SegmentId, Unnamed, free_chunks};
use crate::store::{PageAddress, PageReader, PageRun, PageStore, PageWriter};
use crate::{Result, StorageError};

/// What an index is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IndexKind {
    /// Keys to rows: point and batched lookups.
    Hash,
    /// Parts of texts to pages: LIKE, `contains` and regular expressions.
    Ngram,
    /// Vectors to near vectors.
    Lsh,
    /// Vertices to their neighbours.
    Adjacency,
}

impl IndexKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Hash, Self::Ngram, Self::Lsh, Self::Adjacency];

    /// The word after `USING`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::Ngram => "ngram",
            Self::Lsh => "lsh",
            Self::Adjacency => "adjacency",
        }
    }

    /// The kind of that name.
    ///
    /// # Errors
    /// `Invalid`, which lists the kinds.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                let kinds: Vec<_> = Self::ALL.iter().map(|kind| kind.name()).collect();
                StorageError::Invalid(format!(
                    "there is no kind of index '{name}'; there are: {}",
                    kinds.join(", ")
                ))
            })
    }
}

impl fmt::Display for IndexKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `CREATE INDEX` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexDefinition {
    /// Its name, one of its kind within the schema.
    pub name: String,
    /// What it is made for.
    pub kind: IndexKind,
    /// Positions of its columns in the table's schema.
    pub columns: Vec<u32>,
    /// No two rows may have the same key; only of `hash`.
    pub unique: bool,
    /// It stands for the table's primary key; then it is unique, and its columns are NOT NULL.
    pub primary: bool,
    /// What `WITH (…)` said, names in lower case.
    pub options: BTreeMap<String, String>,
}

impl IndexDefinition {
    /// Checks that an index can be made as defined over a table of this schema.
    ///
    /// # Errors
    /// `Invalid`, which says what to change.
    pub fn check(&self, schema: &SchemaRef) -> Result<()> {
        let invalid = |why: String| {
            Err(StorageError::Invalid(format!(
                "index '{}': {why}",
                self.name
            )))
        };
        let mut types = Vec::with_capacity(self.columns.len());
        for (i, column) in self.columns.iter().enumerate() {
            let Some(field) = schema.fields().get(*column as usize) else {
                return invalid(format!("the table has no column number {column}"));
            };
            if self.columns[..i].contains(column) {
                return invalid(format!("it names column '{}' twice", field.name()));
            }
            types.push((field.name().as_str(), field.data_type()));
        }
        if types.is_empty() {
            return invalid("it names no column".into());
        }
        let kind = self.kind.of();
        if self.unique && !kind.can_be_unique() {
            return invalid(format!("a {} index can't be unique", self.kind));
        }
        self.check_options(kind.options())?;
        kind.check(self, &types).or_else(invalid)
    }

    /// The metric that an `lsh` index over a column of this type serves; `None` for others.
    pub fn metric(&self, data_type: &DataType) -> Option<Metric> {
        if self.kind != IndexKind::Lsh {
            return None;
        }
        let builder = lsh::builder(self, data_type).ok();
        builder.map(|builder| builder.metric())
    }

    fn check_options(&self, known: &[&str]) -> Result<()> {
        match self.options.keys().find(|k| !known.contains(&k.as_str())) {
            None => Ok(()),
            Some(unknown) => {
                let known = match known {
                    [] => "it has none".to_string(),
                    known => format!("it has: {}", known.join(", ")),
                };
                Err(StorageError::Invalid(format!(
                    "index '{}': a {} index has no option '{unknown}'; {known}",
                    self.name, self.kind
                )))
            }
        }
    }
}

/// An index of one version of a table.
#[derive(Debug)]
pub struct Index {
    /// What it is.
    pub definition: IndexDefinition,
    /// Its parts, no two of which cover a segment.
    pub parts: Vec<Arc<IndexPart>>,
    /// The segments that no part covers, in row order: whoever asks the index looks at them
    /// besides. A unique index has none.
    pub tail: Vec<Arc<Segment>>,
    /// What is made of it as a whole.
    derived: OnceLock<Opened>,
}

impl Index {
    /// An index of these parts, which do not cover the segments `tail`.
    pub fn new(
        definition: IndexDefinition,
        parts: Vec<Arc<IndexPart>>,
        tail: Vec<Arc<Segment>>,
    ) -> Self {
        Self {
            definition,
            parts,
            tail,
            derived: OnceLock::new(),
        }
    }

    /// Rows of the segments that no part covers.
    pub fn tail_rows(&self) -> u64 {
        self.tail
            .iter()
            .map(|segment| u64::from(segment.rows))
            .sum()
    }

    /// # Errors
    /// `Invalid` for an index of another kind, of which `what` is said.
    pub(crate) fn check_kind(&self, kind: IndexKind, what: &str) -> Result<()> {
        if self.definition.kind == kind {
            return Ok(());
        }
        Err(StorageError::Invalid(format!(
            "'{}' is a {} index; {what} by an {kind} index",
            self.definition.name, self.definition.kind
        )))
    }

    /// What `make` makes of the index, made once.
    pub(crate) fn derived<T: Send + Sync + 'static>(
        &self,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        of_kind(Arc::clone(once(&self.derived, || Ok(Arc::new(make()?)))?))
    }
}

/// What a cell keeps, opened by whoever comes first.
fn once(cell: &OnceLock<Opened>, open: impl FnOnce() -> Result<Opened>) -> Result<&Opened> {
    match cell.get() {
        Some(known) => Ok(known),
        None => {
            let new = open()?;
            Ok(cell.get_or_init(|| new))
        }
    }
}

fn of_kind<T: Send + Sync + 'static>(opened: Opened) -> Result<Arc<T>> {
    opened.downcast().map_err(|_| opened_otherwise())
}

fn opened_otherwise() -> StorageError {
    StorageError::Invalid("an index was opened as another kind's".into())
}

/// The content of a part before it is stored.
#[derive(Debug, Clone, Default)]
pub struct PartData {
    /// Its arrays, each in slices of at most 65,536 values.
    pub arrays: Vec<Vec<ArrayRef>>,
    /// Whatever else the kind keeps: a protobuf message.
    pub meta: Vec<u8>,
}

impl PartData {
    /// Cuts an array into slices that can be stored.
    pub fn slices(array: &ArrayRef) -> Vec<ArrayRef> {
        (0..array.len())
            .step_by(SEGMENT_ROWS)
            .map(|start| array.slice(start, SEGMENT_ROWS.min(array.len() - start)))
            .collect()
    }
}

/// A stored part.
#[derive(Debug)]
pub struct IndexPart {
    /// Its number, unlike any segment's of the table.
    pub id: SegmentId,
    /// The commit that wrote it.
    pub generation: u32,
    /// The segments that it covers, and the rows of each, in the order in which it numbers them.
    pub covers: Vec<(SegmentId, u32)>,
    /// Its arrays.
    pub arrays: Vec<IndexArray>,
    /// Its metadata.
    pub meta: Vec<u8>,
    /// Its pages, where a transaction has written them.
    pub(crate) unnamed: OnceLock<Unnamed>,
    /// The part that its transaction's commit made of it, which has the same pages.
    pub(crate) committed: OnceLock<Arc<IndexPart>>,
    pub(crate) retired: OnceLock<Arc<PageStore>>,
    /// What stands in its place with some of the pages elsewhere; the others are those of both.
    pub(crate) successor: OnceLock<Arc<IndexPart>>,
    /// What the kind has made of the metadata.
    pub(crate) opened: OnceLock<Opened>,
}

/// One long array of a part.
#[derive(Debug)]
pub struct IndexArray {
    /// The type of its values.
    pub data_type: DataType,
    /// Its values, up to 65,536 in a chunk.
    pub chunks: Vec<Arc<Chunk>>,
}

impl IndexPart {
    /// Rows of the segments that it covers.
    pub fn rows(&self) -> u64 {
        self.covers.iter().map(|(_, rows)| u64::from(*rows)).sum()
    }

    /// Its chunks.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let chunks = self.arrays.iter().flat_map(|array| &array.chunks);
        chunks.map(AsRef::as_ref)
    }

    /// The same with its runs of pages where `place_of` says.
    pub(crate) fn moved(&self, place_of: impl Fn(PageAddress) -> PageAddress) -> Self {
        let arrays = self.arrays.iter().map(|array| IndexArray {
            data_type: array.data_type.clone(),
            chunks: array
                .chunks
                .iter()
                .map(|chunk| Arc::new(chunk.moved(&place_of)))
                .collect(),
        });
        Self {
            arrays: arrays.collect(),
            covers: self.covers.clone(),
            meta: self.meta.clone(),
            unnamed: OnceLock::new(),
            committed: OnceLock::new(),
            retired: OnceLock::new(),
            successor: OnceLock::new(),
            opened: OnceLock::new(),
            ..*self
        }
    }

    /// Gives its pages back to `store` once the last reference to it is gone.
    pub(crate) fn retire(&self, store: &Arc<PageStore>) {
        let _ = self.retired.set(Arc::clone(store));
    }

    /// As [`IndexPart::retire`], of a part in whose place this one stands: pages that both have are
    /// given back when neither is there.
    pub(crate) fn retire_moved(&self, moved: &Arc<Self>, store: &Arc<PageStore>) {
        let _ = self.successor.set(Arc::clone(moved));
        self.retire(store);
    }

    /// The part of an index of this kind, opened once.
    pub(crate) fn opened<T: Send + Sync + 'static>(
        &self,
        kind: IndexKind,
        reader: &mut PageReader,
    ) -> Result<Arc<T>> {
        of_kind(Arc::clone(self.opened_once(kind, reader)?))
    }

    /// The same for as long as the part is held: a key is looked for in tens of parts, and threads that
    /// count their uses of each would take the counters from each other.
    pub(crate) fn opened_here<T: Send + Sync + 'static>(
        &self,
        kind: IndexKind,
        reader: &mut PageReader,
    ) -> Result<&T> {
        let opened = self.opened_once(kind, reader)?;
        opened.downcast_ref().ok_or_else(opened_otherwise)
    }

    fn opened_once(&self, kind: IndexKind, reader: &mut PageReader) -> Result<&Opened> {
        once(&self.opened, || kind.of().open(self, reader))
    }
}

impl Drop for IndexPart {
    fn drop(&mut self) {
        if let Some(store) = self.retired.get() {
            let successor = self.successor.get().into_iter();
            free_chunks(
                store,
                self.chunks(),
                successor.flat_map(|part| part.chunks()),
            );
        }
    }
}

/// Writes arrays as chunks, so many at a time as there are threads; `identity_of` numbers them.
///
/// # Errors
/// Those of [`encode_chunk`]; `Full`, `Io`.
pub(crate) fn write_chunks(
    writer: &mut PageWriter,
    identity_of: impl Fn(usize) -> ChunkIdentity + Sync,
    label: &Arc<str>,
    arrays: &[&ArrayRef],
    threads: usize,
) -> Result<Vec<Chunk>> {
    let mut chunks = Vec::with_capacity(arrays.len());
    for (group, arrays) in arrays.chunks(threads.max(1)).enumerate() {
        let first = group * threads.max(1);
        let encode = |place: usize| encode_chunk(arrays[place], identity_of(first + place));
        let encoded: Vec<_> = if arrays.len() == 1 {
            vec![encode(0)]
        } else {
            std::thread::scope(|scope| {
                let encode = &encode;
                let running: Vec<_> = (0..arrays.len())
                    .map(|place| scope.spawn(move || encode(place)))
                    .collect();
                let ended = running.into_iter().map(|thread| {
                    let failed = || StorageError::Invalid("encoding an array failed".into());
                    thread.join().unwrap_or_else(|_| Err(failed()))
                });
                ended.collect()
            })
        };
        for (place, encoded) in encoded.into_iter().enumerate() {
            let (encoded, identity) = (encoded?, identity_of(first + place));
            let count = encoded.pages.len() as u32;
            let run = PageRun {
                first: writer.append(encoded.pages)?,
                count,
                identity: identity.first_page(),
                label: Arc::clone(label),
                part: None,
            };
            chunks.push(Chunk::new(run, u32::from(encoded.aux_pages), encoded.zones));
        }
    }
    Ok(chunks)
}
