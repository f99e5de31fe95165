//! Few rows by their keys: an index is asked, and the values that it leads to are read (Minerva
//! section IV-C, Willow section 4.5).
//!
//! A [`Command`](crate::node::Command) that names its keys gives the same rows. What it costs before
//! the first page (tests that are planned for each segment, selections of 65,536 rows, read-ahead for
//! a scan) is worth it for many rows, and for a handful many times what their values cost.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::kernels::cmp;
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::{DataType, SchemaRef};

use crate::index::{Index, hash};
use crate::page::{RowValues, Value};
use crate::segment::{Chunk, RowReader, Segment, SegmentId, read_rows, row_id};
use crate::store::PageReader;
use crate::table::TableSnapshot;
use crate::{Result, StorageError};

/// A request for the rows with some keys.
#[derive(Debug)]
pub struct KeyLookup<'a> {
    /// The version of the table.
    pub table: &'a TableSnapshot,
    /// A hash index of that version, without a tail.
    pub index: &'a Index,
    /// The keys: an array for each column of the index, of its type. A key with a NULL is no row's.
    pub keys: &'a [ArrayRef],
    /// What is wanted of the rows: ordinals among the columns of a scan.
    pub columns: &'a [u32],
}

/// A row that may have a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    segment: SegmentId,
    row: u32,
    /// Number of the key.
    key: u32,
}

impl KeyLookup<'_> {
    /// The rows, each once, in any order: a batch for each segment that has some.
    ///
    /// # Errors
    /// `Invalid` for an index with a tail; the device's errors; `Corrupt`, which names the page.
    pub(crate) fn run(&self, reader: &mut PageReader) -> Result<Vec<RecordBatch>> {
        self.check_covers_all()?;
        let schema = self.schema()?;
        let candidates = self.candidates(reader)?;
        let mut batches = Vec::new();
        for candidates in candidates.chunk_by(|a, b| a.segment == b.segment) {
            let id = candidates[0].segment;
            let Some(segment) = self.segment(id) else {
                continue;
            };
            let live = candidates.iter().filter(|c| segment.has_row(c.row));
            let live: Vec<Candidate> = live.copied().collect();
            if live.is_empty() {
                continue;
            }
            let rows = self.rows_of(segment, &live, &schema, reader)?;
            // Keys of one hash may be others.
            if rows.num_rows() > 0 {
                batches.push(rows);
            }
        }
        Ok(batches)
    }

    /// A row with one of the keys, if there is one, without arrays of its values: what they are, in the
    /// order of [`columns`](Self::columns). The index is of one column, which is among those.
    ///
    /// # Errors
    /// As [`Self::run`]; `Invalid` for an index of several columns, or of one that is not wanted.
    pub(crate) fn run_for_one(&self, reader: &mut PageReader) -> Result<Option<RowValues>> {
        self.check_covers_all()?;
        let key_column = match self.index.definition.columns.as_slice() {
            [column] => self.columns.iter().position(|wanted| wanted == column),
            _ => None,
        };
        let key_column = key_column.ok_or_else(|| {
            StorageError::Invalid("one row is looked for by one column, which is wanted".into())
        })?;
        let is_proved = hash::proves(self.index, &[self.keys[0].data_type()]);
        for candidate in self.candidates(reader)? {
            let segment = self.segment(candidate.segment);
            let Some(segment) = segment.filter(|segment| segment.has_row(candidate.row)) else {
                continue;
            };
            let row = self.row_of(segment, candidate.row, reader)?;
            if is_proved || self.is_key(candidate.key as usize, row.get(key_column))? {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }

    /// What is wanted of a row of a segment.
    fn row_of(&self, segment: &Segment, row: u32, reader: &mut PageReader) -> Result<RowValues> {
        let mut values = RowValues::with_capacity(self.columns.len());
        let mut reader = RowReader::new(reader, row);
        for column in self.columns {
            let (chunk, data_type) = self.column_of(segment, *column)?;
            reader.read(chunk, data_type, &mut values)?;
        }
        Ok(values)
    }

    /// Whether a value in the index's only column is the key of this number.
    fn is_key(&self, key: usize, value: Option<Value<'_>>) -> Result<bool> {
        let keys = &self.keys[0];
        Ok(match value {
            Some(Value::Text(text)) => keys
                .as_string_view_opt()
                .is_some_and(|keys| keys.value(key) == text),
            Some(Value::Binary(bytes)) => keys
                .as_binary_view_opt()
                .is_some_and(|keys| keys.value(key) == bytes),
            Some(Value::Array(value)) => {
                let same = cmp::eq(value, &keys.slice(key, 1))?;
                same.is_valid(0) && same.value(0)
            }
            // Of numbers the index proves it, and floats are no keys.
            _ => false,
        })
    }

    /// # Errors
    /// `Invalid` for an index with a tail.
    fn check_covers_all(&self) -> Result<()> {
        match self.index.tail.is_empty() {
            true => Ok(()),
            false => Err(StorageError::Invalid(format!(
                "index '{}' does not cover all rows, so it can't be asked alone",
                self.index.definition.name
            ))),
        }
    }

    /// The segment of this number. Others may have taken its place: its rows are covered again with
    /// theirs.
    fn segment(&self, id: SegmentId) -> Option<&Segment> {
        let mut segments = self.table.segments.iter();
        segments.find(|s| s.id == id).map(|segment| &**segment)
    }

    /// A segment's chunk of a column, and the column's type.
    fn column_of<'s>(&self, segment: &'s Segment, column: u32) -> Result<(&'s Chunk, &DataType)> {
        match segment.chunks.get(column as usize) {
            Some(chunk) => {
                let field = self.table.scan_schema.field(column as usize);
                Ok((chunk, field.data_type()))
            }
            None => Err(StorageError::corrupt(format!(
                "segment {} of table '{}' has no column number {column}",
                segment.id.0, self.table.name
            ))),
        }
    }

    fn schema(&self) -> Result<SchemaRef> {
        let ordinals: Vec<usize> = self.columns.iter().map(|c| *c as usize).collect();
        Ok(Arc::new(self.table.scan_schema.project(&ordinals)?))
    }

    /// What the index names, by segment and row.
    fn candidates(&self, reader: &mut PageReader) -> Result<Vec<Candidate>> {
        let hashes = (0..).zip(hash::hash_keys(self.keys)?);
        let mut hashes: Vec<(u64, u32)> = hashes.filter_map(|(key, h)| Some((h?, key))).collect();
        hashes.sort_unstable();
        let (hashes, keys): (Vec<u64>, Vec<u32>) = hashes.into_iter().unzip();
        let mut candidates = Vec::with_capacity(keys.len());
        for part in &self.index.parts {
            hash::probe(part, &hashes, reader, |place, segment, row| {
                let key = keys[place];
                candidates.push(Candidate { segment, row, key });
            })?;
        }
        candidates.sort_unstable();
        Ok(candidates)
    }

    /// Those of a segment's candidates that have their key.
    fn rows_of(
        &self,
        segment: &Segment,
        candidates: &[Candidate],
        schema: &SchemaRef,
        reader: &mut PageReader,
    ) -> Result<RecordBatch> {
        let mut rows: Vec<u32> = candidates.iter().map(|c| c.row).collect();
        rows.dedup();
        let key_columns = self.index.definition.columns.as_slice();
        let types: Vec<&DataType> = self.keys.iter().map(|key| key.data_type()).collect();
        // What the index does not prove is read too, and compared.
        let tested = match hash::proves(self.index, &types) {
            true => &[],
            false => key_columns,
        };
        let ids = segment.chunks.len() as u32;
        let wanted: Vec<u32> = self.columns.iter().copied().filter(|c| *c != ids).collect();
        let others = tested.iter().copied().filter(|c| !wanted.contains(c));
        let wanted: Vec<u32> = wanted.iter().copied().chain(others).collect();
        let chunks = wanted
            .iter()
            .map(|column| self.column_of(segment, *column))
            .collect::<Result<Vec<_>>>()?;
        let arrays = read_rows(reader, &chunks, &rows)?;
        let of_column = |column: u32| {
            let place = wanted.iter().position(|c| *c == column);
            place.map_or_else(
                || {
                    let ids = rows.iter().map(|row| row_id(segment.id, *row));
                    Arc::new(UInt64Array::from_iter_values(ids)) as ArrayRef
                },
                |place| Arc::clone(&arrays[place]),
            )
        };
        let columns = self.columns.iter().map(|c| of_column(*c)).collect();
        let batch = RecordBatch::try_new(Arc::clone(schema), columns)?;
        if tested.is_empty() {
            return Ok(batch);
        }
        let have_key = self.have_key(candidates, &rows, tested.iter().map(|c| of_column(*c)))?;
        match have_key.iter().all(|has| *has) {
            true => Ok(batch),
            false => Ok(filter_record_batch(&batch, &have_key.into())?),
        }
    }

    /// For each of `rows`, whether it has the key of one of its candidates. `values` are those of the
    /// index's columns in the rows.
    fn have_key(
        &self,
        candidates: &[Candidate],
        rows: &[u32],
        values: impl Iterator<Item = ArrayRef>,
    ) -> Result<Vec<bool>> {
        let mut place = 0;
        let places = candidates.iter().map(|candidate| {
            while rows[place] != candidate.row {
                place += 1;
            }
            place as u32
        });
        let places = UInt32Array::from_iter_values(places);
        let keys = UInt32Array::from_iter_values(candidates.iter().map(|c| c.key));
        let mut equal = vec![true; candidates.len()];
        for (values, wanted) in values.zip(self.keys) {
            let values = take(&values, &places, None)?;
            let wanted = take(wanted, &keys, None)?;
            let same = cmp::eq(&values, &wanted)?;
            for (candidate, equal) in equal.iter_mut().enumerate() {
                *equal &= same.is_valid(candidate) && same.value(candidate);
            }
        }
        let mut have = vec![false; rows.len()];
        for (place, equal) in places.values().iter().zip(equal) {
            have[*place as usize] |= equal;
        }
        Ok(have)
    }
}
