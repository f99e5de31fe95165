//! The check of every page of a database.

use std::sync::Arc;

use crate::page::{Aux, PageZone, decode, flags};
use crate::segment::Chunk;
use crate::store::PageReader;
use crate::table::Database;
use crate::{Result, StorageError};

/// How far a check has come.
#[derive(Debug, Clone, Copy)]
pub struct FsckProgress {
    /// Pages checked.
    pub pages_done: u64,
    /// Pages to check in all.
    pub pages_total: u64,
}

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct FsckReport {
    /// Tables checked.
    pub tables: u64,
    /// Segments checked.
    pub segments: u64,
    /// Pages checked.
    pub pages: u64,
    /// Bytes of those pages.
    pub bytes: u64,
    /// One line for each thing that is wrong; empty: the database is sound.
    pub problems: Vec<String>,
    /// How many more there are, which are not listed: a card may be gone as a whole.
    pub unlisted: u64,
}

/// Problems that are listed.
const LISTED: usize = 10_000;

impl FsckReport {
    fn problem(&mut self, problem: String) {
        match self.problems.len() < LISTED {
            true => self.problems.push(problem),
            false => self.unlisted += 1,
        }
    }
}

impl Database {
    /// Reads every live page from flash; checks its checksum, its identity, that it decodes, and
    /// that the manifest's zone map is the page's own; that every record of the catalog is whole and
    /// belongs to something. Others may read and write meanwhile: the check is of the version of each
    /// table that is there when it is its turn.
    ///
    /// # Errors
    /// Only what stops the check itself, `progress` among it; what the check finds is in the report.
    pub fn fsck(&self, progress: &mut dyn FnMut(FsckProgress) -> Result<()>) -> Result<FsckReport> {
        self.check_current()?;
        let mut tables: Vec<_> = {
            let state = self.state.read();
            state
                .tables
                .values()
                .map(|table| table.snapshot.id)
                .collect()
        };
        tables.sort_unstable();
        let pages_total = self.pages_total();
        let mut reader = self.store().reader()?;
        // What the cache holds was checked when it was read; the check is of the flash.
        reader.bypass_cache();
        let mut report = FsckReport::default();
        if let Some(damage) = self.damage() {
            report.problem(damage.into());
        }
        for orphan in self.catalog.orphans()? {
            report.problem(orphan);
        }
        for function in self.functions() {
            let is_there = || {
                let now = self.function(&function.name);
                now.is_ok_and(|now| now.digest == function.digest)
            };
            match self.function_package(&function) {
                // It was dropped or replaced meanwhile.
                Err(StorageError::NotFound { .. }) if !is_there() => {}
                Err(error) => report.problem(error.to_string()),
                Ok(_) => {}
            }
        }
        for id in tables {
            // Each is held while it is its turn: others may give back what is dropped meanwhile.
            let table = {
                let state = self.state.read();
                let mut tables = state.tables.values();
                tables.find(|table| table.snapshot.id == id).cloned()
            };
            let Some(table) = table else {
                continue;
            };
            let snapshot = &table.snapshot;
            report.tables += 1;
            let present = snapshot.segments.iter();
            let present =
                present.map(|segment| (Arc::clone(segment), Arc::clone(&snapshot.schema)));
            let name = format!("table '{}'", snapshot.name);
            let past = match table.history.checked(&name, &table.as_version()) {
                Ok(past) => past,
                Err(error) => {
                    report.problem(error.to_string());
                    Vec::new()
                }
            };
            for (segment, schema) in present.chain(past) {
                report.segments += 1;
                for (chunk, field) in segment.chunks.iter().zip(schema.fields()) {
                    let place = format!("segment {}", segment.id.0);
                    check_chunk(&mut reader, &place, chunk, field.data_type(), &mut report)?;
                    progress(FsckProgress {
                        pages_done: report.pages,
                        pages_total,
                    })?;
                }
            }
            for part in snapshot.indexes.iter().flat_map(|index| &index.parts) {
                let place = format!("part {}", part.id.0);
                for array in &part.arrays {
                    for chunk in &array.chunks {
                        check_chunk(&mut reader, &place, chunk, &array.data_type, &mut report)?;
                        progress(FsckProgress {
                            pages_done: report.pages,
                            pages_total,
                        })?;
                    }
                }
            }
        }
        report.bytes = report.pages * crate::flash::PAGE_SIZE_BYTES as u64;
        Ok(report)
    }
}

pub(super) fn check_chunk(
    reader: &mut PageReader,
    place: &str,
    chunk: &Chunk,
    data_type: &arrow::datatypes::DataType,
    report: &mut FsckReport,
) -> Result<()> {
    report.pages += chunk.runs().map(|run| u64::from(run.count)).sum::<u64>();
    let index = chunk.stored_page_index(reader);
    if let Err(error) = &index {
        report.problem(error.to_string());
    }
    reader.prefetch(&chunk.run, 0..chunk.run.count)?;
    let mut aux = Some(Aux::None);
    for number in 0..chunk.run.count {
        let page = match reader.get(&chunk.run, number) {
            Ok(page) => page,
            Err(error) => {
                let problem = error.to_string();
                // A page that columns share is reported for the first of them.
                if chunk.run.part.is_none() || !report.problems.contains(&problem) {
                    report.problem(problem);
                }
                if number < chunk.aux_pages {
                    aux = None;
                }
                continue;
            }
        };
        let place = || format!("{}, {place}, page {number}", chunk.run.label);
        if number < chunk.aux_pages {
            aux = match Aux::parse(&page, data_type) {
                Ok(parsed) => Some(parsed),
                Err(error) => {
                    report.problem(format!("{}: {error}", place()));
                    None
                }
            };
            continue;
        }
        let header = page.header();
        let zone = index.as_ref().ok();
        let zone = zone.map(|index| index.zones()[(number - chunk.aux_pages) as usize]);
        let is_same = |zone: PageZone| {
            (zone.row_count, zone.null_count, zone.min, zone.max)
                == (header.row_count, header.null_count, header.min, header.max)
        };
        if !zone.is_none_or(is_same) {
            report.problem(format!(
                "{}: the manifest's zone map is not the page's",
                place()
            ));
        }
        // Without its auxiliary page a page can't be decoded, which is reported once above. The
        // parts of a long value decode only together: their checksums are all there is to check.
        let whole = header.row_count > 0 && !header.has(flags::CONTINUES);
        if let (Some(aux), true) = (&aux, whole)
            && let Err(error) = decode(&page, aux, data_type, 0..header.row_count)
        {
            report.problem(format!("{}: {error}", place()));
        }
    }
    Ok(())
}
