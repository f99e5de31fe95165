//! Columns of a query that a subquery uses.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DFSchema, Result};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan};

use super::lateral;
use crate::tree::{has_subquery, subquery_of};
use crate::walk::{Walk as _, WalkPlan as _};

/// Whether a subquery is in a plan, as an expression or a side of a join.
pub(crate) fn has_subquery_below(plan: &LogicalPlan) -> Result<bool> {
    plan.exists(|node| {
        if matches!(node, LogicalPlan::Subquery(_)) {
            return Ok(true);
        }
        let mut has = false;
        node.walk_expressions(|expr| {
            has |= has_subquery(expr)?;
            Ok(match has {
                true => TreeNodeRecursion::Stop,
                false => TreeNodeRecursion::Continue,
            })
        })?;
        Ok(has)
    })
}

/// The columns of the query around it, whose schema is `outer`, that a plan uses: itself, and in subqueries
/// of its own, where no query nearer to those has them.
///
/// # Errors
/// Those of walking.
pub(super) fn outer_columns(plan: &LogicalPlan, outer: &DFSchema) -> Result<Vec<Column>> {
    let mut walk = Walk::new(outer);
    walk.plan(plan)?;
    Ok(walk.found)
}

/// Those of a node, without its inputs.
///
/// # Errors
/// Those of walking.
pub(super) fn outer_columns_of_node(node: &LogicalPlan, outer: &DFSchema) -> Result<Vec<Column>> {
    let mut walk = Walk::new(outer);
    walk.expressions(node)?;
    Ok(walk.found)
}

struct Walk<'a> {
    outer: &'a DFSchema,
    nearer: Vec<DFSchema>,
    found: Vec<Column>,
}

impl<'a> Walk<'a> {
    fn new(outer: &'a DFSchema) -> Self {
        Self {
            outer,
            nearer: Vec::new(),
            found: Vec::new(),
        }
    }

    fn plan(&mut self, plan: &LogicalPlan) -> Result<()> {
        self.expressions(plan)?;
        match plan {
            LogicalPlan::Join(join) if lateral(&join.right).is_some() => {
                self.plan(&join.left)?;
                self.nearer.push(join.left.schema().as_ref().clone());
                self.plan(&join.right)?;
                self.nearer.pop();
            }
            _ => plan
                .inputs()
                .into_iter()
                .try_for_each(|input| self.plan(input))?,
        }
        Ok(())
    }

    fn expressions(&mut self, node: &LogicalPlan) -> Result<()> {
        node.walk_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::OuterReferenceColumn(_, column) = expr {
                    let is_nearer = self.nearer.iter().any(|schema| schema.has_column(column));
                    if !is_nearer && self.outer.has_column(column) && !self.found.contains(column) {
                        self.found.push(column.clone());
                    }
                } else if let Some(subquery) = subquery_of(expr) {
                    self.nearer.push(merge_schema(&node.inputs()));
                    self.plan(&subquery.subquery)?;
                    self.nearer.pop();
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        Ok(())
    }
}
