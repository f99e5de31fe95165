//! Conditions that keep others from being computed, as in `kind = 'number' AND value::INT > 5`.
//!
//! DataFusion computes the operands of AND and OR for all rows of a batch, unless few are left to be decided: a cast
//! or a division fails for rows that another operand leaves out. SQL gives no order to them, but other databases
//! compute what may fail for the rows alone that the rest has not decided, and so do filters and projections here.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal, case, lit};
use datafusion::physical_expr::{HigherOrderFunctionExpr, PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};
use flashmesh_pushdown::types::is_widening_cast;

use crate::hidden::{is_as_it_is, is_maybe_null};
use crate::walk::Walk as _;

/// The rule; place it last: what it makes of a condition, other rules no longer read as one.
#[derive(Debug)]
pub struct ConditionsThatGuard;

impl PhysicalOptimizerRule for ConditionsThatGuard {
    fn name(&self) -> &str {
        "flashmesh_conditions_that_guard"
    }

    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let changed = plan.transform_up(|node| {
            let changed = if let Some(filter) = node.downcast_ref::<FilterExec>() {
                guarded_filter(filter)?
            } else if let Some(projection) = node.downcast_ref::<ProjectionExec>() {
                guarded_projection(projection)?
            } else {
                None
            };
            Ok(match changed {
                Some(changed) => Transformed::yes(changed),
                None => Transformed::no(node),
            })
        })?;
        Ok(changed.data)
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// The filter with such a condition; `None` where it has one.
fn guarded_filter(filter: &FilterExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = filter.input().schema();
    let predicate = Arc::clone(filter.predicate());
    let predicate = guarded(predicate, &schema, Unknown::IsFalse)?;
    if !predicate.transformed {
        return Ok(None);
    }
    let builder = FilterExecBuilder::from(filter).with_predicate(predicate.data);
    Ok(Some(Arc::new(builder.build()?)))
}

fn guarded_projection(projection: &ProjectionExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let schema = projection.input().schema();
    let mut has_changed = false;
    let exprs = projection.expr().iter().map(|one| {
        let expr = guarded(Arc::clone(&one.expr), &schema, Unknown::IsUnknown)?;
        has_changed |= expr.transformed;
        Ok(ProjectionExpr::new(expr.data, one.alias.clone()))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if !has_changed {
        return Ok(None);
    }
    let input = Arc::clone(projection.input());
    let schema = projection.schema();
    let changed = ProjectionExec::try_new_with_schema_metadata(exprs, input, &schema)?;
    Ok(Some(Arc::new(changed)))
}

type Condition = Arc<dyn PhysicalExpr>;

/// What NULL is in a condition.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unknown {
    /// A filter leaves such rows out.
    IsFalse,
    IsUnknown,
}

/// An expression whose operands of AND and OR that may fail come last, and are computed for rows alone that those
/// before them have not decided.
fn guarded(expr: Condition, schema: &Schema, unknown: Unknown) -> Result<Transformed<Condition>> {
    // What is in a lambda is over elements of lists.
    if expr.is::<HigherOrderFunctionExpr>() {
        return Ok(Transformed::no(expr));
    }
    let Some(op) = connective(&expr) else {
        return expr.map_children(|child| guarded(child, schema, Unknown::IsUnknown));
    };
    let mut operands = Vec::new();
    flatten(&expr, op, &mut operands);
    let mut has_changed = false;
    let (mut first, mut last) = (Vec::new(), Vec::new());
    for operand in operands {
        let operand = guarded(operand, schema, unknown)?;
        has_changed |= operand.transformed;
        match may_fail(&operand.data, schema)? {
            false => first.push(operand.data),
            true => last.push(operand.data),
        }
    }
    if last.is_empty() && !has_changed {
        return Ok(Transformed::no(expr));
    }
    let mut last = last.into_iter();
    let first = first.into_iter().reduce(|all, next| binary(all, op, next));
    let first = first.or_else(|| last.next());
    let first = first.expect("an operator has operands");
    let all = last.try_fold(first, |all, next| guard(all, op, next, schema, unknown));
    all.map(Transformed::yes)
}

fn connective(expr: &Condition) -> Option<Operator> {
    let op = *expr.downcast_ref::<BinaryExpr>()?.op();
    matches!(op, Operator::And | Operator::Or).then_some(op)
}

fn flatten(expr: &Condition, op: Operator, operands: &mut Vec<Condition>) {
    match expr.downcast_ref::<BinaryExpr>() {
        Some(binary) if *binary.op() == op => {
            flatten(binary.left(), op, operands);
            flatten(binary.right(), op, operands);
        }
        _ => operands.push(Arc::clone(expr)),
    }
}

fn binary(left: Condition, op: Operator, right: Condition) -> Condition {
    Arc::new(BinaryExpr::new(left, op, right))
}

/// `all AND next` or `all OR next`, with `next` computed where `all` does not decide.
fn guard(
    all: Condition,
    op: Operator,
    next: Condition,
    schema: &Schema,
    unknown: Unknown,
) -> Result<Condition> {
    let is_or = op == Operator::Or;
    let decided = lit(is_or);
    let open = lit(!is_or);
    if unknown == Unknown::IsFalse || !all.nullable(schema)? {
        return match is_or {
            true => case(None, vec![(all, decided)], Some(next)),
            false => case(None, vec![(all, next)], Some(decided)),
        };
    }
    let beside_null = binary(lit(ScalarValue::Boolean(None)), op, Arc::clone(&next));
    let cases = vec![(Arc::clone(&decided), decided), (open, next)];
    case(Some(all), cases, Some(beside_null))
}

/// Whether an expression may fail for some values. Functions are taken for such: they cost more than comparisons,
/// too, and are better computed for fewer rows.
fn may_fail(expr: &Condition, schema: &Schema) -> Result<bool> {
    let mut may = false;
    expr.apply(|part| {
        may = if let Some(cast) = part.downcast_ref::<CastExpr>() {
            let (from, to) = (cast.expr().data_type(schema)?, cast.cast_type());
            !cast.cast_options().safe && !to.is_string() && !is_widening_cast(&from, to)
        } else if let Some(binary) = part.downcast_ref::<BinaryExpr>() {
            let divides = matches!(binary.op(), Operator::Divide | Operator::Modulo);
            divides && !part.data_type(schema)?.is_floating() && !binary.right().is::<Literal>()
        } else if let Some(call) = part.downcast_ref::<ScalarFunctionExpr>() {
            !is_as_it_is(call.fun()) && !is_maybe_null(call.fun())
        } else {
            part.is::<HigherOrderFunctionExpr>()
        };
        Ok(match may {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(may)
}
