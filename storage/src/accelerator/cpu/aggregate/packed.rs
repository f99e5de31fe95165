//! Sums of a few groups, several aggregates at a time.
//!
//! The sum of a block's numbers between `min` and `max` takes few bits once `min` is subtracted
//! from each. So the numbers of several aggregates stand side by side in one 64-bit lane, a field
//! for each, and adding lanes adds all of them; one field is 1 in every row and counts rows. For
//! each group that occurs in the block (and for no other) the lanes are gone through once: no
//! addition waits for the one before to reach memory, and the block stays in the nearest caches.

use multiversion::multiversion;

use super::state::State;
use super::{AggregateFunction, Spec};
use crate::Result;
use crate::accelerator::cpu::BLOCK_ROWS;
use crate::accelerator::cpu::columns::Rows;
use crate::accelerator::cpu::eval::graph::NodeId;
use crate::accelerator::cpu::eval::vector::Operand;
use crate::accelerator::cpu::work::Work;

/// Groups up to which this pays; they and the one of the rows that do not count have a bit each in
/// a `u32`.
pub(super) const MAX_GROUPS: usize = 31;
/// Groups that one pass over the block adds up.
const GROUPS_A_PASS: usize = 4;

/// The sums of a segment that share lanes.
#[derive(Debug)]
pub(super) struct PackedSums {
    groups: usize,
    lanes: Vec<Lane>,
    /// The lane's value for each row of the block.
    values: Vec<u64>,
}

/// Fields that share 64 bits; the first lane's lowest field counts rows.
#[derive(Debug, Default)]
struct Lane {
    fields: Vec<Field>,
    bits: u32,
}

/// One aggregate's numbers in a lane.
#[derive(Debug)]
struct Field {
    /// Which aggregate.
    index: usize,
    argument: NodeId,
    /// What is subtracted from each number.
    min: i64,
    shift: u32,
    bits: u32,
}

impl PackedSums {
    /// Takes those of the aggregates `wanted` that fit out of it. `None`: there are too many
    /// groups.
    pub fn plan(
        wanted: &mut Vec<usize>,
        specs: &[Spec],
        states: &mut [State],
        groups: usize,
        work: &Work<'_>,
    ) -> Option<Self> {
        if groups > MAX_GROUPS {
            return None;
        }
        let mut fields: Vec<Field> = Vec::new();
        wanted.retain(|&index| {
            let field = field(&specs[index], index, &mut states[index], work);
            let is_packed = field.is_some();
            fields.extend(field);
            !is_packed
        });
        // The widest first, each into the first lane that has room.
        fields.sort_by_key(|field| std::cmp::Reverse(field.bits));
        let mut lanes = vec![Lane {
            fields: Vec::new(),
            bits: COUNT_BITS,
        }];
        for mut field in fields {
            let fits = |lane: &Lane| lane.bits + field.bits <= u64::BITS;
            let place = lanes.iter().position(fits).unwrap_or_else(|| {
                lanes.push(Lane::default());
                lanes.len() - 1
            });
            let lane = &mut lanes[place];
            field.shift = lane.bits;
            lane.bits += field.bits;
            lane.fields.push(field);
        }
        Some(Self {
            groups,
            lanes,
            values: Vec::new(),
        })
    }

    /// Adds the rows of a block, whose groups are `ids`; rows with greater ids than there are
    /// groups do not count.
    pub fn add(
        &mut self,
        work: &mut Work<'_>,
        rows: &Rows<'_>,
        ids: &[u32],
        states: &mut [State],
        counts: &mut [i64],
    ) -> Result<()> {
        let present = present(ids) & ((1 << self.groups) - 1);
        let present: Vec<u32> = (0..self.groups as u32)
            .filter(|group| present >> group & 1 == 1)
            .collect();
        let mut rows_of = [0; MAX_GROUPS];
        for (number, lane) in self.lanes.iter().enumerate() {
            for field in &lane.fields {
                work.evaluator.eval(
                    field.argument,
                    &mut work.columns.block(rows.clone(), work.reader),
                )?;
            }
            lane.fill(work, number == 0, ids.len(), &mut self.values);
            for groups in present.chunks(GROUPS_A_PASS) {
                // An id that no row has stands in for groups that there are not.
                let mut wanted = [u32::MAX; GROUPS_A_PASS];
                wanted[..groups.len()].copy_from_slice(groups);
                let sums = sum_groups(&self.values, ids, &wanted);
                for (group, sum) in groups.iter().map(|g| *g as usize).zip(sums) {
                    if number == 0 {
                        rows_of[group] = low_bits(sum, COUNT_BITS) as i64;
                        counts[group] += rows_of[group];
                    }
                    for field in &lane.fields {
                        let above_min = low_bits(sum >> field.shift, field.bits) as i64;
                        let sum = above_min.wrapping_add(field.min.wrapping_mul(rows_of[group]));
                        if let Some(sums) = states[field.index].narrow_sums() {
                            sums[group] = sums[group].wrapping_add(sum);
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

impl Lane {
    /// The lane's value for each row; `counts` if a field of it counts rows.
    fn fill(&self, work: &Work<'_>, counts: bool, len: usize, out: &mut Vec<u64>) {
        // What all rows have in common: 1 for the row, less the minima. Fields borrow from those
        // above them only until the numbers are added.
        let mut base = u64::from(counts);
        for field in &self.fields {
            base = base.wrapping_sub((field.min as u64) << field.shift);
            if let Operand::All(value) = work.evaluator.vector(field.argument).as_i64() {
                base = base.wrapping_add((value as u64) << field.shift);
            }
        }
        let mut each = self.fields.iter().filter_map(|field| {
            match work.evaluator.vector(field.argument).as_i64() {
                Operand::Each(values) => Some((&values[..len], field.shift)),
                Operand::All(_) => None,
            }
        });
        // Every value is written anew, so what is there need not be cleared.
        out.resize(len, 0);
        match each.next() {
            Some((values, shift)) => set_field(out, base, values, shift),
            None => out.fill(base),
        }
        each.for_each(|(values, shift)| add_field(out, values, shift));
    }
}

/// Bits of the field that counts rows.
const COUNT_BITS: u32 = u32::BITS - BLOCK_ROWS.leading_zeros();

/// The field of an aggregate, if it is a sum of numbers without NULLs that fits one.
fn field(spec: &Spec, index: usize, state: &mut State, work: &Work<'_>) -> Option<Field> {
    let argument = spec.argument?;
    let bound = work.evaluator.bound(argument);
    let is_sum = spec.function == AggregateFunction::Sum && spec.filter.is_none();
    if !is_sum || bound.may_be_null || bound.wide || state.narrow_sums().is_none() {
        return None;
    }
    let (min, max) = bound.range;
    Some(Field {
        index,
        argument,
        min: min as i64,
        shift: 0,
        bits: sum_bits(u128::try_from(max.checked_sub(min)?).ok()?)?,
    })
}

/// Bits that a block's sum of numbers up to `most` takes, if 64 suffice.
fn sum_bits(most: u128) -> Option<u32> {
    let sum = most.checked_mul(BLOCK_ROWS.into())?;
    let bits = u128::BITS - sum.leading_zeros();
    (bits <= u64::BITS).then_some(bits)
}

/// The lowest `bits` bits.
fn low_bits(value: u64, bits: u32) -> u64 {
    match bits {
        0 => 0,
        bits => value & u64::MAX >> (u64::BITS - bits),
    }
}

/// Bit `id` for each id.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn present(ids: &[u32]) -> u32 {
    ids.iter()
        .fold(0, |found, id| found | 1u32.wrapping_shl(*id))
}

/// `lane[i] = base + (values[i] << shift)`
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn set_field(lane: &mut [u64], base: u64, values: &[i64], shift: u32) {
    for (lane, value) in lane.iter_mut().zip(values) {
        *lane = base.wrapping_add((*value as u64).wrapping_shl(shift));
    }
}

/// `lane[i] += values[i] << shift`
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add_field(lane: &mut [u64], values: &[i64], shift: u32) {
    for (lane, value) in lane.iter_mut().zip(values) {
        *lane = lane.wrapping_add((*value as u64).wrapping_shl(shift));
    }
}

/// The sum of the values of each of `groups`.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn sum_groups(values: &[u64], ids: &[u32], groups: &[u32; GROUPS_A_PASS]) -> [u64; GROUPS_A_PASS] {
    let mut sums = [0u64; GROUPS_A_PASS];
    for (value, id) in values.iter().zip(ids) {
        for (sum, group) in sums.iter_mut().zip(groups) {
            *sum = sum.wrapping_add(if id == group { *value } else { 0 });
        }
    }
    sums
}
