//! The committed state in memory, and how an edit changes it.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use arrow::datatypes::SchemaRef;
use parking_lot::Mutex;

use crate::index::{Index, IndexDefinition, IndexPart};
use crate::segment::{Chunk, Segment, SegmentId, TableId};
use crate::store::{PageRun, PageStore};
use crate::table::catalog::CatalogTable;
use crate::table::checks::decode_checks;
use crate::table::edit::{
    MovePages, ObjectName, Operation, Owner, Precondition, PutTable, TableEdit, TableVersion,
};
use crate::table::history::{CatalogHistory, History, Version};
use crate::table::manifest::{
    TableRecord, decode_definition, decode_deleted, decode_distribution, decode_layout,
    decode_part, decode_segment,
};
use crate::table::schema_record::decode_schema;
use crate::table::temporary::names::is_temporary;
use crate::table::{Accounts, ColumnStatistics, Function, TableSnapshot, View, scan_schema};
use crate::{Result, StorageError};

/// Segments that a commit brings of which each is looked for one after the other.
const MAX_NEW_SEGMENTS: usize = 16;

/// The committed state, as readers see it.
#[derive(Debug, Default, Clone)]
pub(super) struct State {
    pub schemas: Vec<String>,
    pub tables: HashMap<ObjectName, TableState>,
    /// Tables whose records are damaged, and how.
    pub damaged: BTreeMap<ObjectName, String>,
    pub views: BTreeMap<ObjectName, Arc<View>>,
    pub functions: BTreeMap<String, Arc<Function>>,
    /// Counts their changes.
    pub functions_version: u64,
    pub accounts: Arc<Accounts>,
}

/// A table at its current version.
#[derive(Debug, Clone)]
pub(super) struct TableState {
    pub snapshot: Arc<TableSnapshot>,
    pub record: Arc<TableRecord>,
    /// What errors call its parts.
    pub labels: Arc<Labels>,
    /// Its past versions.
    pub history: History,
    /// First segment number that no load has taken.
    pub next_segment: Arc<AtomicU32>,
    /// The place in the row order behind its last segment.
    pub next_order: u64,
    /// Held by those who make edits from the current version, so that they need not make them
    /// again when another of them was faster.
    pub editing: Arc<Mutex<()>>,
}

/// What an edit makes of the state.
#[derive(Debug, Default, Clone)]
pub(super) struct Change {
    tables: Vec<(ObjectName, Option<TableState>)>,
    functions: Vec<(String, Option<Arc<Function>>)>,
    retired: Retired,
}

/// What no version has any more once its readers are gone.
#[derive(Debug, Default, Clone)]
pub(super) struct Retired {
    /// Kept, so that the last of them goes outside every lock.
    tables: Vec<TableState>,
    segments: Vec<Arc<Segment>>,
    parts: Vec<Arc<IndexPart>>,
    /// Those of which pages are elsewhere now, with what stands in their place.
    moved_segments: Vec<[Arc<Segment>; 2]>,
    moved_parts: Vec<[Arc<IndexPart>; 2]>,
}

impl Retired {
    /// Gives the pages back when their last readers are gone.
    pub fn release(self, store: &Arc<PageStore>) {
        for segment in &self.segments {
            segment.retire(store);
        }
        for part in &self.parts {
            part.retire(store);
        }
        for [old, moved] in &self.moved_segments {
            old.retire_moved(moved, store);
        }
        for [old, moved] in &self.moved_parts {
            old.retire_moved(moved, store);
        }
        drop(self.tables);
    }
}

impl TableState {
    /// As the history of the table sees it.
    pub fn as_version(&self) -> Version<'_> {
        Version {
            snapshot_schema: &self.snapshot.schema,
            record: &self.record,
            segments: &self.snapshot.segments,
        }
    }

    /// The chunks of its present version, and of segments that only its past has.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.snapshot.chunks().chain(self.history.chunks())
    }

    /// Whatever has pages, with its runs: segments, those that only the past has, parts of indexes.
    pub fn owners(&self) -> impl Iterator<Item = (Owner, impl Iterator<Item = &PageRun>)> {
        fn runs(chunks: &[Chunk]) -> Vec<&PageRun> {
            chunks.iter().flat_map(Chunk::runs).collect()
        }
        let segments = self.snapshot.segments.iter();
        let segments = segments.map(|one| (Owner::Segment(one.id.0), runs(&one.chunks)));
        let past = self.history.held();
        let past = past.map(|one| (Owner::Past(one.id.0), runs(&one.chunks)));
        let parts = self.snapshot.indexes.iter().flat_map(|index| &index.parts);
        let parts = parts.map(|one| {
            let runs = one.chunks().flat_map(Chunk::runs);
            (Owner::Part(one.id.0), runs.collect())
        });
        let owners = segments.chain(past).chain(parts);
        owners.map(|(owner, runs)| (owner, runs.into_iter()))
    }

    /// The buckets of its segments, by the numbers of these, where it lies by a key.
    pub fn buckets(&self) -> HashMap<u32, u16> {
        if self.snapshot.distribution.is_none() {
            return HashMap::new();
        }
        let segments = self.snapshot.segments.iter();
        let bucket = |segment: &Arc<Segment>| Some((segment.id.0, segment.bucket?));
        segments.filter_map(bucket).collect()
    }

    /// That this is the current version.
    pub fn version(&self) -> Precondition {
        Precondition::Version(TableVersion {
            table: self.snapshot.id.0,
            version: self.record.version,
        })
    }
}

impl State {
    /// Whether an edit may be applied; FALSE when it is to be made again from the current version.
    pub fn allows(&self, edit: &TableEdit) -> Result<bool> {
        let dropped: Vec<&ObjectName> = edit.dropped().collect();
        for precondition in edit.preconditions() {
            match precondition {
                Precondition::Schema(schema) => self.check_schema(schema)?,
                Precondition::NoSchema(schema) => {
                    if self.schemas.contains(schema) {
                        return Err(StorageError::AlreadyExists {
                            kind: "schema",
                            name: schema.clone(),
                        });
                    }
                }
                Precondition::EmptySchema(schema) => self.check_empty(schema, &dropped)?,
                Precondition::Version(version) => {
                    let is_current = |table: &TableState| {
                        (table.snapshot.id.0, table.record.version)
                            == (version.table, version.version)
                    };
                    if !self.tables.values().any(is_current) {
                        return Ok(false);
                    }
                }
                Precondition::NoTable(name) => {
                    if self.tables.contains_key(name) || self.damaged.contains_key(name) {
                        return Err(exists("table", name));
                    }
                }
                Precondition::NoView(name) => {
                    if self.views.contains_key(name) {
                        return Err(exists("view", name));
                    }
                }
                Precondition::View(name) => {
                    if !self.views.contains_key(name) {
                        return Err(not_found("view", name));
                    }
                }
                Precondition::NoIndex(name) => {
                    if self.indexes_after(edit, name) > 1 {
                        return Err(StorageError::AlreadyExists {
                            kind: "index",
                            name: name.name.clone(),
                        });
                    }
                }
                Precondition::Function(wanted) => {
                    let present = self.functions.get(&wanted.name);
                    if present.map_or(0, |function| function.version) != wanted.version {
                        return Ok(false);
                    }
                }
                Precondition::Accounts(version) => {
                    if self.accounts.version != *version {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// How many indexes of a schema have that name after the edit.
    fn indexes_after(&self, edit: &TableEdit, name: &ObjectName) -> usize {
        // The last record counts.
        let mut put: HashMap<u32, usize> = HashMap::new();
        for operation in edit.operations() {
            match operation {
                Operation::PutTable(table) => {
                    let named = table.record.indexes.iter().filter(|i| i.name == name.name);
                    let is_of_schema = table.name.schema == name.schema;
                    put.insert(table.table, if is_of_schema { named.count() } else { 0 });
                }
                Operation::DropTable(dropped) => drop(put.insert(dropped.table, 0)),
                _ => {}
            }
        }
        let kept = self.tables.iter().filter(|(table, state)| {
            table.schema == name.schema
                && !put.contains_key(&state.snapshot.id.0)
                && state.snapshot.index(&name.name).is_some()
        });
        kept.count() + put.values().sum::<usize>()
    }

    pub fn check_schema(&self, schema: &str) -> Result<()> {
        if self.schemas.iter().any(|s| s == schema) {
            return Ok(());
        }
        Err(StorageError::NotFound {
            kind: "schema",
            name: schema.into(),
        })
    }

    /// Names of the schemas, sorted, without those of temporary tables.
    pub fn schemas(&self) -> Vec<String> {
        let mut names = self.schemas.clone();
        names.retain(|name| !is_temporary(name));
        names.sort();
        names
    }

    /// Leaves out what goes with the sessions that have it.
    pub fn forget_temporary(&mut self) {
        self.schemas.retain(|schema| !is_temporary(schema));
        self.tables.retain(|name, _| !is_temporary(&name.schema));
        self.views.retain(|name, _| !is_temporary(&name.schema));
    }

    /// Names of the tables of a schema, damaged ones too, sorted.
    pub fn tables_of(&self, schema: &str) -> Vec<String> {
        let tables = self.tables.keys().chain(self.damaged.keys());
        let mut names: Vec<_> = tables
            .filter(|name| name.schema == schema)
            .map(|name| name.name.clone())
            .collect();
        names.sort();
        names
    }

    /// Names of the views of a schema, sorted.
    pub fn views_of(&self, schema: &str) -> Vec<String> {
        let names = self.views.keys().filter(|name| name.schema == schema);
        names.map(|name| name.name.clone()).collect()
    }

    /// The index of that name in a schema, with its table.
    pub fn index(
        &self,
        schema: &str,
        name: &str,
    ) -> Option<(&ObjectName, &TableState, &Arc<Index>)> {
        let mut tables = self
            .tables
            .iter()
            .filter(|(table, _)| table.schema == schema);
        tables.find_map(|(table, state)| Some((table, state, state.snapshot.index(name)?)))
    }

    /// That a table can be made: with `or_replace` in the place of one of its name.
    pub fn check_free(&self, name: &ObjectName, or_replace: bool) -> Result<()> {
        self.check_schema(&name.schema)?;
        if self.views.contains_key(name) {
            return Err(exists("view", name));
        }
        match self.tables.contains_key(name) && !or_replace {
            true => Err(exists("table", name)),
            false => Ok(()),
        }
    }

    /// The names of a new table's indexes must be free, but for those of the table that it
    /// replaces.
    pub fn check_index_names(&self, table: &ObjectName, indexes: &[IndexDefinition]) -> Result<()> {
        for (i, index) in indexes.iter().enumerate() {
            let is_twice = indexes[..i].iter().any(|other| other.name == index.name);
            let owner = self.index(&table.schema, &index.name);
            if is_twice || owner.is_some_and(|(owner, ..)| owner != table) {
                return Err(StorageError::AlreadyExists {
                    kind: "index",
                    name: index.name.clone(),
                });
            }
        }
        Ok(())
    }

    /// That the name of an index to be made of a table that is there is free.
    pub fn check_new_index(&self, schema: &str, name: &str) -> Result<()> {
        match self.index(schema, name) {
            None => Ok(()),
            Some(_) => Err(StorageError::AlreadyExists {
                kind: "index",
                name: name.into(),
            }),
        }
    }

    /// That a schema has nothing but what is dropped.
    fn check_empty(&self, schema: &str, dropped: &[&ObjectName]) -> Result<()> {
        let tables = self.tables.keys().chain(self.damaged.keys());
        let named = |mut names: Vec<&ObjectName>| {
            names.retain(|name| name.schema == schema && !dropped.contains(name));
            names.into_iter().min().cloned()
        };
        for (kind, first) in [
            ("tables", named(tables.collect())),
            ("views", named(self.views.keys().collect())),
        ] {
            if let Some(first) = first {
                return Err(StorageError::Invalid(format!(
                    "schema '{schema}' has {kind} ('{}'…); drop them first",
                    first.name
                )));
            }
        }
        Ok(())
    }

    /// The past of each table that has one, by the tables' numbers.
    pub fn past(&self) -> HashMap<TableId, History> {
        let tables = self.tables.values();
        let tables = tables.filter(|table| !table.history.is_empty());
        let past = tables.map(|table| (table.snapshot.id, table.history.clone()));
        past.collect()
    }

    /// When the last of the present versions of tables was committed that keep their past.
    pub fn last_time_us(&self) -> u64 {
        let tables = self.tables.values();
        let times = tables.map(|table| table.record.committed_at_us);
        times.max().unwrap_or(0)
    }

    /// What the edit makes of the state, which allows it; nothing is changed yet.
    pub fn change(&self, edit: &TableEdit) -> Result<Change> {
        let mut change = Change::default();
        let mut drafts: BTreeMap<u32, Draft> = BTreeMap::new();
        for operation in edit.operations() {
            match operation {
                Operation::PutTable(put) => {
                    let draft = match drafts.remove(&put.table).or_else(|| self.draft(put.table)) {
                        Some(draft) => draft,
                        None => Draft::new(&put.name, TableId(put.table), &put.record)?,
                    };
                    drafts.insert(put.table, draft.put(put)?);
                }
                // What becomes of it is put next, under its new name.
                Operation::RenameTable(name) => change.tables.push((name.clone(), None)),
                Operation::DropTable(dropped) => {
                    if let Some(table) = self.tables.get(&dropped.name) {
                        change.retired.add_all(&table.snapshot);
                        let held = table.history.held().cloned();
                        change.retired.segments.extend(held);
                    }
                    drafts.remove(&dropped.table);
                    change.tables.push((dropped.name.clone(), None));
                }
                Operation::PutSegment(put) => {
                    let draft = self.opened(&mut drafts, put.table)?;
                    draft.rows_version = next_rows_version();
                    let id = SegmentId(put.segment);
                    let segment = decode_segment(&put.record, draft.id, id, &draft.labels)?;
                    draft.segments.push(Arc::new(segment));
                    draft.next_order = put.record.order.saturating_add(1);
                }
                Operation::PutDeleted(put) => {
                    let draft = self.opened(&mut drafts, put.table)?;
                    draft.rows_version = next_rows_version();
                    let segment = draft.segment_mut(put.segment).ok_or_else(|| {
                        StorageError::Invalid(format!(
                            "an edit of segment {} of table number {}, which is gone",
                            put.segment, put.table
                        ))
                    })?;
                    *segment = Arc::new(decode_deleted(segment, &put.deleted)?);
                }
                Operation::ReplaceSegments(replace) => {
                    let draft = self.opened(&mut drafts, replace.table)?;
                    draft.grows = false;
                    let labels = Arc::clone(&draft.labels);
                    let dropped: HashSet<u32> = replace.dropped.iter().copied().collect();
                    let is_gone = |segment: &Arc<Segment>| dropped.contains(&segment.id.0);
                    let gone = draft.segments.iter().filter(|segment| is_gone(segment));
                    let mut gone: Vec<_> = gone.cloned().collect();
                    let mut put = replace.put.iter().map(|put| {
                        let id = SegmentId(put.segment);
                        let mut segment = decode_segment(&put.record, draft.id, id, &labels)?;
                        segment.succeed(&gone);
                        Ok::<_, StorageError>(Arc::new(segment))
                    });
                    // Each at the place of one of those that go, as the catalog's records are.
                    let mut segments = Vec::with_capacity(draft.segments.len());
                    for segment in mem::take(&mut draft.segments) {
                        match is_gone(&segment) {
                            true => segments.extend(put.next().transpose()?),
                            false => segments.push(segment),
                        }
                    }
                    change.retired.segments.append(&mut gone);
                    draft.segments = segments;
                }
                Operation::DropSegments(table) => {
                    let draft = self.opened(&mut drafts, *table)?;
                    draft.grows = false;
                    draft.rows_version = next_rows_version();
                    change.retired.segments.append(&mut draft.segments);
                }
                Operation::MovePages(moves) => {
                    let draft = self.opened(&mut drafts, moves.table)?;
                    draft.grows = false;
                    draft.move_pages(moves, &mut change.retired)?;
                }
                Operation::ExpireVersions(version) => {
                    // The table may have been dropped meanwhile.
                    if let Ok(draft) = self.opened(&mut drafts, version.table) {
                        let gone = draft.history.expire(version.version);
                        change.retired.segments.extend(gone);
                    }
                }
                Operation::PutPart(put) => {
                    let draft = self.opened(&mut drafts, put.table)?;
                    let id = SegmentId(put.part);
                    let part = decode_part(&put.record, draft.id, id, &draft.label())?;
                    let index = put.record.index.as_str().into();
                    draft.parts.push((index, Arc::new(part)));
                }
                Operation::DropPart(dropped) => {
                    let draft = self.opened(&mut drafts, dropped.table)?;
                    draft.grows = false;
                    let id = SegmentId(dropped.part);
                    let (gone, kept) = mem::take(&mut draft.parts)
                        .into_iter()
                        .partition(|(_, part)| part.id == id);
                    draft.parts = kept;
                    let gone: Vec<(Arc<str>, Arc<IndexPart>)> = gone;
                    change
                        .retired
                        .parts
                        .extend(gone.into_iter().map(|(_, part)| part));
                }
                Operation::PutFunction(put) => {
                    let function = put.record.clone().decode_function(put.name.clone())?;
                    change
                        .functions
                        .push((put.name.clone(), Some(Arc::new(function))));
                }
                Operation::DropFunction(name) => change.functions.push((name.clone(), None)),
                Operation::PutSchema(_)
                | Operation::DropSchema(_)
                | Operation::PutView(_)
                | Operation::DropView(_)
                | Operation::PutAccounts(_) => {}
            }
        }
        for (_, mut draft) in drafts {
            draft.keep_history(&mut change.retired);
            change
                .tables
                .push((draft.name.clone(), Some(draft.finish()?)));
        }
        Ok(change)
    }

    /// Installs what [`State::change`] has made of the edit.
    pub fn install(&mut self, edit: &TableEdit, change: Change) -> Retired {
        let mut retired = change.retired;
        for (name, table) in change.tables {
            let old = match table {
                Some(table) => self.tables.insert(name, table),
                None => self.tables.remove(&name),
            };
            retired.tables.extend(old);
        }
        for (name, function) in change.functions {
            self.functions_version += 1;
            match function {
                Some(function) => self.functions.insert(name, function),
                None => self.functions.remove(&name),
            };
        }
        for operation in edit.operations() {
            match operation {
                Operation::PutSchema(schema) => self.schemas.push(schema.clone()),
                Operation::DropSchema(schema) => self.schemas.retain(|s| s != schema),
                Operation::PutView(put) => {
                    let view = put.record.clone().decode_view(&put.name);
                    self.views.insert(put.name.clone(), Arc::new(view));
                }
                Operation::DropView(name) => {
                    self.views.remove(name);
                }
                Operation::PutAccounts(record) => {
                    self.accounts = Arc::new(Accounts::of(record));
                }
                _ => {}
            }
        }
        retired
    }

    /// The state of a table that the catalog holds. Records go as what they describe comes: there
    /// may be many.
    pub fn opened_table(table: CatalogTable) -> Result<TableState> {
        let mut draft = Draft::new(&table.name, table.id, &table.record)?;
        let labels = Arc::clone(&draft.labels);
        draft.segments.reserve_exact(table.segments.len());
        for (id, record) in table.segments {
            let segment = decode_segment(&record, table.id, id, &labels)?;
            draft.segments.push(Arc::new(segment));
            draft.next_order = draft.next_order.max(record.order.saturating_add(1));
        }
        for (id, record) in table.index_parts {
            let part = decode_part(&record, table.id, id, &draft.label())?;
            draft.parts.push((record.index.into(), Arc::new(part)));
        }
        draft.finish()
    }

    /// The past of a table that the catalog holds, of which this is the present version.
    pub fn opened_history(present: &TableState, records: CatalogHistory) -> Result<History> {
        let snapshot = &present.snapshot;
        History::opened(snapshot.id, &snapshot.name, &present.as_version(), records)
    }

    /// A draft of the table of that number as it is.
    fn draft(&self, table: u32) -> Option<Draft> {
        let mut tables = self.tables.iter();
        let (name, state) = tables.find(|(_, state)| state.snapshot.id.0 == table)?;
        let snapshot = &state.snapshot;
        let parts = snapshot.indexes.iter().flat_map(|index| {
            let name: Arc<str> = index.definition.name.as_str().into();
            let parts = index.parts.iter();
            parts.map(move |part| (Arc::clone(&name), Arc::clone(part)))
        });
        Some(Draft {
            name: name.clone(),
            id: snapshot.id,
            schema: Arc::clone(&snapshot.schema),
            record: Arc::clone(&state.record),
            labels: Arc::clone(&state.labels),
            segments: snapshot.segments.clone(),
            parts: parts.collect(),
            last_found: 0,
            grows: true,
            rows_version: snapshot.rows_version,
            before: Some(state.clone()),
            history: state.history.clone(),
            next_order: state.next_order,
        })
    }

    fn opened<'a>(
        &self,
        drafts: &'a mut BTreeMap<u32, Draft>,
        table: u32,
    ) -> Result<&'a mut Draft> {
        use std::collections::btree_map::Entry;
        match drafts.entry(table) {
            Entry::Occupied(draft) => Ok(draft.into_mut()),
            Entry::Vacant(place) => {
                let draft = self.draft(table).ok_or_else(|| {
                    StorageError::Invalid(format!("an edit of table number {table}, which is gone"))
                })?;
                Ok(place.insert(draft))
            }
        }
    }
}

impl Retired {
    fn add_all(&mut self, snapshot: &TableSnapshot) {
        self.segments.extend(snapshot.segments.iter().cloned());
        let parts = snapshot.indexes.iter().flat_map(|index| &index.parts);
        self.parts.extend(parts.cloned());
    }
}

/// A version of a table in the making.
struct Draft {
    name: ObjectName,
    id: TableId,
    schema: SchemaRef,
    record: Arc<TableRecord>,
    labels: Arc<Labels>,
    segments: Vec<Arc<Segment>>,
    /// The place of the one that was looked for last.
    last_found: usize,
    /// It has all segments (perhaps with more rows deleted) and parts of the version before, at their
    /// places.
    grows: bool,
    /// Parts, with the names of their indexes.
    parts: Vec<(Arc<str>, Arc<IndexPart>)>,
    before: Option<TableState>,
    history: History,
    next_order: u64,
    rows_version: u64,
}

impl Draft {
    fn new(name: &ObjectName, id: TableId, record: &TableRecord) -> Result<Self> {
        let label = label_of(name);
        let schema = decode_schema(&record.schema, &format!("table '{label}'"))?;
        Ok(Self {
            name: name.clone(),
            id,
            labels: Arc::new(Labels::new(&label, &schema)),
            schema,
            record: Arc::new(record.clone()),
            segments: Vec::new(),
            last_found: 0,
            grows: false,
            parts: Vec::new(),
            before: None,
            history: History::default(),
            next_order: 0,
            rows_version: next_rows_version(),
        })
    }

    /// The same with another record.
    fn put(self, put: &PutTable) -> Result<Self> {
        let is_as_before = put.record.schema == self.record.schema;
        let record = Arc::new(put.record.clone());
        if is_as_before && put.name == self.name {
            return Ok(Self { record, ..self });
        }
        let label = label_of(&put.name);
        let schema = match is_as_before {
            true => self.schema,
            false => decode_schema(&put.record.schema, &format!("table '{label}'"))?,
        };
        Ok(Self {
            name: put.name.clone(),
            labels: Arc::new(Labels::new(&label, &schema)),
            record,
            schema,
            ..self
        })
    }

    /// The segment of this number. It is looked for from the one found last on: an edit names segments in
    /// their order, so that all that it names are found in one pass.
    fn segment_mut(&mut self, id: u32) -> Option<&mut Arc<Segment>> {
        let count = self.segments.len();
        let first = self.last_found.min(count);
        let mut places = (first..count).chain(0..first);
        let place = places.find(|place| self.segments[*place].id.0 == id)?;
        self.last_found = place;
        self.segments.get_mut(place)
    }

    fn move_pages(&mut self, moves: &MovePages, retired: &mut Retired) -> Result<()> {
        let place_of = |first| moves.place_of(first);
        let is_done = match moves.owner {
            Some(Owner::Segment(id)) => self.segment_mut(id).map(|segment| {
                let moved = Arc::new(segment.moved(place_of));
                let old = mem::replace(segment, Arc::clone(&moved));
                retired.moved_segments.push([old, moved]);
            }),
            Some(Owner::Past(id)) => {
                let segment = self.history.held_segment(SegmentId(id));
                let moved = segment.map(|segment| Arc::new(segment.moved(place_of)));
                moved.map(|moved| {
                    let old = self.history.replace(Arc::clone(&moved));
                    let both = old.map(|old| [old, moved]);
                    retired.moved_segments.extend(both);
                })
            }
            Some(Owner::Part(id)) => {
                let part = self.parts.iter_mut().find(|(_, part)| part.id.0 == id);
                part.map(|(_, part)| {
                    let moved = Arc::new(part.moved(place_of));
                    let old = mem::replace(part, Arc::clone(&moved));
                    retired.moved_parts.push([old, moved]);
                })
            }
            None => None,
        };
        is_done.ok_or_else(|| {
            StorageError::Invalid(format!(
                "table '{}': pages were moved of what it does not have",
                self.label()
            ))
        })
    }

    /// Notes what it takes to show the version before, if that is to be kept: segments that only that
    /// one has are not retired then.
    fn keep_history(&mut self, retired: &mut Retired) {
        if self.record.retention_us == 0 {
            if !self.history.is_empty() {
                retired.segments.extend(self.history.held().cloned());
                self.history = History::default();
            }
            return;
        }
        let Some(before) = &self.before else { return };
        if before.record.retention_us == 0 || before.record.version == self.record.version {
            return;
        }
        let after = Version {
            snapshot_schema: &self.schema,
            record: &self.record,
            segments: &self.segments,
        };
        let held = self.history.note(&before.as_version(), &after);
        // A segment of which rows were deleted before it went has the same pages.
        let held: HashSet<_> = held.iter().map(|s| Arc::as_ptr(&s.chunks)).collect();
        retired
            .segments
            .retain(|segment| !held.contains(&Arc::as_ptr(&segment.chunks)));
    }

    fn label(&self) -> String {
        label_of(&self.name)
    }

    fn finish(self) -> Result<TableState> {
        self.check_counts()?;
        let indexes = self.indexes()?;
        let name = self.label();
        let statistics = self.statistics();
        let defaults = self.record.decode_defaults(self.schema.fields().len());
        let what = format!("table '{name}'");
        let layout = decode_layout(self.record.layout, &what)?;
        let distribution = self.record.distribution.as_ref();
        let distribution = distribution
            .map(|record| decode_distribution(record, &self.schema, &what).map(Arc::new))
            .transpose()?;
        let snapshot = TableSnapshot {
            id: self.id,
            name,
            scan_schema: scan_schema(&self.schema),
            schema: self.schema,
            version: self.record.version,
            rows_version: self.rows_version,
            segments: self.segments,
            statistics,
            indexes,
            lost_rows: self.record.lost_rows,
            defaults,
            checks: decode_checks(&self.record.checks),
            layout,
            distribution,
        };
        let (next_segment, editing) = match self.before {
            Some(before) => {
                // Those of a record that the log has were taken in an earlier life.
                let next = self.record.next_segment;
                before.next_segment.fetch_max(next, Ordering::Relaxed);
                (before.next_segment, before.editing)
            }
            None => (
                Arc::new(AtomicU32::new(self.record.next_segment)),
                Arc::default(),
            ),
        };
        Ok(TableState {
            snapshot: Arc::new(snapshot),
            record: self.record,
            labels: self.labels,
            history: self.history,
            next_segment,
            next_order: self.next_order,
            editing,
        })
    }

    /// What is known of each column. To estimate how many values one has takes long enough that it is not
    /// done again where nothing has come to that.
    fn statistics(&self) -> Vec<ColumnStatistics> {
        let before = self.before.as_ref();
        let before = before.map(|before| (&before.record.columns, &before.snapshot.statistics));
        let columns = self.record.columns.iter().enumerate();
        let statistics = columns.map(|(place, column)| {
            let same = before.and_then(|(records, statistics)| {
                let is_same = records.get(place)?.sketch == column.sketch;
                statistics.get(place).filter(|_| is_same)
            });
            column.statistics(same.map(|same| same.distinct))
        });
        statistics.collect()
    }

    /// Nothing may be missing of what the table's own record counts.
    fn check_counts(&self) -> Result<()> {
        let rows: u64 = self.segments.iter().map(|s| u64::from(s.rows)).sum();
        let live: u64 = self.segments.iter().map(|s| u64::from(s.live_rows())).sum();
        let parts = self.parts.len() as u64;
        let found = [self.segments.len() as u64, rows, parts, rows - live];
        let record = &self.record;
        let counted = [record.segments, record.rows, record.parts, record.deleted];
        if found == counted {
            return Ok(());
        }
        Err(StorageError::corrupt(format!(
            "table '{}': the catalog has {found:?} segments, rows, index parts and deleted rows of it instead of {counted:?}",
            self.label()
        )))
    }

    /// The indexes; none may cover what the table never had, or anything twice, and a unique one
    /// covers all. What a part covers may be gone, as compaction puts other segments in its place.
    fn indexes(&self) -> Result<Vec<Arc<Index>>> {
        let places: LazyCell<hashbrown::HashMap<SegmentId, usize>, _> = LazyCell::new(|| {
            let places = self.segments.iter().zip(0..);
            places.map(|(segment, place)| (segment.id, place)).collect()
        });
        let indexes = self.record.indexes.iter().map(|record| {
            let definition = decode_definition(record)?;
            if let Some(grown) = self.grown_index(&definition) {
                return Ok(grown);
            }
            let parts = self.parts.iter().filter(|(name, _)| **name == *record.name);
            let parts: Vec<_> = parts.map(|(_, part)| Arc::clone(part)).collect();
            let mut is_covered = vec![false; self.segments.len()];
            let mut covered = parts.iter().flat_map(|part| &part.covers);
            let fits = covered.all(|(id, rows)| match places.get(id) {
                Some(place) => {
                    let is_first = !mem::replace(&mut is_covered[*place], true);
                    is_first && self.segments[*place].rows == *rows
                }
                None => id.0 < self.record.next_segment,
            });
            let left = || {
                self.segments
                    .iter()
                    .zip(&is_covered)
                    .filter(|(_, covered)| !**covered)
            };
            if !fits || definition.unique && left().next().is_some() {
                return Err(StorageError::corrupt(format!(
                    "table '{}', index '{}': it does not cover the table's segments",
                    self.label(),
                    record.name
                )));
            }
            let tail: Vec<_> = left().map(|(segment, _)| Arc::clone(segment)).collect();
            let before = self.before.as_ref();
            let same = before.and_then(|before| before.snapshot.index(&record.name));
            let same = same.filter(|same| {
                same.definition == definition
                    && are_same(&same.parts, &parts)
                    && are_same(&same.tail, &tail)
            });
            Ok(match same {
                Some(same) => Arc::clone(same),
                None => Arc::new(Index::new(definition, parts, tail)),
            })
        });
        indexes.collect()
    }

    /// The index after a small commit, which brings few segments and, to a unique index, a part of them:
    /// only these are looked at, not all that the index's other parts cover, of which there are thousands
    /// after as many commits. `None` where the change is another one, or something does not fit.
    fn grown_index(&self, definition: &IndexDefinition) -> Option<Arc<Index>> {
        let before = &self.before.as_ref().filter(|_| self.grows)?.snapshot;
        let index = before.index(&definition.name);
        let index =
            index.filter(|index| index.definition == *definition && index.tail.is_empty())?;
        let new = self.segments.get(before.segments.len()..)?;
        if new.len() > MAX_NEW_SEGMENTS {
            return None;
        }
        let old_parts = before.indexes.iter().map(|index| index.parts.len()).sum();
        let new_parts = self.parts.get(old_parts..)?.iter();
        let new_parts = new_parts.filter(|(name, _)| **name == *definition.name);
        let mut parts = index.parts.clone();
        let mut left: Vec<&Arc<Segment>> = new.iter().collect();
        for (_, part) in new_parts {
            for (id, rows) in &part.covers {
                let is_it = |segment: &&Arc<Segment>| (segment.id, segment.rows) == (*id, *rows);
                left.remove(left.iter().position(is_it)?);
            }
            parts.push(Arc::clone(part));
        }
        if definition.unique && !left.is_empty() {
            return None;
        }
        Some(match left.is_empty() && parts.len() == index.parts.len() {
            true => Arc::clone(index),
            false => {
                let tail = left.into_iter().cloned().collect();
                Arc::new(Index::new(definition.clone(), parts, tail))
            }
        })
    }
}

/// What errors call a table.
fn label_of(name: &ObjectName) -> String {
    format!("{}.{}", name.schema, name.name)
}

/// A number that no version of any table's rows has.
pub(super) fn next_rows_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}

fn are_same<T>(a: &[Arc<T>], b: &[Arc<T>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// What errors call the parts of a table.
#[derive(Debug)]
pub(super) struct Labels {
    /// Each column.
    pub columns: Vec<Arc<str>>,
    /// The page indexes of its segments.
    pub page_indexes: Arc<str>,
    /// The pages that columns share.
    pub shared: Arc<str>,
}

impl Labels {
    pub fn new(table: &str, schema: &SchemaRef) -> Self {
        let fields = schema.fields().iter();
        let columns = fields.map(|f| format!("table '{table}', column '{}'", f.name()).into());
        Self {
            columns: columns.collect(),
            page_indexes: format!("table '{table}', page indexes").into(),
            shared: format!("table '{table}', rows").into(),
        }
    }

    /// Of a segment of so many columns that only the table's past has.
    pub fn of_past(table: &str, columns: usize) -> Self {
        let columns =
            (0..columns).map(|c| format!("table '{table}' in the past, column {c}").into());
        Self {
            columns: columns.collect(),
            page_indexes: format!("table '{table}' in the past, page indexes").into(),
            shared: format!("table '{table}' in the past, rows").into(),
        }
    }
}

pub(super) fn not_found(kind: &'static str, name: &ObjectName) -> StorageError {
    StorageError::NotFound {
        kind,
        name: format!("{}.{}", name.schema, name.name),
    }
}

pub(super) fn exists(kind: &'static str, name: &ObjectName) -> StorageError {
    StorageError::AlreadyExists {
        kind,
        name: format!("{}.{}", name.schema, name.name),
    }
}
