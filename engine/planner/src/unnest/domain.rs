//! The values for which a subquery is computed.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::catalog::default_table_source::source_as_provider;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DataFusionError, ExprSchema, JoinType, Result, not_impl_err};
use datafusion::datasource::cte_worktable::CteWorkTable;
use datafusion::logical_expr::utils::{conjunction, split_conjunction};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprSchemable, Filter, LogicalPlan, LogicalPlanBuilder, TableScan,
};

use super::functions::key;
use super::{Names, lateral};
use crate::asof::is_as_of_join;
use crate::tree::has_subquery;
use crate::walk::WalkPlan as _;

/// The values that columns of the query around a subquery have there, each combination once.
#[derive(Debug)]
pub(super) struct Domain {
    /// Gives [`Domain::columns`].
    pub plan: LogicalPlan,
    /// The columns of the query around it, and those that stand for them here.
    pub standing: Vec<(Column, Column)>,
    /// Another one for each row, and never NULL.
    pub key: Column,
    /// As the subquery names the columns of the query around it.
    outer: Vec<Expr>,
}

impl Domain {
    /// The domain of these columns of a query.
    ///
    /// # Errors
    /// `NotImplemented` where the query may give other values when it is computed again.
    pub fn new(rows: &LogicalPlan, columns: Vec<Column>, names: &mut Names) -> Result<Self> {
        let rows = match same(rows) {
            Err(DataFusionError::NotImplemented(_)) => {
                more(rows, &columns.iter().cloned().collect())?
            }
            rows => rows?,
        };
        let outer = columns.iter().map(|column| {
            let field = rows.schema().field_from_column(column)?;
            Ok(Expr::OuterReferenceColumn(
                Arc::clone(field),
                column.clone(),
            ))
        });
        let outer = outer.collect::<Result<Vec<_>>>()?;
        let standing: Vec<_> = columns
            .into_iter()
            .map(|column| {
                let own = names.column("outer");
                (column, own)
            })
            .collect();
        let found = names.column("key");
        let key_of_row = key().call(own_exprs(&standing));
        let named = standing
            .iter()
            .map(|(column, own)| Expr::Column(column.clone()).alias(&own.name))
            .chain([key_of_row.alias(&found.name)]);
        let plan = LogicalPlanBuilder::from(rows)
            .project(named.collect::<Vec<_>>())?
            .distinct()?
            .build()?;
        Ok(Self {
            plan,
            standing,
            key: found,
            outer,
        })
    }

    /// The key that belongs to a row of the query around the subquery.
    pub fn key_of_row(&self) -> Expr {
        key().call(own_exprs(&self.standing))
    }

    /// The same, from within a subquery.
    pub fn key_of_outer(&self) -> Expr {
        key().call(self.outer.clone())
    }

    /// What [`Domain::plan`] gives: columns without a qualifier.
    pub fn columns(&self) -> Vec<Column> {
        let own = self.standing.iter().map(|(_, own)| own.clone());
        own.chain([self.key.clone()]).collect()
    }
}

fn own_exprs(standing: &[(Column, Column)]) -> Vec<Expr> {
    let columns = standing.iter();
    columns
        .map(|(column, _)| Expr::Column(column.clone()))
        .collect()
}

/// The rows of which a filter's subqueries are asked: those that its other conditions leave.
///
/// # Errors
/// Those of building plans.
pub(super) fn of_filter(filter: &Filter) -> Result<LogicalPlan> {
    let others = split_conjunction(&filter.predicate).into_iter();
    let others = others.filter(|condition| {
        !has_subquery(condition).unwrap_or(true)
            && !condition.is_volatile()
            && !condition.contains_outer()
    });
    let input = LogicalPlanBuilder::from(filter.input.as_ref().clone());
    match conjunction(others.cloned()) {
        Some(others) => input.filter(others)?.build(),
        None => input.build(),
    }
}

/// A plan with all values that these columns of a plan have together, and perhaps more: what leaves rows out
/// may leave out others the next time. Its columns are those and perhaps others.
///
/// # Errors
/// `NotImplemented` where that plan may give other values, too.
fn more(plan: &LogicalPlan, columns: &BTreeSet<Column>) -> Result<LogicalPlan> {
    let has_all = |input: &LogicalPlan, columns: &BTreeSet<Column>| {
        columns
            .iter()
            .all(|column| input.schema().has_column(column))
    };
    match plan {
        LogicalPlan::Limit(limit) => more(&limit.input, columns),
        LogicalPlan::Sort(sort) => more(&sort.input, columns),
        LogicalPlan::Distinct(Distinct::All(input)) => more(input, columns),
        LogicalPlan::Window(window) if has_all(&window.input, columns) => {
            more(&window.input, columns)
        }
        LogicalPlan::Filter(filter) => {
            let used = filter.predicate.column_refs().into_iter().cloned();
            let used = columns.iter().cloned().chain(used).collect();
            match more(&filter.input, &used) {
                Ok(input) if is_repeatable(&filter.predicate) => {
                    let predicate = filter.predicate.clone();
                    Ok(LogicalPlan::Filter(Filter::try_new(
                        predicate,
                        Arc::new(input),
                    )?))
                }
                _ => more(&filter.input, columns),
            }
        }
        LogicalPlan::Projection(projection) => {
            let named = projection
                .schema
                .columns()
                .into_iter()
                .zip(&projection.expr);
            let (_, exprs): (Vec<_>, Vec<Expr>) = named
                .filter(|(column, _)| columns.contains(column))
                .map(|(column, expr)| (column, expr.clone()))
                .unzip();
            computed(exprs, plan, &projection.input)
        }
        // Each group has the values of its rows.
        LogicalPlan::Aggregate(aggregate)
            if !aggregate.group_expr.is_empty() && !has_sets(aggregate) =>
        {
            let named = aggregate
                .schema
                .columns()
                .into_iter()
                .zip(&aggregate.group_expr);
            let groups: Vec<_> = named
                .filter(|(column, _)| columns.contains(column))
                .map(|(_, expr)| expr.clone())
                .collect();
            match groups.len() == columns.len() {
                true => computed(groups, plan, &aggregate.input),
                false => same(plan),
            }
        }
        LogicalPlan::SubqueryAlias(alias) => {
            let inner = alias.input.schema().columns().into_iter();
            let inner = alias.schema.columns().into_iter().zip(inner);
            let inner: Vec<_> = inner.filter(|(outer, _)| columns.contains(outer)).collect();
            let used = inner.iter().map(|(_, inner)| inner.clone()).collect();
            let named = inner.into_iter().map(|(outer, inner)| {
                Expr::Column(inner).alias_qualified(outer.relation, outer.name)
            });
            LogicalPlanBuilder::from(more(&alias.input, &used)?)
                .project(named.collect::<Vec<_>>())?
                .build()
        }
        LogicalPlan::Join(join) => {
            let sides = [&join.left, &join.right].map(|side| side.as_ref());
            let is_lateral = lateral(sides[1]).is_some();
            let [left_is_whole, right_is_whole] = match join.join_type {
                JoinType::Inner => [true, true],
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => {
                    [true, false]
                }
                JoinType::Right
                | JoinType::RightSemi
                | JoinType::RightAnti
                | JoinType::RightMark => [false, true],
                JoinType::Full => [false, false],
            };
            if left_is_whole && has_all(sides[0], columns) {
                more(sides[0], columns)
            } else if right_is_whole && !is_lateral && has_all(sides[1], columns) {
                more(sides[1], columns)
            } else if join.join_type == JoinType::Inner
                && !is_lateral
                && plan.expressions().iter().all(is_repeatable)
            {
                let used = plan.expressions();
                let used = used.iter().flat_map(Expr::column_refs);
                let used: BTreeSet<_> = used.chain(columns).cloned().collect();
                let side = |side: &LogicalPlan| {
                    let used = used
                        .iter()
                        .filter(|column| side.schema().has_column(column));
                    more(side, &used.cloned().collect())
                };
                plan.with_new_exprs(plan.expressions(), vec![side(sides[0])?, side(sides[1])?])
            } else {
                same(plan)
            }
        }
        other => same(other),
    }
}

/// Whether it has GROUPING SETS, ROLLUP or CUBE.
pub(super) fn has_sets(aggregate: &Aggregate) -> bool {
    let mut groups = aggregate.group_expr.iter();
    groups.any(|expr| matches!(expr, Expr::GroupingSet(_)))
}

/// Expressions of a plan over its input.
fn computed(exprs: Vec<Expr>, plan: &LogicalPlan, input: &LogicalPlan) -> Result<LogicalPlan> {
    if !exprs.iter().all(is_repeatable) {
        return same(plan);
    }
    let used = exprs.iter().flat_map(Expr::column_refs).cloned().collect();
    LogicalPlanBuilder::from(more(input, &used)?)
        .project(exprs)?
        .build()
}

fn is_repeatable(expr: &Expr) -> bool {
    !expr.is_volatile() && !has_subquery(expr).unwrap_or(true)
}

/// A plan itself, where it gives the same values when it is computed again.
fn same(plan: &LogicalPlan) -> Result<LogicalPlan> {
    plan.walk_with_subqueries(|node| {
        check_node(node)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(plan.clone())
}

/// Whether an expression of a node, without its inputs, gives another value each time.
pub(super) fn is_volatile(node: &LogicalPlan) -> Result<bool> {
    let mut is_volatile = false;
    node.walk_expressions(|expr| {
        is_volatile |= expr.is_volatile();
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(is_volatile)
}

/// Refuses what may give other values when it is computed again.
fn check_node(node: &LogicalPlan) -> Result<()> {
    let what = match node {
        _ if is_volatile(node)? => "a function that gives another value each time",
        LogicalPlan::Limit(_) => "LIMIT",
        LogicalPlan::TableScan(scan) if is_of_recursion(scan) => "a query's own rows so far",
        LogicalPlan::Window(_) => "a window function",
        LogicalPlan::Distinct(Distinct::On(_)) => "DISTINCT ON",
        // Of several rows of one time any is the nearest.
        LogicalPlan::Extension(of) if is_as_of_join(of.node.as_ref()) => "ASOF JOIN",
        LogicalPlan::Aggregate(aggregate)
            if aggregate
                .aggr_expr
                .iter()
                .any(|expr| depends_on_order(expr, &aggregate.input)) =>
        {
            "an aggregate that depends on the order of rows"
        }
        _ => return Ok(()),
    };
    not_again(what)
}

/// Whether a table is what a recursive query has found: it may stand there once.
fn is_of_recursion(scan: &TableScan) -> bool {
    let provider = source_as_provider(&scan.source);
    provider.is_ok_and(|provider| provider.downcast_ref::<CteWorkTable>().is_some())
}

fn not_again<T>(what: &str) -> Result<T> {
    not_impl_err!(
        "a subquery that uses columns of the query around it in this way, where they come from {what}: keep \
         that query's rows in a table first"
    )
}

/// Whether an aggregate may give something else over the same rows in another order. Sums of floats do.
fn depends_on_order(expr: &Expr, input: &LogicalPlan) -> bool {
    let Expr::AggregateFunction(aggregate) = expr.clone().unalias_nested().data else {
        return true;
    };
    let is_known = matches!(
        aggregate.func.name(),
        "count"
            | "sum"
            | "min"
            | "max"
            | "avg"
            | "bool_and"
            | "bool_or"
            | "bit_and"
            | "bit_or"
            | "bit_xor"
    );
    let is_of_float = expr
        .get_type(input.schema())
        .map_or(true, |data_type| data_type.is_floating());
    let keeps_one = matches!(aggregate.func.name(), "min" | "max");
    !is_known || (is_of_float && !keeps_one)
}
