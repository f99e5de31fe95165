//! Building index parts, and keeping them up as segments come.

use std::collections::HashSet;
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
use crate::table::edit::{
    DropPart, ObjectName, Operation, Precondition, PutPart, PutTable, TableEdit,
};
use crate::table::load::{settle, take_segment};
use crate::table::manifest::{TableRecord, encode_definition, encode_part};
use crate::table::state::{TableState, not_found};
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
    /// rows of one key in a unique index), `Full`, `Io`, `Corrupt`; `NeedsReopening`. After any but
    /// the last nothing has changed.
    pub fn create_index(
        self: &Arc<Self>,
        schema: &str,
        table: &str,
        definition: IndexDefinition,
    ) -> Result<()> {
        self.check_writable()?;
        let before = self.table_state(schema, table)?;
        definition.check(&before.snapshot.schema)?;
        self.check_index_names(schema, "", std::slice::from_ref(&definition))?;
        let mut parts = NewParts::new(
            self,
            before.snapshot.id,
            format!("{schema}.{table}"),
            Arc::clone(&before.snapshot.schema),
            self.next_generation()?,
            Arc::clone(&before.next_segment),
        );
        let name = ObjectName::new(schema, table);
        let committed = self.add_index(&name, &definition, before, &mut parts);
        settle(committed, parts.into_reservations())
    }

    fn add_index(
        &self,
        name: &ObjectName,
        definition: &IndexDefinition,
        before: TableState,
        parts: &mut NewParts,
    ) -> Result<()> {
        let edit_of = |present: &TableState, parts: &mut NewParts| -> Result<TableEdit> {
            let (snapshot, mut of_index) = (&present.snapshot, Vec::new());
            parts.start();
            let count = parts.extend(definition, &[], &[], &snapshot.segments, &mut of_index)?;
            let mut record = (*present.record).clone();
            record.next_segment = present.next_segment.load(Ordering::Relaxed);
            record.indexes.push(encode_definition(definition));
            record.parts += count as u64;
            let mut edit = index_edit(name, present, record);
            edit.require(Precondition::NoIndex(ObjectName::new(
                &name.schema,
                &definition.name,
            )));
            of_index
                .into_iter()
                .for_each(|operation| edit.push(operation));
            Ok(edit)
        };
        edit_of(&before, parts)?;
        loop {
            parts.sync()?;
            let _editing = before.editing.lock();
            let present = self.find_table(name)?;
            let present = present
                .filter(|table| table.snapshot.id == before.snapshot.id)
                .ok_or_else(|| not_found("table", name))?;
            let edit = edit_of(&present, parts)?;
            parts.sync()?;
            if self.commit(&edit)? {
                return Ok(());
            }
        }
    }

    /// Drops an index. Queries that use it end undisturbed.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a primary key, which goes with its table.
    pub fn drop_index(&self, schema: &str, name: &str) -> Result<()> {
        self.check_writable()?;
        loop {
            let (table, _, _) = self.index(schema, name)?;
            let present = self.table_state(schema, &table)?;
            let Some(index) = present.snapshot.index(name) else {
                continue;
            };
            if index.definition.primary {
                return Err(StorageError::Invalid(format!(
                    "index '{name}' is the primary key of table '{table}'; it can't be dropped alone"
                )));
            }
            let mut record = (*present.record).clone();
            record.indexes.retain(|index| index.name != name);
            record.parts -= index.parts.len() as u64;
            let mut edit = index_edit(&ObjectName::new(schema, &table), &present, record);
            for part in &index.parts {
                edit.drop_part(present.snapshot.id, part);
            }
            if self.commit(&edit)? {
                return Ok(());
            }
        }
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
        Err(StorageError::NotFound {
            kind: "index",
            name: name.into(),
        })
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
}

/// The beginning of an edit that changes a table's indexes alone.
fn index_edit(name: &ObjectName, present: &TableState, mut record: TableRecord) -> TableEdit {
    let mut edit = TableEdit::default();
    edit.require(present.version());
    record.version += 1;
    edit.push(Operation::PutTable(PutTable {
        name: name.clone(),
        table: present.snapshot.id.0,
        record,
    }));
    edit
}

/// The index parts of one change. Dropped without [`NewParts::into_reservations`], they give their
/// pages back.
#[derive(Debug)]
pub(super) struct NewParts {
    database: Arc<Database>,
    table: TableId,
    /// `schema.table`.
    name: String,
    schema: SchemaRef,
    generation: u32,
    next_segment: Arc<AtomicU32>,
    built: Vec<Built>,
    is_synced: bool,
}

/// A part that was built for a version of the table; it may fit later ones too.
#[derive(Debug)]
struct Built {
    definition: IndexDefinition,
    part: Arc<IndexPart>,
    /// Hashes of its keys, ascending, when they must be unique.
    hashes: Vec<u64>,
    /// Parts that it takes the place of.
    merged: Vec<SegmentId>,
    /// Parts whose keys were compared with its own.
    distinct_from: HashSet<SegmentId>,
    /// The edit at hand publishes it.
    is_published: bool,
    /// Its pages; a part that is not published gives them back.
    reservation: Reservation,
}

impl Built {
    /// The segments that it brings into the index, if it is a part of this one.
    fn brings(
        &self,
        definition: &IndexDefinition,
        old: &[Arc<IndexPart>],
    ) -> Option<Vec<SegmentId>> {
        let merged = old.iter().filter(|part| self.merged.contains(&part.id));
        let merged: Vec<_> = merged.collect();
        if self.definition != *definition || merged.len() != self.merged.len() {
            return None;
        }
        let merged = merged.iter().flat_map(|part| part.covers.iter().copied());
        let merged: HashSet<_> = merged.collect();
        let new = self.part.covers.iter().filter(|of| !merged.contains(of));
        Some(new.map(|(id, _)| *id).collect())
    }
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
            built: Vec::new(),
            // The pages of the load's segments are not either.
            is_synced: false,
        }
    }

    /// Begins an edit: what an earlier one was to publish is kept where it fits.
    pub fn start(&mut self) {
        self.built
            .iter_mut()
            .for_each(|part| part.is_published = false);
    }

    /// Extends an index of `old` parts over `segments` by `new` segments: with what was built
    /// already, as far as it fits, and a part for the rest, merged with old ones that are small
    /// beside it. Adds what is to be done to `operations` and gives the number of its parts.
    pub fn extend(
        &mut self,
        definition: &IndexDefinition,
        old: &[Arc<IndexPart>],
        segments: &[Arc<Segment>],
        new: &[Arc<Segment>],
        operations: &mut Vec<Operation>,
    ) -> Result<usize> {
        definition.check(&self.schema)?;
        let mut parts = old.to_vec();
        let mut left: HashSet<SegmentId> = new.iter().map(|segment| segment.id).collect();
        for place in 0..self.built.len() {
            if let Some(brought) = self.built[place].brings(definition, &parts)
                && brought.iter().all(|id| left.contains(id))
            {
                left.retain(|id| !brought.contains(id));
                self.publish(place, &mut parts, (segments, new), operations)?;
            }
        }
        if !left.is_empty() {
            let left = new.iter().filter(|segment| left.contains(&segment.id));
            let left: Vec<_> = left.cloned().collect();
            let built = self.build_beside(definition, &parts, segments, &left)?;
            self.built.push(built);
            let place = self.built.len() - 1;
            self.publish(place, &mut parts, (segments, new), operations)?;
        }
        Ok(parts.len())
    }

    /// Builds a part for `new` segments, merged with those of `parts` that are small beside it.
    fn build_beside(
        &mut self,
        definition: &IndexDefinition,
        parts: &[Arc<IndexPart>],
        segments: &[Arc<Segment>],
        new: &[Arc<Segment>],
    ) -> Result<Built> {
        let merged = small_parts(parts, new.iter().map(|s| u64::from(s.rows)).sum());
        let ids: HashSet<SegmentId> = merged
            .iter()
            .flat_map(|part| part.covers.iter().map(|(id, _)| *id))
            .collect();
        let covered = segments.iter().filter(|s| ids.contains(&s.id)).chain(new);
        let covered: Vec<_> = covered.cloned().collect();
        let mut built = self.build(definition, &covered)?;
        built.merged = merged.iter().map(|part| part.id).collect();
        Ok(built)
    }

    /// Puts a part that was built among `parts`, in place of those that it has merged.
    fn publish(
        &mut self,
        place: usize,
        parts: &mut Vec<Arc<IndexPart>>,
        (segments, new): (&[Arc<Segment>], &[Arc<Segment>]),
        operations: &mut Vec<Operation>,
    ) -> Result<()> {
        let built = &self.built[place];
        let (gone, kept) = std::mem::take(parts)
            .into_iter()
            .partition::<Vec<_>, _>(|part| built.merged.contains(&part.id));
        *parts = kept;
        if built.definition.unique {
            let is_new = |part: &&Arc<IndexPart>| !built.distinct_from.contains(&part.id);
            let others: Vec<_> = parts.iter().filter(is_new).cloned().collect();
            let all: Vec<_> = segments.iter().chain(new).cloned().collect();
            self.check_unique(built, &others, &all)?;
            let compared = others.iter().map(|part| part.id);
            self.built[place].distinct_from.extend(compared);
        }
        let built = &mut self.built[place];
        built.is_published = true;
        parts.push(Arc::clone(&built.part));
        for part in gone {
            operations.push(Operation::DropPart(DropPart {
                table: self.table.0,
                part: part.id.0,
            }));
        }
        operations.push(Operation::PutPart(PutPart {
            table: self.table.0,
            part: built.part.id.0,
            record: encode_part(&built.part, &built.definition.name),
        }));
        Ok(())
    }

    /// Makes the pages durable.
    pub fn sync(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.is_synced, true) {
            self.database.store().sync()?;
        }
        Ok(())
    }

    /// The pages of the parts that the last edit publishes, to be kept once it is durable.
    pub fn into_reservations(self) -> impl Iterator<Item = Reservation> {
        let published = self.built.into_iter().filter(|part| part.is_published);
        published.map(|part| part.reservation)
    }

    fn build(&mut self, definition: &IndexDefinition, segments: &[Arc<Segment>]) -> Result<Built> {
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
        Ok(Built {
            definition: definition.clone(),
            part: Arc::new(part),
            hashes,
            merged: Vec::new(),
            distinct_from: HashSet::new(),
            is_published: false,
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
        let id = take_segment(&self.next_segment)?;
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
        new: &Built,
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
                        self.check_pair(&new.definition, there, here, &mut reader)?;
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
