//! Partial aggregates, group by group.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use arrow::array::ArrayRef;

use super::eval::{Row, evaluate, wrap};
use crate::scalar::fold_zero;
use crate::{Aggregate, AggregateFunction, Expr, InputColumn, ProgramError, Scalar};

/// All groups so far.
pub(super) struct Groups<'a> {
    keys: &'a [Expr],
    aggregates: &'a [Aggregate],
    /// Where in `groups` the group of these keys is.
    positions: BTreeMap<Key, usize>,
    /// In the order in which they came: the keys, then the aggregates' states.
    groups: Vec<(Vec<Scalar>, Vec<Scalar>)>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(keys: &'a [Expr], aggregates: &'a [Aggregate]) -> Self {
        let mut groups = Self {
            keys,
            aggregates,
            positions: BTreeMap::new(),
            groups: Vec::new(),
        };
        if keys.is_empty() {
            groups.position(Vec::new());
        }
        groups
    }

    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Where the group is; a new one begins with counts of 0 and NULL for all else.
    fn position(&mut self, key: Vec<Scalar>) -> usize {
        let groups = &mut self.groups;
        *self.positions.entry(Key(key.clone())).or_insert_with(|| {
            let states = self
                .aggregates
                .iter()
                .map(|aggregate| match aggregate.function {
                    AggregateFunction::Count => Scalar::Int(0),
                    _ => Scalar::Null,
                });
            groups.push((key, states.collect()));
            groups.len() - 1
        })
    }

    /// Adds a row that survived the Program's filter.
    pub(super) fn add(&mut self, row: Row<'_>) -> Result<(), ProgramError> {
        let mut key = Vec::with_capacity(self.keys.len());
        for expr in self.keys {
            key.push(match evaluate(expr, row)? {
                // -0.0 and 0.0 are equal, so they are one group.
                Scalar::Float(value) => Scalar::Float(fold_zero(value)),
                value => value,
            });
        }
        let position = self.position(key);
        let (_, states) = &mut self.groups[position];
        for (aggregate, state) in self.aggregates.iter().zip(states) {
            if let Some(filter) = &aggregate.filter
                && evaluate(filter, row)? != Scalar::Boolean(true)
            {
                continue;
            }
            match &aggregate.argument {
                Some(argument) if row.is_null(argument)? => {}
                Some(_) | None if aggregate.function == AggregateFunction::Count => {
                    *state = add(state, &Scalar::Int(1), aggregate);
                }
                Some(argument) => *state = step(state, evaluate(argument, row)?, aggregate),
                None => {}
            }
        }
        Ok(())
    }

    /// The output columns: keys, then aggregates.
    pub(super) fn finish(self, columns: &[InputColumn]) -> Result<Vec<ArrayRef>, ProgramError> {
        let Self {
            keys,
            aggregates,
            groups,
            ..
        } = self;
        let mut arrays = Vec::with_capacity(keys.len() + aggregates.len());
        for (i, key) in keys.iter().enumerate() {
            let values: Vec<Scalar> = groups.iter().map(|(keys, _)| keys[i].clone()).collect();
            arrays.push(Scalar::build_array(&values, &key.data_type(columns))?);
        }
        for (i, aggregate) in aggregates.iter().enumerate() {
            let values: Vec<Scalar> = groups.iter().map(|(_, states)| states[i].clone()).collect();
            arrays.push(Scalar::build_array(&values, &aggregate.data_type)?);
        }
        Ok(arrays)
    }
}

/// The state after one more value, which is not NULL.
fn step(state: &Scalar, value: Scalar, aggregate: &Aggregate) -> Scalar {
    if state.is_null() {
        return match (aggregate.function, value) {
            // Narrow integers sum in the wider type; the value is the same.
            (AggregateFunction::Sum, Scalar::Int(value)) => {
                Scalar::Int(wrap(value, &aggregate.data_type))
            }
            (_, value) => value,
        };
    }
    match aggregate.function {
        AggregateFunction::Count | AggregateFunction::Sum => add(state, &value, aggregate),
        AggregateFunction::Min => pick(state, value, Ordering::Less),
        AggregateFunction::Max => pick(state, value, Ordering::Greater),
    }
}

/// Two partial results of one group as one.
#[cfg(feature = "testing")]
pub(crate) fn merge(state: &Scalar, part: Scalar, aggregate: &Aggregate) -> Scalar {
    if part.is_null() {
        state.clone()
    } else {
        step(state, part, aggregate)
    }
}

/// The sum, wrapped at the width of the result's type (at 128 bits for decimals).
fn add(left: &Scalar, right: &Scalar, aggregate: &Aggregate) -> Scalar {
    match (left, right) {
        (Scalar::Int(left), Scalar::Int(right)) => {
            Scalar::Int(wrap(left.wrapping_add(*right), &aggregate.data_type))
        }
        (Scalar::Float(left), Scalar::Float(right)) => Scalar::Float(left + right),
        _ => Scalar::Null,
    }
}

/// The new value if it is before (`Less`) or after (`Greater`) the state.
fn pick(state: &Scalar, value: Scalar, wanted: Ordering) -> Scalar {
    if value.total_order(state) == Some(wanted) {
        value
    } else {
        state.clone()
    }
}

/// Group keys, NULL before all values.
struct Key(Vec<Scalar>);

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_value = |(left, right): (&Scalar, &Scalar)| match (left.is_null(), right.is_null()) {
            (false, false) => left.total_order(right).unwrap_or(Ordering::Equal),
            (left_null, right_null) => right_null.cmp(&left_null),
        };
        let pairs = self.0.iter().zip(&other.0);
        pairs
            .map(by_value)
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}
