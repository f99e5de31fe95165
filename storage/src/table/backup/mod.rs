//! Backups: what a database holds at one moment, copied while others read and write.
//!
//! Pages are immutable, and a segment or a part of an index keeps its number and generation for
//! life. So a backup holds a version of all tables, as any reader does, copies the pages of what the
//! backup before it had not, and last writes one file that names all pages: until that is there,
//! nothing is. A place (a folder, a bucket) has the backups of one database, each whole by itself:
//! any of them may go, with the pages that no other one names.

mod files;
mod record;
mod restore;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub use files::{BackupFiles, BackupFolder};
pub use restore::{check_backup, restore};

use self::record::{
    BackupRecord, PACK_PREFIX, PackRecord, Piece, PieceKey, PieceRecord, numbers, place,
};
use crate::capability::random_bytes;
use crate::flash::PAGE_SIZE_BYTES;
use crate::store::{PageReader, PageRun};
use crate::table::Database;
use crate::table::edit::{
    Operation, PutFunction, PutPart, PutSegment, PutTable, PutView, TableEdit,
};
use crate::table::manifest::{FunctionRecord, ViewRecord, encode_part, encode_segment};
use crate::table::state::State;
use crate::{Result, StorageError};

/// A file of pages is written when it has so many (64 MiB).
const PACK_PAGES: u64 = 8192;
/// Pages that are read at once.
const BATCH_PAGES: u32 = 2048;

/// How far a backup, a restore or a check has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupProgress {
    /// Pages copied or checked.
    pub pages_done: u64,
    /// Pages to copy or to check in all.
    pub pages_total: u64,
}

/// A backup, as its place has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// Counts the backups of the place from 1 on.
    pub number: u32,
    /// When its version of the database was taken: microseconds since 1970.
    pub taken_at_us: u64,
    /// Tables that it has.
    pub tables: u64,
    /// Rows of all these.
    pub rows: u64,
    /// Bytes of its pages.
    pub bytes: u64,
    /// Bytes among them that no earlier backup had.
    pub new_bytes: u64,
}

impl Backup {
    fn of(record: &BackupRecord) -> Self {
        let tables = || {
            record.whole.operations().filter_map(|o| match o {
                Operation::PutTable(put) => Some(&put.record),
                _ => None,
            })
        };
        Self {
            number: record.number,
            taken_at_us: record.taken_at_us,
            tables: tables().count() as u64,
            rows: tables()
                .map(|table| table.rows - table.deleted.min(table.rows))
                .sum(),
            bytes: record.pages * PAGE_SIZE_BYTES as u64,
            new_bytes: record.new_pages * PAGE_SIZE_BYTES as u64,
        }
    }
}

/// The backups of a place, oldest first.
///
/// # Errors
/// `Corrupt` for one that is damaged; `Io`.
pub fn backups(files: &dyn BackupFiles) -> Result<Vec<Backup>> {
    let numbers = numbers(&files.list()?).into_iter();
    numbers
        .map(|(number, bytes)| Ok(Backup::of(&BackupRecord::read(files, number, bytes)?)))
        .collect()
}

impl Database {
    /// Copies what the database holds now to a place that has nothing, or earlier backups of this
    /// database; of these only the last `keep` stay, with the new one among them. Readers and writers
    /// go on meanwhile, and every page is checked on its way. `progress` may end it with an error.
    ///
    /// # Errors
    /// `Invalid` when the place has other files, or backups of another database; `Corrupt` when a page
    /// is damaged, or the last backup; `AlreadyExists` when another backup was made meanwhile; `Full`,
    /// `Io`; those of `progress`. Then the place has the backups that it had.
    pub fn backup(
        &self,
        files: &dyn BackupFiles,
        keep: Option<u32>,
        progress: &mut dyn FnMut(BackupProgress) -> Result<()>,
    ) -> Result<Backup> {
        if keep == Some(0) {
            return Err(StorageError::Invalid(
                "a backup that keeps no backup: keep 1 or more".into(),
            ));
        }
        if let Some(damage) = self.damage() {
            return Err(StorageError::corrupt(format!(
                "database {:?} can't be backed up, as its catalog is damaged: {damage}",
                self.path()
            )));
        }
        let id = self.catalog.id()?;
        let listed = files.list()?;
        let before = last_of(files, &listed, &id)?;
        let mut state = self.state.read().clone();
        state.forget_temporary();
        let mut tables: Vec<_> = state
            .tables
            .values()
            .map(|t| Arc::clone(&t.snapshot))
            .collect();
        tables.sort_unstable_by_key(|table| table.id.0);
        let pieces: Vec<Piece> = tables
            .iter()
            .flat_map(|table| Piece::all_of(table))
            .collect();
        let mut packs = Packs::new(files, before.as_ref().map_or(0, |b| b.number) + 1);
        let mut record = BackupRecord {
            database: id,
            number: packs.number,
            taken_at_us: now_us(),
            whole: self.whole(&state)?,
            sequences: self.sequences_of(&state)?,
            pages: pieces.iter().map(Piece::pages).sum(),
            ..BackupRecord::default()
        };
        let old = before.as_ref().map(|b| Old::new(b, &listed));
        let mut now = BackupProgress {
            pages_done: 0,
            pages_total: record.pages,
        };
        progress(now)?;
        let mut reader = self.store().reader()?;
        reader.bypass_cache();
        for piece in &pieces {
            let places = match old.as_ref().and_then(|old| old.places(piece, &mut packs)) {
                Some(places) => {
                    now.pages_done += piece.pages();
                    places
                }
                None => {
                    record.new_pages += piece.pages();
                    let mut places = Vec::with_capacity(piece.runs.len());
                    for run in &piece.runs {
                        places.push(packs.append(&mut reader, run, |pages| {
                            now.pages_done += pages;
                            progress(now)
                        })?);
                    }
                    places
                }
            };
            record.pieces.push(PieceRecord {
                table: piece.key.table,
                is_part: piece.key.is_part,
                number: piece.key.number,
                generation: piece.key.generation,
                places,
            });
        }
        progress(now)?;
        record.packs = packs.finish()?;
        let written = files.write(&BackupRecord::file_name(record.number), record.encode());
        written.map_err(|error| match error {
            StorageError::AlreadyExists { .. } => StorageError::AlreadyExists {
                kind: "backup",
                name: format!("{} in {}", record.number, files.name()),
            },
            error => error,
        })?;
        if let Some(keep) = keep {
            remove_old(files, &record, keep)?;
        }
        Ok(Backup::of(&record))
    }

    /// How many numbers the sequences of a state have given by now: no fewer than they had then.
    fn sequences_of(&self, state: &State) -> Result<BTreeMap<u32, u64>> {
        let sequences = state.sequences().into_iter();
        // Where one is lost, that is found out by whoever wants its next number.
        let given = sequences.filter_map(|sequence| {
            let given = self.catalog.given_of_sequence(sequence).transpose()?;
            Some(given.map(|given| (sequence, given)))
        });
        given.collect()
    }

    /// All that a state has, as an edit of an empty database.
    fn whole(&self, state: &State) -> Result<TableEdit> {
        let mut edit = TableEdit::default();
        for schema in state.schemas() {
            edit.push(Operation::PutSchema(schema));
        }
        for (name, table) in &state.tables {
            let id = table.snapshot.id.0;
            edit.push(Operation::PutTable(PutTable {
                name: name.clone(),
                table: id,
                record: (*table.record).clone(),
            }));
            for (order, segment) in table.snapshot.segments.iter().enumerate() {
                edit.push(Operation::PutSegment(PutSegment {
                    table: id,
                    segment: segment.id.0,
                    record: encode_segment(segment, order as u64),
                }));
            }
            for index in &table.snapshot.indexes {
                for part in &index.parts {
                    edit.push(Operation::PutPart(PutPart {
                        table: id,
                        part: part.id.0,
                        record: encode_part(part, &index.definition.name),
                    }));
                }
            }
        }
        for (name, view) in &state.views {
            edit.push(Operation::PutView(PutView {
                name: name.clone(),
                record: ViewRecord::of(view),
            }));
        }
        if state.accounts.version > 0 {
            edit.push(Operation::PutAccounts(state.accounts.record()?));
        }
        for (name, function) in &state.functions {
            edit.push(Operation::PutFunction(PutFunction {
                name: name.clone(),
                record: FunctionRecord::of(function),
                package: self.function_package(function)?,
            }));
        }
        Ok(edit)
    }
}

/// The last backup of a place, which shall be of this database.
fn last_of(
    files: &dyn BackupFiles,
    listed: &[(String, u64)],
    database: &[u8],
) -> Result<Option<BackupRecord>> {
    let Some((number, bytes)) = numbers(listed).pop() else {
        let other = listed
            .iter()
            .find(|(name, _)| !name.starts_with(PACK_PREFIX));
        return match other {
            // Pages without a backup are what one has left that did not come to its end.
            None => Ok(None),
            Some((name, _)) => Err(StorageError::Invalid(format!(
                "{} has other files ('{name}'); name an empty place for backups",
                files.name()
            ))),
        };
    };
    let last = BackupRecord::read(files, number, bytes)?;
    match last.database == database {
        true => Ok(Some(last)),
        false => Err(StorageError::Invalid(format!(
            "{} has backups of another database; name another place",
            files.name()
        ))),
    }
}

/// Removes all backups of a place but the last ones, and what no backup names then.
fn remove_old(files: &dyn BackupFiles, last: &BackupRecord, keep: u32) -> Result<()> {
    let listed = files.list()?;
    let numbers = numbers(&listed);
    let numbers: Vec<_> = numbers
        .into_iter()
        .filter(|(n, _)| *n <= last.number)
        .collect();
    let (gone, kept) = numbers.split_at(numbers.len().saturating_sub(keep as usize));
    // None of these goes with pages that one of those names.
    let mut named: HashSet<String> = last.packs.iter().map(|pack| pack.name.clone()).collect();
    for (number, bytes) in kept.iter().filter(|(number, _)| *number != last.number) {
        let record = BackupRecord::read(files, *number, *bytes)?;
        named.extend(record.packs.into_iter().map(|pack| pack.name));
    }
    for (number, _) in gone {
        files.remove(&BackupRecord::file_name(*number))?;
    }
    for (name, _) in listed {
        // A later backup may be on its way.
        let number = name.strip_prefix(PACK_PREFIX).and_then(|rest| {
            let (number, _) = rest.split_once('-')?;
            number.parse::<u32>().ok()
        });
        if number.is_some_and(|number| number <= last.number) && !named.contains(&name) {
            files.remove(&name)?;
        }
    }
    Ok(())
}

/// What the backup before has.
struct Old<'a> {
    record: &'a BackupRecord,
    pieces: HashMap<PieceKey, &'a PieceRecord>,
    /// Which of its packs are there whole.
    is_there: Vec<bool>,
}

impl<'a> Old<'a> {
    fn new(record: &'a BackupRecord, listed: &[(String, u64)]) -> Self {
        let bytes: HashMap<&str, u64> = listed.iter().map(|(n, b)| (n.as_str(), *b)).collect();
        let packs = record.packs.iter();
        let is_whole = |pack: &PackRecord| {
            bytes.get(pack.name.as_str()) == Some(&(pack.pages * PAGE_SIZE_BYTES as u64))
        };
        Self {
            record,
            pieces: record.places(),
            is_there: packs.map(is_whole).collect(),
        }
    }

    /// Where the pages of a piece are, if it has them.
    fn places(&self, piece: &Piece, packs: &mut Packs) -> Option<Vec<u64>> {
        let old = self.pieces.get(&piece.key)?;
        let pack_of = |place: &u64| (*place >> 32) as usize;
        let is_there = |place| self.is_there.get(pack_of(place)) == Some(&true);
        if old.places.len() != piece.runs.len() || !old.places.iter().all(is_there) {
            return None;
        }
        let places = old.places.iter().map(|old| {
            let pack = packs.old(&self.record.packs[pack_of(old)]);
            place(pack, old & u64::from(u32::MAX))
        });
        Some(places.collect())
    }
}

/// The files of pages of a backup that is being made.
struct Packs<'a> {
    files: &'a dyn BackupFiles,
    number: u32,
    /// No other backup of this number writes files of these names.
    nonce: u32,
    named: Vec<PackRecord>,
    old: HashMap<String, usize>,
    /// Pages of the one that is not written yet, and its number among all.
    open: Vec<u8>,
    place: Option<usize>,
}

impl<'a> Packs<'a> {
    fn new(files: &'a dyn BackupFiles, number: u32) -> Self {
        Self {
            files,
            number,
            nonce: u32::from_le_bytes(random_bytes()),
            named: Vec::new(),
            old: HashMap::new(),
            open: Vec::new(),
            place: None,
        }
    }

    /// The number of a pack that the backup before has.
    fn old(&mut self, pack: &PackRecord) -> usize {
        *self.old.entry(pack.name.clone()).or_insert_with(|| {
            self.named.push(pack.clone());
            self.named.len() - 1
        })
    }

    /// Appends a run and gives its place.
    fn append(
        &mut self,
        reader: &mut PageReader,
        run: &PageRun,
        mut done: impl FnMut(u64) -> Result<()>,
    ) -> Result<u64> {
        let pack = match self.place {
            Some(pack) => pack,
            None => {
                let name = format!(
                    "{PACK_PREFIX}{:06}-{:08x}-{:06}",
                    self.number,
                    self.nonce,
                    self.named.len()
                );
                self.named.push(PackRecord { name, pages: 0 });
                *self.place.insert(self.named.len() - 1)
            }
        };
        let first = self.named[pack].pages;
        let mut pages = Vec::new();
        for start in (0..run.count).step_by(BATCH_PAGES as usize) {
            let range = start..run.count.min(start + BATCH_PAGES);
            let count = u64::from(range.end - range.start);
            pages.clear();
            reader.get_run(run, range, &mut pages)?;
            pages
                .iter()
                .for_each(|page| self.open.extend_from_slice(&page.bytes()));
            done(count)?;
        }
        self.named[pack].pages += u64::from(run.count);
        if self.named[pack].pages >= PACK_PAGES {
            self.write()?;
        }
        Ok(place(pack, first))
    }

    fn write(&mut self) -> Result<()> {
        match self.place.take() {
            Some(pack) => {
                let bytes = mem::take(&mut self.open);
                self.files.write(&self.named[pack].name, bytes)
            }
            None => Ok(()),
        }
    }

    fn finish(mut self) -> Result<Vec<PackRecord>> {
        self.write()?;
        Ok(self.named)
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}
