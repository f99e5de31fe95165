//! Segments, snapshots, statistics, the catalog and its commits.
//!
//! A table is a list of immutable segments. The manifest (in `redb`) names the segments of the
//! current version of every table; a commit replaces that list in one durable transaction after
//! the pages are durable, so that a crash leaves either the old version or the new one. A reader
//! holds a [`TableSnapshot`]; pages of dropped segments are given back to the store when the last
//! snapshot that shows them is gone.

mod catalog;
mod database;
mod edit;
mod folder;
mod fsck;
mod functions;
mod indexing;
mod load;
mod manifest;
mod schema;
mod state;
#[cfg(test)]
mod tests;
mod unique;
mod upkeep;
mod views;

use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, UInt64Array};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

pub use database::{Database, DatabaseOptions, FORMAT_VERSION};
pub use fsck::{FsckProgress, FsckReport};
pub use functions::{Callee, Function, FunctionQuota, NewFunction};
pub use load::{Load, LoadTarget, LoadWriter};
pub use schema::normalise_schema;
pub use upkeep::UpkeepOptions;
pub use views::View;

use crate::index::{Index, IndexDefinition};
use crate::page::{Aux, ColumnBuilder, PageZone, SEGMENT_ROWS};
use crate::store::{PageReader, PageRun, PageStore};
use crate::{Result, StorageError};

/// Number of a table, never reused within a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableId(pub u32);

/// Number of a segment within its table, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u32);

/// Up to 65,536 rows of a table, immutable.
#[derive(Debug)]
pub struct Segment {
    /// Its number.
    pub id: SegmentId,
    /// The commit that wrote it; every page carries it too.
    pub generation: u32,
    /// Its rows.
    pub rows: u32,
    /// One chunk for each column of the table, in schema order.
    pub chunks: Vec<Chunk>,
    /// Set when no version of the table has the segment any more: the store that gets its pages
    /// back when the last reader lets go of it.
    retired: OnceLock<Arc<PageStore>>,
}

impl Segment {
    /// A live segment.
    pub fn new(id: SegmentId, generation: u32, rows: u32, chunks: Vec<Chunk>) -> Self {
        Self {
            id,
            generation,
            rows,
            chunks,
            retired: OnceLock::new(),
        }
    }

    /// Gives the segment's pages back to `store` once the last reference to it is gone.
    pub(crate) fn retire(&self, store: &Arc<PageStore>) {
        // A segment is retired by the one commit that drops it; a second call changes nothing.
        let _ = self.retired.set(Arc::clone(store));
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if let Some(store) = self.retired.get() {
            free_chunks(store, &self.chunks);
        }
    }
}

/// Gives the pages of chunks back that no manifest names any more.
pub(crate) fn free_chunks<'a>(store: &PageStore, chunks: impl IntoIterator<Item = &'a Chunk>) {
    for chunk in chunks {
        if let Err(error) = store.free(chunk.run.first, chunk.run.count) {
            // The manifest no longer names the pages: the next opening reclaims them.
            log::warn!(
                "pages of {} stay allocated until the database is reopened: {error}",
                chunk.run.label
            );
        }
    }
}

/// One column of one segment.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Its pages, the auxiliary page (if any) first.
    pub run: PageRun,
    /// 1 when the run starts with an auxiliary page, else 0.
    pub aux_pages: u32,
    /// The zone map of each data page; `zones[i]` is page `aux_pages + i` of the run. A page of
    /// `row_count` 0 continues the long value of the page before it.
    pub zones: Vec<PageZone>,
    /// NULLs of the chunk.
    pub null_count: u32,
    /// Least zone key of the chunk; above `max` when all values are NULL.
    pub min: i64,
    /// Greatest zone key.
    pub max: i64,
    starts: OnceLock<Arc<[PageStart]>>,
}

/// A data page with rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageStart {
    /// Its first row.
    pub row: u32,
    /// Its place among the chunk's zones.
    pub zone: u32,
}

impl Chunk {
    /// A chunk with the totals of its zone maps.
    pub fn new(run: PageRun, aux_pages: u32, zones: Vec<PageZone>) -> Self {
        let with_values = || zones.iter().filter(|z| z.null_count < z.row_count);
        let (null_count, min, max) = (
            zones.iter().map(|z| z.null_count).sum(),
            with_values().map(|z| z.min).min().unwrap_or(i64::MAX),
            with_values().map(|z| z.max).max().unwrap_or(i64::MIN),
        );
        Self {
            run,
            aux_pages,
            zones,
            null_count,
            min,
            max,
            starts: OnceLock::new(),
        }
    }

    /// The data pages that have rows: those that continue a long value are left out.
    pub(crate) fn starts(&self) -> Arc<[PageStart]> {
        let starts = self.starts.get_or_init(|| {
            let zones = (0..)
                .zip(&self.zones)
                .filter(|(_, zone)| zone.row_count > 0);
            let starts = zones.map(|(zone, of)| PageStart {
                row: of.first_row,
                zone,
            });
            starts.collect()
        });
        Arc::clone(starts)
    }
}

/// One version of a table, as a reader sees it for as long as it holds it.
#[derive(Debug)]
pub struct TableSnapshot {
    /// The table's number.
    pub id: TableId,
    /// `schema.table`.
    pub name: String,
    /// Column names and types as stored (strings are `Utf8View`).
    pub schema: SchemaRef,
    /// The columns that a scan can read: those of `schema`, and last the rows' ids (see
    /// [`row_ids`]), named `row_id`, or `_row_id` where a column has that name.
    pub scan_schema: SchemaRef,
    /// Version, counted up by each commit to the table.
    pub version: u64,
    /// The live segments, in row order.
    pub segments: Vec<Arc<Segment>>,
    /// Statistics of each column over all segments.
    pub statistics: Vec<ColumnStatistics>,
    /// Its indexes.
    pub indexes: Vec<Arc<Index>>,
}

/// The ids of a segment's rows: its number times 65,536, and the row. They stay as long as the
/// row's segment does.
pub fn row_ids(segment: &Segment) -> ArrayRef {
    let first = row_id(segment.id, 0);
    Arc::new(UInt64Array::from_iter_values(
        first..first + u64::from(segment.rows),
    ))
}

/// The id of a row.
pub fn row_id(segment: SegmentId, row: u32) -> u64 {
    u64::from(segment.0) * SEGMENT_ROWS as u64 + u64::from(row)
}

/// The segment and the row of an id; `None` for a number that can't be one.
pub fn row_of_id(id: u64) -> Option<(SegmentId, u32)> {
    let segment = u32::try_from(id / SEGMENT_ROWS as u64).ok()?;
    Some((SegmentId(segment), (id % SEGMENT_ROWS as u64) as u32))
}

/// The table's columns and the rows' ids.
pub fn scan_schema(schema: &SchemaRef) -> SchemaRef {
    let mut name = "row_id".to_string();
    while schema.index_of(&name).is_ok() {
        name.insert(0, '_');
    }
    let ids = Arc::new(Field::new(name, DataType::UInt64, false));
    let fields = schema.fields().iter().cloned().chain([ids]);
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// The values of one column of a segment; the column behind the last holds the rows' ids.
///
/// # Errors
/// The device's errors; `Corrupt`, which names the page.
pub fn read_column(
    reader: &mut PageReader,
    segment: &Segment,
    ordinal: usize,
    data_type: &DataType,
) -> Result<ArrayRef> {
    if ordinal == segment.chunks.len() {
        return Ok(row_ids(segment));
    }
    let Some(chunk) = segment.chunks.get(ordinal) else {
        return Err(StorageError::Invalid(format!(
            "a table of {} columns has no column number {ordinal}",
            segment.chunks.len()
        )));
    };
    let mut builder = ColumnBuilder::new(data_type, segment.rows as usize)?;
    let mut aux = Aux::None;
    reader.prefetch(&chunk.run, 0..chunk.run.count)?;
    for number in 0..chunk.run.count {
        let page = reader.get(&chunk.run, number)?;
        if number < chunk.aux_pages {
            aux = Aux::parse(&page, data_type)?;
        } else {
            builder.append_rows(&page, &aux, 0..page.header().row_count)?;
        }
    }
    builder.finish()
}

/// Some rows, ascending, of a chunk.
///
/// # Errors
/// The device's errors; `Corrupt`, which names the page; `Invalid` for a row beyond the chunk.
pub(crate) fn read_rows(
    reader: &mut PageReader,
    chunk: &Chunk,
    data_type: &DataType,
    rows: &[u32],
) -> Result<ArrayRef> {
    let mut builder = ColumnBuilder::new(data_type, rows.len())?;
    let mut aux = Aux::None;
    if chunk.aux_pages > 0 {
        aux = Aux::parse(&*reader.get(&chunk.run, 0)?, data_type)?;
    }
    let mut left = rows;
    let mut local = Vec::new();
    while let [first, ..] = left {
        let place = page_of_row(chunk, *first).ok_or_else(|| {
            StorageError::Invalid(format!(
                "{}: row {first} is beyond its end",
                chunk.run.label
            ))
        })?;
        let zone = &chunk.zones[place];
        let here = left.partition_point(|row| *row < zone.first_row + zone.row_count);
        local.clear();
        local.extend(left[..here].iter().map(|row| row - zone.first_row));
        left = &left[here..];
        let page = reader.get(&chunk.run, chunk.aux_pages + place as u32)?;
        builder.append_gather(&page, &aux, &local)?;
        // A long value goes on in the pages behind.
        for (next, _) in chunk.zones.iter().enumerate().skip(place + 1) {
            if chunk.zones[next].row_count > 0 {
                break;
            }
            let page = reader.get(&chunk.run, chunk.aux_pages + next as u32)?;
            builder.append_rows(&page, &aux, 0..0)?;
        }
    }
    builder.finish()
}

/// The place among a chunk's zones of the page that holds a row.
pub(crate) fn page_of_row(chunk: &Chunk, row: u32) -> Option<usize> {
    // Pages that continue a value have no rows, and the first row behind the value.
    let after = chunk.zones.partition_point(|zone| zone.first_row <= row);
    let place = (0..after).rfind(|place| chunk.zones[*place].row_count > 0)?;
    let zone = &chunk.zones[place];
    (row < zone.first_row + zone.row_count).then_some(place)
}

/// What the planner knows of a column.
#[derive(Debug, Clone, Default)]
pub struct ColumnStatistics {
    /// NULLs, exact.
    pub null_count: u64,
    /// Least value, exact, where the type is ordered and there is one.
    pub min: Option<flashmesh_pushdown::Scalar>,
    /// Greatest value.
    pub max: Option<flashmesh_pushdown::Scalar>,
    /// Estimated number of distinct values.
    pub distinct: Option<u64>,
    /// Bytes on flash.
    pub bytes_on_flash: u64,
}

impl TableSnapshot {
    /// Rows of all segments.
    pub fn rows(&self) -> u64 {
        self.segments.iter().map(|s| u64::from(s.rows)).sum()
    }

    /// The chunks of its segments and indexes.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        let parts = self.indexes.iter().flat_map(|index| &index.parts);
        let segments = self.segments.iter().flat_map(|segment| &segment.chunks);
        segments.chain(parts.flat_map(|part| part.chunks()))
    }

    /// The index of that name.
    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|i| i.definition.name == name)
    }

    /// The index that stands for the primary key.
    pub fn primary_key(&self) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|i| i.definition.primary)
    }

    /// Names of an index's columns.
    pub fn index_columns(&self, definition: &IndexDefinition) -> Vec<&str> {
        let fields = self.schema.fields();
        let names = definition
            .columns
            .iter()
            .filter_map(|c| fields.get(*c as usize));
        names.map(|field| field.name().as_str()).collect()
    }
}
