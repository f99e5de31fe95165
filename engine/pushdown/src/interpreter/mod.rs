//! The naive interpreter: what a Program means, row by row.
//!
//! It is the oracle that every accelerator is held against, so it is written to be read, not to
//! be fast: no kernels, no batches, one [`Scalar`] at a time. Where the rules below leave an
//! accelerator a choice (which of several equal rows a top-k keeps, in which order rows or
//! groups leave, how floats are summed up), `testing::check_output` knows it.
//!
//! # Three-valued logic
//!
//! A condition is TRUE, FALSE or NULL; a row survives only where every conjunct is TRUE.
//!
//! | `a AND b` | TRUE  | FALSE | NULL  |   | `a OR b`  | TRUE | FALSE | NULL |   | `NOT a` |       |
//! |-----------|-------|-------|-------|---|-----------|------|-------|------|---|---------|-------|
//! | **TRUE**  | TRUE  | FALSE | NULL  |   | **TRUE**  | TRUE | TRUE  | TRUE |   | TRUE    | FALSE |
//! | **FALSE** | FALSE | FALSE | FALSE |   | **FALSE** | TRUE | FALSE | NULL |   | FALSE   | TRUE  |
//! | **NULL**  | NULL  | FALSE | NULL  |   | **NULL**  | TRUE | NULL  | NULL |   | NULL    | NULL  |
//!
//! `x IN (list)`:
//!
//! | `x` | a value of the list equals it | no value equals it, the list has no NULL | no value equals it, the list has a NULL |
//! |---|---|---|---|
//! | NULL | NULL | NULL | NULL |
//! | a value | TRUE | FALSE | NULL |
//!
//! `NOT IN` is the NOT of it. `IS NULL` is never NULL. All other operators are NULL where an
//! operand is NULL.
//!
//! # Errors
//!
//! Only two things can fail at run time: decimal arithmetic that leaves 128 bits, and a cast to
//! a Timestamp that leaves 64. They fail the query, as they would above the scan. An operand
//! that needn't be known (behind a FALSE in an AND, in a branch of CASE that isn't taken) is not
//! computed here and can't fail; accelerators keep that promise for CASE and may break it for
//! AND, OR and conjuncts, as DataFusion does.

mod aggregate;
mod calendar;
mod eval;
mod like;

use std::cmp::Ordering;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt64Array, new_empty_array};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;

#[cfg(feature = "testing")]
pub(crate) use aggregate::merge;
pub use eval::{Row, evaluate};

use crate::distance;
use crate::types::physical;
use crate::{Expr, Metric, Output, Program, ProgramError, Scalar, SortKey};

/// Runs a Program over batches that hold its input columns, in the order of
/// [`Program::columns`]. The result has [`Program::output_schema`].
///
/// Rows leave in the order in which they came, those of a top-k in its order with equal ones as
/// they came, groups as their first rows came.
///
/// # Errors
/// `Invalid` when a batch's columns are not the Program's; `Arithmetic` as the module says. The
/// Program is taken to be verified: one that is not gives an error or nonsense.
pub fn run(program: &Program, batches: &[RecordBatch]) -> Result<RecordBatch, ProgramError> {
    let arrays = input_arrays(program, batches)?;
    let rows = batches.iter().map(RecordBatch::num_rows).sum();
    let row = |index| Row {
        columns: &program.columns,
        arrays: &arrays,
        index,
    };
    match &program.output {
        Output::Rows {
            exprs,
            order,
            limit,
        } => {
            let limit = limit.map_or(usize::MAX, |limit| {
                usize::try_from(limit).unwrap_or(usize::MAX)
            });
            let mut survivors = Vec::new();
            for index in 0..rows {
                if order.is_empty() && survivors.len() == limit {
                    break;
                }
                if survives(program, row(index))? {
                    survivors.push(index);
                }
            }
            if !order.is_empty() {
                survivors = first_in_order(exprs, order, limit, survivors, row)?;
            }
            let columns = exprs
                .iter()
                .map(|expr| output_column(program, expr, &arrays, &survivors, row))
                .collect::<Result<Vec<_>, _>>()?;
            batch(program, columns, survivors.len())
        }
        Output::Aggregate { keys, aggregates } => {
            let mut groups = aggregate::Groups::new(keys, aggregates);
            for index in 0..rows {
                if survives(program, row(index))? {
                    groups.add(row(index))?;
                }
            }
            let count = groups.len();
            batch(program, groups.finish(&program.columns)?, count)
        }
        Output::Nearest {
            queries,
            metric,
            expr,
            k,
            exprs,
        } => {
            let mut survivors = Vec::new();
            for index in 0..rows {
                if survives(program, row(index))? {
                    survivors.push(index);
                }
            }
            let mut found = Neighbours::default();
            for (number, query) in queries.iter().enumerate() {
                let mut near = Vec::new();
                for index in &survivors {
                    let distance = eval::vector_distance(*metric, expr, query, row(*index))?;
                    if !distance.is_null() {
                        near.push((rank(*metric, &distance), distance, *index));
                    }
                }
                near.sort_by(|(left, ..), (right, ..)| {
                    left.total_order(right).unwrap_or(Ordering::Equal)
                });
                near.truncate(usize::try_from(*k).unwrap_or(usize::MAX));
                for (_, distance, index) in near {
                    found.queries.push(Scalar::Int(number as i128));
                    found.distances.push(distance);
                    found.rows.push(index);
                }
            }
            let mut columns = vec![
                Scalar::build_array(&found.queries, &DataType::UInt32)?,
                Scalar::build_array(&found.distances, &metric.data_type())?,
            ];
            for expr in exprs {
                columns.push(output_column(program, expr, &arrays, &found.rows, row)?);
            }
            batch(program, columns, found.rows.len())
        }
    }
}

/// The output of a search for nearest rows.
#[derive(Default)]
struct Neighbours {
    queries: Vec<Scalar>,
    distances: Vec<Scalar>,
    rows: Vec<usize>,
}

/// What nearest rows are ordered by.
pub(crate) fn rank(metric: Metric, distance: &Scalar) -> Scalar {
    match distance {
        Scalar::Float(value) => Scalar::Float(distance::rank(metric, *value as f32).into()),
        other => other.clone(),
    }
}

/// The input column by column, over all batches.
fn input_arrays(program: &Program, batches: &[RecordBatch]) -> Result<Vec<ArrayRef>, ProgramError> {
    let mut arrays = Vec::with_capacity(program.columns.len());
    for (position, column) in program.columns.iter().enumerate() {
        let mut parts = Vec::with_capacity(batches.len());
        for batch in batches {
            match batch.columns().get(position) {
                Some(array) if array.data_type() == &column.data_type => parts.push(array.as_ref()),
                other => {
                    let found = other.map_or("is missing".to_owned(), |array| {
                        format!("has type {}, not {}", array.data_type(), column.data_type)
                    });
                    return Err(ProgramError::invalid(
                        format!("column '{}'", column.name),
                        format!("column {position} of a batch {found}"),
                    ));
                }
            }
        }
        arrays.push(match parts.as_slice() {
            [] => new_empty_array(&column.data_type),
            parts => concat(parts)?,
        });
    }
    Ok(arrays)
}

/// Whether every conjunct of the filter is TRUE.
fn survives(program: &Program, row: Row<'_>) -> Result<bool, ProgramError> {
    for conjunct in &program.filter {
        if evaluate(conjunct, row)? != Scalar::Boolean(true) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first `limit` rows in the order; rows that are equal in all keys stay as they came.
fn first_in_order<'a>(
    exprs: &[Expr],
    order: &[SortKey],
    limit: usize,
    rows: Vec<usize>,
    row: impl Fn(usize) -> Row<'a>,
) -> Result<Vec<usize>, ProgramError> {
    let mut keyed = Vec::with_capacity(rows.len());
    for index in rows {
        let mut values = Vec::with_capacity(order.len());
        for key in order {
            let Some(expr) = exprs.get(key.output as usize) else {
                return Err(ProgramError::invalid(
                    "order by",
                    "names an output that isn't there",
                ));
            };
            values.push(evaluate(expr, row(index))?);
        }
        keyed.push((values, index));
    }
    keyed.sort_by(|(left, _), (right, _)| compare_keys(order, left, right));
    keyed.truncate(limit);
    Ok(keyed.into_iter().map(|(_, index)| index).collect())
}

/// The order of two rows by the values of their sort keys.
pub(crate) fn compare_keys(order: &[SortKey], left: &[Scalar], right: &[Scalar]) -> Ordering {
    for ((key, left), right) in order.iter().zip(left).zip(right) {
        let nulls = if key.nulls_first {
            Ordering::Less
        } else {
            Ordering::Greater
        };
        let ordering = match (left.is_null(), right.is_null()) {
            (true, true) => Ordering::Equal,
            (true, false) => nulls,
            (false, true) => nulls.reverse(),
            (false, false) => {
                let ascending = left.total_order(right).unwrap_or(Ordering::Equal);
                if key.descending {
                    ascending.reverse()
                } else {
                    ascending
                }
            }
        };
        if ordering.is_ne() {
            return ordering;
        }
    }
    Ordering::Equal
}

/// An output expression over the surviving rows.
fn output_column<'a>(
    program: &Program,
    expr: &Expr,
    arrays: &[ArrayRef],
    survivors: &[usize],
    row: impl Fn(usize) -> Row<'a>,
) -> Result<ArrayRef, ProgramError> {
    let data_type = expr.data_type(&program.columns);
    if let Expr::Column(index) = expr
        && physical(&data_type).is_none()
        && let Some(carried) = arrays.get(*index as usize)
    {
        let rows = UInt64Array::from_iter_values(survivors.iter().map(|index| *index as u64));
        return Ok(take(carried, &rows, None)?);
    }
    let values = survivors
        .iter()
        .map(|index| evaluate(expr, row(*index)))
        .collect::<Result<Vec<_>, _>>()?;
    Scalar::build_array(&values, &data_type)
}

fn batch(
    program: &Program,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch, ProgramError> {
    // A batch without columns still has rows.
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    Ok(RecordBatch::try_new_with_options(
        program.output_schema(),
        columns,
        &options,
    )?)
}
