//! Subqueries that stand for a value.
//!
//! One without rows is NULL, whatever its column says: DataFusion takes `(SELECT id FROM t WHERE …)` of a
//! column that is NOT NULL for a value that is never NULL, so that IS NULL is FALSE and COALESCE an error.
//! And the rows of VALUES are computed while the query is planned, before any subquery has a value. The join
//! that it makes of `x IN (SELECT max(a) …)` names a column twice, unless that has a name.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::{Expr, LogicalPlan, LogicalPlanBuilder, Subquery, Union, Values};
use datafusion::optimizer::AnalyzerRule;

use crate::hidden;
use crate::tree::{has_part, has_subquery, map_named_expressions};
use crate::unnest::{gives_one_row, has_subquery_below};
use crate::walk::{Walk as _, WalkPlan as _};

/// The rule.
#[derive(Debug)]
pub struct ScalarSubqueries;

impl AnalyzerRule for ScalarSubqueries {
    fn name(&self) -> &str {
        "flashmesh_scalar_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !has_subquery_below(&plan)? {
            return Ok(plan);
        }
        let plan = plan.change_up_with_subqueries(|node| match node {
            LogicalPlan::Values(values) => queried(values),
            other => Ok(Transformed::no(other)),
        })?;
        let plan = mapped(plan.data, is_nameless, named)?.data;
        let plan = mapped(plan, is_never_null, maybe_null)?;
        if !plan.transformed {
            return Ok(plan.data);
        }
        // What is made of such a value may be NULL as well.
        let plan = plan.data.change_up_with_subqueries(|node| {
            let node = map_named_expressions(node, |expr| Ok(Transformed::no(expr)))?.data;
            Ok(Transformed::yes(node.recompute_schema()?))
        })?;
        Ok(plan.data)
    }
}

/// A plan with some of its expressions, those of its subqueries too, changed.
fn mapped(
    plan: LogicalPlan,
    is_one: fn(&Expr) -> bool,
    change: fn(Expr) -> Result<Transformed<Expr>>,
) -> Result<Transformed<LogicalPlan>> {
    plan.change_up_with_subqueries(|node| match has_part(&node, is_one)? {
        true => map_named_expressions(node, |expr| expr.transform_up(change)),
        false => Ok(Transformed::no(node)),
    })
}

/// Whether an expression is a test by a subquery whose column is called as it is computed.
fn is_nameless(expr: &Expr) -> bool {
    let Expr::InSubquery(test) = expr else {
        return false;
    };
    let plan = test.subquery.subquery.as_ref();
    let fields = plan.schema().fields();
    // A cast is called like what it casts.
    let is_cast = matches!(plan, LogicalPlan::Projection(projection)
        if matches!(projection.expr.as_slice(), [Expr::Cast(_)]));
    test.subquery.outer_ref_columns.is_empty()
        && matches!(fields.first(), Some(only)
            if fields.len() == 1 && (is_cast || only.name().contains('(')))
}

fn named(mut expr: Expr) -> Result<Transformed<Expr>> {
    let is_one = is_nameless(&expr);
    if let Expr::InSubquery(test) = &mut expr
        && is_one
    {
        let query = test.subquery.subquery.as_ref().clone();
        let column = Expr::Column(query.schema().columns().swap_remove(0));
        let query = LogicalPlanBuilder::from(query).project([column.alias("value")])?;
        test.subquery.subquery = Arc::new(query.build()?);
        return Ok(Transformed::yes(expr));
    }
    Ok(Transformed::no(expr))
}

/// Whether an expression is a subquery that may have no row, of a column that is never NULL.
fn is_never_null(expr: &Expr) -> bool {
    let Expr::ScalarSubquery(subquery) = expr else {
        return false;
    };
    let plan = &subquery.subquery;
    let fields = plan.schema().fields();
    subquery.outer_ref_columns.is_empty()
        && matches!(fields.first(), Some(only) if fields.len() == 1 && !only.is_nullable())
        && !gives_one_row(plan)
}

fn maybe_null(expr: Expr) -> Result<Transformed<Expr>> {
    if !is_never_null(&expr) {
        return Ok(Transformed::no(expr));
    }
    let Expr::ScalarSubquery(subquery) = expr else {
        return Ok(Transformed::no(expr));
    };
    let (qualifier, field) = subquery.subquery.schema().qualified_field(0);
    let (qualifier, name) = (qualifier.cloned(), field.name().clone());
    let column = Expr::Column(subquery.subquery.schema().columns().swap_remove(0));
    let value = hidden::maybe_null(column).alias_qualified(qualifier, name);
    let plan = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone()).project([value])?;
    Ok(Transformed::yes(Expr::ScalarSubquery(Subquery {
        subquery: Arc::new(plan.build()?),
        ..subquery
    })))
}

/// VALUES with subqueries as queries of a row each.
fn queried(values: Values) -> Result<Transformed<LogicalPlan>> {
    let mut exprs = values.values.iter().flatten();
    if !exprs.any(|expr| has_subquery(expr).unwrap_or(true)) {
        return Ok(Transformed::no(LogicalPlan::Values(values)));
    }
    let names = values.schema.columns();
    let rows = values.values.into_iter().map(|row| {
        let columns = row.into_iter().zip(&names);
        let columns = columns.map(|(expr, column)| expr.alias(&column.name));
        let row = LogicalPlanBuilder::empty(true).project(columns)?;
        row.build().map(Arc::new)
    });
    let mut rows = rows.collect::<Result<Vec<_>>>()?;
    let query = match rows.len() {
        1 => Arc::unwrap_or_clone(rows.swap_remove(0)),
        _ => LogicalPlan::Union(Union::try_new(rows)?),
    };
    Ok(Transformed::yes(query))
}
