//! That no two rows of a unique index have one key.

use std::sync::Arc;

use arrow::array::{ArrayRef, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::index::kind::Source;
use crate::index::pace::Pace;
use crate::index::{IndexDefinition, IndexPart, hash};
use crate::segment::{Segment, SegmentId, SegmentsById};
use crate::store::{PageReader, PageStore};
use crate::{Result, StorageError};

/// The keys of a unique index.
pub(super) struct Keys<'a> {
    pub definition: &'a IndexDefinition,
    /// `schema.table`.
    pub table: &'a str,
    pub schema: &'a SchemaRef,
    pub store: &'a Arc<PageStore>,
}

impl Keys<'_> {
    /// Two rows of equal hashes must have different keys. `entries` (hash and row) ascend and number
    /// rows through `segments`.
    ///
    /// # Errors
    /// `DuplicateKey`; those of reading keys.
    pub fn check_twins(&self, segments: &[Arc<Segment>], entries: &[(u64, u32)]) -> Result<()> {
        let mut reader = self.store.reader()?;
        let mut starts = Vec::with_capacity(segments.len());
        let mut next = 0u64;
        for segment in segments {
            starts.push(next);
            next += u64::from(segment.rows);
        }
        let place = |row: u32| {
            let segment = starts.partition_point(|start| *start <= u64::from(row)) - 1;
            (
                &segments[segment],
                (u64::from(row) - starts[segment]) as usize,
            )
        };
        for same in entries.chunk_by(|a, b| a.0 == b.0) {
            for (i, (_, row)) in same.iter().enumerate() {
                for (_, other) in &same[i + 1..] {
                    self.check_pair(place(*row), place(*other), &mut reader)?;
                }
            }
        }
        Ok(())
    }

    /// No key of the part `new`, whose `hashes` ascend, may be in another one. `segments` are those of
    /// the table, in any order.
    ///
    /// # Errors
    /// `DuplicateKey`; those of reading keys and parts.
    pub fn check_unique(
        &self,
        new: &IndexPart,
        hashes: &[u64],
        others: &[&Arc<IndexPart>],
        segments: [&[Arc<Segment>]; 2],
    ) -> Result<()> {
        let mut reader = self.store.reader()?;
        let mut segments = SegmentsById::new(segments);
        let mut place = |id: SegmentId, row: u32| {
            let segment = segments.get(id).filter(|segment| segment.has_row(row));
            segment.map(|segment| (segment, row as usize))
        };
        for part in others {
            // Keys of rows that were deleted are free, and after an upsert they are many.
            let mut found = Vec::new();
            hash::probe(part, hashes, &mut reader, |i, segment, row| {
                found.extend(place(segment, row).map(|there| (hashes[i], there)));
            })?;
            for (hash, there) in found {
                let mut own = Vec::new();
                hash::probe(new, &[hash], &mut reader, |_, segment, row| {
                    own.extend(place(segment, row));
                })?;
                for here in own {
                    self.check_pair(there, here, &mut reader)?;
                }
            }
        }
        Ok(())
    }

    fn check_pair(
        &self,
        a: (&Arc<Segment>, usize),
        b: (&Arc<Segment>, usize),
        reader: &mut PageReader,
    ) -> Result<()> {
        let definition = self.definition;
        let pace = Pace::full();
        let source = self.source(&pace);
        let keys_a = source.columns(a.0, reader)?;
        let keys_b = source.columns(b.0, reader)?;
        for (x, y) in keys_a.iter().zip(&keys_b) {
            if make_comparator(x, y, SortOptions::default())?(a.1, b.1).is_ne() {
                return Ok(());
            }
        }
        let index = if definition.primary {
            "the primary key".to_string()
        } else {
            format!("unique index '{}'", definition.name)
        };
        Err(StorageError::DuplicateKey {
            columns: self.names(),
            values: format!(" = ({})", text_of(&keys_a, a.1)?),
            index,
            table: self.table.into(),
        })
    }

    fn source<'a>(&'a self, pace: &'a Pace) -> Source<'a> {
        Source {
            definition: self.definition,
            schema: self.schema,
            segments: &[],
            store: self.store,
            pace,
            failed_at: None,
        }
    }

    /// The names of the key's columns.
    fn names(&self) -> String {
        let fields = self.schema.fields();
        let columns = self.definition.columns.iter();
        let names: Vec<_> = columns
            .map(|c| fields[*c as usize].name().as_str())
            .collect();
        names.join(", ")
    }

    /// The key of a row that the segment has, with its columns' names.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn key_of(&self, segment: &Segment, row: u32) -> Result<String> {
        let pace = Pace::full();
        let source = self.source(&pace);
        let columns = source.columns(segment, &mut self.store.reader()?)?;
        let text = text_of(&columns, row as usize)?;
        Ok(format!("({}) = ({text})", self.names()))
    }
}

/// The values of a row.
fn text_of(columns: &[ArrayRef], row: usize) -> Result<String> {
    let options = FormatOptions::default();
    let values = columns.iter().map(|column| {
        let formatter = ArrayFormatter::try_new(column, &options)?;
        Ok(formatter.value(row).to_string())
    });
    Ok(values.collect::<Result<Vec<_>>>()?.join(", "))
}
