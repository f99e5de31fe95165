//! Chunks of values of a fixed size that are not integers (or too wide for them): CONST, DICT,
//! RAW.

use std::cmp::Ordering;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use flashmesh_pushdown::Scalar;
use hashbrown::HashMap;

use super::groups::Values;
use super::integers::{CodePlan, encode_codes};
use super::{ChunkWriter, Encoded, NO_VALUES, PageSpec, UNBOUNDED};
use crate::Result;
use crate::page::header::flags;
use crate::page::sketch::Sketch;
use crate::page::zone::{bytes_key, float_key, saturate};
use crate::page::{Encoding, PAYLOAD_SIZE_BYTES};

/// A dictionary must save this share of the pages.
const DICTIONARY_SAVES: (usize, usize) = (1, 4);
/// Values wider than this are not worth a dictionary.
const MAX_DICTIONARY_VALUE_BYTES: usize = 16;

/// The values' order, as far as their type has one.
enum Keys {
    /// One-to-one with the values (but for the NaNs).
    Floats(Vec<f64>),
    /// The numbers themselves.
    Wide(Vec<i128>),
    /// The first bytes.
    Prefix,
    None,
}

/// Encodes unsigned integers or decimals of which some do not fit an i64.
pub(super) fn encode_wide(writer: ChunkWriter, array: &dyn Array) -> Result<Encoded> {
    let data = array.to_data();
    let (size, wide): (usize, Vec<i128>) = match array.data_type() {
        DataType::UInt64 => (
            8,
            data.buffer::<u64>(0)[..data.len()]
                .iter()
                .map(|value| i128::from(*value))
                .collect(),
        ),
        _ => (16, data.buffer::<i128>(0)[..data.len()].to_vec()),
    };
    let bytes = &data.buffers()[0].as_slice()[data.offset() * size..][..data.len() * size];
    write(writer, bytes, size, Keys::Wide(wide))
}

/// Encodes floats, intervals, decimals of 256 bits, binary of a fixed size, lists of floats of a
/// fixed size.
pub(super) fn encode(writer: ChunkWriter, array: &dyn Array, size: usize) -> Result<Encoded> {
    let keys = match array.data_type() {
        DataType::Float16 => Keys::Floats(
            array
                .as_primitive::<Float16Type>()
                .values()
                .iter()
                .map(|v| v.to_f64())
                .collect(),
        ),
        DataType::Float32 => Keys::Floats(
            array
                .as_primitive::<Float32Type>()
                .values()
                .iter()
                .map(|v| f64::from(*v))
                .collect(),
        ),
        DataType::Float64 => Keys::Floats(array.as_primitive::<Float64Type>().values().to_vec()),
        DataType::FixedSizeBinary(_) => Keys::Prefix,
        _ => Keys::None,
    };
    if let DataType::FixedSizeList(_, length) = array.data_type() {
        let list = array.as_fixed_size_list();
        let items = list.values().to_data();
        let from = (items.offset() + list.value_offset(0) as usize) * 4;
        let bytes = &items.buffers()[0].as_slice()[from..][..array.len() * *length as usize * 4];
        return write(writer, bytes, size, keys);
    }
    let data = array.to_data();
    let bytes = &data.buffers()[0].as_slice()[data.offset() * size..][..data.len() * size];
    write(writer, bytes, size, keys)
}

fn write(mut writer: ChunkWriter, bytes: &[u8], size: usize, keys: Keys) -> Result<Encoded> {
    let rows = Rows { bytes, size };
    let valid: Vec<usize> = (0..writer.rows)
        .filter(|row| !writer.is_null(*row))
        .collect();
    let nulls = writer.nulls.clone();
    let is_null = |row: usize| nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
    let zone = |range: std::ops::Range<usize>| -> (i64, i64) {
        match &keys {
            Keys::None => UNBOUNDED,
            keys => range
                .filter(|row| !is_null(*row))
                .map(|row| keys.key(&rows, row))
                .fold(NO_VALUES, |(min, max), key| (min.min(key), max.max(key))),
        }
    };
    let all = zone(0..writer.rows);
    let ends = valid
        .iter()
        .copied()
        .min_by(|a, b| keys.cmp(&rows, *a, *b))
        .zip(valid.iter().copied().max_by(|a, b| keys.cmp(&rows, *a, *b)));
    let values = ends.and_then(|(min, max)| keys.scalar(&rows, min).zip(keys.scalar(&rows, max)));
    let first = valid[0];

    let mut sketch = Sketch::new();
    if valid.iter().all(|row| rows.get(*row) == rows.get(first)) && size <= PAYLOAD_SIZE_BYTES / 2 {
        sketch.add_bytes(rows.get(first));
        writer.push_constant(rows.get(first), all)?;
        return Ok(writer.finish(all, sketch.into_bytes(), values));
    }

    let raw_pages = (writer.rows * size).div_ceil(PAYLOAD_SIZE_BYTES);
    if let Some((dictionary, codes)) = dictionary(&writer, &rows, &keys, raw_pages) {
        let plan = CodePlan::new(&writer, &codes);
        let saved = raw_pages.saturating_sub(plan.pages() + 1);
        if saved * DICTIONARY_SAVES.1 >= raw_pages * DICTIONARY_SAVES.0 {
            dictionary
                .iter()
                .for_each(|row| sketch.add_bytes(rows.get(*row)));
            writer.push_aux(
                Encoding::Raw,
                0,
                size as i64,
                dictionary.len(),
                dictionary.len() * size,
                |data| {
                    for (bytes, row) in data.chunks_exact_mut(size).zip(&dictionary) {
                        bytes.copy_from_slice(rows.get(*row));
                    }
                },
            );
            let keys_of: Vec<i64> = dictionary.iter().map(|row| keys.key(&rows, *row)).collect();
            encode_codes(&mut writer, codes, &plan, |code| keys_of[code])?;
            return Ok(writer.finish(all, sketch.into_bytes(), values));
        }
    }

    valid
        .iter()
        .for_each(|row| sketch.add_bytes(rows.get(*row)));
    if writer.keeps() {
        writer.keep(Values::Fixed {
            keys: keys.all(&rows, writer.rows),
            bytes: without_nulls(bytes, size, is_null),
            size,
        });
        return Ok(writer.finish(all, sketch.into_bytes(), values));
    }
    if size > PAYLOAD_SIZE_BYTES {
        writer.check_pages(valid.len() * size.div_ceil(PAYLOAD_SIZE_BYTES))?;
    }
    while writer.next_row < writer.rows {
        let start = writer.next_row;
        if size > PAYLOAD_SIZE_BYTES {
            write_long(&mut writer, rows.get(start), size, zone(start..start + 1))?;
            continue;
        }
        let left = writer.rows - start;
        let mut count = PAYLOAD_SIZE_BYTES
            .checked_div(size)
            .map_or(left, |fit| fit.min(left));
        while count * size
            + ChunkWriter::validity_size_bytes(count, writer.null_count(start..start + count))
            > PAYLOAD_SIZE_BYTES
        {
            count -= 1;
        }
        let spec = PageSpec {
            rows: count,
            encoding: Encoding::Raw,
            reference: size as i64,
            zone: zone(start..start + count),
            ..PageSpec::default()
        };
        writer.push(spec, count * size, |data| {
            data.copy_from_slice(&bytes[start * size..(start + count) * size]);
            // What lies under a NULL is not for others to see.
            if nulls.is_some() {
                (0..count)
                    .filter(|row| is_null(start + row))
                    .for_each(|row| data[row * size..(row + 1) * size].fill(0));
            }
        })?;
    }
    Ok(writer.finish(all, sketch.into_bytes(), values))
}

/// The same bytes with zeros for NULLs: what lies under a NULL is not for others to see.
fn without_nulls(bytes: &[u8], size: usize, is_null: impl Fn(usize) -> bool) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (row, value) in bytes.chunks_exact_mut(size.max(1)).enumerate() {
        if is_null(row) {
            value.fill(0);
        }
    }
    bytes
}

/// A value longer than a page.
fn write_long(writer: &mut ChunkWriter, value: &[u8], size: usize, zone: (i64, i64)) -> Result<()> {
    let reference = size as i64;
    if writer.is_null(writer.next_row) {
        return writer.push(
            PageSpec {
                rows: 1,
                zone: NO_VALUES,
                ..PageSpec::default()
            },
            0,
            |_| {},
        );
    }
    let parts = value.chunks(PAYLOAD_SIZE_BYTES);
    let last = parts.len() - 1;
    for (number, part) in parts.enumerate() {
        let spec = PageSpec {
            rows: usize::from(number == 0),
            encoding: Encoding::Raw,
            flags: if number < last { flags::CONTINUES } else { 0 },
            reference,
            zone: if number == 0 { zone } else { NO_VALUES },
            ..PageSpec::default()
        };
        writer.push(spec, part.len(), |data| data.copy_from_slice(part))?;
    }
    Ok(())
}

/// Sorted rows of distinct values, and the code of each row; `None` if there are too many, or the
/// values have no order (or are integers too wide for [`super::integers`], which are rare).
fn dictionary(
    writer: &ChunkWriter,
    rows: &Rows,
    keys: &Keys,
    raw_pages: usize,
) -> Option<(Vec<usize>, Vec<i64>)> {
    if raw_pages < 3
        || rows.size == 0
        || rows.size > MAX_DICTIONARY_VALUE_BYTES
        || matches!(keys, Keys::None | Keys::Wide(_))
    {
        return None;
    }
    let limit = PAYLOAD_SIZE_BYTES / rows.size;
    let mut numbers: HashMap<&[u8], usize> = HashMap::with_capacity(limit);
    let mut entries: Vec<usize> = Vec::new();
    let mut codes = vec![0i64; writer.rows];
    for (row, code) in codes.iter_mut().enumerate() {
        if writer.is_null(row) {
            continue;
        }
        let number = *numbers.entry(rows.get(row)).or_insert_with(|| {
            entries.push(row);
            entries.len() - 1
        });
        if entries.len() > limit {
            return None;
        }
        *code = number as i64;
    }
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_unstable_by(|a, b| {
        let (a, b) = (entries[*a], entries[*b]);
        keys.cmp(rows, a, b)
            .then_with(|| rows.get(a).cmp(rows.get(b)))
    });
    let mut ranks = vec![0i64; entries.len()];
    (0..)
        .zip(&order)
        .for_each(|(rank, number)| ranks[*number] = rank);
    codes
        .iter_mut()
        .for_each(|code| *code = ranks[*code as usize]);
    super::integers::fill_nulls(writer, &mut codes);
    Some((
        order.into_iter().map(|number| entries[number]).collect(),
        codes,
    ))
}

struct Rows<'a> {
    bytes: &'a [u8],
    size: usize,
}

impl<'a> Rows<'a> {
    fn get(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.size..(row + 1) * self.size]
    }
}

impl Keys {
    fn key(&self, rows: &Rows, row: usize) -> i64 {
        match self {
            Self::Floats(values) => float_key(values[row]),
            Self::Wide(values) => saturate(values[row]),
            Self::Prefix => bytes_key(rows.get(row)),
            Self::None => 0,
        }
    }

    /// The keys of so many rows, if there are any.
    fn all(&self, rows: &Rows, count: usize) -> Option<Vec<i64>> {
        let is_known = !matches!(self, Self::None);
        is_known.then(|| (0..count).map(|row| self.key(rows, row)).collect())
    }

    fn cmp(&self, rows: &Rows, a: usize, b: usize) -> Ordering {
        match self {
            Self::Floats(values) => values[a].total_cmp(&values[b]),
            Self::Wide(values) => values[a].cmp(&values[b]),
            Self::Prefix => rows.get(a).cmp(rows.get(b)),
            Self::None => Ordering::Equal,
        }
    }

    fn scalar(&self, rows: &Rows, row: usize) -> Option<Scalar> {
        match self {
            Self::Floats(values) => Some(Scalar::Float(values[row])),
            Self::Wide(values) => Some(Scalar::Int(values[row])),
            Self::Prefix => Some(Scalar::Bytes(rows.get(row).to_vec())),
            Self::None => None,
        }
    }
}
