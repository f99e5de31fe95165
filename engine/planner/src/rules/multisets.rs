//! `EXCEPT ALL` and `INTERSECT ALL`: rows that are there several times count as often.
//!
//! DataFusion keeps or drops all rows that are equal to one of the other side. Here equal rows are
//! numbered on both sides, and rows are compared together with their numbers.

use std::iter::once;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DataFusionError, JoinType, NullEquality, Result};
use datafusion::logical_expr::{
    Expr, ExprFunctionExt, ExprSchemable, Join, LogicalPlan, LogicalPlanBuilder, ident, lit,
};
use datafusion::optimizer::AnalyzerRule;

use crate::ranks::row_number;
use crate::walk::WalkPlan as _;

/// What the right side of such an operation is called, so that the join that DataFusion makes of it is
/// told from those that a query names.
pub const SIDE_OF_ALL: &str = "__side_of_all";

/// The rule; place it before all that change joins.
#[derive(Debug)]
pub struct Multisets;

impl AnalyzerRule for Multisets {
    fn name(&self) -> &str {
        "flashmesh_multisets"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.change_up_with_subqueries(counted)?.data)
    }
}

fn counted(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Join(join) = &plan else {
        return Ok(Transformed::no(plan));
    };
    let is_set = matches!(join.join_type, JoinType::LeftAnti | JoinType::LeftSemi)
        && join.null_equality == NullEquality::NullEqualsNull;
    if !is_set || !is_side_of_all(&join.right) {
        return Ok(Transformed::no(plan));
    }
    Ok(Transformed::yes(with_numbers(join)?))
}

/// Whether the plan is what the name was given to, below what coerces types.
fn is_side_of_all(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::SubqueryAlias(alias) => {
            alias.alias.table() == SIDE_OF_ALL || is_side_of_all(&alias.input)
        }
        LogicalPlan::Projection(projection) => is_side_of_all(&projection.input),
        _ => false,
    }
}

fn with_numbers(join: &Join) -> Result<LogicalPlan> {
    const NUMBERS: [&str; 2] = ["__number", "__number_of_all"];
    let (left, right): (Vec<Expr>, Vec<Expr>) = join.on.iter().cloned().unzip();
    let columns = join.left.schema().columns();
    let left_rows = numbered(join.left.as_ref(), left.clone(), NUMBERS[0])?;
    let right_rows = numbered(join.right.as_ref(), right.clone(), NUMBERS[1])?;
    let number = once((ident(NUMBERS[0]), ident(NUMBERS[1])));
    let mut counted = join.clone();
    counted.left = Arc::new(left_rows);
    counted.right = Arc::new(right_rows);
    counted.on = left.into_iter().zip(right).chain(number).collect();
    counted.schema = Arc::clone(counted.left.schema());
    LogicalPlanBuilder::from(LogicalPlan::Join(counted))
        .project(columns.into_iter().map(Expr::Column))?
        .build()
}

/// A plan with another column, which numbers the rows that have the same values.
fn numbered(plan: &LogicalPlan, values: Vec<Expr>, name: &str) -> Result<LogicalPlan> {
    let columns = plan.schema().columns();
    // The two zeros are equal to the join, and not to a window.
    let one_zero = |value: Expr| match value.get_type(plan.schema())? {
        DataType::Float64 => Ok(value + lit(0.0_f64)),
        DataType::Float32 => Ok(value + lit(0.0_f32)),
        _ => Ok::<_, DataFusionError>(value),
    };
    let values = values.into_iter().map(one_zero).collect::<Result<_>>()?;
    let number = row_number().partition_by(values).build()?;
    let column = Column::from_name(number.schema_name().to_string());
    let number_column = Expr::Column(column).alias(name);
    LogicalPlanBuilder::from(plan.clone())
        .window(vec![number])?
        .project(
            columns
                .into_iter()
                .map(Expr::Column)
                .chain(once(number_column)),
        )?
        .build()
}
