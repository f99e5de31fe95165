//! The days between two dates.
//!
//! DataFusion's type of `a - b` is a whole number where the difference is computed, and a duration where its
//! optimizer asks between which values it is: `WHERE a - b > 1` was an internal error.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, LogicalPlan, Operator, cast};
use datafusion::optimizer::AnalyzerRule;

use crate::tree::{has_part, map_named_expressions};

/// Makes it a difference of whole numbers; place it behind the rule that gives types, and before the one that
/// checks arithmetic.
#[derive(Debug)]
pub struct DaysBetween;

impl AnalyzerRule for DaysBetween {
    fn name(&self) -> &str {
        "flashmesh_days_between"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(of_node)?.data)
    }
}

fn of_node(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    if !has_part(&node, subtracts)? {
        return Ok(Transformed::no(node));
    }
    let schema = merge_schema(&node.inputs());
    map_named_expressions(node, |expr| {
        expr.transform_up(|expr| as_numbers(expr, &schema))
    })
}

fn subtracts(expr: &Expr) -> bool {
    matches!(
        expr,
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::Minus,
            ..
        })
    )
}

/// The number of a day, which is known to be one of 32 bits: of two of them the difference fits.
fn days(date: Expr) -> Expr {
    cast(cast(date, DataType::Int32), DataType::Int64)
}

fn as_numbers(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_date = |expr: &Expr| matches!(expr.get_type(schema), Ok(DataType::Date32));
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr {
            left,
            op: Operator::Minus,
            right,
            // The right side of a long chain is the short one.
        }) if is_date(&right) && is_date(&left) => Transformed::yes(days(*left) - days(*right)),
        other => Transformed::no(other),
    })
}
