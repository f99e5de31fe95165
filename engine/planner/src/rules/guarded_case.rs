//! CASE that keeps errors out.
//!
//! DataFusion writes a short CASE of Booleans as AND and OR, whose operands are then computed for
//! any rows and in any order: a cast or a division fails for rows that CASE had guarded it from.
//! `CASE TRUE WHEN …` means the same as `CASE WHEN …` and is left alone.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::expr::Case;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, lit};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::tree::map_named_expressions;
use crate::walk::Walk as _;

/// The rule; place it before `simplify_expressions`.
#[derive(Debug)]
pub struct GuardedCase;

impl OptimizerRule for GuardedCase {
    fn name(&self) -> &str {
        "flashmesh_guarded_case"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let schema = merge_schema(&plan.inputs());
        map_named_expressions(plan, |expr| {
            expr.transform_down(|expr| match expr {
                Expr::Case(case) if guards(&case) && is_boolean(&case, &schema) => {
                    let expr = Some(Box::new(lit(true)));
                    Ok(Transformed::yes(Expr::Case(Case { expr, ..case })))
                }
                other => Ok(Transformed::no(other)),
            })
        })
    }
}

/// Whether a condition keeps what may fail from being computed.
fn guards(case: &Case) -> bool {
    let conditions = case.when_then_expr.iter().map(|(when, _)| when);
    let values = case.when_then_expr.iter().map(|(_, then)| then);
    let mut guarded = conditions.skip(1).chain(values).chain(&case.else_expr);
    case.expr.is_none() && guarded.any(|expr| may_fail(expr))
}

fn is_boolean(case: &Case, schema: &DFSchema) -> bool {
    let mut values = case.when_then_expr.iter().map(|(_, then)| then);
    let is_boolean = |value: &Expr| value.get_type(schema).is_ok_and(|t| t == DataType::Boolean);
    values.any(|value| is_boolean(value))
}

/// Whether an expression has a part that fails for some values, as far as its form tells.
fn may_fail(expr: &Expr) -> bool {
    let fails = |node: &Expr| {
        let is_safe = match node {
            Expr::BinaryExpr(BinaryExpr { op, .. }) => {
                op.supports_propagation() || matches!(op, Operator::And | Operator::Or)
            }
            Expr::Column(_)
            | Expr::OuterReferenceColumn(..)
            | Expr::Literal(..)
            | Expr::Alias(_)
            | Expr::Not(_)
            | Expr::IsNull(_)
            | Expr::IsNotNull(_)
            | Expr::IsTrue(_)
            | Expr::IsFalse(_)
            | Expr::IsUnknown(_)
            | Expr::IsNotTrue(_)
            | Expr::IsNotFalse(_)
            | Expr::IsNotUnknown(_)
            | Expr::Between(_)
            | Expr::InList(_)
            | Expr::Like(_)
            | Expr::TryCast(_)
            | Expr::Case(_) => true,
            _ => false,
        };
        Ok(!is_safe)
    };
    // The closure never fails; what can't be told may.
    expr.exists(fails).unwrap_or(true)
}
