//! A subquery's plan over all values of a domain: its rows for each of them.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{
    Column, DFSchema, JoinType, NullEquality, Result, ScalarValue, not_impl_err,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::{conjunction, merge_schema};
use datafusion::logical_expr::{
    Aggregate, Distinct, Expr, ExprFunctionExt, ExprSchemable, FetchType, Filter, Join,
    JoinConstraint, Limit, LogicalPlan, LogicalPlanBuilder, Operator, Projection, SkipType, Sort,
    SortExpr, SubqueryAlias, Union, Values, Window, binary_expr, cast, lit, when,
};

use super::domain::{Domain, has_sets};
use super::outer::{outer_columns, outer_columns_of_node};
use super::{Names, lateral, left_joined, with_plan, with_subquery};
use crate::ranks::row_number;
use crate::tree::{map_named_expressions, subquery_of};
use crate::walk::Walk as _;

/// Brings a domain down a plan. Each plan that it gives has the columns of the one before, then those of the
/// domain.
pub(super) struct Push<'a> {
    domain: &'a Domain,
    /// The schema of the query around the subquery.
    outer: &'a DFSchema,
    names: &'a mut Names,
}

impl<'a> Push<'a> {
    pub fn new(domain: &'a Domain, outer: &'a DFSchema, names: &'a mut Names) -> Self {
        Self {
            domain,
            outer,
            names,
        }
    }

    /// The plan's rows for each row of the domain.
    ///
    /// # Errors
    /// `NotImplemented` for operators that can't be given a domain.
    pub fn plan(&mut self, plan: &LogicalPlan) -> Result<LogicalPlan> {
        if outer_columns(plan, self.outer)?.is_empty() {
            let own = LogicalPlanBuilder::from(plan.clone());
            return own.cross_join(self.domain.plan.clone())?.build();
        }
        match plan {
            LogicalPlan::Filter(Filter { input, .. })
            | LogicalPlan::Projection(Projection { input, .. })
            | LogicalPlan::SubqueryAlias(SubqueryAlias { input, .. })
            | LogicalPlan::Distinct(Distinct::All(input))
            | LogicalPlan::Sort(Sort {
                input, fetch: None, ..
            }) => {
                let input = self.input(input)?;
                self.over(plan, input)
            }
            LogicalPlan::Subquery(subquery) => self.plan(&subquery.subquery),
            LogicalPlan::Limit(limit) => self.limit(limit),
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Window(window) => self.window(window),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Union(union) => {
                let inputs = union
                    .inputs
                    .iter()
                    .map(|input| Ok(Arc::new(self.plan(input)?)));
                let inputs = inputs.collect::<Result<Vec<_>>>()?;
                self.union(&union.schema, inputs)
            }
            LogicalPlan::Unnest(unnest) => {
                let input = self.plan(&unnest.input)?;
                let changed = plan.with_new_exprs(plan.expressions(), vec![input])?;
                self.ordered(plan, changed)
            }
            LogicalPlan::Values(values) => self.values(values),
            other => not_impl_err!(
                "{} in a subquery that uses columns of the query around it",
                other.display()
            ),
        }
    }

    /// What a node is over that uses the domain's columns itself: a row for each of the domain's where there
    /// is nothing else.
    fn input(&mut self, input: &LogicalPlan) -> Result<LogicalPlan> {
        match input {
            LogicalPlan::EmptyRelation(empty) if empty.produce_one_row => {
                Ok(self.domain.plan.clone())
            }
            _ => self.plan(input),
        }
    }

    fn domain_columns(&self) -> impl Iterator<Item = Expr> + use<> {
        self.domain.columns().into_iter().map(Expr::Column)
    }

    /// The columns of the plan before, then the domain's.
    fn ordered(&self, before: &LogicalPlan, plan: LogicalPlan) -> Result<LogicalPlan> {
        let own = before.schema().columns().into_iter().map(Expr::Column);
        let wanted: Vec<_> = own.chain(self.domain_columns()).collect();
        let columns = plan.schema().columns().into_iter().map(Expr::Column);
        match columns.eq(wanted.iter().cloned()) {
            true => Ok(plan),
            false => LogicalPlanBuilder::from(plan).project(wanted)?.build(),
        }
    }

    /// An operator that takes each row by itself, over its input with the domain's columns.
    fn over(&mut self, node: &LogicalPlan, input: LogicalPlan) -> Result<LogicalPlan> {
        let input = Arc::new(input);
        match node {
            LogicalPlan::Filter(filter) => {
                let predicate = self.replaced(node, filter.predicate.clone())?;
                Ok(LogicalPlan::Filter(Filter::try_new(predicate, input)?))
            }
            LogicalPlan::Projection(projection) => {
                let own = self.named(node, &projection.expr)?;
                let exprs = own.into_iter().chain(self.domain_columns()).collect();
                Ok(LogicalPlan::Projection(Projection::try_new(exprs, input)?))
            }
            LogicalPlan::SubqueryAlias(alias) => {
                let called = SubqueryAlias::try_new(input, alias.alias.clone())?;
                let own = node.schema().columns().into_iter().map(Expr::Column);
                let of_domain = self.domain.columns().into_iter().map(|column| {
                    let called = Column::new(Some(alias.alias.clone()), column.name.clone());
                    Expr::Column(called).alias(column.name)
                });
                LogicalPlanBuilder::from(LogicalPlan::SubqueryAlias(called))
                    .project(own.chain(of_domain).collect::<Vec<_>>())?
                    .build()
            }
            LogicalPlan::Distinct(_) => Ok(LogicalPlan::Distinct(Distinct::All(input))),
            LogicalPlan::Sort(sort) => Ok(LogicalPlan::Sort(Sort {
                expr: self.sort_exprs(node, &sort.expr)?,
                input,
                fetch: None,
            })),
            other => not_impl_err!("{} over a domain", other.display()),
        }
    }

    /// The first rows of each row of the domain.
    fn limit(&mut self, limit: &Limit) -> Result<LogicalPlan> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) =
            (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return not_impl_err!(
                "LIMIT and OFFSET that are no numbers in a subquery that uses columns of the query around it"
            );
        };
        // What is between LIMIT and ORDER BY takes each row by itself.
        let (mut between, mut input) = (Vec::new(), limit.input.as_ref());
        while let LogicalPlan::Projection(Projection { input: below, .. })
        | LogicalPlan::SubqueryAlias(SubqueryAlias { input: below, .. }) = input
        {
            between.push(input);
            input = below.as_ref();
        }
        let (order, input) = match input {
            LogicalPlan::Sort(sort) if sort.fetch.is_none() => {
                (self.sort_exprs(input, &sort.expr)?, sort.input.as_ref())
            }
            _ => (Vec::new(), input),
        };
        let over = self.input(input)?;
        let number = self.names.column("row");
        let numbered = row_number()
            .partition_by(vec![Expr::Column(self.domain.key.clone())])
            .order_by(order)
            .build()?
            .alias(&number.name);
        let number = || Expr::Column(number.clone());
        let place = |rows: usize| lit(i64::try_from(rows).unwrap_or(i64::MAX));
        let mut kept = number().gt(place(skip));
        if let Some(fetch) = fetch {
            kept = kept.and(number().lt_eq(place(skip.saturating_add(fetch))));
        }
        let columns = over.schema().columns().into_iter().map(Expr::Column);
        let columns: Vec<_> = columns.collect();
        let mut plan = LogicalPlanBuilder::from(over)
            .window(vec![numbered])?
            .filter(kept)?
            .project(columns)?
            .build()?;
        for node in between.into_iter().rev() {
            plan = self.over(node, plan)?;
        }
        Ok(plan)
    }

    /// Groups of each row of the domain. Without groups there is one even where there are no rows.
    fn aggregate(&mut self, aggregate: &Aggregate) -> Result<LogicalPlan> {
        let before = LogicalPlan::Aggregate(aggregate.clone());
        if has_sets(aggregate) {
            return not_impl_err!(
                "GROUPING SETS, ROLLUP and CUBE in a subquery that uses columns of the query around it"
            );
        }
        // By the SQL standard it is one of the query around it.
        let is_of_outer = |expr: &Expr| expr.contains_outer() && !expr.any_column_refs();
        if let Some(expr) = aggregate.aggr_expr.iter().find(|expr| is_of_outer(expr)) {
            return not_impl_err!(
                "{expr} in a subquery, an aggregate of nothing but columns of the query around it; compute it there"
            );
        }
        let input = self.input(&aggregate.input)?;
        let groups = self.named(&before, &aggregate.group_expr)?;
        let values = self.named(&before, &aggregate.aggr_expr)?;
        if !groups.is_empty() {
            let groups = groups
                .into_iter()
                .chain(self.domain_columns())
                .collect::<Vec<_>>();
            let grouped = LogicalPlanBuilder::from(input)
                .aggregate(groups, values)?
                .build()?;
            return self.ordered(&before, grouped);
        }
        let found = self.names.column("found");
        let key = Expr::Column(self.domain.key.clone());
        let grouped = LogicalPlanBuilder::from(input)
            .aggregate(vec![key.clone().alias(&found.name)], values)?
            .build()?;
        let columns = before.schema().columns().into_iter();
        let values = columns.zip(&aggregate.aggr_expr).map(|(column, expr)| {
            let empty = empty_value(expr, &aggregate.input)?;
            let value = Expr::Column(column.clone());
            if empty.is_null() {
                return Ok(value);
            }
            let value = when(Expr::Column(found.clone()).is_null(), lit(empty)).otherwise(value)?;
            Ok(value.alias_qualified(column.relation, column.name))
        });
        let values = values.collect::<Result<Vec<_>>>()?;
        let on = (key, Expr::Column(found.clone()));
        let all = left_joined(self.domain.plan.clone(), grouped, on)?;
        LogicalPlanBuilder::from(all)
            .project(
                values
                    .into_iter()
                    .chain(self.domain_columns())
                    .collect::<Vec<_>>(),
            )?
            .build()
    }

    /// Windows within each row of the domain.
    fn window(&mut self, window: &Window) -> Result<LogicalPlan> {
        let before = LogicalPlan::Window(window.clone());
        let input = self.input(&window.input)?;
        let key = Expr::Column(self.domain.key.clone());
        let names = NamePreserver::new_for_projection();
        let exprs = window.window_expr.iter().map(|expr| {
            let name = names.save(expr);
            let expr = self.replaced(&before, expr.clone())?;
            let expr = expr.transform_up(|expr| match expr {
                Expr::WindowFunction(mut function) => {
                    function.params.partition_by.push(key.clone());
                    Ok(Transformed::yes(Expr::WindowFunction(function)))
                }
                other => Ok(Transformed::no(other)),
            })?;
            Ok(name.restore(expr.data))
        });
        let exprs = exprs.collect::<Result<Vec<_>>>()?;
        let windows = Window::try_new(exprs, Arc::new(input))?;
        self.ordered(&before, LogicalPlan::Window(windows))
    }

    /// A join within each row of the domain: brought down the one side that needs it where the other's rows
    /// are the same for all, else down both.
    fn join(&mut self, join: &Join) -> Result<LogicalPlan> {
        use JoinType::{
            Full, Inner, Left, LeftAnti, LeftMark, LeftSemi, Right, RightAnti, RightMark, RightSemi,
        };
        let before = LogicalPlan::Join(join.clone());
        let [uses_left, uses_right] = [&join.left, &join.right]
            .map(|side| outer_columns(side, self.outer).map(|columns| !columns.is_empty()));
        let (uses_left, uses_right) = (uses_left?, uses_right?);
        let keeps_left = matches!(
            join.join_type,
            Inner | Left | LeftSemi | LeftAnti | LeftMark
        );
        let keeps_right = matches!(join.join_type, Right | RightSemi | RightAnti | RightMark);
        let is_of_left = keeps_left && !uses_right;
        let is_of_right = (keeps_right || join.join_type == Inner) && !uses_left;
        let (left, right, key) = if lateral(&join.right).is_some() {
            // The domain's columns are among those that the right side is computed for.
            let mut nearer = vec![join.left.schema().as_ref().clone()];
            let right = self.plan_deeper(&join.right, &mut nearer)?;
            (self.plan(&join.left)?, right, None)
        } else if is_of_left {
            (self.plan(&join.left)?, join.right.as_ref().clone(), None)
        } else if is_of_right {
            (join.left.as_ref().clone(), self.plan(&join.right)?, None)
        } else {
            let (left, right) = (self.plan(&join.left)?, self.plan(&join.right)?);
            // One side's columns of the domain have other names.
            match keeps_right {
                true => {
                    let (left, renamed) = self.renamed(&join.left, left)?;
                    (left, right, Some((renamed, false)))
                }
                false => {
                    let (right, renamed) = self.renamed(&join.right, right)?;
                    (left, right, Some((renamed, true)))
                }
            }
        };
        // What compares with the query around the subquery is not of one side any more.
        let mut conditions = Vec::new();
        let mut on = Vec::new();
        let uses_itself = !outer_columns_of_node(&before, self.outer)?.is_empty();
        for (of_left, of_right) in &join.on {
            match uses_itself {
                false => on.push((of_left.clone(), of_right.clone())),
                true => {
                    let op = match join.null_equality {
                        NullEquality::NullEqualsNothing => Operator::Eq,
                        NullEquality::NullEqualsNull => Operator::IsNotDistinctFrom,
                    };
                    conditions.push(binary_expr(of_left.clone(), op, of_right.clone()));
                }
            }
        }
        conditions.extend(join.filter.clone());
        let conditions = conditions
            .into_iter()
            .map(|condition| self.replaced(&before, condition));
        let conditions = conditions.collect::<Result<Vec<_>>>()?;
        let mut domain: Vec<Expr> = self.domain_columns().collect();
        if let Some((renamed, is_right)) = key {
            let own = Expr::Column(self.domain.key.clone());
            let other = Expr::Column(renamed.last().cloned().expect("the key is the last"));
            on.push(match is_right {
                true => (own.clone(), other.clone()),
                false => (other.clone(), own.clone()),
            });
            if join.join_type == Full {
                let columns = domain.into_iter().zip(renamed).zip(self.domain.columns());
                let either = columns.map(|((own_column, other), called)| {
                    let mut either = when(own.clone().is_null(), Expr::Column(other));
                    Ok(either.otherwise(own_column)?.alias(called.name))
                });
                domain = either.collect::<Result<_>>()?;
            }
        }
        let joined = Join::try_new(
            Arc::new(left),
            Arc::new(right),
            on,
            conjunction(conditions),
            join.join_type,
            JoinConstraint::On,
            join.null_equality,
            false,
        )?;
        let own = before.schema().columns().into_iter().map(Expr::Column);
        LogicalPlanBuilder::from(LogicalPlan::Join(joined))
            .project(own.chain(domain).collect::<Vec<_>>())?
            .build()
    }

    /// A side of a join with other names for the domain's columns, which are returned, that of the key last.
    fn renamed(
        &mut self,
        before: &LogicalPlan,
        plan: LogicalPlan,
    ) -> Result<(LogicalPlan, Vec<Column>)> {
        let columns = self.domain.columns();
        let renamed: Vec<_> = columns.iter().map(|_| self.names.column("other")).collect();
        let own = before.schema().columns().into_iter().map(Expr::Column);
        let others = columns.into_iter().zip(&renamed);
        let others = others.map(|(column, other)| Expr::Column(column).alias(&other.name));
        let plan = LogicalPlanBuilder::from(plan)
            .project(own.chain(others).collect::<Vec<_>>())?
            .build()?;
        Ok((plan, renamed))
    }

    /// Each row of VALUES for each row of the domain.
    fn values(&mut self, values: &Values) -> Result<LogicalPlan> {
        let before = LogicalPlan::Values(values.clone());
        let rows = values.values.iter().map(|row| {
            let row = row.iter().zip(before.schema().iter());
            let row = row.map(|(value, (qualifier, field))| {
                let value = self.replaced(&before, value.clone())?;
                let value = cast(value, field.data_type().clone());
                Ok(value.alias_qualified(qualifier.cloned(), field.name()))
            });
            let row = row.collect::<Result<Vec<_>>>()?;
            let exprs = row
                .into_iter()
                .chain(self.domain_columns())
                .collect::<Vec<_>>();
            let row = LogicalPlanBuilder::from(self.domain.plan.clone()).project(exprs)?;
            Ok(Arc::new(row.build()?))
        });
        let inputs = rows.collect::<Result<Vec<_>>>()?;
        self.union(before.schema(), inputs)
    }

    /// All rows of plans whose columns are those of a schema, then the domain's.
    fn union(&self, before: &DFSchema, inputs: Vec<Arc<LogicalPlan>>) -> Result<LogicalPlan> {
        let named = before.join(self.domain.plan.schema())?;
        let fields = named.iter().enumerate().map(|(place, (qualifier, field))| {
            let mut given = inputs.iter().map(|input| input.schema().field(place));
            let is_nullable = given.any(|field| field.is_nullable());
            let field = field.as_ref().clone().with_nullable(is_nullable);
            (qualifier.cloned(), Arc::new(field))
        });
        let schema = DFSchema::new_with_metadata(fields.collect(), named.metadata().clone())?;
        let schema = Arc::new(schema);
        Ok(LogicalPlan::Union(Union { inputs, schema }))
    }

    fn sort_exprs(&self, node: &LogicalPlan, exprs: &[SortExpr]) -> Result<Vec<SortExpr>> {
        let sorts = exprs.iter();
        let replaced =
            sorts.map(|sort| Ok(sort.with_expr(self.replaced(node, sort.expr.clone())?)));
        replaced.collect()
    }

    /// Expressions of a node that give its columns, with their names.
    fn named(&self, node: &LogicalPlan, exprs: &[Expr]) -> Result<Vec<Expr>> {
        let names = NamePreserver::new(node);
        let named = exprs.iter().map(|expr| {
            let name = names.save(expr);
            Ok(name.restore(self.replaced(node, expr.clone())?))
        });
        named.collect()
    }

    /// An expression of a node with the domain's columns for those of the query around the subquery.
    fn replaced(&self, node: &LogicalPlan, expr: Expr) -> Result<Expr> {
        let standing = &self.domain.standing;
        let changed = expr.transform_up(|expr| match expr {
            Expr::OuterReferenceColumn(field, column) => {
                match standing.iter().find(|(outer, _)| *outer == column) {
                    Some((_, own)) => Ok(Transformed::yes(Expr::Column(own.clone()))),
                    None => Ok(Transformed::no(Expr::OuterReferenceColumn(field, column))),
                }
            }
            other => self.deeper(other, &mut vec![merge_schema(&node.inputs())]),
        })?;
        Ok(changed.data)
    }

    /// An expression that is a subquery within the one that is brought down: the domain's columns are of the
    /// query around it. `nearer`: the queries between.
    fn deeper(&self, expr: Expr, nearer: &mut Vec<DFSchema>) -> Result<Transformed<Expr>> {
        let Some(subquery) = subquery_of(&expr) else {
            return Ok(Transformed::no(expr));
        };
        let subquery = with_plan(subquery, self.plan_deeper(&subquery.subquery, nearer)?);
        Ok(Transformed::yes(with_subquery(expr, subquery)))
    }

    /// The plan of such a subquery, or of one in it.
    fn plan_deeper(&self, plan: &LogicalPlan, nearer: &mut Vec<DFSchema>) -> Result<LogicalPlan> {
        let own = merge_schema(&plan.inputs());
        let changed = map_named_expressions(plan.clone(), |expr| {
            expr.transform_up(|expr| {
                if let Expr::OuterReferenceColumn(field, column) = &expr {
                    let is_nearer = nearer.iter().any(|schema| schema.has_column(column));
                    let mut standing = self.domain.standing.iter();
                    return Ok(
                        match standing.find(|(outer, _)| !is_nearer && outer == column) {
                            Some((_, stands)) => {
                                let field = field.as_ref().clone().with_name(&stands.name);
                                let stands =
                                    Expr::OuterReferenceColumn(Arc::new(field), stands.clone());
                                Transformed::yes(stands)
                            }
                            None => Transformed::no(expr),
                        },
                    );
                }
                nearer.push(own.clone());
                let changed = self.deeper(expr, nearer);
                nearer.pop();
                changed
            })
        })?;
        let beside = match plan {
            LogicalPlan::Join(join) if lateral(&join.right).is_some() => {
                Some((&join.right, join.left.schema()))
            }
            _ => None,
        };
        let changed = changed.data.map_children(|input| {
            let is_beside = beside.filter(|(right, _)| right.as_ref() == &input);
            let depth = nearer.len();
            nearer.extend(is_beside.map(|(_, left)| left.as_ref().clone()));
            let changed = self.plan_deeper(&input, nearer);
            nearer.truncate(depth);
            changed.map(Transformed::yes)
        })?;
        changed.data.recompute_schema()
    }
}

/// What an aggregate gives of no rows.
fn empty_value(expr: &Expr, input: &LogicalPlan) -> Result<ScalarValue> {
    let data_type = expr.get_type(input.schema())?;
    match expr.clone().unalias_nested().data {
        Expr::AggregateFunction(aggregate) => aggregate.func.default_value(&data_type),
        _ => ScalarValue::try_from(&data_type),
    }
}
