//! Filters that arrive while a Program runs.

use std::cmp::Ordering;

use crate::Scalar;

/// A further conjunct on one column, learned while the query runs (from the build side of a
/// join, or from the rows that a top-k already holds). It only removes rows that cannot matter:
/// applying it late, partly or not at all leaves the query's answer unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct RuntimeFilter {
    /// Index into `Program::columns`.
    pub column: u32,
    /// Which values pass.
    pub predicate: RuntimePredicate,
    /// Whether NULL passes.
    pub keep_nulls: bool,
}

impl RuntimeFilter {
    /// Whether a value of the column passes. Values compare as [`CompareOp`](crate::CompareOp)
    /// says, also those of a set.
    pub fn passes(&self, value: &Scalar) -> bool {
        if value.is_null() {
            return self.keep_nulls;
        }
        match &self.predicate {
            RuntimePredicate::Range { min, max } => {
                min.as_ref()
                    .is_none_or(|min| min.compare(value).is_some_and(Ordering::is_le))
                    && max
                        .as_ref()
                        .is_none_or(|max| max.compare(value).is_some_and(Ordering::is_ge))
            }
            RuntimePredicate::Set(values) => values
                .iter()
                .any(|member| member.compare(value) == Some(Ordering::Equal)),
            RuntimePredicate::Bitmap { base, bits } => match value {
                Scalar::Int(value) => {
                    let bit = value.checked_sub((*base).into());
                    let bit = bit.and_then(|bit| usize::try_from(bit).ok());
                    bit.is_some_and(|bit| {
                        bits.get(bit / 64)
                            .is_some_and(|word| word >> (bit % 64) & 1 == 1)
                    })
                }
                _ => false,
            },
        }
    }
}

/// Which values of a column pass a [`RuntimeFilter`].
#[derive(Debug, Clone, PartialEq)]
pub enum RuntimePredicate {
    /// `min <= value <= max`; a missing bound is open.
    Range {
        /// Least value that passes.
        min: Option<Scalar>,
        /// Greatest value that passes.
        max: Option<Scalar>,
    },
    /// These values pass.
    Set(Vec<Scalar>),
    /// Integer `base + i` passes when bit `i` of `bits` is set (bit `i % 64` of word `i / 64`);
    /// values outside the map do not pass. Exact set membership for keys from a dense domain.
    Bitmap {
        /// Value of bit 0.
        base: i64,
        /// The bits.
        bits: std::sync::Arc<[u64]>,
    },
}
