//! The way back: a new database from a backup, and the check of one.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::record::{BackupRecord, Piece, numbers};
use super::{BATCH_PAGES, Backup, BackupFiles, BackupProgress};
use crate::flash::{FileFlash, FileFlashOptions, PAGE_SIZE_BYTES, PageBuffer};
use crate::page::{Page, PageIdentity};
use crate::store::{PageAddress, PageRun, PageStore, Reservation};
use crate::table::catalog::FirstState;
use crate::table::edit::{Operation, TableEdit};
use crate::table::folder::Folder;
use crate::table::state::State;
use crate::table::{Database, DatabaseOptions, TableSnapshot};
use crate::{Result, StorageError};

/// Makes a new database in `folder`, which is missing or empty, from the backup of a number, or from
/// the last one. Every page is checked on its way. `progress` may end it with an error.
///
/// # Errors
/// `NotFound` when there is no such backup; `Invalid` when the folder is not empty; `Corrupt` when the
/// backup is damaged; `Full`, `Io`; those of `progress`. Then the folder has nothing of it.
pub fn restore(
    files: &dyn BackupFiles,
    number: Option<u32>,
    folder: &Path,
    progress: &mut dyn FnMut(BackupProgress) -> Result<()>,
) -> Result<Backup> {
    let record = read(files, number)?;
    let tables = tables_of(&record)?;
    let new = Folder::new(folder);
    new.begin()?;
    let made = copy_pages(files, &record, &tables, &new, progress).and_then(|(whole, pages)| {
        let sequences = record.sequences.clone();
        new.finish(&FirstState { whole, sequences })?;
        pages.keep();
        Ok(())
    });
    if let Err(error) = made {
        new.abandon();
        return Err(error);
    }
    // What was made is a database, of which nothing is missing.
    let options = DatabaseOptions {
        read_only: true,
        ..DatabaseOptions::default()
    };
    match Database::open(folder, options)?.damage() {
        None => Ok(Backup::of(&record)),
        Some(damage) => Err(StorageError::corrupt(format!(
            "what backup {} was restored to: {damage}",
            record.number
        ))),
    }
}

/// Copies all pages to the card of a new database, and gives the edit that names them there.
fn copy_pages(
    files: &dyn BackupFiles,
    record: &BackupRecord,
    tables: &[Arc<TableSnapshot>],
    new: &Folder,
    progress: &mut dyn FnMut(BackupProgress) -> Result<()>,
) -> Result<(TableEdit, Reservation)> {
    let options = FileFlashOptions {
        create: false,
        ..FileFlashOptions::default()
    };
    let flash = FileFlash::open(&new.card, options)?;
    let store = PageStore::open(Arc::new(flash), 0, [])?;
    let mut writer = store.writer()?;
    let mut moved: HashMap<PageAddress, PageAddress> = HashMap::new();
    copy(files, record, tables, progress, &mut |run, pages| {
        moved.insert(run.first, writer.append(pages)?);
        Ok(())
    })?;
    let pages = writer.finish()?;
    store.sync()?;
    let place_of = |first: PageAddress| moved.get(&first).copied().unwrap_or(first);
    let mut whole = TableEdit::default();
    for operation in record.whole.operations() {
        let mut operation = operation.clone();
        match &mut operation {
            Operation::PutSegment(put) => put.record.move_pages(place_of),
            Operation::PutPart(put) => put.record.move_pages(place_of),
            _ => {}
        }
        whole.push(operation);
    }
    Ok((whole, pages))
}

/// Reads all pages of the backup of a number, or of the last one, and checks them.
///
/// # Errors
/// As [`restore`].
pub fn check_backup(
    files: &dyn BackupFiles,
    number: Option<u32>,
    progress: &mut dyn FnMut(BackupProgress) -> Result<()>,
) -> Result<Backup> {
    let record = read(files, number)?;
    let tables = tables_of(&record)?;
    copy(files, &record, &tables, progress, &mut |_, _| Ok(()))?;
    Ok(Backup::of(&record))
}

fn read(files: &dyn BackupFiles, number: Option<u32>) -> Result<BackupRecord> {
    let numbers = numbers(&files.list()?);
    let found = match number {
        Some(number) => numbers.iter().find(|(n, _)| *n == number),
        None => numbers.last(),
    };
    let (number, bytes) = found.copied().ok_or_else(|| StorageError::NotFound {
        kind: "backup",
        name: match number {
            Some(number) => format!("{number} in {}", files.name()),
            None => format!("{} (it has none)", files.name()),
        },
    })?;
    BackupRecord::read(files, number, bytes)
}

/// The tables of a backup, at the addresses that they had, by their numbers.
fn tables_of(record: &BackupRecord) -> Result<Vec<Arc<TableSnapshot>>> {
    let mut state = State::default();
    let change = state.change(&record.whole)?;
    drop(state.install(&record.whole, change));
    let mut tables: Vec<_> = state.tables.into_values().map(|t| t.snapshot).collect();
    tables.sort_unstable_by_key(|table| table.id.0);
    Ok(tables)
}

/// Takes the pages of all runs, checked.
fn copy(
    files: &dyn BackupFiles,
    record: &BackupRecord,
    tables: &[Arc<TableSnapshot>],
    progress: &mut dyn FnMut(BackupProgress) -> Result<()>,
    take: &mut dyn FnMut(&PageRun, Vec<PageBuffer>) -> Result<()>,
) -> Result<()> {
    let places = record.places();
    let mut now = BackupProgress {
        pages_done: 0,
        pages_total: record.pages,
    };
    progress(now)?;
    for piece in tables.iter().flat_map(|table| Piece::all_of(table)) {
        let found = places.get(&piece.key);
        let found = found.filter(|found| found.places.len() == piece.runs.len());
        let found = found.ok_or_else(|| {
            StorageError::corrupt(format!(
                "backup {} does not say where {:?} is",
                record.number, piece.key
            ))
        })?;
        for (run, place) in piece.runs.iter().zip(&found.places) {
            let (pack, start) = record.bytes_of(*place, run)?;
            let mut pages = Vec::new();
            for first in (0..run.count).step_by(BATCH_PAGES as usize) {
                let end = run.count.min(first + BATCH_PAGES);
                let byte = |page: u32| start + u64::from(page) * PAGE_SIZE_BYTES as u64;
                let bytes = files.read(&pack.name, byte(first)..byte(end))?;
                for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE_SIZE_BYTES)) {
                    pages.push(checked(run, page, bytes, &pack.name)?);
                }
                now.pages_done += u64::from(end - first);
                progress(now)?;
            }
            take(run, pages)?;
        }
    }
    Ok(())
}

/// A page of a run that is what was written.
fn checked(run: &PageRun, page: u32, bytes: &[u8], pack: &str) -> Result<PageBuffer> {
    let mut buffer = PageBuffer::recycled();
    buffer.copy_from_slice(bytes);
    let identity = PageIdentity {
        page: run.identity.page.wrapping_add(page as u16),
        ..run.identity
    };
    let label = format!("{pack}: {}", run.label);
    let page = Page::verify(buffer, &identity, &label)?;
    let mut buffer = PageBuffer::recycled();
    buffer.copy_from_slice(&page.bytes());
    Ok(buffer)
}
