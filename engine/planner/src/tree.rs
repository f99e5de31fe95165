//! Walks over expressions: DataFusion's, and the Program's, whose columns are renumbered.

use std::sync::Arc;

use arrow::array::RecordBatchOptions;
use arrow::datatypes::{DataType, Schema};
use arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::execution_props::ExecutionProps;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{ColumnarValue, Expr as LogicalExpr, LogicalPlan, Subquery};
use datafusion::optimizer::analyzer::type_coercion::TypeCoercionRewriter;
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use flashmesh_pushdown::{Aggregate, Expr, Output};

use crate::walk::{Walk as _, WalkPlan as _};

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
    node.walk_expressions(|expr| {
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
    node.change_expressions(|expr| match expr {
        // Planners look for these at the top; their columns are those of what is in them.
        LogicalExpr::GroupingSet(_) => expr.map_children(&mut named),
        expr => named(expr),
    })
}

/// The plan and its subqueries with the expressions of those nodes in which some part `is_one` changed by `f`,
/// which is given the columns that they are over. Columns keep their names, and schemas are as they were.
///
/// # Errors
/// Those of `f`.
pub fn change_parts(
    plan: LogicalPlan,
    is_one: impl Fn(&LogicalExpr) -> bool,
    mut f: impl FnMut(LogicalExpr, &DFSchema) -> Result<Transformed<LogicalExpr>>,
) -> Result<LogicalPlan> {
    let changed = plan.change_up_with_subqueries(|node| {
        if !has_part(&node, &is_one)? {
            return Ok(Transformed::no(node));
        }
        let schema = match &node {
            // Its filters are over all columns of the table.
            LogicalPlan::TableScan(scan) => {
                DFSchema::try_from_qualified_schema(scan.table_name.clone(), &scan.source.schema())?
            }
            node => merge_schema(&node.inputs()),
        };
        map_named_expressions(node, |expr| f(expr, &schema))
    })?;
    Ok(changed.data)
}

/// What a cast casts, and to which type; `TRY_CAST` is one.
pub fn cast_of(expr: &LogicalExpr) -> Option<(&LogicalExpr, &DataType)> {
    match expr {
        LogicalExpr::Cast(cast) => Some((&cast.expr, cast.field.data_type())),
        LogicalExpr::TryCast(cast) => Some((&cast.expr, cast.field.data_type())),
        _ => None,
    }
}

/// The expression with its parts changed by `f`, from below, but for those within one that `is_done`: a plan may
/// be analyzed again.
///
/// # Errors
/// Those of `f`.
pub fn change_once(
    expr: LogicalExpr,
    is_done: impl Fn(&LogicalExpr) -> bool,
    f: impl FnMut(LogicalExpr) -> Result<Transformed<LogicalExpr>>,
) -> Result<Transformed<LogicalExpr>> {
    let enter = |expr: LogicalExpr| {
        let next = match is_done(&expr) {
            true => TreeNodeRecursion::Jump,
            false => TreeNodeRecursion::Continue,
        };
        Ok(Transformed::new(expr, false, next))
    };
    expr.transform_down_up(enter, f)
}

/// A typed expression over columns, to be computed.
///
/// # Errors
/// Those of planning it, as of a subquery.
pub fn physical_of(expr: &LogicalExpr, schema: &DFSchema) -> Result<Arc<dyn PhysicalExpr>> {
    let (properties, planning) = (ExecutionProps::new(), PhysicalPlanningContext::default());
    create_physical_expr(expr, schema, &properties, &planning)
}

/// The value of an expression without columns; numbers of several types in it are given one.
///
/// # Errors
/// Those of planning and of computing it.
pub fn value_of(expr: &LogicalExpr) -> Result<ScalarValue> {
    let none = DFSchema::empty();
    let typed = expr
        .clone()
        .rewrite(&mut TypeCoercionRewriter::new(&none))?;
    let physical = physical_of(&typed.data, &none)?;
    let one_row = RecordBatch::try_new_with_options(
        Arc::new(Schema::empty()),
        vec![],
        &RecordBatchOptions::new().with_row_count(Some(1)),
    )?;
    match physical.evaluate(&one_row)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0),
    }
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
