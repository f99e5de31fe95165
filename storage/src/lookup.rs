//! Few rows by their keys: an index is asked, and the values that it leads to are read (Minerva
//! section IV-C, Willow section 4.5).
//!
//! A [`Command`](crate::node::Command) that names its keys gives the same rows. What it costs before
//! the first page (tests that are planned for each segment, selections of 65,536 rows, read-ahead for
//! a scan) is worth it for many rows, and for a handful many times what their values cost.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::kernels::cmp;
use arrow::compute::{filter_record_batch, take};
use arrow::datatypes::{DataType, SchemaRef};

use crate::index::{Index, hash};
use crate::segment::{Chunk, Segment, SegmentId, read_rows, row_id};
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
        if !self.index.tail.is_empty() {
            return Err(StorageError::Invalid(format!(
                "index '{}' does not cover all rows, so it can't be asked alone",
                self.index.definition.name
            )));
        }
        let schema = self.schema()?;
        let candidates = self.candidates(reader)?;
        let mut batches = Vec::new();
        for candidates in candidates.chunk_by(|a, b| a.segment == b.segment) {
            let id = candidates[0].segment;
            // Others may have taken a segment's place: its rows are covered again with theirs.
            let Some(segment) = self.table.segments.iter().find(|s| s.id == id) else {
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
        let fields = self.table.scan_schema.fields();
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
            .map(|c| match segment.chunks.get(*c as usize) {
                Some(chunk) => Ok((chunk, fields[*c as usize].data_type())),
                None => Err(StorageError::corrupt(format!(
                    "segment {} of table '{}' has no column number {c}",
                    segment.id.0, self.table.name
                ))),
            })
            .collect::<Result<Vec<(&Chunk, &DataType)>>>()?;
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
