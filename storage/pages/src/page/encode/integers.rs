//! Chunks of integers: FORBP, plain or scaled, RLE, DICT, CONST.

use arrow::array::{Array, ArrayData};
use arrow::datatypes::DataType;
use flashmesh_pushdown::Scalar;
use hashbrown::HashMap;
use multiversion::multiversion;

use super::groups::Values;
use super::{ChunkWriter, Encoded, PageSpec, bit_width};
use crate::Result;
use crate::page::forbp::{self, BLOCK_BYTES_PER_BIT};
use crate::page::header::{align_region, flags};
use crate::page::layout::{packed_size_bytes, run_ends_size_bytes};
use crate::page::sketch::Sketch;
use crate::page::{BLOCK_VALUES, Encoding, PAYLOAD_SIZE_BYTES};

/// Bytes of the region that holds step and packed width.
pub(super) const SCALE_SIZE_BYTES: usize = align_region(9);
/// A dictionary of integers decodes more slowly than packed offsets: it must save this share.
const DICTIONARY_SAVES: (usize, usize) = (2, 5);
/// Entries of a dictionary of integers.
const MAX_DICTIONARY: usize = PAYLOAD_SIZE_BYTES / 8;
/// Runs decode more slowly, too: they must take at most this share of the packed offsets' bytes.
pub(super) const RUNS_SHARE: (usize, usize) = (1, 2);
/// Spans up to this many values are counted exactly before they are hashed.
const DENSE_SPAN: u64 = 1 << 16;

/// The values of an array of integers as i64; `None` if one of them does not fit.
pub(super) fn from_array(array: &dyn Array) -> Result<Option<Vec<i64>>> {
    let data = array.to_data();
    macro_rules! widen {
        ($native:ty) => {
            values::<$native>(&data)
                .iter()
                .map(|value| i64::from(*value))
                .collect()
        };
    }
    Ok(Some(match array.data_type() {
        DataType::Int8 => widen!(i8),
        DataType::UInt8 => widen!(u8),
        DataType::Int16 => widen!(i16),
        DataType::UInt16 => widen!(u16),
        DataType::UInt32 => widen!(u32),
        DataType::UInt64 => {
            let values = values::<u64>(&data);
            if array.null_count() == 0
                && values.iter().fold(0, |all, value| all | value) > i64::MAX as u64
                || (0..values.len()).any(|row| array.is_valid(row) && values[row] > i64::MAX as u64)
            {
                return Ok(None);
            }
            values.iter().map(|value| *value as i64).collect()
        }
        DataType::Decimal128(..) => {
            let values = values::<i128>(&data);
            let narrow: Vec<i64> = values.iter().map(|value| *value as i64).collect();
            let fits = |row: usize| i128::from(narrow[row]) == values[row];
            if !(0..values.len()).all(&fits)
                && (0..values.len()).any(|row| array.is_valid(row) && !fits(row))
            {
                return Ok(None);
            }
            narrow
        }
        other => match other.primitive_width() {
            Some(4) => widen!(i32),
            _ => values::<i64>(&data).to_vec(),
        },
    }))
}

/// The values of an array of fixed-width numbers.
fn values<T: arrow::datatypes::ArrowNativeType>(data: &ArrayData) -> &[T] {
    &data.buffer::<T>(0)[..data.len()]
}

/// Encodes integers; `scalar` makes statistics out of them.
pub(super) fn encode(
    mut writer: ChunkWriter,
    mut values: Vec<i64>,
    scalar: impl Fn(i64) -> Scalar,
) -> Result<Encoded> {
    fill_nulls(&writer, &mut values);
    let blocks: Vec<Bounds> = values.chunks(BLOCK_VALUES).map(bounds).collect();
    let all = blocks
        .iter()
        .copied()
        .reduce(Bounds::union)
        .expect("a chunk has values");
    let mut sketch = Sketch::new();

    let null_counts = null_counts(&writer);
    let step = step(&values, all);
    let plain = plan_pages(&blocks, &null_counts, 1);
    let greatest_step = step;
    let scaled = (step > 1)
        .then(|| plan_pages(&blocks, &null_counts, step))
        .filter(|scaled| scaled.len() < plain.len());
    let (step, plan) = scaled.map_or((1, plain), |scaled| (step, scaled));

    let dictionary = if plan.len() > 2 {
        distinct(&values)
    } else {
        None
    };
    if let Some(dictionary) = &dictionary {
        sketch.add_integers(dictionary);
    } else if all.span() < DENSE_SPAN {
        let mut seen = vec![false; all.span() as usize + 1];
        values
            .iter()
            .for_each(|value| seen[value.wrapping_sub(all.min) as usize] = true);
        let seen: Vec<i64> = (0..)
            .zip(&seen)
            .filter(|(_, seen)| **seen)
            .map(|(offset, _)| all.min + offset)
            .collect();
        sketch.add_integers(&seen);
    } else {
        sketch.add_integers(&values);
    }

    let packed_bytes: usize = plan
        .iter()
        .map(|page| page.blocks * page.bounds.width(step) * BLOCK_BYTES_PER_BIT)
        .sum();
    let runs = count_runs(&values);
    let run_bytes = runs * (2 + bit_width(all.span()).div_ceil(8));
    let as_runs = plan.len() > 1 && run_bytes * RUNS_SHARE.1 <= packed_bytes * RUNS_SHARE.0;
    let coded = match dictionary {
        Some(dictionary) if !as_runs => {
            let codes = codes(&values, &dictionary);
            let code_blocks: Vec<Bounds> = codes.chunks(BLOCK_VALUES).map(bounds).collect();
            let code_plan = plan_pages(&code_blocks, &null_counts, 1);
            let saved = plan.len().saturating_sub(code_plan.len() + 1);
            (saved * DICTIONARY_SAVES.1 >= plan.len() * DICTIONARY_SAVES.0)
                .then_some((dictionary, codes, code_plan))
        }
        _ => None,
    };
    if as_runs && !writer.keeps() {
        write_runs(&mut writer, &values)?;
    } else if let Some((dictionary, codes, plan)) = coded {
        writer.push_aux(
            Encoding::Raw,
            0,
            8,
            dictionary.len(),
            8 * dictionary.len(),
            |data| {
                for (bytes, value) in data.as_chunks_mut().0.iter_mut().zip(&dictionary) {
                    *bytes = value.to_le_bytes();
                }
            },
        );
        encode_codes(&mut writer, codes, &CodePlan(plan), |code| dictionary[code])?;
    } else if writer.keeps() {
        // Each group page takes what suits its rows.
        let step = greatest_step;
        writer.keep(Values::Integers { values, step });
    } else {
        write_packed(&mut writer, &values, &plan, step)?;
    }
    Ok(writer.finish(
        (all.min, all.max),
        sketch.into_bytes(),
        Some((scalar(all.min), scalar(all.max))),
    ))
}

/// Encodes the codes of a dictionary that was written before; `key` gives their zone keys.
pub(super) fn encode_codes(
    writer: &mut ChunkWriter,
    codes: Vec<i64>,
    plan: &CodePlan,
    key: impl Fn(usize) -> i64,
) -> Result<()> {
    if writer.keeps() {
        let last = codes.iter().copied().max().unwrap_or_default() as usize;
        let keys = (0..=last).map(key).collect();
        writer.keep(Values::Codes { codes, keys });
        return Ok(());
    }
    write_codes(writer, &codes, &plan.0, key)
}

/// The pages that codes will take.
pub(super) struct CodePlan(Vec<PagePlan>);

impl CodePlan {
    pub fn new(writer: &ChunkWriter, codes: &[i64]) -> Self {
        let blocks: Vec<Bounds> = codes.chunks(BLOCK_VALUES).map(bounds).collect();
        Self(plan_pages(&blocks, &null_counts(writer), 1))
    }

    pub fn pages(&self) -> usize {
        self.0.len()
    }
}

/// Gives each NULL the value before it (the first ones the value after them): it widens no page
/// by more than a neighbour and ends no run.
pub(super) fn fill_nulls<T: Copy>(writer: &ChunkWriter, values: &mut [T]) {
    let Some(nulls) = &writer.nulls else { return };
    let first = nulls
        .valid_indices()
        .next()
        .expect("a chunk without values is written before");
    let mut last = values[first];
    for (row, value) in values.iter_mut().enumerate() {
        if nulls.is_null(row) {
            *value = last;
        } else {
            last = *value;
        }
    }
}

/// NULLs of each block of rows.
fn null_counts(writer: &ChunkWriter) -> Vec<usize> {
    match &writer.nulls {
        None => Vec::new(),
        Some(_) => (0..writer.rows)
            .step_by(BLOCK_VALUES)
            .map(|start| writer.null_count(start..writer.rows.min(start + BLOCK_VALUES)))
            .collect(),
    }
}

/// Least and greatest of some values.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub min: i64,
    pub max: i64,
}

impl Bounds {
    fn union(self, other: Self) -> Self {
        Self {
            min: self.min.min(other.min),
            max: self.max.max(other.max),
        }
    }

    fn span(self) -> u64 {
        self.max.wrapping_sub(self.min) as u64
    }

    /// Bits of an offset in steps.
    pub fn width(self, step: u64) -> usize {
        bit_width(self.span() / step)
    }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn bounds(values: &[i64]) -> Bounds {
    let (mut min, mut max) = (i64::MAX, i64::MIN);
    for value in values {
        min = min.min(*value);
        max = max.max(*value);
    }
    Bounds { min, max }
}

#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
pub(super) fn count_runs(values: &[i64]) -> usize {
    1 + values
        .iter()
        .zip(&values[1..])
        .map(|(value, next)| usize::from(value != next))
        .sum::<usize>()
}

/// The greatest number of which all distances from the least value are multiples (e.g. a million
/// for whole seconds in microseconds, 100 for whole numbers as decimals); 1 when offsets in such
/// steps could overflow.
fn step(values: &[i64], all: Bounds) -> u64 {
    if all.span() == 0 || all.span() > u64::MAX >> 2 {
        return 1;
    }
    let mut step = all.span();
    for value in values {
        let distance = value.wrapping_sub(all.min) as u64;
        if !distance.is_multiple_of(step) {
            step = gcd(step, distance);
            if step == 1 {
                break;
            }
        }
    }
    step
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// A page of packed offsets.
struct PagePlan {
    blocks: usize,
    bounds: Bounds,
}

/// Cuts blocks into pages, each as long as its common width allows.
fn plan_pages(blocks: &[Bounds], null_counts: &[usize], step: u64) -> Vec<PagePlan> {
    let scale = if step > 1 { SCALE_SIZE_BYTES } else { 0 };
    let mut pages: Vec<PagePlan> = Vec::new();
    let mut start = 0;
    while start < blocks.len() {
        let mut page = PagePlan {
            blocks: 1,
            bounds: blocks[start],
        };
        let mut nulls = null_counts.get(start).copied().unwrap_or(0);
        while let Some(next) = blocks.get(start + page.blocks) {
            let bounds = page.bounds.union(*next);
            let count = page.blocks + 1;
            nulls += null_counts.get(start + page.blocks).copied().unwrap_or(0);
            let rows = count * BLOCK_VALUES;
            let validity = if nulls == 0 {
                0
            } else {
                super::validity_size_bytes(rows)
            };
            if validity + scale + packed_size_bytes(rows, bounds.width(step)) > PAYLOAD_SIZE_BYTES {
                break;
            }
            page = PagePlan {
                blocks: count,
                bounds,
            };
        }
        start += page.blocks;
        pages.push(page);
    }
    pages
}

fn write_packed(
    writer: &mut ChunkWriter,
    values: &[i64],
    plan: &[PagePlan],
    step: u64,
) -> Result<()> {
    for page in plan {
        let values = &values[writer.next_row
            ..values
                .len()
                .min(writer.next_row + page.blocks * BLOCK_VALUES)];
        let Bounds { min, max } = page.bounds;
        let mut spec = PageSpec {
            rows: values.len(),
            reference: min,
            zone: (min, max),
            ..PageSpec::default()
        };
        if min == max {
            writer.push(spec, 0, |_| {})?;
            continue;
        }
        spec.encoding = Encoding::Forbp;
        spec.width = page.bounds.width(1);
        let packed = page.bounds.width(step);
        let size = packed_size_bytes(values.len(), packed);
        if step == 1 {
            writer.push(spec, size, |data| pack_blocks(packed, values, min, 1, data))?;
        } else {
            spec.flags = flags::SCALED;
            writer.push(spec, SCALE_SIZE_BYTES + size, |data| {
                let (scale, blocks) = data.split_at_mut(SCALE_SIZE_BYTES);
                scale[..8].copy_from_slice(&step.to_le_bytes());
                scale[8] = packed as u8;
                pack_blocks(packed, values, min, step, blocks);
            })?;
        }
    }
    Ok(())
}

fn write_codes(
    writer: &mut ChunkWriter,
    codes: &[i64],
    plan: &[PagePlan],
    key: impl Fn(usize) -> i64,
) -> Result<()> {
    for page in plan {
        let codes = &codes[writer.next_row
            ..codes
                .len()
                .min(writer.next_row + page.blocks * BLOCK_VALUES)];
        let Bounds { min, max } = page.bounds;
        let width = page.bounds.width(1);
        let zone = (key(min as usize), key(max as usize));
        let spec = PageSpec {
            rows: codes.len(),
            encoding: Encoding::Dict,
            width,
            reference: min,
            zone,
            ..PageSpec::default()
        };
        writer.push(spec, packed_size_bytes(codes.len(), width), |data| {
            pack_blocks(width, codes, min, 1, data)
        })?;
    }
    Ok(())
}

/// Packs the distances of `values` from `reference`, in steps, into blocks.
pub(super) fn pack_blocks(
    width: usize,
    values: &[i64],
    reference: i64,
    step: u64,
    data: &mut [u8],
) {
    if width == 0 {
        return;
    }
    let mut offsets = [0; BLOCK_VALUES];
    for (values, block) in values
        .chunks(BLOCK_VALUES)
        .zip(data.chunks_exact_mut(width * BLOCK_BYTES_PER_BIT))
    {
        for (offset, value) in offsets.iter_mut().zip(values) {
            *offset = value.wrapping_sub(reference) as u64;
        }
        let offsets = &mut offsets[..values.len()];
        if step > 1 {
            offsets.iter_mut().for_each(|offset| *offset /= step);
        }
        forbp::pack(width, offsets, block);
    }
}

/// Writes pages of runs, each as long as fits.
fn write_runs(writer: &mut ChunkWriter, values: &[i64]) -> Result<()> {
    while writer.next_row < values.len() {
        let first = writer.next_row;
        let mut ends: Vec<u16> = Vec::new();
        let mut run_values: Vec<i64> = Vec::new();
        let mut bounds = Bounds {
            min: i64::MAX,
            max: i64::MIN,
        };
        let mut row = first;
        let mut nulls = 0;
        while row < values.len() {
            let value = values[row];
            let length = values[row..]
                .iter()
                .take_while(|next| **next == value)
                .count();
            let wider = bounds.union(Bounds {
                min: value,
                max: value,
            });
            let count = ends.len() + 1;
            nulls += writer.null_count(row..row + length);
            let validity = if nulls == 0 {
                0
            } else {
                super::validity_size_bytes(row + length - first)
            };
            let size =
                validity + run_ends_size_bytes(count) + packed_size_bytes(count, wider.width(1));
            if size > PAYLOAD_SIZE_BYTES {
                break;
            }
            bounds = wider;
            row += length;
            ends.push((row - 1 - first) as u16);
            run_values.push(value);
        }
        let Bounds { min, max } = bounds;
        let mut spec = PageSpec {
            rows: row - first,
            reference: min,
            zone: (min, max),
            ..PageSpec::default()
        };
        if ends.is_empty() {
            // A single run whose validity bitmap is longer than a page: what fits of it.
            let rows = (PAYLOAD_SIZE_BYTES * 8).min(values.len() - first);
            let value = values[first];
            let rows = values[first..first + rows]
                .iter()
                .take_while(|next| **next == value)
                .count();
            spec = PageSpec {
                rows,
                reference: value,
                zone: (value, value),
                ..PageSpec::default()
            };
            writer.push(spec, 0, |_| {})?;
            continue;
        }
        if ends.len() == 1 {
            writer.push(spec, 0, |_| {})?;
            continue;
        }
        spec.encoding = Encoding::Rle;
        spec.width = bounds.width(1);
        let (ends_size, width) = (run_ends_size_bytes(ends.len()), spec.width);
        writer.push(
            spec,
            ends_size + packed_size_bytes(ends.len(), width),
            |data| {
                let (region, blocks) = data.split_at_mut(ends_size);
                region[..2].copy_from_slice(&(ends.len() as u16).to_le_bytes());
                for (bytes, end) in region[2..].as_chunks_mut().0.iter_mut().zip(&ends) {
                    *bytes = end.to_le_bytes();
                }
                pack_blocks(width, &run_values, min, 1, blocks);
            },
        )?;
    }
    Ok(())
}

/// The sorted distinct values, if they fit a dictionary page.
fn distinct(values: &[i64]) -> Option<Vec<i64>> {
    let mut seen = hashbrown::HashSet::with_capacity(MAX_DICTIONARY * 2);
    let mut last = None;
    for value in values {
        if last != Some(value) && seen.insert(*value) && seen.len() > MAX_DICTIONARY {
            return None;
        }
        last = Some(value);
    }
    let mut distinct: Vec<i64> = seen.into_iter().collect();
    distinct.sort_unstable();
    Some(distinct)
}

fn codes(values: &[i64], dictionary: &[i64]) -> Vec<i64> {
    let codes: HashMap<i64, i64> = dictionary.iter().copied().zip(0..).collect();
    values.iter().map(|value| codes[value]).collect()
}
