//! Casts between texts and lists, of which DataFusion's mean something else than they say: of
//! `'[1, 2]'::INT[]` it makes a list of the one element `'[1, 2]'`, and `length(list)` is that of the
//! list's text.

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, not_impl_err};
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, TryCast};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::lengths::array_length;

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
        plan.apply_with_subqueries(|node| {
            let mut schema = None;
            node.apply_expressions(|expr| {
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

/// Makes `length(list)` the number of its elements.
#[derive(Debug)]
pub struct LengthOfLists;

impl FunctionRewrite for LengthOfLists {
    fn name(&self) -> &str {
        "flashmesh_length_of_lists"
    }

    fn rewrite(
        &self,
        expr: Expr,
        schema: &DFSchema,
        _config: &ConfigOptions,
    ) -> Result<Transformed<Expr>> {
        let Expr::ScalarFunction(call) = &expr else {
            return Ok(Transformed::no(expr));
        };
        let [list] = call.args.as_slice() else {
            return Ok(Transformed::no(expr));
        };
        let is_length = call.func.name() == "character_length";
        match is_length && list.get_type(schema).is_ok_and(|of| is_list(&of)) {
            true => Ok(Transformed::yes(array_length(list.clone()))),
            false => Ok(Transformed::no(expr)),
        }
    }
}
