//! The keys of rows, as a filter for rows that may meet them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::{cast, max, min};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use flashmesh_pushdown::{RuntimeFilter, RuntimePredicate, Scalar};
use parking_lot::Mutex;

/// Integers between the least and the greatest of the probe side's column, for each of which there is a
/// bit, at most: 8 MiB.
const SPAN_MAX: u64 = 1 << 26;
/// Other keys that are noted one by one.
const LISTED_KEYS: usize = 2048;

/// Whether keys of this type are noted.
pub(super) fn is_collected(data_type: &DataType) -> bool {
    is_integer(data_type)
        || matches!(
            data_type,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
        )
}

/// Types whose values are the integers that they are cast to.
fn is_integer(data_type: &DataType) -> bool {
    data_type.is_integer() || matches!(data_type, DataType::Date32 | DataType::Timestamp(..))
}

/// The values of one key in the rows that a task of a join has seen.
#[derive(Debug)]
pub(super) struct Collected {
    values: Values,
    has_nulls: AtomicBool,
}

#[derive(Debug)]
enum Values {
    /// Integers near each other, one bit each.
    Bits {
        base: i64,
        bits: Vec<AtomicU64>,
    },
    Few(Mutex<Few>),
}

#[derive(Debug)]
enum Few {
    Integers(BTreeSet<i64>),
    Texts(BTreeSet<String>),
    /// More integers than are listed.
    Range {
        least: i64,
        greatest: i64,
    },
    /// More than are listed, without bounds that would say anything.
    Any,
}

impl Collected {
    /// `span`: between which integers the probe side's values are; others meet nothing.
    pub fn new(data_type: &DataType, span: Option<(i64, i64)>) -> Self {
        let bits = span.and_then(|(least, greatest)| {
            let values = greatest.checked_sub(least)?.checked_add(1)?;
            let values = u64::try_from(values).ok().filter(|n| *n <= SPAN_MAX)?;
            let words = (0..values.div_ceil(64)).map(|_| AtomicU64::new(0));
            Some(Values::Bits {
                base: least,
                bits: words.collect(),
            })
        });
        let few = || {
            Values::Few(Mutex::new(match data_type {
                data_type if is_integer(data_type) => Few::Integers(BTreeSet::new()),
                data_type if is_collected(data_type) => Few::Texts(BTreeSet::new()),
                _ => Few::Any,
            }))
        };
        Self {
            values: bits.filter(|_| is_integer(data_type)).unwrap_or_else(few),
            has_nulls: AtomicBool::new(false),
        }
    }

    /// Notes the keys of some rows.
    pub fn add(&self, keys: &ArrayRef) -> Result<()> {
        if keys.null_count() > 0 {
            self.has_nulls.store(true, Ordering::Relaxed);
        }
        match &self.values {
            Values::Bits { base, bits } => {
                let keys = integers(keys)?;
                for key in keys.iter().flatten() {
                    let bit = key.checked_sub(*base).map(usize::try_from);
                    let Some(Ok(bit)) = bit else { continue };
                    let (place, mask) = (bit / 64, 1 << (bit % 64));
                    // Most of a join's keys come again and again.
                    if let Some(word) = bits.get(place)
                        && word.load(Ordering::Relaxed) & mask == 0
                    {
                        word.fetch_or(mask, Ordering::Relaxed);
                    }
                }
            }
            Values::Few(few) => few.lock().add(keys)?,
        }
        Ok(())
    }

    /// What a value of the column has to be to meet any of the rows; `None` where that is not known.
    pub fn filter(&self, column: u32) -> Option<RuntimeFilter> {
        let predicate = match &self.values {
            Values::Bits { base, bits } => RuntimePredicate::Bitmap {
                base: *base,
                bits: bits
                    .iter()
                    .map(|bits| bits.load(Ordering::Relaxed))
                    .collect(),
            },
            Values::Few(few) => few.lock().predicate()?,
        };
        Some(RuntimeFilter {
            column,
            predicate,
            keep_nulls: self.has_nulls.load(Ordering::Relaxed),
        })
    }
}

impl Few {
    fn add(&mut self, keys: &ArrayRef) -> Result<()> {
        match self {
            Few::Integers(known) => {
                let keys = integers(keys)?;
                known.extend(keys.iter().flatten());
                if known.len() > LISTED_KEYS
                    && let (Some(least), Some(greatest)) = (known.first(), known.last())
                {
                    *self = Few::Range {
                        least: *least,
                        greatest: *greatest,
                    };
                }
            }
            Few::Range { least, greatest } => {
                let keys = integers(keys)?;
                *least = min(&keys).map_or(*least, |key| key.min(*least));
                *greatest = max(&keys).map_or(*greatest, |key| key.max(*greatest));
            }
            Few::Texts(known) => {
                let mut note = |key: Option<&str>| {
                    if let Some(key) = key
                        && known.len() <= LISTED_KEYS
                        && !known.contains(key)
                    {
                        known.insert(key.to_owned());
                    }
                };
                match keys.data_type() {
                    DataType::Utf8 => keys.as_string::<i32>().iter().for_each(&mut note),
                    DataType::LargeUtf8 => keys.as_string::<i64>().iter().for_each(&mut note),
                    _ => keys.as_string_view().iter().for_each(&mut note),
                }
                if known.len() > LISTED_KEYS {
                    *self = Few::Any;
                }
            }
            Few::Any => {}
        }
        Ok(())
    }

    fn predicate(&self) -> Option<RuntimePredicate> {
        let integer = |value: &i64| Scalar::Int((*value).into());
        Some(match self {
            Few::Integers(keys) => RuntimePredicate::Set(keys.iter().map(integer).collect()),
            Few::Texts(keys) => {
                let text = |key: &String| Scalar::Bytes(key.clone().into_bytes());
                RuntimePredicate::Set(keys.iter().map(text).collect())
            }
            Few::Range { least, greatest } => RuntimePredicate::Range {
                min: Some(integer(least)),
                max: Some(integer(greatest)),
            },
            Few::Any => return None,
        })
    }
}

/// Those that are no 64-bit integers are NULL: no column has them between its bounds.
fn integers(keys: &ArrayRef) -> Result<Int64Array> {
    let keys = match keys.data_type() {
        DataType::Date32 => &cast(keys, &DataType::Int32)?,
        _ => keys,
    };
    let keys = cast(keys, &DataType::Int64)?;
    Ok(keys.as_primitive::<Int64Type>().clone())
}

/// What passes `one` or `other`, which are of the same column; `None` where that may be anything.
pub(super) fn union(one: RuntimeFilter, other: RuntimeFilter) -> Option<RuntimeFilter> {
    let keep_nulls = one.keep_nulls || other.keep_nulls;
    let column = one.column;
    let predicate = match (one.predicate, other.predicate) {
        (
            RuntimePredicate::Bitmap { base, bits },
            RuntimePredicate::Bitmap {
                base: others_base,
                bits: others,
            },
        ) if base == others_base && bits.len() == others.len() => {
            let both = bits.iter().zip(&*others).map(|(one, other)| one | other);
            RuntimePredicate::Bitmap {
                base,
                bits: both.collect(),
            }
        }
        (RuntimePredicate::Set(mut one), RuntimePredicate::Set(other)) => {
            one.extend(other);
            RuntimePredicate::Set(one)
        }
        (one, other) => {
            let (one, other) = (bounds(one)?, bounds(other)?);
            match (one, other) {
                (Some(one), Some(other)) => RuntimePredicate::Range {
                    min: Some(Scalar::Int(one.0.min(other.0))),
                    max: Some(Scalar::Int(one.1.max(other.1))),
                },
                (Some((least, greatest)), None) | (None, Some((least, greatest))) => {
                    RuntimePredicate::Range {
                        min: Some(Scalar::Int(least)),
                        max: Some(Scalar::Int(greatest)),
                    }
                }
                (None, None) => RuntimePredicate::Set(Vec::new()),
            }
        }
    };
    Some(RuntimeFilter {
        column,
        predicate,
        keep_nulls,
    })
}

/// The least and the greatest integer that passes, if any does; `None` where that is not known.
fn bounds(predicate: RuntimePredicate) -> Option<Option<(i128, i128)>> {
    let integer = |value: Scalar| match value {
        Scalar::Int(value) => Some(value),
        _ => None,
    };
    match predicate {
        RuntimePredicate::Range { min, max } => Some(Some((integer(min?)?, integer(max?)?))),
        RuntimePredicate::Set(values) => {
            let values: Option<Vec<_>> = values.into_iter().map(integer).collect();
            let values = values?;
            Some(
                values
                    .iter()
                    .min()
                    .copied()
                    .zip(values.iter().max().copied()),
            )
        }
        RuntimePredicate::Bitmap { .. } => None,
    }
}
