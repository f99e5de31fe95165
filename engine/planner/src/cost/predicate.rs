//! The share of rows for which a predicate is TRUE, and the distinct values of an expression.

use flashmesh_pushdown::{CompareOp, DatePart, Expr, Literal, Scalar};

use super::{Columns, KeyRange, default_share, key_of};

/// The share of rows for which all of `filters` are TRUE, from 0 to 1.
pub fn selectivity(filters: &[Expr], table: &dyn Columns) -> f64 {
    if table.base_rows() == 0.0 {
        return 1.0;
    }
    let mut conjuncts = Vec::new();
    for filter in filters {
        match filter {
            Expr::And(operands) => conjuncts.extend(operands),
            other => conjuncts.push(other),
        }
    }
    let mut ranges: Vec<(u32, KeyRange)> = Vec::new();
    let mut share = 1.0;
    for conjunct in conjuncts {
        match range_of(conjunct) {
            Some((column, range)) => match ranges.iter_mut().find(|(c, _)| *c == column) {
                Some((_, known)) => *known = known.cut(range),
                None => ranges.push((column, range)),
            },
            None => share *= share_of(conjunct, table),
        }
    }
    for (column, range) in ranges {
        let kept = table.range_share(column, range);
        share *= kept.unwrap_or(default_share::RANGE);
    }
    share.clamp(0.0, 1.0)
}

/// The column that a comparison with a constant bounds, and the keys that it leaves (a strict bound
/// counts as included: one value makes no difference to an estimate).
fn range_of(expr: &Expr) -> Option<(u32, KeyRange)> {
    let Expr::Compare { op, left, right } = expr else {
        return None;
    };
    let (Expr::Column(column), Expr::Literal(literal)) = (left.as_ref(), right.as_ref()) else {
        return None;
    };
    let key = key_of(&literal.value, &literal.data_type)?;
    let (min, max) = match op {
        CompareOp::Lt | CompareOp::LtEq => (i64::MIN, key),
        CompareOp::Gt | CompareOp::GtEq => (key, i64::MAX),
        CompareOp::Eq | CompareOp::NotEq => return None,
    };
    Some((*column, KeyRange { min, max }))
}

/// The share of rows in which `expr` has one value, which is known or not.
fn equal_share(expr: &Expr, value: Option<&Literal>, table: &dyn Columns) -> f64 {
    let Expr::Column(column) = expr else {
        return match expr {
            Expr::DatePart { .. } => 1.0 / distinct_values(expr, table.base_rows(), table),
            _ => default_share::EQUAL,
        };
    };
    let key = value.and_then(|v| key_of(&v.value, &v.data_type));
    if key.is_some_and(|key| table.lacks(*column, key)) {
        return 0.0;
    }
    let known = table
        .distinct(*column)
        .map_or(default_share::EQUAL, |d| 1.0 / d);
    known * (1.0 - table.null_share(*column))
}

/// The share of rows in which two expressions are equal.
fn equality_share(left: &Expr, right: &Expr, table: &dyn Columns) -> f64 {
    let distinct = |expr| distinct_values(expr, table.base_rows(), table);
    match right {
        Expr::Literal(value) => equal_share(left, Some(value), table),
        right => 1.0 / distinct(left).max(distinct(right)),
    }
}

/// The share of rows for which a predicate is TRUE.
fn share_of(expr: &Expr, table: &dyn Columns) -> f64 {
    let share = match expr {
        Expr::Literal(Literal {
            value: Scalar::Boolean(true),
            ..
        }) => 1.0,
        Expr::Literal(_) => 0.0,
        Expr::Column(column) => 0.5 * (1.0 - table.null_share(*column)),
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
            Expr::Column(column) => table.null_share(*column),
            _ => default_share::NULL,
        },
        Expr::Compare { op, left, right } => match op {
            CompareOp::Eq => equality_share(left, right, table),
            CompareOp::NotEq => 1.0 - equality_share(left, right, table),
            _ => range_of(expr)
                .and_then(|(column, range)| table.range_share(column, range))
                .unwrap_or(default_share::RANGE),
        },
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
pub fn distinct_values(expr: &Expr, rows: f64, table: &dyn Columns) -> f64 {
    let all = match expr {
        Expr::Column(column) => table.distinct(*column).unwrap_or(rows),
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
    sampled_distinct(all, table.base_rows(), rows)
}

/// How many of `distinct` values, spread evenly over `rows` rows, are among `sample` of them.
fn sampled_distinct(distinct: f64, rows: f64, sample: f64) -> f64 {
    if rows <= 0.0 || sample >= rows || distinct <= 1.0 {
        return distinct.min(sample.max(1.0));
    }
    let rows_per_value = rows / distinct;
    let missed = (1.0 - sample / rows).powf(rows_per_value);
    (distinct * (1.0 - missed)).clamp(1.0, sample.max(1.0))
}

/// Groups that `keys` make of `rows` rows.
pub fn groups(keys: &[Expr], rows: f64, table: &dyn Columns) -> f64 {
    let product: f64 = keys
        .iter()
        .map(|key| distinct_values(key, rows, table))
        .product();
    product.min(rows).max(1.0)
}
