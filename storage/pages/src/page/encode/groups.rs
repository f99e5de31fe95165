//! Group pages: how the columns of a segment are cut into rows that share a page.
//!
//! Each column's encoding and auxiliary page are chosen for all rows, as for pages of its own;
//! then each page takes as many rows as fit with the parts of all columns.

use std::ops::Range;

use arrow::array::{Array, ArrayRef};
use arrow::buffer::NullBuffer;

use super::integers::{Bounds, RUNS_SHARE, SCALE_SIZE_BYTES, bounds, count_runs, pack_blocks};
use super::text::{fill_text, length_bits};
use super::{
    ChunkIdentity, ChunkStats, ChunkWriter, Encoded, NO_VALUES, Purpose, UNBOUNDED, encode,
};
use crate::flash::PageBuffer;
use crate::page::group::{self, ENTRY_SIZE_BYTES, GroupPage, MAX_ROWS};
use crate::page::header::{PageHeader, flags};
use crate::page::layout::{packed_size_bytes, run_ends_size_bytes, text_lengths_size_bytes};
use crate::page::{BLOCK_VALUES, Encoding, PAYLOAD_SIZE_BYTES, PageZone, SEGMENT_ROWS, header};
use crate::{Result, StorageError};

/// Columns with a value of more stored bytes than this have pages of their own.
const MAX_VALUE_BYTES: usize = PAYLOAD_SIZE_BYTES / 8;
/// What a row may take at most, with the longest value of each column.
const MAX_ROW_BYTES: usize = PAYLOAD_SIZE_BYTES / 2;
/// Rows that the first page of a segment is tried with.
const FIRST_GUESS_ROWS: usize = 256;

/// The columns of a segment that share pages.
#[derive(Debug)]
pub struct EncodedGroups {
    /// In the order in which they follow each other on flash: the auxiliary pages of all columns,
    /// then the group pages.
    pub pages: Vec<PageBuffer>,
    /// One for each array: `None` where a column's values are too long to share pages, or more
    /// columns than fit a page would.
    pub columns: Vec<Option<GroupedColumn>>,
}

/// One column of those that share pages. Their parts are numbered as the columns follow each other.
#[derive(Debug)]
pub struct GroupedColumn {
    /// Auxiliary pages: 0 or 1.
    pub aux_pages: u16,
    /// The zones of its parts.
    pub zones: Vec<PageZone>,
    /// What the planner may know.
    pub stats: ChunkStats,
}

/// Encodes the columns of one segment as group pages; `None` where fewer than two can share pages.
/// The identity is that of the run of all pages.
///
/// # Errors
/// As [`encode_chunk`](super::encode_chunk).
pub fn encode_groups(
    arrays: &[ArrayRef],
    identity: ChunkIdentity,
) -> Result<Option<EncodedGroups>> {
    let rows = arrays.first().map_or(0, |array| array.len());
    if rows > SEGMENT_ROWS {
        return Err(StorageError::Invalid(format!(
            "{rows} rows in a segment of {SEGMENT_ROWS}"
        )));
    }
    let mut left = MAX_ROW_BYTES;
    let mut columns: Vec<Option<Column>> = Vec::with_capacity(arrays.len());
    for array in arrays {
        let column = Column::new(encode(array, identity, Purpose::Groups)?);
        let fitting = column.and_then(|column| {
            left = left.checked_sub(column.max_row_bytes())?;
            Some(column)
        });
        columns.push(fitting);
    }
    if rows == 0 || columns.iter().flatten().count() < 2 {
        return Ok(None);
    }
    let mut pages = Vec::new();
    for column in columns.iter_mut().flatten() {
        for mut page in column.aux.drain(..) {
            header::renumber(&mut page, pages.len() as u16);
            pages.push(page);
        }
    }
    let mut writer = Writer {
        identity,
        columns: columns.iter_mut().flatten().collect(),
        pages,
    };
    let (mut start, mut guess) = (0, FIRST_GUESS_ROWS);
    while start < rows {
        let count = writer.rows_that_fit(start, rows - start, guess);
        writer.write(start..start + count)?;
        start += count;
        guess = count;
    }
    Ok(Some(EncodedGroups {
        pages: writer.pages,
        columns: columns
            .into_iter()
            .map(|column| column.map(Column::finish))
            .collect(),
    }))
}

/// The values of a column, as they will be stored.
#[derive(Debug)]
pub(super) enum Values {
    /// All are NULL.
    Null,
    /// All are this one.
    Constant { value: Vec<u8>, zone: (i64, i64) },
    /// Integers, and the greatest number of which all their distances are multiples.
    Integers { values: Vec<i64>, step: u64 },
    /// Codes of a dictionary, and the zone keys of these.
    Codes { codes: Vec<i64>, keys: Vec<i64> },
    /// Values of a fixed size, and their keys if they have any.
    Fixed {
        bytes: Vec<u8>,
        size: usize,
        keys: Option<Vec<i64>>,
    },
    /// Text, compressed or not: where each row ends within the bytes.
    Text {
        bytes: Vec<u8>,
        ends: Vec<usize>,
        encoding: Encoding,
        keys: Option<Vec<i64>>,
    },
}

impl Values {
    pub fn text(rows: &[&[u8]], encoding: Encoding, keys: Option<Vec<i64>>) -> Self {
        let mut bytes = Vec::with_capacity(rows.iter().map(|row| row.len()).sum());
        let ends = rows.iter().map(|row| {
            bytes.extend_from_slice(row);
            bytes.len()
        });
        Self::Text {
            ends: ends.collect(),
            bytes,
            encoding,
            keys,
        }
    }
}

/// How a column's values of some rows are laid out.
struct Plan {
    encoding: Encoding,
    width: usize,
    flags: u16,
    reference: i64,
    zone: (i64, i64),
    /// Bytes of the data.
    data_bytes: usize,
    /// Of these, at most so many are stored: zeros at the end are not.
    stored_bytes: usize,
}

impl Plan {
    fn constant(reference: i64, zone: (i64, i64)) -> Self {
        Self {
            encoding: Encoding::Const,
            width: 0,
            flags: 0,
            reference,
            zone,
            data_bytes: 0,
            stored_bytes: 0,
        }
    }
}

struct Column {
    values: Values,
    nulls: Option<NullBuffer>,
    aux: Vec<PageBuffer>,
    aux_pages: u16,
    zones: Vec<PageZone>,
    stats: ChunkStats,
}

impl Column {
    /// `None` where values are too long.
    fn new(encoded: Encoded) -> Option<Self> {
        let column = Self {
            values: encoded.values?,
            nulls: encoded.nulls,
            aux: encoded.chunk.pages,
            aux_pages: encoded.chunk.aux_pages,
            zones: Vec::new(),
            stats: encoded.chunk.stats,
        };
        (column.max_value_bytes() <= MAX_VALUE_BYTES).then_some(column)
    }

    fn finish(self) -> GroupedColumn {
        GroupedColumn {
            aux_pages: self.aux_pages,
            zones: self.zones,
            stats: self.stats,
        }
    }

    /// Bytes of the longest value that is not packed into bits.
    fn max_value_bytes(&self) -> usize {
        match &self.values {
            Values::Null | Values::Integers { .. } | Values::Codes { .. } => 0,
            Values::Constant { value, .. } => value.len(),
            Values::Fixed { size, .. } => *size,
            Values::Text { ends, .. } => {
                let starts = std::iter::once(&0).chain(ends);
                let lengths = ends.iter().zip(starts).map(|(end, start)| end - start);
                lengths.max().unwrap_or(0)
            }
        }
    }

    /// What a part of a single row takes at most.
    fn max_row_bytes(&self) -> usize {
        let lengths = match &self.values {
            Values::Text { .. } => text_lengths_size_bytes(1, 0),
            _ => 0,
        };
        ENTRY_SIZE_BYTES + group::align(lengths + self.max_value_bytes())
    }

    fn null_count(&self, rows: &Range<usize>) -> usize {
        self.nulls
            .as_ref()
            .map_or(0, |nulls| nulls.slice(rows.start, rows.len()).null_count())
    }

    fn is_null(&self, row: usize) -> bool {
        self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row))
    }

    /// The least and the greatest of the keys of rows that are not NULL.
    fn zone(&self, keys: &Option<Vec<i64>>, rows: &Range<usize>) -> (i64, i64) {
        let Some(keys) = keys else { return UNBOUNDED };
        let valid = rows.clone().filter(|row| !self.is_null(*row));
        valid.fold(NO_VALUES, |(min, max), row| {
            (min.min(keys[row]), max.max(keys[row]))
        })
    }

    /// What a part of these rows is; of which so many are NULL.
    fn plan(&self, rows: &Range<usize>, null_count: usize) -> Plan {
        if null_count == rows.len() {
            return Plan::constant(0, NO_VALUES);
        }
        match &self.values {
            Values::Null => Plan::constant(0, NO_VALUES),
            Values::Constant { value, zone } => Plan {
                width: 8,
                data_bytes: value.len(),
                stored_bytes: value.len(),
                ..Plan::constant(0, *zone)
            },
            Values::Integers { values, step } => plan_integers(&values[rows.clone()], *step),
            Values::Codes { codes, keys } => {
                let bounds = bounds(&codes[rows.clone()]);
                let width = bounds.width(1);
                Plan {
                    encoding: Encoding::Dict,
                    width,
                    data_bytes: packed_size_bytes(rows.len(), width),
                    stored_bytes: stored_packed_bytes(rows.len(), width),
                    ..Plan::constant(
                        bounds.min,
                        (keys[bounds.min as usize], keys[bounds.max as usize]),
                    )
                }
            }
            Values::Fixed { size, keys, .. } => Plan {
                encoding: Encoding::Raw,
                data_bytes: rows.len() * size,
                stored_bytes: rows.len() * size,
                ..Plan::constant(*size as i64, self.zone(keys, rows))
            },
            Values::Text {
                ends,
                encoding,
                keys,
                ..
            } => {
                let (min, bits) = length_bits(rows.clone().map(|row| range_of(ends, row).len()));
                let start = range_of(ends, rows.start).start;
                let bytes = ends[rows.end - 1] - start + text_lengths_size_bytes(rows.len(), bits);
                Plan {
                    encoding: *encoding,
                    width: bits,
                    data_bytes: bytes,
                    stored_bytes: bytes,
                    ..Plan::constant(min as i64, self.zone(keys, rows))
                }
            }
        }
    }

    /// Writes the data of a part, which is zeros so far.
    fn fill(&self, rows: &Range<usize>, plan: &Plan, data: &mut [u8]) {
        match &self.values {
            Values::Null => {}
            Values::Constant { value, .. } if plan.width > 0 => data.copy_from_slice(value),
            Values::Constant { .. } => {}
            Values::Integers { values, step } => {
                fill_integers(&values[rows.clone()], *step, plan, data);
            }
            Values::Codes { codes, .. } => {
                if plan.encoding == Encoding::Dict {
                    pack_blocks(plan.width, &codes[rows.clone()], plan.reference, 1, data);
                }
            }
            Values::Fixed { bytes, size, .. } => {
                if plan.encoding == Encoding::Raw {
                    data.copy_from_slice(&bytes[rows.start * size..rows.end * size]);
                }
            }
            Values::Text { bytes, ends, .. } => {
                if plan.encoding != Encoding::Const {
                    let texts: Vec<&[u8]> = rows
                        .clone()
                        .map(|row| &bytes[range_of(ends, row)])
                        .collect();
                    fill_text(data, plan.reference as usize, plan.width, &texts);
                }
            }
        }
    }
}

/// Where the bytes of a row are.
fn range_of(ends: &[usize], row: usize) -> Range<usize> {
    let start = row.checked_sub(1).map_or(0, |before| ends[before]);
    start..ends[row]
}

/// One value, packed offsets or runs, whichever is least.
fn plan_integers(values: &[i64], step: u64) -> Plan {
    let bounds = bounds(values);
    let Bounds { min, max } = bounds;
    let constant = Plan::constant(min, (min, max));
    if min == max {
        return constant;
    }
    let (rows, width) = (values.len(), bounds.width(1));
    let mut plan = Plan {
        encoding: Encoding::Forbp,
        width,
        data_bytes: packed_size_bytes(rows, width),
        stored_bytes: stored_packed_bytes(rows, width),
        ..constant
    };
    let scaled = bounds.width(step);
    let scaled_bytes = SCALE_SIZE_BYTES + stored_packed_bytes(rows, scaled);
    if step > 1 && scaled_bytes < plan.stored_bytes {
        plan.flags = flags::SCALED;
        plan.data_bytes = SCALE_SIZE_BYTES + packed_size_bytes(rows, scaled);
        plan.stored_bytes = scaled_bytes;
    }
    let runs = count_runs(values);
    let run_bytes = run_ends_size_bytes(runs) + stored_packed_bytes(runs, width);
    if run_bytes * RUNS_SHARE.1 <= plan.stored_bytes * RUNS_SHARE.0 {
        plan.encoding = Encoding::Rle;
        plan.flags = 0;
        plan.data_bytes = run_ends_size_bytes(runs) + packed_size_bytes(runs, width);
        plan.stored_bytes = run_bytes;
    }
    plan
}

fn fill_integers(values: &[i64], step: u64, plan: &Plan, data: &mut [u8]) {
    let reference = plan.reference;
    match plan.encoding {
        Encoding::Rle => {
            let last_of_runs = (0..values.len())
                .filter(|row| values.get(row + 1).is_none_or(|next| *next != values[*row]));
            let ends: Vec<usize> = last_of_runs.collect();
            let (region, blocks) = data.split_at_mut(run_ends_size_bytes(ends.len()));
            region[..2].copy_from_slice(&(ends.len() as u16).to_le_bytes());
            for (bytes, end) in region[2..].as_chunks_mut().0.iter_mut().zip(&ends) {
                *bytes = (*end as u16).to_le_bytes();
            }
            let of_runs: Vec<i64> = ends.iter().map(|end| values[*end]).collect();
            pack_blocks(plan.width, &of_runs, reference, 1, blocks);
        }
        Encoding::Forbp if plan.flags & flags::SCALED != 0 => {
            let packed = bounds(values).width(step);
            let (scale, blocks) = data.split_at_mut(SCALE_SIZE_BYTES);
            scale[..8].copy_from_slice(&step.to_le_bytes());
            scale[8] = packed as u8;
            pack_blocks(packed, values, reference, step, blocks);
        }
        Encoding::Forbp => pack_blocks(plan.width, values, reference, 1, data),
        _ => {}
    }
}

/// Bytes of packed offsets up to the last that may not be zero. A block fills row by row, of one
/// offset in each lane.
fn stored_packed_bytes(values: usize, width: usize) -> usize {
    let (lanes, word_bits) = if width <= 32 { (8, 32) } else { (4, 64) };
    let last = values % BLOCK_VALUES;
    let words = (last.div_ceil(lanes) * width).div_ceil(word_bits);
    values / BLOCK_VALUES * packed_size_bytes(BLOCK_VALUES, width) + words * 32
}

struct Writer<'a> {
    identity: ChunkIdentity,
    columns: Vec<&'a mut Column>,
    pages: Vec<PageBuffer>,
}

impl Writer<'_> {
    /// How many of `left` rows from `start` on fit one page, at least one; found fastest near
    /// `guess`.
    fn rows_that_fit(&self, start: usize, left: usize, guess: usize) -> usize {
        let fits = |count: usize| self.fits(start..start + count);
        // The most that is known to fit, and the least that is known not to.
        let most = left.min(MAX_ROWS);
        let (mut low, mut high) = (1, most + 1);
        let (mut next, mut step) = (guess, (guess / 16).max(1));
        while low + 1 < high {
            // Ever wider steps to one side until it is bounded, then half by half.
            next = match low > 1 && high <= most {
                true => low.midpoint(high),
                false => next.clamp(low + 1, high - 1),
            };
            if fits(next) {
                low = next;
                next += step;
            } else {
                high = next;
                next = next.saturating_sub(step);
            }
            step = (step * 2).min(MAX_ROWS);
        }
        low
    }

    fn fits(&self, rows: Range<usize>) -> bool {
        let mut end = self.columns.len() * ENTRY_SIZE_BYTES;
        self.columns.iter().all(|column| {
            let nulls = column.null_count(&rows);
            let plan = column.plan(&rows, nulls);
            let validity = ChunkWriter::validity_size_bytes(rows.len(), nulls);
            end = group::align(end) + validity + plan.stored_bytes;
            end <= PAYLOAD_SIZE_BYTES && validity + plan.data_bytes <= PAYLOAD_SIZE_BYTES
        })
    }

    fn write(&mut self, rows: Range<usize>) -> Result<()> {
        let page = u16::try_from(self.pages.len()).ok();
        let page = page.filter(|page| *page < u16::MAX).ok_or_else(|| {
            StorageError::Invalid(format!(
                "the rows take more than {} pages; write fewer rows to a segment",
                u16::MAX
            ))
        })?;
        let header = PageHeader {
            encoding: Encoding::Group,
            width: 0,
            flags: 0,
            column_group: self.identity.column_group,
            payload_length: 0,
            table: self.identity.table,
            segment: self.identity.segment,
            page,
            first_row: rows.start as u16,
            generation: self.identity.generation,
            row_count: rows.len() as u32,
            null_count: 0,
            reference: 0,
            min: 0,
            max: 0,
        };
        let mut group = GroupPage::new(self.columns.len());
        let mut payload = Vec::with_capacity(PAYLOAD_SIZE_BYTES);
        for column in &mut self.columns {
            let null_count = column.null_count(&rows);
            let plan = column.plan(&rows, null_count);
            let validity = ChunkWriter::validity_size_bytes(rows.len(), null_count);
            payload.clear();
            payload.resize(validity + plan.data_bytes, 0);
            let (bitmap, data) = payload.split_at_mut(validity);
            if let Some(nulls) = column.nulls.as_ref().filter(|_| validity > 0) {
                let bits = nulls.inner().slice(rows.start, rows.len()).sliced();
                let bytes = rows.len().div_ceil(8);
                bitmap[..bytes].copy_from_slice(&bits.as_slice()[..bytes]);
            }
            column.fill(&rows, &plan, data);
            let has_validity = if validity > 0 { flags::HAS_VALIDITY } else { 0 };
            let (min, max) = plan.zone;
            let part = PageHeader {
                encoding: plan.encoding,
                width: plan.width as u8,
                flags: plan.flags | has_validity,
                null_count: null_count as u32,
                reference: plan.reference,
                min,
                max,
                ..header
            };
            group.push(&part, &payload);
            column.zones.push(PageZone {
                first_row: rows.start as u32,
                row_count: rows.len() as u32,
                null_count: null_count as u32,
                min,
                max,
            });
        }
        self.pages.push(group.finish(header));
        Ok(())
    }
}
