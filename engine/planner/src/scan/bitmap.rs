//! Bitmaps of the values for which an expression over one integer column is TRUE.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

use super::runtime::FilterColumn;

/// Values that are evaluated at a time when a bitmap is made; a multiple of 64.
const EVALUATED_AT_ONCE: usize = 1 << 14;
/// Pieces of a span that are evaluated to learn how many of its values pass.
const SAMPLED_PIECES: usize = 8;
/// A bitmap that is expected to let more than this share of the rows pass is not worth it.
const NOT_SELECTIVE: f64 = 0.75;

/// Conjuncts over one column, to be evaluated on values of their own.
pub(super) struct Alone {
    conjuncts: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
    data_type: DataType,
    distinct: Option<u64>,
}

impl Alone {
    /// `conjuncts` read no column of `schema` but `column`.
    pub fn new(
        conjuncts: Vec<Arc<dyn PhysicalExpr>>,
        schema: &Schema,
        column: &FilterColumn,
    ) -> Result<Self> {
        let name = schema.field(column.output).name();
        let field = Field::new(name, column.data_type.clone(), true);
        Ok(Self {
            conjuncts: conjuncts
                .into_iter()
                .map(|c| over_one_column(c, column.output))
                .collect::<Result<_>>()?,
            schema: Arc::new(Schema::new(vec![field])),
            data_type: column.data_type.clone(),
            distinct: column.distinct,
        })
    }

    /// For which of `values` every conjunct is TRUE.
    pub fn passing(&self, values: ArrayRef) -> Result<BooleanBuffer> {
        let rows = values.len();
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), vec![values])?;
        let mut all: Option<BooleanBuffer> = None;
        for conjunct in &self.conjuncts {
            let result = conjunct.evaluate(&batch)?.into_array(rows)?;
            let result = result.as_boolean();
            let passing = match result.nulls() {
                Some(valid) => result.values() & valid.inner(),
                None => result.values().clone(),
            };
            all = Some(match all {
                Some(all) => &all & &passing,
                None => passing,
            });
        }
        Ok(all.unwrap_or_else(|| BooleanBuffer::new_set(rows)))
    }

    /// Which of the `span` values from `min` on pass, unless a sample says that most rows have
    /// such a value, or the column's type is no integer.
    pub fn bitmap(&self, min: i64, span: usize, threads: usize) -> Result<Option<Vec<u64>>> {
        let evaluate = |first: usize, bits: &mut [u64]| -> Result<bool> {
            let count = (bits.len() * 64).min(span - first);
            let from = min + first as i64;
            let Some(values) = integers(from, from + count as i64 - 1, &self.data_type) else {
                return Ok(false);
            };
            let passing = self.passing(values)?;
            let chunks = passing.bit_chunks();
            for (word, chunk) in bits.iter_mut().zip(chunks.iter_padded()) {
                *word = chunk;
            }
            Ok(true)
        };
        let mut bits = vec![0u64; span.div_ceil(64)];
        let words = EVALUATED_AT_ONCE / 64;
        let pieces = bits.len().div_ceil(words);
        if pieces > 2 * SAMPLED_PIECES
            && let Some(distinct) = self.distinct
        {
            let mut piece = vec![0u64; words];
            let mut passing = 0;
            for sample in 0..SAMPLED_PIECES {
                let first = sample * (pieces - 1) / SAMPLED_PIECES * EVALUATED_AT_ONCE;
                if !evaluate(first, &mut piece)? {
                    return Ok(None);
                }
                passing += piece.iter().map(|w| w.count_ones() as usize).sum::<usize>();
            }
            let share = passing as f64 / (SAMPLED_PIECES * EVALUATED_AT_ONCE) as f64;
            if share * span as f64 > NOT_SELECTIVE * distinct as f64 {
                return Ok(None);
            }
        }
        let threads = threads.min(pieces / SAMPLED_PIECES).max(1);
        let share = pieces.div_ceil(threads) * words;
        let all = std::thread::scope(|scope| {
            let workers: Vec<_> = bits
                .chunks_mut(share)
                .enumerate()
                .map(|(number, part)| {
                    let mut work = move || -> Result<bool> {
                        let mut first = number * share * 64;
                        for piece in part.chunks_mut(words) {
                            if !evaluate(first, piece)? {
                                return Ok(false);
                            }
                            first += EVALUATED_AT_ONCE;
                        }
                        Ok(true)
                    };
                    if threads == 1 {
                        Err(work())
                    } else {
                        Ok(scope.spawn(work))
                    }
                })
                .collect();
            workers.into_iter().try_fold(true, |all, worker| {
                let done = match worker {
                    Ok(thread) => thread.join().unwrap_or_else(|_| {
                        internal_err!("a thread that evaluated a runtime filter panicked")
                    }),
                    Err(done) => done,
                };
                Ok::<_, DataFusionError>(all & done?)
            })
        })?;
        Ok(all.then_some(bits))
    }
}

/// `expr` with its only column as column 0.
fn over_one_column(expr: Arc<dyn PhysicalExpr>, output: usize) -> Result<Arc<dyn PhysicalExpr>> {
    Ok(expr
        .transform_up(|node| {
            Ok(match node.downcast_ref::<Column>() {
                Some(column) if column.index() == output => {
                    Transformed::yes(Arc::new(Column::new(column.name(), 0)) as _)
                }
                _ => Transformed::no(node),
            })
        })?
        .data)
}

/// The integers `from..=to` as an array of `data_type`; `None` for a type that is no integer.
fn integers(from: i64, to: i64, data_type: &DataType) -> Option<ArrayRef> {
    let values: Vec<i64> = (from..to.checked_add(1)?).collect();
    let values: ArrayRef = Arc::new(Int64Array::from(values));
    match data_type {
        DataType::Int64 => Some(values),
        // Arrow reaches dates from 32 bits only.
        DataType::Date32 => cast(&cast(&values, &DataType::Int32).ok()?, &DataType::Date32).ok(),
        t if t.is_integer() => cast(&values, t).ok(),
        _ => None,
    }
}
