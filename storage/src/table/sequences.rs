//! Columns whose values the database counts up: identity columns.
//!
//! The numbers of such a column are those of a sequence, which gives each of them once. It reserves
//! them in blocks, each by a durable write of the catalog, before any of a block is given: a crash
//! costs what is left of one, and no transaction gives a number back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use crate::table::TableSnapshot;
use crate::table::database::Core;
use crate::table::state::State;
use crate::{Result, StorageError};

/// Numbers in the first block of a sequence that a process reserves; each further one has twice as
/// many, so that a crash costs at most about as many as were given.
const FIRST_BLOCK: u64 = 64;
const LARGEST_BLOCK: u64 = 1 << 16;

/// How the values of a column are generated. Its text, as [`TableSnapshot::defaults`] has it, is no
/// expression of SQL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generated {
    /// Whether nobody may give other values.
    pub always: bool,
    /// Which sequence of the database counts.
    pub sequence: u32,
    /// The first value.
    pub start: i64,
    /// What each value is greater by than the one before it; not 0.
    pub increment: i64,
}

impl fmt::Display for Generated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sequence,
            start,
            increment,
            ..
        } = self;
        let when = self.when();
        write!(
            f,
            "GENERATED {when} AS IDENTITY (SEQUENCE {sequence} START WITH {start} INCREMENT BY {increment})"
        )
    }
}

impl Generated {
    /// When its values are generated, in SQL's words.
    pub fn when(self) -> &'static str {
        match self.always {
            true => "ALWAYS",
            false => "BY DEFAULT",
        }
    }

    /// What a default's text says, if it is no expression.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("GENERATED ")?;
        let (always, rest) = match rest.strip_prefix("ALWAYS ") {
            Some(rest) => (true, rest),
            None => (false, rest.strip_prefix("BY DEFAULT ")?),
        };
        let rest = rest.strip_prefix("AS IDENTITY (SEQUENCE ")?;
        let (sequence, rest) = rest.strip_suffix(')')?.split_once(" START WITH ")?;
        let (start, increment) = rest.split_once(" INCREMENT BY ")?;
        Some(Self {
            always,
            sequence: sequence.parse().ok()?,
            start: start.parse().ok()?,
            increment: increment.parse().ok().filter(|by| *by != 0)?,
        })
    }

    /// The value that is the `number`th that was given, from 0 on.
    pub fn value(&self, number: u64) -> Option<i64> {
        let by = i128::from(number).checked_mul(self.increment.into())?;
        i64::try_from(by.checked_add(self.start.into())?).ok()
    }
}

impl TableSnapshot {
    /// How the values of a column are generated, if they are.
    pub fn generated(&self, column: usize) -> Option<Generated> {
        Generated::parse(self.defaults.get(column)?.as_ref()?)
    }
}

/// The numbers that are reserved and not given yet, by sequence.
#[derive(Debug, Default)]
pub(super) struct Sequences(BTreeMap<u32, Reserved>);

#[derive(Debug)]
struct Reserved {
    numbers: Range<u64>,
    /// How many the next block has.
    block: u64,
}

impl Core {
    /// Makes a sequence that has given nothing. It is there as long as a table names it; what no
    /// table names goes when the database is opened again.
    ///
    /// # Errors
    /// `ReadOnly`, `Full`, `Io`.
    pub fn new_sequence(&self) -> Result<u32> {
        self.check_writable()?;
        let sequence = self.next_table_id()?.0;
        self.catalog.put_sequence(sequence, 0)?;
        Ok(sequence)
    }

    /// Takes so many numbers of a sequence, counted from 0, that it gives nobody else, also after a
    /// crash. It blocks where it reserves more of them.
    ///
    /// # Errors
    /// `Corrupt` where the catalog has lost the sequence; `ReadOnly`, `Full`, `Io`.
    pub fn take_numbers(&self, sequence: u32, count: u64) -> Result<Range<u64>> {
        self.check_writable()?;
        let mut sequences = self.sequences.lock();
        let reserved = sequences.0.entry(sequence).or_insert(Reserved {
            numbers: 0..0,
            block: FIRST_BLOCK,
        });
        let left = reserved.numbers.end - reserved.numbers.start;
        if left < count {
            let more = reserved.block.max(count - left);
            let found = self.catalog.reserve_of_sequence(sequence, more)?;
            match left {
                0 => reserved.numbers = found,
                // Nobody else reserves: they go on where the last ones end.
                _ => reserved.numbers.end = found.end,
            }
            reserved.block = (reserved.block * 2).min(LARGEST_BLOCK);
        }
        let first = reserved.numbers.start;
        reserved.numbers.start += count;
        Ok(first..first + count)
    }

    /// The number that a sequence gives next, counted from 0; `None` where the catalog has lost it. After a
    /// crash it may be a later one than the last that was given says.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn next_of_sequence(&self, sequence: u32) -> Result<Option<u64>> {
        let sequences = self.sequences.lock();
        let reserved = sequences.0.get(&sequence).map(|reserved| &reserved.numbers);
        match reserved.filter(|numbers| !numbers.is_empty()) {
            Some(numbers) => Ok(Some(numbers.start)),
            None => self.catalog.given_of_sequence(sequence),
        }
    }

    /// Gives back what is reserved and was not given.
    pub(super) fn return_numbers(&self) -> Result<()> {
        let sequences = std::mem::take(&mut *self.sequences.lock());
        for (sequence, reserved) in sequences.0 {
            if !reserved.numbers.is_empty() {
                self.catalog
                    .put_sequence(sequence, reserved.numbers.start)?;
            }
        }
        Ok(())
    }
}

impl State {
    /// The sequences that tables name.
    pub(super) fn sequences(&self) -> BTreeSet<u32> {
        let snapshots = self.tables.values().map(|table| &table.snapshot);
        let named = snapshots.flat_map(|snapshot| {
            let columns = 0..snapshot.defaults.len();
            columns.filter_map(|column| snapshot.generated(column))
        });
        named.map(|generated| generated.sequence).collect()
    }
}

/// That the record of a sequence is gone: what it gave before is not known.
pub(super) fn lost(sequence: u32) -> StorageError {
    StorageError::corrupt(format!(
        "the catalog has lost sequence {sequence}, which generates the values of a column; DROP DEFAULT of the column and ADD GENERATED with a START above its values"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{Database, DatabaseOptions};

    #[test]
    fn the_text_of_a_column_reads_back() {
        for (always, start, increment) in [(true, 1, 1), (false, i64::MIN, -7)] {
            let generated = Generated {
                always,
                sequence: 17,
                start,
                increment,
            };
            assert_eq!(Generated::parse(&generated.to_string()), Some(generated));
        }
        for text in [
            "",
            "now()",
            "GENERATED ALWAYS AS IDENTITY",
            "GENERATED ALWAYS AS IDENTITY (SEQUENCE 1 START WITH 1 INCREMENT BY 0)",
            "GENERATED BY DEFAULT AS IDENTITY (SEQUENCE -1 START WITH 1 INCREMENT BY 1)",
        ] {
            assert_eq!(Generated::parse(text), None, "{text}");
        }
    }

    #[test]
    fn values_count_up_and_end() {
        let of = |start, increment| Generated {
            always: true,
            sequence: 1,
            start,
            increment,
        };
        assert_eq!(of(5, 3).value(4), Some(17));
        assert_eq!(of(i64::MAX, 1).value(0), Some(i64::MAX));
        assert_eq!(of(i64::MAX, 1).value(1), None);
        assert_eq!(of(i64::MIN, i64::MAX).value(2), Some(i64::MAX - 1));
        assert_eq!(of(0, i64::MIN).value(u64::MAX), None);
    }

    /// A database that is closed goes on with the next number; one that was killed with a later one.
    #[test]
    fn no_number_is_given_twice() {
        let folder = tempfile::tempdir().unwrap();
        let (first, copy) = (folder.path().join("first"), folder.path().join("copy"));
        let open = |path| Database::open(path, DatabaseOptions::default()).unwrap();
        let database = open(&first);
        let sequence = database.new_sequence().unwrap();
        let generated = Generated {
            always: true,
            sequence,
            start: 1,
            increment: 1,
        };
        let column = arrow::datatypes::Field::new("id", arrow::datatypes::DataType::Int64, false);
        let target = crate::table::LoadTarget::Create {
            layout: Default::default(),
            distribution: None,
            retention: std::time::Duration::ZERO,
            schema: "public".into(),
            table: "t".into(),
            arrow_schema: std::sync::Arc::new(arrow::datatypes::Schema::new(vec![column])),
            or_replace: false,
            indexes: vec![],
            defaults: vec![Some(generated.to_string())],
            checks: vec![],
        };
        database.begin_load(target).unwrap().commit().unwrap();
        assert_eq!(database.take_numbers(sequence, 3).unwrap(), 0..3);
        assert_eq!(database.take_numbers(sequence, 1000).unwrap(), 3..1003);
        assert_eq!(database.take_numbers(sequence, 0).unwrap(), 1003..1003);
        assert_eq!(database.next_of_sequence(sequence).unwrap(), Some(1003));
        assert_eq!(database.next_of_sequence(sequence + 1000).unwrap(), None);
        let other = database.new_sequence().unwrap();
        assert_eq!(database.take_numbers(other, 1).unwrap(), 0..1);
        // What a crash leaves.
        std::fs::create_dir(&copy).unwrap();
        for file in std::fs::read_dir(&first).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), copy.join(file.file_name())).unwrap();
        }
        drop(database);
        let closed = open(&first);
        assert_eq!(closed.next_of_sequence(sequence).unwrap(), Some(1003));
        assert_eq!(closed.take_numbers(sequence, 1).unwrap(), 1003..1004);
        let killed = open(&copy);
        let next = killed.take_numbers(sequence, 1).unwrap();
        assert!((1003..2100).contains(&next.start), "{next:?}");
        // No table names it.
        for database in [closed, killed] {
            let error = database.take_numbers(other, 1).unwrap_err();
            assert!(error.to_string().contains("has lost sequence"), "{error}");
        }
    }
}
