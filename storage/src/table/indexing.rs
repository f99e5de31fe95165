//! Making and dropping indexes, and the parts that commits bring.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, SchemaRef};

use crate::flash::PAGE_SIZE_BYTES;
use crate::index::kind::Source;
use crate::index::pace::Pace;
use crate::index::{Index, IndexArray, IndexDefinition, IndexPart, PartData, hash, write_chunks};
use crate::memory::{Charge, MemoryBudget};
use crate::page::ChunkIdentity;
use crate::segment::{Segment, SegmentId, TableId, Unnamed, write_page_indexes};
use crate::store::{PageStore, Reservation};
use crate::table::change::{conflict, has_types_of};
use crate::table::database::Core;
use crate::table::edit::{ObjectName, Operation, Precondition, PutPart, PutTable, TableEdit};
use crate::table::manifest::{TableRecord, encode_definition, encode_part};
use crate::table::state::{TableState, not_found};
use crate::table::steps::{NewIndex, Step};
use crate::table::unique::Keys;
use crate::table::upkeep::Sizes;
use crate::table::writing::take_segment;
use crate::table::{Database, TableSnapshot, UpkeepOptions};
use crate::{Result, StorageError};

impl Database {
    /// The index of that name in a schema, with its table's name and present version.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn index(
        &self,
        schema: &str,
        name: &str,
    ) -> Result<(String, Arc<TableSnapshot>, Arc<Index>)> {
        let state = self.state.read();
        let (table, state, index) =
            state
                .index(schema, name)
                .ok_or_else(|| StorageError::NotFound {
                    kind: "index",
                    name: name.into(),
                })?;
        let snapshot = Arc::clone(&state.snapshot);
        Ok((table.name.clone(), snapshot, Arc::clone(index)))
    }
}

/// The step that makes an index of a table, which is as `before` now. Its parts are built here, while
/// nobody waits.
///
/// # Errors
/// `Invalid` for columns of a wrong type or an unknown option, and for two rows of one key in a unique
/// index; `Full`, `Io`, `Corrupt`.
pub(super) fn index_created(
    core: &Core,
    name: ObjectName,
    before: &TableState,
    definition: IndexDefinition,
) -> Result<Step> {
    definition.check(&before.snapshot.schema)?;
    let mut parts = NewParts::new(PartBuilder::of(core, before)?);
    parts.build(&definition, &before.snapshot.segments)?;
    Ok(Step::Index(Box::new(NewIndex {
        name,
        table: before.snapshot.id,
        definition,
        parts,
    })))
}

/// The edit that adds an index to a table as it is, with those of `parts` that fit.
pub(super) fn index_added(
    name: &ObjectName,
    present: &TableState,
    definition: &IndexDefinition,
    parts: &mut NewParts,
) -> Result<TableEdit> {
    if present.snapshot.index(&definition.name).is_some() {
        return Err(StorageError::AlreadyExists {
            kind: "index",
            name: definition.name.clone(),
        });
    }
    if !has_types_of(&present.snapshot.schema, &parts.builder.schema) {
        return Err(conflict(name));
    }
    let mut of_index = Vec::new();
    parts.start();
    let segments = &present.snapshot.segments;
    let count = parts.publish(definition, &[], &[], segments, &mut of_index)?;
    let mut record = (*present.record).clone();
    record.next_segment = present.next_segment.load(Ordering::Relaxed);
    record.indexes.push(encode_definition(definition));
    record.parts += count as u64;
    let mut edit = index_edit(name, present, record);
    let index = ObjectName::new(&name.schema, &definition.name);
    edit.require(Precondition::NoIndex(index));
    of_index
        .into_iter()
        .for_each(|operation| edit.push(operation));
    Ok(edit)
}

/// The edit that drops an index of a table as it is.
///
/// # Errors
/// `NotFound`; `Invalid` for a primary key.
pub(super) fn index_dropped(
    table: &ObjectName,
    present: &TableState,
    name: &str,
) -> Result<TableEdit> {
    let index = present
        .snapshot
        .index(name)
        .ok_or_else(|| not_found("index", &ObjectName::new(&table.schema, name)))?;
    if index.definition.primary {
        return Err(StorageError::Invalid(format!(
            "index '{name}' is the primary key of table '{}'; it can't be dropped alone",
            table.name
        )));
    }
    let mut record = (*present.record).clone();
    record.indexes.retain(|index| index.name != name);
    record.parts -= index.parts.len() as u64;
    let mut edit = index_edit(table, present, record);
    for part in &index.parts {
        edit.drop_part(present.snapshot.id, part);
    }
    Ok(edit)
}

/// The beginning of an edit that changes a table's indexes alone.
pub(super) fn index_edit(
    name: &ObjectName,
    present: &TableState,
    record: TableRecord,
) -> TableEdit {
    let mut edit = TableEdit::default();
    put_next(&mut edit, name, present, record);
    edit
}

/// Puts what becomes of a table's record in its next version.
pub(super) fn put_next(
    edit: &mut TableEdit,
    name: &ObjectName,
    present: &TableState,
    mut record: TableRecord,
) {
    edit.require(present.version());
    record.version += 1;
    edit.push(Operation::PutTable(PutTable {
        name: name.clone(),
        table: present.snapshot.id.0,
        record,
    }));
}

/// Builds parts of a table's indexes.
#[derive(Debug)]
pub(super) struct PartBuilder {
    store: Arc<PageStore>,
    table: TableId,
    /// `schema.table`.
    name: String,
    schema: SchemaRef,
    generation: u32,
    next_segment: Arc<AtomicU32>,
    options: UpkeepOptions,
    memory: Arc<dyn MemoryBudget>,
    failed_at: OnceLock<Arc<Segment>>,
}

/// A part that no version of the table has yet; dropped, it gives its pages back.
#[derive(Debug)]
pub(super) struct Built {
    pub part: Arc<IndexPart>,
    pub reservation: Unnamed,
    /// Hashes of its keys, ascending, when they must be unique.
    hashes: Vec<u64>,
}

impl PartBuilder {
    pub fn new(
        core: &Core,
        table: TableId,
        name: String,
        schema: &SchemaRef,
        next_segment: &Arc<AtomicU32>,
        generation: u32,
    ) -> Self {
        Self {
            store: Arc::clone(core.store()),
            table,
            name,
            schema: Arc::clone(schema),
            generation,
            next_segment: Arc::clone(next_segment),
            options: core.upkeep_options().clone(),
            memory: Arc::clone(&core.memory),
            failed_at: OnceLock::new(),
        }
    }

    /// Builds parts of indexes of this table.
    ///
    /// # Errors
    /// Those of reserving numbers in the catalog.
    pub fn of(core: &Core, table: &TableState) -> Result<Self> {
        Ok(Self::new(
            core,
            table.snapshot.id,
            table.snapshot.name.clone(),
            &table.snapshot.schema,
            &table.next_segment,
            core.next_generation()?,
        ))
    }

    /// Segments in groups of which each can be a part.
    fn divide<'a>(
        &self,
        definition: &IndexDefinition,
        mut segments: &'a [Arc<Segment>],
    ) -> Vec<&'a [Arc<Segment>]> {
        let sizes = Sizes::new(definition, &self.schema, &self.options);
        let mut groups = Vec::new();
        while !segments.is_empty() {
            let (group, left) = segments.split_at(sizes.fitting(segments));
            groups.push(group);
            segments = left;
        }
        groups
    }

    /// Builds a part.
    ///
    /// # Errors
    /// Two rows of one key in a unique index; those of reading and writing pages; `Cancelled`.
    pub fn build(
        &self,
        definition: &IndexDefinition,
        segments: &[Arc<Segment>],
        pace: &Pace,
    ) -> Result<Built> {
        let sizes = Sizes::new(definition, &self.schema, &self.options);
        let bytes = sizes.build_bytes(segments);
        let _charge = Charge::new(&*self.memory, bytes as usize).map_err(|error| {
            StorageError::Invalid(format!(
                "index '{}': building a part of it takes about {bytes} bytes of memory: {error}",
                definition.name
            ))
        })?;
        let data = definition.kind.of().build(&Source {
            definition,
            schema: &self.schema,
            segments,
            store: &self.store,
            pace,
            failed_at: Some(&self.failed_at),
        })?;
        let mut hashes = Vec::new();
        if definition.unique {
            let entries: Vec<_> = hash::entries(&data).collect();
            self.keys(definition).check_twins(segments, &entries)?;
            hashes = entries.into_iter().map(|(hash, _)| hash).collect();
        }
        let (part, reservation) = self.write(definition, segments, data, pace.threads())?;
        Ok(Built {
            part: Arc::new(part),
            reservation: Unnamed::new(reservation),
            hashes,
        })
    }

    /// The segment at which a build failed, if it was at one.
    pub fn failed_at(&self) -> Option<&Arc<Segment>> {
        self.failed_at.get()
    }

    fn keys<'a>(&'a self, definition: &'a IndexDefinition) -> Keys<'a> {
        Keys {
            definition,
            table: &self.name,
            schema: &self.schema,
            store: &self.store,
        }
    }

    fn write(
        &self,
        definition: &IndexDefinition,
        segments: &[Arc<Segment>],
        data: PartData,
        threads: usize,
    ) -> Result<(IndexPart, Reservation)> {
        let id = take_segment(&self.next_segment)?;
        let label: Arc<str> = format!("table '{}', index '{}'", self.name, definition.name).into();
        let mut pages = self.store.small_writer()?;
        let slices: Vec<&ArrayRef> = data.arrays.iter().flatten().collect();
        if slices.len() > usize::from(u16::MAX) {
            return Err(StorageError::Invalid(format!(
                "index '{}': a part of it would be larger than 65,535 arrays of 65,536 values",
                definition.name
            )));
        }
        // They take no more in pages than in memory, but for a header each.
        let bytes_of = |slice: &&ArrayRef| slice.get_array_memory_size().div_ceil(PAGE_SIZE_BYTES);
        pages.start_group(slices.iter().map(|slice| bytes_of(slice) + 2).sum(), None);
        let identity_of = |number: usize| ChunkIdentity {
            table: self.table.0,
            segment: id.0,
            column_group: number as u16,
            generation: self.generation,
        };
        let mut chunks = write_chunks(&mut pages, identity_of, &label, &slices, threads)?;
        write_page_indexes(&mut pages, &label, &mut chunks)?;
        let mut chunks = chunks.into_iter().map(Arc::new);
        let arrays = data.arrays.iter().map(|slices| IndexArray {
            data_type: slices
                .first()
                .map_or(DataType::Null, |slice| slice.data_type().clone()),
            chunks: chunks.by_ref().take(slices.len()).collect(),
        });
        let part = IndexPart {
            id,
            generation: self.generation,
            covers: segments.iter().map(|s| (s.id, s.rows)).collect(),
            arrays: arrays.collect(),
            meta: data.meta,
            unnamed: OnceLock::new(),
            committed: OnceLock::new(),
            retired: OnceLock::new(),
            successor: OnceLock::new(),
            opened: OnceLock::new(),
        };
        Ok((part, pages.finish()?))
    }
}

/// That a commit brings a part.
pub(super) fn put_part(
    table: TableId,
    definition: &IndexDefinition,
    part: &IndexPart,
) -> Operation {
    Operation::PutPart(PutPart {
        table: table.0,
        part: part.id.0,
        record: encode_part(part, &definition.name),
    })
}

/// The index parts of one change. Dropped without [`NewParts::into_reservations`], they give their
/// pages back.
#[derive(Debug)]
pub(super) struct NewParts {
    builder: PartBuilder,
    parts: Vec<NewPart>,
    is_synced: bool,
}

/// A part that was built for a version of the table; it may fit later ones too.
#[derive(Debug)]
struct NewPart {
    definition: IndexDefinition,
    built: Built,
    /// Parts whose keys were compared with its own.
    distinct_from: HashSet<SegmentId>,
    /// The edit at hand publishes it.
    is_published: bool,
}

impl NewParts {
    pub fn new(builder: PartBuilder) -> Self {
        Self {
            builder,
            parts: Vec::new(),
            // The pages of the load's segments are not either.
            is_synced: false,
        }
    }

    /// Begins an edit: what an earlier one was to publish is kept where it fits.
    pub fn start(&mut self) {
        let parts = self.parts.iter_mut();
        parts.for_each(|part| part.is_published = false);
    }

    /// Builds parts of an index over segments.
    ///
    /// # Errors
    /// As [`PartBuilder::build`].
    pub fn build(&mut self, definition: &IndexDefinition, segments: &[Arc<Segment>]) -> Result<()> {
        for segments in self.builder.divide(definition, segments) {
            let built = self.builder.build(definition, segments, &Pace::full())?;
            self.is_synced = false;
            self.parts.push(NewPart {
                definition: definition.clone(),
                built,
                distinct_from: HashSet::new(),
                is_published: false,
            });
        }
        Ok(())
    }

    /// Publishes the parts of an index that cover some of the segments `new`; a unique index, which
    /// has the parts `old` over the segments `kept`, covers all of them then, and has no key twice.
    /// Adds what is to be done to `operations` and gives the number of parts published.
    ///
    /// # Errors
    /// As [`PartBuilder::build`].
    pub fn publish(
        &mut self,
        definition: &IndexDefinition,
        old: &[Arc<IndexPart>],
        kept: &[Arc<Segment>],
        new: &[Arc<Segment>],
        operations: &mut Vec<Operation>,
    ) -> Result<usize> {
        definition.check(&self.builder.schema)?;
        let mut left: HashSet<SegmentId> = new.iter().map(|segment| segment.id).collect();
        let mut places = Vec::new();
        for (place, part) in self.parts.iter().enumerate() {
            let covers = &part.built.part.covers;
            if part.definition == *definition && covers.iter().all(|(id, _)| left.contains(id)) {
                for (id, _) in covers {
                    left.remove(id);
                }
                places.push(place);
            }
        }
        if definition.unique && !left.is_empty() {
            let left = new.iter().filter(|segment| left.contains(&segment.id));
            let built = self.parts.len();
            self.build(definition, &left.cloned().collect::<Vec<_>>())?;
            places.extend(built..self.parts.len());
        }
        let mut parts = old.to_vec();
        for place in &places {
            if definition.unique {
                self.compare(*place, &parts, [kept, new])?;
            }
            let part = &mut self.parts[*place];
            part.is_published = true;
            parts.push(Arc::clone(&part.built.part));
            operations.push(put_part(self.builder.table, definition, &part.built.part));
        }
        Ok(places.len())
    }

    /// Compares the keys of a part with those of others.
    fn compare(
        &mut self,
        place: usize,
        others: &[Arc<IndexPart>],
        segments: [&[Arc<Segment>]; 2],
    ) -> Result<()> {
        let part = &self.parts[place];
        let is_new = |other: &&Arc<IndexPart>| !part.distinct_from.contains(&other.id);
        let others: Vec<_> = others.iter().filter(is_new).collect();
        let keys = self.builder.keys(&part.definition);
        keys.check_unique(&part.built.part, &part.built.hashes, &others, segments)?;
        let compared: Vec<_> = others.iter().map(|other| other.id).collect();
        self.parts[place].distinct_from.extend(compared);
        Ok(())
    }

    /// Makes all pages durable.
    pub fn sync(&mut self) -> Result<()> {
        if !self.is_synced {
            self.builder.store.sync()?;
            self.is_synced = true;
        }
        Ok(())
    }

    /// Whether all pages are durable.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// All pages are durable.
    pub fn set_synced(&mut self) {
        self.is_synced = true;
    }

    /// The key that a row of the table has in an index, in words.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn key_of(&self, index: &IndexDefinition, segment: &Segment, row: u32) -> Result<String> {
        self.builder.keys(index).key_of(segment, row)
    }

    /// Forgets the parts.
    pub fn clear(&mut self) {
        self.parts.clear();
    }

    /// Takes the parts of a later change of the same table.
    pub fn add(&mut self, later: Self) {
        self.is_synced &= later.is_synced;
        self.parts.extend(later.parts);
    }

    /// The parts that the last edit publishes, with their pages.
    pub fn published(&self) -> impl Iterator<Item = (SegmentId, &Unnamed)> {
        let published = self.parts.iter().filter(|part| part.is_published);
        published.map(|part| (part.built.part.id, &part.built.reservation))
    }

    /// The pages of the parts that the last edit publishes, to be kept once it is durable.
    pub fn into_reservations(self) -> impl Iterator<Item = Unnamed> {
        let published = self.parts.into_iter().filter(|part| part.is_published);
        published.map(|part| part.built.reservation)
    }
}
