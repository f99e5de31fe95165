//! Walks over expressions: DataFusion's, and the Program's, whose columns are renumbered.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr as LogicalExpr, LogicalPlan, Subquery};
use flashmesh_pushdown::{Aggregate, Expr, Output};

/// The subquery that `expr` itself is.
pub fn subquery_of(expr: &LogicalExpr) -> Option<&Subquery> {
    match expr {
        LogicalExpr::ScalarSubquery(subquery) => Some(subquery),
        LogicalExpr::Exists(test) => Some(&test.subquery),
        LogicalExpr::InSubquery(test) => Some(&test.subquery),
        LogicalExpr::SetComparison(test) => Some(&test.subquery),
        _ => None,
    }
}

/// Whether a subquery is in `expr`.
pub fn has_subquery(expr: &LogicalExpr) -> Result<bool> {
    expr.exists(|node| Ok(subquery_of(node).is_some()))
}

/// Whether some part of a node's own expressions is such a one.
///
/// # Errors
/// Those of walking.
pub fn has_part(node: &LogicalPlan, is_one: impl Fn(&LogicalExpr) -> bool) -> Result<bool> {
    let mut has_any = false;
    node.apply_expressions(|expr| {
        has_any = has_any || expr.exists(|part| Ok(is_one(part)))?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(has_any)
}

/// The node with its expressions changed by `f`; its columns keep their names. Its schema is as it was: where
/// types change, make it anew.
///
/// # Errors
/// Those of `f`.
pub fn map_named_expressions(
    node: LogicalPlan,
    mut f: impl FnMut(LogicalExpr) -> Result<Transformed<LogicalExpr>>,
) -> Result<Transformed<LogicalPlan>> {
    let names = NamePreserver::new(&node);
    let mut named = |expr: LogicalExpr| {
        let name = names.save(&expr);
        let changed = f(expr)?;
        Ok(match changed.transformed {
            true => changed.update_data(|expr| name.restore(expr)),
            false => changed,
        })
    };
    node.map_expressions(|expr| match expr {
        // Planners look for these at the top; their columns are those of what is in them.
        LogicalExpr::GroupingSet(_) => expr.map_children(&mut named),
        expr => named(expr),
    })
}

/// All expressions of an output.
pub fn output_exprs(output: &Output) -> Vec<&Expr> {
    match output {
        Output::Rows { exprs, .. } => exprs.iter().collect(),
        Output::Aggregate { keys, aggregates } => keys
            .iter()
            .chain(aggregates.iter().flat_map(Aggregate::exprs))
            .collect(),
        Output::Nearest { expr, exprs, .. } => [expr].into_iter().chain(exprs).collect(),
    }
}

/// `expr` with each column `c` replaced by `f(c)`.
pub fn map_columns(expr: &Expr, f: &impl Fn(u32) -> u32) -> Expr {
    let mut expr = expr.clone();
    expr.for_each_column_mut(&mut |column| *column = f(*column));
    expr
}

/// `output` with each column `c` replaced by `f(c)`.
pub fn map_output_columns(output: &Output, f: &impl Fn(u32) -> u32) -> Output {
    let mut output = output.clone();
    let mut renumber =
        |expr: &mut Expr| expr.for_each_column_mut(&mut |column| *column = f(*column));
    match &mut output {
        Output::Rows { exprs, .. } => exprs.iter_mut().for_each(&mut renumber),
        Output::Nearest { expr, exprs, .. } => {
            renumber(expr);
            exprs.iter_mut().for_each(&mut renumber);
        }
        Output::Aggregate { keys, aggregates } => {
            keys.iter_mut().for_each(&mut renumber);
            for aggregate in aggregates {
                aggregate
                    .argument
                    .iter_mut()
                    .chain(&mut aggregate.filter)
                    .for_each(&mut renumber);
            }
        }
    }
    output
}
