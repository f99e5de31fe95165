//! Subqueries that use columns of the query around them, and compare two columns of one name with those:
//! DataFusion makes joins of them, with the two taken for one.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::logical_expr::utils::{conjunction, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, LogicalPlan, LogicalPlanBuilder, Subquery, lit};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::tree::has_subquery;
use crate::walk::{Walk as _, WalkPlan as _};

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
        plan.change_up_with_subqueries(|plan| {
            plan.change_expressions(|expr| match has_subquery(&expr)? {
                true => expr.transform_up(|expr| told_apart(expr, config)),
                false => Ok(Transformed::no(expr)),
            })
        })
    }
}

fn told_apart(mut expr: Expr, config: &dyn OptimizerConfig) -> Result<Transformed<Expr>> {
    let subquery = match &mut expr {
        Expr::Exists(test) => Some(&mut test.subquery),
        Expr::InSubquery(test) => Some(&mut test.subquery),
        Expr::SetComparison(test) => Some(&mut test.subquery),
        Expr::ScalarSubquery(subquery) => Some(subquery),
        _ => None,
    };
    let subquery = subquery.filter(|subquery| !subquery.outer_ref_columns.is_empty());
    let changed = subquery.map_or(Ok(false), |subquery| tell_apart(subquery, config))?;
    Ok(Transformed::new_transformed(expr, changed))
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
