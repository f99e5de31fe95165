//! Lists with NULL beside other lists of the same column.
//!
//! DataFusion makes one list of two (`x IN (…) AND x NOT IN (…)`: what is in the first and not in the
//! second) as if no element were NULL: with one, `x NOT IN (…)` is FALSE or NULL and never TRUE. So the
//! NULL is taken out of the list and stands beside it. A list, for DataFusion, may be `x = 1 OR x = 2`,
//! too.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{BinaryExpr, Expr, LogicalPlan, Operator, lit};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

/// The rule; place it before `simplify_expressions`.
#[derive(Debug)]
pub struct NullsOfLists;

impl OptimizerRule for NullsOfLists {
    fn name(&self) -> &str {
        "flashmesh_nulls_of_lists"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        let names = NamePreserver::new(&plan);
        plan.map_expressions(|expr| {
            let compared = compared(&expr)?;
            if compared.len() < 2 {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            let apart = expr.transform_up(|expr| match expr {
                // A list by itself stays as it is: an index may answer it.
                Expr::InList(list)
                    if list.list.iter().any(is_null)
                        && compared.iter().filter(|one| **one == *list.expr).count() > 1 =>
                {
                    Ok(Transformed::yes(null_apart(list)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(apart.update_data(|expr| name.restore(expr)))
        })
    }
}

/// What is compared with lists and with single values, where a list has a NULL: as often as it is.
fn compared(expr: &Expr) -> Result<Vec<Expr>> {
    let (mut compared, mut has_null) = (Vec::new(), false);
    expr.apply(|expr| {
        match expr {
            Expr::InList(list) => {
                has_null |= list.list.iter().any(is_null);
                compared.push(list.expr.as_ref().clone());
            }
            Expr::BinaryExpr(BinaryExpr {
                left,
                op: Operator::Eq | Operator::NotEq,
                right,
            }) => {
                compared.extend([left.as_ref().clone(), right.as_ref().clone()]);
            }
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(if has_null { compared } else { Vec::new() })
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}

/// `x IN (rest) OR NULL`, `x NOT IN (rest) AND NULL`
fn null_apart(list: InList) -> Expr {
    let null = lit(ScalarValue::Boolean(None));
    let rest: Vec<_> = list.list.into_iter().filter(|e| !is_null(e)).collect();
    if rest.is_empty() {
        return null;
    }
    let negated = list.negated;
    let rest = Expr::InList(InList {
        expr: list.expr,
        list: rest,
        negated,
    });
    match negated {
        true => rest.and(null),
        false => rest.or(null),
    }
}
