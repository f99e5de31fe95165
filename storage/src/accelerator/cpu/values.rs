//! Sets of 64-bit numbers: what a predicate on one column of integers comes down to.

use flashmesh_pushdown::{CompareOp, Scalar};

use super::eval::graph::{Graph, Members, NodeId, Op};
use super::eval::vector::Kind;
use super::prune::{Facts, Span, Verdict};
use crate::page::{Page, ints};

/// Ranges that a set may have before it is no longer worth its while.
const MAX_RANGES: usize = 65_536;
/// Bits of the bitmap that a set of many ranges is turned into at most.
const MAX_BITMAP_BITS: i128 = 1 << 22;

/// A set of numbers, and what becomes of NULL.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ValueSet {
    /// Disjoint ranges, ends included, ascending, never adjacent.
    ranges: Vec<(i64, i64)>,
    /// Whether NULL is in it.
    pub has_null: bool,
    lookup: Lookup,
}

/// How pages are searched for the set's numbers.
#[derive(Debug, Clone, PartialEq)]
enum Lookup {
    /// The only range.
    Range(i64, i64),
    /// All numbers but this range.
    AllBut(i64, i64),
    Bitmap {
        base: i64,
        bits: Vec<u64>,
    },
    /// Search of the ranges, row by row.
    Search,
}

/// Where a predicate is TRUE, where it is FALSE, and what it is for NULL; NULL for all others.
#[derive(Debug, Clone)]
struct Outcome {
    yes: Vec<(i64, i64)>,
    no: Vec<(i64, i64)>,
    for_null: Option<bool>,
}

impl ValueSet {
    /// The set for which a Boolean expression over one column of integers is TRUE; `None` if the
    /// expression is not made of comparisons with constants, IN, IS NULL, AND, OR and NOT.
    pub fn of(graph: &Graph, id: NodeId, column: usize) -> Option<Self> {
        let outcome = outcome(graph, id, column)?;
        Some(Self::new(outcome.yes, outcome.for_null == Some(true)))
    }

    /// Sorted, disjoint ranges.
    fn new(ranges: Vec<(i64, i64)>, has_null: bool) -> Self {
        let lookup = match *ranges.as_slice() {
            [(min, max)] => Lookup::Range(min, max),
            [] => Lookup::Range(1, 0),
            [(i64::MIN, before), (after, i64::MAX)] => Lookup::AllBut(before + 1, after - 1),
            [(base, _), .., (_, last)] if i128::from(last) - i128::from(base) < MAX_BITMAP_BITS => {
                let mut bits = vec![0u64; ((last - base) as usize).div_euclid(64) + 1];
                for (min, max) in &ranges {
                    for value in *min..=*max {
                        let place = (value - base) as usize;
                        bits[place / 64] |= 1 << (place % 64);
                    }
                }
                Lookup::Bitmap { base, bits }
            }
            _ => Lookup::Search,
        };
        Self {
            ranges,
            has_null,
            lookup,
        }
    }

    /// Numbers from `min` to `max`.
    pub fn range(min: i64, max: i64, has_null: bool) -> Self {
        Self::new(
            if min <= max {
                vec![(min, max)]
            } else {
                Vec::new()
            },
            has_null,
        )
    }

    /// These numbers.
    pub fn of_values(mut values: Vec<i64>, has_null: bool) -> Self {
        values.sort_unstable();
        Self::new(merged(values.into_iter().map(|v| (v, v))), has_null)
    }

    /// The numbers (and NULL) that are in both.
    pub fn and(&self, other: &Self) -> Self {
        Self::new(
            intersection(&self.ranges, &other.ranges),
            self.has_null && other.has_null,
        )
    }

    /// Whether a number of `min..=max` may be in the set, and whether all are.
    fn overlap(&self, min: i128, max: i128) -> (bool, bool) {
        let next = self
            .ranges
            .partition_point(|(_, end)| i128::from(*end) < min);
        match self.ranges.get(next) {
            Some((start, end)) => (
                i128::from(*start) <= max,
                i128::from(*start) <= min && max <= i128::from(*end),
            ),
            None => (false, false),
        }
    }

    /// What the set says about rows of which the zone map says `facts`.
    pub fn verdict(&self, facts: Facts) -> Verdict {
        let (any, all) = match facts.values {
            Span::Nothing => (false, true),
            Span::Anything | Span::Keys { exact: false, .. } => (true, false),
            Span::Keys {
                min,
                max,
                exact: true,
            } => self.overlap(min, max),
        };
        match (any, all, facts.may_be_null, self.has_null) {
            (false, _, false, _) | (false, _, true, false) => Verdict::Drop,
            (_, true, false, _) | (_, true, true, true) => Verdict::Keep,
            _ => Verdict::Look,
        }
    }

    /// Share of the numbers between `min` and `max` that are in the set.
    pub fn share(&self, facts: Facts) -> Option<f64> {
        let Span::Keys {
            min,
            max,
            exact: true,
        } = facts.values
        else {
            return None;
        };
        let inside: i128 = self
            .ranges
            .iter()
            .map(|(start, end)| {
                ((*end).min(max as i64) as i128 - (*start).max(min as i64) as i128 + 1).max(0)
            })
            .sum();
        Some(inside as f64 / (max - min + 1) as f64)
    }

    /// Whether `value` is in the set.
    pub fn contains(&self, value: i64) -> bool {
        let next = self.ranges.partition_point(|(_, end)| *end < value);
        self.ranges
            .get(next)
            .is_some_and(|(start, _)| *start <= value)
    }

    /// Bit `i` of `selection` := whether row `rows.start + i` of a page of integers (no codes) is
    /// in the set. NULL rows get any bit.
    pub fn select(&self, page: &Page, rows: std::ops::Range<u32>, selection: &mut [u64]) {
        match &self.lookup {
            Lookup::Range(min, max) => ints::select_range(page, rows, *min, *max, selection),
            Lookup::AllBut(min, max) => {
                ints::select_range(page, rows, *min, *max, selection);
                selection.iter_mut().for_each(|word| *word = !*word);
            }
            Lookup::Bitmap { base, bits } => {
                ints::select_bitmap(page, rows, *base, bits, selection)
            }
            Lookup::Search => {
                let mut values = vec![0; rows.len()];
                ints::unpack_i64(page, rows, &mut values);
                for (word, values) in selection.iter_mut().zip(values.chunks(64)) {
                    *word = values
                        .iter()
                        .enumerate()
                        .fold(0, |w, (i, v)| w | u64::from(self.contains(*v)) << i);
                }
            }
        }
    }
}

fn outcome(graph: &Graph, id: NodeId, column: usize) -> Option<Outcome> {
    let node = graph.node(id);
    let is_column = |operand: NodeId| graph.column(operand) == Some(column);
    match &node.op {
        // A Boolean column: TRUE is 1.
        Op::Column(_) => Some(Outcome {
            yes: vec![(1, 1)],
            no: vec![(0, 0)],
            for_null: None,
        }),
        Op::Compare(op, left, right) if is_column(*left) => {
            let kind = Kind::of(&graph.node(*left).data_type);
            let value = match (graph.literal(*right)?, kind) {
                (Scalar::Null, _) => {
                    return Some(Outcome {
                        yes: vec![],
                        no: vec![],
                        for_null: None,
                    });
                }
                (Scalar::Int(v), Kind::Integer { .. } | Kind::Decimal) => *v,
                (Scalar::Boolean(v), Kind::Boolean) => i128::from(*v),
                _ => return None,
            };
            let (below, above) = (clamped(i128::MIN, value - 1), clamped(value + 1, i128::MAX));
            let (here, most, least) = (
                clamped(value, value),
                clamped(i128::MIN, value),
                clamped(value, i128::MAX),
            );
            let outside: Vec<_> = below.iter().chain(&above).copied().collect();
            let (yes, no) = match op {
                CompareOp::Eq => (here, outside),
                CompareOp::NotEq => (outside, here),
                CompareOp::Lt => (below, least),
                CompareOp::LtEq => (most, above),
                CompareOp::Gt => (above, most),
                CompareOp::GtEq => (least, below),
            };
            Some(Outcome {
                yes,
                no,
                for_null: None,
            })
        }
        Op::InList(operand, set) if is_column(*operand) => {
            let yes = match &set.members {
                Members::Int(values) => merged(
                    values
                        .iter()
                        .filter_map(|v| i64::try_from(*v).ok())
                        .map(|v| (v, v)),
                ),
                Members::Boolean([no, yes]) => merged(
                    [(*no, 0), (*yes, 1)]
                        .into_iter()
                        .filter(|(is_in, _)| *is_in)
                        .map(|(_, v)| (v, v)),
                ),
                _ => return None,
            };
            let no = if set.has_null {
                Vec::new()
            } else {
                complement(&yes)
            };
            Some(Outcome {
                yes,
                no,
                for_null: None,
            })
        }
        Op::IsNull(operand) if is_column(*operand) => Some(Outcome {
            yes: Vec::new(),
            no: vec![(i64::MIN, i64::MAX)],
            for_null: Some(true),
        }),
        Op::Not(operand) => {
            let Outcome { yes, no, for_null } = outcome(graph, *operand, column)?;
            Some(Outcome {
                yes: no,
                no: yes,
                for_null: for_null.map(|v| !v),
            })
        }
        Op::And(list) => {
            let parts = list
                .iter()
                .map(|n| outcome(graph, *n, column))
                .collect::<Option<Vec<_>>>()?;
            conjunction(parts)
        }
        Op::Or(list) => {
            let swapped = |o: Outcome| Outcome {
                yes: o.no,
                no: o.yes,
                for_null: o.for_null.map(|v| !v),
            };
            let parts = list
                .iter()
                .map(|n| outcome(graph, *n, column).map(swapped))
                .collect::<Option<Vec<_>>>()?;
            conjunction(parts).map(swapped)
        }
        _ => None,
    }
    .filter(|o| o.yes.len() <= MAX_RANGES && o.no.len() <= MAX_RANGES)
}

/// Kleene AND of predicates on one column.
fn conjunction(parts: Vec<Outcome>) -> Option<Outcome> {
    let mut all = Outcome {
        yes: vec![(i64::MIN, i64::MAX)],
        no: Vec::new(),
        for_null: Some(true),
    };
    let mut no = Vec::new();
    for part in parts {
        all.yes = intersection(&all.yes, &part.yes);
        no.extend(part.no);
        all.for_null = match (all.for_null, part.for_null) {
            (Some(false), _) | (_, Some(false)) => Some(false),
            (Some(true), Some(true)) => Some(true),
            _ => None,
        };
    }
    no.sort_unstable();
    all.no = merged(no.into_iter());
    Some(all)
}

/// The numbers of 64 bits between two of 128, if there are any. (`i128::MIN` and `MAX` stand for
/// no bound, so the caller's `value ± 1` can't overflow: constants fit their types.)
fn clamped(min: i128, max: i128) -> Vec<(i64, i64)> {
    let (low, high) = (min.max(i64::MIN.into()), max.min(i64::MAX.into()));
    if low <= high {
        vec![(low as i64, high as i64)]
    } else {
        Vec::new()
    }
}

/// Joins ranges (ascending by their starts) that overlap or are adjacent.
fn merged(ranges: impl Iterator<Item = (i64, i64)>) -> Vec<(i64, i64)> {
    let mut all: Vec<(i64, i64)> = Vec::new();
    for (start, end) in ranges {
        match all.last_mut() {
            Some(last) if start <= last.1.saturating_add(1) => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

fn complement(ranges: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let mut gaps = Vec::with_capacity(ranges.len() + 1);
    let mut next = Some(i64::MIN);
    for (start, end) in ranges {
        if let Some(first) = next
            && first < *start
        {
            gaps.push((first, start - 1));
        }
        next = end.checked_add(1);
    }
    gaps.extend(next.map(|first| (first, i64::MAX)));
    gaps
}

fn intersection(left: &[(i64, i64)], right: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let (mut both, mut l, mut r) = (Vec::new(), 0, 0);
    while l < left.len() && r < right.len() {
        let (start, end) = (left[l].0.max(right[r].0), left[l].1.min(right[r].1));
        if start <= end {
            both.push((start, end));
        }
        if left[l].1 < right[r].1 {
            l += 1
        } else {
            r += 1
        }
    }
    both
}
