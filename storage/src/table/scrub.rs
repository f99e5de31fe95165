//! The scrub: every page is read and checked once in a while, so that one that went bad is known
//! while a backup still has it.
//!
//! The thread that keeps indexes up does it, a few chunks at a time, as fast as it takes to come
//! around once in [`UpkeepOptions::scrub_period`](crate::table::UpkeepOptions::scrub_period).

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use arrow::datatypes::{DataType, SchemaRef};
use parking_lot::Mutex;

use crate::Result;
use crate::index::pace::Pace;
use crate::segment::{Chunk, Segment, TableId};
use crate::table::database::Core;
use crate::table::fsck::{FsckReport, check_chunk};
use crate::table::state::TableState;
use crate::table::{Database, TableSnapshot};

/// What is due is looked at no more often.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Problems that are remembered.
const REMEMBERED: usize = 100;

/// What the scrub has found since the database was opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    /// Pages that were checked since it last began anew.
    pub pages_checked: u64,
    /// Pages to check in all, when it last looked.
    pub pages_total: u64,
    /// How often it has come around.
    pub passes: u64,
    /// One line for each thing that is wrong; the first hundred.
    pub problems: Vec<String>,
}

/// How far the scrub is.
#[derive(Debug, Default)]
pub(super) struct Scrub(Mutex<Progress>);

#[derive(Debug, Default)]
struct Progress {
    next: Place,
    looked_at: Option<Instant>,
    /// Pages that should have been checked by now and were not; below zero: the other way round.
    due: f64,
    pages_checked: u64,
    pages_total: u64,
    passes: u64,
    problems: BTreeSet<String>,
}

impl Progress {
    /// How many pages are due when a part of the period has gone by.
    fn due_after(&mut self, part: f64) -> f64 {
        let all = self.pages_total as f64;
        // What was missed while much was to be done is not made up for more than once.
        self.due = (self.due + part * all).min(all);
        self.due
    }
}

/// Where a chunk is: its table, whether it is one of an index, its segment or part, its number there.
type Place = (u32, bool, u32, u32);

/// A chunk to check.
struct Check<'a> {
    place: Place,
    chunk: &'a Chunk,
    data_type: &'a DataType,
}

impl Database {
    /// What the scrub has found.
    pub fn scrubbed(&self) -> ScrubStatus {
        let progress = self.scrub.0.lock();
        ScrubStatus {
            pages_checked: progress.pages_checked,
            pages_total: progress.pages_total,
            passes: progress.passes,
            problems: progress.problems.iter().cloned().collect(),
        }
    }
}

impl Core {
    /// Checks what is due by now.
    ///
    /// # Errors
    /// `Cancelled` when `pace` ends it; what stops the check itself.
    pub(super) fn scrub_due(&self, period: Duration, pace: &Pace) -> Result<()> {
        let pages = {
            let mut progress = self.scrub.0.lock();
            let since = progress.looked_at.map(|when| when.elapsed());
            if since.is_some_and(|since| since < LOOK_EVERY) {
                return Ok(());
            }
            progress.looked_at = Some(Instant::now());
            progress.pages_total = self.pages_total();
            let part = since.unwrap_or_default().as_secs_f64() / period.as_secs_f64().max(1.0);
            progress.due_after(part)
        };
        match pages > 0.0 {
            true => self.scrub_pages(pages, pace),
            false => Ok(()),
        }
    }

    fn pages_total(&self) -> u64 {
        let tables = self.all_tables();
        let runs = tables.iter().flat_map(TableState::chunks);
        let runs = runs.flat_map(Chunk::runs);
        runs.map(|run| u64::from(run.count)).sum()
    }

    fn all_tables(&self) -> Vec<TableState> {
        self.state.read().tables.values().cloned().collect()
    }

    /// Checks chunks from where it left off until they have so many pages, or the end comes.
    ///
    /// # Errors
    /// As [`Core::scrub_due`].
    pub(super) fn scrub_pages(&self, pages: f64, pace: &Pace) -> Result<()> {
        let next = self.scrub.0.lock().next;
        let tables = self.all_tables();
        let tables = tables.iter().map(|table| {
            let name = format!("table '{}'", table.snapshot.name);
            let past = table.history.checked(&name, &table.as_version());
            past.map(|past| (&table.snapshot, past))
        });
        let tables = tables.collect::<Result<Vec<_>>>()?;
        let checks = tables.iter().flat_map(|(table, past)| {
            let of_past = past.iter();
            let of_past = of_past.flat_map(|(s, schema)| checks_of_segment(table.id, s, schema));
            checks_of(table).chain(of_past)
        });
        let mut checks: Vec<Check> = checks.collect();
        checks.retain(|check| check.place >= next);
        checks.sort_unstable_by_key(|check| check.place);
        let mut reader = self.store().reader()?;
        reader.bypass_cache();
        let mut left = pages;
        for check in &checks {
            if left <= 0.0 {
                return Ok(());
            }
            pace.check()?;
            let (_, is_part, number, chunk) = check.place;
            let kind = if is_part { "part" } else { "segment" };
            let mut report = FsckReport::default();
            let place = format!("{kind} {number}");
            check_chunk(
                &mut reader,
                &place,
                check.chunk,
                check.data_type,
                &mut report,
            )?;
            left -= report.pages as f64;
            let mut progress = self.scrub.0.lock();
            progress.due -= report.pages as f64;
            progress.pages_checked += report.pages;
            progress.next = (check.place.0, is_part, number, chunk + 1);
            for problem in report.problems {
                if progress.problems.len() < REMEMBERED && progress.problems.insert(problem.clone())
                {
                    log::error!("{}: {problem}", self.path().display());
                }
            }
        }
        // It came around.
        let mut progress = self.scrub.0.lock();
        progress.next = Place::default();
        progress.pages_checked = 0;
        progress.passes += 1;
        Ok(())
    }
}

/// The chunks of a table and of its indexes.
fn checks_of(table: &TableSnapshot) -> impl Iterator<Item = Check<'_>> {
    let id = table.id.0;
    let segments = table.segments.iter();
    let segments = segments.flat_map(|segment| checks_of_segment(table.id, segment, &table.schema));
    let parts = table.indexes.iter().flat_map(|index| &index.parts);
    let parts = parts.flat_map(move |part| {
        let chunks = part.arrays.iter().flat_map(|array| {
            let chunks = array.chunks.iter();
            chunks.map(|chunk| (chunk.as_ref(), &array.data_type))
        });
        (0..)
            .zip(chunks)
            .map(move |(number, (chunk, data_type))| Check {
                place: (id, true, part.id.0, number),
                chunk,
                data_type,
            })
    });
    segments.chain(parts)
}

fn checks_of_segment<'a>(
    table: TableId,
    segment: &'a Segment,
    schema: &'a SchemaRef,
) -> impl Iterator<Item = Check<'a>> {
    let chunks = (0..).zip(segment.chunks.iter().zip(schema.fields()));
    chunks.map(move |(number, (chunk, field))| Check {
        place: (table.0, false, segment.id.0, number),
        chunk,
        data_type: field.data_type(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pages_are_due_once_in_a_period() {
        let mut progress = Progress {
            pages_total: 1000,
            ..Progress::default()
        };
        let due: f64 = (0..4).map(|_| progress.due_after(0.25)).last().unwrap();
        assert_eq!(due, 1000.0);
        assert_eq!(progress.due_after(7.0), 1000.0);
        // A chunk is checked as a whole: what is too much counts later.
        progress.due -= 1300.0;
        assert_eq!(progress.due_after(0.5), 200.0);
    }
}
