//! What zone maps say about an expression: which of TRUE, FALSE and NULL it can still be.
//!
//! Every value is abstracted to the interval of its zone keys. A key is *exact* when equal keys
//! mean equal values (numbers, dates, Booleans, floats), otherwise (text: the first 8 bytes) only
//! different keys tell values apart:
//!
//! | expression | can be TRUE | can be FALSE |
//! |---|---|---|
//! | `a = b` | the intervals meet | not both the same single exact key |
//! | `a < b` | `min a < max b`, or `<=` if a key is inexact | `max a >= min b` |
//! | `a <= b` | `min a <= max b` | `max a > min b`, or `>=` if a key is inexact |
//! | `a in (…)` | a member's key lies in the interval | not all keys are one exact member's |
//! | `a like 'p%'` | the interval meets the keys that start with `p` | not all keys start with `p` |
//! | `a is null` | there are NULLs | there are values |
//!
//! A row survives a filter only if every conjunct is TRUE, so what can't be TRUE is not read, and
//! a conjunct that can only be TRUE needs no reading either.

use flashmesh_pushdown::{
    ArithmeticOp, CompareOp, DatePart, RuntimeFilter, RuntimePredicate, Scalar,
};

use super::eval::bounds::{CALENDAR_DAYS, cast_factor, decimal_factors};
use super::eval::graph::{Graph, ListSet, NodeId, Op};
use super::eval::kernels::civil_from_days;
use super::eval::text::TextTest;
use super::eval::vector::Kind;
use crate::page::{PageZone, ZoneKey, zone_key};
use crate::segment::{Chunk, Totals};

/// What a value can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub values: Span,
    pub may_be_null: bool,
}

/// The non-NULL values among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Span {
    /// There are none.
    Nothing,
    /// Nothing is known.
    Anything,
    /// Their zone keys lie within.
    Keys { min: i128, max: i128, exact: bool },
}

/// What a Boolean can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Truth {
    pub can_be_true: bool,
    pub can_be_false: bool,
    pub can_be_null: bool,
}

/// What follows for a conjunct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// TRUE for every row.
    Keep,
    /// TRUE for no row.
    Drop,
    /// The rows have to be looked at.
    Look,
}

impl Facts {
    const UNKNOWN: Self = Self {
        values: Span::Anything,
        may_be_null: true,
    };

    /// From a page's zone map.
    pub fn of_zone(zone: &PageZone, kind: Kind) -> Self {
        Self::of(zone.null_count, zone.row_count, zone.min, zone.max, kind)
    }

    /// From a chunk's zone map.
    pub fn of_chunk(chunk: &Chunk, rows: u32, kind: Kind) -> Self {
        {
            let Totals {
                null_count,
                min,
                max,
                ..
            } = chunk.totals;
            Self::of(null_count, rows, min, max, kind)
        }
    }

    fn of(nulls: u32, rows: u32, min: i64, max: i64, kind: Kind) -> Self {
        let values = if nulls >= rows {
            Span::Nothing
        } else if min > max || kind == Kind::Opaque {
            Span::Anything
        } else {
            Span::Keys {
                min: min.into(),
                max: max.into(),
                exact: is_exact(kind, min, max),
            }
        };
        Self {
            values,
            may_be_null: nulls > 0,
        }
    }

    fn constant(value: &Scalar, data_type: &arrow::datatypes::DataType) -> Self {
        if *value == Scalar::Null {
            return Self {
                values: Span::Nothing,
                may_be_null: true,
            };
        }
        let values = match zone_key(value, data_type) {
            ZoneKey::Exact(key) => Span::Keys {
                min: key.into(),
                max: key.into(),
                exact: true,
            },
            ZoneKey::Prefix(key) => Span::Keys {
                min: key.into(),
                max: key.into(),
                exact: false,
            },
            ZoneKey::Unknown => Span::Anything,
        };
        Self {
            values,
            may_be_null: false,
        }
    }

    /// The interval of a number whose keys are its values.
    pub fn numbers(&self, kind: Kind) -> Option<(i128, i128)> {
        match (self.values, kind) {
            (
                Span::Keys {
                    min,
                    max,
                    exact: true,
                },
                Kind::Integer { .. } | Kind::Decimal,
            ) => Some((min, max)),
            _ => None,
        }
    }
}

/// Whether keys between `min` and `max` tell any two values of the kind apart. Numbers beyond 64
/// bits share the outermost keys, and so do NaNs.
fn is_exact(kind: Kind, min: i64, max: i64) -> bool {
    match kind {
        Kind::Bytes | Kind::Opaque => false,
        Kind::Integer {
            bits: 64,
            signed: false,
        }
        | Kind::Decimal
        | Kind::Float { .. } => min > i64::MIN && max < i64::MAX,
        Kind::Integer { .. } | Kind::Boolean => true,
    }
}

impl Truth {
    const UNKNOWN: Self = Self {
        can_be_true: true,
        can_be_false: true,
        can_be_null: true,
    };

    pub fn verdict(self) -> Verdict {
        match self {
            Self {
                can_be_true: false, ..
            } => Verdict::Drop,
            Self {
                can_be_false: false,
                can_be_null: false,
                ..
            } => Verdict::Keep,
            _ => Verdict::Look,
        }
    }

    fn facts(self) -> Facts {
        let values = match (self.can_be_false, self.can_be_true) {
            (false, false) => Span::Nothing,
            (no, yes) => Span::Keys {
                min: i128::from(!no),
                max: i128::from(yes),
                exact: true,
            },
        };
        Facts {
            values,
            may_be_null: self.can_be_null,
        }
    }

    fn of_facts(facts: Facts) -> Self {
        let (can_be_false, can_be_true) = match facts.values {
            Span::Nothing => (false, false),
            Span::Anything => (true, true),
            Span::Keys { min, max, .. } => (min <= 0, max >= 1),
        };
        Self {
            can_be_true,
            can_be_false,
            can_be_null: facts.may_be_null,
        }
    }

    fn not(self) -> Self {
        Self {
            can_be_true: self.can_be_false,
            can_be_false: self.can_be_true,
            ..self
        }
    }
}

/// What a Boolean node can be, given what its columns can be.
pub(super) fn truth(graph: &Graph, id: NodeId, column: &dyn Fn(usize) -> Facts) -> Truth {
    let node = graph.node(id);
    match &node.op {
        Op::Compare(op, left, right) => {
            let kind = Kind::of(&graph.node(*left).data_type);
            compare(
                *op,
                facts(graph, *left, column),
                facts(graph, *right, column),
                kind,
            )
        }
        Op::And(list) => junction(list.iter().map(|n| truth(graph, *n, column))),
        Op::Or(list) => junction(list.iter().map(|n| truth(graph, *n, column).not())).not(),
        Op::Not(operand) => truth(graph, *operand, column).not(),
        Op::IsNull(operand) => {
            let operand = facts(graph, *operand, column);
            Truth {
                can_be_true: operand.may_be_null,
                can_be_false: operand.values != Span::Nothing,
                can_be_null: false,
            }
        }
        Op::InList(operand, set) => in_list(facts(graph, *operand, column), set),
        Op::Text(operand, test) => text(facts(graph, *operand, column), test),
        _ => Truth::of_facts(facts(graph, id, column)),
    }
}

/// Kleene AND.
fn junction(operands: impl Iterator<Item = Truth>) -> Truth {
    let mut all = Truth {
        can_be_true: true,
        can_be_false: false,
        can_be_null: false,
    };
    for operand in operands {
        if !operand.can_be_true && !operand.can_be_null {
            return Truth {
                can_be_true: false,
                can_be_false: true,
                can_be_null: false,
            };
        }
        all.can_be_true &= operand.can_be_true;
        all.can_be_false |= operand.can_be_false;
        all.can_be_null |= operand.can_be_null;
    }
    all
}

fn facts(graph: &Graph, id: NodeId, column: &dyn Fn(usize) -> Facts) -> Facts {
    let node = graph.node(id);
    let kind = Kind::of(&node.data_type);
    match &node.op {
        Op::Column(index) => column(*index),
        Op::Literal(value) => Facts::constant(value, &node.data_type),
        Op::Arithmetic(op, left, right) => {
            let (l, r) = (facts(graph, *left, column), facts(graph, *right, column));
            let types = (&graph.node(*left).data_type, &graph.node(*right).data_type);
            let numbers = |f: &Facts, t| f.numbers(Kind::of(t));
            let result = numbers(&l, types.0)
                .zip(numbers(&r, types.1))
                .and_then(|(l, r)| {
                    let (left_factor, right_factor) = decimal_factors(*op, types.0, types.1)?;
                    let scale = |range: (i128, i128), f: i128| {
                        Some((range.0.checked_mul(f)?, range.1.checked_mul(f)?))
                    };
                    interval(*op, scale(l, left_factor)?, scale(r, right_factor)?)
                });
            with_interval(&[l, r], result, kind)
        }
        Op::Cast(operand) => {
            let from = &graph.node(*operand).data_type;
            let inner = facts(graph, *operand, column);
            let result = inner.numbers(Kind::of(from)).and_then(|(min, max)| {
                let factor = cast_factor(from, &node.data_type)?;
                Some((min.checked_mul(factor)?, max.checked_mul(factor)?))
            });
            with_interval(&[inner], result, kind)
        }
        Op::DatePart(part, operand) => {
            let inner = facts(graph, *operand, column);
            let days = inner
                .numbers(Kind::of(&graph.node(*operand).data_type))
                .filter(|(min, max)| CALENDAR_DAYS.contains(min) && CALENDAR_DAYS.contains(max));
            let result = match (part, days) {
                (DatePart::Year, Some((min, max))) => Some((
                    civil_from_days(min as i64).0.into(),
                    civil_from_days(max as i64).0.into(),
                )),
                (DatePart::Month, Some(_)) => Some((1, 12)),
                (DatePart::Day, Some(_)) => Some((1, 31)),
                (_, None) => None,
            };
            with_interval(&[inner], result, kind)
        }
        Op::Case(branches, otherwise) => {
            let mut all: Option<Facts> = None;
            for (condition, value) in branches {
                let condition = truth(graph, *condition, column);
                if condition.can_be_true {
                    all = Some(either(all, facts(graph, *value, column)));
                }
                if condition.verdict() == Verdict::Keep {
                    return all.unwrap_or(Facts::UNKNOWN);
                }
            }
            let otherwise = match otherwise {
                Some(value) => facts(graph, *value, column),
                None => Facts {
                    values: Span::Nothing,
                    may_be_null: true,
                },
            };
            either(all, otherwise)
        }
        Op::Compare(..)
        | Op::And(_)
        | Op::Or(_)
        | Op::Not(_)
        | Op::IsNull(_)
        | Op::InList(..)
        | Op::Text(..) => truth(graph, id, column).facts(),
        Op::Substring(..) | Op::Distance(..) | Op::Kernel(..) => Facts::UNKNOWN,
        Op::Position(operand, _) => {
            let inner = facts(graph, *operand, column);
            with_interval(&[inner], Some((0, i32::MAX.into())), kind)
        }
    }
}

fn either(left: Option<Facts>, right: Facts) -> Facts {
    let Some(left) = left else { return right };
    let values = match (left.values, right.values) {
        (Span::Nothing, other) | (other, Span::Nothing) => other,
        (
            Span::Keys {
                min: a,
                max: b,
                exact: e,
            },
            Span::Keys {
                min: c,
                max: d,
                exact: f,
            },
        ) => Span::Keys {
            min: a.min(c),
            max: b.max(d),
            exact: e && f,
        },
        _ => Span::Anything,
    };
    Facts {
        values,
        may_be_null: left.may_be_null || right.may_be_null,
    }
}

fn interval(op: ArithmeticOp, l: (i128, i128), r: (i128, i128)) -> Option<(i128, i128)> {
    Some(match op {
        ArithmeticOp::Add => (l.0.checked_add(r.0)?, l.1.checked_add(r.1)?),
        ArithmeticOp::Subtract => (l.0.checked_sub(r.1)?, l.1.checked_sub(r.0)?),
        ArithmeticOp::Multiply => {
            let corners = [
                l.0.checked_mul(r.0)?,
                l.0.checked_mul(r.1)?,
                l.1.checked_mul(r.0)?,
                l.1.checked_mul(r.1)?,
            ];
            (*corners.iter().min()?, *corners.iter().max()?)
        }
    })
}

/// A computed number: its interval if that is known and lies within what keys tell apart.
fn with_interval(operands: &[Facts], result: Option<(i128, i128)>, kind: Kind) -> Facts {
    let may_be_null = operands.iter().any(|f| f.may_be_null);
    if operands.iter().any(|f| f.values == Span::Nothing) {
        return Facts {
            values: Span::Nothing,
            may_be_null: true,
        };
    }
    match (result, kind.limits()) {
        (Some((min, max)), Some((least, greatest)))
            if least <= min
                && max <= greatest
                && min > i64::MIN.into()
                && max < i64::MAX.into() =>
        {
            Facts {
                values: Span::Keys {
                    min,
                    max,
                    exact: true,
                },
                may_be_null,
            }
        }
        // What the operands' types make NULL beyond their own NULLs (days beyond the calendar)
        // has no known interval either.
        _ => Facts::UNKNOWN,
    }
}

fn compare(op: CompareOp, left: Facts, right: Facts, kind: Kind) -> Truth {
    let can_be_null = left.may_be_null || right.may_be_null;
    if left.values == Span::Nothing || right.values == Span::Nothing {
        return Truth {
            can_be_true: false,
            can_be_false: false,
            can_be_null: true,
        };
    }
    let (
        Span::Keys {
            min: a_min,
            max: a_max,
            exact: a_exact,
        },
        Span::Keys {
            min: b_min,
            max: b_max,
            exact: b_exact,
        },
    ) = (left.values, right.values)
    else {
        return Truth {
            can_be_null,
            ..Truth::UNKNOWN
        };
    };
    let [a_min, a_max, b_min, b_max] = [a_min, a_max, b_min, b_max].map(|key| fold_zero(key, kind));
    let inexact = !(a_exact && b_exact);
    let before = |a: i128, b: i128| a < b || (inexact && a == b);
    let (can_be_true, can_be_false) = match op {
        CompareOp::Eq | CompareOp::NotEq => {
            let equal = a_min <= b_max && b_min <= a_max;
            let different = inexact || !(a_min == a_max && b_min == b_max && a_min == b_min);
            if op == CompareOp::Eq {
                (equal, different)
            } else {
                (different, equal)
            }
        }
        CompareOp::Lt => (before(a_min, b_max), a_max >= b_min),
        CompareOp::GtEq => (a_max >= b_min, before(a_min, b_max)),
        CompareOp::LtEq => (a_min <= b_max, before(b_min, a_max)),
        CompareOp::Gt => (before(b_min, a_max), a_min <= b_max),
    };
    Truth {
        can_be_true,
        can_be_false,
        can_be_null,
    }
}

/// Comparison has −0.0 equal to 0.0, whose keys are neighbours.
pub(super) fn fold_zero(key: i128, kind: Kind) -> i128 {
    if matches!(kind, Kind::Float { .. }) && key == -1 {
        0
    } else {
        key
    }
}

fn in_list(operand: Facts, set: &ListSet) -> Truth {
    let can_be_null = operand.may_be_null || set.has_null;
    match (operand.values, &set.keys) {
        (Span::Nothing, _) => Truth {
            can_be_true: false,
            can_be_false: false,
            can_be_null: true,
        },
        (Span::Keys { min, max, exact }, Some(keys)) => {
            let next = keys.partition_point(|k| i128::from(*k) < min);
            let found = keys.get(next).is_some_and(|k| i128::from(*k) <= max);
            let surely = found && min == max && exact && set.exact_keys;
            Truth {
                can_be_true: found,
                can_be_false: !surely && !set.has_null,
                can_be_null: operand.may_be_null || (set.has_null && !surely),
            }
        }
        _ => Truth {
            can_be_null,
            ..Truth::UNKNOWN
        },
    }
}

fn text(operand: Facts, test: &TextTest) -> Truth {
    let can_be_null = operand.may_be_null;
    match (operand.values, test.prefix()) {
        (Span::Nothing, _) => Truth {
            can_be_true: false,
            can_be_false: false,
            can_be_null: true,
        },
        (Span::Keys { min, max, .. }, Some((prefix, all_it_takes))) => {
            let (first, last) = prefix_keys(prefix);
            let inside = first <= min && max <= last;
            Truth {
                can_be_true: min <= last && first <= max,
                // A key shows 8 bytes, so it shows a longer prefix in part only. Padding looks
                // like the byte 0, which a prefix may hold.
                can_be_false: !(all_it_takes
                    && inside
                    && prefix.len() <= 8
                    && !prefix.contains(&0)),
                can_be_null,
            }
        }
        _ => Truth {
            can_be_null,
            ..Truth::UNKNOWN
        },
    }
}

/// Least and greatest key of the texts that start with `prefix`.
fn prefix_keys(prefix: &[u8]) -> (i128, i128) {
    let key = |fill: u8| {
        let mut bytes = [fill; 8];
        let shown = prefix.len().min(8);
        bytes[..shown].copy_from_slice(&prefix[..shown]);
        i128::from(u64::from_be_bytes(bytes) as i64 ^ i64::MIN)
    };
    (key(0), key(0xFF))
}

/// What a runtime filter says about a column with these facts.
pub(super) fn runtime_verdict(
    filter: &RuntimeFilter,
    facts: Facts,
    data_type: &arrow::datatypes::DataType,
) -> Verdict {
    let passes = match (&filter.predicate, facts.values) {
        (_, Span::Nothing) => Verdict::Drop,
        (_, Span::Anything) => Verdict::Look,
        (RuntimePredicate::Range { min, max }, values) => {
            let column = Facts {
                values,
                may_be_null: false,
            };
            let side = |bound: &Option<Scalar>, op| match bound {
                None => Verdict::Keep,
                Some(bound) => compare(
                    op,
                    column,
                    Facts::constant(bound, data_type),
                    Kind::of(data_type),
                )
                .verdict(),
            };
            match (side(min, CompareOp::GtEq), side(max, CompareOp::LtEq)) {
                (Verdict::Drop, _) | (_, Verdict::Drop) => Verdict::Drop,
                (Verdict::Keep, Verdict::Keep) => Verdict::Keep,
                _ => Verdict::Look,
            }
        }
        (RuntimePredicate::Set(_), Span::Keys { .. }) => Verdict::Look,
        (RuntimePredicate::Bitmap { base, bits }, Span::Keys { min, max, .. }) => {
            let first = (min - i128::from(*base)).max(0);
            let last = (max - i128::from(*base)).min(bits.len() as i128 * 64 - 1);
            let any = first <= last && any_bit(bits, first as usize, last as usize);
            if any { Verdict::Look } else { Verdict::Drop }
        }
    };
    match (passes, facts.may_be_null, filter.keep_nulls) {
        (passes, false, _) => passes,
        // NULLs pass: nothing can be dropped. They do not: nothing can be kept unseen.
        (Verdict::Keep, true, true) => Verdict::Keep,
        (Verdict::Drop, true, false) => Verdict::Drop,
        _ => Verdict::Look,
    }
}

fn any_bit(bits: &[u64], first: usize, last: usize) -> bool {
    let (first_word, last_word) = (first / 64, last / 64);
    (first_word..=last_word).any(|index| {
        let mut word = bits[index];
        if index == first_word {
            word &= u64::MAX << (first % 64);
        }
        if index == last_word {
            word &= u64::MAX >> (63 - last % 64);
        }
        word != 0
    })
}
