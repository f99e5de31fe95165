//! Comparisons of values of unlike types, which DataFusion brings to a type that does not hold both.
//!
//! A float and a decimal are compared as decimals of 15 digits before the point and 15 behind it: 1e-16 is
//! not above zero then, and 1e20 and infinity are errors. Here the decimal becomes a float, unless the
//! float is a constant of no more digits. Intervals are compared by their months, then their days, then the
//! rest, so that 30 hours are less than a day; here by their length, of 30 days a month and 24 hours a day,
//! as PostgreSQL and DuckDB have it.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, Sort, cast,
};
use datafusion::optimizer::AnalyzerRule;

use super::intervals;
use crate::tree::{has_part, map_named_expressions};

/// What DataFusion's common type of floats and decimals has before the point, and behind it.
const DECIMAL_DIGITS: usize = 15;

/// The rule; place it before the one that gives types.
#[derive(Debug)]
pub struct Comparisons;

impl AnalyzerRule for Comparisons {
    fn name(&self) -> &str {
        "flashmesh_comparisons"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(compared)?.data)
    }
}

fn compared(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if let LogicalPlan::Sort(sort) = node {
        return by_length(sort);
    }
    if !has_part(&node, compares)? {
        return Ok(Transformed::no(node));
    }
    let mut schema = merge_schema(&node.inputs());
    if let LogicalPlan::TableScan(scan) = &node {
        let (table, columns) = (scan.table_name.clone(), scan.source.schema());
        schema = DFSchema::try_from_qualified_schema(table, &columns)?;
    }
    map_named_expressions(node, |expr| {
        expr.transform_up(|expr| match compares(&expr) {
            true => of_one_kind(expr, &schema),
            false => Ok(Transformed::no(expr)),
        })
    })
}

fn compares(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(
            op,
            Operator::Eq
                | Operator::NotEq
                | Operator::Lt
                | Operator::LtEq
                | Operator::Gt
                | Operator::GtEq
                | Operator::IsDistinctFrom
                | Operator::IsNotDistinctFrom
        ),
        expr => matches!(expr, Expr::Between(_)),
    }
}

/// What both sides of a comparison become.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    Length,
}

impl Kind {
    fn of(left: (&Expr, &DataType), right: (&Expr, &DataType)) -> Option<Self> {
        let is_time = |of: &DataType| matches!(of, DataType::Interval(_) | DataType::Duration(_));
        let is_interval = |of: &DataType| matches!(of, DataType::Interval(_));
        match (left.1, right.1) {
            (l, r) if l.is_floating() && r.is_decimal() => {
                needs_float(left.0).then_some(Self::Float)
            }
            (l, r) if l.is_decimal() && r.is_floating() => {
                needs_float(right.0).then_some(Self::Float)
            }
            (l, r) if is_time(l) && is_time(r) && (is_interval(l) || is_interval(r)) => {
                Some(Self::Length)
            }
            _ => None,
        }
    }

    fn apply(self, expr: Expr, of: &DataType) -> Expr {
        match self {
            Self::Float if of.is_decimal() => cast(expr, DataType::Float64),
            Self::Float => expr,
            Self::Length => intervals::length(expr),
        }
    }
}

/// Whether a float is anything else than a constant that a decimal holds.
fn needs_float(expr: &Expr) -> bool {
    let value = match expr {
        Expr::Literal(ScalarValue::Float64(Some(value)), _) => *value,
        Expr::Literal(ScalarValue::Float32(Some(value)), _) => f64::from(*value),
        Expr::Literal(value, _) => return !value.is_null(),
        _ => return true,
    };
    let text = value.abs().to_string();
    let (whole, rest) = text.split_once('.').unwrap_or((&text, ""));
    !value.is_finite() || whole.len() > DECIMAL_DIGITS || rest.len() > DECIMAL_DIGITS
}

fn of_one_kind(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    // What has no type yet is for the planner to say.
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            let types = type_of(&left).zip(type_of(&right));
            let kind = types
                .as_ref()
                .and_then(|(l, r)| Kind::of((&left, l), (&right, r)));
            let (Some(kind), Some((l, r))) = (kind, types) else {
                return Ok(Transformed::no(Expr::BinaryExpr(BinaryExpr {
                    left,
                    op,
                    right,
                })));
            };
            Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr {
                left: Box::new(kind.apply(*left, &l)),
                op,
                right: Box::new(kind.apply(*right, &r)),
            })))
        }
        Expr::Between(between) => {
            let [of, low, high] =
                [&between.expr, &between.low, &between.high].map(|expr| type_of(expr));
            let (Some(of), Some(low), Some(high)) = (of, low, high) else {
                return Ok(Transformed::no(Expr::Between(between)));
            };
            let bounds = [(&*between.low, &low), (&*between.high, &high)];
            let kinds = bounds.map(|bound| Kind::of((&between.expr, &of), bound));
            let Some(kind) = kinds[0].or(kinds[1]) else {
                return Ok(Transformed::no(Expr::Between(between)));
            };
            Ok(Transformed::yes(Expr::Between(Between {
                expr: Box::new(kind.apply(*between.expr, &of)),
                negated: between.negated,
                low: Box::new(kind.apply(*between.low, &low)),
                high: Box::new(kind.apply(*between.high, &high)),
            })))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// A sort of intervals by their length.
fn by_length(sort: Sort) -> Result<Transformed<LogicalPlan>> {
    let schema = sort.input.schema();
    let is_interval = |key: &SortExpr| {
        let of = key.expr.get_type(schema);
        matches!(of, Ok(DataType::Interval(_)))
    };
    if !sort.expr.iter().any(is_interval) {
        return Ok(Transformed::no(LogicalPlan::Sort(sort)));
    }
    let keys = sort.expr.iter().map(|key| match is_interval(key) {
        true => SortExpr {
            expr: intervals::length(key.expr.clone()),
            ..key.clone()
        },
        false => key.clone(),
    });
    let expr = keys.collect();
    Ok(Transformed::yes(LogicalPlan::Sort(Sort { expr, ..sort })))
}
