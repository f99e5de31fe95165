//! Lists with NULL beside other lists of the same column.
//!
//! DataFusion makes one list of two (`x IN (…) AND x NOT IN (…)`: what is in the first and not in the
//! second) as if no element were NULL: with one, `x NOT IN (…)` is FALSE or NULL and never TRUE. So the
//! NULL is taken out of the list and stands beside it.

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::InList;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
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
            // A list by itself stays as it is: an index may answer it.
            if lists(&expr)? < 2 {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            let apart = expr.transform_up(|expr| match expr {
                Expr::InList(list) if list.list.iter().any(is_null) => {
                    Ok(Transformed::yes(null_apart(list)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(apart.update_data(|expr| name.restore(expr)))
        })
    }
}

fn lists(expr: &Expr) -> Result<usize> {
    let mut count = 0;
    expr.apply(|expr| {
        count += usize::from(matches!(expr, Expr::InList(_)));
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(count)
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
