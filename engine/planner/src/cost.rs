//! What the planner expects: rows that pass a filter, groups, bytes.
//!
//! The zone maps of chunks serve as histograms; those of pages may be on flash, which planning does
//! not read. A chunk's values are taken to lie evenly between its least and its greatest, so that a
//! range on a clustered column is estimated to the segment and a range on a shuffled one by its
//! share of the whole span. Columns count as independent.

use arrow::datatypes::DataType;
use flashmesh_pushdown::{CompareOp, DatePart, Expr, Literal, Scalar};
use flashmesh_storage::page::{ZoneKey, zone_key};
use flashmesh_storage::segment::Totals;
use flashmesh_storage::table::TableSnapshot;

/// Chunks that an estimate looks at; of more an even sample is taken.
const SAMPLED_CHUNKS: usize = 2048;

/// Shares of rows where nothing better is known.
mod default_share {
    pub const EQUAL: f64 = 0.1;
    pub const RANGE: f64 = 0.33;
    pub const CONTAINS: f64 = 0.05;
    pub const PREFIX: f64 = 0.05;
    pub const NULL: f64 = 0.05;
    pub const OTHER: f64 = 0.3;
}

/// The share of a table's rows for which all of `filters` are TRUE, from 0 to 1.
pub fn selectivity(filters: &[Expr], table: &TableSnapshot) -> f64 {
    if table.rows() == 0 {
        return 1.0;
    }
    let mut conjuncts = Vec::new();
    for filter in filters {
        match filter {
            Expr::And(operands) => conjuncts.extend(operands),
            other => conjuncts.push(other),
        }
    }
    let mut ranges: Vec<Range<'_>> = Vec::new();
    let mut share = 1.0;
    for conjunct in conjuncts {
        match range_of(conjunct) {
            Some(found) => match ranges.iter_mut().find(|r| r.column == found.column) {
                Some(known) => {
                    known.min = known.min.or(found.min);
                    known.max = known.max.or(found.max);
                }
                None => ranges.push(found),
            },
            None => share *= share_of(conjunct, table),
        }
    }
    for range in &ranges {
        share *= range_share(range, table);
    }
    share.clamp(0.0, 1.0)
}

/// `column` between two constants, bounds included (a strict bound counts as included: one value
/// makes no difference to an estimate).
#[derive(Debug, Clone, Copy)]
struct Range<'a> {
    column: u32,
    min: Option<&'a Literal>,
    max: Option<&'a Literal>,
}

fn range_of(expr: &Expr) -> Option<Range<'_>> {
    let Expr::Compare { op, left, right } = expr else {
        return None;
    };
    let (Expr::Column(column), Expr::Literal(literal)) = (left.as_ref(), right.as_ref()) else {
        return None;
    };
    let column = *column;
    match op {
        CompareOp::Lt | CompareOp::LtEq => Some(Range {
            column,
            min: None,
            max: Some(literal),
        }),
        CompareOp::Gt | CompareOp::GtEq => Some(Range {
            column,
            min: Some(literal),
            max: None,
        }),
        CompareOp::Eq | CompareOp::NotEq => None,
    }
}

fn key_of(value: &Scalar, data_type: &DataType) -> Option<i64> {
    match zone_key(value, data_type) {
        ZoneKey::Exact(key) | ZoneKey::Prefix(key) => Some(key),
        ZoneKey::Unknown => None,
    }
}

/// Calls `f` with a sample of the column's chunks.
fn sample_chunks(column: u32, table: &TableSnapshot, mut f: impl FnMut(&Totals)) {
    let step = table.segments.len().div_ceil(SAMPLED_CHUNKS).max(1);
    for segment in table.segments.iter().step_by(step) {
        if let Some(chunk) = segment.chunks.get(column as usize) {
            f(&chunk.totals);
        }
    }
}

fn range_share(range: &Range<'_>, table: &TableSnapshot) -> f64 {
    let bound = |literal: Option<&Literal>, open: i64| match literal {
        Some(literal) => key_of(&literal.value, &literal.data_type),
        None => Some(open),
    };
    let (Some(min), Some(max)) = (bound(range.min, i64::MIN), bound(range.max, i64::MAX)) else {
        return default_share::RANGE;
    };
    let (mut rows, mut passing) = (0.0, 0.0);
    sample_chunks(range.column, table, |zone| {
        rows += f64::from(zone.rows);
        if zone.min > zone.max || zone.max < min || zone.min > max {
            return;
        }
        let values = f64::from(zone.rows.saturating_sub(zone.null_count));
        let (from, to) = (zone.min.max(min) as f64, zone.max.min(max) as f64);
        passing += values * (to - from + 1.0) / (zone.max as f64 - zone.min as f64 + 1.0);
    });
    if rows == 0.0 {
        default_share::RANGE
    } else {
        passing / rows
    }
}

/// Distinct values of a column, at least 1.
fn distinct(column: u32, table: &TableSnapshot) -> Option<f64> {
    let distinct = table.statistics.get(column as usize)?.distinct?;
    Some((distinct as f64).max(1.0))
}

fn null_share(column: u32, table: &TableSnapshot) -> f64 {
    match table.statistics.get(column as usize) {
        Some(statistics) => statistics.null_count as f64 / table.rows() as f64,
        None => default_share::NULL,
    }
}

/// The share of rows that have this one value.
fn equal_share(expr: &Expr, value: Option<&Literal>, table: &TableSnapshot) -> f64 {
    let Expr::Column(column) = expr else {
        return match expr {
            Expr::DatePart {
                part: DatePart::Day,
                ..
            } => 1.0 / 31.0,
            Expr::DatePart {
                part: DatePart::Month,
                ..
            } => 1.0 / 12.0,
            _ => default_share::EQUAL,
        };
    };
    if let Some(key) = value.and_then(|v| key_of(&v.value, &v.data_type)) {
        let mut found = false;
        sample_chunks(*column, table, |zone| {
            found |= (zone.min..=zone.max).contains(&key)
        });
        // Of a sample only the hits prove something.
        if !found && table.segments.len() <= SAMPLED_CHUNKS {
            return 0.0;
        }
    }
    let known = distinct(*column, table).map_or(default_share::EQUAL, |d| 1.0 / d);
    known * (1.0 - null_share(*column, table))
}

/// The share of rows for which a predicate is TRUE.
fn share_of(expr: &Expr, table: &TableSnapshot) -> f64 {
    let share = match expr {
        Expr::Literal(Literal {
            value: Scalar::Boolean(true),
            ..
        }) => 1.0,
        Expr::Literal(_) => 0.0,
        Expr::Column(column) => 0.5 * (1.0 - null_share(*column, table)),
        Expr::And(operands) => selectivity(operands, table),
        Expr::Or(operands) => {
            1.0 - operands
                .iter()
                .map(|o| 1.0 - share_of(o, table))
                .product::<f64>()
        }
        Expr::Not(inner) => match inner.as_ref() {
            Expr::IsNull(column) => 1.0 - share_of(&Expr::IsNull(column.clone()), table),
            inner => 1.0 - share_of(inner, table),
        },
        Expr::IsNull(inner) => match inner.as_ref() {
            Expr::Column(column) => null_share(*column, table),
            _ => default_share::NULL,
        },
        Expr::Compare { op, left, right } => {
            let literal = match right.as_ref() {
                Expr::Literal(literal) => Some(literal),
                _ => None,
            };
            match op {
                CompareOp::Eq => equal_share(left, literal, table),
                CompareOp::NotEq => 1.0 - equal_share(left, literal, table),
                _ => match range_of(expr) {
                    Some(range) => range_share(&range, table),
                    None => default_share::RANGE,
                },
            }
        }
        Expr::InList {
            expr,
            list,
            negated,
        } => {
            let one = equal_share(expr, None, table);
            let any = (one * list.len() as f64).min(1.0);
            if *negated { 1.0 - any } else { any }
        }
        Expr::Like {
            expr,
            pattern,
            negated,
            ..
        } => {
            let share = if !pattern.contains(['%', '_']) {
                equal_share(expr, None, table)
            } else if pattern.starts_with('%') {
                default_share::CONTAINS
            } else {
                default_share::PREFIX
            };
            if *negated { 1.0 - share } else { share }
        }
        Expr::ContainsAny { needles, .. } => default_share::CONTAINS * needles.len() as f64,
        Expr::Regex { negated, .. } => {
            if *negated {
                1.0 - default_share::CONTAINS
            } else {
                default_share::CONTAINS
            }
        }
        Expr::Case { .. }
        | Expr::Cast { .. }
        | Expr::Arithmetic { .. }
        | Expr::DatePart { .. }
        | Expr::Position { .. }
        | Expr::Distance { .. }
        | Expr::Kernel { .. }
        | Expr::Substring { .. } => default_share::OTHER,
    };
    share.clamp(0.0, 1.0)
}

/// Distinct values of an expression among `rows` rows.
pub fn distinct_values(expr: &Expr, rows: f64, table: &TableSnapshot) -> f64 {
    let all = match expr {
        Expr::Column(column) => distinct(*column, table).unwrap_or(rows),
        Expr::Literal(_) => 1.0,
        Expr::DatePart { part, expr } => match part {
            DatePart::Day => 31.0,
            DatePart::Month => 12.0,
            DatePart::Year => (distinct_values(expr, rows, table) / 366.0).ceil(),
        },
        Expr::Substring { expr, length, .. } => {
            let values = distinct_values(expr, rows, table);
            values.min(36f64.powi((*length).min(16) as i32))
        }
        Expr::Case {
            branches,
            otherwise,
            ..
        } => {
            let mut sum = 1.0;
            for value in branches
                .iter()
                .map(|(_, then)| then)
                .chain(otherwise.as_deref())
            {
                sum += distinct_values(value, rows, table);
            }
            sum
        }
        Expr::Compare { .. }
        | Expr::And(_)
        | Expr::Or(_)
        | Expr::Not(_)
        | Expr::IsNull(_)
        | Expr::InList { .. }
        | Expr::Regex { .. }
        | Expr::ContainsAny { .. }
        | Expr::Like { .. } => 3.0,
        Expr::Position { .. } => 100.0,
        Expr::Distance { .. } | Expr::Kernel { .. } => rows,
        Expr::Arithmetic { .. } | Expr::Cast { .. } => {
            let mut product = 1.0;
            expr.for_each_child(&mut |child| product *= distinct_values(child, rows, table));
            product
        }
    };
    sampled_distinct(all, table.rows() as f64, rows)
}

/// How many of `distinct` values, spread evenly over `rows` rows, are among `sample` of them.
pub fn sampled_distinct(distinct: f64, rows: f64, sample: f64) -> f64 {
    if rows <= 0.0 || sample >= rows || distinct <= 1.0 {
        return distinct.min(sample.max(1.0));
    }
    let rows_per_value = rows / distinct;
    let missed = (1.0 - sample / rows).powf(rows_per_value);
    (distinct * (1.0 - missed)).clamp(1.0, sample.max(1.0))
}

/// Groups that `keys` make of `rows` rows.
pub fn groups(keys: &[Expr], rows: f64, table: &TableSnapshot) -> f64 {
    let product: f64 = keys
        .iter()
        .map(|key| distinct_values(key, rows, table))
        .product();
    product.min(rows).max(1.0)
}

/// Bytes of one value in memory, for columns of the table by their size on flash where the type
/// alone doesn't say.
pub fn width_bytes(data_type: &DataType, expr: Option<&Expr>, table: &TableSnapshot) -> f64 {
    if let Some(width) = data_type.primitive_width() {
        return width as f64;
    }
    match data_type {
        DataType::Boolean => 0.125,
        DataType::FixedSizeBinary(size) => f64::from(*size),
        _ => {
            // Text halves or better on flash; a view takes 16 bytes beside its text.
            let statistics = match expr {
                Some(Expr::Column(column)) => table.statistics.get(*column as usize),
                _ => None,
            };
            let on_flash = statistics.map_or(0, |s| s.bytes_on_flash) as f64;
            16.0 + 2.0 * on_flash / (table.rows().max(1) as f64)
        }
    }
}

/// Whether a grouped partial aggregate in the store pays: it must shrink what travels to a
/// fraction, otherwise the store only builds tables of groups that the host builds once more.
pub fn grouping_pays(groups: f64, rows: f64) -> bool {
    groups <= 4096.0 || groups <= rows * 0.3
}

/// Rows from which on a top-k stays above: the heap would hold more than it saves.
pub const TOP_K_LIMIT: usize = 100_000;
