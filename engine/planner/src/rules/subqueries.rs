//! Tests by a subquery outside of filters, as in `SELECT id, EXISTS (…) FROM t`: DataFusion's optimizer
//! makes joins of those of filters alone.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{JoinType, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, Filter, Join, LogicalPlan, LogicalPlanBuilder, lit,
};
use datafusion::optimizer::decorrelate_predicate_subquery::DecorrelatePredicateSubquery;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use super::not_in::{null_where_unknown, with_nulls};

use crate::walk::{Walk as _, WalkPlan as _};

/// Makes joins of the IN and EXISTS that stand outside of filters, each of which adds a column that
/// says for each row what the test gives.
#[derive(Debug, Default)]
pub struct TestsAsColumns;

impl OptimizerRule for TestsAsColumns {
    fn name(&self) -> &str {
        "flashmesh_tests_as_columns"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        as_columns(plan, config)
    }
}

fn as_columns(plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
    let plan =
        plan.change_subqueries(|subquery| subquery.transform_down(|p| as_columns(p, config)))?;
    let plan = plan.data;
    match plan {
        LogicalPlan::Join(join) => above_join(join),
        LogicalPlan::Projection(_) | LogicalPlan::Aggregate(_) | LogicalPlan::Window(_)
            if plan.expressions().iter().any(has_test) =>
        {
            below_expressions(plan, config)
        }
        other => Ok(Transformed::no(other)),
    }
}

fn has_test(expr: &Expr) -> bool {
    let is_test = |expr: &Expr| Ok(matches!(expr, Expr::InSubquery(_) | Expr::Exists(_)));
    expr.exists(is_test).unwrap_or(true)
}

/// The tests of an inner join's condition as a filter of its rows. Of another join DataFusion moves those
/// of one side into that, as far as it may, and refuses the rest.
fn above_join(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let condition = match join.join_type {
        JoinType::Inner => join.filter.take_if(|condition| has_test(condition)),
        _ => None,
    };
    let Some(condition) = condition else {
        return Ok(Transformed::no(LogicalPlan::Join(join)));
    };
    let conjuncts = split_conjunction_owned(condition);
    let (tests, others): (Vec<_>, Vec<_>) = conjuncts.into_iter().partition(has_test);
    join.filter = conjunction(others);
    let tests = conjunction(tests).expect("there are some");
    let filter = Filter::try_new(tests, Arc::new(LogicalPlan::Join(join)))?;
    // The rule for filters has run before.
    let filter = null_where_unknown(LogicalPlan::Filter(filter))?.data;
    Ok(Transformed::yes(filter))
}

/// A plan over a join for each test of its expressions.
fn below_expressions(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let mut input = plan.inputs()[0].clone();
    let schema = Arc::clone(input.schema());
    let names = NamePreserver::new(&plan);
    // A CASE often has the same test in several places.
    let mut known: Vec<(Expr, Expr)> = Vec::new();
    let exprs = plan.expressions().into_iter().map(|expr| {
        let name = names.save(&expr);
        let expr = expr.transform_up(|expr| match expr {
            Expr::InSubquery(test) => with_nulls(test, &schema),
            other => Ok(Transformed::no(other)),
        })?;
        let expr = expr.data.transform_up(|expr| {
            if !matches!(expr, Expr::InSubquery(_) | Expr::Exists(_)) {
                return Ok(Transformed::no(expr));
            }
            if let Some((_, mark)) = known.iter().find(|(test, _)| *test == expr) {
                return Ok(Transformed::yes(mark.clone()));
            }
            let mark = marked(&mut input, expr.clone(), config)?;
            known.push((expr, mark.clone()));
            Ok(Transformed::yes(mark))
        })?;
        Ok(name.restore(expr.data))
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    // The columns of a window's input are among its own.
    let wanted = match &plan {
        LogicalPlan::Window(_) => Some(plan.schema().columns()),
        _ => None,
    };
    let mut changed = plan.with_new_exprs(exprs, vec![input])?;
    if let Some(wanted) = wanted {
        changed = LogicalPlanBuilder::from(changed)
            .project(wanted.into_iter().map(Expr::Column))?
            .build()?;
    }
    Ok(Transformed::yes(changed))
}

/// Adds a join to a plan that says for each row what a test gives, and returns its column.
fn marked(plan: &mut LogicalPlan, test: Expr, config: &dyn OptimizerConfig) -> Result<Expr> {
    // A test within a larger condition is what DataFusion makes a mark of; the rest is taken off
    // again.
    let larger = test.clone().or(lit(ScalarValue::Boolean(None)));
    let filter = Filter::try_new(larger, Arc::new(plan.clone()))?;
    let joined =
        DecorrelatePredicateSubquery::new().rewrite(LogicalPlan::Filter(filter), config)?;
    if let LogicalPlan::Projection(projection) = joined.data
        && let LogicalPlan::Filter(filter) = projection.input.as_ref()
        && let Expr::BinaryExpr(BinaryExpr { left: mark, .. }) = &filter.predicate
        && !has_test(mark)
    {
        *plan = filter.input.as_ref().clone();
        return Ok(mark.as_ref().clone());
    }
    let kind = match test {
        Expr::Exists(_) => "EXISTS",
        _ => "IN",
    };
    not_impl_err!(
        "{kind} with a subquery that uses columns of the query around it in this way; \
         write it as a join"
    )
}
