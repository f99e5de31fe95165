//! What an n-gram index is asked for.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use flashmesh_pushdown::{CompareOp, Expr, Scalar};

use super::{GRAM_BYTES, SLOTS, VERSION, decode, for_each_gram};
use crate::{Result, StorageError, literals};

/// Grams of one literal that are looked up: more rule out hardly any more blocks.
const MAX_GRAMS: usize = 16;
/// Grams of all literals together; a query for more would read much of the index.
const MAX_ROWS: usize = 512;

/// What every row that passes a filter holds, as grams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramQuery {
    rows: Vec<u32>,
    condition: Condition,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    /// All grams of a literal, by slot.
    Grams(Vec<u32>),
    /// All of these.
    All(Vec<Condition>),
    /// At least one of these; none: no row passes.
    Any(Vec<Condition>),
}

impl NgramQuery {
    /// What the index on input column `column` can do for a condition: every row for which the
    /// condition is TRUE is on a page that [`Self::candidates`] gives. `None` where it can't help:
    /// nothing is looked for, or less than a gram.
    ///
    /// | condition | every row that passes holds |
    /// |---|---|
    /// | `column LIKE` | what stands between the wildcards |
    /// | `column ILIKE` | likewise, as far as it is ASCII and neither k nor s (K and ſ are cases of them) |
    /// | a regular expression | what `regex` can't match without |
    /// | `ContainsAny`, `IN`, `OR` | one of them, each being long enough |
    /// | `=` | the constant |
    /// | `strpos(column, …) > 0`, `<> 0`, `>= 1` | the needle |
    /// | `AND` | all of what the index can look for |
    pub fn for_expr(expr: &Expr, column: u32) -> Option<Self> {
        let condition = condition(expr, column)?;
        let mut rows = vec![SLOTS];
        condition.for_each_gram(&mut |slot| rows.push(slot));
        rows.sort_unstable();
        rows.dedup();
        (rows.len() <= MAX_ROWS).then_some(Self { rows, condition })
    }

    /// [`Self::for_expr`] of a conjunction.
    pub fn for_all(conjuncts: &[Expr], column: u32) -> Option<Self> {
        match conjuncts {
            [one] => Self::for_expr(one, column),
            several => Self::for_expr(&Expr::And(several.to_vec()), column),
        }
    }

    /// The rows of a part that [`Self::candidates`] looks at, ascending.
    pub fn rows(&self) -> &[u32] {
        &self.rows
    }

    /// The rows on pages that may hold what is looked for, as ascending ranges that do not touch.
    /// `part` holds the part's [`Self::rows`], in that order; `pages` are the pages that the part
    /// was built for.
    ///
    /// # Errors
    /// `Corrupt` for what is no such part.
    pub fn candidates(&self, part: &ArrayRef, pages: &[Range<u32>]) -> Result<Vec<Range<u32>>> {
        let corrupt = |what: &str| StorageError::corrupt(format!("n-gram index: {what}"));
        if *part.data_type() != DataType::BinaryView || part.len() != self.rows.len() {
            return Err(corrupt("it has not the rows asked for"));
        }
        if part.null_count() > 0 {
            return Err(corrupt("a row is NULL"));
        }
        let part = part.as_binary_view();
        // The last row asked for describes the part.
        let [VERSION, blocks @ ..] = part.value(part.len() - 1) else {
            return Err(corrupt("its version is not known"));
        };
        if *blocks != (pages.len() as u32).to_le_bytes() {
            return Err(corrupt("it was built for other pages"));
        }
        let lookup = |slot: u32, listed: &mut [bool]| -> Result<bool> {
            let row = self.rows.binary_search(&slot);
            let row = row.map_err(|_| corrupt("a slot was not asked for"))?;
            decode(part.value(row), listed)
        };
        let blocks = self.condition.blocks(pages.len(), &lookup)?;
        let mut candidates: Vec<Range<u32>> = Vec::new();
        for (rows, _) in pages
            .iter()
            .zip(blocks)
            .filter(|(_, is_candidate)| *is_candidate)
        {
            match candidates.last_mut() {
                Some(last) if last.end == rows.start => last.end = rows.end,
                _ => candidates.push(rows.clone()),
            }
        }
        Ok(candidates)
    }
}

impl Condition {
    /// The grams of a text whose letters are small; `None` for one that has none.
    fn literal(text: &[u8]) -> Option<Self> {
        let mut grams = Vec::new();
        for_each_gram(text, |slot| {
            if !grams.contains(&slot) && grams.len() < MAX_GRAMS {
                grams.push(slot);
            }
        });
        (!grams.is_empty()).then_some(Self::Grams(grams))
    }

    fn all(list: Vec<Self>) -> Option<Self> {
        (!list.is_empty()).then_some(Self::All(list))
    }

    fn for_each_gram(&self, f: &mut dyn FnMut(u32)) {
        match self {
            Self::Grams(grams) => grams.iter().for_each(|slot| f(*slot)),
            Self::All(list) | Self::Any(list) => list.iter().for_each(|c| c.for_each_gram(f)),
        }
    }

    /// Which blocks may hold a row that passes. `lookup` marks the blocks that a slot lists, or
    /// says that they are anywhere.
    fn blocks(
        &self,
        count: usize,
        lookup: &dyn Fn(u32, &mut [bool]) -> Result<bool>,
    ) -> Result<Vec<bool>> {
        let keep = |blocks: &mut Vec<bool>, other: &[bool]| {
            blocks.iter_mut().zip(other).for_each(|(b, o)| *b &= *o);
        };
        let mut blocks = vec![!matches!(self, Self::Any(_)); count];
        match self {
            Self::Grams(grams) => {
                let mut listed = vec![false; count];
                for slot in grams {
                    listed.fill(false);
                    if !lookup(*slot, &mut listed)? {
                        keep(&mut blocks, &listed);
                    }
                }
            }
            Self::All(list) => {
                for condition in list {
                    keep(&mut blocks, &condition.blocks(count, lookup)?);
                }
            }
            Self::Any(list) => {
                for condition in list {
                    let other = condition.blocks(count, lookup)?;
                    blocks.iter_mut().zip(other).for_each(|(b, o)| *b |= o);
                }
            }
        }
        Ok(blocks)
    }
}

/// What a row for which the expression is TRUE must hold.
fn condition(expr: &Expr, column: u32) -> Option<Condition> {
    let is_column = |expr: &Expr| *expr == Expr::Column(column);
    let any = |texts: &mut dyn Iterator<Item = &[u8]>| -> Option<Condition> {
        let list: Option<Vec<_>> = texts.map(Condition::literal).collect();
        list.map(Condition::Any)
    };
    match expr {
        Expr::And(list) => {
            Condition::all(list.iter().filter_map(|e| condition(e, column)).collect())
        }
        Expr::Or(list) => {
            let list: Option<Vec<_>> = list.iter().map(|e| condition(e, column)).collect();
            list.map(Condition::Any)
        }
        Expr::Like {
            expr,
            pattern,
            negated: false,
            case_insensitive,
        } if is_column(expr) => {
            let pieces = literals::of_like(pattern, *case_insensitive);
            Condition::all(
                pieces
                    .iter()
                    .filter_map(|p| Condition::literal(p))
                    .collect(),
            )
        }
        Expr::Regex {
            expr,
            pattern,
            negated: false,
            case_insensitive,
        } if is_column(expr) => {
            let texts = literals::required(pattern, *case_insensitive, true)?;
            any(&mut texts.iter().map(Vec::as_slice))
        }
        Expr::ContainsAny { expr, needles } if is_column(expr) => {
            any(&mut needles.iter().map(String::as_bytes))
        }
        Expr::InList {
            expr,
            list,
            negated: false,
        } if is_column(expr) => any(&mut list.iter().filter_map(|value| match value {
            Scalar::Bytes(bytes) => Some(bytes.as_slice()),
            // What equals NULL is not TRUE.
            _ => None,
        })),
        Expr::Compare { op, left, right } => match (op, &**left, &**right) {
            (CompareOp::Eq, text, Expr::Literal(literal)) if is_column(text) => {
                match &literal.value {
                    Scalar::Bytes(bytes) => Condition::literal(bytes),
                    _ => None,
                }
            }
            (op, Expr::Position { expr, needle }, Expr::Literal(literal)) if is_column(expr) => {
                let is_found = matches!(
                    (op, &literal.value),
                    (CompareOp::Gt | CompareOp::NotEq, Scalar::Int(0))
                        | (CompareOp::GtEq, Scalar::Int(1))
                );
                is_found.then(|| Condition::literal(needle.as_bytes()))?
            }
            _ => None,
        },
        _ => None,
    }
}

const _: () = assert!(GRAM_BYTES == 3, "what a literal must be long at least");
