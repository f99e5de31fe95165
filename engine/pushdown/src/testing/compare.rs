//! Whether the output of an accelerator is one that the Program allows.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::DataType;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use crate::interpreter::{self, compare_keys};
use crate::types::physical;
use crate::{Aggregate, AggregateFunction, Expr, Output, Program, Scalar};

/// One value of a row, ordered so that rows can be sorted and found.
#[derive(Debug, Clone)]
enum Cell {
    Value(Scalar),
    /// What a carried value looks like.
    Carried(String),
}

impl Ord for Cell {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Value(left), Self::Value(right)) => match (left.is_null(), right.is_null()) {
                (false, false) => left.total_order(right).expect("a column has one type"),
                (left_null, right_null) => right_null.cmp(&left_null),
            },
            (Self::Carried(left), Self::Carried(right)) => left.cmp(right),
            _ => panic!("a column has one type"),
        }
    }
}

impl PartialOrd for Cell {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Cell {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Cell {}

type CellRow = Vec<Cell>;

/// Checks all that left the `streams` streams of one scan against the interpreter.
///
/// What a Program leaves open is allowed: any order of rows and groups, any choice among rows
/// that an order doesn't tell apart, `limit` rows from each stream, groups in several parts,
/// float sums in any order of addition. NaNs of one sign count as equal, in sums all NaNs.
///
/// # Errors
/// Says what differs.
pub fn check_output(
    program: &Program,
    input: &[RecordBatch],
    output: &[RecordBatch],
    streams: usize,
) -> Result<(), String> {
    let schema = program.output_schema();
    for batch in output {
        let types = |batch: &RecordBatch| {
            batch
                .columns()
                .iter()
                .map(|column| column.data_type().clone())
                .collect::<Vec<_>>()
        };
        let expected: Vec<_> = schema
            .fields()
            .iter()
            .map(|f| f.data_type().clone())
            .collect();
        if types(batch) != expected {
            return Err(format!(
                "columns of types {:?}, not {expected:?}",
                types(batch)
            ));
        }
    }
    let actual = rows(output)?;
    match &program.output {
        Output::Rows { .. } => check_rows(program, input, actual, streams),
        Output::Aggregate { keys, aggregates } => {
            if keys.is_empty() && actual.len() != streams {
                return Err(format!(
                    "{} rows without keys from {streams} streams",
                    actual.len()
                ));
            }
            check_aggregates(program, input, actual, keys.len(), aggregates)
        }
        Output::Nearest { .. } => check_nearest(program, input, actual, streams),
    }
}

/// Checks the neighbours of each query as a top-k of its own.
fn check_nearest(
    program: &Program,
    input: &[RecordBatch],
    actual: Vec<CellRow>,
    streams: usize,
) -> Result<(), String> {
    let Output::Nearest {
        queries,
        metric,
        expr,
        k,
        exprs,
    } = &program.output
    else {
        return Err("not nearest rows".to_owned());
    };
    let mut of_queries: Vec<Vec<CellRow>> = vec![Vec::new(); queries.len()];
    for mut row in actual {
        let Cell::Value(Scalar::Int(query)) = row.remove(0) else {
            return Err("a neighbour of no query".to_owned());
        };
        let rows = usize::try_from(query).ok();
        let rows = rows.and_then(|query| of_queries.get_mut(query));
        rows.ok_or(format!("a neighbour of query {query}"))?
            .push(row);
    }
    for (query, mut actual) in queries.iter().zip(of_queries) {
        let distance = Expr::Distance {
            metric: *metric,
            expr: Box::new(expr.clone()),
            query: query.clone(),
        };
        let mut everything = program.clone();
        let is_null = Expr::IsNull(Box::new(distance.clone()));
        everything.filter.push(Expr::Not(Box::new(is_null)));
        everything.output = Output::Rows {
            exprs: std::iter::once(distance)
                .chain(exprs.iter().cloned())
                .collect(),
            order: Vec::new(),
            limit: None,
        };
        let mut survivors = run(&everything, input)?;
        let k = usize::try_from(*k).unwrap_or(usize::MAX);
        let wanted = survivors.len().min(k);
        check_survivors(
            &mut survivors,
            &mut actual,
            wanted,
            k.saturating_mul(streams),
        )?;
        let ranks = |rows: &[CellRow]| -> Vec<Scalar> {
            let mut ranks: Vec<Scalar> = rows
                .iter()
                .map(|row| match &row[0] {
                    Cell::Value(distance) => interpreter::rank(*metric, distance),
                    Cell::Carried(_) => Scalar::Null,
                })
                .collect();
            ranks.sort_by(|l, r| l.total_order(r).expect("distances are of one type"));
            ranks.truncate(wanted);
            ranks
        };
        let (expected, found) = (ranks(&survivors), ranks(&actual));
        let differs = |(l, r): (&Scalar, &Scalar)| l.total_order(r) != Some(Ordering::Equal);
        if expected.iter().zip(&found).any(differs) {
            return Err(format!(
                "the neighbours of {query:?} rank {found:?}, expected {expected:?}"
            ));
        }
    }
    Ok(())
}

/// Checks the number of rows, and that each is a survivor, as often as it is one. Both lists are
/// sorted thereby.
fn check_survivors(
    survivors: &mut [CellRow],
    actual: &mut [CellRow],
    wanted: usize,
    most: usize,
) -> Result<(), String> {
    let most = survivors.len().min(most);
    if !(wanted..=most).contains(&actual.len()) {
        return Err(format!(
            "{} rows, expected {wanted} to {most} of {} survivors",
            actual.len(),
            survivors.len()
        ));
    }
    survivors.sort();
    actual.sort();
    let mut remaining = survivors.iter();
    for row in actual {
        if !remaining.by_ref().any(|survivor| survivor == row) {
            return Err(format!(
                "the row {row:?} came too often, or should not have come"
            ));
        }
    }
    Ok(())
}

fn run(program: &Program, input: &[RecordBatch]) -> Result<Vec<CellRow>, String> {
    let output = interpreter::run(program, input).map_err(|error| error.to_string())?;
    rows(&[output])
}

fn check_rows(
    program: &Program,
    input: &[RecordBatch],
    mut actual: Vec<CellRow>,
    streams: usize,
) -> Result<(), String> {
    let Output::Rows {
        exprs,
        order,
        limit,
    } = &program.output
    else {
        return Err("not rows".to_owned());
    };
    let everything = Program {
        output: Output::Rows {
            exprs: exprs.clone(),
            order: Vec::new(),
            limit: None,
        },
        ..program.clone()
    };
    let mut survivors = run(&everything, input)?;
    let limit = limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit).unwrap_or(usize::MAX)
    });
    let wanted = survivors.len().min(limit);
    let most = limit.saturating_mul(streams);
    check_survivors(&mut survivors, &mut actual, wanted, most)?;

    if !order.is_empty() {
        let keys = |row: &CellRow| -> Vec<Scalar> {
            let value = |cell: &Cell| match cell {
                Cell::Value(value) => value.clone(),
                Cell::Carried(_) => Scalar::Null,
            };
            order
                .iter()
                .map(|key| value(&row[key.output as usize]))
                .collect()
        };
        let first = |rows: &[CellRow]| {
            let mut keys: Vec<Vec<Scalar>> = rows.iter().map(keys).collect();
            keys.sort_by(|left, right| compare_keys(order, left, right));
            keys.truncate(wanted);
            keys
        };
        for (position, (expected, found)) in
            first(&survivors).iter().zip(&first(&actual)).enumerate()
        {
            if compare_keys(order, expected, found).is_ne() {
                return Err(format!(
                    "row {position} in the order has keys {found:?}, expected {expected:?}"
                ));
            }
        }
    }
    Ok(())
}

fn check_aggregates(
    program: &Program,
    input: &[RecordBatch],
    actual: Vec<CellRow>,
    keys: usize,
    aggregates: &[Aggregate],
) -> Result<(), String> {
    let expected = merge(run(program, input)?, keys, aggregates);
    let actual = merge(actual, keys, aggregates);
    for key in actual.keys() {
        if !expected.contains_key(key) {
            return Err(format!("the group {key:?} should not be there"));
        }
    }
    let rows: usize = input.iter().map(RecordBatch::num_rows).sum();
    let mut sums = Vec::with_capacity(aggregates.len());
    for aggregate in aggregates {
        // How far apart two orders of adding the same floats may end.
        let tolerance = match aggregate.data_type {
            DataType::Float64 => 1e-12 * rows as f64 * largest_argument(program, input, aggregate)?,
            _ => 0.0,
        };
        sums.push((aggregate, tolerance));
    }
    for (key, expected) in &expected {
        let Some(actual) = actual.get(key) else {
            return Err(format!("the group {key:?} is missing"));
        };
        let values = expected.iter().zip(actual);
        for ((aggregate, tolerance), (expected, actual)) in sums.iter().zip(values) {
            let same = match (expected, actual) {
                (Scalar::Float(expected), Scalar::Float(actual))
                    if aggregate.function == AggregateFunction::Sum =>
                {
                    let close = (expected - actual).abs() <= *tolerance;
                    close || expected == actual || expected.is_nan() && actual.is_nan()
                }
                _ => {
                    expected.total_order(actual).is_some_and(Ordering::is_eq)
                        || expected.is_null() && actual.is_null()
                }
            };
            if !same {
                return Err(format!(
                    "{} of group {key:?} is {actual:?}, expected {expected:?}",
                    aggregate.display(&program.columns)
                ));
            }
        }
    }
    Ok(())
}

/// The largest finite size of an aggregate's argument over the surviving rows.
fn largest_argument(
    program: &Program,
    input: &[RecordBatch],
    aggregate: &Aggregate,
) -> Result<f64, String> {
    let exprs = aggregate.argument.iter().cloned().collect();
    let arguments = Program {
        output: Output::Rows {
            exprs,
            order: Vec::new(),
            limit: None,
        },
        ..program.clone()
    };
    let sizes = run(&arguments, input)?
        .into_iter()
        .flatten()
        .map(|cell| match cell {
            Cell::Value(Scalar::Float(value)) if value.is_finite() => value.abs(),
            _ => 0.0,
        });
    Ok(sizes.fold(0.0, f64::max))
}

/// The parts of each group put together.
fn merge(
    rows: Vec<CellRow>,
    keys: usize,
    aggregates: &[Aggregate],
) -> BTreeMap<CellRow, Vec<Scalar>> {
    let mut groups: BTreeMap<CellRow, Vec<Scalar>> = BTreeMap::new();
    for mut row in rows {
        let states: Vec<Scalar> = row
            .drain(keys..)
            .map(|cell| match cell {
                Cell::Value(value) => value,
                Cell::Carried(text) => panic!("an aggregate can't be {text}"),
            })
            .collect();
        for cell in &mut row {
            if let Cell::Value(Scalar::Float(value)) = cell
                && *value == 0.0
            {
                *value = 0.0;
            }
        }
        match groups.get_mut(&row) {
            None => {
                groups.insert(row, states);
            }
            Some(group) => {
                for ((aggregate, into), part) in aggregates.iter().zip(group).zip(states) {
                    *into = interpreter::merge(into, part, aggregate);
                }
            }
        }
    }
    groups
}

fn rows(batches: &[RecordBatch]) -> Result<Vec<CellRow>, String> {
    let mut rows = Vec::new();
    for batch in batches {
        let start = rows.len();
        rows.resize(
            start + batch.num_rows(),
            Vec::with_capacity(batch.num_columns()),
        );
        for column in batch.columns() {
            for (row, cell) in rows[start..].iter_mut().zip(cells(column)?) {
                row.push(cell);
            }
        }
    }
    Ok(rows)
}

fn cells(column: &ArrayRef) -> Result<Vec<Cell>, String> {
    if physical(column.data_type()).is_some() {
        let value = |row| match Scalar::from_array(column, row) {
            Some(Scalar::Float(value)) if value.is_nan() => Scalar::Float(f64::NAN.copysign(value)),
            Some(value) => value,
            None => Scalar::Null,
        };
        return Ok((0..column.len())
            .map(|row| Cell::Value(value(row)))
            .collect());
    }
    let options = FormatOptions::default().with_null("NULL");
    let formatter = ArrayFormatter::try_new(column, &options).map_err(|error| error.to_string())?;
    Ok((0..column.len())
        .map(|row| Cell::Carried(formatter.value(row).to_string()))
        .collect())
}
