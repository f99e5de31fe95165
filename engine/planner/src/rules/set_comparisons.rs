//! `ANY` and `ALL` of a subquery.
//!
//! What DataFusion makes of `x > ANY (SELECT …)` compares columns of one name with themselves: in
//! `SELECT i FROM t WHERE i > ANY (SELECT i FROM t)` both sides were the subquery's.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Column, DFSchema, ExprSchema, Result, ScalarValue, not_impl_err};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison, SetQuantifier};
use datafusion::logical_expr::utils::{conjunction, merge_schema, split_conjunction_owned};
use datafusion::logical_expr::{
    Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, Operator, Subquery, binary_expr,
    lit, when,
};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

use crate::tree::{has_subquery, map_named_expressions};
use crate::walk::{Walk as _, WalkPlan as _};

/// Says `x op ANY (…)` and `x op ALL (…)` by IN and EXISTS, in place of DataFusion's rule.
#[derive(Debug, Default)]
pub struct SetComparisons;

impl OptimizerRule for SetComparisons {
    fn name(&self) -> &str {
        "flashmesh_set_comparisons"
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>> {
        plan.change_up_with_subqueries(|plan| compare_sets(plan, config))
    }
}

fn compare_sets(
    plan: LogicalPlan,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<LogicalPlan>> {
    let schema = merge_schema(&plan.inputs());
    let is_filter = matches!(plan, LogicalPlan::Filter(_));
    map_named_expressions(plan, |expr| match is_filter {
        true => {
            let conjuncts = split_conjunction_owned(expr).into_iter();
            let conjuncts = conjuncts.map(|conjunct| match conjunct {
                // NULL is as good as FALSE here.
                Expr::SetComparison(test) => Ok(Transformed::yes(
                    Comparison::of(test, &schema, config)?.condition()?,
                )),
                other => said_by_exists(other, &schema, config),
            });
            let conjuncts = conjuncts.collect::<Result<Vec<_>>>()?;
            let transformed = conjuncts.iter().any(|conjunct| conjunct.transformed);
            let whole = conjunction(conjuncts.into_iter().map(|conjunct| conjunct.data));
            let whole = whole.expect("a filter has a condition");
            Ok(Transformed::new_transformed(whole, transformed))
        }
        false => said_by_exists(expr, &schema, config),
    })
}

fn said_by_exists(
    expr: Expr,
    schema: &DFSchema,
    config: &dyn OptimizerConfig,
) -> Result<Transformed<Expr>> {
    expr.transform_up(|expr| match expr {
        Expr::SetComparison(test) => {
            let value = Comparison::of(test, schema, config)?.value()?;
            Ok(Transformed::yes(value))
        }
        other => Ok(Transformed::no(other)),
    })
}

/// A comparison with the rows of a subquery.
enum Comparison {
    /// `= ANY` and `<> ALL`.
    In(InSubquery),
    Each {
        /// The subquery, its column under a name that nothing else has, so that it is not taken for
        /// one of the query around it.
        rows: Arc<LogicalPlan>,
        of: Subquery,
        /// What compares each of its rows.
        compared: Expr,
        may_be_null: bool,
        quantifier: SetQuantifier,
    },
}

impl Comparison {
    fn of(test: SetComparison, schema: &DFSchema, config: &dyn OptimizerConfig) -> Result<Self> {
        let SetComparison {
            expr,
            subquery,
            op,
            quantifier,
        } = test;
        let negated = match (op, quantifier) {
            (Operator::Eq, SetQuantifier::Any) => Some(false),
            (Operator::NotEq, SetQuantifier::All) => Some(true),
            _ => None,
        };
        if let Some(negated) = negated {
            return Ok(Self::In(InSubquery {
                expr,
                subquery,
                negated,
            }));
        }
        if has_subquery(&expr)? {
            return not_impl_err!(
                "a subquery that is compared with {quantifier} of another one; \
                 compute it in a query in FROM"
            );
        }
        let name = config.alias_generator().next("__set");
        let column = subquery.subquery.schema().qualified_field(0);
        let is_nullable = column.1.is_nullable();
        let value = Expr::Column(Column::from(column)).alias(&name);
        let rows = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone())
            .project(vec![value])?
            .build()?;
        let value = Column::from_name(name);
        let may_be_null = is_nullable || expr.nullable(schema)?;
        let compared = binary_expr(outside(*expr, schema)?, op, Expr::Column(value));
        Ok(Self::Each {
            rows: Arc::new(rows),
            of: subquery,
            compared,
            may_be_null,
            quantifier,
        })
    }

    /// A condition that is TRUE where the comparison is, and never NULL unless it is IN.
    fn condition(self) -> Result<Expr> {
        match self {
            Self::In(test) => Ok(Expr::InSubquery(test)),
            Self::Each {
                rows,
                of,
                compared,
                may_be_null,
                quantifier,
            } => match (quantifier, may_be_null) {
                (SetQuantifier::Any, _) => exists(rows, &of, compared, false),
                (SetQuantifier::All, false) => exists(rows, &of, !compared, true),
                (SetQuantifier::All, true) => exists(rows, &of, compared.is_not_true(), true),
            },
        }
    }

    /// The comparison: TRUE, FALSE or NULL.
    fn value(self) -> Result<Expr> {
        let Self::Each {
            rows,
            of,
            compared,
            may_be_null,
            quantifier,
        } = self
        else {
            return self.condition();
        };
        let (decides, decided) = match quantifier {
            SetQuantifier::Any => (compared.clone(), true),
            SetQuantifier::All => (!compared.clone(), false),
        };
        let mut value = when(
            exists(Arc::clone(&rows), &of, decides, false)?,
            lit(decided),
        );
        if may_be_null {
            let unknown = exists(rows, &of, compared.is_null(), false)?;
            value.when(unknown, lit(ScalarValue::Boolean(None)));
        }
        value.otherwise(lit(!decided))
    }
}

/// An expression of a query, as a subquery in it has it.
fn outside(expr: Expr, schema: &DFSchema) -> Result<Expr> {
    let expr = expr.transform_up(|expr| match expr {
        Expr::Column(column) => {
            let field = Arc::clone(schema.field_from_column(&column)?);
            Ok(Transformed::yes(Expr::OuterReferenceColumn(field, column)))
        }
        other => Ok(Transformed::no(other)),
    });
    Ok(expr?.data)
}

fn exists(rows: Arc<LogicalPlan>, of: &Subquery, condition: Expr, negated: bool) -> Result<Expr> {
    let rows = LogicalPlan::Filter(Filter::try_new(condition, rows)?);
    Ok(Expr::Exists(Exists {
        subquery: Subquery {
            outer_ref_columns: rows.all_out_ref_exprs(),
            subquery: Arc::new(rows),
            spans: of.spans.clone(),
        },
        negated,
    }))
}
