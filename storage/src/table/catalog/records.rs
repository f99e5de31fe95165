//! The catalog's records: one `redb` table of sealed records, so that every one of them is checked
//! in the same way.

use std::ops::Range;

use prost::Message;
use redb::{ReadableTable, TableDefinition};

use super::{Contents, GENERATION_BATCH, TABLE_BATCH, guarded, other};
use crate::capability::random_bytes;
use crate::segment::{SegmentId, TableId};
use crate::table::Accounts;
use crate::table::catalog::{CatalogTable, Numbers};
use crate::table::edit::{ObjectName, Operation, Owner, TableEdit};
use crate::table::history::CatalogHistory;
use crate::table::manifest::{
    FunctionRecord, HistoryRecords, NameRecord, PartRecord, RootRecord, SchemaRecord,
    SegmentRecord, SequenceRecord, TableRecord, ViewRecord, seal, unseal,
};
use crate::table::sequences::lost;
use crate::{Result, StorageError};

/// Key ▸ sealed record, since format 3.
pub(super) const RECORDS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("records");

/// What a record is of. Its key is the kind's number, then its parts: numbers big-endian; of two
/// strings the first with its length before it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key<'a> {
    Root,
    Schema(&'a str),
    Name(&'a str, &'a str),
    Table(u32),
    Segment(u32, u32),
    Part(u32, u32),
    Function(&'a str),
    Package(&'a str),
    View(&'a str, &'a str),
    Sequence(u32),
    /// A past version of a table. The number is its own, high half first.
    Version(u32, u64),
    /// A segment that only the past of a table has.
    PastSegment(u32, u32),
    Accounts,
}

impl<'a> Key<'a> {
    fn encode(&self) -> Vec<u8> {
        let numbers = |kind: u8, numbers: &[u32]| {
            let bytes = numbers.iter().flat_map(|n| n.to_be_bytes());
            std::iter::once(kind).chain(bytes).collect()
        };
        let text = |kind: u8, text: &str| [&[kind], text.as_bytes()].concat();
        let texts = |kind: u8, first: &str, second: &str| {
            let length = (first.len() as u32).to_be_bytes();
            [&[kind], &length[..], first.as_bytes(), second.as_bytes()].concat()
        };
        match self {
            Self::Root => vec![0],
            Self::Schema(name) => text(1, name),
            Self::Name(schema, name) => texts(2, schema, name),
            Self::Table(table) => numbers(3, &[*table]),
            Self::Segment(table, segment) => numbers(4, &[*table, *segment]),
            Self::Part(table, part) => numbers(5, &[*table, *part]),
            Self::Function(name) => text(6, name),
            Self::Package(name) => text(7, name),
            Self::View(schema, name) => texts(8, schema, name),
            Self::Sequence(sequence) => numbers(9, &[*sequence]),
            Self::Version(table, version) => {
                let (high, low) = ((version >> 32) as u32, *version as u32);
                numbers(10, &[*table, high, low])
            }
            Self::PastSegment(table, segment) => numbers(11, &[*table, *segment]),
            Self::Accounts => vec![12],
        }
    }

    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let number = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.try_into().ok()?));
        let numbers = || {
            let (first, second) = rest.split_at_checked(4)?;
            Some((number(first)?, number(second)?))
        };
        let text = || std::str::from_utf8(rest).ok();
        let texts = || {
            let (length, rest) = rest.split_at_checked(4)?;
            let (first, second) = rest.split_at_checked(number(length)? as usize)?;
            let text = |bytes| std::str::from_utf8(bytes).ok();
            Some((text(first)?, text(second)?))
        };
        Some(match kind {
            0 if rest.is_empty() => Self::Root,
            1 => Self::Schema(text()?),
            2 => texts().map(|(schema, name)| Self::Name(schema, name))?,
            3 => Self::Table(number(rest)?),
            4 => numbers().map(|(table, segment)| Self::Segment(table, segment))?,
            5 => numbers().map(|(table, part)| Self::Part(table, part))?,
            6 => Self::Function(text()?),
            7 => Self::Package(text()?),
            8 => texts().map(|(schema, name)| Self::View(schema, name))?,
            9 => Self::Sequence(number(rest)?),
            10 => {
                let (table, version) = rest.split_at_checked(4)?;
                let version = u64::from_be_bytes(version.try_into().ok()?);
                Self::Version(number(table)?, version)
            }
            11 => numbers().map(|(table, segment)| Self::PastSegment(table, segment))?,
            12 if rest.is_empty() => Self::Accounts,
            _ => return None,
        })
    }
}

impl std::fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Root => f.write_str("the root record"),
            Self::Schema(name) => write!(f, "schema '{name}'"),
            Self::Name(schema, name) => write!(f, "the name of table '{schema}.{name}'"),
            Self::Table(table) => write!(f, "table number {table}"),
            Self::Segment(table, segment) => {
                write!(f, "segment {segment} of table number {table}")
            }
            Self::Part(table, part) => write!(f, "index part {part} of table number {table}"),
            Self::Function(name) => write!(f, "function '{name}'"),
            Self::Package(name) => write!(f, "the package of function '{name}'"),
            Self::View(schema, name) => write!(f, "view '{schema}.{name}'"),
            Self::Sequence(sequence) => write!(f, "sequence {sequence}"),
            Self::Version(table, version) => {
                write!(f, "version {version} of table number {table}")
            }
            Self::PastSegment(table, segment) => {
                write!(f, "segment {segment} of the past of table number {table}")
            }
            Self::Accounts => f.write_str("the accounts"),
        }
    }
}

/// The records in a transaction that writes.
pub(super) struct Records<'txn> {
    table: redb::Table<'txn, &'static [u8], &'static [u8]>,
    root: RootRecord,
}

impl<'txn> Records<'txn> {
    pub fn open(txn: &'txn redb::WriteTransaction) -> Result<Self> {
        let table = txn.open_table(RECORDS).map_err(other)?;
        let root = root(&table)?.unwrap_or_default();
        Ok(Self { table, root })
    }

    /// Counts the commit and gives its number, by which it is told from the one before it.
    pub fn finish(mut self) -> Result<u64> {
        self.root.commits += 1;
        let root = self.root.clone();
        self.put(&Key::Root, &root)?;
        Ok(self.root.commits)
    }

    /// Reserves numbers that nothing carries yet.
    pub fn reserve(&mut self) -> Result<Numbers> {
        let take = |next: &mut u32, count: u32| {
            let first = (*next).max(1);
            *next = first.checked_add(count).ok_or_else(|| {
                StorageError::Invalid(
                    "the database has used up its numbers; copy its tables into a new one".into(),
                )
            })?;
            Ok::<_, StorageError>(first..*next)
        };
        Ok(Numbers {
            generations: take(&mut self.root.next_generation, GENERATION_BATCH)?,
            tables: take(&mut self.root.next_table, TABLE_BATCH)?,
        })
    }

    /// What tells the database from all others.
    pub fn id(&mut self) -> Vec<u8> {
        if self.root.id.is_empty() {
            self.root.id = random_bytes::<16>().to_vec();
        }
        self.root.id.clone()
    }

    /// Says how many numbers a sequence has given.
    pub fn put_sequence(&mut self, sequence: u32, reserved: u64) -> Result<()> {
        self.put(&Key::Sequence(sequence), &SequenceRecord { reserved })?;
        Ok(())
    }

    /// Reserves more numbers of a sequence, which must be there.
    pub fn reserve_of_sequence(&mut self, sequence: u32, count: u64) -> Result<Range<u64>> {
        let found: Option<SequenceRecord> = record(&self.table, &Key::Sequence(sequence))?;
        let first = found.ok_or_else(|| lost(sequence))?.reserved;
        let reserved = first.checked_add(count).ok_or_else(|| {
            StorageError::Invalid(format!("sequence {sequence} has used up its numbers"))
        })?;
        self.put_sequence(sequence, reserved)?;
        Ok(first..reserved)
    }

    /// Removes sequences.
    pub fn remove_sequences(&mut self, sequences: &[u32]) -> Result<()> {
        for sequence in sequences {
            self.remove(&Key::Sequence(*sequence))?;
        }
        Ok(())
    }

    /// Notes that the catalog has what the log has up to this record.
    pub fn set_logged(&mut self, last: u64) {
        self.root.logged = last;
    }

    /// Sets the numbers of a database that was made in another way.
    pub fn set_numbers(&mut self, next_table: u32, next_generation: u32) {
        self.root.next_table = next_table;
        self.root.next_generation = next_generation;
    }

    /// Applies an edit.
    pub fn apply(&mut self, edit: &TableEdit) -> Result<()> {
        for operation in edit.operations() {
            match operation {
                Operation::PutSchema(name) => {
                    self.root.schemas += self.put(&Key::Schema(name), &SchemaRecord {})?;
                }
                Operation::DropSchema(name) => {
                    self.root.schemas -= self.remove(&Key::Schema(name))?;
                }
                Operation::PutTable(put) => {
                    let name = Key::Name(&put.name.schema, &put.name.name);
                    self.root.tables += self.put(&name, &NameRecord { table: put.table })?;
                    self.put(&Key::Table(put.table), &put.record)?;
                }
                Operation::RenameTable(name) => {
                    self.root.tables -= self.remove(&Key::Name(&name.schema, &name.name))?;
                }
                Operation::DropTable(dropped) => {
                    let name = Key::Name(&dropped.name.schema, &dropped.name.name);
                    self.root.tables -= self.remove(&name)?;
                    self.remove(&Key::Table(dropped.table))?;
                    self.remove_all(|number| Key::Segment(dropped.table, number))?;
                    self.remove_all(|number| Key::Part(dropped.table, number))?;
                }
                Operation::PutSegment(put) => {
                    self.put(&Key::Segment(put.table, put.segment), &put.record)?;
                }
                Operation::PutDeleted(put) => {
                    let key = Key::Segment(put.table, put.segment);
                    let mut record = self.segment(&key)?;
                    record.deleted.clone_from(&put.deleted);
                    self.put(&key, &record)?;
                }
                Operation::ReplaceSegments(replace) => {
                    let mut orders = Vec::with_capacity(replace.dropped.len());
                    for segment in &replace.dropped {
                        let key = Key::Segment(replace.table, *segment);
                        orders.push(self.segment(&key)?.order);
                        self.remove(&key)?;
                    }
                    orders.sort_unstable();
                    for (put, order) in replace.put.iter().zip(orders) {
                        let record = SegmentRecord {
                            order,
                            ..put.record.clone()
                        };
                        self.put(&Key::Segment(put.table, put.segment), &record)?;
                    }
                }
                Operation::MovePages(moves) => match moves.owner {
                    Some(Owner::Segment(segment)) => {
                        let key = Key::Segment(moves.table, segment);
                        let mut record = self.segment(&key)?;
                        record.move_pages(|first| moves.place_of(first));
                        self.put(&key, &record)?;
                    }
                    Some(Owner::Part(part)) => {
                        let key = Key::Part(moves.table, part);
                        let mut record: PartRecord = self.present(&key)?;
                        record.move_pages(|first| moves.place_of(first));
                        self.put(&key, &record)?;
                    }
                    // It is put whole.
                    Some(Owner::Past(_)) | None => {}
                },
                // The checkpoint says what becomes of the past: see `put_history`.
                Operation::ExpireVersions(_) => {}
                Operation::DropSegments(table) => {
                    self.remove_all(|number| Key::Segment(*table, number))?;
                }
                Operation::PutPart(put) => {
                    self.put(&Key::Part(put.table, put.part), &put.record)?;
                }
                Operation::DropPart(dropped) => {
                    self.remove(&Key::Part(dropped.table, dropped.part))?;
                }
                Operation::PutFunction(put) => {
                    self.root.functions += self.put(&Key::Function(&put.name), &put.record)?;
                    self.put(&Key::Package(&put.name), &put.package)?;
                }
                Operation::DropFunction(name) => {
                    self.root.functions -= self.remove(&Key::Function(name))?;
                    self.remove(&Key::Package(name))?;
                }
                Operation::PutView(put) => {
                    let name = Key::View(&put.name.schema, &put.name.name);
                    self.root.views += self.put(&name, &put.record)?;
                }
                Operation::DropView(name) => {
                    self.root.views -= self.remove(&Key::View(&name.schema, &name.name))?;
                }
                Operation::PutAccounts(record) => {
                    self.root.accounts += self.put(&Key::Accounts, record)?;
                }
            }
        }
        Ok(())
    }

    /// Changes what is kept of the past of tables.
    pub fn put_history(&mut self, history: &HistoryRecords) -> Result<()> {
        for (table, version) in &history.removed_versions {
            self.remove(&Key::Version(*table, *version))?;
        }
        for (table, segment) in &history.removed_segments {
            self.remove(&Key::PastSegment(*table, *segment))?;
        }
        for (table, version, record) in &history.versions {
            self.put(&Key::Version(*table, *version), record)?;
        }
        for (table, segment, record) in &history.segments {
            self.put(&Key::PastSegment(*table, *segment), record)?;
        }
        Ok(())
    }

    /// The record of a segment, which must be there.
    fn segment(&self, key: &Key<'_>) -> Result<SegmentRecord> {
        self.present(key)
    }

    fn present<M: Message + Default>(&self, key: &Key<'_>) -> Result<M> {
        let found = record(&self.table, key)?;
        found.ok_or_else(|| StorageError::corrupt(format!("the catalog lacks {key}")))
    }

    /// Puts a record; gives 1 if there was none of that key.
    fn put(&mut self, key: &Key<'_>, record: &impl Message) -> Result<u32> {
        let key = key.encode();
        let sealed = seal(&key, record);
        let before = self.table.insert(key.as_slice(), sealed.as_slice());
        Ok(u32::from(before.map_err(other)?.is_none()))
    }

    /// Removes a record; gives 1 if there was one of that key.
    fn remove(&mut self, key: &Key<'_>) -> Result<u32> {
        let before = self.table.remove(key.encode().as_slice());
        Ok(u32::from(before.map_err(other)?.is_some()))
    }

    /// Removes the records of all numbers.
    fn remove_all(&mut self, key: impl Fn(u32) -> Key<'static>) -> Result<()> {
        let (first, last) = (key(0).encode(), key(u32::MAX).encode());
        let all = first.as_slice()..=last.as_slice();
        self.table
            .retain_in::<&[u8], _>(all, |_, _| false)
            .map_err(other)
    }
}

/// What tells the database from all others; empty where nobody has asked yet.
pub(super) fn id(txn: &redb::ReadTransaction) -> Result<Vec<u8>> {
    let table = txn.open_table(RECORDS).map_err(other)?;
    Ok(root(&table)?.map(|root| root.id).unwrap_or_default())
}

/// The number of the last commit, 0 before the first.
pub(super) fn commit_number(txn: &redb::ReadTransaction) -> Result<u64> {
    match txn.open_table(RECORDS) {
        Ok(table) => Ok(root(&table)?.map_or(0, |root| root.commits)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(other(error)),
    }
}

fn root(table: &impl ReadableTable<&'static [u8], &'static [u8]>) -> Result<Option<RootRecord>> {
    record(table, &Key::Root)
}

fn record<M: Message + Default>(
    table: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &Key<'_>,
) -> Result<Option<M>> {
    let bytes = key.encode();
    let sealed = table.get(bytes.as_slice()).map_err(other)?;
    let opened = sealed.map(|sealed| unseal(&bytes, sealed.value(), &key.to_string()));
    opened.transpose()
}

/// The package of a function, if there is one.
pub(super) fn package(txn: &redb::ReadTransaction, function: &str) -> Result<Option<Vec<u8>>> {
    record(
        &txn.open_table(RECORDS).map_err(other)?,
        &Key::Package(function),
    )
}

/// How many numbers a sequence has given, if it is there.
pub(super) fn given_of_sequence(txn: &redb::ReadTransaction, sequence: u32) -> Result<Option<u64>> {
    let table = txn.open_table(RECORDS).map_err(other)?;
    let found: Option<SequenceRecord> = record(&table, &Key::Sequence(sequence))?;
    Ok(found.map(|found| found.reserved))
}

/// The numbers of all sequences.
pub(super) fn sequences(txn: &redb::ReadTransaction) -> Result<Vec<u32>> {
    let table = match txn.open_table(RECORDS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(other(error)),
    };
    let (first, last) = (Key::Sequence(0).encode(), Key::Sequence(u32::MAX).encode());
    let mut sequences = Vec::new();
    let all = first.as_slice()..=last.as_slice();
    for row in table.range::<&[u8]>(all).map_err(other)? {
        let (key, _) = row.map_err(other)?;
        if let Some(Key::Sequence(sequence)) = Key::decode(key.value()) {
            sequences.push(sequence);
        }
    }
    Ok(sequences)
}

/// Reads everything, and goes on behind what is damaged.
pub(super) fn contents(txn: &redb::ReadTransaction) -> Result<Contents> {
    let table = txn.open_table(RECORDS).map_err(other)?;
    let mut reading = Reading {
        table,
        contents: Contents::default(),
    };
    reading.read()?;
    Ok(reading.contents)
}

/// Records whose key or name no other record accounts for.
pub(super) fn orphans(txn: &redb::ReadTransaction) -> Result<Vec<String>> {
    let reading = Reading {
        table: txn.open_table(RECORDS).map_err(other)?,
        contents: Contents::default(),
    };
    let mut tables = Vec::new();
    let mut functions = Vec::new();
    let mut problems = Vec::new();
    let rows = reading.rows(&[], &[u8::MAX], &mut problems)?;
    for (key, sealed) in &rows {
        match Key::decode(key) {
            Some(Key::Name(..)) => {
                let record = unseal::<NameRecord>(key, sealed, "").ok();
                tables.extend(record.map(|record| record.table));
            }
            Some(Key::Function(name)) => functions.push(name),
            _ => {}
        }
    }
    for (key, _) in &rows {
        let is_known = match Key::decode(key) {
            Some(
                Key::Table(table)
                | Key::Segment(table, _)
                | Key::Part(table, _)
                | Key::Version(table, _)
                | Key::PastSegment(table, _),
            ) => tables.contains(&table),
            Some(Key::Package(name)) => functions.contains(&name),
            Some(_) => true,
            None => {
                problems.push(format!("catalog: a record has the key {key:02x?}"));
                true
            }
        };
        if !is_known && let Some(key) = Key::decode(key) {
            problems.push(format!("catalog: {key} belongs to nothing"));
        }
    }
    Ok(problems)
}

struct Reading {
    table: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    contents: Contents,
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

impl Reading {
    /// Reads all that is not damaged.
    ///
    /// # Errors
    /// `Io`: a file that can't be read is no damage of what is in it.
    fn read(&mut self) -> Result<()> {
        let root = match damage(guarded(|| root(&self.table)))? {
            Ok(Some(root)) => root,
            Ok(None) => self.problem("the catalog's root record is missing".into()),
            Err(error) => self.problem(error),
        };
        let is_root_lost = !self.contents.problems.is_empty();
        self.contents.next_table = root.next_table;
        self.contents.next_generation = root.next_generation;
        self.contents.logged = root.logged;
        for (key, sealed) in self.kind(&Key::Schema(""))? {
            match (
                Key::decode(&key),
                unseal::<SchemaRecord>(&key, &sealed, "a schema"),
            ) {
                (Some(Key::Schema(name)), Ok(_)) => self.contents.schemas.push(name.into()),
                (_, result) => self.bad(&key, result.err()),
            }
        }
        for (key, sealed) in self.kind(&Key::Name("", ""))? {
            let opened = unseal::<NameRecord>(&key, &sealed, "the record of its name");
            match (decode_name(&key), opened) {
                (Some(name), Ok(record)) => {
                    match damage(self.one_table(&name, TableId(record.table)))? {
                        Ok(table) => self.contents.tables.push(table),
                        Err(error) => self.contents.damaged.push((name, error)),
                    }
                }
                (Some(name), Err(error)) => {
                    self.contents.damaged.push((name, error.to_string()));
                }
                (None, result) => self.bad(&key, result.err()),
            }
        }
        for (key, sealed) in self.kind(&Key::Function(""))? {
            let opened = unseal::<FunctionRecord>(&key, &sealed, "a function");
            match (Key::decode(&key), opened) {
                (Some(Key::Function(name)), Ok(record)) => {
                    match record.decode_function(name.into()) {
                        Ok(function) => self.contents.functions.push(function),
                        Err(error) => self.bad(&key, Some(error)),
                    }
                }
                (_, result) => self.bad(&key, result.err()),
            }
        }
        for (key, sealed) in self.kind(&Key::View("", ""))? {
            let opened = unseal::<ViewRecord>(&key, &sealed, "a view");
            match (Key::decode(&key), opened) {
                (Some(Key::View(schema, name)), Ok(record)) => {
                    let name = ObjectName::new(schema, name);
                    self.contents.views.push(record.decode_view(&name));
                }
                (_, result) => self.bad(&key, result.err()),
            }
        }
        match damage(guarded(|| record(&self.table, &Key::Accounts)))? {
            Ok(None) if root.accounts == 0 && !is_root_lost => {}
            Ok(Some(record)) => self.contents.accounts = Accounts::of(&record),
            lost => {
                // Nobody shall be let in because it is not known any more who may not.
                let why = lost.err().unwrap_or_else(|| "they are lost".into());
                let problem = format!("catalog: the accounts: {why}");
                self.contents.accounts.damage = Some(problem.clone());
                self.contents.problems.push(problem);
            }
        }
        for (key, sealed) in self.kind(&Key::Sequence(0))? {
            if let Err(error) = unseal::<SequenceRecord>(&key, &sealed, "a sequence") {
                self.bad(&key, Some(error));
            }
        }
        self.check_counts(&root);
        Ok(())
    }

    fn check_counts(&mut self, root: &RootRecord) {
        let contents = &self.contents;
        let counts = [
            ("schemas", contents.schemas.len(), root.schemas),
            (
                "tables",
                contents.tables.len() + contents.damaged.len(),
                root.tables,
            ),
            ("functions", contents.functions.len(), root.functions),
            ("views", contents.views.len(), root.views),
        ];
        for (what, found, stored) in counts {
            if found != stored as usize {
                self.contents.problems.push(format!(
                    "catalog: it shows {found} {what} of {stored}, the others are lost"
                ));
            }
        }
    }

    fn one_table(&self, name: &ObjectName, id: TableId) -> Result<CatalogTable> {
        let what = format!("table '{}.{}'", name.schema, name.name);
        let record: TableRecord =
            guarded(|| record(&self.table, &Key::Table(id.0)))?.ok_or_else(|| {
                StorageError::corrupt(format!("{what}: its manifest record is missing"))
            })?;
        // Decoding leaves room for further chunks, which many small records can't afford.
        let segment = |number: u64, record: SegmentRecord| {
            let compact = SegmentRecord {
                chunks: record.chunks.clone(),
                ..record
            };
            (SegmentId(number as u32), compact)
        };
        let all = |key: fn(u32, u32) -> Key<'static>| [key(id.0, 0), key(id.0, u32::MAX)];
        let mut segments = self.numbered(all(Key::Segment), &what, segment)?;
        let part = |number: u64, record| (SegmentId(number as u32), record);
        let index_parts = self.numbered(all(Key::Part), &what, part)?;
        segments.sort_by_key(|(id, record)| (record.order, id.0));
        let versions = [Key::Version(id.0, 0), Key::Version(id.0, u64::MAX)];
        let versions = self.numbered(versions, &what, |number, record| (number, record));
        let past = self.numbered(all(Key::PastSegment), &what, segment);
        // The past may be lost while the present is not.
        let history = versions.and_then(|versions| {
            Ok(CatalogHistory {
                versions,
                segments: past?,
            })
        });
        Ok(CatalogTable {
            name: name.clone(),
            id,
            record,
            segments,
            index_parts,
            history: damage(history)?,
        })
    }

    /// What `keep` makes of the records from one key to another, and of the numbers that these end
    /// with.
    fn numbered<M: Message + Default, T>(
        &self,
        [first, last]: [Key<'static>; 2],
        what: &str,
        keep: impl Fn(u64, M) -> T,
    ) -> Result<Vec<T>> {
        let mut problems = Vec::new();
        let rows = self.rows(&first.encode(), &last.encode(), &mut problems)?;
        if let Some(problem) = problems.pop() {
            return Err(StorageError::corrupt(format!("{what}: {problem}")));
        }
        let mut opened = Vec::with_capacity(rows.len());
        for (bytes, sealed) in rows {
            let found = Key::decode(&bytes);
            let number = match &found {
                Some(
                    Key::Segment(_, number) | Key::Part(_, number) | Key::PastSegment(_, number),
                ) => Some(u64::from(*number)),
                Some(Key::Version(_, version)) => Some(*version),
                _ => None,
            };
            let (Some(found), Some(number)) = (found, number) else {
                return Err(StorageError::corrupt(format!(
                    "{what}: a record of it has the key {bytes:02x?}"
                )));
            };
            let record = unseal(&bytes, &sealed, &format!("{what}: {found}"))?;
            opened.push(keep(number, record));
        }
        Ok(opened)
    }

    /// The records of a kind.
    fn kind(&mut self, of: &Key<'_>) -> Result<Rows> {
        let kind = of.encode()[0];
        let mut problems = Vec::new();
        let rows = self.rows(&[kind], &[kind + 1], &mut problems)?;
        self.contents.problems.append(&mut problems);
        Ok(rows)
    }

    /// The records from one key to another, as far as they can be read.
    fn rows(&self, first: &[u8], last: &[u8], problems: &mut Vec<String>) -> Result<Rows> {
        let mut rows = Rows::new();
        let read = guarded(|| {
            for row in self.table.range::<&[u8]>(first..=last).map_err(other)? {
                let (key, sealed) = row.map_err(other)?;
                rows.push((key.value().to_vec(), sealed.value().to_vec()));
            }
            Ok(())
        });
        problems.extend(damage(read)?.err());
        Ok(rows)
    }

    fn problem(&mut self, problem: String) -> RootRecord {
        self.contents.problems.push(problem);
        RootRecord::default()
    }

    fn bad(&mut self, key: &[u8], error: Option<StorageError>) {
        let what = match Key::decode(key) {
            Some(key) => key.to_string(),
            None => format!("the record of key {key:02x?}"),
        };
        let why = error.map_or("is malformed".into(), |error| error.damage());
        self.contents
            .problems
            .push(format!("catalog: {what}: {why}"));
    }
}

/// Tells damage, which costs what is damaged, from a file that can't be read.
fn damage<R>(result: Result<R>) -> Result<Result<R, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error @ StorageError::Io { .. }) => Err(error),
        Err(error) => Ok(Err(error.damage())),
    }
}

fn decode_name(key: &[u8]) -> Option<ObjectName> {
    match Key::decode(key) {
        Some(Key::Name(schema, name)) => Some(ObjectName::new(schema, name)),
        _ => None,
    }
}
