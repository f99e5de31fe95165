//! Types of the columns that subqueries use of the queries around them.
//!
//! A subquery is planned with those that a column has then. Where rows of several queries come together, `UNION`, or
//! values of CASE, DataFusion gives them one type later, and leaves what subqueries use of them as it was.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, ExprSchema, Result};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Expr, LogicalPlan, Union};
use datafusion::optimizer::AnalyzerRule;
use datafusion::optimizer::analyzer::type_coercion::TypeCoercion;

use super::outer::has_subquery_below;
use super::{lateral, with_plan, with_subquery};
use crate::tree::{has_part, map_named_expressions, subquery_of};
use crate::walk::{Walk as _, WalkPlan as _};

/// Gives them the types that the columns will have; place it before the rule that gives types.
#[derive(Debug)]
pub struct OuterTypes;

impl AnalyzerRule for OuterTypes {
    fn name(&self) -> &str {
        "flashmesh_outer_types"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        if !has_subquery_below(&plan)? {
            return Ok(plan);
        }
        let mut has_any = false;
        let plan = plan.change_up_with_subqueries(|node| match node {
            LogicalPlan::Union(union) if has_several_types(&union) => {
                has_any = true;
                let union = LogicalPlan::Union(union);
                Ok(Transformed::yes(
                    TypeCoercion::new().analyze(union, config)?,
                ))
            }
            node if has_case(&node)? => {
                let node = node.recompute_schema()?;
                let typed = TypeCoercion::new().analyze(node.clone(), config)?;
                let is_as_typed = typed
                    .schema()
                    .logically_equivalent_names_and_types(node.schema());
                has_any |= !is_as_typed;
                Ok(Transformed::yes(if is_as_typed { node } else { typed }))
            }
            node if has_any => node.recompute_schema().map(Transformed::yes),
            node => Ok(Transformed::no(node)),
        })?;
        match has_any {
            true => Ok(in_plan(plan.data, &mut vec![])?.data),
            false => Ok(plan.data),
        }
    }
}

fn has_several_types(union: &Union) -> bool {
    let mut inputs = union.inputs.windows(2);
    inputs.any(|pair| {
        let [one, other] = [&pair[0], &pair[1]].map(|input| input.schema().fields());
        let mut columns = one.iter().zip(other.iter());
        columns.any(|(one, other)| one.data_type() != other.data_type())
    })
}

/// Whether a projection has a CASE, and no subquery, whose own columns may have other types.
fn has_case(node: &LogicalPlan) -> Result<bool> {
    Ok(matches!(node, LogicalPlan::Projection(_))
        && has_part(node, |expr| matches!(expr, Expr::Case(_)))?
        && !has_subquery_below(node)?)
}

/// `around`: the columns of the queries around the plan, the nearest last.
fn in_plan(plan: LogicalPlan, around: &mut Vec<Arc<DFSchema>>) -> Result<Transformed<LogicalPlan>> {
    let own = Arc::new(merge_schema(&plan.inputs()));
    let beside = match &plan {
        LogicalPlan::Join(join) if lateral(&join.right).is_some() => {
            Some((Arc::clone(&join.right), Arc::clone(join.left.schema())))
        }
        _ => None,
    };
    let changed = map_named_expressions(plan, |expr| {
        expr.transform_down(|expr| in_expr(expr, &own, around))
    })?;
    changed.transform_sibling(|plan| {
        plan.map_children(|input| {
            let depth = around.len();
            let is_beside = { beside.iter() }.filter(|(right, _)| right.as_ref() == &input);
            around.extend(is_beside.map(|(_, left)| Arc::clone(left)));
            let changed = in_plan(input, around);
            around.truncate(depth);
            changed
        })
    })
}

fn in_expr(
    expr: Expr,
    own: &Arc<DFSchema>,
    around: &mut Vec<Arc<DFSchema>>,
) -> Result<Transformed<Expr>> {
    if let Expr::OuterReferenceColumn(field, column) = &expr {
        let nearest = around.iter().rev().find(|schema| schema.has_column(column));
        let Some(nearest) = nearest else {
            return Ok(Transformed::no(expr));
        };
        let typed = nearest.field_from_column(column)?;
        if typed.data_type() == field.data_type() {
            return Ok(Transformed::no(expr));
        }
        let typed = Expr::OuterReferenceColumn(Arc::clone(typed), column.clone());
        return Ok(Transformed::yes(typed));
    }
    let Some(subquery) = subquery_of(&expr) else {
        return Ok(Transformed::no(expr));
    };
    around.push(Arc::clone(own));
    let plan = in_plan(subquery.subquery.as_ref().clone(), around);
    around.pop();
    let plan = plan?;
    if !plan.transformed {
        return Ok(Transformed::no(expr));
    }
    let changed = with_plan(subquery, plan.data);
    Ok(Transformed::yes(with_subquery(expr, changed)))
}
