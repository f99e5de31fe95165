//! Group keys of a segment as one small number.
//!
//! Each key has a few possible values in the segment: the entries of a dictionary or the numbers
//! of a range, and NULL. Their numbers are the digits of a number in a mixed radix, and that is
//! the row's group.

use multiversion::multiversion;

use super::table::{GroupTable, KeyWords};
use crate::Result;
use crate::accelerator::cpu::bitmap::Bitmap;
use crate::accelerator::cpu::columns::Rows;
use crate::accelerator::cpu::eval::Leaves;
use crate::accelerator::cpu::eval::graph::NodeId;
use crate::accelerator::cpu::eval::vector::{Kind, Operand, Values};
use crate::accelerator::cpu::work::Work;

/// Groups that arrays are laid out for at most.
const MAX_GROUPS: usize = 1 << 17;
/// Groups that are worth their arrays for whatever number of rows.
const CHEAP_GROUPS: usize = 256;

/// The keys of a segment.
#[derive(Debug)]
pub(super) struct DenseKeys {
    keys: Vec<DenseKey>,
    groups: usize,
}

#[derive(Debug)]
struct DenseKey {
    node: NodeId,
    digits: Digits,
    /// Possible values, NULL included.
    count: usize,
    /// What the digit counts in the group's number.
    weight: usize,
}

/// How a key's digit is found, and what it stands for.
#[derive(Debug)]
enum Digits {
    /// By dictionary code; the words of each digit. `None`: the digit is the code, up to the last
    /// digit.
    Codes {
        column: usize,
        digit_of_code: Option<Vec<u32>>,
        words: KeyWords,
    },
    /// The number less `min`; NULL is the last digit if there is one.
    Range { min: i64, has_null: bool },
}

impl DenseKeys {
    /// The keys as digits, if there are few enough groups.
    pub fn plan(
        nodes: &[NodeId],
        table: &mut GroupTable,
        work: &mut Work<'_>,
    ) -> Result<Option<Self>> {
        let most = MAX_GROUPS.min(work.selected * 2).max(CHEAP_GROUPS);
        let mut keys = Vec::with_capacity(nodes.len());
        let mut groups = 1usize;
        // Ranges first: they cost nothing to look at.
        for &node in nodes {
            let bound = work.evaluator.bound(node);
            let data_type = &work.evaluator.graph().node(node).data_type;
            let is_number = matches!(Kind::of(data_type), Kind::Integer { .. } | Kind::Decimal);
            let span = bound
                .range
                .1
                .checked_sub(bound.range.0)
                .filter(|_| is_number && !bound.wide);
            let range = span.filter(|span| *span < most as i128).map(|span| {
                let has_null = bound.may_be_null;
                let digits = Digits::Range {
                    min: bound.range.0 as i64,
                    has_null,
                };
                (digits, span as usize + 1 + usize::from(has_null))
            });
            keys.push(range.map(|(digits, count)| DenseKey {
                node,
                digits,
                count,
                weight: 0,
            }));
        }
        for (number, (&node, key)) in nodes.iter().zip(&mut keys).enumerate() {
            // Codes are cheaper than numbers, and there may be fewer of them.
            let coded = coded_key(number, node, table, work)?;
            *key = match (coded, key.take()) {
                (Some(coded), Some(range)) if range.count <= coded.count => Some(range),
                (Some(coded), _) => Some(coded),
                (None, range) => range,
            };
            let Some(key) = key else { return Ok(None) };
            key.weight = groups;
            groups = match groups.checked_mul(key.count) {
                Some(groups) if groups <= most => groups,
                _ => return Ok(None),
            };
        }
        Ok(Some(Self {
            keys: keys.into_iter().flatten().collect(),
            groups,
        }))
    }

    /// Number of possible groups.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// The group of each row of a block.
    pub fn ids(&mut self, work: &mut Work<'_>, rows: &Rows<'_>, ids: &mut Vec<u32>) -> Result<()> {
        ids.clear();
        ids.resize(rows.len(), 0);
        for key in &self.keys {
            let weight = key.weight as u32;
            match &key.digits {
                Digits::Codes {
                    column,
                    digit_of_code,
                    ..
                } => {
                    let mut block = work.columns.block(rows.clone(), work.reader);
                    let codes = block.codes(*column)?.unwrap_or_default();
                    match digit_of_code {
                        None => add_codes(ids, codes, key.count as u32 - 1, weight),
                        Some(digits) => {
                            for (id, code) in ids.iter_mut().zip(codes) {
                                *id += digits[*code as usize] * weight;
                            }
                        }
                    }
                }
                Digits::Range { min, has_null } => {
                    work.evaluator
                        .eval(key.node, &mut work.columns.block(rows.clone(), work.reader))?;
                    let vector = work.evaluator.vector(key.node);
                    let null_digit = key.count as u32 - 1;
                    // A zone map that lies must not lead outside of the arrays.
                    let digit = |value: i64| {
                        (value.wrapping_sub(*min) as u64).min(null_digit.into()) as u32
                    };
                    let validity = vector.validity.as_ref().filter(|_| *has_null);
                    match (vector.as_i64(), validity) {
                        (Operand::Each(values), None) => {
                            add_numbers(ids, values, *min, null_digit, weight);
                        }
                        (operand, _) => {
                            for (row, id) in ids.iter_mut().enumerate() {
                                let digit = if vector.is_valid(row) {
                                    digit(operand.get(row))
                                } else {
                                    null_digit
                                };
                                *id += digit * weight;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The keys' words of these groups.
    pub fn words_of(&self, groups: &[u32]) -> Vec<KeyWords> {
        let words = self.keys.iter().map(|key| {
            let digits: Vec<u32> = groups
                .iter()
                .map(|g| (*g as usize / key.weight % key.count) as u32)
                .collect();
            match &key.digits {
                Digits::Codes { words, .. } => words.gather(&digits),
                Digits::Range { min, has_null } => {
                    let is_null = |digit: u32| *has_null && digit as usize == key.count - 1;
                    let number = |digit: &u32| {
                        if is_null(*digit) {
                            0
                        } else {
                            min.wrapping_add((*digit).into())
                        }
                    };
                    KeyWords {
                        low: digits.iter().map(|d| number(d) as u64).collect(),
                        high: digits.iter().map(|d| (number(d) >> 63) as u64).collect(),
                        nulls: has_null
                            .then(|| Bitmap::from_fn(digits.len(), |i| is_null(digits[i]))),
                    }
                }
            }
        });
        words.collect()
    }
}

/// `ids[i] += codes[i] * weight`; codes above `last` count as it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add_codes(ids: &mut [u32], codes: &[u32], last: u32, weight: u32) {
    for (id, code) in ids.iter_mut().zip(codes) {
        *id += *code.min(&last) * weight;
    }
}

/// `ids[i] += (values[i] - min) * weight`; digits above `last` count as it.
#[multiversion(targets(
    "x86_64+avx512f+avx512bw+avx512vl+avx512dq+avx512vbmi",
    "x86_64+avx2+bmi1+bmi2+popcnt+lzcnt+fma",
    "aarch64+neon"
))]
fn add_numbers(ids: &mut [u32], values: &[i64], min: i64, last: u32, weight: u32) {
    for (id, value) in ids.iter_mut().zip(values) {
        *id += (value.wrapping_sub(min) as u64).min(last.into()) as u32 * weight;
    }
}

/// A key that depends on one column only, whose chunk has a dictionary: a digit for each
/// different value over its entries.
fn coded_key(
    number: usize,
    node: NodeId,
    table: &mut GroupTable,
    work: &mut Work<'_>,
) -> Result<Option<DenseKey>> {
    let graph = std::sync::Arc::clone(work.evaluator.graph());
    let [column] = graph.node(node).columns[..] else {
        return Ok(None);
    };
    work.begin_block();
    let wide = work.evaluator.bound(node).wide;
    let mut block = work.columns.block(Rows::Range(0..0), work.reader);
    let entries = if graph.column(node).is_some() {
        block.dictionary(column, wide)?
    } else {
        work.evaluator
            .over_dictionary(node, column, &mut block)?
            .cloned()
    };
    let Some(entries) = entries else {
        return Ok(None);
    };
    let Some(codes) = block.dictionary_len(column)?.map(|len| len + 1) else {
        return Ok(None);
    };
    if matches!(entries.values, Values::Array(_)) {
        return Ok(None);
    }
    let words = table.key_words(number, &entries, codes);
    let mut digits: hashbrown::HashMap<(u64, u64, bool), u32> = hashbrown::HashMap::new();
    let mut first_code = Vec::new();
    // NULL is the last code; a column that has none has no use for a digit for it.
    let used = codes - usize::from(!work.columns.facts(column).may_be_null);
    let mut digit_of_code = vec![0; codes];
    for (code, digit) in digit_of_code[..used].iter_mut().enumerate() {
        let value = (
            words.low[code],
            words.high.get(code).copied().unwrap_or(0),
            words.nulls.as_ref().is_some_and(|n| n.get(code)),
        );
        *digit = *digits.entry(value).or_insert_with(|| {
            first_code.push(code as u32);
            first_code.len() as u32 - 1
        });
    }
    let words = words.gather(&first_code);
    let count = first_code.len();
    let digits_are_codes = count == used;
    Ok(Some(DenseKey {
        node,
        digits: Digits::Codes {
            column,
            digit_of_code: (!digits_are_codes).then_some(digit_of_code),
            words,
        },
        count,
        weight: 0,
    }))
}
