//! Comparisons of values of unlike types, which DataFusion brings to a type that does not hold both.
//!
//! A float and a decimal are compared as decimals of 15 digits before the point and 15 behind it: 1e-16 is
//! not above zero then, and 1e20 and infinity are errors. Here the decimal becomes a float, unless the
//! float is a constant of no more digits. So it is where they become values of one column or list: in UNION, CASE,
//! coalesce and the like. Intervals are compared by their months, then their days, then the
//! rest, so that 30 hours are less than a day; here by their length, of 30 days a month and 24 hours a day,
//! as PostgreSQL and DuckDB have it. A constant text beside a boolean is one.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::Sort as SortExpr;
use datafusion::logical_expr::{
    Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Sort,
    Union, cast,
};
use datafusion::optimizer::AnalyzerRule;

use super::intervals;
use crate::tree::change_parts;

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
        // What is above a union has its types.
        let mut has_any = false;
        let plan = plan.transform_up_with_subqueries(|node| match node {
            LogicalPlan::Sort(sort) => by_length(sort),
            LogicalPlan::Union(union) => {
                let united = with_floats(union)?;
                has_any |= united.transformed;
                Ok(united)
            }
            node if has_any => node.recompute_schema().map(Transformed::yes),
            node => Ok(Transformed::no(node)),
        })?;
        let is_one = |expr: &Expr| compares(expr) || unites(expr);
        change_parts(plan.data, is_one, |expr, schema| {
            expr.transform_up(|expr| match compares(&expr) {
                true => of_one_kind(expr, schema),
                false => united(expr, schema),
            })
        })
    }
}

/// Whether an expression is a comparison.
pub(super) fn compares(expr: &Expr) -> bool {
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
    Truth,
}

impl Kind {
    fn of(left: (&Expr, &DataType), right: (&Expr, &DataType)) -> Option<Self> {
        let is_time = |of: &DataType| matches!(of, DataType::Interval(_) | DataType::Duration(_));
        let is_interval = |of: &DataType| matches!(of, DataType::Interval(_));
        let is_constant_text =
            |(expr, of): (&Expr, &DataType)| of.is_string() && matches!(expr, Expr::Literal(..));
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
            (DataType::Boolean, _) => is_constant_text(right).then_some(Self::Truth),
            (_, DataType::Boolean) => is_constant_text(left).then_some(Self::Truth),
            _ => None,
        }
    }

    fn apply(self, expr: Expr, of: &DataType) -> Expr {
        match self {
            Self::Float if of.is_decimal() => cast(expr, DataType::Float64),
            Self::Float => expr,
            Self::Length => intervals::length(expr),
            Self::Truth if of.is_string() => cast(expr, DataType::Boolean),
            Self::Truth => expr,
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

/// Functions that give one of their arguments, or a list of them.
const UNITING: [&str; 8] = [
    "coalesce",
    "greatest",
    "ifnull",
    "least",
    "make_array",
    "nullif",
    "nvl",
    "nvl2",
];

fn unites(expr: &Expr) -> bool {
    match expr {
        Expr::Case(_) => true,
        Expr::ScalarFunction(call) => UNITING.contains(&call.name()),
        _ => false,
    }
}

/// CASE, or such a function, with floats for the decimals that are beside floats.
fn united(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let values: Vec<&mut Expr> = match &mut expr {
        Expr::Case(case) => {
            let branches = case.when_then_expr.iter_mut();
            let values = branches.map(|(_, value)| value.as_mut());
            values.chain(case.else_expr.as_deref_mut()).collect()
        }
        Expr::ScalarFunction(call) if UNITING.contains(&call.name()) => {
            call.args.iter_mut().collect()
        }
        _ => return Ok(Transformed::no(expr)),
    };
    // What has no type yet is for the planner to say.
    let types = values.iter().map(|value| value.get_type(schema).ok());
    let types: Vec<_> = types.collect();
    let is_of = |of: &Option<DataType>, is: fn(&DataType) -> bool| of.as_ref().is_some_and(is);
    let has_float = { values.iter().zip(&types) }
        .any(|(value, of)| is_of(of, DataType::is_floating) && needs_float(value));
    let mut changed = false;
    for (value, of) in values.into_iter().zip(&types) {
        if has_float && is_of(of, DataType::is_decimal) {
            *value = cast(std::mem::take(value), DataType::Float64);
            changed = true;
        }
    }
    Ok(Transformed::new_transformed(expr, changed))
}

/// A union with floats for the decimals of columns that are floats in another of its inputs.
fn with_floats(union: Union) -> Result<Transformed<LogicalPlan>> {
    let is_of = |place: usize, is: fn(&DataType) -> bool| {
        let mut inputs = union.inputs.iter();
        inputs.any(|input| {
            let field = input.schema().fields().get(place);
            field.is_some_and(|field| is(field.data_type()))
        })
    };
    let columns = 0..union.schema.fields().len();
    let mixed: Vec<bool> = columns
        .map(|place| is_of(place, DataType::is_floating) && is_of(place, DataType::is_decimal))
        .collect();
    if !mixed.contains(&true) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let inputs = union.inputs.into_iter().map(|input| {
        let columns = input.schema().iter().zip(&mixed);
        let columns = columns.map(|((qualifier, field), is_mixed)| {
            let column = Expr::Column(Column::from((qualifier, field)));
            match *is_mixed && field.data_type().is_decimal() {
                true => cast(column, DataType::Float64)
                    .alias_qualified(qualifier.cloned(), field.name()),
                false => column,
            }
        });
        let columns: Vec<_> = columns.collect();
        let input = LogicalPlanBuilder::from(input).project(columns)?.build()?;
        Ok(Arc::new(input))
    });
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let union = Union::try_new_with_loose_types(inputs)?;
    Ok(Transformed::yes(LogicalPlan::Union(union)))
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
