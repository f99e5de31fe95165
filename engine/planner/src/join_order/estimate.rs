//! How many rows a plan gives, and how many distinct values its columns have.
//!
//! The textbook estimates (Selinger et al., "Access path selection in a relational database
//! management system", SIGMOD 1979) over the store's exact row counts, bounds and distinct counts:
//! values are taken as evenly spread, predicates as independent, and the keys of the side with
//! fewer distinct values as contained in the other.

use std::collections::HashMap;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::stats::Precision;
use datafusion::common::{Column, ScalarValue};
use datafusion::logical_expr::expr::{Alias, InList};
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, Join, JoinType, Like, LogicalPlan, Operator, TableScan,
};

// Shares of rows that stay where nothing better is known.
const UNKNOWN: f64 = 0.3;
const LIKE_PREFIX: f64 = 0.05;
const LIKE_INFIX: f64 = 0.1;
const NULLS: f64 = 0.05;
const LEAST: f64 = 1e-7;

/// What is expected of a plan's output.
#[derive(Debug, Clone)]
pub(super) struct Estimate {
    /// Rows.
    pub rows: f64,
    /// Rows before any filter: the domain that the distinct counts refer to.
    pub base_rows: f64,
    columns: HashMap<Column, ColumnEstimate>,
}

#[derive(Debug, Clone, Copy)]
struct ColumnEstimate {
    distinct: f64,
    /// Least and greatest value on a number line, for types that have one.
    bounds: Option<(f64, f64)>,
}

impl Estimate {
    /// The estimate for `plan`; `None` where a table gives no statistics.
    pub(super) fn of(plan: &LogicalPlan) -> Option<Self> {
        match plan {
            LogicalPlan::TableScan(scan) => Self::of_scan(scan),
            LogicalPlan::Filter(filter) => {
                let input = Self::of(&filter.input)?;
                let kept = input.selectivity(&filter.predicate);
                Some(input.scaled(kept))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let input = Self::of(&alias.input)?;
                let renamed = alias
                    .input
                    .schema()
                    .columns()
                    .into_iter()
                    .zip(alias.schema.columns());
                Some(input.renamed(renamed))
            }
            LogicalPlan::Projection(projection) => {
                let input = Self::of(&projection.input)?;
                let mut columns = HashMap::new();
                for (expr, column) in projection.expr.iter().zip(projection.schema.columns()) {
                    if let Some(known) = input.column(expr) {
                        columns.insert(column, known);
                    }
                }
                Some(Self { columns, ..input })
            }
            LogicalPlan::Aggregate(aggregate) => {
                let input = Self::of(&aggregate.input)?;
                let groups: f64 = aggregate
                    .group_expr
                    .iter()
                    .map(|e| input.distinct(e))
                    .product();
                let rows = if aggregate.group_expr.is_empty() {
                    1.0
                } else {
                    groups.min(input.rows).max(1.0)
                };
                let mut columns = HashMap::new();
                for (expr, column) in aggregate.group_expr.iter().zip(aggregate.schema.columns()) {
                    if let Some(known) = input.column(expr) {
                        columns.insert(column, known);
                    }
                }
                Some(Self {
                    rows,
                    base_rows: rows,
                    columns,
                })
            }
            LogicalPlan::Join(join) => Self::of_join(join),
            LogicalPlan::Limit(limit) => {
                let input = Self::of(&limit.input)?;
                let fetch = match limit.get_fetch_type() {
                    Ok(datafusion::logical_expr::FetchType::Literal(Some(n))) => n as f64,
                    _ => input.rows,
                };
                Some(Self {
                    rows: input.rows.min(fetch),
                    ..input
                })
            }
            LogicalPlan::Sort(sort) => Self::of(&sort.input),
            LogicalPlan::Repartition(repartition) => Self::of(&repartition.input),
            LogicalPlan::Distinct(distinct) => Self::of(distinct.input()),
            LogicalPlan::Window(window) => Self::of(&window.input),
            LogicalPlan::Union(union) => {
                let rows = union
                    .inputs
                    .iter()
                    .map(|i| Some(Self::of(i)?.rows))
                    .sum::<Option<f64>>()?;
                Some(Self {
                    rows,
                    base_rows: rows,
                    columns: HashMap::new(),
                })
            }
            LogicalPlan::EmptyRelation(_) | LogicalPlan::Values(_) => Some(Self {
                rows: 1.0,
                base_rows: 1.0,
                columns: HashMap::new(),
            }),
            _ => None,
        }
    }

    fn of_scan(scan: &TableScan) -> Option<Self> {
        let provider = source_as_provider(&scan.source).ok()?;
        let statistics = provider.statistics()?;
        let rows = *statistics.num_rows.get_value()? as f64;
        let mut columns = HashMap::new();
        // Filters may use columns that the scan does not return.
        for (index, field) in scan.source.schema().fields().iter().enumerate() {
            let known = statistics.column_statistics.get(index)?;
            let bounds = on_line(&known.min_value).zip(on_line(&known.max_value));
            let distinct = known.distinct_count.get_value().map_or_else(
                // An integer column has no more values than its range.
                || bounds.map_or(rows, |(min, max)| (max - min + 1.0).min(rows)),
                |d| *d as f64,
            );
            let column = Column::new(Some(scan.table_name.clone()), field.name());
            columns.insert(
                column,
                ColumnEstimate {
                    distinct: distinct.max(1.0),
                    bounds,
                },
            );
        }
        let whole = Self {
            rows,
            base_rows: rows.max(1.0),
            columns,
        };
        let kept = whole.conjuncts(scan.filters.iter().flat_map(split_conjunction));
        Some(whole.scaled(kept))
    }

    fn of_join(join: &Join) -> Option<Self> {
        let (left, right) = (Self::of(&join.left)?, Self::of(&join.right)?);
        let matching: f64 = {
            let (mut l, mut r) = (1.0, 1.0);
            for (a, b) in &join.on {
                l *= left.distinct(a);
                r *= right.distinct(b);
            }
            let (l_cap, r_cap) = (l.min(left.base_rows), r.min(right.base_rows));
            if join.on.len() > 1 {
                l_cap.min(r_cap)
            } else {
                l.max(r)
            }
        };
        let inner = (left.rows * right.rows / matching.max(1.0)).max(1.0);
        // Share of the left rows that find a partner, when keys of the right are contained.
        let partnered = || {
            let keys: f64 = join.on.iter().map(|(a, _)| left.distinct(a)).product();
            (right.rows / keys.min(left.base_rows).max(1.0)).clamp(LEAST, 1.0)
        };
        let rows = match join.join_type {
            JoinType::Inner => inner,
            JoinType::Left => inner.max(left.rows),
            JoinType::Right => inner.max(right.rows),
            JoinType::Full => inner.max(left.rows).max(right.rows),
            JoinType::LeftSemi => left.rows * partnered(),
            JoinType::LeftAnti => left.rows * (1.0 - partnered()).max(0.1),
            _ => return None,
        };
        let mut columns = left.columns;
        if !matches!(join.join_type, JoinType::LeftSemi | JoinType::LeftAnti) {
            columns.extend(right.columns);
        }
        Some(Self {
            rows: rows.max(1.0),
            base_rows: left.base_rows.max(rows),
            columns,
        })
    }

    fn scaled(mut self, kept: f64) -> Self {
        self.rows = (self.rows * kept).max(1.0);
        self
    }

    fn renamed(mut self, names: impl Iterator<Item = (Column, Column)>) -> Self {
        let mut columns = HashMap::new();
        for (old, new) in names {
            if let Some(known) = self.columns.get(&old) {
                columns.insert(new, *known);
            }
        }
        self.columns = columns;
        self
    }

    fn column(&self, expr: &Expr) -> Option<ColumnEstimate> {
        match expr {
            Expr::Column(column) => self.columns.get(column).copied(),
            Expr::Alias(Alias { expr, .. }) => self.column(expr),
            Expr::Cast(cast) => self.column(&cast.expr),
            _ => None,
        }
    }

    /// Distinct values of an expression in the base rows.
    pub(super) fn distinct(&self, expr: &Expr) -> f64 {
        match self.column(expr) {
            Some(column) => column.distinct,
            // A function has no more values than its arguments have combinations.
            None => {
                let arguments = expr.column_refs();
                let known = arguments
                    .iter()
                    .map(|c| self.columns.get(*c).map_or(self.base_rows, |k| k.distinct));
                known.product::<f64>().min(self.base_rows).max(1.0)
            }
        }
    }

    /// Share of the rows for which `expr` is true.
    pub(super) fn selectivity(&self, expr: &Expr) -> f64 {
        match expr {
            Expr::BinaryExpr(BinaryExpr {
                op: Operator::And, ..
            }) => self.conjuncts(split_conjunction(expr).into_iter()),
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::Or,
                right,
            }) => {
                let (a, b) = (self.selectivity(left), self.selectivity(right));
                a + b - a * b
            }
            Expr::Not(inner) => (1.0 - self.selectivity(inner)).max(LEAST),
            Expr::IsNull(_) => NULLS,
            Expr::IsNotNull(_) => 1.0 - NULLS,
            Expr::InList(InList {
                expr,
                list,
                negated,
            }) => {
                let share = (list.len() as f64 / self.distinct(expr)).min(1.0);
                if *negated {
                    (1.0 - share).max(LEAST)
                } else {
                    share
                }
            }
            Expr::Like(Like {
                pattern, negated, ..
            }) => {
                let prefix =
                    matches!(&**pattern, Expr::Literal(p, _) if !p.to_string().starts_with('%'));
                let share = if prefix { LIKE_PREFIX } else { LIKE_INFIX };
                if *negated { 1.0 - share } else { share }
            }
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::Eq,
                right,
            }) => 1.0 / self.distinct(left).max(self.distinct(right)).max(1.0),
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::NotEq,
                right,
            }) => 1.0 - 1.0 / self.distinct(left).max(self.distinct(right)).max(2.0),
            Expr::Literal(ScalarValue::Boolean(Some(value)), _) => {
                if *value {
                    1.0
                } else {
                    LEAST
                }
            }
            other => self
                .range(other)
                .map_or(UNKNOWN, |(_, (low, high))| (high - low).clamp(LEAST, 1.0)),
        }
    }

    /// The product over conjuncts, but for ranges of one column, which are cut with each other.
    fn conjuncts<'a>(&self, conjuncts: impl Iterator<Item = &'a Expr>) -> f64 {
        let mut share = 1.0;
        let mut ranges: HashMap<Column, (f64, f64)> = HashMap::new();
        for conjunct in conjuncts {
            match self.range(conjunct) {
                Some((column, (low, high))) => {
                    let cut = ranges.entry(column).or_insert((0.0, 1.0));
                    *cut = (cut.0.max(low), cut.1.min(high));
                }
                None => share *= self.selectivity(conjunct),
            }
        }
        ranges.values().fold(share, |share, (low, high)| {
            share * (high - low).clamp(LEAST, 1.0)
        })
    }

    /// The part of a column's value range, from 0 to 1, that a comparison with a constant keeps.
    fn range(&self, expr: &Expr) -> Option<(Column, (f64, f64))> {
        let position = |side: &Expr, value: &Expr| -> Option<(Column, f64)> {
            let column = match side {
                Expr::Column(column) => column,
                Expr::Cast(cast) => cast.expr.try_as_col()?,
                _ => return None,
            };
            let (min, max) = self.columns.get(column)?.bounds?;
            let Expr::Literal(value, _) = value else {
                return None;
            };
            let at = number(value)?;
            let share = if max > min {
                (at - min) / (max - min)
            } else {
                0.5
            };
            Some((column.clone(), share.clamp(0.0, 1.0)))
        };
        match expr {
            Expr::Between(Between {
                expr,
                negated: false,
                low,
                high,
            }) => {
                let (column, low) = position(expr, low)?;
                let (_, high) = position(expr, high)?;
                Some((column, (low, high)))
            }
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                let (column, at, op) = match position(left, right) {
                    Some((column, at)) => (column, at, *op),
                    None => {
                        let (column, at) = position(right, left)?;
                        (column, at, op.swap()?)
                    }
                };
                match op {
                    Operator::Lt | Operator::LtEq => Some((column, (0.0, at))),
                    Operator::Gt | Operator::GtEq => Some((column, (at, 1.0))),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

fn on_line(value: &Precision<ScalarValue>) -> Option<f64> {
    number(value.get_value()?)
}

/// The place of a value on a number line; types without one have none.
fn number(value: &ScalarValue) -> Option<f64> {
    use ScalarValue::*;
    Some(match value {
        Int8(v) => f64::from((*v)?),
        Int16(v) => f64::from((*v)?),
        Int32(v) | Date32(v) => f64::from((*v)?),
        Int64(v) | Date64(v) => (*v)? as f64,
        UInt8(v) => f64::from((*v)?),
        UInt16(v) => f64::from((*v)?),
        UInt32(v) => f64::from((*v)?),
        UInt64(v) => (*v)? as f64,
        Float32(v) => f64::from((*v)?),
        Float64(v) => (*v)?,
        Decimal128(v, _, scale) => (*v)? as f64 / 10f64.powi(i32::from(*scale)),
        TimestampSecond(v, _)
        | TimestampMillisecond(v, _)
        | TimestampMicrosecond(v, _)
        | TimestampNanosecond(v, _) => (*v)? as f64,
        _ => return None,
    })
}
