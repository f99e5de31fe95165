//! The types of lambda functions' parameters.
//!
//! DataFusion gives them when a query is planned, and casts operands to common types later: in
//! `list_transform(CASE WHEN b THEN [i] ELSE [2] END, x -> x)`, with `i` of 32 bits, the list becomes one of 64
//! bits, and `x` stays what it was, which is an error when operators are made.

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;

use crate::walk::{Walk as _, WalkPlan as _};

/// The rule; place it behind the one that casts operands.
#[derive(Debug)]
pub struct LambdaParameters;

impl AnalyzerRule for LambdaParameters {
    fn name(&self) -> &str {
        "flashmesh_lambda_parameters"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !has_lambdas(&plan)? {
            return Ok(plan);
        }
        let plan = plan.resolve_lambda_variables()?.data;
        // What the bodies compute is of other types now.
        TypeCoercion::new().analyze(plan, config)
    }
}

fn has_lambdas(plan: &LogicalPlan) -> Result<bool> {
    let mut has_any = false;
    plan.walk_with_subqueries(|node| {
        node.walk_expressions(|expr| {
            has_any = has_any || expr.exists(|part| Ok(matches!(part, Expr::Lambda(_))))?;
            Ok(TreeNodeRecursion::Continue)
        })
    })?;
    Ok(has_any)
}
