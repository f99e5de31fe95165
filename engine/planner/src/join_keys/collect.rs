//! The keys of rows, as a filter for rows that may meet them.

use std::collections::BTreeSet;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::Result;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool, MemoryReservation};
use datafusion::physical_expr::PhysicalExpr;
use flashmesh_pushdown::{RuntimeFilter, RuntimePredicate, Scalar};
use parking_lot::Mutex;

/// Integers between the least and the greatest of the probe side's column, for each of which there is a
/// bit, at most: 8 MiB.
const SPAN_MAX: u64 = 1 << 26;
/// So many for each row that is dropped by them, at most: a byte for eight.
const SPAN_FOR_ROW: u64 = 64;
/// Keys that are noted one by one.
const LISTED_KEYS: usize = 2048;
/// Bytes of texts that are.
const LISTED_BYTES: usize = 1 << 20;

/// Whether something is expected to be told of keys of this type, of `rows` of the build side, to a side of
/// `probed` rows, whose integers are all within `span`.
pub fn says_something(
    data_type: &DataType,
    span: Option<(i64, i64)>,
    rows: Option<usize>,
    probed: u64,
) -> bool {
    let are_few = rows.is_some_and(|rows| rows <= LISTED_KEYS);
    let near =
        || values_in(span).is_some_and(|values| values <= SPAN_FOR_ROW.saturating_mul(probed));
    match is_integer(data_type) {
        true => are_few || near(),
        false => are_few && is_text(data_type),
    }
}

/// Types whose values are the 64-bit integers that they are cast to.
fn is_integer(data_type: &DataType) -> bool {
    match data_type {
        DataType::UInt64 => false,
        DataType::Date32 | DataType::Timestamp(..) => true,
        data_type => data_type.is_integer(),
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// How many integers there are, where each may have a bit.
fn values_in(span: Option<(i64, i64)>) -> Option<u64> {
    let (least, greatest) = span?;
    let values = u64::try_from(greatest.checked_sub(least)?).ok()? + 1;
    (values <= SPAN_MAX).then_some(values)
}

/// A key of a join.
#[derive(Debug, Clone)]
pub struct JoinKey {
    /// What it is of a row of the build side.
    pub expr: Arc<dyn PhysicalExpr>,
    /// Its type.
    pub data_type: DataType,
    /// Between which integers those of the probe side are, where that is known.
    pub span: Option<(i64, i64)>,
}

/// The values of one key in the rows that a task of a join has seen.
#[derive(Debug)]
pub(super) struct Collected {
    /// Between which integers the probe side's values are; others meet nothing.
    span: Option<(i64, i64)>,
    memory: Mutex<MemoryReservation>,
    few: Mutex<Few>,
    /// When they are more than that.
    bits: OnceLock<Bits>,
    has_nulls: AtomicBool,
}

/// Integers near each other, one bit each.
#[derive(Debug)]
struct Bits {
    base: i64,
    words: Vec<AtomicU64>,
}

impl Bits {
    fn new(base: i64, values: u64) -> Self {
        let words = (0..values.div_ceil(64)).map(|_| AtomicU64::new(0));
        Self {
            base,
            words: words.collect(),
        }
    }

    fn add(&self, key: i64) {
        let bit = key.checked_sub(self.base).map(usize::try_from);
        let Some(Ok(bit)) = bit else { return };
        let (place, mask) = (bit / 64, 1 << (bit % 64));
        // Most of a join's keys come again and again.
        if let Some(word) = self.words.get(place)
            && word.load(Ordering::Relaxed) & mask == 0
        {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }
}

#[derive(Debug)]
enum Few {
    Integers(BTreeSet<i64>),
    Texts(BTreeSet<String>, usize),
    /// More than are listed: in the bits, or nothing is said of them.
    More,
}

impl Collected {
    /// What it takes up is taken of `pool`; where that has no more, nothing is said of the keys.
    pub fn new(data_type: &DataType, span: Option<(i64, i64)>, pool: &Arc<dyn MemoryPool>) -> Self {
        let few = match data_type {
            data_type if is_integer(data_type) => Few::Integers(BTreeSet::new()),
            data_type if is_text(data_type) => Few::Texts(BTreeSet::new(), 0),
            _ => Few::More,
        };
        Self {
            span,
            memory: Mutex::new(MemoryConsumer::new("JoinKeysExec").register(pool)),
            few: Mutex::new(few),
            bits: OnceLock::new(),
            has_nulls: AtomicBool::new(false),
        }
    }

    /// Notes the keys of some rows.
    pub fn add(&self, keys: &ArrayRef) -> Result<()> {
        if keys.null_count() > 0 {
            self.has_nulls.store(true, Ordering::Relaxed);
        }
        if let Some(bits) = self.bits.get() {
            integers(keys)?
                .iter()
                .flatten()
                .for_each(|key| bits.add(key));
        } else if is_integer(keys.data_type()) {
            let keys: BTreeSet<i64> = integers(keys)?.iter().flatten().collect();
            self.add_integers(keys);
        } else if is_text(keys.data_type()) {
            self.add_texts(match keys.data_type() {
                DataType::Utf8 => keys.as_string::<i32>().iter().flatten().collect(),
                DataType::LargeUtf8 => keys.as_string::<i64>().iter().flatten().collect(),
                _ => keys.as_string_view().iter().flatten().collect(),
            });
        }
        Ok(())
    }

    fn add_integers(&self, mut keys: BTreeSet<i64>) {
        let mut few = self.few.lock();
        if let Few::Integers(known) = &mut *few {
            known.append(&mut keys);
            if known.len() <= LISTED_KEYS {
                return;
            }
            keys = mem::take(known);
            *few = Few::More;
            if let (Some((base, _)), Some(values)) = (self.span, values_in(self.span))
                && self.memory.lock().try_grow((values / 8) as usize).is_ok()
            {
                self.bits.get_or_init(|| Bits::new(base, values));
            }
        }
        if let Some(bits) = self.bits.get() {
            keys.into_iter().for_each(|key| bits.add(key));
        }
    }

    fn add_texts(&self, keys: BTreeSet<&str>) {
        let mut few = self.few.lock();
        let Few::Texts(known, bytes) = &mut *few else {
            return;
        };
        for key in keys {
            if !known.contains(key) {
                *bytes += key.len();
                if known.len() == LISTED_KEYS || *bytes > LISTED_BYTES {
                    *few = Few::More;
                    return;
                }
                known.insert(key.to_owned());
            }
        }
    }

    /// What a value of the column has to be to meet any of the rows; `None` where that is not known.
    pub fn filter(&self, column: u32) -> Option<RuntimeFilter> {
        let predicate = match (self.bits.get(), &*self.few.lock()) {
            (Some(Bits { base, words }), _) => RuntimePredicate::Bitmap {
                base: *base,
                bits: words
                    .iter()
                    .map(|word| word.load(Ordering::Relaxed))
                    .collect(),
            },
            (None, Few::Integers(keys)) => {
                let keys = keys.iter().map(|key| Scalar::Int((*key).into()));
                RuntimePredicate::Set(keys.collect())
            }
            (None, Few::Texts(keys, _)) => {
                let keys = keys
                    .iter()
                    .map(|key| Scalar::Bytes(key.clone().into_bytes()));
                RuntimePredicate::Set(keys.collect())
            }
            (None, Few::More) => return None,
        };
        Some(RuntimeFilter {
            column,
            predicate,
            keep_nulls: self.has_nulls.load(Ordering::Relaxed),
        })
    }
}

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
    let predicate = match (one.predicate, other.predicate) {
        (RuntimePredicate::Set(mut one), RuntimePredicate::Set(other)) => {
            one.extend(other);
            RuntimePredicate::Set(one)
        }
        (RuntimePredicate::Bitmap { base, mut bits }, other)
        | (other, RuntimePredicate::Bitmap { base, mut bits }) => {
            // Usually nobody else has it.
            if Arc::get_mut(&mut bits).is_none() {
                bits = bits.iter().copied().collect();
            }
            let words = Arc::get_mut(&mut bits)?;
            match other {
                RuntimePredicate::Bitmap {
                    base: others_base,
                    bits: others,
                } if base == others_base && words.len() == others.len() => {
                    let both = words.iter_mut().zip(&*others);
                    both.for_each(|(word, other)| *word |= other);
                }
                RuntimePredicate::Set(keys) => {
                    for key in keys {
                        let Scalar::Int(key) = key else { return None };
                        let bit = key.checked_sub(base.into()).map(usize::try_from);
                        // One outside of the bits is outside of the column.
                        if let Some(Ok(bit)) = bit
                            && let Some(word) = words.get_mut(bit / 64)
                        {
                            *word |= 1 << (bit % 64);
                        }
                    }
                }
                _ => return None,
            }
            RuntimePredicate::Bitmap { base, bits }
        }
        _ => return None,
    };
    Some(RuntimeFilter {
        column: one.column,
        predicate,
        keep_nulls: one.keep_nulls || other.keep_nulls,
    })
}
