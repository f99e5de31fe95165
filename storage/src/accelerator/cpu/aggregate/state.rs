//! States of aggregates: one value for each group, and the loops that add rows to them.

use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryViewBuilder, BooleanArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::DataType;
use flashmesh_pushdown::AggregateFunction;
use multiversion::multiversion;

use crate::Result;
use crate::accelerator::cpu::BLOCK_ROWS;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::eval::bounds::Bound;
use crate::accelerator::cpu::eval::kernels::{from_total_key, total_key};
use crate::accelerator::cpu::eval::vector::{Kind, Operand, Values, Vector, bytes_to_arrow};

/// The groups of a block's rows.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ids<'a> {
    /// All rows are of group 0.
    One,
    /// The group of each row.
    Each(&'a [u32]),
}

/// The states of one aggregate.
#[derive(Debug, Clone)]
pub(super) struct State {
    slots: Slots,
    /// Whether a group has had a value. `None`: it has as soon as it has a row.
    seen: Option<Vec<bool>>,
}

/// One slot for each group.
#[derive(Debug, Clone)]
enum Slots {
    Count(Vec<i64>),
    /// Wraps, as the result type does; or is known not to overflow.
    SumI64(Vec<i64>),
    SumI128(Vec<i128>),
    SumF64(Vec<f64>),
    /// Numbers, Booleans, or the total-order keys of floats.
    LeastI64(Vec<i64>),
    GreatestI64(Vec<i64>),
    LeastI128(Vec<i128>),
    GreatestI128(Vec<i128>),
    LeastBytes(Vec<Option<Box<[u8]>>>),
    GreatestBytes(Vec<Option<Box<[u8]>>>),
}

/// Rows to be added.
#[derive(Debug, Clone, Copy)]
pub(super) struct Addition<'a> {
    pub ids: Ids<'a>,
    /// The rows that count; all if there is none.
    pub mask: Option<&'a Bitmap>,
    pub len: usize,
    /// Rows of each group before these, where someone counts them.
    pub rows_before: Option<&'a [i64]>,
}

impl Addition<'_> {
    /// Calls `f` with row and group of each row that counts.
    #[inline(always)]
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        match (self.ids, self.mask) {
            (Ids::One, None) => (0..self.len).for_each(|row| f(row, 0)),
            (Ids::Each(ids), None) => ids[..self.len]
                .iter()
                .enumerate()
                .for_each(|(row, id)| f(row, *id as usize)),
            (ids, Some(mask)) => {
                for (index, word) in mask.words().iter().enumerate() {
                    let mut word = *word;
                    while word != 0 {
                        let row = index * 64 + word.trailing_zeros() as usize;
                        f(
                            row,
                            if let Ids::Each(ids) = ids {
                                ids[row] as usize
                            } else {
                                0
                            },
                        );
                        word &= word - 1;
                    }
                }
            }
        }
    }
}

impl State {
    /// For results of `data_type`, over the whole life of the task.
    pub fn new(function: AggregateFunction, data_type: &DataType) -> Self {
        let kind = Kind::of(data_type);
        let wide = matches!(
            kind,
            Kind::Decimal
                | Kind::Integer {
                    bits: 64,
                    signed: false
                }
        );
        let slots = match (function, kind) {
            (AggregateFunction::Count, _) => Slots::Count(Vec::new()),
            (AggregateFunction::Sum, Kind::Decimal) => Slots::SumI128(Vec::new()),
            (AggregateFunction::Sum, Kind::Float { .. }) => Slots::SumF64(Vec::new()),
            (AggregateFunction::Sum, _) => Slots::SumI64(Vec::new()),
            (AggregateFunction::Min, Kind::Bytes) => Slots::LeastBytes(Vec::new()),
            (AggregateFunction::Max, Kind::Bytes) => Slots::GreatestBytes(Vec::new()),
            (AggregateFunction::Min, _) if wide => Slots::LeastI128(Vec::new()),
            (AggregateFunction::Max, _) if wide => Slots::GreatestI128(Vec::new()),
            (AggregateFunction::Min, _) => Slots::LeastI64(Vec::new()),
            (AggregateFunction::Max, _) => Slots::GreatestI64(Vec::new()),
        };
        Self {
            slots,
            seen: Some(Vec::new()),
        }
    }

    /// For the `groups` of one segment of `rows` rows, to be merged into `self` afterwards: in 64
    /// bits where the argument's bound says that they suffice.
    pub fn for_segment(&self, argument: Option<&Bound>, rows: u32, groups: usize) -> Self {
        let narrow = argument.is_some_and(|b| !b.wide);
        let slots = match &self.slots {
            Slots::SumI128(_) if argument.is_some_and(|b| sum_fits(b, rows)) => {
                Slots::SumI64(Vec::new())
            }
            Slots::LeastI128(_) if narrow => Slots::LeastI64(Vec::new()),
            Slots::GreatestI128(_) if narrow => Slots::GreatestI64(Vec::new()),
            Slots::Count(_) => Slots::Count(Vec::new()),
            Slots::SumI64(_) => Slots::SumI64(Vec::new()),
            Slots::SumI128(_) => Slots::SumI128(Vec::new()),
            Slots::SumF64(_) => Slots::SumF64(Vec::new()),
            Slots::LeastI64(_) => Slots::LeastI64(Vec::new()),
            Slots::GreatestI64(_) => Slots::GreatestI64(Vec::new()),
            Slots::LeastI128(_) => Slots::LeastI128(Vec::new()),
            Slots::GreatestI128(_) => Slots::GreatestI128(Vec::new()),
            Slots::LeastBytes(_) => Slots::LeastBytes(Vec::new()),
            Slots::GreatestBytes(_) => Slots::GreatestBytes(Vec::new()),
        };
        let mut state = Self { slots, seen: None };
        state.resize(groups);
        state
    }

    /// Makes room for `groups` groups; new ones have had no value.
    pub fn resize(&mut self, groups: usize) {
        match &mut self.slots {
            Slots::Count(v) | Slots::SumI64(v) => v.resize(groups, 0),
            Slots::SumI128(v) => v.resize(groups, 0),
            // The only float that changes no other when added.
            Slots::SumF64(v) => v.resize(groups, -0.0),
            Slots::LeastI64(v) => v.resize(groups, i64::MAX),
            Slots::GreatestI64(v) => v.resize(groups, i64::MIN),
            Slots::LeastI128(v) => v.resize(groups, i128::MAX),
            Slots::GreatestI128(v) => v.resize(groups, i128::MIN),
            Slots::LeastBytes(v) | Slots::GreatestBytes(v) => v.resize(groups, None),
        }
        if let Some(seen) = &mut self.seen {
            seen.resize(groups, false);
        }
    }

    /// Bytes of memory.
    pub fn memory_bytes(&self) -> usize {
        let slots = match &self.slots {
            Slots::Count(v) | Slots::SumI64(v) | Slots::LeastI64(v) | Slots::GreatestI64(v) => {
                size_of_val(v.as_slice())
            }
            Slots::SumI128(v) | Slots::LeastI128(v) | Slots::GreatestI128(v) => {
                size_of_val(v.as_slice())
            }
            Slots::SumF64(v) => size_of_val(v.as_slice()),
            Slots::LeastBytes(v) | Slots::GreatestBytes(v) => {
                let values = v.iter().flatten().map(|value| value.len());
                size_of_val(v.as_slice()) + values.sum::<usize>()
            }
        };
        slots + self.seen.as_ref().map_or(0, Vec::len)
    }

    /// Counts rows.
    pub fn count(&mut self, addition: Addition<'_>) {
        let Slots::Count(counts) = &mut self.slots else {
            unreachable!("only counts count")
        };
        match (addition.ids, addition.mask) {
            (Ids::One, None) => counts[0] += addition.len as i64,
            (Ids::One, Some(mask)) => counts[0] += mask.count() as i64,
            (Ids::Each(_), _) => addition.each(|_, id| counts[id] += 1),
        }
    }

    /// Counts the rows of each group.
    pub fn count_rows(&mut self, rows: &[i64]) {
        let Slots::Count(counts) = &mut self.slots else {
            unreachable!("only counts count")
        };
        for (count, rows) in counts.iter_mut().zip(rows) {
            *count += rows;
        }
    }

    /// The sums, if they are held in 64 bits.
    pub fn narrow_sums(&mut self) -> Option<&mut [i64]> {
        match &mut self.slots {
            Slots::SumI64(sums) => Some(sums),
            _ => None,
        }
    }

    /// Adds values, of which `bound` is known.
    pub fn update(&mut self, addition: Addition<'_>, values: &Vector, bound: &Bound) {
        self.mark_seen(&addition);
        if addition.len == 0 || addition.mask.is_some_and(|m| !m.any()) {
            return;
        }
        let Addition { ids, mask, len, .. } = addition;
        match (&mut self.slots, &values.values) {
            (Slots::SumI64(sums), Values::I64(_)) => match (ids, values.as_i64()) {
                (Ids::One, operand) => sums[0] = sums[0].wrapping_add(sum_i64(operand, mask, len)),
                (_, operand) => {
                    addition.each(|i, id| sums[id] = sums[id].wrapping_add(operand.get(i)))
                }
            },
            (Slots::SumI64(sums), _) => {
                addition.each(|i, id| sums[id] = sums[id].wrapping_add(values.int(i) as i64));
            }
            (Slots::SumI128(sums), Values::I64(_)) => match (ids, values.as_i64()) {
                (Ids::One, operand) if sum_fits(bound, BLOCK_ROWS.max(len as u32)) => {
                    sums[0] = sums[0].wrapping_add(sum_i64(operand, mask, len).into());
                }
                (_, operand) => {
                    addition.each(|i, id| sums[id] = sums[id].wrapping_add(operand.get(i).into()))
                }
            },
            (Slots::SumI128(sums), _) => {
                addition.each(|i, id| sums[id] = sums[id].wrapping_add(values.int(i)))
            }
            (Slots::SumF64(sums), _) => match (ids, mask, values.as_f64()) {
                (Ids::One, None, Operand::Each(values)) => sums[0] += sum_f64(&values[..len]),
                (_, _, operand) => addition.each(|i, id| sums[id] += operand.get(i)),
            },
            (Slots::LeastI64(least), _) => {
                each_key(&addition, values, |id, key| least[id] = least[id].min(key));
            }
            (Slots::GreatestI64(greatest), _) => {
                each_key(&addition, values, |id, key| {
                    greatest[id] = greatest[id].max(key)
                });
            }
            (Slots::LeastI128(least), _) => {
                addition.each(|i, id| least[id] = least[id].min(values.int(i)))
            }
            (Slots::GreatestI128(most), _) => {
                addition.each(|i, id| most[id] = most[id].max(values.int(i)))
            }
            (Slots::LeastBytes(least), _) => {
                addition.each(|i, id| keep_less(&mut least[id], values.bytes(i)))
            }
            (Slots::GreatestBytes(most), _) => {
                addition.each(|i, id| keep_greater(&mut most[id], values.bytes(i)))
            }
            (Slots::Count(_), _) => unreachable!("counts have no values"),
        }
    }

    /// Takes a least or greatest number that is known without its rows.
    pub fn update_known(&mut self, number: i64) {
        match &mut self.slots {
            Slots::LeastI64(v) => v[0] = v[0].min(number),
            Slots::GreatestI64(v) => v[0] = v[0].max(number),
            Slots::LeastI128(v) => v[0] = v[0].min(number.into()),
            Slots::GreatestI128(v) => v[0] = v[0].max(number.into()),
            _ => unreachable!("only least and greatest numbers are known from zone maps"),
        }
        if let Some(seen) = &mut self.seen {
            seen[0] = true;
        }
    }

    /// Notes which groups get a value.
    pub fn mark_seen(&mut self, addition: &Addition<'_>) {
        if self.seen.is_none() {
            match (addition.mask, addition.rows_before) {
                (None, Some(_)) => return,
                (_, rows) => {
                    self.seen = Some(
                        rows.unwrap_or_default()
                            .iter()
                            .map(|rows| *rows > 0)
                            .collect(),
                    )
                }
            }
        }
        let seen = self.seen.as_mut().expect("just made");
        match addition.ids {
            Ids::One => seen[0] |= addition.len > 0 && addition.mask.is_none_or(Bitmap::any),
            Ids::Each(_) => addition.each(|_, id| seen[id] = true),
        }
    }

    /// Merges groups of a segment: group `from` there is group `to` here, `rows` are its rows.
    pub fn merge(&mut self, segment: &Self, groups: &[(u32, u32)], rows: &[i64]) {
        let has_value = |from: u32| match &segment.seen {
            Some(seen) => seen[from as usize],
            None => rows[from as usize] > 0,
        };
        let pairs = groups
            .iter()
            .filter(|(from, _)| has_value(*from))
            .map(|(f, t)| (*f as usize, *t as usize));
        match (&mut self.slots, &segment.slots) {
            (Slots::Count(to), Slots::Count(from)) => {
                groups
                    .iter()
                    .for_each(|(f, t)| to[*t as usize] += from[*f as usize]);
            }
            (Slots::SumI64(to), Slots::SumI64(from)) => pairs
                .clone()
                .for_each(|(f, t)| to[t] = to[t].wrapping_add(from[f])),
            (Slots::SumI128(to), Slots::SumI64(from)) => {
                pairs
                    .clone()
                    .for_each(|(f, t)| to[t] = to[t].wrapping_add(from[f].into()));
            }
            (Slots::SumI128(to), Slots::SumI128(from)) => pairs
                .clone()
                .for_each(|(f, t)| to[t] = to[t].wrapping_add(from[f])),
            (Slots::SumF64(to), Slots::SumF64(from)) => {
                pairs.clone().for_each(|(f, t)| to[t] += from[f])
            }
            (Slots::LeastI64(to), Slots::LeastI64(from)) => {
                pairs.clone().for_each(|(f, t)| to[t] = to[t].min(from[f]))
            }
            (Slots::GreatestI64(to), Slots::GreatestI64(from)) => {
                pairs.clone().for_each(|(f, t)| to[t] = to[t].max(from[f]))
            }
            (Slots::LeastI128(to), Slots::LeastI64(from)) => pairs
                .clone()
                .for_each(|(f, t)| to[t] = to[t].min(from[f].into())),
            (Slots::GreatestI128(to), Slots::GreatestI64(from)) => {
                pairs
                    .clone()
                    .for_each(|(f, t)| to[t] = to[t].max(from[f].into()));
            }
            (Slots::LeastI128(to), Slots::LeastI128(from)) => {
                pairs.clone().for_each(|(f, t)| to[t] = to[t].min(from[f]))
            }
            (Slots::GreatestI128(to), Slots::GreatestI128(from)) => {
                pairs.clone().for_each(|(f, t)| to[t] = to[t].max(from[f]))
            }
            (Slots::LeastBytes(to), Slots::LeastBytes(from)) => {
                pairs
                    .clone()
                    .for_each(|(f, t)| from[f].iter().for_each(|v| keep_less(&mut to[t], v)));
            }
            (Slots::GreatestBytes(to), Slots::GreatestBytes(from)) => {
                pairs
                    .clone()
                    .for_each(|(f, t)| from[f].iter().for_each(|v| keep_greater(&mut to[t], v)));
            }
            _ => unreachable!("`for_segment` makes states that fit"),
        }
        if let Some(seen) = &mut self.seen {
            pairs.for_each(|(_, to)| seen[to] = true);
        }
    }

    /// The results of the groups as an array of `data_type`. `rows` are the groups' rows where
    /// someone has counted them.
    pub fn finish(
        &self,
        groups: &[u32],
        rows: Option<&[i64]>,
        data_type: &DataType,
    ) -> Result<ArrayRef> {
        let take = |v: &[i64]| groups.iter().map(|g| v[*g as usize]).collect::<Vec<_>>();
        let take_wide = |v: &[i128]| groups.iter().map(|g| v[*g as usize]).collect::<Vec<_>>();
        let validity = match (&self.slots, &self.seen) {
            (Slots::Count(_), _) => None,
            (_, Some(seen)) => Some(Bitmap::from_fn(groups.len(), |i| seen[groups[i] as usize])),
            (_, None) => {
                rows.map(|rows| Bitmap::from_fn(groups.len(), |i| rows[groups[i] as usize] > 0))
            }
        };
        let validity = validity.filter(|v| v.count() < groups.len());
        let len = groups.len();
        match &self.slots {
            Slots::Count(v) | Slots::SumI64(v) => {
                Vector::i64(take(v), validity).to_arrow(data_type, len)
            }
            Slots::SumI128(v) | Slots::LeastI128(v) | Slots::GreatestI128(v) => {
                Vector::i128(take_wide(v), validity).to_arrow(data_type, len)
            }
            Slots::SumF64(v) => {
                let sums = groups.iter().map(|g| v[*g as usize]).collect();
                Vector::f64(sums, validity).to_arrow(data_type, len)
            }
            Slots::LeastI64(v) | Slots::GreatestI64(v) => match Kind::of(data_type) {
                Kind::Float { .. } => {
                    let floats = groups
                        .iter()
                        .map(|g| from_total_key(v[*g as usize]))
                        .collect();
                    Vector::f64(floats, validity).to_arrow(data_type, len)
                }
                Kind::Boolean => {
                    let bits = Bitmap::from_fn(len, |i| v[groups[i] as usize] == 1);
                    let buffer =
                        BooleanBuffer::new(Buffer::from_vec(bits.words().to_vec()), 0, len);
                    let nulls = validity.map(|v| {
                        NullBuffer::new(BooleanBuffer::new(
                            Buffer::from_vec(v.words().to_vec()),
                            0,
                            len,
                        ))
                    });
                    Ok(Arc::new(BooleanArray::new(buffer, nulls)))
                }
                _ => Vector::i64(take(v), validity).to_arrow(data_type, len),
            },
            Slots::LeastBytes(v) | Slots::GreatestBytes(v) => {
                let mut builder = BinaryViewBuilder::with_capacity(len);
                groups
                    .iter()
                    .for_each(|g| builder.append_option(v[*g as usize].as_deref()));
                bytes_to_arrow(builder.finish(), data_type)
            }
        }
    }
}

/// Whether the sum of `rows` values is sure to fit 64 bits.
fn sum_fits(bound: &Bound, rows: u32) -> bool {
    let most = bound
        .range
        .0
        .unsigned_abs()
        .max(bound.range.1.unsigned_abs());
    !bound.wide
        && most
            .checked_mul(rows.into())
            .is_some_and(|sum| sum < 1 << 63)
}

/// Calls `f` with the group and the ordered key of each value.
#[inline(always)]
fn each_key(addition: &Addition<'_>, values: &Vector, mut f: impl FnMut(usize, i64)) {
    match &values.values {
        Values::I64(_) => {
            let operand = values.as_i64();
            addition.each(|i, id| f(id, operand.get(i)));
        }
        Values::F64(_) => {
            let operand = values.as_f64();
            addition.each(|i, id| f(id, total_key(operand.get(i))));
        }
        Values::Bool(bits) => {
            addition.each(|i, id| f(id, i64::from(bits.get(if values.constant { 0 } else { i }))));
        }
        _ => unreachable!("the verifier matches arguments and results"),
    }
}

fn keep_less(slot: &mut Option<Box<[u8]>>, value: &[u8]) {
    if slot.as_deref().is_none_or(|least| value < least) {
        *slot = Some(value.into());
    }
}

fn keep_greater(slot: &mut Option<Box<[u8]>>, value: &[u8]) {
    if slot.as_deref().is_none_or(|greatest| value > greatest) {
        *slot = Some(value.into());
    }
}

/// The sum of the rows in `mask`; wraps.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn sum_i64(values: Operand<'_, i64>, mask: Option<&Bitmap>, len: usize) -> i64 {
    match (values, mask) {
        (Operand::All(value), mask) => value.wrapping_mul(mask.map_or(len, Bitmap::count) as i64),
        (Operand::Each(values), None) => {
            values[..len].iter().fold(0, |sum, v| sum.wrapping_add(*v))
        }
        (Operand::Each(values), Some(mask)) => {
            let mut sum = 0i64;
            for (word, values) in mask.words().iter().zip(values[..len].chunks(64)) {
                for (bit, value) in values.iter().enumerate() {
                    sum = sum.wrapping_add(value & -((word >> bit & 1) as i64));
                }
            }
            sum
        }
    }
}

/// The sum, in eight partial sums side by side.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn sum_f64(values: &[f64]) -> f64 {
    let (chunks, rest) = values.as_chunks::<8>();
    let mut sums = [-0.0; 8];
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum += value;
        }
    }
    sums.iter().chain(rest).fold(-0.0, |sum, value| sum + value)
}
