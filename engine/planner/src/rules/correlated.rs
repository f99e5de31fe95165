//! Subqueries that use columns of the query around them, in tests and as values.
//!
//! DataFusion makes joins of them: it takes the conditions with such columns out of the subquery and
//! makes them those of the join. That changes what is counted, cut off or numbered between the
//! conditions and the subquery's rows, and takes two columns of one name for one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    Expr, FetchType, Filter, LogicalPlan, LogicalPlanBuilder, Operator, SkipType, Subquery,
    binary_expr, lit,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The rule; place it before those that make joins of subqueries.
#[derive(Debug)]
pub struct CorrelatedSubqueries;

impl OptimizerRule for CorrelatedSubqueries {
    fn name(&self) -> &str {
        "flashmesh_correlated_subqueries"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.transform_up_with_subqueries(|plan| {
            let names = NamePreserver::new(&plan);
            plan.map_expressions(|expr| {
                let name = names.save(&expr);
                let changed = expr.transform_up(|expr| sound(expr, config))?;
                Ok(match changed.transformed {
                    true => changed.update_data(|expr| name.restore(expr)),
                    false => changed,
                })
            })
        })
    }
}

/// A subquery of which a join gives the same.
fn sound(expr: Expr, config: &dyn OptimizerConfig) -> Result<Transformed<Expr>> {
    match expr {
        Expr::Exists(Exists { subquery, negated }) if gives_one_row(&subquery.subquery) => {
            Ok(Transformed::yes(lit(!negated)))
        }
        Expr::InSubquery(InSubquery {
            expr,
            subquery,
            negated,
        }) if is_correlated(&subquery) && gives_one_row(&subquery.subquery) => {
            let op = match negated {
                false => Operator::Eq,
                true => Operator::NotEq,
            };
            let value = Expr::ScalarSubquery(subquery);
            Ok(Transformed::yes(binary_expr(*expr, op, value)))
        }
        Expr::SetComparison(SetComparison {
            expr, subquery, op, ..
        }) if is_correlated(&subquery) && gives_one_row(&subquery.subquery) => {
            let value = Expr::ScalarSubquery(subquery);
            Ok(Transformed::yes(binary_expr(*expr, op, value)))
        }
        Expr::Exists(mut test) if is_correlated(&test.subquery) => {
            check(&test.subquery.subquery, Some(Test::Exists))?;
            let changed = tell_apart(&mut test.subquery, config)?;
            Ok(Transformed::new_transformed(Expr::Exists(test), changed))
        }
        Expr::InSubquery(mut test) if is_correlated(&test.subquery) => {
            check(&test.subquery.subquery, Some(Test::OfValues))?;
            let changed = tell_apart(&mut test.subquery, config)?;
            Ok(Transformed::new_transformed(
                Expr::InSubquery(test),
                changed,
            ))
        }
        Expr::SetComparison(mut test) if is_correlated(&test.subquery) => {
            check(&test.subquery.subquery, Some(Test::OfValues))?;
            let changed = tell_apart(&mut test.subquery, config)?;
            Ok(Transformed::new_transformed(
                Expr::SetComparison(test),
                changed,
            ))
        }
        Expr::ScalarSubquery(mut subquery) if is_correlated(&subquery) => {
            let changed = tell_apart(&mut subquery, config)?;
            let value = Expr::ScalarSubquery(subquery);
            Ok(Transformed::new_transformed(value, changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

fn is_correlated(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
}

fn is_related(plan: &LogicalPlan) -> bool {
    !plan.all_out_ref_exprs().is_empty()
}

/// Whether a plan is of one row whatever its tables have: an aggregate without groups.
fn gives_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => gives_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => gives_one_row(&alias.input),
        LogicalPlan::Sort(sort) => sort.fetch.is_none() && gives_one_row(&sort.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Test {
    /// Of whether there are rows.
    Exists,
    OfValues,
}

/// Refuses subqueries from below whose operators a condition can't be taken out. `top` is of what the
/// rows of the plan are the test's own.
fn check(plan: &LogicalPlan, top: Option<Test>) -> Result<()> {
    if !is_related(plan) {
        return Ok(());
    }
    let below = plan.inputs().into_iter().any(is_related);
    let what = match plan {
        // Whether there are rows does not depend on how many of them are looked at.
        LogicalPlan::Limit(limit) if top == Some(Test::Exists) => {
            let skips = !matches!(limit.get_skip_type()?, SkipType::Literal(0));
            let takes = !matches!(limit.get_fetch_type()?, FetchType::Literal(Some(0)));
            (below && (skips || !takes)).then_some("OFFSET, or LIMIT 0,")
        }
        LogicalPlan::Limit(_) if below => Some("LIMIT"),
        LogicalPlan::Window(_) if below => Some("a window function"),
        LogicalPlan::Aggregate(aggregate) if below && aggregate.group_expr.is_empty() => {
            Some("an aggregate without groups")
        }
        _ => None,
    };
    if let Some(what) = what {
        return not_impl_err!(
            "{what} in a subquery of IN, EXISTS, ANY or ALL that uses columns of the query around \
             it; write it as a join"
        );
    }
    let top = top.filter(|_| {
        matches!(
            plan,
            LogicalPlan::Projection(_) | LogicalPlan::SubqueryAlias(_) | LogicalPlan::Sort(_)
        )
    });
    plan.inputs()
        .into_iter()
        .try_for_each(|input| check(input, top))
}

/// Gives names of their own to the columns that are compared with some of the query around it, where
/// two of them have the same; says whether there were such.
fn tell_apart(subquery: &mut Subquery, config: &dyn OptimizerConfig) -> Result<bool> {
    let mut called: HashMap<String, BTreeSet<Column>> = HashMap::new();
    subquery.subquery.apply(|node| {
        if let LogicalPlan::Filter(filter) = node {
            let conjuncts = split_conjunction(&filter.predicate).into_iter();
            for column in conjuncts
                .filter(|c| c.contains_outer())
                .flat_map(Expr::column_refs)
            {
                let same = called.entry(column.name.clone()).or_default();
                same.insert(column.clone());
            }
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    called.retain(|_, same| same.len() > 1);
    if called.is_empty() {
        return Ok(false);
    }
    let plan = subquery.subquery.as_ref().clone();
    let plan = plan.transform_up(|node| match node {
        LogicalPlan::Filter(filter) => renamed(filter, &called, config),
        other => Ok(Transformed::yes(other.recompute_schema()?)),
    })?;
    subquery.subquery = Arc::new(plan.data);
    Ok(true)
}

fn renamed(
    filter: Filter,
    called: &HashMap<String, BTreeSet<Column>>,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let mut names: Vec<(Column, String)> = Vec::new();
    let conjuncts = split_conjunction_owned(filter.predicate).into_iter();
    let conjuncts = conjuncts.map(|conjunct| {
        if !conjunct.contains_outer() {
            return Ok(conjunct);
        }
        let changed = conjunct.transform_up(|expr| match expr {
            Expr::Column(column) if called.contains_key(&column.name) => {
                let known = names.iter().find(|(known, _)| *known == column);
                let name = known.map(|(_, name)| name.clone()).unwrap_or_else(|| {
                    let name = config.alias_generator().next("__compared");
                    names.push((column, name.clone()));
                    name
                });
                Ok(Transformed::yes(Expr::Column(Column::from_name(name))))
            }
            other => Ok(Transformed::no(other)),
        });
        Ok(changed?.data)
    });
    let conjuncts = conjuncts.collect::<Result<Vec<_>>>()?;
    let predicate = conjunction(conjuncts).unwrap_or_else(|| lit(ScalarValue::Boolean(Some(true))));
    let columns = filter
        .input
        .schema()
        .columns()
        .into_iter()
        .map(Expr::Column);
    let own = names
        .into_iter()
        .map(|(column, name)| Expr::Column(column).alias(name));
    let input = LogicalPlanBuilder::from(filter.input.as_ref().clone())
        .project(columns.chain(own).collect::<Vec<_>>())?
        .build()?;
    let filter = Filter::try_new(predicate, Arc::new(input))?;
    Ok(Transformed::yes(LogicalPlan::Filter(filter)))
}
