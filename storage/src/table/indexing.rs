//! Building index parts, and keeping them up as segments come.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::index::adjacency::AdjacencyBuilder;
use crate::index::{
    Index, IndexArray, IndexDefinition, IndexKind, IndexPart, PartData, hash, ngram, write_chunks,
};
use crate::page::ChunkIdentity;
use crate::store::{PageReader, Reservation};
use crate::table::catalog::PutTable;
use crate::table::database::{Commit, TableState, make_snapshot};
use crate::table::manifest::{PartRecord, TableRecord, encode_definition, encode_part};
use crate::table::{Database, Segment, SegmentId, TableId, TableSnapshot, read_column};
use crate::{Result, StorageError};

/// Parts of an index from which on small ones are merged when one more comes.
const MERGE_FROM_PARTS: usize = 8;

impl Database {
    /// Makes an index over a table. Its rows stay readable meanwhile; rows that other writers add
    /// before it is done are in it too.
    ///
    /// # Errors
    /// `AlreadyExists`, `NotFound`, `Invalid` (columns of a wrong type, an unknown option, two
    /// rows of one key in a unique index), `Full`, `Io`, `Corrupt`. After an error nothing has
    /// changed.
    pub fn create_index(
        self: &Arc<Self>,
        schema: &str,
        table: &str,
        definition: IndexDefinition,
    ) -> Result<()> {
        self.check_writable()?;
        let before = self.table_state(schema, table)?;
        definition.check(&before.snapshot.schema)?;
        self.check_index_name(schema, &definition.name)?;
        let mut parts = NewParts::new(
            self,
            before.snapshot.id,
            format!("{schema}.{table}"),
            Arc::clone(&before.snapshot.schema),
            self.next_generation()?,
            Arc::clone(&before.next_segment),
        );
        parts.prepare(&definition, &[], &[], &before.snapshot.segments)?;
        let commit = |present: Option<&TableState>| {
            let present = present
                .filter(|t| t.snapshot.id == before.snapshot.id)
                .ok_or_else(|| not_found("table", &format!("{schema}.{table}")))?;
            self.check_index_name(schema, &definition.name)?;
            let snapshot = &present.snapshot;
            let index = parts.extend(&definition, &[], &[], &snapshot.segments)?;
            parts.sync()?;
            let mut record = (*present.record).clone();
            record.version += 1;
            record.next_segment = present.next_segment.load(Ordering::Relaxed);
            record.indexes.push(encode_definition(&definition));
            let mut indexes = snapshot.indexes.clone();
            indexes.push(index);
            let mut commit = index_commit(schema, table, present, record, indexes);
            commit.put.new_parts = parts.records();
            Ok(commit)
        };
        self.commit_table(commit, schema, table)?;
        for reservation in parts.into_reservations() {
            reservation.keep();
        }
        Ok(())
    }

    /// Drops an index. Queries that use it end undisturbed.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a primary key, which goes with its table.
    pub fn drop_index(&self, schema: &str, name: &str) -> Result<()> {
        self.check_writable()?;
        let (table, _, index) = self.index(schema, name)?;
        if index.definition.primary {
            return Err(StorageError::Invalid(format!(
                "index '{name}' is the primary key of table '{table}'; it can't be dropped alone"
            )));
        }
        let commit = |present: Option<&TableState>| {
            let present =
                present.ok_or_else(|| not_found("table", &format!("{schema}.{table}")))?;
            let snapshot = &present.snapshot;
            let dropped = snapshot
                .index(name)
                .ok_or_else(|| not_found("index", name))?;
            let mut record = (*present.record).clone();
            record.version += 1;
            record.indexes.retain(|index| index.name != name);
            let kept = snapshot
                .indexes
                .iter()
                .filter(|i| i.definition.name != name);
            let mut commit = index_commit(schema, &table, present, record, kept.cloned().collect());
            commit.put.drop_parts = dropped.parts.iter().map(|part| part.id).collect();
            commit.retired_parts.clone_from(&dropped.parts);
            Ok(commit)
        };
        self.commit_table(commit, schema, &table)
    }

    /// The index of that name in a schema, with its table's name and present version.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn index(
        &self,
        schema: &str,
        name: &str,
    ) -> Result<(String, Arc<TableSnapshot>, Arc<Index>)> {
        for table in self.tables(schema) {
            // A table that is dropped meanwhile has no index either.
            if let Ok(snapshot) = self.snapshot(schema, &table)
                && let Some(index) = snapshot.index(name)
            {
                let index = Arc::clone(index);
                return Ok((table, snapshot, index));
            }
        }
        Err(not_found("index", name))
    }

    /// The names of a new table's indexes must be free, but for those of the table that it
    /// replaces.
    pub(super) fn check_index_names(
        &self,
        schema: &str,
        table: &str,
        indexes: &[IndexDefinition],
    ) -> Result<()> {
        for (i, index) in indexes.iter().enumerate() {
            let is_twice = indexes[..i].iter().any(|other| other.name == index.name);
            let owner = self.index(schema, &index.name).ok();
            if is_twice || owner.is_some_and(|(owner, ..)| owner != table) {
                return Err(StorageError::AlreadyExists {
                    kind: "index",
                    name: index.name.clone(),
                });
            }
        }
        Ok(())
    }

    fn check_index_name(&self, schema: &str, name: &str) -> Result<()> {
        match self.index(schema, name) {
            Err(_) => Ok(()),
            Ok(_) => Err(StorageError::AlreadyExists {
                kind: "index",
                name: name.into(),
            }),
        }
    }
}

/// A commit that changes a table's indexes alone.
fn index_commit(
    schema: &str,
    table: &str,
    present: &TableState,
    record: TableRecord,
    indexes: Vec<Arc<Index>>,
) -> Commit {
    let snapshot = &present.snapshot;
    Commit {
        put: PutTable {
            schema: schema.into(),
            name: table.into(),
            id: snapshot.id,
            record: record.clone(),
            new_segments: Vec::new(),
            replace_segments: false,
            new_parts: Vec::new(),
            drop_parts: Vec::new(),
        },
        snapshot: Arc::new(make_snapshot(
            snapshot.id,
            snapshot.name.clone(),
            Arc::clone(&snapshot.schema),
            &record,
            snapshot.segments.clone(),
            indexes,
        )),
        next_segment: Arc::clone(&present.next_segment),
        retired: Vec::new(),
        retired_parts: Vec::new(),
    }
}

fn not_found(kind: &'static str, name: &str) -> StorageError {
    StorageError::NotFound {
        kind,
        name: name.into(),
    }
}

/// The index parts of one commit. Dropped without [`NewParts::into_reservations`], they give
/// their pages back.
#[derive(Debug)]
pub(super) struct NewParts {
    database: Arc<Database>,
    table: TableId,
    /// `schema.table`.
    name: String,
    schema: SchemaRef,
    generation: u32,
    next_segment: Arc<AtomicU32>,
    prepared: HashMap<String, Prepared>,
    /// Parts that the commit publishes, with their index.
    published: Vec<(String, Arc<IndexPart>)>,
    reservations: Vec<Reservation>,
    is_synced: bool,
}

#[derive(Debug)]
struct Prepared {
    part: Arc<IndexPart>,
    /// Hashes of its keys, ascending, when they must be unique.
    hashes: Vec<u64>,
    merged: Vec<SegmentId>,
    /// Its pages; a part that is not published gives them back.
    reservation: Reservation,
}

impl NewParts {
    pub fn new(
        database: &Arc<Database>,
        table: TableId,
        name: String,
        schema: SchemaRef,
        generation: u32,
        next_segment: Arc<AtomicU32>,
    ) -> Self {
        Self {
            database: Arc::clone(database),
            table,
            name,
            schema,
            generation,
            next_segment,
            prepared: HashMap::new(),
            published: Vec::new(),
            reservations: Vec::new(),
            is_synced: true,
        }
    }

    /// Builds the part of an index for `new` segments, merged with those of the `old` parts that
    /// are small beside it. `segments` are the table's before.
    pub fn prepare(
        &mut self,
        definition: &IndexDefinition,
        old: &[Arc<IndexPart>],
        segments: &[Arc<Segment>],
        new: &[Arc<Segment>],
    ) -> Result<()> {
        definition.check(&self.schema)?;
        if new.is_empty() {
            return Ok(());
        }
        let merged = small_parts(old, new.iter().map(|s| u64::from(s.rows)).sum());
        let ids: HashSet<SegmentId> = merged
            .iter()
            .flat_map(|part| part.covers.iter().map(|(id, _)| *id))
            .collect();
        let covered = segments.iter().filter(|s| ids.contains(&s.id)).chain(new);
        let covered: Vec<_> = covered.cloned().collect();
        let mut prepared = self.build(definition, &covered)?;
        prepared.merged = merged.iter().map(|part| part.id).collect();
        self.prepared.insert(definition.name.clone(), prepared);
        Ok(())
    }

    /// The index over `old` parts and `new` segments: with the part that was prepared, if it
    /// still fits, else with one that is built now. Runs under the commit lock.
    pub fn extend(
        &mut self,
        definition: &IndexDefinition,
        old: &[Arc<IndexPart>],
        segments: &[Arc<Segment>],
        new: &[Arc<Segment>],
    ) -> Result<Arc<Index>> {
        let mut parts = old.to_vec();
        if !new.is_empty() {
            let fits = |prepared: &Prepared| {
                let merged = old.iter().filter(|part| prepared.merged.contains(&part.id));
                let ids = merged.flat_map(|part| part.covers.iter().map(|(id, _)| *id));
                let wanted: HashSet<_> = ids.chain(new.iter().map(|s| s.id)).collect();
                let found: HashSet<_> = prepared.part.covers.iter().map(|(id, _)| *id).collect();
                wanted == found
            };
            let prepared = match self.prepared.remove(&definition.name) {
                Some(prepared) if fits(&prepared) => prepared,
                _ => self.build(definition, new)?,
            };
            parts.retain(|part| !prepared.merged.contains(&part.id));
            if definition.unique {
                let all: Vec<_> = segments.iter().chain(new).cloned().collect();
                self.check_unique(definition, &prepared, &parts, &all)?;
            }
            parts.push(Arc::clone(&prepared.part));
            self.reservations.push(prepared.reservation);
            self.published
                .push((definition.name.clone(), prepared.part));
        }
        Ok(Arc::new(Index::new(definition.clone(), parts)))
    }

    /// Parts of `old` that [`extend`](Self::extend) has merged into new ones.
    pub fn retired(&self, old: &[Arc<Index>]) -> Vec<Arc<IndexPart>> {
        let mut retired = Vec::new();
        for (name, new) in &self.published {
            let covered: HashSet<_> = new.covers.iter().map(|(id, _)| *id).collect();
            let parts = old
                .iter()
                .filter(|index| index.definition.name == *name)
                .flat_map(|index| &index.parts);
            let merged = parts.filter(|p| p.covers.iter().any(|(id, _)| covered.contains(id)));
            retired.extend(merged.cloned());
        }
        retired
    }

    /// Makes the pages durable.
    pub fn sync(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_synced, true) {
            self.database.store().sync()?;
        }
        Ok(())
    }

    /// What the manifest is told.
    pub fn records(&self) -> Vec<(SegmentId, PartRecord)> {
        self.published
            .iter()
            .map(|(index, part)| (part.id, encode_part(part, index)))
            .collect()
    }

    /// The pages, to be kept once the commit is durable.
    pub fn into_reservations(self) -> Vec<Reservation> {
        self.reservations
    }

    fn build(
        &mut self,
        definition: &IndexDefinition,
        segments: &[Arc<Segment>],
    ) -> Result<Prepared> {
        let mut reader = self.database.store().reader()?;
        let (data, hashes) = match definition.kind {
            IndexKind::Hash => {
                let mut builder = hash::Builder::default();
                for segment in segments {
                    builder.add(&self.key_columns(definition, segment, &mut reader)?)?;
                }
                let (data, entries) = builder.finish();
                let mut hashes = Vec::new();
                if definition.unique {
                    self.check_twins(definition, segments, &entries, &mut reader)?;
                    hashes = entries.into_iter().map(|(hash, _)| hash).collect();
                }
                (data, hashes)
            }
            IndexKind::Lsh => {
                let column = definition.columns[0] as usize;
                let mut builder = definition.lsh(self.schema.field(column).data_type())?;
                for segment in segments {
                    let columns = self.key_columns(definition, segment, &mut reader)?;
                    builder.add(segment.id, &columns[0])?;
                }
                (builder.finish()?, Vec::new())
            }
            IndexKind::Adjacency => {
                let data_type = |i: usize| {
                    let column = definition.columns[i] as usize;
                    self.schema.field(column).data_type()
                };
                let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
                let has_weights = definition.columns.len() > 2;
                let mut builder =
                    AdjacencyBuilder::new(data_type(0), data_type(1), has_weights, threads)?;
                for segment in segments {
                    let columns = self.key_columns(definition, segment, &mut reader)?;
                    let weights = columns.get(2).map(|weights| weights.as_ref());
                    builder.add(segment.id.0, &columns[0], &columns[1], weights)?;
                }
                (builder.finish()?, Vec::new())
            }
            IndexKind::Ngram => (self.ngrams(definition, segments)?, Vec::new()),
        };
        let (part, reservation) = self.write(definition, segments, data)?;
        Ok(Prepared {
            part: Arc::new(part),
            hashes,
            merged: Vec::new(),
            reservation,
        })
    }

    /// The parts of an n-gram index, a slice for each segment, made by as many threads as there
    /// are.
    fn ngrams(&self, definition: &IndexDefinition, segments: &[Arc<Segment>]) -> Result<PartData> {
        let ordinal = definition.columns[0] as usize;
        let data_type = self.schema.field(ordinal).data_type();
        let build = |segments: &[Arc<Segment>]| -> Result<Vec<ArrayRef>> {
            let mut reader = self.database.store().reader()?;
            let parts = segments.iter().map(|segment| {
                let column = read_column(&mut reader, segment, ordinal, data_type)?;
                ngram::build(&column, &ngram_blocks(segment, ordinal))
            });
            parts.collect()
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let share = segments.len().div_ceil(threads).max(1);
        let parts = std::thread::scope(|scope| {
            let running: Vec<_> = segments
                .chunks(share)
                .map(|segments| scope.spawn(|| build(segments)))
                .collect();
            let ended = running.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| {
                    Err(StorageError::Invalid(
                        "building an ngram index failed".into(),
                    ))
                })
            });
            ended.collect::<Result<Vec<_>>>()
        })?;
        Ok(PartData {
            arrays: vec![parts.into_iter().flatten().collect()],
            meta: Vec::new(),
        })
    }

    fn key_columns(
        &self,
        definition: &IndexDefinition,
        segment: &Segment,
        reader: &mut PageReader,
    ) -> Result<Vec<ArrayRef>> {
        let columns = definition.columns.iter().map(|column| {
            let ordinal = *column as usize;
            let data_type = self.schema.field(ordinal).data_type();
            read_column(reader, segment, ordinal, data_type)
        });
        columns.collect()
    }

    fn write(
        &mut self,
        definition: &IndexDefinition,
        segments: &[Arc<Segment>],
        data: PartData,
    ) -> Result<(IndexPart, Reservation)> {
        let id = SegmentId(self.next_segment.fetch_add(1, Ordering::Relaxed));
        let label: Arc<str> = format!("table '{}', index '{}'", self.name, definition.name).into();
        let mut pages = self.database.store().writer()?;
        let slices: Vec<&ArrayRef> = data.arrays.iter().flatten().collect();
        if slices.len() > usize::from(u16::MAX) {
            return Err(StorageError::Invalid(format!(
                "index '{}': a part of it would be larger than 65,535 arrays of 65,536 values",
                definition.name
            )));
        }
        let identity_of = |number: usize| ChunkIdentity {
            table: self.table.0,
            segment: id.0,
            column_group: number as u16,
            generation: self.generation,
        };
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let chunks = write_chunks(&mut pages, identity_of, &label, &slices, threads)?;
        let mut chunks = chunks.into_iter();
        let arrays = data.arrays.iter().map(|slices| IndexArray {
            data_type: slices
                .first()
                .map_or(DataType::Null, |slice| slice.data_type().clone()),
            chunks: chunks.by_ref().take(slices.len()).collect(),
        });
        let arrays = arrays.collect();
        self.is_synced = false;
        let part = IndexPart {
            id,
            generation: self.generation,
            covers: segments.iter().map(|s| (s.id, s.rows)).collect(),
            arrays,
            meta: data.meta,
            retired: OnceLock::new(),
            opened: OnceLock::new(),
        };
        Ok((part, pages.finish()?))
    }

    /// Two rows of equal hashes must have different keys. `entries` ascend and number rows through
    /// `segments`.
    fn check_twins(
        &self,
        definition: &IndexDefinition,
        segments: &[Arc<Segment>],
        entries: &[(u64, u32)],
        reader: &mut PageReader,
    ) -> Result<()> {
        let mut starts = Vec::with_capacity(segments.len());
        let mut next = 0u64;
        for segment in segments {
            starts.push(next);
            next += u64::from(segment.rows);
        }
        let place = |row: u32| {
            let segment = starts.partition_point(|start| *start <= u64::from(row)) - 1;
            (
                &segments[segment],
                (u64::from(row) - starts[segment]) as usize,
            )
        };
        for pair in entries.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            self.check_pair(definition, place(pair[0].1), place(pair[1].1), reader)?;
        }
        Ok(())
    }

    fn check_pair(
        &self,
        definition: &IndexDefinition,
        a: (&Arc<Segment>, usize),
        b: (&Arc<Segment>, usize),
        reader: &mut PageReader,
    ) -> Result<()> {
        let keys_a = self.key_columns(definition, a.0, reader)?;
        let keys_b = self.key_columns(definition, b.0, reader)?;
        for (x, y) in keys_a.iter().zip(&keys_b) {
            if make_comparator(x, y, SortOptions::default())?(a.1, b.1).is_ne() {
                return Ok(());
            }
        }
        let options = FormatOptions::default();
        let key = keys_a
            .iter()
            .map(|column| {
                Ok(ArrayFormatter::try_new(column, &options)?
                    .value(a.1)
                    .to_string())
            })
            .collect::<Result<Vec<_>>>()?;
        let fields = self.schema.fields();
        let names: Vec<_> = definition
            .columns
            .iter()
            .map(|c| fields[*c as usize].name().as_str())
            .collect();
        let index = if definition.primary {
            "the primary key".to_string()
        } else {
            format!("unique index '{}'", definition.name)
        };
        Err(StorageError::DuplicateKey {
            columns: names.join(", "),
            values: format!(" = ({})", key.join(", ")),
            index,
            table: self.name.clone(),
        })
    }

    /// No key of the new part may be in another one.
    fn check_unique(
        &self,
        definition: &IndexDefinition,
        new: &Prepared,
        others: &[Arc<IndexPart>],
        segments: &[Arc<Segment>],
    ) -> Result<()> {
        let mut reader = self.database.store().reader()?;
        for part in others {
            let mut found = Vec::new();
            hash::probe(part, &new.hashes, &mut reader, |i, segment, row| {
                found.push((new.hashes[i], segment, row));
            })?;
            for (hash, segment, row) in found {
                let mut own = Vec::new();
                hash::probe(&new.part, &[hash], &mut reader, |_, segment, row| {
                    own.push((segment, row));
                })?;
                let place = |id: SegmentId, row: u32| {
                    let segment = segments.iter().find(|s| s.id == id);
                    segment.map(|segment| (segment, row as usize))
                };
                let Some(there) = place(segment, row) else {
                    continue;
                };
                for (segment, row) in own {
                    if let Some(here) = place(segment, row) {
                        self.check_pair(definition, there, here, &mut reader)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The rows of a segment that an n-gram index tells apart: those of each page of the column.
pub(crate) fn ngram_blocks(segment: &Segment, ordinal: usize) -> Vec<std::ops::Range<u32>> {
    let zones = segment
        .chunks
        .get(ordinal)
        .map_or(&[][..], |chunk| &chunk.zones);
    zones
        .iter()
        .filter(|zone| zone.row_count > 0)
        .map(|zone| zone.first_row..zone.first_row + zone.row_count)
        .collect()
}

/// The parts that are small beside one of `rows` rows, smallest first: merging them with it costs
/// no more than a few times what it costs itself, so that each row is merged only as often as the
/// logarithm of the table's rows.
fn small_parts(old: &[Arc<IndexPart>], rows: u64) -> Vec<Arc<IndexPart>> {
    if old.len() < MERGE_FROM_PARTS {
        return Vec::new();
    }
    let mut by_size = old.to_vec();
    by_size.sort_by_key(|part| part.rows());
    let mut merged_rows = rows;
    by_size
        .into_iter()
        .take_while(|part| {
            let is_small = part.rows() <= 2 * merged_rows;
            merged_rows += part.rows();
            is_small
        })
        .collect()
}
