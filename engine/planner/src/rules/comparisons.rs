//! Comparisons of values of unlike types, which DataFusion brings to a type that does not hold both.
//!
//! A float and a decimal are compared as decimals of 15 digits before the point and 15 behind it: 1e-16 is
//! not above zero then, 1e20 and infinity are errors, and 519659.45 is 519659.450000000024576, as it is multiplied by
//! 10^15 as a float. Here the decimal becomes a float, unless the float is a constant: that is the decimal which is
//! written so. So it is where they become values of one column or list: in UNION, CASE, coalesce and the like.
//! Intervals are compared by their months, then their days, then the rest, so that 30 hours are less than a day; here
//! by their length, of 30 days a month and 24 hours a day, as PostgreSQL and DuckDB have it; so are differences of
//! timestamps, and a constant text beside either is an interval. A constant text beside a boolean is one, a boolean
//! beside a whole number is 0 or 1, and one beside bytes that is written `\x…` are those, as where it is put into a
//! column of bytes. Times of day of different units, as TIME(6) and TIME are, have no common type at all; here it is
//! that of nanoseconds.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalMonthDayNano, IntervalUnit, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, Result, ScalarValue};
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, Sort as SortExpr};
use datafusion::logical_expr::{
    Aggregate, Between, BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator,
    Sort, Union, cast, lit,
};
use datafusion::optimizer::AnalyzerRule;

use super::casts::compared;
use super::intervals;
use crate::byte_texts::bytes_of;
use crate::tree::{change_parts, has_part, map_named_expressions};
use crate::walk::{Walk as _, WalkPlan as _};

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
        let plan = plan.change_up_with_subqueries(|node| match node {
            LogicalPlan::Sort(sort) => by_length(sort),
            LogicalPlan::Aggregate(aggregate) => ends_by_length(aggregate),
            LogicalPlan::Union(union) => {
                let united = of_common_types(union)?;
                has_any |= united.transformed;
                Ok(united)
            }
            node if has_any => node.recompute_schema().map(Transformed::yes),
            node => Ok(Transformed::no(node)),
        })?;
        let is_one =
            |expr: &Expr| compares(expr) || unites(expr) || matches!(expr, Expr::InList(_));
        change_parts(plan.data, is_one, |expr, schema| {
            expr.transform_up(|expr| {
                of_one_unit(expr, schema)?
                    .transform_data(|expr| of_one_kind(expr, schema))?
                    .transform_data(|expr| united(expr, schema))
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
    /// Decimals, of which one is a constant float.
    Decimal,
    Float,
    Length,
    Truth,
    Bytes,
    /// Whole numbers, of which one is a boolean.
    Number,
}

impl Kind {
    fn of(left: (&Expr, &DataType), right: (&Expr, &DataType)) -> Option<Self> {
        let is_time = |of: &DataType| matches!(of, DataType::Interval(_) | DataType::Duration(_));
        let is_interval = |of: &DataType| matches!(of, DataType::Interval(_));
        let is_constant_text =
            |(expr, of): (&Expr, &DataType)| of.is_string() && matches!(expr, Expr::Literal(..));
        match (left.1, right.1) {
            (l, r) if l.is_floating() && r.is_decimal() => Self::of_decimal(left.0, r),
            (l, r) if l.is_decimal() && r.is_floating() => Self::of_decimal(right.0, l),
            (l, r) if is_time(l) && is_time(r) && (is_interval(l) || is_interval(r)) => {
                Some(Self::Length)
            }
            (l, _) if is_time(l) && is_constant_text(right) => Some(Self::Length),
            (_, r) if is_time(r) && is_constant_text(left) => Some(Self::Length),
            (DataType::Boolean, other) | (other, DataType::Boolean) if other.is_integer() => {
                Some(Self::Number)
            }
            (DataType::Boolean, _) => is_constant_text(right).then_some(Self::Truth),
            (_, DataType::Boolean) => is_constant_text(left).then_some(Self::Truth),
            (l, _) if l.is_binary() => bytes_in(right.0).map(|_| Self::Bytes),
            (_, r) if r.is_binary() => bytes_in(left.0).map(|_| Self::Bytes),
            _ => None,
        }
    }

    /// Of a float beside a decimal.
    fn of_decimal(float: &Expr, decimal: &DataType) -> Option<Self> {
        match float {
            Expr::Literal(value, _) if value.is_null() => None,
            float if as_decimal(float, decimal).is_some() => Some(Self::Decimal),
            _ => Some(Self::Float),
        }
    }

    /// What is for all of several comparisons of one value.
    fn of_all(kinds: impl IntoIterator<Item = Option<Self>>) -> Option<Self> {
        let kinds = kinds.into_iter().flatten();
        kinds.reduce(|all, next| match (all, next) {
            (Self::Decimal, other) => other,
            (all, _) => all,
        })
    }

    fn apply(self, expr: Expr, of: &DataType) -> Expr {
        match self {
            // Whether it fits has been seen.
            Self::Decimal if of.is_floating() => as_decimal(&expr, &EXACT).unwrap_or(expr),
            Self::Decimal => expr,
            Self::Float if of.is_decimal() => cast(expr, DataType::Float64),
            Self::Float => expr,
            Self::Length if of.is_string() => intervals::length(as_interval(expr)),
            Self::Length => intervals::length(expr),
            Self::Truth if of.is_string() => cast(expr, DataType::Boolean),
            Self::Truth => expr,
            Self::Number if *of == DataType::Boolean => cast(expr, DataType::Int64),
            Self::Number => expr,
            Self::Bytes => {
                bytes_in(&expr).map_or(expr, |bytes| lit(ScalarValue::Binary(Some(bytes))))
            }
        }
    }
}

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// A constant text as an interval, be it written as a time of day.
fn as_interval(text: Expr) -> Expr {
    let time = match &text {
        Expr::Literal(value, _) if value.cast_to(&INTERVAL).is_err() => {
            value.cast_to(&DataType::Time64(TimeUnit::Nanosecond)).ok()
        }
        _ => None,
    };
    match time {
        Some(ScalarValue::Time64Nanosecond(Some(nanoseconds))) => {
            let interval = IntervalMonthDayNano::new(0, 0, nanoseconds);
            lit(ScalarValue::IntervalMonthDayNano(Some(interval)))
        }
        _ => cast(text, INTERVAL),
    }
}

/// The bytes that a constant text writes.
fn bytes_in(expr: &Expr) -> Option<Vec<u8>> {
    match expr {
        Expr::Literal(text, _) => bytes_of(text.try_as_str()??),
        _ => None,
    }
}

/// A type beside which all constants fit that are of no more digits than a decimal has.
const EXACT: DataType = DataType::Decimal128(1, 0);
/// Digits of a decimal of 128 bits.
const DIGITS: usize = 38;

/// A constant float as the decimal that is written so; `None` for others, and where that and decimals of a type have
/// no common type that holds both.
fn as_decimal(float: &Expr, beside: &DataType) -> Option<Expr> {
    let text = match float {
        Expr::Literal(ScalarValue::Float64(Some(value)), _) if value.is_finite() => {
            value.to_string()
        }
        Expr::Literal(ScalarValue::Float32(Some(value)), _) if value.is_finite() => {
            value.to_string()
        }
        _ => return None,
    };
    let digits = text.trim_start_matches('-');
    let (whole, rest) = digits.split_once('.').unwrap_or((digits, ""));
    let (precision, scale, most) = match beside {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => (*precision, *scale, DIGITS),
        DataType::Decimal256(precision, scale) => (*precision, *scale, 2 * DIGITS),
        _ => return None,
    };
    let (before, behind) = (i16::from(precision) - i16::from(scale), scale);
    let before = whole.len().max(usize::try_from(before).unwrap_or(0));
    let behind = rest.len().max(usize::try_from(behind).unwrap_or(0));
    if before + behind > most || whole.len() + rest.len() > DIGITS {
        return None;
    }
    let unscaled = text.replace('.', "").parse::<i128>().ok()?;
    let precision = u8::try_from(whole.len() + rest.len()).ok()?;
    let scale = i8::try_from(rest.len()).ok()?;
    Some(lit(ScalarValue::Decimal128(
        Some(unscaled),
        precision,
        scale,
    )))
}

/// Whether a float is anything else than NULL.
fn is_float(expr: &Expr) -> bool {
    !matches!(expr, Expr::Literal(value, _) if value.is_null())
}

fn of_one_kind(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    // What has no type yet is for the planner to say.
    let type_of = |expr: &Expr| expr.get_type(schema).ok();
    match expr {
        // Others stand beside comparisons.
        Expr::BinaryExpr(_) if !compares(&expr) => Ok(Transformed::no(expr)),
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
            let Some(kind) = Kind::of_all(kinds) else {
                return Ok(Transformed::no(Expr::Between(between)));
            };
            Ok(Transformed::yes(Expr::Between(Between {
                expr: Box::new(kind.apply(*between.expr, &of)),
                negated: between.negated,
                low: Box::new(kind.apply(*between.low, &low)),
                high: Box::new(kind.apply(*between.high, &high)),
            })))
        }
        Expr::InList(mut list) => {
            let changed = of_one_kind_as(&mut list.expr, list.list.iter_mut().collect(), schema);
            Ok(Transformed::new_transformed(Expr::InList(list), changed))
        }
        Expr::Case(mut case) if case.expr.is_some() => {
            let compared = case.when_then_expr.iter_mut();
            let compared = compared.map(|(value, _)| value.as_mut()).collect();
            let changed = match &mut case.expr {
                Some(value) => of_one_kind_as(value, compared, schema),
                None => false,
            };
            Ok(Transformed::new_transformed(Expr::Case(case), changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// Brings values to a kind with what they are compared with, all of them to one; whether that changed anything.
fn of_one_kind_as(value: &mut Expr, others: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    // What has no type yet is for the planner to say.
    let Ok(of) = value.get_type(schema) else {
        return false;
    };
    let types = others.iter().map(|other| other.get_type(schema));
    let Ok(types) = types.collect::<Result<Vec<_>>>() else {
        return false;
    };
    let kinds = others.iter().zip(&types);
    let kinds = kinds.map(|(other, other_of)| Kind::of((value, &of), (other, other_of)));
    let Some(kind) = Kind::of_all(kinds.collect::<Vec<_>>()) else {
        return false;
    };
    *value = kind.apply(std::mem::take(value), &of);
    for (other, of) in others.into_iter().zip(&types) {
        *other = kind.apply(std::mem::take(other), of);
    }
    true
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

/// What becomes the values of CASE, or of such a function; nothing of others.
fn branches(expr: &mut Expr) -> Vec<&mut Expr> {
    match expr {
        Expr::Case(case) => {
            let branches = case.when_then_expr.iter_mut();
            let values = branches.map(|(_, value)| value.as_mut());
            values.chain(case.else_expr.as_deref_mut()).collect()
        }
        Expr::ScalarFunction(call) if UNITING.contains(&call.name()) => {
            call.args.iter_mut().collect()
        }
        _ => Vec::new(),
    }
}

/// CASE, or such a function, with floats for the decimals that are beside floats.
fn united(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let values = branches(&mut expr);
    // What has no type yet is for the planner to say.
    let types = values.iter().map(|value| value.get_type(schema).ok());
    let types: Vec<_> = types.collect();
    let is_of = |of: &Option<DataType>, is: fn(&DataType) -> bool| of.as_ref().is_some_and(is);
    let decimals = types.iter().flatten().filter(|of| of.is_decimal());
    let decimals: Vec<&DataType> = decimals.collect();
    let fits = |value: &Expr| decimals.iter().all(|of| as_decimal(value, of).is_some());
    let has_float = { values.iter().zip(&types) }
        .any(|(value, of)| is_of(of, DataType::is_floating) && is_float(value) && !fits(value));
    let mut changed = false;
    for (value, of) in values.into_iter().zip(&types) {
        if decimals.is_empty() {
            break;
        }
        let kind = match has_float {
            true => Kind::Float,
            false => Kind::Decimal,
        };
        if let Some(of) = of.as_ref().filter(|of| of.is_decimal() || of.is_floating()) {
            *value = kind.apply(std::mem::take(value), of);
            changed = true;
        }
    }
    Ok(Transformed::new_transformed(expr, changed))
}

fn is_time_of_day(of: &DataType) -> bool {
    matches!(of, DataType::Time32(_) | DataType::Time64(_))
}

/// What is compared or united with times of day in one unit: that of what is no constant, where constants are
/// exact in it.
fn of_one_unit(mut expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let mut values = compared(&mut expr);
    if values.is_empty() {
        values = branches(&mut expr);
    }
    // What has no type yet is for the planner to say.
    let types = values.iter().map(|value| value.get_type(schema).ok());
    let types: Vec<_> = types.collect();
    if !types.iter().flatten().any(is_time_of_day) {
        return Ok(Transformed::no(expr));
    }
    let mut times = Vec::new();
    for (value, of) in values.into_iter().zip(types) {
        match (&*value, of) {
            (_, Some(of)) if is_time_of_day(&of) => times.push((value, of)),
            // The text of one is read whole, and not cut to the unit of what it stands beside.
            (Expr::Literal(text, _), Some(of)) if of.is_string() => {
                let nanoseconds = DataType::Time64(TimeUnit::Nanosecond);
                if let Ok(time) = text.cast_to(&nanoseconds) {
                    *value = lit(time);
                    times.push((value, nanoseconds));
                }
            }
            _ => {}
        }
    }
    if times.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return Ok(Transformed::no(expr));
    }
    let constant = |(value, _): &&(&mut Expr, DataType)| match &**value {
        Expr::Literal(constant, _) => Some(constant.clone()),
        _ => None,
    };
    let mut computed = times.iter().filter(|time| constant(time).is_none());
    let unit = computed.next().map(|(_, of)| of.clone());
    let unit = unit.filter(|unit| {
        let is_exact = |constant: ScalarValue| {
            let there = constant.cast_to(unit);
            let back = there.and_then(|there| there.cast_to(&constant.data_type()));
            back.is_ok_and(|back| back == constant)
        };
        computed.all(|(_, of)| of == unit)
            && times
                .iter()
                .filter_map(|time| constant(&time))
                .all(is_exact)
    });
    let unit = unit.unwrap_or(DataType::Time64(TimeUnit::Nanosecond));
    for (value, of) in times {
        if of != unit {
            *value = match std::mem::take(value) {
                Expr::Literal(constant, _) => lit(constant.cast_to(&unit)?),
                computed => cast(computed, unit.clone()),
            };
        }
    }
    Ok(Transformed::yes(expr))
}

/// The type that columns of a union get which DataFusion gives none, or one that does not hold them: floats for
/// decimals beside floats, and nanoseconds for times of day of different units.
fn common_type(types: &[&DataType]) -> Option<DataType> {
    let has = |is: fn(&DataType) -> bool| types.iter().any(|of| is(of));
    if has(DataType::is_floating) && has(DataType::is_decimal) {
        return Some(DataType::Float64);
    }
    let mut times = types.iter().filter(|of| is_time_of_day(of));
    let first = times.next()?;
    times
        .any(|of| of != first)
        .then_some(DataType::Time64(TimeUnit::Nanosecond))
}

/// A union whose inputs have such types.
fn of_common_types(union: Union) -> Result<Transformed<LogicalPlan>> {
    let columns = 0..union.schema.fields().len();
    let common = columns.map(|place| {
        let inputs = union.inputs.iter();
        let fields = inputs.filter_map(|input| input.schema().fields().get(place));
        common_type(&fields.map(|field| field.data_type()).collect::<Vec<_>>())
    });
    let common: Vec<Option<DataType>> = common.collect();
    if common.iter().all(Option::is_none) {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    let inputs = union.inputs.into_iter().map(|input| {
        let columns = input.schema().iter().zip(&common);
        let columns = columns.map(|((qualifier, field), common)| {
            let column = Expr::Column(Column::from((qualifier, field)));
            let of = field.data_type();
            match common {
                Some(common) if common != of && (of.is_decimal() || is_time_of_day(of)) => {
                    cast(column, common.clone()).alias_qualified(qualifier.cloned(), field.name())
                }
                _ => column,
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

/// The least and the greatest intervals by their length.
fn ends_by_length(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let schema = Arc::clone(aggregate.input.schema());
    let is_end = |expr: &Expr| match expr {
        Expr::AggregateFunction(AggregateFunction { func, params }) => {
            let of = params.args.first().map(|value| value.get_type(&schema));
            matches!(func.name(), "max" | "min") && matches!(of, Some(Ok(DataType::Interval(_))))
        }
        _ => false,
    };
    let plan = LogicalPlan::Aggregate(aggregate);
    if !has_part(&plan, is_end)? {
        return Ok(Transformed::no(plan));
    }
    map_named_expressions(plan, |expr| {
        expr.transform_up(|expr| match expr {
            expr if !is_end(&expr) => Ok(Transformed::no(expr)),
            Expr::AggregateFunction(AggregateFunction { func, params }) => {
                let value = params.args[0].clone();
                let is_there = value.clone().is_not_null();
                let filter = match params.filter {
                    Some(filter) => filter.and(is_there),
                    None => is_there,
                };
                let order = intervals::length(value).sort(func.name() == "min", false);
                Ok(Transformed::yes(Expr::AggregateFunction(
                    AggregateFunction::new_udf(
                        first_value_udaf(),
                        params.args,
                        false,
                        Some(Box::new(filter)),
                        vec![order],
                        None,
                    ),
                )))
            }
            other => Ok(Transformed::no(other)),
        })
    })
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
