//! The scrub: every page is read and checked once in a while, so that one that went bad is known
//! while a backup still has it.
//!
//! The thread that keeps indexes up does it, a few chunks at a time, as fast as it takes to come
//! around once in [`UpkeepOptions::scrub_period`](crate::table::UpkeepOptions::scrub_period).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::datatypes::{DataType, SchemaRef};
use parking_lot::Mutex;

use crate::Result;
use crate::index::IndexPart;
use crate::index::pace::Pace;
use crate::segment::{Chunk, Segment};
use crate::table::Database;
use crate::table::database::Core;
use crate::table::fsck::{FsckReport, check_chunk};
use crate::table::state::TableState;

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

/// What has chunks: a segment with the columns that it has, or a part of an index. Whoever looks at
/// its pages holds it, so that they are not given back meanwhile.
enum Owner {
    Segment(Arc<Segment>, SchemaRef),
    Part(Arc<IndexPart>),
}

impl Owner {
    /// Its place within its table.
    fn place(&self) -> (bool, u32) {
        match self {
            Self::Segment(segment, _) => (false, segment.id.0),
            Self::Part(part) => (true, part.id.0),
        }
    }

    fn chunks(&self) -> Vec<(&Chunk, &DataType)> {
        match self {
            Self::Segment(segment, schema) => {
                let types = schema.fields().iter().map(|field| field.data_type());
                segment.chunks.iter().zip(types).collect()
            }
            Self::Part(part) => {
                let arrays = part.arrays.iter();
                arrays
                    .flat_map(|array| {
                        array
                            .chunks
                            .iter()
                            .map(|chunk| (&**chunk, &array.data_type))
                    })
                    .collect()
            }
        }
    }
}

/// All that a table has.
fn owners(table: &TableState) -> Result<Vec<Owner>> {
    let snapshot = &table.snapshot;
    let name = format!("table '{}'", snapshot.name);
    let past = table.history.checked(&name, &table.as_version())?;
    let segments = snapshot.segments.iter();
    let segments = segments.map(|s| Owner::Segment(Arc::clone(s), Arc::clone(&snapshot.schema)));
    let past = past
        .into_iter()
        .map(|(s, schema)| Owner::Segment(s, schema));
    let parts = snapshot.indexes.iter().flat_map(|index| &index.parts);
    let parts = parts.map(|part| Owner::Part(Arc::clone(part)));
    Ok(segments.chain(past).chain(parts).collect())
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

    pub(super) fn pages_total(&self) -> u64 {
        let state = self.state.read();
        let chunks = state.tables.values().flat_map(TableState::chunks);
        let runs = chunks.flat_map(Chunk::runs);
        runs.map(|run| u64::from(run.count)).sum()
    }

    /// Checks chunks from where it left off until they have so many pages, or the end comes. It holds
    /// one segment or part at a time: what it holds can't be collected, and a card that is nearly full
    /// has need of all the rest.
    ///
    /// # Errors
    /// As [`Core::scrub_due`].
    pub(super) fn scrub_pages(&self, pages: f64, pace: &Pace) -> Result<()> {
        let mut reader = self.store().reader()?;
        reader.bypass_cache();
        let mut left = pages;
        while left > 0.0 {
            let from = self.scrub.0.lock().next;
            let Some((table, owner)) = self.next_owner(from)? else {
                // It came around.
                let mut progress = self.scrub.0.lock();
                progress.next = Place::default();
                progress.pages_checked = 0;
                progress.passes += 1;
                return Ok(());
            };
            let (is_part, number) = owner.place();
            let kind = if is_part { "part" } else { "segment" };
            let place = format!("{kind} {number}");
            for (chunk_number, (chunk, data_type)) in (0..).zip(owner.chunks()) {
                let chunk_place = (table, is_part, number, chunk_number);
                if chunk_place < from {
                    continue;
                }
                if left <= 0.0 {
                    return Ok(());
                }
                pace.check()?;
                let mut report = FsckReport::default();
                check_chunk(&mut reader, &place, chunk, data_type, &mut report)?;
                left -= report.pages as f64;
                self.note(chunk_place, report);
            }
        }
        Ok(())
    }

    /// What has the first chunk at `from` or behind it, and its table.
    fn next_owner(&self, mut from: Place) -> Result<Option<(u32, Owner)>> {
        loop {
            let next = {
                let state = self.state.read();
                let tables = state.tables.values();
                let tables = tables.filter(|table| table.snapshot.id.0 >= from.0);
                tables.min_by_key(|table| table.snapshot.id.0).cloned()
            };
            let Some(table) = next else {
                return Ok(None);
            };
            let id = table.snapshot.id.0;
            let is_left = |owner: &Owner| {
                let (is_part, number) = owner.place();
                let chunks = owner.chunks().len() as u32;
                chunks > 0 && (id, is_part, number, chunks - 1) >= from
            };
            let owners = owners(&table)?.into_iter().filter(is_left);
            if let Some(owner) = owners.min_by_key(Owner::place) {
                return Ok(Some((id, owner)));
            }
            let Some(behind) = id.checked_add(1) else {
                return Ok(None);
            };
            from = (behind, false, 0, 0);
        }
    }

    /// Takes down what the check of a chunk has found.
    fn note(&self, place: Place, report: FsckReport) {
        let mut progress = self.scrub.0.lock();
        progress.due -= report.pages as f64;
        progress.pages_checked += report.pages;
        progress.next = (place.0, place.1, place.2, place.3 + 1);
        for problem in report.problems {
            if progress.problems.len() < REMEMBERED && progress.problems.insert(problem.clone()) {
                log::error!("{}: {problem}", self.path().display());
            }
        }
    }
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
