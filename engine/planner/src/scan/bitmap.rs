//! Bitmaps of the values for which an expression over one integer column is TRUE.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use arrow::buffer::BooleanBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

use super::spec::FilterColumn;

use crate::walk::Walk as _;

/// Words of a bitmap whose values are evaluated at a time: they stay in the nearest caches.
const PIECE_WORDS: usize = 256;
/// Pieces that make a sample, and that are worth a thread.
const MIN_PIECES: usize = 8;
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
        let name = schema.field(column.place).name();
        let field = Field::new(name, column.data_type.clone(), true);
        Ok(Self {
            conjuncts: conjuncts
                .into_iter()
                .map(|c| over_one_column(c, column.place))
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

    /// Which of the `span` values from `min` on pass. `None` for a column whose values are no
    /// integers, and where a sample says that most rows have a value that passes.
    pub fn bitmap(&self, min: i64, span: usize, threads: usize) -> Result<Option<Vec<u64>>> {
        if !(self.data_type.is_integer() || self.data_type == DataType::Date32)
            || !self.is_selective(min, span)?
        {
            return Ok(None);
        }
        let mut bits = vec![0u64; span.div_ceil(64)];
        let pieces = bits.len().div_ceil(PIECE_WORDS);
        let threads = threads.min(pieces / MIN_PIECES).max(1);
        let share = pieces.div_ceil(threads) * PIECE_WORDS;
        let end = min.saturating_add_unsigned(span as u64 - 1);
        let parts = bits
            .chunks_mut(share)
            .enumerate()
            .map(|(number, part)| (min + (number * share * 64) as i64, part));
        if threads == 1 {
            for (from, part) in parts {
                self.evaluate(from, end, part)?;
            }
        } else {
            std::thread::scope(|scope| {
                let workers: Vec<_> = parts
                    .map(|(from, part)| scope.spawn(move || self.evaluate(from, end, part)))
                    .collect();
                workers.into_iter().try_for_each(|worker| {
                    worker.join().unwrap_or_else(|_| {
                        internal_err!("a thread that evaluated a runtime filter panicked")
                    })
                })
            })?;
        }
        Ok(Some(bits))
    }

    /// Whether, by a sample of pieces of a long span, the values that pass are few against those
    /// that rows have.
    fn is_selective(&self, min: i64, span: usize) -> Result<bool> {
        let pieces = span / (PIECE_WORDS * 64);
        let Some(distinct) = self.distinct.filter(|_| pieces >= 2 * MIN_PIECES) else {
            return Ok(true);
        };
        let mut bits = vec![0u64; PIECE_WORDS];
        let mut passing = 0;
        for sample in 0..MIN_PIECES {
            let from = min + (sample * pieces / MIN_PIECES * PIECE_WORDS * 64) as i64;
            self.evaluate(from, i64::MAX, &mut bits)?;
            passing += bits.iter().map(|w| w.count_ones() as usize).sum::<usize>();
        }
        let share = passing as f64 / (MIN_PIECES * PIECE_WORDS * 64) as f64;
        Ok(share * span as f64 <= NOT_SELECTIVE * distinct as f64)
    }

    /// Sets bit `i` where the value `from + i` passes and is not beyond `end`.
    fn evaluate(&self, mut from: i64, end: i64, bits: &mut [u64]) -> Result<()> {
        for piece in bits.chunks_mut(PIECE_WORDS) {
            let last = from.saturating_add(piece.len() as i64 * 64 - 1).min(end);
            let passing = self.passing(integers(from, last, &self.data_type)?)?;
            for (word, chunk) in piece.iter_mut().zip(passing.bit_chunks().iter_padded()) {
                *word = chunk;
            }
            from = last.saturating_add(1);
        }
        Ok(())
    }
}

/// `expr` with its only column as column 0.
fn over_one_column(expr: Arc<dyn PhysicalExpr>, place: usize) -> Result<Arc<dyn PhysicalExpr>> {
    Ok(expr
        .transform_up(|node| {
            Ok(match node.downcast_ref::<Column>() {
                Some(column) if column.index() == place => {
                    Transformed::yes(Arc::new(Column::new(column.name(), 0)) as _)
                }
                _ => Transformed::no(node),
            })
        })?
        .data)
}

/// The integers `from..=to` as an array of `data_type`, an integer's type or Date32.
fn integers(from: i64, to: i64, data_type: &DataType) -> Result<ArrayRef> {
    let values: Vec<i64> = (0..=to - from).map(|offset| from + offset).collect();
    let values: ArrayRef = Arc::new(Int64Array::from(values));
    Ok(match data_type {
        DataType::Int64 => values,
        // Arrow reaches dates from 32 bits only.
        DataType::Date32 => cast(&cast(&values, &DataType::Int32)?, &DataType::Date32)?,
        _ => cast(&values, data_type)?,
    })
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{BinaryExpr, lit};

    use super::*;

    /// `(number % divisor) = rest`
    fn alone(data_type: DataType, divisor: i32, rest: i32, distinct: Option<u64>) -> Alone {
        let schema = Schema::new(vec![
            Field::new("other", DataType::Utf8, true),
            Field::new("number", data_type.clone(), true),
        ]);
        let literal = |value: i32| lit(lit_of(value, &data_type));
        let column = Arc::new(Column::new("number", 1));
        let modulo = Arc::new(BinaryExpr::new(column, Operator::Modulo, literal(divisor)));
        let conjunct = Arc::new(BinaryExpr::new(modulo, Operator::Eq, literal(rest)));
        let column = FilterColumn {
            place: 1,
            program: 0,
            data_type,
            span: None,
            distinct,
        };
        Alone::new(vec![conjunct], &schema, &column).unwrap()
    }

    fn lit_of(value: i32, data_type: &DataType) -> datafusion::common::ScalarValue {
        datafusion::common::ScalarValue::from(value)
            .cast_to(data_type)
            .unwrap()
    }

    #[test]
    fn spans_of_any_length_are_evaluated_by_any_number_of_threads() {
        let piece = PIECE_WORDS as i64 * 64;
        for (min, span) in [
            (5, 1),
            (-3, 64),
            (-70, 131),
            (-100, piece),
            (7, piece + 1),
            (-1_000_000, 41 * piece + 77),
            (i64::from(i32::MAX) - 999, 1000),
        ] {
            for data_type in [DataType::Int64, DataType::Int32] {
                let alone = alone(data_type, 7, 3, None);
                for threads in [1, 2, 3, 64] {
                    let bits = alone.bitmap(min, span as usize, threads).unwrap().unwrap();
                    assert_eq!(bits.len(), (span as usize).div_ceil(64));
                    for (place, word) in bits.iter().enumerate() {
                        for bit in 0..64 {
                            let offset = place as i64 * 64 + bit;
                            let expected = offset < span && (min + offset) % 7 == 3;
                            assert_eq!(
                                word >> bit & 1 == 1,
                                expected,
                                "{min} + {offset}, {threads} threads"
                            );
                        }
                    }
                }
            }
        }
        let at_the_end = alone(DataType::Int64, 7, 3, None);
        let bits = at_the_end.bitmap(i64::MAX - 63, 64, 1).unwrap().unwrap();
        let expected = (0..64).filter(|i| (i64::MAX - 63 + i) % 7 == 3).count();
        assert_eq!(bits[0].count_ones() as usize, expected);
    }

    #[test]
    fn a_bitmap_that_most_rows_pass_is_not_made() {
        let span = 40 * PIECE_WORDS * 64;
        // One value in ten passes. If rows have one value in ten, those may be all of them.
        let distinct = |distinct: usize| {
            let alone = alone(DataType::Int64, 10, 0, Some(distinct as u64));
            alone.bitmap(1, span, 2).unwrap().is_some()
        };
        assert!(!distinct(span / 10));
        assert!(distinct(span));
    }

    #[test]
    fn columns_of_other_types_have_no_bitmap() {
        let alone = alone(DataType::Float64, 10, 0, None);
        assert!(alone.bitmap(0, 100, 1).unwrap().is_none());
    }
}
