//! `IN (SELECT …)` inside of a larger condition.
//!
//! DataFusion answers such a test by a mark join, whose mark is TRUE or FALSE: never NULL, as
//! `x IN (…)` is where x or a row of the subquery is NULL and nothing is equal. That matters
//! wherever NULL and FALSE lead to different rows, as in `x NOT IN (…) OR y`.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue};
use datafusion::functions_aggregate::expr_fn::count;
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    BinaryExpr, Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Subquery,
    lit, when,
};
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::walk::{Walk as _, WalkPlan as _};

/// Adds to such tests when they are NULL.
#[derive(Debug, Default)]
pub struct NullsOfIn;

impl OptimizerRule for NullsOfIn {
    fn name(&self) -> &str {
        "nulls_of_in"
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::TopDown)
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        _: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        null_where_unknown(plan)
    }
}

/// A plan whose filters, those of its subqueries too, know when such tests are NULL.
pub(super) fn null_where_unknown(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let plan = plan
        .change_subqueries(|subquery| subquery.transform_down(null_where_unknown))?
        .data;
    let LogicalPlan::Filter(filter) = plan else {
        return Ok(Transformed::no(plan));
    };
    let schema = Arc::clone(filter.input.schema());
    let conjuncts = split_conjunction_owned(filter.predicate.clone())
        .into_iter()
        .map(|conjunct| match &conjunct {
            // DataFusion makes a join of these that knows of NULLs.
            Expr::InSubquery(test) if is_plain(test) => Ok(Transformed::no(conjunct)),
            Expr::Not(inner) if matches!(&**inner, Expr::InSubquery(test) if is_plain(test)) => {
                Ok(Transformed::no(conjunct))
            }
            _ => where_null_is_false(conjunct, schema.as_ref()),
        })
        .collect::<Result<Vec<_>>>()?;
    if !conjuncts.iter().any(|conjunct| conjunct.transformed) {
        return Ok(Transformed::no(LogicalPlan::Filter(filter)));
    }
    let conjuncts = conjuncts.into_iter().map(|conjunct| conjunct.data);
    let predicate = conjunction(conjuncts).expect("a filter has a condition");
    let filter = Filter::try_new(predicate, filter.input)?;
    Ok(Transformed::yes(LogicalPlan::Filter(filter)))
}

/// Whether the test is of one set for all rows, and not of a constant, of which no key of a join is made.
fn is_plain(test: &InSubquery) -> bool {
    test.subquery.outer_ref_columns.is_empty() && !test.expr.column_refs().is_empty()
}

/// A condition where NULL and FALSE are one: tests that are not negated need nothing.
fn where_null_is_false(condition: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match condition {
        Expr::BinaryExpr(BinaryExpr {
            op: Operator::And | Operator::Or,
            ..
        }) => condition.map_children(|side| where_null_is_false(side, schema)),
        Expr::InSubquery(InSubquery { negated: false, .. }) => Ok(Transformed::no(condition)),
        _ => condition.transform_up(|expr| match expr {
            Expr::InSubquery(test) => with_nulls(test, schema),
            expr => Ok(Transformed::no(expr)),
        }),
    }
}

/// `CASE WHEN x IN (…) THEN TRUE WHEN it is unknown THEN NULL ELSE FALSE END`
pub(super) fn with_nulls(test: InSubquery, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let query = &test.subquery.subquery;
    let column = query.schema().columns().swap_remove(0);
    if !test.expr.nullable(schema)? && !query.schema().nullable(&column)? {
        return Ok(Transformed::no(Expr::InSubquery(test)));
    }
    let x_is_null = test.expr.as_ref().clone().is_null();
    let unknown = match test.subquery.outer_ref_columns.is_empty() {
        true => {
            let kind = kind_of_set(&test.subquery, &column)?;
            let empty_but_x = kind.clone().eq(lit(NOT_EMPTY)).and(x_is_null);
            kind.eq(lit(HAS_NULL)).or(empty_but_x)
        }
        false => {
            let nulls = LogicalPlanBuilder::from(query.as_ref().clone())
                .filter(Expr::Column(column).is_null())?
                .build()?;
            let any = exists(query.as_ref().clone(), &test.subquery);
            exists(nulls, &test.subquery).or(x_is_null.and(any))
        }
    };
    let negated = test.negated;
    let found = Expr::InSubquery(InSubquery {
        negated: false,
        ..test
    });
    let value = when(found, lit(true))
        .when(unknown, lit(ScalarValue::Boolean(None)))
        .otherwise(lit(false))?;
    Ok(Transformed::yes(if negated { !value } else { value }))
}

const HAS_NULL: i64 = 2;
const NOT_EMPTY: i64 = 1;
const EMPTY: i64 = 0;

/// What the rows of an uncorrelated subquery are, as a scalar subquery: it is computed once.
fn kind_of_set(subquery: &Subquery, column: &Column) -> Result<Expr> {
    let (rows, values) = (count(lit(1_i64)), count(Expr::Column(column.clone())));
    let counted = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone())
        .aggregate(
            Vec::<Expr>::new(),
            vec![rows.alias("rows"), values.alias("values")],
        )?
        .build()?;
    let [rows, values] = [0, 1].map(|i| Expr::Column(counted.schema().columns()[i].clone()));
    let kind = when(rows.clone().gt(values), lit(HAS_NULL))
        .when(rows.gt(lit(0_i64)), lit(NOT_EMPTY))
        .otherwise(lit(EMPTY))?;
    let plan = LogicalPlanBuilder::from(counted)
        .project(vec![kind.alias("kind")])?
        .build()?;
    Ok(Expr::ScalarSubquery(with_plan(plan, subquery)))
}

fn exists(plan: LogicalPlan, subquery: &Subquery) -> Expr {
    Expr::Exists(Exists {
        subquery: with_plan(plan, subquery),
        negated: false,
    })
}

fn with_plan(plan: LogicalPlan, subquery: &Subquery) -> Subquery {
    Subquery {
        subquery: Arc::new(plan),
        ..subquery.clone()
    }
}
