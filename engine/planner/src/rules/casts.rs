//! Casts of which DataFusion believes what does not hold.
//!
//! It takes a cast off a column that is compared with a constant, also where several values become one:
//! `d::INT = 1` was `d = 1`, without 1.25, and `try_cast(big AS INT) = 1` FALSE, not NULL, where `big` does not
//! fit. A constant it cuts to the unit of a column of timestamps: one of seconds was equal to half past one. And it casts the least and the greatest value of a column to have those of the cast column: of 3 and 11 as
//! texts, `'3'` to `'11'`, where filters above them fail. Here it does not see what is cast.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DataType, Field, FieldRef, TimeUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::{InList, ScalarFunction};
use datafusion::logical_expr::interval_arithmetic::Interval;
use datafusion::logical_expr::{
    Between, BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule};
use flashmesh_pushdown::types::is_widening_cast;

use super::comparisons::compares;
use crate::tree::{change_parts, has_part, map_named_expressions, value_of};

const NAME: &str = "flashmesh:as_it_is";

static FUNCTION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
    Arc::new(ScalarUDF::from(AsItIs {
        signature: Signature::any(1, Volatility::Immutable),
    }))
});

/// A value as it is, of which planners know nothing else: a node that runs a part of a plan must know it.
pub fn function() -> Arc<ScalarUDF> {
    Arc::clone(&FUNCTION)
}

/// Whether a function is that one.
pub(crate) fn is_as_it_is(function: &ScalarUDF) -> bool {
    function.name() == NAME
}

fn as_it_is(value: Expr) -> Expr {
    Expr::ScalarFunction(ScalarFunction::new_udf(function(), vec![value]))
}

/// Keeps casts that lose something where they are compared; place it behind the rule that gives types.
#[derive(Debug)]
pub struct LossyCasts;

impl AnalyzerRule for LossyCasts {
    fn name(&self) -> &str {
        "flashmesh_lossy_casts"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let is_one = |expr: &Expr| matches!(expr, Expr::Cast(_) | Expr::TryCast(_));
        // Filters above a projection come to what it computes.
        let plan = plan.transform_up_with_subqueries(|node| match &node {
            LogicalPlan::Projection(projection) if has_part(&node, is_one)? => {
                let schema = Arc::clone(projection.input.schema());
                map_named_expressions(node, |mut expr| {
                    let mut computed = &mut expr;
                    while let Expr::Alias(alias) = computed {
                        computed = &mut alias.expr;
                    }
                    let Some(value) = lossy(computed, &schema)? else {
                        return Ok(Transformed::no(expr));
                    };
                    *value = as_it_is(std::mem::take(value));
                    Ok(Transformed::yes(expr))
                })
            }
            _ => Ok(Transformed::no(node)),
        })?;
        change_parts(plan.data, is_one, |expr, schema| {
            expr.transform_up(|mut expr| {
                let values = compared(&mut expr);
                if values.is_empty() {
                    return Ok(Transformed::no(expr));
                }
                let hidden = values.iter().enumerate().map(|(place, value)| {
                    let others = values.iter().enumerate();
                    let mut others = others.filter(|(other, _)| *other != place);
                    unit_below(value, schema)
                        .is_some_and(|unit| others.any(|(_, other)| !is_of_unit(other, unit)))
                });
                let hidden: Vec<bool> = hidden.collect();
                let mut changed = false;
                for (value, is_hidden) in values.into_iter().zip(hidden) {
                    let hidden = match is_hidden {
                        true => Some(value),
                        false => lossy(value, schema)?,
                    };
                    if let Some(value) = hidden {
                        *value = as_it_is(std::mem::take(value));
                        changed = true;
                    }
                }
                Ok(Transformed::new_transformed(expr, changed))
            })
        })
    }
}

/// What a comparison compares.
fn compared(expr: &mut Expr) -> Vec<&mut Expr> {
    let is_comparison = compares(expr);
    match expr {
        Expr::InList(InList { expr, list, .. }) => {
            std::iter::once(expr.as_mut()).chain(list).collect()
        }
        Expr::Between(Between {
            expr, low, high, ..
        }) => vec![expr, low, high],
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) if is_comparison => vec![left, right],
        _ => vec![],
    }
}

/// The unit of a timestamp that is cast to one of a finer unit.
fn unit_below(expr: &Expr, schema: &DFSchema) -> Option<TimeUnit> {
    let (value, to) = match expr {
        Expr::Cast(cast) => (&cast.expr, cast.field.data_type()),
        Expr::TryCast(cast) => (&cast.expr, cast.field.data_type()),
        _ => return None,
    };
    match (value.get_type(schema), to) {
        (Ok(DataType::Timestamp(from, _)), DataType::Timestamp(to, _)) => {
            (nanoseconds(from) > nanoseconds(*to)).then_some(from)
        }
        _ => None,
    }
}

/// Whether a constant has no parts of that unit. What is no constant is not one of those that are lost, and the
/// present moment is none that anybody knows to such a part.
fn is_of_unit(expr: &Expr, unit: TimeUnit) -> bool {
    let may_change = |part: &Expr| {
        matches!(part, Expr::ScalarFunction(call)
            if call.func.signature().volatility != Volatility::Immutable)
    };
    if expr.any_column_refs() || expr.exists(|part| Ok(may_change(part))).unwrap_or(true) {
        return true;
    }
    let (value, of) = match value_of(expr) {
        Ok(ScalarValue::TimestampNanosecond(value, _)) => (value, TimeUnit::Nanosecond),
        Ok(ScalarValue::TimestampMicrosecond(value, _)) => (value, TimeUnit::Microsecond),
        Ok(ScalarValue::TimestampMillisecond(value, _)) => (value, TimeUnit::Millisecond),
        // A subquery is none yet, and what fails does so where it is computed.
        _ => return true,
    };
    let parts = nanoseconds(unit) / nanoseconds(of);
    parts <= 1 || value.is_none_or(|value| value % parts == 0)
}

fn nanoseconds(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    }
}

/// The cast that loses something, which an expression is or casts.
fn lossy<'a>(expr: &'a mut Expr, schema: &DFSchema) -> Result<Option<&'a mut Expr>> {
    if loses(expr, schema)? {
        return Ok(Some(expr));
    }
    match expr {
        Expr::Cast(cast) => lossy(&mut cast.expr, schema),
        Expr::TryCast(cast) => lossy(&mut cast.expr, schema),
        _ => Ok(None),
    }
}

/// Whether an expression is a cast that makes one of several numbers, or of a number none.
fn loses(expr: &Expr, schema: &DFSchema) -> Result<bool> {
    let (value, to, is_try) = match expr {
        Expr::Cast(cast) => (&cast.expr, cast.field.data_type(), false),
        Expr::TryCast(cast) => (&cast.expr, cast.field.data_type(), true),
        _ => return Ok(false),
    };
    let from = value.get_type(schema)?;
    Ok(match (decimals(&from), decimals(to)) {
        (Some(_), Some(_)) if is_try => !is_widening_cast(&from, to),
        (Some(from), Some(to)) => from > to,
        _ => false,
    })
}

/// The digits behind the point of a type of exact numbers.
fn decimals(of: &DataType) -> Option<i8> {
    match of {
        of if of.is_integer() => Some(0),
        DataType::Decimal32(_, scale)
        | DataType::Decimal64(_, scale)
        | DataType::Decimal128(_, scale)
        | DataType::Decimal256(_, scale) => Some(*scale),
        _ => None,
    }
}

/// Leaves bounds of texts texts, and those of others what they are; place it behind the rules that make
/// projections.
#[derive(Debug)]
pub(super) struct CastsOfTexts;

impl OptimizerRule for CastsOfTexts {
    fn name(&self) -> &str {
        "flashmesh_casts_of_texts"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Projection(projection) = &plan else {
            return Ok(Transformed::no(plan));
        };
        let schema = Arc::clone(projection.input.schema());
        let mut exprs = projection.expr.iter();
        if !exprs.any(|expr| reorders(&expr.clone().unalias_nested().data, &schema)) {
            return Ok(Transformed::no(plan));
        }
        map_named_expressions(plan, |expr| Ok(hidden(expr, &schema)))
    }
}

/// Whether casts of a column, one in the other, make texts of what is none, or something else of texts.
fn reorders(expr: &Expr, schema: &DFSchema) -> bool {
    let is_text = |of: &DataType| of.is_string();
    let Expr::Cast(cast) = expr else {
        return false;
    };
    let inner = cast.expr.get_type(schema);
    let crosses = inner.is_ok_and(|inner| is_text(&inner) != is_text(cast.field.data_type()));
    match cast.expr.as_ref() {
        Expr::Column(_) => crosses,
        inner => reorders(inner, schema),
    }
}

/// The column in those casts as it is.
fn hidden(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let mut expr = expr;
    let mut inner = &mut expr;
    while let Expr::Alias(alias) = inner {
        inner = &mut alias.expr;
    }
    if !reorders(inner, schema) {
        return Transformed::no(expr);
    }
    while let Expr::Cast(cast) = inner {
        inner = &mut cast.expr;
    }
    *inner = as_it_is(std::mem::take(inner));
    Transformed::yes(expr)
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AsItIs {
    signature: Signature,
}

impl ScalarUDFImpl for AsItIs {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [only] => Ok(only.clone()),
            _ => internal_err!("{NAME} takes one value"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::new(Field::clone(&args.arg_fields[0]).with_name(NAME)))
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        Ok(inputs[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(args.args[0].clone())
    }
}
