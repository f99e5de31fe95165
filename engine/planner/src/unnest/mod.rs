//! Subqueries that use columns of the query around them, of which DataFusion makes no joins, or wrong
//! ones: with LIMIT, windows, unions, outer joins, conditions that are no equalities below an aggregate,
//! values that are no aggregates, several levels; and `LATERAL`.
//!
//! Such a subquery is computed for all values of those columns at once, the [`Domain`]: instead of once
//! for each row of the query around it, once for each row of the domain, which is brought down to where the
//! columns are used ([`push`]). What it gives is joined with the query around it by the domain's key
//! (Neumann and Kemper, "Unnesting Arbitrary Queries", BTW 2015). The domain is computed from the query
//! around it, which is planned twice by that: subqueries of which DataFusion makes a join by itself are
//! left to it ([`plain`]).

mod conditions;
mod domain;
mod functions;
mod outer;
mod plain;
mod push;
mod types;

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DataFusionError, JoinType, NullEquality, Result, not_impl_err};
use datafusion::functions_aggregate::expr_fn::{count, first_value};
use datafusion::logical_expr::expr::{Exists, InSubquery, SetComparison};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, merge_schema, split_conjunction_owned};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, Filter, Join, JoinConstraint, LogicalPlan, LogicalPlanBuilder,
    Operator, Projection, Sort, Subquery, Window, binary_expr, lit,
};
use datafusion::optimizer::AnalyzerRule;

use domain::Domain;
use functions::only;
pub(crate) use outer::has_subquery_below;
use outer::outer_columns;
pub(crate) use plain::gives_one_row;
use plain::{Kind, is_plain, is_right};
use push::Push;

use crate::tree::{has_subquery, subquery_of};
use crate::walk::{Walk as _, WalkPlan as _};

pub use functions::functions;
pub use types::OuterTypes;

/// The rule; place it behind those that give types.
#[derive(Debug)]
pub struct UnnestSubqueries;

impl AnalyzerRule for UnnestSubqueries {
    fn name(&self) -> &str {
        "flashmesh_unnest_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        if !has_subquery_below(&plan)? {
            return Ok(plan);
        }
        let mut names = Names(0);
        // Else what ORDER BY in a subquery uses of that may be taken for columns of the query around it.
        let plan = plan.change_down_with_subqueries(|node| ordered(node, &mut names))?;
        let plan = plan.data;
        // From above: what a subquery is computed from then uses no columns of queries further out.
        let plan = plan.change_down_with_subqueries(|node| unnested(node, &mut names))?;
        Ok(plan.data)
    }
}

/// Makes names that no column of a user has.
#[derive(Debug)]
struct Names(usize);

impl Names {
    fn column(&mut self, what: &str) -> Column {
        self.0 += 1;
        Column::from_name(format!("__{what}_{}", self.0))
    }
}

/// A node without subqueries of which no join can be made.
fn unnested(node: LogicalPlan, names: &mut Names) -> Result<Transformed<LogicalPlan>> {
    if let LogicalPlan::Join(join) = &node
        && lateral(&join.right).is_some()
        && let Some(joined) = beside(join, names)?
    {
        return Ok(Transformed::yes(joined));
    }
    let exprs = node.expressions();
    if !exprs.iter().any(|expr| has_subquery(expr).unwrap_or(true)) {
        return Ok(Transformed::no(node));
    }
    let around = match &node {
        LogicalPlan::Projection(Projection { input, .. })
        | LogicalPlan::Filter(Filter { input, .. })
        | LogicalPlan::Aggregate(Aggregate { input, .. })
        | LogicalPlan::Window(Window { input, .. }) => input.as_ref(),
        LogicalPlan::Join(join) => {
            let changed = match join.join_type {
                JoinType::Inner => above_join(join, names),
                _ => conditions::of_sides(join, names),
            }?;
            return Ok(changed.map_or_else(|| Transformed::no(node), Transformed::yes));
        }
        _ => return Ok(Transformed::no(node)),
    };
    let mut below = Below {
        node: &node,
        around,
        input: around.clone(),
        names,
    };
    let kept = NamePreserver::new(&node);
    let exprs = exprs.into_iter().map(|expr| {
        let name = kept.save(&expr);
        let changed = expr.transform_up(|expr| below.changed(expr))?;
        Ok(match changed.transformed {
            true => changed.update_data(|expr| name.restore(expr)),
            false => changed,
        })
    });
    let exprs = exprs.collect::<Result<Vec<_>>>()?;
    if !exprs.iter().any(|expr| expr.transformed) {
        return Ok(Transformed::no(node));
    }
    let exprs = exprs.into_iter().map(|expr| expr.data).collect();
    let input = below.input;
    let wanted = node.schema().columns();
    let mut changed = node.with_new_exprs(exprs, vec![input])?;
    if changed.schema().columns() != wanted {
        changed = LogicalPlanBuilder::from(changed)
            .project(wanted.into_iter().map(Expr::Column))?
            .build()?;
    }
    Ok(Transformed::yes(changed))
}

/// The subqueries in the condition of an inner join as those of a filter above it; `None` where DataFusion
/// makes joins of them.
fn above_join(join: &Join, names: &mut Names) -> Result<Option<LogicalPlan>> {
    let mut needs_domain = false;
    if let Some(condition) = &join.filter {
        condition.apply(|expr| {
            let Some(subquery) = subquery_of(expr) else {
                return Ok(TreeNodeRecursion::Continue);
            };
            let (plan, kind) = (&subquery.subquery, Kind::of(expr));
            let schema = merge_schema(&[&join.left, &join.right]);
            needs_domain |= !outer_columns(plan, &schema)?.is_empty()
                && (kind == Kind::Value || !is_plain(plan, &schema, kind)?);
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    if !needs_domain {
        return Ok(None);
    }
    let conditions = join
        .filter
        .iter()
        .cloned()
        .flat_map(split_conjunction_owned);
    let (tests, others): (Vec<_>, Vec<_>) =
        conditions.partition(|condition| has_subquery(condition).unwrap_or(true));
    let mut below = join.clone();
    below.filter = conjunction(others);
    let tests = conjunction(tests).expect("one needs a domain");
    let filter = Filter::try_new(tests, Arc::new(LogicalPlan::Join(below)))?;
    let changed = unnested(LogicalPlan::Filter(filter), names)?;
    Ok(Some(changed.data))
}

fn ordered(node: LogicalPlan, names: &mut Names) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Sort(sort)
            if sort
                .expr
                .iter()
                .any(|one| has_subquery(&one.expr).unwrap_or(true)) =>
        {
            ordered_by_columns(sort, names).map(Transformed::yes)
        }
        other => Ok(Transformed::no(other)),
    }
}

/// ORDER BY over columns in which its subqueries are computed, and over what those use: a SELECT leaves
/// out what it does not name.
fn ordered_by_columns(sort: Sort, names: &mut Names) -> Result<LogicalPlan> {
    let wanted = sort.input.schema().columns().into_iter().map(Expr::Column);
    let wanted: Vec<_> = wanted.collect();
    let mut input = sort.input.as_ref().clone();
    if let LogicalPlan::Projection(projection) = &input {
        let mut missing = BTreeSet::new();
        for one in &sort.expr {
            one.expr.apply(|expr| {
                if let Some(subquery) = subquery_of(expr) {
                    missing.extend(outer_columns(
                        &subquery.subquery,
                        projection.input.schema(),
                    )?);
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        missing.retain(|column| !projection.schema.has_column(column));
        let exprs = projection.expr.iter().cloned();
        let exprs = exprs.chain(missing.into_iter().map(Expr::Column)).collect();
        let more = Projection::try_new(exprs, Arc::clone(&projection.input))?;
        input = LogicalPlan::Projection(more);
    }
    let mut columns: Vec<_> = input
        .schema()
        .columns()
        .into_iter()
        .map(Expr::Column)
        .collect();
    let mut order = Vec::with_capacity(sort.expr.len());
    for one in sort.expr {
        order.push(match has_subquery(&one.expr)? {
            true => {
                let column = names.column("order");
                columns.push(one.expr.clone().alias(&column.name));
                one.with_expr(Expr::Column(column))
            }
            false => one,
        });
    }
    let input = LogicalPlanBuilder::from(input).project(columns)?.build()?;
    let sorted = LogicalPlan::Sort(Sort {
        expr: order,
        input: Arc::new(input),
        fetch: sort.fetch,
    });
    LogicalPlanBuilder::from(sorted).project(wanted)?.build()
}

/// What a node with subqueries is to be computed from.
struct Below<'a> {
    node: &'a LogicalPlan,
    /// Its input: the query around the subqueries.
    around: &'a LogicalPlan,
    /// With the columns of the node's input, and the values of subqueries.
    input: LogicalPlan,
    names: &'a mut Names,
}

impl Below<'_> {
    fn changed(&mut self, expr: Expr) -> Result<Transformed<Expr>> {
        let Some(subquery) = subquery_of(&expr) else {
            return Ok(Transformed::no(expr));
        };
        let subquery = subquery.clone();
        let is_one = gives_one_row(&subquery.subquery);
        match expr {
            Expr::Exists(test) if is_one => Ok(Transformed::yes(lit(!test.negated))),
            Expr::InSubquery(test) if is_one && self.is_related(&subquery)? => {
                let op = match test.negated {
                    false => Operator::Eq,
                    true => Operator::NotEq,
                };
                self.compared(*test.expr, op, subquery)
            }
            Expr::SetComparison(test) if is_one && self.is_related(&subquery)? => {
                self.compared(*test.expr, test.op, subquery)
            }
            expr => match Kind::of(&expr) {
                Kind::Value => self.value(subquery),
                kind => Ok(match self.set(&subquery, kind)? {
                    Some(set) => Transformed::yes(with_subquery(expr, set)),
                    None => Transformed::no(expr),
                }),
            },
        }
    }

    fn is_related(&self, subquery: &Subquery) -> Result<bool> {
        Ok(!outer_columns(&subquery.subquery, self.around.schema())?.is_empty())
    }

    fn compared(
        &mut self,
        expr: Expr,
        op: Operator,
        subquery: Subquery,
    ) -> Result<Transformed<Expr>> {
        let value = self.value(subquery)?.data;
        Ok(Transformed::yes(binary_expr(expr, op, value)))
    }

    /// The domain of a subquery, and what it is over that; `None` for one of which DataFusion makes a join,
    /// or that uses nothing of the node.
    fn over_domain(
        &mut self,
        subquery: &Subquery,
        kind: Kind,
    ) -> Result<Option<(Domain, LogicalPlan)>> {
        let (plan, schema) = (&subquery.subquery, self.around.schema());
        let columns = outer_columns(plan, schema)?;
        let may_be_left = match self.node {
            LogicalPlan::Projection(_) | LogicalPlan::Filter(_) => true,
            _ => kind != Kind::Value,
        };
        let has_more = kind != Kind::Exists && plan.schema().fields().len() != 1;
        if columns.is_empty() || has_more || (may_be_left && is_plain(plan, schema, kind)?) {
            return Ok(None);
        }
        let rows = match self.node {
            LogicalPlan::Filter(filter) => domain::of_filter(filter)?,
            _ => self.around.clone(),
        };
        let made = is_once_for_all(plan).and_then(|()| {
            let domain = Domain::new(&rows, columns, self.names)?;
            let over = Push::new(&domain, schema, self.names).plan(plan)?;
            Ok((domain, over))
        });
        match made {
            Err(DataFusionError::NotImplemented(_))
                if may_be_left && is_right(plan, schema, kind)? =>
            {
                Ok(None)
            }
            made => made.map(Some),
        }
    }

    /// A value as a column of the input.
    fn value(&mut self, subquery: Subquery) -> Result<Transformed<Expr>> {
        let Some((domain, over)) = self.over_domain(&subquery, Kind::Value)? else {
            return Ok(Transformed::no(Expr::ScalarSubquery(subquery)));
        };
        let [value, rows, key] = ["value", "rows", "found"].map(|what| self.names.column(what));
        let given = Expr::Column(over.schema().columns().swap_remove(0));
        let found = Expr::from(domain.key.clone()).alias(&key.name);
        let over = LogicalPlanBuilder::from(over);
        let is_one = gives_one_row(&subquery.subquery);
        let over = match is_one {
            true => over.project([given.alias(&value.name), found])?,
            false => {
                let first = first_value(given, Vec::new()).alias(&value.name);
                over.aggregate([found], [first, count(lit(1_i64)).alias(&rows.name)])?
            }
        };
        let on = (domain.key_of_row(), Expr::Column(key));
        self.input = left_joined(self.input.clone(), over.build()?, on)?;
        let value = Expr::Column(value);
        // Not before: there may be more rows for values that the query around it leaves out elsewhere.
        Ok(Transformed::yes(match is_one {
            true => value,
            false => only().call(vec![value, Expr::Column(rows)]),
        }))
    }

    /// A set as one of which DataFusion makes a join.
    fn set(&mut self, subquery: &Subquery, kind: Kind) -> Result<Option<Subquery>> {
        // A set is the same with and without.
        if let LogicalPlan::Distinct(Distinct::All(input)) = subquery.subquery.as_ref()
            && self.is_related(subquery)?
        {
            let all = with_plan(subquery, input.as_ref().clone());
            return Ok(Some(self.set(&all, kind)?.unwrap_or(all)));
        }
        let Some((domain, over)) = self.over_domain(subquery, kind)? else {
            return Ok(None);
        };
        // DataFusion takes a column without a qualifier for two.
        let set = self.names.column("set").name;
        let of_set = |column: &Column| Expr::Column(Column::new(Some(set.clone()), &column.name));
        let key = &domain.key;
        let value = match kind {
            Kind::Exists => key.clone(),
            _ => subquery.subquery.schema().columns().swap_remove(0),
        };
        let columns = [&value, key]
            .into_iter()
            .take(1 + usize::from(value != *key));
        let plan = LogicalPlanBuilder::from(over)
            .project(columns.map(|column| Expr::Column(column.clone())))?
            .alias(set.clone())?
            .filter(of_set(key).eq(domain.key_of_outer()))?
            .project([of_set(&value)])?
            .build()?;
        Ok(Some(with_plan(subquery, plan)))
    }
}

/// An expression that is a subquery, with another one.
fn with_subquery(expr: Expr, subquery: Subquery) -> Expr {
    match expr {
        Expr::Exists(test) => Expr::Exists(Exists { subquery, ..test }),
        Expr::InSubquery(test) => Expr::InSubquery(InSubquery { subquery, ..test }),
        Expr::SetComparison(test) => Expr::SetComparison(SetComparison { subquery, ..test }),
        _ => Expr::ScalarSubquery(subquery),
    }
}

/// A subquery with another plan.
fn with_plan(subquery: &Subquery, plan: LogicalPlan) -> Subquery {
    Subquery {
        outer_ref_columns: plan.all_out_ref_exprs(),
        subquery: Arc::new(plan),
        spans: subquery.spans.clone(),
    }
}

/// The subquery on the right side of a LATERAL join.
fn lateral(right: &LogicalPlan) -> Option<&Subquery> {
    match right {
        LogicalPlan::Subquery(subquery) => Some(subquery),
        LogicalPlan::SubqueryAlias(alias) => lateral(&alias.input),
        LogicalPlan::Projection(projection) => lateral(&projection.input),
        _ => None,
    }
}

/// A LATERAL join; `None` for one that DataFusion makes, or can't be one.
fn beside(join: &Join, names: &mut Names) -> Result<Option<LogicalPlan>> {
    let (left, right) = (join.left.as_ref(), join.right.as_ref());
    let columns = outer_columns(right, left.schema())?;
    let is_left = match (join.join_type, lateral(right)) {
        (JoinType::Inner, Some(subquery)) => {
            is_plain(&subquery.subquery, left.schema(), Kind::Rows)?
        }
        (JoinType::Left, _) => false,
        _ => true,
    };
    if columns.is_empty() || is_left {
        return Ok(None);
    }
    is_once_for_all(right)?;
    let domain = Domain::new(left, columns, names)?;
    let over = Push::new(&domain, left.schema(), names).plan(right)?;
    let found = names.column("found");
    let own = right.schema().columns().into_iter().map(Expr::Column);
    let key = Expr::Column(domain.key.clone()).alias(&found.name);
    let over = LogicalPlanBuilder::from(over)
        .project(own.chain([key]).collect::<Vec<_>>())?
        .build()?;
    let on = (domain.key_of_row(), Expr::Column(found));
    let joined = Join::try_new(
        Arc::clone(&join.left),
        Arc::new(over),
        join.on.iter().cloned().chain([on]).collect(),
        join.filter.clone(),
        join.join_type,
        JoinConstraint::On,
        join.null_equality,
        false,
    )?;
    let wanted = join.schema.columns().into_iter().map(Expr::Column);
    let joined = LogicalPlanBuilder::from(LogicalPlan::Join(joined)).project(wanted)?;
    joined.build().map(Some)
}

/// Refuses a subquery that gives other rows each time: over a domain it is computed once for all rows that
/// have the same values.
fn is_once_for_all(plan: &LogicalPlan) -> Result<()> {
    match plan.exists(domain::is_volatile)? {
        false => Ok(()),
        true => not_impl_err!(
            "a function that gives another value each time in a subquery that uses columns of the query around it"
        ),
    }
}

fn left_joined(left: LogicalPlan, right: LogicalPlan, on: (Expr, Expr)) -> Result<LogicalPlan> {
    Ok(LogicalPlan::Join(Join::try_new(
        Arc::new(left),
        Arc::new(right),
        vec![on],
        None,
        JoinType::Left,
        JoinConstraint::On,
        NullEquality::NullEqualsNothing,
        false,
    )?))
}
