//! Subqueries in the conditions of outer joins: in `t LEFT JOIN u ON t.id = u.id AND t.a IN (SELECT …)` the
//! subquery says something of the rows of `t`, which the join keeps whatever it says. It becomes a column of
//! that side. Of inner joins they are conditions of what comes out.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, JoinType, Result, not_impl_err};
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder};

use super::outer::outer_columns;
use super::{Kind, Names};
use crate::tree::subquery_of;
use crate::walk::Walk as _;

/// A join without such subqueries in its condition; `None` for one that has none.
///
/// # Errors
/// [`NotImplemented`](datafusion::common::DataFusionError::NotImplemented) for a subquery that uses columns of
/// both sides; those of walking.
pub(super) fn of_sides(join: &Join, names: &mut Names) -> Result<Option<LogicalPlan>> {
    let Some(condition) = &join.filter else {
        return Ok(None);
    };
    let inputs = [&join.left, &join.right].map(|input| input.as_ref().clone());
    let mut sides = Sides { inputs, names };
    let mut kept = Vec::new();
    let mut changed = false;
    for condition in split_conjunction(condition) {
        if !condition.exists(|expr| Ok(sides.used(expr)?.is_some()))? {
            kept.push(condition.clone());
            continue;
        }
        changed = true;
        let side = sides.of(&sides.columns_of(condition)?);
        match side.filter(|side| leaves_out(join.join_type, *side)) {
            Some(side) => sides.filter(side, condition)?,
            None => kept.push(sides.with_columns(condition)?),
        }
    }
    if !changed {
        return Ok(None);
    }
    let [left, right] = sides.inputs.map(Arc::new);
    let joined = Join::try_new(
        left,
        right,
        join.on.clone(),
        conjunction(kept),
        join.join_type,
        join.join_constraint,
        join.null_equality,
        join.null_aware,
    )?;
    let wanted = join.schema.columns().into_iter().map(Expr::Column);
    let joined = LogicalPlanBuilder::from(LogicalPlan::Join(joined)).project(wanted)?;
    joined.build().map(Some)
}

/// Whether a join leaves a row of a side out for which no row of the other holds its condition.
fn leaves_out(join_type: JoinType, side: usize) -> bool {
    match join_type {
        JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => side == 1,
        JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => {
            side == 0
        }
        JoinType::Inner => true,
        JoinType::Full => false,
    }
}

/// The two inputs of a join, to which columns and conditions are added.
struct Sides<'a> {
    inputs: [LogicalPlan; 2],
    names: &'a mut Names,
}

impl Sides<'_> {
    /// The columns of the sides that a subquery uses; `None` for what is none, and for a value that is computed once
    /// for all rows.
    fn used(&self, expr: &Expr) -> Result<Option<Vec<Column>>> {
        if subquery_of(expr).is_none() {
            return Ok(None);
        }
        let columns = self.columns_of(expr)?;
        let is_one = Kind::of(expr) == Kind::Value && columns.is_empty();
        Ok((!is_one).then_some(columns))
    }

    /// The columns of the sides that an expression uses, its subqueries among it.
    fn columns_of(&self, expr: &Expr) -> Result<Vec<Column>> {
        let mut columns: Vec<Column> = expr.column_refs().into_iter().cloned().collect();
        expr.apply(|part| {
            if let Some(subquery) = subquery_of(part) {
                for input in &self.inputs {
                    columns.extend(outer_columns(&subquery.subquery, input.schema())?);
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(columns)
    }

    /// The side that has all of these columns.
    fn of(&self, columns: &[Column]) -> Option<usize> {
        let has_all = |input: &LogicalPlan| {
            let schema = input.schema();
            columns.iter().all(|column| schema.has_column(column))
        };
        self.inputs.iter().position(has_all)
    }

    fn filter(&mut self, side: usize, condition: &Expr) -> Result<()> {
        let input = Arc::new(self.inputs[side].clone());
        self.inputs[side] = LogicalPlan::Filter(Filter::try_new(condition.clone(), input)?);
        Ok(())
    }

    /// A condition with columns in the place of its subqueries.
    fn with_columns(&mut self, condition: &Expr) -> Result<Expr> {
        let changed = condition.clone().transform_down(|expr| {
            let Some(columns) = self.used(&expr)? else {
                return Ok(Transformed::no(expr));
            };
            let Some(side) = self.of(&columns) else {
                return not_impl_err!(
                    "a subquery in the condition of an outer join that uses columns of both of its sides; \
                     join with a query that has its value as a column"
                );
            };
            let column = self.names.column("condition");
            let own = self.inputs[side].schema().columns();
            let exprs = own.into_iter().map(Expr::Column);
            let exprs: Vec<_> = exprs.chain([expr.alias(&column.name)]).collect();
            let input = LogicalPlanBuilder::from(self.inputs[side].clone()).project(exprs)?;
            self.inputs[side] = input.build()?;
            Ok(Transformed::yes(Expr::Column(column)))
        })?;
        Ok(changed.data)
    }
}
