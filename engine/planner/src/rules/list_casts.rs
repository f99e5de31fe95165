//! Casts of texts to lists, which mean something else than they say: of `'[1, 2]'::INT[]` DataFusion makes a list of
//! the one element `'[1, 2]'`.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Result, not_impl_err};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::walk::{Walk as _, WalkPlan as _};

fn is_list(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
    )
}

/// Refuses casts of texts to lists.
#[derive(Debug)]
pub struct NoTextsAsLists;

impl OptimizerRule for NoTextsAsLists {
    fn name(&self) -> &str {
        "flashmesh_no_texts_as_lists"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.walk_with_subqueries(|node| {
            let mut schema = None;
            node.walk_expressions(|expr| {
                expr.apply(|expr| {
                    let (Expr::Cast(Cast { expr, field }) | Expr::TryCast(TryCast { expr, field })) =
                        expr
                    else {
                        return Ok(TreeNodeRecursion::Continue);
                    };
                    if !is_list(field.data_type()) {
                        return Ok(TreeNodeRecursion::Continue);
                    }
                    let schema = schema.get_or_insert_with(|| merge_schema(&node.inputs()));
                    match expr.get_type(schema) {
                        Ok(data_type) if data_type.is_string() => not_impl_err!(
                            "a cast of text to a list; write ARRAY[…], or string_to_array(text, ',') \
                             and a cast of its elements"
                        ),
                        _ => Ok(TreeNodeRecursion::Continue),
                    }
                })
            })
        })?;
        Ok(Transformed::no(plan))
    }
}
