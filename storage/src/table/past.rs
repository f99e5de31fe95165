//! Reading the past of tables, and how long it is kept ([`super::history`] keeps it).

use std::sync::Arc;
use std::time::Duration;

use arrow::temporal_conversions::timestamp_us_to_datetime;

use crate::segment::TableId;
use crate::table::database::{Core, comment_set, retention_set};
use crate::table::edit::{Operation, TableEdit, TableVersion as NamedVersion};
use crate::table::history::now_us;
use crate::table::state::{TableState, next_rows_version};
use crate::table::{TableSnapshot, Workspace};
use crate::{Result, StorageError};

/// Which version of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsOf {
    /// The one of that number.
    Version(u64),
    /// The last one that was committed by then: microseconds since 1970.
    Time(i64),
}

/// A version of a table that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableVersion {
    /// Its number.
    pub version: u64,
    /// When it was committed: microseconds since 1970. `None` where the table keeps no past.
    pub committed_at_us: Option<u64>,
    /// Its rows.
    pub rows: u64,
    /// Bytes on flash that are given back when it expires: of what it has and no later version.
    pub past_bytes: u64,
}

impl TableState {
    /// A version of the table.
    ///
    /// # Errors
    /// `Invalid`, which names the versions that are there; `Corrupt`.
    pub(super) fn as_of(&self, at: AsOf) -> Result<Arc<TableSnapshot>> {
        let record = &self.record;
        let keeps_none = record.retention_us == 0;
        let version = match at {
            AsOf::Version(version) => version,
            AsOf::Time(_) if keeps_none => return Err(self.no_version(at)),
            AsOf::Time(time) => {
                let time = u64::try_from(time).map_err(|_| self.no_version(at))?;
                if time > now_us().max(record.committed_at_us) {
                    return Err(self.no_version(at));
                }
                let mut past = self.history.versions().rev();
                match time >= record.committed_at_us {
                    true => record.version,
                    false => past
                        .find(|past| past.committed_at_us <= time)
                        .map(|past| past.version)
                        .ok_or_else(|| self.no_version(at))?,
                }
            }
        };
        if version == record.version {
            return Ok(Arc::clone(&self.snapshot));
        }
        let rows_version = next_rows_version();
        let found = self
            .history
            .snapshot(&self.snapshot, record, version, rows_version)?;
        found.map(Arc::new).ok_or_else(|| self.no_version(at))
    }

    fn no_version(&self, at: AsOf) -> StorageError {
        let name = &self.snapshot.name;
        let present = (self.record.version, self.record.committed_at_us);
        let asked = match at {
            AsOf::Version(version) => format!("version {version}"),
            AsOf::Time(time) => format!("version of {}", time_text(time)),
        };
        if self.record.retention_us == 0 {
            return StorageError::Invalid(format!(
                "table '{name}' has no {asked}: it keeps no past versions, only the present one, {}; ALTER TABLE … SET (retention = '7 days') keeps those from then on",
                present.0
            ));
        }
        let text = |(version, time): (u64, u64)| format!("{version} ({})", time_text(time as i64));
        let past = self.history.versions();
        let all: Vec<_> = past
            .map(|past| (past.version, past.committed_at_us))
            .chain([present])
            .collect();
        let kept = match all.as_slice() {
            [only] => format!("only version {} is there", text(*only)),
            all => format!(
                "versions {} to {} are there",
                text(all[0]),
                text(all[all.len() - 1])
            ),
        };
        // A transaction of several statements may use up several numbers.
        let between = match at {
            AsOf::Version(version) => {
                let later = all.partition_point(|(other, _)| *other < version);
                (later > 0 && later < all.len()).then(|| {
                    let (before, after) = (all[later - 1].0, all[later].0);
                    format!(", and none between {before} and {after}")
                })
            }
            AsOf::Time(_) => None,
        };
        StorageError::Invalid(format!(
            "table '{name}' has no {asked}: {kept}{}",
            between.unwrap_or_default()
        ))
    }

    /// Its versions, oldest first; the last one is the present.
    fn versions(&self) -> Vec<TableVersion> {
        let past = self.history.versions().map(|past| TableVersion {
            version: past.version,
            committed_at_us: Some(past.committed_at_us),
            rows: past.rows,
            past_bytes: self.history.bytes_of(past),
        });
        let keeps = self.record.retention_us > 0;
        let present = TableVersion {
            version: self.record.version,
            committed_at_us: keeps.then_some(self.record.committed_at_us),
            rows: self.snapshot.rows(),
            past_bytes: 0,
        };
        past.chain([present]).collect()
    }
}

fn time_text(time_us: i64) -> String {
    let time = timestamp_us_to_datetime(time_us);
    time.map_or_else(|| format!("{time_us} µs"), |time| time.to_string())
}

impl Core {
    /// The versions of a table that can be read, oldest first; the last one is the present.
    ///
    /// # Errors
    /// `NotFound`, `Corrupt`.
    pub fn versions(&self, schema: &str, table: &str) -> Result<Vec<TableVersion>> {
        Ok(self.table_state(schema, table)?.versions())
    }

    /// For how long the past versions of a table stay readable.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn retention(&self, schema: &str, table: &str) -> Result<Duration> {
        let state = self.table_state(schema, table)?;
        Ok(Duration::from_micros(state.record.retention_us))
    }

    /// What is said of a table; empty: nothing.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn comment(&self, schema: &str, table: &str) -> Result<String> {
        Ok(self.table_state(schema, table)?.record.comment.clone())
    }

    /// Forgets the versions of tables that nobody was to see any more at a time, in microseconds since
    /// 1970, and gives their pages back.
    ///
    /// # Errors
    /// `ReadOnly`, `Full`, `Io`; `NeedsReopening`.
    pub(super) fn expire_versions(&self, now_us: u64) -> Result<()> {
        self.check_writable()?;
        let mut edit = TableEdit::default();
        let mut due: Vec<(TableId, u64)> = Vec::new();
        for table in self.state.read().tables.values() {
            let since = now_us.saturating_sub(table.record.retention_us);
            let first = table.history.first_kept_since(since);
            due.extend(first.map(|first| (table.snapshot.id, first)));
        }
        due.sort_unstable();
        for (table, version) in &due {
            edit.push(Operation::ExpireVersions(NamedVersion {
                table: table.0,
                version: *version,
            }));
        }
        match due.is_empty() {
            true => Ok(()),
            false => self.commit(edit).map(drop),
        }
    }

    /// When the next version expires, in microseconds since 1970.
    pub(super) fn next_expiry_us(&self) -> Option<u64> {
        let state = self.state.read();
        let tables = state.tables.values();
        let times = tables.filter_map(|table| {
            let oldest = table.history.versions().next()?;
            Some(oldest.ended_at_us.saturating_add(table.record.retention_us))
        });
        times.min()
    }
}

impl Workspace {
    /// A version of a table that was committed: of the one that the session sees by that name. What a
    /// transaction has done itself is in no version.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for a version that is not there, which names those that are; `Corrupt`;
    /// `NeedsReopening` for a time, where it is not known what was committed by then.
    pub fn as_of(&self, schema: &str, table: &str, at: AsOf) -> Result<Arc<TableSnapshot>> {
        if let AsOf::Time(time) = at {
            self.database().settle_until(time.max(0) as u64)?;
        }
        self.committed(schema, table)?.as_of(at)
    }

    /// The table that the session calls so, as others see it.
    fn committed(&self, schema: &str, table: &str) -> Result<TableState> {
        let own = self.table_state(schema, table)?;
        let state = self.database().state.read();
        // It may have another name there.
        let mut tables = state.tables.values();
        let found = tables.find(|other| other.snapshot.id == own.snapshot.id);
        found.cloned().ok_or_else(|| {
            StorageError::Invalid(format!(
                "table '{schema}.{table}' has no committed version: this transaction made it, or others have dropped it"
            ))
        })
    }

    /// Sets for how long past versions of a table stay readable; zero: not at all, and those that
    /// there are go at once. They begin with the present one where none were kept so far.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` where it is another one by now; `ReadOnly`, `Full`, `Io`.
    pub fn set_retention(&self, schema: &str, table: &str, retention: Duration) -> Result<()> {
        let present = self.table_state(schema, table)?;
        let retention_us = u64::try_from(retention.as_micros()).unwrap_or(u64::MAX);
        self.take(retention_set(&present, schema, table, retention_us))
    }

    /// Sets what is said of a table; empty: nothing.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` where it is another one by now; `ReadOnly`, `Full`, `Io`.
    pub fn set_comment(&self, schema: &str, table: &str, comment: &str) -> Result<()> {
        let present = self.table_state(schema, table)?;
        self.take(comment_set(&present, schema, table, comment))
    }
}
